//! Approvals: answered by a flag, by the person at the terminal, or left open.

use crate::output;
use serde_json::{Value, json};
use std::io::BufRead;
use tokio::sync::mpsc;

/// What to do with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Approvals {
    /// Yes, once each.
    Allow,
    /// No.
    Deny,
    /// Ask the person at the terminal.
    Ask,
    /// Nobody here can answer.
    LeaveOpen,
}

/// An answer to be given.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub(crate) request: String,
    pub(crate) body: Value,
}

/// What follows from a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Step {
    Answer(Asked),
    /// The person is being asked.
    Wait,
    NobodyCan {
        why: String,
    },
}

/// A question to the person, until it is answered or settled elsewhere.
#[derive(Debug)]
struct Open {
    request: String,
    revision: u64,
    options: Vec<(String, String)>,
}

/// Lines of the person that may wait; one question is open at a time, so more is typing ahead.
const LINES_WAITING: usize = 8;

/// Where requests are considered.
#[derive(Debug)]
pub(crate) struct Desk {
    approvals: Approvals,
    open: Vec<Open>,
    lines: Option<mpsc::Receiver<String>>,
}

impl Desk {
    pub(crate) const fn new(approvals: Approvals) -> Self {
        Self { approvals, open: Vec::new(), lines: None }
    }

    /// Decides about a `request.opened`.
    pub(crate) fn consider(&mut self, data: &Value) -> Step {
        let request = data["request"].as_str().unwrap_or_default().to_owned();
        let revision = data["revision"].as_u64().unwrap_or(0);
        match self.approvals {
            Approvals::Allow => match allowing(data) {
                Some(option) => Step::Answer(Asked {
                    request,
                    body: json!({ "revision": revision, "option_id": option }),
                }),
                None => Step::NobodyCan { why: "this request cannot be answered by --yes".to_owned() },
            },
            Approvals::Deny => {
                let body = match rejecting(data) {
                    Some(option) => json!({ "revision": revision, "option_id": option }),
                    None => json!({ "revision": revision, "decline": true }),
                };
                Step::Answer(Asked { request, body })
            }
            Approvals::Ask => {
                let options = options(data);
                self.open.push(Open { request, revision, options });
                if self.open.len() == 1 {
                    self.ask();
                }
                Step::Wait
            }
            Approvals::LeaveOpen => {
                Step::NobodyCan { why: "the agent needs an answer and nobody can give it here".to_owned() }
            }
        }
    }

    fn ask(&mut self) {
        let Some(open) = self.open.first() else { return };
        for (number, (_, name)) in open.options.iter().enumerate() {
            output::note(&format!("  {}) {name}", number + 1));
        }
        output::ask("your answer (number, or n to decline): ");
        if self.lines.is_none() {
            self.lines = Some(read_lines());
        }
    }

    /// Waits for the person's answer; for ever while nothing is asked.
    pub(crate) async fn answered(&mut self) -> Asked {
        loop {
            let (Some(lines), false) = (&mut self.lines, self.open.is_empty()) else {
                return std::future::pending().await;
            };
            let Some(line) = lines.recv().await else {
                // The terminal is gone; the requests stay open.
                self.open.clear();
                continue;
            };
            let Some(open) = self.open.first() else { continue };
            let Some(body) = answer_of(open, line.trim()) else {
                self.ask();
                continue;
            };
            let asked = Asked { request: open.request.clone(), body };
            self.open.remove(0);
            self.ask();
            return asked;
        }
    }

    /// A request was answered or closed, here or elsewhere.
    pub(crate) fn settled(&mut self, data: &Value) {
        let request = data["request"].as_str().unwrap_or_default();
        let asked_now = self.open.first().is_some_and(|open| open.request == request);
        self.open.retain(|open| open.request != request);
        if asked_now {
            let by = data["by"].as_str().unwrap_or("somebody else");
            output::note(&format!("\nanswered by {by}"));
            self.ask();
        }
    }
}

fn answer_of(open: &Open, line: &str) -> Option<Value> {
    if line.eq_ignore_ascii_case("n") {
        return Some(json!({ "revision": open.revision, "decline": true }));
    }
    let number: usize = line.parse().ok()?;
    let (option, _) = open.options.get(number.checked_sub(1)?)?;
    Some(json!({ "revision": open.revision, "option_id": option }))
}

fn options(data: &Value) -> Vec<(String, String)> {
    let text = |option: &Value, member: &str| option[member].as_str().unwrap_or_default().to_owned();
    let options = data["options"].as_array().into_iter().flatten();
    options.map(|option| (text(option, "option_id"), text(option, "name"))).collect()
}

/// The offered option that allows and reaches least far.
pub(crate) fn allowing(request: &Value) -> Option<String> {
    option_of(request, &["allow_once", "allow_always"])
}

/// The offered option that rejects and reaches least far.
pub(crate) fn rejecting(request: &Value) -> Option<String> {
    option_of(request, &["reject_once", "reject_always"])
}

/// The first option of the first of these kinds that is offered.
fn option_of(data: &Value, kinds: &[&str]) -> Option<String> {
    let options = data["options"].as_array()?;
    kinds.iter().find_map(|kind| {
        let option = options.iter().find(|option| option["kind"] == *kind)?;
        option["option_id"].as_str().map(str::to_owned)
    })
}

/// Reads the terminal on a thread of its own: a read cannot be given up, and must not hold the program when it ends.
fn read_lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(LINES_WAITING);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Value {
        json!({
            "request": "r1", "revision": 3,
            "options": [
                { "option_id": "always", "name": "Always", "kind": "allow_always" },
                { "option_id": "once", "name": "Once", "kind": "allow_once" },
                { "option_id": "no", "name": "No", "kind": "reject_once" },
            ],
        })
    }

    #[test]
    fn flags_choose_the_option_with_the_shortest_reach() {
        let answered = |approvals, data: &Value| match Desk::new(approvals).consider(data) {
            Step::Answer(asked) => asked.body,
            other => panic!("{other:?}"),
        };
        assert_eq!(answered(Approvals::Allow, &request()), json!({ "revision": 3, "option_id": "once" }));
        assert_eq!(answered(Approvals::Deny, &request()), json!({ "revision": 3, "option_id": "no" }));
        let bare = json!({ "request": "r1", "revision": 1, "options": [] });
        assert_eq!(answered(Approvals::Deny, &bare), json!({ "revision": 1, "decline": true }));
        assert!(matches!(Desk::new(Approvals::Allow).consider(&bare), Step::NobodyCan { .. }));
        assert!(matches!(Desk::new(Approvals::LeaveOpen).consider(&request()), Step::NobodyCan { .. }));
    }

    #[test]
    fn a_person_answers_by_number() {
        let open = Open { request: "r1".to_owned(), revision: 3, options: options(&request()) };
        assert_eq!(answer_of(&open, "2"), Some(json!({ "revision": 3, "option_id": "once" })));
        assert_eq!(answer_of(&open, "n"), Some(json!({ "revision": 3, "decline": true })));
        for nonsense in ["", "0", "4", "yes"] {
            assert_eq!(answer_of(&open, nonsense), None, "{nonsense}");
        }
    }
}
