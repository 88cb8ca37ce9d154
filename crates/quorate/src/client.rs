//! The way to a service: addresses, and a connection to each that is made when it is first needed.

use crate::clock::Clock;
use crate::error::Error;
use crate::proto::operator_client::OperatorClient;
use crate::proto::sessions_client::SessionsClient;
use crate::session::{Session, SessionOptions};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// The port of an address that names none.
pub const DEFAULT_PORT: u16 = 7420;

/// How long opening a session tries all addresses before it gives up.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long one connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How often an idle connection is probed; a probe without an answer for as long again ends it.
const PROBE: Duration = Duration::from_secs(5);

/// The largest message that is read: a total of a group with 100,000 members.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// A way to a service. Cheap to clone; clones share the connections. Nothing is sent before the first call.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    addresses: Vec<String>,
    channels: Vec<Channel>,
    /// The address that answered last, and how many were tried since.
    preferred: AtomicUsize,
    tried: AtomicUsize,
    open_timeout: Duration,
    clock: Clock,
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
        let channels = addresses.iter().map(|address| channel(address)).collect::<Result<_, _>>()?;
        Ok(Client {
            inner: Arc::new(Inner {
                addresses,
                channels,
                preferred: AtomicUsize::new(0),
                tried: AtomicUsize::new(0),
                open_timeout: self.open_timeout,
                clock: self.clock,
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
        OperatorClient::new(self.inner.channels[preferred].clone())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
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

    pub(crate) fn sessions(&self, address: usize) -> SessionsClient<Channel> {
        SessionsClient::new(self.inner.channels[address].clone()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

fn channel(address: &str) -> Result<Channel, Error> {
    Ok(endpoint(address)?.connect_lazy())
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
    let url = format!("{scheme}://{authority}");
    let uri: tonic::transport::Uri = url.parse().map_err(|_| wrong("give host:port or a URL"))?;
    if uri.host().is_none_or(str::is_empty) || !matches!(uri.path(), "" | "/") {
        return Err(wrong("give host:port or a URL without a path"));
    }
    match (uri.port_u16(), uri.port()) {
        (Some(_), _) => Ok(url),
        (None, None) if !authority.ends_with(':') => Ok(format!("{url}:{DEFAULT_PORT}")),
        _ => Err(wrong("its port is not a number up to 65535")),
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
