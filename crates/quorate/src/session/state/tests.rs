//! One session, frame by frame, under a clock that only the test moves.

use super::*;
use crate::advisory::Event;
use crate::proto::client_frame::Frame;
use crate::proto::server_frame::Frame as Told;
use quorate_core::id::{Name, Ordinal, SeatNo, Token, Version, ViewId};
use quorate_core::state_machine::{
    Changed, Face, Join, MemberKind, Mode, Place as Standing, PolicyWish, Reason as Logged, Role, Terms,
};
use quorate_core::time::Wall;

const TTL: u64 = 1_000;
const ACT: u64 = 990;

fn at(ms: u64) -> Mono {
    Mono(1_000_000_000 + ms * 1_000)
}

fn told(frame: Told) -> proto::ServerFrame {
    proto::ServerFrame { frame: Some(frame) }
}

fn opened(totals: Vec<Total>) -> proto::Opened {
    proto::Opened {
        session: 7,
        generation: 1,
        ttl_ms: TTL,
        cluster: wire::to_wide(9),
        totals: totals.into_iter().map(wire::to_total).collect(),
        ..proto::Opened::default()
    }
}

/// A session that was asked for at 0 and is open.
fn open() -> State {
    let options = SessionOptions::with_ttl(Duration::from_millis(TTL));
    let mut state = State::new(Clock::new(), options);
    assert!(matches!(greet(&mut state, 0).0, Frame::Open(_)));
    state
}

/// Connects and is answered `after` ms later.
fn connect(state: &mut State, now: u64, after: u64, totals: Vec<Total>) -> (Frame, Greeted) {
    let (frame, greeting) = state.greet(at(now));
    let greeted = state.opened(at(now + after), greeting, opened(totals)).unwrap();
    (frame.frame.unwrap(), greeted)
}

fn greet(state: &mut State, now: u64) -> (Frame, Greeted) {
    connect(state, now, 0, Vec::new())
}

fn says_lapsed(frame: &Frame) -> bool {
    let Frame::Attach(attach) = frame else { panic!("it attaches: {frame:?}") };
    attach.lapsed
}

fn join(face: Face, kind: MemberKind) -> Join {
    Join {
        group: Name::new("g").unwrap(),
        face,
        kind,
        mode: Mode::Exclusive,
        wait: true,
        name: "me".into(),
        metadata: BTreeMap::new(),
        weight: 0,
        policy: PolicyWish::default(),
    }
}

fn standing(ordinal: Option<u64>, token: Option<u64>) -> Standing {
    let seat = token.map(|token| Seat { no: SeatNo(0), token: Token(token), since: Wall(0) });
    let role = if seat.is_some() { Role::Active } else { Role::Standby };
    Standing { ordinal: ordinal.map(Ordinal), role, seat }
}

fn total(face: Face, version: u64, place: Standing) -> Total {
    Total {
        group: Name::new("g").unwrap(),
        face,
        version: Version(version),
        view: ViewId(version),
        holder_token: None,
        entry: EntryId(3),
        place,
        members: Vec::new(),
    }
}

fn change(face: Face, version: u64, own: Option<Standing>) -> proto::ServerFrame {
    let entry = if own.is_some() { EntryId(3) } else { EntryId(99) };
    let changed = Changed {
        entry,
        session: SessionId(7),
        name: "me".into(),
        kind: MemberKind::Full,
        before: Some(standing(None, None)),
        after: own.or(Some(standing(Some(5), None))),
        metadata: None,
    };
    told(Told::Change(wire::to_change(&Change {
        group: Name::new("g").unwrap(),
        face,
        version: Version(version),
        view: ViewId(version),
        at: Wall(0),
        reason: Logged::Leave,
        evidence: "it left".into(),
        holder_token: None,
        changed: vec![changed],
    })))
}

fn joined(state: &mut State, request: u64, total: Total) {
    let reply = Some(proto::answer::Reply::Joined(wire::to_total(total)));
    state.frame(at(1), told(Told::Answer(proto::Answer { request, reply }))).unwrap();
}

fn beat(state: &mut State, now: u64) -> Option<u64> {
    state.tick(at(now));
    state.take_frames(at(now)).into_iter().find_map(|frame| match frame.frame {
        Some(Frame::KeepAlive(beat)) => Some(beat.seq),
        _ => None,
    })
}

