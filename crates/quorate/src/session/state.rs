//! What a client knows of its session, and what it makes of each frame. No socket and no timer is here: the
//! readings of the clock come in, frames to send are taken out.
//!
//! **Problem.** A client must stop before the service may give its seats away, whatever the network does, and
//! must neither lose nor double a call. **Rule.** The own deadline is the *send* time of the last confirmed
//! renewal plus [`lease::act_for`]; once it has passed nothing acts before the service has taken the session
//! back with that said (RULES R1, R25). A call keeps its number until it is answered (R21).
//! **When it fails.** What no clock can see (R9).

mod calls;
mod ending;

pub(crate) use calls::refused;

use super::place::{Need, Place, Stage};
use crate::advisory::{Advisory, Reason};
use crate::clock::{self, Clock};
use crate::error::Error;
use crate::proto;
use crate::session::SessionOptions;
use crate::wire;
use quorate_core::id::{ClusterId, EntryId, Name, RequestId, Secret, SessionId};
use quorate_core::lease;
use quorate_core::state_machine::{Change, OnDisconnect, Op, Seat, Total};
use quorate_core::time::{Mono, Span};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// How far the numbers of unanswered calls may run ahead of the acknowledged ones. Half of what the service
/// keeps (`Limits::unacknowledged`), so that its limit is never met; further calls wait here.
pub(crate) const WINDOW: u64 = 512;

/// How long after an unanswered call it is sent again.
const AGAIN_MS: u64 = 50;

/// How many waiting places a confirmed keepalive names at most: one that names as many says nothing of the rest.
const WAITING_MAX: usize = 256;

/// How many unconfirmed keepalives are remembered: far more than fit into a lease.
const BEATS_MAX: usize = 64;

/// A place's number on this side; it stays when the place moves to another session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlaceKey(u64);

/// The session as the service knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) id: SessionId,
    pub(crate) cluster: ClusterId,
    pub(crate) ttl: Span,
    pub(crate) on_disconnect: OnDisconnect,
}

/// What was said when a connection began, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Greeting {
    sent: Mono,
    /// It was said that the own deadline has passed.
    lapsed: bool,
}

/// What comes after an answered opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Greeted {
    /// The session speaks on this connection.
    Speak,
    /// The own deadline passed meanwhile: attach again and say so (RULES R25).
    Again,
}

type Answer<T> = Option<oneshot::Sender<Result<T, Error>>>;

#[derive(Debug)]
enum Purpose {
    Join(PlaceKey),
    Release(PlaceKey, Answer<()>),
    Cancel(PlaceKey),
    Describe(Answer<()>),
    /// The seat that it had then.
    Stopped(PlaceKey, Option<Seat>, Answer<()>),
    Progress(PlaceKey),
    ActsFor,
    End(Vec<oneshot::Sender<Result<(), Error>>>),
}

#[derive(Debug)]
struct Call {
    op: Op,
    purpose: Purpose,
}

/// All that a client knows of its session.
#[derive(Debug)]
pub(crate) struct State {
    clock: Clock,
    options: SessionOptions,
    secret: Secret,
    known: Option<Known>,
    /// A connection speaks for the session now.
    live: bool,
    /// A new connection is wanted, whatever the present one says.
    renew_connection: bool,
    deadline: Option<Mono>,
    heard: Mono,
    /// When somebody last looked whether the deadline has passed; a few times in each lease, unless nothing here runs.
    looked: Mono,
    /// How long nothing here had run when the lease was found to be over, if that is why.
    stopped: Option<Span>,
    lapsed: bool,
    warned: bool,
    silent: bool,
    closing: Option<String>,
    over: Option<Error>,
    retiring: bool,
    next_beat: Mono,
    beat_seq: u64,
    beats: VecDeque<(u64, Mono)>,
    calls: BTreeMap<RequestId, Call>,
    unsent: BTreeSet<RequestId>,
    again: VecDeque<(Mono, RequestId)>,
    last_request: RequestId,
    resyncs: Vec<EntryId>,
    last_place: u64,
    places: BTreeMap<PlaceKey, Place>,
    by_entry: BTreeMap<EntryId, PlaceKey>,
    by_group: BTreeMap<Name, Vec<PlaceKey>>,
    dirty: bool,
    /// Hears that the session is open, lost or over.
    pub(crate) turned: Arc<Notify>,
}

impl State {
    pub(crate) fn new(clock: Clock, options: SessionOptions) -> Self {
        let mut state = Self::silent(clock, options);
        state.say_for_whom();
        state
    }

