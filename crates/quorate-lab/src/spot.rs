//! One state of a small world, and everything that can happen next in it.
//!
//! Unlike a [`World`] it has no schedule: whatever is under way may happen now. It is
//! cheap to clone (processes are shared until they change) and knows its own fingerprint.

use crate::draw::{Fast, mix};
use crate::network::Order;
use crate::node::{Cut, Node, Power, Sink};
use crate::world::{Maker, World};
use quorate_core::protocol::{
    Ignored, Input, Kind, Now, Outbox, Peer, PersistId, ProcessId, Protocol, To, Within,
};
use quorate_core::time::{Mono, Span};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

/// How often each fault may happen in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Crashes, between steps and within them.
    pub crashes: u8,
    /// Starts after a crash, with the disk.
    pub restarts: u8,
    /// Starts after a crash, with an empty disk.
    pub wipes: u8,
    /// Messages lost.
    pub drops: u8,
    /// Messages doubled.
    pub doubles: u8,
    /// Suspicions of a process that runs; it is trusted again later.
    pub suspicions: u8,
    /// Pauses.
    pub pauses: u8,
    /// Timers that end.
    pub timers: u8,
}

/// When a timer may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// At any time: clocks and pauses are not bounded.
    Any,
    /// In the order of their ranges, for processes that run: clocks are exact, messages take any time.
    Exact,
    /// As `Exact`, and not before all mail has arrived: every timer is longer than any message takes.
    Patient,
}

/// Which application calls may come next at a process that has made so many.
pub type Calls<P> = fn(&P, u32) -> Option<<P as Protocol>::Call>;

/// What may happen in a small world.
pub struct Rules<P: Protocol> {
    /// Makes a process before its start.
    pub maker: Maker<P>,
    /// How many processes.
    pub n: usize,
    /// In which order links deliver.
    pub order: Order,
    /// The budget of faults.
    pub faults: Faults,
    /// When timers end.
    pub timing: Timing,
    /// A detector tells everybody of each crash and start, some time later.
    pub detector: bool,
    /// Which calls are made.
    pub calls: Calls<P>,
}

/// Something under way to a process.
#[derive(Clone, Debug)]
pub struct Flying<M> {
    /// Who sent it.
    pub from: Peer,
    /// To whom.
    pub to: To,
    /// What it is.
    pub parcel: Parcel<M>,
    /// How many are before it on an ordered link.
    pub place: u32,
    hash: u64,
}

/// What is under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Parcel<M> {
    /// A message.
    Mail(M),
    /// The detector's word that the sender has stopped.
    Suspect,
    /// The detector's word that the sender runs.
    Trust,
}

/// One thing that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<P: Protocol> {
    /// The application asks.
    Call(ProcessId, P::Call),
    /// What is at this place under way arrives.
    Deliver(usize),
    /// It is lost.
    Drop(usize),
    /// It is doubled.
    Double(usize),
    /// A timer ends.
    Fire(ProcessId, P::Timer),
    /// The oldest record under way is durable.
    Persist(ProcessId),
    /// A process crashes.
    Crash(ProcessId),
    /// It starts again, perhaps with an empty disk.
    Restart {
        /// Which.
        process: ProcessId,
        /// Whether its disk is as it was.
        disk: bool,
    },
    /// It stops without noticing.
    Pause(ProcessId),
    /// It goes on.
    Resume(ProcessId),
    /// One suspects another, wrongly.
    Suspect(ProcessId, ProcessId),
}

/// A way through a small world: what happened, and where a crash fell within it.
pub type Way<P> = Vec<(Action<P>, Option<Cut>)>;

/// One state of a small world.
#[derive(Clone, Debug)]
pub struct Spot<P: Protocol> {
    nodes: Vec<Arc<Node<P>>>,
    flights: Vec<Flying<P::Message>>,
    pub(crate) made: Vec<u32>,
    pub(crate) left: Faults,
    now_ms: u64,
    sums: Vec<u64>,
    harmed: bool,
}

struct Post<'a, P: Protocol> {
    flights: &'a mut Vec<Flying<P::Message>>,
    order: Order,
    now_ms: u64,
}

impl<P: Protocol> Sink<P> for Post<'_, P> {
    fn send(&mut self, from: Peer, to: To, message: P::Message) {
        post(self.flights, self.order, from, to, Parcel::Mail(message));
    }
    fn set_timer(&mut self, _peer: Peer, _timer: P::Timer, _within: Within) -> u64 {
        self.now_ms
    }
    fn cancel_timer(&mut self, _peer: Peer, _timer: P::Timer) {}
    fn persist(&mut self, _peer: Peer, _id: PersistId) {}
    fn emit(&mut self, _peer: Peer, _event: P::Event) {}
    fn ignored(&mut self, _peer: Peer, _from: Peer, _kind: &'static str, _why: Ignored) {}
    fn unwritten(&mut self, _peer: Peer, _to: To, _message: P::Message) {}
}

