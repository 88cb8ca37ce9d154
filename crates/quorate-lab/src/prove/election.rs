//! The rows of elections.

use super::{Fuzzed, Proof, Search, Searched, Subject, Watch, Worlds, fuzzed, named, reached};
use crate::election::check;
use crate::election::worlds::{EVERYTHING, STOPS, first_and_new_lives, fuzzer, nobody, only, ordered};
use crate::explore::{Explorer, Invariant, Rest, nothing};
use crate::fuzz::{Fuzzer, Odds};
use crate::network::{Network, Order};
use crate::node::Node;
use crate::spot::{Calls, Faults, Rules, Spot, Timing};
use crate::world::{Maker, World};
use quorate_core::election::{
    AtStart, Bully, BullyTiming, ChangRoberts, Elects, Flaw, Ids, LogPosition, Ring, Term, TermElection,
    TermOptions,
};
use quorate_core::id::LogIndex;
use quorate_core::protocol::{Members, ProcessId, Protocol, Within};
use quorate_core::time::Span;
use std::sync::Arc;

pub(super) const BULLY: Subject = Subject {
    name: "bully",
    family: "election",
    claim: "at rest all that run name the greatest that runs",
    needs: "answers in time, and nobody wrongly believed dead",
    search: bully,
    fuzz: |asked| {
        agreeing(asked, &BULLY, "bully start=elect", |n| fuzzer(bully_maker(n, 25, 250), n, ordered(), STOPS))
    },
    flaws: || vec!["no-second-timeout", "suspect-followed"],
};

pub(super) const RING: Subject = Subject {
    name: "ring",
    family: "election",
    claim: "at rest all that run name the greatest that runs",
    needs: "a detector that tells of each stop, and nobody wrongly believed dead for ever",
    search: ring,
    fuzz: |asked| {
        agreeing(asked, &RING, "ring retry=500ms start=elect", |n| fuzzer(ring_maker(n), n, ordered(), STOPS))
    },
    flaws: || vec!["last-followed", "not-passed-again", "starter-closes"],
};

pub(super) const CHANG_ROBERTS: Subject = Subject {
    name: "chang-roberts",
    family: "election",
    claim: "at rest all that run name one",
    needs: "a detector that tells of each stop before the next start; ids that differ, or are told apart by the process",
    search: chang_roberts,
    fuzz: |asked| {
        agreeing(asked, &CHANG_ROBERTS, "chang-roberts retry=500ms start=elect", |n| {
            fuzzer(scattered(n), n, ordered(), STOPS)
        })
    },
    flaws: || vec!["waits-for-stopped", "former-life-wins"],
};

pub(super) const TERM: Subject = Subject {
    name: "term",
    family: "election",
    claim: "at most one leads in a term, and its log is no older than those of a majority",
    needs: "disks that keep the vote",
    search: term,
    fuzz: term_worlds,
    flaws: || {
        vec![
            "vote-not-durable",
            "second-vote",
            "vote-of-another",
            "old-log-vote",
            "older-term-followed",
            "half-is-enough",
        ]
    },
};

fn flaw(asked: Option<&str>, subject: &Subject) -> Result<Option<Flaw>, String> {
    named(asked, Flaw::ALL, Flaw::name, &subject.flaws())
}

const NONE: Faults =
    Faults { crashes: 0, restarts: 0, wipes: 0, drops: 0, doubles: 0, suspicions: 0, pauses: 0, timers: 0 };

/// A search in the making.
struct Small<P: Protocol> {
    maker: Maker<P>,
    order: Order,
    faults: Faults,
    timing: Timing,
    detector: bool,
    calls: Calls<P>,
    invariant: Invariant<P>,
    rest: Rest<P>,
    nodes: String,
}

fn run<P: Elects>(
    small: Small<P>,
    n: usize,
    asked: &Search,
    planted: Option<Flaw>,
    watch: Watch<'_>,
) -> Searched {
    let Small { maker, order, faults, timing, detector, calls, invariant, rest, nodes } = small;
    let rules = Rules { maker, n, order, faults, timing, detector, calls };
    let unordered = if order == Order::Fifo { "" } else { " order=unordered" };
    let words = planted.map_or(String::new(), |flaw| format!(" flaw={}", flaw.name()));
    let proof = Proof {
        explorer: Explorer { rules, invariant, rest, states_max: asked.states_max },
        nodes: format!("nodes {n} protocol={nodes}{unordered}{words}"),
        reached: reached(planted, Flaw::reached),
    };
    proof.run(watch)
}

/// Who comes back starts by itself only where all do.
fn start(faults: &Faults) -> (AtStart, &'static str) {
    match faults.restarts + faults.wipes {
        0 => (AtStart::Elect, " start=elect"),
        _ => (AtStart::Wait, ""),
    }
}

