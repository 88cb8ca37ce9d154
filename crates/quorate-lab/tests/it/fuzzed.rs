//! Random worlds with faults, then healed; and what is made of one that fails.

use quorate_core::election::{ChangRoberts, TermElection};
use quorate_core::mutex::{Central, Mutex, RicartAgrawala};
use quorate_core::protocol::{Members, ProcessId, Within};
use quorate_core::time::Span;
use quorate_lab::catalog::{Named, made};
use quorate_lab::check::{one_inside, true_waits};
use quorate_lab::election::worlds;
use quorate_lab::fuzz::{Failure, Fuzzer, Odds};
use quorate_lab::network::{Delay, Network, Order};
use quorate_lab::script::play;
use quorate_lab::shrink;
use quorate_lab::spot::{Faults, Rules, Spot, Timing};
use quorate_lab::world::{Maker, World};
use std::sync::Arc;

fn fuzzer<P: Mutex>(maker: Maker<P>, n: usize, network: Network, odds: Odds) -> Fuzzer<P> {
    Fuzzer { network, ..Fuzzer::of_mutex(maker, n, odds) }
}

fn survives<P: Mutex>(fuzzer: &Fuzzer<P>, seeds: u64, nodes: &str) {
    let (steps, failed) = fuzzer.fuzz(0..seeds);
    if let Some((plan, failure)) = failed {
        let script = shrink::scenario(fuzzer, &plan, one_inside, "Shrunk from a random world", nodes);
        panic!("seed {}: {failure:?}\n{script}", plan.seed);
    }
    assert!(steps > seeds * 20, "{steps} steps");
}

#[test]
fn ricart_agrawala_survives_crashes_and_loss_without_its_disk() {
    let members = Members::first(3);
    let retry = Some(Within::millis(30, 60));
    let maker = move |me| RicartAgrawala::new(me, members.clone(), retry);
    let odds = Odds { wipe: 500, ..Odds::EVERYTHING };
    survives(
        &fuzzer(Arc::new(maker), 3, Network::noisy(), odds),
        3_000,
        "nodes 3 protocol=ricart-agrawala retry=30ms",
    );
}

#[test]
fn central_with_a_lease_survives_crashes_and_loss() {
    let maker = |me| Central::new(me, ProcessId(1), Some(Span::from_millis(400)), true);
    let odds = Odds { pause: 0, clock_jump: 0, ..Odds::EVERYTHING };
    let nodes = "nodes 4 protocol=central lease=400ms durable=yes";
    survives(&fuzzer(Arc::new(maker), 4, Network::noisy(), odds), 3_000, nodes);
}

#[test]
fn a_failure_is_shrunk_to_a_short_scenario_that_fails_alike() {
    let maker = |me| Central::new(me, ProcessId(1), None, false);
    let odds = Odds { faults_max: 8, crash: 400, isolate: 200, suspect: 200, ..Odds::default() };
    let fuzzer = fuzzer(Arc::new(maker), 4, Network::unordered(), odds);
    let failing = (0..5_000)
        .map(|seed| fuzzer.plan(seed))
        .find(|plan| matches!(fuzzer.run(plan), Err(Failure::Unsafe(_))));
    let failing = failing.expect("a coordinator that forgets grants twice");
    let nodes = "nodes 4 protocol=central";
    let script = shrink::scenario(&fuzzer, &failing, one_inside, "A coordinator that forgets", nodes);
    let played = play(&script).unwrap();
    let (sentence, rest) = played.text.split_once('\n').unwrap();
    let violated = rest.lines().find_map(|line| line.strip_prefix("VIOLATED: ")).expect("it fails alike");
    assert_eq!(sentence, format!("# A coordinator that forgets: {violated}."));
    let commands = script.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
    assert!(commands <= 12, "{commands} commands\n{}", played.text);
}

