//! Requests of every kind: what may be answered, and what a lost connection means for them.

use super::*;
use crate::question::{Answers, Choice, Chosen, Elicitation, Question};

fn question() -> Question {
    let choice = |id: &str| Choice { id: id.to_owned(), label: id.to_owned(), description: None };
    Question {
        id: "q".to_owned(),
        text: "Which?".to_owned(),
        choices: vec![choice("a"), choice("b")],
        ..Question::default()
    }
}

impl Bench {
    fn asked(&mut self, asked: AskedByAgent) -> RequestId {
        self.agent(AgentEvent::RequestOpened(asked));
        self.session.requests.last().expect("open").id.clone()
    }

    fn answer_with(&mut self, request: &RequestId, answer: Answer) -> Result<(), RefusalCode> {
        let (request, by) = (request.clone(), "me".to_owned());
        let answer = Command::Answer { request, revision: None, answer, by };
        self.input(Input::Command(answer)).map(drop).map_err(|refusal| refusal.code)
    }
}

fn chosen(choice: &str) -> Answer {
    let chosen = Chosen { selected: vec![choice.to_owned()], text: None };
    Answer::Answers { answers: Answers::from([("q".to_owned(), chosen)]) }
}

#[test]
fn questions_take_answers_that_fit_them_and_nothing_else() {
    let mut bench = Bench::running();
    let asked = AskedByAgent {
        questions: vec![question()],
        ..AskedByAgent::new(RequestKey::from("1:1"), RequestKind::Question, "choose")
    };
    let request = bench.asked(asked);
    assert_eq!(bench.answer_with(&request, chosen("c")), Err(RefusalCode::OptionUnknown));
    assert_eq!(
        bench.answer_with(&request, Answer::Submit { content: None }),
        Err(RefusalCode::OptionUnknown)
    );
    assert_eq!(
        bench.answer_with(&request, Answer::Select { option_id: "a".to_owned() }),
        Err(RefusalCode::OptionUnknown)
    );
    assert_eq!(bench.answer_with(&request, chosen("b")), Ok(()));
    bench.agent(AgentEvent::RequestSettled { key: RequestKey::from("1:1"), confirmed: true });
    assert_eq!(bench.session.closed_requests[0].end, RequestEnd::Answered);
}

#[test]
fn a_form_takes_what_was_filled_in_and_an_approval_does_not() {
    let mut bench = Bench::running();
    let asked = AskedByAgent {
        elicitation: Some(Elicitation::Form { schema: serde_json::json!({ "type": "object" }) }),
        ..AskedByAgent::new(RequestKey::from("1:1"), RequestKind::Elicitation, "who are you")
    };
    let form = bench.asked(asked);
    let approval = bench.ask();
    let filled = Answer::Submit { content: Some(serde_json::json!({ "name": "x" })) };
    assert_eq!(bench.answer_with(&approval, filled.clone()), Err(RefusalCode::OptionUnknown));
    assert_eq!(bench.answer_with(&approval, chosen("a")), Err(RefusalCode::OptionUnknown));
    assert_eq!(bench.answer_with(&form, filled), Ok(()));
}

#[test]
fn a_request_that_is_not_asked_again_is_marked_and_stays_answerable() {
    let mut bench = Bench::running();
    let request = bench.ask();
    let key = RequestKey::from("1:0");
    for _ in 0..2 {
        bench.agent(AgentEvent::RequestUnconfirmed { key: key.clone() });
    }
    assert_eq!(bench.count("request.updated"), 1);
    assert!(bench.session.requests[0].unconfirmed);
    // Asked again: the same request, no longer in doubt.
    bench.ask();
    assert_eq!(bench.session.requests.len(), 1);
    assert!(!bench.session.requests[0].unconfirmed);
    bench.agent(AgentEvent::RequestUnconfirmed { key });
    bench.answer(&request, "yes", "me").expect("answerable");
}