fn bully(asked: &Search, watch: Watch<'_>) -> Result<Searched, String> {
    let planted = flaw(asked.flaw.as_deref(), &BULLY)?;
    let crash = Faults { crashes: 1, ..NONE };
    let mut faults = asked.faults.unwrap_or(if planted.is_some() { crash } else { NONE });
    faults.timers = faults.timers.max(6);
    let (n, (start, word)) = (asked.n.unwrap_or(3), start(&faults));
    let timing =
        BullyTiming { answer: Within::millis(10, 12), coordinator: Within::millis(100, 120), again: None };
    let again = start == AtStart::Wait;
    let small = Small {
        maker: Arc::new(move |me| Bully::new(me, Members::first(n), timing, false, start).with_flaw(planted)),
        order: Order::Fifo,
        faults,
        timing: Timing::Patient,
        detector: true,
        calls: if again { first_and_new_lives } else { nobody },
        invariant: if planted.is_some() { nothing } else { check::true_waits },
        rest: if again { check::nobody_or_the_greatest } else { check::all_name_the_greatest },
        nodes: format!("bully answer=10ms coordinator=100ms{word}"),
    };
    Ok(run(small, n, asked, planted, watch))
}

fn ring(asked: &Search, watch: Watch<'_>) -> Result<Searched, String> {
    let planted = flaw(asked.flaw.as_deref(), &RING)?;
    let suited = match planted {
        None => NONE,
        Some(Flaw::LastFollowed) => Faults { suspicions: 1, ..NONE },
        Some(_) => Faults { crashes: 1, ..NONE },
    };
    let faults = asked.faults.unwrap_or(suited);
    let n = asked.n.unwrap_or(3);
    let one_starts = matches!(planted, Some(Flaw::NotPassedAgain | Flaw::StarterCloses));
    let (start, word) = if one_starts { (AtStart::Wait, "") } else { start(&faults) };
    let again = start == AtStart::Wait;
    let small = Small {
        maker: Arc::new(move |me| Ring::new(me, Members::first(n), false, None, start).with_flaw(planted)),
        order: Order::Fifo,
        faults,
        timing: Timing::Any,
        detector: true,
        calls: match (one_starts, again) {
            (true, _) => only::<_, 1>,
            (_, true) => first_and_new_lives,
            _ => nobody,
        },
        invariant: if planted.is_some() { nothing } else { check::true_waits },
        rest: match (one_starts, again) {
            (true, _) => check::nobody_elects,
            (_, true) => check::nobody_or_the_greatest,
            _ => check::all_name_the_greatest,
        },
        nodes: format!("ring{word}"),
    };
    Ok(run(small, n, asked, planted, watch))
}

fn chang_roberts(asked: &Search, watch: Watch<'_>) -> Result<Searched, String> {
    let planted = flaw(asked.flaw.as_deref(), &CHANG_ROBERTS)?;
    let suited = match planted {
        None => NONE,
        Some(Flaw::FormerLifeWins) => Faults { crashes: 1, restarts: 1, ..NONE },
        Some(_) => Faults { crashes: 1, ..NONE },
    };
    let n = asked.n.unwrap_or(3);
    let (start, word) = match planted {
        None => (AtStart::Elect, " start=elect"),
        Some(_) => (AtStart::Wait, ""),
    };
    let maker = move |me: ProcessId| {
        ChangRoberts::new(me, Members::first(n), me.0.into(), Ids::ByProcess, None, start).with_flaw(planted)
    };
    let small = Small {
        maker: Arc::new(maker),
        order: Order::Fifo,
        faults: asked.faults.unwrap_or(suited),
        timing: Timing::Any,
        detector: true,
        calls: if planted.is_some() { only::<_, 3> } else { nobody },
        invariant: match planted {
            None => check::true_waits,
            Some(Flaw::FormerLifeWins) => leads_by_its_own_life,
            Some(_) => nothing,
        },
        rest: match planted {
            None => check::all_name_one,
            Some(Flaw::FormerLifeWins) => nothing,
            Some(_) => check::nobody_elects,
        },
        nodes: format!("chang-roberts{word}"),
    };
    Ok(run(small, n, asked, planted, watch))
}

/// Whoever leads won an election of its present life: it has held one.
fn leads_by_its_own_life(spot: &Spot<ChangRoberts>) -> Result<(), String> {
    let leads = |node: &&Node<ChangRoberts>| node.machine.leader() == Some(node.peer.process);
    let idle = spot.nodes().filter(leads).find(|node| node.machine.held() == 0);
    idle.map_or(Ok(()), |node| Err(format!("{} leads, and has held no election", node.peer)))
}

fn in_worlds_only(flaw: Flaw) -> String {
    let name = flaw.name();
    format!("{name} shows in random worlds: quorate lab fuzz term --mutant {name}")
}

