//! Bully: the greatest process that runs leads, and says so.
//!
//! **Problem.** A new coordinator when the old one has stopped, if everybody knows everybody.
//!
//! **Rule.** Who misses the coordinator asks all greater processes, and takes over if none of them answers in
//! time; who is asked by a smaller one answers, and does the same.
//!
//! **Messages**
//!
//! | name | fields | when |
//! |---|---|---|
//! | ELECTION | election | to each greater process, stopped ones too; with `quorum` to all others |
//! | OK | election | on ELECTION |
//! | COORDINATOR | election | to each smaller process that is not suspected, by the one that takes over |
//! | REFUSED | election, have | with `quorum`, to the same, by the one that would take over and may not |
//!
//! **Cost.** With N processes of which the greatest has stopped, started by process s: ELECTION
//! (N-s)(N-s+1)/2, OK (N-s)(N-s-1)/2, COORDINATOR N-2. At worst, s = 1, of the order of N^2.
//!
//! **Safety.** One leader if every message arrives within a known time, and `answer` is longer than two of
//! them. There is no term: nothing tells an old leader's word from a new one's.
//!
//! **Needs.** That bound; reliable links; a detector that tells of a stopped leader, and of one that is back.
//! A COORDINATOR of a suspected process is a reason to ask, not to follow: it may have been long under way.
//! It is trusted once it answers a question that was asked after the suspicion. So is the word of one that is
//! smaller than the leader: announcements may overtake one another.
//!
//! **When it fails.** A false suspicion, or an answer that comes too late, makes two leaders for a while,
//! each followed by some; if they are cut off from each other, until a detector says that they are not. A
//! greatest process that comes and goes takes over each time: there is no bias to stay. `quorum` refuses in a
//! partition's minority; it does not make two leaders impossible, as whoever answers may answer two that ask.
//!
//! **Source.** Garcia-Molina 1982, in the form of the textbooks; the second timeout (a process that answered
//! stops before it announces) is there, too. `quorum` is ours: with it the smaller ones are asked as well.

use super::company::Company;
use super::flaw::Flaw;
use super::{AtStart, Call, Elects, Event, Why};
use crate::protocol::{
    Cause, Goal, Ignored, Incarnation, Input, Kind, Members, Now, Outbox, Peer, ProcessId, Protocol, Request,
    Wait, Within,
};
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// See the table of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum BullyMessage {
    /// Are you there?
    Election {
        /// Which election.
        election: Request,
    },
    /// I am, and I am greater: leave it to me.
    Ok {
        /// The election that is answered.
        election: Request,
    },
    /// I lead.
    Coordinator {
        /// The election that its sender won.
        election: Request,
    },
    /// Nobody leads here.
    Refused {
        /// The election that its sender ended.
        election: Request,
        /// How many answered.
        have: usize,
    },
}

impl Kind for BullyMessage {
    const KINDS: &'static [&'static str] = &["ELECTION", "OK", "COORDINATOR", "REFUSED"];
    fn kind(&self) -> u8 {
        match self {
            Self::Election { .. } => 0,
            Self::Ok { .. } => 1,
            Self::Coordinator { .. } => 2,
            Self::Refused { .. } => 3,
        }
    }
    fn about(&self) -> Option<Request> {
        let (Self::Election { election }
        | Self::Ok { election }
        | Self::Coordinator { election }
        | Self::Refused { election, .. }) = self;
        Some(*election)
    }
}

impl fmt::Display for BullyMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.about().unwrap_or_default())
    }
}

crate::kinds! {
    /// Its timers.
    #[derive(Serialize, Deserialize)]
    pub enum BullyTimer {
        /// Whoever has not answered by now is taken to have stopped.
        Answer = "answer",
        /// Whoever answered should have announced a coordinator by now.
        Coordinator = "coordinator",
        /// An election that was refused is held again.
        Again = "again",
    }
}

