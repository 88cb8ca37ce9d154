//! Tests of the whole server.

mod disk;
mod log;
mod log_simulated;
mod simulated;
mod tidy;
