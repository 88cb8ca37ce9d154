//! While the lock is held: the command runs, and its guardian hears each new deadline.

use super::say;
use super::sign::Sign;
use super::signals::{self, Asked, Job, JobControl, Who};
use super::wrapper::Wrapped;
use crate::cli::Global;
use crate::cli::exit::Failure;
use crate::cli::guardian::{Cause, Ended, Guardian, Report, Start, Status};
use quorate::clock::Clock;
use quorate::{LockGuard, Loss, LossCause};
use quorate_core::time::{Mono, Span};
use rustix::process::Signal;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior};

/// How often within a lease it is looked whether the deadline has moved. The guardian hears of it so much later, which
/// shortens what the command has, and never prolongs it.
const TICKS_PER_LEASE: u32 = 40;
const TICK_MIN: Duration = Duration::from_millis(5);
const TICK_MAX: Duration = Duration::from_millis(250);

/// How it ended.
#[derive(Debug)]
pub(super) enum End {
    /// The command ended by itself.
    Command(Status),
    /// The command was ended, since it may not act any more; `asked`: since its seat was asked for.
    Lost { why: String, stuck: u32, asked: bool },
    /// The command was not run.
    Failed(Failure),
}

struct Held<'a> {
    wrapped: &'a Wrapped<'a>,
    guard: &'a LockGuard,
    guardian: Guardian,
    sign: Option<Sign>,
    clock: Clock,
    tick: Interval,
    /// The last look at the clock.
    looked: Mono,
    /// The longest time between two looks since the deadline moved.
    gap: Span,
    loss: Option<Loss>,
    overdue: bool,
    told_to_stop: bool,
    hung_up: bool,
}

/// Runs the command under the guard, and does not return before it has ended.
pub(super) async fn run(wrapped: &Wrapped<'_>, global: &Global, guard: &LockGuard, asked: &mut Asked) -> End {
    let mut held = match Held::start(wrapped, global, guard) {
        Ok(held) => held,
        Err(end) => return end,
    };
    let mut jobs = match JobControl::listen() {
        Ok(jobs) => jobs,
        Err(failure) => return held.end_all(End::Failed(failure)).await,
    };
    loop {
        let end = tokio::select! {
            biased;
            told = held.guardian.told() => held.hear(told).await,
            signal = asked.next() => held.pass_on(signal),
            job = jobs.next() => held.job(job),
            loss = stopped_or_gone(guard), if held.loss.is_none() => held.lost(loss),
            _ = held.tick.tick() => held.look().await,
        };
        if let Some(end) = end {
            return end;
        }
    }
}

/// Waits until the holder is asked to stop, or may not act any more. A deadline that is near is the guardian's concern.
async fn stopped_or_gone(guard: &LockGuard) -> Loss {
    loop {
        let loss = guard.lost().await;
        if loss.cause != LossCause::DeadlineNear {
            return loss;
        }
        tokio::select! {
            gone = guard.gone() => return gone,
            () = tokio::time::sleep(TICK_MAX) => {}
        }
    }
}

