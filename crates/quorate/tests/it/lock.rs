//! Locks: one holds, the others wait their turn, and each learns in time what it holds.

use crate::soon;
use quorate::error::Code;
use quorate::testing::{Cable, Service};
use quorate::{Error, JoinOptions, LockGuard, LossCause, OnDisconnect, Outcome, Session, SessionOptions};
use quorate_core::state_machine::StateMachine;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Longer than any test: nothing here ends because a lease does.
const LONG: Duration = Duration::from_secs(300);

/// Short enough to wait for, long enough for a busy machine.
const SHORT: Duration = Duration::from_millis(1_500);

async fn session(service: &Service) -> Session {
    service.client().await.session(SessionOptions::with_ttl(LONG)).await.unwrap()
}

async fn session_on(cable: &Cable, ttl: Duration) -> Session {
    cable.client().session(SessionOptions::with_ttl(ttl)).await.unwrap()
}

fn waiting(machine: &StateMachine) -> u64 {
    machine.group_list(None, 9).iter().map(|group| group.waiting).sum()
}

fn acquire(session: &Session, holder: &str) -> JoinHandle<Result<LockGuard, Error>> {
    let lock = session.lock("orders").unwrap().named(holder);
    tokio::spawn(async move { lock.acquire().await })
}

async fn held(session: &Session, holder: &str) -> LockGuard {
    soon(acquire(session, holder)).await.unwrap().unwrap()
}

/// Asks for the lock and waits until the service has queued the request as the `nth`.
async fn queue(service: &Service, session: &Session, nth: u64) -> JoinHandle<Result<LockGuard, Error>> {
    let waiter = acquire(session, &format!("waiter {nth}"));
    soon(service.until(move |machine| waiting(machine) == nth)).await;
    waiter
}

#[tokio::test]
async fn waiters_are_served_in_the_order_they_asked_each_under_a_greater_token() {
    let service = Service::start().await;
    let mut guard = held(&session(&service).await, "first").await;
    let mut waiters = Vec::new();
    for nth in 1..=4 {
        waiters.push(queue(&service, &session(&service).await, nth).await);
    }
    for (nth, waiter) in waiters.into_iter().enumerate() {
        let before = guard.token().unwrap();
        guard.release().await.unwrap();
        guard = soon(waiter).await.unwrap().unwrap();
        assert!(guard.token().unwrap() > before);
        let holder = service.look(|machine| machine.group_list(None, 1)[0].holder.clone()).unwrap();
        assert_eq!(holder.name, format!("waiter {}", nth + 1));
        assert_eq!((holder.entry, Some(holder.session)), (guard.grant(), guard.session().id()));
    }
}

#[tokio::test]
async fn two_acquisitions_of_one_session_exclude_each_other() {
    let service = Service::start().await;
    let session = session(&service).await;
    let first = held(&session, "a").await;
    let second = queue(&service, &session, 1).await;
    assert!(!second.is_finished());
    drop(first);
    assert!(soon(second).await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn a_dropped_guard_is_released_and_a_dropped_waiter_leaves_the_queue() {
    let service = Service::start().await;
    let (a, b, c) = (session(&service).await, session(&service).await, session(&service).await);
    let guard = held(&a, "a").await;
    let gives_up = queue(&service, &b, 1).await;
    let next = queue(&service, &c, 2).await;
    gives_up.abort();
    soon(service.until(|machine| waiting(machine) == 1)).await;
    drop(guard);
    let guard = soon(next).await.unwrap().unwrap();
    assert_eq!(guard.session().id(), c.id());
}

#[tokio::test]
async fn a_cancel_that_races_its_grant_releases_what_was_granted() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let (a, b) = (session(&service).await, session_on(&cable, LONG).await);
    let guard = held(&a, "a").await;
    let waiter = queue(&service, &b, 1).await;
    cable.freeze_answers();
    guard.release().await.unwrap();
    let entry = service.look(|machine| machine.group_list(None, 1)[0].holder.clone()).unwrap().entry;
    // It holds the lock and does not know it. It gives up; the service answers that it came too late.
    waiter.abort();
    assert!(waiter.await.unwrap_err().is_cancelled());
    soon(service.until(move |machine| machine.total(entry).is_some())).await;
    cable.thaw();
    soon(service.until(move |machine| machine.total(entry).is_none())).await;
    assert!(held(&a, "a").await.is_held());
}

#[tokio::test]
async fn trying_a_busy_lock_names_the_holder_and_leaves_nothing_behind() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let guard = held(&a, "backup on host 7").await;
    let error = b.lock("orders").unwrap().try_acquire().await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::NotDone);
    let Error::Busy { holder, session, token, message, .. } = error else { panic!("{error}") };
    assert_eq!(holder, "backup on host 7");
    assert_eq!((Some(session), token), (a.id(), guard.token()));
    assert!(message.contains("orders is held by backup on host 7"), "{message}");
    assert_eq!(service.look(waiting), 0);
    guard.release().await.unwrap();
    assert!(b.lock("orders").unwrap().try_acquire().await.unwrap().is_held());
}

