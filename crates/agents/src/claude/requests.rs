//! What the agent asks: permissions, questions, forms. And what becomes of our own control requests.

use super::items::{tool_kind, tool_title};
use super::state::{
    MAX_DECLINED, MAX_ID_BYTES, MAX_KEPT_REQUEST_BYTES, MAX_OPEN_REQUESTS, MAX_REQUEST_ID_BYTES, OpenRequest,
    Waiting, Wants,
};
use super::wire::{self, Asked};
use super::{ClaudeAdapter, text};
use crate::adapter::{CannotTell, Translated};
use mainstay_core::agent::{AskedByAgent, NoticeLevel};
use mainstay_core::content::{Answer, OptionKind, PermissionOption, RequestKind};
use mainstay_core::question::{Answers, Choice, Elicitation, Question};
use mainstay_core::{AgentEvent, ItemKey, RequestKey, ThreadId};
use serde_json::{Value, json};

/// The option that allows once.
const ALLOW: &str = "allow";
/// The option that denies once.
const DENY: &str = "deny";
/// What the options that take the agent's own suggestions begin with; the number of the suggestion follows.
const SUGGESTION: &str = "suggestion:";
/// What a denial says where nobody gave a reason; the program wants one.
const NO_REASON: &str = "The user declined.";

impl ClaudeAdapter {
    pub(super) fn control_response(&mut self, at: usize, line: &Value, out: &mut Translated) {
        let Some(answer) = line.get("response") else { return };
        let id = text(answer, "request_id").unwrap_or_default();
        if let Some(place) = self.sessions.slot(at).state.answered.iter().position(|answered| answered == id)
        {
            // Our own answer, said again: it arrived.
            self.sessions.change(at).answered.remove(place);
            self.say(at, AgentEvent::RequestSettled { key: RequestKey::from(id), confirmed: true }, out);
            return;
        }
        match Asked::of_id(id) {
            Some(Asked::Version) => self.version_told(answer),
            Some(Asked::Initialize) => self.initialized(at, answer, out),
            Some(Asked::Catalogue) => self.catalogue_told(answer),
            Some(Asked::ListOpen) => self.open_listed(at, answer, out),
            Some(Asked::Set(setting)) => self.set(at, setting, answer, out),
            Some(Asked::Control(control)) => self.control_answered(at, control, answer, out),
            Some(Asked::RewindFiles(control, row)) => self.files_rewound(at, control, row, answer, out),
            Some(Asked::Withdraw(submission)) => self.withdrawal_answered(at, submission, answer, out),
            // What a stop did is told by the result. An echo of an answer to what is settled tells nothing.
            Some(Asked::Interrupt) | None => {}
        }
    }

    pub(super) fn control_request(&mut self, at: usize, line: Value, out: &mut Translated) {
        let id = text(&line, "request_id").unwrap_or_default().to_owned();
        let request = line.get("request").cloned().unwrap_or_default();
        match text(&request, "subtype").unwrap_or_default() {
            "can_use_tool" => self.asked(at, &id, request, out),
            "elicitation" => self.asked(at, &id, request, out),
            // No hook of ours is ever registered; an unanswered one could end the process.
            "hook_callback" => out.send(&wire::answer(&id, json!({}))),
            "request_user_dialog" => out.send(&wire::answer(&id, json!({ "behavior": "cancelled" }))),
            other => {
                out.send(&wire::refusal(&id, "this client does not offer that"));
                self.unmodelled(at, &format!("control_request/{other}"), line, out);
            }
        }
    }

