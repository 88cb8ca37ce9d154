//! One scenario being played: it does what a command says, and tells what happened.

use crate::diagram::graph::waits_of;
use crate::network::{Delay, Network, Order};
use crate::node::Cut;
use crate::script::Command;
use crate::story::Story;
use crate::trace::Trace;
use crate::world::World;
use quorate_core::id::ViewId;
use quorate_core::protocol::{Kind, Members, Peer, ProcessId, Protocol};
use quorate_core::trace::{Loss, MessageNo, Step, What};
use quorate_core::wait::Wait;
use std::ops::RangeInclusive;

/// At most so many things happen in one `run`, so that a scenario ends.
const STEPS_MAX: u64 = 100_000;

/// A world that a script speaks to, whatever its protocol.
pub trait Stage {
    /// Does what a command says.
    ///
    /// # Errors
    /// Says what is wrong with the command.
    fn command(&mut self, command: &Command) -> Result<Vec<String>, String>;

    /// What happened since the last time this was asked, a line each.
    fn history(&mut self) -> Vec<String>;

    /// Everything that was recorded.
    fn trace(&self) -> &Trace;

    /// How many processes there are.
    fn count(&self) -> usize;

    /// Stands for the whole history so far.
    fn digest(&self) -> u64;

    /// The recording with its names, to be drawn and exported.
    fn story(&self, title: &str, caption: &str) -> Story;

    /// Who waits for what, now.
    fn waiting(&self) -> Vec<(ProcessId, Vec<Wait>)>;
}

/// What must hold after each step.
pub type Check<P> = fn(&World<P>) -> Result<(), String>;

/// The answer to `count`, from a recording.
pub type Count = fn(&Trace, usize) -> Vec<String>;

/// A scenario of one protocol.
pub struct Play<P: Protocol> {
    world: World<P>,
    check: Check<P>,
    count: Count,
    told: usize,
    told_at: u64,
    violated: bool,
}

impl<P: Protocol> Play<P> {
    /// A scenario in this world, which has been recorded from its start.
    pub fn new(world: World<P>, check: Check<P>, count: Count) -> Self {
        Self { world, check, count, told: 0, told_at: 0, violated: false }
    }

    /// The world as it is now.
    pub fn world(&self) -> &World<P> {
        &self.world
    }

    fn process(&self, text: &str) -> Result<ProcessId, String> {
        let process: ProcessId = text.parse().map_err(|_| format!("{text} is not a process"))?;
        let known = (1..=self.world.nodes().len() as u32).contains(&process.0);
        if known { Ok(process) } else { Err(format!("there is no {process}")) }
    }

    fn processes(&self, text: &str) -> Result<Vec<ProcessId>, String> {
        match text {
            "*" => Ok((0..self.world.nodes().len()).map(ProcessId::at).collect()),
            list => list.split(',').map(|one| self.process(one)).collect(),
        }
    }

    /// The links that `n1->n2` names; `*` and lists such as `n1,n2` stand for several.
    fn links(&self, text: &str) -> Result<Vec<(ProcessId, ProcessId)>, String> {
        let (from, to) =
            text.split_once("->").ok_or_else(|| format!("{text} is not a link such as n1->n2"))?;
        let links = pairs(&self.processes(from)?, &self.processes(to)?);
        if links.is_empty() { Err(format!("{text} is no link: nobody sends to itself")) } else { Ok(links) }
    }

    /// The message that `n1->n2 KIND request #2` names: the second oldest of that kind on that link.
    fn message(&self, command: &Command) -> Result<MessageNo, String> {
        let links = self.links(command.word(0)?)?;
        let mut nth = 1;
        let (mut kind, mut about) = (None, None);
        for word in command.words_from(1) {
            match word.strip_prefix('#') {
                Some(number) => {
                    let counted = number.parse().ok().filter(|number| *number > 0);
                    nth = counted.ok_or_else(|| format!("{word} is no place: the oldest is #1"))?;
                }
                None if P::Message::KINDS.contains(&word.as_str()) => kind = Some(word),
                None if word.contains('.') => about = Some(word),
                None => {
                    let known = P::Message::KINDS.join(", ");
                    return Err(format!("{word} is no sort of message; there are {known}"));
                }
            }
        }
        let fits = |message: &P::Message| {
            kind.is_none_or(|kind| message.name() == kind)
                && about.is_none_or(|about| message.about().is_some_and(|r| r.to_string() == *about))
        };
        let flights = self.world.flights();
        let mut found = flights.iter().filter(|flight| {
            links.contains(&(flight.from.process, flight.to.process)) && fits(&flight.message)
        });
        found.nth(nth - 1).map(|flight| flight.no).ok_or_else(|| "no such message is under way".to_string())
    }

