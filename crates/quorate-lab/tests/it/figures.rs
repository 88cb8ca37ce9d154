//! Numbers and histories of the literature, produced by running the protocols.

use quorate_core::mutex::{Call, Central, Event, RicartAgrawala};
use quorate_core::protocol::{Members, ProcessId, Protocol};
use quorate_core::trace::What;
use quorate_lab::network::{Delay, Network};
use quorate_lab::trace::Trace;
use quorate_lab::world::World;
use std::sync::Arc;

fn leave_when_in(event: &Event) -> Option<Call> {
    matches!(event, Event::Entered { .. }).then_some(Call::Leave)
}

/// All ask at once; everybody enters once, and leaves 5 ms later. In which order, with how many messages?
fn all_at_once<P: Protocol<Call = Call, Event = Event>>(mut world: World<P>) -> (Vec<ProcessId>, usize) {
    world.react(leave_when_in, Delay::Fixed(5_000));
    world.record(Trace::whole());
    for index in 0..world.nodes().len() {
        world.call(ProcessId::at(index), Call::Enter);
    }
    world.run(u64::MAX);
    let sent = |what: &_| matches!(what, What::Sent { .. });
    let count = world.trace().steps().filter(|step| sent(&step.what)).count();
    let entered = world.trace().steps().filter(|step| step.what == What::Emitted { kind: 1 });
    let order = entered.map(|step| step.at_peer.process).collect();
    (order, count)
}

fn ricart_agrawala(clocks: &'static [u64]) -> World<RicartAgrawala> {
    let n = clocks.len();
    let maker =
        move |me: ProcessId| RicartAgrawala::new(me, Members::first(n), None).with_clock(clocks[me.index()]);
    World::new(1, n, Network::calm(), Arc::new(maker))
}

#[test]
fn ricart_agrawala_enters_in_the_order_of_timestamps() {
    let (order, messages) = all_at_once(ricart_agrawala(&[2, 2, 4, 3]));
    assert_eq!(order, [1, 2, 4, 3].map(ProcessId));
    assert_eq!(messages, 24, "2 N (N-1)");
    let (order, messages) = all_at_once(ricart_agrawala(&[4, 2, 6]));
    assert_eq!(order, [2, 1, 3].map(ProcessId));
    assert_eq!(messages, 12, "4 an entry");
}

#[test]
fn central_takes_three_messages_an_entry_and_none_for_the_coordinator() {
    let maker = |me| Central::new(me, ProcessId(1), None, false);
    let (order, messages) = all_at_once(World::new(1, 5, Network::calm(), Arc::new(maker)));
    assert_eq!(order, [1, 2, 3, 4, 5].map(ProcessId));
    assert_eq!(messages, 12);
}

#[test]
fn one_seed_gives_one_history() {
    let run = |seed| {
        let members = Members::first(4);
        let maker = move |me| RicartAgrawala::new(me, members.clone(), None);
        let mut world = World::new(seed, 4, Network::unordered(), Arc::new(maker));
        world.react(leave_when_in, Delay::Even(0, 9_000));
        for index in 0..4 {
            world.call(ProcessId::at(index), Call::Enter);
        }
        world.run(u64::MAX);
        (world.digest(), world.time_us(), world.steps())
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}
