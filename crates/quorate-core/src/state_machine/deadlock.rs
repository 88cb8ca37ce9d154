//! Waits that would never end (RULES R19).
//!
//! Problem: sessions that each hold what another waits for wait for ever.
//! Rule: a session can go on if it waits for nothing, or if for each of its waits some holder can go on; the
//! others are deadlocked. With several seats that is a knot, not a cycle (Holt 1972; Chandy, Misra and Haas
//! 1983).
//! One that would be alone waits for all that share, and one that would share for all that are alone: each of
//! them counts as a wait of its own, so that one deadlocked reader is enough.
//! Needs: only blocking acquires of lock-like faces count, never standing by in a group. A wait for oneself
//! through another handle counts. A session may act for another (`Op::ActsFor`): what it waits for, that one waits
//! for too, and so on outwards, [`NESTED_MAX`] deep.

use super::entry::Entry;
use super::group::Group;
use super::{Face, Mode, StateMachine};
use crate::id::{EntryId, Name, SessionId};
use crate::time::Wall;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// How deep sessions may act for each other. A command under a lock that runs a command under a lock is two deep;
/// beyond this an inner wait is not counted for the outermost, so a deadlock through it is not seen.
pub const NESTED_MAX: usize = 32;

/// One wait of a deadlock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    /// Who waits.
    pub session: SessionId,
    /// Its name in the queue.
    pub name: String,
    /// Its place.
    pub entry: EntryId,
    /// For what.
    pub group: Name,
    /// Who holds it, and is deadlocked too.
    pub held_by: Vec<SessionId>,
    /// Since when it waits, by the proposer's wall clock.
    #[serde(default)]
    pub since: Wall,
    /// The session that has the place, if it is another one, which acts for this one.
    #[serde(default)]
    pub through: Option<SessionId>,
}

impl Edge {
    /// The session that has the place: the one that can give the wait up.
    pub fn owner(&self) -> SessionId {
        self.through.unwrap_or(self.session)
    }
}

/// How a deadlock is tied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tie {
    /// A session waits for what it holds itself, through another handle.
    Oneself,
    /// Each waits for one other.
    Cycle,
    /// One waits for several, none of whom can go on.
    Knot,
}

/// A set of waits that never end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlock {
    /// The waits. If each has one holder they are a cycle, else a knot.
    pub waits: Vec<Edge>,
}

impl Deadlock {
    /// The deadlock as a sentence.
    pub fn sentence(&self) -> String {
        let wait = |edge: &Edge| {
            let held: Vec<String> = edge.held_by.iter().map(|id| format!("session {id}")).collect();
            let through = edge.through.map(|inner| format!(" through session {inner}")).unwrap_or_default();
            format!(
                "session {} waits for {}{through}, held by {}",
                edge.session,
                edge.group,
                held.join(" and ")
            )
        };
        self.waits.iter().map(wait).collect::<Vec<_>>().join("; ")
    }

    /// How it is tied.
    pub fn tie(&self) -> Tie {
        let oneself = |edge: &Edge| edge.held_by == [edge.session];
        match self.waits.as_slice() {
            waits if waits.iter().any(|edge| edge.held_by.len() > 1) => Tie::Knot,
            waits if waits.iter().all(oneself) => Tie::Oneself,
            _ => Tie::Cycle,
        }
    }

    /// The newest of its waits: giving it up costs least.
    pub fn newest(&self) -> Option<&Edge> {
        self.waits.iter().max_by_key(|edge| edge.entry)
    }
}

/// How many of those that would share a name are looked at for the deadlock that keeps them out. Beyond it
/// the one of the holder is told, which is as true.
const WAITERS_MAX: usize = 256;

/// Everything that a session waits for: the place, the name, and who holds it.
type Waits = BTreeMap<SessionId, Vec<Wait>>;

/// One wait: the place, the name, and holders of whom one must go on.
type Wait = (EntryId, Name, BTreeSet<SessionId>);

