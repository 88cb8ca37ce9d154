//! The log engine: one node of a replicated log, in the words of the core.
//!
//! A lone node is a cluster of one; there is no second path. Everything here is generic over the
//! runtime, so a simulator runs the same code: no clock, task or thread but the runtime's own, and
//! the store's writer outside of it.

use super::counters::Counts;
use super::dir::{DataDir, DirError};
use super::feed::{FeedReader, feed};
use super::health::Health;
use super::machine::{Machine, Seen};
use super::network::{self, Alone, Network, PeerError, Peers};
use super::options::Options;
use super::record::{Position, Term};
use super::storage::LogStore;
use super::store::{OpenError, SetupError, Store};
use super::types::{Item, Types};
use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{
    ClientWriteError, Fatal, ForwardReason, ForwardToLeader, InitializeError, LinearizableReadError,
    RaftError,
};
use openraft::impls::BasicNode;
use openraft::metrics::RaftServerMetrics;
use openraft::rt::Select2;
use openraft::type_config::TypeConfigExt;
use openraft::{AsyncRuntime, Raft, RaftMetrics, ReadPolicy, ServerState};
use quorate_core::id::{LogIndex, NodeId};
use quorate_core::state_machine::{Proposal, Reply, StateMachine};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The log is compacted before its time when it has grown to this size, so that large proposals
/// cannot fill the memory: the whole log after the last snapshot is held there.
pub const LOG_BYTES_MAX: u64 = 64 << 20;

/// How long an answer is waited for after the engine's end. The library looks for a second after its end, to tell the
/// reason, and must not be interrupted then: whoever asks for the reason first finds it out for all the others.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// One node of the replicated log. Clones share it.
pub struct Engine<RT: AsyncRuntime> {
    inner: Arc<Inner<RT>>,
}

struct Inner<RT: AsyncRuntime> {
    raft: Raft<Types<RT>, Machine<RT>>,
    seen: Seen,
    store: Store,
    node: NodeId,
    /// The last snapshot, plus one, for which a compaction before its time was asked.
    compaction_asked: AtomicU64,
    /// Held for its lock, until the engine is shut down.
    dir: Mutex<Option<DataDir>>,
}

/// Why an engine did not start. The node has not voted or acknowledged anything since.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// The log does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The options contradict each other.
    #[error("these timings do not go together: {0}")]
    Timing(String),
    /// The log opened, but the engine could not begin on it.
    #[error("the log engine does not start: {0}")]
    Engine(String),
    /// The cluster's feature level was raised beyond what this release runs.
    #[error(
        "the cluster is at feature level {level}, and this release runs levels up to {highest}: a level is \
         never lowered, so start a newer release; nothing was changed"
    )]
    Level {
        /// The cluster's level.
        level: u32,
        /// The highest that this release runs.
        highest: u32,
    },
}

impl From<SetupError> for StartError {
    fn from(error: SetupError) -> Self {
        match error {
            SetupError::Open(error) => Self::Open(error),
            SetupError::Dir(error) => Self::Dir(error),
        }
    }
}

/// Why this node cannot act for the cluster right now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unable {
    /// Another node leads, or none does. Ask the leader, or wait until there is one.
    #[error("this node does not lead; {}", leads(*leader))]
    NotLeader {
        /// Who leads, as far as this node knows.
        leader: Option<NodeId>,
    },
    /// This node is handing its leadership over. Ask the next leader in a moment.
    #[error("this node is handing over its leadership; {}", leads(*to))]
    Handover {
        /// To whom.
        to: Option<NodeId>,
    },
    /// This node leads, but no quorum has confirmed it lately. Usual for some milliseconds after an
    /// election: ask again.
    #[error("no quorum has confirmed lately that this node leads")]
    NoQuorum,
    /// The engine has stopped. Nothing will work on this node until it is started again.
    #[error("the log engine has stopped: {why}")]
    Stopped {
        /// Why.
        why: String,
    },
}

