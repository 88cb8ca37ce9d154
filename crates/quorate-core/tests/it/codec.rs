//! The bytes in the log are a contract with every later version: these are pinned.

use crate::log::{Log, name};
use quorate_core::id::*;
use quorate_core::state_machine::codec::{decode, encode};
use quorate_core::state_machine::*;
use quorate_core::time::{Span, Wall};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn commands() -> Vec<(&'static str, Command)> {
    let join = Join {
        group: name("g"),
        face: Face::Lock,
        kind: MemberKind::OrdinalOnly,
        mode: Mode::Shared,
        wait: true,
        name: "n".into(),
        metadata: [("k".to_string(), "v".to_string())].into(),
        weight: 300,
        policy: PolicyWish {
            seats: Some(2),
            numbering: Some(Numbering::MinimalMove),
            order: Some(Order::Weight),
            preempt: Some(Preempt::OnCommand),
            rejoin: Some(Rejoin::Sticky { grace: Span::from_millis(5) }),
            handover: Some(Handover::Delay { delay: Span::from_millis(6) }),
        },
    };
    let call = |op| Command::Call {
        session: SessionId(1),
        generation: Generation(2),
        request: RequestId(3),
        acknowledged: RequestId(1),
        op,
    };
    let tool = |op| Command::Tool { client: ClientId(1), op };
    let policy = PolicyWish { handover: Some(Handover::Seal), ..PolicyWish::default() };
    vec![
        (
            "found",
            Command::Found { cluster: ClusterId(1 << 100), limits: Limits { level: 1, ..Limits::default() } },
        ),
        ("begin", Command::Begin { node: NodeId(1), nonce: 5 }),
        (
            "open",
            Command::Open {
                secret: Secret(9),
                ttl: Span::from_secs(2),
                on_disconnect: OnDisconnect::Release,
                label: "h".into(),
            },
        ),
        ("attach", Command::Attach { session: SessionId(1), secret: Secret(9), lapsed: true }),
        ("mark", Command::Mark { reign: Reign(3), sessions: vec![SessionId(1), SessionId(300)] }),
        (
            "checkpoint",
            Command::Checkpoint { reign: Reign(3), remaining: vec![(SessionId(1), Span::from_millis(7))] },
        ),
        (
            "timer",
            Command::TimerFired {
                timer: Timer::Lease { session: SessionId(1), generation: Generation(2) },
                reign: Reign(3),
                silent: Span::from_millis(2_020),
            },
        ),
        ("disconnected", Command::Disconnected { session: SessionId(1), generation: Generation(2) }),
        ("join", call(Op::Join(join))),
        ("release", call(Op::Release { entry: EntryId(4) })),
        ("cancel", call(Op::Cancel { entry: EntryId(4) })),
        ("describe", call(Op::Describe { entry: EntryId(4), metadata: Default::default() })),
        ("end", call(Op::End)),
        ("create", tool(ToolOp::CreateGroup { group: name("g"), face: Face::Group, policy })),
        ("delete", tool(ToolOp::DeleteGroup { group: name("g"), created: Some(LogIndex(8)) })),
        (
            "task",
            Command::TimerFired {
                timer: Timer::Task { task: TaskId(6) },
                reign: Reign(3),
                silent: Span::ZERO,
            },
        ),
        (
            "join_on",
            call(Op::JoinOn(
                Log::join_op("g", Face::Barrier),
                Terms {
                    max_hold: Some(Span::from_millis(7)),
                    progress: Some(Span::from_millis(8)),
                    blocking: true,
                    break_deadlock: true,
                },
            )),
        ),
        ("stopped", call(Op::Stopped { entry: EntryId(4) })),
        ("progress", call(Op::Progress { entry: EntryId(4) })),
        (
            "transfer",
            tool(ToolOp::Transfer {
                group: name("g"),
                to: "b".into(),
                drain: Span::from_millis(9),
                force: true,
            }),
        ),
        ("set_seats", tool(ToolOp::SetSeats { group: name("g"), seats: 3 })),
        ("end_group", tool(ToolOp::EndGroup { group: name("g"), created: None })),
        ("close", tool(ToolOp::CloseSession { session: SessionId(1), why: "w".into() })),
        ("raise_level", tool(ToolOp::RaiseLevel { from: 1, to: 2 })),
        ("acts_for", call(Op::ActsFor { session: SessionId(300) })),
    ]
}

