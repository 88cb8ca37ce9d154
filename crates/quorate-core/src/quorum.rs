//! Voting sets: whom a process asks so that no two that ask can both be told yes.
//!
//! **Rule.** Write the processes row by row into a grid with ceil(sqrt N) columns; the set of a process is
//! its row and its column. The last row may be short, for any N.
//!
//! Any two sets meet. Take processes in rows `i` and `k`. In one row, they share it. Else at least one row,
//! say `i`, is not the last and so is full: it holds a process in the other's column, which is in both sets.
//!
//! **Size.** K = 2 sqrt(N) - 1 on a square: 3 of 4, 5 of 9, 7 of 16, 9 of 25, 19 of 100. Else K differs by
//! place and is at most 2 ceil(sqrt N) - 1: for N = 10, in rows of 4, 4 and 2, it is 6 for the four on top of
//! a column of three, 5 for the four on top of a column of two, and 4 for the two in the last row; 5.2 on
//! average.
//!
//! **Source.** Maekawa 1985, section 4, which prefers finite projective planes (K near sqrt N) and offers
//! the grid as the simple way. The argument for a short last row is ours.

use crate::protocol::{Members, ProcessId};
use alloc::vec::Vec;

/// The voting set of one process: those of its row and of its column, itself among them, in order.
///
/// # Panics
/// If the process is not a member.
pub fn grid(members: &Members, process: ProcessId) -> Members {
    let columns = ceil_sqrt(members.count());
    let place = members.iter().position(|member| member == process).expect("a member");
    let (row, column) = (place / columns, place % columns);
    let meets = |other: usize| other / columns == row || other % columns == column;
    let set: Vec<_> = members.iter().enumerate().filter(|(other, _)| meets(*other)).map(|(_, m)| m).collect();
    Members::new(set)
}

/// The least number whose square is not less than `n`.
fn ceil_sqrt(n: usize) -> usize {
    let root = n.isqrt();
    root + usize::from(root * root < n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn set(n: usize, place: usize) -> Vec<usize> {
        grid(&Members::first(n), ProcessId::at(place)).iter().map(ProcessId::index).collect()
    }

    #[test]
    fn nine_processes_vote_in_the_sets_of_the_figure() {
        assert_eq!(set(9, 0), [0, 1, 2, 3, 6]);
        assert_eq!(set(9, 4), [1, 3, 4, 5, 7]);
        assert_eq!(set(9, 5), [2, 3, 4, 5, 8]);
        assert_eq!(set(9, 8), [2, 5, 6, 7, 8]);
    }

    #[test]
    fn any_two_sets_meet_and_each_holds_its_process() {
        for n in 1..=120 {
            let sets: Vec<_> = (0..n).map(|place| set(n, place)).collect();
            let most = 2 * ceil_sqrt(n) - 1;
            for (place, mine) in sets.iter().enumerate() {
                assert!(mine.contains(&place), "{place} of {n} votes for itself");
                assert!(mine.len() <= most, "{place} of {n} asks {} of at most {most}", mine.len());
                for other in &sets {
                    assert!(mine.iter().any(|voter| other.contains(voter)), "{mine:?} and {other:?} of {n}");
                }
            }
        }
    }

    #[test]
    fn squares_have_sets_of_one_size_and_ten_has_three_sizes() {
        for (n, k) in [(4, 3), (9, 5), (16, 7), (25, 9), (100, 19)] {
            assert!((0..n).all(|place| set(n, place).len() == k), "K of {n} is {k}");
        }
        let sizes: Vec<_> = (0..10).map(|place| set(10, place).len()).collect();
        assert_eq!(sizes, vec![6, 6, 5, 5, 6, 6, 5, 5, 4, 4]);
    }
}
