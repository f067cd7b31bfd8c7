//! The steps of one run with one host. A step that fails leaves its rows without a figure, with the reason, and the
//! next one is taken.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::feed::{Feed, From, Readers, Seen};
use crate::figures::Figures;
use crate::hosts::{Facts, Fate, Host, TURN_LIMIT};
use crate::lab::Running;
use crate::problem::Problem;
use crate::processes;

/// Bytes of text in a frame of a burst.
pub(crate) const FRAME_TEXT: u64 = 24;

/// How long a host may take to be healthy: the slowest peer takes six seconds on a quiet machine, and a busy one is slow.
const HEALTHY_WITHIN: Duration = Duration::from_secs(180);

/// Between two questions whether it is healthy: short beside the shortest start that is measured.
const ASK_EVERY: Duration = Duration::from_micros(300);

/// When nothing has come for so long, nothing more will.
const QUIET: Duration = Duration::from_secs(3);

/// How much of everything.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) runs: usize,
    /// Every burst of a host is divided by this.
    pub(crate) divisor: u64,
    pub(crate) sessions: usize,
    pub(crate) resting: usize,
    pub(crate) turns: usize,
    pub(crate) stamps: u64,
    pub(crate) tail_frames: u64,
    pub(crate) rows: Vec<String>,
}

impl Plan {
    pub(crate) fn full() -> Self {
        let rows = Vec::new();
        Self {
            runs: 5,
            divisor: 1,
            sessions: 10,
            resting: 200,
            turns: 50,
            stamps: 3_000,
            tail_frames: 1_000_000,
            rows,
        }
    }

    pub(crate) fn quick() -> Self {
        let rows = Vec::new();
        Self {
            runs: 1,
            divisor: 15,
            sessions: 3,
            resting: 20,
            turns: 10,
            stamps: 500,
            tail_frames: 20_000,
            rows,
        }
    }
}

/// One run with one host.
pub(crate) struct Run<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) figures: &'a mut Figures,
    facts: Facts,
    number: usize,
}

