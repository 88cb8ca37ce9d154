//! What everybody was told last, and how it is shown: a row of places below what happened.

use super::super::exit::Failure;
use super::super::output::{self, Tone, paint};
use super::stage::Heard;
use super::worker::Said;
use serde_json::{Value, json};
use std::io::{IsTerminal, Write};
use std::time::Duration;
use tokio::time::Instant;

/// How many workers there are.
pub(super) const WORKERS: usize = 5;

/// The width of a place in a row: `P2 -1 cut off` and a gap.
const CELL: usize = 14;

/// The width of the time before each row.
const TIME: usize = 9;

/// Where a worker stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Place {
    /// It has not joined yet.
    #[default]
    Absent,
    /// It stands by at this ordinal.
    Standby(i64),
    /// It acts at this ordinal.
    Active { ordinal: i64, token: u64 },
    /// It is cut off, and knows it.
    CutOff,
    /// It is dead.
    Killed,
    /// It is stopped, and knows nothing.
    Paused,
}

impl Place {
    fn text(self) -> String {
        match self {
            Self::Absent => "".into(),
            Self::Standby(ordinal) => ordinal.to_string(),
            Self::Active { ordinal, .. } => format!("{ordinal} active"),
            Self::CutOff => "-1 cut off".into(),
            Self::Killed => "killed".into(),
            Self::Paused => "paused".into(),
        }
    }

    fn tone(self) -> Tone {
        match self {
            Self::Active { .. } => Tone::Good,
            Self::CutOff | Self::Killed | Self::Paused => Tone::Warn,
            Self::Absent | Self::Standby(_) => Tone::Faint,
        }
    }

    fn json(self) -> Value {
        match self {
            Self::Absent => Value::Null,
            Self::Standby(ordinal) => json!({"ordinal": ordinal, "role": "standby"}),
            Self::Active { ordinal, token } => {
                json!({"ordinal": ordinal, "role": "active", "token": token.to_string()})
            }
            Self::CutOff => json!({"ordinal": -1, "role": "disconnected"}),
            Self::Killed => json!({"role": "killed"}),
            Self::Paused => json!({"role": "paused"}),
        }
    }
}

/// Everybody's place, and the time.
pub(super) struct Board {
    start: Instant,
    places: [Place; WORKERS],
    json: bool,
    live: bool,
}

impl Board {
    pub(super) fn new(json: bool) -> Self {
        let live = !json && std::io::stdout().is_terminal();
        Self { start: Instant::now(), places: Default::default(), json, live }
    }

    /// Where worker `who` stands.
    pub(super) fn place(&self, who: usize) -> Place {
        self.places[who - 1]
    }

    /// Sets where worker `who` stands.
    pub(super) fn at(&mut self, who: usize, place: Place) {
        self.places[who - 1] = place;
    }

    /// Whether `who` acts, and under which token.
    pub(super) fn acts(&self, who: usize) -> Option<u64> {
        match self.place(who) {
            Place::Active { token, .. } => Some(token),
            _ => None,
        }
    }

    /// Whether the ordinals are these, where one is given.
    pub(super) fn are(&self, ordinals: [Option<i64>; WORKERS]) -> bool {
        self.places.iter().zip(ordinals).all(|(place, ordinal)| match (place, ordinal) {
            (_, None) => true,
            (Place::Standby(now) | Place::Active { ordinal: now, .. }, Some(ordinal)) => *now == ordinal,
            (_, Some(_)) => false,
        })
    }

    /// Takes over what a worker was told.
    pub(super) fn hear(&mut self, heard: &Heard) -> Result<(), Failure> {
        match &heard.said {
            Said::Told { ordinal: Some(-1), .. } => self.at(heard.who, Place::CutOff),
            Said::Told { ordinal: Some(ordinal), token: Some(token), .. } => {
                self.at(heard.who, Place::Active { ordinal: *ordinal, token: *token });
            }
            Said::Told { ordinal: Some(ordinal), token: None, .. } => {
                self.at(heard.who, Place::Standby(*ordinal));
            }
            Said::Trouble { why } => return Err(Failure::failed(format!("P{}: {why}", heard.who))),
            Said::Told { ordinal: None, .. }
            | Said::Works { .. }
            | Said::Wrote { .. }
            | Said::Refused { .. } => {}
        }
        Ok(())
    }

    /// Says what happened, with everybody's place below.
    pub(super) fn row(&self, sentence: &str) -> Result<(), Failure> {
        if self.json {
            let places: serde_json::Map<_, _> =
                (1..=WORKERS).map(|who| (format!("p{who}"), self.place(who).json())).collect();
            return output::json(&json!({"at_ms": self.ms(), "happened": sentence, "places": places}));
        }
        let time = format!("{:>5.1} s", self.start.elapsed().as_secs_f64());
        let cells: String = (1..=WORKERS).map(|who| cell(who, self.place(who))).collect();
        output::line(format!("{time:<TIME$}{}", paint(Tone::Strong, &folded(sentence))))?;
        output::line(format!("{:TIME$}{}", "", cells.trim_end()))?;
        output::line("")
    }

    /// Says something beside the row.
    pub(super) fn aside(&self, who: &str, sentence: &str) -> Result<(), Failure> {
        if self.json {
            return output::json(&json!({"at_ms": self.ms(), who: sentence}));
        }
        let text = folded(&format!("{who}: {sentence}"));
        output::line(format!("{:TIME$}{}\n", "", paint(Tone::Faint, &text)))
    }

    /// The last word.
    pub(super) fn closing(&self, sentence: &str) -> Result<(), Failure> {
        match self.json {
            true => Ok(()),
            false => output::line(output::fold(sentence, output::columns(), "")),
        }
    }

    /// Whether it is told to a program.
    pub(super) fn is_json(&self) -> bool {
        self.json
    }

    /// Shows on a terminal what is waited for.
    pub(super) fn waits(&self, what: &str, since: Duration) {
        if self.live {
            let text = paint(Tone::Faint, &format!("... {what}: {:.1} s", since.as_secs_f64()));
            let _ = write!(std::io::stdout(), "\r\x1b[K{:TIME$}{text}", "");
            let _ = std::io::stdout().flush();
        }
    }

    /// Takes that away again.
    pub(super) fn waited(&self) {
        if self.live {
            let _ = write!(std::io::stdout(), "\r\x1b[K");
        }
    }

    fn ms(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

fn cell(who: usize, place: Place) -> String {
    let text = format!("P{who} {}", place.text());
    let padding = " ".repeat(CELL.saturating_sub(text.chars().count()));
    format!("{}{padding}", paint(place.tone(), &text))
}

/// Prose beside the time.
fn folded(text: &str) -> String {
    output::fold(text, output::columns() - TIME, "").replace('\n', &format!("\n{:TIME$}", ""))
}
