//! An agent that plays a script, on a host of its own.

use crate::support::{DEADLINE, Follower, World, send, show};
use mainstay_testkit::http::{Client, Sse};
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};
use std::path::PathBuf;

/// The protocols, as the configuration names them.
pub(crate) const ALL_KINDS: [&str; 3] = ["acp", "codex", "claude"];

/// A world with an agent `played` that plays a script.
pub(crate) struct Played {
    pub(crate) world: World,
    pub(crate) host: HostProcess,
}

/// A session of it and who follows it.
pub(crate) struct Followed {
    pub(crate) id: String,
    pub(crate) follower: Follower,
    pub(crate) sse: Sse,
}

/// Registers an agent that plays `script` in this protocol, beside those that are there. `$root` in the script is the
/// world's folder.
pub(crate) fn register(world: &World, name: &str, kind: &str, script: &str) {
    let program = mainstay_testkit::agents::sibling_binary("scripted-agent");
    register_command(world, name, kind, script, &[&program.display().to_string()]);
}

/// The same with a command of one's own; `SCRIPT` is set in its environment.
pub(crate) fn register_command(world: &World, name: &str, kind: &str, script: &str, command: &[&str]) {
    let root = world.home.root().to_path_buf();
    let path = script_path(world, name);
    std::fs::write(&path, script.replace("$root", &root.display().to_string())).expect("the script");
    let config = world.home.mainstay_home().join("config.toml");
    let before = std::fs::read_to_string(&config).expect("a configuration");
    let text = |path: PathBuf| Value::from(path.display().to_string());
    let table = format!(
        "{before}\n[agents.{name}]\nkind = \"{kind}\"\ncommand = {}\nhome = {}\n\
         env = {{ SCRIPT = {}, SCRIPTED_STATE = {}, SCRIPTED_LOG = {}, PATH = \"{}\" }}\n",
        json!(command),
        text(root.join(format!("{name}-home"))),
        text(path),
        text(root.join(format!("{name}-state"))),
        text(root.join("prompts.jsonl")),
        mainstay_testkit::CLEAN_PATH,
    );
    std::fs::create_dir_all(root.join(format!("{name}-home"))).expect("a home");
    // ACP agents have no account home.
    let table = if kind == "acp" {
        table.lines().filter(|line| !line.contains(&format!("{name}-home"))).collect::<Vec<_>>().join("\n")
    } else {
        table
    };
    world.home.write_config(&table);
}

/// Another script for processes that start from now on.
pub(crate) fn rewrite(world: &World, name: &str, script: &str) {
    let root = world.home.root().display().to_string();
    std::fs::write(script_path(world, name), script.replace("$root", &root)).expect("the script");
}

fn script_path(world: &World, name: &str) -> PathBuf {
    world.home.root().join(format!("{name}.script"))
}

impl Played {
    pub(crate) fn new(kind: &str, script: &str) -> Self {
        let world = World::new();
        register(&world, "played", kind, script);
        let host = world.start();
        Self { world, host }
    }

    pub(crate) fn client(&self) -> Client {
        self.host.client()
    }

    /// A session that is given a message.
    pub(crate) fn session(&self, prompt: &str) -> Followed {
        self.session_of("played", prompt)
    }

    pub(crate) fn session_of(&self, agent: &str, prompt: &str) -> Followed {
        let id = self.world.create(&self.host, agent, prompt);
        let follower = Follower::default();
        let sse = follower.open(&self.client(), &id);
        Followed { id, follower, sse }
    }

    pub(crate) fn send(&self, session: &Followed, content: &str) {
        send(&self.client(), &session.id, content);
    }

    /// A call that is accepted.
    pub(crate) fn post(&self, session: &Followed, what: &str, body: &Value) -> Value {
        let path = format!("/v1/sessions/{}/{what}", session.id);
        let answer = self.client().post(&path, body).expect("answers");
        assert!(answer.status < 300, "{what}: {}", answer.text());
        answer.json()
    }

    pub(crate) fn show(&self, session: &Followed) -> Value {
        show(&self.client(), &session.id)
    }

    /// Waits until the record satisfies.
    #[track_caller]
    pub(crate) fn until_shown(
        &self,
        session: &Followed,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let shown = wait_for(DEADLINE, || Some(self.show(session)).filter(|shown| wanted(shown)));
        shown.unwrap_or_else(|| panic!("{what}: {}", self.show(session)))
    }

    /// Kills the host and starts another one.
    pub(crate) fn restart(&mut self) {
        self.host.kill9();
        self.host = self.world.start();
    }

    pub(crate) fn end(self) {
        self.world.end(self.host);
    }

    pub(crate) fn root(&self, name: &str) -> PathBuf {
        self.world.home.root().join(name)
    }
}

impl Followed {
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.follower.until(&mut self.sse, what, wanted)
    }

    /// Waits for the end of a turn, which must have this outcome.
    #[track_caller]
    pub(crate) fn ended(&mut self, outcome: &str) -> Value {
        let ended = self.until("the turn's end", |event| event["type"] == "turn.ended");
        assert_eq!(ended["outcome"], outcome, "{ended}");
        ended
    }

    pub(crate) fn reopen(&mut self, played: &Played) {
        self.sse = self.follower.open(&played.client(), &self.id);
    }

    pub(crate) fn all(&self, kind: &str) -> Vec<&Value> {
        self.follower.of_type(kind)
    }

    pub(crate) fn text(&self) -> String {
        self.follower.agent_text()
    }
}
