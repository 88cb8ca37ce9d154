//! `quorate guard`: a fence in front of a file, a directory or anything else that commands of this machine
//! write to. What it promises is on the page of [`quorate::guard`]; this is its command line.
//!
//! Nothing here talks to the service: the token comes with the command, from the command line or from the
//! environment that `quorate lock` and `quorate lead` make.

mod command;
mod show;

use super::Global;
use super::exit::{Code, Failure, Outcome};
use super::output;
use clap::{Args, Subcommand};
use quorate::guard::{
    ClusterId, FileGuard, FileOptions, Guard, GuardError, Name, Notice, Offer, Reset, SeatKeys, SeatNo,
    Terms, Token,
};
use serde_json::json;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

/// `quorate guard ...`
#[derive(Args)]
pub struct GuardArgs {
    #[command(subcommand)]
    command: GuardCommand,
}

#[derive(Subcommand)]
enum GuardCommand {
    /// Run a command inside a resource's scope, where only the newest holder can be
    Run(RunArgs),
    /// Check a token and raise the floor; this is only a check, not a scope
    Admit(AdmitArgs),
    /// Show the floors, who is inside, who was refused and who reset what
    Show(ShowArgs),
    /// Set the floor of a resource, or take over a state that was lost, copied or damaged
    Reset(ResetArgs),
    /// Become the command of `run`, inside the scope that was inherited
    #[command(hide = true)]
    Become(command::BecomeArgs),
}

#[derive(Args)]
struct StateArgs {
    /// Where the guard keeps its floors; its locks lie beside it
    #[arg(long, value_name = "FILE", env = "QUORATE_GUARD")]
    state: PathBuf,
    /// Fail if there is no state yet, rather than begin without floors
    #[arg(long)]
    existing: bool,
}

#[derive(Args)]
struct OfferArgs {
    /// What is written to: any name, the same for all who write to it
    resource: Name,
    /// The token of the grant; by default QUORATE_TOKEN
    token: Option<u64>,
    /// The resource has a part for each seat, and this is the seat's number
    #[arg(long, value_name = "N")]
    seat: Option<u32>,
    /// The resource has a part for each seat; take its number from QUORATE_SEAT
    #[arg(long, conflicts_with = "seat")]
    by_seat: bool,
    /// Whose token it is; by default QUORATE_CLUSTER
    #[arg(long, value_name = "ID", value_parser = cluster)]
    cluster: Option<ClusterId>,
    /// Refuse a token greater than this one, the last that the cluster gave out
    #[arg(long, value_name = "TOKEN")]
    highest_issued: Option<u64>,
}

#[derive(Args)]
#[command(after_help = "\
The scope lasts until COMMAND *and* this process have ended, however they end: COMMAND inherits the lock.
Exit codes: that of COMMAND; 128+n if signal n ended it; 3 refused, COMMAND was not run; 73 somebody else \
was inside until --wait had passed, COMMAND was not run.

Examples:
  quorate lock orders -- quorate guard run --state orders.guard orders -- ./append.sh
  quorate guard run --state orders.guard orders 42 -- sh -c 'echo done >> orders.log'")]
