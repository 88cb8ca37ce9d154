//! Why a guard let nobody in. Each text says what happened, what is still protected and what to do.

use super::{Blocker, FenceRefusal, Name, SeatNo, rfc3339};
use quorate_core::time::Span;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why an entry, a check or a look at a guard failed. In every case nothing was entered, and what the guard
/// protects was not touched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuardError {
    /// The resource does not admit this token. Whoever offered it has lost its seat, or never had it: it
    /// must stop, and may only come back with a new token.
    #[error("{}", Sentence(.refusal, .resource))]
    Refused {
        /// The resource.
        resource: Name,
        /// The reason, which names the highest token.
        refusal: FenceRefusal,
    },

    /// The resource is guarded as a whole, and the token is for a seat beyond the first (RULES R12). Two
    /// seats hold valid tokens at once, so they would take turns in overwriting each other.
    #[error(
        "{resource} is guarded as a whole, but the token is for seat {seat} of a group with several seats: \
         guard one part of the resource for each seat, or use a group with one seat"
    )]
    SeatNotKeyed {
        /// The resource.
        resource: Name,
        /// The seat of the offer.
        seat: SeatNo,
    },

    /// Somebody else is inside and did not leave in time. The floor has been raised: if this token is the
    /// greater one, the other can end its write but not enter again. Try again, or end the other.
    #[error("{blocker}, and did not leave within {}; no older token can enter meanwhile", span(waited))]
    Held {
        /// Who is inside.
        blocker: Box<Blocker>,
        /// How long this one waited.
        waited: Duration,
    },

    /// The wait was given up by the caller. The floor has been raised.
    #[error("the wait for {resource} was given up; no older token can enter")]
    Cancelled {
        /// The resource.
        resource: Name,
    },

    /// The state is gone, but its lock file says that there was one (RULES R34). Admitting anybody now
    /// would forget every floor, so nothing is admitted.
    #[error(
        "the guard's state {} is missing, although its lock file knows of {generations} earlier writes: \
         nothing is admitted until it is put back, or founded again with a floor \
         (`quorate guard reset --all --floor TOKEN`, with the last token that the cluster gave out)",
        path.display()
    )]
    StateMissing {
        /// Where it should be.
        path: PathBuf,
        /// How many times it had been written.
        generations: u64,
    },

    /// The state and the lock file beside it do not belong together: one of them was copied, moved or put
    /// back from a backup (RULES R34). Two copies would each admit their own holder, so nothing is admitted.
    #[error(
        "the guard's state {} was copied or moved: {what}. Nothing is admitted here, and the original, if it \
         still exists, goes on protecting what it protects. Use that one, or take this copy over with \
         `quorate guard reset --all`",
        path.display()
    )]
    StateCopied {
        /// The state in question.
        path: PathBuf,
        /// By what it shows.
        what: String,
    },

    /// The state is an older one than was last written here, so some floors are too low (RULES R34).
    /// Nothing is admitted.
    #[error(
        "the guard's state {} is an old one put back: it is write {found}, but write {known} was made here. \
         Its floors may be too low, so nothing is admitted until the newer one is put back, or a floor is \
         given with `quorate guard reset --all --floor TOKEN`",
        path.display()
    )]
    StateOutdated {
        /// The state in question.
        path: PathBuf,
        /// The number of writes that it knows of.
        found: u64,
        /// The number of writes that were made.
        known: u64,
    },

    /// The state cannot be understood: its checksum or its form is wrong (RULES R34). Nothing is admitted.
    #[error(
        "the guard's state {} is damaged ({what}): nothing is admitted until an undamaged one is put back, \
         or it is founded again with a floor (`quorate guard reset --all --floor TOKEN`, with the last token \
         that the cluster gave out)",
        path.display()
    )]
    StateCorrupt {
        /// The damaged file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },

    /// The state was written by a newer program. It is intact, and this program must not touch it.
    #[error(
        "the guard's state {} has version {found}, and this program knows versions up to {known}: nothing is \
         admitted and nothing was changed. Use the newer program",
        path.display()
    )]
    StateNewer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// The newest version known here.
        known: u32,
    },

    /// Another process has had the state's short lock for long; it was probably stopped in the middle.
    /// Nothing is admitted until it goes on or ends. Its death harms nothing.
    #[error(
        "another process{} has had the guard's state {} locked for {}, which takes milliseconds: \
         let it go on, or end it",
        Pids(.pids),
        path.display(),
        span(waited)
    )]
    StateBusy {
        /// The state.
        path: PathBuf,
        /// How long this one waited.
        waited: Duration,
        /// Who has it locked, as far as the system tells.
        pids: Vec<u32>,
    },

    /// The guard keeps floors for as many resources as it can ([`RESOURCES_MAX`](super::RESOURCES_MAX)
    /// of them) and this is one more. The others stay protected. Use another state file for it.
    #[error(
        "the guard's state {} holds the floors of {max} resources, which is its limit: the new resource \
         {resource} needs another state file",
        path.display()
    )]
    Full {
        /// The state.
        path: PathBuf,
        /// The resource that found no place.
        resource: Name,
        /// The limit.
        max: usize,
    },

    /// The system refused something. Nothing is admitted. If it happened while the state was written, the
    /// floor is either the old or the new one, never less.
    #[error("cannot {doing} {}; nothing was admitted: {source}", path.display())]
    Io {
        /// What was attempted.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

impl GuardError {
    /// Whether the resource refused this token, for good. Everything else may be different next time.
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::SeatNotKeyed { .. })
    }

    pub(super) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }
}

/// The refusal as a sentence that names the resource and the time.
struct Sentence<'a>(&'a FenceRefusal, &'a Name);

impl fmt::Display for Sentence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(FenceRefusal::Older { offered, highest, accepted_at }, resource) => write!(
                f,
                "token {offered} is older than {highest}, which {resource} accepted at {}",
                rfc3339(*accepted_at)
            ),
            Self(refusal, resource) => write!(f, "{resource}: {refusal}"),
        }
    }
}

fn span(duration: &Duration) -> Span {
    Span::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

struct Pids<'a>(&'a [u32]);

impl fmt::Display for Pids<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => Ok(()),
            pids => write!(f, " (pid {})", super::scope::list(pids)),
        }
    }
}
