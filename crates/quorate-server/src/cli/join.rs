//! `quorate join`: a member of a group, as a process of its own that says what it is told, line by line.
//!
//! **Problem.** Whoever reads the lines acts by them, and a line may be old when it is written: the reader was slow,
//! or this process was stopped. **Rule.** A line is made when it can be written at once, and after it is made the
//! clock is read again: if the deadline has passed, the line that says so (ordinal -1) takes its place. Each line is
//! one write. **When it fails.** A process that is stopped between that reading and the write, less than a
//! microsecond, writes the line when it is continued, and -1 next.

mod lines;
mod out;

use super::Global;
use super::block_on_writing;
use super::exit::{Code, Failure, Outcome};
use super::lock::{default_name, duration, failure, say, signals::Asked, wrapper::some_time};
use super::policy::PolicyArgs;
use clap::{Args, ValueEnum};
use futures::FutureExt;
use out::Out;
use quorate::advisory::{Advisory, Event, Reason};
use quorate::{Client, Error, Group, JoinOptions, MemberKind, OnDisconnect, Session, SessionOptions, wire};
use rustix::process::Signal;
use std::process::ExitCode;
use std::time::Duration;

/// How long the service is tried before it is said that it does not answer; the tries go on.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a leave is nobody's concern.
const LEAVE_SOON: Duration = Duration::from_millis(500);

/// What the reader of the lines may say: that this member has stopped, and that its work goes on.
const WORDS: [Signal; 2] = [Signal::USR1, Signal::USR2];

/// What asks this process to leave.
const LEAVE: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// `quorate join GROUP`
#[derive(Args, Debug)]
#[command(
    after_help = "Each line says what happened and where this member stands from now on; `quorate join --help` \
        lists the events and their reasons.",
    after_long_help = LONG_HELP
)]
pub struct JoinArgs {
    /// The group: any name, the same for all its members
    group: String,
    /// The name that the others see; by default host:pid
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The length of the lease: how long the others wait if this member disappears
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    ttl: Duration,
    /// What is stated about the group, for all its members
    #[command(flatten)]
    policy: PolicyArgs,
    /// Its weight, where the queue is ordered by weight: the heavier is ahead
    #[arg(long, value_name = "N", default_value_t = 0)]
    weight: u32,
    /// How long it acts at most: then it is asked to stop
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    max_hold: Option<Duration>,
    /// How often its work will give a sign (SIGUSR2 to this process); without one it is shown as stalled
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    progress: Option<Duration>,
    /// What a closed connection means
    #[arg(long, value_enum, default_value = "hold")]
    on_disconnect: OnDisconnectArg,
    /// What the others are told about this member; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = metadata)]
    meta: Vec<(String, String)>,
    /// See everything and hold nothing: no ordinal, no seat
    #[arg(long, conflicts_with = "ordinal_only")]
    observer: bool,
    /// Hear of the own place only, not of the others
    #[arg(long)]
    ordinal_only: bool,
}

/// What a closed connection means.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum OnDisconnectArg {
    /// Seats are kept until the lease ends
    Hold,
    /// The member has left at once; two may act for a moment, if it is only cut off
    Release,
}

const LONG_HELP: &str = "\
Lines:
  A member acts while it has a token: from a line with a token until the next line without one.
  Ordinal -1: it is cut off and must not act. It joins again by itself, at the tail if its session
  had ended. Times are UTC. With --json each line is an object with the fields time, group, event,
  form, name, view, ordinal, previous, role, token, holder_token, reason, evidence, remaining_ms,
  and members (in the form total) or changed (in the others).

Roles, where they are not plain:
  pending       it is next and waits for time only: prepare to act. The line says for what: a
                member that is asked to stop, and within which time, or a seat that rests
  draining      it is asked to stop, and the line says why and within which time. It acts until
                you say that it has stopped: by SIGUSR1, and it stays in the group, or by ending
                it. Without that a transfer fails, and it acts on
  reserved      (of others) it was cut off, and its place is kept for the stated time

Signals:
  INT, TERM, HUP  leave
  USR1            it has stopped acting: the seat goes on, and it stays in the group
  USR2            its work goes on (with --progress)

Events:
  joined        this member is in the group; everybody in it is listed
  changed       something changed, but not whether this member acts
  active        this member got a seat and a token: it acts from now on
  standby       this member had a seat and has none now
  unavailable   the service is silent; place and token are kept until the deadline
  disconnected  the deadline has passed: ordinal -1
  reconnected   the connection is back; everybody is listed, and a token may be a new one
  gap           changes were missed; everybody is listed instead
  renewed       this member keeps its seat under a new token
  left          this member has left: the last line
  closed        an operator closed the session, or the service refuses it: the last line

