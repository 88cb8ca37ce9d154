//! The guard of resources that processes of one machine write to, kept in a file (RULES R33, R34).
//!
//! | step of an entry | under which lock | why there |
//! |---|---|---|
//! | try the scope | - | nobody inside: the next two steps are the whole entry |
//! | check the offer and raise the floor | short | before waiting: the one inside can enter no more |
//! | wait for the scope | - | the write of the one inside ends first |
//! | check again | scope and short | a newer one may have come while this one waited |
//! | write who is inside | scope | waiters name it |
//!
//! The short lock is never held while a scope is waited for, so no two of them can wait for each other.
//! Which files there are, and how a floor becomes durable: `store.rs`.

use super::kill::Killer;
use super::refusals::RefusalFile;
use super::scope::{self, Scope};
use super::state::RESOURCES_MAX;
use super::store::{Create, Session, Store};
use super::{
    Accepted, Blocker, FenceRefusal, Floor, Guard, GuardError, Hold, Holder, Mark, Name, Notice, Offer,
    Permit, RefusedOffer, Report, Reset, ResetLine, ResourceReport, SeatNo, Terms, Token,
};
use crate::guard::report::now;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// How often a waiter looks whether it has become the older one.
const RECHECK: Duration = Duration::from_millis(250);

/// How often a waiter looks who is inside. To find a holder that left no record takes a look at every
/// process of the machine.
const LOOK: Duration = Duration::from_millis(100);

/// A guard whose state is a file. Cheap to make; every call reads the file anew, so any number of processes
/// may use one state. See the [module](super) for what it promises.
#[derive(Clone, Debug)]
pub struct FileGuard {
    store: Store,
    seats: SeatKeys,
}

/// How to open a guard's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// Whether the resources have parts for seats.
    pub seats: SeatKeys,
    /// Whether to found a state where there never was one. If the directory may vanish as a whole (a
    /// temporary one, or a volume that may fail to mount), say false once it exists: a guard that begins
    /// again has no floors.
    pub create: bool,
}

/// Whether a resource has a part for each seat of the group that writes to it (RULES R12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SeatKeys {
    /// It is one thing, for a group with one seat: only seat 0 may write.
    #[default]
    Whole,
    /// Each seat has its own part, floor and scope; seats promise nothing about each other.
    BySeat,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self { seats: SeatKeys::Whole, create: true }
    }
}

impl FileOptions {
    fn create(self) -> Create {
        if self.create { Create::IfAbsent } else { Create::Never }
    }
}

impl FileGuard {
    /// Opens the state, or founds it, and checks that it is whole and where it belongs.
    ///
    /// # Errors
    /// [`GuardError`] says in which way it is not usable. Nothing was changed then.
    pub fn open(path: impl AsRef<Path>, options: FileOptions) -> Result<Self, GuardError> {
        let store = Store::new(path.as_ref(), options.create())?;
        store.begin()?;
        Ok(Self { store, seats: options.seats })
    }

    /// Takes over a state that [`open`](Self::open) refuses, or all floors of one that it does not, by an
    /// operator's decision: a state that can be read keeps its floors, raised to `reset.floor` where they
    /// are lower; one that is missing or damaged begins again with that floor for *every* resource, and
    /// without one the error stays. Tokens count over all names, so the last token that the cluster gave
    /// out is a safe floor.
    ///
    /// # Errors
    /// [`GuardError`]; nothing was changed then.
    pub fn reset_all(path: impl AsRef<Path>, options: FileOptions, reset: Reset) -> Result<Self, GuardError> {
        let store = Store::new(path.as_ref(), options.create())?;
        let base = reset.floor.map(|token| Mark { token, cluster: reset.cluster, at: now() });
        let mut session = store.refound(base)?;
        let from = session.state.highest();
        let raise = |mark: Mark| Mark {
            token: mark.token.max(reset.floor.unwrap_or_default()),
            cluster: reset.cluster.or(mark.cluster),
            ..mark
        };
        let state = &mut session.state;
        state.base = raise(state.base);
        for floor in state.floors.values_mut() {
            let seats: Vec<_> = floor.seats().map(|(seat, mark)| (seat, raise(mark))).collect();
            *floor = Floor::of(raise(floor.base()), seats);
        }
        let to = state.highest();
        state.note_reset(reset_line(None, from, to, reset.why));
        session.write()?;
        drop(session);
        Ok(Self { store, seats: options.seats })
    }

