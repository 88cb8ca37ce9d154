//! The one queue that locks, groups and their kin are faces of.
//!
//! Problem: who of many acts, who is next, and why does each other wait?
//! Rule: the first `seats` of an ordered queue act; whoever takes a seat gets the next token.
//! Cost: a grant touches the seats and the head of the queue only; a change of a group with ordinals
//! walks its members once, a lock-like face never does (RULES R15).
//! Safety: a held seat is freed only by [`Group::unseat`], which is called on the holder's own word or at the
//! end of its lease (RULES R11).
//!
//! Beside this file: `entry.rs` one place, `seats.rs` who gets a seat, `drain.rs` how a seat is asked for,
//! `notice.rs` who is told what.

use super::entry::{About, Entry, Key};
use super::explain::Blocker;
use super::seats::{Phase, Rest};
use super::task::{Hand, TaskKind};
use super::{
    Face, Join, MemberKind, Numbering, Order, Past, PolicyWish, Reason, Refusal, Rejoin, Seat, Terms, Total,
    limit,
};
use crate::id::{EntryId, LogIndex, Name, SeatNo, SessionId, Version, ViewId};
use crate::time::Span;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// How many changes one name remembers for `explain`.
pub const HISTORY_MAX: usize = 32;

/// How many holders or heads of a queue a reason names; the rest are counted.
pub(super) const NAMED_MAX: usize = 4;

/// One name and its queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Group {
    pub(super) name: Name,
    pub(super) face: Face,
    created: LogIndex,
    kept: bool,
    idle_since: Option<LogIndex>,
    pub(super) policy: PolicyWish,
    pub(super) version: Version,
    pub(super) view: ViewId,
    pub(super) queue: BTreeMap<EntryId, Entry>,
    pub(super) observers: BTreeMap<EntryId, Entry>,
    pub(super) seats: Vec<Option<EntryId>>,
    pub(super) history: VecDeque<Past>,
    #[serde(default)]
    pub(super) resting: BTreeMap<SeatNo, Rest>,
    #[serde(default)]
    pub(super) phase: Option<Phase>,
    /// It is being deleted.
    #[serde(default)]
    pub(super) ending: bool,
    /// Those that are here and have no seat, in order. Follows from the queue.
    #[serde(skip)]
    pub(super) waiting: BTreeMap<Key, EntryId>,
}

/// Who comes, and how.
pub(super) struct Comer<'a> {
    pub(super) id: EntryId,
    pub(super) session: SessionId,
    /// The length of its session's lease.
    pub(super) lease: Span,
    pub(super) join: &'a Join,
    pub(super) terms: &'a Terms,
}

impl Group {
    pub(super) fn new(name: Name, face: Face, created: LogIndex) -> Self {
        Self {
            name,
            face,
            created,
            kept: false,
            idle_since: Some(created),
            policy: PolicyWish::default(),
            version: Version(0),
            view: ViewId(0),
            queue: BTreeMap::new(),
            observers: BTreeMap::new(),
            seats: vec![None],
            history: VecDeque::new(),
            resting: BTreeMap::new(),
            phase: None,
            ending: false,
            waiting: BTreeMap::new(),
        }
    }

    pub(super) fn created(&self) -> LogIndex {
        self.created
    }

    pub(super) fn kept(&self) -> bool {
        self.kept
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.observers.is_empty()
    }

    /// It was deleted, and nothing is left to wait for: nobody acts, and no seat rests.
    pub(super) fn is_over(&self) -> bool {
        self.ending && self.is_empty() && self.resting.is_empty()
    }

    /// How many are in the queue or look on.
    pub(super) fn len(&self) -> usize {
        self.queue.len() + self.observers.len()
    }

    /// Since when the name is empty and may be forgotten.
    pub(super) fn idle_since(&self) -> Option<LogIndex> {
        self.idle_since
    }

    /// Keeps the name when nobody is in it; gives back since when it was idle.
    pub(super) fn keep(&mut self) -> Option<LogIndex> {
        self.kept = true;
        self.idle_since.take()
    }

