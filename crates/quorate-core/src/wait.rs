//! Why nothing happens: what a process waits for, or holds back from another, and what is missing.
//!
//! The functions that hold a thing back return these values, so that an explanation cannot drift from the
//! decision. The lab checks them against the world: what is named is there, and taking it away ends the wait.

use crate::protocol::{ProcessId, Request};
use core::fmt;

/// One thing that does not happen yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Wait {
    /// What does not happen.
    pub goal: Goal,
    /// What is missing.
    pub cause: Cause,
}

/// What does not happen yet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Goal {
    /// A request of this process to be inside.
    Enter(Request),
    /// An answer that this process owes to another.
    Answer {
        /// The sort of message that is owed.
        kind: &'static str,
        /// What it would answer.
        request: Request,
    },
    /// This process has no leader to name.
    Leader,
}

/// What is missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// A message has not come.
    Message {
        /// The sort of message.
        kind: &'static str,
        /// Who would send it.
        from: ProcessId,
        /// A detector believes that it has stopped.
        suspected: bool,
    },
    /// Somebody is inside, or has the permission to be.
    Held {
        /// The request that it was given to.
        by: Request,
    },
    /// A voter last said that its vote is with another request. It may have moved since.
    Voted {
        /// The voter.
        by: ProcessId,
        /// The request that had the vote.
        to: Request,
    },
    /// Another request comes first.
    Earlier {
        /// Which.
        request: Request,
    },
    /// The token has not come round.
    Token {
        /// The hop that is missing: who would pass it on.
        from: ProcessId,
    },
    /// Too few have answered.
    Majority {
        /// How many have.
        have: usize,
        /// How many it takes.
        need: usize,
    },
    /// The own disk has not confirmed.
    Disk,
    /// A timer of this process has to end first.
    Timer {
        /// Its name.
        name: &'static str,
    },
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.goal {
            Goal::Enter(request) => write!(f, "{request} waits to enter: {}", self.cause),
            Goal::Answer { kind, request } => {
                write!(f, "{kind} to {request} is held back: {}", self.cause)
            }
            Goal::Leader => write!(f, "there is no leader yet: {}", self.cause),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message { kind, from, suspected: false } => write!(f, "{kind} of {from} has not come"),
            Self::Message { kind, from, suspected: true } => {
                write!(f, "{kind} of {from} has not come, and {from} is suspected")
            }
            Self::Held { by } => write!(f, "{by} holds the permission"),
            Self::Voted { by, to } => write!(f, "{by} last said that {to} has its vote"),
            Self::Earlier { request } => write!(f, "{request} comes first"),
            Self::Token { from } => write!(f, "the token has not come from {from}"),
            Self::Majority { have, need } => write!(f, "{have} have answered, it takes {need}"),
            Self::Disk => write!(f, "the own disk has not confirmed"),
            Self::Timer { name } => write!(f, "the timer {name} has not ended"),
        }
    }
}
