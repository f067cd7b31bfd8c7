//! The database, looked at without a host and beside one.

use super::finding::{self as kind, Finding};
use crate::failure::chain;
use mainstay_host::DATABASE;
use mainstay_store::{Integrity, Mark, WRITER_VERSION, inspect_file, sqlite_version};
use std::path::Path;
use std::time::Duration;

/// How long its pages are looked at. A gigabyte takes about this long from a disk.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn look(home: &Path) -> Vec<Finding> {
    let sqlite = sqlite();
    let path = home.join(DATABASE);
    let found = match inspect_file(&path, PATIENCE) {
        Ok(Some(found)) => found,
        Ok(None) => {
            let detail = format!("{} is not there yet", path.display());
            return vec![sqlite, Finding::new(kind::DATABASE_MISSING, detail, &[])];
        }
        Err(error) => return vec![sqlite, Finding::new(kind::DATABASE_UNOPENED, chain(&error), &[])],
    };
    let size = format!(
        "{} KiB and {} KiB of WAL, {} transactions, layout {}",
        found.bytes / 1024,
        found.wal_bytes / 1024,
        found.commit,
        found.schema_version
    );
    let mut findings = vec![sqlite];
    findings.push(match found.integrity {
        Integrity::Sound => Finding::new(kind::DATABASE_OK, size, &[]),
        Integrity::Damaged { detail } => Finding::new(kind::DATABASE_DAMAGED, detail, &[]),
        Integrity::Unfinished => {
            let detail = format!("{size}; nothing was wrong in {} s", PATIENCE.as_secs());
            Finding::new(kind::DATABASE_UNFINISHED, detail, &[])
        }
    });
    if found.min_writer > WRITER_VERSION {
        let detail =
            format!("it asks for writer {}, this program is writer {WRITER_VERSION}", found.min_writer);
        findings.push(Finding::new(kind::DATABASE_NEWER, detail, &[]));
    }
    if let Mark::At { commit, .. } = found.mark
        && commit > found.commit
    {
        let detail =
            format!("transaction {commit} was acknowledged, the newest in the file is {}", found.commit);
        findings.push(Finding::new(kind::DATABASE_REWOUND, detail, &[]));
    }
    findings
}

fn sqlite() -> Finding {
    let version = sqlite_version();
    let number = |version: &str| -> Option<i32> {
        let mut parts = version.split('.').map(|part| part.parse::<i32>().ok());
        Some(parts.next()?? * 1_000_000 + parts.next()?? * 1_000 + parts.next()??)
    };
    let recent = number(version).is_some_and(|number| number >= mainstay_store::MIN_SQLITE_VERSION);
    Finding::new(if recent { kind::SQLITE_OK } else { kind::SQLITE_OLD }, version, &[])
}
