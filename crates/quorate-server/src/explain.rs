//! Why somebody waits, in sentences. CLI, gRPC and HTTP show what is written here.
//!
//! Rule: what holds a grant back is said by the function that holds it back (`Blocker` of the core); this file
//! adds only what the log does not know: how much of a lease is left, and who is connected.

use crate::node::Node;
use crate::sessions::Peers;
use quorate::proto::{self, explain_request::Kind};
use quorate::wire;
use quorate_core::id::{Name, SessionId};
use quorate_core::state_machine::{
    Blocker, Face, GroupSummary, GroupView, HISTORY_MAX, Holder, OnDisconnect, SessionView, StateMachine,
};
use quorate_core::time::{Span, Wall};
use std::collections::BTreeMap;

mod chain;
pub mod words;

use chain::Chain;
use words::{ago, at, count, span};

/// How many holders a sentence and its advice speak of; the rest are counted.
const NAMED_MAX: usize = 4;

/// Where an explanation is read from.
pub struct Sources<'a> {
    /// The state, and what its lease keeper knows.
    pub node: &'a Node,
    /// Who is connected from where.
    pub peers: &'a Peers,
    /// What people call now.
    pub now: Wall,
}

/// What is known of a session beside its places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Person {
    label: String,
    ttl: Span,
    on_disconnect: OnDisconnect,
    closing: Option<String>,
    remaining: Option<Span>,
    silent: Option<Span>,
    connected: bool,
}

type People = BTreeMap<SessionId, Person>;

/// The label of a session, empty if there is none.
pub fn label(machine: &StateMachine, session: Option<SessionId>) -> String {
    session.and_then(|id| machine.session_view(id)).map(|view| view.label).unwrap_or_default()
}

/// A name in a list, with what the lease keeper knows of its first holder.
pub fn summary(sources: &Sources<'_>, group: &GroupSummary, label: String) -> proto::GroupSummary {
    let holder = group.holder.as_ref().map(|holder| proto::Holder {
        remaining_ms: sources.node.lease_remaining(holder.session).map(Span::as_millis),
        label,
        ..wire::to_holder(holder)
    });
    proto::GroupSummary {
        name: group.name.to_string(),
        face: wire::to_face(group.face).into(),
        view: group.view.0,
        seats: group.seats,
        members: group.members,
        waiting: group.waiting,
        observers: group.observers,
        holder,
        kept: group.kept,
    }
}

/// A session, with what the lease keeper and the port know of it.
pub fn session_info(sources: &Sources<'_>, view: &SessionView) -> proto::SessionInfo {
    let places = view.places.iter().map(|(group, entry, seat, blocker)| proto::SessionPlace {
        group: group.to_string(),
        entry: entry.0,
        seat: seat.map(wire::to_seat),
        waits: blocker.as_ref().map(Blocker::to_string).unwrap_or_default(),
    });
    proto::SessionInfo {
        session: view.session.0,
        label: view.label.clone(),
        generation: view.generation.0,
        ttl_ms: view.ttl.as_millis(),
        on_disconnect: wire::to_on_disconnect(view.on_disconnect).into(),
        opened_ms: view.opened.0,
        remaining_ms: sources.node.lease_remaining(view.session).map(Span::as_millis),
        silent_ms: sources.node.lease_silent(view.session).map(Span::as_millis),
        connected: sources.node.is_connected(view.session),
        closing: view.closing.clone(),
        places: places.collect(),
        peer: sources.peers.of(view.session).map(|peer| peer.to_string()).unwrap_or_default(),
    }
}

/// Everything about a name, asked for as a group or as a lock.
pub fn group(sources: &Sources<'_>, kind: Kind, name: &Name, max: usize) -> proto::ExplainReply {
    let (view, views, chain, applied, reign) = sources.node.read(|machine| {
        let view = machine.group_view(name, max);
        let sessions = view.iter().flat_map(|view| {
            view.holders.iter().map(|h| h.session).chain(view.waiters.iter().map(|w| w.session))
        });
        let views: Vec<SessionView> = sessions.filter_map(|id| machine.session_view(id)).collect();
        let chain = view.as_ref().map(|view| Chain::behind(machine, view)).unwrap_or_default();
        (view, views, chain, machine.applied(), machine.reign())
    });
    let people = views.iter().map(|view| (view.session, person(sources, view))).collect();
    let base = proto::ExplainReply {
        applied: applied.0,
        reign: reign.0,
        history_max: HISTORY_MAX as u32,
        ..Default::default()
    };
    match view {
        None => proto::ExplainReply { sentence: never_used(name), ..base },
        Some(view) => proto::ExplainReply {
            sentence: sentence(kind, &view, &people, sources.now),
            advice: advice(&view, &people, &chain),
            ..filled(sources, &view, &people, base)
        },
    }
}

fn never_used(name: &Name) -> String {
    format!("nobody holds {name}, nobody waits for it, and nobody has used it as far as is remembered")
}

