//! A keeper's folder as somebody may have left it.

use mainstay_keeper::{AgentTrace, KeepersDir, Probe, SpoolReader, probe, ps};

/// The files of a folder. In the input each is a length of two bytes and that many bytes.
const FILES: [&str; 8] = [
    "lock",
    "manifest.json",
    "agent.json",
    "exit.json",
    "spawn-failed.json",
    "inbox",
    "threads",
    "spool/00000000000000000000.log",
];

/// Nothing in a folder, whatever it is, stops those that read it, and what cannot be read proves nothing.
pub(crate) fn check(data: &[u8]) {
    let Ok(home) = tempfile::tempdir() else { return };
    let keepers = KeepersDir::new(home.path().join("keepers"));
    let folder = keepers.folder("p-1");
    let path = home.path().join("keepers").join("p-1");
    if std::fs::create_dir_all(path.join("spool")).is_err() {
        return;
    }
    let mut rest = data;
    for name in FILES {
        let Some((length, behind)) = rest.split_first_chunk::<2>() else { break };
        let length = usize::from(u16::from_le_bytes(*length));
        let (bytes, behind) = behind.split_at(length.min(behind.len()));
        rest = behind;
        // A file that is not there is a case too.
        if length > 0 && std::fs::write(path.join(name), bytes).is_err() {
            return;
        }
    }
    let exit = folder.exit_record();
    let _manifest = folder.manifest();
    let _agent = folder.agent_identity();
    let _failed = folder.spawn_failure();
    let _inbox = folder.inbox_state();
    if let Ok(threads) = folder.threads() {
        assert!(threads.iter().all(|thread| !thread.contains('\n')));
    }
    match probe(&folder) {
        Probe::Ended { .. } => assert!(matches!(exit, Ok(Some(_))), "an end that nobody recorded"),
        Probe::KeeperGone { agent: AgentTrace::Gone(_) } => {
            assert!(matches!(folder.agent_identity(), Ok(Some(_))), "gone, and nobody knows who");
            assert!(matches!(exit, Ok(None)), "an end that was recorded is not read");
        }
        Probe::Unused => {
            let nothing = matches!(exit, Ok(None)) && matches!(folder.agent_identity(), Ok(None));
            assert!(nothing, "what cannot be read is taken for what never was");
        }
        _ => {}
    }
    let rows = ps(home.path()).expect("the other folders are shown, whatever is in this one");
    assert_eq!(rows.len(), 1, "a folder is hidden");
    let mut reader = SpoolReader::open(folder.spool_path());
    let mut at = 0;
    while let Ok(batch) = reader.read(at, 1_024) {
        if batch.is_empty() {
            break;
        }
        assert!(batch.next() > at);
        at = batch.next();
    }
}
