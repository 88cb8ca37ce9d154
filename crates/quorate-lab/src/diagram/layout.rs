//! Where everything goes: a height for each step, and a place for each label where it covers no other.

use super::svg::{Point, at, text_width};
use crate::story::is_input;
use crate::story::scene::{End, Mail, Scene};
use quorate_core::protocol::ProcessId;
use quorate_core::trace::{MessageNo, What};
use std::collections::BTreeMap;

/// Pixels from one input of a process to its next at the same instant: a line of text.
const ROW: f64 = 18.0;
/// Pixels between two instants: at least, for the middle gap of the run, and at most. A long silence is
/// shortened, or a run with a timeout would be mostly white.
const GAP: [f64; 3] = [16.0, 30.0, 84.0];
/// Pixels that each message sent at an instant adds below it, so that arrows which leave together come apart.
const FAN: f64 = 7.0;
/// Rows of a violation: its line, and below that its words.
const VIOLATION_ROWS: u32 = 2;
/// Pixels below the last step: room for messages that are still under way.
const UNDER_WAY: f64 = 56.0;

/// The height of each step, in pixels from the top of the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heights {
    /// One a step.
    pub(crate) of: Vec<f64>,
    /// The instants: time in microseconds, and height.
    pub(crate) instants: Vec<(u64, f64)>,
    /// The height of all.
    pub(crate) total: f64,
}

impl Heights {
    /// Time runs down. The inputs of one process at one instant keep their order, one below the other; what a
    /// process does in answer to an input has the height of that input.
    pub(crate) fn of(scene: &Scene<'_>) -> Self {
        let rows = rows(scene);
        let middle = middle_gap(scene);
        let mut heights = Self::default();
        let (mut top, mut lowest, mut sent) = (0.0, 0, 0);
        for (at, step) in scene.steps.iter().enumerate() {
            let time = step.at.0;
            match heights.instants.last() {
                Some((last, _)) if *last == time => {}
                Some((last, _)) => {
                    let gap = gap(time.saturating_sub(*last), middle);
                    top += f64::from(lowest) * ROW + gap.max((FAN * f64::from(sent)).min(GAP[2]));
                    (lowest, sent) = (0, 0);
                    heights.instants.push((time, top));
                }
                None => heights.instants.push((time, top)),
            }
            let words = if step.what == What::Violated { VIOLATION_ROWS } else { 0 };
            lowest = lowest.max(rows[at] + words);
            sent += u32::from(matches!(step.what, What::Sent { .. }));
            heights.of.push(top + f64::from(rows[at]) * ROW);
        }
        heights.total = top + f64::from(lowest) * ROW;
        if scene.messages.iter().any(|mail| mail.end == End::UnderWay) {
            heights.total += UNDER_WAY;
        }
        heights
    }
}

/// The row of each step within its instant.
fn rows(scene: &Scene<'_>) -> Vec<u32> {
    let sent: BTreeMap<MessageNo, usize> =
        scene.messages.iter().filter_map(|mail| Some((mail.no, mail.sent?))).collect();
    let mut rows = Vec::with_capacity(scene.steps.len());
    let mut last: BTreeMap<ProcessId, u32> = BTreeMap::new();
    // Of this instant: the rows of starts and crashes, and the first row below the words of a violation.
    let (mut lives, mut below): (BTreeMap<ProcessId, u32>, u32) = (BTreeMap::new(), 0);
    for (at, step) in scene.steps.iter().enumerate() {
        if at > 0 && scene.steps[at - 1].at != step.at {
            last.clear();
            lives.clear();
            below = 0;
        }
        let me = step.at_peer.process;
        let mut row = match last.get(&me) {
            Some(row) if is_input(&step.what) => row + 1,
            Some(row) => *row,
            None => 0,
        };
        row = row.max(below);
        match step.what {
            What::Violated => {
                row = last.values().max().map_or(0, |lowest| lowest + 1);
                below = row + VIOLATION_ROWS;
            }
            What::Received { message, .. } => {
                let sent = sent.get(&message).filter(|sent| **sent < at && scene.steps[**sent].at == step.at);
                row = row.max(sent.map_or(0, |sent| rows[*sent] + 1));
            }
            // Whoever is told of a start or a stop is told after it.
            What::Suspected(of) | What::Trusted(of, _) => {
                row = row.max(lives.get(&of).map_or(0, |theirs| theirs + 1));
            }
            What::Started { .. } | What::Crashed => {
                lives.insert(me, row);
            }
            _ => {}
        }
        last.insert(me, row);
        rows.push(row);
    }
    rows
}

