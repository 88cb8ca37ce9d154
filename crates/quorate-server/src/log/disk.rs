//! The disk of one node: its entries in a journal, everything else in tables.
//!
//! Entries come by the thousand and are read at a start only, so they go into a journal (`journal.rs`), one write
//! and one sync for each group. What changes seldom is in a redb file, one transaction for each group:
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | `format` | the version of these tables |
//! | `meta` | `ballot`, `committed`, `purged`, `snapshot` | one frame (`record.rs`) |
//! | `snapshot` | part number, from 0 | a part of the state, [`PART_BYTES`] each but the last |
//!
//! Rule: changes become durable in their order, each run of one sort at once, and nothing is acknowledged before
//! the whole group is. What was committed rides along with entries, since a sync of its own would double the syncs;
//! it may therefore lag behind by one write, which only means that a restarted node learns it again from the next
//! leader.

use super::journal::{BLOCK_BYTES, Journal, SEGMENT_BYTES};
use super::record::{Ballot, Batch, Entry, Position, RecordError, SnapshotHead, encode_truncation};
use quorate_core::id::LogIndex;
use redb::backends::FileBackend;
use redb::{
    Builder, Database, Durability, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
    WriteTransaction,
};
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const STATE: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("snapshot");

/// The version of the tables, the single byte under `format`.
pub(super) const TABLES: u8 = 1;

/// The length of a part of a stored state. Large values need contiguous room in the file, so a state
/// in one piece would fragment it.
pub(super) const PART_BYTES: usize = 1 << 20;

/// What redb may keep in memory. Its reads are rare; half of it bounds what a transaction holds back
/// before it writes.
const CACHE_BYTES: usize = 16 << 20;

/// The length of segments in a backend that is not a file: short, so that tests go through many.
const BACKEND_SEGMENT_BYTES: u64 = 8 * BLOCK_BYTES;

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
    /// The file of entries cannot be read.
    #[error("the log {file} cannot be read: {source}")]
    Read {
        /// The file.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file of entries is damaged between them.
    #[error("the log {file} is damaged at byte {at}: {what}")]
    Damaged {
        /// The file.
        file: String,
        /// Where.
        at: u64,
        /// What is wrong there.
        what: &'static str,
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
    /// Entries at the end are gone that were acknowledged.
    #[error(
        "the log {file} ends at entry {last}, and entry {committed} was acknowledged: its end is lost or damaged; \
         restore the directory from a backup, or begin again from a snapshot"
    )]
    End {
        /// The file.
        file: String,
        /// The last entry that reads.
        last: LogIndex,
        /// The last that was committed.
        committed: LogIndex,
    },
    /// The writer's thread cannot be started.
    #[error("the thread that writes the log cannot be started: {source}")]
    Thread {
        /// What the system said.
        source: std::io::Error,
    },
}

/// One open disk.
pub(super) struct Disk {
    tables: Database,
    /// Of the tables, for errors.
    file: String,
    journal: Journal,
    /// What is committed, as far as the disk knows it.
    committed: Option<Position>,
}

impl Disk {
    /// Opens the two files; fresh ones are created and set up durably.
    pub(super) fn open_files(
        tables: &Path,
        journal: &Path,
        fresh: bool,
    ) -> Result<(Self, Loaded), OpenError> {
        let opened = OpenOptions::new().read(true).write(true).create(fresh).truncate(fresh).open(journal);
        let name = journal.display().to_string();
        let failed = |source| OpenError::Read { file: name.clone(), source };
        let file = FileBackend::new(opened.map_err(failed)?).map_err(|error| redb_error(&name, error))?;
        let journal = Opened::of(Box::new(file), name.clone(), SEGMENT_BYTES, fresh)?;
        let name = tables.display().to_string();
        let builder = &mut Builder::new();
        builder.set_cache_size(CACHE_BYTES);
        let db = if fresh { builder.create(tables) } else { builder.open(tables) };
        let db = db.map_err(|error| redb_error(&name, error))?;
        Self::load(db, name, journal, fresh)
    }

    /// Opens two backends. Empty ones are set up durably.
    pub(super) fn open_backends(
        tables: impl StorageBackend,
        journal: impl StorageBackend,
    ) -> Result<(Self, Loaded), OpenError> {
        let name = format!("{tables:?}");
        let fresh = tables.len().map_err(|error| redb_error(&name, redb::StorageError::Io(error)))? == 0;
        let journal_name = format!("{journal:?}");
        let journal = Opened::of(Box::new(journal), journal_name, BACKEND_SEGMENT_BYTES, fresh)?;
        let db = Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(tables);
        let db = db.map_err(|error| redb_error(&name, error))?;
        Self::load(db, name, journal, fresh)
    }

