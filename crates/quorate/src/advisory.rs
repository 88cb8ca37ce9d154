//! What a member of a group is told: one advisory for each thing that happened, with its place before and after.
//!
//! An advisory is made at the moment it is read. Its JSON form is one object with the fields in the order of
//! [`Advisory`]; tokens are decimal strings (they may pass 2^53), times RFC 3339 in UTC with milliseconds, and
//! what is absent is `null`.

use quorate_core::id::{EntryId, Name, SessionId, Token, ViewId};
use quorate_core::state_machine::{Member, MemberKind, Place, Reason as Logged, Role};
use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

/// The ordinal of a member that is cut off and must not act.
pub const CUT_OFF: i64 = -1;

/// What happened, from this member's point of view. Shown in snake_case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// This member is in the group; comes with everybody in it. If a seat was free its role is active already.
    Joined,
    /// Something about the group changed, but not whether this member acts.
    Changed,
    /// This member got a seat, and a token with it: it acts from now on.
    Active,
    /// This member had a seat and has none now.
    Standby,
    /// This member's own deadline has passed: ordinal -1, it must not act.
    Disconnected,
    /// The service has been silent for half a lease. Ordinal and seat are kept until the deadline.
    Unavailable,
    /// The connection is back; comes with everybody in the group. A token in it may be a new one.
    Reconnected,
    /// Changes were missed; comes with everybody in the group instead.
    Gap,
    /// This member keeps its seat under a new token, since its own deadline had passed before it came back.
    Renewed,
    /// This member left by its own call. The last advisory.
    Left,
    /// An operator closed the session, or the service refuses this member from now on. The last advisory.
    Closed,
}

impl Event {
    /// The event in snake_case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Joined => "joined",
            Self::Changed => "changed",
            Self::Active => "active",
            Self::Standby => "standby",
            Self::Disconnected => "disconnected",
            Self::Unavailable => "unavailable",
            Self::Reconnected => "reconnected",
            Self::Gap => "gap",
            Self::Renewed => "renewed",
            Self::Left => "left",
            Self::Closed => "closed",
        }
    }
}

/// Which form an advisory has. Shown in snake_case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Everybody in the group is in it.
    Total,
    /// Only what changed is in it.
    Change,
    /// Nobody is in it, since the service is not heard.
    Unavailable,
}

impl Form {
    /// The form in snake_case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::Change => "change",
            Self::Unavailable => "unavailable",
        }
    }
}

/// Why something happened. Shown in snake_case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// A member joined.
    Join,
    /// A member left, or a holder released, by its own call.
    Leave,
    /// A session's lease ran out at the service.
    Expired,
    /// A connection closed, and its session had asked that this be a leave.
    Disconnect,
    /// An operator closed a session.
    Closed,
    /// A member changed its metadata.
    Described,
    /// A holder whose own deadline had passed came back in time and got a new token.
    Renewed,
    /// A holder was asked to stop.
    Draining,
    /// A holder that was asked to stop has, and the seat went on.
    Transferred,
    /// A holder that was asked to stop did not say that it had: it holds on.
    NotStopped,
    /// The pause between two holders is over.
    Rested,
    /// A member that was away came back to its place.
    Returned,
    /// The place of a member that was away is kept no longer.
    GraceOver,
    /// The number of seats was changed.
    Seats,
    /// The group was deleted.
    Deleted,
    /// A wait was given up, since it was part of a deadlock.
    Deadlock,
    /// The holder's work gave no sign for longer than it said.
    Stalled,
    /// The holder's work goes on.
    Progress,
    /// A barrier has all its parties.
    Tripped,
    /// This member's own deadline passed, by its own clock.
    DeadlinePassed,
    /// The service was not heard.
    ServiceSilent,
    /// The connection broke and is back.
    ConnectionLost,
    /// Changes were lost on the way to this member.
    ChangesMissed,
    /// The service knows the session no more.
    SessionLost,
    /// The service refused to take this member back.
    Refused,
}

impl Reason {
    /// The reason in snake_case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Leave => "leave",
            Self::Expired => "expired",
            Self::Disconnect => "disconnect",
            Self::Closed => "closed",
            Self::Described => "described",
            Self::Renewed => "renewed",
            Self::Draining => "draining",
            Self::Transferred => "transferred",
            Self::NotStopped => "not_stopped",
            Self::Rested => "rested",
            Self::Returned => "returned",
            Self::GraceOver => "grace_over",
            Self::Seats => "seats",
            Self::Deleted => "deleted",
            Self::Deadlock => "deadlock",
            Self::Stalled => "stalled",
            Self::Progress => "progress",
            Self::Tripped => "tripped",
            Self::DeadlinePassed => "deadline_passed",
            Self::ServiceSilent => "service_silent",
            Self::ConnectionLost => "connection_lost",
            Self::ChangesMissed => "changes_missed",
            Self::SessionLost => "session_lost",
            Self::Refused => "refused",
        }
    }
}

impl From<Logged> for Reason {
    fn from(logged: Logged) -> Self {
        match logged {
            Logged::Join => Self::Join,
            Logged::Leave => Self::Leave,
            Logged::Expired => Self::Expired,
            Logged::Disconnect => Self::Disconnect,
            Logged::Closed => Self::Closed,
            Logged::Described => Self::Described,
            Logged::Renewed => Self::Renewed,
            Logged::Draining => Self::Draining,
            Logged::Transferred => Self::Transferred,
            Logged::NotStopped => Self::NotStopped,
            Logged::Rested => Self::Rested,
            Logged::Returned => Self::Returned,
            Logged::GraceOver => Self::GraceOver,
            Logged::Seats => Self::Seats,
            Logged::Deleted => Self::Deleted,
            Logged::Deadlock => Self::Deadlock,
            Logged::Stalled => Self::Stalled,
            Logged::Progress => Self::Progress,
            Logged::Tripped => Self::Tripped,
        }
    }
}

