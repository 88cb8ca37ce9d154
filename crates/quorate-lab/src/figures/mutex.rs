//! Messages and delays of mutual exclusion.

use super::Row;
use crate::check::nobody_waits_unharmed;
use crate::check::{entries, one_inside};
use crate::count::Cost;
use crate::explore::Explorer;
use crate::network::{Delay, Network, Order};
use crate::spot::{Faults, Rules, Timing};
use crate::trace::Trace;
use crate::world::{Maker, World};
use quorate_core::mutex::{
    Call, Central, Event, IdleToken, Maekawa, MaekawaForm, Mutex, RicartAgrawala, TokenRing,
};
use quorate_core::protocol::{Members, ProcessId, Protocol, Within};
use quorate_core::quorum::grid;
use quorate_core::time::Span;
use std::sync::Arc;

/// The protocols that a table of messages has, by name.
pub const PROTOCOLS: [&str; 4] = ["central", "ricart-agrawala", "maekawa", "token-ring"];

/// How much is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// One process asks, and nobody else wants anything.
    Quiet,
    /// All ask at once, and again as soon as they have left, four times in all.
    Heavy,
}

/// What entries cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The fewest messages that an entry took; under heavy load the mean.
    pub least: f64,
    /// The most; under heavy load the mean.
    pub most: f64,
    /// The mean.
    pub mean: f64,
    /// The shortest and the longest wait before an entry, in message times, in a quiet world.
    pub delay: (f64, f64),
    /// From one that leaves to the next that enters, in message times, under heavy load.
    pub handover: Option<f64>,
}

/// Counts the messages of entries among `n` processes.
///
/// # Panics
/// If there is no such protocol.
pub fn measure(protocol: &str, n: usize, load: Load) -> Measured {
    let members = Members::first(n);
    match protocol {
        "central" => {
            counted(&(Arc::new(|me| Central::new(me, ProcessId(1), None, false)) as Maker<_>), n, load)
        }
        "ricart-agrawala" => {
            let maker: Maker<_> = Arc::new(move |me| RicartAgrawala::new(me, members.clone(), None));
            counted(&maker, n, load)
        }
        "maekawa" => {
            let form = MaekawaForm::DeadlockFree;
            let maker: Maker<_> = Arc::new(move |me| Maekawa::new(me, members.clone(), form, false, None));
            counted(&maker, n, load)
        }
        "token-ring" => ring(n, load),
        other => panic!("there is no table of {other}"),
    }
}

fn leave(event: &Event) -> Option<Call> {
    matches!(event, Event::Entered { .. }).then_some(Call::Leave)
}

/// One world of its own for each process that asks; the coordinator of the central protocol, which asks itself,
/// is left out.
fn counted<P: Mutex>(maker: &Maker<P>, n: usize, load: Load) -> Measured {
    match load {
        Load::Quiet => {
            let costs = (1..n).map(|index| alone(maker, n, ProcessId::at(index)));
            summed(&costs.collect::<Vec<_>>())
        }
        Load::Heavy => heavy(maker, n),
    }
}

fn alone<P: Mutex>(maker: &Maker<P>, n: usize, who: ProcessId) -> Cost {
    let mut world = World::new(1, n, Network::calm(), maker.clone());
    world.react(leave, Delay::Fixed(5_000));
    world.record(Trace::whole());
    world.call(who, Call::Enter);
    world.run(STEPS_MAX);
    Cost::of(world.trace())
}

/// No figure takes more steps: a run that does has gone wrong.
const STEPS_MAX: u64 = 200_000;

/// How often each process enters under heavy load.
const TURNS: usize = 4;

fn heavy<P: Mutex>(maker: &Maker<P>, n: usize) -> Measured {
    let mut world = World::new(1, n, Network::calm(), maker.clone());
    world.react(leave, Delay::Fixed(5_000));
    world.record(Trace::whole());
    let mut turns = vec![TURNS; n];
    for index in 0..n {
        world.call(ProcessId::at(index), Call::Enter);
    }
    for _ in 0..STEPS_MAX {
        if !world.next() {
            break;
        }
        let left = world.emitted().iter().filter(|(_, event)| matches!(event, Event::Left { .. }));
        let left: Vec<_> = left.map(|(peer, _)| peer.process).collect();
        for process in left {
            turns[process.index()] -= 1;
            if turns[process.index()] > 0 {
                world.call(process, Call::Enter);
            }
        }
        if turns.iter().all(|turns| *turns == 0) {
            break;
        }
    }
    summed_heavy(&Cost::of(world.trace()))
}

