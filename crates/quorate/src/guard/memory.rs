//! A guard in this process's memory, **for tests only**: it forgets its floors when the process ends, and
//! knows nothing of other processes (RULES R31).

use super::report::now;
use super::{
    Accepted, Blocker, Floor, Guard, GuardError, Hold, Holder, Mark, Name, Notice, Offer, Permit, Refusals,
    RefusedOffer, Report, Reset, ResetLine, ResourceReport, SeatNo, Terms, Token,
};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a waiter looks whether it was cancelled or has become the older one.
const LOOK: Duration = Duration::from_millis(20);

/// A guard for tests. Clones share one memory. Every resource is keyed by seat.
#[derive(Clone, Debug, Default)]
pub struct MemoryGuard {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    memory: Mutex<Memory>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct Memory {
    floors: BTreeMap<Name, Floor>,
    refusals: BTreeMap<Name, Refusals>,
    inside: BTreeMap<(Name, SeatNo), Holder>,
    resets: Vec<ResetLine>,
}

/// Somebody is inside until this is dropped.
#[derive(Debug)]
pub(super) struct Inside {
    shared: Arc<Shared>,
    scope: (Name, SeatNo),
}

impl MemoryGuard {
    /// A guard without floors.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Shared {
    /// A panic of another holder leaves the memory whole: every change is one assignment.
    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn accept(
        &mut self,
        resource: &Name,
        offer: Offer,
        highest_issued: Option<Token>,
    ) -> Result<Accepted, GuardError> {
        let mut floor = self.floors.get(resource).cloned().unwrap_or_default();
        let decided =
            offer.within(highest_issued.unwrap_or(Token(u64::MAX))).and_then(|offer| floor.admit(offer));
        match decided {
            Ok(accepted) => {
                floor.raise(accepted, now());
                self.floors.insert(resource.clone(), floor);
                Ok(accepted)
            }
            Err(refusal) => {
                let refusals = self.refusals.entry(resource.clone()).or_default();
                refusals.push(RefusedOffer {
                    at: now(),
                    seat: offer.seat,
                    token: offer.token,
                    highest: refusal.highest(),
                    reason: refusal.to_string(),
                    pid: std::process::id(),
                });
                Err(GuardError::Refused { resource: resource.clone(), refusal })
            }
        }
    }

    fn blocker(&self, scope: &(Name, SeatNo)) -> Blocker {
        Blocker {
            resource: scope.0.clone(),
            seat: scope.1,
            holder: self.inside.get(scope).cloned(),
            pids: vec![std::process::id()],
        }
    }
}

impl Guard for MemoryGuard {
    fn enter_on(&self, resource: &Name, offer: Offer, mut terms: Terms<'_>) -> Result<Permit, GuardError> {
        let started = Instant::now();
        let scope = (resource.clone(), offer.seat);
        let mut memory = self.shared.lock();
        let mut told = false;
        let accepted = loop {
            let accepted = memory.accept(resource, offer, terms.highest_issued)?;
            if !memory.inside.contains_key(&scope) {
                break accepted;
            }
            let blocker = memory.blocker(&scope);
            if terms.limit.is_some_and(|limit| started.elapsed() >= limit) {
                return Err(GuardError::Held { blocker: Box::new(blocker), waited: started.elapsed() });
            }
            if terms.cancel.is_some_and(|cancel| cancel.load(Ordering::Relaxed)) {
                return Err(GuardError::Cancelled { resource: resource.clone() });
            }
            if !told {
                told = true;
                terms.tell(&Notice::Waiting(blocker));
            }
            let waiting = self.shared.left.wait_timeout(memory, LOOK);
            memory = waiting.unwrap_or_else(PoisonError::into_inner).0;
        };
        memory.inside.insert(scope.clone(), Holder::this_process(resource, offer));
        Ok(Permit {
            resource: resource.clone(),
            accepted,
            hold: Hold::Memory(Inside { shared: Arc::clone(&self.shared), scope }),
        })
    }

    fn admit(
        &self,
        resource: &Name,
        offer: Offer,
        highest_issued: Option<Token>,
    ) -> Result<Accepted, GuardError> {
        self.shared.lock().accept(resource, offer, highest_issued)
    }

    fn show(&self) -> Result<Report, GuardError> {
        let memory = self.shared.lock();
        let mut names: Vec<Name> = memory.floors.keys().cloned().collect();
        names.extend(memory.refusals.keys().cloned());
        names.sort_unstable();
        names.dedup();
        let resources = names.into_iter().map(|resource| ResourceReport {
            floor: memory.floors.get(&resource).cloned().unwrap_or_default(),
            refusals: memory.refusals.get(&resource).cloned().unwrap_or_default(),
            holders: memory.inside.values().filter(|holder| holder.resource == resource).cloned().collect(),
            resource,
        });
        Ok(Report { resources: resources.collect(), resets: memory.resets.clone(), base: Mark::default() })
    }

    fn reset(&self, resource: &Name, reset: Reset) -> Result<Floor, GuardError> {
        let mut memory = self.shared.lock();
        let old = memory.floors.get(resource).cloned().unwrap_or_default();
        let new = reset.apply(&old);
        memory.floors.insert(resource.clone(), new.clone());
        memory.resets.push(ResetLine {
            at: now(),
            resource: Some(resource.clone()),
            from: old.highest(),
            to: new.highest(),
            why: reset.why,
            user: rustix::process::getuid().as_raw(),
            pid: std::process::id(),
        });
        Ok(new)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.shared.lock().inside.remove(&self.scope);
        self.shared.left.notify_all();
    }
}
