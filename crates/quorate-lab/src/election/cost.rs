//! Messages of elections by their sort, read from a recording, beside the formula of the literature.

use crate::trace::Trace;
use quorate_core::election::{BullyMessage, ChangRobertsMessage, Event, RingMessage, TermMessage};
use quorate_core::protocol::{Kind, ProcessId};
use quorate_core::trace::What;
use std::collections::BTreeMap;

/// How many messages of each sort were sent, in the order of [`Kind::KINDS`].
pub fn sent<K: Kind>(trace: &Trace) -> Vec<u64> {
    let mut counts = vec![0; K::KINDS.len()];
    for step in trace.steps() {
        if let What::Sent { kind, .. } = step.what {
            counts[usize::from(kind)] += 1;
        }
    }
    counts
}

/// Whom each process named last, as it told its application.
fn named(trace: &Trace) -> BTreeMap<ProcessId, String> {
    let mut named = BTreeMap::new();
    for step in trace.steps() {
        let process = step.at_peer.process;
        match step.what {
            What::Emitted { kind } if Event::KINDS[usize::from(kind)] == "elected" => {
                let leader = trace.words(step).trim_start_matches("elected ").to_string();
                named.insert(process, leader);
            }
            What::Emitted { kind } if Event::KINDS[usize::from(kind)] == "stepped_down" => {
                named.remove(&process);
            }
            What::Crashed => {
                named.remove(&process);
            }
            _ => {}
        }
    }
    named
}

fn lines<K: Kind>(trace: &Trace, formula: &str) -> Vec<String> {
    let counts = sent::<K>(trace);
    let by_kind = K::KINDS.iter().zip(&counts).filter(|(_, count)| **count > 0);
    let by_kind: Vec<_> = by_kind.map(|(kind, count)| format!("{count} {kind}")).collect();
    let mut lines = vec![format!("{} messages: {}", counts.iter().sum::<u64>(), by_kind.join(", "))];
    lines.push(format!("the formula: {formula}"));
    lines.extend(named(trace).iter().map(|(process, leader)| format!("{process} was told last: {leader}")));
    lines
}

/// The cost of bully.
pub fn bully(trace: &Trace, _n: usize) -> Vec<String> {
    let formula = "ELECTION (N-s)(N-s+1)/2, OK (N-s)(N-s-1)/2, COORDINATOR N-2, if the greatest has stopped";
    lines::<BullyMessage>(trace, formula)
}

/// The cost of the ring.
pub fn ring(trace: &Trace, _n: usize) -> Vec<String> {
    lines::<RingMessage>(trace, "2N' for each starter, N' being those that run")
}

/// The cost of Chang-Roberts.
pub fn chang_roberts(trace: &Trace, n: usize) -> Vec<String> {
    let harmonic: f64 = (1..=n).map(|k| 1.0 / k as f64).sum();
    let mean = n as f64 * harmonic;
    lines::<ChangRobertsMessage>(trace, &format!("N*H(N) = {mean:.1} ELECTION in the mean, {n} ELECTED"))
}

/// The cost of terms.
pub fn term(trace: &Trace, n: usize) -> Vec<String> {
    let formula = format!("2(N-1) = {} for votes, as many for pre-votes, and a heartbeat", 2 * (n - 1));
    lines::<TermMessage>(trace, &formula)
}
