//! What is claimed of each protocol by name, and the searches and random worlds that hold it to that.
//!
//! **Rule.** A protocol is one row here: how it is built for a search and for a random world, and what must hold
//! there. A flaw by name (a line left out) is searched where that line makes the difference, so that the search
//! which finds nothing in the sound protocol is seen to find something.
//!
//! `quorate lab check` and `quorate lab fuzz` run these.

mod election;
mod mutex;

use crate::catalog::{Named, made};
use crate::explore::Explorer;
use crate::fuzz::{Failure, Fuzzer};
use crate::render;
use crate::script;
use crate::shrink;
use crate::spot::{Faults, Spot};
use crate::world::Maker;
use quorate_core::protocol::Protocol;
use std::ops::{ControlFlow, Range};

/// A protocol as it is asked for by name.
pub struct Subject {
    /// Its name.
    pub name: &'static str,
    /// `mutex` or `election`.
    pub family: &'static str,
    /// What holds, in a sentence.
    pub claim: &'static str,
    /// What it needs for that.
    pub needs: &'static [Need],
    search: fn(&Search, Watch<'_>) -> Result<Searched, String>,
    fuzz: fn(&Worlds) -> Result<Fuzzed, String>,
    flaws: fn() -> Vec<&'static str>,
}

/// Something without which a protocol does not hold what it claims.
pub struct Need {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    shown: Shown,
}

/// Where it is shown what a need is for.
enum Shown {
    /// A search without it finds it.
    Search,
    /// A scenario of this name.
    Scenario(&'static str),
    /// A search in which this line is left out.
    Mutant(&'static str),
}

const fn need(name: &'static str, what: &'static str, shown: Shown) -> Need {
    Need { name, what, shown }
}

/// All protocols, those of mutual exclusion first.
pub static SUBJECTS: &[Subject] = &[
    mutex::CENTRAL,
    mutex::RICART_AGRAWALA,
    mutex::MAEKAWA,
    mutex::MAEKAWA_BASIC,
    mutex::TOKEN_RING,
    election::BULLY,
    election::RING,
    election::CHANG_ROBERTS,
    election::TERM,
];

/// The protocol of this name.
///
/// # Errors
/// There is none; the sentence lists those that there are.
pub fn subject(name: &str) -> Result<&'static Subject, String> {
    SUBJECTS.iter().find(|subject| subject.name == name).ok_or_else(|| {
        let known: Vec<_> = SUBJECTS.iter().map(|subject| subject.name).collect();
        format!("there is no protocol {name}; there are {}", known.join(", "))
    })
}

impl Subject {
    /// Searches every order of events in a small world.
    ///
    /// # Errors
    /// What is asked for cannot be searched; the sentence says what can.
    pub fn search(&self, asked: &Search, watch: Watch<'_>) -> Result<Searched, String> {
        if let Some(need) = &asked.without {
            self.is_searched_without(need)?;
            if asked.flaw.is_some() {
                return Err("a line is left out, or a need taken away, but not both".into());
            }
        }
        (self.search)(asked, watch)
    }

    fn is_searched_without(&self, need: &str) -> Result<(), String> {
        let name = self.name;
        let found = self.needs.iter().find(|known| known.name == need).ok_or_else(|| {
            let known: Vec<_> = self.needs.iter().map(|need| need.name).collect();
            format!("{name} does not need {need}; it needs {}", known.join(", "))
        })?;
        let elsewhere = match found.shown {
            Shown::Search => return Ok(()),
            Shown::Scenario(scenario) => format!("run {scenario}"),
            Shown::Mutant(mutant) => format!("check {name} --mutant {mutant}"),
        };
        Err(format!("no search is without {need}; this shows what {name} does then: quorate lab {elsewhere}"))
    }

    /// Runs random worlds.
    ///
    /// # Errors
    /// What is asked for does not show there; the sentence says where it does.
    pub fn fuzz(&self, asked: &Worlds) -> Result<Fuzzed, String> {
        (self.fuzz)(asked)
    }

