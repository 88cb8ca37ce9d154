//! One process of a run, from the inside: a named protocol that is told what to do over a connection.
//!
//! **Rule.** It binds a port, says which, is told everybody's, and begins; from then on it tells each event
//! and how far it has come. It ends when its connection to whoever started it ends, so that none is left
//! behind.
//!
//! Both sides send lines of JSON: [`Order`] to the child, [`Said`] from it.

use super::named::{self, Settings, Stand, Visitor};
use super::{Detection, Driver, Options, Portable, Progress};
use quorate_core::protocol::{Kind, Peer, ProcessId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

/// What a child process is to be. It is handed over as one argument, in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The name of the protocol.
    pub protocol: String,
    /// Which process it is.
    pub process: ProcessId,
    /// Of how many.
    pub n: usize,
    /// How the protocol is set up.
    pub settings: Settings,
    /// Who tells it what to do.
    pub control: SocketAddr,
    /// Where its timers are drawn from.
    pub seed: u64,
    /// How often it says that it lives.
    pub beat_ms: u64,
    /// Its detector: silence and closed connection, in milliseconds; none to suspect nobody.
    pub detection_ms: Option<(u64, u64)>,
    /// The directory of its record.
    pub disk: PathBuf,
    /// The directory in which it writes its life down.
    pub trace: PathBuf,
    /// How often it enters, once it was called; an election is held once.
    pub entries: u32,
    /// How long it stays inside, at least and at most; none until it is told to leave.
    pub hold_ms: Option<(u64, u64)>,
}

/// What a child is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Begin: here is where everybody is.
    Begin(BTreeMap<ProcessId, SocketAddr>),
    /// The application asks, in the words of a script.
    Call(String),
    /// Say where you stand. The number comes back with the answer.
    Look(u64),
    /// End, after what waits.
    Stop,
}

/// What a child says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// It listens here.
    Bound {
        /// Which process it is.
        process: ProcessId,
        /// Where.
        address: SocketAddr,
    },
    /// Its life has begun.
    Began(Peer),
    /// Its application was told something.
    Event {
        /// The sort.
        kind: String,
        /// In words.
        words: String,
    },
    /// It has come so far.
    Progress(Progress),
    /// Where it stands, and how far it had come then.
    Stands(u64, Stand, Progress),
}

/// Runs a child to its end.
///
/// # Errors
/// The job is not one, or the process cannot run, or has stopped by itself.
pub async fn run(job: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let job: Job = serde_json::from_str(job)?;
    let (protocol, process, n, settings) = (job.protocol.clone(), job.process, job.n, job.settings.clone());
    named::open(&protocol, process, n, &settings, job)?.await
}

type Running = Pin<Box<dyn Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send>>;

impl Visitor for Job {
    type Output = Running;
    fn visit<P: Portable>(self, machine: P, stand: fn(&P) -> Stand) -> Running {
        Box::pin(Inside::begin(self, machine, stand))
    }
}

/// The child's own view of its work.
struct Inside<P: Portable> {
    job: Job,
    driver: Driver<P>,
    stand: fn(&P) -> Stand,
    orders: Lines<BufReader<OwnedReadHalf>>,
    tell: OwnedWriteHalf,
    done: u32,
    leave: Option<Instant>,
}

async fn tell(to: &mut OwnedWriteHalf, said: &Said) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    to.write_all(&line).await
}

impl<P: Portable> Inside<P> {
    async fn begin(job: Job, machine: P, stand: fn(&P) -> Stand) -> Result<(), Box<dyn Error + Send + Sync>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let control = TcpStream::connect(job.control).await?;
        control.set_nodelay(true)?;
        let (orders, mut out) = control.into_split();
        let mut orders = BufReader::new(orders).lines();
        tell(&mut out, &Said::Bound { process: job.process, address: listener.local_addr()? }).await?;
        let Some(first) = orders.next_line().await? else { return Ok(()) };
        let Order::Begin(addresses) = serde_json::from_str(&first)? else {
            return Err("the first order is not to begin".into());
        };
        let detection = job.detection_ms.map(|(silence, closed)| Detection {
            silence: Duration::from_millis(silence),
            closed: Duration::from_millis(closed),
        });
        let options = Options {
            seed: job.seed,
            beat: Duration::from_millis(job.beat_ms),
            detection,
            disk: Some(job.disk.clone()),
            trace: Some(job.trace.clone()),
        };
        let driver = Driver::start(machine, job.process, listener, addresses, options)?;
        tell(&mut out, &Said::Began(driver.peer())).await?;
        Self { job, driver, stand, orders, tell: out, done: 0, leave: None }.obey().await
    }

    async fn obey(mut self) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut progress = self.driver.progress();
        loop {
            let leave = self.leave;
            tokio::select! {
                order = self.orders.next_line() => match order? {
                    None => return Ok(()),
                    Some(order) => match serde_json::from_str(&order)? {
                        Order::Stop => {
                            self.driver.stop().await?;
                            return Ok(());
                        }
                        order => self.order(order).await?,
                    },
                },
                event = self.driver.event() => match event {
                    Some(event) => self.event(&event).await?,
                    None => return Err(self.driver.stop().await.err().map_or("it ended".into(), Into::into)),
                },
                news = progress.changed() => {
                    let now = progress.borrow_and_update().clone();
                    // When the sender is gone there are no more events either, and that says why.
                    if news.is_ok() {
                        tell(&mut self.tell, &Said::Progress(now)).await?;
                    } else {
                        return Err(self.driver.stop().await.err().map_or("it ended".into(), Into::into));
                    }
                }
                () = tokio::time::sleep_until(leave.unwrap_or_else(Instant::now)), if leave.is_some() => {
                    self.leave = None;
                    self.call("leave").await?;
                }
            }
        }
    }

    async fn order(&mut self, order: Order) -> Result<(), Box<dyn Error + Send + Sync>> {
        match order {
            Order::Begin(_) => return Err("it has begun already".into()),
            Order::Call(call) => self.call(&call).await?,
            Order::Look(number) => {
                let stand = self.stand;
                let look = move |machine: &P, progress: &Progress| (stand(machine), progress.clone());
                let (stand, progress) = self.driver.look(look).await?;
                tell(&mut self.tell, &Said::Stands(number, stand, progress)).await?;
            }
            Order::Stop => {}
        }
        Ok(())
    }

    async fn call(&self, text: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        let call = text.parse().map_err(|_| format!("{text} is not a call of {}", self.job.protocol))?;
        Ok(self.driver.call(call).await?)
    }

    /// Tells an event, and goes on with the work.
    async fn event(&mut self, event: &P::Event) -> Result<(), Box<dyn Error + Send + Sync>> {
        let said = Said::Event { kind: event.name().to_string(), words: event.to_string() };
        tell(&mut self.tell, &said).await?;
        match event.name() {
            "entered" => {
                self.leave = self.job.hold_ms.map(|(least, most)| {
                    let hold = rand::random_range(least * 1_000..=most.max(least) * 1_000);
                    Instant::now() + Duration::from_micros(hold)
                });
            }
            "left" | "lost" => {
                self.leave = None;
                self.done += 1;
                if self.done < self.job.entries {
                    self.call("enter").await?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}