/// Why a proposal has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// It was not done and never will be. It may be proposed again, here or elsewhere.
    #[error("not done: {0}")]
    NotDone(Unable),
    /// It may have been done, or may be done later. Only a proposal that is harmless when it is
    /// repeated may be proposed again (RULES R21).
    #[error("it is unknown whether it was done: {why}")]
    Unknown {
        /// What happened.
        why: String,
    },
}

/// What a node does in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRole {
    /// Orders the log.
    Leader,
    /// Follows a leader and votes.
    Follower,
    /// Asks for votes.
    Candidate,
    /// Follows without a vote, or waits to be made a member.
    Learner,
    /// Has stopped.
    Stopped,
}

/// Who leads, as one node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The newest term that the node knows.
    pub term: Term,
    /// Its leader, if there is one.
    pub leader: Option<NodeId>,
    /// This node leads. It may not know yet that its time is over: only a reply or a confirmation
    /// proves it.
    pub leads: bool,
}

/// The state of the log, as one node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// This node.
    pub node: NodeId,
    /// What it does.
    pub role: NodeRole,
    /// The newest term that it knows.
    pub term: Term,
    /// The leader of that term, if there is one.
    pub leader: Option<NodeId>,
    /// The nodes that vote.
    pub voters: Vec<NodeId>,
    /// The last entry in its log; none before the first.
    pub last_log: Option<LogIndex>,
    /// The last entry that its state has.
    pub applied: Option<LogIndex>,
    /// The last entry in its stored snapshot.
    pub snapshot: Option<LogIndex>,
    /// The last entry that was purged.
    pub purged: Option<LogIndex>,
    /// The bytes of the log after that.
    pub log_bytes: u64,
}

impl<RT: AsyncRuntime> Engine<RT> {
    /// Starts a node that runs alone, on a data directory that is created if it is missing. A fresh
    /// one founds a cluster of this node, if the options say so; another goes on with its own.
    ///
    /// # Errors
    /// [`StartError`] says what is wrong and what to do.
    pub async fn open(path: &Path, options: Options) -> Result<(Self, FeedReader), StartError> {
        let mut dir = DataDir::open(path)?;
        let store = Store::open(&mut dir)?;
        let (engine, feed) = Self::start(store, Arc::new(Alone), options).await?;
        *engine.dir() = Some(dir);
        Ok((engine, feed))
    }

    /// Starts a node on an open store, with a way to its peers.
    ///
    /// # Errors
    /// [`StartError`] says what is wrong and what to do.
    pub async fn start(
        store: Store,
        peers: Arc<dyn Peers>,
        options: Options,
    ) -> Result<(Self, FeedReader), StartError> {
        let config = options.config().map_err(StartError::Timing)?;
        let seen = Seen::default();
        let (writer, reader) = feed();
        let machine = Machine::new(seen.clone(), store.clone(), writer);
        let log = LogStore::new(store.clone());
        let network = Network::new(peers);
        let raft = Raft::new(options.node.0, Arc::new(config), network, log, machine).await.map_err(dead)?;
        let engine = Self {
            inner: Arc::new(Inner {
                raft,
                seen,
                store,
                node: options.node,
                compaction_asked: AtomicU64::new(0),
                dir: Mutex::new(None),
            }),
        };
        let begun = engine.answered(engine.begin(options.found)).await;
        begun.unwrap_or_else(|| Err(StartError::Engine(engine.ended())))?;
        Ok((engine, reader))
    }

