//! The way to a service: addresses, and a connection to each that is made when it is first needed.

use crate::clock::{self, Clock};
use crate::error::Error;
use crate::operator::Operator;
use crate::proto::operator_client::OperatorClient;
use crate::proto::sessions_client::SessionsClient;
use crate::session::{Session, SessionOptions};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};

/// The port of an address that names none.
pub const DEFAULT_PORT: u16 = 7420;

/// How long opening a session tries all addresses before it gives up.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long one connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often an idle connection is probed; a probe without an answer for as long again ends it.
const PROBE: Duration = Duration::from_secs(5);

/// How many sessions share one connection. Half a service's limit on streams of one connection, and more than
/// keep one connection busy.
const SESSIONS_PER_LANE: usize = 1_000;

/// The largest message that is read: a total of a group with 100,000 members.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A way to a service. Cheap to clone; clones share the connections. Nothing is sent before the first call.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    addresses: Vec<String>,
    lanes: Vec<Mutex<Vec<Arc<Lane>>>>,
    /// The address that answered last, and how many were tried since.
    preferred: AtomicUsize,
    tried: AtomicUsize,
    open_timeout: Duration,
    clock: Clock,
    /// Sessions hear here that the machine was suspended.
    woke: watch::Sender<()>,
    watching: Once,
}

/// One connection to one address, shared by sessions.
#[derive(Debug)]
pub(crate) struct Lane {
    channel: Channel,
    /// It fell silent: new sessions and attempts take another.
    stale: AtomicBool,
}

impl Lane {
    /// Nobody begins anything on this connection any more.
    pub(crate) fn give_up(&self) {
        self.stale.store(true, Ordering::Relaxed);
    }

    pub(crate) fn sessions(&self) -> SessionsClient<Channel> {
        SessionsClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("addresses", &self.inner.addresses).finish_non_exhaustive()
    }
}

/// How to reach a service.
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    addresses: String,
    open_timeout: Duration,
    clock: Clock,
}

impl ClientBuilder {
    /// How long opening a session tries all addresses before it gives up with [`Error::Unreachable`].
    /// Default 5 s.
    #[must_use]
    pub fn open_timeout(self, open_timeout: Duration) -> Self {
        Self { open_timeout, ..self }
    }

    /// The clock that deadlines are counted on. For tests.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// The client. Must be called within a tokio runtime, which the connections live in.
    ///
    /// # Errors
    /// [`Error::Address`] names the part of the list that is not an address.
    pub fn build(self) -> Result<Client, Error> {
        let addresses: Vec<String> = parse_addresses(&self.addresses)?;
        let lane = |address: &String| Ok(Mutex::new(vec![Arc::new(lane(address)?)]));
        let lanes = addresses.iter().map(lane).collect::<Result<_, Error>>()?;
        Ok(Client {
            inner: Arc::new(Inner {
                addresses,
                lanes,
                preferred: AtomicUsize::new(0),
                tried: AtomicUsize::new(0),
                open_timeout: self.open_timeout,
                clock: self.clock,
                woke: watch::Sender::new(()),
                watching: Once::new(),
            }),
        })
    }
}

impl Client {
    /// A client of the service at these addresses: `host:port` or `http://host:port`, several separated by commas.
    /// A missing port is 7420. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Address`] names the part of the list that is not an address.
    ///
    /// # Panics
    /// Outside of a tokio runtime, which the connections live in.
    pub fn connect(addresses: impl Into<String>) -> Result<Self, Error> {
        Self::builder(addresses).build()
    }

    /// A client with more to be said than its addresses.
    pub fn builder(addresses: impl Into<String>) -> ClientBuilder {
        ClientBuilder { addresses: addresses.into(), open_timeout: OPEN_TIMEOUT, clock: Clock::new() }
    }

    /// Opens a session, trying the addresses in turn.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if none answered in time, [`Error::LeaseTooShort`] or [`Error::Refused`] if the
    /// service refuses, [`Error::Options`] if the options contradict each other.
    pub async fn session(&self, options: SessionOptions) -> Result<Session, Error> {
        Session::open(self, options).await
    }

