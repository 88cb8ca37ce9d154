//! What holds after every step of a random history, each as a function of its own.

use crate::model::{Facts, Model, Views};
use quorate_core::id::*;
use quorate_core::state_machine::*;
use quorate_core::time::Span;
use std::collections::{BTreeMap, BTreeSet};

/// One step: what was, what came, what is.
pub(crate) struct Step<'a> {
    pub(crate) command: &'a Command,
    pub(crate) applied: &'a Applied,
    pub(crate) facts: &'a Facts,
    pub(crate) machine: &'a StateMachine,
    pub(crate) was: &'a Views,
    pub(crate) is: &'a Views,
}

/// What is checked after each step.
pub(crate) const ALL: [fn(&Step<'_>, &Model); 20] = [
    r2_a_late_or_doubled_command_changes_nothing,
    sessions_are_those_that_nobody_ended,
    tasks_are_those_that_were_armed,
    r11_seats_are_never_beyond_the_policy,
    r10_tokens_grow_over_all_names,
    ordinals_are_as_the_numbering_says,
    dense_order_is_kept,
    minimal_move_moves_one,
    r13_shared_and_exclusive_are_never_together,
    r11_a_live_seat_moves_only_on_the_holders_word_or_with_its_lease,
    r12_a_seat_is_kept_by_who_has_it,
    nobody_waits_without_a_cause,
    no_seat_is_free_while_somebody_waits,
    nobody_is_overtaken_but_by_the_order,
    r14_roles_say_who_acts_and_preemption_never_freezes_a_holder,
    r15_lock_faces_tell_only_of_seats,
    r16_a_release_frees_what_it_names_and_nothing_else,
    r17_a_statement_holds_while_anybody_is_there,
    r19_deadlocks_are_real_and_broken_where_asked,
    r20_stalled_work_is_shown,
];

fn seats(views: &Views) -> BTreeMap<EntryId, Seat> {
    views.values().flat_map(|view| &view.holders).map(|holder| (holder.entry, holder.seat)).collect()
}

fn entries(views: &Views) -> BTreeSet<EntryId> {
    views.values().flat_map(|view| &view.members).map(|member| member.entry).collect()
}

fn tool<'a>(step: &Step<'a>) -> Option<(&'a ToolOp, &'a Reply)> {
    match step.command {
        Command::Tool { op, .. } => Some((op, &step.applied.reply)),
        _ => None,
    }
}

/// RULES R2, R18, R21, R22: what is late, doubled, of an older connection or of an older reign changes no group,
/// and a call that was answered is answered alike.
pub(crate) fn r2_a_late_or_doubled_command_changes_nothing(step: &Step<'_>, _: &Model) {
    if !step.facts.void {
        let late = matches!(&step.applied.reply, Reply::Refused(Refusal::NotDue));
        assert!(!late, "{:?} was due", step.command);
        return;
    }
    assert_eq!(step.was, step.is, "{:?} changed something", step.command);
    assert!(step.applied.events.is_empty(), "{:?}", step.applied.events);
    match (&step.facts.answered, &step.applied.reply) {
        (None, Reply::Refused(_)) => {}
        (None, other) => panic!("{:?} was not refused: {other:?}", step.command),
        (Some(Reply::Joined(then)), Reply::Joined(now)) => assert_eq!(then.entry, now.entry),
        (Some(Reply::Joined(then)), Reply::Refused(Refusal::NoEntry { entry })) => {
            assert_eq!(then.entry, *entry);
            assert!(step.machine.total(*entry).is_none(), "its place is still there");
        }
        (Some(then), now) => assert_eq!(then, now, "answered alike (R21)"),
    }
}

