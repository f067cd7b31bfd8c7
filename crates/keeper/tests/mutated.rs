//! What reads what others wrote, over mutated real inputs: the checks of the fuzz targets, with fixed seeds.
#![expect(clippy::expect_used, reason = "these are tests, and so are their helpers")]

#[path = "../../../fuzz/checks/keeper_folder.rs"]
mod keeper_folder;
#[path = "../../../fuzz/checks/keeper_frames.rs"]
mod keeper_frames;
#[path = "../../../fuzz/checks/mutate.rs"]
mod mutate;

use mainstay_keeper::wire::{Message, Status, ToHost, ToKeeper};
use mainstay_keeper::{ExitRecord, Manifest, Order, ProcessIdentity, RefusedWhy};
use serde_json::json;

const BOOT: &str = "b831667e-7b6e-42f0-a5b3-e23950d092ca";

fn stream<M: Message>(piece: u8, messages: &[M]) -> Vec<u8> {
    let mut bytes = vec![piece];
    messages.iter().for_each(|message| message.encode(&mut bytes));
    bytes
}

fn frames() -> Vec<Vec<u8>> {
    let to_keeper = [
        ToKeeper::Hello { version: 1, host_id: "host".to_owned(), process_fence: 3 },
        ToKeeper::Input { n: 1, connection: 1, urgent: false, payload: b"{\"jsonrpc\":\"2.0\"}".to_vec() },
        ToKeeper::Urgent { id: 9, connection: 1, payload: b"stop".to_vec() },
        ToKeeper::Committed { position: 1 << 40 },
        ToKeeper::Connect,
        ToKeeper::Close { order: Order::User },
        ToKeeper::Ping,
        ToKeeper::Unknown { kind: 200 },
    ];
    let to_host = [
        ToHost::Status(Box::new(Status {
            version: 1,
            keeper: ProcessIdentity { boot_id: BOOT.to_owned(), pid: 7, start_time: 9 },
            agent: None,
            recorded: 4,
            started: 3,
            written: 3,
            early_written: vec![6],
            connection: Some(1),
            connecting: false,
            spool_start: 0,
            spool_end: 77,
            exited: false,
            ending: true,
            spool_fault: None,
        })),
        ToHost::Recorded { n: 1 },
        ToHost::Written { n: 1 },
        ToHost::Refused { n: 2, why: RefusedWhy::Unknown },
        ToHost::UrgentWritten { id: 9 },
        ToHost::Doorbell { end: 77 },
        ToHost::Exited { end: 78 },
        ToHost::Pong,
    ];
    let pieces = [0, 3, 255].into_iter();
    pieces.flat_map(|piece| [stream(piece, &to_keeper), stream(piece, &to_host)]).collect()
}

#[test]
fn golden_seeds_of_frames() {
    mutate::compare_with_seeds("keeper_frames", &frames());
}

#[test]
fn mutated_frames_are_read_or_refused() {
    mutate::run(&frames(), 6_000, keeper_frames::check);
}

/// A folder's files, as the check takes them apart.
fn folder(files: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for file in files {
        bytes.extend_from_slice(&u16::try_from(file.len()).expect("small").to_le_bytes());
        bytes.extend_from_slice(file);
    }
    bytes
}

fn folders() -> [Vec<u8>; 4] {
    let keeper = ProcessIdentity { boot_id: BOOT.to_owned(), pid: 4_194_001, start_time: 123_455 };
    let agent = ProcessIdentity { pid: 4_194_000, ..keeper.clone() };
    let written = |value: serde_json::Value| serde_json::to_vec(&value).expect("JSON");
    let manifest = written(json!({
        "protocol_version": 1, "token": "p-1", "home": "/h", "host_id": "h", "process_fence": 1, "keeper": keeper,
        "program": "agent", "argv_digest": "x", "cwd": "/w", "agent_label": "demo", "versions": "m", "since_ms": 1,
    }));
    let exit = written(json!({
        "cause": { "kind": "agent_left" }, "exit_code": 0, "last_input_written": 3, "inputs_started": 3,
        "inputs_recorded": 4, "stderr_tail": "last words", "at_ms": 5,
    }));
    // The inputs are real ones, or the mutations of them show little.
    serde_json::from_slice::<Manifest>(&manifest).expect("a manifest");
    serde_json::from_slice::<ExitRecord>(&exit).expect("an exit record");
    let identity = serde_json::to_vec(&agent).expect("JSON");
    let (manifest, exit, identity) = (manifest.as_slice(), exit.as_slice(), identity.as_slice());
    [
        folder(&[b"x", manifest, identity, exit, b"", &[0; 700], b"thread-1\nthread-2\n", &[0; 64]]),
        folder(&[b"x", manifest, identity, b"", b"", b"", b"", b""]),
        folder(&[b"x", manifest, b"", b"", br#"{"error":"no such file"}"#, b"", b"", b""]),
        folder(&[b"", b"", b"", b"", b"", b"", b"", b""]),
    ]
}

#[test]
fn golden_seeds_of_folders() {
    mutate::compare_with_seeds("keeper_folder", &folders());
}

#[test]
fn mutated_folders_stop_nobody_and_prove_nothing() {
    mutate::run(&folders(), 1_200, keeper_folder::check);
}
