//! What is particular about a protocol.

use crate::script::Ending;
use crate::stage::{Prompt, Scene, Stage, Turn};
use serde_json::Value;
use std::io;
use std::sync::Arc;

/// What the client said.
#[derive(Debug, Clone)]
pub(crate) enum Said {
    /// The answer to one of our requests.
    Answer { key: u64, body: Value },
    /// A message of a user.
    Prompt { name: String, prompt: Prompt },
    /// Any other request or notification.
    Other { name: String },
}

/// A protocol. Whatever is written goes through the stage's output.
pub(crate) trait Flavour: Send + Sync {
    /// What a message is.
    fn read(&self, message: &Value) -> Said;

    /// Called once before anything is read.
    fn opened(&self, _stage: &Arc<Stage>) {}

    /// The thread that a message is about; None where it names none.
    fn thread_of(&self, message: &Value) -> Option<String>;

    /// What the agent does by itself with a request or notification.
    fn react(&self, stage: &Arc<Stage>, name: &str, message: &Value) -> io::Result<()>;

    /// Answers a request of the client.
    fn answer(&self, stage: &Stage, request: &Value, result: Value) -> io::Result<()>;

    /// Refuses a request of the client.
    fn refuse(&self, stage: &Stage, request: &Value, code: i64, words: &str) -> io::Result<()>;

    /// A turn begins.
    fn begin(&self, stage: &Arc<Stage>, turn: &Turn) -> io::Result<()>;

    /// A message of a user came while a turn runs.
    fn beside(&self, stage: &Arc<Stage>, running: &Arc<Turn>, prompt: Prompt) -> io::Result<()>;

    /// One message in these pieces; stops where the scene is cut short.
    fn say(&self, stage: &Stage, scene: &Scene, pieces: &mut dyn Iterator<Item = String>) -> io::Result<()>;

    /// Asks for an approval under this key.
    fn ask(&self, stage: &Stage, scene: &Scene, title: &str, key: u64) -> io::Result<()>;

    /// An approval was answered; whether that allows it.
    fn answered(&self, stage: &Stage, scene: &Scene, title: &str, key: u64, body: &Value)
    -> io::Result<bool>;

    /// A tool call.
    fn tool(&self, stage: &Stage, scene: &Scene, title: &str, completes: bool) -> io::Result<()>;

    /// Ends a turn on the wire.
    fn end(&self, stage: &Arc<Stage>, turn: &Turn, ending: &Ending) -> io::Result<()>;
}
