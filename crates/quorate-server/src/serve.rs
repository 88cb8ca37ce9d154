//! One service from its start to its end: the port, the node behind it, and how both stop.
//!
//! Rule: what was answered is durable before the process ends; a session never takes the service's end for
//! its own (RULES R18); a node that may not go on ends the process at once (R28).

use crate::config::Config;
use crate::grpc;
use crate::http;
use crate::metrics::Metrics;
use crate::node::{Node, Settings, Status};
use crate::operator::Operator;
use crate::port::Port;
use crate::sessions::Sessions;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How a service ended.
#[derive(Debug)]
pub enum End {
    /// A signal asked for it, and everything was closed in order.
    Asked,
    /// The node may not go on; the sentence says why.
    Failed(String),
}

/// What a service that is ready says of itself.
pub struct Ready {
    /// Where it listens.
    pub address: SocketAddr,
    /// Where its data is.
    pub data: PathBuf,
    /// How the node is.
    pub status: Status,
}

/// Why a service did not start. Each is a sentence.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}{}", advice(source))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The node does not start.
    #[error(transparent)]
    Node(#[from] crate::log::StartError),
    /// The system gives no signals, or another basic thing is missing.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

fn advice(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "; another process listens there: stop it, or choose another address with --listen"
        }
        _ => "",
    }
}

/// Runs a service until a signal or a failure ends it. `ready` hears when it serves.
///
/// # Errors
/// [`ServeError`] if it does not start.
pub async fn run(config: Config, ready: impl FnOnce(&Ready)) -> Result<End, ServeError> {
    let mut signals = Signals::new()?;
    raise_file_limit(config.connections);
    let port = Port::bind(&config.listen, config.connections).await.map_err(|source| {
        let address = config.listen.first().copied().unwrap_or(([0, 0, 0, 0], 0).into());
        ServeError::Listen { address, source }
    })?;
    let address = port.address()?;
    let settings = Settings {
        data: config.data.clone(),
        ttl_floor: config.ttl_floor,
        snapshot_every: config.snapshot_every,
        disk_reserve_bytes: config.disk_reserve_bytes,
    };
    let node = tokio::select! {
        started = Node::start(settings) => started?,
        () = signals.next() => return Ok(End::Asked),
    };
    ready(&Ready { address, data: config.data, status: node.status() });
    Ok(serve(node, port, address, signals).await)
}

async fn serve(node: Node, port: Port, address: SocketAddr, mut signals: Signals) -> End {
    let stopping = Arc::new(AtomicBool::new(false));
    let (stop, stopped) = watch::channel(false);
    let metrics = Metrics::new(node.clone(), port.lines());
    let sessions = Sessions::new(metrics.measure(node.authority()), Arc::clone(&stopping), metrics.clone());
    let operator = Operator::new(node.clone(), address, sessions.peers(), metrics.clone());
    let (routes, health) = grpc::routes(sessions, operator.clone()).await;
    let router = http::router(routes, operator, metrics, Arc::clone(&stopping));
    let mut serving = tokio::spawn(port.serve(http::ending(router, stopped.clone()), stopped));
    tokio::select! {
        () = signals.next() => {}
        why = node.failed() => return End::Failed(why),
    }
    tracing::info!("stopping: a second signal ends the process at once");
    stopping.store(true, Ordering::Release);
    health.stopping().await;
    let _ = stop.send(true);
    tokio::select! {
        _ = &mut serving => {}
        () = signals.next() => std::process::exit(i32::from(signals.code())),
    }
    tokio::select! {
        () = node.shutdown() => End::Asked,
        () = signals.next() => std::process::exit(i32::from(signals.code())),
    }
}

/// Each connection is an open file, and the usual limit of 1,024 is for programs that have few. The hard limit
/// is the system's word and stays.
fn raise_file_limit(connections: usize) {
    /// The log, its writer, the port and a few more.
    const OWN_FILES: u64 = 64;
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
    let needed = OWN_FILES.saturating_add(connections as u64);
    match getrlimit(Resource::Nofile).current {
        Some(files) if files < needed => tracing::warn!(
            "the system allows this process {files} open files, fewer than its {connections} connections need: \
             raise the limit (ulimit -n), or lower the setting connections"
        ),
        _ => {}
    }
}

/// The two signals that ask a service to stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    last: u8,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            last: 0,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => self.last = 15,
            _ = self.interrupt.recv() => self.last = 2,
        }
    }

    /// 128 + n, as shells have it.
    fn code(&self) -> u8 {
        128 + self.last
    }
}
