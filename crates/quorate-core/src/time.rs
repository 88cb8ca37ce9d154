//! Time as plain integers. The core reads no clock: a reading comes in with each input.

use core::fmt;
use core::ops::{Add, Sub};
use serde::{Deserialize, Serialize};

/// A length of time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Span(u64);

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// So many milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms)
    }

    /// So many seconds.
    pub const fn from_secs(s: u64) -> Self {
        Self(s * 1_000)
    }

    /// The length in milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The length as the standard library's type.
    pub const fn to_std(self) -> core::time::Duration {
        core::time::Duration::from_millis(self.0)
    }

    /// What is left after taking `other` away, never below zero.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ms if ms % 60_000 == 0 && ms > 0 => write!(f, "{} min", ms / 60_000),
            ms if ms % 1_000 == 0 => write!(f, "{} s", ms / 1_000),
            ms if ms < 1_000 => write!(f, "{ms} ms"),
            ms => write!(f, "{}.{:02} s", ms / 1_000, ms % 1_000 / 10),
        }
    }
}

/// A reading of one machine's monotonic clock, in microseconds since an instant of its own.
/// Readings of two machines are never compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Mono(pub u64);

impl Mono {
    /// The time since `earlier`, zero if that is later, in whole milliseconds rounded down.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0) / 1_000)
    }
}

impl Add<Span> for Mono {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0.saturating_mul(1_000)))
    }
}

impl Sub<Span> for Mono {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0.saturating_mul(1_000)))
    }
}

/// A reading of a wall clock, in milliseconds since 1970. It is a label for people: nothing is
/// decided by it (RULES R1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Wall(pub u64);
