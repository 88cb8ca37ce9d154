//! Commands under a lock that run commands under a lock: each has a session of its own, and one acts for the other
//! (RULES R19). Told as histories of sessions and what they hold.

use crate::log::{Log, name};
use quorate_core::id::*;
use quorate_core::state_machine::*;

const BREAKS: Terms = Terms { max_hold: None, progress: None, blocking: true, break_deadlock: true };

fn with_sessions(n: u64) -> (Log, Vec<SessionId>) {
    let mut log = Log::founded();
    let sessions = (1..=n).map(|secret| log.open(secret.into())).collect();
    (log, sessions)
}

fn acts_for(log: &mut Log, inner: SessionId, outer: SessionId) -> Applied {
    let applied = log.call(inner, Op::ActsFor { session: outer });
    assert_eq!(applied.reply, Reply::Done);
    applied
}

fn sentences(log: &Log) -> Vec<String> {
    log.machine.deadlocks().iter().map(Deadlock::sentence).collect()
}

/// s1 holds a and runs s3, which wants b; s2 holds b and runs s4, which wants a.
fn crossed(terms: &Terms) -> (Log, Vec<SessionId>, Applied) {
    let (mut log, s) = with_sessions(4);
    log.acquire(s[0], "a");
    log.acquire(s[1], "b");
    acts_for(&mut log, s[2], s[0]);
    acts_for(&mut log, s[3], s[1]);
    log.acquire(s[2], "b");
    assert!(log.machine.deadlocks().is_empty(), "session 2 can still go on");
    let last = log.call(s[3], Op::JoinOn(Log::join_op("a", Face::Lock), terms.clone()));
    (log, s, last)
}

const CROSSED: &str = "session 1 waits for b through session 3, held by session 2; session 2 waits for a through \
                       session 4, held by session 1";

#[test]
fn r19_two_nested_locks_in_opposite_order_are_a_deadlock() {
    let (log, s, _) = crossed(&Terms { break_deadlock: false, ..BREAKS });
    assert_eq!(sentences(&log), [CROSSED]);
    let found = &log.machine.deadlocks()[0];
    assert_eq!(found.tie(), Tie::Cycle);
    assert_eq!(found.newest().map(Edge::owner), Some(s[3]), "the inner one can give up");
    for lock in ["a", "b"] {
        assert_eq!(log.machine.deadlock_behind(&name(lock)).as_ref(), Some(found));
    }
    for session in &s {
        assert_eq!(log.machine.deadlock_of(*session).as_ref(), Some(found), "{session} is in it");
    }
}

#[test]
fn r19_without_the_word_that_one_acts_for_another_it_is_not_seen() {
    let (mut log, s) = with_sessions(4);
    log.acquire(s[0], "a");
    log.acquire(s[1], "b");
    log.acquire(s[2], "b");
    log.acquire(s[3], "a");
    assert!(log.machine.deadlocks().is_empty());
    acts_for(&mut log, s[2], s[0]);
    assert!(log.machine.deadlocks().is_empty());
    acts_for(&mut log, s[3], s[1]);
    assert_eq!(sentences(&log), [CROSSED], "the word may come last");
}

#[test]
fn r19_a_nested_deadlock_is_broken_where_it_was_asked_and_only_that_wait_ends() {
    let (log, s, last) = crossed(&BREAKS);
    let Reply::Refused(refusal) = last.reply else { panic!("{:?}", last.reply) };
    assert_eq!(
        refusal.to_string(),
        format!(
            "this wait would never end: {CROSSED}; it was given up, and what the session holds stays held"
        )
    );
    assert!(log.machine.deadlocks().is_empty());
    let held = |session: SessionId| log.machine.session_view(session).unwrap().places.len();
    assert_eq!([held(s[0]), held(s[1]), held(s[2]), held(s[3])], [1, 1, 1, 0]);
}

#[test]
fn r19_the_word_that_closes_a_cycle_breaks_it_too() {
    let (mut log, s) = with_sessions(3);
    log.acquire(s[0], "a");
    let asked = log.call(s[2], Op::JoinOn(Log::join_op("a", Face::Lock), BREAKS));
    assert!(matches!(asked.reply, Reply::Joined(_)), "nobody knows yet that s1 waits for it");
    let closing = acts_for(&mut log, s[2], s[0]);
    let told = closing.events.iter().any(|event| {
        matches!(event, Event::Change { own, change, .. }
            if own.contains(&s[2]) && change.reason == Reason::Deadlock)
    });
    assert!(told, "the one that waits is told: {:?}", closing.events);
    assert!(log.machine.deadlocks().is_empty());
}