impl StateMachine {
    /// Every deadlock among blocking acquires, each a closed set of sessions.
    pub fn deadlocks(&self) -> Vec<Deadlock> {
        self.deadlocks_in(&self.blocking_waits())
    }

    fn deadlocks_in(&self, waits: &Waits) -> Vec<Deadlock> {
        let mut stuck = self.stuck(waits);
        let waits = &for_ever(waits, &stuck);
        let mut found = Vec::new();
        while let Some(first) = stuck.first().copied() {
            let members = reach(first, waits);
            stuck.retain(|session| !members.contains(session));
            let closed = closed_part(&members, waits);
            found.push(self.describe_deadlock(&closed, waits));
        }
        found
    }

    /// The deadlock that keeps a name's seats from ever being free, or some that wait for them from ever
    /// having one, if there is one. Only the waits behind its holders and its first waiters are looked at, so
    /// this costs little in a large service.
    pub fn deadlock_behind(&self, name: &Name) -> Option<Deadlock> {
        let group = self.groups.get(name)?;
        let behind = self.waits_behind(&sessions(group.holders()));
        let stuck = self.stuck(&behind);
        if keeps_all_out(group, &stuck) {
            return about(name, self.deadlocks_in(&behind));
        }
        // Who would share waits for all that are alone: one stuck holder of several keeps it out, and it
        // alone.
        let shares = |entry: &&Entry| entry.mode == Mode::Shared && entry.terms.blocking;
        let waiting = group.waiting.values().filter_map(|entry| group.queue.get(entry));
        let sharing = sessions(waiting.filter(shares).take(WAITERS_MAX));
        let counts = matches!(group.face, Face::Lock | Face::Semaphore) && !sharing.is_empty();
        if counts && group.holders().any(|entry| stuck.contains(&entry.session)) {
            return about(name, self.deadlocks_in(&self.waits_behind(&sharing)));
        }
        None
    }

    /// Whether nobody who waits for a name can ever have a seat of it, since all holders that are in the way
    /// are deadlocked. Else one that would be alone may have one still, also where others wait for ever.
    pub fn is_held_for_ever(&self, name: &Name) -> bool {
        let Some(group) = self.groups.get(name) else { return false };
        let stuck = self.stuck(&self.waits_behind(&sessions(group.holders())));
        let seats = group.policy.seats() as usize;
        let is_free = group.shared() == 0 && group.seats.iter().take(seats).flatten().count() < seats;
        !stuck.is_empty() && !is_free && keeps_all_out(group, &stuck)
    }

    /// A session and those that act for it, directly or not.
    pub(super) fn nested(&self, session: SessionId) -> BTreeSet<SessionId> {
        let mut all = BTreeSet::from([session]);
        let mut level = Vec::from([session]);
        for _ in 0..NESTED_MAX {
            let inner = level.iter().filter_map(|id| self.sessions.get(id)).flat_map(|one| &one.inner);
            level = inner.copied().filter(|inner| all.insert(*inner)).collect();
        }
        all
    }

    /// Those for which a session acts, directly or not, without itself.
    fn outside(&self, session: SessionId) -> Vec<SessionId> {
        let acts_for = |id: &SessionId| self.sessions.get(id).and_then(|one| one.acts_for);
        let mut all = Vec::new();
        while let Some(outer) = acts_for(all.last().unwrap_or(&session))
            && all.len() < NESTED_MAX
            && outer != session
            && !all.contains(&outer)
        {
            all.push(outer);
        }
        all
    }

    /// The blocking waits of these sessions, of those that they wait for, and so on.
    fn waits_behind(&self, sessions: &[SessionId]) -> Waits {
        let mut waits = Waits::new();
        let mut next = sessions.to_vec();
        while let Some(session) = next.pop() {
            if waits.contains_key(&session) {
                continue;
            }
            let own = self.waits_of(session);
            next.extend(own.iter().flat_map(|(_, _, holders)| holders).copied());
            waits.insert(session, own);
        }
        waits
    }

