//! Seeded random worlds: faults for a while, with safety checked at every step; then everything heals, and
//! everybody who waits must get on within a bounded virtual time.
//!
//! A [`Plan`] is drawn from its seed before the run: what is called, what fails, and when. The run draws only
//! delays and fates of messages, each from its own place on its link, so that a plan with fewer faults leaves
//! the rest of the run as it was ([`crate::shrink`] lives on that).

use crate::check::one_inside_of;
use crate::draw::Draw;
use crate::network::{Delay, Network};
use crate::node::{Cut, Node, Power};
use crate::world::{Maker, Reaction, World};
use quorate_core::mutex::{Call, Event, Mutex, Standing};
use quorate_core::protocol::{ProcessId, Protocol};
use std::ops::Range;

/// Something that is done to a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A process crashes.
    Crash(ProcessId),
    /// It crashes within its next step.
    CrashWithin(ProcessId, Cut),
    /// It starts again, perhaps with an empty disk.
    Restart(ProcessId, bool),
    /// It stops without noticing.
    Pause(ProcessId),
    /// It goes on.
    Resume(ProcessId),
    /// A link is cut one way.
    Cut(ProcessId, ProcessId),
    /// It is mended.
    Mend(ProcessId, ProcessId),
    /// One suspects another, rightly or not.
    Suspect(ProcessId, ProcessId),
    /// One trusts another again.
    Trust(ProcessId, ProcessId),
    /// A clock runs faster or slower by parts in a million.
    ClockRate(ProcessId, i32),
    /// A clock jumps on by microseconds.
    ClockJump(ProcessId, u64),
}

/// Which faults a fuzzer draws. Each is a number of times out of a thousand that a fault is of this sort;
/// what is left over is no fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Odds {
    /// How many faults are drawn for a world, at most.
    pub faults_max: u64,
    /// Crashes with a later start; half of them within a step.
    pub crash: u64,
    /// Of a thousand starts, how many find an empty disk.
    pub wipe: u64,
    /// Pauses with a later going on.
    pub pause: u64,
    /// One-way cuts with a later mending.
    pub cut: u64,
    /// Partitions of one process from all others, both ways, with a later mending.
    pub isolate: u64,
    /// Suspicions with a later trust.
    pub suspect: u64,
    /// Clock rates up to 500 parts in a million, either way.
    pub clock_rate: u64,
    /// Clock jumps up to 10 s.
    pub clock_jump: u64,
}

impl Odds {
    /// Everything that leaves the disks as they are.
    pub const EVERYTHING: Self = Self {
        faults_max: 6,
        crash: 250,
        wipe: 0,
        pause: 150,
        cut: 150,
        isolate: 100,
        suspect: 100,
        clock_rate: 50,
        clock_jump: 50,
    };
}

/// What happens in a world by its seed.
#[derive(Clone, Debug)]
pub struct Plan<P: Protocol> {
    /// Draws delays and fates.
    pub seed: u64,
    /// The links and disks until everything heals.
    pub network: Network,
    /// Who asks what, when.
    pub calls: Vec<(u64, ProcessId, P::Call)>,
    /// What fails, when.
    pub faults: Vec<(u64, Fault)>,
}

/// Why a plan failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Something bad happened.
    Unsafe(String),
    /// Something good did not happen after everything healed.
    Stuck(String),
}

/// How a plan went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Steps of processes.
    pub steps: u64,
    /// Stands for the history.
    pub digest: u64,
}

/// Draws plans and runs them.
#[derive(Clone)]
pub struct Fuzzer<P: Protocol> {
    /// Makes a process before its start.
    pub maker: Maker<P>,
    /// How many processes.
    pub n: usize,
    /// The links and disks while faults go on; loss and doubling end when everything heals.
    pub network: Network,
    /// Which faults.
    pub odds: Odds,
    /// What each process asks, so many times, in the time of faults.
    pub calls: (P::Call, u64),
    /// What the application answers, and how soon.
    pub reaction: (Reaction<P>, Delay),
    /// How long faults go on, in microseconds.
    pub faults_us: u64,
    /// How long everybody has to get on afterwards.
    pub settle_us: u64,
    /// Everybody is told of crashes and starts that long after.
    pub detector: Option<Delay>,
    /// What must hold whenever an application was told something.
    pub check: fn(&World<P>) -> Result<(), String>,
    /// What must hold in the end.
    pub goal: fn(&World<P>) -> Result<(), String>,
}

