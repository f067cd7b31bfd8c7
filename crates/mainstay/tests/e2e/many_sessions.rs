//! More sessions than anybody has, listed over HTTP: every one once and in order, by pages that stay small.

use crate::support::{World, follow_turn};
use mainstay_store::{LaneWrite, NewSession, SqliteOptions, SqliteStore, Store, Urgency, WriteOp};

/// What the usual run makes; the long mode of the store's own test makes a million.
const SOME: usize = 20_000;
/// Sessions made in one transaction.
const GROUP: usize = 2_000;

#[test]
fn twenty_thousand_sessions_are_listed_once_each_by_pages_while_new_ones_come() {
    let world = World::new();
    let host = world.start();
    let real = world.create(&host, "scripted", "SAY hello");
    follow_turn(&host.client(), &real);
    world.end(host);
    fill(&world.home.mainstay_home().join("mainstay.db"), &real);

    let host = world.start();
    let client = host.client();
    let (mut seen, mut after, mut added) = (Vec::new(), String::new(), None);
    loop {
        let path = format!("/v1/sessions?limit=500{after}");
        let answer = client.get(&path).expect("answers").expect_status(200);
        assert!(answer.text().len() < 500 * 2_000, "a page of {} bytes", answer.text().len());
        let page = answer.json();
        assert_eq!(page["unreadable"].as_array().map_or(0, Vec::len), 0, "{}", page["unreadable"]);
        let rows = page["sessions"].as_array().expect("sessions");
        seen.extend(rows.iter().map(|row| row["id"].as_str().expect("an id").to_owned()));
        // One that comes in the middle belongs to no later page.
        added.get_or_insert_with(|| world.create(&host, "scripted", "SAY new"));
        let Some(last) = page["after"].as_str() else { break };
        after = format!("&after={last}");
    }
    let expected: Vec<String> =
        (0..SOME).rev().map(|number| format!("ses-{number:07}")).chain([real.clone()]).collect();
    assert!(seen == expected, "{} listed, {} made", seen.len(), expected.len());
    // The first page is as quick to read as of few, and has the newest.
    let first = client.get("/v1/sessions").expect("answers").expect_status(200).json();
    assert_eq!(first["sessions"].as_array().map(Vec::len), Some(50));
    assert_eq!(first["sessions"][0]["id"], added.expect("added").as_str());
    let refused = client.get("/v1/sessions?after=ses-none").expect("answers").expect_status(400).json();
    assert_eq!(refused["code"], "invalid_cursor", "{refused}");
    client.get("/v1/sessions?limit=501").expect("answers").expect_status(400);
    world.end(host);
}

/// Adds sessions that are as the real one was when it was made.
fn fill(path: &std::path::Path, real: &str) {
    let store = SqliteStore::open(path, SqliteOptions::default()).expect("opens").store;
    let real = store.session_by_id(real).expect("read").expect("there");
    for first in (0..SOME).step_by(GROUP) {
        let new = |number: usize| {
            WriteOp::CreateSession(NewSession {
                key: store.allocate_session_key(),
                id: format!("ses-{number:07}"),
                agent: real.agent.clone(),
                name: None,
                cwd: real.cwd.clone(),
                created_at: real.created_at,
                launch: real.launch.clone(),
            })
        };
        let ops = (first..first + GROUP).map(new).collect();
        store.commit_blocking(LaneWrite::new(Urgency::Command, ops)).expect("written");
    }
}