    /// Before anything was said.
    fn silent(clock: Clock, options: SessionOptions) -> Self {
        Self {
            clock,
            options,
            secret: Secret(rand::random()),
            known: None,
            live: false,
            renew_connection: false,
            deadline: None,
            heard: Mono(0),
            looked: Mono(0),
            stopped: None,
            lapsed: false,
            warned: false,
            silent: false,
            closing: None,
            over: None,
            retiring: false,
            next_beat: Mono(u64::MAX),
            beat_seq: 0,
            beats: VecDeque::new(),
            calls: BTreeMap::new(),
            unsent: BTreeSet::new(),
            again: VecDeque::new(),
            last_request: RequestId(0),
            resyncs: Vec::new(),
            last_place: 0,
            places: BTreeMap::new(),
            by_entry: BTreeMap::new(),
            by_group: BTreeMap::new(),
            dirty: false,
            turned: Arc::default(),
        }
    }

    // ---- What may be done now ------------------------------------------------------------------------

    pub(crate) fn known(&self) -> Option<Known> {
        self.known
    }

    pub(crate) fn over(&self) -> Option<&Error> {
        self.over.as_ref()
    }

    pub(crate) fn lapsed(&self) -> bool {
        self.lapsed
    }

    pub(crate) fn wants_connection(&self) -> bool {
        self.renew_connection
    }

    /// Whether seats may be used at this reading of the clock.
    pub(crate) fn acts(&self, now: Mono) -> bool {
        self.known.is_some()
            && !self.lapsed
            && self.closing.is_none()
            && self.over.is_none()
            && self.deadline.is_some_and(|deadline| now < deadline)
    }

    /// How long seats may still be used.
    pub(crate) fn remaining(&self, now: Mono) -> Duration {
        match self.deadline {
            Some(deadline) if self.acts(now) => clock::until(now, deadline),
            _ => Duration::ZERO,
        }
    }

    /// How long before its deadline a holder is warned.
    pub(crate) fn warning(&self) -> Span {
        match self.options.warning {
            Some(warning) => Span::from_millis(warning.as_millis() as u64),
            None => Span::from_millis(self.ttl().as_millis() / 6),
        }
    }

    /// The length of a lease: the effective one, or before that is known the wished one.
    fn ttl(&self) -> Span {
        let wished = Span::from_millis(self.options.ttl.as_millis() as u64);
        self.known.map_or(wished, |known| known.ttl)
    }

    /// Whether what remains is less than the warning margin.
    pub(crate) fn is_near(&self, now: Mono) -> bool {
        self.deadline.is_none_or(|deadline| now >= deadline - self.warning())
    }

    pub(crate) fn place(&self, key: PlaceKey) -> Option<&Place> {
        self.places.get(&key)
    }

    /// The user has it in hand from now on.
    pub(crate) fn hand_out(&mut self, key: PlaceKey) {
        if let Some(place) = self.places.get_mut(&key) {
            place.handed = true;
        }
    }

    /// The seat of a place, if it may be used now.
    pub(crate) fn seat(&self, now: Mono, key: PlaceKey) -> Option<Seat> {
        self.acts(now).then(|| self.places.get(&key)?.seat()).flatten()
    }

    /// Notices that the own deadline has passed. Comes before everything else, every time.
    pub(crate) fn check(&mut self, now: Mono) {
        let gap = now.since(std::mem::replace(&mut self.looked, now));
        if !self.lapsed && self.over.is_none() && self.deadline.is_some_and(|deadline| now >= deadline) {
            self.lapse(gap);
        }
    }

    /// After `gap` in which nobody looked. What runs looks after half a lease of silence at the latest, so a gap of
    /// more, and of an eighth for a late timer, was no silence of the service.
    fn lapse(&mut self, gap: Span) {
        self.lapsed = true;
        self.stopped = (gap.as_millis() > self.ttl().as_millis() * 5 / 8).then_some(gap);
        self.renew_connection = self.closing.is_none();
        self.dirty = true;
        let ttl = self.ttl();
        let evidence = match self.stopped {
            Some(gap) => {
                format!("this process was stopped for {gap} and could not renew its lease of {ttl} in time")
            }
            None => {
                format!("no keepalive was confirmed within its lease of {ttl}; its own deadline has passed")
            }
        };
        for place in self.places.values_mut() {
            place.unwanted |= !place.handed;
            place.cut_off(Reason::DeadlinePassed, &evidence);
        }
        let (silent, stopped) = (ttl.to_std(), self.stopped.map(Span::to_std));
        for call in self.calls.values_mut() {
            let what = call.op_name();
            call.fail(Error::WaitLost { what, silent, stopped });
        }
        if self.closing.is_some() {
            self.stop();
        }
        self.give_up_unwanted();
    }