fn middle_gap(scene: &Scene<'_>) -> u64 {
    let pairs = scene.steps.windows(2).map(|pair| pair[1].at.0.saturating_sub(pair[0].at.0));
    let mut gaps: Vec<_> = pairs.filter(|gap| *gap > 0).collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied().unwrap_or(1)
}

fn gap(time: u64, middle: u64) -> f64 {
    (GAP[1] * time as f64 / middle as f64).clamp(GAP[0], GAP[2])
}

/// Where a message leaves and where it ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Flightpath {
    pub(crate) from: Point,
    pub(crate) to: Point,
}

/// The path of each message; none for one that never left.
pub(crate) fn flightpaths(
    scene: &Scene<'_>,
    heights: &Heights,
    column: impl Fn(ProcessId) -> f64,
) -> Vec<Option<Flightpath>> {
    let path = |mail: &Mail| {
        let (x0, x1) = (column(mail.from), column(mail.to));
        let top = mail.sent.map(|sent| heights.of[sent]);
        let part = |share: f64| x0 + (x1 - x0) * share;
        Some(match (top, mail.end) {
            (None, End::Lost(..)) => return None,
            (None, End::Received(end)) => {
                let low = heights.of[end];
                Flightpath { from: at(part(0.4), low - 26.0), to: at(x1, low) }
            }
            (None, End::UnderWay) => return None,
            (Some(top), End::Received(end)) => Flightpath { from: at(x0, top), to: at(x1, heights.of[end]) },
            (Some(top), End::Lost(..)) if is_lost_at_once(scene, mail) => {
                let step = (x1 - x0).signum();
                Flightpath { from: at(x0, top), to: at(x0 + 40.0 * step, top + 16.0) }
            }
            (Some(top), End::Lost(end, _)) => {
                let short = 16.0 * (x1 - x0).signum();
                Flightpath { from: at(x0, top), to: at(x1 - short, heights.of[end]) }
            }
            (Some(top), End::UnderWay) => {
                Flightpath { from: at(x0, top), to: at(part(0.85), heights.total + 14.0) }
            }
        })
    };
    scene.messages.iter().map(path).collect()
}

/// Whether a message was lost where it was sent: the link lost it, or was cut.
pub(crate) fn is_lost_at_once(scene: &Scene<'_>, mail: &Mail) -> bool {
    match (mail.sent, mail.end) {
        (Some(sent), End::Lost(end, _)) => scene.time_us(sent) == scene.time_us(end),
        _ => false,
    }
}

/// A box, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) right: f64,
    pub(crate) bottom: f64,
}

impl Area {
    fn around(centre: Point, width: f64, height: f64) -> Self {
        let (w, h) = (width / 2.0, height / 2.0);
        Self { left: centre.x - w, top: centre.y - h, right: centre.x + w, bottom: centre.y + h }
    }

    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    /// Whether a straight line crosses it (Liang and Barsky 1984).
    fn is_crossed_by(&self, path: &Flightpath) -> bool {
        let (dx, dy) = (path.to.x - path.from.x, path.to.y - path.from.y);
        let (mut enter, mut leave) = (0.0_f64, 1.0_f64);
        let sides = [
            (-dx, path.from.x - self.left),
            (dx, self.right - path.from.x),
            (-dy, path.from.y - self.top),
            (dy, self.bottom - path.from.y),
        ];
        for (towards, distance) in sides {
            if towards == 0.0 {
                if distance < 0.0 {
                    return false;
                }
                continue;
            }
            let share = distance / towards;
            if towards < 0.0 {
                enter = enter.max(share);
            } else {
                leave = leave.min(share);
            }
        }
        enter <= leave
    }
}

/// Where a label ended up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Spot {
    /// In words, around this point.
    Words(Point),
    /// As this number, around this point; the words are in the list below.
    Number(usize, Point),
    /// Nowhere: not even a number has room.
    Nowhere,
}

