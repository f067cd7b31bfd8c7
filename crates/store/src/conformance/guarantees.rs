//! What holds for every write: fences, refusals, failures, restarts.

use super::*;

pub fn an_old_fence_is_refused_whole(subject: &mut dyn Subject) {
    let store = subject.store();
    let (ours, other) = (create(store, "a"), create(store, "b"));
    commit(store, vec![fence(ours, 3), fence(other, 7)]);
    let write = |ours_fence, other_fence| {
        command(vec![append(ours, 0, vec![event(1, None, "")]), append(other, 0, vec![event(1, None, "")])])
            .fenced(ours, ours_fence)
            .fenced(other, other_fence)
    };
    let fenced = |session, expected, found| WriteError::Fenced { session, expected, found };
    let before = store.stats().fenced;
    assert_eq!(store.commit_blocking(write(2, 7)).unwrap_err(), fenced(ours, 2, Some(3)));
    assert_eq!(store.commit_blocking(write(3, 8)).unwrap_err(), fenced(other, 8, Some(7)));
    let nobody = store.allocate_session_key();
    let to_nobody = command(vec![]).fenced(nobody, 0);
    assert_eq!(store.commit_blocking(to_nobody).unwrap_err(), fenced(nobody, 0, None));
    assert_eq!(store.stats().fenced, before + 3);
    assert!(runs(store, ours, 1).is_empty() && runs(store, other, 1).is_empty());
    store.commit_blocking(write(3, 7)).unwrap();
    assert_eq!(runs(store, ours, 1), [(1, 1)]);
    // The check sees what earlier writes changed, and is made before the write's own operations.
    store.commit_blocking(command(vec![fence(ours, 4)]).fenced(ours, 3)).unwrap();
    assert_eq!(store.commit_blocking(command(vec![]).fenced(ours, 3)).unwrap_err(), fenced(ours, 3, Some(4)));
}

pub fn a_fence_never_goes_back(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = create(store, "a");
    commit(store, vec![fence(session, 5)]);
    assert_eq!(conflict(store, fence(session, 4)), Conflict::FenceBack { session, found: 5 });
    commit(store, vec![fence(session, 5)]);
    assert_eq!(store.session(session).unwrap().unwrap().fence, 5);
}

pub fn a_refusal_harms_no_neighbour(subject: &mut dyn Subject) {
    let store = subject.store();
    let sessions: Vec<_> = (0..40).map(|n| create(store, &format!("s{n}"))).collect();
    // Submitted together, so that a store that groups has groups with refused and accepted writes in them.
    let answers: Vec<_> = (0..40_usize)
        .map(|n| {
            let ops = vec![
                append(sessions[n], 0, vec![event(1, None, "kept?")]),
                WriteOp::AppendFeed(feed_entry(sessions[n], 1)),
                // Each third contradicts the record at its very end.
                append(
                    sessions[n],
                    if n % 3 == 0 { 7 } else { 1 },
                    vec![event(if n % 3 == 0 { 8 } else { 2 }, None, "")],
                ),
            ];
            store.submit(LaneWrite::new(Urgency::Stream, ops))
        })
        .collect();
    for (n, answer) in answers.into_iter().enumerate() {
        let outcome = wait(answer);
        let expected: &[(u64, u64)] = if n % 3 == 0 { &[] } else { &[(1, 1), (2, 2)] };
        assert_eq!(outcome.is_ok(), n % 3 != 0, "write {n}: {outcome:?}");
        assert_eq!(runs(store, sessions[n], 1), expected);
    }
    // Refused writes left no hole in the feed either.
    let feed = store.feed(0, 1_000).unwrap().rows;
    assert_eq!(feed.len(), 26);
    assert!((1..).zip(&feed).all(|(position, row)| row.position == position));
}

