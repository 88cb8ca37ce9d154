//! Sessions: who may speak for a client, until when its lease lasts, and which of its calls were done.
//!
//! A lease is kept in the lease keeper's memory (`crate::lease`); replicated state holds only what a new
//! reign must know: in which reign the session was first renewed, and what it had left when last counted.

use super::{
    Event, Group, Hand, Join, OnDisconnect, Op, Opened, Reason, Refusal, Reply, StateMachine, Step, Terms,
    Wall, limit,
};
use crate::id::{EntryId, Generation, Reign, RequestId, Secret, SessionId, Token};
use crate::lease;
use crate::time::Span;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// One client's session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Session {
    pub(super) id: SessionId,
    pub(super) secret: Secret,
    pub(super) generation: Generation,
    pub(super) ttl: Span,
    pub(super) on_disconnect: OnDisconnect,
    pub(super) label: String,
    pub(super) opened: Wall,
    pub(super) lease: Lease,
    pub(super) closing: Option<String>,
    pub(super) entries: BTreeSet<EntryId>,
    /// The session that waits for whatever this one waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) acts_for: Option<SessionId>,
    /// Those that act for this one.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) inner: BTreeSet<SessionId>,
    acknowledged: RequestId,
    answers: BTreeMap<RequestId, Answer>,
}

/// What a new reign must know of a lease (RULES R5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lease {
    /// Grows whenever the lease is renewed by an entry; a timer that names an older one is void.
    pub(super) generation: Generation,
    /// The newest reign that confirmed a renewal.
    pub(super) marked: Reign,
    /// What the next reign must still wait for.
    pub(super) remaining: Span,
}

/// An answer that is kept for a retry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    /// A place in a queue: told as it is now, so that a retried wait attaches to the queued one.
    Joined(EntryId),
    /// Any other.
    Other(Reply),
}

impl StateMachine {
    pub(super) fn open(
        &mut self,
        step: &mut Step,
        secret: Secret,
        ttl: Span,
        on_disconnect: OnDisconnect,
        label: &str,
    ) -> Result<Reply, Refusal> {
        if let Some(session) = self.by_secret.get(&secret).copied() {
            return self.attach(step, session, secret, false);
        }
        self.check_open(ttl, label)?;
        let id = SessionId(self.last_session.0 + 1);
        self.last_session = id;
        let lease = Lease { generation: Generation(1), marked: self.reign, remaining: lease::kept_for(ttl) };
        let session = Session {
            id,
            secret,
            generation: Generation(1),
            ttl,
            on_disconnect,
            label: label.to_string(),
            opened: step.at,
            lease,
            closing: None,
            entries: BTreeSet::new(),
            acts_for: None,
            inner: BTreeSet::new(),
            acknowledged: RequestId(0),
            answers: BTreeMap::new(),
        };
        self.by_secret.insert(secret, id);
        step.events.push(session.lease_event());
        self.sessions.insert(id, session);
        self.opened(id).map(Reply::Opened)
    }

    fn check_open(&self, ttl: Span, label: &str) -> Result<(), Refusal> {
        let open = self.sessions.len() as u64;
        if open >= u64::from(self.limits.sessions) {
            return Err(limit("open sessions", self.limits.sessions, open + 1));
        }
        if ttl > self.limits.ttl_max {
            return Err(Refusal::TooLong { what: "a lease".into(), max: self.limits.ttl_max, asked: ttl });
        }
        if ttl == Span::ZERO {
            return Err(limit("milliseconds of a lease (at least 1)", u32::MAX, 0));
        }
        if label.len() > crate::id::NAME_BYTES_MAX {
            let max = crate::id::NAME_BYTES_MAX as u32;
            return Err(limit("bytes of a session's label", max, label.len() as u64));
        }
        Ok(())
    }

    /// The newest connection wins (RULES R22). An attach is a logged renewal.
    pub(super) fn attach(
        &mut self,
        step: &mut Step,
        id: SessionId,
        secret: Secret,
        lapsed: bool,
    ) -> Result<Reply, Refusal> {
        let reign = self.reign;
        let session = self.session_mut(id)?;
        if session.secret != secret {
            return Err(Refusal::WrongSecret { session: id });
        }
        session.generation = Generation(session.generation.0 + 1);
        if session.closing.is_some() {
            // It may still say that it has stopped, but its lease is renewed no more (RULES R11).
            return self.opened(id).map(Reply::Opened);
        }
        session.renewed(reign);
        step.events.push(session.lease_event());
        if lapsed {
            let entries: Vec<EntryId> = session.entries.iter().copied().collect();
            for entry in entries {
                self.renew_seat(step, entry);
            }
        }
        self.opened(id).map(Reply::Opened)
    }

