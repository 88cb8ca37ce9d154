//! The replicated service: a deterministic function from a log of commands to sessions, queues and tokens.
//!
//! Problem: several replicas must agree who holds what, although messages, clocks and machines fail.
//! Rule: apply compares replicated fields only; time enters as a command (RULES R2).
//! Safety: tokens grow over all names for ever (R10); a live seat moves only on the holder's own word or
//! after the end of its lease (R11); a call is applied at most once (R21).
//! Source: Schneider 1990 (state machine approach); Burrows 2006 (sessions, sequencers).

pub mod codec;
mod command;
mod deadlock;
mod drain;
mod entry;
mod explain;
mod group;
mod notice;
mod policy;
mod refusal;
mod restore;
mod seats;
mod session;
mod task;

pub use codec::CodecError;
pub use command::*;
pub use deadlock::{Deadlock, Edge, NESTED_MAX, Tie};
pub use explain::{
    Asked, AskedFor, Away, Blocker, Duty, GroupSummary, GroupView, Holder, Past, Resting, SessionView, Waiter,
};
pub use group::HISTORY_MAX;
pub use policy::{Face, Handover, Numbering, Order, PolicyClash, PolicyWish, Preempt, Rejoin};
pub use restore::{Restore, Restored};

use crate::id::{ClusterId, EntryId, LogIndex, Name, Reign, Secret, SessionId, TaskId, Token};
use crate::time::{Span, Wall};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use drain::Due;
use group::{Comer, Group};
use serde::{Deserialize, Serialize};
use session::Session;
use task::{Hand, Tasks};

/// The feature level from which a cluster has every policy and face of the queue.
pub const WHOLE_GROUP: u32 = 2;

/// The highest feature level that this version can run. New clusters are founded at it; an older one is
/// raised by [`ToolOp::RaiseLevel`].
pub const LEVEL_HIGHEST: u32 = WHOLE_GROUP;

/// How many empty names keep their history. Beyond it the longest empty is forgotten; a name that
/// `create` made is never forgotten.
pub const IDLE_GROUPS_MAX: usize = 1_024;

/// All replicated state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateMachine {
    cluster: Option<ClusterId>,
    limits: Limits,
    reign: Reign,
    applied: LogIndex,
    last_token: Token,
    last_session: SessionId,
    last_entry: EntryId,
    sessions: BTreeMap<SessionId, Session>,
    by_secret: BTreeMap<Secret, SessionId>,
    groups: BTreeMap<Name, Group>,
    places: BTreeMap<EntryId, Name>,
    idle: BTreeSet<(LogIndex, Name)>,
    #[serde(default)]
    tasks: Tasks,
    /// The session that stands for the leases of the cluster before (RULES R30).
    #[serde(default)]
    restoring: Option<SessionId>,
    /// The places whose wait is to be given up in a deadlock. Follows from the queues.
    #[serde(skip)]
    wishes: BTreeSet<EntryId>,
}

/// Where in the log a command stands, and what it brought about so far.
struct Step {
    index: LogIndex,
    at: Wall,
    events: Vec<Event>,
    /// Who got a seat.
    granted: Vec<SessionId>,
    /// Somebody waits for fewer than before, or waits anew.
    tightened: bool,
}

impl Step {
    fn new(index: LogIndex, at: Wall) -> Self {
        Self { index, at, events: Vec::new(), granted: Vec::new(), tightened: false }
    }
}

impl StateMachine {
    /// The state before the first command.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies the command at `index`, and says what to answer and whom to tell what.
    pub fn apply(&mut self, index: LogIndex, proposal: &Proposal) -> Applied {
        assert!(index > self.applied, "the log is applied in order and once");
        self.applied = index;
        let mut step = Step::new(index, proposal.at);
        let reply = self.dispatch(&mut step, &proposal.command).unwrap_or_else(Reply::Refused);
        if self.may_close_a_cycle(&step) {
            self.break_deadlocks(&mut step, None);
        }
        Applied { reply, events: step.events }
    }

