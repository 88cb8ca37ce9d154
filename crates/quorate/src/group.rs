//! A group: members in an ordered queue, the first of whom act.
//!
//! **Problem.** Of many like processes one acts and the others stand by; each must know its place, and when it is
//! cut off. **Rule.** The service orders the members; a member reads advisories, each with its place before and
//! after, and acts while it has a token. **Safety.** Before any other line the clock is read: a member whose own
//! deadline has passed is told that it is cut off (ordinal -1), and nothing says that it acts before the service has
//! said so anew (RULES R8, R14, R25). A member never misses a change silently (R23).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use quorate::{Client, JoinOptions, SessionOptions, advisory::Event};
//! # let service = quorate::testing::Service::start().await;
//! let client = Client::connect(service.address())?;
//! let session = client.session(SessionOptions::default()).await?;
//! let mut group = session.join("payments", JoinOptions::default().name("a")).await?;
//! let advisory = group.next().await.expect("the first advisory is a total");
//! assert_eq!((advisory.event, advisory.ordinal), (Event::Joined, Some(1)));
//! assert!(advisory.is_active());
//! group.leave().await?;
//! # Ok(())
//! # }
//! ```

use crate::advisory::{self, Advisory, CUT_OFF};
use crate::claim::span;
use crate::error::Error;
use crate::hold::{Hold, Loss};
use crate::session::Session;
use crate::session::place::{Place, Stage};
use crate::session::state::{PlaceKey, State};
use futures::Stream;
use quorate_core::fence::Offer;
use quorate_core::id::{EntryId, Name, Token, ViewId};
use quorate_core::state_machine::{
    Face, Handover, Join, Member, MemberKind, Mode, Numbering, Order, PolicyWish, Preempt, Rejoin, Role,
    Seat, Terms,
};
use quorate_core::time::Span;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// How a member takes part in a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JoinOptions {
    /// Full (default), ordinal-only, or observer.
    pub kind: MemberKind,
    /// The member's name as the others see it, at most 255 bytes; need not be unique. Default `pid-N`.
    pub name: Option<String>,
    /// What the others are told of it, at most 4,096 bytes by default.
    pub metadata: BTreeMap<String, String>,
    /// Its weight, where the queue is ordered by weight: the heavier is ahead. Default 0.
    pub weight: u32,
    /// What it states about the group's policy. An omitted field is a wildcard (RULES R17).
    pub policy: PolicyWish,
    /// It is asked to stop when it has acted for so long, in milliseconds; never by force (RULES R11, R20).
    pub max_hold: Option<Duration>,
    /// While it acts it gives a sign at least so often, in milliseconds ([`Group::progress`]); without one it is shown
    /// as stalled, and keeps its seat (RULES R20).
    pub progress: Option<Duration>,
}

impl JoinOptions {
    /// Sets how to take part.
    #[must_use]
    pub fn kind(self, kind: MemberKind) -> Self {
        Self { kind, ..self }
    }

    /// Sets the member's name.
    #[must_use]
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Adds a line of metadata.
    #[must_use]
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// States how many members act at once.
    #[must_use]
    pub fn seats(mut self, seats: u32) -> Self {
        self.policy.seats = Some(seats);
        self
    }

    /// States how ordinals follow the queue.
    #[must_use]
    pub fn numbering(mut self, numbering: Numbering) -> Self {
        self.policy.numbering = Some(numbering);
        self
    }

