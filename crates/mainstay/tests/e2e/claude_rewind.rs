//! The real Claude Code goes back in its conversation: it is started anew at a message, and the files are put back first
//! where it keeps what they were.

use crate::support::{Follower, World, agent_pid, interrupt, is, kill, send};
use mainstay_testkit::http::Sse;
use mainstay_testkit::mainstay::HostProcess;
use serde_json::{Value, json};

struct Talk {
    world: World,
    host: HostProcess,
    session: String,
    follower: Follower,
    sse: Sse,
}

impl Talk {
    /// A session with one turn for each prompt.
    fn of(world: World, options: &Value, prompts: &[&str]) -> Self {
        let host = world.start();
        let body = json!({ "agent": "claude", "cwd": world.workspace(), "options": options });
        let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
        let session = made["id"].as_str().expect("an id").to_owned();
        let follower = Follower::default();
        let sse = follower.open(&host.client(), &session);
        let mut talk = Self { world, host, session, follower, sse };
        for prompt in prompts {
            talk.say(prompt);
        }
        talk
    }

    fn say(&mut self, prompt: &str) {
        send(&self.host.client(), &self.session, prompt);
        self.follower.until(&mut self.sse, "the turn's end", is("turn.ended"));
    }

    /// Asks to go back, and gives how that ended.
    fn back(&mut self, before: &str, files: bool) -> Value {
        let path = format!("/v1/sessions/{}/rewind", self.session);
        let body = json!({ "before": before, "files": files });
        let asked = self.host.client().post(&path, &body).expect("answers").expect_status(202).json();
        self.follower.until(&mut self.sse, "the control's end", |event| {
            event["type"] == "control.ended" && event["control"] == asked["control"]
        })
    }

    /// What the model was given last of the user's words.
    fn seen(&self) -> Vec<String> {
        self.world.model.requests().last().expect("a request").user_messages()
    }

    fn end(self) {
        self.world.end(self.host);
    }
}

#[test]
fn claude_goes_back_and_the_dropped_turns_are_not_in_its_context() {
    let mut talk = Talk::of(World::new(), &json!({}), &["SAY one", "SAY two", "SAY three"]);
    let ended = talk.back("t2", false);
    assert_eq!(ended["state"], "done", "{ended}");
    let rewound = talk.follower.until(&mut talk.sse, "the mark", is("thread.rewound"));
    assert_eq!(rewound["before"], "t2");
    talk.say("SAY four");
    assert_eq!(talk.seen(), ["SAY one", "SAY four"]);
    let threads = talk.follower.of_type("thread.linked");
    assert!(
        threads.iter().all(|link| link["thread"] == threads[0]["thread"]),
        "the conversation is the same"
    );
    // From here on the new branch is the conversation, also for the next process.
    let stop = format!("/v1/sessions/{}/stop", talk.session);
    talk.host.client().post(&stop, &json!({})).expect("answers");
    talk.follower.until(&mut talk.sse, "the process's end", is("process.exited"));
    talk.say("SAY five");
    assert_eq!(talk.seen(), ["SAY one", "SAY four", "SAY five"]);
    let ended = talk.back("t5", false);
    assert_eq!(ended["state"], "done", "{ended}");
    talk.say("SAY six");
    assert_eq!(talk.seen(), ["SAY one", "SAY four", "SAY six"]);
    talk.end();
}

#[test]
fn claude_going_back_survives_the_host_and_the_agent() {
    let mut talk = Talk::of(World::new(), &json!({}), &["SAY one", "SAY two"]);
    talk.back("t2", false);
    talk.follower.until(&mut talk.sse, "the process's end", is("process.exited"));
    talk.host.kill9();
    talk.follower.until_broken(&mut talk.sse);
    talk.host = talk.world.start();
    talk.sse = talk.follower.open(&talk.host.client(), &talk.session);
    let start = format!("/v1/sessions/{}/start", talk.session);
    talk.host.client().post(&start, &json!({})).expect("answers").expect_status(202);
    talk.follower.until(&mut talk.sse, "the conversation again", is("thread.linked"));
    kill(agent_pid(talk.follower.of_type("process.started").last().unwrap()));
    talk.follower.until(&mut talk.sse, "the process's end", is("process.exited"));
    talk.say("SAY three");
    assert_eq!(talk.seen(), ["SAY one", "SAY three"]);
    talk.end();
}

#[test]
fn claude_goes_back_behind_a_turn_that_was_stopped() {
    let mut talk = Talk::of(World::new(), &json!({ "mode": "acceptEdits" }), &["SAY one"]);
    send(&talk.host.client(), &talk.session, "RUN touch begun; sleep 1000");
    talk.follower.until(&mut talk.sse, "the command", |event| {
        event["type"] == "item.updated" && event["raw_input"]["command"].is_string()
    });
    interrupt(&talk.host.client(), &talk.session);
    talk.follower.until(&mut talk.sse, "the turn's end", is("turn.ended"));
    talk.say("SAY three");
    let ended = talk.back("t3", false);
    assert_eq!(ended["state"], "done", "{ended}");
    talk.say("SAY four");
    assert_eq!(talk.seen().last().map(String::as_str), Some("SAY four"));
    assert!(!talk.seen().contains(&"SAY three".to_owned()), "{:?}", talk.seen());
    talk.end();
}

#[test]
fn claude_does_not_go_back_behind_its_beginning() {
    let mut talk = Talk::of(World::new(), &json!({}), &["SAY one"]);
    let ended = talk.back("t1", false);
    assert_eq!(ended["state"], "refused", "{ended}");
    assert!(ended["failure"]["message"].as_str().unwrap().contains("clear"), "{ended}");
    talk.say("SAY two");
    assert_eq!(talk.seen(), ["SAY one", "SAY two"]);
    talk.end();
}

const CHECKPOINTS: &str = "CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING";

fn write(world: &World, name: &str, content: &str) -> String {
    let path = world.home.workspace().join(name);
    format!("TOOL Write {} ;; SAY written", json!({ "file_path": path, "content": content }))
}

#[test]
fn claude_puts_files_back_where_it_keeps_what_they_were() {
    let world = World::new();
    crate::host_keys::set_agent_env(&world, "claude", CHECKPOINTS, "1");
    let (one, two) = (write(&world, "a.txt", "v1\n"), write(&world, "b.txt", "new\n"));
    let mut talk = Talk::of(world, &json!({ "mode": "acceptEdits" }), &[&one, &two]);
    let (a, b) = (talk.world.home.workspace().join("a.txt"), talk.world.home.workspace().join("b.txt"));
    assert!(a.exists() && b.exists());
    let ended = talk.back("t2", true);
    assert_eq!(ended["state"], "done", "{ended}");
    assert!(a.exists() && !b.exists(), "what the dropped turn made is gone, and nothing else");
    talk.say("SAY three");
    assert!(!talk.seen().contains(&two), "{:?}", talk.seen());
    talk.end();
}

#[test]
fn claude_says_that_it_cannot_put_files_back_and_rewinds_nothing() {
    let world = World::new();
    let two = write(&world, "b.txt", "new\n");
    let mut talk = Talk::of(world, &json!({ "mode": "acceptEdits" }), &["SAY one", &two]);
    let ended = talk.back("t2", true);
    assert_eq!(ended["state"], "refused", "{ended}");
    assert!(ended["failure"]["message"].as_str().unwrap().contains(CHECKPOINTS), "{ended}");
    assert!(talk.world.home.workspace().join("b.txt").exists());
    talk.say("SAY three");
    assert_eq!(talk.seen(), ["SAY one", &two, "SAY three"]);
    talk.end();
}
