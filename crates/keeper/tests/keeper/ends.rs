use std::path::PathBuf;

use mainstay_keeper::probe::{AgentTrace, Probe};
use mainstay_keeper::wire::ToKeeper;
use mainstay_keeper::{ExitCause, InputFate, Order, ProcessIdentity, SignalName, probe, sweep};

use crate::support::{
    Home, TestKeeper, end_input, is_gone, kill, living_descendants, own_pid, to_group, wait_until,
};

#[test]
fn an_agent_that_ends_with_its_input_needs_no_signal() {
    let home = Home::new();
    let mut keeper = home.birth(&home.spec("cat; echo bye"));
    keeper.send(&ToKeeper::Close { order: Order::User });
    let exit = keeper.wait_ended();
    assert_eq!(exit.cause, ExitCause::Ordered { order: Order::User });
    assert_eq!((exit.exit_code, exit.killed_by_ladder_step), (Some(0), Some(0)));
    assert_eq!(keeper.messages(), ["bye"], "its last words are taken");
}

#[test]
fn an_agent_that_ignores_everything_is_killed_at_the_end_of_the_ladder() {
    let home = Home::new();
    let mut spec = home.spec("trap '' TERM INT HUP; echo ready; while :; do sleep 1000; done");
    spec.ladder = vec![end_input(50), to_group(SignalName::Int, 50), to_group(SignalName::Term, 50)];
    let mut keeper = home.birth(&spec);
    keeper.wait_message("ready");
    let agent = keeper.agent();
    keeper.send(&ToKeeper::Close { order: Order::Host });
    let exit = keeper.wait_ended();
    assert_eq!(exit.cause, ExitCause::Ordered { order: Order::Host });
    assert_eq!((exit.signal, exit.killed_by_ladder_step), (Some(9), Some(3)));
    assert!(is_gone(&agent));
}

#[test]
fn an_order_to_kill_does_not_wait_for_the_ladder() {
    let home = Home::new();
    let mut spec = home.spec("trap '' TERM; echo ready; while :; do sleep 1000; done");
    spec.ladder = vec![to_group(SignalName::Term, 3_600_000)];
    let mut keeper = home.birth(&spec);
    keeper.wait_message("ready");
    keeper.send(&ToKeeper::Close { order: Order::Host });
    keeper.wait_status("the ladder", |status| status.ending);
    keeper.send(&ToKeeper::Close { order: Order::Kill });
    let exit = keeper.wait_ended();
    assert_eq!(exit.cause, ExitCause::Ordered { order: Order::Kill });
    assert_eq!((exit.signal, exit.killed_by_ladder_step), (Some(9), Some(1)));
}

#[test]
fn a_grandchild_that_holds_the_output_does_not_hold_the_end() {
    let home = Home::new();
    let mut keeper = home.birth(&home.spec("(trap '' HUP TERM; exec sleep 3600) & echo started; exit 0"));
    let exit = keeper.wait_ended();
    assert_eq!((exit.exit_code, &exit.cause), (Some(0), &ExitCause::AgentLeft));
    assert_eq!(keeper.messages(), ["started"]);
    assert_eq!(exit.strays.len(), 1, "{:?}", exit.strays);
    assert!(std::fs::read(format!("/proc/{}/stat", exit.strays[0].pid)).is_err(), "it is gone and reaped");
}

#[test]
fn a_stray_in_its_own_session_and_without_the_token_is_ended_and_listed() {
    let home = Home::new();
    // Only descent leads to it: the keeper adopts it as its subreaper.
    let mut spec = home.spec(
        "setsid -f env -i sh -c 'echo $$ > stray; exec sleep 3600' </dev/null >/dev/null 2>&1; exec cat",
    );
    spec.ladder = vec![end_input(10_000)];
    let mut keeper = home.birth(&spec);
    let file = home.path().join("stray");
    let read_pid = || std::fs::read_to_string(&file).unwrap_or_default().trim().parse::<i32>().ok();
    wait_until("the stray wrote its pid", || read_pid().is_some());
    let stray = read_pid().expect("a pid");
    keeper.send(&ToKeeper::Close { order: Order::Host });
    let exit = keeper.wait_ended();
    let listed: Vec<_> = exit.strays.iter().map(|stray| (stray.pid, stray.comm.as_str())).collect();
    assert_eq!(listed, [(stray, "sleep")]);
    assert_eq!(exit.strays[0].outcome, mainstay_keeper::manifest::StrayOutcome::Killed);
}

