//! Why one waits: the core's reason, and what makes it last.
//!
//! Rule: what holds a grant back is the [`Blocker`] of the core, whose sentence comes first. A cause is that
//! blocker's code, or the code of what is wrong with those that it names.

use super::facts::{Scene, Until};
use super::trouble::{Trouble, evidence, max_hold, not_stopped};
use super::{NAMED_MAX, remedy};
use quorate::{proto, wire};
use quorate_core::id::SessionId;
use quorate_core::state_machine::{
    Away, Blocker, Deadlock, Duty, Handover, Holder, Mode, Order, Preempt, Reason, Rejoin, Tie, Waiter,
};
use quorate_core::time::Span;

/// Why something is as it is.
#[derive(Debug, Default)]
pub(super) struct Why {
    /// A stable code.
    pub(super) cause: &'static str,
    /// What is to be said beside the core's sentence.
    pub(super) more: Option<String>,
    pub(super) until: Option<Until>,
    pub(super) evidence: Vec<proto::Evidence>,
    pub(super) advice: Vec<proto::Advice>,
    pub(super) waits_for: Vec<proto::Holder>,
}

/// The cause of what holds a grant back, as the core says it.
fn code(blocker: &Blocker) -> &'static str {
    match blocker {
        Blocker::Behind { .. } => "behind",
        Blocker::SeatsHeld { .. } => "seats_held",
        Blocker::SharedHeld { .. } => "shared_held",
        Blocker::Resting { .. } => "resting",
        Blocker::Parties { .. } => "parties",
        Blocker::Gone => "gone",
    }
}

/// Why a member waits.
pub(super) fn why(scene: &Scene<'_>, waiter: &Waiter) -> Why {
    match &waiter.blocker {
        Blocker::SeatsHeld { .. } | Blocker::SharedHeld { .. } => held(scene, Some(waiter)),
        Blocker::Behind { session, .. } => {
            let base = behind(scene, waiter, *session);
            match scene.view.deadlock.as_ref().filter(|deadlock| is_in(deadlock, waiter)) {
                Some(deadlock) => deadlocked(scene, deadlock, base),
                None => base,
            }
        }
        Blocker::Resting { .. } => resting(scene),
        Blocker::Parties { present, parties: all } => parties(scene, *present, *all),
        Blocker::Gone => Why { cause: code(&waiter.blocker), ..Why::default() },
    }
}

/// A wait in the contract's form.
pub(super) fn to_waiter(scene: &Scene<'_>, waiter: &Waiter) -> proto::Waiter {
    let why = why(scene, waiter);
    proto::Waiter {
        name: waiter.name.clone(),
        session: waiter.session.0,
        entry: waiter.entry.0,
        position: waiter.position,
        since_ms: waiter.since.0,
        cause: why.cause.into(),
        sentence: sentence(&waiter.blocker.to_string(), why.more.as_deref()),
        label: scene.label(waiter.session),
        until_ms: why.until.map(|(at, _)| at.0),
        until_what: why.until.map(|(_, what)| what).unwrap_or_default().into(),
        evidence: why.evidence,
        advice: why.advice,
        waits_for: why.waits_for,
    }
}

pub(super) fn sentence(first: &str, more: Option<&str>) -> String {
    more.map_or_else(|| first.to_owned(), |more| format!("{first}; {more}"))
}

/// A holder in the contract's form, with what the lease keeper knows.
pub(super) fn to_holder(scene: &Scene<'_>, holder: &Holder) -> proto::Holder {
    let person = scene.person(holder.session);
    proto::Holder {
        remaining_ms: person.remaining.map(Span::as_millis),
        label: person.label,
        ..wire::to_holder(holder)
    }
}

