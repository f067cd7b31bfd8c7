//! What agents are started with: cases 150 to 153, 161, 162.

use crate::command_line::run;
use crate::played::{ALL_KINDS, Played, register, register_command};
use crate::support::{World, agent_pid, is, kill, mainstay};
use mainstay_testkit::mainstay::HostProcess;
use serde_json::json;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// 150: the host was started by an agent's own command, with that agent's marks and a secret in its environment.
#[test]
fn nothing_of_the_hosts_environment_reaches_an_agent() {
    for kind in ALL_KINDS {
        let world = World::new();
        register(&world, "played", kind, "on prompt\n  run env > $root/env\n  say done\n");
        let marks = [
            ("CLAUDECODE", "1"),
            ("CLAUDE_CODE_SESSION_ID", "outer"),
            ("CODEX_THREAD_ID", "outer"),
            ("CANARY_SECRET", "of-the-machine"),
            ("MAINSTAY_KEEPER_TOKEN", "p-outer"),
        ];
        let host = HostProcess::start(&world.home, mainstay(), &marks);
        let played = Played { world, host };
        let mut session = played.session("go");
        session.ended("completed");
        let env = std::fs::read_to_string(played.root("env")).unwrap();
        for (name, value) in marks {
            assert!(!env.lines().any(|line| line == format!("{name}={value}")), "{kind}: {name} in {env}");
        }
        assert!(env.contains("SCRIPT="), "{kind}: {env}");
        played.end();
    }
}

