//! The client library against a whole service in this process.

mod lock;
