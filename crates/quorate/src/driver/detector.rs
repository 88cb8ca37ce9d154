//! Who has stopped, as far as connections and silence tell.
//!
//! **Rule.** A process is suspected when nothing was heard of it for `silence`, or when its connection has
//! ended and no other came for `closed`; it is trusted again when it is heard, and in a new life at once.
//!
//! **When it fails.** Silence is no proof: a slow process or link is suspected, too. A process that was
//! itself away (stopped, or starved of the CPU) heard nobody meanwhile: it starts to listen anew before it
//! judges.

use quorate_core::protocol::{Peer, ProcessId};
use quorate_core::time::Mono;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long nothing may be heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detection {
    /// Of a process whose connection is open, or which was never heard: several beats, and longer than any
    /// pause that should be forgiven. Too short costs false suspicions, too long costs waiting.
    pub silence: Duration,
    /// Of a process whose connection has ended: long enough to connect again.
    pub closed: Duration,
}

/// What is known of one process.
struct Seen {
    /// Its life, by its newest connection, and the number of that.
    life: Option<(Peer, u64)>,
    at: Mono,
    open: bool,
    suspected: bool,
}

/// What to tell the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Belief {
    Suspect(ProcessId),
    Trust(Peer),
}

/// Keeps what is known of all others, and finds out who has stopped if it is asked to.
pub(super) struct Detector {
    seen: BTreeMap<ProcessId, Seen>,
    detection: Option<Detection>,
    looked: Mono,
}

impl Detector {
    pub(super) fn new(
        others: impl Iterator<Item = ProcessId>,
        detection: Option<Detection>,
        now: Mono,
    ) -> Self {
        let fresh = |process| (process, Seen { life: None, at: now, open: false, suspected: false });
        Self { seen: others.map(fresh).collect(), detection, looked: now }
    }

    /// A connection was proved. Says what changes by it, in order.
    pub(super) fn linked(&mut self, from: Peer, link: u64, now: Mono) -> Vec<Belief> {
        let Some(seen) = self.seen.get_mut(&from.process) else { return Vec::new() };
        let other_life = seen.life.is_some_and(|(peer, _)| peer != from);
        (seen.life, seen.at, seen.open) = (Some((from, link)), now, true);
        let mut beliefs = Vec::new();
        if self.detection.is_some() && other_life && !seen.suspected {
            beliefs.push(Belief::Suspect(from.process));
            seen.suspected = true;
        }
        if std::mem::take(&mut seen.suspected) {
            beliefs.push(Belief::Trust(from));
        }
        beliefs
    }

    /// Something was heard on a connection. Says whether that is the newest, and what changes by it.
    pub(super) fn heard(&mut self, from: Peer, link: u64, now: Mono) -> (bool, Option<Belief>) {
        match self.seen.get_mut(&from.process) {
            Some(seen) if seen.life == Some((from, link)) => {
                seen.at = now;
                let again = std::mem::take(&mut seen.suspected);
                (true, again.then_some(Belief::Trust(from)))
            }
            _ => (false, None),
        }
    }

    /// A connection has ended.
    pub(super) fn unlinked(&mut self, from: Peer, link: u64, now: Mono) {
        if let Some(seen) = self.seen.get_mut(&from.process).filter(|seen| seen.life == Some((from, link))) {
            (seen.at, seen.open) = (now, false);
        }
    }

    /// Whether this life is the newest that was heard of its process.
    pub(super) fn is_newest(&self, peer: Peer) -> bool {
        self.seen.get(&peer.process).is_some_and(|seen| seen.life.is_some_and(|(known, _)| known == peer))
    }

    /// How many connections of others are open.
    pub(super) fn open(&self) -> u32 {
        self.seen.values().filter(|seen| seen.open).count() as u32
    }

    /// Who is suspected.
    pub(super) fn suspected(&self) -> Vec<ProcessId> {
        self.seen.iter().filter(|(_, seen)| seen.suspected).map(|(process, _)| *process).collect()
    }

    /// When to look again.
    pub(super) fn due(&self) -> Option<Mono> {
        let detection = self.detection?;
        let steady = after(self.looked, detection.silence / 4);
        let waiting = self.seen.values().filter(|seen| !seen.suspected);
        waiting.map(|seen| after(seen.at, patience(detection, seen))).chain([steady]).min()
    }

    /// Looks who is to be suspected now.
    pub(super) fn look(&mut self, now: Mono) -> Vec<ProcessId> {
        let Some(detection) = self.detection else { return Vec::new() };
        if now > after(self.looked, detection.silence / 2) {
            self.seen.values_mut().for_each(|seen| seen.at = now);
        }
        self.looked = now;
        let silent = |seen: &Seen| !seen.suspected && now >= after(seen.at, patience(detection, seen));
        let silent = self.seen.iter_mut().filter(|(_, seen)| silent(seen));
        silent
            .map(|(process, seen)| {
                seen.suspected = true;
                *process
            })
            .collect()
    }
}

fn patience(detection: Detection, seen: &Seen) -> Duration {
    if seen.life.is_some() && !seen.open { detection.closed } else { detection.silence }
}

fn after(since: Mono, span: Duration) -> Mono {
    Mono(since.0 + span.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_core::protocol::Incarnation;

    fn life(number: u64) -> Peer {
        Peer { process: ProcessId(2), incarnation: Incarnation(number) }
    }

    fn detector() -> Detector {
        let detection = Detection { silence: Duration::from_micros(400), closed: Duration::from_micros(40) };
        Detector::new([ProcessId(2)].into_iter(), Some(detection), Mono(0))
    }

    /// Looks in steps that are short enough to be on time.
    fn look_until(detector: &mut Detector, from: u64, until: u64) -> Option<u64> {
        (from..=until).step_by(10).find(|at| !detector.look(Mono(*at)).is_empty())
    }

    #[test]
    fn silence_is_suspected_and_a_beat_trusted_again() {
        let mut detector = detector();
        assert_eq!(detector.linked(life(7), 1, Mono(10)), [], "who was never known is no news");
        assert_eq!(look_until(&mut detector, 20, 1_000), Some(410));
        assert_eq!(detector.heard(life(7), 1, Mono(420)), (true, Some(Belief::Trust(life(7)))));
        detector.unlinked(life(7), 1, Mono(500));
        assert_eq!(look_until(&mut detector, 420, 1_000), Some(540), "a closed connection is quicker");
    }

    #[test]
    fn a_new_life_is_told_and_the_former_one_is_not_heard() {
        let mut detector = detector();
        detector.linked(life(7), 1, Mono(10));
        let beliefs = detector.linked(life(5), 2, Mono(20));
        assert_eq!(beliefs, [Belief::Suspect(ProcessId(2)), Belief::Trust(life(5))]);
        assert_eq!(detector.heard(life(7), 1, Mono(30)), (false, None));
        assert!(detector.is_newest(life(5)) && !detector.is_newest(life(7)));
    }

    #[test]
    fn who_was_away_listens_anew_before_it_judges() {
        let mut detector = detector();
        detector.linked(life(7), 1, Mono(10));
        assert_eq!(detector.look(Mono(5_000)), [], "it was itself away");
        assert_eq!(look_until(&mut detector, 5_010, 9_000), Some(5_400));
    }
}