impl<'a> Held<'a> {
    fn start(wrapped: &'a Wrapped<'a>, global: &Global, guard: &'a LockGuard) -> Result<Self, End> {
        let clock = Clock::new();
        let now = clock.now();
        let Some(token) = guard.token() else {
            let why = "its deadline passed before the command was started".into();
            return Err(End::Lost { why, stuck: 0, asked: false });
        };
        let session = guard.session();
        let sign = wrapped.args.progress.map(|_| Sign::new()).transpose();
        let sign = sign.map_err(|error| {
            End::Failed(Failure::failed(format!("cannot make a file for signs of progress: {error}")))
        })?;
        let mut environment = vec![
            ("QUORATE_GROUP", guard.name().to_string()),
            ("QUORATE_TOKEN", token.to_string()),
            ("QUORATE_SEAT", guard.seat().to_string()),
            ("QUORATE_CLUSTER", guard.cluster().to_string()),
            ("QUORATE_SERVER", global.server.to_string()),
            // Without a session nothing: it must not be taken for that of a command further out.
            ("QUORATE_SESSION", session.id().map(|id| id.to_string()).unwrap_or_default()),
        ];
        environment.extend(wrapped.environment.iter().cloned());
        environment.extend(sign.iter().map(|sign| ("QUORATE_PROGRESS", sign.path())));
        let start = Start {
            command: wrapped.command,
            environment,
            lock: guard.name().as_str(),
            grace: span(session.warning()),
            leave_behind: wrapped.args.leave_behind,
            deadline: deadline(now, guard),
        };
        let guardian = Guardian::start(&start)
            .map_err(|error| End::Failed(Failure::failed(format!("cannot start a guardian: {error}"))))?;
        let every = session.ttl().unwrap_or_default() / TICKS_PER_LEASE;
        let mut tick = tokio::time::interval(every.clamp(TICK_MIN, TICK_MAX));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (gap, loss, overdue, told_to_stop, hung_up) = (Span::ZERO, None, false, false, false);
        Ok(Self {
            wrapped,
            guard,
            guardian,
            sign,
            clock,
            tick,
            looked: now,
            gap,
            loss,
            overdue,
            told_to_stop,
            hung_up,
        })
    }

    /// Looks at the clock: tells a new deadline, and notices a guardian that did not do its work.
    async fn look(&mut self) -> Option<End> {
        let now = self.clock.now();
        self.gap = self.gap_at(now);
        self.looked = now;
        if self.sign.as_mut().is_some_and(Sign::was_given) {
            self.guard.progress();
        }
        let acts = (self.loss.is_none() || self.is_asked()) && self.guard.is_held();
        if acts && self.guardian.extend(deadline(now, self.guard)) {
            self.gap = Span::ZERO;
        }
        // The second look, so that what it had told before this process was stopped is heard first.
        let overdue = std::mem::replace(&mut self.overdue, self.guardian.is_overdue(now));
        match overdue && self.overdue {
            true => Some(self.without_guardian().await),
            false => None,
        }
    }

    /// The seat is asked for, and this process holds it until the command has ended (RULES R11).
    fn is_asked(&self) -> bool {
        self.loss.as_ref().is_some_and(|loss| loss.cause == LossCause::Asked)
    }

    /// The longest time between two looks since the deadline moved, up to now.
    fn gap_at(&self, now: Mono) -> Span {
        self.gap.max(now.since(self.looked))
    }

    /// The authority is gone, whatever the deadline says.
    fn lost(&mut self, loss: Loss) -> Option<End> {
        match loss.cause {
            LossCause::Asked => self.guardian.ask(),
            LossCause::Closed => self.guardian.end(),
            _ => self.guardian.kill(),
        }
        self.loss = Some(loss);
        None
    }

    fn pass_on(&self, signal: i32) -> Option<End> {
        self.guardian.signal(signal);
        None
    }

    fn job(&mut self, job: Job) -> Option<End> {
        match job {
            // The command first: this process follows when it has stopped.
            Job::Stop => {
                self.told_to_stop = true;
                self.guardian.signal(Signal::TSTP.as_raw());
            }
            Job::GoOn => self.guardian.let_run(),
        }
        None
    }

    /// What the guardian's word means; the end, if it is one.
    async fn hear(&mut self, told: Option<Report>) -> Option<End> {
        match told {
            Some(Report::NotStarted { why }) => {
                return Some(self.end_all(End::Failed(Failure::failed(why))).await);
            }
            Some(Report::Stopped { signal, interactive }) => self.stop_too(signal, interactive),
            Some(Report::Ending { cause, kill_in }) => self.say_ending(cause, kill_in),
            Some(Report::LeftBehind { count }) => self.say_left_behind(count),
            Some(Report::Ended(ended)) => return Some(self.ended(ended)),
            None => return Some(self.without_guardian().await),
        }
        None
    }

    /// The guardian has died, or does not do its work: this process does it.
    async fn without_guardian(&mut self) -> End {
        let why = format!("the guardian of {} was killed or stopped", self.wrapped.command[0].display());
        self.end_all(End::Lost { why, stuck: 0, asked: false }).await
    }

