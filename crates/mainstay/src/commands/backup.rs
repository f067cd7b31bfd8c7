//! `backup` and `restore`: the whole database, with or without a host that serves it.

use crate::cli::{BackupArgs, RestoreArgs};
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use mainstay_host::host::lock_home;
use mainstay_host::{DATABASE, StartError};
use mainstay_store::{BackupError, RestoreError, backup_file, restore_file};
use serde_json::json;

pub(crate) fn backup(settings: &Settings, args: &BackupArgs, json: bool) -> Result<Exit, Failure> {
    backup_file(&settings.home.join(DATABASE), &args.file).map_err(|error| {
        let exit = if matches!(error, BackupError::Exists { .. }) { Exit::Refused } else { Exit::Other };
        Failure::of(exit, &error)
    })?;
    let bytes = std::fs::metadata(&args.file)?.len();
    if json {
        output::json(&json!({ "file": args.file, "bytes": bytes }))?;
    } else {
        output::line(&format!("{}: {bytes} bytes", args.file.display()))?;
    }
    Ok(Exit::Completed)
}

pub(crate) fn restore(settings: &Settings, args: &RestoreArgs, json: bool) -> Result<Exit, Failure> {
    // Held until the new database is in its place: no host may have the old one open.
    let _home = lock_home(&settings.home).map_err(|error| match error {
        StartError::HomeTaken { .. } => {
            Failure::new(Exit::Refused, "a host serves this home; end it first (`mainstay stop --host`)")
        }
        error => Failure::other(&error),
    })?;
    let restored = restore_file(&args.file, &settings.home.join(DATABASE)).map_err(|error| {
        let exit = match error {
            RestoreError::NotABackup { .. } | RestoreError::Damaged { .. } | RestoreError::Newer { .. } => {
                Exit::Refused
            }
            RestoreError::Copy { .. } | RestoreError::Io { .. } => Exit::Other,
        };
        Failure::of(exit, &error)
    })?;
    let lost = restored.acknowledged - restored.commit;
    if json {
        output::json(&json!({
            "commit": restored.commit, "lost_commits": lost, "replaced": restored.replaced,
        }))?;
        return Ok(Exit::Completed);
    }
    output::line(&format!(
        "restored; {lost} transactions that were made since are gone, and every session begins a new epoch"
    ))?;
    if let Some(replaced) = restored.replaced {
        output::note(&format!("the database that was there is kept as {}", replaced.display()));
    }
    output::note("agents that were started since have no record now: `mainstay ps` shows them");
    Ok(Exit::Completed)
}
