//! Each rule of authority that the state machine alone can break, as a history that breaks a system
//! without it. `mutants.rs` takes each rule out and expects its test to fail.

use crate::log::{Log, TTL, name, told};
use quorate_core::id::*;
use quorate_core::state_machine::*;
use quorate_core::time::Span;

fn two_seats(group: &str) -> Join {
    let policy = PolicyWish { seats: Some(2), ..PolicyWish::default() };
    Join { policy, ..Log::join_op(group, Face::Group) }
}

#[test]
fn r1_wall_time_is_a_label() {
    let run = |clock: fn(u64) -> u64| {
        let mut log = Log::default();
        log.at = clock(0);
        log.apply(Command::Found { cluster: ClusterId(7), limits: Limits::default() });
        log.begin();
        let mut seen = Vec::new();
        for n in 1..=3 {
            log.at = clock(n);
            let session = log.open(n.into());
            seen.push((log.member(session, "g").place.ordinal, log.machine.last_token()));
        }
        log.at = clock(9);
        log.expire(SessionId(1));
        seen.push((None, log.machine.last_token()));
        (seen, log.line("g"))
    };
    let right = run(|n| 1_000 * n);
    let jumps = run(|n| if n % 2 == 0 { 10_000_000 } else { 3 });
    assert_eq!(right, jumps, "a clock that jumps changes labels only");
}

#[test]
fn r2_an_expiry_compares_replicated_fields_only() {
    let mut log = Log::founded();
    let session = log.open(1);
    let entry = log.acquire(session, "orders").entry;
    let (stale, ..) = log.machine.session_view(session).unwrap().lease;
    let reign = log.machine.reign();
    log.apply(Command::Mark { reign, sessions: vec![session] });
    let timer = Timer::Lease { session, generation: stale };
    let fired = log.apply(Command::TimerFired { timer, reign, silent: TTL });
    assert_eq!(fired.reply, Reply::Refused(Refusal::NotDue), "a lease renewed by an entry lives");
    assert!(log.token(entry).is_some());
    log.expire(session);
    assert!(log.machine.total(entry).is_none(), "the living timer ends it");
}

#[test]
fn r4_an_expiry_of_an_older_reign_is_refused() {
    let mut log = Log::founded();
    let session = log.open(1);
    log.acquire(session, "orders");
    let (generation, old_reign, _) = log.machine.session_view(session).unwrap().lease;
    log.begin();
    let timer = Timer::Lease { session, generation };
    let fired = log.apply(Command::TimerFired { timer, reign: old_reign, silent: TTL });
    assert_eq!(fired.reply, Reply::Refused(Refusal::NotDue));
    assert!(log.machine.session_view(session).is_some());
    let marked = log.apply(Command::Mark { reign: old_reign, sessions: vec![session] });
    assert_eq!(marked.reply, Reply::Refused(Refusal::NotDue), "nor does it renew any more");
}

#[test]
fn r5_a_checkpoint_shortens_only_what_this_reign_has_not_renewed() {
    let mut log = Log::founded();
    let renewed = log.open(1);
    let silent = log.open(2);
    let reign = log.begin();
    log.apply(Command::Mark { reign, sessions: vec![renewed] });
    let left = Span::from_millis(300);
    log.apply(Command::Checkpoint { reign, remaining: vec![(renewed, left), (silent, left)] });
    let lease = |log: &Log, id| log.machine.session_view(id).unwrap().lease;
    assert_eq!(lease(&log, renewed).2, Span::from_millis(2_020), "renewed: all of it, with drift");
    assert_eq!(lease(&log, silent).2, left, "silent: what was last counted, no more");
    let next = log.begin();
    assert_eq!(lease(&log, silent).2, left, "the next reign starts there, so leases end");
    log.apply(Command::Checkpoint { reign: next, remaining: vec![(silent, Span::from_secs(9))] });
    assert_eq!(lease(&log, silent).2, left, "and a remainder never grows");
}

