//! What operators may see and do, in one place for gRPC, HTTP and the CLI.
//!
//! Rule: a read is made after a quorum has confirmed this node, or says since when none did (RULES R26).
//! A change goes through the log with a tool's number and a precondition, so a retry is harmless (R21).

use crate::explain::{self, Sources, Stale};
use crate::log::archive::Archive;
use crate::metrics::{self, Metrics};
use crate::node::{Node, disk};
use crate::sessions::Peers;
use quorate::proto;
use quorate::service::NotApplied;
use quorate::wire::{self, Malformed};
use quorate_core::frame::Outcome;
use quorate_core::id::{ClientId, LogIndex, Name, SessionId};
use quorate_core::state_machine::{Command, LEVEL_HIGHEST, Refusal, Reply, StateMachine, ToolOp};
use quorate_core::time::{Span, Wall};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tonic::{Code, Status};

/// How many names or sessions one reply lists if nobody says.
const LIST_DEFAULT: u32 = 1_000;

/// How many it lists at most. A reply then has at most a few MiB.
const LIST_MAX: u32 = 10_000;

/// How many waiters and members an explanation shows if nobody says.
const SHOWN_DEFAULT: u32 = 100;

/// How long a read waits for a quorum before it answers without one.
const QUORUM_TIMEOUT: Duration = Duration::from_secs(2);

/// The header of a gRPC reply that was read without a quorum; its value says since when.
pub const STALE_HEADER: &str = "quorate-stale";

/// The header of a gRPC status that is a refusal; its value is the contract's code.
pub const REFUSAL_HEADER: &str = "quorate-refusal";

/// A reply, and since when there is no quorum if it was read without one.
pub type Read<T> = Result<(T, Option<String>), Status>;

/// The operators' desk. Clones share it.
#[derive(Clone)]
pub struct Operator {
    inner: Arc<Inner>,
}

struct Inner {
    node: Node,
    address: SocketAddr,
    peers: Arc<Peers>,
    metrics: Metrics,
    /// When a quorum last confirmed this node, by its wall clock: a label. Zero before the first time.
    confirmed_ms: AtomicU64,
}

impl Operator {
    /// A desk for a node that listens on an address.
    pub fn new(node: Node, address: SocketAddr, peers: Arc<Peers>, metrics: Metrics) -> Self {
        let confirmed_ms = AtomicU64::new(0);
        Self { inner: Arc::new(Inner { node, address, peers, metrics, confirmed_ms }) }
    }

    /// How the node is, as it sees it itself. Needs no quorum.
    pub fn status(&self) -> proto::StatusReply {
        let status = self.inner.node.status();
        proto::StatusReply {
            node: status.node.0,
            cluster: status.cluster.map(|cluster| wire::to_wide(cluster.0)).unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").into(),
            role: status.role.into(),
            leader: status.leader.map(|leader| leader.0),
            term: status.term,
            reign: status.reign.0,
            applied: status.applied.0,
            last_log: status.last_log.0,
            snapshot: status.snapshot.0,
            last_token: status.last_token.0,
            sessions: status.sessions as u64,
            groups: status.groups as u64,
            connections: status.connections as u64,
            uptime_ms: u64::try_from(status.uptime.as_millis()).unwrap_or(u64::MAX),
            ttl_floor_ms: status.ttl_floor.as_millis(),
            ttl_floor_why: status.ttl_floor_why,
            ttl_max_ms: status.limits.ttl_max.as_millis(),
            feature_level: status.limits.level,
            feature_level_highest: LEVEL_HIGHEST,
            disk_free_bytes: status.disk_free_bytes,
            disk_low: status.disk_low,
            commits: status.commits,
            commit_p50_us: status.commit_p50_us,
            commit_p99_us: status.commit_p99_us,
            listen: self.inner.address.to_string(),
            formats_data: crate::log::dir::FORMAT.into(),
            formats_record: crate::log::record::VERSION.into(),
        }
    }

    /// A page of the names in use.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if `after` is no name.
    pub async fn list_groups(&self, request: proto::ListGroupsRequest) -> Read<proto::ListGroupsReply> {
        let after = match request.after.as_str() {
            "" => None,
            after => Some(name(after)?),
        };
        let stale = self.stale().await;
        let max = shown(request.max, LIST_DEFAULT);
        let (listed, labels) = self.inner.node.read(|machine| {
            let listed = machine.group_list(after.as_ref(), max + 1);
            let holders = listed.iter().map(|group| group.holder.as_ref().map(|holder| holder.session));
            let labels: Vec<String> = holders.map(|holder| explain::label(machine, holder)).collect();
            (listed, labels)
        });
        let more = listed.len() > max;
        let sources = self.sources();
        let shown = listed.iter().zip(labels).take(max);
        let groups = shown.map(|(group, label)| explain::summary(&sources, group, label)).collect();
        Ok((proto::ListGroupsReply { groups, more }, stale))
    }

