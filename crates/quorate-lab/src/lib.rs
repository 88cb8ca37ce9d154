//! What if: simulated worlds for the protocols of `quorate-core`, and complete searches of small ones. It
//! links the core only, so that checking links nothing slow.
//!
//! | module | does |
//! |---|---|
//! | [`world`] | runs processes in virtual time over links, disks and clocks that fail as told |
//! | [`explore`] | reaches every state of a small world ([`spot`]) |
//! | [`check`] | says what must hold in each of them |
//! | [`election`] | what must hold of elections, what they cost, how scripts begin them |
//! | [`node`] | one process with its disk, timers and lives, shared by worlds and the explorer |
//! | [`fuzz`] | runs random worlds with faults, heals them, and wants progress; [`shrink`] makes a failure small |
//! | [`script`] | plays scenarios: commands with the history under them ([`play`], [`render`], [`catalog`]) |
//! | [`service`] | lets worlds and the search try every order of the replicated service's commands |
//! | [`own`] | searches and draws a protocol of your own in a line each |
//! | [`prove`] | what is claimed of each protocol by name, and the searches and worlds that hold it to that |
//! | [`figures`] | the numbers of the literature, counted from runs |
//! | [`count`] | messages and delays by entry, beside the formula |
//! | [`network`] | how long, in which order and how often messages arrive |
//! | [`trace`] | what a run recorded |
//! | [`story`] | a trace with its names, joined and cut into parts |
//! | [`diagram`] | draws it, as SVG and as text |
//! | [`export`] | writes it for other tools, and reads it back |
//! | [`draw`] | numbers that are the same in every run of a seed |
//!
//! The service's own simulation, with its log engine and its connections, is in
//! `quorate-server/tests/it/simulated.rs`.

pub mod catalog;
pub mod check;
pub mod count;
pub mod diagram;
pub mod draw;
pub mod election;
pub mod explore;
pub mod export;
pub mod figures;
pub mod fuzz;
pub mod network;
pub mod node;
pub mod own;
pub mod play;
pub mod prove;
pub mod render;
pub mod scenarios;
pub mod script;
pub mod service;
pub mod shrink;
pub mod spot;
pub mod story;
mod symmetry;
pub mod trace;
mod wires;
pub mod world;

pub use wires::Flight;
