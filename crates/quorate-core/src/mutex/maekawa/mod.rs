//! Maekawa: who wants to enter asks a set of voters that meets every other set, and each votes for one.
//!
//! **Problem.** Mutual exclusion without a coordinator and without asking everybody.
//!
//! **Rule.** A voter votes for one request at a time, the best that it knows, that with the smallest
//! (timestamp, process). Who has the votes of its whole set is inside.
//!
//! **Messages**
//!
//! | name | fields | when |
//! |---|---|---|
//! | REQUEST | request, timestamp | on `enter`, to the set; again when it may have been forgotten |
//! | LOCKED | request, vote | to the best request when the vote is free; again when the voter doubts |
//! | FAILED | request, by | to a request that is not the next one, at once or when it is overtaken later |
//! | INQUIRE | request, vote, by | to the one with the vote, if a better request waits |
//! | YIELD | request, vote | on INQUIRE, by who waits and was told FAILED, or as soon as it is |
//! | RELEASE | request | on `leave`, to the set; on a LOCKED that nobody waits for |
//!
//! The `basic` form has REQUEST, LOCKED and RELEASE only. It can deadlock: three processes each hold one
//! vote and wait for the next one's. It is kept because one should have seen it.
//!
//! **Cost.** 3 (K-1) messages an entry if nobody else asks, where K is the size of the set, oneself in it. In
//! a crowd a waiter costs a FAILED, and a vote that moves an INQUIRE, a YIELD and a second LOCKED: all of
//! N = 4, 9, 16, 25 asking without a pause took 7.8, 15.8, 23.8, 31.8 an entry, about 4 (K-1). 2 message
//! times before an idle entry; 2 from one to the next, as the voter stands between.
//!
//! **Safety.** Two sets share a voter, and a vote is with one request: the voter gives vote `n + 1` away only
//! after the YIELD of vote `n`, which ends it for its holder, or the RELEASE of the request. Votes are
//! numbered and requests named with the life that made them, so doubled and late mail moves nothing. A vote
//! is durable before it is told (`durable`): a voter that restarts asks whom it had voted for.
//!
//! **Progress.** Of the requests that wait at one voter all but the best are told FAILED, also one that was
//! the best and is overtaken. Who was told gives back what is asked back, so the best of all gets all votes.
//! Finitely many entries pass a request: each raises its process's timestamp, until that is the greater one.
//!
//! **Needs.** Members that never change: voting sets of two memberships need not meet, so a `View` is
//! ignored. Any order of messages, and doubled ones, do no harm. Loss does, unless `retry` is set.
//!
//! **When it fails.** A stopped process stops all whose sets it is in, and all whose voters vote for it,
//! until it starts again: then its former request is over. A voter that restarts without its disk votes
//! twice, and two are inside.
//!
//! **Source.** Maekawa 1985. FAILED to an overtaken waiter: Sanders 1987. Numbered votes and restarts: ours.

mod message;

pub use message::{MaekawaMessage, MaekawaRecord, MaekawaTimer};

use super::flaw::Flaw;
use super::{Call, Event, Mutex, Standing};
use crate::protocol::{
    Cause, Goal, Ignored, Incarnation, Input, Members, Now, Outbox, Peer, PersistId, ProcessId, Protocol,
    Request, Wait, Within,
};
use crate::quorum;
use alloc::vec::Vec;

/// Which of the two forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MaekawaForm {
    /// A vote is never asked back. It can deadlock.
    Basic,
    /// A voter asks its vote back for a better request.
    DeadlockFree,
}

/// One process: it asks, and it votes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Maekawa {
    me: Peer,
    members: Members,
    voters: Members,
    form: MaekawaForm,
    durable: bool,
    retry: Option<Within>,
    flaw: Option<Flaw>,
    /// The highest timestamp seen.
    clock: u64,
    /// The number of the last request of this life.
    number: u64,
    role: Role,
    desk: Desk,
    suspected: Vec<ProcessId>,
    /// What this process says to itself; empty between two inputs.
    own_mail: Vec<Message>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Role {
    Idle,
    Waiting { stamp: u64, ballots: Vec<Ballot> },
    Inside,
}

