//! Corners of the queue: what happens when two policies, or a policy and a departure, meet. Each test tells a
//! history that once went wrong.

use crate::log::{Log, name};
use quorate_core::id::*;
use quorate_core::state_machine::*;
use quorate_core::time::Span;

const DELAY: Span = Span::from_millis(50);

fn with_sessions(n: u64) -> (Log, Vec<SessionId>) {
    let mut log = Log::founded();
    let sessions = (1..=n).map(|secret| log.open(secret.into())).collect();
    (log, sessions)
}

fn tool(log: &mut Log, op: ToolOp) -> Reply {
    log.apply(Command::Tool { client: ClientId(1), op }).reply
}

fn delayed() -> PolicyWish {
    PolicyWish { handover: Some(Handover::Delay { delay: DELAY }), ..PolicyWish::default() }
}

fn lock(session: SessionId, policy: PolicyWish) -> Join {
    Join { policy, name: format!("s{session}"), ..Log::join_op("orders", Face::Lock) }
}

fn member(session: SessionId, policy: PolicyWish, weight: u32) -> Join {
    Join { policy, weight, name: format!("P{session}"), ..Log::join_op("g", Face::Group) }
}

/// Fires the oldest task that is armed.
fn fire(log: &mut Log) -> Reply {
    let (task, _) = *log.machine.tasks().first().expect("a task is armed");
    let reign = log.machine.reign();
    log.apply(Command::TimerFired { timer: Timer::Task { task }, reign, silent: Span::ZERO }).reply
}

fn blockers(log: &Log, group: &str) -> Vec<String> {
    let view = log.machine.group_view(&name(group), 100).unwrap();
    view.waiters.iter().map(|w| format!("{}: {}", w.name, w.blocker)).collect()
}

/// The last holder has left, so the name has no policy of its own any more; but the pause after it has begun.
#[test]
fn a_pause_that_has_begun_outlives_the_policy_that_stated_it() {
    let (mut log, sessions) = with_sessions(2);
    let first = log.join(sessions[0], lock(sessions[0], delayed())).entry;
    log.release(sessions[0], first);
    let next = log.join(sessions[1], lock(sessions[1], PolicyWish::default())).entry;
    assert_eq!(blockers(&log, "orders"), ["s2: seat 0 is free and rests for 50 ms after its last holder"]);
    fire(&mut log);
    assert!(log.token(next).is_some());
}

#[test]
fn a_pause_outlives_the_deletion_of_its_name() {
    let (mut log, sessions) = with_sessions(2);
    let first = log.join(sessions[0], lock(sessions[0], delayed())).entry;
    log.release(sessions[0], first);
    assert_eq!(tool(&mut log, ToolOp::DeleteGroup { group: name("orders"), created: None }), Reply::Done);
    let early = log.call(sessions[1], Op::Join(lock(sessions[1], PolicyWish::default()))).reply;
    assert!(matches!(early, Reply::Refused(Refusal::Ending { .. })), "{early:?}");
    fire(&mut log);
    let next = log.join(sessions[1], lock(sessions[1], PolicyWish::default())).entry;
    assert!(log.token(next).is_some());
    assert!(log.machine.tasks().is_empty());
}

#[test]
fn a_pause_follows_those_that_shared_and_a_reader_waits_for_it_too() {
    let (mut log, sessions) = with_sessions(2);
    let reader = |session| Join { mode: Mode::Shared, ..lock(session, delayed()) };
    let first = log.join(sessions[0], reader(sessions[0])).entry;
    log.release(sessions[0], first);
    let try_it = Join { wait: false, ..reader(sessions[1]) };
    let busy = log.call(sessions[1], Op::Join(try_it)).reply;
    assert!(matches!(busy, Reply::Refused(Refusal::Busy { .. })), "a try never waits: {busy:?}");
    let next = log.join(sessions[1], reader(sessions[1])).entry;
    assert_eq!(log.token(next), None);
    fire(&mut log);
    assert!(log.token(next).is_some());
}

#[test]
fn a_try_at_a_barrier_never_waits() {
    let (mut log, sessions) = with_sessions(2);
    let party = |wait| {
        let policy = PolicyWish { seats: Some(2), ..PolicyWish::default() };
        Join { wait, policy, ..Log::join_op("start", Face::Barrier) }
    };
    let alone = log.call(sessions[0], Op::Join(party(false))).reply;
    assert!(matches!(alone, Reply::Refused(Refusal::Busy { .. })), "{alone:?}");
    log.join(sessions[0], party(true));
    let last = log.join(sessions[1], party(false));
    assert!(last.place.seat.is_some(), "the last party goes through at once");
}

