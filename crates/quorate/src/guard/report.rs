//! What a guard remembers, for people and for `quorate guard show`.

use super::{Floor, Holder, Mark, Name, SeatNo, Token};
use quorate_core::time::Wall;
use std::collections::VecDeque;

/// How many refusals of one resource are kept in full; the count goes on. Enough to see who keeps coming
/// and since when, small enough to be rewritten at each refusal.
pub(super) const REFUSALS_MAX: usize = 16;

/// Everything that a guard remembers at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// One line for each resource that has a floor or was refused something, in order of name.
    pub resources: Vec<ResourceReport>,
    /// The resets by operators, oldest first; the last 256 are kept.
    pub resets: Vec<ResetLine>,
    /// The floor of every resource that has none of its own.
    pub base: Mark,
}

impl Report {
    /// The greatest token over all resources. A restored service has to begin above it (RULES R30).
    pub fn highest(&self) -> Token {
        let floors = self.resources.iter().map(|resource| resource.floor.highest());
        floors.fold(self.base.token, Token::max)
    }
}

/// What a guard remembers of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceReport {
    /// Its name.
    pub resource: Name,
    /// The greatest token of each seat.
    pub floor: Floor,
    /// Who was refused.
    pub refusals: Refusals,
    /// Who is inside, one for each seat that is taken.
    pub holders: Vec<Holder>,
}

/// The offers that a resource refused. It is a help for people, not a part of the fence: it is not synced,
/// and a power cut may take the last ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// How many there were.
    pub count: u64,
    /// The last 16, oldest first.
    pub last: VecDeque<RefusedOffer>,
}

/// One offer that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedOffer {
    /// When.
    pub at: Wall,
    /// For which seat.
    pub seat: SeatNo,
    /// The token that was offered.
    pub token: Token,
    /// The greatest that was accepted, if the reason has to do with it.
    pub highest: Option<Token>,
    /// The reason, as a sentence.
    pub reason: String,
    /// Who offered it: a process id on the machine of the guard.
    pub pid: u32,
}

/// The audit line of one reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetLine {
    /// When.
    pub at: Wall,
    /// What was reset; None if all were.
    pub resource: Option<Name>,
    /// The greatest token before.
    pub from: Token,
    /// The greatest token after.
    pub to: Token,
    /// The operator's reason.
    pub why: String,
    /// The operator's user id.
    pub user: u32,
    /// The process that did it.
    pub pid: u32,
}

impl Refusals {
    pub(super) fn push(&mut self, refused: RefusedOffer) {
        self.count += 1;
        if self.last.len() == REFUSALS_MAX {
            self.last.pop_front();
        }
        self.last.push_back(refused);
    }
}

/// A wall time as RFC 3339 text in UTC, with milliseconds.
pub fn rfc3339(at: Wall) -> String {
    i64::try_from(at.0)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map_or_else(|| format!("{} ms after 1970", at.0), |time| format!("{time:.3}"))
}

/// The wall clock, a label for people.
pub(super) fn now() -> Wall {
    Wall(u64::try_from(crate::clock::wall_ms()).unwrap_or(0))
}
