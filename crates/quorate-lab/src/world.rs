//! A simulated world: processes, links, disks and clocks, and time that passes only when told to.
//!
//! Everything that is not decided by the caller is drawn from the seed, so that one seed gives one history,
//! bit for bit; [`World::digest`] tells two histories apart. Nothing happens between two calls: a script may
//! deliver one message by hand, or let time run.

use crate::draw::mix;
use crate::network::{Delay, Network};
use crate::node::{Cut, Node, Power};
use crate::trace::Trace;
use crate::wires::{Due, Flight, Wires};
use quorate_core::id::ViewId;
use quorate_core::protocol::{Input, Kind, Members, Outbox, Peer, ProcessId, Protocol};
use quorate_core::trace::{Loss, MessageNo, What};

/// Makes the protocol of a process before its start.
pub type Maker<P> = std::sync::Arc<dyn Fn(ProcessId) -> P + Send + Sync>;

/// What the application answers to an event, after a while: how a workload goes on by itself.
pub type Reaction<P> = fn(&<P as Protocol>::Event) -> Option<<P as Protocol>::Call>;

/// A simulated world.
pub struct World<P: Protocol> {
    nodes: Vec<Node<P>>,
    /// Links, clocks and what is due.
    pub(crate) wires: Wires<P>,
    maker: Maker<P>,
    out: Outbox<P>,
    reaction: Option<(Reaction<P>, Delay)>,
    detector: Option<Delay>,
    cuts: Vec<Option<Cut>>,
    parked: Vec<Vec<Due<P>>>,
    reacted: u64,
}

impl<P: Protocol> World<P> {
    /// A world of `n` processes that have all begun, at time 0.
    pub fn new(seed: u64, n: usize, network: Network, maker: Maker<P>) -> Self {
        Self::recorded(seed, n, network, maker, Trace::default())
    }

    /// The same, recorded from the first step of the first process.
    pub fn recorded(seed: u64, n: usize, network: Network, maker: Maker<P>, trace: Trace) -> Self {
        let nodes: Vec<_> =
            (0..n).map(ProcessId::at).map(|process| Node::new(process, maker(process))).collect();
        let mut world = Self {
            wires: Wires::new(seed, n, network),
            nodes,
            maker,
            out: Outbox::default(),
            reaction: None,
            detector: None,
            cuts: vec![None; n],
            parked: (0..n).map(|_| Vec::new()).collect(),
            reacted: 0,
        };
        world.record(trace);
        for index in 0..n {
            world.restart(ProcessId::at(index));
        }
        world
    }

    /// Begins to record steps, or begins anew.
    pub fn record(&mut self, trace: Trace) {
        self.wires.trace = trace;
    }

    /// What was recorded.
    pub fn trace(&self) -> &Trace {
        &self.wires.trace
    }

    /// What was recorded, taken away.
    pub fn take_trace(&mut self) -> Trace {
        std::mem::take(&mut self.wires.trace)
    }

    /// Lets an application answer events by itself.
    pub fn react(&mut self, reaction: Reaction<P>, after: Delay) {
        self.reaction = Some((reaction, after));
    }

    /// Lets a detector that is never wrong tell everybody of each crash and start, after this long.
    pub fn detect(&mut self, after: Delay) {
        self.detector = Some(after);
    }

    /// The processes, in order.
    pub fn nodes(&self) -> &[Node<P>] {
        &self.nodes
    }

    /// One process.
    pub fn node(&self, process: ProcessId) -> &Node<P> {
        &self.nodes[process.index()]
    }

    /// The time that has passed, in microseconds.
    pub fn time_us(&self) -> u64 {
        self.wires.time
    }

    /// How many steps the processes have taken.
    pub fn steps(&self) -> u64 {
        self.wires.steps
    }

    /// Stands for the whole history so far.
    pub fn digest(&self) -> u64 {
        self.wires.digest
    }

    /// The messages under way, oldest first.
    pub fn flights(&self) -> Vec<&Flight<P::Message>> {
        self.wires.flights()
    }

    /// What the applications were told by the last step.
    pub fn emitted(&self) -> &[(Peer, P::Event)] {
        &self.wires.emitted
    }

    /// Whether anything was lost, crashed or stopped so far.
    pub fn harmed(&self) -> bool {
        self.wires.harmed
    }

    /// How the links and disks are from now on.
    pub fn set_network(&mut self, network: Network) {
        self.wires.network = network;
    }

