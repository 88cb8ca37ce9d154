//! Term: whoever a majority votes for leads, and nobody else does in that term.
//!
//! **Problem.** Never two leaders in one term, whatever is slow, lost, cut off or restarted.
//!
//! **Rule.** A process votes once in a term, for a candidate whose log is not older than its own, and answers
//! only when its vote is durable; a majority of votes makes a leader.
//!
//! **Messages**
//!
//! | name | fields | when |
//! |---|---|---|
//! | PREVOTE | election, term, log | with `pre_vote`, to all, before the own term is raised |
//! | PREVOTED | election, term, denial | on PREVOTE, at once: it promises nothing |
//! | REQUEST | election, term, log | to all, once the own vote is durable |
//! | VOTE | election, term, denial | on REQUEST, once the vote is durable |
//! | HEARTBEAT | election, term, beat | by the leader: at once when elected, then at each `heartbeat` |
//! | ALIVE | term, beat | on HEARTBEAT, also of an older term, whose leader thus learns that it is over |
//!
//! **Cost.** 2(N-1) for the votes, as many again with pre-vote; then 2(N-1) a heartbeat. One disk write by
//! each that votes. From silence to a leader: the election timer, 2 message times and 2 disk writes, and 2
//! message times more with pre-vote.
//!
//! **Safety.** Two majorities share a process, and it votes once in a term, over restarts too. A leader that
//! does not hear from a majority for as long as the longest election timer steps down. With `lease` a leader
//! knows that no other is elected until a while after the *sending* of the last heartbeat that a majority
//! answered, less the margin of the clocks (module `lease`); voters refuse everybody else for longer than
//! that from its *arrival*, and after a start as long, as they may have promised it before.
//!
//! **Needs.** A disk that survives. The same members everywhere: a view is ignored, since a majority of other
//! members need not meet this one. Any loss, doubling and order of messages do no harm to safety.
//!
//! **When it fails.** Without a majority nobody is elected. Without its disk a process may vote twice, and
//! two may lead in one term. A lease trusts the rates of the clocks, and no pause protects itself: whatever a
//! leader does has to carry its term. If not all can reach each other, `pre_vote` keeps a leader that a
//! majority hears; a leader that a majority does not hear gives way even if nobody else can do better.
//!
//! **Source.** Ongaro and Ousterhout 2014; pre-vote, leases and the leader's own check in Ongaro 2014,
//! sections 6.4.1, 9.6 and 4.2.3. The log itself is elsewhere: its last position is given.

use super::flaw::Flaw;
use super::{Call, Elects, Event, Term, Why};
use crate::id::LogIndex;
use crate::lease::{act_for, kept_for};
use crate::protocol::{
    Cause, Goal, Ignored, Incarnation, Input, Kind, Members, Now, Outbox, Peer, PersistId, ProcessId,
    Protocol, Request, Wait, Within,
};
use crate::time::{Mono, Span};
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// How many unanswered heartbeats a leader remembers the sending time of.
const BEATS_KEPT: usize = 4;

/// The end of a log. A log of a later term is newer, whatever its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogPosition {
    /// The term of its last entry.
    pub term: Term,
    /// The place of its last entry.
    pub index: LogIndex,
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.term, self.index)
    }
}

/// Why a vote is not given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Denial {
    /// The term is over here.
    OldTerm,
    /// Another has the vote of this term.
    Voted(ProcessId),
    /// The candidate's log is older.
    OldLog,
    /// A leader was heard not long ago.
    Led,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OldTerm => write!(f, "the term is over"),
            Self::Voted(process) => write!(f, "voted for {process}"),
            Self::OldLog => write!(f, "the log is older"),
            Self::Led => write!(f, "there is a leader"),
        }
    }
}

