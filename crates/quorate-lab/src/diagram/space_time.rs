//! The space-time diagram: one line a process, time runs down, and each message is an arrow that slants by
//! the time it took.

mod key;
mod words;

use super::layout::{Area, Flightpath, Heights, Labels, Spot, flightpaths, is_lost_at_once, wrapped};
use super::svg::{Anchor, COLOURS, Canvas, Layer, Point, at, text_width};
use crate::story::scene::{End, Mail, Scene, Sort, Stretch};
use crate::story::{Clock, Story, loss_words};
use key::Key;
use quorate_core::protocol::{ProcessId, Request};
use quorate_core::trace::{Loss, What};
use std::collections::{BTreeMap, BTreeSet};
use words::{facts, said};

/// Pixels at the left of the first column, for times; between columns; at the right, for words.
const GUTTER: f64 = 152.0;
/// Where the line of times is.
const AXIS: f64 = 76.0;
const RIGHT: f64 = 130.0;
/// Half the width of a bar.
const HALF_BAR: f64 = 5.0;
/// Pixels from one line of the lists below to the next.
const LINE: f64 = 17.0;
/// After so many pixels the names of the processes are said again.
const PAGE: f64 = 700.0;

/// Draws a story as SVG.
pub fn space_time(story: &Story) -> String {
    let scene = Scene::of(story);
    let mut plan = Plan::new(&scene);
    plan.times();
    plan.names_again();
    plan.lives();
    plan.stretches();
    plan.partings();
    plan.arrows();
    plan.marks();
    plan.words();
    plan.legend()
}

/// A label that waits for its place.
struct Wanted {
    words: String,
    class: &'static str,
    place: Place,
}

enum Place {
    /// Beside a process's line.
    Beside(Point),
    /// After the cross of a lost message, on its right or left.
    Beyond(Point, bool),
    /// On an arrow.
    On(Flightpath),
    /// Between two columns, from this height down.
    Between(f64, f64),
}

/// What is drawn as one: the same sort of message, lost for the same reason at the same place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Together {
    end: (i64, i64),
    kind: u8,
    why: Loss,
    is_right: bool,
}

struct Plan<'a> {
    scene: &'a Scene<'a>,
    heights: Heights,
    columns: BTreeMap<ProcessId, f64>,
    gap: f64,
    width: f64,
    /// Where the run begins, below the title.
    top: f64,
    canvas: Canvas,
    labels: Labels,
    wanted: Vec<Wanted>,
    keys: BTreeSet<Key>,
}

impl<'a> Plan<'a> {
    fn new(scene: &'a Scene<'a>) -> Self {
        let processes = &scene.story.processes;
        let gap = match processes.len() {
            0..=3 => 230.0,
            4 => 200.0,
            5..=6 => 180.0,
            _ => 150.0,
        };
        let column = |(index, process): (usize, &ProcessId)| (*process, GUTTER + index as f64 * gap);
        let columns: BTreeMap<_, _> = processes.iter().enumerate().map(column).collect();
        let width = GUTTER + gap * (processes.len().max(2) - 1) as f64 + RIGHT;
        let mut plan = Self {
            scene,
            heights: Heights::of(scene),
            columns,
            gap,
            width,
            top: 0.0,
            canvas: Canvas::default(),
            labels: Labels::default(),
            wanted: Vec::new(),
            keys: BTreeSet::new(),
        };
        plan.heading();
        for height in &mut plan.heights.of {
            *height += plan.top;
        }
        for (_, height) in &mut plan.heights.instants {
            *height += plan.top;
        }
        plan.heights.total += plan.top;
        plan
    }

    fn x(&self, process: ProcessId) -> f64 {
        self.columns.get(&process).copied().unwrap_or(GUTTER)
    }

    fn bottom(&self) -> f64 {
        self.heights.total + 26.0
    }

    fn heading(&mut self) {
        let story = self.scene.story;
        let mut y = 32.0;
        self.canvas.text(at(24.0, y), Anchor::Start, "title", &story.title);
        for line in wrapped(&story.caption, self.width - 60.0) {
            y += LINE;
            self.canvas.text(at(24.0, y), Anchor::Start, "", &line);
        }
        y += LINE;
        self.canvas.text(at(24.0, y), Anchor::Start, "faint", &facts(self.scene));
        self.top = y + 54.0;
        for (process, x) in &self.columns {
            self.canvas.text(at(*x, self.top - 24.0), Anchor::Middle, "name", &process.to_string());
        }
    }

