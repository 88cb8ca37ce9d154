//! A protocol of your own, in a line each: every order of events is searched, and one run is drawn.
//!
//! `examples/own_protocol.rs` shows it. For a name in scripts, searches and figures it takes a row in
//! [`crate::catalog`] and [`crate::prove`].

use crate::check::{entries, nobody_waits, one_inside};
use crate::diagram::space_time;
use crate::explore::Explorer;
use crate::fuzz::leave;
use crate::network::{Delay, Network, Order};
use crate::spot::{Faults, Rules, Timing};
use crate::story::Story;
use crate::trace::Trace;
use crate::world::World;
use quorate_core::mutex::{Call, Mutex};
use quorate_core::protocol::ProcessId;
use std::sync::Arc;

/// A search ends unfinished beyond so many states.
const STATES_MAX: u64 = 5_000_000;

/// How long a drawn run lasts, in microseconds.
const DRAWN_US: u64 = 12_000;

/// Lets each of `n` processes enter once, over links that keep their order, in every order of events within a
/// budget of faults. Says in how many states at most one is inside and nobody waits at rest, or what does not
/// hold.
pub fn search<P: Mutex>(
    n: usize,
    maker: impl Fn(ProcessId) -> P + Send + Sync + 'static,
    faults: Faults,
) -> String {
    let rules = Rules {
        maker: Arc::new(maker),
        n,
        order: Order::Fifo,
        faults,
        timing: Timing::Any,
        detector: false,
        calls: entries::<P, 1>,
    };
    let explorer = Explorer { rules, invariant: one_inside, rest: nobody_waits, states_max: STATES_MAX };
    let found = explorer.run();
    let verdict = match (found.counter_example, found.complete) {
        (Some(counter), _) => counter.why,
        (None, true) => "holds".into(),
        (None, false) => "nothing is violated so far, and there are more".into(),
    };
    format!("{} states, {verdict}", found.unique)
}

/// Draws a run in which these processes ask at once, and leave 3 ms after they have entered, as SVG.
pub fn draw<P: Mutex>(
    n: usize,
    maker: impl Fn(ProcessId) -> P + Send + Sync + 'static,
    ask: &[u32],
    title: &str,
) -> String {
    let mut world = World::new(1, n, Network::calm(), Arc::new(maker));
    world.record(Trace::whole());
    world.react(leave, Delay::Fixed(3_000));
    for process in ask {
        world.call(ProcessId(*process), Call::Enter);
    }
    world.run_until(DRAWN_US, 100 * n as u64);
    space_time(&Story::of(&world, title, ""))
}
