//! How fast the lab is, in seconds of one processor: events in a world, states in a search, worlds in a fuzz.
//!
//! Run: `cargo run --release -p quorate-lab --example speed`.
//! You will see one line a measurement, with its conditions.

use quorate_core::mutex::{Call, Event, RicartAgrawala};
use quorate_core::protocol::{Members, ProcessId};
use quorate_lab::check::{entries, nobody_waits, one_inside, one_inside_of};
use quorate_lab::explore::Explorer;
use quorate_lab::fuzz::{Fuzzer, Odds, leave};
use quorate_lab::network::{Delay, Network, Order};
use quorate_lab::spot::{Faults, Rules, Timing};
use quorate_lab::trace::Trace;
use quorate_lab::world::{Maker, World};
use std::sync::Arc;
use std::time::Duration;

/// How long work takes of this thread's processor, where the system tells; else of the clock on the wall.
#[expect(clippy::disallowed_methods, reason = "this program measures real time")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let (begun, used) = (std::time::Instant::now(), used());
    let done = work();
    match (used, self::used()) {
        (Some(before), Some(after)) => (done, after - before),
        _ => (done, begun.elapsed()),
    }
}

/// The processor time of this thread.
fn used() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').next()?.parse().ok().map(Duration::from_nanos)
}

fn maker(n: usize) -> Maker<RicartAgrawala> {
    let members = Members::first(n);
    Arc::new(move |me| RicartAgrawala::new(me, members.clone(), None))
}

fn again(event: &Event) -> Option<Call> {
    match event {
        Event::Entered { .. } => Some(Call::Leave),
        Event::Left { .. } => Some(Call::Enter),
        _ => None,
    }
}

/// Five processes that enter again and again over unordered links.
fn events(trace: Trace, name: &str) {
    let mut world = World::new(1, 5, Network::unordered(), maker(5));
    world.record(trace);
    world.react(again, Delay::Even(0, 1_000));
    for index in 0..5 {
        world.call(ProcessId::at(index), Call::Enter);
    }
    let (done, took) = timed(|| world.run(5_000_000));
    let rate = done as f64 / took.as_secs_f64() / 1e6;
    println!(
        "world, 5 x Ricart-Agrawala, {name}: {rate:.1} M events/s ({} steps traced)",
        world.trace().total()
    );
}

fn states() {
    let rules = Rules {
        maker: maker(3),
        n: 3,
        order: Order::Unordered,
        faults: Faults::default(),
        timing: Timing::Any,
        detector: false,
        calls: entries::<RicartAgrawala, 2>,
    };
    let explorer = Explorer { rules, invariant: one_inside, rest: nobody_waits, states_max: 10_000_000 };
    let (found, took) = timed(|| explorer.run());
    let rate = found.unique as f64 / took.as_secs_f64() / 1e3;
    println!(
        "search, 3 x Ricart-Agrawala, 2 entries each: {} unique, {} generated, depth {}, {rate:.0} k unique/s",
        found.unique, found.generated, found.depth
    );
}

/// Whole worlds of three processes that enter once each, with faults, healed and settled.
fn worlds(odds: Odds, name: &str) {
    let fuzzer = Fuzzer {
        maker: maker(3),
        n: 3,
        network: Network::unordered(),
        odds,
        calls: (Call::Enter, 1),
        reaction: (leave, Delay::Even(0, 5_000)),
        faults_us: 30_000,
        settle_us: 1_000_000,
        detector: Some(Delay::Fixed(20_000)),
        check: |world| one_inside_of(world.nodes().iter()),
        goal: |_| Ok(()),
    };
    let ((steps, failed), took) = timed(|| fuzzer.fuzz(0..200_000));
    assert!(failed.is_none());
    let rate = 200.0 / took.as_secs_f64();
    println!(
        "random worlds, 3 x Ricart-Agrawala, {name}: {rate:.0} k worlds/s, {} steps each",
        steps / 200_000
    );
}

fn main() {
    events(Trace::off(), "no trace");
    events(Trace::ring(1 << 16), "binary trace in a ring");
    states();
    worlds(Odds::default(), "no faults");
    let odds = Odds { faults_max: 2, crash: 400, pause: 300, suspect: 300, ..Odds::default() };
    worlds(odds, "up to 2 crashes, pauses or suspicions");
}