/// A session ends only by its own call, with its lease, or by a hangup that it takes as a leave.
pub(crate) fn sessions_are_those_that_nobody_ended(step: &Step<'_>, model: &Model) {
    let views = step.machine.session_list(None, usize::MAX);
    let alive: Vec<SessionId> = views.iter().map(|view| view.session).collect();
    assert!(alive.iter().eq(model.sessions.keys()), "{alive:?}");
    for view in views {
        let known = &model.sessions[&view.session];
        assert_eq!(view.generation, known.connection);
        assert_eq!(view.lease.0, known.lease, "a closed session is renewed no more (R11)");
        assert_eq!(view.closing.is_some(), known.closing);
        let here = |(name, entry, ..): &(Name, EntryId, Option<Seat>, Option<Blocker>)| {
            let group = &step.is[name];
            group.members.iter().any(|m| m.entry == *entry)
                || group.observers.iter().any(|o| o.1 == view.session)
        };
        assert!(view.places.iter().all(here), "a place of a session is a place of a queue");
    }
    let orphan = |m: &&Member| m.place.role != Role::Reserved && !model.sessions.contains_key(&m.session);
    let orphans: Vec<_> = step.is.values().flat_map(|view| &view.members).filter(orphan).collect();
    assert!(orphans.is_empty(), "a place outlived its session: {orphans:?}");
}

/// The lease keeper hears of every task, and of every one that was given up.
pub(crate) fn tasks_are_those_that_were_armed(step: &Step<'_>, model: &Model) {
    let tasks: BTreeSet<TaskId> = step.machine.tasks().into_iter().map(|(task, _)| task).collect();
    assert_eq!(tasks, model.armed);
}

/// Seats never beyond the policy, but for holders that were asked to stop; and never a grant beyond it.
pub(crate) fn r11_seats_are_never_beyond_the_policy(step: &Step<'_>, _: &Model) {
    let before = seats(step.was);
    for view in step.is.values().filter(|view| view.shared == 0 && view.summary.face != Face::Barrier) {
        let numbers: BTreeSet<_> = view.holders.iter().map(|holder| holder.seat.no).collect();
        assert_eq!(numbers.len(), view.holders.len(), "one holder a seat (R12)");
        for holder in view.holders.iter().filter(|holder| holder.seat.no.0 >= view.summary.seats) {
            assert!(holder.draining.is_some(), "a seat beyond the policy that nobody asked for");
            let had = before.get(&holder.entry).map(|seat| seat.no);
            assert_eq!(had, Some(holder.seat.no), "a seat beyond the policy was given");
        }
    }
}

/// Every new token is greater than all before it; two grants in one entry differ, but for one phase or round.
pub(crate) fn r10_tokens_grow_over_all_names(step: &Step<'_>, model: &Model) {
    let before: BTreeSet<Token> = seats(step.was).values().map(|seat| seat.token).collect();
    let mut fresh = BTreeMap::new();
    for view in step.is.values() {
        for holder in view.holders.iter().filter(|holder| !before.contains(&holder.seat.token)) {
            let together = view.shared > 0 || view.summary.face == Face::Barrier;
            assert!(holder.seat.token > model.greatest, "{} after {}", holder.seat.token, model.greatest);
            assert!(holder.seat.token <= step.machine.last_token());
            let other = fresh.insert(holder.seat.token, view.summary.name.clone());
            assert!(other.is_none_or(|other| together && other == view.summary.name), "one token twice");
        }
    }
}

