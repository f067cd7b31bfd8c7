//! Against a server of a few lines that says exactly the bytes of the test.

use super::*;
use serde_json::json;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::mpsc;

const GENEROUS: Duration = Duration::from_secs(30);

/// Serves one connection: reads a request head, then writes the pieces, each when told to.
fn say(pieces: Vec<&'static str>) -> (Addr, mpsc::Sender<()>, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let addr = Addr::Tcp(listener.local_addr().expect("address"));
    let (go_on, next) = mpsc::channel();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        let head = read_head(&mut stream);
        for piece in pieces {
            stream.write_all(piece.as_bytes()).expect("write");
            if next.recv().is_err() {
                break;
            }
        }
        head
    });
    (addr, go_on, server)
}

fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).expect("read"), 1, "request head");
        head.push(byte[0]);
    }
    String::from_utf8(head).expect("UTF-8")
}

#[test]
fn a_response_with_a_length() {
    let (addr, go_on, server) =
        say(vec!["HTTP/1.1 202 Accepted\r\nContent-Length: 8\r\nX-Kind: test\r\n\r\n{\"a\"", ": 1}"]);
    go_on.send(()).expect("server waits");
    let response = Client::new(addr)
        .bearer("secret")
        .request("GET", "/v1/info?x=1", &[("Authorization", "Bearer other")], None)
        .expect("a response");
    assert_eq!(response.status, 202);
    assert_eq!(response.header("x-kind"), Some("test"));
    assert_eq!(response.json(), json!({"a": 1}));
    drop(go_on);
    let head = server.join().expect("server");
    assert!(head.starts_with("GET /v1/info?x=1 HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("Bearer other") && !head.contains("secret"), "{head}");
}

#[test]
fn events_in_chunks_that_cut_anywhere() {
    let (addr, go_on, server) = say(vec![
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1",
        "0\r\nid: 1:1\ndata: {}\r\n2\r\n\n\n\r",
        "\n1D\r\nevent: caught_up\ndata: null\n\n\r\n0\r\n\r\n",
    ]);
    let mut events = Sse::open(&addr, "/v1/events", &[]).expect("a stream");
    assert_eq!(events.next(Duration::ZERO), None);
    assert!(!events.ended(), "nothing is lost by a short deadline");
    go_on.send(()).expect("server waits");
    let first = events.next(GENEROUS).expect("the first event");
    assert_eq!((first.id.as_deref(), first.data), (Some("1:1"), json!({})));
    go_on.send(()).expect("server waits");
    let second = events.next(GENEROUS).expect("the second event");
    assert_eq!((second.id, second.event.as_str()), (None, "caught_up"));
    assert_eq!(events.next(GENEROUS), None);
    assert!(events.ended());
    drop(go_on);
    server.join().expect("server");
}

#[test]
fn a_refused_stream_says_why() {
    let (addr, go_on, server) = say(vec!["HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nno such s"]);
    let error = Sse::open(&addr, "/v1/sessions/x/events", &[]).expect_err("refused");
    assert_eq!(error.to_string(), "status 404: no such s");
    drop(go_on);
    server.join().expect("server");
}

#[test]
fn an_unanswered_request_times_out() {
    let (addr, go_on, server) = say(vec![""]);
    let error = Client::new(addr).timeout(Duration::from_millis(20)).get("/health").expect_err("no answer");
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    drop(go_on);
    server.join().expect("server");
}

#[test]
fn a_socket_path_longer_than_an_address() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let deep = folder.path().join("d".repeat(120));
    std::fs::create_dir(&deep).expect("deep folder");
    // Bound by its short name, then moved to where the address would not fit.
    let short = folder.path().join("s");
    let listener = UnixListener::bind(&short).expect("bind");
    std::fs::rename(&short, deep.join("s")).expect("move");
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        read_head(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").expect("write");
    });
    let response = Client::new(Addr::Unix(deep.join("s"))).get("/health").expect("a response");
    assert_eq!(response.text(), "hello");
    server.join().expect("server");
}
