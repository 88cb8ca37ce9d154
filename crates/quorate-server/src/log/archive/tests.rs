//! Files that are whole, and every way in which one is not.

use super::*;
use quorate_core::id::{Generation, LogIndex, Name, RequestId, Secret, Token};
use quorate_core::state_machine::{
    Command, Face, Join, Limits, MemberKind, Mode, OnDisconnect, Op, Proposal, ToolOp,
};
use quorate_core::time::{Span, Wall};

fn sample() -> Archive {
    let mut machine = StateMachine::new();
    let mut index = 0;
    let mut apply = |command| {
        index += 1;
        machine.apply(LogIndex(index), &Proposal { at: Wall(5), command });
    };
    apply(Command::Found { cluster: ClusterId(0xab), limits: Limits::default() });
    let secret = Secret(1);
    let ttl = Span::from_secs(10);
    apply(Command::Open { secret, ttl, on_disconnect: OnDisconnect::Hold, label: "host".into() });
    let join = Join {
        group: Name::new("orders").unwrap(),
        face: Face::Lock,
        kind: MemberKind::Full,
        mode: Mode::Exclusive,
        wait: true,
        name: "a".into(),
        metadata: BTreeMap::new(),
        weight: 0,
        policy: Default::default(),
    };
    apply(Command::Call {
        session: quorate_core::id::SessionId(1),
        generation: Generation(1),
        request: RequestId(1),
        acknowledged: RequestId(0),
        op: Op::Join(join),
    });
    let (group, policy) = (Name::new("kept").unwrap(), Default::default());
    let op = ToolOp::CreateGroup { group, face: Face::Lock, policy };
    apply(Command::Tool { client: quorate_core::id::ClientId(1), op });
    let position = Position { term: Term(2), index: LogIndex(9) };
    Archive::of("a test", Some(position), machine, 7).unwrap()
}

fn restore(floor: u64) -> Restore {
    Restore {
        cluster: ClusterId(0xcd),
        secret: Secret(99),
        floor: Token(floor),
        longest: Span::from_secs(30),
        at: Wall(8),
        why: "a test".into(),
    }
}

#[test]
fn a_snapshot_survives_its_file() {
    let (root, archive) = (tempfile::tempdir().unwrap(), sample());
    let file = root.path().join("a.snapshot");
    write(&file, &archive.encode()).unwrap();
    let read = Archive::read(&file).unwrap();
    assert_eq!((&read.head, &read.machine), (&archive.head, &archive.machine));
    assert!(matches!(write(&file, b"other").unwrap_err(), ArchiveError::Exists { .. }));
    assert_eq!(Archive::read(&file).unwrap().machine, archive.machine, "nothing was overwritten");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "no draft is left");
}

#[test]
fn every_cut_and_every_changed_byte_is_noticed() {
    let bytes = sample().encode();
    for end in 0..bytes.len() {
        assert!(Archive::decode("f", &bytes[..end]).is_err(), "cut after {end} bytes");
    }
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(Archive::decode("f", &changed).is_err(), "byte {at} changed unnoticed");
    }
    let mut longer = bytes;
    longer.push(b'x');
    assert!(matches!(Archive::decode("f", &longer), Err(ArchiveError::Length { .. })));
}

#[test]
fn what_is_no_snapshot_and_what_is_a_newer_one_are_told_apart() {
    let foreign = Archive::decode("photo.jpg", b"\xff\xd8\xff\xe0 not text\n").unwrap_err();
    assert_eq!(foreign.to_string(), "photo.jpg is no snapshot of quorate: its first line is another one");
    let newer = Archive::decode("f", b"quorate-snapshot 2\nwhatever comes then").unwrap_err();
    assert!(matches!(newer, ArchiveError::Newer { found: 2, .. }), "{newer}");
    let empty = Archive::decode("f", b"").unwrap_err();
    assert!(matches!(empty, ArchiveError::Foreign { .. }), "{empty}");
}

#[test]
fn r30_a_restored_state_is_another_cluster_without_sessions_above_the_floor() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    let restored = sample().restore(&dir, &restore(500)).unwrap();
    assert_eq!(restored, Restored { ended: 1, kept: 1, floor: Token(500) });
    let again = Archive::of_stopped(&dir, 0).unwrap();
    assert_eq!((again.head.term, again.head.index), (2, 9));
    let machine = again.machine;
    assert_eq!((machine.cluster(), machine.last_token()), (Some(ClusterId(0xcd)), Token(500)));
    let wait = machine.restoring().expect("the leases of the old cluster may last");
    let sessions = machine.session_list(None, 10);
    assert_eq!(sessions.len(), 1, "only the one that stands for the wait: {sessions:?}");
    assert_eq!((sessions[0].session, sessions[0].ttl), (wait, Span::from_secs(30)));
    let names: Vec<String> =
        machine.group_list(None, 10).into_iter().map(|group| group.name.to_string()).collect();
    assert_eq!(names, ["kept"], "what somebody created stays, what was only used goes");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "no draft is left");
}

#[test]
fn a_directory_that_is_not_empty_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("photo.jpg"), "").unwrap();
    let error = sample().restore(root.path(), &restore(0)).unwrap_err();
    assert!(matches!(error, ArchiveError::Exists { .. }), "{error}");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    let error = Archive::of_stopped(root.path(), 0).unwrap_err();
    assert!(matches!(error, ArchiveError::Nothing { .. }), "{error}");
}

#[test]
fn a_directory_in_use_is_not_read() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("data");
    sample().restore(&dir, &restore(0)).unwrap();
    let _used = DataDir::open(&dir).unwrap();
    let error = Archive::of_stopped(&dir, 0).unwrap_err();
    assert!(matches!(error, ArchiveError::Dir(DirError::InUse { .. })), "{error}");
}
