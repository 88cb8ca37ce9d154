//! One simulated process: a protocol with its disk, its timers and its lives.
//!
//! Worlds and the explorer both run their processes through [`Node::step`], so that both mean the same by a
//! crash between two effects, by a record that is not yet durable, and by a send that waits for it.

use quorate_core::protocol::{
    Effect, Ignored, Incarnation, Input, Now, Outbox, Peer, PersistId, ProcessId, Protocol, To, Within,
};
use std::collections::VecDeque;
use std::fmt;

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Power {
    /// It runs.
    Up,
    /// It has stopped, does not know it, and will go on: a long pause of the machine.
    Paused,
    /// It has crashed, or not begun.
    Down,
}

/// Where within a step a crash falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cut {
    /// After this many effects of the step.
    Effects(u32),
    /// As soon as a record is durable that this step writes, before anything else leaves.
    Persist,
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Effects(count) => write!(f, "after {count}"),
            Self::Persist => write!(f, "after persist"),
        }
    }
}

/// A timer that runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Running<T> {
    /// Its name.
    pub timer: T,
    /// The range that it was set with.
    pub within: Within,
    /// What the driver gave it when it was set.
    pub mark: u64,
}

/// A send that waits for a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Held<M> {
    /// The record.
    pub after: PersistId,
    /// To whom.
    pub to: To,
    /// What.
    pub message: M,
}

/// What a node does to its surroundings.
pub trait Sink<P: Protocol> {
    /// A message leaves.
    fn send(&mut self, from: Peer, to: To, message: P::Message);
    /// A timer was set; the answer is kept as its mark.
    fn set_timer(&mut self, peer: Peer, timer: P::Timer, within: Within) -> u64;
    /// A timer was stopped.
    fn cancel_timer(&mut self, peer: Peer, timer: P::Timer);
    /// A record was handed to the disk.
    fn persist(&mut self, peer: Peer, id: PersistId);
    /// The application was told.
    fn emit(&mut self, peer: Peer, event: P::Event);
    /// A message was of no use.
    fn ignored(&mut self, peer: Peer, from: Peer, kind: &'static str, why: Ignored);
    /// A send was lost with the record that it waited for.
    fn unwritten(&mut self, peer: Peer, to: To, message: P::Message);
}

/// One simulated process.
#[derive(Clone, Debug)]
pub struct Node<P: Protocol> {
    /// The protocol's own state.
    pub machine: P,
    /// Who it is, in its present life.
    pub peer: Peer,
    /// Whether it runs.
    pub power: Power,
    /// The last durable record.
    pub record: Option<P::Record>,
    /// Records on their way to the disk, oldest first.
    pub writing: VecDeque<(PersistId, P::Record)>,
    /// Sends that wait for one of them.
    pub held: Vec<Held<P::Message>>,
    /// The timers that run.
    pub timers: Vec<Running<P::Timer>>,
    /// How many records were asked for in this life.
    pub persists: u32,
}

impl<P: Protocol> Node<P> {
    /// A process that has not begun.
    pub fn new(process: ProcessId, machine: P) -> Self {
        Self {
            machine,
            peer: Peer { process, incarnation: Incarnation(0) },
            power: Power::Down,
            record: None,
            writing: VecDeque::new(),
            held: Vec::new(),
            timers: Vec::new(),
            persists: 0,
        }
    }

    /// Begins its next life with a fresh protocol. Lives are issued by the world, from 1.
    pub fn start(&mut self, machine: P, now: Now, out: &mut Outbox<P>, sink: &mut impl Sink<P>) {
        assert_eq!(self.power, Power::Down, "{} is running", self.peer);
        self.machine = machine;
        self.peer.incarnation.0 += 1;
        self.power = Power::Up;
        self.persists = 0;
        let input = Input::Start { me: self.peer, record: self.record.clone() };
        self.step(now, input, None, out, sink);
    }

    /// Ends its life. What was not durable is lost.
    pub fn crash(&mut self, sink: &mut impl Sink<P>) {
        self.power = Power::Down;
        self.writing.clear();
        self.timers.clear();
        for held in std::mem::take(&mut self.held) {
            sink.unwritten(self.peer, held.to, held.message);
        }
    }

    /// Takes one input. With a `cut` the process crashes there, within the step. Says how many effects there
    /// were, the ones after a cut not counted.
    pub fn step(
        &mut self,
        now: Now,
        input: Input<P>,
        cut: Option<Cut>,
        out: &mut Outbox<P>,
        sink: &mut impl Sink<P>,
    ) -> u32 {
        out.begin(self.persists);
        self.machine.handle(now, input, out);
        let mut done = 0;
        for effect in out.drain() {
            if cut == Some(Cut::Effects(done)) {
                self.crash(sink);
                return done;
            }
            let wrote = matches!(effect, Effect::Persist { .. });
            self.carry_out(effect, sink);
            done += 1;
            if wrote && cut == Some(Cut::Persist) {
                self.record = self.writing.back().map(|(_, record)| record.clone());
                self.crash(sink);
                return done;
            }
        }
        if cut == Some(Cut::Effects(done)) {
            self.crash(sink);
        }
        done
    }

    /// The oldest record on its way becomes durable: what waited for it leaves, then the protocol is told.
    pub fn persisted(
        &mut self,
        now: Now,
        cut: Option<Cut>,
        out: &mut Outbox<P>,
        sink: &mut impl Sink<P>,
    ) -> u32 {
        let Some((id, record)) = self.writing.pop_front() else { return 0 };
        self.record = Some(record);
        let mut left = 0;
        while let Some(at) = self.held.iter().position(|held| held.after <= id) {
            if cut == Some(Cut::Effects(left)) {
                self.crash(sink);
                return left;
            }
            let held = self.held.remove(at);
            sink.send(self.peer, held.to, held.message);
            left += 1;
        }
        let rest = match cut {
            Some(Cut::Effects(count)) => Some(Cut::Effects(count - left)),
            other => other,
        };
        left + self.step(now, Input::Persisted(id), rest, out, sink)
    }

    /// Takes a running timer of this name away.
    pub fn take_timer(&mut self, timer: P::Timer) -> Option<Running<P::Timer>> {
        let at = self.timers.iter().position(|running| running.timer == timer)?;
        Some(self.timers.remove(at))
    }

    fn carry_out(&mut self, effect: Effect<P>, sink: &mut impl Sink<P>) {
        match effect {
            Effect::Send { to, message, after } => {
                assert_ne!(to.process, self.peer.process, "nobody writes to itself");
                let durable = |id| self.writing.front().is_none_or(|(first, _)| id < *first);
                match after.filter(|id| !durable(*id)) {
                    None => sink.send(self.peer, to, message),
                    Some(after) => self.held.push(Held { after, to, message }),
                }
            }
            Effect::Persist { id, record } => {
                self.persists = id.0;
                self.writing.push_back((id, record));
                sink.persist(self.peer, id);
            }
            Effect::SetTimer { timer, within } => {
                self.take_timer(timer);
                let mark = sink.set_timer(self.peer, timer, within);
                self.timers.push(Running { timer, within, mark });
                self.timers.sort_unstable_by_key(|running| running.timer);
            }
            Effect::CancelTimer(timer) => {
                if self.take_timer(timer).is_some() {
                    sink.cancel_timer(self.peer, timer);
                }
            }
            Effect::Emit(event) => sink.emit(self.peer, event),
            Effect::Ignored { from, kind, why } => sink.ignored(self.peer, from, kind, why),
        }
    }
}
