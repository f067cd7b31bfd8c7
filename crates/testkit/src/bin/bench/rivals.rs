//! What the machine itself can do: the bare steps of the road, without anything kept or checked.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Appends `total` bytes to a file in batches, each synced: the physical limit of being durable.
pub(crate) fn append_and_sync(folder: &std::path::Path, total: usize, batch: usize) -> f64 {
    let mut file = File::create(folder.join("rival")).expect("a file");
    let bytes = vec![b'x'; batch];
    let begun = Instant::now();
    let mut written = 0;
    while written < total {
        file.write_all(&bytes).expect("written");
        file.sync_data().expect("synced");
        written += batch;
    }
    begun.elapsed().as_secs_f64()
}

/// Reads `total` bytes from a child's pipe and drops them: the physical limit of the road in.
pub(crate) fn pipe(total: usize) -> f64 {
    let begun = Instant::now();
    let mut child = Command::new("head")
        .args(["-c", &total.to_string(), "/dev/zero"])
        .env_clear()
        .stdout(Stdio::piped())
        .spawn()
        .expect("head runs");
    let mut out = child.stdout.take().expect("piped");
    let mut buffer = vec![0; 64 * 1024];
    while out.read(&mut buffer).expect("read") > 0 {}
    child.wait().expect("ended");
    begun.elapsed().as_secs_f64()
}
