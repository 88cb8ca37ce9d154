//! Who holds, who waits and for whom, and what happened last: read from the same functions that decide.

use super::entry::Entry;
use super::group::Group;
use super::{Deadlock, Face, MemberKind, Mode, OnDisconnect, PolicyWish, Reason, Seat, StateMachine, Wall};
use crate::id::{
    EntryId, Generation, LogIndex, Name, Reign, SeatNo, SessionId, TaskId, Token, Version, ViewId,
};
use crate::time::Span;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// What a grant waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blocker {
    /// Others asked earlier.
    Behind {
        /// The name of the first of them.
        next: String,
        /// Its session.
        session: SessionId,
        /// How many are ahead and wait too.
        ahead: u64,
    },
    /// The place is gone.
    Gone,
    /// Shared holders are inside, and this one would be alone.
    SharedHeld {
        /// How many there are.
        count: u64,
        /// The holders, at most four of them.
        holders: Vec<Holder>,
    },
    /// A seat is free, and rests between two holders (policy `handover`).
    Resting {
        /// Which seat.
        seat: SeatNo,
        /// Since when, by the proposer's wall clock.
        since: Wall,
        /// For how long.
        delay: Span,
    },
    /// A barrier waits for its parties.
    Parties {
        /// How many are there.
        present: u64,
        /// How many it takes.
        parties: u64,
    },
    /// Every seat is held.
    SeatsHeld {
        /// How many seats there are.
        seats: u32,
        /// The holders, at most four of them.
        holders: Vec<Holder>,
    },
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Behind { next, session, ahead: 1 } => {
                write!(f, "one is ahead in the queue: {next} (session {session})")
            }
            Self::Behind { next, session, ahead } => {
                write!(f, "{ahead} are ahead in the queue, the first is {next} (session {session})")
            }
            Self::Gone => write!(f, "it is not in the queue any more"),
            Self::SharedHeld { count, holders } => {
                write!(f, "{count} share it: ")?;
                list(f, holders)?;
                more(f, *count, holders)
            }
            Self::Resting { seat, delay, .. } => {
                write!(f, "seat {seat} is free and rests for {delay} after its last holder")
            }
            Self::Parties { present, parties } => {
                write!(f, "{present} of {parties} parties are there")
            }
            Self::SeatsHeld { seats: 1, holders } => {
                write!(f, "the seat is held by ")?;
                list(f, holders)
            }
            Self::SeatsHeld { seats, holders } => {
                write!(f, "all {seats} seats are held, by ")?;
                list(f, holders)?;
                more(f, u64::from(*seats), holders)
            }
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, holders: &[Holder]) -> fmt::Result {
    for (n, holder) in holders.iter().enumerate() {
        let comma = if n == 0 { "" } else { ", " };
        write!(f, "{comma}{} (session {}, token {})", holder.name, holder.session, holder.seat.token)?;
        if let Some(why) = &holder.draining {
            write!(f, ", which was asked to stop: {why}")?;
        }
        if holder.stalled_since.is_some() {
            write!(f, ", whose work has stalled")?;
        }
    }
    Ok(())
}

fn more(f: &mut fmt::Formatter<'_>, all: u64, named: &[Holder]) -> fmt::Result {
    match all.saturating_sub(named.len() as u64) {
        0 => Ok(()),
        more => write!(f, " and {more} more"),
    }
}

/// One that acts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its name.
    pub name: String,
    /// Its session.
    pub session: SessionId,
    /// Its place in the queue, which a release names.
    pub entry: EntryId,
    /// Its seat and token.
    pub seat: Seat,
    /// It was asked to stop, and why.
    #[serde(default)]
    pub draining: Option<String>,
    /// Its work gave no sign since, by the proposer's wall clock.
    #[serde(default)]
    pub stalled_since: Option<Wall>,
}

/// Why a holder was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AskedFor {
    /// An operator moves its seat to another.
    Transfer,
    /// A heavier member came.
    Preempt,
    /// It has held as long as it said.
    MaxHold,
    /// The group has fewer seats now.
    FewerSeats,
    /// The group is being deleted.
    Delete,
}