    /// Gives a holder whose own deadline had passed a new token for its seat (RULES R25).
    fn renew_seat(&mut self, step: &mut Step, entry: EntryId) {
        let Some(name) = self.places.get(&entry).cloned() else { return };
        if let Ok((group, mut hand)) = self.group_named(step, &name) {
            group.renew(&mut hand, entry);
        }
    }

    /// A session as its client sees it now.
    ///
    /// # Errors
    /// [`Refusal::NoSession`] if it has ended.
    pub fn opened(&self, id: SessionId) -> Result<Opened, Refusal> {
        let session = self.session(id)?;
        Ok(Opened {
            session: id,
            generation: session.generation,
            ttl: session.ttl,
            on_disconnect: session.on_disconnect,
            cluster: self.cluster.ok_or(Refusal::Founding)?,
            closing: session.closing.clone(),
            totals: session.entries.iter().filter_map(|entry| self.total(*entry)).collect(),
        })
    }

    pub(super) fn mark(
        &mut self,
        step: &mut Step,
        reign: Reign,
        sessions: &[SessionId],
    ) -> Result<Reply, Refusal> {
        if reign != self.reign {
            return Err(Refusal::NotDue);
        }
        for id in sessions {
            match self.sessions.get_mut(id) {
                Some(session) if session.closing.is_none() => {
                    session.renewed(reign);
                    step.events.push(session.lease_event());
                }
                _ => {}
            }
        }
        Ok(Reply::Done)
    }

    pub(super) fn checkpoint(
        &mut self,
        reign: Reign,
        remaining: &[(SessionId, Span)],
    ) -> Result<Reply, Refusal> {
        if reign != self.reign {
            return Err(Refusal::NotDue);
        }
        for (id, left) in remaining {
            if let Some(session) = self.sessions.get_mut(id)
                && session.lease.marked != reign
            {
                session.lease.remaining = session.lease.remaining.min(*left);
            }
        }
        Ok(Reply::Done)
    }

    /// Compares replicated fields only (RULES R2): an expiry of another reign, of an ended session or
    /// of a lease that was renewed by an entry since is void.
    pub(super) fn lease_ran_out(
        &mut self,
        step: &mut Step,
        id: SessionId,
        generation: Generation,
        reign: Reign,
        silent: Span,
    ) -> Result<Reply, Refusal> {
        let current = self.reign;
        let session = self.session_mut(id)?;
        if reign != current || generation != session.lease.generation {
            return Err(Refusal::NotDue);
        }
        let (reason, evidence) = match &session.closing {
            Some(why) => (Reason::Closed, format!("{why}; it did not stop by itself, so its lease ran out")),
            None => (
                Reason::Expired,
                format!("no keepalive for {silent}, lease {}, counted in reign {reign}", session.ttl),
            ),
        };
        self.end_session(step, id, reason, &evidence);
        Ok(Reply::Done)
    }

    /// Waives the deadline promise for a session that asked for it (RULES R18): only if the connection
    /// that closed is still its newest.
    pub(super) fn disconnected(
        &mut self,
        step: &mut Step,
        id: SessionId,
        generation: Generation,
    ) -> Result<Reply, Refusal> {
        let session = self.session(id)?;
        if session.generation != generation || session.on_disconnect != OnDisconnect::Release {
            return Err(Refusal::NotDue);
        }
        let evidence = format!("connection {generation} closed, which this session takes as a leave");
        self.end_session(step, id, Reason::Disconnect, &evidence);
        Ok(Reply::Done)
    }

    pub(super) fn close_session(
        &mut self,
        step: &mut Step,
        id: SessionId,
        why: &str,
    ) -> Result<Reply, Refusal> {
        let session = self.session_mut(id)?;
        if session.closing.is_none() {
            session.closing = Some(why.to_string());
            step.events.push(Event::Closing { session: id, why: why.to_string() });
        }
        Ok(Reply::Closing)
    }

