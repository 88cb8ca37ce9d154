//! Central: one process is the coordinator, and lets the others in one by one.
//!
//! **Problem.** Mutual exclusion with the fewest messages.
//!
//! **Rule.** The coordinator grants to the first request of its queue when nobody holds the grant.
//!
//! **Messages**
//!
//! | name | fields | when |
//! |---|---|---|
//! | REQUEST | request, beat | on `enter`; with a lease again at each beat while waiting |
//! | GRANT | request, token, beat | to the first of the queue; again when the holder asks again |
//! | RELEASE | request | on `leave`, and for a grant that nobody waits for any more |
//! | RENEW | request, beat | with a lease, at each beat while inside |
//! | CONFIRM | request, beat | on RENEW of the holder |
//!
//! **Cost.** 3 messages an entry, none for the coordinator's own; 2 message times before an idle entry;
//! 2 from one to the next. First come, first served, in the order of arrival.
//!
//! **Safety.** One coordinator, one holder. With a lease the holder stops by itself, at the sending time of
//! the last beat that was answered plus the length of the lease less its margin, which is earlier than the
//! coordinator gives the grant away (module `lease`). Tokens grow with each grant.
//!
//! **Needs.** A coordinator whose disk survives, if it may restart (`durable`). Any order, loss (with a
//! lease) and doubling of messages do no harm.
//!
//! **When it fails.** A stopped coordinator stops all. A stopped holder stops all, unless there is a lease. A
//! coordinator that restarts without its record grants twice. With a lease, a holder that was paused, or
//! whose clock is slow beyond the margin, may still be inside: the guard at the resource refuses its token.
//!
//! **Source.** Textbook (Tanenbaum and van Steen, chapter on coordination); leases: Gray and Cheriton 1989.

use super::flaw::Flaw;
use super::{Call, Event, Mutex, Standing};
use crate::id::Token;
use crate::lease::{act_for, beat, kept_for};
use crate::protocol::{
    Cause, Goal, Ignored, Incarnation, Input, Kind, Now, Outbox, Peer, PersistId, ProcessId, Protocol,
    Request, Wait, Within,
};
use crate::time::{Mono, Span};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// How many unanswered beats a client remembers the sending time of. An answer to an older one is of no use.
const BEATS_KEPT: usize = 4;

/// See the table of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CentralMessage {
    /// May I enter?
    Request {
        /// Which request.
        request: Request,
        /// How often it was asked before.
        beat: u32,
    },
    /// You may.
    Grant {
        /// The request that is granted.
        request: Request,
        /// What to show to a guard.
        token: Token,
        /// The beat that is answered.
        beat: u32,
    },
    /// I am done.
    Release {
        /// The request whose grant is given back.
        request: Request,
    },
    /// I am still here.
    Renew {
        /// The request of the holder.
        request: Request,
        /// Which beat.
        beat: u32,
    },
    /// So you are.
    Confirm {
        /// The request of the holder.
        request: Request,
        /// The beat that is answered.
        beat: u32,
    },
}

impl Kind for CentralMessage {
    const KINDS: &'static [&'static str] = &["REQUEST", "GRANT", "RELEASE", "RENEW", "CONFIRM"];
    fn kind(&self) -> u8 {
        match self {
            Self::Request { .. } => 0,
            Self::Grant { .. } => 1,
            Self::Release { .. } => 2,
            Self::Renew { .. } => 3,
            Self::Confirm { .. } => 4,
        }
    }
    fn about(&self) -> Option<Request> {
        let (Self::Request { request, .. }
        | Self::Grant { request, .. }
        | Self::Release { request }
        | Self::Renew { request, .. }
        | Self::Confirm { request, .. }) = self;
        Some(*request)
    }
}

impl fmt::Display for CentralMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.about().unwrap_or_default())?;
        match self {
            Self::Grant { token, .. } => write!(f, " token {token}"),
            _ => Ok(()),
        }
    }
}

