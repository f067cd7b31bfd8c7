//! What a thread is made, taken up, or branched off with: folder, sandbox, policy, instructions, MCP servers, further
//! folders. All of it is given each time: in a new process only part of it is kept (measured).

use crate::adapter::ThreadContext;
use mainstay_core::SessionOptions;
use serde_json::{Map, Value, json};

/// When the agent asks, where the session says nothing: only to leave the sandbox.
const DEFAULT_APPROVAL: &str = "on-request";
/// What commands may touch, where the session says nothing.
const DEFAULT_SANDBOX: &str = "workspace-write";

/// The parameters. `kept_by_user`: what the user's own configuration keeps from commands; what is given here takes its
/// place (measured). On a thread that is loaded the server ignores them without an error (measured).
pub(super) fn thread_params(
    context: &ThreadContext,
    options: &SessionOptions,
    kept_by_user: &[String],
) -> Value {
    let mut params = json!({
        "cwd": context.cwd,
        "approvalPolicy": options.approval.as_deref().unwrap_or(DEFAULT_APPROVAL),
        "sandbox": options.sandbox.as_deref().unwrap_or(DEFAULT_SANDBOX),
    });
    for (name, value) in [
        ("model", options.model.as_ref()),
        ("serviceTier", options.tier.as_ref()),
        ("personality", options.personality.as_ref()),
        ("developerInstructions", context.instructions.as_ref()),
    ] {
        if let Some(value) = value {
            params[name] = json!(value);
        }
    }
    let mut config = Map::new();
    if !context.additional_directories.is_empty() {
        // Roots beside the folder: told to the model, and writable in the sandbox (measured).
        let roots: Vec<&String> =
            std::iter::once(&context.cwd).chain(&context.additional_directories).collect();
        params["runtimeWorkspaceRoots"] = json!(roots);
    }
    for server in &context.mcp_servers {
        if let Some((name, settings)) = mcp_server(server) {
            config.insert(format!("mcp_servers.{name}"), settings);
        }
    }
    if !context.kept_from_commands.is_empty() {
        // Commands get the agent's environment else, keys included (measured).
        let kept: Vec<&String> = context.kept_from_commands.iter().chain(kept_by_user).collect();
        config.insert("shell_environment_policy.exclude".to_owned(), json!(kept));
    }
    if !config.is_empty() {
        params["config"] = Value::Object(config);
    }
    params
}

/// The policy for the word that `thread/start` takes; None: it has no such word.
pub(super) fn sandbox_policy(word: &str, context: &ThreadContext) -> Option<Value> {
    Some(match word {
        "read-only" => json!({ "type": "readOnly" }),
        "workspace-write" if context.additional_directories.is_empty() => json!({ "type": "workspaceWrite" }),
        // A policy takes the place of the one before, with its folders.
        "workspace-write" => {
            json!({ "type": "workspaceWrite", "writableRoots": context.additional_directories })
        }
        "danger-full-access" => json!({ "type": "dangerFullAccess" }),
        _ => return None,
    })
}

/// The names of MCP servers that cannot be handed over: of a kind, or with a name, that the configuration has no room
/// for.
pub(super) fn left_out(context: &ThreadContext) -> Vec<String> {
    let name =
        |server: &Value| server.get("name").and_then(Value::as_str).unwrap_or("without a name").to_owned();
    context.mcp_servers.iter().filter(|server| mcp_server(server).is_none()).map(name).collect()
}

/// An MCP server in ACP's form, as the server's configuration has it.
fn mcp_server(server: &Value) -> Option<(String, Value)> {
    let text = |name: &str| server.get(name).and_then(Value::as_str);
    // A dotted name would be another place in the configuration.
    let plain = |name: &&str| {
        !name.is_empty() && name.chars().all(|of| of.is_ascii_alphanumeric() || matches!(of, '-' | '_'))
    };
    let name = text("name").filter(plain)?;
    let settings = match (text("command"), text("url"), text("type")) {
        (Some(command), _, _) => {
            let mut settings = json!({ "command": command, "env": pairs(server.get("env")) });
            settings["args"] = server.get("args").cloned().unwrap_or_else(|| json!([]));
            settings
        }
        (None, Some(url), None | Some("http")) => {
            json!({ "url": url, "http_headers": pairs(server.get("headers")) })
        }
        _ => return None,
    };
    Some((name.to_owned(), settings))
}

/// `[{name, value}]` as one object.
fn pairs(list: Option<&Value>) -> Value {
    let pair = |of: &Value| Some((of.get("name")?.as_str()?.to_owned(), of.get("value")?.clone()));
    let list = list.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    Value::Object(list.iter().filter_map(pair).collect())
}
