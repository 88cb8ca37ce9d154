//! `quorate bench`: how fast a service grants, measured as a program would meet it.
//!
//! **Problem.** A figure of speed that nobody can take again is worth nothing, and one that is not of what users
//! do is worth less. **Rule.** Each client has a connection and a session of its own and goes through the same
//! library as every program; a cycle is an acquire and a release, each answered by the service and therefore on
//! its disk. The first half second is not counted. **Cost.** The load runs on one thread, or as many as
//! `--threads` says, beside whatever else this machine does: if it is the service's machine, both share its CPUs.
//!
//! `lock` gives each client a name of its own, so nobody waits for another. `handoff` puts all on one name and
//! times how a seat passes on: from just before the holder's release to the next holder's grant. `waiters` does so
//! with ten and with ten thousand that wait.
//!
//! What comparing with others takes (the same disk, the same minute) is in `benchmarks/README.md`.

mod waiters;

use super::Global;
use super::exit::{Code, Failure, Outcome};
use super::output::{self, Rows};
use clap::{Args, Subcommand};
use futures::{StreamExt, TryStreamExt, stream};
use hdrhistogram::Histogram;
use quorate::{Client, Error, Lock, Session, SessionOptions};
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What is run before anything is counted: connections settle, buffers grow.
const WARM_UP: Duration = Duration::from_millis(500);

/// How many sessions are opened or ended at a time. Enough to share commits, too few to look like an attack.
const AT_ONCE: usize = 64;

/// How long a client pauses after a failed cycle, so that an ailing service is not hammered.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);

/// The longest time that is told from longer ones: an hour, in microseconds.
const TIME_MAX: u64 = 3_600_000_000;

/// How often a terminal is told how it goes.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// How long the sessions may take to end; what is left then ends with its lease.
const END_WITHIN: Duration = Duration::from_secs(5);

/// `quorate bench ...`
#[derive(Subcommand, Clone, Debug)]
pub enum BenchCommand {
    /// Acquire and release, each client its own lock
    Lock(LockArgs),
    /// Pass one lock from hand to hand
    Handoff(HandoffArgs),
    /// Pass one lock on while ten thousand wait for it, and while ten do
    Waiters(waiters::WaitersArgs),
}

/// `quorate bench lock`
#[derive(Args, Clone, Debug)]
pub struct LockArgs {
    /// How many clients, each with its own connection, session and lock
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    #[command(flatten)]
    load: Load,
}

/// `quorate bench handoff`
#[derive(Args, Clone, Debug)]
pub struct HandoffArgs {
    /// How many clients wait while one holds
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    waiters: u32,
    /// How long each holds the lock
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = humantime::parse_duration)]
    hold: Duration,
    #[command(flatten)]
    load: Load,
}

/// What all of them have.
#[derive(Args, Clone, Copy, Debug)]
struct Load {
    /// How long to measure, after half a second of warm-up
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,
    /// Threads that make the load
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "give a number of seconds, such as 5".to_owned())?;
    match (0.1..=86_400.0).contains(&seconds) {
        true => Ok(seconds),
        false => Err("give 0.1 to 86400 seconds".into()),
    }
}

/// Runs a measurement and prints what it found.
///
/// # Errors
/// The service cannot be reached, sessions are refused, or no cycle succeeded. Interrupted, it prints what was
/// measured by then and ends as signals end.
pub fn run(command: &BenchCommand, global: &Global) -> Outcome {
    match command {
        BenchCommand::Lock(args) => with_sessions(args.load, args.clients, global, async |sessions| {
            lock(args, sessions, global).await
        }),
        BenchCommand::Handoff(args) => with_sessions(args.load, args.waiters + 1, global, async |sessions| {
            handoff(args, sessions, global).await
        }),
        BenchCommand::Waiters(args) => waiters::run(args, global),
    }
}

/// Runs one measurement over sessions that are opened for it and ended after it.
fn with_sessions(
    load: Load,
    clients: u32,
    global: &Global,
    work: impl AsyncFnOnce(&[Session]) -> Result<Measured, Failure>,
) -> Outcome {
    runtime(load.threads)?.block_on(async {
        let sessions = open(global, clients).await?;
        let measured = work(&sessions).await;
        end(sessions).await;
        measured?.outcome(load)
    })
}

