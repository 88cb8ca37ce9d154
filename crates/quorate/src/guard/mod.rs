//! A fence in front of a resource: a scope around the write that only the newest holder can enter.
//!
//! **Problem.** A lock tells its holder that it may write. A paused holder writes later, when the lock has
//! gone to another, and no check *before* the write can stop it: the pause may fall between the two.
//!
//! **Rule.** Nobody is inside a resource's scope with a token smaller than one that has entered before
//! (RULES R31).
//!
//! ```
//! use quorate::guard::{FileGuard, FileOptions, Guard, GuardError, Offer};
//! # use quorate::guard::{ClusterId, Name, Token};
//! # let dir = tempfile::tempdir()?;
//! # let cluster = ClusterId(7);
//! let guard = FileGuard::open(dir.path().join("orders.guard"), FileOptions::default())?;
//! let orders = Name::new("orders")?;
//! {
//!     let permit = guard.enter(&orders, Offer::new(cluster, Token(42)))?;
//!     // Write here: whoever holds 41 is neither inside now nor will ever be again.
//!     drop(permit);
//! }
//! let refused = guard.enter(&orders, Offer::new(cluster, Token(41)));
//! assert!(matches!(refused, Err(GuardError::Refused { .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | call | is | promises |
//! |---|---|---|
//! | [`enter`](Guard::enter) | a scope | no older write is in progress or begins until the permit ends |
//! | [`claim`](Guard::claim) | a scope entered and left once | the same from now on, before the first write |
//! | [`admit`](Guard::admit) | only a check | none begins; one that is in progress may still end |
//!
//! **Cost.** An entry by the holder that entered last is two file locks and one read. The first entry of a
//! token also writes and syncs the state: one small file and its directory.
//!
//! **Needs.** Everybody who writes to the resource goes through the same guard. `flock` must hold between
//! all writers: processes of one machine, on a local file system.
//!
//! **When it fails.** Before the new holder has claimed, an older token still passes (RULES R32). A writer
//! that hands its write to somebody outside the scope (a child by another user, a remote queue) is not
//! held by it (RULES R36). Two directories with the same content are two guards: see [`GuardError`].
//!
//! The calls block, since a write to a file blocks too; [`enter_async`] waits on tokio's blocking threads.

mod error;
mod file;
mod kill;
mod memory;
mod process;
mod refusals;
mod report;
mod scope;
mod state;
mod store;
#[cfg(test)]
mod tests;

