//! The one queue that locks, groups and their kin are faces of.
//!
//! Problem: who of many acts, who is next, and why does each other wait?
//! Rule: the first `seats` of an ordered queue act; whoever takes a seat gets the next token.
//! Cost: a grant touches the seats and the head of the queue only; a change of a group with ordinals
//! walks its members once, a lock-like face never does (RULES R15).
//! Safety: a held seat is freed only by [`Group::leave`], which the callers call on the holder's own word
//! or at the end of its lease (RULES R11).

use super::explain::{Blocker, Holder, Past};
use super::{
    Change, Changed, Event, Face, Join, Member, MemberKind, Mint, Place, PolicyWish, Reason, Refusal, Role,
    Seat, Step, Total, Wall, limit, only,
};
use crate::id::{EntryId, LogIndex, Name, Ordinal, SeatNo, SessionId, Token, Version, ViewId};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// How many changes one name remembers for `explain`.
pub const HISTORY_MAX: usize = 32;

/// How many holders or heads of a queue a reason names; the rest are counted.
const NAMED_MAX: usize = 4;

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
    queue: BTreeMap<EntryId, Entry>,
    waiting: BTreeSet<EntryId>,
    observers: BTreeMap<EntryId, Entry>,
    seats: Vec<Option<EntryId>>,
    history: VecDeque<Past>,
}

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
            waiting: BTreeSet::new(),
            observers: BTreeMap::new(),
            seats: vec![None],
            history: VecDeque::new(),
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

    /// Holds a statement about face and policy against what is known (RULES R17, R17a). An empty name
    /// that nobody created has no face and no policy of its own.
    pub(super) fn prepare(
        &mut self,
        face: Face,
        policy: &PolicyWish,
        index: LogIndex,
    ) -> Result<(), Refusal> {
        if self.is_empty() && !self.kept {
            self.face = face;
            self.policy = PolicyWish::default();
            self.created = index;
            self.seats = vec![None];
        }
        if self.face != face {
            return Err(Refusal::OtherFace { group: self.name.clone(), is: self.face, asked: face });
        }
        self.policy.merge(policy).map_err(|clash| Refusal::Policy { group: self.name.clone(), clash })?;
        self.seats.resize(self.policy.seats() as usize, None);
        Ok(())
    }

    /// Takes a member in at the tail.
    pub(super) fn join(
        &mut self,
        step: &mut Step,
        mint: &mut Mint<'_>,
        id: EntryId,
        session: SessionId,
        join: &Join,
        queue_max: u32,
    ) -> Result<Total, Refusal> {
        if self.len() >= queue_max as usize {
            return Err(limit("members of one queue", queue_max, self.len() as u64 + 1));
        }
        let stated = (self.policy.clone(), self.seats.len());
        self.prepare(join.face, &join.policy, step.index)?;
        let observer = join.kind == MemberKind::Observer;
        if !join.wait && !observer {
            if let Err(busy) = self.refuse_if_busy() {
                // A refused request leaves no statement behind. More seats were not filled yet.
                self.policy = stated.0;
                self.seats.truncate(stated.1);
                return Err(busy);
            }
        }
        self.idle_since = None;
        let entry = Entry {
            id,
            session,
            name: join.name.clone(),
            kind: join.kind,
            metadata: join.metadata.clone(),
            weight: join.weight,
            joined: step.at,
            seat: None,
        };
        if observer {
            self.observers.insert(id, entry);
            self.settle(step, mint);
        } else {
            let before = self.places();
            self.queue.insert(id, entry);
            self.waiting.insert(id);
            let granted = self.fill_seats(step, mint);
            let evidence = alloc::format!("session {session} asked");
            self.changed(step, Reason::Join, &evidence, before, None, Some(id), &granted);
        }
        Ok(self.total(id).expect("the member was just taken in"))
    }

    /// Fills the seats that a new statement about the policy has added.
    pub(super) fn settle(&mut self, step: &mut Step, mint: &mut Mint<'_>) {
        let before = self.places();
        let granted = self.fill_seats(step, mint);
        if !granted.is_empty() {
            let evidence = "more seats were stated";
            self.changed(step, Reason::Join, evidence, before, None, None, &granted);
        }
    }

    fn refuse_if_busy(&self) -> Result<(), Refusal> {
        let free = self.seats.iter().any(Option::is_none);
        if free && self.waiting.is_empty() {
            return Ok(());
        }
        let holder = self.holders().next().or_else(|| self.queue.values().next());
        let holder = holder.expect("a seat is taken or somebody waits");
        Err(Refusal::Busy {
            group: self.name.clone(),
            holder: holder.name.clone(),
            session: holder.session,
            token: holder.seat.map(|seat| seat.token).unwrap_or_default(),
        })
    }

    /// Takes a member out, and passes its seat on in the same step.
    pub(super) fn leave(
        &mut self,
        step: &mut Step,
        mint: &mut Mint<'_>,
        id: EntryId,
        reason: Reason,
        evidence: &str,
    ) -> Option<Seat> {
        let seat = if self.observers.remove(&id).is_some() {
            None
        } else {
            let before = self.places();
            let entry = self.queue.remove(&id)?;
            self.waiting.remove(&id);
            if let Some(seat) = entry.seat {
                self.seats[seat.no.0 as usize] = None;
            }
            let granted = self.fill_seats(step, mint);
            let seat = entry.seat;
            self.changed(step, reason, evidence, before, Some(entry), None, &granted);
            seat
        };
        if self.is_empty() && !self.kept {
            self.idle_since = Some(step.index);
        }
        seat
    }

    /// A new token for the same seat (RULES R25).
    pub(super) fn renew(&mut self, step: &mut Step, mint: &mut Mint<'_>, id: EntryId) {
        let Some(seat) = self.queue.get(&id).and_then(|entry| entry.seat) else { return };
        let before = self.places();
        let renewed = Seat { no: seat.no, token: mint.next(), since: step.at };
        if let Some(entry) = self.queue.get_mut(&id) {
            entry.seat = Some(renewed);
        }
        let evidence = alloc::format!(
            "its own deadline had passed under token {}; it came back before its lease ended",
            seat.token
        );
        self.changed(step, Reason::Renewed, &evidence, before, None, None, &[id]);
    }

    /// Changes what the others are told of a member.
    pub(super) fn describe(&mut self, step: &mut Step, id: EntryId, metadata: &BTreeMap<String, String>) {
        if let Some(entry) = self.observers.get_mut(&id) {
            entry.metadata = metadata.clone();
            return;
        }
        let Some(entry) = self.queue.get_mut(&id) else { return };
        entry.metadata = metadata.clone();
        if self.face != Face::Group {
            return;
        }
        let place = self.place(id);
        let entry = &self.queue[&id];
        let changed = Changed { metadata: Some(metadata.clone()), ..entry.step(place, place) };
        self.emit(step, Reason::Described, "it described itself anew", vec![changed], &[]);
    }

    /// Gives free seats to the first in the queue, for as long as nothing holds a grant back.
    fn fill_seats(&mut self, step: &Step, mint: &mut Mint<'_>) -> Vec<EntryId> {
        let mut granted = Vec::new();
        while let Some(next) = self.waiting.first().copied() {
            let Ok(no) = self.grantable(next) else { break };
            self.waiting.remove(&next);
            self.seats[no.0 as usize] = Some(next);
            if let Some(entry) = self.queue.get_mut(&next) {
                entry.seat = Some(Seat { no, token: mint.next(), since: step.at });
            }
            granted.push(next);
        }
        granted
    }

    /// The seat that a waiting member can have now, or what it waits for. This decides every grant,
    /// and `explain` prints what it returns.
    fn grantable(&self, id: EntryId) -> Result<SeatNo, Blocker> {
        let ahead = self.waiting.range(..id).next();
        if let Some(next) = ahead {
            let next = &self.queue[next];
            return Err(Blocker::Behind {
                next: next.name.clone(),
                session: next.session,
                ahead: self.waiting.range(..id).count() as u64,
            });
        }
        match self.seats.iter().position(Option::is_none) {
            Some(no) => Ok(SeatNo(no as u32)),
            None => Err(Blocker::SeatsHeld {
                seats: self.seats.len() as u32,
                holders: self.holders().take(NAMED_MAX).map(Entry::holder).collect(),
            }),
        }
    }

    /// Whether a member is in the queue without a seat.
    pub(super) fn waits(&self, id: EntryId) -> bool {
        self.waiting.contains(&id)
    }

    /// What a member waits for; nothing if it has its seat.
    pub(super) fn blocked_by(&self, id: EntryId) -> Option<Blocker> {
        if !self.waiting.contains(&id) {
            return None;
        }
        self.grantable(id).err()
    }

    /// Those that act, lowest seat first.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Entry> {
        self.seats.iter().flatten().filter_map(|id| self.queue.get(id))
    }

    /// Everybody in the queue, in order.
    pub(super) fn members(&self) -> impl Iterator<Item = &Entry> {
        self.queue.values()
    }

    /// Those that look on.
    pub(super) fn observers(&self) -> impl Iterator<Item = &Entry> {
        self.observers.values()
    }

    /// What happened last, newest last.
    pub(super) fn history(&self) -> impl Iterator<Item = &Past> {
        self.history.iter()
    }

    fn holder_token(&self) -> Option<Token> {
        self.holders().next().and_then(|entry| entry.seat).map(|seat| seat.token)
    }

    /// Everybody's place, where places are told to all; a lock-like face tells none (RULES R15).
    fn places(&self) -> Vec<(EntryId, Place)> {
        if self.face != Face::Group {
            return Vec::new();
        }
        self.queue.values().zip(1..).map(|(entry, n)| (entry.id, entry.place(Some(n)))).collect()
    }

    /// Where one member stands.
    pub(super) fn place(&self, id: EntryId) -> Option<Place> {
        if self.observers.contains_key(&id) {
            return Some(Place { ordinal: None, role: Role::Observer, seat: None });
        }
        let entry = self.queue.get(&id)?;
        let ordinal = (self.face == Face::Group).then(|| self.position(id));
        Some(entry.place(ordinal))
    }

    /// A member's position in the queue, from 1.
    pub(super) fn position(&self, id: EntryId) -> u64 {
        self.queue.range(..=id).count() as u64
    }

    /// All that a member is told at one moment.
    pub(super) fn total(&self, id: EntryId) -> Option<Total> {
        let place = self.place(id)?;
        let kind = self.queue.get(&id).or_else(|| self.observers.get(&id))?.kind;
        let sees_all = self.face == Face::Group && kind != MemberKind::OrdinalOnly;
        let members = if sees_all { self.member_list() } else { Vec::new() };
        Some(Total {
            group: self.name.clone(),
            face: self.face,
            version: self.version,
            view: self.view,
            holder_token: self.holder_token(),
            entry: id,
            place,
            members,
        })
    }

    /// Everybody in the queue as the others see them, in order.
    pub(super) fn member_list(&self) -> Vec<Member> {
        self.queue
            .values()
            .zip(1..)
            .map(|(entry, n)| Member {
                entry: entry.id,
                session: entry.session,
                name: entry.name.clone(),
                kind: entry.kind,
                place: entry.place(Some(n)),
                metadata: entry.metadata.clone(),
            })
            .collect()
    }

    /// Tells everybody what a step changed.
    #[allow(clippy::too_many_arguments)]
    fn changed(
        &mut self,
        step: &mut Step,
        reason: Reason,
        evidence: &str,
        before: Vec<(EntryId, Place)>,
        gone: Option<Entry>,
        new: Option<EntryId>,
        granted: &[EntryId],
    ) {
        let moved = if self.face == Face::Group {
            self.moves(before, gone.as_ref(), new)
        } else {
            self.seat_moves(gone.as_ref(), granted)
        };
        self.remember(step, reason, evidence, gone.as_ref(), new, granted);
        if gone.is_some() || new.is_some() {
            self.view = ViewId(self.view.0 + 1);
        }
        self.emit(step, reason, evidence, moved, granted);
    }

    /// Everybody whose place is another one now.
    fn moves(
        &self,
        before: Vec<(EntryId, Place)>,
        gone: Option<&Entry>,
        new: Option<EntryId>,
    ) -> Vec<Changed> {
        let before: BTreeMap<EntryId, Place> = before.into_iter().collect();
        let left = gone.map(|entry| entry.step(before.get(&entry.id).copied(), None));
        let moved = self.queue.values().zip(1..).filter_map(|(entry, n)| {
            let was = before.get(&entry.id).copied();
            let is = Some(entry.place(Some(n)));
            (was != is).then(|| {
                let metadata = (new == Some(entry.id)).then(|| entry.metadata.clone());
                Changed { metadata, ..entry.step(was, is) }
            })
        });
        left.into_iter().chain(moved).collect()
    }

    /// On a lock-like face only those that took a seat are told (RULES R15).
    fn seat_moves(&self, gone: Option<&Entry>, granted: &[EntryId]) -> Vec<Changed> {
        let waited = Place { ordinal: None, role: Role::Standby, seat: None };
        let left = gone.map(|entry| entry.step(Some(entry.place(None)), None));
        let took = granted
            .iter()
            .filter_map(|id| self.queue.get(id))
            .map(|entry| entry.step(Some(waited), Some(entry.place(None))));
        left.into_iter().chain(took).collect()
    }

    fn emit(
        &mut self,
        step: &mut Step,
        reason: Reason,
        evidence: &str,
        changed: Vec<Changed>,
        granted: &[EntryId],
    ) {
        self.version = Version(self.version.0 + 1);
        let (to, own) = self.audience(granted);
        if to.is_empty() && own.is_empty() {
            return;
        }
        let change = Change {
            group: self.name.clone(),
            face: self.face,
            version: self.version,
            view: self.view,
            at: step.at,
            reason,
            evidence: evidence.to_string(),
            holder_token: self.holder_token(),
            changed,
        };
        step.events.push(Event::Change { to, own, change });
    }

    /// Who is told everything, and who only of its own place.
    fn audience(&self, granted: &[EntryId]) -> (Vec<SessionId>, Vec<SessionId>) {
        if self.face != Face::Group {
            let own = granted.iter().filter_map(|id| self.queue.get(id));
            return (Vec::new(), own.flat_map(|entry| only(entry.session)).collect());
        }
        let (ordinal_only, full): (Vec<&Entry>, Vec<&Entry>) =
            self.queue.values().partition(|entry| entry.kind == MemberKind::OrdinalOnly);
        let to: BTreeSet<SessionId> =
            full.iter().copied().chain(self.observers.values()).map(|entry| entry.session).collect();
        let own: BTreeSet<SessionId> =
            ordinal_only.iter().map(|entry| entry.session).filter(|session| !to.contains(session)).collect();
        (to.into_iter().collect(), own.into_iter().collect())
    }

    fn remember(
        &mut self,
        step: &Step,
        reason: Reason,
        evidence: &str,
        gone: Option<&Entry>,
        new: Option<EntryId>,
        granted: &[EntryId],
    ) {
        let subject =
            gone.or_else(|| new.or_else(|| granted.first().copied()).and_then(|id| self.queue.get(&id)));
        let Some(subject) = subject else { return };
        let past = Past {
            at: step.at,
            index: step.index,
            reason,
            evidence: evidence.to_string(),
            name: subject.name.clone(),
            session: subject.session,
            released: gone.and_then(|entry| entry.seat).map(|seat| seat.token),
            granted: granted
                .iter()
                .filter_map(|id| self.queue.get(id))
                .take(NAMED_MAX)
                .map(Entry::holder)
                .collect(),
        };
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(past);
    }
}

impl Entry {
    fn place(&self, ordinal: Option<u64>) -> Place {
        let role = if self.seat.is_some() { Role::Active } else { Role::Standby };
        Place { ordinal: ordinal.map(Ordinal), role, seat: self.seat }
    }

    fn step(&self, before: Option<Place>, after: Option<Place>) -> Changed {
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

    pub(super) fn holder(&self) -> Holder {
        Holder {
            name: self.name.clone(),
            session: self.session,
            entry: self.id,
            seat: self.seat.expect("a holder has a seat"),
        }
    }
}