    fn dispatch(&mut self, step: &mut Step, command: &Command) -> Result<Reply, Refusal> {
        if let Command::Found { cluster, limits } = command {
            return self.found(*cluster, *limits);
        }
        if self.cluster.is_none() {
            return Err(Refusal::Founding);
        }
        match command {
            Command::Found { .. } => Err(Refusal::Founding),
            Command::Begin { .. } => Ok(self.begin()),
            Command::Open { secret, ttl, on_disconnect, label } => {
                self.open(step, *secret, *ttl, *on_disconnect, label)
            }
            Command::Attach { session, secret, lapsed } => self.attach(step, *session, *secret, *lapsed),
            Command::Mark { reign, sessions } => self.mark(step, *reign, sessions),
            Command::Checkpoint { reign, remaining } => self.checkpoint(*reign, remaining),
            Command::TimerFired { timer: Timer::Lease { session, generation }, reign, silent } => {
                self.lease_ran_out(step, *session, *generation, *reign, *silent)
            }
            Command::TimerFired { timer: Timer::Task { task }, reign, .. } => {
                self.task_due(step, *task, *reign)
            }
            Command::Disconnected { session, generation } => self.disconnected(step, *session, *generation),
            Command::Call { session, generation, request, acknowledged, op } => {
                self.call(step, *session, *generation, *request, *acknowledged, op)
            }
            Command::Tool { op, .. } => self.tool(step, op),
        }
    }

    fn found(&mut self, cluster: ClusterId, limits: Limits) -> Result<Reply, Refusal> {
        if self.cluster.is_some() {
            return Err(Refusal::Founding);
        }
        self.cluster = Some(cluster);
        self.limits = limits;
        Ok(Reply::Done)
    }

    fn begin(&mut self) -> Reply {
        self.reign = Reign(self.reign.0 + 1);
        Reply::Began { reign: self.reign }
    }

    fn tool(&mut self, step: &mut Step, op: &ToolOp) -> Result<Reply, Refusal> {
        match op {
            ToolOp::CreateGroup { group, face, policy } => self.create_group(step, group, *face, policy),
            ToolOp::DeleteGroup { group, created } => self.delete_group(group, *created),
            ToolOp::CloseSession { session, why } => self.close_session(step, *session, why),
            ToolOp::Transfer { group, to, drain, force } => {
                self.needs(WHOLE_GROUP, || "a transfer".into())?;
                let (queue, mut hand) = self.group_named(step, group)?;
                queue.transfer(&mut hand, to, *drain, *force)?;
                Ok(Reply::Done)
            }
            ToolOp::SetSeats { group, seats } => self.set_seats(step, group, *seats),
            ToolOp::EndGroup { group, created } => self.end_group(step, group, *created),
            ToolOp::RaiseLevel { from, to } => self.raise_level(*from, *to),
        }
    }

    /// What this version can run is not asked here, or two versions would decide differently: a node that
    /// proposes it has asked everybody before.
    fn raise_level(&mut self, from: u32, to: u32) -> Result<Reply, Refusal> {
        let level = self.limits.level;
        let is_retry = to == level && from < to;
        if !is_retry && (from != level || to <= level) {
            return Err(Refusal::NotRaised { level, from, to });
        }
        self.limits.level = to;
        Ok(Reply::Done)
    }

    /// A task that a queue had for later; one that was given up since is void (RULES R2).
    fn task_due(&mut self, step: &mut Step, task: TaskId, reign: Reign) -> Result<Reply, Refusal> {
        if reign != self.reign {
            return Err(Refusal::NotDue);
        }
        let task = self.tasks.take(task).ok_or(Refusal::NotDue)?;
        let Ok((group, mut hand)) = self.group_named(step, &task.group) else { return Err(Refusal::NotDue) };
        match group.due(&mut hand, task.kind) {
            Due::Done => self.note_idle(&task.group),
            Due::Gone(entry) => {
                self.forget_place(entry);
                self.note_idle(&task.group);
            }
            Due::Close(session, why) => {
                self.close_session(step, session, &why)?;
            }
        }
        Ok(Reply::Done)
    }

    fn set_seats(&mut self, step: &mut Step, name: &Name, seats: u32) -> Result<Reply, Refusal> {
        self.needs(WHOLE_GROUP, || "another number of seats".into())?;
        let policy = PolicyWish { seats: Some(seats), ..PolicyWish::default() };
        self.check_policy(&policy)?;
        let (group, mut hand) = self.group_named(step, name)?;
        group.set_seats(&mut hand, seats);
        Ok(Reply::Done)
    }

