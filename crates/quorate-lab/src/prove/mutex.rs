//! The rows of mutual exclusion.

use super::{
    Fuzzed, Proof, Search, Shown, Subject, Worlds, counting, fuzzed, fuzzed_after, left_out, named, need,
    reached,
};
use crate::catalog::{Named, made, one_has_the_token};
use crate::check::{entries, nobody_waits_unharmed, one_inside, one_token, one_token_and_one_inside};
use crate::explore::{Explorer, Invariant, Rest};
use crate::fuzz::{Fuzzer, Odds, leave};
use crate::network::{Delay, Network, Order};
use crate::node::{Node, Power};
use crate::spot::{Calls, Faults, Rules, Spot, Timing};
use crate::world::Maker;
use quorate_core::mutex::{
    Call, Central, Flaw, Maekawa, MaekawaForm, Mutex, RicartAgrawala, Standing, TokenRing,
};
use quorate_core::protocol::{Cause, Goal, ProcessId, Protocol, Request};
use std::collections::BTreeSet;

pub(super) const CENTRAL: Subject = Subject {
    name: "central",
    family: "mutex",
    claim: "one is inside at most, and who asks enters unless the coordinator or the holder has stopped",
    needs: &[
        need("disk", "a coordinator that restarts with its disk", Shown::Search),
        need(
            "clocks",
            "with a lease, clocks of about one rate and no pause",
            Shown::Scenario("mutex/central_lease_pause"),
        ),
    ],
    search: |asked, watch| central(asked).map(|proof| proof.run(watch)),
    fuzz: central_worlds,
    flaws: || vec!["early-grant", "release-of-another", "grant-not-durable"],
};

pub(super) const RICART_AGRAWALA: Subject = Subject {
    name: "ricart-agrawala",
    family: "mutex",
    claim: "one is inside at most, in the order of timestamps; who stops blocks all, and is named",
    needs: &[need(
        "incarnations",
        "a new incarnation at each start, compared for equality",
        Shown::Mutant("reply-of-another-life"),
    )],
    search: |asked, watch| ricart_agrawala(asked).map(|proof| proof.run(watch)),
    fuzz: ricart_agrawala_worlds,
    flaws: || vec!["not-asked-again", "reply-of-another-life", "permission-kept"],
};

pub(super) const MAEKAWA: Subject = Subject {
    name: "maekawa",
    family: "mutex",
    claim: "one is inside at most and nobody waits for ever; a voter that stops blocks whom it votes for, and is named",
    needs: &[need("disk", "voters that restart with their disk", Shown::Search)],
    search: |asked, watch| maekawa(asked, MaekawaForm::DeadlockFree).map(|proof| proof.run(watch)),
    fuzz: maekawa_worlds,
    flaws: || vec!["no-inquire", "overtaken-not-told", "vote-not-durable", "late-inquire"],
};

pub(super) const MAEKAWA_BASIC: Subject = Subject {
    name: "maekawa-basic",
    family: "mutex",
    claim: "one is inside at most; it deadlocks, and is kept as a lesson",
    needs: &[need("luck", "luck", Shown::Search)],
    search: |asked, watch| maekawa(asked, MaekawaForm::Basic).map(|proof| proof.run(watch)),
    fuzz: basic_worlds,
    flaws: Vec::new,
};

pub(super) const TOKEN_RING: Subject = Subject {
    name: "token-ring",
    family: "mutex",
    claim: "at most one token in a generation; a lost one is made anew if a majority runs",
    needs: &[
        need("disk", "disks that keep the generation", Shown::Search),
        need(
            "trust",
            "one inside only while nobody is wrongly believed dead",
            Shown::Scenario("mutex/token_ring_slow_holder"),
        ),
    ],
    search: |asked, watch| token_ring(asked).map(|proof| proof.run(watch)),
    fuzz: token_ring_worlds,
    flaws: || vec!["token-taken-back", "no-majority"],
};

fn flaw(asked: Option<&str>, subject: &Subject) -> Result<Option<Flaw>, String> {
    named(asked, Flaw::ALL, Flaw::name, &subject.flaws())
}