    /// A call of a session, at most once (RULES R21).
    pub(super) fn call(
        &mut self,
        step: &mut Step,
        id: SessionId,
        generation: Generation,
        request: RequestId,
        acknowledged: RequestId,
        op: &Op,
    ) -> Result<Reply, Refusal> {
        let unacknowledged = self.limits.unacknowledged;
        let session = self.session_mut(id)?;
        if generation != session.generation {
            let current = session.generation;
            return Err(Refusal::StaleConnection { session: id, generation, current });
        }
        session.acknowledge(acknowledged);
        if request <= session.acknowledged {
            return Err(Refusal::Forgotten { request });
        }
        if let Some(answer) = session.answers.get(&request).cloned() {
            return self.answer_again(answer);
        }
        if session.answers.len() >= unacknowledged as usize {
            let asked = session.answers.len() as u64 + 1;
            return Err(limit("unacknowledged calls", unacknowledged, asked));
        }
        let reply = self.perform(step, id, op).unwrap_or_else(Reply::Refused);
        if let Some(session) = self.sessions.get_mut(&id) {
            let answer = match &reply {
                Reply::Joined(total) => Answer::Joined(total.entry),
                other => Answer::Other(other.clone()),
            };
            session.answers.insert(request, answer);
        }
        Ok(reply)
    }

    fn answer_again(&self, answer: Answer) -> Result<Reply, Refusal> {
        match answer {
            Answer::Joined(entry) => self.total(entry).map(Reply::Joined).ok_or(Refusal::NoEntry { entry }),
            Answer::Other(reply) => Ok(reply),
        }
    }

    fn perform(&mut self, step: &mut Step, id: SessionId, op: &Op) -> Result<Reply, Refusal> {
        match op {
            Op::Join(join) => {
                let terms = Terms { blocking: join.wait, ..Terms::default() };
                self.join_open(step, id, join, &terms)
            }
            Op::JoinOn(join, terms) => {
                self.needs(super::WHOLE_GROUP, || "a join on terms".into())?;
                self.join_open(step, id, join, terms)
            }
            Op::Stopped { entry } => self.stopped(step, id, *entry),
            Op::Progress { entry } => {
                self.with_place(step, id, *entry, |group, hand| group.progress(hand, *entry))
            }
            Op::Release { entry } => {
                self.owned(id, *entry)?;
                let token = self.drop_entry(step, id, *entry, "by its own call");
                Ok(Reply::Released { token })
            }
            Op::Cancel { entry } => self.cancel(step, id, *entry),
            Op::Describe { entry, metadata } => {
                self.owned(id, *entry)?;
                self.check_metadata(metadata)?;
                self.with_place(step, id, *entry, |group, hand| group.describe(hand, *entry, metadata))
            }
            Op::End => {
                let (reason, evidence) = match &self.session(id)?.closing {
                    Some(why) => (Reason::Closed, why.clone()),
                    None => (Reason::Leave, "the session ended by its own call".into()),
                };
                self.end_session(step, id, reason, &evidence);
                Ok(Reply::Done)
            }
            Op::ActsFor { session } => {
                self.needs(super::WHOLE_GROUP, || "a session that acts for another".into())?;
                self.act_for(step, id, *session)
            }
        }
    }

    /// From now on whatever the session waits for, the outer one waits for too (RULES R19).
    fn act_for(&mut self, step: &mut Step, id: SessionId, outer: SessionId) -> Result<Reply, Refusal> {
        if outer == id || !self.sessions.contains_key(&outer) {
            return Ok(Reply::Done);
        }
        let before = self.session_mut(id)?.acts_for.replace(outer);
        if let Some(before) = before.and_then(|before| self.sessions.get_mut(&before)) {
            before.inner.remove(&id);
        }
        self.session_mut(outer)?.inner.insert(id);
        step.tightened = true;
        Ok(Reply::Done)
    }

    /// A holder has stopped. In a group that is being deleted nobody acts again, so its place goes too.
    fn stopped(&mut self, step: &mut Step, id: SessionId, entry: EntryId) -> Result<Reply, Refusal> {
        self.owned(id, entry)?;
        if self.group_of(entry)?.ending {
            let token = self.drop_entry(step, id, entry, "the group is being deleted: it has stopped");
            return Ok(Reply::Released { token });
        }
        let tail = EntryId(self.last_entry.0 + 1);
        self.last_entry = tail;
        self.with_place(step, id, entry, |group, hand| group.stopped(hand, entry, tail))
    }

