//! The policy of a queue on a command line: the same flags for who creates a group and for who joins one.
//!
//! What is not stated is left open, and the first member to state it sets it (RULES R17). So a flag that is not given
//! is not a default: it is a wildcard.

use clap::{Args, ValueEnum};
use quorate::proto;
use std::time::Duration;

/// What is stated about the policy of a queue.
#[derive(Args, Clone, Debug)]
pub struct PolicyArgs {
    /// How many members act at once, from 1
    #[arg(long, value_name = "K")]
    seats: Option<u32>,
    /// How numbers follow the queue
    #[arg(long, value_enum)]
    numbering: Option<NumberingArg>,
    /// What decides the place in the queue
    #[arg(long, value_enum)]
    order: Option<OrderArg>,
    /// Whether a newcomer may make a member that acts stop
    #[arg(long, value_enum)]
    preempt: Option<PreemptArg>,
    /// The place of a member that comes back: tail, or how long its old one is kept, such as 30s
    #[arg(long, value_name = "tail|TIME", value_parser = rejoin)]
    rejoin: Option<Duration>,
    /// Between two holders: immediate, seal, or a pause, such as 2s
    #[arg(long, value_name = "immediate|seal|TIME", value_parser = handover)]
    handover: Option<HandoverArg>,
}

impl PolicyArgs {
    /// What is stated, as the contract has it.
    pub fn wire(&self) -> proto::Policy {
        proto::Policy {
            seats: self.seats,
            numbering: self.numbering.map(NumberingArg::wire),
            order: self.order.map(OrderArg::wire),
            preempt: self.preempt.map(PreemptArg::wire),
            rejoin_sticky_ms: self.rejoin.map(millis),
            handover_delay_ms: match self.handover {
                Some(HandoverArg::Delay(delay)) => Some(millis(delay)),
                _ => None,
            },
            handover_seal: matches!(self.handover, Some(HandoverArg::Seal)).then_some(true),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

macro_rules! choices {
    ($(#[$doc:meta])* $name:ident as $wire:ident { $($(#[$each:meta])* $variant:ident = $wired:ident),* }) => {
        $(#[$doc])*
        #[derive(ValueEnum, Clone, Copy, Debug)]
        pub enum $name { $($(#[$each])* $variant),* }

        impl $name {
            /// The contract's number of it.
            pub fn wire(self) -> i32 {
                match self { $(Self::$variant => proto::$wire::$wired.into()),* }
            }
        }
    };
}

choices! {
    /// What a name is used as.
    FaceArg as Face {
        /// Members with numbers who hear of each other
        Group = Group,
        /// One seat that is left when done
        Lock = Lock,
        /// One seat and a value
        Leadership = Leadership,
        /// Several seats that are left when done
        Semaphore = Semaphore,
        /// As many seats as parties; all go through together
        Barrier = Barrier
    }
}
choices! {
    /// How numbers follow the queue.
    NumberingArg as Numbering {
        /// Members hold 1 to n; when one leaves, those above move down
        Dense = Dense,
        /// A number is kept for life
        Stable = Stable,
        /// When one leaves, the last moves into the hole
        MinimalMove = MinimalMove
    }
}
choices! {
    /// What decides the place in the queue.
    OrderArg as Order {
        /// First come, first served
        Join = JoinOrder,
        /// The heavier first
        Weight = Weight
    }
}
choices! {
    /// Whether a newcomer may make a seated member stop.
    PreemptArg as Preempt {
        /// The seated stay
        Never = Never,
        /// A heavier member makes a lighter one stop
        OnWeight = OnWeight,
        /// Only a transfer does
        OnCommand = OnCommand
    }
}

/// What happens between two holders.
#[derive(Clone, Copy, Debug)]
pub enum HandoverArg {
    /// A pause, perhaps none.
    Delay(Duration),
    /// The guards raise their floor first.
    Seal,
}

fn rejoin(text: &str) -> Result<Duration, String> {
    match text {
        "tail" => Ok(Duration::ZERO),
        time => humantime::parse_duration(time).map_err(|error| error.to_string()),
    }
}

fn handover(text: &str) -> Result<HandoverArg, String> {
    match text {
        "immediate" => Ok(HandoverArg::Delay(Duration::ZERO)),
        "seal" => Ok(HandoverArg::Seal),
        time => humantime::parse_duration(time).map(HandoverArg::Delay).map_err(|error| error.to_string()),
    }
}
