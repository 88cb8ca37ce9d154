//! The replicated service as a protocol, so that worlds and the search try every order of its commands.
//!
//! **Problem.** The state machine of the service is checked command by command; what users meet is the order
//! in which commands, doubled commands and timers reach the log.
//!
//! **Rule.** n1 is the log: it applies whatever arrives, in the order of arrival. The others are clients,
//! each with one session, that want the same lock.
//!
//! **Messages**
//!
//! | name | fields | when |
//! |---|---|---|
//! | COMMAND | request, the bytes of a proposal | on `enter` (a join) and on `leave` (a release) |
//! | ANSWER | request, place, token | when the command was applied, each time that it arrives |
//! | NOTICE | request, token | when a waiter gets the seat |
//! | ENDED | | when the session has ended |
//!
//! **Cost.** 4 messages an idle entry: a join, a release, and the answer to each; 5 for one that waited.
//!
//! **Safety.** What is asserted in the log at each step: tokens only grow (RULES R10), a doubled join finds
//! the place that it got first (R21), a grant goes to a session that lives. Two inside is for the checker.
//!
//! **Needs.** A client stops at its own deadline, which is earlier than the end of its lease in the log
//! (module `lease`): under [`crate::spot::Timing::Exact`] that holds, under `Any` only the guard is left.
//!
//! **When it fails.** A lost message is not sent again here. The log does not crash: its own engine is
//! simulated in `quorate-server`.

use quorate_core::id::{
    ClusterId, EntryId, Generation, LogIndex, Name, NodeId, Reign, RequestId, Secret, SessionId, Token,
};
use quorate_core::lease::{act_for, kept_for};
use quorate_core::mutex::{Call, Event, Mutex, Standing};
use quorate_core::protocol::{
    Cause, Goal, Ignored, Input, Kind, Now, Outbox, Peer, ProcessId, Protocol, Request, Wait, Within,
};
use quorate_core::state_machine::{
    Command, Event as Told, Face, Join, Limits, MemberKind, Mode, OnDisconnect, Op, PolicyWish, Proposal,
    Reply, StateMachine, Timer, codec,
};
use quorate_core::time::{Span, Wall};
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};

/// The most clients: each has a timer of its own in the log.
pub const CLIENTS_MAX: usize = 4;

const LOG: ProcessId = ProcessId(1);

/// See the table of the page.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceMessage {
    /// Apply this.
    Command {
        /// The request of the client that it serves.
        request: Request,
        /// A proposal, as the log keeps it.
        bytes: Vec<u8>,
    },
    /// It was applied.
    Answer {
        /// The request that it serves.
        request: Request,
        /// The place in the queue, for a join.
        entry: Option<EntryId>,
        /// The token, if the seat was free.
        token: Option<Token>,
    },
    /// The seat is yours now.
    Notice {
        /// The request that waited.
        request: Request,
        /// The place in the queue.
        entry: EntryId,
        /// The token of the seat.
        token: Token,
    },
    /// Your session has ended.
    Ended,
}

type Message = ServiceMessage;

impl Kind for ServiceMessage {
    const KINDS: &'static [&'static str] = &["COMMAND", "ANSWER", "NOTICE", "ENDED"];
    fn kind(&self) -> u8 {
        match self {
            Self::Command { .. } => 0,
            Self::Answer { .. } => 1,
            Self::Notice { .. } => 2,
            Self::Ended => 3,
        }
    }
    fn about(&self) -> Option<Request> {
        match self {
            Self::Command { request, .. } | Self::Answer { request, .. } | Self::Notice { request, .. } => {
                Some(*request)
            }
            Self::Ended => None,
        }
    }
}

impl fmt::Display for ServiceMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { request, bytes } => match codec::decode(bytes).map(|proposal| proposal.command) {
                Ok(Command::Call { op: Op::Join(_), .. }) => write!(f, "COMMAND {request} join"),
                _ => write!(f, "COMMAND {request} release"),
            },
            Self::Answer { request, token: Some(token), .. } => write!(f, "ANSWER {request} token {token}"),
            Self::Answer { request, .. } => write!(f, "ANSWER {request}"),
            Self::Notice { request, token, .. } => write!(f, "NOTICE {request} token {token}"),
            Self::Ended => write!(f, "ENDED"),
        }
    }
}