#[test]
fn the_bytes_of_every_command_are_pinned() {
    let golden = include_str!("golden.txt");
    let written: String = commands()
        .into_iter()
        .map(|(kind, command)| {
            let proposal = Proposal { at: Wall(1_000), command };
            let bytes = encode(&proposal);
            assert_eq!(decode(&bytes).unwrap(), proposal, "{kind}");
            format!("{kind} {}\n", hex(&bytes))
        })
        .collect();
    assert_eq!(
        written, golden,
        "a command's bytes changed: an older log could not be read. New kinds go at the end of their \
         enum, and fields of one in use never change"
    );
}

#[test]
fn damaged_and_newer_bytes_are_told_apart() {
    let proposal = Proposal { at: Wall(1), command: Command::Begin { node: NodeId(1), nonce: 5 } };
    let bytes = encode(&proposal);
    assert_eq!(decode(&[]), Err(CodecError::Empty));
    assert!(matches!(decode(&bytes[..3]), Err(CodecError::Malformed(_))));
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(decode(&longer), Err(CodecError::Malformed(_))));
    let newer = [&[2], &bytes[1..]].concat();
    assert_eq!(decode(&newer), Err(CodecError::Version { found: 2, known: 1 }));
}

#[test]
fn a_snapshot_and_the_tail_equal_the_whole_log() {
    let mut log = Log::founded();
    let mut snapshot = None;
    for n in 1..=9_u64 {
        let session = log.open(n.into());
        let entry = log.member(session, "g").entry;
        log.acquire(session, "orders");
        if n == 5 {
            snapshot = Some((log.history.len(), log.machine.to_snapshot()));
        }
        if n % 3 == 0 {
            log.release(session, entry);
            log.expire(SessionId(n - 1));
        }
    }
    let (at, bytes) = snapshot.unwrap();
    let mut restored = StateMachine::from_snapshot(&bytes).unwrap();
    for (index, proposal) in &log.history[at..] {
        restored.apply(*index, proposal);
    }
    assert_eq!(restored, log.machine);
}

/// A small state with something of everything.
fn state() -> StateMachine {
    let mut log = Log::founded();
    let (one, two) = (log.open(1), log.open_with(2, OnDisconnect::Release));
    let metadata = [("zone".to_string(), "a".to_string())].into();
    let policy = PolicyWish { seats: Some(1), ..PolicyWish::default() };
    log.join(one, Join { metadata, policy, ..Log::join_op("g", Face::Group) });
    log.join(two, Join { kind: MemberKind::Observer, ..Log::join_op("g", Face::Group) });
    log.acquire(one, "orders");
    log.acquire(two, "orders");
    let left = log.acquire(two, "left").entry;
    log.release(two, left);
    let op = ToolOp::CloseSession { session: two, why: "maintenance".into() };
    log.apply(Command::Tool { client: ClientId(1), op });
    log.machine
}

#[test]
fn the_first_snapshot_format_is_read_for_ever() {
    let stored = include_str!("snapshot_1.txt").trim();
    let bytes: Vec<u8> =
        (0..stored.len()).step_by(2).map(|at| u8::from_str_radix(&stored[at..at + 2], 16).unwrap()).collect();
    let read = StateMachine::from_snapshot(&bytes).unwrap();
    let expected = state();
    let told = |machine: &StateMachine| {
        let views = ["g", "orders", "left"].map(|group| machine.group_view(&name(group), 100));
        (
            machine.session_list(None, 100),
            views,
            machine.last_token(),
            machine.reign(),
            machine.limits().sessions,
        )
    };
    assert_eq!(told(&read), told(&expected), "what an older version stored means something else now");
    assert_eq!(StateMachine::from_snapshot(&read.to_snapshot()).unwrap(), read);
}

#[test]
fn a_cut_or_longer_snapshot_is_damaged() {
    let bytes = state().to_snapshot();
    for cut in [0, 1, 2, bytes.len() / 2, bytes.len() - 1] {
        assert!(StateMachine::from_snapshot(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    assert!(StateMachine::from_snapshot(&[&bytes[..], &[0]].concat()).is_err());
}
