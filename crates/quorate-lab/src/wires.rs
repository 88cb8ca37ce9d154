//! The surroundings of a world's processes: links, clocks, what is due and when.

use crate::draw::mix;
use crate::network::{Network, Order};
use crate::node::Sink;
use crate::trace::Trace;
use quorate_core::protocol::{Ignored, Kind, Now, Peer, PersistId, ProcessId, Protocol, Request, To, Within};
use quorate_core::time::{Mono, Wall};
use quorate_core::trace::{Loss, MessageNo, Step, What};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Display;

/// A message under way.
#[derive(Clone, Debug)]
pub struct Flight<M> {
    /// Its number.
    pub no: MessageNo,
    /// Who sent it, in which life.
    pub from: Peer,
    /// To whom.
    pub to: To,
    /// What it says.
    pub message: M,
}

/// Something that will happen.
#[derive(Clone, Debug)]
pub(crate) enum Due<P: Protocol> {
    Deliver { slot: u32, no: MessageNo },
    Fire { process: ProcessId, timer: P::Timer, mark: u64 },
    Durable { peer: Peer },
    Call { process: ProcessId, call: P::Call },
    Suspect { at: ProcessId, of: ProcessId },
    Trust { at: ProcessId, of: Peer },
}

struct Entry<P: Protocol> {
    at: u64,
    order: u64,
    due: Due<P>,
}

impl<P: Protocol> PartialEq for Entry<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl<P: Protocol> Eq for Entry<P> {}
impl<P: Protocol> PartialOrd for Entry<P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<P: Protocol> Ord for Entry<P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// A monotonic clock: at true time `since` it read `read`, and it runs at `ppm` more than true time.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    since: u64,
    read: u64,
    ppm: i32,
}

impl Clock {
    fn at(&self, time: u64) -> u64 {
        let passed = time - self.since;
        if self.ppm == 0 {
            return self.read + passed;
        }
        self.read + (u128::from(passed) * u128::from(self.speed()) / 1_000_000) as u64
    }

    /// The first true time at which it reads at least this.
    fn when(&self, read: u64) -> u64 {
        let left = read.saturating_sub(self.read);
        if self.ppm == 0 {
            return self.since + left;
        }
        self.since + (u128::from(left) * 1_000_000).div_ceil(u128::from(self.speed())) as u64
    }

    fn speed(&self) -> u64 {
        (1_000_000 + i64::from(self.ppm)).max(1) as u64
    }
}

/// One direction between two processes.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    sent: u64,
    /// When the last message of an ordered link will arrive.
    last: u64,
    cut: bool,
}

pub(crate) struct Wires<P: Protocol> {
    pub(crate) seed: u64,
    pub(crate) time: u64,
    pub(crate) steps: u64,
    pub(crate) digest: u64,
    /// Something was lost, crashed or stopped.
    pub(crate) harmed: bool,
    pub(crate) network: Network,
    pub(crate) trace: Trace,
    pub(crate) emitted: Vec<(Peer, P::Event)>,
    n: usize,
    order: u64,
    messages: u64,
    heap: BinaryHeap<Reverse<Entry<P>>>,
    slots: Vec<Option<Flight<P::Message>>>,
    free: Vec<u32>,
    links: Vec<Link>,
    clocks: Vec<Clock>,
    /// Timers set so far, and the reading at which each running one ends, by its mark.
    marks: u64,
    ends: Vec<(u64, u64)>,
}

impl<P: Protocol> Wires<P> {
    pub(crate) fn new(seed: u64, n: usize, network: Network) -> Self {
        Self {
            seed,
            time: 0,
            steps: 0,
            digest: seed,
            harmed: false,
            network,
            trace: Trace::off(),
            emitted: Vec::new(),
            n,
            order: 0,
            messages: 0,
            heap: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            links: vec![Link::default(); n * n],
            clocks: vec![Clock::default(); n],
            marks: 0,
            ends: Vec::new(),
        }
    }

    // ---- the record