    /// The names of the lines that can be left out.
    pub fn flaws(&self) -> Vec<&'static str> {
        (self.flaws)()
    }
}

/// Hears now and then how many states there are so far, and how many of them were looked at, and may end the search.
pub type Watch<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// What to search.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// How many processes; what suits the protocol or the flaw if none is said.
    pub n: Option<usize>,
    /// How often each fault may happen; what suits the flaw if none is said.
    pub faults: Option<Faults>,
    /// How often each process enters.
    pub entries: Option<u32>,
    /// The line that is left out.
    pub flaw: Option<String>,
    /// The need that is taken away.
    pub without: Option<String>,
    /// It ends unfinished after so many different states.
    pub states_max: u64,
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Searched {
    /// How many states differ.
    pub unique: u64,
    /// How many were reached, counted each time.
    pub generated: u64,
    /// In how many of them nothing goes on by itself.
    pub quiet: u64,
    /// The most steps from the beginning.
    pub depth: u32,
    /// Whether there are no more.
    pub complete: bool,
    /// What does not hold, and the scenario that shows it, if anything does not.
    pub violation: Option<(String, String)>,
    /// How often the place of the left-out line was come to.
    pub reached: Option<u64>,
}

/// Which random worlds to run.
#[derive(Clone, Debug)]
pub struct Worlds {
    /// How many processes; the seed decides between four and seven if none is said.
    pub n: Option<usize>,
    /// Their seeds.
    pub seeds: Range<u64>,
    /// The line that is left out.
    pub flaw: Option<String>,
}

/// What random worlds gave.
#[derive(Clone, Debug, Default)]
pub struct Fuzzed {
    /// How many were run to their end.
    pub worlds: u64,
    /// The steps of their processes.
    pub steps: u64,
    /// The first world that failed.
    pub failure: Option<Failed>,
    /// How often the place of the left-out line was come to.
    pub reached: Option<u64>,
}

/// A world that failed.
#[derive(Clone, Debug)]
pub struct Failed {
    /// Its seed.
    pub seed: u64,
    /// How many processes it had.
    pub n: usize,
    /// What did not hold.
    pub why: String,
    /// Nothing bad happened, but something good did not.
    pub stuck: bool,
    /// The least of it that fails alike, as a scenario.
    pub scenario: String,
}

/// A search with the words that begin its scenario.
struct Proof<P: Protocol> {
    explorer: Explorer<P>,
    nodes: String,
    reached: Option<Box<dyn Fn() -> u64>>,
}

impl<P: Protocol> Proof<P> {
    fn run(&self, watch: Watch<'_>) -> Searched {
        let before = self.reached.as_ref().map(|reached| reached());
        let found = self.explorer.run_watched(watch);
        let violation = found.counter_example.map(|counter| {
            let sentence = format!("Found by a complete search: {}.", counter.why);
            let script = render::script(&self.explorer.rules, &counter.path, &sentence, &self.nodes);
            (counter.why, played(script))
        });
        Searched {
            unique: found.unique,
            generated: found.generated,
            quiet: found.quiet,
            depth: found.depth,
            complete: found.complete,
            violation,
            reached: self.reached.as_ref().map(|reached| reached() - before.unwrap_or_default()),
        }
    }
}

/// Asks how often the place of a left-out line was come to.
fn reached<F: Copy + 'static>(planted: Option<F>, times: fn(F) -> u64) -> Option<Box<dyn Fn() -> u64>> {
    planted.map(|flaw| -> Box<dyn Fn() -> u64> { Box::new(move || times(flaw)) })
}

/// Runs random worlds, and counts how often the place of a left-out line was come to meanwhile.
fn counting<F: Copy + 'static>(
    planted: Option<F>,
    times: fn(F) -> u64,
    run: impl FnOnce() -> Result<Fuzzed, String>,
) -> Result<Fuzzed, String> {
    let reached = reached(planted, times);
    let before = reached.as_ref().map(|reached| reached());
    let mut done = run()?;
    done.reached = reached.map(|reached| reached() - before.unwrap_or_default());
    Ok(done)
}

