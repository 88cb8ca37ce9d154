//! Why somebody waits, in sentences. CLI, gRPC and HTTP show what is written here.
//!
//! Rule: what holds a grant back is said by the function that holds it back (`Blocker` of the core); this file
//! adds only what the log does not know: how much of a lease is left, and who is connected.
//!
//! Each cause has a stable code ([`CAUSES`]), evidence (who reported what, when), when it ends by itself if that
//! is known, and what to do, as a command that can be pasted.
//!
//! | file | what |
//! |---|---|
//! | `facts.rs` | what the log does not know |
//! | `trouble.rs` | what is wrong with a holder |
//! | `wait.rs` | why one waits |
//! | `remedy.rs` | what to do |
//! | [`words`] | times and numbers as people say them |

use crate::node::Node;
use crate::sessions::Peers;
use quorate::proto::{self, explain_request::Kind};
use quorate::wire;
use quorate_core::id::{Name, SessionId};
use quorate_core::state_machine::{
    Blocker, Deadlock, Face, GroupSummary, GroupView, HISTORY_MAX, Holder, OnDisconnect, SessionView,
    StateMachine,
};
use quorate_core::time::{Span, Wall};

mod facts;
mod remedy;
mod trouble;
mod wait;
pub mod words;

use facts::{People, Person, Scene};
use wait::Why;
use words::{ago, at, count, span};

/// How many holders a sentence, its evidence and its advice speak of; the rest are counted.
const NAMED_MAX: usize = 4;

/// How many places of a session are explained; the rest are listed.
const PLACES_MAX: usize = 4;

/// The stable codes of causes, and what each means.
pub const CAUSES: [(&str, &str); 33] = [
    ("seats_held", "every seat is held, by holders that are well"),
    ("shared_held", "others share it, and this one would be alone"),
    ("behind", "others asked earlier"),
    ("behind_writer", "one that would be alone asked earlier, and sharers do not overtake it"),
    ("resting", "a seat is free and rests between two holders"),
    ("parties", "a barrier waits for its parties"),
    ("reserved", "the place of a member that is away is kept"),
    ("gone", "it is not in the queue any more"),
    ("holder_silent", "the holder is connected and silent: paused, or its link is cut"),
    ("holder_disconnected", "the holder has no connection: it died or is cut off"),
    ("holder_closing", "the holder's session was closed by an operator, and it has not stopped"),
    ("holder_stalled", "the holder's work gives no sign"),
    ("asked_transfer", "the holder was asked to hand over, and has not stopped"),
    ("asked_preempt", "the holder was asked to make way for a heavier member"),
    ("asked_max_hold", "the holder has held as long as it said, and has not stopped"),
    ("asked_fewer_seats", "the holder was asked to stop, since there are fewer seats"),
    ("asked_delete", "the holder was asked to stop, since the name is being deleted"),
    ("deadlock_cycle", "each waits for one other, in a circle"),
    ("deadlock_knot", "one waits for several, none of whom can go on"),
    ("deadlock_self", "a session waits for what it holds itself"),
    ("no_deadlock", "nobody is deadlocked"),
    ("nobody_waits", "it is held, and nobody waits"),
    ("free", "nobody holds it"),
    ("unused", "nobody has used it as far as is remembered"),
    ("other_face", "the name is something else than was asked for"),
    ("disk_low", "the disk is low: only release, leave and expiry are served"),
    ("restored", "the service was restored, and lets nobody in before the old leases have ended"),
    ("no_quorum", "no quorum confirms what is shown"),
    ("session_closing", "the session was closed by an operator"),
    ("session_silent", "the session is connected and silent"),
    ("session_disconnected", "the session has no connection"),
    ("session_well", "the session is well, and waits for nothing"),
    ("no_session", "there is no such session"),
];

/// Where an explanation is read from.
pub struct Sources<'a> {
    /// The state, and what its lease keeper knows.
    pub node: &'a Node,
    /// Who is connected from where.
    pub peers: &'a Peers,
    /// What people call now.
    pub now: Wall,
    /// No quorum has confirmed this, and why (RULES R26).
    pub stale: Option<Stale>,
}

