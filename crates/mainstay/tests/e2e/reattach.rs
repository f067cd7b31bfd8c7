//! The connection to Codex is really lost: nobody reads while it streams more than the spool may hold, so the keeper
//! cuts it. The next host attaches anew to the same process; the loss is marked, and nothing hangs.

use crate::keepers;
use crate::support::{DEADLINE, Follower, World, agent_pid, is, is_alive, send};
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::model::expected_text;
use mainstay_testkit::wait::wait_for;
use serde_json::Value;
use std::path::Path;

/// What the keeper writes into the spool when it cuts the connection.
pub(crate) const CUT: &[u8] = b"spool_limit";

fn files_below(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

pub(crate) fn any_holds(folder: &Path, wanted: &[u8]) -> bool {
    let holds = |bytes: Vec<u8>| bytes.windows(wanted.len()).any(|window| window == wanted);
    files_below(folder).iter().any(|file| std::fs::read(file).is_ok_and(holds))
}

/// A session whose connection was cut in the middle of `prompt` (at its gate `g`), with no host.
fn cut(world: &World, prompt: &str) -> (String, Follower) {
    // Less than the stream, more than the page of the history that is read afterwards.
    crate::host_keys::set(world, "spool_limit", "\"2MiB\"");
    let mut host = world.start();
    let session = world.create(&host, "codex", prompt);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the first text", is("item.delta"));
    world.model.wait_at_gate("g", DEADLINE);
    let spool = keepers::folder(world, &host.client(), &session).join("spool");
    host.kill9();
    world.model.open("g");
    let was_cut = wait_for(DEADLINE, || any_holds(&spool, CUT).then_some(()));
    assert!(was_cut.is_some(), "the keeper did not cut the connection");
    (session, follower)
}

/// What holds whenever a connection was lost, and that the session works on.
fn settled(world: &World, host: HostProcess, session: &str, mut follower: Follower, prompt: &str) {
    assert_eq!(
        follower.of_type("turn.ended")[0]["outcome"],
        "completed",
        "{}",
        follower.of_type("turn.ended")[0]
    );
    let marked = |event: &&Value| event["gap"] == true || event["replaces"] == true;
    assert!(follower.events.iter().any(|event| marked(&event)), "the loss is not marked");
    assert_eq!(follower.agent_text(), expected_text(prompt));
    let started = follower.of_type("process.started");
    assert_eq!(started.len(), 1, "a second process was started");
    let pid = agent_pid(started[0]);
    assert!(is_alive(pid), "the agent was ended");
    assert!(follower.of_type("process.exited").is_empty());
    let ps = crate::command_line::run(world, &["ps", "--json"]).expect_code(0).lines();
    assert_eq!(ps[0]["agent_identity"]["pid"], pid, "{ps:?}");

    send(&host.client(), session, "SAY next");
    let mut sse = follower.open(&host.client(), session);
    let ended = follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    assert!(follower.agent_text().ends_with("next"));
    assert_eq!(world.model.user_messages_seen(prompt), 1, "the model was given the prompt more than once");
    assert_eq!(world.model.requests_prompted_by(prompt), 1);
    assert_eq!(follower.of_type("turn.started").len(), 2);
    assert_eq!(follower.of_type("submission.taken").len(), 2);
    assert!(follower.of_type("submission.doubtful").is_empty());
    world.end(host);
}

#[test]
fn a_turn_that_still_runs_goes_on_over_a_new_connection() {
    const PROMPT: &str = "SAY before ;; GATE g ;; DELTAS 60000 8 ;; GATE h ;; SAY after";
    let world = World::new();
    let (session, mut follower) = cut(&world, PROMPT);
    let host = world.start();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "word of the loss", |event| {
        event["type"] == "notice" && event["message"].to_string().contains("connection")
    });
    // Read from the history before the turn goes on: what came while nobody listened stands in it.
    follower.until(&mut sse, "the text that was lost", |event| {
        event["type"] == "item.completed" && event["replaces"] == true
    });
    world.model.wait_at_gate("h", DEADLINE);
    world.model.open("h");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    settled(&world, host, &session, follower, PROMPT);
}

#[test]
fn a_turn_that_ended_meanwhile_is_read_from_the_history() {
    const PROMPT: &str = "SAY before ;; GATE g ;; DELTAS 60000 8 ;; SAY after";
    let world = World::new();
    let (session, mut follower) = cut(&world, PROMPT);
    let history = world.home.root().join("codex-home/codex/sessions");
    let ended = wait_for(DEADLINE, || any_holds(&history, b"task_complete").then_some(()));
    assert!(ended.is_some(), "Codex did not end its turn without a reader");
    let host = world.start();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    settled(&world, host, &session, follower, PROMPT);
}
