//! Who gets a seat, and what each other waits for: the decisions of the queue.

use super::entry::Entry;
use super::explain::Blocker;
use super::group::{Group, NAMED_MAX};
use super::task::{Hand, TaskKind};
use super::{Face, Handover, Mode, Seat};
use crate::id::{EntryId, SeatNo, TaskId, Token};
use crate::time::Span;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Those that hold together, under one token (RULES R13).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Phase {
    token: Token,
    holders: BTreeSet<EntryId>,
}

impl Group {
    /// What a waiting member can have now, or what it waits for. This decides every grant, and `explain`
    /// prints what it returns.
    fn grantable(&self, id: EntryId) -> Result<SeatNo, Blocker> {
        let Some(entry) = self.queue.get(&id) else { return Err(Blocker::Gone) };
        if self.face == Face::Barrier {
            return self.barrier();
        }
        self.first_in_line(entry)?;
        self.seat_for(entry)
    }

    /// The seat that one gets before whom nobody is, or what is in the way.
    fn seat_for(&self, entry: &Entry) -> Result<SeatNo, Blocker> {
        match entry.mode {
            Mode::Shared => self.shared_seat(),
            Mode::Exclusive => self.free_seat(),
        }
    }

    /// Nobody is ahead, or who is.
    fn first_in_line(&self, entry: &Entry) -> Result<(), Blocker> {
        let key = entry.key(self.by_weight());
        let Some((_, first)) = self.waiting.range(..key).next() else { return Ok(()) };
        let next = &self.queue[first];
        Err(Blocker::Behind {
            next: next.name.clone(),
            session: next.session,
            ahead: self.waiting.range(..key).count() as u64,
        })
    }

    fn shared_seat(&self) -> Result<SeatNo, Blocker> {
        let held = self.seats.iter().flatten().count() as u32;
        match (held, self.resting.keys().next()) {
            (0, None) => Ok(SeatNo(0)),
            (0, Some(no)) => self.rested(*no).map(|()| SeatNo(0)),
            (held, _) => Err(self.held(held)),
        }
    }

    fn free_seat(&self) -> Result<SeatNo, Blocker> {
        if let Some(phase) = &self.phase {
            let holders = phase.holders.iter().filter_map(|id| self.queue.get(id)?.holder());
            return Err(Blocker::SharedHeld {
                count: phase.holders.len() as u64,
                holders: holders.take(NAMED_MAX).collect(),
            });
        }
        let seats = self.policy.seats() as usize;
        let mut free = (0..seats).filter(|no| self.seats.get(*no).is_none_or(Option::is_none));
        let free: Vec<SeatNo> = free.by_ref().map(|no| SeatNo(no as u32)).collect();
        match free.iter().find(|no| !self.resting.contains_key(no)) {
            Some(no) => Ok(*no),
            None => match free.first() {
                Some(no) => Err(self.rested(*no).expect_err("it rests")),
                None => Err(self.held(self.policy.seats())),
            },
        }
    }

    /// A pause that has begun goes on, whatever is stated about the policy since.
    fn rested(&self, no: SeatNo) -> Result<(), Blocker> {
        match self.resting.get(&no) {
            Some(rest) => Err(Blocker::Resting { seat: no, since: rest.since, delay: rest.delay }),
            None => Ok(()),
        }
    }

    /// So many seats are in the way, and all of them are held.
    fn held(&self, seats: u32) -> Blocker {
        Blocker::SeatsHeld {
            seats,
            holders: self.holders().filter_map(Entry::holder).take(NAMED_MAX).collect(),
        }
    }

    /// A barrier lets all its parties through together.
    fn barrier(&self) -> Result<SeatNo, Blocker> {
        self.parties(self.waiting.len() as u64)
    }

    fn parties(&self, present: u64) -> Result<SeatNo, Blocker> {
        let parties = u64::from(self.policy.seats());
        if present < parties { Err(Blocker::Parties { present, parties }) } else { Ok(SeatNo(0)) }
    }

    /// Whether one that comes now would have its seat at once; by the same decisions, else what is in the way.
    pub(super) fn grantable_at_once(&self, mode: Mode) -> Result<(), Option<Blocker>> {
        let asked = match (self.face, self.waiting.is_empty(), mode) {
            (Face::Barrier, ..) => self.parties(self.waiting.len() as u64 + 1),
            (_, false, _) => return Err(None),
            (_, true, Mode::Shared) => self.shared_seat(),
            (_, true, Mode::Exclusive) => self.free_seat(),
        };
        asked.map(|_| ()).map_err(Some)
    }

    /// Whether a member is in the queue, here, without a seat.
    pub(super) fn waits(&self, id: EntryId) -> bool {
        self.queue.get(&id).is_some_and(|entry| entry.seat.is_none() && entry.away.is_none())
    }

    /// What a member waits for; nothing if it has its seat or is away.
    pub(super) fn blocked_by(&self, id: EntryId) -> Option<Blocker> {
        let entry = self.queue.get(&id).filter(|_| self.waits(id))?;
        match self.promised() {
            Some(first) if first.id == id => self.seat_for(entry).err(),
            Some(first) => Some(self.behind_promised(first, entry)),
            None => self.grantable(id).err(),
        }
    }

    /// Who has the next seat whatever its place in the order: the one seat's holder was asked to stop for it.
    /// With several that act on seats of their own it depends on who stops first, so nobody has.
    pub(super) fn promised(&self) -> Option<&Entry> {
        if self.face == Face::Barrier || self.policy.seats() > 1 || self.seats.iter().flatten().count() > 1 {
            return None;
        }
        let targets = self.holders().filter_map(|holder| holder.drain.as_ref()?.to);
        let mut waiting = targets.filter(|to| self.waits(*to)).filter_map(|to| self.queue.get(&to));
        let only = waiting.next().filter(|_| waiting.next().is_none())?;
        self.seat_for(only).is_err().then_some(only)
    }

