//! How each kind of request is put to people, and how their answer is said in the server's words. Each option names how
//! far it reaches.

use super::bounds::{MAX_AMENDMENT_BYTES, MAX_NETWORK_RULES, MAX_PERMISSIONS_BYTES};
use super::state::Form;
use mainstay_core::RequestKey;
use mainstay_core::agent::AskedByAgent;
use mainstay_core::content::{Answer, OptionKind, PermissionOption, RequestKind, ToolKind};
use mainstay_core::question::{Answers, Choice, Elicitation, Question};
use serde_json::{Value, json};

pub(super) const COMMAND_APPROVAL: &str = "item/commandExecution/requestApproval";
pub(super) const FILE_APPROVAL: &str = "item/fileChange/requestApproval";
const PERMISSIONS: &str = "item/permissions/requestApproval";
const USER_INPUT: &str = "item/tool/requestUserInput";
const ELICITATION: &str = "mcpServer/elicitation/request";
pub(super) const CLIENT_TOOL: &str = "item/tool/call";

const ACCEPT: &str = "accept";
const ACCEPT_FOR_SESSION: &str = "acceptForSession";
const ACCEPT_FOR_EVER: &str = "acceptWithExecpolicyAmendment";
const NETWORK_RULE: &str = "applyNetworkPolicyAmendment";
const DECLINE: &str = "decline";
const CANCEL: &str = "cancel";
const GRANT_FOR_TURN: &str = "turn";
const GRANT_FOR_SESSION: &str = "session";
const ACCEPT_ALWAYS: &str = "acceptAlways";

/// A request as it is put to people: without turn, item and child, which are the caller's to fill in. None: this version
/// cannot put it to anybody.
pub(super) fn put(method: &str, details: &Value, at: i64) -> Option<(AskedByAgent, Form)> {
    let text = |name: &str| details.get(name).and_then(Value::as_str);
    let asked = |kind, title: String, options| AskedByAgent {
        options,
        ..AskedByAgent::new(RequestKey::from(""), kind, title)
    };
    Some(match method {
        COMMAND_APPROVAL => {
            let (form, options) = command_options(details);
            let host = details.pointer("/networkApprovalContext/host").and_then(Value::as_str);
            let title = match (host, text("command")) {
                (Some(host), _) => format!("Network access to {host}"),
                (None, Some(command)) => command.to_owned(),
                (None, None) => "Run a command".to_owned(),
            };
            let tool_kind = Some(if host.is_some() { ToolKind::Fetch } else { ToolKind::Execute });
            (AskedByAgent { tool_kind, ..asked(RequestKind::Approval, title, options) }, form)
        }
        FILE_APPROVAL => {
            let title = match text("grantRoot") {
                Some(root) => format!("Change files below {root}"),
                None => "Change files".to_owned(),
            };
            let options = vec![
                option(ACCEPT, "Allow once", OptionKind::AllowOnce),
                option(ACCEPT_FOR_SESSION, "Allow these files in this session", OptionKind::AllowAlways),
                option(DECLINE, "Reject; the turn goes on", OptionKind::RejectOnce),
                option(CANCEL, "Reject and stop the turn", OptionKind::Other),
            ];
            let form = Form::Decision { amendment: None, network: Vec::new() };
            let asked = asked(RequestKind::Approval, title, options);
            (AskedByAgent { tool_kind: Some(ToolKind::Edit), ..asked }, form)
        }
        PERMISSIONS => {
            let wanted = without_nulls(details.get("permissions")?);
            if wanted.to_string().len() > MAX_PERMISSIONS_BYTES {
                return None;
            }
            let options = vec![
                option(GRANT_FOR_TURN, "Grant for this turn", OptionKind::AllowOnce),
                option(GRANT_FOR_SESSION, "Grant for this session", OptionKind::AllowAlways),
                option(DECLINE, "Grant nothing; the turn goes on", OptionKind::RejectOnce),
            ];
            let title = text("reason").unwrap_or("More rights").to_owned();
            (asked(RequestKind::PermissionGrant, title, options), Form::Permissions(wanted))
        }
        USER_INPUT => {
            let questions: Vec<Question> =
                details.get("questions")?.as_array()?.iter().filter_map(question).collect();
            let title = questions.first().map_or_else(String::new, |question| question.text.clone());
            let expires_at =
                details.get("autoResolutionMs").and_then(Value::as_i64).map(|wait| at.saturating_add(wait));
            let asked = asked(RequestKind::Question, title, Vec::new());
            (AskedByAgent { questions, expires_at, ..asked }, Form::Answers)
        }
        ELICITATION => elicitation(details)?,
        CLIENT_TOOL => {
            let title = format!("{} (a tool of another client)", text("tool").unwrap_or("a tool"));
            let options = vec![option(
                DECLINE,
                "Say that there is no such tool; the turn goes on",
                OptionKind::RejectOnce,
            )];
            (asked(RequestKind::Approval, title, options), Form::ClientTool)
        }
        _ => return None,
    })
}

