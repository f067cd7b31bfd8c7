//! Following a session: what is shown, what is asked, and when it is over.

mod asking;
mod render;

pub(crate) use asking::{Approvals, allowing, rejecting};

use crate::client::{Client, ClientError, encode};
use crate::failure::{Exit, Failure};
use crate::output;
use crate::sse::SseEvent;
use asking::{Asked, Desk};
use render::Screen;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// How long a lost host may stay away. Whoever starts it again needs a moment; after that a person should look.
const HOST_ABSENCE: Duration = Duration::from_secs(30);
/// Pause between tries to reach it.
const RECONNECT_EVERY: Duration = Duration::from_millis(100);
/// A stream that says nothing for this long is lost: heartbeats come every 10 s.
pub(crate) const SILENCE: Duration = Duration::from_secs(35);

/// When following ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Until {
    /// With the turn that answers this message.
    TurnOf(String),
    /// With the turn that answers the first message seen: for a session made just now.
    FirstTurn,
    /// When the user leaves.
    Left,
}

/// What to follow, and how.
#[derive(Debug)]
pub(crate) struct Following {
    pub(crate) client: Client,
    pub(crate) session: String,
    /// `epoch:seq` to begin after.
    pub(crate) after: String,
    pub(crate) until: Until,
    pub(crate) approvals: Approvals,
    /// Events as NDJSON instead of text.
    pub(crate) json: bool,
    /// Requests that were open already, as the host lists them.
    pub(crate) open: Vec<Value>,
    /// Messages of the agent that were open already: their items, with the bytes of text that were shown.
    pub(crate) shown: Vec<(String, u64)>,
}

/// What the follower knows of the message and its turn.
#[derive(Debug, Default)]
struct Watched {
    submission: Option<String>,
    turn: Option<String>,
    taken: bool,
}

/// Follows until it is over.
pub(crate) async fn follow(following: Following) -> Result<Exit, Failure> {
    let submission = match &following.until {
        Until::TurnOf(submission) => Some(submission.clone()),
        Until::FirstTurn | Until::Left => None,
    };
    let follower = Follower {
        last_event: following.after.clone(),
        watched: Watched { submission, ..Watched::default() },
        screen: Screen::after(following.shown.clone()),
        desk: Desk::new(following.approvals),
        interrupts: 0,
        following,
    };
    follower.run().await
}

struct Follower {
    following: Following,
    last_event: String,
    watched: Watched,
    screen: Screen,
    desk: Desk,
    /// How often the user pressed Ctrl-C.
    interrupts: u32,
}

/// What woke the follower.
enum Woke {
    Event(Option<SseEvent>),
    Silence,
    CtrlC,
    Answer(Asked),
}