/// A holder was asked to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// What for.
    pub what: AskedFor,
    /// In words.
    pub why: String,
    /// Since when, by the proposer's wall clock.
    pub since: Wall,
    /// Who is to act then: its name and session.
    pub to: Option<(String, SessionId)>,
    /// The task that ends its time to stop; none: it is asked until it stops.
    pub task: Option<TaskId>,
    /// At the end of its time its renewals are stopped.
    pub force: bool,
}

/// What a holder said it would do, and what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duty {
    /// Whose.
    pub holder: Holder,
    /// It shares (RULES R13).
    pub mode: Mode,
    /// It was asked to stop.
    pub asked: Option<Asked>,
    /// How long it said that it would hold, and the task that ends that.
    pub max_hold: Option<(Span, Option<TaskId>)>,
    /// How often it said that its work would give a sign (RULES R20).
    pub progress: Option<Span>,
}

/// A seat that rests between two holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resting {
    /// Which.
    pub seat: SeatNo,
    /// Since when, by the proposer's wall clock.
    pub since: Wall,
    /// The task that ends it.
    pub task: TaskId,
}

/// A place that is kept for a member that is away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Away {
    /// Its name, by which it is known when it comes back.
    pub name: String,
    /// The session that it had.
    pub session: SessionId,
    /// Its place in the queue.
    pub entry: EntryId,
    /// The task that gives the place up.
    pub task: TaskId,
}

/// One that waits, and for whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Its name.
    pub name: String,
    /// Its session.
    pub session: SessionId,
    /// Its place in the queue.
    pub entry: EntryId,
    /// Its turn, from 1, those that act counted: seats are given in this order. Not its ordinal, which is a
    /// label and may be kept or filled otherwise (policy `numbering`, RULES R14).
    pub position: u64,
    /// Since when, by the proposer's wall clock.
    pub since: Wall,
    /// What it waits for.
    pub blocker: Blocker,
    /// It would share (RULES R13).
    pub mode: Mode,
    /// The first that is ahead and waits too: its place, and whether it would be alone.
    pub ahead: Option<(EntryId, Mode)>,
}

/// A change that a name remembers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Past {
    /// When, by the proposer's wall clock.
    pub at: Wall,
    /// Where in the log.
    pub index: LogIndex,
    /// Why.
    pub reason: Reason,
    /// Who reported what.
    pub evidence: String,
    /// Whom it was about.
    pub name: String,
    /// Its session.
    pub session: SessionId,
    /// The token that was given up.
    pub released: Option<Token>,
    /// Who got a seat by it, at most four.
    pub granted: Vec<Holder>,
}

/// A name in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSummary {
    /// The name.
    pub name: Name,
    /// Its face.
    pub face: Face,
    /// Its view.
    pub view: ViewId,
    /// How many seats it has.
    pub seats: u32,
    /// How many are in the queue.
    pub members: u64,
    /// How many of them wait.
    pub waiting: u64,
    /// How many look on.
    pub observers: u64,
    /// The first holder.
    pub holder: Option<Holder>,
    /// It stays when nobody is in it.
    pub kept: bool,
}

/// A name with everything that can be said of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupView {
    /// What a list shows.
    pub summary: GroupSummary,
    /// The index at which it was made.
    pub created: LogIndex,
    /// How much happened to it.
    pub version: Version,
    /// What was stated about its policy.
    pub policy: PolicyWish,
    /// Those that act, lowest seat first.
    pub holders: Vec<Holder>,
    /// What each of them said it would do and was asked, in the same order.
    pub duties: Vec<Duty>,
    /// The seats that rest between two holders.
    pub resting: Vec<Resting>,
    /// The places that are kept for members that are away.
    pub away: Vec<Away>,
    /// It is being deleted.
    pub ending: bool,
    /// What keeps its seats from ever being free, or some that wait from ever having one (RULES R19).
    pub deadlock: Option<Deadlock>,
    /// It keeps everybody out that waits, not only those that are in it or would share.
    pub held_for_ever: bool,
    /// How many of them share (RULES R13).
    pub shared: u64,
    /// Those that wait, in the order in which they will be seated, at most as many as asked.
    pub waiters: Vec<Waiter>,
    /// Everybody in the queue, in the order of their ordinals, at most as many as asked.
    pub members: Vec<super::Member>,
    /// The names and sessions of those that look on.
    pub observers: Vec<(String, SessionId)>,
    /// The last changes, oldest first, at most [`super::HISTORY_MAX`].
    pub history: Vec<Past>,
}