fn term(asked: &Search, watch: Watch<'_>) -> Result<Searched, String> {
    let planted = flaw(asked.flaw.as_deref(), &TERM)?;
    let (suited, timers) = match planted {
        Some(flaw @ Flaw::HalfIsEnough) => return Err(in_worlds_only(flaw)),
        Some(Flaw::VoteNotDurable) => (Faults { crashes: 1, restarts: 1, ..NONE }, 2),
        Some(Flaw::VoteOfAnother) => (NONE, 3),
        Some(Flaw::OldLogVote) => (NONE, 1),
        _ => (NONE, 2),
    };
    let mut faults = asked.faults.unwrap_or(suited);
    faults.timers = faults.timers.max(timers);
    let n = asked.n.unwrap_or(3);
    let options = TermOptions {
        election: Within::millis(150, 300),
        heartbeat: Span::from_millis(50),
        pre_vote: false,
        lease: None,
    };
    let maker = move |me: ProcessId| {
        // One log is older, so that its freshness matters.
        let log = LogPosition { term: Term(0), index: LogIndex(u64::from(me.0 != 1)) };
        TermElection::new(me, Members::first(n), options, log).with_flaw(planted)
    };
    let logs: Vec<_> = (0..n).map(|place| format!("0:{}", u8::from(place != 0))).collect();
    let small = Small {
        maker: Arc::new(maker),
        order: Order::Fifo,
        faults,
        timing: Timing::Any,
        detector: false,
        calls: nobody,
        invariant: match planted {
            Some(Flaw::OlderTermFollowed) => check::leaders_of_the_own_term,
            None if faults.wipes > 0 => check::one_in_a_term,
            _ => check::leads_with_a_new_log,
        },
        rest: nothing,
        nodes: format!("term logs={}", logs.join(",")),
    };
    Ok(run(small, n, asked, planted, watch))
}

// ---- random worlds

fn one_in_a_term_of_a_world(world: &World<TermElection>) -> Result<(), String> {
    check::one_in_a_term_of(world.nodes().iter())
}

fn bully_maker(n: usize, answer_ms: u64, coordinator_ms: u64) -> Maker<Bully> {
    let timing = BullyTiming {
        answer: Within::millis(answer_ms, answer_ms + answer_ms / 5),
        coordinator: Within::millis(coordinator_ms, coordinator_ms + coordinator_ms / 5),
        again: None,
    };
    Arc::new(move |me| Bully::new(me, Members::first(n), timing, false, AtStart::Elect))
}

fn ring_maker(n: usize) -> Maker<Ring> {
    let retry = Some(Within::millis(500, 800));
    Arc::new(move |me| Ring::new(me, Members::first(n), false, retry, AtStart::Elect))
}

/// Ids that are not in the order of the ring.
fn scattered(n: usize) -> Maker<ChangRoberts> {
    let retry = Some(Within::millis(500, 800));
    Arc::new(move |me: ProcessId| {
        let id = u64::from(me.0) * 5 % 11;
        ChangRoberts::new(me, Members::first(n), id, Ids::ByProcess, retry, AtStart::Elect)
    })
}

/// Random worlds in which all have to agree in the end.
fn agreeing<P: Elects>(
    asked: &Worlds,
    subject: &Subject,
    nodes: &str,
    fuzzer: impl Fn(usize) -> Fuzzer<P>,
) -> Result<Fuzzed, String> {
    if let Some(planted) = flaw(asked.flaw.as_deref(), subject)? {
        let (name, flaw) = (subject.name, planted.name());
        return Err(format!("{flaw} shows in a complete search: quorate lab check {name} --mutant {flaw}"));
    }
    Ok(fuzzed(asked, nothing, |n| format!("nodes {n} protocol={nodes}"), fuzzer))
}

fn term_maker(n: usize, pre_vote: bool, planted: Option<Flaw>) -> Maker<TermElection> {
    let options = TermOptions {
        election: Within::millis(150, 300),
        heartbeat: Span::from_millis(40),
        pre_vote,
        lease: None,
    };
    Arc::new(move |me| {
        TermElection::new(me, Members::first(n), options, LogPosition::default()).with_flaw(planted)
    })
}

fn term_worlds(asked: &Worlds) -> Result<Fuzzed, String> {
    let planted = flaw(asked.flaw.as_deref(), &TERM)?;
    let words = planted.map_or(String::new(), |flaw| format!(" flaw={}", flaw.name()));
    let before = planted.map(Flaw::reached);
    let mut done = match planted {
        None => fuzzed(
            asked,
            check::one_in_a_term,
            |n| format!("nodes {n} protocol=term prevote=yes"),
            |n| {
                let fuzzer = fuzzer(term_maker(n, true, None), n, Network::noisy(), EVERYTHING);
                Fuzzer { check: one_in_a_term_of_a_world, ..fuzzer }
            },
        ),
        Some(Flaw::HalfIsEnough) => {
            let even = Worlds { n: Some(4), ..asked.clone() };
            fuzzed(
                &even,
                check::one_in_a_term,
                |n| format!("nodes {n} protocol=term{words}"),
                |n| {
                    let odds = Odds { faults_max: 8, isolate: 0, cut: 900, ..EVERYTHING };
                    let fuzzer = fuzzer(term_maker(n, false, planted), n, Network::noisy(), odds);
                    Fuzzer { check: one_in_a_term_of_a_world, ..fuzzer }
                },
            )
        }
        Some(other) => {
            let name = other.name();
            return Err(format!("{name} shows in a complete search: quorate lab check term --mutant {name}"));
        }
    };
    done.reached = planted.map(|flaw| flaw.reached() - before.unwrap_or_default());
    Ok(done)
}
