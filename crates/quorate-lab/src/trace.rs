//! What a run recorded: a ring of binary steps, and words for people if asked for.

use quorate_core::trace::Step;
use std::collections::VecDeque;

/// A recording.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    steps: VecDeque<Step>,
    texts: Vec<String>,
    steps_max: usize,
    words: bool,
    total: u64,
}

impl Trace {
    /// Records nothing.
    pub fn off() -> Self {
        Self::default()
    }

    /// Keeps the last so many steps, without words.
    pub fn ring(steps_max: usize) -> Self {
        Self { steps_max, steps: VecDeque::with_capacity(steps_max), ..Self::default() }
    }

    /// Keeps every step with its words.
    pub fn whole() -> Self {
        Self { steps_max: usize::MAX, words: true, ..Self::default() }
    }

    /// Whether anything is recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.steps_max > 0
    }

    /// Whether words are.
    pub fn has_words(&self) -> bool {
        self.words
    }

    /// Records one step.
    #[inline]
    pub fn push(&mut self, step: Step) {
        if self.steps.len() == self.steps_max {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
        self.total += 1;
    }

    /// Keeps words, and says their place for [`Step::text`].
    pub fn say(&mut self, text: String) -> u32 {
        self.texts.push(text);
        self.texts.len() as u32
    }

    /// The words of a step.
    pub fn words(&self, step: &Step) -> &str {
        match step.text {
            0 => "",
            at => &self.texts[at as usize - 1],
        }
    }

    /// The steps that are kept, oldest first.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = &Step> + '_ {
        self.steps.iter()
    }

    /// How many there were in all.
    pub fn total(&self) -> u64 {
        self.total
    }
}