    fn timer(&self, process: ProcessId, name: &str) -> Result<P::Timer, String> {
        let running = &self.world.node(process).timers;
        let found = running.iter().find(|running| running.timer.name() == name);
        found.map(|running| running.timer).ok_or_else(|| {
            let known: Vec<_> = running.iter().map(|running| running.timer.name()).collect();
            let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
            format!("{process} has no timer {name} running; of its timers {known} runs")
        })
    }

    fn crash(&mut self, command: &Command) -> Result<(), String> {
        let process = self.process(command.word(0)?)?;
        match command.word_if(1) {
            None => self.world.crash(process),
            Some("after") => match command.word(2)? {
                "persist" => self.world.crash_within(process, Cut::Persist),
                count => {
                    let count = count.parse().map_err(|_| format!("{count} is not a number of effects"))?;
                    self.world.crash_within(process, Cut::Effects(count));
                }
            },
            Some(other) => return Err(format!("crash knows no {other}")),
        }
        Ok(())
    }

    fn partition(&mut self, command: &Command) -> Result<(), String> {
        let mut groups: Vec<Vec<ProcessId>> = Vec::new();
        for side in command.words_from(0).split(|word| word == "|") {
            groups.push(side.iter().map(|word| self.process(word)).collect::<Result<_, _>>()?);
        }
        if groups.len() < 2 || groups.iter().any(Vec::is_empty) {
            return Err("a partition has sides, such as n1 | n2 n3".into());
        }
        let mut all = groups.concat();
        all.sort_unstable();
        if let Some(pair) = all.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("{} cannot be on both sides", pair[0]));
        }
        for (at, side) in groups.iter().enumerate() {
            for other in groups.iter().enumerate().filter(|(index, _)| *index != at).flat_map(|(_, o)| o) {
                side.iter().for_each(|one| self.world.cut(*one, *other));
            }
        }
        Ok(())
    }

    fn clock(&mut self, command: &Command) -> Result<(), String> {
        let process = self.process(command.word(0)?)?;
        let (jump, rate) = (command.option("jump"), command.option("rate"));
        if jump.is_none() && rate.is_none() {
            return Err("a clock takes jump=10s, rate=200ppm, or both".into());
        }
        if let Some(jump) = jump {
            self.world.clock_jump(process, micros(jump)?);
        }
        if let Some(text) = rate {
            let ppm = text.strip_suffix("ppm").unwrap_or(text).parse().ok();
            let ppm = ppm.filter(|ppm| PPM.contains(ppm));
            self.world.clock_rate(process, ppm.ok_or_else(|| not_a_rate(text))?);
        }
        Ok(())
    }

    fn network(&mut self, command: &Command) -> Result<(), String> {
        let network = network(command, self.world.network())?;
        self.world.set_network(network);
        Ok(())
    }

    fn run(&mut self, command: &Command) -> Result<(), String> {
        let until = match command.word_if(0) {
            Some(span) => Some(self.world.time_us() + micros(span)?),
            None => None,
        };
        let mut done = 0;
        let once = |world: &mut World<P>| match until {
            Some(until) => world.run_until(until, 1) == 1,
            None => world.next(),
        };
        while done < STEPS_MAX && once(&mut self.world) {
            self.hold();
            done += 1;
        }
        if done == STEPS_MAX {
            return Err(match until {
                Some(_) => {
                    format!("that is more than {STEPS_MAX} steps, the most of one run: let it run for less")
                }
                None => {
                    format!("it still goes on after {STEPS_MAX} steps: say for how long, such as run 100ms")
                }
            });
        }
        Ok(())
    }

    /// Checks what must hold, and tells the first time that it does not.
    fn hold(&mut self) {
        if self.violated {
            return;
        }
        if let Err(why) = (self.check)(&self.world) {
            self.violated = true;
            self.world.wires.violated(&why);
        }
    }

    fn waits(&self, command: &Command) -> Result<Vec<String>, String> {
        let whom = match command.word_if(0) {
            Some(one) => self.processes(one)?,
            None => self.processes("*")?,
        };
        let nodes = whom.iter().map(|process| self.world.node(*process));
        let lines = nodes.flat_map(|node| {
            let waits = node.machine.waits();
            waits.into_iter().map(move |wait| format!("{}: {wait}", node.peer))
        });
        let lines: Vec<_> = lines.collect();
        Ok(if lines.is_empty() { vec!["nobody waits".into()] } else { lines })
    }

    fn act(&mut self, command: &Command) -> Result<(), String> {
        match command.name.as_str() {
            "call" => {
                let process = self.process(command.word(0)?)?;
                let (word, known) = (command.word(1)?, P::Call::KINDS.join(", "));
                let call = word.parse().map_err(|_| format!("there is no call {word}; there are {known}"))?;
                self.world.call(process, call);
            }
            "deliver" => {
                let no = self.message(command)?;
                self.world.deliver(no);
            }
            "drop" => {
                let no = self.message(command)?;
                self.world.lose(no);
            }
            "double" => {
                let no = self.message(command)?;
                self.world.double(no);
            }
            "fire" => {
                let process = self.process(command.word(0)?)?;
                let timer = self.timer(process, command.word(1)?)?;
                self.world.fire(process, timer);
            }
            "suspect" | "trust" => {
                let (at, of) = (self.processes(command.word(0)?)?, self.processes(command.word(1)?)?);
                for (at, of) in pairs(&at, &of) {
                    match command.name.as_str() {
                        "suspect" => self.world.suspect(at, of),
                        _ => self.world.trust(at, of),
                    }
                }
            }
            "view" => self.view(command)?,
            "cut" | "mend" => {
                for (from, to) in self.links(command.word(0)?)? {
                    match command.name.as_str() {
                        "cut" => self.world.cut(from, to),
                        _ => self.world.mend(from, to),
                    }
                }
            }
            "partition" => self.partition(command)?,
            "heal" => self.world.heal(),
            "crash" => self.crash(command)?,
            "clock" => self.clock(command)?,
            "network" => self.network(command)?,
            "pass" => self.world.pass(micros(command.word(0)?)?),
            "run" => self.run(command)?,
            _ => self.act_on_process(command)?,
        }
        Ok(())
    }

    fn act_on_process(&mut self, command: &Command) -> Result<(), String> {
        let act: fn(&mut World<P>, ProcessId) = match command.name.as_str() {
            "persist" => |world, process| {
                world.persist(process);
            },
            "restart" => World::restart,
            "pause" => World::pause,
            "resume" => World::resume,
            _ => return Err(command.unknown()),
        };
        let keeps_disk = command.name != "restart" || command.choice("disk", &["yes", "no"])? == "yes";
        for process in self.processes(command.word(0)?)? {
            if !keeps_disk {
                self.world.wipe(process);
            }
            act(&mut self.world, process);
        }
        Ok(())
    }

    fn view(&mut self, command: &Command) -> Result<(), String> {
        let members = Members::new(self.processes(command.word(0)?)?);
        let id = command.option("id").map_or(Ok(2), str::parse);
        let id = ViewId(id.map_err(|_| "the id of a view is a number".to_string())?);
        let at: Vec<_> = match command.option("at") {
            Some(list) => self.processes(list)?,
            None => members.iter().collect(),
        };
        at.into_iter().for_each(|process| self.world.view(process, id, members.clone()));
        Ok(())
    }
}

