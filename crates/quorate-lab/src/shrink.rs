//! A failing plan is made small: faults first, then calls, then the network's noise; and a violation of
//! safety is then written as single deliveries, of which as many are taken away as can be.
//!
//! What is left is a scenario script that fails in the same way.

use crate::fuzz::{Failure, Fault, Fuzzer, Plan};
use crate::network::{Delay, Network, Order};
use crate::node::Cut;
use crate::render;
use crate::spot::{Action, Faults, Parcel, Rules, Spot, Timing, Way};
use crate::trace::Trace;
use crate::world::World;
use quorate_core::protocol::{Kind, Outbox, Peer, ProcessId, Protocol};
use quorate_core::trace::{MessageNo, What};
use std::collections::BTreeMap;

/// Makes a failing plan smaller for as long as it fails.
pub fn plan<P: Protocol>(fuzzer: &Fuzzer<P>, failing: &Plan<P>) -> Plan<P> {
    let mut small = failing.clone();
    loop {
        let before = (small.faults.len(), small.calls.len());
        let base = small.clone();
        small.faults = fewer(&base.faults, |faults| {
            fuzzer.run(&Plan { faults: faults.to_vec(), ..base.clone() }).is_err()
        });
        let base = small.clone();
        small.calls =
            fewer(&base.calls, |calls| fuzzer.run(&Plan { calls: calls.to_vec(), ..base.clone() }).is_err());
        small = calmer(fuzzer, small);
        if (small.faults.len(), small.calls.len()) == before {
            return small;
        }
    }
}

/// Takes away as much of a list as can be while the rest still fails: halves, then quarters, then single
/// items (ddmin, Zeller and Hildebrandt 2002, its complement step).
pub fn fewer<T: Clone>(all: &[T], fails: impl Fn(&[T]) -> bool) -> Vec<T> {
    let mut kept = all.to_vec();
    let mut size = kept.len();
    while size > 0 {
        let mut at = 0;
        while at < kept.len() {
            let mut without = kept.clone();
            without.drain(at..(at + size).min(kept.len()));
            match fails(&without) {
                true => kept = without,
                false => at += size,
            }
        }
        size /= 2;
    }
    kept
}

fn calmer<P: Protocol>(fuzzer: &Fuzzer<P>, mut plan: Plan<P>) -> Plan<P> {
    let calmer: [fn(&mut Network); 5] = [
        |network| network.loss_permille = 0,
        |network| network.double_permille = 0,
        |network| network.order = Order::Fifo,
        |network| network.delay = Delay::Fixed(1_000),
        |network| network.disk = Delay::Fixed(0),
    ];
    for calm in calmer {
        let mut network = plan.network;
        calm(&mut network);
        let other = Plan { network, ..plan.clone() };
        if network != plan.network && fuzzer.run(&other).is_err() {
            plan = other;
        }
    }
    plan
}

/// The scenario of a failing plan. It opens with what it is, and why the least of it fails, which may be of other
/// processes than the plan's failure was. `nodes` is the command that makes its processes, such as
/// `nodes 3 protocol=central`.
pub fn scenario<P: Protocol>(
    fuzzer: &Fuzzer<P>,
    failing: &Plan<P>,
    check: fn(&Spot<P>) -> Result<(), String>,
    what: &str,
    nodes: &str,
) -> String {
    let small = plan(fuzzer, failing);
    let why = match fuzzer.run(&small) {
        Ok(_) => String::new(),
        Err(Failure::Stuck(why)) => why,
        Err(Failure::Unsafe(why)) => match by_deliveries(fuzzer, &small, check, what, nodes) {
            Some(script) => return script,
            None => why,
        },
    };
    by_time(fuzzer, &small, &format!("{what}: {why}."), nodes)
}

/// A plan as commands at their times, with the same draws: a scenario in which what happened in the plan's world
/// happens again. `nodes` is as for [`scenario`].
pub fn by_time<P: Protocol>(fuzzer: &Fuzzer<P>, plan: &Plan<P>, sentence: &str, nodes: &str) -> String {
    let Network { delay, order, loss_permille, double_permille, disk } = plan.network;
    let order = if order == Order::Fifo { "fifo" } else { "unordered" };
    let detector = fuzzer.detector.map_or(String::new(), |after| format!(" detector={after}"));
    // An application that takes no time is one that never answers: that of elections.
    let hold = Some(fuzzer.reaction.1).filter(|hold| *hold != Delay::Fixed(0));
    let hold = hold.map_or(String::new(), |hold| format!(" hold={hold}"));
    let links = format!("delay={delay} disk={disk} loss={loss_permille} double={double_permille}");
    let mut lines = vec![format!("{nodes} seed={} order={order} {links}{hold}{detector}", plan.seed)];
    let calls = plan.calls.iter().map(|(at, who, call)| (*at, 1, format!("call {who} {}", call.name())));
    let faults = plan.faults.iter().map(|(at, fault)| (*at, 0, said(*fault)));
    let mut items: Vec<_> = calls.chain(faults).collect();
    items.sort_by_key(|(at, rank, _)| (*at, *rank));
    let mut now = 0;
    for (at, _, line) in items {
        if at > now {
            lines.push(format!("run {}us", at - now));
            now = at;
        }
        lines.push(line);
    }
    lines.push("heal".into());
    lines.push("network loss=0 double=0".into());
    for process in (0..fuzzer.n).map(ProcessId::at) {
        lines.push(format!("resume {process}\nrestart {process}"));
    }
    if fuzzer.odds.suspect > 0 {
        lines.push("trust * *".into());
    }
    lines.push(format!("run {}us", fuzzer.settle_us));
    format!("# {sentence}\n\n{}\n\nwaits\n", lines.join("\n\n"))
}

