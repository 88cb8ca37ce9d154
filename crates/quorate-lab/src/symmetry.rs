//! States that differ in the names of processes only count as one, where the protocol says how to rename.
//!
//! Processes are sorted by what they are with all names but their own made equal, and take the names of their
//! places. That is one sort for each state, not one try for each permutation; where two are alike the order
//! is arbitrary, which may count a state twice and never counts two as one.

use crate::draw::{Fast, mix};
use crate::spot::{Parcel, Spot};
use quorate_core::protocol::{Peer, ProcessId, Protocol, To};
use std::hash::BuildHasher;

const OWN: ProcessId = ProcessId(1);
const OTHER: ProcessId = ProcessId(2);

impl<P: Protocol> Spot<P> {
    /// Stands for this state and for those that differ from it in names only. The same as
    /// [`Spot::fingerprint`] if the protocol cannot be renamed, or while records are on disk: they keep their
    /// names.
    pub fn canonical(&self) -> u64 {
        let written = self.nodes().any(|node| node.record.is_some() || !node.writing.is_empty());
        if written || self.nodes().any(|node| !node.held.is_empty()) {
            return self.fingerprint();
        }
        let keys: Option<Vec<u64>> = (0..self.nodes().len()).map(|index| self.key(index)).collect();
        let Some(keys) = keys else { return self.fingerprint() };
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|index| keys[*index]);
        let mut names = vec![ProcessId(0); keys.len()];
        for (place, index) in order.iter().enumerate() {
            names[*index] = ProcessId::at(place);
        }
        let map = |process: ProcessId| names[process.index()];
        let nodes =
            order.iter().fold(0, |sum, index| mix(sum, 2, self.one(*index, &map).unwrap_or_default()));
        let mail = self.mail(&map, |_, _| true);
        Fast::default().hash_one((nodes, mail, self.left))
    }

    /// What a process is, and what is under way to it and from it, whatever the names of the others.
    fn key(&self, index: usize) -> Option<u64> {
        let own = ProcessId::at(index);
        let map = move |process| if process == own { OWN } else { OTHER };
        let mail = self.mail(&map, |from, to| from == own || to == own);
        Some(mix(self.one(index, &map)?, 5, mail))
    }

    fn one(&self, index: usize, map: &dyn Fn(ProcessId) -> ProcessId) -> Option<u64> {
        let node = self.node(ProcessId::at(index));
        let machine = node.machine.renamed(map)?;
        let rest = (node.peer.incarnation, node.power, self.made[index], &node.timers);
        Some(Fast::default().hash_one((machine, rest)))
    }

    fn mail(
        &self,
        map: &dyn Fn(ProcessId) -> ProcessId,
        which: impl Fn(ProcessId, ProcessId) -> bool,
    ) -> u64 {
        let flights = self.flights().iter().filter(|f| which(f.from.process, f.to.process));
        flights.fold(0, |sum: u64, flying| {
            let from = Peer { process: map(flying.from.process), ..flying.from };
            let to = To { process: map(flying.to.process), ..flying.to };
            let parcel = match &flying.parcel {
                Parcel::Mail(message) => Parcel::Mail(P::renamed_message(message, map)),
                other => other.clone(),
            };
            sum.wrapping_add(Fast::default().hash_one((from, to, parcel, flying.place)))
        })
    }
}
