//! The one port: HTTP/1.1 and HTTP/2 in the clear, gRPC and JSON, one task a connection.
//!
//! Problem: a connection may be half open, silent, garbage, or one too many, and must harm no other.
//! Rule: a peer that says nothing is dropped in seconds, one connection too many is told so, and an error
//! ends only the connection that it is of.
//! Safety: whether the client or this side ended a connection is known, since only the client's end may count
//! as a leave (RULES R18).

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};

/// How often a quiet HTTP/2 peer is asked whether it lives. With [`PING_TIMEOUT`] a half-open connection is
/// noticed in five seconds; a ping costs 17 bytes.
const PING_INTERVAL: Duration = Duration::from_secs(2);

/// How long the answer to that may take. A client that is paused for less keeps its connection.
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a new connection may take to say what it wants, and an HTTP/1.1 client to send its headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// How many calls and streams one connection may have at once: a process with many sessions uses one.
const STREAMS_MAX: u32 = 4_096;

/// The headers of one request. Enough for a token and a trace, too little to fill the memory.
const HEADERS_BYTES_MAX: u32 = 16 << 10;

/// How many connections beyond the limit are told so at once; more are closed without a word.
const REFUSALS_MAX: usize = 64;

/// How long open connections may take to end when the service stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a connection that is over here waits for the peer to end it too.
const LINGER: Duration = Duration::from_secs(1);

/// What the service knows of a connection. It rides on each of its requests.
#[derive(Debug)]
pub struct Line {
    /// The other side.
    pub peer: SocketAddr,
    born: Instant,
    heard_ms: AtomicU64,
    bytes: AtomicU64,
    ended: AtomicBool,
    spoken: AtomicBool,
}

impl Line {
    fn new(peer: SocketAddr) -> Self {
        Self {
            peer,
            born: Instant::now(),
            heard_ms: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            spoken: AtomicBool::new(false),
        }
    }

    fn age_ms(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn heard(&self, bytes: usize) {
        self.heard_ms.store(self.age_ms(), Ordering::Release);
        self.bytes.fetch_add(bytes as u64, Ordering::AcqRel);
    }

    /// Whether the connection, if it is at its end, was ended by this side because the peer was silent: it
    /// closed nothing, and nothing was heard of it for so long that its pings went unanswered.
    pub fn given_up(&self) -> bool {
        let quiet_ms = self.age_ms().saturating_sub(self.heard_ms.load(Ordering::Acquire));
        let limit = u64::try_from(PING_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
        !self.ended.load(Ordering::Acquire) && quiet_ms >= limit
    }

    /// Whether it may go on: it has made a request, or sent more than the start of one.
    fn has_begun(&self) -> bool {
        const HTTP2_PREFACE_BYTES: u64 = 24;
        self.spoken.load(Ordering::Acquire) || self.bytes.load(Ordering::Acquire) >= HTTP2_PREFACE_BYTES
    }
}

/// How often it is said that connections cannot be accepted.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// How many connections there are and were.
#[derive(Debug, Default)]
pub struct Lines {
    /// Open now.
    pub open: AtomicU64,
    /// Accepted since the start.
    pub accepted: AtomicU64,
    /// Told that there are too many.
    pub refused: AtomicU64,
    /// Ended by an error: garbage, a broken connection, silence.
    pub failed: AtomicU64,
}

/// The port, bound.
pub struct Port {
    listener: TcpListener,
    lines: Arc<Lines>,
    max: usize,
}

impl Port {
    /// Binds the first of the addresses that can be bound.
    ///
    /// # Errors
    /// What the operating system said about the last one.
    pub async fn bind(addresses: &[SocketAddr], max: usize) -> io::Result<Self> {
        let listener = TcpListener::bind(addresses).await?;
        Ok(Self { listener, lines: Arc::default(), max })
    }

    /// The address that it listens on, with its real port.
    ///
    /// # Errors
    /// What the operating system said.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The counts of its connections.
    pub fn lines(&self) -> Arc<Lines> {
        Arc::clone(&self.lines)
    }

    /// Serves until told to stop, then lets the open connections end.
    pub async fn serve(self, router: Router, mut stop: watch::Receiver<bool>) {
        let room = Arc::new(Semaphore::new(self.max));
        let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
        let mut tasks = JoinSet::new();
        let mut complaint = Complaint::default();
        loop {
            let accepted = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                Some(_) = tasks.join_next() => continue,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    complaint.pause_after(&error).await;
                    continue;
                }
            };
            self.lines.accepted.fetch_add(1, Ordering::Relaxed);
            let (service, permit) = match Arc::clone(&room).try_acquire_owned() {
                Ok(permit) => (Service::Whole(router.clone()), permit),
                Err(_) => {
                    self.lines.refused.fetch_add(1, Ordering::Relaxed);
                    let Ok(permit) = Arc::clone(&refusals).try_acquire_owned() else { continue };
                    (Service::Full { max: self.max }, permit)
                }
            };
            let (lines, stop) = (Arc::clone(&self.lines), stop.clone());
            tasks.spawn(async move {
                lines.open.fetch_add(1, Ordering::Relaxed);
                let ended = serve_line(stream, peer, service, stop).await;
                lines.open.fetch_sub(1, Ordering::Relaxed);
                lines.failed.fetch_add(u64::from(!ended), Ordering::Relaxed);
                drop(permit);
            });
        }
        drop(self.listener);
        let drained = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            tracing::warn!("some connections did not end within {DRAIN_TIMEOUT:?} and are cut");
        }
    }
}

