//! Reading in pages, and reading slowly: no hole, nothing twice, the same as the stream.

use crate::support::{DEADLINE, Follower, World, follow_turn, is, send, show};
use mainstay_testkit::http::Client;
use mainstay_testkit::{stream_text, wait::wait_for};
use serde_json::Value;

/// Text that a page of the timeline gives per item at most (`ITEM_TEXT_BYTES` of the host), with room for one delta.
const MOST_TEXT: usize = 256 * 1024 + 64 * 1024;

/// All events of a session by pages of at most `limit`.
fn all_events(client: &Client, session: &str, limit: usize) -> Vec<Value> {
    let mut events = Vec::new();
    let mut after = "1:0".to_owned();
    loop {
        let path = format!("/v1/sessions/{session}/events?after={after}&limit={limit}");
        let page = client.get(&path).unwrap().expect_status(200).json();
        let rows = page["events"].as_array().expect("events");
        assert!(rows.len() <= limit, "{} rows where {limit} were asked for", rows.len());
        assert!(!rows.is_empty() || page["more"] == false, "an empty page that says there is more");
        events.extend(rows.iter().cloned());
        page["cursor"].as_str().expect("a cursor").clone_into(&mut after);
        if page["more"] == false {
            assert_eq!(page["head"], after.as_str());
            return events;
        }
    }
}

/// All items of a session, newest first, by pages of at most `limit`.
fn all_items(client: &Client, session: &str, limit: usize) -> Vec<Value> {
    let mut items: Vec<Value> = Vec::new();
    let mut before = None;
    loop {
        let from = before.map_or_else(String::new, |before: i64| format!("&before={before}"));
        let path = format!("/v1/sessions/{session}/items?limit={limit}{from}");
        let page = client.get(&path).unwrap().expect_status(200).json();
        let rows = page["items"].as_array().expect("items");
        assert!(rows.len() <= limit);
        items.extend(rows.iter().cloned());
        before = page["before"].as_i64();
        if before.is_none() {
            return items;
        }
        assert_eq!(rows.len(), limit, "a short page that says there is more");
    }
}

#[test]
fn pages_of_events_have_no_hole_and_are_what_the_stream_gives() {
    let world = World::new();
    let host = world.start();
    // Each chunk waits for nothing, and tool calls cut the runs of deltas: a long journal of many kinds.
    let script: Vec<String> = (0..60).map(|n| format!("DELTAS 20 8 ;; TOOL t{n}")).collect();
    let session = world.create(&host, "scripted", &script.join(" ;; "));
    let follower = follow_turn(&host.client(), &session);
    let mut by_stream = follower.events;
    // The stream was left at the turn's end; what was journaled behind it in the same commit comes with a new one.
    let head = show(&host.client(), &session)["cursor"]["seq"].as_u64().unwrap();
    if by_stream.last().unwrap()["seq"].as_u64() < Some(head) {
        let mut rest = Follower::default();
        let mut sse = rest.open(&host.client(), &session);
        rest.until(&mut sse, "the head", |event| event["seq"].as_u64() == Some(head));
        by_stream = rest.events;
    }
    assert!(by_stream.len() > 240, "the journal is too short for this test: {}", by_stream.len());
    for limit in [7, 97, 5000] {
        let by_pages = all_events(&host.client(), &session, limit);
        let mut expected = 1;
        for event in &by_pages {
            let seq = event["seq"].as_u64().unwrap();
            assert_eq!(
                event["first_seq"].as_u64().unwrap_or(seq),
                expected,
                "a hole or a repetition: {event}"
            );
            expected = seq + 1;
        }
        assert_eq!(by_pages.len(), by_stream.len(), "pages of {limit}");
        assert!(by_pages == by_stream, "pages of {limit} differ from the stream");
    }
    // In the middle of a merged run the reader gets the run again, from its first letter.
    let run = by_stream.iter().find(|event| event["first_seq"].is_u64());
    if let Some(run) = run {
        let inside = run["first_seq"].as_u64().unwrap();
        let path = format!("/v1/sessions/{session}/events?after=1:{inside}&limit=1");
        let page = host.client().get(&path).unwrap().expect_status(200).json();
        assert_eq!(page["events"][0], *run);
    }
    for limit in ["0", "5001", "-1", "many"] {
        let path = format!("/v1/sessions/{session}/events?limit={limit}");
        let refused = host.client().get(&path).unwrap().expect_status(400).json();
        assert_eq!(refused["code"], "invalid_query", "{refused}");
    }
    let ahead = host.client().get(&format!("/v1/sessions/{session}/events?after=1:999999")).unwrap().json();
    assert_eq!(ahead["reset"]["reason"], "cursor_ahead", "{ahead}");
    assert_eq!(ahead["reset"]["cursor"], format!("1:{head}"));
    assert!(!ahead["reset"]["page"]["items"].as_array().expect("a page of the timeline").is_empty());
    world.end(host);
}

