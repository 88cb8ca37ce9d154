//! The shape of a peer protocol: one way in, one way out, and the reason why nothing happens.
//!
//! **Problem.** The same rules must run on sockets, in a simulated world and under complete search, or what
//! was checked is not what runs.
//!
//! **Rule.** A protocol is a plain value that takes one [`Input`] at a time and answers with effects in an
//! [`Outbox`]; it reads no clock, draws no number and does nothing by itself.
//!
//! Drivers obey four rules:
//! 1. Effects happen in their order. A crash may fall between any two of them.
//! 2. A send that names a persist leaves only when that record is durable; records become durable in order.
//! 3. Setting a timer replaces the one of the same name. The driver draws the instant from the range, and
//!    logs what it drew.
//! 4. Mail that names a life of its receiver is dropped if that life is over.
//!
//! A late, doubled or malformed message is told by [`Outbox::ignore`] and counted; it is never an error. A
//! broken invariant asserts.
//!
//! Source: Ongaro 2014 (persist before you answer); Lynch 1996, section 8 (input and output actions).

use crate::id::ViewId;
use crate::time::{Mono, Span, Wall};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{self, Debug, Display};
use core::hash::Hash;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// A process of a peer group, numbered from 1. Shown as `n1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ProcessId(pub u32);

impl ProcessId {
    /// Its place in a list of all processes, from 0.
    pub const fn index(self) -> usize {
        self.0 as usize - 1
    }

    /// The process at a place of that list.
    pub const fn at(index: usize) -> Self {
        Self(index as u32 + 1)
    }
}

impl Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

impl FromStr for ProcessId {
    type Err = core::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.strip_prefix('n').unwrap_or(text).parse().map(Self)
    }
}

/// One life of a process: issued or drawn at random at each start, compared for equality only (RULES R43).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

/// A process in one of its lives. Shown as `n1` in the first, `n1#2` in life 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Peer {
    /// The process.
    pub process: ProcessId,
    /// Which of its lives.
    pub incarnation: Incarnation,
}

impl Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.incarnation.0 {
            1 => write!(f, "{}", self.process),
            life => write!(f, "{}#{life}", self.process),
        }
    }
}

/// What one process asks of the others, unique for ever: numbers grow within a life. Shown as `n1.3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Request {
    /// Who asks.
    pub by: Peer,
    /// Which of its requests in this life, from 1.
    pub number: u64,
}

impl Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.by, self.number)
    }
}

/// The processes of a group in order, oneself among them. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Members(Arc<[ProcessId]>);

impl Members {
    /// The processes 1 to `n`.
    pub fn first(n: usize) -> Self {
        Self((0..n).map(ProcessId::at).collect())
    }

    /// These processes, in order and each once.
    pub fn new(mut processes: Vec<ProcessId>) -> Self {
        processes.sort_unstable();
        processes.dedup();
        Self(processes.into())
    }

    /// All but `me`.
    pub fn others(&self, me: ProcessId) -> impl Iterator<Item = ProcessId> + Clone + '_ {
        self.0.iter().copied().filter(move |other| *other != me)
    }

    /// All, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = ProcessId> + ExactSizeIterator + Clone + '_ {
        self.0.iter().copied()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether it is one of them.
    pub fn contains(&self, process: ProcessId) -> bool {
        self.0.binary_search(&process).is_ok()
    }

    /// More than half of all.
    pub fn majority(&self) -> usize {
        self.0.len() / 2 + 1
    }

    /// The one before in a ring, the last before the first.
    pub fn before(&self, process: ProcessId) -> ProcessId {
        self.iter().rev().find(|other| *other < process).unwrap_or(self.0[self.0.len() - 1])
    }

    /// The next one in a ring, the first after the last.
    pub fn after(&self, process: ProcessId) -> ProcessId {
        self.iter().find(|other| *other > process).unwrap_or(self.0[0])
    }
}

/// The readings that come with an input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Now {
    /// The process's own monotonic clock.
    pub mono: Mono,
    /// Its wall clock, if it has one: a label.
    pub wall: Option<Wall>,
}

