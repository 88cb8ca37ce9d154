//! What happens to elections in searches and random worlds: who asks, and what fails.

use super::check::all_name_one_of;
use crate::fuzz::{Fuzzer, Odds};
use crate::network::{Delay, Network};
use crate::world::Maker;
use quorate_core::election::{Call, Elects, Event};
use quorate_core::protocol::{ProcessId, Protocol};

/// Crashes and false suspicions; a detector that is slower than any message. No link loses anything.
pub const STOPS: Odds = Odds {
    faults_max: 5,
    crash: 600,
    wipe: 500,
    pause: 0,
    cut: 0,
    isolate: 0,
    suspect: 400,
    clock_rate: 0,
    clock_jump: 0,
};

/// Everything that leaves the disks as they are.
pub const EVERYTHING: Odds = Odds {
    faults_max: 8,
    crash: 300,
    wipe: 0,
    pause: 150,
    cut: 150,
    isolate: 150,
    suspect: 50,
    clock_rate: 100,
    clock_jump: 50,
};

/// Links that keep their order and lose nothing; each message takes 0.1 to 10 ms.
pub const fn ordered() -> Network {
    Network { delay: Delay::Even(100, 10_000), ..Network::calm() }
}

/// Worlds in which each process holds one election, and all that run name one five seconds after everything has
/// healed.
pub fn fuzzer<P: Elects>(maker: Maker<P>, n: usize, network: Network, odds: Odds) -> Fuzzer<P> {
    Fuzzer {
        maker,
        n,
        network,
        odds,
        calls: (Call::Elect, 1),
        reaction: (silent, Delay::Fixed(0)),
        faults_us: 400_000,
        settle_us: 5_000_000,
        detector: Some(Delay::Fixed(100_000)),
        check: |_| Ok(()),
        goal: |world| all_name_one_of(world.nodes().iter()),
    }
}

fn silent(_event: &Event) -> Option<Call> {
    None
}

/// Nobody asks: elections begin by themselves.
pub fn nobody<P: Protocol>(_machine: &P, _made: u32) -> Option<P::Call> {
    None
}

/// One process holds an election.
pub fn only<P: Elects, const STARTER: u32>(machine: &P, made: u32) -> Option<Call> {
    (machine.me().process == ProcessId(STARTER) && made == 0).then_some(Call::Elect)
}

/// The first process holds an election, and so does whoever comes back.
pub fn first_and_new_lives<P: Elects>(machine: &P, made: u32) -> Option<Call> {
    let idle = machine.leader().is_none() && !machine.is_electing();
    let first = machine.me().process == ProcessId(1) && made == 0;
    (idle && (first || machine.me().incarnation.0 > 1 && made < 2)).then_some(Call::Elect)
}