    /// Lets the name go when nobody is in it.
    pub(super) fn end(&mut self) {
        self.kept = false;
        self.ending = true;
    }

    pub(super) fn by_weight(&self) -> bool {
        self.policy.order == Some(Order::Weight)
    }

    /// Computes what follows from the queue: after a snapshot, or when the order was stated.
    pub(super) fn reindex(&mut self) {
        let by_weight = self.by_weight();
        let here = self.queue.values().filter(|entry| entry.seat.is_none() && entry.away.is_none());
        self.waiting = here.map(|entry| (entry.key(by_weight), entry.id)).collect();
    }

    /// Holds a statement about face and policy against what is known (RULES R17, R17a). An empty name
    /// that nobody created has no face and no policy of its own.
    pub(super) fn prepare(
        &mut self,
        face: Face,
        policy: &PolicyWish,
        index: LogIndex,
    ) -> Result<(), Refusal> {
        if self.ending {
            return Err(Refusal::Ending { group: self.name.clone() });
        }
        if self.is_empty() && !self.kept {
            self.face = face;
            self.policy = PolicyWish::default();
            self.created = index;
            self.seats = vec![None];
        }
        if self.face != face {
            return Err(Refusal::OtherFace { group: self.name.clone(), is: self.face, asked: face });
        }
        let by_weight = self.by_weight();
        let unnumbered = self.policy.numbering.is_none();
        self.policy.merge(policy).map_err(|clash| Refusal::Policy { group: self.name.clone(), clash })?;
        if unnumbered {
            self.number_all();
        }
        self.shrink();
        if by_weight != self.by_weight() {
            self.reindex();
        }
        Ok(())
    }

    /// Those that came before any numbering was stated are numbered as they stand.
    fn number_all(&mut self) {
        if !matches!(self.policy.numbering, Some(Numbering::Stable | Numbering::MinimalMove)) {
            return;
        }
        let in_line: Vec<EntryId> = self.in_line().into_iter().map(|entry| entry.id).collect();
        for (id, number) in in_line.into_iter().zip(1..) {
            if let Some(entry) = self.queue.get_mut(&id) {
                entry.number = number;
            }
        }
    }

    /// Takes a member in: at the tail, by its weight, or at the place that was kept for it; gives back the id
    /// that this place had.
    pub(super) fn join(
        &mut self,
        hand: &mut Hand<'_>,
        comer: &Comer<'_>,
        queue_max: u32,
    ) -> Result<(Total, Option<EntryId>), Refusal> {
        if self.len() >= queue_max as usize {
            return Err(limit("members of one queue", queue_max, self.len() as u64 + 1));
        }
        let Comer { id, session, join, .. } = *comer;
        let stated = (self.policy.clone(), self.by_weight());
        self.prepare(join.face, &join.policy, hand.index())?;
        let observer = join.kind == MemberKind::Observer;
        if !join.wait
            && !observer
            && let Err(busy) = self.refuse_if_busy(comer)
        {
            // A refused request leaves no statement behind. More seats were not filled yet.
            self.policy = stated.0;
            self.shrink();
            self.reindex();
            return Err(busy);
        }
        self.idle_since = None;
        let mut took = None;
        if observer {
            self.observers.insert(id, self.entry(hand, comer));
            self.settle(hand, Reason::Join, "more seats were stated");
        } else {
            let before = self.places();
            let (entry, reason, evidence) = self.arrive(hand, comer, &mut took);
            self.waiting.insert(entry.key(self.by_weight()), id);
            self.queue.insert(id, entry);
            let granted = self.fill_seats(hand);
            let about = About { reason, evidence: &evidence, whom: Some(id), gone: None, new: Some(id) };
            self.changed(hand, about, &before, &granted);
            self.preempt(hand);
        }
        debug_assert!(!self.is_empty(), "session {session} was just taken in");
        Ok((self.total(id).expect("the member was just taken in"), took))
    }

