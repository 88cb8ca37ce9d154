//! Elections: complete searches of three processes, and what each rule is for, by leaving it out.
#![allow(clippy::disallowed_methods, reason = "the time that a search takes is told, not used")]

use quorate_core::election::{
    AtStart, Bully, BullyTiming, Call, ChangRoberts, Elects, Flaw, Ids, LogPosition, Ring, Term,
    TermElection, TermOptions,
};
use quorate_core::id::LogIndex;
use quorate_core::protocol::{Members, ProcessId, Protocol, Within};
use quorate_core::time::Span;
use quorate_lab::election::check;
use quorate_lab::election::worlds::{first_and_new_lives, nobody, only};
use quorate_lab::explore::{Explorer, Found, Invariant, Rest, nothing};
use quorate_lab::network::Order;
use quorate_lab::node::Node;
use quorate_lab::render;
use quorate_lab::spot::{Faults, Rules, Spot, Timing};
use quorate_lab::world::Maker;
use std::sync::Arc;

fn all_elect<P: Elects>(_machine: &P, made: u32) -> Option<Call> {
    (made == 0).then_some(Call::Elect)
}

/// Searches, and says in how many states and how much time.
fn search<P: Protocol>(name: &str, explorer: &Explorer<P>) -> Found<P> {
    let begun = std::time::Instant::now();
    let found = explorer.run();
    println!(
        "{name}: {} states, {} generated, {} at rest, depth {}, complete {}, {:?}{}",
        found.unique,
        found.generated,
        found.quiet,
        found.depth,
        found.complete,
        begun.elapsed(),
        found.counter_example.as_ref().map_or(String::new(), |counter| format!(": {}", counter.why)),
    );
    found
}

fn holds<P: Protocol>(name: &str, explorer: &Explorer<P>) {
    let found = search(name, explorer);
    if let Some(counter) = found.counter_example {
        let way = render::commands(&explorer.rules, &counter.path).join("; ");
        panic!("{name}: {}\n{way}", counter.why);
    }
    assert!(found.complete, "{name} is not complete");
}

/// The flaw is reached, the search finds what it breaks, and finds nothing without it.
fn caught<P: Protocol>(flaw: Flaw, breaks: &str, explorer: impl Fn(Option<Flaw>) -> Explorer<P>) {
    let before = flaw.reached();
    let flawed = explorer(Some(flaw));
    let found = search(flaw.name(), &flawed);
    assert!(flaw.reached() > before, "{flaw} was never reached");
    let counter = found.counter_example.unwrap_or_else(|| panic!("{flaw} was not caught"));
    assert!(counter.why.contains(breaks), "{flaw}: {}", counter.why);
    println!("    {}", render::commands(&flawed.rules, &counter.path).join("; "));
    holds("    without it", &explorer(None));
}

const STATES_MAX: u64 = 4_000_000;

fn rules<P: Elects>(maker: Maker<P>, order: Order, faults: Faults, timing: Timing) -> Rules<P> {
    Rules { maker, n: 3, order, faults, timing, detector: true, calls: nobody }
}

fn explorer<P: Elects>(rules: Rules<P>, invariant: Invariant<P>, rest: Rest<P>) -> Explorer<P> {
    Explorer { rules, invariant, rest, states_max: STATES_MAX }
}

// ---- bully

fn bully(start: AtStart, quorum: bool, flaw: Option<Flaw>) -> Maker<Bully> {
    let timing =
        BullyTiming { answer: Within::millis(10, 12), coordinator: Within::millis(100, 120), again: None };
    Arc::new(move |me| Bully::new(me, Members::first(3), timing, quorum, start).with_flaw(flaw))
}

fn timers(timers: u8) -> Faults {
    Faults { timers, ..Faults::default() }
}

#[test]
fn bully_elects_the_greatest_that_runs() {
    let faults = Faults { crashes: 1, ..timers(6) };
    let crash = rules(bully(AtStart::Elect, false, None), Order::Fifo, faults, Timing::Patient);
    holds("bully", &explorer(crash, check::true_waits, check::all_name_the_greatest));
    let mut quorum = rules(bully(AtStart::Wait, true, None), Order::Fifo, faults, Timing::Patient);
    quorum.calls = only::<_, 1>;
    holds("bully, quorum", &explorer(quorum, check::true_waits, check::nobody_or_the_greatest));
}

#[test]
fn bully_elects_over_a_restart() {
    let faults = Faults { crashes: 1, restarts: 1, ..timers(4) };
    let mut rules = rules(bully(AtStart::Wait, false, None), Order::Fifo, faults, Timing::Patient);
    rules.calls = first_and_new_lives;
    holds("bully, restart", &explorer(rules, check::true_waits, check::nobody_or_the_greatest));
}

