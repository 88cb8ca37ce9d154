//! Read-write locks: many read under one token, one writes under a greater one, and nobody overtakes.

use crate::{SHORT, reasons, session, soon, until_waiting};
use quorate::testing::Service;
use quorate::{Error, LossCause, SessionOptions};
use quorate_core::id::Name;
use std::time::Duration;

#[tokio::test]
async fn readers_share_a_token_and_writers_come_between_the_phases() {
    let service = Service::start().await;
    let (a, b, c) = (session(&service).await, session(&service).await, session(&service).await);
    let lock = |session: &quorate::Session, who: &str| session.rwlock("prices").unwrap().named(who);
    let (first, second) = (lock(&a, "a").read().await.unwrap(), lock(&b, "b").read().await.unwrap());
    assert_eq!((first.token(), first.seat()), (second.token(), second.seat()));
    let phase = first.token().unwrap();

    let writes = lock(&c, "writer");
    let writing = tokio::spawn(async move { writes.write().await });
    until_waiting(&service, "prices", 1).await;
    let reads = lock(&a, "late reader");
    let reading = tokio::spawn(async move { reads.read().await });
    until_waiting(&service, "prices", 2).await;
    let reasons = reasons(&service, "prices");
    assert!(reasons[0].starts_with("writer: 2 share it: a (session"), "{reasons:?}");
    assert!(reasons[1].starts_with("late reader: one is ahead in the queue: writer"), "{reasons:?}");
    let error = lock(&b, "b").try_read().await.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "who tries does not overtake the writer: {error}");

    first.release().await.unwrap();
    assert!(!writing.is_finished(), "one still reads");
    second.release().await.unwrap();
    let writer = soon(writing).await.unwrap().unwrap();
    let written = writer.token().unwrap();
    assert!(written > phase);
    assert!(!reading.is_finished());
    drop(writer);
    let reader = soon(reading).await.unwrap().unwrap();
    assert!(reader.token().unwrap() > written, "a new phase has a token of its own");
}

#[tokio::test]
async fn a_lock_of_the_same_name_is_a_writer() {
    let service = Service::start().await;
    let session = session(&service).await;
    let reader = session.rwlock("prices").unwrap().try_read().await.unwrap();
    let error = session.lock("prices").unwrap().try_acquire().await.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    let limit = Duration::from_millis(20);
    let error = session.rwlock("prices").unwrap().write_timeout(limit).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    drop(reader);
    let writer = session.rwlock("prices").unwrap().write().await.unwrap();
    assert!(session.rwlock("prices").unwrap().try_read().await.is_err());
    assert!(writer.is_held());
}

#[tokio::test]
async fn a_reader_that_is_cut_off_does_not_keep_a_writer_out_for_ever() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let cut = cable.client().session(SessionOptions::with_ttl(SHORT)).await.unwrap();
    let reader = cut.rwlock("prices").unwrap().read().await.unwrap();
    let phase = reader.token().unwrap();
    let writes = session(&service).await.rwlock("prices").unwrap();
    let writing = tokio::spawn(async move { writes.write().await });
    until_waiting(&service, "prices", 1).await;
    cable.freeze();
    assert_eq!(soon(reader.gone()).await.cause, LossCause::DeadlinePassed);
    assert_eq!(reader.offer(), None);
    let writer = soon(writing).await.unwrap().unwrap();
    assert!(writer.token().unwrap() > phase);
    assert_eq!(writer.name(), &Name::new("prices").unwrap());
}

#[tokio::test]
async fn the_fence_lets_readers_of_one_phase_pass_and_refuses_them_after_the_next_writer() {
    use quorate::guard::{Guard, GuardError, MemoryGuard, Name};
    let service = Service::start().await;
    let session = session(&service).await;
    let prices = session.rwlock("prices").unwrap();
    let (one, two) = (prices.read().await.unwrap(), prices.read().await.unwrap());
    let (fence, file) = (MemoryGuard::new(), Name::new("prices.db").unwrap());
    let (first, second) = (one.offer().unwrap(), two.offer().unwrap());
    drop(fence.enter(&file, first).unwrap());
    drop(fence.enter(&file, second).unwrap());
    drop((one, two));
    let writer = prices.write().await.unwrap();
    drop(fence.enter(&file, writer.offer().unwrap()).unwrap());
    assert!(matches!(fence.enter(&file, first), Err(GuardError::Refused { .. })));
}