/// The option of `nodes` that leaves a line out.
fn left_out(flaw: Option<&str>) -> String {
    flaw.map_or(String::new(), |name| format!(" flaw={name}"))
}

/// The scenario with its history filled in; without it if it cannot be played.
fn played(script: String) -> String {
    script::play(&script).map_or(script, |played| played.text)
}

/// Runs worlds of one protocol; the number of processes of each follows from its seed. `nodes` are the words that
/// make them, so that the scenario of a failure is of the same processes.
fn fuzzed<P: Named>(
    asked: &Worlds,
    check: fn(&Spot<P>) -> Result<(), String>,
    nodes: impl Fn(usize) -> String,
    fuzzer: impl Fn(Maker<P>, usize) -> Fuzzer<P>,
) -> Result<Fuzzed, String> {
    fuzzed_after(0, asked, check, nodes, fuzzer)
}

/// The same; nothing fails in the first microseconds, while the group is founded.
fn fuzzed_after<P: Named>(
    founding_us: u64,
    asked: &Worlds,
    check: fn(&Spot<P>) -> Result<(), String>,
    nodes: impl Fn(usize) -> String,
    fuzzer: impl Fn(Maker<P>, usize) -> Fuzzer<P>,
) -> Result<Fuzzed, String> {
    let mut done = Fuzzed::default();
    let fuzzer = |n| {
        let n = asked.n.unwrap_or(n);
        made(&format!("nodes {n} {}", nodes(n))).map(|maker| fuzzer(maker, n))
    };
    let fuzzers = (SMALLEST..=LARGEST).map(fuzzer).collect::<Result<Vec<_>, _>>()?;
    for seed in asked.seeds.clone() {
        let fuzzer = &fuzzers[(seed % fuzzers.len() as u64) as usize];
        let mut plan = fuzzer.plan(seed);
        plan.faults.iter_mut().for_each(|(at, _)| *at += founding_us);
        match fuzzer.run(&plan) {
            Ok(outcome) => {
                done.worlds += 1;
                done.steps += outcome.steps;
            }
            Err(failure) => {
                let (why, stuck) = match failure {
                    Failure::Unsafe(why) => (why, false),
                    Failure::Stuck(why) => (why, true),
                };
                let what = format!("Found in random world {seed}");
                let words = format!("nodes {} {}", fuzzer.n, nodes(fuzzer.n));
                let script = shrink::scenario(fuzzer, &plan, check, &what, &words);
                let scenario = played(script);
                done.failure = Some(Failed { seed, n: fuzzer.n, why, stuck, scenario });
                return Ok(done);
            }
        }
    }
    Ok(done)
}

/// The fewest processes of a random world.
const SMALLEST: usize = 4;

/// The most.
const LARGEST: usize = 7;