#[test]
fn r7_a_lease_above_the_ceiling_is_an_error_that_says_so() {
    let mut log = Log::founded();
    let open = |ttl| Command::Open {
        secret: Secret(9),
        ttl,
        on_disconnect: OnDisconnect::Hold,
        label: String::new(),
    };
    let Reply::Refused(refusal) = log.apply(open(Span::from_secs(601))).reply else { panic!() };
    assert_eq!(
        refusal.to_string(),
        "the limit for a lease is 10 min, and this would be 601 s; nothing was changed"
    );
    let Reply::Opened(opened) = log.apply(open(Span::from_secs(600))).reply else { panic!() };
    assert_eq!(opened.ttl, Span::from_secs(600), "the effective one is answered");
}

#[test]
fn r8_order_does_not_depend_on_who_reconnects_first() {
    let mut log = Log::founded();
    let sessions: Vec<_> = (1..=3).map(|n| log.open(n)).collect();
    for session in &sessions {
        log.member(*session, "g");
    }
    let before = log.line("g");
    log.begin();
    for (n, session) in sessions.iter().enumerate().rev() {
        let secret = Secret(n as u128 + 1);
        log.apply(Command::Attach { session: *session, secret, lapsed: false });
    }
    assert_eq!(log.line("g"), before);
    assert_eq!(before, "P1:1* P2:2 P3:3");
}

#[test]
fn r10_two_grants_in_one_entry_differ() {
    let mut log = Log::founded();
    let (first, second) = (log.open(1), log.open(2));
    log.join(first, two_seats("g"));
    log.join(first, two_seats("g"));
    let waits = [log.join(second, two_seats("g")).entry, log.join(second, two_seats("g")).entry];
    log.expire(first);
    let tokens: Vec<_> = waits.iter().map(|entry| log.token(*entry).unwrap()).collect();
    assert!(tokens[0] < tokens[1], "one expiry granted both seats: {tokens:?}");
}

#[test]
fn r10_tokens_grow_over_all_names_through_delete_and_snapshot() {
    let mut log = Log::founded();
    let session = log.open(1);
    let mut last = Token(0);
    for lock in ["a", "b", "a", "c", "a"] {
        let taken = log.acquire(session, lock);
        let token = taken.place.seat.unwrap().token;
        assert!(token > last, "{lock}: {token} after {last}");
        assert!(token.0 >= log.index, "a token is not below its log index");
        last = token;
        log.release(session, taken.entry);
        let group = name(lock);
        let op = ToolOp::DeleteGroup { group, created: None };
        log.apply(Command::Tool { client: ClientId(1), op });
        log.machine = StateMachine::from_snapshot(&log.machine.to_snapshot()).unwrap();
    }
}

#[test]
fn r11_an_operators_close_moves_no_seat_before_the_holder_stopped() {
    let mut log = Log::founded();
    let (holder, next) = (log.open(1), log.open(2));
    let held = log.acquire(holder, "orders").entry;
    let waits = log.acquire(next, "orders").entry;
    let op = ToolOp::CloseSession { session: holder, why: "maintenance".into() };
    let closing = log.apply(Command::Tool { client: ClientId(1), op });
    assert_eq!(closing.reply, Reply::Closing);
    assert!(log.token(held).is_some() && log.token(waits).is_none(), "both wait for its word");
    let refused = log.call(holder, Op::Join(Log::join_op("more", Face::Lock)));
    assert_eq!(refused.reply, Reply::Refused(Refusal::SessionClosing { session: holder }));
    log.call(holder, Op::End);
    assert!(log.token(waits).is_some(), "it has stopped and said so");
}