    /// A page of the open sessions.
    ///
    /// # Errors
    /// `NOT_FOUND` if only one was asked for and it is not open.
    pub async fn list_sessions(&self, request: proto::ListSessionsRequest) -> Read<proto::ListSessionsReply> {
        let stale = self.stale().await;
        let max = shown(request.max, LIST_DEFAULT);
        let (views, more) = match request.only.map(SessionId) {
            Some(only) => {
                let view = self.inner.node.read(|machine| machine.session_view(only));
                (vec![view.ok_or_else(|| refused(&Refusal::NoSession { session: only }))?], false)
            }
            None => {
                let after = (request.after > 0).then_some(SessionId(request.after));
                let mut views = self.inner.node.read(|machine| machine.session_list(after, max + 1));
                let more = views.len() > max;
                views.truncate(max);
                (views, more)
            }
        };
        let sources = self.sources();
        let sessions = views.iter().map(|view| explain::session_info(&sources, view)).collect();
        Ok((proto::ListSessionsReply { sessions, more }, stale))
    }

    /// Makes a group that stays when nobody is in it. Repeated, it answers the same.
    ///
    /// # Errors
    /// The refusal as a status, or `UNAVAILABLE` (not done) or `UNKNOWN` (perhaps done; repeat it).
    pub async fn create_group(
        &self,
        request: proto::CreateGroupRequest,
    ) -> Result<proto::CreateGroupReply, Status> {
        let op = ToolOp::CreateGroup {
            group: name(&request.group)?,
            face: wire::from_face(request.face).map_err(malformed)?,
            policy: request.policy.map(wire::from_policy).transpose().map_err(malformed)?.unwrap_or_default(),
        };
        match self.propose(&request.client, op).await? {
            Reply::Created { created } => Ok(proto::CreateGroupReply { created: created.0 }),
            other => Err(unexpected(&other)),
        }
    }

    /// Removes an empty group; or, if asked, one with all that wait in it, and asks those that act to stop.
    ///
    /// # Errors
    /// As [`Operator::create_group`]. Repeated after an unknown outcome, `NOT_FOUND` means that it is gone.
    /// `FAILED_PRECONDITION` if the name was made at another index than the one given.
    pub async fn delete_group(
        &self,
        request: proto::DeleteGroupRequest,
    ) -> Result<proto::DeleteGroupReply, Status> {
        let created = wire::from_index(request.created);
        let group = name(&request.group)?;
        let op = match request.end {
            true => ToolOp::EndGroup { group: group.clone(), created },
            false => ToolOp::DeleteGroup { group: group.clone(), created },
        };
        match self.propose(&request.client, op).await {
            Ok(_) => Ok(proto::DeleteGroupReply { left: self.asked_to_stop(&group) }),
            Err(status) => Err(self.of_another_making(&group, created).unwrap_or(status)),
        }
    }

    /// The refusal for a name that is there, and was made at another index than the one given.
    fn of_another_making(&self, name: &Name, created: Option<LogIndex>) -> Option<Status> {
        let (created, view) = (created?, self.inner.node.read(|machine| machine.group_view(name, 0))?);
        (view.created != created).then(|| {
            Status::failed_precondition(format!(
                "{name} was made at log index {}, not {created}: it is another one; nothing was deleted",
                view.created
            ))
        })
    }

    /// Those of a name that were asked to stop and act still.
    fn asked_to_stop(&self, name: &Name) -> Vec<proto::Holder> {
        let (view, labels) = self.inner.node.read(|machine| {
            let view = machine.group_view(name, 0);
            let holders = view.iter().flat_map(|view| &view.holders).map(|holder| Some(holder.session));
            let labels: Vec<String> = holders.map(|session| explain::label(machine, session)).collect();
            (view, labels)
        });
        let holders = view.map(|view| view.holders).unwrap_or_default();
        let asked = holders.iter().zip(labels).filter(|(holder, _)| holder.draining.is_some());
        let remaining = |session| self.inner.node.lease_remaining(session).map(Span::as_millis);
        asked
            .map(|(holder, label)| proto::Holder {
                remaining_ms: remaining(holder.session),
                label,
                ..wire::to_holder(holder)
            })
            .collect()
    }

