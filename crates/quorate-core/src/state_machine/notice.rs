//! Who is told what of a change, and what a name remembers.
//!
//! On a group everybody is told every step; on a lock-like face only those that took a seat or are asked for
//! theirs, and whoever looks on (RULES R15).

use super::entry::{About, Entry};
use super::group::{Group, HISTORY_MAX, NAMED_MAX};
use super::task::Hand;
use super::{Change, Changed, Event, Face, Member, MemberKind, Past, Place, Reason, Role, Total};
use crate::id::{EntryId, SessionId, Token, Version, ViewId};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::ToString;
use alloc::vec::Vec;

impl Group {
    /// Everybody in the queue in the order of their ordinals: those that act, then the others in order.
    pub(super) fn members(&self) -> Vec<&Entry> {
        match self.policy.numbering {
            Some(super::Numbering::Stable | super::Numbering::MinimalMove) => {
                let mut all: Vec<&Entry> = self.queue.values().collect();
                all.sort_by_key(|entry| entry.number);
                all
            }
            _ => self.in_line(),
        }
    }

    /// Everybody in the queue: those that act, then the others in order.
    pub(super) fn in_line(&self) -> Vec<&Entry> {
        let by_weight = self.by_weight();
        let mut all: Vec<&Entry> = self.queue.values().collect();
        all.sort_by_key(|entry| (entry.seat.is_none(), entry.key(by_weight)));
        all
    }

    /// Those that look on.
    pub(super) fn observers(&self) -> impl Iterator<Item = &Entry> {
        self.observers.values()
    }

    /// What happened last, newest last.
    pub(super) fn history(&self) -> impl Iterator<Item = &Past> {
        self.history.iter()
    }

    pub(super) fn holder_token(&self) -> Option<Token> {
        self.holders().next().and_then(|entry| entry.seat).map(|seat| seat.token)
    }

    /// Everybody's place, where places are told to all.
    pub(super) fn places(&self) -> BTreeMap<EntryId, Place> {
        if self.face != Face::Group {
            return BTreeMap::new();
        }
        self.placed().into_iter().map(|(entry, place)| (entry.id, place)).collect()
    }

    fn placed(&self) -> Vec<(&Entry, Place)> {
        let next = self.next_in_line();
        let place = |(entry, n): (&Entry, u64)| {
            let ordinal = self.number(entry).unwrap_or(n);
            (entry.id, entry.place(Some(ordinal), next.contains(&entry.id)))
        };
        self.members().into_iter().zip(1..).map(|(entry, n)| (entry, place((entry, n)).1)).collect()
    }

    /// Where one member stands.
    pub(super) fn place(&self, id: EntryId) -> Option<Place> {
        if self.observers.contains_key(&id) {
            return Some(Place { ordinal: None, role: Role::Observer, seat: None });
        }
        let entry = self.queue.get(&id)?;
        if self.face == Face::Group {
            return self.placed().into_iter().find(|(other, _)| other.id == id).map(|(_, place)| place);
        }
        Some(entry.place(None, self.next_in_line().contains(&id)))
    }

    /// All that a member is told at one moment.
    pub(super) fn total(&self, id: EntryId) -> Option<Total> {
        let place = self.place(id)?;
        let kind = self.queue.get(&id).or_else(|| self.observers.get(&id))?.kind;
        let members = match (self.face, kind) {
            (_, MemberKind::OrdinalOnly) => Vec::new(),
            (Face::Group, _) => self.member_list(),
            (_, MemberKind::Observer) => self.holders().map(|entry| self.member(entry, None)).collect(),
            _ => Vec::new(),
        };
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
        let placed = self.placed().into_iter();
        placed.map(|(entry, place)| Member { place, ..self.member(entry, place.ordinal) }).collect()
    }

    fn member(&self, entry: &Entry, ordinal: Option<crate::id::Ordinal>) -> Member {
        Member {
            entry: entry.id,
            session: entry.session,
            name: entry.name.clone(),
            kind: entry.kind,
            place: entry.place(ordinal.map(|o| o.0), false),
            metadata: entry.metadata.clone(),
        }
    }

    /// Tells everybody concerned what a step changed, and remembers it.
    pub(super) fn changed(
        &mut self,
        hand: &mut Hand<'_>,
        about: About<'_>,
        before: &BTreeMap<EntryId, Place>,
        granted: &[EntryId],
    ) {
        let moved = match self.face {
            Face::Group => self.moves(before, &about),
            _ => self.seat_moves(&about, granted),
        };
        self.remember(hand, &about, granted);
        if about.gone.is_some() || about.new.is_some_and(|id| !before.contains_key(&id)) {
            self.view = ViewId(self.view.0 + 1);
        }
        self.version = Version(self.version.0 + 1);
        let (to, own) = self.audience(&about, granted);
        if to.is_empty() && own.is_empty() {
            return;
        }
        let change = Change {
            group: self.name.clone(),
            face: self.face,
            version: self.version,
            view: self.view,
            at: hand.at(),
            reason: about.reason,
            evidence: about.evidence.to_string(),
            holder_token: self.holder_token(),
            changed: moved,
        };
        hand.step.events.push(Event::Change { to, own, change });
    }