/// A try takes a seat that is free although another one rests.
#[test]
fn a_try_is_decided_as_a_wait_is() {
    let (mut log, sessions) = with_sessions(3);
    let policy = PolicyWish { seats: Some(2), ..delayed() };
    let join = |wait| Join { wait, policy: policy.clone(), ..Log::join_op("slots", Face::Semaphore) };
    let first = log.join(sessions[0], join(true)).entry;
    log.release(sessions[0], first);
    let second = log.join(sessions[1], join(false));
    assert_eq!(second.place.seat.unwrap().no, SeatNo(1), "seat 0 rests, seat 1 is free");
}

#[test]
fn numbers_that_are_stated_late_begin_with_those_that_are_there() {
    for (numbering, after) in [(Numbering::Stable, "P2:2* P3:3"), (Numbering::MinimalMove, "P3:1 P2:2*")] {
        let (mut log, sessions) = with_sessions(3);
        let first = log.member(sessions[0], "g").entry;
        log.member(sessions[1], "g");
        let late = PolicyWish { numbering: Some(numbering), ..PolicyWish::default() };
        log.join(sessions[2], member(sessions[2], late, 1));
        assert_eq!(log.line("g"), "P1:1* P2:2 P3:3");
        log.release(sessions[0], first);
        assert_eq!(log.line("g"), after);
    }
}

/// The heaviest that waits, and the old holder, are both heavier than the one that the seat was asked for.
#[test]
fn a_transfer_goes_to_whom_it_names_whatever_the_weights() {
    let (mut log, sessions) = with_sessions(3);
    let policy = PolicyWish { order: Some(Order::Weight), ..PolicyWish::default() };
    let join = |session, weight| member(session, policy.clone(), weight);
    let holder = log.join(sessions[0], join(sessions[0], 30)).entry;
    log.join(sessions[1], join(sessions[1], 20));
    let light = log.join(sessions[2], join(sessions[2], 10)).entry;
    let to =
        ToolOp::Transfer { group: name("g"), to: "P3".into(), drain: Span::from_millis(600), force: false };
    tool(&mut log, to);
    log.call(sessions[0], Op::Stopped { entry: holder });
    assert!(log.token(light).is_some(), "{}", log.line("g"));
    log.call(sessions[2], Op::Stopped { entry: light });
    assert!(log.token(holder).is_some(), "and then the weights count again: {}", log.line("g"));
}

/// Where the heavier make the lighter stop, the named one would not keep the seat: that is refused, never
/// undone.
#[test]
fn a_transfer_that_the_weights_would_undo_is_refused_with_the_policy() {
    let (mut log, sessions) = with_sessions(4);
    let (order, preempt) = (Some(Order::Weight), Some(Preempt::OnWeight));
    let policy = PolicyWish { order, preempt, ..PolicyWish::default() };
    let join = |session, weight| member(session, policy.clone(), weight);
    let holder = log.join(sessions[0], join(sessions[0], 30)).entry;
    for (session, weight) in [(sessions[1], 20), (sessions[2], 10), (sessions[3], 30)] {
        log.join(session, join(session, weight));
    }
    let drain = Span::from_millis(600);
    let to = |to: &str, force| ToolOp::Transfer { group: name("g"), to: to.into(), drain, force };
    let undone = |to: &str, by: &str| {
        format!(
            "no seat of g is moved: with preempt = on-weight {to} would be asked to stop at once, since {by}"
        )
    };
    for (target, force, by) in [
        ("P2", false, "P1 is heavier (30 to 20)"),
        ("P3", false, "P1 is heavier (30 to 10)"),
        ("P3", true, "P4 is heavier (30 to 10)"),
    ] {
        let before = log.machine.clone();
        let Reply::Refused(refusal) = tool(&mut log, to(target, force)) else { panic!("{target}") };
        assert_eq!(refusal.to_string(), undone(target, by));
        assert_eq!(
            log.machine.group_view(&name("g"), 9),
            before.group_view(&name("g"), 9),
            "nothing changed"
        );
    }
    assert_eq!(tool(&mut log, to("P4", false)), Reply::Done, "one of the same weight keeps it");
    log.call(sessions[0], Op::Stopped { entry: holder });
    assert_eq!(log.line("g"), "P4:1* P1:2 P2:3 P3:4");
    assert!(log.machine.tasks().is_empty(), "nobody asks for it");
}

