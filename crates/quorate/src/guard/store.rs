//! The files of a guard, and how a floor becomes durable.
//!
//! For a state `orders.guard` there are, all in its directory:
//!
//! | file | what | renamed or removed |
//! |---|---|---|
//! | `orders.guard` | the floors | replaced at each write |
//! | `orders.guard.lock` | the short lock over the floors; says that a state exists | never |
//! | `orders.guard.scopes/` | one lock file for each (resource, seat): who is inside | never |
//! | `orders.guard.refusals` | the last refusals, for people | replaced |
//! | `orders.guard.tmp` | a write in progress, or what a crash left of one | overwritten |
//!
//! **Rule.** A write is: write and sync the temporary file, rename it over the state, sync the directory, and
//! only then note its number (the generation) in the lock file. A crash between any two of these leaves the
//! old floors or the new ones, whole.
//!
//! A reader that finds a state whose generation the lock file does not know yet finishes the write that the
//! other did not: it syncs the state and the directory itself, before it relies on them. A state with a
//! *smaller* generation than the lock file's is an old one put back.

use super::state::{DecodeError, Origin, State, VERSION};
use super::{GuardError, Mark, process, scope};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// How long the short lock is waited for. It is held for two syncs, so this is long even for a disk under
/// load; beyond it, whoever has the lock was stopped.
const BUSY_MAX: Duration = Duration::from_secs(30);

/// As many links are followed as the system follows.
const LINKS_MAX: usize = 40;

const LOCK_MAGIC: &str = "quorate-guard-lock";

#[derive(Clone, Debug)]
pub(super) struct Store {
    path: PathBuf,
    create: Create,
}

/// What to do where no guard has ever been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Create {
    IfAbsent,
    Never,
}

/// The floors under their short lock: nobody else reads or writes them until this is dropped.
#[derive(Debug)]
pub(super) struct Session<'a> {
    store: &'a Store,
    lock: File,
    pub(super) state: State,
}

/// Where a link leads to whose file is not there yet; the path itself, if it is none. A state that was founded in the
/// place of the link would be another guard than the one that is reached by the file's own name.
fn target(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(next) => path = parent(&path).join(next),
            // No link, or nothing at all.
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotFound) => {
                return Ok(path);
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::InvalidInput.into())
}

/// What the lock file remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LockLine {
    id: u128,
    generation: u64,
}

