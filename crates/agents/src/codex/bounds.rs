//! The bounds of what the adapter keeps and asks, each with what happens over it.

/// Approvals of one thread that are open at once. One more is declined, with a notice: the state must stay small.
pub(super) const MAX_OPEN_REQUESTS: usize = 32;

/// The longest answer, in bytes of JSON, that is kept to be given again after a lost connection. A longer one is not: the
/// request then stays unconfirmed.
pub(super) const MAX_KEPT_ANSWER_BYTES: usize = 1024;

/// The longest rights, in bytes of JSON, that can be granted. Longer ones are declined, with a notice.
pub(super) const MAX_PERMISSIONS_BYTES: usize = 2 * 1024;

/// Rules about hosts that are offered with one approval.
pub(super) const MAX_NETWORK_RULES: usize = 4;

/// The longest proposed rule, in bytes of JSON, that is offered for ever. A longer one is not offered.
pub(super) const MAX_AMENDMENT_BYTES: usize = 512;

/// Tries of one interrupt. Measured: 2 to 11 were needed. After the last one the user is told.
pub(super) const MAX_INTERRUPT_TRIES: u32 = 20;

/// Tries to take a thread up again on one connection. After the last one the thread is looked at again on the next
/// connection, and the user was told.
pub(super) const MAX_REATTACH_TRIES: u32 = 20;

/// Threads of other clients of the process that are watched until a session has them. The longest known gives way, with a
/// notice; it can be adopted all the same.
pub(super) const MAX_BESIDE: usize = 32;

/// Looks at one of them after each word of its status: its first message is written a moment after it is said to work.
pub(super) const MAX_BESIDE_LOOKS: u32 = 20;

/// Messages in Codex's own queue that are known by id, so that a turn which one of them begins says so. The longest known
/// is forgotten: its turn then says that another client began it.
pub(super) const MAX_QUEUED: usize = 32;

/// The longest message in Codex's own queue, in bytes of JSON, that a stop withdraws: the journal keeps it whole. A longer
/// one stays there, with a notice.
pub(super) const MAX_WITHDRAWN_BYTES: usize = 64 * 1024;
/// The longest of these ids that is known; ids of ours are much shorter. A turn of a message with a longer one says that
/// another client began it.
pub(super) const MAX_QUEUED_ID_BYTES: usize = 128;

/// The longest message, in bytes of JSON, that is kept to be given a second time where another turn runs than the one
/// that was expected. A longer one returns to the queue instead.
pub(super) const MAX_STEER_BYTES: usize = 16 * 1024;

/// Where the ids of interrupts begin. A stop goes out also where the store refuses to record it; its id is then forgotten
/// and given again. Its late answer may meet another interrupt, never a message.
pub(super) const INTERRUPT_IDS: u64 = 1 << 48;

/// What is kept of the user's own rules about the environment of commands, in bytes; one is a few words. Longer ones do not
/// hold in our sessions, with a notice.
pub(super) const MAX_RULES_BYTES: usize = 8 * 1024;

/// Turns that are asked for at once: whole turns may be large.
pub(super) const HISTORY_PAGE: u32 = 10;

/// Turns that are asked for at once where a page could not be read: what was too long may then fit. Where it still
/// cannot be read, only the ends of the turns are asked for; where that fails too, the question stays without an answer.
pub(super) const SMALL_HISTORY_PAGE: u32 = 2;

/// Pages that are read for one question. What is not found in them is not proven absent.
pub(super) const MAX_HISTORY_PAGES: u32 = 100;

/// How often in a row a message may come back because a turn runs that takes none, and of which nothing was told yet: its
/// beginning is on its way. One more time, and the message is rejected in the server's words.
pub(super) const MAX_START_RETURNS: u32 = 20;

/// Sub-agents of one session that are followed at once.
pub(super) const MAX_CHILDREN: usize = 32;

/// What threads said, in bytes, that no session has yet. A sub-agent's first words come before it is named; what has no
/// room is not shown, and what it asks is refused, with a notice.
pub(super) const MAX_STRANGER_BYTES: usize = 16 * 1024;

/// Requests of ours that are unanswered at once. Measured: 400 at once are all answered, of 1,000 some are dropped
/// without a word. Above this number reads wait for an answer to one before; what carries a message or a stop never waits.
pub(super) const MAX_IN_FLIGHT: usize = 50;

/// Reads that wait for their turn. More than that many sessions never share a process; one more is refused at once,
/// as if the server had.
pub(super) const MAX_WAITING: usize = 200;

/// How long an answer may take, ms by the keeper's clock, before it is said to be overdue. A read is then given up; what
/// carries a message or opens a thread is only said to be late, because it may still be taken.
pub(super) const ANSWER_WITHIN_MS: i64 = 120_000;

/// Open items of one thread that are remembered, to be closed with their turn. An older one stays open until it
/// completes or the process ends.
pub(super) const MAX_OPEN_ITEMS: usize = 32;

/// Frames of a thread, in bytes, that are kept while it is being opened. Later ones are left out, with a notice: the
/// history and the whole texts of finished items have what they said.
pub(super) const MAX_EARLY_BYTES: usize = 12 * 1024;

/// What open requests of one thread take in the state, in bytes. One more is declined, with a notice.
pub(super) const MAX_REQUEST_BYTES: usize = 16 * 1024;

/// What kept answers of one thread take in the state, in bytes. Over it an answer is not kept.
pub(super) const MAX_ANSWER_BYTES: usize = 8 * 1024;

/// How often the server is asked whether a command runs, after its turn was interrupted. Absent each time, it never began.
pub(super) const MAX_BACKGROUND_LOOKS: u32 = 5;

/// The pause between two of those looks: the end of a command that ran is told some time after it left the server's list
/// (measured: longer than five looks without a pause), because its last output is waited for.
pub(super) const BACKGROUND_LOOK_EVERY_MS: i64 = 300;

/// Pages of the list of running commands that are asked for in one look. What is on none of them is not known to be over.
pub(super) const MAX_BACKGROUND_PAGES: u32 = 10;

/// The end of a command's output, in bytes, that a notice of its late end carries; the rest of it is in Codex's own history.
pub(super) const MAX_NOTICE_OUTPUT_BYTES: usize = 4 * 1024;

/// Interrupted turns whose commands are asked for again after a connection was lost. The oldest is forgotten: its command
/// stays a task until its process ends.
pub(super) const MAX_LOOKED_FOR: usize = 16;
