//! Processes and who ends them: cases 1 to 10, 140.

use crate::played::{Played, register_command};
use crate::support::{DEADLINE, World, agent_pid, is, is_alive, kill};
use mainstay_testkit::contain::live_descendants;
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// 1: agents that ignore the end of their input, and a host that is stopped in order.
#[test]
fn a_stopped_host_leaves_no_agent_and_a_record_of_each_end() {
    let script = "on prompt\n  ignore eof\n  ignore term\n  say up\n";
    let mut played = Played::new("acp", script);
    let mut sessions: Vec<_> = (0..3).map(|_| played.session("go")).collect();
    for session in &mut sessions {
        session.ended("completed");
    }
    let pids: Vec<i32> = sessions.iter().map(|of| agent_pid(of.all("process.started")[0])).collect();
    // Nothing is owed to anybody, so no word about the agents is needed.
    played.client().post("/v1/host/stop", &json!({})).unwrap().expect_status(202);
    played.host.wait(DEADLINE);
    for pid in pids {
        let gone = wait_for(DEADLINE, || (!is_alive(pid)).then_some(()));
        assert!(gone.is_some(), "an agent outlived the host that ended it");
    }
    played.world.nothing_left();
    played.host = played.world.start();
    for session in &mut sessions {
        session.reopen(&played);
        let exited = session.until("the record of its end", is("process.exited"));
        assert_eq!(exited["exit"]["cause"]["ordered"]["order"], "host", "{exited}");
        assert_eq!(exited["exit"]["signal"], 9, "{exited}");
    }
    played.end();
}

/// 3 and 140: the command is a wrapper that hands on no signal.
#[test]
fn a_wrapper_that_hands_on_no_signal_does_not_hide_the_agent() {
    let world = World::new();
    let program = mainstay_testkit::agents::sibling_binary("scripted-agent").display().to_string();
    let wrapper = format!("trap '' HUP INT TERM; {program} & wait; sleep 1000");
    // A background job of a shell reads nothing, unless it is told to.
    let wrapper = wrapper.replace(" & wait", " <&3 & wait").replace("trap", "exec 3<&0; trap");
    let script = "on start\n  ignore eof\n  ignore term\non prompt\n  run echo $pid > $root/agent.pid\n  say up\n  hang\n";
    register_command(&world, "played", "acp", script, &["sh", "-c", &wrapper]);
    let host = world.start();
    let played = Played { world, host };
    let mut session = played.session("go");
    session.until("text", is("item.delta"));
    let agent: i32 = std::fs::read_to_string(played.root("agent.pid")).unwrap().trim().parse().unwrap();
    assert_ne!(agent, agent_pid(session.all("process.started")[0]), "there is no wrapper");
    played.post(&session, "stop", &json!({}));
    session.ended("interrupted");
    session.until("the lease's end", is("lease.released"));
    assert!(!is_alive(agent), "the stop reported success and the agent lives");
    assert_eq!(played.show(&session)["status"], "idle");
    played.send(&session, "again");
    session.until("the next process", is("process.started"));
    played.end();
}

/// 4: a tool's process in a session of its own, that its parent left, is ended with the agent, or named.
#[test]
fn a_tool_that_left_its_session_is_ended_and_named() {
    for kind in crate::played::ALL_KINDS {
        let script =
            "on prompt\n  spawn sh -c 'echo $$ > $root/tool.pid; exec sleep 1000'\n  wait-for cancel\n";
        let played = Played::new(kind, script);
        let mut session = played.session("go");
        let pid = wait_for(DEADLINE, || {
            std::fs::read_to_string(played.root("tool.pid")).ok()?.trim().parse::<i32>().ok()
        });
        let pid = pid.expect("the tool runs");
        crate::support::interrupt(&played.client(), &session.id);
        session.until("the turn's end", is("turn.ended"));
        played.post(&session, "stop", &json!({}));
        session.until("the lease's end", is("lease.released"));
        let gone = wait_for(DEADLINE, || (!is_alive(pid)).then_some(()));
        assert!(gone.is_some(), "{kind}: the tool lives on");
        let told: String =
            ["strays.found", "process.exited"].map(|kind| format!("{:?}", session.all(kind))).concat();
        assert!(told.contains(&pid.to_string()), "{kind}: it was ended without a word: {told}");
        played.end();
    }
}