#[test]
fn bully_has_two_leaders_for_a_while_if_an_answer_is_late() {
    let late = |invariant| {
        let rules = rules(bully(AtStart::Elect, false, None), Order::Fifo, timers(2), Timing::Any);
        explorer(rules, invariant, check::all_name_one)
    };
    let found = search("bully, late answers", &late(check::one_in_a_term));
    let counter = found.counter_example.expect("two leaders");
    assert!(counter.why.contains("both lead"), "{}", counter.why);
    holds("bully, late answers, at rest", &late(nothing));
}

#[test]
fn bully_needs_its_rules() {
    let faults = Faults { crashes: 1, ..timers(6) };
    let flawed = |flaw| {
        let rules = rules(bully(AtStart::Elect, false, flaw), Order::Fifo, faults, Timing::Patient);
        explorer(rules, nothing, check::all_name_the_greatest)
    };
    caught(Flaw::NoSecondTimeout, "nobody has a leader", flawed);
    caught(Flaw::SuspectFollowed, "which does not run", flawed);
}

// ---- ring

fn ring(start: AtStart, quorum: bool, flaw: Option<Flaw>) -> Maker<Ring> {
    Arc::new(move |me| Ring::new(me, Members::first(3), quorum, None, start).with_flaw(flaw))
}

#[test]
fn a_ring_elects_the_greatest_that_runs() {
    let faults = Faults { crashes: 1, ..Faults::default() };
    let mut one = rules(ring(AtStart::Wait, false, None), Order::Fifo, Faults::default(), Timing::Any);
    one.calls = all_elect;
    holds("ring, all start", &explorer(one, check::true_waits, check::all_name_the_greatest));
    let crash = rules(ring(AtStart::Elect, false, None), Order::Fifo, faults, Timing::Any);
    holds("ring, crash", &explorer(crash, check::true_waits, check::all_name_the_greatest));
    let faults = Faults { crashes: 1, restarts: 1, ..Faults::default() };
    let mut restart = rules(ring(AtStart::Wait, false, None), Order::Fifo, faults, Timing::Any);
    restart.calls = first_and_new_lives;
    holds("ring, restart", &explorer(restart, check::true_waits, check::nobody_or_the_greatest));
    let suspicion = Faults { suspicions: 1, ..Faults::default() };
    let suspicion = rules(ring(AtStart::Elect, false, None), Order::Fifo, suspicion, Timing::Any);
    holds("ring, suspicion", &explorer(suspicion, check::true_waits, check::all_name_the_greatest));
}

#[test]
fn a_ring_needs_its_rules() {
    let suspicion = Faults { suspicions: 1, ..Faults::default() };
    caught(Flaw::LastFollowed, "names", |flaw| {
        let all = rules(ring(AtStart::Elect, false, flaw), Order::Fifo, suspicion, Timing::Any);
        explorer(all, nothing, check::all_name_the_greatest)
    });
    let crash = Faults { crashes: 1, ..Faults::default() };
    for flaw in [Flaw::NotPassedAgain, Flaw::StarterCloses] {
        caught(flaw, "is electing", |flaw| {
            let mut one = rules(ring(AtStart::Wait, false, flaw), Order::Fifo, crash, Timing::Any);
            one.calls = only::<_, 1>;
            explorer(one, nothing, check::nobody_elects)
        });
    }
}

// ---- Chang-Roberts

fn chang_roberts(ids: [u64; 3], compare: Ids, start: AtStart, flaw: Option<Flaw>) -> Maker<ChangRoberts> {
    Arc::new(move |me| {
        let id = ids[me.index()];
        ChangRoberts::new(me, Members::first(3), id, compare, None, start).with_flaw(flaw)
    })
}

const ORDERS: [[u64; 3]; 2] = [[1, 2, 3], [3, 2, 1]];

#[test]
fn chang_roberts_elects_one() {
    for ids in ORDERS {
        let maker = |start| chang_roberts(ids, Ids::ByProcess, start, None);
        let mut all = rules(maker(AtStart::Wait), Order::Unordered, Faults::default(), Timing::Any);
        all.calls = all_elect;
        holds("Chang-Roberts", &explorer(all, check::true_waits, check::all_name_one));
        let faults = Faults { crashes: 1, ..Faults::default() };
        let crash = rules(maker(AtStart::Elect), Order::Fifo, faults, Timing::Any);
        holds("Chang-Roberts, crash", &explorer(crash, check::true_waits, check::all_name_one));
        let faults = Faults { crashes: 1, restarts: 1, ..Faults::default() };
        let restart = rules(maker(AtStart::Elect), Order::Fifo, faults, Timing::Any);
        holds("Chang-Roberts, restart", &explorer(restart, check::true_waits, check::all_name_one));
    }
}

