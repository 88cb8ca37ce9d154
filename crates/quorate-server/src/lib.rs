//! Stub.

pub mod log;
pub mod node;
