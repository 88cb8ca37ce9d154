//! A lock: a group with one seat that is left when done.
//!
//! **Problem.** One of many may act, those who wait want their turn in the order they asked, and the holder must
//! know in time that it may no longer act. **Rule.** The queue is the service's; a grant carries a token that
//! grows for ever, and the guard at the resource refuses older ones. **Cost.** One logged call to acquire, one to
//! release; a waiter hears only of its own grant (RULES R15). **When it fails.** A holder that is paused cannot
//! know it: only a [guard](crate::guard) in front of the resource stops its late write (R9).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let service = quorate::testing::Service::start().await;
//! let client = quorate::Client::connect(service.address())?;
//! let session = client.session(quorate::SessionOptions::default()).await?;
//! let guard = session.lock("orders")?.acquire().await?;
//! if let Some(token) = guard.token() {
//!     println!("acting under token {token} for {:?} more", guard.remaining());
//! }
//! guard.release().await?;
//! # Ok(())
//! # }
//! ```

use crate::error::Error;
use crate::hold::{Hold, Loss};
use crate::session::Session;
use crate::session::place::Stage;
use crate::session::state::{PlaceKey, State};
use quorate_core::fence::Offer;
use quorate_core::id::{ClusterId, EntryId, Name, SeatNo, Token};
use quorate_core::state_machine::{Face, Join, MemberKind, Mode, PolicyWish, Seat};
use quorate_core::time::Mono;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::oneshot;

/// A lock by its name. Each acquisition is a place of its own in the queue: two of one session exclude each other.
#[derive(Clone, Debug)]
pub struct Lock {
    session: Session,
    name: Name,
    holder: String,
}

impl Lock {
    pub(crate) fn new(session: Session, name: Name) -> Self {
        Self { session, name, holder: Session::default_name(None) }
    }

    /// Sets the name that others see as holder or waiter; need not be unique. Default `pid-N`.
    #[must_use]
    pub fn named(self, holder: impl Into<String>) -> Self {
        Self { holder: holder.into(), ..self }
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Waits for the lock, first come first served. A dropped future gives the place in the queue up; a grant that
    /// comes at the same moment is released.
    ///
    /// # Errors
    /// At once when the session ends while waiting ([`Error::SessionLost`], [`Error::Closed`], [`Error::Ended`]);
    /// [`Error::WaitLost`] once the service has been silent for a whole lease; [`Error::Refused`] if the name is
    /// not a lock or a limit is reached. Nothing is held then.
    pub async fn acquire(&self) -> Result<LockGuard, Error> {
        self.ask(true).await
    }

    /// Takes the lock if it is free and nobody waits for it.
    ///
    /// # Errors
    /// [`Error::Busy`] names the holder; else as [`Lock::acquire`].
    pub async fn try_acquire(&self) -> Result<LockGuard, Error> {
        self.ask(false).await
    }

    /// Waits for the lock so long at most.
    ///
    /// # Errors
    /// [`Error::TimedOut`] when the time is over; else as [`Lock::acquire`].
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<LockGuard, Error> {
        match tokio::time::timeout(limit, self.acquire()).await {
            Ok(acquired) => acquired,
            Err(_) => Err(Error::TimedOut { name: self.name.clone(), after: limit }),
        }
    }

    async fn ask(&self, wait: bool) -> Result<LockGuard, Error> {
        let join = Join {
            group: self.name.clone(),
            face: Face::Lock,
            kind: MemberKind::Full,
            mode: Mode::Exclusive,
            wait,
            name: self.holder.clone(),
            metadata: BTreeMap::new(),
            weight: 0,
            policy: PolicyWish::default(),
        };
        let shared = self.session.shared();
        shared.ours()?;
        let (key, wake) = shared.with(|state, _| state.join(join))?;
        let hold = Hold::new(self.session.clone(), key, wake);
        let what = format!("waiting for {}", self.name);
        let (seat, entry) = hold.until(|state, now, key| granted(state, now, key, &what)).await??;
        let cluster = self.session.cluster().unwrap_or_default();
        Ok(LockGuard { hold, name: self.name.clone(), grant: entry, seat: seat.no, cluster })
    }
}

/// The outcome of an acquisition, once there is one.
fn granted(
    state: &mut State,
    now: Mono,
    key: PlaceKey,
    what: &str,
) -> Option<Result<(Seat, EntryId), Error>> {
    let Some(place) = state.place(key) else {
        return Some(Err(state.wait_lost(what.into())));
    };
    match &place.stage {
        Stage::Ended(error) => return Some(Err(error.clone())),
        Stage::Left => return Some(Err(Error::Ended)),
        _ => {}
    }
    if place.unwanted || state.lapsed() {
        return Some(Err(state.wait_lost(what.into())));
    }
    let entry = place.entry?;
    let seat = state.seat(now, key)?;
    state.hand_out(key);
    Some(Ok((seat, entry)))
}

/// The token, once there is one, or why there will be none.
fn regained(state: &mut State, now: Mono, key: PlaceKey) -> Option<Result<Token, Error>> {
    match state.place(key).map(|place| &place.stage) {
        None => Some(Err(Error::Ended)),
        Some(Stage::Ended(error)) => Some(Err(error.clone())),
        Some(_) => state.seat(now, key).map(|seat| Ok(seat.token)),
    }
}

/// A lock that was granted. Dropped, it is released in the background.
#[must_use = "the lock is released when the guard is dropped"]
#[derive(Debug)]
pub struct LockGuard {
    hold: Hold,
    name: Name,
    grant: EntryId,
    seat: SeatNo,
    cluster: ClusterId,
}

impl LockGuard {
    /// The token to act under, read from the clock now: none once the deadline has passed or the session acts no
    /// more. It may come back as a greater one: then the deadline had passed, and the service has kept the seat
    /// for this session meanwhile (RULES R25).
    pub fn token(&self) -> Option<Token> {
        self.hold.token()
    }

