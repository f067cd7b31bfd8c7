//! Several sessions at once keep apart.

use crate::support::{World, follow_turn};
use mainstay_testkit::model::expected_text;
use mainstay_testkit::stream_text;

#[test]
fn two_codex_sessions_at_once_have_each_their_own_text() {
    let world = World::new();
    let host = world.start();
    let prompts = ["GATED 30 both ;; SAY first", "GATED 20 both ;; SAY second"];
    let sessions = prompts.map(|prompt| world.create(&host, "codex", prompt));
    // Both stand at the gate before either says a word, then their texts are mixed on the way.
    world.model.wait_requests(2, crate::support::DEADLINE);
    world.model.open("both");
    let client = host.client();
    let texts: Vec<String> = std::thread::scope(|scope| {
        let readers: Vec<_> = sessions
            .iter()
            .map(|session| scope.spawn(|| follow_turn(&client, session).agent_text()))
            .collect();
        readers.into_iter().map(|reader| reader.join().expect("a reader")).collect()
    });
    for (prompt, text) in prompts.iter().zip(texts) {
        assert_eq!(text, expected_text(prompt));
        assert_eq!(world.model.requests_prompted_by(prompt), 1, "{prompt}");
    }
    world.end(host);
}

#[test]
fn eight_sessions_that_stream_at_once_reach_their_readers_whole() {
    const SESSIONS: usize = 8;
    let world = World::new();
    let host = world.start();
    // A gate for each: one that several agents wait at may be opened while one of them is on its way to it.
    let gates: Vec<_> =
        (0..SESSIONS).map(|number| world.home.root().join(format!("gate-{number}"))).collect();
    // Each has a length of its own, so that a text in the wrong place shows.
    let frames = |number: usize| 4_000 + 10 * number;
    let sessions: Vec<String> = (0..SESSIONS)
        .map(|number| {
            let prompt = format!("GATE {} ;; FRAMES {} 16", gates[number].display(), frames(number));
            world.create(&host, "scripted", &prompt)
        })
        .collect();
    let client = host.client();
    let readers: Vec<_> = std::thread::scope(|scope| {
        let readers: Vec<_> =
            sessions.iter().map(|session| scope.spawn(|| follow_turn(&client, session))).collect();
        gates.iter().for_each(|gate| mainstay_testkit::agents::open_gate(gate));
        readers.into_iter().map(|reader| reader.join().expect("a reader")).collect()
    });
    for (number, reader) in readers.iter().enumerate() {
        let text = reader.agent_text();
        assert_eq!(text.len(), frames(number) * 16, "session {number}");
        assert!(text == stream_text::whole(frames(number), 16), "session {number} got another text");
        assert_eq!(reader.of_type("turn.ended").len(), 1);
    }
    world.end(host);
}