#[test]
fn what_outlived_its_parent_is_told_apart_from_what_the_agent_has_below_it() {
    let home = Home::new();
    let mut spec = home.spec(
        "sleep 3600 & read -r line; setsid -f sh -c 'echo $$ > stray; exec sleep 3600' </dev/null >/dev/null 2>&1; \
         echo done; exec cat",
    );
    spec.ladder = vec![end_input(10_000)];
    let mut keeper = home.birth(&spec);
    let left = |keeper: &TestKeeper| mainstay_keeper::left_running(&keeper.folder).expect("it can be told");
    assert_eq!(left(&keeper), [0; 0], "a child of the agent is not left running");
    keeper.input(1, 1, "go on");
    keeper.wait_message("done");
    let file = home.path().join("stray");
    let read_pid = || std::fs::read_to_string(&file).unwrap_or_default().trim().parse::<i32>().ok();
    wait_until("the stray wrote its pid", || read_pid().is_some());
    // The shell that started it may take a moment to be gone.
    wait_until("it belongs to the keeper", || left(&keeper) == [read_pid().expect("a pid")]);
    keeper.send(&ToKeeper::Close { order: Order::Host });
    keeper.wait_ended();
    assert_eq!(left(&keeper), [0; 0]);
}

#[test]
fn after_a_keeper_killed_with_9_the_agent_is_gone_and_a_sweep_ends_the_rest() {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("subreaper");
    let home = Home::new();
    // The agent itself does not notice that its input ends: only the keeper's death ends it.
    let script = "setsid -f sh -c 'echo $$ > stray; exec sleep 3600' </dev/null >/dev/null 2>&1; \
                  read -r line; echo \"echo $line\"; exec sleep 3600";
    let spec = home.spec(script);
    let mut keeper = home.birth(&spec);
    let file = home.path().join("stray");
    wait_until("the stray wrote its pid", || {
        std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n'))
    });
    keeper.input(1, 1, "one");
    keeper.wait_message("echo one");
    let (identity, agent) = (keeper.keeper().clone(), keeper.agent());
    assert!(matches!(sweep(&keeper.folder, &[]), Err(mainstay_keeper::sweep::SweepError::KeeperLives)));
    kill(&identity);
    wait_until("the keeper is gone", || is_gone(&identity));
    wait_until("its agent died with it", || is_gone(&agent));
    match probe(&keeper.folder) {
        Probe::KeeperGone { agent: AgentTrace::Gone(gone) } => assert_eq!(gone, agent),
        other => panic!("{other:?}"),
    }
    let state = keeper.folder.inbox_state().expect("readable").expect("there");
    assert_eq!((state.fate(1), state.fate(2)), (InputFate::Settled, InputFate::NeverBegun));
    assert_eq!(living_descendants(own_pid()).len(), 1, "the stray alone is left");
    let report = sweep(&keeper.folder, &[]).expect("sweep");
    assert_eq!((report.killed.len(), report.unproven.len()), (1, 0), "{report:?}");
    assert!(living_descendants(own_pid()).is_empty(), "nothing is left");
    assert_eq!(
        sweep(&keeper.folder, &[]).expect("sweep"),
        Default::default(),
        "a second sweep finds nothing"
    );
    keeper.folder.remove().expect("remove");
}