pub use error::GuardError;
pub use file::{FileGuard, FileOptions, SeatKeys};
pub use memory::MemoryGuard;
pub use process::{Life, Process};
pub use quorate_core::fence::{Accepted, FenceRefusal, Floor, Mark, Offer};
pub use quorate_core::id::{ClusterId, Name, SeatNo, Token};
pub use report::{Refusals, RefusedOffer, Report, ResetLine, ResourceReport, rfc3339};
pub use scope::{Blocker, Command, Holder, become_command};
pub use state::RESOURCES_MAX;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A fence in front of resources. [`FileGuard`] is the one to use; [`MemoryGuard`] is for tests.
pub trait Guard: Send + Sync {
    /// Enters the scope of (resource, seat) on the given terms, and stays in it until the permit ends.
    ///
    /// The floor is raised durably *before* this waits for whoever is inside, so an older holder can do no
    /// new entry meanwhile; and it is checked again once the scope is free, so a waiter that has become
    /// the older one is refused.
    ///
    /// # Errors
    /// [`GuardError`]; nothing is entered then. After [`GuardError::Held`] and [`GuardError::Cancelled`]
    /// the floor has been raised all the same.
    fn enter_on(&self, resource: &Name, offer: Offer, terms: Terms<'_>) -> Result<Permit, GuardError>;

    /// Checks an offer and raises the floor durably. This is **only a check**: a write after it may
    /// interleave with one that an older holder has begun, and a newer holder may come in between. Use it
    /// where the resource itself takes the token along in one transaction, or to fence off older holders.
    ///
    /// `highest_issued` is the last token of the cluster, if the caller could ask for it.
    ///
    /// # Errors
    /// [`GuardError::Refused`] with the reason, or why the guard cannot decide.
    fn admit(
        &self,
        resource: &Name,
        offer: Offer,
        highest_issued: Option<Token>,
    ) -> Result<Accepted, GuardError>;

    /// Everything that the guard remembers: floors, refusals, resets and who is inside.
    ///
    /// # Errors
    /// [`GuardError`] if the state cannot be read.
    fn show(&self) -> Result<Report, GuardError>;

    /// Sets the floor of one resource by an operator's decision, and writes that down with the reason.
    /// It does not stop who is inside. Returns the new floor.
    ///
    /// # Errors
    /// [`GuardError`] if the state cannot be read or written; nothing is changed then.
    fn reset(&self, resource: &Name, reset: Reset) -> Result<Floor, GuardError>;

    /// [`enter_on`](Self::enter_on) that waits as long as somebody else is inside.
    ///
    /// # Errors
    /// As `enter_on`, without [`GuardError::Held`].
    fn enter(&self, resource: &Name, offer: Offer) -> Result<Permit, GuardError> {
        self.enter_on(resource, offer, Terms::default())
    }

    /// [`enter_on`](Self::enter_on) that does not wait at all.
    ///
    /// # Errors
    /// As `enter_on`; [`GuardError::Held`] names who is inside.
    fn try_enter(&self, resource: &Name, offer: Offer) -> Result<Permit, GuardError> {
        self.enter_within(resource, offer, Duration::ZERO)
    }

    /// [`enter_on`](Self::enter_on) that waits at most so long.
    ///
    /// # Errors
    /// As `enter_on`; [`GuardError::Held`] names who is inside.
    fn enter_within(&self, resource: &Name, offer: Offer, limit: Duration) -> Result<Permit, GuardError> {
        let terms = Terms { limit: Some(limit), ..Terms::default() };
        self.enter_on(resource, offer, terms)
    }

    /// What a new holder does on activation, before its first write: enters once and leaves (RULES R32).
    /// When it returns no write of an older holder is in progress and none can begin. Until then an older
    /// token may still pass.
    ///
    /// # Errors
    /// As [`enter`](Self::enter).
    fn claim(&self, resource: &Name, offer: Offer) -> Result<Accepted, GuardError> {
        self.enter(resource, offer).map(|permit| permit.accepted())
    }
}

/// On which terms to enter. The default waits for ever, kills nobody and tells nothing.
#[derive(Default)]
pub struct Terms<'a> {
    /// How long to wait for whoever is inside; None waits as long as it takes, zero not at all.
    pub limit: Option<Duration>,
    /// The last token of the cluster, if the caller could ask for it: a greater one is refused (RULES R34).
    pub highest_issued: Option<Token>,
    /// If an older *command* (`quorate guard run`) is inside, its process group gets SIGTERM, and SIGKILL
    /// after this grace (RULES R33). None kills nobody. A process that entered through this library is
    /// never killed: it may do other work as well.
    pub kill_older: Option<Duration>,
    /// Ends the wait with [`GuardError::Cancelled`] when it becomes true; looked at every 20 ms or faster.
    pub cancel: Option<&'a AtomicBool>,
    /// Hears why it waits: at the beginning, when somebody else is inside, and when something is killed.
    pub on_notice: Option<&'a mut dyn FnMut(&Notice)>,
}

impl Terms<'_> {
    fn tell(&mut self, notice: &Notice) {
        if let Some(hear) = &mut self.on_notice {
            hear(notice);
        }
    }
}

/// What somebody who waits for a scope is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It waits for this one.
    Waiting(Blocker),
    /// The older command's process group was told to end (SIGTERM).
    Terminated(Blocker),
    /// The grace is over, and the older command's process group was killed (SIGKILL).
    Killed(Blocker),
    /// The older holder cannot be killed, for this reason; it is waited for.
    NotKilled(Blocker, &'static str),
}

