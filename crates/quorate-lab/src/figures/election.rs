//! Messages of elections.

use super::Row;
use crate::draw::{below, mix};
use crate::election::check::all_name_one_of;
use crate::election::cost::sent;
use crate::network::{Delay, Network};
use crate::node::Power;
use crate::trace::Trace;
use crate::world::{Maker, World};
use quorate_core::election::{
    AtStart, Bully, BullyTiming, Call, ChangRoberts, ChangRobertsMessage, Elects, Ids, Ring, TermElection,
    TermOptions,
};
use quorate_core::protocol::{Members, ProcessId, Within};
use quorate_core::time::Span;
use std::sync::Arc;

/// No figure takes more steps: a run that does has gone wrong.
const STEPS_MAX: u64 = 10_000_000;

fn bully(n: usize, quorum: bool, at_start: AtStart) -> Maker<Bully> {
    let timing =
        BullyTiming { answer: Within::millis(10, 12), coordinator: Within::millis(100, 120), again: None };
    Arc::new(move |me| Bully::new(me, Members::first(n), timing, quorum, at_start))
}

fn ring(n: usize, quorum: bool) -> Maker<Ring> {
    Arc::new(move |me| Ring::new(me, Members::first(n), quorum, None, AtStart::Wait))
}

/// Who leads, as all that run say; or that they do not agree.
fn led<P: Elects>(world: &World<P>) -> String {
    if let Err(why) = all_name_one_of(world.nodes().iter()) {
        return why;
    }
    let leader =
        world.nodes().iter().find(|node| node.power == Power::Up).and_then(|node| node.machine.leader());
    leader.map_or("nobody".into(), |leader| leader.0.to_string())
}

/// Nobody knows a leader, `dead` has stopped and everybody knows it, and these start at once.
fn elect<P: Elects>(n: usize, maker: Maker<P>, dead: Option<u32>, starters: &[u32]) -> (String, Vec<u64>) {
    let mut world = World::new(1, n, Network::calm(), maker);
    world.record(Trace::whole());
    if let Some(dead) = dead {
        world.detect(Delay::Fixed(1));
        world.crash(ProcessId(dead));
        world.run(STEPS_MAX);
    }
    for starter in starters {
        world.call(ProcessId(*starter), Call::Elect);
    }
    world.run(STEPS_MAX);
    (led(&world), sent::<P::Message>(world.trace()))
}

pub(super) fn rows(rings: u64) -> Vec<Row> {
    let mut rows = bully_rows();
    rows.push(bullies_its_way_back());
    rows.extend(ring_rows());
    for n in [4, 16, 64] {
        rows.push(chang_roberts_row(n, rings));
    }
    rows.extend(partition_rows());
    rows
}

fn bully_rows() -> Vec<Row> {
    let published = [
        (7, 6, [1, 0, 5], 6),
        (7, 3, [10, 6, 5], 6),
        (7, 1, [21, 15, 5], 6),
        (6, 2, [10, 6, 4], 5),
        (6, 5, [1, 0, 4], 5),
        (5, 2, [6, 3, 3], 4),
    ];
    let row = |(n, starter, [election, ok, coordinator], leader): (usize, u32, [u64; 3], u32)| {
        let (won, counted) = elect(n, bully(n, false, AtStart::Wait), Some(n as u32), &[starter]);
        let says = |election: u64, ok: u64, coordinator: u64, leader: &str| {
            let total = election + ok + coordinator;
            format!("{election} + {ok} + {coordinator} = {total}, {leader} leads")
        };
        let what = format!("bully, N = {n}, {n} dead, {starter} starts: ELECTION + OK + COORDINATOR");
        Row::exact(
            "election",
            what,
            says(election, ok, coordinator, &leader.to_string()),
            says(counted[0], counted[1], counted[2], &won),
            "each higher, each live higher, each live other",
        )
    };
    published.map(row).to_vec()
}

fn bullies_its_way_back() -> Row {
    let mut world = World::new(1, 5, Network::calm(), bully(5, false, AtStart::Elect));
    world.detect(Delay::Fixed(1_000));
    world.run(STEPS_MAX);
    let first = led(&world);
    world.crash(ProcessId(5));
    world.run(STEPS_MAX);
    let second = led(&world);
    world.restart(ProcessId(5));
    world.run(STEPS_MAX);
    let measured = format!("{first}, {second}, {}", led(&world));
    let what = "bully, N = 5: who leads at first, after 5 has stopped, after it is back";
    Row::exact("election", what, "5, 4, 5", measured, "the greatest that runs")
}

fn ring_rows() -> Vec<Row> {
    let says = |total: u64, leader: &str| format!("{total}, {leader} leads");
    let row = |n: usize, dead: Option<u32>, starters: &[u32], published: String| {
        let (won, counted) = elect(n, ring(n, false), dead, starters);
        let dead = dead.map_or(String::new(), |dead| format!(", {dead} dead"));
        let starters: Vec<_> = starters.iter().map(ToString::to_string).collect();
        let start = if starters.len() == 1 { "starts" } else { "start at once" };
        let what = format!("ring, N = {n}{dead}, {} {start}: messages", starters.join(" and "));
        Row::exact("election", what, published, says(counted.iter().sum(), &won), "2N' for each starter")
    };
    vec![
        row(7, Some(7), &[3], says(12, "6")),
        row(8, None, &[3], says(16, "8")),
        row(6, Some(6), &[2], says(10, "5")),
        row(7, Some(7), &[2, 5], says(24, "6")),
    ]
}

