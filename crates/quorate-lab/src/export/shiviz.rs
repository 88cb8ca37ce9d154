//! ShiViz: the happened-before graph, from vector clocks (Mattern 1989; Fidge 1988).
//!
//! The trace has no vector clocks: one pass over the message numbers gives them. ShiViz refuses a log in which
//! the own numbers of a process are not 1, 2, 3 without a gap, or where a clock names an event that is not in
//! the log; so a part of a run is cut first, and its clocks are computed from what is left.

use super::sentence;
use crate::story::{NOBODY, Story};
use quorate_core::protocol::ProcessId;
use quorate_core::trace::{MessageNo, What};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// How each event is read: the process, its clock, then on the next line the time and the words.
const EVENT: &str = r"(?<host>\S*) (?<clock>{.*})\n(?<microseconds>\d+) (?<event>.*)";
/// How runs are told apart.
const RUN: &str = r"^=== (?<trace>.*) ===$";

type VectorClock = BTreeMap<ProcessId, u64>;

/// Writes one story, or several to be compared side by side: open the file in ShiViz as it is.
pub fn shiviz(stories: &[&Story]) -> String {
    let mut file = format!("{EVENT}\n{}\n", if stories.len() > 1 { RUN } else { "" });
    for (at, story) in stories.iter().enumerate() {
        if stories.len() > 1 {
            // Labels have to differ.
            let _ = writeln!(file, "=== {} {} ===", at + 1, story.title.replace(['\n', '\r'], " "));
        }
        events(story, &mut file);
    }
    file
}

fn events(story: &Story, file: &mut String) {
    let mut clocks: BTreeMap<ProcessId, VectorClock> = BTreeMap::new();
    let mut sent: BTreeMap<MessageNo, VectorClock> = BTreeMap::new();
    let mut me = story.processes.first().copied().unwrap_or(NOBODY);
    for step in story.trace.steps() {
        // What nobody does stands behind the step that it is about.
        if step.at_peer.process != NOBODY {
            me = step.at_peer.process;
        }
        let clock = clocks.entry(me).or_default();
        if let What::Received { message, .. } = step.what
            && let Some(sent) = sent.get(&message)
        {
            for (process, count) in sent {
                let own = clock.entry(*process).or_default();
                *own = (*own).max(*count);
            }
        }
        *clock.entry(me).or_default() += 1;
        if let What::Sent { message, .. } | What::Doubled { double: message, .. } = step.what {
            sent.insert(message, clock.clone());
        }
        let numbers: Vec<_> = clock.iter().map(|(process, count)| format!("\"{process}\":{count}")).collect();
        let _ = writeln!(file, "{me} {{{}}}\n{} {}", numbers.join(","), step.at.0, sentence(story, step));
    }
}
