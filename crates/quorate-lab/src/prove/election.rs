//! The rows of elections.

use super::{
    Fuzzed, Proof, Search, Searched, Shown, Subject, Watch, Worlds, counting, fuzzed, left_out, named, need,
    reached,
};
use crate::catalog::{Named, made};
use crate::election::check;
use crate::election::worlds::{EVERYTHING, STOPS, first_and_new_lives, fuzzer, nobody, only, ordered};
use crate::explore::{Explorer, Invariant, Rest, nothing};
use crate::fuzz::{Fuzzer, Odds};
use crate::network::{Network, Order};
use crate::node::Node;
use crate::spot::{Calls, Faults, Rules, Spot, Timing};
use crate::world::{Maker, World};
use quorate_core::election::{Bully, ChangRoberts, Elects, Flaw, Ring, TermElection};
use quorate_core::protocol::Protocol;

pub(super) const BULLY: Subject = Subject {
    name: "bully",
    family: "election",
    claim: "at rest all that run name the greatest that runs",
    needs: &[
        need("answers", "answers in time, or two lead for a while", Shown::Search),
        need("trust", "nobody wrongly believed dead", Shown::Scenario("election/bully_false_suspicion")),
    ],
    search: bully,
    fuzz: |asked| {
        agreeing::<Bully>(asked, &BULLY, |_| {
            "bully start=elect answer=25ms..30ms coordinator=250ms..300ms".into()
        })
    },
    flaws: || vec!["no-second-timeout", "suspect-followed"],
};

pub(super) const RING: Subject = Subject {
    name: "ring",
    family: "election",
    claim: "at rest all that run name the greatest that runs",
    needs: &[need("detector", DETECTOR, Shown::Search)],
    search: ring,
    fuzz: |asked| agreeing::<Ring>(asked, &RING, |_| "ring start=elect retry=500ms..800ms".into()),
    flaws: || vec!["last-followed", "not-passed-again", "starter-closes"],
};

pub(super) const CHANG_ROBERTS: Subject = Subject {
    name: "chang-roberts",
    family: "election",
    claim: "at rest all that run name one",
    needs: &[
        need("detector", DETECTOR, Shown::Search),
        need("ids", "ids that differ, or are told apart by the process", Shown::Search),
    ],
    search: chang_roberts,
    fuzz: |asked| {
        agreeing::<ChangRoberts>(asked, &CHANG_ROBERTS, |n| {
            format!("chang-roberts start=elect retry=500ms..800ms ids={}", scattered(n))
        })
    },
    flaws: || vec!["waits-for-stopped", "former-life-wins"],
};

pub(super) const TERM: Subject = Subject {
    name: "term",
    family: "election",
    claim: "at most one leads in a term, and its log is no older than those of a majority",
    needs: &[need("disk", "disks that keep the vote", Shown::Search)],
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

const DETECTOR: &str = "a detector that tells of each stop, and takes back each false suspicion";

fn flaw(asked: Option<&str>, subject: &Subject) -> Result<Option<Flaw>, String> {
    named(asked, Flaw::ALL, Flaw::name, &subject.flaws())
}

const NONE: Faults =
    Faults { crashes: 0, restarts: 0, wipes: 0, drops: 0, doubles: 0, suspicions: 0, pauses: 0, timers: 0 };

/// A search in the making.
struct Small<P: Protocol> {
    order: Order,
    faults: Faults,
    timing: Timing,
    detector: bool,
    calls: Calls<P>,
    invariant: Invariant<P>,
    rest: Rest<P>,
    nodes: String,
}

fn run<P: Elects + Named>(
    small: Small<P>,
    n: usize,
    asked: &Search,
    planted: Option<Flaw>,
    watch: Watch<'_>,
) -> Result<Searched, String> {
    let Small { order, faults, timing, detector, calls, invariant, rest, nodes } = small;
    let unordered = if order == Order::Fifo { "" } else { " order=unordered" };
    let nodes = format!("nodes {n} protocol={nodes}{unordered}{}", left_out(planted.map(Flaw::name)));
    let rules = Rules { maker: made(&nodes)?, n, order, faults, timing, detector, calls };
    let proof = Proof {
        explorer: Explorer { rules, invariant, rest, states_max: asked.states_max },
        nodes,
        reached: reached(planted, Flaw::reached),
    };
    Ok(proof.run(watch))
}

/// Who comes back starts by itself only where all do.
fn all_start(faults: &Faults) -> bool {
    faults.restarts + faults.wipes == 0
}

fn start(all: bool) -> &'static str {
    if all { " start=elect" } else { "" }
}

fn bully(asked: &Search, watch: Watch<'_>) -> Result<Searched, String> {
    let planted = flaw(asked.flaw.as_deref(), &BULLY)?;
    let crash = Faults { crashes: 1, ..NONE };
    let mut faults = asked.faults.unwrap_or(if planted.is_some() { crash } else { NONE });
    faults.timers = faults.timers.max(6);
    let all = all_start(&faults);
    let late = asked.without.is_some();
    let small: Small<Bully> = Small {
        order: Order::Fifo,
        faults,
        timing: if late { Timing::Any } else { Timing::Patient },
        detector: true,
        calls: if all { nobody } else { first_and_new_lives },
        invariant: match planted {
            Some(_) => nothing,
            None if late => check::one_in_a_term,
            None => check::true_waits,
        },
        rest: if all { check::all_name_the_greatest } else { check::nobody_or_the_greatest },
        nodes: format!("bully answer=10ms coordinator=100ms{}", start(all)),
    };
    run(small, asked.n.unwrap_or(3), asked, planted, watch)
}

