//! The entries on disk: one file whose blocks are there, and filled, before they are needed.
//!
//! Problem: every answer waits for a sync. It costs one write and one flush if the file keeps its blocks and its
//! length; a file that grows, or a tree that changes in eight places, costs two to three times that.
//! Rule: what becomes durable together is one *batch*. It is written in blocks of its own after the batch before it,
//! with one write and one sync, and is acknowledged after that; no block is written twice between two purges.
//! Cost: an entry that comes alone takes a block of [`BLOCK_BYTES`].
//! Source: the log segments of etcd and ZooKeeper, which are also filled before use.
//!
//! The file is a row of segments. What is in a segment is void when everything in it is purged, and the segment is
//! used again: it gets a new head, synced before anything follows.
//!
//! | in a segment | bytes | what |
//! |---|---|---|
//! | a head, at the start and at [`SECOND_HEAD`] of the first block | 8 | `quorlog1` |
//! | | 8 | the length of the segment in bytes, its head included |
//! | | 8 | the number of its first batch, from 1 |
//! | | 8 | a random salt |
//! | | 4 | CRC-32 (IEEE) of the head so far |
//! | a batch, from a block's start | 8 | its number; one more than the batch before it in the segment |
//! | | 4 | length n of its frames (`record.rs`) |
//! | | 8 | SipHash-1-3 of number, length and frames, with the salt and the number as its keys |
//! | | n | the frames, then zeros to the end of the block |
//!
//! Integers are little-endian. The salt keeps what a client wrote, or what an earlier use of the segment left, from
//! ever reading as a batch. A second CRC would not do: over frames that end with their own, of the same polynomial,
//! it is the same whatever they hold, and a batch in which a torn write left old frames would read as whole.
//!
//! **After a crash** the first block that does not begin the next batch ends the log: only the last batch can have
//! been under way, and nobody was answered for it. A batch behind that point is damage, and the log does not open;
//! entries that are missing in the middle are found by the disk, which knows what is purged. What is read at a start
//! is synced before it counts, since a process that was killed may have left it in the kernel's memory only.
//!
//! A segment that is used again gets its head in the place that does not hold the last one, so that a torn one leaves
//! the segment as it was. Of two whole heads the one with the greater first batch counts.

use super::disk::OpenError;
use super::record::Batch;
use quorate_core::id::LogIndex;
use redb::StorageBackend;
use siphasher::sip::SipHasher13;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// What is written and read at once. Disks and page caches work in it, so no write touches the block of an
/// acknowledged batch.
pub(super) const BLOCK_BYTES: u64 = 4_096;

/// The length of a segment in a file. It holds a thousand lone entries.
pub(super) const SEGMENT_BYTES: u64 = 4 << 20;

/// When a log becomes longer than it ever was, the next segment is filled in so many pieces, one with each batch
/// from the middle of the present one on. Filled at once it would hold the answers up for ten milliseconds.
const PIECES: u64 = 32;

/// The memory that is kept for the next batch. Few are larger than a segment's tenth.
const BUFFER_BYTES: usize = 256 << 10;

/// The second place of a head, in a sector that a torn write of the first does not touch.
const SECOND_HEAD: usize = 2_048;

const MAGIC: &[u8; 8] = b"quorlog1";
const HEAD_BYTES: usize = 36;
const BATCH_HEAD_BYTES: usize = 20;

/// What is filled at once at most; a piece of a segment in a file.
static ZEROS: [u8; 128 << 10] = [0; 128 << 10];

/// One open file of entries.
pub(super) struct Journal {
    file: Box<dyn StorageBackend>,
    /// The length of segments to come.
    segment_bytes: u64,
    /// In the order in which they lie in the file.
    segments: Vec<Segment>,
    /// Which one is written to.
    current: usize,
    /// Where the next batch goes, from the start of the file.
    at: u64,
    /// The number of the next batch.
    next: u64,
    /// How far the file is filled, behind the last segment too.
    filled: u64,
    /// The greatest index of an entry so far.
    greatest: Option<u64>,
    /// The greatest index that is purged.
    purged: Option<u64>,
    /// The blocks of the batch under way; kept for its memory.
    blocks: Vec<u8>,
}

/// Whether a file, if it is there, was given a batch since it was created. The first batch of all lies behind the
/// first block, and whatever takes its place later has a number as well.
pub(super) fn holds_entries(file: &Path) -> io::Result<bool> {
    let mut number = [0; 8];
    let read = File::open(file).and_then(|file| file.read_exact_at(&mut number, BLOCK_BYTES));
    match read {
        Ok(()) => Ok(u64::from_le_bytes(number) != 0),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) => Ok(false),
        Err(error) => Err(error),
    }
}

