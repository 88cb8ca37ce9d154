//! The service's side of the contract: one session's connection, driven over any authority and any
//! transport.
//!
//! Two authorities use it: the server's node, whose log is durable, and [`crate::testing`], whose log is
//! in memory. Nothing here reads a clock, spawns or sleeps, so the same loop runs in a simulator.

use crate::proto;
use crate::wire;
use futures::future::{self, BoxFuture};
use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt, StreamExt, ready};
use quorate_core::edge::{Cause, Edge, Effect, Input};
use quorate_core::frame::{Bye, ClientFrame, Outcome, ServerFrame};
use quorate_core::id::{EntryId, Generation, SessionId};
use quorate_core::state_machine::{Command, Event, Opened, Reply, Total};
use quorate_core::time::Span;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// A command that did not come back from the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{outcome}: {why}")]
pub struct NotApplied {
    /// Whether it may still be done.
    pub outcome: Outcome,
    /// Why, as a sentence.
    pub why: String,
}

/// What decides for a connection.
pub trait Authority: Send + Sync + 'static {
    /// Brings a command to the log and waits until it is applied.
    fn propose(&self, command: Command) -> BoxFuture<'static, Result<Reply, NotApplied>>;

    /// Confirms a keepalive that arrived now, and names the places that wait (at most 256). `None` is
    /// silence: the lease is about to end, or nobody can confirm (RULES R3, R6).
    fn renew(&self, session: SessionId) -> BoxFuture<'static, Option<Vec<EntryId>>>;

    /// Registers a connection for its session's events, then reads the session as it is now, so that
    /// nothing falls between the two. An older connection hears no more.
    ///
    /// # Errors
    /// What to tell the client if the session has ended or a newer connection has it.
    fn listen(&self, session: SessionId, generation: Generation) -> Result<(Events, Opened), Bye>;

    /// A place as it is now.
    fn total(&self, entry: EntryId) -> Option<Total>;

    /// The shortest lease that can be kept.
    fn ttl_floor(&self) -> Span;
}

/// The events of one session, in log order. It ends when a newer connection listens.
pub type Events = mpsc::UnboundedReceiver<Arc<Event>>;

/// How many frames wait between this loop and the transport. Small, since what a client does not read is
/// kept, and bounded, by the edge.
pub const FRAMES_AHEAD: usize = 32;

type Pending = FuturesUnordered<Under>;

