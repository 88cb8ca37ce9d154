//! Stub.

pub mod log;
