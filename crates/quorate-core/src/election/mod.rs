//! Election among peers: the processes agree on one of them.
//!
//! | protocol | messages at most | who is elected | two leaders |
//! |---|---|---|---|
//! | [`Bully`] | of the order of N^2 | the greatest that answers in time | after a false suspicion |
//! | [`Ring`] | 2N for each starter | the greatest that the list found | after a false suspicion |
//! | [`ChangRoberts`] | N(N+1)/2 + N | the greatest id | if two have one id, as published |
//! | [`TermElection`] | 5(N-1) with pre-vote | whom a majority votes for | never in one term |
//!
//! To be the leader is never a right to act: whatever a leader does has to carry a number that receivers
//! compare. Only [`TermElection`] has such a number, its [`Term`]; the others have none, and what is written
//! under their leaders needs a guard.
//!
//! All of them share the calls, events and standings of this page, so that one checker holds them all.
//! [`storm`] says why a group elects again and again.

mod bully;
mod chang_roberts;
mod company;
mod flaw;
mod ring;
pub mod storm;
mod term;

pub use bully::{Bully, BullyMessage, BullyTimer, BullyTiming};
pub use chang_roberts::{ChangRoberts, ChangRobertsMessage, ChangRobertsTimer, Ids};
pub use flaw::Flaw;
pub use ring::{Ring, RingMessage, RingTimer};
pub use term::{Denial, LogPosition, TermElection, TermMessage, TermOptions, TermRecord, TermTimer};

use crate::protocol::{Kind, Peer, ProcessId, Protocol, Request};
use core::fmt;
use serde::{Deserialize, Serialize};

/// Counts the elections of a group: at most one leader in each. Every process keeps the greatest it has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(pub u64);

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

crate::kinds! {
    /// What the application asks.
    pub enum Call {
        /// Hold an election. Answered by [`Event::Started`], or [`Event::Refused`] if one is under way here.
        Elect = "elect",
    }
}

/// What the application is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// This process holds an election.
    Started {
        /// Which.
        election: Request,
    },
    /// This process takes a leader, perhaps itself. Told once, until it takes another or loses this one.
    Elected {
        /// Whom.
        leader: ProcessId,
        /// In which term, if the protocol has terms: what a leader does has to carry it.
        term: Option<Term>,
        /// By which election.
        election: Request,
    },
    /// This process led, and leads no more: it must stop at once.
    SteppedDown {
        /// The term that it led in, if the protocol has terms.
        term: Option<Term>,
    },
    /// There is no election, or it elects nobody.
    Refused {
        /// Why.
        why: Why,
    },
}

impl Kind for Event {
    const KINDS: &'static [&'static str] = &["started", "elected", "stepped_down", "refused"];
    fn kind(&self) -> u8 {
        match self {
            Self::Started { .. } => 0,
            Self::Elected { .. } => 1,
            Self::SteppedDown { .. } => 2,
            Self::Refused { .. } => 3,
        }
    }
    fn about(&self) -> Option<Request> {
        match self {
            Self::Started { election } | Self::Elected { election, .. } => Some(*election),
            Self::SteppedDown { .. } | Self::Refused { .. } => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { election } => write!(f, "started {election}"),
            Self::Elected { leader, term: None, .. } => write!(f, "elected {leader}"),
            Self::Elected { leader, term: Some(term), .. } => write!(f, "elected {leader} term {term}"),
            Self::SteppedDown { term: None } => write!(f, "stepped down"),
            Self::SteppedDown { term: Some(term) } => write!(f, "stepped down term {term}"),
            Self::Refused { why } => write!(f, "refused: {why}"),
        }
    }
}

/// Why nobody is elected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// An election is under way at this process.
    Electing,
    /// This process leads, by the votes of a majority: there is nothing to elect.
    Leading,
    /// This process has promised a leader to vote for nobody for a while.
    Promised,
    /// No more than half of all known processes answered. The others may have a leader.
    Minority {
        /// How many answered, this process among them.
        have: usize,
        /// How many it takes.
        need: usize,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Electing => write!(f, "an election is under way"),
            Self::Leading => write!(f, "it leads"),
            Self::Promised => write!(f, "there was a leader not long ago"),
            Self::Minority { have, need } => write!(f, "{have} of the {need} that it takes answered"),
        }
    }
}

/// Where a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// It knows no leader and takes part in no election.
    Idle,
    /// It takes part in an election.
    Electing,
    /// It knows a leader.
    Following,
    /// It is the leader, as far as it knows.
    Leading,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Electing => "electing",
            Self::Following => "following",
            Self::Leading => "leading",
        })
    }
}

/// What a process does when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AtStart {
    /// It holds an election, as one that comes back must: it does not know what it missed.
    Elect,
    /// It waits until it is asked, or hears of an election.
    Wait,
}

/// A protocol of this family.
pub trait Elects: Protocol<Call = Call, Event = Event> {
    /// The leader that this process knows, perhaps itself, also while an election is under way that may
    /// replace it.
    fn leader(&self) -> Option<ProcessId>;

    /// Whether this process takes part in an election that has not ended here.
    fn is_electing(&self) -> bool;

    /// Who this process is, in which life.
    fn me(&self) -> Peer;

    /// The term, if the protocol has terms.
    fn term(&self) -> Option<Term> {
        None
    }

    /// Where this process stands. Who leads, leads on until it is told otherwise.
    fn standing(&self) -> Standing {
        match self.leader() {
            Some(leader) if leader == self.me().process => Standing::Leading,
            _ if self.is_electing() => Standing::Electing,
            Some(_) => Standing::Following,
            None => Standing::Idle,
        }
    }
}