/// What is read without a quorum.
#[derive(Clone, Debug)]
pub struct Stale {
    /// Why none has confirmed it.
    pub why: String,
    /// When one did last, since this node started.
    pub since: Option<Wall>,
}

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

/// Everything about a name, asked for as a group, a lock or a leader.
pub fn group(sources: &Sources<'_>, kind: Kind, name: &Name, max: usize) -> proto::ExplainReply {
    let (view, people, base) = read(sources, name, max);
    let Some(view) = view else {
        let why = Why { cause: "unused", advice: vec![in_use()], ..Why::default() };
        return finished(sources, never_used(name), why, base);
    };
    let scene = Scene::of(sources, &view, &people);
    let why = headline(kind, &scene);
    finished(sources, sentence(kind, &scene, &why), why, filled(sources, &scene, base))
}

/// A name, everybody in it, and an answer that says as of when.
fn read(sources: &Sources<'_>, name: &Name, max: usize) -> (Option<GroupView>, People, proto::ExplainReply) {
    let (view, views, applied, reign) = sources.node.read(|machine| {
        let view = machine.group_view(name, max);
        let views: Vec<SessionView> = sessions_of(view.as_ref(), machine);
        (view, views, machine.applied(), machine.reign())
    });
    let people = views.iter().map(|view| (view.session, Person::of(sources, view))).collect();
    let base = proto::ExplainReply {
        applied: applied.0,
        reign: reign.0,
        history_max: HISTORY_MAX as u32,
        ..Default::default()
    };
    (view, people, base)
}

fn sessions_of(view: Option<&GroupView>, machine: &StateMachine) -> Vec<SessionView> {
    let sessions = view.into_iter().flat_map(|view| {
        let held = view.holders.iter().map(|holder| holder.session);
        let waits = view.waiters.iter().map(|waiter| waiter.session);
        let tied = view.deadlock.iter().flat_map(|deadlock| &deadlock.waits).map(|edge| edge.session);
        held.chain(waits).chain(tied)
    });
    let sessions: std::collections::BTreeSet<SessionId> = sessions.collect();
    sessions.into_iter().filter_map(|id| machine.session_view(id)).collect()
}

fn never_used(name: &Name) -> String {
    format!("nobody holds \"{name}\", nobody waits for it, and nobody has used it as far as is remembered")
}

fn in_use() -> proto::Advice {
    remedy::advice("see which names are in use", "quorate group list".into())
}

/// The reason for the whole name: the worst that is known of it.
fn headline(kind: Kind, scene: &Scene<'_>) -> Why {
    let view = scene.view;
    let mut why = match (view.holders.first(), view.waiters.first()) {
        // A deadlock is said first, also if it is not the first in line that is in it.
        (Some(_), waiter) => {
            wait::held(scene, waiter.filter(|w| is_held(&w.blocker) && view.deadlock.is_none()))
        }
        (None, Some(waiter)) => wait::why(scene, waiter),
        (None, None) => Why { cause: "free", advice: take_it(view).into_iter().collect(), ..Why::default() },
    };
    if why.cause == "free"
        && let Some(away) = view.away.first()
    {
        let kept = wait::reserved(scene, away);
        why = Why { cause: "reserved", evidence: kept.evidence, advice: kept.advice, ..why };
    }
    if why.cause == "nobody_waits"
        && let Some(waiter) = view.waiters.first()
    {
        why = wait::why(scene, waiter);
    }
    if let Some(asked) = other_face(kind, view.summary.face) {
        why.cause = "other_face";
        let (face, name) = (view.summary.face, &view.summary.name);
        let what = format!("it is a {face}, not a {asked}: ask for what it is");
        why.advice.insert(0, remedy::advice(what, remedy::explain(face, name)));
    }
    why
}

fn is_held(blocker: &Blocker) -> bool {
    matches!(blocker, Blocker::SeatsHeld { .. } | Blocker::SharedHeld { .. })
}

fn take_it(view: &GroupView) -> Option<proto::Advice> {
    let name = words::shell(view.summary.name.as_str());
    match view.summary.face {
        Face::Lock => Some(remedy::advice("take it", format!("quorate lock {name} -- COMMAND"))),
        Face::Group => Some(remedy::advice("join it", format!("quorate join {name}"))),
        _ => None,
    }
}