#[test]
fn r11_a_closed_session_is_renewed_no_more_and_its_lease_ends_it() {
    let mut log = Log::founded();
    let (holder, next) = (log.open(1), log.open(2));
    log.acquire(holder, "orders");
    let waits = log.acquire(next, "orders").entry;
    let op = ToolOp::CloseSession { session: holder, why: "maintenance".into() };
    log.apply(Command::Tool { client: ClientId(1), op });
    let before = log.machine.session_view(holder).unwrap().lease;
    let reign = log.machine.reign();
    log.apply(Command::Mark { reign, sessions: vec![holder] });
    log.apply(Command::Attach { session: holder, secret: Secret(1), lapsed: false });
    assert_eq!(log.machine.session_view(holder).unwrap().lease, before);
    let ended = log.expire(holder);
    assert!(log.token(waits).is_some());
    let Some(Event::Ended { reason, evidence, .. }) = ended.events.last() else { panic!() };
    assert_eq!(*reason, Reason::Closed);
    assert_eq!(evidence, "maintenance; it did not stop by itself, so its lease ran out");
}

#[test]
fn r11_a_group_is_deleted_only_when_it_is_empty() {
    let mut log = Log::founded();
    let session = log.open(1);
    let entry = log.member(session, "g").entry;
    let op = ToolOp::DeleteGroup { group: name("g"), created: None };
    let delete = Command::Tool { client: ClientId(1), op };
    let refused = log.apply(delete.clone()).reply;
    assert_eq!(refused, Reply::Refused(Refusal::NotEmpty { group: name("g"), members: 1 }));
    assert!(log.token(entry).is_some());
    log.release(session, entry);
    assert_eq!(log.apply(delete).reply, Reply::Done);
}

#[test]
fn r12_a_grant_names_its_seat_and_keeps_it() {
    let mut log = Log::founded();
    let sessions: Vec<_> = (1..=3).map(|n| log.open(n)).collect();
    let entries: Vec<_> = sessions.iter().map(|s| log.join(*s, two_seats("g")).entry).collect();
    let seat = |log: &Log, n: usize| log.place(entries[n]).seat.map(|seat| seat.no.0);
    assert_eq!((seat(&log, 0), seat(&log, 1), seat(&log, 2)), (Some(0), Some(1), None));
    let kept = log.token(entries[1]);
    log.release(sessions[0], entries[0]);
    assert_eq!((seat(&log, 1), seat(&log, 2)), (Some(1), Some(0)), "nobody changes seats");
    assert_eq!(log.token(entries[1]), kept);
}

#[test]
fn r14_active_means_has_a_token() {
    let mut log = Log::founded();
    let sessions: Vec<_> = (1..=3).map(|n| log.open(n)).collect();
    let entries: Vec<_> = sessions.iter().map(|s| log.member(*s, "g").entry).collect();
    let holder = log.token(entries[0]);
    for entry in &entries[1..] {
        let total = log.machine.total(*entry).unwrap();
        assert_eq!(total.place.role, Role::Standby);
        assert_eq!(total.place.seat, None, "a standby has no token of its own");
        assert_eq!(total.holder_token, holder, "but is told the holder's");
    }
}

#[test]
fn r15_waiters_on_a_lock_are_told_of_their_own_grant_only() {
    let mut log = Log::founded();
    let holder = log.open(1);
    let held = log.acquire(holder, "orders").entry;
    let waiters: Vec<_> = (2..=50).map(|n| log.open(n)).collect();
    for waiter in &waiters {
        let applied = log.call(*waiter, Op::Join(Log::join_op("orders", Face::Lock)));
        assert!(told(&applied.events).is_empty(), "a new waiter is nobody's news");
    }
    let applied = log.release(holder, held);
    let [Event::Change { to, own, change }] = &applied.events[..] else { panic!() };
    assert!(to.is_empty());
    assert_eq!(own, &[waiters[0]], "one grant, one told");
    assert_eq!(change.changed.len(), 2, "the one that left and the one that took the seat");
}

