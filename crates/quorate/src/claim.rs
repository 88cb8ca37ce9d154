//! A claim: the one way to a seat that is left when done.
//!
//! **Problem.** A lock, a read-write lock, a semaphore, a leadership and a barrier all ask for a place in a queue and
//! wait for its seat. **Rule.** The wait ends with the grant, or at once when its session dies, its time is over or
//! the service is silent; whatever was asked for and is not wanted any more is given back (RULES R16, R24).
//! **Terms.** What the holder says of itself: how long it will hold at most, how often its work gives a sign (R20),
//! and whether its wait is given up in a deadlock (R19).

use crate::error::Error;
use crate::hold::Hold;
use crate::lock::LockGuard;
use crate::session::Session;
use crate::session::place::Stage;
use crate::session::state::{PlaceKey, State};
use quorate_core::id::{EntryId, Name};
use quorate_core::state_machine::{Face, Join, MemberKind, Mode, PolicyWish, Seat, Terms};
use quorate_core::time::{Mono, Span};
use std::collections::BTreeMap;
use std::time::Duration;

/// What is asked for, and on which terms.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) session: Session,
    pub(crate) join: Join,
    pub(crate) terms: Terms,
}

impl Claim {
    pub(crate) fn new(session: Session, name: Name, face: Face) -> Self {
        let join = Join {
            group: name,
            face,
            kind: MemberKind::Full,
            mode: Mode::Exclusive,
            wait: true,
            name: Session::default_name(None),
            metadata: BTreeMap::new(),
            weight: 0,
            policy: PolicyWish::default(),
        };
        Self { session, join, terms: Terms::default() }
    }

    /// The same, together with others or alone.
    pub(crate) fn mode(&self, mode: Mode) -> Self {
        Self { join: Join { mode, ..self.join.clone() }, ..self.clone() }
    }

    /// Waits for the seat.
    pub(crate) async fn acquire(&self) -> Result<LockGuard, Error> {
        self.ask(true).await
    }

    /// Takes the seat if it is free and nobody waits for it.
    pub(crate) async fn try_acquire(&self) -> Result<LockGuard, Error> {
        self.ask(false).await
    }

    /// Waits for the seat so long at most.
    pub(crate) async fn acquire_timeout(&self, limit: Duration) -> Result<LockGuard, Error> {
        match tokio::time::timeout(limit, self.acquire()).await {
            Ok(acquired) => acquired,
            Err(_) => Err(Error::TimedOut { name: self.join.group.clone(), after: limit }),
        }
    }

    async fn ask(&self, wait: bool) -> Result<LockGuard, Error> {
        let join = Join { wait, ..self.join.clone() };
        let shared = self.session.shared();
        shared.ours()?;
        let (key, wake) = shared.with(|state, _| state.join(join, self.terms.clone()))?;
        let hold = Hold::new(self.session.clone(), key, wake);
        let what = format!("waiting for {}", self.join.group);
        let (seat, entry) = hold.until(|state, now, key| granted(state, now, key, &what)).await??;
        let cluster = self.session.cluster().unwrap_or_default();
        Ok(LockGuard::new(hold, self.join.group.clone(), entry, seat.no, cluster))
    }
}

/// The outcome of a claim, once there is one.
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

pub(crate) fn span(time: Duration) -> Span {
    Span::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// What every claimant may say of itself, for a type that has a `claim`.
macro_rules! terms {
    ($type:ident) => {
        impl $type {
            /// Sets the name that others see as holder or waiter; need not be unique. Default `pid-N`.
            #[must_use]
            pub fn named(mut self, holder: impl Into<String>) -> Self {
                self.claim.join.name = holder.into();
                self
            }

            /// Says how long it will hold at most, in milliseconds. The holder is asked to stop then
            /// ([`LossCause::Asked`](crate::LossCause::Asked)); it is never stopped by force (RULES R11, R20).
            #[must_use]
            pub fn max_hold(mut self, max_hold: std::time::Duration) -> Self {
                self.claim.terms.max_hold = Some(crate::claim::span(max_hold));
                self
            }

            /// Says how often its work will give a sign ([`LockGuard::progress`](crate::LockGuard::progress)), in
            /// milliseconds. Without one for so long it is shown as stalled; it keeps its seat (RULES R20).
            #[must_use]
            pub fn progress(mut self, every: std::time::Duration) -> Self {
                self.claim.terms.progress = Some(crate::claim::span(every));
                self
            }

            /// The name that it is about.
            pub fn name(&self) -> &crate::Name {
                &self.claim.join.group
            }
        }
    };
    ($type:ident, breakable) => {
        crate::claim::terms!($type);

        impl $type {
            /// Gives a wait up that is part of a deadlock, with [`Error::Deadlock`](crate::Error::Deadlock), which
            /// names the cycle. Of several that asked for it the newest wait is given up. Without this a deadlock is
            /// found and shown, and lasts (RULES R19).
            #[must_use]
            pub fn break_deadlock(mut self) -> Self {
                self.claim.terms.break_deadlock = true;
                self
            }
        }
    };
}
pub(crate) use terms;
