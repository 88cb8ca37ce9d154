//! One node of the service: the log engine, the lease keeper beside it, and the connections that listen.
//!
//! Rule: nothing here decides who holds what; it brings commands to the log and tells what came of them.
//! Generic over the runtime: no clock, task or wait but the runtime's own, so a simulator runs the same
//! code. The transport, the CLI and the disk watch stay outside.
//!
//! | file | what |
//! |---|---|
//! | `hub.rs` | who hears what |
//! | `leases.rs` | reigns, renewals and ends (RULES R1-R6) |
//! | `floor.rs` | the shortest lease (R7) |
//! | [`disk`] | the space that is kept for release, leave and expiry (R28) |

pub mod disk;
mod floor;
mod hub;
mod leases;

pub use floor::Floor;

use crate::log::record::Position;
use crate::log::{
    AsyncRuntime, Engine, FeedReader, Instant, NodeRole, Options, ProposeError, StartError, TokioRuntime,
    Unable,
};
use disk::Space;
use futures::future::BoxFuture;
use hub::Hub;
use leases::Renewals;
use quorate::service::{Authority, Events, NotApplied};
use quorate_core::frame::{Bye, Outcome};
use quorate_core::id::{ClusterId, EntryId, Generation, LogIndex, NodeId, Reign, SessionId, TaskId, Token};
use quorate_core::lease::LeaseKeeper;
use quorate_core::state_machine::{
    Command, LEVEL_HIGHEST, Limits, Op, Opened, Proposal, Refusal, Reply, StateMachine, ToolOp, Total,
};
use quorate_core::time::{Mono, Span, Wall};
use rand::Rng;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long a start may take to read its log and lead; a lone node needs a second.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// How many waiting places a confirmed keepalive names (RULES R24).
const WAITING_NAMED_MAX: usize = 256;

/// How many commits are timed at the start for the floor of leases.
const FLOOR_COMMITS: usize = 8;

/// How a node runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The data directory.
    pub data: PathBuf,
    /// The shortest lease; measured at the start if it is not set.
    pub ttl_floor: Option<Span>,
    /// How many log entries make a snapshot due.
    pub snapshot_every: u64,
    /// Below this much free space only release, leave and expiry are logged.
    pub disk_reserve_bytes: u64,
}

/// One node. Clones share it.
pub struct Node<RT: AsyncRuntime = TokioRuntime> {
    inner: Arc<Inner<RT>>,
}

struct Inner<RT: AsyncRuntime> {
    engine: Engine<RT>,
    keeper: Mutex<LeaseKeeper>,
    nonce: Mutex<Option<u128>>,
    hub: Hub,
    born: RT::Instant,
    wall: fn() -> Wall,
    floor: OnceLock<Floor>,
    space: Space,
    renewals: Renewals,
    wake: mpsc::Sender<()>,
    stopping: AtomicBool,
    counts: Counts,
}

/// What a node has done since it started.
#[derive(Debug, Default)]
pub struct Counts {
    /// Commands brought to the log.
    pub proposed: AtomicU64,
    /// Commands that were not applied, or it is not known.
    pub not_applied: AtomicU64,
    /// Seats granted.
    pub granted: AtomicU64,
    /// Sessions whose lease ran out.
    pub expired: AtomicU64,
    /// Sessions that ended otherwise.
    pub ended: AtomicU64,
    /// Keepalives confirmed.
    pub confirmed: AtomicU64,
    /// Keepalives not confirmed.
    pub silent: AtomicU64,
    /// Quorum rounds made for keepalives.
    pub rounds: AtomicU64,
}

/// A node as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its id.
    pub node: NodeId,
    /// Its cluster.
    pub cluster: Option<ClusterId>,
    /// What it does: leader, follower, candidate, learner or stopped.
    pub role: &'static str,
    /// Who leads.
    pub leader: Option<NodeId>,
    /// The term of the log.
    pub term: u64,
    /// The reign of lease keeping.
    pub reign: Reign,
    /// The last applied entry.
    pub applied: LogIndex,
    /// The last entry of the log.
    pub last_log: LogIndex,
    /// The last entry in the stored snapshot.
    pub snapshot: LogIndex,
    /// The greatest token that was granted.
    pub last_token: Token,
    /// Open sessions.
    pub sessions: usize,
    /// Names in use.
    pub groups: usize,
    /// Connections that listen here.
    pub connections: usize,
    /// Since its start.
    pub uptime: Duration,
    /// The shortest lease.
    pub ttl_floor: Span,
    /// Why it is that.
    pub ttl_floor_why: String,
    /// What apply holds everybody to.
    pub limits: Limits,
    /// Free space where the data is.
    pub disk_free_bytes: u64,
    /// Only release, leave and expiry are logged.
    pub disk_low: bool,
    /// Durable transactions.
    pub commits: u64,
    /// Their median time.
    pub commit_p50_us: u64,
    /// Their 99th percentile.
    pub commit_p99_us: u64,
}