struct RunArgs {
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    offer: OfferArgs,
    /// How long to wait for whoever is inside, such as 30s; by default as long as it takes
    #[arg(long, value_name = "TIME", value_parser = duration)]
    wait: Option<Duration>,
    /// If an older command is inside, end its process group: SIGTERM, and SIGKILL after --grace
    #[arg(long)]
    kill_older: bool,
    /// How long an older command may take to end
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s", requires = "kill_older")]
    grace: Duration,
    /// What to run, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Args)]
struct AdmitArgs {
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    offer: OfferArgs,
}

#[derive(Args)]
struct ShowArgs {
    #[command(flatten)]
    state: StateArgs,
    /// Show only this resource, with its refusals
    resource: Option<Name>,
}

#[derive(Args)]
struct ResetArgs {
    #[command(flatten)]
    state: StateArgs,
    /// The resource whose floor is set
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    resource: Option<Name>,
    /// Every resource, also if the state is missing, copied, old or damaged: floors that can be read are
    /// kept and only raised; the others begin with --floor
    #[arg(long)]
    all: bool,
    /// The smallest token that is admitted from now on; without it the floor stays as it is
    #[arg(long, value_name = "TOKEN")]
    floor: Option<u64>,
    /// Whose tokens are accepted from now on; without it, those of the first that is named
    #[arg(long, value_name = "ID", value_parser = cluster)]
    cluster: Option<ClusterId>,
    /// Why; it is written down with the time, the user and the floor before
    #[arg(long, value_name = "TEXT")]
    why: String,
}

/// Runs one of the commands.
pub(crate) fn run(args: GuardArgs, global: &Global) -> Outcome {
    match args.command {
        GuardCommand::Run(args) => run_inside(&args),
        GuardCommand::Admit(args) => admit(&args, global),
        GuardCommand::Show(args) => show::run(&args, global),
        GuardCommand::Reset(args) => reset(&args, global),
        GuardCommand::Become(args) => command::become_command(&args),
    }
}

fn run_inside(args: &RunArgs) -> Outcome {
    let offer = args.offer.offer()?;
    let guard = args.state.open(args.offer.seats())?;
    let mut on_notice = |notice: &Notice| eprintln!("quorate guard: {}", describe(notice));
    let terms = Terms {
        limit: args.wait,
        highest_issued: args.offer.highest_issued.map(Token),
        kill_older: args.kill_older.then_some(args.grace),
        cancel: None,
        on_notice: Some(&mut on_notice),
    };
    let permit = guard.enter_on(&args.offer.resource, offer, terms).map_err(failure)?;
    let ended = command::run(&permit, offer, guard.path(), &args.command)?;
    if let Some(behind) = permit.leave() {
        let command = args.command[0].display();
        eprintln!("quorate guard: {command} has ended, but left a process inside: {behind}");
    }
    ended.outcome(&args.command[0])
}

fn admit(args: &AdmitArgs, global: &Global) -> Outcome {
    let offer = args.offer.offer()?;
    let guard = args.state.open(args.offer.seats())?;
    let resource = &args.offer.resource;
    let decided = guard.admit(resource, offer, args.offer.highest_issued.map(Token));
    eprintln!(
        "quorate guard: this is only a check: an older write that has begun may still end, and a newer \
         holder may come before yours. `quorate guard run` is a scope"
    );
    let (admitted, highest, reason) = match &decided {
        Ok(accepted) => (true, Some(accepted.token), None),
        Err(GuardError::Refused { refusal, .. }) => (false, refusal.highest(), Some(refusal.to_string())),
        Err(_) => return decided.map(|_| ExitCode::SUCCESS).map_err(failure),
    };
    if global.json {
        output::json(&json!({
            "resource": resource,
            "seat": offer.seat,
            "token": offer.token.to_string(),
            "admitted": admitted,
            "highest": highest.map(|token| token.to_string()),
            "reason": reason,
        }))?;
    } else if let Some(highest) = highest {
        output::line(highest.to_string())?;
    }
    decided.map(|_| ExitCode::SUCCESS).map_err(failure)
}

fn reset(args: &ResetArgs, global: &Global) -> Outcome {
    if args.why.trim().is_empty() {
        return Err(Failure::usage("--why needs a reason: it is the only trace of this decision"));
    }
    let reset = Reset { floor: args.floor.map(Token), cluster: args.cluster, why: args.why.clone() };
    let options = args.state.options(SeatKeys::Whole);
    let guard = match &args.resource {
        Some(resource) => {
            let guard = FileGuard::open(&args.state.state, options).map_err(failure)?;
            guard.reset(resource, reset).map_err(failure)?;
            guard
        }
        None => FileGuard::reset_all(&args.state.state, options, reset).map_err(failure)?,
    };
    let resets = guard.show().map_err(failure)?.resets;
    let line = resets.last().ok_or_else(|| Failure::failed("the reset left no line behind"))?;
    match global.json {
        true => output::json(&show::reset_json(line))?,
        false => output::line(show::reset_sentence(line))?,
    }
    Ok(ExitCode::SUCCESS)
}

impl StateArgs {
    fn options(&self, seats: SeatKeys) -> FileOptions {
        FileOptions { seats, create: !self.existing }
    }

    fn open(&self, seats: SeatKeys) -> Result<FileGuard, Failure> {
        FileGuard::open(&self.state, self.options(seats)).map_err(failure)
    }
}

impl OfferArgs {
    fn seats(&self) -> SeatKeys {
        match self.by_seat || self.seat.is_some() {
            true => SeatKeys::BySeat,
            false => SeatKeys::Whole,
        }
    }

    /// What is offered: from the command line, else from the environment of `quorate lock` and its like.
    fn offer(&self) -> Result<Offer, Failure> {
        let token = match self.token {
            Some(token) => token,
            None => from_environment("QUORATE_TOKEN", |text| text.parse().ok())?.ok_or_else(|| {
                Failure::usage(
                    "no token: give it after the resource, or run this under `quorate lock` \
                     or `quorate lead`, which set QUORATE_TOKEN",
                )
            })?,
        };
        let seat = match self.seat {
            Some(seat) => seat,
            None => from_environment("QUORATE_SEAT", |text| text.parse().ok())?.unwrap_or(0),
        };
        let cluster = match self.cluster {
            Some(cluster) => Some(cluster),
            None => from_environment("QUORATE_CLUSTER", |text| text.parse().ok())?,
        };
        Ok(Offer { cluster, seat: SeatNo(seat), token: Token(token) })
    }
}

/// A variable that is unset or empty is none; one that cannot be read is an error, never ignored.
fn from_environment<T>(name: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, Failure> {
    let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let parsed = value.to_str().and_then(parse);
    parsed.map(Some).ok_or_else(|| Failure::usage(format!("{name} is {value:?}, which cannot be understood")))
}

/// The exit code and the last line for what a guard answered.
fn failure(error: GuardError) -> Failure {
    match &error {
        refused if refused.is_refusal() => Failure::new(Code::Refused, format!("refused: {refused}")),
        GuardError::Held { .. } => Failure::new(Code::NotGranted, format!("not entered: {error}")),
        _ => Failure::failed(error.to_string()),
    }
}

fn describe(notice: &Notice) -> String {
    match notice {
        Notice::Waiting(blocker) => format!("waiting: {blocker}"),
        Notice::Terminated(blocker) => format!("told the older command to end (SIGTERM): {blocker}"),
        Notice::Killed(blocker) => format!("killed the older command (SIGKILL): {blocker}"),
        Notice::NotKilled(blocker, why) => format!("cannot kill, so waiting: {blocker}; {why}"),
    }
}

fn cluster(text: &str) -> Result<ClusterId, String> {
    ClusterId::from_str(text).map_err(|_| "a cluster is at most 32 hexadecimal digits".into())
}

fn duration(text: &str) -> Result<Duration, String> {
    match text {
        "0" => Ok(Duration::ZERO),
        _ => humantime::parse_duration(text).map_err(|error| format!("{error}; write it as 30s or 500ms")),
    }
}
