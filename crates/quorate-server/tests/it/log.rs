//! The log engine on a real disk and on a simulated one.

use quorate_core::id::{ClusterId, NodeId};
use quorate_core::state_machine::{Command, Limits, Proposal, Reply};
use quorate_core::time::Wall;
use quorate_server::log::{Engine, Options, TokioRuntime};
use std::time::Duration;

type Node = Engine<TokioRuntime>;

fn found() -> Proposal {
    Proposal {
        at: Wall(0),
        command: Command::Found {
            cluster: ClusterId(7),
            limits: Limits::default(),
        },
    }
}

fn begin(nonce: u128) -> Proposal {
    Proposal {
        at: Wall(0),
        command: Command::Begin {
            node: NodeId(1),
            nonce,
        },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_node_founds_answers_and_comes_back() {
    let root = tempfile::tempdir().unwrap();
    let (engine, _feed) = Node::open(root.path(), Options::lone()).await.unwrap();
    engine.ready(Duration::from_secs(5)).await.unwrap();
    assert_eq!(engine.propose(found()).await.unwrap(), Reply::Done);
    assert!(matches!(
        engine.propose(begin(1)).await.unwrap(),
        Reply::Began { .. }
    ));
    engine.confirm().await.unwrap();
    let before = engine.read(|machine| machine.to_snapshot());
    engine.shutdown().await;
    drop(engine);

    let (engine, _feed) = Node::open(root.path(), Options::lone()).await.unwrap();
    engine.ready(Duration::from_secs(5)).await.unwrap();
    assert_eq!(engine.read(|machine| machine.to_snapshot()), before);
    engine.shutdown().await;
}