fn executable(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// 151: the program is there and its interpreter is not; the session says which of the two.
#[test]
fn a_missing_interpreter_is_not_called_a_missing_program() {
    for (first, says) in [
        ("#!/usr/bin/env no-such-interpreter", "no-such-interpreter"),
        ("#!/nowhere/interpreter", "/nowhere/interpreter"),
    ] {
        let world = World::new();
        let program = world.home.root().join("agent-program");
        executable(&program, &format!("{first}\nexit 0\n"));
        register_command(&world, "played", "acp", "", &[&program.display().to_string()]);
        let host = world.start();
        let played = Played { world, host };
        let session = played.session("hello");
        let shown = played.until_shown(&session, "the reason", |shown| shown["status"] == "recovering");
        let reason = shown["reason"].as_str().unwrap();
        assert!(reason.contains(says), "{first}: {reason}");
        assert_eq!(shown["queue_length"], 1, "{shown}");
        played.end();
    }
}

/// 152: the working folder was deleted. That is said, with the folder; when it is there again the message is given.
#[test]
fn a_deleted_working_folder_is_named_and_the_message_waits() {
    for kind in ALL_KINDS {
        let played = Played::new(kind, "");
        let folder = played.world.home.workspace().join("tree");
        std::fs::create_dir(&folder).unwrap();
        let body = json!({ "agent": "played", "cwd": folder, "id": "in-a-tree" });
        played.client().post("/v1/sessions", &body).unwrap().expect_status(201);
        std::fs::remove_dir(&folder).unwrap();
        let follower = crate::support::Follower::default();
        let sse = follower.open(&played.client(), "in-a-tree");
        let mut session = crate::played::Followed { id: "in-a-tree".to_owned(), follower, sse };
        played.send(&session, "hello");
        let shown = played.until_shown(&session, "the reason", |shown| shown["status"] == "recovering");
        let reason = shown["reason"].as_str().unwrap();
        assert!(reason.contains(&folder.display().to_string()), "{kind}: {reason}");
        assert_eq!(shown["queue_length"], 1, "{kind}: {shown}");
        std::fs::create_dir(&folder).unwrap();
        played.post(&session, "start", &json!({}));
        session.ended("completed");
        assert_eq!(session.text(), "echo: hello", "{kind}");
        assert_eq!(played.world.prompts_received("hello"), 1, "{kind}");
        played.end();
    }
}

/// 153: the program was replaced by another version, and the old path is gone.
#[test]
fn a_replaced_program_is_found_anew_and_running_ones_are_left_alone() {
    let world = World::new();
    let root = world.home.root().to_path_buf();
    let program = mainstay_testkit::agents::sibling_binary("scripted-agent");
    for version in ["v1", "v2"] {
        std::fs::create_dir(root.join(version)).unwrap();
        executable(
            &root.join(version).join("agent"),
            &format!("#!/bin/sh\necho {version} >> {}/started\nexec {}\n", root.display(), program.display()),
        );
    }
    let link = root.join("agent");
    symlink(root.join("v1/agent"), &link).unwrap();
    register_command(&world, "played", "acp", "", &[&link.display().to_string()]);
    let host = world.start();
    let played = Played { world, host };
    let mut session = played.session("one");
    session.ended("completed");
    std::fs::remove_file(&link).unwrap();
    symlink(root.join("v2/agent"), &link).unwrap();
    std::fs::remove_dir_all(root.join("v1")).unwrap();
    played.send(&session, "two");
    session.ended("completed");
    assert_eq!(session.all("process.started").len(), 1, "a running agent was ended");
    kill(agent_pid(session.all("process.started")[0]));
    session.until("the lease's end", is("lease.released"));
    played.send(&session, "three");
    session.ended("completed");
    assert_eq!(std::fs::read_to_string(root.join("started")).unwrap(), "v1\nv2\n");
    assert_eq!(session.text(), "echo: oneecho: twoecho: three");
    played.end();
}

/// 162: an agent dies and has written credentials to standard error.
#[test]
fn credentials_in_an_agents_last_words_stand_nowhere() {
    let secrets = [
        format!("sk-{}", "a1B2c3D4e5F6g7H8i9J0"),
        format!("ghp_{}", "0123456789abcdefghijABCDEFGHIJ012345"),
        format!("AKIA{}", "IOSFODNN7EXAMPLE"),
        format!("xoxb-{}", "123456789012-abcdefghijklmno"),
        format!(
            "eyJ{}.eyJ{}.{}",
            "hbGciOiJIUzI1NiJ9", "zdWIiOiIxMjM0NTY3ODkwIn0", "dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
        ),
    ];
    let lines: Vec<String> = secrets
        .iter()
        .map(|secret| format!("  stderr Authorization: Bearer {secret} was refused\n"))
        .collect();
    let script = format!("on prompt\n{}  stderr the reason itself\n  exit 1\n", lines.concat());
    let world = World::new();
    register(&world, "played", "acp", &script);
    crate::host_keys::set(&world, "log", "\"trace\"");
    let host = world.start();
    let played = Played { world, host };
    let mut session = played.session("go");
    let exited = session.until("the exit", is("process.exited"));
    let tail = exited["exit"]["stderr_tail"].as_str().unwrap();
    assert!(tail.contains("the reason itself") && tail.contains("was refused"), "{tail}");
    session.until("the lease's end", is("lease.released"));
    let mut shown = vec![("the log".to_owned(), played.host.stderr())];
    for path in ["", "/events", "/items", "/export"] {
        let path = format!("/v1/sessions/{}{path}", session.id);
        shown.push((path.clone(), played.client().get(&path).unwrap().text()));
    }
    for arguments in [&["ps", "--json"][..], &["show", &session.id], &["doctor", "--json"]] {
        let done = run(&played.world, arguments);
        shown.push((arguments.join(" "), done.out + &done.err));
    }
    for file in files_below(&played.world.home.mainstay_home()) {
        shown.push((file.clone(), String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned()));
    }
    for secret in &secrets {
        let with_it: Vec<&String> =
            shown.iter().filter(|(_, text)| text.contains(secret)).map(|(what, _)| what).collect();
        assert!(with_it.is_empty(), "{secret} stands in {with_it:?}");
    }
    played.end();
}

fn files_below(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files.extend(files_below(&entry.path()));
        } else if kind.is_file() {
            files.push(entry.path().display().to_string());
        }
    }
    files
}