type Step = (&'static [&'static str], fn(&mut Run<'_>, &mut dyn Host) -> Result<(), Problem>);

/// Each with the rows that it fills.
const STEPS: &[Step] = &[
    (&["start"], |run, host| run.start(host)),
    (&["idle_rss", "idle_pss"], |run, host| run.idle(host)),
    (&["session_rest"], |run, host| run.rest(host)),
    (&["session_idle", "session_streaming"], |run, host| run.sessions(host)),
    (&["turn"], |run, host| run.round_trips(host)),
    (&["frames_0"], |run, host| run.unread(host)),
    (&["frames_1", "arrived_1", "cpu", "disk", "replay", "held"], |run, host| run.read_by_one(host)),
    (&["frames_10", "arrived_10"], |run, host| run.read_by_ten(host)),
    (&["frames_100", "arrived_100"], |run, host| run.read_by_hundred(host)),
    (&["latency_p50", "latency_p99"], |run, host| run.latency(host)),
    (&["tail"], |run, host| run.tail(host)),
    (&["recovery", "kept"], |run, host| run.crash(host)),
];

impl<'a> Run<'a> {
    /// `number` is the host's place in the report.
    pub(crate) fn new(plan: &'a Plan, figures: &'a mut Figures, facts: Facts, number: usize) -> Self {
        Self { plan, figures, facts, number }
    }

    pub(crate) fn all(&mut self, host: &mut dyn Host) {
        for (rows, step) in STEPS {
            let wanted = |row: &&str| {
                (self.facts.only.is_empty() || self.facts.only.contains(row))
                    && (self.plan.rows.is_empty() || self.plan.rows.iter().any(|named| named == row))
            };
            let rows: Vec<&str> = rows.iter().filter(|row| wanted(row)).copied().collect();
            if rows.is_empty() {
                continue;
            }
            let begun = Instant::now();
            let outcome = fresh(host).and_then(|()| step(self, host));
            if let Err(problem) = &outcome {
                for row in &rows {
                    self.absent(row, problem.line());
                }
            }
            crate::progress(&format!(
                "  {} {}: {:.1} s{}",
                self.facts.name,
                rows.join(" "),
                begun.elapsed().as_secs_f64(),
                outcome.err().map_or_else(String::new, |problem| format!(" ({})", problem.line())),
            ));
        }
        *host.process() = None;
    }

    fn key(&self) -> (usize, &str, crate::hosts::Durable) {
        (self.number, &self.facts.name, self.facts.durable)
    }

    fn wanted(&self, row: &str) -> bool {
        self.facts.only.is_empty() || self.facts.only.contains(&row)
    }

    fn add(&mut self, row: &str, value: f64) {
        if self.wanted(row) {
            let name = self.facts.name.clone();
            self.figures.add(row, (self.number, &name, self.facts.durable), value);
        }
    }

    fn note(&mut self, row: &str, note: String) {
        if self.wanted(row) {
            let name = self.facts.name.clone();
            self.figures.note(row, (self.number, &name, self.facts.durable), note);
        }
    }

    fn absent(&mut self, row: &str, why: String) {
        let (number, name, durable) = self.key();
        let name = name.to_owned();
        self.figures.absent(row, (number, &name, durable), why);
    }

    fn burst(&self) -> u64 {
        (self.facts.burst / self.plan.divisor).max(100)
    }

    fn start(&mut self, host: &mut dyn Host) -> Result<(), Problem> {
        serving(host)?;
        *host.process() = None;
        host.lab().clear()?;
        let took = started(host)?;
        self.add("start", took);
        Ok(())
    }

    fn idle(&mut self, host: &mut dyn Host) -> Result<(), Problem> {
        serving(host)?;
        *host.process() = None;
        host.lab().clear()?;
        started(host)?;
        let (resident, proportional) = (settled(|| processes::resident(host.lab())), settled_pss(host));
        self.add("idle_rss", resident);
        self.add("idle_pss", proportional);
        Ok(())
    }

    fn rest(&mut self, host: &mut dyn Host) -> Result<(), Problem> {
        let before = settled_pss(host);
        for _ in 0..self.plan.resting {
            host.rest()?;
        }
        let more = settled_pss(host) - before;
        self.add("session_rest", more / self.plan.resting as f64);
        Ok(())
    }

    fn sessions(&mut self, host: &mut dyn Host) -> Result<(), Problem> {
        // What a host touches once, whoever asks, is not what a session costs.
        let mut sessions = vec![host.open()?];
        let before = settled_pss(host);
        for _ in 0..self.plan.sessions {
            sessions.push(host.open()?);
        }
        let count = self.plan.sessions as f64;
        self.add("session_idle", (settled_pss(host) - before) / count);
        let script = format!("STAMPS {} 1000", self.plan.stamps);
        let host = &*host;
        let streaming = std::thread::scope(|scope| {
            let turns: Vec<_> =
                sessions.iter().skip(1).map(|session| scope.spawn(|| host.turn(session, &script))).collect();
            std::thread::sleep(Duration::from_millis(self.plan.stamps / 2));
            let streaming = processes::proportional(host.lab());
            let ended: Result<(), Problem> = turns.into_iter().filter_map(|turn| turn.join().ok()).collect();
            ended.map(|()| streaming)
        })?;
        self.add("session_streaming", (streaming - before) / count);
        Ok(())
    }

    fn round_trips(&mut self, host: &mut dyn Host) -> Result<(), Problem> {
        let session = host.open()?;
        let mut times = Vec::new();
        for _ in 0..self.plan.turns {
            let begun = Instant::now();
            host.round_trip(&session)?;
            times.push(milliseconds(begun));
        }
        let (half, most) = (share(&mut times, 0.5), share(&mut times, 0.99));
        self.add("turn", half);
        self.note("turn", format!("p99 {most:.1} ms"));
        Ok(())
    }

    fn unread(&mut self, host: &mut dyn Host) -> Result<(), Problem> {
        let session = host.open()?;
        let frames = self.burst();
        let begun = Instant::now();
        host.turn(&session, &format!("FRAMES {frames} {FRAME_TEXT}"))?;
        self.add("frames_0", frames as f64 / begun.elapsed().as_secs_f64());
        Ok(())
    }

    fn read_by_one(&mut self, host: &mut dyn Host) -> Result<(), Problem> {
        let session = host.open()?;
        let frames = self.burst();
        let disk_before = host.data().map(|folder| processes::disk_bytes(&folder));
        let names_before = processes::processor_by_name(host.lab());
        let processor = processes::processor(host.lab());
        self.read(host, &session, 1, frames)?;
        let spent = processes::processor(host.lab()) - processor;
        let per_frame = |seconds: f64| seconds * 1e6 / frames as f64;
        self.add("cpu", per_frame(spent));
        let parts: Vec<String> = processes::processor_by_name(host.lab())
            .into_iter()
            .map(|(name, seconds)| {
                let before = names_before.get(&name).copied().unwrap_or(0.0);
                format!("{name} {:.2}", per_frame(seconds - before))
            })
            .collect();
        if parts.len() > 1 {
            self.note("cpu", parts.join(", "));
        }
        match (host.data(), disk_before) {
            (Some(folder), Some(before)) => {
                std::thread::sleep(Duration::from_secs(2));
                let grown = processes::disk_bytes(&folder).saturating_sub(before) as f64;
                self.add("disk", grown / (frames * host.line_bytes(FRAME_TEXT)) as f64);
            }
            _ => self.absent("disk", "keeps nothing on the disk".to_owned()),
        }
        if host.replays() {
            let (seen, seconds) = from_beginning(host, &session, frames)?;
            self.add("replay", seen.frames as f64 / seconds);
            self.add("held", 100.0 * (seen.frames.min(frames) as f64) / frames as f64);
            self.note("replay", format!("{} frames were there", seen.frames));
        } else {
            self.absent("replay", "no stream from an earlier place".to_owned());
            self.absent("held", "no stream from an earlier place".to_owned());
        }
        Ok(())
    }

    fn read_by_ten(&mut self, host: &mut dyn Host) -> Result<(), Problem> {
        let session = host.open()?;
        self.read(host, &session, 10, self.burst() / 3)
    }

    fn read_by_hundred(&mut self, host: &mut dyn Host) -> Result<(), Problem> {
        let session = host.open()?;
        self.read(host, &session, 100, self.burst() / 15)
    }

    /// One burst with so many readers.
    fn read(&mut self, host: &dyn Host, session: &str, readers: usize, frames: u64) -> Result<(), Problem> {
        if readers > host.most_readers() {
            return Err(Problem::Unsupported("one reader at most"));
        }
        let script = format!("FRAMES {frames} {FRAME_TEXT}");
        let (seen, begun) = streamed(host, session, &script, readers, frames)?;
        let slowest = seen.iter().map(|seen| rate(seen, begun)).min_by(f64::total_cmp).unwrap_or(0.0);
        let arrived: u64 = seen.iter().map(|seen| seen.frames.min(frames)).sum();
        self.add(&format!("frames_{readers}"), slowest);
        self.add(&format!("arrived_{readers}"), 100.0 * arrived as f64 / (frames * readers as u64) as f64);
        Ok(())
    }

    fn latency(&mut self, host: &mut dyn Host) -> Result<(), Problem> {
        let session = host.open()?;
        let stamps = self.plan.stamps;
        let (seen, _) = streamed(host, &session, &format!("STAMPS {stamps} 1000"), 1, stamps)?;
        let mut waits = seen.into_iter().flat_map(|seen| seen.waits).collect::<Vec<f64>>();
        if waits.is_empty() {
            return Err(Problem::Unsupported("no frame came with its time"));
        }
        let (half, most) = (share(&mut waits, 0.5), share(&mut waits, 0.99));
        self.add("latency_p50", half);
        self.add("latency_p99", most);
        self.note("latency_p50", format!("{} samples a run", waits.len()));
        Ok(())
    }

    fn tail(&mut self, host: &mut dyn Host) -> Result<(), Problem> {
        let session = host.open()?;
        host.tail(&session)?;
        let fast = self.facts.burst >= crate::hosts::FAST;
        let frames = if fast { self.plan.tail_frames } else { self.burst() };
        host.turn(&session, &format!("FRAMES {frames} {FRAME_TEXT}"))?;
        let mut times = Vec::new();
        for _ in 0..self.plan.turns {
            let begun = Instant::now();
            host.tail(&session)?;
            times.push(milliseconds(begun));
        }
        self.add("tail", share(&mut times, 0.5));
        self.note("tail", format!("{frames} frames in the session"));
        Ok(())
    }

    fn crash(&mut self, host: &mut dyn Host) -> Result<(), Problem> {
        const SAID: u64 = 1_000;
        let said = SAID.min(self.burst());
        let session = host.open()?;
        host.turn(&session, &format!("FRAMES {said} {FRAME_TEXT}"))?;
        let over = AtomicBool::new(false);
        let orphans = {
            let host = &*host;
            std::thread::scope(|scope| {
                // Its client is cut off by the kill, as every client is.
                scope.spawn(|| {
                    host.turn(&session, "HOLD").ok();
                    over.store(true, Ordering::SeqCst);
                });
                std::thread::sleep(Duration::from_secs(1));
                host.kill()?;
                std::thread::sleep(Duration::from_millis(500));
                Ok::<_, Problem>(processes::agents(host.lab()).len())
            })?
        };
        *host.process() = None;
        let begun = Instant::now();
        started(host)?;
        let fate = loop {
            match host.fate(&session) {
                Ok(Some(fate)) => break fate,
                Ok(None) => {}
                Err(problem @ Problem::Unsupported(_)) => return Err(problem),
                Err(problem) if begun.elapsed() > HEALTHY_WITHIN => return Err(problem),
                Err(_) => {}
            }
            if begun.elapsed() > HEALTHY_WITHIN {
                return Err(Problem::Late { what: "an answer about the session", limit: HEALTHY_WITHIN });
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let took = milliseconds(begun);
        if fate != Fate::Unknown {
            self.add("recovery", took);
        } else {
            self.absent("recovery", fate.words().to_owned());
        }
        let kept = if host.replays() {
            from_beginning(host, &session, said).map_or(0, |(seen, _)| seen.frames.min(said))
        } else {
            0
        };
        let of_all = 100.0 * kept as f64 / said as f64;
        if host.replays() {
            self.add("kept", of_all);
        } else {
            self.absent("kept", "no stream from an earlier place".to_owned());
        }
        self.note("recovery", format!("{}; agents alive after the kill: {orphans}", fate.words()));
        self.note("kept", fate.words().to_owned());
        *host.process() = None;
        host.lab().clear()
    }
}

fn serving(host: &dyn Host) -> Result<(), Problem> {
    let serves = host.serves().then_some(());
    serves.ok_or(Problem::Unsupported("no process of its own before the first session"))
}

/// A host that runs and is healthy; one that has ended since the last step is started anew.
fn fresh(host: &mut dyn Host) -> Result<(), Problem> {
    if !host.serves() {
        return Ok(());
    }
    let runs = host.process().as_mut().is_some_and(|process| !process.ended());
    if runs && host.healthy() {
        return Ok(());
    }
    *host.process() = None;
    host.lab().clear()?;
    started(host).map(drop)
}

/// Milliseconds until it was healthy.
fn started(host: &mut dyn Host) -> Result<f64, Problem> {
    let begun = Instant::now();
    host.launch()?;
    while !host.healthy() {
        if host.process().as_mut().is_none_or(Running::ended) {
            let log = crate::problem::shortened(&host.lab().log());
            return Err(Problem::Unexpected { what: "it ended at once", answer: log });
        }
        if begun.elapsed() > HEALTHY_WITHIN {
            return Err(Problem::Late { what: "healthy", limit: HEALTHY_WITHIN });
        }
        std::thread::sleep(ASK_EVERY);
    }
    Ok(milliseconds(begun))
}

/// Gives the agent a script with so many readers and waits until they have its frames, or get no more.
fn streamed(
    host: &dyn Host,
    session: &str,
    script: &str,
    readers: usize,
    frames: u64,
) -> Result<(Vec<Seen>, Instant), Problem> {
    let feeds: Result<Vec<Box<dyn Feed>>, Problem> =
        (0..readers).map(|_| host.feed(session, From::Now)).collect();
    let readers = Readers::start(feeds?);
    let over = AtomicBool::new(false);
    let begun = Instant::now();
    let outcome = std::thread::scope(|scope| {
        let turn = scope.spawn(|| {
            let outcome = host.turn(session, script);
            over.store(true, Ordering::SeqCst);
            outcome
        });
        readers.wait(frames, QUIET, TURN_LIMIT, &over);
        turn.join().unwrap_or(Err(Problem::Unsupported("the driver failed")))
    });
    let seen = readers.finish();
    outcome.map(|()| (seen, begun))
}

/// A reader from the beginning: what it saw, and the seconds to its last frame.
fn from_beginning(host: &dyn Host, session: &str, frames: u64) -> Result<(Seen, f64), Problem> {
    let begun = Instant::now();
    let readers = Readers::start(vec![host.feed(session, From::Beginning)?]);
    readers.wait(frames + 1, QUIET, TURN_LIMIT, &AtomicBool::new(true));
    let seen = readers.finish().pop().unwrap_or_default();
    let seconds = seen.last_frame.map_or(f64::NAN, |last| (last - begun).as_secs_f64());
    Ok((seen, seconds))
}

fn rate(seen: &Seen, begun: Instant) -> f64 {
    seen.last_frame.map_or(0.0, |last| seen.frames as f64 / (last - begun).as_secs_f64())
}

fn settled_pss(host: &dyn Host) -> f64 {
    settled(|| processes::proportional(host.lab()))
}

/// The least within a second: tasks that are about to end are not what rests.
fn settled(mut look: impl FnMut() -> f64) -> f64 {
    let give_up = Instant::now() + Duration::from_secs(1);
    let mut least = look();
    while Instant::now() < give_up {
        std::thread::sleep(Duration::from_millis(20));
        least = least.min(look());
    }
    least
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// The value below which this share lies.
pub(crate) fn share(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() as f64 * share) as usize;
    values.get(index.min(values.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}
