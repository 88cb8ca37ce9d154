//! What the holder itself waits for, and whether that comes back to where it began.
//!
//! Only names with one seat that is left when done are followed: standing by in a group is no wait, and of
//! several seats any may become free, which a chain cannot say. Reading is all that is done here; nothing is
//! broken up (RULES R19).

use super::words::shell;
use quorate_core::id::{Name, SessionId};
use quorate_core::state_machine::{Face, GroupView, StateMachine};

/// How many names are followed. A longer chain is cut, and says so.
const STEPS_MAX: usize = 16;

/// One step: a session holds one name and waits for another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    holder: String,
    session: SessionId,
    holds: Name,
    waits_for: Name,
}

/// The steps from a name to what its holder waits for, and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    steps: Vec<Step>,
    closed: bool,
}

impl Chain {
    /// Follows the waits from a name on.
    pub(super) fn behind(machine: &StateMachine, view: &GroupView) -> Self {
        let mut chain = Self::default();
        let mut next = step(machine, view);
        while let Some(step) = next {
            let name = step.waits_for.clone();
            chain.steps.push(step);
            if let Some(start) = chain.steps.iter().position(|step| step.holds == name) {
                chain.steps.drain(..start);
                chain.closed = true;
                break;
            }
            if chain.steps.len() == STEPS_MAX {
                break;
            }
            next = machine.group_view(&name, 0).and_then(|view| self::step(machine, &view));
        }
        chain
    }

    /// A deadlock, or what the holder itself waits for.
    pub(super) fn sentences(&self) -> Vec<String> {
        let Some(first) = self.steps.first() else { return Vec::new() };
        if !self.closed {
            let Step { holder, session, waits_for, .. } = first;
            return vec![format!(
                "{holder} (session {session}) waits itself, for {waits_for}: see `quorate explain lock {}`",
                shell(waits_for.as_str())
            )];
        }
        let steps = self.steps.iter().map(|step| {
            format!("session {} holds {} and waits for {}", step.session, step.holds, step.waits_for)
        });
        vec![format!(
            "this is a deadlock, which ends only when one gives up: {}; `quorate session close {}` breaks it",
            steps.collect::<Vec<_>>().join(", "),
            first.session
        )]
    }
}

/// What the one holder of a name waits for.
fn step(machine: &StateMachine, view: &GroupView) -> Option<Step> {
    if view.summary.face == Face::Group || view.summary.seats != 1 {
        return None;
    }
    let holder = view.holders.first()?;
    let places = machine.session_view(holder.session)?.places;
    let waits_for = places.into_iter().find_map(|(name, _, _, blocker)| {
        blocker
            .map(|_| name)
            .filter(|name| machine.group_view(name, 0).is_some_and(|view| view.summary.face != Face::Group))
    })?;
    Some(Step {
        holder: holder.name.clone(),
        session: holder.session,
        holds: view.summary.name.clone(),
        waits_for,
    })
}
