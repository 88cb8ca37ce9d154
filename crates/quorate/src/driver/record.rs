//! What a process writes down while it runs, and how that is run again without sockets, disk or clock.
//!
//! **Problem.** What happened among real processes must be looked at with the same eyes as a simulated run,
//! and a decision must be explained by running it again.
//!
//! **Rule.** Each input is written down with the readings that came with it and a digest of all that came of
//! it, before any of that leaves the process; so inputs alone give the same life again, or [`replay`] names
//! the first that does not.
//!
//! **Format.** One JSON object a line. First a [`Header`], then [`Line`]s: a [`Step`] of the one trace, its
//! words, and on inputs what is needed to run it again. A process that is killed may leave half a line.
//!
//! **When it fails.** Digests compare between programs of one build and one machine word, not for ever.

use super::Portable;
use quorate_core::id::ViewId;
use quorate_core::protocol::{
    Effect, Input, Kind, Members, Now, Outbox, Peer, PersistId, ProcessId, Protocol,
};
use quorate_core::time::{Mono, Wall};
pub(super) use quorate_core::trace::Step;
use quorate_core::trace::What;
use serde::{Deserialize, Serialize};
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::path::Path;

/// The number of the format.
pub const FORMAT: u32 = 1;

/// The first line of one life of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The number of the format.
    pub quorate_trace: u32,
    /// Where time comes from: `real`.
    pub mode: String,
    /// Whose life it is.
    pub peer: Peer,
    /// The numbers from which timers are drawn come from this.
    pub seed: u64,
    /// The names of calls, by their numbers.
    pub calls: Vec<String>,
    /// The names of messages.
    pub messages: Vec<String>,
    /// The names of timers.
    pub timers: Vec<String>,
    /// The names of events.
    pub events: Vec<String>,
}

impl Header {
    /// The header of a life of this protocol.
    pub fn of<P: Protocol>(peer: Peer, seed: u64) -> Self {
        let names = |kinds: &[&str]| kinds.iter().map(ToString::to_string).collect();
        Self {
            quorate_trace: FORMAT,
            mode: "real".into(),
            peer,
            seed,
            calls: names(P::Call::KINDS),
            messages: names(P::Message::KINDS),
            timers: names(P::Timer::KINDS),
            events: names(P::Event::KINDS),
        }
    }
}

/// One step of a life. Message numbers are the sender's own: (sender, number) is unique in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// What happened. Its time is `CLOCK_BOOTTIME` in microseconds; `text` is 0.
    pub step: Step,
    /// In words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub words: String,
    /// On inputs: what came in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Entry>,
    /// On a message that its receiver dropped: who had sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Peer>,
}

impl Line {
    /// A step without words.
    pub fn of(step: Step) -> Self {
        Self { step, words: String::new(), input: None, from: None }
    }
}

/// An input as it is written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The process's monotonic clock, in microseconds.
    pub mono_us: u64,
    /// Its wall clock in milliseconds since 1970.
    pub wall_ms: Option<u64>,
    /// The input itself.
    pub given: serde_json::Value,
    /// Stands for the state and all effects so far in this life, after this input, in hexadecimal digits.
    pub digest: String,
}

/// An input in a form that can be written down.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", bound = "P: Portable")]
enum Given<P: Portable> {
    Start { me: Peer, record: Option<P::Record> },
    Call(String),
    Message { from: Peer, message: P::Message },
    Timer(P::Timer),
    Persisted(PersistId),
    Suspect(ProcessId),
    Trust(Peer),
    View { id: ViewId, members: Vec<ProcessId> },
}

impl<P: Portable> Given<P> {
    fn of(input: &Input<P>) -> Self {
        match input.clone() {
            Input::Start { me, record } => Self::Start { me, record },
            Input::Call(call) => Self::Call(call.to_string()),
            Input::Message { from, message } => Self::Message { from, message },
            Input::Timer(timer) => Self::Timer(timer),
            Input::Persisted(id) => Self::Persisted(id),
            Input::Suspect(process) => Self::Suspect(process),
            Input::Trust(peer) => Self::Trust(peer),
            Input::View { id, members } => Self::View { id, members: members.iter().collect() },
        }
    }

    fn input(self) -> Result<Input<P>, String> {
        Ok(match self {
            Self::Start { me, record } => Input::Start { me, record },
            Self::Call(text) => Input::Call(text.parse().map_err(|_| format!("{text} is not a call"))?),
            Self::Message { from, message } => Input::Message { from, message },
            Self::Timer(timer) => Input::Timer(timer),
            Self::Persisted(id) => Input::Persisted(id),
            Self::Suspect(process) => Input::Suspect(process),
            Self::Trust(peer) => Input::Trust(peer),
            Self::View { id, members } => Input::View { id, members: Members::new(members) },
        })
    }
}

