//! The host of this home, if one runs.

use super::finding::{self as kind, Finding};
use super::home::is_running;
use crate::client::{Address, Client, ClientError, encode};
use crate::config::Settings;
use crate::environment::Environment;
use crate::failure::chain;
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A host answers in milliseconds. One that has not after this long is stopped or wedged.
const ANSWER_DEADLINE: Duration = Duration::from_secs(10);
/// The clocks drift apart by less than this between a start and now.
const STEP: Duration = Duration::from_secs(5);
/// Sessions that are named one by one; of more the first are.
const MOST_NAMED: usize = 20;

pub(super) async fn look(settings: &Settings, environment: &Environment) -> Vec<Finding> {
    let client = Client::new(&settings.home);
    let log = settings.home.join("logs/host.log").display().to_string();
    let info = match tokio::time::timeout(ANSWER_DEADLINE, client.get("/v1/info")).await {
        Ok(Ok(info)) => info,
        Ok(Err(ClientError::NoHost(error))) => return vec![no_host(settings, environment, &error, &log)],
        Ok(Err(error)) => return vec![Finding::new(kind::HOST_REFUSES, chain(&error), &[("log", &log)])],
        Err(_) => {
            let pid = Address::read(&settings.home).ok().map(|address| address.pid);
            return vec![silent(pid, &format!("no answer in {} s", ANSWER_DEADLINE.as_secs()), &log)];
        }
    };
    let text = |member: &str| info[member].as_str().unwrap_or("-");
    let mut found = vec![Finding::new(
        kind::HOST_OK,
        format!(
            "version {}, pid {}, http://{}, {}",
            text("version"),
            info["pid"],
            text("listening"),
            text("socket")
        ),
        &[],
    )];
    if text("version") != env!("CARGO_PKG_VERSION") {
        let detail =
            format!("the host is {}, this program is {}", text("version"), env!("CARGO_PKG_VERSION"));
        found.push(Finding::new(kind::HOST_VERSION, detail, &[]));
    }
    found.push(match (info["degraded"].as_str(), text("store")) {
        (None, "read_write") => Finding::new(kind::STORE_OK, "takes writes", &[]),
        (degraded, mode) => Finding::new(kind::STORE_DEGRADED, degraded.unwrap_or(mode), &[]),
    });
    for token in info["unclaimed"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        found.push(Finding::new(kind::UNCLAIMED, token, &[("token", token)]));
    }
    found.extend(stepped(&settings.home, &info));
    found.extend(recovering(&client).await);
    found
}

fn no_host(settings: &Settings, environment: &Environment, why: &std::io::Error, log: &str) -> Finding {
    // The lock file outlives its host, and its number may be another process's by now.
    let holder = std::fs::read_to_string(settings.home.join("host.lock")).unwrap_or_default();
    let holder: Option<i32> = holder.trim().parse().ok();
    if let Some(pid) = holder.filter(|&pid| is_running(pid) && is_a_host(pid)) {
        return silent(Some(pid), &format!("it has the home's lock and cannot be reached: {why}"), log);
    }
    let places = environment.socket_places(&settings.home);
    let places: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
    Finding::new(kind::HOST_NONE, format!("it would listen at {}", places.join(" or ")), &[])
}

fn silent(pid: Option<i32>, why: &str, log: &str) -> Finding {
    let Some(pid) = pid.filter(|pid| *pid > 0) else {
        let detail = format!("a process that is not known: {why}; its log is {log}");
        return Finding::new(kind::HOST_SILENT, detail, &[]).without_mend();
    };
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let is_stopped = state.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'));
    let state = if is_stopped { ", and is stopped" } else { "" };
    let pid = pid.to_string();
    Finding::new(kind::HOST_SILENT, format!("process {pid}: {why}{state}"), &[("pid", &pid), ("log", log)])
}

fn is_a_host(pid: i32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|&byte| byte == 0).any(|word| word == b"serve")
}

/// The wall clock against the host's own time since its start, which no setting of the clock changes.
fn stepped(home: &Path, info: &Value) -> Option<Finding> {
    let published = Address::file(home).metadata().ok()?.modified().ok()?;
    let running = Duration::from_millis(info["uptime_ms"].as_u64()?);
    let (by, direction) = match SystemTime::now().duration_since(published) {
        Ok(by_clock) if by_clock > running => (by_clock.saturating_sub(running), "forward"),
        Ok(by_clock) => (running.saturating_sub(by_clock), "back"),
        Err(error) => (running.saturating_add(error.duration()), "back"),
    };
    let detail = format!("set {direction} by about {} s since the host started", by.as_secs());
    (by > STEP).then(|| Finding::new(kind::CLOCK_STEPPED, detail, &[]))
}

async fn recovering(client: &Client) -> Vec<Finding> {
    let path = format!("/v1/sessions?status=recovering&limit={MOST_NAMED}");
    let listed = match tokio::time::timeout(ANSWER_DEADLINE, client.get(&path)).await {
        Ok(Ok(listed)) => listed,
        Ok(Err(error)) => return vec![Finding::new(kind::HOST_REFUSES, chain(&error), &[])],
        Err(_) => return Vec::new(),
    };
    let sessions = listed["sessions"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    let of = |session: &Value| {
        let id = session["id"].as_str().unwrap_or("?");
        let reason = session["reason"].as_str().unwrap_or("recovering");
        Finding::new(kind::RECOVERING, format!("{id}: {reason}"), &[("session", &encode(id))])
    };
    sessions.iter().map(of).collect()
}