/// A flaw by its name, and how often it was reached before.
fn named<F: Copy>(
    wanted: Option<&str>,
    all: &[F],
    name: impl Fn(F) -> &'static str,
    known: &[&'static str],
) -> Result<Option<F>, String> {
    let Some(wanted) = wanted else { return Ok(None) };
    let found = all.iter().copied().find(|flaw| name(*flaw) == wanted && known.contains(&wanted));
    found.map(Some).ok_or_else(|| format!("it has no mutant {wanted}; it has {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios::SCENARIOS;

    fn search(name: &str, faults: Option<Faults>, flaw: Option<&str>) -> Searched {
        let flaw = flaw.map(str::to_string);
        let asked = Search { faults, flaw, states_max: 5_000_000, ..Search::default() };
        subject(name).unwrap().search(&asked, &mut |_, _| ControlFlow::Continue(())).unwrap()
    }

    #[test]
    fn every_sound_protocol_holds_and_the_basic_form_deadlocks() {
        for subject in SUBJECTS {
            let found = search(subject.name, None, None);
            let deadlocks = subject.name == "maekawa-basic";
            assert_eq!(found.violation.is_some(), deadlocks, "{}: {found:?}", subject.name);
            assert!(deadlocks || found.complete, "{}", subject.name);
        }
    }

    #[test]
    fn every_sound_protocol_holds_over_a_crash_and_a_restart() {
        let faults = Faults { crashes: 1, restarts: 1, ..Faults::default() };
        for subject in SUBJECTS.iter().filter(|subject| subject.name != "maekawa-basic") {
            // Three of Ricart-Agrawala that stop anywhere are 12 million states and much memory: only by hand.
            let by_hand = std::env::var("QUORATE_ROUNDS").is_ok();
            let n = (subject.name == "ricart-agrawala" && !by_hand).then_some(2);
            let asked = Search { n, faults: Some(faults), states_max: 20_000_000, ..Search::default() };
            let found = subject.search(&asked, &mut |_, _| ControlFlow::Continue(())).unwrap();
            println!("{}: {} states", subject.name, found.unique);
            assert!(found.violation.is_none() && found.complete, "{}: {found:?}", subject.name);
        }
    }

    #[test]
    fn every_mutant_is_caught_where_it_is_searched_or_in_a_random_world() {
        for subject in SUBJECTS {
            for flaw in subject.flaws() {
                let asked =
                    Search { flaw: Some(flaw.to_string()), states_max: 5_000_000, ..Search::default() };
                if let Ok(found) = subject.search(&asked, &mut |_, _| ControlFlow::Continue(())) {
                    let (why, scenario) = found.violation.unwrap_or_else(|| panic!("{flaw} is not caught"));
                    assert!(found.reached > Some(0), "{flaw} is reached");
                    assert!(!why.is_empty() && scenario.contains(flaw), "{flaw}: {scenario}");
                    continue;
                }
                let worlds = Worlds { n: None, seeds: 0..4_000, flaw: Some(flaw.to_string()) };
                let found = subject.fuzz(&worlds).unwrap_or_else(|why| panic!("{flaw}: {why}"));
                assert!(found.failure.is_some() && found.reached > Some(0), "{flaw} is not caught");
            }
        }
    }

    /// `QUORATE_ROUNDS` says how many worlds of each protocol.
    #[test]
    fn without_what_it_needs_no_protocol_holds() {
        for subject in SUBJECTS {
            assert!(!subject.needs.is_empty());
            for need in subject.needs {
                match need.shown {
                    Shown::Search => {
                        let without = Some(need.name.to_string());
                        let asked = Search { without, states_max: 5_000_000, ..Search::default() };
                        let found = subject.search(&asked, &mut |_, _| ControlFlow::Continue(())).unwrap();
                        let (why, scenario) = found
                            .violation
                            .unwrap_or_else(|| panic!("{} holds without {}", subject.name, need.name));
                        println!("{} without {}: {why}, {} states", subject.name, need.name, found.unique);
                        assert!(script::play(&scenario).is_ok(), "{scenario}");
                    }
                    Shown::Scenario(name) => {
                        assert!(SCENARIOS.iter().any(|(known, _)| *known == name), "there is no {name}");
                    }
                    Shown::Mutant(name) => assert!(subject.flaws().contains(&name), "there is no {name}"),
                }
            }
        }
    }

    #[test]
    fn every_sound_protocol_survives_random_worlds() {
        let worlds =
            std::env::var("QUORATE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(300);
        for subject in SUBJECTS.iter().filter(|subject| subject.name != "maekawa-basic") {
            let found = subject.fuzz(&Worlds { n: None, seeds: 0..worlds, flaw: None }).unwrap();
            assert!(found.failure.is_none(), "{}: {:?}", subject.name, found.failure);
            assert!(found.steps > worlds * 10, "{}: {} steps", subject.name, found.steps);
            println!("{}: {worlds} worlds, {} steps", subject.name, found.steps);
        }
    }
}