fn alive(state: &mut State, now: u64, seq: u64) {
    state.frame(at(now), told(Told::Alive(proto::Alive { seq, waiting: vec![3] }))).unwrap();
}

fn calls(state: &mut State, now: u64) -> Vec<(u64, u64)> {
    let frames = state.take_frames(at(now)).into_iter();
    frames
        .filter_map(|frame| match frame.frame {
            Some(Frame::Call(call)) => Some((call.request, call.acknowledged)),
            _ => None,
        })
        .collect()
}

#[test]
fn the_deadline_counts_from_the_sending_of_what_was_confirmed() {
    let options = SessionOptions::with_ttl(Duration::from_millis(TTL));
    let mut state = State::new(Clock::new(), options);
    connect(&mut state, 0, 300, Vec::new());
    assert_eq!(state.remaining(at(300)).as_millis() as u64, ACT - 300, "the opening took 300 ms");
    assert_eq!(beat(&mut state, 300), Some(1), "a quarter of the lease has passed");
    alive(&mut state, 900, 1);
    assert_eq!(state.remaining(at(900)).as_millis() as u64, 300 + ACT - 900, "sent at 300");
    assert!(state.acts(at(300 + ACT - 1)));
    assert!(!state.acts(at(300 + ACT)), "no timer is needed to know it");
}

#[test]
fn keepalives_go_four_times_in_a_lease() {
    let mut state = open();
    let sent: Vec<u64> = (0..TTL).filter(|now| beat(&mut state, *now).is_some()).collect();
    assert_eq!(sent, [250, 500, 750]);
}

#[test]
fn a_confirmation_that_comes_after_the_deadline_revives_nothing() {
    let mut state = open();
    assert_eq!(beat(&mut state, 900), Some(1));
    alive(&mut state, ACT, 1);
    assert!(!state.acts(at(ACT)) && state.wants_connection());
    state.away();
    let (frame, greeted) = connect(&mut state, ACT + 1, 1, Vec::new());
    assert!(says_lapsed(&frame), "its seats need new tokens");
    assert_eq!(greeted, Greeted::Speak);
    assert!(state.acts(at(ACT + 2)));
}

#[test]
fn a_deadline_that_passes_on_the_way_is_said_by_another_attach() {
    let mut state = open();
    state.away();
    let (frame, greeted) = connect(&mut state, ACT - 1, 1, Vec::new());
    assert_eq!((says_lapsed(&frame), greeted), (false, Greeted::Again));
    assert!(!state.acts(at(ACT)), "the old token must not come back");
    let (frame, greeted) = greet(&mut state, ACT);
    assert_eq!((says_lapsed(&frame), greeted), (true, Greeted::Speak));
}

#[test]
fn a_holder_is_warned_before_the_deadline_and_a_late_keepalive_takes_it_back() {
    let mut state = open();
    assert_eq!(state.warning(), Span::from_millis(TTL / 6));
    assert!(!state.is_near(at(ACT - 167)) && state.is_near(at(ACT - 166)));
    let seq = beat(&mut state, 400).unwrap();
    alive(&mut state, ACT - 100, seq);
    assert!(!state.is_near(at(ACT - 100)));
}

#[test]
fn a_grant_that_comes_before_the_answer_that_says_queued_is_not_lost() {
    let mut state = open();
    let (key, _) = state.join(join(Face::Lock, MemberKind::Full), Terms::default()).unwrap();
    state.frame(at(1), change(Face::Lock, 6, Some(standing(None, Some(41))))).unwrap();
    joined(&mut state, 1, total(Face::Lock, 5, standing(None, None)));
    assert_eq!(state.seat(at(1), key).map(|seat| seat.token), Some(Token(41)));
}

