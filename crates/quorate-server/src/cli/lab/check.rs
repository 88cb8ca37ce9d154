//! `quorate lab check` and `quorate lab fuzz`: a protocol is held to what it claims.

use super::super::Global;
use super::super::exit::{Failure, Outcome};
use super::super::output;
use super::interrupt::{Interrupt, ended};
use super::usage;
use clap::Args;
use quorate_lab::prove::{Failed, Fuzzed, Search, Searched, Subject, Worlds, subject};
use quorate_lab::spot::Faults;
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// `quorate lab check`
#[derive(Args, Debug)]
#[command(
    after_help = "Ends with 0 if everything holds in every reachable state, with 1 and the shortest scenario \
    if something does not. A signal ends it with what it has found so far.\n\nExamples:\n  quorate lab check ricart-agrawala --n 3 --crashes 1\n  \
    quorate lab check maekawa-basic                    finds its deadlock\n  \
    quorate lab check bully --without answers          finds two leaders\n  \
    quorate lab check term --mutant vote-not-durable > broken.txt; quorate lab run broken.txt --svg broken.svg"
)]
pub struct CheckArgs {
    /// The protocol, as `quorate lab list` names it
    protocol: String,
    /// How many processes
    #[arg(long)]
    n: Option<usize>,
    /// How often each process enters, where that is what they do
    #[arg(long, value_name = "TIMES")]
    entries: Option<u32>,
    /// How many crashes may happen, between steps and within them
    #[arg(long, value_name = "TIMES")]
    crashes: Option<u8>,
    /// How many starts after a crash, with the disk
    #[arg(long, value_name = "TIMES")]
    restarts: Option<u8>,
    /// How many starts after a crash, with an empty disk
    #[arg(long, value_name = "TIMES")]
    wipes: Option<u8>,
    /// How many messages may be lost
    #[arg(long, value_name = "TIMES")]
    drops: Option<u8>,
    /// How many messages may come twice
    #[arg(long, value_name = "TIMES")]
    doubles: Option<u8>,
    /// How often one may be wrongly suspected
    #[arg(long, value_name = "TIMES")]
    suspicions: Option<u8>,
    /// How many pauses may happen
    #[arg(long, value_name = "TIMES")]
    pauses: Option<u8>,
    /// How many timers may end; by default what the protocol needs
    #[arg(long, value_name = "TIMES")]
    timers: Option<u8>,
    /// Leave one line out, as `quorate lab list` names it, where it makes a difference
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
    /// Take one of its needs away, as `quorate lab list` names it in brackets
    #[arg(long, value_name = "NEED", conflicts_with = "mutant")]
    without: Option<String>,
    /// Give up after so many different states
    #[arg(long, value_name = "COUNT", default_value_t = 20_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    states_max: u64,
}

impl CheckArgs {
    /// The budget, if any of it was stated.
    fn faults(&self) -> Option<Faults> {
        let stated = [
            self.crashes,
            self.restarts,
            self.wipes,
            self.drops,
            self.doubles,
            self.suspicions,
            self.pauses,
            self.timers,
        ];
        let or = |value: Option<u8>| value.unwrap_or(0);
        stated.iter().any(Option::is_some).then(|| Faults {
            // Who starts again has crashed before.
            crashes: or(self.crashes).max(or(self.restarts).saturating_add(or(self.wipes))),
            restarts: or(self.restarts),
            wipes: or(self.wipes),
            drops: or(self.drops),
            doubles: or(self.doubles),
            suspicions: or(self.suspicions),
            pauses: or(self.pauses),
            timers: or(self.timers),
        })
    }
}

/// `quorate lab fuzz`
#[derive(Args, Debug)]
#[command(
    after_help = "Ends with 0 if all worlds hold and get on after healing, with 1 and a small scenario of the \
    first that does not. A signal ends it with what it has found so far.\n\nExamples:\n  quorate lab fuzz maekawa --seeds 1000000\n  \
    quorate lab fuzz token-ring --mutant older-generation"
)]
pub struct FuzzArgs {
    /// The protocol, as `quorate lab list` names it
    protocol: String,
    /// How many worlds
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The seed of the first one
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    first: u64,
    /// How many processes; by default four to seven
    #[arg(long)]
    n: Option<usize>,
    /// Leave one line out, as `quorate lab list` names it
    #[arg(long, value_name = "NAME")]
    mutant: Option<String>,
    /// How many worlds to run at a time; by default one for each CPU
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,
}

/// Processes beyond which no search ends in a life.
const SEARCHED_MAX: usize = 6;