/// Its timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceTimer {
    /// In the log: the lease of the session of this client, counted from 0.
    Lease(u8),
    /// In a client: it may not act any more.
    Deadline,
}

impl Kind for ServiceTimer {
    const KINDS: &'static [&'static str] = &["lease-n2", "lease-n3", "lease-n4", "lease-n5", "deadline"];
    fn kind(&self) -> u8 {
        match self {
            Self::Lease(client) => *client,
            Self::Deadline => CLIENTS_MAX as u8,
        }
    }
}

impl fmt::Display for ServiceTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One process: the log, or a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    me: Peer,
    clients: usize,
    ttl: Span,
    part: Part,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Part {
    Log(Box<Log>),
    Client(Client),
}

/// What the log's process knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Log {
    machine: StateMachine,
    index: LogIndex,
    token: Token,
    /// Which request of which client a place belongs to.
    places: BTreeMap<EntryId, Request>,
    /// The place that each call was answered with first.
    answers: BTreeMap<(SessionId, RequestId), Option<EntryId>>,
    ended: Vec<SessionId>,
}

impl Hash for Log {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.machine.to_snapshot().hash(state);
        (self.index, self.token, &self.places, &self.ended).hash(state);
    }
}

/// What a client knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    /// Its requests so far; each is a join and perhaps a release, so it has made up to twice as many calls.
    number: u64,
    calls: u64,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Stage {
    #[default]
    Idle,
    /// The join was sent; the token may be known before the place is.
    Joining,
    /// In the queue.
    Queued,
    Inside(EntryId),
    /// The session has ended, here or there.
    Over,
}

impl Service {
    /// A process before its start: n1 is the log, the others are its clients, whose sessions have leases of
    /// `ttl` that nobody renews.
    ///
    /// # Panics
    /// There are more than [`CLIENTS_MAX`] clients.
    pub fn new(me: ProcessId, n: usize, ttl: Span) -> Self {
        assert!(n <= CLIENTS_MAX + 1, "{n} processes are too many");
        let part = match me {
            LOG => Part::Log(Box::default()),
            _ => Part::Client(Client::default()),
        };
        let me = Peer { process: me, ..Peer::default() };
        Self { me, clients: n - 1, ttl, part }
    }

    /// Whether this is the log.
    pub fn is_log(&self) -> bool {
        matches!(self.part, Part::Log(_))
    }

    fn start(&mut self, out: &mut Outbox<Self>) {
        let (clients, ttl) = (self.clients, self.ttl);
        match &mut self.part {
            Part::Client(_) => out.set_timer(ServiceTimer::Deadline, Within::exactly(act_for(ttl))),
            Part::Log(log) => {
                log.found(clients, ttl);
                for client in 0..clients {
                    out.set_timer(ServiceTimer::Lease(client as u8), Within::exactly(kept_for(ttl)));
                }
            }
        }
    }
}

/// The session of a client, as the log's opening issued it.
fn session_of(process: ProcessId) -> SessionId {
    SessionId(u64::from(process.0) - 1)
}

fn client_of(session: SessionId) -> ProcessId {
    ProcessId(session.0 as u32 + 1)
}

fn lock() -> Name {
    Name::new("lock").expect("it is a name")
}

fn join(me: ProcessId) -> Op {
    Op::Join(Join {
        group: lock(),
        face: Face::Lock,
        kind: MemberKind::Full,
        mode: Mode::Exclusive,
        wait: true,
        name: me.to_string(),
        metadata: BTreeMap::new(),
        weight: 0,
        policy: PolicyWish::default(),
    })
}

impl Log {
    fn found(&mut self, clients: usize, ttl: Span) {
        let found = Command::Found { cluster: ClusterId(1), limits: Limits::default() };
        self.apply(found);
        self.apply(Command::Begin { node: NodeId(1), nonce: 1 });
        for client in 1..=clients as u64 {
            let open = Command::Open {
                secret: Secret(u128::from(client)),
                ttl,
                on_disconnect: OnDisconnect::Hold,
                label: String::new(),
            };
            let (reply, _) = self.apply(open);
            assert!(matches!(reply, Reply::Opened(opened) if opened.session == SessionId(client)));
        }
    }

