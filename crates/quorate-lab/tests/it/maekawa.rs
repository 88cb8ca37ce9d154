//! Maekawa: complete searches, random worlds, the cost under load, and the deadlock of the basic form.

use crate::explored::waits_are_true;
use quorate_core::mutex::{Flaw, Maekawa, MaekawaForm};
use quorate_core::protocol::{Members, ProcessId, Within};
use quorate_lab::check::{entries, nobody_waits, one_inside};
use quorate_lab::explore::{Explorer, Found};
use quorate_lab::figures::{Load, measure};
use quorate_lab::fuzz::{Fuzzer, Odds, leave};
use quorate_lab::network::{Delay, Order};
use quorate_lab::node::Power;
use quorate_lab::render;
use quorate_lab::script::play;
use quorate_lab::spot::{Faults, Rules, Spot, Timing};
use quorate_lab::world::Maker;
use std::sync::Arc;

use MaekawaForm::{Basic, DeadlockFree};

/// Three processes, each of which asks itself and the next one: every two sets share one voter.
pub(crate) fn triangle(form: MaekawaForm, durable: bool, flaw: Option<Flaw>) -> Maker<Maekawa> {
    let members = Members::first(3);
    Arc::new(move |me| {
        let voters = Members::new(vec![me, members.after(me)]);
        Maekawa::new(me, members.clone(), form, durable, None).with_voters(voters).with_flaw(flaw)
    })
}

pub(crate) fn grid(n: usize, flaw: Option<Flaw>) -> Maker<Maekawa> {
    Arc::new(move |me| Maekawa::new(me, Members::first(n), DeadlockFree, false, None).with_flaw(flaw))
}

/// At rest nobody waits, as soon as all run.
pub(crate) fn nobody_waits_when_all_run(spot: &Spot<Maekawa>) -> Result<(), String> {
    match spot.nodes().all(|node| node.power == Power::Up) {
        true => nobody_waits(spot),
        false => Ok(()),
    }
}

pub(crate) fn search(maker: Maker<Maekawa>, order: Order, faults: Faults) -> Explorer<Maekawa> {
    let calls = entries::<Maekawa, 1>;
    let detector = faults.crashes > 0;
    let rules = Rules { maker, n: 3, order, faults, timing: Timing::Any, detector, calls };
    Explorer { rules, invariant: one_inside, rest: nobody_waits_when_all_run, states_max: 3_000_000 }
}

fn holds(explorer: &Explorer<Maekawa>) -> Found<Maekawa> {
    let found = explorer.run();
    if let Some(counter) = &found.counter_example {
        panic!("{}\n{}", counter.why, render::script(&explorer.rules, &counter.path, "", ""));
    }
    assert!(found.complete, "{} states are not all", found.unique);
    println!("{} states, {} quiet, depth {}", found.unique, found.quiet, found.depth);
    found
}

#[test]
fn the_deadlock_free_form_holds() {
    holds(&search(triangle(DeadlockFree, false, None), Order::Fifo, Faults::default()));
    holds(&search(grid(3, None), Order::Unordered, Faults::default()));
    holds(&search(
        triangle(DeadlockFree, false, None),
        Order::Unordered,
        Faults { doubles: 2, ..Faults::default() },
    ));
    let mut twice = search(triangle(DeadlockFree, false, None), Order::Unordered, Faults::default());
    twice.rules.calls = entries::<Maekawa, 2>;
    holds(&twice);
}

#[test]
fn a_voter_without_its_disk_votes_twice() {
    let faults = Faults { crashes: 1, wipes: 1, ..Faults::default() };
    let found = search(triangle(DeadlockFree, true, None), Order::Fifo, faults).run();
    let counter = found.counter_example.expect("the vote is forgotten");
    assert!(counter.why.contains("both inside"), "{}", counter.why);
}

#[test]
fn the_basic_form_deadlocks() {
    let explorer = search(triangle(Basic, false, None), Order::Fifo, Faults::default());
    let counter = explorer.run().counter_example.expect("a deadlock");
    assert_eq!(counter.path.len(), 6, "three ask, and each gets one vote before the other request");
    let nodes = "nodes 3 protocol=maekawa form=basic voters=1+2,2+3,1+3";
    let script = render::script(&explorer.rules, &counter.path, "Three wait in a circle.", nodes);
    let played = play(&script).unwrap().text;
    assert!(played.contains("n1.1 waits to enter: LOCKED of n2 has not come"), "{played}");
    assert!(played.contains("n2: LOCKED to n1.1 is held back: n2.1 holds the permission"), "{played}");
}

/// On ordered links: else a LOCKED that was overtaken by its own INQUIRE is under way and changes nothing.
#[test]
fn every_wait_names_a_true_cause() {
    waits_are_true(&search(triangle(DeadlockFree, false, None), Order::Fifo, Faults::default()).rules);
    waits_are_true(&search(triangle(DeadlockFree, true, None), Order::Fifo, Faults::default()).rules);
    waits_are_true(&search(grid(3, None), Order::Fifo, Faults::default()).rules);
}

pub(crate) fn fuzzer(n: usize, wipe: u64) -> Fuzzer<Maekawa> {
    let members = Members::first(n);
    let retry = Some(Within::millis(30, 60));
    let odds = Odds { crash: 300, wipe, clock_rate: 0, clock_jump: 0, ..Odds::EVERYTHING };
    let maker = move |me: ProcessId| Maekawa::new(me, members.clone(), DeadlockFree, true, retry);
    Fuzzer::of_mutex(Arc::new(maker), n, odds)
}

#[test]
fn random_worlds_of_four_to_seven_survive_crashes_and_loss() {
    for (n, seeds) in [(4, 1_500), (5, 1_000), (7, 500)] {
        let (steps, failed) = fuzzer(n, 0).fuzz(0..seeds);
        if let Some((plan, failure)) = failed {
            panic!("{n} processes, seed {}: {failure:?}", plan.seed);
        }
        println!("{n} processes, {seeds} worlds, {steps} steps");
    }
}

#[test]
fn random_worlds_with_empty_disks_do_not_survive() {
    let mut forgetting = fuzzer(4, 1_000);
    forgetting.reaction = (leave, Delay::Even(20_000, 60_000));
    let (_, failed) = forgetting.fuzz(0..3_000);
    assert!(failed.is_some(), "a vote that is forgotten is given twice");
}

/// Under load every vote that is asked back costs two messages more, and every waiter is told once.
#[test]
fn a_crowd_costs_less_than_six_messages_a_voter() {
    for (n, k) in [(4, 3), (9, 5), (16, 7), (25, 9)] {
        let mean = measure("maekawa", n, Load::Heavy).mean;
        let (quiet, most) = (3.0 * f64::from(k - 1), 6.0 * f64::from(k - 1));
        println!("{n} processes all at once: {mean:.1} messages an entry, {quiet} if nobody else asks");
        assert!(quiet < mean && mean < most, "{n}: {mean}");
    }
}
