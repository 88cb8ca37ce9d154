//! What users of the classic group facility rely on, at the level of the queue: each test says one rule, and
//! `docs/groups.md` has the whole table. What needs a connection is in the library's tests of the same name.

use crate::log::{Log, name, told};
use quorate_core::id::*;
use quorate_core::state_machine::*;
use std::collections::BTreeMap;

fn with_sessions(n: u64) -> (Log, Vec<SessionId>) {
    let mut log = Log::founded();
    let sessions = (1..=n).map(|secret| log.open(secret.into())).collect();
    (log, sessions)
}

/// P1 to Pn in one group.
fn joined(n: u64) -> (Log, Vec<SessionId>, Vec<EntryId>) {
    let (mut log, sessions) = with_sessions(n);
    let entries = sessions.iter().map(|session| log.member(*session, "g").entry).collect();
    (log, sessions, entries)
}

fn ordinals(log: &Log) -> BTreeMap<String, u64> {
    let Some(view) = log.machine.group_view(&name("g"), 100) else { return BTreeMap::new() };
    view.members.iter().map(|m| (m.name.clone(), m.place.ordinal.unwrap().0)).collect()
}

fn is_dense(log: &Log) -> bool {
    let mut numbers: Vec<u64> = ordinals(log).into_values().collect();
    numbers.sort_unstable();
    numbers.iter().copied().eq(1..=numbers.len() as u64)
}

/// F1: the member names the group, and nobody has to make it first.
#[test]
fn a_group_begins_with_its_first_member() {
    let (mut log, sessions) = with_sessions(1);
    assert!(log.machine.group_list(None, 10).is_empty());
    let total = log.member(sessions[0], "any name");
    assert_eq!(total.place.ordinal, Some(Ordinal(1)));
    assert_eq!(log.machine.group_list(None, 10).len(), 1);
}

/// F4: an ordinal is positive; 0 is nobody's. (−1 is what a member that is cut off says of itself.)
#[test]
fn an_ordinal_is_positive() {
    let (mut log, sessions, _) = joined(3);
    let looks = Join { kind: MemberKind::Observer, ..Log::join_op("g", Face::Group) };
    assert_eq!(log.join(sessions[0], looks).place.ordinal, None, "one that looks on has none");
    assert!(ordinals(&log).values().all(|ordinal| *ordinal > 0));
}

/// F5: after every join, leave, disconnect and return n members hold 1..n.
#[test]
fn n_members_hold_one_to_n_after_every_change() {
    let (mut log, sessions, entries) = joined(5);
    assert!(is_dense(&log));
    log.release(sessions[2], entries[2]);
    assert!(is_dense(&log));
    log.expire(sessions[0]);
    assert!(is_dense(&log));
    let back = log.open(9);
    log.member(back, "g");
    assert!(is_dense(&log));
    log.call(sessions[4], Op::End);
    assert!(is_dense(&log));
    assert_eq!(ordinals(&log).len(), 3);
}

/// F6: who comes takes n+1, the first 1.
#[test]
fn who_comes_takes_the_next_number() {
    let (log, ..) = joined(4);
    assert_eq!(log.line("g"), "P1:1* P2:2 P3:3 P4:4");
}

/// F7: when number k goes, those above move down by one and keep their order.
#[test]
fn those_above_a_departure_move_down_by_one() {
    let (mut log, sessions, entries) = joined(5);
    log.expire(sessions[0]);
    assert_eq!(log.line("g"), "P2:1* P3:2 P4:3 P5:4");
    log.release(sessions[3], entries[3]);
    assert_eq!(log.line("g"), "P2:1* P3:2 P5:3");
}

/// F8: a member that comes back takes the tail, not its old place.
#[test]
fn a_member_that_comes_back_takes_the_tail() {
    let (mut log, sessions, _) = joined(5);
    log.expire(sessions[0]);
    let again = log.open(9);
    let join = Join { name: "P1".into(), ..Log::join_op("g", Face::Group) };
    log.join(again, join);
    assert_eq!(log.line("g"), "P2:1* P3:2 P4:3 P5:4 P1:5");
}

/// F9: without weights a number never grows while its member is there.
#[test]
fn a_number_never_grows() {
    let (mut log, sessions, entries) = joined(6);
    let mut before = ordinals(&log);
    for (nth, leave) in [(4, true), (1, false), (0, true)] {
        match leave {
            true => drop(log.release(sessions[nth], entries[nth])),
            false => drop(log.expire(sessions[nth])),
        }
        let next = log.open(90 + nth as u128);
        log.member(next, "g");
        let now = ordinals(&log);
        assert!(now.iter().all(|(who, ordinal)| before.get(who).is_none_or(|was| ordinal <= was)), "{now:?}");
        before = now;
    }
}

