//! A state that begins again from a snapshot (RULES R30).
//!
//! Problem: a snapshot is older than what the cluster did after it. Its sessions may be over, others may have been
//! opened, and greater tokens than its last may have been granted.
//! Rule: it becomes another cluster, all its sessions are over, its tokens begin above a floor that the guards give,
//! and nobody is let in before every lease of the old cluster has ended.
//! Safety: the wait is a session of its own that is never renewed; while it is there no session is opened, so nobody
//! is granted anything. It is counted like any other lease, so a new reign begins it again (R5).

use super::{OnDisconnect, Refusal, StateMachine, Step};
use crate::id::{ClusterId, Secret, SessionId, TaskId, Token};
use crate::time::{Span, Wall};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

/// How a snapshot is begun with again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restore {
    /// The new cluster's id, drawn at random.
    pub cluster: ClusterId,
    /// Drawn at random: nobody attaches to the session that stands for the wait.
    pub secret: Secret,
    /// Every token from now on is greater.
    pub floor: Token,
    /// The longest lease that a session of the old cluster may have had.
    pub longest: Span,
    /// When, as a label.
    pub at: Wall,
    /// Who restored what, for the record.
    pub why: String,
}

/// What became of the old state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// How many sessions are over.
    pub ended: usize,
    /// How many names are kept, since somebody created them.
    pub kept: usize,
    /// Every token from now on is greater.
    pub floor: Token,
}

impl StateMachine {
    /// Makes another cluster of this state.
    ///
    /// # Errors
    /// [`Refusal::Limit`] if the longest lease is longer than the cluster allows, or zero;
    /// [`Refusal::Founding`] if the state is that of no cluster.
    pub fn restore(&mut self, restore: &Restore) -> Result<Restored, Refusal> {
        self.cluster.ok_or(Refusal::Founding)?;
        let ended = self.sessions.len();
        self.sessions.clear();
        self.by_secret.clear();
        self.places.clear();
        self.wishes.clear();
        self.idle.clear();
        let tasks: Vec<TaskId> = self.tasks().into_iter().map(|(task, _)| task).collect();
        for task in tasks {
            self.tasks.take(task);
        }
        self.groups.retain(|_, group| group.kept());
        for group in self.groups.values_mut() {
            group.queue.clear();
            group.observers.clear();
            group.resting.clear();
            group.phase = None;
            group.seats = vec![None];
            group.shrink();
            group.reindex();
        }
        self.cluster = Some(restore.cluster);
        self.last_token = self.last_token.max(restore.floor);
        let mut step = Step::new(self.applied, restore.at);
        let label = "the leases of the cluster before";
        self.open(&mut step, restore.secret, restore.longest, OnDisconnect::Hold, label)?;
        let wait = self.last_session;
        self.close_session(&mut step, wait, &restore.why)?;
        self.restoring = Some(wait);
        Ok(Restored { ended, kept: self.groups.len(), floor: self.last_token })
    }

    /// The session that stands for the leases of the cluster from which this one was restored, while they may
    /// still last: until its end nobody is let in.
    pub fn restoring(&self) -> Option<SessionId> {
        self.restoring.filter(|wait| self.sessions.contains_key(wait))
    }

    /// The longest lease of an open session.
    pub fn longest_lease(&self) -> Span {
        self.sessions.values().map(|session| session.ttl).max().unwrap_or_default()
    }
}