    /// Everybody whose place is another one now, those that left first.
    fn moves(&self, before: &BTreeMap<EntryId, Place>, about: &About<'_>) -> Vec<Changed> {
        let left = about.gone.as_ref().map(|e| e.step(before.get(&e.id).copied(), None));
        let moved = self.placed().into_iter().filter_map(|(entry, place)| {
            let was = before.get(&entry.id).copied();
            let shown = about.new == Some(entry.id) || about.whom == Some(entry.id);
            (shown || was != Some(place)).then(|| {
                let metadata = (about.new == Some(entry.id)).then(|| entry.metadata.clone());
                Changed { metadata, ..entry.step(was, Some(place)) }
            })
        });
        left.into_iter().chain(moved).collect()
    }

    /// On a lock-like face: whom it is about, and those that took a seat.
    fn seat_moves(&self, about: &About<'_>, granted: &[EntryId]) -> Vec<Changed> {
        let next = self.next_in_line();
        let place = |entry: &Entry| entry.place(None, next.contains(&entry.id));
        let waited = Place { ordinal: None, role: Role::Standby, seat: None };
        let left = about.gone.as_ref().map(|entry| entry.step(Some(entry.place(None, false)), None));
        let whom = about.whom.filter(|id| !granted.contains(id)).and_then(|id| self.queue.get(&id));
        let leads = matches!(self.face, Face::Leadership);
        let subject = whom.map(|entry| {
            let shown = (leads && about.new == Some(entry.id)).then(|| entry.metadata.clone());
            Changed { metadata: shown, ..entry.step(None, Some(place(entry))) }
        });
        let took = granted.iter().filter_map(|id| self.queue.get(id)).map(|entry| {
            let shown = leads.then(|| entry.metadata.clone());
            Changed { metadata: shown, ..entry.step(Some(waited), Some(place(entry))) }
        });
        left.into_iter().chain(subject).chain(took).collect()
    }

    /// Who is told everything, and who only of its own place.
    fn audience(&self, about: &About<'_>, granted: &[EntryId]) -> (Vec<SessionId>, Vec<SessionId>) {
        let looking: BTreeSet<SessionId> = self.observers.values().map(|entry| entry.session).collect();
        let session = |id: &EntryId| self.queue.get(id).map(|entry| entry.session);
        let (to, own): (BTreeSet<SessionId>, BTreeSet<SessionId>) = if self.face == Face::Group {
            let full = |entry: &&Entry| entry.kind != MemberKind::OrdinalOnly;
            let here = || self.queue.values().filter(|entry| entry.away.is_none());
            let to = here().filter(full).map(|entry| entry.session).chain(looking).collect();
            // Who waited in a group that is deleted has not asked to be out.
            let put_out = about.gone.as_ref().filter(|_| about.reason == Reason::Deleted);
            let own = here().filter(|entry| !full(entry)).chain(put_out);
            (to, own.map(|entry| entry.session).collect())
        } else {
            let asked = about.whom.filter(|_| tells_whom(about));
            (looking, granted.iter().chain(asked.as_ref()).filter_map(session).collect())
        };
        let own = own.into_iter().filter(|session| !to.contains(session)).collect();
        (to.into_iter().collect(), own)
    }

    /// Tells a waiter on a lock-like face that its wait has ended without a grant, and one that looks on that there
    /// is nothing more to see. On a group everybody is told of a member.
    pub(super) fn give_up(&mut self, step: &mut super::Step, id: EntryId, reason: super::Reason, why: &str) {
        let waits = self.face != Face::Group && self.queue.contains_key(&id);
        if waits {
            self.version = Version(self.version.0 + 1);
        }
        let waiter = self.queue.get(&id).filter(|_| waits);
        let Some(entry) = waiter.or_else(|| self.observers.get(&id)) else { return };
        let looking = self.observers.values().map(|entry| entry.session).filter(|_| waits);
        let to: BTreeSet<SessionId> = looking.collect();
        let own = [entry.session].into_iter().filter(|session| !to.contains(session)).collect();
        let change = Change {
            group: self.name.clone(),
            face: self.face,
            version: self.version,
            view: self.view,
            at: step.at,
            reason,
            evidence: why.to_string(),
            holder_token: self.holder_token(),
            changed: alloc::vec![entry.step(Some(entry.place(None, false)), None)],
        };
        step.events.push(Event::Change { to: to.into_iter().collect(), own, change });
    }

    fn remember(&mut self, hand: &Hand<'_>, about: &About<'_>, granted: &[EntryId]) {
        let whom = about.whom.and_then(|id| self.queue.get(&id));
        let Some(subject) = about.gone.as_ref().or(whom) else { return };
        let past = Past {
            at: hand.at(),
            index: hand.index(),
            reason: about.reason,
            evidence: about.evidence.to_string(),
            name: subject.name.clone(),
            session: subject.session,
            released: about.gone.as_ref().and_then(|entry| entry.seat).map(|seat| seat.token),
            granted: granted.iter().filter_map(|id| self.queue.get(id)?.holder()).take(NAMED_MAX).collect(),
        };
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(past);
    }
}

/// On a lock-like face a member is told of itself when it is asked to stop, when that ends or it has, and when it
/// is renewed; its joining and leaving it knows from the answers.
fn tells_whom(about: &About<'_>) -> bool {
    use super::Reason::{Deadlock, Draining, NotStopped, Progress, Renewed, Stalled, Transferred};
    matches!(about.reason, Draining | NotStopped | Transferred | Renewed | Stalled | Progress | Deadlock)
}