/// See the table of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TermMessage {
    /// Would you vote for me?
    PreVote {
        /// Which election.
        election: Request,
        /// The term that it would be.
        term: Term,
        /// The end of the candidate's log.
        log: LogPosition,
    },
    /// I would, or not.
    PreVoted {
        /// The election that is answered.
        election: Request,
        /// The term of the one that answers.
        term: Term,
        /// Why not.
        denial: Option<Denial>,
    },
    /// Vote for me.
    Request {
        /// Which election.
        election: Request,
        /// The candidate's term.
        term: Term,
        /// The end of the candidate's log.
        log: LogPosition,
    },
    /// I do, or not.
    Vote {
        /// The election that is answered.
        election: Request,
        /// The term of the one that answers.
        term: Term,
        /// Why not.
        denial: Option<Denial>,
    },
    /// I lead.
    Heartbeat {
        /// The election that its sender won.
        election: Request,
        /// The leader's term.
        term: Term,
        /// Which heartbeat, if there is a lease.
        beat: u32,
    },
    /// I hear you.
    Alive {
        /// The term of the one that answers.
        term: Term,
        /// The heartbeat that is answered.
        beat: u32,
    },
}

impl TermMessage {
    fn term(&self) -> Term {
        let (Self::PreVote { term, .. }
        | Self::PreVoted { term, .. }
        | Self::Request { term, .. }
        | Self::Vote { term, .. }
        | Self::Heartbeat { term, .. }
        | Self::Alive { term, .. }) = self;
        *term
    }
}

impl Kind for TermMessage {
    const KINDS: &'static [&'static str] = &["PREVOTE", "PREVOTED", "REQUEST", "VOTE", "HEARTBEAT", "ALIVE"];
    fn kind(&self) -> u8 {
        match self {
            Self::PreVote { .. } => 0,
            Self::PreVoted { .. } => 1,
            Self::Request { .. } => 2,
            Self::Vote { .. } => 3,
            Self::Heartbeat { .. } => 4,
            Self::Alive { .. } => 5,
        }
    }
    fn about(&self) -> Option<Request> {
        match self {
            Self::PreVote { election, .. }
            | Self::PreVoted { election, .. }
            | Self::Request { election, .. }
            | Self::Vote { election, .. } => Some(*election),
            Self::Heartbeat { .. } | Self::Alive { .. } => None,
        }
    }
}

impl fmt::Display for TermMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} term {}", self.name(), self.term())?;
        match self {
            Self::PreVote { log, .. } | Self::Request { log, .. } => write!(f, " log {log}"),
            Self::PreVoted { denial: Some(denial), .. } | Self::Vote { denial: Some(denial), .. } => {
                write!(f, " denied: {denial}")
            }
            _ => Ok(()),
        }
    }
}

crate::kinds! {
    /// Its timers.
    #[derive(Serialize, Deserialize)]
    pub enum TermTimer {
        /// No leader was heard, or no election ended, for too long.
        Election = "election",
        /// The leader speaks again.
        Heartbeat = "heartbeat",
        /// The leader has to have heard from a majority by now.
        Quorum = "quorum",
        /// A leader was heard long enough ago for this process to vote again.
        Promise = "promise",
    }
}

/// What is kept on disk before a vote is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TermRecord {
    /// The greatest term seen.
    pub term: Term,
    /// Who has the vote of this term.
    pub voted: Option<ProcessId>,
}