impl Follower {
    async fn run(mut self) -> Result<Exit, Failure> {
        let mut lost_at: Option<Instant> = None;
        // One listener for all the time, so that none is missed between two waits.
        let mut ctrl_c = signal(SignalKind::interrupt())?;
        let path = format!("/v1/sessions/{}/events", encode(&self.following.session));
        for mut request in std::mem::take(&mut self.following.open) {
            if request["state"] == "pending" {
                request["request"] = request["id"].take();
                output::note(&format!(
                    "? {}",
                    request["title"].as_str().unwrap_or("the agent asks something")
                ));
                self.on_request(&request).await?;
            }
        }
        loop {
            let mut stream = match self.following.client.stream(&path, Some(&self.last_event)).await {
                Ok(stream) => stream,
                Err(error) if error.is_lost_host() => {
                    let since = *lost_at.get_or_insert_with(Instant::now);
                    if since.elapsed() > HOST_ABSENCE {
                        return Err(self.host_is_gone(error));
                    }
                    if pause(&mut ctrl_c).await {
                        return Ok(self.leave());
                    }
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            loop {
                let woke = tokio::select! {
                    event = stream.next() => Woke::Event(event),
                    () = tokio::time::sleep(SILENCE) => Woke::Silence,
                    _ = ctrl_c.recv() => Woke::CtrlC,
                    answer = self.desk.answered() => Woke::Answer(answer),
                };
                match woke {
                    Woke::Event(Some(event)) => {
                        lost_at = None;
                        if let Some(exit) = self.on_event(&event).await? {
                            self.screen.end_line()?;
                            return Ok(exit);
                        }
                    }
                    Woke::Event(None) | Woke::Silence => break,
                    Woke::CtrlC => {
                        if let Some(exit) = self.on_ctrl_c().await? {
                            return Ok(exit);
                        }
                    }
                    Woke::Answer(asked) => self.give_answer(asked).await?,
                }
            }
            if lost_at.is_none() {
                lost_at = Some(Instant::now());
                output::note("the host went away; waiting for it (the agent works on)");
            }
        }
    }

    fn host_is_gone(&self, error: ClientError) -> Failure {
        let mut failure = Failure::from(error);
        failure.message = format!(
            "{}; nothing is lost: `mainstay attach {}` goes on once a host runs",
            failure.message, self.following.session
        );
        failure
    }

    async fn on_event(&mut self, event: &SseEvent) -> Result<Option<Exit>, Failure> {
        let data: Value = serde_json::from_str(&event.data)
            .map_err(|error| Failure::new(Exit::Other, format!("an event is no JSON: {error}")))?;
        if let Some(id) = &event.id {
            self.last_event.clone_from(id);
        }
        if self.following.json && event.id.is_some() {
            output::line(&event.data)?;
        }
        match event.event.as_str() {
            "reset" => return self.on_reset(&data).await,
            "caught_up" | "heartbeat" => return Ok(None),
            _ => {}
        }
        if !self.following.json {
            self.screen.show(&data)?;
        }
        match event.event.as_str() {
            "request.opened" => {
                if let Some(exit) = self.on_request(&data).await? {
                    return Ok(Some(exit));
                }
            }
            "request.answered" | "request.closed" => self.desk.settled(&data),
            "session.deleted" => return Ok(Some(Exit::Interrupted)),
            _ => {}
        }
        Ok(self.watch(&data))
    }

    /// The history before the cursor is not what it was; go on from where it stands.
    async fn on_reset(&mut self, data: &Value) -> Result<Option<Exit>, Failure> {
        if let Some(cursor) = data["cursor"].as_str() {
            cursor.clone_into(&mut self.last_event);
        }
        if self.following.json {
            output::json(data)?;
        }
        output::note(&format!(
            "the session's history begins anew ({})",
            data["reason"].as_str().unwrap_or("unknown")
        ));
        if self.following.until == Until::Left {
            return Ok(None);
        }
        let path = format!("/v1/sessions/{}", encode(&self.following.session));
        let session = self.following.client.get(&path).await?;
        match session["status"].as_str() {
            Some("running" | "starting" | "requires_action") => Ok(None),
            // The turn may have ended in what is gone.
            _ => Ok(Some(Exit::InDoubt)),
        }
    }

    /// Whether the event ends what is waited for.
    fn watch(&mut self, data: &Value) -> Option<Exit> {
        if self.following.until == Until::Left {
            return None;
        }
        let text = |member: &str| data[member].as_str().map(str::to_owned);
        let kind = data["type"].as_str().unwrap_or_default();
        if kind == "submission.accepted" && self.watched.submission.is_none() {
            self.watched.submission = text("submission");
        }
        let ours = self.watched.submission.is_some() && text("submission") == self.watched.submission;
        match kind {
            "turn.started" | "turn.updated" if ours => self.watched.turn = text("turn"),
            "submission.taken" if ours => {
                self.watched.taken = true;
                if self.watched.turn.is_none() {
                    self.watched.turn = text("turn");
                }
            }
            "submission.rejected" if ours => {
                say_failure(&data["failure"]);
                return Some(Exit::TurnFailed);
            }
            "submission.cancelled" | "submission.dropped" if ours => return Some(Exit::Interrupted),
            "submission.doubtful" if ours => {
                output::note("whether the message reached the agent is not known");
                return Some(Exit::InDoubt);
            }
            "session.recovering" if !self.watched.taken && data["failure"].is_object() => {
                say_failure(&data["failure"]);
                output::note("the message waits; once the cause is gone, `mainstay start` goes on with it");
                return Some(Exit::TurnFailed);
            }
            "turn.ended" => {
                let known = self.watched.turn.is_some() && text("turn") == self.watched.turn;
                // A turn whose origin was never shown can only be ours once ours is taken and none is known.
                if known || (self.watched.taken && self.watched.turn.is_none()) {
                    return Some(turn_exit(data));
                }
            }
            _ => {}
        }
        None
    }

    async fn on_request(&mut self, data: &Value) -> Result<Option<Exit>, Failure> {
        let asked = match self.desk.consider(data) {
            asking::Step::Answer(asked) => asked,
            asking::Step::Wait => return Ok(None),
            asking::Step::NobodyCan { why } => {
                self.screen.end_line()?;
                let request = data["request"].as_str().unwrap_or_default();
                output::note(&format!(
                    "{why}; it stays open: `mainstay answer {} {request} …`",
                    self.following.session
                ));
                return Ok((self.following.until != Until::Left).then_some(Exit::NeedsAnswer));
            }
        };
        self.give_answer(asked).await?;
        Ok(None)
    }

    async fn give_answer(&mut self, asked: Asked) -> Result<(), Failure> {
        let path = format!(
            "/v1/sessions/{}/requests/{}/answer",
            encode(&self.following.session),
            encode(&asked.request)
        );
        match self.following.client.mutate("POST", &path, &asked.body).await {
            Ok(_) => Ok(()),
            Err(error)
                if matches!(
                    error.code(),
                    Some("already_answered" | "request_closed" | "revision_mismatch")
                ) =>
            {
                output::note(&error.to_string());
                Ok(())
            }
            // The host comes back, and the request is still open then; it is not asked twice.
            Err(error) if error.is_lost_host() => {
                output::note("the answer did not reach the host; answer again with `mainstay answer`");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Once interrupts the turn, twice detaches.
    async fn on_ctrl_c(&mut self) -> Result<Option<Exit>, Failure> {
        self.interrupts += 1;
        if self.interrupts > 1 || self.following.until == Until::Left {
            return Ok(Some(self.leave()));
        }
        output::note("interrupting; press Ctrl-C again to leave it running");
        let path = format!("/v1/sessions/{}/interrupt", encode(&self.following.session));
        match self.following.client.mutate("POST", &path, &json!({})).await {
            Ok(stopped) => {
                if stopped["recorded"] == false {
                    output::note("the stop is under way, though the store could not record it");
                }
            }
            Err(error) => output::note(&format!("the stop did not reach the host: {error}")),
        }
        Ok(None)
    }

    fn leave(&self) -> Exit {
        output::note(&format!("left session {}; `mainstay attach {0}` goes on", self.following.session));
        if self.following.until == Until::Left { Exit::Completed } else { Exit::Interrupted }
    }
}

/// Waits a moment; true where the user leaves meanwhile.
async fn pause(ctrl_c: &mut Signal) -> bool {
    tokio::select! {
        () = tokio::time::sleep(RECONNECT_EVERY) => false,
        _ = ctrl_c.recv() => true,
    }
}

fn say_failure(failure: &Value) {
    let text = |member: &str| failure[member].as_str().unwrap_or("unknown");
    output::note(&format!("{} ({})", text("message"), text("code")));
}

/// The exit code of an ended turn.
fn turn_exit(data: &Value) -> Exit {
    match data["outcome"].as_str() {
        Some("completed") => Exit::Completed,
        Some("interrupted" | "cancelled") => Exit::Interrupted,
        Some("lost") => Exit::InDoubt,
        _ => Exit::TurnFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follower(until: Until) -> Follower {
        let submission = match &until {
            Until::TurnOf(submission) => Some(submission.clone()),
            _ => None,
        };
        let following = Following {
            client: Client::new(std::path::Path::new("/nowhere")),
            session: "s".to_owned(),
            after: "1:0".to_owned(),
            until,
            approvals: Approvals::LeaveOpen,
            json: true,
            open: Vec::new(),
            shown: Vec::new(),
        };
        Follower {
            last_event: String::new(),
            watched: Watched { submission, ..Watched::default() },
            screen: Screen::after(following.shown.clone()),
            desk: Desk::new(Approvals::LeaveOpen),
            interrupts: 0,
            following,
        }
    }

    #[test]
    fn only_the_turn_of_the_message_ends_the_wait() {
        let mut follower = follower(Until::TurnOf("m2".to_owned()));
        for event in [
            json!({"type": "turn.started", "turn": "t1", "submission": "m1"}),
            json!({"type": "turn.ended", "turn": "t1", "outcome": "completed"}),
            json!({"type": "turn.started", "turn": "t2", "origin": "unknown"}),
            json!({"type": "submission.taken", "submission": "m2", "turn": "t2"}),
            json!({"type": "turn.ended", "turn": "t9", "outcome": "failed"}),
        ] {
            assert_eq!(follower.watch(&event), None, "{event}");
        }
        let end = json!({"type": "turn.ended", "turn": "t2", "outcome": "interrupted"});
        assert_eq!(follower.watch(&end), Some(Exit::Interrupted));
    }

    #[test]
    fn a_message_that_never_becomes_a_turn_ends_the_wait_too() {
        for (event, exit) in [
            (json!({"type": "submission.rejected", "submission": "m1", "failure": {}}), Exit::TurnFailed),
            (json!({"type": "submission.cancelled", "submission": "m1"}), Exit::Interrupted),
            (json!({"type": "submission.doubtful", "submission": "m1"}), Exit::InDoubt),
            (json!({"type": "session.recovering", "failure": {"code": "spawn_failed"}}), Exit::TurnFailed),
        ] {
            let mut follower = follower(Until::FirstTurn);
            assert_eq!(follower.watch(&json!({"type": "submission.accepted", "submission": "m1"})), None);
            assert_eq!(follower.watch(&event), Some(exit), "{event}");
        }
    }

    #[test]
    fn outcomes_have_their_exit_codes() {
        let exit = |outcome: &str| turn_exit(&json!({ "outcome": outcome })).code();
        let codes = ["completed", "failed", "refused", "limit", "interrupted", "cancelled", "lost"].map(exit);
        assert_eq!(codes, [0, 5, 5, 5, 6, 6, 8]);
    }
}
