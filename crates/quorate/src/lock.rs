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

use crate::claim::{Claim, terms};
use crate::error::Error;
use crate::hold::{Hold, Loss};
use crate::session::Session;
use crate::session::place::Stage;
use crate::session::state::{PlaceKey, State};
use quorate_core::fence::Offer;
use quorate_core::id::{ClusterId, EntryId, Name, SeatNo, Token};
use quorate_core::state_machine::Face;
use quorate_core::time::Mono;
use std::collections::BTreeMap;
use std::time::Duration;

/// A lock by its name. Each acquisition is a place of its own in the queue: two of one session exclude each other.
#[derive(Clone, Debug)]
pub struct Lock {
    claim: Claim,
}

terms!(Lock, breakable);

impl Lock {
    pub(crate) fn new(session: Session, name: Name) -> Self {
        Self { claim: Claim::new(session, name, Face::Lock) }
    }

    /// Waits for the lock, first come first served. A dropped future gives the place in the queue up; a grant that
    /// comes at the same moment is released.
    ///
    /// # Errors
    /// At once when the session ends while waiting ([`Error::SessionLost`], [`Error::Closed`], [`Error::Ended`]) or
    /// the lock is deleted ([`Error::Removed`]); [`Error::WaitLost`] once the service has been silent for a whole
    /// lease; [`Error::Refused`] if the name is not a lock or a limit is reached; [`Error::Deadlock`] if that was
    /// asked for. Nothing is held then.
    pub async fn acquire(&self) -> Result<LockGuard, Error> {
        self.claim.acquire().await
    }

    /// Takes the lock if it is free and nobody waits for it.
    ///
    /// # Errors
    /// [`Error::Busy`] names the holder; else as [`Lock::acquire`].
    pub async fn try_acquire(&self) -> Result<LockGuard, Error> {
        self.claim.try_acquire().await
    }

    /// Waits for the lock so long at most.
    ///
    /// # Errors
    /// [`Error::TimedOut`] when the time is over; else as [`Lock::acquire`].
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<LockGuard, Error> {
        self.claim.acquire_timeout(limit).await
    }
}

/// The token, once there is one, or why there will be none.
fn regained(state: &mut State, now: Mono, key: PlaceKey) -> Option<Result<Token, Error>> {
    match state.place(key).map(|place| &place.stage) {
        None => Some(Err(Error::Ended)),
        Some(Stage::Ended(error)) => Some(Err(error.clone())),
        Some(_) => state.seat(now, key).map(|seat| Ok(seat.token)),
    }
}

/// A seat that was granted: of a lock, of a read-write lock, of a semaphore. Dropped, it is released in the background.
///
/// A holder may be asked to stop: by a transfer, since it held for as long as it said, since the seats became fewer or
/// the name is being deleted. [`LockGuard::lost`] tells it ([`LossCause::Asked`](crate::LossCause::Asked)). It then
/// ends its work and says so, by [`LockGuard::release`], or by [`LockGuard::stopped`] to stay in the queue.
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
    pub(crate) fn new(hold: Hold, name: Name, grant: EntryId, seat: SeatNo, cluster: ClusterId) -> Self {
        Self { hold, name, grant, seat, cluster }
    }

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
        self.hold.seat().map(|seat| Offer::new(self.cluster, seat.token).seat(seat.no))
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The grant, which a release names.
    pub fn grant(&self) -> EntryId {
        self.grant
    }

    /// The seat that is held, or was at first: always 0 for a lock and a read-write lock, one of 0 to k-1 for a
    /// semaphore (RULES R12).
    pub fn seat(&self) -> SeatNo {
        self.hold.seat().map_or(self.seat, |seat| seat.no)
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

    /// Says that the holder has stopped, and stays in the queue: nothing may be acted on from this call on. A seat
    /// that another was promised goes there; else this place is now the last. [`LockGuard::regained`] waits for its
    /// next turn. In a name that is being deleted it is the end.
    ///
    /// # Errors
    /// [`Error::WaitLost`] if the service is silent: it is told as soon as it is back. [`Error::SessionLost`] if the
    /// lock had been lost before.
    pub async fn stopped(&self) -> Result<(), Error> {
        self.hold.stopped().await
    }

    /// Says that the work goes on, where that was promised (`progress`). Does not wait, and may be called as often as
    /// there is something to tell: at most four in the promised time are sent, each an entry of the log (RULES R20).
    pub fn progress(&self) {
        self.hold.progress();
    }

    /// Releases the lock and waits until the service has said so. The holder has stopped when it calls this. If it was
    /// asked to stop in favour of another, the seat goes there.
    ///
    /// # Errors
    /// [`Error::WaitLost`] if the service is silent: the release is done as soon as it is back, or the lease ends.
    /// [`Error::SessionLost`] if the lock had been lost before.
    pub async fn release(self) -> Result<(), Error> {
        self.hold.release().await
    }

    /// Changes what is shown of the holder.
    pub(crate) async fn describe(&self, metadata: BTreeMap<String, String>) -> Result<(), Error> {
        self.hold.describe(metadata).await
    }
}
