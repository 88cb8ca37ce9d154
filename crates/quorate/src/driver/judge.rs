//! The recordings of all processes as one, and what must hold of it.
//!
//! **Rule.** Steps are put in the order of their times, but never a receipt before its sending; lives get the
//! numbers 1, 2, 3 of their process, and messages one row of numbers. A message that nobody received, and of
//! which nobody knows, was lost on its link.
//!
//! **Needs.** Processes of one machine: they share a clock. Elsewhere order is true between cause and effect
//! only.
//!
//! **What must hold.** [`inside`]: nobody enters while another is inside; where the right to be inside can
//! end while its holder sleeps, the resource refuses the older one (RULES R44). [`leaders`]: one in a term.
//! [`waits`]: who waits says why, and what it says is true.

use super::named::Stand;
use super::record::{Header, Line, Recording};
use quorate_core::protocol::{Incarnation, Peer, ProcessId, Request};
use quorate_core::trace::{Loss, MessageNo, Step, What};
use std::collections::{BTreeMap, BTreeSet};

/// One recording of a whole run.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    /// The names of calls, messages, timers and events, by their numbers.
    pub calls: Vec<String>,
    /// See `calls`.
    pub messages: Vec<String>,
    /// See `calls`.
    pub timers: Vec<String>,
    /// See `calls`.
    pub events: Vec<String>,
    /// What happened, in order, with lives numbered from 1. There are no inputs in it: see [`Recording`].
    pub lines: Vec<Line>,
}

/// Brings recordings together, with what was done to the processes from outside: those steps name real lives.
pub fn merge(recordings: &[Recording], outside: &[Step]) -> Merged {
    let lives = Lives::of(recordings);
    let mut streams: Vec<Vec<Line>> = recordings.iter().map(|life| life.lines.clone()).collect();
    streams.push(outside.iter().map(|step| Line::of(at_least(recordings, *step))).collect());
    if let Some(last) = streams.last_mut() {
        last.sort_by_key(|line| line.step.at);
    }
    let mut merged = Merged::default();
    if let Some(Header { calls, messages, timers, events, .. }) = recordings.first().map(|life| &life.header)
    {
        (merged.calls, merged.messages) = (calls.clone(), messages.clone());
        (merged.timers, merged.events) = (timers.clone(), events.clone());
    }
    let mut fates = Fates::of(&streams);
    for line in in_order(streams, &fates) {
        fates.settle(line, &lives, &mut merged.lines);
    }
    merged
}

/// A life does not end before the last that it wrote down.
fn at_least(recordings: &[Recording], step: Step) -> Step {
    let life = recordings.iter().find(|life| step.what == What::Crashed && life.header.peer == step.at_peer);
    let last = life.and_then(|life| life.lines.last()).map_or(step.at, |line| line.step.at);
    Step { at: step.at.max(last), ..step }
}

/// The small numbers of lives.
struct Lives(BTreeMap<Peer, u64>);

impl Lives {
    fn of(recordings: &[Recording]) -> Self {
        let mut begun: Vec<_> = recordings
            .iter()
            .map(|life| (life.lines.first().map(|line| line.step.at), life.header.peer))
            .collect();
        begun.sort_unstable();
        let mut counts: BTreeMap<ProcessId, u64> = BTreeMap::new();
        let number = |(_, peer): (_, Peer)| {
            let count = counts.entry(peer.process).or_default();
            *count += 1;
            (peer, *count)
        };
        Self(begun.into_iter().map(number).collect())
    }

    fn peer(&self, peer: Peer) -> Peer {
        let number = self.0.get(&peer).copied().unwrap_or(peer.incarnation.0);
        Peer { incarnation: Incarnation(number), ..peer }
    }

    fn words(&self, words: &str) -> String {
        self.0.iter().filter(|_| words.contains('#')).fold(words.to_string(), |words, (peer, number)| {
            let short = if *number == 1 { String::new() } else { format!("#{number}") };
            words.replace(&format!("#{}", peer.incarnation.0), &short)
        })
    }