    /// The error of a wait that the silence has ended.
    pub(crate) fn wait_lost(&self, what: String) -> Error {
        let stopped = self.stopped.map(Span::to_std);
        Error::WaitLost { what, silent: self.ttl().to_std(), stopped }
    }

    // ---- Timers ----------------------------------------------------------------------------------------

    /// What is due at this reading: keepalives, warnings, silence.
    pub(crate) fn tick(&mut self, now: Mono) {
        if self.over.is_some() {
            return;
        }
        if !self.warned && self.deadline.is_some() && self.is_near(now) {
            self.warned = true;
            self.places.values().for_each(|place| place.wake.all());
        }
        if self.silence_at().is_some_and(|at| now >= at) {
            self.fall_silent(now);
        }
        if self.leave_at().is_some_and(|at| now >= at) {
            self.renew_connection = true;
        }
        while self.again.front().is_some_and(|(at, _)| now >= *at) {
            if let Some((_, request)) = self.again.pop_front()
                && self.calls.contains_key(&request)
            {
                self.unsent.insert(request);
            }
        }
    }

    /// When the service will count as silent: after half a lease without a confirmation, once.
    fn silence_at(&self) -> Option<Mono> {
        let told = self.silent || self.lapsed || self.closing.is_some();
        let half = Span::from_millis((self.known?.ttl.as_millis() / 2).max(1));
        (!told).then(|| self.heard + half)
    }

    /// When a silent connection is left for another: an eighth of a lease after it counts as silent, with more
    /// than a third of the lease left to attach elsewhere. Sooner, and a service that is merely slow would get all
    /// its sessions anew on top.
    fn leave_at(&self) -> Option<Mono> {
        let leaves = self.live && self.silent && !self.renew_connection && self.closing.is_none();
        leaves.then(|| self.heard + Span::from_millis((self.ttl().as_millis() * 5 / 8).max(2)))
    }

    fn fall_silent(&mut self, now: Mono) {
        self.silent = true;
        let evidence = format!("no keepalive was confirmed for {}", now.since(self.heard));
        self.places.values_mut().for_each(|place| place.unavailable(&evidence));
    }

    /// When [`State::tick`] or [`State::check`] has something to do next.
    pub(crate) fn next_wake(&self) -> Mono {
        let mut next = Mono(u64::MAX);
        if self.over.is_some() {
            return next;
        }
        if self.live {
            next = next.min(self.next_beat);
        }
        if let (Some(deadline), false) = (self.deadline, self.lapsed) {
            next = next.min(deadline);
            if !self.warned {
                next = next.min(deadline - self.warning());
            }
        }
        next = self.silence_at().map_or(next, |at| next.min(at));
        next = self.leave_at().map_or(next, |at| next.min(at));
        self.again.front().map_or(next, |(at, _)| next.min(*at))
    }

    // ---- The connection ----------------------------------------------------------------------------------

    /// How long an attempt to connect may take at first: an address that swallows packets must not cost the lease.
    pub(crate) fn patience(&self) -> Duration {
        self.known.map_or(Duration::MAX, |known| known.ttl.to_std() / 4)
    }

    /// The first frame of a connection, which is sent now, and what [`State::opened`] needs of it.
    pub(crate) fn greet(&mut self, now: Mono) -> (proto::ClientFrame, Greeting) {
        use proto::client_frame::Frame;
        self.check(now);
        let greeting = Greeting { sent: now, lapsed: self.lapsed };
        let secret = wire::to_wide(self.secret.0);
        let frame = match self.known {
            Some(known) => Frame::Attach(proto::Attach { session: known.id.0, secret, lapsed: self.lapsed }),
            None => Frame::Open(proto::Open {
                secret,
                ttl_ms: self.options.ttl.as_millis() as u64,
                on_disconnect: wire::to_on_disconnect(self.options.on_disconnect).into(),
                label: self.options.label.clone(),
            }),
        };
        (proto::ClientFrame { frame: Some(frame) }, greeting)
    }