    /// Founds a cluster where there is none and one was asked for (RULES R29). A lone voter that comes
    /// back need not wait for anybody's lease before it leads again.
    async fn begin(&self, found: Option<BTreeMap<NodeId, String>>) -> Result<(), StartError> {
        let raft = &self.inner.raft;
        if raft.is_initialized().await.map_err(dead)? {
            let metrics = self.metrics();
            if metrics.voters == [self.inner.node] {
                raft.trigger().elect(false).await.map_err(dead)?;
            }
            return Ok(());
        }
        let Some(members) = found else { return Ok(()) };
        let nodes: BTreeMap<u64, BasicNode> =
            members.into_iter().map(|(node, address)| (node.0, BasicNode::new(address))).collect();
        match raft.initialize(nodes).await {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(StartError::Engine(error.to_string())),
        }
    }

    /// Waits until this node has applied everything that was committed before it started. Before that
    /// its state is older than what it answered in its last life.
    ///
    /// # Errors
    /// [`Unable`] if that takes longer than `within`, for want of a leader or a quorum, or if the
    /// engine stops.
    pub async fn ready(&self, within: Duration) -> Result<(), Unable> {
        match self.inner.raft.wait_for_recovery(Some(within)).await {
            Ok(_) => Ok(()),
            Err(openraft::metrics::WaitError::ShuttingDown) => Err(Unable::Stopped { why: self.ended() }),
            Err(openraft::metrics::WaitError::Timeout(..)) => match self.leadership().now() {
                Leadership { leads: true, .. } => Err(Unable::NoQuorum),
                Leadership { leader, .. } => Err(Unable::NotLeader { leader }),
            },
        }
    }

    /// Proposes a command, waits until it is durable on a quorum and applied, and returns the reply.
    /// When the call is dropped the outcome is unknown.
    ///
    /// # Errors
    /// [`ProposeError`] says whether it can still happen.
    pub async fn propose(&self, proposal: Proposal) -> Result<Reply, ProposeError> {
        if let Some(why) = self.inner.store.health().why() {
            return Err(ProposeError::NotDone(Unable::Stopped { why: why.to_string() }));
        }
        let written = self.inner.raft.client_write(Item(Arc::new(proposal)));
        let Some(written) = self.answered(written).await else {
            return Err(ProposeError::Unknown { why: self.ended() });
        };
        match written {
            Ok(written) => {
                self.bound_log().await;
                Ok(written.data)
            }
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => {
                Err(ProposeError::NotDone(unable(forward)))
            }
            Err(RaftError::APIError(error)) => Err(ProposeError::Unknown { why: error.to_string() }),
            Err(RaftError::Fatal(error)) => Err(ProposeError::Unknown { why: self.reason(&error) }),
        }
    }

    /// Confirms with a quorum, in a round that begins after the call, that this node leads, and waits
    /// until its state has everything that was committed when the call came. Returns the entry up to
    /// which it has. A renewal may be confirmed after it (RULES R6), and a read is linearizable.
    ///
    /// # Errors
    /// [`Unable`]: nothing was confirmed.
    pub async fn confirm(&self) -> Result<LogIndex, Unable> {
        let confirmed = self.inner.raft.ensure_linearizable(ReadPolicy::ReadIndex);
        let Some(result) = self.answered(confirmed).await else {
            return Err(Unable::Stopped { why: self.ended() });
        };
        if let Some(why) = self.inner.store.health().why() {
            return Err(Unable::Stopped { why: why.to_string() });
        }
        match result {
            Ok(position) => Ok(LogIndex(position.index())),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => Err(unable(forward)),
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => Err(Unable::NoQuorum),
            Err(RaftError::Fatal(error)) => Err(Unable::Stopped { why: self.reason(&error) }),
        }
    }

    /// Reads this node's state as it is now, which may be behind the cluster's: see
    /// [`confirm`](Self::confirm). Apply waits meanwhile, so `read` must be short and must not block.
    pub fn read<T>(&self, read: impl FnOnce(&StateMachine) -> T) -> T {
        read(&self.inner.seen.read().machine)
    }

