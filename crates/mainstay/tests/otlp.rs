//! Spans of the real binary, as a collector on loopback gets them. Built with the feature `otlp` alone:
//! `cargo nextest run --workspace --features mainstay/otlp --test otlp`.
#![expect(clippy::expect_used, reason = "these are tests, and so are their helpers")]

use mainstay_testkit::contain::Containment;
use mainstay_testkit::http::{Client, Sse};
use mainstay_testkit::mainstay::{Home, HostProcess};
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Generous: nothing here waits this long unless something is broken.
const DEADLINE: Duration = Duration::from_secs(60);
/// What the host may need for its end beside its own work: the exporter's bound, and a busy machine.
const BOUNDED_END: Duration = Duration::from_secs(30);
/// What a user says, and what must not be seen outside.
const SAID: &str = "words-of-the-user";

fn start(home: &Home, endpoint: &str) -> HostProcess {
    home.write_config(&format!(
        "rest_after = \"1h\"\nlinger = \"1h\"\nlog = \"error\"\notlp_endpoint = \"{endpoint}\"\n"
    ));
    HostProcess::start(home, Path::new(env!("CARGO_BIN_EXE_mainstay")), &[])
}

fn end(containment: &Containment, mut host: HostProcess) {
    host.client().post("/v1/host/stop", &json!({ "mode": "kill" })).expect("answers").expect_status(202);
    host.wait(DEADLINE);
    drop(host);
    containment.assert_empty(DEADLINE);
}

/// Reads one request; None where the other side left.
fn read_request(stream: &mut BufReader<TcpStream>) -> Option<Received> {
    let mut first = String::new();
    stream.read_line(&mut first).ok().filter(|read| *read > 0)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((first, body))
}

/// A request: its first line and its body.
type Received = (String, Vec<u8>);

/// A collector that keeps what it gets.
struct Collector {
    address: SocketAddr,
    bodies: Arc<Mutex<Vec<Received>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let kept = bodies.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { break };
                let mut stream = BufReader::new(stream);
                while let Some(request) = read_request(&mut stream) {
                    kept.lock().expect("no panic").push(request);
                    let answer =
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
                    if stream.get_mut().write_all(answer.as_bytes()).is_err() {
                        break;
                    }
                }
            }
        });
        Self { address, bodies }
    }

    fn spans(&self) -> Vec<Span> {
        let bodies = self.bodies.lock().expect("no panic");
        let mut spans = Vec::new();
        for (first, body) in bodies.iter() {
            assert!(first.starts_with("POST /v1/traces "), "{first}");
            let body: Value = serde_json::from_slice(body).expect("JSON");
            for resource in body["resourceSpans"].as_array().expect("resources") {
                let of = attributes(&resource["resource"]);
                assert_eq!(of["service.name"], "mainstay", "{resource}");
                for scope in resource["scopeSpans"].as_array().expect("scopes") {
                    spans.extend(scope["spans"].as_array().expect("spans").iter().map(Span::of));
                }
            }
        }
        spans
    }

    /// Waits for a span.
    #[track_caller]
    fn wait_for(&self, what: &str, wanted: impl Fn(&Span) -> bool) -> Span {
        match wait_for(DEADLINE, || self.spans().into_iter().find(&wanted)) {
            Some(span) => span,
            None => panic!("no span: {what}; there are {:#?}", self.spans()),
        }
    }
}

fn attributes(holder: &Value) -> Value {
    let listed = holder["attributes"].as_array().cloned().unwrap_or_default();
    let pairs = listed.into_iter().map(|pair| {
        let key = pair["key"].as_str().expect("a key").to_owned();
        let value = pair["value"].as_object().expect("a value").values().next().cloned();
        (key, value.unwrap_or_default())
    });
    Value::Object(pairs.collect())
}

#[derive(Debug)]
struct Span {
    name: String,
    trace: String,
    id: String,
    parent: String,
    links: Vec<String>,
    begins: u64,
    ends: u64,
    has: Value,
}

