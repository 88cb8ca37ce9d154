//! One life of a process: the task that owns the machine.

use super::detector::{Belief, Detector};
use super::record::{self, Header, Line, Recorder};
use super::transport::{Ear, Heard, Mail, Transport, Wiring};
use super::{DriverError, Options, Portable, Progress, disk};
use crate::clock::{Clock, until, wall_ms};
use quorate_core::id::ViewId;
use quorate_core::protocol::{
    Effect, Input, Kind, Members, Now, Outbox, Peer, PersistId, ProcessId, To, Within,
};
use quorate_core::time::{Mono, Wall};
use quorate_core::trace::{Loss, MessageNo, What};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

type Look<P> = Box<dyn FnOnce(&P, &Progress) + Send>;

/// What comes to the task.
pub(super) enum Inbound<P: Portable> {
    Call(P::Call),
    Suspect(ProcessId),
    Trust(Peer),
    View(ViewId, Members),
    Look(Look<P>),
    Stop,
    Heard(Heard),
    Durable(std::io::Result<u32>),
}

impl<P: Portable> fmt::Debug for Inbound<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inbound")
    }
}

struct InboxEar<P: Portable>(mpsc::Sender<Inbound<P>>);

impl<P: Portable> Clone for InboxEar<P> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<P: Portable> Ear for InboxEar<P> {
    async fn tell(&self, heard: Heard) -> bool {
        self.0.send(Inbound::Heard(heard)).await.is_ok()
    }
}

/// What leaves once it is written down.
enum Act<P: Portable> {
    Send(ProcessId, Mail),
    Write(PersistId, P::Record),
    Tell(P::Event),
}

/// The way out, while the life runs.
struct Ways {
    transport: Transport,
    disk: Option<std::sync::mpsc::Sender<disk::Writing>>,
}

/// One life of a process.
pub(super) struct Life<P: Portable> {
    machine: P,
    peer: Peer,
    record: Option<P::Record>,
    out: Outbox<P>,
    persists: u32,
    durable: u32,
    held: Vec<(PersistId, To, P::Message)>,
    timers: BTreeMap<P::Timer, Mono>,
    detector: Detector,
    reached: BTreeSet<ProcessId>,
    clock: Clock,
    draw: StdRng,
    recorder: Option<Recorder>,
    digest: u64,
    acts: Vec<Act<P>>,
    progress: Progress,
    told: (mpsc::UnboundedSender<P::Event>, watch::Sender<Progress>),
}

impl<P: Portable> Life<P> {
    /// Reads the record, and begins the trace.
    pub(super) fn open(
        machine: P,
        peer: Peer,
        options: &Options,
        clock: Clock,
        told: (mpsc::UnboundedSender<P::Event>, watch::Sender<Progress>),
    ) -> Result<Self, DriverError> {
        let record =
            options.disk.as_deref().map(disk::read).transpose().map_err(DriverError::Disk)?.flatten();
        let recorder = options.trace.as_ref().map(|directory| {
            std::fs::create_dir_all(directory)?;
            let file = std::fs::File::create_new(directory.join(trace_name(peer)))?;
            Ok(Recorder::new(Box::new(file), &Header::of::<P>(peer, options.seed)))
        });
        Ok(Self {
            machine,
            peer,
            record,
            out: Outbox::default(),
            persists: 0,
            durable: 0,
            held: Vec::new(),
            timers: BTreeMap::new(),
            detector: Detector::new(std::iter::empty(), None, clock.now()),
            reached: BTreeSet::new(),
            clock,
            draw: StdRng::seed_from_u64(options.seed),
            recorder: recorder.transpose().map_err(DriverError::Trace)?,
            digest: 0,
            acts: Vec::new(),
            progress: Progress::default(),
            told,
        })
    }

    /// Runs it to its end.
    pub(super) async fn run(
        mut self,
        listener: TcpListener,
        others: BTreeMap<ProcessId, SocketAddr>,
        options: Options,
        inbox: mpsc::Sender<Inbound<P>>,
        mut inputs: mpsc::Receiver<Inbound<P>>,
    ) -> Result<Progress, DriverError> {
        self.detector = Detector::new(others.keys().copied(), options.detection, self.clock.now());
        let disk = options.disk.map(|directory| self.disk(directory, inbox.clone())).transpose()?;
        let wiring = Wiring { me: self.peer, beat: options.beat };
        let transport = Transport::start(wiring, listener, others.into_iter(), InboxEar(inbox));
        let ways = Ways { transport, disk };
        let record = self.record.take();
        self.note(What::Started { record: record.is_some() }, &"");
        self.input(Input::Start { me: self.peer, record });
        loop {
            self.carry_out(&ways)?;
            let due = self.timers.values().copied().chain(self.detector.due()).min();
            let sleep = due.map(|due| until(self.clock.now(), due));
            let input = tokio::select! {
                biased; // A timer that is due is due, however much mail there is.
                () = tokio::time::sleep(sleep.unwrap_or_default()), if sleep.is_some() => None,
                input = inputs.recv() => input,
            };
            match input {
                None => self.fire(),
                Some(Inbound::Stop) => break,
                Some(input) => self.take(input)?,
            }
        }
        Ok(self.progress)
    }

