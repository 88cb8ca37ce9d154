//! Ring: a list goes round and collects those that run; then the greatest of them is announced round.
//!
//! **Problem.** A new coordinator when the old one has stopped, if each process knows the ring.
//!
//! **Rule.** A list that finds its receiver in it has gone round: its receiver announces the greatest process
//! of the list, and everybody else adds itself and passes it on.
//!
//! **Messages**
//!
//! | name | fields | when |
//! |---|---|---|
//! | ELECTION | election, list | to the next process, by whoever misses the leader; passed on once by each |
//! | COORDINATOR | election, leader | to the next process, by who closes the list; passed on once by each |
//! | REFUSED | election, have | instead, if `quorum` is set and the list has no more than half of all |
//!
//! **Cost.** 2N' messages with N' live processes, whoever starts. Each further starter costs as many again.
//!
//! **Safety.** A process follows the greatest leader that it was told of and does not suspect, so elections
//! that run at once end alike. There is no term.
//!
//! **Needs.** A detector: the next process of the ring is skipped if it is *suspected*. There are no
//! acknowledgements, which would double the cost; what was passed to a process is kept, and passed to the one
//! after it when the suspicion comes. Links that lose nothing else, or `retry`.
//!
//! **When it fails.** A false suspicion leaves a process out, and if it led there are two leaders, until it
//! is trusted again: then the one before it in the ring holds an election, and so does whoever follows a
//! smaller one. `quorum` refuses in a partition's minority. If a process stops and the one before it as well,
//! what both had is lost: `retry`.
//!
//! **Source.** The form of the textbooks (Tanenbaum and van Steen, chapter on coordination), after
//! Le Lann 1977. That a list is closed by whoever finds itself in it, so that a starter may stop, is ours.

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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RingMessage {
    /// Who is there?
    Election {
        /// Which election.
        election: Request,
        /// Who has passed it on so far, in that order.
        list: Vec<ProcessId>,
    },
    /// This one leads.
    Coordinator {
        /// Which election.
        election: Request,
        /// The greatest of its list.
        leader: ProcessId,
    },
    /// Nobody leads here.
    Refused {
        /// Which election.
        election: Request,
        /// How many its list had.
        have: usize,
    },
}

impl RingMessage {
    fn election(&self) -> Request {
        let (Self::Election { election, .. }
        | Self::Coordinator { election, .. }
        | Self::Refused { election, .. }) = self;
        *election
    }
}

impl Kind for RingMessage {
    const KINDS: &'static [&'static str] = &["ELECTION", "COORDINATOR", "REFUSED"];
    fn kind(&self) -> u8 {
        match self {
            Self::Election { .. } => 0,
            Self::Coordinator { .. } => 1,
            Self::Refused { .. } => 2,
        }
    }
    fn about(&self) -> Option<Request> {
        Some(self.election())
    }
}

impl fmt::Display for RingMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.election())?;
        match self {
            Self::Election { list, .. } => list.iter().try_for_each(|process| write!(f, " {process}")),
            Self::Coordinator { leader, .. } => write!(f, " leader {leader}"),
            Self::Refused { have, .. } => write!(f, " only {have}"),
        }
    }
}

