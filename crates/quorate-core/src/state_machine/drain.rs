//! How a seat is asked for while its holder lives: transfer, preemption, fewer seats, a hold too long, a
//! deleted group. All of them ask; none of them takes (RULES R11).
//!
//! Rule: the holder is asked to stop and the next is told to prepare; the seat moves when the holder says that
//! it has stopped, or when its lease ends; without its word the request fails at the end of its time.

use super::entry::{About, Drain, Entry};
use super::group::Group;
use super::task::{Hand, TaskKind};
use super::{AskedFor, Face, Numbering, Preempt, Reason, Refusal};
use crate::id::{EntryId, SessionId};
use crate::time::Span;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// A drain takes at most this part of the holder's lease (RULES R7).
const DRAIN_PART: u64 = 3;

/// Who asks for a seat, and how.
pub(super) struct Ask<'a> {
    to: Option<EntryId>,
    why: &'a str,
    /// How long the holder may take; none: it is asked until it stops.
    within: Option<Span>,
    force: bool,
}

impl Group {
    /// Asks the holder of the lowest seat to stop in favour of a waiting member.
    pub(super) fn transfer(
        &mut self,
        hand: &mut Hand<'_>,
        to: &str,
        drain: Span,
        force: bool,
    ) -> Result<SessionId, Refusal> {
        let refuse = |why: &str| Refusal::NoTransfer { group: self.name.clone(), why: why.to_string() };
        // A name need not be unique; a place is: `#12`.
        let place = to.strip_prefix('#').and_then(|place| place.parse().ok()).map(EntryId);
        let is_target = |entry: &&Entry| entry.name == to || Some(entry.id) == place;
        let target = self.waiting.values().filter_map(|id| self.queue.get(id)).find(is_target);
        let Some(target) = target else {
            let seated = self.holders().any(|entry| entry.name == to);
            return Err(refuse(&match seated {
                true => format!("{to} acts already"),
                false => format!("no member named {to} waits for a seat"),
            }));
        };
        let Some(holder) = self.holders().next() else {
            return Err(refuse("nobody acts, so there is no seat to move"));
        };
        if holder.drain.is_some() {
            return Err(refuse(&format!("{} was asked to stop already", holder.name)));
        }
        let max = Span::from_millis(holder.lease.as_millis() / DRAIN_PART);
        if drain > max {
            let what = "a drain (a third of the holder's lease)".into();
            return Err(Refusal::TooLong { what, max, asked: drain });
        }
        if let Some(why) = self.taken_back(target, holder, force) {
            return Err(refuse(&why));
        }
        let (from, session, target) = (holder.id, holder.session, target.id);
        let why = format!("a transfer to {to}");
        self.ask(hand, from, &Ask { to: Some(target), why: &why, within: Some(drain), force });
        Ok(session)
    }

    /// Why a seat would not stay with a member: the policy lets the heavier take it back at once. The holder
    /// goes back into the queue when it stops; one that is forced may be gone by then, and does not count.
    fn taken_back(&self, target: &Entry, holder: &Entry, force: bool) -> Option<String> {
        let undoes = self.policy.preempt == Some(Preempt::OnWeight) && self.by_weight();
        if !undoes {
            return None;
        }
        let here =
            self.queue.values().filter(|entry| entry.away.is_none() && !(force && entry.id == holder.id));
        let heavier: Vec<&Entry> = here.filter(|entry| entry.weight > target.weight).collect();
        let (to, weight) = (&target.name, target.weight);
        let first = heavier.iter().min_by_key(|entry| entry.key(true))?;
        (heavier.len() >= self.policy.seats() as usize).then(|| {
            format!(
                "with preempt = on-weight {to} would be asked to stop at once, since {} is heavier \
                 ({} to {weight})",
                first.name, first.weight
            )
        })
    }

    /// A heavier member makes a lighter holder stop (policy `preempt`).
    pub(super) fn preempt(&mut self, hand: &mut Hand<'_>) {
        if self.policy.preempt != Some(Preempt::OnWeight) || !self.by_weight() {
            return;
        }
        let heaviest = self.waiting.values().next().and_then(|id| self.queue.get(id));
        let Some(comer) = heaviest else { return };
        let lightest = self.holders().filter(|entry| entry.drain.is_none()).min_by_key(|e| e.weight);
        let Some(holder) = lightest.filter(|holder| holder.weight < comer.weight) else { return };
        let asked = self.holders().any(|e| e.drain.as_ref().is_some_and(|d| d.to == Some(comer.id)));
        if asked {
            return;
        }
        let why = format!("{} is heavier ({} to {})", comer.name, comer.weight, holder.weight);
        let within = Span::from_millis(holder.lease.as_millis() / DRAIN_PART);
        let (from, to) = (holder.id, Some(comer.id));
        self.ask(hand, from, &Ask { to, why: &why, within: Some(within), force: false });
    }

