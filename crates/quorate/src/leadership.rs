//! Leadership: one leads and says a value, and whoever looks on hears each change, also that nobody leads.
//!
//! **Problem.** Of many candidates one leads; the others and the clients of the leader must know who, where to find it,
//! and when there is none. **Rule.** A leadership is a queue with one seat; its holder is shown with a value, and each
//! term of office has a token of its own. A campaign ends with the office, or at once when its session dies: nobody is
//! told that it leads after it could. **Observers** hear every change in the order of the log: the first thing they
//! hear is how it is now, *nobody leads* is something they hear, and what was missed on the way is said.
//! **Safety.** Between the old leader's deadline and the new one's token nobody leads; that the old one has stopped is
//! its own affair, or the [guard](crate::guard)'s. **Cost.** As a lock; a value is a logged entry, and every observer is
//! told.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use quorate::leadership::Observed;
//! # let service = quorate::testing::Service::start().await;
//! let client = quorate::Client::connect(service.address())?;
//! let session = client.session(quorate::SessionOptions::default()).await?;
//! let scheduler = session.leadership("scheduler")?;
//! let mut seen = scheduler.observe().await?;
//! assert!(matches!(seen.next().await, Some(Observed::NoLeader { .. })), "that is how it is now");
//!
//! let leader = scheduler.campaign("10.0.0.7:9000").await?;
//! let Some(Observed::Leader(leading)) = seen.next().await else { panic!("somebody leads") };
//! assert_eq!((leading.value.as_str(), Some(leading.token)), ("10.0.0.7:9000", leader.token()));
//! leader.proclaim("10.0.0.7:9001").await?;
//! leader.resign().await?;
//! # Ok(())
//! # }
//! ```

use crate::advisory::{Advisory, Event, Form};
use crate::claim::{Claim, terms};
use crate::error::Error;
use crate::group::{Group, JoinOptions};
use crate::lock::LockGuard;
use crate::session::Session;
use futures::Stream;
use quorate_core::id::{EntryId, Name, SessionId, Token};
use quorate_core::state_machine::{Face, Member, MemberKind, Seat};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// Under which key of a member's metadata its value is.
pub const VALUE: &str = "value";

/// A leadership by its name.
#[derive(Clone, Debug)]
pub struct Leadership {
    claim: Claim,
}

terms!(Leadership);

impl Leadership {
    pub(crate) fn new(session: Session, name: Name) -> Self {
        Self { claim: Claim::new(session, name, Face::Leadership) }
    }

    /// Waits for the office, first come first served, and leads with this value: where to find the leader, or what
    /// else its clients need, at most 4,000 bytes by default. A dropped future gives the candidacy up.
    ///
    /// # Errors
    /// As [`Lock::acquire`](crate::Lock::acquire): at once when the session ends while waiting.
    pub async fn campaign(&self, value: impl Into<String>) -> Result<Leader, Error> {
        let (claim, value) = self.with(value);
        Ok(Leader { guard: claim.acquire().await?, value })
    }

    /// Leads if nobody does and nobody waits to.
    ///
    /// # Errors
    /// [`Error::Busy`] names the leader; else as [`Leadership::campaign`].
    pub async fn try_campaign(&self, value: impl Into<String>) -> Result<Leader, Error> {
        let (claim, value) = self.with(value);
        Ok(Leader { guard: claim.try_acquire().await?, value })
    }

    /// Waits for the office so long at most.
    ///
    /// # Errors
    /// [`Error::TimedOut`] when the time is over; else as [`Leadership::campaign`].
    pub async fn campaign_timeout(&self, value: impl Into<String>, limit: Duration) -> Result<Leader, Error> {
        let (claim, value) = self.with(value);
        Ok(Leader { guard: claim.acquire_timeout(limit).await?, value })
    }

    fn with(&self, value: impl Into<String>) -> (Claim, String) {
        let (mut claim, value) = (self.claim.clone(), value.into());
        claim.join.metadata = metadata(&value);
        (claim, value)
    }

    /// Looks on: how it is now, and then each change. It resumes by itself, also in the session's next life.
    ///
    /// # Errors
    /// As [`Session::join`].
    pub async fn observe(&self) -> Result<Observer, Error> {
        let options = JoinOptions::default().kind(MemberKind::Observer).name(self.claim.join.name.clone());
        let (session, name) = (self.claim.session.clone(), self.claim.join.group.clone());
        let group = Group::join(session, name, Face::Leadership, options).await?;
        Ok(Observer { group, leading: None, silent: false, told: false, ahead: VecDeque::new() })
    }

    /// Who leads now; none if nobody does. Two logged entries: who asks often observes.
    ///
    /// # Errors
    /// As [`Session::join`].
    pub async fn leader(&self) -> Result<Option<Leading>, Error> {
        let mut observer = self.observe().await?;
        while let Some(observed) = observer.next().await {
            match observed {
                Observed::Leader(leading) => return Ok(Some(leading)),
                Observed::NoLeader { .. } => return Ok(None),
                Observed::Missed { .. } | Observed::Unavailable { .. } | Observed::Over { .. } => {}
            }
        }
        Err(observer.group.why_over().unwrap_or(Error::Ended))
    }
}

fn metadata(value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(VALUE.into(), value.into())])
}

fn value_in(metadata: &BTreeMap<String, String>) -> String {
    metadata.get(VALUE).cloned().unwrap_or_default()
}

/// The office, while it is held: a [`LockGuard`] and a value. Dropped, it is resigned in the background.
#[must_use = "the office is resigned when this is dropped"]
#[derive(Debug)]
pub struct Leader {
    guard: LockGuard,
    value: String,
}