    fn asked(&mut self, at: usize, id: &str, request: Value, out: &mut Translated) {
        let thread = &self.sessions.slot(at).state;
        let wants = wants(&request);
        if thread.requests.contains_key(id) {
            return;
        }
        if id.len() > MAX_REQUEST_ID_BYTES || thread.requests.len() >= MAX_OPEN_REQUESTS {
            let denied = match wants {
                Wants::Form => json!({ "action": "decline" }),
                Wants::Permission | Wants::Answers | Wants::PlanExit => {
                    json!({ "behavior": "deny", "message": "too many requests are open" })
                }
            };
            out.send(&wire::answer(id, denied));
            let message = "too many requests are open; one more was denied".to_owned();
            let provider = Some(request);
            self.say(at, AgentEvent::Notice { level: NoticeLevel::Warning, message, provider }, out);
            return;
        }
        let tool = text(&request, "tool_use_id").filter(|id| id.len() <= MAX_ID_BYTES).map(str::to_owned);
        // A sub-agent in the background asks for itself, in no turn.
        let agent = text(&request, "agent_id").filter(|id| id.len() <= MAX_ID_BYTES);
        let in_background = agent.is_some_and(|agent| thread.works_alone(agent));
        let turn = thread.turn_id().filter(|_| !in_background);
        let asked = AskedByAgent {
            turn: turn.clone(),
            child: agent.map(ThreadId::from),
            ..asked_by_agent(wants, id, &request, tool.as_deref())
        };
        let fits = request.to_string().len() + thread.kept_request_bytes() <= MAX_KEPT_REQUEST_BYTES;
        let open = OpenRequest { wants, turn, tool, asked: fits.then_some(request), of_transcript: false };
        self.sessions.change(at).requests.insert(id.to_owned(), open);
        self.say(at, AgentEvent::RequestOpened(asked), out);
    }

    /// Asks again what a process that died had asked. The suggestions are not known any more.
    pub(super) fn ask_again(&mut self, at: usize, out: &mut Translated) {
        for unanswered in self.sessions.take_unanswered(at) {
            let tool = unanswered.call.to_string();
            let request = json!({
                "subtype": "can_use_tool",
                "tool_name": unanswered.tool,
                "input": unanswered.input,
                "tool_use_id": tool,
            });
            let wants = wants(&request);
            let kept = self.sessions.slot(at).state.kept_request_bytes();
            let fits = request.to_string().len() + kept <= MAX_KEPT_REQUEST_BYTES;
            let id = format!("again:{tool}");
            if tool.len() > MAX_ID_BYTES || (wants == Wants::Answers && !fits) {
                self.warn_at(at, format!("a request about the call {tool} cannot be asked again"), out);
                continue;
            }
            let asked = AskedByAgent {
                recovers: Some(unanswered.request),
                ..asked_by_agent(wants, &id, &request, None)
            };
            let asked_for = fits.then_some(request);
            let open =
                OpenRequest { wants, turn: None, tool: Some(tool), asked: asked_for, of_transcript: true };
            self.sessions.change(at).requests.insert(id, open);
            self.say(at, AgentEvent::RequestOpened(asked), out);
        }
    }

    /// The agent has taken up the call of a process that died: that is the turn that goes on, and our answer was read.
    pub(super) fn call_taken_up(&mut self, at: usize, line: &Value, record_at: i64, out: &mut Translated) {
        let Some((tool, _)) = &self.sessions.slot(at).state.taken_up else { return };
        let blocks = line.pointer("/message/content").and_then(Value::as_array);
        let is_it = blocks.into_iter().flatten().any(|block| text(block, "id") == Some(tool));
        if !is_it {
            return;
        }
        self.open_turn(at, text(line, "uuid"), record_at, out);
        if let Some((_, key)) = self.sessions.change(at).taken_up.take() {
            self.say(at, AgentEvent::RequestSettled { key: RequestKey(key), confirmed: true }, out);
        }
    }

    pub(super) fn answer_request(
        &mut self,
        at: usize,
        key: &RequestKey,
        answer: &Answer,
        out: &mut Translated,
    ) -> Result<(), CannotTell> {
        if !self.sessions.slot(at).state.requests.contains_key(key.as_str()) {
            return Err(CannotTell::UnknownRequest(key.to_string()));
        }
        let Some(request) = self.sessions.change(at).requests.remove(key.as_str()) else { return Ok(()) };
        match request.asked.clone() {
            Some(asked) => self.send_answer(at, key.as_str(), &request, &asked, answer, out),
            None if request.of_transcript => {
                self.send_answer(at, key.as_str(), &request, &Value::Null, answer, out);
            }
            None => {
                // Too large to be kept: the agent says it again.
                let waiting = Waiting { key: key.to_string(), request, answer: answer.clone() };
                self.sessions.change(at).waiting.push(waiting);
                out.send(&self.initialize(&Asked::ListOpen));
            }
        }
        Ok(())
    }