    /// The wait of one that is not promised the next seat, while another is.
    fn behind_promised(&self, first: &Entry, entry: &Entry) -> Blocker {
        let key = entry.key(self.by_weight());
        let others = self.waiting.range(..key).filter(|(_, id)| **id != first.id).count() as u64;
        Blocker::Behind { next: first.name.clone(), session: first.session, ahead: others + 1 }
    }

    /// Gives seats to the first in the queue, for as long as nothing holds a grant back.
    pub(super) fn fill_seats(&mut self, hand: &mut Hand<'_>) -> Vec<EntryId> {
        let mut granted = Vec::new();
        while let Some(next) = self.waiting.values().next().copied() {
            let Ok(no) = self.grantable(next) else { break };
            if self.face == Face::Barrier {
                self.trip(hand, &mut granted);
            } else {
                self.grant(hand, next, no);
                granted.push(next);
                self.forget_target(hand, next, "acts on another seat");
            }
        }
        granted
    }

    fn grant(&mut self, hand: &mut Hand<'_>, id: EntryId, no: SeatNo) {
        let mode = self.queue[&id].mode;
        let token = match mode {
            Mode::Exclusive => hand.token(),
            Mode::Shared => self.join_phase(hand, id),
        };
        if mode == Mode::Exclusive {
            self.seats[no.0 as usize] = Some(id);
        }
        self.seat(hand, id, Seat { no, token, since: hand.at() });
    }

    /// The first shared entry after an exclusive one opens a phase; the others carry its token (RULES R13).
    fn join_phase(&mut self, hand: &mut Hand<'_>, id: EntryId) -> Token {
        let phase = self.phase.get_or_insert_with(|| Phase { token: hand.token(), holders: BTreeSet::new() });
        phase.holders.insert(id);
        phase.token
    }

    /// All that wait at a barrier go through together, under one token.
    fn trip(&mut self, hand: &mut Hand<'_>, granted: &mut Vec<EntryId>) {
        let token = hand.token();
        let parties = self.policy.seats() as usize;
        let through: Vec<EntryId> = self.waiting.values().take(parties).copied().collect();
        for (no, id) in through.into_iter().enumerate() {
            self.seat(hand, id, Seat { no: SeatNo(no as u32), token, since: hand.at() });
            granted.push(id);
        }
    }

    fn seat(&mut self, hand: &mut Hand<'_>, id: EntryId, seat: Seat) {
        let by_weight = self.by_weight();
        let Some(entry) = self.queue.get_mut(&id) else { return };
        entry.seat = Some(seat);
        hand.step.granted.push(entry.session);
        entry.stalled = None;
        entry.hold = entry.terms.max_hold.map(|span| hand.arm(&self.name, TaskKind::Hold(id), span));
        entry.beat = entry.terms.progress.map(|span| hand.arm(&self.name, TaskKind::Progress(id), span));
        self.waiting.remove(&entry.key(by_weight));
    }

    /// Takes a seat from a member that has stopped or whose lease has ended (RULES R11), and lets it rest.
    pub(super) fn unseat(&mut self, hand: &mut Hand<'_>, id: EntryId) -> Option<Seat> {
        let entry = self.queue.get_mut(&id)?;
        let seat = entry.seat.take()?;
        let tasks = [entry.hold.take(), entry.beat.take(), entry.drain.take().and_then(|drain| drain.task)];
        entry.stalled = None;
        // The front of the queue was for this one turn.
        entry.turn = 0;
        for task in tasks {
            hand.disarm(task);
        }
        if let Some(phase) = &mut self.phase {
            phase.holders.remove(&id);
            if phase.holders.is_empty() {
                self.phase = None;
                self.rest(hand, SeatNo(0));
            }
        }
        if self.seats.get(seat.no.0 as usize) == Some(&Some(id)) {
            self.seats[seat.no.0 as usize] = None;
            self.rest(hand, seat.no);
        }
        self.shrink();
        // Who waits for the others that act waits for fewer than before.
        hand.step.tightened |= self.holders().next().is_some();
        Some(seat)
    }

    fn rest(&mut self, hand: &mut Hand<'_>, no: SeatNo) {
        if let Some(Handover::Delay { delay }) = self.policy.handover {
            let task = hand.arm(&self.name, TaskKind::Rest(no), delay);
            self.resting.insert(no, Rest { task, since: hand.at(), delay });
        }
    }

    /// Seats beyond the policy go when they are free.
    pub(super) fn shrink(&mut self) {
        let seats = self.policy.seats() as usize;
        while self.seats.len() > seats && self.seats.last() == Some(&None) {
            self.seats.pop();
        }
        if self.seats.len() < seats {
            self.seats.resize(seats, None);
        }
    }

    /// How many share.
    pub(super) fn shared(&self) -> u64 {
        self.phase.as_ref().map_or(0, |phase| phase.holders.len() as u64)
    }

    /// Those that act: on seats, lowest first, then those that share.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Entry> {
        let shared = self.phase.iter().flat_map(|phase| &phase.holders);
        let seated = self.seats.iter().flatten().chain(shared).filter_map(|id| self.queue.get(id));
        // A walk over the queue, which may be long: only where there are no seats to look at.
        let through = (self.face == Face::Barrier).then(|| self.queue.values());
        seated.chain(through.into_iter().flatten().filter(|entry| entry.seat.is_some()))
    }
}

/// A seat between two holders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rest {
    pub(super) task: TaskId,
    pub(super) since: crate::time::Wall,
    /// For how long, as the policy said when it began.
    #[serde(default)]
    pub(super) delay: Span,
}
