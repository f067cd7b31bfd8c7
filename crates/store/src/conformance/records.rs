//! Sessions, processes and what belongs to them.

use super::*;

pub fn ids_are_unique_for_ever(subject: &mut dyn Subject) {
    let store = subject.store();
    let (ours, other) = (create(store, "a"), create(store, "b"));
    commit(store, vec![WriteOp::RegisterId(registration("m1", ours, b"content"))]);
    commit(store, vec![WriteOp::RegisterId(registration("m1", ours, b"content"))]);
    let taken = Conflict::Id { kind: "submission".to_owned(), id: "m1".to_owned(), owner: ours };
    assert_eq!(conflict(store, WriteOp::RegisterId(registration("m1", ours, b"else"))), taken);
    assert_eq!(conflict(store, WriteOp::RegisterId(registration("m1", other, b"content"))), taken);
    // Another kind is another space.
    let kind = Cow::Borrowed("request");
    commit(store, vec![WriteOp::RegisterId(IdRegistration { kind, ..registration("m1", other, b"") })]);
    commit(store, vec![WriteOp::PurgeSession { session: ours }]);
    subject.restart();
    let store = subject.store();
    assert_eq!(conflict(store, WriteOp::RegisterId(registration("m1", other, b"content"))), taken);
    let owner = store.id_owner("submission", "m1").unwrap().unwrap();
    assert_eq!((owner.session, owner.fingerprint), (ours, b"content".to_vec()));
    assert!(store.id_owner("submission", "m2").unwrap().is_none());
}

pub fn session_ids_are_unique(subject: &mut dyn Subject) {
    let store = subject.store();
    let first = create(store, "a");
    let second = store.allocate_session_key();
    assert!(second > first);
    assert_eq!(
        conflict(store, WriteOp::CreateSession(new_session(second, "a"))),
        Conflict::SessionId { id: "a".to_owned(), owner: first }
    );
    assert_eq!(
        conflict(store, WriteOp::CreateSession(new_session(first, "b"))),
        Conflict::SessionKey { key: first }
    );
    assert_eq!(store.session_by_id("a").unwrap().unwrap().key, first);
    assert!(store.session_by_id("b").unwrap().is_none());
}

pub fn session_fields_change_one_by_one(subject: &mut dyn Subject) {
    let store = subject.store();
    let key = create(store, "a");
    let fresh = store.session(key).unwrap().unwrap();
    assert_eq!((fresh.status.as_str(), fresh.epoch, fresh.head, fresh.fence), ("idle", 1, 0, 0));
    assert_eq!(fresh.launch, b"{\"launch\":true}");
    let update = |at| SessionUpdate::new(key, at);
    let process = create_process(store);
    commit(
        store,
        vec![
            WriteOp::UpdateSession(SessionUpdate {
                name: Some(Some("name".to_owned())),
                status: Some("running".to_owned()),
                reason: Some(Some("why".to_owned())),
                process: Some(Some(process)),
                needs: Some(true),
                ..update(2)
            }),
            WriteOp::UpdateSession(SessionUpdate { archived: Some(true), ..update(3) }),
        ],
    );
    let row = store.session(key).unwrap().unwrap();
    assert_eq!(row.name.as_deref(), Some("name"));
    assert_eq!((row.status.as_str(), row.reason.as_deref()), ("running", Some("why")));
    assert_eq!((row.process, row.needs, row.archived, row.deleted), (Some(process), true, true, false));
    assert_eq!((row.created_at, row.updated_at), (1_000, 3));
    // Absent is not empty: `Some(None)` clears.
    let clear = SessionUpdate { name: Some(None), reason: Some(None), process: Some(None), ..update(4) };
    commit(store, vec![WriteOp::UpdateSession(clear)]);
    let row = store.session(key).unwrap().unwrap();
    assert_eq!((row.name, row.reason, row.process), (None, None, None));
    assert_eq!(row.status, "running");
}

pub fn sessions_are_paged_newest_first(subject: &mut dyn Subject) {
    let store = subject.store();
    let keys: Vec<_> = (0..25).map(|n| create(store, &format!("s{n}"))).collect();
    let update = |key: SessionKey| SessionUpdate::new(key, 9);
    let deleted = SessionUpdate { deleted: Some(true), ..update(keys[3]) };
    let archived = SessionUpdate { archived: Some(true), ..update(keys[4]) };
    let running = SessionUpdate { status: Some("running".to_owned()), ..update(keys[5]) };
    commit(store, [deleted, archived, running].map(WriteOp::UpdateSession).to_vec());
    let list = |filter: &SessionFilter| {
        let mut seen = Vec::new();
        loop {
            let page = store.sessions(filter, seen.last().copied(), 7).unwrap();
            assert!(page.bad.is_empty());
            if page.rows.is_empty() {
                return seen;
            }
            seen.extend(page.rows.iter().map(|row| row.key));
        }
    };
    let newest_first = |wanted: &dyn Fn(usize) -> bool| -> Vec<SessionKey> {
        (0..25).rev().filter(|n| wanted(*n)).map(|n| keys[n]).collect()
    };
    let any = SessionFilter::default();
    assert_eq!(list(&any), newest_first(&|n| n != 3));
    assert_eq!(list(&SessionFilter { include_deleted: true, ..any.clone() }), newest_first(&|_| true));
    assert_eq!(
        list(&SessionFilter { archived: Some(false), ..any.clone() }),
        newest_first(&|n| n != 3 && n != 4)
    );
    let status = SessionFilter { status: Some("running".to_owned()), ..any.clone() };
    assert_eq!(list(&status), [keys[5]]);
    assert!(list(&SessionFilter { agent: Some("codex".to_owned()), ..any.clone() }).is_empty());
    let agent = SessionFilter { agent: Some("demo".to_owned()), status: Some("running".to_owned()), ..any };
    assert_eq!(list(&agent), [keys[5]]);
}

