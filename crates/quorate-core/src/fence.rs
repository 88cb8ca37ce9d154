//! Whether a resource admits a token.
//!
//! **Problem.** A holder that was paused, or whose mail was held up, wakes after its seat has gone to
//! another, and writes. Its own clock cannot stop it: it may have been paused between the look at the clock
//! and the write.
//!
//! **Rule.** A resource remembers, for each seat, the greatest token that it accepted, and refuses smaller
//! ones.
//!
//! An equal token is admitted again, since one holder writes many times. Tokens of two clusters are not
//! comparable (RULES R30), so a mark remembers its cluster, and an offer of another is refused for that
//! reason, whatever its number.
//!
//! **Safety.** Once `raise` has been called with what `admit` answered, no smaller token of that seat is
//! ever admitted (`r10_an_admitted_token_never_goes_down`).
//!
//! **Needs.** The caller makes the raised floor durable *before* the write that it guards, and lets nobody
//! else in between the check and the end of that write (RULES R31). Neither can be done here: a bare
//! `admit` is only a check. `quorate::guard` does both.
//!
//! **When it fails.** Before the new holder's token has reached the resource an older one still passes,
//! which is why a new holder claims at once (RULES R32). A number that the cluster never issued, once
//! accepted, locks the true holders out: see [`Offer::within`].
//!
//! **Source.** M. Burrows, "The Chubby lock service", OSDI 2006, section 2.4 (sequencers); the pause
//! history is M. Kleppmann's, "How to do distributed locking", 2016. Departure from both: the floor is kept
//! for each (resource, seat) and is bound to a cluster.

use crate::id::{ClusterId, SeatNo, Token};
use crate::time::Wall;
use alloc::collections::BTreeMap;
use core::fmt;
use serde::{Deserialize, Serialize};

/// What somebody who wants to write shows to the resource: its grant, without the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Offer {
    /// Whose token it is. None only where nobody could know, such as a token typed by hand; a resource that
    /// has already accepted a token of a named cluster refuses that.
    pub cluster: Option<ClusterId>,
    /// The seat that the token was granted for.
    pub seat: SeatNo,
    /// The number that decides.
    pub token: Token,
}

impl Offer {
    /// An offer for seat 0, the only one of a lock or a leadership.
    pub const fn new(cluster: ClusterId, token: Token) -> Self {
        Self { cluster: Some(cluster), seat: SeatNo(0), token }
    }

    /// The same offer for another seat.
    pub const fn seat(self, seat: SeatNo) -> Self {
        Self { seat, ..self }
    }

    /// Checks the token against the last one that the cluster has issued, for a caller that could ask
    /// (RULES R34). A number from the future, once accepted, would refuse every true holder.
    ///
    /// # Errors
    /// [`FenceRefusal::NotIssued`] if the token is greater.
    pub const fn within(self, highest_issued: Token) -> Result<Self, FenceRefusal> {
        if self.token.0 > highest_issued.0 {
            return Err(FenceRefusal::NotIssued { offered: self.token, highest_issued });
        }
        Ok(self)
    }
}

/// The greatest token that was accepted for a seat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mark {
    /// The number. 0 says that none was accepted yet: 0 is never issued.
    pub token: Token,
    /// Whose number it is; None until an offer names a cluster.
    pub cluster: Option<ClusterId>,
    /// When it was first accepted: a label for people.
    pub at: Wall,
}

/// What a resource remembers: one mark for each seat, and the mark that a seat begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Floor {
    base: Mark,
    seats: BTreeMap<SeatNo, Mark>,
}

/// An admitted offer. It has to be given to [`Floor::raise`], and that has to be durable, before the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Accepted {
    /// The seat that was asked for.
    pub seat: SeatNo,
    /// Its token, from now on the smallest that is admitted for this seat.
    pub token: Token,
    /// The cluster that the seat is bound to from now on.
    pub cluster: Option<ClusterId>,
    /// Whether the floor changes. If not, it holds this very token already and nothing has to be written.
    pub raises: bool,
}