    fn apply(&mut self, command: Command) -> (Reply, Vec<Told>) {
        self.index = LogIndex(self.index.0 + 1);
        let applied = self.machine.apply(self.index, &Proposal { at: Wall(0), command });
        (applied.reply, applied.events)
    }

    /// A token is greater than all before, and goes to a session that lives.
    fn granted(&mut self, session: SessionId, token: Token) {
        assert!(token > self.token, "token {token} after {}", self.token);
        assert!(!self.ended.contains(&session), "session {session} has ended");
        self.token = token;
    }

    fn command(&mut self, from: Peer, request: Request, bytes: &[u8], out: &mut Outbox<Service>) {
        let Ok(Proposal { command, .. }) = codec::decode(bytes) else { return };
        let Command::Call { session, request: call, .. } = command else { return };
        let (reply, events) = self.apply(command);
        let answer = match &reply {
            Reply::Joined(total) => {
                let token = total.place.seat.map(|seat| seat.token);
                self.places.insert(total.entry, request);
                Message::Answer { request, entry: Some(total.entry), token }
            }
            _ => Message::Answer { request, entry: None, token: None },
        };
        if let Message::Answer { entry, token, .. } = &answer
            && !matches!(reply, Reply::Refused(_))
        {
            match self.answers.get(&(session, call)) {
                Some(first) => assert_eq!(first, entry, "a doubled join finds the place that it got first"),
                None => {
                    if let Some(token) = token {
                        self.granted(session, *token);
                    }
                    self.answers.insert((session, call), *entry);
                }
            }
        }
        out.send(from, answer);
        self.tell(&events, Some(request), out);
    }

    /// Tells waiters of their grants, but for the one that is answered.
    fn tell(&mut self, events: &[Told], answered: Option<Request>, out: &mut Outbox<Service>) {
        for event in events {
            match event {
                Told::Change { change, .. } => {
                    for changed in &change.changed {
                        let before = changed.before.and_then(|place| place.seat);
                        let after = changed.after.and_then(|place| place.seat);
                        let (Some(seat), Some(request)) = (after, self.places.get(&changed.entry).copied())
                        else {
                            continue;
                        };
                        if before.is_none() && Some(request) != answered {
                            self.granted(changed.session, seat.token);
                            let notice = Message::Notice { request, entry: changed.entry, token: seat.token };
                            out.send(client_of(changed.session), notice);
                        }
                    }
                }
                Told::Ended { session, .. } => {
                    self.ended.push(*session);
                    out.send(client_of(*session), Message::Ended);
                }
                _ => {}
            }
        }
    }

    fn lease_ends(&mut self, client: u8, out: &mut Outbox<Service>) {
        let session = SessionId(u64::from(client) + 1);
        let Some(view) = self.machine.session_view(session) else { return };
        let timer = Timer::Lease { session, generation: view.lease.0 };
        let (_, events) = self.apply(Command::TimerFired { timer, reign: Reign(1), silent: Span::ZERO });
        self.tell(&events, None, out);
    }

    /// The request that holds the lock.
    fn holder(&self) -> Option<Request> {
        let view = self.machine.group_view(&lock(), 0)?;
        self.places.get(&view.holders.first()?.entry).copied()
    }

    fn waits(&self) -> Vec<Wait> {
        let Some(view) = self.machine.group_view(&lock(), usize::MAX) else { return Vec::new() };
        let waiting = view.waiters.iter().filter_map(|waiter| {
            let (request, by) = (self.places.get(&waiter.entry).copied()?, self.holder()?);
            Some(Wait { goal: Goal::Answer { kind: "NOTICE", request }, cause: Cause::Held { by } })
        });
        waiting.collect()
    }
}

impl Client {
    fn own(&self, me: Peer) -> Request {
        Request { by: me, number: self.number }
    }

    fn call(&mut self, me: Peer, op: Op, out: &mut Outbox<Service>) {
        self.calls += 1;
        let command = Command::Call {
            session: session_of(me.process),
            generation: Generation(1),
            request: RequestId(self.calls),
            acknowledged: RequestId(0),
            op,
        };
        let bytes = codec::encode(&Proposal { at: Wall(0), command });
        out.send(LOG, Message::Command { request: self.own(me), bytes });
    }