macro_rules! shown {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    )*};
}
shown!(Event, Form, Reason);

/// One thing that a member of a group is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Advisory {
    /// When it was made, by this machine's wall clock, in milliseconds since 1970. A label: nothing is decided
    /// by it. In JSON `time`, RFC 3339.
    pub time_ms: i64,
    /// The group.
    pub group: Name,
    /// What happened.
    pub event: Event,
    /// Which form this is.
    pub form: Form,
    /// This member's name.
    pub name: String,
    /// The view in which it happened; the last known one in the form `unavailable`.
    pub view: ViewId,
    /// This member's position from now on, from 1; [`CUT_OFF`] (-1) if it must not act; none for an observer
    /// and for one that left.
    pub ordinal: Option<i64>,
    /// The position that it was last told.
    pub previous: Option<i64>,
    /// What this member may do from now on; none once it left.
    pub role: Option<Role>,
    /// This member's own token, while it is active: its right to act.
    pub token: Option<Token>,
    /// The token of the holder of the lowest held seat.
    pub holder_token: Option<Token>,
    /// Why it happened.
    pub reason: Reason,
    /// Who reported what, in words.
    pub evidence: String,
    /// How long this member may still act without hearing from the service; zero once its deadline has passed,
    /// none once it left. In JSON `remaining_ms`.
    pub remaining: Option<Duration>,
    /// Everybody in the group in queue order, in the form total.
    pub members: Vec<Member>,
    /// Everybody whose place changed, those that left first, in the form change.
    pub changed: Vec<Step>,
}

/// One member's step in a change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// Its place in the queue.
    pub entry: EntryId,
    /// Its session.
    pub session: SessionId,
    /// Its name.
    pub name: String,
    /// How it takes part.
    pub kind: MemberKind,
    /// Where it stood; none if it is new.
    pub before: Option<Place>,
    /// Where it stands; none if it is gone.
    pub after: Option<Place>,
    /// It is gone because it was cut off, not by its own call.
    pub cut_off: bool,
    /// Its metadata, where it is new or changed.
    pub metadata: Option<BTreeMap<String, String>>,
}

impl Step {
    /// Its position from now on: [`CUT_OFF`] if it was cut off, none if it left.
    pub fn ordinal(&self) -> Option<i64> {
        match &self.after {
            Some(place) => number(place),
            None => self.cut_off.then_some(CUT_OFF),
        }
    }

    /// Its position before.
    pub fn previous(&self) -> Option<i64> {
        self.before.as_ref().and_then(number)
    }

    /// What it may do from now on; none if it left.
    pub fn role(&self) -> Option<Role> {
        match &self.after {
            Some(place) => Some(place.role),
            None => self.cut_off.then_some(Role::Disconnected),
        }
    }
}

/// A place's ordinal as users see it.
pub(crate) fn number(place: &Place) -> Option<i64> {
    place.ordinal.map(|ordinal| ordinal.0 as i64)
}

impl Advisory {
    /// Whether this member may act from now on, under [`Advisory::token`].
    pub fn is_active(&self) -> bool {
        self.token.is_some()
    }
}

/// A member in a total: `{name, ordinal, role}`.
struct MemberLine<'a>(&'a Member);

impl Serialize for MemberLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("name", &self.0.name)?;
        map.serialize_entry("ordinal", &number(&self.0.place))?;
        map.serialize_entry("role", &self.0.place.role.to_string())?;
        map.end()
    }
}

impl Serialize for Step {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(4))?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("ordinal", &self.ordinal())?;
        map.serialize_entry("previous", &self.previous())?;
        map.serialize_entry("role", &self.role().map(|role| role.to_string()))?;
        map.end()
    }
}

impl Serialize for Advisory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_struct("Advisory", 15)?;
        line.serialize_field("time", &rfc3339(self.time_ms))?;
        line.serialize_field("group", self.group.as_str())?;
        line.serialize_field("event", &self.event)?;
        line.serialize_field("form", &self.form)?;
        line.serialize_field("name", &self.name)?;
        line.serialize_field("view", &self.view)?;
        line.serialize_field("ordinal", &self.ordinal)?;
        line.serialize_field("previous", &self.previous)?;
        line.serialize_field("role", &self.role.map(|role| role.to_string()))?;
        line.serialize_field("token", &self.token.map(|token| token.to_string()))?;
        line.serialize_field("holder_token", &self.holder_token.map(|token| token.to_string()))?;
        line.serialize_field("reason", &self.reason)?;
        line.serialize_field("evidence", &self.evidence)?;
        line.serialize_field("remaining_ms", &self.remaining.map(|left| left.as_millis() as u64))?;
        match self.form {
            Form::Total => {
                let members: Vec<_> = self.members.iter().map(MemberLine).collect();
                line.serialize_field("members", &members)?;
            }
            Form::Change | Form::Unavailable => line.serialize_field("changed", &self.changed)?,
        }
        line.end()
    }
}

/// A wall reading as `2026-01-31T09:05:00.250Z`.
fn rfc3339(ms: i64) -> String {
    let at = UNIX_EPOCH + Duration::from_millis(ms.max(0) as u64);
    match jiff::Timestamp::try_from(at) {
        Ok(at) => format!("{at:.3}"),
        Err(_) => ms.to_string(),
    }
}
