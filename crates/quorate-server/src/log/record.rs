//! How the log is written down: our own bytes, so that a change of the consensus library's types
//! never changes what a disk holds.
//!
//! Everything is a *frame*. A frame can be skipped and checked without knowing its kind:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 1 | version, [`VERSION`] |
//! | 1 | 1 | kind, [`Kind`] |
//! | 2 | 4 | length n of the body |
//! | 6 | n | body |
//! | 6 + n | 4 | CRC-32 (IEEE) of everything before it |
//!
//! | kind | body |
//! |---|---|
//! | 1 blank | position |
//! | 2 proposal | position, then the core codec's bytes |
//! | 3 membership | position, then members |
//! | 4 ballot | term, node, one byte: 1 if a quorum granted it |
//! | 5 mark | position |
//! | 6 snapshot | last entry, membership (optional positions), members, length and CRC-32 (4) of the state |
//! | 7 truncation | index: this entry and everything after it goes |
//!
//! Integers are little-endian and have eight bytes where nothing else is said. A position is term
//! and index. An optional position is one byte, 0 or 1, and the position if it is 1. Members are:
//! how many voting sets (2), for each how many ids (2) and the ids; how many nodes (4), for each
//! its id, the length of its address (2) and the address.
//!
//! A term has one leader, so an entry's position needs no node. What becomes durable at once is one or
//! more frames: a mark for what was committed by then, a truncation, then entries, each if there are any.

use quorate_core::id::{LogIndex, NodeId};
use quorate_core::state_machine::{Proposal, codec};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The version of the frames that this build writes, and the newest that it reads.
pub const VERSION: u8 = 1;

const HEAD_BYTES: usize = 6;
const CRC_BYTES: usize = 4;

/// A reign of one leader over the log. Grows by elections; one leader a term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A place in the log, with the term that wrote it: two entries with one position are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The term of the leader that proposed the entry.
    pub term: Term,
    /// The index, from 0.
    pub index: LogIndex,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of term {}", self.index, self.term)
    }
}

/// What this node promised in an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ballot {
    /// The term.
    pub term: Term,
    /// The node that the promise was given to.
    pub node: NodeId,
    /// A quorum granted it: that node leads.
    pub committed: bool,
}

/// Who votes, and where everybody is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// One set of voters; two while a change of members is under way.
    pub voters: Vec<BTreeSet<NodeId>>,
    /// Every node, voter or not, and its address.
    pub nodes: BTreeMap<NodeId, String>,
}

impl Members {
    /// A set that nobody is in would let nobody's vote count as a quorum.
    fn check(&self) -> Result<(), RecordError> {
        if self.voters.iter().any(BTreeSet::is_empty) {
            return Err(RecordError::Malformed { what: "a set of voters is empty".to_owned() });
        }
        match self.voters.iter().flatten().find(|voter| !self.nodes.contains_key(voter)) {
            Some(voter) => {
                Err(RecordError::Malformed { what: format!("voter {voter} is not among the nodes") })
            }
            None => Ok(()),
        }
    }
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: a new leader's first entry.
    Blank,
    /// Something for the state machine.
    Proposal(Arc<Proposal>),
    /// The members from here on.
    Membership(Members),
}

/// One log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it stands.
    pub position: Position,
    /// What it says.
    pub payload: Payload,
}

/// What a stored snapshot holds, without the state itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHead {
    /// The last entry that is in the state; none for a state before the first entry.
    pub last: Option<Position>,
    /// The entry that the members come from.
    pub members_at: Option<Position>,
    /// The members.
    pub members: Members,
    /// The length of the state in bytes.
    pub state_bytes: u64,
    /// The CRC-32 of the state.
    pub state_crc: u32,
}

/// What a frame holds. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A blank entry.
    Blank = 1,
    /// An entry for the state machine.
    Proposal = 2,
    /// An entry with members.
    Membership = 3,
    /// A ballot.
    Ballot = 4,
    /// A position: what is committed, or what is purged.
    Mark = 5,
    /// The head of a snapshot.
    Snapshot = 6,
    /// The end of the log is taken back.
    Truncation = 7,
}

