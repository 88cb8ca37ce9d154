//! A part of a story: a window of time, some of the processes, what led to one request. Cut first, then draw
//! or export: clocks and numbers are computed from what is left.

use super::{NOBODY, Story};
use quorate_core::protocol::{ProcessId, Request};
use quorate_core::trace::{MessageNo, Step, What};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Which part. The default is all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Nothing before this time, in microseconds, but what still lasts then: a cut, a pause, an entry.
    pub from_us: Option<u64>,
    /// Nothing after this time, in microseconds.
    pub until_us: Option<u64>,
    /// Only these processes, and the messages between them.
    pub processes: Option<Vec<ProcessId>>,
    /// Only what happened before this request was answered, and may have led to that: the past of the
    /// `entered`, `elected` or `refused` about it, or of its last step if it has no answer.
    pub request: Option<Request>,
}

/// Why a slice cannot be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SliceError {
    /// No step is about this request.
    NoSuchRequest(Request),
    /// The story has no such process.
    NoSuchProcess(ProcessId),
    /// No step is left.
    Empty,
}

impl fmt::Display for SliceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchRequest(request) => write!(f, "no step of this run is about the request {request}"),
            Self::NoSuchProcess(process) => write!(f, "this run has no process {process}"),
            Self::Empty => write!(f, "nothing of this run is in the slice"),
        }
    }
}

impl std::error::Error for SliceError {}

impl Story {
    /// Cuts a part out.
    ///
    /// # Errors
    /// [`SliceError`] says what the slice names that the story has not. The story is as it was.
    pub fn slice(&self, slice: &Slice) -> Result<Self, SliceError> {
        let steps: Vec<&Step> = self.trace.steps().collect();
        let mut keep = vec![true; steps.len()];
        if let Some(request) = slice.request {
            keep = past_of(self, &steps, request)?;
            drop_sends_without_end(&steps, &mut keep);
        }
        if let Some(only) = &slice.processes {
            if let Some(stranger) = only.iter().find(|process| !self.processes.contains(process)) {
                return Err(SliceError::NoSuchProcess(*stranger));
            }
            retain(&steps, &mut keep, |step| is_among(step, only));
        }
        let first = slice.from_us.map_or(0, |from_us| steps.partition_point(|step| step.at.0 < from_us));
        let standing = standing(self, &steps[..first]);
        for (at, step) in steps.iter().enumerate() {
            let early = at < first && !standing.contains(&at);
            keep[at] &= !early && slice.until_us.is_none_or(|until_us| step.at.0 <= until_us);
        }
        if !keep.iter().skip(first).any(|keep| *keep) {
            return Err(SliceError::Empty);
        }
        let kept = steps.iter().zip(&keep).filter(|(_, keep)| **keep).map(|(step, _)| *step);
        let mut story = self.with_steps(kept);
        if let Some(only) = &slice.processes {
            story.processes.retain(|process| only.contains(process));
        }
        Ok(story)
    }
}

fn retain(steps: &[&Step], keep: &mut [bool], wanted: impl Fn(&Step) -> bool) {
    for (keep, step) in keep.iter_mut().zip(steps) {
        *keep &= wanted(step);
    }
}

/// Whether a step is at one of these processes, and no message of it crosses to another.
fn is_among(step: &Step, only: &[ProcessId]) -> bool {
    let other = match step.what {
        What::Sent { to, .. } | What::Dropped { to, .. } | What::Cut(to) | What::Mended(to) => Some(to),
        What::Received { from, .. } | What::Ignored { from, .. } => Some(from.process),
        _ => None,
    };
    let me = step.at_peer.process;
    (me == NOBODY || only.contains(&me)) && other.is_none_or(|other| only.contains(&other))
}

/// The steps that happened before the answer to a request, in Lamport's sense: earlier at the same process,
/// or joined by a message.
fn past_of(story: &Story, steps: &[&Step], request: Request) -> Result<Vec<bool>, SliceError> {
    let about = |step: &Step| step.about == Some(request);
    let is_answer = |step: &Step| match step.what {
        What::Emitted { kind } => matches!(story.names.event(kind), "entered" | "elected" | "refused"),
        _ => false,
    };
    let answer = steps.iter().position(|step| about(step) && is_answer(step));
    let last = answer.or_else(|| steps.iter().rposition(|step| about(step)));
    let last = last.ok_or(SliceError::NoSuchRequest(request))?;
    let mut keep = vec![false; steps.len()];
    // Walking back, a step is in the past if its process is already known to be there, or its message.
    let mut processes = BTreeSet::from([steps[last].at_peer.process]);
    let mut messages = BTreeSet::<MessageNo>::new();
    for at in (0..=last).rev() {
        let step = steps[at];
        match step.what {
            What::Sent { message, .. } if messages.contains(&message) => {
                processes.insert(step.at_peer.process);
            }
            What::Doubled { message, double } if messages.contains(&double) => {
                messages.insert(message);
            }
            _ => {}
        }
        keep[at] = processes.contains(&step.at_peer.process);
        if let What::Received { message, .. } = step.what
            && keep[at]
        {
            messages.insert(message);
        }
    }
    Ok(keep)
}

/// A send whose receipt is not in the past has nothing to do with it.
fn drop_sends_without_end(steps: &[&Step], keep: &mut [bool]) {
    let mut ended = BTreeSet::new();
    for (at, step) in steps.iter().enumerate().rev() {
        match step.what {
            What::Received { message, .. } if keep[at] => {
                ended.insert(message);
            }
            What::Doubled { message, double } if keep[at] && ended.contains(&double) => {
                ended.insert(message);
            }
            What::Doubled { .. } | What::Dropped { .. } => keep[at] = false,
            What::Sent { message, .. } => keep[at] &= ended.contains(&message),
            _ => {}
        }
    }
}

/// The steps that set the scene for what comes after them: the present life, a pause, a cut, an entry.
fn standing(story: &Story, before: &[&Step]) -> BTreeSet<usize> {
    let mut last: BTreeMap<(ProcessId, u8, ProcessId), usize> = BTreeMap::new();
    for (at, step) in before.iter().enumerate() {
        let me = step.at_peer.process;
        match step.what {
            What::Started { .. } | What::Crashed => {
                last.retain(|(process, sort, _), _| *process != me || matches!(*sort, CUT | RATE));
                last.insert((me, LIFE, me), at);
            }
            What::Paused => {
                last.insert((me, PAUSE, me), at);
            }
            What::Resumed => {
                last.remove(&(me, PAUSE, me));
            }
            What::Cut(to) => {
                last.insert((me, CUT, to), at);
            }
            What::Mended(to) => {
                last.remove(&(me, CUT, to));
            }
            What::ClockRate(_) => {
                last.insert((me, RATE, me), at);
            }
            What::Emitted { kind } => stand(&mut last, story.names.event(kind), me, at),
            _ => {}
        }
    }
    last.into_values().collect()
}

const LIFE: u8 = 0;
const PAUSE: u8 = 1;
const CUT: u8 = 2;
const RATE: u8 = 3;
const BAR: u8 = 4;
const LEADER: u8 = 5;

fn stand(last: &mut BTreeMap<(ProcessId, u8, ProcessId), usize>, event: &str, me: ProcessId, at: usize) {
    match event {
        "requested" | "entered" => {
            last.insert((me, BAR, me), at);
        }
        "left" | "lost" => {
            last.remove(&(me, BAR, me));
        }
        "elected" => {
            last.insert((me, LEADER, me), at);
        }
        "stepped_down" => {
            last.remove(&(me, LEADER, me));
        }
        _ => {}
    }
}
