//! `quorate lab processes`: the same protocols as real processes, with real sockets, disks and kills.
//!
//! Each process is this binary, started again. What they send is counted from what they wrote down; every
//! life is run again in the pure core and must come to the same end.

use super::super::Global;
use super::super::block_on;
use super::super::exit::{Failure, Outcome};
use super::super::lock::signals::Asked;
use super::super::output::{self, Rows, Tone, paint};
use super::interrupt::{ENDING, ended};
use super::usage;
use clap::Args;
use quorate::driver::judge::Merged;
use quorate::driver::named::{self, Settings};
use quorate::driver::processes::{self, Fault, Options, Report, RunError, plan};
use quorate_core::protocol::ProcessId;
use quorate_core::time::Mono;
use quorate_core::trace::Step;
use quorate_lab::export::ndjson;
use quorate_lab::story::{Names, Origin, Story};
use quorate_lab::trace::Trace;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

/// `quorate lab processes`
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    quorate lab processes bully --n 6 --crash 6 --start 2     20 messages, 10 of them ELECTION\n  \
    quorate lab processes maekawa --n 9 --start 5 --ndjson run.ndjson\n  \
    quorate lab processes token-ring --n 5 --entries 9 --faults 9 --set silence_ms=800\n\n\
    It ends with code 1 if two were inside, two led in one term, a wait is not true, or a life does not run \
    again as it ran.")]
pub struct ProcessesArgs {
    /// central, ricart-agrawala, maekawa, token-ring; bully, ring, chang-roberts, term
    protocol: String,
    /// How many processes
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    n: u32,
    /// These crash before the work begins, such as 6
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    crash: Vec<ProcessId>,
    /// These hold an election, or enter; else the first that runs holds one, or all enter
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    start: Vec<ProcessId>,
    /// How often each of them enters
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    entries: u32,
    /// How long each stays inside, at most, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(..=DAY_S * 1_000))]
    hold_ms: u64,
    /// So many random faults meanwhile: kills, pauses, cuts, delays, lost connections. What the protocol needs to
    /// live through faults is set, unless --set says otherwise
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    faults: usize,
    /// One fault after the other, such as 'kill n2', 'pass 50', 'pause n3', 'cut n1->n2'; all is mended at
    /// the end
    #[arg(long, value_name = "FAULT", conflicts_with = "faults")]
    fault: Vec<Fault>,
    /// Where all draws come from, to do the same again
    #[arg(long)]
    seed: Option<u64>,
    /// A setting of the protocol, such as lease_ms=400, durable=true, retry_ms=100, answer_ms=500
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Write everything that happened as NDJSON, for `quorate lab draw`
    #[arg(long, value_name = "FILE")]
    ndjson: Option<PathBuf>,
    /// Keep what each process wrote down, its record and its errors, in this empty directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Give up after so many seconds
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=DAY_S))]
    patience_s: u64,
}

/// The seconds of a day, the longest that anything here takes.
const DAY_S: u64 = 86_400;

/// Runs it, and shows what was sent and what holds.
pub(super) fn run(args: &ProcessesArgs, global: &Global) -> Outcome {
    let options = options(args)?;
    let program = std::env::current_exe();
    let program = program.map_err(|error| Failure::failed(format!("cannot find this program: {error}")))?;
    let command = |job: &str| {
        let mut command = Command::new(&program);
        command.args(["lab-process", job]);
        command
    };
    let ran = block_on(async {
        let mut asked = Asked::listen(&ENDING)?;
        tokio::select! {
            ran = processes::run(options.clone(), command) => Ok(ran),
            // The run is dropped, and with it its processes are killed and waited for.
            signal = asked.next() => Err(ended(signal, "all processes that it had started have ended")),
        }
    });
    if args.keep.is_none() {
        // It lies among the temporary files of this machine: if it cannot be removed, it is only in the way.
        let _ = std::fs::remove_dir_all(&options.directory);
    }
    let report = ran?.map_err(|error| match error {
        RunError::Options(why) => usage(why),
        other => Failure::failed(format!("{other} (seed {})", options.seed)),
    })?;
    match global.json {
        true => show_json(&options, &report)?,
        false => show(&options, &report)?,
    }
    if let Some(path) = &args.ndjson {
        super::scenario::write(path, &ndjson::write(&story(&options, &report.merged)), global)?;
    }
    match report.verdict() {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(why) => Err(Failure::failed(format!("{why} (seed {})", options.seed))),
    }
}

