//! The space-time diagram for a terminal: a column a process, a row an event, an arrow at each receipt.

use crate::story::scene::{End, Mail, Scene, Sort};
use crate::story::{Clock, Story, loss_words};
use quorate_core::protocol::{Peer, ProcessId};
use quorate_core::trace::{MessageNo, What};
use std::collections::{BTreeMap, BTreeSet};

/// How it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextOptions {
    /// Only ASCII: for terminals and mail that know no lines.
    pub ascii: bool,
    /// How many columns of text there are. Processes share them; each takes 9 at least, so that more than
    /// 9 processes need more than 100.
    pub width: usize,
    /// After so many rows the names of the processes are said again.
    pub page: usize,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { ascii: false, width: 100, page: 40 }
    }
}

/// Columns of text for the time.
const GUTTER: usize = 13;
/// Columns of text that a process takes at least.
const COLUMN_MIN: usize = 9;

/// Draws a story as text. Lines end without spaces.
pub fn text(story: &Story, options: TextOptions) -> String {
    let scene = Scene::of(story);
    let mut page = Page::new(&scene, options);
    page.heading();
    for at in 0..scene.steps.len() {
        page.step(at);
    }
    page.key();
    page.out
}

/// The signs of one alphabet.
struct Signs {
    line: char,
    inside: char,
    leads: char,
    waits: char,
    paused: char,
    down: char,
    cut: char,
    over: char,
    dash: char,
    double: char,
    right: char,
    left: char,
    lost: char,
    send: char,
}

const DRAWN: Signs = Signs {
    line: '│',
    inside: '█',
    leads: '║',
    waits: '┊',
    paused: '▒',
    down: ' ',
    cut: '░',
    over: '┼',
    dash: '─',
    double: '╌',
    right: '▶',
    left: '◀',
    lost: '✗',
    send: '→',
};

const ASCII: Signs = Signs {
    line: '|',
    inside: '#',
    leads: 'L',
    waits: ':',
    paused: '%',
    down: ' ',
    cut: '~',
    over: '+',
    dash: '-',
    double: '=',
    right: '>',
    left: '<',
    lost: 'x',
    send: '>',
};

struct Page<'a> {
    scene: &'a Scene<'a>,
    options: TextOptions,
    signs: &'static Signs,
    column: usize,
    mails: BTreeMap<MessageNo, &'a Mail>,
    open: BTreeSet<(ProcessId, Sort)>,
    rows: usize,
    told_us: Option<u64>,
    out: String,
}

impl<'a> Page<'a> {
    fn new(scene: &'a Scene<'a>, options: TextOptions) -> Self {
        let count = scene.story.processes.len().max(1);
        Self {
            scene,
            options,
            signs: if options.ascii { &ASCII } else { &DRAWN },
            column: (options.width.saturating_sub(GUTTER + 2) / count).clamp(COLUMN_MIN, 30),
            mails: scene.messages.iter().map(|mail| (mail.no, mail)).collect(),
            open: BTreeSet::new(),
            rows: 0,
            told_us: None,
            out: String::new(),
        }
    }

    fn x(&self, process: ProcessId) -> usize {
        let place = self.scene.story.processes.iter().position(|known| *known == process).unwrap_or(0);
        GUTTER + 1 + place * self.column
    }

    fn say(&mut self, line: &str) {
        self.out.push_str(line.trim_end());
        self.out.push('\n');
    }

    fn heading(&mut self) {
        let story = self.scene.story;
        self.say(&story.title);
        for line in wrapped(&story.caption, self.options.width) {
            self.say(&line);
        }
        if let Some(seed) = story.seed {
            self.say(&format!("seed {seed}"));
        }
    }

    fn names(&mut self) {
        let mut row = vec![' '; GUTTER + 2 + self.column * self.scene.story.processes.len()];
        for process in &self.scene.story.processes {
            put(&mut row, self.x(*process), &process.to_string());
        }
        self.say("");
        self.say(&row.into_iter().collect::<String>());
    }

    /// The lines of all processes, with the time of a step if no row has said it yet.
    fn row(&mut self, at: usize) -> Vec<char> {
        if self.rows.is_multiple_of(self.options.page.max(1)) {
            self.names();
            self.told_us = None;
        }
        self.rows += 1;
        let processes = &self.scene.story.processes;
        let mut row = vec![' '; GUTTER + 2 + self.column * processes.len()];
        let time = self.scene.time_us(at);
        if self.told_us != Some(time) {
            let words = Clock(time).to_string();
            put(&mut row, GUTTER.saturating_sub(words.len() + 1), &words);
            self.told_us = Some(time);
        }
        for process in processes {
            row[self.x(*process)] = self.line_of(*process);
        }
        if let Some(parting) = self.scene.partings.iter().rev().find(|parting| parting.from <= at) {
            let lasts = parting.until.is_none_or(|until| at < until);
            for pair in processes.windows(2).filter(|_| lasts) {
                if parting.is_between(pair[0], pair[1]) {
                    row[self.x(pair[1]) - 2] = self.signs.cut;
                }
            }
        }
        row
    }

