//! What stands in the program's own files: transcripts, and the list of its living processes. Pure: paths below the
//! account home, and texts in, facts out.

use serde::Deserialize;
use std::borrow::Cow;
use std::collections::HashMap;

/// The account home below the user's home, where nothing names another.
pub const DEFAULT_HOME: &str = ".claude";
/// Below the account home: one folder for each working folder, in it one transcript for each conversation.
pub const PROJECTS: &str = "projects";
/// Below the account home: one file for each living process; one that was killed leaves its file behind.
pub const PROCESSES: &str = "sessions";

/// Beside a transcript, in a folder named after the conversation: one transcript for each sub-agent.
pub const SUB_AGENTS: &str = "subagents";

/// The sub-agent whose transcript has this file name.
#[must_use]
pub fn sub_agent_of(file_name: &str) -> Option<&str> {
    file_name.strip_prefix("agent-")?.strip_suffix(".jsonl").filter(|id| !id.is_empty())
}

/// The name of the file that says what a sub-agent is.
#[must_use]
pub fn about_sub_agent(id: &str) -> String {
    format!("agent-{id}.meta.json")
}

/// The file name of a conversation's transcript. None where the id could name another file, or be taken for an option
/// of the program's command line.
#[must_use]
pub fn transcript_name(conversation: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let usable =
        !conversation.is_empty() && !conversation.starts_with('-') && conversation.bytes().all(plain);
    usable.then(|| format!("{conversation}.jsonl"))
}

/// A living process, as the program lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedProcess {
    /// Its pid.
    pub pid: i32,
    /// Its start time in clock ticks since boot.
    pub start_time: u64,
}

#[derive(Deserialize)]
struct ProcessFile<'a> {
    pid: i32,
    #[serde(borrow, rename = "procStart")]
    start: Cow<'a, str>,
    #[serde(borrow, rename = "sessionId")]
    conversation: Cow<'a, str>,
}

/// The conversation and the process that a file of [`PROCESSES`] lists. None: unreadable.
#[must_use]
pub fn listed(text: &str) -> Option<(String, ListedProcess)> {
    let listed: ProcessFile<'_> = serde_json::from_str(text).ok()?;
    let start_time = listed.start.parse().ok()?;
    Some((listed.conversation.into_owned(), ListedProcess { pid: listed.pid, start_time }))
}

/// The longest title that is made of a first message, in characters.
const MAX_TITLE_CHARS: usize = 200;

/// What a conversation is recognised by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct About {
    /// The name that it has, by a user or by the program.
    pub name: Option<String>,
    /// The beginning of its first message.
    pub first: Option<String>,
    /// The folder that it was begun in.
    pub cwd: Option<String>,
    /// When it was begun, as the program writes times.
    pub started: Option<String>,
    /// Whether anybody said anything.
    pub has_messages: bool,
}

#[derive(Deserialize)]
struct AboutRow<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    cwd: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    timestamp: Option<Cow<'a, str>>,
    #[serde(default, rename = "isMeta")]
    internal: bool,
    #[serde(borrow, default, rename = "customTitle")]
    custom_title: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "aiTitle")]
    ai_title: Option<Cow<'a, str>>,
    #[serde(default)]
    message: Option<AboutMessage>,
}

#[derive(Deserialize)]
struct AboutMessage {
    #[serde(default)]
    content: serde_json::Value,
}

