//! Journal, items, snapshots, feed and quarantine.

use super::*;

pub fn seq_is_dense(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = create(store, "a");
    commit(store, vec![append(session, 0, vec![event(1, None, "one"), event(2, None, "two")])]);
    // A hole, a repetition and a backward run inside a write are the caller's defect.
    for events in [
        vec![event(4, None, "")],
        vec![event(2, None, "")],
        vec![event(3, None, ""), event(3, None, "")],
        vec![NewEvent { first_seq: 3, seq: 2, ..event(3, None, "") }],
    ] {
        let answer = refusal(store, append(session, 2, events));
        assert!(matches!(answer, WriteError::Invalid { .. }), "{answer}");
    }
    // A writer that is not where the journal stands is told where it stands.
    let expected = Conflict::Head { session, epoch: 1, head: 2 };
    assert_eq!(conflict(store, append(session, 1, vec![event(2, None, "")])), expected);
    assert_eq!(conflict(store, append(session, 3, vec![event(4, None, "")])), expected);
    commit(store, vec![append(session, 2, vec![event(3, None, "three")])]);
    assert_eq!(runs(store, session, 1), [(1, 1), (2, 2), (3, 3)]);
    let row = store.session(session).unwrap().unwrap();
    assert_eq!((row.epoch, row.head), (1, 3));
}

pub fn a_merged_row_stands_for_its_run(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = create(store, "a");
    let merged = NewEvent { first_seq: 2, ..event(9, Some(1), "merged") };
    commit(store, vec![append(session, 0, vec![event(1, None, ""), merged, event(10, None, "")])]);
    assert_eq!(runs(store, session, 1), [(1, 1), (2, 9), (10, 10)]);
    // A cursor inside the run gets the whole row; one at its end does not.
    let after = |seq| store.events(session, 1, seq, ALL).unwrap().rows;
    assert_eq!(after(5)[0].first_seq, 2);
    assert_eq!(after(5)[0].seq, 9);
    assert_eq!(after(9)[0].seq, 10);
    assert!(after(10).is_empty());
}

pub fn pages_end_where_the_limit_says(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = create(store, "a");
    let events = (1..=10).map(|seq| event(seq, None, "12345")).collect();
    commit(store, vec![append(session, 0, events)]);
    let page = |after, rows, bytes| store.events(session, 1, after, PageLimit { rows, bytes }).unwrap();
    let by_rows = page(0, 4, usize::MAX);
    assert_eq!((by_rows.rows.len(), by_rows.more), (4, true));
    let by_bytes = page(4, 100, 16);
    assert_eq!((by_bytes.rows.len(), by_bytes.more), (3, true));
    assert_eq!(by_bytes.rows[0].seq, 5);
    let exact = page(7, 3, 15);
    assert_eq!((exact.rows.len(), exact.more), (3, false));
    // A row bigger than the limit still comes, alone.
    let one = page(0, 100, 1);
    assert_eq!((one.rows.len(), one.more), (1, true));
    let none = page(10, 100, 100);
    assert_eq!((none.rows.len(), none.more), (0, false));
}

pub fn an_epoch_is_greater_than_the_one_before(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = create(store, "a");
    commit(store, vec![append(session, 0, vec![event(1, None, "old")])]);
    let start = |epoch| WriteOp::StartEpoch { session, epoch };
    for wrong in [0, 1] {
        assert_eq!(conflict(store, start(wrong)), Conflict::Head { session, epoch: 1, head: 1 });
    }
    commit(store, vec![start(2)]);
    let row = store.session(session).unwrap().unwrap();
    assert_eq!((row.epoch, row.head), (2, 0));
    // The old epoch takes nothing more and stays readable.
    assert_eq!(
        conflict(store, append(session, 1, vec![event(2, None, "late")])),
        Conflict::Head { session, epoch: 2, head: 0 }
    );
    let events = vec![event(1, None, "new")];
    commit(store, vec![WriteOp::AppendEvents { session, epoch: 2, expect_head: 0, events }]);
    assert_eq!(store.events(session, 1, 0, ALL).unwrap().rows[0].body, b"old");
    assert_eq!(store.events(session, 2, 0, ALL).unwrap().rows[0].body, b"new");
    // Numbers may be left out; an epoch without events is as if it had not been.
    commit(store, vec![start(7), start(40)]);
    let events = vec![event(1, None, "newest")];
    commit(store, vec![WriteOp::AppendEvents { session, epoch: 40, expect_head: 0, events }]);
    let next = |after| store.next_epoch(session, after).unwrap();
    assert_eq!([next(0), next(1), next(2), next(39), next(40)], [Some(1), Some(2), Some(40), Some(40), None]);
    assert_eq!(next(u64::MAX >> 1), None);
    assert_eq!(store.next_epoch(create(store, "b"), 0).unwrap(), None);
}

