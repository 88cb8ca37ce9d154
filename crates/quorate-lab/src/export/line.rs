//! One step as one line of JSON, and back.

use crate::story::{NOBODY, Names, Story};
use quorate_core::protocol::{Ignored, Incarnation, Peer, PersistId, ProcessId, Request};
use quorate_core::time::Mono;
use quorate_core::trace::{Loss, MessageNo, Step, What};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The line. Numbers that may pass 2^53 are decimal strings, units are in the names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Line {
    /// The process, as `n1`.
    pub(super) n: String,
    /// Its life.
    #[serde(default = "first_life")]
    pub(super) inc: String,
    /// Counts the lines of this process, from 1: a hole is a lost line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) k: Option<u64>,
    /// When, in microseconds.
    pub(super) t_us: u64,
    /// What happened.
    pub(super) e: String,
    /// The message.
    #[serde(skip_serializing_if = "Option::is_none")]
    m: Option<String>,
    /// The number of its double.
    #[serde(skip_serializing_if = "Option::is_none")]
    double: Option<String>,
    /// The sort of call, message, timer or event.
    #[serde(skip_serializing_if = "Option::is_none")]
    ty: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    /// The process that is suspected or trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// The request that it is about, as `n1.3`.
    #[serde(skip_serializing_if = "Option::is_none")]
    op: Option<String>,
    /// A record: its number, or at a start whether there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_ppm: Option<i32>,
    /// How far a clock jumped, or how long a timer will run.
    #[serde(skip_serializing_if = "Option::is_none")]
    span_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<u32>,
    /// What people read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<String>,
}

fn first_life() -> String {
    "1".to_owned()
}

impl Line {
    /// The line of a step.
    pub(super) fn of(story: &Story, step: &Step, k: u64) -> Self {
        let words = story.trace.words(step);
        let mut line = Self {
            n: step.at_peer.process.to_string(),
            inc: step.at_peer.incarnation.0.to_string(),
            k: Some(k),
            t_us: step.at.0,
            e: name(&step.what).to_owned(),
            op: step.about.map(|about| about.to_string()),
            text: (!words.is_empty()).then(|| words.to_owned()),
            ..Self::default()
        };
        line.fill(&story.names, &step.what);
        line
    }

    fn fill(&mut self, names: &Names, what: &What) {
        let no = |message: &MessageNo| Some(message.0.to_string());
        match what {
            What::Started { record } => self.record = Some(u32::from(*record)),
            What::ClockRate(ppm) => self.rate_ppm = Some(*ppm),
            What::ClockJumped(us) => self.span_us = Some(*us),
            What::Called { kind } => self.ty = Some(names.call(*kind).to_owned()),
            What::Sent { message, kind, to } => {
                (self.m, self.ty) = (no(message), Some(names.message(*kind).to_owned()));
                self.to = Some(to.to_string());
            }
            What::Received { message, kind, from } => {
                (self.m, self.ty) = (no(message), Some(names.message(*kind).to_owned()));
                self.from = Some(from.to_string());
            }
            What::Dropped { message, kind, to, why } => {
                (self.m, self.ty) = (no(message), Some(names.message(*kind).to_owned()));
                (self.to, self.why) = (Some(to.to_string()), Some(loss_name(*why).to_owned()));
            }
            What::Doubled { message, double } => (self.m, self.double) = (no(message), no(double)),
            What::TimerSet { kind, drawn_us } => {
                (self.ty, self.span_us) = (Some(names.timer(*kind).to_owned()), Some(*drawn_us));
            }
            What::TimerCancelled { kind } | What::TimerFired { kind } => {
                self.ty = Some(names.timer(*kind).to_owned());
            }
            What::Persist(id) | What::Persisted(id) => self.record = Some(id.0),
            What::Emitted { kind } => self.ty = Some(names.event(*kind).to_owned()),
            What::Ignored { from, why } => {
                (self.from, self.why) = (Some(from.to_string()), Some(ignored_name(*why).to_owned()));
            }
            What::Suspected(of) => self.of = Some(of.to_string()),
            What::Trusted(process, incarnation) => {
                self.of = Some(Peer { process: *process, incarnation: *incarnation }.to_string());
            }
            What::View(count) => self.members = Some(*count),
            What::Cut(to) | What::Mended(to) => self.to = Some(to.to_string()),
            What::Crashed | What::Paused | What::Resumed | What::Violated => {}
        }
    }