/// The ids 1 to `n` in an order that the number stands for.
fn shuffled(n: usize, number: u64) -> Vec<u64> {
    let mut ids: Vec<u64> = (1..=n as u64).collect();
    for at in (1..n).rev() {
        ids.swap(at, below(mix(number, at as u64, 5), at as u64 + 1) as usize);
    }
    ids
}

/// ELECTION messages in the mean over random rings in which all start at once.
fn chang_roberts_row(n: usize, rings: u64) -> Row {
    let (mut elections, mut most, mut announced) = (0, 0, 0);
    for number in 0..rings {
        let ids = Arc::new(shuffled(n, number));
        let maker: Maker<ChangRoberts> = Arc::new(move |me: ProcessId| {
            let id = ids[me.index()];
            ChangRoberts::new(me, Members::first(n), id, Ids::ByProcess, None, AtStart::Wait)
        });
        let network = Network { delay: Delay::Even(100, 10_000), ..Network::calm() };
        let mut world = World::new(number, n, network, maker);
        world.record(Trace::whole());
        for index in 0..n {
            world.call(ProcessId::at(index), Call::Elect);
        }
        world.run(STEPS_MAX);
        let counted = sent::<ChangRobertsMessage>(world.trace());
        elections += counted[0];
        announced += counted[1];
        most = most.max(counted[0]);
    }
    let harmonic: f64 = (1..=n).map(|k| 1.0 / k as f64).sum();
    let (mean, expected) = (elections as f64 / rings as f64, n as f64 * harmonic);
    let within = (mean / expected - 1.0).abs() < 0.05;
    let bounded = most <= (n * (n + 1) / 2) as u64 && announced == rings * n as u64;
    Row {
        family: "election",
        what: format!("chang-roberts, N = {n}: ELECTION in the mean over {rings} random rings"),
        published: format!("{expected:.1}, at most {}; {n} ELECTED", n * (n + 1) / 2),
        measured: format!("{mean:.1}, at most {most}; {} ELECTED", announced as f64 / rings as f64),
        formula: "N*H(N) within 5%, N(N+1)/2; N".into(),
        equal: within && bounded,
    }
}

/// Two and two, and two and three: who leads on each side?
fn partition_rows() -> Vec<Row> {
    let row = |what: &str, published: &str, measured: String, formula: &str| {
        Row::exact("election", what, published, measured, formula)
    };
    vec![
        row(
            "bully with a quorum, 2 of 4 cut off: leaders",
            "0 and 0",
            split(4, bully(4, true, AtStart::Wait)),
            "more than half of all, or nobody",
        ),
        row(
            "bully, 2 of 4 cut off: leaders",
            "1 and 1",
            split(4, bully(4, false, AtStart::Wait)),
            "each side elects",
        ),
        row(
            "ring with a quorum, 2 of 5 cut off: leaders",
            "0 and 1",
            split(5, ring(5, true)),
            "more than half of all, or nobody",
        ),
        row("term, 2 of 5 cut off: leaders", "0 and 1", terms(5), "a majority of all"),
    ]
}

/// The first two are cut off from the others, and everybody knows; one on each side starts.
fn split<P: Elects>(n: u32, maker: Maker<P>) -> String {
    let mut world = cut(n, maker);
    for (at, of) in pairs(n) {
        world.suspect(ProcessId(at), ProcessId(of));
    }
    world.run(STEPS_MAX);
    world.call(ProcessId(1), Call::Elect);
    world.call(ProcessId(3), Call::Elect);
    world.run(STEPS_MAX);
    leaders(&world)
}

/// The same where elections go on by themselves, for ten seconds.
fn terms(n: u32) -> String {
    let options = TermOptions {
        election: Within::millis(150, 300),
        heartbeat: Span::from_millis(50),
        pre_vote: true,
        lease: None,
    };
    let maker: Maker<TermElection> = Arc::new(move |me| {
        TermElection::new(
            me,
            Members::first(n as usize),
            options,
            quorate_core::election::LogPosition::default(),
        )
    });
    let mut world = cut(n, maker);
    world.run_until(10_000_000, STEPS_MAX);
    leaders(&world)
}

fn pairs(n: u32) -> impl Iterator<Item = (u32, u32)> {
    let across = (1..=2).flat_map(move |one| (3..=n).map(move |other| (one, other)));
    across.flat_map(|(one, other)| [(one, other), (other, one)])
}

fn cut<P: Elects>(n: u32, maker: Maker<P>) -> World<P> {
    let mut world = World::new(1, n as usize, Network::calm(), maker);
    for (from, to) in pairs(n) {
        world.cut(ProcessId(from), ProcessId(to));
    }
    world
}

/// How many on each side lead.
fn leaders<P: Elects>(world: &World<P>) -> String {
    let leads = |node: &&crate::node::Node<P>| node.machine.leader() == Some(node.peer.process);
    let count = |nodes: &[crate::node::Node<P>]| nodes.iter().filter(leads).count();
    let (few, rest) = world.nodes().split_at(2);
    format!("{} and {}", count(few), count(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_of_elections_is_as_published() {
        let rows = rows(300);
        let other: Vec<_> = rows.iter().filter(|row| !row.equal).collect();
        assert!(other.is_empty(), "{other:#?}");
        assert!(rows.len() > 15, "{}", rows.len());
    }
}
