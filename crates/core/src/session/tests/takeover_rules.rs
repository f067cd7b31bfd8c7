//! A record that is older than what a keeper knows.

use super::*;
use crate::event::EpochReason;

fn takeover(known: u64) -> Takeover {
    Takeover {
        process: ProcessToken::from("living"),
        agent: Some(ProcessId { boot_id: "b".to_owned(), pid: 8, start_time: 10 }),
        known: Fence(known),
        thread: ThreadId::from("thread"),
        gone: None,
    }
}

fn kinds_since(bench: &Bench, from: usize) -> Vec<&'static str> {
    bench.journal[from..].iter().map(|stamped| stamped.event.kind()).collect()
}

#[test]
fn a_keeper_that_knows_a_later_owner_raises_the_fence_and_opens_an_epoch() {
    let mut bench = Bench::running();
    assert_eq!(bench.session.fence, Fence(1));
    let before = bench.session.clone();
    bench.must(Input::FenceAhead { known: Fence(0) });
    assert_eq!(bench.session, before, "a record that is newer is left alone");
    bench.must(Input::FenceAhead { known: Fence(4) });
    let last = bench.journal.last().expect("an event");
    assert_eq!(last.event, Event::EpochStarted { reason: EpochReason::FenceAhead });
    assert_eq!((last.epoch, last.seq, last.fence), (2, 1, Fence(5)), "above every fence that was used");
    let raised = bench.session.clone();
    bench.must(Input::FenceAhead { known: Fence(4) });
    assert_eq!(bench.session, raised, "once is enough");
    assert_eq!(bench.session.turns.len(), 1, "the process is the same one: its turn goes on");
    bench.end_turn("pt1", Outcome::Completed);
    assert_eq!(bench.journal.last().expect("an event").fence, Fence(5));
}

#[test]
fn a_living_process_is_bound_and_gets_nothing_before_it_is_re_attached() {
    let mut bench = Bench::new();
    let from = bench.journal.len();
    let effects = bench.must(Input::TakeOver(takeover(3)));
    assert!(effects.is_empty(), "{effects:?}");
    let expected = [
        "epoch.started",
        "notice",
        "lease.reserved",
        "process.started",
        "process.adopted",
        "thread.linked",
        "lease.held",
    ];
    assert_eq!(kinds_since(&bench, from), expected);
    assert_eq!((bench.session.fence, bench.session.phase), (Fence(4), Phase::Held));
    let how = bench.session.chain.last().expect("a link").how;
    assert_eq!(how, ThreadOrigin::Adopted);
    assert!(bench.session.thread_used, "an adopted conversation is never made anew as if it had been empty");
    bench.agent(AgentEvent::TurnStarted {
        turn: ProviderTurn::from("foreign"),
        origin: Origin::Unknown,
        submission: None,
    });
    assert_eq!(bench.session.status().status, Status::Running);
}

#[test]
fn a_process_of_its_own_is_given_up_for_another_only_where_it_is_proven_gone() {
    let mut bench = Bench::running();
    let own = bench.process();
    let refused = bench.input(Input::TakeOver(takeover(3))).expect_err("refused");
    assert_eq!(refused.code, RefusalCode::SubmissionState);
    let other = Takeover { gone: Some(ProcessToken::from("another")), ..takeover(3) };
    bench.input(Input::TakeOver(other)).expect_err("that one is not its process");
    bench.must(Input::Process(ProcessFact::Unverifiable {
        process: own.clone(),
        why: "no folder".to_owned(),
    }));
    bench.must(Input::TakeOver(Takeover { gone: Some(own), ..takeover(3) }));
    assert_eq!(bench.count("process.exited"), 1);
    assert_eq!(bench.count("turn.ended"), 1, "what the former process left open has ended");
    assert_eq!(bench.session.process, Some(ProcessToken::from("living")));
    assert_eq!(bench.session.chain.len(), 1, "the conversation is the same one");
    assert_eq!(bench.session.unverifiable, None);
}

#[test]
fn a_record_that_held_back_because_of_the_keeper_goes_on_with_it() {
    let mut bench = Bench::running();
    bench.end_turn("pt1", Outcome::Completed);
    bench.agent(AgentEvent::ThreadRefused {
        failure: crate::content::Failure::new(FailureCode::ActiveWriter, "held by another"),
    });
    let process = bench.process();
    let exit = ProcessExit::of(ExitCause::AgentLeft);
    bench.must(Input::Process(ProcessFact::Exited { process, exit }));
    assert_eq!(bench.session.status().status, Status::Recovering);
    bench.must(Input::FenceAhead { known: Fence(1) });
    let fence = bench.session.fence;
    bench.must(Input::TakeOver(takeover(1)));
    assert_eq!(bench.count("epoch.started"), 1, "the record was raised above the keeper before");
    assert_eq!(bench.session.fence, fence.next());
    assert_eq!(bench.session.status().status, Status::Idle);
    let archived = Command::Update { name: None, options: None, archived: Some(true), limits: None };
    bench.must(Input::Command(archived));
    assert_eq!(
        bench.input(Input::TakeOver(takeover(1))).expect_err("archived").code,
        RefusalCode::SessionClosed
    );
}