fn option(id: &str, name: &str, kind: OptionKind) -> PermissionOption {
    PermissionOption { option_id: id.to_owned(), name: name.to_owned(), kind }
}

fn command_options(details: &Value) -> (Form, Vec<PermissionOption>) {
    let small = |rule: &&Value| rule.to_string().len() <= MAX_AMENDMENT_BYTES;
    let amendment =
        details.get("proposedExecpolicyAmendment").filter(|rule| rule.is_array()).filter(small).cloned();
    let network: Vec<Value> = details
        .get("proposedNetworkPolicyAmendments")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .filter(small)
        .take(MAX_NETWORK_RULES)
        .cloned()
        .collect();
    let of_network = details.get("networkApprovalContext").is_some_and(|context| !context.is_null());
    let session = if of_network {
        "Allow this host in this session"
    } else {
        "Allow exactly this command in this session"
    };
    let mut options = vec![
        option(ACCEPT, "Allow once", OptionKind::AllowOnce),
        option(ACCEPT_FOR_SESSION, session, OptionKind::AllowAlways),
    ];
    if let Some(rule) = &amendment {
        let words: Vec<&str> =
            rule.as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_str).collect();
        let name = format!("Allow commands that begin with `{}` for ever, in all sessions", words.join(" "));
        options.push(option(ACCEPT_FOR_EVER, &name, OptionKind::AllowAlways));
    }
    for (number, rule) in network.iter().enumerate() {
        let host = rule.get("host").and_then(Value::as_str).unwrap_or("the host");
        let (word, kind) = match rule.get("action").and_then(Value::as_str) {
            Some("allow") => ("Allow", OptionKind::AllowAlways),
            _ => ("Deny", OptionKind::RejectAlways),
        };
        let name = format!("{word} network access to {host} for ever, in all sessions");
        options.push(option(&format!("{NETWORK_RULE}:{number}"), &name, kind));
    }
    options.push(option(DECLINE, "Reject; the turn goes on", OptionKind::RejectOnce));
    options.push(option(CANCEL, "Reject and stop the turn", OptionKind::Other));
    (Form::Decision { amendment, network }, options)
}

fn question(question: &Value) -> Option<Question> {
    let text = |name: &str| question.get(name).and_then(Value::as_str).map(str::to_owned);
    let flag = |name: &str| question.get(name).and_then(Value::as_bool).unwrap_or_default();
    let choice = |choice: &Value| {
        // The server knows a choice by its label.
        let label = choice.get("label")?.as_str()?.to_owned();
        let description = choice.get("description").and_then(Value::as_str).map(str::to_owned);
        Some(Choice { id: label.clone(), label, description })
    };
    let choices: Vec<Choice> = question
        .get("options")
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .filter_map(choice)
        .collect();
    Some(Question {
        id: text("id")?,
        text: text("question").unwrap_or_default(),
        header: text("header"),
        free_text: flag("isOther") || choices.is_empty(),
        choices,
        multi_select: false,
        secret: flag("isSecret"),
    })
}

fn elicitation(details: &Value) -> Option<(AskedByAgent, Form)> {
    let text = |name: &str| details.get(name).and_then(Value::as_str);
    let title = text("message").unwrap_or_default().to_owned();
    if details.pointer("/_meta/codex_approval_kind").and_then(Value::as_str) == Some("mcp_tool_call") {
        let server = text("serverName").unwrap_or("the server");
        let tool = details.pointer("/_meta/tool_name").and_then(Value::as_str).unwrap_or("the tool");
        let reach = details.pointer("/_meta/persist");
        let can_last = |word: &str| match reach {
            Some(Value::Array(words)) => words.iter().any(|of| of == word),
            Some(Value::String(of)) => of == word,
            _ => false,
        };
        let mut options = vec![option(ACCEPT, "Allow once", OptionKind::AllowOnce)];
        if can_last("session") {
            let name = format!("Allow {server}'s {tool} in this session");
            options.push(option(ACCEPT_FOR_SESSION, &name, OptionKind::AllowAlways));
        }
        if can_last("always") {
            let name = format!("Allow {server}'s {tool} for ever, in all sessions");
            options.push(option(ACCEPT_ALWAYS, &name, OptionKind::AllowAlways));
        }
        options.push(option(DECLINE, "Reject; the turn goes on", OptionKind::RejectOnce));
        options.push(option(CANCEL, "Reject and cancel the call", OptionKind::Other));
        let asked =
            AskedByAgent { options, ..AskedByAgent::new(RequestKey::from(""), RequestKind::Approval, title) };
        return Some((asked, Form::McpTool));
    }
    let elicitation = match text("mode")? {
        "url" => Elicitation::Url { url: text("url")?.to_owned() },
        "form" | "openai/form" | "openaiForm" => {
            Elicitation::Form { schema: details.get("requestedSchema")?.clone() }
        }
        _ => return None,
    };
    let asked = AskedByAgent::new(RequestKey::from(""), RequestKind::Elicitation, title);
    Some((AskedByAgent { elicitation: Some(elicitation), ..asked }, Form::Elicitation))
}