#[test]
fn r19_the_same_lock_inside_itself_is_a_deadlock_of_one() {
    let (mut log, s) = with_sessions(2);
    log.acquire(s[0], "a");
    acts_for(&mut log, s[1], s[0]);
    log.acquire(s[1], "a");
    assert_eq!(sentences(&log), ["session 1 waits for a through session 2, held by session 1"]);
    assert_eq!(log.machine.deadlocks()[0].tie(), Tie::Oneself);
}

#[test]
fn r19_three_deep_the_outermost_waits_for_the_innermost() {
    let (mut log, s) = with_sessions(4);
    log.acquire(s[0], "a");
    log.acquire(s[1], "b");
    log.acquire(s[3], "c");
    acts_for(&mut log, s[1], s[0]);
    acts_for(&mut log, s[2], s[1]);
    log.acquire(s[2], "c");
    log.acquire(s[3], "a");
    let found = "session 1 waits for c through session 3, held by session 4; session 4 waits for a, held by session 1";
    assert_eq!(sentences(&log), [found]);
    log.call(s[1], Op::End);
    assert!(
        log.machine.deadlocks().is_empty(),
        "who is in the middle has ended: nobody says who waits for whom"
    );
}

#[test]
fn r19_a_seat_that_an_outer_session_gets_closes_the_cycle_of_its_inner_one() {
    let (mut log, s) = with_sessions(3);
    let first = log.acquire(s[1], "a").entry;
    log.acquire(s[0], "a");
    acts_for(&mut log, s[2], s[0]);
    let asked = log.call(s[2], Op::JoinOn(Log::join_op("a", Face::Lock), BREAKS));
    let Reply::Joined(wait) = asked.reply else { panic!("session 2 can go on: {:?}", asked.reply) };
    log.release(s[1], first);
    assert!(log.machine.deadlocks().is_empty());
    assert!(log.machine.total(wait.entry).is_none(), "it asked to be given up");
}

#[test]
fn r19_it_ends_with_either_session() {
    for ends in 0..4 {
        let (mut log, s, _) = crossed(&Terms { break_deadlock: false, ..BREAKS });
        log.call(s[ends], Op::End);
        assert!(log.machine.deadlocks().is_empty(), "session {} has ended", s[ends]);
    }
    let (mut log, s, _) = crossed(&Terms { break_deadlock: false, ..BREAKS });
    log.expire(s[0]);
    let session = log.open(9);
    log.acquire(session, "a");
    assert!(log.machine.deadlocks().is_empty(), "session 3 acts for nobody now");
}

#[test]
fn r19_the_last_word_counts_and_some_words_say_nothing() {
    let (mut log, s, _) = crossed(&Terms { break_deadlock: false, ..BREAKS });
    acts_for(&mut log, s[3], s[3]);
    acts_for(&mut log, s[3], SessionId(99));
    assert_eq!(sentences(&log), [CROSSED], "neither of them is another session");
    let other = log.open(9);
    acts_for(&mut log, s[3], other);
    assert!(log.machine.deadlocks().is_empty(), "session 2 waits for nothing now");
    acts_for(&mut log, s[0], s[3]);
    acts_for(&mut log, s[3], s[0]);
    // In a circle each acts for the other.
    assert_eq!(log.machine.deadlock_behind(&name("a")).map(|found| found.tie()), Some(Tie::Oneself));
    assert_eq!(log.machine.deadlocks().len(), 1);
}

#[test]
fn r19_who_acts_for_whom_is_in_a_snapshot() {
    let (log, s, _) = crossed(&Terms { break_deadlock: false, ..BREAKS });
    let mut read = StateMachine::from_snapshot(&log.machine.to_snapshot()).unwrap();
    assert_eq!(read, log.machine);
    assert_eq!(read.deadlocks(), log.machine.deadlocks());
    let end = Command::Call {
        session: s[3],
        generation: log.generation(s[3]),
        request: RequestId(99),
        acknowledged: RequestId(0),
        op: Op::End,
    };
    let proposal = Proposal { at: quorate_core::time::Wall(0), command: end };
    read.apply(LogIndex(log.index + 1), &proposal);
    assert!(read.deadlocks().is_empty());
}

#[test]
fn r27_an_older_cluster_refuses_it() {
    let mut log = Log::default();
    let limits = Limits { level: WHOLE_GROUP - 1, ..Limits::default() };
    log.apply(Command::Found { cluster: ClusterId(7), limits });
    log.begin();
    let (one, two) = (log.open(1), log.open(2));
    let reply = log.call(two, Op::ActsFor { session: one }).reply;
    assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
}
