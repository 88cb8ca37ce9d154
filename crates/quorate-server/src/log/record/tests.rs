//! The bytes that disks hold. A test that fails here means that existing logs no longer open: give the
//! format a new version instead of changing the expected bytes.

use super::*;
use quorate_core::id::ClusterId;
use quorate_core::state_machine::{Command, Limits};
use quorate_core::time::Wall;

fn at(term: u64, index: u64) -> Position {
    Position { term: Term(term), index: LogIndex(index) }
}

fn proposal() -> Arc<Proposal> {
    let command = Command::Begin { node: NodeId(3), nonce: 0x0102 };
    Arc::new(Proposal { at: Wall(1_000), command })
}

fn members() -> Members {
    Members {
        voters: vec![BTreeSet::from([NodeId(1)]), BTreeSet::from([NodeId(1), NodeId(2)])],
        nodes: BTreeMap::from([(NodeId(1), String::new()), (NodeId(2), "b:1".to_owned())]),
    }
}

fn entry(term: u64, index: u64, payload: Payload) -> Entry {
    Entry { position: at(term, index), payload }
}

fn bytes_of(entry: &Entry) -> Vec<u8> {
    let mut out = Vec::new();
    entry.encode(&mut out);
    out
}

/// Compares with bytes as people write them: hexadecimal, with spaces where a field ends.
fn golden(bytes: &[u8], expected: &str) {
    let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found, expected.replace(char::is_whitespace, ""));
}

#[test]
fn golden_blank() {
    let blank = entry(2, 7, Payload::Blank);
    golden(&bytes_of(&blank), "01 01 10000000 0200000000000000 0700000000000000 e1d1784d");
}

#[test]
fn golden_proposal() {
    let entry = entry(2, 8, Payload::Proposal(proposal()));
    golden(&bytes_of(&entry), "01 02 17000000 0200000000000000 0800000000000000 01 e807 01 03 8202 17188776");
}

#[test]
fn golden_membership() {
    let entry = entry(1, 0, Payload::Membership(members()));
    golden(
        &bytes_of(&entry),
        "01 03 49000000 0100000000000000 0000000000000000
         0200 0100 0100000000000000 0200 0100000000000000 0200000000000000
         02000000 0100000000000000 0000 0200000000000000 0300 623a31 80130ae9",
    );
}

#[test]
fn golden_ballots() {
    let asked = Ballot { term: Term(5), node: NodeId(2), committed: false };
    golden(&asked.encode(), "01 04 11000000 0500000000000000 0200000000000000 00 e80814bb");
    let granted = Ballot { committed: true, ..asked };
    golden(&granted.encode(), "01 04 11000000 0500000000000000 0200000000000000 01 7e3813cc");
    assert_eq!(Ballot::decode(&asked.encode()), Ok(asked));
    assert_eq!(Ballot::decode(&granted.encode()), Ok(granted));
}

#[test]
fn golden_mark() {
    let mut out = Vec::new();
    at(3, 9).encode_mark(&mut out);
    golden(&out, "01 05 10000000 0300000000000000 0900000000000000 f95663e4");
    assert_eq!(Position::decode_mark(&out), Ok(at(3, 9)));
}

#[test]
fn golden_snapshot_heads() {
    let full = SnapshotHead {
        last: Some(at(3, 9)),
        members_at: Some(at(1, 0)),
        members: members(),
        state_bytes: 300,
        state_crc: 0xdead_beef,
    };
    golden(
        &full.encode(),
        "01 06 67000000 01 0300000000000000 0900000000000000 01 0100000000000000 0000000000000000
         0200 0100 0100000000000000 0200 0100000000000000 0200000000000000
         02000000 0100000000000000 0000 0200000000000000 0300 623a31
         2c01000000000000 efbeadde 6f973703",
    );
    let empty = SnapshotHead {
        last: None,
        members_at: None,
        members: Members::default(),
        state_bytes: 0,
        state_crc: 0,
    };
    golden(&empty.encode(), "01 06 14000000 00 00 0000 00000000 0000000000000000 00000000 61954735");
    for head in [full, empty] {
        assert_eq!(SnapshotHead::decode(&head.encode()), Ok(head));
    }
}