impl Span {
    fn of(span: &Value) -> Self {
        let text = |member: &str| span[member].as_str().unwrap_or_default().to_owned();
        let time = |member: &str| {
            span[member].as_str().and_then(|text| text.parse().ok()).expect("nanoseconds as a text")
        };
        let links = span["links"].as_array().cloned().unwrap_or_default();
        Self {
            name: text("name"),
            trace: text("traceId"),
            id: text("spanId"),
            parent: text("parentSpanId"),
            links: links.iter().map(|link| link["spanId"].as_str().expect("an id").to_owned()).collect(),
            begins: time("startTimeUnixNano"),
            ends: time("endTimeUnixNano"),
            has: attributes(span),
        }
    }

    fn is(&self, name: &str, attribute: &str, value: &str) -> bool {
        self.name == name && self.has[attribute] == value
    }
}

/// A reader of a session's events.
struct Reader(Sse);

impl Reader {
    fn open(client: &Client, session: &str) -> Self {
        Self(client.events(&format!("/v1/sessions/{session}/events"), &[]).expect("a stream"))
    }

    #[track_caller]
    fn until(&mut self, kind: &str) -> Value {
        let deadline = Instant::now() + DEADLINE;
        while let Some(event) = self.0.next(deadline.saturating_duration_since(Instant::now())) {
            if event.data["type"] == kind {
                return event.data;
            }
        }
        panic!("no {kind}");
    }
}

/// A cursor's epoch and number.
fn place(cursor: &Value) -> (u64, u64) {
    let (epoch, number) = cursor.as_str().and_then(|text| text.split_once(':')).expect("a cursor");
    (epoch.parse().expect("an epoch"), number.parse().expect("a number"))
}

/// A session of the demo agent whose first message, made under a request's id, asks for something.
fn create(home: &Home, client: &Client) -> String {
    let body = json!({ "agent": "demo", "cwd": home.workspace(), "prompt": SAID });
    let made = client.post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    made["id"].as_str().expect("an id").to_owned()
}

fn allow(client: &Client, session: &str, opened: &Value) {
    let path =
        format!("/v1/sessions/{session}/requests/{}/answer", opened["request"].as_str().expect("an id"));
    client.post(&path, &json!({ "option_id": "allow" })).expect("answers").expect_status(200);
}

#[test]
fn request_message_turn_approval_and_process_are_joined() {
    let containment = Containment::enter();
    let (home, collector) = (Home::new(), Collector::start());
    let host = start(&home, &format!("http://{}", collector.address));
    let session = create(&home, &host.client().header("x-request-id", "asks-4711"));
    let mut reader = Reader::open(&host.client(), &session);
    let opened = reader.until("request.opened");
    allow(&host.client().header("x-request-id", "answers-4712"), &session, &opened);
    reader.until("turn.ended");

    let request =
        collector.wait_for("the request", |span| span.is("request", "mainstay.request", "asks-4711"));
    let turn = collector.wait_for("the turn", |span| span.is("turn", "mainstay.session", &session));
    let message = collector.wait_for("the message", |span| span.is("message", "mainstay.session", &session));
    let approval =
        collector.wait_for("the approval", |span| span.is("approval", "mainstay.session", &session));
    let answer =
        collector.wait_for("the answer", |span| span.is("request", "mainstay.request", "answers-4712"));
    assert_eq!((&message.trace, &message.parent), (&request.trace, &request.id));
    assert_eq!((&turn.trace, &turn.parent), (&request.trace, &message.id));
    assert_eq!((&approval.trace, &approval.parent), (&request.trace, &turn.id));
    assert_eq!(request.has["mainstay.submission"], message.has["mainstay.submission"]);
    assert_eq!(approval.has["mainstay.approval"], opened["request"]);
    assert_eq!(approval.has["mainstay.outcome"], "Answered");
    // A request's place is that of its last event; the answer is one of them.
    assert!(place(&approval.has["mainstay.answer_cursor"]) <= place(&answer.has["mainstay.cursor"]));
    assert_eq!(answer.has["mainstay.session"], session.as_str());
    assert_eq!(turn.has["mainstay.outcome"], "Completed", "{turn:?}");
    assert!(turn.begins <= approval.begins && approval.begins < approval.ends && approval.ends <= turn.ends);

    // A process ends last: with the host.
    end(&containment, host);
    let process = collector.wait_for("the process", |span| span.is("process", "mainstay.session", &session));
    assert_eq!(process.parent, "");
    for span in [&message, &turn, &approval] {
        assert_eq!(span.has["mainstay.process"], process.has["mainstay.process"], "{span:?}");
        assert_eq!(span.links, [process.id.as_str()], "{span:?}");
    }
    assert!(!process.has["mainstay.agent_pid"].is_null(), "{process:?}");
    assert!(process.begins <= turn.begins && turn.ends <= process.ends);
    let bodies = collector.bodies.lock().expect("no panic");
    for (_, body) in bodies.iter() {
        let body = String::from_utf8_lossy(body);
        assert!(!body.contains(SAID), "a span tells what was said: {body}");
        assert!(!body.contains(&home.token()), "a span tells the token");
    }
}

