//! What can be left out of the protocols of mutual exclusion, one line at a time.

use crate::flaw::flaws;

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