/// The holder does not stop for the heavier, and an operator has its lease ended: it does not count.
#[test]
fn a_forced_transfer_counts_without_the_holder_that_it_ends() {
    let (mut log, sessions) = with_sessions(2);
    let (order, preempt) = (Some(Order::Weight), Some(Preempt::OnWeight));
    let policy = PolicyWish { order, preempt, ..PolicyWish::default() };
    log.join(sessions[0], member(sessions[0], policy.clone(), 30));
    log.join(sessions[1], member(sessions[1], policy, 10));
    let drain = Span::from_millis(600);
    let to = ToolOp::Transfer { group: name("g"), to: "P2".into(), drain, force: true };
    assert_eq!(tool(&mut log, to), Reply::Done);
    fire(&mut log);
    log.expire(sessions[0]);
    assert_eq!(log.line("g"), "P2:1*");
}

/// With several seats the named one keeps its own if it is among the heaviest that fit.
#[test]
fn a_transfer_among_several_seats_counts_how_many_are_heavier() {
    let (mut log, sessions) = with_sessions(3);
    let (order, preempt) = (Some(Order::Weight), Some(Preempt::OnWeight));
    let policy = PolicyWish { seats: Some(2), order, preempt, ..PolicyWish::default() };
    let join = |session, weight| member(session, policy.clone(), weight);
    let first = log.join(sessions[0], join(sessions[0], 20)).entry;
    log.join(sessions[1], join(sessions[1], 30));
    let third = log.join(sessions[2], join(sessions[2], 20)).entry;
    let drain = Span::from_millis(600);
    let to = ToolOp::Transfer { group: name("g"), to: "P3".into(), drain, force: false };
    assert_eq!(tool(&mut log, to), Reply::Done);
    log.call(sessions[0], Op::Stopped { entry: first });
    assert!(log.token(third).is_some() && log.token(first).is_none(), "{}", log.line("g"));
}

/// A holder that was asked to stop because it has held too long gives way to one that waits.
#[test]
fn a_holder_that_stops_gives_way() {
    let (mut log, sessions) = with_sessions(2);
    let terms = Terms { max_hold: Some(DELAY), blocking: true, ..Terms::default() };
    let first = Op::JoinOn(lock(sessions[0], PolicyWish::default()), terms);
    let Reply::Joined(first) = log.call(sessions[0], first).reply else { panic!() };
    let second = log.acquire(sessions[1], "orders").entry;
    fire(&mut log);
    log.call(sessions[0], Op::Stopped { entry: first.entry });
    assert!(log.token(second).is_some());
    assert_eq!(log.token(first.entry), None, "its place stays");
}

#[test]
fn who_stops_in_a_group_that_is_deleted_is_out_and_the_group_is_gone() {
    let (mut log, sessions) = with_sessions(1);
    let entry = log.member(sessions[0], "g").entry;
    tool(&mut log, ToolOp::EndGroup { group: name("g"), created: None });
    let stopped = log.call(sessions[0], Op::Stopped { entry });
    assert!(matches!(stopped.reply, Reply::Released { .. }), "{:?}", stopped.reply);
    assert!(log.machine.group_view(&name("g"), 1).is_none(), "nobody gets a seat of a deleted group");
    assert!(log.machine.session_view(sessions[0]).unwrap().places.is_empty());
}

/// The member that a seat was asked for took another one: nobody is made to stop, or forced, for nothing.
#[test]
fn a_transfer_is_forgotten_when_its_target_acts() {
    let (mut log, sessions) = with_sessions(3);
    let policy = PolicyWish { seats: Some(2), ..PolicyWish::default() };
    let join = |session: SessionId| Join {
        policy: policy.clone(),
        name: format!("s{session}"),
        ..Log::join_op("slots", Face::Semaphore)
    };
    let entries: Vec<_> = sessions.iter().map(|s| log.join(*s, join(*s)).entry).collect();
    let drain = Span::from_millis(600);
    tool(&mut log, ToolOp::Transfer { group: name("slots"), to: "s3".into(), drain, force: true });
    let freed = log.release(sessions[1], entries[1]);
    assert_eq!(log.place(entries[2]).role, Role::Active);
    assert_eq!(log.place(entries[0]).role, Role::Active);
    assert!(log.machine.tasks().is_empty(), "no force is due");
    let told = freed.events.iter().any(|event| {
        matches!(event, Event::Change { own, change, .. }
            if own.contains(&sessions[0]) && change.reason == Reason::NotStopped)
    });
    assert!(told, "the holder hears that it may go on: {:?}", freed.events);
}

