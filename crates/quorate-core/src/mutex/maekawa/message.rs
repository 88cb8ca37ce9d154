//! What processes say, time and write in Maekawa's algorithm; the page above says when.

use crate::protocol::{Kind, Request};
use core::fmt;
use serde::{Deserialize, Serialize};

/// See the table of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MaekawaMessage {
    /// Will you vote for me?
    Request {
        /// Which request.
        request: Request,
        /// Its Lamport timestamp.
        stamp: u64,
    },
    /// You have my vote.
    Locked {
        /// The request that it is for.
        request: Request,
        /// Which of the voter's votes.
        vote: u64,
    },
    /// You are not the next one.
    Failed {
        /// The request that waits.
        request: Request,
        /// The request that has the vote.
        by: Request,
    },
    /// May I have my vote back? It also says that you have it.
    Inquire {
        /// The request that has the vote.
        request: Request,
        /// Which vote.
        vote: u64,
        /// The better request that it is for.
        by: Request,
    },
    /// Here is your vote back; I still want it.
    Yield {
        /// The request that had the vote.
        request: Request,
        /// Which vote.
        vote: u64,
    },
    /// I do not want your vote any more.
    Release {
        /// The request that is over.
        request: Request,
    },
}

impl Kind for MaekawaMessage {
    const KINDS: &'static [&'static str] = &["REQUEST", "LOCKED", "FAILED", "INQUIRE", "YIELD", "RELEASE"];
    fn kind(&self) -> u8 {
        match self {
            Self::Request { .. } => 0,
            Self::Locked { .. } => 1,
            Self::Failed { .. } => 2,
            Self::Inquire { .. } => 3,
            Self::Yield { .. } => 4,
            Self::Release { .. } => 5,
        }
    }
    fn about(&self) -> Option<Request> {
        let (Self::Request { request, .. }
        | Self::Locked { request, .. }
        | Self::Failed { request, .. }
        | Self::Inquire { request, .. }
        | Self::Yield { request, .. }
        | Self::Release { request }) = self;
        Some(*request)
    }
}

impl fmt::Display for MaekawaMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.about().unwrap_or_default())?;
        match self {
            Self::Request { stamp, .. } => write!(f, " time {stamp}"),
            Self::Failed { by, .. } => write!(f, " behind {by}"),
            Self::Inquire { vote, by, .. } => write!(f, " vote {vote} for {by}"),
            Self::Locked { vote, .. } | Self::Yield { vote, .. } => write!(f, " vote {vote}"),
            Self::Release { .. } => Ok(()),
        }
    }
}

crate::kinds! {
    /// Its timers.
    #[derive(Serialize, Deserialize)]
    pub enum MaekawaTimer {
        /// Voters that have not voted are asked again.
        Ask = "ask",
        /// The one that has the vote is told again, as others wait for it.
        Doubt = "doubt",
    }
}

/// The last vote that was given to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MaekawaRecord {
    /// Which vote.
    pub vote: u64,
    /// Whom it was given to.
    pub request: Request,
    /// The timestamp of that request.
    pub stamp: u64,
}
