//! A session: the one thing that speaks for a program at the service, and that its locks and memberships live in.
//!
//! **Problem.** Connections break and services fail over, while a program needs one answer at any instant: may I
//! still act? **Rule.** One task owns the connection, renews the lease four times within its length, reconnects
//! by itself, and sends every unanswered call again under its old number (RULES R21, R22). The answer to "may I act"
//! is read from the clock at each question (R9). **When it fails.** See `docs/guarantees.md`.

mod link;
pub(crate) mod place;
pub(crate) mod state;
#[cfg(test)]
mod tests;

use crate::barrier::Barrier;
use crate::client::Client;
use crate::error::Error;
use crate::group::{Group, JoinOptions};
use crate::latch::Latch;
use crate::leadership::Leadership;
use crate::lock::Lock;
use crate::rwlock::RwLock;
use crate::semaphore::Semaphore;
pub(crate) use link::Trouble;
use quorate_core::id::{ClusterId, SessionId};
use quorate_core::state_machine::{Face, OnDisconnect};
use quorate_core::time::Mono;
use state::{Known, State};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// How a session is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionOptions {
    /// The length of a lease: how long others wait when this process disappears. Milliseconds count; the service
    /// refuses what is below its floor (it tells the floor) or above its ceiling of 10 minutes. Shorter fails over
    /// sooner and is lost by shorter pauses of this process. Default 10 s.
    pub ttl: Duration,
    /// What a closed connection means. `Hold`, the default, keeps the seats until the lease ends. `Release`
    /// passes them on at once and waives the promise that no two act (RULES R18).
    pub on_disconnect: OnDisconnect,
    /// Whom to show to people, at most 255 bytes. Default: `pid N` of this process with its program's name.
    pub label: String,
    /// How long before the deadline a holder is warned by `lost()`: the time that stopping takes. Default a sixth
    /// of the lease; more than a third is an error (RULES R7), since one late keepalive would then look like a loss.
    pub warning: Option<Duration>,
    /// The session for which this one acts, if any. See [`SessionOptions::acts_for`].
    pub acts_for: Option<SessionId>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        let program = std::env::args_os().next();
        let program = program.as_deref().map(std::path::Path::new).and_then(|path| path.file_name());
        let program = program.map_or("program".into(), |name| name.to_string_lossy().into_owned());
        let label: String = program.chars().filter(|c| !c.is_control()).take(60).collect();
        Self {
            ttl: Duration::from_secs(10),
            on_disconnect: OnDisconnect::Hold,
            label: format!("{label} (pid {})", std::process::id()),
            warning: None,
            acts_for: None,
        }
    }
}

impl SessionOptions {
    /// The defaults with a lease of this length.
    pub fn with_ttl(ttl: Duration) -> Self {
        Self { ttl, ..Self::default() }
    }

    /// Sets what a closed connection means.
    #[must_use]
    pub fn on_disconnect(self, on_disconnect: OnDisconnect) -> Self {
        Self { on_disconnect, ..self }
    }

    /// Sets whom to show to people.
    #[must_use]
    pub fn label(self, label: impl Into<String>) -> Self {
        Self { label: label.into(), ..self }
    }

    /// Sets how long before its deadline a holder is warned.
    #[must_use]
    pub fn warning(self, warning: Duration) -> Self {
        Self { warning: Some(warning), ..self }
    }

    /// Says that whatever this session waits for, that one waits for too. A program that holds a lock and runs
    /// another program, which opens a session of its own, goes on only when that one has ended: without this word
    /// the service sees two sessions that have nothing to do with each other, and no deadlock through them
    /// (RULES R19). It is said as the first call, also when the session was lost and the next one is opened; a
    /// session that has ended, or a service that does not know it yet, is no error.
    ///
    /// Anybody may name any session. All that this can bring about is that a wait of *this* session, if it asked
    /// for [`break_deadlock`](crate::Lock::break_deadlock), is given up, or one of those that already wait in a
    /// circle with the named one and asked for it; and that an explanation names them.
    #[must_use]
    pub fn acts_for(self, outer: SessionId) -> Self {
        Self { acts_for: Some(outer), ..self }
    }

