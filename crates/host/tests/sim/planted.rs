//! Faults that are there on purpose: the classic ones, at least one for each of the twelve rules that must always hold
//! (design, section 2). The simulator finds every one of them, or it proves nothing.

use crate::keeper::BadKeeper;
use crate::run::{self, Options};
use crate::sweep;
use mainstay_agents::AgentKind::{self, Acp, Claude, Codex};
use mainstay_host::keeping::Planted;
use std::collections::BTreeSet;

/// Seeds within which each must be found.
const FOUND_WITHIN: u64 = 5_000;
/// The rules.
const RULES: usize = 12;

/// Where a fault is.
#[derive(Debug, Clone, Copy)]
enum Plant {
    Host(Planted),
    Keeper(BadKeeper),
}
use Plant::{Host, Keeper};

/// The rules that a planted fault breaks, of which each is run, and found, by a test of this name.
macro_rules! cases {
    ($($name:ident: $rule:literal, $place:ident($of:ident::$fault:ident), $kind:expr;)*) => {
        /// Rule by rule, what breaks it. None of these tests can be left out of a run: the list gives them no attributes.
        const CASES: &[(usize, Plant)] = &[$(($rule, $place($of::$fault))),*];

        /// Every fault that can be planted stands in the list, and once: else this is no complete match, or has an arm that
        /// is never reached.
        const fn is_listed(plant: Plant) -> bool {
            match plant {
                $($place($of::$fault) => true,)*
            }
        }

        $(
            #[test]
            fn $name() {
                is_found($place($of::$fault), $kind);
            }
        )*
    };
}

cases! {
    // 1. Durable before visible, durable before effect.
    effects_before_the_commit: 1, Host(Planted::EffectsBeforeCommit), Acp;
    answers_before_the_commit: 1, Host(Planted::AnswersBeforeCommit), Acp;
    events_before_the_commit: 1, Host(Planted::EventsBeforeCommit), Acp;
    // 2. Exactly once in.
    a_forgotten_position: 2, Host(Planted::PositionForgotten), Acp;
    memory_kept_after_a_failed_commit: 2, Host(Planted::MemoryKept), Acp;
    // 3. Exactly once out.
    an_answer_given_twice: 3, Host(Planted::AnsweredTwice), Acp;
    forgotten_numbers: 3, Host(Planted::NumbersForgotten), Acp;
    given_again_on_a_new_connection: 3, Host(Planted::ConnectionForgotten), Codex;
    a_forgotten_outbox: 3, Host(Planted::OutboxForgotten), Claude;
    a_keeper_that_takes_numbers_again: 3, Keeper(BadKeeper::TakesNumbersAgain), Acp;
    // 4. One writer.
    the_former_fence: 4, Host(Planted::FormerFence), Claude;
    a_forgotten_claim: 4, Host(Planted::ClaimForgotten), Codex;
    bound_late: 4, Host(Planted::BoundLate), Codex;
    // 5. Death is proven, never timed.
    a_guessed_death: 5, Host(Planted::DeathByGuess), Acp;
    silence_taken_for_death: 5, Host(Planted::SilenceIsDeath), Claude;
    // 6. Everything ends, once.
    a_forgotten_end_of_a_turn: 6, Host(Planted::EndForgotten), Claude;
    a_forgotten_neighbour: 6, Host(Planted::NeighbourForgotten), Codex;
    // 7. Identity is an id.
    matched_by_order: 7, Host(Planted::MatchedByOrder), Codex;
    // 8. Unknown is a value.
    unknown_taken_for_absent: 8, Host(Planted::UnknownIsAbsent), Claude;
    an_unmodelled_frame_is_dropped: 8, Host(Planted::UnmodelledIsDropped), Acp;
    // 9. Everything is bounded, and never silently.
    a_full_inbox_is_silent: 9, Host(Planted::NoRoomIsSilent), Claude;
    // 10. One bad session stops no other.
    a_damaged_session_stops_its_neighbours: 10, Host(Planted::OneStopsAll), Codex;
    taken_up_with_one_of_its_sessions: 10, Host(Planted::OneTakenUp), Codex;
    a_handshake_that_only_a_damaged_session_heard: 10, Host(Planted::HandshakeForgotten), Codex;
    what_a_damaged_session_missed_is_forgotten: 10, Host(Planted::AbsenceForgotten), Codex;
    // 11. Reading starts no agent.
    reading_starts_an_agent: 11, Host(Planted::ReadingStarts), Acp;
    // 12. Stop always works.
    a_stop_that_needs_the_store: 12, Host(Planted::StopNeedsStore), Acp;
}

#[test]
fn every_rule_is_broken_by_some_fault() {
    let broken: BTreeSet<usize> = CASES.iter().map(|(rule, _)| *rule).collect();
    assert_eq!(broken, (1..=RULES).collect());
    assert!(CASES.iter().all(|(_, plant)| is_listed(*plant)));
}

/// Runs seeds until the fault is found; says by which and why.
fn is_found(plant: Plant, kind: AgentKind) {
    // What goes wrong around a journal that cannot be read shows soon enough where that happens often.
    let about_journals =
        matches!(plant, Host(Planted::HandshakeForgotten | Planted::AbsenceForgotten | Planted::OneStopsAll));
    let without = Options { journal_fails: about_journals, ..Options::default() };
    let options = match plant {
        Host(planted) => Options { planted: Some(planted), ..without },
        Keeper(bad) => Options { bad: Some(bad), ..without },
    };
    sweep::prepared(|home| {
        for seed in 0..FOUND_WITHIN {
            let Err(failure) = run::seed(seed, home, kind, &options) else { continue };
            // What is wrong without it was not found because of it.
            if run::seed(seed, home, kind, &without).is_ok() {
                eprintln!("{plant:?}: found by seed {seed}: {}", failure.why);
                return;
            }
        }
        panic!("{plant:?} was not found within {FOUND_WITHIN} seeds");
    });
}