#[test]
fn what_gets_stuck_is_shrunk_as_well() {
    let members = Members::first(3);
    let maker = move |me| RicartAgrawala::new(me, members.clone(), None);
    let lossy = Network { loss_permille: 100, ..Network::unordered() };
    let fuzzer = fuzzer(Arc::new(maker), 3, lossy, Odds::default());
    let (_, failed) = fuzzer.fuzz(0..200);
    let (plan, failure) = failed.expect("without asking again a lost message is for ever");
    assert!(matches!(failure, Failure::Stuck(_)));
    let nodes = "nodes 3 protocol=ricart-agrawala";
    let script = shrink::scenario(&fuzzer, &plan, one_inside, "A lost message", nodes);
    let played = play(&script).unwrap();
    assert!(played.text.contains("waits to enter: REPLY of"), "{}", played.text);
    assert!(script.matches("call ").count() <= 2, "{script}");
}

fn waits_are_true<P: Mutex>(world: &World<P>, maker: Maker<P>) -> Result<(), String> {
    let rules = Rules {
        maker,
        n: world.nodes().len(),
        order: Order::Unordered,
        faults: Faults::default(),
        timing: Timing::Any,
        detector: false,
        calls: |_, _| None,
    };
    true_waits(&rules, &Spot::of(world))
}

#[test]
fn what_processes_say_of_their_waits_is_true_in_random_worlds() {
    fn maker() -> Maker<RicartAgrawala> {
        Arc::new(|me| RicartAgrawala::new(me, Members::first(4), Some(Within::millis(30, 60))))
    }
    for odds in [Odds::default(), Odds::EVERYTHING] {
        let mut fuzzer = fuzzer(maker(), 4, Network::unordered(), odds);
        fuzzer.check = |world| waits_are_true(world, maker());
        let (_, failed) = fuzzer.fuzz(0..300);
        assert!(failed.is_none(), "{:?}", failed.map(|(plan, failure)| (plan.seed, failure)));
    }
}

/// Every world of this fuzzer that holds is written as a scenario whose history is the same to the digest.
fn happens_again<P: Named>(nodes: &str, fuzzer: impl Fn(Maker<P>, usize) -> Fuzzer<P>) {
    let fuzzer = fuzzer(made(nodes).unwrap(), 4);
    for seed in 0..30 {
        let plan = fuzzer.plan(seed);
        let Ok(outcome) = fuzzer.run(&plan) else { panic!("{nodes}: world {seed} fails") };
        let script = shrink::by_time(&fuzzer, &plan, "A random world.", nodes);
        let stage =
            play(&script).unwrap_or_else(|why| panic!("{nodes}, world {seed}: {why}\n{script}")).stage;
        assert_eq!(stage.unwrap().digest(), outcome.digest, "{nodes}, world {seed}\n{script}");
    }
}

#[test]
fn a_random_world_written_as_a_scenario_happens_again() {
    let clocks = Odds { pause: 0, clock_jump: 0, ..Odds::EVERYTHING };
    let wipes = Odds { wipe: 500, ..Odds::EVERYTHING };
    happens_again("nodes 4 protocol=central lease=400ms durable=yes", |maker: Maker<Central>, n| {
        Fuzzer::of_mutex(maker, n, clocks)
    });
    happens_again("nodes 4 protocol=ricart-agrawala retry=30ms..60ms", |maker: Maker<RicartAgrawala>, n| {
        Fuzzer::of_mutex(maker, n, wipes)
    });
    happens_again("nodes 4 protocol=ricart-agrawala retry=30ms..60ms", |maker: Maker<RicartAgrawala>, n| {
        let network = Network { delay: Delay::Tailed(100, 3_000), ..Network::unordered() };
        Fuzzer { network, detector: Some(Delay::Even(1_000, 9_000)), ..Fuzzer::of_mutex(maker, n, wipes) }
    });
    let ring = "nodes 4 protocol=chang-roberts ids=5,10,4,9 retry=500ms..800ms start=elect";
    happens_again(ring, |maker: Maker<ChangRoberts>, n| {
        worlds::fuzzer(maker, n, worlds::ordered(), worlds::STOPS)
    });
    happens_again("nodes 4 protocol=term prevote=yes", |maker: Maker<TermElection>, n| {
        worlds::fuzzer(maker, n, Network::noisy(), worlds::EVERYTHING)
    });
}