    /// The agent says what is open: answers that waited for that go out.
    fn open_listed(&mut self, at: usize, answer: &Value, out: &mut Translated) {
        let listed = answer.get("pending_permission_requests").and_then(Value::as_array);
        let listed = listed.map_or(&[][..], Vec::as_slice);
        for waiting in std::mem::take(&mut self.sessions.change(at).waiting) {
            let again = listed.iter().find(|line| text(line, "request_id") == Some(&waiting.key));
            match again.and_then(|line| line.get("request")) {
                Some(asked) => {
                    self.send_answer(at, &waiting.key, &waiting.request, asked, &waiting.answer, out);
                }
                None => {
                    let key = RequestKey(waiting.key);
                    self.say(at, AgentEvent::RequestSettled { key, confirmed: false }, out);
                }
            }
        }
    }

    fn send_answer(
        &mut self,
        at: usize,
        key: &str,
        request: &OpenRequest,
        asked: &Value,
        answer: &Answer,
        out: &mut Translated,
    ) {
        let mut response = match request.wants {
            Wants::Form => form_answer(answer),
            Wants::Permission | Wants::Answers | Wants::PlanExit => permission_answer(asked, answer),
        };
        let thread = self.sessions.change(at);
        if let Some(tool) = request.tool.as_ref().filter(|_| request.of_transcript) {
            // It looks the call up by this, and takes the input that stands there where none is given (measured).
            response["toolUseID"] = Value::from(tool.as_str());
            if asked.is_null()
                && let Some(fields) = response.as_object_mut()
            {
                fields.remove("updatedInput");
            }
            thread.taken_up = Some((tool.clone(), key.to_owned()));
            self.others_are_not_taken_up(at, out);
        }
        let thread = self.sessions.change(at);
        if response.get("behavior").and_then(Value::as_str) == Some("deny")
            && let Some(tool) = &request.tool
        {
            thread.declined.push(tool.clone());
            if thread.declined.len() > MAX_DECLINED {
                thread.declined.remove(0);
            }
        }
        thread.answered.push(key.to_owned());
        if thread.answered.len() > MAX_OPEN_REQUESTS {
            thread.answered.remove(0);
        }
        out.send(&wire::answer(key, response));
    }

    /// The agent goes on from the one call that it is told of. It would run the others of that message too, and tell the
    /// model of each that its result is missing (measured): so they are not asked for any more.
    fn others_are_not_taken_up(&mut self, at: usize, out: &mut Translated) {
        let requests = &self.sessions.slot(at).state.requests;
        let others: Vec<String> =
            requests.iter().filter(|(_, open)| open.of_transcript).map(|(key, _)| key.clone()).collect();
        if others.is_empty() {
            return;
        }
        self.sessions.change(at).requests.retain(|_, open| !open.of_transcript);
        let message = format!(
            "the agent goes on from one of the calls that its former process asked about; {} more did not run and will not, \
             unless the model asks for them again",
            others.len()
        );
        self.warn_at(at, message, out);
        for key in others {
            self.say(at, AgentEvent::RequestSettled { key: RequestKey(key), confirmed: false }, out);
        }
    }

    /// The agent takes a request of its own back.
    pub(super) fn withdrawn(&mut self, at: usize, line: &Value, out: &mut Translated) {
        let id = text(line, "request_id").unwrap_or_default();
        let thread = &self.sessions.slot(at).state;
        let answered = thread.answered.iter().any(|answered| answered == id);
        let waiting = thread.waiting.iter().any(|waiting| waiting.key == id);
        if !answered && !waiting && !thread.requests.contains_key(id) {
            return;
        }
        let thread = self.sessions.change(at);
        thread.requests.remove(id);
        thread.answered.retain(|answered| answered != id);
        thread.waiting.retain(|waiting| waiting.key != id);
        self.say(at, AgentEvent::RequestSettled { key: RequestKey::from(id), confirmed: false }, out);
    }
}

