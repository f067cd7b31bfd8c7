//! A journal in words: what a reader of the table wants to know of each event, without ids, times and text.

use serde_json::Value;
use std::ops::Range;

/// The names of a cell's messages, by what they say.
pub(crate) type Names<'a> = &'a [(&'a str, &'a str)];

/// The events in words, those that say nothing about who may go on left out.
pub(crate) fn tell(events: &[Value], names: Names<'_>) -> Told {
    let mut narrator = Narrator { names, known: Vec::new() };
    let words = events.iter().enumerate();
    Told(words.filter_map(|(at, event)| Some((at, narrator.word(event)?))).collect())
}

/// A journal in words, each with the place of its event.
pub(crate) struct Told(Vec<(usize, String)>);

impl Told {
    /// The words of these events.
    pub(crate) fn between(&self, places: Range<usize>) -> Vec<String> {
        let inside = self.0.iter().filter(|(at, _)| places.contains(at));
        let mut words: Vec<String> = inside.map(|(_, word)| word.clone()).collect();
        // Several items of one turn end alike.
        words.dedup();
        words
    }

    /// Several words in one cell of a table.
    pub(crate) fn line(words: &[String]) -> String {
        if words.is_empty() { "–".to_owned() } else { words.join(" · ") }
    }

    /// The last word that begins so.
    pub(crate) fn last(&self, begin: &str, places: Range<usize>) -> String {
        let words = self.between(places);
        words.into_iter().rfind(|word| word.starts_with(begin)).unwrap_or_else(|| "–".to_owned())
    }

    /// The last word about a message, if there is one about it.
    pub(crate) fn ends_of(&self, message: &str) -> Vec<String> {
        let begin = format!("{message} ");
        self.0
            .iter()
            .rfind(|(_, word)| word.starts_with(&begin))
            .map(|(_, word)| word.clone())
            .into_iter()
            .collect()
    }

    /// The ends of requests, items, tasks, children and controls.
    pub(crate) fn ends_of_asked(&self, places: Range<usize>) -> Vec<String> {
        let mut words = Vec::new();
        for begin in ["request ", "item ", "task ", "child ", "compact "] {
            let word = self.last(begin, places.clone());
            if word != "–" {
                words.push(word);
            }
        }
        words
    }
}

struct Narrator<'a> {
    names: Names<'a>,
    /// Messages by id.
    known: Vec<(String, String)>,
}

impl Narrator<'_> {
    fn message(&self, event: &Value) -> String {
        let id = text(&event["submission"]);
        let known = self.known.iter().find(|(known, _)| *known == id);
        known.map_or_else(|| "a message".to_owned(), |(_, name)| name.clone())
    }

    fn accepted(&mut self, event: &Value) {
        let content = text(&event["content"][0]["text"]);
        let name = self.names.iter().find(|(of, _)| *of == content);
        let name = name.map_or_else(|| content.clone(), |(_, name)| (*name).to_owned());
        self.known.push((text(&event["submission"]), name));
    }

    fn word(&mut self, event: &Value) -> Option<String> {
        let kind = event["type"].as_str()?;
        let turn = text(&event["turn"]);
        Some(match kind {
            "submission.accepted" => {
                self.accepted(event);
                return None;
            }
            "submission.queued" => format!("{} queued ({})", self.message(event), text(&event["reason"])),
            "submission.delivered" if event["steers"].is_null() => format!("{} given", self.message(event)),
            "submission.delivered" => {
                format!("{} given into {}", self.message(event), text(&event["steers"]))
            }
            "submission.taken" if event["proof"] == "history" => {
                format!("{} taken (history)", self.message(event))
            }
            "submission.taken" => format!("{} taken", self.message(event)),
            "submission.doubtful" => {
                format!("{} in doubt ({})", self.message(event), text(&event["settles_by"]))
            }
            "submission.rejected" => {
                format!("{} rejected ({})", self.message(event), text(&event["failure"]["code"]))
            }
            "submission.cancelled" | "submission.dropped" => {
                format!("{} {}", self.message(event), kind.rsplit('.').next()?)
            }
            "turn.started" if event["origin"] == "message" || event["origin"] == "unknown" => {
                format!("{turn} starts")
            }
            "turn.started" => format!("{turn} starts ({})", text(&event["origin"])),
            "turn.ended" => match event["failure"]["code"].as_str() {
                Some(code) => format!("{turn} {} ({code})", text(&event["outcome"])),
                None => format!("{turn} {}", text(&event["outcome"])),
            },
            "request.opened" => "request opens".to_owned(),
            "request.updated" => "request unconfirmed".to_owned(),
            "request.answered" => "request answered".to_owned(),
            "request.closed" => match event["confirmed"].as_bool() {
                Some(true) => format!("request {}, confirmed", text(&event["state"])),
                _ => format!("request {}", text(&event["state"])),
            },
            "interrupt.requested" => "stop asked".to_owned(),
            "stop.escalated" => "stop escalated".to_owned(),
            "process.started" => "process starts".to_owned(),
            "process.adopted" => "process taken over".to_owned(),
            "process.unverifiable" => "process unverifiable".to_owned(),
            "process.exited" => format!("process gone ({})", cause(&event["exit"]["cause"])),
            "lease.released" => format!("lease over ({})", text(&event["reason"])),
            "thread.linked" => format!("thread {}", text(&event["how"])),
            "control.ended" if event["state"] == "done" => return None,
            "control.ended" => format!("{} {}", text(&event["control"]), text(&event["state"])),
            "task.started" => "task starts".to_owned(),
            "task.ended" => format!("task {}", text(&event["outcome"])),
            "child.started" => "child starts".to_owned(),
            "child.ended" => format!("child {}", text(&event["outcome"])),
            "session.updated" => match event["queue_paused"].as_bool()? {
                true => "queue paused".to_owned(),
                false => "queue goes on".to_owned(),
            },
            "session.recovering" => match event["failure"]["code"].as_str() {
                Some(code) => format!("held ({code})"),
                None => "held no more".to_owned(),
            },
            "start.retrying" => "start put off".to_owned(),
            "item.completed" => match event["status"].as_str()? {
                "completed" => return None,
                status => format!("item {status}"),
            },
            _ => return None,
        })
    }
}

/// How a process ended: the order that it obeyed, or that it left by itself.
fn cause(cause: &Value) -> String {
    let order = &cause["ordered"]["order"];
    if order.is_string() { format!("order of {}", text(order)) } else { text(cause) }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
