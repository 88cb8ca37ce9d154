//! The log on disk: one redb file, one transaction for each group of changes.
//!
//! | table | key | value |
//! |---|---|---|
//! | `log` | index of the first entry | the frames of one durable write (`record.rs`) |
//! | `meta` | `format` | the version of these tables |
//! | `meta` | `ballot`, `committed`, `purged`, `snapshot` | one frame |
//! | `snapshot` | part number, from 0 | a part of the state, [`PART_BYTES`] each but the last |
//!
//! Entries that become durable together share one value: a commit then changes one leaf of one tree,
//! and costs one sync whatever its size. What was committed rides along in that value, since a
//! transaction of its own would double the syncs; it may therefore lag behind by one write, which
//! only means that a restarted node learns it again from the next leader.
//!
//! Purged values are removed a few at a time with later commits, so that compaction causes no pause.

use super::record::{Ballot, Batch, Entry, Position, RecordError, SnapshotHead};
use quorate_core::id::LogIndex;
use redb::{
    Builder, Database, Durability, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
    WriteTransaction,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const STATE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("snapshot");

/// The version of the tables, the single byte under `format`.
pub(super) const TABLES: u8 = 1;

/// The length of a part of a stored state. Large values need contiguous room in the file, so a state
/// in one piece would fragment it.
pub(super) const PART_BYTES: usize = 1 << 20;

/// What redb may keep in memory. The log's own tail is in memory anyway, so reads are rare; half of
/// it bounds what a transaction holds back before it writes.
const CACHE_BYTES: usize = 16 << 20;

/// How many purged values one commit removes. A commit adds one value, so any number above one keeps
/// up; a larger one makes the commits after a compaction slower, a smaller one the file larger.
const PURGE_STEP: usize = 64;

/// A change to the disk, in the order of the queue.
pub(super) enum Change {
    /// The node's promise in an election.
    Ballot(Ballot),
    /// Entries at the end of the log.
    Append { first: LogIndex, last: LogIndex, frames: Vec<u8> },
    /// This entry and everything after it goes.
    Truncate { from: LogIndex },
    /// This entry and everything before it goes.
    Purge { upto: Position },
    /// A new snapshot in place of the old one.
    Snapshot { head: SnapshotHead, state: Arc<[u8]> },
}

/// What a disk held when it was opened.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) ballot: Option<Ballot>,
    pub(super) committed: Option<Position>,
    pub(super) purged: Option<Position>,
    pub(super) entries: Vec<Entry>,
    pub(super) snapshot: Option<SnapshotHead>,
}

/// Why a log does not open. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be opened or read.
    #[error("the log {file} does not open: {source}")]
    Redb {
        /// The file.
        file: String,
        /// What the store said.
        source: Box<redb::Error>,
    },
    /// Its tables were written by a newer release.
    #[error(
        "the log {file} has table format {found}, this release reads {TABLES}: \
         start the release that wrote it"
    )]
    Tables {
        /// The file.
        file: String,
        /// The format found.
        found: u8,
    },
    /// A log was expected, and the file holds none.
    #[error("{file} holds no log, although one was set up there: restore it from a backup")]
    Lost {
        /// The file.
        file: String,
    },
    /// A record does not read.
    #[error("the log {file} is damaged at {at}: {source}")]
    Record {
        /// The file.
        file: String,
        /// Which record.
        at: String,
        /// What is wrong with it.
        source: RecordError,
    },
    /// Entries are missing in the middle.
    #[error("the log {file} has a hole: entry {expected} is missing, the next one is {found}")]
    Hole {
        /// The file.
        file: String,
        /// The entry that should follow.
        expected: LogIndex,
        /// The one that does.
        found: LogIndex,
    },
    /// The writer's thread cannot be started.
    #[error("the thread that writes the log cannot be started: {source}")]
    Thread {
        /// What the system said.
        source: std::io::Error,
    },
}

/// One open log file.
pub(super) struct Disk {
    db: Database,
    file: String,
    /// The first and last entry of each value in the log table.
    values: BTreeMap<u64, u64>,
    committed: Option<Position>,
    purged: Option<Position>,
}

