//! The clock that a client's own deadline is counted on.
//!
//! **Problem.** A lease goes on while a laptop sleeps; a timer of the usual monotonic clock does not. **Rule.**
//! Deadlines are readings of `CLOCK_BOOTTIME`, which counts suspend, and every question about authority reads it
//! anew (RULES R1, R9). **When it fails.** A hypervisor's pause stops every clock of the guest: there only the
//! guard at the resource protects.

use quorate_core::time::Mono;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `CLOCK_BOOTTIME`, and for tests a way to jump ahead as a suspend does. Clones share the jumps.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    skipped_us: Arc<AtomicU64>,
}

impl Clock {
    /// The machine's clock as it is.
    pub fn new() -> Self {
        Self::default()
    }

    /// The present reading, in microseconds.
    pub fn now(&self) -> Mono {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let us = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1_000;
        Mono(us + self.skipped_us.load(Ordering::Acquire))
    }

    /// Jumps ahead, as if the machine had slept so long: timers that run do not notice, readings do.
    /// For tests.
    pub fn skip(&self, by: Duration) {
        self.skipped_us.fetch_add(by.as_micros() as u64, Ordering::AcqRel);
    }
}

/// How long until `later`; zero if it has passed. Exact to the microsecond, where `Mono::since` rounds down.
pub(crate) fn until(now: Mono, later: Mono) -> Duration {
    Duration::from_micros(later.0.saturating_sub(now.0))
}

/// The wall clock in milliseconds since 1970: a label for people, nothing is decided by it.
#[allow(clippy::disallowed_methods)] // The one place of this crate that reads it.
pub(crate) fn wall_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_never_go_back_and_a_skip_moves_all_clones() {
        let clock = Clock::new();
        let other = clock.clone();
        let before = clock.now();
        other.skip(Duration::from_secs(60));
        let after = clock.now();
        assert!(until(before, after) >= Duration::from_secs(60));
        assert_eq!(until(after, before), Duration::ZERO);
        assert!(clock.now() >= after);
    }
}