#[test]
fn r16_a_release_frees_what_it_names_and_nothing_else() {
    let mut log = Log::founded();
    let (me, other) = (log.open(1), log.open(2));
    let first = log.acquire(me, "orders").entry;
    log.release(me, first);
    let second = log.acquire(me, "orders").entry;
    let again = log.release(me, first);
    assert_eq!(again.reply, Reply::Refused(Refusal::NoEntry { entry: first }));
    assert!(log.token(second).is_some(), "a late release does not free the newer grant");
    let foreign = log.release(other, second);
    assert_eq!(foreign.reply, Reply::Refused(Refusal::NoEntry { entry: second }));
    assert!(log.token(second).is_some(), "nor does another session's");
}

#[test]
fn r16_a_cancel_that_races_its_grant_says_which_came_first() {
    let mut log = Log::founded();
    let (holder, waiter) = (log.open(1), log.open(2));
    let held = log.acquire(holder, "orders").entry;
    let waits = log.acquire(waiter, "orders").entry;
    assert_eq!(log.call(waiter, Op::Cancel { entry: waits }).reply, Reply::Cancelled);
    let waits = log.acquire(waiter, "orders").entry;
    log.release(holder, held);
    let late = log.call(waiter, Op::Cancel { entry: waits }).reply;
    let seat = log.place(waits).seat.unwrap();
    assert_eq!(late, Reply::Granted { seat }, "it is held, and must be released");
}

#[test]
fn r17_the_first_to_state_a_policy_field_sets_it() {
    let mut log = Log::founded();
    let sessions: Vec<_> = (1..=4).map(|n| log.open(n)).collect();
    log.member(sessions[0], "g");
    log.join(sessions[1], two_seats("g"));
    let policy = PolicyWish { seats: Some(3), ..PolicyWish::default() };
    let join = Join { policy, ..Log::join_op("g", Face::Group) };
    let Reply::Refused(refusal) = log.call(sessions[2], Op::Join(join)).reply else { panic!() };
    assert_eq!(
        refusal.to_string(),
        "g has seats = 2, stated by an earlier member, and this call states 3; leave it out or state \
         the same"
    );
    log.member(sessions[3], "g");
    assert_eq!(log.line("g"), "P1:1* :2* P4:3", "an omitted field is a wildcard");
}

#[test]
fn r17a_a_name_has_one_face() {
    let mut log = Log::founded();
    let (one, two) = (log.open(1), log.open(2));
    let entry = log.member(one, "x").entry;
    let asked = log.call(two, Op::Join(Log::join_op("x", Face::Lock)));
    let Reply::Refused(refusal) = asked.reply else { panic!() };
    assert_eq!(
        refusal.to_string(),
        "x is a group and cannot be used as a lock while anybody is in it; choose another name"
    );
    log.release(one, entry);
    assert!(log.acquire(two, "x").place.seat.is_some(), "an empty name may take another");
}

#[test]
fn r18_only_the_newest_connection_of_a_session_that_asked_for_it_releases() {
    let mut log = Log::founded();
    let hold = log.open_with(1, OnDisconnect::Hold);
    let release = log.open_with(2, OnDisconnect::Release);
    let held = log.acquire(hold, "a").entry;
    let given = log.acquire(release, "b").entry;
    let old = log.generation(release);
    log.apply(Command::Attach { session: release, secret: Secret(2), lapsed: false });
    let closed =
        |log: &mut Log, session, generation| log.apply(Command::Disconnected { session, generation }).reply;
    assert_eq!(closed(&mut log, release, old), Reply::Refused(Refusal::NotDue), "an older connection");
    let generation = log.generation(hold);
    assert_eq!(closed(&mut log, hold, generation), Reply::Refused(Refusal::NotDue), "it holds");
    assert!(log.token(held).is_some() && log.token(given).is_some());
    let generation = log.generation(release);
    assert_eq!(closed(&mut log, release, generation), Reply::Done);
    assert!(log.machine.total(given).is_none());
}

