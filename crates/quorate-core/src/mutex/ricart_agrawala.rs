//! Ricart-Agrawala: who wants to enter asks everybody, and whoever wants it less replies at once.
//!
//! **Problem.** Mutual exclusion without a coordinator, in the order of the requests.
//!
//! **Rule.** A process replies to a request unless it is inside, or its own outstanding request has the
//! smaller (timestamp, process); then it replies when it leaves. Who has all replies is inside.
//!
//! **Messages**
//!
//! | name | fields | when |
//! |---|---|---|
//! | REQUEST | request, timestamp, ask | on `enter`, to all others; again when an answer may be worth nothing |
//! | REPLY | request, ask | on REQUEST, or on `leave` if it was held back |
//!
//! **Cost.** 2(N-1) messages an entry; 2 message times before an idle entry; 1 from one to the next.
//!
//! **Safety.** Of two that wait, only one replies to the other, as both compare the same pair of timestamps;
//! a process that has replied to a request stamps its own later ones higher. A restart forgets that stamp, so
//! a reply is worth something only as long as no other life of its sender was heard from: then the process
//! asks again, under a new `ask` number, and the old reply counts no more. It also asks again whom a detector
//! says to run while its reply is missing: the life that was asked may be over.
//!
//! **Needs.** Members that are known to all; a `View` may only take some away.
//! Any order of messages, and doubled ones, do no harm. Loss does,
//! unless `retry` is set: then who waits asks again.
//!
//! **When it fails.** If one member stops, every requester waits for its reply for ever; removing it is a
//! membership decision (`View`), not a timeout. A removed one that is merely slow may still be inside.
//!
//! **Source.** Ricart and Agrawala 1981; kept permissions: Carvalho and Roucairol 1983, who ask again when one
//! is given away while waiting. Asking again after a restart is ours.

use super::flaw::Flaw;
use super::{Call, Event, Mutex, Standing};
use crate::protocol::{
    Cause, Goal, Ignored, Incarnation, Input, Kind, Members, Now, Outbox, Peer, ProcessId, Protocol, Request,
    Wait, Within,
};
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// See the table of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RicartAgrawalaMessage {
    /// May I enter?
    Request {
        /// Which request.
        request: Request,
        /// Its Lamport timestamp.
        stamp: u64,
        /// Which time it is asked; an answer names it.
        ask: u32,
    },
    /// You may, as far as I am concerned.
    Reply {
        /// The request that is answered.
        request: Request,
        /// The ask that is answered.
        ask: u32,
    },
}

impl Kind for RicartAgrawalaMessage {
    const KINDS: &'static [&'static str] = &["REQUEST", "REPLY"];
    fn kind(&self) -> u8 {
        match self {
            Self::Request { .. } => 0,
            Self::Reply { .. } => 1,
        }
    }
    fn about(&self) -> Option<Request> {
        let (Self::Request { request, .. } | Self::Reply { request, .. }) = self;
        Some(*request)
    }
}

impl fmt::Display for RicartAgrawalaMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request { request, stamp, .. } => write!(f, "REQUEST {request} time {stamp}"),
            Self::Reply { request, .. } => write!(f, "REPLY {request}"),
        }
    }
}