    /// The plain calls for tools, at the address that answered last.
    pub fn operator(&self) -> OperatorClient<Channel> {
        let preferred = self.inner.preferred.load(Ordering::Relaxed);
        let channel = self.lane(preferred).channel.clone();
        OperatorClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// An operator's calls, at the address that answered last.
    pub fn operate(&self) -> Operator {
        Operator::new(self.operator(), self.inner.addresses.join(","))
    }

    /// The plain calls at the first address that can be reached, which is preferred from then on.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if none can be.
    pub async fn reachable_operator(&self) -> Result<OperatorClient<Channel>, Error> {
        let mut why = "no address".to_string();
        for _ in &self.inner.addresses {
            let address = self.next_address();
            match endpoint(&self.inner.addresses[address])?.connect().await {
                Ok(_) => {
                    self.prefer(address);
                    return Ok(self.operator());
                }
                Err(error) => why = innermost(&error),
            }
        }
        let (addresses, after) = (self.inner.addresses.join(","), CONNECT_TIMEOUT);
        Err(Error::Unreachable { addresses, after, why, source: None })
    }

    /// The addresses, as URLs.
    pub fn addresses(&self) -> &[String] {
        &self.inner.addresses
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Changes when the machine comes back from a suspend. One timer of the kernel serves all sessions of a client;
    /// where there is none their keepalives notice it, a quarter of a lease later.
    pub(crate) fn woke(&self) -> watch::Receiver<()> {
        let inner = &self.inner;
        inner.watching.call_once(|| {
            let client = Arc::downgrade(inner);
            let tell = move |slept: bool| {
                let client = client.upgrade();
                if let (Some(client), true) = (&client, slept) {
                    client.woke.send_replace(());
                }
                client.is_some()
            };
            tokio::spawn(clock::watch_suspends(inner.clock.clone(), tell));
        });
        inner.woke.subscribe()
    }

    pub(crate) fn open_timeout(&self) -> Duration {
        self.inner.open_timeout
    }

    pub(crate) fn unreachable(&self, trouble: &crate::session::Trouble) -> Error {
        let trouble = trouble.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (why, source) = trouble.unwrap_or_else(|| ("no answer".into(), None));
        let (addresses, after) = (self.inner.addresses.join(","), self.inner.open_timeout);
        Error::Unreachable { addresses, after, why, source }
    }

    /// The address to try next: the preferred one first, then round the list.
    pub(crate) fn next_address(&self) -> usize {
        let tried = self.inner.tried.fetch_add(1, Ordering::Relaxed);
        (self.inner.preferred.load(Ordering::Relaxed) + tried) % self.inner.addresses.len()
    }

    /// This address answered.
    pub(crate) fn prefer(&self, address: usize) {
        self.inner.preferred.store(address, Ordering::Relaxed);
        self.inner.tried.store(0, Ordering::Relaxed);
    }

    /// A connection to an address, for one more session.
    pub(crate) fn lane(&self, address: usize) -> Arc<Lane> {
        let mut lanes = self.inner.lanes[address].lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|lane| !lane.stale.load(Ordering::Relaxed));
        if let Some(free) = lanes.iter().find(|lane| Arc::strong_count(lane) <= SESSIONS_PER_LANE) {
            return Arc::clone(free);
        }
        let address = &self.inner.addresses[address];
        let fresh = Arc::new(lane(address).expect("the address was checked when the client was made"));
        lanes.push(Arc::clone(&fresh));
        fresh
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

fn lane(address: &str) -> Result<Lane, Error> {
    Ok(Lane { channel: endpoint(address)?.connect_lazy(), stale: AtomicBool::new(false) })
}

fn endpoint(address: &str) -> Result<Endpoint, Error> {
    let wrong =
        |error: tonic::transport::Error| Error::Address { text: address.into(), why: innermost(&error) };
    Ok(Endpoint::from_shared(address.to_string())
        .map_err(wrong)?
        .tcp_nodelay(true)
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(PROBE)
        .keep_alive_timeout(PROBE)
        .keep_alive_while_idle(false))
}

/// A comma-separated list of `host:port` or URLs, as URLs.
///
/// # Errors
/// [`Error::Address`] names the part that is none.
pub fn parse_addresses(list: &str) -> Result<Vec<String>, Error> {
    let parts = list.split(',').map(str::trim).filter(|part| !part.is_empty());
    let addresses: Vec<String> = parts.map(parse_address).collect::<Result<_, _>>()?;
    match addresses.is_empty() {
        true => Err(Error::Address { text: list.into(), why: "the list is empty".into() }),
        false => Ok(addresses),
    }
}

fn parse_address(text: &str) -> Result<String, Error> {
    let wrong = |why: &str| Error::Address { text: text.into(), why: why.into() };
    let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
    if !matches!(scheme, "http" | "https") {
        return Err(wrong("only http:// and https:// are known"));
    }
    let authority = rest.trim_end_matches('/');
    let (host, port) = match authority.rsplit_once(':') {
        // The last colon of a bare `[::1]` is inside of the brackets.
        Some((host, port)) if !port.ends_with(']') => (host, port.parse::<u16>().ok()),
        _ => (authority, Some(DEFAULT_PORT)),
    };
    let port = port.ok_or_else(|| wrong("its port is not a number up to 65535"))?;
    let url = format!("{scheme}://{host}:{port}");
    let uri: tonic::transport::Uri = url.parse().map_err(|_| wrong("give host:port or a URL"))?;
    match uri.host() {
        Some(known) if known == host && !known.is_empty() => Ok(url),
        _ => Err(wrong("give host:port or a URL without a path")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_mixes_hosts_and_urls_and_a_missing_port_is_the_usual_one() {
        let list = parse_addresses("a:1, http://b:2/ ,127.0.0.1,[::1]:9,https://c").unwrap();
        let expected =
            ["http://a:1", "http://b:2", "http://127.0.0.1:7420", "http://[::1]:9", "https://c:7420"];
        assert_eq!(list, expected);
    }

    #[test]
    fn what_is_no_address_is_named() {
        for text in ["", " , ", "ftp://a", "a:b", "a:99999", "a:", "http://a/path", "::1"] {
            let error = parse_addresses(text).unwrap_err();
            assert!(matches!(error, Error::Address { .. }), "{text}: {error}");
        }
    }
}