#[test]
fn r21_a_call_is_applied_once_and_answered_alike() {
    let mut log = Log::founded();
    let session = log.open(1);
    let op = || Op::Join(Log::join_op("orders", Face::Lock));
    let (one, none) = (RequestId(1), RequestId(0));
    let first = log.call_as(session, one, none, op()).reply;
    let again = log.call_as(session, one, none, op()).reply;
    assert_eq!(first, again);
    let view = log.machine.group_view(&name("orders"), 10).unwrap();
    assert_eq!(view.summary.members, 1, "it queued once");
    let generation = log.generation(session);
    let acknowledged = Command::Call {
        session,
        generation,
        request: RequestId(2),
        acknowledged: one,
        op: Op::Release { entry: EntryId(99) },
    };
    log.apply(acknowledged);
    let late = log.call_as(session, one, none, op()).reply;
    assert_eq!(late, Reply::Refused(Refusal::Forgotten { request: one }), "unknown, not *not done*");
    assert_eq!(log.machine.group_view(&name("orders"), 10).unwrap().summary.members, 1);
}

#[test]
fn r21_a_retried_opening_finds_its_session() {
    let mut log = Log::founded();
    let first = log.open(1);
    let again = log.open(1);
    assert_eq!(first, again);
    assert_eq!(log.machine.session_list(None, 10).len(), 1);
}

#[test]
fn r21_a_retried_wait_attaches_to_the_queued_one() {
    let mut log = Log::founded();
    let (holder, waiter) = (log.open(1), log.open(2));
    let held = log.acquire(holder, "orders").entry;
    let op = || Op::Join(Log::join_op("orders", Face::Lock));
    let Reply::Joined(queued) = log.call_as(waiter, RequestId(1), RequestId(0), op()).reply else { panic!() };
    log.release(holder, held);
    let Reply::Joined(now) = log.call_as(waiter, RequestId(1), RequestId(0), op()).reply else { panic!() };
    assert_eq!(now.entry, queued.entry);
    assert!(now.place.seat.is_some(), "and is told what has become of it");
}

#[test]
fn r22_the_newest_connection_wins_and_the_secret_proves_it() {
    let mut log = Log::founded();
    let session = log.open(1);
    let stolen = Command::Attach { session, secret: Secret(2), lapsed: false };
    assert_eq!(log.apply(stolen).reply, Reply::Refused(Refusal::WrongSecret { session }));
    let old = log.generation(session);
    log.apply(Command::Attach { session, secret: Secret(1), lapsed: false });
    let op = Op::Join(Log::join_op("orders", Face::Lock));
    let call =
        Command::Call { session, generation: old, request: RequestId(1), acknowledged: RequestId(0), op };
    let current = log.generation(session);
    let refused = Refusal::StaleConnection { session, generation: old, current };
    assert_eq!(log.apply(call).reply, Reply::Refused(refused));
    assert!(log.machine.group_view(&name("orders"), 10).is_none());
}

#[test]
fn r25_a_lapsed_holder_acts_again_only_under_a_new_token() {
    let mut log = Log::founded();
    let (holder, next) = (log.open(1), log.open(2));
    let held = log.member(holder, "g").entry;
    log.member(next, "g");
    let before = log.token(held).unwrap();
    let back = log.apply(Command::Attach { session: holder, secret: Secret(1), lapsed: true });
    let after = log.token(held).unwrap();
    assert!(after > before);
    assert_eq!(log.line("g"), "P1:1* P2:2", "it keeps its place");
    assert_eq!(told(&back.events), ["g renewed: P1 1*>1*"]);
    let Reply::Opened(opened) = back.reply else { panic!() };
    assert_eq!(opened.totals[0].place.seat.unwrap().token, after);
}

