//! What the log does not know, of everybody that an explanation is about: the lease keeper's memory, the
//! connections, and when a task is due.

use super::{Sources, words};
use quorate_core::id::{SessionId, TaskId};
use quorate_core::state_machine::{GroupView, OnDisconnect, SessionView};
use quorate_core::time::{Span, Wall};
use std::collections::BTreeMap;

/// What is known of a session beside its places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Person {
    pub(super) label: String,
    pub(super) ttl: Span,
    pub(super) on_disconnect: OnDisconnect,
    pub(super) closing: Option<String>,
    /// Of its lease; none on a node that keeps no leases.
    pub(super) remaining: Option<Span>,
    pub(super) silent: Option<Span>,
    pub(super) connected: bool,
}

pub(super) type People = BTreeMap<SessionId, Person>;

/// When a cause ends by itself, and what ends it.
pub(super) type Until = (Wall, &'static str);

/// One name, everybody in it, and what time it is.
pub(super) struct Scene<'a> {
    pub(super) view: &'a GroupView,
    pub(super) people: &'a People,
    /// When each task is due, by this node's wall clock.
    pub(super) due: BTreeMap<TaskId, Wall>,
    pub(super) now: Wall,
}

impl Person {
    pub(super) fn of(sources: &Sources<'_>, view: &SessionView) -> Self {
        Self {
            label: view.label.clone(),
            ttl: view.ttl,
            on_disconnect: view.on_disconnect,
            closing: view.closing.clone(),
            remaining: sources.node.lease_remaining(view.session),
            silent: sources.node.lease_silent(view.session),
            connected: sources.node.is_connected(view.session),
        }
    }

    /// It was not heard for half of its lease, in which two keepalives are due.
    pub(super) fn quiet(&self) -> Option<Span> {
        self.silent.filter(|silent| silent.as_millis() * 2 >= self.ttl.as_millis())
    }

    /// The lease keeper is here, and no connection of it is.
    pub(super) fn is_gone(&self) -> bool {
        self.remaining.is_some() && !self.connected
    }

    /// When its lease ends if it is not renewed.
    pub(super) fn lease_end(&self, now: Wall) -> Option<Wall> {
        self.remaining.map(|left| Wall(now.0 + left.as_millis()))
    }

    /// The end of its lease in words: `at 13:30:09 UTC`.
    pub(super) fn lease_end_text(&self, now: Wall) -> String {
        self.lease_end(now).map_or_else(String::new, |end| format!(" at {}", words::clock(end, now)))
    }
}

impl<'a> Scene<'a> {
    pub(super) fn of(sources: &Sources<'_>, view: &'a GroupView, people: &'a People) -> Self {
        let duties = view.duties.iter();
        let asked = duties.clone().filter_map(|duty| duty.asked.as_ref()?.task);
        let held = duties.filter_map(|duty| duty.max_hold?.1);
        let resting = view.resting.iter().map(|rest| rest.task);
        let away = view.away.iter().map(|away| away.task);
        let end = |task| Some((task, Wall(sources.now.0 + sources.node.task_remaining(task)?.as_millis())));
        let due = asked.chain(held).chain(resting).chain(away).filter_map(end).collect();
        Self { view, people, due, now: sources.now }
    }

    pub(super) fn due(&self, task: Option<TaskId>, what: &'static str) -> Option<Until> {
        Some((*self.due.get(&task?)?, what))
    }

    pub(super) fn person(&self, session: SessionId) -> Person {
        self.people.get(&session).cloned().unwrap_or_default()
    }

    pub(super) fn label(&self, session: SessionId) -> String {
        self.people.get(&session).map(|person| person.label.clone()).unwrap_or_default()
    }

    pub(super) fn clock(&self, then: Wall) -> String {
        words::clock(then, self.now)
    }
}
