//! Which process is meant: a number alone is given out again after its process has ended.
//!
//! A process is named by its number *and* the moment it started, within one boot and one process namespace.
//! The moment comes from Linux's `/proc`; elsewhere it is unknown, and then nobody is ever killed.

use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// One process of one boot of one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in the kernel's clock ticks since boot; None where the system does not tell.
    started: Option<u64>,
    /// The boot and the process namespace in which the number means something.
    place: Option<String>,
}

/// What is known of a process now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    Alive,
    /// It has ended; its number may be another's by now.
    Gone,
    /// It is of another machine, boot or container, or the system does not tell.
    Unknown,
}

/// The fields of `/proc/PID/stat` that matter here.
struct Stat {
    ended: bool,
    group: u32,
    started: u64,
}

impl Process {
    /// The process that asks.
    pub fn current() -> Self {
        let pid = std::process::id();
        Self { pid, started: stat(pid).map(|stat| stat.started), place: place() }
    }

    /// Whether it still runs.
    pub fn life(&self) -> Life {
        if self.place.is_none() || self.place != place() {
            return Life::Unknown;
        }
        let Some(started) = self.started else {
            return Life::Unknown;
        };
        match stat(self.pid) {
            Some(stat) if stat.started == started && !stat.ended => Life::Alive,
            _ => Life::Gone,
        }
    }
}

/// The process group of a process that runs.
pub(super) fn group_of(pid: u32) -> Option<u32> {
    stat(pid).filter(|stat| !stat.ended).map(|stat| stat.group)
}

/// The processes that hold the `flock` of this file, whoever took it: the kernel lists it with each
/// descriptor that shares it, inherited ones included. Empty where it cannot be told. Processes of other
/// users are seen by root only.
pub(super) fn lock_holders(path: &Path) -> Vec<u32> {
    let Ok(file) = fs::metadata(path) else {
        return Vec::new();
    };
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut pids: Vec<u32> = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| holds_lock(pid, &file))
        .collect();
    pids.sort_unstable();
    pids
}

fn holds_lock(pid: u32, file: &fs::Metadata) -> bool {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    descriptors.flatten().any(|descriptor| {
        let same = fs::metadata(descriptor.path())
            .is_ok_and(|open| open.dev() == file.dev() && open.ino() == file.ino());
        let number = descriptor.file_name();
        same && fs::read_to_string(Path::new(&format!("/proc/{pid}/fdinfo")).join(number))
            .is_ok_and(|info| info.lines().any(|line| line.starts_with("lock:") && line.contains("FLOCK")))
    })
}

fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The second field is the command's name in parentheses and may hold anything, so the rest is counted from
/// its end.
fn parse_stat(text: &str) -> Option<Stat> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let group = fields.nth(1)?.parse().ok()?;
    let started = fields.nth(16)?.parse().ok()?;
    Some(Stat { ended: matches!(state, "Z" | "X"), group, started })
}

fn place() -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), namespace.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_parentheses_does_not_shift_the_fields() {
        let text = "77 (a) R (b)) S 1 66 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 9 9";
        let stat = parse_stat(text).expect("it is well formed");
        assert_eq!((stat.ended, stat.group, stat.started), (false, 66, 123_456));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_alive_and_its_number_with_another_start_is_not() {
        let me = Process::current();
        assert_eq!(me.life(), Life::Alive);
        let recycled = Process { started: me.started.map(|ticks| ticks - 1), ..me.clone() };
        assert_eq!(recycled.life(), Life::Gone);
        let elsewhere = Process { place: Some("another boot".into()), ..me };
        assert_eq!(elsewhere.life(), Life::Unknown);
    }
}
