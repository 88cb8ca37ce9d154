//! What must hold of elections: one leader in a term, and one leader that all name once nothing goes on.

use crate::node::{Node, Power};
use crate::spot::Spot;
use crate::world::World;
use quorate_core::election::{Elects, TermElection};
use quorate_core::protocol::{Cause, Goal, Kind, Protocol};
use quorate_core::time::Span;

fn leads<P: Elects>(node: &Node<P>) -> bool {
    node.machine.leader() == Some(node.peer.process)
}

/// At most one process leads in a term. One that has crashed or is paused counts as well: it may have acted.
pub fn one_in_a_term_of<'a, P: Elects + 'a>(
    nodes: impl Iterator<Item = &'a Node<P>> + Clone,
) -> Result<(), String> {
    for one in nodes.clone().filter(|node| leads(node)) {
        let term = one.machine.term();
        let same = |other: &&Node<P>| leads(other) && other.machine.term() == term;
        if let Some(other) = nodes.clone().filter(|other| other.peer.process > one.peer.process).find(same) {
            let term = term.map_or(String::new(), |term| format!(" in term {term}"));
            return Err(format!("{} and {} both lead{term}", one.peer, other.peer));
        }
    }
    Ok(())
}

/// See [`one_in_a_term_of`].
pub fn one_in_a_term<P: Elects>(spot: &Spot<P>) -> Result<(), String> {
    one_in_a_term_of(spot.nodes())
}

/// Behind a leader there is a majority of disks, each of which has its vote or a later term.
pub fn votes_are_durable(spot: &Spot<TermElection>) -> Result<(), String> {
    one_in_a_term(spot)?;
    for leader in spot.nodes().filter(|node| leads(node)) {
        let (term, process) = (leader.machine.term(), leader.peer.process);
        let bound = |node: &&Node<TermElection>| {
            node.record.is_some_and(|record| {
                Some(record.term) > term || (Some(record.term) == term && record.voted == Some(process))
            })
        };
        let have = spot.nodes().filter(bound).count();
        let need = leader.machine.members().majority();
        if have < need {
            return Err(format!("{} leads, and {have} of {need} disks have its vote", leader.peer));
        }
    }
    Ok(())
}

/// A leader of a term has a log that is not older than those of a majority.
pub fn leads_with_a_new_log(spot: &Spot<TermElection>) -> Result<(), String> {
    votes_are_durable(spot)?;
    for leader in spot.nodes().filter(|node| leads(node)) {
        let newer = spot.nodes().filter(|node| node.machine.log() > leader.machine.log()).count();
        if newer >= leader.machine.members().majority() {
            return Err(format!("{} leads, and {newer} logs are newer", leader.peer));
        }
    }
    Ok(())
}

/// At rest all that run name the same leader, which runs and says so itself.
pub fn all_name_one<P: Elects>(spot: &Spot<P>) -> Result<(), String> {
    all_name_one_of(spot.nodes())
}

/// See [`all_name_one`].
pub fn all_name_one_of<'a, P: Elects + 'a>(
    nodes: impl Iterator<Item = &'a Node<P>> + Clone,
) -> Result<(), String> {
    let mut running = nodes.filter(|node| node.power == Power::Up);
    let Some(first) = running.clone().next() else { return Ok(()) };
    let leader = first.machine.leader();
    if let Some(other) = running.clone().find(|node| node.machine.leader() != leader) {
        let named = |node: &Node<P>| match node.machine.leader() {
            None => format!("{} names nobody", node.peer),
            Some(leader) => format!("{} names {leader}", node.peer),
        };
        return Err(format!("{}, and {}", named(first), named(other)));
    }
    match leader {
        None => Err("nobody has a leader".into()),
        Some(leader) if running.any(|node| node.peer.process == leader) => Ok(()),
        Some(leader) => Err(format!("all name {leader}, which does not run")),
    }
}

/// At rest nobody takes part in an election.
pub fn nobody_elects<P: Elects>(spot: &Spot<P>) -> Result<(), String> {
    let electing = |node: &&Node<P>| node.power == Power::Up && node.machine.is_electing();
    match spot.nodes().find(electing) {
        Some(node) => Err(format!("nothing goes on, and {} is electing", node.peer)),
        None => Ok(()),
    }
}