#[test]
fn equal_ids_make_two_leaders_only_in_the_published_form() {
    let two = |compare| {
        let maker = chang_roberts([9, 1, 9], compare, AtStart::Elect, None);
        explorer(rules(maker, Order::Fifo, Faults::default(), Timing::Any), nothing, check::all_name_one)
    };
    holds("equal ids", &two(Ids::ByProcess));
    let found = search("equal ids, alone", &two(Ids::Alone));
    assert!(found.counter_example.is_some());
}

#[test]
fn chang_roberts_needs_its_rules() {
    let maker = |flaw| chang_roberts([1, 2, 3], Ids::ByProcess, AtStart::Wait, flaw);
    let faults = Faults { crashes: 1, ..Faults::default() };
    caught(Flaw::WaitsForStopped, "is electing", |flaw| {
        let mut stopped = rules(maker(flaw), Order::Fifo, faults, Timing::Any);
        stopped.calls = only::<_, 3>;
        explorer(stopped, nothing, check::nobody_elects)
    });
    let faults = Faults { crashes: 1, restarts: 1, ..Faults::default() };
    caught(Flaw::FormerLifeWins, "lead", |flaw| {
        let mut former = rules(maker(flaw), Order::Fifo, faults, Timing::Any);
        former.calls = only::<_, 3>;
        explorer(former, leads_by_its_own_life, nothing)
    });
}

/// Whoever leads won an election of its present life: it has held one.
fn leads_by_its_own_life(spot: &Spot<ChangRoberts>) -> Result<(), String> {
    let leads = |node: &&Node<ChangRoberts>| node.machine.leader() == Some(node.peer.process);
    let idle = spot.nodes().filter(leads).find(|node| node.machine.held() == 0);
    idle.map_or(Ok(()), |node| Err(format!("{} leads, and has held no election", node.peer)))
}

// ---- terms

fn term(pre_vote: bool, flaw: Option<Flaw>) -> Maker<TermElection> {
    let options = TermOptions {
        election: Within::millis(150, 300),
        heartbeat: Span::from_millis(50),
        pre_vote,
        lease: None,
    };
    Arc::new(move |me: ProcessId| {
        let log = LogPosition { term: Term(0), index: LogIndex(u64::from(me.0 != 1)) };
        TermElection::new(me, Members::first(3), options, log).with_flaw(flaw)
    })
}

fn terms(flaw: Option<Flaw>, pre_vote: bool, order: Order, faults: Faults) -> Explorer<TermElection> {
    let mut rules = rules(term(pre_vote, flaw), order, faults, Timing::Any);
    rules.detector = false;
    explorer(rules, check::leads_with_a_new_log, nothing)
}

const RESTART: Faults = Faults { crashes: 1, restarts: 1, ..NOTHING };
const NOTHING: Faults =
    Faults { crashes: 0, restarts: 0, wipes: 0, drops: 0, doubles: 0, suspicions: 0, pauses: 0, timers: 2 };

#[test]
fn at_most_one_leads_in_a_term() {
    holds("term", &terms(None, false, Order::Unordered, timers(2)));
    holds("term, pre-vote", &terms(None, true, Order::Fifo, timers(2)));
    holds("term, doubled", &terms(None, false, Order::Fifo, Faults { doubles: 1, ..timers(2) }));
}

#[test]
fn at_most_one_leads_in_a_term_over_a_crash_between_vote_and_disk() {
    holds("term, crash", &terms(None, false, Order::Fifo, RESTART));
}

#[test]
fn without_its_disk_a_process_votes_twice() {
    let faults = Faults { crashes: 1, wipes: 1, ..timers(2) };
    let mut explorer = terms(None, false, Order::Fifo, faults);
    explorer.invariant = check::one_in_a_term;
    let found = search("term, empty disk", &explorer);
    let counter = found.counter_example.expect("two leaders");
    assert!(counter.why.contains("both lead in term"), "{}", counter.why);
}

#[test]
fn terms_need_their_rules() {
    let table = [
        (Flaw::VoteNotDurable, RESTART, "disks have its vote"),
        (Flaw::SecondVote, timers(2), "lead"),
        (Flaw::VoteOfAnother, timers(2), "lead"),
        (Flaw::OldLogVote, timers(1), "logs are newer"),
    ];
    for (flaw, faults, breaks) in table {
        caught(flaw, breaks, |flaw| terms(flaw, false, Order::Fifo, faults));
    }
    caught(Flaw::OlderTermFollowed, "in term", |flaw| {
        let mut explorer = terms(flaw, false, Order::Fifo, timers(2));
        explorer.invariant = check::leaders_of_the_own_term;
        explorer
    });
}