    fn load(
        tables: Database,
        file: String,
        opened: Opened,
        fresh: bool,
    ) -> Result<(Self, Loaded), OpenError> {
        let Opened { name, journal, batches } = opened;
        let mut disk = Self { tables, file, journal, committed: None };
        disk.check_tables(fresh)?;
        let mut loaded = disk.load_meta()?;
        for batch in batches {
            loaded.take(batch).map_err(|(expected, found)| {
                let file = name.clone();
                OpenError::Hole { file, expected: LogIndex(expected), found }
            })?;
        }
        loaded.check_end(&name)?;
        disk.committed = loaded.committed;
        if let Some(purged) = loaded.purged {
            disk.journal.purge(purged.index);
        }
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
        let read = self.tables.begin_read()?;
        match read.open_table(META) {
            Ok(meta) => Ok(meta.get("format")?.and_then(|format| format.value().first().copied())),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn create_tables(&self) -> Result<(), redb::Error> {
        let write = self.begin()?;
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
        let read = || -> Result<_, redb::Error> { Ok(self.tables.begin_read()?.open_table(META)?.get(key)?) };
        let value = read().map_err(|error| redb_error(&self.file, error))?;
        value.map(|value| decode(value.value())).transpose().map_err(|source| self.damaged(key, source))
    }

    fn damaged(&self, at: &str, source: RecordError) -> OpenError {
        OpenError::Record { file: self.file.clone(), at: at.to_owned(), source }
    }

    /// Makes the changes durable in their order, and with them what is committed. Returns how many bytes of
    /// values were written. After an error nothing is known of what the disk holds, but that it is what came of
    /// the changes before some point.
    pub(super) fn commit(
        &mut self,
        changes: &[Change],
        committed: Option<Position>,
    ) -> Result<u64, redb::Error> {
        if changes.is_empty() {
            return self.put_tables(&[], committed);
        }
        let mut bytes = 0;
        let mut rest = changes;
        while let Some(first) = rest.first() {
            let (now, later) = rest.split_at(run_length(rest));
            // What is committed may be of the last changes, so it must not be durable before them.
            let committed = committed.filter(|_| later.is_empty());
            bytes += match first.is_of_entries() {
                true => self.append(now, committed)?,
                false => self.put_tables(now, committed)?,
            };
            rest = later;
        }
        Ok(bytes)
    }

    /// Writes a truncation and the appends after it as one batch.
    fn append(&mut self, run: &[Change], committed: Option<Position>) -> Result<u64, redb::Error> {
        let mut frames = Vec::new();
        let mut newest = None;
        if let Some(committed) = committed.filter(|_| committed > self.committed) {
            committed.encode_mark(&mut frames);
        }
        for change in run {
            match change {
                Change::Append { last, frames: entries, .. } => {
                    newest = Some(*last);
                    frames.extend_from_slice(entries);
                }
                Change::Truncate { from } => encode_truncation(*from, &mut frames),
                _ => {}
            }
        }
        self.journal.append(&frames, newest).map_err(redb::Error::Io)?;
        self.committed = self.committed.max(committed);
        Ok(frames.len() as u64)
    }

    /// Writes what is in tables, in one transaction.
    fn put_tables(&mut self, run: &[Change], committed: Option<Position>) -> Result<u64, redb::Error> {
        let committed = self.committed.max(committed);
        let write = self.begin()?;
        let bytes = put(&write, run, committed)?;
        write.commit()?;
        self.committed = committed;
        for change in run {
            if let Change::Purge { upto } = change {
                self.journal.purge(upto.index);
            }
        }
        Ok(bytes)
    }

    /// How many segments the journal has, and how many of them are free.
    #[cfg(test)]
    pub(super) fn segments(&self) -> (usize, usize) {
        self.journal.segments()
    }

    /// Reads the stored snapshot.
    pub(super) fn read_snapshot(&self) -> Result<Option<(SnapshotHead, Vec<u8>)>, OpenError> {
        let Some(head) = self.meta("snapshot", SnapshotHead::decode)? else {
            return Ok(None);
        };
        let read = || -> Result<Vec<u8>, redb::Error> {
            let mut state = Vec::new();
            for part in self.tables.begin_read()?.open_table(STATE)?.iter()? {
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
        let mut write = self.tables.begin_write()?;
        write.set_durability(Durability::Immediate)?;
        Ok(write)
    }
}

/// A journal, and what was in it.
struct Opened {
    name: String,
    journal: Journal,
    batches: Vec<Batch>,
}

impl Opened {
    fn of(
        file: Box<dyn StorageBackend>,
        name: String,
        segment_bytes: u64,
        fresh: bool,
    ) -> Result<Self, OpenError> {
        if !fresh {
            let (journal, batches) = Journal::open(file, &name, segment_bytes)?;
            return Ok(Self { name, journal, batches });
        }
        match Journal::create(file, segment_bytes) {
            Ok(journal) => Ok(Self { name, journal, batches: Vec::new() }),
            Err(source) => Err(OpenError::Read { file: name, source }),
        }
    }
}

impl Loaded {
    /// That what was committed is there. The mark of it is never durable before the entries are.
    fn check_end(&self, file: &str) -> Result<(), OpenError> {
        let purged = self.purged.map(|purged| purged.index);
        let last = self.entries.last().map(|entry| entry.position.index).or(purged);
        match self.committed.map(|committed| committed.index) {
            Some(committed) if Some(committed) > last => {
                Err(OpenError::End { file: file.to_owned(), last: last.unwrap_or_default(), committed })
            }
            _ => Ok(()),
        }
    }

    /// Takes in the next batch of the journal.
    ///
    /// # Errors
    /// The index of the entry that should follow, and that of the one that does.
    fn take(&mut self, batch: Batch) -> Result<(), (u64, LogIndex)> {
        self.committed = self.committed.max(batch.committed);
        if let Some(from) = batch.truncated {
            self.entries.retain(|entry| entry.position.index < from);
        }
        let purged = self.purged.map(|purged| purged.index);
        for entry in batch.entries {
            let found = entry.position.index;
            if Some(found) <= purged {
                continue;
            }
            let last = self.entries.last().map(|entry| entry.position.index).or(purged);
            let expected = last.map_or(0, |last| last.0 + 1);
            if found.0 != expected {
                return Err((expected, found));
            }
            self.entries.push(entry);
        }
        Ok(())
    }
}

impl Change {
    /// Whether it goes into the journal.
    fn is_of_entries(&self) -> bool {
        matches!(self, Self::Append { .. } | Self::Truncate { .. })
    }
}

/// How many changes from the first on become durable at once: those of its sort, up to the next truncation.
fn run_length(changes: &[Change]) -> usize {
    let of_entries = changes.first().is_some_and(Change::is_of_entries);
    let fits =
        |change: &Change| change.is_of_entries() == of_entries && !matches!(change, Change::Truncate { .. });
    1 + changes.iter().skip(1).take_while(|change| fits(change)).count()
}

fn put(write: &WriteTransaction, run: &[Change], committed: Option<Position>) -> Result<u64, redb::Error> {
    let mut table = write.open_table(META)?;
    let mut bytes = 0;
    let mut put_meta = |key: &str, value: &[u8]| -> Result<(), redb::Error> {
        table.insert(key, value)?;
        bytes += value.len() as u64;
        Ok(())
    };
    for change in run {
        match change {
            Change::Ballot(ballot) => put_meta("ballot", &ballot.encode())?,
            Change::Purge { upto } => put_meta("purged", &mark(*upto))?,
            Change::Snapshot { head, state } => {
                put_state(write, state)?;
                put_meta("snapshot", &head.encode())?;
            }
            Change::Append { .. } | Change::Truncate { .. } => {}
        }
    }
    if let Some(committed) = committed {
        put_meta("committed", &mark(committed))?;
    }
    let states = run.iter().map(|change| match change {
        Change::Snapshot { state, .. } => state.len() as u64,
        _ => 0,
    });
    Ok(bytes + states.sum::<u64>())
}

fn put_state(write: &WriteTransaction, state: &[u8]) -> Result<(), redb::Error> {
    let mut table = write.open_table(STATE)?;
    let mut parts = 0;
    for part in state.chunks(PART_BYTES) {
        table.insert(parts, part)?;
        parts += 1;
    }
    table.retain_in(parts.., |_, _| false)?;
    Ok(())
}

fn mark(position: Position) -> Vec<u8> {
    let mut frame = Vec::new();
    position.encode_mark(&mut frame);
    frame
}

fn redb_error(file: &str, error: impl Into<redb::Error>) -> OpenError {
    OpenError::Redb { file: file.to_owned(), source: Box::new(error.into()) }
}
