//! `quorate bench waiters`: whether a grant costs more when ten thousand wait for the same lock (RULES R15).
//!
//! **At the state machine**: one release, the grant that follows and one join at the tail, applied in this process,
//! without a log. **End to end**: from just before the release to the next grant, through the library, the port and
//! the log of the service that is asked. Few, many, and few again, so that a drift of the machine shows.

use super::{AT_ONCE, Load, Tally, end, failed, lock_of, measure, open, rounded, run_name, runtime};
use crate::cli::Global;
use crate::cli::exit::{Failure, Outcome};
use crate::cli::output::{self, Rows};
use clap::Args;
use quorate::Lock;
use quorate_core::id::{ClusterId, EntryId, Generation, LogIndex, Name, RequestId, Secret, SessionId};
use quorate_core::state_machine::{
    Command, Face, Join, Limits, MemberKind, Mode, OnDisconnect, Op, PolicyWish, Proposal, Reply,
    StateMachine,
};
use quorate_core::time::{Span, Wall};
use serde_json::json;
use std::collections::{BTreeMap, VecDeque};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How many places in the queue one session has at most.
const PLACES: u32 = 100;

/// How many turns are timed together at the state machine, and how often.
const TURNS: u32 = 1_000;
const ROUNDS: u32 = 40;

/// How long the queue may take to form.
const FORMED_WITHIN: Duration = Duration::from_secs(120);

/// `quorate bench waiters`
#[derive(Args, Clone, Debug)]
pub struct WaitersArgs {
    /// How many wait
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=90_000))]
    waiters: u32,
    /// With how many it is compared
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=90_000))]
    few: u32,
    #[command(flatten)]
    load: Load,
}

/// One figure.
struct Figure {
    part: &'static str,
    waiters: u32,
    cycles: u64,
    p50_us: f64,
    p99_us: f64,
}

/// Measures both, and prints how they compare.
///
/// # Errors
/// The service cannot be reached, sessions are refused, or the queue does not form.
pub(super) fn run(args: &WaitersArgs, global: &Global) -> Outcome {
    let mut figures = at_the_machine(args);
    runtime(args.load.threads)?.block_on(async {
        for waiters in [args.few, args.waiters, args.few] {
            figures.push(end_to_end(args.load, waiters, global).await?);
        }
        Ok::<(), Failure>(())
    })?;
    print(&figures, global)?;
    Ok(ExitCode::SUCCESS)
}

fn print(figures: &[Figure], global: &Global) -> Result<(), Failure> {
    let mut rows = Rows::new(&["part", ">waiters", ">cycles", ">p50 us", ">p99 us", ">times the first"]);
    for figure in figures {
        let first = figures.iter().find(|other| other.part == figure.part).unwrap_or(figure);
        let times = figure.p50_us / first.p50_us.max(f64::EPSILON);
        if global.json {
            output::json(&json!({
                "bench": "waiters", "part": figure.part, "waiters": figure.waiters, "cycles": figure.cycles,
                "p50_us": rounded(figure.p50_us), "p99_us": rounded(figure.p99_us), "ratio": rounded(times),
            }))?;
        } else {
            rows.row([
                figure.part.to_owned(),
                figure.waiters.to_string(),
                figure.cycles.to_string(),
                format!("{:.2}", figure.p50_us),
                format!("{:.2}", figure.p99_us),
                format!("{times:.2}"),
            ]);
        }
    }
    if global.json { Ok(()) } else { output::line(rows.render()) }
}

/// The state machine alone: few and many in turns, so that both see the same machine.
fn at_the_machine(args: &WaitersArgs) -> Vec<Figure> {
    let (mut few, mut many) = (Queue::of(args.few), Queue::of(args.waiters));
    let (mut few_us, mut many_us) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        few_us.push(few.turns(TURNS));
        many_us.push(many.turns(TURNS));
    }
    let figure = |waiters, mut us: Vec<f64>| {
        us.sort_by(f64::total_cmp);
        let (p50_us, p99_us) = (us[us.len() / 2], us[us.len() - 1]);
        let cycles = u64::from(TURNS) * u64::from(ROUNDS);
        Figure { part: "state machine", waiters, cycles, p50_us, p99_us }
    };
    vec![figure(args.few, few_us), figure(args.waiters, many_us)]
}

/// A lock in a state machine of its own, and all that queue for it, the holder first.
struct Queue {
    machine: StateMachine,
    index: u64,
    line: VecDeque<(SessionId, EntryId)>,
    requests: BTreeMap<SessionId, u64>,
    join: Join,
}

