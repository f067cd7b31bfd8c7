//! The host as a library with a real keeper and the scripted agent: one road, end to end, without the API.
#![expect(clippy::expect_used, reason = "helpers of tests")]

use mainstay_agents::AgentKind;
use mainstay_core::content::{Answer, ContentBlock, Delivery, Outcome};
use mainstay_core::session::StopScope;
use mainstay_core::{AgentName, Command, Event, HostId, RequestId, SessionOptions, Stamped, SubmissionId};
use mainstay_host::fault::FaultPlan;
use mainstay_host::{
    AgentConfig, Delivered, Host, HostConfig, NewSessionRequest, ShutdownMode, Subscription,
};
use mainstay_keeper::{AgentTrace, Probe};
use mainstay_store::{Fault, WriteError};
use mainstay_testkit::agents::{scripted_acp_binary, sibling_binary};
use mainstay_testkit::contain::Containment;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(30);

fn config(home: &Path) -> HostConfig {
    let agent = AgentConfig::new(AgentKind::Acp, vec![scripted_acp_binary().display().to_string()]);
    HostConfig {
        home: home.join("state"),
        host_id: HostId::from("test"),
        roots: vec![home.to_path_buf()],
        rest_after: Duration::from_secs(3600),
        linger: Duration::from_secs(3600),
        spool_limit: 64 << 20,
        stream_flush: Duration::from_millis(5),
        max_processes: 8,
        max_starting: 2,
        retention: mainstay_host::Retention::default(),
        limits: Default::default(),
        agents: BTreeMap::from([(AgentName::from("scripted"), agent)]),
        environment: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        keeper_program: sibling_binary("mainstay-keeper"),
        keeper_args: vec!["keeper".to_owned()],
        fault: FaultPlan::default(),
    }
}

fn request(home: &Path, prompt: &str) -> NewSessionRequest {
    NewSessionRequest {
        id: None,
        agent: AgentName::from("scripted"),
        cwd: home.display().to_string(),
        name: None,
        options: SessionOptions::default(),
        limits: Default::default(),
        additional_directories: Vec::new(),
        mcp_servers: Vec::new(),
        instructions: None,
        account_home: None,
        source: None,
        prompt: Some((SubmissionId::from(Host::fresh_id("msg").as_str()), vec![ContentBlock::text(prompt)])),
    }
}

/// Reads until an event is the wanted one; gives all that were read.
async fn until(subscription: &mut Subscription, wanted: impl Fn(&Event) -> bool) -> Vec<Stamped> {
    let mut seen = Vec::new();
    tokio::time::timeout(DEADLINE, async {
        loop {
            match subscription.pull().await.expect("readable") {
                Delivered::Events(lines) => {
                    for line in lines {
                        let stamped: Stamped = serde_json::from_slice(&line.json).expect("an event");
                        let done = wanted(&stamped.event);
                        seen.push(stamped);
                        if done {
                            return;
                        }
                    }
                }
                Delivered::CaughtUp => subscription.changed().await,
                Delivered::Reset(reset) => panic!("{reset:?}"),
            }
        }
    })
    .await
    .unwrap_or_else(|_| panic!("not seen in time; the journal so far: {seen:#?}"));
    seen
}

