//! An MCP server over lines for tests of servers that a session pins, and of forms: `ask` asks its caller's user for a
//! name before it answers, `note` says what it was given, `visit` wants its caller's user to have opened a page first.

use std::io::{self, BufRead, Lines, StdinLock, Write};

use serde_json::{Value, json};

/// The id of the only request that this server makes.
const ASKING: &str = "the-name";
/// MCP's code for "a page must be opened first".
const URL_ELICITATION_REQUIRED: i32 = -32042;

fn main() -> io::Result<()> {
    let mut lines = io::stdin().lock().lines();
    let mut visited = false;
    while let Some(line) = lines.next() {
        let Ok(message) = serde_json::from_str::<Value>(&line?) else { continue };
        let (Some(method), id) = (message.get("method").and_then(Value::as_str), message.get("id")) else {
            continue;
        };
        let Some(id) = id else { continue };
        let result = match method {
            "initialize" => json!({
                "protocolVersion": message.pointer("/params/protocolVersion"),
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "scripted", "version": "1" },
            }),
            "tools/list" => json!({ "tools": [
                {
                    "name": "ask", "description": "Asks for a name.",
                    "inputSchema": { "type": "object", "properties": {} },
                },
                {
                    "name": "visit", "description": "Needs a page to be opened.",
                    "inputSchema": { "type": "object", "properties": {} },
                },
                {
                    "name": "note", "description": "Notes a text.",
                    "inputSchema": { "type": "object", "properties": { "text": { "type": "string" } } },
                },
            ] }),
            "tools/call" if message.pointer("/params/name").is_some_and(|name| name == "note") => {
                let text = message.pointer("/params/arguments").map(Value::to_string).unwrap_or_default();
                json!({ "content": [{ "type": "text", "text": text }] })
            }
            "tools/call"
                if message.pointer("/params/name").is_some_and(|name| name == "visit") && !visited =>
            {
                // A caller whose user has opened it calls again.
                visited = true;
                let page = json!({
                    "mode": "url", "elicitationId": "page-1", "message": "Sign in",
                    "url": "https://example.test/sign-in",
                });
                let data = json!({ "elicitations": [page] });
                let error =
                    json!({ "code": URL_ELICITATION_REQUIRED, "message": "Sign in first", "data": data });
                write(&json!({ "jsonrpc": "2.0", "id": id, "error": error }))?;
                continue;
            }
            "tools/call" if message.pointer("/params/name").is_some_and(|name| name == "visit") => {
                json!({ "content": [{ "type": "text", "text": "visited" }] })
            }
            "tools/call" => {
                let answer = ask(&mut lines)?;
                let text = format!("{} from {}", answer, std::env::var("SCRIPTED_MCP").unwrap_or_default());
                json!({ "content": [{ "type": "text", "text": text }] })
            }
            _ => json!({}),
        };
        write(&json!({ "jsonrpc": "2.0", "id": id, "result": result }))?;
    }
    Ok(())
}

fn write(message: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{message}")?;
    out.flush()
}

/// Asks, and waits for the answer to that.
fn ask(lines: &mut Lines<StdinLock<'_>>) -> io::Result<String> {
    let schema =
        json!({ "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"] });
    let params = json!({ "message": "Your name?", "requestedSchema": schema });
    write(&json!({ "jsonrpc": "2.0", "id": ASKING, "method": "elicitation/create", "params": params }))?;
    for line in lines {
        let Ok(message) = serde_json::from_str::<Value>(&line?) else { continue };
        if message.get("id").is_some_and(|id| id == ASKING) {
            return Ok(message.get("result").map(Value::to_string).unwrap_or_default());
        }
    }
    Ok("nobody answered".to_owned())
}
