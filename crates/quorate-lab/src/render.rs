//! What a search found, as a scenario script that plays it.

use crate::node::Cut;
use crate::spot::{Action, Parcel, Rules, Spot, Timing};
use quorate_core::protocol::{Kind, Outbox, ProcessId, Protocol};

/// The commands of a way through a small world, each on its own line.
pub fn commands<P: Protocol>(rules: &Rules<P>, path: &[(Action<P>, Option<Cut>)]) -> Vec<String> {
    let mut spot = Spot::first(rules);
    let mut out = Outbox::default();
    let mut lines = Vec::new();
    for (action, cut) in path {
        if let Some(cut) = cut {
            lines.push(format!("crash {} {cut}", whose(&spot, action)));
        }
        let before = spot.now_ms();
        let line = command(&spot, action);
        spot.apply(rules, action, *cut, &mut out);
        if rules.timing == Timing::Exact && spot.now_ms() > before {
            lines.push(format!("pass {}ms", spot.now_ms() - before));
        }
        lines.push(line);
    }
    lines
}

/// A whole script: the sentence, the `nodes` command, and the way. Play it to fill in the history.
pub fn script<P: Protocol>(
    rules: &Rules<P>,
    path: &[(Action<P>, Option<Cut>)],
    sentence: &str,
    nodes: &str,
) -> String {
    let blocks = commands(rules, path).join("\n\n");
    format!("# {sentence}\n\n{nodes}\n\n{blocks}\n\nwaits\n")
}

/// The process that an action is about.
fn whose<P: Protocol>(spot: &Spot<P>, action: &Action<P>) -> ProcessId {
    match action {
        Action::Deliver(at) | Action::Drop(at) | Action::Double(at) => spot.flights()[*at].to.process,
        Action::Call(process, _) | Action::Fire(process, _) | Action::Persist(process) => *process,
        Action::Crash(process) | Action::Restart { process, .. } => *process,
        Action::Pause(process) | Action::Resume(process) | Action::Suspect(process, _) => *process,
    }
}

fn command<P: Protocol>(spot: &Spot<P>, action: &Action<P>) -> String {
    match action {
        Action::Call(process, call) => format!("call {process} {}", call.name()),
        Action::Deliver(at) => parcel(spot, "deliver", *at),
        Action::Drop(at) => parcel(spot, "drop", *at),
        Action::Double(at) => parcel(spot, "double", *at),
        Action::Fire(process, timer) => format!("fire {process} {}", timer.name()),
        Action::Persist(process) => format!("persist {process}"),
        Action::Crash(process) => format!("crash {process}"),
        Action::Restart { process, disk: true } => format!("restart {process}"),
        Action::Restart { process, disk: false } => format!("restart {process} disk=no"),
        Action::Pause(process) => format!("pause {process}"),
        Action::Resume(process) => format!("resume {process}"),
        Action::Suspect(at, of) => format!("suspect {at} {of}"),
    }
}

/// A message by its link, its sort, and its place among those of the same link and sort.
fn parcel<P: Protocol>(spot: &Spot<P>, verb: &str, at: usize) -> String {
    let one = &spot.flights()[at];
    let (from, to) = (one.from.process, one.to.process);
    let message = match &one.parcel {
        Parcel::Suspect => return format!("suspect {to} {from}"),
        Parcel::Trust => return format!("trust {to} {from}"),
        Parcel::Mail(message) => message,
    };
    let same = spot.flights()[..at].iter().filter(|other| {
        let mail = matches!(&other.parcel, Parcel::Mail(m) if m.kind() == message.kind());
        other.from.process == from && other.to.process == to && mail
    });
    match same.count() {
        0 => format!("{verb} {from}->{to} {}", message.name()),
        before => format!("{verb} {from}->{to} {} #{}", message.name(), before + 1),
    }
}
