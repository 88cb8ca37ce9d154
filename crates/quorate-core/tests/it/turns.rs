//! The order in which those that wait are listed is the order in which they are seated, whatever the policy
//! says about their numbers. Each test tells a history, reads the list, and then lets the holders go one by
//! one.

use crate::log::{Log, name};
use quorate_core::id::*;
use quorate_core::state_machine::*;
use quorate_core::time::Span;

const DRAIN: Span = Span::from_millis(600);

fn with_sessions(n: u64) -> (Log, Vec<SessionId>) {
    let mut log = Log::founded();
    let sessions = (1..=n).map(|secret| log.open(secret.into())).collect();
    (log, sessions)
}

fn join(log: &mut Log, session: SessionId, policy: &PolicyWish, weight: u32) -> EntryId {
    let (policy, name) = (policy.clone(), format!("P{session}"));
    log.join(session, Join { policy, weight, name, ..Log::join_op("g", Face::Group) }).entry
}

fn transfer(log: &mut Log, to: &str) -> Reply {
    let op = ToolOp::Transfer { group: name("g"), to: to.into(), drain: DRAIN, force: false };
    log.apply(Command::Tool { client: ClientId(1), op }).reply
}

fn view(log: &Log) -> GroupView {
    log.machine.group_view(&name("g"), 100).expect("somebody is in it")
}

fn listed(log: &Log) -> Vec<String> {
    view(log).waiters.iter().map(|waiter| waiter.name.clone()).collect()
}

fn blockers(log: &Log) -> Vec<String> {
    view(log).waiters.iter().map(|w| format!("{} {}: {}", w.position, w.name, w.blocker)).collect()
}

/// Lets whoever acts go, until nobody does; who acted then, in order.
fn seated(mut log: Log) -> Vec<String> {
    let acting = |log: &Log| log.machine.group_view(&name("g"), 1)?.holders.first().cloned();
    let mut seated = Vec::new();
    while let Some(holder) = acting(&log) {
        log.release(holder.session, holder.entry);
        seated.extend(acting(&log).map(|next| next.name));
    }
    seated
}

/// The list, which is then what happens.
fn told_and_true(log: Log) -> String {
    let told = listed(&log);
    let positions: Vec<u64> = view(&log).waiters.iter().map(|waiter| waiter.position).collect();
    assert_eq!(positions, (2..2 + told.len() as u64).collect::<Vec<_>>(), "the turns have no holes");
    assert_eq!(seated(log), told, "they are seated as they were listed");
    told.join(" ")
}

#[test]
fn a_newcomer_that_fills_a_hole_waits_behind_those_that_came_before() {
    for (numbering, line) in
        [(Numbering::Stable, "P1:1* P4:2 P3:3"), (Numbering::MinimalMove, "P1:1* P3:2 P4:3")]
    {
        let (mut log, sessions) = with_sessions(4);
        let policy = PolicyWish { numbering: Some(numbering), ..PolicyWish::default() };
        let entries: Vec<_> = sessions[..3].iter().map(|s| join(&mut log, *s, &policy, 1)).collect();
        log.release(sessions[1], entries[1]);
        join(&mut log, sessions[3], &policy, 1);
        assert_eq!(log.line("g"), line, "numbers are labels (RULES R14)");
        assert_eq!(told_and_true(log), "P3 P4");
    }
}

#[test]
fn the_last_that_moves_into_a_hole_keeps_its_turn() {
    let (mut log, sessions) = with_sessions(4);
    let policy = PolicyWish { numbering: Some(Numbering::MinimalMove), ..PolicyWish::default() };
    let entries: Vec<_> = sessions.iter().map(|s| join(&mut log, *s, &policy, 1)).collect();
    log.release(sessions[1], entries[1]);
    assert_eq!(log.line("g"), "P1:1* P4:2 P3:3");
    assert_eq!(told_and_true(log), "P3 P4");
}