#[test]
fn a_seat_whose_holder_has_stopped_is_used_again_only_when_it_is_another() {
    let mut state = open();
    let (key, _) = state.join(join(Face::Lock, MemberKind::Full), Terms::default()).unwrap();
    joined(&mut state, 1, total(Face::Lock, 5, standing(None, Some(41))));
    state.hand_out(key);
    let (answer, mut answered) = oneshot::channel();
    state.stopped(key, Some(answer));
    assert_eq!(state.seat(at(1), key), None, "from the call on");
    let late = |reason, version, token| {
        let mut frame = change(Face::Lock, version, Some(standing(None, Some(token))));
        let Some(Told::Change(change)) = &mut frame.frame else { panic!() };
        change.reason = wire::to_reason(reason).into();
        change.changed[0].before = Some(change.changed[0].after.unwrap());
        frame
    };
    state.frame(at(2), late(Logged::Draining, 6, 41)).unwrap();
    assert_eq!(state.seat(at(2), key), None, "what was on its way is from before");

    // The deadline passes, the connection is new, and the service has not heard of the stop: a new token.
    assert!(state.remaining(at(ACT)).is_zero());
    state.check(at(ACT));
    assert!(matches!(answered.try_recv(), Ok(Err(Error::WaitLost { .. }))));
    connect(&mut state, ACT, 1, vec![total(Face::Lock, 7, standing(None, Some(44)))]);
    let mut renewed = change(Face::Lock, 8, Some(standing(None, Some(45))));
    let Some(Told::Change(said)) = &mut renewed.frame else { panic!() };
    said.reason = wire::to_reason(Logged::Renewed).into();
    state.frame(at(ACT + 2), renewed).unwrap();
    assert!(state.acts(at(ACT + 2)));
    assert_eq!(state.seat(at(ACT + 2), key), None, "nor is that one used");

    assert_eq!(calls(&mut state, ACT + 3), [(2, 1)], "the stop goes again");
    let reply = Some(proto::answer::Reply::Done(proto::Done {}));
    state.frame(at(ACT + 4), told(Told::Answer(proto::Answer { request: 2, reply }))).unwrap();
    assert_eq!(state.resyncs, [EntryId(3)], "what was heard meanwhile may be from before or after");
    assert_eq!(state.seat(at(ACT + 4), key), None);
    state
        .frame(at(ACT + 5), told(Told::Total(wire::to_total(total(Face::Lock, 9, standing(None, None))))))
        .unwrap();
    let granted = change(Face::Lock, 10, Some(standing(None, Some(50))));
    state.frame(at(ACT + 6), granted).unwrap();
    assert_eq!(state.seat(at(ACT + 6), key).map(|seat| seat.token), Some(Token(50)));
}

#[test]
fn an_older_change_does_not_take_a_newer_seat_back() {
    let mut state = open();
    let (key, _) = state.join(join(Face::Lock, MemberKind::Full), Terms::default()).unwrap();
    joined(&mut state, 1, total(Face::Lock, 8, standing(None, Some(44))));
    state.frame(at(1), change(Face::Lock, 7, Some(standing(None, None)))).unwrap();
    assert_eq!(state.seat(at(1), key).map(|seat| seat.token), Some(Token(44)));
}

#[test]
fn unanswered_calls_go_again_under_their_numbers_and_only_a_whole_row_is_acknowledged() {
    let mut state = open();
    for _ in 0..3 {
        state.join(join(Face::Lock, MemberKind::Full), Terms::default()).unwrap();
    }
    assert_eq!(calls(&mut state, 1), [(1, 0), (2, 0), (3, 0)]);
    joined(&mut state, 2, total(Face::Lock, 1, standing(None, None)));
    state.away();
    greet(&mut state, 2);
    assert_eq!(calls(&mut state, 3), [(1, 0), (3, 0)], "2 was answered, 1 was not");
    let unanswered = proto::Unanswered { request: 3, outcome: 1, why: "no leader".into() };
    state.frame(at(4), told(Told::Unanswered(unanswered))).unwrap();
    assert_eq!(calls(&mut state, 4), []);
    state.tick(at(4 + AGAIN_MS));
    assert_eq!(calls(&mut state, 4 + AGAIN_MS), [(3, 0)]);
    joined(&mut state, 1, total(Face::Lock, 1, standing(None, None)));
    state.join(join(Face::Lock, MemberKind::Full), Terms::default()).unwrap();
    assert_eq!(calls(&mut state, 60), [(4, 2)]);
}

