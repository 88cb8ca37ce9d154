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
    try_open(disk, driver).unwrap()
}

fn try_open(disk: &FaultyDisk, driver: Driver) -> Result<Store, OpenError> {
    Store::with_backends(disk.clone(), disk.entries(), driver)
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
fn what_is_purged_makes_room() {
    let disk = FaultyDisk::default();
    let store = open(&disk, Driver::Inline);
    let mut kept = 0;
    for index in 0..500 {
        wait(|done| store.append(blanks(1, index..index + 1), done)).unwrap();
        if index % 50 == 49 {
            wait(|done| store.purge(at(1, index - 1), done)).unwrap();
            kept = index;
        }
    }
    assert!(store.log_bytes() > 0);
    let expected = blanks(1, kept..500);
    assert_eq!(store.entries(0..999), expected);
    close(&store);
    assert_eq!(open(&disk, Driver::Inline).entries(0..999), expected, "nothing purged is seen again");
    let (disk, loaded) = Disk::open_backends(disk.clone(), disk.entries()).unwrap();
    assert_eq!(loaded.entries, expected);
    let (segments, free) = disk.segments();
    assert!(segments <= 10, "500 blocks went through {segments} segments of 7");
    assert_eq!(free, segments - 1, "only the newest is needed");
}

#[test]
fn a_group_of_every_sort_is_durable_in_order() {
    let disk = FaultyDisk::default();
    let store = open(&disk, Driver::Thread);
    disk.close_gate();
    let mut results = Vec::new();
    let mut start = |step: &dyn Fn(Done) -> Result<(), StoreError>| {
        let (done, result) = waiter();
        step(done).unwrap();
        results.push(result);
    };
    start(&|done| store.append(blanks(1, 0..4), done));
    start(&|done| store.save_ballot(ballot(2), done));
    start(&|done| store.append(blanks(2, 4..8), done));
    store.save_committed(at(2, 5)).unwrap();
    start(&|done| store.truncate(LogIndex(7), done));
    start(&|done| store.append(blanks(3, 7..9), done));
    start(&|done| store.purge(at(1, 1), done));
    disk.open_gate();
    results.into_iter().for_each(|result| assert_eq!(result.recv().unwrap(), Ok(())));
    close(&store);
    let store = open(&disk, Driver::Thread);
    assert_eq!(store.entries(0..99), [blanks(1, 2..4), blanks(2, 4..7), blanks(3, 7..9)].concat());
    let kept = (store.ballot(), store.committed(), store.purged());
    assert_eq!(kept, (Some(ballot(2)), Some(at(2, 5)), Some(at(1, 1))));
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

type Step = Box<dyn FnOnce(&Store, Done) -> Result<(), StoreError>>;

/// What a store must hold, as a plain value.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    ballot: Option<Ballot>,
    purged: Option<Position>,
    entries: Vec<Entry>,
    state: Option<Vec<u8>>,
    /// Entries before this one are committed, so they are never taken back. A store may know of fewer.
    committed: u64,
}

impl Model {
    fn of(store: &Store) -> Self {
        Self {
            ballot: store.ballot(),
            purged: store.purged(),
            entries: store.entries(0..u64::MAX),
            state: state_of(store).map(|(_, state)| state),
            committed: 0,
        }
    }

    fn is_found(&self, found: &Self) -> bool {
        Self { committed: self.committed, ..found.clone() } == *self
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
                Box::new(move |store, done| store.save_ballot(ballot(term), done))
            }
            1 if next > first.max(self.committed) => {
                let safe = first.max(self.committed);
                let from = safe + dice.below(next - safe);
                self.entries.truncate(usize::try_from(from - first).unwrap());
                Box::new(move |store, done| store.truncate(LogIndex(from), done))
            }
            2 if next > first => {
                let upto = self.entries[usize::try_from(dice.below(next - first)).unwrap()].position;
                self.entries.retain(|entry| entry.position.index > upto.index);
                self.purged = Some(upto);
                Box::new(move |store, done| store.purge(upto, done))
            }
            3 => {
                let state =
                    vec![u8::try_from(term % 251).unwrap(); usize::try_from(dice.below(9_000)).unwrap()];
                self.state = Some(state.clone());
                Box::new(move |store, done| {
                    let head = head(at(1, 0), &state);
                    store.save_snapshot(head, state.into(), done)
                })
            }
            _ => {
                let entries = blanks(term, next..next + 1 + dice.below(40));
                let committed = entries[0].position;
                self.committed = next + 1;
                self.entries.extend(entries.clone());
                Box::new(move |store, done| {
                    store.append(entries, done)?;
                    store.save_committed(committed)
                })
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
        let step = model.step(&mut dice, term);
        if wait(|done| step(&store, done)).is_ok() {
            continue;
        }
        let store = open(&disk.crash(dice.roll()), Driver::Inline);
        let found = Model::of(&store);
        assert!(before.is_found(&found) || model.is_found(&found), "seed {seed}: a mixture was found");
        wait(|done| store.append(blanks(term, found.next()..found.next() + 1), done)).unwrap();
        return;
    }
    panic!("seed {seed}: the fault never came");
}

/// The same with operations that wait for each other and share writes: what opens is what came of all before some
/// point, and that point is not before the last acknowledged one.
fn one_life_of_groups(seed: u64, fault: fn(u64) -> Fault) {
    let mut dice = Dice(seed);
    let disk = FaultyDisk::default();
    let store = open(&disk, Driver::Thread);
    let mut model = Model::default();
    disk.fail(fault(dice.below(100)));
    for round in 0..1_000 {
        disk.close_gate();
        let mut states = vec![model.clone()];
        let mut results = Vec::new();
        for nth in 0..1 + dice.below(12) {
            let (done, result) = waiter();
            // What is refused at once is not done, and nothing after it.
            let _ = model.step(&mut dice, 1 + round * 20 + nth)(&store, done);
            states.push(model.clone());
            results.push(result);
        }
        disk.open_gate();
        let answers: Vec<_> = results.iter().map(Receiver::recv).collect();
        let acknowledged = answers.iter().take_while(|answer| matches!(answer, Ok(Ok(())))).count();
        if acknowledged == results.len() && store.health().why().is_none() {
            continue;
        }
        let store = open(&disk.crash(dice.roll()), Driver::Inline);
        let found = Model::of(&store);
        let prefix = states[acknowledged..].iter().any(|state| state.is_found(&found));
        assert!(prefix, "seed {seed}: not what came of a prefix");
        let (next, last) = (found.next(), store.committed().map(|position| position.index.0));
        assert!(last.is_none_or(|last| last < next), "seed {seed}: more is committed than there is");
        wait(|done| store.append(blanks(99_999, next..next + 1), done)).unwrap();
        return;
    }
    panic!("seed {seed}: the fault never came");
}

#[test]
fn a_power_loss_in_the_middle_keeps_what_was_acknowledged() {
    for seed in 0..rounds(60) {
        for fault in [Fault::Sync as fn(u64) -> Fault, Fault::Write, Fault::ShortWrite] {
            one_life(seed, fault);
            one_life_of_groups(seed, fault);
        }
    }
}

/// How many seeds to try; `QUORATE_ROUNDS` tries more.
fn rounds(usual: u64) -> u64 {
    std::env::var("QUORATE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(usual)
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
    let error = try_open(&disk, Driver::Inline).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the log a faulty disk is damaged at ballot: a record is cut off: it needs 10 bytes, 4 are there"
    );
    put("format", &[2]);
    let error = try_open(&disk, Driver::Inline).unwrap_err();
    assert!(matches!(error, OpenError::Tables { found: 2, .. }), "{error}");
}

/// A disk with three entries, each in a block of its own behind the head of their segment.
fn three_blocks() -> FaultyDisk {
    let disk = FaultyDisk::default();
    let store = open(&disk, Driver::Inline);
    for index in 0..3 {
        wait(|done| store.append(blanks(1, index..index + 1), done)).unwrap();
    }
    close(&store);
    disk
}

#[test]
fn a_batch_that_does_not_read_ends_the_log_only_at_its_end() {
    let disk = three_blocks();
    disk.entries().write(3 * 4_096 + 20, b"!").unwrap();
    let store = open(&disk, Driver::Inline);
    assert_eq!(store.entries(0..9), blanks(1, 0..2), "nobody was answered for a batch that is torn");
    wait(|done| store.append(blanks(2, 2..4), done)).unwrap();
    close(&store);
    assert_eq!(open(&disk, Driver::Inline).entries(0..9), [blanks(1, 0..2), blanks(2, 2..4)].concat());

    let disk = three_blocks();
    disk.entries().write(2 * 4_096 + 20, b"!").unwrap();
    let error = try_open(&disk, Driver::Inline).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the log the entries of a faulty disk is damaged at byte 8192: a batch does not read, and more follow"
    );
}

