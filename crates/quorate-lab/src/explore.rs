//! The complete search of a small world: every order of messages, calls, timers and faults within a budget.
//!
//! Breadth first, so that a counter-example is among the shortest. States are told apart by a 64-bit
//! fingerprint: with a million of them, the chance that any two share one is about 1 in 36 million.

use crate::draw::mix;
use crate::node::Cut;
use crate::spot::{Action, Rules, Spot, Way};
use quorate_core::protocol::{Outbox, Protocol};
use std::collections::VecDeque;
use std::ops::ControlFlow;

/// What must hold in every state.
pub type Invariant<P> = fn(&Spot<P>) -> Result<(), String>;

/// What must hold where nothing goes on by itself any more.
pub type Rest<P> = fn(&Spot<P>) -> Result<(), String>;

/// Everything is as it should be: for a search of the other kind.
///
/// # Errors
/// None.
pub fn nothing<P: Protocol>(_spot: &Spot<P>) -> Result<(), String> {
    Ok(())
}

/// What a search found.
pub struct Found<P: Protocol> {
    /// How many states differ.
    pub unique: u64,
    /// How many were reached, those reached again counted each time, the first one counted too.
    pub generated: u64,
    /// In how many of them nothing goes on by itself.
    pub quiet: u64,
    /// The most steps that any state is away from the first.
    pub depth: u32,
    /// Whether every state within the rules was reached.
    pub complete: bool,
    /// What was violated, and the shortest way there.
    pub counter_example: Option<CounterExample<P>>,
}

/// A way to a state in which something does not hold.
pub struct CounterExample<P: Protocol> {
    /// What does not hold.
    pub why: String,
    /// What happened, and where a crash fell within it.
    pub path: Way<P>,
}

/// A search.
pub struct Explorer<P: Protocol> {
    /// What may happen.
    pub rules: Rules<P>,
    /// What must hold in every state.
    pub invariant: Invariant<P>,
    /// What must hold at rest.
    pub rest: Rest<P>,
    /// At most so many different states: the search is not complete beyond it.
    pub states_max: u64,
}

/// Fingerprints in an open table: no order, no iteration.
struct Seen {
    slots: Vec<u64>,
    count: usize,
}

impl Seen {
    fn new() -> Self {
        Self { slots: vec![0; 1 << 12], count: 0 }
    }

    /// Says whether it is new.
    fn insert(&mut self, fingerprint: u64) -> bool {
        let fingerprint = fingerprint.max(1);
        if self.count * 2 > self.slots.len() {
            self.grow();
        }
        let mask = self.slots.len() - 1;
        let mut at = fingerprint as usize & mask;
        while self.slots[at] != 0 {
            if self.slots[at] == fingerprint {
                return false;
            }
            at = (at + 1) & mask;
        }
        self.slots[at] = fingerprint;
        self.count += 1;
        true
    }

    fn grow(&mut self) {
        let old = std::mem::take(&mut self.slots);
        self.slots = vec![0; old.len() * 4];
        self.count = 0;
        for fingerprint in old.into_iter().filter(|slot| *slot != 0) {
            self.insert(fingerprint);
        }
    }
}

/// How a state was reached: from which, and by which of the things that could happen there.
#[derive(Clone, Copy)]
struct Origin {
    parent: u32,
    action: u16,
    /// 0 for none, else one more than the effects before the crash; `u16::MAX` is [`Cut::Persist`].
    cut: u16,
}

impl Origin {
    fn cut(self) -> Option<Cut> {
        match self.cut {
            0 => None,
            u16::MAX => Some(Cut::Persist),
            more => Some(Cut::Effects(u32::from(more) - 1)),
        }
    }
}

/// States between two words to whoever watches: some hundredths of a second.
const WATCH_EVERY: u32 = 1 << 14;

struct Search<P: Protocol> {
    seen: Seen,
    origins: Vec<Origin>,
    frontier: VecDeque<(Spot<P>, u32)>,
    generated: u64,
    fingerprint: fn(&Spot<P>) -> u64,
}

impl<P: Protocol> Explorer<P> {
    /// Searches, until something is violated or everything was reached.
    pub fn run(&self) -> Found<P> {
        self.search(Spot::fingerprint, &mut |_, _| ControlFlow::Continue(()))
    }