/// An answer in the server's words.
pub(super) struct Said {
    /// The whole result.
    pub(super) result: Value,
    /// It says no.
    pub(super) declines: bool,
    /// The turn is to be stopped besides: the server has no word for it with this kind of request.
    pub(super) stops: bool,
}

/// The answer to a request; None: it is none that was offered.
pub(super) fn answer(form: &Form, answer: &Answer) -> Option<Said> {
    let chosen = match answer {
        Answer::Select { option_id } => Some(option_id.as_str()),
        Answer::Decline { .. } => Some(DECLINE),
        Answer::Cancel { .. } => Some(CANCEL),
        Answer::Answers { .. } | Answer::Submit { .. } => None,
    };
    let declines = matches!(chosen, Some(DECLINE | CANCEL));
    let stops = matches!(answer, Answer::Cancel { .. });
    let said = |result| Some(Said { result, declines, stops: false });
    match (form, answer) {
        (Form::Decision { amendment, network }, _) => {
            let decision = match chosen? {
                word @ (ACCEPT | ACCEPT_FOR_SESSION | DECLINE | CANCEL) => Value::from(word),
                ACCEPT_FOR_EVER => {
                    json!({ ACCEPT_FOR_EVER: { "execpolicy_amendment": amendment.as_ref()? } })
                }
                other => {
                    let number: usize = other.strip_prefix(NETWORK_RULE)?.strip_prefix(':')?.parse().ok()?;
                    json!({ NETWORK_RULE: { "network_policy_amendment": network.get(number)? } })
                }
            };
            said(json!({ "decision": decision }))
        }
        (Form::Permissions(wanted), _) => {
            let result = match chosen? {
                scope @ (GRANT_FOR_TURN | GRANT_FOR_SESSION) => {
                    json!({ "permissions": wanted, "scope": scope })
                }
                DECLINE | CANCEL => json!({ "permissions": {}, "scope": GRANT_FOR_TURN }),
                _ => return None,
            };
            Some(Said { result, declines, stops })
        }
        (Form::Answers, Answer::Answers { answers }) => said(json!({ "answers": words(answers) })),
        (Form::Answers, _) if declines => Some(Said { result: json!({ "answers": {} }), declines, stops }),
        (Form::Elicitation, Answer::Submit { content }) => {
            let content = content.clone().unwrap_or_else(|| json!({}));
            said(json!({ "action": ACCEPT, "content": content, "_meta": null }))
        }
        (Form::Elicitation | Form::McpTool, _) => {
            let (action, lasts) = match (form, chosen?) {
                (_, word @ (DECLINE | CANCEL)) => (word, Value::Null),
                (Form::McpTool, ACCEPT) => (ACCEPT, Value::Null),
                (Form::McpTool, ACCEPT_FOR_SESSION) => (ACCEPT, json!({ "persist": "session" })),
                (Form::McpTool, ACCEPT_ALWAYS) => (ACCEPT, json!({ "persist": "always" })),
                _ => return None,
            };
            let content = if action == ACCEPT { json!({}) } else { Value::Null };
            said(json!({ "action": action, "content": content, "_meta": lasts }))
        }
        (Form::ClientTool, _) if declines => {
            let text = "there is no such tool here";
            let result = json!({ "success": false, "contentItems": [{ "type": "inputText", "text": text }] });
            Some(Said { result, declines, stops })
        }
        (Form::Answers | Form::ClientTool, _) => None,
    }
}

/// Answers by question id: the labels that were chosen, then what was said in words.
fn words(answers: &Answers) -> Value {
    let said = |chosen: &mainstay_core::question::Chosen| {
        let mut words = chosen.selected.clone();
        words.extend(chosen.text.clone());
        json!({ "answers": words })
    };
    Value::Object(answers.iter().map(|(id, chosen)| (id.clone(), said(chosen))).collect())
}

/// The server takes no null where it takes nothing.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| (name.clone(), without_nulls(value)))
                .collect(),
        ),
        other => other.clone(),
    }
}
