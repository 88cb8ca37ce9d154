//! `quorate observe`: who leads, a line for each change, also that nobody does.
//!
//! **Rule.** The first line is how it is now; every change after it is a line, in the order of the log; what was missed
//! on the way is a line; and that the service is silent is one, so that silence never reads as *unchanged*. It resumes
//! by itself. **When it fails.** A line is as old as its way to its reader.

use super::exit::{Code, Failure, Outcome};
use super::join::open;
use super::lock::{duration, failure, say, signals::Asked};
use super::output::{self, Tone, paint, plain};
use super::{Global, block_on_writing};
use crate::json;
use crate::node::disk;
use clap::Args;
use quorate::leadership::{Observed, Observer};
use quorate::{Client, Error, SessionOptions};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::time::Duration;

/// What ends it.
const END: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// How long a look away is nobody's concern.
const LEAVE_SOON: Duration = Duration::from_millis(500);

/// `quorate observe NAME`
#[derive(Args, Debug)]
#[command(after_help = "`quorate observe --help` lists the lines.", after_long_help = LONG_HELP)]
pub struct ObserveArgs {
    /// The office, as candidates name it
    name: String,
    /// Say how it is now, and end
    #[arg(long)]
    once: bool,
    /// After how long without an answer it is said that the service is silent: half of this
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    ttl: Duration,
}

const LONG_HELP: &str = "\
Lines:
  leader       this one leads, with its value and the token of its term of office
  no leader    nobody leads
  unavailable  the service is silent: the line before may be old. The next one says how it is then
  missed       changes were missed; the next line says how it is now
  over         the office was deleted, or an operator closed the session: the last line
  With --json each line is an object with the fields time, name, event (leader, no_leader,
  unavailable, missed, over), leader, value, token, session, since and evidence.

Exit codes:
  0      ended by SIGINT, SIGTERM or SIGHUP, or with --once said how it is
  1      the name is in use as something else
  69     with --once: no service can be reached
  75     over

Examples:
  quorate observe scheduler
  quorate --json observe scheduler --once | jq -r .value      where to find the leader";

/// Says who leads.
pub(super) fn run(args: ObserveArgs, global: &Global) -> Outcome {
    block_on_writing(async move {
        let mut asked = Asked::listen(&END)?;
        let watching = watch(&args, global);
        tokio::select! {
            ended = watching => ended,
            _ = asked.next() => Ok(ExitCode::SUCCESS),
        }
    })
}

async fn watch(args: &ObserveArgs, global: &Global) -> Outcome {
    let label = format!("quorate observe (pid {})", std::process::id());
    let options = SessionOptions::with_ttl(args.ttl).label(label);
    let session = match args.once {
        true => {
            let client = Client::connect(global.server.to_string()).map_err(failure)?;
            client.session(options).await.map_err(failure)?
        }
        false => open("observe", global, options).await?,
    };
    let office = session.leadership(&*args.name).map_err(failure)?.named(super::lock::default_name());
    let mut observer = loop {
        match office.observe().await {
            Err(error @ (Error::WaitLost { .. } | Error::SessionLost { .. })) if !args.once => {
                say(format!("quorate observe: {error}; trying on"));
            }
            observer => break observer.map_err(failure)?,
        }
    };
    let ended = lines(args, global, &mut observer).await;
    drop(observer);
    // Otherwise its lease ends by itself.
    let _ = tokio::time::timeout(LEAVE_SOON, session.end()).await;
    ended
}

async fn lines(args: &ObserveArgs, global: &Global, observer: &mut Observer) -> Outcome {
    while let Some(observed) = observer.next().await {
        match global.json {
            true => output::json(&object(&args.name, &observed))?,
            false => output::line(sentence(&args.name, &observed))?,
        }
        match observed {
            Observed::Over { evidence } => {
                return Err(Failure::new(Code::AuthorityLost, format!("{} is over: {evidence}", args.name)));
            }
            Observed::Leader(_) | Observed::NoLeader { .. } if args.once => return Ok(ExitCode::SUCCESS),
            _ => {}
        }
    }
    Err(Failure::failed(format!("{} is seen no more", args.name)))
}

/// What is shown of something that happened: its name, who leads, and why.
fn parts(observed: &Observed) -> (&'static str, Tone, &str) {
    match observed {
        Observed::Leader(_) => ("leader", Tone::Good, ""),
        Observed::NoLeader { evidence } => ("no leader", Tone::Warn, evidence),
        Observed::Missed { evidence } => ("missed", Tone::Warn, evidence),
        Observed::Unavailable { evidence } => ("unavailable", Tone::Warn, evidence),
        Observed::Over { evidence } => ("over", Tone::Warn, evidence),
        _ => ("unknown", Tone::Warn, ""),
    }
}

fn sentence(name: &str, observed: &Observed) -> String {
    let (event, tone, evidence) = parts(observed);
    let head = format!("{}  {}  {name}", time_of_day(disk::wall().0), paint(tone, &format!("{event:<11}")));
    match observed {
        Observed::Leader(leading) => {
            let (name, value) = (plain(&leading.name), plain(&leading.value));
            let value = if value.is_empty() { String::new() } else { format!("  at {value}") };
            format!("{head}  {name}{value}  token {}  session {}", leading.token, leading.session)
        }
        _ => format!("{head}  {}", plain(evidence)),
    }
}

fn object(name: &str, observed: &Observed) -> Value {
    let (event, _, evidence) = parts(observed);
    let leading = match observed {
        Observed::Leader(leading) => Some(leading),
        _ => None,
    };
    json!({
        "time": json::time(disk::wall().0),
        "name": name,
        "event": event.replace(' ', "_"),
        "leader": leading.map(|leading| &leading.name),
        "value": leading.map(|leading| &leading.value),
        "token": leading.map(|leading| leading.token.to_string()),
        "session": leading.map(|leading| leading.session.0),
        "since": leading.map(|leading| json::time(leading.since_ms)),
        "evidence": evidence,
    })
}

/// The time of day in UTC.
pub(super) fn time_of_day(ms: u64) -> String {
    let ms = ms % 86_400_000;
    let (h, min, s) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
    format!("{h:02}:{min:02}:{s:02}.{:03}", ms % 1_000)
}