fn said(fault: Fault) -> String {
    match fault {
        Fault::Crash(process) => format!("crash {process}"),
        Fault::CrashWithin(process, cut) => format!("crash {process} {cut}"),
        Fault::Restart(process, true) => format!("restart {process}"),
        Fault::Restart(process, false) => format!("restart {process} disk=no"),
        Fault::Pause(process) => format!("pause {process}"),
        Fault::Resume(process) => format!("resume {process}"),
        Fault::Cut(from, to) => format!("cut {from}->{to}"),
        Fault::Mend(from, to) => format!("mend {from}->{to}"),
        Fault::Suspect(at, of) => format!("suspect {at} {of}"),
        Fault::Trust(at, of) => format!("trust {at} {of}"),
        Fault::ClockRate(process, ppm) => format!("clock {process} rate={ppm}ppm"),
        Fault::ClockJump(process, us) => format!("clock {process} jump={us}us"),
    }
}

/// One thing that happened, named so that it is found again when others are taken away.
#[derive(Clone)]
enum Deed<P: Protocol> {
    Plain(Action<P>),
    Deliver(Peer, ProcessId, P::Message),
    Double(Peer, ProcessId, P::Message),
    Fire(ProcessId, u8),
    Suspect(ProcessId, ProcessId),
    Trust(ProcessId, ProcessId),
}

type Deeds<P> = Vec<(Deed<P>, Option<Cut>)>;

fn by_deliveries<P: Protocol>(
    fuzzer: &Fuzzer<P>,
    small: &Plan<P>,
    check: fn(&Spot<P>) -> Result<(), String>,
    what: &str,
    nodes: &str,
) -> Option<String> {
    let plenty = u8::MAX;
    let faults = Faults {
        crashes: plenty,
        restarts: plenty,
        wipes: plenty,
        drops: plenty,
        doubles: plenty,
        suspicions: plenty,
        pauses: plenty,
        timers: plenty,
    };
    let rules = Rules {
        maker: fuzzer.maker.clone(),
        n: fuzzer.n,
        order: Order::Unordered,
        faults,
        timing: Timing::Any,
        detector: false,
        calls: |_, _| None,
    };
    let deeds = deeds(fuzzer, small);
    let fails = |deeds: &[(Deed<P>, Option<Cut>)]| redo(&rules, deeds, check).1.is_some();
    if !fails(&deeds) {
        return None;
    }
    let deeds = fewer(&fewer(&deeds, fails), fails);
    let (path, why) = redo(&rules, &deeds, check);
    let sentence = format!("{what}: {}.", why?);
    Some(render::script(&rules, &path, &sentence, &format!("{nodes} order=unordered")))
}

/// Does what can still be done of this, up to the violation. Says what is violated, if anything is.
fn redo<P: Protocol>(
    rules: &Rules<P>,
    deeds: &[(Deed<P>, Option<Cut>)],
    check: fn(&Spot<P>) -> Result<(), String>,
) -> (Way<P>, Option<String>) {
    let (mut spot, mut out, mut path) = (Spot::first(rules), Outbox::default(), Vec::new());
    for (deed, cut) in deeds {
        let Some(action) = found(&spot, deed) else { continue };
        spot.apply(rules, &action, *cut, &mut out);
        path.push((action, *cut));
        if let Err(why) = check(&spot) {
            return (path, Some(why));
        }
    }
    (path, None)
}

