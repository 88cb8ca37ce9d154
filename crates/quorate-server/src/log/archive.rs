//! A snapshot as a file, and a data directory made of one (RULES R30).
//!
//! | line or bytes | what |
//! |---|---|
//! | `quorate-snapshot 1` | for ever the first line: a newer version is told from damage by it |
//! | `crc32 8f3a0c11 bytes 4711` | the checksum and the length of everything after this line |
//! | one line of JSON | whose state it is, as of where and when ([`Head`]) |
//! | the rest | the state, as the core writes it down |
//!
//! Rule: a file is whole or it is not there: it is written beside its place, synced, and put there under a name
//! that nobody had. A data directory is made beside its place too, so that what a crash leaves of one is never
//! taken for a new node's.

use super::dir::{DataDir, DirError};
use super::disk::{Change, Disk, Loaded, OpenError};
use super::record::{Ballot, Entry, Members, Payload, Position, SnapshotHead, Term};
use quorate_core::id::{ClusterId, LogIndex, NodeId, Token};
use quorate_core::state_machine::{CodecError, Restore, Restored, StateMachine};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The version that this build writes, and the newest that it reads.
pub const VERSION: u32 = 1;

const MAGIC: &str = "quorate-snapshot ";

/// Whose state a snapshot is, as of where and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The cluster.
    pub cluster: ClusterText,
    /// The last entry of the log that is in it.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// When it was taken, in milliseconds since 1970 by the clock of whoever took it: a label.
    pub taken_ms: u64,
    /// The release that took it.
    pub release: String,
}

/// A cluster's id as 32 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterText(String);

impl From<ClusterId> for ClusterText {
    fn from(cluster: ClusterId) -> Self {
        Self(cluster.to_string())
    }
}

/// A snapshot that was read and is whole.
#[derive(Clone, Debug)]
pub struct Archive {
    /// Whose it is.
    pub head: Head,
    /// The state.
    pub machine: StateMachine,
}

/// The greatest floor of tokens that leaves room above it.
const FLOOR_MAX: Token = Token(1 << 62);

/// Why there is no snapshot, or no directory of one. Nothing that was there before was changed.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The operating system refused something.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something is there already.
    #[error("{} is there already, and nothing is overwritten: give a name that nobody has", path.display())]
    Exists {
        /// Where.
        path: PathBuf,
    },
    /// It is something else.
    #[error("{what} is no snapshot of quorate: its first line is another one")]
    Foreign {
        /// The file.
        what: String,
    },
    /// A newer release has written it.
    #[error(
        "{what} has snapshot format {found}, this release reads up to {VERSION}: use the one that wrote it"
    )]
    Newer {
        /// The file.
        what: String,
        /// Its format.
        found: u32,
    },
    /// It ends too early, or too late.
    #[error("{what} is cut off or was added to: {expected} bytes were written, {found} are there")]
    Length {
        /// The file.
        what: String,
        /// How many it should have after its second line.
        expected: usize,
        /// How many it has.
        found: usize,
    },
    /// Its bytes were changed.
    #[error("{what} is damaged: its checksum is {stored:08x}, its bytes give {computed:08x}")]
    Damaged {
        /// The file.
        what: String,
        /// The checksum in the file.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// It is whole, and does not read.
    #[error("{what} does not read: {why}")]
    Malformed {
        /// The file.
        what: String,
        /// Why.
        why: String,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The log in it does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// No cluster has given out so great a token, and above it there would be too few.
    #[error(
        "token {floor} was never given out: a cluster that grants a million a second comes to {FLOOR_MAX} in 146,000 \
         years. It is a typing error, or a guard has seen one: correct that with `quorate guard reset RESOURCE \
         --floor TOKEN`; nothing was restored"
    )]
    Floor {
        /// The floor that was asked for.
        floor: Token,
    },
    /// There is no data in the directory.
    #[error("{} holds no data of quorate: nothing was saved", path.display())]
    Nothing {
        /// The directory.
        path: PathBuf,
    },
    /// It holds the state of no cluster.
    #[error("{what} holds the state of no cluster yet")]
    Unfounded {
        /// The directory or the file.
        what: String,
    },
    /// The core does not take it.
    #[error("{0}")]
    Refused(String),
}

impl Archive {
    /// A snapshot of a state as of a position.
    ///
    /// # Errors
    /// [`ArchiveError::Unfounded`] if it is the state of no cluster.
    pub fn of(
        what: &str,
        position: Option<Position>,
        machine: StateMachine,
        taken_ms: u64,
    ) -> Result<Self, ArchiveError> {
        let unfounded = || ArchiveError::Unfounded { what: what.to_owned() };
        let (position, cluster) = position.zip(machine.cluster()).ok_or_else(unfounded)?;
        let head = Head {
            cluster: cluster.into(),
            index: position.index.0,
            term: position.term.0,
            taken_ms,
            release: env!("CARGO_PKG_VERSION").to_owned(),
        };
        Ok(Self { head, machine })
    }

