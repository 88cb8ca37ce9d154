//! The client library against a whole service in this process.
#![allow(clippy::unwrap_used)]

mod barrier;
mod chaos;
mod draining;
mod driver;
mod group;
mod leadership;
mod lock;
mod rwlock;
mod semaphore;
mod session;

use quorate::testing::Service;
use quorate::{Session, SessionOptions};
use quorate_core::state_machine::{GroupView, StateMachine};
use std::time::Duration;

/// Longer than any test: nothing ends because a lease does.
const LONG: Duration = Duration::from_secs(300);

/// Short enough to wait for, long enough for a busy machine.
const SHORT: Duration = Duration::from_millis(1_500);

/// Waits for what must come soon: a test that fails says so instead of hanging.
async fn soon<F: Future>(what: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("it should have come within 20 s")
}

/// A session that no test outlives.
async fn session(service: &Service) -> Session {
    service.client().await.session(SessionOptions::with_ttl(LONG)).await.unwrap()
}

/// What the service knows of a name.
fn view(machine: &StateMachine, name: &str) -> Option<GroupView> {
    machine.group_view(&quorate::Name::new(name).unwrap(), 100)
}

/// Waits until so many wait for a name.
async fn until_waiting(service: &Service, name: &str, waiting: u64) {
    let name = name.to_string();
    soon(service.until(move |machine| view(machine, &name).is_some_and(|v| v.summary.waiting == waiting)))
        .await;
}

/// What those that wait for a name wait for, in words.
fn reasons(service: &Service, name: &str) -> Vec<String> {
    let view = service.look(|machine| view(machine, name)).unwrap();
    view.waiters.iter().map(|waiter| format!("{}: {}", waiter.name, waiter.blocker)).collect()
}