    fn times(&mut self) {
        let (left, mut last) = (AXIS, f64::MIN);
        for (time, y) in &self.heights.instants {
            if *y - last >= 14.0 {
                let words = Clock(*time).to_string();
                self.canvas.text(at(left - 8.0, y + 3.5), Anchor::End, "small faint", &words);
                self.canvas.line(Layer::Line, at(left - 4.0, *y), at(left + 2.0, *y), "rule", "");
                last = *y;
            }
        }
        self.canvas.line(Layer::Line, at(left, self.top - 8.0), at(left, self.bottom()), "rule", "");
    }

    /// A tall picture says the names again, on the lines.
    fn names_again(&mut self) {
        let again = (1..)
            .map(|page| self.top + PAGE * f64::from(page))
            .take_while(|y| *y < self.bottom() - PAGE / 2.0);
        for y in again.collect::<Vec<_>>() {
            for (process, x) in self.columns.clone() {
                let name = process.to_string();
                let half = text_width(&name) / 2.0 + 4.0;
                self.labels.forbid(Area { left: x - half, top: y - 8.0, right: x + half, bottom: y + 8.0 });
                self.canvas.text(at(x, y + 4.0), Anchor::Middle, "faintword", &name);
            }
        }
    }

    /// The line of each process: whole while it runs, dotted while it is down.
    fn lives(&mut self) {
        for (process, x) in self.columns.clone() {
            let mut from = self.top - 14.0;
            let downs: Vec<_> = self.stretches_of(process, Sort::Down).cloned().collect();
            for down in downs {
                let (crash, start) = (self.y(down.from), self.until(&down));
                self.canvas.line(Layer::Line, at(x, from), at(x, crash), "ink life", "");
                let tip = format!("{process} is down");
                self.canvas.line(Layer::Line, at(x, crash), at(x, start), "ink life down", &tip);
                self.keys.insert(Key::Down);
                from = start;
            }
            let is_down = self.stretches_of(process, Sort::Down).any(|down| down.until.is_none());
            if !is_down {
                self.canvas.line(Layer::Line, at(x, from), at(x, self.bottom()), "ink life", "");
            }
            let whole = Flightpath { from: at(x, self.top - 14.0), to: at(x, self.bottom()) };
            self.labels.line(whole, 5);
        }
    }

    fn stretches_of(&self, process: ProcessId, sort: Sort) -> impl Iterator<Item = &Stretch> {
        let all = self.scene.stretches.iter();
        all.filter(move |stretch| stretch.process == process && stretch.sort == sort)
    }

    fn y(&self, step: usize) -> f64 {
        self.heights.of[step]
    }

    fn until(&self, stretch: &Stretch) -> f64 {
        stretch.until.map_or(self.bottom(), |until| self.y(until))
    }

    fn stretches(&mut self) {
        for stretch in &self.scene.stretches {
            let (top, low, x) = (self.y(stretch.from), self.until(stretch), self.x(stretch.process));
            let tip = self.stretch_words(stretch);
            let colour = colour(stretch.about, stretch.process);
            let corner = at(x - HALF_BAR, top);
            let size = at(2.0 * HALF_BAR, (low - top).max(3.0));
            match stretch.sort {
                Sort::Inside => {
                    self.canvas.rect(Layer::Bar, corner, size, &format!("f{colour}"), &tip);
                    self.keys.insert(Key::Inside);
                }
                Sort::Leads => {
                    let class = format!("open s{colour} cross");
                    self.canvas.rect(Layer::Bar, corner, size, &class, &tip);
                    self.keys.insert(Key::Leads);
                }
                Sort::Waits => {
                    let x = x - HALF_BAR - 2.0;
                    let class = format!("wait s{colour}");
                    self.canvas.line(Layer::Bar, at(x, top), at(x, low), &class, &tip);
                    self.keys.insert(Key::Waits);
                }
                Sort::Paused => {
                    let (corner, size) = (at(corner.x - 3.0, top), at(size.x + 6.0, size.y));
                    self.canvas.rect(Layer::Mark, corner, size, "hatched", &tip);
                    self.keys.insert(Key::Paused);
                }
                Sort::Down => continue,
            }
            self.labels.forbid(Area {
                left: x - HALF_BAR - 4.0,
                top: top - 2.0,
                right: x + HALF_BAR + 2.0,
                bottom: low + 2.0,
            });
        }
    }