    /// Like [`read`](Self::read), with the last entry that the state has; none before the first.
    pub fn read_at<T>(&self, read: impl FnOnce(Option<LogIndex>, &StateMachine) -> T) -> T {
        let state = self.inner.seen.read();
        read(state.applied.map(|position| position.index), &state.machine)
    }

    /// A copy of this node's state, and the last entry that it has.
    pub fn copy(&self) -> (Option<Position>, StateMachine) {
        let state = self.inner.seen.read();
        (state.applied, state.machine.clone())
    }

    /// The state of the log right now.
    pub fn metrics(&self) -> Metrics {
        let raft = self.inner.raft.metrics();
        let raft: &RaftMetrics<Types<RT>> = &raft.borrow_watched();
        let store = &self.inner.store;
        Metrics {
            node: self.inner.node,
            role: role(raft.state),
            term: Term(raft.current_term),
            leader: raft.current_leader.map(NodeId),
            voters: raft.membership_config.voter_ids().map(NodeId).collect(),
            last_log: raft.last_log_index.map(LogIndex),
            applied: self.read_at(|applied, _| applied),
            snapshot: store.snapshot().and_then(|head| head.last).map(|position| position.index),
            purged: store.purged().map(|position| position.index),
            log_bytes: store.log_bytes(),
        }
    }

    /// What the store has done, and how long the disk takes.
    pub fn counts(&self) -> Counts {
        self.inner.store.counts()
    }

    /// Whether the store may be trusted.
    pub fn health(&self) -> Health {
        self.inner.store.health().clone()
    }

    /// Follows who leads.
    pub fn leadership(&self) -> LeadershipWatch<RT> {
        LeadershipWatch { receiver: self.inner.raft.server_metrics(), node: self.inner.node }
    }

    /// Compacts the log now: a snapshot, then the log before it goes. Returns at once.
    ///
    /// # Errors
    /// [`Unable::Stopped`].
    pub async fn compact(&self) -> Result<(), Unable> {
        self.inner
            .raft
            .trigger()
            .snapshot()
            .await
            .map_err(|error| Unable::Stopped { why: self.reason(&error) })
    }

    /// Answers a message of another node.
    ///
    /// # Errors
    /// [`PeerError`] if it is not a message of this version, or the engine has stopped.
    pub async fn hear(&self, message: &[u8]) -> Result<Vec<u8>, PeerError> {
        let heard = self.answered(network::hear(&self.inner.raft, message)).await;
        heard.unwrap_or_else(|| Err(PeerError(self.ended())))
    }

    /// Resolves with the reason, a sentence, when the engine or its store has ended; also after
    /// [`shutdown`](Self::shutdown). The process serves nothing useful after that and should stop: a
    /// node whose disk failed must not go on (RULES R28).
    pub async fn fatal(&self) -> String {
        RT::select2(self.inner.store.health().failed(), self.end()).await;
        self.ended()
    }

    /// Stops the node: what was acknowledged is durable, the log file is closed and the data directory
    /// is free when this returns. Calls under way get `Unknown` or `Stopped`.
    pub async fn shutdown(&self) {
        if let Err(error) = self.inner.raft.shutdown().await {
            tracing::error!(%error, "the log engine did not end well");
        }
        let (sender, receiver) = Types::<RT>::oneshot();
        let done = move |result: Result<(), _>| {
            let _ = openraft::type_config::OneshotSender::send(sender, result);
        };
        self.inner.store.close(Box::new(done));
        if let Ok(Err(error)) = receiver.await {
            tracing::warn!(%error, "the log was not closed cleanly");
        }
        *self.dir() = None;
    }

    /// Asks for a compaction when the log has grown too large in bytes, once for each snapshot.
    async fn bound_log(&self) {
        if self.inner.store.log_bytes() < LOG_BYTES_MAX {
            return;
        }
        let snapshot = self.inner.store.snapshot().and_then(|head| head.last).map_or(0, |last| last.index.0);
        if self.inner.compaction_asked.swap(snapshot + 1, Ordering::Relaxed) != snapshot + 1 {
            let _ = self.compact().await;
        }
    }