/// The holders by their trouble, the worst first, with those that have none behind.
fn by_trouble<'a>(scene: &'a Scene<'_>) -> Vec<(&'a Duty, Option<Trouble<'a>>)> {
    let with = |duty: &'a Duty| {
        let found = scene.people.get(&duty.holder.session).and_then(|person| Trouble::of(duty, person));
        (duty, found)
    };
    let mut all: Vec<_> = scene.view.duties.iter().map(with).collect();
    all.sort_by_key(|(duty, trouble)| (trouble.as_ref().map_or(u8::MAX, Trouble::rank), duty.holder.entry));
    all
}

/// Why seats are held: a deadlock, what is wrong with a holder, or nothing but that it acts.
pub(super) fn held(scene: &Scene<'_>, waiter: Option<&Waiter>) -> Why {
    let holders = by_trouble(scene);
    let named = holders.iter().take(NAMED_MAX);
    let base = Why {
        evidence: named.clone().flat_map(|(duty, _)| evidence(scene, duty)).collect(),
        waits_for: named.map(|(duty, _)| to_holder(scene, &duty.holder)).collect(),
        ..Why::default()
    };
    if let Some(deadlock) = scene.view.deadlock.as_ref().filter(|deadlock| keeps_out(scene, deadlock, waiter))
    {
        return deadlocked(scene, deadlock, base);
    }
    match holders.first() {
        Some((duty, Some(trouble))) => Why {
            cause: trouble.code(),
            more: Some(trouble.sentence(scene, duty)),
            until: trouble.until(scene, duty),
            advice: trouble.advice(scene, duty),
            ..base
        },
        Some((duty, None)) => Why {
            cause: waiter.map_or("nobody_waits", |waiter| code(&waiter.blocker)),
            until: max_hold(scene, duty),
            advice: waiter.map(|waiter| about_healthy(scene, waiter, &duty.holder)).unwrap_or_default(),
            ..base
        },
        None => base,
    }
}

/// What to do about one that simply acts.
fn about_healthy(scene: &Scene<'_>, waiter: &Waiter, holder: &Holder) -> Vec<proto::Advice> {
    let who = format!("{} (session {})", holder.name, holder.session);
    let ttl = scene.person(holder.session).ttl;
    let stop =
        format!("{who} is alive and renews its lease of {ttl}: wait until it is done, or ask it to stop");
    let mut advice = vec![remedy::advice(stop, remedy::close(holder.session))];
    if matches!(waiter.blocker, Blocker::SeatsHeld { .. }) && waiter.mode == Mode::Exclusive {
        let (name, to) = (&scene.view.summary.name, remedy::target(scene.view, waiter));
        let policy = &scene.view.policy;
        // Where the heavier make the lighter stop, a transfer to a lighter one is refused: none is advised.
        let goes_back = (policy.order, policy.preempt) == (Some(Order::Weight), Some(Preempt::OnWeight));
        advice.extend(match not_stopped(scene, holder) {
            Some(_) => Some(remedy::advice(
                "it was asked to hand over and did not say that it has stopped; stop its renewals",
                remedy::transfer(name, &to, true),
            )),
            None if goes_back => None,
            None => Some(remedy::advice("or have it hand over", remedy::transfer(name, &to, false))),
        });
    }
    advice
}

fn is_in(deadlock: &Deadlock, waiter: &Waiter) -> bool {
    deadlock.waits.iter().any(|edge| edge.entry == waiter.entry)
}

/// Whether a deadlock is why this one waits. Who would share waits for all that are alone, so it may wait for
/// ever where one that would be alone gets the seat of a holder that can go on.
fn keeps_out(scene: &Scene<'_>, deadlock: &Deadlock, waiter: Option<&Waiter>) -> bool {
    let is_kept = |waiter: &Waiter| waiter.mode == Mode::Shared || is_in(deadlock, waiter);
    scene.view.held_for_ever || waiter.is_none_or(is_kept)
}

