//! Elections: the figures of the literature, counted from runs.
#![allow(clippy::disallowed_methods, reason = "the time that a search takes is told, not used")]

use quorate_core::election::{
    AtStart, Bully, BullyMessage, BullyTiming, Call, ChangRoberts, ChangRobertsMessage, Elects, Ids, Ring,
    RingMessage, TermElection, TermMessage, TermOptions,
};
use quorate_core::protocol::{Kind, Members, ProcessId, Within};
use quorate_core::time::Span;
use quorate_lab::draw::below;
use quorate_lab::election::check::all_name_one_of;
use quorate_lab::election::cost::sent;
use quorate_lab::network::{Delay, Network};
use quorate_lab::node::Power;
use quorate_lab::trace::Trace;
use quorate_lab::world::{Maker, World};
use std::sync::Arc;

fn timing() -> BullyTiming {
    BullyTiming { answer: Within::millis(10, 12), coordinator: Within::millis(100, 120), again: None }
}

fn bully(n: usize, quorum: bool) -> Maker<Bully> {
    Arc::new(move |me| Bully::new(me, Members::first(n), timing(), quorum, AtStart::Wait))
}

fn ring(n: usize, quorum: bool) -> Maker<Ring> {
    Arc::new(move |me| Ring::new(me, Members::first(n), quorum, None, AtStart::Wait))
}

/// Nobody knows a leader, `dead` has stopped and everybody knows it, and these start at once. Who leads in
/// the end, and how many messages of each sort were sent?
fn elect<P: Elects>(n: usize, maker: Maker<P>, dead: Option<u32>, starters: &[u32]) -> (u32, Vec<u64>) {
    let mut world = World::new(1, n, Network::calm(), maker);
    world.record(Trace::whole());
    if let Some(dead) = dead {
        world.detect(Delay::Fixed(1));
        world.crash(ProcessId(dead));
        world.run(u64::MAX);
    }
    for starter in starters {
        world.call(ProcessId(*starter), Call::Elect);
    }
    world.run(u64::MAX);
    all_name_one_of(world.nodes().iter()).unwrap();
    let leader = world.nodes().iter().find(|node| node.power == Power::Up).and_then(|n| n.machine.leader());
    (leader.unwrap().0, sent::<P::Message>(world.trace()))
}

#[test]
fn bully_sends_what_the_literature_counts() {
    let rows = [
        (7, 6, [1, 0, 5], 6),
        (7, 3, [10, 6, 5], 6),
        (7, 1, [21, 15, 5], 6),
        (6, 2, [10, 6, 4], 5),
        (6, 5, [1, 0, 4], 5),
        (5, 2, [6, 3, 3], 4),
    ];
    for (n, starter, messages, leader) in rows {
        let (won, counted) = elect(n, bully(n, false), Some(n as u32), &[starter]);
        println!("N {n}, dead {n}, starter {starter}: {counted:?} of {:?}", BullyMessage::KINDS);
        assert_eq!((won, &counted[..3]), (leader, &messages[..]), "N {n}, starter {starter}");
    }
}

#[test]
fn a_ring_sends_two_messages_for_each_live_process_whoever_starts() {
    for starter in 1..=6 {
        let (leader, counted) = elect(7, ring(7, false), Some(7), &[starter]);
        assert_eq!((leader, counted), (6, vec![6, 6, 0]), "{:?}", RingMessage::KINDS);
    }
    let (leader, counted) = elect(8, ring(8, false), None, &[3]);
    assert_eq!((leader, counted), (8, vec![8, 8, 0]));
    let (leader, counted) = elect(7, ring(7, false), Some(7), &[2, 5]);
    assert_eq!((leader, counted), (6, vec![12, 12, 0]), "two starters do no harm");
}

#[test]
fn more_than_half_of_all_or_nobody() {
    for n in [4_u32, 5, 6] {
        let half = n / 2;
        let alive =
            |world: &World<Bully>| world.nodes().iter().filter(|node| node.power == Power::Up).count();
        let mut world = World::new(1, n as usize, Network::calm(), bully(n as usize, true));
        (half + 1..=n).for_each(|dead| world.crash(ProcessId(dead)));
        world.call(ProcessId(1), Call::Elect);
        world.run(u64::MAX);
        assert!(alive(&world) <= n as usize / 2);
        assert!(world.nodes().iter().all(|node| node.machine.leader().is_none()), "bully, N {n}");

        let mut world = World::new(1, n as usize, Network::calm(), ring(n as usize, true));
        world.detect(Delay::Fixed(1));
        (half + 1..=n).for_each(|dead| world.crash(ProcessId(dead)));
        world.run(u64::MAX);
        world.call(ProcessId(1), Call::Elect);
        world.run(u64::MAX);
        assert!(world.nodes().iter().all(|node| node.machine.leader().is_none()), "ring, N {n}");
    }
}

