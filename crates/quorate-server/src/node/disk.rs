//! The free space where the data is. When it runs short, what would grow the log is refused while there is
//! still room for release, leave and expiry (RULES R28).

use quorate_core::time::Wall;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often the space is looked at. Below a reserve of 32 MiB that allows 32 MiB/s of log.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is known of the space.
#[derive(Clone, Debug)]
pub struct Space {
    free: Arc<AtomicU64>,
    reserve: u64,
}

impl Space {
    /// Space that never runs short: a store that is not on a disk.
    pub fn unlimited() -> Self {
        Self { free: Arc::new(AtomicU64::new(u64::MAX)), reserve: 0 }
    }

    /// Looks at a directory now and then, from a task of the tokio runtime that ends with the value.
    pub fn watch(path: PathBuf, reserve: u64) -> Self {
        let space = Self { free: Arc::new(AtomicU64::new(free_bytes(&path))), reserve };
        let free = Arc::downgrade(&space.free);
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(LOOK_EVERY);
            loop {
                ticks.tick().await;
                let Some(free) = free.upgrade() else { return };
                free.store(free_bytes(&path), Ordering::Relaxed);
            }
        });
        space
    }

    /// The free bytes when last looked.
    pub fn free_bytes(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Only release, leave and expiry may be logged.
    pub fn is_low(&self) -> bool {
        self.free_bytes() < self.reserve
    }

    /// Why something was refused.
    pub(super) fn why(&self) -> String {
        format!(
            "the disk has {} MiB left, less than the {} MiB kept for release, leave and expiry: \
             free some space; what is held stays held",
            self.free_bytes() >> 20,
            self.reserve >> 20
        )
    }
}

/// What an unprivileged process could still write. A directory that cannot be asked is taken as full
/// only by the write that fails.
fn free_bytes(path: &Path) -> u64 {
    match rustix::fs::statvfs(path) {
        Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize),
        Err(_) => u64::MAX,
    }
}

/// The wall clock, for labels.
#[allow(clippy::disallowed_methods)] // The one place where the service reads it.
pub fn wall() -> Wall {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Wall(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
