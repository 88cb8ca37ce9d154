//! When a command is told to end, and when it is ended. Decisions only: readings of the clock come in.
//!
//! **Rule.** At `deadline - grace` it is told to (SIGTERM), and a little before the deadline it is ended (SIGKILL),
//! again and again until nobody is left. An extension counts until the first of these; from then on the end is
//! decided, whatever is heard later.

use quorate_core::time::{Mono, Span};
use serde::{Deserialize, Serialize};

/// Between SIGKILL and the deadline: what it takes to find and end all of them. A quarter of the grace, within
/// these. A busy machine wakes a process 20 ms late; a look through 10,000 processes takes 100 ms.
const LEAD_MIN_MS: u64 = 20;
const LEAD_MAX_MS: u64 = 250;

/// How soon SIGKILL is sent again while somebody is left: at first, and at last. Each look doubles the pause.
const AGAIN_MIN_MS: u64 = 5;
const AGAIN_MAX_MS: u64 = 80;

/// How long after the deadline it is said that somebody cannot be ended.
const STUCK_MS: u64 = 1_000;

/// Why a command was made to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Cause {
    /// No confirmation moved the deadline in time.
    DeadlineNear,
    /// The process that holds the lock has died.
    Abandoned,
    /// It was ordered, since the holder is asked to stop.
    Ordered,
    /// It was ordered, since the authority is gone.
    Lost,
    /// It was told to end, since the seat is asked for; it has the time that it needs.
    Asked,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Nothing.
    Wait,
    /// Tell the command to end.
    Terminate,
    /// End it.
    Kill,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Acting,
    Ending { kill_at: Mono },
    Killing { again_at: Mono, pause: Span },
}

/// The plan of one command.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    deadline: Mono,
    grace: Span,
    stage: Stage,
}

impl Plan {
    /// A command that may act until `deadline`, and is told `grace` before it.
    pub(crate) fn new(deadline: Mono, grace: Span) -> Self {
        Self { deadline, grace, stage: Stage::Acting }
    }

    /// How long before the deadline SIGKILL is sent.
    pub(crate) fn lead(grace: Span) -> Span {
        Span::from_millis((grace.as_millis() / 4).clamp(LEAD_MIN_MS, LEAD_MAX_MS))
    }

    /// Whether nothing has begun to end it.
    pub(crate) fn is_acting(&self) -> bool {
        self.stage == Stage::Acting
    }

    /// Whether a command may still be started.
    pub(crate) fn may_start(&self, now: Mono) -> bool {
        self.is_acting() && now < self.terminate_at()
    }

    /// The deadline has moved.
    pub(crate) fn extend(&mut self, deadline: Mono) {
        self.deadline = self.deadline.max(deadline);
    }

    fn kill_at(&self) -> Mono {
        self.deadline - Self::lead(self.grace)
    }

    fn terminate_at(&self) -> Mono {
        (self.deadline - self.grace).min(self.kill_at())
    }

    /// Ends it now, with its grace as far as the deadline allows.
    pub(crate) fn end(&mut self, now: Mono) -> Act {
        match self.stage {
            Stage::Acting => {
                self.stage = Stage::Ending { kill_at: self.kill_at().min(now + self.grace) };
                Act::Terminate
            }
            Stage::Ending { kill_at } => {
                self.stage = Stage::Ending { kill_at: kill_at.min(now + self.grace) };
                Act::Wait
            }
            Stage::Killing { .. } => Act::Wait,
        }
    }

    /// Ends it now, without grace.
    pub(crate) fn kill(&mut self, now: Mono) -> Act {
        let pause = match self.stage {
            Stage::Killing { pause, .. } => (pause.as_millis() * 2).min(AGAIN_MAX_MS),
            _ => AGAIN_MIN_MS,
        };
        let pause = Span::from_millis(pause);
        self.stage = Stage::Killing { again_at: now + pause, pause };
        Act::Kill
    }

    /// What is due.
    pub(crate) fn due(&mut self, now: Mono) -> Act {
        match self.stage {
            Stage::Acting if now >= self.kill_at() => self.kill(now),
            Stage::Acting if now >= self.terminate_at() => {
                self.stage = Stage::Ending { kill_at: self.kill_at() };
                Act::Terminate
            }
            Stage::Ending { kill_at } if now >= kill_at => self.kill(now),
            Stage::Killing { again_at, .. } if now >= again_at => self.kill(now),
            _ => Act::Wait,
        }
    }

    /// When something is due next.
    pub(crate) fn next(&self) -> Mono {
        match self.stage {
            Stage::Acting => self.terminate_at(),
            Stage::Ending { kill_at } => kill_at,
            Stage::Killing { again_at, .. } => again_at,
        }
    }

    /// Whether somebody is left that cannot be ended: the deadline is long over.
    pub(crate) fn is_stuck(&self, now: Mono) -> bool {
        matches!(self.stage, Stage::Killing { .. }) && now >= self.deadline + Span::from_millis(STUCK_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Span = Span::from_millis(400);

    fn at(ms: u64) -> Mono {
        Mono(0) + Span::from_millis(ms)
    }

    #[test]
    fn a_command_is_told_before_the_deadline_and_ended_before_it() {
        let mut plan = Plan::new(at(2_000), GRACE);
        assert_eq!(plan.due(at(1_599)), Act::Wait);
        assert_eq!(plan.next(), at(1_600));
        assert_eq!(plan.due(at(1_600)), Act::Terminate);
        assert_eq!(plan.next(), at(1_900));
        assert_eq!(plan.due(at(1_900)), Act::Kill);
        assert_eq!((plan.due(at(1_904)), plan.due(at(1_905))), (Act::Wait, Act::Kill));
        assert_eq!((plan.due(at(1_914)), plan.due(at(1_915))), (Act::Wait, Act::Kill));
        assert!(!plan.is_stuck(at(2_999)) && plan.is_stuck(at(3_000)));
    }

    #[test]
    fn an_extension_counts_until_the_end_is_decided() {
        let mut plan = Plan::new(at(2_000), GRACE);
        plan.extend(at(3_000));
        plan.extend(at(2_500));
        assert_eq!((plan.next(), plan.due(at(2_599))), (at(2_600), Act::Wait));
        assert_eq!(plan.due(at(2_600)), Act::Terminate);
        plan.extend(at(9_000));
        assert_eq!(plan.due(at(2_900)), Act::Kill);
    }

    #[test]
    fn whoever_comes_back_late_is_ended_at_once_and_nothing_is_started() {
        let mut plan = Plan::new(at(2_000), GRACE);
        assert!(plan.may_start(at(1_599)) && !plan.may_start(at(1_600)));
        assert_eq!(plan.due(at(5_000)), Act::Kill);
        assert!(!plan.may_start(at(0)));
    }

    #[test]
    fn an_ordered_end_has_its_grace_but_never_beyond_the_deadline() {
        let mut plan = Plan::new(at(2_000), GRACE);
        assert_eq!((plan.end(at(100)), plan.next()), (Act::Terminate, at(500)));
        assert_eq!((plan.end(at(50)), plan.next()), (Act::Wait, at(450)));
        let mut late = Plan::new(at(2_000), GRACE);
        assert_eq!((late.end(at(1_550)), late.next()), (Act::Terminate, at(1_900)));
    }

    #[test]
    fn without_a_grace_it_is_ended_without_a_word() {
        let mut plan = Plan::new(at(2_000), Span::ZERO);
        assert_eq!((plan.next(), plan.due(at(1_980))), (at(1_980), Act::Kill));
        assert_eq!(Plan::lead(Span::from_secs(60)), Span::from_millis(250));
    }
}