/// What one voter has answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ballot {
    voter: ProcessId,
    /// The life in which it was last heard from.
    life: Option<Incarnation>,
    answer: Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    None,
    Failed {
        by: Request,
    },
    Locked {
        vote: u64,
        /// The better request that it was asked back for.
        inquired: Option<Request>,
    },
    Yielded {
        vote: u64,
        by: Request,
    },
}

/// What the voter in this process knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Desk {
    /// The number of the last vote.
    votes: u64,
    vote: Option<Vote>,
    /// The requests that wait, the best first.
    queue: Vec<Waiter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Vote {
    rank: Rank,
    inquired: bool,
    /// The record that has to be durable before it is told.
    writing: Option<PersistId>,
}

/// How good a request is: the smaller the better.
type Rank = (u64, Request);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Waiter {
    rank: Rank,
    /// It was told that it is not the next one.
    failed: bool,
}

type Message = MaekawaMessage;

impl Maekawa {
    /// A process before its start, with the voting set of its place in the grid. `durable` makes it write a
    /// vote to disk before it tells it, so that it may restart. `retry` is how long it waits before it says
    /// things again, for links that lose messages: several round trips at least.
    ///
    /// # Panics
    /// If `me` is not a member.
    pub fn new(
        me: ProcessId,
        members: Members,
        form: MaekawaForm,
        durable: bool,
        retry: Option<Within>,
    ) -> Self {
        let voters = quorum::grid(&members, me);
        Self {
            me: Peer { process: me, incarnation: Incarnation(0) },
            members,
            voters,
            form,
            durable,
            retry,
            flaw: None,
            clock: 0,
            number: 0,
            role: Role::Idle,
            desk: Desk::default(),
            suspected: Vec::new(),
            own_mail: Vec::new(),
        }
    }

