//! Everything that was applied, in log order, to the one that tells the sessions.
//!
//! An entry is in the feed before its proposer has the answer, so whoever was answered finds the
//! events of its own call here. After a start the feed begins with what the machine was rebuilt
//! from: a [`Feed::Replaced`] for the snapshot, if there was one, then every entry after it.

use quorate_core::id::LogIndex;
use quorate_core::state_machine::{Event, Proposal, Reply};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::mpsc;

/// One step of the replicated state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Feed {
    /// A proposal was applied.
    Committed(Committed),
    /// An entry without a proposal was passed: a new leader's first one, or new members.
    Passed {
        /// The entry.
        index: LogIndex,
    },
    /// The whole state was replaced by a snapshot: events in between were not seen here. Readers of
    /// the state start over from it.
    Replaced {
        /// The last entry in the snapshot.
        index: LogIndex,
    },
}

impl Feed {
    /// The entry after which the state is as the step left it.
    pub fn index(&self) -> LogIndex {
        match self {
            Self::Committed(committed) => committed.index,
            Self::Passed { index } | Self::Replaced { index } => *index,
        }
    }
}

/// A proposal that was applied, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its entry.
    pub index: LogIndex,
    /// What was proposed.
    pub proposal: Arc<Proposal>,
    /// What the proposer is answered.
    pub reply: Reply,
    /// What others are told, in order.
    pub events: Vec<Event>,
}

/// The reading end. There is one; when it is dropped, later steps are forgotten.
///
/// The feed is not bounded, since apply must not wait for a listener: whoever reads it watches
/// [`waiting`](Self::waiting) and sheds load where it comes in.
#[derive(Debug)]
pub struct FeedReader {
    receiver: mpsc::UnboundedReceiver<Feed>,
    waiting: Arc<AtomicUsize>,
}

impl FeedReader {
    /// The next step; none when the log engine has ended and everything was read.
    pub async fn next(&mut self) -> Option<Feed> {
        let step = self.receiver.recv().await?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(step)
    }

    /// Adds the steps that are there to `steps`, waits for one if there are none, and takes `limit`
    /// at most. Returns how many; zero when the log engine has ended and everything was read.
    pub async fn next_many(&mut self, steps: &mut Vec<Feed>, limit: usize) -> usize {
        let count = self.receiver.recv_many(steps, limit).await;
        self.waiting.fetch_sub(count, Ordering::Relaxed);
        count
    }

    /// The next step if it is there already.
    pub fn try_next(&mut self) -> Option<Feed> {
        let step = self.receiver.try_recv().ok()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(step)
    }

    /// How many steps wait to be read.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// The writing end.
pub(super) struct FeedWriter {
    sender: mpsc::UnboundedSender<Feed>,
    waiting: Arc<AtomicUsize>,
}

impl FeedWriter {
    pub(super) fn push(&self, step: Feed) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if self.sender.send(step).is_err() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

pub(super) fn feed() -> (FeedWriter, FeedReader) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    (FeedWriter { sender, waiting: waiting.clone() }, FeedReader { receiver, waiting })
}