    fn check(&self) -> Result<(), Error> {
        match self.warning {
            Some(warning) if warning > self.ttl / 3 => Err(Error::Options(format!(
                "a warning of {} ms is more than a third of the lease of {} ms",
                warning.as_millis(),
                self.ttl.as_millis()
            ))),
            _ => Ok(()),
        }
    }
}

/// A session at the service. Clones are handles of the same session; it ends when the last handle, guard and
/// group of it is dropped, or by [`Session::end`].
#[derive(Clone, Debug)]
pub struct Session {
    handle: Arc<Handle>,
}

/// The last of these ends the session.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.shared.ours().is_ok() {
            self.shared.with(|state, _| state.end(None));
        }
    }
}

/// What the handles and the task share.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    kick: Notify,
    owner: u32,
}

impl Shared {
    /// Whether this process may use the session: a forked child may not (RULES R22). Comes before the lock,
    /// which in a child may be held by a thread that does not exist there.
    pub(crate) fn ours(&self) -> Result<(), Error> {
        match std::process::id() {
            here if here == self.owner => Ok(()),
            here => Err(Error::Forked { owner: self.owner, here }),
        }
    }

    /// Reads the clock, notices whether the deadline has passed, and then does `f`.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut State, Mono) -> T) -> T {
        let mut state = self.lock();
        let now = state.clock().now();
        state.check(now);
        let value = f(&mut state, now);
        if state.take_dirty() {
            self.kick.notify_one();
        }
        value
    }

    /// The same from the task itself, which looks at the state again in any case before it waits.
    fn look<T>(&self, f: impl FnOnce(&mut State, Mono) -> T) -> T {
        let mut state = self.lock();
        let now = state.clock().now();
        state.check(now);
        let value = f(&mut state, now);
        state.take_dirty();
        value
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic inside would be a bug of ours; the state is still the best that is known.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Opens a session. See [`Client::session`].
    pub(crate) async fn open(client: &Client, options: SessionOptions) -> Result<Self, Error> {
        options.check()?;
        let state = State::new(client.clock().clone(), options);
        let turned = Arc::clone(&state.turned);
        let owner = std::process::id();
        let shared = Arc::new(Shared { state: Mutex::new(state), kick: Notify::new(), owner });
        let trouble = link::start(Arc::clone(&shared), client.clone());
        let session = Self { handle: Arc::new(Handle { shared }) };
        let opened = async {
            loop {
                let turn = turned.notified();
                let (known, over) =
                    session.shared().with(|state, _| (state.known().is_some(), state.over().cloned()));
                match (known, over) {
                    (_, Some(error)) => return Err(error),
                    (true, None) => return Ok(()),
                    (false, None) => turn.await,
                }
            }
        };
        match tokio::time::timeout(client.open_timeout(), opened).await {
            Ok(Ok(())) => Ok(session),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(client.unreachable(&trouble)),
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.handle.shared
    }

    fn now_known(&self) -> Option<Known> {
        self.shared().ours().ok()?;
        self.shared().with(|state, _| state.known())
    }

    /// The session's number at the service. It changes when the session was lost and the next one opened; none
    /// in between.
    pub fn id(&self) -> Option<SessionId> {
        self.now_known().map(|known| known.id)
    }

    /// The cluster that the session lives in. A guard refuses another's tokens.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.now_known().map(|known| known.cluster)
    }

    /// The effective length of a lease.
    pub fn ttl(&self) -> Option<Duration> {
        self.now_known().map(|known| known.ttl.to_std())
    }

    /// What a closed connection means. With `Release` grants may overlap (RULES R18).
    pub fn on_disconnect(&self) -> Option<OnDisconnect> {
        self.now_known().map(|known| known.on_disconnect)
    }

    /// How long seats of this session may still be used without hearing from the service, read from the clock
    /// now. Zero once the deadline has passed or the session acts no more.
    pub fn remaining(&self) -> Duration {
        match self.shared().ours() {
            Ok(()) => self.shared().with(|state, now| state.remaining(now)),
            Err(_) => Duration::ZERO,
        }
    }

    /// How long before the deadline `lost()` warns a holder.
    pub fn warning(&self) -> Duration {
        match self.shared().ours() {
            Ok(()) => self.shared().with(|state, _| state.warning().to_std()),
            Err(_) => Duration::ZERO,
        }
    }

    /// Whether seats of this session may be used now, read from the clock now.
    pub fn acts(&self) -> bool {
        self.shared().ours().is_ok() && self.shared().with(|state, now| state.acts(now))
    }

    /// Why the session has ended for good, if it has: closed by an operator, ended by its program, or refused.
    pub fn over(&self) -> Option<Error> {
        match self.shared().ours() {
            Ok(()) => self.shared().with(|state, _| state.over().cloned()),
            Err(error) => Some(error),
        }
    }

    /// A lock by its name. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Name`] if the text is not a name.
    pub fn lock(&self, name: impl Into<String>) -> Result<Lock, Error> {
        Ok(Lock::new(self.clone(), Error::name(name)?))
    }

    /// A read-write lock by its name. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Name`] if the text is not a name.
    pub fn rwlock(&self, name: impl Into<String>) -> Result<RwLock, Error> {
        Ok(RwLock::new(self.clone(), Error::name(name)?))
    }

    /// A semaphore with so many seats, from 1. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Name`] if the text is not a name.
    pub fn semaphore(&self, name: impl Into<String>, seats: u32) -> Result<Semaphore, Error> {
        Ok(Semaphore::new(self.clone(), Error::name(name)?, seats))
    }

    /// A leadership by its name. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Name`] if the text is not a name.
    pub fn leadership(&self, name: impl Into<String>) -> Result<Leadership, Error> {
        Ok(Leadership::new(self.clone(), Error::name(name)?))
    }

    /// A barrier of so many parties, from 1. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Name`] if the text is not a name.
    pub fn barrier(&self, name: impl Into<String>, parties: u32) -> Result<Barrier, Error> {
        Ok(Barrier::new(self.clone(), Error::name(name)?, parties))
    }

    /// A latch over the members of a group. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Name`] if the text is not a name.
    pub fn latch(&self, name: impl Into<String>) -> Result<Latch, Error> {
        Ok(Latch::new(self.clone(), Error::name(name)?))
    }

    /// Joins a group, and waits until the service has taken this member in.
    ///
    /// # Errors
    /// [`Error::Refused`] by the group's rules (another policy or face stated, a limit), [`Error::WaitLost`] if the
    /// service stays silent for a whole lease, [`Error::Closed`] or [`Error::Ended`] if the session is over.
    /// No place is kept then.
    pub async fn join(&self, name: impl Into<String>, options: JoinOptions) -> Result<Group, Error> {
        Group::join(self.clone(), Error::name(name)?, Face::Group, options).await
    }

    /// Ends the session: everything that it holds is released at once. The holder has stopped when it calls this.
    ///
    /// # Errors
    /// [`Error::WaitLost`] if the service is silent: then its lease ends by itself.
    pub async fn end(&self) -> Result<(), Error> {
        self.shared().ours()?;
        let (answer, answered) = oneshot::channel();
        self.shared().with(|state, _| state.end(Some(answer)));
        answered.await.unwrap_or(Err(Error::Ended))
    }

    /// Waits until the session is over for good, and says why. A session that was lost goes on in the next one
    /// and is not over.
    pub async fn ended(&self) -> Error {
        if let Err(error) = self.shared().ours() {
            return error;
        }
        let turned = self.shared().with(|state, _| Arc::clone(&state.turned));
        loop {
            let turn = turned.notified();
            if let Some(error) = self.shared().with(|state, _| state.over().cloned()) {
                return error;
            }
            turn.await;
        }
    }

    /// The name that members and waiters have if they state none.
    pub(crate) fn default_name(name: Option<String>) -> String {
        name.unwrap_or_else(|| format!("pid-{}", std::process::id()))
    }
}