impl Disk {
    /// Opens a file; a fresh one is created and set up durably.
    pub(super) fn open_file(file: &Path, fresh: bool) -> Result<(Self, Loaded), OpenError> {
        let name = file.display().to_string();
        let builder = &mut Builder::new();
        builder.set_cache_size(CACHE_BYTES);
        let db = if fresh { builder.create(file) } else { builder.open(file) };
        let db = db.map_err(|error| redb_error(&name, error))?;
        Self::load(db, name, fresh)
    }

    /// Opens a backend. An empty one is set up durably.
    pub(super) fn open_backend(backend: impl StorageBackend) -> Result<(Self, Loaded), OpenError> {
        let name = format!("{backend:?}");
        let fresh = backend.len().map_err(|error| redb_error(&name, redb::StorageError::Io(error)))? == 0;
        let db = Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend);
        let db = db.map_err(|error| redb_error(&name, error))?;
        Self::load(db, name, fresh)
    }

    fn load(db: Database, file: String, fresh: bool) -> Result<(Self, Loaded), OpenError> {
        let mut disk = Self { db, file, values: BTreeMap::new(), committed: None, purged: None };
        disk.check_tables(fresh)?;
        let mut loaded = disk.load_meta()?;
        disk.load_entries(&mut loaded)?;
        disk.committed = loaded.committed;
        disk.purged = loaded.purged;
        Ok((disk, loaded))
    }

    /// Sets up the tables of a fresh file, or checks that those of an old one are ours.
    fn check_tables(&self, fresh: bool) -> Result<(), OpenError> {
        let fail = |error| OpenError::Redb { file: self.file.clone(), source: Box::new(error) };
        let format = self.read_format().map_err(fail)?;
        match format {
            Some(TABLES) => Ok(()),
            Some(found) => Err(OpenError::Tables { file: self.file.clone(), found }),
            None if fresh => self.create_tables().map_err(fail),
            None => Err(OpenError::Lost { file: self.file.clone() }),
        }
    }

    fn read_format(&self) -> Result<Option<u8>, redb::Error> {
        let read = self.db.begin_read()?;
        match read.open_table(META) {
            Ok(meta) => Ok(meta.get("format")?.and_then(|format| format.value().first().copied())),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn create_tables(&self) -> Result<(), redb::Error> {
        let write = self.begin()?;
        write.open_table(LOG)?;
        write.open_table(STATE)?;
        write.open_table(META)?.insert("format", [TABLES].as_slice())?;
        write.commit()?;
        Ok(())
    }

    fn load_meta(&self) -> Result<Loaded, OpenError> {
        Ok(Loaded {
            ballot: self.meta("ballot", Ballot::decode)?,
            committed: self.meta("committed", Position::decode_mark)?,
            purged: self.meta("purged", Position::decode_mark)?,
            snapshot: self.meta("snapshot", SnapshotHead::decode)?,
            entries: Vec::new(),
        })
    }

    fn meta<T>(
        &self,
        key: &str,
        decode: fn(&[u8]) -> Result<T, RecordError>,
    ) -> Result<Option<T>, OpenError> {
        let read = || -> Result<_, redb::Error> { Ok(self.db.begin_read()?.open_table(META)?.get(key)?) };
        let value = read().map_err(|error| redb_error(&self.file, error))?;
        value.map(|value| decode(value.value())).transpose().map_err(|source| self.damaged(key, source))
    }

    fn load_entries(&mut self, loaded: &mut Loaded) -> Result<(), OpenError> {
        let batches = self.read_batches()?;
        let mut expected = loaded.purged.map_or(0, |purged| purged.index.0 + 1);
        for (key, batch) in batches {
            loaded.committed = loaded.committed.max(batch.committed);
            let last = batch.entries.last().map_or(key, |entry| entry.position.index.0);
            self.values.insert(key, last);
            for entry in batch.entries {
                let found = entry.position.index;
                if loaded.purged.is_some_and(|purged| found <= purged.index) {
                    continue;
                }
                if found.0 != expected {
                    let file = self.file.clone();
                    return Err(OpenError::Hole { file, expected: LogIndex(expected), found });
                }
                expected += 1;
                loaded.entries.push(entry);
            }
        }
        Ok(())
    }

    fn read_batches(&self) -> Result<Vec<(u64, Batch)>, OpenError> {
        let values = || -> Result<Vec<(u64, Vec<u8>)>, redb::Error> {
            let log = self.db.begin_read()?.open_table(LOG)?;
            let pairs =
                log.iter()?.map(|pair| pair.map(|(key, value)| (key.value(), value.value().to_vec())));
            Ok(pairs.collect::<Result<_, _>>()?)
        };
        let values = values().map_err(|error| redb_error(&self.file, error))?;
        let decode = |(key, bytes): (u64, Vec<u8>)| {
            let batch =
                Batch::decode(&bytes).map_err(|source| self.damaged(&format!("entry {key}"), source))?;
            Ok((key, batch))
        };
        values.into_iter().map(decode).collect()
    }

    fn damaged(&self, at: &str, source: RecordError) -> OpenError {
        OpenError::Record { file: self.file.clone(), at: at.to_owned(), source }
    }

    /// Makes the changes durable, all or none, and with them what is committed. Returns how many
    /// bytes of values were written. After an error nothing is known of what the disk holds.
    pub(super) fn commit(
        &mut self,
        changes: &[Change],
        committed: Option<Position>,
    ) -> Result<u64, redb::Error> {
        let write = self.begin()?;
        let mut group = Group { disk: self, write: &write, committed, bytes: 0 };
        group.apply(changes)?;
        group.sweep()?;
        let bytes = group.bytes;
        write.commit()?;
        Ok(bytes)
    }

    /// How many values the log table has.
    #[cfg(test)]
    pub(super) fn values(&self) -> usize {
        self.values.len()
    }

    /// Reads the stored snapshot.
    pub(super) fn read_snapshot(&self) -> Result<Option<(SnapshotHead, Vec<u8>)>, OpenError> {
        let Some(head) = self.meta("snapshot", SnapshotHead::decode)? else {
            return Ok(None);
        };
        let read = || -> Result<Vec<u8>, redb::Error> {
            let mut state = Vec::new();
            for part in self.db.begin_read()?.open_table(STATE)?.iter()? {
                state.extend_from_slice(part?.1.value());
            }
            Ok(state)
        };
        let state = read().map_err(|error| redb_error(&self.file, error))?;
        let computed = crc32fast::hash(&state);
        if state.len() as u64 != head.state_bytes {
            let needed = usize::try_from(head.state_bytes).unwrap_or(usize::MAX);
            return Err(self.damaged("the snapshot", RecordError::Short { needed, have: state.len() }));
        }
        if computed != head.state_crc {
            let stored = head.state_crc;
            return Err(self.damaged("the snapshot", RecordError::Damaged { stored, computed }));
        }
        Ok(Some((head, state)))
    }

    /// A transaction whose commit is one sync. Quick repair would store the allocator's state with
    /// each commit; without it an unclean start checks the file, which compaction keeps small.
    fn begin(&self) -> Result<WriteTransaction, redb::Error> {
        let mut write = self.db.begin_write()?;
        write.set_durability(Durability::Immediate)?;
        Ok(write)
    }
}

/// One group of changes on its way into one transaction.
struct Group<'a> {
    disk: &'a mut Disk,
    write: &'a WriteTransaction,
    committed: Option<Position>,
    bytes: u64,
}