/// Who enters leaves.
pub fn leave(event: &Event) -> Option<Call> {
    matches!(event, Event::Entered { .. }).then_some(Call::Leave)
}

/// In the end nobody waits.
pub fn nobody_waits<P: Mutex>(world: &World<P>) -> Result<(), String> {
    let waiting = |node: &&Node<P>| node.power == Power::Up && node.machine.standing() == Standing::Waiting;
    match world.nodes().iter().find(waiting) {
        None => Ok(()),
        Some(node) => {
            let waits: Vec<_> = node.machine.waits().iter().map(ToString::to_string).collect();
            Err(format!("{} still waits: {}", node.peer, waits.join("; ")))
        }
    }
}

impl<P: Mutex> Fuzzer<P> {
    /// Worlds of mutual exclusion: each process enters twice within a tenth of a second, over links that lose and
    /// double; at most one is inside at any time, and nobody waits five seconds after everything has healed.
    pub fn of_mutex(maker: Maker<P>, n: usize, odds: Odds) -> Self {
        Self {
            maker,
            n,
            network: Network::noisy(),
            odds,
            calls: (Call::Enter, 2),
            reaction: (leave, Delay::Even(0, 5_000)),
            faults_us: 100_000,
            settle_us: 5_000_000,
            detector: None,
            check: |world| one_inside_of(world.nodes().iter()),
            goal: nobody_waits,
        }
    }
}

impl<P: Protocol> Fuzzer<P> {
    /// The plan of a seed.
    pub fn plan(&self, seed: u64) -> Plan<P> {
        let mut draw = Draw::new(seed);
        let mut calls = Vec::new();
        for process in (0..self.n).map(ProcessId::at) {
            for _ in 0..self.calls.1 {
                calls.push((draw.below(self.faults_us), process, self.calls.0.clone()));
            }
        }
        let mut faults = Vec::new();
        if self.odds.faults_max > 0 {
            for _ in 0..draw.below(self.odds.faults_max + 1) {
                self.fault(&mut draw, &mut faults);
            }
        }
        calls.sort_unstable_by_key(|(at, process, _)| (*at, *process));
        faults.sort_by_key(|(at, _)| *at);
        Plan { seed, network: self.network, calls, faults }
    }

    fn fault(&self, draw: &mut Draw, faults: &mut Vec<(u64, Fault)>) {
        let odds = &self.odds;
        let at = draw.below(self.faults_us);
        let end = at + draw.below(self.faults_us);
        let one = ProcessId::at(draw.below(self.n as u64) as usize);
        let other = ProcessId::at((one.index() + 1 + draw.below(self.n.max(2) as u64 - 1) as usize) % self.n);
        let mut sort = draw.below(1_000);
        let mut drawn = |share: u64| {
            let mine = sort < share;
            sort = if mine { u64::MAX } else { sort.saturating_sub(share) };
            mine
        };
        if drawn(odds.crash) {
            let within = draw.permille(500).then(|| Cut::Effects(draw.below(4) as u32));
            faults.push((at, within.map_or(Fault::Crash(one), |cut| Fault::CrashWithin(one, cut))));
            faults.push((end, Fault::Restart(one, !draw.permille(odds.wipe))));
        } else if drawn(odds.pause) {
            faults.extend([(at, Fault::Pause(one)), (end, Fault::Resume(one))]);
        } else if drawn(odds.cut) {
            faults.extend([(at, Fault::Cut(one, other)), (end, Fault::Mend(one, other))]);
        } else if drawn(odds.isolate) {
            for other in (0..self.n).map(ProcessId::at).filter(|other| *other != one) {
                faults.extend([(at, Fault::Cut(one, other)), (at, Fault::Cut(other, one))]);
                faults.extend([(end, Fault::Mend(one, other)), (end, Fault::Mend(other, one))]);
            }
        } else if drawn(odds.suspect) {
            faults.extend([(at, Fault::Suspect(one, other)), (end, Fault::Trust(one, other))]);
        } else if drawn(odds.clock_rate) {
            faults.push((at, Fault::ClockRate(one, draw.below(1_001) as i32 - 500)));
        } else if drawn(odds.clock_jump) {
            faults.push((at, Fault::ClockJump(one, draw.below(10_000_000))));
        }
    }

