//! With a delegated cgroup each agent runs in one of its own: what leaves its process tree, its session and its
//! environment is ended with it all the same, and nothing of the groups is left.

use crate::keepers;
use crate::support::{DEADLINE, Follower, World, agent_pid, is, is_alive, kill, show};
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::skipped;
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A cgroup as a service manager delegates one, in the machine's own hierarchy.
struct Delegated {
    unit: PathBuf,
}

impl Delegated {
    /// `Err` says why none can be had here.
    fn new() -> Result<Self, String> {
        let read = |path: &str| std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        let own = read("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).ok_or("no unified hierarchy")?;
        let mounts = read("/proc/self/mounts")?;
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ');
            let (place, kind) = (fields.nth(1)?, fields.next()?);
            (kind == "cgroup2").then_some(place)
        });
        let mount = mount.ok_or("no cgroup2 is mounted")?;
        let unit = Path::new(mount).join(own).join(format!("mainstay-e2e-{}", std::process::id()));
        std::fs::create_dir(&unit).map_err(|error| format!("{}: {error}", unit.display()))?;
        Ok(Self { unit })
    }

    /// As systemd marks what it hands over. `Err` where this kernel keeps no such mark.
    fn mark(&self) -> Result<(), String> {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&self.unit, "user.delegate", b"1", flags)
            .map_err(|error| format!("user.delegate cannot be set: {error}"))
    }

    fn leaf(&self, name: &str) -> PathBuf {
        let leaf = self.unit.join(name);
        std::fs::create_dir(&leaf).expect("a leaf");
        leaf
    }

    /// The groups that were made for agents.
    fn agents_groups(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.unit).into_iter().flatten().flatten().map(|entry| entry.path());
        entries
            .filter(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("mainstay-"))
            })
            .collect()
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        // Holds processes of this test alone, and normally none.
        drop(std::fs::write(self.unit.join("cgroup.kill"), "1"));
        let removed = wait_for(DEADLINE, || {
            for entry in std::fs::read_dir(&self.unit).into_iter().flatten().flatten() {
                drop(std::fs::remove_dir(entry.path()));
            }
            (std::fs::remove_dir(&self.unit).is_ok() || !self.unit.exists()).then_some(())
        });
        if removed.is_none() && !std::thread::panicking() {
            panic!("{} cannot be removed", self.unit.display());
        }
    }
}

fn enter(host: &HostProcess, group: &Path) {
    std::fs::write(group.join("cgroup.procs"), host.pid().to_string()).expect("the host is moved");
}

/// The place of a process in the unified hierarchy.
fn group_of(pid: i32) -> String {
    let places = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    places.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned()
}

/// A session with the process that a tool of its agent left behind: forked twice, in a session of its own, with
/// nothing in its environment.
struct Escape {
    session: String,
    token: String,
    agent: i32,
    escaped: i32,
    keeper: i32,
}

impl Escape {
    fn happen(world: &World, host: &HostProcess, name: &str) -> Self {
        let (mark, gate) = (world.home.root().join(name), world.home.root().join("never"));
        // Renamed when it is whole, so that it is never read half.
        let daemon = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 3600", mark.display());
        let tool = format!("(setsid env -i /bin/sh -c '{daemon}' </dev/null >/dev/null 2>&1 &)");
        let prompt = format!("RUN {tool} ;; SAY left ;; GATE {}", gate.display());
        let session = world.create(host, "scripted", &prompt);
        let mut follower = Follower::default();
        let mut sse = follower.open(&host.client(), &session);
        let started = follower.until(&mut sse, "the process", is("process.started"));
        let escaped = wait_for(DEADLINE, || std::fs::read_to_string(&mark).ok()?.trim().parse().ok());
        let token = show(&host.client(), &session)["process"].as_str().expect("a process").to_owned();
        let keeper = keepers::pid(world, &host.client(), &session);
        Self { session, token, agent: agent_pid(&started), escaped: escaped.expect("it ran"), keeper }
    }