pub fn the_newest_snapshot_is_kept(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = create(store, "a");
    assert!(store.snapshot(session).unwrap().is_none());
    let put = |epoch, seq, body: &str| {
        let body = body.as_bytes().to_vec();
        commit(store, vec![WriteOp::PutSnapshot { session, epoch, seq, version: 3, body }]);
        let kept = store.snapshot(session).unwrap().unwrap();
        assert_eq!(kept.version, 3);
        (kept.epoch, kept.seq, String::from_utf8(kept.body).unwrap())
    };
    assert_eq!(put(1, 10, "a"), (1, 10, "a".to_owned()));
    assert_eq!(put(1, 9, "older"), (1, 10, "a".to_owned()));
    assert_eq!(put(1, 10, "again"), (1, 10, "again".to_owned()));
    assert_eq!(put(2, 1, "next epoch"), (2, 1, "next epoch".to_owned()));
    assert_eq!(put(1, 99, "old epoch"), (2, 1, "next epoch".to_owned()));
}

pub fn items_are_upserted_and_paged(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = create(store, "a");
    let neighbour = create(store, "b");
    assert_eq!(store.max_item_ordinal(session).unwrap(), None);
    let ops = (1..=10).map(|n| WriteOp::UpsertItem(item(session, n, &format!("i{n}")))).collect();
    commit(store, ops);
    commit(store, vec![WriteOp::UpsertItem(item(neighbour, 99, "i1"))]);
    let changed = ItemRow { state: "completed".to_owned(), turn: None, ..item(session, 4, "i4") };
    commit(store, vec![WriteOp::UpsertItem(changed.clone())]);
    assert_eq!(store.item(session, "i4").unwrap(), Some(changed));
    assert_eq!(store.max_item_ordinal(session).unwrap(), Some(10));
    let page = |before, limit| -> Vec<i64> {
        let page = store.items(session, before, limit).unwrap();
        page.rows.iter().map(|row| row.ordinal).collect()
    };
    assert_eq!(page(None, 4), [10, 9, 8, 7]);
    assert_eq!(page(Some(7), 4), [6, 5, 4, 3]);
    assert_eq!(page(Some(3), 4), [2, 1]);
    let taken = Conflict::ItemId { session, id: "i4".to_owned(), ordinal: 4 };
    assert_eq!(conflict(store, WriteOp::UpsertItem(item(session, 11, "i4"))), taken);
    // An item may be renamed; the old id is free then.
    commit(store, vec![WriteOp::UpsertItem(item(session, 4, "new name"))]);
    assert!(store.item(session, "i4").unwrap().is_none());
    commit(store, vec![WriteOp::UpsertItem(item(session, 11, "i4"))]);
}

pub fn item_text_reads_both_ways(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = create(store, "a");
    // Two items stream at once; the second epoch goes on with the first of them.
    let events = (1..=20).map(|seq| event(seq, Some((seq % 2) as i64), &format!("{seq:02}"))).collect();
    let later = (1..=3).map(|seq| event(seq, Some(1), &format!("n{seq}"))).collect();
    commit(
        store,
        vec![
            append(session, 0, events),
            WriteOp::StartEpoch { session, epoch: 2 },
            WriteOp::AppendEvents { session, epoch: 2, expect_head: 0, events: later },
        ],
    );
    let whole = ItemEventQuery {
        session,
        ordinal: 1,
        from: (1, 1),
        to: (2, 2),
        backwards: false,
        limit_bytes: usize::MAX,
    };
    let text = |query| {
        let page = store.events_of_item(query).unwrap();
        assert!(page.bad.is_empty());
        let bodies: Vec<_> = page.rows.into_iter().map(|row| String::from_utf8(row.body).unwrap()).collect();
        (bodies.join(" "), page.resume)
    };
    let all = "01 03 05 07 09 11 13 15 17 19 n1 n2";
    assert_eq!(text(whole), (all.to_owned(), None));
    let part = ItemEventQuery { from: (1, 4), to: (1, 9), ..whole };
    assert_eq!(text(part), ("05 07 09".to_owned(), None));
    // Backwards by pages: together, everything in reverse.
    let mut seen = Vec::new();
    let mut query = ItemEventQuery { backwards: true, limit_bytes: 6, ..whole };
    loop {
        let (page, resume) = text(query);
        seen.extend(page.split(' ').map(str::to_owned));
        match resume {
            Some(to) => query.to = to,
            None => break,
        }
    }
    seen.reverse();
    assert_eq!(seen.join(" "), all);
    // And forwards.
    let (first, resume) = text(ItemEventQuery { limit_bytes: 5, ..whole });
    assert_eq!((first.as_str(), resume), ("01 03", Some((1, 5))));
    // A row bigger than the limit comes alone; an empty range is empty.
    assert_eq!(text(ItemEventQuery { limit_bytes: 1, ..whole }).0, "01");
    assert_eq!(text(ItemEventQuery { from: (2, 9), ..whole }), (String::new(), None));
}