    /// The same with another voting set. Every two sets of a group have to meet.
    #[must_use]
    pub fn with_voters(mut self, voters: Members) -> Self {
        self.voters = voters;
        self
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

    /// Whose votes it needs.
    pub fn voters(&self) -> &Members {
        &self.voters
    }

    fn own(&self) -> Request {
        Request { by: self.me, number: self.number }
    }

    /// Sends, to itself as well; those messages cost nothing.
    fn post(&mut self, to: ProcessId, message: Message, after: Option<PersistId>, out: &mut Outbox<Self>) {
        match after {
            _ if to == self.me.process => self.own_mail.push(message),
            Some(record) => out.send_after(record, to, message),
            None => out.send(to, message),
        }
    }

    // ---- who asks

    fn enter(&mut self, out: &mut Outbox<Self>) {
        if self.role != Role::Idle {
            return out.emit(Event::Refused { call: Call::Enter, standing: self.standing() });
        }
        self.clock += 1;
        self.number += 1;
        let (request, stamp) = (self.own(), self.clock);
        out.emit(Event::Requested { request });
        let ballot = |voter| Ballot { voter, life: None, answer: Answer::None };
        self.role = Role::Waiting { stamp, ballots: self.voters.iter().map(ballot).collect() };
        for voter in self.voters.clone().iter() {
            self.post(voter, Message::Request { request, stamp }, None, out);
        }
        if let Some(within) = self.retry {
            out.set_timer(MaekawaTimer::Ask, within);
        }
    }

    fn leave(&mut self, out: &mut Outbox<Self>) {
        if self.role != Role::Inside {
            return out.emit(Event::Refused { call: Call::Leave, standing: self.standing() });
        }
        self.role = Role::Idle;
        let request = self.own();
        out.emit(Event::Left { request });
        for voter in self.voters.clone().iter() {
            self.post(voter, Message::Release { request }, None, out);
        }
    }

    /// Where a voter stands with the present request, or why its message is of no use.
    fn ballot(&mut self, voter: ProcessId, about: Request) -> Result<&mut Ballot, Ignored> {
        let own = self.own();
        match &mut self.role {
            Role::Waiting { ballots, .. } if about == own => {
                ballots.iter_mut().find(|ballot| ballot.voter == voter).ok_or(Ignored::Malformed)
            }
            Role::Inside if about == own => Err(Ignored::Doubled),
            _ => Err(Ignored::Late),
        }
    }

    fn locked(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Locked { request, vote } = message else { return };
        match self.ballot(from.process, request) {
            Err(why) => {
                out.ignore(from, &message, why);
                if why == Ignored::Late {
                    // Nobody waits for it: give it back, or everybody behind would wait for ever.
                    self.post(from.process, Message::Release { request }, None, out);
                }
            }
            Ok(ballot) => match ballot.answer {
                Answer::Locked { vote: known, .. } if known >= vote => {
                    out.ignore(from, &message, Ignored::Doubled);
                }
                Answer::Yielded { vote: known, .. } if known >= vote => self.yield_again(from, message, out),
                _ => {
                    ballot.answer = Answer::Locked { vote, inquired: None };
                    self.settle(out);
                }
            },
        }
    }

    fn inquired(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Inquire { request, vote, by } = message else { return };
        let flaw = self.flaw;
        match self.ballot(from.process, request) {
            Err(Ignored::Late) if Flaw::LateInquire.is(flaw) => {
                self.post(from.process, Message::Yield { request, vote }, None, out);
            }
            // Who is inside will release, and who was has released.
            Err(why) => out.ignore(from, &message, why),
            Ok(ballot) => match ballot.answer {
                Answer::Locked { vote: known, .. } if known > vote => {
                    out.ignore(from, &message, Ignored::Late);
                }
                Answer::Yielded { vote: known, .. } if known >= vote => self.yield_again(from, message, out),
                _ => {
                    ballot.answer = Answer::Locked { vote, inquired: Some(by) };
                    self.settle(out);
                }
            },
        }
    }

    /// The voter has not heard that its vote was given back.
    fn yield_again(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        out.ignore(from, &message, Ignored::Doubled);
        if let Message::Locked { request, vote } | Message::Inquire { request, vote, .. } = message {
            self.post(from.process, Message::Yield { request, vote }, None, out);
        }
    }

    fn failed(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Failed { request, by } = message else { return };
        match self.ballot(from.process, request) {
            Err(why) => out.ignore(from, &message, why),
            Ok(ballot) => match &mut ballot.answer {
                Answer::Locked { .. } => out.ignore(from, &message, Ignored::Late),
                Answer::Yielded { by: known, .. } => *known = by,
                Answer::None | Answer::Failed { .. } => {
                    ballot.answer = Answer::Failed { by };
                    self.settle(out);
                }
            },
        }
    }

    /// Enters with all votes. Else gives back what was asked back, if some vote is not to be had soon.
    fn settle(&mut self, out: &mut Outbox<Self>) {
        let request = self.own();
        let Role::Waiting { ballots, .. } = &mut self.role else { return };
        if ballots.iter().all(|ballot| matches!(ballot.answer, Answer::Locked { .. })) {
            self.role = Role::Inside;
            if self.retry.is_some() {
                out.cancel_timer(MaekawaTimer::Ask);
            }
            return out.emit(Event::Entered { request, fence: None });
        }
        let hopeless =
            |ballot: &Ballot| matches!(ballot.answer, Answer::Failed { .. } | Answer::Yielded { .. });
        if !ballots.iter().any(hopeless) {
            return;
        }
        let mut given = Vec::new();
        for ballot in ballots {
            if let Answer::Locked { vote, inquired: Some(by) } = ballot.answer {
                ballot.answer = Answer::Yielded { vote, by };
                given.push((ballot.voter, Message::Yield { request, vote }));
            }
        }
        for (voter, message) in given {
            self.post(voter, message, None, out);
        }
    }

    /// Asks voters again that have not voted: all of them, or this one.
    fn ask_again(&mut self, only: Option<ProcessId>, out: &mut Outbox<Self>) {
        let request = self.own();
        let Role::Waiting { stamp, ballots } = &self.role else { return };
        let message = Message::Request { request, stamp: *stamp };
        let asked = ballots.iter().filter(|ballot| only.is_none_or(|only| only == ballot.voter));
        let missing = asked.filter(|ballot| !matches!(ballot.answer, Answer::Locked { .. }));
        let missing: Vec<_> = missing.map(|ballot| ballot.voter).collect();
        for voter in missing.into_iter().filter(|voter| *voter != self.me.process) {
            out.send(voter, message);
        }
    }

    // ---- who votes

    /// Why this request does not have the vote of this process.
    fn withheld(&self, request: Request) -> Option<Cause> {
        let vote = self.desk.vote.as_ref()?;
        match vote.rank.1 == request {
            true => vote.writing.map(|_| Cause::Disk),
            false => Some(Cause::Held { by: vote.rank.1 }),
        }
    }

    fn asked(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Request { request, stamp } = message else { return };
        if request.by != from {
            return out.ignore(from, &message, Ignored::Malformed);
        }
        self.clock = self.clock.max(stamp);
        if self.desk.vote.as_ref().is_some_and(|vote| vote.rank.1 == request) {
            out.ignore(from, &message, Ignored::Doubled);
            return self.tell(out);
        }
        if let Some(waiter) = self.desk.queue.iter().find(|waiter| waiter.rank.1 == request) {
            out.ignore(from, &message, Ignored::Doubled);
            if let (true, Some(vote)) = (waiter.failed, &self.desk.vote) {
                let by = vote.rank.1;
                self.post(from.process, Message::Failed { request, by }, None, out);
            }
            return;
        }
        self.queue(Waiter { rank: (stamp, request), failed: false });
        self.elect(out);
        self.answer(Some(request), out);
    }

    fn queue(&mut self, waiter: Waiter) {
        let place = self.desk.queue.partition_point(|other| *other < waiter);
        self.desk.queue.insert(place, waiter);
    }

    /// Votes for the best request, if the vote is free.
    fn elect(&mut self, out: &mut Outbox<Self>) {
        if self.desk.vote.is_some() || self.desk.queue.is_empty() {
            return;
        }
        let Waiter { rank, .. } = self.desk.queue.remove(0);
        self.desk.votes += 1;
        // A vote for oneself ends with this life, so it is not written.
        let write = self.durable && rank.1.by != self.me;
        let record = MaekawaRecord { vote: self.desk.votes, request: rank.1, stamp: rank.0 };
        let writing = write.then(|| out.persist(record));
        self.desk.vote = Some(Vote { rank, inquired: false, writing });
        self.tell(out);
    }

    /// Tells the request that has the vote, once that is durable.
    fn tell(&mut self, out: &mut Outbox<Self>) {
        let Some(vote) = &self.desk.vote else { return };
        let (request, writing) = (vote.rank.1, vote.writing);
        let after = writing.filter(|_| !Flaw::VoteNotDurable.is(self.flaw));
        let locked = Message::Locked { request, vote: self.desk.votes };
        self.post(request.by.process, locked, after, out);
    }

    /// Tells those that wait whether they are next, and asks the vote back for one that is better.
    fn answer(&mut self, arrived: Option<Request>, out: &mut Outbox<Self>) {
        self.set_doubt(arrived, out);
        let Some(vote) = self.desk.vote.clone() else { return };
        if self.form == MaekawaForm::Basic {
            return;
        }
        let by = vote.rank.1;
        let mut told = Vec::new();
        let mut better = None;
        for (place, waiter) in self.desk.queue.iter_mut().enumerate() {
            let request = waiter.rank.1;
            if place == 0 && waiter.rank < vote.rank {
                better = Some(request);
            } else if !waiter.failed {
                if Some(request) != arrived && Flaw::OvertakenNotTold.is(self.flaw) {
                    continue;
                }
                waiter.failed = true;
                told.push((request.by.process, Message::Failed { request, by }));
            }
        }
        for (process, message) in told {
            self.post(process, message, None, out);
        }
        if let Some(better) = better.filter(|_| !vote.inquired) {
            self.inquire(better, out);
        }
    }

    fn inquire(&mut self, better: Request, out: &mut Outbox<Self>) {
        if Flaw::NoInquire.is(self.flaw) {
            return;
        }
        let number = self.desk.votes;
        let Some(vote) = &mut self.desk.vote else { return };
        vote.inquired = true;
        let (request, writing) = (vote.rank.1, vote.writing);
        let message = Message::Inquire { request, vote: number, by: better };
        self.post(request.by.process, message, writing, out);
    }

    fn yielded(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Yield { request, vote } = message else { return };
        let Some(present) = &self.desk.vote else { return out.ignore(from, &message, Ignored::Late) };
        let same = present.rank.1 == request && self.desk.votes == vote;
        if !same && !Flaw::LateInquire.is(self.flaw) {
            return out.ignore(from, &message, Ignored::Late);
        }
        let waiter = Waiter { rank: present.rank, failed: true };
        self.desk.vote = None;
        self.queue(waiter);
        self.elect(out);
        self.answer(None, out);
    }

    fn released(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Release { request } = message else { return };
        if request.by.process != from.process {
            return out.ignore(from, &message, Ignored::Malformed);
        }
        let waited = self.desk.queue.len();
        self.desk.queue.retain(|waiter| waiter.rank.1 != request);
        if self.desk.vote.as_ref().is_some_and(|vote| vote.rank.1 == request) {
            self.desk.vote = None;
            self.elect(out);
        } else if waited == self.desk.queue.len() {
            return out.ignore(from, &message, Ignored::Late);
        }
        self.answer(None, out);
    }

    /// Others wait for the vote: its holder may be gone, or the answer of it lost.
    fn doubt(&mut self, out: &mut Outbox<Self>) {
        if self.desk.queue.is_empty() {
            return;
        }
        self.tell(out);
        if self.desk.vote.as_ref().is_some_and(|vote| vote.inquired) {
            self.inquire(self.desk.queue[0].rank.1, out);
        }
        if let Some(within) = self.retry {
            out.set_timer(MaekawaTimer::Doubt, within);
        }
    }

    /// The first that waits starts the timer, and nobody that waits ends it.
    fn set_doubt(&self, arrived: Option<Request>, out: &mut Outbox<Self>) {
        match (self.retry, self.desk.queue.as_slice()) {
            (Some(within), [only]) if Some(only.rank.1) == arrived => {
                out.set_timer(MaekawaTimer::Doubt, within);
            }
            (Some(_), []) => out.cancel_timer(MaekawaTimer::Doubt),
            _ => {}
        }
    }

    // ---- lives

    /// Notes who speaks. A voter in another life has forgotten who waits; one that had the vote in another
    /// life may be gone, and is asked by being told.
    fn heard(&mut self, from: Peer, out: &mut Outbox<Self>) {
        if let Role::Waiting { ballots, .. } = &mut self.role
            && let Some(ballot) = ballots.iter_mut().find(|ballot| ballot.voter == from.process)
            && let Some(life) = ballot.life.replace(from.incarnation)
            && life != from.incarnation
        {
            self.ask_again(Some(from.process), out);
        }
        let former = |vote: &Vote| vote.rank.1.by.process == from.process && vote.rank.1.by != from;
        if self.desk.vote.as_ref().is_some_and(former) {
            self.tell(out);
        }
    }

    fn trusted(&mut self, peer: Peer, out: &mut Outbox<Self>) {
        self.suspected.retain(|process| *process != peer.process);
        if !self.members.contains(peer.process) {
            return;
        }
        if let Role::Waiting { ballots, .. } = &mut self.role
            && let Some(ballot) = ballots.iter_mut().find(|ballot| ballot.voter == peer.process)
            && ballot.life.is_none()
        {
            // It may have been down when it was asked.
            ballot.life = Some(peer.incarnation);
            self.ask_again(Some(peer.process), out);
        }
        self.heard(peer, out);
    }

    /// A voter that comes back asks whom it had voted for by telling it.
    fn start(&mut self, me: Peer, record: Option<MaekawaRecord>, out: &mut Outbox<Self>) {
        self.me = me;
        if let Some(MaekawaRecord { vote, request, stamp }) = record {
            self.desk.votes = vote;
            self.desk.vote = Some(Vote { rank: (stamp, request), inquired: false, writing: None });
            self.clock = stamp;
            self.tell(out);
        }
    }

    fn take(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        match message {
            Message::Request { .. } => self.asked(from, message, out),
            Message::Locked { .. } => self.locked(from, message, out),
            Message::Failed { .. } => self.failed(from, message, out),
            Message::Inquire { .. } => self.inquired(from, message, out),
            Message::Yield { .. } => self.yielded(from, message, out),
            Message::Release { .. } => self.released(from, message, out),
        }
    }
}

impl Protocol for Maekawa {
    type Call = Call;
    type Message = MaekawaMessage;
    type Timer = MaekawaTimer;
    type Record = MaekawaRecord;
    type Event = Event;