    /// States another number of seats. More are filled at once; holders of those that go are asked to stop.
    pub(super) fn set_seats(&mut self, hand: &mut Hand<'_>, seats: u32) {
        self.policy.seats = Some(seats);
        self.shrink();
        // A seat that rests and is not there any more comes free for nobody.
        hand.step.tightened = true;
        self.settle(hand, Reason::Seats, "more seats were stated");
        self.ask_standing(hand);
    }

    /// Why a holder is to stop, whoever else wants its seat: it outlasts a drain that came to nothing.
    pub(super) fn standing(&self, entry: &Entry) -> Option<AskedFor> {
        let seat = entry.seat?;
        let held_too_long = entry.terms.max_hold.is_some() && entry.hold.is_none();
        match () {
            () if self.ending => Some(AskedFor::Delete),
            () if seat.no.0 >= self.policy.seats() => Some(AskedFor::FewerSeats),
            () if held_too_long => Some(AskedFor::MaxHold),
            () => None,
        }
    }

    /// Asks everybody to stop for whom there is a standing reason, and who was not asked yet.
    pub(super) fn ask_standing(&mut self, hand: &mut Hand<'_>) {
        let unasked = self.holders().filter(|entry| entry.drain.is_none());
        let asked: Vec<(EntryId, String)> = unasked
            .filter_map(|entry| {
                let why = match self.standing(entry)? {
                    AskedFor::FewerSeats => format!("the seats became {}", self.policy.seats()),
                    AskedFor::MaxHold => {
                        format!("it has held for {}, as long as it said", entry.terms.max_hold?)
                    }
                    _ => "the group is being deleted".to_string(),
                };
                Some((entry.id, why))
            })
            .collect();
        for (id, why) in asked {
            self.ask(hand, id, &Ask { to: None, why: &why, within: None, force: false });
        }
    }

    /// Asks one holder to stop, and tells it and the next.
    fn ask(&mut self, hand: &mut Hand<'_>, from: EntryId, ask: &Ask<'_>) {
        let before = self.places();
        let task = ask.within.map(|span| hand.arm(&self.name, TaskKind::Drain(from), span));
        let since = hand.at();
        let Some(entry) = self.queue.get_mut(&from) else { return };
        let why = ask.why.to_string();
        entry.drain = Some(Drain { to: ask.to, why, since, task, force: ask.force });
        let within = ask.within.map(|span| format!(" within {span}")).unwrap_or_default();
        let evidence = format!("{}: it is asked to stop{within}", ask.why);
        self.changed(hand, About::of(Reason::Draining, &evidence, from), &before, &[]);
    }

    /// The holder says that it has stopped: its seat moves, its place stays. If the seat is there for others and
    /// nobody was named for it, the place is now the last, at `tail`: else it would act again at once.
    pub(super) fn stopped(&mut self, hand: &mut Hand<'_>, id: EntryId, tail: EntryId) {
        let Some(entry) = self.queue.get(&id) else { return };
        let Some(seat) = entry.seat else { return };
        let drain = entry.drain.clone();
        let first = self.waiting.values().next().copied();
        let before = self.places();
        self.unseat(hand, id);
        match drain.as_ref().and_then(|drain| drain.to) {
            Some(to) => self.put_first(to),
            None if seat.no.0 < self.policy.seats() => {
                self.put_last(id, tail);
                // Also where the weights would give it back.
                first.into_iter().for_each(|first| self.put_first(first));
            }
            None => {}
        }
        let by_weight = self.by_weight();
        if let Some(entry) = self.queue.get(&id) {
            self.waiting.insert(entry.key(by_weight), id);
            hand.step.tightened = true;
        }
        let why = drain.map_or_else(|| "by its own word".to_string(), |drain| drain.why);
        let evidence = format!("{why}: it has stopped");
        let granted = self.fill_seats(hand);
        self.changed(hand, About::of(Reason::Transferred, &evidence, id), &before, &granted);
        self.preempt(hand);
    }

    fn put_last(&mut self, id: EntryId, tail: EntryId) {
        if let Some(entry) = self.queue.get_mut(&id) {
            (entry.turn, entry.senior) = (0, tail);
        }
    }

    /// The next seat is this member's, if it waits.
    pub(super) fn put_first(&mut self, id: EntryId) {
        let by_weight = self.by_weight();
        let first = self.queue.values().map(|entry| entry.turn).min().unwrap_or(0) - 1;
        if let Some(entry) = self.queue.get_mut(&id)
            && self.waiting.remove(&entry.key(by_weight)).is_some()
        {
            entry.turn = first;
            self.waiting.insert(entry.key(by_weight), id);
        }
    }

