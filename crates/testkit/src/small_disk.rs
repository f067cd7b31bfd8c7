//! A small file system of its own, for tests of a full disk. Only where the machine lets the test mount one.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted tmpfs; unmounted when this value goes.
#[derive(Debug)]
pub struct SmallDisk {
    place: PathBuf,
}

impl SmallDisk {
    /// Mounts one of `mebibytes` over a folder, `None` where that is not allowed. Whatever was in the folder is hidden.
    pub fn mount(place: &Path, mebibytes: u32) -> Option<Self> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m,mode=700"), "tmpfs"])
            .arg(place)
            .output();
        let is_mounted = mounted.is_ok_and(|output| output.status.success());
        is_mounted.then(|| Self { place: place.to_owned() })
    }

    /// Where it is mounted.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Writes a file that takes all room but `left` bytes.
    ///
    /// # Panics
    /// When the file cannot be made.
    pub fn fill(&self, left: u64) -> PathBuf {
        let path = self.place.join("ballast");
        let stat = rustix::fs::statvfs(&self.place).expect("the room is known");
        let room = (stat.f_bavail * stat.f_frsize).saturating_sub(left);
        let file = std::fs::File::create(&path).expect("the ballast");
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, room).expect("takes the room");
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Processes that just ended may hold it a moment longer; lazily, it goes with the last of them.
        Command::new("umount").arg("-l").arg(&self.place).output().ok();
    }
}