    /// The same, and says now and then how many states there are so far, and how many of them were looked at.
    /// Whoever hears it may end the search, which is then not complete.
    pub fn run_watched(&self, watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Found<P> {
        self.search(Spot::fingerprint, watch)
    }

    /// The same, and of states that differ in the names of processes only it visits one, if the protocol can
    /// be renamed. What must hold may not depend on names.
    pub fn run_symmetric(&self) -> Found<P> {
        self.search(Spot::canonical, &mut |_, _| ControlFlow::Continue(()))
    }

    fn search(
        &self,
        fingerprint: fn(&Spot<P>) -> u64,
        watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Found<P> {
        let first = Spot::first(&self.rules);
        let mut search = Search {
            seen: Seen::new(),
            origins: Vec::new(),
            frontier: VecDeque::new(),
            generated: 0,
            fingerprint,
        };
        let root = Origin { parent: u32::MAX, action: 0, cut: 0 };
        search.reach(first, root, 0);
        let (mut quiet, mut index, mut deepest) = (0, 0_u32, 0);
        let mut actions = Vec::new();
        let mut out = Outbox::default();
        while let Some((spot, depth)) = search.frontier.pop_front() {
            deepest = depth;
            let mut verdict = (self.invariant)(&spot);
            if spot.actions(&self.rules, &mut actions) && verdict.is_ok() {
                quiet += 1;
                verdict = (self.rest)(&spot);
            }
            let counter_example =
                verdict.err().map(|why| CounterExample { why, path: self.path(&search.origins, index) });
            let full = search.origins.len() as u64 > self.states_max;
            if counter_example.is_some() || full {
                return search.found(quiet, deepest, false, counter_example);
            }
            for (at, action) in actions.iter().enumerate() {
                let origin = Origin { parent: index, action: at as u16, cut: 0 };
                self.follow(&spot, action, origin, depth + 1, &mut out, &mut search);
            }
            index += 1;
            if index.is_multiple_of(WATCH_EVERY)
                && watch(search.origins.len() as u64, index.into()).is_break()
            {
                return search.found(quiet, deepest, false, None);
            }
        }
        search.found(quiet, deepest, true, None)
    }

    /// What an action leads to, and what it leads to if its process crashes between two of its effects.
    fn follow(
        &self,
        spot: &Spot<P>,
        action: &Action<P>,
        origin: Origin,
        depth: u32,
        out: &mut Outbox<P>,
        search: &mut Search<P>,
    ) {
        let mut next = spot.clone();
        let effects = next.apply(&self.rules, action, None, out);
        search.reach(next, origin, depth);
        if !spot.cuttable(action) {
            return;
        }
        for before in 0..effects {
            let mut next = spot.clone();
            next.apply(&self.rules, action, Some(Cut::Effects(before)), out);
            search.reach(next, Origin { cut: before as u16 + 1, ..origin }, depth);
        }
    }

    /// Walks the way to a state once more.
    fn path(&self, origins: &[Origin], index: u32) -> Way<P> {
        let mut way = Vec::new();
        let mut at = origins[index as usize];
        while at.parent != u32::MAX {
            way.push(at);
            at = origins[at.parent as usize];
        }
        let mut spot = Spot::first(&self.rules);
        let (mut actions, mut out) = (Vec::new(), Outbox::default());
        let step = |origin: &Origin| {
            spot.actions(&self.rules, &mut actions);
            let action = actions[usize::from(origin.action)].clone();
            spot.apply(&self.rules, &action, origin.cut(), &mut out);
            (action, origin.cut())
        };
        way.iter().rev().map(step).collect()
    }
}

impl<P: Protocol> Search<P> {
    fn reach(&mut self, spot: Spot<P>, origin: Origin, depth: u32) {
        self.generated += 1;
        if self.seen.insert(mix((self.fingerprint)(&spot), 3, 0)) {
            self.origins.push(origin);
            self.frontier.push_back((spot, depth));
        }
    }

    fn found(
        self,
        quiet: u64,
        depth: u32,
        complete: bool,
        counter_example: Option<CounterExample<P>>,
    ) -> Found<P> {
        let unique = self.origins.len() as u64;
        Found { unique, generated: self.generated, quiet, depth, complete, counter_example }
    }
}