/// The ids 1 to `n` in an order that the number stands for.
fn shuffled(n: usize, number: u64) -> Vec<u64> {
    let mut ids: Vec<u64> = (1..=n as u64).collect();
    for at in (1..n).rev() {
        let draw = quorate_lab::draw::mix(number, at as u64, 5);
        ids.swap(at, below(draw, at as u64 + 1) as usize);
    }
    ids
}

/// Room for the steps of the longest run: 64 processes, 2,144 messages.
const STEPS_MAX: usize = 1 << 13;

/// Election messages and announcements, in the mean over so many rings in which all start at once.
fn chang_roberts(n: usize, rings: u64) -> (f64, f64) {
    let (mut elections, mut announcements) = (0, 0);
    for number in 0..rings {
        let ids = Arc::new(shuffled(n, number));
        let greatest = ProcessId::at(ids.iter().position(|id| *id == n as u64).unwrap());
        let maker = move |me: ProcessId| {
            let id = ids[me.index()];
            ChangRoberts::new(me, Members::first(n), id, Ids::ByProcess, None, AtStart::Wait)
        };
        let mut world = World::new(number, n, Network::calm(), Arc::new(maker));
        world.set_network(Network { delay: Delay::Even(100, 10_000), ..Network::calm() });
        world.record(Trace::ring(STEPS_MAX));
        (0..n).for_each(|index| world.call(ProcessId::at(index), Call::Elect));
        world.run(u64::MAX);
        assert!(world.trace().total() < STEPS_MAX as u64);
        let counted = sent::<ChangRobertsMessage>(world.trace());
        let sent = counted[0];
        assert!(sent <= (n * (n + 1) / 2) as u64 && sent >= 2 * n as u64 - 1, "{sent} messages");
        assert!(world.nodes().iter().all(|node| node.machine.leader() == Some(greatest)));
        elections += sent;
        announcements += counted[1];
    }
    (elections as f64 / rings as f64, announcements as f64 / rings as f64)
}

#[test]
fn chang_roberts_sends_n_times_the_harmonic_number_in_the_mean() {
    for n in [4, 16, 64] {
        let begun = std::time::Instant::now();
        let (elections, announcements) = chang_roberts(n, 10_000);
        let formula = n as f64 * (1..=n).map(|k| 1.0 / k as f64).sum::<f64>();
        println!("N {n}: {elections:.2} ELECTION, N*H(N) = {formula:.2}; {:?}", begun.elapsed());
        assert!((elections / formula - 1.0).abs() < 0.05, "N {n}: {elections} beside {formula}");
        assert!((announcements - n as f64).abs() < f64::EPSILON, "N {n}: {announcements} ELECTED");
    }
}

#[test]
fn a_term_takes_a_request_and_a_vote_for_each_other_process() {
    let options = TermOptions {
        election: Within::millis(150, 300),
        heartbeat: Span::from_millis(50),
        pre_vote: true,
        lease: None,
    };
    let maker = move |me| TermElection::new(me, Members::first(5), options, Default::default());
    let mut world = World::new(3, 5, Network::calm(), Arc::new(maker));
    world.record(Trace::whole());
    world.call(ProcessId(2), Call::Elect);
    world.run_until(20_000, u64::MAX);
    let counted = sent::<TermMessage>(world.trace());
    assert_eq!(counted, vec![4, 4, 4, 4, 4, 4], "{:?}", TermMessage::KINDS);
    all_name_one_of(world.nodes().iter()).unwrap();
    assert_eq!(world.node(ProcessId(1)).machine.leader(), Some(ProcessId(2)));
}

#[test]
fn a_single_process_elects_itself() {
    let (leader, counted) = elect(1, bully(1, true), None, &[1]);
    assert_eq!((leader, counted.iter().sum::<u64>()), (1, 0));
    let (leader, counted) = elect(1, ring(1, true), None, &[1]);
    assert_eq!((leader, counted.iter().sum::<u64>()), (1, 0));
}
