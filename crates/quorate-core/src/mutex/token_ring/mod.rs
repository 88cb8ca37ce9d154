//! Token ring: one token goes round, and who has it may be inside.
//!
//! **Problem.** Mutual exclusion for many that want it often: under load it costs one message an entry.
//!
//! **Rule.** Only the process that has the token of the newest generation is inside; it passes the token on
//! to the next one that is not suspected.
//!
//! **Messages**
//!
//! | name | fields | when |
//! |---|---|---|
//! | TOKEN | token, toward | to the next one: always (`Circulate`), or if somebody wants it (`Park`) |
//! | REQUEST | request, hops | `Park`: on `enter`, to the one before, and on to the token or one that waits |
//! | ACK | token | repair: on TOKEN |
//! | REFUSED | token, newest | repair: on a TOKEN, CLAIM or HELD that is too old |
//! | CLAIM | generation, trial | repair: to all, when the token seems lost: first on trial, then in earnest |
//! | PROMISE | generation, trial | repair: on CLAIM: older generations will be refused |
//! | HELD | generation, token | repair: on CLAIM, by who has the token or is passing it on |
//!
//! **Cost.** `Circulate`: 1 to N-1 TOKEN for an entry at low load, 1 if everybody wants it; the token goes on
//! when nobody does. `Park`: at distance d from the token d REQUEST and d TOKEN, d from 1 to N-1, and nothing
//! if the token is here; under load 1 and 1. With repair as many ACK as TOKEN. 0 to N-1 hops of delay.
//!
//! **Safety.** A token is named by its generation and a count that grows with each hop and entry; nobody
//! receives a count twice. A generation has one owner, by its number, and is durable before it is spoken of.
//! Who passed the token and does not hear of it never takes it back: it claims a new generation. For that
//! a majority promises to refuse older ones, and everybody not suspected either promises or says HELD.
//! So at most one token in a generation; and if only the dead are suspected, at most one inside.
//! A life takes no part in a generation that its former self may have been in.
//!
//! **Needs.** Any order of messages, and doubled ones, do no harm. Without `repair` no message may be lost
//! and no process may stop. With it: a majority, a detector, disks that survive, and `retry` if links lose.
//! The first member's first record is durable before anybody may claim: the first token is made by it alone, so
//! if it stops before and comes back when a claim has succeeded, it makes a second one, of the older generation.
//!
//! **When it fails.** A process that is suspected but slow may still be inside when the next generation is:
//! the guard at the resource refuses it, as fences grow with generations, and it stops when it hears of it.
//! Who is suspected for ever waits for ever. Who restarts without its disk may make or receive a token of an
//! old generation. Members never change: a `View` is ignored.
//!
//! **Source.** Le Lann 1977. Asking backwards along the ring is as in Raymond 1989, on a ring. Regeneration
//! by majority promises is after Lamport 1998; RULES R44.

mod message;

pub use message::{RingToken, TokenRingMessage, TokenRingRecord, TokenRingTimer};

use super::flaw::Flaw;
use super::{Call, Event, Mutex, Standing};
use crate::protocol::{
    Cause, Goal, Ignored, Incarnation, Input, Members, Now, Outbox, Peer, PersistId, ProcessId, Protocol,
    Request, Wait, Within,
};
use crate::time::Span;
use alloc::vec::Vec;

/// What the token does while nobody wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdleToken {
    /// It goes round.
    Circulate {
        /// How long it rests at each process; at zero it goes on at once.
        rest: Within,
    },
    /// It stays where it was used last, until somebody asks.
    Park,
}

/// How a lost token is found missing and made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repair {
    /// How long one waits before it claims that the token is lost: more than N entries and hops, or claims
    /// are made in vain, which costs messages but nothing else.
    pub silence: Within,
    /// How long one waits for an ACK before it passes the same token to the same process again; none on
    /// links that lose nothing.
    pub retry: Option<Within>,
}

/// One process of the ring.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TokenRing {
    me: Peer,
    members: Members,
    idle: IdleToken,
    repair: Option<Repair>,
    flaw: Option<Flaw>,
    /// The number of the last request of this life.
    number: u64,
    standing: Standing,
    place: Place,
    /// The newest token that was here in this life.
    seen: RingToken,
    /// Older generations are refused.
    generation: u64,
    /// The first generation that this life takes part in.
    since: u64,
    /// The newest generation that was heard of.
    newest: u64,
    /// The record that has to be durable before anything is said that rests on it.
    writing: Option<PersistId>,
    claim: Option<Claim>,
    /// The farthest request that the token has to go to from here.
    wanted: Option<Request>,
    /// Whom the own request was sent to.
    asked: Option<ProcessId>,
    /// Where the token was last known to be.
    known: Option<ProcessId>,
    suspected: Vec<ProcessId>,
}

