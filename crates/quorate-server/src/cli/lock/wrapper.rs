//! The wrapper: holds a seat while a command runs, for whatever kind of seat it is.
//!
//! **Rule.** The command runs under a [guardian](crate::cli::guardian) that ends it before the deadline; the seat is
//! given back when everything has ended. A holder that is asked to stop tells the command to end, waits for that, and
//! only then gives the seat back: so the one that asked gets it, or the asking fails (RULES R11). **When it fails.**
//! `docs/wrapper.md`.

use super::held::{self, End};
use super::signals::Asked;
use super::{duration, say};
use crate::cli::Global;
use crate::cli::exit::{Code, Failure, Outcome};
use crate::cli::guardian::Status;
use crate::cli::servers::Servers;
use clap::Args;
use quorate::{Error, LockGuard, SessionOptions};
use quorate_core::id::SessionId;
use rustix::fs::{Access, access};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How long a service that is silent may hold up the end of this process.
pub(in crate::cli) const GOODBYE_MAX: Duration = Duration::from_secs(2);

/// How a seat is asked for and held while a command runs.
#[derive(Args, Debug)]
pub(in crate::cli) struct WrapArgs {
    /// Do not wait: exit 73 if it is not free
    #[arg(long = "try", conflicts_with = "wait")]
    pub(in crate::cli) try_only: bool,
    /// How long to wait for it, such as 5s; by default as long as it takes
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(in crate::cli) wait: Option<Duration>,
    /// The length of the lease: how long others wait if this machine disappears
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    pub(in crate::cli) ttl: Duration,
    /// The name that others see; by default host:pid
    #[arg(long = "name", value_name = "NAME")]
    pub(in crate::cli) shown: Option<String>,
    /// How long before the deadline COMMAND is told to end (SIGTERM); by default a sixth of the lease
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(in crate::cli) grace: Option<Duration>,
    /// How long it is held at most: then COMMAND is told to end (SIGTERM), and has the time that it needs
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    pub(in crate::cli) max_hold: Option<Duration>,
    /// How often COMMAND will touch the file $QUORATE_PROGRESS; without that it is shown as stalled
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    pub(in crate::cli) progress: Option<Duration>,
    /// Let processes that COMMAND leaves behind go on without it, instead of ending them
    #[arg(long)]
    pub(in crate::cli) leave_behind: bool,
}

/// A length of time that is one.
pub(in crate::cli) fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it must be longer than nothing".into()),
        time => Ok(time),
    }
}

/// A command, and what it runs under.
#[derive(Debug)]
pub(in crate::cli) struct Wrapped<'a> {
    /// The word after `quorate` that was given.
    pub(in crate::cli) verb: &'static str,
    pub(in crate::cli) args: &'a WrapArgs,
    pub(in crate::cli) command: &'a [OsString],
    /// What the command is told beside what is told to all.
    pub(in crate::cli) environment: Vec<(&'static str, String)>,
}

impl WrapArgs {
    /// The session of a process that holds a seat for `command`, or for itself.
    pub(in crate::cli) fn session(
        &self,
        verb: &str,
        command: Option<&OsStr>,
        server: &Servers,
    ) -> SessionOptions {
        let program = command.map(|command| {
            let program = Path::new(command).file_name().unwrap_or(command).to_string_lossy();
            format!(" -- {}", program.chars().filter(|c| !c.is_control()).take(50).collect::<String>())
        });
        let (program, pid) = (program.unwrap_or_default(), std::process::id());
        let options =
            SessionOptions::with_ttl(self.ttl).label(format!("quorate {verb}{program} (pid {pid})"));
        let options = match self.grace {
            Some(grace) => options.warning(grace),
            None => options,
        };
        match outer(server) {
            Some(outer) => options.acts_for(outer),
            None => options,
        }
    }
}

/// The session of the wrapper whose command this process is, or was started by: it goes on when this one has ended,
/// so it waits for what this one waits for (RULES R19). Another service's is none.
fn outer(server: &Servers) -> Option<SessionId> {
    let same = std::env::var("QUORATE_SERVER").ok()?.parse::<Servers>().ok()? == *server;
    let session = std::env::var("QUORATE_SESSION").ok()?;
    session.parse().ok().filter(|_| same).map(SessionId)
}

/// Runs the command under the seat, gives the seat back, and exits as the command did.
pub(in crate::cli) async fn critical_section(
    wrapped: &Wrapped<'_>,
    global: &Global,
    guard: LockGuard,
    asked: &mut Asked,
) -> Outcome {
    let end = held::run(wrapped, global, &guard, asked).await;
    let (command, name) = (wrapped.command[0].display(), guard.name().clone());
    match end {
        End::Command(status) => {
            release(wrapped.verb, guard, asked).await;
            by_itself(status, &wrapped.command[0])
        }
        End::Failed(failure) => {
            give_up(guard).await;
            Err(failure)
        }
        End::Lost { why, stuck, asked } => {
            give_up(guard).await;
            let stuck = match stuck {
                0 => String::new(),
                n => format!(
                    ", but {n} of its processes cannot be ended (in uninterruptible sleep, or another user's)"
                ),
            };
            let reason = match asked {
                true => format!("{name} was given up, as asked: {why}; {command} was ended{stuck}"),
                false => format!("{name} was lost: {why}; {command} was ended{stuck}"),
            };
            Err(Failure::new(Code::AuthorityLost, reason))
        }
    }
}

/// The command has ended: says so to the service, and waits until it has heard.
async fn release(verb: &str, guard: LockGuard, asked: &mut Asked) {
    let name = guard.name().clone();
    let released = tokio::select! {
        released = guard.release() => released,
        signal = asked.next() => {
            return say(format!("quorate {verb}: ended by signal {signal} before {name} was released; its lease \
                ends by itself"));
        }
    };
    match released {
        Ok(()) => {}
        // It had been lost, so there is nothing to release.
        Err(Error::SessionLost { .. } | Error::Closed { .. } | Error::Removed { .. } | Error::Ended) => {}
        Err(error) => {
            say(format!("quorate {verb}: {name} is not released yet, its lease ends by itself: {error}"))
        }
    }
}

/// The authority is gone or about to be: the service is told if it can be.
async fn give_up(guard: LockGuard) {
    let limit = guard.remaining().min(GOODBYE_MAX);
    // Otherwise its lease ends by itself.
    let _ = tokio::time::timeout(limit, guard.release()).await;
}

fn by_itself(status: Status, command: &OsStr) -> Outcome {
    match status {
        Status::Code(code) => Ok(ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1))),
        Status::Signal(signal) => {
            let code = Code::Signal(u8::try_from(signal).unwrap_or(0));
            Err(Failure::new(code, format!("{} was ended by signal {signal}", command.display())))
        }
    }
}

/// A command that does not exist is found out before anybody waits for it.
pub(in crate::cli) fn can_be_run(command: &OsStr) -> Result<(), Failure> {
    let may = |path: &Path| path.is_file() && access(path, Access::EXEC_OK).is_ok();
    let (found, why) = if Path::new(command).components().count() > 1 {
        (may(Path::new(command)), "it is not there, or may not be run")
    } else {
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
        let mut places = std::env::split_paths(&path).map(|place: PathBuf| place.join(command));
        (places.any(|place| may(&place)), "no such program in PATH")
    };
    match found {
        true => Ok(()),
        false => Err(Failure::failed(format!("cannot run {}: {why}", command.display()))),
    }
}