crate::kinds! {
    /// Its timers.
    #[derive(Serialize, Deserialize)]
    pub enum CentralTimer {
        /// A client with a lease speaks again.
        Beat = "beat",
        /// A holder's right ends, on its own clock.
        Deadline = "deadline",
        /// The coordinator gives a silent holder's grant away.
        Lease = "lease",
    }
}

/// What the coordinator keeps on disk before it grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CentralRecord {
    /// The greatest token that was given.
    pub token: Token,
    /// Whom it was given to.
    pub holder: Request,
}

/// One process: a client, or the coordinator, which may be a client as well.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Central {
    me: Peer,
    coordinator: ProcessId,
    lease: Option<Span>,
    durable: bool,
    flaw: Option<Flaw>,
    number: u64,
    role: Role,
    desk: Desk,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Role {
    Idle,
    Waiting(Beats),
    Inside(Beats),
}

/// When the last beats were sent, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Beats {
    last: u32,
    sent: Vec<(u32, Mono)>,
}

impl Beats {
    fn note(&mut self, now: Now) {
        if self.sent.len() == BEATS_KEPT {
            self.sent.remove(0);
        }
        self.sent.push((self.last, now.mono));
    }

    /// How much is left of a lease that was confirmed by an answer to this beat.
    fn left(&self, now: Now, beat: u32, lease: Span) -> Option<Span> {
        let (_, sent) = self.sent.iter().find(|(known, _)| *known == beat)?;
        let left = (*sent + act_for(lease)).since(now.mono);
        (left > Span::ZERO).then_some(left)
    }
}

/// What the coordinator knows. Elsewhere it stays empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Desk {
    token: Token,
    holder: Option<Holder>,
    queue: VecDeque<(Request, u32)>,
    /// The last request of each client that is over.
    over: Vec<Request>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Holder {
    request: Request,
    beat: u32,
    /// The record that has to be durable before it is told.
    writing: Option<PersistId>,
}

type Message = CentralMessage;

impl Central {
    /// A process before its start. With a `lease` a silent holder loses the grant after it: several seconds
    /// in production; too short costs false losses, too long costs waiting after a crash. `durable` makes the
    /// coordinator write each grant to disk before it tells it, so that it may restart.
    pub fn new(me: ProcessId, coordinator: ProcessId, lease: Option<Span>, durable: bool) -> Self {
        Self {
            me: Peer { process: me, incarnation: Incarnation(0) },
            coordinator,
            lease,
            durable,
            flaw: None,
            number: 0,
            role: Role::Idle,
            desk: Desk::default(),
        }
    }

    /// The same with one line left out, for tests.
    #[must_use]
    pub fn with_flaw(mut self, flaw: Option<Flaw>) -> Self {
        self.flaw = flaw;
        self
    }

    fn own(&self) -> Request {
        Request { by: self.me, number: self.number }
    }

    fn coordinates(&self) -> bool {
        self.me.process == self.coordinator
    }

    /// The same request under another name.
    fn rename(request: Request, map: &dyn Fn(ProcessId) -> ProcessId) -> Request {
        let by = Peer { process: map(request.by.process), ..request.by };
        Request { by, ..request }
    }

    // ---- the client

    fn enter(&mut self, now: Now, out: &mut Outbox<Self>) {
        if self.role != Role::Idle {
            return out.emit(Event::Refused { call: Call::Enter, standing: self.standing() });
        }
        self.number += 1;
        out.emit(Event::Requested { request: self.own() });
        if self.coordinates() {
            self.role = Role::Waiting(Beats::default());
            self.desk.queue.push_back((self.own(), 0));
            return self.grant_next(out);
        }
        let mut beats = Beats::default();
        if self.lease.is_some() {
            beats.note(now);
        }
        self.role = Role::Waiting(beats);
        out.send(self.coordinator, Message::Request { request: self.own(), beat: 0 });
        self.set_beat(out);
    }