    /// The step of a line, its words left to the caller.
    pub(super) fn step(&self, reader: &mut Reader) -> Result<Step, String> {
        let process = match self.e.as_str() {
            "violated" if self.n == NOBODY.to_string() => NOBODY,
            _ => process(&self.n)?,
        };
        let life = self.inc.parse().map_err(|_| format!("\"inc\" is not a number: {}", self.inc))?;
        Ok(Step {
            at: Mono(self.t_us),
            at_peer: Peer { process, incarnation: Incarnation(life) },
            what: self.what(reader)?,
            about: self.op.as_deref().map(request).transpose()?,
            text: 0,
        })
    }

    fn what(&self, reader: &mut Reader) -> Result<What, String> {
        let names = &mut reader.names;
        Ok(match self.e.as_str() {
            "start" => What::Started { record: self.record == Some(1) },
            "crash" => What::Crashed,
            "pause" => What::Paused,
            "resume" => What::Resumed,
            "clock.rate" => What::ClockRate(has(self.rate_ppm, "rate_ppm")?),
            "clock.jump" => What::ClockJumped(has(self.span_us, "span_us")?),
            "invoke" => What::Called { kind: kind(&mut names.calls, self.ty()?)? },
            "arm" => {
                let drawn_us = has(self.span_us, "span_us")?;
                What::TimerSet { kind: kind(&mut names.timers, self.ty()?)?, drawn_us }
            }
            "disarm" => What::TimerCancelled { kind: kind(&mut names.timers, self.ty()?)? },
            "fire" => What::TimerFired { kind: kind(&mut names.timers, self.ty()?)? },
            "persist" => What::Persist(PersistId(has(self.record, "record")?)),
            "persisted" => What::Persisted(PersistId(has(self.record, "record")?)),
            "emit" => What::Emitted { kind: kind(&mut names.events, self.ty()?)? },
            "ignore" => {
                let why = ignored(has(self.why.as_deref(), "why")?)?;
                What::Ignored { from: peer(has(self.from.as_deref(), "from")?)?, why }
            }
            "suspect" => What::Suspected(process(has(self.of.as_deref(), "of")?)?),
            "trust" => {
                let of = peer(has(self.of.as_deref(), "of")?)?;
                What::Trusted(of.process, of.incarnation)
            }
            "view" => What::View(has(self.members, "members")?),
            "cut" => What::Cut(process(has(self.to.as_deref(), "to")?)?),
            "mend" => What::Mended(process(has(self.to.as_deref(), "to")?)?),
            "violated" => What::Violated,
            _ => return self.mail(reader),
        })
    }

    fn mail(&self, reader: &mut Reader) -> Result<What, String> {
        if !["send", "recv", "drop", "dup"].contains(&self.e.as_str()) {
            return Err(format!("\"e\" is no event that is known: {}", self.e));
        }
        let message = reader.message(has(self.m.as_deref(), "m")?);
        if self.e == "dup" {
            let double = reader.message(has(self.double.as_deref(), "double")?);
            return Ok(What::Doubled { message, double });
        }
        let kind = kind(&mut reader.names.messages, self.ty()?)?;
        Ok(match self.e.as_str() {
            "recv" => What::Received { message, kind, from: peer(has(self.from.as_deref(), "from")?)? },
            sent => {
                let to = process(has(self.to.as_deref(), "to")?)?;
                match sent {
                    "send" => What::Sent { message, kind, to },
                    _ => What::Dropped { message, kind, to, why: loss(has(self.why.as_deref(), "why")?)? },
                }
            }
        })
    }

    fn ty(&self) -> Result<&str, String> {
        has(self.ty.as_deref(), "ty")
    }
}

/// What is learnt while lines are read: names that no header told, and messages whose names are no numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Reader {
    pub(super) names: Names,
    messages: BTreeMap<String, MessageNo>,
}

