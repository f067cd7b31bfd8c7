//! Background work: commands and sub-agents that the agent calls tasks.

use super::state::{MAX_ID_BYTES, MAX_TASKS, Task};
use super::{ClaudeAdapter, text};
use crate::adapter::Translated;
use serde_json::Value;

impl ClaudeAdapter {
    pub(super) fn task_started(&mut self, at: usize, line: Value, out: &mut Translated) {
        let short = |id: &&str| id.len() <= MAX_ID_BYTES;
        if let Some(id) = text(&line, "task_id").filter(short)
            && self.sessions.slot(at).state.tasks.len() < MAX_TASKS
        {
            let task = Task {
                tool: text(&line, "tool_use_id").filter(short).map(str::to_owned),
                agent: text(&line, "task_type") == Some("local_agent"),
                alone: false,
            };
            self.sessions.change(at).tasks.insert(id.to_owned(), task);
        }
        self.unmodelled(at, "system/task_started", line, out);
    }

    /// A background task is done; where the agent is idle it begins a turn about it by itself.
    pub(super) fn task_notified(&mut self, at: usize, line: Value, out: &mut Translated) {
        let known = text(&line, "task_id").filter(|id| self.sessions.slot(at).state.tasks.contains_key(*id));
        if let Some(id) = known {
            self.sessions.change(at).tasks.remove(id);
        }
        if self.sessions.slot(at).state.turn.is_none() {
            self.sessions.change(at).notified = true;
        }
        self.unmodelled(at, "system/task_notification", line, out);
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
