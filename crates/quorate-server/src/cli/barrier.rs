//! `quorate barrier`: waits until so many have come, then goes on.
//!
//! **Rule.** Whoever comes waits until N wait; then all N go on in one step, each with a position of its own. Nothing
//! is held afterwards: a command that is given takes this process's place. **When it fails.** A party that dies before is
//! not counted, and the others wait on: `quorate explain` shows how many are there, and `--wait` sets a limit.

use super::exit::{Failure, Outcome};
use super::lock::signals::{Asked, FORWARDED};
use super::lock::waiting::{self, Wait};
use super::lock::wrapper::{GOODBYE_MAX, can_be_run};
use super::lock::{default_name, duration, failure, interrupted};
use super::{Global, block_on, output};
use clap::Args;
use quorate::{Client, Passage, SessionOptions};
use serde_json::json;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// `quorate barrier NAME --parties N [-- COMMAND ...]`
#[derive(Args, Debug)]
#[command(after_long_help = LONG_HELP)]
pub struct BarrierArgs {
    /// The barrier: any name, the same for all parties
    name: String,
    /// How many must come, the same for all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    parties: u32,
    /// How long to wait for the others, such as 5s; by default as long as it takes
    #[arg(long, value_name = "TIME", value_parser = duration)]
    wait: Option<Duration>,
    /// The length of the lease: how long this party is counted if its machine disappears
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    ttl: Duration,
    /// The name that others see; by default host:pid
    #[arg(long = "name", value_name = "NAME")]
    shown: Option<String>,
    /// What to run then, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const LONG_HELP: &str = "\
Environment of COMMAND:
  QUORATE_GROUP       the barrier's name
  QUORATE_GENERATION  the round: the same for all its parties, greater in each next one
  QUORATE_POSITION    this party's position in it, from 0 to N-1: 0 may do what one must do
  QUORATE_PARTIES     N
Nothing is held while COMMAND runs.

Exit codes:
  COMMAND's own, or 0 without one, and
  1      another number of parties was stated, or the name is in use as something else
  69     no service can be reached
  73     the others did not come in time
  128+n  ended by signal n while it waited

Examples:
  quorate barrier loaded --parties 3 -- ./start.sh
  quorate barrier step-2 --parties 3 --wait 60s && ./next.sh";

/// Waits for the others.
pub(super) fn run(args: BarrierArgs, global: &Global) -> Outcome {
    if let Some(command) = args.command.first() {
        can_be_run(command)?;
    }
    let passage = block_on(meet(&args, global))?;
    match args.command.first() {
        Some(_) => go_on(&args, passage),
        None => say(&args, passage, global.json),
    }
}

async fn meet(args: &BarrierArgs, global: &Global) -> Result<Passage, Failure> {
    let mut asked = Asked::listen(&FORWARDED)?;
    let client = Client::connect(global.server.to_string()).map_err(failure)?;
    let label = format!("quorate barrier (pid {})", std::process::id());
    let options = SessionOptions::with_ttl(args.ttl).label(label);
    let session = tokio::select! {
        session = client.session(options) => session.map_err(failure)?,
        signal = asked.next() => return Err(interrupted(signal, &args.name)),
    };
    let shown = args.shown.clone().unwrap_or_else(default_name);
    let barrier = session.barrier(&*args.name, args.parties).map_err(failure)?.named(shown);
    let wait = Wait { name: &args.name, limit: args.wait };
    let met = waiting::acquire(wait, &client, &session, &mut asked, barrier.wait()).await;
    // Otherwise its lease ends by itself.
    let _ = tokio::time::timeout(GOODBYE_MAX, session.end()).await;
    met
}

fn say(args: &BarrierArgs, passage: Passage, json: bool) -> Outcome {
    let Passage { generation, position, parties, .. } = passage;
    match json {
        true => output::json(&json!({
            "name": args.name,
            "generation": generation.to_string(),
            "position": position,
            "parties": parties,
        }))?,
        false => output::line(format!(
            "{}: all {parties} are here; position {position}, generation {generation}",
            args.name
        ))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Becomes the command.
fn go_on(args: &BarrierArgs, passage: Passage) -> Outcome {
    let failed = Command::new(&args.command[0])
        .args(&args.command[1..])
        .env("QUORATE_GROUP", &args.name)
        .env("QUORATE_GENERATION", passage.generation.to_string())
        .env("QUORATE_POSITION", passage.position.to_string())
        .env("QUORATE_PARTIES", passage.parties.to_string())
        .exec();
    Err(Failure::failed(format!("cannot run {}: {failed}", args.command[0].display())))
}
