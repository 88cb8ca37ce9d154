//! A trace with what people need to read it: the names of its numbers, its title and its seed.
//!
//! Diagrams, exports and the import all take a [`Story`], so that a run of real processes that was read from
//! a file is drawn by the same code as a world. [`mod@slice`] cuts a part out of it, [`scene`] joins what belongs
//! together: a send and what became of it, an entry and the leaving.

pub mod scene;
pub mod slice;

pub use scene::Scene;
pub use slice::Slice;

use crate::trace::Trace;
use crate::world::World;
use quorate_core::protocol::{Kind, ProcessId, Protocol};
use quorate_core::trace::{Loss, Step, What};
use std::collections::BTreeSet;
use std::fmt;

/// A trace with its names.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// What it is called: one short line.
    pub title: String,
    /// What happens in it, in one sentence.
    pub caption: String,
    /// Where it comes from.
    pub origin: Origin,
    /// The seed of the world, if it was one.
    pub seed: Option<u64>,
    /// Who takes part, in order.
    pub processes: Vec<ProcessId>,
    /// What the numbers of sorts stand for.
    pub names: Names,
    /// What happened. Its words are shown if it has them ([`Trace::whole`]).
    pub trace: Trace,
}

/// Where a trace comes from, and so what its times are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// A simulated world: times are true.
    #[default]
    World,
    /// A path that the explorer found: only the order of its steps means something.
    Search,
    /// Real processes: each time is its process's own.
    Real,
}

impl Origin {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::World => "world",
            Self::Search => "search",
            Self::Real => "real",
        }
    }
}

/// What the numbers of sorts stand for, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The sorts of calls.
    pub calls: Vec<String>,
    /// The sorts of messages.
    pub messages: Vec<String>,
    /// The sorts of timers.
    pub timers: Vec<String>,
    /// The sorts of events.
    pub events: Vec<String>,
}

impl Names {
    /// The names of a protocol.
    pub fn of<P: Protocol>() -> Self {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Self {
            calls: owned(P::Call::KINDS),
            messages: owned(P::Message::KINDS),
            timers: owned(P::Timer::KINDS),
            events: owned(P::Event::KINDS),
        }
    }

    /// One of these lists at a number, `?` if the list is too short.
    fn at(list: &[String], kind: u8) -> &str {
        list.get(usize::from(kind)).map_or("?", String::as_str)
    }

    /// The name of a sort of messages.
    pub fn message(&self, kind: u8) -> &str {
        Self::at(&self.messages, kind)
    }

    /// The name of a sort of events.
    pub fn event(&self, kind: u8) -> &str {
        Self::at(&self.events, kind)
    }

    /// The name of a sort of timers.
    pub fn timer(&self, kind: u8) -> &str {
        Self::at(&self.timers, kind)
    }

    /// The name of a sort of calls.
    pub fn call(&self, kind: u8) -> &str {
        Self::at(&self.calls, kind)
    }
}

impl Story {
    /// What a world has recorded so far.
    pub fn of<P: Protocol>(world: &World<P>, title: &str, caption: &str) -> Self {
        Self {
            title: title.to_owned(),
            caption: caption.to_owned(),
            origin: Origin::World,
            seed: Some(world.wires.seed),
            processes: (0..world.nodes().len()).map(ProcessId::at).collect(),
            names: Names::of::<P>(),
            trace: world.trace().clone(),
        }
    }

    /// The same story with other steps.
    pub fn with_steps<'a>(&self, steps: impl Iterator<Item = &'a Step>) -> Self {
        let mut trace = Trace::whole();
        for step in steps {
            let words = self.trace.words(step);
            let text = if words.is_empty() { 0 } else { trace.say(words.to_owned()) };
            trace.push(Step { text, ..*step });
        }
        Self { trace, names: self.names.clone(), ..self.clone_without_trace() }
    }

    fn clone_without_trace(&self) -> Self {
        Self {
            title: self.title.clone(),
            caption: self.caption.clone(),
            origin: self.origin,
            seed: self.seed,
            processes: self.processes.clone(),
            names: self.names.clone(),
            trace: Trace::off(),
        }
    }

    /// A step in words: those that were kept, or the name of its sort.
    pub fn words<'a>(&'a self, step: &'a Step) -> &'a str {
        let words = self.trace.words(step);
        if !words.is_empty() {
            return words;
        }
        match step.what {
            What::Sent { kind, .. } | What::Received { kind, .. } | What::Dropped { kind, .. } => {
                self.names.message(kind)
            }
            What::Emitted { kind } => self.names.event(kind),
            What::Called { kind } => self.names.call(kind),
            What::TimerFired { kind } | What::TimerSet { kind, .. } | What::TimerCancelled { kind } => {
                self.names.timer(kind)
            }
            _ => "",
        }
    }

    /// The processes that the steps name and the list of processes does not, added to the list.
    pub(crate) fn add_missing_processes(&mut self) {
        let named = self.trace.steps().map(|step| step.at_peer.process).filter(|process| *process != NOBODY);
        let all: BTreeSet<_> = self.processes.iter().copied().chain(named).collect();
        if all.len() > self.processes.len() {
            self.processes = all.into_iter().collect();
        }
    }
}

/// What became of a lost message, in few words.
pub fn loss_words(why: Loss) -> &'static str {
    match why {
        Loss::Link => "lost",
        Loss::Partition => "cut off",
        Loss::Down => "receiver down",
        Loss::FormerLife => "for a former life",
        Loss::Unwritten => "not written, not sent",
    }
}

/// Whose steps are nobody's: a checker that looks at all of them says so as this process.
pub(crate) const NOBODY: ProcessId = ProcessId(0);

/// A time in the unit that suits it.
#[derive(Clone, Copy, Debug)]
pub struct Clock(pub u64);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0 => return write!(f, "0"),
            us if us < 1_000 => return write!(f, "{us} us"),
            us if us < 1_000_000 => (1_000, "ms"),
            _ => (1_000_000, "s"),
        };
        let (whole, part) = (self.0 / unit, self.0 % unit * (1_000_000 / unit));
        let digits = format!("{part:06}");
        match digits.trim_end_matches('0') {
            "" => write!(f, "{whole} {name}"),
            part => write!(f, "{whole}.{part} {name}"),
        }
    }
}

/// Where a step reads something that it was told, and what in short; none for effects.
pub(crate) fn is_input(what: &What) -> bool {
    !matches!(
        what,
        What::Sent { .. }
            | What::Dropped { .. }
            | What::Doubled { .. }
            | What::TimerSet { .. }
            | What::TimerCancelled { .. }
            | What::Persist(_)
            | What::Emitted { .. }
            | What::Ignored { .. }
            | What::Cut(_)
            | What::Mended(_)
    )
}
