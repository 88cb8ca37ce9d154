//! Runs that pictures and exports are tested on.

use quorate_core::election::{Elects, LogPosition, Standing, TermElection, TermOptions};
use quorate_core::mutex::{Call, Event, RicartAgrawala};
use quorate_core::protocol::{Members, Peer, ProcessId, Within};
use quorate_core::time::{Mono, Span};
use quorate_core::trace::{Step, What};
use quorate_lab::draw::Draw;
use quorate_lab::network::{Delay, Network, Order};
use quorate_lab::story::{Slice, Story};
use quorate_lab::trace::Trace;
use quorate_lab::world::{Maker, World};
use std::sync::Arc;

pub(crate) fn maker(n: usize, retry: Option<Within>) -> Maker<RicartAgrawala> {
    Arc::new(move |me| RicartAgrawala::new(me, Members::first(n), retry))
}

pub(crate) fn leave_when_in(event: &Event) -> Option<Call> {
    matches!(event, Event::Entered { .. }).then_some(Call::Leave)
}

/// Four ask at once, on calm links.
pub(crate) fn four_at_once() -> Story {
    let mut world = World::new(1, 4, Network::calm(), maker(4, None));
    world.react(leave_when_in, Delay::Fixed(5_000));
    world.record(Trace::whole());
    for index in 0..4 {
        world.call(ProcessId::at(index), Call::Enter);
    }
    world.run(u64::MAX);
    Story::of(
        &world,
        "Ricart-Agrawala, four at once",
        "All ask at the same instant; they enter in the order of their numbers, as all timestamps are equal.",
    )
}

/// Two of five are cut off while others ask; one crashes inside its wait and comes back; one is paused.
pub(crate) fn partition_and_crash() -> Story {
    let network = Network {
        delay: Delay::Even(700, 2_400),
        loss_permille: 40,
        double_permille: 60,
        ..Network::unordered()
    };
    let mut world = World::new(11, 5, network, maker(5, Some(Within::millis(20, 30))));
    world.react(leave_when_in, Delay::Fixed(4_000));
    world.record(Trace::whole());
    let [n1, n2, n3, n4, n5] = [1, 2, 3, 4, 5].map(ProcessId);
    world.call(n2, Call::Enter);
    world.run_until(600, u64::MAX);
    for (a, b) in [n1, n2, n3].iter().flat_map(|a| [n4, n5].map(|b| (*a, b))) {
        world.cut(a, b);
        world.cut(b, a);
    }
    world.run_until(4_000, u64::MAX);
    world.call(n4, Call::Enter);
    world.pause(n1);
    world.run_until(9_000, u64::MAX);
    world.crash(n3);
    world.resume(n1);
    world.run_until(14_000, u64::MAX);
    world.restart(n3);
    world.heal();
    world.run_until(70_000, u64::MAX);
    Story::of(
        &world,
        "A partition, a pause, a crash and lossy links",
        "n4 and n5 are cut off while n2 and n4 ask; n1 pauses, n3 crashes and comes back; after the links are \
         mended both enter, since who waits asks again.",
    )
}

/// The leader of three changes as it crashes: bars of leadership, records, timers.
pub(crate) fn leaders() -> Story {
    let options = TermOptions {
        election: Within::millis(30, 60),
        heartbeat: Span::from_millis(20),
        pre_vote: false,
        lease: None,
    };
    let make = move |me| TermElection::new(me, Members::first(3), options, LogPosition::default());
    let network = Network { disk: Delay::Fixed(400), ..Network::calm() };
    let mut world = World::new(4, 3, network, Arc::new(make));
    world.record(Trace::whole());
    world.run_until(75_000, u64::MAX);
    let leader = world.nodes().iter().find(|node| node.machine.standing() == Standing::Leading);
    let leader = leader.expect("an election has ended").peer.process;
    world.crash(leader);
    world.run_until(170_000, u64::MAX);
    world.restart(leader);
    world.run_until(200_000, u64::MAX);
    Story::of(
        &world,
        "Elections by terms",
        "The leader crashes, the others elect another, and it follows when it is back.",
    )
}

/// Four at once, and a checker that does not like it.
pub(crate) fn violated() -> Story {
    let mut story = four_at_once().slice(&Slice { until_us: Some(7_000), ..Slice::default() }).unwrap();
    story.title = "A rule that is too strict".to_owned();
    story.caption = "Nobody may wait for more than 6 ms; four that ask at once cannot hold that.".to_owned();
    let text = story.trace.say("n2 has waited for more than 6 ms".to_owned());
    let at = Mono(7_000);
    story.trace.push(Step { at, at_peer: Peer::default(), what: What::Violated, about: None, text });
    story
}

/// A world of some seed, with losses, doubles, crashes, pauses and cuts at times of some seed.
pub(crate) fn random(seed: u64) -> Story {
    let mut draw = Draw::new(seed);
    let n = 2 + draw.below(4) as usize;
    let order = if draw.permille(500) { Order::Fifo } else { Order::Unordered };
    let network = Network {
        order,
        delay: Delay::Even(draw.below(3) * 400, 4_000),
        loss_permille: draw.below(200),
        double_permille: draw.below(200),
        ..Network::calm()
    };
    let mut world = World::new(seed, n, network, maker(n, Some(Within::millis(10, 20))));
    world.react(again, Delay::Even(0, 5_000));
    world.record(Trace::whole());
    for _ in 0..12 {
        let (one, other) = (some(&mut draw, n), some(&mut draw, n));
        match draw.below(9) {
            0 => world.crash(one),
            1 => world.restart(one),
            2 => world.pause(one),
            3 => world.resume(one),
            4 if one != other => world.cut(one, other),
            5 => world.heal(),
            6 => world.clock_jump(one, 1_000),
            _ => world.call(one, Call::Enter),
        }
        let until = world.time_us() + draw.below(6_000);
        world.run_until(until, 60);
    }
    Story::of(&world, &format!("random {seed}"), "Anything can happen; nothing is promised.")
}

fn some(draw: &mut Draw, n: usize) -> ProcessId {
    ProcessId::at(draw.below(n as u64) as usize)
}

fn again(event: &Event) -> Option<Call> {
    match event {
        Event::Entered { .. } => Some(Call::Leave),
        Event::Left { .. } => Some(Call::Enter),
        _ => None,
    }
}

/// Five enter again and again over unordered links, until there are 200 steps.
pub(crate) fn two_hundred() -> Story {
    busy(3, 5, Network { order: Order::Unordered, ..Network::unordered() }, 200)
}

/// So many processes that enter again and again, until there are so many steps.
pub(crate) fn busy(seed: u64, n: usize, network: Network, steps: usize) -> Story {
    let mut world = World::new(seed, n, network, maker(n, Some(Within::millis(30, 60))));
    world.react(again, Delay::Even(1_000, 9_000));
    world.record(Trace::whole());
    for index in 0..n {
        world.call(ProcessId::at(index), Call::Enter);
    }
    while world.trace().steps().len() < steps && world.next() {}
    let caption = format!("{n} processes enter again and again; each stays inside for 1 to 9 ms.");
    Story::of(&world, &format!("Ricart-Agrawala, {steps} steps"), &caption)
}