#[test]
fn pages_of_items_are_newest_first_and_hold_the_text_of_the_deltas() {
    let world = World::new();
    let host = world.start();
    let script: Vec<String> = (0..15).map(|n| format!("SAY grüße zum {n}. Mal ;; TOOL t{n}")).collect();
    let session = world.create(&host, "scripted", &script.join(" ;; "));
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    send(&host.client(), &session, "SAY the last");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    let made = follower.of_type("item.started").len();
    assert!(made >= 32, "{made} items");
    for limit in [1, 7, made, 500] {
        let items = all_items(&host.client(), &session, limit);
        let ordinals: Vec<i64> = items.iter().map(|item| item["ordinal"].as_i64().unwrap()).collect();
        let expected: Vec<i64> = (1..=i64::try_from(made).unwrap()).rev().collect();
        assert_eq!(ordinals, expected, "pages of {limit}");
        for item in &items {
            let id = item["id"].as_str().unwrap();
            assert_eq!(item["state"], "completed", "{item}");
            assert_eq!(item["text_from"], 0);
            assert_eq!(item["text"], follower.text_of(id), "{item}");
        }
        let last = items.iter().find(|item| item["kind"] == "agent_message").unwrap();
        assert_eq!(last["text"], "the last");
    }
    world.end(host);
}

#[test]
fn of_a_text_longer_than_a_page_gives_the_end_comes_and_says_where_it_begins() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "scripted", "FRAMES 60000 8");
    let follower = follow_turn(&host.client(), &session);
    let whole = stream_text::whole(60_000, 8);
    assert_eq!(follower.agent_text(), whole);
    let page = host.client().get(&format!("/v1/sessions/{session}/items?limit=1")).unwrap().json();
    let item = &page["items"][0];
    let from = usize::try_from(item["text_from"].as_u64().unwrap()).unwrap();
    let text = item["text"].as_str().unwrap();
    assert_eq!(item["bytes"].as_u64().unwrap(), 480_000);
    assert!(text.len() >= 256 * 1024 && text.len() < MOST_TEXT, "{} bytes in a page", text.len());
    assert!(from > 0);
    assert!(text == &whole[from..], "the page's text is not the end of the whole");
    world.end(host);
}

#[test]
fn a_reader_that_stops_reading_during_a_burst_gets_all_of_it_afterwards() {
    const FRAMES: usize = 200_000;
    let world = World::new();
    let host = world.start();
    let client = host.socket_client();
    let session = world.create(&host, "scripted", &format!("BURST {FRAMES} 32"));
    let mut slow = Follower::default();
    let mut sse = slow.open(&client, &session);
    slow.until(&mut sse, "the first text", is("item.delta"));
    // It reads nothing more until the turn is over: several times what sockets and the shared ring hold.
    let over = wait_for(DEADLINE, || (show(&client, &session)["status"] == "idle").then_some(()));
    assert!(over.is_some(), "the burst did not end while a reader stood still: {}", show(&client, &session));
    slow.until(&mut sse, "the turn's end", is("turn.ended"));
    let text = slow.agent_text();
    assert_eq!(text.len(), FRAMES * 32);
    assert!(text == stream_text::whole(FRAMES, 32), "the text is not what the agent wrote");
    let replaced = slow.of_type("item.completed").iter().any(|event| event["replaces"] == true);
    assert!(!replaced, "the text had to be replaced");
    world.end(host);
}
