//! The bytes of proposals and snapshots, each behind a version byte.
//!
//! A proposal is postcard: compact, and written once for each command. A snapshot is CBOR (RFC 8949) with
//! its fields named, so a later version reads an older one, its new fields taking their defaults.
//!
//! A proposal's bytes stay readable for ever: new commands go at the end of their enum, and a command
//! that is in use keeps its fields. The tests pin the bytes of every command.

use super::{Proposal, StateMachine};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use serde::de::DeserializeOwned;

/// The version of a proposal's bytes.
pub const PROPOSAL_VERSION: u8 = 1;

/// The version of a snapshot's bytes.
pub const SNAPSHOT_VERSION: u8 = 1;

/// Why bytes could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CodecError {
    /// There are none.
    Empty,
    /// They were written by a newer version.
    Version {
        /// What they say.
        found: u8,
        /// The newest that is understood.
        known: u8,
    },
    /// They are damaged, or not what they should be.
    Malformed(String),
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "the record is empty"),
            Self::Version { found, known } => {
                write!(f, "the record has format {found}, and this version reads up to {known}")
            }
            Self::Malformed(why) => write!(f, "the record is damaged: {why}"),
        }
    }
}

impl core::error::Error for CodecError {}

/// The bytes of a proposal.
pub fn encode(proposal: &Proposal) -> Vec<u8> {
    let bytes = alloc::vec![PROPOSAL_VERSION];
    postcard::to_extend(proposal, bytes).expect("plain data can always be written")
}

/// Reads a proposal.
///
/// # Errors
/// [`CodecError`] says what is wrong with the bytes.
pub fn decode(bytes: &[u8]) -> Result<Proposal, CodecError> {
    read(PROPOSAL_VERSION, bytes)
}

impl StateMachine {
    /// All of the state as bytes.
    pub fn to_snapshot(&self) -> Vec<u8> {
        let mut bytes = alloc::vec![SNAPSHOT_VERSION];
        ciborium::into_writer(self, &mut bytes).expect("plain data can always be written");
        bytes
    }

    /// The state from the bytes of a snapshot.
    ///
    /// # Errors
    /// [`CodecError`] says what is wrong with the bytes.
    pub fn from_snapshot(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut body = body(SNAPSHOT_VERSION, bytes)?;
        let mut state: Self = ciborium::from_reader(&mut body).map_err(malformed)?;
        state.reindex();
        whole(state, body)
    }
}

fn read<T: DeserializeOwned>(known: u8, bytes: &[u8]) -> Result<T, CodecError> {
    let (value, rest) = postcard::take_from_bytes(body(known, bytes)?).map_err(malformed)?;
    whole(value, rest)
}

/// What follows the version byte.
fn body(known: u8, bytes: &[u8]) -> Result<&[u8], CodecError> {
    let (found, body) = bytes.split_first().ok_or(CodecError::Empty)?;
    if *found == known { Ok(body) } else { Err(CodecError::Version { found: *found, known }) }
}

fn whole<T>(value: T, rest: &[u8]) -> Result<T, CodecError> {
    match rest.len() {
        0 => Ok(value),
        more => Err(CodecError::Malformed(alloc::format!("{more} bytes too many"))),
    }
}

fn malformed(error: impl fmt::Display) -> CodecError {
    CodecError::Malformed(error.to_string())
}
