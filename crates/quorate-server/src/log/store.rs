//! The log store: a tail in memory that is readable at once, and one queue to the disk behind it.
//!
//! Rule: ballot, append, truncate, purge and snapshot take effect in memory when they are called and
//! become durable in the same order; each is acknowledged when it is durable, never before.
//!
//! One thread owns the disk. It takes what waits, up to [`GROUP_MAX`] operations, makes all of it
//! durable, acknowledges all, and takes what has come in the meantime: the slower the disk,
//! the larger the groups. Waiting on purpose for a group to grow makes everything slower.
//!
//! Safety: the first failed write or sync is the last one. Everything after it is refused, [`Health`]
//! says why, and whoever runs the node stops it (RULES R28): a sync that failed once may succeed the
//! second time although the pages it was for are lost.
//!
//! In a simulator the same code commits inside the call, over a backend of the caller's: no thread.
//! Tests give backends that fail, forget or tear writes by the same door, [`Store::with_backends`].

use super::counters::{Counters, Counts};
use super::crash::CrashPoint;
use super::dir::{DataDir, DirError};
pub use super::disk::OpenError;
use super::disk::{Change, Disk, Loaded};
use super::health::{Health, PanicGuard};
use super::record::{Ballot, Entry, Position, SnapshotHead};
use quorate_core::id::LogIndex;
use redb::StorageBackend;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc};
use std::time::Instant;

/// How many operations one transaction takes at most. With an operation for each batch of proposals
/// it is never reached in service; it bounds what one failed sync leaves unknown.
pub const GROUP_MAX: usize = 1_024;

/// Who commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// A thread of its own: the service.
    Thread,
    /// The caller, before its call returns: a simulator, where threads would make runs differ.
    Inline,
}

/// Why an operation of the store failed. What was not acknowledged before may or may not be durable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A write or sync failed, now or earlier.
    #[error("{why}")]
    Failed {
        /// The first reason.
        why: Arc<str>,
    },
    /// The store was closed.
    #[error("the log is closed")]
    Closed,
}

impl From<StoreError> for std::io::Error {
    fn from(error: StoreError) -> Self {
        Self::other(error)
    }
}

/// Called once, on whatever thread commits, when an operation is durable or has failed.
pub(super) type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Called once with the stored snapshot.
pub(super) type Got = Box<dyn FnOnce(Result<Option<(SnapshotHead, Vec<u8>)>, StoreError>) + Send>;

/// A node's log, ballot and snapshot. Clones share it.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    tail: RwLock<Tail>,
    queue: Queue,
    health: Health,
    counters: Arc<Counters>,
    driver: Driver,
}

enum Queue {
    Thread(mpsc::Sender<Work>),
    Inline(Box<Mutex<Writer>>),
}

/// One operation on its way to the disk.
enum Work {
    Write(Change, Done),
    Committed(Position),
    Read(Got),
    Close(Done),
}

impl Store {
    /// Opens the log of a data directory, or sets it up and seals the directory if it is fresh.
    ///
    /// # Errors
    /// [`SetupError`]; the directory stays as fresh as it was.
    pub fn open(dir: &mut DataDir) -> Result<Self, SetupError> {
        let (disk, loaded) = Disk::open_files(&dir.tables_file(), &dir.log_file(), dir.is_fresh())?;
        dir.seal()?;
        Ok(Self::start(disk, loaded, Driver::Thread)?)
    }

    /// Opens the log in two backends, one for the tables and one for the entries: a simulated disk, or one
    /// that fails on purpose. Empty backends are set up.
    ///
    /// # Errors
    /// [`OpenError`] if a backend fails or holds something that is not a log.
    pub fn with_backends(
        tables: impl StorageBackend,
        entries: impl StorageBackend,
        driver: Driver,
    ) -> Result<Self, OpenError> {
        let (disk, loaded) = Disk::open_backends(tables, entries)?;
        Self::start(disk, loaded, driver)
    }

