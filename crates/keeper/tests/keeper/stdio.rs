use std::process::{Child, Command, Stdio};

use mainstay_keeper::wire::{RejectedWhy, ToHost, ToKeeper};
use mainstay_keeper::{Control, InputFate, KeeperFolder, Link, RefusedWhy};

use crate::helper_processes::command;
use crate::support::{Home, PATIENCE, Seen, TestKeeper, is_gone, kill, wait_until};

const ECHO: &str = "while read -r line; do echo \"echo $line\"; done";

struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn inputs_are_written_once_in_order_and_their_answers_come_back() {
    let home = Home::new();
    let mut keeper = home.birth(&home.spec(ECHO));
    assert_eq!(keeper.status.connection, Some(1));
    keeper.input(1, 1, "one");
    assert_eq!(keeper.answer(), ToHost::Recorded { n: 1 });
    assert_eq!(keeper.answer(), ToHost::Written { n: 1 });
    keeper.wait_message("echo one");
    keeper.input(1, 1, "one again");
    assert_eq!(keeper.answer(), ToHost::Recorded { n: 1 });
    assert_eq!(keeper.answer(), ToHost::Written { n: 1 });
    keeper.input(3, 1, "too far");
    assert_eq!(keeper.answer(), ToHost::Refused { n: 3, why: RefusedWhy::Gap { expected: 2 } });
    keeper.input(2, 9, "for another connection");
    let why = RefusedWhy::WrongConnection { current: Some(1) };
    assert_eq!(keeper.answer(), ToHost::Recorded { n: 2 });
    assert_eq!(keeper.answer(), ToHost::Refused { n: 2, why: why.clone() });
    keeper.input(3, 1, "two\nlines");
    assert_eq!(keeper.answer(), ToHost::Recorded { n: 3 });
    assert_eq!(keeper.answer(), ToHost::Refused { n: 3, why: RefusedWhy::NotOneLine });
    keeper.input(4, 1, "four");
    keeper.wait_message("echo four");
    assert_eq!(
        keeper.seen,
        [
            Seen::Control(1, Control::Connected),
            Seen::Message(1, "echo one".to_owned()),
            Seen::Control(1, Control::InputRefused { n: 2, why }),
            Seen::Control(1, Control::InputRefused { n: 3, why: RefusedWhy::NotOneLine }),
            Seen::Message(1, "echo four".to_owned()),
        ]
    );
}

#[test]
fn a_host_killed_with_9_is_followed_by_one_that_misses_nothing() {
    let home = Home::new();
    let spec = home.spec(ECHO);
    let environment = format!("HOST_HOME='{}' HOST_TOKEN='{}'", home.path().display(), spec.token);
    let host = Command::new("/bin/sh")
        .args(["-c", &command("host", &environment)])
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdout(Stdio::null())
        .spawn()
        .expect("a host");
    let host = KilledOnDrop(host);
    wait_until("the host has sent its input", || home.path().join("host-is-ready").exists());
    let folder = home.keepers().folder(&spec.token);
    let keeper_before = folder.manifest().expect("readable").expect("there").keeper;
    // Its input is in the pipe, perhaps before the agent's process has become the agent.
    wait_until("the agent named itself", || folder.agent_identity().is_ok_and(|it| it.is_some()));
    let agent_before = folder.agent_identity().expect("readable").expect("there");
    drop(host);

    let mut keeper = TestKeeper::adopt(folder);
    assert_eq!((keeper.keeper(), keeper.agent()), (&keeper_before, agent_before));
    assert_eq!((keeper.status.recorded, keeper.status.started, keeper.status.written), (1, 1, 1));
    keeper.wait_message("echo before the crash");
    let position = keeper.position;
    keeper.input(1, 1, "before the crash");
    keeper.input(2, 1, "after the crash");
    keeper.wait_message("echo after the crash");
    assert_eq!(keeper.messages(), ["echo before the crash", "echo after the crash"]);
    let batch = keeper.reader.read(position, 1 << 20).expect("read");
    assert_eq!(batch.get(0).expect("a record").payload, b"echo after the crash", "positions go on");
}

#[test]
fn urgent_inputs_overtake_what_waits_at_a_message_boundary() {
    let home = Home::new();
    let spec = home.spec("while [ ! -e go ]; do sleep 0.01; done; exec cat");
    let mut keeper = home.birth(&spec);
    // More than the pipe holds: it is begun and stays unfinished.
    let large = "L".repeat(300_000);
    keeper.input(1, 1, &large);
    assert_eq!(keeper.answer(), ToHost::Recorded { n: 1 });
    keeper.input(2, 1, "ordinary two");
    keeper.input(3, 1, "ordinary three");
    let payload = b"urgent four".to_vec();
    keeper.send(&ToKeeper::Input { n: 4, connection: 1, urgent: true, payload });
    for n in 2..=4 {
        assert_eq!(keeper.answer(), ToHost::Recorded { n });
    }
    keeper.send(&ToKeeper::Urgent { id: 99, connection: 1, payload: b"stop".to_vec() });
    keeper.send(&ToKeeper::Ping);
    assert_eq!(keeper.answer(), ToHost::Pong, "control does not wait for the agent");
    let state = keeper.folder.inbox_state().expect("readable").expect("there");
    assert_eq!((state.recorded, state.started, state.written), (4, 1, 0));
    assert_eq!(state.fate(1), InputFate::Doubtful);
    assert_eq!(state.fate(2), InputFate::NeverBegun);
    std::fs::write(home.path().join("go"), "").expect("go");
    let mut written = Vec::new();
    while written.len() < 5 {
        written.push(keeper.answer());
    }
    let numbered = |n| ToHost::Written { n };
    assert_eq!(
        written,
        [numbered(1), ToHost::UrgentWritten { id: 99 }, numbered(4), numbered(2), numbered(3)]
    );
    keeper.wait_message("ordinary three");
    assert_eq!(keeper.messages(), [&large, "stop", "urgent four", "ordinary two", "ordinary three"]);
}