Reasons:
  what the service decided, about this member or another:
    join, leave, expired, disconnect, closed, described, renewed, draining, transferred,
    not_stopped, rested, returned, grace_over, seats, deleted, deadlock, stalled, progress, tripped
  what this member noticed by itself:
    deadline_passed, service_silent, connection_lost, changes_missed, session_lost, refused

The end:
  SIGINT, SIGTERM and SIGHUP make it leave, which passes a seat on at once; the exit code is 0.
  If nobody reads the lines any more it leaves too (141). A member that is killed keeps its place
  until its lease ends. While the service is away it tries on.

Exit codes:
  0      left
  1      the service refuses: another policy or face is in use, or a limit is reached
  2      the command line is wrong, or the lease is shorter than the service can keep
  69     it left, but no service could be told: its place ends with its lease
  75     an operator closed the session or deleted the group
  128+n  ended by signal n before it had joined

The policy:
  What one states holds for all while anybody is in the group, or as long as the group is kept by
  `quorate group create`. Another statement is refused, and shows both.

Examples:
  quorate join payments --name eu-1 --ttl 2s
  quorate join workers --seats 3 --numbering stable    three act, numbers are kept for life
  quorate join db --order weight --preempt on-weight --weight 10    the heaviest acts
  quorate join db --rejoin 30s --handover 2s           a short absence costs no place
  quorate --json join payments | while read -r line; do ...; done";

enum Finish {
    Asked,
    Over(Box<Advisory>),
}

/// Joins and says what it is told.
pub(super) fn run(args: JoinArgs, global: &Global) -> Outcome {
    block_on_writing(member(args, global))
}

async fn member(args: JoinArgs, global: &Global) -> Outcome {
    let mut asked = Asked::listen(&LEAVE)?;
    let words = Asked::listen(&WORDS)?;
    let session = tokio::select! {
        session = open("join", global, args.session_options()) => session?,
        signal = asked.next() => return Err(interrupted(signal, &args)),
    };
    let joined = tokio::select! {
        joined = join(&args, &session) => joined,
        signal = asked.next() => Err(interrupted(signal, &args)),
    };
    let ended = match joined {
        Ok(group) => take_part(group, global, &mut asked, words).await,
        Err(failure) => Err(failure),
    };
    // Otherwise its lease ends by itself.
    let _ = tokio::time::timeout(LEAVE_SOON, session.end()).await;
    ended
}

fn interrupted(signal: i32, args: &JoinArgs) -> Failure {
    let code = Code::Signal(u8::try_from(signal).unwrap_or(0));
    Failure::new(code, format!("ended by signal {signal} before it had joined {}", args.group))
}

/// Says what the member is told, until it leaves or has to.
async fn take_part(mut group: Group, global: &Global, asked: &mut Asked, mut words: Asked) -> Outcome {
    let mut out = Out::new(global.json);
    match tell(&mut group, &mut out, asked, &mut words).await {
        Ok(Finish::Over(last)) => Err(over(*last)),
        Ok(Finish::Asked) => leave(&mut group, &mut out, asked).await,
        Err(failure) => {
            // Nobody reads the lines any more, so nobody should count on this member.
            let _ = leave(&mut group, &mut Out::nowhere(), asked).await;
            Err(failure)
        }
    }
}

/// Tries until there is a service.
pub(super) async fn open(verb: &str, global: &Global, options: SessionOptions) -> Result<Session, Failure> {
    let client =
        Client::builder(global.server.to_string()).open_timeout(PATIENCE).build().map_err(failure)?;
    let mut said = None;
    loop {
        match client.session(options.clone()).await {
            Err(Error::Unreachable { addresses, why, .. }) => {
                if said.as_ref() != Some(&why) {
                    say(format!("quorate {verb}: no service answers at {addresses} ({why}); trying on"));
                    said = Some(why);
                }
            }
            session => return session.map_err(failure),
        }
    }
}

/// Tries until the service has taken this member in.
async fn join(args: &JoinArgs, session: &Session) -> Result<Group, Failure> {
    let options = args.join_options()?;
    loop {
        match session.join(&*args.group, options.clone()).await {
            Err(error @ (Error::WaitLost { .. } | Error::SessionLost { .. })) => {
                say(format!("quorate join: {error}; trying on"));
            }
            group => return group.map_err(failure),
        }
    }
}