    /// The state's file, with links resolved.
    pub fn path(&self) -> &Path {
        self.store.path()
    }

    fn check_seat(&self, resource: &Name, seat: SeatNo) -> Result<(), GuardError> {
        if self.seats == SeatKeys::Whole && seat != SeatNo(0) {
            return Err(GuardError::SeatNotKeyed { resource: resource.clone(), seat });
        }
        Ok(())
    }

    /// Checks an offer and makes the raised floor durable, as one step under the short lock.
    fn accept(
        &self,
        resource: &Name,
        offer: Offer,
        highest_issued: Option<Token>,
    ) -> Result<Accepted, GuardError> {
        let mut session = self.store.begin()?;
        let mut floor = session.state.floor(resource);
        let decided = match highest_issued {
            Some(highest_issued) => offer.within(highest_issued).and_then(|offer| floor.admit(offer)),
            None => floor.admit(offer),
        };
        let accepted = match decided {
            Ok(accepted) => accepted,
            Err(refusal) => return Err(self.refused(&session, resource, offer, refusal)),
        };
        if accepted.raises {
            check_room(&self.store, &session, resource)?;
            floor.raise(accepted, now());
            session.state.floors.insert(resource.clone(), floor);
            session.write()?;
        }
        Ok(accepted)
    }

    /// Writes the refusal down, under the short lock that the session holds.
    fn refused(
        &self,
        _session: &Session<'_>,
        resource: &Name,
        offer: Offer,
        refusal: FenceRefusal,
    ) -> GuardError {
        let refused = RefusedOffer {
            at: now(),
            seat: offer.seat,
            token: offer.token,
            highest: refusal.highest(),
            reason: refusal.to_string(),
            pid: std::process::id(),
        };
        RefusalFile::at(&self.store).push(resource, refused);
        GuardError::Refused { resource: resource.clone(), refusal }
    }

    fn open_scope(&self, resource: &Name, seat: SeatNo) -> Result<Scope, GuardError> {
        Scope::open(&self.store.scopes(), resource, seat)
    }
}

fn check_room(store: &Store, session: &Session<'_>, resource: &Name) -> Result<(), GuardError> {
    let floors = &session.state.floors;
    if floors.len() >= RESOURCES_MAX && !floors.contains_key(resource) {
        return Err(GuardError::Full {
            path: store.path().into(),
            resource: resource.clone(),
            max: RESOURCES_MAX,
        });
    }
    Ok(())
}

fn reset_line(resource: Option<Name>, from: Token, to: Token, why: String) -> ResetLine {
    ResetLine {
        at: now(),
        resource,
        from,
        to,
        why,
        user: rustix::process::getuid().as_raw(),
        pid: std::process::id(),
    }
}

impl Guard for FileGuard {
    fn enter_on(&self, resource: &Name, offer: Offer, mut terms: Terms<'_>) -> Result<Permit, GuardError> {
        self.check_seat(resource, offer.seat)?;
        let mut scope = self.open_scope(resource, offer.seat)?;
        if !scope.try_lock()? {
            self.accept(resource, offer, terms.highest_issued)?;
            self.wait(&mut scope, resource, offer, &mut terms)?;
        }
        let accepted = self.accept(resource, offer, terms.highest_issued)?;
        scope.record(&Holder::this_process(resource, offer))?;
        Ok(Permit { resource: resource.clone(), accepted, hold: Hold::File(scope) })
    }

    fn admit(
        &self,
        resource: &Name,
        offer: Offer,
        highest_issued: Option<Token>,
    ) -> Result<Accepted, GuardError> {
        self.check_seat(resource, offer.seat)?;
        self.accept(resource, offer, highest_issued)
    }