pub fn a_refused_write_leaves_nothing(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = create(store, "a");
    let process = create_process(store);
    commit(
        store,
        vec![
            WriteOp::PushInput(input(process, 1)),
            WriteOp::UpsertItem(item(session, 1, "kept")),
            WriteOp::PutSnapshot { session, epoch: 1, seq: 1, version: 1, body: b"old".to_vec() },
            WriteOp::PutAdapterState { process, scope: "x".to_owned(), version: 1, body: b"old".to_vec() },
        ],
    );
    let before = store.counts().unwrap();
    let commit_before = store.commit_number();
    let other = store.allocate_session_key();
    let ops = vec![
        WriteOp::CreateSession(new_session(other, "other")),
        fence(session, 9),
        append(session, 0, vec![event(1, None, "")]),
        WriteOp::StartEpoch { session, epoch: 2 },
        WriteOp::UpsertItem(item(session, 1, "renamed")),
        WriteOp::UpsertItem(item(session, 2, "more")),
        WriteOp::PutSnapshot { session, epoch: 2, seq: 9, version: 2, body: b"new".to_vec() },
        WriteOp::ClaimThread { scope: "s".to_owned(), thread: "t".to_owned(), session },
        WriteOp::PutAdapterState { process, scope: "x".to_owned(), version: 2, body: b"new".to_vec() },
        WriteOp::PushInput(input(process, 2)),
        WriteOp::TrimInputs { process, up_to: 2 },
        WriteOp::RegisterId(registration("r1", session, b"f")),
        WriteOp::PutOperation(operation("k", 1)),
        WriteOp::AppendFeed(feed_entry(session, 1)),
        WriteOp::Quarantine(quarantined(session, process, 10)),
        WriteOp::TrimFeed { up_to: 1 },
        WriteOp::StageSession(new_session(SessionKey(other.0 + 1), "staged")),
        WriteOp::AcknowledgeRewind { mark: commit_before + 1_000, feed: 50 },
        // Last of all, the contradiction.
        WriteOp::CreateSession(new_session(other, "a")),
    ];
    store.commit_blocking(command(ops)).unwrap_err();
    assert_eq!(store.counts().unwrap(), before);
    assert_eq!(store.commit_number(), commit_before);
    assert_eq!((store.epoch_floor(), store.feed_floor().unwrap()), (1, 0));
    assert!(store.session_by_id("staged").unwrap().is_none());
    assert!(store.session(other).unwrap().is_none());
    let row = store.session(session).unwrap().unwrap();
    assert_eq!((row.epoch, row.head, row.fence), (1, 0, 0));
    assert_eq!(store.snapshot(session).unwrap().unwrap().body, b"old");
    assert_eq!(store.item(session, "kept").unwrap().unwrap().ordinal, 1);
    assert!(store.item(session, "renamed").unwrap().is_none());
    assert_eq!(store.adapter_states(process).unwrap().rows[0].body, b"old");
    assert_eq!(store.thread_owner("s", "t").unwrap(), None);
    assert_eq!(store.feed_head().unwrap(), 0);
    commit(store, vec![WriteOp::PushInput(input(process, 2))]);
    assert_eq!(commit(store, vec![]).commit, commit_before + 2);
}

pub fn commit_numbers_grow_by_one(subject: &mut dyn Subject) {
    let store = subject.store();
    assert_eq!(store.commit_number(), 0);
    let session = create(store, "a");
    assert_eq!(store.commit_number(), 1);
    refusal(store, append(session, 9, vec![]));
    assert_eq!(commit(store, vec![]).commit, 2);
    subject.restart();
    let store = subject.store();
    assert_eq!(store.commit_number(), 2);
    assert_eq!(commit(store, vec![]).commit, 3);
}