fn filled(
    sources: &Sources<'_>,
    view: &GroupView,
    people: &People,
    base: proto::ExplainReply,
) -> proto::ExplainReply {
    let label = |session: SessionId| people.get(&session).map(|p| p.label.clone()).unwrap_or_default();
    let holders = view.holders.iter().map(|holder| proto::Holder {
        remaining_ms: people.get(&holder.session).and_then(|p| p.remaining).map(Span::as_millis),
        label: label(holder.session),
        ..wire::to_holder(holder)
    });
    let waiters = view.waiters.iter().map(|waiter| proto::Waiter {
        name: waiter.name.clone(),
        session: waiter.session.0,
        entry: waiter.entry.0,
        position: waiter.position,
        since_ms: waiter.since.0,
        cause: cause(&waiter.blocker).into(),
        sentence: waiter.blocker.to_string(),
        label: label(waiter.session),
    });
    let first = view.summary.holder.as_ref().map(|holder| label(holder.session)).unwrap_or_default();
    proto::ExplainReply {
        group: Some(summary(sources, &view.summary, first)),
        policy: Some(wire::to_policy(&view.policy)),
        created: view.created.0,
        version: view.version.0,
        holders: holders.collect(),
        waiters: waiters.collect(),
        members: view.members.iter().cloned().map(wire::to_member).collect(),
        observers: view
            .observers
            .iter()
            .map(|(name, session)| format!("{name} (session {session})"))
            .collect(),
        history: view.history.iter().map(wire::to_past).collect(),
        ..base
    }
}

fn cause(blocker: &Blocker) -> &'static str {
    match blocker {
        Blocker::Behind { .. } => "behind",
        Blocker::SeatsHeld { .. } => "seats_held",
        Blocker::SharedHeld { .. } => "shared_held",
        Blocker::Resting { .. } => "resting",
        Blocker::Parties { .. } => "parties",
        Blocker::Gone => "gone",
    }
}

fn person(sources: &Sources<'_>, view: &SessionView) -> Person {
    Person {
        label: view.label.clone(),
        ttl: view.ttl,
        on_disconnect: view.on_disconnect,
        closing: view.closing.clone(),
        remaining: sources.node.lease_remaining(view.session),
        silent: sources.node.lease_silent(view.session),
        connected: sources.node.is_connected(view.session),
    }
}

/// The whole answer in one: who holds, since when, until when, with which token, and how many wait.
fn sentence(kind: Kind, view: &GroupView, people: &People, now: Wall) -> String {
    let summary = &view.summary;
    let (name, face) = (&summary.name, summary.face);
    let other = match (kind, face) {
        (Kind::Lock, Face::Group) => "; it is a group, not a lock",
        (Kind::Group, Face::Lock) => "; it is a lock, not a group",
        _ => "",
    };
    let waiting = match (face, summary.waiting) {
        (_, 0) => "nobody waits".to_owned(),
        (Face::Group, 1) => "1 stands by".to_owned(),
        (Face::Group, n) => format!("{n} stand by"),
        (_, 1) => "1 waits".to_owned(),
        (_, n) => format!("{n} wait"),
    };
    let members = match face {
        Face::Group => format!(" has {} in view {}:", count(summary.members, "member"), summary.view),
        _ => " is held by".to_owned(),
    };
    match view.holders.as_slice() {
        [] => format!("{face} {name} is free: nobody holds it{}{other}", last_held(view, now)),
        [one] if summary.seats == 1 => {
            let acts = if face == Face::Group { " acts" } else { "" };
            let since = at(one.seat.since, now);
            let ends = lease_end(one, people, now);
            format!("{face} {name}{members} {}{acts} since {since}{ends}; {waiting}{other}", who(one))
        }
        several => {
            let held = format!("{} of {} seats are held", several.len(), summary.seats);
            let named: Vec<String> = several.iter().take(NAMED_MAX).map(who).collect();
            let more = match several.len().saturating_sub(NAMED_MAX) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("{face} {name}: {held}, by {}{more}; {waiting}{other}", named.join(", "))
        }
    }
}

fn who(holder: &Holder) -> String {
    format!("{} (session {}, token {})", holder.name, holder.session, holder.seat.token)
}

/// Until when, as the lease keeper counts.
fn lease_end(holder: &Holder, people: &People, now: Wall) -> String {
    match people.get(&holder.session).and_then(|person| person.remaining) {
        Some(left) => {
            let end = words::clock(Wall(now.0 + left.as_millis()), now);
            format!(" and keeps it until it gives it up, or until {end} if it falls silent now")
        }
        None => String::new(),
    }
}

/// Who had it last, of a name that is free.
fn last_held(view: &GroupView, now: Wall) -> String {
    let last = view.history.iter().rev().find_map(|past| Some((past, past.released?)));
    match last {
        Some((past, token)) => format!(
            "; {} (session {}, token {token}) had it last, until {}: {} ({})",
            past.name,
            past.session,
            at(past.at, now),
            past.reason,
            past.evidence
        ),
        None => String::new(),
    }
}