    /// The opening or attaching was answered.
    pub(crate) fn opened(
        &mut self,
        now: Mono,
        greeting: Greeting,
        opened: proto::Opened,
    ) -> Result<Greeted, Error> {
        self.check(now);
        let known = known(&opened)?;
        let totals = opened.totals.into_iter().map(wire::from_total);
        let totals: Vec<Total> = totals.collect::<Result<_, _>>().map_err(malformed)?;
        self.known = Some(known);
        if self.lapsed && !greeting.lapsed {
            return Ok(Greeted::Again);
        }
        let deadline = greeting.sent + lease::act_for(known.ttl);
        if opened.closing.is_none() && self.closing.is_none() {
            if now >= deadline {
                self.deadline = Some(deadline);
                self.check(now);
                return Ok(Greeted::Again);
            }
            self.deadline = Some(deadline);
            (self.lapsed, self.stopped) = (false, None);
            self.warned = false;
        }
        self.speak(greeting.sent, known);
        self.take_totals(totals);
        if let Some(why) = opened.closing {
            self.close(why);
        }
        self.turned.notify_waiters();
        Ok(Greeted::Speak)
    }

    fn speak(&mut self, sent: Mono, known: Known) {
        self.live = true;
        self.renew_connection = false;
        self.silent = false;
        self.heard = sent;
        self.beats.clear();
        self.next_beat = sent + lease::beat(known.ttl);
        self.resyncs.clear();
        self.again.clear();
        self.unsent = self.calls.keys().copied().collect();
    }

    fn take_totals(&mut self, totals: Vec<Total>) {
        let here: BTreeSet<EntryId> = totals.iter().map(|total| total.entry).collect();
        let gone: Vec<EntryId> = self.by_entry.keys().filter(|e| !here.contains(e)).copied().collect();
        for total in totals {
            let key = self.by_entry.get(&total.entry);
            if let Some(place) = key.and_then(|key| self.places.get_mut(key)) {
                place.await_reconnected(Reason::ConnectionLost, "the connection broke and is back");
                if place.total(total) == Need::Total {
                    self.resyncs.extend(place.entry);
                }
            }
        }
        for entry in gone {
            let Some(key) = self.by_entry.remove(&entry) else { continue };
            let session = self.known.map(|known| known.id).unwrap_or_default();
            if let Some(place) = self.places.get_mut(&key)
                && !matches!(place.stage, Stage::Leaving)
            {
                let evidence = format!("the service has no place {entry} of it");
                let error = Error::SessionLost { session, reason: Reason::SessionLost, evidence };
                place.end(error, Reason::SessionLost);
            }
        }
    }

    /// The connection is gone; the session lives on for now.
    pub(crate) fn away(&mut self) {
        self.live = false;
        self.renew_connection = false;
    }

    /// Everything that is to be sent now, in order. `now` is the send time of a keepalive.
    pub(crate) fn take_frames(&mut self, now: Mono) -> Vec<proto::ClientFrame> {
        use proto::client_frame::Frame;
        if !self.live || self.over.is_some() {
            return Vec::new();
        }
        let mut frames = Vec::new();
        if now >= self.next_beat {
            frames.push(Frame::KeepAlive(self.keepalive(now)));
        }
        let acknowledged = self.acknowledged();
        while let Some(request) = self.unsent.first().copied() {
            if request.0 > acknowledged.0 + WINDOW {
                break;
            }
            self.unsent.pop_first();
            if let Some(call) = self.calls.get(&request) {
                let op = Some(wire::to_op(&call.op));
                let (request, acknowledged) = (request.0, acknowledged.0);
                frames.push(Frame::Call(proto::Call { request, acknowledged, op }));
            }
        }
        let resyncs = self.resyncs.drain(..).map(|entry| Frame::Resync(proto::Resync { entry: entry.0 }));
        frames.extend(resyncs);
        frames.into_iter().map(|frame| proto::ClientFrame { frame: Some(frame) }).collect()
    }

    fn keepalive(&mut self, now: Mono) -> proto::KeepAlive {
        self.beat_seq += 1;
        self.beats.push_back((self.beat_seq, now));
        if self.beats.len() > BEATS_MAX {
            self.beats.pop_front();
        }
        self.next_beat = now + lease::beat(self.ttl());
        proto::KeepAlive { seq: self.beat_seq }
    }

    /// Every answer up to this number has arrived.
    fn acknowledged(&self) -> RequestId {
        match self.calls.keys().next() {
            Some(first) => RequestId(first.0 - 1),
            None => self.last_request,
        }
    }

