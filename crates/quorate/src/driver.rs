//! Peer protocols on real processes: sockets, a disk and a clock around the pure rules.
//!
//! **Problem.** What was searched and simulated must be what runs, or the search proves nothing.
//!
//! **Rule.** One task owns the machine and hands it one input at a time; effects leave in their order, after
//! they are written down, and a message that names a record leaves when that is on the disk.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use quorate::driver::{Driver, Options};
//! use quorate_core::mutex::{Call, Event, RicartAgrawala};
//! use quorate_core::protocol::{Members, ProcessId};
//! use std::collections::BTreeMap;
//! use tokio::net::TcpListener;
//!
//! let listeners = [TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?];
//! let mut addresses = BTreeMap::new();
//! for (listener, process) in listeners.iter().zip([ProcessId(1), ProcessId(2)]) {
//!     addresses.insert(process, listener.local_addr()?);
//! }
//! let mut drivers = Vec::new();
//! for (listener, process) in listeners.into_iter().zip([ProcessId(1), ProcessId(2)]) {
//!     let machine = RicartAgrawala::new(process, Members::first(2), None);
//!     drivers.push(Driver::start(machine, process, listener, addresses.clone(), Options::default())?);
//! }
//! drivers[0].call(Call::Enter).await?;
//! while !matches!(drivers[0].event().await, Some(Event::Entered { .. })) {}
//! # Ok(())
//! # }
//! ```
//!
//! **Lives.** Each start is a life with a random number (RULES R43). A message that names a life of its
//! receiver that is over is dropped, and so is one of a life of its sender that is over.
//!
//! **Needs.** Addresses that do not change, and processes that trust each other: frames carry no proof of who
//! sends them and are not encrypted. Listen on loopback or on a network of your own.
//!
//! | part | what |
//! |---|---|
//! | [`record`] | what is written down, and [`record::replay`] |
//! | [`Detection`] | who is suspected, if not told from outside |
//! | [`proxy`] | links that can be cut, delayed and broken, for tests |
//! | [`processes`] | protocols by name in child processes, with faults |
//! | [`judge`] | one recording of all, and what must hold of it |

pub mod child;
mod detector;
mod disk;
pub mod judge;
mod life;
pub mod named;
pub mod processes;
pub mod proxy;
pub mod record;
mod transport;

pub use detector::Detection;

use crate::clock::Clock;
use life::{Inbound, Life};
use quorate_core::id::ViewId;
use quorate_core::protocol::{Incarnation, Members, Peer, ProcessId, Protocol};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

/// A protocol whose messages, timers and records have a written form.
pub trait Portable:
    Protocol<
        Call: Send + Sync,
        Message: Serialize + DeserializeOwned + Send + Sync,
        Timer: Serialize + DeserializeOwned + Send + Sync,
        Record: Serialize + DeserializeOwned + Send + Sync,
        Event: Send + Sync,
    > + Send
    + Sync
    + 'static
{
}

impl<P> Portable for P where
    P: Protocol<
            Call: Send + Sync,
            Message: Serialize + DeserializeOwned + Send + Sync,
            Timer: Serialize + DeserializeOwned + Send + Sync,
            Record: Serialize + DeserializeOwned + Send + Sync,
            Event: Send + Sync,
        > + Send
        + Sync
        + 'static
{
}

/// How many inputs wait for the machine at most. Whoever brings more waits, down to the sockets of others.
const INBOX_MAX: usize = 1_024;

/// How a process runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the instants of timers are drawn from. Written down.
    pub seed: u64,
    /// How often a process that has nothing to say says that it lives, and tries again to connect.
    pub beat: Duration,
    /// Who is suspected; none if that is told from outside, or not at all.
    pub detection: Option<Detection>,
    /// The directory of the record. A protocol that writes needs one.
    pub disk: Option<PathBuf>,
    /// The directory in which this life is written down, in a file of its own.
    pub trace: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        let beat = Duration::from_millis(50);
        Self { seed: rand::random(), beat, detection: None, disk: None, trace: None }
    }
}

/// Why a process does not run (any more). Nothing that it had not written is on its disk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The disk failed: what is on it is not known, so the process has stopped.
    #[error("the record could not be kept, and the process has stopped: {0}")]
    Disk(std::io::Error),
    /// The protocol has written, and no directory was named.
    #[error("the protocol keeps a record: name a directory for it")]
    NoDisk,
    /// The trace could not be written, and the process has stopped rather than act unseen.
    #[error("the trace could not be written, and the process has stopped: {0}")]
    Trace(std::io::Error),
    /// It has been stopped.
    #[error("the process has stopped; nothing was asked of it")]
    Stopped,
}

