//! A disk in memory that forgets, fails and stalls on demand.
//!
//! It has two files, one for tables and one for entries; a sync is of one of them. Until a sync a write is only in
//! the cache: a crash keeps any part of it, in sectors of 512 bytes. A failed sync loses the cache for good, as
//! kernels do. Faults count what happens to both files.

#![allow(dead_code)] // The store's own tests share this file, and use what these do not.
#![allow(clippy::unwrap_used)]

use redb::StorageBackend;
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex};

const SECTOR_BYTES: usize = 512;

/// What goes wrong, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The sync after this many more fails, and every operation after it.
    Sync(u64),
    /// The write after this many more fails without effect, and every operation after it.
    Write(u64),
    /// The write after this many more stops in its middle, and every operation after it fails.
    ShortWrite(u64),
    /// No file can grow beyond so many bytes.
    Full(u64),
}

/// The disk. Clones share it; each is a backend: the file of tables, or that of entries.
#[derive(Clone, Default)]
pub(crate) struct FaultyDisk {
    image: Arc<Mutex<Image>>,
    gate: Arc<Gate>,
    file: usize,
}

#[derive(Default)]
struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
}

#[derive(Default)]
struct Image {
    files: [Bytes; 2],
    fault: Option<Fault>,
    broken: bool,
    syncs: u64,
}

/// One file.
#[derive(Default)]
struct Bytes {
    /// What readers see.
    cached: Vec<u8>,
    /// What a crash certainly keeps.
    durable: Vec<u8>,
    /// What it may lose, in order.
    unsynced: Vec<Unsynced>,
}

enum Unsynced {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl FaultyDisk {
    /// The file of entries.
    pub(crate) fn entries(&self) -> Self {
        Self { file: 1, ..self.clone() }
    }

    /// Plans a fault.
    pub(crate) fn fail(&self, fault: Fault) {
        self.image.lock().unwrap().fault = Some(fault);
    }

    /// How many syncs there were.
    pub(crate) fn syncs(&self) -> u64 {
        self.image.lock().unwrap().syncs
    }

    /// Makes syncs wait.
    pub(crate) fn close_gate(&self) {
        *self.gate.closed.lock().unwrap() = true;
    }

    /// Lets waiting syncs go on.
    pub(crate) fn open_gate(&self) {
        *self.gate.closed.lock().unwrap() = false;
        self.gate.opened.notify_all();
    }

    /// The disk after a power loss: what was synced, and of the rest whatever the seed says.
    pub(crate) fn crash(&self, seed: u64) -> Self {
        let image = self.image.lock().unwrap();
        let mut dice = Dice(seed);
        let files = [0, 1].map(|file| image.files[file].crash(&mut dice));
        let image = Image { files, ..Image::default() };
        Self { image: Arc::new(Mutex::new(image)), gate: Arc::default(), file: self.file }
    }
}

impl fmt::Debug for FaultyDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["a faulty disk", "the entries of a faulty disk"][self.file])
    }
}

/// A small reproducible generator (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// The next number.
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}

impl Image {
    fn usable(&self) -> io::Result<()> {
        if self.broken { Err(io::Error::other("the disk is gone")) } else { Ok(()) }
    }

    /// Counts down to the fault; true when it is due.
    fn due(&mut self, wanted: fn(u64) -> Fault) -> bool {
        let left = match self.fault {
            Some(Fault::Sync(left) | Fault::Write(left) | Fault::ShortWrite(left)) => left,
            _ => return false,
        };
        if self.fault != Some(wanted(left)) {
            return false;
        }
        if left > 0 {
            self.fault = Some(wanted(left - 1));
            return false;
        }
        self.broken = true;
        true
    }

    fn fits(&self, end: usize) -> io::Result<()> {
        match self.fault {
            Some(Fault::Full(limit)) if end as u64 > limit => {
                Err(io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()))
            }
            _ => Ok(()),
        }
    }
}

impl Bytes {
    fn crash(&self, dice: &mut Dice) -> Self {
        let mut left = self.durable.clone();
        for unsynced in &self.unsynced {
            match unsynced {
                Unsynced::Length(length) if dice.coin() => left.resize(*length, 0),
                Unsynced::Length(_) => {}
                Unsynced::Write(offset, bytes) => {
                    for (nth, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
                        if dice.coin() {
                            put(&mut left, offset + nth * SECTOR_BYTES, sector);
                        }
                    }
                }
            }
        }
        Self { cached: left.clone(), durable: left, unsynced: Vec::new() }
    }

    fn store(&mut self, offset: usize, bytes: &[u8]) {
        put(&mut self.cached, offset, bytes);
        self.unsynced.push(Unsynced::Write(offset, bytes.to_vec()));
    }

    /// What was only cached is on the disk from now on.
    fn settle(&mut self) {
        for unsynced in std::mem::take(&mut self.unsynced) {
            match unsynced {
                Unsynced::Length(length) => self.durable.resize(length, 0),
                Unsynced::Write(offset, bytes) => put(&mut self.durable, offset, &bytes),
            }
        }
    }
}

fn put(image: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if image.len() < end {
        image.resize(end, 0);
    }
    image[offset..end].copy_from_slice(bytes);
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

impl StorageBackend for FaultyDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.image.lock().unwrap().files[self.file].cached.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let image = self.image.lock().unwrap();
        let bytes = image.files[self.file].cached.get(at(offset)..at(offset) + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut image = self.image.lock().unwrap();
        image.usable()?;
        image.fits(at(len))?;
        let file = &mut image.files[self.file];
        file.cached.resize(at(len), 0);
        file.unsynced.push(Unsynced::Length(at(len)));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut closed = self.gate.closed.lock().unwrap();
        while *closed {
            closed = self.gate.opened.wait(closed).unwrap();
        }
        drop(closed);
        let mut image = self.image.lock().unwrap();
        image.usable()?;
        image.syncs += 1;
        if image.due(Fault::Sync) {
            return Err(io::Error::other("the sync failed"));
        }
        image.files[self.file].settle();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut image = self.image.lock().unwrap();
        image.usable()?;
        image.fits(at(offset) + data.len())?;
        if image.due(Fault::Write) {
            return Err(io::Error::other("the write failed"));
        }
        if image.due(Fault::ShortWrite) {
            image.files[self.file].store(at(offset), &data[..data.len() / 2]);
            return Err(io::Error::other("the write stopped in its middle"));
        }
        image.files[self.file].store(at(offset), data);
        Ok(())
    }
}