fn summed_heavy(cost: &Cost) -> Measured {
    let mean = cost.total() as f64 / cost.entries.max(1) as f64;
    let handover = cost.handover_us.iter().sum::<u64>() as f64 / cost.handover_us.len().max(1) as f64;
    let handover = (!cost.handover_us.is_empty()).then(|| handover / cost.message_us.max(1) as f64);
    Measured { least: mean, most: mean, mean, delay: (0.0, 0.0), handover }
}

fn summed(costs: &[Cost]) -> Measured {
    let each: Vec<f64> = costs.iter().map(|cost| cost.total() as f64 / cost.entries.max(1) as f64).collect();
    let delays: Vec<f64> =
        costs.iter().map(|cost| cost.client_us[0] as f64 / cost.message_us.max(1) as f64).collect();
    let least = |of: &[f64]| of.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |of: &[f64]| of.iter().copied().fold(0.0, f64::max);
    Measured {
        least: least(&each),
        most: most(&each),
        mean: each.iter().sum::<f64>() / each.len().max(1) as f64,
        delay: (least(&delays), most(&delays)),
        handover: None,
    }
}

/// The token goes round all the time. In a quiet world a request is made when it is `distance` hops away, and
/// its hops from then on are counted; under heavy load all hops of all entries are.
fn ring(n: usize, load: Load) -> Measured {
    let members = Members::first(n);
    let idle = IdleToken::Circulate { rest: Within::exactly(Span::ZERO) };
    let maker: Maker<TokenRing> = Arc::new(move |me| TokenRing::new(me, members.clone(), idle, None));
    match load {
        Load::Heavy => heavy(&maker, n),
        Load::Quiet => {
            let costs: Vec<_> = (1..n).map(|distance| round(&maker, n, distance)).collect();
            let here = round(&maker, n, 0);
            let mut measured = summed(&costs);
            measured.delay.0 = summed(&[here]).delay.0;
            measured
        }
    }
}

/// A message time before the token arrives somewhere, and one microsecond less.
const NEARLY_US: u64 = 999;

/// The token is about to arrive at a process, and the one `distance` hops behind that asks; what is sent from
/// then on until it is inside is counted.
fn round(maker: &Maker<TokenRing>, n: usize, distance: usize) -> Cost {
    let mut world = World::new(1, n, Network::calm(), maker.clone());
    while world.time_us() == 0 && world.next() {}
    world.run_until(world.time_us() + NEARLY_US, STEPS_MAX);
    let next = world.flights().first().map_or(0, |flight| flight.to.process.index());
    world.record(Trace::whole());
    world.call(ProcessId::at((next + distance) % n), Call::Enter);
    let inside = |world: &World<TokenRing>| {
        world.emitted().iter().any(|(_, event)| matches!(event, Event::Entered { .. }))
    };
    while !inside(&world) && world.steps() < STEPS_MAX && world.next() {}
    let mut cost = Cost::of(world.trace());
    // What arrives first was sent before the recording began.
    cost.message_us = NEARLY_US + 1;
    cost
}

pub(super) fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for n in [4, 9, 10, 16, 25, 100] {
        rows.extend(entry_rows(n));
    }
    rows.extend(delay_rows());
    rows.extend(histories());
    rows.extend(grids());
    rows.push(deadlock());
    rows.push(dead_peer());
    rows
}