/// Two heavier members come; the second is served although nobody joins or leaves any more.
#[test]
fn every_heavier_member_asks_in_its_turn() {
    let (mut log, sessions) = with_sessions(4);
    let seats = Some(2);
    let (order, preempt) = (Some(Order::Weight), Some(Preempt::OnWeight));
    let policy = PolicyWish { seats, order, preempt, ..PolicyWish::default() };
    let join = |session, weight| member(session, policy.clone(), weight);
    let light: Vec<_> = sessions[..2].iter().map(|s| log.join(*s, join(*s, 1)).entry).collect();
    let heavy: Vec<_> = sessions[2..].iter().map(|s| log.join(*s, join(*s, 9)).entry).collect();
    for (session, entry) in sessions.iter().zip(&light) {
        let draining = light.iter().find(|e| log.place(**e).role == Role::Draining);
        assert!(draining.is_some(), "somebody is asked: {}", log.line("g"));
        log.call(*session, Op::Stopped { entry: *entry });
    }
    assert!(heavy.iter().all(|entry| log.token(*entry).is_some()), "{}", log.line("g"));
}

/// s1 waits for a, which s2 holds; s3 is next for a, and waits for b, which s1 holds. Only when s2 releases,
/// nobody can go on.
#[test]
fn r19_a_cycle_that_a_release_closes_is_broken_too() {
    let (mut log, sessions) = with_sessions(3);
    let breaks = Terms { blocking: true, break_deadlock: true, ..Terms::default() };
    let join = |session: SessionId, lock: &str| Join {
        name: format!("s{session}"),
        ..Log::join_op(lock, Face::Lock)
    };
    let held = log.acquire(sessions[1], "a").entry;
    log.acquire(sessions[0], "b");
    log.acquire(sessions[2], "a");
    log.acquire(sessions[0], "a");
    let asked = Op::JoinOn(join(sessions[2], "b"), breaks);
    let Reply::Joined(wait) = log.call(sessions[2], asked).reply else { panic!("no deadlock yet") };
    log.release(sessions[1], held);
    assert!(log.machine.deadlocks().is_empty());
    assert!(log.machine.total(wait.entry).is_none(), "it asked to be given up");
}

/// s1 holds one of two seats of a and waits for b, which s2 holds; s2 waits for a, whose other seat rests.
#[test]
fn r19_a_seat_that_rests_comes_free_by_itself() {
    let (mut log, sessions) = with_sessions(3);
    let slots = |session: SessionId| Join {
        policy: PolicyWish { seats: Some(2), ..delayed() },
        name: format!("s{session}"),
        ..Log::join_op("a", Face::Semaphore)
    };
    let breaks = Terms { blocking: true, break_deadlock: true, ..Terms::default() };
    log.join(sessions[0], slots(sessions[0]));
    let other = log.join(sessions[2], slots(sessions[2])).entry;
    log.acquire(sessions[1], "b");
    log.acquire(sessions[0], "b");
    log.release(sessions[2], other);
    let Reply::Joined(wait) = log.call(sessions[1], Op::JoinOn(slots(sessions[1]), breaks)).reply else {
        panic!("no wait has to be given up")
    };
    assert!(log.machine.deadlocks().is_empty());
    fire(&mut log);
    assert!(log.token(wait.entry).is_some());
}

/// The second of two seats goes while its holder is asked for it in favour of a heavier one; the drain comes to
/// nothing, but the seat is still one too many.
#[test]
fn r11_fewer_seats_outlast_a_drain_that_came_to_nothing() {
    let (mut log, sessions) = with_sessions(3);
    let policy = || PolicyWish {
        seats: Some(2),
        order: Some(Order::Weight),
        preempt: Some(Preempt::OnWeight),
        ..PolicyWish::default()
    };
    log.join(sessions[0], member(sessions[0], policy(), 9));
    let light = log.join(sessions[1], member(sessions[1], policy(), 1)).entry;
    log.join(sessions[2], member(sessions[2], policy(), 5));
    assert_eq!(log.place(light).role, Role::Draining, "it is the lighter one");
    tool(&mut log, ToolOp::SetSeats { group: name("g"), seats: 1 });
    fire(&mut log);
    let view = log.machine.group_view(&name("g"), 10).unwrap();
    let asked: Vec<_> = view.duties.iter().filter_map(|duty| duty.asked.as_ref()).collect();
    assert_eq!(asked.len(), 1);
    assert_eq!((asked[0].what, asked[0].why.as_str()), (AskedFor::FewerSeats, "the seats became 1"));
    assert_eq!(log.place(light).role, Role::Draining, "asked again, for as long as it acts");
}

