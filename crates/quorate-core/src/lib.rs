//! What to do: the pure decisions of Quorate. No clock, socket, thread, file or random number lives here;
//! time comes in with each input and effects go out as values, so the same code runs in the service, in
//! tests and in a simulator.
//!
//! | module | decides | source |
//! |---|---|---|
//! | [`state_machine`] | sessions, queues, seats, tokens: the replicated service | RULES R1-R30 |
//! | [`lease`] | when a lease ends, for the server and for the client | Gray and Cheriton 1989; RULES R1-R7 |
//! | [`edge`] | what one connection of a session may do | RULES R21-R24 |
//! | [`fence`] | whether a resource admits a token | RULES R31-R35 |
//! | [`protocol`] | the shape of a peer protocol: inputs, effects, and why it waits ([`wait`]) | Lynch 1996 |
//! | [`mutex`] | who is inside, among peers | Ricart and Agrawala 1981, and others |
//! | [`election`] | who leads, among peers | Garcia-Molina 1982, and others |
//! | [`quorum`] | whom to ask, so that any two that ask meet | Maekawa 1985 |
//! | [`trace`] | one record for everything that happens in a run | |
//! | [`frame`] | what a client and the service say to each other | `quorate/proto/quorate/v1` |
#![no_std]

extern crate alloc;

pub mod edge;
pub mod election;
pub mod fence;
mod flaw;
pub mod frame;
pub mod id;
pub mod lease;
pub mod mutex;
pub mod protocol;
pub mod quorum;
pub mod state_machine;
pub mod time;
pub mod trace;
pub mod wait;
