//! The store as the consensus library asks for it.

use super::record::{Entry, Position};
use super::store::{Done, Store};
use super::types::{RawEntry, RawLogId, RawVote, Types};
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use openraft::{AsyncRuntime, LogState, OptionalSend, RaftLogReader};
use quorate_core::id::LogIndex;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

/// A handle of the store for one runtime.
pub(super) struct LogStore<RT> {
    pub(super) store: Store,
    runtime: PhantomData<fn() -> RT>,
}

impl<RT: AsyncRuntime> LogStore<RT> {
    pub(super) fn new(store: Store) -> Self {
        Self { store, runtime: PhantomData }
    }
}

/// Starts an operation and waits until it is durable.
pub(super) async fn durable<RT, S>(start: S) -> Result<(), io::Error>
where
    RT: AsyncRuntime,
    S: FnOnce(Done) -> Result<(), super::store::StoreError>,
{
    let (sender, receiver) = Types::<RT>::oneshot();
    let signal = IOFlushed::<Types<RT>>::signal(sender);
    start(Box::new(|result| signal.io_completed(result.map_err(io::Error::from))))?;
    receiver.await.map_err(|_| io::Error::other("the log was closed before the write was durable"))?
}

impl<RT: AsyncRuntime> RaftLogReader<Types<RT>> for LogStore<RT> {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> Result<Vec<RawEntry>, io::Error>
    where
        RB: RangeBounds<u64> + Clone + fmt::Debug + OptionalSend,
    {
        let start = match range.start_bound() {
            Bound::Included(index) => *index,
            Bound::Excluded(index) => index + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(index) => index + 1,
            Bound::Excluded(index) => *index,
            Bound::Unbounded => u64::MAX,
        };
        Ok(self.store.entries(start..end).into_iter().map(RawEntry::from).collect())
    }

    async fn read_vote(&mut self) -> Result<Option<RawVote>, io::Error> {
        Ok(self.store.ballot().map(RawVote::from))
    }
}

impl<RT: AsyncRuntime> RaftLogStorage<Types<RT>> for LogStore<RT> {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types<RT>>, io::Error> {
        Ok(LogState {
            last_purged_log_id: self.store.purged().map(RawLogId::from),
            last_log_id: self.store.last().map(RawLogId::from),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        Self::new(self.store.clone())
    }

    async fn save_vote(&mut self, vote: &RawVote) -> Result<(), io::Error> {
        durable::<RT, _>(|done| self.store.save_ballot(vote.into(), done)).await
    }

    async fn save_committed(&mut self, committed: Option<RawLogId>) -> Result<(), io::Error> {
        if let Some(committed) = committed {
            self.store.save_committed(Position::from(&committed))?;
        }
        Ok(())
    }

    async fn read_committed(&mut self) -> Result<Option<RawLogId>, io::Error> {
        Ok(self.store.committed().map(RawLogId::from))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types<RT>>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = RawEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries = entries.into_iter().map(Entry::from).collect();
        let done = Box::new(|result: Result<(), _>| callback.io_completed(result.map_err(io::Error::from)));
        Ok(self.store.append(entries, done)?)
    }

    async fn truncate_after(&mut self, last: Option<RawLogId>) -> Result<(), io::Error> {
        let from = LogIndex(last.map_or(0, |last| last.index() + 1));
        durable::<RT, _>(|done| self.store.truncate(from, done)).await
    }

    async fn purge(&mut self, upto: RawLogId) -> Result<(), io::Error> {
        durable::<RT, _>(|done| self.store.purge(Position::from(&upto), done)).await
    }
}