#[tokio::test]
async fn a_wait_that_takes_too_long_gives_its_place_up() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let _guard = held(&a, "a").await;
    let limit = Duration::from_millis(30);
    let error = b.lock("orders").unwrap().acquire_timeout(limit).await.unwrap_err();
    let said = "\"orders\" was not granted within 30 ms; the place in the queue was given up";
    assert_eq!(error.to_string(), said);
    soon(service.until(|machine| waiting(machine) == 0)).await;
}

#[tokio::test]
async fn an_operator_closes_a_session_and_the_seat_moves_when_its_holder_has_stopped() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let guard = held(&a, "a").await;
    let other = a.lock("other").unwrap();
    let _held_by_b = b.lock("other").unwrap().acquire().await.unwrap();
    let waits = tokio::spawn(async move { other.acquire().await });
    let next = queue(&service, &b, 2).await;
    let id = a.id().unwrap();
    service.close_session(id, "maintenance of host 7").unwrap();

    let loss = soon(guard.lost()).await;
    assert_eq!(loss.cause, LossCause::Closed);
    assert!(loss.why.contains("maintenance of host 7"), "{loss}");
    assert_eq!(guard.token(), None, "it acts no more");
    let error = soon(waits).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Closed { session, .. } if session == id), "{error}");
    let refused = a.lock("third").unwrap().acquire().await.unwrap_err();
    assert!(matches!(refused, Error::Closed { .. }), "{refused}");

    // The holder still tidies up: the seat waits for its word (RULES R11).
    assert!(!next.is_finished());
    assert!(service.look(|machine| machine.session_view(id)).is_some());
    guard.release().await.unwrap();
    assert!(soon(next).await.unwrap().unwrap().is_held());
    assert!(matches!(soon(a.ended()).await, Error::Closed { .. }));
    assert!(service.look(|machine| machine.session_view(id)).is_none());
}

#[tokio::test]
async fn a_holder_that_is_cut_off_is_warned_stops_and_only_then_another_holds() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let (a, b) = (session_on(&cable, SHORT).await, session(&service).await);
    let guard = held(&a, "a").await;
    let first = guard.token().unwrap();
    let next = queue(&service, &b, 1).await;
    cable.freeze();

    let warned = soon(guard.lost()).await;
    assert_eq!(warned.cause, LossCause::DeadlineNear);
    assert!(warned.remaining > Duration::ZERO && warned.remaining <= SHORT / 6, "{warned}");
    assert_eq!(guard.token(), Some(first), "there is time to stop");
    assert!(!next.is_finished());

    let gone = soon(guard.gone()).await;
    assert_eq!(gone.cause, LossCause::DeadlinePassed);
    assert_eq!((guard.token(), guard.remaining()), (None, Duration::ZERO));
    let next = soon(next).await.unwrap().unwrap();
    assert!(next.token().unwrap() > first);

    cable.thaw();
    let error = soon(guard.regained()).await.unwrap_err();
    assert!(matches!(error, Error::SessionLost { .. }), "{error}");
    assert!(matches!(guard.release().await.unwrap_err(), Error::SessionLost { .. }));
}

#[tokio::test]
async fn a_suspend_is_noticed_without_any_timer_and_the_seat_comes_back_under_a_new_token() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let clock = quorate::clock::Clock::new();
    let client = cable.builder().clock(clock.clone()).build().unwrap();
    let a = client.session(SessionOptions::with_ttl(LONG)).await.unwrap();
    let guard = held(&a, "a").await;
    let (grant, before) = (guard.grant(), guard.token().unwrap());
    clock.skip(LONG);
    assert_eq!(guard.token(), None, "the clock is read at the call");
    let after = soon(guard.regained()).await.unwrap();
    assert!(after > before, "{after} after {before}");
    assert_eq!(guard.grant(), grant, "the place was kept");
    let holder = service.look(|machine| machine.group_list(None, 1)[0].holder.clone()).unwrap();
    assert_eq!((holder.entry, holder.seat.token), (grant, after));
}

#[tokio::test]
async fn the_end_of_a_suspend_wakes_who_waits_for_a_loss() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let clock = quorate::clock::Clock::new();
    let client = cable.builder().clock(clock.clone()).build().unwrap();
    let guard = held(&client.session(SessionOptions::with_ttl(LONG)).await.unwrap(), "a").await;
    cable.freeze();
    clock.skip(LONG);
    // Every timer of the session is more than a minute away.
    assert_eq!(soon(guard.gone()).await.cause, LossCause::DeadlinePassed);
}