pub fn a_rewind_is_acknowledged_by_number(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = create(store, "a");
    commit(store, vec![WriteOp::AppendFeed(feed_entry(session, 1))]);
    assert_eq!((store.epoch_floor(), store.feed_floor().unwrap()), (1, 0));
    let acknowledged = commit(store, vec![WriteOp::AcknowledgeRewind { mark: 500, feed: 40 }]);
    assert_eq!((acknowledged.commit, acknowledged.feed_head), (501, 41));
    // Above every commit there ever was, so that another rewind to the same state gives another floor.
    assert_eq!((store.epoch_floor(), store.feed_floor().unwrap()), (501, 41));
    assert!(store.feed(0, 9).unwrap().rows.is_empty());
    // What nobody could see goes back by nothing; what any session has is passed in any case.
    commit(store, vec![WriteOp::StartEpoch { session, epoch: 9_000 }]);
    assert_eq!(commit(store, vec![WriteOp::AcknowledgeRewind { mark: 3, feed: 0 }]).commit, 503);
    assert_eq!((store.epoch_floor(), store.feed_floor().unwrap()), (9_001, 42));
    assert_eq!(commit(store, vec![WriteOp::AppendFeed(feed_entry(session, 1))]).feed_head, 43);
    subject.restart();
    let store = subject.store();
    assert_eq!(store.commit_number(), 504);
    assert_eq!((store.epoch_floor(), store.feed_floor().unwrap()), (9_001, 42));
    assert_eq!(store.feed(0, 9).unwrap().rows[0].position, 43);
}

pub fn the_feed_goes_on_behind_a_floor(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = create(store, "a");
    let entries = |count| (0..count).map(|n| WriteOp::AppendFeed(feed_entry(session, n))).collect();
    commit(store, entries(FEED_TRIM_BATCH + 10));
    let head = store.feed_head().unwrap();
    let trim = |up_to| commit(store, vec![WriteOp::TrimFeed { up_to }]).feed_head;
    assert_eq!(trim(3), head);
    assert_eq!(store.feed_floor().unwrap(), 3);
    assert_eq!(store.feed(0, 1).unwrap().rows[0].position, 4);
    trim(2);
    assert_eq!(store.feed_floor().unwrap(), 3, "a floor never goes back");
    // A batch at a time, and never beyond the head.
    trim(u64::MAX);
    assert_eq!(store.feed_floor().unwrap(), 3 + FEED_TRIM_BATCH);
    trim(u64::MAX);
    assert_eq!(store.feed_floor().unwrap(), head);
    assert_eq!(store.counts().unwrap().feed, 0);
    subject.restart();
    let store = subject.store();
    assert_eq!((store.feed_floor().unwrap(), store.feed_head().unwrap()), (head, head));
    let entry = WriteOp::AppendFeed(feed_entry(session, 1));
    assert_eq!(commit(store, vec![entry]).feed_head, head + 1);
}

pub fn a_staged_session_is_seen_whole_or_not_at_all(subject: &mut dyn Subject) {
    let store = subject.store();
    let neighbour = create(store, "neighbour");
    let stage = |id: &str| {
        let key = store.allocate_session_key();
        commit(store, vec![WriteOp::StageSession(new_session(key, id))]);
        commit(store, vec![append(key, 0, vec![event(1, None, "a"), event(2, Some(1), "b")])]);
        commit(store, vec![WriteOp::UpsertItem(item(key, 1, "i1"))]);
        key
    };
    let (kept, dropped) = (stage("kept"), stage("dropped"));
    let listed = |store: &dyn Store| -> Vec<String> {
        let list = store.sessions(&SessionFilter::default(), None, 9).unwrap();
        list.rows.into_iter().map(|row| row.id).collect()
    };
    assert_eq!(listed(store), ["neighbour"]);
    assert!(store.unrested_sessions().unwrap().rows.is_empty());
    assert!(store.unpurged_sessions(9).unwrap().is_empty(), "what is being imported is not purged");
    let left = SessionFilter {
        status: Some(STAGED_STATUS.to_owned()),
        include_deleted: true,
        ..SessionFilter::default()
    };
    assert_eq!(store.sessions(&left, None, 9).unwrap().rows.len(), 2);
    // Its id is taken meanwhile.
    let other = store.allocate_session_key();
    let taken = Conflict::SessionId { id: "kept".to_owned(), owner: kept };
    assert_eq!(conflict(store, WriteOp::CreateSession(new_session(other, "kept"))), taken);

    let publish = |session| WriteOp::PublishSession {
        session,
        at: 77,
        name: Some("new name".to_owned()),
        cwd: "/elsewhere".to_owned(),
        archived: true,
        fence: 6,
        launch: b"new launch".to_vec(),
    };
    commit(store, vec![publish(kept)]);
    let row = store.session_by_id("kept").unwrap().unwrap();
    assert_eq!((row.deleted, row.archived, row.status.as_str()), (false, true, "idle"));
    assert_eq!((row.head, row.fence, row.updated_at), (2, 6, 77));
    assert_eq!((row.cwd.as_str(), row.launch.as_slice()), ("/elsewhere", b"new launch".as_slice()));
    for session in [kept, neighbour] {
        assert_eq!(conflict(store, publish(session)), Conflict::NotStaged { session });
        assert_eq!(conflict(store, WriteOp::DropStaged { session }), Conflict::NotStaged { session });
    }
    commit(store, vec![WriteOp::DropStaged { session: dropped }]);
    commit(store, vec![WriteOp::DropStaged { session: dropped }]);
    assert!(store.session_by_id("dropped").unwrap().is_none() && !store.has_events(dropped).unwrap());
    subject.restart();
    let store = subject.store();
    assert_eq!(listed(store), ["kept", "neighbour"]);
    // As if it had never been.
    let again = store.allocate_session_key();
    commit(store, vec![WriteOp::CreateSession(new_session(again, "dropped"))]);
    assert!(runs(store, again, 1).is_empty());
}

