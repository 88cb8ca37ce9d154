//! `quorate transfer`: the seat goes to another member, and the command stays until it has, or has not.
//!
//! **Rule.** The holder is asked to stop; the seat moves on its own word, or when its lease has ended (RULES
//! R11). So a transfer can fail, and then says who holds on. `--force` ends the holder's renewals instead, and
//! waits its lease out.

use super::super::exit::{Code, Failure, Outcome};
use super::super::output::{self, Tone, paint, plain};
use super::super::{Global, block_on};
use super::{client, refused};
use crate::explain::words::{clock, shell};
use crate::json;
use crate::node::disk;
use clap::Args;
use quorate::proto::operator_client::OperatorClient;
use quorate::proto::{self, Reason};
use quorate_core::time::Wall;
use serde_json::{Value, json};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;
use tonic::transport::Channel;

/// How often it is looked at. A person sees no difference to sooner, and the service no load.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How many that wait are looked through for the member.
const WAITERS_MAX: u32 = 10_000;

/// `quorate transfer`
#[derive(Args, Clone, Debug)]
#[command(
    long_about = "Move the seat of a group, lock or leadership to a member that waits for it.\n\nThe holder \
        is asked to stop, and the seat moves when it says that it has. If it does not within the time, the \
        transfer has failed and the holder holds on: nobody takes a seat from one who may still act. With \
        --force its lease is renewed no more, and the seat moves when the lease has ended.",
    after_help = "Examples:\n  quorate transfer workers --to host-b\n  quorate transfer workers --to '#12' \
        --drain 2s --force"
)]
pub struct TransferArgs {
    /// The name of the group, lock or leadership
    group: String,
    /// The member that is to act: its name, or # and the number of its place
    #[arg(long, value_name = "MEMBER")]
    to: String,
    /// How long the holder may take; at most a third of its lease, which is also the default
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    drain: Option<Duration>,
    /// If it does not stop in time, renew its lease no more and wait the lease out
    #[arg(long)]
    force: bool,
}

/// How it ended.
enum End {
    Moved { token: u64 },
    Failed { why: String },
}

/// Moves a seat, and waits for what comes of it.
///
/// # Errors
/// No service answers, it refuses, or the holder did not stop ([`Code::NotGranted`]).
pub fn transfer(args: TransferArgs, global: &Global) -> Outcome {
    let drain_ms = args.drain.map_or(0, |drain| u64::try_from(drain.as_millis()).unwrap_or(u64::MAX));
    let result = block_on(async {
        let mut operator = global.server.operator().await?;
        let target = target(&explained(&mut operator, &args.group).await?, &args.to);
        let request = proto::TransferRequest {
            client: client(),
            group: args.group.clone(),
            to: args.to.clone(),
            drain_ms,
            force: args.force,
        };
        let begun = operator.transfer(request).await.map(tonic::Response::into_inner).map_err(refused)?;
        let Some(target) = target else {
            return Err(Failure::failed(format!("{} is not in the queue any more", args.to)));
        };
        let watch = Watch { args: &args, target, begun: &begun };
        let end = watch.to_the_end(&mut operator).await?;
        Ok((end, begun))
    });
    match result {
        Ok((end, begun)) => finish(&args, end, &begun, global),
        Err(failure) => {
            if global.json {
                let (group, to) = (&args.group, &args.to);
                let why = &failure.reason;
                output::json(&json!({ "outcome": "refused", "group": group, "to": to, "why": why }))?;
            }
            Err(failure)
        }
    }
}

async fn explained(
    operator: &mut OperatorClient<Channel>,
    group: &str,
) -> Result<proto::ExplainReply, Failure> {
    let kind = proto::explain_request::Kind::Group.into();
    let request = proto::ExplainRequest { kind, name: group.into(), max: WAITERS_MAX };
    operator.explain(request).await.map(tonic::Response::into_inner).map_err(refused)
}

/// The place of the member, as the service will find it.
fn target(reply: &proto::ExplainReply, to: &str) -> Option<u64> {
    let place = to.strip_prefix('#').and_then(|place| place.parse::<u64>().ok());
    let is_it = |waiter: &&proto::Waiter| waiter.name == to || Some(waiter.entry) == place;
    reply.waiters.iter().find(is_it).map(|waiter| waiter.entry)
}

/// What is waited for.
struct Watch<'a> {
    args: &'a TransferArgs,
    target: u64,
    begun: &'a proto::TransferReply,
}

