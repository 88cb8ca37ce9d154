//! The run in words: beside a line, below the title, and for those who cannot see the picture.

use crate::story::scene::Scene;
use crate::story::{Clock, is_input};
use quorate_core::trace::What;

/// The words beside a process's line at one step, none for what its sign says well enough.
pub(super) fn said(scene: &Scene<'_>, at_step: usize) -> Option<String> {
    let step = scene.steps[at_step];
    let words = || scene.story.words(step).to_owned();
    match step.what {
        What::Started { record: true } if step.at_peer.incarnation.0 > 1 => {
            Some(format!("{} starts with its record", step.at_peer))
        }
        What::Started { record: false } if step.at_peer.incarnation.0 > 1 => {
            Some(format!("{} starts anew", step.at_peer))
        }
        What::Crashed => Some("crash".to_owned()),
        What::Paused => Some("pause".to_owned()),
        What::Resumed => Some("goes on".to_owned()),
        What::ClockRate(ppm) => Some(format!("clock runs at {ppm:+} ppm")),
        What::ClockJumped(us) => Some(format!("clock jumps by {}", Clock(us))),
        What::Called { .. } | What::TimerFired { .. } | What::Ignored { .. } => Some(words()),
        What::Emitted { kind } => match scene.story.names.event(kind) {
            "requested" | "left" | "started" => None,
            _ => Some(words()),
        },
        What::Suspected(of) => Some(format!("suspects {of}")),
        What::Trusted(of, life) => {
            Some(format!("trusts {}", quorate_core::protocol::Peer { process: of, incarnation: life }))
        }
        What::View(count) => Some(format!("view of {count}")),
        _ => None,
    }
}

pub(super) fn facts(scene: &Scene<'_>) -> String {
    let story = scene.story;
    let mut facts = vec![format!("{} processes", story.processes.len())];
    let (count, lost) = (scene.messages.len(), scene.lost());
    facts.push(match lost {
        0 => format!("{count} messages"),
        lost => format!("{count} messages, {lost} of them lost"),
    });
    facts.push(format!("{} steps", scene.steps.len()));
    facts.push(format!("ends at {}", Clock(scene.end_us())));
    if let Some(seed) = story.seed {
        facts.push(format!("seed {seed}"));
    }
    facts.join("; ")
}

/// The run in sentences, for those who cannot see it: at most the first so many.
const SENTENCES_MAX: usize = 40;

pub(super) fn description(scene: &Scene<'_>) -> String {
    let is_told = |at: &usize| {
        let what = &scene.steps[*at].what;
        let is_said = said(scene, *at).is_some() && (is_input(what) || matches!(what, What::Emitted { .. }));
        is_said || *what == What::Violated
    };
    let told: Vec<_> = (0..scene.steps.len()).filter(is_told).collect();
    let sentence = |at: &usize| {
        if scene.steps[*at].what == What::Violated {
            return format!(
                "Violated at {}: {}.",
                Clock(scene.time_us(*at)),
                scene.story.words(scene.steps[*at])
            );
        }
        let words = said(scene, *at).unwrap_or_default();
        format!("{} at {}: {words}.", scene.steps[*at].at_peer, Clock(scene.time_us(*at)))
    };
    let mut sentences = vec![scene.story.caption.clone(), format!("{}.", facts(scene))];
    sentences.extend(told.iter().take(SENTENCES_MAX).map(sentence));
    if told.len() > SENTENCES_MAX {
        sentences.push(format!("{} more.", told.len() - SENTENCES_MAX));
    }
    sentences.join(" ")
}