fn text_of(events: &[Stamped]) -> String {
    events
        .iter()
        .filter_map(|stamped| match &stamped.event {
            Event::ItemDelta { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

fn turn_ended(event: &Event) -> bool {
    matches!(event, Event::TurnEnded { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_turn_an_approval_a_detach_and_an_adoption() {
    let containment = Containment::enter();
    let home = tempfile::tempdir().expect("temp folder");
    let host = Host::start(config(home.path())).await.expect("starts");
    let (id, _) = host.create(request(home.path(), "SAY hello ;; ASK may I"), None).await.expect("created");
    let mut subscription = host.subscribe(id.as_str(), None).await.expect("there");
    let seen = until(&mut subscription, |event| matches!(event, Event::RequestOpened { .. })).await;
    let asked = seen.iter().find_map(|stamped| match &stamped.event {
        Event::RequestOpened { request, .. } => Some(request.clone()),
        _ => None,
    });
    let asked: RequestId = asked.expect("asked");
    let cursor = subscription.cursor();
    drop(subscription);
    host.shutdown(ShutdownMode::Detach).await;
    let last_use = Arc::into_inner(host);
    assert!(last_use.is_some(), "somebody still holds the host");
    drop(last_use);

    let host = Host::start(config(home.path())).await.expect("starts again");
    host.recovered().await;
    let mut subscription = host.subscribe(id.as_str(), Some(cursor)).await.expect("there");
    let answer = Command::Answer {
        request: asked,
        revision: Some(1),
        answer: Answer::Select { option_id: "allow_once".to_owned() },
        by: "test".to_owned(),
    };
    host.command(id.as_str(), answer, None).await.expect("answered");
    let seen = until(&mut subscription, turn_ended).await;
    assert!(seen.iter().any(|stamped| matches!(stamped.event, Event::ProcessAdopted { .. })), "{seen:#?}");
    assert!(text_of(&seen).contains("allowed:allow_once"), "{seen:#?}");

    let submission = SubmissionId::from("m2");
    let content = vec![ContentBlock::text("SAY again")];
    let send = Command::Send { submission, content, delivery: Delivery::Auto, resends: None };
    host.command(id.as_str(), send, None).await.expect("accepted");
    let seen = until(&mut subscription, turn_ended).await;
    assert_eq!(text_of(&seen), "again");
    host.shutdown(ShutdownMode::Kill).await;
    containment.assert_empty(DEADLINE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_gets_its_servers_credentials_also_from_the_next_host() {
    let containment = Containment::enter();
    let home = tempfile::tempdir().expect("temp folder");
    let log = home.path().join("given");
    // What the agent is given, on its way to it.
    let listening = format!("tee -a '{}' | '{}'", log.display(), scripted_acp_binary().display());
    let config = || {
        let agent =
            AgentConfig::new(AgentKind::Acp, vec!["/bin/sh".to_owned(), "-c".to_owned(), listening.clone()]);
        HostConfig { agents: BTreeMap::from([(AgentName::from("scripted"), agent)]), ..config(home.path()) }
    };
    let given = |method: &str| {
        let log = std::fs::read_to_string(&log).expect("a log");
        let opened = log.lines().find(|line| line.contains(method)).map(|line| line.contains("hidden-value"));
        opened.unwrap_or_else(|| panic!("no {method} in {log}"))
    };
    let server = serde_json::json!({
        "name": "notes", "command": "/bin/true", "args": [], "env": [{ "name": "KEY", "value": "hidden-value" }],
    });
    let host = Host::start(config()).await.expect("starts");
    let request = NewSessionRequest { mcp_servers: vec![server], ..request(home.path(), "SAY one") };
    let (id, _) = host.create(request, None).await.expect("created");
    let mut subscription = host.subscribe(id.as_str(), None).await.expect("there");
    let seen = until(&mut subscription, turn_ended).await;
    let journal = serde_json::to_string(&seen).expect("serializes");
    assert!(journal.contains("KEY") && !journal.contains("hidden-value"), "{journal}");
    assert!(given("session/new"));
    let cursor = subscription.cursor();
    drop(subscription);
    host.shutdown(ShutdownMode::Kill).await;
    drop(Arc::into_inner(host).expect("nobody else holds the host"));

    std::fs::write(&log, "").expect("emptied");
    let host = Host::start(config()).await.expect("starts again");
    host.recovered().await;
    let mut subscription = host.subscribe(id.as_str(), Some(cursor)).await.expect("there");
    let content = vec![ContentBlock::text("SAY two")];
    let submission = SubmissionId::from("m2");
    let send = Command::Send { submission, content, delivery: Delivery::Auto, resends: None };
    host.command(id.as_str(), send, None).await.expect("accepted");
    until(&mut subscription, turn_ended).await;
    assert!(given("session/load"));
    host.shutdown(ShutdownMode::Kill).await;
    containment.assert_empty(DEADLINE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_agent_ends_the_turn_and_the_next_message_takes_the_thread_up() {
    let containment = Containment::enter();
    let home = tempfile::tempdir().expect("temp folder");
    let host = Host::start(config(home.path())).await.expect("starts");
    let (id, _) = host.create(request(home.path(), "SAY part ;; DIE 3"), None).await.expect("created");
    let mut subscription = host.subscribe(id.as_str(), None).await.expect("there");
    let seen = until(&mut subscription, |event| matches!(event, Event::LeaseReleased { .. })).await;
    assert!(
        seen.iter().any(|stamped| matches!(&stamped.event, Event::TurnEnded { outcome: Outcome::Lost, .. }))
    );
    let content = vec![ContentBlock::text("SAY again")];
    let send = Command::Send {
        submission: SubmissionId::from("m2"),
        content,
        delivery: Delivery::Auto,
        resends: None,
    };
    host.command(id.as_str(), send, None).await.expect("accepted");
    let seen = until(&mut subscription, turn_ended).await;
    assert_eq!(text_of(&seen), "again", "{seen:#?}");
    let fence = seen.last().map(|stamped| stamped.fence.0);
    assert_eq!(fence, Some(2));
    host.shutdown(ShutdownMode::Kill).await;
    containment.assert_empty(DEADLINE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_leaves_though_the_store_refuses_and_is_journaled_later() {
    let containment = Containment::enter();
    let home = tempfile::tempdir().expect("temp folder");
    let host = Host::start(config(home.path())).await.expect("starts");
    let (id, _) = host.create(request(home.path(), "SAY part ;; HOLD"), None).await.expect("created");
    let mut subscription = host.subscribe(id.as_str(), None).await.expect("there");
    until(&mut subscription, |event| matches!(event, Event::ItemDelta { .. })).await;

    host.store().inject(Fault::FailCommit(WriteError::DiskFull));
    let answered =
        host.command(id.as_str(), Command::Interrupt(StopScope::Session), None).await.expect("never refused");
    assert!(!answered.recorded, "the answer must say that it is not recorded");
    let seen = until(&mut subscription, turn_ended).await;
    assert!(
        seen.iter().any(|stamped| matches!(stamped.event, Event::InterruptRequested { .. })),
        "{seen:#?}"
    );
    assert!(
        seen.iter()
            .any(|stamped| matches!(&stamped.event, Event::TurnEnded { outcome: Outcome::Interrupted, .. })),
        "{seen:#?}"
    );
    host.shutdown(ShutdownMode::Kill).await;
    containment.assert_empty(DEADLINE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_commits_and_lost_acknowledgements_lose_and_double_nothing() {
    let containment = Containment::enter();
    let home = tempfile::tempdir().expect("temp folder");
    let host = Host::start(config(home.path())).await.expect("starts");
    let (id, _) = host.create(request(home.path(), "SAY warm"), None).await.expect("created");
    let mut subscription = host.subscribe(id.as_str(), None).await.expect("there");
    until(&mut subscription, turn_ended).await;
    for round in 0..12_u32 {
        let fault = match round % 3 {
            0 => Fault::FailCommit(WriteError::DiskFull),
            1 => Fault::EndTransaction(WriteError::Io { detail: "planted".to_owned() }),
            _ => Fault::LoseAcknowledgement,
        };
        let text = format!("turn {round} of many");
        let submission = SubmissionId(format!("r{round}"));
        let send = || Command::Send {
            submission: submission.clone(),
            content: vec![ContentBlock::text(format!("SAY {text}"))],
            delivery: Delivery::Auto,
            resends: None,
        };
        if round < 6 {
            // The fault hits the command itself: the caller is told, and sends it again under the same id.
            host.store().inject(fault);
            while host.command(id.as_str(), send(), None).await.is_err() {}
        } else {
            // The fault hits what the agent says, or, where all of that is committed already, the next round's command.
            while host.command(id.as_str(), send(), None).await.is_err() {}
            host.store().inject(fault);
        }
        let seen = until(&mut subscription, turn_ended).await;
        assert_eq!(text_of(&seen), text, "round {round}: {seen:#?}");
        let taken =
            seen.iter().filter(|stamped| matches!(stamped.event, Event::SubmissionTaken { .. })).count();
        assert_eq!(taken, 1, "round {round}");
    }
    host.shutdown(ShutdownMode::Kill).await;
    containment.assert_empty(DEADLINE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_the_store_refuses_are_set_aside_and_stop_nobody_else() {
    let containment = Containment::enter();
    let home = tempfile::tempdir().expect("temp folder");
    let host = Host::start(config(home.path())).await.expect("starts");
    let (bad, _) = host.create(request(home.path(), "SAY part ;; HOLD"), None).await.expect("created");
    let (good, _) = host.create(request(home.path(), "SAY part ;; HOLD"), None).await.expect("created");
    for id in [&bad, &good] {
        let mut subscription = host.subscribe(id.as_str(), None).await.expect("there");
        until(&mut subscription, |event| matches!(event, Event::ItemDelta { .. })).await;
    }
    // The row of an item that is still to come is taken by somebody else: whatever makes that item is refused.
    let row = host.session(bad.as_str()).await.expect("there");
    let blocker = mainstay_store::ItemRow {
        session: row.key,
        ordinal: 1_000,
        id: "i3".to_owned(),
        turn: None,
        kind: "notice".to_owned(),
        state: "open".to_owned(),
        first_epoch: 1,
        first_seq: 1,
        last_epoch: 1,
        last_seq: 1,
        text_len: 0,
        body: Vec::new(),
    };
    let write = mainstay_store::LaneWrite::new(
        mainstay_store::Urgency::Command,
        vec![mainstay_store::WriteOp::UpsertItem(blocker)],
    );
    host.store().commit(write).await.expect("planted");

    let mut subscription = host.subscribe(bad.as_str(), None).await.expect("there");
    host.command(bad.as_str(), Command::Interrupt(StopScope::Session), None).await.expect("taken");
    until(&mut subscription, turn_ended).await;
    let content = vec![ContentBlock::text("TOOL x ;; SAY y")];
    let send = Command::Send {
        submission: SubmissionId::from("m2"),
        content,
        delivery: Delivery::Auto,
        resends: None,
    };
    host.command(bad.as_str(), send, None).await.expect("accepted");
    let seen =
        until(&mut subscription, |event| matches!(event, Event::SessionRecovering { failure: Some(_), .. }))
            .await;
    assert!(!seen.iter().any(|stamped| matches!(stamped.event, Event::EpochStarted { .. })));
    let kept = host.store().quarantine(row.key).expect("readable");
    assert!(!kept.rows.is_empty(), "nothing was set aside");

    let mut other = host.subscribe(good.as_str(), None).await.expect("there");
    host.command(good.as_str(), Command::Interrupt(StopScope::Session), None).await.expect("taken");
    until(&mut other, turn_ended).await;
    host.shutdown(ShutdownMode::Kill).await;
    containment.assert_empty(DEADLINE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_row_stops_one_session_and_no_other() {
    let containment = Containment::enter();
    let home = tempfile::tempdir().expect("temp folder");
    let host = Host::start(config(home.path())).await.expect("starts");
    let (bad, _) = host.create(request(home.path(), "SAY one"), None).await.expect("created");
    let (good, _) = host.create(request(home.path(), "SAY one"), None).await.expect("created");
    for id in [&bad, &good] {
        let mut subscription = host.subscribe(id.as_str(), None).await.expect("there");
        until(&mut subscription, turn_ended).await;
    }
    let row = host.session(bad.as_str()).await.expect("there");
    host.shutdown(ShutdownMode::Kill).await;
    drop(Arc::into_inner(host));
    let file = rusqlite::Connection::open(home.path().join("state/mainstay.db")).expect("opens");
    let damaged = "UPDATE events SET body = x'00ff' WHERE session = ?1 AND seq = 3";
    assert_eq!(file.execute(damaged, [row.key.0]).expect("damaged"), 1);
    drop(file);

    let host = Host::start(config(home.path())).await.expect("starts all the same");
    host.recovered().await;
    let send = |id: &'static str| Command::Send {
        submission: SubmissionId::from(id),
        content: vec![ContentBlock::text("SAY two")],
        delivery: Delivery::Auto,
        resends: None,
    };
    let refused = host.command(bad.as_str(), send("b2"), None).await.expect_err("it cannot be loaded");
    assert!(matches!(refused, mainstay_host::HostError::Unreadable { .. }), "{refused:?}");
    let mut subscription = host.subscribe(good.as_str(), None).await.expect("there");
    host.command(good.as_str(), send("g2"), None).await.expect("the other one works");
    until(&mut subscription, |event| matches!(event, Event::TurnEnded { turn, .. } if turn.as_str() == "t2"))
        .await;
    assert_eq!(host.sessions(Default::default(), None, 10).await.expect("listed").rows.len(), 2);
    host.shutdown(ShutdownMode::Kill).await;
    containment.assert_empty(DEADLINE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_that_an_unclaimed_keepers_agent_holds_is_not_taken_up_beside_it() {
    let containment = Containment::enter();
    let home = tempfile::tempdir().expect("temp folder");
    let state = home.path().join("state");
    let stop_host = async |host: Arc<Host>, mode| {
        host.shutdown(mode).await;
        drop(Arc::into_inner(host));
    };
    let host = Host::start(config(home.path())).await.expect("starts");
    let (id, _) = host.create(request(home.path(), "SAY one"), None).await.expect("created");
    let mut subscription = host.subscribe(id.as_str(), None).await.expect("there");
    until(&mut subscription, turn_ended).await;
    drop(subscription);
    stop_host(host, ShutdownMode::Kill).await;
    let backup = std::fs::read(state.join("mainstay.db")).expect("a backup");

    let send = |id: &'static str| Command::Send {
        submission: SubmissionId::from(id),
        content: vec![ContentBlock::text("SAY more")],
        delivery: Delivery::Auto,
        resends: None,
    };
    let host = Host::start(config(home.path())).await.expect("starts");
    let mut subscription = host.subscribe(id.as_str(), None).await.expect("there");
    host.command(id.as_str(), send("m2"), None).await.expect("accepted");
    let ended = |turn: &'static str| move |event: &Event| matches!(event, Event::TurnEnded { turn: of, .. } if of.as_str() == turn);
    until(&mut subscription, ended("t2")).await;
    drop(subscription);
    stop_host(host, ShutdownMode::Detach).await;

    // The database is restored from before that process; its keeper and agent live on.
    for side in ["mainstay.db-wal", "mainstay.db-shm"] {
        drop(std::fs::remove_file(state.join(side)));
    }
    std::fs::write(state.join("mainstay.db"), backup).expect("restored");
    let host = Host::start(config(home.path())).await.expect("starts");
    // The keeper's fence is above the record's: a new epoch begins first.
    host.recovered().await;
    let [unclaimed] = &host.found().unclaimed[..] else { panic!("{:?}", host.found()) };
    let manifest =
        std::fs::read(state.join("keepers").join(unclaimed).join("manifest.json")).expect("a manifest");
    let mut subscription = host.subscribe(id.as_str(), None).await.expect("there");
    host.command(id.as_str(), send("m3"), None).await.expect("accepted");
    let held = |event: &Event| {
        matches!(event, Event::SessionRecovering { failure: Some(failure), .. }
        if failure.code == mainstay_core::content::FailureCode::ActiveWriter)
    };
    until(&mut subscription, held).await;
    until(&mut subscription, |event| matches!(event, Event::LeaseReleased { .. })).await;

    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    let keeper = i32::try_from(manifest["keeper"]["pid"].as_i64().expect("a pid")).expect("a pid");
    let keeper = rustix::process::Pid::from_raw(keeper).expect("a pid");
    rustix::process::kill_process(keeper, rustix::process::Signal::KILL).expect("killed");
    let free = mainstay_testkit::wait::wait_for(DEADLINE, || {
        let folder = mainstay_keeper::KeepersDir::new(state.join("keepers")).folder(unclaimed);
        let seen = mainstay_keeper::probe(&folder);
        matches!(seen, Probe::KeeperGone { agent: AgentTrace::Gone(_) }).then_some(())
    });
    assert!(free.is_some(), "the unclaimed agent does not end");
    host.command(id.as_str(), Command::Start, None).await.expect("tried again");
    until(&mut subscription, ended("t2")).await;
    host.shutdown(ShutdownMode::Kill).await;
    containment.assert_empty(DEADLINE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_the_limit_a_start_waits_says_so_and_the_idle_process_rests_for_it() {
    let containment = Containment::enter();
    let home = tempfile::tempdir().expect("temp folder");
    let host = Host::start(HostConfig { max_processes: 1, ..config(home.path()) }).await.expect("starts");
    let (first, _) = host.create(request(home.path(), "SAY one"), None).await.expect("created");
    let mut of_first = host.subscribe(first.as_str(), None).await.expect("there");
    until(&mut of_first, turn_ended).await;
    // `rest_after` is an hour: only the second session's start makes the first one's process rest.
    let (second, _) = host.create(request(home.path(), "SAY two"), None).await.expect("created");
    let mut of_second = host.subscribe(second.as_str(), None).await.expect("there");
    let seen = until(&mut of_second, turn_ended).await;
    assert!(
        seen.iter().any(|stamped| matches!(
            stamped.event,
            Event::SubmissionQueued { reason: mainstay_core::event::QueueReason::Capacity, .. }
        )),
        "it does not say what it waits for"
    );
    assert_eq!(text_of(&seen), "two");
    until(&mut of_first, |event| matches!(event, Event::LeaseReleased { .. })).await;
    drop((of_first, of_second));
    host.shutdown(ShutdownMode::Kill).await;
    assert!(Arc::into_inner(host).is_some(), "somebody still holds the host");
    containment.assert_empty(DEADLINE);
}

fn message(id: &str, text: &str, delivery: Delivery) -> Command {
    let content = vec![ContentBlock::text(text)];
    Command::Send { submission: SubmissionId::from(id), content, delivery, resends: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_holds_though_the_disk_stays_full_for_longer() {
    let containment = Containment::enter();
    let home = tempfile::tempdir().expect("temp folder");
    let host = Host::start(config(home.path())).await.expect("starts");
    let (id, _) = host.create(request(home.path(), "SAY part ;; HOLD"), None).await.expect("created");
    let mut subscription = host.subscribe(id.as_str(), None).await.expect("there");
    until(&mut subscription, |event| matches!(event, Event::ItemDelta { .. })).await;
    host.command(id.as_str(), message("m2", "SAY two", Delivery::Queue), None).await.expect("queued");

    // The stop's own commit fails, and so do those with which it is tried to be journaled.
    for _ in 0..4 {
        host.store().inject(Fault::FailCommit(WriteError::DiskFull));
    }
    let answered =
        host.command(id.as_str(), Command::Interrupt(StopScope::Session), None).await.expect("never refused");
    assert!(!answered.recorded);
    let seen = until(&mut subscription, turn_ended).await;
    let outcome = seen.iter().find_map(|stamped| match &stamped.event {
        Event::TurnEnded { outcome, .. } => Some(*outcome),
        _ => None,
    });
    assert_eq!(outcome, Some(Outcome::Interrupted), "{seen:#?}");
    let (_, session) = host.state(id.as_str()).await.expect("readable");
    assert!(session.queue_paused, "what waited goes on though a user stopped it");
    let held: Vec<(&str, bool)> =
        session.submissions.iter().map(|open| (open.id.as_str(), open.paused)).collect();
    assert_eq!(held, [("m2", true)]);
    host.shutdown(ShutdownMode::Kill).await;
    containment.assert_empty(DEADLINE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_a_message_that_waits_holds_with_a_full_disk_too() {
    let containment = Containment::enter();
    let home = tempfile::tempdir().expect("temp folder");
    let host = Host::start(HostConfig { max_processes: 1, ..config(home.path()) }).await.expect("starts");
    let (first, _) = host.create(request(home.path(), "SAY part ;; HOLD"), None).await.expect("created");
    let mut of_first = host.subscribe(first.as_str(), None).await.expect("there");
    until(&mut of_first, |event| matches!(event, Event::ItemDelta { .. })).await;
    // It waits for room: nothing of it is with an agent.
    let (second, _) = host.create(request(home.path(), "SAY two"), None).await.expect("created");
    let mut of_second = host.subscribe(second.as_str(), None).await.expect("there");
    let waits = |event: &Event| {
        let reason = mainstay_core::event::QueueReason::Capacity;
        matches!(event, Event::SubmissionQueued { reason: why, .. } if *why == reason)
    };
    until(&mut of_second, waits).await;
    for _ in 0..3 {
        host.store().inject(Fault::FailCommit(WriteError::DiskFull));
    }
    let stop = Command::Interrupt(StopScope::Session);
    let answered = host.command(second.as_str(), stop, None).await.expect("never refused");
    assert!(!answered.recorded);
    until(&mut of_second, |event| matches!(event, Event::SubmissionCancelled { .. })).await;
    drop((of_first, of_second));
    host.shutdown(ShutdownMode::Kill).await;
    containment.assert_empty(DEADLINE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_ended_long_ago_still_says_how() {
    let containment = Containment::enter();
    let home = tempfile::tempdir().expect("temp folder");
    let host = Host::start(config(home.path())).await.expect("starts");
    // One more than the session itself remembers.
    let asks = mainstay_core::session::REMEMBERED + 1;
    let (id, _) =
        host.create(request(home.path(), &"ASK may I ;; ".repeat(asks)), None).await.expect("created");
    let mut subscription = host.subscribe(id.as_str(), None).await.expect("there");
    let select = |option: &str| Answer::Select { option_id: option.to_owned() };
    let mut first = None;
    for _ in 0..asks {
        let seen = until(&mut subscription, |event| matches!(event, Event::RequestOpened { .. })).await;
        let asked = seen.iter().find_map(|stamped| match &stamped.event {
            Event::RequestOpened { request, .. } => Some(request.clone()),
            _ => None,
        });
        let request = asked.expect("asked");
        first.get_or_insert_with(|| request.clone());
        let (answer, by) = (select("allow_once"), "a phone".to_owned());
        let answer = Command::Answer { request, revision: None, answer, by };
        host.command(id.as_str(), answer, None).await.expect("first");
    }
    until(&mut subscription, turn_ended).await;
    let (_, session) = host.state(id.as_str()).await.expect("readable");
    let request: RequestId = first.expect("at least one");
    assert!(session.closed_requests.iter().all(|closed| closed.id != request), "it is still remembered");
    let late = |request: &str| Command::Answer {
        request: RequestId::from(request),
        revision: None,
        answer: select("reject_once"),
        by: "a late one".to_owned(),
    };
    let refused = host.command(id.as_str(), late(request.as_str()), None).await.expect_err("too late");
    let mainstay_host::HostError::Refused(refusal) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal.code, mainstay_core::RefusalCode::AlreadyAnswered);
    assert_eq!(refusal.winner, Some(Box::new((select("allow_once"), "a phone".to_owned()))));
    let refused = host.command(id.as_str(), late("ses.r9999"), None).await.expect_err("never was");
    let mainstay_host::HostError::Refused(refusal) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal.code, mainstay_core::RefusalCode::RequestUnknown);
    drop(subscription);
    host.shutdown(ShutdownMode::Kill).await;
    containment.assert_empty(DEADLINE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_under_an_old_fence_is_refused_counted_and_journaled_once() {
    use mainstay_core::session::{Input, Moment, Out};
    use mainstay_store::{LaneWrite, NewEvent, SessionUpdate, Urgency, WriteOp};
    let containment = Containment::enter();
    let home = tempfile::tempdir().expect("temp folder");
    let host = Host::start(config(home.path())).await.expect("starts");
    let (id, _) = host.create(request(home.path(), "SAY part ;; HOLD"), None).await.expect("created");
    let mut subscription = host.subscribe(id.as_str(), None).await.expect("there");
    until(&mut subscription, |event| matches!(event, Event::ItemDelta { .. })).await;
    drop(subscription);

    // Another writer raises the fence behind the lane's back.
    let (row, mut session) = host.state(id.as_str()).await.expect("readable");
    let capabilities = host.capabilities(&AgentName::from("scripted")).expect("known");
    let fresh = mainstay_core::ProcessToken::from("p-other");
    let moment = Moment { now: host.now(), capabilities: &capabilities, fresh: &fresh };
    let (before, mut out) = (session.fence, Out::default());
    session.handle(Input::FenceAhead { known: before }, &moment, &mut out).expect("raised");
    let events = out.events.iter().map(|stamped| NewEvent {
        first_seq: stamped.seq,
        seq: stamped.seq,
        at: stamped.at,
        fence: stamped.fence.0,
        kind: std::borrow::Cow::Borrowed(stamped.event.kind()),
        item: None,
        body: serde_json::to_vec(stamped).expect("serializes"),
    });
    let mut update = SessionUpdate::new(row.key, host.now());
    update.fence = Some(session.fence.0);
    let ops = vec![
        WriteOp::StartEpoch { session: row.key, epoch: session.epoch },
        WriteOp::AppendEvents {
            session: row.key,
            epoch: session.epoch,
            expect_head: 0,
            events: events.collect(),
        },
        WriteOp::UpdateSession(update),
    ];
    host.store().commit(LaneWrite::new(Urgency::Command, ops)).await.expect("written");

    let name = |name: &str| Command::Update {
        name: Some(Some(name.to_owned())),
        options: None,
        archived: None,
        limits: None,
    };
    host.command(id.as_str(), name("old"), None).await.expect_err("its fence is old");
    assert_eq!(host.store().stats().fenced, 1);
    let after = mainstay_core::Cursor { epoch: session.epoch, seq: session.head };
    let mut subscription = host.subscribe(id.as_str(), Some(after)).await.expect("there");
    let seen = until(&mut subscription, |event| matches!(event, Event::LeaseRefused { .. })).await;
    assert!(
        matches!(seen.last().map(|stamped| &stamped.event), Some(Event::LeaseRefused { carried }) if *carried == before)
    );
    host.command(id.as_str(), name("new"), None).await.expect("under the new fence");
    host.command(id.as_str(), Command::Interrupt(StopScope::Session), None).await.expect("taken");
    let seen = until(&mut subscription, turn_ended).await;
    assert!(!seen.iter().any(|stamped| matches!(stamped.event, Event::LeaseRefused { .. })));
    assert_eq!(host.store().stats().fenced, 1);
    drop(subscription);
    host.shutdown(ShutdownMode::Kill).await;
    containment.assert_empty(DEADLINE);
}