fn in_worlds_only(flaw: Flaw, subject: &str) -> String {
    let name = flaw.name();
    format!("{name} shows in random worlds: quorate lab fuzz {subject} --mutant {name}")
}

fn calls<P: Mutex>(entries_each: u32) -> Result<Calls<P>, String> {
    match entries_each {
        1 => Ok(entries::<P, 1>),
        2 => Ok(entries::<P, 2>),
        3 => Ok(entries::<P, 3>),
        other => Err(format!("a search is of one to three entries of each process, not {other}")),
    }
}

/// At rest nobody waits, but for a process that has stopped, or for whoever waits for one; that one is named.
fn only_the_dead_hold_up<P: Mutex>(spot: &Spot<P>) -> Result<(), String> {
    let waits = |node: &&Node<P>| node.power == Power::Up && node.machine.standing() == Standing::Waiting;
    for node in spot.nodes().filter(waits) {
        if !comes_to_a_dead_one(spot, node.peer.process) {
            let says: Vec<_> = node.machine.waits().iter().map(ToString::to_string).collect();
            return Err(format!(
                "nothing goes on, and {} waits for nobody dead: {}",
                node.peer,
                says.join("; ")
            ));
        }
    }
    Ok(())
}

/// Whether the waits lead from this process to one that has stopped, or to a life that is over.
fn comes_to_a_dead_one<P: Mutex>(spot: &Spot<P>, from: ProcessId) -> bool {
    let (mut seen, mut todo) = (BTreeSet::from([from]), vec![from]);
    while let Some(at) = todo.pop() {
        for wait in spot.node(at).machine.waits() {
            let own = matches!(wait.goal, Goal::Enter(_)) || at != from;
            for (process, request) in named_by(&wait.cause).filter(|_| own) {
                let node = spot.node(process);
                if node.power != Power::Up || request.is_some_and(|request| request.by != node.peer) {
                    return true;
                }
                if seen.insert(process) {
                    todo.push(process);
                }
            }
        }
    }
    false
}

fn named_by(cause: &Cause) -> impl Iterator<Item = (ProcessId, Option<Request>)> + use<> {
    let named = match cause {
        Cause::Message { from, .. } | Cause::Token { from } => [Some((*from, None)), None],
        Cause::Held { by } | Cause::Earlier { request: by } => [Some((by.by.process, Some(*by))), None],
        Cause::Voted { by, to } => [Some((*by, None)), Some((to.by.process, Some(*to)))],
        _ => [None, None],
    };
    named.into_iter().flatten()
}

/// What must hold at rest: lost mail holds up whom it was for, if nothing is said again.
fn rest<P: Mutex>(faults: &Faults) -> Rest<P> {
    if faults.drops > 0 { nobody_waits_unharmed } else { only_the_dead_hold_up }
}

struct Small<P: Protocol> {
    n: usize,
    order: Order,
    faults: Faults,
    calls: Calls<P>,
}

fn proof<P: Mutex + Named>(
    small: Small<P>,
    asked: &Search,
    planted: Option<Flaw>,
    nodes: &str,
) -> Result<Proof<P>, String> {
    let Small { n, order, faults, calls } = small;
    let unordered = if order == Order::Fifo { "" } else { " order=unordered" };
    let nodes = format!("nodes {n} protocol={nodes}{unordered}{}", left_out(planted.map(Flaw::name)));
    let detector = faults.crashes > 0;
    let rules = Rules { maker: made(&nodes)?, n, order, faults, timing: Timing::Any, detector, calls };
    let (invariant, rest): (Invariant<P>, Rest<P>) = (one_inside, rest(&faults));
    Ok(Proof {
        explorer: Explorer { rules, invariant, rest, states_max: asked.states_max },
        nodes,
        reached: reached(planted, Flaw::reached),
    })
}

/// None; without the disk one that crashes and starts with an empty one.
fn suited(asked: &Search) -> Faults {
    if asked.without.is_some() { Faults { crashes: 1, wipes: 1, ..NONE } } else { NONE }
}

