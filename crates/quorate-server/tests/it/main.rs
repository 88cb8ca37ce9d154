//! Tests of the whole server.

mod log;
