//! Elections in random worlds of four to seven processes, which heal and must agree; and the flaws that
//! need time, a fourth process or a cut to show.
#![allow(clippy::disallowed_methods, reason = "the time that a search takes is told, not used")]

use quorate_core::election::{
    AtStart, Bully, BullyTiming, Call, ChangRoberts, Elects, Flaw, Ids, LogPosition, Ring, TermElection,
    TermOptions, TermTimer,
};
use quorate_core::protocol::{Members, ProcessId, Within};
use quorate_core::time::Span;
use quorate_lab::election::check::{leases_keep_others_away, one_in_a_term_of};
use quorate_lab::election::worlds::{EVERYTHING, STOPS, fuzzer, ordered};
use quorate_lab::fuzz::{Failure, Fuzzer, Odds};
use quorate_lab::network::{Delay, Network};
use quorate_lab::prove::{Worlds, subject};
use quorate_lab::world::{Maker, World};
use std::sync::Arc;
use std::time::Instant;

fn one_in_a_term<P: Elects>(world: &World<P>) -> Result<(), String> {
    one_in_a_term_of(world.nodes().iter())
}

fn survives<P: Elects>(name: &str, seeds: u64, fuzzer: impl Fn(usize) -> Fuzzer<P>) {
    let begun = Instant::now();
    let mut all = 0;
    for n in 4..=7 {
        let (steps, failed) = fuzzer(n).fuzz(0..seeds);
        if let Some((plan, failure)) = failed {
            panic!("{name}, N {n}, seed {}: {failure:?}\n{:?}\n{:?}", plan.seed, plan.calls, plan.faults);
        }
        all += steps;
    }
    println!("{name}: {} worlds of 4 to 7 agree, {all} steps, {:?}", 4 * seeds, begun.elapsed());
    assert!(all > seeds * 40, "{all} steps");
}

#[test]
fn bully_agrees_after_crashes_and_false_suspicions() {
    let timing =
        BullyTiming { answer: Within::millis(25, 30), coordinator: Within::millis(250, 300), again: None };
    for quorum in [false, true] {
        survives("bully", 300, |n| {
            let maker = move |me| Bully::new(me, Members::first(n), timing, quorum, AtStart::Elect);
            fuzzer(Arc::new(maker), n, ordered(), STOPS)
        });
    }
}

#[test]
fn a_ring_agrees_after_crashes_and_false_suspicions() {
    for quorum in [false, true] {
        survives("ring", 300, |n| {
            let retry = Some(Within::millis(500, 800));
            let maker = move |me| Ring::new(me, Members::first(n), quorum, retry, AtStart::Elect);
            fuzzer(Arc::new(maker), n, ordered(), STOPS)
        });
    }
}

#[test]
fn chang_roberts_agrees_after_crashes_and_false_suspicions() {
    survives("Chang-Roberts", 300, |n| {
        let retry = Some(Within::millis(500, 800));
        let maker = move |me: ProcessId| {
            // Not in the order of the ring.
            let id = u64::from(me.0) * 5 % 11;
            ChangRoberts::new(me, Members::first(n), id, Ids::ByProcess, retry, AtStart::Elect)
        };
        fuzzer(Arc::new(maker), n, ordered(), STOPS)
    });
}

/// Two stopped and started again sooner than anybody was told of either, and two led for ever.
#[test]
fn a_world_of_chang_roberts_that_had_two_leaders_has_one() {
    let asked = Worlds { n: None, seeds: 723_080..723_081, flaw: None };
    let done = subject("chang-roberts").unwrap().fuzz(&asked).unwrap();
    assert!(done.failure.is_none(), "{}", done.failure.unwrap().scenario);
    assert_eq!(done.worlds, 1);
}

fn options(pre_vote: bool, lease: Option<Span>) -> TermOptions {
    TermOptions { election: Within::millis(150, 300), heartbeat: Span::from_millis(40), pre_vote, lease }
}

fn term(n: usize, options: TermOptions, flaw: Option<Flaw>) -> Maker<TermElection> {
    Arc::new(move |me| {
        TermElection::new(me, Members::first(n), options, LogPosition::default()).with_flaw(flaw)
    })
}

#[test]
fn terms_agree_after_everything_but_an_empty_disk() {
    for pre_vote in [false, true] {
        survives("term", 300, |n| {
            let mut fuzzer = fuzzer(term(n, options(pre_vote, None), None), n, Network::noisy(), EVERYTHING);
            fuzzer.check = one_in_a_term;
            fuzzer
        });
    }
}

/// Clocks that differ in rate, processes that crash or are cut off; no pauses and no jumps of clocks, which
/// no lease outlives.
fn leased(n: usize, flaw: Option<Flaw>) -> Fuzzer<TermElection> {
    let odds = Odds { pause: 0, clock_jump: 0, isolate: 400, ..EVERYTHING };
    let network = Network { delay: Delay::Even(100, 45_000), ..Network::noisy() };
    // Hardly more than the lease: if a lease lasts too long, another is elected before it ends.
    let election = Within::millis(145, 170);
    let maker = term(n, TermOptions { election, ..options(true, Some(Span::from_millis(140))) }, flaw);
    let mut fuzzer = fuzzer(maker, n, network, odds);
    fuzzer.faults_us = 2_000_000;
    fuzzer.check = leases_keep_others_away;
    fuzzer
}