#[test]
fn r25_an_expired_member_takes_the_tail() {
    let mut log = Log::founded();
    for n in 1..=5 {
        let session = log.open(n);
        log.member(session, "g");
    }
    assert_eq!(log.line("g"), "P1:1* P2:2 P3:3 P4:4 P5:5", "t1");
    let expired = log.expire(SessionId(1));
    assert_eq!(log.line("g"), "P2:1* P3:2 P4:3 P5:4", "t2");
    assert_eq!(
        told(&expired.events),
        ["g expired: P1 1*>gone, P2 2>1*, P3 3>2, P4 4>3, P5 5>4"],
        "one change tells every step"
    );
    let back = log.open(11);
    let again = Join { name: "P1".into(), ..Log::join_op("g", Face::Group) };
    log.join(back, again);
    assert_eq!(log.line("g"), "P2:1* P3:2 P4:3 P5:4 P1:5", "t3");
}

#[test]
fn r27_limits_come_from_the_log() {
    let mut log = Log::default();
    let limits = Limits { queue: 2, sessions: 3, metadata_bytes: 4, seats: 2, ..Limits::default() };
    log.apply(Command::Found { cluster: ClusterId(7), limits });
    log.begin();
    let sessions: Vec<_> = (1..=3).map(|n| log.open(n)).collect();
    let refused = |reply: Reply| match reply {
        Reply::Refused(Refusal::Limit { what, max, asked }) => format!("{what}: {max}, not {asked}"),
        other => panic!("{other:?}"),
    };
    let label = String::new();
    let open = Command::Open { secret: Secret(9), ttl: TTL, on_disconnect: OnDisconnect::Hold, label };
    assert_eq!(refused(log.apply(open).reply), "open sessions: 3, not 4");
    log.member(sessions[0], "g");
    log.member(sessions[1], "g");
    let third = Op::Join(Log::join_op("g", Face::Group));
    assert_eq!(refused(log.call(sessions[2], third).reply), "members of one queue: 2, not 3");
    let metadata = [("zone".to_string(), "a".to_string())].into();
    let big = Op::Join(Join { metadata, ..Log::join_op("h", Face::Group) });
    assert_eq!(refused(log.call(sessions[2], big).reply), "bytes of metadata: 4, not 5");
    let policy = PolicyWish { seats: Some(3), ..PolicyWish::default() };
    let wide = Op::Join(Join { policy, ..Log::join_op("h", Face::Group) });
    let said = refused(log.call(sessions[2], wide).reply);
    assert_eq!(said, "seats of a group (at least 1): 2, not 3");
    assert!(log.machine.group_view(&name("h"), 1).is_none(), "a refused join leaves nothing behind");
}

#[test]
fn r27_a_cluster_of_an_older_level_refuses_what_not_every_node_knows() {
    let mut log = Log::default();
    let limits = Limits { level: 1, ..Limits::default() };
    log.apply(Command::Found { cluster: ClusterId(7), limits });
    let session = log.open(1);
    let shared = Join { mode: Mode::Shared, ..Log::join_op("x", Face::Lock) };
    let policy = PolicyWish { order: Some(Order::Weight), ..PolicyWish::default() };
    let weighed = Join { policy, ..Log::join_op("x", Face::Group) };
    let semaphore = Log::join_op("x", Face::Semaphore);
    for (join, what) in
        [(shared, "a shared entry"), (weighed, "this value of order"), (semaphore, "the face semaphore")]
    {
        let Reply::Refused(refusal) = log.call(session, Op::Join(join)).reply else { panic!("{what}") };
        assert_eq!(
            refusal.to_string(),
            format!(
                "{what} is not supported at feature level 1 of this cluster, it needs level 2; nothing was \
                 changed; once every server can run that level, `quorate level raise` raises it"
            )
        );
    }
}

