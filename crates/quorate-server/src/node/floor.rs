//! The shortest lease that this node can keep (RULES R7).
//!
//! A renewal must be able to fail and be tried again within a lease: a lease holds four beats, each of which
//! may cost a round trip, a commit of a mark, and a late wakeup.

use quorate_core::time::Span;
use std::time::Duration;

/// How late a busy machine may wake a task, on both sides together. Measured on a loaded two-core machine,
/// where 20 ms were seen.
pub(super) const WAKEUP_LATE_MS: u64 = 20;

/// A round trip on one machine or in one rack. A farther client asks for a longer lease itself.
const ROUND_TRIP_MS: u64 = 2;

/// Never shorter than this, however fast the disk: below it a lease measures the scheduler.
const FLOOR_MIN_MS: u64 = 100;

/// The floor and how it came about, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Floor {
    /// The shortest lease.
    pub ttl: Span,
    /// Why.
    pub why: String,
}

impl Floor {
    /// What an operator set.
    pub fn set(ttl: Span) -> Self {
        Self { ttl, why: "set by the configuration".into() }
    }

    /// What the disk allows: four times a late commit with its round trip and wakeup, plus drift.
    pub fn measured(commit_p99: Duration) -> Self {
        let commit_ms = u64::try_from(commit_p99.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
        let beat = commit_ms.saturating_add(ROUND_TRIP_MS).saturating_add(WAKEUP_LATE_MS);
        let ms = beat.saturating_mul(4).clamp(FLOOR_MIN_MS, 60_000);
        let why = format!(
            "4 beats, each a commit of {commit_ms} ms (p99 at start), a round trip of {ROUND_TRIP_MS} ms \
             and a wakeup {WAKEUP_LATE_MS} ms late; at least {FLOOR_MIN_MS} ms"
        );
        Self { ttl: Span::from_millis(ms), why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r7_a_slower_disk_raises_the_floor() {
        assert_eq!(Floor::measured(Duration::from_micros(400)).ttl, Span::from_millis(100));
        assert_eq!(Floor::measured(Duration::from_millis(50)).ttl, Span::from_millis(288));
        assert_eq!(Floor::measured(Duration::from_secs(90)).ttl, Span::from_secs(60));
    }
}
