//! Who is inside: one lock file for each (resource, seat), and the record of its holder in it.
//!
//! The lock is a `flock`, which belongs to the open file and not to a process: children that inherit the
//! descriptor hold it too, and the kernel frees it when the last of them has ended, however it ends. So a
//! killed guard does not free the scope of a command that lives (RULES R33).
//!
//! The record says who that is. It is written by whoever holds the lock and cleared before the lock is let
//! go; one that outlived a crash is told by its process, which is named with its start (`process.rs`).
//! Nothing is decided by the record alone.

use super::report::now;
use super::{GuardError, Life, Name, Offer, Process, SeatNo, Token, process};
use crate::guard::ClusterId;
use quorate_core::time::Wall;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The first and the longest pause between two tries for a lock. A waiter finds a free scope 20 ms late at
/// most, and costs 50 tries a second.
const PAUSE_MIN: Duration = Duration::from_micros(200);
pub(super) const PAUSE_MAX: Duration = Duration::from_millis(20);

/// The longest part of a name that is written out in the name of its lock file: with the ending and a
/// checksum it stays under the 255 bytes that file systems allow.
const READABLE_BYTES_MAX: usize = 180;

/// Who took a scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The resource.
    pub resource: Name,
    /// Its seat.
    pub seat: SeatNo,
    /// The token that is inside.
    pub token: Token,
    /// The token's cluster, if it was named.
    pub cluster: Option<ClusterId>,
    /// Since when.
    pub since: Wall,
    /// The process that took the lock.
    pub process: Process,
    /// Whether that process has left, and only children that inherited the lock may still be inside.
    pub left: bool,
    /// The command that it started and that inherited the lock, if it is `quorate guard run`.
    pub command: Option<Command>,
}

/// A command that runs inside a scope.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Its first process.
    pub process: Process,
    /// Whether that leads a process group of its own, which can be killed as a whole.
    pub leads_group: bool,
}

/// Who keeps somebody else out of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// The resource.
    pub resource: Name,
    /// Its seat.
    pub seat: SeatNo,
    /// What the holder wrote about itself; None if it has not yet, or left only children behind.
    pub holder: Option<Holder>,
    /// The processes that are inside: the one that the holder's record names, if it lives; else those that
    /// hold the lock, as far as the system tells.
    pub pids: Vec<u32>,
}

/// An open lock file. The scope is entered between a successful `try_lock` and the drop.
#[derive(Debug)]
pub(super) struct Scope {
    file: File,
    path: PathBuf,
    entered: bool,
    shared: AtomicBool,
}

impl Holder {
    /// This process, from now on.
    pub(super) fn this_process(resource: &Name, offer: Offer) -> Self {
        Self {
            resource: resource.clone(),
            seat: offer.seat,
            token: offer.token,
            cluster: offer.cluster,
            since: now(),
            process: Process::current(),
            left: false,
            command: None,
        }
    }

    /// The process to look at: the command if there is one that runs, else whoever took the lock. None if
    /// both have ended or left.
    pub fn pid(&self) -> Option<u32> {
        let command = self.command.as_ref().map(|command| &command.process);
        let taker = Some(&self.process).filter(|_| !self.left);
        [command, taker]
            .into_iter()
            .flatten()
            .find(|process| process.life() != Life::Gone)
            .map(|process| process.pid)
    }
}

impl Command {
    /// The process group to kill as a whole, if it is certain that it is this command's: its leader runs, or
    /// one of the processes that hold the lock is in it.
    pub(super) fn group(&self, lock_holders: &[u32]) -> Option<u32> {
        let group = Some(self.process.pid).filter(|_| self.leads_group);
        match self.process.life() {
            Life::Alive => group,
            Life::Gone => group.filter(|_| {
                let of_group = |&pid: &u32| process::group_of(pid) == group;
                process::group_of(self.process.pid).is_none() && lock_holders.iter().any(of_group)
            }),
            Life::Unknown => None,
        }
    }
}

