//! What a lock guard and a group member have in common: a place that may hold a seat, and how its loss is told.

use crate::error::Error;
use crate::session::Session;
use crate::session::place::{Place, Stage, Wake};
use crate::session::state::{PlaceKey, State};
use quorate_core::id::{EntryId, Token};
use quorate_core::state_machine::Seat;
use quorate_core::time::Mono;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// That a seat is lost, or about to be, and how long it may still be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// Why.
    pub cause: LossCause,
    /// Why, in words.
    pub why: String,
    /// How long the seat may still be used; zero unless the cause is [`LossCause::DeadlineNear`] or
    /// [`LossCause::Asked`].
    pub remaining: Duration,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// Why a seat is lost, or about to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossCause {
    /// The deadline is nearer than the warning margin: stop within [`Loss::remaining`]. Should the service be
    /// heard in time after all, the seat is kept.
    DeadlineNear,
    /// The deadline has passed: nothing may be done any more.
    DeadlinePassed,
    /// The holder was asked to stop, in favour of another or for good. It acts until it has: stop, then release, or
    /// say that it has stopped and wait for another turn.
    Asked,
    /// This holder has stopped, by its own word, and waits for another turn.
    Moved,
    /// An operator closed the session. Stop, then drop the handle: that tells the service that it may pass on.
    Closed,
    /// The service knows the session no more.
    SessionLost,
    /// It was given up by this program: released, left, or its session ended.
    GivenUp,
}

/// A place of a session, held by a handle of the user. Dropped, it is given up in the background.
#[derive(Debug)]
pub(crate) struct Hold {
    session: Session,
    key: PlaceKey,
    pub(crate) wake: Arc<Wake>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.session.shared().ours().is_ok() {
            self.session.shared().with(|state, _| state.abandon(self.key));
        }
    }
}

impl Hold {
    pub(crate) fn new(session: Session, key: PlaceKey, wake: Arc<Wake>) -> Self {
        Self { session, key, wake }
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Does something with the session's state; none in a forked child.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut State, Mono, PlaceKey) -> T) -> Option<T> {
        self.session.shared().ours().ok()?;
        Some(self.session.shared().with(|state, now| f(state, now, self.key)))
    }

    /// Reads something of the place; none if it is gone.
    pub(crate) fn read<T>(&self, f: impl FnOnce(&Place) -> T) -> Option<T> {
        self.with(|state, _, key| state.place(key).map(f))?
    }

    pub(crate) fn seat(&self) -> Option<Seat> {
        self.with(|state, now, key| state.seat(now, key))?
    }

    pub(crate) fn token(&self) -> Option<Token> {
        self.seat().map(|seat| seat.token)
    }

    pub(crate) fn entry(&self) -> Option<EntryId> {
        self.read(|place| place.entry)?
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.with(|state, now, key| state.seat(now, key).map(|_| state.remaining(now)))
            .flatten()
            .unwrap_or_default()
    }

    /// Asks the service for something, and waits for its answer.
    pub(crate) async fn call(
        &self,
        ask: impl FnOnce(&mut State, PlaceKey, oneshot::Sender<Result<(), Error>>),
    ) -> Result<(), Error> {
        self.session.shared().ours()?;
        let (answer, answered) = oneshot::channel();
        self.with(|state, _, key| ask(state, key, answer));
        answered.await.unwrap_or(Err(Error::Ended))
    }

    /// Gives the place up and waits until the service has said so.
    pub(crate) async fn release(&self) -> Result<(), Error> {
        self.call(|state, key, answer| state.release(key, Some(answer))).await
    }

    /// Says that the holder has stopped.
    pub(crate) async fn stopped(&self) -> Result<(), Error> {
        self.call(|state, key, answer| state.stopped(key, Some(answer))).await
    }

    /// Changes what the others are told.
    pub(crate) async fn describe(&self, metadata: BTreeMap<String, String>) -> Result<(), Error> {
        self.call(|state, key, answer| state.describe(key, metadata, answer)).await
    }

    /// Says that the holder's work goes on.
    pub(crate) fn progress(&self) {
        self.with(|state, now, key| state.progress(now, key));
    }

    /// Waits until `f` has something to tell.
    pub(crate) async fn until<T>(
        &self,
        mut f: impl FnMut(&mut State, Mono, PlaceKey) -> Option<T>,
    ) -> Result<T, Error> {
        self.session.shared().ours()?;
        loop {
            let woken = self.wake.tasks.notified();
            if let Some(told) = self.session.shared().with(|state, now| f(state, now, self.key)) {
                return Ok(told);
            }
            woken.await;
        }
    }

    /// Waits until the seat is lost or about to be.
    pub(crate) async fn lost(&self) -> Loss {
        let told = self.until(|state, now, key| {
            loss(state, key).or_else(|| asked(state, now, key)).or_else(|| near(state, now))
        });
        told.await.unwrap_or_else(forked)
    }

    /// Waits until the seat is lost.
    pub(crate) async fn gone(&self) -> Loss {
        self.until(|state, _, key| loss(state, key)).await.unwrap_or_else(forked)
    }
}

fn forked(error: Error) -> Loss {
    Loss { cause: LossCause::SessionLost, why: error.to_string(), remaining: Duration::ZERO }
}

/// That the deadline is near, if it is.
fn near(state: &State, now: Mono) -> Option<Loss> {
    if !state.is_near(now) {
        return None;
    }
    let remaining = state.remaining(now);
    let why = format!("the service is silent, and the deadline is in {} ms", remaining.as_millis());
    Some(Loss { cause: LossCause::DeadlineNear, why, remaining })
}

/// That the holder was asked to stop, if it was.
fn asked(state: &State, now: Mono, key: PlaceKey) -> Option<Loss> {
    let why = state.place(key)?.asked_to_stop()?.to_string();
    Some(Loss { cause: LossCause::Asked, why, remaining: state.remaining(now) })
}

/// Why the seat may not be used any more, if it may not.
fn loss(state: &State, key: PlaceKey) -> Option<Loss> {
    let place = state.place(key);
    let moved = place.is_some_and(|place| !place.has_reader() && place.handed && place.seat().is_none());
    let (cause, why) = match place.map(|place| &place.stage) {
        None | Some(Stage::Left | Stage::Leaving) => {
            (LossCause::GivenUp, "it was given up by this program".into())
        }
        Some(Stage::Ended(error)) => (cause_of(error), error.to_string()),
        Some(Stage::Asked) => {
            (LossCause::SessionLost, "its session ended; it asks for a place in the next".into())
        }
        Some(Stage::In) if state.lapsed() => {
            (LossCause::DeadlinePassed, "its own deadline has passed".into())
        }
        Some(Stage::In) if moved => (LossCause::Moved, "it has stopped, and its seat went on".into()),
        Some(Stage::In) => return None,
    };
    Some(Loss { cause, why, remaining: Duration::ZERO })
}

fn cause_of(error: &Error) -> LossCause {
    match error {
        Error::Closed { .. } => LossCause::Closed,
        Error::Ended => LossCause::GivenUp,
        _ => LossCause::SessionLost,
    }
}