pub fn only_unrested_sessions_are_unrested(subject: &mut dyn Subject) {
    let store = subject.store();
    let keys: Vec<_> = (0..6).map(|n| create(store, &format!("s{n}"))).collect();
    let process = create_process(store);
    let update = |n: usize| SessionUpdate::new(keys[n], 9);
    let status = |n, status: &str| SessionUpdate { status: Some(status.to_owned()), ..update(n) };
    let bound = |n| SessionUpdate { process: Some(Some(process)), ..update(n) };
    let updates = [
        status(1, "running"),
        status(2, "closed"),
        bound(3),
        SessionUpdate { deleted: Some(true), ..status(4, "running") },
        status(5, "starting"),
    ];
    commit(store, updates.map(WriteOp::UpdateSession).to_vec());
    let unrested = store.unrested_sessions().unwrap();
    assert_eq!(unrested.rows.iter().map(|row| row.key).collect::<Vec<_>>(), [keys[1], keys[3], keys[5]]);
    let of_process = SessionFilter { process: Some(process), ..SessionFilter::default() };
    assert_eq!(store.sessions(&of_process, None, 9).unwrap().rows[0].key, keys[3]);
}

pub fn threads_have_one_owner(subject: &mut dyn Subject) {
    let store = subject.store();
    let (ours, other) = (create(store, "a"), create(store, "b"));
    let claim = |scope: &str, session| WriteOp::ClaimThread {
        scope: scope.to_owned(),
        thread: "t".to_owned(),
        session,
    };
    let release =
        |session| WriteOp::ReleaseThread { scope: "home".to_owned(), thread: "t".to_owned(), session };
    commit(store, vec![claim("home", ours), claim("home", ours)]);
    let taken = Conflict::Thread { thread: "t".to_owned(), owner: ours };
    assert_eq!(conflict(store, claim("home", other)), taken);
    commit(store, vec![claim("another home", other)]);
    // Only the owner releases.
    commit(store, vec![release(other)]);
    assert_eq!(store.thread_owner("home", "t").unwrap(), Some(ours));
    commit(store, vec![release(ours), claim("home", other)]);
    assert_eq!(store.thread_owner("home", "t").unwrap(), Some(other));
    assert_eq!(store.thread_owner("home", "unknown").unwrap(), None);
}

pub fn processes_change_field_by_field(subject: &mut dyn Subject) {
    let store = subject.store();
    let (first, second) = (create_process(store), create_process(store));
    let key = store.allocate_process_key();
    let same_token = ProcessRow { key, ..new_process(first) };
    assert_eq!(conflict(store, WriteOp::CreateProcess(same_token)), Conflict::Process { key: first });
    let same_key = ProcessRow { token: "fresh".to_owned(), ..new_process(second) };
    assert_eq!(conflict(store, WriteOp::CreateProcess(same_key)), Conflict::Process { key: second });
    let update = ProcessUpdate {
        state: Some("proven".to_owned()),
        fence: Some(9),
        position: Some(4_096),
        connection: Some(2),
        last_input: Some(7),
        ..ProcessUpdate::new(first)
    };
    let ended =
        ProcessUpdate { ended_at: Some(77), exit: Some(b"exit".to_vec()), ..ProcessUpdate::new(second) };
    commit(store, vec![WriteOp::UpdateProcess(update), WriteOp::UpdateProcess(ended)]);
    let expected = ProcessRow {
        state: "proven".to_owned(),
        fence: 9,
        position: 4_096,
        connection: 2,
        last_input: 7,
        ..new_process(first)
    };
    assert_eq!(store.process(first).unwrap(), Some(expected.clone()));
    assert_eq!(store.processes(true).unwrap().rows, [expected]);
    let all = store.processes(false).unwrap().rows;
    assert_eq!(all.len(), 2);
    assert_eq!((all[1].ended_at, all[1].exit.as_deref()), (Some(77), Some(&b"exit"[..])));
    assert_eq!(all[1].state, "reserved");
}