fn options(args: &ProcessesArgs) -> Result<Options, Failure> {
    let mut options = Options::new(&args.protocol, args.n as usize);
    let faulty = args.faults > 0 || !args.fault.is_empty();
    options.settings = settings(&args.protocol, &args.set, faulty)?;
    (options.crash, options.start) = (args.crash.clone(), args.start.clone());
    (options.entries, options.hold_ms) = (args.entries, (args.hold_ms.min(1), args.hold_ms));
    options.seed = args.seed.unwrap_or(options.seed);
    options.faults = match args.faults {
        0 => args.fault.clone(),
        count => plan(options.seed, options.n, count),
    };
    if !options.faults.is_empty() {
        (options.beat_ms, options.detection_ms) = (20, (300, 40));
    }
    options.patience = Duration::from_secs(args.patience_s);
    if let Some(keep) = &args.keep {
        is_empty(keep)?;
        options.directory.clone_from(keep);
    }
    Ok(options)
}

/// A directory in which another run has left its lives would have them counted as lives of this one.
fn is_empty(keep: &Path) -> Result<(), Failure> {
    let show = keep.display();
    let entries = std::fs::create_dir_all(keep).and_then(|()| std::fs::read_dir(keep));
    let mut entries = entries.map_err(|error| Failure::failed(format!("cannot use {show}: {error}")))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(usage(format!("{show} is not empty: --keep takes a new or an empty directory"))),
    }
}

/// What a protocol needs to live through faults: without it whoever asked one that was killed waits for ever, and one
/// that comes back belongs to no group. For those that know it.
const FOR_FAULTS: [(&str, &str); 8] = [
    ("lease_ms", "400"),
    ("durable", "true"),
    ("retry_ms", "300"),
    ("silence_ms", "500"),
    ("answer_ms", "200"),
    ("coordinator_ms", "1200"),
    ("again_ms", "400"),
    ("elect_at_start", "true"),
];

/// The settings, as the JSON object that they are. One that the protocol does not know is an error.
fn settings(protocol: &str, set: &[String], faulty: bool) -> Result<Settings, Failure> {
    named::check(protocol).map_err(usage)?;
    let known = named::settings_of(protocol);
    let mut object = serde_json::Map::new();
    for one in set {
        let (name, value) = one
            .split_once('=')
            .ok_or_else(|| usage(format!("{one} is not NAME=VALUE, such as {}=VALUE", known[0])))?;
        if !known.contains(&name) {
            return Err(usage(format!("{protocol} has no setting {name}; it has {}", known.join(", "))));
        }
        if object.insert(name.to_string(), setting(name, value)?).is_some() {
            return Err(usage(format!("{name} is set twice")));
        }
    }
    for (name, value) in FOR_FAULTS.into_iter().filter(|(name, _)| faulty && known.contains(name)) {
        object.entry(name).or_insert(setting(name, value)?);
    }
    serde_json::from_value(object.into()).map_err(|error| usage(error.to_string()))
}

/// A time is at least a millisecond, or what comes again after so long would come without end.
fn setting(name: &str, value: &str) -> Result<Value, Failure> {
    if name.ends_with("_ms") {
        let ms = value.parse::<u64>().ok().filter(|ms| (1..=DAY_S * 1_000).contains(ms));
        return ms.map(Value::from).ok_or_else(|| {
            usage(format!("{name} is a number of milliseconds, at least 1 and at most a day, not {value}"))
        });
    }
    let is_set = value.parse::<bool>().map(Value::from);
    is_set.map_err(|_| usage(format!("{name} is true or false, not {value}")))
}

/// The settings that the protocol knows, as they were.
fn were_set(options: &Options) -> BTreeMap<String, Value> {
    let known = named::settings_of(&options.protocol);
    let Ok(Value::Object(all)) = serde_json::to_value(&options.settings) else { return BTreeMap::new() };
    all.into_iter().filter(|(name, value)| known.contains(&name.as_str()) && !value.is_null()).collect()
}

