//! The log engine: proposals in, one order out, on disks.
//!
//! Problem: every replica must apply the same commands in the same order, and nothing that was
//! acknowledged may be lost while a majority of the disks survives.
//! Rule: a proposal is answered once it is durable on a quorum and applied.
//! Source: Ongaro and Ousterhout 2014 (Raft, with pre-vote and leases), by the openraft library, whose
//! types do not leave this module.
//!
//! | file | what |
//! |---|---|
//! | [`engine`] | a node: propose, confirm, read, watch, stop |
//! | [`options`] | how it runs |
//! | [`feed`] | everything applied, in log order |
//! | `machine` | applies and compacts |
//! | [`store`] | the tail in memory, the queue, the writer's thread |
//! | `disk` | what is durable together, and in which file |
//! | `journal` | the entries in their file |
//! | [`record`] | the bytes |
//! | [`dir`] | the data directory |
//! | [`archive`] | snapshots as files, and a directory made of one |
//! | [`health`], [`counters`] | whether the disk may be trusted, and how fast it is |
//! | [`network`] | messages between nodes |
//! | `crash` | a test seam: the end of the process between durable and answered |
//! | `types`, `storage` | our words in the library's, and its questions to the store |
//!
//! A proposal's way: `propose` hands it to the library's task, which gives it a position and appends it
//! to the store: in memory at once, on disk with the writer's next transaction. The writer reports it
//! durable; the library counts the quorum (one, for a lone node), notes it committed, and lets the
//! machine apply it. The machine changes the state, feeds the listeners, then answers the proposer.

pub mod archive;
pub mod counters;
mod crash;
pub mod dir;
mod disk;
pub mod engine;
pub mod feed;
pub mod health;
mod journal;
mod machine;
pub mod network;
pub mod options;
pub mod record;
mod storage;
pub mod store;
mod types;

pub use counters::Counts;
pub use dir::{DataDir, DirError};
pub use engine::{Engine, Leadership, LeadershipWatch, Metrics, NodeRole, ProposeError, StartError, Unable};
pub use feed::{Committed, Feed, FeedReader};
pub use health::Health;
pub use network::{Alone, Answer, PeerError, Peers};
pub use options::{Options, Timing};
pub use record::Term;
pub use store::{Driver, OpenError, SetupError, Store, StoreError};

/// What a runtime must offer: time, tasks and channels. The service runs on [`TokioRuntime`], the
/// simulator on its own.
pub use openraft::{AsyncRuntime, Instant};
pub use openraft_rt_tokio::TokioRuntime;