/// Searches a small world.
pub(super) fn check(args: &CheckArgs, global: &Global) -> Outcome {
    let subject = subject(&args.protocol).map_err(usage)?;
    if args.n.is_some_and(|n| !(2..=SEARCHED_MAX).contains(&n)) {
        return Err(usage(format!("a search is of 2 to {SEARCHED_MAX} processes")));
    }
    let asked = Search {
        n: args.n,
        faults: args.faults(),
        entries: args.entries,
        flaw: args.mutant.clone(),
        without: args.without.clone(),
        states_max: args.states_max,
    };
    if args.entries.is_some() && subject.family != "mutex" {
        return Err(usage(format!("--entries is for mutual exclusion: in {} nobody enters", subject.name)));
    }
    let (begun, interrupt) = (Instant::now(), Interrupt::listen());
    let progress = Progress::new(global);
    let found = subject.search(&asked, &mut |states, looked| {
        progress.show(&format!(
            "{states} states, {looked} of them looked at, {}",
            rate(states, begun.elapsed(), "states")
        ));
        interrupt.signal().map_or(ControlFlow::Continue(()), |_| ControlFlow::Break(()))
    });
    progress.end();
    let found = found.map_err(usage)?;
    searched(subject, &found, begun.elapsed(), args, global)?;
    if let Some((why, _)) = &found.violation {
        return Err(Failure::failed(format!("{} does not hold: {why}", subject.name)));
    }
    if found.complete {
        return Ok(ExitCode::SUCCESS);
    }
    Err(match interrupt.signal() {
        Some(signal) => {
            ended(signal, &format!("nothing was violated in {} states, and there are more", found.unique))
        }
        None => Failure::failed(format!(
            "the search was given up after {} states; a larger --states-max or fewer faults would finish it",
            found.unique
        )),
    })
}

fn searched(
    subject: &Subject,
    found: &Searched,
    took: Duration,
    args: &CheckArgs,
    global: &Global,
) -> Result<(), Failure> {
    let mutant = args.mutant.as_deref();
    let verdict = match (&found.violation, found.complete) {
        (Some((why, _)), _) => format!("VIOLATED: {why}"),
        (None, true) => format!("holds: {}", subject.claim),
        (None, false) => "not finished: nothing was violated so far".into(),
    };
    if global.json {
        output::json(&json!({
            "protocol": subject.name, "mutant": mutant, "without": args.without, "states": found.unique, "generated": found.generated,
            "at_rest": found.quiet, "depth": found.depth, "complete": found.complete,
            "violated": found.violation.as_ref().map(|(why, _)| why),
            "scenario": found.violation.as_ref().map(|(_, scenario)| scenario),
            "reached": found.reached, "took_ms": took.as_millis() as u64,
        }))?;
    } else {
        if let Some((_, scenario)) = &found.violation {
            output::line(scenario.trim_end())?;
        }
        aside(&format!("{}: {verdict}", subject.name));
        aside(&format!(
            "{} states, {} generated, {} at rest, at most {} steps deep, {:.1?}, {}",
            found.unique,
            found.generated,
            found.quiet,
            found.depth,
            took,
            rate(found.unique, took, "states")
        ));
        reached(found.reached, mutant);
    }
    Ok(())
}

