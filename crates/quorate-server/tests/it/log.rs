//! The log engine on a real disk and on one that fails. On a simulated cluster: `log_simulated.rs`.

#![allow(clippy::unwrap_used)]

use crate::disk::{Fault, FaultyDisk};
use crate::rounds::rounds;
use quorate_core::id::{ClusterId, LogIndex, NodeId, Reign, Secret};
use quorate_core::state_machine::{Command, Limits, OnDisconnect, Proposal, Reply, StateMachine};
use quorate_core::time::{Span, Wall};
use quorate_server::log::{
    Alone, Driver, Engine, Feed, FeedReader, NodeRole, Options, ProposeError, Store, TokioRuntime, Unable,
};
use std::sync::Arc;
use std::time::Duration;

type Node = Engine<TokioRuntime>;

/// Long enough for a loaded machine; every wait below ends by an event.
const PATIENCE: Duration = Duration::from_secs(20);

fn proposal(command: Command) -> Proposal {
    Proposal { at: Wall(1_000), command }
}

fn found() -> Proposal {
    proposal(Command::Found { cluster: ClusterId(7), limits: Limits::default() })
}

fn begin(nonce: u128) -> Proposal {
    proposal(Command::Begin { node: NodeId(1), nonce })
}

fn open(secret: u128) -> Proposal {
    let (secret, ttl) = (Secret(secret), Span::from_secs(10));
    proposal(Command::Open { secret, ttl, on_disconnect: OnDisconnect::Hold, label: "a test".to_owned() })
}

async fn lone(disk: &FaultyDisk) -> (Node, FeedReader) {
    let store = Store::with_backends(disk.clone(), disk.entries(), Driver::Thread).unwrap();
    let (engine, feed) = Node::start(store, Arc::new(Alone), Options::lone()).await.unwrap();
    engine.ready(PATIENCE).await.unwrap();
    (engine, feed)
}

/// Founds the cluster and begins to keep leases, so that sessions can be opened.
async fn set_up(engine: &Node) {
    assert_eq!(engine.propose(found()).await.unwrap(), Reply::Done);
    assert_eq!(engine.propose(begin(1)).await.unwrap(), Reply::Began { reign: Reign(1) });
}