/// Why a resource does not admit an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FenceRefusal {
    /// A greater token was accepted: whoever offers this one has lost the seat, whatever its clock says.
    Older {
        /// What was offered.
        offered: Token,
        /// The greatest that was accepted.
        highest: Token,
        /// When that was first accepted: a label for people.
        accepted_at: Wall,
    },
    /// The token is another cluster's, so the numbers cannot be compared (RULES R30).
    OtherCluster {
        /// The cluster of the offer.
        offered: ClusterId,
        /// The cluster whose tokens the resource accepts.
        bound: ClusterId,
        /// The greatest token that was accepted of that one.
        highest: Token,
    },
    /// The resource is bound to a cluster, and the offer does not say whose token it is.
    ClusterUnnamed {
        /// The cluster whose tokens the resource accepts.
        bound: ClusterId,
        /// The greatest token that was accepted of it.
        highest: Token,
    },
    /// The token is beyond the last that its cluster has issued (RULES R34), or 0, which none issues.
    NotIssued {
        /// What was offered.
        offered: Token,
        /// The last that the cluster has issued.
        highest_issued: Token,
    },
}

impl Floor {
    /// A floor that every seat begins with, seats that nobody has named yet included.
    pub fn starting_at(base: Mark) -> Self {
        Self { base, seats: BTreeMap::new() }
    }

    /// A floor as it was stored: the base and the marks of single seats.
    pub fn of(base: Mark, seats: impl IntoIterator<Item = (SeatNo, Mark)>) -> Self {
        Self { base, seats: seats.into_iter().collect() }
    }

    /// The same numbers under another cluster, or under the first one that is named: for an operator who
    /// has restored the service under a new cluster id (RULES R30).
    pub fn rebound(&self, cluster: Option<ClusterId>) -> Self {
        let rebind = |mark: Mark| Mark { cluster, ..mark };
        Self::of(rebind(self.base), self.seats().map(|(seat, mark)| (seat, rebind(mark))))
    }

    /// The mark that seats begin with.
    pub fn base(&self) -> Mark {
        self.base
    }

    /// The mark that holds for a seat.
    pub fn mark(&self, seat: SeatNo) -> Mark {
        self.seats.get(&seat).copied().unwrap_or(self.base)
    }

    /// The seats that have accepted a token of their own, in order.
    pub fn seats(&self) -> impl Iterator<Item = (SeatNo, Mark)> + '_ {
        self.seats.iter().map(|(&seat, &mark)| (seat, mark))
    }

    /// The greatest token over all seats: a restored cluster must issue none at or below it (RULES R30).
    pub fn highest(&self) -> Token {
        self.seats.values().map(|mark| mark.token).fold(self.base.token, Token::max)
    }

    /// Decides on an offer. Changes nothing: the caller gives the answer to [`raise`](Self::raise).
    ///
    /// # Errors
    /// [`FenceRefusal`] is the reason, and names the highest.
    pub fn admit(&self, offer: Offer) -> Result<Accepted, FenceRefusal> {
        if offer.token == Token(0) {
            return Err(FenceRefusal::NotIssued { offered: offer.token, highest_issued: self.highest() });
        }
        let mark = self.mark(offer.seat);
        match (offer.cluster, mark.cluster) {
            (Some(offered), Some(bound)) if offered != bound => {
                return Err(FenceRefusal::OtherCluster { offered, bound, highest: mark.token });
            }
            (None, Some(bound)) => {
                return Err(FenceRefusal::ClusterUnnamed { bound, highest: mark.token });
            }
            _ => {}
        }
        if offer.token < mark.token {
            return Err(FenceRefusal::Older {
                offered: offer.token,
                highest: mark.token,
                accepted_at: mark.at,
            });
        }
        Ok(Accepted {
            seat: offer.seat,
            token: offer.token,
            cluster: offer.cluster,
            raises: offer.token > mark.token || offer.cluster != mark.cluster,
        })
    }

    /// Remembers an admitted offer.
    ///
    /// # Panics
    /// If a greater token was accepted since it was admitted: then somebody stood between the check and
    /// the write, which is what this type exists to prevent.
    pub fn raise(&mut self, accepted: Accepted, at: Wall) {
        let mark = self.mark(accepted.seat);
        assert!(
            accepted.token >= mark.token,
            "a floor never goes down: {} after {}",
            accepted.token,
            mark.token
        );
        if accepted.raises {
            let raised = Mark { token: accepted.token, cluster: accepted.cluster, at };
            self.seats.insert(accepted.seat, raised);
        }
    }
}

impl FenceRefusal {
    /// The greatest token that the resource accepted for the seat, where the refusal knows one.
    pub const fn highest(&self) -> Option<Token> {
        match self {
            Self::Older { highest, .. }
            | Self::OtherCluster { highest, .. }
            | Self::ClusterUnnamed { highest, .. } => Some(*highest),
            Self::NotIssued { .. } => None,
        }
    }
}

