//! What all tests share: a home, keepers in it, and waiting for conditions.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mainstay_keeper::link::LinkError;
use mainstay_keeper::probe::Probe;
use mainstay_keeper::wire::{Status, ToHost, ToKeeper};
use mainstay_keeper::{
    AtLimit, Control, ExitRecord, IdentityCheck, KeeperFolder, KeepersDir, LadderAction, LadderStep,
    LaunchSpec, Link, ProcessIdentity, RecordKind, SignalName, SignalTarget, SpoolReader, Transport, birth,
    probe, sweep,
};

/// Longer than anything takes on a busy machine; reached only by a failing test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_mainstay-keeper");

pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(3)); // poll
    }
}

pub(crate) struct Home {
    folder: tempfile::TempDir,
    path: PathBuf,
    tokens: std::cell::RefCell<Vec<String>>,
}

impl Home {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("temp folder");
        let path = folder.path().to_owned();
        Self { folder, path, tokens: Default::default() }
    }

    /// A home whose path is longer than a socket address.
    pub(crate) fn with_long_path() -> Self {
        let mut home = Self::new();
        home.path = home.folder.path().join("a".repeat(120)).join("b".repeat(120));
        std::fs::create_dir_all(&home.path).expect("mkdir");
        home
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn keepers(&self) -> KeepersDir {
        KeepersDir::new(self.path.join("keepers"))
    }

    /// A spec for an agent that is a shell script. The token is the test's own and ends with it.
    pub(crate) fn spec(&self, script: &str) -> LaunchSpec {
        let token = format!("t{}-{}", std::process::id(), self.tokens.borrow().len());
        self.tokens.borrow_mut().push(token.clone());
        LaunchSpec {
            protocol_version: 1,
            token,
            home: self.path.clone(),
            host_id: "host-1".to_owned(),
            process_fence: 7,
            argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
            cwd: self.path.clone(),
            transport: Transport::Stdio,
            ladder: vec![end_input(10_000), to_group(SignalName::Term, 10_000)],
            spool_limit: 64 << 20,
            at_limit: AtLimit::Blocks,
            buffer_grace_ms: 60_000,
            segment_size: 1 << 20,
            record_limit: 1 << 20,
            linger_ms: 3_600_000,
            cgroup_parent: None,
            provider_vars: Vec::new(),
            agent_label: "test agent".to_owned(),
            versions: "test".to_owned(),
        }
    }

    pub(crate) fn birth(&self, spec: &LaunchSpec) -> TestKeeper {
        let folder = birth(&self.keepers(), spec, Path::new(PROGRAM), &["keeper"]).expect("birth");
        TestKeeper::adopt(folder)
    }
}

impl Drop for Home {
    /// Leaves no process behind, whatever the test did.
    fn drop(&mut self) {
        for token in self.tokens.borrow().iter() {
            end_by_force(&self.keepers().folder(token));
        }
    }
}

fn end_by_force(folder: &KeeperFolder) {
    if let Ok(Some(manifest)) = folder.manifest() {
        kill(&manifest.keeper);
    }
    if folder.path.exists() {
        // The lock is given back a moment after the kill.
        let deadline = Instant::now() + Duration::from_secs(5);
        while sweep(folder, &[]).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(3)); // poll
        }
    }
}

pub(crate) fn end_input(deadline_ms: u64) -> LadderStep {
    LadderStep { action: LadderAction::EndInput, deadline_ms }
}

pub(crate) fn to_group(name: SignalName, deadline_ms: u64) -> LadderStep {
    LadderStep { action: LadderAction::Signal { name, to: SignalTarget::Group }, deadline_ms }
}

/// KILL for exactly the recorded process.
pub(crate) fn kill(identity: &ProcessIdentity) {
    if identity.check() == IdentityCheck::Matched
        && let Some(pid) = rustix::process::Pid::from_raw(identity.pid)
    {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

pub(crate) fn is_gone(identity: &ProcessIdentity) -> bool {
    identity.check().proves_gone()
}

/// A record as a test looks at it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seen {
    Message(u32, String),
    Control(u32, Control),
}

impl Seen {
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Message(_, text) => Some(text),
            Self::Control(..) => None,
        }
    }
}

/// A living keeper with a host's link to it.
pub(crate) struct TestKeeper {
    pub(crate) folder: KeeperFolder,
    pub(crate) link: Link,
    pub(crate) status: Status,
    pub(crate) reader: SpoolReader,
    pub(crate) position: u64,
    pub(crate) seen: Vec<Seen>,
}

impl TestKeeper {
    pub(crate) fn adopt(folder: KeeperFolder) -> Self {
        let mut link = Link::connect(&folder).expect("connect");
        let status = match link.hello("host-1", 7, PATIENCE).expect("hello") {
            ToHost::Status(status) => *status,
            other => panic!("{other:?}"),
        };
        let reader = SpoolReader::open(folder.spool_path());
        Self { folder, link, status, reader, position: 0, seen: Vec::new() }
    }