/// What is said about connections that cannot be accepted: too many open files last, and are no reason to fill the
/// log of whoever is short of something.
#[derive(Default)]
struct Complaint {
    last: Option<Instant>,
    unsaid: u64,
}

impl Complaint {
    /// Too many open files and the like pass; the loop must not spin meanwhile.
    async fn pause_after(&mut self, error: &io::Error) {
        if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) {
            return;
        }
        if let Some(unsaid) = self.due() {
            tracing::warn!(unsaid, "cannot accept a connection: {error}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    /// Whether it is time to say so, and how many times it was not said since.
    fn due(&mut self) -> Option<u64> {
        if self.last.is_some_and(|last| last.elapsed() < COMPLAIN_EVERY) {
            self.unsaid += 1;
            return None;
        }
        self.last = Some(Instant::now());
        Some(std::mem::take(&mut self.unsaid))
    }
}

/// Serves one connection to its end; false if it ended by an error.
async fn serve_line(
    stream: TcpStream,
    peer: SocketAddr,
    service: Service,
    mut stop: watch::Receiver<bool>,
) -> bool {
    let _ = stream.set_nodelay(true);
    let full = matches!(service, Service::Full { .. });
    let line = Arc::new(Line::new(peer));
    let io = TokioIo::new(Wire { stream, line: Arc::clone(&line), linger: None });
    let service = TowerToHyperService::new(OnLine { service, line: Arc::clone(&line) });
    let builder = builder();
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut stopping = false;
    let silence = tokio::time::sleep(HEADER_TIMEOUT);
    let mut silence = pin!(silence);
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = &ended {
                    tracing::debug!(%peer, "connection ended: {error}");
                }
                return ended.is_ok();
            }
            () = silence.as_mut(), if !silence.is_elapsed() => {
                if full || !line.has_begun() {
                    return false;
                }
            }
            _ = stop.wait_for(|stop| *stop), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(64 << 10)
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .initial_stream_window_size(256 << 10)
        .initial_connection_window_size(4 << 20);
    builder
}

/// What a connection is served by.
#[derive(Clone)]
enum Service {
    /// Everything.
    Whole(Router),
    /// The word that there are too many.
    Full { max: usize },
}

/// A service that notes each request, and tells it which connection it came by.
#[derive(Clone)]
struct OnLine {
    service: Service,
    line: Arc<Line>,
}

type Answer =
    Pin<Box<dyn Future<Output = Result<axum::response::Response, std::convert::Infallible>> + Send>>;

impl<B> tower::Service<axum::http::Request<B>> for OnLine
where
    B: axum::body::HttpBody<Data = bytes::Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
    type Response = axum::response::Response;
    type Error = std::convert::Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: axum::http::Request<B>) -> Answer {
        self.line.spoken.store(true, Ordering::Release);
        let mut request: Request = request.map(Body::new);
        request.extensions_mut().insert(Arc::clone(&self.line));
        match &mut self.service {
            Service::Whole(router) => Box::pin(tower::Service::call(router, request)),
            Service::Full { max } => {
                let response = crate::http::too_many(request.headers(), *max);
                Box::pin(std::future::ready(Ok(response)))
            }
        }
    }
}

/// The socket, with a note of when something was heard and whether the peer ended it.
struct Wire {
    stream: TcpStream,
    line: Arc<Line>,
    linger: Option<Pin<Box<Sleep>>>,
}

impl Wire {
    /// A peer that vanishes without a word shows as a timeout, and that is no end of its own making.
    fn note(&self, error: &io::Error) {
        if error.kind() != ErrorKind::TimedOut {
            self.line.ended.store(true, Ordering::Release);
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        match &polled {
            Poll::Ready(Ok(())) if buffer.filled().len() > before => {
                self.line.heard(buffer.filled().len() - before);
            }
            Poll::Ready(Ok(())) => self.line.ended.store(true, Ordering::Release),
            Poll::Ready(Err(error)) => self.note(error),
            Poll::Pending => {}
        }
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Err(error)) = &polled {
            self.note(error);
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        if let Poll::Ready(Err(error)) = &polled {
            self.note(error);
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Says that nothing more comes, then hears the peer out for a moment. A socket that is closed while bytes
    /// of the peer are under way is reset, and the peer's system then forgets what the peer has not read yet:
    /// the goodbye.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        }
        let linger = self.linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        if linger.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let mut scratch = [0; 4_096];
        loop {
            let mut unheard = ReadBuf::new(&mut scratch);
            let heard = ready!(Pin::new(&mut self.stream).poll_read(context, &mut unheard));
            if heard.is_err() || unheard.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_that_lasts_does_not_fill_the_log() {
        let mut complaint = Complaint::default();
        assert_eq!(complaint.due(), Some(0));
        assert!((0..200).all(|_| complaint.due().is_none()), "ten seconds of failures are said once");
        complaint.last = Instant::now().checked_sub(COMPLAIN_EVERY);
        assert_eq!(complaint.due(), Some(200), "and then how many they were");
    }
}