impl Store {
    /// Resolves links first: two names of one state must share one lock file.
    pub(super) fn new(path: &Path, create: Create) -> Result<Self, GuardError> {
        let failed = |source| GuardError::Io {
            doing: "find the directory of the guard's state",
            path: path.into(),
            source,
        };
        let path = match fs::canonicalize(path) {
            Ok(path) => path,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let path = target(path).map_err(failed)?;
                let name = path.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
                fs::canonicalize(parent(&path)).map_err(failed)?.join(name)
            }
            Err(error) => return Err(failed(error)),
        };
        Ok(Self { path, create })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file beside the state with this ending.
    pub(super) fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(ending);
        name.into()
    }

    pub(super) fn scopes(&self) -> PathBuf {
        self.beside(".scopes")
    }

    fn lock_path(&self) -> PathBuf {
        self.beside(".lock")
    }

    /// Locks and reads the floors, and founds them where there never were any.
    pub(super) fn begin(&self) -> Result<Session<'_>, GuardError> {
        let lock = self.lock()?;
        let known = self.lock_line(&lock)?;
        let state = match (self.read()?, known) {
            (Some(bytes), _) => self.decode(&bytes)?,
            (None, Some(line)) => {
                return Err(GuardError::StateMissing {
                    path: self.path.clone(),
                    generations: line.generation,
                });
            }
            (None, None) => {
                let origin = self.origin(&lock)?;
                return self.found(lock, State::founded(origin, Mark::default()));
            }
        };
        self.check_origin(&state, &lock, known)?;
        let written = known.map_or(0, |line| line.generation);
        if state.generation < written {
            return Err(GuardError::StateOutdated {
                path: self.path.clone(),
                found: state.generation,
                known: written,
            });
        }
        let session = Session { store: self, lock, state };
        if session.state.generation > written {
            session.finish_write_of_another()?;
        }
        Ok(session)
    }

    /// Locks whatever is there and makes it this guard's own, by an operator's decision. A state that can be
    /// read keeps its floors; one that cannot begins again with `base`, which has to be given for that.
    /// The old file is only replaced by [`Session::write`].
    pub(super) fn refound(&self, base: Option<Mark>) -> Result<Session<'_>, GuardError> {
        let lock = match self.lock() {
            Err(GuardError::StateCopied { .. }) => self.lock_created()?,
            other => other?,
        };
        let known = self.lock_line(&lock).unwrap_or_default();
        let generation = known.map_or(0, |line| line.generation);
        let origin = self.origin(&lock)?;
        let old = match self.read()? {
            Some(bytes) => self.decode(&bytes),
            None => Err(GuardError::StateMissing { path: self.path.clone(), generations: generation }),
        };
        let mut state = match (old, base) {
            (Ok(old), _) => old,
            (Err(newer @ GuardError::StateNewer { .. }), _) => return Err(newer),
            (Err(unreadable), None) => return Err(unreadable),
            (Err(_), Some(base)) => State::founded(origin.clone(), base),
        };
        state.origin = origin;
        state.generation = state.generation.max(generation);
        Ok(Session { store: self, lock, state })
    }

    fn found(&self, lock: File, state: State) -> Result<Session<'_>, GuardError> {
        let mut session = Session { store: self, lock, state };
        session.write()?;
        // Once, so that the knowledge that a state exists is as durable as the state.
        session.lock.sync_all().map_err(GuardError::io("sync the lock file", self.lock_path()))?;
        Ok(session)
    }

    /// Opens and takes the short lock. A lock file is only made where there is no state either.
    fn lock(&self) -> Result<File, GuardError> {
        match open_lock(&self.lock_path()) {
            Ok(file) => self.locked(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.path.exists() {
                    return Err(self.copied("its lock file is not beside it"));
                }
                if self.create == Create::Never {
                    return Err(GuardError::io("find a guard's state at", &self.path)(
                        io::ErrorKind::NotFound.into(),
                    ));
                }
                self.lock_created()
            }
            Err(error) => Err(GuardError::io("open the lock file", self.lock_path())(error)),
        }
    }

    fn lock_created(&self) -> Result<File, GuardError> {
        let path = self.lock_path();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(GuardError::io("make the lock file", &path))?;
        self.locked(file)
    }

    fn locked(&self, file: File) -> Result<File, GuardError> {
        let path = self.lock_path();
        let locked =
            scope::lock_within(&file, BUSY_MAX).map_err(GuardError::io("lock the lock file", &path))?;
        if !locked {
            return Err(GuardError::StateBusy {
                path: self.path.clone(),
                waited: BUSY_MAX,
                pids: process::lock_holders(&path),
            });
        }
        if !scope::is_file_at(&file, &path) {
            return Err(self.copied("its lock file was replaced while it was in use"));
        }
        Ok(file)
    }

    fn lock_line(&self, lock: &File) -> Result<Option<LockLine>, GuardError> {
        let mut text = String::new();
        let mut reader = lock;
        reader
            .seek(SeekFrom::Start(0))
            .and_then(|_| reader.take(200).read_to_string(&mut text))
            .map_err(GuardError::io("read the lock file", self.lock_path()))?;
        if text.is_empty() {
            return Ok(None);
        }
        LockLine::parse(&text).map(Some).ok_or_else(|| GuardError::StateCorrupt {
            path: self.lock_path(),
            what: "the lock file's line is not that of a guard".into(),
        })
    }

    fn read(&self) -> Result<Option<Vec<u8>>, GuardError> {
        match fs::read(&self.path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(GuardError::io("read the guard's state", &self.path)(error)),
        }
    }

    fn decode(&self, bytes: &[u8]) -> Result<State, GuardError> {
        State::decode(bytes).map_err(|error| match error {
            DecodeError::Newer(found) => {
                GuardError::StateNewer { path: self.path.clone(), found, known: VERSION }
            }
            DecodeError::Corrupt(what) => GuardError::StateCorrupt { path: self.path.clone(), what },
        })
    }

    fn origin(&self, lock: &File) -> Result<Origin, GuardError> {
        let metadata = lock.metadata().map_err(GuardError::io("look at the lock file", self.lock_path()))?;
        let born = metadata.created().ok();
        let born = born.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Ok(Origin {
            id: rand::random(),
            device: metadata.dev(),
            inode: metadata.ino(),
            born_ns: born.and_then(|since| u64::try_from(since.as_nanos()).ok()),
        })
    }

    fn check_origin(&self, state: &State, lock: &File, known: Option<LockLine>) -> Result<(), GuardError> {
        let (was, is) = (&state.origin, self.origin(lock)?);
        if known.is_some_and(|line| line.id != was.id) {
            return Err(self.copied("it does not belong to the lock file beside it"));
        }
        let same_birth = match (was.born_ns, is.born_ns) {
            (Some(was), Some(is)) => was == is,
            _ => was.device == is.device,
        };
        if was.inode != is.inode || !same_birth {
            return Err(self.copied(&format!(
                "it was written beside a lock file with inode {}, and the one here is another (inode {})",
                was.inode, is.inode
            )));
        }
        Ok(())
    }

    fn copied(&self, what: &str) -> GuardError {
        GuardError::StateCopied { path: self.path.clone(), what: what.into() }
    }

    fn sync_directory(&self) -> Result<(), GuardError> {
        let directory = parent(&self.path);
        File::open(directory)
            .and_then(|open| open.sync_all())
            .map_err(GuardError::io("sync the directory", directory))
    }
}