    fn stretch_words(&self, stretch: &Stretch) -> String {
        let from = Clock(self.scene.time_us(stretch.from));
        let until = match stretch.until {
            Some(until) => format!("until {}", Clock(self.scene.time_us(until))),
            None => "until the end".to_owned(),
        };
        let request = stretch.about.map(|about| format!(" ({about})")).unwrap_or_default();
        format!("{} {}{request} from {from} {until}", stretch.process, stretch.sort.words())
    }

    /// A shade between two neighbours while a link between them is cut; what is cut is said in words.
    fn partings(&mut self) {
        let processes = &self.scene.story.processes;
        for parting in &self.scene.partings {
            let top = self.y(parting.from);
            let low = parting.until.map_or(self.bottom(), |until| self.y(until)).max(top + 12.0);
            let words = format!("cut: {}", parting.words(processes).trim_end_matches(" cut"));
            let cut: Vec<_> =
                processes.windows(2).filter(|pair| parting.is_between(pair[0], pair[1])).collect();
            for pair in &cut {
                let (left, right) = (self.x(pair[0]), self.x(pair[1]));
                let (corner, size) = (at(left + 14.0, top), at(right - left - 28.0, low - top));
                self.canvas.rect(Layer::Shade, corner, size, "shade", &words);
            }
            let place = match cut.first() {
                Some(pair) => {
                    self.keys.insert(Key::Parting);
                    Place::Between((self.x(pair[0]) + self.x(pair[1])) / 2.0, top + 9.0)
                }
                None => Place::Beside(at(self.x(self.scene.steps[parting.from].at_peer.process), top)),
            };
            self.wanted.push(Wanted { words, class: "word", place });
        }
    }

    fn arrows(&mut self) {
        let columns = self.columns.clone();
        let scene = self.scene;
        let paths =
            flightpaths(scene, &self.heights, |process| columns.get(&process).copied().unwrap_or(GUTTER));
        let mut lost: BTreeMap<Together, Vec<&Mail>> = BTreeMap::new();
        for (mail, path) in scene.messages.iter().zip(paths) {
            match path {
                Some(path) if is_lost_at_once(scene, mail) => {
                    let known = lost.entry(self.together(mail, path)).or_default();
                    known.push(mail);
                    if known.len() == 1 {
                        self.arrow(mail, path);
                    }
                }
                Some(path) => self.arrow(mail, path),
                None => self.unsent(mail),
            }
        }
        for (together, mails) in lost {
            self.lost_words(&together, &mails);
        }
    }

    fn together(&self, mail: &Mail, path: Flightpath) -> Together {
        let why = match mail.end {
            End::Lost(_, why) => why,
            _ => Loss::Link,
        };
        let end = (path.to.x.round() as i64, path.to.y.round() as i64);
        Together { end, kind: mail.kind, why, is_right: path.to.x > path.from.x }
    }

    /// Messages that were lost as they left, to one side, share one arrow; its words say to whom they were.
    fn lost_words(&mut self, together: &Together, mails: &[&Mail]) {
        let name = self.scene.story.names.message(together.kind);
        let to: Vec<_> = mails.iter().map(|mail| mail.to.to_string()).collect();
        let words = format!("{name} to {} {}", to.join(" "), loss_words(together.why));
        let end = at(together.end.0 as f64, together.end.1 as f64);
        self.wanted.push(Wanted { words, class: "word", place: Place::Beyond(end, together.is_right) });
    }