fn runtime(threads: u16) -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder
        .worker_threads(usize::from(threads))
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start: {error}")))
}

async fn lock(args: &LockArgs, sessions: &[Session], global: &Global) -> Result<Measured, Failure> {
    let run = run_name();
    let locks = sessions.iter().enumerate().map(|(i, session)| lock_of(session, format!("{run}/{i}")));
    let tally = Arc::new(Tally::default());
    let mut clients = JoinSet::new();
    for lock in locks.collect::<Result<Vec<_>, _>>()? {
        clients.spawn(acquire_and_release(lock, Arc::clone(&tally)));
    }
    let measured = measure(args.load, clients, &tally).await;
    if global.json {
        output::json(&measured.json("lock", "cycles", json!({ "clients": args.clients })))?;
    } else {
        let one = args.clients == 1;
        let (clients, each) =
            if one { ("1 client".into(), "") } else { (format!("{} clients", args.clients), "each ") };
        let what = format!("lock: {clients}, {each}with its own connection, session and lock");
        measured.print(&what, "cycles")?;
    }
    Ok(measured)
}

async fn handoff(args: &HandoffArgs, sessions: &[Session], global: &Global) -> Result<Measured, Failure> {
    let run = run_name();
    let locks = sessions.iter().map(|session| lock_of(session, run.clone()));
    let tally = Arc::new(Tally::default());
    let mut clients = JoinSet::new();
    for lock in locks.collect::<Result<Vec<_>, _>>()? {
        clients.spawn(take_turns(lock, args.hold, Arc::clone(&tally)));
    }
    let measured = measure(args.load, clients, &tally).await;
    let hold_ms = rounded(args.hold.as_secs_f64() * 1_000.0);
    if global.json {
        let conditions = json!({ "waiters": args.waiters, "hold_ms": hold_ms });
        output::json(&measured.json("handoff", "handoffs", conditions))?;
    } else {
        let waiters = if args.waiters == 1 { "1 waiter".into() } else { format!("{} waiters", args.waiters) };
        let what = format!(
            "handoff: 1 holder and {waiters} on one lock, held {hold_ms} ms each; from just before the release \
             to the next grant"
        );
        measured.print(&what, "handoffs")?;
    }
    Ok(measured)
}

/// Opens the sessions, each with a connection of its own.
async fn open(global: &Global, clients: u32) -> Result<Vec<Session>, Failure> {
    let addresses = global.server.to_string();
    let label = format!("quorate bench (pid {})", std::process::id());
    let one = |_| async {
        let client = Client::connect(addresses.clone())?;
        client.session(SessionOptions::default().label(label.clone())).await
    };
    stream::iter(0..clients).map(one).buffer_unordered(AT_ONCE).try_collect().await.map_err(failure)
}

/// Ends the sessions, so that nothing is left of the run.
async fn end(sessions: Vec<Session>) {
    let ending = stream::iter(sessions).for_each_concurrent(AT_ONCE, |session| async move {
        // One that cannot be ended ends with its lease.
        let _ = session.end().await;
    });
    let _ = tokio::time::timeout(END_WITHIN, ending).await;
}

/// A name that no other run has.
fn run_name() -> String {
    format!("bench/{:08x}", rand::random::<u32>())
}

fn lock_of(session: &Session, name: String) -> Result<Lock, Failure> {
    session.lock(name).map_err(failure)
}

fn failure(error: Error) -> Failure {
    let code = match error {
        Error::Unreachable { .. } => Code::Unreachable,
        Error::Address { .. } | Error::Name { .. } | Error::Options(_) => Code::Usage,
        _ => Code::Failed,
    };
    Failure::new(code, error.to_string())
}

/// One client of `lock`, until its session is over.
async fn acquire_and_release(lock: Lock, tally: Arc<Tally>) {
    loop {
        let started = Instant::now();
        let cycle = async { lock.acquire().await?.release().await };
        match cycle.await {
            Ok(()) => tally.passed(started, Instant::now()),
            Err(error) => {
                if failed(&error, &tally).await {
                    return;
                }
            }
        }
    }
}