#[test]
fn golden_truncation() {
    let mut out = Vec::new();
    encode_truncation(LogIndex(9), &mut out);
    golden(&out, "01 07 08000000 0900000000000000 3cf38428");
    let expected = Batch { truncated: Some(LogIndex(9)), ..Batch::default() };
    assert_eq!(Batch::decode(&out), Ok(expected));
    let mut late = bytes_of(&entry(2, 7, Payload::Blank));
    late.extend_from_slice(&out);
    let what = "a truncation comes after an entry".to_owned();
    assert_eq!(Batch::decode(&late), Err(RecordError::Malformed { what }));
}

#[test]
fn a_batch_reads_back_with_what_was_committed() {
    let entries = vec![
        entry(1, 0, Payload::Membership(members())),
        entry(1, 1, Payload::Blank),
        entry(2, 2, Payload::Proposal(proposal())),
    ];
    let mut value = Vec::new();
    at(1, 0).encode_mark(&mut value);
    encode_truncation(LogIndex(0), &mut value);
    entries.iter().for_each(|entry| entry.encode(&mut value));
    let expected = Batch { committed: Some(at(1, 0)), truncated: Some(LogIndex(0)), entries };
    assert_eq!(Batch::decode(&value), Ok(expected));
}

#[test]
fn every_proposal_reads_back() {
    let found = Command::Found { cluster: ClusterId(u128::MAX), limits: Limits::default() };
    let found = Arc::new(Proposal { at: Wall(0), command: found });
    let bytes = bytes_of(&entry(u64::MAX, u64::MAX, Payload::Proposal(found.clone())));
    let batch = Batch::decode(&bytes).unwrap();
    assert_eq!(batch.entries, [entry(u64::MAX, u64::MAX, Payload::Proposal(found))]);
}

#[test]
fn any_changed_byte_is_noticed() {
    let whole = bytes_of(&entry(2, 8, Payload::Proposal(proposal())));
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0x10;
        assert!(Batch::decode(&changed).is_err(), "byte {at} was changed");
    }
    for end in 1..whole.len() {
        let error = Batch::decode(&whole[..end]).unwrap_err();
        assert!(matches!(error, RecordError::Short { .. }), "cut to {end}: {error}");
    }
}

#[test]
fn errors_are_sentences() {
    let mut newer = bytes_of(&entry(2, 7, Payload::Blank));
    newer[0] = 2;
    assert_eq!(
        Batch::decode(&newer).unwrap_err().to_string(),
        "a record has version 2, this release reads up to 1: it was written by a newer one"
    );
    let mut unknown = vec![VERSION, 99, 0, 0, 0, 0];
    unknown.extend_from_slice(&crc32fast::hash(&unknown).to_le_bytes());
    assert_eq!(
        Batch::decode(&unknown).unwrap_err().to_string(),
        "a record has kind 99, which does not exist in version 1"
    );
    let ballot = Ballot { term: Term(1), node: NodeId(1), committed: true };
    assert_eq!(
        Batch::decode(&ballot.encode()).unwrap_err().to_string(),
        "a record is ballot, where a log entry belongs"
    );
    let mut damaged = bytes_of(&entry(2, 7, Payload::Blank));
    damaged[8] ^= 1;
    assert!(matches!(Batch::decode(&damaged).unwrap_err(), RecordError::Damaged { .. }));
}

#[test]
fn members_that_cannot_vote_are_refused() {
    let nobody = Members { voters: vec![BTreeSet::new()], nodes: BTreeMap::new() };
    let stranger = Members { voters: vec![BTreeSet::from([NodeId(4)])], nodes: BTreeMap::new() };
    for (members, why) in [(nobody, "a set of voters is empty"), (stranger, "voter 4 is not among the nodes")]
    {
        let error = Batch::decode(&bytes_of(&entry(1, 0, Payload::Membership(members)))).unwrap_err();
        assert_eq!(error, RecordError::Malformed { what: why.to_owned() });
    }
}
