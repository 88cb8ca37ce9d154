//! What can go wrong between a program and the service: what happened, what the caller still holds, what to do.

use quorate_core::id::{Name, NameError, SessionId, Token};
use std::sync::Arc;
use std::time::Duration;

pub use crate::advisory::Reason;
pub use crate::proto::refusal::Code;
pub use quorate_core::frame::Outcome;

/// Every error of the client library. [`Error::outcome`] tells whether the call may have been done.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A text is not an address, or there is none. Nothing was sent. Give `host:port` or a URL.
    #[error("{text:?} is not an address: {why}")]
    Address {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// A text is not a name. Nothing was sent.
    #[error("{text:?} is not a name: {source}")]
    Name {
        /// The text.
        text: String,
        /// What is wrong with it.
        source: NameError,
    },
    /// Options contradict each other or the service's answer. Nothing is held.
    #[error("{0}")]
    Options(String),
    /// No address answered in time, or only with the reason why it cannot serve now. No session was opened as far as
    /// this client knows; one whose answer was lost holds nothing and ends with its lease. Check the addresses, that
    /// the service runs, and what it says.
    #[error("no service at {addresses} could be used{}: {why}", within(*.after))]
    Unreachable {
        /// The addresses that were tried.
        addresses: String,
        /// For how long.
        after: Duration,
        /// What the last attempt met.
        why: String,
        /// Its source.
        source: Option<Arc<tonic::Status>>,
    },
    /// The service refused, by its rules. Nothing was changed, and everything held before is still held; the text
    /// says what to do.
    #[error("{message}")]
    Refused {
        /// Which rule.
        code: Code,
        /// The service's sentence.
        message: String,
    },
    /// The lease asked for is shorter than this service can keep. No session was opened; ask for the floor or more.
    #[error("{message}")]
    LeaseTooShort {
        /// The shortest lease that this service keeps.
        floor: Duration,
        /// The service's sentence.
        message: String,
    },
    /// A lock is not free, and the call would not wait. Nothing is held and no place in the queue is kept.
    #[error("{message}")]
    Busy {
        /// The lock.
        name: Name,
        /// The holder's name.
        holder: String,
        /// The holder's session.
        session: SessionId,
        /// The holder's token; none if the seat is being passed on just now.
        token: Option<Token>,
        /// The service's sentence.
        message: String,
    },
    /// The wait was part of a deadlock, and it was asked to be given up then. Nothing is held of this name and no
    /// place in the queue is kept; **everything else that the session holds stays held**. Release some of it, and ask
    /// again.
    #[error("{message}")]
    Deadlock {
        /// What was waited for.
        name: Name,
        /// The service's sentence: who waits for what, held by whom.
        message: String,
    },
    /// A lock was not granted within the caller's time. The place in the queue was given up; if the grant came
    /// at the same moment it was released. Nothing is held.
    #[error("\"{name}\" was not granted within {}; the place in the queue was given up", short(*.after))]
    TimedOut {
        /// The lock.
        name: Name,
        /// The caller's time.
        after: Duration,
    },
    /// Nothing was heard of the service for as long as the session's lease, so this wait was given up: it was silent,
    /// or this process was stopped (Ctrl-Z, a machine that slept) and could not listen. It is not known
    /// whether the call was done. Nothing may be acted on; should the place turn out to exist, the library gives
    /// it up as soon as the service is back. Ask again when it is.
    #[error("{what}: {}; the wait was given up", unheard(*.silent, *.stopped))]
    WaitLost {
        /// What was waited for.
        what: String,
        /// How long nothing was heard at least: the lease.
        silent: Duration,
        /// How long this process itself was stopped then; none if it ran.
        stopped: Option<Duration>,
    },
    /// The session ended at the service, so everything that it held is lost: locks for good, groups join again
    /// by themselves at the tail. A new call opens or uses the next session.
    #[error("session {session} ended ({reason}): {evidence}; what it held is lost")]
    SessionLost {
        /// The session.
        session: SessionId,
        /// Why it ended.
        reason: Reason,
        /// Who reported what.
        evidence: String,
    },
    /// The service took the place out of its queue: the group was deleted, or the wait was part of a deadlock.
    /// Nothing is held in it; the session lives on.
    #[error("the place in {name} was taken back ({reason}): {evidence}")]
    Removed {
        /// The group or lock.
        name: Name,
        /// Why.
        reason: Reason,
        /// Who reported what.
        evidence: String,
    },
    /// An operator closed the session. It acts no more and will not come back; open a new one if that is meant.
    #[error("session {session} was closed by an operator: {why}")]
    Closed {
        /// The session.
        session: SessionId,
        /// Who and why.
        why: String,
    },
    /// The session was ended by this program. It holds nothing.
    #[error("the session was ended by its own program; it holds nothing")]
    Ended,
    /// A child that was forked tried to use its parent's session. The parent's is untouched; open one of your own.
    #[error("this session belongs to process {owner}; process {here} must open its own")]
    Forked {
        /// The process that opened it.
        owner: u32,
        /// The process that asked.
        here: u32,
    },
    /// The two sides do not understand each other. Seats are kept until their own deadlines, then lost.
    #[error("the service and this library do not understand each other: {0}")]
    Protocol(String),
}

impl Error {
    /// Whether the call was certainly not done, or may have been.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::WaitLost { .. } | Self::SessionLost { .. } | Self::Protocol(_) => Outcome::Unknown,
            Self::Refused { code: Code::Forgotten, .. } => Outcome::Unknown,
            _ => Outcome::NotDone,
        }
    }

    /// A text as a name.
    pub(crate) fn name(text: impl Into<String>) -> Result<Name, Self> {
        let text = text.into();
        Name::new(text.clone()).map_err(|source| Self::Name { text, source })
    }
}

/// A length of time for people: `2 s`, `350 ms`.
/// A call of its own is not tried again, so it has no time to tell.
fn within(after: Duration) -> String {
    if after.is_zero() { String::new() } else { format!(" within {}", short(after)) }
}

fn unheard(lease: Duration, stopped: Option<Duration>) -> String {
    let lease = short(lease);
    match stopped {
        Some(stopped) => {
            format!("this process was stopped for {}, and its lease ({lease}) ran out", short(stopped))
        }
        None => format!("the service was silent for the whole lease ({lease})"),
    }
}

fn short(time: Duration) -> String {
    quorate_core::time::Span::from_millis(time.as_millis() as u64).to_string()
}
