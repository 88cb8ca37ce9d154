//! What a guard must hold, each test named for its rule. What needs real processes (a killed guard, an
//! inherited lock) is tested with the binary, in `quorate-server`.

use super::state::State;
use super::store::{Create, Store};
use super::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;
use tempfile::TempDir;

const HOME: ClusterId = ClusterId(7);
const AWAY: ClusterId = ClusterId(8);

/// No test waits that long unless it fails.
const LONG: Duration = Duration::from_secs(20);

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("orders.guard")
    }

    fn beside(&self, ending: &str) -> PathBuf {
        self.dir.path().join(format!("orders.guard{ending}"))
    }

    fn open(&self) -> Result<FileGuard, GuardError> {
        FileGuard::open(self.path(), FileOptions::default())
    }

    fn guard(&self) -> FileGuard {
        self.open().expect("the state is in order")
    }

    fn by_seat(&self) -> FileGuard {
        let options = FileOptions { seats: SeatKeys::BySeat, create: true };
        FileGuard::open(self.path(), options).expect("the state is in order")
    }

    /// A guard that accepted 42 for `orders`.
    fn used(&self) -> FileGuard {
        let guard = self.guard();
        drop(guard.enter(&orders(), offer(42)).expect("nobody was there"));
        guard
    }

    fn reset_all(&self, floor: Option<u64>) -> Result<FileGuard, GuardError> {
        let reset = Reset { floor: floor.map(Token), cluster: None, why: "the test says so".into() };
        FileGuard::reset_all(self.path(), FileOptions::default(), reset)
    }
}

fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

fn orders() -> Name {
    name("orders")
}

fn offer(token: u64) -> Offer {
    Offer::new(HOME, Token(token))
}

fn refusal<T: std::fmt::Debug>(result: Result<T, GuardError>) -> FenceRefusal {
    match result {
        Err(GuardError::Refused { refusal, .. }) => refusal,
        other => panic!("refused was expected, not {other:?}"),
    }
}

fn is_older_than<T: std::fmt::Debug>(result: Result<T, GuardError>, expected: u64) {
    match refusal(result) {
        FenceRefusal::Older { highest, .. } => assert_eq!(highest, Token(expected)),
        other => panic!("an older token was expected, not {other:?}"),
    }
}

/// What every guard does, whatever it is kept in.
fn contract(guard: &dyn Guard) {
    let orders = orders();
    // The history of a paused holder: A has 41, B takes over with 42, A wakes.
    drop(guard.enter(&orders, offer(41)).expect("the first"));
    let claimed = guard.claim(&orders, offer(42)).expect("the newer one");
    assert_eq!(claimed.token, Token(42));
    is_older_than(guard.enter(&orders, offer(41)), 42);
    is_older_than(guard.admit(&orders, offer(41), None), 42);
    drop(guard.enter(&orders, offer(42)).expect("the same holder again"));

    let foreign = refusal(guard.try_enter(&orders, Offer::new(AWAY, Token(99))));
    assert!(matches!(foreign, FenceRefusal::OtherCluster { .. }));
    let early = refusal(guard.admit(&orders, offer(50), Some(Token(49))));
    assert!(matches!(early, FenceRefusal::NotIssued { .. }));

    // A newer one that finds somebody inside raises the floor first.
    let inside = guard.enter(&orders, offer(42)).expect("the same holder");
    match guard.try_enter(&orders, offer(43)) {
        Err(GuardError::Held { blocker, .. }) => {
            assert_eq!(blocker.pid(), Some(std::process::id()));
            assert_eq!(blocker.holder.map(|holder| holder.token), Some(Token(42)));
        }
        other => panic!("held was expected, not {other:?}"),
    }
    drop(inside);
    is_older_than(guard.enter(&orders, offer(42)), 43);

    let report = guard.show().expect("a report");
    let line = &report.resources[0];
    assert_eq!(line.floor.highest(), Token(43));
    assert_eq!(line.refusals.count, 5);
    assert_eq!(line.refusals.last[0].token, Token(41));
    assert_eq!(line.refusals.last[0].highest, Some(Token(42)));
    assert_eq!(line.holders, []);

    let reset = Reset { floor: Some(Token(7)), cluster: Some(AWAY), why: "a new cluster was founded".into() };
    let floor = guard.reset(&orders, reset).expect("an operator may");
    assert_eq!(floor.mark(SeatNo(0)).token, Token(7));
    drop(guard.enter(&orders, Offer::new(AWAY, Token(8))).expect("the floor is lower now"));
    let resets = guard.show().expect("a report").resets;
    assert_eq!((resets[0].from, resets[0].to), (Token(43), Token(7)));
    assert_eq!(resets[0].why, "a new cluster was founded");
}

