//! Which variables commands do not get to see. Ours are given with each thread and take the place of the user's own
//! (measured), so those are read first and given again.

use super::bounds::MAX_RULES_BYTES;
use super::state::{Asked, Phase};
use super::{CodexAdapter, warn};
use crate::adapter::Translated;
use crate::rpc::RpcError;
use serde_json::{Value, json};

impl CodexAdapter {
    /// Asks for what is needed to ask for the thread, and then for the thread; again on each new connection until it is
    /// open.
    pub(super) fn send_open(&mut self, at: usize, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        if slot.context.kept_from_commands.is_empty() {
            self.ask_to_open(at, out);
            return;
        }
        // Read each time: the user may have changed it, and a project has its own.
        let params = json!({ "cwd": slot.context.cwd });
        let asked = Asked::CommandRules { session: slot.session.clone() };
        self.read(asked, "config/read", params, out);
    }

    pub(super) fn rules_told(&mut self, at: usize, result: &Result<Value, RpcError>, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        if slot.state.phase != Phase::Opening {
            return;
        }
        let session = slot.session.clone();
        let kept = match result {
            Ok(config) => kept_by(config),
            Err(error) => {
                let message = format!(
                    "Codex's configuration cannot be read: its own `shell_environment_policy.exclude` does not hold here ({})",
                    error.message
                );
                warn(out, &session, message, None);
                Vec::new()
            }
        };
        let bytes: usize = kept.iter().map(String::len).sum();
        if bytes > MAX_RULES_BYTES {
            let message = "Codex's own `shell_environment_policy.exclude` is too long to be kept, and does not hold here";
            warn(out, &session, message.to_owned(), None);
        } else if kept != slot.state.kept_by_user {
            self.sessions.change(at).kept_by_user = kept;
        }
        self.ask_to_open(at, out);
    }
}

/// The variables, by pattern, that the configuration in an answer to `config/read` keeps from commands.
fn kept_by(config: &Value) -> Vec<String> {
    let kept = config.pointer("/config/shell_environment_policy/exclude").and_then(Value::as_array);
    kept.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}
