//! What is wrong with a holder: the causes that a wait for it has beside its being there.

use super::facts::{Person, Scene, Until};
use super::remedy;
use super::words::span;
use quorate::proto;
use quorate_core::state_machine::{Asked, AskedFor, Duty, Holder, Reason};
use quorate_core::time::{Span, Wall};

/// What is wrong, the worse before the milder: who hears nothing cannot answer what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble<'a> {
    /// An operator closed its session.
    Closing(&'a str),
    /// No connection of it is there.
    Disconnected,
    /// It is connected and says nothing.
    Silent(Span),
    /// It was asked to stop.
    Asked(&'a Asked),
    /// Its work gives no sign.
    Stalled(Wall),
}

impl<'a> Trouble<'a> {
    /// The worst of a holder.
    pub(super) fn of(duty: &'a Duty, person: &'a Person) -> Option<Self> {
        if let Some(why) = &person.closing {
            return Some(Self::Closing(why));
        }
        if person.is_gone() {
            return Some(Self::Disconnected);
        }
        if let Some(silent) = person.quiet() {
            return Some(Self::Silent(silent));
        }
        match (&duty.asked, duty.holder.stalled_since) {
            (Some(asked), _) => Some(Self::Asked(asked)),
            (None, Some(since)) => Some(Self::Stalled(since)),
            (None, None) => None,
        }
    }

    /// Its place among others; the least is told first.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Self::Closing(_) => 0,
            Self::Disconnected => 1,
            Self::Silent(_) => 2,
            Self::Asked(_) => 3,
            Self::Stalled(_) => 4,
        }
    }

    /// The stable code of the cause.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Closing(_) => "holder_closing",
            Self::Disconnected => "holder_disconnected",
            Self::Silent(_) => "holder_silent",
            Self::Asked(asked) => asked_code(asked.what),
            Self::Stalled(_) => "holder_stalled",
        }
    }

    /// When it ends by itself.
    pub(super) fn until(&self, scene: &Scene<'_>, duty: &Duty) -> Option<Until> {
        match self {
            Self::Closing(_) | Self::Disconnected | Self::Silent(_) => {
                let person = scene.person(duty.holder.session);
                person.lease_end(scene.now).map(|end| (end, "lease_end"))
            }
            Self::Asked(asked) => scene.due(asked.task, "drain_end"),
            Self::Stalled(_) => max_hold(scene, duty),
        }
    }

    /// What is wrong and how it ends, as a sentence.
    pub(super) fn sentence(&self, scene: &Scene<'_>, duty: &Duty) -> String {
        let holder = who(&duty.holder);
        let person = scene.person(duty.holder.session);
        let ends = person.lease_end_text(scene.now);
        match self {
            Self::Closing(why) => format!(
                "{holder} was asked to stop ({why}): its lease is renewed no more and ends{ends} at the latest"
            ),
            Self::Disconnected => format!(
                "{holder} has no connection: it has died or is cut off, and its lease ends{ends} if it does \
                 not come back"
            ),
            Self::Silent(silent) => format!(
                "{holder} is connected and silent since {}: it is paused or its link is cut, and its lease \
                 ends{ends} if it stays so",
                scene.clock(Wall(scene.now.0.saturating_sub(silent.as_millis())))
            ),
            Self::Asked(asked) => format!("{holder} {}", asked_text(scene, asked)),
            Self::Stalled(since) => format!(
                "the work of {holder} gives no sign since {}{}, and its lease goes on",
                scene.clock(*since),
                duty.progress
                    .map(|span| format!(", though it promised one every {span}"))
                    .unwrap_or_default()
            ),
        }
    }

    /// What can be done about it.
    pub(super) fn advice(&self, scene: &Scene<'_>, duty: &Duty) -> Vec<proto::Advice> {
        let session = duty.holder.session;
        let name = &scene.view.summary.name;
        match self {
            Self::Closing(_) => vec![remedy::advice(
                "wait: nothing ends its right to act sooner; see how long its lease still lasts",
                format!("quorate session show {session}"),
            )],
            Self::Disconnected | Self::Silent(_) => vec![remedy::advice(
                "wait for the end of its lease, and keep it from coming back meanwhile",
                remedy::close(session),
            )],
            Self::Asked(Asked { what: AskedFor::Transfer, to: Some((to, _)), force: false, .. }) => {
                vec![remedy::advice(
                    "if the time passes without its word it holds on; then stop its renewals",
                    remedy::transfer(name, to, true),
                )]
            }
            Self::Asked(_) => vec![remedy::advice(
                "if it does not stop by itself, let its lease end",
                remedy::close(session),
            )],
            Self::Stalled(_) => {
                vec![remedy::advice("look at its process, or let it go", remedy::close(session))]
            }
        }
    }
}

