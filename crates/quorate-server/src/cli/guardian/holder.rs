//! The holder's end: it starts a guardian, tells it each new deadline, and hears how the command is.
//!
//! **Rule.** Nothing here waits for the guardian: what it does not read is lost, and if it has not ended the command
//! when it should have, the holder ends both ([`Guardian::end_all`]).

use super::channel::{self, Inbox, Mail, Order, Report};
use super::family::{Family, reap};
use super::plan::Plan;
use quorate::clock::Clock;
use quorate_core::time::{Mono, Span};
use rustix::process::{Signal, getpgrp};
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Pair;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// How often it is looked whether somebody is left.
const SWEEP: Duration = Duration::from_millis(5);

/// How long somebody who cannot be ended is waited for.
const STUCK: Duration = Duration::from_secs(1);

/// What a guardian is started with.
#[derive(Debug)]
pub(in super::super) struct Start<'a> {
    /// The command and its arguments.
    pub(in super::super) command: &'a [OsString],
    /// What is added to its environment.
    pub(in super::super) environment: Vec<(&'static str, String)>,
    /// What is held.
    pub(in super::super) lock: &'a str,
    /// How long before its deadline the command is told to end.
    pub(in super::super) grace: Span,
    /// Whether its descendants may outlive it.
    pub(in super::super) leave_behind: bool,
    /// Until when it may act.
    pub(in super::super) deadline: Mono,
}

/// By how much a deadline must move to be told: more than two readings of the clock lie apart.
const NEWS: Span = Span::from_millis(1);

/// A running guardian.
#[derive(Debug)]
pub(in super::super) struct Guardian {
    process: Child,
    channel: UnixStream,
    inbox: Inbox,
    family: Family,
    grace: Span,
    deadline: Mono,
}

impl Guardian {
    /// Starts a guardian, and it the command. This process becomes the heir of both.
    ///
    /// # Errors
    /// What the system said.
    pub(in super::super) fn start(start: &Start<'_>) -> io::Result<Self> {
        let family = Family::found()?;
        let (ours, theirs) = Pair::pair()?;
        ours.set_nonblocking(true)?;
        let mut guardian = Command::new(own_program()?);
        guardian
            .arg0("quorate")
            .args(["guardian", "watch", &format!("--lock={}", start.lock)])
            .args(["--grace-ms", &start.grace.as_millis().to_string()])
            .args(start.leave_behind.then_some("--leave-behind"))
            .arg("--")
            .args(start.command)
            .envs(start.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // What a terminal sends to the holder's group is not meant for it.
            .process_group(0);
        let process = guardian.spawn()?;
        drop(guardian); // It holds the other end, whose only owner shall be the guardian.
        channel::send_descriptor(&ours, io::stdin().as_fd())?;
        let group = getpgrp().as_raw_nonzero().get();
        channel::send(&ours, &Order::Begin { deadline: start.deadline, group })?;
        let channel = UnixStream::from_std(ours)?;
        let (grace, deadline) = (start.grace, start.deadline);
        Ok(Self { process, channel, inbox: Inbox::default(), family, grace, deadline })
    }

    /// The next thing that it tells; none if it has died. A dropped future loses nothing.
    pub(in super::super) async fn told(&mut self) -> Option<Report> {
        loop {
            let (channel, inbox) = (&self.channel, &mut self.inbox);
            let next = channel.try_io(Interest::READABLE, || match inbox.next(channel)? {
                Mail::Empty => Err(ErrorKind::WouldBlock.into()),
                Mail::Message(report) => Ok(Some(report)),
                Mail::Closed => Ok(None),
            });
            match next {
                Ok(told) => return told,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
            if channel.readable().await.is_err() {
                return None;
            }
        }
    }

    /// The command may act until then. Whether that is news.
    pub(in super::super) fn extend(&mut self, deadline: Mono) -> bool {
        let moved = deadline > self.deadline + NEWS;
        if moved {
            self.deadline = deadline;
            self.order(&Order::Extend { deadline });
        }
        moved
    }

    /// Passes a signal on to the command's group.
    pub(in super::super) fn signal(&self, signal: i32) {
        self.order(&Order::Signal { signal });
    }

    /// Lets a stopped command run again.
    pub(in super::super) fn let_run(&self) {
        self.order(&Order::Continue);
    }

    /// Tells the command to end, and ends it after its grace.
    pub(in super::super) fn end(&self) {
        self.order(&Order::End);
    }

    /// Tells the command to end, and lets it take its time.
    pub(in super::super) fn ask(&self) {
        self.order(&Order::Ask);
    }

    /// Ends the command.
    pub(in super::super) fn kill(&self) {
        self.order(&Order::Kill);
    }

    fn order(&self, order: &Order) {
        // One that does not read is overdue soon; one that has died is heard of.
        let _ = channel::send(&self.channel, order);
    }

    /// Whether the command should have been ended by now.
    pub(in super::super) fn is_overdue(&self, now: Mono) -> bool {
        let lead = Plan::lead(self.grace).as_millis();
        now >= self.deadline - Span::from_millis(lead / 2)
    }

    /// Ends the guardian, with it the command, and everything that they started; it does not return before. How
    /// many cannot be ended.
    pub(in super::super) async fn end_all(&mut self) -> u32 {
        // It may be dead already.
        let _ = self.process.kill();
        let clock = Clock::new();
        let limit = clock.now().max(self.deadline) + Span::from_millis(STUCK.as_millis() as u64);
        loop {
            self.family.signal(Signal::KILL);
            reap();
            match self.family.count() {
                0 => return 0,
                stuck if clock.now() >= limit => return stuck,
                _ => tokio::time::sleep(SWEEP).await,
            }
        }
    }
}

/// This very program, even if its file has been replaced since.
pub(super) fn own_program() -> io::Result<PathBuf> {
    let running = Path::new("/proc/self/exe");
    match running.exists() {
        true => Ok(running.into()),
        false => std::env::current_exe(),
    }
}