pub fn the_feed_is_dense(subject: &mut dyn Subject) {
    let store = subject.store();
    let session = create(store, "a");
    assert_eq!(store.feed_head().unwrap(), 0);
    let entry = |seq| WriteOp::AppendFeed(feed_entry(session, seq));
    assert_eq!(commit(store, vec![entry(1), entry(2)]).feed_head, 2);
    assert_eq!(commit(store, vec![]).feed_head, 2);
    assert_eq!(commit(store, vec![entry(3)]).feed_head, 3);
    let page = |after, limit| -> Vec<(u64, Vec<u8>)> {
        let page = store.feed(after, limit).unwrap();
        page.rows.into_iter().map(|row| (row.position, row.body)).collect()
    };
    assert_eq!(page(0, 2), [(1, b"feed 1".to_vec()), (2, b"feed 2".to_vec())]);
    assert_eq!(page(2, 2), [(3, b"feed 3".to_vec())]);
    assert!(page(3, 2).is_empty());
    subject.restart();
    let store = subject.store();
    assert_eq!(store.feed_head().unwrap(), 3);
    assert_eq!(commit(store, vec![entry(4)]).feed_head, 4);
}

pub fn quarantine_is_bounded(subject: &mut dyn Subject) {
    let store = subject.store();
    let (session, other) = (create(store, "a"), create(store, "b"));
    let process = create_process(store);
    let put = |session, size| commit(store, vec![WriteOp::Quarantine(quarantined(session, process, size))]);
    put(other, 1);
    for size in 1..=QUARANTINE_MAX_RECORDS + 10 {
        put(session, usize::try_from(size).unwrap());
    }
    let page = store.quarantine(session).unwrap();
    assert_eq!((page.rows.len() as u64, page.dropped), (QUARANTINE_MAX_RECORDS, 10));
    assert_eq!((page.rows[0].position, page.rows[0].reason.as_str()), (11, "cannot be applied"));
    // By bytes: what fits beside the newest stays (265 and 266, the two newest before it); a record over the bound
    // stays alone.
    let bound = usize::try_from(QUARANTINE_MAX_BYTES).unwrap();
    put(session, bound - 600);
    let page = store.quarantine(session).unwrap();
    let sizes: Vec<_> = page.rows.iter().map(|row| row.record.len()).collect();
    assert_eq!(sizes, [265, 266, bound - 600]);
    put(session, bound + 1);
    let page = store.quarantine(session).unwrap();
    assert_eq!((page.rows.len(), page.dropped), (1, QUARANTINE_MAX_RECORDS + 11));
    assert_eq!(store.quarantine(other).unwrap().rows.len(), 1);
    assert_eq!(store.quarantine(other).unwrap().dropped, 0);
}

pub fn a_purged_session_keeps_its_names(subject: &mut dyn Subject) {
    let store = subject.store();
    let (session, other) = (create(store, "a"), create(store, "b"));
    let process = create_process(store);
    let fill = |session, thread: &str| {
        vec![
            append(session, 0, vec![event(1, Some(1), "text")]),
            WriteOp::UpsertItem(item(session, 1, "i")),
            WriteOp::PutSnapshot { session, epoch: 1, seq: 1, version: 1, body: vec![] },
            WriteOp::ClaimThread { scope: "s".to_owned(), thread: thread.to_owned(), session },
            WriteOp::Quarantine(quarantined(session, process, 1)),
        ]
    };
    commit(store, fill(session, "t1"));
    commit(store, fill(other, "t2"));
    // Long journals go in steps, oldest first.
    let long = (2..=PURGE_EVENT_ROWS + 5).map(|seq| event(seq, None, "")).collect();
    commit(store, vec![append(session, 1, long)]);
    commit(store, vec![WriteOp::PurgeSession { session }]);
    assert_eq!(runs(store, session, 1).first(), Some(&(PURGE_EVENT_ROWS + 1, PURGE_EVENT_ROWS + 1)));
    assert!(store.has_events(session).unwrap());
    commit(store, vec![WriteOp::PurgeSession { session }]);
    assert!(!store.has_events(session).unwrap());
    assert!(runs(store, session, 1).is_empty());
    assert!(store.items(session, None, 9).unwrap().rows.is_empty());
    assert!(store.item(session, "i").unwrap().is_none());
    assert!(store.snapshot(session).unwrap().is_none());
    assert!(store.quarantine(session).unwrap().rows.is_empty());
    assert_eq!(store.thread_owner("s", "t1").unwrap(), None);
    let key = store.allocate_session_key();
    assert!(matches!(
        conflict(store, WriteOp::CreateSession(new_session(key, "a"))),
        Conflict::SessionId { owner, .. } if owner == session
    ));
    assert_eq!(runs(store, other, 1), [(1, 1)]);
    assert_eq!(store.thread_owner("s", "t2").unwrap(), Some(other));
    assert!(store.item(other, "i").unwrap().is_some());
}
