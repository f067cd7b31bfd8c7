//! Descriptors at the birth of a keeper: nothing is inherited but what was handed over on purpose.
#![expect(unsafe_code, reason = "closing a descriptor that some ancestor leaked has no owner to be dropped")]

use std::fs::File;
use std::io;
use std::os::fd::{OwnedFd, RawFd};

/// The two things that a host hands over, moved away from the standard numbers, which are `/dev/null` now.
pub(super) struct HandedOver {
    /// Was standard input.
    pub(super) launch_channel: OwnedFd,
    /// Was standard output.
    pub(super) lock: File,
}

/// Closes every descriptor above standard error. Must be called before this process opened any of its own.
pub(super) fn close_inherited() -> io::Result<()> {
    let mut numbers: Vec<RawFd> = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        if let Some(number) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
            numbers.push(number);
        }
    }
    for number in numbers {
        // The folder's own descriptor was in the list and is closed already.
        let is_open = std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
        if number > 2 && is_open {
            // SAFETY: the process has just begun and opened nothing itself, so no value in it owns this
            // descriptor; it was leaked by the process that started this one.
            unsafe { rustix::io::close(number) };
        }
    }
    Ok(())
}

/// Takes what stands on the standard numbers, so that no child can inherit it.
pub(super) fn take_handed_over() -> io::Result<HandedOver> {
    let launch_channel = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let lock = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(HandedOver { launch_channel, lock: File::from(lock) })
}
