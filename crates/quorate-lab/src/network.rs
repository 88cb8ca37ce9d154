//! What links and disks do to what is handed to them.

use crate::draw::below;
use std::fmt;

/// How long something takes, in microseconds of true time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// Always this long.
    Fixed(u64),
    /// Evenly between both, ends included.
    Even(u64, u64),
    /// At least the first; above it geometric: each doubling of the second beyond is half as likely.
    Tailed(u64, u64),
}

impl Delay {
    /// The delay that this number stands for.
    pub fn pick(self, number: u64) -> u64 {
        match self {
            Self::Fixed(us) => us,
            Self::Even(least, most) => least + below(number, most.saturating_sub(least) + 1),
            Self::Tailed(least, scale) => {
                let doublings = u64::from(number.trailing_ones()).min(20);
                least + below(number, scale + 1) + ((scale << doublings) - scale)
            }
        }
    }
}

/// As the options of scripts: `1000us`, `100us..5000us`, `tailed:100us..5000us`.
impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(us) => write!(f, "{us}us"),
            Self::Even(least, most) => write!(f, "{least}us..{most}us"),
            Self::Tailed(least, scale) => write!(f, "tailed:{least}us..{scale}us"),
        }
    }
}

/// In which order a link delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// As sent, as a connection does.
    Fifo,
    /// As it comes, as datagrams do.
    Unordered,
}

/// The links and disks of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// How long a message takes.
    pub delay: Delay,
    /// In which order they come.
    pub order: Order,
    /// How many of a thousand are lost.
    pub loss_permille: u64,
    /// How many of a thousand come twice.
    pub double_permille: u64,
    /// How long a record takes to be durable.
    pub disk: Delay,
}

impl Network {
    /// Nothing is lost or doubled, each message takes 1 ms and keeps its place, the disk takes no time.
    pub const fn calm() -> Self {
        Self {
            delay: Delay::Fixed(1_000),
            order: Order::Fifo,
            loss_permille: 0,
            double_permille: 0,
            disk: Delay::Fixed(0),
        }
    }

    /// As [`Network::unordered`], and one message in twenty is lost, and one comes twice.
    pub const fn noisy() -> Self {
        Self { loss_permille: 50, double_permille: 50, ..Self::unordered() }
    }

    /// Nothing is lost or doubled; each message takes 0.1 to 10 ms and may overtake others.
    pub const fn unordered() -> Self {
        Self {
            delay: Delay::Even(100, 10_000),
            order: Order::Unordered,
            disk: Delay::Even(100, 5_000),
            ..Self::calm()
        }
    }
}
