//! The host feed: what a list of sessions shows, after a durable cursor.

use crate::support::{DEADLINE, Follower, World, answer, interrupt, is};
use mainstay_testkit::http::{Client, Sse, SseEvent};
use serde_json::Value;
use std::time::Instant;

const FEED: &str = "/v1/events";

/// A reader of the feed that goes on where it was, and fails at once on a repetition or a hole.
#[derive(Default)]
pub(crate) struct FeedReader {
    position: u64,
    pub(crate) entries: Vec<Value>,
}

impl FeedReader {
    pub(crate) fn open(&self, client: &Client) -> Sse {
        self.try_open(client).expect("a stream")
    }

    /// As [`open`](Self::open), where the host may die meanwhile.
    pub(crate) fn try_open(&self, client: &Client) -> std::io::Result<Sse> {
        let position = self.position.to_string();
        client.events(FEED, &[("Last-Event-ID", position.as_str())])
    }

    #[track_caller]
    pub(crate) fn until(&mut self, sse: &mut Sse, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let give_up = Instant::now() + DEADLINE;
        loop {
            let left = give_up.saturating_duration_since(Instant::now());
            let Some(event) = sse.next(left) else { panic!("{what} did not come: {:#?}", self.entries) };
            if let Some(entry) = self.take(event)
                && wanted(&entry)
            {
                return entry;
            }
        }
    }

    /// Reads whatever comes until the stream ends (the host died).
    pub(crate) fn until_broken(&mut self, sse: &mut Sse) {
        let give_up = Instant::now() + DEADLINE;
        while let Some(event) = sse.next(give_up.saturating_duration_since(Instant::now())) {
            self.take(event);
        }
        assert!(sse.ended(), "the host did not die");
    }

    #[track_caller]
    fn take(&mut self, event: SseEvent) -> Option<Value> {
        assert_ne!(event.event, "reset", "{}", event.data);
        let Some(id) = event.id else {
            assert!(matches!(event.event.as_str(), "heartbeat" | "caught_up"), "{}", event.event);
            return None;
        };
        let position = event.data["position"].as_u64().expect("a position");
        assert_eq!(id, position.to_string());
        assert_eq!(event.event, event.data["type"]);
        assert_eq!(position, self.position + 1, "a hole or a repetition: {}", event.data);
        self.position = position;
        self.entries.push(event.data.clone());
        Some(event.data)
    }

    /// The whole feed in pages of so many, however it was read before.
    pub(crate) fn pages(client: &Client, limit: usize) -> Vec<Value> {
        let mut paged: Vec<Value> = Vec::new();
        let mut after = 0;
        loop {
            let path = format!("{FEED}?after={after}&limit={limit}");
            let page = client.get(&path).expect("answers").expect_status(200).json();
            let events = page["events"].as_array().expect("events");
            assert!(events.len() <= limit);
            paged.extend(events.iter().cloned());
            after = page["position"].as_u64().expect("a position");
            if page["more"] == false {
                return paged;
            }
        }
    }

    pub(crate) fn of(&self, session: &str, kind: &str) -> Vec<&Value> {
        self.entries.iter().filter(|entry| entry["session"] == session && entry["type"] == kind).collect()
    }

    /// The session's statuses in the order they were told.
    fn statuses(&self, session: &str) -> Vec<&str> {
        self.of(session, "session.status").iter().filter_map(|entry| entry["status"].as_str()).collect()
    }
}

fn about(session: &str, kind: &'static str) -> impl Fn(&Value) -> bool {
    move |entry| entry["session"] == session && entry["type"] == kind
}

fn told_status(session: &str, status: &'static str) -> impl Fn(&Value) -> bool {
    move |entry| about(session, "session.status")(entry) && entry["status"] == status
}