fn wants(request: &Value) -> Wants {
    match (text(request, "subtype"), text(request, "tool_name")) {
        (Some("elicitation"), _) => Wants::Form,
        (_, Some("AskUserQuestion")) => Wants::Answers,
        (_, Some("ExitPlanMode")) => Wants::PlanExit,
        _ => Wants::Permission,
    }
}

fn asked_by_agent(wants: Wants, id: &str, request: &Value, tool: Option<&str>) -> AskedByAgent {
    let kind = match wants {
        Wants::Permission => RequestKind::Approval,
        Wants::Answers => RequestKind::Question,
        Wants::PlanExit => RequestKind::PlanExit,
        Wants::Form => RequestKind::Elicitation,
    };
    AskedByAgent {
        item: tool.map(ItemKey::from),
        tool_kind: (wants == Wants::Permission)
            .then(|| tool_kind(text(request, "tool_name").unwrap_or_default())),
        options: options(wants, request),
        questions: if wants == Wants::Answers { questions(request) } else { Vec::new() },
        elicitation: (wants == Wants::Form).then(|| elicitation(request)),
        details: request.clone(),
        ..AskedByAgent::new(RequestKey::from(id), kind, title(request))
    }
}

fn title(request: &Value) -> String {
    match wants(request) {
        Wants::Form => text(request, "message").unwrap_or("An MCP server asks").to_owned(),
        Wants::Answers => {
            let question = request.pointer("/input/questions/0/question").and_then(Value::as_str);
            question.unwrap_or("The agent asks").to_owned()
        }
        Wants::PlanExit => "Leave planning and begin?".to_owned(),
        Wants::Permission => {
            let name = text(request, "display_name").or_else(|| text(request, "tool_name"));
            tool_title(name.unwrap_or("A tool"), request.get("input"))
        }
    }
}

fn options(wants: Wants, request: &Value) -> Vec<PermissionOption> {
    let option = |option_id: String, name: String, kind| PermissionOption { option_id, name, kind };
    let (allow, deny) = match wants {
        Wants::Answers | Wants::Form => return Vec::new(),
        Wants::Permission => ("Allow once", "Deny"),
        Wants::PlanExit => ("Begin with the plan", "Keep planning"),
    };
    let mut options = vec![option(ALLOW.to_owned(), allow.to_owned(), OptionKind::AllowOnce)];
    let suggestions = request.get("permission_suggestions").and_then(Value::as_array);
    for (number, suggestion) in suggestions.into_iter().flatten().enumerate() {
        let name = format!("Allow, and {}", grants(suggestion));
        options.push(option(format!("{SUGGESTION}{number}"), name, OptionKind::AllowAlways));
    }
    options.push(option(DENY.to_owned(), deny.to_owned(), OptionKind::RejectOnce));
    options
}

/// What a suggestion grants, and for how long.
fn grants(suggestion: &Value) -> String {
    let list = |name: &str| suggestion.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let what = match text(suggestion, "type").unwrap_or_default() {
        "addRules" => {
            let rules: Vec<String> = list("rules")
                .iter()
                .map(|rule| match (text(rule, "toolName").unwrap_or("a tool"), text(rule, "ruleContent")) {
                    (tool, Some(content)) => format!("{tool}({content})"),
                    (tool, None) => tool.to_owned(),
                })
                .collect();
            let behavior = text(suggestion, "behavior").unwrap_or("allow");
            format!("always {behavior} {}", rules.join(", "))
        }
        "addDirectories" => {
            let folders: Vec<&str> = list("directories").iter().filter_map(Value::as_str).collect();
            format!("give access to {}", folders.join(", "))
        }
        "setMode" => format!("go on in the mode {}", text(suggestion, "mode").unwrap_or("?")),
        other => format!("apply {other}"),
    };
    match text(suggestion, "destination") {
        Some("session") => format!("{what}, in this session"),
        Some("localSettings") => format!("{what}, in this project for this user"),
        Some("projectSettings") => format!("{what}, in this project for everybody"),
        Some("userSettings") => format!("{what}, in all projects of this user"),
        Some(other) => format!("{what} ({other})"),
        None => what,
    }
}