    fn line(&self, mut line: Line) -> Line {
        line.input = None;
        line.words = self.words(&line.words);
        line.step.at_peer = self.peer(line.step.at_peer);
        line.step.about = line.step.about.map(|about| Request { by: self.peer(about.by), ..about });
        match &mut line.step.what {
            What::Received { from, .. } | What::Ignored { from, .. } => *from = self.peer(*from),
            What::Trusted(process, life) => {
                *life = self.peer(Peer { process: *process, incarnation: *life }).incarnation;
            }
            _ => {}
        }
        line
    }
}

/// What became of each message, named by its sender and number.
struct Fates {
    sent: BTreeSet<(Peer, MessageNo)>,
    received: BTreeSet<(Peer, MessageNo)>,
    dropped: BTreeSet<(Peer, MessageNo)>,
    numbers: BTreeMap<(Peer, MessageNo), MessageNo>,
}

/// The message that a line is about, and whether it is its sending.
fn message(line: &Line) -> Option<((Peer, MessageNo), bool)> {
    match line.step.what {
        What::Sent { message, .. } => Some(((line.step.at_peer, message), true)),
        What::Received { message, from, .. } => Some(((from, message), false)),
        What::Dropped { message, .. } => Some(((line.from.unwrap_or(line.step.at_peer), message), false)),
        _ => None,
    }
}

impl Fates {
    fn of(streams: &[Vec<Line>]) -> Self {
        let of = |wanted: fn(&What) -> bool| {
            let lines = streams.iter().flatten().filter(|line| wanted(&line.step.what));
            lines.filter_map(|line| Some(message(line)?.0)).collect()
        };
        Self {
            sent: of(|what| matches!(what, What::Sent { .. })),
            received: of(|what| matches!(what, What::Received { .. })),
            dropped: of(|what| matches!(what, What::Dropped { .. })),
            numbers: BTreeMap::new(),
        }
    }

    /// Gives a line its place, with small numbers; behind a sending of which nobody knows more, its loss.
    fn settle(&mut self, mut line: Line, lives: &Lives, into: &mut Vec<Line>) {
        let Some((name, _)) = message(&line) else { return into.push(lives.line(line)) };
        let next = MessageNo(self.numbers.len() as u64 + 1);
        let number = *self.numbers.entry(name).or_insert(next);
        match &mut line.step.what {
            What::Sent { message, .. } | What::Received { message, .. } => *message = number,
            What::Dropped { message, .. } => {
                *message = number;
                line.step.at_peer = line.from.take().unwrap_or(line.step.at_peer);
                // What its sender took for lost has arrived after all.
                if self.received.contains(&name) {
                    return;
                }
            }
            _ => {}
        }
        let what = line.step.what;
        let line = lives.line(line);
        into.push(line.clone());
        if let What::Sent { message, kind, to } = what
            && !self.received.contains(&name)
            && !self.dropped.contains(&name)
        {
            let what = What::Dropped { message, kind, to, why: Loss::Link };
            into.push(Line { words: String::new(), step: Step { what, ..line.step }, ..line });
        }
    }
}

/// All lines in the order of their times, each stream in its own order, receipts behind their sendings.
fn in_order(streams: Vec<Vec<Line>>, fates: &Fates) -> Vec<Line> {
    let mut streams: Vec<_> = streams.into_iter().map(|lines| lines.into_iter().peekable()).collect();
    let (mut out, mut gone) = (Vec::new(), BTreeSet::new());
    loop {
        let mut best = None;
        for (place, stream) in streams.iter_mut().enumerate() {
            let Some(line) = stream.peek() else { continue };
            let waits = message(line).is_some_and(|(name, sending)| {
                !sending && fates.sent.contains(&name) && !gone.contains(&name)
            });
            let key = (waits, line.step.at, place);
            if best.is_none_or(|known| key < known) {
                best = Some(key);
            }
        }
        let Some(line) = best.and_then(|(_, _, place)| streams[place].next()) else { return out };
        if let Some((name, true)) = message(&line) {
            gone.insert(name);
        }
        out.push(line);
    }
}