/// A line beside the scenario, which alone is on standard output. That nobody reads it changes nothing.
fn aside(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn reached(times: Option<u64>, mutant: Option<&str>) {
    if let (Some(times), Some(mutant)) = (times, mutant) {
        aside(&format!("the line that {mutant} leaves out was come to {times} times"));
    }
}

fn rate(count: u64, took: Duration, what: &str) -> String {
    let each = count as f64 / took.as_secs_f64().max(0.001);
    format!("{each:.0} {what} a second")
}

/// Worlds that one thread runs before it looks what the others have found.
const CHUNK: u64 = 500;

/// Runs random worlds.
pub(super) fn fuzz(args: &FuzzArgs, global: &Global) -> Outcome {
    let subject = subject(&args.protocol).map_err(usage)?;
    if args.n.is_some_and(|n| !(2..=64).contains(&n)) {
        return Err(usage("a random world has 2 to 64 processes".into()));
    }
    let (begun, interrupt) = (Instant::now(), Interrupt::listen());
    let done = all_worlds(args, subject, &Progress::new(global), begun, &interrupt).map_err(usage)?;
    let (took, signal) = (begun.elapsed(), interrupt.signal());
    let failure = done.failure.as_ref();
    if global.json {
        output::json(&json!({
            "protocol": subject.name, "mutant": args.mutant, "worlds": done.worlds, "steps": done.steps,
            "failed_seed": failure.map(|failed| failed.seed), "processes": failure.map(|failed| failed.n),
            "violated": failure.filter(|failed| !failed.stuck).map(|failed| &failed.why),
            "stuck": failure.filter(|failed| failed.stuck).map(|failed| &failed.why),
            "scenario": failure.map(|failed| &failed.scenario),
            "reached": done.reached, "took_ms": took.as_millis() as u64,
        }))?;
    } else {
        if let Some(failed) = failure {
            output::line(failed.scenario.trim_end())?;
        }
        let holds = match signal {
            None => format!("holds: {}", subject.claim),
            Some(_) => "not finished: nothing has failed so far".into(),
        };
        aside(&format!("{}: {}", subject.name, failure.map_or(holds, said)));
        let pace = rate(done.worlds, took, "worlds");
        aside(&format!("{} random worlds, {} steps, {took:.1?}, {pace}", done.worlds, done.steps));
        reached(done.reached, args.mutant.as_deref());
    }
    match (failure, signal) {
        (Some(failed), _) => Err(Failure::failed(format!("{}: {}", subject.name, said(failed)))),
        (None, Some(signal)) => Err(ended(signal, &format!("{} worlds hold", done.worlds))),
        (None, None) => Ok(ExitCode::SUCCESS),
    }
}

fn said(failed: &Failed) -> String {
    let Failed { seed, n, why, stuck, .. } = failed;
    let what = if *stuck { "STUCK" } else { "VIOLATED" };
    format!("{what} in world {seed} of {n} processes: {why}")
}

/// Shares the seeds among threads. Of several failures the one with the smallest seed is told.
fn all_worlds(
    args: &FuzzArgs,
    subject: &Subject,
    progress: &Progress,
    begun: Instant,
    interrupt: &Interrupt,
) -> Result<Fuzzed, String> {
    let end = args.first.checked_add(args.seeds).ok_or("there are no such seeds: they end at 2^64")?;
    // From 0 on: the last chunk may begin beyond the last seed, where the number of a seed would wrap.
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let sum: Mutex<Result<Fuzzed, String>> = Mutex::new(Ok(Fuzzed::default()));
    let work = || {
        while !stop.load(Ordering::Relaxed) && interrupt.signal().is_none() {
            let done = next.fetch_add(CHUNK, Ordering::Relaxed);
            if done >= args.seeds {
                return;
            }
            let from = args.first + done;
            let seeds = from..from.saturating_add(CHUNK).min(end);
            let one = subject.fuzz(&Worlds { n: args.n, seeds, flaw: args.mutant.clone() });
            let mut sum = sum.lock().expect("no thread panics while it adds");
            if one.as_ref().map_or(true, |one| one.failure.is_some()) {
                stop.store(true, Ordering::Relaxed);
            }
            add(&mut sum, one);
            if let Ok(sum) = &*sum {
                progress.show(&format!(
                    "{} worlds, {}",
                    sum.worlds,
                    rate(sum.worlds, begun.elapsed(), "worlds")
                ));
            }
        }
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..args.threads.map_or(cpus.min(64), usize::from) {
            scope.spawn(work);
        }
    });
    progress.end();
    sum.into_inner().expect("no thread panics while it adds")
}

fn add(sum: &mut Result<Fuzzed, String>, one: Result<Fuzzed, String>) {
    match (sum.as_mut(), one) {
        (Ok(sum), Ok(one)) => {
            sum.worlds += one.worlds;
            sum.steps += one.steps;
            sum.reached = one.reached.map(|times| times + sum.reached.unwrap_or_default());
            let earlier = |old: &Failed, new: &Failed| old.seed < new.seed;
            if let Some(new) = one.failure
                && !sum.failure.as_ref().is_some_and(|old| earlier(old, &new))
            {
                sum.failure = Some(new);
            }
        }
        (_, Err(why)) => *sum = Err(why),
        (Err(_), Ok(_)) => {}
    }
}

/// One line on a terminal's standard error that says how far it is.
struct Progress {
    live: bool,
    last: Mutex<Instant>,
}

impl Progress {
    fn new(global: &Global) -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let live = !global.json && !dumb && std::io::stderr().is_terminal();
        Self { live, last: Mutex::new(Instant::now()) }
    }

    fn show(&self, text: &str) {
        const EVERY: Duration = Duration::from_millis(200);
        let Ok(mut last) = self.last.try_lock() else { return };
        if self.live && last.elapsed() >= EVERY {
            *last = Instant::now();
            let _ = write!(std::io::stderr(), "\r\x1b[K{text}");
        }
    }

    fn end(&self) {
        if self.live {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