crate::kinds! {
    /// Its timers.
    #[derive(Serialize, Deserialize)]
    pub enum RicartAgrawalaTimer {
        /// Those that have not replied are asked again.
        Ask = "ask",
    }
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RicartAgrawala {
    me: Peer,
    members: Members,
    retry: Option<Within>,
    flaw: Option<Flaw>,
    /// The highest timestamp seen.
    clock: u64,
    /// The number of the last request of this life.
    number: u64,
    role: Role,
    /// Requests that wait for a reply of this process, in order of requesters.
    deferred: Vec<(Request, u32)>,
    /// The life in which each other process was last heard from.
    lives: Vec<(ProcessId, Incarnation)>,
    suspected: Vec<ProcessId>,
    /// Whose permission was not given away since it was last inside, if permissions are kept.
    kept: Option<Vec<ProcessId>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Role {
    Idle,
    Waiting {
        stamp: u64,
        /// How often anybody was asked again.
        ask: u32,
        /// Whose replies are missing, and to which ask.
        missing: Vec<(ProcessId, u32)>,
    },
    Inside,
}

type Message = RicartAgrawalaMessage;

impl RicartAgrawala {
    /// A process before its start. `retry` is how long it waits before it asks again, for links that lose
    /// messages: several round trips at least, or messages are wasted; none on links that lose nothing.
    pub fn new(me: ProcessId, members: Members, retry: Option<Within>) -> Self {
        Self {
            me: Peer { process: me, incarnation: Incarnation(0) },
            members,
            retry,
            flaw: None,
            clock: 0,
            number: 0,
            role: Role::Idle,
            deferred: Vec::new(),
            lives: Vec::new(),
            suspected: Vec::new(),
            kept: None,
        }
    }

    /// The same, keeping the permission of a process until that one asks in its turn: 0 to 2(N-1) messages
    /// an entry. If it asks while this one waits, this one asks it again.
    #[must_use]
    pub fn with_kept_permissions(mut self) -> Self {
        self.kept = Some(Vec::new());
        self
    }

    /// The same with one line left out, for tests.
    #[must_use]
    pub fn with_flaw(mut self, flaw: Option<Flaw>) -> Self {
        self.flaw = flaw;
        self
    }

    /// The same, with a Lamport clock that has seen this timestamp.
    #[must_use]
    pub fn with_clock(mut self, seen: u64) -> Self {
        self.clock = seen;
        self
    }

    fn own(&self) -> Request {
        Request { by: self.me, number: self.number }
    }

    /// Why a reply to this request has to wait.
    fn withheld(&self, stamp: u64, by: ProcessId) -> Option<Cause> {
        match &self.role {
            Role::Inside => Some(Cause::Held { by: self.own() }),
            Role::Waiting { stamp: own, .. } if (*own, self.me.process) < (stamp, by) => {
                Some(Cause::Earlier { request: self.own() })
            }
            Role::Waiting { .. } | Role::Idle => None,
        }
    }

    fn enter(&mut self, out: &mut Outbox<Self>) {
        if self.role != Role::Idle {
            return out.emit(Event::Refused { call: Call::Enter, standing: self.standing() });
        }
        self.clock += 1;
        self.number += 1;
        let request = self.own();
        out.emit(Event::Requested { request });
        let stamp = self.clock;
        let kept = self.kept.as_deref().unwrap_or_default();
        let asked = self.members.others(self.me.process).filter(|other| !kept.contains(other));
        let missing: Vec<_> = asked.map(|other| (other, 0)).collect();
        for (other, ask) in &missing {
            out.send(*other, Message::Request { request, stamp, ask: *ask });
        }
        if let Some(within) = self.retry {
            out.set_timer(RicartAgrawalaTimer::Ask, within);
        }
        self.role = Role::Waiting { stamp, ask: 0, missing };
        self.settle(out);
    }

    fn leave(&mut self, out: &mut Outbox<Self>) {
        if self.role != Role::Inside {
            return out.emit(Event::Refused { call: Call::Leave, standing: self.standing() });
        }
        self.role = Role::Idle;
        out.emit(Event::Left { request: self.own() });
        for (request, ask) in core::mem::take(&mut self.deferred) {
            self.give_away(request.by.process);
            out.send(request.by, Message::Reply { request, ask });
        }
    }

    /// The permission of this process is not to be relied on any more. Says whether it was.
    fn give_away(&mut self, process: ProcessId) -> bool {
        let Some(kept) = &mut self.kept else { return false };
        let before = kept.len();
        kept.retain(|other| *other != process);
        kept.len() < before
    }

    /// Enters if nothing is missing.
    fn settle(&mut self, out: &mut Outbox<Self>) {
        let Role::Waiting { missing, .. } = &self.role else { return };
        if missing.is_empty() {
            if self.retry.is_some() {
                out.cancel_timer(RicartAgrawalaTimer::Ask);
            }
            self.role = Role::Inside;
            if let Some(kept) = &mut self.kept {
                *kept = self.members.others(self.me.process).collect();
            }
            out.emit(Event::Entered { request: self.own(), fence: None });
        }
    }

    /// Notes who speaks. Another life than before has forgotten what it was asked, and its former self's
    /// reply binds it no more.
    fn heard(&mut self, from: Peer, out: &mut Outbox<Self>) {
        match self.lives.iter_mut().find(|(process, _)| *process == from.process) {
            None => {
                self.lives.push((from.process, from.incarnation));
                self.lives.sort_unstable();
            }
            Some((_, life)) if *life == from.incarnation => {}
            Some((_, life)) => {
                *life = from.incarnation;
                self.ask_again(from.process, out);
            }
        }
    }

    fn ask_again(&mut self, process: ProcessId, out: &mut Outbox<Self>) {
        let request = self.own();
        let Role::Waiting { stamp, ask, missing } = &mut self.role else { return };
        if Flaw::NotAskedAgain.is(self.flaw) {
            return;
        }
        *ask += 1;
        missing.retain(|(other, _)| *other != process);
        missing.push((process, *ask));
        missing.sort_unstable();
        out.send(process, Message::Request { request, stamp: *stamp, ask: *ask });
    }

    fn asked(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Request { request, stamp, ask } = message else { return };
        if request.by != from {
            return out.ignore(from, &message, Ignored::Malformed);
        }
        self.clock = self.clock.max(stamp);
        if self.withheld(stamp, from.process).is_none() {
            let relied = self.give_away(from.process);
            out.send(from, Message::Reply { request, ask });
            let waits = matches!(self.role, Role::Waiting { .. });
            if relied && waits && !Flaw::PermissionKept.is(self.flaw) {
                self.ask_again(from.process, out);
            }
            return;
        }
        match self.deferred.iter_mut().find(|(known, _)| known.by == from) {
            Some(known) if *known >= (request, ask) => out.ignore(from, &message, Ignored::Doubled),
            Some(known) => *known = (request, ask),
            None => {
                self.deferred.push((request, ask));
                self.deferred.sort_unstable();
            }
        }
    }

    fn replied(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Reply { request, ask } = message else { return };
        let (own, flaw) = (self.own(), self.flaw);
        let Role::Waiting { missing, .. } = &mut self.role else {
            return out.ignore(from, &message, Ignored::Late);
        };
        let answers = |wanted: &(ProcessId, u32)| {
            wanted.0 == from.process
                && (request == own && wanted.1 == ask || Flaw::ReplyOfAnotherLife.is(flaw))
        };
        match missing.iter().position(answers) {
            Some(found) => {
                missing.remove(found);
                self.settle(out);
            }
            None => out.ignore(from, &message, Ignored::Late),
        }
    }

    fn retry(&mut self, out: &mut Outbox<Self>) {
        let request = self.own();
        let (Role::Waiting { stamp, missing, .. }, Some(within)) = (&self.role, self.retry) else { return };
        for (process, ask) in missing {
            out.send(*process, Message::Request { request, stamp: *stamp, ask: *ask });
        }
        out.set_timer(RicartAgrawalaTimer::Ask, within);
    }

    fn trusted(&mut self, peer: Peer, out: &mut Outbox<Self>) {
        self.suspected.retain(|process| *process != peer.process);
        if peer.process != self.me.process && self.members.contains(peer.process) {
            // A life that was never heard of may have stopped with the request in its hands, and whoever
            // speaks now may be the next one.
            let asked = self.asks();
            self.heard(peer, out);
            if self.misses(peer.process) && self.asks() == asked {
                self.ask_again(peer.process, out);
            }
        }
    }

    /// How often anybody was asked again for the present request.
    fn asks(&self) -> Option<u64> {
        match &self.role {
            Role::Waiting { ask, .. } => Some((*ask).into()),
            _ => None,
        }
    }

    fn misses(&self, process: ProcessId) -> bool {
        match &self.role {
            Role::Waiting { missing, .. } => missing.iter().any(|(other, _)| *other == process),
            _ => false,
        }
    }

    fn view(&mut self, members: Members, out: &mut Outbox<Self>) {
        let stays = |process: ProcessId| members.contains(process);
        self.deferred.retain(|(request, _)| stays(request.by.process));
        self.suspected.retain(|process| stays(*process));
        if let Role::Waiting { missing, .. } = &mut self.role {
            missing.retain(|(process, _)| stays(*process));
        }
        self.members = members;
        self.settle(out);
    }
}

impl Protocol for RicartAgrawala {
    type Call = Call;
    type Message = RicartAgrawalaMessage;
    type Timer = RicartAgrawalaTimer;
    type Record = ();
    type Event = Event;

    fn handle(&mut self, _now: Now, input: Input<Self>, out: &mut Outbox<Self>) {
        match input {
            Input::Start { me, .. } => self.me = me,
            Input::Call(Call::Enter) => self.enter(out),
            Input::Call(Call::Leave) => self.leave(out),
            Input::Message { from, message } if !self.members.contains(from.process) => {
                out.ignore(from, &message, Ignored::Stranger);
            }
            Input::Message { from, message } => {
                self.heard(from, out);
                match message {
                    Message::Request { .. } => self.asked(from, message, out),
                    Message::Reply { .. } => self.replied(from, message, out),
                }
            }
            Input::Timer(RicartAgrawalaTimer::Ask) => self.retry(out),
            Input::Suspect(process) => {
                if !self.suspected.contains(&process) {
                    self.suspected.push(process);
                    self.suspected.sort_unstable();
                }
            }
            Input::Trust(peer) => self.trusted(peer, out),
            Input::View { members, .. } => self.view(members, out),
            Input::Persisted(_) => {}
        }
    }

    fn waits(&self) -> Vec<Wait> {
        let mut waits = Vec::new();
        if let Role::Waiting { missing, .. } = &self.role {
            waits.extend(missing.iter().map(|(from, _)| {
                let suspected = self.suspected.contains(from);
                let cause = Cause::Message { kind: "REPLY", from: *from, suspected };
                Wait { goal: Goal::Enter(self.own()), cause }
            }));
        }
        waits.extend(self.deferred.iter().filter_map(|(request, _)| {
            // What was deferred stays so until this process leaves: any later stamp is withheld as well.
            let cause = self.withheld(u64::MAX, request.by.process)?;
            Some(Wait { goal: Goal::Answer { kind: "REPLY", request: *request }, cause })
        }));
        waits
    }
}

impl Mutex for RicartAgrawala {
    fn standing(&self) -> Standing {
        match self.role {
            Role::Idle => Standing::Idle,
            Role::Waiting { .. } => Standing::Waiting,
            Role::Inside => Standing::Inside,
        }
    }
}