pub fn inputs_are_numbered_once(subject: &mut dyn Subject) {
    let store = subject.store();
    let (process, other) = (create_process(store), create_process(store));
    commit(store, (1..=5).map(|n| WriteOp::PushInput(input(process, n))).collect());
    commit(store, vec![WriteOp::PushInput(input(other, 1))]);
    let numbers =
        |after| -> Vec<u64> { store.inputs(process, after).unwrap().rows.iter().map(|row| row.n).collect() };
    assert_eq!(numbers(0), [1, 2, 3, 4, 5]);
    assert_eq!(numbers(3), [4, 5]);
    assert_eq!(store.inputs(process, 3).unwrap().rows[0], input(process, 4));
    assert_eq!(conflict(store, WriteOp::PushInput(input(process, 5))), Conflict::Input { process, n: 5 });
    commit(store, vec![WriteOp::TrimInputs { process, up_to: 3 }]);
    assert_eq!(numbers(0), [4, 5]);
    // A number is used once, also when its row is gone.
    assert_eq!(conflict(store, WriteOp::PushInput(input(process, 2))), Conflict::Input { process, n: 2 });
    commit(store, vec![WriteOp::TrimInputs { process, up_to: 1 }]);
    assert_eq!(conflict(store, WriteOp::PushInput(input(process, 3))), Conflict::Input { process, n: 3 });
    assert_eq!(store.inputs(other, 0).unwrap().rows.len(), 1);
}

pub fn adapter_states_are_replaced_and_dropped(subject: &mut dyn Subject) {
    let store = subject.store();
    let (process, other) = (create_process(store), create_process(store));
    let put = |process, scope: &str, body: &str| WriteOp::PutAdapterState {
        process,
        scope: scope.to_owned(),
        version: 1,
        body: body.as_bytes().to_vec(),
    };
    commit(store, vec![put(process, "b", "1"), put(process, "a", "2"), put(other, "a", "3")]);
    commit(store, vec![put(process, "b", "4")]);
    let states = |process| -> Vec<(String, Vec<u8>)> {
        let list = store.adapter_states(process).unwrap();
        list.rows.into_iter().map(|row| (row.scope, row.body)).collect()
    };
    assert_eq!(states(process), [("a".to_owned(), b"2".to_vec()), ("b".to_owned(), b"4".to_vec())]);
    commit(store, vec![WriteOp::DropAdapterState { process, scope: Some("a".to_owned()) }]);
    assert_eq!(states(process).len(), 1);
    commit(store, vec![WriteOp::DropAdapterState { process, scope: None }]);
    assert!(states(process).is_empty());
    assert_eq!(states(other).len(), 1);
}

pub fn operations_are_recorded_once(subject: &mut dyn Subject) {
    let store = subject.store();
    commit(store, vec![WriteOp::PutOperation(operation("k", 5))]);
    let again = NewOperation { response: b"other".to_vec(), ..operation("k", 6) };
    assert_eq!(conflict(store, WriteOp::PutOperation(again)), Conflict::Operation { key: "k".to_owned() });
    let row = store.operation("k").unwrap().unwrap();
    assert_eq!(
        (row.at, row.status, row.fingerprint, row.response),
        (5, 201, b"request".to_vec(), b"answer".to_vec())
    );
    assert!(store.operation("unknown").unwrap().is_none());
}

pub fn operations_are_kept_as_promised(subject: &mut dyn Subject) {
    let store = subject.store();
    let now = OPERATION_KEEP_MS * 10;
    let prune = || {
        commit(store, vec![WriteOp::PruneOperations { now }]);
        store.counts().unwrap().operations
    };
    // Few keys stay however old they are.
    commit(store, vec![WriteOp::PutOperation(operation("old 0", 0))]);
    assert_eq!(prune(), 1);
    // One more than a batch above the limit: old ones go oldest first, a batch at a time, and no further.
    let surplus = OPERATION_PRUNE_BATCH + 1;
    let mut number = 1;
    while number < OPERATION_KEEP_ROWS + surplus {
        let end = (number + 10_000).min(OPERATION_KEEP_ROWS + surplus);
        let put = |n: u64| WriteOp::PutOperation(operation(&format!("old {n}"), n.cast_signed()));
        commit(store, (number..end).map(put).collect());
        number = end;
    }
    assert_eq!(prune(), OPERATION_KEEP_ROWS + 1);
    assert!(store.operation("old 0").unwrap().is_none());
    assert!(store.operation(&format!("old {OPERATION_PRUNE_BATCH}")).unwrap().is_some());
    assert_eq!(prune(), OPERATION_KEEP_ROWS);
    assert_eq!(prune(), OPERATION_KEEP_ROWS);
    // Young keys stay however many they are, and push the old ones out.
    let young = |n: u64| WriteOp::PutOperation(operation(&format!("young {n}"), now - OPERATION_KEEP_MS));
    commit(store, (0..10).map(young).collect());
    assert_eq!(prune(), OPERATION_KEEP_ROWS);
    assert!((0..10).all(|n| store.operation(&format!("young {n}")).unwrap().is_some()));
}
