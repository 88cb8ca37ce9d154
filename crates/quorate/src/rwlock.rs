//! A read-write lock: many read together, one writes alone, and nobody overtakes.
//!
//! **Problem.** Readers may act together, a writer only alone, and neither kind may starve the other. **Rule.** One
//! queue, first come first served: a reader that comes after a waiting writer waits for it. **Tokens.** All readers of
//! one phase act under the phase's token, and each writer under a greater one, so a [guard](crate::guard) refuses a
//! writer that is late and lets readers pass together (RULES R13). **Cost.** As a [`Lock`](crate::Lock), whose
//! name may be the same: a lock is a read-write lock that is only written. **When it fails.** As a lock.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let service = quorate::testing::Service::start().await;
//! let client = quorate::Client::connect(service.address())?;
//! let session = client.session(quorate::SessionOptions::default()).await?;
//! let prices = session.rwlock("prices")?;
//! let (one, two) = (prices.read().await?, prices.read().await?);
//! assert_eq!(one.token(), two.token());
//! drop((one, two));
//! let writer = prices.write().await?;
//! writer.release().await?;
//! # Ok(())
//! # }
//! ```

use crate::claim::{Claim, terms};
use crate::error::Error;
use crate::lock::LockGuard;
use crate::session::Session;
use quorate_core::id::Name;
use quorate_core::state_machine::{Face, Mode};
use std::time::Duration;

/// A read-write lock by its name.
#[derive(Clone, Debug)]
pub struct RwLock {
    claim: Claim,
}

terms!(RwLock, breakable);

impl RwLock {
    pub(crate) fn new(session: Session, name: Name) -> Self {
        Self { claim: Claim::new(session, name, Face::Lock) }
    }

    /// Waits to read, together with others that read.
    ///
    /// # Errors
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn read(&self) -> Result<LockGuard, Error> {
        self.claim.mode(Mode::Shared).acquire().await
    }

    /// Reads if nobody writes and nobody waits.
    ///
    /// # Errors
    /// [`Error::Busy`] names a holder, or who waits first; else as [`RwLock::read`].
    pub async fn try_read(&self) -> Result<LockGuard, Error> {
        self.claim.mode(Mode::Shared).try_acquire().await
    }

    /// Waits to read so long at most.
    ///
    /// # Errors
    /// [`Error::TimedOut`] when the time is over; else as [`RwLock::read`].
    pub async fn read_timeout(&self, limit: Duration) -> Result<LockGuard, Error> {
        self.claim.mode(Mode::Shared).acquire_timeout(limit).await
    }

    /// Waits to write, alone.
    ///
    /// # Errors
    /// As [`Lock::acquire`](crate::Lock::acquire).
    pub async fn write(&self) -> Result<LockGuard, Error> {
        self.claim.acquire().await
    }

    /// Writes if nobody holds it and nobody waits.
    ///
    /// # Errors
    /// [`Error::Busy`] names a holder, or who waits first; else as [`RwLock::write`].
    pub async fn try_write(&self) -> Result<LockGuard, Error> {
        self.claim.try_acquire().await
    }

    /// Waits to write so long at most.
    ///
    /// # Errors
    /// [`Error::TimedOut`] when the time is over; else as [`RwLock::write`].
    pub async fn write_timeout(&self, limit: Duration) -> Result<LockGuard, Error> {
        self.claim.acquire_timeout(limit).await
    }
}
