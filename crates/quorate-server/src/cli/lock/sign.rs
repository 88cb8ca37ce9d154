//! Signs of progress that a command gives: it touches a file, and that is seen here.
//!
//! A file needs nothing from a command but `touch`. It is looked at as often as the deadline is, at least four times a
//! second, and only that its time has changed counts.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::SystemTime;

/// The file. It is removed in the end.
#[derive(Debug)]
pub(super) struct Sign {
    path: PathBuf,
    seen: Option<SystemTime>,
}

impl Sign {
    pub(super) fn new() -> io::Result<Self> {
        let name = format!("quorate-{}-{:016x}.progress", std::process::id(), rand::random::<u64>());
        let path = std::env::temp_dir().join(name);
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let seen = touched(&path);
        Ok(Self { path, seen })
    }

    pub(super) fn path(&self) -> String {
        self.path.display().to_string()
    }

    /// Whether a sign was given since the last look.
    pub(super) fn was_given(&mut self) -> bool {
        let now = touched(&self.path);
        now.is_some() && std::mem::replace(&mut self.seen, now) != now
    }
}

fn touched(path: &PathBuf) -> Option<SystemTime> {
    fs::metadata(path).and_then(|file| file.modified()).ok()
}

impl Drop for Sign {
    fn drop(&mut self) {
        // The command may have removed it.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_is_seen_once_and_the_file_goes_in_the_end() {
        let mut sign = Sign::new().unwrap();
        let path = sign.path.clone();
        assert!(!sign.was_given());
        fs::File::open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(sign.was_given() && !sign.was_given());
        drop(sign);
        assert!(!path.exists());
    }
}
