//! The stored form of a guard's floors.
//!
//! ```text
//! quorate-guard-state 1
//! crc32 8f3a0c11 bytes 431
//! { ...JSON, tokens as decimal strings, times in RFC 3339... }
//! ```
//! The first line is for ever: a newer version is told from damage by it. The checksum covers the JSON text.
//! Nobody but this module knows the form; the rest works with [`State`].

use super::report::ResetLine;
use super::{ClusterId, Floor, Mark, Name, SeatNo, Token, rfc3339};
use quorate_core::time::Wall;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// The version that this program writes, and the newest that it reads.
pub(super) const VERSION: u32 = 1;

/// How many resources one state file serves. The whole file is rewritten when a floor rises, so the cost of
/// a new holder grows with this: at the limit it is about half a megabyte.
pub const RESOURCES_MAX: usize = 4096;

/// How many resets are remembered.
const RESETS_MAX: usize = 256;

/// How much of an operator's reason is kept, in bytes.
const WHY_BYTES_MAX: usize = 1_000;

const MAGIC: &str = "quorate-guard-state";

/// Which lock file a state belongs to, so that a copy of either is told from the pair (RULES R34).
///
/// The device number is only looked at where the system does not know when a file was born: it may change
/// when the machine starts again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// Drawn at random when the state was founded; the lock file holds it too.
    pub(super) id: u128,
    /// The lock file's device.
    pub(super) device: u64,
    /// The lock file's inode.
    pub(super) inode: u64,
    /// When the lock file was made, in nanoseconds since 1970, if the file system keeps that.
    pub(super) born_ns: Option<u64>,
}

/// What a guard remembers durably.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) origin: Origin,
    /// Counts the writes of this state, from 1.
    pub(super) generation: u64,
    /// The floor of resources that have none of their own.
    pub(super) base: Mark,
    pub(super) floors: BTreeMap<Name, Floor>,
    pub(super) resets: VecDeque<ResetLine>,
}

/// Why bytes are not a state.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DecodeError {
    Newer(u32),
    Corrupt(String),
}

impl State {
    pub(super) fn founded(origin: Origin, base: Mark) -> Self {
        Self { origin, generation: 0, base, floors: BTreeMap::new(), resets: VecDeque::new() }
    }

    /// The floor that holds for a resource.
    pub(super) fn floor(&self, resource: &Name) -> Floor {
        self.floors.get(resource).cloned().unwrap_or_else(|| Floor::starting_at(self.base))
    }

    /// The greatest token over all resources.
    pub(super) fn highest(&self) -> Token {
        self.floors.values().map(Floor::highest).fold(self.base.token, Token::max)
    }

    pub(super) fn note_reset(&mut self, mut line: ResetLine) {
        truncate(&mut line.why, WHY_BYTES_MAX);
        if self.resets.len() == RESETS_MAX {
            self.resets.pop_front();
        }
        self.resets.push_back(line);
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let body = serde_json::to_string_pretty(&StoredState::from(self))
            .expect("a state is plain data with text keys");
        let checksum = crc32fast::hash(body.as_bytes());
        let bytes = body.len();
        format!("{MAGIC} {VERSION}\ncrc32 {checksum:08x} bytes {bytes}\n{body}\n").into_bytes()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let text = std::str::from_utf8(bytes).map_err(|_| corrupt("it is not text"))?;
        let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
        let version: u32 = first
            .strip_prefix(MAGIC)
            .and_then(|version| version.trim().parse().ok())
            .ok_or_else(|| corrupt("its first line is not that of a guard's state"))?;
        if version > VERSION {
            return Err(DecodeError::Newer(version));
        }
        let (second, body) = rest.split_once('\n').ok_or_else(|| corrupt("it ends after its first line"))?;
        let body = checked_body(second, body)?;
        let stored: StoredState = serde_json::from_str(body).map_err(|error| corrupt(&error.to_string()))?;
        stored.try_into()
    }
}

