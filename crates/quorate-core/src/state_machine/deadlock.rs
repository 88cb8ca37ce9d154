//! Waits that would never end (RULES R19).
//!
//! Problem: sessions that each hold what another waits for wait for ever.
//! Rule: a session can go on if it waits for nothing, or if for each of its waits some holder can go on; the
//! others are deadlocked. With several seats that is a knot, not a cycle (Holt 1972; Chandy, Misra and Haas
//! 1983).
//! Needs: only blocking acquires of lock-like faces count, never standing by in a group. A wait for oneself
//! through another handle counts.

use super::{Face, StateMachine};
use crate::id::{EntryId, Name, SessionId};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

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
            format!("session {} waits for {}, held by {}", edge.session, edge.group, held.join(" and "))
        };
        self.waits.iter().map(wait).collect::<Vec<_>>().join("; ")
    }
}

/// Everything that a session waits for: the place, the name, and who holds it.
type Waits = BTreeMap<SessionId, Vec<(EntryId, Name, BTreeSet<SessionId>)>>;

impl StateMachine {
    /// Every deadlock among blocking acquires, each a closed set of sessions.
    pub fn deadlocks(&self) -> Vec<Deadlock> {
        let waits = self.blocking_waits();
        let mut stuck = self.stuck(&waits);
        let mut found = Vec::new();
        while let Some(first) = stuck.first().copied() {
            let members = reach(first, &waits, &stuck);
            stuck.retain(|session| !members.contains(session));
            let closed = closed_part(&members, &waits);
            found.push(self.describe_deadlock(&closed, &waits));
        }
        found
    }

    /// The deadlock that a session is part of.
    pub fn deadlock_of(&self, session: SessionId) -> Option<Deadlock> {
        self.deadlocks().into_iter().find(|d| d.waits.iter().any(|edge| edge.session == session))
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
                return Some((edge.session, edge.entry, deadlock.sentence()));
            }
        }
        None
    }

    fn blocking_waits(&self) -> Waits {
        let mut waits = Waits::new();
        for group in self.groups.values() {
            if !matches!(group.face, Face::Lock | Face::Semaphore) || group.waiting.is_empty() {
                continue;
            }
            let holders: BTreeSet<SessionId> = group.holders().map(|entry| entry.session).collect();
            if holders.is_empty() {
                continue;
            }
            for id in group.waiting.values() {
                let entry = &group.queue[id];
                if entry.terms.blocking {
                    let wait = (entry.id, group.name.clone(), holders.clone());
                    waits.entry(entry.session).or_default().push(wait);
                }
            }
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
                let held_by: Vec<SessionId> = holders.intersection(members).copied().collect();
                if held_by.is_empty() {
                    continue;
                }
                let name = self.groups.get(group).and_then(|g| g.queue.get(entry));
                edges.push(Edge {
                    session: *session,
                    name: name.map(|entry| entry.name.to_string()).unwrap_or_default(),
                    entry: *entry,
                    group: group.clone(),
                    held_by,
                });
            }
        }
        Deadlock { waits: edges }
    }
}

/// Everybody that a session waits for, directly or not, among those that are stuck.
fn reach(from: SessionId, waits: &Waits, stuck: &BTreeSet<SessionId>) -> BTreeSet<SessionId> {
    let mut seen = BTreeSet::from([from]);
    let mut next = Vec::from([from]);
    while let Some(session) = next.pop() {
        for (_, _, holders) in waits.get(&session).into_iter().flatten() {
            for holder in holders.iter().filter(|holder| stuck.contains(holder)) {
                if seen.insert(*holder) {
                    next.push(*holder);
                }
            }
        }
    }
    // Those that wait for this set without being waited for belong to the same report.
    loop {
        let joins = |session: &&SessionId| {
            !seen.contains(session)
                && waits[*session].iter().any(|(_, _, holders)| holders.iter().any(|h| seen.contains(h)))
        };
        let Some(more) = stuck.iter().find(joins).copied() else { return seen };
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
