//! What a search did is what a script does: both run the same processes, and mean the same by every fault.

use quorate_core::mutex::{Central, Mutex, RicartAgrawala};
use quorate_core::protocol::{Members, Outbox, ProcessId, Protocol};
use quorate_core::time::Span;
use quorate_lab::check::{entries, nobody_waits_unharmed, one_inside};
use quorate_lab::draw::Draw;
use quorate_lab::explore::Explorer;
use quorate_lab::network::{Network, Order};
use quorate_lab::node::Cut;
use quorate_lab::play::{Play, Stage};
use quorate_lab::render;
use quorate_lab::script::{Command, play};
use quorate_lab::spot::{Faults, Rules, Spot, Timing, Way};
use quorate_lab::world::{Maker, World};
use std::sync::Arc;

fn rules<P: Mutex>(maker: Maker<P>, timing: Timing) -> Rules<P> {
    let faults = Faults {
        crashes: 2,
        restarts: 1,
        wipes: 1,
        drops: 2,
        doubles: 2,
        suspicions: 1,
        pauses: 1,
        timers: 6,
    };
    Rules { maker, n: 3, order: Order::Unordered, faults, timing, detector: true, calls: entries::<P, 2> }
}

/// A way of at most 60 actions, drawn from a seed, with a crash within a step now and then.
fn wander<P: Protocol>(rules: &Rules<P>, seed: u64) -> (Way<P>, Spot<P>) {
    let mut draw = Draw::new(seed);
    let (mut spot, mut out, mut actions) = (Spot::first(rules), Outbox::default(), Vec::new());
    let mut path = Vec::new();
    for _ in 0..60 {
        spot.actions(rules, &mut actions);
        if actions.is_empty() {
            break;
        }
        let action = actions[draw.below(actions.len() as u64) as usize].clone();
        let mut cut = None;
        if spot.cuttable(&action) && draw.permille(50) {
            let effects = spot.clone().apply(rules, &action, None, &mut out);
            cut = (effects > 0).then(|| Cut::Effects(draw.below(u64::from(effects)) as u32));
        }
        spot.apply(rules, &action, cut, &mut out);
        path.push((action, cut));
    }
    (path, spot)
}

fn same_in_a_world<P: Mutex>(rules: &Rules<P>) {
    for seed in 0..300 {
        let (path, spot) = wander(rules, seed);
        let network = Network { order: rules.order, ..Network::calm() };
        let world = World::new(1, rules.n, network, rules.maker.clone());
        let mut stage = Play::new(world, |_| Ok(()), |_, _| Vec::new());
        let commands = render::commands(rules, &path);
        for line in &commands {
            let done = stage.command(&Command::read(line));
            done.unwrap_or_else(|why| panic!("seed {seed}: {line}: {why}\n{}", commands.join("\n")));
        }
        for (there, here) in stage.world().nodes().iter().zip(spot.nodes()) {
            assert_eq!(there.power, here.power, "seed {seed}\n{}", commands.join("\n"));
            assert_eq!(there.peer, here.peer);
            assert_eq!(there.machine, here.machine, "seed {seed}\n{}", commands.join("\n"));
        }
    }
}

#[test]
fn a_script_does_what_the_search_did() {
    let members = Members::first(3);
    let maker = move |me| RicartAgrawala::new(me, members.clone(), None);
    same_in_a_world(&rules(Arc::new(maker), Timing::Any));
    let maker = |me| Central::new(me, ProcessId(1), None, true);
    same_in_a_world(&rules(Arc::new(maker), Timing::Any));
    let maker = |me| Central::new(me, ProcessId(1), Some(Span::from_millis(40)), true);
    same_in_a_world(&rules(Arc::new(maker), Timing::Exact));
}

#[test]
fn a_counter_example_is_a_scenario_that_runs() {
    let maker = |me| Central::new(me, ProcessId(1), None, false);
    let mut rules = rules(Arc::new(maker) as Maker<Central>, Timing::Any);
    rules.faults = Faults { crashes: 1, restarts: 1, ..Faults::default() };
    let explorer =
        Explorer { rules, invariant: one_inside, rest: nobody_waits_unharmed, states_max: 100_000 };
    let counter = explorer.run().counter_example.expect("it forgets whom it granted");
    let nodes = "nodes 3 protocol=central order=unordered";
    let script = render::script(&explorer.rules, &counter.path, "A coordinator that forgets.", nodes);
    let played = play(&script).unwrap();
    assert!(played.text.contains(&format!("VIOLATED: {}", counter.why)), "{}", played.text);
    assert_eq!(play(&played.text).unwrap().text, played.text);
}
