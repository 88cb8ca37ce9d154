//! The store on a disk that forgets, fails and stalls.

#[path = "../../../tests/it/disk.rs"]
mod disk;

use super::super::record::{Members, Payload, Term};
use super::*;
use disk::{Dice, Fault, FaultyDisk};
use quorate_core::id::NodeId;
use std::sync::mpsc::{Receiver, channel};

fn at(term: u64, index: u64) -> Position {
    Position { term: Term(term), index: LogIndex(index) }
}

fn blanks(term: u64, range: Range<u64>) -> Vec<Entry> {
    let blank = |index| Entry { position: at(term, index), payload: Payload::Blank };
    range.map(blank).collect()
}

fn head(last: Position, state: &[u8]) -> SnapshotHead {
    SnapshotHead {
        last: Some(last),
        members_at: None,
        members: Members::default(),
        state_bytes: state.len() as u64,
        state_crc: crc32fast::hash(state),
    }
}

fn ballot(term: u64) -> Ballot {
    Ballot { term: Term(term), node: NodeId(1), committed: false }
}

fn open(disk: &FaultyDisk, driver: Driver) -> Store {
    Store::with_backend(disk.clone(), driver).unwrap()
}

/// A callback, and where its result arrives.
fn waiter() -> (Done, Receiver<Result<(), StoreError>>) {
    let (sender, receiver) = channel();
    (Box::new(move |result| sender.send(result).unwrap()), receiver)
}

/// Runs an operation and waits for its end.
fn wait(start: impl FnOnce(Done) -> Result<(), StoreError>) -> Result<(), StoreError> {
    let (done, result) = waiter();
    start(done)?;
    result.recv().unwrap()
}

fn close(store: &Store) {
    wait(|done| {
        store.close(done);
        Ok(())
    })
    .unwrap();
}

fn state_of(store: &Store) -> Option<(SnapshotHead, Vec<u8>)> {
    let (sender, receiver) = channel();
    store.read_snapshot(Box::new(move |got| sender.send(got).unwrap())).unwrap();
    receiver.recv().unwrap().unwrap()
}

#[test]
fn everything_is_found_again() {
    let disk = FaultyDisk::default();
    let store = open(&disk, Driver::Thread);
    let state = vec![7; 5 << 19];
    wait(|done| store.save_ballot(ballot(3), done)).unwrap();
    wait(|done| store.append(blanks(1, 0..10), done)).unwrap();
    wait(|done| store.append(blanks(2, 10..20), done)).unwrap();
    store.save_committed(at(2, 15)).unwrap();
    wait(|done| store.save_snapshot(head(at(1, 4), &state), state.clone().into(), done)).unwrap();
    wait(|done| store.purge(at(1, 4), done)).unwrap();
    store.save_committed(at(2, 17)).unwrap();
    close(&store);
    assert_eq!(wait(|done| store.append(blanks(2, 20..21), done)), Err(StoreError::Closed));

    let store = open(&disk, Driver::Thread);
    assert_eq!(store.ballot(), Some(ballot(3)));
    assert_eq!(store.purged(), Some(at(1, 4)));
    assert_eq!(store.last(), Some(at(2, 19)));
    assert_eq!(store.committed(), Some(at(2, 17)), "closing saves what was only noted");
    assert_eq!(store.snapshot(), Some(head(at(1, 4), &state)));
    assert_eq!(state_of(&store), Some((head(at(1, 4), &state), state)));
    assert_eq!(store.entries(0..u64::MAX), [blanks(1, 5..10), blanks(2, 10..20)].concat());
    assert_eq!(store.entries(8..12), [blanks(1, 8..10), blanks(2, 10..12)].concat());
    assert_eq!(store.entries(30..40), []);
}

#[test]
fn a_smaller_snapshot_leaves_nothing_of_the_larger() {
    let disk = FaultyDisk::default();
    let store = open(&disk, Driver::Inline);
    for length in [3 << 20, 10, 0] {
        let state = vec![1; length];
        wait(|done| store.save_snapshot(head(at(1, 1), &state), state.clone().into(), done)).unwrap();
        assert_eq!(state_of(&store), Some((head(at(1, 1), &state), state)));
    }
}

#[test]
fn entries_are_readable_before_they_are_durable() {
    let disk = FaultyDisk::default();
    let store = open(&disk, Driver::Thread);
    disk.close_gate();
    let (done, result) = waiter();
    store.append(blanks(1, 0..3), done).unwrap();
    assert_eq!(store.entries(0..3), blanks(1, 0..3));
    assert!(result.try_recv().is_err(), "nothing is acknowledged before the sync");
    disk.open_gate();
    assert_eq!(result.recv().unwrap(), Ok(()));
}

