//! When a lease ends: for the client that must stop, and for the service that may give away.
//!
//! Problem: a client and the service must agree on an end without a common clock.
//! Rule: the client counts from the *sending* of the last confirmed keepalive and stops a little early;
//! the service counts from its arrival and waits a little longer (RULES R1).
//! Safety: with clock rates within [`RHO_PERCENT`] of real time the client stops first. A pause of the whole
//! machine stops its clock and is caught by the guard alone (R9).
//! Needs: a monotonic clock on each side; the client's counts suspend.
//! Source: Gray and Cheriton 1989; RULES R1-R7.

use crate::id::{Generation, Reign, SessionId, TaskId};
use crate::state_machine::{Command, Event, SessionView, Timer};
use crate::time::{Mono, Span};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// How much two clocks may differ in rate, in percent of real time. Crystals differ by 0.01, a slewed clock
/// by 0.05; a larger value only costs availability, a smaller one safety.
pub const RHO_PERCENT: u64 = 1;

/// The drift margin of a lease, rounded up.
const fn margin(ttl: Span) -> Span {
    Span::from_millis((ttl.as_millis() * RHO_PERCENT).div_ceil(100))
}

/// How long the service keeps a lease after the arrival of the last keepalive that it confirmed.
pub const fn kept_for(ttl: Span) -> Span {
    Span::from_millis(ttl.as_millis() + margin(ttl).as_millis())
}

/// How long a client may act after the *sending* of the last keepalive that was confirmed.
pub const fn act_for(ttl: Span) -> Span {
    ttl.saturating_sub(margin(ttl))
}

/// How often a client sends keepalives: four within a lease, so that three may be lost.
pub const fn beat(ttl: Span) -> Span {
    Span::from_millis(if ttl.as_millis() < 8 { 2 } else { ttl.as_millis() / 4 })
}

/// The memory of who was heard from, in the node that keeps the leases. It starts empty with each reign
/// (RULES R4), decides on one clock (R1), and changes nothing by itself: it proposes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseKeeper {
    reign: Option<Reign>,
    kept: BTreeMap<SessionId, Kept>,
    ends: BTreeSet<(Mono, SessionId)>,
    tasks: BTreeMap<TaskId, Mono>,
    task_ends: BTreeSet<(Mono, TaskId)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    ttl: Span,
    generation: Generation,
    /// When the lease ends.
    end: Mono,
    /// The last confirmed renewal, or the start of the reign.
    heard: Mono,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not yet renewed in this reign: a confirmation needs a logged mark first (R5).
    Unmarked,
    /// Renewed in this reign.
    Marked,
    /// An operator closed it: renewals are confirmed no more (R11).
    Closing,
    /// Its end was proposed: renewals wait for the outcome (R3).
    Ending,
}

/// What is to be done with a keepalive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Confirm it after a quorum round that begins now (R6).
    Round,
    /// Log a mark for it, then confirm it (R5).
    Mark {
        /// The reign that marks.
        reign: Reign,
    },
    /// Say nothing: the end of this lease was proposed, or it is being closed, or nobody reigns here.
    Silence,
}

impl LeaseKeeper {
    /// A keeper without a reign: it confirms nothing and ends nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The reign, if one has begun here.
    pub fn reign(&self) -> Option<Reign> {
        self.reign
    }

    /// Begins a reign with the leases as the log has them. Nobody ends before what remains of its lease,
    /// counted from now; for a session that an earlier reign had renewed that is all of it (R5).
    /// Tasks wait their whole time again.
    pub fn begin(&mut self, now: Mono, reign: Reign, sessions: &[SessionView], tasks: &[(TaskId, Span)]) {
        *self = Self { reign: Some(reign), ..Self::default() };
        for (task, after) in tasks {
            self.arm(*task, now + *after);
        }
        for view in sessions {
            let (generation, marked, remaining) = view.lease;
            let phase = match (&view.closing, marked == reign) {
                (Some(_), _) => Phase::Closing,
                (None, true) => Phase::Marked,
                (None, false) => Phase::Unmarked,
            };
            let kept = Kept { ttl: view.ttl, generation, end: now + remaining, heard: now, phase };
            self.set(view.session, kept);
        }
    }

    /// Ends the reign: another node keeps the leases, or none does.
    pub fn end_reign(&mut self) {
        *self = Self::default();
    }

    /// Takes in what the log decided, in its order.
    pub fn observe(&mut self, now: Mono, event: &Event) {
        if self.reign.is_none() {
            return;
        }
        match event {
            Event::Lease { session, generation, ttl } => {
                let end = now + kept_for(*ttl);
                let kept = Kept { ttl: *ttl, generation: *generation, end, heard: now, phase: Phase::Marked };
                self.set(*session, kept);
            }
            Event::Closing { session, .. } => {
                if let Some(kept) = self.kept.get_mut(session)
                    && kept.phase != Phase::Ending
                {
                    kept.phase = Phase::Closing;
                }
            }
            Event::Ended { session, .. } => {
                if let Some(kept) = self.kept.remove(session) {
                    self.ends.remove(&(kept.end, *session));
                }
            }
            Event::Arm { task, after } => self.arm(*task, now + *after),
            Event::Disarm { task } => {
                if let Some(end) = self.tasks.remove(task) {
                    self.task_ends.remove(&(end, *task));
                }
            }
            Event::Change { .. } => {}
        }
    }