impl Merged {
    /// How many messages of each sort were sent, in the order of their names; those that were not are left
    /// out.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let mut counts = vec![0; self.messages.len()];
        for line in &self.lines {
            if let What::Sent { kind, .. } = line.step.what {
                counts[usize::from(kind)] += 1;
            }
        }
        let named = self.messages.iter().cloned().zip(counts);
        named.filter(|(_, count)| *count > 0).collect()
    }

    /// The event of a line, by its name.
    fn event(&self, line: &Line) -> Option<&str> {
        match line.step.what {
            What::Emitted { kind } => self.events.get(usize::from(kind)).map(String::as_str),
            _ => None,
        }
    }

    /// Whether a message about this request was lost.
    fn has_lost(&self, request: Request) -> bool {
        let lost = |line: &&Line| matches!(line.step.what, What::Dropped { .. });
        let numbers: BTreeSet<_> = self.lines.iter().filter(lost).filter_map(message).collect();
        self.lines.iter().any(|line| {
            let sent = matches!(line.step.what, What::Sent { .. }) && line.step.about == Some(request);
            sent && message(line).is_some_and(|(name, _)| numbers.contains(&(name, false)))
        })
    }
}

/// What was seen of mutual exclusion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// How many requests entered.
    pub entries: u64,
    /// How often one entered while another was inside, of which one was late: its fence is the smaller.
    pub overlaps: u64,
    /// How often the resource would have refused an older one.
    pub refused: u64,
}

/// Who may have lost its right without noticing.
#[derive(Default)]
struct Away {
    paused: BTreeSet<ProcessId>,
    suspicions: BTreeSet<(Peer, ProcessId)>,
    /// Who was stopped or suspected since it left for the last time.
    since: BTreeSet<ProcessId>,
}

impl Away {
    fn note(&mut self, at: Peer, what: What) {
        match what {
            What::Paused => drop(self.paused.insert(at.process)),
            What::Resumed => drop(self.paused.remove(&at.process)),
            What::Suspected(of) => drop(self.suspicions.insert((at, of))),
            What::Trusted(of, _) => drop(self.suspicions.remove(&(at, of))),
            What::Crashed => {
                self.suspicions.retain(|(by, _)| *by != at);
                self.left(at.process);
            }
            _ => return,
        }
        self.since.extend(&self.paused);
        self.since.extend(self.suspicions.iter().map(|(_, of)| *of));
    }

    /// A process is not inside any more, and knows it.
    fn left(&mut self, process: ProcessId) {
        let suspected = self.suspicions.iter().any(|(_, of)| *of == process);
        if !suspected && !self.paused.contains(&process) {
            self.since.remove(&process);
        }
    }
}

/// Nobody enters while another is inside. One that was stopped or suspected may believe that it is, and be late
/// to leave or to enter; then it has the smaller fence, so that a guard that has seen the greater refuses it.
///
/// # Errors
/// Says who was inside with whom.
pub fn inside(merged: &Merged) -> Result<Inside, String> {
    let (mut seen, mut away, mut floor) = (Inside::default(), Away::default(), None);
    let mut holders = BTreeMap::<Peer, Option<u64>>::new();
    for line in &merged.lines {
        let at = line.step.at_peer;
        away.note(at, line.step.what);
        match (line.step.what, merged.event(line)) {
            (What::Crashed, _) => drop(holders.remove(&at)),
            (_, Some("left" | "lost")) => {
                holders.remove(&at);
                away.left(at.process);
            }
            (_, Some("entered")) => {
                let fence = fence(&line.words);
                for (other, known) in &holders {
                    let late = if fence > *known { other.process } else { at.process };
                    if known.is_none() || fence.is_none() || !away.since.contains(&late) {
                        return Err(format!("{} while {other} is inside", line.words));
                    }
                    seen.overlaps += 1;
                }
                if fence.is_some() && fence == floor {
                    return Err(format!("{}: the fence was given before", line.words));
                }
                seen.entries += 1;
                seen.refused += u64::from(fence < floor);
                floor = floor.max(fence);
                holders.insert(at, fence);
            }
            _ => {}
        }
    }
    Ok(seen)
}

fn fence(words: &str) -> Option<u64> {
    words.rsplit_once(" token ").and_then(|(_, token)| token.parse().ok())
}