/// How far a process has come, in this life.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// How many inputs it has taken.
    pub inputs: u64,
    /// How many messages it has sent.
    pub sent: u64,
    /// How many it has received, or dropped on arrival.
    pub received: u64,
    /// How many of its own it knows to be lost.
    pub lost: u64,
    /// How many timers run.
    pub timers: u64,
    /// How many records are not durable yet.
    pub writing: u64,
    /// How many connections of others are open.
    pub links_in: u32,
    /// To how many others a connection is open.
    pub links_out: u32,
    /// Whom its detector suspects.
    pub suspected: Vec<ProcessId>,
}

/// A running process. Dropped, it crashes: what was not written is lost.
#[derive(Debug)]
pub struct Driver<P: Portable> {
    peer: Peer,
    inbox: mpsc::Sender<Inbound<P>>,
    events: mpsc::UnboundedReceiver<P::Event>,
    progress: watch::Receiver<Progress>,
    task: JoinHandle<Result<Progress, DriverError>>,
}

impl<P: Portable> Drop for Driver<P> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<P: Portable> Driver<P> {
    /// Starts a life of a process. `addresses` are those of all members, its own may be among them.
    ///
    /// # Errors
    /// The record cannot be read, or the trace not be begun.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(
        machine: P,
        process: ProcessId,
        listener: TcpListener,
        addresses: BTreeMap<ProcessId, SocketAddr>,
        options: Options,
    ) -> Result<Self, DriverError> {
        let peer = Peer { process, incarnation: Incarnation(rand::random()) };
        let (inbox, inputs) = mpsc::channel(INBOX_MAX);
        let (tell, events) = mpsc::unbounded_channel();
        let (publish, progress) = watch::channel(Progress::default());
        let life = Life::open(machine, peer, &options, Clock::new(), (tell, publish))?;
        let others = addresses.into_iter().filter(|(other, _)| *other != process).collect();
        let task = tokio::spawn(life.run(listener, others, options, inbox.clone(), inputs));
        Ok(Self { peer, inbox, events, progress, task })
    }

    /// The process, in this life.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// Asks. The answer is an event.
    ///
    /// # Errors
    /// The process has stopped.
    pub async fn call(&self, call: P::Call) -> Result<(), DriverError> {
        self.put(Inbound::Call(call)).await
    }

    /// Says from outside that a process has stopped.
    ///
    /// # Errors
    /// The process has stopped.
    pub async fn suspect(&self, of: ProcessId) -> Result<(), DriverError> {
        self.put(Inbound::Suspect(of)).await
    }

    /// Says from outside that a process lives.
    ///
    /// # Errors
    /// The process has stopped.
    pub async fn trust(&self, of: Peer) -> Result<(), DriverError> {
        self.put(Inbound::Trust(of)).await
    }

    /// Tells a view that was decided elsewhere.
    ///
    /// # Errors
    /// The process has stopped.
    pub async fn view(&self, id: ViewId, members: Members) -> Result<(), DriverError> {
        self.put(Inbound::View(id, members)).await
    }

    /// Looks at the machine between two inputs.
    ///
    /// # Errors
    /// The process has stopped.
    pub async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&P, &Progress) -> T + Send + 'static,
    ) -> Result<T, DriverError> {
        let (answer, answered) = oneshot::channel();
        let look = move |machine: &P, progress: &Progress| {
            // Whoever asked may have gone.
            let _ = answer.send(look(machine, progress));
        };
        self.put(Inbound::Look(Box::new(look))).await?;
        // One that was on its way when the process ended stays unread, and is not dropped either.
        tokio::select! {
            biased;
            answer = answered => answer.map_err(|_| DriverError::Stopped),
            () = self.inbox.closed() => Err(DriverError::Stopped),
        }
    }

    /// The next event, in order; none once the process has stopped.
    pub async fn event(&mut self) -> Option<P::Event> {
        self.events.recv().await
    }

    /// How far it has come; the receiver is told of each change.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }

    /// Stops it after the inputs that wait.
    ///
    /// # Errors
    /// It had stopped by itself, and why.
    pub async fn stop(mut self) -> Result<Progress, DriverError> {
        // If it has stopped already, the task says why.
        let _ = self.inbox.send(Inbound::Stop).await;
        match (&mut self.task).await {
            Ok(ended) => ended,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(DriverError::Stopped),
        }
    }

    async fn put(&self, input: Inbound<P>) -> Result<(), DriverError> {
        self.inbox.send(input).await.map_err(|_| DriverError::Stopped)
    }
}
