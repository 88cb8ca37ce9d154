//! The replicated service: a deterministic function from a log of commands to sessions, queues and tokens.
//!
//! Problem: several replicas must agree who holds what, although messages, clocks and machines fail.
//! Rule: apply compares replicated fields only; time enters as a command (RULES R2).
//! Safety: tokens grow over all names for ever (R10); a live seat moves only on the holder's own word or
//! after the end of its lease (R11); a call is applied at most once (R21).
//! Source: Schneider 1990 (state machine approach); Burrows 2006 (sessions, sequencers).

pub mod codec;
mod command;
mod explain;
mod group;
mod policy;
mod refusal;
mod session;

pub use codec::CodecError;
pub use command::*;
pub use explain::{Blocker, GroupSummary, GroupView, Holder, Past, SessionView, Waiter};
pub use group::HISTORY_MAX;
pub use policy::{Face, Handover, Numbering, Order, PolicyClash, PolicyWish, Preempt, Rejoin};

use crate::id::{ClusterId, EntryId, LogIndex, Name, Reign, Secret, SessionId, Token};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use group::Group;
use serde::{Deserialize, Serialize};
use session::Session;

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
}

/// Where in the log a command stands, and what it brought about so far.
struct Step {
    index: LogIndex,
    at: Wall,
    events: Vec<Event>,
}

use crate::time::Wall;

/// The source of tokens: a counter that takes one step for each grant (RULES R10).
struct Mint<'a> {
    last: &'a mut Token,
    index: LogIndex,
}

impl Mint<'_> {
    /// The next token: greater than every one before it and at least the log index.
    fn next(&mut self) -> Token {
        let next = Token(core::cmp::max(self.last.0 + 1, self.index.0));
        assert!(next > *self.last, "tokens strictly grow");
        *self.last = next;
        next
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
        let mut step = Step { index, at: proposal.at, events: Vec::new() };
        let reply = self.dispatch(&mut step, &proposal.command).unwrap_or_else(Reply::Refused);
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
        }
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
        group.settle(step, &mut Mint { last: &mut self.last_token, index: step.index });
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
        self.groups.remove(name);
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
        if let Some(seats) = policy.seats {
            if seats == 0 || seats > self.limits.seats {
                return Err(limit("seats of a group (at least 1)", self.limits.seats, seats.into()));
            }
        }
        let later = [
            ("numbering", policy.numbering.is_some_and(|n| n != Numbering::Dense)),
            ("order", policy.order.is_some_and(|o| o != Order::Join)),
            ("preempt", policy.preempt.is_some_and(|p| p != Preempt::Never)),
            ("rejoin", policy.rejoin.is_some_and(|r| r != Rejoin::Tail)),
            ("handover", policy.handover.is_some_and(|h| h != Handover::Immediate)),
        ];
        match later.iter().find(|(_, asked)| *asked) {
            Some((field, _)) => Err(self.unsupported(alloc::format!("this value of {field}"))),
            None => Ok(()),
        }
    }

    fn unsupported(&self, what: String) -> Refusal {
        Refusal::Unsupported { what, level: self.limits.level }
    }

    /// Puts a member into a queue, and gives it a seat if one is free.
    fn join(&mut self, step: &mut Step, session: SessionId, join: &Join) -> Result<Reply, Refusal> {
        self.check_join(join)?;
        self.check_room(&join.group)?;
        let fresh = !self.groups.contains_key(&join.group);
        let group = self
            .groups
            .entry(join.group.clone())
            .or_insert_with(|| Group::new(join.group.clone(), join.face, step.index));
        let entry = EntryId(self.last_entry.0 + 1);
        let idle_since = group.idle_since();
        let mut mint = Mint { last: &mut self.last_token, index: step.index };
        match group.join(step, &mut mint, entry, session, join, self.limits.queue) {
            Ok(total) => {
                self.last_entry = entry;
                self.places.insert(entry, join.group.clone());
                if let Some(since) = idle_since {
                    self.idle.remove(&(since, join.group.clone()));
                }
                self.session_mut(session)?.entries.insert(entry);
                Ok(Reply::Joined(total))
            }
            Err(refusal) => {
                if fresh {
                    self.groups.remove(&join.group);
                }
                Err(refusal)
            }
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
            return Err(self.unsupported("shared entries".into()));
        }
        if matches!(join.face, Face::Leadership | Face::Semaphore) {
            return Err(self.unsupported(alloc::format!("the face {}", join.face)));
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
        let name = self.places.remove(&entry)?;
        let group = self.groups.get_mut(&name)?;
        let mut mint = Mint { last: &mut self.last_token, index: step.index };
        let seat = group.leave(step, &mut mint, entry, reason, evidence);
        if let Some(since) = group.idle_since() {
            self.idle.insert((since, name));
            if self.idle.len() > IDLE_GROUPS_MAX {
                self.forget_longest_idle();
            }
        }
        seat.map(|seat| seat.token)
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

    /// The greatest token that was ever granted.
    pub fn last_token(&self) -> Token {
        self.last_token
    }
}

/// The refusal for a limit that was reached.
fn limit(what: &str, max: u32, asked: u64) -> Refusal {
    Refusal::Limit { what: what.into(), max: max.into(), asked }
}

/// A list of one, for events to one session.
fn only(session: SessionId) -> Vec<SessionId> {
    vec![session]
}
