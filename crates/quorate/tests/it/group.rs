//! Groups: who acts, who stands by, and what each member is told.

use crate::soon;
use futures::StreamExt;
use quorate::advisory::{Advisory, Event, Form, Reason};
use quorate::clock::Clock;
use quorate::error::Code;
use quorate::testing::Service;
use quorate::{Client, Error, Group, JoinOptions, LossCause, MemberKind, Role, Session, SessionOptions};
use std::collections::BTreeMap;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(300);

/// Short enough to wait for, long enough for a busy machine.
const SHORT: Duration = Duration::from_millis(1_500);

async fn session(service: &Service) -> Session {
    service.client().await.session(SessionOptions::with_ttl(LONG)).await.unwrap()
}

async fn member(session: &Session, name: &str) -> Group {
    session.join("payments", JoinOptions::default().name(name)).await.unwrap()
}

async fn next(group: &mut Group) -> Advisory {
    soon(group.next()).await.expect("the group has not ended")
}

/// Reads until an advisory satisfies the condition.
async fn next_where(group: &mut Group, condition: impl Fn(&Advisory) -> bool) -> Advisory {
    loop {
        let advisory = next(group).await;
        if condition(&advisory) {
            return advisory;
        }
    }
}

fn names(advisory: &Advisory) -> Vec<(&str, Option<u64>)> {
    let line = |m: &quorate::Member| m.place.ordinal.map(|ordinal| ordinal.0);
    advisory.members.iter().map(|m| (m.name.as_str(), line(m))).collect()
}

fn metadata(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(key.to_string(), value.to_string())])
}

/// Five processes, one active: P1 is cut off, and comes back at the tail.
#[tokio::test]
async fn five_processes_one_active() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let first = cable.client().session(SessionOptions::with_ttl(SHORT)).await.unwrap();
    let mut groups = vec![member(&first, "P1").await];
    for name in ["P2", "P3", "P4", "P5"] {
        groups.push(member(&session(&service).await, name).await);
    }
    // t1: all joined.
    for (group, ordinal) in groups.iter_mut().zip(1..) {
        let joined = next(group).await;
        assert_eq!((joined.event, joined.form, joined.ordinal), (Event::Joined, Form::Total, Some(ordinal)));
        assert_eq!(joined.is_active(), ordinal == 1);
        assert_eq!(joined.previous, None);
    }
    let full = next_where(&mut groups[0], |a| a.changed.iter().any(|step| step.name == "P5")).await;
    assert_eq!((full.event, full.ordinal, full.role), (Event::Changed, Some(1), Some(Role::Active)));
    let old = groups[0].token().unwrap();

    // t2: P1 is cut off. It knows by its own clock, before another is told to act.
    cable.freeze();
    let cut = next_where(&mut groups[0], |a| a.event != Event::Unavailable).await;
    assert_eq!((cut.event, cut.reason), (Event::Disconnected, Reason::DeadlinePassed));
    assert_eq!((cut.previous, cut.ordinal, cut.role), (Some(1), Some(-1), Some(Role::Disconnected)));
    assert_eq!((cut.token, cut.remaining), (None, Some(Duration::ZERO)));
    assert_eq!((groups[0].ordinal(), groups[0].is_active()), (Some(-1), false));
    for (index, ordinal) in (1..5).zip(1..) {
        let gone = |a: &Advisory| a.changed.iter().any(|step| step.name == "P1" && step.after.is_none());
        let told = next_where(&mut groups[index], gone).await;
        assert_eq!(told.event, if ordinal == 1 { Event::Active } else { Event::Changed });
        assert_eq!((told.previous, told.ordinal), (Some(ordinal + 1), Some(ordinal)));
        assert_eq!((told.reason, told.holder_token), (Reason::Expired, groups[1].token()));
        let lost = &told.changed[0];
        assert_eq!(
            (lost.ordinal(), lost.previous(), lost.role()),
            (Some(-1), Some(1), Some(Role::Disconnected))
        );
        assert!(told.evidence.contains("no keepalive"), "{}", told.evidence);
    }
    assert!(groups[1].token().unwrap() > old);

    // t3: P1 is back, at the tail.
    cable.thaw();
    let back = next(&mut groups[0]).await;
    assert_eq!((back.event, back.form, back.reason), (Event::Reconnected, Form::Total, Reason::SessionLost));
    assert_eq!((back.previous, back.ordinal, back.role), (Some(-1), Some(5), Some(Role::Standby)));
    assert_eq!(back.token, None);
    let order = [("P2", Some(1)), ("P3", Some(2)), ("P4", Some(3)), ("P5", Some(4)), ("P1", Some(5))];
    assert_eq!(names(&back), order);
}

