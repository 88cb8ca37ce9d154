//! Token ring: its cost, its complete searches, its random worlds, and what it does when it is suspected.

use crate::explored::waits_are_true;
use quorate_core::mutex::{Call, Event, Flaw, IdleToken, Repair, TokenRing};
use quorate_core::protocol::{Members, ProcessId, Within};
use quorate_lab::check::{entries, nobody_waits, one_inside_of, one_token_and_one_inside, tokens};
use quorate_lab::count::Cost;
use quorate_lab::explore::Explorer;
use quorate_lab::fuzz::{Fuzzer, Odds, leave};
use quorate_lab::network::{Delay, Network, Order};
use quorate_lab::node::Power;
use quorate_lab::render;
use quorate_lab::shrink;
use quorate_lab::spot::{Faults, Rules, Spot, Timing};
use quorate_lab::trace::Trace;
use quorate_lab::world::{Maker, World};
use std::sync::Arc;

const REPAIR: Option<Repair> = Some(Repair { silence: Within::millis(1_000, 2_000), retry: None });

pub(crate) fn parked(n: usize, repair: Option<Repair>, flaw: Option<Flaw>) -> Maker<TokenRing> {
    Arc::new(move |me| TokenRing::new(me, Members::first(n), IdleToken::Park, repair).with_flaw(flaw))
}

/// At rest nobody waits, as soon as all run and no claim is due.
fn nobody_waits_when_all_run(spot: &Spot<TokenRing>) -> Result<(), String> {
    match spot.nodes().all(|node| node.power == Power::Up && node.timers.is_empty()) {
        true => nobody_waits(spot),
        false => Ok(()),
    }
}

/// The last of three enters once. The token is at the first.
pub(crate) fn the_last_enters(machine: &TokenRing, made: u32) -> Option<Call> {
    (machine.peer().process == ProcessId(3)).then(|| entries::<TokenRing, 1>(machine, made)).flatten()
}

/// The first two of three enter once. The token is at the first.
pub(crate) fn the_first_enter(machine: &TokenRing, made: u32) -> Option<Call> {
    (machine.peer().process != ProcessId(3)).then(|| entries::<TokenRing, 1>(machine, made)).flatten()
}

pub(crate) fn search(maker: Maker<TokenRing>, n: usize, order: Order, faults: Faults) -> Explorer<TokenRing> {
    let detector = faults.crashes > 0;
    let calls = entries::<TokenRing, 1>;
    let rules = Rules { maker, n, order, faults, timing: Timing::Any, detector, calls };
    Explorer {
        rules,
        invariant: one_token_and_one_inside,
        rest: nobody_waits_when_all_run,
        states_max: 4_000_000,
    }
}

fn holds(explorer: &Explorer<TokenRing>) {
    let found = explorer.run();
    if let Some(counter) = &found.counter_example {
        panic!("{}\n{}", counter.why, render::script(&explorer.rules, &counter.path, "", ""));
    }
    assert!(found.complete, "{} states are not all", found.unique);
    println!("{} states, {} quiet, depth {}", found.unique, found.quiet, found.depth);
}

#[test]
fn the_plain_ring_holds() {
    for n in 2..=4 {
        holds(&search(parked(n, None, None), n, Order::Unordered, Faults::default()));
    }
    let doubles = Faults { doubles: 2, ..Faults::default() };
    holds(&search(parked(3, None, None), 3, Order::Unordered, doubles));
}

#[test]
fn a_lost_token_is_made_anew_and_only_then() {
    let faults = Faults { timers: 1, crashes: 1, ..Faults::default() };
    let mut lost = search(parked(3, REPAIR, None), 3, Order::Unordered, faults);
    lost.rules.calls = the_last_enters;
    holds(&lost);
}

#[test]
fn the_ring_holds_over_a_restart_that_nobody_noticed() {
    let faults = Faults { timers: 1, crashes: 1, restarts: 1, ..Faults::default() };
    let mut restart = search(parked(3, REPAIR, None), 3, Order::Fifo, faults);
    restart.rules.calls = the_last_enters;
    restart.rules.detector = false;
    holds(&restart);
}

#[test]
fn every_wait_names_a_true_cause() {
    for n in 2..=4 {
        waits_are_true(&search(parked(n, None, None), n, Order::Unordered, Faults::default()).rules);
    }
    let mut repairing =
        search(parked(3, REPAIR, None), 3, Order::Fifo, Faults { timers: 1, ..Faults::default() });
    repairing.rules.calls = the_last_enters;
    waits_are_true(&repairing.rules);
}

