//! The diagnosis of election storms: each cause is named, and a healthy group has none.

use quorate_core::election::storm::{Diagnosis, Finding, Sight, diagnose};
use quorate_core::election::{LogPosition, Term};
use quorate_core::id::LogIndex;
use quorate_core::protocol::{Members, ProcessId};
use quorate_core::time::Span;

/// A process in term 4 that follows n1 and hears it every few milliseconds.
fn follower(process: u32) -> Sight {
    Sight {
        process: ProcessId(process),
        runs: true,
        term: Term(4),
        voted: Some(ProcessId(1)),
        leader: Some(ProcessId(1)),
        members: Members::first(3),
        heartbeat: Some(Span::from_millis(2)),
        pause: Span::ZERO,
        log: LogPosition { term: Term(4), index: LogIndex(9) },
        patience: Span::from_millis(300),
    }
}

fn group(change: impl FnOnce(&mut [Sight])) -> Diagnosis {
    let mut sights: Vec<_> = (1..=3).map(follower).collect();
    change(&mut sights);
    diagnose(sights)
}

#[test]
fn a_healthy_group_has_no_findings() {
    let healthy = group(|_| {});
    assert_eq!((healthy.leader, healthy.findings.len()), (Some(ProcessId(1)), 0));
    assert!(healthy.to_string().contains("n1 leads, and nothing stands against it"));
}

#[test]
fn a_group_without_a_majority_is_told_first() {
    let dead = group(|sights| sights[1..].iter_mut().for_each(|sight| sight.runs = false));
    assert_eq!(dead.findings.first(), Some(&Finding::NoMajority { runs: 1, need: 2 }));
}

#[test]
fn a_pause_longer_than_the_patience_is_named() {
    let paused = group(|sights| sights[0].pause = Span::from_millis(900));
    let named = Finding::Paused {
        process: ProcessId(1),
        pause: Span::from_millis(900),
        patience: Span::from_millis(300),
    };
    assert_eq!(paused.findings, [named]);
    assert!(paused.to_string().contains("n1 stood still for 900 ms, others wait 300 ms"));
}

#[test]
fn heartbeats_slower_than_the_patience_are_named() {
    let slow = group(|sights| sights[2].heartbeat = Some(Span::from_millis(350)));
    assert!(matches!(slow.findings[..], [Finding::SlowHeartbeats { process: ProcessId(3), .. }]));
}

#[test]
fn another_membership_is_named() {
    let odd = group(|sights| sights[1].members = Members::first(5));
    assert_eq!(odd.findings, [Finding::Memberships { odd: ProcessId(2), counts: 5, others: 3 }]);
}

#[test]
fn who_raises_terms_apart_from_the_others_is_named() {
    let apart = group(|sights| {
        sights[2].leader = None;
        sights[2].term = Term(7);
        sights[2].voted = Some(ProcessId(3));
    });
    let named = Finding::Disrupts { process: ProcessId(3), term: Term(7), leader: ProcessId(1) };
    assert_eq!(apart.findings, [named]);
}

#[test]
fn a_candidate_with_an_old_log_is_named() {
    let old = group(|sights| {
        sights.iter_mut().for_each(|sight| sight.leader = None);
        sights[0].voted = Some(ProcessId(1));
        sights[0].log = LogPosition { term: Term(3), index: LogIndex(40) };
    });
    assert!(matches!(old.findings[..], [Finding::OldLog { process: ProcessId(1), .. }]), "{old}");
}

#[test]
fn a_split_vote_is_named_only_once_nobody_can_win() {
    let split = |votes: [Option<u32>; 3]| {
        group(|sights| {
            for (sight, voted) in sights.iter_mut().zip(votes) {
                sight.leader = None;
                sight.voted = voted.map(ProcessId);
            }
        })
        .findings
    };
    assert_eq!(split([Some(1), Some(2), Some(3)]), [Finding::SplitVote { term: Term(4), candidates: 3 }]);
    assert_eq!(split([Some(1), Some(2), None]), [], "the third vote decides");
}