#[test]
fn a_keeper_killed_at_any_moment_of_its_birth_leaves_a_truthful_folder() {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("subreaper");
    let home = Home::new();
    let mut seen = std::collections::BTreeMap::new();
    // A busy machine gets to the later stages later.
    for round in 0..240_u64 {
        if round >= 60 && seen.len() >= 2 {
            break;
        }
        let mut spec = home.spec("");
        let trace = home.path().join(format!("ran-{}", spec.token));
        spec.argv = vec!["/usr/bin/touch".to_owned(), trace.display().to_string()];
        let reserved = mainstay_keeper::reserve(&home.keepers(), &spec.token).expect("reserve");
        let folder = reserved.folder().clone();
        let program = std::path::Path::new(crate::support::PROGRAM);
        let newborn = mainstay_keeper::start(reserved, &spec, program, &["keeper"]).expect("start");
        // The moment of the fault, not a wait: from before the first instruction to after the agent's end.
        std::thread::sleep(std::time::Duration::from_micros(round * round.max(60) * 5)); // fault
        let mut child = newborn.child();
        child.kill().expect("kill");
        child.wait().expect("wait");
        let first = probe(&folder);
        // All that it started is this process's now; it must go without being asked to.
        wait_until("nothing of it is left", || living_descendants(own_pid()).is_empty());
        let last = probe(&folder);
        let has_run = trace.exists();
        let name = match (&first, &last) {
            // The process that was to become the agent still held the lock, as a copy made by its fork.
            (Probe::Indeterminate { .. }, Probe::Unused) => {
                assert!(!has_run, "round {round}: an agent ran that nobody knows of");
                "unclear, then unused"
            }
            (Probe::Indeterminate { .. }, Probe::KeeperGone { .. }) => "unclear, then gone",
            (Probe::Unused, Probe::Unused) => {
                assert!(!has_run, "round {round}: an agent ran that nobody knows of");
                "unused"
            }
            // The identity was written in between; the agent still did not run, as the lock was free by then.
            (Probe::Unused, Probe::KeeperGone { .. }) => {
                assert!(!has_run, "round {round}: unused, and then it ran");
                "unused, then named"
            }
            (Probe::KeeperGone { .. }, Probe::KeeperGone { .. }) => "gone",
            (Probe::Ended { .. }, Probe::Ended { .. }) => "ended",
            other => panic!("round {round}: {other:?}"),
        };
        *seen.entry(name).or_insert(0) += 1;
    }
    println!("{seen:?}");
    assert!(seen.contains_key("unused") && seen.len() >= 2, "the faults hit several stages: {seen:?}");
}

#[test]
fn a_keeper_killed_while_an_input_is_half_written_leaves_it_in_doubt() {
    let home = Home::new();
    let mut keeper = home.birth(&home.spec("echo ready; while :; do sleep 1000; done"));
    keeper.wait_message("ready");
    keeper.input(1, 1, &"L".repeat(300_000));
    keeper.input(2, 1, "waits");
    while keeper.answer() != (mainstay_keeper::wire::ToHost::Recorded { n: 2 }) {}
    // Taken over is not begun yet.
    let folder = keeper.folder.clone();
    wait_until("the first is begun", || {
        folder.inbox_state().is_ok_and(|it| it.is_some_and(|it| it.started == 1))
    });
    let identity = keeper.keeper().clone();
    kill(&identity);
    wait_until("the keeper is gone", || is_gone(&identity));
    let state = keeper.folder.inbox_state().expect("readable").expect("there");
    let fates = [1, 2, 3].map(|n| state.fate(n));
    assert_eq!(fates, [InputFate::Doubtful, InputFate::NeverBegun, InputFate::NeverBegun]);
}

