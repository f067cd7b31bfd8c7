//! How many streamed records an adapter translates per second on one core:
//! `cargo run --release -p mainstay-agents --example chunk_rate`.

use mainstay_agents::{AgentKind, Incoming, Record, ThreadContext, Translated, adapter};
use mainstay_core::{ContentBlock, Decision, SessionId, SessionOptions};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::Instant;

/// Enough for a second or more; the first tenth warms up.
const RECORDS: u32 = 500_000;

fn main() -> io::Result<()> {
    let acp = [
        json!({ "id": 0, "result": { "protocolVersion": 1 } }),
        json!({ "id": 1, "result": { "sessionId": "T" } }),
    ];
    let acp_chunk = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"T","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"word "}}}}"#;
    let codex = [
        json!({ "id": 0, "result": { "userAgent": "codex/1" } }),
        json!({ "id": 1, "result": { "thread": { "id": "T" } } }),
    ];
    let codex_delta = r#"{"method":"item/agentMessage/delta","params":{"threadId":"T","turnId":"U","itemId":"msg_1","delta":"word "},"emittedAtMs":1796032371357}"#;
    for (name, kind, answers, record) in
        [("acp", AgentKind::Acp, acp, acp_chunk), ("codex", AgentKind::Codex, codex, codex_delta)]
    {
        let rate = measure(kind, &answers, record);
        writeln!(io::stdout(), "{name}: {rate:.0} records/s")?;
    }
    Ok(())
}

fn measure(kind: AgentKind, answers: &[Value; 2], record: &str) -> f64 {
    let mut adapter = adapter(kind);
    let session = SessionId::from("s1");
    adapter.bind(&session, ThreadContext::default());
    let mut out = Translated::default();
    let mut ingest = |adapter: &mut Box<dyn mainstay_agents::Adapter>, incoming: Incoming<'_>| {
        adapter.ingest(Record { connection: 1, at: 1, incoming }, &mut out);
        out.said.clear();
        out.frames.clear();
    };
    ingest(&mut adapter, Incoming::Connected);
    ingest(&mut adapter, Incoming::Message(answers[0].to_string().as_bytes()));
    let options = SessionOptions::default();
    let open =
        Decision::OpenThread { resume: None, options: options.clone(), doubtful: Vec::new(), fork: None };
    let mut told = Translated::default();
    let opened = adapter.tell(&session, &open, &mut told);
    ingest(&mut adapter, Incoming::Message(answers[1].to_string().as_bytes()));
    let start =
        Decision::StartTurn { submission: "m1".into(), content: vec![ContentBlock::text("x")], options };
    let started = adapter.tell(&session, &start, &mut told);
    assert!(opened.is_ok() && started.is_ok(), "the session is prepared");
    for _ in 0..RECORDS / 10 {
        ingest(&mut adapter, Incoming::Message(record.as_bytes()));
    }
    let began = Instant::now();
    for _ in 0..RECORDS {
        ingest(&mut adapter, Incoming::Message(record.as_bytes()));
    }
    f64::from(RECORDS) / began.elapsed().as_secs_f64()
}
