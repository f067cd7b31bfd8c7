//! Events as text: what the agent says on standard output, what it does on standard error.

use crate::output;
use serde_json::Value;
use std::collections::HashMap;
use std::io;

/// What is on the screen.
#[derive(Debug, Default)]
pub(crate) struct Screen {
    /// Messages of the agent that are open: bytes shown.
    messages: HashMap<String, u64>,
    /// The last thing on standard output was not a line end.
    mid_line: bool,
}

impl Screen {
    /// A screen on which the beginnings of open messages stand already; the last one's line goes on.
    pub(crate) fn after(shown: Vec<(String, u64)>) -> Self {
        Self { mid_line: !shown.is_empty(), messages: shown.into_iter().collect() }
    }

    /// Shows an event.
    pub(crate) fn show(&mut self, data: &Value) -> io::Result<()> {
        let text = |member: &str| data[member].as_str().unwrap_or_default();
        match text("type") {
            "item.started" => match text("kind") {
                "agent_message" => {
                    self.end_line()?;
                    self.messages.insert(text("item").to_owned(), 0);
                }
                "tool_call" => self.beside(&format!("• {}", title(data)))?,
                "notice" => self.beside(&title(data))?,
                _ => {}
            },
            "item.delta" => self.delta(text("item"), data["offset"].as_u64().unwrap_or(0), text("text"))?,
            "item.completed" => self.completed(data)?,
            "notice" => self.beside(&format!("{}: {}", text("level"), text("message")))?,
            "stop.escalated" => self.beside("the agent did not react to the stop; it is taken further")?,
            "stop.blocked" => {
                let others = data["others"].as_array().map_or(0, Vec::len);
                self.beside(&format!(
                    "the agent does not end this; only the end of its process does, which {others} other sessions use (`mainstay stop --kill`)"
                ))?;
            }
            "request.opened" => self.beside(&format!("? {}", text("title")))?,
            "process.exited"
                if data["exit"]["cause"] != "agent_left" && data["exit"]["cause"].is_string() =>
            {
                self.beside(&format!(
                    "the agent's process ended ({})",
                    data["exit"]["cause"].as_str().unwrap_or_default()
                ))?;
            }
            "turn.ended" => {
                self.end_line()?;
                if let Some(message) = data["failure"]["message"].as_str() {
                    self.beside(message)?;
                }
                if text("outcome") != "completed" {
                    self.beside(&format!("the turn ended: {}", text("outcome")))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Text from an offset on; what is shown already is left out.
    fn delta(&mut self, item: &str, offset: u64, text: &str) -> io::Result<()> {
        let Some(shown) = self.messages.get_mut(item) else { return Ok(()) };
        let skip = usize::try_from(shown.saturating_sub(offset)).unwrap_or(usize::MAX);
        let Some(new) = text.get(skip..).filter(|new| !new.is_empty()) else { return Ok(()) };
        *shown = offset + text.len() as u64;
        self.mid_line = !new.ends_with('\n');
        output::text(new)
    }

    fn completed(&mut self, data: &Value) -> io::Result<()> {
        let item = data["item"].as_str().unwrap_or_default();
        if let Some(shown) = self.messages.remove(item) {
            if let (true, Some(whole)) = (data["replaces"] == true, data["text"].as_str()) {
                self.end_line()?;
                if shown > 0 {
                    output::note("the agent's final text differs from what was streamed; the final text:");
                }
                self.mid_line = !whole.is_empty() && !whole.ends_with('\n');
                output::text(whole)?;
            }
            return self.end_line();
        }
        match data["status"].as_str() {
            Some(status @ ("failed" | "declined" | "incomplete")) => self.beside(&format!("  {status}")),
            _ => Ok(()),
        }
    }

    /// Says something beside the text, on a line of its own.
    fn beside(&mut self, text: &str) -> io::Result<()> {
        self.end_line()?;
        output::note(text);
        Ok(())
    }

    /// Ends the line of text that was begun.
    pub(crate) fn end_line(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.mid_line) {
            output::text("\n")?;
        }
        Ok(())
    }
}

fn title(data: &Value) -> String {
    match data["title"].as_str() {
        Some(title) => title.to_owned(),
        None => data["tool_kind"].as_str().unwrap_or("working").to_owned(),
    }
}
