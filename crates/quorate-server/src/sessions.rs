//! The session stream of the contract, as this service offers it: the library's, with a note of who is
//! connected from where and of what was sent.

use crate::metrics::Metrics;
use crate::port::Line;
use axum::body::Body;
use axum::extract::Request;
use futures::StreamExt;
use futures::stream::{BoxStream, Stream};
use quorate::proto::server_frame::Frame;
use quorate::proto::sessions_server::Sessions as Contract;
use quorate::proto::{ClientFrame, ServerFrame};
use quorate::service::{Authority, GivenUp, SessionsService};
use quorate_core::id::SessionId;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::sync::watch;
use tonic::{Response, Status, Streaming};

/// The path of the stream.
const PATH: &str = "/quorate.v1.Sessions/Stream";

/// From where the connected sessions speak: the address and the connection's generation.
#[derive(Debug, Default)]
pub struct Peers {
    known: Mutex<BTreeMap<SessionId, (u64, SocketAddr)>>,
}

impl Peers {
    /// From where a session speaks, if it is connected here.
    pub fn of(&self, session: SessionId) -> Option<SocketAddr> {
        self.lock().get(&session).map(|(_, peer)| *peer)
    }

    fn set(&self, session: SessionId, generation: u64, peer: SocketAddr) {
        let mut known = self.lock();
        if known.get(&session).is_none_or(|(newest, _)| *newest <= generation) {
            known.insert(session, (generation, peer));
        }
    }

    fn unset(&self, session: SessionId, generation: u64) {
        let mut known = self.lock();
        if known.get(&session).is_some_and(|(newest, _)| *newest == generation) {
            known.remove(&session);
        }
    }

    /// No code that holds the lock can panic, so a poisoned one is whole.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, (u64, SocketAddr)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The session stream.
#[derive(Clone)]
pub struct Sessions {
    inner: SessionsService,
    peers: Arc<Peers>,
    metrics: Metrics,
}

impl Sessions {
    /// Serves the sessions of an authority. While `stopping` is set no end of a stream counts as the client's.
    pub fn new(authority: Arc<dyn Authority>, stopping: Arc<AtomicBool>, metrics: Metrics) -> Self {
        Self { inner: SessionsService::new(authority, stopping), peers: Arc::default(), metrics }
    }

    /// From where the connected sessions speak.
    pub fn peers(&self) -> Arc<Peers> {
        Arc::clone(&self.peers)
    }
}

#[tonic::async_trait]
impl Contract for Sessions {
    type StreamStream = BoxStream<'static, Result<ServerFrame, Status>>;

    async fn stream(
        &self,
        mut request: tonic::Request<Streaming<ClientFrame>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        let line = request.extensions().get::<Arc<Line>>().cloned();
        if let Some(line) = line.clone() {
            request.extensions_mut().insert(GivenUp(Arc::new(move || line.given_up())));
        }
        let response = self.inner.stream(request).await?;
        let watched = Watched {
            frames: response.into_inner(),
            peers: Arc::clone(&self.peers),
            peer: line.map(|line| line.peer),
            metrics: self.metrics.clone(),
            session: None,
        };
        Ok(Response::new(watched.boxed()))
    }
}

/// The frames of one stream on their way out.
struct Watched {
    frames: BoxStream<'static, Result<ServerFrame, Status>>,
    peers: Arc<Peers>,
    peer: Option<SocketAddr>,
    metrics: Metrics,
    session: Option<(SessionId, u64)>,
}

impl Watched {
    fn note(&mut self, frame: &Frame) {
        self.metrics.sent(frame);
        if let (Frame::Opened(opened), Some(peer)) = (frame, self.peer) {
            let session = SessionId(opened.session);
            self.peers.set(session, opened.generation, peer);
            self.session = Some((session, opened.generation));
        }
    }
}

impl Stream for Watched {
    type Item = Result<ServerFrame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.frames.poll_next_unpin(context);
        if let Poll::Ready(Some(Ok(ServerFrame { frame: Some(frame) }))) = &polled {
            self.note(frame);
        }
        polled
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some((session, generation)) = self.session {
            self.peers.unset(session, generation);
        }
    }
}

/// Ends what clients send on session streams when the service stops, so that each stream answers what is
/// under way, says goodbye and ends, however much its client still has to say.
pub fn end_when_stopped(request: Request, mut stopped: watch::Receiver<bool>) -> Request {
    if request.uri().path() != PATH {
        return request;
    }
    request.map(|body| {
        let stop = async move {
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        Body::from_stream(body.into_data_stream().take_until(Box::pin(stop)))
    })
}
