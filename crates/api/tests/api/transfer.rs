//! Sessions as files, over HTTP.

use crate::served::{Served, problem};
use mainstay_testkit::http::{Client, Response};
use serde_json::{Value, json};
use std::io::{Read, Write};

const MEDIA: &str = "application/x-ndjson";

fn export(served: &Served, session: &str) -> Response {
    served.client().get(&format!("/v1/sessions/{session}/export")).expect("an answer")
}

fn import(client: &Client, query: &str, headers: &[(&str, &str)], file: &[u8]) -> Response {
    let headers = [&[("content-type", MEDIA)], headers].concat();
    client.request("POST", &format!("/v1/import{query}"), &headers, Some(file)).expect("an answer")
}

/// A session with some events, and its file.
fn a_file(served: &Served) -> (String, Vec<u8>) {
    let session = served.session();
    for name in ["one", "two", "three"] {
        let body = json!({ "name": name });
        let path = format!("/v1/sessions/{session}");
        served.client().patch(&path, &body).expect("an answer").expect_status(200);
    }
    let exported = export(served, &session).expect_status(200);
    assert_eq!(exported.header("content-type"), Some(MEDIA));
    let disposition = format!("attachment; filename=\"{session}.mainstay\"");
    assert_eq!(exported.header("content-disposition"), Some(disposition.as_str()));
    (session, exported.body)
}

#[test]
fn a_session_moves_from_one_host_to_another() {
    let (here, there) = (Served::start(), Served::start());
    let (session, file) = a_file(&here);
    assert_eq!(file, export(&here, &session).body, "the same journal gives the same bytes");
    let query = format!("?cwd={}", there.work());
    let imported = import(&there.client(), &query, &[], &file).expect_status(201).json();
    assert_eq!((imported["id"].as_str(), imported["name"].as_str()), (Some(session.as_str()), Some("three")));
    let shown = there.client().get(&format!("/v1/sessions/{session}")).expect("an answer").json();
    assert_eq!(shown["id"], session.as_str());
    assert_eq!(shown["imported"]["session"], session.as_str(), "{shown}");
    // What it says of itself is what a reader of its stream is told.
    let page = there.client().get(&format!("/v1/sessions/{session}/events")).expect("an answer").json();
    assert_eq!(page["events"][1]["type"], "session.imported", "{page}");
    assert_eq!(page["events"][1]["from"]["session"], session.as_str());
    // A reader that followed it where it was is told to begin anew.
    let after = format!("/v1/sessions/{session}/events?after=1:2");
    let page = there.client().get(&after).expect("an answer").json();
    assert_eq!(page["reset"]["reason"], "epoch_changed", "{page}");
    // A second time it is another session.
    let copy = import(&there.client(), &query, &[], &file).expect_status(201).json();
    assert_ne!(copy["id"], session.as_str());
    let list = there.client().get("/v1/sessions").expect("an answer").json();
    assert_eq!(list["sessions"].as_array().map(Vec::len), Some(2), "{list}");
}

#[test]
fn an_import_under_a_key_is_made_once() {
    let served = Served::start();
    let (_, file) = a_file(&served);
    let once = |file: &[u8]| import(&served.client(), "", &[("idempotency-key", "k1")], file);
    let first = once(&file).expect_status(201);
    let again = once(&file).expect_status(201);
    assert_eq!((again.header("idempotent-replay"), again.json()), (Some("true"), first.json()));
    let other = [&file[..file.len() - 1], b" \n"].concat();
    problem(&once(&other), 409, "operation_conflict");
    assert_eq!(served.mark()["sessions"]["sessions"].as_array().map(Vec::len), Some(2));
}

#[test]
fn files_that_are_not_taken_change_nothing() {
    let served = Served::start();
    let (session, file) = a_file(&served);
    let before = served.mark();
    let client = served.client();
    let text = String::from_utf8(file.clone()).expect("text");
    let newer = text.replacen("\"version\":1", "\"version\":7", 1);
    assert_eq!(problem(&import(&client, "", &[], newer.as_bytes()), 422, "newer_file")["version"], 7);
    for refused in [&b""[..], b"{}\n", b"garbage", &file[..file.len() - 1], &file[..file.len() / 2]] {
        problem(&import(&client, "", &[], refused), 422, "invalid_file");
    }
    let changed = text.replacen("\"name\":\"two\"", "\"name\":\"TWO\"", 1);
    problem(&import(&client, "", &[], changed.as_bytes()), 422, "invalid_file");
    problem(&import(&client, &format!("?id={session}"), &[], &file), 409, "id_conflict");
    problem(&import(&client, "?id=../x", &[], &file), 400, "invalid_id");
    problem(&import(&client, "?cwd=/", &[], &file), 403, "outside_roots");
    problem(&import(&client, "?cwd=/nowhere", &[], &file), 422, "bad_folder");
    problem(&import(&client, "?folder=/", &[], &file), 400, "invalid_query");
    problem(&export(&served, "nobody"), 404, "session_unknown");
    assert_eq!(served.mark(), before);
    let state = served.folder.path().join("state");
    let names: Vec<_> =
        std::fs::read_dir(state).expect("a folder").flatten().map(|file| file.file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().contains("import")), "{names:?}");
}