    fn enter(&mut self, me: Peer, out: &mut Outbox<Service>) {
        if self.stage != Stage::Idle {
            return out.emit(Event::Refused { call: Call::Enter, standing: self.standing() });
        }
        self.number += 1;
        out.emit(Event::Requested { request: self.own(me) });
        self.stage = Stage::Joining;
        self.call(me, join(me.process), out);
    }

    fn leave(&mut self, me: Peer, out: &mut Outbox<Service>) {
        let Stage::Inside(entry) = self.stage else {
            return out.emit(Event::Refused { call: Call::Leave, standing: self.standing() });
        };
        self.stage = Stage::Idle;
        out.emit(Event::Left { request: self.own(me) });
        self.call(me, Op::Release { entry }, out);
    }

    fn told(&mut self, me: Peer, from: Peer, message: &Message, out: &mut Outbox<Service>) {
        let waiting = matches!(self.stage, Stage::Joining | Stage::Queued);
        match message {
            Message::Answer { request, entry: Some(entry), token: Some(token) }
            | Message::Notice { request, entry, token }
                if waiting && *request == self.own(me) =>
            {
                self.stage = Stage::Inside(*entry);
                out.emit(Event::Entered { request: *request, fence: Some(*token) });
            }
            Message::Answer { request, entry: Some(_), token: None }
                if self.stage == Stage::Joining && *request == self.own(me) =>
            {
                self.stage = Stage::Queued;
            }
            Message::Ended => self.end(me, out),
            Message::Answer { .. } | Message::Notice { .. } => out.ignore(from, message, Ignored::Late),
            Message::Command { .. } => out.ignore(from, message, Ignored::Malformed),
        }
    }

    fn end(&mut self, me: Peer, out: &mut Outbox<Service>) {
        if matches!(self.stage, Stage::Inside(_)) {
            out.emit(Event::Lost { request: self.own(me) });
        }
        self.stage = Stage::Over;
    }

    fn standing(&self) -> Standing {
        match self.stage {
            Stage::Joining | Stage::Queued => Standing::Waiting,
            Stage::Inside(_) => Standing::Inside,
            Stage::Idle | Stage::Over => Standing::Idle,
        }
    }
}

impl Protocol for Service {
    type Call = Call;
    type Message = ServiceMessage;
    type Timer = ServiceTimer;
    type Record = ();
    type Event = Event;

    fn handle(&mut self, _now: Now, input: Input<Self>, out: &mut Outbox<Self>) {
        if let Input::Start { me, .. } = input {
            self.me = me;
            return self.start(out);
        }
        match (&mut self.part, input) {
            (Part::Client(client), Input::Call(Call::Enter)) => client.enter(self.me, out),
            (Part::Client(client), Input::Call(Call::Leave)) => client.leave(self.me, out),
            (Part::Client(client), Input::Message { from, message }) => {
                client.told(self.me, from, &message, out);
            }
            (Part::Client(client), Input::Timer(_)) => client.end(self.me, out),
            (Part::Log(log), Input::Message { from, message }) => match &message {
                Message::Command { request, bytes } => log.command(from, *request, bytes, out),
                _ => out.ignore(from, &message, Ignored::Malformed),
            },
            (Part::Log(log), Input::Timer(ServiceTimer::Lease(client))) => log.lease_ends(client, out),
            (Part::Log(_), Input::Call(call)) => out.emit(Event::Refused { call, standing: Standing::Idle }),
            _ => {}
        }
    }

    fn waits(&self) -> Vec<Wait> {
        match &self.part {
            Part::Log(log) => log.waits(),
            Part::Client(client) => {
                let missing = |kind| Cause::Message { kind, from: LOG, suspected: false };
                let cause = match client.stage {
                    Stage::Joining => missing("ANSWER"),
                    Stage::Queued => missing("NOTICE"),
                    _ => return Vec::new(),
                };
                vec![Wait { goal: Goal::Enter(client.own(self.me)), cause }]
            }
        }
    }
}

impl Mutex for Service {
    fn standing(&self) -> Standing {
        match &self.part {
            Part::Log(_) => Standing::Idle,
            Part::Client(client) => client.standing(),
        }
    }
}