    /// Notes what happened at a process: into the digest, and the trace if there is one.
    #[inline]
    pub(crate) fn note(&mut self, peer: Peer, what: What, about: Option<Request>, words: &dyn Display) {
        self.harmed |= matches!(what, What::Crashed | What::Paused | What::Dropped { .. });
        let tag = match what {
            What::Received { message, kind, .. } => (message.0 << 8) | u64::from(kind),
            What::TimerFired { kind } => (1 << 60) | u64::from(kind),
            What::Crashed => 2 << 60,
            _ => 3 << 60,
        };
        self.digest = (self.digest.rotate_left(5) ^ self.time ^ (u64::from(peer.process.0) << 48) ^ tag)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15);
        if self.trace.is_on() {
            self.record(peer, what, about, words);
        }
    }

    /// Notes what does not hold: a remark of whoever looks on, and no part of the history.
    pub(crate) fn violated(&mut self, why: &str) {
        if self.trace.is_on() {
            self.record(Peer::default(), What::Violated, None, &why);
        }
    }

    fn record(&mut self, peer: Peer, what: What, about: Option<Request>, words: &dyn Display) {
        let text = match self.trace.has_words() {
            true => match words.to_string() {
                empty if empty.is_empty() => 0,
                words => self.trace.say(words),
            },
            false => 0,
        };
        self.trace.push(Step { at: Mono(self.time), at_peer: peer, what, about, text });
    }

    pub(crate) fn received(&mut self, peer: Peer, flight: &Flight<P::Message>) {
        let what = What::Received { message: flight.no, kind: flight.message.kind(), from: flight.from };
        self.note(peer, what, flight.message.about(), &flight.message);
    }

    pub(crate) fn lost(&mut self, flight: &Flight<P::Message>, why: Loss) {
        let what =
            What::Dropped { message: flight.no, kind: flight.message.kind(), to: flight.to.process, why };
        self.note(flight.from, what, flight.message.about(), &flight.message);
    }

    // ---- what is due

    #[inline]
    pub(crate) fn push(&mut self, at: u64, due: Due<P>) {
        self.order += 1;
        self.heap.push(Reverse(Entry { at, order: self.order, due }));
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Due<P>> {
        let Reverse(entry) = self.heap.pop()?;
        self.time = self.time.max(entry.at);
        Some(entry.due)
    }

    pub(crate) fn next_due(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    // ---- messages

    pub(crate) fn flights(&self) -> Vec<&Flight<P::Message>> {
        let mut flights: Vec<_> = self.slots.iter().flatten().collect();
        flights.sort_unstable_by_key(|flight| flight.no);
        flights
    }

    pub(crate) fn take(&mut self, no: MessageNo) -> Option<Flight<P::Message>> {
        let slot = self.slots.iter().position(|slot| slot.as_ref().is_some_and(|flight| flight.no == no))?;
        self.take_slot(slot as u32, no)
    }

    #[inline]
    pub(crate) fn take_slot(&mut self, slot: u32, no: MessageNo) -> Option<Flight<P::Message>> {
        let place = &mut self.slots[slot as usize];
        if place.as_ref().is_none_or(|flight| flight.no != no) {
            return None;
        }
        self.free.push(slot);
        place.take()
    }

    /// Loses what is under way to a life that is over.
    pub(crate) fn lose_life(&mut self, peer: Peer) {
        let over = |flight: &Flight<P::Message>| flight.to == To::from(peer);
        let lost: Vec<_> = self.flights().into_iter().filter(|f| over(f)).map(|f| f.no).collect();
        for no in lost {
            if let Some(flight) = self.take(no) {
                self.lost(&flight, Loss::FormerLife);
            }
        }
    }

    /// Puts a message back, to be delivered when its paused receiver goes on.
    pub(crate) fn keep(&mut self, flight: Flight<P::Message>) -> Due<P> {
        let no = flight.no;
        Due::Deliver { slot: self.put(flight), no }
    }

    fn put(&mut self, flight: Flight<P::Message>) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(flight);
                slot
            }
            None => {
                self.slots.push(Some(flight));
                self.slots.len() as u32 - 1
            }
        }
    }

    pub(crate) fn double(&mut self, no: MessageNo) -> bool {
        let Some(flight) = self.slots.iter().flatten().find(|flight| flight.no == no).cloned() else {
            return false;
        };
        self.messages += 1;
        let double = MessageNo(self.messages);
        self.note(
            flight.from,
            What::Doubled { message: no, double },
            flight.message.about(),
            &flight.message,
        );
        self.launch(Flight { no: double, ..flight });
        true
    }

    fn launch(&mut self, flight: Flight<P::Message>) {
        let channel = self.channel(flight.from.process, flight.to.process);
        let link = &mut self.links[channel];
        link.sent += 1;
        let number = mix(self.seed, channel as u64 + 16, link.sent);
        let mut at = self.time + self.network.delay.pick(number);
        if self.network.order == Order::Fifo {
            at = at.max(link.last);
            link.last = at;
        }
        let no = flight.no;
        let slot = self.put(flight);
        self.push(at, Due::Deliver { slot, no });
    }

    fn channel(&self, from: ProcessId, to: ProcessId) -> usize {
        from.index() * self.n + to.index()
    }

    pub(crate) fn is_cut(&self, from: ProcessId, to: ProcessId) -> bool {
        self.links[self.channel(from, to)].cut
    }

    /// Says whether that changed anything.
    pub(crate) fn set_cut(&mut self, from: ProcessId, to: ProcessId, cut: bool) -> bool {
        let channel = self.channel(from, to);
        std::mem::replace(&mut self.links[channel].cut, cut) != cut
    }

    // ---- clocks

    #[inline]
    pub(crate) fn now(&self, index: usize) -> Now {
        Now { mono: Mono(self.clocks[index].at(self.time)), wall: Some(Wall(self.time / 1_000)) }
    }

    pub(crate) fn clock_rate(&self, index: usize) -> i32 {
        self.clocks[index].ppm
    }

    pub(crate) fn set_clock(&mut self, index: usize, jump: u64, ppm: i32) {
        let read = self.clocks[index].at(self.time) + jump;
        self.clocks[index] = Clock { since: self.time, read, ppm };
    }

    /// Schedules a running timer once more, since its clock has changed.
    pub(crate) fn again(&mut self, index: usize, timer: P::Timer, mark: u64) -> u64 {
        let Some((_, end)) = self.ends.iter().find(|(known, _)| *known == mark).copied() else { return mark };
        self.schedule(index, timer, end)
    }

    fn schedule(&mut self, index: usize, timer: P::Timer, end: u64) -> u64 {
        self.marks += 1;
        let mark = self.marks;
        if self.ends.len() > 64 * self.n {
            let time = self.time;
            let clocks = &self.clocks;
            self.ends.retain(|(_, end)| clocks.iter().any(|clock| clock.at(time) <= *end));
        }
        self.ends.push((mark, end));
        let at = self.clocks[index].when(end).max(self.time);
        self.push(at, Due::Fire { process: ProcessId::at(index), timer, mark });
        mark
    }
}

