//! The run as lines of JSON: a header, then a line for each step. Nothing is lost: what [`read`] makes of
//! what [`write()`] wrote is the same story.
//!
//! ```json
//! {"v":1,"title":"two at once","mode":"world","seed":"7","nodes":["n1","n2"],"messages":["REQUEST","REPLY"]}
//! {"n":"n1","inc":"1","k":1,"t_us":0,"e":"send","m":"1","ty":"REQUEST","to":"n2","op":"n1.1","text":"REQUEST n1.1"}
//! ```
//!
//! Each process's lines keep its order. Files of several processes may be put one after the other: the reader
//! brings the steps into one order in which nothing comes before its cause.

use super::line::{Line, Reader, process};
use crate::story::{Names, Origin, Story};
use crate::trace::Trace;
use quorate_core::protocol::ProcessId;
use quorate_core::time::Mono;
use quorate_core::trace::{MessageNo, Step, What};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// The version of this format.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Header {
    v: u32,
    #[serde(default)]
    title: String,
    #[serde(default)]
    caption: String,
    #[serde(default)]
    mode: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seed: Option<String>,
    #[serde(default)]
    nodes: Vec<String>,
    #[serde(default)]
    calls: Vec<String>,
    #[serde(default)]
    messages: Vec<String>,
    #[serde(default)]
    timers: Vec<String>,
    #[serde(default)]
    events: Vec<String>,
}

/// Why a file is no story. Nothing of it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadError {
    /// Which line, from 1; 0 is the file as a whole.
    pub line: usize,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.why),
            line => write!(f, "line {line}: {}", self.why),
        }
    }
}

impl std::error::Error for ReadError {}

/// Writes a story.
pub fn write(story: &Story) -> String {
    let Names { calls, messages, timers, events } = story.names.clone();
    let header = Header {
        v: VERSION,
        title: story.title.clone(),
        caption: story.caption.clone(),
        mode: story.origin.name().to_owned(),
        seed: story.seed.map(|seed| seed.to_string()),
        nodes: story.processes.iter().map(ToString::to_string).collect(),
        calls,
        messages,
        timers,
        events,
    };
    let mut file = json(&header);
    let mut counts: BTreeMap<ProcessId, u64> = BTreeMap::new();
    for step in story.trace.steps() {
        let k = counts.entry(step.at_peer.process).or_default();
        *k += 1;
        file.push('\n');
        file.push_str(&json(&Line::of(story, step, *k)));
    }
    file.push('\n');
    file
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("structs of texts and numbers are JSON")
}

/// Reads a story. Keys that it does not know are passed over.
///
/// # Errors
/// [`ReadError`] names the line: no JSON, a field that is missing or makes no sense, a hole in the count of a
/// process, or a message that was received before it was sent.
pub fn read(file: &str) -> Result<Story, ReadError> {
    let mut story = Story { origin: Origin::Real, ..Story::default() };
    let mut reader = Reader::default();
    let mut read: Vec<(Step, String)> = Vec::new();
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let lines = file.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (at, text) in lines {
        let wrong = |why: String| ReadError { line: at + 1, why };
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| wrong(format!("no JSON: {error}")))?;
        if value.get("v").is_some() {
            let header: Header = serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
            take_header(&mut story, &mut reader, header, at == 0).map_err(wrong)?;
            continue;
        }
        let line: Line = serde_json::from_value(value).map_err(|error| wrong(error.to_string()))?;
        no_hole(&mut counts, &line).map_err(wrong)?;
        let step = line.step(&mut reader).map_err(wrong)?;
        read.push((step, line.text.unwrap_or_default()));
    }
    if read.is_empty() && story.processes.is_empty() {
        return Err(ReadError { line: 0, why: "the file has neither a header nor a step".to_owned() });
    }
    let mut ordered = by_cause(read)?;
    if story.origin == Origin::Real {
        adjust(&mut ordered);
    }
    story.names = reader.names;
    story.trace = Trace::whole();
    for (step, words) in ordered {
        let text = if words.is_empty() { 0 } else { story.trace.say(words) };
        story.trace.push(Step { text, ..step });
    }
    story.add_missing_processes();
    Ok(story)
}