/// Ordinals are distinct and never 0; 1..n unless they are kept for life.
pub(crate) fn ordinals_are_as_the_numbering_says(step: &Step<'_>, _: &Model) {
    for view in step.is.values() {
        let ordinals: Vec<u64> = view.members.iter().filter_map(|m| m.place.ordinal).map(|o| o.0).collect();
        let distinct: BTreeSet<u64> = ordinals.iter().copied().collect();
        assert_eq!(distinct.len(), ordinals.len(), "ordinals are distinct: {ordinals:?}");
        assert!(!distinct.contains(&0), "0 is never used: {ordinals:?}");
        if view.policy.numbering != Some(Numbering::Stable) {
            assert!(ordinals.iter().copied().eq(1..=ordinals.len() as u64), "1..n: {ordinals:?}");
            continue;
        }
        let was = step.was.get(&view.summary.name);
        let known = was.filter(|was| was.policy.numbering == Some(Numbering::Stable));
        // Where the numbering has just been stated, everybody is numbered as they stood.
        let Some(known) = known.map(numbers) else { continue };
        let mut taken: BTreeSet<u64> = known.values().map(|ordinal| ordinal.0).collect();
        for (entry, ordinal) in numbers(view) {
            match known.get(&entry) {
                Some(known) => assert_eq!(ordinal, *known, "a stable number is kept for life"),
                None if returns(step) => {}
                None => {
                    let hole = (1..).find(|n| !taken.contains(n)).unwrap();
                    assert_eq!(ordinal.0, hole, "a joiner fills the lowest hole");
                    taken.insert(hole);
                }
            }
        }
    }
}

fn numbers(view: &GroupView) -> BTreeMap<EntryId, Ordinal> {
    view.members.iter().filter_map(|m| Some((m.entry, m.place.ordinal?))).collect()
}

fn returns(step: &Step<'_>) -> bool {
    let back =
        |event: &Event| matches!(event, Event::Change { change, .. } if change.reason == Reason::Returned);
    step.applied.events.iter().any(back)
}

/// Dense numbers by arrival: those that stay keep their order, and nobody's number grows (F7, F9).
pub(crate) fn dense_order_is_kept(step: &Step<'_>, model: &Model) {
    for view in step.is.values() {
        let dense = matches!(view.policy.numbering, None | Some(Numbering::Dense));
        let plain = view.policy.order != Some(Order::Weight) && view.policy.rejoin.is_none();
        let stopped = matches!(step.command, Command::Call { op: Op::Stopped { .. }, .. });
        let promised = view.members.iter().any(|member| model.front.contains(&member.entry));
        let Some(was) = step.was.get(&view.summary.name) else { continue };
        if !dense || !plain || stopped || promised || view.summary.face != Face::Group {
            continue;
        }
        if step.was.values().flat_map(|view| &view.members).any(|m| m.place.role == Role::Pending) {
            continue;
        }
        let known = numbers(was);
        let stay: Vec<&Member> = view.members.iter().filter(|m| known.contains_key(&m.entry)).collect();
        for pair in stay.windows(2) {
            assert!(known[&pair[0].entry] < known[&pair[1].entry], "those that stay keep their order");
        }
        for member in stay {
            assert!(member.place.ordinal <= Some(known[&member.entry]), "no number grows");
        }
    }
}

/// Where the last moves into the hole, one departure moves one number.
pub(crate) fn minimal_move_moves_one(step: &Step<'_>, _: &Model) {
    for (name, view) in step.is {
        let Some(was) = step.was.get(name) else { continue };
        if [was, view].iter().any(|view| view.policy.numbering != Some(Numbering::MinimalMove)) {
            continue;
        }
        let (known, now) = (numbers(was), numbers(view));
        let moved = known.iter().filter(|(entry, old)| now.get(entry).is_some_and(|new| new != *old)).count();
        let left = known.keys().filter(|entry| !now.contains_key(entry)).count();
        assert!(moved <= left, "{moved} moved for {left} that left");
    }
}

/// Shared and exclusive never together; one phase, one token (RULES R13).
pub(crate) fn r13_shared_and_exclusive_are_never_together(step: &Step<'_>, _: &Model) {
    for view in step.is.values().filter(|view| view.shared > 0) {
        assert_eq!(view.shared, view.holders.len() as u64, "shared and exclusive together");
        let tokens: BTreeSet<_> = view.holders.iter().map(|holder| holder.seat.token).collect();
        assert_eq!(tokens.len(), 1, "one phase, one token");
        let before = step.was.get(&view.summary.name).filter(|was| was.shared > 0);
        let spoke = |h: &Holder| step.facts.word == Some((h.session, h.entry));
        let stays = |h: &Holder| !spoke(h) && view.holders.iter().any(|other| other.entry == h.entry);
        if let Some(was) = before.filter(|was| was.holders.iter().any(stays)) {
            assert_eq!(was.holders[0].seat.token, view.holders[0].seat.token, "a phase keeps its token");
        }
    }
}