    fn start(disk: Disk, loaded: Loaded, driver: Driver) -> Result<Self, OpenError> {
        let health = Health::default();
        let counters = Arc::new(Counters::default());
        let writer = Writer {
            disk: Some(disk),
            committed: loaded.committed,
            saved: loaded.committed,
            health: health.clone(),
            counters: counters.clone(),
            crash: CrashPoint::from_environment(),
        };
        let queue = match driver {
            Driver::Inline => Queue::Inline(Box::new(Mutex::new(writer))),
            Driver::Thread => {
                let (sender, receiver) = mpsc::channel();
                std::thread::Builder::new()
                    .name("quorate-log".to_owned())
                    .spawn(move || writer.run(&receiver))
                    .map_err(|source| OpenError::Thread { source })?;
                Queue::Thread(sender)
            }
        };
        let tail = RwLock::new(Tail::new(loaded));
        Ok(Self { shared: Arc::new(Shared { tail, queue, health, counters, driver }) })
    }

    /// Whether the log may be trusted.
    pub fn health(&self) -> &Health {
        &self.shared.health
    }

    /// What the store has done so far.
    pub fn counts(&self) -> Counts {
        self.shared.counters.read()
    }

    /// Who commits.
    pub fn driver(&self) -> Driver {
        self.shared.driver
    }

    /// The bytes of the entries that are not purged.
    pub fn log_bytes(&self) -> u64 {
        self.tail().bytes
    }

    /// The position of the last entry, or of the last purged one if there is none after it.
    pub fn last(&self) -> Option<Position> {
        self.tail().last()
    }

    /// The position of the last purged entry.
    pub fn purged(&self) -> Option<Position> {
        self.tail().purged
    }

    /// The newest position that is known to be committed. Durable with the next write.
    pub fn committed(&self) -> Option<Position> {
        self.tail().committed
    }

    /// The node's newest promise.
    pub fn ballot(&self) -> Option<Ballot> {
        self.tail().ballot
    }

    /// What the stored snapshot holds.
    pub fn snapshot(&self) -> Option<SnapshotHead> {
        self.tail().snapshot.clone()
    }

    /// The entries with these indexes, as far as they are there.
    pub fn entries(&self, range: Range<u64>) -> Vec<Entry> {
        self.tail().range(range)
    }

    /// Adds entries. They can be read when this returns, and are durable when `done` is called.
    pub(super) fn append(&self, entries: Vec<Entry>, done: Done) -> Result<(), StoreError> {
        let mut tail = self.tail_mut();
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            done(Ok(()));
            return Ok(());
        };
        let (first, last) = (first.position.index, last.position.index);
        let mut frames = Vec::with_capacity(entries.len() * 128);
        for entry in entries {
            let before = frames.len();
            entry.encode(&mut frames);
            tail.push(entry, frames.len() - before);
        }
        self.send(&tail, Work::Write(Change::Append { first, last, frames }, done))
    }

    /// Records a promise.
    pub(super) fn save_ballot(&self, ballot: Ballot, done: Done) -> Result<(), StoreError> {
        let mut tail = self.tail_mut();
        tail.ballot = Some(ballot);
        self.send(&tail, Work::Write(Change::Ballot(ballot), done))
    }

    /// Removes the entry at `from` and all after it.
    pub(super) fn truncate(&self, from: LogIndex, done: Done) -> Result<(), StoreError> {
        let mut tail = self.tail_mut();
        tail.truncate(from);
        self.send(&tail, Work::Write(Change::Truncate { from }, done))
    }

    /// Removes the entry at `upto` and all before it.
    pub(super) fn purge(&self, upto: Position, done: Done) -> Result<(), StoreError> {
        let mut tail = self.tail_mut();
        tail.purge(upto);
        self.send(&tail, Work::Write(Change::Purge { upto }, done))
    }

    /// Notes what is committed; it becomes durable with the next write, or on closing.
    pub(super) fn save_committed(&self, committed: Position) -> Result<(), StoreError> {
        let mut tail = self.tail_mut();
        tail.committed = tail.committed.max(Some(committed));
        self.send(&tail, Work::Committed(committed))
    }

    /// Stores a snapshot in place of the one before.
    pub(super) fn save_snapshot(
        &self,
        head: SnapshotHead,
        state: Arc<[u8]>,
        done: Done,
    ) -> Result<(), StoreError> {
        let mut tail = self.tail_mut();
        tail.snapshot = Some(head.clone());
        self.send(&tail, Work::Write(Change::Snapshot { head, state }, done))
    }

    /// Reads the stored snapshot, after everything that was asked before.
    pub(super) fn read_snapshot(&self, got: Got) -> Result<(), StoreError> {
        let tail = self.tail_mut();
        self.send(&tail, Work::Read(got))
    }

    /// Makes durable what waits, then gives the file up. Everything after it is refused.
    pub(super) fn close(&self, done: Done) {
        let mut tail = self.tail_mut();
        if std::mem::replace(&mut tail.closed, true) {
            return done(Err(StoreError::Closed));
        }
        // Without a writer `done` is dropped, which whoever waits for it notices.
        let _ = self.shared.queue.send(Work::Close(done), &self.shared.counters);
    }

    /// Queues an operation. The caller holds the tail, so that queue and tail have one order, and
    /// nothing comes after the end.
    fn send(&self, tail: &Tail, work: Work) -> Result<(), StoreError> {
        if tail.closed {
            return Err(StoreError::Closed);
        }
        if let Some(why) = self.shared.health.why() {
            return Err(StoreError::Failed { why });
        }
        self.shared.queue.send(work, &self.shared.counters)
    }

    fn tail(&self) -> RwLockReadGuard<'_, Tail> {
        self.shared.tail.read().expect(TAIL_IS_WHOLE)
    }

    fn tail_mut(&self) -> RwLockWriteGuard<'_, Tail> {
        self.shared.tail.write().expect(TAIL_IS_WHOLE)
    }
}

