//! What `doctor` can find: one table, from which the reference is generated.

use serde_json::{Value, json};

/// How a thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Good,
    /// To know, nothing has to be done.
    Note,
    /// It has to be mended: the exit code is 1.
    Bad,
}

impl Verdict {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Note => "note",
            Self::Bad => "bad",
        }
    }
}

/// A kind of finding.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// Stable. The part before the dot says what was looked at.
    pub(super) code: &'static str,
    pub(super) verdict: Verdict,
    /// For the reference.
    pub(super) meaning: &'static str,
    /// What to do; empty: nothing. Words in braces are replaced by what was found.
    pub(super) mend: &'static str,
}

macro_rules! kinds {
    ($($name:ident = $verdict:ident $code:literal, $meaning:literal, $mend:literal;)*) => {
        $(pub(super) const $name: &Kind =
            &Kind { code: $code, verdict: Verdict::$verdict, meaning: $meaning, mend: $mend };)*
        /// Every kind, in the order of the reference.
        #[cfg(test)]
        pub(super) const KINDS: &[&Kind] = &[$($name),*];
    };
}

kinds! {
    HOME_OK = Good "home.ok", "the state folder is there and private", "";
    HOME_UNKNOWN = Bad "home.unknown", "neither MAINSTAY_HOME nor HOME names an absolute folder",
        "set MAINSTAY_HOME to an absolute path";
    HOME_MISSING = Note "home.missing", "the state folder is not there yet", "the first host makes it";
    HOME_NO_FOLDER = Bad "home.not_a_folder", "something else than a folder stands there",
        "move {home} away, or set MAINSTAY_HOME";
    HOME_OPEN = Bad "home.readable_by_others", "other users may read what agents were told", "chmod 700 {home}";
    HOME_FOREIGN = Bad "home.of_another_user", "the state folder belongs to another user",
        "run as that user, or set MAINSTAY_HOME to a folder of your own";
    HOME_READ_ONLY = Bad "home.read_only", "nothing can be written: no host can work here",
        "mount it writable or `chmod u+rwx {home}`, or set MAINSTAY_HOME";
    HOME_UNREADABLE = Bad "home.unreadable", "the state folder cannot be looked at", "";
    FS_OK = Good "filesystem.ok", "the file system keeps what was synced", "";
    FS_NETWORK = Bad "filesystem.network", "locks and shared memory do not hold over a network file system: the database can be damaged",
        "set MAINSTAY_HOME to a folder on a local disk, then `mainstay backup` and `mainstay restore` to move the data";
    FS_FUSE = Bad "filesystem.fuse", "a file system in user space rarely keeps what SQLite needs (locks, shared memory, sync)",
        "set MAINSTAY_HOME to a folder on a local disk, then `mainstay backup` and `mainstay restore` to move the data";
    FS_VOLATILE = Note "filesystem.volatile", "the file system is in memory: nothing outlives the machine's end",
        "set MAINSTAY_HOME to a folder on a disk where sessions are to last";
    FS_OVERLAY = Note "filesystem.overlay", "an overlay, as containers have: what is in it goes with the container",
        "mount a volume at {home} where sessions are to last";
    FS_UNKNOWN = Note "filesystem.unknown", "the kind of file system is not known here", "";
    DISK_OK = Good "disk.ok", "there is room", "";
    DISK_LOW = Bad "disk.low", "little room is left; on a full disk messages are refused and only stops work", "free space on the disk of {home}";
    DISK_INODES = Bad "disk.no_inodes", "almost no file can be made any more", "delete files on the disk of {home}";
    RESERVE_MISSING = Note "disk.reserve_missing", "the reserve for a full disk is not there: it was given up, or never made",
        "a host makes it when there is room for twice its size";
    ADDRESS_STALE = Note "address.stale", "a file names a host that is gone", "nothing; the next host replaces {file}";
    SOCKET_STALE = Note "socket.stale", "a socket that nobody listens at", "nothing; the next host replaces {file}";
    CLOCK_BEHIND = Bad "clock.behind", "files of the state folder were written in the future: the clock went back",
        "set the clock (`timedatectl set-ntp true`); times of events may repeat until it has caught up";
    CLOCK_STEPPED = Note "clock.stepped", "the clock was set while the host ran",
        "nothing; times of events before and after cannot be compared";
    TOKEN_OK = Good "token.ok", "the API's token is private", "";
    TOKEN_OPEN = Bad "token.readable_by_others", "whoever reads the token may do everything", "chmod 600 {file}, then replace it: `rm {file}` and start the host again";
    TOKEN_EMPTY = Bad "token.unusable", "the token file cannot be read or holds none", "rm {file}; the next host makes a new one";
    TOKEN_MISSING = Note "token.missing", "no token was made yet", "the first host makes it";
    CONFIG_OK = Good "config.ok", "every key is understood", "";
    CONFIG_WARNING = Bad "config.not_understood", "a key is unknown or may not stand where it stands", "mend the file that is named; `mainstay config show` says what is in force";
    CONFIG_UNUSABLE = Bad "config.unusable", "the configuration cannot be read: no host starts", "mend the file that is named";
    DATABASE_OK = Good "database.ok", "the database opens, and its pages are sound as far as they were looked at", "";
    DATABASE_MISSING = Note "database.missing", "there is no database yet", "the first host makes it";
    DATABASE_UNOPENED = Bad "database.not_opened", "the database cannot be opened",
        "`mainstay restore FILE` puts a backup in its place; what is there is kept";
    DATABASE_DAMAGED = Bad "database.damaged", "a page of the database is damaged",
        "`mainstay stop --host --detach`, then `mainstay restore FILE` with a backup; what is there is kept";
    DATABASE_UNFINISHED = Note "database.partly_checked", "the database is larger than what can be looked at in the time",
        "nothing; `mainstay backup FILE` reads it whole";
    DATABASE_NEWER = Bad "database.newer", "a newer version wrote the database and asks for a newer writer: this one only reads",
        "use the newer version of mainstay";
    DATABASE_REWOUND = Note "database.rewound", "transactions that were acknowledged are missing: a backup was put back by hand",
        "nothing; the next host begins new epochs and tells readers";
    SQLITE_OK = Good "sqlite.ok", "the linked SQLite is recent enough", "";
    SQLITE_OLD = Bad "sqlite.too_old", "the linked SQLite can damage a database in WAL mode", "build with the bundled SQLite";
    HOST_OK = Good "host.ok", "a host serves this home", "";
    HOST_NONE = Note "host.none", "no host runs", "`mainstay serve`, or any `mainstay run`, starts one";
    HOST_SILENT = Bad "host.silent", "a host has the home and does not answer",
        "look at {log}; `kill -CONT {pid}` if it was stopped, else `kill -9 {pid}`: agents work on, and the next host takes them over";
    HOST_REFUSES = Bad "host.refuses", "the host answers with an error", "look at {log}";
    HOST_VERSION = Note "host.other_version", "host and command line are of different versions",
        "`mainstay stop --host --detach`; the next command starts this version, and agents work on";
    STORE_OK = Good "store.ok", "the host's store takes writes", "";
    STORE_DEGRADED = Bad "store.degraded", "the host's store does not take writes, or will not on a full disk",
        "free space, or see the database's findings";
    RECOVERING = Bad "session.recovering", "of an agent process it cannot be told whether it lives: its session waits",
        "`mainstay ps`, then end the process by hand, or `mainstay recover --abandon {session}`";
    UNCLAIMED = Bad "keeper.unclaimed", "a keeper that no session claims, as after a restore",
        "`mainstay recover --keeper {token} --adopt` takes its conversation up, `--end` ends it";
    KEEPERS_OK = Good "keepers.ok", "the keepers' folders were read", "";
    KEEPERS_UNREADABLE = Bad "keepers.unreadable", "the keepers' folders cannot be read", "chmod -R u+rwX {folder}";
    KEEPER_UNCLEAR = Bad "keeper.unclear", "whether a keeper or its agent lives cannot be told",
        "see what the detail says; a host settles it as soon as it can be told";
    KEEPER_GONE = Bad "keeper.gone", "an agent runs without its keeper: nobody hears it", "start a host, which ends it; or `kill {pid}`";
    KEEPER_VERSION = Note "keeper.other_version", "a keeper of another version, from before an upgrade",
        "nothing; it ends with its agent";
    STRAY = Bad "process.stray", "a process that an agent started outlived the agent and its keeper", "kill {pid}";
    STRAY_UNPROVEN = Bad "process.not_ended", "a process of an ended agent could not be ended", "kill -9 {pid}";
    AGENTS_OK = Good "agents.ok", "the registered agents", "";
    AGENT_OK = Good "agent.ok", "the agent is installed, at the version that this program was made with", "";
    AGENT_NOT_INSTALLED = Note "agent.not_installed", "a built-in agent is not installed", "{install}";
    AGENT_MISSING = Bad "agent.missing", "a configured agent's program is not there", "{install}";
    AGENT_VERSION = Note "agent.other_version", "another version than the one whose behaviour was measured",
        "nothing while it works; what is not understood is shown as it came";
    AGENT_VERSION_UNKNOWN = Note "agent.version_unknown", "the version cannot be told without starting the agent", "";
    AGENT_HOME = Bad "agent.home_missing", "the agent's configured account home is no folder that can be used", "mkdir -m 700 {folder}, or mend agents.{agent}.home";
    AGENT_SIGN_IN = Note "agent.sign_in_unknown", "whether the agent is signed in cannot be told without starting it",
        "the first turn tells: a session that needs a sign-in says so";
    NOFILE_OK = Good "limits.ok", "enough files may be open", "";
    NOFILE_LOW = Bad "limits.open_files", "so few files may be open that connections and agents will be refused",
        "ulimit -n {wanted}, before the host is started";
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Finding {
    kind: &'static Kind,
    detail: String,
    mend: String,
}

impl Finding {
    /// `words` replace what stands in braces in the kind's `mend`.
    pub(super) fn new(kind: &'static Kind, detail: impl Into<String>, words: &[(&str, &str)]) -> Self {
        let mut mend = kind.mend.to_owned();
        for (word, value) in words {
            mend = mend.replace(&format!("{{{word}}}"), value);
        }
        Self { kind, detail: detail.into(), mend }
    }

    /// A finding about a process of which no number is known: nothing that names one is advised (`kill 0` would end
    /// whoever types it).
    pub(super) fn without_mend(self) -> Self {
        Self { mend: String::new(), ..self }
    }

    pub(super) fn is_bad(&self) -> bool {
        self.kind.verdict == Verdict::Bad
    }

    /// One object of `doctor --json`.
    pub(crate) fn json(&self) -> Value {
        let what = self.kind.code.split('.').next().unwrap_or_default();
        let mut object = json!({
            "code": self.kind.code, "what": what, "verdict": self.kind.verdict.word(), "detail": self.detail,
        });
        if !self.mend.is_empty() {
            object["mend"] = self.mend.clone().into();
        }
        object
    }

    /// For people: a line, and a second one where there is something to do.
    pub(super) fn text(&self) -> String {
        let line = format!("{:<5} {:<24} {}", self.kind.verdict.word(), self.kind.code, self.detail);
        if self.mend.is_empty() || self.kind.verdict == Verdict::Good {
            return line;
        }
        format!("{line}\n      {:<24} mend: {}", "", self.mend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    fn reference() -> String {
        let mut text = String::from(
            "# What `mainstay doctor` finds\n\n\
             Generated from the program; do not edit. `doctor` looks at files, processes and a running host; it starts nothing and \
             changes nothing. Exit code 1 where a finding is `bad`, else 0. With `--json` each finding is one line:\n\n\
             ```json\n{\"code\": \"home.readable_by_others\", \"what\": \"home\", \"verdict\": \"bad\", \"detail\": \"…\", \"mend\": \"chmod 700 …\"}\n```\n\n\
             `code` is stable; `what` is its part before the dot; `verdict` is `ok`, `note` (to know) or `bad` (to mend); `mend` is \
             absent where there is nothing to do.\n\n| code | verdict | means | mend |\n|---|---|---|---|\n",
        );
        for kind in KINDS {
            let (code, verdict) = (kind.code, kind.verdict.word());
            let _written = writeln!(text, "| `{code}` | {verdict} | {} | {} |", kind.meaning, kind.mend);
        }
        text
    }

    #[test]
    fn golden_doctor_reference() {
        crate::golden::compare_document("doctor.md", &reference());
    }

    #[test]
    fn codes_are_unique_and_bad_findings_say_what_to_do() {
        for (place, kind) in KINDS.iter().enumerate() {
            assert!(KINDS[..place].iter().all(|other| other.code != kind.code), "{} twice", kind.code);
            assert!(
                kind.code.split_once('.').is_some_and(|(what, rest)| !what.is_empty() && !rest.is_empty())
            );
            let needs_mend = kind.verdict == Verdict::Bad && *kind != HOME_UNREADABLE;
            assert!(!needs_mend || !kind.mend.is_empty(), "{} says nothing", kind.code);
        }
    }

    #[test]
    fn words_in_braces_are_replaced() {
        let finding = Finding::new(HOME_OPEN, "open", &[("home", "/x")]);
        assert_eq!(finding.json()["mend"], "chmod 700 /x");
        assert!(
            finding.text().contains("home.readable_by_others") && finding.text().contains("chmod 700 /x")
        );
    }
}
