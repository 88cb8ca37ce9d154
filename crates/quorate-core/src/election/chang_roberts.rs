//! Chang-Roberts: ids go round, and only the greatest gets all the way.
//!
//! **Problem.** One leader in a ring in which each process knows only the one after it.
//!
//! **Rule.** A process passes a greater id on, replaces a smaller one by its own, or swallows it if its own
//! is under way already; whose own id comes back leads.
//!
//! **Messages**
//!
//! | name | fields | when |
//! |---|---|---|
//! | ELECTION | election, id | to the next process: the own id by a starter, a greater one passed on |
//! | ELECTED | election, id | to the next process, by the winner; passed on once by each until it is back |
//!
//! **Cost.** If all start, N*H(N) ELECTION on the average over all orders of the ids, with
//! H(N) = 1 + 1/2 + ... + 1/N; at most N(N+1)/2, at least 2N-1. Then N ELECTED.
//!
//! **Safety.** Only the greatest id passes everybody. An election names its starter and its life, so an id
//! that circulates after its process has left is nobody's: it is dropped where it has been before, where its
//! starter lives another life, and where its starter is no member any more.
//!
//! **Needs.** Distinct ids, or [`Ids::ByProcess`], which settles equal ones by the process. A detector: a
//! suspected process is skipped, and what was passed to it goes to the one after it; its id is passed on,
//! but nobody who suspects it waits for it. Who trusts the next process again tells it the leader, and its own
//! id if that did not come home. Links that lose nothing else, or `retry`.
//!
//! **When it fails.** With [`Ids::Alone`], as published, two processes of one id each take the other's for
//! its own: two leaders. If a process stops and the one before it as well, what both had is lost: `retry`.
//!
//! **Source.** Chang and Roberts 1979, and the textbooks' second optimisation (swallow while taking part).
//! What happens when processes stop and come back is ours.

use super::company::{Company, Passed};
use super::flaw::Flaw;
use super::{AtStart, Call, Elects, Event, Why};
use crate::protocol::{
    Cause, Goal, Ignored, Incarnation, Input, Kind, Members, Now, Outbox, Peer, ProcessId, Protocol, Request,
    Wait, Within,
};
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;
use serde::{Deserialize, Serialize};

/// See the table of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ChangRobertsMessage {
    /// Is anybody greater?
    Election {
        /// Which election, and whose.
        election: Request,
        /// The id of its starter.
        id: u64,
    },
    /// This one leads.
    Elected {
        /// The election that was won, and by whom.
        election: Request,
        /// The id of the winner.
        id: u64,
    },
}

impl ChangRobertsMessage {
    fn parts(&self) -> (Request, u64) {
        let (Self::Election { election, id } | Self::Elected { election, id }) = self;
        (*election, *id)
    }
}

impl Kind for ChangRobertsMessage {
    const KINDS: &'static [&'static str] = &["ELECTION", "ELECTED"];
    fn kind(&self) -> u8 {
        match self {
            Self::Election { .. } => 0,
            Self::Elected { .. } => 1,
        }
    }
    fn about(&self) -> Option<Request> {
        Some(self.parts().0)
    }
}

impl fmt::Display for ChangRobertsMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (election, id) = self.parts();
        write!(f, "{} {election} id {id}", self.name())
    }
}

crate::kinds! {
    /// Its timers.
    #[derive(Serialize, Deserialize)]
    pub enum ChangRobertsTimer {
        /// An election that has not ended is held again.
        Retry = "retry",
    }
}

/// What two processes of one id are to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ids {
    /// Different: the one with the greater process number is the greater.
    ByProcess,
    /// The same, as published. Kept as a lesson.
    Alone,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChangRoberts {
    me: Peer,
    company: Company,
    id: u64,
    ids: Ids,
    retry: Option<Within>,
    at_start: AtStart,
    flaw: Option<Flaw>,
    /// The number of the last election of this life.
    number: u64,
    /// The greatest that went by while this process takes part in an election, perhaps its own.
    greatest: Option<Rank>,
    leader: Option<Rank>,
    /// The last that was passed on of each life of each starter, in order of starters.
    passed: Vec<Passed<ChangRobertsMessage>>,
}

/// What is compared.
type Rank = (u64, ProcessId);

type Message = ChangRobertsMessage;

impl ChangRoberts {
    /// A process before its start; the ring is the members in their order, the ids may be in any. `retry` is
    /// how long a process takes part in an election before it holds one again: several rounds at least; none
    /// on links that lose nothing.
    pub fn new(
        me: ProcessId,
        members: Members,
        id: u64,
        ids: Ids,
        retry: Option<Within>,
        at_start: AtStart,
    ) -> Self {
        Self {
            me: Peer { process: me, incarnation: Incarnation(0) },
            company: Company::new(members),
            id,
            ids,
            retry,
            at_start,
            flaw: None,
            number: 0,
            greatest: None,
            leader: None,
            passed: Vec::new(),
        }
    }

