//! Each protocol of mutual exclusion with one line left out: the search finds what the line is for, and finds
//! nothing in the sound protocol under the same rules or seeds.
#![allow(clippy::disallowed_methods, reason = "the time that a search takes is told, not used")]

use crate::maekawa::{self, triangle};
use crate::token_ring::{self, parked};
use quorate_core::mutex::{Call, Central, Flaw, Maekawa, MaekawaForm, Mutex, Repair, RicartAgrawala};
use quorate_core::protocol::{Members, ProcessId, Within};
use quorate_core::time::Span;
use quorate_lab::check::{entries, nobody_waits_unharmed, one_inside, one_inside_of, one_token};
use quorate_lab::explore::Explorer;
use quorate_lab::fuzz::{Failure, Fuzzer, Odds, leave};
use quorate_lab::network::{Delay, Network, Order};
use quorate_lab::render;
use quorate_lab::script::play;
use quorate_lab::spot::{Faults, Rules, Timing};
use quorate_lab::world::Maker;
use std::sync::Arc;
use std::time::Instant;

/// The flawed one is caught, the sound one holds. Gives the way to the violation as a scenario.
fn searched<P: Mutex>(
    flaw: Flaw,
    why: &str,
    nodes: &str,
    explorer: impl Fn(Option<Flaw>) -> Explorer<P>,
) -> String {
    let (begun, before) = (Instant::now(), flaw.reached());
    let flawed = explorer(Some(flaw));
    let found = flawed.run();
    let counter = found.counter_example.unwrap_or_else(|| panic!("{flaw} is not found"));
    let (steps, took) = (counter.path.len(), begun.elapsed());
    println!("{flaw}: {} in {steps} steps, after {} states, {took:?}", counter.why, found.unique);
    assert!(flaw.reached() > before, "{flaw} is reached");
    assert!(counter.why.contains(why), "{flaw}: {}", counter.why);
    let begun = Instant::now();
    let sound = explorer(None);
    let found = sound.run();
    if let Some(counter) = found.counter_example {
        panic!("without {flaw}: {}\n{}", counter.why, render::script(&sound.rules, &counter.path, "", nodes));
    }
    assert!(found.complete, "without {flaw}: {} states are not all", found.unique);
    println!("    without it {} states hold, {:?}", found.unique, begun.elapsed());
    let sentence = format!("What {flaw} leads to.");
    let script = render::script(&flawed.rules, &counter.path, &sentence, &format!("{nodes} flaw={flaw}"));
    let played = play(&script).unwrap_or_else(|error| panic!("{error}\n{script}")).text;
    if std::env::var("PRINT").is_ok() {
        println!("{played}");
    }
    played
}

/// As [`searched`], in the random worlds of these seeds.
fn drawn<P: Mutex>(flaw: Flaw, why: &str, seeds: u64, fuzzer: impl Fn(Option<Flaw>) -> Fuzzer<P>) {
    let (begun, before) = (Instant::now(), flaw.reached());
    let (_, failed) = fuzzer(Some(flaw)).fuzz(0..seeds);
    let (plan, failure) = failed.unwrap_or_else(|| panic!("{flaw} is not found"));
    println!("{flaw}: {failure:?} in world {}, {:?}", plan.seed, begun.elapsed());
    assert!(flaw.reached() > before, "{flaw} is reached");
    assert!(matches!(&failure, Failure::Unsafe(what) if what.contains(why)), "{flaw}: {failure:?}");
    let (steps, failed) = fuzzer(None).fuzz(0..seeds);
    if let Some((plan, failure)) = failed {
        panic!("without {flaw}, seed {}: {failure:?}", plan.seed);
    }
    println!("    without it {seeds} worlds hold, {steps} steps");
}

fn search<P: Mutex>(maker: Maker<P>, n: usize, faults: Faults) -> Explorer<P> {
    let (order, timing, calls) = (Order::Unordered, Timing::Any, entries::<P, 2>);
    let rules = Rules { maker, n, order, faults, timing, detector: false, calls };
    Explorer { rules, invariant: one_inside, rest: nobody_waits_unharmed, states_max: 3_000_000 }
}