    /// Whether the lock may be acted on, read from the clock now.
    pub fn is_held(&self) -> bool {
        self.token().is_some()
    }

    /// How long the lock may still be acted on without hearing from the service; zero if it is not held.
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// What a [guard](crate::guard::Guard) takes: cluster, seat and token. None if the lock is not held now.
    pub fn offer(&self) -> Option<Offer> {
        self.token().map(|token| Offer::new(self.cluster, token).seat(self.seat))
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The grant, which a release names.
    pub fn grant(&self) -> EntryId {
        self.grant
    }

    /// The seat that was granted; always 0 for a lock.
    pub fn seat(&self) -> SeatNo {
        self.seat
    }

    /// The cluster that granted it.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The session that holds it.
    pub fn session(&self) -> &Session {
        self.hold.session()
    }

    /// Waits until the lock is lost or about to be. It comes [`Session::warning`] *before* the deadline, with the
    /// time that is left for stopping: by default a sixth of the lease, when the third keepalive in a row is
    /// missing. At once if the lock is not held. Called again it waits for the next loss.
    pub async fn lost(&self) -> Loss {
        self.hold.lost().await
    }

    /// Waits until the lock may not be acted on any more, and says why. At once if that is so.
    pub async fn gone(&self) -> Loss {
        self.hold.gone().await
    }

    /// Waits until the lock may be acted on: at once if it is held; after the deadline has passed, until the service
    /// has kept the seat for this session, under a new token (RULES R25).
    ///
    /// # Errors
    /// Why it never will be: [`Error::SessionLost`], [`Error::Closed`], [`Error::Ended`].
    pub async fn regained(&self) -> Result<Token, Error> {
        self.hold.until(regained).await?
    }

    /// Releases the lock and waits until the service has said so. The holder has stopped when it calls this.
    ///
    /// # Errors
    /// [`Error::WaitLost`] if the service is silent: the release is done as soon as it is back, or the lease ends.
    /// [`Error::SessionLost`] if the lock had been lost before.
    pub async fn release(self) -> Result<(), Error> {
        self.hold.session().shared().ours()?;
        let (answer, answered) = oneshot::channel();
        self.hold.with(|state, _, key| state.release(key, Some(answer)));
        answered.await.unwrap_or(Err(Error::Ended))
    }
}
