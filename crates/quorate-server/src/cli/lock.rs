//! `quorate lock`: one critical section around a command.
//!
//! **Problem.** A script wants that only one of many runs, that it knows under which token, and that it does not run
//! on when the lock is somebody else's. **Rule.** Wait for the lock, run the command under a
//! [guardian](super::guardian) that ends it before the deadline, release the lock when everything has ended, and
//! exit as the command did. A lock may be shared, or have several seats. **Safety.** Whatever happens to this process,
//! the command has ended before the service may let the next one act. **When it fails.** `docs/wrapper.md`.

mod held;
mod sign;
pub(super) mod signals;
pub(super) mod waiting;
pub(super) mod wrapper;

use super::exit::{Code, Failure, Outcome};
use super::{Global, block_on};
use clap::{Args, ValueEnum};
use quorate::error::Code as RefusalCode;
use quorate::{Client, Error, Lock, LockGuard, RwLock, Semaphore, Session};
use signals::{Asked, FORWARDED};
use std::ffi::OsString;
use std::time::Duration;
use waiting::Wait;
use wrapper::{GOODBYE_MAX, WrapArgs, Wrapped, can_be_run, critical_section};

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
    /// Hold it together with others that share it, and never with one that does not
    #[arg(long, conflicts_with = "seats")]
    shared: bool,
    /// How many may hold it at once, each on a seat of its own
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..))]
    seats: Option<u32>,
    /// What to do about a wait that would never end: wait and say so, or exit 73 and name the circle
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnDeadlock::Wait)]
    on_deadlock: OnDeadlock,
    #[command(flatten)]
    wrap: WrapArgs,
    /// What to run, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// What becomes of a wait that is part of a deadlock (RULES R19).
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OnDeadlock {
    /// It goes on; what it waits for is said on standard error, and by `quorate explain deadlock`.
    Wait,
    /// It is given up. Of several that say so the newest is.
    Break,
}

const LONG_HELP: &str = "\
Environment of COMMAND:
  QUORATE_GROUP     the lock's name
  QUORATE_TOKEN     the token of this grant, a number that only grows: for `quorate guard run`, and
                    for every resource that can refuse an older one
  QUORATE_ORDINAL   1: the first in the queue; not with --shared or --seats
  QUORATE_SEAT      the number of the seat: 0, or with --seats K one of 0 to K-1
  QUORATE_PROGRESS  with --progress: the file to touch
  QUORATE_CLUSTER   the cluster that gave the token, 32 hexadecimal digits
  QUORATE_SERVER    where the service is
  QUORATE_SESSION   the number of the session: a `quorate lock` inside COMMAND says by it whose
                    COMMAND it is

When the authority is lost:
  The service is silent, this process is stopped, or an operator closes the session. At deadline
  minus grace COMMAND and everything that it started get SIGTERM, and shortly before the deadline
  SIGKILL. A guardian process of its own does that, so it also happens if this process is stopped;
  and at once if it is killed.

When the lock is asked for:
  By `quorate transfer`, by `quorate group delete --end`, by fewer seats, or since --max-hold is
  over. COMMAND and everything that it started get SIGTERM and the time that they need: nobody
  takes the lock meanwhile. When all have ended it is given back, and the exit code is 75.

Kinds of locks:
  --shared   together with others that say --shared, never with one that does not: readers and
             writers of one name. First come, first served, so no kind starves the other
  --seats K  a semaphore: K hold it at once, each on a seat of its own. The same K for all

Locks inside locks:
  When COMMAND is `quorate lock` again, or starts it, what the inner one waits for the outer one
  waits for too. Two that take the same locks in opposite order may so wait for each other for
  ever, and one that takes its own lock again does. That is a deadlock: it is said on standard
  error and by `quorate explain deadlock`.
  --on-deadlock break  ends a wait that is part of one: of those that say so, the newest. COMMAND
                       was not run, the exit code is 73, what the outer one holds it still holds

Exit codes:
  COMMAND's own, and
  1      something else failed, such as a COMMAND that cannot be run
  2      the command line is wrong, or the lease is shorter than the service can keep
  69     no service can be reached; COMMAND was not run
  73     not granted; COMMAND was not run
  75     the authority was lost, or given up as asked; COMMAND was ended
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
  quorate lock --shared prices -- ./read.sh      with other readers, while nobody writes
  quorate lock --seats 3 licences -- ./render.sh three at once
  quorate lock --max-hold 1h batch -- ./batch.sh asked to end after an hour
  quorate lock stock -- quorate lock --on-deadlock break orders -- ./book.sh
  quorate lock --wait 30s orders -- quorate guard run --state orders.guard orders -- ./append.sh";

/// What is held: a lock alone, a lock together with others, or a seat of several.
enum Kind {
    Alone(Lock),
    Shared(RwLock),
    Seats(Semaphore),
}

