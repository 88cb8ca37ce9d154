//! `quorate lead`: an office that one of many holds, with a value that says where to find its holder.
//!
//! **Problem.** A service has one leader, whose clients must find it. **Rule.** Wait for the office, say the value, and
//! hold it while a command runs, exactly as `quorate lock` holds a lock; or, without a command, until this process is
//! told to end, saying line by line how the office stands. **When it fails.** As `quorate lock`; and whoever reads the
//! lines may read an old one: a line is true when it is written, for as long as it says.

use super::exit::{Code, Failure, Outcome};
use super::lock::signals::{Asked, FORWARDED};
use super::lock::waiting::{self, Wait};
use super::lock::wrapper::{GOODBYE_MAX, WrapArgs, Wrapped, can_be_run, critical_section};
use super::lock::{default_name, failure, interrupted, stated};
use super::{Global, block_on, block_on_writing, output};
use crate::json;
use crate::node::disk;
use clap::Args;
use futures::FutureExt;
use quorate::{Client, Leader, Loss, LossCause, Session};
use serde_json::json;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

/// How often it is looked whether what was said still holds.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// `quorate lead NAME --value VALUE [-- COMMAND ...]`
#[derive(Args, Debug)]
#[command(
    after_help = "`quorate observe NAME` shows who leads; `quorate lead --help` lists the lines and the exit \
        codes.",
    after_long_help = LONG_HELP
)]
pub struct LeadArgs {
    /// The office: any name, the same for all candidates
    name: String,
    /// What those who look on are told: an address, or whatever they need
    #[arg(long, default_value = "")]
    value: String,
    #[command(flatten)]
    wrap: WrapArgs,
    /// What to run while this process leads, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const LONG_HELP: &str = "\
With COMMAND:
  As `quorate lock`: COMMAND is told the office by QUORATE_GROUP, QUORATE_TOKEN, QUORATE_SEAT,
  QUORATE_CLUSTER, QUORATE_SERVER, QUORATE_SESSION and QUORATE_VALUE; it has ended before another leads; and the
  exit code is its own, or one of Quorate's.

Without COMMAND:
  This process leads until SIGINT, SIGTERM or SIGHUP, and says on standard output:
  leading      it leads under this token; `remaining_ms` is for how long if nothing is heard
  asked        it is asked to stop, and leads until it is told to end: by you
  unavailable  the service is silent; it leads for so long yet
  lost         it leads no more: the last line, and the exit code is 75
  resigned     it has left the office: the last line, and the exit code is 0

Exit codes:
  as `quorate lock --help` lists them

Examples:
  quorate lead scheduler --value 10.0.0.7:9000 -- ./scheduler
  quorate lead scheduler --value 10.0.0.7:9000          hold the office, run nothing
  quorate --json lead scheduler --try | while read -r line; do ...; done";

/// Waits for the office and holds it.
pub(super) fn run(args: LeadArgs, global: &Global) -> Outcome {
    match args.command.first() {
        Some(command) => can_be_run(command)?,
        None if args.wrap.progress.is_some() => {
            return Err(Failure::usage("--progress needs a COMMAND, whose work it is that gives signs"));
        }
        None => {}
    }
    match args.command.is_empty() {
        true => block_on_writing(campaign(&args, global)),
        false => block_on(campaign(&args, global)),
    }
}

async fn campaign(args: &LeadArgs, global: &Global) -> Outcome {
    let mut asked = Asked::listen(&FORWARDED)?;
    let client = Client::connect(global.server.to_string()).map_err(failure)?;
    let options = args.wrap.session("lead", args.command.first().map(OsString::as_os_str), &global.server);
    let session = tokio::select! {
        session = client.session(options) => session.map_err(failure)?,
        signal = asked.next() => return Err(interrupted(signal, &args.name)),
    };
    let done = in_office(args, global, &client, &session, &mut asked).await;
    // Otherwise its lease ends by itself.
    let _ = tokio::time::timeout(GOODBYE_MAX, session.end()).await;
    done
}

async fn in_office(
    args: &LeadArgs,
    global: &Global,
    client: &Client,
    session: &Session,
    asked: &mut Asked,
) -> Outcome {
    let office = stated!(session.leadership(&*args.name).map_err(failure)?, args);
    let wait = Wait { name: &args.name, limit: args.wrap.wait };
    let leader = match args.wrap.try_only {
        true => waiting::attempt(wait, asked, office.try_campaign(&*args.value)).await?,
        false => waiting::acquire(wait, client, session, asked, office.campaign(&*args.value)).await?,
    };
    if args.command.is_empty() {
        return Lines { leader, json: global.json }.until_told_to_end(asked).await;
    }
    let environment = vec![("QUORATE_VALUE", args.value.clone())];
    let wrapped = Wrapped { verb: "lead", args: &args.wrap, command: &args.command, environment };
    critical_section(&wrapped, global, leader.into(), asked).await
}

/// A leader that says how its office stands.
struct Lines {
    leader: Leader,
    json: bool,
}

impl Lines {
    async fn until_told_to_end(self, asked: &mut Asked) -> Outcome {
        self.line("leading", "")?;
        let mut said = None;
        loop {
            let now = tokio::select! {
                biased;
                _ = asked.next() => return self.resign().await,
                now = self.next(said) => now,
            };
            let before = std::mem::replace(&mut said, now.as_ref().map(|loss| loss.cause));
            match now {
                None if before == Some(LossCause::Asked) => self.line("leading", "it is asked no more")?,
                None => self.line("leading", "the service is heard again")?,
                Some(Loss { cause: LossCause::Asked, why, .. }) => self.line("asked", &why)?,
                Some(Loss { cause: LossCause::DeadlineNear, why, .. }) => self.line("unavailable", &why)?,
                Some(loss) => return self.lost(&loss).await,
            }
        }
    }