/// What is under way, and what comes of it.
enum Under {
    /// A proposal. The cause is there until it is applied.
    Proposal(Option<Cause>, BoxFuture<'static, Result<Reply, NotApplied>>),
    /// A keepalive and its number.
    Renewal(u64, BoxFuture<'static, Option<Vec<EntryId>>>),
}

impl Future for Under {
    type Output = Input;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Input> {
        match &mut *self {
            Self::Proposal(cause, applied) => {
                let applied = ready!(applied.poll_unpin(context));
                let cause = cause.take().expect("a future is not polled after its end");
                Poll::Ready(match applied {
                    Ok(reply) => Input::Applied(cause, reply),
                    Err(not) => Input::NotApplied(cause, not.outcome, not.why),
                })
            }
            Self::Renewal(seq, renewed) => {
                let (seq, renewed) = (*seq, ready!(renewed.poll_unpin(context)));
                Poll::Ready(renewed.map_or(Input::Nothing, |waiting| Input::Renewed { seq, waiting }))
            }
        }
    }
}

/// Drives one connection until it ends: frames in, frames out.
///
/// The `inbound` stream ends when the client closes; an `Err` in it is a malformed frame. A closed `outbound`
/// is a closed connection too. While `stopping` answers true the service itself ends connections: such an end
/// is never taken as the client's (RULES R18).
pub async fn drive(
    authority: Arc<dyn Authority>,
    inbound: BoxStream<'static, Result<ClientFrame, wire::Malformed>>,
    outbound: mpsc::Sender<ServerFrame>,
    stopping: impl Fn() -> bool + Send,
) {
    let mut connection = Connection::new(authority, outbound);
    let mut inbound = inbound.fuse();
    while !connection.edge.is_over() {
        let input = match poll_fn(|context| connection.poll_next(&mut inbound, context)).await {
            Next::Input(Input::Hangup) | Next::Bye(_) if stopping() => {
                connection.drain().await;
                break;
            }
            Next::Input(input) => input,
            Next::Bye(bye) => {
                connection.first.push_back(ServerFrame::Bye(bye));
                break;
            }
            Next::Room => {
                connection.send_next();
                continue;
            }
        };
        let effects = connection.edge.handle(input);
        connection.perform(effects);
        connection.send_first();
    }
    connection.finish().await;
}

/// What a client is told when the service ends its connection.
fn stopped() -> Bye {
    Bye::Unavailable("the service is stopping; the session lives on until its lease ends".into())
}

/// How many frames other than changes wait for a client that does not read, before the service gives the
/// connection up. A client that sends no more than it reads never comes near.
pub const UNREAD_MAX: usize = 4_096;

/// What a connection hears next.
enum Next {
    Input(Input),
    Bye(Bye),
    Room,
}

struct Connection {
    edge: Edge,
    authority: Arc<dyn Authority>,
    outbound: mpsc::Sender<ServerFrame>,
    /// Ends when nobody takes frames any more.
    closed: BoxFuture<'static, ()>,
    /// Waits for room to send, where there is none; false if there will be none.
    room: Option<BoxFuture<'static, bool>>,
    pending: Pending,
    events: Option<Events>,
    /// Frames that go before any change: answers and confirmed keepalives (RULES R23).
    first: VecDeque<ServerFrame>,
}

type Inbound = futures::stream::Fuse<BoxStream<'static, Result<ClientFrame, wire::Malformed>>>;

impl Connection {
    fn new(authority: Arc<dyn Authority>, outbound: mpsc::Sender<ServerFrame>) -> Self {
        let watched = outbound.clone();
        Self {
            edge: Edge::new(authority.ttl_floor()),
            authority,
            outbound,
            closed: async move { watched.closed().await }.boxed(),
            room: None,
            pending: FuturesUnordered::new(),
            events: None,
            first: VecDeque::new(),
        }
    }

    /// Waits for whichever comes first, in a fixed order of preference: outcomes, then events, then room to
    /// send, then the client. So a flood of frames cannot starve the answers, and a run can be repeated.
    fn poll_next(&mut self, inbound: &mut Inbound, context: &mut Context<'_>) -> Poll<Next> {
        if self.first.len() > UNREAD_MAX {
            return Poll::Ready(Next::Bye(Bye::Protocol(format!("{UNREAD_MAX} answers were not read"))));
        }
        if let Poll::Ready(Some(input)) = self.pending.poll_next_unpin(context) {
            return Poll::Ready(Next::Input(input));
        }
        if let Some(Poll::Ready(event)) = self.events.as_mut().map(|events| events.poll_recv(context)) {
            let heard = |event| Next::Input(Input::Event(event));
            return Poll::Ready(event.map_or(Next::Bye(Bye::TakenOver), heard));
        }
        let to_send = !self.first.is_empty() || self.edge.has_changes();
        if to_send && let Poll::Ready(is_room) = self.poll_room(context) {
            return Poll::Ready(if is_room { Next::Room } else { Next::Input(Input::Hangup) });
        }
        if self.closed.poll_unpin(context).is_ready() {
            return Poll::Ready(Next::Input(Input::Hangup));
        }
        inbound.poll_next_unpin(context).map(|frame| match frame {
            Some(Ok(frame)) => Next::Input(Input::Frame(frame)),
            Some(Err(malformed)) => Next::Bye(Bye::Protocol(malformed.0)),
            None => Next::Input(Input::Hangup),
        })
    }

    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        if self.outbound.is_closed() {
            return Poll::Ready(false);
        }
        if self.room.is_none() && self.outbound.capacity() > 0 {
            return Poll::Ready(true);
        }
        let outbound = &self.outbound;
        let room = self.room.get_or_insert_with(|| {
            let outbound = outbound.clone();
            // Only this loop sends, so the room that it finds stays.
            async move { outbound.reserve().await.is_ok() }.boxed()
        });
        let is_room = ready!(room.poll_unpin(context));
        self.room = None;
        Poll::Ready(is_room)
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Propose(cause, command) => self.propose(cause, command),
                Effect::Listen(session, generation) => self.listen(session, generation),
                Effect::Renew { session, seq } => self.renew(session, seq),
                Effect::Total(entry) => {
                    if let Some(total) = self.authority.total(entry) {
                        self.first.push_back(ServerFrame::Total(total));
                    }
                }
                Effect::Send(frame) => self.queue(frame),
                Effect::Close => {}
            }
        }
    }

    fn listen(&mut self, session: SessionId, generation: Generation) {
        let input = match self.authority.listen(session, generation) {
            Ok((events, opened)) => {
                self.events = Some(events);
                Input::Listening(opened)
            }
            Err(bye) => Input::Refused(bye),
        };
        let effects = self.edge.handle(input);
        self.perform(effects);
    }

    /// A newer confirmation replaces one that was not read yet.
    fn queue(&mut self, frame: ServerFrame) {
        if let (ServerFrame::Alive { .. }, Some(last @ ServerFrame::Alive { .. })) =
            (&frame, self.first.back_mut())
        {
            *last = frame;
            return;
        }
        self.first.push_back(frame);
    }

    /// Sends a change, if nothing goes before it, and what there is room for.
    fn send_next(&mut self) {
        if self.first.is_empty() {
            let effects = self.edge.next_change();
            self.perform(effects);
        }
        self.send_first();
    }

    /// Sends what goes before any change, as far as there is room.
    fn send_first(&mut self) {
        while let Some(frame) = self.first.pop_front() {
            match self.outbound.try_send(frame) {
                Ok(()) => {}
                Err(TrySendError::Full(frame)) => {
                    self.first.push_front(frame);
                    return;
                }
                Err(TrySendError::Closed(_)) => return,
            }
        }
    }

    fn propose(&mut self, cause: Cause, command: Command) {
        let applied = self.authority.propose(command);
        self.pending.push(Under::Proposal(Some(cause), applied));
    }

    fn renew(&mut self, session: SessionId, seq: u64) {
        let renewed = self.authority.renew(session);
        self.pending.push(Under::Renewal(seq, renewed));
    }

    /// This side stops: what is under way is still answered, then the client is told.
    async fn drain(&mut self) {
        while let Some(outcome) = self.pending.next().await {
            let effects = self.edge.handle(outcome);
            self.perform(effects);
        }
        self.first.push_back(ServerFrame::Bye(stopped()));
        while let Some(frame) = self.first.pop_front() {
            if self.outbound.send(frame).await.is_err() {
                return;
            }
        }
    }

    /// Sends the last words, as far as there is room, and waits until the log has taken what was proposed.
    async fn finish(mut self) {
        self.send_next();
        drop((self.outbound, self.closed, self.room));
        while self.pending.next().await.is_some() {}
    }
}