#[test]
fn a_reader_that_was_away_while_the_host_died_misses_nothing_of_two_sessions() {
    let world = World::new();
    let mut host = world.start();
    let mut reader = FeedReader::default();
    let mut feed = reader.open(&host.client());
    let asking = world.create(&host, "scripted", "SAY one ;; ASK may I ;; SAY end");
    let holding = world.create(&host, "scripted", "SAY part ;; HOLD");
    let opened = reader.until(&mut feed, "the request", about(&asking, "request.opened"));
    let request = opened["event"]["request"].as_str().expect("its id").to_owned();
    if !reader.statuses(&asking).contains(&"requires_action") {
        reader.until(&mut feed, "the status", told_status(&asking, "requires_action"));
    }
    if !reader.statuses(&holding).contains(&"running") {
        reader.until(&mut feed, "the other's status", told_status(&holding, "running"));
    }
    let seen = reader.entries.len();

    // From here on the reader is away: it hears neither of the death nor of what the next host does.
    drop(feed);
    host.kill9();
    let host = world.start();
    let (mut first, mut second) = (Follower::default(), Follower::default());
    let mut first_events = first.open(&host.client(), &asking);
    let mut second_events = second.open(&host.client(), &holding);
    answer(&host.client(), &asking, &request, "allow_once").expect_status(200);
    interrupt(&host.client(), &holding);
    first.until(&mut first_events, "the first turn's end", is("turn.ended"));
    second.until(&mut second_events, "the second turn's end", is("turn.ended"));

    let mut feed = reader.open(&host.client());
    while reader.of(&asking, "turn.ended").is_empty() || reader.of(&holding, "turn.ended").is_empty() {
        reader.until(&mut feed, "the turns' ends", |entry| entry["type"] == "turn.ended");
    }
    while reader.statuses(&asking).last() != Some(&"idle")
        || reader.statuses(&holding).last() != Some(&"idle")
    {
        reader.until(&mut feed, "both to be idle", |entry| entry["status"] == "idle");
    }
    assert!(reader.entries.len() > seen, "nothing came after the host's death");
    for (session, follower, outcome) in [(&asking, &first, "completed"), (&holding, &second, "cancelled")] {
        // What the feed says of a session is what its journal says, each once.
        for kind in ["session.created", "request.opened", "request.closed", "turn.ended"] {
            let told: Vec<&Value> = reader.of(session, kind).iter().map(|entry| &entry["event"]).collect();
            assert_eq!(told, follower.of_type(kind), "{kind} of {session}");
        }
        let ended = &reader.of(session, "turn.ended")[0]["event"];
        assert!(ended["outcome"] == outcome || ended["outcome"] == "interrupted", "{ended}");
    }
    let mut told = reader.statuses(&asking);
    // A new host may tell a status anew.
    told.dedup();
    assert!(told.ends_with(&["requires_action", "running", "idle"]), "{told:?}");

    // The pages say the same, however they are cut.
    let paged = FeedReader::pages(&host.client(), 3);
    assert_eq!(paged[..reader.entries.len()], reader.entries[..]);
    world.end(host);
}

#[test]
fn a_feed_cursor_ahead_of_everything_is_a_reset_and_what_comes_after_it_is_told() {
    let world = World::new();
    let host = world.start();
    let first = world.create(&host, "scripted", "SAY one");
    crate::support::follow_turn(&host.client(), &first);
    let mut feed = host.client().events(FEED, &[("Last-Event-ID", "100000")]).unwrap();
    let seen = feed.until(DEADLINE, |event| event.event == "reset");
    let reset = seen.last().unwrap();
    assert_eq!(reset.data["reason"], "cursor_ahead", "{}", reset.data);
    assert!(reset.id.is_none(), "a marker carries no id");
    let position = reset.data["position"].as_u64().expect("where the feed stands");
    assert!(position > 0 && position < 100_000);
    assert!(seen.iter().all(|event| event.id.is_none()), "an entry came before the reset");

    let page = host.client().get(&format!("{FEED}?after=100000")).unwrap().expect_status(200).json();
    assert_eq!(page["reset"]["reason"], "cursor_ahead", "{page}");
    assert_eq!(page["events"].as_array().map(Vec::len), Some(0));

    let second = world.create(&host, "scripted", "SAY two");
    let seen =
        feed.until(DEADLINE, |event| event.data["session"] == second.as_str() && event.event == "turn.ended");
    let positions: Vec<u64> = seen.iter().filter_map(|event| event.id.as_ref()?.parse().ok()).collect();
    assert!(positions.first().is_some_and(|first| *first > position), "{positions:?}");
    assert!(positions.windows(2).all(|pair| pair[1] == pair[0] + 1), "a hole: {positions:?}");

    for cursor in ["soon", "1:4", "-1"] {
        let refused = host.client().get(&format!("{FEED}?after={cursor}")).unwrap().expect_status(400).json();
        assert_eq!(refused["code"], "invalid_cursor", "{refused}");
    }
    world.end(host);
}