/// A seat is lost only by the holder's own logged word, or with the end of its session (RULES R11).
pub(crate) fn r11_a_live_seat_moves_only_on_the_holders_word_or_with_its_lease(
    step: &Step<'_>,
    model: &Model,
) {
    let now = seats(step.is);
    for (entry, seat) in seats(step.was) {
        if now.get(&entry).map(|now| now.token) == Some(seat.token) {
            continue;
        }
        let owner = model.entries[&entry].session;
        let by_word = step.facts.word == Some((owner, entry));
        let by_end = step.facts.ended == Some(owner);
        let anew = step.facts.lapsed == Some(owner) && now.contains_key(&entry);
        assert!(by_word || by_end || anew, "{:?} took the seat of session {owner}", step.command);
    }
}

/// A grant names its seat and keeps it (RULES R12).
pub(crate) fn r12_a_seat_is_kept_by_who_has_it(step: &Step<'_>, _: &Model) {
    let before = seats(step.was);
    for (entry, seat) in seats(step.is) {
        if let Some(was) = before.get(&entry).filter(|was| was.token == seat.token) {
            assert_eq!(*was, seat, "the same token is the same seat");
        }
    }
}

/// Every member without a seat who is here has a cause, and what is named is so.
pub(crate) fn nobody_waits_without_a_cause(step: &Step<'_>, _: &Model) {
    for view in step.is.values() {
        let waiting = view.members.iter().filter(|m| matches!(m.place.role, Role::Standby | Role::Pending));
        assert_eq!(waiting.count(), view.waiters.len(), "everybody without a seat who is here has a cause");
        assert_eq!(view.summary.waiting, view.waiters.len() as u64);
        let first: Vec<&Waiter> =
            view.waiters.iter().filter(|w| !matches!(w.blocker, Blocker::Behind { .. })).collect();
        for waiter in &view.waiters {
            is_true(view, waiter, &first);
        }
    }
}

fn is_true(view: &GroupView, waiter: &Waiter, first: &[&Waiter]) {
    match &waiter.blocker {
        Blocker::SeatsHeld { holders, seats } => {
            assert!(!holders.is_empty(), "held by nobody");
            assert!(holders.iter().all(|holder| view.holders.contains(holder)), "the named holders hold");
            assert!(*seats as usize <= view.holders.len(), "{seats} seats held by {}", view.holders.len());
        }
        Blocker::SharedHeld { count, holders } => {
            assert_eq!(*count, view.shared);
            assert!(holders.iter().all(|holder| view.holders.contains(holder)));
        }
        Blocker::Behind { next, ahead, .. } => {
            assert!(*ahead > 0 && (*ahead as usize) < view.waiters.len());
            assert!(first.len() == 1, "one is first");
            assert_eq!(*next, first[0].name, "the first in line is named");
        }
        Blocker::Resting { delay, .. } => {
            assert!(*delay > Span::ZERO);
        }
        Blocker::Parties { present, parties } => {
            assert_eq!(*present, view.waiters.len() as u64);
            assert!(present < parties, "all are there and nobody goes through");
        }
        Blocker::Gone => panic!("a waiter is in the queue"),
    }
}