#[test]
fn what_waits_shares_one_sync() {
    let disk = FaultyDisk::default();
    let store = open(&disk, Driver::Thread);
    disk.close_gate();
    let results: Vec<_> = (0..100)
        .map(|index| {
            let (done, result) = waiter();
            store.append(blanks(1, index..index + 1), done).unwrap();
            result
        })
        .collect();
    let before = disk.syncs();
    disk.open_gate();
    for result in results {
        assert_eq!(result.recv().unwrap(), Ok(()));
    }
    assert!(disk.syncs() - before <= 2, "one for what was first, one for the rest");
    close(&store);
    let counts = store.counts();
    assert_eq!((counts.entries, counts.queued), (100, 0));
    assert!(counts.commits <= 2 && counts.bytes > 0 && counts.commit_p99 >= counts.commit_p50);
    assert_eq!(open(&disk, Driver::Inline).entries(0..200), blanks(1, 0..100));
}

#[test]
fn truncation_cuts_through_a_group() {
    let disk = FaultyDisk::default();
    let store = open(&disk, Driver::Inline);
    wait(|done| store.append(blanks(1, 0..10), done)).unwrap();
    wait(|done| store.append(blanks(1, 10..20), done)).unwrap();
    wait(|done| store.truncate(LogIndex(5), done)).unwrap();
    wait(|done| store.append(blanks(2, 5..8), done)).unwrap();
    let expected = [blanks(1, 0..5), blanks(2, 5..8)].concat();
    assert_eq!(store.entries(0..99), expected);
    close(&store);
    let store = open(&disk, Driver::Inline);
    assert_eq!(store.entries(0..99), expected);
    wait(|done| store.truncate(LogIndex(0), done)).unwrap();
    close(&store);
    assert_eq!(open(&disk, Driver::Inline).last(), None);
}

#[test]
fn purged_values_leave_the_disk_little_by_little() {
    let disk = FaultyDisk::default();
    let store = open(&disk, Driver::Inline);
    for index in 0..500 {
        wait(|done| store.append(blanks(1, index..index + 1), done)).unwrap();
    }
    assert!(store.log_bytes() > 0);
    wait(|done| store.purge(at(1, 498), done)).unwrap();
    assert_eq!(store.entries(0..999), blanks(1, 499..500));
    close(&store);
    let store = open(&disk, Driver::Inline);
    assert_eq!(store.entries(0..999), blanks(1, 499..500), "the rest of them is not seen again");
    for index in 500..510 {
        wait(|done| store.append(blanks(1, index..index + 1), done)).unwrap();
    }
    close(&store);
    let (disk, loaded) = Disk::open_backend(disk).unwrap();
    assert_eq!(loaded.entries.len(), 11);
    assert_eq!(disk.values(), 11, "all purged values are gone");
}

#[test]
fn a_log_may_begin_after_a_hole_that_a_snapshot_covers() {
    let disk = FaultyDisk::default();
    let store = open(&disk, Driver::Inline);
    wait(|done| store.append(blanks(1, 0..5), done)).unwrap();
    wait(|done| store.purge(at(3, 100), done)).unwrap();
    assert_eq!(store.last(), Some(at(3, 100)));
    wait(|done| store.append(blanks(3, 101..103), done)).unwrap();
    close(&store);
    assert_eq!(open(&disk, Driver::Inline).entries(0..999), blanks(3, 101..103));
}

#[test]
fn a_failed_sync_is_the_end() {
    for driver in [Driver::Thread, Driver::Inline] {
        let disk = FaultyDisk::default();
        let store = open(&disk, driver);
        wait(|done| store.append(blanks(1, 0..1), done)).unwrap();
        disk.fail(Fault::Sync(0));
        let error = wait(|done| store.append(blanks(1, 1..2), done)).unwrap_err();
        let why = store.health().why().unwrap();
        assert_eq!(error, StoreError::Failed { why: why.clone() });
        assert_eq!(
            why.as_ref(),
            "the log could not be made durable: I/O error: the sync failed; \
             this node acknowledges nothing more and must stop"
        );
        let later = wait(|done| store.save_ballot(ballot(9), done)).unwrap_err();
        assert_eq!(later, error, "the reason stays");
        assert_eq!(store.save_committed(at(1, 1)), Err(error));
        let store = open(&disk.crash(0), driver);
        assert_eq!(store.entries(0..1), blanks(1, 0..1), "what was acknowledged is there");
    }
}

#[test]
fn a_full_disk_is_named() {
    let disk = FaultyDisk::default();
    let store = open(&disk, Driver::Inline);
    disk.fail(Fault::Full(2 << 20));
    let state: Arc<[u8]> = vec![1; 8 << 20].into();
    let error = wait(|done| store.save_snapshot(head(at(1, 1), &state), state, done)).unwrap_err();
    assert!(error.to_string().contains("the disk is full"), "{error}");
}

type Step = Box<dyn FnOnce(&Store) -> Result<(), StoreError>>;

/// What a store must hold, as a plain value.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    ballot: Option<Ballot>,
    purged: Option<Position>,
    entries: Vec<Entry>,
    state: Option<Vec<u8>>,
}

