//! Below the run: the labels that became numbers, and what the signs mean.

use super::words::description;
use super::{LINE, Plan};
use crate::diagram::svg::{Anchor, Layer, Point, at, text_width};

/// What the key explains, if it occurs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Message,
    Double,
    Lost,
    UnderWay,
    Inside,
    Leads,
    Waits,
    Paused,
    Down,
    Parting,
    Starts,
    Called,
    Timer,
    Disk,
}

impl Plan<'_> {
    pub(super) fn legend(mut self) -> String {
        let mut y = self.bottom() + 16.0;
        for (process, x) in &self.columns {
            self.canvas.text(at(*x, y), Anchor::Middle, "name", &process.to_string());
        }
        y = self.listed(y + 30.0);
        y = self.key(y + 4.0);
        let mut notes =
            vec!["Colours: whose request. Long silences are shortened; the times are at the left."];
        if self.labels.unplaced > 0 {
            notes.push("Some arrows are too close for a label: point at them.");
        }
        for note in notes {
            self.canvas.text(at(24.0, y), Anchor::Start, "small faint", note);
            y += LINE;
        }
        let description = description(self.scene);
        self.canvas.finish(at(self.width, y + 8.0), &self.scene.story.title, &description)
    }

    /// The labels that had room for a number only.
    fn listed(&mut self, mut y: f64) -> f64 {
        let listed = std::mem::take(&mut self.labels.listed);
        let mut x = 24.0;
        for (at_list, words) in listed.iter().enumerate() {
            let words = format!("{}  {words}", at_list + 1);
            let width = text_width(&words) + 22.0;
            if x + width > self.width - 20.0 && x > 24.0 {
                (x, y) = (24.0, y + LINE);
            }
            self.canvas.text(at(x, y), Anchor::Start, "", &words);
            x += width;
        }
        if listed.is_empty() { y } else { y + LINE }
    }

    fn key(&mut self, mut y: f64) -> f64 {
        let mut x = 24.0;
        for key in self.keys.clone() {
            let words = key_words(key);
            let width = text_width(words) + 50.0;
            if x + width > self.width - 20.0 {
                (x, y) = (24.0, y + LINE);
            }
            self.key_sign(key, at(x, y - 4.0));
            self.canvas.text(at(x + 30.0, y), Anchor::Start, "faint", words);
            x += width;
        }
        y + LINE
    }

    fn key_sign(&mut self, key: Key, place: Point) {
        let (left, right) = (place, at(place.x + 24.0, place.y));
        let bar = (at(place.x, place.y - 4.0), at(24.0, 8.0));
        match key {
            Key::Message => {
                self.canvas.line(Layer::Arrow, left, right, "arrow ink", "");
                self.canvas.head(left, right, "full");
            }
            Key::Double => {
                self.canvas.line(Layer::Arrow, left, right, "arrow ink double", "");
                self.canvas.head(left, right, "full");
            }
            Key::Lost => {
                self.canvas.line(Layer::Arrow, left, at(right.x - 4.0, right.y), "arrow ink", "");
                self.canvas.cross(at(right.x - 4.0, right.y), 4.0, "alarm cross", "");
            }
            Key::UnderWay => self.canvas.line(Layer::Arrow, left, right, "arrow ink under", ""),
            Key::Inside => self.canvas.rect(Layer::Bar, bar.0, bar.1, "f7", ""),
            Key::Leads => self.canvas.rect(Layer::Bar, bar.0, bar.1, "open s7 cross", ""),
            Key::Waits => self.canvas.line(Layer::Bar, left, right, "wait s7", ""),
            Key::Paused => self.canvas.rect(Layer::Bar, bar.0, bar.1, "hatched", ""),
            Key::Down => self.canvas.line(Layer::Line, left, right, "ink life down", ""),
            Key::Parting => self.canvas.rect(Layer::Shade, bar.0, bar.1, "shade", ""),
            Key::Starts => {
                self.canvas.circle(Layer::Mark, at(place.x + 12.0, place.y), 4.0, "open ink", "");
            }
            Key::Called => self.canvas.circle(Layer::Mark, at(place.x + 12.0, place.y), 3.0, "full", ""),
            Key::Timer => {
                let middle = at(place.x + 5.0, place.y);
                self.canvas.line(Layer::Mark, middle, at(middle.x + 14.0, place.y), "ink cross", "");
            }
            Key::Disk => {
                let corner = at(place.x + 4.0, place.y - 3.0);
                self.canvas.rect(Layer::Mark, corner, at(6.0, 6.0), "open ink", "");
                self.canvas.rect(Layer::Mark, at(corner.x + 10.0, corner.y), at(6.0, 6.0), "full", "");
            }
        }
    }
}

fn key_words(key: Key) -> &'static str {
    match key {
        Key::Message => "message",
        Key::Double => "doubled",
        Key::Lost => "lost",
        Key::UnderWay => "still under way",
        Key::Inside => "inside",
        Key::Leads => "leads",
        Key::Waits => "waits to enter",
        Key::Paused => "paused",
        Key::Down => "down",
        Key::Parting => "links cut",
        Key::Starts => "starts",
        Key::Called => "call",
        Key::Timer => "timer",
        Key::Disk => "record: to the disk, durable",
    }
}
