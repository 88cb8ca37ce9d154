//! What the faces of the queue lean on: a stop that passes the seat on, a release that keeps a promise, and what
//! those hear that look on.

use crate::log::{Log, name, told};
use quorate_core::id::*;
use quorate_core::state_machine::*;
use quorate_core::time::Span;

/// A log with sessions 1..=n.
fn with_sessions(n: u64) -> (Log, Vec<SessionId>) {
    let mut log = Log::founded();
    let sessions = (1..=n).map(|secret| log.open(secret.into())).collect();
    (log, sessions)
}

fn tool(log: &mut Log, op: ToolOp) -> Applied {
    let applied = log.apply(Command::Tool { client: ClientId(1), op });
    assert!(!matches!(applied.reply, Reply::Refused(_)), "{:?}", applied.reply);
    applied
}

fn transfer(to: &str, force: bool) -> ToolOp {
    ToolOp::Transfer { group: name("g"), to: to.into(), drain: Span::from_millis(600), force }
}

fn looks(log: &mut Log, session: SessionId, group: &str, face: Face) -> EntryId {
    log.join(session, Join { kind: MemberKind::Observer, ..Log::join_op(group, face) }).entry
}

/// The changes that a session is told of, whole or only of its own place.
fn told_to(events: &[Event], session: SessionId) -> Vec<&Change> {
    let mut told = Vec::new();
    for event in events {
        if let Event::Change { to, own, change } = event
            && (to.contains(&session) || own.contains(&session))
        {
            told.push(change);
        }
    }
    told
}

#[test]
fn a_holder_that_stops_in_favour_of_nobody_goes_to_the_tail() {
    let (mut log, sessions) = with_sessions(4);
    let entries: Vec<_> = sessions[..3].iter().map(|s| log.member(*s, "g").entry).collect();
    log.call(sessions[0], Op::Stopped { entry: entries[0] });
    assert_eq!(log.line("g"), "P2:1* P3:2 P1:3", "else it would act again at once");
    log.member(sessions[3], "g");
    assert_eq!(log.line("g"), "P2:1* P3:2 P1:3 P4:4", "who comes later is behind it");
}

#[test]
fn one_that_stops_and_is_alone_acts_again_under_a_new_token() {
    let (mut log, sessions) = with_sessions(1);
    let total = log.acquire(sessions[0], "orders");
    let stopped = log.call(sessions[0], Op::Stopped { entry: total.entry });
    assert!(log.token(total.entry) > total.place.seat.map(|seat| seat.token));
    assert_eq!(told_to(&stopped.events, sessions[0]).len(), 1, "and is told so");
}

#[test]
fn a_holder_of_a_lock_that_has_stopped_is_told_where_it_stands() {
    let (mut log, sessions) = with_sessions(2);
    let first = log.acquire(sessions[0], "orders").entry;
    log.acquire(sessions[1], "orders");
    let stopped = log.call(sessions[0], Op::Stopped { entry: first });
    let told = told_to(&stopped.events, sessions[0]);
    let own = told[0].changed.iter().find(|changed| changed.entry == first).unwrap();
    assert_eq!(own.after.map(|place| (place.role, place.seat)), Some((Role::Standby, None)));
}

#[test]
fn a_release_during_a_transfer_passes_the_seat_to_the_one_it_was_promised() {
    let (mut log, sessions) = with_sessions(3);
    let entries: Vec<_> = sessions.iter().map(|s| log.member(*s, "g").entry).collect();
    tool(&mut log, transfer("P3", false));
    log.release(sessions[0], entries[0]);
    assert_eq!(log.line("g"), "P3:1* P2:2");
}

#[test]
fn a_forced_transfer_ends_at_the_one_it_was_for() {
    let (mut log, sessions) = with_sessions(3);
    sessions.iter().for_each(|s| _ = log.member(*s, "g"));
    tool(&mut log, transfer("P3", true));
    let (task, _) = log.machine.tasks()[0];
    let reign = log.machine.reign();
    log.apply(Command::TimerFired { timer: Timer::Task { task }, reign, silent: Span::ZERO });
    log.expire(sessions[0]);
    assert_eq!(log.line("g"), "P3:1* P2:2");
}

#[test]
fn a_holder_of_a_deleted_group_that_stops_is_gone_and_the_group_with_it() {
    let (mut log, sessions) = with_sessions(1);
    let total = log.acquire(sessions[0], "orders");
    tool(&mut log, ToolOp::EndGroup { group: name("orders"), created: None });
    let stopped = log.call(sessions[0], Op::Stopped { entry: total.entry });
    assert_eq!(stopped.reply, Reply::Released { token: total.place.seat.map(|seat| seat.token) });
    assert!(log.machine.group_view(&name("orders"), 1).is_none());
}

#[test]
fn whoever_looks_on_a_leadership_sees_a_new_value() {
    let (mut log, sessions) = with_sessions(2);
    looks(&mut log, sessions[1], "boss", Face::Leadership);
    let leader = log.join(sessions[0], Log::join_op("boss", Face::Leadership)).entry;
    let metadata = [("value".to_string(), "host 2".to_string())].into();
    let said = log.call(sessions[0], Op::Describe { entry: leader, metadata });
    let told = told_to(&said.events, sessions[1]);
    assert_eq!(told[0].changed[0].metadata.as_ref().unwrap()["value"], "host 2");
}

#[test]
fn whoever_looks_on_misses_no_version_when_a_wait_is_given_up() {
    let (mut log, sessions) = with_sessions(3);
    looks(&mut log, sessions[2], "orders", Face::Lock);
    let first = log.acquire(sessions[0], "orders");
    let terms = Terms { blocking: true, break_deadlock: true, ..Terms::default() };
    let own = Join { name: "s1".into(), ..Log::join_op("orders", Face::Lock) };
    let again = log.call(sessions[0], Op::JoinOn(own, terms));
    assert!(matches!(again.reply, Reply::Refused(Refusal::Deadlock { .. })), "{:?}", again.reply);
    let mut version = first.version;
    for change in told_to(&again.events, sessions[2]) {
        assert_eq!(change.version.0, version.0 + 1);
        version = change.version;
    }
    assert_eq!(log.machine.total(first.entry).unwrap().version, version);
}

#[test]
fn whoever_looks_on_is_told_that_the_group_is_deleted() {
    for face in [Face::Group, Face::Leadership] {
        let (mut log, sessions) = with_sessions(2);
        let member = log.join(sessions[0], Log::join_op("g", face)).entry;
        let observer = looks(&mut log, sessions[1], "g", face);
        let before = log.machine.total(member).unwrap().version;
        let ended = tool(&mut log, ToolOp::EndGroup { group: name("g"), created: None });
        let own = |change: &&&Change| change.changed.iter().any(|c| c.entry == observer && c.after.is_none());
        let told_observer = told_to(&ended.events, sessions[1]);
        assert!(told_observer.iter().find(own).is_some_and(|change| change.reason == Reason::Deleted));
        let to_member = told_to(&ended.events, sessions[0]);
        assert!(
            to_member.iter().find(own).is_none(),
            "nobody else sees who looks on: {:?}",
            told(&ended.events)
        );
        assert_eq!(to_member[0].version.0, before.0 + 1, "nor misses a version");
    }
}
