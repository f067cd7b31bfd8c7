//! One line of text for each thing said or sent, the same on each run: JSON keys are sorted, long values cut.

use mainstay_agents::{Frame, Said, Translated};
use mainstay_core::content::{ItemFields, PermissionOption};
use mainstay_core::{AgentEvent, SessionOptions};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Longer values are cut in goldens, with their length: the tests are about what is said, not about its payload.
const MAX_VALUE_CHARS: usize = 160;

/// JSON with sorted keys.
pub(crate) fn canonical(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let sorted: BTreeMap<&String, String> =
                fields.iter().map(|(key, value)| (key, canonical(value))).collect();
            let fields: Vec<String> =
                sorted.iter().map(|(key, value)| format!("{}:{value}", Value::from(key.as_str()))).collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(values) => format!("[{}]", values.iter().map(canonical).collect::<Vec<_>>().join(",")),
        plain => plain.to_string(),
    }
}

fn cut(text: String) -> String {
    let length = text.chars().count();
    if length <= MAX_VALUE_CHARS {
        return text;
    }
    format!("{}…({length})", text.chars().take(MAX_VALUE_CHARS).collect::<String>())
}

fn json<T: Serialize>(value: &T) -> String {
    cut(canonical(&serde_json::to_value(value).expect("has a JSON form")))
}

fn optional<T: ToString>(value: Option<&T>) -> String {
    value.map_or_else(|| "-".to_owned(), ToString::to_string)
}

fn fields(fields: &ItemFields) -> String {
    let Value::Object(fields) = serde_json::to_value(fields).expect("has a JSON form") else {
        return String::new();
    };
    let sorted: BTreeMap<String, Value> = fields.into_iter().collect();
    sorted.iter().map(|(name, value)| format!(" {name}={}", cut(canonical(value)))).collect()
}

fn options(options: &SessionOptions) -> String {
    json(options)
}

fn ways(options: &[PermissionOption]) -> String {
    let ways: Vec<String> = options
        .iter()
        .map(|option| format!("{}/{:?}/{:?}", option.option_id, option.kind, option.name))
        .collect();
    ways.join(" ")
}

