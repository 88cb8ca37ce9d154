//! `quorate guardian`: the process that ends a command in time, whatever happens to the one that holds the lock.
//!
//! **Problem.** The holder of a lock may be stopped, killed or starved at any instant, and its command must still be
//! gone before somebody else acts. **Rule.** Between the holder and the command stands a small process that knows the
//! deadline and needs nobody: one thread, no network, one timer on the clock that counts suspend. It ends the command
//! and every descendant before the deadline, and at once when the holder dies. **Messages.** [`channel`].
//! **Safety.** Whichever of the three dies first, the others end:
//!
//! | dies | what happens |
//! |---|---|
//! | the command | its descendants are ended, the guardian says how it ended, the holder releases |
//! | the holder | the channel closes: the guardian ends the command |
//! | the guardian | the kernel kills the command (parent death signal), and its descendants fall to the holder, which ends them |
//!
//! **When it fails.** RULES R36, and if holder and guardian are both stopped, or both killed: then only the command
//! itself dies for certain. See `docs/wrapper.md`.

mod channel;
mod family;
mod holder;
mod plan;
mod terminal;

pub(super) use channel::{Ended, Report, Status};
pub(super) use holder::{Guardian, Start};
pub(super) use plan::Cause;

use super::exit::{Failure, Outcome};
use channel::{Inbox, Mail, Order};
use clap::{Args, Subcommand};
use family::{Family, reap};
use nix::sys::signal::{SigSet, SigmaskHow, Signal as Masked};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use plan::{Act, Plan};
use quorate::clock::Clock;
use quorate_core::time::{Mono, Span};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, kill_process_group,
    set_parent_process_death_signal, wait,
};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use terminal::Terminal;

/// `quorate guardian ...`, which only `quorate lock` starts.
#[derive(Args)]
pub struct GuardianArgs {
    #[command(subcommand)]
    command: GuardianCommand,
}

#[derive(Subcommand)]
enum GuardianCommand {
    /// Run a command and end it before its deadline; standard input is a channel to the holder
    Watch(WatchArgs),
    /// Become the command, which dies with the guardian
    Become(BecomeArgs),
}

