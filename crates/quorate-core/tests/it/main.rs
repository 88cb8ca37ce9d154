//! What the core promises, told from outside: commands in, answers and events out.
#![allow(missing_docs, clippy::unwrap_used, clippy::too_many_lines)]

mod classic;
mod codec;
mod corners;
mod edge;
mod faces;
mod invariants;
mod lease;
mod log;
mod model;
mod mutants;
mod nested;
mod property;
mod queue;
mod rules;
mod turns;
mod waiters;