#[test]
fn a_turn_that_outlives_its_host_is_told_by_the_next_one() {
    let containment = Containment::enter();
    let (home, collector) = (Home::new(), Collector::start());
    let endpoint = format!("http://{}", collector.address);
    let mut host = start(&home, &endpoint);
    let session = create(&home, &host.client());
    let opened = Reader::open(&host.client(), &session).until("request.opened");
    collector.wait_for("the message", |span| span.is("message", "mainstay.session", &session));
    host.kill9();
    drop(host);
    let host = start(&home, &endpoint);
    let mut reader = Reader::open(&host.client(), &session);
    allow(&host.client(), &session, &opened);
    reader.until("turn.ended");
    let turn = collector.wait_for("the turn", |span| span.is("turn", "mainstay.session", &session));
    let approval =
        collector.wait_for("the approval", |span| span.is("approval", "mainstay.session", &session));
    assert_eq!(
        (&turn.has["mainstay.partial"], &approval.has["mainstay.partial"]),
        (&true.into(), &true.into())
    );
    // The journal knows since when.
    assert!(turn.begins < approval.begins, "{turn:?} {approval:?}");
    end(&containment, host);
    let process = collector.wait_for("the process", |span| span.is("process", "mainstay.session", &session));
    assert_eq!(process.has["mainstay.partial"], true);
}

/// Carries a turn through and ends the host, both in bounded time.
fn works_without_spans(containment: &Containment, home: &Home, host: HostProcess) {
    let session = create(home, &host.client());
    let mut reader = Reader::open(&host.client(), &session);
    let opened = reader.until("request.opened");
    allow(&host.client(), &session, &opened);
    reader.until("turn.ended");
    let before = Instant::now();
    end(containment, host);
    assert!(before.elapsed() < BOUNDED_END, "the end took {:?}", before.elapsed());
}

#[test]
fn a_collector_that_is_not_there_costs_spans_alone() {
    let containment = Containment::enter();
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address");
    drop(taken);
    let host = start(&home, &format!("http://{address}"));
    works_without_spans(&containment, &home, host);
}

#[test]
fn a_collector_that_never_answers_costs_spans_alone() {
    let containment = Containment::enter();
    let home = Home::new();
    // Connections are taken by the kernel, and nobody reads them.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("its address");
    let host = start(&home, &format!("http://{address}"));
    works_without_spans(&containment, &home, host);
}

#[test]
fn an_address_with_tls_or_a_password_is_refused_at_the_start() {
    let home = Home::new();
    for endpoint in ["https://127.0.0.1:4318", "http://user:secret@127.0.0.1:4318"] {
        home.write_config(&format!("otlp_endpoint = \"{endpoint}\"\n"));
        let refused = HostProcess::try_start(&home, Path::new(env!("CARGO_BIN_EXE_mainstay")), &[]);
        let error = refused.expect_err("refused").to_string();
        assert!(error.contains("otlp_endpoint") && !error.contains("secret"), "{error}");
    }
}
