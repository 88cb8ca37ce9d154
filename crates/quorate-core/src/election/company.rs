//! The members as one process sees them: who there is, and who is believed to have stopped.

use crate::protocol::{Members, ProcessId};
use alloc::vec::Vec;

/// The members, and what the detector said of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Company {
    pub(super) members: Members,
    /// Who is suspected, and which election of one's own was the last when it was.
    suspected: Vec<(ProcessId, u64)>,
}

impl Company {
    pub(super) fn new(members: Members) -> Self {
        Self { members, suspected: Vec::new() }
    }

    /// Believes that it has stopped, when the own elections have come to this number. Says whether that is
    /// new.
    pub(super) fn suspect(&mut self, process: ProcessId, number: u64) -> bool {
        let new = !self.suspects(process) && self.members.contains(process);
        if new {
            self.suspected.push((process, number));
            self.suspected.sort_unstable();
        }
        new
    }

    /// Believes that it runs. Says whether that is new.
    pub(super) fn trust(&mut self, process: ProcessId) -> bool {
        let new = self.suspects(process);
        self.suspected.retain(|(suspect, _)| *suspect != process);
        new
    }

    pub(super) fn suspects(&self, process: ProcessId) -> bool {
        self.suspected.iter().any(|(suspect, _)| *suspect == process)
    }

    /// It has answered this own election: if that began after the suspicion, it runs.
    pub(super) fn answered(&mut self, process: ProcessId, number: u64) {
        self.suspected.retain(|(suspect, last)| *suspect != process || *last >= number);
    }

    /// How many run, as far as one knows, oneself among them.
    pub(super) fn reach(&self) -> usize {
        self.members.count() - self.suspected.len()
    }

    /// The members were decided elsewhere.
    pub(super) fn replace(&mut self, members: Members) {
        self.suspected.retain(|(suspect, _)| members.contains(*suspect));
        self.members = members;
    }

    /// Who comes next in the ring and is not suspected: `me` if nobody else is left.
    pub(super) fn next(&self, me: ProcessId) -> ProcessId {
        let mut next = self.members.after(me);
        while next != me && self.suspects(next) {
            next = self.members.after(next);
        }
        next
    }

    /// Who comes before in the ring and is not suspected: `me` if nobody else is left.
    pub(super) fn previous(&self, me: ProcessId) -> ProcessId {
        let mut before = self.members.before(me);
        while before != me && self.suspects(before) {
            before = self.members.before(before);
        }
        before
    }
}

/// A message that was passed on round a ring, kept until the ring is done with it: if the one that it was
/// passed to has stopped, it goes to the next one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Passed<M> {
    pub(super) message: M,
    pub(super) to: ProcessId,
    /// Its starter was suspected by then.
    pub(super) doubted: bool,
}