fn all_of_world(world: &World<TokenRing>) -> Result<(), String> {
    one_inside_of(world.nodes().iter()).and_then(|()| tokens(world.nodes().iter()))
}

fn tokens_of_world(world: &World<TokenRing>) -> Result<(), String> {
    tokens(world.nodes().iter())
}

/// Links lose and double, processes crash and pause, and the detector suspects the dead only.
pub(crate) fn fuzzer(n: usize, idle: IdleToken, flaw: Option<Flaw>) -> Fuzzer<TokenRing> {
    let members = Members::first(n);
    let repair = Some(Repair { silence: Within::millis(90, 90), retry: Some(Within::millis(30, 30)) });
    let odds = Odds { faults_max: 6, crash: 400, pause: 100, cut: 150, isolate: 100, ..Odds::default() };
    let maker = move |me| TokenRing::new(me, members.clone(), idle, repair).with_flaw(flaw);
    Fuzzer {
        faults_us: 200_000,
        // In the order of what happened: a suspicion that comes after the trust would be a false one.
        detector: Some(Delay::Fixed(5_000)),
        check: all_of_world,
        ..Fuzzer::of_mutex(Arc::new(maker), n, odds)
    }
}

pub(crate) const ROUND: IdleToken = IdleToken::Circulate { rest: Within::millis(1, 3) };

fn survives(fuzzer: &Fuzzer<TokenRing>, seeds: u64) {
    let (steps, failed) = fuzzer.fuzz(0..seeds);
    if let Some((plan, failure)) = failed {
        let nodes = format!("nodes {} protocol=token-ring idle=park silence=90ms retry=30ms", fuzzer.n);
        let script =
            shrink::scenario(fuzzer, &plan, one_token_and_one_inside, "Shrunk from a random world", &nodes);
        panic!("seed {}: {failure:?}\n{script}", plan.seed);
    }
    println!("{} processes, {seeds} worlds, {steps} steps", fuzzer.n);
}

#[test]
fn random_worlds_of_four_to_seven_survive_crashes_and_loss() {
    for (n, seeds) in [(4, 1_500), (5, 1_000), (7, 500)] {
        survives(&fuzzer(n, IdleToken::Park, None), seeds);
    }
    survives(&fuzzer(4, ROUND, None), 300);
}

#[test]
fn random_worlds_with_false_suspicion_have_one_token_in_a_generation() {
    let mut suspecting = fuzzer(4, IdleToken::Park, None);
    suspecting.odds.suspect = 200;
    suspecting.check = tokens_of_world;
    survives(&suspecting, 1_500);
}

#[test]
fn random_worlds_with_empty_disks_do_not_survive() {
    let mut forgetting = fuzzer(4, IdleToken::Park, None);
    forgetting.odds.wipe = 1_000;
    assert!(forgetting.fuzz(0..3_000).1.is_some(), "the first member makes its token again");
}

fn cost(n: usize, askers: &[u32], turns: usize) -> Cost {
    let mut world = World::new(1, n, Network::calm(), parked(n, None, None));
    world.react(leave, Delay::Fixed(5_000));
    world.record(Trace::whole());
    let mut left = vec![turns; n];
    for asker in askers {
        world.call(ProcessId(*asker), Call::Enter);
    }
    while world.next() {
        let done = world.emitted().iter().filter(|(_, event)| matches!(event, Event::Left { .. }));
        for process in done.map(|(peer, _)| peer.process).collect::<Vec<_>>() {
            left[process.index()] -= 1;
            if left[process.index()] > 0 {
                world.call(process, Call::Enter);
            }
        }
    }
    Cost::of(world.trace())
}

#[test]
fn a_parked_token_costs_two_messages_a_hop_and_under_load_two_an_entry() {
    for n in [4, 9, 16, 25] {
        assert_eq!(cost(n, &[1], 1).total(), 0, "it is here");
        for distance in 1..n as u32 {
            let alone = cost(n, &[1 + distance], 1);
            assert_eq!((alone.entries, alone.total()), (1, 2 * u64::from(distance)), "{n}, {distance} away");
        }
        let all: Vec<_> = (1..=n as u32).collect();
        let loaded = cost(n, &all, 5);
        assert_eq!(loaded.entries, 5 * n as u64);
        let mean = loaded.total() as f64 / loaded.entries as f64;
        assert!((1.7..=2.1).contains(&mean), "{n}: {mean}");
    }
}