    fn line_of(&self, process: ProcessId) -> char {
        let is = |sort| self.open.contains(&(process, sort));
        match () {
            () if is(Sort::Down) => self.signs.down,
            () if is(Sort::Paused) => self.signs.paused,
            () if is(Sort::Inside) => self.signs.inside,
            () if is(Sort::Leads) => self.signs.leads,
            () if is(Sort::Waits) => self.signs.waits,
            () => self.signs.line,
        }
    }

    fn step(&mut self, at: usize) {
        for stretch in &self.scene.stretches {
            if stretch.until == Some(at) {
                self.open.remove(&(stretch.process, stretch.sort));
            }
            if stretch.from == at {
                self.open.insert((stretch.process, stretch.sort));
            }
        }
        let step = self.scene.steps[at];
        match step.what {
            What::Sent { kind, .. } => self.sends(at, kind),
            What::Received { message, .. } => self.arrow(at, message, None),
            What::Dropped { message, why, .. } => self.arrow(at, message, Some(loss_words(why))),
            What::Cut(_) | What::Mended(_) => self.parting(at),
            What::Violated => {
                let words = format!("VIOLATED: {}", self.scene.story.words(step));
                self.across(at, &words, '!');
            }
            _ => {
                if let Some(words) = said(self.scene, at) {
                    self.beside(at, step.at_peer.process, &words);
                }
            }
        }
    }

    /// The same message to several processes at once is one row.
    fn sends(&mut self, at: usize, kind: u8) {
        let step = self.scene.steps[at];
        let is_same = |other: usize| {
            let other = self.scene.steps[other];
            let same_kind = matches!(other.what, What::Sent { kind: k, .. } if k == kind);
            same_kind && other.at_peer == step.at_peer && other.at == step.at && other.about == step.about
        };
        // A loss is noted between two sends of one step.
        let is_loss = |other: &usize| {
            matches!(self.scene.steps[*other].what, What::Dropped { .. } | What::Doubled { .. })
        };
        let before = (0..at).rev().find(|other| !is_loss(other));
        if before.is_some_and(is_same) {
            return;
        }
        let after = (at + 1..self.scene.steps.len()).filter(|other| !is_loss(other));
        let run = std::iter::once(at).chain(after.take_while(|other| is_same(*other)));
        let to: Vec<_> = run
            .filter_map(|other| match self.scene.steps[other].what {
                What::Sent { to, .. } => Some(to.to_string()),
                _ => None,
            })
            .collect();
        let words = format!("{} {}{}", self.scene.story.names.message(kind), self.signs.send, to.join(" "));
        self.beside(at, step.at_peer.process, &words);
    }

    /// Words at the right of a process's line, on more rows if they are long.
    fn beside(&mut self, at: usize, process: ProcessId, words: &str) {
        for line in wrapped(words, self.column - 3) {
            let mut row = self.row(at);
            put(&mut row, self.x(process) + 2, &line);
            self.say(&row.into_iter().collect::<String>());
        }
    }

    fn arrow(&mut self, at: usize, message: MessageNo, loss: Option<&str>) {
        let Some(mail) = self.mails.get(&message).copied() else { return };
        let step = self.scene.steps[at];
        let mut row = self.row(at);
        let (from, to) = (self.x(mail.from), self.x(mail.to));
        let (left, right) = (from.min(to) + 1, from.max(to));
        let dash = if mail.is_double { self.signs.double } else { self.signs.dash };
        let lines: Vec<_> = self.scene.story.processes.iter().map(|process| self.x(*process)).collect();
        for (x, sign) in row.iter_mut().enumerate().take(right).skip(left) {
            *sign = if lines.contains(&x) { self.signs.over } else { dash };
        }
        let head = match (loss, from < to) {
            (Some(_), _) => self.signs.lost,
            (None, true) => self.signs.right,
            (None, false) => self.signs.left,
        };
        row[if from < to { right - 1 } else { left }] = head;
        let words = self.scene.story.words(step);
        let name = self.scene.story.names.message(mail.kind);
        let told = match loss {
            Some(why) => [format!("{name} {why}"), name.to_owned(), why.to_owned()],
            None => [words.to_owned(), short(words), name.to_owned()],
        };
        let room = |words: &&String| words.chars().count() + 3 < right - left;
        let told = told.iter().find(room).cloned().unwrap_or_default();
        // Beside the end that is told: next to the receiver, where arrows of one sender are apart.
        let start = match from < to {
            true => right - 2 - told.chars().count(),
            false => left + 2,
        };
        put(&mut row, start, &told);
        self.say(&row.into_iter().collect::<String>());
    }