impl TryFrom<u8> for Kind {
    type Error = RecordError;
    fn try_from(kind: u8) -> Result<Self, RecordError> {
        Ok(match kind {
            1 => Self::Blank,
            2 => Self::Proposal,
            3 => Self::Membership,
            4 => Self::Ballot,
            5 => Self::Mark,
            6 => Self::Snapshot,
            7 => Self::Truncation,
            kind => return Err(RecordError::UnknownKind { kind }),
        })
    }
}

/// Why bytes are not a frame. Nothing was changed; the store that meets one does not open.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes end too early.
    #[error("a record is cut off: it needs {needed} bytes, {have} are there")]
    Short {
        /// How many bytes the record would have.
        needed: usize,
        /// How many there are.
        have: usize,
    },
    /// It was written by a newer release.
    #[error(
        "a record has version {version}, this release reads up to {VERSION}: it was written by a newer one"
    )]
    UnknownVersion {
        /// The version byte.
        version: u8,
    },
    /// No such kind in this version.
    #[error("a record has kind {kind}, which does not exist in version {VERSION}")]
    UnknownKind {
        /// The kind byte.
        kind: u8,
    },
    /// Another kind belongs there.
    #[error("a record is {found}, where {expected} belongs")]
    WrongKind {
        /// What belongs there.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// The bytes were changed after they were written.
    #[error("a record is damaged: its checksum is {stored:08x}, its bytes give {computed:08x}")]
    Damaged {
        /// The checksum beside the record.
        stored: u32,
        /// The checksum of the record.
        computed: u32,
    },
    /// The checksum holds, but the body does not read as its kind.
    #[error("a record's checksum holds, but its body does not read: {what}")]
    Malformed {
        /// What is wrong with it.
        what: String,
    },
}

impl Entry {
    /// Appends the entry's frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let kind = match &self.payload {
            Payload::Blank => Kind::Blank,
            Payload::Proposal(_) => Kind::Proposal,
            Payload::Membership(_) => Kind::Membership,
        };
        frame(out, kind, |body| {
            put_position(body, self.position);
            match &self.payload {
                Payload::Blank => {}
                Payload::Proposal(proposal) => body.extend_from_slice(&codec::encode(proposal)),
                Payload::Membership(members) => put_members(body, members),
            }
        });
    }
}

impl Ballot {
    /// The ballot's frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        frame(&mut out, Kind::Ballot, |body| {
            body.extend_from_slice(&self.term.0.to_le_bytes());
            body.extend_from_slice(&self.node.0.to_le_bytes());
            body.push(u8::from(self.committed));
        });
        out
    }

    /// Reads the frame of a ballot.
    ///
    /// # Errors
    /// [`RecordError`] if the bytes are not exactly one whole ballot.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut body = only_frame(bytes, Kind::Ballot, "a ballot")?;
        let ballot = Self { term: Term(body.u64()?), node: NodeId(body.u64()?), committed: body.flag()? };
        body.end()?;
        Ok(ballot)
    }
}

impl Position {
    /// Appends a mark's frame to `out`.
    pub fn encode_mark(&self, out: &mut Vec<u8>) {
        frame(out, Kind::Mark, |body| put_position(body, *self));
    }

    /// Reads the frame of a mark.
    ///
    /// # Errors
    /// [`RecordError`] if the bytes are not exactly one whole mark.
    pub fn decode_mark(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut body = only_frame(bytes, Kind::Mark, "a mark")?;
        let position = body.position()?;
        body.end()?;
        Ok(position)
    }
}

