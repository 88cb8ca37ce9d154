//! Log engines on simulated time, disks and links: one seed is one history.

#![allow(clippy::unwrap_used)]

use crate::disk::{Dice, FaultyDisk};
use openraft_rt_sim::SimRuntime;
use quorate_core::id::{ClusterId, NodeId, Reign, Secret, SessionId};
use quorate_core::state_machine::{Command, Limits, OnDisconnect, Proposal, Reply, StateMachine};
use quorate_core::time::{Span, Wall};
use quorate_server::log::{
    Alone, Answer, AsyncRuntime, Driver, Engine, Feed, FeedReader, Options, PeerError, Peers, ProposeError,
    Store,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Node = Engine<SimRuntime>;

fn proposal(command: Command) -> Proposal {
    Proposal { at: Wall(0), command }
}

fn found() -> Proposal {
    proposal(Command::Found { cluster: ClusterId(7), limits: Limits::default() })
}

fn open(secret: u128) -> Proposal {
    let (secret, ttl) = (Secret(secret), Span::from_secs(10));
    proposal(Command::Open { secret, ttl, on_disconnect: OnDisconnect::Hold, label: String::new() })
}

/// The links between the nodes: each message may be lost, and takes from 1 to 20 ms.
struct Links {
    nodes: Mutex<BTreeMap<NodeId, Node>>,
    cut: Mutex<BTreeSet<NodeId>>,
    dice: Mutex<Dice>,
    loss_percent: u64,
}

/// One node's end of the links.
struct End {
    from: NodeId,
    links: Arc<Links>,
}

impl Links {
    fn new(seed: u64, loss_percent: u64) -> Arc<Self> {
        Arc::new(Self {
            nodes: Mutex::default(),
            cut: Mutex::default(),
            dice: Mutex::new(Dice(seed)),
            loss_percent,
        })
    }

    /// How long one way takes; none if the message is lost.
    fn way(&self, from: NodeId, to: NodeId) -> Option<Duration> {
        let cut = self.cut.lock().unwrap();
        let mut dice = self.dice.lock().unwrap();
        let (lost, millis) = (dice.below(100) < self.loss_percent, 1 + dice.below(20));
        let open = !cut.contains(&from) && !cut.contains(&to);
        (open && !lost).then(|| Duration::from_millis(millis))
    }
}

impl Peers for End {
    fn call(&self, to: NodeId, message: Vec<u8>) -> Answer<'_> {
        Box::pin(async move {
            let lost = || PeerError("the message was lost".to_owned());
            let way = self.links.way(self.from, to).ok_or_else(lost)?;
            SimRuntime::sleep(way).await;
            let node = self.links.nodes.lock().unwrap().get(&to).cloned().ok_or_else(lost)?;
            let answer = node.hear(&message).await?;
            let way = self.links.way(to, self.from).ok_or_else(lost)?;
            SimRuntime::sleep(way).await;
            Ok(answer)
        })
    }
}

struct Cluster {
    links: Arc<Links>,
    disks: BTreeMap<NodeId, FaultyDisk>,
    feeds: Vec<FeedReader>,
}

impl Cluster {
    async fn start(seed: u64, loss_percent: u64) -> Self {
        let ids = [NodeId(1), NodeId(2), NodeId(3)];
        let links = Links::new(seed, loss_percent);
        let disks = ids.map(|id| (id, FaultyDisk::default())).into();
        let mut cluster = Self { links, disks, feeds: Vec::new() };
        let members: BTreeMap<_, _> = ids.map(|id| (id, format!("node-{id}"))).into();
        for id in ids.into_iter().rev() {
            cluster.run(id, (id == NodeId(1)).then(|| members.clone())).await;
        }
        cluster
    }

    async fn run(&mut self, id: NodeId, found: Option<BTreeMap<NodeId, String>>) {
        let disk = &self.disks[&id];
        let store = Store::with_backends(disk.clone(), disk.entries(), Driver::Inline).unwrap();
        let end = End { from: id, links: self.links.clone() };
        let options = Options { compact_every: 60, keep: 10, ..Options::member(id, found) };
        let (engine, feed) = Node::start(store, Arc::new(end), options).await.unwrap();
        self.links.nodes.lock().unwrap().insert(id, engine);
        self.feeds.push(feed);
    }

    fn node(&self, id: u64) -> Node {
        self.links.nodes.lock().unwrap()[&NodeId(id)].clone()
    }

    fn cut(&self, id: NodeId) {
        self.links.cut.lock().unwrap().insert(id);
    }

    fn heal(&self) {
        self.links.cut.lock().unwrap().clear();
    }