impl Node<TokioRuntime> {
    /// Starts a lone node on a data directory, and returns when it leads.
    ///
    /// # Errors
    /// [`StartError`] says what is wrong and what to do.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        let options = Options { compact_every: settings.snapshot_every, ..Options::lone() };
        let (engine, feed) = Engine::open(&settings.data, options).await?;
        let space = Space::watch(settings.data.clone(), settings.disk_reserve_bytes);
        let node = Self::on(engine, feed, space, disk::wall);
        node.rise(settings.ttl_floor).await?;
        Ok(node)
    }
}

impl<RT: AsyncRuntime> Node<RT> {
    /// A node on a log engine. [`rise`](Self::rise) makes it serve.
    pub fn on(engine: Engine<RT>, feed: FeedReader, space: Space, wall: fn() -> Wall) -> Self {
        let (renewals, arrivals) = leases::renewals();
        let (wake, woken) = mpsc::channel(1);
        let node = Self {
            inner: Arc::new(Inner {
                engine,
                keeper: Mutex::new(LeaseKeeper::new()),
                nonce: Mutex::new(None),
                hub: Hub::default(),
                born: RT::Instant::now(),
                wall,
                floor: OnceLock::new(),
                space,
                renewals,
                wake,
                stopping: AtomicBool::new(false),
                counts: Counts::default(),
            }),
        };
        // Each task ends with the engine; nobody waits for it.
        drop(RT::spawn(leases::follow_log(node.clone(), feed)));
        drop(RT::spawn(leases::reign(node.clone())));
        drop(RT::spawn(leases::end_leases(node.clone(), woken)));
        drop(RT::spawn(leases::confirm_renewals(node.clone(), arrivals)));
        node
    }

    /// Waits until the node has its state, founds the cluster if it is new, and measures the floor of
    /// leases if none was set.
    ///
    /// # Errors
    /// [`StartError`] if that takes too long or the engine ends.
    pub async fn rise(&self, floor: Option<Span>) -> Result<(), StartError> {
        let engine = &self.inner.engine;
        engine.ready(READY_WITHIN).await.map_err(start_error)?;
        check_level(self.read(StateMachine::limits).level)?;
        if self.read(StateMachine::cluster).is_none() {
            let cluster = ClusterId(random::<RT>());
            let limits = Limits::default();
            self.insist(Command::Found { cluster, limits }).await?;
        }
        self.reigns().await?;
        let floor = match floor {
            Some(ttl) => Floor::set(ttl),
            None => self.measure_floor().await?,
        };
        let _ = self.inner.floor.set(floor);
        Ok(())
    }