    fn disk(
        &self,
        directory: PathBuf,
        inbox: mpsc::Sender<Inbound<P>>,
    ) -> Result<std::sync::mpsc::Sender<disk::Writing>, DriverError> {
        disk::start(directory, move |done| inbox.blocking_send(Inbound::Durable(done)).is_ok())
            .map_err(DriverError::Disk)
    }

    // ---- what comes in

    fn take(&mut self, input: Inbound<P>) -> Result<(), DriverError> {
        match input {
            Inbound::Call(call) => {
                self.note(What::Called { kind: call.kind() }, &call);
                self.input(Input::Call(call));
            }
            Inbound::Suspect(of) => self.believe(Belief::Suspect(of)),
            Inbound::Trust(of) => self.believe(Belief::Trust(of)),
            Inbound::View(id, members) => {
                self.note(What::View(members.count() as u32), &"");
                self.input(Input::View { id, members });
            }
            Inbound::Look(look) => {
                self.settle();
                look(&self.machine, &self.progress);
            }
            Inbound::Durable(done) => self.persisted(done.map_err(DriverError::Disk)?),
            Inbound::Heard(heard) => self.heard(heard),
            Inbound::Stop => {}
        }
        Ok(())
    }

    fn heard(&mut self, heard: Heard) {
        let now = self.clock.now();
        match heard {
            Heard::Linked { from, link } => {
                for belief in self.detector.linked(from, link, now) {
                    self.believe(belief);
                }
            }
            Heard::Unlinked { from, link } => self.detector.unlinked(from, link, now),
            Heard::Beat { from, link } => {
                let (_, belief) = self.detector.heard(from, link, now);
                belief.into_iter().for_each(|belief| self.believe(belief));
            }
            Heard::Mail { from, link, mail } => self.mail(from, link, mail),
            Heard::Lost { to, number, kind, why } => {
                self.progress.lost += 1;
                self.note(What::Dropped { message: MessageNo(number), kind, to, why }, &"");
            }
            Heard::Reached { to, open: true } => {
                self.reached.insert(to);
            }
            Heard::Reached { to, open: false } => {
                self.reached.remove(&to);
            }
        }
    }

    fn mail(&mut self, from: Peer, link: u64, mail: Mail) {
        let (newest, belief) = self.detector.heard(from, link, self.clock.now());
        belief.into_iter().for_each(|belief| self.believe(belief));
        self.progress.received += 1;
        let mine = mail.life.is_none_or(|life| life == self.peer.incarnation);
        let why = match (newest, self.detector.is_newest(from)) {
            (true, _) if mine => None,
            // A connection that was replaced by a newer one: what is left in it would come out of order.
            (false, true) => Some(Loss::Link),
            _ => Some(Loss::FormerLife),
        };
        let (message, kind) = (MessageNo(mail.number), mail.kind);
        if let Some(why) = why {
            let what = What::Dropped { message, kind, to: self.peer.process, why };
            return self.note_line(what, None, &"", Some(from));
        }
        match postcard::from_bytes::<P::Message>(&mail.message) {
            Ok(content) => {
                self.note_line(What::Received { message, kind, from }, content.about(), &content, None);
                self.input(Input::Message { from, message: content });
            }
            Err(error) => {
                tracing::warn!(%from, %error, "a message is not one of this protocol");
                let why = quorate_core::protocol::Ignored::Malformed;
                self.note_line(What::Ignored { from, why }, None, &"", None);
            }
        }
    }

    fn believe(&mut self, belief: Belief) {
        match belief {
            Belief::Suspect(of) => {
                self.note(What::Suspected(of), &"");
                self.input(Input::Suspect(of));
            }
            Belief::Trust(of) => {
                self.note(What::Trusted(of.process, of.incarnation), &"");
                self.input(Input::Trust(of));
            }
        }
    }

    /// All records up to this one are durable: what waited for them leaves, then the protocol is told.
    fn persisted(&mut self, up_to: u32) {
        while self.durable < up_to {
            self.durable += 1;
            let id = PersistId(self.durable);
            self.note(What::Persisted(id), &"");
            let waiting = std::mem::take(&mut self.held);
            let (ready, held) = waiting.into_iter().partition(|(after, _, _)| *after <= id);
            self.held = held;
            let ready: Vec<_> = ready;
            ready.into_iter().for_each(|(_, to, message)| self.send(to, &message));
            self.input(Input::Persisted(id));
        }
    }

    /// Ends the timers that are due, earliest first, and looks who is silent.
    fn fire(&mut self) {
        loop {
            let now = self.clock.now();
            let due = self.timers.iter().filter(|(_, at)| **at <= now).min_by_key(|(_, at)| **at);
            let Some(timer) = due.map(|(timer, _)| *timer) else { break };
            self.timers.remove(&timer);
            self.note(What::TimerFired { kind: timer.kind() }, &timer);
            self.input(Input::Timer(timer));
        }
        for silent in self.detector.look(self.clock.now()) {
            self.believe(Belief::Suspect(silent));
        }
    }

    // ---- what comes of it

