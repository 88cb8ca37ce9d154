//! Mutual exclusion among peers: at most one process is inside.
//!
//! | protocol | messages per entry | wait before an idle entry | stops when |
//! |---|---|---|---|
//! | [`Central`] | 3 | 2 message times | the coordinator stops; the holder, unless the grant is a lease |
//! | [`RicartAgrawala`] | 2(N-1) | 2 message times | any member stops |
//! | [`Maekawa`] | 3(K-1), K near 2 sqrt(N) | 2 message times | a voter stops, for those who need it |
//! | [`TokenRing`] | 1 to N-1; 1 if all want it | 0 to N-1 | any member stops; with repair, a majority |
//!
//! All of them share the calls, events and standings of this page, so that one checker holds them all.

mod central;
mod flaw;
mod maekawa;
mod ricart_agrawala;
mod token_ring;

pub use central::{Central, CentralMessage, CentralRecord, CentralTimer};
pub use flaw::Flaw;
pub use maekawa::{Maekawa, MaekawaForm, MaekawaMessage, MaekawaRecord, MaekawaTimer};
pub use ricart_agrawala::{RicartAgrawala, RicartAgrawalaMessage, RicartAgrawalaTimer};
pub use token_ring::{
    IdleToken, Repair, RingToken, TokenRing, TokenRingMessage, TokenRingRecord, TokenRingTimer,
};

use crate::id::Token;
use crate::protocol::{Kind, Protocol, Request};
use core::fmt;

crate::kinds! {
    /// What the application asks.
    pub enum Call {
        /// Let me in. Answered by [`Event::Entered`], or [`Event::Refused`] if it already waits or is inside.
        Enter = "enter",
        /// I am done. Answered by [`Event::Left`], or [`Event::Refused`] if it is not inside.
        Leave = "leave",
    }
}

/// What the application is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Event {
    /// A request has been made, and waits or has entered.
    Requested {
        /// Which.
        request: Request,
    },
    /// It is inside.
    Entered {
        /// Which request.
        request: Request,
        /// What to show to a guard, if the protocol has such a number: it grows with each entry.
        fence: Option<Token>,
    },
    /// It has left.
    Left {
        /// Which request.
        request: Request,
    },
    /// It is no more inside, and must stop at once: its lease has ended.
    Lost {
        /// Which request.
        request: Request,
    },
    /// The call was out of turn, and changed nothing.
    Refused {
        /// The call.
        call: Call,
        /// Where it stands.
        standing: Standing,
    },
}

impl Kind for Event {
    const KINDS: &'static [&'static str] = &["requested", "entered", "left", "lost", "refused"];
    fn kind(&self) -> u8 {
        match self {
            Self::Requested { .. } => 0,
            Self::Entered { .. } => 1,
            Self::Left { .. } => 2,
            Self::Lost { .. } => 3,
            Self::Refused { .. } => 4,
        }
    }
    fn about(&self) -> Option<Request> {
        match self {
            Self::Requested { request }
            | Self::Entered { request, .. }
            | Self::Left { request }
            | Self::Lost { request } => Some(*request),
            Self::Refused { .. } => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested { request } => write!(f, "requested {request}"),
            Self::Entered { request, fence: None } => write!(f, "entered {request}"),
            Self::Entered { request, fence: Some(token) } => write!(f, "entered {request} token {token}"),
            Self::Left { request } => write!(f, "left {request}"),
            Self::Lost { request } => write!(f, "lost {request}"),
            Self::Refused { call, standing } => write!(f, "refused {call}: it is {standing}"),
        }
    }
}

/// Where a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Standing {
    /// It wants nothing.
    Idle,
    /// It wants to enter.
    Waiting,
    /// It is inside.
    Inside,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Waiting => "waiting",
            Self::Inside => "inside",
        })
    }
}

/// A protocol of this family.
pub trait Mutex: Protocol<Call = Call, Event = Event> {
    /// Where this process stands.
    fn standing(&self) -> Standing;
}
