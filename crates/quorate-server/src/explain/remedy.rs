//! What can be done, each with a command that can be pasted into a shell.

use super::words::shell;
use quorate::proto;
use quorate_core::id::{Name, SessionId};
use quorate_core::state_machine::{Face, GroupView, Waiter};

/// One piece of advice.
pub(super) fn advice(what: impl Into<String>, command: String) -> proto::Advice {
    proto::Advice { what: what.into(), command }
}

/// The advice as one line for people.
pub(super) fn line(advice: &proto::Advice) -> String {
    format!("{}: `{}`", advice.what, advice.command)
}

/// Asks a session to stop.
pub(super) fn close(session: SessionId) -> String {
    format!("quorate session close {session}")
}

/// Moves a seat.
pub(super) fn transfer(name: &Name, to: &str, force: bool) -> String {
    let force = if force { " --force" } else { "" };
    format!("quorate transfer {} --to {}{force}", shell(name.as_str()), shell(to))
}

/// How a member that waits is named for a transfer: by its name, or by its place if others have that name.
pub(super) fn target(view: &GroupView, waiter: &Waiter) -> String {
    let same = view.waiters.iter().filter(|other| other.name == waiter.name).count();
    let is_plain = same == 1 && !waiter.name.is_empty() && !waiter.name.starts_with('#');
    if is_plain { waiter.name.clone() } else { format!("#{}", waiter.entry) }
}

/// The explanation of a name.
pub(super) fn explain(face: Face, name: &Name) -> String {
    format!("quorate explain {} {}", kind(face), shell(name.as_str()))
}

/// The word by which the explanation of a face is asked for.
pub(super) fn kind(face: Face) -> &'static str {
    match face {
        Face::Group => "group",
        Face::Leadership => "leader",
        Face::Lock | Face::Semaphore | Face::Barrier => "lock",
    }
}