/// How it goes about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TermOptions {
    /// How long a process waits for a leader, or for the end of an election, before it stands. At least ten
    /// message times and two disk writes; the width of the range is what keeps votes from being split.
    pub election: Within,
    /// How often a leader speaks: a small part of the least of `election`, so that losing one does no harm.
    pub heartbeat: Span,
    /// Asks first whether it could win. Without it a process that was cut off comes back with a greater term
    /// and ends the reign of a leader that all others hear.
    pub pre_vote: bool,
    /// For how long a majority's answers keep others from being elected; with its margin no longer than the
    /// least of `election`. None: a leader never knows that it is the only one.
    pub lease: Option<Span>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TermElection {
    me: Peer,
    members: Members,
    options: TermOptions,
    log: LogPosition,
    flaw: Option<Flaw>,
    term: Term,
    voted: Option<ProcessId>,
    /// The record that is under way to the disk, the newest if there are more.
    writing: Option<PersistId>,
    /// Whom the vote that is not durable yet goes to.
    owed: Option<Request>,
    /// A leader was heard not long ago.
    promised: bool,
    /// The number of the last election of this life.
    number: u64,
    role: Role,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Role {
    Follower {
        leader: Option<ProcessId>,
    },
    /// It asks whether it could win.
    Probing(Ballot),
    Candidate(Ballot),
    Leader(Reign),
}

/// Who has answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Ballot {
    yes: Vec<ProcessId>,
    no: Vec<ProcessId>,
}

impl Ballot {
    fn count(&mut self, voter: ProcessId, denial: Option<Denial>) -> Result<(), Ignored> {
        if self.yes.contains(&voter) || self.no.contains(&voter) {
            return Err(Ignored::Doubled);
        }
        let side = if denial.is_none() { &mut self.yes } else { &mut self.no };
        side.push(voter);
        side.sort_unstable();
        Ok(())
    }
}

/// What a leader knows of those that hear it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Reign {
    /// Who has answered since the last check, if there is no lease.
    heard: Vec<ProcessId>,
    beat: u32,
    /// With a lease: the last heartbeats, when they were sent and who has answered, oldest first.
    beats: Vec<(u32, Mono, Vec<ProcessId>)>,
    /// With a lease: when the last one was sent that a majority has answered.
    confirmed: Option<Mono>,
}

impl Reign {
    fn hear(&mut self, process: ProcessId) {
        if !self.heard.contains(&process) {
            self.heard.push(process);
            self.heard.sort_unstable();
        }
    }

    /// When this heartbeat was sent, and how many have answered it, the leader among them.
    fn answered(&mut self, process: ProcessId, beat: u32) -> Result<(Mono, usize), Ignored> {
        let found = self.beats.iter_mut().find(|(known, ..)| *known == beat);
        let (_, sent, answers) = found.ok_or(Ignored::Late)?;
        if answers.contains(&process) {
            return Err(Ignored::Doubled);
        }
        answers.push(process);
        Ok((*sent, answers.len() + 1))
    }
}

type Message = TermMessage;

impl TermElection {
    /// A process before its start, with the end of its log.
    ///
    /// # Panics
    /// If the lease with its margin is longer than the least of `election`: its voters would stand against
    /// a leader that they have promised to wait for.
    pub fn new(me: ProcessId, members: Members, options: TermOptions, log: LogPosition) -> Self {
        let promise = options.lease.map_or(Span::ZERO, kept_for);
        assert!(promise <= options.election.least, "a lease and its margin are no longer than any election");
        Self {
            me: Peer { process: me, incarnation: Incarnation(0) },
            members,
            options,
            log,
            flaw: None,
            term: Term(0),
            voted: None,
            writing: None,
            owed: None,
            promised: false,
            number: 0,
            role: Role::Follower { leader: None },
        }
    }

    /// The same with one of its lines left out.
    #[must_use]
    pub fn with_flaw(mut self, flaw: Option<Flaw>) -> Self {
        self.flaw = flaw;
        self
    }

    /// Who has its vote in this term.
    pub fn voted(&self) -> Option<ProcessId> {
        self.voted
    }

    /// The end of its log.
    pub fn log(&self) -> LogPosition {
        self.log
    }

    /// The shortest time without a leader after which it stands.
    pub fn patience(&self) -> Span {
        self.options.election.least
    }

    /// Whom it counts.
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// How much longer this process knows that nobody else leads: zero if it does not lead, or has no lease.
    pub fn lease_left(&self, now: Now) -> Span {
        let (Role::Leader(reign), Some(lease)) = (&self.role, self.options.lease) else { return Span::ZERO };
        reign.confirmed.map_or(Span::ZERO, |sent| (sent + act_for(lease)).since(now.mono))
    }