    fn handle(&mut self, _now: Now, input: Input<Self>, out: &mut Outbox<Self>) {
        match input {
            Input::Start { me, record } => self.start(me, record, out),
            Input::Call(Call::Enter) => self.enter(out),
            Input::Call(Call::Leave) => self.leave(out),
            Input::Message { from, message } if !self.members.contains(from.process) => {
                out.ignore(from, &message, Ignored::Stranger);
            }
            Input::Message { from, message } => {
                self.heard(from, out);
                self.take(from, message, out);
            }
            Input::Timer(MaekawaTimer::Ask) => {
                self.ask_again(None, out);
                if let (Some(within), Role::Waiting { .. }) = (self.retry, &self.role) {
                    out.set_timer(MaekawaTimer::Ask, within);
                }
            }
            Input::Timer(MaekawaTimer::Doubt) => self.doubt(out),
            Input::Persisted(id) => {
                if let Some(vote) = &mut self.desk.vote {
                    vote.writing = vote.writing.filter(|writing| *writing > id);
                }
            }
            Input::Suspect(process) => {
                if !self.suspected.contains(&process) {
                    self.suspected.push(process);
                    self.suspected.sort_unstable();
                }
            }
            Input::Trust(peer) => self.trusted(peer, out),
            Input::View { .. } => {}
        }
        while !self.own_mail.is_empty() {
            let message = self.own_mail.remove(0);
            self.take(self.me, message, out);
        }
    }