/// The word that was asked with, if the name is something else. Locks of every kind are asked for as locks.
fn other_face(kind: Kind, face: Face) -> Option<&'static str> {
    match (kind, face) {
        (Kind::Lock, Face::Group | Face::Leadership) => Some("lock"),
        (Kind::Group, Face::Lock | Face::Leadership) => Some("group"),
        (Kind::Leader, Face::Leadership) => None,
        (Kind::Leader, _) => Some("leadership"),
        _ => None,
    }
}

/// Adds what holds for the whole service: no quorum, a disk that is low.
fn finished(
    sources: &Sources<'_>,
    sentence: String,
    mut why: Why,
    base: proto::ExplainReply,
) -> proto::ExplainReply {
    let idle = matches!(why.cause, "free" | "unused");
    let status = sources.node.status();
    if status.disk_low {
        let free = status.disk_free_bytes >> 20;
        let text =
            format!("the disk of node {} has {free} MiB left: only release, leave and expiry", status.node);
        let text = format!("{text} are served; what is held stays held");
        why.evidence.insert(0, service_evidence("disk_low", text, sources.now));
        let what = "free some space where the data is; then it serves again by itself";
        why.advice.insert(0, remedy::advice(what, "quorate status".into()));
        why.cause = if idle { "disk_low" } else { why.cause };
    }
    if let Some(text) = sources.node.restoring() {
        why.evidence.insert(0, service_evidence("restored", text, sources.now));
        why.advice.insert(0, remedy::advice("wait: see how long", "quorate session list".into()));
        why.cause = if idle { "restored" } else { why.cause };
    }
    if let Some(stale) = &sources.stale {
        why.evidence.insert(0, service_evidence("no_quorum", stale.why.clone(), sources.now));
        let what = "this may be out of date: see whether the other nodes run";
        why.advice.insert(0, remedy::advice(what, "quorate status".into()));
        why.cause = if idle { "no_quorum" } else { why.cause };
    }
    proto::ExplainReply {
        sentence,
        cause: why.cause.into(),
        until_ms: why.until.map(|(at, _)| at.0),
        until_what: why.until.map(|(_, what)| what).unwrap_or_default().into(),
        advice: why.advice.iter().map(remedy::line).collect(),
        evidence: why.evidence,
        remedies: why.advice,
        waits_for: why.waits_for,
        no_quorum: sources.stale.as_ref().map(|stale| stale.why.clone()),
        no_quorum_since_ms: sources.stale.as_ref().and_then(|stale| stale.since).map(|since| since.0),
        ..base
    }
}

fn service_evidence(what: &str, sentence: String, at: Wall) -> proto::Evidence {
    proto::Evidence { what: what.into(), sentence, at_ms: Some(at.0), session: None }
}

fn filled(sources: &Sources<'_>, scene: &Scene<'_>, base: proto::ExplainReply) -> proto::ExplainReply {
    let view = scene.view;
    let first = view.summary.holder.as_ref().map(|holder| scene.label(holder.session)).unwrap_or_default();
    proto::ExplainReply {
        group: Some(summary(sources, &view.summary, first)),
        policy: Some(wire::to_policy(&view.policy)),
        created: view.created.0,
        version: view.version.0,
        holders: view.holders.iter().map(|holder| wait::to_holder(scene, holder)).collect(),
        waiters: view.waiters.iter().map(|waiter| wait::to_waiter(scene, waiter)).collect(),
        reserved: view.away.iter().map(|away| wait::reserved(scene, away)).collect(),
        members: view.members.iter().cloned().map(wire::to_member).collect(),
        observers: view
            .observers
            .iter()
            .map(|(name, session)| format!("{name} (session {session})"))
            .collect(),
        history: view.history.iter().map(wire::to_past).collect(),
        deadlocks: view
            .deadlock
            .iter()
            .map(|deadlock| to_deadlock(deadlock, |session| scene.label(session)))
            .collect(),
        ..base
    }
}