    /// The links and disks.
    pub fn network(&self) -> Network {
        self.wires.network
    }

    // ---- what a caller does to it

    /// The application of a process asks. Nothing happens if the process does not run.
    pub fn call(&mut self, process: ProcessId, call: P::Call) {
        let node = &self.nodes[process.index()];
        match node.power {
            Power::Down => {}
            Power::Paused => self.parked[process.index()].push(Due::Call { process, call }),
            Power::Up => {
                self.wires.note(node.peer, What::Called { kind: call.kind() }, None, &call);
                self.input(process, Input::Call(call));
            }
        }
    }

    /// Delivers this message now. Says whether it is under way.
    pub fn deliver(&mut self, no: MessageNo) -> bool {
        match self.wires.take(no) {
            Some(flight) => {
                self.arrive(flight);
                true
            }
            None => false,
        }
    }

    /// Loses this message. Says whether it was under way.
    pub fn lose(&mut self, no: MessageNo) -> bool {
        match self.wires.take(no) {
            Some(flight) => {
                self.wires.lost(&flight, Loss::Link);
                true
            }
            None => false,
        }
    }

    /// Doubles this message. Says whether it is under way.
    pub fn double(&mut self, no: MessageNo) -> bool {
        self.wires.double(no)
    }

    /// Ends this timer now. Says whether it was running.
    pub fn fire(&mut self, process: ProcessId, timer: P::Timer) -> bool {
        let node = &mut self.nodes[process.index()];
        if node.power != Power::Up || node.take_timer(timer).is_none() {
            return false;
        }
        self.wires.note(node.peer, What::TimerFired { kind: timer.kind() }, None, &timer);
        self.input(process, Input::Timer(timer));
        true
    }

    /// Makes the oldest record under way durable now. Says whether there was one.
    pub fn persist(&mut self, process: ProcessId) -> bool {
        let index = process.index();
        let node = &mut self.nodes[index];
        let Some((id, _)) = node.writing.front() else { return false };
        if node.power == Power::Down {
            return false;
        }
        self.wires.note(node.peer, What::Persisted(*id), None, &"");
        let now = self.wires.now(index);
        self.wires.steps += 1;
        self.wires.emitted.clear();
        node.persisted(now, self.cuts[index].take(), &mut self.out, &mut self.wires);
        self.settle(index);
        true
    }

    /// Lets time pass in which nothing happens: what was due meanwhile is late.
    pub fn pass(&mut self, us: u64) {
        self.wires.time += us;
    }

    /// Crashes a process.
    pub fn crash(&mut self, process: ProcessId) {
        let node = &mut self.nodes[process.index()];
        if node.power != Power::Down {
            node.crash(&mut self.wires);
            self.crashed(process.index());
        }
    }

    /// Crashes a process within its next step, or, for [`Cut::Persist`], within the next that writes.
    pub fn crash_within(&mut self, process: ProcessId, cut: Cut) {
        if self.nodes[process.index()].power != Power::Down {
            self.cuts[process.index()] = Some(cut);
        }
    }

    /// Starts a process that is down, with what its disk holds.
    pub fn restart(&mut self, process: ProcessId) {
        let index = process.index();
        if self.nodes[index].power != Power::Down {
            return;
        }
        let now = self.wires.now(index);
        let node = &mut self.nodes[index];
        let next =
            Peer { process, incarnation: quorate_core::protocol::Incarnation(node.peer.incarnation.0 + 1) };
        self.wires.note(next, What::Started { record: node.record.is_some() }, None, &"");
        self.wires.emitted.clear();
        node.start((self.maker)(process), now, &mut self.out, &mut self.wires);
        self.settle(index);
        if let Some(after) = self.detector.filter(|_| next.incarnation.0 > 1) {
            self.tell(process, after, Due::Trust { at: process, of: next });
        }
    }

    /// Empties the disk of a process that is down.
    pub fn wipe(&mut self, process: ProcessId) {
        let node = &mut self.nodes[process.index()];
        if node.power == Power::Down {
            node.record = None;
        }
    }

    /// Stops a process without its noticing.
    pub fn pause(&mut self, process: ProcessId) {
        let node = &mut self.nodes[process.index()];
        if node.power == Power::Up {
            node.power = Power::Paused;
            self.wires.note(node.peer, What::Paused, None, &"");
        }
    }