    /// The blocking waits of one session, and of those that act for it.
    fn waits_of(&self, session: SessionId) -> Vec<Wait> {
        let mut waits = Waits::new();
        let nested = self.nested(session);
        let entries = nested.iter().filter_map(|id| self.sessions.get(id)).flat_map(|one| &one.entries);
        for entry in entries {
            if let Some(group) = self.places.get(entry).and_then(|name| self.groups.get(name)) {
                add_waits(group, core::iter::once(*entry), &mut waits);
            }
        }
        waits.into_values().flatten().collect()
    }

    /// The deadlock that a session is part of.
    pub fn deadlock_of(&self, session: SessionId) -> Option<Deadlock> {
        self.deadlocks()
            .into_iter()
            .find(|d| d.waits.iter().any(|edge| edge.session == session || edge.owner() == session))
    }

    /// The newest wait of any deadlock that asked to be given up then.
    pub(super) fn deadlock_victim(&self) -> Option<(SessionId, EntryId, String)> {
        for deadlock in self.deadlocks() {
            let victim = deadlock
                .waits
                .iter()
                .filter(|edge| {
                    let group = self.groups.get(&edge.group);
                    let entry = group.and_then(|group| group.queue.get(&edge.entry));
                    entry.is_some_and(|entry| entry.terms.break_deadlock)
                })
                .max_by_key(|edge| edge.entry);
            if let Some(edge) = victim {
                return Some((edge.owner(), edge.entry, deadlock.sentence()));
            }
        }
        None
    }

    fn blocking_waits(&self) -> Waits {
        let mut waits = Waits::new();
        for group in self.groups.values() {
            add_waits(group, group.waiting.values().copied(), &mut waits);
        }
        let inner = waits.iter();
        let outer =
            inner.flat_map(|(id, own)| self.outside(*id).into_iter().map(move |outer| (outer, own.clone())));
        for (outer, more) in outer.collect::<Vec<_>>() {
            waits.entry(outer).or_default().extend(more);
        }
        waits
    }

    /// The sessions that cannot go on, whatever the others do.
    fn stuck(&self, waits: &Waits) -> BTreeSet<SessionId> {
        let mut stuck: BTreeSet<SessionId> = waits.keys().copied().collect();
        loop {
            let goes_on = |session: &SessionId| {
                waits[session].iter().all(|(_, _, holders)| holders.iter().any(|h| !stuck.contains(h)))
            };
            let freed: Vec<SessionId> = stuck.iter().copied().filter(goes_on).collect();
            if freed.is_empty() {
                return stuck;
            }
            for session in freed {
                stuck.remove(&session);
            }
        }
    }

    fn describe_deadlock(&self, members: &BTreeSet<SessionId>, waits: &Waits) -> Deadlock {
        let mut edges = Vec::new();
        for session in members {
            for (entry, group, holders) in &waits[session] {
                let is_same = |edge: &&mut Edge| edge.entry == *entry && edge.session == *session;
                if let Some(same) = edges.iter_mut().find(is_same) {
                    same.held_by.extend(holders);
                    continue;
                }
                let queued = self.groups.get(group).and_then(|g| g.queue.get(entry));
                edges.push(Edge {
                    session: *session,
                    name: queued.map(|entry| entry.name.to_string()).unwrap_or_default(),
                    entry: *entry,
                    group: group.clone(),
                    held_by: holders.iter().copied().collect(),
                    since: queued.map(|entry| entry.joined).unwrap_or_default(),
                    through: queued.map(|entry| entry.session).filter(|owner| owner != session),
                });
            }
        }
        Deadlock { waits: edges }
    }
}

fn sessions<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<SessionId> {
    entries.map(|entry| entry.session).collect()
}