/// In one term at most one process leads. Says how often one was elected.
///
/// # Errors
/// Names the term and two that led in it.
pub fn leaders(merged: &Merged) -> Result<u64, String> {
    let (mut elected, mut terms) = (0, BTreeMap::<u64, Peer>::new());
    for line in merged.lines.iter().filter(|line| merged.event(line) == Some("elected")) {
        let at = line.step.at_peer;
        let mut words = line.words.split(' ').skip(1);
        if words.next() != Some(at.process.to_string().as_str()) {
            continue;
        }
        elected += 1;
        let Some(term) = words.nth(1).and_then(|term| term.parse().ok()) else { continue };
        let first = *terms.entry(term).or_insert(at);
        if first != at {
            return Err(format!("{first} and {at} both led in term {term}"));
        }
    }
    Ok(elected)
}

/// Looked at one by one: whoever waits says why, and nobody else does.
///
/// # Errors
/// Names the one that does not.
pub fn explained(at: ProcessId, stand: &Stand) -> Result<(), String> {
    let goal = match stand.standing.as_str() {
        "waiting" => "enter",
        "electing" => "leader",
        _ => return Ok(()),
    };
    match stand.waits.iter().any(|missing| missing.goal == goal) {
        true => Ok(()),
        false => Err(format!("{at} is {} and does not say why", stand.standing)),
    }
}