impl<P: Protocol> Sink<P> for Wires<P> {
    fn send(&mut self, from: Peer, to: To, message: P::Message) {
        self.messages += 1;
        let flight = Flight { no: MessageNo(self.messages), from, to, message };
        if self.trace.is_on() {
            let what = What::Sent { message: flight.no, kind: flight.message.kind(), to: to.process };
            self.record(from, what, flight.message.about(), &flight.message);
        }
        if self.is_cut(from.process, to.process) {
            return self.lost(&flight, Loss::Partition);
        }
        let Network { loss_permille, double_permille, .. } = self.network;
        if loss_permille + double_permille > 0 {
            let channel = self.channel(from.process, to.process);
            let fate =
                crate::draw::below(mix(self.seed ^ 0xFA7E, channel as u64, self.links[channel].sent), 1_000);
            if fate < loss_permille {
                self.links[channel].sent += 1;
                return self.lost(&flight, Loss::Link);
            }
            if fate >= 1_000 - double_permille {
                let no = flight.no;
                self.launch(flight);
                self.double(no);
                return;
            }
        }
        self.launch(flight);
    }

    fn set_timer(&mut self, peer: Peer, timer: P::Timer, within: Within) -> u64 {
        let (least, most) = (within.least.as_millis() * 1_000, within.most.as_millis() * 1_000);
        let stream = (u64::from(peer.process.0) << 16) | (u64::from(timer.kind()) << 8) | 3;
        let number = mix(self.seed, stream, self.time);
        let drawn_us = least + crate::draw::below(number, most.saturating_sub(least) + 1);
        if self.trace.is_on() {
            self.record(peer, What::TimerSet { kind: timer.kind(), drawn_us }, None, &timer);
        }
        let index = peer.process.index();
        let end = self.clocks[index].at(self.time) + drawn_us;
        self.schedule(index, timer, end)
    }

    fn cancel_timer(&mut self, peer: Peer, timer: P::Timer) {
        if self.trace.is_on() {
            self.record(peer, What::TimerCancelled { kind: timer.kind() }, None, &timer);
        }
    }

    fn persist(&mut self, peer: Peer, id: PersistId) {
        if self.trace.is_on() {
            self.record(peer, What::Persist(id), None, &"");
        }
        let number = mix(self.seed, (u64::from(peer.process.0) << 16) | 5, self.time);
        let at = self.time + self.network.disk.pick(number);
        self.push(at, Due::Durable { peer });
    }

    fn emit(&mut self, peer: Peer, event: P::Event) {
        if self.trace.is_on() {
            self.record(peer, What::Emitted { kind: event.kind() }, event.about(), &event);
        }
        self.emitted.push((peer, event));
    }

    fn ignored(&mut self, peer: Peer, from: Peer, kind: &'static str, why: Ignored) {
        if self.trace.is_on() {
            self.record(peer, What::Ignored { from, why }, None, &format_args!("{kind} {why}"));
        }
    }

    fn unwritten(&mut self, peer: Peer, to: To, message: P::Message) {
        self.messages += 1;
        let flight = Flight { no: MessageNo(self.messages), from: peer, to, message };
        self.lost(&flight, Loss::Unwritten);
    }
}
