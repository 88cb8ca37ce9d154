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
    /// Central: the lease of the coordinator ends before the holder's own deadline.
    EarlyGrant = "early-grant",
    /// Central: a release frees the grant, whoever's it is.
    ReleaseOfAnother = "release-of-another",
    /// Central: the coordinator grants before the grant is durable.
    GrantNotDurable = "grant-not-durable",
    /// Ricart-Agrawala: who waits does not ask a process again that has restarted.
    NotAskedAgain = "not-asked-again",
    /// Ricart-Agrawala: a reply counts whichever request and ask it answers.
    ReplyOfAnotherLife = "reply-of-another-life",
    /// Ricart-Agrawala as Carvalho and Roucairol have it: a permission is kept until it is given away. The
    /// request that must follow when it is given away while waiting is left out.
    PermissionKept = "permission-kept",
    /// Maekawa: a voter never asks its vote back.
    NoInquire = "no-inquire",
    /// Maekawa: a waiter that was first in the queue is not told when another one overtakes it.
    OvertakenNotTold = "overtaken-not-told",
    /// Maekawa: a voter answers before its vote is durable.
    VoteNotDurable = "vote-not-durable",
    /// Maekawa: an INQUIRE about a request that is over is honoured, and a YIELD moves any vote.
    LateInquire = "late-inquire",
    /// Token ring: who does not hear of the receiver passes the same token to the next one.
    TokenTakenBack = "token-taken-back",
    /// Token ring: a new token is made without a majority.
    NoMajority = "no-majority",
    /// Token ring: a token of an older generation is received.
    OlderGeneration = "older-generation",
    /// Token ring: who restarts takes part in a generation that it was in before.
    SameGeneration = "same-generation",
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
