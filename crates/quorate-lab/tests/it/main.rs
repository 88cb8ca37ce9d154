//! The lab's worlds, searches and scenarios, on the protocols of the core.

mod explored;
mod figures;
mod fuzzed;
mod replayed;
mod scenarios;