#[tokio::test]
async fn the_next_member_acts_when_the_first_leaves() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let mut first = member(&a, "first").await;
    let mut second = member(&b, "second").await;
    assert_eq!(next(&mut second).await.role, Some(Role::Standby));
    first.leave().await.unwrap();
    let left = next_where(&mut first, |a| a.event != Event::Joined).await;
    assert_eq!((left.event, left.ordinal, left.role, left.token), (Event::Left, None, None, None));
    assert!(soon(first.next()).await.is_none());
    let acts = next(&mut second).await;
    assert_eq!((acts.event, acts.previous, acts.ordinal), (Event::Active, Some(2), Some(1)));
    assert_eq!((acts.token, acts.holder_token), (second.token(), second.token()));
    let gone = &acts.changed[0];
    assert_eq!((gone.name.as_str(), gone.ordinal(), gone.role()), ("first", None, None));
}

#[tokio::test]
async fn the_json_form_is_one_object_with_exact_fields() {
    let service = Service::start().await;
    let mut first = member(&session(&service).await, "a").await;
    let total = serde_json::to_string(&next(&mut first).await).unwrap();
    let token = first.token().unwrap();
    let shape = |line: &str| -> Vec<String> {
        let fields = line.trim_matches(['{', '}']).split(",\"");
        fields.map(|field| field.trim_start_matches('"').split('"').next().unwrap().to_string()).collect()
    };
    let head = "time group event form name view ordinal previous role token holder_token reason evidence \
                remaining_ms";
    let head: Vec<&str> = head.split_whitespace().collect();
    assert_eq!(shape(&total)[..14], head[..]);
    let value: serde_json::Value = serde_json::from_str(&total).unwrap();
    assert_eq!(value["members"], serde_json::json!([{"name": "a", "ordinal": 1, "role": "active"}]));
    assert_eq!(value["token"], token.to_string(), "a decimal string");
    assert_eq!((&value["event"], &value["form"]), (&"joined".into(), &"total".into()));
    assert_eq!((&value["previous"], value.get("changed")), (&serde_json::Value::Null, None));
    let time = value["time"].as_str().unwrap();
    assert!(time.ends_with('Z') && time.len() == "2026-01-31T09:05:00.250Z".len(), "{time}");
    assert!(value["remaining_ms"].as_u64().unwrap() > 200_000);

    let _second = member(&session(&service).await, "b").await;
    let change = serde_json::to_value(next(&mut first).await).unwrap();
    let step = serde_json::json!([{"name": "b", "ordinal": 2, "previous": null, "role": "standby"}]);
    assert_eq!((&change["changed"], change.get("members")), (&step, None));
    assert_eq!((&change["event"], &change["reason"]), (&"changed".into(), &"join".into()));
}

#[tokio::test]
async fn an_observer_sees_everybody_and_is_seen_by_nobody() {
    let service = Service::start().await;
    let mut member = member(&session(&service).await, "a").await;
    next(&mut member).await;
    let options = JoinOptions::default().name("watch").kind(MemberKind::Observer);
    let mut observer = session(&service).await.join("payments", options).await.unwrap();
    let total = next(&mut observer).await;
    assert_eq!(names(&total), [("a", Some(1))]);
    assert_eq!((total.ordinal, total.role, total.token), (None, Some(Role::Observer), None));
    assert_eq!((observer.ordinal(), observer.is_active()), (None, false));
    member.describe(metadata("zone", "b")).await.unwrap();
    let told = next(&mut observer).await;
    assert_eq!((told.event, told.reason), (Event::Changed, Reason::Described));
    assert_eq!(told.changed[0].metadata, Some(metadata("zone", "b")));
    let own = next(&mut member).await;
    assert_eq!(own.reason, Reason::Described, "nothing was said of the observer before");
}