/// A seat that is free, and does not rest, is never left to itself while somebody waits.
pub(crate) fn no_seat_is_free_while_somebody_waits(step: &Step<'_>, _: &Model) {
    for view in step.is.values().filter(|view| view.summary.face != Face::Barrier && view.shared == 0) {
        let first = view.waiters.iter().find(|w| !matches!(w.blocker, Blocker::Behind { .. }));
        let Some(first) = first else {
            assert!(view.waiters.is_empty(), "all are behind others");
            continue;
        };
        if let Blocker::SeatsHeld { seats, .. } = &first.blocker {
            let held = view.holders.len() as u32;
            assert!(held >= *seats && *seats > 0);
        }
        assert!(!view.holders.is_empty() || matches!(first.blocker, Blocker::Resting { .. }), "{first:?}");
    }
}

/// A waiter is overtaken only by who is before it in the order, or was put to the front by a transfer or by a
/// holder that stopped. That covers a shared entry after an exclusive one (RULES R13).
pub(crate) fn nobody_is_overtaken_but_by_the_order(step: &Step<'_>, model: &Model) {
    let before = seats(step.was);
    for (name, view) in step.is {
        let granted = view.holders.iter().filter(|holder| before.get(&holder.entry) != Some(&holder.seat));
        let waited: BTreeSet<EntryId> =
            step.was.get(name).into_iter().flat_map(|view| &view.waiters).map(|w| w.entry).collect();
        let still: Vec<EntryId> =
            view.waiters.iter().map(|w| w.entry).filter(|entry| waited.contains(entry)).collect();
        for holder in granted.filter(|holder| !model.front.contains(&holder.entry)) {
            if step.facts.lapsed == Some(holder.session) && before.contains_key(&holder.entry) {
                continue;
            }
            for other in &still {
                let (seated, waits) = (model.key(view, holder.entry), model.key(view, *other));
                assert!(seated < waits, "{} was overtaken by {} in {name}", other, holder.entry);
            }
        }
    }
}

/// Active means: has a token. A holder is asked to stop only for a reason of the policy, and by a member that
/// comes only where the policy says so and only if that is heavier (RULES R14).
pub(crate) fn r14_roles_say_who_acts_and_preemption_never_freezes_a_holder(step: &Step<'_>, _: &Model) {
    for (name, view) in step.is {
        let held: BTreeSet<EntryId> = view.holders.iter().map(|holder| holder.entry).collect();
        for member in &view.members {
            let acts = matches!(member.place.role, Role::Active | Role::Draining);
            assert_eq!(acts, held.contains(&member.entry), "{member:?}");
            assert_eq!(acts, member.place.seat.is_some(), "a standby has no token");
        }
        let known: BTreeMap<EntryId, bool> = step
            .was
            .get(name)
            .into_iter()
            .flat_map(|view| &view.holders)
            .map(|holder| (holder.entry, holder.draining.is_some()))
            .collect();
        for holder in view.holders.iter().filter(|h| known.get(&h.entry) == Some(&false)) {
            let Some(why) = &holder.draining else { continue };
            let asked = matches!(step.command, Command::Tool { .. } | Command::TimerFired { .. });
            let heavier = view.policy.preempt == Some(Preempt::OnWeight) && why.contains(" is heavier ");
            assert!(asked || heavier, "{:?} made {} drain: {why}", step.command, holder.name);
        }
    }
}

/// Lock-like faces tell a session only of its own seat; nobody hears of a waiter's number (RULES R15).
pub(crate) fn r15_lock_faces_tell_only_of_seats(step: &Step<'_>, _: &Model) {
    for event in &step.applied.events {
        let Event::Change { to, own, change } = event else { continue };
        if change.face == Face::Group {
            continue;
        }
        for session in own {
            assert!(change.changed.iter().any(|c| c.session == *session), "{session} is told of others");
        }
        let looking: BTreeSet<SessionId> = [step.was, step.is]
            .into_iter()
            .filter_map(|views| views.get(&change.group))
            .flat_map(|view| &view.observers)
            .map(|(_, session)| *session)
            .collect();
        assert!(to.iter().all(|session| looking.contains(session)), "told everything without looking on");
        for changed in &change.changed {
            let place = changed.after.or(changed.before).expect("before or after");
            assert_eq!(place.ordinal, None, "a number on a lock");
        }
    }
}