    fn own(&self) -> Request {
        Request { by: self.me, number: self.number }
    }

    fn need(&self) -> usize {
        let majority = self.members.majority();
        let half = self.members.count().div_ceil(2);
        if half < majority && Flaw::HalfIsEnough.is(self.flaw) { half } else { majority }
    }

    fn tell_all(&self, after: Option<PersistId>, message: Message, out: &mut Outbox<Self>) {
        for other in self.members.others(self.me.process) {
            match after {
                Some(record) => out.send_after(record, other, message),
                None => out.send(other, message),
            }
        }
    }

    fn write(&mut self, out: &mut Outbox<Self>) -> PersistId {
        let id = out.persist(TermRecord { term: self.term, voted: self.voted });
        self.writing = Some(id);
        id
    }

    // ---- the candidate

    fn elect(&mut self, out: &mut Outbox<Self>) {
        match self.role {
            Role::Leader(_) => out.emit(Event::Refused { why: Why::Leading }),
            Role::Probing(_) | Role::Candidate(_) => out.emit(Event::Refused { why: Why::Electing }),
            Role::Follower { .. } if self.is_bound() => out.emit(Event::Refused { why: Why::Promised }),
            Role::Follower { .. } => self.begin(out),
        }
    }

    /// Whether it has promised a leader to vote for nobody.
    fn is_bound(&self) -> bool {
        self.options.lease.is_some() && self.promised
    }

    fn begin(&mut self, out: &mut Outbox<Self>) {
        self.number += 1;
        out.emit(Event::Started { election: self.own() });
        if !self.options.pre_vote {
            return self.stand(out);
        }
        let mut ballot = Ballot::default();
        ballot.yes.push(self.me.process);
        self.role = Role::Probing(ballot);
        let (election, term, log) = (self.own(), Term(self.term.0 + 1), self.log);
        self.tell_all(None, Message::PreVote { election, term, log }, out);
        out.set_timer(TermTimer::Election, self.options.election);
        self.settle(out);
    }

    fn stand(&mut self, out: &mut Outbox<Self>) {
        self.term.0 += 1;
        self.voted = Some(self.me.process);
        self.role = Role::Candidate(Ballot::default());
        let (election, term, log) = (self.own(), self.term, self.log);
        let record = self.write(out);
        self.tell_all(Some(record), Message::Request { election, term, log }, out);
        out.set_timer(TermTimer::Election, self.options.election);
    }

    /// What is missing to a majority; nothing if this process asks for no votes.
    fn missing(&self) -> Vec<Cause> {
        let (kind, ballot) = match &self.role {
            Role::Probing(ballot) => ("PREVOTED", ballot),
            Role::Candidate(_) if self.writing.is_some() => return alloc::vec![Cause::Disk],
            Role::Candidate(ballot) => ("VOTE", ballot),
            Role::Follower { .. } | Role::Leader(_) => return Vec::new(),
        };
        let (have, need) = (ballot.yes.len(), self.need());
        if have >= need {
            return Vec::new();
        }
        let silent = self.members.iter().filter(|p| !ballot.yes.contains(p) && !ballot.no.contains(p));
        let silent = silent.map(|from| Cause::Message { kind, from, suspected: false });
        core::iter::once(Cause::Majority { have, need }).chain(silent).collect()
    }

    /// Goes on if nothing is missing.
    fn settle(&mut self, out: &mut Outbox<Self>) {
        if !self.missing().is_empty() {
            return;
        }
        match self.role {
            Role::Probing(_) => self.stand(out),
            Role::Candidate(_) => self.lead(out),
            Role::Follower { .. } | Role::Leader(_) => {}
        }
    }

