//! What happened, as seen from outside: each call with its instants and its outcome, each grant with the time
//! that its holder believed in it. And what must hold of any such history.
//!
//! | check | because |
//! |---|---|
//! | tokens grow with time over all names and lives | RULES R10, L1 |
//! | of one name nobody holds while another does | the first claim of RULES |
//! | no entry and no token was given out twice | R21 |
//! | as many entries and sessions were given out as were answered or given up | R21: nothing twice |

use quorate::clock::Clock;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard};

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asked {
    Open,
    End,
    Join,
    Leave,
    Acquire,
    TryAcquire,
    TimedAcquire,
    Release,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was done.
    Done,
    /// It was not done; why.
    NotDone(String),
    /// It may have been done; why.
    Unknown(String),
}

/// One call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) client: String,
    pub(crate) asked: Asked,
    pub(crate) name: String,
    pub(crate) invoked: u64,
    pub(crate) answered: u64,
    pub(crate) outcome: Outcome,
}

/// One grant, as its holder saw it.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) client: String,
    /// None where several may hold at once.
    pub(crate) exclusive: Option<String>,
    pub(crate) entry: u64,
    pub(crate) token: u64,
    /// When it was asked for: the grant is not older.
    pub(crate) invoked: u64,
    /// When the holder had it in hand.
    pub(crate) held_from: u64,
    /// When the holder last found that it holds it, before it gave it up.
    pub(crate) held_to: u64,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, asked, name, invoked, answered, outcome } = self;
        write!(f, "{client}: {asked:?} {name} at {invoked} us, {outcome:?} at {answered} us")
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, exclusive, entry, token, invoked, held_from, held_to } = self;
        let name = exclusive.as_deref().unwrap_or("one of several seats");
        write!(
            f,
            "{client}: {name} (entry {entry}, token {token}), asked for at {invoked} us, held {held_from} to \
             {held_to} us"
        )
    }
}

/// A place in a queue, as client and service may be asked for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) entry: u64,
    pub(crate) session: u64,
    pub(crate) name: String,
    pub(crate) token: Option<u64>,
}

/// The history of a run. All clients write into it.
#[derive(Debug, Default)]
pub(crate) struct History {
    all: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    calls: Vec<Call>,
    grants: Vec<Grant>,
    sessions: BTreeSet<u64>,
    entries: BTreeSet<u64>,
    given_up: u64,
    places: BTreeMap<u64, Place>,
    faults: Vec<String>,
}

/// The present reading of the clock, in microseconds.
pub(crate) fn now_us() -> u64 {
    Clock::new().now().0
}