/// One segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    /// From the start of the file.
    start: u64,
    bytes: u64,
    /// The number of its first batch.
    first: u64,
    salt: u64,
    /// Where its head is in its first block.
    head: usize,
    /// The greatest index of an entry in it or before it. Before it counts too, since what it takes back must be
    /// known for as long as the entries are there that it took back.
    newest: Option<u64>,
}

impl Segment {
    fn end(&self) -> u64 {
        self.start + self.bytes
    }

    fn encode_head(&self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[..8].copy_from_slice(MAGIC);
        head[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        head[16..24].copy_from_slice(&self.first.to_le_bytes());
        head[24..32].copy_from_slice(&self.salt.to_le_bytes());
        let crc = crc32fast::hash(&head[..32]);
        head[32..].copy_from_slice(&crc.to_le_bytes());
        head
    }

    /// Reads the head that counts in a first block; none if there is none.
    fn decode_heads(start: u64, block: &[u8]) -> Option<Self> {
        let heads = [0, SECOND_HEAD].map(|head| Self::decode_head(start, block, head));
        heads.into_iter().flatten().max_by_key(|segment| segment.first)
    }

    fn decode_head(start: u64, block: &[u8], head: usize) -> Option<Self> {
        let (fields, crc) = block.get(head..head + HEAD_BYTES)?.split_at(32);
        let whole = fields.starts_with(MAGIC) && crc32fast::hash(fields) == u32_at(crc, 0);
        let (bytes, first, salt) = (u64_at(fields, 8), u64_at(fields, 16), u64_at(fields, 24));
        let sound = bytes > BLOCK_BYTES && bytes % BLOCK_BYTES == 0 && start.checked_add(bytes).is_some();
        (whole && sound).then_some(Self { start, bytes, first, salt, head, newest: None })
    }
}

/// What was found in a file, in order.
pub(super) type Found = Vec<Batch>;

impl Journal {
    /// Sets up a file, whatever was in it, durably.
    pub(super) fn create(file: Box<dyn StorageBackend>, segment_bytes: u64) -> io::Result<Self> {
        file.set_len(0)?;
        let mut journal = Self::new(file, segment_bytes);
        journal.add_segment(BLOCK_BYTES)?;
        Ok(journal)
    }

    fn new(file: Box<dyn StorageBackend>, segment_bytes: u64) -> Self {
        let (segments, blocks) = (Vec::new(), Vec::new());
        let (current, at, next, filled) = (0, 0, 0, 0);
        let (greatest, purged) = (None, None);
        Self { file, segment_bytes, segments, current, at, next, filled, greatest, purged, blocks }
    }

    /// Opens a file that was set up, and reads everything in it.
    pub(super) fn open(
        file: Box<dyn StorageBackend>,
        name: &str,
        segment_bytes: u64,
    ) -> Result<(Self, Found), OpenError> {
        let reader = Reader { file: &*file, name };
        file.sync_data().map_err(|error| reader.failed(error))?;
        let mut segments = reader.segments()?;
        let mut order: Vec<usize> = (0..segments.len()).collect();
        order.sort_by_key(|at| segments[*at].first);
        let Some(&current) = order.last() else {
            return Err(OpenError::Lost { file: name.to_owned() });
        };
        let (mut found, mut greatest) = (Found::new(), None);
        let (mut at, mut next) = (0, 0);
        for nth in order {
            let end;
            (end, at, next) = reader.batches(&segments[nth], nth == current, &mut found)?;
            greatest = greatest.max(end);
            segments[nth].newest = greatest;
        }
        Ok((Self { segments, current, at, next, greatest, ..Self::new(file, segment_bytes) }, found))
    }

    /// Writes a batch and makes it durable. `newest` is the greatest index of an entry in it. After an error nothing
    /// is known of it, and the journal must not be written to any more.
    pub(super) fn append(&mut self, frames: &[u8], newest: Option<LogIndex>) -> io::Result<()> {
        let bytes = blocks_of(BATCH_HEAD_BYTES as u64 + frames.len() as u64);
        if self.at + bytes > self.segments[self.current].end() {
            self.next_segment(bytes)?;
        }
        self.fill_ahead()?;
        let segment = &mut self.segments[self.current];
        encode_batch(&mut self.blocks, segment.salt, self.next, frames);
        self.file.write(self.at, &self.blocks)?;
        self.file.sync_data()?;
        self.blocks.shrink_to(BUFFER_BYTES);
        self.greatest = self.greatest.max(newest.map(|index| index.0));
        segment.newest = self.greatest;
        self.at += bytes;
        self.next += 1;
        Ok(())
    }

