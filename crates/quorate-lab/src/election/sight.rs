//! What each process of a group knows, for the diagnosis of election storms.

use crate::node::{Node, Power};
use crate::world::World;
use quorate_core::election::storm::Sight;
use quorate_core::election::{Elects, TermElection, TermMessage};
use quorate_core::protocol::{Kind, ProcessId};
use quorate_core::time::Span;
use quorate_core::trace::{MessageNo, Step, What};
use std::collections::BTreeMap;

/// What is known of each process; heartbeats and pauses are read from the recording.
pub fn sights(world: &World<TermElection>) -> Vec<Sight> {
    let heartbeats = slowest_heartbeats(world);
    let pauses = longest_pauses(world);
    let of = |node: &Node<TermElection>| {
        let (process, machine) = (node.peer.process, &node.machine);
        Sight {
            process,
            runs: node.power == Power::Up,
            term: machine.term().unwrap_or_default(),
            voted: machine.voted(),
            leader: machine.leader(),
            members: machine.members().clone(),
            heartbeat: heartbeats.get(&process).map(|us| Span::from_millis(us / 1_000)),
            pause: Span::from_millis(pauses.get(&process).copied().unwrap_or(0) / 1_000),
            log: machine.log(),
            patience: machine.patience(),
        }
    };
    world.nodes().iter().map(of).collect()
}

fn slowest_heartbeats(world: &World<TermElection>) -> BTreeMap<ProcessId, u64> {
    let mut sent: BTreeMap<MessageNo, u64> = BTreeMap::new();
    let mut slowest = BTreeMap::new();
    let heartbeat = |kind: u8| TermMessage::KINDS[usize::from(kind)] == "HEARTBEAT";
    for step in world.trace().steps() {
        match step.what {
            What::Sent { message, kind, .. } if heartbeat(kind) => {
                sent.insert(message, step.at.0);
            }
            What::Received { message, kind, .. } if heartbeat(kind) => {
                let took = sent.remove(&message).map_or(0, |since| step.at.0 - since);
                let known = slowest.entry(step.at_peer.process).or_insert(0);
                *known = took.max(*known);
            }
            _ => {}
        }
    }
    slowest
}

fn longest_pauses(world: &World<TermElection>) -> BTreeMap<ProcessId, u64> {
    let mut since: BTreeMap<ProcessId, u64> = BTreeMap::new();
    let mut longest: BTreeMap<ProcessId, u64> = BTreeMap::new();
    let mut end = |process: ProcessId, pause: u64| {
        let known = longest.entry(process).or_default();
        *known = pause.max(*known);
    };
    for Step { at, at_peer, what, .. } in world.trace().steps() {
        match what {
            What::Paused => {
                since.insert(at_peer.process, at.0);
            }
            What::Resumed | What::Crashed => {
                if let Some(begun) = since.remove(&at_peer.process) {
                    end(at_peer.process, at.0 - begun);
                }
            }
            _ => {}
        }
    }
    for (process, begun) in since {
        end(process, world.time_us() - begun);
    }
    longest
}