/// The level is raised by the log, never lowered, and a retry changes nothing and is answered alike.
#[test]
fn r27_an_older_cluster_is_raised_once_and_then_does_what_it_refused() {
    let mut log = Log::default();
    log.apply(Command::Found { cluster: ClusterId(7), limits: Limits { level: 1, ..Limits::default() } });
    let session = log.open(1);
    let raise = |log: &mut Log, from, to| {
        let op = ToolOp::RaiseLevel { from, to };
        match log.apply(Command::Tool { client: ClientId(1), op }).reply {
            Reply::Done => "done".to_string(),
            Reply::Refused(refusal) => refusal.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let shared = || Op::Join(Join { mode: Mode::Shared, ..Log::join_op("x", Face::Lock) });
    assert!(matches!(log.call(session, shared()).reply, Reply::Refused(Refusal::Unsupported { .. })));
    let lower =
        "a feature level is never lowered: the cluster is at 1, and 0 was asked for; nothing was changed";
    assert_eq!(raise(&mut log, 1, 0), lower);
    assert_eq!(
        raise(&mut log, 3, 4),
        "the cluster is at feature level 1, and not at 3 as the caller saw, so it was not raised to 4; \
         nothing was changed; look again with `quorate level show`"
    );
    assert_eq!(log.machine.limits().level, 1);
    assert_eq!(raise(&mut log, 1, 2), "done");
    assert!(matches!(log.call(session, shared()).reply, Reply::Joined(_)));
    let raised = log.machine.limits();
    assert_eq!(raise(&mut log, 1, 2), "done", "a retry whose first answer was lost");
    assert_eq!(raise(&mut log, 2, 2), "the cluster is at feature level 2 already; nothing was changed");
    assert_eq!(raise(&mut log, 2, 1), lower.replace("at 1, and 0", "at 2, and 1"));
    assert_eq!(raised, Limits::default(), "nothing else is another than in a new cluster");
    let restored = StateMachine::from_snapshot(&log.machine.to_snapshot()).unwrap();
    assert_eq!(restored.limits(), raised, "a snapshot keeps it");
}

#[test]
fn r30_a_cluster_is_founded_once_and_a_session_is_told_which() {
    let mut log = Log::founded();
    let again = log.apply(Command::Found { cluster: ClusterId(8), limits: Limits::default() });
    assert_eq!(again.reply, Reply::Refused(Refusal::Founding));
    let open = Command::Open {
        secret: Secret(1),
        ttl: TTL,
        on_disconnect: OnDisconnect::Hold,
        label: String::new(),
    };
    let Reply::Opened(opened) = log.apply(open).reply else { panic!() };
    assert_eq!(opened.cluster, ClusterId(7));
    let mut early = Log::default();
    assert_eq!(
        early.apply(Command::Begin { node: NodeId(1), nonce: 0 }).reply,
        Reply::Refused(Refusal::Founding),
        "and nothing happens before"
    );
}

#[test]
fn a_try_leaves_nothing_behind_and_names_the_holder() {
    let mut log = Log::founded();
    let (holder, other) = (log.open(1), log.open(2));
    let held = log.acquire(holder, "orders");
    let attempt = Join { wait: false, ..Log::join_op("orders", Face::Lock) };
    let Reply::Refused(refusal) = log.call(other, Op::Join(attempt.clone())).reply else { panic!() };
    let token = held.place.seat.unwrap().token;
    assert_eq!(refusal.to_string(), format!("orders is held by s1 (session 1, token {token})"));
    log.release(holder, held.entry);
    assert!(log.join(other, attempt).place.seat.is_some());
}

#[test]
fn seats_that_are_stated_later_are_filled_at_once() {
    let mut log = Log::founded();
    let sessions: Vec<_> = (1..=4).map(|n| log.open(n)).collect();
    for session in &sessions[..3] {
        log.member(*session, "g");
    }
    assert_eq!(log.line("g"), "P1:1* P2:2 P3:3");
    let policy = PolicyWish { seats: Some(3), ..PolicyWish::default() };
    let kind = MemberKind::Observer;
    log.join(sessions[3], Join { policy, kind, ..Log::join_op("g", Face::Group) });
    assert_eq!(log.line("g"), "P1:1* P2:2* P3:3*", "even if it was one who only looks on");
}

#[test]
fn a_refused_try_leaves_no_statement_behind() {
    let mut log = Log::founded();
    let sessions: Vec<_> = (1..=3).map(|n| log.open(n)).collect();
    log.member(sessions[0], "g");
    log.member(sessions[1], "g");
    let attempt = Join { wait: false, ..two_seats("g") };
    assert!(matches!(log.call(sessions[2], Op::Join(attempt)).reply, Reply::Refused(Refusal::Busy { .. })));
    assert_eq!(log.line("g"), "P1:1* P2:2");
    assert_eq!(log.machine.group_view(&name("g"), 1).unwrap().policy, PolicyWish::default());
}

#[test]
fn a_waiter_is_told_for_whom_it_waits() {
    let mut log = Log::founded();
    for n in 1..=4 {
        let session = log.open(n);
        log.acquire(session, "orders");
    }
    let view = log.machine.group_view(&name("orders"), 10).unwrap();
    let token = view.holders[0].seat.token;
    let reasons: Vec<_> = view.waiters.iter().map(|w| w.blocker.to_string()).collect();
    assert_eq!(
        reasons,
        [
            format!("the seat is held by s1 (session 1, token {token})"),
            "one is ahead in the queue: s2 (session 2)".into(),
            "2 are ahead in the queue, the first is s2 (session 2)".into(),
        ]
    );
}

#[test]
fn an_ordinal_only_member_hears_of_itself_and_an_observer_of_all() {
    let mut log = Log::founded();
    let sessions: Vec<_> = (1..=4).map(|n| log.open(n)).collect();
    let kinds = [MemberKind::Full, MemberKind::OrdinalOnly, MemberKind::Observer];
    for (session, kind) in sessions.iter().zip(kinds) {
        let join = Join { kind, name: format!("P{session}"), ..Log::join_op("g", Face::Group) };
        let total = log.join(*session, join);
        assert_eq!(total.members.is_empty(), kind == MemberKind::OrdinalOnly);
        assert_eq!(total.place.ordinal.is_none(), kind == MemberKind::Observer);
    }
    assert_eq!(log.line("g"), "P1:1* P2:2", "an observer is not in the queue");
    let applied = log.call(sessions[3], Op::Join(Log::join_op("g", Face::Group)));
    let [Event::Change { to, own, .. }] = &applied.events[..] else { panic!() };
    assert_eq!(to, &[sessions[0], sessions[2], sessions[3]]);
    assert_eq!(own, &[sessions[1]]);
}

#[test]
fn a_name_keeps_its_history_after_it_was_left() {
    let mut log = Log::founded();
    let session = log.open(1);
    for _ in 0..40 {
        let entry = log.acquire(session, "orders").entry;
        log.release(session, entry);
    }
    let view = log.machine.group_view(&name("orders"), 10).unwrap();
    assert_eq!(view.history.len(), HISTORY_MAX);
    assert_eq!(view.history.last().unwrap().reason, Reason::Leave);
    assert!(log.machine.group_list(None, 10).is_empty(), "but it is in no list");
}

#[test]
fn empty_names_are_forgotten_beyond_the_bound_and_created_ones_never() {
    let mut log = Log::founded();
    let session = log.open(1);
    let op = ToolOp::CreateGroup { group: name("kept"), face: Face::Group, policy: PolicyWish::default() };
    log.apply(Command::Tool { client: ClientId(1), op });
    for n in 0..IDLE_GROUPS_MAX + 10 {
        let entry = log.acquire(session, &format!("lock {n}")).entry;
        log.release(session, entry);
    }
    assert!(log.machine.group_view(&name("kept"), 1).is_some());
    assert!(log.machine.group_view(&name("lock 0"), 1).is_none(), "the longest empty one went");
    assert!(log.machine.group_view(&name("lock 10"), 1).is_some());
}