    /// The same with one of its lines left out.
    #[must_use]
    pub fn with_flaw(mut self, flaw: Option<Flaw>) -> Self {
        self.flaw = flaw;
        self
    }

    /// How many elections it has held in this life.
    pub fn held(&self) -> u64 {
        self.number
    }

    fn own(&self) -> Request {
        Request { by: self.me, number: self.number }
    }

    fn rank(&self) -> Rank {
        (self.id, self.me.process)
    }

    /// How an id that came compares with the own one.
    fn compare(&self, id: u64, starter: ProcessId) -> Ordering {
        match self.ids {
            Ids::ByProcess => (id, starter).cmp(&self.rank()),
            Ids::Alone => id.cmp(&self.id),
        }
    }

    /// What has to come for the election to end here: the own id if none greater went by, or the outcome.
    fn missing(&self) -> Option<Cause> {
        let greatest = self.greatest?;
        let from = self.company.previous(self.me.process);
        let kind = if greatest == self.rank() { "ELECTION" } else { "ELECTED" };
        Some(Cause::Message { kind, from, suspected: self.company.suspects(from) })
    }

    fn hold(&mut self, out: &mut Outbox<Self>) {
        self.number += 1;
        let election = self.own();
        self.greatest = Some(self.rank());
        out.emit(Event::Started { election });
        if self.company.next(self.me.process) == self.me.process {
            return self.win(out);
        }
        self.pass(Message::Election { election, id: self.id }, out);
    }

    fn win(&mut self, out: &mut Outbox<Self>) {
        let election = self.own();
        self.pass(Message::Elected { election, id: self.id }, out);
        self.follow(election, self.id, out);
    }

    /// Passes a message on, and keeps it in case the next one has stopped.
    fn pass(&mut self, message: Message, out: &mut Outbox<Self>) {
        let to = self.company.next(self.me.process);
        let starter = message.parts().0.by;
        if to != self.me.process {
            out.send(to, message);
        }
        self.passed.retain(|known| known.message.parts().0.by != starter);
        self.passed.push(Passed { message, to, doubted: self.company.suspects(starter.process) });
        self.passed.sort_unstable_by_key(|passed| passed.message.parts().0);
        if let (Some(within), 0) = (self.retry, message.kind()) {
            out.set_timer(ChangRobertsTimer::Retry, within);
        }
    }

    /// What of this starter's present life was passed on last.
    fn last(&self, starter: Peer) -> Option<&Passed<Message>> {
        self.passed.iter().find(|passed| passed.message.parts().0.by == starter)
    }

    /// Why a message is of no use: nobody has sent it any more, or it was here before.
    fn stale(&self, message: &Message) -> Option<Ignored> {
        let (election, _) = message.parts();
        if !self.company.members.contains(election.by.process) {
            return Some(Ignored::Stranger);
        }
        if election.by == self.me {
            let ended = election.number != self.number || (message.kind() == 0 && self.greatest.is_none());
            return ended.then_some(Ignored::Late);
        }
        if election.by.process == self.me.process {
            if Flaw::FormerLifeWins.is(self.flaw) {
                return None;
            }
            return Some(Ignored::FormerLife);
        }
        let last = self.last(election.by)?.message;
        match last.parts().0.number.cmp(&election.number) {
            Ordering::Greater => Some(Ignored::Late),
            Ordering::Equal if last.kind() >= message.kind() => Some(Ignored::Doubled),
            Ordering::Equal | Ordering::Less => None,
        }
    }

    fn asked(&mut self, message: Message, out: &mut Outbox<Self>) {
        let (election, id) = message.parts();
        let starter = election.by.process;
        match self.compare(id, starter) {
            Ordering::Equal => self.win(out),
            Ordering::Greater if self.company.suspects(starter) => {
                // If it runs, its id comes home; but nobody waits for it here.
                self.pass(message, out);
                self.take_part(out);
            }
            Ordering::Greater => {
                self.greatest = self.greatest.max(Some((id, starter)));
                self.pass(message, out);
            }
            Ordering::Less => self.take_part(out),
        }
    }

    /// Sends the own id in place of a smaller one, unless it is under way.
    fn take_part(&mut self, out: &mut Outbox<Self>) {
        if self.greatest.is_none() {
            self.hold(out);
        }
    }

    fn announced(&mut self, message: Message, out: &mut Outbox<Self>) {
        let (election, id) = message.parts();
        match self.compare(id, election.by.process) {
            Ordering::Equal => return,
            // It was elected past this process.
            Ordering::Less => {
                self.pass(message, out);
                return self.take_part(out);
            }
            Ordering::Greater => {}
        }
        if self.last(election.by).is_some_and(|last| last.doubted && last.message.parts().0 == election) {
            // It has won by a message that was passed on after the suspicion: so it runs.
            self.company.trust(election.by.process);
        }
        self.pass(message, out);
        self.follow(election, id, out);
    }

    fn follow(&mut self, election: Request, id: u64, out: &mut Outbox<Self>) {
        self.end(out);
        let leader = election.by.process;
        if self.company.suspects(leader) {
            return self.hold(out);
        }
        if self.leader < Some((id, leader)) {
            self.lose(out);
            self.leader = Some((id, leader));
            out.emit(Event::Elected { leader, term: None, election });
        }
    }

