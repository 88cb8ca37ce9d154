//! The tables that more than one command shows.

use super::super::output::{Rows, Tone, columns, fold, paint, plain};
use crate::explain::words::{ago, clock};
use crate::json;
use crate::node::disk;
use quorate::proto;
use quorate_core::time::Wall;

pub(super) fn token(holder: &proto::Holder) -> String {
    holder.seat.map(|seat| seat.token.to_string()).unwrap_or_default()
}

pub(super) fn members_table(reply: &proto::ExplainReply) -> Option<String> {
    if reply.members.is_empty() {
        return None;
    }
    let mut rows = Rows::new(&[">#", "name", ">session", "role", ">seat", ">token", "kind", "metadata"]);
    for member in &reply.members {
        let place = member.place.unwrap_or_default();
        let metadata: Vec<String> = member
            .metadata
            .iter()
            .map(|(key, value)| plain(&format!("{key}={value}")).into_owned())
            .collect();
        rows.row([
            place.ordinal.map(|ordinal| ordinal.to_string()).unwrap_or_default(),
            plain(&member.name).into_owned(),
            member.session.to_string(),
            json::word(place.role().as_str_name()),
            place.seat.map(|seat| seat.no.to_string()).unwrap_or_default(),
            place.seat.map(|seat| seat.token.to_string()).unwrap_or_default(),
            json::word(member.kind().as_str_name()).replace('_', "-"),
            metadata.join(" "),
        ]);
    }
    let members = reply.group.as_ref().map_or(0, |group| group.members) as usize;
    let title = match reply.members.len() {
        all if all >= members => "Members".to_owned(),
        shown => format!("Members (the first {shown} of {members})"),
    };
    Some(format!("{}\n{}", paint(Tone::Strong, &title), rows.render()))
}

pub(super) fn waiters_table(reply: &proto::ExplainReply) -> Option<String> {
    let group = reply.group.as_ref()?;
    if reply.waiters.is_empty() && reply.reserved.is_empty() {
        return None;
    }
    let now = disk::wall();
    let mut rows = Rows::new(&[">turn", "name", ">session", "since", "because"]);
    let all = || reply.waiters.iter().chain(&reply.reserved);
    let names = all().map(|waiter| waiter.name.chars().count()).max().unwrap_or(0);
    for waiter in all() {
        let turn = if waiter.position == 0 { String::new() } else { waiter.position.to_string() };
        rows.row([
            turn,
            plain(&waiter.name).into_owned(),
            waiter.session.to_string(),
            ago(Wall(waiter.since_ms), now),
            beside(names + 39, &shortened(reply, waiter)),
        ]);
    }
    let what = if group.face() == proto::Face::Group { "Standing by" } else { "Waiting" };
    let title = match (reply.waiters.len(), group.waiting as usize) {
        (shown, all) if shown < all => format!("{what} (the first {shown} of {all})"),
        _ => what.to_owned(),
    };
    Some(format!("{}\n{}", paint(Tone::Strong, &title), rows.render()))
}

/// A sentence in the last column, with so many columns before it.
fn beside(before: usize, sentence: &str) -> String {
    fold(sentence, columns().saturating_sub(before).max(40), "")
}

/// What the sentence above has said of the first is not said again in each row.
fn shortened(reply: &proto::ExplainReply, waiter: &proto::Waiter) -> String {
    let (first, more) = waiter.sentence.split_once("; ").unwrap_or((&waiter.sentence, ""));
    if reply.sentence.contains(more) { first.to_owned() } else { waiter.sentence.clone() }
}

/// Each wait of the deadlocks, and who holds what it waits for.
pub(super) fn deadlocks_table(reply: &proto::ExplainReply) -> Option<String> {
    if reply.deadlocks.is_empty() {
        return None;
    }
    let now = disk::wall();
    let mut rows = Rows::new(&["tie", "name", ">session", "waits for", "held by", "since"]);
    for deadlock in &reply.deadlocks {
        for wait in &deadlock.waits {
            let held_by = wait.held_by.iter().map(|session| format!("session {session}"));
            rows.row([
                deadlock.tie.clone(),
                plain(&wait.name).into_owned(),
                match wait.through {
                    Some(inner) => format!("{} through {inner}", wait.session),
                    None => wait.session.to_string(),
                },
                wait.group.clone(),
                held_by.collect::<Vec<_>>().join(", "),
                ago(Wall(wait.since_ms), now),
            ]);
        }
    }
    let title = if reply.deadlocks.len() == 1 { "The deadlock" } else { "The deadlocks" };
    Some(format!("{}\n{}", paint(Tone::Strong, title), rows.render()))
}

/// Who reported what.
pub(super) fn evidence_table(reply: &proto::ExplainReply) -> Option<String> {
    if reply.evidence.is_empty() {
        return None;
    }
    let now = disk::wall();
    let mut rows = Rows::new(&["when", ">session", "what is known"]);
    for evidence in &reply.evidence {
        rows.row([
            evidence.at_ms.map(|at| clock(Wall(at), now)).unwrap_or_default(),
            evidence.session.map(|session| session.to_string()).unwrap_or_default(),
            beside(34, &evidence.sentence),
        ]);
    }
    Some(format!("{}\n{}", paint(Tone::Strong, "Evidence"), rows.render()))
}

pub(super) fn places_table(info: &proto::SessionInfo) -> Option<String> {
    if info.places.is_empty() {
        return None;
    }
    let now = disk::wall();
    let mut rows = Rows::new(&["name", ">token", ">seat", "since", "waits, because"]);
    let names = info.places.iter().map(|place| place.group.chars().count()).max().unwrap_or(0);
    for place in &info.places {
        rows.row([
            place.group.clone(),
            place.seat.map(|seat| seat.token.to_string()).unwrap_or_default(),
            place.seat.map(|seat| seat.no.to_string()).unwrap_or_default(),
            place.seat.map(|seat| clock(Wall(seat.since_ms), now)).unwrap_or_default(),
            beside(names + 36, &place.waits),
        ]);
    }
    Some(format!("{}\n{}", paint(Tone::Strong, "Places"), rows.render()))
}

/// How many of the last changes people are shown; `--json` has all that are remembered.
const HISTORY_SHOWN: usize = 8;

pub(super) fn history_table(reply: &proto::ExplainReply) -> Option<String> {
    if reply.history.is_empty() {
        return None;
    }
    let now = disk::wall();
    let mut rows = Rows::new(&["when", "who", "what", "then"]);
    for past in reply.history.iter().rev().take(HISTORY_SHOWN) {
        let granted = past.granted.iter().map(|holder| {
            let who = if holder.session == past.session { "it".into() } else { holder.name.clone() };
            format!("{who} got token {}", token(holder))
        });
        let gave = past.released.map(|token| format!("it gave up token {token}"));
        rows.row([
            clock(Wall(past.at_ms), now),
            plain(&format!("{} (session {})", past.name, past.session)).into_owned(),
            plain(&format!("{}: {}", json::word(past.reason().as_str_name()), past.evidence)).into_owned(),
            plain(&gave.into_iter().chain(granted).collect::<Vec<_>>().join(", ")).into_owned(),
        ]);
    }
    let last = match reply.history.len().min(HISTORY_SHOWN) {
        1 => "The last change".to_owned(),
        shown => format!("The last {shown} changes, newest first"),
    };
    let title = format!("{last} (at most {} are remembered)", reply.history_max);
    Some(format!("{}\n{}", paint(Tone::Strong, &title), rows.render()))
}