    fn entry(&self, hand: &Hand<'_>, comer: &Comer<'_>) -> Entry {
        let Comer { id, session, lease, join, terms } = *comer;
        Entry {
            id,
            session,
            name: join.name.clone(),
            kind: join.kind,
            metadata: join.metadata.clone(),
            weight: join.weight,
            joined: hand.at(),
            seat: None,
            mode: join.mode,
            terms: terms.clone(),
            lease,
            senior: id,
            turn: 0,
            number: self.lowest_hole(),
            drain: None,
            away: None,
            hold: None,
            beat: None,
            stalled: None,
        }
    }

    /// A member that comes back within its grace takes its old place (policy `rejoin`).
    fn arrive(
        &mut self,
        hand: &mut Hand<'_>,
        comer: &Comer<'_>,
        took: &mut Option<EntryId>,
    ) -> (Entry, Reason, String) {
        let fresh = self.entry(hand, comer);
        let keeps = matches!(self.policy.rejoin, Some(Rejoin::Sticky { .. }));
        let kept = keeps
            .then(|| self.queue.values())
            .into_iter()
            .flatten()
            .find(|entry| entry.away.is_some() && !entry.name.is_empty() && entry.name == fresh.name);
        let Some(old) = kept.map(|entry| entry.id).and_then(|id| self.queue.remove(&id)) else {
            let evidence = alloc::format!("session {} asked", comer.session);
            return (fresh, Reason::Join, evidence);
        };
        hand.disarm(old.away);
        *took = Some(old.id);
        let evidence = alloc::format!("session {} came back within the grace", comer.session);
        let Entry { senior, turn, number, .. } = old;
        (Entry { senior, turn, number, ..fresh }, Reason::Returned, evidence)
    }

    /// The lowest number that nobody has; where the last moves into a hole, one more than there are.
    fn lowest_hole(&self) -> u64 {
        match self.policy.numbering {
            Some(Numbering::Stable) => {
                let taken: alloc::collections::BTreeSet<u64> =
                    self.queue.values().map(|entry| entry.number).collect();
                (1..).find(|number| !taken.contains(number)).unwrap_or(u64::MAX)
            }
            Some(Numbering::MinimalMove) => self.queue.len() as u64 + 1,
            _ => 0,
        }
    }

    fn refuse_if_busy(&self, comer: &Comer<'_>) -> Result<(), Refusal> {
        let Err(blocker) = self.grantable_at_once(comer.join.mode) else { return Ok(()) };
        let group = self.name.clone();
        let first = || self.waiting.values().next().and_then(|id| self.queue.get(id));
        let (holder, session, token) = match (self.holders().next(), blocker) {
            (_, Some(Blocker::Parties { present, parties })) => {
                (alloc::format!("a barrier with {} of {parties} parties", present - 1), SessionId(0), None)
            }
            (Some(entry), _) => (entry.name.clone(), entry.session, entry.seat.map(|seat| seat.token)),
            (None, _) => match first() {
                Some(entry) => (alloc::format!("nobody, and {} is next", entry.name), entry.session, None),
                None => ("the pause after its last holder".into(), SessionId(0), None),
            },
        };
        Err(Refusal::Busy { group, holder, session, token: token.unwrap_or_default() })
    }

    /// Fills what can be filled, and tells who was seated.
    pub(super) fn settle(&mut self, hand: &mut Hand<'_>, reason: Reason, evidence: &str) {
        let before = self.places();
        let granted = self.fill_seats(hand);
        if let Some(first) = granted.first() {
            self.changed(hand, About::of(reason, evidence, *first), &before, &granted);
        }
    }