    fn answered(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let (Message::PreVoted { election, denial, .. } | Message::Vote { election, denial, .. }) = message
        else {
            return;
        };
        let current = election == self.own();
        let ballot = match (&mut self.role, message.name()) {
            (Role::Probing(ballot), "PREVOTED") | (Role::Candidate(ballot), "VOTE") => ballot,
            _ => return out.ignore(from, &message, Ignored::Late),
        };
        if !current && !Flaw::VoteOfAnother.is(self.flaw) {
            return out.ignore(from, &message, Ignored::Late);
        }
        match ballot.count(from.process, denial) {
            Ok(()) => self.settle(out),
            Err(why) => out.ignore(from, &message, why),
        }
    }

    fn persisted(&mut self, id: PersistId, out: &mut Outbox<Self>) {
        if self.writing.is_some_and(|writing| writing <= id) {
            self.writing = None;
            self.owed = None;
            let me = self.me.process;
            if let Role::Candidate(ballot) = &mut self.role {
                // Its own vote counts like any other: once it is durable. It cannot be here already.
                let _ = ballot.count(me, None);
                self.settle(out);
            }
        }
    }

    // ---- the voter

    /// Why this candidate does not get the vote of this process.
    fn withheld(&self, term: Term, candidate: ProcessId, log: LogPosition) -> Option<Denial> {
        let other = self.voted.filter(|voted| *voted != candidate && term == self.term);
        if term < self.term {
            Some(Denial::OldTerm)
        } else if let Some(voted) = other.filter(|_| !Flaw::SecondVote.is(self.flaw)) {
            Some(Denial::Voted(voted))
        } else if log < self.log && !Flaw::OldLogVote.is(self.flaw) {
            Some(Denial::OldLog)
        } else {
            None
        }
    }

    fn probed(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::PreVote { election, term, log } = message else { return };
        let led = self.promised || matches!(self.role, Role::Leader(_));
        let denial = match led {
            true => Some(Denial::Led),
            false => self.withheld(term, from.process, log),
        };
        out.send(from, Message::PreVoted { election, term: self.term, denial });
    }

    fn asked(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Request { election, term, log } = message else { return };
        let leads = self.options.lease.is_some() && matches!(self.role, Role::Leader(_));
        if self.is_bound() || leads {
            let denial = Some(Denial::Led);
            return out.send(from, Message::Vote { election, term: self.term, denial });
        }
        let newer = self.adopt(term, out);
        let denial = self.withheld(term, from.process, log);
        let given = denial.is_none() && self.voted != Some(from.process);
        if given {
            self.voted = Some(from.process);
            self.role = Role::Follower { leader: None };
        }
        if newer || given {
            self.write(out);
        }
        if denial.is_none() {
            out.set_timer(TermTimer::Election, self.options.election);
        }
        self.answer(from, Message::Vote { election, term: self.term, denial }, out);
    }

    /// Sends a vote once it is durable, and a denial at once.
    fn answer(&mut self, to: Peer, vote: Message, out: &mut Outbox<Self>) {
        let given = matches!(vote, Message::Vote { denial: None, .. });
        match self.writing.filter(|_| given && !Flaw::VoteNotDurable.is(self.flaw)) {
            None => out.send(to, vote),
            Some(record) => {
                self.owed = vote.about();
                out.send_after(record, to, vote);
            }
        }
    }

    /// Takes a greater term. Says whether it was greater; the caller then writes it.
    fn adopt(&mut self, term: Term, out: &mut Outbox<Self>) -> bool {
        if term <= self.term {
            return false;
        }
        self.step_down(out);
        self.term = term;
        self.voted = None;
        true
    }

    fn step_down(&mut self, out: &mut Outbox<Self>) {
        if matches!(self.role, Role::Leader(_)) {
            out.cancel_timer(TermTimer::Heartbeat);
            out.cancel_timer(TermTimer::Quorum);
            out.set_timer(TermTimer::Election, self.options.election);
            out.emit(Event::SteppedDown { term: Some(self.term) });
        }
        self.role = Role::Follower { leader: None };
    }