fn post<M: Kind>(flights: &mut Vec<Flying<M>>, order: Order, from: Peer, to: To, parcel: Parcel<M>) {
    let place = match order {
        Order::Fifo => flights.iter().filter(|f| f.from == from && f.to.process == to.process).count() as u32,
        Order::Unordered => 0,
    };
    let mut hasher = Fast::default().build_hasher();
    (from, to).hash(&mut hasher);
    parcel.hash(&mut hasher);
    let hash = hasher.finish();
    flights.push(Flying { from, to, parcel, place, hash });
}

impl<P: Protocol> Spot<P> {
    /// The state in which all have begun and nothing has happened.
    pub fn first(rules: &Rules<P>) -> Self {
        let mut out = Outbox::default();
        let mut spot = Self {
            nodes: Vec::new(),
            flights: Vec::new(),
            made: vec![0; rules.n],
            left: rules.faults,
            now_ms: 0,
            sums: vec![0; rules.n],
            harmed: false,
        };
        for process in (0..rules.n).map(ProcessId::at) {
            let mut node = Node::new(process, (rules.maker)(process));
            let mut post = Post { flights: &mut spot.flights, order: rules.order, now_ms: 0 };
            node.start((rules.maker)(process), Now::default(), &mut out, &mut post);
            spot.nodes.push(Arc::new(node));
            spot.sum(process.index());
        }
        spot
    }

    /// The present state of a world, with all that is under way.
    pub fn of(world: &World<P>) -> Self {
        let mut spot = Self {
            nodes: world.nodes().iter().cloned().map(Arc::new).collect(),
            flights: Vec::new(),
            made: vec![0; world.nodes().len()],
            left: Faults::default(),
            now_ms: world.time_us() / 1_000,
            sums: vec![0; world.nodes().len()],
            harmed: world.harmed(),
        };
        for flight in world.flights() {
            let parcel = Parcel::Mail(flight.message.clone());
            post(&mut spot.flights, world.network().order, flight.from, flight.to, parcel);
        }
        (0..spot.nodes.len()).for_each(|index| spot.sum(index));
        spot
    }