    fn arrow(&mut self, mail: &Mail, mut path: Flightpath) {
        let colour = colour(mail.about, mail.from);
        let (mut class, tip) = (format!("arrow s{colour}"), self.mail_words(mail));
        let name = self.scene.story.names.message(mail.kind);
        let mut words = name.to_owned();
        if mail.is_double {
            class.push_str(" double");
            self.keys.insert(Key::Double);
        }
        let step = (path.to.x - path.from.x).signum();
        path.from.x += 2.0 * step;
        match mail.end {
            End::Received(_) => {
                path.to.x -= 2.0 * step;
                self.canvas.head(path.from, path.to, &format!("f{colour}"));
                self.keys.insert(Key::Message);
            }
            End::Lost(_, why) => {
                self.canvas.cross(path.to, 4.0, "alarm cross", &tip);
                self.keys.insert(Key::Lost);
                if why != Loss::Link {
                    words = format!("{name}: {}", loss_words(why));
                }
            }
            End::UnderWay => {
                class.push_str(" under");
                self.keys.insert(Key::UnderWay);
            }
        }
        self.canvas.line(Layer::Arrow, path.from, path.to, &class, &tip);
        self.labels.line(path, 1);
        if !is_lost_at_once(self.scene, mail) {
            self.wanted.push(Wanted { words, class: "word", place: Place::On(path) });
        }
    }

    /// A message that was lost before it left.
    fn unsent(&mut self, mail: &Mail) {
        let End::Lost(end, why) = mail.end else { return };
        let spot = at(self.x(mail.from), self.y(end));
        self.canvas.cross(spot, 4.0, "alarm cross", &self.mail_words(mail));
        self.keys.insert(Key::Lost);
        let words = format!("{} {}", self.scene.story.names.message(mail.kind), loss_words(why));
        self.wanted.push(Wanted { words, class: "word", place: Place::Beside(spot) });
    }

    fn mail_words(&self, mail: &Mail) -> String {
        let words = self.scene.story.words(self.scene.steps[mail.step]);
        let time = |step: usize| Clock(self.scene.time_us(step));
        let sent = mail.sent.map(|sent| format!(", sent at {}", time(sent))).unwrap_or_default();
        let end = match mail.end {
            End::Received(end) => format!(", received at {}", time(end)),
            End::Lost(end, why) => format!(", {} at {}", loss_words(why), time(end)),
            End::UnderWay => ", still under way".to_owned(),
        };
        let double = if mail.is_double { " (doubled)" } else { "" };
        format!("{words}{double} from {} to {}{sent}{end}", mail.from, mail.to)
    }

    /// What happens at one process, and the words of it: one label for each input and its answer.
    fn marks(&mut self) {
        let mut words: BTreeMap<(ProcessId, i64), (f64, Vec<String>)> = BTreeMap::new();
        for (at_step, step) in self.scene.steps.iter().enumerate() {
            let (x, y) = (self.x(step.at_peer.process), self.y(at_step));
            self.mark(at_step, at(x, y));
            if let Some(said) = said(self.scene, at_step) {
                let key = (step.at_peer.process, (y * 10.0) as i64);
                words.entry(key).or_insert((y, Vec::new())).1.push(said);
            }
        }
        for ((process, _), (y, said)) in words {
            let place = Place::Beside(at(self.x(process), y));
            self.wanted.push(Wanted { words: said.join(", "), class: "word", place });
        }
    }

    fn mark(&mut self, step: usize, spot: Point) {
        let tip = format!(
            "{} at {}",
            self.scene.story.words(self.scene.steps[step]),
            Clock(self.scene.time_us(step))
        );
        match self.scene.steps[step].what {
            What::Crashed => self.canvas.cross(spot, 6.0, "alarm cross", "crash"),
            What::Started { .. } => {
                self.canvas.circle(Layer::Mark, spot, 4.0, "open ink", "a life begins");
                self.keys.insert(Key::Starts);
            }
            What::Called { .. } => {
                let tip = format!("call: {tip}");
                self.canvas.circle(Layer::Mark, spot, 3.0, "full", &tip);
                self.keys.insert(Key::Called);
            }
            What::TimerFired { .. } => {
                let (from, to) = (at(spot.x - 7.0, spot.y), at(spot.x + 7.0, spot.y));
                self.canvas.line(Layer::Mark, from, to, "ink cross", &format!("timer: {tip}"));
                self.keys.insert(Key::Timer);
            }
            What::Persist(id) | What::Persisted(id) => {
                let done = matches!(self.scene.steps[step].what, What::Persisted(_));
                let class = if done { "full" } else { "open ink" };
                let tip = format!("record {} {}", id.0, if done { "is durable" } else { "goes to the disk" });
                let corner = at(spot.x - 3.0, spot.y - 3.0);
                self.canvas.rect(Layer::Mark, corner, at(6.0, 6.0), class, &tip);
                self.keys.insert(Key::Disk);
            }
            What::Violated => self.violation(step, spot.y),
            _ => {}
        }
    }

