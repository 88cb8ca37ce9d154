//! Lines that a test leaves out, one at a time, to see that the search finds what each of them is for.
//!
//! A protocol is sound unless it was built by its `with_flaw`. Each time a run comes to the place where the
//! sound rule and the flawed one part, the flaw is counted, so that a search that finds nothing can be told
//! from one that never came there.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

macro_rules! flaws {
    ($($(#[$doc:meta])* $flaw:ident = $name:literal,)*) => {
        /// What is left out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Flaw {
            $($(#[$doc])* $flaw,)*
        }

        impl Flaw {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$flaw,)*];

            /// Its name, as a script says it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$flaw => $name,)*
                }
            }
        }
    };
}

flaws! {
    /// Bully: whoever was answered waits for the announcement for ever.
    NoSecondTimeout = "no-second-timeout",
    /// Bully: an announcement that may be old is followed without asking.
    SuspectFollowed = "suspect-followed",
    /// Ring: what was passed to a process that has stopped is not passed to the one after it.
    NotPassedAgain = "not-passed-again",
    /// Ring: only its starter closes a list.
    StarterCloses = "starter-closes",
    /// Ring: a process follows the last leader that it was told of, not the greatest.
    LastFollowed = "last-followed",
    /// Chang-Roberts: an id that its process sent in a former life counts as its own.
    FormerLifeWins = "former-life-wins",
    /// Chang-Roberts: a process that waits for the id of one that has stopped goes on waiting.
    WaitsForStopped = "waits-for-stopped",
    /// Term: a vote is answered before it is durable.
    VoteNotDurable = "vote-not-durable",
    /// Term: a second vote is given in a term.
    SecondVote = "second-vote",
    /// Term: a vote of another election counts.
    VoteOfAnother = "vote-of-another",
    /// Term: a candidate with an older log gets a vote.
    OldLogVote = "old-log-vote",
    /// Term: half of the votes are enough.
    HalfIsEnough = "half-is-enough",
    /// Term: the word of a leader of an older term is followed.
    OlderTermFollowed = "older-term-followed",
    /// Term: a leader's lease runs from when the answers came.
    LeaseFromAnswer = "lease-from-answer",
    /// Term: who restarts votes at once, whatever it promised to a leader before.
    PromiseForgotten = "promise-forgotten",
}

static REACHED: [AtomicU64; Flaw::ALL.len()] = [const { AtomicU64::new(0) }; Flaw::ALL.len()];

impl Flaw {
    /// How often any run of this program came to the place.
    pub fn reached(self) -> u64 {
        REACHED[self as usize].load(Ordering::Relaxed)
    }

    /// Whether it is the one that is planted. Asked only where it makes a difference, and counted.
    pub(super) fn is(self, planted: Option<Self>) -> bool {
        let here = planted == Some(self);
        if here {
            REACHED[self as usize].fetch_add(1, Ordering::Relaxed);
        }
        here
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
