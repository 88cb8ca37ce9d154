//! The service of Quorate and its one binary.
//!
//! | module | what |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`config`] | the settings of `quorate serve` |
//! | [`serve`] | one service from its start to its end |
//! | [`port`] | connections: HTTP/1.1, HTTP/2, limits, silence |
//! | [`grpc`], [`sessions`] | the contract's services, reflection and health |
//! | [`http`], [`json`], [`metrics`] | the same for `curl`, and counts |
//! | [`operator`], [`explain`] | what operators see and do, and why somebody waits |
//! | [`node`] | one node: the log and the lease keeper, bound to connections |
//! | [`log`] | the log engine: proposals in, one order out, on disks |
//!
//! Arrows go down this list only. `cli` talks to the service as every client does, over the port.

pub mod cli;
pub mod config;
pub mod explain;
pub mod grpc;
pub mod http;
pub mod json;
pub mod log;
pub mod metrics;
pub mod node;
pub mod operator;
pub mod port;
pub mod serve;
pub mod sessions;

/// Serving thousands of small messages a second, it is faster than the system's, and gives memory back.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