impl Deref for Leader {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl From<Leader> for LockGuard {
    fn from(leader: Leader) -> Self {
        leader.guard
    }
}

impl Leader {
    /// Says another value, and waits until the service has it. The office and its token stay.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is too long: nothing was changed then; [`Error::WaitLost`] if the service is silent:
    /// it may still be done; [`Error::SessionLost`] if the office had been lost before.
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<(), Error> {
        self.guard.describe(metadata(&value.into())).await
    }

    /// The value of the campaign.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Leaves the office, and waits until the service has said so. The leader has stopped when it calls this.
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    pub async fn resign(self) -> Result<(), Error> {
        self.guard.release().await
    }
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leading {
    /// Its name.
    pub name: String,
    /// What it says.
    pub value: String,
    /// The token of its term of office.
    pub token: Token,
    /// Its session.
    pub session: SessionId,
    /// Since when, by the service's wall clock, in milliseconds since 1970. A label.
    pub since_ms: u64,
    entry: EntryId,
}

impl Leading {
    fn of(entry: EntryId, session: SessionId, name: &str, value: String, seat: Seat) -> Self {
        Self { name: name.into(), value, token: seat.token, session, since_ms: seat.since.0, entry }
    }
}

/// What an observer hears.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Observed {
    /// This one leads from now on, or says another value, or has a new token.
    Leader(Leading),
    /// Nobody leads.
    NoLeader {
        /// Why, in words: who left, and how.
        evidence: String,
    },
    /// Changes were missed. What comes next is how it is now.
    Missed {
        /// How many, in words.
        evidence: String,
    },
    /// The service is silent: what was said last may be old. What comes next, when it is heard again, is how it is
    /// then.
    Unavailable {
        /// For how long, in words.
        evidence: String,
    },
    /// Nothing more comes: the session or the leadership has ended.
    Over {
        /// Why, in words.
        evidence: String,
    },
}

/// One that looks on. Dropped, it looks away in the background.
#[derive(Debug)]
pub struct Observer {
    group: Group,
    leading: Option<Leading>,
    /// It was told that the service is silent.
    silent: bool,
    /// It was told who leads, or that nobody does.
    told: bool,
    ahead: VecDeque<Observed>,
}

impl Observer {
    /// What happened next; it waits until there is something. None after [`Observed::Over`].
    pub async fn next(&mut self) -> Option<Observed> {
        std::future::poll_fn(|context| self.poll_observed(context)).await
    }

    /// Who leads, as last told by [`Observer::next`].
    pub fn leading(&self) -> Option<&Leading> {
        self.leading.as_ref()
    }

    /// The leadership's name.
    pub fn name(&self) -> &Name {
        self.group.name()
    }

    fn poll_observed(&mut self, context: &mut Context<'_>) -> Poll<Option<Observed>> {
        loop {
            if let Some(observed) = self.ahead.pop_front() {
                return Poll::Ready(Some(observed));
            }
            match ready!(self.group.poll_advisory(context)) {
                Some(advisory) => self.hear(advisory),
                None => return Poll::Ready(None),
            }
        }
    }

    fn hear(&mut self, advisory: Advisory) {
        match (advisory.event, advisory.form) {
            (Event::Left | Event::Closed, _) => {
                self.leading = None;
                self.ahead.push_back(Observed::Over { evidence: advisory.evidence });
            }
            (_, Form::Unavailable) => {
                if !std::mem::replace(&mut self.silent, true) {
                    self.ahead.push_back(Observed::Unavailable { evidence: advisory.evidence });
                }
            }
            (event, Form::Total) => {
                if event == Event::Gap {
                    self.ahead.push_back(Observed::Missed { evidence: advisory.evidence.clone() });
                }
                let again = std::mem::take(&mut self.silent) || event == Event::Gap || !self.told;
                self.tell(in_office(&advisory.members), again, advisory.evidence);
            }
            (_, Form::Change) => {
                let leading = self.after(&advisory);
                self.tell(leading, false, advisory.evidence);
            }
        }
    }

    /// Tells who leads, if that is news or is to be said again.
    fn tell(&mut self, leading: Option<Leading>, again: bool, evidence: String) {
        if leading == self.leading && !again {
            return;
        }
        self.told = true;
        self.leading.clone_from(&leading);
        self.ahead.push_back(match leading {
            Some(leading) => Observed::Leader(leading),
            None => Observed::NoLeader { evidence },
        });
    }

    /// Who leads after a change.
    fn after(&self, change: &Advisory) -> Option<Leading> {
        let mut leading = self.leading.clone();
        for step in &change.changed {
            let own = leading.as_ref().is_some_and(|leading| leading.entry == step.entry);
            match step.after.and_then(|place| place.seat) {
                Some(seat) => {
                    let known = leading.take().filter(|_| own).map(|leading| leading.value);
                    let value = step.metadata.as_ref().map(value_in).or(known).unwrap_or_default();
                    leading = Some(Leading::of(step.entry, step.session, &step.name, value, seat));
                }
                None if own => leading = None,
                None => {}
            }
        }
        leading
    }
}

impl Stream for Observer {
    type Item = Observed;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Observed>> {
        self.get_mut().poll_observed(context)
    }
}

fn in_office(members: &[Member]) -> Option<Leading> {
    members.iter().find_map(|member| {
        let seat = member.place.seat?;
        Some(Leading::of(member.entry, member.session, &member.name, value_in(&member.metadata), seat))
    })
}
