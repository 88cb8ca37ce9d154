//! Chrome's trace JSON, which Perfetto and `chrome://tracing` open: a process is a process, its messages,
//! bars and pauses are rows of slices, and an arrow joins the slice of a send to the slice of its receipt.

use super::sentence;
use crate::story::Story;
use crate::story::scene::{End, Mail, Scene, Sort, Stretch};
use quorate_core::protocol::ProcessId;
use quorate_core::trace::What;
use serde_json::{Value, json};

/// The rows of a process. Slices of one row must nest, so that what may overlap has rows of its own.
const ROWS: [(u32, &str); 5] =
    [(0, "steps"), (1, "inside"), (2, "leads"), (3, "waits to enter"), (4, "paused or down")];

/// Writes a story.
pub fn chrome(story: &Story) -> String {
    let scene = Scene::of(story);
    let slices = slices(&scene);
    let mut events = names(story);
    for (at, slice) in slices.iter().enumerate() {
        events.push(step(&scene, at, *slice));
    }
    for mail in &scene.messages {
        events.extend(arrow(&scene, mail, &slices));
    }
    let end_ns = slices.last().map_or(0, |slice| slice.0 + slice.1);
    events.extend(scene.stretches.iter().map(|stretch| bar(&scene, stretch, &slices, end_ns)));
    let about =
        json!({"title": story.title, "caption": story.caption, "seed": story.seed.map(|s| s.to_string())});
    let events: Vec<_> = events.iter().map(ToString::to_string).collect();
    let (about, events) = (about.to_string(), events.join(",\n"));
    format!("{{\"displayTimeUnit\":\"ns\",\"otherData\":{about},\"traceEvents\":[\n{events}\n]}}\n")
}

fn names(story: &Story) -> Vec<Value> {
    let mut events = Vec::new();
    for process in &story.processes {
        let pid = process.0;
        events.push(
            json!({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process.to_string()}}),
        );
        events
            .push(json!({"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}));
        for (tid, name) in ROWS {
            events.push(json!({
                "ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}
            }));
        }
    }
    events
}

/// Beginning and length of each step's slice, in nanoseconds. Steps of one instant share its microsecond, in
/// their order, so that no two slices overlap and no arrow goes back.
fn slices(scene: &Scene<'_>) -> Vec<(u64, u64)> {
    let mut slices: Vec<(u64, u64)> = Vec::with_capacity(scene.steps.len());
    let mut first = 0;
    while first < scene.steps.len() {
        let instant = scene.steps[first].at;
        let after = first + scene.steps[first..].iter().take_while(|step| step.at == instant).count();
        let length = (1_000 / (after - first) as u64).max(1);
        for place in 0..(after - first) as u64 {
            let free = slices.last().map_or(0, |(begin, length)| begin + length);
            slices.push((free.max(instant.0 * 1_000 + place * length), length));
        }
        first = after;
    }
    slices
}

/// Microseconds with three digits.
fn us(ns: u64) -> f64 {
    ns as f64 / 1_000.0
}

fn step(scene: &Scene<'_>, at: usize, (begin, length): (u64, u64)) -> Value {
    let step = scene.steps[at];
    let pid = step.at_peer.process.0;
    let mut event = json!({
        "ph": "X", "pid": pid, "tid": 0, "ts": us(begin), "dur": us(length), "name": sentence(scene.story, step),
        "cat": "step", "args": {"life": step.at_peer.incarnation.0.to_string(), "at_us": step.at.0},
    });
    if let Some(about) = step.about {
        event["args"]["request"] = json!(about.to_string());
    }
    if step.what == What::Violated {
        event["ph"] = json!("i");
        event["s"] = json!("g");
        event["pid"] = json!(pid.max(1));
        event["dur"] = json!(0);
    }
    event
}

fn arrow(scene: &Scene<'_>, mail: &Mail, slices: &[(u64, u64)]) -> Vec<Value> {
    let (Some(sent), End::Received(end)) = (mail.sent, mail.end) else { return Vec::new() };
    let name = scene.story.names.message(mail.kind);
    let at = |process: ProcessId, step: usize| {
        let (pid, ts) = (process.0, us(slices[step].0));
        json!({"pid": pid, "tid": 0, "ts": ts, "name": name, "cat": "message", "id": mail.no.0})
    };
    let (mut start, mut finish) = (at(mail.from, sent), at(mail.to, end));
    start["ph"] = json!("s");
    finish["ph"] = json!("f");
    finish["bp"] = json!("e");
    vec![start, finish]
}

fn bar(scene: &Scene<'_>, stretch: &Stretch, slices: &[(u64, u64)], end_ns: u64) -> Value {
    let begin = slices[stretch.from].0;
    let end = stretch.until.map_or(end_ns, |until| slices[until].0);
    let row = match stretch.sort {
        Sort::Inside => 1,
        Sort::Leads => 2,
        Sort::Waits => 3,
        Sort::Paused | Sort::Down => 4,
    };
    let request = stretch.about.map(|about| format!(" {about}")).unwrap_or_default();
    json!({
        "ph": "X", "pid": stretch.process.0, "tid": row, "ts": us(begin), "dur": us(end.saturating_sub(begin)),
        "name": format!("{}{request}", stretch.sort.words()), "cat": "bar",
        "args": {"from_us": scene.time_us(stretch.from)},
    })
}