impl Queue {
    fn of(waiters: u32) -> Self {
        let join = Join {
            group: Name::new("bench").expect("a name"),
            face: Face::Lock,
            kind: MemberKind::Full,
            mode: Mode::Exclusive,
            wait: true,
            name: "bench".into(),
            metadata: BTreeMap::new(),
            weight: 0,
            policy: PolicyWish::default(),
        };
        let (line, requests) = (VecDeque::new(), BTreeMap::new());
        let mut queue = Self { machine: StateMachine::new(), index: 0, line, requests, join };
        queue.apply(Command::Found { cluster: ClusterId(1), limits: Limits::default() });
        for nth in 0..=waiters / PLACES {
            let (secret, ttl) = (Secret(u128::from(nth) + 1), Span::from_secs(10));
            let label = String::new();
            queue.apply(Command::Open { secret, ttl, on_disconnect: OnDisconnect::Hold, label });
        }
        (0..=waiters).for_each(|nth| queue.join(SessionId(u64::from(nth / PLACES) + 1)));
        queue
    }

    fn apply(&mut self, command: Command) -> Reply {
        self.index += 1;
        let proposal = Proposal { at: Wall(self.index), command };
        self.machine.apply(LogIndex(self.index), &proposal).reply
    }

    fn call(&mut self, session: SessionId, op: Op) -> Reply {
        let request = self.requests.entry(session).or_default();
        *request += 1;
        let (request, acknowledged) = (RequestId(*request), RequestId(*request - 1));
        self.apply(Command::Call { session, generation: Generation(1), request, acknowledged, op })
    }

    fn join(&mut self, session: SessionId) {
        let op = Op::Join(self.join.clone());
        if let Reply::Joined(total) = self.call(session, op) {
            self.line.push_back((session, total.entry));
        }
    }

    /// The mean of a turn in microseconds: the holder releases, the next is granted, and the first queues again.
    fn turns(&mut self, turns: u32) -> f64 {
        let started = Instant::now();
        for _ in 0..turns {
            let Some((session, entry)) = self.line.pop_front() else { break };
            self.call(session, Op::Release { entry });
            self.join(session);
        }
        started.elapsed().as_secs_f64() * 1e6 / f64::from(turns)
    }
}

/// A real queue at a real service.
async fn end_to_end(load: Load, waiters: u32, global: &Global) -> Result<Figure, Failure> {
    let clients = waiters + 1;
    let sessions = open(global, clients.min(clients.div_ceil(PLACES).max(AT_ONCE as u32))).await?;
    let name = run_name();
    let tally = Arc::new(Tally::default());
    let mut turns = JoinSet::new();
    for nth in 0..clients as usize {
        let lock = lock_of(&sessions[nth % sessions.len()], name.clone())?;
        turns.spawn(take_turns(lock, Arc::clone(&tally)));
    }
    formed(global, &name, waiters).await?;
    let measured = measure(load, turns, &tally).await;
    end(sessions).await;
    if measured.count() == 0 {
        let why = measured.counted.first_error.unwrap_or_else(|| "no turn ended in the time given".into());
        return Err(Failure::failed(format!("nothing was measured with {waiters} waiters: {why}")));
    }
    Ok(Figure {
        part: "end to end",
        waiters,
        cycles: measured.count(),
        p50_us: measured.ms(0.5) * 1e3,
        p99_us: measured.ms(0.99) * 1e3,
    })
}

/// One place in the queue, until its session is over.
async fn take_turns(lock: Lock, tally: Arc<Tally>) {
    loop {
        let turn = async {
            let guard = lock.acquire().await?;
            let now = tokio::time::Instant::now();
            tally.granted(now);
            tally.releasing(now);
            guard.release().await
        };
        if let Err(error) = turn.await
            && failed(&error, &tally).await
        {
            return;
        }
    }
}

/// Waits until everybody is in the queue. One is between its release and its next place at any moment.
async fn formed(global: &Global, name: &str, waiters: u32) -> Result<(), Failure> {
    let deadline = Instant::now() + FORMED_WITHIN;
    let mut operator = global.server.operator().await?;
    loop {
        let request = quorate::proto::ExplainRequest {
            kind: quorate::proto::explain_request::Kind::Lock.into(),
            name: name.to_owned(),
            max: 1,
        };
        let reply = operator.explain(request).await.map_err(crate::cli::operator::refused)?.into_inner();
        let waiting = reply.group.map_or(0, |group| group.waiting);
        if waiting + 2 >= u64::from(waiters) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let why = format!("only {waiting} of {waiters} were in the queue after {FORMED_WITHIN:?}");
            return Err(Failure::failed(why));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