/// A number of things, of which one has another name.
fn count(number: u64, one: &str, more: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { more })
}

/// The formula of the literature that belongs to a protocol.
fn formula(protocol: &str) -> &'static str {
    match protocol {
        "central" => "3 an entry, none for the coordinator's own",
        "ricart-agrawala" => "2(N-1) an entry",
        "maekawa" => "3(K-1) an entry that meets no other, K near 2 sqrt(N)",
        "token-ring" => "d REQUEST and d TOKEN at a distance of d from the token",
        "bully" => {
            "(N-s)(N-s+1)/2 ELECTION, (N-s)(N-s-1)/2 OK, N-2 COORDINATOR, if N has stopped and s starts"
        }
        "ring" => "2 for each process that runs",
        "chang-roberts" => "N*H(N) ELECTION in the mean, N ELECTED",
        _ => "2(N-1) for votes, as many for pre-votes, and heartbeats",
    }
}

/// The run as a story, for pictures and files. Time begins with its first step.
fn story(options: &Options, merged: &Merged) -> Story {
    let begun = merged.lines.first().map_or(0, |line| line.step.at.0);
    let mut trace = Trace::whole();
    for line in &merged.lines {
        let text = if line.words.is_empty() { 0 } else { trace.say(line.words.clone()) };
        trace.push(Step { at: Mono(line.step.at.0.saturating_sub(begun)), text, ..line.step });
    }
    let Merged { calls, messages, timers, events, .. } = merged.clone();
    Story {
        title: format!("{} on {} real processes", options.protocol, options.n),
        caption: String::new(),
        origin: Origin::Real,
        seed: Some(options.seed),
        processes: (0..options.n).map(ProcessId::at).collect(),
        names: Names { calls, messages, timers, events },
        trace,
    }
}

fn show_json(options: &Options, report: &Report) -> Result<(), Failure> {
    let messages: serde_json::Map<_, _> =
        report.messages.iter().map(|(name, count)| (name.clone(), json!(count))).collect();
    let faults: Vec<_> = options.faults.iter().map(ToString::to_string).collect();
    let inside = report.inside.as_ref().and_then(|seen| seen.as_ref().ok());
    output::json(&json!({
        "protocol": options.protocol, "processes": options.n, "seed": options.seed.to_string(),
        "messages": messages, "messages_total": report.total, "formula": formula(&options.protocol),
        "leader": report.leader.map(|leader| leader.to_string()),
        "entries": inside.map(|seen| seen.entries), "overlaps": inside.map(|seen| seen.overlaps),
        "quiet": report.quiet, "lives": report.recordings.len(), "inputs_replayed": report.replayed,
        "settings": were_set(options), "faults": faults, "violated": report.verdict().err(),
    }))
}

fn show(options: &Options, report: &Report) -> Result<(), Failure> {
    let mut rows = Rows::new(&["message", "sent"]);
    for (name, count) in &report.messages {
        rows.row([name.clone(), count.to_string()]);
    }
    rows.row(["all".into(), report.total.to_string()]);
    output::line(rows.render())?;
    output::line(format!("the formula: {}", formula(&options.protocol)))?;
    if let Some(Ok(seen)) = &report.inside {
        let overlaps = match seen.overlaps {
            0 => "never two inside".to_string(),
            count => format!("{count} times another was, that had slept: its token is older"),
        };
        output::line(format!("{}, and {overlaps}", count(seen.entries, "entry", "entries")))?;
    }
    if let Some(leader) = report.leader {
        output::line(format!("all that run name {leader}"))?;
    }
    if !options.faults.is_empty() {
        let set: Vec<_> = were_set(options).iter().map(|(name, value)| format!("{name}={value}")).collect();
        output::line(paint(Tone::Faint, &format!("with {}", set.join(" "))))?;
    }
    for fault in &options.faults {
        output::line(paint(Tone::Faint, &format!("  {fault}")))?;
    }
    let lives = count(report.recordings.len() as u64, "life", "lives");
    let (inputs, seed) = (count(report.replayed, "input", "inputs"), options.seed);
    output::line(format!("{lives} with {inputs} run again to the same digests, seed {seed}"))
}