impl<P: Protocol> Stage for Play<P> {
    fn command(&mut self, command: &Command) -> Result<Vec<String>, String> {
        match command.name.as_str() {
            "waits" => self.waits(command),
            "count" => Ok((self.count)(self.world.trace(), self.world.nodes().len())),
            _ => {
                self.act(command)?;
                self.hold();
                Ok(self.history())
            }
        }
    }

    fn history(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let trace = self.world.trace();
        for step in trace.steps().skip(self.told) {
            if let Some(line) = line::<P>(trace, step) {
                if step.at.0 != self.told_at {
                    self.told_at = step.at.0;
                    lines.push(format!("at {}.{:03} ms", step.at.0 / 1_000, step.at.0 % 1_000));
                }
                lines.push(line);
            }
        }
        self.told = trace.steps().len();
        lines
    }

    fn trace(&self) -> &Trace {
        self.world.trace()
    }

    fn count(&self) -> usize {
        self.world.nodes().len()
    }

    fn digest(&self) -> u64 {
        self.world.digest()
    }

    fn story(&self, title: &str, caption: &str) -> Story {
        Story::of(&self.world, title, caption)
    }

    fn waiting(&self) -> Vec<(ProcessId, Vec<Wait>)> {
        waits_of(&self.world)
    }
}

/// Each of the first with each of the others.
fn pairs(ones: &[ProcessId], others: &[ProcessId]) -> Vec<(ProcessId, ProcessId)> {
    let pairs = ones.iter().flat_map(|one| others.iter().map(move |other| (*one, *other)));
    pairs.filter(|(one, other)| one != other).collect()
}