fn ricart_agrawala(n: usize, flaw: Option<Flaw>) -> Maker<RicartAgrawala> {
    Arc::new(move |me| RicartAgrawala::new(me, Members::first(n), None).with_flaw(flaw))
}

#[test]
fn ricart_agrawala_asks_again_after_a_restart() {
    let faults = Faults { crashes: 1, wipes: 1, ..Faults::default() };
    let nodes = "nodes 2 protocol=ricart-agrawala order=unordered";
    let maker = |flaw| search(ricart_agrawala(2, flaw), 2, faults);
    searched(Flaw::NotAskedAgain, "both inside", nodes, maker);
    searched(Flaw::ReplyOfAnotherLife, "both inside", nodes, maker);
}

#[test]
fn a_kept_permission_that_is_given_away_is_asked_for_again() {
    let nodes = "nodes 3 protocol=ricart-agrawala permissions=kept order=unordered";
    searched(Flaw::PermissionKept, "both inside", nodes, |flaw| {
        let maker = ricart_agrawala(3, flaw);
        search(Arc::new(move |me| maker(me).with_kept_permissions()), 3, Faults::default())
    });
}

fn central(durable: bool, flaw: Option<Flaw>) -> Maker<Central> {
    Arc::new(move |me| Central::new(me, ProcessId(1), None, durable).with_flaw(flaw))
}

#[test]
fn a_release_frees_the_grant_that_it_names() {
    let nodes = "nodes 3 protocol=central order=unordered";
    searched(Flaw::ReleaseOfAnother, "both inside", nodes, |flaw| {
        let mut explorer = search(central(false, flaw), 3, Faults { doubles: 1, ..Faults::default() });
        explorer.rules.calls = entries::<Central, 1>;
        explorer
    });
}

#[test]
fn a_grant_is_durable_before_it_is_told() {
    let nodes = "nodes 3 protocol=central durable=yes order=unordered";
    searched(Flaw::GrantNotDurable, "both inside", nodes, |flaw| {
        let faults = Faults { crashes: 1, restarts: 1, ..Faults::default() };
        let mut explorer = search(central(true, flaw), 3, faults);
        explorer.rules.calls = entries::<Central, 1>;
        explorer
    });
}

#[test]
fn a_lease_ends_at_the_holder_first() {
    let odds = Odds { faults_max: 6, crash: 250, cut: 200, isolate: 300, clock_rate: 100, ..Odds::default() };
    drawn(Flaw::EarlyGrant, "both inside", 1_500, |flaw| Fuzzer {
        maker: Arc::new(move |me| {
            Central::new(me, ProcessId(1), Some(Span::from_millis(400)), true).with_flaw(flaw)
        }),
        n: 4,
        network: Network::noisy(),
        odds,
        calls: (Call::Enter, 3),
        reaction: (leave, Delay::Even(0, 400_000)),
        faults_us: 1_000_000,
        settle_us: 20_000_000,
        detector: None,
        check: |world| one_inside_of(world.nodes().iter()),
        goal: |_| Ok(()),
    });
}

#[test]
fn a_vote_is_asked_back_and_who_is_overtaken_is_told() {
    let nodes = "nodes 3 protocol=maekawa voters=1+2,2+3,1+3";
    let played = searched(Flaw::NoInquire, "nothing goes on", nodes, |flaw| {
        maekawa::search(triangle(MaekawaForm::DeadlockFree, false, flaw), Order::Fifo, Faults::default())
    });
    assert!(played.contains("waits to enter: LOCKED of"), "{played}");
    // n4 only votes. n3 has its vote, n2 is the better one; then comes n1, which needs the vote of n2 too.
    let nodes = "nodes 4 protocol=maekawa voters=1+2+4,2+4,3+4,4";
    let played = searched(Flaw::OvertakenNotTold, "nothing goes on", nodes, |flaw| {
        let members = Members::first(4);
        let sets: [&[u32]; 4] = [&[1, 2, 4], &[2, 4], &[3, 4], &[4]];
        let maker = move |me: ProcessId| {
            let voters = Members::new(sets[me.index()].iter().copied().map(ProcessId).collect());
            let one = Maekawa::new(me, members.clone(), MaekawaForm::DeadlockFree, false, None);
            one.with_voters(voters).with_flaw(flaw)
        };
        let mut explorer = maekawa::search(Arc::new(maker), Order::Fifo, Faults::default());
        (explorer.rules.n, explorer.rules.calls) = (4, the_first_three_enter);
        explorer
    });
    assert!(played.contains("INQUIRE"), "{played}");
}