#[test]
fn a_segment_without_its_head_is_not_passed_over() {
    let disk = three_blocks();
    disk.entries().write(0, b"!").unwrap(); // It has had one use, so there is no other head.
    let error = try_open(&disk, Driver::Inline).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { at: 0, .. }), "{error}");
    disk.entries().set_len(0).unwrap();
    let error = try_open(&disk, Driver::Inline).unwrap_err();
    assert!(matches!(error, OpenError::Lost { .. }), "{error}");
}

#[test]
fn an_entry_larger_than_a_segment_has_one_of_its_own() {
    let disk = FaultyDisk::default();
    let store = open(&disk, Driver::Inline);
    let many = blanks(1, 0..3_000);
    wait(|done| store.append(many.clone(), done)).unwrap();
    wait(|done| store.append(blanks(1, 3_000..3_001), done)).unwrap();
    close(&store);
    assert_eq!(open(&disk, Driver::Inline).entries(0..9_999), blanks(1, 0..3_001));
}

#[test]
fn a_missing_entry_is_a_hole() {
    let disk = FaultyDisk::default();
    let (mut journal, _) = Disk::open_backends(disk.clone(), disk.entries()).unwrap();
    for index in [0, 2] {
        let (first, last, mut frames) = (LogIndex(index), LogIndex(index), Vec::new());
        blanks(1, index..index + 1)[0].encode(&mut frames);
        journal.commit(&[Change::Append { first, last, frames }], None).unwrap();
    }
    drop(journal);
    let error = try_open(&disk, Driver::Inline).unwrap_err();
    assert!(error.to_string().ends_with("has a hole: entry 1 is missing, the next one is 2"), "{error}");
}