#[test]
fn l2_the_contract_holds_for_the_file_and_for_the_memory() {
    contract(&Place::new().guard());
    contract(&MemoryGuard::new());
}

/// Eight threads with random tokens: what is written inside never goes down.
fn hammer(guard: &(impl Guard + Clone + 'static)) {
    let written = Arc::new(std::sync::Mutex::new(Vec::new()));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (guard, written) = (guard.clone(), Arc::clone(&written));
            thread::spawn(move || {
                for _ in 0..12 {
                    let token = rand::random_range(1..60);
                    match guard.enter(&orders(), offer(token)) {
                        Ok(permit) => {
                            let mut free = written.try_lock().expect("nobody else is inside");
                            free.push(permit.token());
                        }
                        Err(error) => assert!(error.is_refusal(), "{error}"),
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no assertion failed");
    }
    let written = written.lock().expect("no thread panicked");
    assert!(written.is_sorted(), "{written:?}");
    assert!(!written.is_empty());
}

#[test]
fn x1_writes_of_two_tokens_never_interleave_and_never_go_back() {
    hammer(&Place::new().guard());
    hammer(&MemoryGuard::new());
}

#[test]
fn r31_the_floor_is_on_disk_before_enter_returns() {
    let place = Place::new();
    let permit = place.guard().enter(&orders(), offer(42)).expect("nobody was there");
    let stored = State::decode(&fs::read(place.path()).expect("it is there")).expect("it is whole");
    assert_eq!(stored.floor(&orders()).highest(), Token(42));
    drop(permit);
}

#[test]
fn r31_a_state_that_cannot_be_written_lets_nobody_in() {
    let place = Place::new();
    let guard = place.used();
    // Stands in the way of the temporary file.
    fs::create_dir(place.beside(".tmp")).expect("it was not there");
    let failed = guard.enter(&orders(), offer(43));
    assert!(matches!(failed, Err(GuardError::Io { .. })), "{failed:?}");
    fs::remove_dir(place.beside(".tmp")).expect("it was made above");
    drop(guard.enter(&orders(), offer(42)).expect("43 was not accepted"));
}

#[test]
fn r31_a_waiter_that_has_become_the_older_one_is_refused_while_it_waits() {
    let place = Place::new();
    let guard = place.guard();
    let inside = guard.enter(&orders(), offer(40)).expect("nobody was there");
    let (told, hear) = mpsc::channel();
    let waiter = {
        let guard = guard.clone();
        thread::spawn(move || {
            let mut on_notice = |notice: &Notice| told.send(notice.clone()).expect("it is heard");
            let terms = Terms { on_notice: Some(&mut on_notice), ..Terms::default() };
            guard.enter_on(&orders(), offer(41), terms)
        })
    };
    let notice = hear.recv_timeout(LONG).expect("it says why it waits");
    assert!(matches!(notice, Notice::Waiting(blocker) if blocker.pid() == Some(std::process::id())));
    let _ = guard.admit(&orders(), offer(42), None).expect("the newest");
    is_older_than(waiter.join().expect("it does not panic"), 42);
    drop(inside);
}

#[test]
fn r32_a_claim_waits_for_the_older_write_to_end() {
    let place = Place::new();
    let guard = place.guard();
    let inside = guard.enter(&orders(), offer(41)).expect("nobody was there");
    let claimer = {
        let guard = guard.clone();
        thread::spawn(move || guard.claim(&orders(), offer(42)))
    };
    // It has raised the floor, and still waits.
    let started = Instant::now();
    while guard.show().expect("a report").resources[0].floor.highest() < Token(42) {
        assert!(started.elapsed() < LONG);
        thread::yield_now();
    }
    assert!(!claimer.is_finished());
    drop(inside);
    let claimed = claimer.join().expect("it does not panic").expect("it is the newest");
    assert_eq!(claimed.token, Token(42));
    is_older_than(guard.try_enter(&orders(), offer(41)), 42);
}

#[test]
fn r33_resources_and_seats_do_not_block_each_other() {
    let place = Place::new();
    let guard = place.by_seat();
    let _orders = guard.try_enter(&orders(), offer(1)).expect("nobody was there");
    let _bills = guard.try_enter(&name("bills"), offer(2)).expect("another resource");
    let _seat = guard.try_enter(&orders(), offer(3).seat(SeatNo(1))).expect("another seat");
    let holders = guard.show().expect("a report").resources;
    let of_orders: Vec<_> = holders[1].holders.iter().map(|holder| holder.seat).collect();
    assert_eq!(of_orders, [SeatNo(0), SeatNo(1)]);
}

#[test]
fn r12_a_resource_without_seat_keys_takes_only_the_first_seat() {
    let place = Place::new();
    let refused = place.guard().enter(&orders(), offer(11).seat(SeatNo(1)));
    assert!(matches!(refused, Err(GuardError::SeatNotKeyed { seat: SeatNo(1), .. })));
}

#[test]
fn r33_the_record_of_a_holder_that_is_gone_is_not_believed() {
    let place = Place::new();
    let guard = place.used();
    let mut permit = guard.enter(&orders(), offer(42)).expect("nobody was there");
    let Hold::File(scope) = &mut permit.hold else { panic!("it is a file guard") };
    let mut holder = scope::read_holder(scope.path()).expect("it was recorded");
    // Its number is alive, but it started at another time.
    let text = serde_json::to_string(&holder.process).expect("plain data");
    let started = text.split("\"started\":").nth(1).expect("the field");
    let started = started.split(',').next().expect("a number");
    holder.process = serde_json::from_str(&text.replace(started, "1")).expect("plain data");
    scope.record(&holder).expect("it holds the lock");
    match guard.try_enter(&orders(), offer(42)) {
        Err(GuardError::Held { blocker, .. }) => {
            assert_eq!(blocker.holder, None);
            assert_eq!(blocker.pids, [std::process::id()], "the system knows who has the lock");
        }
        other => panic!("held was expected, not {other:?}"),
    }
}

#[test]
fn r34_a_state_that_is_missing_where_it_was_is_an_error() {
    let place = Place::new();
    let guard = place.used();
    fs::remove_file(place.path()).expect("it is there");
    let missing = guard.enter(&orders(), offer(43));
    assert!(matches!(missing, Err(GuardError::StateMissing { generations: 2, .. })), "{missing:?}");
    assert!(matches!(place.open(), Err(GuardError::StateMissing { .. })));
    assert!(!place.path().exists(), "it is not founded again in silence");

    let unfloored = place.reset_all(None);
    assert!(matches!(unfloored, Err(GuardError::StateMissing { .. })), "a floor has to be given");
    let guard = place.reset_all(Some(90)).expect("with a floor it may begin again");
    is_older_than_base(&guard, 90);
}

/// The floor of a refounded state holds for every name.
fn is_older_than_base(guard: &FileGuard, base: u64) {
    is_older_than(guard.enter(&orders(), offer(base - 1)), base);
    is_older_than(guard.enter(&name("never seen"), offer(base - 1)), base);
    drop(guard.enter(&orders(), offer(base)).expect("the last that was given out"));
}

#[test]
fn r34_where_nothing_ever_was_only_creating_makes_a_state() {
    let place = Place::new();
    let options = FileOptions { create: false, ..FileOptions::default() };
    let absent = FileGuard::open(place.path(), options);
    assert!(matches!(absent, Err(GuardError::Io { .. })), "{absent:?}");
    place.guard();
    FileGuard::open(place.path(), options).expect("now there is one");
}

#[test]
fn r34_a_copy_of_the_whole_directory_is_an_error() {
    let (place, other) = (Place::new(), Place::new());
    place.used();
    fs::copy(place.path(), other.path()).expect("copied");
    fs::copy(place.beside(".lock"), other.beside(".lock")).expect("copied");
    let copied = other.open();
    assert!(matches!(copied, Err(GuardError::StateCopied { .. })), "{copied:?}");
    place.open().expect("the original is still good");

    let guard = other.reset_all(None).expect("an operator may take the copy over");
    is_older_than(guard.enter(&orders(), offer(41)), 42);
    other.open().expect("it belongs here now");
}

#[test]
fn r34_a_state_put_beside_another_lock_file_is_an_error() {
    let (place, other) = (Place::new(), Place::new());
    place.used();
    other.used();
    fs::copy(place.path(), other.path()).expect("copied");
    assert!(matches!(other.open(), Err(GuardError::StateCopied { .. })));
    fs::remove_file(place.beside(".lock")).expect("it is there");
    assert!(matches!(place.open(), Err(GuardError::StateCopied { .. })));
    let guard = place.reset_all(Some(50)).expect("an operator may take it over");
    is_older_than_base(&guard, 50);
}

#[test]
fn r34_an_old_state_put_back_is_an_error() {
    let place = Place::new();
    let guard = place.used();
    let old = fs::read(place.path()).expect("it is there");
    drop(guard.enter(&orders(), offer(43)).expect("the newer one"));
    fs::write(place.path(), old).expect("put back");
    let outdated = guard.enter(&orders(), offer(42));
    assert!(matches!(outdated, Err(GuardError::StateOutdated { found: 2, known: 3, .. })), "{outdated:?}");
    let guard = place.reset_all(Some(43)).expect("with a floor");
    is_older_than_base(&guard, 43);
}

#[test]
fn r34_a_damaged_state_is_an_error_and_is_not_touched() {
    let place = Place::new();
    place.used();
    let whole = fs::read(place.path()).expect("it is there");
    for damaged in [&whole[..0], &whole[..whole.len() / 2], b"\0\0\0\0"] {
        fs::write(place.path(), damaged).expect("damaged");
        let corrupt = place.open();
        assert!(matches!(corrupt, Err(GuardError::StateCorrupt { .. })), "{corrupt:?}");
        assert!(place.reset_all(None).is_err(), "a floor has to be given");
        assert_eq!(fs::read(place.path()).expect("it is there"), damaged);
    }
    let guard = place.reset_all(Some(42)).expect("with a floor");
    is_older_than_base(&guard, 42);
}

#[test]
fn r34_a_newer_version_is_left_alone() {
    let place = Place::new();
    place.used();
    fs::write(place.path(), "quorate-guard-state 9\nmore").expect("written");
    assert!(matches!(place.open(), Err(GuardError::StateNewer { found: 9, .. })));
    assert!(matches!(place.reset_all(Some(1)), Err(GuardError::StateNewer { .. })));
    let text = fs::read_to_string(place.path()).expect("it is there");
    assert_eq!(text, "quorate-guard-state 9\nmore");
}

#[test]
fn r34_two_names_of_one_state_are_one_guard() {
    let place = Place::new();
    place.used();
    let link = place.dir.path().join("link");
    std::os::unix::fs::symlink(place.path(), &link).expect("linked");
    let guard = FileGuard::open(&link, FileOptions::default()).expect("the same state");
    is_older_than(guard.enter(&orders(), offer(41)), 42);
    let _inside = place.guard().enter(&orders(), offer(42)).expect("nobody was there");
    let held = guard.try_enter(&orders(), offer(42));
    assert!(matches!(held, Err(GuardError::Held { .. })), "{held:?}");
    assert!(link.is_symlink());
}

#[test]
fn a_link_to_a_state_that_is_not_there_yet_is_not_another_guard() {
    let place = Place::new();
    let links = ["first", "second"].map(|link| place.dir.path().join(link));
    std::os::unix::fs::symlink("second", &links[0]).expect("linked");
    std::os::unix::fs::symlink("orders.guard", &links[1]).expect("linked");
    let founded = FileGuard::open(&links[0], FileOptions::default()).expect("founded");
    drop(founded.enter(&orders(), offer(42)).expect("nobody was there"));
    assert!(links.iter().all(|link| link.is_symlink()), "the state is where they lead");
    assert!(place.guard().enter(&orders(), offer(41)).is_err(), "both names have one floor");
    let (a, b) = (place.dir.path().join("a"), place.dir.path().join("b"));
    std::os::unix::fs::symlink("a", &b).expect("linked");
    std::os::unix::fs::symlink("b", &a).expect("linked");
    let circle = FileGuard::open(&a, FileOptions::default());
    assert!(matches!(circle, Err(GuardError::Io { .. })), "{circle:?}");
}

#[test]
fn l2_a_crash_at_each_step_of_a_write_leaves_the_old_floors_or_the_new() {
    let place = Place::new();
    let guard = place.used();
    let old = fs::read(place.path()).expect("it is there");
    drop(guard.enter(&orders(), offer(43)).expect("the newer one"));
    let new = fs::read(place.path()).expect("it is there");
    let lock_after = fs::read(place.beside(".lock")).expect("it is there");
    let lock_before = String::from_utf8(lock_after.clone())
        .expect("text")
        .replace("generation 00000000000000000003", "generation 00000000000000000002");
    let write_lock = |line: &[u8]| fs::write(place.beside(".lock"), line).expect("written");

    // Killed while it wrote the temporary file, at any length, or before the rename.
    for length in [0, 1, new.len() / 2, new.len()] {
        fs::write(place.path(), &old).expect("written");
        write_lock(lock_before.as_bytes());
        fs::write(place.beside(".tmp"), &new[..length]).expect("written");
        let floor = guard.show().expect("the old state is whole").resources[0].floor.highest();
        assert_eq!(floor, Token(42));
        is_older_than(guard.enter(&orders(), offer(41)), 42);
        drop(guard.enter(&orders(), offer(44)).expect("the leftover is in nobody's way"));
    }

    // Killed after the rename, before the lock file knew of it: the new floor holds, and the next one
    // finishes the write before it relies on it.
    fs::write(place.path(), &new).expect("written");
    write_lock(lock_before.as_bytes());
    is_older_than(guard.enter(&orders(), offer(42)), 43);
    assert_eq!(fs::read(place.beside(".lock")).expect("it is there"), lock_after);

    // Killed in the very first write, when the lock file was still empty.
    write_lock(b"");
    is_older_than(guard.enter(&orders(), offer(42)), 43);
    assert_eq!(fs::read(place.beside(".lock")).expect("it is there"), lock_after);
}

#[test]
fn a_full_state_says_so_and_goes_on_protecting_the_others() {
    let place = Place::new();
    place.used();
    let store = Store::new(&place.path(), Create::Never).expect("it is there");
    let mut session = store.begin().expect("it is whole");
    let floor = session.state.floor(&orders());
    for number in 1..RESOURCES_MAX {
        session.state.floors.insert(name(&format!("r{number}")), floor.clone());
    }
    session.write().expect("there is room");
    drop(session);
    let guard = place.guard();
    let full = guard.enter(&name("one more"), offer(50));
    assert!(matches!(full, Err(GuardError::Full { .. })), "{full:?}");
    is_older_than(guard.enter(&name("r7"), offer(41)), 42);
}

#[test]
fn refusals_are_counted_and_the_last_ones_are_kept() {
    let place = Place::new();
    let guard = place.used();
    for token in 1..=30 {
        is_older_than(guard.admit(&orders(), offer(token), None), 42);
    }
    let refusals = guard.show().expect("a report").resources[0].refusals.clone();
    let tokens: Vec<u64> = refusals.last.iter().map(|refused| refused.token.0).collect();
    assert_eq!(refusals.count, 30);
    assert_eq!(tokens, (15..=30).collect::<Vec<_>>());
    // It is only a help: damage to it stops nobody.
    fs::write(place.beside(".refusals"), "{").expect("damaged");
    is_older_than(guard.admit(&orders(), offer(1), None), 42);
    assert_eq!(guard.show().expect("a report").resources[0].refusals.count, 1);
}

#[tokio::test]
async fn an_async_wait_that_is_dropped_ends_and_keeps_nothing() {
    let place = Place::new();
    let guard = Arc::new(place.guard());
    let inside = guard.enter(&orders(), offer(1)).expect("nobody was there");
    let waiting = enter_async(Arc::clone(&guard), orders(), offer(2), None);
    let timed_out = tokio::time::timeout(Duration::from_millis(50), waiting).await;
    assert!(timed_out.is_err());
    drop(inside);
    let permit = enter_async(guard, orders(), offer(3), Some(LONG)).await;
    assert_eq!(permit.expect("the dropped wait keeps nothing").token(), Token(3));
}

#[test]
fn every_error_says_what_to_do() {
    let place = Place::new();
    let guard = place.used();
    let mut texts = BTreeMap::new();
    let mut note = |key: &'static str, error: GuardError| {
        texts.insert(key, error.to_string());
    };
    note("older", guard.enter(&orders(), offer(41)).expect_err("older"));
    fs::remove_file(place.path()).expect("it is there");
    note("missing", guard.enter(&orders(), offer(43)).expect_err("missing"));
    fs::write(place.path(), "x").expect("written");
    note("corrupt", guard.enter(&orders(), offer(43)).expect_err("corrupt"));
    let older = &texts["older"];
    assert!(older.starts_with("token 41 is older than 42, which orders accepted at 2"), "{older}");
    assert!(older.ends_with('Z'), "{older}");
    assert!(texts["missing"].contains("knows of 2 earlier writes: nothing is admitted until"));
    assert!(texts["corrupt"].contains("its first line is not that of a guard's state"));
}
