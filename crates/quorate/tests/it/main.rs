//! The client library against a whole service in this process.
#![allow(clippy::unwrap_used)]

mod chaos;
mod driver;
mod group;
mod lock;
mod session;

use std::time::Duration;

/// Waits for what must come soon: a test that fails says so instead of hanging.
async fn soon<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("it should have come within 20 s")
}