/// An operator's decision on the floor of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reset {
    /// The new floor of every seat: the smallest token that is admitted from now on. Zero admits any.
    /// None keeps the numbers as they are and only changes the cluster.
    pub floor: Option<Token>,
    /// The cluster whose tokens are accepted from now on; None binds to the first that is named.
    pub cluster: Option<ClusterId>,
    /// Why, for the audit line. At most 1,000 bytes are kept.
    pub why: String,
}

impl Reset {
    /// The floor that it makes of another.
    fn apply(&self, old: &Floor) -> Floor {
        match self.floor {
            Some(token) => Floor::starting_at(Mark { token, cluster: self.cluster, at: report::now() }),
            None => old.rebound(self.cluster),
        }
    }
}

/// The right to write, until it is dropped. It says which token it stands for, so that it can ride on the
/// write where the resource takes it.
#[must_use = "the scope ends when the permit is dropped"]
#[derive(Debug)]
pub struct Permit {
    resource: Name,
    accepted: Accepted,
    hold: Hold,
}

#[derive(Debug)]
enum Hold {
    File(scope::Scope),
    Memory(memory::Inside),
}

impl Permit {
    /// What it is for.
    pub fn resource(&self) -> &Name {
        &self.resource
    }

    /// What was admitted.
    pub fn accepted(&self) -> Accepted {
        self.accepted
    }

    /// The token that is inside.
    pub fn token(&self) -> Token {
        self.accepted.token
    }

    /// A copy of the scope's lock that every child process started while it exists inherits. The scope then
    /// lasts until this process *and* those children have ended, however each ends (RULES R33). Keep it only
    /// over the start of the child: another thread's child would inherit it as well.
    ///
    /// # Errors
    /// If the system has no descriptor left, or the guard is one in memory, which no child can hold.
    pub fn inheritable(&self) -> std::io::Result<OwnedFd> {
        match &self.hold {
            Hold::File(scope) => scope.inheritable(),
            Hold::Memory(_) => Err(std::io::ErrorKind::Unsupported.into()),
        }
    }

    /// The scope's lock file, for a child that makes itself known with [`become_command`].
    pub fn scope_path(&self) -> Option<&Path> {
        match &self.hold {
            Hold::File(scope) => Some(scope.path()),
            Hold::Memory(_) => None,
        }
    }

    /// Leaves the scope, as dropping it does, and tells if a child that inherited the lock is still inside.
    pub fn leave(self) -> Option<Blocker> {
        match self.hold {
            Hold::File(scope) => scope.leave(&self.resource, self.accepted.seat),
            Hold::Memory(inside) => {
                drop(inside);
                None
            }
        }
    }
}

/// [`Guard::enter_within`] for async code: waits on a blocking thread of tokio. If the future is dropped the
/// wait ends, and a permit that was just won is given back.
///
/// # Errors
/// As `enter_within`; [`GuardError::Cancelled`] if the runtime is shutting down.
///
/// # Panics
/// Outside of a tokio runtime, and if the guard itself panics.
pub async fn enter_async<G: Guard + ?Sized + 'static>(
    guard: Arc<G>,
    resource: Name,
    offer: Offer,
    limit: Option<Duration>,
) -> Result<Permit, GuardError> {
    let cancel = Arc::new(AtomicBool::new(false));
    let _when_dropped = CancelOnDrop(Arc::clone(&cancel));
    let name = resource.clone();
    let entering = tokio::task::spawn_blocking(move || {
        let terms = Terms { limit, cancel: Some(&cancel), ..Terms::default() };
        guard.enter_on(&resource, offer, terms)
    });
    match entering.await {
        Ok(entered) => entered,
        Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
        Err(_) => Err(GuardError::Cancelled { resource: name }),
    }
}

struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