    // ---- the leader, and those that hear it

    fn lead(&mut self, out: &mut Outbox<Self>) {
        self.role = Role::Leader(Reign::default());
        self.promised = false;
        out.cancel_timer(TermTimer::Election);
        out.cancel_timer(TermTimer::Promise);
        out.emit(Event::Elected { leader: self.me.process, term: Some(self.term), election: self.own() });
        let check = match self.options.lease {
            None => self.options.election.most,
            Some(lease) => act_for(lease),
        };
        if self.members.count() > 1 {
            out.set_timer(TermTimer::Quorum, Within::exactly(check));
        }
    }

    fn beat(&mut self, now: Now, out: &mut Outbox<Self>) {
        let Role::Leader(reign) = &mut self.role else { return };
        if self.options.lease.is_some() {
            reign.beat += 1;
            if reign.beats.len() == BEATS_KEPT {
                reign.beats.remove(0);
            }
            reign.beats.push((reign.beat, now.mono, Vec::new()));
        }
        let beat = reign.beat;
        self.tell_all(None, Message::Heartbeat { election: self.own(), term: self.term, beat }, out);
        if self.members.count() > 1 {
            out.set_timer(TermTimer::Heartbeat, Within::exactly(self.options.heartbeat));
        }
    }

    fn heard(&mut self, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Heartbeat { election, term, beat } = message else { return };
        if term < self.term && !Flaw::OlderTermFollowed.is(self.flaw) {
            out.send(from, Message::Alive { term: self.term, beat });
            return out.ignore(from, &message, Ignored::Late);
        }
        if self.adopt(term, out) {
            self.write(out);
        }
        match self.role {
            // Two leaders in one term: somebody has lost its disk. There is no right answer.
            Role::Leader(_) => return out.ignore(from, &message, Ignored::Malformed),
            Role::Follower { leader: Some(known) } if known == from.process => {}
            _ => {
                self.role = Role::Follower { leader: Some(from.process) };
                out.emit(Event::Elected { leader: from.process, term: Some(term), election });
            }
        }
        self.promise(out);
        out.set_timer(TermTimer::Election, self.options.election);
        out.send(from, Message::Alive { term: self.term, beat });
    }

    /// Votes for nobody else for a while.
    fn promise(&mut self, out: &mut Outbox<Self>) {
        let span = match self.options.lease {
            Some(lease) => kept_for(lease),
            None if self.options.pre_vote => self.options.election.least,
            None => return,
        };
        self.promised = true;
        out.set_timer(TermTimer::Promise, Within::exactly(span));
    }

    fn alive(&mut self, now: Now, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let Message::Alive { beat, term } = message else { return };
        let answered = match &mut self.role {
            Role::Leader(reign) if term == self.term && self.options.lease.is_none() => {
                return reign.hear(from.process);
            }
            Role::Leader(reign) if term == self.term => reign.answered(from.process, beat),
            _ => Err(Ignored::Late),
        };
        match answered {
            Err(why) => out.ignore(from, &message, why),
            Ok((sent, answers)) if answers >= self.need() => {
                let sent = if Flaw::LeaseFromAnswer.is(self.flaw) { now.mono } else { sent };
                self.confirm(now, beat, sent, out);
            }
            Ok(_) => {}
        }
    }

    /// A majority has answered this heartbeat.
    fn confirm(&mut self, now: Now, beat: u32, sent: Mono, out: &mut Outbox<Self>) {
        let Role::Leader(reign) = &mut self.role else { return };
        reign.confirmed = reign.confirmed.max(Some(sent));
        reign.beats.retain(|(known, ..)| *known > beat);
        let left = self.lease_left(now);
        out.set_timer(TermTimer::Quorum, Within::exactly(left));
    }

