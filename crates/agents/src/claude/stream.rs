//! `stream_event`: the model's message as it comes. Text goes on a fast path without any tree and changes no state.

use super::ClaudeAdapter;
use super::items::tool_started;
use super::state::{Block, MAX_ID_BYTES, MAX_OPEN_BLOCKS, Streaming};
use super::wire::DeltaLine;
use crate::adapter::Translated;
use mainstay_core::content::{ItemFields, ItemKind, ItemStatus};
use mainstay_core::{AgentEvent, ItemKey};
use serde_json::Value;

impl ClaudeAdapter {
    /// Takes a line that is a piece of text or thought of an open block; false where it is anything else.
    pub(super) fn delta(&self, bytes: &[u8], out: &mut Translated) -> bool {
        let Ok(line) = serde_json::from_slice::<DeltaLine<'_>>(bytes) else { return false };
        let Some(text) = line.event.delta.text.or(line.event.delta.thinking) else { return false };
        let Some(at) = self.at() else { return false };
        let slot = self.sessions.slot(at);
        let open = slot.state.streaming.iter().flat_map(|streaming| &streaming.open);
        let Some(block) = open.into_iter().find(|block| block.index == line.event.index) else {
            return false;
        };
        if !text.0.is_empty() {
            let (key, kind, text) = (block.key.clone(), block.kind, text.0.into_owned());
            let turn = slot.state.turn_id();
            out.say(&slot.session, AgentEvent::ItemDelta { key, turn, kind, text });
        }
        true
    }

    pub(super) fn stream_event(&mut self, at: usize, line: &Value, out: &mut Translated) {
        let Some(event) = line.get("event") else { return };
        let index = event.get("index").and_then(Value::as_u64).unwrap_or_default();
        match event.get("type").and_then(Value::as_str).unwrap_or_default() {
            "message_start" => {
                // A message before it that never stopped was cut off, and is asked for again.
                self.cut_streaming(at, out);
                let id = event.pointer("/message/id").and_then(Value::as_str).unwrap_or_default();
                if id.len() <= MAX_ID_BYTES {
                    let streaming = Streaming { id: id.to_owned(), open: Vec::new() };
                    self.sessions.change(at).streaming = Some(streaming);
                }
            }
            "content_block_start" => self.block_started(at, index, event, out),
            "content_block_stop" => self.block_stopped(at, index, out),
            "message_stop" => {
                let open = self.sessions.change(at).streaming.take().map(|streaming| streaming.open);
                for block in open.unwrap_or_default() {
                    self.complete_block(at, block, ItemStatus::Completed, out);
                }
            }
            // Input of a tool comes whole with its `assistant` line, signatures are for the provider alone, the true
            // usage comes with the result.
            "content_block_delta" | "message_delta" | "ping" => {}
            other => self.unmodelled(at, &format!("stream_event/{other}"), line.clone(), out),
        }
    }

    fn block_started(&mut self, at: usize, index: u64, event: &Value, out: &mut Translated) {
        let Some(block) = event.get("content_block") else { return };
        let kind = match block.get("type").and_then(Value::as_str).unwrap_or_default() {
            "text" => ItemKind::AgentMessage,
            "thinking" => ItemKind::AgentThought,
            "tool_use" => {
                if let Some(event) = tool_started(block, self.sessions.slot(at).state.turn_id(), None) {
                    self.say(at, event, out);
                }
                return;
            }
            // Shown whole with its `assistant` line.
            _ => return,
        };
        let thread = self.sessions.change(at);
        let Some(streaming) = &mut thread.streaming else { return };
        let key = ItemKey(format!("{}.{index}", streaming.id));
        streaming.open.push(Block { index, kind, key });
        if streaming.open.len() > MAX_OPEN_BLOCKS {
            let oldest = streaming.open.remove(0);
            self.complete_block(at, oldest, ItemStatus::Completed, out);
        }
    }

    fn block_stopped(&mut self, at: usize, index: u64, out: &mut Translated) {
        let open = self.sessions.slot(at).state.streaming.iter().flat_map(|streaming| &streaming.open);
        if !open.into_iter().any(|block| block.index == index) {
            return;
        }
        let Some(streaming) = &mut self.sessions.change(at).streaming else { return };
        if let Some(place) = streaming.open.iter().position(|block| block.index == index) {
            let block = streaming.open.remove(place);
            self.complete_block(at, block, ItemStatus::Completed, out);
        }
    }

    fn complete_block(&self, at: usize, block: Block, status: ItemStatus, out: &mut Translated) {
        let Block { kind, key, .. } = block;
        let turn = self.sessions.slot(at).state.turn_id();
        let fields = ItemFields::default();
        self.say(at, AgentEvent::ItemCompleted { key, turn, kind, status, text: None, fields }, out);
    }

    /// Ends a message that has not stopped; tells whether there was one.
    pub(super) fn cut_streaming(&mut self, at: usize, out: &mut Translated) -> bool {
        if self.sessions.slot(at).state.streaming.is_none() {
            return false;
        }
        let streaming = self.sessions.change(at).streaming.take();
        for block in streaming.into_iter().flat_map(|streaming| streaming.open) {
            self.complete_block(at, block, ItemStatus::Incomplete, out);
        }
        true
    }
}
