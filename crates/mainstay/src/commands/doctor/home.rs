//! The state folder: who may read it, what it stands on, how much room there is, what lies around in it.

use super::finding::{self as kind, Finding, Kind};
use crate::environment::Environment;
use mainstay_host::DATABASE;
use mainstay_store::reserve_of;
use rustix::fs::{Access, access, statfs, statvfs};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Room below which a day's work may not fit: the database, its WAL and the spools of a few agents.
const LOW_BYTES: u64 = 256 * 1024 * 1024;
/// Files that a few agents and their keepers make.
const LOW_INODES: u64 = 1_000;
/// Files written this far in the future say that the clock went back; less is the rounding of a file server.
const FUTURE: Duration = Duration::from_secs(120);

pub(super) fn look(home: &Path, environment: &Environment) -> Vec<Finding> {
    let mut found = vec![folder(home)];
    // The file system that it will stand on, where it is not there yet.
    if let Some(standing) = home.ancestors().find(|folder| folder.exists()) {
        found.push(file_system(standing, home));
        found.extend(room(standing, home));
    }
    if home.is_dir() {
        found.push(token(home));
        found.extend(stale(home, environment));
        found.extend(clock(home));
    }
    found
}

fn folder(home: &Path) -> Finding {
    let shown = home.display().to_string();
    let words = [("home", shown.as_str())];
    let found = |kind, detail: String| Finding::new(kind, detail, &words);
    let meta = match home.metadata() {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return found(kind::HOME_MISSING, format!("{shown} is not there yet"));
        }
        Err(error) => return found(kind::HOME_UNREADABLE, format!("{shown}: {error}")),
    };
    if !meta.is_dir() {
        return found(kind::HOME_NO_FOLDER, format!("{shown} is no folder"));
    }
    let us = rustix::process::geteuid().as_raw();
    if meta.uid() != us {
        return found(
            kind::HOME_FOREIGN,
            format!("{shown} belongs to user {}, this is user {us}", meta.uid()),
        );
    }
    if is_open(&meta) {
        let mode = meta.permissions().mode() & 0o777;
        return found(kind::HOME_OPEN, format!("{shown} has mode {mode:o}"));
    }
    // Also asks a file system that is mounted read-only, which no mode shows.
    let may = access(home, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK);
    if let Err(error) = may {
        return found(kind::HOME_READ_ONLY, format!("{shown}: {}", io::Error::from(error)));
    }
    found(kind::HOME_OK, shown.clone())
}

fn is_open(meta: &Metadata) -> bool {
    meta.permissions().mode() & 0o077 != 0
}

/// What is known of kinds of file systems, by the magic number of statfs(2).
fn file_system_kind(magic: u64) -> (&'static Kind, &'static str) {
    // Some kernels give the number sign-extended.
    match magic & 0xffff_ffff {
        0xef53 => (kind::FS_OK, "ext"),
        0x5846_5342 => (kind::FS_OK, "xfs"),
        0x9123_683e => (kind::FS_OK, "btrfs"),
        0x2fc1_2fc1 => (kind::FS_OK, "zfs"),
        0xf2f5_2010 => (kind::FS_OK, "f2fs"),
        0xca45_1a4e => (kind::FS_OK, "bcachefs"),
        0x6969 => (kind::FS_NETWORK, "nfs"),
        0x517b | 0xfe53_4d42 | 0xff53_4d42 => (kind::FS_NETWORK, "smb"),
        0x00c3_6400 => (kind::FS_NETWORK, "ceph"),
        0x5346_414f | 0x6b41_4653 => (kind::FS_NETWORK, "afs"),
        0x0bd0_0bd0 => (kind::FS_NETWORK, "lustre"),
        0x4750_4653 => (kind::FS_NETWORK, "gpfs"),
        0x0102_1997 => (kind::FS_NETWORK, "9p"),
        0x786f_4256 => (kind::FS_NETWORK, "vboxsf"),
        0x6573_5546 => (kind::FS_FUSE, "fuse"),
        0x0102_1994 => (kind::FS_VOLATILE, "tmpfs"),
        0x8584_58f6 => (kind::FS_VOLATILE, "ramfs"),
        0x794c_7630 => (kind::FS_OVERLAY, "overlay"),
        _ => (kind::FS_UNKNOWN, "unknown"),
    }
}

fn file_system(standing: &Path, home: &Path) -> Finding {
    let shown = home.display().to_string();
    match statfs(standing) {
        Ok(stat) => {
            // Its type differs between machines; only the low 32 bits mean anything.
            #[expect(clippy::cast_sign_loss, reason = "a bit pattern, not a quantity")]
            let magic = stat.f_type as u64;
            let (kind, name) = file_system_kind(magic);
            Finding::new(kind, format!("{name} ({:#x})", magic & 0xffff_ffff), &[("home", &shown)])
        }
        Err(error) => Finding::new(kind::FS_UNKNOWN, io::Error::from(error).to_string(), &[]),
    }
}

