//! The real Claude Code dies while it asks: what nobody answered is asked again by the next process, about the same call,
//! and the turn goes on; what was answered is not, and its call says that it may have run.

use crate::support::{DEADLINE, Follower, World, agent_pid, answer, is, kill, send, show};
use mainstay_testkit::http::Sse;
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::wait::wait_until;
use serde_json::{Value, json};

/// Waits until the call that a request is about stands in the transcript: the program writes it about 100 ms later.
pub(crate) fn call_is_saved(world: &World, asked: &Value) {
    let call = asked["details"]["tool_use_id"].as_str().expect("a call").to_owned();
    wait_until(DEADLINE, "the call is in the transcript", || {
        let folders = std::fs::read_dir(world.claude.config_dir.join("projects"));
        let files =
            folders.into_iter().flatten().flatten().filter_map(|dir| std::fs::read_dir(dir.path()).ok());
        files
            .flatten()
            .flatten()
            .any(|file| std::fs::read_to_string(file.path()).is_ok_and(|text| text.contains(&call)))
    });
}

struct Cut {
    world: World,
    host: HostProcess,
    session: String,
    follower: Follower,
    sse: Sse,
    asked: Value,
}

/// A session whose agent was killed while it asked.
fn cut(prompt: &str) -> Cut {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", prompt);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let started = follower.until(&mut sse, "the process", is("process.started"));
    let asked = follower.until(&mut sse, "the request", is("request.opened"));
    call_is_saved(&world, &asked);
    kill(agent_pid(&started));
    let closed = follower.until(&mut sse, "the request's end", is("request.closed"));
    assert_eq!((&closed["state"], &closed["asked_again"]), (&"lost".into(), &true.into()), "{closed}");
    Cut { world, host, session, follower, sse, asked }
}

impl Cut {
    /// The request as the next process asks it.
    fn again(&mut self) -> Value {
        let again = self.follower.until(&mut self.sse, "the request again", is("request.opened"));
        assert_eq!(again["recovers"], self.asked["request"], "{again}");
        assert_ne!(again["request"], self.asked["request"]);
        assert_eq!(again["kind"], self.asked["kind"]);
        assert_eq!(again["details"]["tool_use_id"], self.asked["details"]["tool_use_id"]);
        again
    }

    fn ends(&mut self) {
        let ended = self.follower.until(&mut self.sse, "the turn's end", |event| {
            event["type"] == "turn.ended" && event["outcome"] != "lost"
        });
        assert_eq!(ended["outcome"], "completed", "{ended}");
    }

    fn made(&self, name: &str) -> bool {
        self.world.home.workspace().join(name).exists()
    }

    fn end(self) {
        let Self { world, host, .. } = self;
        world.end(host);
    }
}

fn id(request: &Value) -> &str {
    request["request"].as_str().expect("an id")
}

#[test]
fn claude_an_approval_that_nobody_gave_is_asked_again_and_the_call_runs_once() {
    let mut cut = cut("RUN echo x >> made ;; SAY after");
    let again = cut.again();
    assert!(!cut.made("made"), "it ran unasked");
    assert_eq!(show(&cut.host.client(), &cut.session)["status"], "requires_action");
    answer(&cut.host.client(), &cut.session, id(&again), "allow").expect_status(200);
    let closed = cut.follower.until(&mut cut.sse, "the request's end", is("request.closed"));
    assert_eq!((&closed["state"], &closed["confirmed"]), (&"answered".into(), &true.into()), "{closed}");
    cut.ends();
    assert_eq!(std::fs::read_to_string(cut.world.home.workspace().join("made")).unwrap(), "x\n");
    assert_eq!(cut.follower.agent_text(), "after");
    let calls: Vec<&Value> = cut
        .follower
        .of_type("item.completed")
        .into_iter()
        .filter(|item| item["content"][0]["type"] == "content")
        .collect();
    assert_eq!(calls.len(), 1, "its result is shown once: {calls:?}");
    assert!(cut.follower.of_type("item.completed").iter().all(|item| item["may_have_run"] != true));
    // The old one says what became of it.
    let path = format!("/v1/sessions/{}/requests/{}/answer", cut.session, id(&cut.asked));
    let late = cut.host.client().post(&path, &json!({ "option_id": "allow" })).expect("answers");
    late.expect_status(409);
    send(&cut.host.client(), &cut.session, "SAY second");
    cut.ends();
    cut.end();
}

#[test]
fn claude_an_approval_of_a_large_file_is_asked_again_too() {
    // Larger than what is kept of a request: the input is taken from the transcript.
    let content = "y".repeat(20_000);
    let mut cut =
        cut(&format!("TOOL Write {} ;; SAY after", json!({ "file_path": "large.txt", "content": content })));
    let again = cut.again();
    assert_eq!(again["details"]["input"]["content"], content.as_str());
    answer(&cut.host.client(), &cut.session, id(&again), "allow").expect_status(200);
    cut.ends();
    assert_eq!(std::fs::read_to_string(cut.world.home.workspace().join("large.txt")).unwrap(), content);
    cut.end();
}

#[test]
fn claude_an_approval_that_is_asked_again_can_be_denied() {
    let mut cut = cut("RUN touch made ;; SAY after");
    let again = cut.again();
    answer(&cut.host.client(), &cut.session, id(&again), "deny").expect_status(200);
    cut.ends();
    assert!(!cut.made("made"));
    assert_eq!(cut.follower.agent_text(), "after");
    assert!(cut.follower.of_type("item.completed").iter().any(|item| item["status"] == "declined"));
    cut.end();
}