/// A release, a cancel, or the end of a session frees its own places; waits that asked for it may be given up.
pub(crate) fn r16_a_release_frees_what_it_names_and_nothing_else(step: &Step<'_>, model: &Model) {
    if matches!(tool(step), Some((ToolOp::EndGroup { .. }, _))) {
        return;
    }
    let now = entries(step.is);
    for entry in entries(step.was).into_iter().filter(|entry| !now.contains(entry)) {
        let comer = &model.entries[&entry];
        let named = match step.command {
            Command::Call {
                op: Op::Release { entry: named } | Op::Cancel { entry: named } | Op::Stopped { entry: named },
                session,
                ..
            } => *named == entry && comer.session == *session,
            _ => false,
        };
        let ended = step.facts.ended == Some(comer.session);
        let was_away = step.was[&comer.group]
            .members
            .iter()
            .any(|member| member.entry == entry && member.place.role == Role::Reserved);
        assert!(
            named || ended || was_away || comer.terms.break_deadlock,
            "{entry} went by {:?}",
            step.command
        );
    }
    if let (Command::Call { op: Op::Cancel { .. }, .. }, Reply::Granted { seat }) =
        (step.command, &step.applied.reply)
    {
        let held = seats(step.is).values().any(|held| held == seat);
        assert!(held || step.facts.void, "it is still held");
    }
}

/// What was stated about policy and face holds while anybody is there; another statement is refused (RULES R17).
pub(crate) fn r17_a_statement_holds_while_anybody_is_there(step: &Step<'_>, _: &Model) {
    for (name, was) in step.was {
        let Some(view) = step.is.get(name) else { continue };
        let alive =
            |view: &GroupView| !view.members.is_empty() || !view.observers.is_empty() || view.summary.kept;
        if !alive(was) {
            continue;
        }
        if let Command::Call { op: Op::JoinOn(join, _), .. } = step.command
            && join.group == *name
            && !step.facts.void
        {
            let clash = differ(&was.policy, &join.policy);
            let other = join.face != was.summary.face;
            let taken = matches!(step.applied.reply, Reply::Joined(_));
            assert!(!taken || (!clash && !other), "{:?} beside {:?}", join.policy, was.policy);
        }
        if alive(view) {
            assert_eq!(view.summary.face, was.summary.face);
            let seats = matches!(tool(step), Some((ToolOp::SetSeats { .. }, _)));
            let mut stated = view.policy.clone();
            if seats {
                stated.seats = was.policy.seats;
            }
            assert!(!differ(&stated, &was.policy), "{stated:?} after {:?}", step.command);
            assert!(stated.merge(&was.policy).is_ok(), "{stated:?} beside {:?}", was.policy);
            assert!(stated == view.policy || seats, "a statement was forgotten");
        }
    }
}

/// Whether two statements contradict each other in any field, by no code of the core's.
fn differ(one: &PolicyWish, other: &PolicyWish) -> bool {
    fn clash<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
        one.is_some() && other.is_some() && one != other
    }
    clash(one.seats.as_ref(), other.seats.as_ref())
        || clash(one.numbering.as_ref(), other.numbering.as_ref())
        || clash(one.order.as_ref(), other.order.as_ref())
        || clash(one.preempt.as_ref(), other.preempt.as_ref())
        || clash(one.rejoin.as_ref(), other.rejoin.as_ref())
        || clash(one.handover.as_ref(), other.handover.as_ref())
}

