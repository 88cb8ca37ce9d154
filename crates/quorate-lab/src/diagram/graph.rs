//! Two pictures of one instant: who waits for whom, and who asks whom for a vote.

use super::layout::{Area, Flightpath, Labels, Spot, wrapped};
use super::svg::{Anchor, Canvas, Layer, Point, at, text_width};
use crate::node::Power;
use crate::world::World;
use quorate_core::protocol::{Cause, Goal, ProcessId, Protocol, Wait};
use std::collections::{BTreeMap, BTreeSet};
use std::f64::consts::TAU;

/// What every running process of a world waits for, right now: the input of [`wait_for_graph`].
pub fn waits_of<P: Protocol>(world: &World<P>) -> Vec<(ProcessId, Vec<Wait>)> {
    let of = |node: &crate::node::Node<P>| match node.power {
        Power::Down => Vec::new(),
        Power::Up | Power::Paused => node.machine.waits(),
    };
    world.nodes().iter().map(|node| (node.peer.process, of(node))).collect()
}

/// One process waits for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Who waits.
    pub from: ProcessId,
    /// For whom.
    pub to: ProcessId,
    /// Why, in words.
    pub causes: Vec<String>,
    /// It is part of a cycle: nobody on it can go on unless one gives way.
    pub in_cycle: bool,
}

/// The edges of a wait-for graph, and what holds a process up that is no other process.
///
/// A process that waits to enter waits for the one whose message is missing, or who has the permission; one
/// that owes an answer waits for the one that keeps it from giving it.
pub fn edges(waits: &[(ProcessId, Vec<Wait>)]) -> (Vec<Edge>, BTreeMap<ProcessId, Vec<String>>) {
    let mut edges: BTreeMap<(ProcessId, ProcessId), Vec<String>> = BTreeMap::new();
    let mut notes: BTreeMap<ProcessId, Vec<String>> = BTreeMap::new();
    for (me, wait) in waits.iter().flat_map(|(me, waits)| waits.iter().map(move |wait| (*me, wait))) {
        let other = awaited(&wait.cause).filter(|other| *other != me);
        let cause = match other {
            Some(_) => short(&wait.cause),
            None => wait.cause.to_string(),
        };
        let words = match &wait.goal {
            Goal::Answer { kind, request } => format!("{kind} to {request}: {cause}"),
            _ => cause,
        };
        let place = match other {
            Some(other) => edges.entry((me, other)).or_default(),
            None => notes.entry(me).or_default(),
        };
        if !place.contains(&words) {
            place.push(words);
        }
    }
    let pairs: BTreeSet<_> = edges.keys().copied().collect();
    let edge = |((from, to), causes)| Edge { from, to, causes, in_cycle: leads_to(&pairs, to, from) };
    (edges.into_iter().map(edge).collect(), notes)
}

fn awaited(cause: &Cause) -> Option<ProcessId> {
    match cause {
        Cause::Message { from, .. } | Cause::Token { from } => Some(*from),
        Cause::Held { by } => Some(by.by.process),
        Cause::Voted { to, .. } => Some(to.by.process),
        Cause::Earlier { request } => Some(request.by.process),
        _ => None,
    }
}

/// A cause in few words, for an edge that ends at the one that it names.
fn short(cause: &Cause) -> String {
    match cause {
        Cause::Message { kind, suspected: false, .. } => format!("no {kind}"),
        Cause::Message { kind, suspected: true, .. } => format!("no {kind}, suspected"),
        Cause::Held { by } => format!("{by} has it"),
        Cause::Voted { by, to } => format!("{to} has the vote of {by}"),
        Cause::Earlier { request } => format!("{request} is first"),
        Cause::Token { .. } => "no token".to_owned(),
        other => other.to_string(),
    }
}

fn leads_to(pairs: &BTreeSet<(ProcessId, ProcessId)>, from: ProcessId, to: ProcessId) -> bool {
    let (mut seen, mut todo) = (BTreeSet::new(), vec![from]);
    while let Some(here) = todo.pop() {
        if here == to {
            return true;
        }
        if seen.insert(here) {
            todo.extend(pairs.iter().filter(|(a, _)| *a == here).map(|(_, b)| *b));
        }
    }
    false
}

const NODE: f64 = 24.0;

