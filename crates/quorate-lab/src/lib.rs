//! What if: simulated worlds for the protocols of `quorate-core`. It links the core only, so that checking
//! links nothing slow.
//!
//! Nothing is here yet. The service's own simulation, with its log engine and its connections, is in
//! `quorate-server/tests/it/simulated.rs`; the worlds of the peer protocols come with those protocols.
