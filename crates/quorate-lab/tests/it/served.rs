//! The replicated service in every order of its commands: delayed, overtaken, doubled, and leases that end.

use quorate_core::mutex::{Call, Event};
use quorate_core::protocol::{Outbox, ProcessId};
use quorate_core::time::Span;
use quorate_lab::check::{entries, nobody_waits_unharmed, one_inside, one_inside_of, true_waits};
use quorate_lab::explore::{Explorer, Found};
use quorate_lab::fuzz::leave;
use quorate_lab::network::{Delay, Network, Order};
use quorate_lab::service::Service;
use quorate_lab::spot::{Faults, Rules, Spot, Timing};
use quorate_lab::trace::Trace;
use quorate_lab::world::World;
use std::sync::Arc;

fn rules(n: usize, timing: Timing, faults: Faults) -> Rules<Service> {
    Rules {
        maker: Arc::new(move |me| Service::new(me, n, Span::from_millis(1_000))),
        n,
        order: Order::Unordered,
        faults,
        timing,
        detector: false,
        calls: |one, made| if one.is_log() { None } else { entries::<Service, 1>(one, made) },
    }
}

fn explore(rules: Rules<Service>) -> Found<Service> {
    let explorer =
        Explorer { rules, invariant: one_inside, rest: nobody_waits_unharmed, states_max: 300_000 };
    let found = explorer.run();
    println!("{} unique, {} generated, depth {}", found.unique, found.generated, found.depth);
    found
}

#[test]
fn every_order_of_commands_grants_to_one() {
    for faults in [Faults::default(), Faults { doubles: 2, ..Faults::default() }] {
        let found = explore(rules(3, Timing::Any, faults));
        assert!(found.complete, "{:?}", found.counter_example.map(|counter| counter.why));
    }
}

#[test]
fn leases_end_after_deadlines_on_exact_clocks_only() {
    let some = Faults { timers: 4, ..Faults::default() };
    let found = explore(rules(3, Timing::Exact, some));
    assert!(found.complete, "{:?}", found.counter_example.map(|counter| counter.why));
    let found = explore(rules(3, Timing::Any, some));
    let counter = found.counter_example.expect("a clock that stands still is what the guard is for");
    assert!(counter.why.contains("both inside"), "{}", counter.why);
}

#[test]
fn the_waits_of_the_service_are_true() {
    let rules = rules(4, Timing::Any, Faults::default());
    let (mut seen, mut todo) = (std::collections::BTreeSet::new(), vec![Spot::first(&rules)]);
    let mut actions = Vec::new();
    while let Some(spot) = todo.pop() {
        true_waits(&rules, &spot).unwrap();
        spot.actions(&rules, &mut actions);
        for action in &actions {
            let mut next = spot.clone();
            next.apply(&rules, action, None, &mut Outbox::default());
            if seen.len() < 5_000 && seen.insert(next.fingerprint()) {
                todo.push(next);
            }
        }
    }
    assert!(seen.len() > 500, "{}", seen.len());
}

#[test]
fn a_world_of_the_service_hands_the_lock_round() {
    let again = |event: &Event| match event {
        Event::Left { .. } => Some(Call::Enter),
        other => leave(other),
    };
    let noisy = Network { double_permille: 100, ..Network::unordered() };
    for seed in 0..20 {
        let maker = |me| Service::new(me, 5, Span::from_secs(10));
        let mut world = World::new(seed, 5, noisy, Arc::new(maker));
        world.record(Trace::ring(1 << 16));
        world.react(again, Delay::Even(0, 5_000));
        (1..5).for_each(|index| world.call(ProcessId::at(index), Call::Enter));
        while world.time_us() < 5_000_000 && world.next() {
            one_inside_of(world.nodes().iter()).unwrap();
        }
        let entered = world
            .trace()
            .steps()
            .filter(|step| matches!(step.what, quorate_core::trace::What::Emitted { kind: 1 }));
        assert!(entered.count() > 100, "seed {seed}");
    }
}