/// Says the same of each kind.
macro_rules! stated {
    ($lock:expr, $args:expr) => {{
        let lock = $lock.named($args.wrap.shown.clone().unwrap_or_else(default_name));
        let lock = if let Some(time) = $args.wrap.max_hold { lock.max_hold(time) } else { lock };
        if let Some(every) = $args.wrap.progress { lock.progress(every) } else { lock }
    }};
}
pub(super) use stated;

/// Says the same of each kind that can be part of a deadlock.
macro_rules! breakable {
    ($lock:expr, $args:expr) => {{
        let lock = stated!($lock, $args);
        match $args.on_deadlock {
            OnDeadlock::Wait => lock,
            OnDeadlock::Break => lock.break_deadlock(),
        }
    }};
}

impl Kind {
    fn of(args: &LockArgs, session: &Session) -> Result<Self, Error> {
        let name = &*args.name;
        Ok(match (args.seats, args.shared) {
            (Some(seats), _) => Self::Seats(breakable!(session.semaphore(name, seats)?, args)),
            (None, true) => Self::Shared(breakable!(session.rwlock(name)?, args)),
            (None, false) => Self::Alone(breakable!(session.lock(name)?, args)),
        })
    }

    async fn acquire(&self) -> Result<LockGuard, Error> {
        match self {
            Self::Alone(lock) => lock.acquire().await,
            Self::Shared(lock) => lock.read().await,
            Self::Seats(semaphore) => semaphore.acquire().await,
        }
    }

    async fn try_acquire(&self) -> Result<LockGuard, Error> {
        match self {
            Self::Alone(lock) => lock.try_acquire().await,
            Self::Shared(lock) => lock.try_read().await,
            Self::Seats(semaphore) => semaphore.try_acquire().await,
        }
    }
}

/// Runs the command under the lock.
pub(super) fn run(args: LockArgs, global: &Global) -> Outcome {
    can_be_run(&args.command[0])?;
    block_on(async move {
        let mut asked = Asked::listen(&FORWARDED)?;
        let client = Client::connect(global.server.to_string()).map_err(failure)?;
        let options = args.wrap.session("lock", Some(&args.command[0]), &global.server);
        let session = tokio::select! {
            session = client.session(options) => session.map_err(failure)?,
            signal = asked.next() => return Err(interrupted(signal, &args.name)),
        };
        let done = locked(&args, global, &client, &session, &mut asked).await;
        // Otherwise its lease ends by itself.
        let _ = tokio::time::timeout(GOODBYE_MAX, session.end()).await;
        done
    })
}

async fn locked(
    args: &LockArgs,
    global: &Global,
    client: &Client,
    session: &Session,
    asked: &mut Asked,
) -> Outcome {
    let lock = Kind::of(args, session).map_err(failure)?;
    let wait = Wait { name: &args.name, limit: args.wrap.wait };
    let guard = match args.wrap.try_only {
        true => waiting::attempt(wait, asked, lock.try_acquire()).await?,
        false => waiting::acquire(wait, client, session, asked, lock.acquire()).await?,
    };
    let environment = match lock {
        Kind::Alone(_) => vec![("QUORATE_ORDINAL", "1".to_owned())],
        Kind::Shared(_) | Kind::Seats(_) => Vec::new(),
    };
    let wrapped = Wrapped { verb: "lock", args: &args.wrap, command: &args.command, environment };
    critical_section(&wrapped, global, guard, asked).await
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
        Error::Busy { .. }
        | Error::TimedOut { .. }
        | Error::SessionLost { .. }
        | Error::Closed { .. }
        | Error::Removed { .. }
        | Error::Deadlock { .. } => Code::NotGranted,
        Error::Address { .. } | Error::Name { .. } | Error::Options(_) | Error::LeaseTooShort { .. } => {
            Code::Usage
        }
        // A lease that is longer than any, or a drain than the lease.
        Error::Refused { code: RefusalCode::TooLong, .. } => Code::Usage,
        _ => Code::Failed,
    };
    Failure::new(code, error.to_string())
}

pub(super) fn interrupted(signal: i32, name: &str) -> Failure {
    let code = Code::Signal(u8::try_from(signal).unwrap_or(0));
    Failure::new(code, format!("ended by signal {signal} while it waited for {name}; nothing is held"))
}

/// Says something beside the output of a command, to which standard output belongs. That nobody may read it is no
/// reason to stop.
pub(super) fn say(text: impl std::fmt::Display) {
    use std::io::Write;
    let text = super::output::plain(&text.to_string()).into_owned();
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// A length of time as it is written on a command line.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    match text {
        "0" => Ok(Duration::ZERO),
        _ => humantime::parse_duration(text).map_err(|error| format!("{error}; write it as 30s or 500ms")),
    }
}
