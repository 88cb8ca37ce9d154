//! The task that owns a session's connection: it connects, speaks, notices silence, and connects again.
//!
//! **Rule.** Connect anew after 10 ms, then twice as long up to 500 ms, going round the addresses. A connection
//! that fell silent is kept until the next one has taken the session over, so that a session with `Release` does
//! not give itself up by reconnecting (RULES R18).

use super::Shared;
use super::state::{self, Greeted, Greeting};
use crate::advisory::Reason;
use crate::client::{Client, Lane};
use crate::clock;
use crate::error::{Code, Error};
use crate::proto;
use crate::proto::bye::Kind;
use crate::proto::server_frame::Frame;
use futures::StreamExt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Sleep};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Status, Streaming};

/// The first pause between two attempts.
const BACKOFF_MIN: Duration = Duration::from_millis(10);

/// The longest pause between two attempts.
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// How long one attempt may take until the service has answered the opening: a quarter of the lease, but within
/// these bounds, and twice as long after each that took too long. An address that swallows packets costs this much
/// before the next is tried; a service that needs longer than the least is one that is slow.
const ATTEMPT_MIN: Duration = Duration::from_millis(250);
const ATTEMPT_MAX: Duration = Duration::from_secs(2);

/// What the last attempt met, for the error of an opening that takes too long.
pub(crate) type Trouble = Arc<Mutex<Option<(String, Option<Arc<Status>>)>>>;

/// A connection that speaks for the session.
struct Line {
    lane: Arc<Lane>,
    frames: mpsc::UnboundedSender<proto::ClientFrame>,
    inbound: Streaming<proto::ServerFrame>,
}

/// Why an attempt did not lead to a connection that speaks.
enum Failed {
    /// Try again, elsewhere if there is elsewhere.
    Again(String, Option<Arc<Status>>),
    /// The deadline passed on the way: attach again and say so. This connection is kept until then.
    Lapsed(Box<Line>),
    /// The session is gone; the next attempt opens another.
    Gone(String),
    /// Trying again will not help.
    Over(Error),
}

struct Link {
    shared: Arc<Shared>,
    client: Client,
    trouble: Trouble,
    backoff: Duration,
    /// How long the next attempt may take at least, since shorter ones took too long.
    patience: Duration,
    woke: watch::Receiver<()>,
    /// The connection before, until the next one has taken over.
    previous: Option<Line>,
}

/// Starts the task. It ends when the session is over.
pub(super) fn start(shared: Arc<Shared>, client: Client) -> Trouble {
    let trouble = Trouble::default();
    let link = Link {
        shared,
        woke: client.woke(),
        client,
        trouble: Arc::clone(&trouble),
        backoff: BACKOFF_MIN,
        patience: ATTEMPT_MIN,
        previous: None,
    };
    tokio::spawn(link.run());
    trouble
}

impl Drop for Link {
    /// The runtime may stop the task at any time: then nothing renews the lease, and its users must know.
    fn drop(&mut self) {
        self.shared.with(|state, _| state.finish(Error::Ended));
    }
}

impl Link {
    async fn run(mut self) {
        while !self.is_over() {
            let address = self.client.next_address();
            match self.attempt(address).await {
                Ok(line) => {
                    self.client.prefer(address);
                    self.patience = ATTEMPT_MIN;
                    self.previous = None;
                    self.speak(line).await;
                }
                Err(failed) => self.failed(failed),
            }
            self.pause().await;
        }
    }

    async fn attempt(&mut self, address: usize) -> Result<Line, Failed> {
        let patience = self.shared.with(|state, _| state.patience());
        let patience = patience.max(self.patience).min(ATTEMPT_MAX);
        let lane = self.client.lane(address);
        let greeting = tokio::time::timeout(patience, greet(&self.shared, Arc::clone(&lane)));
        match while_ticking(&self.shared, &mut self.woke, greeting).await {
            Ok(greeted) => greeted,
            Err(_) => {
                lane.give_up();
                self.patience = patience * 2;
                Err(Failed::Again(format!("no answer within {} ms", patience.as_millis()), None))
            }
        }
    }