/// How long it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BullyTiming {
    /// For the answer of a greater process: longer than the slowest round trip, or two may lead.
    pub answer: Within,
    /// For the announcement, once a greater process answered: longer than N times `answer`, or elections are
    /// held in vain; too long costs waiting when that process stops meanwhile.
    pub coordinator: Within,
    /// Until an election that was refused is held again. None: not before a process is trusted again, which
    /// is enough on links that lose nothing.
    pub again: Option<Within>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bully {
    me: Peer,
    company: Company,
    timing: BullyTiming,
    quorum: bool,
    at_start: AtStart,
    flaw: Option<Flaw>,
    /// The number of the last election of this life.
    number: u64,
    leader: Option<ProcessId>,
    role: Role,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Role {
    /// It takes part in no election.
    Settled,
    /// It has asked.
    Asking {
        /// Who has not answered.
        silent: Vec<ProcessId>,
        /// How many have, itself among them.
        have: usize,
    },
    /// A greater process has answered, and will announce a coordinator.
    Waiting {
        /// Which: the greatest of those that did.
        on: ProcessId,
    },
    /// Too few answered.
    Refused {
        /// How many.
        have: usize,
    },
}

type Message = BullyMessage;

impl Bully {
    /// A process before its start. With `quorum` it takes over only if more than half of all members
    /// answered, and leads no longer than it trusts more than half of them.
    pub fn new(
        me: ProcessId,
        members: Members,
        timing: BullyTiming,
        quorum: bool,
        at_start: AtStart,
    ) -> Self {
        Self {
            me: Peer { process: me, incarnation: Incarnation(0) },
            company: Company::new(members),
            timing,
            quorum,
            at_start,
            flaw: None,
            number: 0,
            leader: None,
            role: Role::Settled,
        }
    }

    /// The same with one of its lines left out.
    #[must_use]
    pub fn with_flaw(mut self, flaw: Option<Flaw>) -> Self {
        self.flaw = flaw;
        self
    }

    fn own(&self) -> Request {
        Request { by: self.me, number: self.number }
    }

    fn need(&self) -> usize {
        if self.quorum { self.company.members.majority() } else { 1 }
    }

    /// The smaller ones that are not suspected.
    fn followers(&self) -> impl Iterator<Item = ProcessId> + '_ {
        let me = self.me.process;
        self.company
            .members
            .iter()
            .take_while(move |other| *other < me)
            .filter(|p| !self.company.suspects(*p))
    }

    /// What is missing before it may take over, or refuse.
    fn missing(&self) -> Vec<ProcessId> {
        let Role::Asking { silent, have } = &self.role else { return Vec::new() };
        let few = *have < self.need();
        silent.iter().copied().filter(|other| *other > self.me.process || few).collect()
    }

    fn hold(&mut self, out: &mut Outbox<Self>) {
        self.number += 1;
        let election = self.own();
        out.emit(Event::Started { election });
        let me = self.me.process;
        let asked = self.company.members.others(me).filter(|other| self.quorum || *other > me);
        let silent: Vec<_> = asked.collect();
        for other in &silent {
            out.send(*other, Message::Election { election });
        }
        self.rest(out);
        if !silent.is_empty() {
            out.set_timer(BullyTimer::Answer, self.timing.answer);
        }
        self.role = Role::Asking { silent, have: 1 };
        self.settle(out);
    }

    /// Leaves its role.
    fn rest(&mut self, out: &mut Outbox<Self>) {
        match self.role {
            Role::Settled => {}
            Role::Asking { .. } => out.cancel_timer(BullyTimer::Answer),
            Role::Waiting { .. } => out.cancel_timer(BullyTimer::Coordinator),
            Role::Refused { .. } if self.timing.again.is_none() => {}
            Role::Refused { .. } => out.cancel_timer(BullyTimer::Again),
        }
        self.role = Role::Settled;
    }

    /// Takes over, or refuses, if nothing is missing.
    fn settle(&mut self, out: &mut Outbox<Self>) {
        let Role::Asking { have, .. } = self.role else { return };
        if !self.missing().is_empty() {
            return;
        }
        if have < self.need() {
            return self.refuse(have, out);
        }
        self.rest(out);
        self.follow(self.me.process, self.own(), out);
        let election = self.own();
        for other in self.followers() {
            out.send(other, Message::Coordinator { election });
        }
    }

    fn refuse(&mut self, have: usize, out: &mut Outbox<Self>) {
        let election = self.own();
        for other in self.followers() {
            out.send(other, Message::Refused { election, have });
        }
        self.refused(have, out);
    }

    fn refused(&mut self, have: usize, out: &mut Outbox<Self>) {
        self.rest(out);
        self.lose(out);
        self.role = Role::Refused { have };
        out.emit(Event::Refused { why: Why::Minority { have, need: self.need() } });
        if let Some(within) = self.timing.again {
            out.set_timer(BullyTimer::Again, within);
        }
    }

    fn follow(&mut self, leader: ProcessId, election: Request, out: &mut Outbox<Self>) {
        if self.leader == Some(leader) {
            return;
        }
        self.lose(out);
        self.leader = Some(leader);
        out.emit(Event::Elected { leader, term: None, election });
    }

    fn lose(&mut self, out: &mut Outbox<Self>) {
        if self.leader.take() == Some(self.me.process) {
            out.emit(Event::SteppedDown { term: None });
        }
    }

    // ---- mail

    fn asked(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Election { election } = message else { return };
        let greater = from.process > self.me.process;
        if election.by != from || (greater && !self.quorum) {
            return out.ignore(from, &message, Ignored::Malformed);
        }
        out.send(from, Message::Ok { election });
        if !greater && !self.is_electing() {
            self.hold(out);
        }
    }

    fn answered(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Ok { election } = message else { return };
        if election != self.own() || !self.is_electing() {
            return out.ignore(from, &message, Ignored::Late);
        }
        self.company.answered(from.process, election.number);
        let greater = from.process > self.me.process;
        match &mut self.role {
            Role::Asking { .. } if greater => {
                self.rest(out);
                self.role = Role::Waiting { on: from.process };
                if !Flaw::NoSecondTimeout.is(self.flaw) {
                    out.set_timer(BullyTimer::Coordinator, self.timing.coordinator);
                }
            }
            Role::Asking { silent, have } => match silent.iter().position(|other| *other == from.process) {
                None => out.ignore(from, &message, Ignored::Doubled),
                Some(at) => {
                    silent.remove(at);
                    *have += 1;
                    self.settle(out);
                }
            },
            Role::Waiting { on } => *on = from.process.max(*on),
            Role::Settled | Role::Refused { .. } => {}
        }
    }

    fn announced(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Coordinator { election } = message else { return };
        if election.by != from || from.process < self.me.process {
            return out.ignore(from, &message, Ignored::Malformed);
        }
        // It may have spoken long ago, or before a greater one that was heard sooner.
        let overtaken = self.role == Role::Settled && self.leader > Some(from.process);
        let doubtful = overtaken || self.company.suspects(from.process);
        if doubtful && !Flaw::SuspectFollowed.is(self.flaw) {
            return if self.is_electing() {
                out.ignore(from, &message, Ignored::Late)
            } else {
                self.hold(out)
            };
        }
        self.rest(out);
        self.follow(from.process, election, out);
    }

    fn turned_down(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Refused { have, .. } = message else { return };
        let waits = matches!(self.role, Role::Waiting { .. });
        if from.process > self.me.process && (waits || self.leader == Some(from.process)) {
            self.refused(have, out);
        } else {
            out.ignore(from, &message, Ignored::Late);
        }
    }

    // ---- the detector and the membership

    fn suspected(&mut self, process: ProcessId, out: &mut Outbox<Self>) {
        if !self.company.suspect(process, self.number) {
            return;
        }
        let reach = self.company.reach();
        if self.leader == Some(self.me.process) && reach < self.need() {
            return self.refuse(reach, out);
        }
        let lost = self.leader == Some(process);
        if lost {
            self.leader = None;
        }
        let in_vain = matches!(self.role, Role::Waiting { on } if on == process);
        let in_vain = in_vain && !Flaw::NoSecondTimeout.is(self.flaw);
        if in_vain || (lost && !self.is_electing()) {
            self.hold(out);
        }
    }

    fn trusted(&mut self, peer: Peer, out: &mut Outbox<Self>) {
        let back = self.company.trust(peer.process);
        if !self.company.members.contains(peer.process) || peer.process == self.me.process {
            return;
        }
        let leads = self.leader == Some(self.me.process);
        let greater = peer.process > self.me.process;
        if matches!(self.role, Role::Refused { .. }) || (leads && greater && back && !self.is_electing()) {
            self.hold(out);
        } else if leads && !greater {
            out.send(peer, Message::Coordinator { election: self.own() });
        }
    }

    fn view(&mut self, members: Members, out: &mut Outbox<Self>) {
        self.company.replace(members);
        let gone = |process: &ProcessId| !self.company.members.contains(*process);
        let lost = self.leader.as_ref().is_some_and(gone);
        let in_vain = matches!(&self.role, Role::Waiting { on } if gone(on));
        if let Role::Asking { silent, .. } = &mut self.role {
            silent.retain(|process| self.company.members.contains(*process));
        }
        if lost {
            self.lose(out);
        }
        if in_vain || (lost && !self.is_electing()) {
            self.hold(out);
        }
        self.settle(out);
    }
}

