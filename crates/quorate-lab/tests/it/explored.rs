//! Small worlds, searched completely.

use quorate_core::mutex::{Central, Mutex, RicartAgrawala};
use quorate_core::protocol::{Members, ProcessId};
use quorate_core::time::Span;
use quorate_lab::check::{entries, nobody_waits, nobody_waits_unharmed, one_inside, true_waits};
use quorate_lab::explore::{Explorer, Found};
use quorate_lab::network::Order;
use quorate_lab::spot::{Faults, Rules, Timing};
use quorate_lab::world::Maker;
use std::sync::Arc;

fn ricart_agrawala(n: usize) -> Maker<RicartAgrawala> {
    Arc::new(move |me| RicartAgrawala::new(me, Members::first(n), None))
}

fn rules<P: Mutex>(maker: Maker<P>, n: usize, order: Order, faults: Faults) -> Rules<P> {
    Rules { maker, n, order, faults, timing: Timing::Any, detector: false, calls: entries::<P, 1> }
}

fn explore<P: Mutex>(rules: Rules<P>) -> Found<P> {
    let explorer =
        Explorer { rules, invariant: one_inside, rest: nobody_waits_unharmed, states_max: 3_000_000 };
    let found = explorer.run();
    println!(
        "{} unique, {} generated, {} quiet, depth {}",
        found.unique, found.generated, found.quiet, found.depth
    );
    found
}

fn holds<P: Mutex>(rules: Rules<P>) {
    let found = explore(rules);
    if let Some(counter) = found.counter_example {
        panic!("{}\n{:#?}", counter.why, counter.path);
    }
    assert!(found.complete);
}

#[test]
fn ricart_agrawala_holds_on_unordered_links() {
    holds(rules(ricart_agrawala(3), 3, Order::Unordered, Faults::default()));
    let mut twice =
        rules(ricart_agrawala(2), 2, Order::Unordered, Faults { doubles: 2, ..Faults::default() });
    twice.calls = entries::<RicartAgrawala, 2>;
    holds(twice);
}

#[test]
fn ricart_agrawala_holds_over_restarts() {
    let faults = Faults { crashes: 1, wipes: 1, ..Faults::default() };
    holds(rules(ricart_agrawala(2), 2, Order::Unordered, faults));
    let crash = Faults { crashes: 1, ..Faults::default() };
    holds(rules(ricart_agrawala(3), 3, Order::Unordered, crash));
    let mut twice = rules(ricart_agrawala(2), 2, Order::Unordered, Faults { crashes: 1, wipes: 1, ..faults });
    twice.calls = entries::<RicartAgrawala, 2>;
    holds(twice);
}

fn central(n: usize, lease: Option<Span>, durable: bool) -> Rules<Central> {
    let maker = move |me| Central::new(me, ProcessId(1), lease, durable);
    rules(Arc::new(maker), n, Order::Unordered, Faults::default())
}

#[test]
fn central_holds() {
    holds(central(4, None, false));
    let mut doubled = central(3, None, false);
    doubled.faults.doubles = 2;
    holds(doubled);
    let mut restarted = central(3, None, true);
    restarted.faults = Faults { crashes: 1, restarts: 1, ..Faults::default() };
    holds(restarted);
}

#[test]
fn central_with_a_lease_holds_on_exact_clocks() {
    let some = [
        Faults { timers: 3, ..Faults::default() },
        Faults { timers: 3, crashes: 1, ..Faults::default() },
        Faults { timers: 2, drops: 1, ..Faults::default() },
        Faults { timers: 1, crashes: 1, restarts: 1, ..Faults::default() },
    ];
    for faults in some {
        let mut leased = central(3, Some(Span::from_millis(4)), faults.restarts > 0);
        leased.timing = Timing::Exact;
        leased.faults = faults;
        holds(leased);
    }
}

#[test]
fn a_lease_does_not_hold_a_paused_holder() {
    let mut leased = central(3, Some(Span::from_secs(4)), false);
    leased.timing = Timing::Exact;
    leased.faults = Faults { timers: 6, pauses: 1, ..Faults::default() };
    let found = explore(leased);
    let counter = found.counter_example.expect("the guard is for this");
    assert!(counter.why.contains("both inside"), "{}", counter.why);
}

#[test]
fn a_coordinator_without_its_record_grants_twice() {
    let mut wiped = central(3, None, true);
    wiped.faults = Faults { crashes: 1, wipes: 1, ..Faults::default() };
    assert!(explore(wiped).counter_example.is_some());
}

#[test]
fn clients_that_differ_in_name_only_are_visited_once() {
    let explorer = Explorer {
        rules: central(5, None, false),
        invariant: one_inside,
        rest: nobody_waits_unharmed,
        states_max: 1_000_000,
    };
    let (all, one) = (explorer.run(), explorer.run_symmetric());
    println!("{} and {} unique", all.unique, one.unique);
    assert!(all.complete && one.complete);
    assert!(one.unique * 10 < all.unique, "{} of {}", one.unique, all.unique);
    assert!(one.unique * 120 >= all.unique, "no more than all permutations of five");
    let mut forgetful = central(4, None, false);
    forgetful.faults = Faults { crashes: 1, restarts: 1, ..Faults::default() };
    let explorer = Explorer { rules: forgetful, ..explorer };
    let counter = explorer.run_symmetric().counter_example.expect("it forgets whom it granted");
    assert_eq!(counter.path.len(), explorer.run().counter_example.unwrap().path.len());
}

pub(crate) fn waits_are_true<P: Mutex>(rules: &Rules<P>) -> u64 {
    use quorate_core::protocol::Outbox;
    use quorate_lab::spot::Spot;
    let (mut seen, mut todo) = (std::collections::BTreeSet::new(), vec![Spot::first(rules)]);
    let mut actions = Vec::new();
    while let Some(spot) = todo.pop() {
        true_waits(rules, &spot).unwrap();
        if spot.actions(rules, &mut actions) && !spot.harmed() {
            nobody_waits(&spot).unwrap();
        }
        for action in &actions {
            let mut next = spot.clone();
            next.apply(rules, action, None, &mut Outbox::default());
            if seen.insert(next.fingerprint()) {
                todo.push(next);
            }
        }
    }
    seen.len() as u64
}

#[test]
fn every_wait_names_a_true_cause() {
    let states = waits_are_true(&rules(ricart_agrawala(3), 3, Order::Unordered, Faults::default()));
    assert!(states > 2_500, "{states}");
    let mut twice =
        rules(ricart_agrawala(2), 2, Order::Unordered, Faults { crashes: 1, wipes: 1, ..Faults::default() });
    twice.calls = entries::<RicartAgrawala, 2>;
    waits_are_true(&twice);
    waits_are_true(&central(4, None, true));
    waits_are_true(&central(3, None, false));
}