fn deadlocked(scene: &Scene<'_>, deadlock: &Deadlock, base: Why) -> Why {
    let waits = deadlock.waits.iter().map(|edge| proto::Evidence {
        what: "waits".into(),
        sentence: format!("{} (session {}) waits for {}", edge.name, edge.owner(), edge.group),
        at_ms: Some(edge.since.0),
        session: Some(edge.owner().0),
    });
    Why {
        cause: tie_code(deadlock.tie()),
        more: Some(deadlock_sentence(deadlock)),
        evidence: waits.chain(base.evidence).collect(),
        advice: deadlock_advice(deadlock),
        waits_for: deadlock_holders(scene, deadlock, base.waits_for),
        until: None,
    }
}

/// The holders that are in the deadlock, before the others.
fn deadlock_holders(scene: &Scene<'_>, deadlock: &Deadlock, all: Vec<proto::Holder>) -> Vec<proto::Holder> {
    let is_in = |session: SessionId| deadlock.waits.iter().any(|edge| edge.session == session);
    let (mut inside, outside): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|holder| is_in(SessionId(holder.session)));
    inside.extend(outside);
    debug_assert!(!scene.view.holders.is_empty(), "a deadlock has holders");
    inside
}

/// The stable code of a deadlock.
pub(super) fn tie_code(tie: Tie) -> &'static str {
    match tie {
        Tie::Oneself => "deadlock_self",
        Tie::Cycle => "deadlock_cycle",
        Tie::Knot => "deadlock_knot",
    }
}

/// The word for it.
pub(super) fn tie_word(tie: Tie) -> &'static str {
    match tie {
        Tie::Oneself => "oneself",
        Tie::Cycle => "cycle",
        Tie::Knot => "knot",
    }
}

/// A deadlock as a sentence of its own.
pub(super) fn deadlock_sentence(deadlock: &Deadlock) -> String {
    let what = match deadlock.tie() {
        Tie::Oneself => "this is a deadlock of one with itself",
        Tie::Cycle => "this is a deadlock, a cycle",
        Tie::Knot => "this is a deadlock, a knot",
    };
    format!("{what}, which ends only when one gives up: {}", deadlock.sentence())
}

/// How to break it.
pub(super) fn deadlock_advice(deadlock: &Deadlock) -> Vec<proto::Advice> {
    let newest = deadlock.newest().map(|edge| {
        let what = format!("break it where the newest wait is, that of {} for {}", edge.name, edge.group);
        remedy::advice(what, remedy::close(edge.owner()))
    });
    newest.into_iter().collect()
}

/// Why one is not the first in line.
fn behind(scene: &Scene<'_>, waiter: &Waiter, session: SessionId) -> Why {
    let view = scene.view;
    let ahead = waiter.ahead.and_then(|(entry, _)| view.waiters.iter().find(|other| other.entry == entry));
    let writer = matches!(waiter.ahead, Some((_, Mode::Exclusive))) && waiter.mode == Mode::Shared;
    let more = writer.then(|| "it would be alone, and those that would share do not overtake it".to_owned());
    let evidence = ahead.map(|first| proto::Evidence {
        what: "waits".into(),
        sentence: format!("{} waits: {}", first.name, first.blocker),
        at_ms: Some(first.since.0),
        session: Some(first.session.0),
    });
    let waits_for = ahead.map(|first| proto::Holder {
        name: first.name.clone(),
        session: first.session.0,
        entry: first.entry.0,
        label: scene.label(first.session),
        remaining_ms: scene.person(first.session).remaining.map(Span::as_millis),
        ..proto::Holder::default()
    });
    let face = view.summary.face;
    let mut advice = vec![remedy::advice(
        "see what the first in line waits for",
        remedy::explain(face, &view.summary.name),
    )];
    if writer {
        advice.push(remedy::advice("or let the one that would be alone give up", remedy::close(session)));
    }
    Why {
        cause: if writer { "behind_writer" } else { "behind" },
        more,
        until: None,
        evidence: evidence.into_iter().collect(),
        advice,
        waits_for: waits_for.into_iter().collect(),
    }
}

