//! Every policy of the queue, each as a history that an operator would tell: who acts, who is asked, who is
//! next, and why the others wait.

use crate::log::{Log, TTL, name, told};
use quorate_core::id::*;
use quorate_core::state_machine::*;
use quorate_core::time::Span;

fn ms(ms: u64) -> Span {
    Span::from_millis(ms)
}

/// A log with sessions 1..=n.
fn with_sessions(n: u64) -> (Log, Vec<SessionId>) {
    let mut log = Log::founded();
    let sessions = (1..=n).map(|secret| log.open(secret.into())).collect();
    (log, sessions)
}

fn stated(policy: PolicyWish, weight: u32, session: SessionId) -> Join {
    Join { policy, weight, name: format!("P{session}"), ..Log::join_op("g", Face::Group) }
}

fn tool(log: &mut Log, op: ToolOp) -> Applied {
    log.apply(Command::Tool { client: ClientId(1), op })
}

fn refused(applied: Applied) -> String {
    match applied.reply {
        Reply::Refused(refusal) => refusal.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

/// Fires the only task that is armed.
fn fire(log: &mut Log) -> Applied {
    let tasks = log.machine.tasks();
    let [(task, _)] = tasks[..] else { panic!("{tasks:?}") };
    let reign = log.machine.reign();
    log.apply(Command::TimerFired { timer: Timer::Task { task }, reign, silent: Span::ZERO })
}

fn roles(log: &Log) -> String {
    let view = log.machine.group_view(&name("g"), 100).unwrap();
    let role = |m: &Member| format!("{} {}", m.name, m.place.role);
    view.members.iter().map(role).collect::<Vec<_>>().join(", ")
}

fn waits(log: &Log, group: &str) -> Vec<String> {
    let view = log.machine.group_view(&name(group), 100).unwrap();
    view.waiters.iter().map(|w| format!("{}: {}", w.name, w.blocker)).collect()
}

fn transfer(to: &str, drain: Span, force: bool) -> ToolOp {
    ToolOp::Transfer { group: name("g"), to: to.into(), drain, force }
}

#[test]
fn stable_numbers_are_kept_for_life_and_a_joiner_fills_the_lowest_hole() {
    let (mut log, sessions) = with_sessions(4);
    let policy = PolicyWish { numbering: Some(Numbering::Stable), ..PolicyWish::default() };
    let entries: Vec<_> =
        sessions[..3].iter().map(|s| log.join(*s, stated(policy.clone(), 1, *s)).entry).collect();
    assert_eq!(log.line("g"), "P1:1* P2:2 P3:3");
    log.release(sessions[1], entries[1]);
    assert_eq!(log.line("g"), "P1:1* P3:3", "nobody is renumbered");
    log.join(sessions[3], stated(policy.clone(), 1, sessions[3]));
    assert_eq!(log.line("g"), "P1:1* P4:2 P3:3");
    log.release(sessions[0], entries[0]);
    assert_eq!(log.line("g"), "P4:2 P3:3*", "the queue decides who acts, the number is a label (R14)");
}

#[test]
fn minimal_move_changes_one_number_when_one_leaves() {
    let (mut log, sessions) = with_sessions(5);
    let policy = PolicyWish { numbering: Some(Numbering::MinimalMove), ..PolicyWish::default() };
    let entries: Vec<_> =
        sessions.iter().map(|s| log.join(*s, stated(policy.clone(), 1, *s)).entry).collect();
    let left = log.release(sessions[1], entries[1]);
    assert_eq!(log.line("g"), "P1:1* P5:2 P3:3 P4:4");
    assert_eq!(told(&left.events), ["g leave: P2 2>gone, P5 5>2"], "one role change instead of three");
}

#[test]
fn the_heavier_is_ahead_and_among_equals_the_earlier() {
    let (mut log, sessions) = with_sessions(4);
    let policy = PolicyWish { order: Some(Order::Weight), ..PolicyWish::default() };
    for (session, weight) in sessions.iter().zip([10, 5, 30, 5]) {
        log.join(*session, stated(policy.clone(), weight, *session));
    }
    assert_eq!(log.line("g"), "P1:1* P3:2 P2:3 P4:4", "preempt never: the seated one stays (R14)");
    log.expire(sessions[0]);
    assert_eq!(log.line("g"), "P3:1* P2:2 P4:3");
}

#[test]
fn r11_a_heavier_member_asks_and_takes_only_what_is_given() {
    let (mut log, sessions) = with_sessions(2);
    let policy =
        PolicyWish { order: Some(Order::Weight), preempt: Some(Preempt::OnWeight), ..PolicyWish::default() };
    let light = log.join(sessions[0], stated(policy.clone(), 10, sessions[0])).entry;
    let heavy = log.join(sessions[1], stated(policy, 20, sessions[1])).entry;
    assert_eq!(roles(&log), "P1 draining, P2 pending", "asked to stop; told to prepare");
    assert!(log.token(heavy).is_none());
    let failed = fire(&mut log);
    assert_eq!(roles(&log), "P1 active, P2 standby", "without its word it holds on");
    assert!(told(&failed.events)[0].starts_with("g not_stopped:"));
    let back = log.apply(Command::Attach { session: sessions[1], secret: Secret(2), lapsed: false });
    assert!(told(&back.events).is_empty());
    log.call(sessions[0], Op::Stopped { entry: light });
    assert_eq!(log.line("g"), "P2:1* P1:2", "its word moves the seat, whenever it comes");
}

#[test]
fn r11_a_transfer_moves_the_seat_on_the_holders_word() {
    let (mut log, sessions) = with_sessions(4);
    let entries: Vec<_> = sessions.iter().map(|s| log.member(*s, "g").entry).collect();
    let before = log.token(entries[0]).unwrap();
    let asked = tool(&mut log, transfer("P3", ms(600), false));
    assert_eq!(asked.reply, Reply::Done);
    assert_eq!(told(&asked.events), ["g draining: P1 1*>1, P3 3>3"], "both are told, at once");
    assert_eq!(roles(&log), "P1 draining, P2 standby, P3 pending, P4 standby");
    assert_eq!(log.token(entries[0]), Some(before), "it acts until it says that it has stopped");
    let moved = log.call(sessions[0], Op::Stopped { entry: entries[0] });
    assert_eq!(log.line("g"), "P3:1* P1:2 P2:3 P4:4");
    assert!(log.token(entries[2]).unwrap() > before);
    assert!(told(&moved.events)[0].starts_with("g transferred:"));
    assert!(log.machine.tasks().is_empty(), "the time for it is given up");
}

#[test]
fn r11_a_transfer_without_the_holders_word_fails() {
    let (mut log, sessions) = with_sessions(2);
    let entries: Vec<_> = sessions.iter().map(|s| log.member(*s, "g").entry).collect();
    tool(&mut log, transfer("P2", ms(600), false));
    let before = log.token(entries[0]);
    fire(&mut log);
    assert_eq!(log.line("g"), "P1:1* P2:2");
    assert_eq!(log.token(entries[0]), before);
    let view = log.machine.group_view(&name("g"), 10).unwrap();
    let last = view.history.last().unwrap();
    assert_eq!(last.reason, Reason::NotStopped);
    assert_eq!(last.evidence, "a transfer to P2: it did not say that it has stopped, so it holds on");
}

#[test]
fn r11_force_stops_the_renewals_and_waits_the_lease_out() {
    let (mut log, sessions) = with_sessions(2);
    let entries: Vec<_> = sessions.iter().map(|s| log.member(*s, "g").entry).collect();
    tool(&mut log, transfer("P2", ms(600), true));
    fire(&mut log);
    assert!(log.token(entries[0]).is_some(), "still its seat");
    assert!(log.machine.session_view(sessions[0]).unwrap().closing.is_some(), "renewed no more");
    log.expire(sessions[0]);
    assert_eq!(log.line("g"), "P2:1*");
}

#[test]
fn a_transfer_that_cannot_be_says_why() {
    let (mut log, sessions) = with_sessions(2);
    log.member(sessions[0], "g");
    assert_eq!(
        refused(tool(&mut log, transfer("P2", ms(600), false))),
        "no seat of g is moved: no member named P2 waits for a seat"
    );
    log.member(sessions[1], "g");
    assert_eq!(
        refused(tool(&mut log, transfer("P1", ms(600), false))),
        "no seat of g is moved: P1 acts already"
    );
    assert_eq!(
        refused(tool(&mut log, transfer("P2", ms(700), false))),
        "the limit for a drain (a third of the holder's lease) is 666 ms, and this would be 700 ms; nothing \
         was changed",
        "R7"
    );
    tool(&mut log, transfer("P2", ms(600), false));
    assert_eq!(
        refused(tool(&mut log, transfer("P2", ms(600), false))),
        "no seat of g is moved: P1 was asked to stop already"
    );
}

#[test]
fn a_transfer_is_forgotten_when_its_target_leaves() {
    let (mut log, sessions) = with_sessions(2);
    let entries: Vec<_> = sessions.iter().map(|s| log.member(*s, "g").entry).collect();
    tool(&mut log, transfer("P2", ms(600), false));
    log.release(sessions[1], entries[1]);
    assert_eq!(roles(&log), "P1 active");
    assert!(log.machine.tasks().is_empty());
}

#[test]
fn sticky_keeps_the_place_and_never_delays_the_seat() {
    let (mut log, sessions) = with_sessions(4);
    let rejoin = Some(Rejoin::Sticky { grace: ms(500) });
    let policy = PolicyWish { rejoin, ..PolicyWish::default() };
    for session in &sessions[..3] {
        log.join(*session, stated(policy.clone(), 1, *session));
    }
    log.expire(sessions[0]);
    assert_eq!(roles(&log), "P2 active, P1 reserved, P3 standby", "the seat went on at once (R14)");
    let again = Join { name: "P1".into(), ..stated(policy.clone(), 1, sessions[3]) };
    let back = log.call(sessions[3], Op::Join(again));
    assert!(told(&back.events)[0].starts_with("g returned:"));
    assert_eq!(log.line("g"), "P2:1* P1:2 P3:3", "before those that came after it");
    assert!(log.machine.tasks().is_empty());
}

#[test]
fn sticky_gives_no_seat_to_one_that_is_away() {
    let (mut log, sessions) = with_sessions(3);
    let policy = PolicyWish { rejoin: Some(Rejoin::Sticky { grace: ms(500) }), ..PolicyWish::default() };
    let entries: Vec<_> =
        sessions.iter().map(|s| log.join(*s, stated(policy.clone(), 1, *s)).entry).collect();
    log.expire(sessions[1]);
    log.release(sessions[0], entries[0]);
    assert_eq!(roles(&log), "P3 active, P2 reserved");
}

#[test]
fn a_place_is_kept_for_the_grace_and_no_longer() {
    let (mut log, sessions) = with_sessions(3);
    let policy = PolicyWish { rejoin: Some(Rejoin::Sticky { grace: ms(500) }), ..PolicyWish::default() };
    for session in &sessions[..2] {
        log.join(*session, stated(policy.clone(), 1, *session));
    }
    log.expire(sessions[0]);
    fire(&mut log);
    assert_eq!(roles(&log), "P2 active");
    let again = Join { name: "P1".into(), ..stated(policy, 1, sessions[2]) };
    log.join(sessions[2], again);
    assert_eq!(log.line("g"), "P2:1* P1:2", "the tail");
    let entry = log.machine.session_view(sessions[1]).unwrap().places[0].1;
    log.release(sessions[1], entry);
    assert_eq!(roles(&log), "P1 active", "a member that leaves by itself keeps no place");
}

#[test]
fn a_seat_rests_between_two_holders_and_the_next_is_told_to_prepare() {
    let (mut log, sessions) = with_sessions(3);
    let policy = PolicyWish { handover: Some(Handover::Delay { delay: ms(50) }), ..PolicyWish::default() };
    let entries: Vec<_> =
        sessions.iter().map(|s| log.join(*s, stated(policy.clone(), 1, *s)).entry).collect();
    log.release(sessions[0], entries[0]);
    assert_eq!(roles(&log), "P2 pending, P3 standby");
    assert_eq!(waits(&log, "g")[0], "P2: seat 0 is free and rests for 50 ms after its last holder");
    let reign = log.begin();
    let (task, after) = log.machine.tasks()[0];
    assert_eq!(after, ms(50), "a new reign waits the whole pause again");
    log.apply(Command::TimerFired { timer: Timer::Task { task }, reign, silent: Span::ZERO });
    assert_eq!(log.line("g"), "P2:1* P3:2");
    let again = log.apply(Command::TimerFired { timer: Timer::Task { task }, reign, silent: Span::ZERO });
    assert_eq!(again.reply, Reply::Refused(Refusal::NotDue), "a task comes once (R2)");
}

#[test]
fn r13_shared_holders_of_one_phase_carry_its_token() {
    let (mut log, sessions) = with_sessions(6);
    let lock =
        |mode, session| Join { mode, name: format!("s{session}"), ..Log::join_op("orders", Face::Lock) };
    let shared: Vec<_> = sessions[..2].iter().map(|s| log.join(*s, lock(Mode::Shared, *s)).entry).collect();
    let phase = log.token(shared[0]).unwrap();
    assert_eq!(log.token(shared[1]), Some(phase));
    let alone = log.join(sessions[2], lock(Mode::Exclusive, sessions[2])).entry;
    let late = log.join(sessions[3], lock(Mode::Shared, sessions[3])).entry;
    assert_eq!(
        waits(&log, "orders"),
        [
            format!("s3: 2 share it: s1 (session 1, token {phase}), s2 (session 2, token {phase})"),
            "s4: one is ahead in the queue: s3 (session 3)".into(),
        ],
        "no reader passes a writer that waits: nobody starves"
    );
    log.release(sessions[0], shared[0]);
    assert!(log.token(alone).is_none());
    log.release(sessions[1], shared[1]);
    let writer = log.token(alone).unwrap();
    assert!(writer > phase);
    assert!(log.token(late).is_none(), "never together");
    log.release(sessions[2], alone);
    let next = log.token(late).unwrap();
    assert!(next > writer, "the first shared one after an exclusive one opens a new phase");
    let joins = log.join(sessions[4], lock(Mode::Shared, sessions[4])).entry;
    assert_eq!(log.token(joins), Some(next));
}

#[test]
fn r12_a_semaphore_gives_each_holder_a_seat_of_its_own() {
    let (mut log, sessions) = with_sessions(4);
    let policy = PolicyWish { seats: Some(2), ..PolicyWish::default() };
    let join = |session| Join {
        policy: policy.clone(),
        name: format!("s{session}"),
        ..Log::join_op("slots", Face::Semaphore)
    };
    let entries: Vec<_> = sessions.iter().map(|s| log.join(*s, join(*s)).entry).collect();
    let seats: Vec<_> = entries[..2].iter().map(|e| log.place(*e).seat.unwrap().no.0).collect();
    assert_eq!(seats, [0, 1]);
    assert!(waits(&log, "slots")[0].starts_with("s3: all 2 seats are held, by s1"));
    log.release(sessions[0], entries[0]);
    assert_eq!(log.place(entries[2]).seat.unwrap().no, SeatNo(0));
}

#[test]
fn a_barrier_lets_its_parties_through_together() {
    let (mut log, sessions) = with_sessions(4);
    let policy = PolicyWish { seats: Some(3), ..PolicyWish::default() };
    let join = |session| Join {
        policy: policy.clone(),
        name: format!("s{session}"),
        ..Log::join_op("start", Face::Barrier)
    };
    let early: Vec<_> = sessions[..2].iter().map(|s| log.join(*s, join(*s)).entry).collect();
    assert_eq!(waits(&log, "start")[0], "s1: 2 of 3 parties are there");
    let last = log.join(sessions[2], join(sessions[2])).entry;
    let through: Vec<_> = early.iter().chain([&last]).map(|entry| log.token(*entry)).collect();
    assert!(through[0].is_some() && through.iter().all(|token| *token == through[0]));
    let next = log.join(sessions[3], join(sessions[3])).entry;
    assert!(log.token(next).is_none(), "the next round waits for its own parties");
}

#[test]
fn a_leader_is_shown_with_its_value_and_so_is_that_there_is_none() {
    let (mut log, sessions) = with_sessions(3);
    let looks = Join { kind: MemberKind::Observer, ..Log::join_op("boss", Face::Leadership) };
    log.join(sessions[2], looks);
    let campaign = |session: SessionId| Join {
        name: format!("s{session}"),
        metadata: [("value".to_string(), format!("host{session}"))].into(),
        ..Log::join_op("boss", Face::Leadership)
    };
    let applied = log.call(sessions[0], Op::Join(campaign(sessions[0])));
    let Reply::Joined(total) = &applied.reply else { panic!() };
    let [Event::Change { to, change, .. }] = &applied.events[..] else { panic!("{applied:?}") };
    assert_eq!(to, &[sessions[2]], "whoever looks on is told");
    assert_eq!(change.changed[0].metadata.as_ref().unwrap()["value"], "host1");
    let gone = log.release(sessions[0], total.entry);
    let [Event::Change { change, .. }] = &gone.events[..] else { panic!() };
    assert_eq!(change.holder_token, None, "there is no leader, and that is an event");
}

#[test]
fn fewer_seats_ask_and_more_are_filled_at_once() {
    let (mut log, sessions) = with_sessions(3);
    let entries: Vec<_> = sessions.iter().map(|s| log.member(*s, "g").entry).collect();
    tool(&mut log, ToolOp::SetSeats { group: name("g"), seats: 2 });
    assert_eq!(log.line("g"), "P1:1* P2:2* P3:3");
    tool(&mut log, ToolOp::SetSeats { group: name("g"), seats: 1 });
    assert_eq!(roles(&log), "P1 active, P2 draining, P3 standby", "asked, not taken (R11)");
    log.call(sessions[1], Op::Stopped { entry: entries[1] });
    assert_eq!(log.line("g"), "P1:1* P2:2 P3:3");
}

#[test]
fn r11_a_deleted_group_waits_for_those_that_act() {
    let (mut log, sessions) = with_sessions(3);
    let entries: Vec<_> = sessions.iter().map(|s| log.member(*s, "g").entry).collect();
    tool(&mut log, ToolOp::EndGroup { group: name("g"), created: None });
    assert_eq!(roles(&log), "P1 draining");
    assert!(log.machine.total(entries[1]).is_none(), "who only waited is out");
    let come = log.call(sessions[1], Op::Join(Log::join_op("g", Face::Group)));
    assert_eq!(refused(come), "g is being deleted: it takes nobody in; choose another name or wait");
    log.release(sessions[0], entries[0]);
    assert!(log.machine.group_view(&name("g"), 1).is_none());
    assert_eq!(log.member(sessions[1], "g").place.ordinal, Some(Ordinal(1)), "and the name is free");
}

#[test]
fn a_waiter_on_a_deleted_lock_is_told_at_once() {
    let (mut log, sessions) = with_sessions(2);
    log.acquire(sessions[0], "orders");
    log.acquire(sessions[1], "orders");
    let ended = tool(&mut log, ToolOp::EndGroup { group: name("orders"), created: None });
    let told_waiter = ended.events.iter().any(|event| {
        matches!(event, Event::Change { own, change, .. }
            if own.contains(&sessions[1]) && change.reason == Reason::Deleted)
    });
    assert!(told_waiter, "{:?}", ended.events);
}

#[test]
fn r20_a_hold_too_long_and_work_without_a_sign_are_shown() {
    let (mut log, sessions) = with_sessions(2);
    let terms = Terms { progress: Some(ms(100)), blocking: true, ..Terms::default() };
    let join = Join { name: "s1".into(), ..Log::join_op("orders", Face::Lock) };
    let Reply::Joined(total) = log.call(sessions[0], Op::JoinOn(join, terms)).reply else { panic!() };
    log.acquire(sessions[1], "orders");
    fire(&mut log);
    let token = log.token(total.entry).unwrap();
    assert_eq!(
        waits(&log, "orders"),
        [format!("s2: the seat is held by s1 (session 1, token {token}), whose work has stalled")]
    );
    assert!(log.token(total.entry).is_some(), "its session is alive: the seat is not taken");
    let again = log.call(sessions[0], Op::Progress { entry: total.entry });
    assert!(told(&again.events)[0].starts_with("orders progress:"));
    let terms = Terms { max_hold: Some(ms(100)), ..Terms::default() };
    let join = Join { name: "s1".into(), ..Log::join_op("other", Face::Lock) };
    log.call(sessions[0], Op::JoinOn(join, terms));
    log.acquire(sessions[1], "other");
    let (task, _) = *log.machine.tasks().last().unwrap();
    let reign = log.machine.reign();
    log.apply(Command::TimerFired { timer: Timer::Task { task }, reign, silent: Span::ZERO });
    assert!(
        waits(&log, "other")[0].ends_with("asked to stop: it has held for 100 ms, as long as it said"),
        "{:?}",
        waits(&log, "other")
    );
}

#[test]
fn r19_a_cycle_of_waits_is_found_and_named() {
    let (mut log, sessions) = with_sessions(3);
    for (session, lock) in sessions.iter().zip(["a", "b", "c"]) {
        log.acquire(*session, lock);
    }
    log.acquire(sessions[0], "b");
    log.acquire(sessions[1], "c");
    assert!(log.machine.deadlocks().is_empty(), "session 3 can still go on");
    log.acquire(sessions[2], "a");
    let deadlocks = log.machine.deadlocks();
    assert_eq!(
        deadlocks[0].sentence(),
        "session 1 waits for b, held by session 2; session 2 waits for c, held by session 3; session 3 \
         waits for a, held by session 1"
    );
}

#[test]
fn r19_a_wait_for_oneself_through_another_handle_counts() {
    let (mut log, sessions) = with_sessions(1);
    log.acquire(sessions[0], "a");
    log.acquire(sessions[0], "a");
    assert_eq!(log.machine.deadlocks()[0].sentence(), "session 1 waits for a, held by session 1");
}

#[test]
fn r19_with_several_seats_it_is_a_knot() {
    let (mut log, sessions) = with_sessions(3);
    let policy = PolicyWish { seats: Some(2), ..PolicyWish::default() };
    let slots = || Join { policy: policy.clone(), ..Log::join_op("slots", Face::Semaphore) };
    log.acquire(sessions[0], "a");
    log.join(sessions[1], slots());
    let free = log.join(sessions[2], slots()).entry;
    log.join(sessions[0], slots());
    log.acquire(sessions[1], "a");
    assert!(log.machine.deadlocks().is_empty(), "session 3 holds a slot and can go on");
    log.acquire(sessions[2], "a");
    assert_eq!(log.machine.deadlocks().len(), 1, "now no holder of a slot can");
    let waits = &log.machine.deadlocks()[0].waits;
    assert_eq!(waits[0].held_by.len(), 2, "a knot: both holders are named");
    log.release(sessions[2], free);
    assert!(log.machine.deadlocks().is_empty());
}

#[test]
fn r19_standing_by_in_a_group_is_no_wait() {
    let (mut log, sessions) = with_sessions(2);
    log.member(sessions[0], "g");
    log.acquire(sessions[1], "a");
    log.member(sessions[1], "g");
    log.acquire(sessions[0], "a");
    assert!(log.machine.deadlocks().is_empty());
}

#[test]
fn r19_a_deadlock_is_broken_only_where_it_was_asked() {
    let (mut log, sessions) = with_sessions(2);
    log.acquire(sessions[0], "a");
    let held = log.acquire(sessions[1], "b").entry;
    log.acquire(sessions[0], "b");
    let terms = Terms { blocking: true, break_deadlock: true, ..Terms::default() };
    let join = Log::join_op("a", Face::Lock);
    let asked = refused(log.call(sessions[1], Op::JoinOn(join, terms)));
    assert_eq!(
        asked,
        "this wait would never end: session 1 waits for b, held by session 2; session 2 waits for a, held by \
         session 1; it was given up, and what the session holds stays held"
    );
    assert!(log.token(held).is_some(), "only the wait ended");
    assert!(log.machine.deadlocks().is_empty());
    assert_eq!(TTL, Span::from_secs(2));
}

#[test]
fn r19_a_wait_that_asked_is_given_up_when_a_later_one_closes_the_cycle() {
    let (mut log, sessions) = with_sessions(2);
    log.acquire(sessions[0], "a");
    log.acquire(sessions[1], "b");
    let terms = Terms { blocking: true, break_deadlock: true, ..Terms::default() };
    let join = Log::join_op("b", Face::Lock);
    let Reply::Joined(queued) = log.call(sessions[0], Op::JoinOn(join, terms)).reply else { panic!() };
    let closing = log.call(sessions[1], Op::Join(Log::join_op("a", Face::Lock)));
    assert!(matches!(closing.reply, Reply::Joined(_)));
    assert!(log.machine.total(queued.entry).is_none());
    let told_victim = closing.events.iter().any(|event| {
        matches!(event, Event::Change { own, change, .. }
            if own.contains(&sessions[0]) && change.reason == Reason::Deadlock)
    });
    assert!(told_victim, "it is told, and why: {:?}", closing.events);
}

#[test]
fn r19_one_deadlocked_reader_is_enough_to_keep_a_writer_out_for_ever() {
    let (mut log, sessions) = with_sessions(3);
    let shared = || Join { mode: Mode::Shared, ..Log::join_op("x", Face::Lock) };
    log.join(sessions[0], shared());
    log.join(sessions[1], shared());
    log.acquire(sessions[2], "y");
    log.acquire(sessions[2], "x");
    assert!(log.machine.deadlock_behind(&name("x")).is_none(), "both readers can go on");
    log.acquire(sessions[0], "y");
    let found = log.machine.deadlock_behind(&name("x")).expect("one of them cannot");
    assert_eq!(
        found.sentence(),
        "session 1 waits for y, held by session 3; session 3 waits for x, held by session 1"
    );
    assert_eq!((found.tie(), found.newest().map(|edge| edge.session)), (Tie::Cycle, Some(sessions[0])));
    assert_eq!(log.machine.deadlocks(), [found]);
}

#[test]
fn waiters_are_told_in_the_order_of_their_turns_whatever_their_numbers_are() {
    let mut log = Log::founded();
    let policy = PolicyWish { numbering: Some(Numbering::Stable), ..PolicyWish::default() };
    let join = |log: &mut Log, secret: u128| {
        let session = log.open(secret);
        let op = Op::Join(Join { policy: policy.clone(), ..Log::join_op("g", Face::Group) });
        let entry = log.call(session, op);
        (session, entry)
    };
    let (_, _) = join(&mut log, 1);
    let (second, joined) = join(&mut log, 2);
    let third = join(&mut log, 3).0;
    let Reply::Joined(total) = joined.reply else { panic!("{joined:?}") };
    log.call(second, Op::Release { entry: total.entry });
    let late = join(&mut log, 4).0;
    let view = log.machine.group_view(&name("g"), 10).unwrap();
    let numbers: Vec<_> = view.members.iter().map(|member| member.session).collect();
    assert_eq!(numbers[1], late, "the lowest number that is free is the newcomer's");
    let turns: Vec<_> = view.waiters.iter().map(|waiter| (waiter.session, waiter.position)).collect();
    assert_eq!(turns, [(third, 2), (late, 3)], "its turn is the last all the same");
}

/// Two seats, one holder of which can go on, and one that would share: it waits for both, so the deadlock
/// with the other one is seen from the name too, however far back it stands. One that would be alone is not
/// kept out by it.
#[test]
fn r19_a_wait_that_another_holder_may_end_is_no_part_of_a_deadlock() {
    let (mut log, sessions) = with_sessions(2);
    let policy = PolicyWish { seats: Some(2), ..PolicyWish::default() };
    let pool = || Join { policy: policy.clone(), ..Log::join_op("pool", Face::Semaphore) };
    log.join(sessions[0], pool());
    let other = log.join(sessions[1], pool()).entry;
    log.acquire(sessions[0], "key");
    log.acquire(sessions[0], "key");
    let third = log.join(sessions[0], pool()).entry;
    let found = log.machine.deadlocks();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].sentence(), "session 1 waits for key, held by session 1");
    assert!(log.machine.deadlock_behind(&name("pool")).is_none(), "session 2 may end the wait for it");
    log.release(sessions[1], other);
    let holders = log.machine.group_view(&name("pool"), 1).unwrap().holders;
    assert!(holders.iter().any(|holder| holder.entry == third), "and does");
}