    fn parting(&mut self, at: usize) {
        let partings = &self.scene.partings;
        if let Some(parting) = partings.iter().find(|parting| parting.from == at) {
            let words = format!("links cut: {}", parting.words(&self.scene.story.processes));
            self.across(at, &words, self.signs.cut);
        } else if partings.iter().any(|parting| parting.until == Some(at)) {
            self.across(at, "links mended", self.signs.cut);
        }
    }

    fn across(&mut self, at: usize, words: &str, fill: char) {
        let mut row = self.row(at);
        let end = row.len();
        row[GUTTER..end].fill(fill);
        for (line, words) in wrapped(words, end - GUTTER - 6).iter().enumerate() {
            let mut row = if line == 0 { row.clone() } else { vec![' '; end] };
            put(&mut row, GUTTER + 3, &format!(" {words} "));
            self.say(&row.into_iter().collect::<String>());
        }
    }

    fn key(&mut self) {
        let under_way = self.scene.messages.iter().filter(|mail| mail.end == End::UnderWay).count();
        if under_way > 0 {
            self.say(&format!("\n{under_way} messages are still under way."));
        }
        let signs = self.signs;
        let sorts: BTreeSet<_> = self.scene.stretches.iter().map(|stretch| stretch.sort).collect();
        let sign = |sort: &Sort| match sort {
            Sort::Inside => Some(signs.inside),
            Sort::Leads => Some(signs.leads),
            Sort::Waits => Some(signs.waits),
            Sort::Paused => Some(signs.paused),
            Sort::Down => None,
        };
        let mut words: Vec<_> =
            sorts.iter().filter_map(|sort| Some(format!("{} {}", sign(sort)?, sort.words()))).collect();
        if self.scene.messages.iter().any(|mail| mail.is_double) {
            words.push(format!("{0}{0} doubled", signs.double));
        }
        if self.scene.lost() > 0 {
            words.push(format!("{} lost", signs.lost));
        }
        if !self.scene.partings.is_empty() {
            words.push(format!("{} links cut", signs.cut));
        }
        self.say("");
        self.say(&words.join("   "));
    }
}

/// Writes words over a row, as far as it goes.
fn put(row: &mut [char], start: usize, words: &str) {
    for (place, letter) in row.iter_mut().skip(start).zip(words.chars()) {
        *place = letter;
    }
}

/// The first two words: mostly a name and a request.
fn short(words: &str) -> String {
    words.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

fn said(scene: &Scene<'_>, at: usize) -> Option<String> {
    let step = scene.steps[at];
    let words = scene.story.words(step).to_owned();
    Some(match step.what {
        What::Started { record } if step.at_peer.incarnation.0 > 1 => {
            format!("{} starts {}", step.at_peer, if record { "with its record" } else { "anew" })
        }
        What::Crashed => "CRASH".to_owned(),
        What::Paused => "pause".to_owned(),
        What::Resumed => "goes on".to_owned(),
        What::ClockRate(ppm) => format!("clock {ppm:+} ppm"),
        What::ClockJumped(us) => format!("clock jumps by {}", Clock(us)),
        What::Called { .. } => format!("({words})"),
        What::TimerFired { .. } => format!("timer {words}"),
        What::Emitted { kind } if scene.story.names.event(kind) == "requested" => return None,
        What::Emitted { .. } => words,
        What::Ignored { .. } => format!("ignored: {words}"),
        What::Persist(id) => format!("write {}", id.0),
        What::Persisted(id) => format!("written {}", id.0),
        What::Suspected(of) => format!("suspects {of}"),
        What::Trusted(process, incarnation) => format!("trusts {}", Peer { process, incarnation }),
        What::View(count) => format!("view of {count}"),
        _ => return None,
    })
}

/// Breaks words into lines of at most so many letters; a longer word is broken too.
fn wrapped(words: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for part in letters.chunks(width.max(1)) {
            let part: String = part.iter().collect();
            match lines.last_mut() {
                Some(line) if line.chars().count() + 1 + part.chars().count() <= width => {
                    line.push(' ');
                    line.push_str(&part);
                }
                _ => lines.push(part),
            }
        }
    }
    lines
}