#[test]
fn no_more_calls_are_under_way_than_the_service_remembers() {
    let mut state = open();
    for _ in 0..WINDOW + 2 {
        state.join(join(Face::Lock, MemberKind::Full), Terms::default()).unwrap();
    }
    assert_eq!(calls(&mut state, 1).len() as u64, WINDOW);
    joined(&mut state, 2, total(Face::Lock, 1, standing(None, None)));
    assert_eq!(calls(&mut state, 1), [], "1 is not answered yet");
    joined(&mut state, 1, total(Face::Lock, 1, standing(None, None)));
    assert_eq!(calls(&mut state, 1), [(WINDOW + 1, 2), (WINDOW + 2, 2)]);
}

#[test]
fn a_hole_in_the_versions_becomes_a_gap_and_a_total() {
    let mut state = open();
    let (key, _) = state.join(join(Face::Group, MemberKind::Full), Terms::default()).unwrap();
    joined(&mut state, 1, total(Face::Group, 1, standing(Some(2), None)));
    assert_eq!(state.advisory(at(1), key).unwrap().event, Event::Joined);
    state.frame(at(2), change(Face::Group, 2, None)).unwrap();
    state.frame(at(2), change(Face::Group, 5, Some(standing(Some(1), Some(44))))).unwrap();
    assert_eq!(state.seat(at(2), key).map(|seat| seat.token), Some(Token(44)), "its own seat is known");
    let asked = state.take_frames(at(2)).into_iter().map(|frame| frame.frame);
    assert!(asked.into_iter().any(|frame| frame == Some(Frame::Resync(proto::Resync { entry: 3 }))));
    state.frame(at(3), change(Face::Group, 6, None)).unwrap();
    state
        .frame(at(3), told(Told::Total(wire::to_total(total(Face::Group, 6, standing(Some(1), Some(44)))))))
        .unwrap();
    assert_eq!(state.advisory(at(3), key).unwrap().event, Event::Changed, "version 2");
    let gap = state.advisory(at(3), key).unwrap();
    assert_eq!((gap.event, gap.ordinal, gap.token), (Event::Gap, Some(1), Some(Token(44))));
    assert_eq!(gap.evidence, "3 changes of the group were missed", "3, 4 and 5 itself");
    assert!(state.advisory(at(3), key).is_none());
}

#[test]
fn an_ordinal_only_member_expects_holes() {
    let mut state = open();
    let (key, _) = state.join(join(Face::Group, MemberKind::OrdinalOnly), Terms::default()).unwrap();
    joined(&mut state, 1, total(Face::Group, 1, standing(Some(2), None)));
    state.frame(at(2), change(Face::Group, 5, Some(standing(Some(1), Some(44))))).unwrap();
    assert_eq!(state.advisory(at(2), key).unwrap().event, Event::Joined);
    assert_eq!(state.advisory(at(2), key).unwrap().event, Event::Active);
    assert!(state.resyncs.is_empty());
}

#[test]
fn what_was_not_read_before_the_deadline_is_never_said() {
    let mut state = open();
    let (key, _) = state.join(join(Face::Group, MemberKind::Full), Terms::default()).unwrap();
    state.hand_out(key);
    joined(&mut state, 1, total(Face::Group, 1, standing(Some(2), None)));
    assert_eq!(state.advisory(at(1), key).unwrap().event, Event::Joined);
    state.frame(at(2), change(Face::Group, 2, Some(standing(Some(1), Some(44))))).unwrap();
    state.check(at(ACT));
    let cut = state.advisory(at(ACT), key).unwrap();
    assert_eq!((cut.event, cut.ordinal, cut.token), (Event::Disconnected, Some(-1), None));
    assert!(state.advisory(at(ACT), key).is_none());
    state.away();
    let renewed = total(Face::Group, 3, standing(Some(1), Some(45)));
    connect(&mut state, ACT + 1, 1, vec![renewed]);
    let back = state.advisory(at(ACT + 2), key).unwrap();
    assert_eq!((back.event, back.previous, back.ordinal), (Event::Reconnected, Some(-1), Some(1)));
    assert_eq!(back.token, Some(Token(45)), "only the new token is said");
}

