//! What a client and the service say to each other on the stream of one session.

use crate::id::{EntryId, Name, RequestId, Secret, SessionId};
use crate::state_machine::{Change, OnDisconnect, Op, Opened, Reason, Refusal, Reply, Total};
use crate::time::Span;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// From the client. The first is `Open` or `Attach`, and there is no second of either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFrame {
    /// Opens a session.
    Open {
        /// Drawn by the client.
        secret: Secret,
        /// The wished length of a lease.
        ttl: Span,
        /// What a closed connection means.
        on_disconnect: OnDisconnect,
        /// Whom to show to people.
        label: String,
    },
    /// Takes a session over on this connection.
    Attach {
        /// The session.
        session: SessionId,
        /// Its secret.
        secret: Secret,
        /// The client's own deadline has passed since.
        lapsed: bool,
    },
    /// Renews the lease.
    KeepAlive {
        /// The client's number for it, growing.
        seq: u64,
    },
    /// Asks for something.
    Call {
        /// The client's number for it.
        request: RequestId,
        /// Every answer up to this number has arrived.
        acknowledged: RequestId,
        /// What.
        op: Op,
    },
    /// Asks for a total of one place.
    Resync {
        /// The place.
        entry: EntryId,
    },
}

/// From the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerFrame {
    /// The session is open, or taken over.
    Opened(Opened),
    /// A keepalive is confirmed by a quorum.
    Alive {
        /// Its number.
        seq: u64,
        /// The places of the session that wait, so that every wait is heard of (RULES R24); at most 256.
        waiting: Vec<EntryId>,
    },
    /// The answer to a call.
    Reply {
        /// The call's number.
        request: RequestId,
        /// The answer.
        reply: Reply,
    },
    /// A call could not be brought to the log.
    Unanswered {
        /// The call's number.
        request: RequestId,
        /// Whether it may still be done.
        outcome: Outcome,
        /// Why, as a sentence.
        why: String,
    },
    /// A group changed.
    Change(Arc<Change>),
    /// A place as it is now.
    Total(Total),
    /// Changes of a group were dropped, since the client did not read; a total follows.
    Gap {
        /// The group.
        group: Name,
        /// How many.
        missed: u64,
    },
    /// An operator asks the session to stop.
    Closing {
        /// Who and why.
        why: String,
    },
    /// The session ended.
    Ended {
        /// Why.
        reason: Reason,
        /// In words.
        evidence: String,
    },
    /// The stream ends here, and why.
    Bye(Bye),
}

/// What is known of a call that was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was not done and will not be.
    NotDone,
    /// It may have been done, or may still be.
    Unknown,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotDone => "not done",
            Self::Unknown => "unknown",
        })
    }
}

/// Why the service ends a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bye {
    /// The opening or attaching was refused.
    Refused(Refusal),
    /// The client broke the rules of the stream.
    Protocol(String),
    /// A newer connection has taken the session over.
    TakenOver,
    /// The service cannot serve now; the session lives on.
    Unavailable(String),
}

impl fmt::Display for Bye {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Protocol(what) => write!(f, "the stream's rules were broken: {what}"),
            Self::TakenOver => write!(f, "a newer connection has taken the session over"),
            Self::Unavailable(why) => write!(f, "the service cannot serve now: {why}"),
        }
    }
}