impl Reader {
    /// A message by its name. A name that is no number, such as `n1.1.57`, gets one of the upper half.
    fn message(&mut self, name: &str) -> MessageNo {
        if let Ok(number) = name.parse() {
            return MessageNo(number);
        }
        let next = MessageNo((1 << 63) + self.messages.len() as u64);
        *self.messages.entry(name.to_owned()).or_insert(next)
    }
}

fn has<T>(value: Option<T>, name: &str) -> Result<T, String> {
    value.ok_or_else(|| format!("\"{name}\" is missing"))
}

/// The number of a name, which is added if it is new.
fn kind(names: &mut Vec<String>, name: &str) -> Result<u8, String> {
    let place = names.iter().position(|known| known == name).unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    });
    u8::try_from(place).map_err(|_| format!("there are more than 256 sorts, {name} is one too many"))
}

pub(super) fn process(text: &str) -> Result<ProcessId, String> {
    let number = text.strip_prefix('n').and_then(|number| number.parse().ok());
    number
        .filter(|number| *number > 0)
        .map(ProcessId)
        .ok_or_else(|| format!("{text} is no process, as n1 is"))
}

fn peer(text: &str) -> Result<Peer, String> {
    let (name, life) = text.split_once('#').unwrap_or((text, "1"));
    let life = life.parse().map_err(|_| format!("{text} is no life of a process, as n1#2 is"))?;
    Ok(Peer { process: process(name)?, incarnation: Incarnation(life) })
}

fn request(text: &str) -> Result<Request, String> {
    let wrong = || format!("{text} is no request, as n1.3 is");
    let (by, number) = text.rsplit_once('.').ok_or_else(wrong)?;
    Ok(Request { by: peer(by)?, number: number.parse().map_err(|_| wrong())? })
}

fn name(what: &What) -> &'static str {
    match what {
        What::Started { .. } => "start",
        What::Crashed => "crash",
        What::Paused => "pause",
        What::Resumed => "resume",
        What::ClockRate(_) => "clock.rate",
        What::ClockJumped(_) => "clock.jump",
        What::Called { .. } => "invoke",
        What::Sent { .. } => "send",
        What::Received { .. } => "recv",
        What::Dropped { .. } => "drop",
        What::Doubled { .. } => "dup",
        What::TimerSet { .. } => "arm",
        What::TimerCancelled { .. } => "disarm",
        What::TimerFired { .. } => "fire",
        What::Persist(_) => "persist",
        What::Persisted(_) => "persisted",
        What::Emitted { .. } => "emit",
        What::Ignored { .. } => "ignore",
        What::Suspected(_) => "suspect",
        What::Trusted(..) => "trust",
        What::View(_) => "view",
        What::Cut(_) => "cut",
        What::Mended(_) => "mend",
        What::Violated => "violated",
    }
}

const LOSSES: [(Loss, &str); 5] = [
    (Loss::Link, "link"),
    (Loss::Partition, "partition"),
    (Loss::Down, "down"),
    (Loss::FormerLife, "former_life"),
    (Loss::Unwritten, "unwritten"),
];

const IGNORED: [(Ignored, &str); 5] = [
    (Ignored::Late, "late"),
    (Ignored::Doubled, "doubled"),
    (Ignored::FormerLife, "former_life"),
    (Ignored::Stranger, "stranger"),
    (Ignored::Malformed, "malformed"),
];

fn loss_name(why: Loss) -> &'static str {
    LOSSES.iter().find(|(known, _)| *known == why).map_or("?", |(_, name)| name)
}

fn loss(name: &str) -> Result<Loss, String> {
    let found = LOSSES.iter().find(|(_, known)| *known == name);
    found.map(|(why, _)| *why).ok_or_else(|| format!("{name} is no reason of a loss"))
}

fn ignored_name(why: Ignored) -> &'static str {
    IGNORED.iter().find(|(known, _)| *known == why).map_or("?", |(_, name)| name)
}

fn ignored(name: &str) -> Result<Ignored, String> {
    let found = IGNORED.iter().find(|(_, known)| *known == name);
    found.map(|(why, _)| *why).ok_or_else(|| format!("{name} is no reason to ignore a message"))
}