/// A session as operators see it. Its secret stays inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// The session.
    pub session: SessionId,
    /// Whom to show to people.
    pub label: String,
    /// Its newest connection.
    pub generation: Generation,
    /// The length of its lease.
    pub ttl: Span,
    /// What a closed connection means.
    pub on_disconnect: OnDisconnect,
    /// Since when, by the proposer's wall clock.
    pub opened: Wall,
    /// The lease as a new reign would find it: its generation, the reign of its last logged renewal,
    /// and what would be left.
    pub lease: (Generation, Reign, Span),
    /// An operator has asked it to stop, and why.
    pub closing: Option<String>,
    /// Its places: the name, the place, the seat if held, and what it waits for if not.
    pub places: Vec<(Name, EntryId, Option<Seat>, Option<Blocker>)>,
}

impl StateMachine {
    /// Every name, in order of names, from after `start`, at most `max`.
    pub fn group_list(&self, start: Option<&Name>, max: usize) -> Vec<GroupSummary> {
        use core::ops::Bound::{Excluded, Unbounded};
        let from = start.map_or(Unbounded, Excluded);
        self.groups
            .range::<Name, _>((from, Unbounded))
            .filter(|(_, group)| group.kept() || !group.is_empty())
            .take(max)
            .map(|(_, group)| group.summary())
            .collect()
    }

    /// Everything about one name, with at most `max` waiters and members. A name that was left a while
    /// ago is still known by its history.
    pub fn group_view(&self, name: &Name, max: usize) -> Option<GroupView> {
        let group = self.groups.get(name)?;
        let deadlock = self.deadlock_behind(name);
        Some(GroupView {
            summary: group.summary(),
            created: group.created(),
            version: group.version,
            policy: group.policy.clone(),
            holders: group.holders().filter_map(Entry::holder).collect(),
            duties: group.holders().filter_map(|entry| group.duty(entry)).collect(),
            resting: group.resting_seats(),
            away: group.away(),
            ending: group.ending,
            held_for_ever: deadlock.is_some() && self.is_held_for_ever(name),
            deadlock,
            shared: group.shared(),
            waiters: group.waiters(max),
            members: group.member_list().into_iter().take(max).collect(),
            observers: group.observers().map(|e| (e.name.clone(), e.session)).collect(),
            history: group.history().cloned().collect(),
        })
    }

    /// The sessions in order, from after `start`, at most `max`.
    pub fn session_list(&self, start: Option<SessionId>, max: usize) -> Vec<SessionView> {
        use core::ops::Bound::{Excluded, Unbounded};
        let from = start.map_or(Unbounded, Excluded);
        let found = self.sessions.range((from, Unbounded)).take(max);
        found.filter_map(|(id, _)| self.session_view(*id)).collect()
    }

    /// Everything about one session.
    pub fn session_view(&self, id: SessionId) -> Option<SessionView> {
        let session = self.sessions.get(&id)?;
        let places = session.entries.iter().filter_map(|entry| {
            let name = self.places.get(entry)?;
            let group = self.groups.get(name)?;
            let seat = group.place(*entry)?.seat;
            Some((name.clone(), *entry, seat, group.blocked_by(*entry)))
        });
        Some(SessionView {
            session: id,
            label: session.label.clone(),
            generation: session.generation,
            ttl: session.ttl,
            on_disconnect: session.on_disconnect,
            opened: session.opened,
            lease: (session.lease.generation, session.lease.marked, session.lease.remaining),
            closing: session.closing.clone(),
            places: places.collect(),
        })
    }