    pub(crate) fn keeper(&self) -> &ProcessIdentity {
        &self.status.keeper
    }

    pub(crate) fn agent(&self) -> ProcessIdentity {
        self.status.agent.clone().expect("an agent")
    }

    pub(crate) fn send(&mut self, message: &ToKeeper) {
        self.link.send(message).expect("send");
    }

    pub(crate) fn input(&mut self, n: u64, connection: u32, text: &str) {
        let payload = text.as_bytes().to_vec();
        self.send(&ToKeeper::Input { n, connection, urgent: false, payload });
    }

    /// The next message but bells and statuses, which come when they come.
    pub(crate) fn answer(&mut self) -> ToHost {
        loop {
            match self.link.receive(PATIENCE).expect("an answer") {
                ToHost::Doorbell { .. } => {}
                ToHost::Status(status) => self.status = *status,
                other => return other,
            }
        }
    }

    /// Receives until a status that satisfies the condition.
    pub(crate) fn wait_status(&mut self, what: &str, mut condition: impl FnMut(&Status) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(&self.status) {
            assert!(Instant::now() < deadline, "waited in vain for {what}: {:?}", self.status);
            if let ToHost::Status(status) = self.link.receive(PATIENCE).expect("a status") {
                self.status = *status;
            }
        }
    }

    /// Reads what is in the spool now.
    pub(crate) fn read(&mut self) {
        loop {
            let batch = self.reader.read(self.position, 1 << 20).expect("read the spool");
            if batch.is_empty() {
                return;
            }
            for record in batch.records() {
                self.seen.push(match record.kind {
                    RecordKind::Message => Seen::Message(
                        record.connection,
                        String::from_utf8(record.payload.to_vec()).expect("text"),
                    ),
                    _ => Seen::Control(
                        record.connection,
                        record.control().expect("a control record").expect("readable"),
                    ),
                });
            }
            self.position = batch.next();
        }
    }

    pub(crate) fn wait_seen(&mut self, what: &str, condition: impl Fn(&[Seen]) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.read();
            if condition(&self.seen) {
                return;
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}, saw {:?}", self.seen);
            std::thread::sleep(Duration::from_millis(3)); // poll
        }
    }

    pub(crate) fn wait_message(&mut self, text: &str) {
        self.wait_seen(text, |seen| seen.iter().any(|seen| seen.text() == Some(text)));
    }

    pub(crate) fn messages(&self) -> Vec<&str> {
        self.seen.iter().filter_map(Seen::text).collect()
    }

    pub(crate) fn controls(&self) -> Vec<&Control> {
        self.seen
            .iter()
            .filter_map(|seen| match seen {
                Seen::Control(_, control) => Some(control),
                Seen::Message(..) => None,
            })
            .collect()
    }

    pub(crate) fn commit_all_read(&mut self) {
        let position = self.position;
        self.send(&ToKeeper::Committed { position });
    }

    /// Waits for the keeper's own end and answers its last word.
    pub(crate) fn wait_ended(&mut self) -> ExitRecord {
        let folder = self.folder.clone();
        wait_until("the keeper has ended", || matches!(probe(&folder), Probe::Ended { .. }));
        self.read();
        let exit = self.folder.exit_record().expect("readable").expect("there");
        let last = match self.seen.last() {
            Some(Seen::Control(_, Control::Exit { record })) => (**record).clone(),
            other => panic!("the last record is no exit: {other:?}"),
        };
        assert_eq!(last, exit, "the spool and the file say the same");
        exit
    }

    /// Receives until the keeper closes the socket; answers what it said, but bells.
    pub(crate) fn last_messages(&mut self) -> Vec<ToHost> {
        let mut messages = Vec::new();
        loop {
            match self.link.receive(PATIENCE) {
                Ok(ToHost::Doorbell { .. } | ToHost::Status(_)) => {}
                Ok(message) => messages.push(message),
                Err(LinkError::Closed) => return messages,
                Err(error) => panic!("{error:?}"),
            }
        }
    }
}

/// Live processes below `root` by `/proc`, without zombies.
pub(crate) fn living_descendants(root: i32) -> Vec<i32> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc") {
        let name = entry.expect("entry").file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let Some((_, rest)) = stat.rsplit_once(')') else { continue };
        let mut fields = rest.split_ascii_whitespace();
        let state = fields.next().unwrap_or("?").to_owned();
        let parent: i32 = fields.next().and_then(|field| field.parse().ok()).unwrap_or(0);
        parents.push((pid, parent, state));
    }
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        let parent = found[at];
        found.extend(parents.iter().filter(|(_, above, _)| *above == parent).map(|(pid, ..)| *pid));
        at += 1;
    }
    found.retain(|pid| *pid != root && parents.iter().any(|(known, _, state)| known == pid && state != "Z"));
    found
}

pub(crate) fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}