    fn say_left_behind(&self, count: u32) {
        let (command, name) = (self.wrapped.command[0].display(), self.guard.name());
        let verb = self.wrapped.verb;
        let them = if count == 1 { "1 process" } else { &format!("{count} processes") };
        say(format!(
            "quorate {verb}: {command} has ended and left {them} behind, to be ended before {name} is released \
             (--leave-behind lets them be)"
        ));
    }

    fn ended(&self, ended: Ended) -> End {
        match (ended.cause, ended.status) {
            (None, Some(status)) => End::Command(status),
            (cause, _) => {
                let asked = cause == Some(Cause::Asked);
                End::Lost { why: self.why(cause), stuck: ended.stuck, asked }
            }
        }
    }

    fn why(&self, cause: Option<Cause>) -> String {
        let stopped = span(self.guard.session().ttl().unwrap_or_default()).as_millis() / 4;
        let gap = self.gap_at(self.clock.now());
        match (&self.loss, cause) {
            (Some(loss), Some(Cause::Ordered | Cause::Lost | Cause::Asked)) => loss.why.clone(),
            _ if gap.as_millis() > stopped => {
                format!("this process was stopped for {gap} and could not renew its lease")
            }
            _ => "the service was silent, and the deadline came near".into(),
        }
    }

    fn say_ending(&self, cause: Cause, kill_in: Span) {
        let command = self.wrapped.command[0].display();
        let why = self.why(Some(cause));
        let name = self.guard.name();
        let verb = self.wrapped.verb;
        say(match (cause, kill_in) {
            (Cause::Asked, _) => {
                format!("quorate {verb}: {name} is asked for: {why}; {command} is told to end (SIGTERM)")
            }
            (_, Span::ZERO) => format!("quorate {verb}: {name} is lost: {why}; {command} is killed"),
            _ => format!(
                "quorate {verb}: {name} is lost: {why}; {command} is told to end (SIGTERM), and is killed in {kill_in}"
            ),
        });
    }

    /// The command was stopped by its terminal, or since this process was asked to: then this process stops too, as a
    /// shell expects of a job. Its lease runs on meanwhile.
    fn stop_too(&mut self, signal: i32, interactive: bool) {
        let told = std::mem::take(&mut self.told_to_stop);
        let who = match (interactive, told) {
            (true, _) => Who::Job,
            (false, true) => Who::Me,
            (false, false) => return,
        };
        if signals::is_orphaned() {
            return self.go_on_alone(signal);
        }
        let left = span(self.guard.remaining());
        say(format!(
            "quorate {}: stopped, with {}; unless it goes on within {left}, {} is lost and {1} is ended",
            self.wrapped.verb,
            self.wrapped.command[0].display(),
            self.guard.name(),
        ));
        signals::stop(who);
    }

    /// There is no shell that could continue a job. One that only waits for a terminal, which it will not get, hears
    /// that the terminal is gone, as the kernel would tell it; once, since it may not listen.
    fn go_on_alone(&mut self, signal: i32) {
        let key = signal == Signal::TSTP.as_raw();
        if !key && !std::mem::replace(&mut self.hung_up, true) {
            self.guardian.signal(Signal::HUP.as_raw());
        } else if !key {
            return;
        }
        self.guardian.let_run();
    }

    /// Ends everything that was started. Adds to a loss how many cannot be ended.
    async fn end_all(&mut self, end: End) -> End {
        let left = self.guardian.end_all().await;
        match end {
            End::Lost { why, asked, .. } => End::Lost { why, stuck: left, asked },
            other => other,
        }
    }
}

/// Until when the lock may be acted on. The clock is read first, so it is never later than it is.
fn deadline(now: Mono, guard: &LockGuard) -> Mono {
    let remaining = u64::try_from(guard.remaining().as_micros()).unwrap_or(u64::MAX);
    Mono(now.0.saturating_add(remaining))
}

fn span(time: Duration) -> Span {
    Span::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