    /// Nothing but its group tells whose it is.
    fn is_outside(&self) {
        let pid = rustix::process::Pid::from_raw(self.escaped).expect("a pid");
        assert_eq!(rustix::process::getsid(Some(pid)), Ok(pid), "it has a session of its own");
        let environment = std::fs::read(format!("/proc/{}/environ", self.escaped)).expect("alive");
        let marked = String::from_utf8_lossy(&environment).contains(&self.token);
        assert!(!marked, "it carries the keeper's mark");
    }
}

fn is_gone(pid: i32) {
    assert!(wait_for(DEADLINE, || (!is_alive(pid)).then_some(())).is_some(), "process {pid} lives on");
}

/// `host_group`: where the host stands in what it was given.
fn each_agent_in_its_own(world: &World, delegated: &Delegated, host_group: &Path) {
    let host = world.start();
    enter(&host, host_group);
    let client = host.client();
    let first = Escape::happen(world, &host, "first");
    let second = Escape::happen(world, &host, "second");
    for escape in [&first, &second] {
        let group = delegated.unit.join(format!("mainstay-{}", escape.token));
        assert!(group.is_dir(), "{:?}", delegated.agents_groups());
        for pid in [escape.agent, escape.escaped] {
            assert!(group_of(pid).ends_with(&format!("/mainstay-{}", escape.token)), "{}", group_of(pid));
        }
        // What ends the group must not be in it.
        for pid in [escape.keeper, i32::try_from(host.pid()).expect("a pid")] {
            assert!(host_group.ends_with(group_of(pid).trim_start_matches('/')), "{}", group_of(pid));
        }
        let manifest = std::fs::read(keepers::folder(world, &client, &escape.session).join("manifest.json"));
        let manifest: Value = serde_json::from_slice(&manifest.expect("a manifest")).expect("JSON");
        assert_eq!(manifest["cgroup"], group.display().to_string().as_str());
        escape.is_outside();
    }

    // Ended in order: the keeper ends what is in the group.
    client
        .post(&format!("/v1/sessions/{}/stop", first.session), &json!({}))
        .expect("answers")
        .expect_status(202);
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &first.session);
    let exited = follower.until(&mut sse, "its end", is("process.exited"));
    let strays = exited["exit"]["strays"].as_array().expect("strays");
    assert!(strays.iter().any(|stray| stray["pid"] == first.escaped && stray["gone"] == true), "{exited}");
    is_gone(first.escaped);
    assert!(is_alive(second.escaped), "another agent's group is another agent's");

    // The keeper is killed: the host finds by the group what nothing else leads to.
    kill(second.keeper);
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &second.session);
    let exited = follower.until(&mut sse, "its end", is("process.exited"));
    assert_eq!(exited["exit"]["cause"], "keeper_lost", "{exited}");
    let strays = exited["exit"]["strays"].as_array().expect("strays");
    assert!(strays.iter().any(|stray| stray["pid"] == second.escaped && stray["gone"] == true), "{exited}");
    is_gone(second.escaped);
    is_gone(second.agent);
    let removed = wait_for(DEADLINE, || delegated.agents_groups().is_empty().then_some(()));
    assert!(removed.is_some(), "groups are left: {:?}", delegated.agents_groups());
    world.end(host);
}

#[test]
fn a_host_in_a_leaf_of_what_is_delegated_runs_each_agent_in_a_group_beside_it() {
    const NAME: &str = "a_host_in_a_leaf_of_what_is_delegated_runs_each_agent_in_a_group_beside_it";
    let delegated = match Delegated::new() {
        Ok(delegated) => delegated,
        Err(why) => return skipped::say(NAME, &why),
    };
    if let Err(why) = delegated.mark() {
        return skipped::say(NAME, &why);
    }
    let world = World::new();
    let leaf = delegated.leaf("host");
    each_agent_in_its_own(&world, &delegated, &leaf);
}

#[test]
fn a_host_in_a_group_of_its_own_runs_each_agent_in_a_group_below_it() {
    const NAME: &str = "a_host_in_a_group_of_its_own_runs_each_agent_in_a_group_below_it";
    let delegated = match Delegated::new() {
        Ok(delegated) => delegated,
        Err(why) => return skipped::say(NAME, &why),
    };
    let world = World::new();
    each_agent_in_its_own(&world, &delegated, &delegated.unit);
}
