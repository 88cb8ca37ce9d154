//! What belongs together in a story: a message from its send to its end, a stretch from its beginning to its
//! end, a partition from the first cut to the last mend.

use super::Story;
use quorate_core::protocol::{Peer, ProcessId, Request};
use quorate_core::trace::{Loss, MessageNo, Step, What};
use std::collections::{BTreeMap, BTreeSet};

/// A story, joined. Steps are named by their place in `steps`.
#[derive(Clone, Debug)]
pub struct Scene<'a> {
    /// The story.
    pub story: &'a Story,
    /// Its steps, oldest first.
    pub steps: Vec<&'a Step>,
    /// Its messages, in the order of their first step.
    pub messages: Vec<Mail>,
    /// What lasts, in the order of the beginnings.
    pub stretches: Vec<Stretch>,
    /// The times of cut links.
    pub partings: Vec<Parting>,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// Its number.
    pub no: MessageNo,
    /// Its sort.
    pub kind: u8,
    /// The step that has its words.
    pub step: usize,
    /// Who sent it.
    pub from: ProcessId,
    /// Who would receive it.
    pub to: ProcessId,
    /// The request that it is about.
    pub about: Option<Request>,
    /// When it was sent or doubled; none if that is not in the story.
    pub sent: Option<usize>,
    /// What became of it.
    pub end: End,
    /// It is a double.
    pub is_double: bool,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It came.
    Received(usize),
    /// It was lost.
    Lost(usize, Loss),
    /// It is still under way when the story ends.
    UnderWay,
}

/// What lasts for a while at one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Where.
    pub process: ProcessId,
    /// What.
    pub sort: Sort,
    /// The step that begins it.
    pub from: usize,
    /// The step that ends it; none if it lasts on.
    pub until: Option<usize>,
    /// The request that it is about.
    pub about: Option<Request>,
}

/// What lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sort {
    /// Inside: between `entered` and `left` or `lost`.
    Inside,
    /// Leads: between `elected` itself and `stepped_down`, or another leader.
    Leads,
    /// Waits to enter: between `requested` and `entered`.
    Waits,
    /// Stopped without noticing.
    Paused,
    /// Between a crash and the next life.
    Down,
}

impl Sort {
    /// In a word or two.
    pub fn words(self) -> &'static str {
        match self {
            Self::Inside => "inside",
            Self::Leads => "leads",
            Self::Waits => "waits",
            Self::Paused => "paused",
            Self::Down => "down",
        }
    }
}

/// A time during which the same links are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parting {
    /// The step that begins it.
    pub from: usize,
    /// The step that ends it; none if it lasts on.
    pub until: Option<usize>,
    /// The links, from one to another.
    pub cuts: BTreeSet<(ProcessId, ProcessId)>,
}

impl Parting {
    /// Whether a link between these two is cut, in one direction at least.
    pub fn is_between(&self, one: ProcessId, other: ProcessId) -> bool {
        self.cuts.contains(&(one, other)) || self.cuts.contains(&(other, one))
    }

    /// Says which: the sides if it is a clean partition, else the links.
    pub fn words(&self, processes: &[ProcessId]) -> String {
        if let Some(sides) = self.sides(processes) {
            let names =
                |side: &Vec<ProcessId>| side.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            return sides.iter().map(names).collect::<Vec<_>>().join(" | ");
        }
        let links: Vec<_> = self.cuts.iter().map(|(from, to)| format!("{from} to {to}")).collect();
        match links.len() {
            0..=3 => format!("{} cut", links.join(", ")),
            more => format!("{} and {} more cut", links[..2].join(", "), more - 2),
        }
    }

    /// The sides, if every link between two of them is cut both ways, and none within one.
    fn sides(&self, processes: &[ProcessId]) -> Option<Vec<Vec<ProcessId>>> {
        let mut sides: Vec<Vec<ProcessId>> = Vec::new();
        for process in processes {
            match sides.iter_mut().find(|side| !self.is_between(side[0], *process)) {
                Some(side) => side.push(*process),
                None => sides.push(vec![*process]),
            }
        }
        let side_of = |p: ProcessId| sides.iter().position(|side| side.contains(&p));
        let pairs = processes.iter().flat_map(|a| processes.iter().map(move |b| (*a, *b)));
        let mut apart = pairs.filter(|(a, b)| a != b);
        apart
            .all(|(a, b)| self.cuts.contains(&(a, b)) == (side_of(a) != side_of(b)))
            .then_some(sides)
            .filter(|sides| sides.len() > 1)
    }
}

impl<'a> Scene<'a> {
    /// Joins a story.
    pub fn of(story: &'a Story) -> Self {
        let steps: Vec<&Step> = story.trace.steps().collect();
        let messages = mails(&steps);
        let stretches = Stretches::of(story, &steps);
        let partings = partings(&steps);
        Self { story, steps, messages, stretches, partings }
    }

    /// When a step happened, in microseconds.
    pub fn time_us(&self, step: usize) -> u64 {
        self.steps[step].at.0
    }

    /// When the last step happened, in microseconds; 0 if there is none.
    pub fn end_us(&self) -> u64 {
        self.steps.last().map_or(0, |step| step.at.0)
    }