impl Watch<'_> {
    async fn to_the_end(&self, operator: &mut OperatorClient<Channel>) -> Result<End, Failure> {
        let mut progress = Progress::default();
        loop {
            let reply = explained(operator, &self.args.group).await?;
            if let Some(end) = self.end(&reply) {
                progress.clear();
                return Ok(end);
            }
            progress.show(&self.waits_for(&reply));
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// How it ended, if it has.
    fn end(&self, reply: &proto::ExplainReply) -> Option<End> {
        let mut since = reply.history.iter().filter(|past| past.index > self.begun.index);
        // A member that was quick may have had the seat and left it by now.
        let had = since.clone().flat_map(|past| &past.granted);
        let holds = reply.holders.iter().chain(had).find(|holder| holder.entry == self.target);
        if let Some(seat) = holds.and_then(|holder| holder.seat) {
            return Some(End::Moved { token: seat.token });
        }
        let asked = self.begun.asked.as_ref().map(|holder| holder.session);
        if let Some(past) = since.find(|past| {
            past.reason() == Reason::NotStopped && asked.is_none_or(|session| session == past.session)
        }) {
            return Some(End::Failed { why: past.evidence.clone() });
        }
        let waits = reply.waiters.iter().any(|waiter| waiter.entry == self.target);
        let why = format!("{} is not in the queue any more", self.args.to);
        (!waits).then_some(End::Failed { why })
    }

    fn waits_for(&self, reply: &proto::ExplainReply) -> String {
        let waiter = reply.waiters.iter().find(|waiter| waiter.entry == self.target);
        waiter.map_or_else(|| reply.sentence.clone(), |waiter| waiter.sentence.clone())
    }
}

/// The line that says what is waited for: it is renewed on a terminal, and written once for each change else.
#[derive(Default)]
struct Progress {
    said: String,
}

impl Progress {
    fn show(&mut self, waits_for: &str) {
        if self.said == waits_for {
            return;
        }
        waits_for.clone_into(&mut self.said);
        let waits_for = plain(waits_for);
        let clock = clock(disk::wall(), disk::wall());
        let mut terminal = io::stderr().lock();
        let start = if terminal.is_terminal() { "\r\x1b[K" } else { "" };
        let end = if terminal.is_terminal() { "" } else { "\n" };
        // Nobody who closed standard error misses it.
        let _ = write!(terminal, "{start}{clock} waiting: {waits_for}{end}").and_then(|()| terminal.flush());
    }

    fn clear(&self) {
        let mut terminal = io::stderr().lock();
        if terminal.is_terminal() && !self.said.is_empty() {
            let _ = terminal.write_all(b"\r\x1b[K").and_then(|()| terminal.flush());
        }
    }
}

fn finish(args: &TransferArgs, end: End, begun: &proto::TransferReply, global: &Global) -> Outcome {
    let (group, to) = (&args.group, &args.to);
    let from = begun.asked.as_ref().map(json::holder).unwrap_or(Value::Null);
    match end {
        End::Moved { token } => {
            if global.json {
                output::json(&json!({
                    "outcome": "moved", "group": group, "to": to, "token": token.to_string(), "from": from,
                }))?;
            } else {
                let text = format!("{group} has moved to {}, with token {token}", plain(to));
                output::line(paint(Tone::Good, &text))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        End::Failed { why } => {
            if global.json {
                output::json(&json!({
                    "outcome": "failed", "group": group, "to": to, "why": why, "holder": from,
                }))?;
            }
            Err(Failure::new(Code::NotGranted, failed(args, &why, begun)))
        }
    }
}

/// What happened, what is still held, what to do.
fn failed(args: &TransferArgs, why: &str, begun: &proto::TransferReply) -> String {
    let holder = begun.asked.as_ref().map(|holder| {
        let token = holder.seat.map(|seat| seat.token).unwrap_or_default();
        format!("{} (session {}) holds on with token {token}", holder.name, holder.session)
    });
    let force = match args.force {
        true => String::new(),
        false => format!(
            "; `quorate transfer {} --to {} --force` waits its lease out",
            shell(&args.group),
            shell(&args.to)
        ),
    };
    let holder = holder.unwrap_or_else(|| "nothing was moved".into());
    format!("{} was not moved to {}: {why}; {holder}{force}", args.group, args.to)
}

/// When the time of a holder that was asked is over, for those who read.
pub(super) fn left(holder: &proto::Holder) -> String {
    let token = holder.seat.map(|seat| seat.token).unwrap_or_default();
    let ends = holder.remaining_ms.map(|ms| {
        let now = disk::wall();
        format!(", whose lease ends at {} if it falls silent now", clock(Wall(now.0 + ms), now))
    });
    format!("{} (session {}, token {token}){}", holder.name, holder.session, ends.unwrap_or_default())
}