#[tokio::test]
async fn a_connection_that_breaks_within_the_lease_costs_nothing() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let (a, b) = (session_on(&cable, LONG).await, session(&service).await);
    let guard = held(&a, "a").await;
    let token = guard.token();
    let id = a.id().unwrap();
    let next = queue(&service, &b, 1).await;
    for generation in 2..5 {
        cable.cut();
        let attached = move |machine: &StateMachine| {
            machine.session_view(id).is_some_and(|view| view.generation.0 >= generation)
        };
        soon(service.until(attached)).await;
        assert_eq!(guard.token(), token);
    }
    guard.release().await.unwrap();
    assert!(soon(next).await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn a_call_whose_answer_was_lost_is_done_once_and_answered_once() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let a = session_on(&cable, LONG).await;
    cable.freeze_answers();
    let acquiring = acquire(&a, "a");
    soon(service.until(|machine| !machine.group_list(None, 9).is_empty())).await;
    let holder = service.look(|machine| machine.group_list(None, 1)[0].holder.clone()).unwrap();
    cable.cut();
    cable.thaw();
    let guard = soon(acquiring).await.unwrap().unwrap();
    assert_eq!(guard.grant(), holder.entry, "the retried call found what it had done");
    assert_eq!(guard.token(), Some(holder.seat.token));
    assert_eq!(service.look(|machine| machine.group_list(None, 1)[0].members), 1);

    cable.freeze_answers();
    let releasing = tokio::spawn(guard.release());
    soon(service.until(|machine| machine.group_list(None, 9).is_empty())).await;
    cable.cut();
    cable.thaw();
    soon(releasing).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_wait_ends_when_the_service_is_silent_for_a_lease_and_its_place_is_given_up_later() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let (a, b) = (session(&service).await, session_on(&cable, SHORT).await);
    let guard = held(&a, "a").await;
    let waits = queue(&service, &b, 1).await;
    service.pause();
    let error = soon(waits).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::WaitLost { .. }), "{error}");
    assert_eq!(error.outcome(), Outcome::Unknown);
    let at_once = b.lock("orders").unwrap().acquire().await.unwrap_err();
    assert!(matches!(at_once, Error::WaitLost { .. }), "{at_once}");
    assert_eq!(service.look(waiting), 1, "nobody has told the service yet");
    service.resume();
    soon(service.until(|machine| waiting(machine) == 0)).await;
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_wait_ends_at_once_when_its_session_dies_and_the_next_session_takes_new_ones() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let guard = held(&a, "a").await;
    let waits = queue(&service, &b, 1).await;
    let dead = b.id().unwrap();
    service.expire_session(dead);
    let error = soon(waits).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::SessionLost { session, .. } if session == dead), "{error}");
    guard.release().await.unwrap();
    let guard = held(&b, "b").await;
    assert_ne!(guard.session().id(), Some(dead));
    service.expire_session(guard.session().id().unwrap());
    assert_eq!(soon(guard.lost()).await.cause, LossCause::SessionLost);
    assert_eq!(guard.token(), None);
}

#[tokio::test]
async fn a_session_that_releases_on_disconnect_passes_its_seat_on_at_once() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let options = SessionOptions::with_ttl(LONG).on_disconnect(OnDisconnect::Release);
    let a = cable.client().session(options).await.unwrap();
    let guard = held(&a, "a").await;
    let next = queue(&service, &session(&service).await, 1).await;
    cable.unplug();
    cable.cut();
    assert!(soon(next).await.unwrap().unwrap().is_held(), "minutes before the lease ends");
    assert!(guard.is_held(), "two may act for a moment: that is what it waives");
    cable.plug_in();
    assert_eq!(soon(guard.lost()).await.cause, LossCause::SessionLost);
}

#[tokio::test]
async fn a_name_has_one_face() {
    let service = Service::start().await;
    let session = session(&service).await;
    let _guard = held(&session, "a").await;
    let error = session.join("orders", JoinOptions::default()).await.unwrap_err();
    assert!(matches!(error, Error::Refused { code: Code::OtherFace, .. }), "{error}");
    assert!(error.to_string().contains("is a lock"), "{error}");
    assert_eq!(error.outcome(), Outcome::NotDone);
}

#[tokio::test]
async fn a_guard_offers_what_the_fence_takes() {
    use quorate::guard::{Guard, GuardError, MemoryGuard, Name};
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let fence = MemoryGuard::new();
    let file = Name::new("orders.csv").unwrap();
    let first = held(&a, "a").await;
    let stale = first.offer().unwrap();
    drop(fence.enter(&file, stale).unwrap());
    first.release().await.unwrap();
    assert_eq!(stale.cluster, b.cluster());
    let second = held(&b, "b").await;
    fence.claim(&file, second.offer().unwrap()).unwrap();
    assert!(matches!(fence.enter(&file, stale), Err(GuardError::Refused { .. })));
}
