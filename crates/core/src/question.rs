//! Questions and forms that an agent puts to people, and what may be answered to them.

use crate::content::Answer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// One question of a request; a request may have several, answered together.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Question {
    /// What the answer names; unique within the request.
    pub id: String,
    /// What is asked.
    pub text: String,
    /// A word or two for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// What is offered; empty: only free text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<Choice>,
    /// Several choices may be taken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub multi_select: bool,
    /// Words of one's own may be given.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub free_text: bool,
    /// The answer is a secret: it goes to the agent, and the journal keeps only that it was given.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub secret: bool,
}

/// One offered choice.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Choice {
    /// What the answer names; unique within the question.
    pub id: String,
    /// For people.
    pub label: String,
    /// More for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// The answer to one question.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Chosen {
    /// Ids of choices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selected: Vec<String>,
    /// Words of one's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// Answers by question id.
pub type Answers = BTreeMap<String, Chosen>;

/// What an elicitation wants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "mode", rename_all = "snake_case")]
pub enum Elicitation {
    /// A form.
    Form {
        /// Its JSON schema, as the asker gave it: a flat object.
        schema: Value,
    },
    /// A page to be visited; what is entered there never comes by here.
    Url {
        /// Which.
        url: String,
    },
}

/// Why answers do not fit their questions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerMismatch {
    /// A name that no question has.
    #[error("there is no question {0:?}")]
    UnknownQuestion(String),
    /// A choice that is not offered.
    #[error("question {question:?} does not offer {choice:?}")]
    UnknownChoice {
        /// The question.
        question: String,
        /// The choice.
        choice: String,
    },
    /// More choices than one.
    #[error("question {0:?} takes one choice")]
    OneChoice(String),
    /// Words where only choices are taken.
    #[error("question {0:?} takes no words of one's own")]
    NoFreeText(String),
}

/// Checks answers against their questions. A question may be left out: agents take that as "not answered".
///
/// # Errors
/// [`AnswerMismatch`] names the question.
pub fn check(questions: &[Question], answers: &Answers) -> Result<(), AnswerMismatch> {
    for (id, chosen) in answers {
        let Some(question) = questions.iter().find(|question| question.id == *id) else {
            return Err(AnswerMismatch::UnknownQuestion(id.clone()));
        };
        let offered = |choice: &&String| question.choices.iter().any(|offered| offered.id == **choice);
        if let Some(choice) = chosen.selected.iter().find(|choice| !offered(choice)) {
            return Err(AnswerMismatch::UnknownChoice { question: id.clone(), choice: choice.clone() });
        }
        if chosen.selected.len() > 1 && !question.multi_select {
            return Err(AnswerMismatch::OneChoice(id.clone()));
        }
        if chosen.text.is_some() && !question.free_text && !question.choices.is_empty() {
            return Err(AnswerMismatch::NoFreeText(id.clone()));
        }
    }
    Ok(())
}

/// The answer as the journal keeps it: what was given to secret questions is left out, and that it was given stays.
#[must_use]
pub fn without_secrets(questions: &[Question], answer: &Answer) -> Answer {
    let Answer::Answers { answers } = answer else { return answer.clone() };
    let secret = |id: &String| questions.iter().any(|question| question.id == *id && question.secret);
    let kept = |(id, chosen): (&String, &Chosen)| {
        let chosen = if secret(id) { Chosen::default() } else { chosen.clone() };
        (id.clone(), chosen)
    };
    Answer::Answers { answers: answers.iter().map(kept).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn colour() -> Question {
        let choice = |id: &str| Choice { id: id.to_owned(), label: id.to_uppercase(), description: None };
        Question {
            id: "colour".to_owned(),
            text: "Which?".to_owned(),
            choices: vec![choice("red"), choice("blue")],
            ..Question::default()
        }
    }

    fn chosen(selected: &[&str], text: Option<&str>) -> Answers {
        let selected = selected.iter().map(|&id| id.to_owned()).collect();
        Answers::from([("colour".to_owned(), Chosen { selected, text: text.map(str::to_owned) })])
    }

    #[test]
    fn answers_must_fit_their_questions() {
        let one = [colour()];
        assert_eq!(check(&one, &chosen(&["red"], None)), Ok(()));
        assert_eq!(check(&one, &Answers::new()), Ok(()));
        assert_eq!(
            check(&one, &chosen(&["green"], None)),
            Err(AnswerMismatch::UnknownChoice { question: "colour".to_owned(), choice: "green".to_owned() })
        );
        assert_eq!(
            check(&one, &chosen(&["red", "blue"], None)),
            Err(AnswerMismatch::OneChoice("colour".to_owned()))
        );
        assert_eq!(
            check(&one, &chosen(&[], Some("mauve"))),
            Err(AnswerMismatch::NoFreeText("colour".to_owned()))
        );
        assert_eq!(
            check(&[], &chosen(&["red"], None)),
            Err(AnswerMismatch::UnknownQuestion("colour".to_owned()))
        );
        let wide = [Question { multi_select: true, free_text: true, ..colour() }];
        assert_eq!(check(&wide, &chosen(&["red", "blue"], Some("mauve"))), Ok(()));
        let open = [Question { choices: Vec::new(), ..colour() }];
        assert_eq!(check(&open, &chosen(&[], Some("mauve"))), Ok(()));
    }
}