impl Blocker {
    /// Reads who holds the scope of this file. A record of somebody who has ended is not believed.
    pub(super) fn at(path: &Path, resource: &Name, seat: SeatNo) -> Self {
        let recorded = read_holder(path).filter(|holder| holder.resource == *resource && holder.seat == seat);
        let recorded_pid = recorded.as_ref().and_then(Holder::pid);
        let pids = match recorded_pid {
            Some(pid) => vec![pid],
            None => process::lock_holders(path),
        };
        let holder = recorded.filter(|holder| {
            let left_behind = holder.command.as_ref().and_then(|command| command.group(&pids));
            recorded_pid.is_some() || left_behind.is_some()
        });
        Self { resource: resource.clone(), seat, holder, pids }
    }

    /// The process that is inside, as far as it is known.
    pub fn pid(&self) -> Option<u32> {
        self.pids.first().copied()
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.resource)?;
        if self.seat != SeatNo(0) {
            write!(f, " (seat {})", self.seat)?;
        }
        match (&self.holder, self.pid()) {
            (Some(holder), Some(pid)) => write!(
                f,
                " is held by pid {pid} with token {} since {}",
                holder.token,
                super::rfc3339(holder.since)
            ),
            (_, Some(_)) => write!(f, " is held by pid {}", list(&self.pids)),
            (_, None) => write!(f, " is held by a process that cannot be named from here"),
        }
    }
}

/// Numbers with commas between.
pub(super) fn list(pids: &[u32]) -> String {
    let words: Vec<String> = pids.iter().map(u32::to_string).collect();
    words.join(", ")
}

