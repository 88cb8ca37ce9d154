//! Seats that are asked for while their holders live: asked, never taken; and waits that would never end.

use crate::{LONG, SHORT, reasons, session, soon, until_waiting, view};
use quorate::advisory::{Advisory, Event, Reason};
use quorate::testing::Service;
use quorate::{
    Error, Group, JoinOptions, LockGuard, LossCause, Order, Preempt, Role, Session, SessionOptions,
};
use quorate_core::state_machine::{StateMachine, ToolOp};
use quorate_core::time::Span;
use std::time::Duration;
use tokio::task::JoinHandle;

fn transfer(group: &str, to: &str, drain: Span) -> ToolOp {
    ToolOp::Transfer { group: quorate::Name::new(group).unwrap(), to: to.into(), drain, force: false }
}

async fn member(session: &Session, options: JoinOptions) -> Group {
    session.join("payments", options).await.unwrap()
}

async fn next_where(group: &mut Group, condition: impl Fn(&Advisory) -> bool) -> Advisory {
    loop {
        let advisory = soon(group.next()).await.expect("the group has not ended");
        if condition(&advisory) {
            return advisory;
        }
    }
}

fn acquire(session: &Session, lock: &str, who: &str) -> JoinHandle<Result<LockGuard, Error>> {
    let lock = session.lock(lock).unwrap().named(who);
    tokio::spawn(async move { lock.acquire().await })
}

#[tokio::test]
async fn a_member_that_says_it_has_stopped_lets_a_transfer_through() {
    let service = Service::start().await;
    let (a, b, c) = (session(&service).await, session(&service).await, session(&service).await);
    let mut first = member(&a, JoinOptions::default().name("first")).await;
    let _second = member(&b, JoinOptions::default().name("second")).await;
    let mut third = member(&c, JoinOptions::default().name("third")).await;
    service.operate(transfer("payments", "third", Span::from_secs(60))).unwrap();

    let asked = next_where(&mut first, |a| a.role == Some(Role::Draining)).await;
    assert_eq!((asked.event, asked.reason), (Event::Changed, Reason::Draining));
    assert!(asked.is_active(), "it acts until it has stopped");
    assert!(asked.evidence.starts_with("a transfer to third: it is asked to stop"), "{}", asked.evidence);
    let prepare = next_where(&mut third, |a| a.role == Some(Role::Pending)).await;
    assert_eq!((prepare.token, prepare.ordinal), (None, Some(3)));
    let loss = soon(first.lost()).await;
    assert_eq!(loss.cause, LossCause::Asked);
    assert!(loss.remaining > Duration::ZERO);

    let old = first.token().unwrap();
    first.stopped().await.unwrap();
    assert_eq!((first.token(), first.seat()), (None, None));
    let acts = next_where(&mut third, Advisory::is_active).await;
    assert_eq!((acts.event, acts.reason, acts.ordinal), (Event::Active, Reason::Transferred, Some(1)));
    assert!(acts.token.unwrap() > old);
    let stands_by = next_where(&mut first, |a| a.event != Event::Changed).await;
    assert_eq!(
        (stands_by.event, stands_by.role, stands_by.token),
        (Event::Standby, Some(Role::Standby), None)
    );
    assert_eq!(stands_by.ordinal, Some(2), "its place in the queue stays");
}

#[tokio::test]
async fn silence_makes_a_transfer_fail_and_the_holder_holds_on() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let guard = soon(acquire(&a, "orders", "a")).await.unwrap().unwrap();
    let waits = acquire(&b, "orders", "b");
    until_waiting(&service, "orders", 1).await;
    let token = guard.token();
    service.operate(transfer("orders", "b", Span::from_millis(50))).unwrap();
    assert_eq!(soon(guard.lost()).await.cause, LossCause::Asked);
    let failed = |machine: &StateMachine| {
        let last = view(machine, "orders").and_then(|view| view.history.last().cloned());
        last.is_some_and(|past| past.evidence.contains("it did not say that it has stopped, so it holds on"))
    };
    soon(service.until(failed)).await;
    assert_eq!(guard.token(), token, "a live seat is never taken (RULES R11)");
    assert!(!waits.is_finished());
    guard.release().await.unwrap();
    assert!(soon(waits).await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn a_holder_of_a_lock_stops_and_has_its_next_turn_under_a_greater_token() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let first = soon(acquire(&a, "orders", "a")).await.unwrap().unwrap();
    let old = first.token().unwrap();
    let waits = acquire(&b, "orders", "b");
    until_waiting(&service, "orders", 1).await;
    first.stopped().await.unwrap();
    assert_eq!((first.token(), first.offer()), (None, None));
    assert_eq!(soon(first.lost()).await.cause, LossCause::Moved);
    let second = soon(waits).await.unwrap().unwrap();
    let between = second.token().unwrap();
    assert!(between > old);
    assert!(reasons(&service, "orders")[0].starts_with("a: the seat is held by b"));
    second.release().await.unwrap();
    assert!(soon(first.regained()).await.unwrap() > between);
    first.release().await.unwrap();
    soon(service.until(|machine| machine.group_list(None, 9).is_empty())).await;
}