#[test]
fn a_wait_that_the_service_does_not_name_is_asked_after_and_then_given_up() {
    let mut state = open();
    let (key, _) = state.join(join(Face::Lock, MemberKind::Full), Terms::default()).unwrap();
    joined(&mut state, 1, total(Face::Lock, 1, standing(None, None)));
    let nobody_waits = |state: &mut State, now| {
        let seq = beat(state, now).unwrap();
        let nobody = proto::Alive { seq, waiting: Vec::new() };
        state.frame(at(now), told(Told::Alive(nobody))).unwrap();
    };
    nobody_waits(&mut state, 250);
    assert!(state.resyncs.is_empty(), "its grant may be on its way");
    nobody_waits(&mut state, 500);
    assert_eq!(state.resyncs, [EntryId(3)]);
    nobody_waits(&mut state, 750);
    assert!(matches!(state.place(key).unwrap().stage, Stage::In));
    nobody_waits(&mut state, 1_000);
    assert!(matches!(state.place(key).unwrap().stage, Stage::Ended(Error::Removed { .. })));
}

#[test]
fn a_session_that_was_lost_joins_its_groups_again_under_a_new_secret() {
    let mut state = open();
    let (key, _) = state.join(join(Face::Group, MemberKind::Full), Terms::default()).unwrap();
    state.hand_out(key);
    joined(&mut state, 1, total(Face::Group, 1, standing(Some(1), Some(41))));
    assert_eq!(state.advisory(at(1), key).unwrap().event, Event::Joined);
    let (lock, _) = state.join(join(Face::Lock, MemberKind::Full), Terms::default()).unwrap();
    let before = state.secret;
    state.ended(Reason::Expired, "no keepalive");
    assert!(matches!(state.place(lock).unwrap().stage, Stage::Ended(Error::SessionLost { .. })));
    assert_eq!(state.advisory(at(2), key).unwrap().event, Event::Disconnected);
    assert!(matches!(greet(&mut state, 3).0, Frame::Open(_)));
    assert_ne!(state.secret, before);
    assert_eq!(calls(&mut state, 3).len(), 1, "the group, not the lock");
}

#[test]
fn what_an_attempt_said_earlier_is_not_taken_for_what_a_later_one_said() {
    let mut state = open();
    state.away();
    let (_, first) = state.greet(at(100));
    let (_, given_up) = state.greet(at(600));
    state.opened(at(700), first, opened(Vec::new())).unwrap();
    assert_eq!(state.remaining(at(700)).as_millis() as u64, 100 + ACT - 700);
    assert_eq!(given_up.sent, at(600));
}

#[test]
fn a_slow_service_is_told_of_and_left_only_if_it_stays_silent() {
    let mut state = open();
    let (key, _) = state.join(join(Face::Group, MemberKind::Full), Terms::default()).unwrap();
    joined(&mut state, 1, total(Face::Group, 1, standing(Some(2), None)));
    assert_eq!(state.advisory(at(1), key).unwrap().event, Event::Joined);
    let seq = beat(&mut state, 250).unwrap();
    state.tick(at(500));
    assert_eq!(state.advisory(at(500), key).unwrap().event, Event::Unavailable);
    assert!(!state.wants_connection());
    alive(&mut state, 600, seq);
    assert_eq!(state.resyncs, [EntryId(3)]);
    state
        .frame(at(610), told(Told::Total(wire::to_total(total(Face::Group, 1, standing(Some(2), None))))))
        .unwrap();
    let back = state.advisory(at(610), key).unwrap();
    assert_eq!((back.event, back.ordinal), (Event::Reconnected, Some(2)));
    state.tick(at(750));
    assert!(!state.wants_connection());
    state.tick(at(250 + 625));
    assert!(state.wants_connection(), "five eighths of a lease after what was heard last");
}

#[test]
fn a_wait_ends_when_its_program_ends_the_session() {
    let mut state = open();
    let (key, _) = state.join(join(Face::Lock, MemberKind::Full), Terms::default()).unwrap();
    joined(&mut state, 1, total(Face::Lock, 1, standing(None, None)));
    state.end(None);
    state.finish(Error::Ended);
    assert!(matches!(state.place(key).unwrap().stage, Stage::Ended(Error::Ended)));
}

