//! The data directory of one node: whose it is, which format it has, and that one server uses it.
//!
//! | file | what |
//! |---|---|
//! | `LOCK` | locked while a server runs; holds its process id |
//! | `node.log` | the entries of the log |
//! | `node.redb` | the ballot, the snapshot, and what is committed and purged |
//! | `FORMAT` | `quorate-data 1`; written last, so a directory that has it was completely set up |
//!
//! A directory that holds anything else is somebody else's and is left alone. A directory whose
//! `FORMAT` is there and whose log is not has lost it, and never becomes a new node (RULES R29). Nor does one whose
//! `FORMAT` is gone and whose log holds entries: they are of a node that was set up, and would be lost.

use rustix::fs::FlockOperation;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The format that this build writes, and the newest that it opens.
pub const FORMAT: u32 = 1;

const FORMAT_FILE: &str = "FORMAT";
const FORMAT_DRAFT: &str = "FORMAT.new";
const FORMAT_WORD: &str = "quorate-data ";
const LOCK_FILE: &str = "LOCK";
const LOG_FILE: &str = "node.log";
const TABLES_FILE: &str = "node.redb";

/// What an unfinished set-up of ours, or a fresh file system, may have left in the directory.
const HARMLESS: [&str; 5] = [LOCK_FILE, LOG_FILE, TABLES_FILE, FORMAT_DRAFT, "lost+found"];

/// A data directory that this process has to itself until the value is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    fresh: bool,
    /// Its lock ends when the file is closed.
    _lock: File,
}

/// Why a directory cannot be used. It was not changed, except that it may have been created.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
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
    /// Another server runs on it.
    #[error(
        "{} is in use by {}: stop that server, or give this one another directory",
        path.display(),
        holder(*pid)
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The other server's process, if it has said so already.
        pid: Option<u32>,
    },
    /// A newer release has written it.
    #[error(
        "{} has format {found}, this release reads up to {FORMAT}: \
         start the release that wrote it, or a later one",
        path.display()
    )]
    Newer {
        /// The directory.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// It is not empty, and not ours.
    #[error(
        "{} holds {entry:?} and is not a data directory of quorate: \
         give an empty or a new one",
        path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// One thing in it that is not ours.
        entry: String,
    },
    /// Its format file does not read.
    #[error(
        "{} does not name a format, it says {text:?}: \
         the directory is damaged, restore it from a backup",
        path.display()
    )]
    Format {
        /// The format file.
        path: PathBuf,
        /// The start of what it says.
        text: String,
    },
    /// It was set up, but its log is gone.
    #[error(
        "{} has been set up, but its log {file} is gone: \
         restore it, or join the cluster as a new node with an empty directory",
        path.display()
    )]
    Lost {
        /// The directory.
        path: PathBuf,
        /// The file that is not there, or empty.
        file: &'static str,
    },
    /// Its log holds entries, and its format file is gone.
    #[error(
        "{} holds a log with entries, but its file {FORMAT_FILE} is gone, so it is not known what they are: put the \
         file back from a backup, or write `{FORMAT_WORD}{FORMAT}` into it if this release wrote the log; nothing \
         was changed",
        path.display()
    )]
    Unsealed {
        /// The directory.
        path: PathBuf,
    },
}

impl DataDir {
    /// Opens the directory, creates it if it is missing, and locks it.
    ///
    /// # Errors
    /// [`DirError`] says why it cannot be used and what to do.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, DirError> {
        let path = path.into();
        create_durable(&path)?;
        let before = Survey::of(&path)?;
        before.check(&path)?;
        let lock = lock(&path)?;
        let survey = Survey::of(&path)?;
        survey.check(&path)?;
        sync_dir(&path)?;
        Ok(Self { fresh: !survey.sealed, path, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file of the log's entries.
    pub fn log_file(&self) -> PathBuf {
        self.path.join(LOG_FILE)
    }

    /// The file of everything else.
    pub fn tables_file(&self) -> PathBuf {
        self.path.join(TABLES_FILE)
    }

    /// No node has been set up here yet.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Declares the set-up complete, durably. To be called once the log is there and durable.
    ///
    /// # Errors
    /// [`DirError::Io`]; the directory then still counts as fresh.
    pub fn seal(&mut self) -> Result<(), DirError> {
        if !self.fresh {
            return Ok(());
        }
        let draft = self.path.join(FORMAT_DRAFT);
        let mut file = File::create(&draft).map_err(failed("create", &draft))?;
        writeln!(file, "{FORMAT_WORD}{FORMAT}").map_err(failed("write", &draft))?;
        file.sync_all().map_err(failed("sync", &draft))?;
        fs::rename(&draft, self.path.join(FORMAT_FILE)).map_err(failed("rename", &draft))?;
        sync_dir(&self.path)?;
        self.fresh = false;
        Ok(())
    }
}

/// What is in a directory.
struct Survey {
    /// The format file is there, and its format is one that we read.
    sealed: bool,
    /// The first of the log's files that is not there, or empty.
    lost: Option<&'static str>,
    /// The first thing, by name, that a fresh directory of ours could not hold.
    foreign: Option<String>,
    /// The log holds entries, so it is of a directory that was sealed.
    entries: bool,
}

impl Survey {
    fn of(path: &Path) -> Result<Self, DirError> {
        let mut foreign: Vec<String> = Vec::new();
        for entry in fs::read_dir(path).map_err(failed("list", path))? {
            let name = entry.map_err(failed("list", path))?.file_name().to_string_lossy().into_owned();
            if !HARMLESS.contains(&name.as_str()) {
                foreign.push(name);
            }
        }
        let sealed = foreign.iter().any(|name| name == FORMAT_FILE);
        if sealed {
            read_format(path)?;
        }
        let is_lost = |file: &&str| !fs::metadata(path.join(file)).is_ok_and(|log| log.len() > 0);
        let lost = [LOG_FILE, TABLES_FILE].into_iter().find(is_lost);
        let entries = super::journal::holds_entries(&path.join(LOG_FILE)).map_err(failed("read", path))?;
        Ok(Self { sealed, lost, foreign: foreign.into_iter().min(), entries })
    }

    fn check(&self, path: &Path) -> Result<(), DirError> {
        let path = path.to_path_buf();
        match (self.sealed, self.lost, &self.foreign) {
            (true, Some(file), _) => Err(DirError::Lost { path, file }),
            (false, _, Some(entry)) => Err(DirError::Foreign { path, entry: entry.clone() }),
            (false, _, None) if self.entries => Err(DirError::Unsealed { path }),
            _ => Ok(()),
        }
    }
}

fn read_format(path: &Path) -> Result<(), DirError> {
    let file = path.join(FORMAT_FILE);
    let mut text = String::new();
    File::open(&file)
        .and_then(|opened| opened.take(64).read_to_string(&mut text))
        .map_err(failed("read", &file))?;
    let number = text.strip_prefix(FORMAT_WORD).and_then(|rest| rest.trim_end().parse::<u32>().ok());
    match number {
        Some(found) if found > FORMAT => Err(DirError::Newer { path: path.to_path_buf(), found }),
        Some(_) => Ok(()),
        None => Err(DirError::Format { path: file, text }),
    }
}

fn lock(path: &Path) -> Result<File, DirError> {
    let file = path.join(LOCK_FILE);
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&file)
        .map_err(failed("open", &file))?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            let _ = lock.read_to_string(&mut text);
            return Err(DirError::InUse { path: path.to_path_buf(), pid: text.trim().parse().ok() });
        }
        Err(error) => return Err(failed("lock", &file)(error.into())),
    }
    lock.set_len(0)
        .and_then(|()| writeln!(lock, "{}", std::process::id()))
        .map_err(failed("write", &file))?;
    Ok(lock)
}