const TAIL_IS_WHOLE: &str = "the log's tail is whole: a panic while it changed ends the node";

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("last", &self.last())
            .field("health", self.health())
            .finish_non_exhaustive()
    }
}

/// Why a data directory could not be made into a store.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The log does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The directory cannot be sealed.
    #[error(transparent)]
    Dir(#[from] DirError),
}

impl Queue {
    fn send(&self, work: Work, counters: &Counters) -> Result<(), StoreError> {
        match self {
            Self::Thread(sender) => {
                counters.queued.fetch_add(1, Ordering::Relaxed);
                sender.send(work).map_err(|_| StoreError::Closed)
            }
            Self::Inline(writer) => {
                writer.lock().unwrap_or_else(PoisonError::into_inner).handle(vec![work]);
                Ok(())
            }
        }
    }
}

/// The log as it will be on disk once the queue is empty. The whole of it is in memory: compaction
/// bounds its length, and no read waits for the disk.
struct Tail {
    entries: VecDeque<(Entry, usize)>,
    bytes: u64,
    ballot: Option<Ballot>,
    committed: Option<Position>,
    purged: Option<Position>,
    snapshot: Option<SnapshotHead>,
    closed: bool,
}

impl Tail {
    fn new(loaded: Loaded) -> Self {
        let mut tail = Self {
            entries: VecDeque::with_capacity(loaded.entries.len()),
            bytes: 0,
            ballot: loaded.ballot,
            committed: loaded.committed,
            purged: loaded.purged,
            snapshot: loaded.snapshot,
            closed: false,
        };
        let mut frame = Vec::new();
        for entry in loaded.entries {
            frame.clear();
            entry.encode(&mut frame);
            tail.push(entry, frame.len());
        }
        tail
    }

    fn last(&self) -> Option<Position> {
        self.entries.back().map(|(entry, _)| entry.position).or(self.purged)
    }

    /// The index of the first entry in memory, or of the next one if there is none.
    fn first_index(&self) -> u64 {
        self.purged.map_or(0, |purged| purged.index.0 + 1)
    }

    fn push(&mut self, entry: Entry, bytes: usize) {
        let next = self.first_index() + self.entries.len() as u64;
        assert_eq!(entry.position.index.0, next, "a log has no holes");
        self.bytes += bytes as u64;
        self.entries.push_back((entry, bytes));
    }

    fn truncate(&mut self, from: LogIndex) {
        while self.entries.back().is_some_and(|(entry, _)| entry.position.index >= from) {
            let dropped = self.entries.pop_back();
            self.bytes -= dropped.map_or(0, |(_, bytes)| bytes as u64);
        }
    }

    fn purge(&mut self, upto: Position) {
        while self.entries.front().is_some_and(|(entry, _)| entry.position.index <= upto.index) {
            let dropped = self.entries.pop_front();
            self.bytes -= dropped.map_or(0, |(_, bytes)| bytes as u64);
        }
        self.purged = self.purged.max(Some(upto));
    }