    /// A member that a seat was asked for needs it no more: its holder holds on, and is told so.
    pub(super) fn forget_target(&mut self, hand: &mut Hand<'_>, id: EntryId, why: &str) {
        // Only one that acts was asked, and those are few however many wait (RULES R15).
        let asked = self.holders().filter(|e| e.drain.as_ref().is_some_and(|d| d.to == Some(id)));
        let asked: Vec<EntryId> = asked.map(|entry| entry.id).collect();
        for holder in asked {
            let Some(drain) = self.queue.get_mut(&holder).and_then(|entry| entry.drain.take()) else {
                continue;
            };
            hand.disarm(drain.task);
            // In a group the change that this is part of shows everybody's place.
            if self.face != Face::Group {
                let evidence = format!("{}, which {why}: nobody asks for its seat any more", drain.why);
                let before = self.places();
                self.changed(hand, About::of(Reason::NotStopped, &evidence, holder), &before, &[]);
            }
        }
        self.ask_standing(hand);
    }

    /// A task of this queue is due. Gives back the session whose renewals a forced transfer stops.
    pub(super) fn due(&mut self, hand: &mut Hand<'_>, kind: TaskKind) -> Due {
        match kind {
            TaskKind::Rest(no) => {
                // A seat that rests is a way out of a deadlock for whom it is coming free.
                hand.step.tightened |= self.resting.remove(&no).is_some();
                self.settle(hand, Reason::Rested, "the pause after its last holder is over");
                self.preempt(hand);
                self.note_idle(hand);
            }
            TaskKind::Grace(id) => {
                self.leave(hand, id, Reason::GraceOver, "it did not come back within the grace");
                return Due::Gone(id);
            }
            TaskKind::Drain(id) => return self.drained(hand, id),
            TaskKind::Hold(id) => self.held_too_long(hand, id),
            TaskKind::Progress(id) => self.stalled(hand, id),
        }
        Due::Done
    }

    /// The time of a drain is over without the holder's word.
    fn drained(&mut self, hand: &mut Hand<'_>, id: EntryId) -> Due {
        let before = self.places();
        let Some(entry) = self.queue.get_mut(&id) else { return Due::Done };
        let Some(drain) = entry.drain.take() else { return Due::Done };
        let session = entry.session;
        if drain.force {
            let why = format!("{} was forced, and it did not stop in time", drain.why);
            entry.drain = Some(Drain { task: None, ..drain });
            return Due::Close(session, why);
        }
        let evidence = format!("{}: it did not say that it has stopped, so it holds on", drain.why);
        self.changed(hand, About::of(Reason::NotStopped, &evidence, id), &before, &[]);
        self.ask_standing(hand);
        Due::Done
    }

    fn held_too_long(&mut self, hand: &mut Hand<'_>, id: EntryId) {
        let Some(entry) = self.queue.get_mut(&id) else { return };
        entry.hold = None;
        self.ask_standing(hand);
    }

    fn stalled(&mut self, hand: &mut Hand<'_>, id: EntryId) {
        let before = self.places();
        let at = hand.at();
        let Some(entry) = self.queue.get_mut(&id) else { return };
        entry.beat = None;
        entry.stalled = Some(at);
        let span = entry.terms.progress.unwrap_or_default();
        let evidence = format!("its work gave no sign for {span}");
        self.changed(hand, About::of(Reason::Stalled, &evidence, id), &before, &[]);
    }

    /// The holder's work goes on.
    pub(super) fn progress(&mut self, hand: &mut Hand<'_>, id: EntryId) {
        let before = self.places();
        let Some(entry) = self.queue.get_mut(&id).filter(|entry| entry.seat.is_some()) else { return };
        let Some(span) = entry.terms.progress else { return };
        hand.disarm(entry.beat.take());
        let was_stalled = entry.stalled.take().is_some();
        entry.beat = Some(hand.arm(&self.name, TaskKind::Progress(id), span));
        if was_stalled {
            self.changed(hand, About::of(Reason::Progress, "its work goes on", id), &before, &[]);
        }
    }

    /// Who is next in line and needs nothing but time: the target of a drain, or the first after a pause.
    pub(super) fn next_in_line(&self) -> Vec<EntryId> {
        let targets = self.holders().filter_map(|entry| entry.drain.as_ref()?.to);
        let resting = (!self.resting.is_empty()).then(|| self.waiting.values().next().copied()).flatten();
        targets.chain(resting).collect()
    }

    /// A member's number, where numbers are kept.
    pub(super) fn number(&self, entry: &Entry) -> Option<u64> {
        match self.policy.numbering {
            Some(Numbering::Stable | Numbering::MinimalMove) => Some(entry.number),
            _ => None,
        }
    }
}

/// What a task came to, beyond its queue.
pub(super) enum Due {
    /// Nothing more.
    Done,
    /// A place is gone.
    Gone(EntryId),
    /// A session is to be renewed no more, and why.
    Close(SessionId, alloc::string::String),
}
