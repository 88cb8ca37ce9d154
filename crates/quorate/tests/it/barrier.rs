//! Barriers and latches: those that meet, and those that wait for others.

use crate::{SHORT, reasons, session, soon, until_waiting, view};
use quorate::error::Code;
use quorate::testing::Service;
use quorate::{Error, JoinOptions, Session, SessionOptions};
use std::time::Duration;
use tokio::task::JoinHandle;

fn arrive(session: &Session, party: &str) -> JoinHandle<Result<quorate::Passage, Error>> {
    let barrier = session.barrier("loaded", 3).unwrap().named(party);
    tokio::spawn(async move { barrier.wait().await })
}

#[tokio::test]
async fn all_parties_go_through_together_and_the_next_round_is_another() {
    let service = Service::start().await;
    let session = session(&service).await;
    let mut last = None;
    for _ in 0..2 {
        let (one, two) = (arrive(&session, "one"), arrive(&session, "two"));
        until_waiting(&service, "loaded", 2).await;
        assert!(reasons(&service, "loaded")[0].ends_with("2 of 3 parties are there"));
        let passages = [soon(arrive(&session, "three")).await, soon(one).await, soon(two).await];
        let passages = passages.map(|passage| passage.unwrap().unwrap());
        let mut positions = passages.map(|passage| passage.position);
        positions.sort_unstable();
        assert_eq!(positions, [0, 1, 2]);
        assert!(passages.iter().all(|passage| passage.generation == passages[0].generation));
        assert!(Some(passages[0].generation) > last, "each round has a greater token");
        last = Some(passages[0].generation);
        let left = |machine: &_| view(machine, "loaded").is_none_or(|view| view.summary.members == 0);
        soon(service.until(left)).await;
    }
}

#[tokio::test]
async fn a_party_that_dies_is_not_counted_and_the_others_wait_on() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let dies = cable.client().session(SessionOptions::with_ttl(SHORT)).await.unwrap();
    let session = session(&service).await;
    let (lost, one) = (arrive(&dies, "dies"), arrive(&session, "one"));
    until_waiting(&service, "loaded", 2).await;
    cable.freeze();
    let error = soon(lost).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::WaitLost { .. }), "{error}");
    until_waiting(&service, "loaded", 1).await;
    assert_eq!(reasons(&service, "loaded"), ["one: 1 of 3 parties are there"]);
    let past = service.look(|machine| view(machine, "loaded")).unwrap().history;
    assert!(past.last().unwrap().evidence.contains("no keepalive"), "{past:?}");
    let (two, three) = (arrive(&session, "two"), arrive(&session, "three"));
    for party in [one, two, three] {
        soon(party).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn another_number_of_parties_is_refused_and_a_wait_may_have_a_limit() {
    let service = Service::start().await;
    let session = session(&service).await;
    let one = arrive(&session, "one");
    until_waiting(&service, "loaded", 1).await;
    let error = session.barrier("loaded", 2).unwrap().wait().await.unwrap_err();
    assert!(matches!(error, Error::Refused { code: Code::Policy, .. }), "{error}");
    let limit = Duration::from_millis(20);
    let error = session.barrier("loaded", 3).unwrap().wait_timeout(limit).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    until_waiting(&service, "loaded", 1).await;
    assert!(!one.is_finished());
}

#[tokio::test]
async fn a_latch_counts_who_is_there_now() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let dies = cable.client().session(SessionOptions::with_ttl(SHORT)).await.unwrap();
    let (works, waits) = (session(&service).await, session(&service).await);
    let latch = waits.latch("workers").unwrap();
    assert_eq!(latch.count().await.unwrap(), 0);
    let waiting = latch.clone();
    let ready = tokio::spawn(async move { waiting.wait_for(2).await });
    let _lost = dies.latch("workers").unwrap().arrive("dies").await.unwrap();
    assert_eq!(latch.count().await.unwrap(), 1);
    assert!(!ready.is_finished());
    let member = works.join("workers", JoinOptions::default().name("joins")).await.unwrap();
    assert_eq!(soon(ready).await.unwrap().unwrap(), 2, "members count, however they came");

    let waiting = latch.clone();
    let done = tokio::spawn(async move { waiting.wait_down_to(0).await });
    member.leave().await.unwrap();
    cable.freeze();
    assert_eq!(soon(done).await.unwrap().unwrap(), 0, "one that dies is gone, not done");
}

#[tokio::test]
async fn a_latch_waits_on_while_the_service_is_away() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let away = cable.client().session(SessionOptions::with_ttl(SHORT)).await.unwrap();
    let latch = away.latch("workers").unwrap();
    let waiting = tokio::spawn(async move { latch.wait_for(1).await });
    soon(service.until(|machine| view(machine, "workers").is_some_and(|view| view.summary.observers == 1)))
        .await;
    cable.freeze();
    let works = session(&service).await;
    let _member = works.latch("workers").unwrap().arrive("one").await.unwrap();
    assert!(!waiting.is_finished());
    cable.thaw();
    assert_eq!(soon(waiting).await.unwrap().unwrap(), 1);
}