fn corrupt(what: &str) -> DecodeError {
    DecodeError::Corrupt(what.into())
}

/// The body, if it has the length and the checksum of the second line.
fn checked_body<'a>(line: &str, rest: &'a str) -> Result<&'a str, DecodeError> {
    let words: Vec<&str> = line.split(' ').collect();
    let ["crc32", checksum, "bytes", bytes] = words[..] else {
        return Err(corrupt("its second line holds no checksum"));
    };
    let bytes: usize = bytes.parse().map_err(|_| corrupt("its second line holds no length"))?;
    let body = rest
        .get(..bytes)
        .ok_or_else(|| corrupt(&format!("{bytes} bytes of text were written, {} are there", rest.len())))?;
    let found = crc32fast::hash(body.as_bytes());
    if u32::from_str_radix(checksum, 16) != Ok(found) {
        return Err(corrupt(&format!("its checksum is {found:08x}, not {checksum}")));
    }
    Ok(body)
}

/// Cuts a text at a character's end.
pub(super) fn truncate(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        let end = (0..=bytes_max).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
    }
}

#[derive(Serialize, Deserialize)]
struct StoredState {
    generation: String,
    origin: StoredOrigin,
    base: StoredMark,
    resources: BTreeMap<Name, StoredFloor>,
    resets: Vec<StoredReset>,
}

