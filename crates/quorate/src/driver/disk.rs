//! The one record of a process, on disk.
//!
//! **Rule.** The newest record is written to a second file, synced, renamed over the first, and the directory
//! is synced; only then is it durable. Records that come meanwhile wait for the next round, which writes only
//! the last of them. **When it fails.** A failed sync ends the process: nobody knows what the disk holds.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;

/// Reads the record, none if nothing was ever written there.
pub(super) fn read<R: DeserializeOwned>(directory: &Path) -> io::Result<Option<R>> {
    let path = directory.join("record");
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let broken = |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()));
    let (sum, body) = bytes.split_at_checked(4).ok_or_else(|| broken("it is cut off"))?;
    if sum != crc32fast::hash(body).to_be_bytes() {
        return Err(broken("its checksum is wrong"));
    }
    postcard::from_bytes(body).map(Some).map_err(|_| broken("it is not a record of this protocol"))
}

/// A record on its way.
pub(super) struct Writing {
    id: u32,
    bytes: Vec<u8>,
}

/// Encodes a record with its checksum.
pub(super) fn writing<R: Serialize>(id: u32, record: &R) -> Writing {
    let body = postcard::to_allocvec(record).expect("a record of plain values has a form");
    let mut bytes = crc32fast::hash(&body).to_be_bytes().to_vec();
    bytes.extend(body);
    Writing { id, bytes }
}

/// Starts the thread that writes. It tells the number up to which all is durable, or why it gave up; it ends
/// with the sender or with the first error.
pub(super) fn start(
    directory: PathBuf,
    tell: impl Fn(Result<u32, io::Error>) -> bool + Send + 'static,
) -> io::Result<mpsc::Sender<Writing>> {
    fs::create_dir_all(&directory)?;
    let parent = File::open(&directory)?;
    let (sender, queue) = mpsc::channel::<Writing>();
    let write = move || {
        while let Ok(first) = queue.recv() {
            let last = queue.try_iter().last().unwrap_or(first);
            let done = replace(&directory, &parent, &last.bytes).map(|()| last.id);
            let failed = done.is_err();
            if !tell(done) || failed {
                return;
            }
        }
    };
    std::thread::Builder::new().name("disk".into()).spawn(write)?;
    Ok(sender)
}

fn replace(directory: &Path, parent: &File, bytes: &[u8]) -> io::Result<()> {
    let next = directory.join("record.next");
    let mut file = File::create(&next)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&next, directory.join("record"))?;
    parent.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_record_is_read_back_and_a_broken_one_is_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().to_path_buf();
        assert_eq!(read::<u64>(&path).expect("an empty directory is no error"), None);
        let (tell, told) = mpsc::channel();
        let disk = start(path.clone(), move |done| tell.send(done).is_ok()).expect("a thread");
        for id in 1..=5 {
            disk.send(writing(id, &u64::from(id * 10))).expect("it writes");
        }
        while told.recv().expect("it tells").expect("it writes") < 5 {}
        assert_eq!(read::<u64>(&path).expect("it is whole"), Some(50));
        let mut bytes = fs::read(path.join("record")).expect("it is there");
        *bytes.last_mut().expect("it has a body") ^= 1;
        fs::write(path.join("record"), bytes).expect("it can be broken");
        assert!(read::<u64>(&path).expect_err("it is broken").to_string().contains("checksum"));
    }
}