fn take_header(story: &mut Story, reader: &mut Reader, header: Header, is_first: bool) -> Result<(), String> {
    if header.v != VERSION {
        return Err(format!("this file has version {}, this program reads version {VERSION}", header.v));
    }
    let nodes: Result<BTreeSet<_>, _> = header.nodes.iter().map(|name| process(name)).collect();
    let all: BTreeSet<_> = story.processes.iter().copied().chain(nodes?).collect();
    story.processes = all.into_iter().collect();
    if !is_first {
        return Ok(());
    }
    story.origin = match header.mode.as_str() {
        "world" => Origin::World,
        "search" => Origin::Search,
        _ => Origin::Real,
    };
    (story.title, story.caption) = (header.title, header.caption);
    let seed = header.seed.map(|seed| seed.parse().map_err(|_| format!("\"seed\" is no number: {seed}")));
    story.seed = seed.transpose()?;
    let Header { calls, messages, timers, events, .. } =
        Header { title: String::new(), caption: String::new(), seed: None, ..header };
    reader.names = Names { calls, messages, timers, events };
    Ok(())
}

/// A process counts its lines; a hole means that a line was lost on the way.
fn no_hole(counts: &mut BTreeMap<String, u64>, line: &Line) -> Result<(), String> {
    let Some(k) = line.k else { return Ok(()) };
    let next = counts.get(&line.n).map(|last| last + 1);
    if let Some(next) = next.filter(|next| *next != k) {
        return Err(format!("{} counts {k} after {}: a line is missing or out of order", line.n, next - 1));
    }
    counts.insert(line.n.clone(), k);
    Ok(())
}

/// The lines of one process that are left, each with its place in the file.
type Queue = VecDeque<(usize, (Step, String))>;

/// Keeps each process's order, puts every receipt after its send, and else goes by time.
fn by_cause(read: Vec<(Step, String)>) -> Result<Vec<(Step, String)>, ReadError> {
    let mut missing: BTreeSet<MessageNo> = read.iter().filter_map(|(step, _)| gives(&step.what)).collect();
    let mut queues: BTreeMap<ProcessId, Queue> = BTreeMap::new();
    let count = read.len();
    for (at, (step, words)) in read.into_iter().enumerate() {
        queues.entry(step.at_peer.process).or_default().push_back((at, (step, words)));
    }
    let mut ordered = Vec::with_capacity(count);
    while ordered.len() < count {
        let heads = queues.iter().filter_map(|(process, queue)| {
            let (at, (step, _)) = queue.front()?;
            let ready = takes(&step.what).is_none_or(|message| !missing.contains(&message));
            ready.then_some((step.at, *at, *process))
        });
        let Some((_, _, process)) = heads.min() else {
            let first = queues.values().filter_map(VecDeque::front).map(|(_, (step, _))| step).next();
            let words = first.map(|step| format!("{} at {} us", step.at_peer, step.at.0)).unwrap_or_default();
            let why = format!("the steps have no order: {words} receives what is sent later only");
            return Err(ReadError { line: 0, why });
        };
        let next = queues.get_mut(&process).and_then(VecDeque::pop_front);
        let Some((_, (step, words))) = next else { break };
        if let Some(message) = gives(&step.what) {
            missing.remove(&message);
        }
        ordered.push((step, words));
    }
    Ok(ordered)
}

/// The message that there is from this step on.
fn gives(what: &What) -> Option<MessageNo> {
    match what {
        What::Sent { message, .. } => Some(*message),
        What::Doubled { double, .. } => Some(*double),
        _ => None,
    }
}

/// The message that has to be there before this step.
fn takes(what: &What) -> Option<MessageNo> {
    match what {
        What::Received { message, .. } | What::Doubled { message, .. } => Some(*message),
        _ => None,
    }
}

/// Clocks of real processes differ. Each process is moved on so far that nothing it receives comes before it
/// was sent; so the order is true, and the lengths at one process are, but those of messages are at most what
/// the clocks allow.
fn adjust(steps: &mut [(Step, String)]) {
    let mut ahead: BTreeMap<ProcessId, u64> = BTreeMap::new();
    let mut sent: BTreeMap<MessageNo, u64> = BTreeMap::new();
    let mut last = 0;
    for (step, _) in steps {
        let ahead = ahead.entry(step.at_peer.process).or_default();
        let cause = takes(&step.what).and_then(|message| sent.get(&message)).copied().unwrap_or(0);
        *ahead = (*ahead).max(cause.saturating_sub(step.at.0));
        let at = step.at.0.saturating_add(*ahead).max(last);
        (step.at, last) = (Mono(at), at);
        if let Some(message) = gives(&step.what) {
            sent.insert(message, at);
        }
    }
}