impl fmt::Display for FenceRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Older { offered, highest, .. } => {
                write!(f, "token {offered} is older than {highest}, the greatest that was accepted")
            }
            Self::OtherCluster { offered, bound, highest } => write!(
                f,
                "the token is of cluster {offered}, but the resource accepts only those of cluster {bound} \
                 (the last was {highest}), and numbers of two clusters cannot be compared"
            ),
            Self::ClusterUnnamed { bound, .. } => write!(
                f,
                "the offer does not say whose token it is, and the resource accepts only those of cluster \
                 {bound}"
            ),
            Self::NotIssued { offered: Token(0), .. } => {
                write!(f, "token 0 is never issued")
            }
            Self::NotIssued { offered, highest_issued } => write!(
                f,
                "token {offered} has not been issued: the last that the cluster gave out is {highest_issued}"
            ),
        }
    }
}

impl core::error::Error for FenceRefusal {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    const HOME: ClusterId = ClusterId(7);
    const AWAY: ClusterId = ClusterId(8);

    fn offer(token: u64) -> Offer {
        Offer::new(HOME, Token(token))
    }

    /// Enters as a guard does: check and raise as one step.
    fn enter(floor: &mut Floor, offer: Offer, at: u64) -> Result<bool, FenceRefusal> {
        let accepted = floor.admit(offer)?;
        floor.raise(accepted, Wall(at));
        Ok(accepted.raises)
    }

    #[test]
    fn l5_the_paused_holder_is_refused_whatever_its_clock_says() {
        let mut floor = Floor::default();
        // t0: A gets the lease and token 41, and writes. t1: A pauses for 45 s.
        assert_eq!(enter(&mut floor, offer(41), 0), Ok(true));
        // t2: the lease ends, B gets 42. t3: B writes.
        assert_eq!(enter(&mut floor, offer(42), 30_000), Ok(true));
        // t4: A wakes and writes with 41. t5: the resource refuses it, since it accepted 42.
        let refusal = enter(&mut floor, offer(41), 45_000);
        let expected =
            FenceRefusal::Older { offered: Token(41), highest: Token(42), accepted_at: Wall(30_000) };
        assert_eq!(refusal, Err(expected));
        assert_eq!(expected.to_string(), "token 41 is older than 42, the greatest that was accepted");
        // B goes on.
        assert_eq!(enter(&mut floor, offer(42), 46_000), Ok(false));
    }

    #[test]
    fn l5_before_the_new_holder_claims_the_old_one_still_passes() {
        let mut floor = Floor::default();
        assert_eq!(enter(&mut floor, offer(41), 0), Ok(true));
        // B holds 42 but has not come yet: this is the window that a claim closes (RULES R32).
        assert_eq!(enter(&mut floor, offer(41), 31_000), Ok(false));
        assert_eq!(enter(&mut floor, offer(42), 32_000), Ok(true));
        assert!(enter(&mut floor, offer(41), 33_000).is_err());
    }

    #[test]
    fn one_holder_writes_many_times_and_its_mark_keeps_the_first_time() {
        let mut floor = Floor::default();
        assert_eq!(enter(&mut floor, offer(5), 100), Ok(true));
        assert_eq!(enter(&mut floor, offer(5), 200), Ok(false));
        assert_eq!(floor.mark(SeatNo(0)).at, Wall(100));
    }

    #[test]
    fn r12_seats_have_floors_of_their_own() {
        let mut floor = Floor::default();
        assert_eq!(enter(&mut floor, offer(11).seat(SeatNo(1)), 0), Ok(true));
        assert_eq!(enter(&mut floor, offer(10), 0), Ok(true));
        assert!(enter(&mut floor, offer(10).seat(SeatNo(1)), 0).is_err());
        assert_eq!(floor.highest(), Token(11));
    }

    #[test]
    fn r30_another_cluster_is_refused_with_its_own_reason_even_if_its_number_is_greater() {
        let mut floor = Floor::default();
        assert_eq!(enter(&mut floor, offer(42), 0), Ok(true));
        let foreign = Offer::new(AWAY, Token(1_000));
        let reason = FenceRefusal::OtherCluster { offered: AWAY, bound: HOME, highest: Token(42) };
        assert_eq!(enter(&mut floor, foreign, 1), Err(reason));
        let unnamed = Offer { cluster: None, ..offer(43) };
        let reason = FenceRefusal::ClusterUnnamed { bound: HOME, highest: Token(42) };
        assert_eq!(enter(&mut floor, unnamed, 2), Err(reason));
        assert_eq!(reason.highest(), Some(Token(42)));
    }