fn entry_rows(n: usize) -> Vec<Row> {
    let what = |protocol: &str| format!("{protocol}, N = {n}: messages for an entry");
    let exact = |measured: &Measured| match measured.least == measured.most {
        true => measured.mean.to_string(),
        false => format!("{} to {}", measured.least, measured.most),
    };
    let quiet = |protocol| measure(protocol, n, Load::Quiet);
    let (ring, full) = (quiet("token-ring"), measure("token-ring", n, Load::Heavy));
    let turns = format!("1 to {}", n - 1);
    vec![
        Row::exact("mutex", what("central"), 3, exact(&quiet("central")), "3"),
        Row::exact("mutex", what("ricart-agrawala"), 2 * (n - 1), exact(&quiet("ricart-agrawala")), "2(N-1)"),
        maekawa_row(n, what("maekawa"), &quiet("maekawa")),
        Row::exact("mutex", what("token-ring"), turns, exact(&ring), "1 to N-1, quiet"),
        Row::exact(
            "mutex",
            format!("token-ring, N = {n}: messages an entry, all want in"),
            "about 1",
            if (0.9..=1.1).contains(&full.mean) { "about 1".into() } else { format!("{:.2}", full.mean) },
            "1",
        ),
    ]
}

/// On a square all sets are of one size. Else the sizes are those of the stated construction, and the published
/// figure is what it gives: from three times the least set less one to three times the greatest.
fn maekawa_row(n: usize, what: String, measured: &Measured) -> Row {
    let members = Members::first(n);
    let root = n.isqrt();
    if root * root == n {
        let k = 2 * root - 1;
        return Row::exact(
            "mutex",
            what,
            3 * (k - 1),
            measured.mean,
            format!("3(K-1), K = 2 sqrt(N) - 1 = {k}"),
        );
    }
    let sizes: Vec<_> = (1..n).map(|index| grid(&members, ProcessId::at(index)).count()).collect();
    let (least, most) = (sizes.iter().min().unwrap_or(&1), sizes.iter().max().unwrap_or(&1));
    let published = format!("{} to {}", 3 * (least - 1), 3 * (most - 1));
    let counted = format!("{} to {}", measured.least, measured.most);
    let formula = format!("3(K-1), K = {least} to {most}: rows of {}, the last one short", root + 1);
    Row::exact("mutex", what, published, counted, formula)
}

fn delay_rows() -> Vec<Row> {
    let n = 9;
    let row = |protocol: &str, published: &str, formula: &str| {
        let (least, most) = measure(protocol, n, Load::Quiet).delay;
        let whole = |times: f64| if (times - times.round()).abs() < 0.01 { times.round() } else { times };
        let (least, most) = (whole(least), whole(most));
        let measured = if least == most { least.to_string() } else { format!("{least} to {most}") };
        let what = format!("{protocol}, N = {n}: message times before a quiet entry");
        Row::exact("mutex", what, published, measured, formula)
    };
    vec![
        row("central", "2", "request, grant"),
        row("ricart-agrawala", "2", "all at once"),
        row("maekawa", "2", "all at once"),
        row("token-ring", "0 to 8", "0 to N-1"),
    ]
}

/// All ask at once, with these Lamport timestamps. In which order do they enter, with how many messages?
fn at_once(timestamps: &'static [u64]) -> (String, u64, u64) {
    let n = timestamps.len();
    let members = Members::first(n);
    let maker: Maker<RicartAgrawala> = Arc::new(move |me| {
        // The request that follows has the next number.
        RicartAgrawala::new(me, members.clone(), None).with_clock(timestamps[me.index()] - 1)
    });
    let mut world = World::new(1, n, Network::calm(), maker);
    world.react(leave, Delay::Fixed(5_000));
    world.record(Trace::whole());
    for index in 0..n {
        world.call(ProcessId::at(index), Call::Enter);
    }
    world.run(STEPS_MAX);
    let cost = Cost::of(world.trace());
    let order: Vec<_> = cost.order.iter().map(|request| format!("P{}", request.by.process.0)).collect();
    (order.join(", "), cost.total(), cost.entries)
}