    /// The processes, in order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &Node<P>> + Clone + '_ {
        self.nodes.iter().map(Arc::as_ref)
    }

    /// One process.
    pub fn node(&self, process: ProcessId) -> &Node<P> {
        &self.nodes[process.index()]
    }

    /// What is under way, oldest first.
    pub fn flights(&self) -> &[Flying<P::Message>] {
        &self.flights
    }

    /// The time on every clock in milliseconds, if timers end in order; else 0.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Whether anything was lost, crashed or stopped on the way here.
    pub fn harmed(&self) -> bool {
        self.harmed
    }

    /// Stands for this state; the order of what is under way on unordered links is not part of it.
    pub fn fingerprint(&self) -> u64 {
        let mail = self
            .flights
            .iter()
            .fold(0_u64, |sum, flying| sum.wrapping_add(mix(flying.hash, 1, u64::from(flying.place))));
        let nodes = self.sums.iter().fold(mail, |all, sum| mix(all, 2, *sum));
        if self.left == Faults::default() {
            return nodes;
        }
        Fast::default().hash_one((nodes, self.left))
    }

    fn sum(&mut self, index: usize) {
        let node = &*self.nodes[index];
        let mut hasher = Fast::default().build_hasher();
        (&node.machine, node.peer.incarnation, node.power, self.made[index]).hash(&mut hasher);
        (&node.record, &node.writing, &node.held, &node.timers).hash(&mut hasher);
        self.sums[index] = hasher.finish();
    }

    // ---- what can happen

    /// All that can happen, in an order that depends on the state only. Says whether it is at rest: nothing
    /// goes on by itself, no mail, timer, disk or call.
    pub fn actions(&self, rules: &Rules<P>, actions: &mut Vec<Action<P>>) -> bool {
        actions.clear();
        self.progress(rules, actions);
        let timers = |node: &Node<P>| node.power == Power::Up && !node.timers.is_empty();
        let rests = actions.is_empty() && !self.nodes().any(timers);
        if self.left != Faults::default() {
            self.faults(actions);
        }
        for (index, node) in self.nodes.iter().enumerate() {
            if node.power == Power::Paused {
                actions.push(Action::Resume(ProcessId::at(index)));
            }
        }
        rests
    }

    fn progress(&self, rules: &Rules<P>, actions: &mut Vec<Action<P>>) {
        for (index, node) in self.nodes.iter().enumerate() {
            let process = ProcessId::at(index);
            if node.power != Power::Up {
                continue;
            }
            if let Some(call) = (rules.calls)(&node.machine, self.made[index]) {
                actions.push(Action::Call(process, call));
            }
            if !node.writing.is_empty() {
                actions.push(Action::Persist(process));
            }
            if self.left.timers > 0 {
                let due =
                    node.timers.iter().filter(|running| self.may_end(rules, running.mark, running.within));
                actions.extend(due.map(|running| Action::Fire(process, running.timer)));
            }
        }
        for (at, flying) in self.flights.iter().enumerate() {
            let paused = self.nodes[flying.to.process.index()].power == Power::Paused;
            if flying.place == 0 && !paused && !self.twin(at) {
                actions.push(Action::Deliver(at));
            }
        }
    }

    /// Whether an equal one is before it: then it need not be tried as well.
    fn twin(&self, at: usize) -> bool {
        let one = &self.flights[at];
        self.flights[..at].iter().any(|other| other.hash == one.hash && other.place == one.place)
    }

    fn may_end(&self, rules: &Rules<P>, mark: u64, within: Within) -> bool {
        if rules.timing == Timing::Any {
            return true;
        }
        let mail = self.flights.iter().any(|flying| matches!(flying.parcel, Parcel::Mail(_)));
        if rules.timing == Timing::Patient && (mail || self.nodes().any(|node| !node.writing.is_empty())) {
            return false;
        }
        let running = self.nodes.iter().filter(|node| node.power == Power::Up);
        let latest =
            running.flat_map(|node| &node.timers).map(|timer| timer.mark + timer.within.most.as_millis());
        mark + within.least.as_millis() <= latest.min().unwrap_or(0).max(self.now_ms)
    }

    fn faults(&self, actions: &mut Vec<Action<P>>) {
        for (index, node) in self.nodes.iter().enumerate() {
            let process = ProcessId::at(index);
            if node.power != Power::Down && self.left.crashes > 0 {
                actions.push(Action::Crash(process));
            }
            if node.power == Power::Down && self.left.restarts > 0 {
                actions.push(Action::Restart { process, disk: true });
            }
            if node.power == Power::Down && self.left.wipes > 0 {
                actions.push(Action::Restart { process, disk: false });
            }
            if node.power == Power::Up && self.left.pauses > 0 {
                actions.push(Action::Pause(process));
            }
            if node.power == Power::Up && self.left.suspicions > 0 {
                let others =
                    self.nodes().filter(|other| other.power != Power::Down && other.peer != node.peer);
                actions.extend(others.map(|other| Action::Suspect(process, other.peer.process)));
            }
        }
        for (at, flying) in self.flights.iter().enumerate() {
            if !matches!(flying.parcel, Parcel::Mail(_)) || self.twin(at) {
                continue;
            }
            if self.left.drops > 0 {
                actions.push(Action::Drop(at));
            }
            if self.left.doubles > 0 {
                actions.push(Action::Double(at));
            }
        }
    }

    /// Whether a crash may fall within the step of this action.
    pub fn cuttable(&self, action: &Action<P>) -> bool {
        let steps = !matches!(
            action,
            Action::Drop(_) | Action::Double(_) | Action::Crash(_) | Action::Pause(_) | Action::Resume(_)
        );
        steps && self.left.crashes > 0
    }

    // ---- what happens

    /// Does this, and crashes the process that it is about at `cut`, if there is one. Says how many effects
    /// the step had.
    pub fn apply(
        &mut self,
        rules: &Rules<P>,
        action: &Action<P>,
        cut: Option<Cut>,
        out: &mut Outbox<P>,
    ) -> u32 {
        match action {
            Action::Call(process, call) => {
                self.made[process.index()] += 1;
                self.input(rules, *process, Input::Call(call.clone()), cut, out)
            }
            Action::Deliver(at) => self.deliver(rules, *at, cut, out),
            Action::Drop(at) => {
                self.left.drops -= 1;
                self.harmed = true;
                self.take(rules, *at);
                0
            }
            Action::Double(at) => {
                self.left.doubles -= 1;
                let Flying { from, to, parcel, .. } = self.flights[*at].clone();
                post(&mut self.flights, rules.order, from, to, parcel);
                0
            }
            Action::Fire(process, timer) => self.fire(rules, *process, *timer, cut, out),
            Action::Persist(process) => {
                self.at_node(rules, *process, cut, |node, now, post| node.persisted(now, cut, out, post))
            }
            Action::Crash(process) => {
                self.at_node(rules, *process, None, |node, _, post| node.crash(post));
                self.crashed(rules, *process);
                0
            }
            Action::Restart { process, disk } => {
                self.restart(rules, *process, *disk, out);
                0
            }
            Action::Pause(process) | Action::Resume(process) => {
                let pauses = matches!(action, Action::Pause(_));
                self.harmed = true;
                self.left.pauses -= u8::from(pauses);
                self.at_node(rules, *process, None, |node, _, _| {
                    node.power = if pauses { Power::Paused } else { Power::Up };
                });
                0
            }
            Action::Suspect(at, of) => {
                self.left.suspicions -= 1;
                let of_peer = self.nodes[of.index()].peer;
                let to = To::from(self.nodes[at.index()].peer);
                post(&mut self.flights, Order::Unordered, of_peer, to, Parcel::Trust);
                self.input(rules, *at, Input::Suspect(*of), cut, out)
            }
        }
    }

    fn at_node<T>(
        &mut self,
        rules: &Rules<P>,
        process: ProcessId,
        cut: Option<Cut>,
        act: impl FnOnce(&mut Node<P>, Now, &mut Post<'_, P>) -> T,
    ) -> T {
        let index = process.index();
        let mut post = Post { flights: &mut self.flights, order: rules.order, now_ms: self.now_ms };
        let now = Now { mono: Mono(0) + Span::from_millis(self.now_ms), wall: None };
        let done = act(Arc::make_mut(&mut self.nodes[index]), now, &mut post);
        if cut.is_some() && self.nodes[index].power == Power::Down {
            self.crashed(rules, process);
        }
        self.sum(index);
        done
    }

    fn input(
        &mut self,
        rules: &Rules<P>,
        process: ProcessId,
        input: Input<P>,
        cut: Option<Cut>,
        out: &mut Outbox<P>,
    ) -> u32 {
        self.at_node(rules, process, cut, |node, now, post| node.step(now, input, cut, out, post))
    }

    fn take(&mut self, rules: &Rules<P>, at: usize) -> Flying<P::Message> {
        let taken = self.flights.remove(at);
        if rules.order == Order::Fifo {
            for other in &mut self.flights {
                let same = other.from == taken.from && other.to.process == taken.to.process;
                other.place -= u32::from(same && other.place > taken.place);
            }
        }
        taken
    }

    fn deliver(&mut self, rules: &Rules<P>, at: usize, cut: Option<Cut>, out: &mut Outbox<P>) -> u32 {
        let Flying { from, to, parcel, .. } = self.take(rules, at);
        let node = &self.nodes[to.process.index()];
        let over = to.incarnation.is_some_and(|life| life != node.peer.incarnation);
        if node.power == Power::Down || over {
            return 0;
        }
        let input = match parcel {
            Parcel::Mail(message) => Input::Message { from, message },
            Parcel::Suspect => Input::Suspect(from.process),
            Parcel::Trust => Input::Trust(from),
        };
        self.input(rules, to.process, input, cut, out)
    }

    fn fire(
        &mut self,
        rules: &Rules<P>,
        process: ProcessId,
        timer: P::Timer,
        cut: Option<Cut>,
        out: &mut Outbox<P>,
    ) -> u32 {
        self.left.timers -= 1;
        let taken = Arc::make_mut(&mut self.nodes[process.index()]).take_timer(timer);
        if let Some(running) = taken.filter(|_| rules.timing != Timing::Any) {
            self.now_ms = self.now_ms.max(running.mark + running.within.least.as_millis());
        }
        self.input(rules, process, Input::Timer(timer), cut, out)
    }

    /// A life is over: mail for it is lost, and if it cannot start again, mail for the process is too.
    fn crashed(&mut self, rules: &Rules<P>, process: ProcessId) {
        self.left.crashes -= 1;
        self.harmed = true;
        let peer = self.nodes[process.index()].peer;
        let last = self.left.restarts == 0 && self.left.wipes == 0;
        let lost = |flying: &Flying<P::Message>| {
            flying.to.process == process && (last || flying.to.incarnation == Some(peer.incarnation))
        };
        while let Some(at) = self.flights.iter().position(&lost) {
            self.take(rules, at);
        }
        // The detector's older words about it are overtaken.
        self.flights.retain(|f| f.from.process != process || matches!(f.parcel, Parcel::Mail(_)));
        if rules.detector {
            self.tell(peer, Parcel::Suspect);
        }
    }

    fn restart(&mut self, rules: &Rules<P>, process: ProcessId, disk: bool, out: &mut Outbox<P>) {
        match disk {
            true => self.left.restarts -= 1,
            false => self.left.wipes -= 1,
        }
        self.at_node(rules, process, None, |node, now, post| {
            if !disk {
                node.record = None;
            }
            node.start((rules.maker)(process), now, out, post);
        });
        self.flights.retain(|f| f.from.process != process || matches!(f.parcel, Parcel::Mail(_)));
        if rules.detector {
            self.tell(self.nodes[process.index()].peer, Parcel::Trust);
        }
    }

    fn tell(&mut self, about: Peer, word: Parcel<P::Message>) {
        for node in self.nodes.iter().filter(|node| node.peer.process != about.process) {
            if node.power != Power::Down {
                post(&mut self.flights, Order::Unordered, about, To::from(node.peer), word.clone());
            }
        }
    }
}