impl SnapshotHead {
    /// The head's frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        frame(&mut out, Kind::Snapshot, |body| {
            put_optional_position(body, self.last);
            put_optional_position(body, self.members_at);
            put_members(body, &self.members);
            body.extend_from_slice(&self.state_bytes.to_le_bytes());
            body.extend_from_slice(&self.state_crc.to_le_bytes());
        });
        out
    }

    /// Reads the frame of a head.
    ///
    /// # Errors
    /// [`RecordError`] if the bytes are not exactly one whole head.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut body = only_frame(bytes, Kind::Snapshot, "a snapshot head")?;
        let head = Self {
            last: body.optional_position()?,
            members_at: body.optional_position()?,
            members: body.members()?,
            state_bytes: body.u64()?,
            state_crc: body.u32()?,
        };
        body.end()?;
        Ok(head)
    }
}

/// Appends the frame of a truncation to `out`: the entry at `from` and everything after it goes.
pub fn encode_truncation(from: LogIndex, out: &mut Vec<u8>) {
    frame(out, Kind::Truncation, |body| body.extend_from_slice(&from.0.to_le_bytes()));
}

/// What becomes durable at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// What was committed when it was written.
    pub committed: Option<Position>,
    /// This entry and everything after it goes, before the batch's own entries come.
    pub truncated: Option<LogIndex>,
    /// The entries.
    pub entries: Vec<Entry>,
}

impl Batch {
    /// Reads a batch.
    ///
    /// # Errors
    /// [`RecordError`] if any byte of it does not belong to a whole mark, truncation or entry, or if a truncation
    /// comes after an entry.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, RecordError> {
        let mut batch = Self::default();
        while !bytes.is_empty() {
            let (kind, mut body, rest) = split_frame(bytes)?;
            bytes = rest;
            match kind {
                Kind::Mark => batch.committed = Some(body.position()?),
                Kind::Truncation if !batch.entries.is_empty() => {
                    let what = "a truncation comes after an entry".to_owned();
                    return Err(RecordError::Malformed { what });
                }
                Kind::Truncation => batch.truncated = Some(LogIndex(body.u64()?)),
                Kind::Blank | Kind::Proposal | Kind::Membership => {
                    let (position, payload) = (body.position()?, body.payload(kind)?);
                    batch.entries.push(Entry { position, payload });
                }
                Kind::Ballot | Kind::Snapshot => {
                    let found = format!("{kind:?}").to_lowercase();
                    return Err(RecordError::WrongKind { expected: "a log entry", found });
                }
            }
            body.end()?;
        }
        Ok(batch)
    }
}

fn frame(out: &mut Vec<u8>, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[VERSION, kind as u8, 0, 0, 0, 0]);
    write(out);
    let body_bytes = out.len() - start - HEAD_BYTES;
    let length =
        u32::try_from(body_bytes).expect("a record's body is below 4 GiB: the limits of the log hold it");
    out[start + 2..start + HEAD_BYTES].copy_from_slice(&length.to_le_bytes());
    let crc = crc32fast::hash(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
}

fn put_position(out: &mut Vec<u8>, position: Position) {
    out.extend_from_slice(&position.term.0.to_le_bytes());
    out.extend_from_slice(&position.index.0.to_le_bytes());
}

fn put_optional_position(out: &mut Vec<u8>, position: Option<Position>) {
    out.push(u8::from(position.is_some()));
    if let Some(position) = position {
        put_position(out, position);
    }
}

fn put_members(out: &mut Vec<u8>, members: &Members) {
    put_count16(out, members.voters.len());
    for set in &members.voters {
        put_count16(out, set.len());
        for node in set {
            out.extend_from_slice(&node.0.to_le_bytes());
        }
    }
    let nodes = u32::try_from(members.nodes.len()).expect("a cluster has fewer than 2^32 nodes");
    out.extend_from_slice(&nodes.to_le_bytes());
    for (node, address) in &members.nodes {
        out.extend_from_slice(&node.0.to_le_bytes());
        put_count16(out, address.len());
        out.extend_from_slice(address.as_bytes());
    }
}

fn put_count16(out: &mut Vec<u8>, count: usize) {
    let count = u16::try_from(count).expect("voters and addresses are counted in 16 bits");
    out.extend_from_slice(&count.to_le_bytes());
}