/// Draws who waits for whom, as SVG. Cycles are red.
pub fn wait_for_graph(title: &str, waits: &[(ProcessId, Vec<Wait>)]) -> String {
    let (edges, notes) = edges(waits);
    let processes: Vec<_> = waits.iter().map(|(process, _)| *process).collect();
    let radius = 120.0_f64.max(processes.len() as f64 * 30.0);
    let width = 2.0 * radius + 440.0;
    let centre = at(width / 2.0, radius + 110.0);
    let places: BTreeMap<_, _> = processes
        .iter()
        .enumerate()
        .map(|(index, p)| (*p, on_circle(centre, radius, index, processes.len())))
        .collect();
    let (mut canvas, mut labels) = (Canvas::default(), Labels::default());
    canvas.text(at(24.0, 32.0), Anchor::Start, "title", title);
    for place in places.values() {
        labels.forbid(square(*place, NODE + 2.0));
    }
    for (process, place) in &places {
        let is_red = edges.iter().any(|edge| edge.in_cycle && edge.from == *process);
        let class = if is_red { "open alarm cross" } else { "open ink" };
        canvas.circle(Layer::Mark, *place, NODE, class, "");
        canvas.text(at(place.x, place.y + 5.0), Anchor::Middle, "name", &process.to_string());
    }
    draw_edges(&mut canvas, &mut labels, &edges, &places);
    let mut y = centre.y + radius + 70.0;
    let mut lines: Vec<_> =
        labels.listed.iter().enumerate().map(|(i, words)| format!("{}  {words}", i + 1)).collect();
    lines.extend(notes.iter().map(|(process, notes)| format!("{process}: {}.", notes.join("; "))));
    if edges.is_empty() {
        lines.push("Nobody waits for another.".to_owned());
    }
    for line in lines.iter().flat_map(|line| wrapped(line, width - 60.0)) {
        canvas.text(at(24.0, y), Anchor::Start, "", &line);
        y += 17.0;
    }
    canvas.finish(at(width, y + 12.0), title, &in_words(&edges, &notes))
}

fn draw_edges(canvas: &mut Canvas, labels: &mut Labels, edges: &[Edge], places: &BTreeMap<ProcessId, Point>) {
    let drawn =
        edges.iter().filter_map(|edge| Some((edge, *places.get(&edge.from)?, *places.get(&edge.to)?)));
    let mut wanted = Vec::new();
    for (edge, from, to) in drawn {
        let bend = bend(from, to);
        let (from, to) = (towards(from, bend, NODE), towards(to, bend, NODE + 1.0));
        let (line, head) = if edge.in_cycle { ("arrow alarm", "alarmfull") } else { ("arrow ink", "full") };
        let words = edge.causes.join("; ");
        canvas.curve(from, bend, to, line, &format!("{} waits for {}: {words}", edge.from, edge.to));
        canvas.head(bend, to, head);
        let middle = at((from.x + 2.0 * bend.x + to.x) / 4.0, (from.y + 2.0 * bend.y + to.y) / 4.0);
        labels.line(Flightpath { from, to: middle }, 1);
        labels.line(Flightpath { from: middle, to }, 1);
        wanted.push((words, from, middle, to));
    }
    for (words, from, middle, to) in wanted {
        let spots = |_| {
            let near =
                |share: f64| at(middle.x + (to.x - from.x) * share, middle.y + (to.y - from.y) * share);
            [0.0, 0.08, -0.08, 0.16, -0.16, 0.24, -0.24].map(near).to_vec()
        };
        match labels.place(&words, spots, None) {
            Spot::Words(spot) => canvas.text(at(spot.x, spot.y + 4.0), Anchor::Middle, "word", &words),
            Spot::Number(number, spot) => {
                canvas.text(at(spot.x, spot.y + 3.5), Anchor::Middle, "number", &number.to_string());
            }
            Spot::Nowhere => {}
        }
    }
}

/// The first is at the top, the others follow clockwise.
fn on_circle(centre: Point, radius: f64, index: usize, count: usize) -> Point {
    let angle = TAU * index as f64 / count as f64;
    at(centre.x + radius * angle.sin(), centre.y - radius * angle.cos())
}

/// Edges bow to their left, so that two between the same pair lie apart.
fn bend(from: Point, to: Point) -> Point {
    let (dx, dy) = (to.x - from.x, to.y - from.y);
    at((from.x + to.x) / 2.0 + dy * 0.16, (from.y + to.y) / 2.0 - dx * 0.16)
}

fn towards(from: Point, to: Point, distance: f64) -> Point {
    let (dx, dy) = (to.x - from.x, to.y - from.y);
    let share = distance / dx.hypot(dy).max(0.1);
    at(from.x + dx * share, from.y + dy * share)
}

