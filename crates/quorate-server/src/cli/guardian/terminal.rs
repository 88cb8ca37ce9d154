//! The terminal, lent to a command in a process group of its own and taken back.
//!
//! Only the foreground group may read from a terminal and hears its keys. The command gets it if the holder's group
//! has it when it starts or is continued, and the holder's group gets it back when the command stops or ends.
//! The guardian does this from the background, which it may since it blocks the signal that would stop it (SIGTTOU).

use rustix::process::Pid;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};
use std::os::fd::{BorrowedFd, OwnedFd};

/// The terminal at the command's standard input.
#[derive(Debug)]
pub(super) struct Terminal {
    descriptor: OwnedFd,
    holder: Pid,
    modes: Option<Termios>,
}

impl Terminal {
    /// The terminal, if there is one and it is the one that controls this session.
    pub(super) fn of(input: BorrowedFd<'_>, holder: Pid) -> Option<Self> {
        if !isatty(input) || tcgetpgrp(input).is_err() {
            return None;
        }
        let descriptor = input.try_clone_to_owned().ok()?;
        let modes = tcgetattr(&descriptor).ok();
        Some(Self { descriptor, holder, modes })
    }

    /// Lends it to the command; true if it was the holder's to lend.
    pub(super) fn lend(&self, command: Pid) -> bool {
        self.pass(self.holder, command)
    }

    /// Takes it back; true if the command had it.
    pub(super) fn take_back(&self, command: Pid) -> bool {
        self.pass(command, self.holder)
    }

    /// Puts its modes back as they were: a command that was ended could not.
    pub(super) fn restore(&self) {
        if let Some(modes) = &self.modes {
            // A terminal that has gone has no modes.
            let _ = tcsetattr(&self.descriptor, OptionalActions::Now, modes);
        }
    }

    fn pass(&self, from: Pid, to: Pid) -> bool {
        // A terminal that has hung up has no foreground any more.
        tcgetpgrp(&self.descriptor) == Ok(from) && tcsetpgrp(&self.descriptor, to).is_ok()
    }
}