#[tokio::test]
async fn an_ordinal_only_member_hears_of_itself_alone() {
    let service = Service::start().await;
    let mut first = member(&session(&service).await, "first").await;
    let options = JoinOptions::default().name("quiet").kind(MemberKind::OrdinalOnly);
    let mut quiet = session(&service).await.join("payments", options).await.unwrap();
    let total = next(&mut quiet).await;
    assert_eq!((total.ordinal, total.members.len()), (Some(2), 0));
    let third = member(&session(&service).await, "third").await;
    let seen = next_where(&mut first, |a| a.changed.iter().any(|step| step.name == "third")).await;
    assert_eq!(seen.event, Event::Changed);
    assert_eq!(first.members().len(), 3, "the others see it");
    drop(first);
    let acts = next(&mut quiet).await;
    assert_eq!((acts.event, acts.previous, acts.ordinal), (Event::Active, Some(2), Some(1)));
    assert_eq!(acts.changed.len(), 1, "only its own step: {:?}", acts.changed);
    drop(third);
}

#[tokio::test]
async fn metadata_reaches_the_others_and_too_much_of_it_is_refused() {
    let service = Service::start().await;
    let options = JoinOptions::default().name("a").metadata("port", "80");
    let a = session(&service).await.join("payments", options).await.unwrap();
    let mut b = member(&session(&service).await, "b").await;
    assert_eq!(next(&mut b).await.members[0].metadata, metadata("port", "80"));
    a.describe(metadata("port", "81")).await.unwrap();
    next(&mut b).await;
    assert_eq!(b.members()[0].metadata, metadata("port", "81"));
    let error = a.describe(metadata("port", &"8".repeat(5_000))).await.unwrap_err();
    assert!(matches!(error, Error::Refused { code: Code::Limit, .. }), "{error}");
    assert_eq!(b.members()[0].metadata, metadata("port", "81"));
}