#[test]
fn a_keeper_killed_in_the_middle_of_a_stream_leaves_whole_records_and_at_most_a_torn_tail() {
    let home = Home::new();
    for round in 0..8 {
        let mut spec = home.spec("i=0; while :; do echo \"line $i\"; i=$((i+1)); done");
        spec.segment_size = 10_000;
        let mut keeper = home.birth(&spec);
        keeper.wait_seen("some lines", |seen| seen.len() > 1_000 * (round + 1));
        let identity = keeper.keeper().clone();
        kill(&identity);
        wait_until("the keeper is gone", || is_gone(&identity));
        // Panics on damage.
        keeper.read();
        for (number, text) in keeper.messages().iter().enumerate() {
            assert_eq!(*text, format!("line {number}"));
        }
        let end = keeper.reader.end().expect("an end");
        assert!(
            end >= keeper.position && end - keeper.position < 100_000,
            "a torn tail is one burst at most"
        );
    }
}

/// A process that nobody is above, with this mark in its environment.
fn leave_marked(mark: &(String, String)) -> i32 {
    let left = std::process::Command::new("/bin/sh")
        .args(["-c", "/bin/sleep 600 > /dev/null 2>&1 & echo $!"])
        .env_clear()
        .env(&mark.0, &mark.1)
        .output()
        .expect("a shell that leaves a process");
    let left: i32 = String::from_utf8_lossy(&left.stdout).trim().parse().expect("a pid");
    wait_until("it is what it was left as", || {
        std::fs::read(format!("/proc/{left}/comm")).is_ok_and(|comm| comm.starts_with(b"sleep"))
            && std::fs::read(format!("/proc/{left}/environ")).is_ok_and(|marks| !marks.is_empty())
    });
    left
}

#[test]
fn an_orphan_with_a_providers_variable_is_swept_unless_it_is_another_keepers() {
    let home = Home::new();
    let mut spec = home.spec("echo ready; exec cat");
    let mine = ("PROVIDER_MARK".to_owned(), home.path().display().to_string());
    spec.env.push(mine.clone());
    let mut other = home.birth(&spec);
    other.wait_message("ready");
    // As of the time when the conversation was somebody else's.
    let before = ProcessIdentity::of(leave_marked(&mine)).expect("it lives");
    let begun = |pid: i32| ProcessIdentity::of(pid).expect("it lives").start_time;
    // Start times are counted in ticks: the agent must begin in a later one.
    wait_until("a later tick", || {
        let mut probe = std::process::Command::new("/bin/sleep").arg("600").spawn().expect("a process");
        let at = begun(i32::try_from(probe.id()).expect("a pid"));
        probe.kill().expect("kill");
        probe.wait().expect("wait");
        at > before.start_time
    });
    let mut dead = home.birth(&home.spec("echo ready; exec cat"));
    dead.wait_message("ready");
    let identity = dead.keeper().clone();
    kill(&identity);
    wait_until("the keeper is gone", || is_gone(&identity));
    // As of a program of the user's own that has the same conversation: it lives, and started this one.
    let mut of_another = std::process::Command::new("/bin/sleep")
        .arg("600")
        .env_clear()
        .env(&mine.0, &mine.1)
        .spawn()
        .expect("a marked process");
    let left = leave_marked(&mine);
    let report = sweep(&dead.folder, &[mine]).expect("sweep");
    let killed: Vec<_> = report.killed.iter().map(|stray| stray.pid).collect();
    let spared = of_another.try_wait().expect("looked at").is_none();
    let before_spared = !is_gone(&before);
    of_another.kill().expect("kill");
    of_another.wait().expect("wait");
    if before_spared {
        kill(&before);
    }
    assert_eq!(killed, [left]);
    assert!(spared, "a living program started it");
    assert!(before_spared, "it was there before the agent");
    other.input(1, 1, "still alive");
    other.wait_message("still alive");
}

#[test]
fn a_deleted_folder_ends_the_agent() {
    let home = Home::new();
    let mut keeper = home.birth(&home.spec("echo ready; exec cat"));
    // By then nobody writes files there any more.
    keeper.wait_message("ready");
    let (identity, agent) = (keeper.keeper().clone(), keeper.agent());
    std::fs::remove_dir_all(&keeper.folder.path).expect("delete");
    wait_until("the agent is gone", || is_gone(&agent));
    wait_until("the keeper is gone", || is_gone(&identity));
}