    fn show(&self) -> Result<Report, GuardError> {
        let session = self.store.begin()?;
        let mut refusals = RefusalFile::at(&self.store).read();
        let mut names: Vec<Name> = session.state.floors.keys().cloned().collect();
        names.extend(refusals.keys().cloned());
        names.sort_unstable();
        names.dedup();
        let mut holders = scope::holders(&self.store.scopes());
        let resources = names.into_iter().map(|resource| ResourceReport {
            floor: session.state.floor(&resource),
            refusals: refusals.remove(&resource).unwrap_or_default(),
            holders: holders.remove(&resource).unwrap_or_default(),
            resource,
        });
        Ok(Report {
            resources: resources.collect(),
            resets: session.state.resets.iter().cloned().collect(),
            base: session.state.base,
        })
    }

    fn reset(&self, resource: &Name, reset: Reset) -> Result<Floor, GuardError> {
        let mut session = self.store.begin()?;
        check_room(&self.store, &session, resource)?;
        let old = session.state.floor(resource);
        let new = reset.apply(&old);
        let line = reset_line(Some(resource.clone()), old.highest(), new.highest(), reset.why);
        session.state.floors.insert(resource.clone(), new.clone());
        session.state.note_reset(line);
        session.write()?;
        Ok(new)
    }
}

impl FileGuard {
    /// Waits until the scope is free and taken. Every now and then the offer is checked again: who has
    /// become the older one while waiting is refused at once.
    fn wait(
        &self,
        scope: &mut Scope,
        resource: &Name,
        offer: Offer,
        terms: &mut Terms<'_>,
    ) -> Result<(), GuardError> {
        let started = Instant::now();
        let mut observer = Observer::new(terms.kill_older);
        let mut look = Every::new(LOOK);
        let mut recheck = Every::new(RECHECK);
        recheck.is_due();
        let mut pause = Duration::from_millis(1);
        while !scope.try_lock()? {
            let waited = started.elapsed();
            if terms.limit.is_some_and(|limit| waited >= limit) {
                let blocker = Box::new(Blocker::at(scope.path(), resource, offer.seat));
                return Err(GuardError::Held { blocker, waited });
            }
            if terms.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                return Err(GuardError::Cancelled { resource: resource.clone() });
            }
            if look.is_due() {
                let blocker = Blocker::at(scope.path(), resource, offer.seat);
                observer.look(scope.path(), blocker, offer, terms);
            }
            if recheck.is_due() {
                self.accept(resource, offer, terms.highest_issued)?;
            }
            let left = terms.limit.map_or(pause, |limit| limit.saturating_sub(waited));
            thread::sleep(pause.min(left));
            pause = (pause * 2).min(scope::PAUSE_MAX);
        }
        Ok(())
    }
}

/// Tells a waiter whom it waits for, whenever that changes, and ends those that it may end.
struct Observer {
    told: Option<Option<u32>>,
    killer: Option<Killer>,
}

impl Observer {
    fn new(kill_older: Option<Duration>) -> Self {
        Self { told: None, killer: kill_older.map(Killer::new) }
    }

    fn look(&mut self, path: &Path, blocker: Blocker, offer: Offer, terms: &mut Terms<'_>) {
        // Between two holders, and while one ends, nobody can be named: that is only said at the beginning.
        let nameless = blocker.pid().is_none() && self.told.is_some();
        if !nameless && self.told != Some(blocker.pid()) {
            self.told = Some(blocker.pid());
            terms.tell(&Notice::Waiting(blocker.clone()));
        }
        let done = self.killer.as_mut().and_then(|killer| killer.step(path, blocker, offer));
        if let Some(notice) = done {
            terms.tell(&notice);
        }
    }
}

/// Something that is done at once and then again after each period.
struct Every {
    period: Duration,
    last: Option<Instant>,
}

impl Every {
    fn new(period: Duration) -> Self {
        Self { period, last: None }
    }

    fn is_due(&mut self) -> bool {
        let due = self.last.is_none_or(|last| last.elapsed() >= self.period);
        if due {
            self.last = Some(Instant::now());
        }
        due
    }
}
