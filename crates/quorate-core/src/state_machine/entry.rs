//! One place in a queue.

use super::explain::Holder;
use super::{Changed, MemberKind, Mode, Place, Reason, Role, Seat, Terms, Wall};
use crate::id::{EntryId, Ordinal, SessionId, TaskId};
use crate::time::Span;
use alloc::collections::BTreeMap;
use alloc::string::String;
use serde::{Deserialize, Serialize};

/// One member, as the group knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) id: EntryId,
    pub(super) session: SessionId,
    pub(super) name: String,
    pub(super) kind: MemberKind,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) weight: u32,
    pub(super) joined: Wall,
    pub(super) seat: Option<Seat>,
    #[serde(default)]
    pub(super) mode: Mode,
    #[serde(default)]
    pub(super) terms: Terms,
    /// The length of its session's lease, which bounds a drain (RULES R7).
    #[serde(default)]
    pub(super) lease: Span,
    /// Since when it is in the queue, for its order: its own id, or that of the member whose place it took.
    #[serde(default)]
    pub(super) senior: EntryId,
    /// Before all with a greater one: a transfer puts its member at the front.
    #[serde(default)]
    pub(super) turn: i64,
    /// Its number, where numbers are kept.
    #[serde(default)]
    pub(super) number: u64,
    #[serde(default)]
    pub(super) drain: Option<Drain>,
    /// It is away, and its place is kept until the task.
    #[serde(default)]
    pub(super) away: Option<TaskId>,
    #[serde(default)]
    pub(super) hold: Option<TaskId>,
    #[serde(default)]
    pub(super) beat: Option<TaskId>,
    /// Its work gave no sign since, by the proposer's wall clock.
    #[serde(default)]
    pub(super) stalled: Option<Wall>,
}

/// A holder was asked to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Drain {
    /// Who is to act then; nobody in particular if it is none.
    pub(super) to: Option<EntryId>,
    /// Why, as evidence.
    pub(super) why: String,
    pub(super) since: Wall,
    pub(super) task: Option<TaskId>,
    /// At the end of the time stop its renewals.
    pub(super) force: bool,
}

/// The order of a queue: those that were put to the front first, then the heavier where weights count, then
/// the earlier.
pub(super) type Key = (i64, u32, EntryId);

impl Entry {
    pub(super) fn key(&self, by_weight: bool) -> Key {
        let senior = if self.senior == EntryId(0) { self.id } else { self.senior };
        (self.turn, if by_weight { u32::MAX - self.weight } else { 0 }, senior)
    }

    /// Where it stands; `next` says that it is the next in line and what is missing will come by itself.
    pub(super) fn place(&self, ordinal: Option<u64>, next: bool) -> Place {
        let role = match (&self.seat, &self.drain, &self.away) {
            (Some(_), Some(_), _) => Role::Draining,
            (Some(_), None, _) => Role::Active,
            (None, _, Some(_)) => Role::Reserved,
            (None, _, None) if self.kind == MemberKind::Observer => Role::Observer,
            (None, _, None) if next => Role::Pending,
            (None, _, None) => Role::Standby,
        };
        Place { ordinal: ordinal.map(Ordinal), role, seat: self.seat }
    }

    pub(super) fn step(&self, before: Option<Place>, after: Option<Place>) -> Changed {
        Changed {
            entry: self.id,
            session: self.session,
            name: self.name.clone(),
            kind: self.kind,
            before,
            after,
            metadata: None,
        }
    }

    pub(super) fn holder(&self) -> Option<Holder> {
        Some(Holder {
            name: self.name.clone(),
            session: self.session,
            entry: self.id,
            seat: self.seat?,
            draining: self.drain.as_ref().map(|drain| drain.why.clone()),
            stalled_since: self.stalled,
        })
    }
}

/// What a change is about, beside the places that it moves.
pub(super) struct About<'a> {
    pub(super) reason: Reason,
    pub(super) evidence: &'a str,
    /// Whom: told on every face, and remembered.
    pub(super) whom: Option<EntryId>,
    /// A member that is in the queue no more.
    pub(super) gone: Option<Entry>,
    /// Who was new or is shown anew, with its metadata.
    pub(super) new: Option<EntryId>,
}

impl<'a> About<'a> {
    pub(super) fn of(reason: Reason, evidence: &'a str, whom: EntryId) -> Self {
        Self { reason, evidence, whom: Some(whom), gone: None, new: None }
    }
}
