//! Whether the log may be trusted, and the first reason why not.
//!
//! A failed write or sync is final: what the disk holds is not known any more, so nothing later may
//! be acknowledged (RULES R28). The handle knows no runtime and no thread: ask it, or await it.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The health of one store. Clones share it.
#[derive(Clone, Default)]
pub struct Health {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    why: Option<Arc<str>>,
    wakers: BTreeMap<u64, Waker>,
    next_waiter: u64,
}

impl Health {
    /// Why the log may not be trusted any more: a sentence. None while all is well.
    pub fn why(&self) -> Option<Arc<str>> {
        self.lock().why.clone()
    }

    /// Resolves with the reason once there is one; never while all is well.
    pub fn failed(&self) -> Failed {
        let mut shared = self.lock();
        shared.next_waiter += 1;
        Failed { health: self.clone(), waiter: shared.next_waiter }
    }

    /// Records why the log may not be trusted. The first reason stays.
    pub(super) fn fail(&self, why: impl Into<Arc<str>>) {
        let wakers = {
            let mut shared = self.lock();
            if shared.why.is_some() {
                return;
            }
            shared.why = Some(why.into());
            std::mem::take(&mut shared.wakers)
        };
        for waker in wakers.into_values() {
            waker.wake();
        }
    }

    /// No code that holds the lock can panic, so a poisoned one is whole.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("why", &self.why()).finish()
    }
}

/// Waits for the end of a store's health.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Failed {
    health: Health,
    waiter: u64,
}

impl Future for Failed {
    type Output = Arc<str>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Arc<str>> {
        let mut shared = self.health.lock();
        if let Some(why) = &shared.why {
            return Poll::Ready(why.clone());
        }
        shared.wakers.insert(self.waiter, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Failed {
    fn drop(&mut self) {
        self.health.lock().wakers.remove(&self.waiter);
    }
}

/// Fails the health if the thread that holds it unwinds: a panic in the middle of a write leaves
/// nothing that may be trusted.
pub(super) struct PanicGuard {
    pub(super) health: Health,
    pub(super) what: &'static str,
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.health
                .fail(format!("{} panicked: this node stops, and its state is not used again", self.what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_first_reason_stays_and_wakes_everybody_once() {
        let health = Health::default();
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(count.clone());
        let mut context = Context::from_waker(&waker);
        let mut first = Box::pin(health.failed());
        let mut second = Box::pin(health.failed());
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending(), "polled again, it keeps one waker");
        health.fail("a sync failed");
        health.fail("a later failure");
        assert_eq!(count.0.load(Ordering::Relaxed), 2);
        assert_eq!(first.as_mut().poll(&mut context), Poll::Ready("a sync failed".into()));
        assert_eq!(health.why().as_deref(), Some("a sync failed"));
    }

    #[test]
    fn a_dropped_waiter_leaves_no_waker_behind() {
        let health = Health::default();
        let mut waiter = Box::pin(health.failed());
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiter.as_mut().poll(&mut context).is_pending());
        drop(waiter);
        assert!(health.lock().wakers.is_empty());
    }

    #[test]
    fn a_panic_under_guard_is_a_failure() {
        let health = Health::default();
        let guarded = health.clone();
        let result = std::thread::spawn(move || {
            let _guard = PanicGuard { health: guarded, what: "the writer" };
            panic!("on purpose");
        })
        .join();
        assert!(result.is_err());
        assert!(health.why().is_some_and(|why| why.starts_with("the writer panicked")));
    }
}
