//! One record for everything that happens in a run. Counts, diagrams, checkers and exports read it, so that
//! they cannot disagree; a service writes the same.
//!
//! A [`Step`] is small and `Copy`: a trace of it is a ring of binary records. Words that only people need
//! are in a side table, which it names by `text`.

use crate::protocol::{Ignored, Incarnation, Peer, PersistId, ProcessId, Request};
use crate::time::Mono;
use serde::{Deserialize, Serialize};

/// Something that happened at one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// When, in true time: a world knows it, a service says its own monotonic time.
    pub at: Mono,
    /// Where, and in which life.
    pub at_peer: Peer,
    /// What.
    pub what: What,
    /// The request that it is about.
    pub about: Option<Request>,
    /// The place of its words in the side table, counted from 1; 0 is none.
    pub text: u32,
}

/// A message, numbered by its sender within the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MessageNo(pub u64);

/// What happened. A `kind` is a place in the protocol's list of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// A life began.
    Started {
        /// It found a record on its disk.
        record: bool,
    },
    /// A life ended, with everything that was not durable.
    Crashed,
    /// It stopped without noticing.
    Paused,
    /// It goes on.
    Resumed,
    /// Its monotonic clock runs at this many parts in a million more than true time.
    ClockRate(i32),
    /// Its monotonic clock moved on by so many microseconds at once.
    ClockJumped(u64),
    /// The application asked.
    Called {
        /// The sort of call.
        kind: u8,
    },
    /// A message was sent.
    Sent {
        /// Which message.
        message: MessageNo,
        /// Its sort.
        kind: u8,
        /// To whom.
        to: ProcessId,
    },
    /// A message was received.
    Received {
        /// Which message.
        message: MessageNo,
        /// Its sort.
        kind: u8,
        /// From whom.
        from: Peer,
    },
    /// A message was lost.
    Dropped {
        /// Which message.
        message: MessageNo,
        /// Its sort.
        kind: u8,
        /// Who would have received it.
        to: ProcessId,
        /// Why.
        why: Loss,
    },
    /// A message was doubled by the network.
    Doubled {
        /// Which message.
        message: MessageNo,
        /// The number of its double.
        double: MessageNo,
    },
    /// A timer was set.
    TimerSet {
        /// Its sort.
        kind: u8,
        /// How long it will run on this process's clock, as drawn, in microseconds.
        drawn_us: u64,
    },
    /// A timer was stopped.
    TimerCancelled {
        /// Its sort.
        kind: u8,
    },
    /// A timer ended.
    TimerFired {
        /// Its sort.
        kind: u8,
    },
    /// A record was handed to the disk.
    Persist(PersistId),
    /// A record, and all before it, is durable.
    Persisted(PersistId),
    /// The application was told.
    Emitted {
        /// The sort of event.
        kind: u8,
    },
    /// A message was of no use.
    Ignored {
        /// Whose.
        from: Peer,
        /// Why.
        why: Ignored,
    },
    /// The detector told it to suspect a process.
    Suspected(ProcessId),
    /// The detector told it to trust a process in this life.
    Trusted(ProcessId, Incarnation),
    /// It was told a view with so many members.
    View(u32),
    /// The links from it to another were cut.
    Cut(ProcessId),
    /// The links from it to another were mended.
    Mended(ProcessId),
    /// A property does not hold any more.
    Violated,
}

/// Why a message was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Loss {
    /// The link loses messages.
    Link,
    /// The link was cut.
    Partition,
    /// The receiver was not running.
    Down,
    /// It was for a life of the receiver that is over.
    FormerLife,
    /// Its sender crashed before the record that it waited for was durable.
    Unwritten,
}