/// A deadlock is a closed set of waits of the queue, and none is left that asked to be broken (RULES R19).
pub(crate) fn r19_deadlocks_are_real_and_broken_where_asked(step: &Step<'_>, model: &Model) {
    for deadlock in step.machine.deadlocks() {
        let members: BTreeSet<_> = deadlock.waits.iter().map(|edge| edge.session).collect();
        assert!(!members.is_empty());
        for edge in &deadlock.waits {
            let view = &step.is[&edge.group];
            assert!(matches!(view.summary.face, Face::Lock | Face::Semaphore), "standing by is no wait");
            let waits = |waiter: &Waiter| waiter.entry == edge.entry && waiter.session == edge.owner();
            assert!(view.waiters.iter().any(waits), "it waits");
            let behind = step.machine.deadlock_behind(&edge.group).expect("it is seen from each name in it");
            assert!(behind.waits.iter().any(|wait| wait.group == edge.group), "and has a wait for that name");
            let rests = view.resting.iter().any(|resting| resting.seat.0 < view.summary.seats);
            assert!(!rests || view.shared > 0 || is_shared(view, edge.entry), "a seat that rests comes free");
            let terms = &model.entries[&edge.entry].terms;
            assert!(terms.blocking, "only blocking acquires count");
            assert!(!terms.break_deadlock, "a wait that asked was not given up");
            for holder in &edge.held_by {
                assert!(view.holders.iter().any(|h| h.session == *holder), "the named one holds");
                assert!(members.contains(holder), "the named one is in it");
            }
            let shares = view.shared > 0 || is_shared(view, edge.entry);
            let closed = shares || view.holders.iter().all(|holder| members.contains(&holder.session));
            assert!(closed, "a holder outside could end it");
        }
    }
    if let Reply::Refused(Refusal::Deadlock { .. }) = &step.applied.reply {
        let asked =
            matches!(step.command, Command::Call { op: Op::JoinOn(_, terms), .. } if terms.break_deadlock);
        assert!(asked, "broken only where it was asked");
    }
}

fn is_shared(view: &GroupView, entry: EntryId) -> bool {
    view.waiters.iter().any(|waiter| waiter.entry == entry && waiter.mode == Mode::Shared)
}

/// Work that gave no sign is shown as stalled, and keeps its seat (RULES R20).
pub(crate) fn r20_stalled_work_is_shown(step: &Step<'_>, _: &Model) {
    for event in &step.applied.events {
        let Event::Change { change, .. } = event else { continue };
        if !matches!(change.reason, Reason::Stalled | Reason::Progress) {
            continue;
        }
        let whom = change.changed.iter().find(|c| c.after.is_some_and(|place| place.seat.is_some()));
        let Some(whom) = whom else { panic!("{change:?} names no holder") };
        let view = &step.is[&change.group];
        let holders: Vec<&Holder> = view.holders.iter().filter(|h| h.entry == whom.entry).collect();
        let shown = holders.iter().all(|h| h.stalled_since.is_some() == (change.reason == Reason::Stalled));
        assert!(!holders.is_empty() && shown, "{change:?}: {holders:?}");
    }
    if let Command::Call { op: Op::Progress { entry }, .. } = step.command
        && !step.facts.void
    {
        let holders = step.is.values().flat_map(|view| &view.holders);
        let stalled = holders.filter(|h| h.entry == *entry).any(|holder| holder.stalled_since.is_some());
        assert!(!stalled || matches!(step.applied.reply, Reply::Refused(_)), "its work goes on");
    }
}