impl Group<'_> {
    fn apply(&mut self, changes: &[Change]) -> Result<(), redb::Error> {
        let mut meta_changed = changes.is_empty();
        let mut rest = changes;
        while let Some((change, after)) = rest.split_first() {
            let mut taken = 1;
            match change {
                Change::Append { .. } => {
                    taken = rest.iter().take_while(|change| matches!(change, Change::Append { .. })).count();
                    self.append(&rest[..taken])?;
                }
                Change::Truncate { from } => self.truncate(*from)?,
                Change::Ballot(ballot) => self.put_meta("ballot", &ballot.encode())?,
                Change::Purge { upto } => self.purge(*upto)?,
                Change::Snapshot { head, state } => self.put_snapshot(head, state)?,
            }
            meta_changed |= !matches!(change, Change::Append { .. } | Change::Truncate { .. });
            rest = &after[taken - 1..];
        }
        if meta_changed {
            self.put_committed()?;
        }
        Ok(())
    }

    /// Writes neighbouring appends as one value.
    fn append(&mut self, run: &[Change]) -> Result<(), redb::Error> {
        let mut key = None;
        let mut end = LogIndex(0);
        let mut value = Vec::new();
        if let Some(committed) = self.news() {
            committed.encode_mark(&mut value);
        }
        for change in run {
            if let Change::Append { first, last, frames } = change {
                key.get_or_insert(first.0);
                end = *last;
                value.extend_from_slice(frames);
            }
        }
        let Some(key) = key else { return Ok(()) };
        self.write.open_table(LOG)?.insert(key, value.as_slice())?;
        self.bytes += value.len() as u64;
        self.disk.values.insert(key, end.0);
        self.disk.committed = self.committed.max(self.disk.committed);
        Ok(())
    }

    fn truncate(&mut self, from: LogIndex) -> Result<(), redb::Error> {
        let mut log = self.write.open_table(LOG)?;
        let cut = self.disk.values.split_off(&from.0);
        for key in cut.into_keys() {
            log.remove(key)?;
        }
        let Some((&key, last)) = self.disk.values.iter_mut().next_back() else {
            return Ok(());
        };
        if *last < from.0 {
            return Ok(());
        }
        *last = from.0 - 1;
        let Some(old) = log.get(key)?.map(|value| value.value().to_vec()) else {
            return Ok(());
        };
        let batch = Batch::decode(&old).map_err(|error| redb::Error::Corrupted(error.to_string()))?;
        let mut kept = Vec::new();
        if let Some(committed) = batch.committed {
            committed.encode_mark(&mut kept);
        }
        for entry in batch.entries.iter().filter(|entry| entry.position.index < from) {
            entry.encode(&mut kept);
        }
        log.insert(key, kept.as_slice())?;
        self.bytes += kept.len() as u64;
        Ok(())
    }

    fn purge(&mut self, upto: Position) -> Result<(), redb::Error> {
        let mut mark = Vec::new();
        upto.encode_mark(&mut mark);
        self.put_meta("purged", &mark)?;
        self.disk.purged = self.disk.purged.max(Some(upto));
        Ok(())
    }

    fn put_snapshot(&mut self, head: &SnapshotHead, state: &[u8]) -> Result<(), redb::Error> {
        let mut table = self.write.open_table(STATE)?;
        let mut parts = 0;
        for part in state.chunks(PART_BYTES) {
            table.insert(parts, part)?;
            parts += 1;
        }
        table.retain_in(parts.., |_, _| false)?;
        drop(table);
        self.bytes += state.len() as u64;
        self.put_meta("snapshot", &head.encode())
    }

    fn put_committed(&mut self) -> Result<(), redb::Error> {
        let Some(committed) = self.committed.max(self.disk.committed) else {
            return Ok(());
        };
        let mut mark = Vec::new();
        committed.encode_mark(&mut mark);
        self.put_meta("committed", &mark)?;
        self.disk.committed = Some(committed);
        Ok(())
    }

    fn put_meta(&mut self, key: &str, value: &[u8]) -> Result<(), redb::Error> {
        self.write.open_table(META)?.insert(key, value)?;
        self.bytes += value.len() as u64;
        Ok(())
    }

    /// What is committed, if the disk does not know it yet.
    fn news(&self) -> Option<Position> {
        self.committed.filter(|_| self.committed > self.disk.committed)
    }

    /// Removes some of the values whose last entry is purged.
    fn sweep(&mut self) -> Result<(), redb::Error> {
        let Some(purged) = self.disk.purged else {
            return Ok(());
        };
        let gone = |(_, last): &(&u64, &u64)| **last <= purged.index.0;
        let keys: Vec<u64> =
            self.disk.values.iter().take_while(gone).take(PURGE_STEP).map(|(key, _)| *key).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let mut log = self.write.open_table(LOG)?;
        for key in keys {
            log.remove(key)?;
            self.disk.values.remove(&key);
        }
        Ok(())
    }
}

fn redb_error(file: &str, error: impl Into<redb::Error>) -> OpenError {
    OpenError::Redb { file: file.to_owned(), source: Box::new(error.into()) }
}
