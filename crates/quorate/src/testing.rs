//! A whole service in this process, for examples and for tests of programs that use the library.
//!
//! The same state machine decides as in the real service, behind the same contract and over real sockets of
//! this machine; only its log is in memory and is gone with it. Faults are made on purpose: the service stops and
//! comes back with its state ([`Service::stop`], [`Service::start_again`]), or a client's [`Cable`] is cut,
//! frozen or unplugged while the service goes on.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use quorate::{SessionOptions, testing::Service};
//! use std::time::Duration;
//!
//! let service = Service::start().await;
//! let cable = service.cable().await;
//! let session = cable.client().session(SessionOptions::with_ttl(Duration::from_millis(300))).await?;
//! let guard = session.lock("orders")?.acquire().await?;
//! cable.freeze(); // The network dies without a word.
//! let loss = guard.lost().await;
//! assert!(loss.remaining > Duration::ZERO, "there is time to stop: {loss}");
//! # Ok(())
//! # }
//! ```

mod authority;
mod cable;

pub use cable::Cable;

use crate::client::Client;
use crate::proto::sessions_server::SessionsServer;
use crate::service::{Authority, SessionsService};
use authority::Memory;
use quorate_core::id::SessionId;
use quorate_core::state_machine::{Command, Refusal, Reply, StateMachine, ToolOp};
use quorate_core::time::Span;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// How many sessions one connection may carry, as in the real service.
const STREAMS_MAX: u32 = 4_096;

/// A service in this process. It ends when it is dropped.
#[derive(Debug)]
pub struct Service {
    memory: Arc<Memory>,
    front: Cable,
    dial: mpsc::UnboundedSender<DuplexStream>,
    server: JoinHandle<()>,
    keeper: JoinHandle<()>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.server.abort();
        self.keeper.abort();
    }
}

impl Service {
    /// Starts a service with an empty log on a free port of this machine. Its shortest lease is 20 ms.
    ///
    /// # Panics
    /// Outside of a tokio runtime, or if the machine has no port left.
    pub async fn start() -> Self {
        let memory = Arc::new(Memory::found(Span::from_millis(20)));
        memory.begin_reign();
        let keeper = tokio::spawn(Arc::clone(&memory).keep_leases());
        let (dial, calls) = mpsc::unbounded_channel();
        let authority: Arc<dyn Authority> = Arc::new(authority::Shared(Arc::clone(&memory)));
        let sessions = SessionsService::new(authority, Arc::new(AtomicBool::new(false)));
        let calls = UnboundedReceiverStream::new(calls);
        let calls = futures::StreamExt::map(calls, Ok::<_, std::io::Error>);
        let server = tonic::transport::Server::builder()
            .max_concurrent_streams(STREAMS_MAX)
            .add_service(SessionsServer::new(sessions))
            .serve_with_incoming(calls);
        let server = tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::warn!(%error, "the service for tests has ended");
            }
        });
        let front = Cable::plug(dial.clone()).await;
        Self { memory, front, dial, server, keeper }
    }

    /// Its address, `127.0.0.1:port`.
    pub fn address(&self) -> String {
        self.front.address()
    }

    /// A client of it.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn client(&self) -> Client {
        self.front.client()
    }

    /// A way to it of its own, whose faults others do not notice.
    ///
    /// # Panics
    /// If the machine has no port left.
    pub async fn cable(&self) -> Cable {
        Cable::plug(self.dial.clone()).await
    }

    /// Stops the service: connections by its own address break, and nothing is decided until
    /// [`start_again`](Self::start_again). Leases are not counted meanwhile. Its state stays.
    pub fn stop(&self) {
        self.memory.pause();
        self.front.unplug();
        self.front.cut();
    }

    /// Starts the stopped service with its state, as a new reign: nobody ends before a whole lease is over (RULES R5).
    pub fn start_again(&self) {
        self.memory.begin_reign();
        self.memory.resume();
        self.front.plug_in();
    }

    /// Makes the service silent: connections stay, nothing is answered, and leases are not counted.
    pub fn pause(&self) {
        self.memory.pause();
    }

    /// Ends a pause, as a new reign.
    pub fn resume(&self) {
        self.memory.begin_reign();
        self.memory.resume();
    }

    /// Asks a session to stop, as an operator does.
    ///
    /// # Errors
    /// If there is no such session.
    pub fn close_session(&self, session: SessionId, why: &str) -> Result<(), Refusal> {
        self.operate(ToolOp::CloseSession { session, why: why.into() })
    }

    /// Does what an operator asks: a transfer, another number of seats, the end of a group.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn operate(&self, op: ToolOp) -> Result<(), Refusal> {
        match self.memory.apply(Command::Tool { client: Default::default(), op }) {
            Reply::Refused(refusal) => Err(refusal),
            _ => Ok(()),
        }
    }

    /// Ends a session at once, as the end of its lease does, whether or not it is alive.
    pub fn expire_session(&self, session: SessionId) {
        self.memory.expire(session);
    }

    /// Reads the replicated state.
    pub fn look<T>(&self, look: impl FnOnce(&StateMachine) -> T) -> T {
        self.memory.look(look)
    }

    /// Waits until the replicated state satisfies a condition; it is asked after each command.
    pub async fn until(&self, condition: impl Fn(&StateMachine) -> bool) {
        self.memory.until(condition).await;
    }
}