pub(crate) fn event(event: &AgentEvent) -> String {
    match event {
        AgentEvent::Ready(info) => {
            let resumable = match info.resumable {
                Some(true) => " resumable",
                Some(false) => " not resumable",
                None => "",
            };
            format!("Ready {} {}{resumable}", info.name, info.version)
        }
        AgentEvent::ThreadOpened { thread, resumed } => {
            format!("ThreadOpened {thread}{}", if *resumed { " resumed" } else { "" })
        }
        AgentEvent::ThreadRefused { failure } => format!("ThreadRefused {}", json(failure)),
        AgentEvent::InputTaken { submission, proof } => format!("InputTaken {submission} {proof:?}"),
        AgentEvent::InputRejected { submission, failure } => {
            format!("InputRejected {submission} {}", json(failure))
        }
        AgentEvent::SteerRefused { submission, why } => format!("SteerRefused {submission} {why:?}"),
        AgentEvent::InputAbsent { submission } => format!("InputAbsent {submission}"),
        AgentEvent::InputUnknown { submission } => format!("InputUnknown {submission}"),
        AgentEvent::TurnStarted { turn, origin, submission } => {
            format!("TurnStarted {turn} {origin:?} {}", optional(submission.as_ref()))
        }
        AgentEvent::TurnEnded { turn, outcome, stop_reason, failure, usage } => {
            let stop_reason = stop_reason.map_or_else(|| "-".to_owned(), |reason| format!("{reason:?}"));
            let failure = failure.as_ref().map(|failure| format!(" {}", json(failure))).unwrap_or_default();
            let usage = usage.as_ref().map(|usage| format!(" usage={}", json(usage))).unwrap_or_default();
            format!("TurnEnded {turn} {outcome:?} {stop_reason}{failure}{usage}")
        }
        AgentEvent::ItemStarted { key, turn, kind, fields: of } => {
            format!("ItemStarted {key} in {} {kind:?}{}", optional(turn.as_ref()), fields(of))
        }
        AgentEvent::ItemDelta { key, turn, kind, text } => {
            format!("ItemDelta {key} in {} {kind:?} {}", optional(turn.as_ref()), cut(format!("{text:?}")))
        }
        AgentEvent::ItemUpdated { key, fields: of } => format!("ItemUpdated {key}{}", fields(of)),
        AgentEvent::ItemCompleted { key, turn, kind, status, text, fields: of } => {
            let text = text.as_ref().map(|text| format!(" {}", cut(format!("{text:?}")))).unwrap_or_default();
            format!(
                "ItemCompleted {key} in {} {kind:?} {status:?}{text}{}",
                optional(turn.as_ref()),
                fields(of)
            )
        }
        AgentEvent::RequestOpened(asked) => format!(
            "RequestOpened {} in {} on {}{} {:?} {:?} [{}]{}{} {}",
            asked.key,
            optional(asked.turn.as_ref()),
            optional(asked.item.as_ref()),
            asked.child.as_ref().map(|child| format!(" of child {child}")).unwrap_or_default(),
            asked.kind,
            asked.title,
            ways(&asked.options),
            if asked.questions.is_empty() {
                String::new()
            } else {
                format!(" questions={}", json(&asked.questions))
            },
            asked.elicitation.as_ref().map(|form| format!(" form={}", json(form))).unwrap_or_default(),
            json(&asked.details)
        ),
        AgentEvent::RequestSettled { key, confirmed } => {
            format!("RequestSettled {key}{}", if *confirmed { " confirmed" } else { "" })
        }
        AgentEvent::RequestUnconfirmed { key } => format!("RequestUnconfirmed {key}"),
        AgentEvent::TaskStarted { key, kind, title, fields } => {
            format!("TaskStarted {key} {kind:?} {} {}", cut(format!("{title:?}")), json(fields))
        }
        AgentEvent::TaskUpdated { key, fields } => format!("TaskUpdated {key} {}", json(fields)),
        AgentEvent::TaskEnded { key, end, fields } => format!("TaskEnded {key} {end:?} {}", json(fields)),
        AgentEvent::ChildStarted { thread, fields } => format!("ChildStarted {thread} {}", json(fields)),
        AgentEvent::ChildUpdated { thread, fields } => format!("ChildUpdated {thread} {}", json(fields)),
        AgentEvent::ChildEnded { thread, end, fields } => {
            format!("ChildEnded {thread} {end:?} {}", json(fields))
        }
        AgentEvent::Goal { goal, by } => format!("Goal {by:?} {}", json(goal)),
        AgentEvent::Name { name, by } => format!("Name {by:?} {name:?}"),
        AgentEvent::Retrying { turn, attempt, of, failure, next_at } => {
            format!(
                "Retrying {} {attempt} of {of:?} at {next_at:?} {}",
                optional(turn.as_ref()),
                json(failure)
            )
        }
        AgentEvent::ControlEnded { control, end } => format!("ControlEnded {control} {}", json(end)),
        AgentEvent::GoesBack { control, at } => format!("GoesBack {control} at {at}"),
        AgentEvent::ThreadSwitched { thread } => format!("ThreadSwitched {thread}"),
        AgentEvent::ThreadClosed => "ThreadClosed".to_owned(),
        AgentEvent::Plan(entries) => format!("Plan {}", json(entries)),
        AgentEvent::Usage(usage) => format!("Usage {}", json(usage)),
        AgentEvent::Spent { counter, of_process } => {
            format!("Spent {}{}", json(counter), if *of_process { " by this process" } else { "" })
        }
        AgentEvent::Options(of) => format!("Options {}", options(of)),
        AgentEvent::Commands(commands) => format!("Commands {}", json(commands)),
        AgentEvent::Notice { level, message, provider } => {
            let provider =
                provider.as_ref().map(|provider| format!(" {}", json(provider))).unwrap_or_default();
            format!("Notice {level:?} {}{provider}", cut(format!("{message:?}")))
        }
        AgentEvent::Unmodelled { name, frame } => format!("Unmodelled {name} {}", json(frame)),
    }
}

pub(crate) fn said(said: &Said) -> String {
    match &said.session {
        Some(session) => format!("{session}: {}", event(&said.event)),
        None => format!("all: {}", event(&said.event)),
    }
}

pub(crate) fn frame(frame: &Frame) -> String {
    let body: Value = serde_json::from_slice(&frame.payload).expect("a frame is JSON");
    let urgent = if frame.urgent { " urgent" } else { "" };
    let carries = frame.carries.as_ref().map(|carried| format!(" carries {carried}")).unwrap_or_default();
    // Our own version changes with each release.
    let body = canonical(&body)
        .replace(&format!(r#""version":"{}""#, env!("CARGO_PKG_VERSION")), r#""version":"*""#);
    format!("send{urgent}{carries} {}", cut(body))
}

/// Everything of one step: first what was said, then what was sent.
pub(crate) fn lines(translated: &Translated) -> Vec<String> {
    translated.said.iter().map(said).chain(translated.frames.iter().map(frame)).collect()
}