    /// Takes a member out, and passes its seat on in the same step. Where places are kept for those that
    /// were cut off, its place is.
    pub(super) fn leave(&mut self, hand: &mut Hand<'_>, id: EntryId, reason: Reason, evidence: &str) -> Left {
        if self.observers.remove(&id).is_some() {
            self.note_idle(hand);
            return Left { seat: None, kept: false };
        }
        if !self.queue.contains_key(&id) {
            return Left { seat: None, kept: false };
        }
        let before = self.places();
        let heir = self.queue.get(&id).and_then(|entry| entry.drain.as_ref()?.to);
        let seat = self.unseat(hand, id);
        if let Some(heir) = heir {
            self.put_first(heir);
        }
        let cut_off = matches!(reason, Reason::Expired | Reason::Disconnect);
        let kept = match self.policy.rejoin {
            Some(Rejoin::Sticky { grace }) if cut_off && !self.ending && self.face == Face::Group => {
                self.step_away(hand, id, grace);
                true
            }
            _ => false,
        };
        let gone = if kept { None } else { self.take_out(hand, id).map(|entry| Entry { seat, ..entry }) };
        self.forget_target(hand, id, "is not there any more");
        let granted = self.fill_seats(hand);
        let about = About { reason, evidence, whom: Some(id), gone, new: None };
        self.changed(hand, about, &before, &granted);
        self.preempt(hand);
        self.note_idle(hand);
        Left { seat, kept }
    }

    /// A name is idle when nobody is in it, and none of its seats rests.
    pub(super) fn note_idle(&mut self, hand: &Hand<'_>) {
        if self.is_empty() && !self.kept && self.resting.is_empty() && self.idle_since.is_none() {
            self.idle_since = Some(hand.index());
        }
    }

    fn step_away(&mut self, hand: &mut Hand<'_>, id: EntryId, grace: Span) {
        let by_weight = self.by_weight();
        let Some(entry) = self.queue.get_mut(&id) else { return };
        self.waiting.remove(&entry.key(by_weight));
        entry.away = Some(hand.arm(&self.name, TaskKind::Grace(id), grace));
    }

    /// Removes a place; the last number moves into its hole where the policy says so.
    fn take_out(&mut self, hand: &mut Hand<'_>, id: EntryId) -> Option<Entry> {
        let entry = self.queue.remove(&id)?;
        self.waiting.remove(&entry.key(self.by_weight()));
        if entry.away.is_some() {
            hand.disarm(entry.away);
        }
        if self.policy.numbering == Some(Numbering::MinimalMove) {
            let last = self.queue.values_mut().max_by_key(|entry| entry.number);
            if let Some(last) = last.filter(|last| last.number > entry.number) {
                last.number = entry.number;
            }
        }
        Some(entry)
    }

    /// A new token for the same seat (RULES R25).
    pub(super) fn renew(&mut self, hand: &mut Hand<'_>, id: EntryId) {
        let Some(seat) = self.queue.get(&id).and_then(|entry| entry.seat) else { return };
        let shared = self.phase.is_some();
        let before = self.places();
        // Those that share a phase keep its token: a new one would make them refuse each other (R13). The
        // service has not given the seat away, so the phase is still theirs.
        let token = if shared { seat.token } else { hand.token() };
        if let Some(entry) = self.queue.get_mut(&id) {
            entry.seat = Some(Seat { no: seat.no, token, since: hand.at() });
        }
        let evidence = alloc::format!(
            "its own deadline had passed under token {}; it came back before its lease ended",
            seat.token
        );
        self.changed(hand, About::of(Reason::Renewed, &evidence, id), &before, &[id]);
    }

    /// Changes what the others are told of a member.
    pub(super) fn describe(&mut self, hand: &mut Hand<'_>, id: EntryId, metadata: &BTreeMap<String, String>) {
        if let Some(entry) = self.observers.get_mut(&id) {
            entry.metadata = metadata.clone();
            return;
        }
        let Some(entry) = self.queue.get_mut(&id) else { return };
        entry.metadata = metadata.clone();
        let before = self.places();
        let about = About { new: Some(id), ..About::of(Reason::Described, "it described itself anew", id) };
        self.changed(hand, about, &before, &[]);
    }

    /// The session of a member.
    pub(super) fn session_of(&self, id: EntryId) -> Option<SessionId> {
        self.queue.get(&id).map(|entry| entry.session)
    }
}

/// What became of a place.
pub(super) struct Left {
    /// The seat that was given up.
    pub(super) seat: Option<Seat>,
    /// The place is kept for a while.
    pub(super) kept: bool,
}