impl Scope {
    pub(super) fn open(directory: &Path, resource: &Name, seat: SeatNo) -> Result<Self, GuardError> {
        std::fs::create_dir_all(directory)
            .map_err(GuardError::io("make the directory of scopes", directory))?;
        let path = directory.join(file_name(resource, seat));
        let file = open(&path).map_err(GuardError::io("open the scope's lock file", &path))?;
        Ok(Self { file, path, entered: false, shared: AtomicBool::new(false) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the lock if it is free. A lock on a file that is no longer at its path counts for nothing and
    /// is an error.
    pub(super) fn try_lock(&mut self) -> Result<bool, GuardError> {
        let failed = |error| GuardError::io("lock", &self.path)(error);
        if !lock_within(&self.file, Duration::ZERO).map_err(failed)? {
            return Ok(false);
        }
        if !is_file_at(&self.file, &self.path) {
            return Err(failed(io::Error::other(
                "the lock file was replaced, which must never happen to it",
            )));
        }
        self.entered = true;
        Ok(true)
    }

    /// Writes who holds the lock. Only its holder may.
    pub(super) fn record(&self, holder: &Holder) -> Result<(), GuardError> {
        write_record(&self.file, holder).map_err(GuardError::io("write the holder's record into", &self.path))
    }

    pub(super) fn inheritable(&self) -> io::Result<OwnedFd> {
        self.shared.store(true, Ordering::Relaxed);
        Ok(rustix::io::dup(&self.file)?)
    }

    /// Lets go, and tells who is still inside if children inherited the lock.
    pub(super) fn leave(mut self, resource: &Name, seat: SeatNo) -> Option<Blocker> {
        let mine = read_holder(&self.path).map(|holder| holder.process);
        if self.let_go() {
            return None;
        }
        let blocker = Blocker::at(&self.path, resource, seat);
        let successor = blocker.holder.as_ref().is_some_and(|holder| Some(&holder.process) != mine.as_ref());
        Some(blocker).filter(|_| !successor)
    }

    /// Whether nobody is inside any more. The record is cleared while the lock is held. If children share
    /// the lock it may outlive this: then this one's descriptor is closed first, and the record is cleared
    /// only if that freed the lock.
    fn let_go(&mut self) -> bool {
        self.entered = false;
        if !self.shared.load(Ordering::Relaxed) {
            return clear(&self.file);
        }
        if let Some(holder) = read_holder(&self.path) {
            let left = Holder { left: true, ..holder };
            warn_if_failed(write_record(&self.file, &left));
        }
        let Ok(other) = open(&self.path) else {
            return false;
        };
        drop(std::mem::replace(&mut self.file, other));
        lock_within(&self.file, Duration::ZERO).is_ok_and(|free| free) && clear(&self.file)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if self.entered {
            self.let_go();
        }
    }
}

/// For a child that inherited a scope's lock, before it becomes the command: records itself as the holder,
/// so that waiters name it and a newer holder can end it. `scope` is what [`Permit::scope_path`] gave to the
/// parent. To `exec` changes neither a process's number nor its start, so the record stays true.
///
/// [`Permit::scope_path`]: super::Permit::scope_path
///
/// # Errors
/// If the record cannot be read or written, or is not there: then nobody has entered.
pub fn become_command(scope: &Path) -> io::Result<()> {
    let mut holder = read_holder(scope).ok_or(io::ErrorKind::NotFound)?;
    let process = Process::current();
    let leads_group = rustix::process::getpgrp() == rustix::process::getpid();
    holder.command = Some(Command { process, leads_group });
    write_record(&OpenOptions::new().write(true).open(scope)?, &holder)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

fn write_record(mut file: &File, holder: &Holder) -> io::Result<()> {
    let mut line = serde_json::to_vec(holder)?;
    line.push(b'\n');
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&line)
}

fn clear(file: &File) -> bool {
    warn_if_failed(file.set_len(0))
}

fn warn_if_failed(result: io::Result<()>) -> bool {
    if let Err(error) = &result {
        tracing::warn!(%error, "the record of who is inside could not be changed; the next holder does");
    }
    result.is_ok()
}

/// The record in a scope's lock file. It is read without the lock, so it may be half written: then there is
/// none, this time.
pub(super) fn read_holder(path: &Path) -> Option<Holder> {
    let mut text = String::new();
    File::open(path).ok()?.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Everybody who is inside a scope of this directory, by resource and in order of seat.
pub(super) fn holders(directory: &Path) -> BTreeMap<Name, Vec<Holder>> {
    let mut holders: BTreeMap<Name, Vec<Holder>> = BTreeMap::new();
    for file in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let recorded = read_holder(&file.path());
        let inside =
            recorded.and_then(|holder| Blocker::at(&file.path(), &holder.resource, holder.seat).holder);
        if let Some(holder) = inside {
            holders.entry(holder.resource.clone()).or_default().push(holder);
        }
    }
    for of_resource in holders.values_mut() {
        of_resource.sort_unstable_by_key(|holder| holder.seat);
    }
    holders
}

/// Takes the exclusive lock of an open file, trying again until `limit` has passed. Whether it has it.
pub(super) fn lock_within(file: &File, limit: Duration) -> io::Result<bool> {
    let started = Instant::now();
    let mut pause = PAUSE_MIN;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) if started.elapsed() >= limit => return Ok(false),
            Err(Errno::WOULDBLOCK) => {
                thread::sleep(pause.min(limit));
                pause = (pause * 2).min(PAUSE_MAX);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether this open file is the one that the path leads to.
pub(super) fn is_file_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(open), Ok(there)) => open.dev() == there.dev() && open.ino() == there.ino(),
        _ => false,
    }
}

/// The name of the lock file of a scope. Names that are too long to be written out are told apart by a
/// checksum; if two should meet in one file, they wait for each other, which is safe.
fn file_name(resource: &Name, seat: SeatNo) -> String {
    let mut readable = String::new();
    for byte in resource.as_str().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => readable.push(byte.into()),
            _ => readable.push_str(&format!("%{byte:02X}")),
        }
    }
    if readable.len() > READABLE_BYTES_MAX {
        let checksum = crc32fast::hash(resource.as_str().as_bytes());
        readable.truncate(READABLE_BYTES_MAX);
        readable.push_str(&format!("+{checksum:08x}"));
    }
    format!("{readable}@{seat}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_safe_file_name() {
        let name = |text: &str| file_name(&Name::new(text).expect("a name"), SeatNo(0));
        assert_eq!(name("orders"), "orders@0");
        assert_eq!(name("../etc/x"), "%2E%2E%2Fetc%2Fx@0");
        assert_eq!(name("a@0"), "a%400@0");
        let long = name(&"ä".repeat(127));
        assert!(long.len() <= 255, "{} bytes", long.len());
        assert_ne!(long, name(&format!("{}o", "ä".repeat(126))));
        let seat = file_name(&Name::new("ö".repeat(127)).expect("a name"), SeatNo(u32::MAX));
        assert!(seat.len() <= 255);
    }
}
