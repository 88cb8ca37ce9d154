//! The names and numbers of the service, each its own type, so that no bare integer crosses a function.

use alloc::string::{String, ToString};
use core::fmt;
use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

number!(
    /// A server node. Issued by the log and never used again; names are labels.
    NodeId
);
number!(
    /// A client's session. Issued by the log and never used again.
    SessionId
);
number!(
    /// One place in one queue: one acquisition, one membership. Release and cancel name it,
    /// so that they free nothing else. Issued by the log and never used again.
    EntryId
);
number!(
    /// A client's number for a call, unique and growing within its session, from 1.
    RequestId
);
number!(
    /// Counts the installed views of one group name, from 1.
    ViewId
);
number!(
    /// Counts everything that happened to one group name; an event stream without a gap has no jump in it.
    Version
);
number!(
    /// Counts the starts of lease keeping over the whole life of a cluster, from 1.
    Reign
);
number!(
    /// Counts the connections that one session has had; only the newest may speak.
    Generation
);
number!(
    /// The fencing token: a replicated counter that takes one step for each grant and grows over all
    /// names for ever. A resource remembers the greatest it accepted and refuses smaller ones.
    /// In JSON it is a decimal string, since it may pass 2^53.
    Token
);
number!(
    /// Something that a queue does later. Issued by the log and never used again.
    TaskId
);
number!(
    /// A position in the log.
    LogIndex
);

/// A seat of a group, from 0. A fence is kept for each (resource, seat).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SeatNo(pub u32);

impl fmt::Display for SeatNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A member's position in its group: 1 is first. On the wire a member that is cut off reads -1,
/// and 0 is never used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ordinal(pub u64);

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

macro_rules! wide {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl core::str::FromStr for $name {
            type Err = core::num::ParseIntError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                u128::from_str_radix(text, 16).map(Self)
            }
        }
    };
}

wide!(
    /// A cluster. Drawn at random when it is founded or restored; a grant carries it and a guard
    /// refuses another's. Shown as 32 hexadecimal digits.
    ClusterId
);
wide!(
    /// What proves that a connection speaks for a session: 128 random bits drawn by the client.
    /// It is also the nonce of the opening, so a retried opening finds the session that it made.
    Secret
);
wide!(
    /// A tool's own random number, so that its retried call can be told from a new one.
    ClientId
);

/// The longest name in bytes. Long enough for a path, short enough for a table.
pub const NAME_BYTES_MAX: usize = 255;

/// A group, lock or resource name: 1 to 255 bytes of printable UTF-8 without spaces at the ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Name(String);

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameError {
    /// It has no characters.
    Empty,
    /// It has more than 255 bytes.
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// It holds a control character, or begins or ends with a space.
    Unprintable,
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "a name needs at least one character"),
            Self::TooLong { bytes } => {
                write!(f, "a name has at most {NAME_BYTES_MAX} bytes, this one has {bytes}")
            }
            Self::Unprintable => {
                write!(f, "a name holds no control characters and no space at its ends")
            }
        }
    }
}

impl core::error::Error for NameError {}

impl Name {
    /// Checks a text and takes it as a name.
    ///
    /// # Errors
    /// [`NameError`] says what is wrong with the text.
    pub fn new(text: impl Into<String>) -> Result<Self, NameError> {
        let text = text.into();
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong { bytes: text.len() });
        }
        if text.chars().any(char::is_control) || text.trim() != text {
            return Err(NameError::Unprintable);
        }
        Ok(Self(text))
    }

    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::str::FromStr for Name {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text.to_string())
    }
}
