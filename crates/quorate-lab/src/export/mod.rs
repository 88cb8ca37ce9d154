//! A run as a file for other tools, and back. Every format is computed from the one [`Story`]; to export a
//! part, cut it with [`Story::slice`] first, as clocks and numbers have to be computed from what is left.
//!
//! | function | for | limits |
//! |---|---|---|
//! | [`ndjson::write`], [`ndjson::read`] | everything: programs, and the way back | none is lost |
//! | [`shiviz()`] | ShiViz: the happened-before graph of one run, or of several side by side | none |
//! | [`chrome()`] | Perfetto and `chrome://tracing`: bars, arrows, a search by words | about 100 MB |
//! | [`mermaid()`] | a sequence diagram within a document or an issue | 150 messages |

mod chrome;
mod line;
mod mermaid;
pub mod ndjson;
mod shiviz;

pub use chrome::chrome;
pub use mermaid::{MESSAGES_MAX, MermaidError, mermaid};
pub use shiviz::shiviz;

use crate::story::{Clock, Story, loss_words};
use quorate_core::protocol::Peer;
use quorate_core::trace::{Step, What};

/// A step in one line of words, never empty.
pub(crate) fn sentence(story: &Story, step: &Step) -> String {
    let words = story.words(step).replace(['\n', '\r'], " ");
    match step.what {
        What::Started { record: true } => format!("{} starts with its record", step.at_peer),
        What::Started { record: false } => format!("{} starts", step.at_peer),
        What::Crashed => format!("{} crashes", step.at_peer),
        What::Paused => "pauses".to_owned(),
        What::Resumed => "goes on".to_owned(),
        What::ClockRate(ppm) => format!("clock runs at {ppm:+} ppm"),
        What::ClockJumped(us) => format!("clock jumps by {}", Clock(us)),
        What::Called { .. } => format!("is asked to {words}"),
        What::Sent { to, .. } => format!("sends {words} to {to}"),
        What::Received { from, .. } => format!("receives {words} from {from}"),
        What::Dropped { to, why, .. } => format!("{words} to {to}: {}", loss_words(why)),
        What::Doubled { .. } => format!("{words} is doubled"),
        What::TimerSet { drawn_us, .. } => format!("sets timer {words} to {}", Clock(drawn_us)),
        What::TimerCancelled { .. } => format!("stops timer {words}"),
        What::TimerFired { .. } => format!("timer {words}"),
        What::Persist(id) => format!("writes record {}", id.0),
        What::Persisted(id) => format!("record {} is durable", id.0),
        What::Emitted { .. } => format!("says {words}"),
        What::Ignored { from, .. } => format!("ignores {words} from {from}"),
        What::Suspected(of) => format!("suspects {of}"),
        What::Trusted(process, incarnation) => format!("trusts {}", Peer { process, incarnation }),
        What::View(count) => format!("view of {count}"),
        What::Cut(to) => format!("link to {to} is cut"),
        What::Mended(to) => format!("link to {to} is mended"),
        What::Violated => format!("violated: {words}"),
    }
}