    /// What is to be said next, after `said`: a threat, that it is over, or that all is well again.
    async fn next(&self, said: Option<LossCause>) -> Option<Loss> {
        if said.is_none() {
            return Some(self.leader.lost().await);
        }
        loop {
            tokio::select! {
                gone = self.leader.gone() => return Some(gone),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            let now = self.leader.lost().now_or_never();
            if now.as_ref().map(|loss| loss.cause) != said {
                return now;
            }
        }
    }

    async fn lost(self, loss: &Loss) -> Outcome {
        self.line("lost", &loss.why)?;
        let name = self.leader.name().clone();
        // Otherwise its lease ends by itself.
        let _ = tokio::time::timeout(GOODBYE_MAX, self.leader.resign()).await;
        Err(Failure::new(Code::AuthorityLost, format!("{name} was lost: {}", loss.why)))
    }

    async fn resign(self) -> Outcome {
        let name = self.leader.name().clone();
        let (json, value) = (self.json, self.leader.value().to_owned());
        match tokio::time::timeout(GOODBYE_MAX, self.leader.resign()).await {
            Ok(Ok(())) => {
                let shown =
                    Shown { name: name.as_str(), event: "resigned", value: &value, ..Shown::default() };
                shown.write(json)?;
                Ok(ExitCode::SUCCESS)
            }
            _ => Err(Failure::new(
                Code::Unreachable,
                format!("{name} was left, but the service was not told: the office ends with its lease"),
            )),
        }
    }

    fn line(&self, event: &str, why: &str) -> Result<(), Failure> {
        let token = self.leader.token().map(|token| token.to_string());
        let (name, value) = (self.leader.name().as_str(), self.leader.value());
        Shown { name, event, token, value, remaining: self.leader.remaining(), why }.write(self.json)
    }
}

/// A line.
#[derive(Default)]
struct Shown<'a> {
    name: &'a str,
    event: &'a str,
    token: Option<String>,
    value: &'a str,
    remaining: Duration,
    why: &'a str,
}

impl Shown<'_> {
    fn write(&self, json: bool) -> Result<(), Failure> {
        let remaining_ms = u64::try_from(self.remaining.as_millis()).unwrap_or(u64::MAX);
        if json {
            return output::json(&json!({
                "time": json::time(disk::wall().0),
                "name": self.name,
                "event": self.event,
                "token": self.token,
                "value": self.value,
                "remaining_ms": remaining_ms,
                "evidence": self.why,
            }));
        }
        let token = self.token.as_ref().map_or("no token".to_owned(), |token| format!("token {token}"));
        let time = super::observe::time_of_day(disk::wall().0);
        let (value, why) = (output::plain(self.value), output::plain(self.why));
        let line = format!("{time}  {:<11}  {}  {token}  {value}  {why}", self.event, self.name);
        output::line(line.trim_end())
    }
}