    /// Proposes where the leader is thought to be, until it is known to be done. Opening and founding
    /// may be repeated.
    async fn propose(&self, proposal: Proposal) -> Reply {
        let mut id = 1;
        loop {
            match SimRuntime::timeout(Duration::from_secs(2), self.node(id).propose(proposal.clone())).await {
                Ok(Ok(reply)) => return reply,
                Ok(Err(ProposeError::NotDone(_) | ProposeError::Unknown { .. })) | Err(_) => id = id % 3 + 1,
            }
            SimRuntime::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until all nodes have applied the same, and returns their state.
    async fn converge(&self) -> StateMachine {
        loop {
            let states: Vec<_> =
                (1..=3).map(|id| self.node(id).read_at(|at, state| (at, state.clone()))).collect();
            if states.iter().all(|state| state.0 == states[0].0) {
                assert!(states.iter().all(|state| state.1 == states[0].1), "one log gives one state");
                return states[0].1.clone();
            }
            SimRuntime::sleep(Duration::from_millis(100)).await;
        }
    }

    fn leader(&self) -> Option<NodeId> {
        (1..=3).find(|id| self.node(*id).leadership().now().leads).map(NodeId)
    }
}

/// A proposal that changes nothing and fills the log, so that it outgrows the last snapshot and is compacted.
fn bulky() -> Proposal {
    let remaining = vec![(SessionId(1), Span::from_secs(1)); 1_000];
    proposal(Command::Checkpoint { reign: Reign(0), remaining })
}

/// What a history left behind, in a form that differs if anything did.
fn digest(state: &StateMachine, nodes: &[Node], replies: &[Reply]) -> String {
    let metrics: Vec<_> = nodes.iter().map(Node::metrics).collect();
    format!("{:08x} {metrics:?} {replies:?}", crc32fast::hash(&state.to_snapshot()))
}

fn lone_history(seed: u64) -> String {
    SimRuntime::with_seed(seed).block_on(async {
        let disk = FaultyDisk::default();
        let mut replies = Vec::new();
        for life in 0..3 {
            let store = Store::with_backends(disk.clone(), disk.entries(), Driver::Inline).unwrap();
            let options = Options { compact_every: 50, ..Options::lone() };
            let (engine, _feed) = Node::start(store, Arc::new(Alone), options).await.unwrap();
            engine.ready(Duration::from_secs(5)).await.unwrap();
            replies.push(engine.propose(found()).await.unwrap());
            replies.push(
                engine.propose(proposal(Command::Begin { node: NodeId(1), nonce: life })).await.unwrap(),
            );
            for secret in 0..100 {
                replies.push(engine.propose(open(life * 1_000 + secret)).await.unwrap());
            }
            engine.confirm().await.unwrap();
            engine.shutdown().await;
            if life == 2 {
                let state = engine.read(StateMachine::clone);
                return digest(&state, &[engine], &replies);
            }
        }
        unreachable!("the last life returns")
    })
}

#[test]
fn a_lone_node_repeats_its_history() {
    let first = lone_history(11);
    assert_eq!(first, lone_history(11));
    assert!(first.contains("snapshot: Some"), "it was compacted on the way");
}

/// Three nodes, lost and late messages; the leader is cut off twice, and a node comes back from its
/// disk, behind the others' snapshots.
fn cluster_history(seed: u64) -> String {
    SimRuntime::with_seed(seed).block_on(async {
        let mut cluster = Cluster::start(seed, 2).await;
        let mut replies = vec![cluster.propose(found()).await];
        replies.push(cluster.propose(proposal(Command::Begin { node: NodeId(1), nonce: 1 })).await);
        let mut opened: Vec<(u128, SessionId)> = Vec::new();
        for secret in 0..150 {
            match secret {
                30 | 90 => cluster.cut(cluster.leader().unwrap()),
                60 | 120 => cluster.heal(),
                _ => {}
            }
            let reply = cluster.propose(open(secret)).await;
            let Reply::Opened(session) = &reply else { panic!("{reply:?}") };
            opened.push((secret, session.session));
            replies.push(reply);
        }
        let away = NodeId(2);
        cluster.node(2).shutdown().await;
        for _ in 0..100 {
            replies.push(cluster.propose(bulky()).await);
        }
        cluster.run(away, None).await;
        let state = cluster.converge().await;
        let mut feed = cluster.feeds.pop().unwrap();
        let caught_up = std::iter::from_fn(|| feed.try_next());
        let replaced = caught_up.filter(|step| matches!(step, Feed::Replaced { .. })).count();
        assert_eq!(replaced, 2, "its own snapshot at the start, then the leader's: it was too far behind");
        for (secret, session) in opened {
            let Reply::Opened(again) = cluster.propose(open(secret)).await else { panic!("it opens") };
            assert_eq!(again.session, session, "seed {seed}: an opening was answered and then lost");
        }
        let nodes = [cluster.node(1), cluster.node(2), cluster.node(3)];
        let digest = digest(&state, &nodes, &replies);
        for node in nodes {
            node.shutdown().await;
        }
        digest
    })
}

#[test]
fn three_nodes_lose_no_answer_and_repeat_their_history() {
    for seed in 1..=2 {
        let first = cluster_history(seed);
        assert_eq!(first, cluster_history(seed), "seed {seed} has two histories");
    }
}

#[test]
fn a_leader_without_a_quorum_confirms_nothing() {
    SimRuntime::with_seed(5).block_on(async {
        let cluster = Cluster::start(5, 0).await;
        cluster.propose(found()).await;
        let leader = cluster.leader().unwrap();
        let node = cluster.node(leader.0);
        node.confirm().await.unwrap();
        cluster.cut(leader);
        assert!(node.confirm().await.is_err(), "a renewal would be confirmed by a leader that is cut off");
        cluster.heal();
    });
}
