//! `doctor`: every finding that is bad is provoked on a real home, and each says what to do about it.

use crate::command_line::{command, run};
use crate::support::{Follower, World, agent_pid, is, mainstay, show};
use mainstay_keeper::folder::names;
use mainstay_keeper::manifest::{ExitCause, StrayOutcome, StrayReport};
use mainstay_keeper::{ExitRecord, KeeperFolder, KeepersDir, ProcessIdentity};
use mainstay_testkit::skipped;
use mainstay_testkit::small_disk::SmallDisk;
use mainstay_testkit::wait::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

const DEADLINE: Duration = Duration::from_secs(60);

/// What `doctor --json` printed, with its exit code checked against it.
struct Diagnosis(Vec<Value>);

impl Diagnosis {
    #[track_caller]
    fn of(mut doctor: Command) -> Self {
        let output = doctor.output().expect("runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let found: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect();
        let bad = found.iter().any(|finding| finding["verdict"] == "bad");
        assert_eq!(output.status.code(), Some(i32::from(bad)), "{text}");
        for finding in &found {
            let (what, code) = (finding["what"].as_str().unwrap(), finding["code"].as_str().unwrap());
            assert!(code.starts_with(&format!("{what}.")), "{finding}");
            assert!(finding["detail"].is_string(), "{finding}");
            assert!(finding["verdict"] != "bad" || finding["mend"].is_string(), "{finding}");
            assert!(!finding["mend"].as_str().unwrap_or_default().contains('{'), "{finding}");
        }
        Self(found)
    }

    fn codes(&self, verdict: &str) -> Vec<&str> {
        let of = self.0.iter().filter(|finding| finding["verdict"] == verdict);
        of.map(|finding| finding["code"].as_str().unwrap()).collect()
    }

    #[track_caller]
    fn get(&self, code: &str) -> &Value {
        self.0.iter().find(|finding| finding["code"] == code).unwrap_or_else(|| {
            let said: Vec<String> = self.0.iter().map(Value::to_string).collect();
            panic!("no {code} in\n{}", said.join("\n"))
        })
    }

    /// This one is bad, and nothing else is.
    #[track_caller]
    fn only_bad(&self, code: &str) -> &Value {
        let found = self.get(code);
        assert_eq!(self.codes("bad"), [code], "{:#?}", self.0);
        found
    }
}

fn doctor(world: &World) -> Diagnosis {
    Diagnosis::of(command(world, &["doctor", "--json"]))
}

/// A world whose home is private, whatever the test's umask is.
fn private_world() -> World {
    let world = World::new();
    set_mode(&world.home.mainstay_home(), 0o700);
    world
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("its mode is set");
}

/// A living process that the test ends.
struct Sleeper(Child);

impl Sleeper {
    fn start(environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new("/bin/sleep");
        command.arg("600").env_clear().envs(environment.iter().copied()).stdin(Stdio::null());
        Self(command.spawn().expect("a process"))
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).expect("a pid")
    }