/// The code of each reason for which a holder is asked.
fn asked_code(what: AskedFor) -> &'static str {
    match what {
        AskedFor::Transfer => "asked_transfer",
        AskedFor::Preempt => "asked_preempt",
        AskedFor::MaxHold => "asked_max_hold",
        AskedFor::FewerSeats => "asked_fewer_seats",
        AskedFor::Delete => "asked_delete",
    }
}

fn asked_text(scene: &Scene<'_>, asked: &Asked) -> String {
    let since = scene.clock(asked.since);
    match scene.due(asked.task, "drain_end") {
        Some((end, _)) => format!(
            "was asked at {since} to stop ({}): it has until {} to say that it has, {}",
            asked.why,
            scene.clock(end),
            if asked.force { "then its lease is renewed no more" } else { "else it holds on" }
        ),
        None => format!(
            "was asked at {since} to stop ({}): it holds until it says that it has, or its lease ends",
            asked.why
        ),
    }
}

/// When a holder is asked to stop, by its own word.
pub(super) fn max_hold(scene: &Scene<'_>, duty: &Duty) -> Option<Until> {
    scene.due(duty.max_hold?.1, "max_hold")
}

/// A holder as sentences name it.
pub(super) fn who(holder: &Holder) -> String {
    format!("{} (session {}, token {})", holder.name, holder.session, holder.seat.token)
}

/// All that is known of a holder, and who reported it.
pub(super) fn evidence(scene: &Scene<'_>, duty: &Duty) -> Vec<proto::Evidence> {
    let holder = &duty.holder;
    let person = scene.person(holder.session);
    let of = |what: &str, sentence: String, at: Option<Wall>| proto::Evidence {
        what: what.into(),
        sentence,
        at_ms: at.map(|at| at.0),
        session: Some(holder.session.0),
    };
    let label = if person.label.is_empty() { "an unnamed client" } else { &person.label };
    let mut all = vec![of(
        "holds",
        format!("{} of {label} took seat {}", who(holder), holder.seat.no),
        Some(holder.seat.since),
    )];
    if let Some(silent) = person.silent {
        let heard = Wall(scene.now.0.saturating_sub(silent.as_millis()));
        let what = if person.quiet().is_some() { "silent" } else { "renewed" };
        let text = format!("the lease keeper confirmed its last renewal {} ago", span(silent));
        all.push(of(what, text, Some(heard)));
        let connected = if person.connected { "connected" } else { "disconnected" };
        let text = if person.connected { "its connection is open" } else { "no connection of it is open" };
        all.push(of(connected, text.into(), None));
    }
    if let Some(why) = &person.closing {
        all.push(of("closing", format!("an operator asked it to stop: {why}"), None));
    }
    if let Some(asked) = &duty.asked {
        all.push(of("asked", format!("it was asked to stop: {}", asked.why), Some(asked.since)));
    }
    if let Some(since) = holder.stalled_since {
        all.push(of("stalled", "its work gave no sign for longer than it said".into(), Some(since)));
    }
    if let Some((most, _)) = duty.max_hold {
        all.push(of("max_hold", format!("it said that it would hold for {most} at most"), None));
    }
    all.extend(not_stopped(scene, holder).map(|(at, why)| of("not_stopped", why, Some(at))));
    all
}

/// The last time that this holder was asked to stop under this token and did not say that it has.
pub(super) fn not_stopped(scene: &Scene<'_>, holder: &Holder) -> Option<(Wall, String)> {
    let history = scene.view.history.iter().rev();
    let mut of_it = history.filter(|past| past.session == holder.session && past.at >= holder.seat.since);
    of_it.find(|past| past.reason == Reason::NotStopped).map(|past| (past.at, past.evidence.clone()))
}
