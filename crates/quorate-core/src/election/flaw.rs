//! What can be left out of the protocols of elections, one line at a time.

use crate::flaw::flaws;

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