/// Why a free seat is not taken.
fn resting(scene: &Scene<'_>) -> Why {
    let view = scene.view;
    let delay = match view.policy.handover {
        Some(Handover::Delay { delay }) => delay,
        _ => Span::ZERO,
    };
    let first = view.resting.first();
    let until = first.and_then(|rest| scene.due(Some(rest.task), "delay_end"));
    let last = view.history.iter().rev().find(|past| past.released.is_some());
    let evidence = last.map(|past| proto::Evidence {
        what: "last_holder".into(),
        sentence: format!("{} gave the seat up: {} ({})", past.name, past.reason, past.evidence),
        at_ms: Some(past.at.0),
        session: Some(past.session.0),
    });
    let what = format!("wait: the policy is a pause of {delay} between two holders");
    let show = format!("quorate group show {}", super::words::shell(view.summary.name.as_str()));
    let waits_for = last.map(|past| proto::Holder {
        name: past.name.clone(),
        session: past.session.0,
        label: scene.label(past.session),
        ..proto::Holder::default()
    });
    Why {
        cause: "resting",
        more: until.map(|(end, _)| format!("the pause ends at {}", scene.clock(end))),
        until,
        evidence: evidence.into_iter().collect(),
        advice: vec![remedy::advice(what, show)],
        waits_for: waits_for.into_iter().collect(),
    }
}

/// Why a barrier lets nobody through.
fn parties(scene: &Scene<'_>, present: u64, parties: u64) -> Why {
    let view = scene.view;
    let here = view.waiters.iter().map(|waiter| proto::Evidence {
        what: "arrived".into(),
        sentence: format!("{} (session {}) is there", waiter.name, waiter.session),
        at_ms: Some(waiter.since.0),
        session: Some(waiter.session.0),
    });
    let name = super::words::shell(view.summary.name.as_str());
    let missing = parties.saturating_sub(present);
    Why {
        cause: "parties",
        more: Some(match missing {
            1 => "1 party is missing".to_owned(),
            missing => format!("{missing} parties are missing"),
        }),
        evidence: here.collect(),
        advice: vec![remedy::advice(
            "start who is missing, or let those that are there through",
            format!("quorate group seats {name} {present}"),
        )],
        ..Why::default()
    }
}

/// A place that is kept for a member that is away, in the form of a wait.
pub(super) fn reserved(scene: &Scene<'_>, away: &Away) -> proto::Waiter {
    let view = scene.view;
    let until = scene.due(Some(away.task), "grace_end");
    let lost = view.history.iter().rev().find(|past| {
        past.session == away.session && matches!(past.reason, Reason::Expired | Reason::Disconnect)
    });
    let grace = match view.policy.rejoin {
        Some(Rejoin::Sticky { grace }) => format!(" for {grace}"),
        _ => String::new(),
    };
    let end = until.map(|(end, _)| format!(", until {}", scene.clock(end))).unwrap_or_default();
    let evidence = lost.map(|past| proto::Evidence {
        what: "lost".into(),
        sentence: format!("{}: {}", past.reason, past.evidence),
        at_ms: Some(past.at.0),
        session: Some(past.session.0),
    });
    let name = super::words::shell(view.summary.name.as_str());
    let back = format!("quorate join {name} --name {}", super::words::shell(&away.name));
    proto::Waiter {
        name: away.name.clone(),
        session: away.session.0,
        entry: away.entry.0,
        position: 0,
        since_ms: lost.map(|past| past.at.0).unwrap_or_default(),
        cause: "reserved".into(),
        sentence: format!(
            "{} (session {}) is away, and its place is kept{grace}{end}; it delays nobody's seat",
            away.name, away.session
        ),
        until_ms: until.map(|(at, _)| at.0),
        until_what: until.map(|(_, what)| what).unwrap_or_default().into(),
        evidence: evidence.into_iter().collect(),
        advice: vec![remedy::advice("a member of its name that joins meanwhile has its place", back)],
        ..proto::Waiter::default()
    }
}