/// The session stream of the gRPC contract over an authority.
#[derive(Clone)]
pub struct SessionsService {
    authority: Arc<dyn Authority>,
    stopping: Arc<AtomicBool>,
}

impl SessionsService {
    /// Serves sessions of an authority. Set `stopping` before ending connections from this side, so that
    /// no session takes it for a leave (RULES R18).
    pub fn new(authority: Arc<dyn Authority>, stopping: Arc<AtomicBool>) -> Self {
        Self { authority, stopping }
    }
}

/// Whether this side has given a connection up. A transport that knows puts one among the extensions of a
/// request, so that a silence which it cut short is never taken as the client's leave (RULES R18).
#[derive(Clone)]
pub struct GivenUp(pub Arc<dyn Fn() -> bool + Send + Sync>);

type FrameStream = BoxStream<'static, Result<proto::ServerFrame, Status>>;

#[tonic::async_trait]
impl proto::sessions_server::Sessions for SessionsService {
    type StreamStream = FrameStream;

    async fn stream(
        &self,
        request: Request<Streaming<proto::ClientFrame>>,
    ) -> Result<Response<FrameStream>, Status> {
        let (outbound, frames) = mpsc::channel(FRAMES_AHEAD);
        let given_up = request.extensions().get::<GivenUp>().cloned();
        let inbound = request
            .into_inner()
            .map(|frame| match frame {
                Ok(frame) => Some(wire::from_client_frame(frame)),
                Err(status) => client_error(&status).map(Err),
            })
            .take_while(|frame| future::ready(frame.is_some()))
            .filter_map(future::ready);
        let stopping = Arc::clone(&self.stopping);
        let stopping = move || {
            stopping.load(Ordering::Acquire) || given_up.as_ref().is_some_and(|given_up| given_up.0())
        };
        tokio::spawn(drive(Arc::clone(&self.authority), inbound.boxed(), outbound, stopping));
        let frames = ReceiverStream::new(frames).map(|frame| Ok(wire::to_server_frame(frame)));
        Ok(Response::new(frames.boxed()))
    }
}

/// A frame that could not be read is the client's fault, and it is told; a broken connection is just an end.
fn client_error(status: &Status) -> Option<wire::Malformed> {
    use tonic::Code;
    match status.code() {
        Code::Internal | Code::OutOfRange | Code::ResourceExhausted | Code::InvalidArgument
            if std::error::Error::source(status).is_none() =>
        {
            Some(wire::Malformed(status.message().to_string()))
        }
        _ => None,
    }
}