#[tokio::test]
async fn a_reader_that_lags_gets_one_gap_and_a_total_and_keeps_its_seat() {
    let service = Service::start().await;
    let mut slow = member(&session(&service).await, "slow").await;
    let busy = member(&session(&service).await, "busy").await;
    for n in 0..1_100 {
        busy.describe(metadata("n", &n.to_string())).await.unwrap();
    }
    // All of it has reached the reader's side, unread.
    soon(async {
        while slow.members().iter().all(|m| m.metadata != metadata("n", "1099")) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let gap = next(&mut slow).await;
    assert_eq!((gap.event, gap.form, gap.reason), (Event::Gap, Form::Total, Reason::ChangesMissed));
    assert_eq!((gap.ordinal, gap.is_active()), (Some(1), true));
    assert!(gap.members[1].metadata["n"].parse::<u32>().unwrap() > 1_000);
    assert!(gap.evidence.contains("were missed"), "{}", gap.evidence);
}

#[tokio::test]
async fn while_the_service_is_away_a_member_keeps_its_ordinal_and_is_told() {
    let service = Service::start().await;
    let session = service.client().await.session(SessionOptions::with_ttl(Duration::from_secs(6))).await;
    let session = session.unwrap();
    let mut group = member(&session, "a").await;
    next(&mut group).await;
    let token = group.token();
    service.pause();
    let away = next(&mut group).await;
    assert_eq!(
        (away.event, away.form, away.reason),
        (Event::Unavailable, Form::Unavailable, Reason::ServiceSilent)
    );
    assert_eq!((away.previous, away.ordinal, away.token), (Some(1), Some(1), token));
    assert!(away.remaining.unwrap() <= Duration::from_secs(3));
    service.resume();
    let back = next(&mut group).await;
    assert_eq!((back.event, back.form), (Event::Reconnected, Form::Total));
    assert_eq!((back.ordinal, back.token), (Some(1), token), "nothing was lost");
}

#[tokio::test]
async fn a_member_whose_deadline_passed_acts_again_only_under_a_new_token() {
    let service = Service::start().await;
    let clock = Clock::new();
    let client = Client::builder(service.address()).clock(clock.clone()).build().unwrap();
    let mut slept = member(&client.session(SessionOptions::with_ttl(LONG)).await.unwrap(), "a").await;
    let mut other = member(&session(&service).await, "b").await;
    next(&mut slept).await;
    next(&mut other).await;
    let old = slept.token().unwrap();
    clock.skip(LONG);
    assert_eq!((slept.ordinal(), slept.role(), slept.token()), (Some(-1), Some(Role::Disconnected), None));
    let cut = next(&mut slept).await;
    assert_eq!((cut.event, cut.ordinal), (Event::Disconnected, Some(-1)), "before the change that waited");
    let back = next(&mut slept).await;
    assert_eq!((back.event, back.ordinal, back.form), (Event::Reconnected, Some(1), Form::Total));
    assert!(back.token.unwrap() > old);
    let told = next(&mut other).await;
    assert_eq!((told.event, told.reason, told.holder_token), (Event::Changed, Reason::Renewed, back.token));
    assert!(told.evidence.contains(&format!("token {old}")), "{}", told.evidence);
}

#[tokio::test]
async fn a_closed_member_comes_to_rest_before_the_next_acts() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let mut first = member(&a, "first").await;
    let mut second = member(&b, "second").await;
    next(&mut first).await;
    next(&mut second).await;
    service.close_session(a.id().unwrap(), "host 7 is retired").unwrap();
    assert_eq!(soon(first.lost()).await.cause, LossCause::Closed);
    let closed = next(&mut first).await;
    assert_eq!((closed.event, closed.reason, closed.ordinal), (Event::Closed, Reason::Closed, Some(-1)));
    assert_eq!((closed.token, first.token()), (None, None));
    assert!(closed.evidence.contains("host 7 is retired"), "{}", closed.evidence);
    assert!(service.look(|machine| machine.session_view(a.id().unwrap())).is_some(), "it may still tidy up");
    assert!(soon(first.next()).await.is_none());
    let acts = next(&mut second).await;
    assert_eq!((acts.event, acts.reason), (Event::Active, Reason::Closed));
}

#[tokio::test]
async fn a_connection_that_breaks_is_told_with_a_total() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let session_a = cable.client().session(SessionOptions::with_ttl(LONG)).await.unwrap();
    let mut group = member(&session_a, "a").await;
    next(&mut group).await;
    cable.unplug();
    cable.cut();
    let _other = member(&session(&service).await, "b").await;
    cable.plug_in();
    let back = next(&mut group).await;
    assert_eq!((back.event, back.reason), (Event::Reconnected, Reason::ConnectionLost));
    assert_eq!(names(&back), [("a", Some(1)), ("b", Some(2))]);
    assert!(back.is_active());
}

#[tokio::test]
async fn two_seats_act_at_once_and_another_policy_is_refused_with_both() {
    let service = Service::start().await;
    let session = session(&service).await;
    let join = |name: &str| session.join("pool", JoinOptions::default().name(name).seats(2));
    let (a, b, c) = (join("a").await.unwrap(), join("b").await.unwrap(), join("c").await.unwrap());
    assert_eq!([a.is_active(), b.is_active(), c.is_active()], [true, true, false]);
    assert_ne!(a.seat().unwrap().no, b.seat().unwrap().no, "a grant names its seat");
    let error = session.join("pool", JoinOptions::default().seats(3)).await.unwrap_err();
    assert!(matches!(error, Error::Refused { code: Code::Policy, .. }), "{error}");
    assert!(error.to_string().contains("seats = 2") && error.to_string().contains('3'), "{error}");
}

#[tokio::test]
async fn a_group_is_a_stream_that_ends_with_its_member() {
    let service = Service::start().await;
    let group = member(&session(&service).await, "a").await;
    group.session().end().await.unwrap();
    let events: Vec<Event> = soon(group.map(|advisory| advisory.event).collect()).await;
    assert_eq!(events, [Event::Left]);
}