#[test]
fn leases_keep_a_second_leader_away() {
    survives("term, leases", 300, |n| leased(n, None));
}

/// The flawed one is caught in one of these worlds, the sound one holds in all of them.
fn caught(flaw: Flaw, worlds: u64, breaks: &str, fuzzer: impl Fn(Option<Flaw>) -> Fuzzer<TermElection>) {
    let (begun, before) = (Instant::now(), flaw.reached());
    let (_, failed) = fuzzer(Some(flaw)).fuzz(0..worlds);
    let (plan, failure) = failed.unwrap_or_else(|| panic!("{flaw} was not caught"));
    println!("{flaw}: {failure:?} in world {}, {:?}", plan.seed, begun.elapsed());
    assert!(flaw.reached() > before, "{flaw} was never reached");
    assert!(matches!(&failure, Failure::Unsafe(why) if why.contains(breaks)), "{flaw}: {failure:?}");
    let (steps, failed) = fuzzer(None).fuzz(0..worlds);
    assert!(failed.is_none(), "without {flaw}: {:?}", failed.map(|(plan, failure)| (plan.seed, failure)));
    println!("    without it {worlds} worlds hold, {steps} steps");
}

#[test]
fn terms_need_majorities() {
    let split = Odds { faults_max: 8, isolate: 0, cut: 900, ..EVERYTHING };
    caught(Flaw::HalfIsEnough, 3_000, "both lead in term", |flaw| {
        let mut fuzzer = fuzzer(term(4, options(false, None), flaw), 4, Network::noisy(), split);
        fuzzer.check = one_in_a_term;
        fuzzer
    });
}

/// n1 leads by a lease of 140 ms. The answers to its beat at 44 ms take 60 ms, and it is cut off meanwhile;
/// its voters are free at 187 ms, and n2 stands at 195 ms.
fn slow_answers(flaw: Option<Flaw>) -> Result<(), String> {
    let election = Within::exactly(Span::from_millis(150));
    let maker = term(3, TermOptions { election, ..options(true, Some(Span::from_millis(140))) }, flaw);
    let mut world = World::new(1, 3, Network::calm(), maker);
    let until = |world: &mut World<TermElection>, ms: u64| {
        while world.run_until(ms * 1_000, 1) == 1 {
            leases_keep_others_away(world)?;
        }
        Ok::<(), String>(())
    };
    // Every process has promised as long as a lease when it starts, in case it did before.
    until(&mut world, 143)?;
    world.clock_rate(ProcessId(3), -50_000);
    world.call(ProcessId(1), Call::Elect);
    let elected = 147;
    until(&mut world, elected + 40)?;
    assert_eq!(world.node(ProcessId(1)).machine.leader(), Some(ProcessId(1)));
    world.set_network(Network { delay: Delay::Fixed(60_000), ..Network::calm() });
    until(&mut world, elected + 42)?;
    world.set_network(Network::calm());
    world.cut(ProcessId(1), ProcessId(2));
    world.cut(ProcessId(1), ProcessId(3));
    until(&mut world, elected + 300)?;
    assert_eq!(world.node(ProcessId(2)).machine.leader(), Some(ProcessId(2)));
    Ok(())
}

#[test]
fn a_lease_runs_from_the_sending_of_the_beat() {
    slow_answers(None).unwrap();
    let flaw = Flaw::LeaseFromAnswer;
    let before = flaw.reached();
    let why = slow_answers(Some(flaw)).expect_err("caught");
    println!("{flaw}: {why}");
    assert!(flaw.reached() > before && why.contains("n1 has its lease"), "{why}");
}

/// n1 leads by the answers of n2, and n3 cannot hear it. n2 restarts between two beats, and n3 stands.
fn restarted_voter(flaw: Option<Flaw>) -> Result<(), String> {
    let maker = term(3, options(true, Some(Span::from_millis(140))), flaw);
    let mut world = World::new(1, 3, Network::calm(), maker);
    let until = |world: &mut World<TermElection>, ms: u64| {
        while world.run_until(ms * 1_000, 1) == 1 {
            leases_keep_others_away(world)?;
        }
        Ok::<(), String>(())
    };
    until(&mut world, 143)?;
    world.call(ProcessId(1), Call::Elect);
    until(&mut world, 150)?;
    world.cut(ProcessId(1), ProcessId(3));
    world.cut(ProcessId(3), ProcessId(1));
    // The next beat leaves at 547 ms, and is answered at 549 ms.
    until(&mut world, 551)?;
    assert_eq!(world.node(ProcessId(1)).machine.leader(), Some(ProcessId(1)));
    world.crash(ProcessId(2));
    world.restart(ProcessId(2));
    assert!(world.fire(ProcessId(3), TermTimer::Election));
    until(&mut world, 570)
}

#[test]
fn who_restarts_keeps_the_promise_that_it_may_have_given() {
    restarted_voter(None).unwrap();
    let flaw = Flaw::PromiseForgotten;
    let before = flaw.reached();
    let why = restarted_voter(Some(flaw)).expect_err("caught");
    println!("{flaw}: {why}");
    assert!(flaw.reached() > before && why.contains("n1 has its lease"), "{why}");
}
