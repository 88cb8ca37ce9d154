//! A semaphore: k may act at once, each on a seat of its own.
//!
//! **Problem.** A resource stands so many users and no more. **Rule.** The first k of the queue have seats 0 to k-1;
//! whoever takes one gets the next token. **Tokens.** A [guard](crate::guard) keeps one floor for each seat, since the
//! k holders promise nothing about each other: give the resource a key for each seat ([`LockGuard::offer`] names it,
//! RULES R12). **Cost.** As a lock. The first to ask states k; another number is an error that shows both (R17).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let service = quorate::testing::Service::start().await;
//! let client = quorate::Client::connect(service.address())?;
//! let session = client.session(quorate::SessionOptions::default()).await?;
//! let licences = session.semaphore("licences", 2)?;
//! let (one, two) = (licences.acquire().await?, licences.acquire().await?);
//! assert_eq!((one.seat().0, two.seat().0), (0, 1));
//! assert!(licences.try_acquire().await.is_err());
//! # Ok(())
//! # }
//! ```

use crate::claim::{Claim, terms};
use crate::error::Error;
use crate::lock::LockGuard;
use crate::session::Session;
use quorate_core::id::Name;
use quorate_core::state_machine::Face;
use std::time::Duration;

/// A semaphore by its name.
#[derive(Clone, Debug)]
pub struct Semaphore {
    claim: Claim,
}

terms!(Semaphore, breakable);

impl Semaphore {
    pub(crate) fn new(session: Session, name: Name, seats: u32) -> Self {
        let mut claim = Claim::new(session, name, Face::Semaphore);
        claim.join.policy.seats = Some(seats);
        Self { claim }
    }

    /// Waits for a seat, first come first served.
    ///
    /// # Errors
    /// As [`Lock::acquire`](crate::Lock::acquire); [`Error::Refused`] also if another number of seats was stated.
    pub async fn acquire(&self) -> Result<LockGuard, Error> {
        self.claim.acquire().await
    }

    /// Takes a seat if one is free and nobody waits.
    ///
    /// # Errors
    /// [`Error::Busy`] names one of the holders; else as [`Semaphore::acquire`].
    pub async fn try_acquire(&self) -> Result<LockGuard, Error> {
        self.claim.try_acquire().await
    }

    /// Waits for a seat so long at most.
    ///
    /// # Errors
    /// [`Error::TimedOut`] when the time is over; else as [`Semaphore::acquire`].
    pub async fn acquire_timeout(&self, limit: Duration) -> Result<LockGuard, Error> {
        self.claim.acquire_timeout(limit).await
    }
}