/// Whether the holders of a group that cannot go on keep everybody out: one that shares is enough, else it
/// takes all.
fn keeps_all_out(group: &Group, stuck: &BTreeSet<SessionId>) -> bool {
    let mut holders = group.holders().map(|entry| entry.session);
    let is_stuck = |holder: SessionId| stuck.contains(&holder);
    if group.shared() > 0 { holders.any(is_stuck) } else { holders.all(is_stuck) }
}

/// The one that has a wait for a name in it, before others.
fn about(name: &Name, mut found: Vec<Deadlock>) -> Option<Deadlock> {
    let is_of_name = |deadlock: &Deadlock| deadlock.waits.iter().any(|edge| edge.group == *name);
    let best = found.iter().position(is_of_name).unwrap_or(0);
    (!found.is_empty()).then(|| found.swap_remove(best))
}

/// Adds the blocking waits among these places of a group.
fn add_waits(group: &Group, places: impl Iterator<Item = EntryId>, waits: &mut Waits) {
    if !matches!(group.face, Face::Lock | Face::Semaphore) || group.waiting.is_empty() {
        return;
    }
    let holders: BTreeSet<SessionId> = group.holders().map(|entry| entry.session).collect();
    if holders.is_empty() {
        return;
    }
    // A seat that rests comes free by itself.
    let rests = group.resting.keys().any(|no| no.0 < group.policy.seats());
    let blocking = places.filter(|id| group.waits(*id)).filter_map(|id| group.queue.get(&id));
    for entry in blocking.filter(|entry| entry.terms.blocking) {
        let own = waits.entry(entry.session).or_default();
        if group.shared() > 0 || entry.mode == Mode::Shared {
            let each = holders.iter().map(|holder| BTreeSet::from([*holder]));
            own.extend(each.map(|one| (entry.id, group.name.clone(), one)));
        } else if !rests {
            own.push((entry.id, group.name.clone(), holders.clone()));
        }
    }
}

/// The waits that nobody can end: those of whose holders all are stuck. One who is stuck may wait elsewhere for one
/// that is not; that wait is no part of a deadlock.
fn for_ever(waits: &Waits, stuck: &BTreeSet<SessionId>) -> Waits {
    let of = |session: &SessionId| {
        let own = waits[session].iter().filter(|(_, _, holders)| holders.is_subset(stuck));
        (*session, own.cloned().collect())
    };
    stuck.iter().map(of).collect()
}

/// Everybody that a session waits for, directly or not, and that waits for them.
fn reach(from: SessionId, waits: &Waits) -> BTreeSet<SessionId> {
    let mut seen = BTreeSet::from([from]);
    let mut next = Vec::from([from]);
    while let Some(session) = next.pop() {
        for (_, _, holders) in waits.get(&session).into_iter().flatten() {
            next.extend(holders.iter().filter(|holder| seen.insert(**holder)));
        }
    }
    // Those that wait for this set without being waited for belong to the same report.
    loop {
        let joins = |session: &&SessionId| {
            !seen.contains(session)
                && waits[*session].iter().any(|(_, _, holders)| holders.iter().any(|h| seen.contains(h)))
        };
        let Some(more) = waits.keys().find(joins).copied() else { return seen };
        seen.insert(more);
    }
}

/// The heart of a set: those that somebody in it waits for. Who only waits for them is stuck too, but ending
/// its wait would free nobody.
fn closed_part(members: &BTreeSet<SessionId>, waits: &Waits) -> BTreeSet<SessionId> {
    let mut heart = members.clone();
    loop {
        let waited_for = |session: &SessionId| {
            heart.iter().any(|other| {
                waits.get(other).into_iter().flatten().any(|(_, _, holders)| holders.contains(session))
            })
        };
        let outside: Vec<SessionId> = heart.iter().copied().filter(|s| !waited_for(s)).collect();
        if outside.is_empty() {
            return heart;
        }
        for session in outside {
            heart.remove(&session);
        }
    }
}