    fn end(&mut self, out: &mut Outbox<Self>) {
        if self.greatest.take().is_some() && self.retry.is_some() {
            out.cancel_timer(ChangRobertsTimer::Retry);
        }
    }

    fn lose(&mut self, out: &mut Outbox<Self>) {
        if self.leader.take().is_some_and(|(_, leader)| leader == self.me.process) {
            out.emit(Event::SteppedDown { term: None });
        }
    }

    /// What was passed to a process that is now skipped goes to the next one.
    fn pass_again(&mut self, out: &mut Outbox<Self>) {
        let next = self.company.next(self.me.process);
        let (company, me) = (&self.company, self.me.process);
        let skipped = |to: ProcessId| company.suspects(to) || !company.members.contains(to);
        for passed in self.passed.iter_mut().filter(|passed| skipped(passed.to)) {
            passed.to = next;
            if next != me {
                out.send(next, passed.message);
            }
        }
    }

    /// A process has stopped, or left: an election that it would have won is held again.
    fn gone(&mut self, process: ProcessId, out: &mut Outbox<Self>) {
        self.pass_again(out);
        let is_gone = |rank: Option<Rank>| rank.is_some_and(|(_, who)| who == process);
        let alone = self.company.next(self.me.process) == self.me.process;
        if is_gone(self.leader) {
            self.lose(out);
            if self.greatest.is_none() {
                return self.hold(out);
            }
        }
        let in_vain = is_gone(self.greatest) && !Flaw::WaitsForStopped.is(self.flaw);
        if in_vain || (self.greatest.is_some() && alone) {
            self.hold(out);
        }
    }

    fn trusted(&mut self, peer: Peer, out: &mut Outbox<Self>) {
        let back = self.company.trust(peer.process);
        let former = |by: Peer| by.process == peer.process && by != peer;
        self.passed.retain(|passed| !former(passed.message.parts().0.by));
        // A new life has not seen what its former one got.
        for passed in self.passed.iter().filter(|passed| passed.to == peer.process) {
            out.send(peer, passed.message);
        }
        if !back || self.company.next(self.me.process) != peer.process {
            return;
        }
        // It was skipped when the leader was announced, or when its own id should have come home. The leader
        // first: if its id came home another way meanwhile and it leads as well, that makes it ask again.
        let told = self.passed.iter().map(|passed| passed.message).filter(|message| message.kind() == 1);
        let told = told.filter(|message| Some(message.parts().0.by.process) == self.leader()).max();
        let own = self.last(peer).map(|last| last.message).filter(|last| last.kind() == 0);
        let missed: Vec<_> = told.into_iter().chain(own).collect();
        if missed.is_empty() {
            self.hold(out);
        }
        for message in missed {
            out.send(peer, message);
        }
    }

    fn view(&mut self, members: Members, out: &mut Outbox<Self>) {
        let before = self.company.members.clone();
        self.company.replace(members);
        let kept = &self.company.members;
        self.passed.retain(|passed| kept.contains(passed.message.parts().0.by.process));
        for process in before.others(self.me.process) {
            if !self.company.members.contains(process) {
                self.gone(process, out);
            }
        }
    }
}

impl Protocol for ChangRoberts {
    type Call = Call;
    type Message = ChangRobertsMessage;
    type Timer = ChangRobertsTimer;
    type Record = ();
    type Event = Event;

    fn handle(&mut self, _now: Now, input: Input<Self>, out: &mut Outbox<Self>) {
        match input {
            Input::Start { me, .. } => {
                self.me = me;
                if self.at_start == AtStart::Elect {
                    self.hold(out);
                }
            }
            Input::Call(Call::Elect) if self.is_electing() => out.emit(Event::Refused { why: Why::Electing }),
            Input::Call(Call::Elect) => self.hold(out),
            Input::Message { from, message } => match (self.stale(&message), message) {
                (Some(why), message) => out.ignore(from, &message, why),
                (None, Message::Election { .. }) => self.asked(message, out),
                (None, Message::Elected { .. }) => self.announced(message, out),
            },
            Input::Timer(ChangRobertsTimer::Retry) => self.hold(out),
            Input::Suspect(process) => {
                if self.company.suspect(process, self.number) {
                    self.gone(process, out);
                }
            }
            Input::Trust(peer) => self.trusted(peer, out),
            Input::View { members, .. } => self.view(members, out),
            Input::Persisted(_) => {}
        }
    }

    fn waits(&self) -> Vec<Wait> {
        self.missing().into_iter().map(|cause| Wait { goal: Goal::Leader, cause }).collect()
    }
}

impl Elects for ChangRoberts {
    fn leader(&self) -> Option<ProcessId> {
        self.leader.map(|(_, leader)| leader)
    }
    fn is_electing(&self) -> bool {
        self.greatest.is_some()
    }
    fn me(&self) -> Peer {
        self.me
    }
}