    /// Hands an input to the machine. Its line is the last that was noted.
    fn input(&mut self, input: Input<P>) {
        let wall = u64::try_from(wall_ms()).ok().map(Wall);
        let now = Now { mono: self.clock.now(), wall };
        let mut entry = self.recorder.is_some().then(|| record::entry(now, &input));
        self.out.begin(self.persists);
        self.machine.handle(now, input, &mut self.out);
        self.progress.inputs += 1;
        if let Some(entry) = &mut entry {
            self.digest = record::digest(self.digest, &self.machine, self.out.effects());
            entry.digest = format!("{:016x}", self.digest);
        }
        if let (Some(recorder), Some(entry)) = (&mut self.recorder, entry) {
            recorder.complete(entry);
        }
        let effects: Vec<_> = self.out.drain().collect();
        effects.into_iter().for_each(|effect| self.effect(effect));
    }

    fn effect(&mut self, effect: Effect<P>) {
        match effect {
            Effect::Send { to, message, after } => match after.filter(|after| after.0 > self.durable) {
                None => self.send(to, &message),
                Some(after) => self.held.push((after, to, message)),
            },
            Effect::Persist { id, record } => {
                self.persists = id.0;
                self.note(What::Persist(id), &"");
                self.acts.push(Act::Write(id, record));
            }
            Effect::SetTimer { timer, within } => self.set_timer(timer, within),
            Effect::CancelTimer(timer) => {
                if self.timers.remove(&timer).is_some() {
                    self.note(What::TimerCancelled { kind: timer.kind() }, &timer);
                }
            }
            Effect::Emit(event) => {
                self.note_line(What::Emitted { kind: event.kind() }, event.about(), &event, None);
                self.acts.push(Act::Tell(event));
            }
            Effect::Ignored { from, kind, why } => self.note(What::Ignored { from, why }, &kind),
        }
    }

    fn send(&mut self, to: To, message: &P::Message) {
        assert_ne!(to.process, self.peer.process, "nobody writes to itself");
        self.progress.sent += 1;
        let (number, kind) = (self.progress.sent, message.kind());
        let what = What::Sent { message: MessageNo(number), kind, to: to.process };
        self.note_line(what, message.about(), message, None);
        let encoded = postcard::to_allocvec(message).expect("a message of plain values has a form");
        self.acts.push(Act::Send(to.process, Mail { number, life: to.incarnation, kind, message: encoded }));
    }

    fn set_timer(&mut self, timer: P::Timer, within: Within) {
        let (least, most) = (within.least.as_millis() * 1_000, within.most.as_millis() * 1_000);
        let drawn_us = self.draw.random_range(least..=most.max(least));
        self.timers.insert(timer, Mono(self.clock.now().0 + drawn_us));
        self.note(What::TimerSet { kind: timer.kind(), drawn_us }, &timer);
    }

    // ---- what is written down, and what leaves

    fn note(&mut self, what: What, words: &dyn fmt::Display) {
        self.note_line(what, None, words, None);
    }

    fn note_line(
        &mut self,
        what: What,
        about: Option<quorate_core::protocol::Request>,
        words: &dyn fmt::Display,
        from: Option<Peer>,
    ) {
        if let Some(recorder) = &mut self.recorder {
            let step = record::Step { about, ..record::step(self.clock.now(), self.peer, what) };
            recorder.note(Line { step, words: words.to_string(), input: None, from });
        }
    }

    /// Writes down what has happened, and then lets it leave.
    fn carry_out(&mut self, ways: &Ways) -> Result<(), DriverError> {
        if let Some(recorder) = &mut self.recorder {
            recorder.write().map_err(DriverError::Trace)?;
        }
        for act in std::mem::take(&mut self.acts) {
            match act {
                Act::Send(to, mail) => {
                    if let Err(mail) = ways.transport.send(to, mail) {
                        self.progress.lost += 1;
                        let (message, why) = (MessageNo(mail.number), Loss::Link);
                        self.note(What::Dropped { message, kind: mail.kind, to, why }, &"");
                    }
                }
                Act::Write(id, record) => {
                    let disk = ways.disk.as_ref().ok_or(DriverError::NoDisk)?;
                    // A thread that has ended has told why, and that is the next input.
                    let _ = disk.send(disk::writing(id.0, &record));
                }
                // Nobody has to listen.
                Act::Tell(event) => drop(self.told.0.send(event)),
            }
        }
        self.settle();
        Ok(())
    }

    /// Publishes how far it has come, if that is news.
    fn settle(&mut self) {
        self.progress.timers = self.timers.len() as u64;
        self.progress.writing = u64::from(self.persists - self.durable) + self.held.len() as u64;
        self.progress.links_in = self.detector.open();
        self.progress.links_out = self.reached.len() as u32;
        self.progress.suspected = self.detector.suspected();
        let progress = &self.progress;
        self.told.1.send_if_modified(|known| {
            let news = known != progress;
            known.clone_from(progress);
            news
        });
    }
}

/// The file of a life.
pub(super) fn trace_name(peer: Peer) -> String {
    format!("{}-{:016x}.ndjson", peer.process, peer.incarnation.0)
}