/// Puts labels where they cover no other label and no bar, and few lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Labels {
    taken: Buckets<Area>,
    lines: Buckets<(Flightpath, u32)>,
    /// The words that have become numbers, from 1.
    pub(crate) listed: Vec<String>,
    /// How many labels have no room at all.
    pub(crate) unplaced: usize,
    /// Everything that was placed, for checks.
    pub(crate) areas: Vec<Area>,
}

const LABEL_HEIGHT: f64 = 13.0;
/// More than so many lines under a label, and it becomes a number.
const CROSSINGS_MAX: u32 = 4;

impl Labels {
    /// Nothing may be put here.
    pub(crate) fn forbid(&mut self, area: Area) {
        self.taken.add(area.top, area.bottom, area);
    }

    /// To cover this line is a pity, so much.
    pub(crate) fn line(&mut self, path: Flightpath, weight: u32) {
        let (top, bottom) = (path.from.y.min(path.to.y), path.from.y.max(path.to.y));
        self.lines.add(top, bottom, (path, weight));
    }

    /// Finds the best of some centres for a label; the first is liked most. `own` is its own line.
    pub(crate) fn place(
        &mut self,
        words: &str,
        centres: impl Fn(f64) -> Vec<Point>,
        own: Option<&Flightpath>,
    ) -> Spot {
        let width = text_width(words) + 4.0;
        if let Some((point, cost)) = self.best(&centres(width), width, own)
            && cost <= CROSSINGS_MAX
        {
            return self.take(point, width, Spot::Words(point));
        }
        let number = match self.listed.iter().position(|listed| listed == words) {
            Some(known) => known + 1,
            None => self.listed.len() + 1,
        };
        let width = text_width(&number.to_string()) + 4.0;
        let Some((point, _)) = self.best(&centres(width), width, own) else {
            self.unplaced += 1;
            return Spot::Nowhere;
        };
        if number > self.listed.len() {
            self.listed.push(words.to_owned());
        }
        self.take(point, width, Spot::Number(number, point))
    }

    fn take(&mut self, point: Point, width: f64, spot: Spot) -> Spot {
        let area = Area::around(point, width, LABEL_HEIGHT);
        self.forbid(area);
        self.areas.push(area);
        spot
    }

    fn best(&self, centres: &[Point], width: f64, own: Option<&Flightpath>) -> Option<(Point, u32)> {
        let costs = centres.iter().filter_map(|point| {
            let area = Area::around(*point, width, LABEL_HEIGHT);
            Some((*point, self.cost(&area, own)?))
        });
        costs.min_by_key(|(_, cost)| *cost)
    }

    /// How many lines it would cover; none if it would cover a label or a bar.
    fn cost(&self, area: &Area, own: Option<&Flightpath>) -> Option<u32> {
        if self.taken.between(area.top, area.bottom).any(|taken| taken.meets(area)) {
            return None;
        }
        let lines = self.lines.between(area.top, area.bottom);
        let met = lines.filter(|(path, _)| own != Some(path) && area.is_crossed_by(path));
        let mut seen: Vec<&Flightpath> = Vec::new();
        let mut cost = 0;
        for (path, weight) in met {
            if !seen.contains(&path) {
                seen.push(path);
                cost += weight;
            }
        }
        Some(cost)
    }
}

/// Things by their height, so that a look-up sees its neighbours only.
#[derive(Clone, Debug)]
struct Buckets<T>(BTreeMap<i64, Vec<T>>);

impl<T> Default for Buckets<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

const BUCKET: f64 = 64.0;

impl<T: Copy> Buckets<T> {
    fn add(&mut self, top: f64, bottom: f64, thing: T) {
        for bucket in Self::range(top, bottom) {
            self.0.entry(bucket).or_default().push(thing);
        }
    }

    fn between(&self, top: f64, bottom: f64) -> impl Iterator<Item = &T> {
        Self::range(top, bottom).filter_map(|bucket| self.0.get(&bucket)).flatten()
    }

    fn range(top: f64, bottom: f64) -> std::ops::RangeInclusive<i64> {
        (top / BUCKET).floor() as i64..=(bottom / BUCKET).floor() as i64
    }
}

/// Breaks a sentence into lines of at most so many pixels.
pub(crate) fn wrapped(text: &str, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text_width(line) + text_width(word) + 4.0 <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