    fn range(&self, range: Range<u64>) -> Vec<Entry> {
        let first = self.first_index();
        let at = |index: u64| {
            usize::try_from(index.saturating_sub(first)).unwrap_or(usize::MAX).min(self.entries.len())
        };
        let (start, end) = (at(range.start), at(range.end));
        self.entries.range(start..end.max(start)).map(|(entry, _)| entry.clone()).collect()
    }
}

/// The one owner of the disk.
struct Writer {
    /// None once the store is closed.
    disk: Option<Disk>,
    /// What is committed, as far as it was said.
    committed: Option<Position>,
    /// What is committed, as far as it is durable.
    saved: Option<Position>,
    health: Health,
    counters: Arc<Counters>,
    crash: CrashPoint,
}

impl Writer {
    /// Serves the queue until the store is closed or the last handle is gone.
    fn run(mut self, receiver: &mpsc::Receiver<Work>) {
        let _guard = PanicGuard { health: self.health.clone(), what: "the thread that writes the log" };
        while let Ok(first) = receiver.recv() {
            let mut group = vec![first];
            group.extend(receiver.try_iter().take(GROUP_MAX - 1));
            self.counters.queued.fetch_sub(group.len() as u64, Ordering::Relaxed);
            self.handle(group);
            if self.disk.is_none() {
                return;
            }
        }
        self.give_up_disk(Box::new(|_| {}));
    }

    fn handle(&mut self, group: Vec<Work>) {
        let mut changes = Vec::with_capacity(group.len());
        let mut waiting = Vec::with_capacity(group.len());
        for work in group {
            match work {
                Work::Write(change, done) => {
                    changes.push(change);
                    waiting.push(done);
                }
                Work::Committed(position) => self.committed = self.committed.max(Some(position)),
                Work::Read(got) => {
                    self.commit(&mut changes, &mut waiting);
                    self.read(got);
                }
                Work::Close(done) => {
                    self.commit(&mut changes, &mut waiting);
                    self.give_up_disk(done);
                }
            }
        }
        self.commit(&mut changes, &mut waiting);
    }

    /// Makes the changes durable and tells those who wait for them.
    fn commit(&mut self, changes: &mut Vec<Change>, waiting: &mut Vec<Done>) {
        if changes.is_empty() {
            return;
        }
        let result = self.try_commit(changes);
        changes.clear();
        for done in waiting.drain(..) {
            done(result.clone());
        }
    }

    fn try_commit(&mut self, changes: &[Change]) -> Result<(), StoreError> {
        if let Some(why) = self.health.why() {
            return Err(StoreError::Failed { why });
        }
        let disk = self.disk.as_mut().ok_or(StoreError::Closed)?;
        let start = Instant::now();
        match disk.commit(changes, self.committed) {
            Ok(bytes) => {
                self.crash.durable();
                self.saved = self.committed;
                self.counters.committed(count_entries(changes), bytes, start.elapsed());
                Ok(())
            }
            Err(error) => {
                self.health.fail(sentence(&error));
                let why = self.health.why().unwrap_or_else(|| error.to_string().into());
                Err(StoreError::Failed { why })
            }
        }
    }

    fn read(&mut self, got: Got) {
        if let Some(why) = self.health.why() {
            return got(Err(StoreError::Failed { why }));
        }
        let Some(disk) = self.disk.as_ref() else {
            return got(Err(StoreError::Closed));
        };
        got(disk.read_snapshot().map_err(|error| {
            self.health.fail(error.to_string());
            StoreError::Failed { why: error.to_string().into() }
        }));
    }

    fn give_up_disk(&mut self, done: Done) {
        let result = if self.saved == self.committed { Ok(()) } else { self.try_commit(&[]) };
        self.disk = None;
        done(result);
    }
}

fn count_entries(changes: &[Change]) -> u64 {
    let count = |change: &Change| match change {
        Change::Append { first, last, .. } => last.0 - first.0 + 1,
        _ => 0,
    };
    changes.iter().map(count).sum()
}

/// What people read when the disk fails.
fn sentence(error: &redb::Error) -> String {
    let what = match error {
        redb::Error::Io(io) if io.kind() == std::io::ErrorKind::StorageFull => "the disk is full".to_owned(),
        redb::Error::Io(io) if io.kind() == std::io::ErrorKind::QuotaExceeded => {
            "the disk quota is used up".to_owned()
        }
        error => error.to_string(),
    };
    format!("the log could not be made durable: {what}; this node acknowledges nothing more and must stop")
}

#[cfg(test)]
mod tests;
