//! A command inside a scope.
//!
//! It is started in two steps. This process starts *itself* again, with the scope's lock inherited and,
//! unless a terminal is at its input, in a process group of its own. That second process writes itself down
//! as the one inside, and only then becomes the command (`exec` keeps its number, its group and the lock).
//! So there is no instant in which the command runs and nobody could say which process it is, even if this
//! one is killed in between (RULES R33).

use super::super::exit::{Code, Failure, Outcome};
use clap::Args;
use quorate::guard::{Offer, Permit};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

/// The arguments of the second process.
#[derive(Args)]
pub(super) struct BecomeArgs {
    /// The scope's lock file
    #[arg(long)]
    scope: PathBuf,
    /// What to become
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// How the command ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended(ExitStatus);

/// Whom a signal to this process is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// The command leads a group of its own; nobody else signals it.
    Group,
    /// The command shares the terminal's group with this process, so the terminal signals both.
    Process,
}

impl Ended {
    /// The command's own code, or 128 and the signal that ended it.
    pub(super) fn outcome(self, command: &OsStr) -> Outcome {
        match (self.0.code(), self.0.signal()) {
            (Some(code), _) => Ok(ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1))),
            (None, signal) => {
                let signal = u8::try_from(signal.unwrap_or(0)).unwrap_or(0);
                let reason = format!("{} was ended by signal {signal}", command.display());
                Err(Failure::new(Code::Signal(signal), reason))
            }
        }
    }
}

/// Runs the command inside the permit's scope and waits for its end.
pub(super) fn run(
    permit: &Permit,
    offer: Offer,
    state: &Path,
    command: &[OsString],
) -> Result<Ended, Failure> {
    super::super::block_on(async {
        let mut signals = ForwardedSignals::listen()?;
        let reach = match std::io::stdin().is_terminal() {
            true => Reach::Process,
            false => Reach::Group,
        };
        let mut child = start(permit, offer, state, command, reach)?;
        loop {
            tokio::select! {
                ended = child.wait() => {
                    return ended.map(Ended).map_err(|error| {
                        Failure::failed(format!("cannot wait for {}: {error}", command[0].display()))
                    });
                }
                signal = signals.next() => forward(&child, reach, signal),
            }
        }
    })
}

fn start(
    permit: &Permit,
    offer: Offer,
    state: &Path,
    command: &[OsString],
    reach: Reach,
) -> Result<Child, Failure> {
    let failed = |error| Failure::failed(format!("cannot start {}: {error}", command[0].display()));
    let scope = permit
        .scope_path()
        .ok_or_else(|| Failure::failed("this guard has no lock that a command could inherit"))?;
    let mut second = Command::new(own_program().map_err(failed)?);
    second
        .args(["guard", "become", "--scope"])
        .arg(scope)
        .arg("--")
        .args(command)
        .env("QUORATE_TOKEN", offer.token.to_string())
        .env("QUORATE_SEAT", offer.seat.to_string())
        .env("QUORATE_RESOURCE", permit.resource().as_str())
        .env("QUORATE_GUARD", state);
    if let Some(cluster) = offer.cluster {
        second.env("QUORATE_CLUSTER", cluster.to_string());
    }
    if reach == Reach::Group {
        second.process_group(0);
    }
    // This process has one thread, so nothing else is started while the lock can be inherited.
    let lock = permit.inheritable().map_err(failed)?;
    let started = second.spawn().map_err(failed);
    drop(lock);
    started
}

/// This very program, even if its file has been replaced since.
fn own_program() -> std::io::Result<PathBuf> {
    let running = Path::new("/proc/self/exe");
    match running.exists() {
        true => Ok(running.into()),
        false => std::env::current_exe(),
    }
}

/// The second step: makes itself known as the one inside, and becomes the command.
pub(super) fn become_command(args: &BecomeArgs) -> Outcome {
    quorate::guard::become_command(&args.scope)
        .map_err(|error| Failure::failed(format!("cannot write down who is inside: {error}")))?;
    let failed = std::process::Command::new(&args.command[0]).args(&args.command[1..]).exec();
    Err(Failure::failed(format!("cannot run {}: {failed}", args.command[0].display())))
}

/// What a terminal sends to its group already is not sent twice.
fn forward(child: &Child, reach: Reach, signal: Signal) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    let Some(pid) = pid else {
        return;
    };
    // A command that has just ended cannot be signalled, and need not be.
    let _ = match reach {
        Reach::Group => kill_process_group(pid, signal),
        Reach::Process if signal == Signal::TERM => kill_process(pid, signal),
        Reach::Process => Ok(()),
    };
}

/// The signals that ask a program to end. They are the command's to answer: this process ends after it.
struct ForwardedSignals {
    interrupt: Signals,
    terminate: Signals,
    hangup: Option<Signals>,
    quit: Signals,
}

impl ForwardedSignals {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::failed(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            // Under `nohup` it is ignored, and the command is to go on ignoring it.
            hangup: (!is_ignored(Signal::HUP)).then(|| listen(SignalKind::hangup())).transpose()?,
            quit: listen(SignalKind::quit())?,
        })
    }

    async fn next(&mut self) -> Signal {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = hangup => Signal::HUP,
            _ = self.quit.recv() => Signal::QUIT,
        }
    }
}

/// Whether whoever started this process made it ignore a signal.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}
