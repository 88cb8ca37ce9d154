//! Semaphores: k act, each on a seat of its own.

use crate::{reasons, session, soon, until_waiting};
use quorate::error::Code;
use quorate::testing::Service;
use quorate::{Error, Outcome};
use std::time::Duration;

#[tokio::test]
async fn each_holder_has_a_seat_of_its_own_and_a_freed_one_goes_to_the_first_in_the_queue() {
    let service = Service::start().await;
    let session = session(&service).await;
    let licences = session.semaphore("licences", 3).unwrap().named("job");
    let mut held = Vec::new();
    for seat in 0..3 {
        held.push(licences.acquire().await.unwrap());
        assert_eq!((held[seat].seat().0, held[seat].offer().unwrap().seat.0), (seat as u32, seat as u32));
    }
    assert!(held.is_sorted_by_key(|guard| guard.token()), "each grant has a greater token");
    let greatest = held[2].token().unwrap();
    let error = licences.try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    let waits = licences.clone().named("waiter");
    let waiting = tokio::spawn(async move { waits.acquire().await });
    until_waiting(&service, "licences", 1).await;
    assert!(reasons(&service, "licences")[0].starts_with("waiter: all 3 seats are held, by job (session"));
    held.remove(1).release().await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert_eq!(next.seat().0, 1);
    assert!(next.token().unwrap() > greatest);
}

#[tokio::test]
async fn another_number_of_seats_is_an_error_that_shows_both() {
    let service = Service::start().await;
    let session = session(&service).await;
    let _guard = session.semaphore("licences", 2).unwrap().acquire().await.unwrap();
    let error = session.semaphore("licences", 5).unwrap().acquire().await.unwrap_err();
    assert!(matches!(error, Error::Refused { code: Code::Policy, .. }), "{error}");
    assert!(error.to_string().contains("seats = 2") && error.to_string().contains("states 5"), "{error}");
    let error = session.lock("licences").unwrap().acquire().await.unwrap_err();
    assert!(error.to_string().contains("is a semaphore"), "{error}");
    assert_eq!(error.outcome(), Outcome::NotDone);
}

#[tokio::test]
async fn a_wait_for_a_seat_that_takes_too_long_gives_its_place_up() {
    let service = Service::start().await;
    let session = session(&service).await;
    let licences = session.semaphore("licences", 1).unwrap();
    let _guard = licences.acquire().await.unwrap();
    let error = licences.acquire_timeout(Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    until_waiting(&service, "licences", 0).await;
}