#[derive(Args)]
struct WatchArgs {
    /// How long before the deadline the command is told to end
    #[arg(long)]
    grace_ms: u64,
    /// What its descendants may do that it leaves behind: go on
    #[arg(long)]
    leave_behind: bool,
    /// What the holder holds
    #[arg(long)]
    lock: String,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[derive(Args)]
struct BecomeArgs {
    /// The process that must be its parent
    #[arg(long)]
    guardian: i32,
    /// The signals that were blocked before the guardian blocked all
    #[arg(long, value_delimiter = ',')]
    blocked: Vec<i32>,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

pub(super) fn run(args: GuardianArgs) -> Outcome {
    match args.command {
        GuardianCommand::Watch(args) => watch(&args),
        GuardianCommand::Become(args) => become_command(&args),
    }
}

fn watch(args: &WatchArgs) -> Outcome {
    let watched = Watch::begin(args).and_then(Watch::run);
    if let Err(error) = &watched {
        // Nobody may be there to hear it.
        let why = channel::short(&format!("the guardian failed: {error}"));
        let _ = channel::send(io::stdin(), &Report::NotStarted { why });
    }
    watched.map_err(|error| Failure::failed(format!("the guardian failed: {error}")))
}

/// A command, and everything that is known of it.
struct Watch<'a> {
    args: &'a WatchArgs,
    clock: Clock,
    timer: OwnedFd,
    children: SignalFd,
    inbox: Inbox,
    holder_lives: bool,
    family: Family,
    plan: Plan,
    terminal: Option<Terminal>,
    command: Pid,
    /// It has passed the last step before it becomes the command.
    started: bool,
    status: Option<Status>,
    cause: Option<Cause>,
}

impl<'a> Watch<'a> {
    /// Waits for the order to begin, and starts the command as far as its last step.
    fn begin(args: &'a WatchArgs) -> io::Result<Self> {
        // Signals to a whole job, or to all processes of a service, are the command's to answer.
        let blocked = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let children = SigSet::from_iter([Masked::SIGCHLD]);
        let children = SignalFd::with_flags(&children, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let family = Family::found()?;
        let input = channel::receive_descriptor(io::stdin())?;
        let mut inbox = Inbox::default();
        let (deadline, group) = await_begin(&mut inbox)?;
        let holder = Pid::from_raw(group).ok_or_else(|| io::Error::other("no group"))?;
        let terminal = Terminal::of(input.as_fd(), holder);
        let command = start(args, &blocked, input)?;
        Ok(Self {
            args,
            clock: Clock::new(),
            timer: timer()?,
            children,
            inbox,
            holder_lives: true,
            family,
            plan: Plan::new(deadline, Span::from_millis(args.grace_ms)),
            terminal,
            command,
            started: false,
            status: None,
            cause: None,
        })
    }

    fn run(mut self) -> io::Result<ExitCode> {
        loop {
            let now = self.clock.now();
            if self.look(now) || self.plan.is_stuck(now) {
                return self.ended();
            }
            let due = self.plan.due(now);
            self.act(due, now, Cause::DeadlineNear);
            self.sleep()?;
            while self.children.read_signal()?.is_some() {}
            self.obey()?;
        }
    }

    /// Waits for an order, a child or the next thing that is due.
    fn sleep(&self) -> io::Result<()> {
        set_timer(&self.timer, self.plan.next())?;
        let stdin = io::stdin();
        let mut waits =
            vec![PollFd::new(&self.timer, PollFlags::IN), PollFd::new(&self.children, PollFlags::IN)];
        if self.holder_lives {
            waits.push(PollFd::new(&stdin, PollFlags::IN));
        }
        match poll(&mut waits, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes leave of children that have ended; true if nothing is left to be done.
    fn look(&mut self, now: Mono) -> bool {
        let others = loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if pid == self.command => self.command_changed(status, now),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        if self.status.is_none() {
            return false;
        }
        if others && self.plan.is_acting() && !self.args.leave_behind {
            let count = self.family.count();
            self.report(&Report::LeftBehind { count });
            let act = self.plan.end(now);
            self.act(act, now, Cause::Ordered);
        }
        !others || self.plan.is_acting()
    }

    fn command_changed(&mut self, status: WaitStatus, now: Mono) {
        if let Some(signal) = status.stopping_signal() {
            return match self.started {
                true => self.command_stopped(signal),
                false => self.let_go(now),
            };
        }
        let code = status.exit_status().map(Status::Code);
        self.status = code.or(status.terminating_signal().map(Status::Signal));
    }

    /// Everything is in place: the command may begin, if there is time left.
    fn let_go(&mut self, now: Mono) {
        if self.plan.may_start(now) {
            self.started = true;
            self.let_run();
        } else {
            let act = self.plan.kill(now);
            self.act(act, now, Cause::DeadlineNear);
        }
    }

    fn let_run(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.lend(self.command);
        }
        self.signal_group(Signal::CONT);
    }

    /// The command was stopped. If only since it wanted the terminal, and the job is in the foreground by now, it
    /// gets it.
    fn command_stopped(&self, signal: i32) {
        let Some(terminal) = &self.terminal else {
            return self.report(&Report::Stopped { signal, interactive: false });
        };
        let wanted = [Signal::TTIN, Signal::TTOU].iter().any(|wants| wants.as_raw() == signal);
        if wanted && terminal.lend(self.command) {
            return self.signal_group(Signal::CONT);
        }
        let had = terminal.take_back(self.command);
        let interactive = had || wanted || signal == Signal::TSTP.as_raw();
        self.report(&Report::Stopped { signal, interactive });
    }

    /// Signals the command's group, as long as its number is certainly its own.
    fn signal_group(&self, signal: Signal) {
        if self.status.is_none() {
            // It may have ended just now.
            let _ = kill_process_group(self.command, signal);
        }
    }

    fn act(&mut self, act: Act, now: Mono, cause: Cause) {
        if act == Act::Wait {
            return;
        }
        if self.status.is_none() && self.cause.is_none() {
            self.cause = Some(cause);
            let kill_in = match act {
                Act::Terminate => self.plan.next().since(now),
                _ => Span::ZERO,
            };
            self.report(&Report::Ending { cause, kill_in });
        }
        match act {
            Act::Terminate => {
                self.family.signal(Signal::TERM);
                self.family.signal(Signal::CONT);
            }
            Act::Kill => {
                // A group is signalled in one step, so nobody is born while it is ended.
                self.signal_group(Signal::KILL);
                self.family.signal(Signal::KILL);
            }
            Act::Wait => {}
        }
    }

    /// Does what the holder says, or what its death means.
    fn obey(&mut self) -> io::Result<()> {
        while self.holder_lives {
            let now = self.clock.now();
            match self.inbox.next(io::stdin())? {
                Mail::Message(Order::Extend { deadline }) => self.plan.extend(deadline),
                Mail::Message(Order::Signal { signal }) => {
                    if let Some(signal) = Signal::from_named_raw(signal) {
                        self.signal_group(signal);
                    }
                }
                Mail::Message(Order::Continue) if self.started => self.let_run(),
                Mail::Message(Order::End) => {
                    let act = self.plan.end(now);
                    self.act(act, now, Cause::Ordered);
                }
                Mail::Message(Order::Kill) => {
                    let act = self.plan.kill(now);
                    self.act(act, now, Cause::Lost);
                }
                Mail::Message(Order::Ask) => self.ask(),
                Mail::Message(Order::Begin { .. } | Order::Continue) => {}
                Mail::Empty => return Ok(()),
                Mail::Closed => {
                    self.holder_lives = false;
                    let act = self.plan.end(now);
                    self.act(act, now, Cause::Abandoned);
                }
            }
        }
        Ok(())
    }

    /// Tells the command to end. The plan stays as it is: only the deadline ends it by force.
    fn ask(&mut self) {
        if self.status.is_none() && self.cause.is_none() {
            self.cause = Some(Cause::Asked);
            self.report(&Report::Ending { cause: Cause::Asked, kill_in: Span::ZERO });
        }
        self.family.signal(Signal::TERM);
        self.family.signal(Signal::CONT);
    }

    /// A holder that does not read is found out by its deadline, and one that has died hears nothing.
    fn report(&self, report: &Report) {
        let _ = channel::send(io::stdin(), report);
    }

    fn ended(self) -> io::Result<ExitCode> {
        let stuck = match self.plan.is_stuck(self.clock.now()) && reap() {
            // At least the one that the kernel knows of, where `/proc` does not show it.
            true => self.family.count().max(1),
            false => 0,
        };
        if let Some(terminal) = &self.terminal
            && terminal.take_back(self.command)
            && self.cause.is_some()
        {
            terminal.restore();
        }
        self.report(&Report::Ended(Ended { status: self.status, cause: self.cause, stuck }));
        if !self.holder_lives {
            let (lock, command) = (&self.args.lock, self.args.command[0].display());
            eprintln!("quorate: the process that held {lock} has died, so {command} was ended");
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The deadline, and the holder's process group.
fn await_begin(inbox: &mut Inbox) -> io::Result<(Mono, i32)> {
    let stdin = io::stdin();
    loop {
        match inbox.next(&stdin)? {
            Mail::Message(Order::Begin { deadline, group }) => return Ok((deadline, group)),
            Mail::Message(_) => {}
            Mail::Empty => {
                poll(&mut [PollFd::new(&stdin, PollFlags::IN)], None)?;
            }
            Mail::Closed => return Err(io::Error::other("the holder died before the command began")),
        }
    }
}

/// Starts the command in a group of its own. It stops itself right before it becomes the command.
fn start(args: &WatchArgs, blocked: &SigSet, input: OwnedFd) -> io::Result<Pid> {
    let blocked: Vec<String> = blocked.iter().map(|signal| (signal as i32).to_string()).collect();
    let mut second = Command::new(holder::own_program()?);
    second.arg0("quorate").args(["guardian", "become", "--guardian"]);
    second.arg(getpid().to_string());
    if !blocked.is_empty() {
        second.args(["--blocked", &blocked.join(",")]);
    }
    second.arg("--").args(&args.command).stdin(Stdio::from(input)).process_group(0);
    // It is waited for together with all others, by its number.
    let child = second.spawn()?;
    Ok(Pid::from_child(&child))
}

/// The last step: the kernel shall kill this process when the guardian dies; then it waits to be let go.
fn become_command(args: &BecomeArgs) -> Outcome {
    let command = &args.command[0];
    let failed =
        |error: io::Error| Failure::failed(format!("cannot run {}: {}", command.display(), plain(&error)));
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| failed(error.into()))?;
    if getppid().map(|parent| parent.as_raw_nonzero().get()) != Some(args.guardian) {
        return Err(Failure::failed("the guardian has died"));
    }
    kill_process(getpid(), Signal::STOP).map_err(|error| failed(error.into()))?;
    let blocked = args.blocked.iter().filter_map(|&signal| Masked::try_from(signal).ok());
    SigSet::from_iter(blocked).thread_set_mask().map_err(|error| failed(error.into()))?;
    Err(failed(Command::new(command).args(&args.command[1..]).exec()))
}

/// An error of the system without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

/// A timer on the clock that counts suspend; where it may, one that wakes the machine for it.
fn timer() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    let timer = timerfd_create(TimerfdClockId::BoottimeAlarm, flags)
        .or_else(|_| timerfd_create(TimerfdClockId::Boottime, flags))?;
    Ok(timer)
}

/// Lets it run out then, and forgets that it has run out before.
fn set_timer(timer: &OwnedFd, at: Mono) -> io::Result<()> {
    // A time of zero would switch it off.
    let us = at.0.clamp(1, i64::MAX as u64);
    let it_value = Timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000 * 1_000) as i64 };
    let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value })?;
    Ok(())
}