/// s1 holds one of two seats of a and waits for itself, once to share, which nothing helps, and once alone, which
/// the other seat would help as long as it rests.
fn waits_beside_a_seat_that_rests() -> (Log, Total) {
    let (mut log, sessions) = with_sessions(1);
    let session = sessions[0];
    let two = || Join { policy: PolicyWish { seats: Some(2), ..delayed() }, ..Log::join_op("a", Face::Lock) };
    let blocking = Terms { blocking: true, ..Terms::default() };
    let breaks = Terms { break_deadlock: true, ..blocking.clone() };
    log.join(session, two());
    let other = log.join(session, two()).entry;
    log.release(session, other);
    let shared = Join { mode: Mode::Shared, ..two() };
    log.call(session, Op::JoinOn(shared, blocking));
    let Reply::Joined(wait) = log.call(session, Op::JoinOn(two(), breaks)).reply else {
        panic!("no wait has to be given up")
    };
    assert!(log.machine.total(wait.entry).is_some(), "a seat is coming free");
    (log, wait)
}

#[test]
fn r19_a_seat_that_has_rested_and_goes_to_nobody_ends_a_wait_that_asked_for_it() {
    let (mut log, wait) = waits_beside_a_seat_that_rests();
    fire(&mut log);
    assert!(log.machine.total(wait.entry).is_none(), "who shares is first in line, and waits for ever");
}

#[test]
fn r19_a_seat_that_rests_and_is_taken_away_ends_a_wait_that_asked_for_it() {
    let (mut log, wait) = waits_beside_a_seat_that_rests();
    tool(&mut log, ToolOp::SetSeats { group: name("a"), seats: 1 });
    assert!(log.machine.total(wait.entry).is_none(), "it comes free for nobody");
}

/// A place that was kept and taken back leaves nothing behind.
#[test]
fn coming_back_leaves_no_trace_of_the_old_place() {
    let (mut log, sessions) = with_sessions(3);
    let rejoin = Some(Rejoin::Sticky { grace: Span::from_millis(500) });
    let sticky = PolicyWish { rejoin, ..PolicyWish::default() };
    log.join(sessions[0], member(sessions[0], sticky.clone(), 1));
    let old = log.join(sessions[1], member(sessions[1], sticky.clone(), 1)).entry;
    log.expire(sessions[1]);
    let again = Join { name: format!("P{}", sessions[1]), ..member(sessions[2], sticky, 1) };
    log.join(sessions[2], again);
    let state = log.machine.to_snapshot();
    let places: ciborium::Value = ciborium::from_reader(&state[1..]).unwrap();
    let map = places.as_map().unwrap();
    let places = map.iter().find(|(key, _)| key.as_text() == Some("places")).unwrap();
    let known = places.1.as_map().unwrap();
    assert!(known.iter().all(|(key, _)| key.as_integer() != Some(old.0.into())), "{known:?}");
    assert_eq!(known.len(), 2);
}

#[test]
fn who_waits_in_a_group_that_is_deleted_is_told() {
    let (mut log, sessions) = with_sessions(3);
    let entries: Vec<_> = sessions.iter().map(|s| log.member(*s, "g").entry).collect();
    let ended = log.apply(Command::Tool {
        client: ClientId(1),
        op: ToolOp::EndGroup { group: name("g"), created: None },
    });
    for (session, entry) in sessions.iter().zip(&entries).skip(1) {
        let told = ended.events.iter().any(|event| {
            matches!(event, Event::Change { to, own, change }
                if own.contains(session)
                    && change.reason == Reason::Deleted
                    && change.changed.iter().any(|c| c.entry == *entry && c.after.is_none()))
        });
        assert!(told, "session {session} still waits: {:?}", ended.events);
    }
}