/// Says what the member is told, until that is over or somebody asks it to leave.
async fn tell(
    group: &mut Group,
    out: &mut Out,
    asked: &mut Asked,
    words: &mut Asked,
) -> Result<Finish, Failure> {
    let mut next = None;
    loop {
        let advisory = match next.take() {
            Some(advisory) => advisory,
            None => tokio::select! {
                biased;
                _ = asked.next() => return Ok(Finish::Asked),
                () = out.unread() => return Err(Failure::unread()),
                word = words.next() => {
                    pass_on(group, word);
                    continue;
                }
                advisory = group.next() => {
                    advisory.ok_or_else(|| Failure::failed("it is in the group no more"))?
                }
            },
        };
        tokio::select! {
            biased;
            _ = asked.next() => return Ok(Finish::Asked),
            () = out.writable() => {}
        }
        if matches!(advisory.event, Event::Left | Event::Closed) {
            out.write(&advisory)?;
            return Ok(Finish::Over(Box::new(advisory)));
        }
        next = tell_one(group, out, advisory)?;
    }
}

/// Tells the service what the reader of the lines has said. Its answer is the next line.
fn pass_on(group: &Group, word: i32) {
    if word == Signal::USR2.as_raw() {
        return group.progress();
    }
    // It is sent with the first look; whether it was heard is told by what happens.
    let _ = group.stopped().now_or_never();
}

/// Writes a line, unless the deadline has passed since it was made. To ask what comes next is to read the clock: a
/// member that has been cut off hears of that first. What comes next, if there is something.
fn tell_one(group: &mut Group, out: &mut Out, advisory: Advisory) -> Result<Option<Advisory>, Failure> {
    let line = out.line(&advisory);
    let after = group.next().now_or_never().flatten();
    match after {
        Some(after) if matches!(after.event, Event::Disconnected | Event::Closed) => Ok(Some(after)),
        after => {
            out.write_line(&line, &advisory)?;
            Ok(after)
        }
    }
}

/// Leaves, and says so. A second signal ends it without an answer.
async fn leave(group: &mut Group, out: &mut Out, asked: &mut Asked) -> Outcome {
    let name = group.name().clone();
    let slow = async {
        tokio::time::sleep(LEAVE_SOON).await;
        say(format!(
            "quorate join: leaving {name}; the service does not answer yet. Again, and it ends at once"
        ));
        std::future::pending::<()>().await;
    };
    let left = tokio::select! {
        left = group.leave() => left.map_err(|error| error.to_string()),
        signal = asked.next() => Err(format!("ended by signal {signal}")),
        () = slow => Ok(()),
    };
    if let Err(why) = left {
        let reason =
            format!("{name} was left, but the service was not told: {why}; the place ends with its lease");
        return Err(Failure::new(Code::Unreachable, reason));
    }
    while let Some(advisory) = group.next().await {
        out.write(&advisory)?;
        if advisory.event == Event::Left {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// How it ends when nobody asked it to.
fn over(last: Advisory) -> Failure {
    let code = match last.reason {
        Reason::Refused => Code::Failed,
        _ => Code::AuthorityLost,
    };
    Failure::new(code, format!("{} is over for {}: {}", last.group, last.name, last.evidence))
}

impl JoinArgs {
    fn session_options(&self) -> SessionOptions {
        let on_disconnect = match self.on_disconnect {
            OnDisconnectArg::Hold => OnDisconnect::Hold,
            OnDisconnectArg::Release => OnDisconnect::Release,
        };
        let label = format!("quorate join (pid {})", std::process::id());
        SessionOptions::with_ttl(self.ttl).on_disconnect(on_disconnect).label(label)
    }

    fn join_options(&self) -> Result<JoinOptions, Failure> {
        let kind = match (self.observer, self.ordinal_only) {
            (true, _) => MemberKind::Observer,
            (_, true) => MemberKind::OrdinalOnly,
            _ => MemberKind::Full,
        };
        let name = self.name.clone().unwrap_or_else(default_name);
        let policy =
            wire::from_policy(self.policy.wire()).map_err(|error| Failure::usage(error.to_string()))?;
        let mut options = JoinOptions::default().name(name).kind(kind).policy(policy).weight(self.weight);
        (options.max_hold, options.progress) = (self.max_hold, self.progress);
        Ok(self.meta.iter().fold(options, |options, (key, value)| options.metadata(key, value)))
    }
}

fn metadata(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err("write it as KEY=VALUE".into()),
    }
}

#[cfg(test)]
mod tests;