fn room(standing: &Path, home: &Path) -> Vec<Finding> {
    let shown = home.display().to_string();
    let words = [("home", shown.as_str())];
    let Ok(stat) = statvfs(standing) else { return Vec::new() };
    let mut found = Vec::new();
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let detail = format!("{} MiB free", free / 1024 / 1024);
    found.push(match () {
        () if free < LOW_BYTES => Finding::new(kind::DISK_LOW, detail, &words),
        // No number of files at all: a file system that makes them as it goes.
        () if stat.f_files > 0 && stat.f_favail < LOW_INODES => {
            Finding::new(kind::DISK_INODES, format!("{} more files can be made", stat.f_favail), &words)
        }
        () => Finding::new(kind::DISK_OK, detail, &[]),
    });
    let database = home.join(DATABASE);
    let (reserve, bytes) = reserve_of(&database);
    if database.exists() && !reserve.metadata().is_ok_and(|meta| meta.len() >= bytes) {
        found.push(Finding::new(kind::RESERVE_MISSING, format!("{} is not there", reserve.display()), &[]));
    }
    found
}

fn token(home: &Path) -> Finding {
    let file = home.join("token");
    let shown = file.display().to_string();
    let words = [("file", shown.as_str())];
    match file.metadata() {
        Ok(meta) if is_open(&meta) => {
            let mode = meta.permissions().mode() & 0o777;
            Finding::new(kind::TOKEN_OPEN, format!("{shown} has mode {mode:o}"), &words)
        }
        Ok(_) => match std::fs::read_to_string(&file) {
            Ok(token) if !token.trim().is_empty() => Finding::new(kind::TOKEN_OK, "private", &[]),
            Ok(_) => Finding::new(kind::TOKEN_EMPTY, format!("{shown} is empty"), &words),
            Err(error) => Finding::new(kind::TOKEN_EMPTY, format!("{shown}: {error}"), &words),
        },
        Err(_) => Finding::new(kind::TOKEN_MISSING, "not made yet", &[]),
    }
}

/// What dead hosts left behind.
fn stale(home: &Path, environment: &Environment) -> Vec<Finding> {
    let mut found = Vec::new();
    let file = crate::client::Address::file(home);
    if let Ok(address) = crate::client::Address::read(home)
        && !is_running(address.pid)
    {
        let shown = file.display().to_string();
        let detail = format!("{shown} names process {}, which is gone", address.pid);
        found.push(Finding::new(kind::ADDRESS_STALE, detail, &[("file", &shown)]));
    }
    for socket in environment.socket_places(home) {
        if is_dead_socket(&socket) {
            let shown = socket.display().to_string();
            found.push(Finding::new(
                kind::SOCKET_STALE,
                format!("nobody listens at {shown}"),
                &[("file", &shown)],
            ));
        }
    }
    found
}

pub(super) fn is_running(pid: i32) -> bool {
    PathBuf::from(format!("/proc/{pid}")).is_dir()
}

fn is_dead_socket(path: &Path) -> bool {
    let is_socket = path.symlink_metadata().is_ok_and(|meta| meta.file_type().is_socket());
    let Ok(place) = mainstay_api::connectable(path) else { return false };
    let Ok(address) = SocketAddrUnix::new(place.path()) else { return false };
    // Not waiting: at one whose queue is full (its host is stopped) a connection would wait for ever.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let Ok(socket) = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else { return false };
    is_socket && connect(&socket, &address) == Err(Errno::CONNREFUSED)
}

/// A file of the home that was written in the future.
fn clock(home: &Path) -> Option<Finding> {
    let now = SystemTime::now();
    let database = home.join(DATABASE);
    let wal = home.join(format!("{DATABASE}-wal"));
    let files = [database, wal, home.join("host.lock"), home.join("token")];
    let newest = files
        .iter()
        .filter_map(|file| Some((file, file.metadata().ok()?.modified().ok()?)))
        .max_by_key(|(_, modified)| *modified)?;
    let ahead = newest.1.duration_since(now).ok().filter(|ahead| *ahead > FUTURE)?;
    let written = newest.1.duration_since(UNIX_EPOCH).ok()?;
    let written = crate::output::time(i64::try_from(written.as_millis()).ok()?);
    let detail = format!("{} was written at {written}, {} s from now", newest.0.display(), ahead.as_secs());
    Some(Finding::new(kind::CLOCK_BEHIND, detail, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_told_by_their_number() {
        for (magic, code) in [
            (0x6969, "filesystem.network"),
            (0xff53_4d42, "filesystem.network"),
            (0xffff_ffff_ff53_4d42, "filesystem.network"),
            (0x0102_1997, "filesystem.network"),
            (0x6573_5546, "filesystem.fuse"),
            (0x0102_1994, "filesystem.volatile"),
            (0x794c_7630, "filesystem.overlay"),
            (0xef53, "filesystem.ok"),
            (0x1234, "filesystem.unknown"),
        ] {
            assert_eq!(file_system_kind(magic).0.code, code, "{magic:#x}");
        }
    }

    #[test]
    fn memory_is_not_a_disk() {
        // Every Linux has one.
        let shm = Path::new("/dev/shm");
        if shm.is_dir() {
            assert_eq!(file_system(shm, shm).json()["code"], "filesystem.volatile");
        }
    }
}
