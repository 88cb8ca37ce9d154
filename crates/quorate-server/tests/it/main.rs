//! Tests of the whole server.

// A test that cannot go on says so by failing.
#![allow(clippy::unwrap_used)]

mod cli;
mod crash;
mod demo;
mod disk;
mod faces;
mod guard;
mod handover_simulated;
mod harness;
mod hostile;
mod http;
mod incidents;
mod join;
mod lab;
mod level;
mod lock;
mod log;
mod log_simulated;
mod rounds;
mod serve;
mod simulated;
mod snapshot;
mod tidy;
