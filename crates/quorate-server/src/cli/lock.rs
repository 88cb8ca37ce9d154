//! `quorate lock`: one critical section around a command.
//!
//! **Problem.** A script wants that only one of many runs, that it knows under which token, and that it does not run
//! on when the lock is somebody else's. **Rule.** Wait for the lock, run the command under a
//! [guardian](super::guardian) that ends it before the deadline, release the lock when everything has ended, and
//! exit as the command did. **Safety.** Whatever happens to this process, the command has ended before the service
//! may let the next one act. **When it fails.** `docs/wrapper.md`.

mod held;
pub(super) mod signals;
mod waiting;

use super::exit::{Code, Failure, Outcome};
use super::guardian::Status;
use super::{Global, block_on};
use clap::Args;
use held::End;
use quorate::{Client, Error, LockGuard, Session, SessionOptions};
use rustix::fs::{Access, access};
use signals::{Asked, FORWARDED};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How long a service that is silent may hold up the end of this process.
const GOODBYE_MAX: Duration = Duration::from_secs(2);

/// `quorate lock NAME -- COMMAND ...`
#[derive(Args, Debug)]
#[command(
    after_help = "COMMAND is told the lock by QUORATE_GROUP, QUORATE_TOKEN and more; `quorate lock --help` \
        shows all, the exit codes, and what no wrapper can stop.",
    after_long_help = LONG_HELP
)]
pub struct LockArgs {
    /// The lock: any name, the same for all who want to exclude each other
    name: String,
    /// Do not wait: exit 73 if somebody holds it
    #[arg(long = "try", conflicts_with = "wait")]
    try_only: bool,
    /// How long to wait for it, such as 5s; by default as long as it takes
    #[arg(long, value_name = "TIME", value_parser = duration)]
    wait: Option<Duration>,
    /// The length of the lease: how long others wait if this machine disappears
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    ttl: Duration,
    /// The name that others see; by default host:pid
    #[arg(long = "name", value_name = "NAME")]
    shown: Option<String>,
    /// How long before the deadline COMMAND is told to end (SIGTERM); by default a sixth of the lease
    #[arg(long, value_name = "TIME", value_parser = duration)]
    grace: Option<Duration>,
    /// Let processes that COMMAND leaves behind go on without the lock, instead of ending them
    #[arg(long)]
    leave_behind: bool,
    /// What to run, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const LONG_HELP: &str = "\
Environment of COMMAND:
  QUORATE_GROUP     the lock's name
  QUORATE_TOKEN     the token of this grant, a number that only grows: for `quorate guard run`, and
                    for every resource that can refuse an older one
  QUORATE_ORDINAL   1: the first in the queue
  QUORATE_SEAT      the number of the seat, which is 0
  QUORATE_CLUSTER   the cluster that gave the token, 32 hexadecimal digits
  QUORATE_SERVER    where the service is

When the authority is lost:
  The service is silent, this process is stopped, or an operator closes the session. At deadline
  minus grace COMMAND and everything that it started get SIGTERM, and shortly before the deadline
  SIGKILL. A guardian process of its own does that, so it also happens if this process is stopped;
  and at once if it is killed.

Exit codes:
  COMMAND's own, and
  1      something else failed, such as a COMMAND that cannot be run
  2      the command line is wrong, or the lease is shorter than the service can keep
  69     no service can be reached; COMMAND was not run
  73     not granted; COMMAND was not run
  75     the authority was lost; COMMAND was ended
  128+n  COMMAND was ended by signal n, or this process while it waited
  If the code is not COMMAND's own, the last line on standard error is `quorate: REASON`.

What no wrapper can stop:
  - a process in uninterruptible sleep (a hanging disk or network file system) ends when that does
  - a process of another user (sudo, set-user-ID programs) ignores an ordinary user's signals
  - what COMMAND asks somebody else to start (a service manager, a container engine, cron, ssh) is
    not its child
  - if this process and its guardian are both stopped, nobody acts until one goes on; if both are
    killed at once, only COMMAND itself is ended, not what it started
  - a pause of the whole virtual machine stops every clock in it
  Against late writes the resource must refuse the older token: see `quorate guard --help`.

Examples:
  quorate lock reports/nightly -- ./report.sh
  quorate lock --try backup -- ./backup.sh       only one machine does it
  quorate lock --wait 30s orders -- quorate guard run --state orders.guard orders -- ./append.sh";

/// Runs the command under the lock.
pub(super) fn run(args: LockArgs, global: &Global) -> Outcome {
    can_be_run(&args.command[0])?;
    block_on(async move {
        let mut asked = Asked::listen(&FORWARDED)?;
        let client = Client::connect(global.server.to_string()).map_err(failure)?;
        let session = tokio::select! {
            session = client.session(args.options()) => session.map_err(failure)?,
            signal = asked.next() => return Err(interrupted(signal, &args.name)),
        };
        let done = critical_section(&args, global, &client, &session, &mut asked).await;
        // Otherwise its lease ends by itself.
        let _ = tokio::time::timeout(GOODBYE_MAX, session.end()).await;
        done
    })
}

async fn critical_section(
    args: &LockArgs,
    global: &Global,
    client: &Client,
    session: &Session,
    asked: &mut Asked,
) -> Outcome {
    let guard = waiting::acquire(args, client, session, asked).await?;
    let end = held::run(args, global, &guard, asked).await;
    let command = args.command[0].display();
    match end {
        End::Command(status) => {
            release(guard, asked).await;
            by_itself(status, &args.command[0])
        }
        End::Failed(failure) => {
            give_up(guard).await;
            Err(failure)
        }
        End::Lost { why, stuck } => {
            give_up(guard).await;
            let stuck = match stuck {
                0 => String::new(),
                n => format!(
                    ", but {n} of its processes cannot be ended (in uninterruptible sleep, or another user's)"
                ),
            };
            let reason = format!("{} was lost: {why}; {command} was ended{stuck}", args.name);
            Err(Failure::new(Code::AuthorityLost, reason))
        }
    }
}

/// The command has ended: says so to the service, and waits until it has heard.
async fn release(guard: LockGuard, asked: &mut Asked) {
    let name = guard.name().clone();
    let released = tokio::select! {
        released = guard.release() => released,
        signal = asked.next() => {
            return say(format!("quorate lock: ended by signal {signal} before {name} was released; its lease \
                ends by itself"));
        }
    };
    match released {
        Ok(()) => {}
        // It had been lost, so there is nothing to release.
        Err(Error::SessionLost { .. } | Error::Closed { .. } | Error::Ended) => {}
        Err(error) => {
            say(format!("quorate lock: {name} is not released yet, its lease ends by itself: {error}"))
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

impl LockArgs {
    fn options(&self) -> SessionOptions {
        let program = Path::new(&self.command[0]).file_name().unwrap_or(&self.command[0]);
        let program: String =
            program.to_string_lossy().chars().filter(|c| !c.is_control()).take(50).collect();
        let pid = std::process::id();
        let options =
            SessionOptions::with_ttl(self.ttl).label(format!("quorate lock -- {program} (pid {pid})"));
        match self.grace {
            Some(grace) => options.warning(grace),
            None => options,
        }
    }
}

/// A command that does not exist is found out before anybody waits for it.
fn can_be_run(command: &OsStr) -> Result<(), Failure> {
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

/// How others see this process.
pub(super) fn default_name() -> String {
    let pid = std::process::id();
    match std::fs::read_to_string("/proc/sys/kernel/hostname") {
        Ok(host) if !host.trim().is_empty() => format!("{}:{pid}", host.trim()),
        _ => format!("pid-{pid}"),
    }
}

/// Whatever the client library refuses, as the end of this command. Nothing is held then.
pub(super) fn failure(error: Error) -> Failure {
    let code = match &error {
        Error::Unreachable { .. } | Error::WaitLost { .. } => Code::Unreachable,
        Error::Busy { .. } | Error::TimedOut { .. } | Error::SessionLost { .. } | Error::Closed { .. } => {
            Code::NotGranted
        }
        Error::Address { .. } | Error::Name { .. } | Error::Options(_) | Error::LeaseTooShort { .. } => {
            Code::Usage
        }
        _ => Code::Failed,
    };
    Failure::new(code, error.to_string())
}

fn interrupted(signal: i32, name: &str) -> Failure {
    let code = Code::Signal(u8::try_from(signal).unwrap_or(0));
    Failure::new(code, format!("ended by signal {signal} while it waited for {name}; nothing is held"))
}

/// Says something beside the output of a command, to which standard output belongs. That nobody may read it is no
/// reason to stop.
pub(super) fn say(text: impl std::fmt::Display) {
    use std::io::Write;
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// A length of time as it is written on a command line.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    match text {
        "0" => Ok(Duration::ZERO),
        _ => humantime::parse_duration(text).map_err(|error| format!("{error}; write it as 30s or 500ms")),
    }
}