    /// Leads no longer than a majority is heard.
    fn check(&mut self, out: &mut Outbox<Self>) {
        let need = self.need();
        let Role::Leader(reign) = &mut self.role else { return };
        if self.options.lease.is_some() || reign.heard.len() + 1 < need {
            return self.step_down(out);
        }
        reign.heard.clear();
        out.set_timer(TermTimer::Quorum, Within::exactly(self.options.election.most));
    }

    fn start(&mut self, me: Peer, record: Option<TermRecord>, out: &mut Outbox<Self>) {
        self.me = me;
        let TermRecord { term, voted } = record.unwrap_or_default();
        self.term = term;
        self.voted = voted;
        if self.options.lease.is_some() && !Flaw::PromiseForgotten.is(self.flaw) {
            self.promise(out);
        }
        out.set_timer(TermTimer::Election, self.options.election);
    }

    fn receive(&mut self, now: Now, from: Peer, message: Message, out: &mut Outbox<Self>) {
        let answers =
            matches!(message, Message::PreVoted { .. } | Message::Vote { .. } | Message::Alive { .. });
        if answers && self.adopt(message.term(), out) {
            self.write(out);
            return;
        }
        match message {
            Message::PreVote { .. } => self.probed(from, message, out),
            Message::Request { .. } => self.asked(from, message, out),
            Message::PreVoted { .. } | Message::Vote { .. } => self.answered(from, message, out),
            Message::Heartbeat { .. } => self.heard(from, message, out),
            Message::Alive { .. } => self.alive(now, from, message, out),
        }
    }
}

impl Protocol for TermElection {
    type Call = Call;
    type Message = TermMessage;
    type Timer = TermTimer;
    type Record = TermRecord;
    type Event = Event;

    fn handle(&mut self, now: Now, input: Input<Self>, out: &mut Outbox<Self>) {
        let led = matches!(self.role, Role::Leader(_));
        match input {
            Input::Start { me, record } => self.start(me, record, out),
            Input::Call(Call::Elect) => self.elect(out),
            Input::Message { from, message } if !self.members.contains(from.process) => {
                out.ignore(from, &message, Ignored::Stranger);
            }
            Input::Message { from, message } => self.receive(now, from, message, out),
            Input::Timer(TermTimer::Election) if self.is_bound() => {
                out.set_timer(TermTimer::Election, self.options.election);
            }
            Input::Timer(TermTimer::Election) => self.begin(out),
            Input::Timer(TermTimer::Heartbeat) => self.beat(now, out),
            Input::Timer(TermTimer::Quorum) => self.check(out),
            Input::Timer(TermTimer::Promise) => self.promised = false,
            Input::Persisted(id) => self.persisted(id, out),
            // Its timers tell it; and its members are fixed.
            Input::Suspect(_) | Input::Trust(_) | Input::View { .. } => {}
        }
        if !led {
            // Whoever has become the leader says so at once. For others this does nothing.
            self.beat(now, out);
        }
    }

    fn waits(&self) -> Vec<Wait> {
        let mut causes = self.missing();
        if self.role == (Role::Follower { leader: None }) {
            causes.push(Cause::Timer { name: TermTimer::Election.name() });
        }
        let owed = self
            .owed
            .map(|request| Wait { goal: Goal::Answer { kind: "VOTE", request }, cause: Cause::Disk });
        causes.into_iter().map(|cause| Wait { goal: Goal::Leader, cause }).chain(owed).collect()
    }
}

impl Elects for TermElection {
    fn leader(&self) -> Option<ProcessId> {
        match &self.role {
            Role::Follower { leader } => *leader,
            Role::Probing(_) | Role::Candidate(_) => None,
            Role::Leader(_) => Some(self.me.process),
        }
    }
    fn is_electing(&self) -> bool {
        matches!(self.role, Role::Probing(_) | Role::Candidate(_))
    }
    fn me(&self) -> Peer {
        self.me
    }
    fn term(&self) -> Option<Term> {
        Some(self.term)
    }
}