#[tokio::test]
async fn what_was_stopped_stays_stopped_though_the_answer_is_lost() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let a = cable.client().session(SessionOptions::with_ttl(LONG)).await.unwrap();
    let b = session(&service).await;
    let guard = soon(acquire(&a, "orders", "a")).await.unwrap().unwrap();
    let waits = acquire(&b, "orders", "b");
    until_waiting(&service, "orders", 1).await;
    cable.freeze_answers();
    let stopping = tokio::spawn(async move { (guard.stopped().await, guard) });
    let second = soon(waits).await.unwrap().unwrap();
    cable.cut();
    cable.thaw();
    let (answer, guard) = soon(stopping).await.unwrap();
    answer.unwrap();
    assert_eq!(guard.token(), None);
    let other = second.token().unwrap();
    drop(second);
    assert!(soon(guard.regained()).await.unwrap() > other);
}

#[tokio::test]
async fn a_hold_longer_than_was_said_is_asked_to_end() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let guard = a.lock("orders").unwrap().max_hold(Duration::from_millis(50)).acquire().await.unwrap();
    let loss = soon(guard.lost()).await;
    assert_eq!(loss.cause, LossCause::Asked);
    assert!(loss.why.contains("it has held for 50 ms, as long as it said"), "{loss}");
    let waits = acquire(&b, "orders", "b");
    until_waiting(&service, "orders", 1).await;
    assert!(guard.is_held() && !waits.is_finished(), "asked, not taken");
    let reasons = reasons(&service, "orders");
    assert!(reasons[0].contains("asked to stop") && reasons[0].contains("50 ms"), "{reasons:?}");
    guard.release().await.unwrap();
    assert!(soon(waits).await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn work_that_gives_no_sign_is_shown_as_stalled_until_it_gives_one() {
    let service = Service::start().await;
    let a = session(&service).await;
    let guard = a.lock("orders").unwrap().progress(Duration::from_millis(100)).acquire().await.unwrap();
    let is_stalled = |machine: &StateMachine| {
        view(machine, "orders").is_some_and(|view| view.holders[0].stalled_since.is_some())
    };
    soon(service.until(is_stalled)).await;
    assert!(guard.is_held(), "its session is alive");
    guard.progress();
    soon(service.until(|machine| !is_stalled(machine))).await;
    let before = service.look(StateMachine::applied).0;
    (0..1_000).for_each(|_| guard.progress());
    a.lock("other").unwrap().acquire().await.unwrap().release().await.unwrap();
    let after = service.look(StateMachine::applied).0;
    assert!(after - before < 20, "a thousand signs are not a thousand entries: {}", after - before);
}

#[tokio::test]
async fn a_member_that_is_asked_to_stop_by_a_heavier_one_gives_way() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let stated = JoinOptions::default().order(Order::Weight).preempt(Preempt::OnWeight);
    let light = member(&a, stated.clone().name("light").weight(1)).await;
    let mut heavy = member(&b, stated.name("heavy").weight(2)).await;
    let loss = soon(light.lost()).await;
    assert!(loss.why.contains("heavy is heavier (2 to 1)"), "{loss}");
    light.stopped().await.unwrap();
    let acts = next_where(&mut heavy, Advisory::is_active).await;
    assert_eq!((acts.reason, acts.ordinal), (Reason::Transferred, Some(1)));
}

#[tokio::test]
async fn a_member_that_comes_back_within_the_grace_has_its_place() {
    let service = Service::start().await;
    let cable = service.cable().await;
    let away = cable.client().session(SessionOptions::with_ttl(SHORT)).await.unwrap();
    let (a, c) = (session(&service).await, session(&service).await);
    let stated = JoinOptions::default().rejoin_within(Duration::from_secs(60));
    let mut first = member(&a, stated.clone().name("first")).await;
    let mut second = member(&away, stated.clone().name("second")).await;
    let _third = member(&c, stated.name("third")).await;
    cable.freeze();
    let reserved = |a: &Advisory| a.changed.iter().any(|step| step.role() == Some(Role::Reserved));
    let told = next_where(&mut first, reserved).await;
    assert_eq!(told.reason, Reason::Expired);
    cable.thaw();
    let back = next_where(&mut second, |a| a.event == Event::Reconnected).await;
    assert_eq!((back.ordinal, back.role), (Some(2), Some(Role::Standby)));
    let told = next_where(&mut first, |a| a.reason == Reason::Returned).await;
    assert!(told.evidence.contains("came back within the grace"), "{}", told.evidence);
}