    /// The world of a plan, at its beginning.
    pub fn world(&self, plan: &Plan<P>) -> World<P> {
        let mut world = World::new(plan.seed, self.n, plan.network, self.maker.clone());
        world.react(self.reaction.0, self.reaction.1);
        if let Some(after) = self.detector {
            world.detect(after);
        }
        world
    }

    /// Runs a plan.
    ///
    /// # Errors
    /// Says what did not hold.
    pub fn run(&self, plan: &Plan<P>) -> Result<Outcome, Failure> {
        let mut world = self.world(plan);
        let check = |world: &mut World<P>| match world.emitted().is_empty() {
            true => Ok(()),
            false => (self.check)(world).map_err(Failure::Unsafe),
        };
        self.drive(&mut world, plan, check)?;
        (self.goal)(&world).map_err(Failure::Stuck)?;
        Ok(Outcome { steps: world.steps(), digest: world.digest() })
    }

    /// Takes a world through a plan and the healing after it, and looks at it after each step.
    pub(crate) fn drive(
        &self,
        world: &mut World<P>,
        plan: &Plan<P>,
        mut look: impl FnMut(&mut World<P>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (mut calls, mut faults) = (plan.calls.iter().peekable(), plan.faults.iter().peekable());
        loop {
            let call_at = calls.peek().map(|(at, ..)| *at);
            let fault_at = faults.peek().map(|(at, _)| *at);
            let Some(at) = [call_at, fault_at].into_iter().flatten().min() else { break };
            while world.run_until(at, 1) == 1 {
                look(world)?;
            }
            if fault_at == Some(at)
                && let Some((_, fault)) = faults.next()
            {
                inflict(world, *fault);
            } else if let Some((_, process, call)) = calls.next() {
                world.call(*process, call.clone());
            }
            look(world)?;
        }
        self.heal(world);
        look(world)?;
        let end = world.time_us() + self.settle_us;
        while world.run_until(end, 1) == 1 {
            look(world)?;
        }
        Ok(())
    }

    fn heal(&self, world: &mut World<P>) {
        world.heal();
        world.set_network(Network { loss_permille: 0, double_permille: 0, ..world.network() });
        for process in (0..self.n).map(ProcessId::at) {
            match world.node(process).power {
                Power::Up => {}
                Power::Paused => world.resume(process),
                Power::Down => world.restart(process),
            }
        }
        for at in (0..self.n).map(ProcessId::at) {
            for of in (0..self.n).map(ProcessId::at).filter(|of| *of != at && self.odds.suspect > 0) {
                world.trust(at, of);
            }
        }
    }

    /// Runs the worlds of these seeds. Says the first that fails, and how many steps all took.
    pub fn fuzz(&self, seeds: Range<u64>) -> (u64, Option<(Plan<P>, Failure)>) {
        let mut steps = 0;
        for seed in seeds {
            let plan = self.plan(seed);
            match self.run(&plan) {
                Ok(outcome) => steps += outcome.steps,
                Err(failure) => return (steps, Some((plan, failure))),
            }
        }
        (steps, None)
    }
}

/// Does a fault to a world. One that makes no sense now does nothing.
pub fn inflict<P: Protocol>(world: &mut World<P>, fault: Fault) {
    match fault {
        Fault::Crash(process) => world.crash(process),
        Fault::CrashWithin(process, cut) => world.crash_within(process, cut),
        Fault::Restart(process, disk) => {
            if !disk {
                world.wipe(process);
            }
            world.restart(process);
        }
        Fault::Pause(process) => world.pause(process),
        Fault::Resume(process) => world.resume(process),
        Fault::Cut(from, to) => world.cut(from, to),
        Fault::Mend(from, to) => world.mend(from, to),
        Fault::Suspect(at, of) => world.suspect(at, of),
        Fault::Trust(at, of) => world.trust(at, of),
        Fault::ClockRate(process, ppm) => world.clock_rate(process, ppm),
        Fault::ClockJump(process, us) => world.clock_jump(process, us),
    }
}