    /// Does something with a place that the session has.
    fn with_place(
        &mut self,
        step: &mut Step,
        id: SessionId,
        entry: EntryId,
        act: impl FnOnce(&mut Group, &mut Hand<'_>),
    ) -> Result<Reply, Refusal> {
        self.owned(id, entry)?;
        let name = self.places.get(&entry).cloned().ok_or(Refusal::NoEntry { entry })?;
        let (group, mut hand) = self.group_named(step, &name)?;
        act(group, &mut hand);
        Ok(Reply::Done)
    }

    fn join_open(
        &mut self,
        step: &mut Step,
        id: SessionId,
        join: &Join,
        terms: &Terms,
    ) -> Result<Reply, Refusal> {
        if self.session(id)?.closing.is_some() {
            return Err(Refusal::SessionClosing { session: id });
        }
        self.join(step, id, join, terms)
    }

    /// A cancel that races its grant answers which of the two came first (RULES R16).
    fn cancel(&mut self, step: &mut Step, id: SessionId, entry: EntryId) -> Result<Reply, Refusal> {
        self.owned(id, entry)?;
        if let Some(seat) = self.total(entry).and_then(|total| total.place.seat) {
            return Ok(Reply::Granted { seat });
        }
        self.drop_entry(step, id, entry, "its request was cancelled");
        Ok(Reply::Cancelled)
    }

    fn owned(&self, id: SessionId, entry: EntryId) -> Result<(), Refusal> {
        if self.session(id)?.entries.contains(&entry) { Ok(()) } else { Err(Refusal::NoEntry { entry }) }
    }

    fn drop_entry(
        &mut self,
        step: &mut Step,
        id: SessionId,
        entry: EntryId,
        evidence: &str,
    ) -> Option<Token> {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.entries.remove(&entry);
        }
        self.remove(step, entry, Reason::Leave, evidence)
    }

    fn end_session(&mut self, step: &mut Step, id: SessionId, reason: Reason, evidence: &str) {
        let Some(session) = self.sessions.remove(&id) else { return };
        self.by_secret.remove(&session.secret);
        if let Some(outer) = session.acts_for.and_then(|outer| self.sessions.get_mut(&outer)) {
            outer.inner.remove(&id);
        }
        for inner in &session.inner {
            if let Some(inner) = self.sessions.get_mut(inner) {
                inner.acts_for = None;
            }
        }
        for entry in session.entries {
            self.remove(step, entry, reason, evidence);
        }
        step.events.push(Event::Ended { session: id, reason, evidence: evidence.to_string() });
    }

    /// The places of a session that wait, at most `max` (RULES R24).
    pub fn waiting(&self, id: SessionId, max: usize) -> Vec<EntryId> {
        let Some(session) = self.sessions.get(&id) else { return Vec::new() };
        let waits = |entry: &&EntryId| {
            let group = self.places.get(entry).and_then(|name| self.groups.get(name));
            group.is_some_and(|group| group.waits(**entry))
        };
        session.entries.iter().filter(waits).copied().take(max).collect()
    }

    pub(super) fn session(&self, id: SessionId) -> Result<&Session, Refusal> {
        self.sessions.get(&id).ok_or(Refusal::NoSession { session: id })
    }

    pub(super) fn session_mut(&mut self, id: SessionId) -> Result<&mut Session, Refusal> {
        self.sessions.get_mut(&id).ok_or(Refusal::NoSession { session: id })
    }
}

impl Session {
    /// A renewal that is an entry of the log.
    fn renewed(&mut self, reign: Reign) {
        self.lease.generation = Generation(self.lease.generation.0 + 1);
        self.lease.marked = reign;
        self.lease.remaining = lease::kept_for(self.ttl);
    }

    fn lease_event(&self) -> Event {
        let (session, generation, ttl) = (self.id, self.lease.generation, self.ttl);
        Event::Lease { session, generation, ttl }
    }

    /// Forgets the answers that have reached the client.
    fn acknowledge(&mut self, acknowledged: RequestId) {
        if acknowledged > self.acknowledged {
            self.acknowledged = acknowledged;
            while self.answers.first_key_value().is_some_and(|(request, _)| *request <= acknowledged) {
                self.answers.pop_first();
            }
        }
    }
}