    /// How many sessions are open and how many names are known.
    pub fn counts(&self) -> (usize, usize) {
        (self.sessions.len(), self.groups.len() - self.idle.len())
    }
}

impl Group {
    fn summary(&self) -> GroupSummary {
        let members = self.queue.len() as u64;
        GroupSummary {
            name: self.name.clone(),
            face: self.face,
            view: self.view,
            seats: self.policy.seats(),
            members,
            waiting: self.waiting.len() as u64,
            observers: self.observers().count() as u64,
            holder: self.holders().next().and_then(Entry::holder),
            kept: self.kept(),
        }
    }

    /// Everybody who is here in the order of their turns: those that act, then whom the next seat was
    /// promised, then the others as seats will be given to them, whatever their numbers are.
    fn turns(&self) -> Vec<&Entry> {
        let mut turns = self.in_line();
        // A place that is kept delays nobody.
        turns.retain(|entry| entry.away.is_none());
        if let Some(first) = self.promised()
            && let Some(place) = turns.iter().position(|entry| entry.id == first.id)
        {
            let acting = turns.iter().take_while(|entry| entry.seat.is_some()).count();
            turns[acting..=place].rotate_right(1);
        }
        turns
    }

    fn waiters(&self, max: usize) -> Vec<Waiter> {
        let turns = self.turns();
        let first = turns.iter().copied().find(|entry| self.waits(entry.id));
        let waiting = turns.iter().zip(1..).filter_map(|(entry, position)| {
            let blocker = self.blocked_by(entry.id)?;
            let is_behind = matches!(blocker, Blocker::Behind { .. });
            Some(Waiter {
                name: entry.name.to_string(),
                session: entry.session,
                entry: entry.id,
                position,
                since: entry.joined,
                blocker,
                mode: entry.mode,
                ahead: first.filter(|_| is_behind).map(|first| (first.id, first.mode)),
            })
        });
        waiting.take(max).collect()
    }

    /// What a holder said it would do and was asked.
    fn duty(&self, entry: &Entry) -> Option<Duty> {
        let holder = entry.holder()?;
        let asked = entry.drain.as_ref().map(|drain| Asked {
            what: self.asked_for(entry, drain.to.is_some(), &drain.why),
            why: drain.why.clone(),
            since: drain.since,
            to: drain.to.and_then(|to| self.queue.get(&to)).map(|to| (to.name.clone(), to.session)),
            task: drain.task,
            force: drain.force,
        });
        Some(Duty {
            holder,
            mode: entry.mode,
            asked,
            max_hold: entry.terms.max_hold.map(|span| (span, entry.hold)),
            progress: entry.terms.progress,
        })
    }

    fn asked_for(&self, entry: &Entry, in_favour: bool, why: &str) -> AskedFor {
        match in_favour {
            true if why.starts_with("a transfer") => AskedFor::Transfer,
            true => AskedFor::Preempt,
            false => self.standing(entry).unwrap_or(AskedFor::MaxHold),
        }
    }

    fn resting_seats(&self) -> Vec<Resting> {
        let resting = self.resting.iter();
        resting.map(|(seat, rest)| Resting { seat: *seat, since: rest.since, task: rest.task }).collect()
    }

    fn away(&self) -> Vec<Away> {
        let away = |entry: &Entry| {
            let (name, session, entry, task) = (entry.name.clone(), entry.session, entry.id, entry.away?);
            Some(Away { name, session, entry, task })
        };
        self.queue.values().filter_map(away).collect()
    }
}

impl GroupView {
    /// How many of the members are shown with their metadata only to some.
    pub fn ordinal_only(&self) -> usize {
        self.members.iter().filter(|m| m.kind == MemberKind::OrdinalOnly).count()
    }
}