    fn leave(&mut self, out: &mut Outbox<Self>) {
        if !matches!(self.role, Role::Inside(_)) {
            return out.emit(Event::Refused { call: Call::Leave, standing: self.standing() });
        }
        let request = self.own();
        self.end(out);
        out.emit(Event::Left { request });
        if self.coordinates() {
            self.released(request, out);
        } else {
            out.send(self.coordinator, Message::Release { request });
        }
    }

    fn end(&mut self, out: &mut Outbox<Self>) {
        self.role = Role::Idle;
        if self.lease.is_some() && !self.coordinates() {
            out.cancel_timer(CentralTimer::Beat);
            out.cancel_timer(CentralTimer::Deadline);
        }
    }

    fn set_beat(&self, out: &mut Outbox<Self>) {
        if let Some(lease) = self.lease {
            out.set_timer(CentralTimer::Beat, Within::exactly(beat(lease)));
        }
    }

    /// Asks again while waiting, renews while inside.
    fn beat(&mut self, now: Now, out: &mut Outbox<Self>) {
        let request = self.own();
        let (beats, inside) = match &mut self.role {
            Role::Idle => return,
            Role::Waiting(beats) => (beats, false),
            Role::Inside(beats) => (beats, true),
        };
        if self.lease.is_some() {
            beats.last += 1;
            beats.note(now);
        }
        let beat = beats.last;
        let message = match inside {
            true => Message::Renew { request, beat },
            false => Message::Request { request, beat },
        };
        out.send(self.coordinator, message);
        self.set_beat(out);
    }

    fn granted(&mut self, now: Now, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Grant { request, token, beat } = message else { return };
        if request != self.own() || self.role == Role::Idle {
            // Nobody waits for it: give it back, or everybody behind would wait for ever.
            out.ignore(from, &message, Ignored::Late);
            return out.send(self.coordinator, Message::Release { request });
        }
        let Role::Waiting(beats) = &self.role else { return out.ignore(from, &message, Ignored::Doubled) };
        if let Some(lease) = self.lease {
            let Some(left) = beats.left(now, beat, lease) else {
                return out.ignore(from, &message, Ignored::Late);
            };
            out.set_timer(CentralTimer::Deadline, Within::exactly(left));
        }
        self.role = Role::Inside(beats.clone());
        out.emit(Event::Entered { request, fence: Some(token) });
    }

    fn confirmed(&mut self, now: Now, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Confirm { request, beat } = message else { return };
        let left = match (&self.role, self.lease) {
            (Role::Inside(beats), Some(lease)) if request == self.own() => beats.left(now, beat, lease),
            _ => None,
        };
        match left {
            None => out.ignore(from, &message, Ignored::Late),
            Some(left) => {
                if let Role::Inside(beats) = &mut self.role {
                    // An answer to an older beat would shorten what a newer one has given.
                    beats.sent.retain(|(known, _)| *known >= beat);
                }
                out.set_timer(CentralTimer::Deadline, Within::exactly(left));
            }
        }
    }

    fn deadline(&mut self, out: &mut Outbox<Self>) {
        if matches!(self.role, Role::Inside(_)) {
            let request = self.own();
            self.end(out);
            out.emit(Event::Lost { request });
        }
    }

    // ---- the coordinator

    /// Why this request is not granted.
    fn withheld(&self, request: Request) -> Option<Cause> {
        match &self.desk.holder {
            Some(holder) if holder.request == request => holder.writing.map(|_| Cause::Disk),
            Some(holder) => Some(Cause::Held { by: holder.request }),
            None => match self.desk.queue.front() {
                Some((first, _)) if *first != request => Some(Cause::Earlier { request: *first }),
                _ => None,
            },
        }
    }