    /// Whose state it is.
    pub fn cluster(&self) -> ClusterId {
        self.machine.cluster().unwrap_or_default()
    }

    /// The bytes of its file.
    pub fn encode(&self) -> Vec<u8> {
        let head = serde_json::to_string(&self.head).expect("a head is plain data");
        let state = self.machine.to_snapshot();
        let mut body = Vec::with_capacity(head.len() + 1 + state.len());
        body.extend_from_slice(head.as_bytes());
        body.push(b'\n');
        body.extend_from_slice(&state);
        let (crc, bytes) = (crc32fast::hash(&body), body.len());
        let mut file = format!("{MAGIC}{VERSION}\ncrc32 {crc:08x} bytes {bytes}\n").into_bytes();
        file.append(&mut body);
        file
    }

    /// Reads the bytes of a file, and checks that they are whole. `what` names the file in errors.
    ///
    /// # Errors
    /// [`ArchiveError`] says in which way they are not.
    pub fn decode(what: &str, bytes: &[u8]) -> Result<Self, ArchiveError> {
        let what = || what.to_owned();
        let malformed = |why: &str| ArchiveError::Malformed { what: what(), why: why.to_owned() };
        let (first, rest) = line(bytes).ok_or_else(|| ArchiveError::Foreign { what: what() })?;
        let version = first.strip_prefix(MAGIC).and_then(|version| version.parse::<u32>().ok());
        match version {
            Some(VERSION) => {}
            Some(found) if found > VERSION => return Err(ArchiveError::Newer { what: what(), found }),
            _ => return Err(ArchiveError::Foreign { what: what() }),
        }
        let (second, body) = line(rest).ok_or_else(|| malformed("it ends after its first line"))?;
        let words: Vec<&str> = second.split(' ').collect();
        let ["crc32", crc, "bytes", expected] = words[..] else {
            return Err(malformed("its second line holds no checksum"));
        };
        let stored = u32::from_str_radix(crc, 16).map_err(|_| malformed("its checksum is no number"))?;
        let expected: usize = expected.parse().map_err(|_| malformed("its length is no number"))?;
        if body.len() != expected {
            return Err(ArchiveError::Length { what: what(), expected, found: body.len() });
        }
        let computed = crc32fast::hash(body);
        if computed != stored {
            return Err(ArchiveError::Damaged { what: what(), stored, computed });
        }
        let (head, state) = line(body).ok_or_else(|| malformed("it has no head"))?;
        let head: Head = serde_json::from_str(head).map_err(|error| malformed(&error.to_string()))?;
        let machine =
            StateMachine::from_snapshot(state).map_err(|error: CodecError| malformed(&error.to_string()))?;
        let cluster = machine.cluster().ok_or_else(|| ArchiveError::Unfounded { what: what() })?;
        if head.cluster != cluster.into() {
            return Err(malformed("its head names another cluster than its state"));
        }
        Ok(Self { head, machine })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// As [`Archive::decode`], or [`ArchiveError::Io`].
    pub fn read(path: &Path) -> Result<Self, ArchiveError> {
        let bytes = fs::read(path).map_err(failed("read", path))?;
        Self::decode(&path.display().to_string(), &bytes)
    }

    /// The state of a data directory that no server uses, as of everything that was acknowledged there.
    ///
    /// # Errors
    /// [`ArchiveError::Dir`] if a server runs on it; others if it cannot be read.
    pub fn of_stopped(path: &Path, taken_ms: u64) -> Result<Self, ArchiveError> {
        if !path.join("FORMAT").exists() {
            return Err(ArchiveError::Nothing { path: path.to_path_buf() });
        }
        let dir = DataDir::open(path)?;
        let (disk, loaded) = Disk::open_files(&dir.tables_file(), &dir.log_file(), false)?;
        let (position, machine) = replay(path, &disk, loaded)?;
        Self::of(&path.display().to_string(), position, machine, taken_ms)
    }

    /// Makes another cluster of it in a new directory (RULES R30).
    ///
    /// # Errors
    /// [`ArchiveError::Exists`] if the directory is not empty; nothing was changed, whatever the error.
    pub fn restore(mut self, dir: &Path, restore: &Restore) -> Result<Restored, ArchiveError> {
        check_vacant(dir)?;
        if restore.floor > FLOOR_MAX {
            return Err(ArchiveError::Floor { floor: restore.floor });
        }
        let restored =
            self.machine.restore(restore).map_err(|refusal| ArchiveError::Refused(refusal.to_string()))?;
        let position = Position { term: Term(self.head.term), index: LogIndex(self.head.index) };
        let draft = draft_of(dir)?;
        let made = make_dir(&draft, position, &self.machine).and_then(|()| put_dir(&draft, dir));
        if made.is_err() {
            let _ = fs::remove_dir_all(&draft);
        }
        made.map(|()| restored)
    }
}

/// Writes the bytes of a file so that it is there whole or not at all.
///
/// # Errors
/// [`ArchiveError::Exists`] if the name is taken, [`ArchiveError::Io`].
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), ArchiveError> {
    check_free(path)?;
    let draft = draft_of(path)?;
    let written = File::create(&draft)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .map_err(failed("write", &draft))
        .and_then(|()| match renameat_with(CWD, &draft, CWD, path, RenameFlags::NOREPLACE) {
            Ok(()) => sync_parent(path),
            Err(rustix::io::Errno::EXIST) => Err(ArchiveError::Exists { path: path.to_path_buf() }),
            Err(error) => Err(failed("rename", &draft)(error.into())),
        });
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

/// That nothing has this name.
///
/// # Errors
/// [`ArchiveError::Exists`].
pub fn check_free(path: &Path) -> Result<(), ArchiveError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed("look for", path)(error)),
        Ok(_) => Err(ArchiveError::Exists { path: path.to_path_buf() }),
    }
}