/// 6: a grandchild holds the agent's output open.
#[test]
fn a_grandchild_with_the_agents_output_does_not_hold_the_end() {
    for kind in ["acp", "claude"] {
        let script = "on prompt\n  say last words\n  end\n  spawn-holding sleep 300\n  exit 0\n";
        let played = Played::new(kind, script);
        let mut session = played.session("go");
        session.ended("completed");
        let exited = session.until("the exit", is("process.exited"));
        assert_eq!(exited["exit"]["exit_code"], 0, "{kind}: {exited}");
        session.until("the lease's end", is("lease.released"));
        assert_eq!(session.text(), "last words", "{kind}");
        assert_eq!(played.show(&session)["status"], "idle", "{kind}");
        played.end();
    }
}

/// 7: the record names a process that lives and is another one.
#[test]
fn a_process_that_only_has_the_number_is_not_touched() {
    let mut played = Played::new("acp", "on prompt go\n  say up\n  hang\n");
    let mut session = played.session("go");
    session.until("text", is("item.delta"));
    let folder = crate::keepers::folder(&played.world, &played.client(), &session.id);
    let keeper = crate::keepers::pid(&played.world, &played.client(), &session.id);
    played.host.kill9();
    kill(keeper);
    let agent = agent_pid(session.all("process.started")[0]);
    assert!(wait_for(DEADLINE, || (!is_alive(agent)).then_some(())).is_some(), "the agent is gone");
    let mut bystander = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
    let edit = |file: &str, place: &[&str]| {
        let path = folder.join(file);
        let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let mut at = &mut record;
        for name in place {
            at = &mut at[*name];
        }
        at["pid"] = json!(bystander.id());
        std::fs::write(&path, record.to_string()).unwrap();
    };
    edit("manifest.json", &["keeper"]);
    edit("agent.json", &[]);
    played.host = played.world.start();
    session.reopen(&played);
    session.ended("lost");
    session.until("the lease's end", is("lease.released"));
    assert!(bystander.try_wait().unwrap().is_none(), "a bystander was ended");
    played.send(&session, "next");
    session.ended("completed");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    played.end();
}

/// 9: hundreds of orphans of the agent are reaped, and its own exit code is exact.
#[test]
fn orphans_are_reaped_and_the_agents_exit_code_is_its_own() {
    let script = "on prompt\n  run i=0; while [ $i -lt 500 ]; do (true &); i=$((i+1)); done\n  say born\n  wait-for gate $root/gate\n  exit 7\n";
    let played = Played::new("acp", script);
    let mut session = played.session("go");
    session.until("text", is("item.delta"));
    let keeper = crate::keepers::pid(&played.world, &played.client(), &session.id);
    let zombies = || {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let stats = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        let of_keeper = stats.filter(|stat| {
            let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
            fields.next() == Some("Z") && fields.next() == Some(keeper.to_string().as_str())
        });
        of_keeper.count()
    };
    assert!(wait_for(DEADLINE, || (zombies() == 0).then_some(())).is_some(), "{} zombies stay", zombies());
    mainstay_testkit::agents::open_gate(&played.root("gate"));
    let exited = session.until("the exit", is("process.exited"));
    assert_eq!(exited["exit"]["exit_code"], 7, "{exited}");
    played.end();
}

/// 10: the hard end of one agent reaches no other, of the same command.
#[test]
fn the_end_of_one_agent_reaches_no_other() {
    let played = Played::new("acp", "on prompt\n  say up\n  wait-for gate $root/gate\n  stream 100 8\n");
    let mut first = played.session("go");
    let mut second = played.session("go");
    for session in [&mut first, &mut second] {
        session.until("text", is("item.delta"));
    }
    played.post(&first, "stop", &json!({ "kill": true }));
    first.until("the lease's end", is("lease.released"));
    mainstay_testkit::agents::open_gate(&played.root("gate"));
    second.ended("completed");
    assert_eq!(second.text(), format!("up{}", mainstay_testkit::stream_text::whole(100, 8)));
    let own = i32::try_from(played.host.pid()).unwrap();
    assert!(is_alive(own) && !live_descendants(own).is_empty() || is_alive(own));
    played.end();
}