#[test]
fn claude_a_question_is_asked_again_and_answered() {
    let question = json!({"question": "Which colour?", "header": "Colour", "multiSelect": false, "options": [
        {"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}]});
    let mut cut = cut(&format!("TOOL AskUserQuestion {} ;; SAY after", json!({ "questions": [question] })));
    let again = cut.again();
    let path = format!("/v1/sessions/{}/requests/{}/answer", cut.session, id(&again));
    let answers = json!({ "answers": { "0": { "selected": ["Blue"] } } });
    cut.host.client().post(&path, &answers).expect("answers").expect_status(200);
    cut.ends();
    let results = cut.follower.of_type("item.completed").iter().map(ToString::to_string).collect::<String>();
    assert!(results.contains("Blue"), "{results}");
    cut.end();
}

#[test]
fn claude_a_request_asked_again_survives_the_host_and_another_death() {
    let mut cut = cut("RUN touch made ;; SAY after");
    cut.again();
    cut.host.kill9();
    cut.follower.until_broken(&mut cut.sse);
    cut.host = cut.world.start();
    cut.sse = cut.follower.open(&cut.host.client(), &cut.session);
    kill(agent_pid(cut.follower.of_type("process.started").last().unwrap()));
    cut.asked = cut.follower.of_type("request.opened").last().copied().cloned().unwrap();
    let again = cut.again();
    answer(&cut.host.client(), &cut.session, id(&again), "allow").expect_status(200);
    cut.ends();
    assert!(cut.made("made"));
    cut.end();
}

#[test]
fn claude_a_message_waits_for_the_request_that_is_asked_again() {
    let mut cut = cut("RUN touch made ;; SAY after");
    send(&cut.host.client(), &cut.session, "SAY second");
    let again = cut.again();
    cut.follower.until(&mut cut.sse, "the reason", |event| {
        event["type"] == "submission.queued" && event["reason"] == "request"
    });
    answer(&cut.host.client(), &cut.session, id(&again), "allow").expect_status(200);
    cut.ends();
    if !cut.follower.agent_text().ends_with("second") {
        cut.ends();
    }
    assert_eq!(cut.follower.agent_text(), "aftersecond");
    assert!(cut.made("made"));
    cut.end();
}

#[test]
fn claude_of_several_calls_the_one_that_is_answered_goes_on_and_the_others_are_said_not_to() {
    let world = World::new();
    let host = world.start();
    // Reading calls of one message are asked about together.
    let session = world.create(&host, "claude", "PRUN cat /etc/hostname || cat /etc/passwd ;; SAY after");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let started = follower.until(&mut sse, "the process", is("process.started"));
    for _ in 0..2 {
        let asked = follower.until(&mut sse, "a request", is("request.opened"));
        call_is_saved(&world, &asked);
    }
    kill(agent_pid(&started));
    follower.until(&mut sse, "the process's end", is("process.exited"));
    let closed = follower.of_type("request.closed");
    assert!(closed.iter().all(|closed| closed["asked_again"] == true), "{closed:?}");
    let calls: Vec<String> = follower
        .of_type("request.opened")
        .iter()
        .map(|asked| asked["details"]["tool_use_id"].as_str().expect("a call").to_owned())
        .collect();
    let again: Vec<Value> =
        (0..2).map(|_| follower.until(&mut sse, "a request again", is("request.opened"))).collect();
    let asked_again: Vec<&str> =
        again.iter().filter_map(|asked| asked["details"]["tool_use_id"].as_str()).collect();
    assert_eq!(asked_again, calls, "each is asked again");
    // The second is answered: the first is not run.
    answer(&host.client(), &session, id(&again[1]), "allow").expect_status(200);
    let superseded = follower.until(&mut sse, "the other's end", |event| {
        event["type"] == "request.closed" && event["state"] == "superseded"
    });
    assert_eq!(superseded["request"], again[0]["request"]);
    answer(&host.client(), &session, id(&again[0]), "allow").expect_status(409);
    let ended = follower.until(&mut sse, "the turn's end", |event| {
        event["type"] == "turn.ended" && event["outcome"] != "lost"
    });
    assert_eq!(ended["outcome"], "completed", "{ended}");
    let notices = follower.of_type("notice");
    let said = notices.iter().any(|notice| notice.to_string().contains("1 more did not run"));
    assert!(said, "{notices:?}");
    // The model knows of the one that ran, with its result, and of no other.
    let known = world.model.requests().last().expect("asked").body["messages"].to_string();
    assert!(known.contains(&calls[1]) && known.contains("root:"), "{known}");
    assert!(!known.contains("missing"), "a result is missing: {known}");
    assert!(!known.contains(&calls[0]), "it was not run: {known}");
    world.end(host);
}

#[test]
fn claude_a_command_that_was_approved_is_lost_and_may_have_run() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "RUN touch begun; sleep 1000");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let started = follower.until(&mut sse, "the process", is("process.started"));
    let opened = follower.until(&mut sse, "the approval", is("request.opened"));
    answer(&host.client(), &session, id(&opened), "allow").expect_status(200);
    let begun = world.home.workspace().join("begun");
    wait_until(DEADLINE, "the command runs", || begun.exists());
    kill(agent_pid(&started));
    follower.until(&mut sse, "the process's end", is("process.exited"));
    let marked = |item: &&Value| item["may_have_run"] == true;
    assert_eq!(follower.of_type("item.completed").into_iter().filter(marked).count(), 1);
    assert_eq!(follower.of_type("request.opened").len(), 1, "it is not asked again");
    world.end(host);
}