impl Protocol for Bully {
    type Call = Call;
    type Message = BullyMessage;
    type Timer = BullyTimer;
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
            Input::Message { from, message } if !self.company.members.contains(from.process) => {
                out.ignore(from, &message, Ignored::Stranger);
            }
            Input::Message { from, message } => match message {
                Message::Election { .. } => self.asked(from, message, out),
                Message::Ok { .. } => self.answered(from, message, out),
                Message::Coordinator { .. } => self.announced(from, message, out),
                Message::Refused { .. } => self.turned_down(from, message, out),
            },
            Input::Timer(BullyTimer::Answer) => {
                if let Role::Asking { silent, .. } = &mut self.role {
                    silent.clear();
                    self.settle(out);
                }
            }
            Input::Timer(BullyTimer::Coordinator | BullyTimer::Again) => self.hold(out),
            Input::Suspect(process) => self.suspected(process, out),
            Input::Trust(peer) => self.trusted(peer, out),
            Input::View { members, .. } => self.view(members, out),
            Input::Persisted(_) => {}
        }
    }

    fn waits(&self) -> Vec<Wait> {
        let said = |kind, from| Cause::Message { kind, from, suspected: self.company.suspects(from) };
        let causes: Vec<Cause> = match &self.role {
            Role::Settled => Vec::new(),
            Role::Asking { .. } => self.missing().into_iter().map(|from| said("OK", from)).collect(),
            Role::Waiting { on } => alloc::vec![said("COORDINATOR", *on)],
            Role::Refused { have } => alloc::vec![Cause::Majority { have: *have, need: self.need() }],
        };
        causes.into_iter().map(|cause| Wait { goal: Goal::Leader, cause }).collect()
    }
}

impl Elects for Bully {
    fn leader(&self) -> Option<ProcessId> {
        self.leader
    }
    fn is_electing(&self) -> bool {
        matches!(self.role, Role::Asking { .. } | Role::Waiting { .. })
    }
    fn me(&self) -> Peer {
        self.me
    }
}