/// At rest, all together: what is missing is held back by the one that is named, who says so; or it does not
/// run, or a message about it was lost. `stands` has the processes that run, by their real lives as in
/// the requests that they name.
///
/// # Errors
/// Says which wait is not true.
pub fn waits(
    stands: &BTreeMap<Peer, Stand>,
    merged: &Merged,
    recordings: &[Recording],
) -> Result<u64, String> {
    let (lives, mut seen) = (Lives::of(recordings), 0);
    let stand = |process| stands.iter().find(|(peer, _)| peer.process == process);
    for (at, own) in stands {
        explained(at.process, own)?;
        for missing in &own.waits {
            seen += 1;
            let lost = missing
                .request
                .is_some_and(|request| merged.has_lost(Request { by: lives.peer(request.by), ..request }));
            if lost {
                continue;
            }
            let wrong = |why: &str| Err(format!("{at} says that {}, but {why}", lives.words(&missing.words)));
            if let (Some(by), "held" | "earlier" | "voted") = (missing.by, missing.cause.as_str())
                && stands.get(&by.by).is_some_and(|other| other.standing == "idle")
            {
                return wrong("that one is idle");
            }
            if let (Some(from), "message") = (missing.from, missing.cause.as_str())
                && let Some((_, other)) = stand(from)
            {
                let owes = other.waits.iter().any(|owed| {
                    owed.goal == "answer" && owed.owed == missing.kind && owed.request == missing.request
                });
                if missing.goal == "enter" && !owes {
                    return wrong("that one does not hold it back");
                }
            }
        }
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_core::time::Mono;

    fn peer(process: u32) -> Peer {
        Peer { process: ProcessId(process), incarnation: Incarnation(1) }
    }

    fn line(process: u32, what: What, words: &str) -> Line {
        let step = Step { at: Mono(0), at_peer: peer(process), what, about: None, text: 0 };
        Line { words: words.into(), ..Line::of(step) }
    }

    fn entered(process: u32, token: u64) -> Line {
        line(process, What::Emitted { kind: 0 }, &format!("entered n{process}.1 token {token}"))
    }

    fn merged(lines: Vec<Line>) -> Merged {
        Merged { events: vec!["entered".into(), "left".into(), "elected".into()], lines, ..Merged::default() }
    }

    #[test]
    fn two_inside_are_seen_unless_the_older_one_slept_and_has_the_older_token() {
        let left = line(1, What::Emitted { kind: 1 }, "left n1.1");
        let seen = inside(&merged(vec![entered(1, 1), left, entered(2, 2)]));
        assert_eq!(seen, Ok(Inside { entries: 2, ..Inside::default() }));
        let paused = || line(1, What::Paused, "");
        assert!(inside(&merged(vec![entered(1, 1), entered(2, 2)])).is_err());
        let seen = inside(&merged(vec![entered(1, 1), paused(), entered(2, 2)]));
        assert_eq!(seen, Ok(Inside { entries: 2, overlaps: 1, refused: 0 }));
        assert!(inside(&merged(vec![entered(1, 2), paused(), entered(2, 1)])).is_err());
        let (woken, suspects) = (line(1, What::Resumed, ""), line(3, What::Suspected(ProcessId(1)), ""));
        let late = vec![paused(), entered(2, 2), woken, entered(1, 1)];
        assert_eq!(inside(&merged(late)), Ok(Inside { entries: 2, overlaps: 1, refused: 1 }));
        assert!(inside(&merged(vec![suspects, entered(1, 1), entered(2, 2)])).is_ok());
        assert!(inside(&merged(vec![entered(1, 1), line(1, What::Crashed, ""), entered(2, 2)])).is_ok());
        assert!(inside(&merged(vec![entered(1, 1), line(1, What::Crashed, ""), entered(2, 1)])).is_err());
    }

    #[test]
    fn two_leaders_of_a_term_are_seen() {
        let elected = |at: u32, leader: u32, term: u64| {
            line(at, What::Emitted { kind: 2 }, &format!("elected n{leader} term {term}"))
        };
        assert_eq!(leaders(&merged(vec![elected(1, 1, 1), elected(2, 1, 1), elected(2, 2, 2)])), Ok(2));
        assert!(leaders(&merged(vec![elected(1, 1, 3), elected(2, 2, 3)])).is_err());
    }

    #[test]
    fn a_wait_for_one_that_owes_nothing_is_seen() {
        let request = Request { by: peer(1), number: 1 };
        let waits = |goal: &str| super::super::named::Missing {
            goal: goal.into(),
            request: Some(request),
            cause: "message".into(),
            kind: Some("REPLY".into()),
            owed: Some("REPLY".into()),
            from: Some(ProcessId(2)),
            ..Default::default()
        };
        let stand = |standing: &str, waits| Stand { standing: standing.into(), waits, ..Stand::default() };
        let mut stands = BTreeMap::from([(peer(1), stand("waiting", vec![waits("enter")]))]);
        assert_eq!(super::waits(&stands, &Merged::default(), &[]), Ok(1), "who does not run owes nothing");
        stands.insert(peer(2), stand("inside", vec![waits("answer")]));
        assert!(super::waits(&stands, &Merged::default(), &[]).is_ok());
        stands.insert(peer(2), stand("idle", Vec::new()));
        assert!(super::waits(&stands, &Merged::default(), &[]).is_err());
        stands.insert(peer(1), stand("waiting", Vec::new()));
        assert!(super::waits(&stands, &Merged::default(), &[]).is_err(), "who waits says why");
    }

    #[test]
    fn a_receipt_comes_behind_its_sending_and_what_nobody_knows_of_was_lost() {
        let header = |process: u32, life: u64| Header {
            messages: vec!["HELLO".into()],
            ..Header::of::<quorate_core::mutex::RicartAgrawala>(
                Peer { process: ProcessId(process), incarnation: Incarnation(life) },
                1,
            )
        };
        let step = |life: &Header, at: u64, what: What| {
            Line::of(Step { at: Mono(at), at_peer: life.peer, what, about: None, text: 0 })
        };
        let (one, two) = (header(1, 77), header(2, 99));
        let sent = |message: u64| What::Sent { message: MessageNo(message), kind: 0, to: ProcessId(2) };
        let received = What::Received { message: MessageNo(1), kind: 0, from: one.peer };
        let recordings = [
            // Its clock is ahead of the sender's.
            Recording { lines: vec![step(&two, 3, received)], header: two },
            Recording { lines: vec![step(&one, 5, sent(1)), step(&one, 6, sent(2))], header: one.clone() },
        ];
        let crash = Step { at: Mono(1), at_peer: one.peer, what: What::Crashed, about: None, text: 0 };
        let merged = merge(&recordings, &[crash]);
        let whats: Vec<_> = merged.lines.iter().map(|line| line.step.what).collect();
        let from = peer(1);
        let lost = What::Dropped { message: MessageNo(2), kind: 0, to: ProcessId(2), why: Loss::Link };
        let received = What::Received { message: MessageNo(1), kind: 0, from };
        assert_eq!(whats, [sent(1), received, sent(2), lost, What::Crashed]);
        assert!(merged.lines.iter().all(|line| line.step.at_peer.incarnation == Incarnation(1)));
        assert_eq!(merged.counts(), [("HELLO".to_string(), 2)]);
    }
}
