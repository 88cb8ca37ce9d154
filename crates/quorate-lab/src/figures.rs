//! The figures of the literature, produced by running the protocols: published, measured, and the formula.
//!
//! **Rule.** A measured value is counted in a recording of a run, never computed from the formula. Counting is
//! as published: every message to another process counts once, none to oneself does.
//!
//! `quorate lab figures` prints these rows, and a row that differs makes it fail.

mod election;
mod mutex;

pub use mutex::{Load, Measured, PROTOCOLS as MUTEX_PROTOCOLS, measure};

use std::fmt::Display;

/// One figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Which protocols it is about: `mutex` or `election`.
    pub family: &'static str,
    /// What is counted.
    pub what: String,
    /// What the literature says.
    pub published: String,
    /// What a run gave.
    pub measured: String,
    /// How the literature derives it.
    pub formula: String,
    /// Whether the run gave what is published.
    pub equal: bool,
}

impl Row {
    /// A figure that must be exactly as published.
    fn exact(
        family: &'static str,
        what: impl Into<String>,
        published: impl Display,
        measured: impl Display,
        formula: impl Into<String>,
    ) -> Self {
        let (published, measured) = (published.to_string(), measured.to_string());
        let equal = published == measured;
        Self { family, what: what.into(), published, measured, formula: formula.into(), equal }
    }
}

/// How many random rings stand for the mean of Chang-Roberts.
pub const RINGS: u64 = 10_000;

/// All figures, those of mutual exclusion first. `rings` says over how many random rings means are taken.
pub fn all(rings: u64) -> Vec<Row> {
    let mut rows = mutex::rows();
    rows.extend(election::rows(rings));
    rows
}

/// Those of elections alone.
pub fn elections(rings: u64) -> Vec<Row> {
    election::rows(rings)
}