/// A deed as an action of this state, if it can be done.
fn found<P: Protocol>(spot: &Spot<P>, deed: &Deed<P>) -> Option<Action<P>> {
    use crate::node::Power;
    let power = |process: ProcessId| spot.node(process).power;
    let mail = |from: &Peer, to: &ProcessId, message: &P::Message| {
        spot.flights()
            .iter()
            .position(|f| f.from == *from && f.to.process == *to && f.parcel == Parcel::Mail(message.clone()))
    };
    match deed {
        Deed::Plain(action) => {
            let sense = match action {
                Action::Call(process, _) | Action::Pause(process) => power(*process) == Power::Up,
                Action::Persist(process) => {
                    power(*process) == Power::Up && !spot.node(*process).writing.is_empty()
                }
                Action::Crash(process) => power(*process) != Power::Down,
                Action::Restart { process, .. } => power(*process) == Power::Down,
                Action::Resume(process) => power(*process) == Power::Paused,
                _ => true,
            };
            sense.then(|| action.clone())
        }
        Deed::Deliver(from, to, message) if power(*to) != Power::Paused => {
            mail(from, to, message).map(Action::Deliver)
        }
        Deed::Deliver(..) => None,
        Deed::Double(from, to, message) => mail(from, to, message).map(Action::Double),
        Deed::Fire(process, kind) => {
            let node = spot.node(*process);
            let running = node.timers.iter().find(|running| running.timer.kind() == *kind);
            running.filter(|_| node.power == Power::Up).map(|r| Action::Fire(*process, r.timer))
        }
        Deed::Suspect(at, of) => {
            (power(*at) == Power::Up && power(*of) != Power::Down).then_some(Action::Suspect(*at, *of))
        }
        Deed::Trust(at, of) => {
            let word = spot
                .flights()
                .iter()
                .position(|f| f.from.process == *of && f.to.process == *at && f.parcel == Parcel::Trust);
            word.map(Action::Deliver)
        }
    }
}

/// Runs a plan once more and notes what happens, one by one.
fn deeds<P: Protocol>(fuzzer: &Fuzzer<P>, plan: &Plan<P>) -> Deeds<P> {
    let mut world = fuzzer.world(plan);
    world.record(Trace::whole());
    let mut known: BTreeMap<MessageNo, (Peer, ProcessId, P::Message)> = BTreeMap::new();
    let (mut done, mut deeds) = (0, Vec::new());
    let watch = |world: &mut World<P>| {
        for flight in world.flights() {
            known.insert(flight.no, (flight.from, flight.to.process, flight.message.clone()));
        }
        let fresh: Vec<_> = world.trace().steps().skip(done).copied().collect();
        done += fresh.len();
        for step in &fresh {
            let process = step.at_peer.process;
            let deed = match step.what {
                What::Received { message, .. } => {
                    known.get(&message).map(|(from, to, mail)| Deed::Deliver(*from, *to, mail.clone()))
                }
                What::Doubled { double, .. } => {
                    known.get(&double).map(|(from, to, mail)| Deed::Double(*from, *to, mail.clone()))
                }
                What::TimerFired { kind } => Some(Deed::Fire(process, kind)),
                What::Suspected(of) => Some(Deed::Suspect(process, of)),
                What::Trusted(of, _) => Some(Deed::Trust(process, of)),
                _ => plain(step.what, process).map(Deed::Plain),
            };
            // A crash within a step is told after the effects that came before it.
            let crash = matches!(deed, Some(Deed::Plain(Action::Crash(_))));
            let within = crash && cut_before(&fresh, step, process, &mut deeds);
            deeds.extend(deed.filter(|_| !within).map(|deed| (deed, None)));
        }
        match world.emitted().is_empty() {
            true => Ok(()),
            false => (fuzzer.check)(world).map_err(Failure::Unsafe),
        }
    };
    let _ = fuzzer.drive(&mut world, plan, watch);
    deeds
}

/// If a crash came within the step just noted, marks that step with the cut, and says so.
fn cut_before<P: Protocol>(
    fresh: &[quorate_core::trace::Step],
    crash: &quorate_core::trace::Step,
    process: ProcessId,
    deeds: &mut Deeds<P>,
) -> bool {
    let before: Vec<_> = fresh.iter().take_while(|step| !std::ptr::eq(*step, crash)).collect();
    let input = before.iter().rposition(|step| {
        let begins = matches!(
            step.what,
            What::Received { .. } | What::TimerFired { .. } | What::Called { .. } | What::Persisted(_)
        );
        step.at_peer.process == process && begins
    });
    let (Some(input), Some((_, cut))) = (input, deeds.last_mut()) else { return false };
    let effect = |what: &What| {
        use What::{Emitted, Ignored, Persist, Sent, TimerCancelled, TimerSet};
        matches!(
            what,
            Sent { .. }
                | Persist(_)
                | Emitted { .. }
                | Ignored { .. }
                | TimerSet { .. }
                | TimerCancelled { .. }
        )
    };
    let effects = before[input..].iter().filter(|step| effect(&step.what)).count();
    *cut = Some(Cut::Effects(effects as u32));
    true
}

fn plain<P: Protocol>(what: What, process: ProcessId) -> Option<Action<P>> {
    Some(match what {
        What::Called { kind } => {
            let call = P::Call::KINDS[usize::from(kind)].parse().ok()?;
            Action::Call(process, call)
        }
        What::Persisted(_) => Action::Persist(process),
        What::Crashed => Action::Crash(process),
        What::Started { record } => Action::Restart { process, disk: record },
        What::Paused => Action::Pause(process),
        What::Resumed => Action::Resume(process),
        _ => return None,
    })
}
