//! `token`: the API's bearer token.

use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use serde_json::json;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Random bytes in a token.
const TOKEN_BYTES: usize = 32;

pub(crate) fn print(settings: &Settings, json: bool) -> Result<Exit, Failure> {
    let token = read_or_make(&settings.home)?;
    if json {
        output::json(&json!({ "token": token }))?;
    } else {
        output::line(&token)?;
    }
    Ok(Exit::Completed)
}

/// The token of the home; made once, readable for its owner only.
pub(crate) fn read_or_make(home: &Path) -> Result<String, Failure> {
    let path = home.join("token");
    let failed =
        |error: io::Error| Failure::new(Exit::Other, format!("cannot use {}: {error}", path.display()));
    match std::fs::read_to_string(&path) {
        Ok(token) if !token.trim().is_empty() => return Ok(token.trim().to_owned()),
        Ok(_) => {
            return Err(Failure::new(
                Exit::Other,
                format!("{} is empty; delete it to have a new one", path.display()),
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(home).map_err(failed)?;
    let token = make().map_err(failed)?;
    let temporary = home.join(format!("token.{}", std::process::id()));
    let written = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| writeln!(file, "{token}").and_then(|()| file.sync_all()))
        // A link is made only where there is no token: of two that make one at the same time, the first counts.
        .and_then(|()| std::fs::hard_link(&temporary, &path));
    let _removed = std::fs::remove_file(&temporary);
    match written {
        Ok(()) => Ok(token),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::read_to_string(&path).map(|token| token.trim().to_owned()).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

fn make() -> io::Result<String> {
    let mut bytes = [0_u8; TOKEN_BYTES];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _written = write!(text, "{byte:02x}");
        text
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_token_is_made_once_and_is_private() {
        let home = tempfile::tempdir().expect("a folder");
        let token = read_or_make(home.path()).expect("made");
        assert_eq!(token.len(), 2 * TOKEN_BYTES);
        assert_eq!(read_or_make(home.path()).expect("read"), token);
        let mode = home.path().join("token").metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(home.path()).expect("a folder").count(), 1);
    }
}