crate::kinds! {
    /// Its timers.
    #[derive(Serialize, Deserialize)]
    pub enum RingTimer {
        /// An election that has not come round is held again.
        Retry = "retry",
    }
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ring {
    me: Peer,
    company: Company,
    quorum: bool,
    retry: Option<Within>,
    at_start: AtStart,
    flaw: Option<Flaw>,
    /// The number of the last election of this life.
    number: u64,
    leader: Option<ProcessId>,
    /// The last that was passed on of each life of each starter, in order of starters.
    passed: Vec<Passed<RingMessage>>,
    /// It has passed a list on, and no outcome of any has come by since.
    waiting: bool,
    /// How many the last list had, if it was refused and nothing came since.
    refused: Option<usize>,
}

type Message = RingMessage;

impl Ring {
    /// A process before its start; the ring is the members in their order. With `quorum` a list of no more
    /// than half of all members elects nobody, and a leader that trusts no more than half of them steps down.
    /// `retry` is how long a process that has passed a list on waits for its outcome before it holds an
    /// election itself: several rounds at least; none on links that lose nothing.
    pub fn new(
        me: ProcessId,
        members: Members,
        quorum: bool,
        retry: Option<Within>,
        at_start: AtStart,
    ) -> Self {
        Self {
            me: Peer { process: me, incarnation: Incarnation(0) },
            company: Company::new(members),
            quorum,
            retry,
            at_start,
            flaw: None,
            number: 0,
            leader: None,
            passed: Vec::new(),
            waiting: false,
            refused: None,
        }
    }

    /// The same with one of its lines left out.
    #[must_use]
    pub fn with_flaw(mut self, flaw: Option<Flaw>) -> Self {
        self.flaw = flaw;
        self
    }

    fn need(&self) -> usize {
        if self.quorum { self.company.members.majority() } else { 1 }
    }

    /// What has to come before this process knows of a leader again, if it waits for an outcome: its own
    /// lists, and the outcome of those of others.
    fn missing(&self) -> Vec<Cause> {
        let from = self.company.previous(self.me.process);
        let open = self.passed.iter().filter(|passed| self.waiting && passed.message.kind() == 0);
        let mut causes: Vec<_> = open
            .map(|passed| {
                let own = passed.message.election().by == self.me;
                let kind = if own { "ELECTION" } else { "COORDINATOR" };
                Cause::Message { kind, from, suspected: self.company.suspects(from) }
            })
            .collect();
        causes.dedup();
        causes
    }

    fn hold(&mut self, out: &mut Outbox<Self>) {
        self.number += 1;
        let election = Request { by: self.me, number: self.number };
        out.emit(Event::Started { election });
        let list = alloc::vec![self.me.process];
        if self.company.next(self.me.process) == self.me.process {
            return self.close(election, &list, out);
        }
        self.pass(Message::Election { election, list }, out);
    }

    /// Passes a message on, and keeps it in case the next one has stopped.
    fn pass(&mut self, message: Message, out: &mut Outbox<Self>) {
        let to = self.company.next(self.me.process);
        let starter = message.election().by;
        self.waiting = message.kind() == 0;
        self.set_retry(out);
        if to != self.me.process {
            out.send(to, message.clone());
        }
        self.passed.retain(|known| known.message.election().by != starter);
        self.passed.push(Passed { message, to, doubted: self.company.suspects(starter.process) });
        self.passed.sort_unstable_by_key(|passed| passed.message.election());
    }

    fn set_retry(&self, out: &mut Outbox<Self>) {
        match self.retry {
            Some(within) if self.waiting => out.set_timer(RingTimer::Retry, within),
            Some(_) => out.cancel_timer(RingTimer::Retry),
            None => {}
        }
    }

    /// What of this starter's present life was passed on last.
    fn last(&self, starter: Peer) -> Option<&Message> {
        let passed = self.passed.iter().find(|passed| passed.message.election().by == starter);
        passed.map(|passed| &passed.message)
    }

    /// Why a message is of no use: what was passed on is as new, or newer.
    fn stale(&self, message: &Message) -> Option<Ignored> {
        let election = message.election();
        let last = self.last(election.by)?;
        match last.election().number.cmp(&election.number) {
            Ordering::Greater => Some(Ignored::Late),
            Ordering::Equal if last.kind() > 0 || message.kind() == 0 => Some(Ignored::Doubled),
            Ordering::Equal | Ordering::Less => None,
        }
    }

    fn collect(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let stale = self.stale(&message);
        let Message::Election { election, mut list } = message else { return };
        let closed = self.last(election.by).is_some_and(|last| last.kind() > 0 && stale.is_some());
        let round = list.contains(&self.me.process) && stale != Some(Ignored::Late);
        match stale {
            _ if round && !closed && !self.leaves_to_starter(election) => self.close(election, &list, out),
            Some(why) => out.ignore(from, &Message::Election { election, list }, why),
            None => {
                list.push(self.me.process);
                self.pass(Message::Election { election, list }, out);
            }
        }
    }

    fn leaves_to_starter(&self, election: Request) -> bool {
        election.by != self.me && Flaw::StarterCloses.is(self.flaw)
    }

    /// Announces the outcome of a list that has gone round.
    fn close(&mut self, election: Request, list: &[ProcessId], out: &mut Outbox<Self>) {
        let runs = || list.iter().copied().filter(|process| !self.company.suspects(*process));
        let have = runs().count();
        match runs().max().filter(|_| have >= self.need()) {
            Some(leader) => {
                self.pass(Message::Coordinator { election, leader }, out);
                self.follow(leader, election, out);
            }
            None => {
                self.pass(Message::Refused { election, have }, out);
                self.turned_down(have, out);
            }
        }
    }

    fn announced(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let election = message.election();
        if election.by.process == self.me.process && election.by != self.me {
            return out.ignore(from, &message, Ignored::FormerLife);
        }
        match self.stale(&message) {
            // It has come back to the one that closed the list.
            Some(Ignored::Doubled) if election.by == self.me => {}
            Some(why) => out.ignore(from, &message, why),
            None => {
                self.pass(message.clone(), out);
                match message {
                    Message::Coordinator { election, leader } => self.follow(leader, election, out),
                    Message::Refused { have, .. } => self.turned_down(have, out),
                    Message::Election { .. } => {}
                }
            }
        }
    }

    fn follow(&mut self, leader: ProcessId, election: Request, out: &mut Outbox<Self>) {
        self.refused = None;
        if self.company.suspects(leader) {
            return self.hold(out);
        }
        let smaller = self.leader > Some(leader) && !Flaw::LastFollowed.is(self.flaw);
        if smaller || self.leader == Some(leader) {
            return;
        }
        self.lose(out);
        self.leader = Some(leader);
        out.emit(Event::Elected { leader, term: None, election });
    }

    /// A list was too short. That changes nothing for whoever knows a leader by another one.
    fn turned_down(&mut self, have: usize, out: &mut Outbox<Self>) {
        if self.leader.is_none() {
            self.turn_down(have, out);
        }
    }

    fn turn_down(&mut self, have: usize, out: &mut Outbox<Self>) {
        self.lose(out);
        self.refused = Some(have);
        out.emit(Event::Refused { why: Why::Minority { have, need: self.need() } });
    }

    fn lose(&mut self, out: &mut Outbox<Self>) {
        if self.leader.take() == Some(self.me.process) {
            out.emit(Event::SteppedDown { term: None });
        }
    }

    /// What was passed to a process that is now skipped goes to the next one.
    fn pass_again(&mut self, out: &mut Outbox<Self>) {
        let next = self.company.next(self.me.process);
        let me = self.me.process;
        let skipped = |to: ProcessId| self.company.suspects(to) || !self.company.members.contains(to);
        let mut alone = Vec::new();
        if Flaw::NotPassedAgain.is(self.flaw) {
            return;
        }
        for passed in self.passed.iter_mut().filter(|passed| skipped(passed.to)) {
            passed.to = next;
            match &passed.message {
                Message::Election { election, list } if next == me => alone.push((*election, list.clone())),
                _ if next == me => {}
                message => out.send(next, message.clone()),
            }
        }
        for (election, list) in alone {
            self.close(election, &list, out);
        }
    }

    fn suspected(&mut self, process: ProcessId, out: &mut Outbox<Self>) {
        if !self.company.suspect(process, self.number) {
            return;
        }
        self.pass_again(out);
        let reach = self.company.reach();
        if self.leader == Some(self.me.process) && reach < self.need() {
            self.turn_down(reach, out);
        }
        if self.leader == Some(process) {
            self.leader = None;
            if !self.waiting {
                self.hold(out);
            }
        }
    }

    fn trusted(&mut self, peer: Peer, out: &mut Outbox<Self>) {
        let back = self.company.trust(peer.process);
        let former = |by: Peer| by.process == peer.process && by != peer;
        self.passed.retain(|passed| !former(passed.message.election().by));
        // A new life has not seen what its former one got.
        for passed in self.passed.iter().filter(|passed| passed.to == peer.process) {
            out.send(peer, passed.message.clone());
        }
        let next = self.company.next(self.me.process) == peer.process;
        if back && (next || self.leader < Some(peer.process)) {
            return self.hold(out);
        }
        self.hold_if_forgotten(out);
    }

    /// What it waited for was begun by a life that is over: nobody closes that any more.
    fn hold_if_forgotten(&mut self, out: &mut Outbox<Self>) {
        if self.waiting && self.missing().is_empty() {
            self.hold(out);
        }
    }

    fn view(&mut self, members: Members, out: &mut Outbox<Self>) {
        self.company.replace(members);
        self.passed.retain(|p| self.company.members.contains(p.message.election().by.process));
        self.pass_again(out);
        if self.leader.is_some_and(|leader| !self.company.members.contains(leader)) {
            self.lose(out);
            if !self.waiting {
                return self.hold(out);
            }
        }
        self.hold_if_forgotten(out);
        self.set_retry(out);
    }
}

impl Protocol for Ring {
    type Call = Call;
    type Message = RingMessage;
    type Timer = RingTimer;
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
            Input::Call(Call::Elect) if self.waiting => out.emit(Event::Refused { why: Why::Electing }),
            Input::Call(Call::Elect) => self.hold(out),
            Input::Message { from, message } => {
                let known = |process| self.company.members.contains(process);
                if !known(from.process) || !known(message.election().by.process) {
                    return out.ignore(from, &message, Ignored::Stranger);
                }
                match message {
                    Message::Election { .. } => self.collect(from, message, out),
                    Message::Coordinator { .. } | Message::Refused { .. } => {
                        self.announced(from, message, out)
                    }
                }
            }
            Input::Timer(RingTimer::Retry) => self.hold(out),
            Input::Suspect(process) => self.suspected(process, out),
            Input::Trust(peer) => self.trusted(peer, out),
            Input::View { members, .. } => self.view(members, out),
            Input::Persisted(_) => {}
        }
    }

    fn waits(&self) -> Vec<Wait> {
        let mut causes = self.missing();
        if let (Some(have), false) = (self.refused, self.waiting) {
            causes.push(Cause::Majority { have, need: self.need() });
        }
        causes.into_iter().map(|cause| Wait { goal: Goal::Leader, cause }).collect()
    }
}

impl Elects for Ring {
    fn leader(&self) -> Option<ProcessId> {
        self.leader
    }
    fn is_electing(&self) -> bool {
        self.waiting
    }
    fn me(&self) -> Peer {
        self.me
    }
}