    /// Asks the holder to stop in favour of a member that waits. The answer says who was asked; what came of it
    /// is in the name's history.
    ///
    /// # Errors
    /// As [`Operator::create_group`]. Repeated while the holder is asked, it is refused.
    pub async fn transfer(&self, request: proto::TransferRequest) -> Result<proto::TransferReply, Status> {
        let group = name(&request.group)?;
        let drain = match request.drain_ms {
            0 => self.longest_drain(&group),
            ms => Span::from_millis(ms),
        };
        let op = ToolOp::Transfer { group: group.clone(), to: request.to, drain, force: request.force };
        let index = self.inner.node.read(StateMachine::applied).0;
        self.propose(&request.client, op).await?;
        Ok(proto::TransferReply {
            asked: self.asked_to_stop(&group).into_iter().next(),
            until_ms: Some(disk::wall().0 + drain.as_millis()),
            index,
        })
    }

    /// The longest time that the first holder may be given: a third of its lease (RULES R7).
    fn longest_drain(&self, name: &Name) -> Span {
        let ttl = self.inner.node.read(|machine| {
            let view = machine.group_view(name, 0)?;
            machine.session_view(view.holders.first()?.session).map(|session| session.ttl)
        });
        ttl.map(|ttl| Span::from_millis(ttl.as_millis() / 3)).unwrap_or_default()
    }

    /// States how many members act at once; holders of seats that go are asked to stop.
    ///
    /// # Errors
    /// As [`Operator::create_group`]. Repeated, it answers the same.
    pub async fn set_seats(&self, request: proto::SetSeatsRequest) -> Result<proto::SetSeatsReply, Status> {
        let group = name(&request.group)?;
        let op = ToolOp::SetSeats { group: group.clone(), seats: request.seats };
        self.propose(&request.client, op).await?;
        Ok(proto::SetSeatsReply { asked: self.asked_to_stop(&group) })
    }

    /// Raises the feature level of the cluster. Whether other servers can run it is for the caller to ask
    /// first: each says the highest that it runs in its status.
    ///
    /// # Errors
    /// As [`Operator::create_group`]; `FAILED_PRECONDITION` if the cluster is there already or beyond, or
    /// this server cannot run it. Repeated with the level that was seen before, it answers the same.
    pub async fn raise_level(
        &self,
        request: proto::RaiseLevelRequest,
    ) -> Result<proto::RaiseLevelReply, Status> {
        let from = request.from.unwrap_or_else(|| self.inner.node.read(StateMachine::limits).level);
        let to = request.to.unwrap_or(LEVEL_HIGHEST);
        if to > LEVEL_HIGHEST {
            return Err(refused(&Refusal::LevelUnknown { to, highest: LEVEL_HIGHEST }));
        }
        self.propose(&request.client, ToolOp::RaiseLevel { from, to }).await?;
        tracing::info!(from, level = to, "the feature level of the cluster was raised");
        Ok(proto::RaiseLevelReply { from, level: to })
    }

    /// Asks a session to stop; its lease is renewed no more.
    ///
    /// # Errors
    /// As [`Operator::create_group`]. Repeated, it answers the same.
    pub async fn close_session(
        &self,
        request: proto::CloseSessionRequest,
    ) -> Result<proto::CloseSessionReply, Status> {
        let op = ToolOp::CloseSession { session: SessionId(request.session), why: request.why };
        self.propose(&request.client, op).await.map(|_| proto::CloseSessionReply {})
    }

    /// Who holds, who waits and for whom, and what happened last. A name that nobody used is an answer too.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if it is no name, or no number of a session.
    pub async fn explain(&self, request: proto::ExplainRequest) -> Read<proto::ExplainReply> {
        use proto::explain_request::Kind;
        let kind = Kind::try_from(request.kind)
            .map_err(|_| Status::invalid_argument(format!("kind {} is unknown", request.kind)))?;
        let max = shown(request.max, SHOWN_DEFAULT);
        let stale = self.stale().await;
        let confirmed = self.inner.confirmed_ms.load(Ordering::Relaxed);
        let since = (confirmed > 0).then_some(Wall(confirmed));
        let unconfirmed = stale.clone().map(|why| Stale { why, since });
        let sources = Sources { stale: unconfirmed, ..self.sources() };
        let started = Instant::now();
        let mut reply = match kind {
            Kind::Session => {
                let id = request.name.parse().map(SessionId).map_err(|_| {
                    Status::invalid_argument(format!("{:?} is not the number of a session", request.name))
                })?;
                explain::session(&sources, id)
            }
            Kind::Deadlock if request.name.is_empty() => explain::deadlocks(&sources, None),
            Kind::Deadlock => explain::deadlocks(&sources, Some(&name(&request.name)?)),
            kind => explain::group(&sources, kind, &name(&request.name)?, max),
        };
        reply.took_us = self.inner.metrics.explained(started);
        Ok((reply, stale))
    }

