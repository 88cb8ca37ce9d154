//! Elections in the lab: what must hold of them, what they cost, how scripts begin them, and what each
//! process of a storm knows.

pub mod check;
pub mod cost;
pub mod open;
pub mod sight;
pub mod worlds;