/// What the beginning and the end of a transcript say of the conversation.
#[must_use]
pub fn about(head: &[u8], tail: &[u8]) -> About {
    let mut about = About::default();
    let (mut by_user, mut by_program, mut first) = (None, None, None);
    let lines = head.split(|byte| *byte == b'\n').chain(tail.split(|byte| *byte == b'\n'));
    for row in lines.filter_map(|line| serde_json::from_slice::<AboutRow<'_>>(line).ok()) {
        about.cwd = about.cwd.or_else(|| row.cwd.as_deref().map(str::to_owned));
        about.started = about.started.or_else(|| row.timestamp.as_deref().map(str::to_owned));
        by_user = row.custom_title.map(Cow::into_owned).filter(|title| !title.is_empty()).or(by_user);
        by_program = row.ai_title.map(Cow::into_owned).filter(|title| !title.is_empty()).or(by_program);
        about.has_messages |= matches!(&*row.kind, "user" | "assistant");
        if first.is_none() && row.kind == "user" && !row.internal {
            let content = row.message.map(|message| message.content).unwrap_or_default();
            let blocks = content.as_array().into_iter().flatten();
            let text = blocks.filter_map(|block| block.get("text")?.as_str()).next();
            let words = content.as_str().or(text).filter(|words| !words.starts_with('<'));
            first = words.map(|words| words.chars().take(MAX_TITLE_CHARS).collect::<String>());
        }
    }
    (about.name, about.first) = (by_user.or(by_program), first);
    about
}

#[derive(Deserialize)]
struct Row<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    uuid: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    attachment: Option<Attachment<'a>>,
}

#[derive(Deserialize)]
struct Attachment<'a> {
    #[serde(borrow, default)]
    source_uuid: Option<Cow<'a, str>>,
}

/// Calls `found` with the uuid of each message of a user in a piece of a transcript: one that began a turn has a row of
/// its own, one that went into a running turn stands in an attachment (measured). The program writes the row before it
/// asks the model, so a message without one never came to the model.
pub fn user_messages(transcript: &[u8], mut found: impl FnMut(&str)) {
    for line in transcript.split(|byte| *byte == b'\n') {
        let Ok(row) = serde_json::from_slice::<Row<'_>>(line) else { continue };
        match (&*row.kind, row.uuid, row.attachment.and_then(|attachment| attachment.source_uuid)) {
            ("user", Some(uuid), _) => found(&uuid),
            ("attachment", _, Some(uuid)) => found(&uuid),
            _ => {}
        }
    }
}

/// The calls among these that a transcript has without a result, each with its tool and input. The program takes up one
/// call of a message; others without a result are left out of what the model is told (measured).
#[must_use]
pub fn calls_without_result(transcript: &[u8], wanted: &[&str]) -> Vec<(String, String, serde_json::Value)> {
    let mut open: Vec<(String, OpenCall)> = Vec::new();
    for line in transcript.split(|byte| *byte == b'\n') {
        let Ok(row) = serde_json::from_slice::<AnswerRow<'_>>(line) else { continue };
        let Some(message) = row.message.filter(|_| !row.of_sub_agent) else { continue };
        let serde_json::Value::Array(blocks) = message.content else { continue };
        for mut block in blocks {
            let text = |name: &str| block.get(name).and_then(serde_json::Value::as_str).map(str::to_owned);
            match text("type").as_deref() {
                Some("tool_use") => {
                    let (Some(id), Some(tool)) = (text("id"), text("name")) else { continue };
                    let input = block.get_mut("input").map(serde_json::Value::take).unwrap_or_default();
                    open.push((id, OpenCall { tool, input }));
                }
                Some("tool_result") => {
                    let of = text("tool_use_id");
                    open.retain(|(id, _)| Some(id) != of.as_ref());
                }
                _ => {}
            }
        }
    }
    open.iter()
        .filter(|(id, _)| wanted.contains(&id.as_str()))
        .map(|(id, call)| (id.clone(), call.tool.clone(), call.input.clone()))
        .collect()
}

struct OpenCall {
    tool: String,
    input: serde_json::Value,
}

#[derive(Deserialize)]
struct AnswerRow<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    uuid: Option<Cow<'a, str>>,
    #[serde(default, rename = "isSidechain")]
    of_sub_agent: bool,
    #[serde(borrow, default)]
    message: Option<AnswerMessage<'a>>,
}

#[derive(Deserialize)]
struct AnswerMessage<'a> {
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(default)]
    content: serde_json::Value,
}