    /// Waits a little before the next attempt, unless the last connection served for long.
    async fn pause(&mut self) {
        if self.is_over() || self.backoff == Duration::ZERO {
            self.backoff = BACKOFF_MIN;
            return;
        }
        let pause = tokio::time::sleep(self.backoff);
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        while_ticking(&self.shared, &mut self.woke, pause).await;
    }

    fn is_over(&self) -> bool {
        self.shared.with(|state, _| state.over().is_some() || state.is_abandoned())
    }

    fn failed(&mut self, failed: Failed) {
        match failed {
            Failed::Over(error) => self.shared.with(|state, _| state.finish(error)),
            Failed::Gone(evidence) => {
                self.shared.with(|state, _| state.ended(Reason::SessionLost, &evidence));
            }
            Failed::Again(why, status) => {
                tracing::debug!(why, "no connection to the service yet");
                *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some((why, status));
            }
            Failed::Lapsed(line) => self.previous = Some(*line),
        }
    }

    /// Speaks until the connection breaks, falls silent, or the session is over.
    async fn speak(&mut self, mut line: Line) {
        let since = Instant::now();
        self.converse(&mut line).await;
        if since.elapsed() > BACKOFF_MAX {
            self.backoff = Duration::ZERO;
        }
        let silent = self.shared.with(|state, _| {
            let silent = state.wants_connection() && state.known().is_some();
            state.away();
            silent
        });
        if silent {
            line.lane.give_up();
            self.previous = Some(line);
        }
    }

    async fn converse(&mut self, line: &mut Line) {
        let alarm = tokio::time::sleep(Duration::ZERO);
        tokio::pin!(alarm);
        loop {
            let (frames, wake, renew, over) = self.shared.look(|state, now| {
                state.tick(now);
                let frames = state.take_frames(now);
                let wake = clock::until(now, state.next_wake());
                (frames, wake, state.wants_connection(), state.over().is_some())
            });
            for frame in frames {
                if line.frames.send(frame).is_err() {
                    return;
                }
            }
            if renew || over {
                return;
            }
            set(alarm.as_mut(), wake);
            let ended = tokio::select! {
                () = self.shared.kick.notified() => false,
                Ok(()) = self.woke.changed() => false,
                () = alarm.as_mut() => false,
                frame = line.inbound.message() => self.heard(frame),
            };
            if ended {
                return;
            }
        }
    }

    /// Takes in what came; true if the connection is over.
    fn heard(&self, frame: Result<Option<proto::ServerFrame>, Status>) -> bool {
        match frame {
            Ok(Some(proto::ServerFrame { frame: Some(Frame::Bye(bye)) })) => {
                if let Failed::Gone(evidence) = bye_means(&bye, true) {
                    self.shared.with(|state, _| state.ended(Reason::SessionLost, &evidence));
                }
                true
            }
            Ok(Some(frame)) => match self.shared.look(|state, now| state.frame(now, frame)) {
                Ok(()) => false,
                Err(error) => {
                    tracing::warn!(%error, "the connection is given up");
                    true
                }
            },
            Ok(None) | Err(_) => true,
        }
    }
}

/// How far an alarm may be off before it is set anew, which costs more than a frame. Timers count milliseconds.
const ALARM_SLACK: Duration = Duration::from_millis(1);

/// Sets an alarm to go off after `wake`, if it would not do so already. It is compared at each turn, since after a
/// suspend less is left than the alarm knows.
fn set(alarm: Pin<&mut Sleep>, wake: Duration) {
    let (at, set) = (Instant::now() + wake, alarm.deadline());
    let off = at.saturating_duration_since(set).max(set.saturating_duration_since(at));
    if alarm.is_elapsed() || off > ALARM_SLACK {
        alarm.reset(at);
    }
}