    /// States what decides the place in the queue.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.policy.order = Some(order);
        self
    }

    /// States whether a newcomer may make a member that acts stop.
    #[must_use]
    pub fn preempt(mut self, preempt: Preempt) -> Self {
        self.policy.preempt = Some(preempt);
        self
    }

    /// States for how long the place of a member that was cut off is kept; zero: not at all, it takes the tail. It is
    /// known again by its name.
    #[must_use]
    pub fn rejoin_within(mut self, grace: Duration) -> Self {
        let grace = span(grace);
        self.policy.rejoin = Some(if grace == Span::ZERO { Rejoin::Tail } else { Rejoin::Sticky { grace } });
        self
    }

    /// States how long a seat rests between two holders; zero: not at all.
    #[must_use]
    pub fn handover_after(mut self, delay: Duration) -> Self {
        let delay = span(delay);
        self.policy.handover =
            Some(if delay == Span::ZERO { Handover::Immediate } else { Handover::Delay { delay } });
        self
    }

    /// States the policy, whole.
    #[must_use]
    pub fn policy(self, policy: PolicyWish) -> Self {
        Self { policy, ..self }
    }

    /// Sets its weight.
    #[must_use]
    pub fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// Has it asked to stop when it has acted for so long.
    #[must_use]
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self { max_hold: Some(max_hold), ..self }
    }

    /// Says how often its work will give a sign.
    #[must_use]
    pub fn progress(self, every: Duration) -> Self {
        Self { progress: Some(every), ..self }
    }
}

/// Membership in a group. Dropped, it leaves in the background. If its session is lost it joins again by itself, at
/// the tail.
#[derive(Debug)]
pub struct Group {
    hold: Hold,
    name: Name,
    kind: MemberKind,
}

impl Group {
    pub(crate) async fn join(
        session: Session,
        name: Name,
        face: Face,
        options: JoinOptions,
    ) -> Result<Self, Error> {
        let kind = options.kind;
        let join = Join {
            group: name.clone(),
            face,
            kind,
            mode: Mode::Exclusive,
            wait: true,
            name: Session::default_name(options.name),
            metadata: options.metadata,
            weight: options.weight,
            policy: options.policy,
        };
        let (max_hold, progress) = (options.max_hold.map(span), options.progress.map(span));
        let terms = Terms { max_hold, progress, ..Terms::default() };
        let shared = session.shared();
        shared.ours()?;
        let (key, wake) = shared.with(|state, _| state.join(join, terms))?;
        let hold = Hold::new(session.clone(), key, wake);
        hold.until(|state, _, key| taken_in(state, key, &name)).await??;
        Ok(Self { hold, name, kind })
    }

    /// The next advisory; it waits until there is one. None after the last: `left` or `closed`. Asking again after
    /// `closed` says that this member has come to rest, so that the service may pass its seat on (RULES R11).
    pub async fn next(&mut self) -> Option<Advisory> {
        std::future::poll_fn(|context| self.poll_advisory(context)).await
    }

    pub(crate) fn poll_advisory(&mut self, context: &mut Context<'_>) -> Poll<Option<Advisory>> {
        self.hold.wake.reader.register(context.waker());
        let polled = self.hold.with(|state, now, key| match state.advisory(now, key) {
            Some(advisory) => Poll::Ready(Some(advisory)),
            None if state.at_rest(key) => Poll::Ready(None),
            None => Poll::Pending,
        });
        polled.unwrap_or(Poll::Ready(None))
    }

    /// The group's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The session that this member lives in.
    pub fn session(&self) -> &Session {
        self.hold.session()
    }

    /// This member's place in the queue, which a leave names; none while it joins again.
    pub fn entry(&self) -> Option<EntryId> {
        self.hold.entry()
    }

    /// This member's position as last heard, from 1; [`CUT_OFF`] (-1) if it must not act, by the clock now; none for
    /// an observer and for one that left.
    pub fn ordinal(&self) -> Option<i64> {
        if self.kind == MemberKind::Observer {
            return None;
        }
        self.hold
            .with(|state, now, key| match state.place(key)?.stage {
                Stage::Left | Stage::Leaving => None,
                Stage::In if state.acts(now) => state.place(key)?.standing().and_then(advisory::number),
                _ => Some(CUT_OFF),
            })
            .unwrap_or(Some(CUT_OFF))
    }

    /// What this member may do, by the clock now; none once it left.
    pub fn role(&self) -> Option<Role> {
        self.hold
            .with(|state, now, key| match state.place(key)?.stage {
                Stage::Left | Stage::Leaving => None,
                Stage::In if state.acts(now) => state.place(key)?.standing().map(|standing| standing.role),
                _ => Some(Role::Disconnected),
            })
            .unwrap_or(Some(Role::Disconnected))
    }