impl Session<'_> {
    /// Makes the state durable. When this returns an error, the old floors or the new ones hold.
    pub(super) fn write(&mut self) -> Result<(), GuardError> {
        self.state.generation += 1;
        let temporary = self.store.beside(".tmp");
        write_synced(&temporary, &self.state.encode(), &self.store.path)
            .map_err(GuardError::io("write", &temporary))?;
        fs::rename(&temporary, &self.store.path)
            .map_err(GuardError::io("replace the guard's state", &self.store.path))?;
        self.store.sync_directory()?;
        self.note_generation()
    }

    /// The writer of this state died between the rename and the sync: what it wrote is visible, but a power
    /// cut could still take it back.
    fn finish_write_of_another(&self) -> Result<(), GuardError> {
        File::open(&self.store.path)
            .and_then(|state| state.sync_all())
            .map_err(GuardError::io("sync the guard's state", &self.store.path))?;
        self.store.sync_directory()?;
        self.note_generation()
    }

    /// Not synced: after a power cut the lock file may know less than there is, which costs one sync more.
    fn note_generation(&self) -> Result<(), GuardError> {
        let line = LockLine { id: self.state.origin.id, generation: self.state.generation };
        let mut lock = &self.lock;
        lock.seek(SeekFrom::Start(0))
            .and_then(|_| lock.write_all(line.text().as_bytes()))
            .map_err(GuardError::io("write the lock file", self.store.lock_path()))
    }
}

impl LockLine {
    /// Always of one length, so that it is overwritten as a whole.
    fn text(self) -> String {
        format!("{LOCK_MAGIC} 1 id {:032x} generation {:020}\n", self.id, self.generation)
    }

    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let [LOCK_MAGIC, "1", "id", id, "generation", generation] = words[..] else {
            return None;
        };
        Some(Self { id: u128::from_str_radix(id, 16).ok()?, generation: generation.parse().ok()? })
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Writes a new file, never one that somebody put there, with the permissions of the one it will replace.
fn write_synced(temporary: &Path, bytes: &[u8], replaces: &Path) -> io::Result<()> {
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o666).open(temporary)?;
    if let Ok(old) = fs::metadata(replaces) {
        file.set_permissions(old.permissions())?;
    }
    file.write_all(bytes)?;
    file.sync_all()
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
