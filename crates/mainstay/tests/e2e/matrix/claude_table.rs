//! What is to be seen in each cell. A cell with two rows has a race in it that is the agent's own; each row is a whole
//! outcome, and nothing else is accepted.

use super::claude::{Intervention, State};
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

/// A cell in which the program races with itself: only what becomes of messages and process is compared.
struct Race {
    state: State,
    intervention: Intervention,
    /// What races, for people.
    why: &'static str,
}

/// Why the order and the turns of a cell are not compared; None: all of it is.
pub(super) fn race(state: State, intervention: Intervention) -> Option<&'static str> {
    let of = RACES.iter().find(|race| race.state == state && race.intervention == intervention);
    of.map(|race| race.why)
}

const RACES: &[Race] = &[
    Race {
        state: State::NotRead,
        intervention: Intervention::KeeperKilled,
        why: "the keeper may have written the message, which is then in doubt, or not, which proves that it was not given",
    },
    Race {
        state: State::NotRead,
        intervention: Intervention::Stop,
        why: "the program may show a part of its answer before its end",
    },
    Race {
        state: State::Background,
        intervention: Intervention::Stop,
        why: "the end of the command may begin a turn, which may come to its end, before that of the program",
    },
];

const NONE: &str = "–";
const SAME: &str = "the same";
const AGENT_GONE: &str = "process gone (agent_left)";
const KEEPER_GONE: &str = "process gone (keeper_lost)";
const STOPPED: &str = "process gone (order of user)";
const IN_T2: &str = "next given · t2 starts · next taken · t2 completed";
const RESUMED_IN_T2: &str = "next queued (starting) · process starts · thread resumed · next given · \
    t2 starts · next taken · t2 completed";
const HELD_THEN_IN_T2: &str = "next queued (starting) · process gone (spawn_failed) · \
    lease over (process_gone) · held (active_writer) · next queued (recovering) · held no more · \
    next queued (starting) · process starts · thread resumed · next given · t2 starts · next taken · \
    t2 completed";
const IN_T3: &str = "next given · t3 starts · next taken · t3 completed";
const RESUMED_IN_T3: &str = "next queued (starting) · process starts · thread resumed · next given · \
    t3 starts · next taken · t3 completed";
const HELD_THEN_IN_T3: &str = "next queued (starting) · process gone (spawn_failed) · \
    lease over (process_gone) · held (active_writer) · next queued (recovering) · held no more · \
    next queued (starting) · process starts · thread resumed · next given · t3 starts · next taken · \
    t3 completed";
const SETTLED_IN_T3: &str = "next queued (starting) · process starts · work taken (history) · \
    thread resumed · next given · t3 starts · next taken · t3 completed";
const HELD_THEN_SETTLED_IN_T3: &str = "next queued (starting) · process gone (spawn_failed) · \
    lease over (process_gone) · held (active_writer) · next queued (recovering) · held no more · \
    next queued (starting) · process starts · work taken (history) · thread resumed · next given · \
    t3 starts · next taken · t3 completed";
const IN_T4: &str = "next given · t4 starts · next taken · t4 completed";
const RESUMED_IN_T4: &str = "next queued (starting) · process starts · thread resumed · next given · \
    t4 starts · next taken · t4 completed";
const IN_T5: &str = "next given · t5 starts · next taken · t5 completed";
const RESUMED_IN_T5: &str = "next queued (starting) · process starts · thread resumed · next given · \
    t5 starts · next taken · t5 completed";
const HELD_THEN_IN_T5: &str = "next queued (starting) · process gone (spawn_failed) · \
    lease over (process_gone) · held (active_writer) · next queued (recovering) · held no more · \
    next queued (starting) · process starts · thread resumed · next given · t5 starts · next taken · \
    t5 completed";
const IN_T6: &str = "next given · t6 starts · next taken · t6 completed";
const RESUMED_WORK_FIRST: &str = "next queued (starting) · process starts · work queued (starting) · \
    thread resumed · work given · t2 starts · work taken · next queued (turn_running) · t2 completed · \
    next given · t3 starts · next taken · t3 completed";
