//! A database that is older than what was shown: no reader ever gets another event under a number that it knows, and none
//! misses one without being told.

use crate::world::config;
use mainstay_core::{AgentName, Command, Cursor, SessionId, SessionOptions};
use mainstay_host::host::lock_home;
use mainstay_host::{DATABASE, Delivered, FeedDelivered, Host, NewSessionRequest, Retention, ShutdownMode};
use mainstay_store::{backup_file, restore_file};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What anybody was ever shown: by session, epoch and seq.
type Shown = BTreeMap<(String, u64, u64), Vec<u8>>;

async fn start(folder: &Path) -> Arc<Host> {
    let host = Host::start(config(folder, "this-host", Retention::default())).await.expect("starts");
    host.recovered().await;
    host
}

async fn create(host: &Arc<Host>, folder: &Path, id: &str) {
    let request = NewSessionRequest {
        id: Some(SessionId::from(id)),
        agent: AgentName::from("absent"),
        cwd: folder.display().to_string(),
        name: None,
        options: SessionOptions::default(),
        limits: Default::default(),
        additional_directories: Vec::new(),
        mcp_servers: Vec::new(),
        instructions: None,
        account_home: None,
        source: None,
        prompt: None,
    };
    host.create(request, None).await.expect("made");
}

/// Adds events, each with a text that was never used before.
async fn work(host: &Arc<Host>, id: &str, events: u32, era: &str) {
    for n in 0..events {
        let rename = Command::Update {
            name: Some(Some(format!("{era} {n}"))),
            options: None,
            archived: None,
            limits: None,
        };
        host.command(id, rename, None).await.expect("taken");
    }
}

/// A reader with a cursor. Gives where it stands when it has everything.
async fn follow(host: &Arc<Host>, id: &str, after: Option<Cursor>, shown: &mut Shown) -> Cursor {
    let mut subscription = host.subscribe(id, after).await.expect("a stream");
    let mut at = subscription.cursor();
    loop {
        match subscription.pull().await.expect("read") {
            Delivered::Events(lines) => {
                for line in lines {
                    assert_eq!(line.first_seq, at.seq + 1, "{id}: a hole behind {at}");
                    at.seq = line.seq;
                    let known = shown
                        .entry((id.to_owned(), at.epoch, line.seq))
                        .or_insert_with(|| line.json.to_vec());
                    assert_eq!(
                        String::from_utf8_lossy(known),
                        String::from_utf8_lossy(&line.json),
                        "{id}: another event under {at}"
                    );
                }
            }
            Delivered::Reset(reset) => {
                assert_ne!(reset.head, at, "a reset for nothing");
                at = reset.head;
            }
            Delivered::CaughtUp => return at,
        }
    }
}

/// Readers with every cursor that anybody can have.
async fn everybody_reads(host: &Arc<Host>, ids: &[&str], shown: &mut Shown) {
    for id in ids {
        if host.session(id).await.is_err() {
            continue;
        }
        let mut cursors: Vec<Cursor> = shown
            .keys()
            .filter(|(of, ..)| of == id)
            .map(|(_, epoch, seq)| Cursor { epoch: *epoch, seq: *seq })
            .collect();
        cursors.push(Cursor { epoch: 1, seq: 0 });
        for cursor in cursors {
            let end = follow(host, id, Some(cursor), shown).await;
            let row = host.session(id).await.expect("there");
            assert_eq!(
                (end.epoch, end.seq),
                (row.epoch, row.head),
                "{id}: the reader at {cursor} is not at the head"
            );
        }
    }
}

fn restore(folder: &Path, backup: &Path) {
    let home = folder.join("state");
    let _home = lock_home(&home).expect("nobody serves it");
    restore_file(backup, &home.join(DATABASE)).expect("restored");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restored_backup_no_reader_sees_a_hole_or_another_event() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let backup = folder.join("backup.db");
    let mut shown = Shown::new();
    let ids = ["rests", "goes-on", "comes-later"];

    let host = start(folder).await;
    create(&host, folder, "rests").await;
    create(&host, folder, "goes-on").await;
    work(&host, "rests", 6, "before").await;
    work(&host, "goes-on", 6, "before").await;
    everybody_reads(&host, &ids, &mut shown).await;
    backup_file(&folder.join("state").join(DATABASE), &backup).expect("a backup");
    work(&host, "goes-on", 9, "lost").await;
    create(&host, folder, "comes-later").await;
    work(&host, "comes-later", 4, "lost").await;
    everybody_reads(&host, &ids, &mut shown).await;
    let mut feeds = vec![host.feed_head()];
    host.shutdown(ShutdownMode::Detach).await;
    drop(host);

    // The same backup, again and again: each time is another history.
    let mut epochs = Vec::new();
    for era in ["second", "third", "fourth"] {
        restore(folder, &backup);
        let host = start(folder).await;
        // Readers that come before anybody adds anything …
        everybody_reads(&host, &ids, &mut shown).await;
        assert!(host.session("comes-later").await.is_err(), "it is gone with what was lost");
        // … those that stay while something is added …
        let row = host.session("goes-on").await.expect("there");
        let mut stays = host
            .subscribe("goes-on", Some(Cursor { epoch: row.epoch, seq: row.head }))
            .await
            .expect("a stream");
        assert!(matches!(stays.pull().await.expect("read"), Delivered::CaughtUp));
        work(&host, "goes-on", 12, era).await;
        assert!(matches!(stays.pull().await.expect("read"), Delivered::Reset(_)), "it was told nothing");
        // … and those that come later, also to a session whose id was another's.
        create(&host, folder, "comes-later").await;
        work(&host, "comes-later", 7, era).await;
        everybody_reads(&host, &ids, &mut shown).await;
        let row = host.session("goes-on").await.expect("there");
        assert!(!epochs.contains(&row.epoch), "epoch {} came twice", row.epoch);
        epochs.push(row.epoch);
        // One that rests begins its new epoch when something happens to it, not before.
        assert_eq!(host.session("rests").await.expect("there").epoch, 1);

        // The feed: whoever has seen anything before this is told.
        for seen in &feeds {
            let delivered = host.feed(*seen).pull().await.expect("read");
            assert!(matches!(delivered, FeedDelivered::Reset { .. }), "{seen}: {delivered:?}");
        }
        assert!(host.feed_head() > *feeds.iter().max().expect("some"), "a position came twice");
        feeds.push(host.feed_head());
        host.shutdown(ShutdownMode::Detach).await;
        drop(host);
    }
    // What was in the backup was never told otherwise.
    let host = start(folder).await;
    work(&host, "rests", 3, "last").await;
    everybody_reads(&host, &ids, &mut shown).await;
    host.shutdown(ShutdownMode::Detach).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_deleted_database_old_cursors_are_nobodys() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let mut shown = Shown::new();
    let host = start(folder).await;
    create(&host, folder, "s1").await;
    work(&host, "s1", 8, "before").await;
    everybody_reads(&host, &["s1"], &mut shown).await;
    host.shutdown(ShutdownMode::Detach).await;
    drop(host);
    for side in ["", "-wal", "-shm"] {
        let _removed = std::fs::remove_file(folder.join("state").join(format!("{DATABASE}{side}")));
    }
    let host = start(folder).await;
    assert!(host.session("s1").await.is_err());
    create(&host, folder, "s1").await;
    work(&host, "s1", 12, "after").await;
    everybody_reads(&host, &["s1"], &mut shown).await;
    host.shutdown(ShutdownMode::Detach).await;
}
