//! What the store has done and how long the disk took for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How many commits the percentiles look back on. At a thousand commits a second it is the last
/// second; an idle server still shows its last busy time.
pub const WINDOW: usize = 1_024;

/// What a store has done since it was opened, as read at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Durable transactions, each with one sync.
    pub commits: u64,
    /// Log entries made durable.
    pub entries: u64,
    /// Bytes of log values, ballots and snapshots made durable, without what the store adds.
    pub bytes: u64,
    /// Operations that wait for the next transaction.
    pub queued: u64,
    /// How long the last transaction took.
    pub last_commit: Duration,
    /// The median over the last [`WINDOW`] transactions; zero before the first.
    pub commit_p50: Duration,
    /// The 99th percentile over the last [`WINDOW`] transactions; zero before the first. The floor of
    /// lease lengths is derived from it (RULES R7).
    pub commit_p99: Duration,
}

#[derive(Default)]
pub(super) struct Counters {
    commits: AtomicU64,
    entries: AtomicU64,
    bytes: AtomicU64,
    pub(super) queued: AtomicU64,
    times: Mutex<Times>,
}

/// The last commit times in microseconds, oldest overwritten first.
#[derive(Default)]
struct Times {
    micros: Vec<u32>,
    next: usize,
    last: Duration,
}

impl Counters {
    pub(super) fn committed(&self, entries: u64, bytes: u64, took: Duration) {
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.entries.fetch_add(entries, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        times.last = took;
        if times.micros.len() < WINDOW {
            times.micros.push(micros);
        } else {
            let next = times.next;
            times.micros[next] = micros;
        }
        times.next = (times.next + 1) % WINDOW;
    }

    pub(super) fn read(&self) -> Counts {
        let (mut micros, last_commit) = {
            let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
            (times.micros.clone(), times.last)
        };
        micros.sort_unstable();
        Counts {
            commits: self.commits.load(Ordering::Relaxed),
            entries: self.entries.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            queued: self.queued.load(Ordering::Relaxed),
            last_commit,
            commit_p50: percentile(&micros, 50),
            commit_p99: percentile(&micros, 99),
        }
    }
}

/// The smallest value that at least `percent` of all are not above.
fn percentile(sorted_micros: &[u32], percent: usize) -> Duration {
    let rank = (sorted_micros.len() * percent).div_ceil(100);
    let micros = rank.checked_sub(1).and_then(|at| sorted_micros.get(at)).copied().unwrap_or(0);
    Duration::from_micros(u64::from(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_look_at_the_window_only() {
        let counters = Counters::default();
        assert_eq!(counters.read().commit_p99, Duration::ZERO);
        for _ in 0..WINDOW {
            counters.committed(1, 10, Duration::from_secs(9));
        }
        for micros in 1..=WINDOW as u64 {
            counters.committed(2, 20, Duration::from_micros(micros));
        }
        let counts = counters.read();
        assert_eq!(counts.commits, 2 * WINDOW as u64);
        assert_eq!(counts.entries, 3 * WINDOW as u64);
        assert_eq!(counts.bytes, 30 * WINDOW as u64);
        assert_eq!(counts.commit_p50, Duration::from_micros(512));
        assert_eq!(counts.commit_p99, Duration::from_micros(1_014));
        assert_eq!(counts.last_commit, Duration::from_micros(1_024));
    }
}