    /// Lets a paused process go on. What came meanwhile comes now, in its order.
    pub fn resume(&mut self, process: ProcessId) {
        let node = &mut self.nodes[process.index()];
        if node.power == Power::Paused {
            node.power = Power::Up;
            self.wires.note(node.peer, What::Resumed, None, &"");
            for due in std::mem::take(&mut self.parked[process.index()]) {
                self.wires.push(self.wires.time, due);
            }
        }
    }

    /// Cuts the link from one to another: what is sent, or would arrive, is lost.
    pub fn cut(&mut self, from: ProcessId, to: ProcessId) {
        if self.wires.set_cut(from, to, true) {
            self.wires.note(self.nodes[from.index()].peer, What::Cut(to), None, &"");
        }
    }

    /// Mends the link from one to another.
    pub fn mend(&mut self, from: ProcessId, to: ProcessId) {
        if self.wires.set_cut(from, to, false) {
            self.wires.note(self.nodes[from.index()].peer, What::Mended(to), None, &"");
        }
    }

    /// Mends all links, and forgets the crashes that were to come within a step.
    pub fn heal(&mut self) {
        self.cuts.fill(None);
        let all = || (0..self.nodes.len()).map(ProcessId::at);
        let pairs: Vec<_> = all().flat_map(|a| all().map(move |b| (a, b))).collect();
        for (from, to) in pairs {
            self.mend(from, to);
        }
    }

    /// Lets a process suspect another, rightly or not.
    pub fn suspect(&mut self, at: ProcessId, of: ProcessId) {
        if self.awake(at, Due::Suspect { at, of }) {
            self.wires.note(self.nodes[at.index()].peer, What::Suspected(of), None, &"");
            self.input(at, Input::Suspect(of));
        }
    }

    /// Lets a process trust another in its present life.
    pub fn trust(&mut self, at: ProcessId, of: ProcessId) {
        let peer = self.nodes[of.index()].peer;
        self.trust_life(at, peer);
    }

    fn trust_life(&mut self, at: ProcessId, of: Peer) {
        if self.awake(at, Due::Trust { at, of }) {
            let what = What::Trusted(of.process, of.incarnation);
            self.wires.note(self.nodes[at.index()].peer, what, None, &"");
            self.input(at, Input::Trust(of));
        }
    }

    /// Tells a process a view.
    pub fn view(&mut self, at: ProcessId, id: ViewId, members: Members) {
        if self.nodes[at.index()].power == Power::Up {
            let what = What::View(members.count() as u32);
            self.wires.note(self.nodes[at.index()].peer, what, None, &"");
            self.input(at, Input::View { id, members });
        }
    }

    /// Lets the monotonic clock of a process run at so many parts in a million more than true time.
    pub fn clock_rate(&mut self, process: ProcessId, ppm: i32) {
        self.wires.note(self.nodes[process.index()].peer, What::ClockRate(ppm), None, &"");
        self.wires.set_clock(process.index(), 0, ppm);
        self.reschedule(process);
    }

    /// Moves the monotonic clock of a process on at once. It cannot go back.
    pub fn clock_jump(&mut self, process: ProcessId, us: u64) {
        self.wires.note(self.nodes[process.index()].peer, What::ClockJumped(us), None, &"");
        let ppm = self.wires.clock_rate(process.index());
        self.wires.set_clock(process.index(), us, ppm);
        self.reschedule(process);
    }

    fn reschedule(&mut self, process: ProcessId) {
        for running in &mut self.nodes[process.index()].timers {
            running.mark = self.wires.again(process.index(), running.timer, running.mark);
        }
    }

    // ---- time

    /// Takes the next thing that is due. Says false if nothing is.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "it is the field's word for one event of a simulation")]
    pub fn next(&mut self) -> bool {
        match self.wires.pop() {
            Some(due) => {
                self.happen(due);
                true
            }
            None => false,
        }
    }

    /// Lets time run until it is `until_us`, or `steps_max` things have happened. Says how many did.
    pub fn run_until(&mut self, until_us: u64, steps_max: u64) -> u64 {
        let mut done = 0;
        while done < steps_max && self.wires.next_due().is_some_and(|at| at <= until_us) && self.next() {
            done += 1;
        }
        if done < steps_max {
            self.wires.time = self.wires.time.max(until_us);
        }
        done
    }

