//! One connection: what each frame may cause, in every order that a network allows.

use crate::log::{Log, TTL, name};
use quorate_core::edge::{CHANGES_MAX, Cause, Edge, Effect, Input};
use quorate_core::frame::{Bye, ClientFrame, ServerFrame};
use quorate_core::id::*;
use quorate_core::state_machine::*;
use quorate_core::time::Span;
use std::sync::Arc;

const FLOOR: Span = Span::from_millis(100);

fn open_frame(ttl: Span, on_disconnect: OnDisconnect) -> ClientFrame {
    ClientFrame::Open { secret: Secret(1), ttl, on_disconnect, label: "me".into() }
}

/// A connection whose session is open.
fn speaking(log: &mut Log, on_disconnect: OnDisconnect) -> (Edge, SessionId) {
    let mut edge = Edge::new(FLOOR);
    let effects = edge.handle(Input::Frame(open_frame(TTL, on_disconnect)));
    let [Effect::Propose(Cause::Greeting, command)] = &effects[..] else { panic!("{effects:?}") };
    let reply = log.apply(command.clone()).reply;
    let effects = edge.handle(Input::Applied(Cause::Greeting, reply));
    let [Effect::Listen(session, _)] = &effects[..] else { panic!("{effects:?}") };
    let opened = log.machine.opened(*session).unwrap();
    let effects = edge.handle(Input::Listening(opened));
    assert!(matches!(&effects[..], [Effect::Send(ServerFrame::Opened(_))]));
    (edge, *session)
}

fn bye(effects: &[Effect]) -> String {
    match effects {
        [Effect::Send(ServerFrame::Bye(bye)), Effect::Close] => bye.to_string(),
        other => panic!("no end: {other:?}"),
    }
}

#[test]
fn r7_a_lease_below_the_floor_is_an_error_that_says_so() {
    let mut edge = Edge::new(FLOOR);
    let effects = edge.handle(Input::Frame(open_frame(Span::from_millis(99), OnDisconnect::Hold)));
    assert_eq!(
        bye(&effects),
        "a lease of 99 ms is too short: the floor here is 100 ms, from this service's measured disk and \
         network times; ask for 100 ms or more"
    );
    assert!(edge.is_over());
}

#[test]
fn r18_only_a_hangup_of_a_session_that_asked_for_it_is_a_leave() {
    let mut log = Log::founded();
    let (mut holds, _) = speaking(&mut log, OnDisconnect::Hold);
    assert_eq!(holds.handle(Input::Hangup), [Effect::Close]);
    let mut log = Log::founded();
    let (mut releases, session) = speaking(&mut log, OnDisconnect::Release);
    let generation = log.generation(session);
    let command = Command::Disconnected { session, generation };
    let effects = releases.handle(Input::Hangup);
    assert_eq!(effects, [Effect::Propose(Cause::Hangup, command), Effect::Close]);
    assert!(releases.handle(Input::Hangup).is_empty(), "once");
}

#[test]
fn the_first_frame_opens_and_no_later_one_does() {
    let mut edge = Edge::new(FLOOR);
    let effects = edge.handle(Input::Frame(ClientFrame::KeepAlive { seq: 1 }));
    assert!(bye(&effects).contains("the first frame must open"));
    let mut log = Log::founded();
    let (mut edge, _) = speaking(&mut log, OnDisconnect::Hold);
    let effects = edge.handle(Input::Frame(open_frame(TTL, OnDisconnect::Hold)));
    assert!(bye(&effects).contains("a second opening"));
    let mut edge = Edge::new(FLOOR);
    edge.handle(Input::Frame(open_frame(TTL, OnDisconnect::Hold)));
    let effects = edge.handle(Input::Frame(ClientFrame::KeepAlive { seq: 1 }));
    assert!(bye(&effects).contains("before the session was open"));
}

#[test]
fn r22_a_connection_that_was_taken_over_is_told_so() {
    let mut log = Log::founded();
    let (mut old, session) = speaking(&mut log, OnDisconnect::Hold);
    log.apply(Command::Attach { session, secret: Secret(1), lapsed: false });
    let op = Op::Join(Log::join_op("orders", Face::Lock));
    let frame = ClientFrame::Call { request: RequestId(1), acknowledged: RequestId(0), op };
    let effects = old.handle(Input::Frame(frame));
    let [Effect::Propose(cause, command)] = &effects[..] else { panic!("{effects:?}") };
    let reply = log.apply(command.clone()).reply;
    let effects = old.handle(Input::Applied(*cause, reply));
    assert_eq!(bye(&effects), Bye::TakenOver.to_string());
}

