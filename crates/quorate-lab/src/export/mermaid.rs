//! A Mermaid sequence diagram: for documents, issues and small counter-examples. Time is an order only, and
//! an arrow stands where its message was received.

use super::sentence;
use crate::story::scene::{End, Scene, Sort};
use crate::story::{NOBODY, Story, loss_words};
use quorate_core::trace::{MessageNo, What};
use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;

/// More arrows are not readable, and a page with them is slow.
pub const MESSAGES_MAX: usize = 150;
/// What Mermaid takes by default (`maxTextSize`).
const LETTERS_MAX: usize = 50_000;

/// Why there is no diagram. Cut a part of the run ([`Story::slice`]) and try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MermaidError {
    /// The run has too many messages.
    TooManyMessages {
        /// How many.
        messages: usize,
    },
    /// The text is longer than Mermaid takes.
    TooLong {
        /// How long, in letters.
        letters: usize,
    },
}

impl fmt::Display for MermaidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyMessages { messages } => {
                write!(f, "this run has {messages} messages, a sequence diagram at most {MESSAGES_MAX}")?;
            }
            Self::TooLong { letters } => {
                write!(f, "the diagram has {letters} letters, Mermaid takes {LETTERS_MAX}")?;
            }
        }
        write!(f, "; cut a part first: a window of time, some processes, or the past of one request")
    }
}

impl std::error::Error for MermaidError {}

/// Writes a story.
///
/// # Errors
/// [`MermaidError`] if it is too long.
pub fn mermaid(story: &Story) -> Result<String, MermaidError> {
    let scene = Scene::of(story);
    if scene.messages.len() > MESSAGES_MAX {
        return Err(MermaidError::TooManyMessages { messages: scene.messages.len() });
    }
    let mut diagram = Diagram { scene: &scene, out: String::new(), is_cut: false, by_no: BTreeMap::new() };
    diagram.by_no = scene.messages.iter().enumerate().map(|(at, mail)| (mail.no, at)).collect();
    diagram.draw();
    match diagram.out.chars().count() {
        letters if letters > LETTERS_MAX => Err(MermaidError::TooLong { letters }),
        _ => Ok(diagram.out),
    }
}

struct Diagram<'a> {
    scene: &'a Scene<'a>,
    out: String,
    /// A box is open.
    is_cut: bool,
    by_no: BTreeMap<MessageNo, usize>,
}

impl Diagram<'_> {
    fn draw(&mut self) {
        self.out.push_str("---\ntitle: ");
        let title = serde_json::Value::from(self.scene.story.title.as_str());
        let _ = writeln!(self.out, "{title}\n---\nsequenceDiagram");
        for process in &self.scene.story.processes {
            let _ = writeln!(self.out, "    participant {process}");
        }
        for at in 0..self.scene.steps.len() {
            self.bars_that_end(at);
            self.step(at);
            self.bars_that_begin(at);
        }
        for stretch in &self.scene.stretches {
            if stretch.until.is_none() && is_bar(stretch.sort) {
                let _ = writeln!(self.out, "    deactivate {}", stretch.process);
            }
        }
        if self.is_cut {
            self.out.push_str("    end\n");
        }
    }

    fn bars_that_end(&mut self, at: usize) {
        for stretch in self.scene.stretches.iter().filter(|s| s.until == Some(at) && is_bar(s.sort)) {
            let _ = writeln!(self.out, "    deactivate {}", stretch.process);
        }
    }

    fn bars_that_begin(&mut self, at: usize) {
        for stretch in self.scene.stretches.iter().filter(|s| s.from == at && is_bar(s.sort)) {
            let _ = writeln!(self.out, "    activate {}", stretch.process);
        }
    }

    fn step(&mut self, at: usize) {
        let step = self.scene.steps[at];
        let story = self.scene.story;
        match step.what {
            What::Received { message, .. } => {
                let mail = self.by_no.get(&message).map(|place| &self.scene.messages[*place]);
                let line = if mail.is_some_and(|mail| mail.is_double) { "-->>" } else { "->>" };
                if let Some(mail) = mail {
                    self.arrow(&format!("{}{line}{}", mail.from, mail.to), story.words(step));
                }
            }
            What::Dropped { to, why, .. } => {
                let words = format!("{} ({})", story.words(step), loss_words(why));
                self.arrow(&format!("{}-x{to}", step.at_peer.process), &words);
            }
            What::Cut(_) | What::Mended(_) => self.parting(at),
            What::Called { .. }
            | What::Crashed
            | What::Paused
            | What::Resumed
            | What::ClockJumped(_)
            | What::ClockRate(_)
            | What::TimerFired { .. }
            | What::Suspected(_)
            | What::Trusted(..)
            | What::View(_)
            | What::Violated => self.note(at),
            What::Started { .. } if step.at_peer.incarnation.0 > 1 => self.note(at),
            What::Emitted { kind } if story.names.event(kind) != "requested" => self.note(at),
            _ => {}
        }
        let is_sent = |mail: &&crate::story::scene::Mail| mail.sent == Some(at) && mail.end == End::UnderWay;
        if let Some(mail) = self.scene.messages.iter().find(is_sent) {
            let words = format!("{} to {} is still under way", story.words(step), mail.to);
            let _ = writeln!(self.out, "    Note over {}: {}", mail.from, safe(&words));
        }
    }

    fn arrow(&mut self, arrow: &str, words: &str) {
        let _ = writeln!(self.out, "    {arrow}: {}", safe(words));
    }

    fn note(&mut self, at: usize) {
        let step = self.scene.steps[at];
        let words = match step.what {
            What::Emitted { .. } => self.scene.story.words(step).to_owned(),
            _ => sentence(self.scene.story, step),
        };
        let over = match step.at_peer.process {
            NOBODY => self.all(),
            process => process.to_string(),
        };
        let _ = writeln!(self.out, "    Note over {over}: {}", safe(&words));
    }

    fn all(&self) -> String {
        let processes = &self.scene.story.processes;
        match (processes.first(), processes.last()) {
            (Some(first), Some(last)) if first != last => format!("{first},{last}"),
            (Some(only), _) => only.to_string(),
            _ => "nobody".to_owned(),
        }
    }

    /// A box lies over all that happens while some link is cut; its notes say which.
    fn parting(&mut self, at: usize) {
        let processes = &self.scene.story.processes;
        let all = self.all();
        let begins = self.scene.partings.iter().find(|parting| parting.from == at);
        let ends = self.scene.partings.iter().any(|parting| parting.until == Some(at));
        if let Some(parting) = begins {
            if !self.is_cut {
                self.out.push_str("    rect rgba(255, 190, 60, 0.18)\n");
                self.is_cut = true;
            }
            let words = format!("links cut: {}", parting.words(processes));
            let _ = writeln!(self.out, "    Note over {all}: {}", safe(&words));
        } else if ends && self.is_cut {
            self.out.push_str("    end\n");
            self.is_cut = false;
        }
    }
}

fn is_bar(sort: Sort) -> bool {
    matches!(sort, Sort::Inside | Sort::Leads)
}

/// Signs that Mermaid would read as its own, as its codes.
fn safe(words: &str) -> String {
    let mut safe = String::with_capacity(words.len());
    for letter in words.chars() {
        match letter {
            '#' => safe.push_str("#35;"),
            ';' => safe.push_str("#59;"),
            '<' => safe.push_str("#lt;"),
            '>' => safe.push_str("#gt;"),
            '\n' | '\r' => safe.push(' '),
            letter => safe.push(letter),
        }
    }
    safe
}
