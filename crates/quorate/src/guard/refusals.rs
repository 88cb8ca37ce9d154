//! The file of the last refusals. It helps people to find a stale writer and decides nothing, so it is
//! neither synced nor checked: what cannot be read is begun again, and what cannot be written is lost.

use super::report::{Refusals, RefusedOffer};
use super::state::{RESOURCES_MAX, truncate};
use super::store::Store;
use super::{Name, SeatNo, Token, rfc3339};
use quorate_core::time::Wall;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

/// How much of a reason is kept, in bytes.
const REASON_BYTES_MAX: usize = 300;

/// Used under the short lock of the state.
pub(super) struct RefusalFile {
    path: PathBuf,
    temporary: PathBuf,
}

#[derive(Default, Serialize, Deserialize)]
struct StoredRefusals {
    count: String,
    last: Vec<StoredRefusal>,
}

#[derive(Serialize, Deserialize)]
struct StoredRefusal {
    at: String,
    seat: SeatNo,
    token: String,
    highest: Option<String>,
    reason: String,
    pid: u32,
}

impl RefusalFile {
    pub(super) fn at(store: &Store) -> Self {
        Self { path: store.beside(".refusals"), temporary: store.beside(".refusals.tmp") }
    }

    pub(super) fn read(&self) -> BTreeMap<Name, Refusals> {
        let stored: BTreeMap<Name, StoredRefusals> = fs::read(&self.path)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        stored.into_iter().map(|(name, refusals)| (name, refusals.into())).collect()
    }

    /// Adds one. A resource beyond the limit is not noted: its name may be made up.
    pub(super) fn push(&self, resource: &Name, mut refused: RefusedOffer) {
        let mut all = self.read();
        if all.len() >= RESOURCES_MAX && !all.contains_key(resource) {
            return;
        }
        truncate(&mut refused.reason, REASON_BYTES_MAX);
        all.entry(resource.clone()).or_default().push(refused);
        if let Err(error) = self.write(&all) {
            tracing::warn!(%error, path = %self.path.display(), "a refusal could not be written down");
        }
    }

    fn write(&self, all: &BTreeMap<Name, Refusals>) -> io::Result<()> {
        let stored: BTreeMap<&Name, StoredRefusals> =
            all.iter().map(|(name, refusals)| (name, refusals.into())).collect();
        fs::write(&self.temporary, serde_json::to_vec(&stored)?)?;
        fs::rename(&self.temporary, &self.path)
    }
}

impl From<&Refusals> for StoredRefusals {
    fn from(refusals: &Refusals) -> Self {
        Self { count: refusals.count.to_string(), last: refusals.last.iter().map(Into::into).collect() }
    }
}

impl From<&RefusedOffer> for StoredRefusal {
    fn from(refused: &RefusedOffer) -> Self {
        Self {
            at: rfc3339(refused.at),
            seat: refused.seat,
            token: refused.token.to_string(),
            highest: refused.highest.map(|token| token.to_string()),
            reason: refused.reason.clone(),
            pid: refused.pid,
        }
    }
}

impl From<StoredRefusals> for Refusals {
    fn from(stored: StoredRefusals) -> Self {
        Self {
            count: stored.count.parse().unwrap_or_default(),
            last: stored.last.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<StoredRefusal> for RefusedOffer {
    fn from(stored: StoredRefusal) -> Self {
        let at = stored.at.parse::<jiff::Timestamp>().ok();
        Self {
            at: Wall(at.map_or(0, |at| u64::try_from(at.as_millisecond()).unwrap_or(0))),
            seat: stored.seat,
            token: Token(stored.token.parse().unwrap_or_default()),
            highest: stored.highest.and_then(|token| token.parse().ok()).map(Token),
            reason: stored.reason,
            pid: stored.pid,
        }
    }
}