impl Model {
    fn of(store: &Store) -> Self {
        Self {
            ballot: store.ballot(),
            purged: store.purged(),
            entries: store.entries(0..u64::MAX),
            state: state_of(store).map(|(_, state)| state),
        }
    }

    fn next(&self) -> u64 {
        let last = self.entries.last().map(|entry| entry.position).or(self.purged);
        last.map_or(0, |last| last.index.0 + 1)
    }

    /// Draws an operation, changes the model by it, and returns it for the store.
    fn step(&mut self, dice: &mut Dice, term: u64) -> Step {
        let next = self.next();
        let first = next - self.entries.len() as u64;
        match dice.below(8) {
            0 => {
                self.ballot = Some(ballot(term));
                Box::new(move |store| wait(|done| store.save_ballot(ballot(term), done)))
            }
            1 if next > first => {
                let from = first + dice.below(next - first);
                self.entries.truncate(usize::try_from(from - first).unwrap());
                Box::new(move |store| wait(|done| store.truncate(LogIndex(from), done)))
            }
            2 if next > first => {
                let upto = self.entries[usize::try_from(dice.below(next - first)).unwrap()].position;
                self.entries.retain(|entry| entry.position.index > upto.index);
                self.purged = Some(upto);
                Box::new(move |store| wait(|done| store.purge(upto, done)))
            }
            3 => {
                let state =
                    vec![u8::try_from(term % 251).unwrap(); usize::try_from(dice.below(9_000)).unwrap()];
                self.state = Some(state.clone());
                Box::new(move |store| {
                    let head = head(at(1, 0), &state);
                    wait(|done| store.save_snapshot(head, state.into(), done))
                })
            }
            _ => {
                let entries = blanks(term, next..next + 1 + dice.below(40));
                self.entries.extend(entries.clone());
                Box::new(move |store| wait(|done| store.append(entries, done)))
            }
        }
    }
}

/// One life: operations until the planned fault, then a power loss. What opens afterwards is the state
/// before or after the operation that the fault hit, never a mixture, and never less than what was
/// acknowledged.
fn one_life(seed: u64, fault: fn(u64) -> Fault) {
    let mut dice = Dice(seed);
    let disk = FaultyDisk::default();
    let store = open(&disk, Driver::Inline);
    let mut model = Model::default();
    disk.fail(fault(dice.below(150)));
    for term in 1..1_000 {
        let before = model.clone();
        if model.step(&mut dice, term)(&store).is_ok() {
            continue;
        }
        let store = open(&disk.crash(dice.roll()), Driver::Inline);
        let found = Model::of(&store);
        assert!(found == before || found == model, "seed {seed}: a mixture was found");
        wait(|done| store.append(blanks(term, found.next()..found.next() + 1), done)).unwrap();
        return;
    }
    panic!("seed {seed}: the fault never came");
}

#[test]
fn a_power_loss_in_the_middle_keeps_what_was_acknowledged() {
    for seed in 0..60 {
        one_life(seed, Fault::Sync);
        one_life(seed, Fault::Write);
        one_life(seed, Fault::ShortWrite);
    }
}

#[test]
fn a_log_of_a_newer_release_or_a_damaged_one_does_not_open() {
    let meta = redb::TableDefinition::<&str, &[u8]>::new("meta");
    let disk = FaultyDisk::default();
    close(&open(&disk, Driver::Inline));
    let put = |key: &str, value: &[u8]| {
        let db = redb::Builder::new().create_with_backend(disk.clone()).unwrap();
        let write = db.begin_write().unwrap();
        write.open_table(meta).unwrap().insert(key, value).unwrap();
        write.commit().unwrap();
    };
    put("ballot", &[1, 4, 0, 0]);
    let error = Store::with_backend(disk.clone(), Driver::Inline).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the log a faulty disk is damaged at ballot: a record is cut off: it needs 10 bytes, 4 are there"
    );
    put("format", &[2]);
    let error = Store::with_backend(disk.clone(), Driver::Inline).unwrap_err();
    assert!(matches!(error, OpenError::Tables { found: 2, .. }), "{error}");
}

#[test]
fn a_missing_value_is_a_hole() {
    let disk = FaultyDisk::default();
    let store = open(&disk, Driver::Inline);
    for index in 0..3 {
        wait(|done| store.append(blanks(1, index..index + 1), done)).unwrap();
    }
    close(&store);
    let db = redb::Builder::new().create_with_backend(disk.clone()).unwrap();
    let write = db.begin_write().unwrap();
    write.open_table(redb::TableDefinition::<u64, &[u8]>::new("log")).unwrap().remove(1).unwrap();
    write.commit().unwrap();
    drop(db);
    let error = Store::with_backend(disk, Driver::Inline).unwrap_err();
    assert!(error.to_string().ends_with("has a hole: entry 1 is missing, the next one is 2"), "{error}");
}