#[test]
fn a_member_that_is_left_while_it_joins_again_is_released_when_it_is_in() {
    let mut state = open();
    let (key, _) = state.join(join(Face::Group, MemberKind::Full), Terms::default()).unwrap();
    state.hand_out(key);
    state.release(key, None);
    assert_eq!(state.advisory(at(1), key).unwrap().event, Event::Left);
    calls(&mut state, 1);
    joined(&mut state, 1, total(Face::Group, 1, standing(Some(1), Some(41))));
    let frames = state.take_frames(at(1)).into_iter().filter_map(|frame| frame.frame);
    let released = proto::call::Op::Release(proto::Release { entry: 3 });
    assert!(
        frames
            .into_iter()
            .any(|frame| matches!(frame, Frame::Call(call) if call.op == Some(released.clone())))
    );
    assert_eq!(state.seat(at(1), key), None);
}

#[test]
fn a_holder_that_is_asked_to_stop_acts_until_it_has_and_is_told() {
    let mut state = open();
    let (key, _) = state.join(join(Face::Group, MemberKind::Full), Terms::default()).unwrap();
    joined(&mut state, 1, total(Face::Group, 1, standing(Some(1), Some(41))));
    assert_eq!(state.advisory(at(1), key).unwrap().event, Event::Joined);
    let draining = Standing { role: Role::Draining, ..standing(Some(1), Some(41)) };
    state.frame(at(2), change(Face::Group, 2, Some(draining))).unwrap();
    let asked = state.advisory(at(2), key).unwrap();
    assert_eq!((asked.event, asked.role), (Event::Changed, Some(Role::Draining)));
    assert_eq!(asked.token, Some(Token(41)), "it acts until it says that it has stopped");
    assert_eq!(state.place(key).unwrap().asked_to_stop(), Some("it left"));
    state.frame(at(3), change(Face::Group, 3, Some(standing(Some(2), None)))).unwrap();
    let stopped = state.advisory(at(3), key).unwrap();
    assert_eq!((stopped.event, stopped.token), (Event::Standby, None));
    assert_eq!(state.place(key).unwrap().asked_to_stop(), None);
}

/// The frames that call for something, as words.
fn asked(state: &mut State, now: u64) -> Vec<String> {
    let call = |frame: proto::ClientFrame| match frame.frame {
        Some(Frame::Call(call)) => Some(format!("{} {:?}", call.request, call.op.unwrap())),
        _ => None,
    };
    let words = state.take_frames(at(now)).into_iter().filter_map(call);
    words.map(|word| word.split('(').next().unwrap().to_owned()).collect()
}

#[test]
fn for_whom_it_acts_is_said_first_in_each_session() {
    let options = SessionOptions::with_ttl(Duration::from_millis(TTL)).acts_for(SessionId(3));
    let mut state = State::new(Clock::new(), options);
    greet(&mut state, 0);
    let wanted = || join(Face::Lock, MemberKind::Full);
    state.join(wanted(), Terms::default()).unwrap();
    assert_eq!(asked(&mut state, 1), ["1 ActsFor", "2 Join"]);
    state.ended(Reason::Expired, "no keepalive");
    greet(&mut state, 10);
    state.join(wanted(), Terms::default()).unwrap();
    assert_eq!(asked(&mut state, 11), ["3 ActsFor", "4 Join"]);
    state.answered(RequestId(3), proto::answer::Reply::Refused(proto::Refusal::default())).unwrap();
    assert!(state.over().is_none(), "a service that does not know it yet only sees less");
}

/// What ends a lease is told apart: that nothing was heard, and that nothing here ran.
#[test]
fn a_process_that_did_not_run_is_not_called_silence() {
    for (looks, expected) in
        [(vec![300, 600, 900, ACT], None), (vec![300, ACT], Some(Duration::from_millis(690)))]
    {
        let mut state = open();
        looks.into_iter().for_each(|look| state.check(at(look)));
        let Error::WaitLost { stopped, silent, .. } = state.wait_lost("waiting".into()) else { panic!() };
        assert_eq!((stopped, silent), (expected, Duration::from_millis(TTL)));
        greet(&mut state, ACT + 10);
        let Error::WaitLost { stopped, .. } = state.wait_lost("waiting".into()) else { panic!() };
        assert_eq!(stopped, None, "the next time is another");
    }
}