impl History {
    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().expect("nobody panics while it is held")
    }

    /// A call was answered, one way or the other.
    pub(crate) fn call(&self, client: &str, asked: Asked, name: &str, invoked: u64, outcome: Outcome) {
        let (client, name, answered) = (client.to_owned(), name.to_owned(), now_us());
        self.all().calls.push(Call { client, asked, name, invoked, answered, outcome });
    }

    /// A session was opened.
    pub(crate) fn opened(&self, session: u64) {
        if !self.all().sessions.insert(session) {
            self.fault(format!("session {session} was given out twice"));
        }
    }

    /// A place was given.
    pub(crate) fn entered(&self, entry: u64) {
        if !self.all().entries.insert(entry) {
            self.fault(format!("entry {entry} was given out twice"));
        }
    }

    /// A place was asked for and given up without a word of it: it was given once all the same.
    pub(crate) fn gave_up(&self) {
        self.all().given_up += 1;
    }

    /// A grant is over for its holder.
    pub(crate) fn granted(&self, grant: Grant) {
        self.all().grants.push(grant);
    }

    /// A client says what it has while it rests.
    pub(crate) fn rests_with(&self, places: Vec<Place>) {
        self.all().places.extend(places.into_iter().map(|place| (place.entry, place)));
    }

    /// Nobody rests any more.
    pub(crate) fn forget_places(&self) {
        self.all().places.clear();
    }

    /// What all clients say that they have.
    pub(crate) fn places(&self) -> BTreeSet<Place> {
        self.all().places.values().cloned().collect()
    }

    /// Something happened that must not.
    pub(crate) fn fault(&self, what: String) {
        self.all().faults.push(what);
    }

    /// How many calls were answered so far.
    pub(crate) fn len(&self) -> usize {
        self.all().calls.len()
    }

    /// How many calls were asked before an instant and answered *done* after it.
    pub(crate) fn across(&self, instant: u64) -> usize {
        let across = |call: &&Call| call.invoked < instant && instant < call.answered;
        self.all().calls.iter().filter(across).filter(|call| call.outcome == Outcome::Done).count()
    }

    /// How many calls the clients with such a name have made.
    pub(crate) fn by(&self, prefix: &str) -> usize {
        self.all().calls.iter().filter(|call| call.client.starts_with(prefix)).count()
    }

    /// How many sessions and entries the service must have given out.
    pub(crate) fn given_out(&self) -> (u64, u64) {
        let all = self.all();
        (all.sessions.len() as u64, all.entries.len() as u64 + all.given_up)
    }

    /// Holds every rule that needs nothing but the history.
    pub(crate) fn check(&self) {
        let all = self.all();
        assert!(all.faults.is_empty(), "{:#?}", all.faults);
        let unknown = all.calls.iter().find(|call| matches!(call.outcome, Outcome::Unknown(_)));
        if let Some(call) = unknown {
            panic!("the restart was faster than the lease, so all is known, but {call}");
        }
        assert_tokens_grow(&all.grants);
        assert_one_holder(&all.grants);
    }

    /// The calls by kind and outcome, in one line.
    pub(crate) fn summary(&self) -> String {
        let mut counts: BTreeMap<(Asked, &str), usize> = BTreeMap::new();
        let all = self.all();
        for call in &all.calls {
            let outcome = match call.outcome {
                Outcome::Done => "done",
                Outcome::NotDone(_) => "not done",
                Outcome::Unknown(_) => "unknown",
            };
            *counts.entry((call.asked, outcome)).or_default() += 1;
        }
        let counts: Vec<String> =
            counts.iter().map(|((asked, outcome), n)| format!("{asked:?} {outcome} {n}")).collect();
        format!("{} calls ({}), {} grants", all.calls.len(), counts.join(", "), all.grants.len())
    }
}

/// A grant that was asked for after another was in hand has the greater token, whatever the names.
fn assert_tokens_grow(grants: &[Grant]) {
    let mut by_invoked: Vec<&Grant> = grants.iter().collect();
    by_invoked.sort_by_key(|grant| grant.invoked);
    let mut in_hand: Vec<&Grant> = grants.iter().collect();
    in_hand.sort_by_key(|grant| grant.held_from);
    let (mut greatest, mut seen) = (0, in_hand.iter().peekable());
    for grant in by_invoked {
        while let Some(earlier) = seen.next_if(|earlier| earlier.held_from < grant.invoked) {
            greatest = greatest.max(earlier.token);
        }
        assert!(grant.token > greatest, "token {greatest} was in hand when this was asked for: {grant}");
    }
    let tokens: BTreeSet<u64> = grants.iter().map(|grant| grant.token).collect();
    assert_eq!(tokens.len(), grants.len(), "a token was given out twice");
}

/// Of one name nobody holds while another does, and the tokens follow the order of the grants.
fn assert_one_holder(grants: &[Grant]) {
    let mut by_name: BTreeMap<&str, Vec<&Grant>> = BTreeMap::new();
    for grant in grants {
        if let Some(name) = &grant.exclusive {
            by_name.entry(name).or_default().push(grant);
        }
    }
    for of_one in by_name.values_mut() {
        of_one.sort_by_key(|grant| grant.token);
        for (earlier, later) in of_one.iter().zip(of_one.iter().skip(1)) {
            assert!(earlier.held_to <= later.held_from, "two hold at once: {earlier}; {later}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(token: u64, invoked: u64, held_from: u64, held_to: u64) -> Grant {
        let (client, exclusive) = ("a".into(), Some("x".into()));
        Grant { client, exclusive, entry: token, token, invoked, held_from, held_to }
    }

    #[test]
    fn overlapping_requests_may_be_granted_in_any_order() {
        let grants = [grant(2, 0, 50, 60), grant(1, 5, 30, 40)];
        assert_tokens_grow(&grants);
        assert_one_holder(&grants);
    }

    #[test]
    #[should_panic = "token 2 was in hand"]
    fn a_token_that_goes_back_is_seen() {
        assert_tokens_grow(&[grant(2, 0, 10, 20), grant(1, 15, 30, 40)]);
    }

    #[test]
    #[should_panic = "two hold at once"]
    fn two_holders_are_seen() {
        assert_one_holder(&[grant(1, 0, 10, 31), grant(2, 15, 30, 40)]);
    }
}
