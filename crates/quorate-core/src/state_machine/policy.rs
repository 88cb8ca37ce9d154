//! How a group numbers, orders and seats its members. Every field that any version knows is here
//! from the first one, so that a later version reads an older log unchanged.

use crate::time::Span;
use alloc::string::String;
use core::fmt;
use serde::{Deserialize, Serialize};

/// Which face a name has. One namespace: a name has one face for as long as anybody is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Face {
    /// Members with ordinals who hear of each other.
    Group,
    /// One seat that is left when done; a waiter hears only of its own grant.
    Lock,
    /// One seat and a value.
    Leadership,
    /// Several seats that are left when done.
    Semaphore,
    /// As many seats as parties; all are granted together, once all are there.
    Barrier,
}

impl fmt::Display for Face {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Group => "group",
            Self::Lock => "lock",
            Self::Leadership => "leadership",
            Self::Semaphore => "semaphore",
            Self::Barrier => "barrier",
        })
    }
}

/// How ordinals follow the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Numbering {
    /// n members hold 1..n; when k leaves, those above move down one.
    #[default]
    Dense,
    /// A number is kept for life; a joiner fills the lowest hole.
    Stable,
    /// When k leaves, the last member moves into the hole.
    MinimalMove,
}

/// What decides the place in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Order {
    /// First come, first served.
    #[default]
    Join,
    /// The heavier first, among equals the earlier.
    Weight,
}

/// Whether a newcomer may make a seated member stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Preempt {
    /// The seated members stay.
    #[default]
    Never,
    /// A heavier member makes a lighter one stop.
    OnWeight,
    /// Only a transfer does.
    OnCommand,
}

/// Which place a member takes that comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Rejoin {
    /// The last one.
    #[default]
    Tail,
    /// Its old one, if it is back within the grace.
    Sticky {
        /// How long the place is kept.
        grace: Span,
    },
}

/// What happens between the end of one holder and the grant to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Handover {
    /// The next holds in the same step.
    #[default]
    Immediate,
    /// A pause.
    Delay {
        /// Its length.
        delay: Span,
    },
    /// The registered guards raise their floor first.
    Seal,
}

/// What a member states about the policy. An omitted field is a wildcard (RULES R17).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PolicyWish {
    /// How many members act at once, from 1.
    pub seats: Option<u32>,
    /// How ordinals follow the queue.
    pub numbering: Option<Numbering>,
    /// What decides the place in the queue.
    pub order: Option<Order>,
    /// Whether a newcomer may make a seated member stop.
    pub preempt: Option<Preempt>,
    /// Which place a member takes that comes back.
    pub rejoin: Option<Rejoin>,
    /// What happens between two holders.
    pub handover: Option<Handover>,
}

/// Two statements about one policy field that differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PolicyClash {
    /// The field's name.
    pub field: String,
    /// What was stated first and holds.
    pub stated: String,
    /// What was asked now.
    pub asked: String,
}

macro_rules! merge {
    ($mine:ident, $other:ident, $($field:ident),*) => {
        $(
            match (&$mine.$field, &$other.$field) {
                (Some(stated), Some(asked)) if stated != asked => {
                    return Err(PolicyClash {
                        field: stringify!($field).into(),
                        stated: alloc::format!("{stated:?}").to_lowercase(),
                        asked: alloc::format!("{asked:?}").to_lowercase(),
                    });
                }
                _ => {}
            }
        )*
        $(
            if $mine.$field.is_none() {
                $mine.$field = $other.$field.clone();
            }
        )*
    };
}

impl PolicyWish {
    /// Takes from `other` what is not yet stated here.
    ///
    /// # Errors
    /// [`PolicyClash`] names the first field that both state differently; nothing is taken then.
    pub fn merge(&mut self, other: &Self) -> Result<(), PolicyClash> {
        merge!(self, other, seats, numbering, order, preempt, rejoin, handover);
        Ok(())
    }

    /// How many members act at once: what was stated, or one.
    pub fn seats(&self) -> u32 {
        self.seats.unwrap_or(1)
    }
}