const HELD_THEN_WORK_FIRST: &str = "next queued (starting) · process gone (spawn_failed) · \
    lease over (process_gone) · held (active_writer) · next queued (recovering) · held no more · \
    next queued (starting) · process starts · work queued (starting) · thread resumed · work given · \
    t2 starts · work taken · next queued (turn_running) · t2 completed · next given · t3 starts · \
    next taken · t3 completed";
const RESUMED_TASK_FIRST: &str = "next queued (starting) · process starts · t3 starts (task) · t3 completed · \
    thread resumed · next given · t4 starts · next taken · t4 completed";
const RESUMED_TASK_BESIDE: &str = "next queued (starting) · process starts · thread resumed · next given · \
    t3 starts · t3 completed · t4 starts · next taken · t4 completed";
const HELD_THEN_TASK_FIRST: &str = "next queued (starting) · process gone (spawn_failed) · \
    lease over (process_gone) · held (active_writer) · next queued (recovering) · held no more · \
    next queued (starting) · process starts · t3 starts (task) · t3 completed · thread resumed · next given · \
    t4 starts · next taken · t4 completed";
const HELD_THEN_TASK_BESIDE: &str = "next queued (starting) · process gone (spawn_failed) · \
    lease over (process_gone) · held (active_writer) · next queued (recovering) · held no more · \
    next queued (starting) · process starts · thread resumed · next given · t3 starts · t3 completed · \
    t4 starts · next taken · t4 completed";

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
    Idle Stop: "process gone (order of user) · lease over (process_gone)",
        NONE, NONE, NONE, STOPPED, RESUMED_IN_T2;
    Idle Elsewhere: NONE,
        NONE, NONE, NONE, SAME, IN_T2;
    Idle TakenElsewhere: "process gone (agent_left) · lease over (process_gone)",
        NONE, NONE, NONE, AGENT_GONE, HELD_THEN_IN_T2;
    NotRead Interrupt: "stop asked · t2 starts · work taken · t2 interrupted",
        "t2 interrupted", "work taken", NONE, SAME, IN_T3;
    NotRead Steer: "extra queued (input_untaken) · t2 starts · work taken · extra given into t2 · \
        t2 completed · t3 starts · extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", NONE, SAME, IN_T4;
    NotRead Queue: "extra queued (input_untaken) · t2 starts · work taken · extra queued (turn_running) · \
        t2 completed · extra given · t3 starts · extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", NONE, SAME, IN_T4;
    NotRead HostKilled: "process taken over · t2 starts · work taken · t2 completed",
        "t2 completed", "work taken", NONE, SAME, IN_T3;
    NotRead KeeperKilled: "work in doubt (history) · process gone (keeper_lost) · \
        lease over (process_gone)",
        NONE, "work taken", NONE, KEEPER_GONE, RESUMED_WORK_FIRST;
    NotRead AgentKilled: "work in doubt (history) · process gone (agent_left) · lease over (process_gone)",
        NONE, "work taken", NONE, AGENT_GONE, RESUMED_WORK_FIRST;
    NotRead Stop: "t2 starts · work in doubt (history) · t2 interrupted (stopped) · \
        process gone (order of user) · lease over (process_gone)",
        "t2 interrupted (stopped)", "work taken (history)", NONE, STOPPED, SETTLED_IN_T3;
    NotRead Elsewhere: "t2 starts · work taken · t2 completed",
        "t2 completed", "work taken", NONE, SAME, IN_T3;
    NotRead TakenElsewhere: "work in doubt (history) · process gone (agent_left) · \
        lease over (process_gone)",
        NONE, "work taken", NONE, AGENT_GONE, HELD_THEN_WORK_FIRST;
    Silent Interrupt: "stop asked · work taken · t2 interrupted",
        "t2 interrupted", "work taken", NONE, SAME, IN_T3;
    Silent Steer: "extra queued (turn_running) · work taken · extra given into t2 · t2 completed · \
        t3 starts · extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", NONE, SAME, IN_T4;
    Silent Queue: "extra queued (turn_running) · work taken · t2 completed · extra given · t3 starts · \
        extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", NONE, SAME, IN_T4;
    Silent HostKilled: "process taken over · work taken · t2 completed",
        "t2 completed", "work taken", NONE, SAME, IN_T3;
    Silent KeeperKilled: "item incomplete · work in doubt (history) · t2 lost (keeper_lost) · \
        process gone (keeper_lost) · lease over (process_gone)",
        "t2 lost (keeper_lost)", "work taken (history)", "item incomplete", KEEPER_GONE, SETTLED_IN_T3;
    Silent AgentKilled: "item incomplete · work in doubt (history) · t2 lost (agent_exited) · \
        process gone (agent_left) · lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken (history)", "item incomplete", AGENT_GONE, SETTLED_IN_T3;
    Silent Stop: "item incomplete · work in doubt (history) · t2 interrupted (stopped) · \
        process gone (order of user) · lease over (process_gone)",
        "t2 interrupted (stopped)", "work taken (history)", "item incomplete", STOPPED, SETTLED_IN_T3;
    Silent Elsewhere: "work taken · t2 completed",
        "t2 completed", "work taken", NONE, SAME, IN_T3;
    Silent TakenElsewhere: "item incomplete · work in doubt (history) · t2 lost (agent_exited) · \
        process gone (agent_left) · lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken (history)", "item incomplete", AGENT_GONE, HELD_THEN_SETTLED_IN_T3;
    Streaming Interrupt: "stop asked · work taken · item incomplete · t2 interrupted",
        "t2 interrupted", "work taken", "item incomplete", SAME, IN_T3;
    Streaming Steer: "extra queued (turn_running) · work taken · extra given into t2 · t2 completed · \
        t3 starts · extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", NONE, SAME, IN_T4;
    Streaming Queue: "extra queued (turn_running) · work taken · t2 completed · extra given · t3 starts · \
        extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", NONE, SAME, IN_T4;
    Streaming HostKilled: "process taken over · work taken · t2 completed",
        "t2 completed", "work taken", NONE, SAME, IN_T3;
    Streaming KeeperKilled: "item incomplete · work in doubt (history) · t2 lost (keeper_lost) · \
        process gone (keeper_lost) · lease over (process_gone)",
        "t2 lost (keeper_lost)", "work taken (history)", "item incomplete", KEEPER_GONE, SETTLED_IN_T3;
    Streaming AgentKilled: "item incomplete · work in doubt (history) · t2 lost (agent_exited) · \
        process gone (agent_left) · lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken (history)", "item incomplete", AGENT_GONE, SETTLED_IN_T3;
    Streaming Stop: "item incomplete · work in doubt (history) · t2 interrupted (stopped) · \
        process gone (order of user) · lease over (process_gone)",
        "t2 interrupted (stopped)", "work taken (history)", "item incomplete", STOPPED, SETTLED_IN_T3;
    Streaming Elsewhere: "work taken · t2 completed",
        "t2 completed", "work taken", NONE, SAME, IN_T3;
    Streaming TakenElsewhere: "item incomplete · work in doubt (history) · t2 lost (agent_exited) · \
        process gone (agent_left) · lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken (history)", "item incomplete", AGENT_GONE, HELD_THEN_SETTLED_IN_T3;
    Command Interrupt: "stop asked · item incomplete · t2 interrupted",
        "t2 interrupted", "work taken", "item incomplete", SAME, IN_T3;
    Command Steer: "extra given into t2 · extra taken · t2 completed",
        "t2 completed", "work taken · extra taken", NONE, SAME, IN_T3;
    Command Queue: "extra queued (turn_running) · t2 completed · extra given · t3 starts · extra taken · \
        t3 completed",
        "t2 completed", "work taken · extra taken", NONE, SAME, IN_T4;
    Command HostKilled: "process taken over · t2 completed",
        "t2 completed", "work taken", NONE, SAME, IN_T3;
    Command KeeperKilled: "item incomplete · t2 lost (keeper_lost) · process gone (keeper_lost) · \
        lease over (process_gone)",
        "t2 lost (keeper_lost)", "work taken", "item incomplete", KEEPER_GONE, RESUMED_IN_T3;
    Command AgentKilled: "item incomplete · t2 lost (agent_exited) · process gone (agent_left) · \
        lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken", "item incomplete", AGENT_GONE, RESUMED_IN_T3;
    Command Stop: "item incomplete · t2 interrupted (stopped) · process gone (order of user) · \
        lease over (process_gone)",
        "t2 interrupted (stopped)", "work taken", "item incomplete", STOPPED, RESUMED_IN_T3;
    // The program may still tell how the command that it ended itself came out.
    Command Stop: "item failed · t2 interrupted (stopped) · process gone (order of user) · \
        lease over (process_gone)",
        "t2 interrupted (stopped)", "work taken", "item failed", STOPPED, RESUMED_IN_T3;
    Command Elsewhere: "t2 completed",
        "t2 completed", "work taken", NONE, SAME, IN_T3;
    Command TakenElsewhere: "item incomplete · t2 lost (agent_exited) · process gone (agent_left) · \
        lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken", "item incomplete", AGENT_GONE, HELD_THEN_IN_T3;
    Approval Interrupt: "stop asked · request cancelled · item incomplete · t2 interrupted",
        "t2 interrupted", "work taken", "request cancelled · item incomplete", SAME, IN_T3;
    Approval Steer: "extra given into t2 · request answered · request answered, confirmed · extra taken · \
        t2 completed",
        "t2 completed", "work taken · extra taken", "request answered, confirmed", SAME, IN_T3;
    Approval Queue: "extra queued (turn_running) · request answered · request answered, confirmed · \
        t2 completed · extra given · t3 starts · extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", "request answered, confirmed", SAME, IN_T4;
    Approval HostKilled: "process taken over · request answered · request answered, confirmed · \
        t2 completed",
        "t2 completed", "work taken", "request answered, confirmed", SAME, IN_T3;
    Approval KeeperKilled: "item incomplete · request lost · t2 lost (keeper_lost) · \
        process gone (keeper_lost) · lease over (process_gone) · process starts · request opens · \
        thread resumed · request answered · t3 starts · request answered, confirmed · t3 completed",
        "t2 lost (keeper_lost)", "work taken", "request answered, confirmed · item incomplete", KEEPER_GONE, IN_T4;
    Approval AgentKilled: "item incomplete · request lost · t2 lost (agent_exited) · \
        process gone (agent_left) · lease over (process_gone) · process starts · request opens · \
        thread resumed · request answered · t3 starts · request answered, confirmed · t3 completed",
        "t2 lost (agent_exited)", "work taken", "request answered, confirmed · item incomplete", AGENT_GONE, IN_T4;
    Approval Stop: "item failed · request lost · t2 interrupted (stopped) · \
        process gone (order of user) · lease over (process_gone)",
        "t2 interrupted (stopped)", "work taken", "request lost · item failed", STOPPED, RESUMED_IN_T3;
    Approval Elsewhere: "request answered · request answered, confirmed · t2 completed",
        "t2 completed", "work taken", "request answered, confirmed", SAME, IN_T3;
    Approval TakenElsewhere: "item incomplete · request lost · t2 lost (agent_exited) · \
        process gone (agent_left) · lease over (process_gone) · process gone (spawn_failed) · \
        lease over (process_gone) · held (active_writer) · held no more · process starts · request opens · \
        thread resumed · request answered · t3 starts · request answered, confirmed · t3 completed",
        "t2 lost (agent_exited)", "work taken", "request answered, confirmed · item incomplete", "process gone (spawn_failed)", IN_T4;
    Question Interrupt: "stop asked · request cancelled · item incomplete · t2 interrupted",
        "t2 interrupted", "work taken", "request cancelled · item incomplete", SAME, IN_T3;
    Question Steer: "extra given into t2 · request answered · request answered, confirmed · extra taken · \
        t2 completed",
        "t2 completed", "work taken · extra taken", "request answered, confirmed", SAME, IN_T3;
    Question Queue: "extra queued (turn_running) · request answered · request answered, confirmed · \
        t2 completed · extra given · t3 starts · extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", "request answered, confirmed", SAME, IN_T4;
    Question HostKilled: "process taken over · request answered · request answered, confirmed · \
        t2 completed",
        "t2 completed", "work taken", "request answered, confirmed", SAME, IN_T3;
    Question KeeperKilled: "item incomplete · request lost · t2 lost (keeper_lost) · \
        process gone (keeper_lost) · lease over (process_gone) · process starts · request opens · \
        thread resumed · request answered · t3 starts · request answered, confirmed · t3 completed",
        "t2 lost (keeper_lost)", "work taken", "request answered, confirmed · item incomplete", KEEPER_GONE, IN_T4;
    Question AgentKilled: "item incomplete · request lost · t2 lost (agent_exited) · \
        process gone (agent_left) · lease over (process_gone) · process starts · request opens · \
        thread resumed · request answered · t3 starts · request answered, confirmed · t3 completed",
        "t2 lost (agent_exited)", "work taken", "request answered, confirmed · item incomplete", AGENT_GONE, IN_T4;
    Question Stop: "item failed · request lost · t2 interrupted (stopped) · \
        process gone (order of user) · lease over (process_gone)",
        "t2 interrupted (stopped)", "work taken", "request lost · item failed", STOPPED, RESUMED_IN_T3;
    Question Elsewhere: "request answered · request answered, confirmed · t2 completed",
        "t2 completed", "work taken", "request answered, confirmed", SAME, IN_T3;
    Question TakenElsewhere: "item incomplete · request lost · t2 lost (agent_exited) · \
        process gone (agent_left) · lease over (process_gone) · process gone (spawn_failed) · \
        lease over (process_gone) · held (active_writer) · held no more · process starts · request opens · \
        thread resumed · request answered · t3 starts · request answered, confirmed · t3 completed",
        "t2 lost (agent_exited)", "work taken", "request answered, confirmed · item incomplete", "process gone (spawn_failed)", IN_T4;
    Compacting Interrupt: "stop asked · t4 completed",
        "t4 completed", NONE, NONE, SAME, IN_T5;
    Compacting Steer: "extra given into t4 · t4 completed · t5 starts · extra taken · t5 completed",
        "t4 completed", "extra taken", NONE, SAME, IN_T6;
    Compacting Queue: "extra queued (turn_running) · t4 completed · extra given · t5 starts · \
        extra taken · t5 completed",
        "t4 completed", "extra taken", NONE, SAME, IN_T6;
    Compacting HostKilled: "process taken over · t4 completed",
        "t4 completed", NONE, NONE, SAME, IN_T5;
    Compacting KeeperKilled: "t4 lost (keeper_lost) · process gone (keeper_lost) · \
        lease over (process_gone)",
        "t4 lost (keeper_lost)", NONE, NONE, KEEPER_GONE, RESUMED_IN_T5;
    Compacting AgentKilled: "t4 lost (agent_exited) · process gone (agent_left) · \
        lease over (process_gone)",
        "t4 lost (agent_exited)", NONE, NONE, AGENT_GONE, RESUMED_IN_T5;
    Compacting Stop: "t4 interrupted (stopped) · process gone (order of user) · lease over (process_gone)",
        "t4 interrupted (stopped)", NONE, NONE, STOPPED, RESUMED_IN_T5;
    Compacting Elsewhere: "t4 completed",
        "t4 completed", NONE, NONE, SAME, IN_T5;
    Compacting TakenElsewhere: "t4 lost (agent_exited) · process gone (agent_left) · \
        lease over (process_gone)",
        "t4 lost (agent_exited)", NONE, NONE, AGENT_GONE, HELD_THEN_IN_T5;
    Background Interrupt: "task stopped",
        "t2 completed", "work taken", "task stopped", SAME, IN_T3;
    Background Steer: "refused (no_turn) · task completed · t3 starts (task) · t3 completed",
        "t2 completed", "work taken", "task completed", SAME, IN_T4;
    Background Queue: "extra given · t3 starts · extra taken · t3 completed · task completed · \
        t4 starts (task) · t4 completed",
        "t2 completed", "work taken · extra taken", "task completed", SAME, IN_T5;
    Background HostKilled: "process taken over · task completed · t3 starts (task) · t3 completed",
        "t2 completed", "work taken", "task completed", SAME, IN_T4;
    Background KeeperKilled: "task lost · process gone (keeper_lost) · lease over (process_gone)",
        "t2 completed", "work taken", "task lost", KEEPER_GONE, RESUMED_TASK_FIRST;
    Background KeeperKilled: "task lost · process gone (keeper_lost) · lease over (process_gone)",
        "t2 completed", "work taken", "task lost", KEEPER_GONE, RESUMED_TASK_BESIDE;
    Background AgentKilled: "task lost · process gone (agent_left) · lease over (process_gone)",
        "t2 completed", "work taken", "task lost", AGENT_GONE, RESUMED_TASK_FIRST;
    Background AgentKilled: "task lost · process gone (agent_left) · lease over (process_gone)",
        "t2 completed", "work taken", "task lost", AGENT_GONE, RESUMED_TASK_BESIDE;
    Background Stop: "task lost · process gone (order of user) · lease over (process_gone)",
        "t2 completed", "work taken", "task lost", STOPPED, RESUMED_TASK_FIRST;
    Background Stop: "task lost · process gone (order of user) · lease over (process_gone)",
        "t2 completed", "work taken", "task lost", STOPPED, RESUMED_TASK_BESIDE;
    // The end of the task may reach the program before its own.
    Background Stop: "t3 starts (task) · task lost · t3 interrupted (stopped) · process gone (order of user) · \
        lease over (process_gone)",
        "t2 completed", "work taken", "task lost", STOPPED, RESUMED_IN_T4;
    Background Elsewhere: "task completed · t3 starts (task) · t3 completed",
        "t2 completed", "work taken", "task completed", SAME, IN_T4;
    Background TakenElsewhere: "task lost · process gone (agent_left) · lease over (process_gone)",
        "t2 completed", "work taken", "task lost", AGENT_GONE, HELD_THEN_TASK_FIRST;
    Background TakenElsewhere: "task lost · process gone (agent_left) · lease over (process_gone)",
        "t2 completed", "work taken", "task lost", AGENT_GONE, HELD_THEN_TASK_BESIDE;
    Child Interrupt: "stop asked · child stopped · item incomplete · t2 interrupted",
        "t2 interrupted", "work taken", "item incomplete · child stopped", SAME, IN_T3;
    Child Steer: "extra given into t2 · child completed · extra taken · t2 completed",
        "t2 completed", "work taken · extra taken", "child completed", SAME, IN_T3;
    Child Queue: "extra queued (turn_running) · child completed · t2 completed · extra given · \
        t3 starts · extra taken · t3 completed",
        "t2 completed", "work taken · extra taken", "child completed", SAME, IN_T4;
    Child HostKilled: "process taken over · child completed · t2 completed",
        "t2 completed", "work taken", "child completed", SAME, IN_T3;
    Child KeeperKilled: "item incomplete · child lost · t2 lost (keeper_lost) · \
        process gone (keeper_lost) · lease over (process_gone)",
        "t2 lost (keeper_lost)", "work taken", "item incomplete · child lost", KEEPER_GONE, RESUMED_IN_T3;
    Child AgentKilled: "item incomplete · child lost · t2 lost (agent_exited) · \
        process gone (agent_left) · lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken", "item incomplete · child lost", AGENT_GONE, RESUMED_IN_T3;
    Child Stop: "item failed · child lost · t2 interrupted (stopped) · process gone (order of user) · \
        lease over (process_gone)",
        "t2 interrupted (stopped)", "work taken", "item failed · child lost", STOPPED, RESUMED_IN_T3;
    Child Elsewhere: "child completed · t2 completed",
        "t2 completed", "work taken", "child completed", SAME, IN_T3;
    Child TakenElsewhere: "item incomplete · child lost · t2 lost (agent_exited) · \
        process gone (agent_left) · lease over (process_gone)",
        "t2 lost (agent_exited)", "work taken", "item incomplete · child lost", AGENT_GONE, HELD_THEN_IN_T3;
}
