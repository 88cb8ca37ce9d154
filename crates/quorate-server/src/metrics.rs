//! What the service counts, for Prometheus. A registry of its own, no globals: many nodes fit in a process.
//!
//! Counts are of this node since its start. What the node and the port count themselves is read when it is
//! asked for; only requests and frames are counted here.

use crate::node::{Node, Status};
use crate::port::Lines;
use futures::future::BoxFuture;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use quorate::proto::server_frame::Frame;
use quorate::service::{Authority, Events, NotApplied};
use quorate_core::frame::{Bye, Outcome};
use quorate_core::id::{EntryId, Generation, SessionId};
use quorate_core::state_machine::{Command, Op, Opened, Reply, ToolOp, Total};
use quorate_core::time::Span;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The media type of the text.
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of one service. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    requests: Family<Request, Counter>,
    latency: Histogram,
    explained: Histogram,
    frames: Arc<[Counter; FRAME_KINDS.len()]>,
    missed: Counter,
}

/// The kinds of frames that are counted, in the order of [`Metrics::sent`].
const FRAME_KINDS: [&str; 10] =
    ["opened", "alive", "answer", "unanswered", "change", "total", "gap", "closing", "ended", "bye"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    kind: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Sent {
    kind: &'static str,
}

impl Metrics {
    /// The metrics of a node and its port.
    pub fn new(node: Node, lines: Arc<Lines>) -> Self {
        // From 100 us, which no disk beats, to 3.3 s, where clients have given up.
        let latency = Histogram::new(exponential_buckets(0.000_1, 2.0, 16));
        let explained = Histogram::new(exponential_buckets(0.000_01, 2.0, 16));
        let (requests, missed) = (Family::default(), Counter::default());
        let sent = Family::<Sent, Counter>::default();
        // Frames are counted by the ten thousand a second, so each counter is looked up once, here.
        let frames = FRAME_KINDS.map(|kind| sent.get_or_create(&Sent { kind }).clone());
        let mut registry = Registry::with_prefix("quorate");
        registry.register(
            "requests",
            "Commands that connections and tools brought to the log, by kind and outcome",
            Family::clone(&requests),
        );
        registry.register(
            "request_duration_seconds",
            "From the arrival of a command to its application, the commit included",
            latency.clone(),
        );
        registry.register(
            "explain_duration_seconds",
            "How long it took to find out why, once a quorum had answered",
            explained.clone(),
        );
        registry.register("frames_sent", "Frames sent to clients, by kind", sent);
        registry.register(
            "changes_missed",
            "Changes that clients were too slow to read, and were told of as a gap",
            Counter::clone(&missed),
        );
        registry.register_collector(Box::new(Read { node, lines }));
        Self { registry: Arc::new(registry), requests, latency, explained, frames: Arc::new(frames), missed }
    }

    /// All of them as text.
    ///
    /// # Errors
    /// If the text cannot be written, which it always can.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// An authority whose commands are counted and timed.
    pub fn measure(&self, authority: Arc<dyn Authority>) -> Arc<dyn Authority> {
        Arc::new(Measured { authority, metrics: self.clone() })
    }

    /// Counts one command and its outcome.
    pub fn asked(&self, kind: &'static str, since: Instant, result: &Result<Reply, NotApplied>) {
        let outcome = match result {
            Ok(Reply::Refused(_)) => "refused",
            Ok(_) => "done",
            Err(NotApplied { outcome: Outcome::NotDone, .. }) => "not_done",
            Err(NotApplied { outcome: Outcome::Unknown, .. }) => "unknown",
        };
        self.requests.get_or_create(&Request { kind, outcome }).inc();
        if result.is_ok() {
            self.latency.observe(since.elapsed().as_secs_f64());
        }
    }

    /// Times one explanation; how long it took, in microseconds.
    pub fn explained(&self, since: Instant) -> u64 {
        let took = since.elapsed();
        self.explained.observe(took.as_secs_f64());
        u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
    }

    /// Counts one frame on its way to a client.
    pub fn sent(&self, frame: &Frame) {
        let kind = match frame {
            Frame::Opened(_) => 0,
            Frame::Alive(_) => 1,
            Frame::Answer(_) => 2,
            Frame::Unanswered(_) => 3,
            Frame::Change(_) => 4,
            Frame::Total(_) => 5,
            Frame::Gap(_) => 6,
            Frame::Closing(_) => 7,
            Frame::Ended(_) => 8,
            Frame::Bye(_) => 9,
        };
        self.frames[kind].inc();
        if let Frame::Gap(gap) = frame {
            self.missed.inc_by(gap.missed);
        }
    }
}

/// The name of a command in the metrics.
pub fn kind(command: &Command) -> &'static str {
    match command {
        Command::Found { .. } => "found",
        Command::Begin { .. } => "begin",
        Command::Open { .. } => "open",
        Command::Attach { .. } => "attach",
        Command::Mark { .. } => "mark",
        Command::Checkpoint { .. } => "checkpoint",
        Command::TimerFired { .. } => "timer_fired",
        Command::Disconnected { .. } => "disconnected",
        Command::Call { op, .. } => match op {
            Op::Join(_) | Op::JoinOn(..) => "join",
            Op::Stopped { .. } => "stopped",
            Op::Progress { .. } => "progress",
            Op::Release { .. } => "release",
            Op::Cancel { .. } => "cancel",
            Op::Describe { .. } => "describe",
            Op::End => "end",
            Op::ActsFor { .. } => "acts_for",
        },
        Command::Tool { op, .. } => match op {
            ToolOp::CreateGroup { .. } => "create_group",
            ToolOp::DeleteGroup { .. } => "delete_group",
            ToolOp::CloseSession { .. } => "close_session",
            ToolOp::Transfer { .. } => "transfer",
            ToolOp::SetSeats { .. } => "set_seats",
            ToolOp::EndGroup { .. } => "end_group",
            ToolOp::RaiseLevel { .. } => "raise_level",
        },
    }
}

