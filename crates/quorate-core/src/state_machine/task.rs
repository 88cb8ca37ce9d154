//! What queues do later, and the one hand that mints tokens and tasks.
//!
//! Rule: a delay, a grace or a drain is a task with an id of its own; the lease keeper keeps its time, and it
//! comes back as an entry that names it (RULES R2). A task that was given up is simply not known any more.

use super::Step;
use crate::id::{EntryId, LogIndex, Name, SeatNo, TaskId, Token};
use crate::state_machine::Event;
use crate::time::{Span, Wall};
use alloc::collections::BTreeMap;
use serde::{Deserialize, Serialize};

/// Everything that queues do later.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tasks {
    last: TaskId,
    due: BTreeMap<TaskId, Task>,
}

/// Something that one queue does later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Task {
    pub(super) group: Name,
    pub(super) kind: TaskKind,
    pub(super) after: Span,
}

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum TaskKind {
    /// Ends the pause of a seat between two holders.
    Rest(SeatNo),
    /// Gives up the place of a member that is away.
    Grace(EntryId),
    /// Ends the time that a holder has to stop.
    Drain(EntryId),
    /// Asks a holder to stop that has held as long as it said.
    Hold(EntryId),
    /// Calls a holder stalled whose work gave no sign.
    Progress(EntryId),
}

impl Tasks {
    pub(super) fn take(&mut self, id: TaskId) -> Option<Task> {
        self.due.remove(&id)
    }

    /// Every task and how long after its arming it is due, for a new reign: it waits the whole time again.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TaskId, Span)> {
        self.due.iter().map(|(id, task)| (*id, task.after))
    }
}

/// What a queue changes beside itself in one step: the token counter, the tasks, the events.
pub(super) struct Hand<'a> {
    pub(super) step: &'a mut Step,
    pub(super) last_token: &'a mut Token,
    pub(super) tasks: &'a mut Tasks,
}

impl Hand<'_> {
    /// The next token: greater than every one before it and at least the log index (RULES R10).
    pub(super) fn token(&mut self) -> Token {
        let next = Token(core::cmp::max(self.last_token.0 + 1, self.step.index.0));
        assert!(next > *self.last_token, "tokens strictly grow");
        *self.last_token = next;
        next
    }

    /// Does something later.
    pub(super) fn arm(&mut self, group: &Name, kind: TaskKind, after: Span) -> TaskId {
        let task = TaskId(self.tasks.last.0 + 1);
        self.tasks.last = task;
        self.tasks.due.insert(task, Task { group: group.clone(), kind, after });
        self.step.events.push(Event::Arm { task, after });
        task
    }

    /// Does it not.
    pub(super) fn disarm(&mut self, task: Option<TaskId>) {
        if let Some(task) = task
            && self.tasks.due.remove(&task).is_some()
        {
            self.step.events.push(Event::Disarm { task });
        }
    }

    pub(super) fn at(&self) -> Wall {
        self.step.at
    }

    pub(super) fn index(&self) -> LogIndex {
        self.step.index
    }
}