    #[test]
    fn r30_after_a_restore_the_numbers_stay_and_the_cluster_changes() {
        let mut floor = Floor::default();
        assert_eq!(enter(&mut floor, offer(42), 0), Ok(true));
        let mut floor = floor.rebound(Some(AWAY));
        assert!(matches!(enter(&mut floor, offer(43), 1), Err(FenceRefusal::OtherCluster { .. })));
        assert!(enter(&mut floor, Offer::new(AWAY, Token(41)), 2).is_err());
        assert_eq!(enter(&mut floor, Offer::new(AWAY, Token(43)), 3), Ok(true));
    }

    #[test]
    fn r30_the_first_offer_that_names_a_cluster_binds_the_seat() {
        let mut floor = Floor::default();
        let unnamed = Offer { cluster: None, ..offer(42) };
        assert_eq!(enter(&mut floor, unnamed, 0), Ok(true));
        assert_eq!(enter(&mut floor, unnamed, 1), Ok(false));
        assert_eq!(enter(&mut floor, offer(42), 2), Ok(true), "the binding has to become durable");
        assert!(matches!(enter(&mut floor, unnamed, 3), Err(FenceRefusal::ClusterUnnamed { .. })));
    }

    #[test]
    fn r34_a_number_that_was_never_issued_is_refused_where_the_last_is_known() {
        let reason = FenceRefusal::NotIssued { offered: Token(43), highest_issued: Token(42) };
        assert_eq!(offer(43).within(Token(42)), Err(reason));
        assert_eq!(offer(42).within(Token(42)), Ok(offer(42)));
        assert!(matches!(Floor::default().admit(offer(0)), Err(FenceRefusal::NotIssued { .. })));
    }

    #[test]
    fn a_base_holds_for_seats_that_nobody_has_named() {
        let base = Mark { token: Token(40), cluster: Some(HOME), at: Wall(9) };
        let mut floor = Floor::starting_at(base);
        assert!(enter(&mut floor, offer(39).seat(SeatNo(3)), 10).is_err());
        assert_eq!(enter(&mut floor, offer(40).seat(SeatNo(3)), 10), Ok(false));
        assert_eq!(enter(&mut floor, offer(41).seat(SeatNo(3)), 11), Ok(true));
        assert_eq!(floor.mark(SeatNo(4)), base);
        assert_eq!(floor.seats().map(|(seat, _)| seat).collect::<Vec<_>>(), [SeatNo(3)]);
        assert_eq!(Floor::of(floor.base(), floor.seats()), floor);
    }

    #[test]
    #[should_panic(expected = "a floor never goes down: 41 after 42")]
    fn a_stale_answer_cannot_be_raised() {
        let mut floor = Floor::default();
        let stale = floor.admit(offer(41)).expect("the floor is empty");
        let fresh = floor.admit(offer(42)).expect("the floor is empty");
        floor.raise(fresh, Wall(1));
        floor.raise(stale, Wall(2));
    }

    #[test]
    fn a_floor_survives_its_stored_form() {
        let mut floor = Floor::default();
        assert_eq!(enter(&mut floor, offer(u64::MAX).seat(SeatNo(2)), 5), Ok(true));
        let bytes = postcard::to_allocvec(&floor).expect("it is plain data");
        assert_eq!(postcard::from_bytes::<Floor>(&bytes), Ok(floor));
    }

    proptest::proptest! {
        #[test]
        fn r10_an_admitted_token_never_goes_down(
            offers in proptest::collection::vec((0u32..3, 0u64..20, proptest::option::of(0u128..3)), 0..60),
        ) {
            let mut floor = Floor::default();
            let mut last = [0u64; 3];
            for (at, (seat, token, cluster)) in offers.into_iter().enumerate() {
                let offer = Offer {
                    cluster: cluster.map(ClusterId),
                    seat: SeatNo(seat),
                    token: Token(token),
                };
                let before = floor.mark(SeatNo(seat));
                match enter(&mut floor, offer, at as u64) {
                    Ok(_) => {
                        assert!(token >= last[seat as usize]);
                        assert!(before.cluster.is_none() || before.cluster == offer.cluster);
                        last[seat as usize] = token;
                    }
                    Err(_) => assert_eq!(floor.mark(SeatNo(seat)), before, "a refusal changes nothing"),
                }
            }
        }
    }
}