fn faults_or(asked: &Search, suited: Faults) -> Faults {
    asked.faults.unwrap_or(suited)
}

const NONE: Faults =
    Faults { crashes: 0, restarts: 0, wipes: 0, drops: 0, doubles: 0, suspicions: 0, pauses: 0, timers: 0 };

fn central(asked: &Search) -> Result<Proof<Central>, String> {
    let planted = flaw(asked.flaw.as_deref(), &CENTRAL)?;
    let suited = match planted {
        Some(flaw @ Flaw::EarlyGrant) => return Err(in_worlds_only(flaw, "central")),
        Some(Flaw::ReleaseOfAnother) => Faults { doubles: 1, ..NONE },
        Some(Flaw::GrantNotDurable) => Faults { crashes: 1, restarts: 1, ..NONE },
        _ => suited(asked),
    };
    let faults = faults_or(asked, suited);
    let durable = faults.restarts + faults.wipes > 0;
    let small = Small {
        n: asked.n.unwrap_or(3),
        order: Order::Unordered,
        faults,
        calls: calls(asked.entries.unwrap_or(1))?,
    };
    let durable = if durable { " durable=yes" } else { "" };
    proof(small, asked, planted, &format!("central{durable}"))
}

fn ricart_agrawala(asked: &Search) -> Result<Proof<RicartAgrawala>, String> {
    let planted = flaw(asked.flaw.as_deref(), &RICART_AGRAWALA)?;
    let (n, entries, suited) = match planted {
        Some(Flaw::NotAskedAgain | Flaw::ReplyOfAnotherLife) => {
            (2, 2, Faults { crashes: 1, wipes: 1, ..NONE })
        }
        Some(_) => (3, 2, NONE),
        None => (3, 1, NONE),
    };
    let n = asked.n.unwrap_or(n);
    let kept = planted == Some(Flaw::PermissionKept);
    let faults = faults_or(asked, suited);
    // Three that ask on links without order, and stop and start, are more states than memory holds.
    let many = n > 2 && faults.restarts > 0;
    let small = Small {
        n,
        order: if many { Order::Fifo } else { Order::Unordered },
        faults,
        calls: calls(asked.entries.unwrap_or(entries))?,
    };
    let kept = if kept { " permissions=kept" } else { "" };
    proof(small, asked, planted, &format!("ricart-agrawala{kept}"))
}

/// Voting sets by place, from 1.
type Sets = &'static [&'static [u32]];

/// Every two share one voter.
const TRIANGLE: Sets = &[&[1, 2], &[2, 3], &[1, 3]];
/// The last only votes; the third has its vote, the second is the better one, and the first needs both.
const OVERTAKING: Sets = &[&[1, 2, 4], &[2, 4], &[3, 4], &[4]];
/// The vote of the first is the one that matters.
const ONE_VOTER: Sets = &[&[1], &[1, 2], &[1, 3], &[1, 4]];

fn the_first_three_enter(machine: &Maekawa, made: u32) -> Option<Call> {
    (machine.peer().process != ProcessId(4)).then(|| entries::<Maekawa, 1>(machine, made)).flatten()
}

fn the_others_enter(machine: &Maekawa, made: u32) -> Option<Call> {
    (machine.peer().process != ProcessId(1)).then(|| entries::<Maekawa, 1>(machine, made)).flatten()
}