    /// Entries up to this one are not needed any more, by what is durable elsewhere.
    pub(super) fn purge(&mut self, upto: LogIndex) {
        self.purged = self.purged.max(Some(upto.0));
    }

    /// How many segments there are, and how many of them are free.
    #[cfg(test)]
    pub(super) fn segments(&self) -> (usize, usize) {
        let free = (0..self.segments.len()).filter(|nth| self.is_free(*nth));
        (self.segments.len(), free.count())
    }

    /// Whether nothing in a segment is needed any more.
    fn is_free(&self, nth: usize) -> bool {
        nth != self.current && self.segments[nth].newest <= self.purged
    }

    /// Goes on in a free segment that has room for so many bytes of blocks, or in a new one.
    fn next_segment(&mut self, bytes: u64) -> io::Result<()> {
        let needed = BLOCK_BYTES + bytes;
        let fits = |nth: &usize| self.is_free(*nth) && self.segments[*nth].bytes >= needed;
        match (0..self.segments.len()).filter(fits).min_by_key(|nth| self.segments[*nth].first) {
            Some(nth) => self.use_segment(nth),
            None => self.add_segment(needed),
        }
    }

    /// Adds a segment at the end of the file, with room for so many bytes at least, and goes on in it.
    fn add_segment(&mut self, needed: u64) -> io::Result<()> {
        let bytes = needed.next_multiple_of(self.segment_bytes);
        let start = self.end();
        if self.filled < start + bytes {
            while self.filled < start + bytes {
                self.fill(start + bytes)?;
            }
            self.file.sync_data()?;
        }
        self.segments.push(Segment { start, bytes, first: 0, salt: 0, head: SECOND_HEAD, newest: None });
        self.use_segment(self.segments.len() - 1)
    }

    /// Fills a piece of the segment that will be added, if one will. The sync of the next batch is the piece's too.
    fn fill_ahead(&mut self) -> io::Result<()> {
        let segment = self.segments[self.current];
        let is_early = self.at < segment.start + segment.bytes / 2;
        if is_early || (0..self.segments.len()).any(|nth| self.is_free(nth)) {
            return Ok(());
        }
        self.fill(self.end() + self.segment_bytes)
    }

    /// Fills the file by a piece, up to `end` at most.
    fn fill(&mut self, end: u64) -> io::Result<()> {
        let from = self.filled.max(self.end());
        let piece = blocks_of(self.segment_bytes / PIECES).min(end.saturating_sub(from));
        let piece = ZEROS.len().min(usize::try_from(piece).unwrap_or(usize::MAX));
        if piece > 0 {
            self.file.write(from, &ZEROS[..piece])?;
            self.filled = from + piece as u64;
        }
        Ok(())
    }

    /// Where the last segment ends.
    fn end(&self) -> u64 {
        self.segments.last().map_or(0, Segment::end)
    }

    /// Gives a segment a new head, durably, and goes on in it.
    fn use_segment(&mut self, nth: usize) -> io::Result<()> {
        // Also if the segment before has no batch, so that no two begin with one number.
        self.next += 1;
        let Segment { start, bytes, head, .. } = self.segments[nth];
        let (first, salt, newest) = (self.next, rand::random(), self.greatest);
        let segment = Segment { start, bytes, first, salt, head: SECOND_HEAD - head, newest };
        self.file.write(start + segment.head as u64, &segment.encode_head())?;
        self.file.sync_data()?;
        self.segments[nth] = segment;
        (self.current, self.at) = (nth, start + BLOCK_BYTES);
        Ok(())
    }
}

/// The end of a segment: the greatest index of an entry in it, where the next batch goes, and its number.
type End = (Option<u64>, u64, u64);

/// Reads a file that was set up.
struct Reader<'a> {
    file: &'a dyn StorageBackend,
    name: &'a str,
}