#[test]
fn a_moved_folder_is_not_a_deleted_one() {
    let home = Home::new();
    let mut keeper = home.birth(&home.spec("exec cat"));
    let moved = mainstay_keeper::KeeperFolder {
        path: home.path().join("elsewhere"),
        token: keeper.folder.token.clone(),
    };
    std::fs::rename(&keeper.folder.path, &moved.path).expect("move");
    let before = keeper.keeper().clone();
    // The folder is looked at every second; a whole look must have passed.
    let deadline = std::time::Instant::now() + std::time::Duration::from_millis(2500);
    while std::time::Instant::now() < deadline {
        assert!(!is_gone(&before), "it took the move for a deletion");
        std::thread::yield_now();
    }
    keeper.input(1, 1, "still here");
    let mut keeper = TestKeeper::adopt(moved);
    assert_eq!(keeper.keeper(), &before);
    keeper.wait_message("still here");
    keeper.send(&ToKeeper::Close { order: Order::Host });
    keeper.wait_ended();
}

#[test]
fn without_a_host_the_agent_works_on_until_the_linger_is_over() {
    let home = Home::new();
    let mut spec = home.spec("echo ready; exec cat");
    spec.linger_ms = 1_500;
    let keeper = home.birth(&spec);
    let folder = keeper.folder.clone();
    let (identity, agent) = (keeper.keeper().clone(), keeper.agent());
    drop(keeper);
    wait_until("the agent is gone", || is_gone(&agent));
    wait_until("the keeper is gone", || is_gone(&identity));
    let exit = folder.exit_record().expect("readable").expect("there");
    assert_eq!(exit.cause, ExitCause::Linger);
    let since = folder.manifest().expect("readable").expect("there").since_ms;
    assert!(exit.at_ms - since >= 1_500, "not before");
}

#[test]
fn a_connected_host_holds_the_linger_off() {
    let home = Home::new();
    let mut spec = home.spec("exec cat");
    spec.linger_ms = 200;
    let mut keeper = home.birth(&spec);
    let born = std::time::Instant::now();
    let mut n = 0;
    while born.elapsed() < std::time::Duration::from_millis(2_500) {
        n += 1;
        keeper.input(n, 1, "alive?");
        assert_eq!(keeper.answer(), mainstay_keeper::wire::ToHost::Recorded { n });
        assert_eq!(keeper.answer(), mainstay_keeper::wire::ToHost::Written { n });
    }
    assert!(matches!(probe(&keeper.folder), Probe::Alive { .. }));
}

#[test]
fn with_a_delegated_cgroup_the_agent_has_its_own_and_it_is_removed() {
    let Some(parent) = writable_cgroup() else {
        println!("skipped: no control group (version 2) can be made here");
        return;
    };
    let home = Home::new();
    let mut spec = home.spec("cat /proc/self/cgroup; (trap '' TERM; sleep 3600) & exec cat");
    spec.cgroup_parent = Some(parent.clone());
    let mut keeper = home.birth(&spec);
    let group = format!("mainstay-{}", spec.token);
    keeper.wait_seen("the agent's own group", |seen| {
        seen.iter().filter_map(crate::support::Seen::text).any(|text| text.ends_with(&group))
    });
    assert!(parent.join(&group).exists());
    keeper.send(&ToKeeper::Close { order: Order::Host });
    let exit = keeper.wait_ended();
    assert_eq!(exit.strays.len(), 1, "{:?}", exit.strays);
    assert!(!parent.join(&group).exists());
    std::fs::remove_dir(&parent).expect("remove");
}

/// A group of this test's own below the first version 2 hierarchy that lets it be made.
fn writable_cgroup() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (point, kind) = (fields.nth(1)?, fields.next()?);
            (kind == "cgroup2")
                .then(|| PathBuf::from(point).join(format!("keeper-test-{}", std::process::id())))
        })
        .find(|path| std::fs::create_dir(path).is_ok())
}