    /// The bytes of a snapshot's file: the state as of now.
    ///
    /// # Errors
    /// `UNAVAILABLE` if no quorum confirms that the state is not older than this call.
    pub async fn snapshot(&self) -> Result<Vec<u8>, Status> {
        let copied = tokio::time::timeout(QUORUM_TIMEOUT, self.inner.node.copy()).await;
        let timed_out = |_| Status::unavailable(format!("no quorum answered within {QUORUM_TIMEOUT:?}"));
        let (position, machine) = copied.map_err(timed_out)?.map_err(|not| not_applied(&not))?;
        let taken = disk::wall().0;
        // A large state takes tens of milliseconds to write down: not on a thread that serves others.
        let written = tokio::task::spawn_blocking(move || {
            Archive::of("this node", position, machine, taken).map(|archive| archive.encode())
        });
        let bytes = written.await.map_err(|error| Status::internal(error.to_string()))?;
        bytes.map_err(|error| Status::failed_precondition(error.to_string()))
    }

    /// Asks for a quorum. `None`: what is read from now on is not older than this call. Else since when
    /// nobody has confirmed that (RULES R26).
    pub async fn stale(&self) -> Option<String> {
        let why = match tokio::time::timeout(QUORUM_TIMEOUT, self.inner.node.linearize()).await {
            Ok(Ok(())) => {
                self.inner.confirmed_ms.fetch_max(disk::wall().0, Ordering::Relaxed);
                return None;
            }
            Ok(Err(NotApplied { why, .. })) => why,
            Err(_) => format!("none answered within {QUORUM_TIMEOUT:?}"),
        };
        let since = match self.inner.confirmed_ms.load(Ordering::Relaxed) {
            0 => "none since this node started".to_owned(),
            ms => format!("the last one was at {}", crate::json::time(ms)),
        };
        Some(format!("no quorum confirms this: {why}; {since}"))
    }

    fn sources(&self) -> Sources<'_> {
        Sources { node: &self.inner.node, peers: &self.inner.peers, now: disk::wall(), stale: None }
    }

    async fn propose(&self, client: &[u8], op: ToolOp) -> Result<Reply, Status> {
        let client = wire::from_wide("client", client).map(ClientId).map_err(malformed)?;
        let command = Command::Tool { client, op };
        let (kind, since) = (metrics::kind(&command), Instant::now());
        let result = self.inner.node.propose(command).await;
        self.inner.metrics.asked(kind, since, &result);
        match result {
            Ok(Reply::Refused(refusal)) => Err(refused(&refusal)),
            Ok(reply) => Ok(reply),
            Err(not) => Err(not_applied(&not)),
        }
    }
}

fn shown(asked: u32, default: u32) -> usize {
    match asked {
        0 => default as usize,
        asked => asked.min(LIST_MAX) as usize,
    }
}

fn name(text: &str) -> Result<Name, Status> {
    Name::new(text).map_err(|error| Status::invalid_argument(error.to_string()))
}

fn malformed(malformed: Malformed) -> Status {
    Status::invalid_argument(malformed.to_string())
}

fn unexpected(reply: &Reply) -> Status {
    Status::internal(format!("the log answered something else: {reply:?}"))
}

fn not_applied(not: &NotApplied) -> Status {
    match not.outcome {
        Outcome::NotDone => Status::unavailable(format!("not done: {}", not.why)),
        Outcome::Unknown => Status::unknown(format!("it is not known whether it was done: {}", not.why)),
    }
}

/// A refusal as a status: its sentence, and its code in a header for programs.
fn refused(refusal: &Refusal) -> Status {
    let code = match refusal {
        Refusal::NoSession { .. } | Refusal::NoGroup { .. } | Refusal::NoEntry { .. } => Code::NotFound,
        Refusal::Limit { .. } => Code::ResourceExhausted,
        Refusal::Unsupported { .. } => Code::Unimplemented,
        Refusal::WrongSecret { .. } => Code::PermissionDenied,
        Refusal::LeaseTooShort { .. } => Code::InvalidArgument,
        _ => Code::FailedPrecondition,
    };
    let mut status = Status::new(code, refusal.to_string());
    let name = wire::to_refusal(refusal).code().as_str_name();
    status.metadata_mut().insert(REFUSAL_HEADER, tonic::metadata::MetadataValue::from_static(name));
    status
}
