//! What is to be seen in each cell. A cell with two rows has a race in it that is Codex's own; each row is a whole
//! outcome, and nothing else is accepted.

use super::codex::{Intervention, State};
use super::report::Seen;

struct Row {
    state: State,
    intervention: Intervention,
    /// Journal from there on, turn, messages, what was asked or ran, process, next message.
    seen: [&'static str; 6],
}

pub(super) fn expected(state: State, intervention: Intervention) -> Vec<Seen> {
    let rows = TABLE.iter().filter(|row| row.state == state && row.intervention == intervention);
    rows.map(|row| Seen::from(row.seen)).collect()
}

const NONE: &str = "–";
const SAME: &str = "the same";
const AGENT_GONE: &str = "process gone (agent_left)";
const KEEPER_GONE: &str = "process gone (keeper_lost)";
const IN_T2: &str = "next given · t2 starts · next taken · t2 completed";
const IN_T3: &str = "next given · t3 starts · next taken · t3 completed";
const IN_T4: &str = "next given · t4 starts · next taken · t4 completed";
const RESUMED_IN_T2: &str = "next queued (starting) · process starts · thread resumed · next given · \
    t2 starts · next taken · t2 completed";
const HELD_THEN_IN_T2: &str = "next queued (starting) · process starts · held (active_writer) · \
    next queued (recovering) · process gone (order of host) · lease over (process_gone) · held no more · \
    next queued (starting) · process starts · thread resumed · next given · t2 starts · next taken · \
    t2 completed";
const RESUMED_IN_T3: &str = "next queued (starting) · process starts · thread resumed · next given · \
    t3 starts · next taken · t3 completed";
const HELD_THEN_IN_T3: &str = "next queued (starting) · process starts · held (active_writer) · \
    next queued (recovering) · process gone (order of host) · lease over (process_gone) · held no more · \
    next queued (starting) · process starts · thread resumed · next given · t3 starts · next taken · \
    t3 completed";
const RESUMED_WORK_FIRST: &str = "next queued (starting) · process starts · work queued (starting) · \
    thread resumed · work given · t2 starts · work taken · next queued (turn_running) · t2 completed · \
    next given · t3 starts · next taken · t3 completed";
const HELD_THEN_WORK_FIRST: &str = "next queued (starting) · process starts · held (active_writer) · \
    next queued (recovering) · process gone (order of host) · lease over (process_gone) · held no more · \
    next queued (starting) · process starts · work queued (starting) · thread resumed · work given · \
    t2 starts · work taken · next queued (turn_running) · t2 completed · next given · t3 starts · \
    next taken · t3 completed";
const WORK_RETURNED_FIRST: &str = "process starts · thread resumed · work given · t2 starts · work taken · \
    t2 completed · next given · t3 starts · next taken · t3 completed";

macro_rules! table {
    ($($state:ident $intervention:ident: $($column:expr),*;)*) => {
        const TABLE: &[Row] = &[$(Row {
            state: State::$state,
            intervention: Intervention::$intervention,
            seen: [$($column),*],
        }),*];
    };
}

table! {
    Idle Interrupt: NONE,
        NONE, NONE, NONE, SAME, IN_T2;
    Idle Steer: "refused (no_turn)",
        NONE, NONE, NONE, SAME, IN_T2;
    Idle Queue: "extra given · t2 starts · extra taken · t2 completed",
        "t2 completed", "extra taken", NONE, SAME, IN_T3;
    Idle HostKilled: "process taken over",
        NONE, NONE, NONE, SAME, IN_T2;
    Idle KeeperKilled: "process gone (keeper_lost) · lease over (process_gone)",
        NONE, NONE, NONE, KEEPER_GONE, RESUMED_IN_T2;
    Idle AgentKilled: "process gone (agent_left) · lease over (process_gone)",
        NONE, NONE, NONE, AGENT_GONE, RESUMED_IN_T2;
    Idle Elsewhere: NONE,
        NONE, NONE, NONE, SAME, IN_T2;
    Idle TakenElsewhere: "process gone (agent_left) · lease over (process_gone)",
        NONE, NONE, NONE, AGENT_GONE, HELD_THEN_IN_T2;
    NotStarted Interrupt: "stop asked · t2 starts · work taken · t2 interrupted",
        "t2 interrupted", "work taken", NONE, SAME, IN_T3;
    NotStarted Interrupt:
        "stop asked · t2 starts · work in doubt (history) · t2 interrupted · work cancelled",
        "t2 interrupted", "work cancelled", NONE, SAME, IN_T3;
    NotStarted Steer:
        "extra queued (input_untaken) · t2 starts · work taken · extra given into t2 · extra taken · \
        t2 completed",
        "t2 completed", "work taken · extra taken", NONE, SAME, IN_T3;
    NotStarted Steer: "extra queued (input_untaken) · t2 starts · work taken · extra given into t2 · \
        extra in doubt (history) · t2 completed · extra queued (turn_over) · extra given · t3 starts · \
        extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", NONE, SAME, IN_T4;
    NotStarted Queue:
        "extra queued (input_untaken) · t2 starts · work taken · extra queued (turn_running) · \
        t2 completed · extra given · t3 starts · extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", NONE, SAME, IN_T4;
    NotStarted HostKilled: "process taken over · t2 starts · work taken · t2 completed",
        "t2 completed", "work taken", NONE, SAME, IN_T3;
    NotStarted KeeperKilled:
        "work in doubt (history) · process gone (keeper_lost) · lease over (process_gone)",
        NONE, "work taken", NONE, KEEPER_GONE, RESUMED_WORK_FIRST;
    NotStarted KeeperKilled:
        "work queued (starting) · process gone (keeper_lost) · lease over (process_gone)",
        NONE, "work taken", NONE, KEEPER_GONE, WORK_RETURNED_FIRST;
    NotStarted AgentKilled: "work in doubt (history) · process gone (agent_left) · lease over (process_gone)",
        NONE, "work taken", NONE, AGENT_GONE, RESUMED_WORK_FIRST;
    NotStarted AgentKilled: "work queued (starting) · process gone (agent_left) · lease over (process_gone)",
        NONE, "work taken", NONE, AGENT_GONE, WORK_RETURNED_FIRST;
    NotStarted Elsewhere: "t2 starts · work taken · t2 completed",
        "t2 completed", "work taken", NONE, SAME, IN_T3;
    NotStarted TakenElsewhere:
        "work in doubt (history) · process gone (agent_left) · lease over (process_gone)",
        NONE, "work taken", NONE, AGENT_GONE, HELD_THEN_WORK_FIRST;
    Streaming Interrupt: "stop asked · item incomplete · t2 interrupted",
        "t2 interrupted", "work taken", "item incomplete", SAME, IN_T3;
    Streaming Steer: "extra given into t2 · extra taken · item incomplete · t2 completed",
        "t2 completed", "work taken · extra taken", "item incomplete", SAME, IN_T3;
    Streaming Queue:
        "extra queued (turn_running) · t2 completed · extra given · t3 starts · extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", NONE, SAME, IN_T4;
    Streaming HostKilled: "process taken over · t2 completed",
        "t2 completed", "work taken", NONE, SAME, IN_T3;
    Streaming KeeperKilled:
        "item incomplete · t2 lost (keeper_lost) · process gone (keeper_lost) · lease over (process_gone)",
        "t2 lost (keeper_lost)", "work taken", "item incomplete", KEEPER_GONE, RESUMED_IN_T3;
    Streaming AgentKilled:
        "item incomplete · t2 lost (agent_exited) · process gone (agent_left) · lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken", "item incomplete", AGENT_GONE, RESUMED_IN_T3;
    Streaming Elsewhere: "t2 completed",
        "t2 completed", "work taken", NONE, SAME, IN_T3;
    Streaming TakenElsewhere:
        "item incomplete · t2 lost (agent_exited) · process gone (agent_left) · lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken", "item incomplete", AGENT_GONE, HELD_THEN_IN_T3;
    Command Interrupt: "stop asked · task starts · t2 interrupted · item failed · task failed",
        "t2 interrupted", "work taken", "item failed · task failed", SAME, IN_T3;
    Command Steer: "extra given into t2 · extra taken · t2 completed",
        "t2 completed", "work taken · extra taken", NONE, SAME, IN_T3;
    Command Queue:
        "extra queued (turn_running) · t2 completed · extra given · t3 starts · extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", NONE, SAME, IN_T4;
    Command HostKilled: "process taken over · t2 completed",
        "t2 completed", "work taken", NONE, SAME, IN_T3;
    Command KeeperKilled:
        "item incomplete · t2 lost (keeper_lost) · process gone (keeper_lost) · lease over (process_gone)",
        "t2 lost (keeper_lost)", "work taken", "item incomplete", KEEPER_GONE, RESUMED_IN_T3;
    Command AgentKilled:
        "item incomplete · t2 lost (agent_exited) · process gone (agent_left) · lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken", "item incomplete", AGENT_GONE, RESUMED_IN_T3;
    Command Elsewhere: "t2 completed",
        "t2 completed", "work taken", NONE, SAME, IN_T3;
    Command TakenElsewhere:
        "item incomplete · t2 lost (agent_exited) · process gone (agent_left) · lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken", "item incomplete", AGENT_GONE, HELD_THEN_IN_T3;
    Approval Interrupt: "stop asked · request cancelled · item incomplete · t2 interrupted",
        "t2 interrupted", "work taken", "request cancelled · item incomplete", SAME, IN_T3;
    Approval Steer:
        "extra given into t2 · request answered · request answered, confirmed · extra taken · t2 completed",
        "t2 completed", "work taken · extra taken", "request answered, confirmed", SAME, IN_T3;
    Approval Queue:
        "extra queued (turn_running) · request answered · request answered, confirmed · t2 completed · \
        extra given · t3 starts · extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", "request answered, confirmed", SAME, IN_T4;
    Approval HostKilled: "process taken over · request answered · request answered, confirmed · t2 completed",
        "t2 completed", "work taken", "request answered, confirmed", SAME, IN_T3;
    Approval KeeperKilled:
        "item incomplete · request lost · t2 lost (keeper_lost) · process gone (keeper_lost) · \
        lease over (process_gone)",
        "t2 lost (keeper_lost)", "work taken", "request lost · item incomplete", KEEPER_GONE, RESUMED_IN_T3;
    Approval AgentKilled:
        "item incomplete · request lost · t2 lost (agent_exited) · process gone (agent_left) · \
        lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken", "request lost · item incomplete", AGENT_GONE, RESUMED_IN_T3;
    Approval Elsewhere: "request answered · request answered, confirmed · t2 completed",
        "t2 completed", "work taken", "request answered, confirmed", SAME, IN_T3;
    Approval TakenElsewhere:
        "item incomplete · request lost · t2 lost (agent_exited) · process gone (agent_left) · \
        lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken", "request lost · item incomplete", AGENT_GONE, HELD_THEN_IN_T3;
    Question Interrupt: "stop asked · request cancelled · t2 interrupted",
        "t2 interrupted", "work taken", "request cancelled", SAME, IN_T3;
    Question Steer:
        "extra given into t2 · request answered · request answered, confirmed · extra taken · t2 completed",
        "t2 completed", "work taken · extra taken", "request answered, confirmed", SAME, IN_T3;
    Question Queue:
        "extra queued (turn_running) · request answered · request answered, confirmed · t2 completed · \
        extra given · t3 starts · extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", "request answered, confirmed", SAME, IN_T4;
    Question HostKilled: "process taken over · request answered · request answered, confirmed · t2 completed",
        "t2 completed", "work taken", "request answered, confirmed", SAME, IN_T3;
    Question KeeperKilled:
        "request lost · t2 lost (keeper_lost) · process gone (keeper_lost) · lease over (process_gone)",
        "t2 lost (keeper_lost)", "work taken", "request lost", KEEPER_GONE, RESUMED_IN_T3;
    Question AgentKilled:
        "request lost · t2 lost (agent_exited) · process gone (agent_left) · lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken", "request lost", AGENT_GONE, RESUMED_IN_T3;
    Question Elsewhere: "request answered · request answered, confirmed · t2 completed",
        "t2 completed", "work taken", "request answered, confirmed", SAME, IN_T3;
    Question TakenElsewhere:
        "request lost · t2 lost (agent_exited) · process gone (agent_left) · lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken", "request lost", AGENT_GONE, HELD_THEN_IN_T3;
    Compacting Interrupt: "stop asked · item incomplete · t2 interrupted",
        "t2 interrupted", NONE, "item incomplete", SAME, IN_T3;
    Compacting Steer:
        "extra given into t2 · extra queued (not_steerable) · t2 completed · extra given · t3 starts · \
        extra taken · t3 completed",
        "t2 completed", "extra taken", NONE, SAME, IN_T4;
    Compacting Queue:
        "extra queued (turn_running) · t2 completed · extra given · t3 starts · extra taken · t3 completed",
        "t2 completed", "extra taken", NONE, SAME, IN_T4;
    Compacting HostKilled: "process taken over · t2 completed",
        "t2 completed", NONE, NONE, SAME, IN_T3;
    Compacting KeeperKilled:
        "item incomplete · t2 lost (keeper_lost) · process gone (keeper_lost) · lease over (process_gone)",
        "t2 lost (keeper_lost)", NONE, "item incomplete", KEEPER_GONE, RESUMED_IN_T3;
    Compacting AgentKilled:
        "item incomplete · t2 lost (agent_exited) · process gone (agent_left) · lease over (process_gone)",
        "t2 lost (agent_exited)", NONE, "item incomplete", AGENT_GONE, RESUMED_IN_T3;
    Compacting Elsewhere: "t2 completed",
        "t2 completed", NONE, NONE, SAME, IN_T3;
    Compacting TakenElsewhere:
        "item incomplete · t2 lost (agent_exited) · process gone (agent_left) · lease over (process_gone)",
        "t2 lost (agent_exited)", NONE, "item incomplete", AGENT_GONE, HELD_THEN_IN_T3;
    Child Interrupt: "stop asked · item incomplete · child stopped · item incomplete · t2 interrupted",
        "t2 interrupted", "work taken", "item incomplete · child stopped", SAME, IN_T3;
    Child Interrupt: "stop asked · item incomplete · t2 interrupted · item incomplete · child stopped",
        "t2 interrupted", "work taken", "item incomplete · child stopped", SAME, IN_T3;
    Child Steer: "extra given into t2 · child completed · extra taken · t2 completed",
        "t2 completed", "work taken · extra taken", "child completed", SAME, IN_T3;
    Child Queue:
        "extra queued (turn_running) · child completed · t2 completed · extra given · t3 starts · \
        extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", "child completed", SAME, IN_T4;
    Child HostKilled: "process taken over · child completed · t2 completed",
        "t2 completed", "work taken", "child completed", SAME, IN_T3;
    Child KeeperKilled:
        "item incomplete · child lost · t2 lost (keeper_lost) · process gone (keeper_lost) · \
        lease over (process_gone)",
        "t2 lost (keeper_lost)", "work taken", "item incomplete · child lost", KEEPER_GONE, RESUMED_IN_T3;
    Child AgentKilled:
        "item incomplete · child lost · t2 lost (agent_exited) · process gone (agent_left) · \
        lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken", "item incomplete · child lost", AGENT_GONE, RESUMED_IN_T3;
    Child Elsewhere: "child completed · t2 completed",
        "t2 completed", "work taken", "child completed", SAME, IN_T3;
    Child TakenElsewhere:
        "item incomplete · child lost · t2 lost (agent_exited) · process gone (agent_left) · \
        lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken", "item incomplete · child lost", AGENT_GONE, HELD_THEN_IN_T3;
}