/// F15: each member is told its new number; here with the old one, the reason, and who reported what.
#[test]
fn a_new_number_comes_with_the_old_one_and_the_reason() {
    let (mut log, sessions, _) = joined(3);
    let applied = log.expire(sessions[0]);
    assert_eq!(told(&applied.events), ["g expired: P1 1*>gone, P2 2>1*, P3 3>2"]);
    let Some(Event::Change { change, .. }) = applied.events.first() else { panic!() };
    assert!(change.evidence.starts_with("no keepalive for 2 s, lease 2 s"), "{}", change.evidence);
}

/// F16: who joins hears of everybody; the others hear of the one that came; who leaves by itself hears nothing more.
#[test]
fn who_joins_hears_of_all_and_the_others_of_one() {
    let (mut log, sessions, _) = joined(2);
    let third = log.open(9);
    let applied = log.call(third, Op::Join(Join { name: "P3".into(), ..Log::join_op("g", Face::Group) }));
    let Reply::Joined(total) = &applied.reply else { panic!() };
    assert_eq!(total.members.len(), 3);
    let Some(Event::Change { to, change, .. }) = applied.events.first() else { panic!() };
    assert!(sessions.iter().all(|session| to.contains(session)));
    assert_eq!(change.changed.len(), 1);
    let gone = log.release(third, total.entry);
    let Some(Event::Change { to, own, .. }) = gone.events.first() else { panic!() };
    assert!(!to.contains(&third) && !own.contains(&third));
}

/// F17: full members hear of all, ordinal-only ones of themselves and look like any other, and who looks on has
/// no number and is seen by nobody.
#[test]
fn there_are_three_kinds_of_members() {
    let (mut log, sessions) = with_sessions(4);
    let kind = |kind, name: &str| Join { kind, name: name.into(), ..Log::join_op("g", Face::Group) };
    log.join(sessions[0], kind(MemberKind::Full, "P1"));
    let quiet = log.join(sessions[1], kind(MemberKind::OrdinalOnly, "P2"));
    let looks = log.join(sessions[2], kind(MemberKind::Observer, "watcher"));
    assert!(quiet.members.is_empty() && quiet.place.ordinal == Some(Ordinal(2)));
    assert_eq!((looks.place.ordinal, looks.members.len()), (None, 2));
    let applied = log.call(sessions[3], Op::Join(kind(MemberKind::Full, "P3")));
    let Reply::Joined(total) = &applied.reply else { panic!() };
    assert_eq!(total.members.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), ["P1", "P2", "P3"]);
    let Some(Event::Change { to, own, .. }) = applied.events.first() else { panic!() };
    assert_eq!((to.len(), own.as_slice()), (3, &[sessions[1]][..]), "P1, P3 and the watcher hear all");
}

/// F22: who leaves says so: the others are renumbered at once, and nothing of it is left.
#[test]
fn who_leaves_is_gone_at_once() {
    let (mut log, sessions, entries) = joined(2);
    log.release(sessions[0], entries[0]);
    assert_eq!(log.line("g"), "P2:1*");
    assert!(log.machine.session_view(sessions[0]).unwrap().places.is_empty());
    log.call(sessions[1], Op::End);
    assert!(log.machine.group_list(None, 10).is_empty(), "with its last member the group is gone");
}

/// A page that names a test that is not there holds nothing.
#[test]
fn every_test_that_the_page_names_is_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let page = std::fs::read_to_string(root.join("docs/groups.md")).unwrap();
    let folders = ["quorate-core", "quorate", "quorate-server"].map(|krate| root.join("crates").join(krate));
    let mut named = 0;
    for test in page.split('`').filter(|code| code.contains("::") && !code.contains([' ', '/'])) {
        let (file, function) = test.split_once("::").unwrap();
        let text = folders.iter().filter_map(|folder| {
            std::fs::read_to_string(folder.join("tests/it").join(file).with_extension("rs")).ok()
        });
        let found = text.into_iter().any(|text| text.contains(&format!("fn {function}(")));
        assert!(found, "docs/groups.md names {test}, which is not there");
        named += 1;
    }
    assert!(named > 50, "{named}");
}
