//! A mock model on loopback, driven by the prompt itself: OpenAI's *Responses* API and Anthropic's *Messages* API, with one
//! language for both.
//!
//! What the "model" does is chosen by the text of the last user message of a request. The text is a
//! script: steps separated by ` ;; `, each `VERB arguments`. The server keeps no conversation: it
//! counts the tool outputs behind that user message to know which step comes next.
//!
//! | step | does |
//! |---|---|
//! | `SAY text [xN]` | replies, one delta a word; with `xN` the text is sent N times, one delta each |
//! | `DELTAS n [size]` | n numbered deltas of `size` bytes (default 8) as fast as possible |
//! | `SLOW n MSms` | n deltas, MS milliseconds apart |
//! | `GATED n name` | n numbered deltas of 8 bytes, each held until [`ModelServer::release`] gives a permit |
//! | `GATE name` | the stream stands still until [`ModelServer::open`] |
//! | `HOLD name` | as `GATE`, before the HTTP header: the request is with the server and unanswered |
//! | `THINK text`, `THINKSLOW n MSms` | a reasoning item with a summary |
//! | `BIG n` | n bytes in one delta |
//! | `RUN cmd`, `RUNESC cmd` | a shell call, the second asking to leave the sandbox |
//! | `PRUN a \|\| b` | several shell calls in one response |
//! | `PATCH path [text]`, `PATCHUPD path old => new` | adds a file, changes a line |
//! | `ASK question` | asks the user, with two choices |
//! | `SPAWN script`, `WAITAGENT` | starts a sub-agent with a script of its own (steps separated by ` :: `), waits for all |
//! | `TOOL [ns.]name {json}` | any tool call; ` ~~ ` in the input stands for ` ;; `, for a script of a sub-agent |
//! | `STOPWITH reason` | ends the message for that reason (Messages API) |
//! | `WAIT s`, `HANG [s]` | silence before the HTTP header, or after `response.created` (keep-alives only) |
//! | `ERR code [type]`, `ERRN n code` | an HTTP error always, or for the first n attempts |
//! | `FAILED code` | `response.failed` with that error code |
//! | `DISC [n]`, `DISCN n` | cuts the connection after n deltas, or for the first n attempts |
//! | `NOCOMPLETE`, `EMPTY` | no `response.completed`; a completed response without output |
//!
//! Anything else is echoed: `echo: <text>`. `PATCH` text may say `\n` for a new line.
//!
//! A summary that an agent asks for (Messages API) is given at once; with `HOLD summary` in its instructions it stands at that
//! gate first.
//!
//! A turn that the agent begins for its goal says `goal step n` twice, then that the goal is reached.
//!
//! Gates belong to the server and are found by name; a stream at a gate ends when its client goes
//! away or the server is dropped. Nothing here needs a sleep in a test.

mod gates;
mod messages;
mod reply;
mod request;
mod script;
mod server;
mod stage;
mod wire;

pub use script::{expected_messages, expected_text};
pub use server::{ModelServer, Recorded};