/// Takes the first frame off: its kind, its body and what follows it.
fn split_frame(bytes: &[u8]) -> Result<(Kind, Body<'_>, &[u8]), RecordError> {
    if let Some(&version) = bytes.first()
        && version != VERSION
    {
        return Err(RecordError::UnknownVersion { version });
    }
    let short = |needed| RecordError::Short { needed, have: bytes.len() };
    let head = bytes.get(..HEAD_BYTES).ok_or(short(HEAD_BYTES + CRC_BYTES))?;
    let length = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
    let end = HEAD_BYTES + length;
    let crc = bytes.get(end..end + CRC_BYTES).ok_or(short(end + CRC_BYTES))?;
    let stored = u32::from_le_bytes([crc[0], crc[1], crc[2], crc[3]]);
    let computed = crc32fast::hash(&bytes[..end]);
    if stored != computed {
        return Err(RecordError::Damaged { stored, computed });
    }
    let kind = Kind::try_from(head[1])?;
    Ok((kind, Body { left: &bytes[HEAD_BYTES..end] }, &bytes[end + CRC_BYTES..]))
}

fn only_frame<'a>(bytes: &'a [u8], kind: Kind, expected: &'static str) -> Result<Body<'a>, RecordError> {
    let (found, body, rest) = split_frame(bytes)?;
    if found != kind {
        let found = format!("{found:?}").to_lowercase();
        return Err(RecordError::WrongKind { expected, found });
    }
    if !rest.is_empty() {
        return Err(RecordError::Malformed { what: format!("{} bytes follow it", rest.len()) });
    }
    Ok(body)
}

/// The unread rest of a frame's body.
struct Body<'a> {
    left: &'a [u8],
}

impl<'a> Body<'a> {
    fn payload(&mut self, kind: Kind) -> Result<Payload, RecordError> {
        Ok(match kind {
            Kind::Proposal => Payload::Proposal(Arc::new(self.proposal()?)),
            Kind::Membership => Payload::Membership(self.members()?),
            _ => Payload::Blank,
        })
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], RecordError> {
        let Some((taken, left)) = self.left.split_at_checked(count) else {
            let what = format!("{count} more bytes were expected, {} are left", self.left.len());
            return Err(RecordError::Malformed { what });
        };
        self.left = left;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u16(&mut self) -> Result<u16, RecordError> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, RecordError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, RecordError> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Result<bool, RecordError> {
        match self.array::<1>()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(RecordError::Malformed { what: format!("a flag is {other}") }),
        }
    }

    fn position(&mut self) -> Result<Position, RecordError> {
        Ok(Position { term: Term(self.u64()?), index: LogIndex(self.u64()?) })
    }

    fn optional_position(&mut self) -> Result<Option<Position>, RecordError> {
        if self.flag()? { self.position().map(Some) } else { Ok(None) }
    }

    fn members(&mut self) -> Result<Members, RecordError> {
        let mut members = Members::default();
        for _ in 0..self.u16()? {
            let mut set = BTreeSet::new();
            for _ in 0..self.u16()? {
                set.insert(NodeId(self.u64()?));
            }
            members.voters.push(set);
        }
        for _ in 0..self.u32()? {
            let node = NodeId(self.u64()?);
            let length = usize::from(self.u16()?);
            let address = String::from_utf8(self.take(length)?.to_vec()).map_err(|_| {
                RecordError::Malformed { what: format!("the address of node {node} is not text") }
            })?;
            members.nodes.insert(node, address);
        }
        members.check()?;
        Ok(members)
    }

    fn proposal(&mut self) -> Result<Proposal, RecordError> {
        let bytes = std::mem::take(&mut self.left);
        codec::decode(bytes).map_err(|error| RecordError::Malformed { what: error.to_string() })
    }

    fn end(&self) -> Result<(), RecordError> {
        if self.left.is_empty() {
            return Ok(());
        }
        Err(RecordError::Malformed { what: format!("{} bytes are left over", self.left.len()) })
    }
}

#[cfg(test)]
mod tests;
