//! How scripts begin elections: the options of `nodes`.
//!
//! | protocol | options |
//! |---|---|
//! | `bully` | `answer=10ms`, `coordinator=60ms`, `again=1s`, `quorum=yes`, `start=elect` |
//! | `ring` | `quorum=yes`, `retry=1s`, `start=elect` |
//! | `chang-roberts` | `ids=3,1,2`, `compare=id` (ids alone, as published), `retry=1s`, `start=elect` |
//! | `term` | `election=150ms..300ms`, `heartbeat=50ms`, `prevote=yes`, `lease=100ms`, `logs=1:4,1:2,1:2` |
//!
//! All understand `flaw=NAME`: one line of the protocol is left out. Scripts of `term` have the command
//! `storm`: what each process knows, and what keeps the group from having a leader.

use super::{check, cost, sight};
use crate::catalog::{Named, span, within, world};
use crate::play::{Check, Count, Play, Stage};
use crate::script::Command;
use crate::story::Story;
use crate::trace::Trace;
use crate::world::Maker;
use quorate_core::election::storm::diagnose;
use quorate_core::election::{
    AtStart, Bully, BullyTiming, ChangRoberts, Elects, Flaw, Ids, LogPosition, Ring, Term, TermElection,
    TermOptions,
};
use quorate_core::id::LogIndex;
use quorate_core::protocol::{Members, ProcessId, Within};
use quorate_core::time::Span;
use quorate_core::wait::Wait;
use std::sync::Arc;

/// The names, for lists and completions.
pub const PROTOCOLS: &[&str] = &["bully", "ring", "chang-roberts", "term"];

/// Begins a world of one of these protocols.
///
/// # Errors
/// Says which option is wrong.
pub fn open(protocol: &str, command: &Command, n: usize) -> Result<Box<dyn Stage>, String> {
    match protocol {
        "bully" => stage::<Bully>(command, n, cost::bully),
        "ring" => stage::<Ring>(command, n, cost::ring),
        "chang-roberts" => stage::<ChangRoberts>(command, n, cost::chang_roberts),
        _ => {
            let check: Check<TermElection> = check::one_leads_in_a_term;
            let play = Play::new(world(command, n)?, check, cost::term);
            Ok(Box::new(TermStage { play }))
        }
    }
}

fn stage<P: Elects + Named + 'static>(
    command: &Command,
    n: usize,
    count: Count,
) -> Result<Box<dyn Stage>, String> {
    let check: Check<P> = check::one_leads_when_quiet;
    Ok(Box::new(Play::new(world(command, n)?, check, count)))
}

fn at_start(command: &Command) -> Result<AtStart, String> {
    let elects = command.choice("start", &["wait", "elect"])? == "elect";
    Ok(if elects { AtStart::Elect } else { AtStart::Wait })
}

fn flaw(command: &Command) -> Result<Option<Flaw>, String> {
    let Some(name) = command.option("flaw") else { return Ok(None) };
    let found = Flaw::ALL.iter().find(|flaw| flaw.name() == name);
    let names = || Flaw::ALL.iter().map(|flaw| flaw.name()).collect::<Vec<_>>().join(", ");
    found.copied().map(Some).ok_or_else(|| format!("there is no flaw {name}; there are {}", names()))
}

impl Named for Bully {
    fn maker(nodes: &Command, n: usize) -> Result<Maker<Self>, String> {
        let or = |span: Option<Within>, ms| span.unwrap_or(Within::exactly(Span::from_millis(ms)));
        let timing = BullyTiming {
            answer: or(within(nodes, "answer")?, 10),
            coordinator: or(within(nodes, "coordinator")?, 60),
            again: within(nodes, "again")?,
        };
        let (quorum, start, flaw) = (nodes.is_yes("quorum")?, at_start(nodes)?, flaw(nodes)?);
        Ok(Arc::new(move |me| Bully::new(me, Members::first(n), timing, quorum, start).with_flaw(flaw)))
    }
}

impl Named for Ring {
    fn maker(nodes: &Command, n: usize) -> Result<Maker<Self>, String> {
        let (quorum, start, flaw) = (nodes.is_yes("quorum")?, at_start(nodes)?, flaw(nodes)?);
        let retry = within(nodes, "retry")?;
        Ok(Arc::new(move |me| Ring::new(me, Members::first(n), quorum, retry, start).with_flaw(flaw)))
    }
}

/// One value for each process, from a list with commas.
fn each<T>(list: &str, n: usize, read: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    let read = |one: &str| read(one).ok_or_else(|| format!("{one} makes no sense"));
    let values = list.split(',').map(read).collect::<Result<Vec<_>, _>>()?;
    if values.len() == n { Ok(values) } else { Err(format!("{list} needs {n} values")) }
}

impl Named for ChangRoberts {
    fn maker(nodes: &Command, n: usize) -> Result<Maker<Self>, String> {
        let ids = match nodes.option("ids") {
            None => (1..=n as u64).collect(),
            Some(list) => each(list, n, |one| one.parse().ok())?,
        };
        let alone = nodes.choice("compare", &["process", "id"])? == "id";
        let compare = if alone { Ids::Alone } else { Ids::ByProcess };
        let (start, flaw, retry) = (at_start(nodes)?, flaw(nodes)?, within(nodes, "retry")?);
        Ok(Arc::new(move |me: ProcessId| {
            ChangRoberts::new(me, Members::first(n), ids[me.index()], compare, retry, start).with_flaw(flaw)
        }))
    }
}

impl Named for TermElection {
    fn maker(nodes: &Command, n: usize) -> Result<Maker<Self>, String> {
        let options = TermOptions {
            election: within(nodes, "election")?.unwrap_or(Within::millis(150, 300)),
            heartbeat: span(nodes, "heartbeat")?.unwrap_or(Span::from_millis(50)),
            pre_vote: nodes.is_yes("prevote")?,
            lease: span(nodes, "lease")?,
        };
        let position = |text: &str| {
            let (term, index) = text.split_once(':')?;
            Some(LogPosition { term: Term(term.parse().ok()?), index: LogIndex(index.parse().ok()?) })
        };
        let logs = match nodes.option("logs") {
            None => vec![LogPosition::default(); n],
            Some(list) => each(list, n, position)?,
        };
        let flaw = flaw(nodes)?;
        Ok(Arc::new(move |me: ProcessId| {
            TermElection::new(me, Members::first(n), options, logs[me.index()]).with_flaw(flaw)
        }))
    }
}

/// A scenario of terms: it also diagnoses.
struct TermStage {
    play: Play<TermElection>,
}

impl Stage for TermStage {
    fn command(&mut self, command: &Command) -> Result<Vec<String>, String> {
        if command.name != "storm" {
            return self.play.command(command);
        }
        let diagnosis = diagnose(sight::sights(self.play.world()));
        Ok(diagnosis.to_string().lines().map(|line| line.trim_end().to_string()).collect())
    }

    fn history(&mut self) -> Vec<String> {
        self.play.history()
    }

    fn trace(&self) -> &Trace {
        self.play.trace()
    }

    fn count(&self) -> usize {
        self.play.count()
    }

    fn digest(&self) -> u64 {
        self.play.digest()
    }

    fn story(&self, title: &str, caption: &str) -> Story {
        self.play.story(title, caption)
    }

    fn waiting(&self) -> Vec<(ProcessId, Vec<Wait>)> {
        self.play.waiting()
    }
}