impl Reader<'_> {
    /// The segments, in the order in which they lie.
    fn segments(&self) -> Result<Vec<Segment>, OpenError> {
        let length = self.file.len().map_err(|error| self.failed(error))?;
        let mut segments = Vec::new();
        let mut start = 0;
        while start < length {
            let block = self.read(start, BLOCK_BYTES.min(length - start))?;
            match Segment::decode_heads(start, &block) {
                Some(segment) if segment.end() <= length => {
                    start = segment.end();
                    segments.push(segment);
                }
                _ => {
                    self.expect_unused(start, length)?;
                    break;
                }
            }
        }
        Ok(segments)
    }

    /// What a crash leaves of a segment that was not set up yet holds nothing but a torn head.
    fn expect_unused(&self, start: u64, end: u64) -> Result<(), OpenError> {
        let mut at = start + BLOCK_BYTES;
        while at < end {
            let piece = self.read(at, (ZEROS.len() as u64).min(end - at))?;
            if piece.iter().any(|byte| *byte != 0) {
                return Err(self.damaged(start, "a segment begins there, and its head does not read"));
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Reads a segment to its end: the greatest index of an entry in it, where the next batch goes, and its number.
    fn batches(&self, segment: &Segment, last: bool, found: &mut Found) -> Result<End, OpenError> {
        let bytes = self.read(segment.start, segment.bytes)?;
        let mut greatest = None;
        let (mut at, mut next) = (BLOCK_BYTES, segment.first);
        while let Some(frames) = decode_batch(&bytes, at, segment.salt, next) {
            let batch = Batch::decode(frames).map_err(|source| {
                let at = format!("batch {next}");
                OpenError::Record { file: self.name.to_owned(), at, source }
            })?;
            greatest = greatest.max(batch.entries.last().map(|entry| entry.position.index.0));
            found.push(batch);
            at += blocks_of(BATCH_HEAD_BYTES as u64 + frames.len() as u64);
            next += 1;
        }
        let behind = (at..segment.bytes).step_by(BLOCK_BYTES as usize);
        let numbers = next..next + segment.bytes / BLOCK_BYTES;
        let is_batch = |at: &u64| {
            let number = number_at(&bytes, *at).filter(|number| numbers.contains(number));
            number.is_some_and(|number| decode_batch(&bytes, *at, segment.salt, number).is_some())
        };
        match behind.into_iter().find(is_batch) {
            Some(_) if last => {
                Err(self.damaged(segment.start + at, "a batch does not read, and more follow"))
            }
            _ => Ok((greatest, segment.start + at, next)),
        }
    }

    fn read(&self, at: u64, bytes: u64) -> Result<Vec<u8>, OpenError> {
        let mut out = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
        self.file.read(at, &mut out).map_err(|error| self.failed(error))?;
        Ok(out)
    }

    fn failed(&self, source: io::Error) -> OpenError {
        OpenError::Read { file: self.name.to_owned(), source }
    }

    fn damaged(&self, at: u64, what: &'static str) -> OpenError {
        OpenError::Damaged { file: self.name.to_owned(), at, what }
    }
}

fn blocks_of(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES)
}

/// Puts a batch in place of what is in `blocks`.
fn encode_batch(blocks: &mut Vec<u8>, salt: u64, number: u64, frames: &[u8]) {
    let length = u32::try_from(frames.len()).expect("a batch is below 4 GiB: the limits of the log hold it");
    blocks.clear();
    blocks.extend_from_slice(&number.to_le_bytes());
    blocks.extend_from_slice(&length.to_le_bytes());
    let check = check_of(salt, number, blocks, frames);
    blocks.extend_from_slice(&check.to_le_bytes());
    blocks.extend_from_slice(frames);
    let whole = blocks_of(blocks.len() as u64);
    blocks.resize(usize::try_from(whole).unwrap_or(usize::MAX), 0);
}

/// The frames of the batch with this number, if it is there and whole.
fn decode_batch(segment: &[u8], at: u64, salt: u64, number: u64) -> Option<&[u8]> {
    let bytes = segment.get(usize::try_from(at).ok()?..)?;
    let head = bytes.get(..BATCH_HEAD_BYTES)?;
    let length = usize::try_from(u32_at(head, 8)).ok()?;
    let frames = bytes.get(BATCH_HEAD_BYTES..BATCH_HEAD_BYTES.checked_add(length)?)?;
    let is_next = u64_at(head, 0) == number;
    (is_next && u64_at(head, 12) == check_of(salt, number, &head[..12], frames)).then_some(frames)
}

fn number_at(segment: &[u8], at: u64) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    segment.get(at..at + 8).map(|bytes| u64_at(bytes, 0))
}

fn check_of(salt: u64, number: u64, head: &[u8], frames: &[u8]) -> u64 {
    let mut check = SipHasher13::new_with_keys(salt, number);
    check.write(head);
    check.write(frames);
    check.finish()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests;