async fn feed_until(feed: &mut FeedReader, index: LogIndex) -> Vec<Feed> {
    let mut steps = Vec::new();
    while steps.last().is_none_or(|step: &Feed| step.index() < index) {
        let next = tokio::time::timeout(PATIENCE, feed.next()).await.expect("the feed goes on");
        steps.push(next.expect("the feed has not ended"));
    }
    steps
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_node_founds_answers_and_comes_back() {
    let root = tempfile::tempdir().unwrap();
    let (engine, _feed) = Node::open(root.path(), Options::lone()).await.unwrap();
    engine.ready(PATIENCE).await.unwrap();
    set_up(&engine).await;
    for secret in 1..=50 {
        assert!(matches!(engine.propose(open(secret)).await.unwrap(), Reply::Opened(_)));
    }
    let metrics = engine.metrics();
    assert_eq!((metrics.role, metrics.leader), (NodeRole::Leader, Some(NodeId(1))));
    assert_eq!(engine.confirm().await.unwrap(), metrics.applied.unwrap());
    let before = engine.read(StateMachine::clone);
    engine.shutdown().await;

    let (engine, _feed) = Node::open(root.path(), Options::lone()).await.unwrap();
    engine.ready(PATIENCE).await.unwrap();
    assert_eq!(engine.read(StateMachine::clone), before);
    assert!(engine.metrics().term > metrics.term, "a leader that comes back is elected anew");
    assert_eq!(engine.propose(begin(2)).await.unwrap(), Reply::Began { reign: Reign(2) });
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_is_told_who_has_the_directory() {
    let root = tempfile::tempdir().unwrap();
    let (engine, _feed) = Node::open(root.path(), Options::lone()).await.unwrap();
    let error = Node::open(root.path(), Options::lone()).await.unwrap_err();
    let who = format!("is in use by the server with process id {}", std::process::id());
    assert!(error.to_string().contains(&who), "{error}");
    engine.shutdown().await;
    let (engine, _feed) = Node::open(root.path(), Options::lone()).await.unwrap();
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_feed_has_everything_in_order_and_before_the_answer() {
    let (engine, mut feed) = lone(&FaultyDisk::default()).await;
    set_up(&engine).await;
    for secret in 1..=20 {
        engine.propose(open(secret)).await.unwrap();
        let applied = engine.metrics().applied.unwrap();
        let mut seen = None;
        while let Some(step) = feed.try_next() {
            assert!(seen.is_none_or(|before: LogIndex| step.index().0 == before.0 + 1), "no step is missing");
            seen = Some(step.index());
        }
        assert_eq!(seen, Some(applied), "what was answered is in the feed");
        assert_eq!(feed.waiting(), 0);
    }
    engine.shutdown().await;
    drop(engine);
    assert_eq!(tokio::time::timeout(PATIENCE, feed.next()).await.unwrap(), None, "it ends with the engine");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compacted_log_comes_back_from_its_snapshot() {
    let root = tempfile::tempdir().unwrap();
    let options = Options { compact_every: 100, ..Options::lone() };
    let (engine, mut feed) = Node::open(root.path(), options.clone()).await.unwrap();
    engine.ready(PATIENCE).await.unwrap();
    set_up(&engine).await;
    let mut secret = 0;
    while engine.metrics().purged.is_none() {
        secret += 1;
        engine.propose(open(secret)).await.unwrap();
        assert!(secret < 100_000, "the log was never compacted");
    }
    let metrics = engine.metrics();
    assert!(metrics.snapshot >= metrics.purged, "nothing is purged that is not in a snapshot");
    let last = feed_until(&mut feed, metrics.applied.unwrap()).await;
    assert!(last.iter().all(|step| !matches!(step, Feed::Replaced { .. })));
    let before = engine.read(StateMachine::clone);
    engine.shutdown().await;

    let (engine, mut feed) = Node::open(root.path(), options).await.unwrap();
    engine.ready(PATIENCE).await.unwrap();
    assert_eq!(engine.read(StateMachine::clone), before);
    let steps = feed_until(&mut feed, metrics.applied.unwrap()).await;
    let first = &steps[0];
    assert!(matches!(first, Feed::Replaced { index } if Some(*index) >= metrics.snapshot), "{first:?}");
    assert!(steps[1..].iter().all(|step| !matches!(step, Feed::Replaced { .. })));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_ends_the_node_with_a_reason() {
    let disk = FaultyDisk::default();
    let (engine, _feed) = lone(&disk).await;
    set_up(&engine).await;
    disk.fail(Fault::Sync(0));
    let error = engine.propose(open(1)).await.unwrap_err();
    let why = tokio::time::timeout(PATIENCE, engine.fatal()).await.expect("the end is told");
    assert!(why.contains("the sync failed") && why.contains("must stop"), "{why}");
    assert_eq!(error, ProposeError::Unknown { why: why.clone() });
    let stopped = Unable::Stopped { why };
    assert_eq!(engine.propose(open(2)).await, Err(ProposeError::NotDone(stopped.clone())));
    assert_eq!(engine.confirm().await, Err(stopped), "a node that cannot log confirms no lease");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_is_told_too() {
    let (engine, _feed) = lone(&FaultyDisk::default()).await;
    let watcher = tokio::spawn({
        let engine = engine.clone();
        async move { engine.fatal().await }
    });
    engine.shutdown().await;
    let why = tokio::time::timeout(PATIENCE, watcher).await.unwrap().unwrap();
    assert_eq!(why, "it was shut down");
    assert!(matches!(engine.propose(found()).await, Err(ProposeError::Unknown { .. })));
    assert!(matches!(engine.confirm().await, Err(Unable::Stopped { .. })));
    assert_eq!(engine.metrics().role, NodeRole::Stopped);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_may_not_found_waits() {
    let disk = FaultyDisk::default();
    let store = Store::with_backends(disk.clone(), disk.entries(), Driver::Thread).unwrap();
    let options = Options::member(NodeId(4), None);
    let (engine, _feed) = Node::start(store, Arc::new(Alone), options).await.unwrap();
    let waited = engine.ready(Duration::from_millis(300)).await;
    assert_eq!(waited, Err(Unable::NotLeader { leader: None }));
    let refused = Err(ProposeError::NotDone(Unable::NotLeader { leader: None }));
    assert_eq!(engine.propose(found()).await, refused);
    assert_eq!(engine.metrics().role, NodeRole::Learner);
    engine.shutdown().await;
}

/// Proposers open sessions until the power goes; every session that was answered is there afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_power_loss_under_load_keeps_what_was_answered() {
    for seed in 0..8 {
        let disk = FaultyDisk::default();
        let (engine, _feed) = lone(&disk).await;
        set_up(&engine).await;
        disk.fail(if seed % 2 == 0 { Fault::Write(400 + 37 * seed) } else { Fault::Sync(60 + 7 * seed) });
        let proposers =
            (0..16).map(|proposer| tokio::spawn(open_until_the_end(engine.clone(), proposer << 64)));
        let proposers: Vec<_> = proposers.collect();
        let mut answered = Vec::new();
        for proposer in proposers {
            answered
                .extend(tokio::time::timeout(PATIENCE, proposer).await.expect("all are answered").unwrap());
        }
        assert!(engine.health().why().is_some());
        engine.shutdown().await;
        assert!(answered.len() > 16, "seed {seed}: only {} were answered", answered.len());

        let (engine, _feed) = lone(&disk.crash(seed)).await;
        for (secret, session) in answered {
            let Reply::Opened(again) = engine.propose(open(secret)).await.unwrap() else {
                panic!("it opens")
            };
            assert_eq!(again.session, session, "seed {seed}: an opening was answered and then lost");
        }
        engine.shutdown().await;
    }
}

async fn open_until_the_end(engine: Node, first: u128) -> Vec<(u128, quorate_core::id::SessionId)> {
    let mut answered = Vec::new();
    for secret in first.. {
        match engine.propose(open(secret)).await {
            Ok(Reply::Opened(opened)) => answered.push((secret, opened.session)),
            Ok(reply) => panic!("an opening was answered by {reply:?}"),
            Err(_) => break,
        }
    }
    answered
}

/// Proposals keep coming while the engine ends, of itself or because it is shut down: every one of them is answered.
/// One that came at the very moment of the end was not, once in a thousand ends (`QUORATE_ROUNDS` of them here).
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_proposal_at_the_moment_of_the_end_is_answered() {
    for round in 0..rounds(500) {
        let disk = FaultyDisk::default();
        let (engine, _feed) = lone(&disk).await;
        set_up(&engine).await;
        let proposers: Vec<_> = (0..64)
            .map(|proposer| tokio::spawn(open_until_the_end(engine.clone(), proposer << 64)))
            .collect();
        if round % 2 == 0 {
            disk.fail(Fault::Sync(2))
        } else {
            engine.shutdown().await
        }
        for proposer in proposers {
            let ended = tokio::time::timeout(PATIENCE, proposer).await;
            ended.unwrap_or_else(|_| panic!("round {round}: a proposal waits for ever")).unwrap();
        }
        engine.shutdown().await;
    }
}