/// That the directory is not there, or empty.
///
/// # Errors
/// [`ArchiveError::Exists`].
pub fn check_vacant(path: &Path) -> Result<(), ArchiveError> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed("list", path))?,
    };
    match entries.count() {
        0 => Ok(()),
        _ => Err(ArchiveError::Exists { path: path.to_path_buf() }),
    }
}

/// What the stored snapshot and the log after it come to. Alone, everything in the log was or will be
/// acknowledged; among others only what is known to be committed.
fn replay(
    path: &Path,
    disk: &Disk,
    loaded: Loaded,
) -> Result<(Option<Position>, StateMachine), ArchiveError> {
    let what = || path.display().to_string();
    let (mut position, mut machine, mut members) = match disk.read_snapshot()? {
        None => (None, StateMachine::new(), Members::default()),
        Some((head, state)) => {
            let machine = StateMachine::from_snapshot(&state)
                .map_err(|error| ArchiveError::Malformed { what: what(), why: error.to_string() })?;
            (head.last, machine, head.members)
        }
    };
    for entry in &loaded.entries {
        if let Payload::Membership(newer) = &entry.payload {
            members = newer.clone();
        }
    }
    let alone = members.voters.len() == 1 && members.voters[0].len() == 1;
    let counts = |entry: &Entry| alone || Some(entry.position.index) <= loaded.committed.map(|c| c.index);
    let from = position.map(|position| position.index);
    for entry in loaded.entries.iter().filter(|entry| Some(entry.position.index) > from && counts(entry)) {
        position = Some(entry.position);
        if let Payload::Proposal(proposal) = &entry.payload {
            machine.apply(entry.position.index, proposal);
        }
    }
    Ok((position, machine))
}

/// A data directory as a lone node leaves it that has just compacted its log.
fn make_dir(path: &Path, position: Position, machine: &StateMachine) -> Result<(), ArchiveError> {
    let mut dir = DataDir::open(path)?;
    let (mut disk, _) = Disk::open_files(&dir.tables_file(), &dir.log_file(), true)?;
    let node = NodeId(1);
    let state: Arc<[u8]> = machine.to_snapshot().into();
    let head = SnapshotHead {
        last: Some(position),
        members_at: Some(position),
        members: Members {
            voters: vec![BTreeSet::from([node])],
            nodes: BTreeMap::from([(node, String::new())]),
        },
        state_bytes: state.len() as u64,
        state_crc: crc32fast::hash(&state),
    };
    let ballot = Ballot { term: position.term, node, committed: true };
    let changes =
        [Change::Ballot(ballot), Change::Snapshot { head, state }, Change::Purge { upto: position }];
    disk.commit(&changes, Some(position)).map_err(|error| {
        let source = io::Error::other(error.to_string());
        ArchiveError::Io { what: "write", path: path.to_path_buf(), source }
    })?;
    Ok(dir.seal()?)
}

/// Puts a finished directory into its place, which is not there or empty.
fn put_dir(draft: &Path, dir: &Path) -> Result<(), ArchiveError> {
    fs::rename(draft, dir).map_err(|error| match error.kind() {
        io::ErrorKind::DirectoryNotEmpty => ArchiveError::Exists { path: dir.to_path_buf() },
        _ => failed("put the data into", dir)(error),
    })?;
    sync_parent(dir)
}

/// A name beside another that nobody else uses.
fn draft_of(path: &Path) -> Result<PathBuf, ArchiveError> {
    let name =
        path.file_name().ok_or_else(|| failed("write to", path)(io::ErrorKind::InvalidInput.into()))?;
    let name = format!(".{}.{:08x}", name.to_string_lossy(), rand::random::<u32>());
    Ok(parent(path).join(name))
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn sync_parent(path: &Path) -> Result<(), ArchiveError> {
    let parent = parent(path);
    File::open(parent).and_then(|dir| dir.sync_all()).map_err(failed("sync", parent))
}

fn line(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.iter().take(64 << 10).position(|byte| *byte == b'\n')?;
    Some((std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 1..]))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ArchiveError {
    let path = path.to_path_buf();
    move |source| ArchiveError::Io { what, path, source }
}

#[cfg(test)]
mod tests;
