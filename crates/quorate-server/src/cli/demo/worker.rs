//! One worker of the demo, a process of its own: a member of the group that appends to the file while it acts.
//!
//! It is naive on purpose: it takes its token, works for a while, and writes with it without a second look, as
//! programs do. What it is told and what it does it says on standard output, one JSON object a line. It ends with
//! whoever started it.

use super::super::exit::{Failure, Outcome};
use super::super::{Global, block_on, output};
use clap::Args;
use quorate::guard::{FileGuard, FileOptions, Guard, Offer};
use quorate::{Advisory, Client, Error, Group, JoinOptions, Name, SessionOptions};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The group's name.
pub(super) const GROUP: &str = "demo";

/// The file's name at its guard.
const FILE: &str = "ledger.txt";

/// How long it works between taking its token and writing with it: long enough to be paused in.
const WORK: Duration = Duration::from_millis(150);

/// How long it rests after a line.
const REST: Duration = Duration::from_millis(100);

/// `quorate demo-worker`, which only `quorate demo` runs.
#[derive(Args, Debug)]
pub struct WorkerArgs {
    /// Its name
    #[arg(long)]
    pub(super) name: String,
    /// The length of its lease
    #[arg(long, value_parser = super::super::lock::duration)]
    pub(super) ttl: Duration,
    /// The file to append to
    #[arg(long)]
    pub(super) file: PathBuf,
    /// The file's guard; none to write without asking
    #[arg(long)]
    pub(super) guard: Option<PathBuf>,
}

/// What a worker says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
pub(super) enum Said {
    /// It was told something.
    Told { event: String, ordinal: Option<i64>, role: Option<String>, token: Option<u64>, evidence: String },
    /// It has taken its token and works; after that it writes.
    Works { token: u64 },
    /// It has appended a line.
    Wrote { token: u64 },
    /// The guard refused its line.
    Refused { token: u64, why: String },
    /// Something else went wrong.
    Trouble { why: String },
}

impl Said {
    fn say(&self) -> Result<(), Failure> {
        output::line(serde_json::to_string(self).expect("it has text keys only"))
    }
}

/// Works until standard input ends.
pub(in crate::cli) fn run(args: WorkerArgs, global: &Global) -> Outcome {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    block_on(async {
        let mut group = join(&args, global).await.map_err(|error| Failure::failed(error.to_string()))?;
        let guard = args.guard.as_ref().map(|path| FileGuard::open(path, FileOptions::default())).transpose();
        let guard = guard.map_err(|error| Failure::failed(error.to_string()))?;
        let mut job: Option<(Offer, tokio::time::Instant)> = None;
        loop {
            let due = job.as_ref().map(|(_, due)| *due);
            let due = due.unwrap_or_else(|| tokio::time::Instant::now() + REST);
            tokio::select! {
                biased;
                advisory = group.next() => match advisory {
                    Some(advisory) => told(&advisory).say()?,
                    None => return Ok(ExitCode::SUCCESS),
                },
                () = tokio::time::sleep_until(due) => match job.take() {
                    Some((offer, _)) => write(&args, guard.as_ref(), offer).say()?,
                    None => if let Some(offer) = group.offer() {
                        Said::Works { token: offer.token.0 }.say()?;
                        job = Some((offer, tokio::time::Instant::now() + WORK));
                    },
                },
            }
        }
    })
}

async fn join(args: &WorkerArgs, global: &Global) -> Result<Group, Error> {
    let client = Client::connect(global.server.to_string())?;
    let session = client.session(SessionOptions::with_ttl(args.ttl).label(&args.name)).await?;
    session.join(GROUP, JoinOptions::default().name(&args.name)).await
}

fn told(advisory: &Advisory) -> Said {
    Said::Told {
        event: advisory.event.as_str().into(),
        ordinal: advisory.ordinal,
        role: advisory.role.map(|role| role.to_string()),
        token: advisory.token.map(|token| token.0),
        evidence: advisory.evidence.clone(),
    }
}

/// Appends one line under the token that was taken before the work, come what may.
fn write(args: &WorkerArgs, guard: Option<&FileGuard>, offer: Offer) -> Said {
    let token = offer.token.0;
    let permit = match guard.map(|guard| guard.enter(&Name::new(FILE).expect("it is a name"), offer)) {
        None => None,
        Some(Ok(permit)) => Some(permit),
        Some(Err(error)) if error.is_refusal() => return Said::Refused { token, why: error.to_string() },
        Some(Err(error)) => return Said::Trouble { why: error.to_string() },
    };
    let appended = std::fs::OpenOptions::new().append(true).create(true).open(&args.file);
    let written = appended.and_then(|mut file| file.write_all(format!("{token} {}\n", args.name).as_bytes()));
    drop(permit);
    match written {
        Ok(()) => Said::Wrote { token },
        Err(error) => Said::Trouble { why: format!("cannot write {}: {error}", args.file.display()) },
    }
}
