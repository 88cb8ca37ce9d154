//! Ends an older command that is still inside a scope, so that a newer holder need not wait for it
//! (RULES R33): SIGTERM to its process group, and SIGKILL after a grace.
//!
//! **Safety.** Only a command of `quorate guard run` is ever killed, only for a greater token, and only if it
//! is certain that the process group is still that command's ([`Command::group`]). What remains is the
//! instant between that look and the signal, in which the whole group would have to end and its number be
//! given out again.
//!
//! **When it fails.** A process in uninterruptible sleep does not end, and one that left the group, or
//! belongs to another user, is not reached (RULES R36). The scope stays closed then, and the waiter says who
//! is in it.

use super::{Blocker, Command, Life, Notice, Offer, process};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a guard that has just entered may take to start its command, before it is called one that
/// cannot be killed.
const STARTING_MAX: Duration = Duration::from_secs(2);

/// How long after SIGKILL the group may take to be gone, before the process that started it is killed too:
/// it holds the lock as well, and it may have been stopped.
const DYING_MAX: Duration = Duration::from_secs(2);

/// The killing of one older command after the other, a step at a time.
#[derive(Debug)]
pub(super) struct Killer {
    grace: Duration,
    victim: Option<Command>,
    stage: Stage,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Watching,
    Terminated,
    Killed,
    GaveUp,
}

impl Killer {
    pub(super) fn new(grace: Duration) -> Self {
        Self { grace, victim: None, stage: Stage::Watching, since: Instant::now() }
    }

    /// Looks at who is inside and does what is due. Called at each try for the scope.
    pub(super) fn step(&mut self, path: &Path, blocker: Blocker, offer: Offer) -> Option<Notice> {
        let holder = blocker.holder.as_ref()?;
        let comparable =
            holder.cluster.is_none() || offer.cluster.is_none() || holder.cluster == offer.cluster;
        if holder.token >= offer.token || !comparable {
            return None;
        }
        if self.victim != holder.command {
            self.victim.clone_from(&holder.command);
            self.enter(Stage::Watching);
        }
        let waited = self.since.elapsed();
        match (self.stage, self.victim.clone()) {
            (Stage::Watching, Some(command)) => {
                self.signal(&command, path, Signal::TERM, Stage::Terminated, blocker)
            }
            (Stage::Watching, None) if waited > STARTING_MAX => {
                self.give_up(blocker, "it is not a command of 'quorate guard run'")
            }
            (Stage::Terminated, Some(command)) if waited > self.grace => {
                self.signal(&command, path, Signal::KILL, Stage::Killed, blocker)
            }
            (Stage::Killed, _) if waited > DYING_MAX => self.kill_its_guard(path, blocker),
            _ => None,
        }
    }

    fn enter(&mut self, stage: Stage) {
        self.stage = stage;
        self.since = Instant::now();
    }

    fn give_up(&mut self, blocker: Blocker, why: &'static str) -> Option<Notice> {
        self.enter(Stage::GaveUp);
        Some(Notice::NotKilled(blocker, why))
    }

    fn signal(
        &mut self,
        command: &Command,
        path: &Path,
        signal: Signal,
        then: Stage,
        blocker: Blocker,
    ) -> Option<Notice> {
        match send(command, path, signal) {
            Ok(()) => {
                self.enter(then);
                Some(match then {
                    Stage::Terminated => Notice::Terminated(blocker),
                    _ => Notice::Killed(blocker),
                })
            }
            Err(Unsent::Ended) => {
                self.enter(then);
                None
            }
            Err(Unsent::Uncertain) => {
                self.give_up(blocker, "it cannot be told from here whether its process is still the same")
            }
            Err(Unsent::Forbidden) => self.give_up(blocker, "its process belongs to another user"),
        }
    }

    /// The command is dead and the scope still closed: its guard was stopped, or a process left the group.
    fn kill_its_guard(&mut self, path: &Path, blocker: Blocker) -> Option<Notice> {
        let guard = blocker.holder.as_ref().map(|holder| &holder.process);
        let stopped = guard.filter(|process| {
            process.life() == Life::Alive && process::lock_holders(path).contains(&process.pid)
        });
        if let Some(pid) = stopped.and_then(|process| pid_of(process.pid)) {
            // An answer changes nothing: what counts is whether the lock becomes free.
            let _ = kill_process(pid, Signal::KILL);
        }
        self.give_up(
            blocker,
            "it was killed, and something still holds its lock: a process in uninterruptible sleep, or one \
             that left its process group",
        )
    }
}

enum Unsent {
    Ended,
    Uncertain,
    Forbidden,
}

/// Signals the group, or the lone process of a command that shares a terminal's group with others. A stopped
/// one is let go on, so that it can hear a SIGTERM.
fn send(command: &Command, path: &Path, signal: Signal) -> Result<(), Unsent> {
    let group = command.group(&process::lock_holders(path));
    let sent = match (group.and_then(pid_of), command.process.life()) {
        (Some(group), _) => {
            kill_process_group(group, signal).and_then(|()| kill_process_group(group, Signal::CONT))
        }
        (None, Life::Alive) => {
            let pid = pid_of(command.process.pid).ok_or(Unsent::Uncertain)?;
            kill_process(pid, signal).and_then(|()| kill_process(pid, Signal::CONT))
        }
        (None, Life::Gone) => return Err(Unsent::Ended),
        (None, Life::Unknown) => return Err(Unsent::Uncertain),
    };
    match sent {
        Ok(()) => Ok(()),
        Err(Errno::SRCH) => Err(Unsent::Ended),
        Err(_) => Err(Unsent::Forbidden),
    }
}

fn pid_of(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}
