//! Leadership: one leads, and whoever looks on hears each change, also that nobody leads.

use crate::{LONG, SHORT, session, soon, until_waiting};
use quorate::leadership::{Leading, Observed, Observer};
use quorate::testing::Service;
use quorate::{Error, LossCause, Session, SessionOptions};
use quorate_core::state_machine::ToolOp;
use std::time::Duration;

async fn observe(session: &Session) -> Observer {
    session.leadership("boss").unwrap().observe().await.unwrap()
}

async fn next(observer: &mut Observer) -> Observed {
    soon(observer.next()).await.expect("it has not ended")
}

async fn leading(observer: &mut Observer) -> Leading {
    match next(observer).await {
        Observed::Leader(leading) => leading,
        other => panic!("nobody leads: {other:?}"),
    }
}

async fn nobody(observer: &mut Observer) -> String {
    match next(observer).await {
        Observed::NoLeader { evidence } => evidence,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_observer_hears_who_leads_what_it_says_and_that_nobody_does() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let mut seen = observe(&session(&service).await).await;
    nobody(&mut seen).await;
    let boss = a.leadership("boss").unwrap().named("a");
    let leader = boss.campaign("host 1").await.unwrap();
    let first = leading(&mut seen).await;
    assert_eq!((first.name.as_str(), first.value.as_str()), ("a", "host 1"));
    assert_eq!((Some(first.token), Some(first.session)), (leader.token(), a.id()));

    leader.proclaim("host 1, draining").await.unwrap();
    let again = leading(&mut seen).await;
    assert_eq!((again.value.as_str(), again.token), ("host 1, draining", first.token));
    assert_eq!(boss.leader().await.unwrap().unwrap().value, "host 1, draining");

    let mut late = observe(&b).await;
    assert_eq!(leading(&mut late).await, again, "who comes late hears how it is");
    leader.resign().await.unwrap();
    assert!(nobody(&mut seen).await.contains("by its own call"));
    nobody(&mut late).await;
    assert_eq!(boss.leader().await.unwrap(), None);
    assert_eq!(seen.leading(), None);
}

#[tokio::test]
async fn a_candidate_that_waits_is_no_news_and_takes_over_without_a_pause() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let leader = a.leadership("boss").unwrap().campaign("one").await.unwrap();
    let mut seen = observe(&session(&service).await).await;
    assert_eq!(leading(&mut seen).await.value, "one");
    let boss = b.leadership("boss").unwrap().named("b");
    let campaign = tokio::spawn(async move { boss.campaign("two").await });
    until_waiting(&service, "boss", 1).await;
    let error = a.leadership("boss").unwrap().try_campaign("x").await.unwrap_err();
    assert!(matches!(error, Error::Busy { .. }), "{error}");
    let first = leader.token();
    leader.resign().await.unwrap();
    let next_leader = soon(campaign).await.unwrap().unwrap();
    assert!(next_leader.token() > first);
    let second = leading(&mut seen).await;
    assert_eq!((second.value.as_str(), Some(second.token)), ("two", next_leader.token()));
}

#[tokio::test]
async fn a_leader_that_dies_is_followed_by_nobody_and_that_is_told() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let dies = cable.client().session(SessionOptions::with_ttl(SHORT)).await.unwrap();
    let leader = dies.leadership("boss").unwrap().campaign("one").await.unwrap();
    let mut seen = observe(&session(&service).await).await;
    assert_eq!(leading(&mut seen).await.value, "one");
    cable.freeze();
    assert_eq!(soon(leader.gone()).await.cause, LossCause::DeadlinePassed, "it knows first");
    assert_eq!(leader.token(), None);
    assert!(nobody(&mut seen).await.contains("no keepalive"));
}