    /// Removes a group with those that wait in it, and asks those that act to stop.
    fn end_group(
        &mut self,
        step: &mut Step,
        name: &Name,
        created: Option<LogIndex>,
    ) -> Result<Reply, Refusal> {
        self.needs(WHOLE_GROUP, || "deleting a group that is not empty".into())?;
        let (group, _) = self.group_named(step, name)?;
        if created.is_some_and(|created| created != group.created()) {
            return Err(Refusal::NoGroup { group: name.clone() });
        }
        group.end();
        let idle: Vec<EntryId> = group
            .queue
            .values()
            .filter(|entry| entry.seat.is_none())
            .map(|entry| entry.id)
            .chain(group.observers.keys().copied())
            .collect();
        for entry in idle {
            let session = self.group_of(entry)?.session_of(entry);
            if let Some(session) = session.and_then(|id| self.sessions.get_mut(&id)) {
                session.entries.remove(&entry);
            }
            self.tell_victim(step, entry, Reason::Deleted, "the group is being deleted");
            self.remove(step, entry, Reason::Deleted, "the group is being deleted");
        }
        if let Ok((group, mut hand)) = self.group_named(step, name) {
            group.ask_standing(&mut hand);
        }
        self.note_idle(name);
        Ok(Reply::Done)
    }

