//! Sessions: opening, addresses, and the ends of them.

use crate::soon;
use quorate::error::Code;
use quorate::testing::Service;
use quorate::{Client, Error, Outcome, SessionOptions};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(300);

#[tokio::test]
async fn a_lease_that_is_too_short_is_refused_with_the_floor() {
    let service = Service::start().await;
    let options = SessionOptions::with_ttl(Duration::from_millis(5));
    let error = service.client().await.session(options).await.unwrap_err();
    let Error::LeaseTooShort { floor, .. } = &error else { panic!("{error}") };
    assert_eq!(*floor, Duration::from_millis(20));
    assert!(error.to_string().contains("ask for 20 ms or more"), "{error}");
}

#[tokio::test]
async fn a_lease_that_is_too_long_is_refused() {
    let service = Service::start().await;
    let options = SessionOptions::with_ttl(Duration::from_secs(601));
    let error = service.client().await.session(options).await.unwrap_err();
    assert!(matches!(error, Error::Refused { code: Code::TooLong, .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "the limit for a lease is 10 min, and this would be 601 s; nothing was changed"
    );
}

#[tokio::test]
async fn a_warning_longer_than_a_third_of_the_lease_is_an_error() {
    let service = Service::start().await;
    let options = SessionOptions::with_ttl(Duration::from_secs(3)).warning(Duration::from_millis(1_001));
    let error = service.client().await.session(options).await.unwrap_err();
    assert!(matches!(error, Error::Options(_)), "{error}");
    let options = SessionOptions::with_ttl(Duration::from_secs(3)).warning(Duration::from_secs(1));
    let session = service.client().await.session(options).await.unwrap();
    assert_eq!(session.warning(), Duration::from_secs(1));
}

#[tokio::test]
async fn no_service_is_an_error_that_names_the_address_and_the_cause() {
    let service = Service::start().await;
    let address = service.address();
    drop(service);
    let client = Client::builder(&address).open_timeout(Duration::from_millis(300)).build().unwrap();
    let error = client.session(SessionOptions::default()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert_eq!(error.outcome(), Outcome::NotDone);
    assert!(error.to_string().contains(&address) && error.to_string().contains("refused"), "{error}");
    assert!(matches!(client.reachable_operator().await, Err(Error::Unreachable { .. })));
}

#[tokio::test]
async fn the_first_address_that_answers_is_taken_and_kept() {
    let (dead, alive) = (Service::start().await, Service::start().await);
    let addresses = format!("{},http://{}/", dead.address(), alive.address());
    drop(dead);
    let client = Client::connect(addresses).unwrap();
    let session = soon(client.session(SessionOptions::with_ttl(LONG))).await.unwrap();
    assert!(alive.look(|machine| machine.session_view(session.id().unwrap())).is_some());
    assert!(client.reachable_operator().await.is_ok());
}

#[tokio::test]
async fn a_session_moves_to_the_address_that_lives_when_the_other_falls_silent() {
    let service = Service::start().await;
    let (first, second) = (service.cable().await, service.cable().await);
    let client = Client::connect(format!("{},{}", first.address(), second.address())).unwrap();
    let session = client.session(SessionOptions::with_ttl(Duration::from_secs(8))).await.unwrap();
    let guard = session.lock("orders").unwrap().acquire().await.unwrap();
    let (id, token) = (session.id().unwrap(), guard.token());
    first.freeze();
    let moved = move |machine: &quorate_core::state_machine::StateMachine| {
        machine.session_view(id).is_some_and(|view| view.generation.0 == 2)
    };
    soon(service.until(moved)).await;
    assert_eq!(guard.token(), token, "within its lease nothing is lost");
}

#[tokio::test]
async fn the_last_handle_ends_the_session_and_all_that_it_holds() {
    let service = Service::start().await;
    let session = service.client().await.session(SessionOptions::with_ttl(LONG)).await.unwrap();
    let guard = session.lock("orders").unwrap().acquire().await.unwrap();
    let clone = session.clone();
    drop(session);
    drop(guard);
    assert_eq!(service.look(|machine| machine.counts().0), 1, "a clone is left");
    drop(clone);
    soon(service.until(|machine| machine.counts() == (0, 0))).await;
}

#[tokio::test]
async fn an_ended_session_holds_nothing_and_says_so() {
    let service = Service::start().await;
    let session = service.client().await.session(SessionOptions::with_ttl(LONG)).await.unwrap();
    let guard = session.lock("orders").unwrap().acquire().await.unwrap();
    session.end().await.unwrap();
    assert_eq!(guard.token(), None);
    assert_eq!(service.look(|machine| machine.counts().0), 0);
    let error = session.lock("orders").unwrap().acquire().await.unwrap_err();
    assert!(matches!(error, Error::Ended), "{error}");
    assert!(matches!(session.ended().await, Error::Ended));
    session.end().await.unwrap();
}

#[tokio::test]
async fn a_service_that_comes_back_finds_its_sessions_and_keeps_their_seats() {
    let service = Service::start().await;
    let session = service.client().await.session(SessionOptions::with_ttl(LONG)).await.unwrap();
    let guard = session.lock("orders").unwrap().acquire().await.unwrap();
    let (id, token) = (session.id().unwrap(), guard.token());
    service.stop();
    assert_eq!(guard.token(), token, "unavailable is not lost");
    service.start_again();
    let attached = move |machine: &quorate_core::state_machine::StateMachine| {
        machine.session_view(id).is_some_and(|view| view.generation.0 >= 2)
    };
    soon(service.until(attached)).await;
    assert_eq!(guard.token(), token);
    soon(guard.release()).await.unwrap();
}

#[tokio::test]
async fn many_sessions_of_one_client_share_connections() {
    let service = Service::start().await;
    let client = service.client().await;
    let opening = (0..300).map(|_| client.session(SessionOptions::with_ttl(LONG)));
    let sessions = soon(futures::future::try_join_all(opening)).await.unwrap();
    assert_eq!(service.look(|machine| machine.counts().0), 300);
    drop(sessions);
    soon(service.until(|machine| machine.counts().0 == 0)).await;
}
