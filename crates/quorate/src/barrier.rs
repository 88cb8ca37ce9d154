//! A barrier: n parties meet, and go on together.
//!
//! **Problem.** Nobody is to begin the next step before everybody has ended this one. **Rule.** Whoever comes waits
//! until n wait; then the first n go through in one step of the log, all under one token, the *generation*, each with a
//! position of its own, from 0. **When it fails.** A party that dies before is not counted any more: the others go on
//! waiting until another comes, and `quorate explain` says how many of how many are there. So give the wait a limit
//! where nobody would notice. **Again.** The next n that come are the next round, under a greater token.
//!
//! A barrier counts who waits; a [latch](crate::latch) counts who is there.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let service = quorate::testing::Service::start().await;
//! let client = quorate::Client::connect(service.address())?;
//! let session = client.session(quorate::SessionOptions::default()).await?;
//! let loaded = session.barrier("loaded", 2)?;
//! let (one, two) = tokio::try_join!(loaded.wait(), loaded.wait())?;
//! assert_eq!(one.generation, two.generation);
//! assert_eq!(one.position + two.position, 1, "one is 0, the other is 1");
//! # Ok(())
//! # }
//! ```

use crate::claim::Claim;
use crate::error::Error;
use crate::lock::LockGuard;
use crate::session::Session;
use quorate_core::id::{Name, Token};
use quorate_core::state_machine::Face;
use std::time::Duration;

/// A barrier by its name.
#[derive(Clone, Debug)]
pub struct Barrier {
    claim: Claim,
    parties: u32,
}

/// What a party has when all are through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Passage {
    /// The round: the same for all its parties, and greater in each next one.
    pub generation: Token,
    /// This party's position in it, from 0 to n-1; each has another. The one with 0 may do what one must do.
    pub position: u32,
    /// How many went through.
    pub parties: u32,
}

impl Barrier {
    pub(crate) fn new(session: Session, name: Name, parties: u32) -> Self {
        let mut claim = Claim::new(session, name, Face::Barrier);
        claim.join.policy.seats = Some(parties);
        Self { claim, parties }
    }

    /// Sets the name that others see; need not be unique. Default `pid-N`.
    #[must_use]
    pub fn named(mut self, party: impl Into<String>) -> Self {
        self.claim.join.name = party.into();
        self
    }

    /// The barrier's name.
    pub fn name(&self) -> &Name {
        &self.claim.join.group
    }

    /// Waits until all parties are there. A dropped future gives the place up, and this party is not counted.
    ///
    /// # Errors
    /// As [`Lock::acquire`](crate::Lock::acquire). After [`Error::WaitLost`] and [`Error::SessionLost`] it is not
    /// known whether the others went through; [`Error::Refused`] if another number of parties was stated.
    pub async fn wait(&self) -> Result<Passage, Error> {
        self.through(self.claim.acquire().await?)
    }

    /// Waits for all parties so long at most.
    ///
    /// # Errors
    /// [`Error::TimedOut`] when the time is over: this party is not counted any more. Else as [`Barrier::wait`].
    pub async fn wait_timeout(&self, limit: Duration) -> Result<Passage, Error> {
        self.through(self.claim.acquire_timeout(limit).await?)
    }

    /// The place is left at once, so that a round leaves nothing behind.
    fn through(&self, guard: LockGuard) -> Result<Passage, Error> {
        let position = guard.seat().0;
        match guard.token() {
            Some(generation) => Ok(Passage { generation, position, parties: self.parties }),
            None => Err(guard.session().over().unwrap_or_else(|| self.lost(&guard))),
        }
    }

    fn lost(&self, guard: &LockGuard) -> Error {
        let what = format!("waiting at {}", self.name());
        guard.session().shared().with(|state, _| state.wait_lost(what))
    }
}
