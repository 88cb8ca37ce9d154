//! The lab's worlds, searches and scenarios, on the protocols of the core.
#![allow(clippy::unwrap_used)]

mod cross_checked;
mod drawn;
mod election;
mod election_search;
mod election_storm;
mod election_worlds;
mod explored;
mod exported;
mod figures;
mod fuzzed;
mod maekawa;
mod mutants;
mod replayed;
mod runs;
mod scenarios;
mod served;
mod shiviz;
mod token_ring;
mod understood;