    /// A group, and the hand that it works with.
    fn group_named<'a>(
        &'a mut self,
        step: &'a mut Step,
        name: &Name,
    ) -> Result<(&'a mut Group, Hand<'a>), Refusal> {
        let group = self.groups.get_mut(name).ok_or_else(|| Refusal::NoGroup { group: name.clone() })?;
        Ok((group, Hand { step, last_token: &mut self.last_token, tasks: &mut self.tasks }))
    }

    fn create_group(
        &mut self,
        step: &mut Step,
        name: &Name,
        face: Face,
        policy: &PolicyWish,
    ) -> Result<Reply, Refusal> {
        self.check_policy(policy)?;
        self.check_room(name)?;
        let group =
            self.groups.entry(name.clone()).or_insert_with(|| Group::new(name.clone(), face, step.index));
        group.prepare(face, policy, step.index)?;
        let mut hand = Hand { step, last_token: &mut self.last_token, tasks: &mut self.tasks };
        group.settle(&mut hand, Reason::Seats, "more seats were stated");
        if let Some(since) = group.keep() {
            self.idle.remove(&(since, name.clone()));
        }
        Ok(Reply::Created { created: group.created() })
    }

    fn delete_group(&mut self, name: &Name, created: Option<LogIndex>) -> Result<Reply, Refusal> {
        let missing = || Refusal::NoGroup { group: name.clone() };
        let group = self.groups.get(name).ok_or_else(missing)?;
        if created.is_some_and(|created| created != group.created()) {
            return Err(missing());
        }
        if !group.is_empty() {
            return Err(Refusal::NotEmpty { group: name.clone(), members: group.len() as u64 });
        }
        if let Some(since) = group.idle_since() {
            self.idle.remove(&(since, name.clone()));
        }
        if let Some(group) = self.groups.get_mut(name) {
            group.end();
        }
        self.note_idle(name);
        Ok(Reply::Done)
    }

    /// A name is new only while there is room; what is empty and was not created gives way.
    fn check_room(&mut self, name: &Name) -> Result<(), Refusal> {
        if self.groups.contains_key(name) {
            return Ok(());
        }
        if self.groups.len() >= self.limits.groups as usize && !self.forget_longest_idle() {
            return Err(limit("names in use", self.limits.groups, self.groups.len() as u64 + 1));
        }
        Ok(())
    }

    fn forget_longest_idle(&mut self) -> bool {
        match self.idle.pop_first() {
            Some((_, name)) => {
                self.groups.remove(&name);
                true
            }
            None => false,
        }
    }

    fn check_policy(&self, policy: &PolicyWish) -> Result<(), Refusal> {
        if let Some(seats) = policy.seats
            && (seats == 0 || seats > self.limits.seats)
        {
            return Err(limit("seats of a group (at least 1)", self.limits.seats, seats.into()));
        }
        if policy.handover == Some(Handover::Seal) {
            return Err(self.unsupported("the handover seal".into(), None));
        }
        let whole = [
            ("numbering", policy.numbering.is_some_and(|n| n != Numbering::Dense)),
            ("order", policy.order.is_some_and(|o| o != Order::Join)),
            ("preempt", policy.preempt.is_some_and(|p| p != Preempt::Never)),
            ("rejoin", policy.rejoin.is_some_and(|r| r != Rejoin::Tail)),
            ("handover", policy.handover.is_some_and(|h| h != Handover::Immediate)),
        ];
        match whole.iter().find(|(_, asked)| *asked) {
            Some((field, _)) => self.needs(WHOLE_GROUP, || alloc::format!("this value of {field}")),
            None => Ok(()),
        }
    }

    /// A command of a newer level waits until every node has it (RULES R27).
    fn needs(&self, level: u32, what: impl FnOnce() -> String) -> Result<(), Refusal> {
        if self.limits.level >= level { Ok(()) } else { Err(self.unsupported(what(), Some(level))) }
    }

    fn unsupported(&self, what: String, needs: Option<u32>) -> Refusal {
        Refusal::Unsupported { what, level: self.limits.level, needs }
    }

    /// Puts a member into a queue, and gives it a seat if one is free.
    fn join(
        &mut self,
        step: &mut Step,
        session: SessionId,
        join: &Join,
        terms: &Terms,
    ) -> Result<Reply, Refusal> {
        self.check_join(join)?;
        self.check_room(&join.group)?;
        let lease = self.session(session)?.ttl;
        let fresh = !self.groups.contains_key(&join.group);
        let group = self
            .groups
            .entry(join.group.clone())
            .or_insert_with(|| Group::new(join.group.clone(), join.face, step.index));
        let id = EntryId(self.last_entry.0 + 1);
        let idle_since = group.idle_since();
        let comer = Comer { id, session, lease, join, terms };
        let mut hand = Hand { step, last_token: &mut self.last_token, tasks: &mut self.tasks };
        match group.join(&mut hand, &comer, self.limits.queue) {
            Ok((total, took)) => {
                self.last_entry = id;
                self.places.insert(id, join.group.clone());
                if terms.break_deadlock && join.kind != MemberKind::Observer {
                    self.wishes.insert(id);
                }
                if let Some(old) = took {
                    self.forget_place(old);
                }
                if let Some(since) = idle_since {
                    self.idle.remove(&(since, join.group.clone()));
                }
                self.session_mut(session)?.entries.insert(id);
                self.break_deadlocks(step, Some(id)).map_or(Ok(Reply::Joined(total)), Err)
            }
            Err(refusal) => {
                if fresh {
                    self.groups.remove(&join.group);
                }
                Err(refusal)
            }
        }
    }

    /// A seat that moves can close a cycle as well as a wait that begins: who got it may wait for another, or
    /// one that acts for it may.
    fn may_close_a_cycle(&self, step: &Step) -> bool {
        let waits =
            |session: &SessionId| self.nested(*session).iter().any(|id| !self.waiting(*id, 1).is_empty());
        !self.wishes.is_empty() && (step.tightened || step.granted.iter().any(waits))
    }

    /// Gives up waits of deadlocks that asked for it, the newest first (RULES R19). The refusal is for the
    /// one that has just asked.
    fn break_deadlocks(&mut self, step: &mut Step, asked: Option<EntryId>) -> Option<Refusal> {
        let mut refusal = None;
        while !self.wishes.is_empty()
            && let Some((session, entry, cycle)) = self.deadlock_victim()
        {
            if let Some(session) = self.sessions.get_mut(&session) {
                session.entries.remove(&entry);
            }
            if Some(entry) != asked {
                self.tell_victim(step, entry, Reason::Deadlock, &cycle);
            }
            self.remove(step, entry, Reason::Deadlock, &cycle);
            if Some(entry) == asked {
                refusal = Some(Refusal::Deadlock { cycle });
            }
        }
        refusal
    }

    /// A waiter on a lock is told of nobody's leaving, but of its own.
    fn tell_victim(&mut self, step: &mut Step, entry: EntryId, reason: Reason, why: &str) {
        if let Ok(group) = self.group_of(entry) {
            group.give_up(step, entry, reason, why);
        }
    }

    fn check_join(&self, join: &Join) -> Result<(), Refusal> {
        self.check_policy(&join.policy)?;
        self.check_metadata(&join.metadata)?;
        if join.name.len() > crate::id::NAME_BYTES_MAX {
            let max = crate::id::NAME_BYTES_MAX as u32;
            return Err(limit("bytes of a member's name", max, join.name.len() as u64));
        }
        if join.mode != Mode::Exclusive {
            self.needs(WHOLE_GROUP, || "a shared entry".into())?;
        }
        if !matches!(join.face, Face::Group | Face::Lock) {
            self.needs(WHOLE_GROUP, || alloc::format!("the face {}", join.face))?;
        }
        Ok(())
    }

    fn check_metadata(&self, metadata: &BTreeMap<String, String>) -> Result<(), Refusal> {
        let bytes: usize = metadata.iter().map(|(k, v)| k.len() + v.len()).sum();
        if bytes > self.limits.metadata_bytes as usize {
            return Err(limit("bytes of metadata", self.limits.metadata_bytes, bytes as u64));
        }
        Ok(())
    }

    /// Takes a member out of its queue, and passes its seat on in the same step.
    fn remove(&mut self, step: &mut Step, entry: EntryId, reason: Reason, evidence: &str) -> Option<Token> {
        let name = self.places.get(&entry)?.clone();
        let (group, mut hand) = self.group_named(step, &name).ok()?;
        let left = group.leave(&mut hand, entry, reason, evidence);
        if !left.kept {
            self.forget_place(entry);
        }
        self.note_idle(&name);
        left.seat.map(|seat| seat.token)
    }

    fn forget_place(&mut self, entry: EntryId) {
        self.places.remove(&entry);
        self.wishes.remove(&entry);
    }

    /// An empty name that nobody created may be forgotten; one that is being deleted is.
    fn note_idle(&mut self, name: &Name) {
        let Some(group) = self.groups.get(name) else { return };
        if group.is_over() {
            self.groups.remove(name);
            return;
        }
        if let Some(since) = group.idle_since() {
            self.idle.insert((since, name.clone()));
            if self.idle.len() > IDLE_GROUPS_MAX {
                self.forget_longest_idle();
            }
        }
    }

    fn group_of(&mut self, entry: EntryId) -> Result<&mut Group, Refusal> {
        self.places.get(&entry).and_then(|name| self.groups.get_mut(name)).ok_or(Refusal::NoEntry { entry })
    }

    /// The total of one place, as its member sees it; none if the place is gone.
    pub fn total(&self, entry: EntryId) -> Option<Total> {
        self.places.get(&entry).and_then(|name| self.groups.get(name)).and_then(|group| group.total(entry))
    }

    /// The cluster's id, once it is founded.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.cluster
    }

    /// What apply holds everybody to.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The reign of lease keeping.
    pub fn reign(&self) -> Reign {
        self.reign
    }

    /// The index of the last applied command.
    pub fn applied(&self) -> LogIndex {
        self.applied
    }

    /// Computes what follows from the stored state.
    fn reindex(&mut self) {
        let queued = self.groups.values().flat_map(|group| group.queue.values());
        self.wishes = queued.filter(|entry| entry.terms.break_deadlock).map(|entry| entry.id).collect();
        for group in self.groups.values_mut() {
            for entry in group.queue.values_mut().filter(|entry| entry.lease == Span::ZERO) {
                // A place of the first format does not say how long its session's lease is.
                entry.lease =
                    self.sessions.get(&entry.session).map(|session| session.ttl).unwrap_or_default();
            }
            group.reindex();
        }
    }

    /// Everything that queues do later, with the time after which it is due: for a new reign, which waits
    /// the whole time again.
    pub fn tasks(&self) -> Vec<(TaskId, Span)> {
        self.tasks.iter().collect()
    }

    /// The greatest token that was ever granted.
    pub fn last_token(&self) -> Token {
        self.last_token
    }
}

/// The refusal for a limit that was reached.
fn limit(what: &str, max: u32, asked: u64) -> Refusal {
    Refusal::Limit { what: what.into(), max: max.into(), asked }
}