fn ring(asked: &Search, watch: Watch<'_>) -> Result<Searched, String> {
    let planted = flaw(asked.flaw.as_deref(), &RING)?;
    let suited = match planted {
        None if asked.without.is_some() => Faults { crashes: 1, ..NONE },
        None => NONE,
        Some(Flaw::LastFollowed) => Faults { suspicions: 1, ..NONE },
        Some(_) => Faults { crashes: 1, ..NONE },
    };
    let faults = asked.faults.unwrap_or(suited);
    let one_starts = matches!(planted, Some(Flaw::NotPassedAgain | Flaw::StarterCloses));
    let all = !one_starts && all_start(&faults);
    let small: Small<Ring> = Small {
        order: Order::Fifo,
        faults,
        timing: Timing::Any,
        detector: asked.without.is_none(),
        calls: match (one_starts, all) {
            (true, _) => only::<_, 1>,
            (_, true) => nobody,
            _ => first_and_new_lives,
        },
        invariant: if planted.is_some() { nothing } else { check::true_waits },
        rest: match (one_starts, all) {
            (true, _) => check::nobody_elects,
            (_, true) => check::all_name_the_greatest,
            _ => check::nobody_or_the_greatest,
        },
        nodes: format!("ring{}", start(all)),
    };
    run(small, asked.n.unwrap_or(3), asked, planted, watch)
}

fn chang_roberts(asked: &Search, watch: Watch<'_>) -> Result<Searched, String> {
    let planted = flaw(asked.flaw.as_deref(), &CHANG_ROBERTS)?;
    let n = asked.n.unwrap_or(3);
    let ids = if asked.without.as_deref() == Some("ids") { equal_ids(n) } else { String::new() };
    let deaf = asked.without.as_deref() == Some("detector");
    let suited = match planted {
        None if deaf => Faults { crashes: 1, ..NONE },
        None => NONE,
        Some(Flaw::FormerLifeWins) => Faults { crashes: 1, restarts: 1, ..NONE },
        Some(_) => Faults { crashes: 1, ..NONE },
    };
    let small = Small {
        order: Order::Fifo,
        faults: asked.faults.unwrap_or(suited),
        timing: Timing::Any,
        detector: !deaf,
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
        nodes: format!("chang-roberts{}{ids}", start(planted.is_none())),
    };
    run(small, n, asked, planted, watch)
}

/// The first and the last have the same, the greatest, and nothing else is compared.
fn equal_ids(n: usize) -> String {
    let id = |place| if place == 1 || place == n { n } else { place - 1 };
    let ids: Vec<_> = (1..=n).map(|place| id(place).to_string()).collect();
    format!(" compare=id ids={}", ids.join(","))
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
        None if asked.without.is_some() => (Faults { crashes: 1, wipes: 1, ..NONE }, 2),
        Some(flaw @ Flaw::HalfIsEnough) => return Err(in_worlds_only(flaw)),
        Some(Flaw::VoteNotDurable) => (Faults { crashes: 1, restarts: 1, ..NONE }, 2),
        Some(Flaw::VoteOfAnother) => (NONE, 3),
        Some(Flaw::OldLogVote) => (NONE, 1),
        _ => (NONE, 2),
    };
    let mut faults = asked.faults.unwrap_or(suited);
    faults.timers = faults.timers.max(timers);
    let n = asked.n.unwrap_or(3);
    // One log is older, so that its freshness matters.
    let logs: Vec<_> = (0..n).map(|place| format!("0:{}", u8::from(place != 0))).collect();
    let small = Small {
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
        nodes: format!("term election=150ms..300ms logs={}", logs.join(",")),
    };
    run(small, n, asked, planted, watch)
}

// ---- random worlds

fn one_in_a_term_of_a_world(world: &World<TermElection>) -> Result<(), String> {
    check::one_in_a_term_of(world.nodes().iter())
}

/// Ids that are not in the order of the ring.
fn scattered(n: usize) -> String {
    let ids: Vec<_> = (1..=n).map(|place| (place * 5 % 11).to_string()).collect();
    ids.join(",")
}

/// Random worlds in which all have to agree in the end.
fn agreeing<P: Elects + Named>(
    asked: &Worlds,
    subject: &Subject,
    nodes: impl Fn(usize) -> String,
) -> Result<Fuzzed, String> {
    if let Some(planted) = flaw(asked.flaw.as_deref(), subject)? {
        let (name, flaw) = (subject.name, planted.name());
        return Err(format!("{flaw} shows in a complete search: quorate lab check {name} --mutant {flaw}"));
    }
    let nodes = |n| format!("protocol={}", nodes(n));
    fuzzed(asked, nothing, nodes, |maker: Maker<P>, n| fuzzer(maker, n, ordered(), STOPS))
}

fn term_worlds(asked: &Worlds) -> Result<Fuzzed, String> {
    let planted = flaw(asked.flaw.as_deref(), &TERM)?;
    let (asked, pre_vote, odds) = match planted {
        None => (asked.clone(), " prevote=yes", EVERYTHING),
        Some(Flaw::HalfIsEnough) => {
            let even = Worlds { n: Some(4), ..asked.clone() };
            (even, "", Odds { faults_max: 8, isolate: 0, cut: 900, ..EVERYTHING })
        }
        Some(other) => {
            let name = other.name();
            return Err(format!("{name} shows in a complete search: quorate lab check term --mutant {name}"));
        }
    };
    let nodes = |_| {
        let flaw = left_out(planted.map(Flaw::name));
        format!("protocol=term election=150ms..300ms heartbeat=40ms{pre_vote}{flaw}")
    };
    counting(planted, Flaw::reached, || {
        fuzzed(&asked, check::one_in_a_term, nodes, |maker, n| {
            let fuzzer = fuzzer(maker, n, Network::noisy(), odds);
            Fuzzer { check: one_in_a_term_of_a_world, ..fuzzer }
        })
    })
}