    /// Waits until this node keeps the leases, so that nobody connects before.
    async fn reigns(&self) -> Result<(), StartError> {
        while self.keeper().reign().is_none() {
            if let Some(why) = self.inner.engine.health().why() {
                return Err(StartError::Engine(why.to_string()));
            }
            RT::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Times a few commits of nothing much: checkpoints of no session.
    async fn measure_floor(&self) -> Result<Floor, StartError> {
        for _ in 0..FLOOR_COMMITS {
            let reign = self.read(StateMachine::reign);
            self.insist(Command::Checkpoint { reign, remaining: Vec::new() }).await?;
        }
        Ok(Floor::measured(self.inner.engine.counts().commit_p99))
    }

    /// Proposes what is harmless when repeated, until it is applied.
    async fn insist(&self, command: Command) -> Result<Reply, StartError> {
        loop {
            match self.bring(command.clone()).await {
                Ok(reply) => return Ok(reply),
                Err(ProposeError::NotDone(Unable::Stopped { why })) => return Err(StartError::Engine(why)),
                Err(_) => RT::sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// Stamps a command with the wall time and proposes it.
    async fn bring(&self, command: Command) -> Result<Reply, ProposeError> {
        let at = (self.inner.wall)();
        self.inner.engine.propose(Proposal { at, command }).await
    }

    /// Brings a command to the log and waits until it is applied. With little disk left only what frees
    /// something goes through (RULES R28).
    ///
    /// # Errors
    /// [`NotApplied`] says whether it may still happen.
    pub async fn propose(&self, command: Command) -> Result<Reply, NotApplied> {
        self.inner.counts.proposed.fetch_add(1, Ordering::Relaxed);
        let result = if self.inner.space.is_low() && grows(&command) {
            Err(NotApplied { outcome: Outcome::NotDone, why: self.inner.space.why() })
        } else if let (Command::Open { .. }, Some(why)) = (&command, self.restoring()) {
            Err(NotApplied { outcome: Outcome::NotDone, why })
        } else {
            self.bring(command).await.map_err(not_applied)
        };
        if result.is_err() {
            self.inner.counts.not_applied.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// Why nobody is let in yet, if this cluster was restored a moment ago (RULES R30).
    pub fn restoring(&self) -> Option<String> {
        let wait = self.read(StateMachine::restoring)?;
        let left = self.lease_remaining(wait).map(|left| format!(", in {left} at the latest"));
        Some(format!(
            "this service was restored from a snapshot, and lets nobody in before the leases of the cluster \
             before have ended{}",
            left.unwrap_or_default()
        ))
    }

    /// A copy of the state and where in the log it stands, not older than this call.
    ///
    /// # Errors
    /// [`NotApplied`] says why no quorum answered.
    pub async fn copy(&self) -> Result<(Option<Position>, StateMachine), NotApplied> {
        self.linearize().await?;
        Ok(self.inner.engine.copy())
    }

    /// A quorum round: what is read after it is not older than this call.
    ///
    /// # Errors
    /// [`NotApplied`] says why no quorum answered.
    pub async fn linearize(&self) -> Result<(), NotApplied> {
        let confirmed = self.inner.engine.confirm().await;
        confirmed.map(drop).map_err(|unable| not_applied(ProposeError::NotDone(unable)))
    }

    /// Reads the state as this node has it now. Apply waits meanwhile, so be short.
    pub fn read<T>(&self, read: impl FnOnce(&StateMachine) -> T) -> T {
        self.inner.engine.read(read)
    }

    /// What decides for connections.
    pub fn authority(&self) -> Arc<dyn Authority> {
        Arc::new(self.clone())
    }

    /// How much of a session's lease is left, if this node keeps the leases.
    pub fn lease_remaining(&self, session: SessionId) -> Option<Span> {
        self.keeper().remaining(self.now(), session)
    }

    /// How long ago a session was last heard from, if this node keeps the leases.
    pub fn lease_silent(&self, session: SessionId) -> Option<Span> {
        self.keeper().silent_for(self.now(), session)
    }

    /// How long until something that a queue does later, if this node keeps the time.
    pub fn task_remaining(&self, task: TaskId) -> Option<Span> {
        self.keeper().task_remaining(self.now(), task)
    }

    /// Whether a connection of the session listens here.
    pub fn is_connected(&self, session: SessionId) -> bool {
        self.inner.hub.hears(session)
    }

    /// What this node has done since it started.
    pub fn counts(&self) -> &Counts {
        &self.inner.counts
    }

    /// The node as operators see it.
    pub fn status(&self) -> Status {
        let metrics = self.inner.engine.metrics();
        let counts = self.inner.engine.counts();
        let floor = self.inner.floor.get();
        let (cluster, reign, last_token, limits, (sessions, groups)) =
            self.read(|m| (m.cluster(), m.reign(), m.last_token(), m.limits(), m.counts()));
        Status {
            node: metrics.node,
            cluster,
            role: role(metrics.role),
            leader: metrics.leader,
            term: metrics.term.0,
            reign,
            applied: metrics.applied.unwrap_or_default(),
            last_log: metrics.last_log.unwrap_or_default(),
            snapshot: metrics.snapshot.unwrap_or_default(),
            last_token,
            sessions,
            groups,
            connections: self.inner.hub.len(),
            uptime: RT::Instant::now() - self.inner.born,
            ttl_floor: floor.map(|floor| floor.ttl).unwrap_or_default(),
            ttl_floor_why: floor.map(|floor| floor.why.clone()).unwrap_or_default(),
            limits,
            disk_free_bytes: self.inner.space.free_bytes(),
            disk_low: self.inner.space.is_low(),
            commits: counts.commits,
            commit_p50_us: micros(counts.commit_p50),
            commit_p99_us: micros(counts.commit_p99),
        }
    }

    /// Resolves with a sentence when the node must stop: a failed write or sync, a full disk, a dead
    /// engine (RULES R28).
    pub async fn failed(&self) -> String {
        self.inner.engine.fatal().await
    }

    /// Ends all connections, then the log engine. What was acknowledged is durable when this returns.
    pub async fn shutdown(&self) {
        self.inner.stopping.store(true, Ordering::Release);
        self.inner.hub.close();
        self.inner.engine.shutdown().await;
        self.inner.renewals.stop();
        let _ = self.inner.wake.try_send(());
    }

    /// The node's monotonic clock (RULES R1).
    fn now(&self) -> Mono {
        let since = RT::Instant::now() - self.inner.born;
        Mono(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    /// No code that holds the lock can panic without a broken invariant, which a later lock repeats.
    fn keeper(&self) -> MutexGuard<'_, LeaseKeeper> {
        self.inner.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<RT: AsyncRuntime> Authority for Node<RT> {
    fn propose(&self, command: Command) -> BoxFuture<'static, Result<Reply, NotApplied>> {
        let node = self.clone();
        Box::pin(async move { node.propose(command).await })
    }

    fn renew(&self, session: SessionId) -> BoxFuture<'static, Option<Vec<EntryId>>> {
        let confirmed = self.inner.renewals.arrived(session, self.now());
        let node = self.clone();
        Box::pin(async move {
            let waiting = |machine: &StateMachine| machine.waiting(session, WAITING_NAMED_MAX);
            confirmed.await.then(|| node.read(waiting))
        })
    }

    fn listen(&self, session: SessionId, generation: Generation) -> Result<(Events, Opened), Bye> {
        let events = self.inner.hub.listen(session, generation).ok_or(Bye::TakenOver)?;
        match self.read(|machine| machine.opened(session)) {
            Ok(opened) if opened.generation == generation => Ok((events, opened)),
            Ok(_) => Err(Bye::TakenOver),
            Err(refusal) => Err(Bye::Refused(refusal)),
        }
    }

    fn total(&self, entry: EntryId) -> Option<Total> {
        self.read(|machine| machine.total(entry))
    }

    fn ttl_floor(&self) -> Span {
        self.inner.floor.get().map(|floor| floor.ttl).unwrap_or_default()
    }
}

impl<RT: AsyncRuntime> Clone for Node<RT> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<RT: AsyncRuntime> fmt::Debug for Node<RT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("engine", &self.inner.engine).finish_non_exhaustive()
    }
}

/// Whether a command takes space for something new, rather than giving something up.
fn grows(command: &Command) -> bool {
    match command {
        Command::Open { .. } => true,
        Command::Call { op, .. } => matches!(op, Op::Join(_) | Op::JoinOn(..) | Op::Describe { .. }),
        Command::Tool { op, .. } => matches!(op, ToolOp::CreateGroup { .. }),
        _ => false,
    }
}

fn not_applied(error: ProposeError) -> NotApplied {
    match error {
        ProposeError::NotDone(unable) => NotApplied { outcome: Outcome::NotDone, why: unable.to_string() },
        ProposeError::Unknown { why } => NotApplied { outcome: Outcome::Unknown, why },
    }
}

/// A node that applied commands of a level it does not know would decide differently from the others (RULES
/// R27).
fn check_level(level: u32) -> Result<(), StartError> {
    if level <= LEVEL_HIGHEST { Ok(()) } else { Err(StartError::Level { level, highest: LEVEL_HIGHEST }) }
}

fn start_error(unable: Unable) -> StartError {
    StartError::Engine(unable.to_string())
}

fn role(role: NodeRole) -> &'static str {
    match role {
        NodeRole::Leader => "leader",
        NodeRole::Follower => "follower",
        NodeRole::Candidate => "candidate",
        NodeRole::Learner => "learner",
        NodeRole::Stopped => "stopped",
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn random<RT: AsyncRuntime>() -> u128 {
    let mut rng = RT::thread_rng();
    (u128::from(rng.next_u64()) << 64) | u128::from(rng.next_u64())
}

/// A refusal that only a stale timer gets.
fn is_stale(reply: &Reply) -> bool {
    matches!(reply, Reply::Refused(Refusal::NotDue))
}