/// Where the token is, as far as this process is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Elsewhere,
    Here(RingToken),
    /// It was passed to another one, who has not confirmed.
    Passing {
        token: RingToken,
        toward: Option<Request>,
        to: ProcessId,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Claim {
    generation: u64,
    trial: bool,
    promised: Vec<ProcessId>,
}

type Message = TokenRingMessage;

impl TokenRing {
    /// A process before its start. The first member begins with the token. Without `repair` the ring is the
    /// plain one of the textbooks, which survives no fault.
    pub fn new(me: ProcessId, members: Members, idle: IdleToken, repair: Option<Repair>) -> Self {
        Self {
            me: Peer { process: me, incarnation: Incarnation(0) },
            members,
            idle,
            repair,
            flaw: None,
            number: 0,
            standing: Standing::Idle,
            place: Place::Elsewhere,
            seen: RingToken::default(),
            generation: 1,
            since: 1,
            newest: 1,
            writing: None,
            claim: None,
            wanted: None,
            asked: None,
            known: None,
            suspected: Vec::new(),
        }
    }

    /// The same with one line left out, for tests.
    #[must_use]
    pub fn with_flaw(mut self, flaw: Option<Flaw>) -> Self {
        self.flaw = flaw;
        self
    }

    /// Who this is.
    pub fn peer(&self) -> Peer {
        self.me
    }

    /// The token, if it is here.
    pub fn token(&self) -> Option<RingToken> {
        match self.place {
            Place::Here(token) => Some(token),
            Place::Elsewhere | Place::Passing { .. } => None,
        }
    }

    fn own(&self) -> Request {
        Request { by: self.me, number: self.number }
    }

    fn parks(&self) -> bool {
        self.idle == IdleToken::Park
    }

    fn runs(&self, process: ProcessId) -> bool {
        !self.suspected.contains(&process)
    }

    /// How many steps on in the ring another process is, from 1 to N; N is this process.
    fn distance(&self, to: ProcessId) -> usize {
        let place = |process| self.members.iter().position(|member| member == process).unwrap_or(0);
        (place(to) + self.members.count() - place(self.me.process) - 1) % self.members.count() + 1
    }

    /// The next one that is not suspected.
    fn next(&self) -> Option<ProcessId> {
        let others = self.members.others(self.me.process).filter(|other| self.runs(*other));
        others.min_by_key(|other| self.distance(*other))
    }

    /// The one before that is not suspected.
    fn before(&self) -> Option<ProcessId> {
        let others = self.members.others(self.me.process).filter(|other| self.runs(*other));
        others.max_by_key(|other| self.distance(*other))
    }

    /// Sends what rests on the record, once that is durable.
    fn send(&self, to: ProcessId, message: Message, out: &mut Outbox<Self>) {
        match self.writing {
            Some(record) => out.send_after(record, to, message),
            None => out.send(to, message),
        }
    }

    /// Refuses older generations from now on.
    fn promise(&mut self, generation: u64, out: &mut Outbox<Self>) {
        assert!(generation > self.generation, "promises grow");
        self.generation = generation;
        self.newest = self.newest.max(generation);
        if self.repair.is_some() {
            self.writing = Some(out.persist(TokenRingRecord { generation }));
        }
    }

    fn start(&mut self, me: Peer, record: Option<TokenRingRecord>, out: &mut Outbox<Self>) {
        self.me = me;
        match record {
            Some(TokenRingRecord { generation }) => {
                self.generation = generation;
                self.newest = generation;
                let again = Flaw::SameGeneration.is(self.flaw);
                self.since = generation + u64::from(!again);
            }
            None => {
                if self.repair.is_some() {
                    self.writing = Some(out.persist(TokenRingRecord { generation: 1 }));
                }
                if self.members.iter().next() == Some(me.process) {
                    self.place = Place::Here(RingToken { generation: 1, count: 0 });
                    self.settle(out);
                }
            }
        }
    }

    // ---- the application

    fn enter(&mut self, out: &mut Outbox<Self>) {
        if self.standing != Standing::Idle {
            return out.emit(Event::Refused { call: Call::Enter, standing: self.standing });
        }
        self.number += 1;
        self.standing = Standing::Waiting;
        out.emit(Event::Requested { request: self.own() });
        if self.token().is_some() {
            return self.settle(out);
        }
        self.ask(out);
        self.listen(out);
    }

    fn leave(&mut self, out: &mut Outbox<Self>) {
        if self.standing != Standing::Inside {
            return out.emit(Event::Refused { call: Call::Leave, standing: self.standing });
        }
        self.standing = Standing::Idle;
        out.emit(Event::Left { request: self.own() });
        if !self.parks() || self.wanted.is_some() {
            self.pass(out);
        }
    }

    /// Asks for the token, backwards.
    fn ask(&mut self, out: &mut Outbox<Self>) {
        if self.parks() {
            self.asked = self.before();
            let hops = self.members.count() as u32 - 1;
            if let Some(before) = self.asked {
                out.send(before, Message::Request { request: self.own(), hops });
            }
        }
    }

    /// Waits for the token, for a while.
    fn listen(&self, out: &mut Outbox<Self>) {
        if let Some(Repair { silence, .. }) = self.repair {
            out.set_timer(TokenRingTimer::Silence, silence);
        }
    }

    // ---- the token

    /// Does what is to be done with the token here.
    fn settle(&mut self, out: &mut Outbox<Self>) {
        let Place::Here(token) = self.place else { return };
        match (self.standing, self.idle) {
            (Standing::Inside, _) => {}
            (Standing::Waiting, _) => {
                if self.writing.is_none() {
                    self.go_in(token.next(), out);
                }
            }
            (Standing::Idle, IdleToken::Park) => {
                if self.wanted.is_some() {
                    self.pass(out);
                }
            }
            (Standing::Idle, IdleToken::Circulate { rest }) if rest.most == Span::ZERO => self.pass(out),
            (Standing::Idle, IdleToken::Circulate { rest }) => out.set_timer(TokenRingTimer::Rest, rest),
        }
    }

    fn go_in(&mut self, token: RingToken, out: &mut Outbox<Self>) {
        self.place = Place::Here(token);
        self.seen = token;
        self.standing = Standing::Inside;
        self.asked = None;
        if self.repair.is_some() {
            out.cancel_timer(TokenRingTimer::Silence);
        }
        out.emit(Event::Entered { request: self.own(), fence: Some(token.fence()) });
    }

    /// Passes the token on, unless there is nobody to pass it to.
    fn pass(&mut self, out: &mut Outbox<Self>) {
        let (Place::Here(token), Some(to)) = (self.place, self.next()) else { return };
        let toward = self.wanted.take();
        // The one that it would go to is skipped, so it need not go.
        let skipped = toward.is_some_and(|request| self.distance(to) > self.distance(request.by.process));
        if skipped && self.parks() {
            return;
        }
        let token = token.next();
        self.seen = token;
        self.known = Some(to);
        self.send(to, Message::Token { token, toward }, out);
        self.place = match self.repair {
            Some(_) => Place::Passing { token, toward, to },
            None => Place::Elsewhere,
        };
        self.set_retry(out);
    }

    fn set_retry(&self, out: &mut Outbox<Self>) {
        if let Some(Repair { retry: Some(retry), .. }) = self.repair {
            out.set_timer(TokenRingTimer::Retry, retry);
        }
    }

    fn pass_again(&mut self, out: &mut Outbox<Self>) {
        if let Place::Passing { token, toward, to } = self.place {
            self.send(to, Message::Token { token, toward }, out);
            self.set_retry(out);
        }
    }

    fn received(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Token { token, toward } = message else { return };
        if self.too_old(token) {
            out.ignore(from, &message, Ignored::Late);
            if self.repair.is_some() {
                self.send(
                    from.process,
                    Message::Refused { token, newest: self.generation.max(self.since) },
                    out,
                );
            }
            return;
        }
        if token <= self.seen {
            out.ignore(from, &message, Ignored::Doubled);
        } else {
            self.take_in(token, toward, out);
        }
        if self.repair.is_some() {
            self.send(from.process, Message::Ack { token }, out);
        }
        self.settle(out);
    }

    fn too_old(&self, token: RingToken) -> bool {
        let old = token.generation < self.generation.max(self.since);
        old && !Flaw::OlderGeneration.is(self.flaw)
    }

    fn take_in(&mut self, token: RingToken, toward: Option<Request>, out: &mut Outbox<Self>) {
        if token.generation > self.generation {
            self.promise(token.generation, out);
        }
        self.stop(out);
        self.end_retry(out);
        self.claim = None;
        self.seen = token;
        self.known = None;
        self.place = Place::Here(token);
        if let Some(request) = toward {
            self.want(request);
        }
    }

    /// This process was cut off, and its generation is over: it is not inside any more.
    fn stop(&mut self, out: &mut Outbox<Self>) {
        if self.standing == Standing::Inside {
            self.standing = Standing::Idle;
            out.emit(Event::Lost { request: self.own() });
        }
    }

    /// The token here is worth nothing: another one has a newer one.
    fn lose(&mut self, out: &mut Outbox<Self>) {
        self.stop(out);
        self.place = Place::Elsewhere;
        self.wanted = None;
        if self.standing == Standing::Waiting {
            self.ask(out);
            self.listen(out);
        }
    }

    /// Notes who wants the token; the farthest is enough, as the others are on the way.
    fn want(&mut self, request: Request) {
        let process = request.by.process;
        let farther = |known: Request| self.distance(known.by.process) < self.distance(process);
        if process != self.me.process && self.wanted.is_none_or(farther) {
            self.wanted = Some(request);
        }
    }

    fn confirmed(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Ack { token } = message else { return };
        match self.place {
            Place::Passing { token: passed, to, .. } if passed == token && to == from.process => {
                self.place = Place::Elsewhere;
                self.end_retry(out);
            }
            _ => out.ignore(from, &message, Ignored::Late),
        }
    }

    fn end_retry(&self, out: &mut Outbox<Self>) {
        if self.repair.is_some_and(|repair| repair.retry.is_some()) {
            out.cancel_timer(TokenRingTimer::Retry);
        }
    }

    fn wished(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Request { request, hops } = message else { return };
        if request.by.process == self.me.process {
            return out.ignore(from, &message, Ignored::Late);
        }
        // It is noted also where it is passed on: the token may already be under way to here.
        self.want(request);
        if self.token().is_some() || self.standing == Standing::Waiting {
            return self.settle(out);
        }
        match (hops.checked_sub(1), self.before()) {
            (Some(hops @ 1..), Some(before)) => out.send(before, Message::Request { request, hops }),
            _ => out.ignore(from, &message, Ignored::Late),
        }
    }

    // ---- repair

    /// The token that was passed on is given up, and a new generation is claimed.
    fn give_up(&mut self, out: &mut Outbox<Self>) {
        let Place::Passing { token, toward, .. } = self.place else { return };
        self.end_retry(out);
        self.wanted = toward.or(self.wanted);
        if Flaw::TokenTakenBack.is(self.flaw) {
            self.place = Place::Here(token);
            return self.pass(out);
        }
        self.place = Place::Elsewhere;
        self.begin_claim(out);
    }

    fn owner(&self, generation: u64) -> Option<ProcessId> {
        let place = generation.checked_sub(1)? % self.members.count() as u64;
        self.members.iter().nth(place as usize)
    }

    fn begin_claim(&mut self, out: &mut Outbox<Self>) {
        let newer = self.newest.max(self.generation) + 1..;
        let generation = newer.into_iter().find(|g| self.owner(*g) == Some(self.me.process));
        let Some(generation) = generation else { return };
        self.claim = Some(Claim { generation, trial: true, promised: Vec::new() });
        self.call_claim(None, out);
        self.listen(out);
        self.check_claim(out);
    }

    /// Says the claim to those that have not promised: all of them, or this one.
    fn call_claim(&self, only: Option<ProcessId>, out: &mut Outbox<Self>) {
        let Some(Claim { generation, trial, promised }) = &self.claim else { return };
        let missing = self.members.others(self.me.process).filter(|other| !promised.contains(other));
        for other in missing.filter(|other| only.is_none_or(|only| only == *other)) {
            self.send(other, Message::Claim { generation: *generation, trial: *trial }, out);
        }
    }

    /// What a claim still lacks.
    fn lacks(&self, claim: &Claim) -> Option<Cause> {
        let silent = |other: &ProcessId| self.runs(*other) && !claim.promised.contains(other);
        let (have, majority) = (claim.promised.len() + 1, self.members.majority());
        let need = majority.max(have + self.members.others(self.me.process).filter(silent).count());
        if have < need {
            return Some(Cause::Majority { have, need });
        }
        self.writing.filter(|_| !claim.trial).map(|_| Cause::Disk)
    }

    fn check_claim(&mut self, out: &mut Outbox<Self>) {
        let Some(claim) = &self.claim else { return };
        if self.lacks(claim).is_some() && !Flaw::NoMajority.is(self.flaw) {
            return;
        }
        let generation = claim.generation;
        if claim.trial {
            self.promise(generation, out);
            self.claim = Some(Claim { generation, trial: false, promised: Vec::new() });
            self.call_claim(None, out);
            return self.check_claim(out);
        }
        self.claim = None;
        let token = RingToken { generation, count: 0 };
        self.seen = token;
        self.place = Place::Here(token);
        if self.standing == Standing::Idle {
            out.cancel_timer(TokenRingTimer::Silence);
        }
        self.settle(out);
    }

    fn claimed(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Claim { generation, trial } = message else { return };
        if self.owner(generation) != Some(from.process) {
            return out.ignore(from, &message, Ignored::Malformed);
        }
        if generation < self.generation || (trial && generation == self.generation) {
            let token = RingToken { generation, count: 0 };
            return self.send(from.process, Message::Refused { token, newest: self.generation }, out);
        }
        if let Place::Here(token) | Place::Passing { token, .. } = self.place {
            return self.send(from.process, Message::Held { generation, token }, out);
        }
        if !trial && generation > self.generation {
            self.promise(generation, out);
            self.end_claim(out);
        }
        self.send(from.process, Message::Promise { generation, trial }, out);
    }

    /// Somebody else makes the token, or has it.
    fn end_claim(&mut self, out: &mut Outbox<Self>) {
        if self.claim.take().is_some() && self.standing == Standing::Idle {
            out.cancel_timer(TokenRingTimer::Silence);
        }
        if self.standing == Standing::Waiting {
            self.listen(out);
        }
    }

    fn promised(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Promise { generation, trial } = message else { return };
        match &mut self.claim {
            Some(claim) if claim.generation == generation && claim.trial == trial => {
                if !claim.promised.contains(&from.process) {
                    claim.promised.push(from.process);
                    claim.promised.sort_unstable();
                }
                self.check_claim(out);
            }
            _ => out.ignore(from, &message, Ignored::Late),
        }
    }

    fn held(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Held { generation, token } = message else { return };
        if token.generation < self.seen.generation {
            // It was cut off, and does not know that there is a newer token.
            out.ignore(from, &message, Ignored::Late);
            return out.send(from.process, Message::Refused { token, newest: self.seen.generation });
        }
        if self.claim.as_ref().is_none_or(|claim| claim.generation != generation) {
            return out.ignore(from, &message, Ignored::Late);
        }
        self.end_claim(out);
        self.known = Some(from.process);
        self.wanted = self.wanted.filter(|request| request.by.process != from.process);
        if self.standing == Standing::Waiting && self.parks() {
            // Those on the way may have forgotten, so the one that has it is asked itself.
            out.send(from.process, Message::Request { request: self.own(), hops: 1 });
        }
    }

    fn refused(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Refused { token, newest } = message else { return };
        self.newest = self.newest.max(newest);
        match (self.place, &self.claim) {
            (Place::Passing { token: passed, to, .. }, _) if passed == token && to == from.process => {
                self.give_up(out);
            }
            (Place::Here(here), _) if here == token => self.lose(out),
            (_, Some(claim)) if (RingToken { generation: claim.generation, count: 0 }) == token => {
                self.end_claim(out);
            }
            _ => out.ignore(from, &message, Ignored::Late),
        }
    }

    fn silence(&mut self, out: &mut Outbox<Self>) {
        if self.claim.is_some() {
            self.call_claim(None, out);
            self.listen(out);
        } else if self.standing == Standing::Waiting {
            match self.place {
                Place::Elsewhere => self.begin_claim(out),
                Place::Here(_) | Place::Passing { .. } => self.listen(out),
            }
        }
    }

    fn suspect(&mut self, process: ProcessId, out: &mut Outbox<Self>) {
        if self.suspected.contains(&process) || process == self.me.process {
            return;
        }
        self.suspected.push(process);
        self.suspected.sort_unstable();
        if matches!(self.place, Place::Passing { to, .. } if to == process) {
            self.give_up(out);
        }
        if self.standing == Standing::Waiting && self.asked == Some(process) {
            self.ask(out);
        }
        self.check_claim(out);
    }

    /// Whoever comes back has forgotten what it was told.
    fn trust(&mut self, process: ProcessId, out: &mut Outbox<Self>) {
        self.suspected.retain(|other| *other != process);
        if matches!(self.place, Place::Passing { to, .. } if to == process) {
            self.pass_again(out);
        }
        if self.standing == Standing::Waiting && self.asked.is_some() && self.before() == Some(process) {
            self.ask(out);
        }
        self.call_claim(Some(process), out);
        self.settle(out);
    }

    fn persisted(&mut self, id: PersistId, out: &mut Outbox<Self>) {
        if self.writing.is_some_and(|writing| writing <= id) {
            self.writing = None;
            self.check_claim(out);
            self.settle(out);
        }
    }
}

impl Protocol for TokenRing {
    type Call = Call;
    type Message = TokenRingMessage;
    type Timer = TokenRingTimer;
    type Record = TokenRingRecord;
    type Event = Event;

    fn handle(&mut self, _now: Now, input: Input<Self>, out: &mut Outbox<Self>) {
        match input {
            Input::Start { me, record } => self.start(me, record, out),
            Input::Call(Call::Enter) => self.enter(out),
            Input::Call(Call::Leave) => self.leave(out),
            Input::Message { from, message } if !self.members.contains(from.process) => {
                out.ignore(from, &message, Ignored::Stranger);
            }
            Input::Message { from, message } => match message {
                Message::Token { .. } => self.received(from, message, out),
                Message::Request { .. } => self.wished(from, message, out),
                Message::Ack { .. } => self.confirmed(from, message, out),
                Message::Refused { .. } => self.refused(from, message, out),
                Message::Claim { .. } => self.claimed(from, message, out),
                Message::Promise { .. } => self.promised(from, message, out),
                Message::Held { .. } => self.held(from, message, out),
            },
            Input::Timer(TokenRingTimer::Rest) => {
                if self.standing == Standing::Idle {
                    self.pass(out);
                }
            }
            Input::Timer(TokenRingTimer::Retry) => self.pass_again(out),
            Input::Timer(TokenRingTimer::Silence) => self.silence(out),
            Input::Persisted(id) => self.persisted(id, out),
            Input::Suspect(process) => self.suspect(process, out),
            Input::Trust(peer) => self.trust(peer.process, out),
            Input::View { .. } => {}
        }
    }

    fn waits(&self) -> Vec<Wait> {
        let mut waits = Vec::new();
        if self.standing == Standing::Waiting {
            let goal = Goal::Enter(self.own());
            waits.extend(self.missing().map(|cause| Wait { goal, cause }));
        }
        if let Some((request, cause)) = self.withheld() {
            waits.push(Wait { goal: Goal::Answer { kind: "TOKEN", request }, cause });
        }
        waits
    }
}

impl TokenRing {
    /// Why the token is not here, or of no use yet: the hop that does not answer, or where it was last known.
    fn missing(&self) -> Option<Cause> {
        let from = match self.place {
            Place::Here(_) => return self.writing.map(|_| Cause::Disk),
            Place::Passing { to, .. } => Some(to),
            Place::Elsewhere => self.known.or(self.before()),
        };
        let lacks = self.claim.as_ref().and_then(|claim| self.lacks(claim));
        lacks.or(from.map(|from| Cause::Token { from }))
    }

    /// Who wants the token from here, and why it does not go.
    fn withheld(&self) -> Option<(Request, Cause)> {
        match (self.place, self.standing) {
            (Place::Passing { toward, to, .. }, _) => Some((toward?, Cause::Token { from: to })),
            (Place::Here(_), Standing::Inside) => Some((self.wanted?, Cause::Held { by: self.own() })),
            (_, Standing::Waiting) => Some((self.wanted?, Cause::Earlier { request: self.own() })),
            _ => None,
        }
    }
}

impl Mutex for TokenRing {
    fn standing(&self) -> Standing {
        self.standing
    }
}