fn maekawa(asked: &Search, form: MaekawaForm) -> Result<Proof<Maekawa>, String> {
    let planted =
        flaw(asked.flaw.as_deref(), if form == MaekawaForm::Basic { &MAEKAWA_BASIC } else { &MAEKAWA })?;
    let each = calls(asked.entries.unwrap_or(1))?;
    let three = asked.n.unwrap_or(3) == 3;
    let (sets, enter, suited): (Option<Sets>, Calls<Maekawa>, Faults) = match planted {
        Some(Flaw::OvertakenNotTold) => (Some(OVERTAKING), the_first_three_enter, NONE),
        Some(Flaw::LateInquire) => (Some(ONE_VOTER), the_others_enter, NONE),
        Some(Flaw::VoteNotDurable) => (Some(TRIANGLE), each, Faults { crashes: 1, restarts: 1, ..NONE }),
        _ if form == MaekawaForm::Basic => (Some(TRIANGLE).filter(|_| three), each, NONE),
        _ => (Some(TRIANGLE).filter(|_| three), each, suited(asked)),
    };
    let n = sets.map_or(asked.n.unwrap_or(3), <[_]>::len);
    if asked.n.is_some_and(|wanted| wanted != n) {
        return Err(format!("this mutant shows among {n} processes"));
    }
    let faults = faults_or(asked, suited);
    let durable = faults.restarts + faults.wipes > 0;
    let small = Small { n, order: Order::Fifo, faults, calls: enter };
    let durable = if durable { " durable=yes" } else { "" };
    let form = if form == MaekawaForm::Basic { " form=basic" } else { "" };
    let voters = sets.map_or(String::new(), |sets| {
        let set = |set: &&[u32]| set.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
        format!(" voters={}", sets.iter().map(set).collect::<Vec<_>>().join(","))
    });
    proof(small, asked, planted, &format!("maekawa{form}{voters}{durable}"))
}

/// A claim that is due may still make the token anew.
fn only_the_dead_hold_up_a_ring(spot: &Spot<TokenRing>) -> Result<(), String> {
    let due = spot.nodes().any(|node| node.power == Power::Up && !node.timers.is_empty());
    if due { Ok(()) } else { only_the_dead_hold_up(spot) }
}

/// The last enters once; the token is at the first.
fn the_last_enters(machine: &TokenRing, made: u32) -> Option<Call> {
    (machine.peer().process == ProcessId(3)).then(|| entries::<TokenRing, 1>(machine, made)).flatten()
}

fn the_first_two_enter(machine: &TokenRing, made: u32) -> Option<Call> {
    (machine.peer().process != ProcessId(3)).then(|| entries::<TokenRing, 1>(machine, made)).flatten()
}

fn token_ring(asked: &Search) -> Result<Proof<TokenRing>, String> {
    let planted = flaw(asked.flaw.as_deref(), &TOKEN_RING)?;
    let suited = match planted {
        Some(Flaw::TokenTakenBack) => Faults { suspicions: 1, ..NONE },
        Some(Flaw::NoMajority) => Faults { timers: 1, ..NONE },
        _ => suited(asked),
    };
    let mut faults = faults_or(asked, suited);
    // A lost token is found missing by a timer.
    faults.timers = faults.timers.max(faults.crashes);
    let n = asked.n.unwrap_or(3);
    let harmed = faults != NONE;
    let enter: Calls<TokenRing> = match planted {
        Some(Flaw::NoMajority) => the_first_two_enter,
        _ if harmed => the_last_enters,
        _ => calls(asked.entries.unwrap_or(1))?,
    };
    let order =
        if faults.restarts > 0 || planted == Some(Flaw::NoMajority) { Order::Fifo } else { Order::Unordered };
    let small = Small { n, order, faults, calls: enter };
    let silence = if harmed { " silence=1s..2s" } else { "" };
    let mut proof = proof(small, asked, planted, &format!("token-ring idle=park{silence}"))?;
    // Who is wrongly believed dead may still be inside when the token is made anew: R44.
    let only_tokens = faults.suspicions > 0 || faults.pauses > 0;
    proof.explorer.invariant = if only_tokens { one_token } else { one_token_and_one_inside };
    if faults.drops == 0 {
        proof.explorer.rest = only_the_dead_hold_up_a_ring;
    }
    // A restart that nobody noticed is the hard case.
    proof.explorer.rules.detector = faults.crashes > 0 && faults.restarts == 0;
    Ok(proof)
}

fn in_searches_only(flaw: Flaw, subject: &str) -> String {
    let name = flaw.name();
    format!("{name} shows in a complete search: quorate lab check {subject} --mutant {name}")
}