/// Removing what a waiter waits for, on a copy, changes its wait or ends it.
pub(crate) fn removing_the_cause_changes_the_wait(
    machine: &StateMachine,
    index: u64,
    is: &Views,
    nth: usize,
) {
    let waiters: Vec<(&Name, &Waiter)> =
        is.iter().flat_map(|(name, view)| view.waiters.iter().map(move |waiter| (name, waiter))).collect();
    if waiters.is_empty() {
        return;
    }
    let (name, waiter) = waiters[nth % waiters.len()];
    let causes: Vec<Command> = match &waiter.blocker {
        Blocker::SeatsHeld { holders, .. } | Blocker::SharedHeld { holders, .. } => {
            holders.iter().filter_map(|holder| release(machine, holder.session, holder.entry)).collect()
        }
        Blocker::Behind { session, next, .. } => {
            let first = is[name].waiters.iter().find(|w| !matches!(w.blocker, Blocker::Behind { .. }));
            let first = first.filter(|w| w.session == *session && w.name == *next).expect("it is first");
            release(machine, first.session, first.entry).into_iter().collect()
        }
        Blocker::Resting { .. } => machine.tasks().into_iter().map(|(task, _)| due(machine, task)).collect(),
        Blocker::Parties { .. } | Blocker::Gone => return,
    };
    assert!(!causes.is_empty(), "a wait that nothing could end: {waiter:?}");
    let mut copy = machine.clone();
    for (command, index) in causes.into_iter().zip(index + 1..) {
        copy.apply(LogIndex(index), &Proposal { at: Default::default(), command });
    }
    let view = copy.group_view(name, usize::MAX);
    let after = view.and_then(|view| view.waiters.into_iter().find(|w| w.entry == waiter.entry));
    assert_ne!(after.map(|after| after.blocker), Some(waiter.blocker.clone()), "the cause changed nothing");
}

fn release(machine: &StateMachine, session: SessionId, entry: EntryId) -> Option<Command> {
    let generation = machine.session_view(session)?.generation;
    let (request, acknowledged) = (RequestId(u64::MAX - entry.0), RequestId(0));
    Some(Command::Call { session, generation, request, acknowledged, op: Op::Release { entry } })
}

fn due(machine: &StateMachine, task: TaskId) -> Command {
    Command::TimerFired { timer: Timer::Task { task }, reign: machine.reign(), silent: Span::ZERO }
}

/// Where there is one seat, who gets it when its holder gives it up is who was listed first.
fn seated_as_listed(was: &Views, is: &Views, gave_up: EntryId) {
    for (name, before) in was.iter().filter(|(_, view)| view.summary.seats == 1 && view.holders.len() == 1) {
        let Some(after) = is.get(name).filter(|_| before.holders[0].entry == gave_up) else { continue };
        let listed: Vec<EntryId> = before.waiters.iter().map(|waiter| waiter.entry).collect();
        let mut seated: Vec<EntryId> = after.holders.iter().map(|holder| holder.entry).collect();
        seated.sort_by_key(|entry| listed.iter().position(|listed| listed == entry));
        assert_eq!(seated, listed[..seated.len()], "{name}: the first that were listed are seated");
    }
}

/// When all that hold release, one by one, and all pauses end, everybody has had a seat: nobody starves.
pub(crate) fn everybody_gets_a_turn(mut machine: StateMachine, mut index: u64, names: &[Name]) {
    let mut apply = |machine: &mut StateMachine, command: Command| {
        index += 1;
        machine.apply(LogIndex(index), &Proposal { at: Default::default(), command }).reply
    };
    for _ in 0..2_000 {
        let is = crate::model::views(&machine, names);
        let holder = is.values().flat_map(|view| &view.holders).next();
        if let Some(holder) = holder {
            let command = release(&machine, holder.session, holder.entry).expect("its session is alive");
            let reply = apply(&mut machine, command);
            seated_as_listed(&is, &crate::model::views(&machine, names), holder.entry);
            assert!(
                matches!(reply, Reply::Released { token } if token == Some(holder.seat.token)),
                "{reply:?}"
            );
        } else if let Some((task, _)) = machine.tasks().first() {
            let command = due(&machine, *task);
            apply(&mut machine, command);
        } else {
            for view in is.values().filter(|view| view.summary.face != Face::Barrier) {
                assert!(view.members.is_empty(), "nobody acts, and these wait for ever: {:?}", view.waiters);
            }
            return;
        }
    }
    panic!("it does not end");
}