/// A step in words; none for what a script says itself.
pub fn line<P: Protocol>(trace: &Trace, step: &Step) -> Option<String> {
    let (peer, words) = (step.at_peer, trace.words(step));
    Some(match step.what {
        What::Started { .. } if peer.incarnation.0 == 1 => return None,
        What::Called { .. } | What::Cut(_) | What::Mended(_) | What::View(_) => return None,
        What::ClockRate(_) | What::ClockJumped(_) | What::TimerCancelled { .. } => return None,
        What::Started { record: true } => format!("{peer} starts with its record"),
        What::Started { record: false } => format!("{peer} starts with an empty disk"),
        What::Crashed => format!("{peer} crashes"),
        What::Paused => format!("{peer} is paused"),
        What::Resumed => format!("{peer} goes on"),
        What::Sent { to, .. } => format!("{peer} -> {to}  {words}"),
        What::Received { from, .. } => format!("{peer} <- {from}  {words}"),
        What::Dropped { to, why, .. } => format!("{peer} -x {to}  {words}, lost: {}", lost(why)),
        What::Doubled { .. } => format!("{peer} ->> {words}, doubled"),
        What::TimerSet { drawn_us, .. } => format!("{peer} sets {words}, {} ms", drawn_us / 1_000),
        What::TimerFired { .. } => format!("{peer}: {words} ends"),
        What::Persist(id) => format!("{peer} writes record {}", id.0),
        What::Persisted(id) => format!("{peer} has record {} on disk", id.0),
        What::Emitted { .. } => format!("{peer} {words}"),
        What::Ignored { from, .. } => format!("{peer} ignores {words}, from {from}"),
        What::Suspected(of) => format!("{peer} suspects {of}"),
        What::Trusted(process, incarnation) => format!("{peer} trusts {}", Peer { process, incarnation }),
        What::Violated => format!("VIOLATED: {words}"),
    })
}

fn lost(why: Loss) -> &'static str {
    match why {
        Loss::Link => "the link lost it",
        Loss::Partition => "the link is cut",
        Loss::Down => "the receiver is down",
        Loss::FormerLife => "that life is over",
        Loss::Unwritten => "its record was not written",
    }
}

/// A time such as `10ms`, `250us` or `2s`, in microseconds.
///
/// # Errors
/// The text is not such a time.
pub fn micros(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let scale = match &text[split..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        _ => return Err(format!("{text} is not a time such as 10ms")),
    };
    let number: u64 = text[..split].parse().map_err(|_| format!("{text} is not a time such as 10ms"))?;
    let us = number.checked_mul(scale).filter(|us| *us <= TIME_MAX_US);
    us.ok_or_else(|| format!("{text} is longer than a day, the longest time that a world takes"))
}

/// The longest time that a script names, a day in microseconds: so small that sums of such times are times, also
/// where a delay has a long tail ([`Delay::Tailed`] multiplies by up to a million).
const TIME_MAX_US: u64 = 86_400_000_000;

/// The rates of clocks: between a thousandth of the right one and a thousand times it.
const PPM: RangeInclusive<i32> = -999_000..=999_000_000;

fn not_a_rate(text: &str) -> String {
    format!("{text} is not a rate such as 200ppm, of {} to {}", PPM.start(), PPM.end())
}

/// The ends of a range, the less one first.
pub(crate) fn ends(least: u64, most: u64, text: &str) -> Result<(u64, u64), String> {
    if least <= most {
        Ok((least, most))
    } else {
        Err(format!("{text} is empty: the lesser time comes first"))
    }
}

/// A time, or a range such as `1ms..5ms` from which times are drawn evenly; after `tailed:`, one with a long tail.
///
/// # Errors
/// The text is neither.
pub fn delay(text: &str) -> Result<Delay, String> {
    let (tailed, range) = text.strip_prefix("tailed:").map_or((false, text), |range| (true, range));
    match range.split_once("..") {
        Some((least, scale)) if tailed => Ok(Delay::Tailed(micros(least)?, micros(scale)?)),
        Some((least, most)) => {
            let (least, most) = ends(micros(least)?, micros(most)?, range)?;
            Ok(Delay::Even(least, most))
        }
        None => Ok(Delay::Fixed(micros(text)?)),
    }
}

/// Reads the options `order`, `delay`, `loss`, `double` (of a thousand) and `disk`.
///
/// # Errors
/// Says which option is wrong.
pub fn network(command: &Command, mut network: Network) -> Result<Network, String> {
    let permille = |name: &str| match command.option(name) {
        None => Ok(None),
        Some(text) => {
            let number = text.parse::<u64>().ok().filter(|number| *number <= 1_000);
            let why = || format!("{name}= is a number of a thousand messages, not {text}");
            number.map(Some).ok_or_else(why)
        }
    };
    if command.option("order").is_some() {
        let order = command.choice("order", &["fifo", "unordered"])?;
        network.order = if order == "fifo" { Order::Fifo } else { Order::Unordered };
    }
    if let Some(text) = command.option("delay") {
        network.delay = delay(text)?;
    }
    if let Some(text) = command.option("disk") {
        network.disk = delay(text)?;
    }
    network.loss_permille = permille("loss")?.unwrap_or(network.loss_permille);
    network.double_permille = permille("double")?.unwrap_or(network.double_permille);
    Ok(network)
}
