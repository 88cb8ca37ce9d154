//! The token, and what the processes of a ring say, time and write; the page above says when.

use crate::id::Token;
use crate::protocol::{Kind, Request};
use core::fmt;
use serde::{Deserialize, Serialize};

/// How many bits of a fence count hops and entries of a generation: 10^12, or a year at 30,000 a second.
/// Beyond it the count would run into the generation, so that is asserted.
const COUNT_BITS: u32 = 40;

/// The token, at one moment. Of two, the greater one is newer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RingToken {
    /// Which making of the token. Its owner, who made it, is the member at (generation - 1) mod N.
    pub generation: u64,
    /// How many hops and entries it has seen.
    pub count: u64,
}

impl RingToken {
    /// What to show to a guard: it grows with each entry, and with each generation.
    pub(super) fn fence(self) -> Token {
        assert!(self.count < 1 << COUNT_BITS, "the count leaves the generation alone");
        Token(self.generation << COUNT_BITS | self.count)
    }

    /// The next count.
    pub(super) fn next(self) -> Self {
        Self { count: self.count + 1, ..self }
    }
}

impl fmt::Display for RingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation, self.count)
    }
}

/// See the table of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TokenRingMessage {
    /// Here is the token.
    Token {
        /// The token, in the count of this hop.
        token: RingToken,
        /// The farthest request that it is under way to, if it does not just go round.
        toward: Option<Request>,
    },
    /// I want the token.
    Request {
        /// Which request.
        request: Request,
        /// How many more processes may pass it on.
        hops: u32,
    },
    /// I have received the token.
    Ack {
        /// In which count.
        token: RingToken,
    },
    /// That is too old for me.
    Refused {
        /// The token; or in count 0 the generation that was claimed.
        token: RingToken,
        /// The least generation that is not.
        newest: u64,
    },
    /// The token is lost; let me make it anew.
    Claim {
        /// The generation to be.
        generation: u64,
        /// Nothing is promised yet.
        trial: bool,
    },
    /// As far as I am concerned.
    Promise {
        /// The generation to be.
        generation: u64,
        /// Nothing is promised yet.
        trial: bool,
    },
    /// It is not lost.
    Held {
        /// The generation that was claimed.
        generation: u64,
        /// The token that is here.
        token: RingToken,
    },
}

impl Kind for TokenRingMessage {
    const KINDS: &'static [&'static str] =
        &["TOKEN", "REQUEST", "ACK", "REFUSED", "CLAIM", "PROMISE", "HELD"];
    fn kind(&self) -> u8 {
        match self {
            Self::Token { .. } => 0,
            Self::Request { .. } => 1,
            Self::Ack { .. } => 2,
            Self::Refused { .. } => 3,
            Self::Claim { .. } => 4,
            Self::Promise { .. } => 5,
            Self::Held { .. } => 6,
        }
    }
    fn about(&self) -> Option<Request> {
        match self {
            Self::Token { toward, .. } => *toward,
            Self::Request { request, .. } => Some(*request),
            _ => None,
        }
    }
}

impl fmt::Display for TokenRingMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Self::Token { token, toward: Some(request) } => write!(f, "{name} {token} toward {request}"),
            Self::Token { token, toward: None } | Self::Ack { token } => write!(f, "{name} {token}"),
            Self::Request { request, .. } => write!(f, "{name} {request}"),
            Self::Refused { token, newest } => write!(f, "{name} {token} newest {newest}"),
            Self::Claim { generation, trial: true } | Self::Promise { generation, trial: true } => {
                write!(f, "{name} {generation} on trial")
            }
            Self::Claim { generation, .. } | Self::Promise { generation, .. } => {
                write!(f, "{name} {generation}")
            }
            Self::Held { generation, token } => write!(f, "{name} {token} not {generation}"),
        }
    }
}

crate::kinds! {
    /// Its timers.
    #[derive(Serialize, Deserialize)]
    pub enum TokenRingTimer {
        /// The token goes on.
        Rest = "rest",
        /// The token is passed to the same process again.
        Retry = "retry",
        /// The token seems lost.
        Silence = "silence",
    }
}

/// The newest generation that this process has promised, claimed or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TokenRingRecord {
    /// Older ones are refused; and after a restart this one too.
    pub generation: u64,
}
