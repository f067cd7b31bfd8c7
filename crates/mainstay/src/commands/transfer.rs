//! `export` and `import`: a session as one file.

use super::client;
use crate::background;
use crate::cli::{ExportArgs, ImportArgs};
use crate::client::{FileBody, encode, fresh_key};
use crate::config::Settings;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use crate::output;
use http_body_util::BodyExt;
use mainstay_host::transfer::{self, MEDIA_TYPE, Verified};
use serde_json::json;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};

/// Stands for standard input or output.
const STANDARD: &str = "-";

pub(crate) async fn export(settings: &Settings, args: &ExportArgs, json: bool) -> Result<Exit, Failure> {
    let path = format!("/v1/sessions/{}/export", encode(&args.session));
    let mut body = client(settings).download(&path).await?;
    let target = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}.mainstay", args.session)));
    if target.as_os_str() == STANDARD {
        let mut out = io::stdout().lock();
        while let Some(frame) = body.frame().await {
            // Whoever reads it sees that the last line is missing.
            let frame = frame.map_err(broken_off)?;
            out.write_all(frame.data_ref().map_or(&[], |data| data))?;
        }
        out.flush()?;
        return Ok(Exit::Completed);
    }
    let mut unfinished = Unfinished::beside(&target)?;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(broken_off)?;
        unfinished.file.write_all(frame.data_ref().map_or(&[], |data| data))?;
    }
    let verified = unfinished.publish(&target)?;
    let (rows, head) = (verified.rows, verified.header.head);
    if json {
        output::json(&json!({
            "session": verified.header.session, "file": target, "events": rows, "head": head,
            "digest": verified.digest,
        }))?;
    } else {
        output::line(&format!("{}: {rows} events up to {head}, {}", target.display(), verified.digest))?;
    }
    Ok(Exit::Completed)
}

fn broken_off(error: hyper::Error) -> Failure {
    let mut failure = Failure::of(Exit::Other, &error);
    failure.message = format!("the host broke the export off (its log says why): {}", failure.message);
    failure
}

/// A file that has its name only when it is whole.
struct Unfinished {
    file: File,
    path: PathBuf,
}

impl Unfinished {
    fn beside(target: &Path) -> Result<Self, Failure> {
        use std::os::unix::fs::OpenOptionsExt;
        if target.symlink_metadata().is_ok() {
            return Err(Failure::new(Exit::Refused, format!("{} exists", target.display())));
        }
        let mut path = target.as_os_str().to_owned();
        path.push(".unfinished");
        let path = PathBuf::from(path);
        // What people say to agents is for its owner.
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path);
        let file = file.map_err(|error| cannot(&path, &error))?;
        Ok(Self { file, path })
    }

    fn publish(self, target: &Path) -> Result<Verified, Failure> {
        self.file.sync_all().map_err(|error| cannot(&self.path, &error))?;
        let written = File::open(&self.path).map_err(|error| cannot(&self.path, &error))?;
        let verified =
            transfer::verify(BufReader::new(written)).map_err(|error| Failure::of(Exit::Other, &error))?;
        // Unlike a rename this overwrites nothing that came meanwhile.
        std::fs::hard_link(&self.path, target).map_err(|error| cannot(target, &error))?;
        Ok(verified)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Published under its name, or of no use.
        let _removed = std::fs::remove_file(&self.path);
    }
}

pub(crate) async fn import(
    settings: &Settings,
    environment: &Environment,
    args: &ImportArgs,
    json: bool,
) -> Result<Exit, Failure> {
    let body = if args.file.as_os_str() == STANDARD {
        FileBody::new(Box::new(io::stdin()))
    } else {
        let file = File::open(&args.file).map_err(|error| cannot(&args.file, &error))?;
        FileBody::new(Box::new(file))
    };
    let cwd = match &args.cwd {
        Some(cwd) => Some(std::path::absolute(cwd)?),
        None => None,
    };
    let mut query = Vec::new();
    if let Some(id) = &args.id {
        query.push(format!("id={}", encode(id)));
    }
    if let Some(cwd) = cwd {
        let cwd = cwd.to_str().ok_or_else(|| Failure::new(Exit::Usage, "--cwd: the path is not UTF-8"))?;
        query.push(format!("cwd={}", encode(cwd)));
    }
    let path = match query.is_empty() {
        true => "/v1/import".to_owned(),
        false => format!("/v1/import?{}", query.join("&")),
    };
    let client = background::ensure_host(settings, environment.current_folder().as_deref()).await?;
    let imported = client.upload(&path, MEDIA_TYPE, &fresh_key(), body).await?;
    if json {
        output::json(&imported)?;
    } else {
        output::line(imported["id"].as_str().unwrap_or("?"))?;
    }
    Ok(Exit::Completed)
}

fn cannot(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Other, format!("{}: {error}", path.display()))
}