#[tokio::test]
async fn a_campaign_ends_at_once_when_its_session_dies() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let leader = a.leadership("boss").unwrap().campaign("one").await.unwrap();
    let boss = b.leadership("boss").unwrap();
    let campaign = tokio::spawn(async move { boss.campaign("two").await });
    until_waiting(&service, "boss", 1).await;
    service.expire_session(b.id().unwrap());
    let error = soon(campaign).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::SessionLost { .. }), "{error}");
    assert!(leader.is_held());
}

#[tokio::test]
async fn an_observer_that_is_cut_off_says_so_and_goes_on_with_how_it_is() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let away = cable.client().session(SessionOptions::with_ttl(SHORT)).await.unwrap();
    let mut seen = observe(&away).await;
    nobody(&mut seen).await;
    cable.freeze();
    let Observed::Unavailable { evidence } = next(&mut seen).await else { panic!("it is silent") };
    assert!(evidence.contains("no keepalive"), "{evidence}");
    let leads = session(&service).await;
    let leader = leads.leadership("boss").unwrap().campaign("one").await.unwrap();
    let lost = away.id().unwrap();
    // The lease of the observer's session ends meanwhile: it looks on in the next one.
    soon(service.until(move |machine| machine.session_view(lost).is_none())).await;
    cable.thaw();
    assert_eq!(Some(leading(&mut seen).await.token), leader.token());
    leader.resign().await.unwrap();
    nobody(&mut seen).await;
}

#[tokio::test]
async fn a_transfer_moves_the_office_when_the_leader_has_stopped() {
    let service = Service::start().await;
    let (a, b, c) = (session(&service).await, session(&service).await, session(&service).await);
    let leader = a.leadership("boss").unwrap().named("a").campaign("one").await.unwrap();
    let candidate = |session: &Session, name: &str| {
        let boss = session.leadership("boss").unwrap().named(name);
        let value = name.to_string();
        tokio::spawn(async move { boss.campaign(value).await })
    };
    let waits = candidate(&b, "b");
    until_waiting(&service, "boss", 1).await;
    let chosen = candidate(&c, "c");
    until_waiting(&service, "boss", 2).await;
    let mut seen = observe(&session(&service).await).await;
    assert_eq!(leading(&mut seen).await.value, "one");
    let (group, to) = (leader.name().clone(), "c".into());
    service.operate(ToolOp::Transfer { group, to, drain: LONG_DRAIN, force: false }).unwrap();
    let loss = soon(leader.lost()).await;
    assert_eq!(loss.cause, LossCause::Asked);
    assert!(loss.why.contains("a transfer to c"), "{loss}");
    assert!(leader.is_held(), "it leads until it has stopped");
    leader.resign().await.unwrap();
    let next_leader = soon(chosen).await.unwrap().unwrap();
    assert!(!waits.is_finished(), "the one that was promised comes before the first in the queue");
    assert_eq!(Some(leading(&mut seen).await.token), next_leader.token());
}

/// Less than a third of the longest lease.
const LONG_DRAIN: quorate_core::time::Span =
    quorate_core::time::Span::from_millis(LONG.as_millis() as u64 / 4);

#[tokio::test]
async fn the_end_of_a_leadership_is_the_last_that_is_seen() {
    let service = Service::start().await;
    let session = session(&service).await;
    let mut seen = observe(&session).await;
    nobody(&mut seen).await;
    service.operate(ToolOp::EndGroup { group: seen.name().clone(), created: None }).unwrap();
    let Observed::Over { evidence } = next(&mut seen).await else { panic!("it is over") };
    assert!(evidence.contains("is being deleted"), "{evidence}");
    assert!(soon(seen.next()).await.is_none());
    assert!(session.acts(), "the session lives on");
}

#[tokio::test]
async fn a_campaign_that_takes_too_long_is_given_up() {
    let service = Service::start().await;
    let session = session(&service).await;
    let boss = session.leadership("boss").unwrap();
    let _leader = boss.campaign("one").await.unwrap();
    let error = boss.campaign_timeout("two", Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { .. }), "{error}");
    until_waiting(&service, "boss", 0).await;
}