    /// How many messages were lost.
    pub fn lost(&self) -> usize {
        self.messages.iter().filter(|mail| matches!(mail.end, End::Lost(..))).count()
    }
}

fn mails(steps: &[&Step]) -> Vec<Mail> {
    let mut mails: Vec<Mail> = Vec::new();
    let mut place = BTreeMap::new();
    for (at, step) in steps.iter().enumerate() {
        let by = step.at_peer.process;
        let fresh = |no, kind, from, to| Mail {
            no,
            kind,
            step: at,
            from,
            to,
            about: step.about,
            sent: None,
            end: End::UnderWay,
            is_double: false,
        };
        match step.what {
            What::Sent { message, kind, to } => {
                place.insert(message, mails.len());
                mails.push(Mail { sent: Some(at), ..fresh(message, kind, by, to) });
            }
            What::Doubled { message, double } => {
                let Some(first) = place.get(&message).map(|place| mails[*place].clone()) else { continue };
                place.insert(double, mails.len());
                mails.push(Mail { no: double, sent: Some(at), end: End::UnderWay, is_double: true, ..first });
            }
            What::Received { message, kind, from } => {
                let known = *place.entry(message).or_insert(mails.len());
                if known == mails.len() {
                    mails.push(fresh(message, kind, from.process, by));
                }
                mails[known].end = End::Received(at);
            }
            What::Dropped { message, kind, to, why } => {
                let known = *place.entry(message).or_insert(mails.len());
                if known == mails.len() {
                    mails.push(fresh(message, kind, by, to));
                }
                mails[known].end = End::Lost(at, why);
            }
            _ => {}
        }
    }
    mails
}

/// Finds what lasts.
struct Stretches {
    found: Vec<Stretch>,
    open: BTreeMap<(ProcessId, Sort), usize>,
}

impl Stretches {
    fn of(story: &Story, steps: &[&Step]) -> Vec<Stretch> {
        let mut all = Self { found: Vec::new(), open: BTreeMap::new() };
        for (at, step) in steps.iter().enumerate() {
            all.step(story, at, step);
        }
        all.found
    }

    fn begin(&mut self, at: usize, step: &Step, sort: Sort) {
        self.end(at, step.at_peer.process, sort);
        self.open.insert((step.at_peer.process, sort), self.found.len());
        self.found.push(Stretch {
            process: step.at_peer.process,
            sort,
            from: at,
            until: None,
            about: step.about,
        });
    }

    fn end(&mut self, at: usize, process: ProcessId, sort: Sort) {
        if let Some(open) = self.open.remove(&(process, sort)) {
            self.found[open].until = Some(at);
        }
    }

    fn step(&mut self, story: &Story, at: usize, step: &Step) {
        let me = step.at_peer.process;
        match step.what {
            What::Crashed => {
                for sort in [Sort::Inside, Sort::Leads, Sort::Waits, Sort::Paused] {
                    self.end(at, me, sort);
                }
                self.begin(at, step, Sort::Down);
            }
            What::Started { .. } => self.end(at, me, Sort::Down),
            What::Paused => self.begin(at, step, Sort::Paused),
            What::Resumed => self.end(at, me, Sort::Paused),
            What::Emitted { kind } => self.told(story.names.event(kind), at, step, story.words(step)),
            _ => {}
        }
    }

    fn told(&mut self, name: &str, at: usize, step: &Step, words: &str) {
        let me = step.at_peer.process;
        match name {
            "requested" => self.begin(at, step, Sort::Waits),
            "entered" => {
                self.end(at, me, Sort::Waits);
                self.begin(at, step, Sort::Inside);
            }
            "left" | "lost" => {
                self.end(at, me, Sort::Waits);
                self.end(at, me, Sort::Inside);
            }
            "elected" if is_self(step.at_peer, words) => self.begin(at, step, Sort::Leads),
            "elected" | "stepped_down" => self.end(at, me, Sort::Leads),
            _ => {}
        }
    }
}

/// Whether `elected n2 ...` names the process that says it.
fn is_self(peer: Peer, words: &str) -> bool {
    words.split_whitespace().nth(1) == Some(peer.process.to_string().as_str())
}

fn partings(steps: &[&Step]) -> Vec<Parting> {
    let mut found: Vec<Parting> = Vec::new();
    let mut cuts = BTreeSet::new();
    for (at, step) in steps.iter().enumerate() {
        let changed = match step.what {
            What::Cut(to) => cuts.insert((step.at_peer.process, to)),
            What::Mended(to) => cuts.remove(&(step.at_peer.process, to)),
            _ => false,
        };
        if !changed {
            continue;
        }
        match found.last_mut().filter(|last| last.until.is_none()) {
            Some(last) if steps[last.from].at == step.at => last.cuts.clone_from(&cuts),
            Some(last) => {
                last.until = Some(at);
                found.push(Parting { from: at, until: None, cuts: cuts.clone() });
            }
            None => found.push(Parting { from: at, until: None, cuts: cuts.clone() }),
        }
    }
    found.retain(|parting| !parting.cuts.is_empty());
    found
}