    fn waits(&self) -> Vec<Wait> {
        let mut waits = Vec::new();
        if let Role::Waiting { ballots, .. } = &self.role {
            for Ballot { voter, answer, .. } in ballots {
                waits.extend(self.missing(*voter, *answer));
            }
        }
        let vote = self.desk.vote.iter().map(|vote| vote.rank.1);
        let owed = vote.chain(self.desk.queue.iter().map(|waiter| waiter.rank.1));
        waits.extend(owed.filter(|request| request.by != self.me).filter_map(|request| {
            let cause = self.withheld(request)?;
            Some(Wait { goal: Goal::Answer { kind: "LOCKED", request }, cause })
        }));
        waits
    }
}

impl Maekawa {
    /// Why this voter's vote is missing: its message, and whom it last said that the vote is with. Of the
    /// voter in this very process, what holds it back.
    fn missing(&self, voter: ProcessId, answer: Answer) -> Vec<Wait> {
        let goal = Goal::Enter(self.own());
        if voter == self.me.process {
            let held = self.withheld(self.own());
            return held.into_iter().map(|cause| Wait { goal: goal.clone(), cause }).collect();
        }
        let suspected = self.suspected.contains(&voter);
        let missing = Cause::Message { kind: "LOCKED", from: voter, suspected };
        let said = match answer {
            Answer::Locked { .. } => return Vec::new(),
            Answer::None => None,
            Answer::Failed { by } | Answer::Yielded { by, .. } => Some(Cause::Voted { by: voter, to: by }),
        };
        [Some(missing), said].into_iter().flatten().map(|cause| Wait { goal: goal.clone(), cause }).collect()
    }
}

impl Mutex for Maekawa {
    fn standing(&self) -> Standing {
        match self.role {
            Role::Idle => Standing::Idle,
            Role::Waiting { .. } => Standing::Waiting,
            Role::Inside => Standing::Inside,
        }
    }
}
