//! How a node of the log runs.

use openraft::{Config, SnapshotPolicy};
use quorate_core::id::NodeId;
use std::collections::BTreeMap;
use std::time::Duration;

/// How a node of the log runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Who this node is. A lone node is node 1; the others get their ids from the log (RULES R29).
    pub node: NodeId,
    /// The members, and their addresses, of the cluster that this node founds if its directory is
    /// fresh. None: it founds nothing and waits for a leader.
    pub found: Option<BTreeMap<NodeId, String>>,
    /// How many entries make a snapshot due. More: a longer start and more memory, since the log after
    /// the last snapshot is held there; fewer: the state is written more often. It is put off while
    /// the log is smaller than the last snapshot.
    pub compact_every: u64,
    /// How many entries before the last snapshot are kept for followers that are a little behind; a
    /// follower further back needs the whole snapshot. A lone node needs none.
    pub keep: u64,
    /// How fast an absent leader is replaced.
    pub timing: Timing,
}

/// The rhythm of leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How often a leader speaks up. Below a third of `election_min`, or one lost message elects anew.
    pub heartbeat: Duration,
    /// The shortest silence after which a follower asks for votes. Ten times the round trip and the
    /// slowest sync, or slow disks elect.
    pub election_min: Duration,
    /// The longest; above `election_min`, by enough that two rarely ask at once. It is also how long a
    /// leader's lease lasts, so a failover takes one to two of it.
    pub election_max: Duration,
}

impl Options {
    /// A node that is alone and founds its own cluster. Nobody can outvote it, so its rhythm is slow
    /// and costs an idle machine little.
    pub fn lone() -> Self {
        let node = NodeId(1);
        Self {
            node,
            found: Some(BTreeMap::from([(node, String::new())])),
            compact_every: 10_000,
            keep: 0,
            timing: Timing {
                heartbeat: Duration::from_millis(250),
                election_min: Duration::from_millis(500),
                election_max: Duration::from_millis(1_000),
            },
        }
    }

    /// A node among others. A leader that dies is replaced within half a second.
    pub fn member(node: NodeId, found: Option<BTreeMap<NodeId, String>>) -> Self {
        Self {
            node,
            found,
            compact_every: 10_000,
            keep: 1_000,
            timing: Timing {
                heartbeat: Duration::from_millis(30),
                election_min: Duration::from_millis(100),
                election_max: Duration::from_millis(150),
            },
        }
    }

    /// What the library is told. The reason is a sentence.
    pub(super) fn config(&self) -> Result<Config, String> {
        let config = Config {
            cluster_name: "quorate".to_owned(),
            heartbeat_interval: ms(self.timing.heartbeat),
            election_timeout_min: ms(self.timing.election_min),
            election_timeout_max: ms(self.timing.election_max),
            // A snapshot travels as one message.
            install_snapshot_timeout: 30_000,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.compact_every),
            max_in_snapshot_log_to_keep: self.keep,
            replication_lag_threshold: self.compact_every + self.keep,
            enable_pre_vote: Some(true),
            // RULES R4: a leader that restarts must not go on with an empty memory.
            enable_leader_restore: Some(false),
            ..Config::default()
        };
        config.validate().map_err(|error| error.to_string())
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
