//! Reading what the agent sent: which user message is the script, how far it has got, which tools
//! are on offer.

use std::collections::BTreeMap;

use serde_json::Value;

/// How texts begin that an agent puts into user messages on its own; they are no prompts.
const INJECTED: [&str; 21] = [
    "<environment_context",
    "<user_instructions",
    "# AGENTS.md",
    "<turn_aborted",
    "<subagent_notification",
    "<permissions",
    "<skills",
    "<collaboration_mode",
    "<hook",
    "<recommended",
    "<apps",
    "<plugins",
    "<model",
    "<user_shell_command",
    "<goal",
    "<codex_internal_context",
    "<untrusted",
    "<multi_agent",
    "<agent",
    "<token",
    "<system",
];

const OUTPUT_TYPES: [&str; 5] = [
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "tool_search_output",
    "mcp_tool_call_output",
];

/// The items of the request's `input`.
pub(crate) fn input(body: &Value) -> &[Value] {
    body.get("input").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The text of a user's own message, `None` for everything else.
pub(crate) fn prompt_of(item: &Value) -> Option<String> {
    let is_message = item.get("type").is_none_or(|kind| kind == "message");
    if !is_message || item.get("role").is_none_or(|role| role != "user") {
        return None;
    }
    let text = text_of(item);
    let injected = INJECTED.iter().any(|start| text.trim_start().starts_with(start));
    (!injected).then_some(text)
}

/// How the answer of a sub-agent begins, as its parent is told it: no task.
const FINAL_ANSWER: &str = "Message Type: FINAL_ANSWER";
/// What stands before the task in a message between agents.
const PAYLOAD: &str = "Payload:\n";

/// The task that another agent gave, `None` for everything else.
fn task_of(item: &Value) -> Option<String> {
    if item.get("type").is_none_or(|kind| kind != "agent_message") {
        return None;
    }
    let text = text_of(item);
    if text.starts_with(FINAL_ANSWER) {
        return None;
    }
    let sealed: String = item
        .get("content")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|part| part.get("encrypted_content").and_then(Value::as_str))
        .collect();
    let task = if sealed.is_empty() { text.split_once(PAYLOAD)?.1.to_owned() } else { sealed };
    (!task.trim().is_empty()).then_some(task)
}

/// The parts of an item's content in one string, new lines between them.
fn text_of(item: &Value) -> String {
    match item.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts: Vec<_> =
                parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

/// The user messages of a request, injected ones left out, oldest first.
pub(crate) fn prompts(body: &Value) -> Vec<String> {
    match body.get("input") {
        Some(Value::String(text)) => vec![text.clone()],
        _ => input(body).iter().filter_map(prompt_of).collect(),
    }
}

/// Where a request stands in its script.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// The last user message.
    pub(crate) script: String,
    /// Tool outputs behind it.
    pub(crate) outputs: usize,
    /// The last of them, as text.
    pub(crate) last_output: Option<String>,
}

