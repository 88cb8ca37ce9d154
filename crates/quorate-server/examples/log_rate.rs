//! Measures the log engine: proposals a second on a real disk, for several numbers of proposers.
//!
//! Run: `cargo run --release -p quorate-server --example log_rate -- [DIR] [SECONDS]`
//!
//! You will see one line for each number of proposers: proposals a second, the median and the 99th
//! percentile of one proposal, commits a second, entries a commit, and how long a commit took. Every
//! proposal is on disk before it is answered. Without DIR a temporary directory in the working
//! directory is used, since the system's one may live in memory.

use quorate_core::id::{ClusterId, NodeId, RequestId, Secret, SessionId};
use quorate_core::state_machine::{Command, Limits, OnDisconnect, Op, Proposal, Reply};
use quorate_core::time::{Span, Wall};
use quorate_server::log::{Engine, Options, TokioRuntime};
use std::path::PathBuf;
use std::time::{Duration, Instant};

type Node = Engine<TokioRuntime>;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let scratch = tempfile::tempdir_in(".").expect("a temporary directory");
    let dir = arguments.next().map_or_else(|| scratch.path().join("data"), PathBuf::from);
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(3);
    let start = Instant::now();
    let (engine, mut feed) = Node::open(&dir, Options::lone()).await.expect("the engine starts");
    engine.ready(Duration::from_secs(10)).await.expect("a lone node leads");
    println!("ready after {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    tokio::spawn(async move {
        let mut steps = Vec::new();
        while feed.next_many(&mut steps, 1_024).await > 0 {
            steps.clear();
        }
    });
    propose(&engine, Command::Found { cluster: ClusterId(1), limits: Limits::default() }).await;
    propose(&engine, Command::Begin { node: NodeId(1), nonce: 1 }).await;
    println!("proposers  per second  p50 ms  p99 ms  commits/s  entries/commit  commit p50 ms  p99 ms");
    for proposers in [1, 4, 16, 64, 256] {
        measure(&engine, proposers, Duration::from_secs(seconds)).await;
    }
    println!("{:?}", engine.metrics());
    engine.shutdown().await;
}

async fn propose(engine: &Node, command: Command) -> Reply {
    engine.propose(Proposal { at: Wall(0), command }).await.expect("a lone node takes proposals")
}

async fn measure(engine: &Node, proposers: usize, length: Duration) {
    let before = engine.counts();
    let start = Instant::now();
    let tasks: Vec<_> = (0..proposers).map(|_| tokio::spawn(cycle(engine.clone(), start + length))).collect();
    let mut micros = Vec::new();
    for task in tasks {
        micros.extend(task.await.expect("a proposer ends well"));
    }
    let took = start.elapsed().as_secs_f64();
    let after = engine.counts();
    micros.sort_unstable();
    let commits = after.commits - before.commits;
    println!(
        "{proposers:9}  {:10.0}  {:6.2}  {:6.2}  {:9.0}  {:14.1}  {:13.2}  {:6.2}",
        micros.len() as f64 / took,
        f64::from(micros[micros.len() / 2]) / 1e3,
        f64::from(micros[micros.len() * 99 / 100]) / 1e3,
        commits as f64 / took,
        (after.entries - before.entries) as f64 / commits as f64,
        after.commit_p50.as_secs_f64() * 1e3,
        after.commit_p99.as_secs_f64() * 1e3,
    );
}

/// Opens a session, then calls about an entry that is not there until the time is over: a small
/// command whose work in the state machine is next to nothing, so that the log is what is measured.
async fn cycle(engine: Node, end: Instant) -> Vec<u32> {
    let secret = Secret(rand::random());
    let open = Command::Open {
        secret,
        ttl: Span::from_secs(60),
        on_disconnect: OnDisconnect::Hold,
        label: "log_rate".to_owned(),
    };
    let Reply::Opened(opened) = propose(&engine, open).await else { panic!("a session opens") };
    let mut micros = Vec::new();
    let mut request = 1;
    while Instant::now() < end {
        let start = Instant::now();
        propose(&engine, call(opened.session, opened.generation, request)).await;
        micros.push(u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX));
        request += 1;
    }
    micros
}

fn call(session: SessionId, generation: quorate_core::id::Generation, request: u64) -> Command {
    Command::Call {
        session,
        generation,
        request: RequestId(request),
        acknowledged: RequestId(request),
        op: Op::Cancel { entry: quorate_core::id::EntryId(0) },
    }
}