    fn dir(&self) -> std::sync::MutexGuard<'_, Option<DataDir>> {
        self.inner.dir.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when the library's own task is gone.
    async fn end(&self) {
        let mut leadership = self.leadership();
        while leadership.changed().await.is_some() {}
    }

    /// Why the engine has ended, once it has.
    fn ended(&self) -> String {
        let raft = self.inner.raft.metrics();
        let state = raft.borrow_watched().running_state.clone();
        self.reason(&state.err().unwrap_or(Fatal::Panicked))
    }

    /// The library's answer; none if the engine has ended and it never comes. A request that was on its way into the
    /// library's inbox when that was given up stays there, neither read nor dropped, for as long as there is a handle
    /// (tokio's bounded channel takes it, since its place was given before), and nobody would ever hear of it.
    async fn answered<T: Send>(&self, answer: impl Future<Output = T> + Send) -> Option<T> {
        let mut answer = std::pin::pin!(answer);
        match RT::select2(answer.as_mut(), self.end()).await {
            Select2::First(answer) => Some(answer),
            Select2::Second(()) => RT::timeout(LAST_ANSWERS, answer).await.ok(),
        }
    }

    /// The store's own reason is the better sentence, where there is one.
    fn reason(&self, error: &Fatal<Types<RT>>) -> String {
        match (self.inner.store.health().why(), error) {
            (Some(why), _) => why.to_string(),
            (None, Fatal::Stopped) => "it was shut down".to_owned(),
            (None, Fatal::Panicked) => "the log engine panicked".to_owned(),
            (None, error) => error.to_string(),
        }
    }
}

impl<RT: AsyncRuntime> Clone for Engine<RT> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<RT: AsyncRuntime> fmt::Debug for Engine<RT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("node", &self.inner.node).field("store", &self.inner.store).finish()
    }
}

/// Follows who leads.
pub struct LeadershipWatch<RT: AsyncRuntime> {
    receiver: WatchReceiverOf<Types<RT>, RaftServerMetrics<Types<RT>>>,
    node: NodeId,
}

impl<RT: AsyncRuntime> LeadershipWatch<RT> {
    /// Who leads now.
    pub fn now(&self) -> Leadership {
        let metrics = self.receiver.borrow_watched();
        Leadership {
            term: Term(metrics.vote.leader_id.term),
            leader: metrics.current_leader.map(NodeId),
            leads: metrics.state == ServerState::Leader && metrics.current_leader == Some(self.node.0),
        }
    }

    /// Waits for a change since the last call and returns who leads then; none when the engine has
    /// ended.
    pub async fn changed(&mut self) -> Option<Leadership> {
        self.receiver.changed().await.ok()?;
        Some(self.now())
    }
}

fn unable<RT: AsyncRuntime>(forward: ForwardToLeader<Types<RT>>) -> Unable {
    let leader = forward.leader_id.map(NodeId);
    match forward.reason {
        ForwardReason::NotLeader => Unable::NotLeader { leader },
        ForwardReason::LeadershipTransfer => Unable::Handover { to: leader },
        ForwardReason::LeaseExpired => Unable::NoQuorum,
    }
}

fn role(state: ServerState) -> NodeRole {
    match state {
        ServerState::Leader => NodeRole::Leader,
        ServerState::Follower => NodeRole::Follower,
        ServerState::Candidate => NodeRole::Candidate,
        ServerState::Learner => NodeRole::Learner,
        ServerState::Shutdown => NodeRole::Stopped,
    }
}

fn leads(leader: Option<NodeId>) -> String {
    leader.map_or_else(|| "no leader is known".to_owned(), |leader| format!("node {leader} does"))
}

fn dead<RT: AsyncRuntime>(error: Fatal<Types<RT>>) -> StartError {
    StartError::Engine(error.to_string())
}
