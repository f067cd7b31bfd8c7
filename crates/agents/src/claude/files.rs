//! What stands in the program's own files: transcripts, and the list of its living processes. Pure: paths below the
//! account home, and texts in, facts out.

use serde::Deserialize;
use std::borrow::Cow;

/// The account home below the user's home, where nothing names another.
pub const DEFAULT_HOME: &str = ".claude";
/// Below the account home: one folder for each working folder, in it one transcript for each conversation.
pub const PROJECTS: &str = "projects";
/// Below the account home: one file for each living process; one that was killed leaves its file behind.
pub const PROCESSES: &str = "sessions";

/// The file name of a conversation's transcript. None where the id could name another file.
#[must_use]
pub fn transcript_name(conversation: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (!conversation.is_empty() && conversation.bytes().all(plain)).then(|| format!("{conversation}.jsonl"))
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

/// The process that a file of [`PROCESSES`] lists for this conversation. None: for another one, or unreadable.
#[must_use]
pub fn listed_process(text: &str, conversation: &str) -> Option<ListedProcess> {
    let listed: ProcessFile<'_> = serde_json::from_str(text).ok()?;
    let start_time = listed.start.parse().ok()?;
    (listed.conversation == conversation).then_some(ListedProcess { pid: listed.pid, start_time })
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
    fn a_process_is_listed_with_its_identity() {
        let text = r#"{"pid":21698,"sessionId":"c-1","cwd":"/w","procStart":"1238678","kind":"interactive"}"#;
        let process = ListedProcess { pid: 21698, start_time: 1_238_678 };
        assert_eq!(listed_process(text, "c-1"), Some(process));
        assert_eq!(listed_process(text, "c-2"), None);
        assert_eq!(listed_process("{}", "c-1"), None);
    }

    #[test]
    fn an_id_names_no_other_file() {
        assert_eq!(transcript_name("a-1").as_deref(), Some("a-1.jsonl"));
        assert_eq!(transcript_name("../x"), None);
        assert_eq!(transcript_name(""), None);
    }
}