/// One client of `handoff`, until its session is over.
async fn take_turns(lock: Lock, hold: Duration, tally: Arc<Tally>) {
    loop {
        let turn = async {
            let guard = lock.acquire().await?;
            tally.granted(Instant::now());
            // The runtime's own timer would round the time up to a whole millisecond more.
            let held = tokio::task::spawn_blocking(move || std::thread::sleep(hold)).await;
            debug_assert!(held.is_ok(), "sleeping does not panic");
            tally.releasing(Instant::now());
            guard.release().await
        };
        if let Err(error) = turn.await
            && failed(&error, &tally).await
        {
            return;
        }
    }
}

/// Notes a failure; true if the client's session is over with it.
async fn failed(error: &Error, tally: &Tally) -> bool {
    tally.failed(error);
    tokio::time::sleep(PAUSE_AFTER_ERROR).await;
    matches!(error, Error::Closed { .. } | Error::Ended | Error::Protocol(_))
}

/// What the clients have measured so far.
#[derive(Default)]
struct Tally(Mutex<Counted>);

struct Counted {
    /// From when on it counts.
    since: Option<Instant>,
    /// In microseconds.
    times: Histogram<u64>,
    /// Just before the last release of `handoff`.
    released: Option<Instant>,
    errors: u64,
    first_error: Option<String>,
}

impl Default for Counted {
    fn default() -> Self {
        let times = Histogram::new_with_max(TIME_MAX, 3).expect("three digits are within what it allows");
        Self { since: None, times, released: None, errors: 0, first_error: None }
    }
}

impl Tally {
    fn begin(&self, now: Instant) {
        let begun = Counted { since: Some(now), ..Counted::default() };
        *self.lock() = begun;
    }

    /// Something took from `started` to `now`. It counts if it began after the warm-up.
    fn passed(&self, started: Instant, now: Instant) {
        let mut counted = self.lock();
        if counted.since.is_some_and(|since| started >= since) {
            let micros = u64::try_from((now - started).as_micros()).unwrap_or(u64::MAX);
            counted.times.saturating_record(micros.max(1));
        }
    }

    fn releasing(&self, now: Instant) {
        self.lock().released = Some(now);
    }

    fn granted(&self, now: Instant) {
        let released = self.lock().released.take();
        if let Some(released) = released {
            self.passed(released, now);
        }
    }

    fn failed(&self, error: &Error) {
        let mut counted = self.lock();
        counted.errors += 1;
        counted.first_error.get_or_insert_with(|| error.to_string());
    }

    fn count(&self) -> u64 {
        self.lock().times.len()
    }

    /// No code that holds the lock can panic, so a poisoned one is whole.
    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets the clients run for the time asked, or until a signal or the end of all of them.
async fn measure(load: Load, mut clients: JoinSet<()>, tally: &Tally) -> Measured {
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    let mut signalled = false;
    let begin = Instant::now() + WARM_UP;
    tokio::select! {
        () = tokio::time::sleep_until(begin) => {}
        _ = &mut interrupted => signalled = true,
    }
    let begun = Instant::now();
    tally.begin(begun);
    let finish = begun + Duration::from_secs_f64(load.seconds);
    let mut progress = Progress::new(load.seconds);
    while !signalled && Instant::now() < finish {
        tokio::select! {
            _ = &mut interrupted => signalled = true,
            () = tokio::time::sleep_until(finish.min(Instant::now() + PROGRESS_EVERY)) => {
                progress.show(begun.elapsed(), tally.count());
            }
            ended = clients.join_next() => if ended.is_none() { break },
        }
    }
    let elapsed = begun.elapsed();
    let counted = std::mem::take(&mut *tally.lock());
    progress.clear();
    clients.shutdown().await;
    Measured { counted, elapsed, signalled }
}

/// The line that a person watches.
struct Progress {
    seconds: f64,
    on: bool,
}

impl Progress {
    fn new(seconds: f64) -> Self {
        Self { seconds, on: io::stderr().is_terminal() }
    }