/// What to do about it.
fn advice(view: &GroupView, people: &People, chain: &Chain) -> Vec<String> {
    let mut advice: Vec<String> = chain.sentences();
    let waited_for = view.summary.waiting > 0 && view.summary.face != Face::Group;
    for holder in view.holders.iter().take(NAMED_MAX) {
        let Some(person) = people.get(&holder.session) else { continue };
        advice.extend(about_holder(holder, person, waited_for));
    }
    advice
}

fn about_holder(holder: &Holder, person: &Person, waited_for: bool) -> Option<String> {
    let session = holder.session;
    let who = format!("{} (session {session})", holder.name);
    let left = person.remaining.map_or_else(
        || "its lease ends".to_owned(),
        |left| format!("its lease ends, in {} at the latest", span(left)),
    );
    let quiet = person.silent.filter(|silent| silent.as_millis() * 2 >= person.ttl.as_millis());
    if let Some(why) = &person.closing {
        return Some(format!("{who} was asked to stop ({why}): it holds until it says so, or until {left}"));
    }
    if let Some(silent) = quiet {
        return Some(format!(
            "{who} has been silent for {}: if it stays so, the next has its turn once {left}; \
             `quorate session close {session}` keeps it from coming back",
            span(silent)
        ));
    }
    if !waited_for {
        return None;
    }
    Some(format!(
        "{who} is alive and renews its lease of {}: wait until it is done, or ask it to stop with \
         `quorate session close {session}`",
        person.ttl
    ))
}

/// Everything about a session.
pub fn session(sources: &Sources<'_>, id: SessionId) -> proto::ExplainReply {
    let (view, applied, reign) = sources.node.read(|m| (m.session_view(id), m.applied(), m.reign()));
    let base = proto::ExplainReply { applied: applied.0, reign: reign.0, ..Default::default() };
    let Some(view) = view else {
        let sentence = format!("there is no session {id}: it has ended, or never was; it holds nothing");
        return proto::ExplainReply { sentence, ..base };
    };
    let person = person(sources, &view);
    proto::ExplainReply {
        sentence: session_sentence(&view, &person, sources.peers.of(id).map(|p| p.to_string()), sources.now),
        advice: session_advice(&view, &person),
        session: Some(session_info(sources, &view)),
        ..base
    }
}

fn session_sentence(view: &SessionView, person: &Person, peer: Option<String>, now: Wall) -> String {
    let held = view.places.iter().filter(|(_, _, seat, _)| seat.is_some()).count() as u64;
    let waits = view.places.iter().filter(|(_, _, _, blocker)| blocker.is_some()).count() as u64;
    let connected = match (peer, person.connected) {
        (Some(peer), true) => format!("is connected from {peer}"),
        (_, true) => "is connected".to_owned(),
        (_, false) => "is not connected to this node".to_owned(),
    };
    let heard = person.silent.map(|silent| format!(", was heard {} ago", span(silent))).unwrap_or_default();
    let lease = match (person.remaining, &view.closing) {
        (Some(left), Some(_)) => format!("; its lease is renewed no more and ends in {}", span(left)),
        (Some(left), None) => format!("; its lease ends in {} if it falls silent now", span(left)),
        (None, _) => String::new(),
    };
    format!(
        "session {} of {} is open since {} ({}), {connected}{heard}; it holds {} and waits for {}{lease}",
        view.session,
        if view.label.is_empty() { "an unnamed client" } else { &view.label },
        words::clock(view.opened, now),
        ago(view.opened, now),
        count(held, "seat"),
        if waits == 0 { "nothing".to_owned() } else { count(waits, "seat") },
    )
}

fn session_advice(view: &SessionView, person: &Person) -> Vec<String> {
    let id = view.session;
    let quiet = person.silent.filter(|silent| silent.as_millis() * 2 >= view.ttl.as_millis());
    let mut advice = Vec::new();
    match (&view.closing, quiet) {
        (Some(why), _) => advice.push(format!("it was asked to stop: {why}")),
        (None, Some(_)) => advice.push(format!(
            "it is silent: it loses everything when its lease ends; `quorate session close {id}` keeps it from \
             coming back"
        )),
        (None, None) => {}
    }
    for (group, ..) in view.places.iter().filter(|(_, _, _, blocker)| blocker.is_some()).take(NAMED_MAX) {
        let command = format!("quorate explain lock {}", words::shell(group.as_str()));
        advice.push(format!("why it waits for {group}: `{command}`"));
    }
    if view.on_disconnect == OnDisconnect::Release {
        advice.push("it leaves as soon as its connection closes, so two may act for a moment then".into());
    }
    advice
}

#[cfg(test)]
mod tests;