#[derive(Serialize, Deserialize)]
struct StoredOrigin {
    id: String,
    lock_device: String,
    lock_inode: String,
    lock_born_ns: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct StoredFloor {
    base: StoredMark,
    seats: BTreeMap<SeatNo, StoredMark>,
}

#[derive(Serialize, Deserialize)]
struct StoredMark {
    token: String,
    cluster: Option<String>,
    accepted_at: String,
}

#[derive(Serialize, Deserialize)]
struct StoredReset {
    at: String,
    resource: Option<Name>,
    from: String,
    to: String,
    why: String,
    user: u32,
    pid: u32,
}

impl From<&State> for StoredState {
    fn from(state: &State) -> Self {
        Self {
            generation: state.generation.to_string(),
            origin: StoredOrigin {
                id: format!("{:032x}", state.origin.id),
                lock_device: state.origin.device.to_string(),
                lock_inode: state.origin.inode.to_string(),
                lock_born_ns: state.origin.born_ns.map(|ns| ns.to_string()),
            },
            base: state.base.into(),
            resources: state.floors.iter().map(|(name, floor)| (name.clone(), floor.into())).collect(),
            resets: state.resets.iter().map(Into::into).collect(),
        }
    }
}

impl From<&Floor> for StoredFloor {
    fn from(floor: &Floor) -> Self {
        Self {
            base: floor.base().into(),
            seats: floor.seats().map(|(seat, mark)| (seat, mark.into())).collect(),
        }
    }
}

impl From<Mark> for StoredMark {
    fn from(mark: Mark) -> Self {
        Self {
            token: mark.token.to_string(),
            cluster: mark.cluster.map(|cluster| cluster.to_string()),
            accepted_at: rfc3339(mark.at),
        }
    }
}

impl From<&ResetLine> for StoredReset {
    fn from(line: &ResetLine) -> Self {
        Self {
            at: rfc3339(line.at),
            resource: line.resource.clone(),
            from: line.from.to_string(),
            to: line.to.to_string(),
            why: line.why.clone(),
            user: line.user,
            pid: line.pid,
        }
    }
}

impl TryFrom<StoredState> for State {
    type Error = DecodeError;
    fn try_from(stored: StoredState) -> Result<Self, DecodeError> {
        let id = u128::from_str_radix(&stored.origin.id, 16).map_err(|_| corrupt("its origin has no id"))?;
        let born_ns = stored.origin.lock_born_ns.as_deref().map(number);
        Ok(Self {
            generation: number(&stored.generation)?,
            origin: Origin {
                id,
                device: number(&stored.origin.lock_device)?,
                inode: number(&stored.origin.lock_inode)?,
                born_ns: born_ns.transpose()?,
            },
            base: stored.base.try_into()?,
            floors: stored
                .resources
                .into_iter()
                .map(|(name, floor)| Ok((name, floor.try_into()?)))
                .collect::<Result<_, DecodeError>>()?,
            resets: stored.resets.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?,
        })
    }
}

impl TryFrom<StoredFloor> for Floor {
    type Error = DecodeError;
    fn try_from(stored: StoredFloor) -> Result<Self, DecodeError> {
        let seats: BTreeMap<SeatNo, Mark> = stored
            .seats
            .into_iter()
            .map(|(seat, mark)| Ok((seat, mark.try_into()?)))
            .collect::<Result<_, DecodeError>>()?;
        Ok(Self::of(stored.base.try_into()?, seats))
    }
}

impl TryFrom<StoredMark> for Mark {
    type Error = DecodeError;
    fn try_from(stored: StoredMark) -> Result<Self, DecodeError> {
        let cluster = stored
            .cluster
            .map(|text| text.parse::<ClusterId>())
            .transpose()
            .map_err(|_| corrupt("a cluster is not 32 hexadecimal digits"))?;
        Ok(Self { token: Token(number(&stored.token)?), cluster, at: time(&stored.accepted_at)? })
    }
}

impl TryFrom<StoredReset> for ResetLine {
    type Error = DecodeError;
    fn try_from(stored: StoredReset) -> Result<Self, DecodeError> {
        Ok(Self {
            at: time(&stored.at)?,
            resource: stored.resource,
            from: Token(number(&stored.from)?),
            to: Token(number(&stored.to)?),
            why: stored.why,
            user: stored.user,
            pid: stored.pid,
        })
    }
}

fn number(text: &str) -> Result<u64, DecodeError> {
    text.parse().map_err(|_| corrupt(&format!("'{text}' is not a number")))
}

fn time(text: &str) -> Result<Wall, DecodeError> {
    text.parse::<jiff::Timestamp>()
        .ok()
        .and_then(|time| u64::try_from(time.as_millisecond()).ok())
        .map(Wall)
        .ok_or_else(|| corrupt(&format!("'{text}' is not a time")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_core::fence::Offer;

    fn sample() -> State {
        let origin = Origin { id: 77, device: 1, inode: u64::MAX, born_ns: Some(1_700_000_000_123_456_789) };
        let mut state = State::founded(origin, Mark::default());
        let mut floor = Floor::default();
        let accepted =
            floor.admit(Offer::new(ClusterId(u128::MAX), Token(u64::MAX))).expect("the floor is empty");
        floor.raise(accepted, Wall(1_700_000_000_123));
        state.floors.insert(Name::new("straße/orders").expect("a name"), floor);
        state.note_reset(ResetLine {
            at: Wall(5),
            resource: None,
            from: Token(9),
            to: Token(0),
            why: "é".repeat(800),
            user: 0,
            pid: 1,
        });
        state
    }

    #[test]
    fn a_state_survives_its_stored_form() {
        let state = sample();
        assert_eq!(State::decode(&state.encode()), Ok(state.clone()));
        assert_eq!(state.resets[0].why.len(), WHY_BYTES_MAX);
    }

    #[test]
    fn r34_every_cut_and_every_changed_byte_is_noticed() {
        let state = sample();
        let bytes = state.encode();
        for end in 0..bytes.len() - 1 {
            assert!(State::decode(&bytes[..end]).is_err(), "cut after {end} bytes");
        }
        for at in 0..bytes.len() - 1 {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            match State::decode(&changed) {
                Err(_) => {}
                Ok(decoded) => {
                    assert_eq!(decoded, state, "byte {at} changed the meaning unnoticed")
                }
            }
        }
    }

    #[test]
    fn r34_a_newer_version_is_not_called_damage() {
        assert_eq!(State::decode(b"quorate-guard-state 2\nwhatever comes then"), Err(DecodeError::Newer(2)));
    }
}