/// At rest all name the greatest process that runs.
pub fn all_name_the_greatest<P: Elects>(spot: &Spot<P>) -> Result<(), String> {
    all_name_one(spot)?;
    let greatest = spot.nodes().filter(|node| node.power == Power::Up).map(|node| node.peer.process).max();
    match spot.nodes().find(|node| node.power == Power::Up && node.machine.leader() != greatest) {
        Some(node) => Err(format!("{} does not name the greatest", node.peer)),
        None => Ok(()),
    }
}

/// At rest either an election was held, and all name the greatest that runs, or nobody names anybody.
pub fn nobody_or_the_greatest<P: Elects>(spot: &Spot<P>) -> Result<(), String> {
    nobody_elects(spot)?;
    let mut running = spot.nodes().filter(|node| node.power == Power::Up);
    match running.all(|node| node.machine.leader().is_none()) {
        true => Ok(()),
        false => all_name_the_greatest(spot),
    }
}

/// Whoever follows a leader is in a term that its leader has reached.
pub fn leaders_of_the_own_term(spot: &Spot<TermElection>) -> Result<(), String> {
    one_in_a_term(spot)?;
    for node in spot.nodes().filter(|node| node.power == Power::Up) {
        let Some(leader) = node.machine.leader() else { continue };
        let leader = spot.node(leader);
        if leader.power == Power::Up && leader.machine.term() < node.machine.term() {
            let terms = (node.machine.term().unwrap_or_default(), leader.machine.term().unwrap_or_default());
            return Err(format!(
                "{} in term {} follows {} in term {}",
                node.peer, terms.0, leader.peer, terms.1
            ));
        }
    }
    Ok(())
}

/// As long as a leader has its lease, nobody leads in a later term.
pub fn leases_keep_others_away(world: &World<TermElection>) -> Result<(), String> {
    one_in_a_term_of(world.nodes().iter())?;
    for node in world.nodes().iter().filter(|node| node.power == Power::Up) {
        let left = node.machine.lease_left(world.wires.now(node.peer.process.index()));
        let later = |other: &&Node<TermElection>| {
            other.power != Power::Down && leads(other) && other.machine.term() > node.machine.term()
        };
        if let Some(other) = world.nodes().iter().find(later).filter(|_| left > Span::ZERO) {
            return Err(format!("{} has its lease for {left}, and {} leads", node.peer, other.peer));
        }
    }
    Ok(())
}

/// In a scenario: nothing is under way, and yet two lead (in one term, where there are terms).
pub fn one_leads_when_quiet<P: Elects>(world: &World<P>) -> Result<(), String> {
    let nodes = world.nodes().iter().filter(|node| node.power != Power::Down);
    match world.flights().is_empty() {
        true => one_in_a_term_of(nodes),
        false => Ok(()),
    }
}

/// In a scenario of terms: two lead in one.
pub fn one_leads_in_a_term(world: &World<TermElection>) -> Result<(), String> {
    one_in_a_term_of(world.nodes().iter())
}

/// Whoever takes part in an election says what is missing, and nobody else does; each cause is there.
pub fn true_waits<P: Elects>(spot: &Spot<P>) -> Result<(), String> {
    for node in spot.nodes().filter(|node| node.power == Power::Up) {
        let waits = node.machine.waits();
        let explained = waits.iter().any(|wait| wait.goal == Goal::Leader);
        if node.machine.is_electing() && !explained {
            return Err(format!("{} is electing, and does not say what is missing", node.peer));
        }
        for wait in &waits {
            true_cause(node, &wait.cause).map_err(|why| format!("{} says: {wait}; but {why}", node.peer))?;
        }
    }
    Ok(())
}

fn true_cause<P: Protocol>(node: &Node<P>, cause: &Cause) -> Result<(), String> {
    match cause {
        Cause::Disk if node.writing.is_empty() => Err("its disk has nothing to write".into()),
        Cause::Timer { name } if !node.timers.iter().any(|timer| timer.timer.name() == *name) => {
            Err("no such timer runs".into())
        }
        Cause::Majority { have, need } if have >= need => Err("that is enough".into()),
        Cause::Message { from, .. } if *from == node.peer.process => Err("that is itself".into()),
        _ => Ok(()),
    }
}