#[test]
fn r23_a_client_that_does_not_read_gets_one_gap_and_then_a_total() {
    let mut log = Log::founded();
    let (mut edge, session) = speaking(&mut log, OnDisconnect::Hold);
    let entry = log.member(session, "g").entry;
    let total = log.machine.total(entry).unwrap();
    edge.handle(Input::Applied(Cause::Call(RequestId(1)), Reply::Joined(total)));
    let other = log.open(99);
    let mut sent = 0;
    while sent < CHANGES_MAX as u64 + 50 {
        let come = log.member(other, "g").entry;
        let go = log.release(other, come);
        for event in go.events {
            edge.handle(Input::Event(Arc::new(event)));
            sent += 1;
        }
    }
    let effects = edge.handle(Input::Frame(ClientFrame::KeepAlive { seq: 7 }));
    assert_eq!(effects, [Effect::Renew { session, seq: 7 }], "keepalives do not queue behind changes");
    let mut missed = 0;
    let mut last = Vec::new();
    while edge.has_changes() {
        last = edge.next_change();
        if let [Effect::Send(ServerFrame::Gap { missed: n, .. }), ..] = &last[..] {
            missed += n;
        }
    }
    assert_eq!(missed, sent, "every change that was dropped is counted");
    let gap = ServerFrame::Gap { group: name("g"), missed };
    assert_eq!(last, [Effect::Send(gap), Effect::Total(entry)]);
}

#[test]
fn an_ordinal_only_member_is_sent_its_own_step_only() {
    let mut log = Log::founded();
    let (mut edge, session) = speaking(&mut log, OnDisconnect::Hold);
    let first = log.open(50);
    let first_entry = log.member(first, "g").entry;
    let join = Join { kind: MemberKind::OrdinalOnly, ..Log::join_op("g", Face::Group) };
    log.join(session, join);
    let third = log.open(51);
    let joined = log.call(third, Op::Join(Log::join_op("g", Face::Group)));
    edge.handle(Input::Event(Arc::new(joined.events[0].clone())));
    assert!(!edge.has_changes(), "another's joining is not its news");
    let left = log.release(first, first_entry);
    edge.handle(Input::Event(Arc::new(left.events[0].clone())));
    let effects = edge.next_change();
    let [Effect::Send(ServerFrame::Change(change))] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(change.changed.len(), 1);
    assert_eq!(change.changed[0].session, session);
    assert_eq!(change.changed[0].after.unwrap().ordinal, Some(Ordinal(1)));
}

/// A lock that is granted at once is told by the answer; a grant that comes later is told by its change, even if the
/// connection hears of it before it hears that it has joined.
#[test]
fn a_grant_is_told_once() {
    for answer_first in [true, false] {
        let mut log = Log::founded();
        let (mut edge, session) = speaking(&mut log, OnDisconnect::Hold);
        let answer =
            |edge: &mut Edge, reply: Reply| edge.handle(Input::Applied(Cause::Call(RequestId(1)), reply));
        let tell = |edge: &mut Edge, events: Vec<Event>| {
            for event in events {
                edge.handle(Input::Event(Arc::new(event)));
            }
        };
        let joined = log.call(session, Op::Join(Log::join_op("free", Face::Lock)));
        if answer_first {
            answer(&mut edge, joined.reply);
            tell(&mut edge, joined.events);
        } else {
            tell(&mut edge, joined.events);
            assert!(edge.has_changes());
            answer(&mut edge, joined.reply);
        }
        assert!(!edge.has_changes(), "the answer had the seat in it");

        let holder = log.open(50);
        let held = log.join(holder, Log::join_op("taken", Face::Lock));
        let waits = log.call(session, Op::Join(Log::join_op("taken", Face::Lock)));
        let released = log.release(holder, held.entry);
        if answer_first {
            answer(&mut edge, waits.reply);
            tell(&mut edge, released.events);
        } else {
            tell(&mut edge, released.events);
            answer(&mut edge, waits.reply);
        }
        let effects = edge.next_change();
        let [Effect::Send(ServerFrame::Change(change))] = &effects[..] else { panic!("{effects:?}") };
        assert!(change.changed[0].after.unwrap().seat.is_some());
        assert!(!edge.has_changes());
    }
}