#[derive(Deserialize)]
struct TurnRow<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    uuid: Option<Cow<'a, str>>,
    /// A compaction begins a new chain without one: what stood before it cannot be taken up.
    #[serde(borrow, default, rename = "parentUuid")]
    parent: Option<Cow<'a, str>>,
    #[serde(default, rename = "isSidechain")]
    of_sub_agent: bool,
    #[serde(default, rename = "isMeta")]
    internal: bool,
    #[serde(default, rename = "toolUseResult")]
    result: Option<serde::de::IgnoredAny>,
}

/// The uuid of the model's last row in the turn that a message of a user began.
#[must_use]
pub fn last_row_after(transcript: &[u8], message: &str) -> Option<String> {
    let mut last = None;
    let mut inside = false;
    for line in transcript.split(|byte| *byte == b'\n') {
        let Ok(row) = serde_json::from_slice::<TurnRow<'_>>(line) else { continue };
        match &*row.kind {
            "user" if !row.of_sub_agent && row.uuid.as_deref() == Some(message) => inside = true,
            // The next one that a user wrote; results of tools and the program's own words belong to the turn.
            "user" if inside && !row.of_sub_agent && !row.internal && row.result.is_none() => break,
            "assistant" if inside && !row.of_sub_agent => last = row.uuid.map(Cow::into_owned).or(last),
            _ => {}
        }
    }
    last
}

/// Where a conversation is taken up so that it ends before a message of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Before {
    /// At this row.
    Row(String),
    /// The message is its first.
    Beginning,
    /// The message does not stand in this transcript.
    Unknown,
}

/// The row before the message of a user, up the branch that it stands on: the model's, or a result of a tool. Other rows
/// are the program's own, which it does not take a conversation up at.
#[must_use]
pub fn row_before(transcript: &[u8], message: &str) -> Before {
    let lines = transcript.split(|byte| *byte == b'\n');
    let rows: Vec<TurnRow<'_>> = lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let by_uuid: HashMap<&str, &TurnRow<'_>> = rows
        .iter()
        .filter(|row| !row.of_sub_agent)
        .filter_map(|row| Some((row.uuid.as_deref()?, row)))
        .collect();
    let of_user = by_uuid.get(message).filter(|row| row.kind == "user");
    let Some(mut row) = of_user.copied() else { return Before::Unknown };
    // A damaged file may have a ring.
    for _ in 0..rows.len() {
        let Some(parent) = row.parent.as_deref() else { return Before::Beginning };
        let Some(above) = by_uuid.get(parent).copied() else { return Before::Unknown };
        let said = above.kind == "assistant" || (above.kind == "user" && above.result.is_some());
        if let Some(uuid) = above.uuid.as_deref().filter(|_| said) {
            return Before::Row(uuid.to_owned());
        }
        row = above;
    }
    Before::Unknown
}