/// Finds the script and the tool outputs that followed it.
pub(crate) fn position(body: &Value) -> Position {
    if let Some(Value::String(text)) = body.get("input") {
        return Position { script: text.clone(), outputs: 0, last_output: None };
    }
    let items = input(body);
    let found = goal_script(items).or_else(|| {
        let script = |item: &Value| prompt_of(item).or_else(|| task_of(item));
        items.iter().enumerate().rev().find_map(|(at, item)| Some((at, script(item)?)))
    });
    let (script, behind) = match found {
        Some((at, text)) => (text, &items[at + 1..]),
        None => (String::new(), items),
    };
    let outputs: Vec<_> = behind
        .iter()
        .filter(|item| {
            item.get("type").and_then(Value::as_str).is_some_and(|kind| OUTPUT_TYPES.contains(&kind))
        })
        .collect();
    let last_output = outputs.last().and_then(|item| item.get("output")).map(|output| match output {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    Position { script, outputs: outputs.len(), last_output }
}

/// A tool the agent offers to the model.
#[derive(Debug, Clone)]
pub(crate) struct Tool {
    /// Free-form text instead of JSON arguments.
    pub(crate) custom: bool,
    pub(crate) namespace: Option<String>,
    /// The names of its parameters.
    pub(crate) parameters: Vec<String>,
}

/// How the message begins with which Codex goes on with a goal by itself.
const GOAL_TURN: &str = "<codex_internal_context source=\"goal\"";
/// Turns for a goal before the model says that it is reached.
const GOAL_TURNS: usize = 3;

/// The script of a turn that the agent began for its goal; None: the turn has a message of the user's.
fn goal_script(items: &[Value]) -> Option<(usize, String)> {
    let is_user = |item: &&Value| item.get("role").is_some_and(|role| role == "user");
    let is_goal = |item: &Value| text_of(item).trim_start().starts_with(GOAL_TURN);
    let (at, _) = items
        .iter()
        .enumerate()
        .rev()
        .find(|(_, item)| is_user(item) && (is_goal(item) || prompt_of(item).is_some()))?;
    if !is_goal(&items[at]) {
        return None;
    }
    let turns = items.iter().filter(|item| is_user(item) && is_goal(item)).count();
    let script = if turns < GOAL_TURNS {
        format!("SAY goal step {turns}")
    } else {
        r#"TOOL update_goal {"status":"complete"} ;; SAY goal finished"#.to_owned()
    };
    Some((at, script))
}

/// The tools on offer, by name. They stand in `tools`, and for some models in input items.
pub(crate) fn tools(body: &Value) -> BTreeMap<String, Tool> {
    let mut found = BTreeMap::new();
    add_tools(body.get("tools"), None, &mut found);
    for item in input(body) {
        add_tools(item.get("tools"), None, &mut found);
    }
    found
}

fn add_tools(list: Option<&Value>, namespace: Option<&str>, found: &mut BTreeMap<String, Tool>) {
    for tool in list.and_then(Value::as_array).into_iter().flatten() {
        let kind = tool.get("type").and_then(Value::as_str).unwrap_or_default();
        let name = tool.get("name").and_then(Value::as_str);
        if kind == "namespace" {
            add_tools(tool.get("tools"), name, found);
        } else {
            let parameters = tool.pointer("/parameters/properties").and_then(Value::as_object);
            let entry = Tool {
                custom: kind == "custom",
                namespace: namespace.map(str::to_owned),
                parameters: parameters.map(|fields| fields.keys().cloned().collect()).unwrap_or_default(),
            };
            found.insert(name.unwrap_or(kind).to_owned(), entry);
        }
    }
}

/// The ids of sub-agents that stand in the outputs of earlier calls.
pub(crate) fn agents(body: &Value) -> Vec<String> {
    const KEY: &str = "\"agent_id\"";
    let mut found: Vec<String> = Vec::new();
    for item in input(body) {
        let output = match item.get("output") {
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => continue,
        };
        for (at, _) in output.match_indices(KEY) {
            let value = output[at + KEY.len()..].trim_start_matches([' ', ':']);
            let Some(id) = value.strip_prefix('"').and_then(|rest| rest.split('"').next()) else { continue };
            if !found.iter().any(|known| known == id) {
                found.push(id.to_owned());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn user(text: &str) -> Value {
        json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
    }

    #[test]
    fn the_script_is_the_last_message_of_the_user_itself() {
        let body = json!({"input": [
            user("SAY old"),
            {"type": "function_call_output", "output": "of the old one"},
            user("RUN ls ;; SAY x"),
            user("<environment_context>…"),
            {"type": "function_call_output", "output": "first"},
            {"type": "custom_tool_call_output", "output": [1]},
        ]});
        let expected = Position {
            script: "RUN ls ;; SAY x".to_owned(),
            outputs: 2,
            last_output: Some("[1]".to_owned()),
        };
        assert_eq!(position(&body), expected);
        assert_eq!(prompts(&body), ["SAY old", "RUN ls ;; SAY x"]);
    }

    #[test]
    fn a_turn_for_a_goal_has_a_script_of_its_own_until_the_goal_is_reached() {
        let goal = || user("<codex_internal_context source=\"goal\">go on</codex_internal_context>");
        let script = |items: Vec<Value>| position(&json!({ "input": items })).script;
        assert_eq!(script(vec![user("SAY hi"), goal()]), "SAY goal step 1");
        assert_eq!(script(vec![goal(), goal()]), "SAY goal step 2");
        assert!(script(vec![goal(), goal(), goal()]).starts_with("TOOL update_goal"));
        assert_eq!(script(vec![goal(), user("SAY hi")]), "SAY hi");
    }

    #[test]
    fn a_task_from_another_agent_is_a_script_and_its_answer_is_none() {
        let message = |text: &str| json!({"type": "agent_message", "content": [{"text": text}]});
        let script = |items: Vec<Value>| position(&json!({ "input": items })).script;
        assert_eq!(
            script(vec![user("SPAWN x"), message("Message Type: TASK\nPayload:\nSAY child")]),
            "SAY child"
        );
        assert_eq!(
            script(vec![user("SAY on"), message("Message Type: FINAL_ANSWER\nPayload:\nchild")]),
            "SAY on"
        );
        let sealed = json!({"type": "agent_message", "content": [{"encrypted_content": "SAY sealed"}]});
        assert_eq!(script(vec![user("SPAWN x"), sealed]), "SAY sealed");
    }

    #[test]
    fn sub_agents_are_found_in_outputs() {
        let body =
            json!({ "input": [{ "output": "{\"agent_id\": \"a-1\"}" }, { "output": { "agent_id": "b" } }] });
        assert_eq!(agents(&body), ["a-1", "b"]);
    }

    #[test]
    fn tools_are_found_in_namespaces_and_items() {
        let body = json!({
            "tools": [{"type": "function", "name": "exec_command"}, {"type": "web_search"},
                      {"type": "namespace", "name": "ns", "tools": [{"type": "custom", "name": "inner"}]}],
            "input": [{"type": "additional_tools", "tools": [{"type": "custom", "name": "exec"}]}],
        });
        let found = tools(&body);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["exec", "exec_command", "inner", "web_search"]);
        assert_eq!(found["inner"].namespace.as_deref(), Some("ns"));
        assert!(found["exec"].custom);
    }
}