#[test]
fn r19_a_deadlock_of_one_that_would_share_several_seats_is_seen_by_name() {
    for ahead in [0, 1, 300] {
        let (mut log, sessions) = with_sessions(4);
        let policy = PolicyWish { seats: Some(2), ..PolicyWish::default() };
        let pool = |mode| Join { mode, policy: policy.clone(), ..Log::join_op("pool", Face::Semaphore) };
        log.join(sessions[0], pool(Mode::Exclusive));
        let free = log.join(sessions[1], pool(Mode::Exclusive)).entry;
        log.acquire(sessions[2], "key");
        (0..ahead).for_each(|_| _ = log.join(sessions[3], pool(Mode::Exclusive)));
        log.join(sessions[2], pool(Mode::Shared));
        assert!(log.machine.deadlock_behind(&name("pool")).is_none(), "both holders can go on");
        log.acquire(sessions[0], "key");
        let found = log.machine.deadlocks();
        assert_eq!(found.len(), 1);
        assert_eq!(
            found[0].sentence(),
            "session 1 waits for key, held by session 3; session 3 waits for pool, held by session 1"
        );
        for of in ["pool", "key"] {
            let seen = log.machine.group_view(&name(of), 400).expect("it is in use");
            assert_eq!(seen.deadlock.as_ref(), Some(&found[0]), "from {of}, with {ahead} ahead");
            assert_eq!(seen.held_for_ever, of == "key", "whoever would be alone has the other seat");
        }
        log.release(sessions[1], free);
        let holders = log.machine.group_view(&name("pool"), 1).unwrap().holders;
        let next = holders.get(1).map(|holder| holder.session);
        assert_eq!(next, (ahead > 0).then_some(sessions[3]), "and it has");
    }
}