    fn show(&mut self, elapsed: Duration, count: u64) {
        if self.on {
            let (now, of) = (elapsed.as_secs_f64(), self.seconds);
            self.write(&format!("\r\x1b[K{now:.1} s of {of} s, {count} so far"));
        }
    }

    fn clear(&mut self) {
        if self.on {
            self.write("\r\x1b[K");
        }
    }

    fn write(&mut self, text: &str) {
        let mut terminal = io::stderr().lock();
        self.on = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush()).is_ok();
    }
}

/// What came of a run.
struct Measured {
    counted: Counted,
    elapsed: Duration,
    signalled: bool,
}

impl Measured {
    fn count(&self) -> u64 {
        self.counted.times.len()
    }

    fn per_second(&self) -> f64 {
        rounded(self.count() as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON))
    }

    fn ms(&self, quantile: f64) -> f64 {
        rounded(self.counted.times.value_at_quantile(quantile) as f64 / 1_000.0)
    }

    fn json(&self, bench: &str, what: &str, conditions: Value) -> Value {
        let mut object = json!({
            "bench": bench,
            "seconds": rounded(self.elapsed.as_secs_f64()),
            what: self.count(),
            format!("{what}_per_second"): self.per_second(),
            "p50_ms": self.ms(0.5),
            "p99_ms": self.ms(0.99),
            "p999_ms": self.ms(0.999),
            "errors": self.counted.errors,
        });
        if let (Some(object), Value::Object(conditions)) = (object.as_object_mut(), conditions) {
            object.extend(conditions);
        }
        object
    }

    fn print(&self, what: &str, counted: &str) -> Result<(), Failure> {
        let per_second = format!(">{counted}/s");
        let mut rows =
            Rows::new(&[&per_second, ">p50 ms", ">p99 ms", ">p99.9 ms", &format!(">{counted}"), ">errors"]);
        let ms = |quantile| format!("{:.2}", self.ms(quantile));
        rows.row([
            format!("{:.0}", self.per_second()),
            ms(0.5),
            ms(0.99),
            ms(0.999),
            self.count().to_string(),
            self.counted.errors.to_string(),
        ]);
        output::line(format!("{what}\n{:.1} s\n\n{}", self.elapsed.as_secs_f64(), rows.render()))
    }

    fn outcome(&self, load: Load) -> Outcome {
        let error = self.counted.first_error.as_deref();
        if self.signalled {
            let (measured, asked) = (self.elapsed.as_secs_f64(), load.seconds);
            let why = format!("interrupted; the figures are of {measured:.1} s instead of {asked} s");
            return Err(Failure::new(Code::Signal(2), why));
        }
        if self.count() == 0 {
            let why = error.unwrap_or("nothing was finished in the time given; give it more with --seconds");
            return Err(Failure::failed(format!("nothing was measured: {why}")));
        }
        if let Some(error) = error {
            eprintln!("{} errors, the first: {error}", self.counted.errors);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Three digits after the point are as much as a clock of microseconds gives.
fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_began_in_the_warm_up_does_not_count() {
        let tally = Tally::default();
        let before = Instant::now();
        tally.passed(before, before + Duration::from_millis(1));
        let begin = before + Duration::from_millis(2);
        tally.begin(begin);
        tally.passed(before, begin + Duration::from_millis(9));
        tally.passed(begin, begin + Duration::from_millis(4));
        assert_eq!(tally.count(), 1);
        let counted = std::mem::take(&mut *tally.lock());
        let measured = Measured { counted, elapsed: Duration::from_secs(2), signalled: false };
        assert_eq!((measured.per_second(), measured.ms(0.99).round()), (0.5, 4.0));
    }

    #[test]
    fn a_handoff_is_timed_from_the_last_release_and_only_once() {
        let tally = Tally::default();
        let now = Instant::now();
        tally.begin(now);
        tally.granted(now);
        tally.releasing(now + Duration::from_millis(1));
        tally.granted(now + Duration::from_millis(3));
        tally.granted(now + Duration::from_millis(9));
        let counted = std::mem::take(&mut *tally.lock());
        assert_eq!((counted.times.len(), counted.times.max() / 10), (1, 200));
    }
}