/// A range from which the driver draws how long a timer runs, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Within {
    /// It does not fire earlier.
    pub least: Span,
    /// A driver that is on time fires it no later.
    pub most: Span,
}

impl Within {
    /// Exactly this long.
    pub const fn exactly(span: Span) -> Self {
        Self { least: span, most: span }
    }

    /// Between so many milliseconds.
    pub const fn millis(least: u64, most: u64) -> Self {
        Self { least: Span::from_millis(least), most: Span::from_millis(most) }
    }
}

/// The sort of a message, timer, call or event: a small number with a name, for counts and traces.
pub trait Kind: Clone + Eq + Ord + Hash + Debug + Display {
    /// The names, in the order of their numbers.
    const KINDS: &'static [&'static str];

    /// The number of this one's sort.
    fn kind(&self) -> u8;

    /// Which request it is about, so that its cost is counted for that request.
    fn about(&self) -> Option<Request> {
        None
    }

    /// The name of its sort.
    fn name(&self) -> &'static str {
        Self::KINDS[self.kind() as usize]
    }
}

/// Names without content, as a [`Kind`]: `kinds! { pub enum Call { Enter = "enter", Leave = "leave" } }`.
#[macro_export]
macro_rules! kinds {
    ($(#[$doc:meta])* $visible:vis enum $name:ident { $($(#[$each:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $visible enum $name { $($(#[$each])* $variant),+ }

        impl $crate::protocol::Kind for $name {
            const KINDS: &'static [&'static str] = &[$($word),+];
            fn kind(&self) -> u8 {
                *self as u8
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str($crate::protocol::Kind::name(self))
            }
        }

        impl ::core::str::FromStr for $name {
            type Err = ();
            fn from_str(text: &str) -> ::core::result::Result<Self, ()> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(()),
                }
            }
        }
    };
}

/// A rule that processes follow together. Build the value before its start, then hand it inputs.
pub trait Protocol: Clone + Eq + Hash + Debug {
    /// What the application asks. Text such as `enter` is how a script says it.
    type Call: Kind + FromStr;
    /// What processes send to one another.
    type Message: Kind;
    /// The names of its timers.
    type Timer: Kind + Copy;
    /// What it keeps on disk: a new record replaces the old one. `()` if nothing.
    type Record: Clone + Eq + Hash + Debug;
    /// What it tells the application.
    type Event: Kind;

    /// Takes one input and says what to do.
    fn handle(&mut self, now: Now, input: Input<Self>, out: &mut Outbox<Self>);

    /// Why nothing happens, right now: what this process waits for, and what it holds back from others.
    /// It is computed by the very functions that hold back.
    fn waits(&self) -> Vec<Wait>;

    /// The same state with other names for the processes, if the rules do not depend on names; the explorer
    /// then visits one of all the states that differ in names only. `map` takes each old name to its new one.
    fn renamed(&self, map: &dyn Fn(ProcessId) -> ProcessId) -> Option<Self> {
        let _ = map;
        None
    }

    /// A message with other names, as [`Protocol::renamed`].
    fn renamed_message(message: &Self::Message, map: &dyn Fn(ProcessId) -> ProcessId) -> Self::Message {
        let _ = map;
        message.clone()
    }
}

/// What comes in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input<P: Protocol> {
    /// The first input of a life.
    Start {
        /// Who this is, and in which life.
        me: Peer,
        /// The last durable record, none on an empty disk.
        record: Option<P::Record>,
    },
    /// The application asks.
    Call(P::Call),
    /// Mail. It may be late, doubled, or from an earlier life.
    Message {
        /// Who sent it, in which life.
        from: Peer,
        /// What it says.
        message: P::Message,
    },
    /// A timer that was set has ended.
    Timer(P::Timer),
    /// This record and all before it are durable.
    Persisted(PersistId),
    /// A detector believes that this process has stopped. It may be wrong.
    Suspect(ProcessId),
    /// A detector heard from this life of a process.
    Trust(Peer),
    /// The membership was decided elsewhere: nobody waits for those that are not in it.
    View {
        /// Which view.
        id: ViewId,
        /// Who is in it.
        members: Members,
    },
}

/// Names one record within a life, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PersistId(pub u32);