#[test]
fn the_heavier_is_listed_before_whatever_its_number_is() {
    let (mut log, sessions) = with_sessions(4);
    let (numbering, order) = (Some(Numbering::Stable), Some(Order::Weight));
    let policy = PolicyWish { numbering, order, ..PolicyWish::default() };
    for (session, weight) in sessions.iter().zip([1, 10, 30, 20]) {
        join(&mut log, *session, &policy, weight);
    }
    assert_eq!(log.line("g"), "P1:1* P2:2 P3:3 P4:4");
    assert_eq!(told_and_true(log), "P3 P4 P2");
}

#[test]
fn a_member_that_is_away_has_no_turn_and_has_its_old_one_when_it_is_back() {
    let (mut log, sessions) = with_sessions(5);
    let rejoin = Some(Rejoin::Sticky { grace: DRAIN });
    let policy = PolicyWish { rejoin, numbering: Some(Numbering::Stable), ..PolicyWish::default() };
    for session in &sessions[..4] {
        join(&mut log, *session, &policy, 1);
    }
    log.expire(sessions[1]);
    assert_eq!(listed(&log), ["P3", "P4"]);
    assert_eq!(told_and_true(log.clone()), "P3 P4");
    let back = Join { policy, name: "P2".into(), ..Log::join_op("g", Face::Group) };
    log.join(sessions[4], back);
    assert_eq!(told_and_true(log), "P2 P3 P4");
}

/// The next seat is the one's that its holder was asked to stop for, and the others are told so.
#[test]
fn whom_a_seat_was_promised_is_listed_first() {
    let (mut log, sessions) = with_sessions(4);
    sessions.iter().for_each(|session| _ = log.member(*session, "g"));
    assert_eq!(transfer(&mut log, "P4"), Reply::Done);
    let token = view(&log).holders[0].seat.token;
    let held = format!(
        "2 P4: the seat is held by P1 (session 1, token {token}), which was asked to stop: a transfer to P4"
    );
    assert_eq!(
        blockers(&log),
        [
            held.as_str(),
            "3 P2: one is ahead in the queue: P4 (session 4)",
            "4 P3: 2 are ahead in the queue, the first is P4 (session 4)",
        ]
    );
    let places = log.machine.session_view(sessions[1]).expect("it is open").places;
    let waits = places[0].3.as_ref().map(Blocker::to_string);
    assert_eq!(
        waits.as_deref(),
        Some("one is ahead in the queue: P4 (session 4)"),
        "a session says the same"
    );
    assert_eq!(told_and_true(log.clone()), "P4 P2 P3");
    let (task, _) = log.machine.tasks()[0];
    let reign = log.machine.reign();
    log.apply(Command::TimerFired { timer: Timer::Task { task }, reign, silent: Span::ZERO });
    assert_eq!(told_and_true(log), "P2 P3 P4", "a transfer that failed promises nothing");
}

/// A heavier one that comes later does not take what was promised; it asks in its turn.
#[test]
fn a_seat_that_a_heavier_member_asked_for_is_its_own_before_a_still_heavier_ones() {
    let (mut log, sessions) = with_sessions(3);
    let (order, preempt) = (Some(Order::Weight), Some(Preempt::OnWeight));
    let policy = PolicyWish { order, preempt, ..PolicyWish::default() };
    for (session, weight) in sessions.iter().zip([10, 20, 30]) {
        join(&mut log, *session, &policy, weight);
    }
    assert_eq!(told_and_true(log), "P2 P3");
}

/// With several seats the order of the queue is all that is known: any holder may be the first to stop.
#[test]
fn with_several_seats_a_transfer_promises_one_of_them_and_the_order_stays() {
    let (mut log, sessions) = with_sessions(4);
    let policy = PolicyWish { seats: Some(2), ..PolicyWish::default() };
    let entries: Vec<_> = sessions.iter().map(|s| join(&mut log, *s, &policy, 1)).collect();
    assert_eq!(transfer(&mut log, "P4"), Reply::Done);
    assert_eq!(listed(&log), ["P3", "P4"]);
    let mut other = log.clone();
    other.release(sessions[1], entries[1]);
    assert!(other.token(entries[2]).is_some(), "the seat that nobody was asked for is the first one's");
    log.release(sessions[0], entries[0]);
    assert!(log.token(entries[3]).is_some(), "the other one is the named one's");
}
