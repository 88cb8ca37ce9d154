//! All processes that descend from one: found, told, ended.
//!
//! **Rule.** A *subreaper* inherits every descendant whose own parent dies, however deep it was and whatever
//! session or group it made for itself; so to have no children is to have no descendants, and the kernel says
//! which. **Cost.** Finding them reads `/proc` once: 10 us a process of the machine. **When it fails.** Who descends
//! from somebody else was never ours: what a service manager or a container engine started on request. Another user's
//! process is found but cannot be signalled; one in uninterruptible sleep ends when the sleep does (RULES R36).

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, pidfd_open, pidfd_send_signal,
    set_child_subreaper, waitid,
};
use std::collections::{BTreeMap, BTreeSet};
use std::{fs, io};

/// The descendants of this process.
#[derive(Debug)]
pub(super) struct Family {
    root: i32,
    /// Those that were here before, which are nobody's business.
    strangers: BTreeSet<Kin>,
}

/// One process. Its number alone is given out again after its end; its start is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Kin {
    pid: i32,
    /// In the kernel's clock ticks since boot.
    started: u64,
}

#[derive(Clone, Copy, Debug)]
struct Stat {
    kin: Kin,
    parent: i32,
    ended: bool,
}

impl Family {
    /// Makes this process the heir of all its descendants. Those that it has already are left alone.
    pub(super) fn found() -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        let mut family = Self { root: getpid().as_raw_nonzero().get(), strangers: BTreeSet::new() };
        family.strangers = family.living().into_iter().collect();
        Ok(family)
    }

    /// How many are alive.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.living().len()).unwrap_or(u32::MAX)
    }

    /// Sends a signal to each. Who cannot be signalled is found again by the next look.
    pub(super) fn signal(&self, signal: Signal) {
        for kin in self.living() {
            send(kin, signal);
        }
    }

    fn living(&self) -> Vec<Kin> {
        descendants(self.root, &processes(), &self.strangers)
    }
}

/// Takes leave of all children that have ended. Whether there are others.
pub(super) fn reap() -> bool {
    loop {
        match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
}

/// Signals this very process, and not another that was given its number since.
fn send(kin: Kin, signal: Signal) {
    let Some(pid) = Pid::from_raw(kin.pid) else { return };
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if stat(kin.pid).is_some_and(|stat| stat.kin == kin) {
        // It may have ended, or be another user's: the next look tells.
        let _ = pidfd_send_signal(&handle, signal);
    }
}

fn descendants(root: i32, processes: &[Stat], strangers: &BTreeSet<Kin>) -> Vec<Kin> {
    let mut children: BTreeMap<i32, Vec<&Stat>> = BTreeMap::new();
    for stat in processes.iter().filter(|stat| !strangers.contains(&stat.kin)) {
        children.entry(stat.parent).or_default().push(stat);
    }
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            parents.push(child.kin.pid);
            if !child.ended {
                found.push(child.kin);
            }
        }
    }
    found
}

fn processes() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| stat(entry.file_name().to_str()?.parse().ok()?)).collect()
}

fn stat(pid: i32) -> Option<Stat> {
    // The name in it may be no text.
    let bytes = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(pid, &String::from_utf8_lossy(&bytes))
}

/// The second field is the name in parentheses, which may hold anything; the rest is counted from its end.
fn parse(pid: i32, text: &str) -> Option<Stat> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some(Stat { kin: Kin { pid, started }, parent, ended: matches!(state, "Z" | "X") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let text = "77 (a) R (b)) S 1 66 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 9 9";
        let stat = parse(77, text).unwrap();
        assert_eq!((stat.kin.pid, stat.kin.started, stat.parent, stat.ended), (77, 123_456, 1, false));
    }

    #[test]
    fn descendants_are_found_at_any_depth_through_the_dead_and_without_strangers() {
        let stat = |pid, parent, ended| Stat { kin: Kin { pid, started: 1 }, parent, ended };
        let tree = [
            stat(1, 0, false),
            stat(10, 1, false),
            stat(20, 10, true),
            stat(30, 20, false),
            stat(40, 10, false),
            stat(50, 40, false),
            stat(60, 1, false),
        ];
        let all = |strangers: &[i32]| {
            let strangers = strangers.iter().map(|&pid| Kin { pid, started: 1 }).collect();
            let mut pids: Vec<_> =
                descendants(10, &tree, &strangers).into_iter().map(|kin| kin.pid).collect();
            pids.sort_unstable();
            pids
        };
        assert_eq!(all(&[]), [30, 40, 50]);
        assert_eq!(all(&[40]), [30]);
    }
}