/// FNV-1a in 64 bits: short, and the same in every process of one build.
struct Digest(u64);

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Stands for a whole life so far: what came before, the state, and the effects of the last input.
pub(super) fn digest<P: Protocol>(before: u64, machine: &P, effects: &[Effect<P>]) -> u64 {
    let mut digest = Digest(0xcbf2_9ce4_8422_2325);
    before.hash(&mut digest);
    machine.hash(&mut digest);
    for effect in effects {
        match effect {
            Effect::Send { to, message, after } => (0_u8, to, message, after).hash(&mut digest),
            Effect::Persist { id, record } => (1_u8, id, record).hash(&mut digest),
            Effect::SetTimer { timer, within } => (2_u8, timer, within).hash(&mut digest),
            Effect::CancelTimer(timer) => (3_u8, timer).hash(&mut digest),
            Effect::Emit(event) => (4_u8, event).hash(&mut digest),
            Effect::Ignored { from, kind, why } => (5_u8, from, kind, why).hash(&mut digest),
        }
    }
    digest.finish()
}

/// Writes a life down. Lines are kept together until [`Recorder::write`] hands them to the system at once:
/// what it has then survives the death of the process, though not of the machine.
pub(super) struct Recorder {
    sink: Box<dyn Write + Send>,
    lines: Vec<u8>,
    last: Option<Line>,
}

impl Recorder {
    pub(super) fn new(sink: Box<dyn Write + Send>, header: &Header) -> Self {
        let mut recorder = Self { sink, lines: Vec::new(), last: None };
        recorder.push(header);
        recorder
    }

    fn push(&mut self, line: &impl Serialize) {
        // Numbers, names and lists of them: nothing in it can fail, and a vector takes all.
        serde_json::to_writer(&mut self.lines, line).expect("a line of a trace has a JSON form");
        self.lines.push(b'\n');
    }

    /// Notes a line. It is complete when the next comes.
    pub(super) fn note(&mut self, line: Line) {
        if let Some(before) = self.last.replace(line) {
            self.push(&before);
        }
    }

    /// The last line was an input, and this one.
    pub(super) fn complete(&mut self, entry: Entry) {
        if let Some(line) = &mut self.last {
            line.input = Some(entry);
        }
    }

    /// Hands all lines to the system.
    pub(super) fn write(&mut self) -> io::Result<()> {
        if let Some(line) = self.last.take() {
            self.push(&line);
        }
        self.sink.write_all(&self.lines)?;
        self.lines.clear();
        self.sink.flush()
    }
}

/// What is written down of an input.
pub(super) fn entry<P: Portable>(now: Now, input: &Input<P>) -> Entry {
    let given = serde_json::to_value(Given::of(input)).expect("an input has a JSON form");
    let wall_ms = now.wall.map(|wall| wall.0);
    Entry { mono_us: now.mono.0, wall_ms, given, digest: String::new() }
}

/// One life, read back.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Whose it is.
    pub header: Header,
    /// What happened, in order.
    pub lines: Vec<Line>,
}

impl Recording {
    /// Reads a life. Half a line at its end is what a killed process leaves, and is left out.
    ///
    /// # Errors
    /// Says which line is not one of this format.
    pub fn parse(text: &str) -> Result<Self, String> {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.lines();
        let first = lines.next().ok_or("it is empty")?;
        let header: Header = serde_json::from_str(first).map_err(|why| format!("line 1: {why}"))?;
        if header.quorate_trace != FORMAT {
            return Err(format!("it is of format {}, this program knows {FORMAT}", header.quorate_trace));
        }
        let line = |(at, text): (usize, &str)| {
            serde_json::from_str(text).map_err(|why| format!("line {}: {why}", at + 2))
        };
        Ok(Self { header, lines: lines.enumerate().map(line).collect::<Result<_, String>>()? })
    }

    /// Reads a life from a file.
    ///
    /// # Errors
    /// It cannot be read, or is not one.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|why| format!("{}: {why}", path.display()))?;
        Self::parse(&text).map_err(|why| format!("{}: {why}", path.display()))
    }
}

/// What a life was when it was run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// How many inputs it took.
    pub inputs: u64,
    /// The digest after the last.
    pub digest: u64,
}

/// Runs a recorded life again in the pure core, from the protocol as it was before its start.
///
/// # Errors
/// Names the first input after which the state or an effect is another one than was written down.
pub fn replay<P: Portable>(mut machine: P, recording: &Recording) -> Result<Replayed, String> {
    let (mut out, mut persists, mut done) = (Outbox::default(), 0, Replayed { inputs: 0, digest: 0 });
    for line in &recording.lines {
        let Some(entry) = &line.input else { continue };
        done.inputs += 1;
        let wrong = |why: String| format!("input {} ({}): {why}", done.inputs, line.words);
        let given = Given::<P>::deserialize(&entry.given).map_err(|why| wrong(why.to_string()))?;
        let now = Now { mono: Mono(entry.mono_us), wall: entry.wall_ms.map(Wall) };
        out.begin(persists);
        machine.handle(now, given.input().map_err(wrong)?, &mut out);
        let effects = out.effects();
        persists += effects.iter().filter(|effect| matches!(effect, Effect::Persist { .. })).count() as u32;
        done.digest = digest(done.digest, &machine, effects);
        let again = format!("{:016x}", done.digest);
        if again != entry.digest {
            return Err(wrong(format!("it was {} and is {again}", entry.digest)));
        }
    }
    Ok(done)
}

/// A step that is about no request.
pub(super) fn step(at: Mono, at_peer: Peer, what: What) -> Step {
    Step { at, at_peer, what, about: None, text: 0 }
}