/// Whom a message is for: a process in whatever life, or in one life only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct To {
    /// The process.
    pub process: ProcessId,
    /// The only life that it concerns.
    pub incarnation: Option<Incarnation>,
}

impl From<ProcessId> for To {
    fn from(process: ProcessId) -> Self {
        Self { process, incarnation: None }
    }
}

impl From<Peer> for To {
    fn from(peer: Peer) -> Self {
        Self { process: peer.process, incarnation: Some(peer.incarnation) }
    }
}

/// Why a message was not used. It is counted, and nothing else comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Ignored {
    /// What it answers is over.
    Late,
    /// It was here before.
    Doubled,
    /// It comes from, or is meant for, a life that is over.
    FormerLife,
    /// Its sender is not a member.
    Stranger,
    /// It makes no sense from this sender.
    Malformed,
}

impl Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Late => "late",
            Self::Doubled => "doubled",
            Self::FormerLife => "of a former life",
            Self::Stranger => "of a stranger",
            Self::Malformed => "malformed",
        })
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<P: Protocol> {
    /// Send a message, once a record is durable if one is named.
    Send {
        /// To whom.
        to: To,
        /// What.
        message: P::Message,
        /// Not before this is durable.
        after: Option<PersistId>,
    },
    /// Write a record, and say [`Input::Persisted`] when it is durable.
    Persist {
        /// Its name.
        id: PersistId,
        /// What to write.
        record: P::Record,
    },
    /// Set a timer, in place of the one of this name.
    SetTimer {
        /// Its name.
        timer: P::Timer,
        /// How long it runs.
        within: Within,
    },
    /// Stop a timer, if it runs.
    CancelTimer(P::Timer),
    /// Tell the application.
    Emit(P::Event),
    /// Count a message that was of no use.
    Ignored {
        /// Whose.
        from: Peer,
        /// Its sort.
        kind: &'static str,
        /// Why.
        why: Ignored,
    },
}

/// Collects the effects of one input, in order.
#[derive(Clone, Debug)]
pub struct Outbox<P: Protocol> {
    effects: Vec<Effect<P>>,
    persists: u32,
}

impl<P: Protocol> Default for Outbox<P> {
    fn default() -> Self {
        Self { effects: Vec::new(), persists: 0 }
    }
}

impl<P: Protocol> Outbox<P> {
    /// Empties it for the next input of a process that has asked for so many records in this life.
    pub fn begin(&mut self, persists: u32) {
        self.effects.clear();
        self.persists = persists;
    }

    /// Sends at once.
    pub fn send(&mut self, to: impl Into<To>, message: P::Message) {
        self.effects.push(Effect::Send { to: to.into(), message, after: None });
    }

    /// Sends once the record is durable.
    pub fn send_after(&mut self, record: PersistId, to: impl Into<To>, message: P::Message) {
        self.effects.push(Effect::Send { to: to.into(), message, after: Some(record) });
    }

    /// Writes a record in place of the one before.
    pub fn persist(&mut self, record: P::Record) -> PersistId {
        self.persists += 1;
        let id = PersistId(self.persists);
        self.effects.push(Effect::Persist { id, record });
        id
    }

    /// Sets a timer, in place of the one of the same name.
    pub fn set_timer(&mut self, timer: P::Timer, within: Within) {
        self.effects.push(Effect::SetTimer { timer, within });
    }

    /// Stops a timer.
    pub fn cancel_timer(&mut self, timer: P::Timer) {
        self.effects.push(Effect::CancelTimer(timer));
    }

    /// Tells the application.
    pub fn emit(&mut self, event: P::Event) {
        self.effects.push(Effect::Emit(event));
    }

    /// Counts a message that was of no use.
    pub fn ignore(&mut self, from: Peer, message: &P::Message, why: Ignored) {
        self.effects.push(Effect::Ignored { from, kind: message.name(), why });
    }

    /// The effects so far, in order.
    pub fn effects(&self) -> &[Effect<P>] {
        &self.effects
    }

    /// Takes the effects out, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = Effect<P>> + '_ {
        self.effects.drain(..)
    }
}

pub use crate::wait::{Cause, Goal, Wait};
