//! The bytes of the file of entries. A test that fails here means that existing logs no longer open.

use super::super::record::{Entry, Payload, Position, Term};
use super::*;

#[test]
fn golden_head() {
    let segment = Segment { start: 0, bytes: 8_192, first: 3, salt: 0x0102_0304, head: 0, newest: None };
    let head = segment.encode_head();
    let found: String = head.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found, "71756f726c6f67310020000000000000030000000000000004030201000000006a7aeb93");
    let mut block = [0; BLOCK_BYTES as usize];
    block[..HEAD_BYTES].copy_from_slice(&head);
    assert_eq!(Segment::decode_heads(0, &block), Some(segment));
    for at in 0..HEAD_BYTES {
        let mut changed = block;
        changed[at] ^= 0x10;
        assert_eq!(Segment::decode_heads(0, &changed), None, "byte {at} was changed");
    }
}

#[test]
fn a_torn_head_leaves_the_one_before() {
    let before = Segment { start: 0, bytes: 8_192, first: 3, salt: 1, head: 0, newest: None };
    let after = Segment { first: 9, salt: 2, head: SECOND_HEAD, ..before };
    let mut block = [0; BLOCK_BYTES as usize];
    block[..HEAD_BYTES].copy_from_slice(&before.encode_head());
    let head = after.encode_head();
    for written in 0..=HEAD_BYTES {
        block[SECOND_HEAD..SECOND_HEAD + written].copy_from_slice(&head[..written]);
        let expected = if written < HEAD_BYTES { before } else { after };
        assert_eq!(Segment::decode_heads(0, &block), Some(expected), "{written} bytes were written");
    }
}

#[test]
fn golden_batch() {
    let mut blocks = Vec::new();
    encode_batch(&mut blocks, 7, 3, b"frames");
    assert_eq!(blocks.len() as u64, BLOCK_BYTES);
    let found: String = blocks[..26].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(found, "0300000000000000060000004193dfcb434ba0ec6672616d6573");
    assert!(blocks[26..].iter().all(|byte| *byte == 0));
    assert_eq!(decode_batch(&blocks, 0, 7, 3), Some(&b"frames"[..]));
    assert_eq!(decode_batch(&blocks, 0, 8, 3), None, "another use of the segment");
    assert_eq!(decode_batch(&blocks, 0, 7, 4), None, "another batch");
    for at in 0..26 {
        let mut changed = blocks.clone();
        changed[at] ^= 0x10;
        assert_eq!(decode_batch(&changed, 0, 7, 3), None, "byte {at} was changed");
    }
}

/// Each frame is whole by its own checksum, and still they are not what was written together.
#[test]
fn whole_frames_of_another_batch_are_noticed() {
    let frames = |term| {
        let mut frames = Vec::new();
        for index in 0..40 {
            let position = Position { term: Term(term), index: LogIndex(index) };
            Entry { position, payload: Payload::Blank }.encode(&mut frames);
        }
        frames
    };
    let mut old = Vec::new();
    encode_batch(&mut old, 7, 3, &frames(1));
    let mut torn = Vec::new();
    encode_batch(&mut torn, 7, 3, &frames(2));
    let half = BATCH_HEAD_BYTES + 20 * 26;
    torn[half..].copy_from_slice(&old[half..]);
    let length = frames(1).len();
    assert!(Batch::decode(&torn[BATCH_HEAD_BYTES..BATCH_HEAD_BYTES + length]).is_ok());
    assert_eq!(decode_batch(&torn, 0, 7, 3), None);
}