/// Creates the directory and its missing parents, so that they are there after a power loss.
fn create_durable(path: &Path) -> Result<(), DirError> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    create_durable(parent)?;
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => sync_dir(parent),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(failed("create", path)(error)),
    }
}

fn sync_dir(path: &Path) -> Result<(), DirError> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(failed("sync", path))
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DirError {
    let path = path.to_path_buf();
    move |source| DirError::Io { what, path, source }
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another server".to_owned(), |pid| format!("the server with process id {pid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_up(dir: &DataDir) {
        fs::write(dir.log_file(), "a log").unwrap();
        fs::write(dir.tables_file(), "tables").unwrap();
    }

    fn sealed(root: &Path) -> PathBuf {
        let path = root.join("data");
        let mut dir = DataDir::open(&path).unwrap();
        set_up(&dir);
        dir.seal().unwrap();
        path
    }

    #[test]
    fn it_is_created_with_its_parents_and_sealed_once() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b/data");
        let mut dir = DataDir::open(&path).unwrap();
        assert!(dir.is_fresh());
        set_up(&dir);
        dir.seal().unwrap();
        assert!(!dir.is_fresh());
        assert_eq!(fs::read_to_string(path.join("FORMAT")).unwrap(), "quorate-data 1\n");
        drop(dir);
        assert!(!DataDir::open(&path).unwrap().is_fresh());
    }

    #[test]
    fn an_interrupted_setup_is_still_fresh() {
        let root = tempfile::tempdir().unwrap();
        for name in HARMLESS {
            fs::write(root.path().join(name), "").unwrap();
        }
        assert!(DataDir::open(root.path()).unwrap().is_fresh());
    }

    #[test]
    fn a_second_server_reads_the_pid_of_the_first() {
        let root = tempfile::tempdir().unwrap();
        let _first = DataDir::open(root.path()).unwrap();
        let error = DataDir::open(root.path()).unwrap_err();
        let pid = std::process::id();
        assert!(matches!(error, DirError::InUse { pid: Some(found), .. } if found == pid));
        assert!(error.to_string().contains(&format!("the server with process id {pid}")), "{error}");
    }

    #[test]
    fn somebody_elses_directory_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("photo.jpg"), "").unwrap();
        let error = DataDir::open(root.path()).unwrap_err();
        assert!(matches!(&error, DirError::Foreign { entry, .. } if entry == "photo.jpg"), "{error}");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "nothing was added");
    }

    #[test]
    fn a_newer_format_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = sealed(root.path());
        fs::write(path.join("FORMAT"), "quorate-data 2\n").unwrap();
        let error = DataDir::open(&path).unwrap_err();
        assert!(matches!(error, DirError::Newer { found: 2, .. }), "{error}");
        fs::write(path.join("FORMAT"), "something else").unwrap();
        assert!(matches!(DataDir::open(&path).unwrap_err(), DirError::Format { .. }));
    }

    #[test]
    fn a_lost_log_is_not_replaced() {
        for name in [LOG_FILE, TABLES_FILE] {
            let root = tempfile::tempdir().unwrap();
            let path = sealed(root.path());
            let lost = |error: DirError| matches!(error, DirError::Lost { file, .. } if file == name);
            fs::write(path.join(name), "").unwrap();
            assert!(lost(DataDir::open(&path).unwrap_err()), "{name} was emptied");
            fs::remove_file(path.join(name)).unwrap();
            assert!(lost(DataDir::open(&path).unwrap_err()), "{name} was removed");
        }
    }
}