#[tokio::test]
async fn the_holder_of_a_deleted_lock_is_asked_and_its_stop_is_the_end() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let guard = soon(acquire(&a, "orders", "a")).await.unwrap().unwrap();
    let waits = acquire(&b, "orders", "b");
    until_waiting(&service, "orders", 1).await;
    service.operate(ToolOp::EndGroup { group: guard.name().clone(), created: None }).unwrap();
    let error = soon(waits).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Removed { reason: Reason::Deleted, .. }), "{error}");
    assert_eq!(soon(guard.lost()).await.cause, LossCause::Asked);
    guard.stopped().await.unwrap();
    let error = soon(guard.regained()).await.unwrap_err();
    assert!(matches!(error, Error::Removed { .. }), "{error}");
    assert!(service.look(|machine| view(machine, "orders")).is_none());
    assert!(a.acts(), "the session lives on");
}

/// Two sessions, each with a lock that the other wants; `b` begins to wait last.
async fn embrace(
    service: &Service,
    breaks: bool,
) -> (Vec<LockGuard>, Vec<JoinHandle<Result<LockGuard, Error>>>) {
    let (a, b) = (session(service).await, session(service).await);
    let held = vec![
        soon(acquire(&a, "left", "a")).await.unwrap().unwrap(),
        soon(acquire(&b, "right", "b")).await.unwrap().unwrap(),
    ];
    let wants = a.lock("right").unwrap().named("a");
    let wants = if breaks { wants.break_deadlock() } else { wants };
    let first = tokio::spawn(async move { wants.acquire().await });
    until_waiting(service, "right", 1).await;
    (held, vec![first, acquire(&b, "left", "b")])
}

#[tokio::test]
async fn a_deadlock_is_shown_and_lasts_where_nobody_asked_to_break_it() {
    let service = Service::start().await;
    let (mut held, waits) = embrace(&service, false).await;
    soon(service.until(|machine| !machine.deadlocks().is_empty())).await;
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    held.remove(0).release().await.unwrap();
    let second = waits.into_iter().nth(1).unwrap();
    assert!(soon(second).await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn a_deadlock_ends_the_wait_that_asked_for_it_and_names_the_cycle() {
    let service = Service::start().await;
    let (held, waits) = embrace(&service, true).await;
    let mut waits = waits.into_iter();
    let error = soon(waits.next().unwrap()).await.unwrap().unwrap_err();
    let Error::Deadlock { name, message } = &error else { panic!("{error}") };
    assert_eq!(name.as_str(), "right");
    for part in ["waits for right", "waits for left", "what the session holds stays held"] {
        assert!(message.contains(part), "{message}");
    }
    assert!(held.iter().all(LockGuard::is_held));
    assert!(service.look(|machine| machine.deadlocks().is_empty()));
    let mut held = held.into_iter();
    held.next().unwrap().release().await.unwrap();
    assert!(soon(waits.next().unwrap()).await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn who_closes_the_cycle_and_asked_is_refused_at_once() {
    let service = Service::start().await;
    let session = session(&service).await;
    let lock = session.lock("orders").unwrap().break_deadlock();
    let guard = lock.acquire().await.unwrap();
    let error = soon(lock.acquire()).await.unwrap_err();
    assert!(matches!(error, Error::Deadlock { .. }), "it would wait for itself: {error}");
    assert!(guard.is_held());
}

/// A session for a program that another one runs and waits for.
async fn inside(service: &Service, outer: &Session) -> Session {
    let options = SessionOptions::with_ttl(LONG).acts_for(outer.id().unwrap());
    service.client().await.session(options).await.unwrap()
}

#[tokio::test]
async fn programs_that_run_programs_are_a_deadlock_that_only_an_inner_wait_ends() {
    let service = Service::start().await;
    let (a, b) = (session(&service).await, session(&service).await);
    let left = soon(acquire(&a, "left", "a")).await.unwrap().unwrap();
    let right = soon(acquire(&b, "right", "b")).await.unwrap().unwrap();
    let (in_a, in_b) = (inside(&service, &a).await, inside(&service, &b).await);
    let wants = in_a.lock("right").unwrap().break_deadlock();
    let waits = tokio::spawn(async move { wants.acquire().await });
    until_waiting(&service, "right", 1).await;
    let other = acquire(&in_b, "left", "in b");
    let error = soon(waits).await.unwrap().unwrap_err();
    let id = |session: &Session| session.id().unwrap();
    let part = format!("session {} waits for right through session {}, held by", id(&a), id(&in_a));
    assert!(matches!(&error, Error::Deadlock { message, .. } if message.contains(&part)), "{error}");
    assert!(left.is_held() && right.is_held());
    left.release().await.unwrap();
    assert!(soon(other).await.unwrap().unwrap().is_held());
}

#[tokio::test]
async fn for_whom_it_acts_is_said_again_when_the_session_was_lost() {
    let service = Service::start().await;
    let outer = session(&service).await;
    let held = soon(acquire(&outer, "orders", "outer")).await.unwrap().unwrap();
    let inner = inside(&service, &outer).await;
    let lost = inner.id().unwrap();
    service.expire_session(lost);
    soon(async {
        while inner.id().is_none_or(|id| id == lost) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let error = soon(inner.lock("orders").unwrap().break_deadlock().acquire()).await.unwrap_err();
    assert!(matches!(error, Error::Deadlock { .. }), "its outer one has it: {error}");
    assert!(held.is_held());
}