#[test]
fn a_vote_is_durable_before_it_is_told() {
    let faults = Faults { crashes: 1, restarts: 1, ..Faults::default() };
    let nodes = "nodes 3 protocol=maekawa voters=1+2,2+3,1+3 durable=yes";
    searched(Flaw::VoteNotDurable, "both inside", nodes, |flaw| {
        maekawa::search(triangle(MaekawaForm::DeadlockFree, true, flaw), Order::Fifo, faults)
    });
}

/// All but the last enter once.
fn the_first_three_enter(machine: &Maekawa, made: u32) -> Option<Call> {
    (machine.peer().process != ProcessId(4)).then(|| entries::<Maekawa, 1>(machine, made)).flatten()
}

/// All but the first enter once.
fn the_others_enter(machine: &Maekawa, made: u32) -> Option<Call> {
    (machine.peer().process != ProcessId(1)).then(|| entries::<Maekawa, 1>(machine, made)).flatten()
}

#[test]
fn an_inquire_about_a_request_that_is_over_moves_no_vote() {
    // One voter for all: the vote that matters.
    let nodes = "nodes 4 protocol=maekawa voters=1,1+2,1+3,1+4";
    searched(Flaw::LateInquire, "both inside", nodes, |flaw| {
        let members = Members::first(4);
        let maker = move |me: ProcessId| {
            let voters = Members::new(vec![ProcessId(1), me]);
            let one = Maekawa::new(me, members.clone(), MaekawaForm::DeadlockFree, false, None);
            one.with_voters(voters).with_flaw(flaw)
        };
        let mut explorer = maekawa::search(Arc::new(maker), Order::Fifo, Faults::default());
        (explorer.rules.n, explorer.rules.calls) = (4, the_others_enter);
        explorer
    });
}

const REPAIR: Option<Repair> = Some(Repair { silence: Within::millis(1_000, 2_000), retry: None });

#[test]
fn a_token_that_was_passed_is_not_taken_back() {
    let nodes = "nodes 3 protocol=token-ring idle=park silence=1s order=unordered";
    searched(Flaw::TokenTakenBack, "both have the token", nodes, |flaw| {
        let faults = Faults { suspicions: 1, ..Faults::default() };
        let mut explorer = token_ring::search(parked(3, REPAIR, flaw), 3, Order::Unordered, faults);
        explorer.rules.calls = token_ring::the_last_enters;
        explorer.invariant = one_token;
        explorer
    });
}

#[test]
fn a_new_token_needs_promises() {
    let nodes = "nodes 3 protocol=token-ring idle=park silence=1s";
    searched(Flaw::NoMajority, "both inside", nodes, |flaw| {
        let faults = Faults { timers: 1, ..Faults::default() };
        let mut explorer = token_ring::search(parked(3, REPAIR, flaw), 3, Order::Fifo, faults);
        explorer.rules.calls = token_ring::the_first_enter;
        explorer
    });
}

/// As [`searched`], along the way of a scenario of the flaw.
fn played(flaw: Flaw, script: &str) {
    let before = flaw.reached();
    let flawed = play(script).unwrap().text;
    assert!(flawed.contains("VIOLATED") && flaw.reached() > before, "{flaw}\n{flawed}");
    let sound = play(&script.replace(&format!(" flaw={flaw}"), "")).unwrap().text;
    assert!(sound.contains("REFUSED") && !sound.contains("VIOLATED"), "without {flaw}\n{sound}");
}

#[test]
fn older_generations_are_refused_and_a_restart_makes_the_present_one_older() {
    let older = include_str!("../../scenarios/mutex/token_ring_older_generation.txt");
    played(Flaw::OlderGeneration, older);
    let same = include_str!("../../scenarios/mutex/token_ring_same_generation.txt");
    played(Flaw::SameGeneration, same);
}