/// An authority whose commands are counted and timed.
struct Measured {
    authority: Arc<dyn Authority>,
    metrics: Metrics,
}

impl Authority for Measured {
    fn propose(&self, command: Command) -> BoxFuture<'static, Result<Reply, NotApplied>> {
        let (kind, since) = (kind(&command), Instant::now());
        let metrics = self.metrics.clone();
        let proposed = self.authority.propose(command);
        Box::pin(async move {
            let result = proposed.await;
            metrics.asked(kind, since, &result);
            result
        })
    }

    fn renew(&self, session: SessionId) -> BoxFuture<'static, Option<Vec<EntryId>>> {
        self.authority.renew(session)
    }

    fn listen(&self, session: SessionId, generation: Generation) -> Result<(Events, Opened), Bye> {
        self.authority.listen(session, generation)
    }

    fn total(&self, entry: EntryId) -> Option<Total> {
        self.authority.total(entry)
    }

    fn ttl_floor(&self) -> Span {
        self.authority.ttl_floor()
    }
}

/// Reads what the node and the port count themselves.
struct Read {
    node: Node,
    lines: Arc<Lines>,
}

impl fmt::Debug for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Read").finish_non_exhaustive()
    }
}

impl Collector for Read {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = self.node.status();
        for (name, help, value) in self.counters(&status) {
            let counter = ConstCounter::new(value);
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        for (name, help, value) in self.gauges(&status) {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}

type Named<T> = (&'static str, &'static str, T);

impl Read {
    fn counters(&self, status: &Status) -> Vec<Named<u64>> {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (node, lines) = (self.node.counts(), &self.lines);
        vec![
            ("proposals", "Commands brought to the log, the node's own among them", read(&node.proposed)),
            (
                "proposals_failed",
                "Commands that were not applied, or it is not known",
                read(&node.not_applied),
            ),
            ("grants", "Seats granted", read(&node.granted)),
            ("sessions_expired", "Sessions whose lease ran out", read(&node.expired)),
            ("sessions_ended", "Sessions that ended otherwise", read(&node.ended)),
            ("keepalives_confirmed", "Keepalives confirmed by a quorum", read(&node.confirmed)),
            ("keepalives_silent", "Keepalives that were not confirmed", read(&node.silent)),
            ("quorum_rounds", "Quorum rounds made for keepalives", read(&node.rounds)),
            ("commits", "Durable transactions of the log", status.commits),
            ("connections_accepted", "Connections accepted", read(&lines.accepted)),
            ("connections_refused", "Connections refused, since there were too many", read(&lines.refused)),
            ("connections_failed", "Connections ended by an error or by silence", read(&lines.failed)),
        ]
    }

    fn gauges(&self, status: &Status) -> Vec<Named<f64>> {
        let lines = &self.lines;
        vec![
            ("sessions", "Open sessions", status.sessions as f64),
            ("groups", "Names in use", status.groups as f64),
            ("session_streams", "Sessions connected to this node", status.connections as f64),
            ("connections", "Open connections of all kinds", lines.open.load(Ordering::Relaxed) as f64),
            ("leader", "Whether this node leads: 1 or 0", f64::from(u8::from(status.role == "leader"))),
            ("term", "The term of the log", status.term as f64),
            ("reign", "The reign of lease keeping", status.reign.0 as f64),
            ("applied_index", "The last applied entry of the log", status.applied.0 as f64),
            ("log_index", "The last entry of the log", status.last_log.0 as f64),
            ("snapshot_index", "The last entry in the stored snapshot", status.snapshot.0 as f64),
            ("last_token", "The greatest token granted; inexact beyond 2^53", status.last_token.0 as f64),
            ("ttl_floor_seconds", "The shortest lease", status.ttl_floor.as_millis() as f64 / 1e3),
            ("commit_p50_seconds", "Median of the last 1,024 commits", status.commit_p50_us as f64 / 1e6),
            (
                "commit_p99_seconds",
                "99th percentile of the last 1,024 commits",
                status.commit_p99_us as f64 / 1e6,
            ),
            ("disk_free_bytes", "Free space where the data is", status.disk_free_bytes as f64),
            (
                "disk_low",
                "Only release, leave and expiry are logged: 1 or 0",
                f64::from(u8::from(status.disk_low)),
            ),
            ("uptime_seconds", "Since the start", status.uptime.as_secs_f64()),
        ]
    }
}