    /// Lets time run until nothing is due, or `steps_max` things have happened. Says how many did.
    pub fn run(&mut self, steps_max: u64) -> u64 {
        let mut done = 0;
        while done < steps_max && self.next() {
            done += 1;
        }
        done
    }

    fn happen(&mut self, due: Due<P>) {
        match due {
            Due::Deliver { slot, no } => {
                if let Some(flight) = self.wires.take_slot(slot, no) {
                    self.arrive(flight);
                }
            }
            Due::Fire { process, timer, mark } => self.ring(process, timer, mark),
            Due::Durable { peer } => {
                let node = &self.nodes[peer.process.index()];
                if node.peer == peer && self.awake(peer.process, Due::Durable { peer }) {
                    self.persist(peer.process);
                }
            }
            Due::Call { process, call } => self.call(process, call),
            Due::Suspect { at, of } => self.suspect(at, of),
            Due::Trust { at, of } => self.trust_life(at, of),
        }
    }

    fn ring(&mut self, process: ProcessId, timer: P::Timer, mark: u64) {
        let node = &self.nodes[process.index()];
        if !node.timers.iter().any(|running| running.timer == timer && running.mark == mark) {
            return;
        }
        if self.awake(process, Due::Fire { process, timer, mark }) {
            self.fire(process, timer);
        }
    }

    /// Whether a process can take an input now. A paused one gets it later.
    fn awake(&mut self, process: ProcessId, due: Due<P>) -> bool {
        match self.nodes[process.index()].power {
            Power::Up => true,
            Power::Down => false,
            Power::Paused => {
                self.parked[process.index()].push(due);
                false
            }
        }
    }

    #[inline]
    fn arrive(&mut self, flight: Flight<P::Message>) {
        let to = flight.to.process;
        let node = &self.nodes[to.index()];
        let former = flight.to.incarnation.is_some_and(|life| life != node.peer.incarnation);
        let loss = match node.power {
            Power::Down => Some(Loss::Down),
            _ if former => Some(Loss::FormerLife),
            _ if self.wires.is_cut(flight.from.process, to) => Some(Loss::Partition),
            _ => None,
        };
        if let Some(loss) = loss {
            return self.wires.lost(&flight, loss);
        }
        if node.power == Power::Paused {
            let due = self.wires.keep(flight);
            return self.parked[to.index()].push(due);
        }
        self.wires.received(node.peer, &flight);
        self.input(to, Input::Message { from: flight.from, message: flight.message });
    }

    fn input(&mut self, process: ProcessId, input: Input<P>) {
        let index = process.index();
        let now = self.wires.now(index);
        self.wires.steps += 1;
        self.wires.emitted.clear();
        let cut = self.cuts[index].take();
        self.nodes[index].step(now, input, cut, &mut self.out, &mut self.wires);
        if cut == Some(Cut::Persist) && self.nodes[index].power == Power::Up {
            self.cuts[index] = cut;
        }
        self.settle(index);
    }

    /// After a step: the application reacts, and a crash within the step is told.
    fn settle(&mut self, index: usize) {
        if self.nodes[index].power == Power::Down {
            self.crashed(index);
        }
        let Some((reaction, after)) = self.reaction else { return };
        for at in 0..self.wires.emitted.len() {
            let (peer, event) = &self.wires.emitted[at];
            if let Some(call) = reaction(event) {
                self.reacted += 1;
                let due = Due::Call { process: peer.process, call };
                let pause = after.pick(mix(self.wires.seed, 7, self.reacted));
                self.wires.push(self.wires.time + pause, due);
            }
        }
    }

    fn crashed(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        self.wires.note(node.peer, What::Crashed, None, &"");
        self.wires.lose_life(node.peer);
        self.cuts[index] = None;
        self.parked[index].clear();
        let process = ProcessId::at(index);
        if let Some(after) = self.detector {
            self.tell(process, after, Due::Suspect { at: process, of: process });
        }
    }

    /// Everybody but this one gets to know, each after its own while.
    fn tell(&mut self, about: ProcessId, after: Delay, due: Due<P>) {
        for at in (0..self.nodes.len()).map(ProcessId::at).filter(|at| *at != about) {
            self.reacted += 1;
            let when = self.wires.time + after.pick(mix(self.wires.seed, 8, self.reacted));
            let due = match &due {
                Due::Trust { of, .. } => Due::Trust { at, of: *of },
                _ => Due::Suspect { at, of: about },
            };
            self.wires.push(when, due);
        }
    }
}