    /// The token to act under, read from the clock now; none if this member does not act.
    pub fn token(&self) -> Option<Token> {
        self.hold.token()
    }

    /// The seat to act on, with its token, read from the clock now.
    pub fn seat(&self) -> Option<Seat> {
        self.hold.seat()
    }

    /// Whether this member acts, read from the clock now.
    pub fn is_active(&self) -> bool {
        self.token().is_some()
    }

    /// What a [guard](crate::guard::Guard) takes: cluster, seat and token. None if this member does not act now.
    pub fn offer(&self) -> Option<Offer> {
        let seat = self.seat()?;
        Some(Offer::new(self.session().cluster()?, seat.token).seat(seat.no))
    }

    /// How long this member may still act without hearing from the service; zero if it does not act.
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Everybody in the group as last heard, in queue order; empty for an ordinal-only member.
    pub fn members(&self) -> Vec<Member> {
        self.hold.read(|place| place.members()).unwrap_or_default()
    }

    /// The view, as last heard.
    pub fn view(&self) -> ViewId {
        self.hold.read(|place| place.view()).unwrap_or_default()
    }

    /// The token of the holder of the lowest held seat, as last heard.
    pub fn holder_token(&self) -> Option<Token> {
        self.hold.read(|place| place.holder_token())?
    }

    /// Waits until this member's place is lost or about to be, as [`LockGuard::lost`](crate::LockGuard::lost) does.
    pub async fn lost(&self) -> Loss {
        self.hold.lost().await
    }

    /// Changes what the others are told of this member, whole.
    ///
    /// # Errors
    /// [`Error::Refused`] if it is too long: nothing was changed then; [`Error::WaitLost`] if the service is
    /// silent: it may still be done. While it joins again the new description goes with that.
    pub async fn describe(&self, metadata: BTreeMap<String, String>) -> Result<(), Error> {
        self.hold.describe(metadata).await
    }

    /// Says that this member has stopped acting, after it was asked to ([`LossCause::Asked`](crate::LossCause::Asked),
    /// role draining) or by its own wish: nothing may be acted on from this call on. It stays in the queue. A seat that
    /// another was promised goes there; else this member is now the last.
    ///
    /// # Errors
    /// [`Error::WaitLost`] if the service is silent: it is told as soon as it is back, or the lease ends.
    pub async fn stopped(&self) -> Result<(), Error> {
        self.hold.stopped().await
    }

    /// Says that the work goes on, where that was promised ([`JoinOptions::progress`]). Does not wait; at most four in
    /// the promised time are sent.
    pub fn progress(&self) {
        self.hold.progress();
    }

    /// Why it is over, once it is.
    pub(crate) fn why_over(&self) -> Option<Error> {
        let ended = |place: &Place| match &place.stage {
            Stage::Ended(error) => Some(error.clone()),
            _ => None,
        };
        self.hold.read(ended)?
    }

    /// Leaves the group and waits until the service has said so; the last advisory, `left`, can still be read.
    /// A holder has stopped when it calls this.
    ///
    /// # Errors
    /// [`Error::WaitLost`] if the service is silent: the leave is done as soon as it is back, or the lease ends.
    pub async fn leave(&self) -> Result<(), Error> {
        self.hold.release().await
    }
}

impl Stream for Group {
    type Item = Advisory;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Advisory>> {
        self.get_mut().poll_advisory(context)
    }
}

/// The outcome of a join, once there is one.
fn taken_in(state: &mut State, key: PlaceKey, name: &Name) -> Option<Result<(), Error>> {
    let lost = |state: &State| state.wait_lost(format!("joining {name}"));
    let Some(place) = state.place(key) else { return Some(Err(lost(state))) };
    match &place.stage {
        Stage::Ended(error) => return Some(Err(error.clone())),
        _ if place.unwanted || state.lapsed() => return Some(Err(lost(state))),
        Stage::In => {}
        _ => return None,
    }
    state.hand_out(key);
    Some(Ok(()))
}