fn permission_answer(asked: &Value, answer: &Answer) -> Value {
    let deny = |message: &Option<String>, interrupt: bool| {
        let message = message.as_deref().unwrap_or(NO_REASON);
        json!({ "behavior": "deny", "message": message, "interrupt": interrupt })
    };
    match answer {
        Answer::Select { option_id } if option_id == DENY => deny(&None, false),
        Answer::Select { option_id } => {
            // The program refuses an `allow` without the input.
            let input = asked.get("input").cloned().unwrap_or_else(|| json!({}));
            let mut allow = json!({ "behavior": "allow", "updatedInput": input });
            let number = option_id.strip_prefix(SUGGESTION).and_then(|number| number.parse::<usize>().ok());
            if let Some(suggestion) = number
                .and_then(|number| asked.get("permission_suggestions").and_then(Value::as_array)?.get(number))
            {
                allow["updatedPermissions"] = json!([suggestion]);
            }
            allow
        }
        Answer::Answers { answers } => {
            let mut input = asked.get("input").cloned().unwrap_or_else(|| json!({}));
            input["answers"] = chosen(&questions(asked), answers);
            json!({ "behavior": "allow", "updatedInput": input })
        }
        // No form is asked for here.
        Answer::Submit { .. } => deny(&None, false),
        Answer::Decline { message } => deny(message, false),
        Answer::Cancel { message } => deny(message, true),
    }
}

/// The questions of an `AskUserQuestion`. The agent knows them and their choices by their texts alone; ours are named
/// by their place.
fn questions(request: &Value) -> Vec<Question> {
    let asked = request.pointer("/input/questions").and_then(Value::as_array);
    let read = |(number, question): (usize, &Value)| {
        let offered = question.get("options").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let choice = |choice: &Value| {
            let label = text(choice, "label")?.to_owned();
            let description = text(choice, "description").map(str::to_owned);
            Some(Choice { id: label.clone(), label, description })
        };
        Question {
            id: number.to_string(),
            text: text(question, "question").unwrap_or_default().to_owned(),
            header: text(question, "header").map(str::to_owned),
            choices: offered.iter().filter_map(choice).collect(),
            multi_select: question.get("multiSelect") == Some(&Value::Bool(true)),
            free_text: true,
            secret: false,
        }
    };
    asked.into_iter().flatten().enumerate().map(read).collect()
}

/// Answers as the agent reads them: by the question's text, several choices in one line.
fn chosen(questions: &[Question], answers: &Answers) -> Value {
    let line = |question: &Question| {
        let chosen = answers.get(&question.id)?;
        let words: Vec<&str> =
            chosen.selected.iter().map(String::as_str).chain(chosen.text.as_deref()).collect();
        (!words.is_empty()).then(|| (question.text.clone(), Value::from(words.join(", "))))
    };
    Value::Object(questions.iter().filter_map(line).collect())
}

fn elicitation(request: &Value) -> Elicitation {
    match (text(request, "mode"), text(request, "url")) {
        (Some("url"), Some(url)) => Elicitation::Url { url: url.to_owned() },
        _ => Elicitation::Form { schema: request.get("requested_schema").cloned().unwrap_or_default() },
    }
}

fn form_answer(answer: &Answer) -> Value {
    match answer {
        Answer::Submit { content: Some(content) } => json!({ "action": "accept", "content": content }),
        Answer::Submit { content: None } => json!({ "action": "accept" }),
        Answer::Cancel { .. } => json!({ "action": "cancel" }),
        // Nothing else is offered: no choice and no answers.
        Answer::Decline { .. } | Answer::Select { .. } | Answer::Answers { .. } => {
            json!({ "action": "decline" })
        }
    }
}
