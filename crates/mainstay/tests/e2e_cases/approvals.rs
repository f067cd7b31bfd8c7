//! Requests of the agent: cases 83 to 91.

use crate::played::{ALL_KINDS, Followed, Played, register_command};
use crate::support::{World, agent_pid, answer, interrupt, is, kill, try_answer};
use serde_json::{Value, json};

const ASKS: &str = "on prompt ask\n  ask may I\n";

fn option(opened: &Value, kind: &str) -> String {
    let options = opened["options"].as_array().expect("options");
    let found = options.iter().find(|option| option["kind"] == kind).expect("an option of this kind");
    found["id"].as_str().or(found["option_id"].as_str()).expect("its id").to_owned()
}

fn asked(session: &mut Followed) -> (String, Value) {
    let opened = session.until("the request", is("request.opened"));
    (opened["request"].as_str().expect("an id").to_owned(), opened)
}

/// 83 and 84: who comes later sees what is open; what was asked by a process that is gone is closed, and says so.
#[test]
fn a_request_is_open_for_whoever_comes_and_closed_with_its_process() {
    for kind in ALL_KINDS {
        let mut played = Played::new(kind, ASKS);
        let mut session = played.session("ask");
        let (request, opened) = asked(&mut session);
        let path = format!("/v1/sessions/{}/requests", session.id);
        let open = played.client().get(&path).unwrap().expect_status(200).json();
        assert!(open.to_string().contains(&request), "{kind}: {open}");
        assert_eq!(played.show(&session)["status"], "requires_action", "{kind}");

        played.host.kill9();
        kill(agent_pid(session.all("process.started")[0]));
        played.host = played.world.start();
        session.reopen(&played);
        session.ended("lost");
        let closed = session.all("request.closed");
        assert_eq!(closed.len(), 1, "{kind}: {closed:?}");
        let late = answer(&played.client(), &session.id, &request, &option(&opened, "allow_once"));
        assert_eq!(late.status, 409, "{kind}: {}", late.text());
        assert!(late.text().contains("lost"), "{kind}: {}", late.text());
        let open = played.client().get(&path).unwrap().json();
        assert!(!open.to_string().contains(&request), "{kind}: {open}");
        assert!(session.all("request.answered").is_empty(), "{kind}");
        played.end();
    }
}

/// 85: a stop closes what its turn asked, before the turn ends; who answers late is told.
#[test]
fn a_stop_closes_what_its_turn_asked() {
    for kind in ALL_KINDS {
        let played = Played::new(kind, ASKS);
        let mut session = played.session("ask");
        let (request, opened) = asked(&mut session);
        interrupt(&played.client(), &session.id);
        session.ended("interrupted");
        let place = |wanted: &str| {
            session.follower.events.iter().position(|event| event["type"] == wanted).expect("happened")
        };
        assert!(place("request.closed") < place("turn.ended"), "{kind}");
        let late = answer(&played.client(), &session.id, &request, &option(&opened, "allow_once"));
        assert_eq!(late.status, 409, "{kind}: {}", late.text());
        assert!(session.all("request.answered").is_empty(), "{kind}");
        assert!(!session.text().contains("allowed"), "{kind}");
        played.end();
    }
}

/// 86: of twenty answers one reaches the agent; the others learn what was decided. Also where the request stays open until the
/// agent confirms the first answer.
#[test]
fn of_twenty_answers_one_reaches_the_agent() {
    for (kind, said) in [("acp", "\"outcome\""), ("claude", "\"behavior\"")] {
        let world = World::new();
        let heard = world.home.root().join("heard.jsonl").display().to_string();
        let program = mainstay_testkit::agents::sibling_binary("scripted-agent").display().to_string();
        let pipe = format!("tee -a {heard} | {program} \"$@\"");
        register_command(&world, "played", kind, ASKS, &["sh", "-c", &pipe, "sh"]);
        let host = world.start();
        let played = Played { world, host };
        let mut session = played.session("ask");
        let (request, opened) = asked(&mut session);
        let answers: Vec<_> = (0..20)
            .map(|number| {
                let option = option(&opened, if number % 2 == 0 { "allow_once" } else { "reject_once" });
                let (client, session, request) = (played.client(), session.id.clone(), request.clone());
                std::thread::spawn(move || {
                    let response = try_answer(&client, &session, &request, &option).unwrap();
                    (option, response.status, response.json())
                })
            })
            .collect();
        let answers: Vec<_> = answers.into_iter().map(|answer| answer.join().unwrap()).collect();
        session.ended("completed");
        let won: Vec<_> = answers.iter().filter(|(_, status, _)| *status == 200).collect();
        assert_eq!(won.len(), 1, "{kind}: {answers:?}");
        for (_, status, body) in answers.iter().filter(|(_, status, _)| *status != 200) {
            assert_eq!(*status, 409, "{kind}: {body}");
            let told = body.to_string().contains(&won[0].0);
            assert!(told, "{kind}: the loser is not told the decision: {body}");
        }
        let heard = std::fs::read_to_string(heard).unwrap();
        let lines = heard.lines().filter(|line| line.contains(said)).count();
        assert_eq!(lines, 1, "{kind}: {heard}");
        assert_eq!(session.all("request.answered").len(), 1, "{kind}");
        played.end();
    }
}