/// Lets the clock be looked at while something else is awaited.
async fn while_ticking<F: Future>(shared: &Shared, woke: &mut watch::Receiver<()>, doing: F) -> F::Output {
    tokio::pin!(doing);
    loop {
        let wake = shared.with(|state, now| {
            state.tick(now);
            clock::until(now, state.next_wake())
        });
        tokio::select! {
            biased;
            done = &mut doing => return done,
            () = shared.kick.notified() => {}
            Ok(()) = woke.changed() => {}
            () = tokio::time::sleep(wake) => {}
        }
    }
}

/// Connects, and opens the session or attaches to it. The first frame is made when it is sent, so that its time
/// is the send time and a deadline that passes meanwhile is said.
async fn greet(shared: &Arc<Shared>, lane: Arc<Lane>) -> Result<Line, Failed> {
    let (frames, rest) = mpsc::unbounded_channel();
    // An attempt that was given up may still be polled: what it said must not be taken for another's.
    let said = Arc::new(OnceLock::new());
    let (greeter, saying) = (Arc::clone(shared), Arc::clone(&said));
    let first = futures::stream::once(async move {
        let (frame, greeting) = greeter.with(|state, now| state.greet(now));
        // A stream yields its first item once.
        let _ = saying.set(greeting);
        frame
    });
    let outbound = first.chain(UnboundedReceiverStream::new(rest));
    let response = lane.sessions().stream(outbound).await.map_err(|status| {
        let why = deepest(&status);
        Failed::Again(why, Some(Arc::new(status)))
    })?;
    let mut inbound = response.into_inner();
    let frame = match inbound.message().await {
        Ok(Some(frame)) => frame.frame,
        Ok(None) => return Err(Failed::Again("the service ended the connection".into(), None)),
        Err(status) => return Err(Failed::Again(deepest(&status), Some(Arc::new(status)))),
    };
    match frame {
        Some(Frame::Opened(opened)) => match answered(shared, said.get(), opened) {
            Ok(Greeted::Speak) => Ok(Line { lane, frames, inbound }),
            Ok(Greeted::Again) => Err(Failed::Lapsed(Box::new(Line { lane, frames, inbound }))),
            Err(error) => Err(Failed::Over(error)),
        },
        Some(Frame::Bye(bye)) => {
            let attached = shared.with(|state, _| state.known().is_some());
            Err(bye_means(&bye, attached))
        }
        _ => Err(Failed::Over(Error::Protocol("no answer to the opening".into()))),
    }
}

fn answered(shared: &Shared, said: Option<&Greeting>, opened: proto::Opened) -> Result<Greeted, Error> {
    let said = said.ok_or_else(|| Error::Protocol("an answer to nothing".into()))?;
    shared.with(|state, now| state.opened(now, *said, opened))
}

/// What the end of a connection means for the session.
fn bye_means(bye: &proto::Bye, attached: bool) -> Failed {
    let refusal = bye.refusal.clone().unwrap_or_default();
    match (bye.kind(), refusal.code()) {
        (Kind::Refused, Code::NoSession) => Failed::Gone(refusal.message),
        (Kind::Refused, Code::StaleConnection | Code::Founding) => Failed::Again(bye.why.clone(), None),
        // A session that had been open is wanted again: what is refused now may be accepted later.
        (Kind::Refused, Code::Limit) if attached => Failed::Again(bye.why.clone(), None),
        (Kind::Refused, _) => Failed::Over(state::refused(&refusal, None)),
        (Kind::Protocol, _) if !attached => Failed::Over(Error::Protocol(bye.why.clone())),
        (Kind::Protocol | Kind::TakenOver | Kind::Unavailable, _) => Failed::Again(bye.why.clone(), None),
    }
}

/// The innermost cause of a failure: "connection refused" says more than "transport error".
pub(crate) fn deepest(status: &Status) -> String {
    let mut source: Option<&dyn std::error::Error> = std::error::Error::source(status);
    let mut text = status.message().to_string();
    while let Some(error) = source {
        text = error.to_string();
        source = error.source();
    }
    text
}