    /// What is to be done with a keepalive that arrived.
    pub fn arrived(&self, session: SessionId) -> Renewal {
        match (self.reign, self.kept.get(&session).map(|kept| kept.phase)) {
            (Some(_), Some(Phase::Marked)) => Renewal::Round,
            (Some(reign), Some(Phase::Unmarked)) => Renewal::Mark { reign },
            _ => Renewal::Silence,
        }
    }

    /// The quorum round is over: confirms the keepalive that had arrived at `arrived`, unless the end of the
    /// lease was proposed meanwhile (R3) or the reign is another one (R6).
    pub fn confirm(&mut self, session: SessionId, arrived: Mono, reign: Reign) -> bool {
        if self.reign != Some(reign) {
            return false;
        }
        let Some(kept) = self.kept.get(&session) else { return false };
        if kept.phase != Phase::Marked {
            return false;
        }
        let end = (arrived + kept_for(kept.ttl)).max(kept.end);
        let kept = Kept { end, heard: arrived.max(kept.heard), ..kept.clone() };
        self.set(session, kept);
        true
    }

    /// The mark of a session was logged in this reign (R5). Its event says the same, perhaps a little later.
    pub fn marked(&mut self, session: SessionId, reign: Reign) {
        if self.reign != Some(reign) {
            return;
        }
        if let Some(kept) = self.kept.get_mut(&session)
            && kept.phase == Phase::Unmarked
        {
            kept.phase = Phase::Marked;
        }
    }

    /// The ends to propose now. From here on their sessions' renewals are not confirmed (R3).
    pub fn due(&mut self, now: Mono) -> Vec<Command> {
        let Some(reign) = self.reign else { return Vec::new() };
        let mut due = Vec::new();
        while let Some((end, session)) = self.ends.first().copied() {
            if end > now {
                break;
            }
            self.ends.pop_first();
            let Some(kept) = self.kept.get_mut(&session) else { continue };
            kept.phase = Phase::Ending;
            let timer = Timer::Lease { session, generation: kept.generation };
            due.push(Command::TimerFired { timer, reign, silent: now.since(kept.heard) });
        }
        while let Some((end, task)) = self.task_ends.first().copied() {
            if end > now {
                break;
            }
            self.task_ends.pop_first();
            let timer = Timer::Task { task };
            due.push(Command::TimerFired { timer, reign, silent: Span::ZERO });
        }
        due
    }

    /// A proposed end was applied or refused: a task that came is over, a void one too.
    pub fn settled(&mut self, task: TaskId) {
        if let Some(end) = self.tasks.remove(&task) {
            self.task_ends.remove(&(end, task));
        }
    }

    fn arm(&mut self, task: TaskId, end: Mono) {
        self.tasks.insert(task, end);
        self.task_ends.insert((end, task));
    }

    /// A proposed end was not done, or it is not known whether: it is due again.
    pub fn again(&mut self, now: Mono, timer: Timer) {
        let session = match timer {
            Timer::Lease { session, .. } => session,
            Timer::Task { task } => {
                if self.tasks.contains_key(&task) {
                    self.settled(task);
                    self.arm(task, now);
                }
                return;
            }
        };
        if let Some(kept) = self.kept.get(&session)
            && kept.phase == Phase::Ending
        {
            self.ends.insert((kept.end.max(now), session));
        }
    }

    /// This node was away for so long without noticing, paused or starved: it could not hear anybody then, so
    /// that time counts against nobody (RULES R8), and tasks wait it out too. Time in which it listened
    /// counts, so a dead client's lease ends however often this happens.
    pub fn absent(&mut self, away: Span) {
        let ends = core::mem::take(&mut self.ends);
        self.ends = ends.into_iter().map(|(end, session)| (end + away, session)).collect();
        for (end, session) in &self.ends {
            if let Some(kept) = self.kept.get_mut(session) {
                kept.end = *end;
            }
        }
        let task_ends = core::mem::take(&mut self.task_ends);
        for (end, task) in task_ends {
            self.arm(task, end + away);
        }
    }

    /// When the next lease ends.
    pub fn next_end(&self) -> Option<Mono> {
        let lease = self.ends.first().map(|(end, _)| *end);
        let task = self.task_ends.first().map(|(end, _)| *end);
        [lease, task].into_iter().flatten().min()
    }

    /// What sessions without a mark have left, for the log (R5).
    pub fn checkpoint(&self, now: Mono) -> Option<Command> {
        let reign = self.reign?;
        let unmarked = self.kept.iter().filter(|(_, kept)| kept.phase == Phase::Unmarked);
        let remaining: Vec<_> = unmarked.map(|(id, kept)| (*id, kept.end.since(now))).collect();
        (!remaining.is_empty()).then_some(Command::Checkpoint { reign, remaining })
    }

    /// How much of a lease is left, as far as this keeper knows.
    pub fn remaining(&self, now: Mono, session: SessionId) -> Option<Span> {
        self.kept.get(&session).map(|kept| kept.end.since(now))
    }

    /// How long ago a session was last heard from, as far as this keeper knows.
    pub fn silent_for(&self, now: Mono, session: SessionId) -> Option<Span> {
        self.kept.get(&session).map(|kept| now.since(kept.heard))
    }

    /// How long until a task is due, as far as this keeper knows.
    pub fn task_remaining(&self, now: Mono, task: TaskId) -> Option<Span> {
        self.tasks.get(&task).map(|end| end.since(now))
    }

    fn set(&mut self, session: SessionId, kept: Kept) {
        if let Some(old) = self.kept.get(&session) {
            self.ends.remove(&(old.end, session));
        }
        self.ends.insert((kept.end, session));
        self.kept.insert(session, kept);
    }
}