/// A deadlock in the contract's form.
fn to_deadlock(deadlock: &Deadlock, label: impl Fn(SessionId) -> String) -> proto::Deadlock {
    let waits = deadlock.waits.iter().map(|edge| proto::DeadlockWait {
        session: edge.session.0,
        name: edge.name.clone(),
        entry: edge.entry.0,
        group: edge.group.to_string(),
        held_by: edge.held_by.iter().map(|session| session.0).collect(),
        since_ms: edge.since.0,
        label: label(edge.session),
        through: edge.through.map(|inner| inner.0),
    });
    proto::Deadlock {
        sentence: deadlock.sentence(),
        waits: waits.collect(),
        tie: wait::tie_word(deadlock.tie()).into(),
        advice: wait::deadlock_advice(deadlock),
    }
}

/// Every deadlock, or the one behind a name.
pub fn deadlocks(sources: &Sources<'_>, name: Option<&Name>) -> proto::ExplainReply {
    let (found, labels, applied, reign) = sources.node.read(|machine| {
        let found = match name {
            Some(name) => machine.deadlock_behind(name).into_iter().collect(),
            None => machine.deadlocks(),
        };
        let sessions = found.iter().flat_map(|deadlock| &deadlock.waits).map(|edge| edge.session);
        let labels: std::collections::BTreeMap<SessionId, String> =
            sessions.map(|id| (id, label(machine, Some(id)))).collect();
        (found, labels, machine.applied(), machine.reign())
    });
    let label = |session: SessionId| labels.get(&session).cloned().unwrap_or_default();
    let base = proto::ExplainReply {
        applied: applied.0,
        reign: reign.0,
        deadlocks: found.iter().map(|deadlock| to_deadlock(deadlock, label)).collect(),
        ..Default::default()
    };
    let behind = name.map(|name| format!(" behind {name}")).unwrap_or_default();
    let (sentence, cause) = match found.as_slice() {
        [] => {
            (format!("there is no deadlock{behind}: everybody who waits may still be granted"), "no_deadlock")
        }
        [one] => (wait::deadlock_sentence(one), wait::tie_code(one.tie())),
        [first, ..] => {
            let text = format!("there are {} deadlocks; the first: ", found.len());
            (text + &wait::deadlock_sentence(first), wait::tie_code(first.tie()))
        }
    };
    let advice = found.iter().flat_map(wait::deadlock_advice).collect();
    finished(sources, sentence, Why { cause, advice, ..Why::default() }, base)
}

