//! Pictures of a run, for people: everything is read from a [`Story`](crate::story::Story), and the same story
//! gives the same bytes.
//!
//! | function | draws |
//! |---|---|
//! | [`space_time()`] | who sent what to whom and when, as SVG (Lamport 1978) |
//! | [`text()`] | the same for a terminal |
//! | [`wait_for_graph`] | who waits for whom, right now, with every cycle in red, as SVG |
//! | [`voting_sets`] | who asks whom for a vote, as SVG (Maekawa 1985) |
//!
//! SVG files are complete by themselves, follow the reader's choice of a light or dark ground, and say in
//! words what they show.

pub mod graph;
mod layout;
mod space_time;
mod svg;
mod text;

pub use graph::{voting_sets, wait_for_graph};
pub use space_time::space_time;
pub use text::{TextOptions, text};
