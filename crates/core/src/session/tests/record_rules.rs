//! What the record keeps when it does not keep everything: the chain's origin, the runs that were rewound, the end of each
//! request, and a refused write.

use super::*;
use crate::ControlId;
use crate::work::ControlEnd;

impl Bench {
    /// One more thread, in a process of its own.
    fn another_thread(&mut self, thread: &str) {
        let process = self.process();
        self.must(Input::Process(ProcessFact::Started { process, agent: None }));
        self.agent(AgentEvent::Ready(AgentInfo::default()));
        self.agent(AgentEvent::ThreadOpened { thread: ThreadId::from(thread), resumed: false });
    }

    fn whole_turn(&mut self, number: usize) {
        let (turn, message) = (format!("pt{number}"), format!("m{number}"));
        self.send(&message);
        self.begin_turn(&turn, &message);
        self.end_turn(&turn, Outcome::Completed);
    }

    fn rewind(&mut self, before: &str) {
        let before = TurnId::from(before);
        let (reply, _) =
            self.input(Input::Command(Command::Rewind { before, files: false })).expect("the turn is known");
        let Reply::Asked { control } = reply else { panic!("{reply:?}") };
        self.agent(AgentEvent::ControlEnded { control, end: ControlEnd::Done });
    }
}

#[test]
fn a_chain_that_is_cut_keeps_its_origin_and_says_how_many_links_are_gone() {
    let mut bench = Bench::new();
    bench.send("m1");
    bench.another_thread("first");
    for number in 1..CHAIN_LINKS + 3 {
        bench.agent(AgentEvent::ThreadSwitched { thread: ThreadId(format!("th{number}")) });
    }
    let chain = &bench.session.chain;
    assert_eq!(chain.len(), CHAIN_LINKS);
    assert_eq!((chain[0].thread.as_str(), chain[0].how), ("first", ThreadOrigin::Created));
    assert_eq!(chain[1].thread.as_str(), "th4", "the oldest behind the first are cut");
    assert_eq!(bench.session.chain_cut, 3);
    let cuts: Vec<u64> = bench
        .journal
        .iter()
        .filter_map(|stamped| match stamped.event {
            Event::ThreadLinked { cut, .. } if cut > 0 => Some(cut),
            _ => None,
        })
        .collect();
    assert_eq!(cuts, [1, 2, 3]);
}

#[test]
fn rewound_turns_are_told_from_those_that_the_agent_has() {
    let mut bench = Bench::with(Capabilities { rewind: true, ..capabilities() });
    bench.send("m0");
    bench.start_process();
    bench.begin_turn("pt0", "m0");
    bench.end_turn("pt0", Outcome::Completed);
    (1..4).for_each(|number| bench.whole_turn(number));
    bench.rewind("t3");
    let runs = |bench: &Bench| -> Vec<(String, String)> {
        bench.session.rewound.iter().map(|run| (run.from.0.clone(), run.to.0.clone())).collect()
    };
    let run = |from: &str, to: &str| (from.to_owned(), to.to_owned());
    assert_eq!(runs(&bench), [run("t3", "t4")]);
    (4..6).for_each(|number| bench.whole_turn(number));
    bench.rewind("t6");
    assert_eq!(runs(&bench), [run("t3", "t4"), run("t6", "t6")]);
    // All that was dropped before lies within.
    bench.rewind("t2");
    assert_eq!(runs(&bench), [run("t2", "t6")]);
    assert_eq!(bench.session.epoch, 1, "nothing in the journal was taken back");
}

#[test]
fn the_end_of_a_request_says_where_the_answer_stands() {
    let mut bench = Bench::running();
    let request = bench.ask();
    bench.answer(&request, "yes", "somebody").expect("first");
    bench.agent(AgentEvent::RequestSettled { key: RequestKey::from("1:0"), confirmed: true });
    let answered = bench.journal.iter().find(|stamped| stamped.event.kind() == "request.answered");
    let place = answered.map(|stamped| Cursor { epoch: stamped.epoch, seq: stamped.seq });
    let closed = bench.journal.iter().find_map(|stamped| match stamped.event {
        Event::RequestClosed { answered, .. } => Some(answered),
        _ => None,
    });
    assert!(place.is_some());
    assert_eq!(closed, Some(place));

    // Settled elsewhere, so nobody here answered.
    let second = bench.ask();
    bench.agent(AgentEvent::RequestSettled { key: RequestKey::from("1:0"), confirmed: true });
    let last = bench.journal.iter().rev().find_map(|stamped| match &stamped.event {
        Event::RequestClosed { request, answered, .. } => Some((request.clone(), *answered)),
        _ => None,
    });
    assert_eq!(last, Some((second, None)));
}

#[test]
fn a_stale_write_is_journaled_once_and_one_of_now_is_none() {
    let mut bench = Bench::running();
    bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    bench.send("m2");
    assert_eq!(bench.session.fence, Fence(2));
    let stale = |carried| Input::StaleWrite { carried: Fence(carried) };
    bench.must(stale(2));
    assert_eq!(bench.count("lease.refused"), 0);
    bench.must(stale(1));
    bench.must(stale(1));
    bench.must(stale(0));
    assert_eq!(bench.count("lease.refused"), 1);
}

#[test]
fn a_control_id_names_one_control() {
    let mut bench = Bench::with(Capabilities { rewind: true, ..capabilities() });
    bench.send("m1");
    bench.start_process();
    bench.begin_turn("pt1", "m1");
    bench.end_turn("pt1", Outcome::Completed);
    bench.rewind("t1");
    // Its end, told twice, drops nothing twice.
    bench.agent(AgentEvent::ControlEnded { control: ControlId::from("c1"), end: ControlEnd::Done });
    assert_eq!(bench.count("thread.rewound"), 1);
}