/// The whole answer in one: who holds, since when, until when, with which token, and how many wait.
fn sentence(kind: Kind, scene: &Scene<'_>, why: &Why) -> String {
    let (view, now) = (scene.view, scene.now);
    let summary = &view.summary;
    let (name, face) = (&summary.name, summary.face);
    let other = match other_face(kind, face) {
        Some(asked) => format!("; it is a {face}, not a {asked}"),
        None => String::new(),
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
    let more = why.more.as_ref().map(|more| format!("; {more}")).unwrap_or_default();
    match view.holders.as_slice() {
        [] if view.waiters.is_empty() => {
            format!("{face} {name} is free: nobody holds it{}{other}", last_held(view, now))
        }
        [] => {
            let first = view.waiters.first().map(|waiter| waiter.blocker.to_string()).unwrap_or_default();
            format!("{face} {name} is held by nobody, and {waiting}: {first}{more}{other}")
        }
        [one] if summary.seats == 1 && view.shared == 0 => {
            let acts = if face == Face::Group { " acts" } else { "" };
            let since = at(one.seat.since, now);
            let ends = if why.more.is_some() { String::new() } else { lease_end(one, scene) };
            format!("{face} {name}{members} {}{acts} since {since}{ends}; {waiting}{more}{other}", who(one))
        }
        several => {
            let held = match view.shared {
                0 if several.len() > summary.seats as usize => {
                    format!(
                        "{} act, although it has {} now",
                        several.len(),
                        count(summary.seats.into(), "seat")
                    )
                }
                0 => format!("{} of {} seats are held", several.len(), summary.seats),
                shared => format!("{shared} share it"),
            };
            let named: Vec<String> = several.iter().take(NAMED_MAX).map(who).collect();
            let rest = match several.len().saturating_sub(NAMED_MAX) {
                0 => String::new(),
                rest => format!(" and {rest} more"),
            };
            let ending = if view.ending { "; it is being deleted" } else { "" };
            format!("{face} {name}: {held}, by {}{rest}; {waiting}{more}{ending}{other}", named.join(", "))
        }
    }
}

fn who(holder: &Holder) -> String {
    trouble::who(holder)
}

/// Until when, as the lease keeper counts.
fn lease_end(holder: &Holder, scene: &Scene<'_>) -> String {
    match scene.person(holder.session).lease_end(scene.now) {
        Some(end) => {
            let end = scene.clock(end);
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

/// Everything about a session.
pub fn session(sources: &Sources<'_>, id: SessionId) -> proto::ExplainReply {
    let (view, applied, reign) = sources.node.read(|m| (m.session_view(id), m.applied(), m.reign()));
    let base = proto::ExplainReply { applied: applied.0, reign: reign.0, ..Default::default() };
    let Some(view) = view else {
        let sentence = format!("there is no session {id}: it has ended, or never was; it holds nothing");
        let list = remedy::advice("see which sessions are open", "quorate session list".into());
        return finished(
            sources,
            sentence,
            Why { cause: "no_session", advice: vec![list], ..Why::default() },
            base,
        );
    };
    let person = Person::of(sources, &view);
    let mut info = session_info(sources, &view);
    let waits = explained_places(sources, &view, &mut info);
    let why = session_why(&view, &person, waits, sources.now);
    let peer = sources.peers.of(id).map(|peer| peer.to_string());
    let sentence = session_sentence(&view, &person, peer, sources.now);
    let sentence = wait::sentence(&sentence, why.more.as_deref());
    let mut reply = finished(sources, sentence, why, base);
    reply.advice.extend(session_advice(&view));
    reply.session = Some(info);
    reply
}

/// Says of the places that wait what the name's own explanation says; gives back the first of them.
fn explained_places(
    sources: &Sources<'_>,
    view: &SessionView,
    info: &mut proto::SessionInfo,
) -> Option<proto::Waiter> {
    let mut first = None;
    let waiting = view.places.iter().zip(&mut info.places).filter(|((.., blocker), _)| blocker.is_some());
    for ((name, entry, ..), place) in waiting.take(PLACES_MAX) {
        let (Some(group), people, _) = read(sources, name, usize::MAX) else { continue };
        let scene = Scene::of(sources, &group, &people);
        let Some(waiter) = group.waiters.iter().find(|waiter| waiter.entry == *entry) else { continue };
        let waiter = wait::to_waiter(&scene, waiter);
        place.waits.clone_from(&waiter.sentence);
        first.get_or_insert(waiter);
    }
    first
}

/// Why a session is as it is: what is wrong with itself, or what it waits for.
fn session_why(view: &SessionView, person: &Person, waits: Option<proto::Waiter>, now: Wall) -> Why {
    let id = view.session;
    let cause = match (&view.closing, person.is_gone(), person.quiet()) {
        (Some(_), ..) => Some("session_closing"),
        (None, true, _) => Some("session_disconnected"),
        (None, false, Some(_)) => Some("session_silent"),
        (None, false, None) => None,
    };
    let until = cause.and_then(|_| person.lease_end(now)).map(|end| (end, "lease_end"));
    match (cause, waits) {
        (Some(cause), _) => Why {
            cause,
            more: view.closing.as_ref().map(|why| format!("it was asked to stop: {why}")),
            until,
            advice: vec![match cause {
                "session_closing" => remedy::advice(
                    "wait until it stops or its lease ends",
                    format!("quorate session show {id}"),
                ),
                _ => remedy::advice(
                    "it loses everything when its lease ends; keep it from coming back",
                    remedy::close(id),
                ),
            }],
            ..Why::default()
        },
        (None, Some(waiter)) => Why {
            cause: CAUSES
                .iter()
                .map(|(code, _)| *code)
                .find(|code| *code == waiter.cause)
                .unwrap_or("behind"),
            until: None,
            evidence: waiter.evidence,
            advice: waiter.advice,
            waits_for: waiter.waits_for,
            more: None,
        },
        (None, None) => Why { cause: "session_well", ..Why::default() },
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

fn session_advice(view: &SessionView) -> Vec<String> {
    let mut advice = Vec::new();
    for (group, ..) in view.places.iter().filter(|(_, _, _, blocker)| blocker.is_some()).take(PLACES_MAX) {
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