pub fn what_was_acknowledged_survives_a_restart(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = create(store, "a");
    let process = create_process(store);
    commit(
        store,
        vec![
            fence(session, 2),
            append(session, 0, vec![event(1, Some(1), "text"), event(2, None, "more")]),
            WriteOp::UpsertItem(item(session, 1, "i")),
            WriteOp::PutSnapshot { session, epoch: 1, seq: 2, version: 4, body: b"snapshot".to_vec() },
            WriteOp::ClaimThread { scope: "s".to_owned(), thread: "t".to_owned(), session },
            WriteOp::PutAdapterState { process, scope: "x".to_owned(), version: 1, body: b"y".to_vec() },
            WriteOp::PushInput(input(process, 1)),
            WriteOp::PushInput(input(process, 2)),
            WriteOp::TrimInputs { process, up_to: 1 },
            WriteOp::RegisterId(registration("m", session, b"f")),
            WriteOp::PutOperation(operation("k", 1)),
            WriteOp::AppendFeed(feed_entry(session, 1)),
            WriteOp::Quarantine(quarantined(session, process, 3)),
        ],
    );
    let image = |store: &dyn Store| {
        (
            (store.session(session).unwrap(), store.events(session, 1, 0, ALL).unwrap()),
            (store.items(session, None, 9).unwrap(), store.snapshot(session).unwrap()),
            (store.process(process).unwrap(), store.adapter_states(process).unwrap()),
            (store.inputs(process, 0).unwrap(), store.id_owner("submission", "m").unwrap()),
            (store.operation("k").unwrap(), store.thread_owner("s", "t").unwrap()),
            (store.feed(0, 9).unwrap(), store.quarantine(session).unwrap()),
            (store.counts().unwrap(), store.commit_number()),
        )
    };
    let before = image(store);
    subject.restart();
    let store = subject.store();
    assert_eq!(image(store), before);
    assert!(store.allocate_session_key() > session);
    assert!(store.allocate_process_key() > process);
    // Also what is not a row.
    assert_eq!(conflict(store, WriteOp::PushInput(input(process, 1))), Conflict::Input { process, n: 1 });
    let append = command(vec![append(session, 2, vec![event(3, None, "")])]);
    store.commit_blocking(append.fenced(session, 2)).unwrap();
}