/// 87: a request of a kind that nobody knows gets its answer, and the turn goes on.
#[test]
fn every_request_of_the_agent_is_answered() {
    for (kind, request) in [
        ("acp", r#"{"jsonrpc": "2.0", "id": 777, "method": "x/unknown", "params": {"mark": "unheard-of"}}"#),
        (
            "codex",
            r#"{"id": 777, "method": "x/unknown", "params": {"threadId": "$thread", "mark": "unheard-of"}}"#,
        ),
        (
            "claude",
            r#"{"type": "control_request", "request_id": "asked-777", "request": {"subtype": "x_unknown", "mark": "unheard-of"}}"#,
        ),
    ] {
        let script = format!("on prompt odd\n  send {request}\n  wait-for answer:777\n  say answered\n");
        let played = Played::new(kind, &script);
        let mut session = played.session("odd");
        session.ended("completed");
        assert_eq!(session.text(), "answered", "{kind}");
        let seen: String = session.follower.events.iter().map(Value::to_string).collect();
        assert!(seen.contains("unheard-of"), "{kind}: nobody was told");
        played.end();
    }
}

/// 88: the agent asks after its first result, and gives a second one.
#[test]
fn a_request_after_the_result_is_put_and_answered_and_the_second_result_counts() {
    let script = "on prompt work\n  say first\n  end\n  send {\"type\": \"system\", \"subtype\": \"session_state_changed\", \"state\": \"running\", \"session_id\": \"$thread\", \"uuid\": \"$new\"}\n  \
        send {\"type\": \"system\", \"subtype\": \"init\", \"session_id\": \"$thread\", \"uuid\": \"$new\", \"model\": \"scripted\", \"permissionMode\": \"default\"}\n  \
        ask may I go on\n  send {\"type\": \"result\", \"subtype\": \"success\", \"is_error\": false, \"session_id\": \"$thread\", \"uuid\": \"$new\"}\n  \
        send {\"type\": \"system\", \"subtype\": \"session_state_changed\", \"state\": \"idle\", \"session_id\": \"$thread\", \"uuid\": \"$new\"}\n";
    let played = Played::new("claude", script);
    let mut session = played.session("work");
    session.ended("completed");
    let (request, opened) = asked(&mut session);
    answer(&played.client(), &session.id, &request, &option(&opened, "allow_once")).expect_status(200);
    session.ended("completed");
    assert_eq!(session.text(), "firstallowed");
    assert_eq!(session.all("process.started").len(), 1);
    played.send(&session, "next");
    session.ended("completed");
    played.end();
}

/// 90: what was allowed for ever in one session is asked in another.
#[test]
fn an_allowance_is_of_its_session_alone() {
    let played = Played::new("acp", ASKS);
    let first = &mut played.session_of("scripted", "ASK rm it");
    let (request, opened) = asked(first);
    answer(&played.client(), &first.id, &request, &option(&opened, "allow_always")).expect_status(200);
    first.ended("completed");
    let second = &mut played.session_of("scripted", "ASK rm it");
    asked(second);
    assert!(second.all("request.answered").is_empty());
    assert_eq!(played.show(second)["status"], "requires_action");
    played.end();
}

/// 91: what was not offered cannot be chosen, and the request stays.
#[test]
fn only_what_is_offered_can_be_chosen() {
    for kind in ALL_KINDS {
        let played = Played::new(kind, ASKS);
        let mut session = played.session("ask");
        let (request, opened) = asked(&mut session);
        let offered = opened["options"].to_string();
        for wrong in ["accept_for_session", "allowForEver", "", "allow_always "] {
            assert!(!offered.contains(&format!("{wrong:?}")), "{kind}: {offered}");
            let refused = answer(&played.client(), &session.id, &request, wrong);
            assert!((400..500).contains(&refused.status), "{kind} {wrong:?}: {}", refused.text());
        }
        assert_eq!(played.show(&session)["status"], "requires_action", "{kind}");
        answer(&played.client(), &session.id, &request, &option(&opened, "allow_once")).expect_status(200);
        session.ended("completed");
        assert_eq!(session.text(), "allowed", "{kind}");
        played.end();
    }
}

/// 131, waiting for an answer: the host dies, and the answer to the same request reaches the agent once.
#[test]
fn an_answer_after_the_hosts_death_reaches_the_agent() {
    for kind in ALL_KINDS {
        let mut played = Played::new(kind, ASKS);
        let mut session = played.session("ask");
        let (request, opened) = asked(&mut session);
        played.restart();
        session.reopen(&played);
        answer(&played.client(), &session.id, &request, &option(&opened, "allow_once")).expect_status(200);
        session.ended("completed");
        assert_eq!(session.text(), "allowed", "{kind}");
        assert_eq!(session.all("process.started").len(), 1, "{kind}");
        assert_eq!(session.all("request.answered").len(), 1, "{kind}");
        assert_eq!(json!(session.all("turn.ended").len()), json!(1), "{kind}");
        played.end();
    }
}
