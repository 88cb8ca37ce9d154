//! What is written when the deadline passes between the making of a line and its write.

use super::*;
use quorate::clock::Clock;

async fn member(clock: &Clock) -> (quorate::testing::Service, Group) {
    let service = quorate::testing::Service::start().await;
    let client = Client::builder(service.address()).clock(clock.clone()).build().unwrap();
    let session = client.session(SessionOptions::with_ttl(Duration::from_secs(10))).await.unwrap();
    let group = session.join("payments", JoinOptions::default().name("a")).await.unwrap();
    (service, group)
}

#[tokio::test]
async fn a_line_that_is_late_gives_way_to_the_one_that_says_so() {
    let clock = Clock::new();
    let (_service, mut group) = member(&clock).await;
    let mut out = Out::nowhere();
    let joined = group.next().await.unwrap();
    assert!(joined.is_active());
    clock.skip(Duration::from_secs(10));
    let instead = tell_one(&mut group, &mut out, joined).unwrap().expect("a line takes its place");
    assert_eq!((instead.event, instead.ordinal, instead.token), (Event::Disconnected, Some(-1), None));
    assert_eq!(out.told(), None, "nothing was written");
}

#[tokio::test]
async fn a_line_in_time_is_written_and_the_next_one_is_not_lost() {
    let clock = Clock::new();
    let (service, mut group) = member(&clock).await;
    let mut out = Out::nowhere();
    let joined = group.next().await.unwrap();
    assert_eq!(tell_one(&mut group, &mut out, joined.clone()).unwrap(), None);
    assert_eq!(out.told(), Some(Some(1)));
    let other = Client::connect(service.address()).unwrap().session(SessionOptions::default()).await.unwrap();
    let _other = other.join("payments", JoinOptions::default().name("b")).await.unwrap();
    // The change is there when the line before it is written.
    let changed = loop {
        if let Some(changed) = tell_one(&mut group, &mut out, joined.clone()).unwrap() {
            break changed;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((changed.event, changed.changed[0].name.as_str()), (Event::Changed, "b"));
}

#[tokio::test]
async fn the_place_before_is_what_the_last_line_said() {
    let clock = Clock::new();
    let (_service, mut group) = member(&clock).await;
    let mut out = Out::nowhere();
    let joined = group.next().await.unwrap();
    let mut before = joined.clone();
    before.ordinal = Some(7);
    out.write(&before).unwrap();
    let line = out.line(&joined);
    assert!(line.contains("ordinal 1 (was 7)"), "{line}");
}