/// The uuid of the row that an item of ours stands in: a text or thought of a streamed message by the message's id (its
/// last row, since each block has one), a call by its own id, a message that did not stream by its row.
#[must_use]
pub fn row_of_item(transcript: &[u8], item: &str) -> Option<String> {
    let (name, _) = item.rsplit_once('.').unwrap_or((item, ""));
    let rows = transcript.split(|byte| *byte == b'\n').rev();
    rows.filter_map(|line| serde_json::from_slice::<AnswerRow<'_>>(line).ok())
        .filter(|row| row.kind == "assistant" && !row.of_sub_agent)
        .find(|row| {
            let message = row.message.as_ref();
            let calls = message.and_then(|message| message.content.as_array());
            row.uuid.as_deref() == Some(name)
                || message.is_some_and(|message| message.id.as_deref() == Some(name))
                || calls.is_some_and(|blocks| {
                    blocks.iter().any(|block| block.get("id").is_some_and(|id| id == item))
                })
        })
        .and_then(|row| row.uuid.map(Cow::into_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_stand_in_rows_and_in_attachments() {
        let transcript = concat!(
            "{\"type\":\"queue-operation\",\"operation\":\"enqueue\",\"content\":\"m0\"}\n",
            "{\"parentUuid\":null,\"type\":\"user\",\"message\":{\"role\":\"user\",\"content\":\"x\"},\"uuid\":\"m1\"}\n",
            "{\"type\":\"assistant\",\"uuid\":\"a1\"}\n",
            "cut off {\"type\":\"user\",\"uuid\":\"m9\"\n",
            "{\"type\":\"attachment\",\"uuid\":\"u\",\"attachment\":{\"type\":\"queued_command\",\"source_uuid\":\"m2\"}}\n",
            "{\"type\":\"attachment\",\"uuid\":\"v\",\"attachment\":{\"type\":\"skill_listing\",\"content\":[]}}\n",
        );
        let mut found = Vec::new();
        user_messages(transcript.as_bytes(), |uuid| found.push(uuid.to_owned()));
        assert_eq!(found, ["m1", "m2"]);
    }

    #[test]
    fn calls_without_a_result_are_found_also_beside_others() {
        let transcript = concat!(
            "{\"type\":\"assistant\",\"uuid\":\"a1\",\"message\":{\"id\":\"msg_1\",\"content\":[{\"type\":\"tool_use\",\"id\":\"c1\",\"name\":\"Bash\",\"input\":{}}]}}\n",
            "{\"type\":\"user\",\"uuid\":\"r1\",\"message\":{\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"c1\"}]}}\n",
            "{\"type\":\"assistant\",\"uuid\":\"a2\",\"message\":{\"id\":\"msg_2\",\"content\":[{\"type\":\"tool_use\",\"id\":\"c2\",\"name\":\"Bash\",\"input\":{}}]}}\n",
            "{\"type\":\"assistant\",\"uuid\":\"a3\",\"message\":{\"id\":\"msg_2\",\"content\":[{\"type\":\"tool_use\",\"id\":\"c3\",\"name\":\"Bash\",\"input\":{}}]}}\n",
            "{\"type\":\"assistant\",\"uuid\":\"a4\",\"message\":{\"id\":\"msg_3\",\"content\":[{\"type\":\"tool_use\",\"id\":\"c4\",\"name\":\"Write\",\"input\":{\"a\":1}}]}}\n",
        );
        let found = calls_without_result(transcript.as_bytes(), &["c1", "c2", "c4", "c9"]);
        let found: Vec<(&str, &str)> =
            found.iter().map(|(id, tool, _)| (id.as_str(), tool.as_str())).collect();
        assert_eq!(found, [("c2", "Bash"), ("c4", "Write")]);
    }

    #[test]
    fn a_turn_ends_before_the_next_message() {
        let transcript = concat!(
            "{\"type\":\"user\",\"uuid\":\"m1\"}\n",
            "{\"type\":\"assistant\",\"uuid\":\"a1\"}\n",
            "{\"type\":\"user\",\"uuid\":\"r1\",\"toolUseResult\":{}}\n",
            "{\"type\":\"assistant\",\"uuid\":\"s1\",\"isSidechain\":true}\n",
            "{\"type\":\"assistant\",\"uuid\":\"a2\"}\n",
            "{\"type\":\"user\",\"uuid\":\"m2\"}\n",
            "{\"type\":\"assistant\",\"uuid\":\"a3\"}\n",
        );
        let row = |message: &str| last_row_after(transcript.as_bytes(), message);
        assert_eq!((row("m1").as_deref(), row("m2").as_deref(), row("m3")), (Some("a2"), Some("a3"), None));
    }

    #[test]
    fn the_row_before_a_message_is_the_models_or_a_result() {
        let transcript = concat!(
            "{\"type\":\"user\",\"uuid\":\"m1\",\"parentUuid\":null}\n",
            "{\"type\":\"assistant\",\"uuid\":\"a1\",\"parentUuid\":\"m1\"}\n",
            "{\"type\":\"attachment\",\"uuid\":\"x\",\"parentUuid\":\"a1\"}\n",
            "{\"type\":\"user\",\"uuid\":\"m2\",\"parentUuid\":\"x\"}\n",
            "{\"type\":\"assistant\",\"uuid\":\"a2\",\"parentUuid\":\"m2\"}\n",
            "{\"type\":\"user\",\"uuid\":\"r1\",\"parentUuid\":\"a2\",\"toolUseResult\":{}}\n",
            "{\"type\":\"user\",\"uuid\":\"i\",\"parentUuid\":\"r1\"}\n",
            "{\"type\":\"user\",\"uuid\":\"m3\",\"parentUuid\":\"i\"}\n",
            "{\"type\":\"user\",\"uuid\":\"m4\",\"parentUuid\":\"gone\"}\n",
        );
        let before = |message: &str| row_before(transcript.as_bytes(), message);
        assert_eq!(before("m1"), Before::Beginning);
        assert_eq!(before("m2"), Before::Row("a1".to_owned()));
        assert_eq!(before("m3"), Before::Row("r1".to_owned()));
        assert_eq!(before("m4"), Before::Unknown, "its parent was never written");
        assert_eq!(before("m9"), Before::Unknown);
    }

    #[test]
    fn an_item_stands_in_a_row() {
        let transcript = concat!(
            "{\"type\":\"assistant\",\"uuid\":\"a1\",\"message\":{\"id\":\"msg_1\",\"content\":[{\"type\":\"thinking\"}]}}\n",
            "{\"type\":\"assistant\",\"uuid\":\"a2\",\"message\":{\"id\":\"msg_1\",\"content\":[{\"type\":\"text\"}]}}\n",
            "{\"type\":\"assistant\",\"uuid\":\"a3\",\"message\":{\"id\":\"msg_2\",\"content\":[{\"id\":\"toolu_1\"}]}}\n",
            "{\"type\":\"assistant\",\"uuid\":\"a4\",\"isSidechain\":true,\"message\":{\"id\":\"msg_1\",\"content\":[]}}\n",
        );
        let row = |item: &str| row_of_item(transcript.as_bytes(), item);
        assert_eq!(row("msg_1.0").as_deref(), Some("a2"), "the message's last row");
        assert_eq!(row("toolu_1").as_deref(), Some("a3"));
        assert_eq!(row("a1.0").as_deref(), Some("a1"));
        assert_eq!(row("msg_9.0"), None);
    }

    #[test]
    fn a_conversation_is_recognised_by_its_name_or_its_first_message() {
        let head = concat!(
            "{\"type\":\"mode\"}\n",
            "{\"type\":\"user\",\"isMeta\":true,\"message\":{\"content\":\"internal\"}}\n",
            "{\"type\":\"user\",\"cwd\":\"/w\",\"timestamp\":\"T\",\"message\":{\"content\":[{\"type\":\"text\",\"text\":\"first\"}]}}\n",
        );
        let title = |tail: &str| about(head.as_bytes(), tail.as_bytes()).name;
        assert_eq!(about(head.as_bytes(), b"").first.as_deref(), Some("first"));
        assert_eq!(title(""), None);
        assert_eq!(
            title("{\"type\":\"ai-title\",\"aiTitle\":\"By the program\"}").as_deref(),
            Some("By the program")
        );
        let both = "{\"type\":\"custom-title\",\"customTitle\":\"By me\"}\n{\"type\":\"ai-title\",\"aiTitle\":\"x\"}";
        assert_eq!(title(both).as_deref(), Some("By me"));
        assert_eq!(about(b"{\"type\":\"mode\"}", b""), About::default());
    }

    #[test]
    fn a_process_is_listed_with_its_identity() {
        let text = r#"{"pid":21698,"sessionId":"c-1","cwd":"/w","procStart":"1238678","kind":"interactive"}"#;
        let process = ListedProcess { pid: 21698, start_time: 1_238_678 };
        assert_eq!(listed(text), Some(("c-1".to_owned(), process)));
        assert_eq!(listed("{}"), None);
    }

    #[test]
    fn an_id_names_no_other_file() {
        assert_eq!(transcript_name("a-1").as_deref(), Some("a-1.jsonl"));
        assert_eq!(transcript_name("../x"), None);
        assert_eq!(transcript_name(""), None);
        assert_eq!(transcript_name("-p"), None);
    }
}