    fn asked(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Request { request, beat } = message else { return };
        if !self.coordinates() || request.by != from {
            return out.ignore(from, &message, Ignored::Malformed);
        }
        if self.desk.over.iter().any(|over| over.by == from && over.number >= request.number) {
            return out.ignore(from, &message, Ignored::Late);
        }
        if let Some(holder) = self.desk.holder.as_mut().filter(|holder| holder.request == request) {
            holder.beat = holder.beat.max(beat);
            return self.tell(out);
        }
        match self.desk.queue.iter_mut().find(|(known, _)| *known == request) {
            Some((_, known)) if *known >= beat => out.ignore(from, &message, Ignored::Doubled),
            Some((_, known)) => *known = beat,
            None => self.desk.queue.push_back((request, beat)),
        }
        self.grant_next(out);
    }

    fn grant_next(&mut self, out: &mut Outbox<Self>) {
        let Some((request, beat)) = self.desk.queue.front().copied() else { return };
        if self.withheld(request).is_some() {
            return;
        }
        self.desk.queue.pop_front();
        self.desk.token = Token(self.desk.token.0 + 1);
        let record = CentralRecord { token: self.desk.token, holder: request };
        let writing = self.durable.then(|| out.persist(record));
        self.desk.holder = Some(Holder { request, beat, writing });
        self.tell(out);
    }

    /// Tells the holder, once its record is durable.
    fn tell(&mut self, out: &mut Outbox<Self>) {
        let Some(Holder { request, beat, writing }) = self.desk.holder.clone() else { return };
        let token = self.desk.token;
        if request.by == self.me {
            if writing.is_none() && matches!(self.role, Role::Waiting(_)) {
                self.role = Role::Inside(Beats::default());
                out.emit(Event::Entered { request, fence: Some(token) });
            }
            return;
        }
        let grant = Message::Grant { request, token, beat };
        match writing {
            Some(record) if !Flaw::GrantNotDurable.is(self.flaw) => {
                out.send_after(record, request.by, grant);
            }
            _ => out.send(request.by, grant),
        }
        self.set_lease(out);
    }

    fn set_lease(&self, out: &mut Outbox<Self>) {
        if let Some(lease) = self.lease {
            let early = Flaw::EarlyGrant.is(self.flaw);
            let kept = if early { Span::from_millis(lease.as_millis() / 2) } else { kept_for(lease) };
            out.set_timer(CentralTimer::Lease, Within::exactly(kept));
        }
    }

    fn renewed(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Renew { request, beat } = message else { return };
        if self.desk.holder.as_ref().is_none_or(|holder| holder.request != request) {
            return out.ignore(from, &message, Ignored::Late);
        }
        out.send(from, Message::Confirm { request, beat });
        self.set_lease(out);
    }

    /// A request is over: its holder gave it back, or its lease has ended.
    fn released(&mut self, request: Request, out: &mut Outbox<Self>) {
        match self.desk.over.iter_mut().find(|over| over.by == request.by) {
            Some(over) => over.number = over.number.max(request.number),
            None => {
                self.desk.over.push(request);
                self.desk.over.sort_unstable();
            }
        }
        self.desk.queue.retain(|(waiting, _)| *waiting != request);
        let flaw = self.flaw;
        let frees = |held: &Holder| held.request == request || Flaw::ReleaseOfAnother.is(flaw);
        if self.desk.holder.as_ref().is_some_and(frees) {
            self.desk.holder = None;
            if self.lease.is_some() {
                out.cancel_timer(CentralTimer::Lease);
            }
        }
        self.grant_next(out);
    }

    /// The holder was silent for a whole lease. Its request is not over: one that slept through its grant still
    /// waits, and is granted again when it asks again. Who waits no more gives that grant back.
    fn expired(&mut self, out: &mut Outbox<Self>) {
        self.desk.holder = None;
        self.grant_next(out);
    }

    fn persisted(&mut self, id: PersistId, out: &mut Outbox<Self>) {
        let Some(holder) = &mut self.desk.holder else { return };
        if holder.writing.is_some_and(|writing| writing <= id) {
            holder.writing = None;
            if holder.request.by == self.me {
                self.tell(out);
            }
        }
    }

