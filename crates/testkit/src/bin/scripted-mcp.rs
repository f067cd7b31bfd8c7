//! An MCP server over standard input and output for tests: `echo` says what it got (and only reads), `note` says it too
//! (and may write), `ask` asks the user for a name before it answers.
#![expect(clippy::expect_used, reason = "a helper of tests: what cannot go on ends it")]

use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::{BufRead, Write};

fn say(message: &Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{message}").expect("the client reads");
    out.flush().expect("the client reads");
}

fn result(id: &Value, result: Value) {
    say(&json!({ "jsonrpc": "2.0", "id": id, "result": result }));
}

fn text(id: &Value, text: &str) {
    result(id, json!({ "content": [{ "type": "text", "text": text }], "isError": false }));
}

fn tools() -> Value {
    let tool = |name: &str, reads: bool| {
        json!({ "name": name, "description": name, "annotations": { "readOnlyHint": reads },
                "inputSchema": { "type": "object", "properties": { "text": { "type": "string" } } } })
    };
    json!({ "tools": [tool("echo", true), tool("note", false), tool("ask", false)] })
}

fn main() {
    // Our questions to the client, and the calls that wait for their answers.
    let mut waiting: HashMap<String, Value> = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let Ok(message) =
            line.map_err(drop).and_then(|line| serde_json::from_str::<Value>(&line).map_err(drop))
        else {
            continue;
        };
        let id = message["id"].clone();
        match message["method"].as_str() {
            Some("initialize") => result(
                &id,
                json!({ "protocolVersion": message["params"]["protocolVersion"], "capabilities": { "tools": {} },
                        "serverInfo": { "name": "scripted-mcp", "version": "1" } }),
            ),
            Some("tools/list") => result(&id, tools()),
            Some("tools/call") => {
                let arguments = message["params"]["arguments"].to_string();
                match message["params"]["name"].as_str() {
                    Some("ask") => {
                        let question = format!("ask-{id}");
                        let schema = json!({ "type": "object", "required": ["name"],
                                             "properties": { "name": { "type": "string", "title": "Name" } } });
                        say(
                            &json!({ "jsonrpc": "2.0", "id": question, "method": "elicitation/create", "params": {
                            "mode": "form", "message": "Who are you?", "requestedSchema": schema } }),
                        );
                        waiting.insert(question, id);
                    }
                    _ => text(&id, &arguments),
                }
            }
            Some("ping") => result(&id, json!({})),
            Some(_) if id.is_null() => {}
            Some(_) => {
                say(
                    &json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "no such method" } }),
                );
            }
            None => {
                if let Some(call) = id.as_str().and_then(|id| waiting.remove(id)) {
                    text(&call, &format!("answered {}", message["result"]));
                }
            }
        }
    }
}
