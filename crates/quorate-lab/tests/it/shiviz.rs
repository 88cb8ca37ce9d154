//! A reader of ShiViz logs that knows its rules and none of the writer: what it accepts, ShiViz draws.
//!
//! The rules: a process's own numbers are 1, 2, 3 without a gap; its own number is in its own clock; a process
//! that a clock names has events, and as many as the clock says; clocks only grow along a process.

use std::collections::BTreeMap;

type Clock = BTreeMap<String, u64>;

/// One event: the process, its clock, its words.
pub(crate) struct Event {
    pub(crate) host: String,
    pub(crate) clock: Clock,
    pub(crate) words: String,
}

/// Reads a log with one run or several, and checks each.
pub(crate) fn read(log: &str) -> Result<Vec<Vec<Event>>, String> {
    let mut lines = log.lines();
    let parser = lines.next().ok_or("no parser line")?;
    for group in ["(?<host>", "(?<clock>", "(?<event>"] {
        if !parser.contains(group) {
            return Err(format!("the parser has no {group}"));
        }
    }
    let delimiter = lines.next().ok_or("no delimiter line")?;
    let mut runs = Vec::new();
    let mut run = Vec::new();
    while let Some(line) = lines.next() {
        if !delimiter.is_empty() && line.starts_with("=== ") && line.ends_with(" ===") {
            runs.push(std::mem::take(&mut run));
            continue;
        }
        let (host, clock) = line.split_once(' ').ok_or(format!("no clock: {line}"))?;
        let clock: Clock = serde_json::from_str(clock).map_err(|error| format!("{error}: {clock}"))?;
        let words = lines.next().ok_or("a clock without an event")?;
        let (time, words) = words.split_once(' ').ok_or(format!("no event: {words}"))?;
        if time.is_empty() || !time.bytes().all(|letter| letter.is_ascii_digit()) || words.is_empty() {
            return Err(format!("not a time and words: {time} {words}"));
        }
        run.push(Event { host: host.to_owned(), clock, words: words.to_owned() });
    }
    runs.push(run);
    if !delimiter.is_empty() {
        runs.remove(0);
    }
    runs.iter().try_for_each(|run| check(run))?;
    Ok(runs)
}

fn check(run: &[Event]) -> Result<(), String> {
    let mut own: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in run {
        own.entry(&event.host).or_default().push(event);
    }
    for (host, events) in &mut own {
        if events.iter().any(|event| !event.clock.contains_key(*host)) {
            return Err(format!("{host} is not in its own clock"));
        }
        events.sort_by_key(|event| event.clock[*host]);
        for (at, event) in events.iter().enumerate() {
            if event.clock[*host] != at as u64 + 1 {
                return Err(format!("{host} counts {} at its event {}", event.clock[*host], at + 1));
            }
        }
        for pair in events.windows(2) {
            let shrinks = pair[0].clock.iter().any(|(of, count)| pair[1].clock.get(of) < Some(count));
            if shrinks {
                return Err(format!("a clock of {host} goes back"));
            }
        }
    }
    for event in run {
        for (of, count) in &event.clock {
            let events = own.get(of.as_str()).map_or(0, Vec::len) as u64;
            if *count > events {
                return Err(format!("{} names event {count} of {of}, which has {events}", event.host));
            }
        }
    }
    Ok(())
}