fn square(centre: Point, half: f64) -> Area {
    Area { left: centre.x - half, top: centre.y - half, right: centre.x + half, bottom: centre.y + half }
}

fn in_words(edges: &[Edge], notes: &BTreeMap<ProcessId, Vec<String>>) -> String {
    let edge = |edge: &Edge| {
        let cycle = if edge.in_cycle { ", in a cycle" } else { "" };
        format!("{} waits for {}{cycle}: {}.", edge.from, edge.to, edge.causes.join("; "))
    };
    let notes = notes.iter().map(|(process, notes)| format!("{process}: {}.", notes.join("; ")));
    edges.iter().map(edge).chain(notes).collect::<Vec<_>>().join(" ")
}

const CELL: f64 = 26.0;

/// Draws who asks whom for a vote, as SVG: a row for each process that asks, a column for each that votes.
/// Below stand the sizes of the sets, how many ask each voter, and in red any two sets that do not meet:
/// with those, two could be inside at once.
pub fn voting_sets(title: &str, sets: &[(ProcessId, Vec<ProcessId>)]) -> String {
    let voters: BTreeSet<_> = sets.iter().flat_map(|(_, set)| set.iter().copied()).collect();
    let x_of = |index: usize| 110.0 + CELL * (index as f64 + 0.5);
    let y_of = |index: usize| 92.0 + CELL * (index as f64 + 0.5);
    let mut canvas = Canvas::default();
    canvas.text(at(24.0, 32.0), Anchor::Start, "title", title);
    canvas.text(at(24.0, 54.0), Anchor::Start, "faint", "A row asks the processes that are filled in it.");
    let right = x_of(voters.len()) + 20.0;
    for (column, voter) in voters.iter().enumerate() {
        canvas.text(at(x_of(column), 84.0), Anchor::Middle, "", &voter.to_string());
        let load = sets.iter().filter(|(_, set)| set.contains(voter)).count();
        let low = y_of(sets.len()) + 4.0;
        canvas.text(at(x_of(column), low), Anchor::Middle, "faint", &load.to_string());
    }
    canvas.text(at(98.0, y_of(sets.len()) + 4.0), Anchor::End, "faint", "asked by");
    canvas.text(at(right - 6.0, 84.0), Anchor::Middle, "faint", "size");
    for (row, (process, set)) in sets.iter().enumerate() {
        canvas.text(at(98.0, y_of(row) + 4.0), Anchor::End, "name", &process.to_string());
        for (column, voter) in voters.iter().enumerate() {
            let corner = at(x_of(column) - CELL / 2.0, y_of(row) - CELL / 2.0);
            canvas.rect(Layer::Line, corner, at(CELL, CELL), "open rule", "");
            if set.contains(voter) {
                let class = if voter == process { "open ink cross" } else { "f0" };
                let tip = format!("{process} asks {voter}");
                canvas.circle(Layer::Mark, at(x_of(column), y_of(row)), 8.0, class, &tip);
            }
        }
        canvas.text(at(right - 6.0, y_of(row) + 4.0), Anchor::Middle, "faint", &set.len().to_string());
    }
    let mut y = y_of(sets.len()) + 36.0;
    let apart = apart(sets);
    let told = match apart.is_empty() {
        true => vec!["Every two sets meet. An open circle is the process's own vote.".to_owned()],
        false => apart,
    };
    let class = if told.len() == 1 && told[0].starts_with("Every") { "faint" } else { "alarm" };
    for line in &told {
        canvas.text(at(24.0, y), Anchor::Start, class, line);
        y += 17.0;
    }
    let widest = told.iter().map(|line| text_width(line) + 60.0).fold(right + 30.0, f64::max);
    canvas.finish(at(widest.max(text_width(title) * 1.6 + 60.0), y + 8.0), title, &told.join(" "))
}

/// The pairs of sets without a common voter, in words, at most ten.
fn apart(sets: &[(ProcessId, Vec<ProcessId>)]) -> Vec<String> {
    let mut apart = Vec::new();
    for (index, (one, set)) in sets.iter().enumerate() {
        for (other, others) in &sets[index + 1..] {
            if !set.iter().any(|voter| others.contains(voter)) {
                apart.push(format!("{one} and {other} ask nobody in common."));
            }
        }
    }
    let more = apart.len().saturating_sub(10);
    apart.truncate(10);
    if more > 0 {
        apart.push(format!("{more} more pairs."));
    }
    apart
}