    /// A coordinator that comes back grants again to the one that it had granted to last: if that one has
    /// left meanwhile, it gives the grant back.
    fn start(&mut self, me: Peer, record: Option<CentralRecord>, out: &mut Outbox<Self>) {
        self.me = me;
        if let Some(CentralRecord { token, holder }) = record {
            self.desk.token = token;
            if holder.by.process != me.process {
                self.desk.holder = Some(Holder { request: holder, beat: 0, writing: None });
                self.tell(out);
            }
        }
    }
}

impl Protocol for Central {
    type Call = Call;
    type Message = CentralMessage;
    type Timer = CentralTimer;
    type Record = CentralRecord;
    type Event = Event;

    fn handle(&mut self, now: Now, input: Input<Self>, out: &mut Outbox<Self>) {
        match input {
            Input::Start { me, record } => self.start(me, record, out),
            Input::Call(Call::Enter) => self.enter(now, out),
            Input::Call(Call::Leave) => self.leave(out),
            Input::Message { from, message } => match message {
                Message::Request { .. } => self.asked(from, message, out),
                Message::Grant { .. } => self.granted(now, from, message, out),
                Message::Release { request } => self.released(request, out),
                Message::Renew { .. } => self.renewed(from, message, out),
                Message::Confirm { .. } => self.confirmed(now, from, message, out),
            },
            Input::Timer(CentralTimer::Beat) => self.beat(now, out),
            Input::Timer(CentralTimer::Deadline) => self.deadline(out),
            Input::Timer(CentralTimer::Lease) => self.expired(out),
            Input::Persisted(id) => self.persisted(id, out),
            Input::Trust(peer) => {
                if peer.process == self.coordinator && matches!(self.role, Role::Waiting(_)) {
                    self.beat(now, out);
                }
            }
            Input::Suspect(_) | Input::View { .. } => {}
        }
    }

    /// Names decide nothing here: the queue is in order of arrival.
    fn renamed(&self, map: &dyn Fn(ProcessId) -> ProcessId) -> Option<Self> {
        let mut other = self.clone();
        other.me.process = map(self.me.process);
        other.coordinator = map(self.coordinator);
        let desk = &mut other.desk;
        if let Some(holder) = &mut desk.holder {
            holder.request = Self::rename(holder.request, map);
        }
        desk.queue.iter_mut().for_each(|(request, _)| *request = Self::rename(*request, map));
        desk.over.iter_mut().for_each(|over| *over = Self::rename(*over, map));
        desk.over.sort_unstable();
        Some(other)
    }

    fn renamed_message(message: &Message, map: &dyn Fn(ProcessId) -> ProcessId) -> Message {
        let mut message = *message;
        match &mut message {
            Message::Request { request, .. }
            | Message::Grant { request, .. }
            | Message::Release { request }
            | Message::Renew { request, .. }
            | Message::Confirm { request, .. } => *request = Self::rename(*request, map),
        }
        message
    }

    fn waits(&self) -> Vec<Wait> {
        let mut waits = Vec::new();
        if matches!(self.role, Role::Waiting(_)) {
            let missing = Cause::Message { kind: "GRANT", from: self.coordinator, suspected: false };
            let cause = match self.coordinates() {
                true => self.withheld(self.own()),
                false => Some(missing),
            };
            waits.extend(cause.map(|cause| Wait { goal: Goal::Enter(self.own()), cause }));
        }
        let first = self.desk.holder.as_ref().filter(|holder| holder.writing.is_some());
        let queued = self.desk.queue.iter().map(|(request, _)| *request);
        let owed = first.map(|holder| holder.request).into_iter().chain(queued);
        waits.extend(owed.filter(|request| request.by != self.me).filter_map(|request| {
            let cause = self.withheld(request)?;
            Some(Wait { goal: Goal::Answer { kind: "GRANT", request }, cause })
        }));
        waits
    }
}

impl Mutex for Central {
    fn standing(&self) -> Standing {
        match self.role {
            Role::Idle => Standing::Idle,
            Role::Waiting(_) => Standing::Waiting,
            Role::Inside(_) => Standing::Inside,
        }
    }
}