fn histories() -> Vec<Row> {
    let (four, messages, _) = at_once(&[3, 3, 5, 4]);
    let (three, total, entries) = at_once(&[5, 3, 7]);
    let smaller = "the smaller (timestamp, id) first";
    vec![
        Row::exact("mutex", "ricart-agrawala, timestamps 3, 3, 5, 4: order", "P1, P2, P4, P3", four, smaller),
        Row::exact("mutex", "ricart-agrawala, timestamps 3, 3, 5, 4: messages", 24, messages, "2N(N-1)"),
        Row::exact("mutex", "ricart-agrawala, timestamps 5, 3, 7: order", "P2, P1, P3", three, smaller),
        Row::exact(
            "mutex",
            "ricart-agrawala, timestamps 5, 3, 7: messages an entry",
            4,
            total as f64 / entries as f64,
            "2(N-1)",
        ),
    ]
}

/// The sets of the grid, numbered from 0 row by row as published.
fn grids() -> Vec<Row> {
    let set = |n: usize, place: usize| {
        let set = grid(&Members::first(n), ProcessId::at(place));
        let places: Vec<_> = set.iter().map(|process| process.index().to_string()).collect();
        format!("{{{}}}", places.join(","))
    };
    let published = [(0, "{0,1,2,3,6}"), (4, "{1,3,4,5,7}"), (5, "{2,3,4,5,8}"), (8, "{2,5,6,7,8}")];
    let mut rows: Vec<_> = published
        .iter()
        .map(|(place, says)| {
            Row::exact(
                "mutex",
                format!("maekawa, N = 9: the set of {place}"),
                says,
                set(9, *place),
                "row and column",
            )
        })
        .collect();
    for n in [9, 10, 16] {
        let members = Members::first(n);
        let sets: Vec<_> = (0..n).map(|place| grid(&members, ProcessId::at(place))).collect();
        let pairs = sets.iter().flat_map(|a| sets.iter().map(move |b| (a, b)));
        let meet = pairs.filter(|(a, b)| a.iter().any(|process| b.contains(process))).count();
        let what = format!("maekawa, N = {n}: pairs of sets that meet");
        rows.push(Row::exact("mutex", what, n * n, meet, "all"));
    }
    rows
}

/// Three processes that each ask themselves and the next one, in the basic form and in the other.
fn deadlock() -> Row {
    let stuck = |form| {
        let members = Members::first(3);
        let maker: Maker<Maekawa> = Arc::new(move |me| {
            let voters = Members::new(vec![me, members.after(me)]);
            Maekawa::new(me, members.clone(), form, false, None).with_voters(voters)
        });
        let rules = Rules {
            maker,
            n: 3,
            order: Order::Fifo,
            faults: Faults::default(),
            timing: Timing::Any,
            detector: false,
            calls: entries::<Maekawa, 1>,
        };
        let explorer =
            Explorer { rules, invariant: one_inside, rest: nobody_waits_unharmed, states_max: 1_000_000 };
        if explorer.run().counter_example.is_some() { "deadlock" } else { "none" }
    };
    let measured = format!("{}, {}", stuck(MaekawaForm::Basic), stuck(MaekawaForm::DeadlockFree));
    let what = "maekawa, three in a circle: basic form, deadlock-free form";
    Row::exact("mutex", what, "deadlock, none", measured, "complete search")
}

/// One of three has stopped: whom does the requester name?
fn dead_peer() -> Row {
    let members = Members::first(3);
    let maker: Maker<RicartAgrawala> = Arc::new(move |me| RicartAgrawala::new(me, members.clone(), None));
    let mut world = World::new(1, 3, Network::calm(), maker);
    world.crash(ProcessId(3));
    world.call(ProcessId(1), Call::Enter);
    world.run(STEPS_MAX);
    let waits: Vec<_> = world.node(ProcessId(1)).machine.waits().iter().map(ToString::to_string).collect();
    let published = "n1.1 waits to enter: REPLY of n3 has not come";
    let what = "ricart-agrawala, n3 has stopped: what n1 says";
    Row::exact("mutex", what, published, waits.join("; "), "it waits for ever")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_of_mutual_exclusion_is_as_published() {
        let rows = rows();
        let other: Vec<_> = rows.iter().filter(|row| !row.equal).collect();
        assert!(other.is_empty(), "{other:#?}");
        assert!(rows.len() > 40, "{}", rows.len());
    }
}