#[test]
fn an_older_host_is_refused_and_the_newest_connection_counts() {
    let home = Home::new();
    let mut first = home.birth(&home.spec(ECHO));
    let mut older = Link::connect(&first.folder).expect("connect");
    assert_eq!(
        older.hello("host-0", 6, PATIENCE).expect("an answer"),
        ToHost::Rejected { why: RejectedWhy::StaleFence { known: 7 } }
    );
    let mut silent = Link::connect(&first.folder).expect("connect");
    silent.send(&ToKeeper::Ping).expect("send");
    assert_eq!(silent.receive(PATIENCE).expect("an answer"), ToHost::Rejected { why: RejectedWhy::NoHello });
    first.input(1, 1, "still the first");
    assert_eq!(first.answer(), ToHost::Recorded { n: 1 });

    let mut newer = Link::connect(&first.folder).expect("connect");
    assert!(matches!(newer.hello("host-2", 8, PATIENCE).expect("an answer"), ToHost::Status(_)));
    let last = first.last_messages();
    assert_eq!(last.last(), Some(&ToHost::Rejected { why: RejectedWhy::Replaced }));
    let manifest = first.folder.manifest().expect("readable").expect("there");
    assert_eq!((manifest.host_id.as_str(), manifest.process_fence), ("host-2", 8));
    let mut back = Link::connect(&first.folder).expect("connect");
    assert_eq!(
        back.hello("host-1", 7, PATIENCE).expect("an answer"),
        ToHost::Rejected { why: RejectedWhy::StaleFence { known: 8 } }
    );
}

#[test]
fn a_process_of_the_agent_cannot_play_the_host() {
    let home = Home::new();
    let spec = home.spec("");
    let folder: KeeperFolder = home.keepers().folder(&spec.token);
    let environment = format!("KEEPER_FOLDER='{}'", folder.path.display());
    let intruder = command("intruder", &environment);
    // One directly below the agent, and one whose parents have gone.
    let script = format!("({intruder}); (({intruder}) &) ; exec cat");
    let mut spec = spec;
    spec.argv = vec!["/bin/sh".to_owned(), "-c".to_owned(), script];
    let mut keeper = home.birth(&spec);
    let is_refusal = |text: &str| text.starts_with("intruder: Ok(Rejected { why: FromAgent })");
    keeper.wait_seen("two refusals", |seen| {
        seen.iter().filter_map(Seen::text).filter(|text| is_refusal(text)).count() == 2
    });
    assert!(!keeper.messages().iter().any(|text| text.starts_with("intruder: ") && !is_refusal(text)));
}

#[test]
fn unterminated_and_oversize_output_is_kept_typed_and_bounded() {
    let home = Home::new();
    let mut spec = home.spec(
        "head -c 50000 /dev/zero | tr '\\0' x; echo; echo fits; printf 'no line feed'; echo words >&2; exit 3",
    );
    spec.record_limit = 10_000;
    let mut keeper = home.birth(&spec);
    let exit = keeper.wait_ended();
    assert_eq!((exit.exit_code, exit.signal), (Some(3), None));
    assert_eq!(exit.stderr_tail, "words\n");
    let head = "x".repeat(4096);
    assert_eq!(
        keeper.controls()[..4],
        [
            &Control::Connected,
            &Control::Oversize { length: 50_000, head },
            &Control::Fragment { length: 12, head: "no line feed".to_owned() },
            &Control::EndOfOutput,
        ]
    );
    assert_eq!(keeper.messages(), ["fits"]);
}

#[test]
fn a_large_burst_arrives_whole_and_in_order() {
    let home = Home::new();
    let mut keeper = home.birth(&home.spec("i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done"));
    keeper.wait_ended();
    let expected: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
    assert_eq!(keeper.messages(), expected);
}

#[test]
fn an_agent_that_closes_its_input_costs_only_the_inputs() {
    let home = Home::new();
    let mut keeper = home.birth(&home.spec("exec 0<&-; echo closed; while [ ! -e go ]; do sleep 0.01; done"));
    keeper.wait_message("closed");
    keeper.input(1, 1, "to nobody");
    assert_eq!(keeper.answer(), ToHost::Recorded { n: 1 });
    assert_eq!(keeper.answer(), ToHost::Refused { n: 1, why: RefusedWhy::Cut });
    keeper.input(2, 1, "to nobody either");
    assert_eq!(keeper.answer(), ToHost::Recorded { n: 2 });
    let why = RefusedWhy::WrongConnection { current: None };
    assert_eq!(keeper.answer(), ToHost::Refused { n: 2, why });
    std::fs::write(home.path().join("go"), "").expect("go");
    let exit = keeper.wait_ended();
    assert_eq!((exit.last_input_written, exit.inputs_cut), (0, vec![1]));
}

#[test]
fn an_agent_killed_with_9_is_named_by_its_signal() {
    let home = Home::new();
    let mut keeper = home.birth(&home.spec(ECHO));
    let agent = keeper.agent();
    keeper.input(1, 1, "one");
    keeper.wait_message("echo one");
    kill(&agent);
    let exit = keeper.wait_ended();
    assert_eq!((exit.exit_code, exit.signal), (None, Some(9)));
    assert_eq!(exit.cause, mainstay_keeper::ExitCause::AgentLeft);
    assert_eq!(exit.last_input_written, 1);
    assert!(is_gone(&agent));
    let last = keeper.last_messages();
    assert!(matches!(last.last(), Some(ToHost::Exited { end }) if *end == keeper.position), "{last:?}");
}