#[test]
fn an_agent_may_not_import() {
    let served = Served::start();
    let (_, file) = a_file(&served);
    served.agents.lock().expect("unpoisoned").push(i32::try_from(std::process::id()).expect("a pid"));
    problem(&import(&served.socket_client(), "", &[], &file), 403, "from_agent");
}

#[test]
fn an_upload_that_breaks_off_changes_nothing() {
    let served = Served::start();
    let (_, file) = a_file(&served);
    let before = served.mark();
    // The whole file is there, and yet the client said that more would come: nobody knows whether it is all.
    let mut stream = std::net::TcpStream::connect(served.address).expect("connects");
    let head = format!(
        "POST /v1/import HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
        served.address,
        crate::served::TOKEN,
        file.len() + 1,
    );
    stream.write_all(head.as_bytes()).expect("sent");
    stream.write_all(&file).expect("sent");
    stream.shutdown(std::net::Shutdown::Write).expect("shut");
    let mut answer = Vec::new();
    // The host may just close the connection.
    let _read = stream.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains(" 201 "), "it was taken");
    assert_eq!(served.mark(), before);
}

#[test]
fn a_file_larger_than_a_body_may_be_goes_through() {
    let served = Served::start();
    let (session, _) = a_file(&served);
    // More than the 4 MiB that other routes read.
    let path = format!("/v1/sessions/{session}");
    for n in 0..50 {
        let body = json!({ "options": { "model": format!("{n}-{}", "m".repeat(100 * 1024)) } });
        served.client().patch(&path, &body).expect("an answer").expect_status(200);
    }
    let file = export(&served, &session).expect_status(200).body;
    assert!(file.len() > 4 * 1024 * 1024, "{} bytes", file.len());
    let imported = import(&served.client(), "", &[], &file).expect_status(201).json();
    let copy = imported["id"].as_str().expect("an id");
    let items = |id: &str| -> Value {
        served.client().get(&format!("/v1/sessions/{id}")).expect("an answer").json()["options"].clone()
    };
    assert_eq!(items(copy), items(&session));
}

/// Begins an upload of so many bytes, and sends none of them.
fn begin_upload(served: &Served, bytes: u64) -> std::net::TcpStream {
    begin_upload_with(served, bytes, "")
}

fn begin_upload_with(served: &Served, bytes: u64, header: &str) -> std::net::TcpStream {
    let mut stream = std::net::TcpStream::connect(served.address).expect("connects");
    let head = format!(
        "POST /v1/import HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-length: {bytes}\r\n{header}\r\n",
        served.address,
        crate::served::TOKEN,
    );
    stream.write_all(head.as_bytes()).expect("sent");
    stream
}

#[test]
fn a_file_that_says_to_be_too_large_is_refused_before_it_is_sent() {
    let served = Served::start();
    let mut stream = begin_upload(&served, 1024 * 1024 * 1024 + 1);
    stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).expect("set");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 413");
}

/// An upload of which the host is known to wait for the bytes.
fn taken_upload(served: &Served) -> std::net::TcpStream {
    let mut stream = begin_upload_with(served, 10, "expect: 100-continue\r\n");
    stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("set");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 100");
    stream
}

#[test]
fn only_so_many_files_are_taken_in_at_once() {
    let served = Served::start();
    let client = served.client();
    let under_way = [(); 2].map(|()| taken_upload(&served));
    let until = |status: u16| {
        let give_up = std::time::Instant::now() + std::time::Duration::from_secs(60);
        loop {
            let answer = import(&client, "", &[], b"garbage");
            if answer.status == status {
                return answer;
            }
            assert!(std::time::Instant::now() < give_up, "{status} never came");
            std::thread::sleep(std::time::Duration::from_millis(5)); // poll
        }
    };
    problem(&import(&client, "", &[], b"garbage"), 503, "overloaded");
    // They break off, and there is room again.
    drop(under_way);
    problem(&until(422), 422, "invalid_file");
}
