//! The clock that a client's own deadline is counted on.
//!
//! **Problem.** A lease goes on while a laptop sleeps; a timer of the usual monotonic clock does not. **Rule.**
//! Deadlines are readings of `CLOCK_BOOTTIME`, which counts suspend, and every question about authority reads it
//! anew (RULES R1, R9). **When it fails.** A hypervisor's pause stops every clock of the guest: there only the
//! guard at the resource protects.

use quorate_core::time::Mono;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

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
        let now = rustix::time::clock_gettime(ClockId::Boottime);
        Mono(us(now) + self.skipped_us.load(Ordering::Acquire))
    }

    /// Jumps ahead, as if the machine had slept so long: timers that run do not notice, readings do.
    /// For tests.
    pub fn skip(&self, by: Duration) {
        self.skipped_us.fetch_add(by.as_micros() as u64, Ordering::AcqRel);
    }
}

/// How often it is looked whether the machine slept. The timer runs out during the sleep, so what is noticed is
/// noticed at once when the machine is back; a sleep that is shorter than this may be noticed so much later.
const LOOK_EVERY_S: i64 = 1;

/// The least sleep that counts. A false alarm only costs a look at the deadlines.
const SLEEP_MIN_US: u64 = 10_000;

/// Tells at each look whether the machine has slept since the last one, until `tell` answers false. The timers of
/// the runtime stand still in a suspend, so without this a deadline would be noticed late by what they had left.
pub(crate) async fn watch_suspends(clock: Clock, tell: impl Fn(bool) -> bool) -> std::io::Result<()> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
    let every = Timespec { tv_sec: LOOK_EVERY_S, tv_nsec: 0 };
    let every = Itimerspec { it_interval: every, it_value: every };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &every)?;
    // A timer is read like a pipe: eight bytes each time it has run out, and nothing before.
    let mut timer = pipe::Receiver::from_owned_fd_unchecked(timer)?;
    let mut slept = slept_us(&clock);
    loop {
        timer.read_exact(&mut [0; 8]).await?;
        let before = std::mem::replace(&mut slept, slept_us(&clock));
        if !tell(slept > before + SLEEP_MIN_US) {
            return Ok(());
        }
    }
}

/// How much further this clock has come than the one that timers run on.
fn slept_us(clock: &Clock) -> u64 {
    let awake = us(rustix::time::clock_gettime(ClockId::Monotonic));
    clock.now().0.saturating_sub(awake)
}

fn us(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
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