pub fn injected_failures_do_what_they_say(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = create(store, "a");
    let failure = WriteError::Io { detail: "chosen".to_owned() };
    for fault in [Fault::FailCommit(failure.clone()), Fault::EndTransaction(failure.clone())] {
        let commit_before = store.commit_number();
        store.inject(fault);
        assert_eq!(refusal(store, append(session, 0, vec![event(1, None, "")])), failure);
        assert_eq!(store.degraded(), Some(Degraded::Failing(failure.clone())));
        assert_eq!(store.commit_number(), commit_before);
        assert!(runs(store, session, 1).is_empty());
    }
    // Committed, and nobody is told.
    store.inject(Fault::LoseAcknowledgement);
    let answer = refusal(store, append(session, 0, vec![event(1, None, "")]));
    assert!(matches!(answer, WriteError::Io { .. }), "{answer}");
    assert_eq!(runs(store, session, 1), [(1, 1)]);
    // Each is used once.
    commit(store, vec![append(session, 1, vec![event(2, None, "")])]);
    assert!(!matches!(store.degraded(), Some(Degraded::Failing(_))));
}

pub fn a_closed_store_says_so(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = create(store, "a");
    store.close();
    store.close();
    assert_eq!(store.commit_blocking(command(vec![])).unwrap_err(), WriteError::Closed);
    assert_eq!(store.session(session).unwrap_err(), ReadError::Closed);
}

pub fn missing_rows_are_named(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = store.allocate_session_key();
    let process = store.allocate_process_key();
    let no_session = WriteError::Missing { what: "session", key: session.0 };
    let no_process = WriteError::Missing { what: "process", key: process.0 };
    for op in [
        WriteOp::UpdateSession(SessionUpdate::new(session, 1)),
        fence(session, 1),
        WriteOp::StartEpoch { session, epoch: 1 },
        append(session, 0, vec![event(1, None, "")]),
        WriteOp::UpsertItem(item(session, 1, "i")),
        WriteOp::PutSnapshot { session, epoch: 1, seq: 1, version: 1, body: vec![] },
        WriteOp::ClaimThread { scope: "s".to_owned(), thread: "t".to_owned(), session },
        WriteOp::RegisterId(registration("m", session, b"")),
        WriteOp::Quarantine(quarantined(session, process, 1)),
    ] {
        assert_eq!(refusal(store, op.clone()), no_session, "{op:?}");
    }
    for op in [
        WriteOp::UpdateProcess(ProcessUpdate::new(process)),
        WriteOp::PushInput(input(process, 1)),
        WriteOp::TrimInputs { process, up_to: 1 },
        WriteOp::PutAdapterState { process, scope: "x".to_owned(), version: 1, body: vec![] },
    ] {
        assert_eq!(refusal(store, op.clone()), no_process, "{op:?}");
    }
    assert!(store.session(session).unwrap().is_none());
    assert!(store.process(process).unwrap().is_none());
}

pub fn many_lanes_at_once_lose_nothing(subject: &mut dyn Subject) {
    const LANES: usize = 8;
    const WRITES: u64 = 60;
    let store = subject.store();
    let sessions: Vec<_> = (0..LANES).map(|n| create(store, &format!("s{n}"))).collect();
    std::thread::scope(|scope| {
        for (lane, session) in sessions.iter().enumerate() {
            scope.spawn(move || {
                let urgency = [Urgency::Stream, Urgency::Command, Urgency::Stop][lane % 3];
                let mut newest = 0;
                for write in 0..WRITES {
                    let head = write * 2;
                    let events = vec![event(head + 1, None, "a"), event(head + 2, None, "b")];
                    let write = LaneWrite::new(urgency, vec![append(*session, head, events)]);
                    let committed = store.commit_blocking(write).unwrap();
                    assert!(committed.commit > newest);
                    newest = committed.commit;
                    // What was acknowledged is seen at once.
                    assert_eq!(store.session(*session).unwrap().unwrap().head, head + 2);
                }
            });
        }
    });
    for session in sessions {
        assert_eq!(runs(store, session, 1).len() as u64, WRITES * 2);
    }
    assert_eq!(store.stats().committed_writes, (LANES as u64) * (WRITES + 1));
}