    fn identity(&self) -> ProcessIdentity {
        ProcessIdentity::of(self.pid()).expect("it lives")
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A keeper's folder whose keeper is gone.
fn dead_keeper(world: &World, token: &str) -> KeeperFolder {
    let dir = KeepersDir::new(world.home.mainstay_home().join("keepers"));
    let reserved = dir.reserve(token).expect("a folder");
    reserved.folder().clone()
}

fn exit_record(strays: Vec<StrayReport>) -> ExitRecord {
    ExitRecord {
        cause: ExitCause::AgentLeft,
        exit_code: Some(0),
        signal: None,
        last_input_written: 0,
        inputs_started: 0,
        inputs_recorded: 0,
        inputs_undelivered: Vec::new(),
        inputs_cut: Vec::new(),
        killed_by_ladder_step: None,
        strays,
        strays_left_off: 0,
        stderr_tail: String::new(),
        output_cut: false,
        at_ms: 0,
    }
}

fn write_json(folder: &KeeperFolder, name: &str, value: &impl serde::Serialize) {
    fs::write(folder.path.join(name), serde_json::to_vec(value).expect("JSON")).expect("written");
}

#[test]
fn a_home_that_was_never_used_and_one_in_use_are_well() {
    let world = private_world();
    let found = doctor(&world);
    assert_eq!(found.codes("bad"), Vec::<&str>::new());
    for code in ["host.none", "database.missing", "token.missing", "agent.sign_in_unknown"] {
        assert_eq!(found.get(code)["verdict"], "note");
    }
    assert!(!world.home.mainstay_home().join("mainstay.db").exists(), "it made a database");
    let of_codex = |finding: &&Value| {
        finding["code"] == "agent.ok" && finding["detail"].to_string().contains("codex: 0.171.0")
    };
    assert!(found.0.iter().any(|finding| of_codex(&finding)), "{:#?}", found.0);

    let host = world.start();
    let found = doctor(&world);
    assert_eq!(found.codes("bad"), Vec::<&str>::new());
    for code in ["host.ok", "store.ok", "database.ok", "sqlite.ok", "token.ok", "disk.ok", "limits.ok"] {
        assert_eq!(found.get(code)["verdict"], "ok");
    }
    world.end(host);
    assert_eq!(doctor(&world).codes("bad"), Vec::<&str>::new());
    // For people the same, with what to do.
    let text = run(&world, &["doctor"]).expect_code(0).out;
    assert!(text.contains("host.none") && text.contains("mend: `mainstay serve`"), "{text}");
}

#[test]
fn what_is_wrong_with_the_home_is_found() {
    let world = private_world();
    let home = world.home.mainstay_home();
    set_mode(&home, 0o755);
    let found = doctor(&world);
    let mend = found.only_bad("home.readable_by_others")["mend"].as_str().unwrap().to_owned();
    assert!(mend.starts_with("chmod 700 /"), "{mend}");
    assert!(Command::new("sh").args(["-c", &mend]).status().unwrap().success());
    assert_eq!(doctor(&world).codes("bad"), Vec::<&str>::new(), "the remedy helps");

    fs::write(home.join("token"), "secret\n").unwrap();
    set_mode(&home.join("token"), 0o644);
    doctor(&world).only_bad("token.readable_by_others");
    set_mode(&home.join("token"), 0o600);
    fs::write(home.join("token"), "").unwrap();
    doctor(&world).only_bad("token.unusable");
    fs::remove_file(home.join("token")).unwrap();

    let lock = File::create(home.join("host.lock")).unwrap();
    lock.set_modified(SystemTime::now() + Duration::from_secs(3_600)).unwrap();
    doctor(&world).only_bad("clock.behind");
    fs::remove_file(home.join("host.lock")).unwrap();

    let config = fs::read_to_string(home.join("config.toml")).unwrap();
    world.home.write_config(&format!("lingr = \"1h\"\n{config}"));
    assert!(doctor(&world).only_bad("config.not_understood")["detail"].as_str().unwrap().contains("linger"));
    world.home.write_config("linger = [");
    doctor(&world).only_bad("config.unusable");
    world.home.write_config(&config);

    let with_home = |value: Option<&Path>| {
        let mut doctor = command(&world, &["doctor", "--json"]);
        doctor.env_remove("HOME").env_remove("MAINSTAY_HOME");
        if let Some(value) = value {
            doctor.env("MAINSTAY_HOME", value).env("HOME", world.home.user_home());
        }
        Diagnosis::of(doctor)
    };
    with_home(None).only_bad("home.unknown");
    let file = world.home.root().join("a-file");
    fs::write(&file, "").unwrap();
    with_home(Some(&file)).get("home.not_a_folder");
    assert_eq!(with_home(Some(&world.home.root().join("nothing"))).get("home.missing")["verdict"], "note");

    fs::create_dir(home.join("keepers")).unwrap();
    fs::remove_dir(home.join("keepers")).unwrap();
    fs::write(home.join("keepers"), "").unwrap();
    doctor(&world).get("keepers.unreadable");
    fs::remove_file(home.join("keepers")).unwrap();

    let mut few = world.home.command(Path::new("/bin/sh"), &["-c"]);
    few.arg("ulimit -n 100; exec \"$0\" doctor --json").arg(mainstay());
    let few = Diagnosis::of(few);
    assert!(few.only_bad("limits.open_files")["mend"].as_str().unwrap().contains("ulimit -n 4096"));
    world.nothing_left();
}

#[test]
fn a_home_of_another_user_and_one_that_cannot_be_written_are_found() {
    const NOBODY: u32 = 65_534;
    let world = private_world();
    let home = world.home.mainstay_home();
    if !rustix::process::geteuid().is_root() {
        set_mode(&home, 0o500);
        doctor(&world).only_bad("home.read_only");
        set_mode(&home, 0o700);
        return skipped::say("doctor: another user's home", "it takes root to make one");
    }
    // Root may write everywhere, so another user looks.
    let as_nobody = || {
        let mut doctor = command(&world, &["doctor", "--json"]);
        doctor.uid(NOBODY).gid(NOBODY);
        doctor
    };
    set_mode(world.home.root(), 0o755);
    if !as_nobody().output().is_ok_and(|output| !output.stdout.is_empty()) {
        return skipped::say("doctor: another user's home", "the binary cannot be reached by another user");
    }
    Diagnosis::of(as_nobody()).get("home.of_another_user");
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    set_mode(&home, 0o500);
    let found = Diagnosis::of(as_nobody());
    assert_eq!(found.get("home.read_only")["verdict"], "bad");
    set_mode(&home, 0o700);
    let found = Diagnosis::of(as_nobody());
    assert_eq!(found.get("home.ok")["verdict"], "ok");
    set_mode(&home.join(".."), 0o700);
}

#[test]
fn a_disk_that_fills_up_is_found() {
    let world = private_world();
    let home = world.home.mainstay_home();
    let config = fs::read_to_string(home.join("config.toml")).unwrap();
    let Some(disk) = SmallDisk::mount(&home, 400) else {
        return skipped::say("doctor: a full disk", "this machine does not let the test mount a tmpfs");
    };
    world.home.write_config(&config);
    let found = doctor(&world);
    assert_eq!(found.codes("bad"), Vec::<&str>::new());
    assert_eq!(found.get("filesystem.volatile")["verdict"], "note", "what is in memory is not durable");
    let ballast = disk.fill(1024 * 1024);
    doctor(&world).only_bad("disk.low");

    // A host that starts now has no reserve for a full disk.
    let host = world.start();
    wait_until(DEADLINE, "the host's word", || doctor(&world).codes("bad").contains(&"store.degraded"));
    let found = doctor(&world);
    assert_eq!(found.get("disk.reserve_missing")["verdict"], "note");
    fs::remove_file(ballast).unwrap();
    wait_until(DEADLINE, "the reserve", || doctor(&world).codes("bad").is_empty());
    world.end(host);
}

#[test]
fn a_disk_without_room_for_files_is_found() {
    let world = private_world();
    let home = world.home.mainstay_home();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=600m,nr_inodes=100,mode=700", "tmpfs"])
        .arg(&home)
        .output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return skipped::say("doctor: no inodes", "this machine does not let the test mount a tmpfs");
    }
    let found = doctor(&world);
    Command::new("umount").arg("-l").arg(&home).status().expect("unmounted");
    found.only_bad("disk.no_inodes");
}

#[test]
fn what_is_wrong_with_the_database_is_found() {
    use std::os::unix::fs::FileExt;
    let world = private_world();
    let home = world.home.mainstay_home();
    let database = home.join("mainstay.db");
    let host = world.start();
    world.end(host);
    let sound = fs::read(&database).unwrap();

    fs::write(&database, "not a database at all").unwrap();
    doctor(&world).only_bad("database.not_opened");
    fs::write(&database, &sound).unwrap();
    doctor(&world).get("database.ok");

    // A later page: the first ones say what the file is.
    let pages = sound.len() / 4096;
    let file = File::options().write(true).open(&database).unwrap();
    let damaged = (1..pages).rev().find(|page| {
        file.write_all_at(&[0x55; 200], *page as u64 * 4096).unwrap();
        let is_found = doctor(&world).codes("bad") == ["database.damaged"];
        fs::write(&database, &sound).unwrap();
        is_found
    });
    assert!(damaged.is_some(), "no damage was found in {pages} pages");

    let connection = rusqlite::Connection::open(&database).unwrap();
    connection.execute("UPDATE meta SET value = 1000 WHERE name = 'min_writer'", []).unwrap();
    drop(connection);
    doctor(&world).only_bad("database.newer");
    // Such a host reads only, and says so.
    let host = world.start();
    let found = doctor(&world);
    assert_eq!(found.codes("bad"), ["database.newer", "store.degraded"]);
    world.end(host);
}

#[test]
fn agents_that_cannot_run_are_found() {
    let world = private_world();
    let home = world.home.mainstay_home();
    let config = fs::read_to_string(home.join("config.toml")).unwrap();
    let none = world.home.root().join("nothing").display().to_string();
    world.home.write_config(&format!("{config}[agents.mine]\nkind = \"acp\"\ncommand = [\"{none}\"]\n"));
    doctor(&world).only_bad("agent.missing");
    world.home.write_config(&format!("[agents.codex]\nhome = \"{none}\"\ncommand = [\"/bin/true\"]\n"));
    let found = doctor(&world);
    found.only_bad("agent.home_missing");
    // What the configuration does not name and is not there, is no fault.
    assert_eq!(found.get("agent.not_installed")["verdict"], "note");
    assert_eq!(found.get("agent.version_unknown")["verdict"], "note");

    // The same program, from a package of another version.
    let package = world.home.root().join("lib/node_modules/@openai/codex");
    fs::create_dir_all(package.join("bin")).unwrap();
    fs::write(package.join("package.json"), r#"{"name":"@openai/codex","version":"0.9.9"}"#).unwrap();
    fs::copy("/bin/true", package.join("bin/codex.js")).unwrap();
    let program = package.join("bin/codex.js").display().to_string();
    world.home.write_config(&format!("[agents.codex]\ncommand = [\"{program}\"]\n"));
    let found = doctor(&world);
    let detail = found.get("agent.other_version")["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("0.9.9") && detail.contains("0.171.0"), "{detail}");
    world.nothing_left();
}

#[test]
fn processes_that_nobody_looks_after_are_found() {
    let world = private_world();

    let folder = dead_keeper(&world, "k-orphan");
    let orphan = Sleeper::start(&[]);
    write_json(&folder, names::AGENT, &orphan.identity());
    let found = doctor(&world);
    let mend = found.only_bad("keeper.gone")["mend"].as_str().unwrap();
    assert!(mend.contains(&format!("kill {}", orphan.pid())), "{mend}");
    drop(orphan);
    assert_eq!(doctor(&world).codes("bad"), Vec::<&str>::new());

    let folder = dead_keeper(&world, "k-ended");
    let stray = Sleeper::start(&[("MAINSTAY_KEEPER_TOKEN", "k-ended")]);
    let other = Sleeper::start(&[("MAINSTAY_KEEPER_TOKEN", "k-of-another-home")]);
    write_json(&folder, names::EXIT, &exit_record(Vec::new()));
    wait_until(DEADLINE, "the stray", || doctor(&world).codes("bad") == ["process.stray"]);
    let found = doctor(&world);
    let mend = found.only_bad("process.stray")["mend"].as_str().unwrap();
    assert_eq!(mend, format!("kill {}", stray.pid()));
    drop((stray, other));

    let held = Sleeper::start(&[]);
    let report = StrayReport {
        pid: held.pid(),
        start_time: held.identity().start_time,
        comm: "sleep".to_owned(),
        outcome: StrayOutcome::Unproven,
    };
    write_json(&folder, names::EXIT, &exit_record(vec![report]));
    let found = doctor(&world);
    assert_eq!(found.only_bad("process.not_ended")["mend"], format!("kill -9 {}", held.pid()));
    drop(held);
    assert_eq!(doctor(&world).codes("bad"), Vec::<&str>::new());

    fs::write(folder.path.join(names::EXIT), "{ torn").unwrap();
    doctor(&world).only_bad("keeper.unclear");
    world.nothing_left();
}

#[test]
fn a_host_that_is_stopped_or_wedged_is_found() {
    let world = private_world();
    let mut host = world.start();
    host.signal(Signal::STOP);
    let found = doctor(&world);
    let silent = found.only_bad("host.silent");
    assert!(silent["detail"].as_str().unwrap().contains("is stopped"), "{silent}");
    assert!(silent["mend"].as_str().unwrap().contains(&format!("kill -CONT {}", host.pid())), "{silent}");
    // Where its address is gone too.
    let address = world.home.mainstay_home().join("listening.json");
    fs::remove_file(&address).unwrap();
    doctor(&world).only_bad("host.silent");
    host.signal(Signal::CONT);
    host.kill9();

    // What a host left that was killed hinders nobody.
    let pid = host.pid();
    fs::write(&address, format!(r#"{{"listening":"","socket":"{}","pid":{pid}}}"#, socket(&world).display()))
        .unwrap();
    let found = doctor(&world);
    assert_eq!(found.codes("bad"), Vec::<&str>::new());
    assert_eq!(found.get("address.stale")["verdict"], "note");
    assert_eq!(found.get("socket.stale")["verdict"], "note");

    // Something else answers in its place.
    fs::remove_file(socket(&world)).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(socket(&world)).unwrap();
    let own = std::process::id();
    fs::write(&address, format!(r#"{{"listening":"","socket":"{}","pid":{own}}}"#, socket(&world).display()))
        .unwrap();
    let answering = std::thread::spawn(move || {
        use std::io::{Read, Write};
        // Whoever only looks whether somebody listens says nothing.
        let mut stream = loop {
            let (mut stream, _) = listener.accept().expect("a client");
            if stream.read(&mut [0; 4096]).expect("a request") > 0 {
                break stream;
            }
        };
        let body = r#"{"code":"internal","detail":"it is broken"}"#;
        let head = format!("HTTP/1.1 500 Oops\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all((head + body).as_bytes()).expect("answered");
    });
    assert!(doctor(&world).only_bad("host.refuses")["detail"].as_str().unwrap().contains("it is broken"));
    answering.join().unwrap();
    world.nothing_left();
}

fn socket(world: &World) -> PathBuf {
    world.home.runtime_dir().join("mainstay.sock")
}

#[test]
fn a_session_that_waits_for_proof_is_found() {
    let world = private_world();
    let host = world.start();
    let session = world.create(&host, "scripted", "SAY part ;; HOLD");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let started = follower.until(&mut sse, "the process", is("process.started"));
    follower.until(&mut sse, "text", is("item.delta"));
    let rows = run(&world, &["ps", "--json"]).lines();
    let keeper = i32::try_from(rows[0]["keeper_identity"]["pid"].as_i64().unwrap()).unwrap();
    let keeper = Pid::from_raw(keeper).unwrap();
    kill_process(keeper, Signal::STOP).unwrap();
    wait_until(DEADLINE, "recovering", || show(&host.client(), &session)["status"] == "recovering");
    let found = doctor(&world);
    let waits = found.only_bad("session.recovering");
    assert!(waits["mend"].as_str().unwrap().contains(&format!("recover --abandon {session}")), "{waits}");
    kill_process(keeper, Signal::CONT).unwrap();
    wait_until(DEADLINE, "all is well", || doctor(&world).codes("bad").is_empty());
    assert!(crate::support::is_alive(agent_pid(&started)));
    world.end(host);
}
