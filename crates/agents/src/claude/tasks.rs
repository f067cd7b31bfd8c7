//! Background work: commands and sub-agents that the agent calls tasks. A sub-agent is a child, known by its task's id.

use super::state::{MAX_ID_BYTES, MAX_TASKS, Task};
use super::{ClaudeAdapter, text};
use crate::adapter::Translated;
use mainstay_core::work::{ChildFields, TaskFields, TaskKind, WorkEnd};
use mainstay_core::{AgentEvent, ItemKey, TaskKey, ThreadId};
use serde_json::Value;

impl ClaudeAdapter {
    pub(super) fn task_started(&mut self, at: usize, line: &Value, out: &mut Translated) {
        let short = |id: &&str| id.len() <= MAX_ID_BYTES;
        let id = text(line, "task_id").filter(short);
        let room = self.sessions.slot(at).state.tasks.len() < MAX_TASKS;
        let Some(id) = id.filter(|_| room) else {
            self.unmodelled(at, "system/task_started", line.clone(), out);
            return;
        };
        let tool = text(line, "tool_use_id").filter(short).map(str::to_owned);
        let agent = text(line, "task_type") == Some("local_agent");
        let task = Task { tool: tool.clone(), agent, alone: false };
        self.sessions.change(at).tasks.insert(id.to_owned(), task);
        let title = text(line, "description").unwrap_or_default().to_owned();
        let item_key = tool.map(ItemKey);
        let event = if agent {
            let fields = ChildFields {
                title: Some(title),
                role: text(line, "subagent_type").map(str::to_owned),
                item_key,
                ..ChildFields::default()
            };
            AgentEvent::ChildStarted { thread: ThreadId::from(id), fields }
        } else {
            let kind = match text(line, "task_type") {
                Some("local_bash") => TaskKind::Shell,
                _ => TaskKind::Other,
            };
            let fields = TaskFields { item_key, ..TaskFields::default() };
            AgentEvent::TaskStarted { key: TaskKey::from(id), kind, title, fields }
        };
        self.say(at, event, out);
    }

    pub(super) fn task_progressed(&mut self, at: usize, line: &Value, out: &mut Translated) {
        let Some((id, task)) = self.task_of(at, line) else { return };
        let summary = text(line, "description").map(str::to_owned);
        let tokens = tokens(line);
        let event = if task.agent {
            let fields = ChildFields { summary, tokens, ..ChildFields::default() };
            AgentEvent::ChildUpdated { thread: ThreadId(id), fields }
        } else {
            let fields = TaskFields { summary, tokens, ..TaskFields::default() };
            AgentEvent::TaskUpdated { key: TaskKey(id), fields }
        };
        self.say(at, event, out);
    }

    /// A task that was killed is over at once; one that completed says so again, with what came of it.
    pub(super) fn task_updated(&mut self, at: usize, line: &Value, out: &mut Translated) {
        let Some((id, task)) = self.task_of(at, line) else { return };
        match line.pointer("/patch/status").and_then(Value::as_str) {
            Some("killed" | "stopped") => self.end_task(at, id, &task, WorkEnd::Stopped, line, out),
            Some("failed") => self.end_task(at, id, &task, WorkEnd::Failed, line, out),
            _ => {}
        }
    }

    /// A background task is over. The agent begins a turn about it by itself, and says before that it works; it begins none
    /// about a command that was stopped while it was idle (measured).
    pub(super) fn task_notified(&mut self, at: usize, line: &Value, out: &mut Translated) {
        let thread = &self.sessions.slot(at).state;
        if thread.turn.is_none() && thread.works {
            self.sessions.change(at).notified = true;
        }
        let Some((id, task)) = self.task_of(at, line) else { return };
        let end = match text(line, "status") {
            Some("stopped" | "killed") => WorkEnd::Stopped,
            Some("failed") => WorkEnd::Failed,
            _ => WorkEnd::Completed,
        };
        self.end_task(at, id, &task, end, line, out);
    }

    fn end_task(
        &mut self,
        at: usize,
        id: String,
        task: &Task,
        end: WorkEnd,
        line: &Value,
        out: &mut Translated,
    ) {
        self.sessions.change(at).tasks.remove(&id);
        let (summary, tokens) = (text(line, "summary").map(str::to_owned), tokens(line));
        let event = if task.agent {
            let fields = ChildFields { summary, tokens, ..ChildFields::default() };
            AgentEvent::ChildEnded { thread: ThreadId(id), end, fields }
        } else {
            let fields = TaskFields { summary, tokens, ..TaskFields::default() };
            AgentEvent::TaskEnded { key: TaskKey(id), end, fields }
        };
        self.say(at, event, out);
    }

    fn task_of(&self, at: usize, line: &Value) -> Option<(String, Task)> {
        let id = text(line, "task_id")?;
        let task = self.sessions.slot(at).state.tasks.get(id)?;
        Some((id.to_owned(), task.clone()))
    }

    /// The sub-agent that a line is of, by the call that made it.
    pub(super) fn child_of(&self, at: usize, line: &Value) -> Option<ThreadId> {
        let tool = text(line, "parent_tool_use_id")?;
        let tasks = &self.sessions.slot(at).state.tasks;
        let made = tasks.iter().find(|(_, task)| task.agent && task.tool.as_deref() == Some(tool));
        made.map(|(id, _)| ThreadId(id.clone()))
    }

    /// The call that made a task is answered: what still runs of it runs by itself.
    pub(super) fn call_answered(&mut self, at: usize, tool: &str) {
        let made = |task: &Task| !task.alone && task.tool.as_deref() == Some(tool);
        if self.sessions.slot(at).state.tasks.values().any(made) {
            for task in self.sessions.change(at).tasks.values_mut().filter(|task| made(task)) {
                task.alone = true;
            }
        }
    }
}

fn tokens(line: &Value) -> Option<u64> {
    line.pointer("/usage/total_tokens").and_then(Value::as_u64)
}