    /// Takes in a frame of the service.
    ///
    /// # Errors
    /// The contract was broken.
    pub(crate) fn frame(&mut self, now: Mono, frame: proto::ServerFrame) -> Result<(), Error> {
        use proto::server_frame::Frame;
        self.check(now);
        if !self.live || self.renew_connection {
            return Ok(()); // What it says comes again by the next connection.
        }
        let frame = frame.frame.ok_or_else(|| Error::Protocol("an empty frame".into()))?;
        match frame {
            Frame::Alive(alive) => self.alive(now, &alive),
            Frame::Answer(answer) => {
                let reply = answer.reply.ok_or_else(|| Error::Protocol("an empty answer".into()))?;
                self.answered(RequestId(answer.request), reply)?;
            }
            Frame::Unanswered(unanswered) => {
                let at = now + Span::from_millis(AGAIN_MS);
                self.again.push_back((at, RequestId(unanswered.request)));
            }
            Frame::Change(change) => {
                let change = Arc::new(wire::from_change(change).map_err(malformed)?);
                self.change(&change);
            }
            Frame::Total(total) => self.total(wire::from_total(total).map_err(malformed)?),
            Frame::Gap(gap) => {
                let group = wire::from_name(&gap.group).map_err(malformed)?;
                self.in_group(&group, |place| place.gap(gap.missed));
            }
            Frame::Closing(closing) => self.close(closing.why),
            Frame::Ended(ended) => {
                let reason = wire::from_reason(ended.reason).map_err(malformed)?;
                self.ended(reason.into(), &ended.evidence);
            }
            Frame::Opened(_) | Frame::Bye(_) => {
                return Err(Error::Protocol("a frame out of its turn".into()));
            }
        }
        Ok(())
    }

    fn alive(&mut self, now: Mono, alive: &proto::Alive) {
        let confirmed = self.beats.iter().find(|(n, _)| *n == alive.seq).map(|(_, sent)| *sent);
        self.beats.retain(|(n, _)| *n > alive.seq);
        let (Some(sent), Some(known), None) = (confirmed, self.known, &self.closing) else { return };
        let deadline = sent + lease::act_for(known.ttl);
        if now >= deadline {
            return;
        }
        self.deadline = self.deadline.max(Some(deadline));
        self.heard = self.heard.max(sent);
        self.warned = self.warned && self.is_near(now);
        if std::mem::take(&mut self.silent) {
            // Its readers were told that the service is away: each is told with a total that it is back.
            self.resyncs.extend(self.by_entry.keys());
        }
        if alive.waiting.len() < WAITING_MAX {
            let waiting: BTreeSet<EntryId> = alive.waiting.iter().copied().map(EntryId).collect();
            for place in self.places.values_mut() {
                if place.named(&waiting) == Need::Total {
                    self.resyncs.extend(place.entry);
                }
            }
        }
    }

    fn change(&mut self, change: &Arc<Change>) {
        let mut totals = Vec::new();
        self.in_group(&change.group, |place| {
            if place.change(change) == Need::Total {
                totals.extend(place.entry);
            }
        });
        self.resyncs.extend(totals);
    }

    fn in_group(&mut self, group: &Name, mut f: impl FnMut(&mut Place)) {
        for key in self.by_group.get(group).into_iter().flatten() {
            if let Some(place) = self.places.get_mut(key) {
                f(place);
            }
        }
    }

    fn total(&mut self, total: Total) {
        let entry = total.entry;
        let key = self.by_entry.get(&entry);
        let place = key.and_then(|key| self.places.get_mut(key));
        if place.is_some_and(|place| place.total(total) == Need::Total) {
            self.resyncs.push(entry);
        }
    }

    // ---- The reader of a group ------------------------------------------------------------------------

    /// The next advisory of a group; `None` if there is none now.
    pub(crate) fn advisory(&mut self, now: Mono, key: PlaceKey) -> Option<Advisory> {
        let (acts, remaining) = (self.acts(now), self.remaining(now));
        self.places.get_mut(&key)?.advisory(acts, remaining)
    }

    /// Whether the reader of a group has been told the last there is; asking again says that it came to rest.
    pub(crate) fn at_rest(&mut self, key: PlaceKey) -> bool {
        let Some(place) = self.places.get_mut(&key) else { return true };
        if !place.told_last() {
            return false;
        }
        place.stopped = true;
        self.stop_if_all_have();
        true
    }

    pub(crate) fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }
}

fn malformed(error: wire::Malformed) -> Error {
    Error::Protocol(error.0)
}

fn known(opened: &proto::Opened) -> Result<Known, Error> {
    Ok(Known {
        id: SessionId(opened.session),
        cluster: wire::from_cluster(&opened.cluster).map_err(malformed)?,
        ttl: Span::from_millis(opened.ttl_ms),
        on_disconnect: wire::from_on_disconnect(opened.on_disconnect).map_err(malformed)?,
    })
}

#[cfg(test)]
mod tests;
