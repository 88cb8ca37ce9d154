//! The sentences of refusals: what happened, what is still held, what to do.

use super::Refusal;
use core::fmt;

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Founding => write!(f, "the cluster is not founded yet, or has been founded before"),
            Self::NoSession { session } => {
                write!(f, "session {session} has ended: it holds nothing; open a new one and join again")
            }
            Self::WrongSecret { session } => {
                write!(f, "that is not the secret of session {session}; nothing was changed")
            }
            Self::StaleConnection { session, generation, current } => write!(
                f,
                "connection {generation} of session {session} was taken over by connection {current}; \
                 nothing was changed"
            ),
            Self::SessionClosing { session } => write!(
                f,
                "session {session} is being closed by an operator: it may release what it holds, \
                 but joins nothing more"
            ),
            Self::Forgotten { request } => write!(
                f,
                "an answer to request {request} was acknowledged before; whether this one was done \
                 is not known"
            ),
            Self::Limit { what, max, asked } => {
                write!(f, "the limit for {what} is {max}, and this would be {asked}; nothing was changed")
            }
            Self::Policy { group, clash } => write!(
                f,
                "{group} has {} = {}, stated by an earlier member, and this call states {}; \
                 leave it out or state the same",
                clash.field, clash.stated, clash.asked
            ),
            Self::OtherFace { group, is, asked } => write!(
                f,
                "{group} is a {is} and cannot be used as a {asked} while anybody is in it; \
                 choose another name"
            ),
            Self::Busy { group, holder, session, token } => {
                write!(f, "{group} is held by {holder} (session {session}, token {token})")
            }
            Self::NoEntry { entry } => {
                write!(f, "the session has no place {entry}: it was released or lost before")
            }
            Self::NoGroup { group } => write!(f, "there is no \"{group}\""),
            Self::NotEmpty { group, members: 1 } => {
                write!(f, "one member is in {group}; it is deleted only when it is empty")
            }
            Self::NotEmpty { group, members } => {
                write!(f, "{members} members are in {group}; it is deleted only when it is empty")
            }
            Self::Unsupported { what, level, needs } => {
                write!(f, "{what} is not supported at feature level {level} of this cluster")?;
                let Some(needs) = needs else { return Ok(()) };
                write!(
                    f,
                    ", it needs level {needs}; nothing was changed; once every server can run that level, \
                     `quorate level raise` raises it"
                )
            }
            Self::NotRaised { level, to, .. } if to == level => {
                write!(f, "the cluster is at feature level {level} already; nothing was changed")
            }
            Self::NotRaised { level, to, .. } if to < level => write!(
                f,
                "a feature level is never lowered: the cluster is at {level}, and {to} was asked for; \
                 nothing was changed"
            ),
            Self::NotRaised { level, from, to } => write!(
                f,
                "the cluster is at feature level {level}, and not at {from} as the caller saw, so it was not \
                 raised to {to}; nothing was changed; look again with `quorate level show`"
            ),
            Self::LevelUnknown { to, highest } => write!(
                f,
                "feature level {to} is not known to this server, which runs levels up to {highest}; nothing \
                 was changed; start a release there that runs it, then raise the level"
            ),
            Self::TooLong { what, max, asked } => {
                write!(f, "the limit for {what} is {max}, and this would be {asked}; nothing was changed")
            }
            Self::Ending { group } => {
                write!(f, "{group} is being deleted: it takes nobody in; choose another name or wait")
            }
            Self::NoTransfer { group, why } => write!(f, "no seat of {group} is moved: {why}"),
            Self::Deadlock { cycle } => write!(
                f,
                "this wait would never end: {cycle}; it was given up, and what the session holds stays held"
            ),
            Self::LeaseTooShort { floor, asked } => write!(
                f,
                "a lease of {asked} is too short: the floor here is {floor}, from this service's measured \
                 disk and network times; ask for {floor} or more"
            ),
            Self::NotDue => write!(f, "the timer was renewed, or its reign is over; nothing was changed"),
        }
    }
}

impl core::error::Error for Refusal {}