fn central_worlds(asked: &Worlds) -> Result<Fuzzed, String> {
    let planted = flaw(asked.flaw.as_deref(), &CENTRAL)?;
    let nodes = |_| format!("protocol=central lease=400ms durable=yes{}", left_out(planted.map(Flaw::name)));
    let calm_clocks = Odds { pause: 0, clock_jump: 0, ..Odds::EVERYTHING };
    match planted {
        None => fuzzed(asked, one_inside, nodes, |maker: Maker<Central>, n| {
            Fuzzer::of_mutex(maker, n, calm_clocks)
        }),
        Some(Flaw::EarlyGrant) => counting(planted, Flaw::reached, || {
            fuzzed(asked, one_inside, nodes, |maker: Maker<Central>, n| {
                let odds = Odds {
                    faults_max: 6,
                    crash: 250,
                    cut: 200,
                    isolate: 300,
                    clock_rate: 100,
                    ..Odds::default()
                };
                Fuzzer {
                    calls: (Call::Enter, 3),
                    reaction: (leave, Delay::Even(0, 400_000)),
                    faults_us: 1_000_000,
                    settle_us: 20_000_000,
                    goal: |_| Ok(()),
                    ..Fuzzer::of_mutex(maker, n, odds)
                }
            })
        }),
        Some(other) => Err(in_searches_only(other, "central")),
    }
}

fn ricart_agrawala_worlds(asked: &Worlds) -> Result<Fuzzed, String> {
    if let Some(planted) = flaw(asked.flaw.as_deref(), &RICART_AGRAWALA)? {
        return Err(in_searches_only(planted, "ricart-agrawala"));
    }
    let nodes = |_| "protocol=ricart-agrawala retry=30ms..60ms".into();
    fuzzed(asked, one_inside, nodes, |maker: Maker<RicartAgrawala>, n| {
        Fuzzer::of_mutex(maker, n, Odds { wipe: 500, ..Odds::EVERYTHING })
    })
}

fn maekawa_worlds(asked: &Worlds) -> Result<Fuzzed, String> {
    if let Some(planted) = flaw(asked.flaw.as_deref(), &MAEKAWA)? {
        return Err(in_searches_only(planted, "maekawa"));
    }
    let nodes = |_| "protocol=maekawa durable=yes retry=30ms..60ms".into();
    let odds = Odds { clock_rate: 0, clock_jump: 0, crash: 300, ..Odds::EVERYTHING };
    fuzzed(asked, one_inside, nodes, |maker: Maker<Maekawa>, n| Fuzzer::of_mutex(maker, n, odds))
}

/// Calm worlds, in which the basic form deadlocks all the same.
fn basic_worlds(asked: &Worlds) -> Result<Fuzzed, String> {
    let nodes = |_| "protocol=maekawa form=basic".into();
    fuzzed(asked, one_inside, nodes, |maker: Maker<Maekawa>, n| Fuzzer {
        network: Network::unordered(),
        ..Fuzzer::of_mutex(maker, n, Odds::default())
    })
}

/// The first token is there once the first record of its holder is durable: twice as long as the slowest disk
/// takes.
const FOUNDING_US: u64 = 10_000;

fn token_ring_worlds(asked: &Worlds) -> Result<Fuzzed, String> {
    if let Some(planted) = flaw(asked.flaw.as_deref(), &TOKEN_RING)? {
        return Err(in_searches_only(planted, "token-ring"));
    }
    let odds = Odds { faults_max: 6, crash: 400, pause: 100, cut: 150, isolate: 100, ..Odds::default() };
    let nodes = |_| "protocol=token-ring idle=park silence=90ms retry=30ms".into();
    fuzzed_after(FOUNDING_US, asked, one_token_and_one_inside, nodes, |maker: Maker<TokenRing>, n| Fuzzer {
        faults_us: 200_000,
        // In the order of what happened: a suspicion after the trust would be a false one.
        detector: Some(Delay::Fixed(5_000)),
        check: one_has_the_token,
        ..Fuzzer::of_mutex(maker, n, odds)
    })
}
