//! The lab's worlds, searches and scenarios, on the protocols of the core.
#![allow(clippy::unwrap_used)]

mod cross_checked;
mod explored;
mod figures;
mod fuzzed;
mod replayed;
mod scenarios;
mod served;
