//! Breadth-first exploration of every reachable state. Only the frontier's states are kept whole; what was expanded is
//! kept as a 128-bit digest, the step that led to it, and its edges.

use crate::world::{Digest, World};
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// A space larger than this is a mistake of the model: the run fails rather than taking minutes.
pub(crate) const MOST_STATES: usize = 2_000_000;

/// What kind of step it is, for the question whether there is a way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The protocol goes on by itself.
    Step,
    /// What a user may do to get a session out of a state that nothing else can resolve.
    WayOut,
    User,
    Fault,
}

#[derive(Debug, Default)]
pub(crate) struct Steps(Vec<(&'static str, usize, Kind, World)>);

impl Steps {
    pub(crate) fn push(&mut self, name: &'static str, slot: usize, kind: Kind, next: World) {
        let mut next = next;
        next.tidy();
        self.0.push((name, slot, kind, next));
    }
}

/// A shortest way to a broken property.
#[derive(Debug)]
pub(crate) struct Counterexample {
    pub(crate) property: &'static str,
    pub(crate) trace: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    pub(crate) edges: usize,
    pub(crate) quiet: usize,
    pub(crate) cut: usize,
    pub(crate) landmarks: u16,
    pub(crate) found: Option<Counterexample>,
}

pub(crate) const NO_WAY_OUT: &str = "a state without a way out";

struct Visited {
    parent: u32,
    step: &'static str,
    slot: u8,
}

/// Explores until a property breaks (the given one, or any) or everything was seen.
pub(crate) fn explore(first: World, wanted: Option<&str>, steps_of: impl Fn(&World, &mut Steps)) -> Explored {
    let breaks = |world: &World| {
        let asked_for = wanted.and_then(|_| world.beside_given_up());
        world.violations().chain(asked_for).find(|it| wanted.is_none_or(|wanted| wanted == *it))
    };
    let mut ids = HashMap::new();
    let mut visited = vec![Visited { parent: 0, step: "", slot: 0 }];
    let mut frontier = VecDeque::from([(0_u32, first.clone())]);
    // Steps that the protocol or a user's way out takes, from and to.
    let mut onward: Vec<(u32, u32)> = Vec::new();
    let (mut quiet, mut cut, mut edges, mut landmarks) = (Vec::new(), 0, 0, 0);
    ids.insert(digest(&first), 0_u32);
    let mut steps = Steps::default();
    let mut broken = breaks(&first).map(|property| (0, property));
    while broken.is_none()
        && let Some((id, world)) = frontier.pop_front()
    {
        landmarks |= world.landmarks();
        if world.is_quiet() {
            quiet.push(id);
        }
        if world.cut {
            cut += 1;
            continue;
        }
        steps_of(&world, &mut steps);
        for (step, slot, kind, next) in steps.0.drain(..) {
            edges += 1;
            let fresh_id = visited.len() as u32;
            let to = *ids.entry(digest(&next)).or_insert(fresh_id);
            if matches!(kind, Kind::Step | Kind::WayOut) && to != id {
                onward.push((id, to));
            }
            if to != fresh_id {
                continue;
            }
            visited.push(Visited { parent: id, step, slot: slot as u8 });
            if let Some(property) = breaks(&next) {
                broken = Some((to, property));
                break;
            }
            assert!(visited.len() <= MOST_STATES, "the model has more than {MOST_STATES} states");
            frontier.push_back((to, next));
        }
    }
    let stuck = || stuck_state(visited.len(), &onward, &quiet).map(|id| (id, NO_WAY_OUT));
    let found = broken
        .or_else(stuck)
        .map(|(id, property)| Counterexample { property, trace: trace_to(&visited, id) });
    Explored { states: visited.len(), edges, quiet: quiet.len(), cut, landmarks, found }
}

/// The first state from which no quiet one can be reached by the protocol's own steps.
fn stuck_state(states: usize, onward: &[(u32, u32)], quiet: &[u32]) -> Option<u32> {
    // Edges by their target, counted and laid out in one vector.
    let mut starts = vec![0_u32; states + 1];
    for (_, to) in onward {
        starts[*to as usize + 1] += 1;
    }
    for index in 0..states {
        starts[index + 1] += starts[index];
    }
    let mut sources = vec![0_u32; onward.len()];
    let mut filled = starts.clone();
    for (from, to) in onward {
        let place = &mut filled[*to as usize];
        sources[*place as usize] = *from;
        *place += 1;
    }
    let mut reaches = vec![false; states];
    let mut open = quiet.to_vec();
    for id in quiet {
        reaches[*id as usize] = true;
    }
    while let Some(id) = open.pop() {
        let range = starts[id as usize] as usize..starts[id as usize + 1] as usize;
        for from in &sources[range] {
            if !std::mem::replace(&mut reaches[*from as usize], true) {
                open.push(*from);
            }
        }
    }
    reaches.iter().position(|reached| !reached).map(|id| id as u32)
}

fn trace_to(visited: &[Visited], mut id: u32) -> Vec<String> {
    let mut trace = Vec::new();
    while id != 0 {
        let at = &visited[id as usize];
        trace.push(format!("{} [{}]", at.step, at.slot));
        id = at.parent;
    }
    trace.reverse();
    trace
}

fn digest(world: &World) -> u128 {
    let mut digest = Digest::default();
    world.hash(&mut digest);
    digest.value()
}