    /// A red line across all, with a band of its own for the words.
    fn violation(&mut self, step: usize, y: f64) {
        let words = format!("violated: {}", self.scene.story.words(self.scene.steps[step]));
        let (left, right) = (AXIS + 4.0, self.width - 20.0);
        let lines = wrapped(&words, right - left - 20.0);
        let height = 15.0 * lines.len() as f64 + 3.0;
        self.canvas.rect(Layer::Mark, at(left, y), at(right - left, height), "paper", "");
        self.canvas.line(Layer::Mark, at(left, y), at(right, y), "alarm violated", &words);
        for (row, line) in lines.iter().enumerate() {
            let place = at(left + 6.0, y + 13.0 + 15.0 * row as f64);
            self.canvas.text(place, Anchor::Start, "alarm", line);
        }
        self.labels.forbid(Area { left, top: y - 1.0, right, bottom: y + height });
    }

    /// Puts the words where there is room: those of partitions first, as they lie widest, then arrows, then
    /// marks, which have two sides to lie at.
    fn words(&mut self) {
        let wanted = std::mem::take(&mut self.wanted);
        for wanted in &wanted {
            let spot = match &wanted.place {
                Place::Beside(point) => {
                    let right = self.width - 6.0;
                    self.labels.place(&wanted.words, |width| beside(*point, width, right), None)
                }
                Place::Beyond(point, is_right) => {
                    self.labels.place(&wanted.words, |width| beyond(*point, width, *is_right), None)
                }
                Place::On(path) => {
                    let gap = self.gap;
                    self.labels.place(&wanted.words, |_| along(path, gap), Some(path))
                }
                Place::Between(x, y) => {
                    let below = |_| (0..12).map(|row| at(*x, y + 13.0 * f64::from(row))).collect();
                    self.labels.place(&wanted.words, below, None)
                }
            };
            match spot {
                Spot::Words(point) => {
                    let place = at(point.x, point.y + 4.0);
                    self.canvas.text(place, Anchor::Middle, wanted.class, &wanted.words);
                }
                Spot::Number(number, point) => {
                    let place = at(point.x, point.y + 3.5);
                    self.canvas.text(place, Anchor::Middle, "number", &number.to_string());
                }
                Spot::Nowhere => {}
            }
        }
    }
}

/// Places beside a point: right, left, and a little above and below.
fn beside(point: Point, width: f64, right: f64) -> Vec<Point> {
    let out = HALF_BAR + 6.0 + width / 2.0;
    let rows = [0.0, -7.0, 7.0, -12.0, 12.0];
    let both = rows.iter().flat_map(|dy| [at(point.x + out, point.y + dy), at(point.x - out, point.y + dy)]);
    both.filter(|spot| spot.x + width / 2.0 <= right && spot.x - width / 2.0 >= AXIS + 4.0).collect()
}

/// Places after a cross, and below it.
fn beyond(point: Point, width: f64, is_right: bool) -> Vec<Point> {
    let side = if is_right { 1.0 } else { -1.0 };
    let mut places = vec![at(point.x + side * (7.0 + width / 2.0), point.y)];
    for row in [14.0, 20.0, 27.0, 34.0] {
        places.extend(
            [16.0, 0.0, -16.0].map(|shift| at(point.x + side * (width / 2.0 - shift), point.y + row)),
        );
    }
    places
}

/// Places on an arrow: in the middle of each gap between columns that it crosses, nearest its end first.
fn along(path: &Flightpath, gap: f64) -> Vec<Point> {
    let (dx, dy) = (path.to.x - path.from.x, path.to.y - path.from.y);
    let gaps = (dx.abs() / gap).round().max(1.0);
    let mut places = Vec::new();
    for shift in [0.0, 0.12, -0.12, 0.24, -0.24, 0.32, -0.32] {
        for back in 0..gaps as u32 {
            let share = 1.0 - (f64::from(back) + 0.5 + shift) / gaps;
            places.push(at(path.from.x + dx * share, path.from.y + dy * share));
        }
    }
    places
}

fn colour(about: Option<Request>, process: ProcessId) -> usize {
    let process = about.map_or(process, |about| about.by.process);
    process.0.saturating_sub(1) as usize % COLOURS
}
