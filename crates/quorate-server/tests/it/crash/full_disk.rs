//! A disk that fills: first what would grow the log is refused while release, leave and expiry go on; then,
//! with no byte left, the node stops with a sentence; with space again it starts and has all that it
//! acknowledged (RULES R28).
//!
//! The disk is a small file system in memory. To mount one the test must be root; else it says that it was
//! skipped.

use super::service::{Home, Life, eventually};
use crate::harness::{LONG, Stream, channel, quorate, run};
use quorate::proto::{self, call::Op, client_frame::Frame, server_frame::Frame as Told};
use quorate::{Client, Error, LockGuard, Session, SessionOptions};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Longer than the test.
const TTL: Duration = Duration::from_secs(120);

/// The size of the disk, and what is kept of it for release, leave and expiry.
const DISK_MIB: u64 = 24;
const RESERVE_MIB: u64 = 6;

/// How many locks there are to release on the full disk: enough that the log must grow.
const LOCKS: usize = 3_000;

/// A small file system, unmounted when the value is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one, if this process may.
    fn mount(at: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: a full disk needs a small file system, and only root may mount one");
            return None;
        }
        std::fs::create_dir(at).expect("a directory");
        let options = format!("size={DISK_MIB}m");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &options, "quorate-test"]).arg(at);
        match mount.output() {
            Ok(mounted) if mounted.status.success() => Some(Self(at.to_path_buf())),
            other => {
                eprintln!("SKIPPED: a small file system cannot be mounted here: {other:?}");
                None
            }
        }
    }

    fn free_bytes(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.0).expect("it is mounted");
        stat.f_bavail * stat.f_frsize
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Fills it until so many bytes are free; to the last one if that is zero.
    fn fill_to(&self, free: u64) {
        let mut ballast = OpenOptions::new().create(true).append(true).open(self.ballast()).expect("a file");
        while self.free_bytes() > free {
            let piece = usize::try_from((self.free_bytes() - free).min(1 << 20)).expect("a small number");
            if ballast.write_all(&vec![0; piece]).is_err() {
                return;
            }
        }
    }

    fn free_again(&self) {
        std::fs::remove_file(self.ballast()).expect("there is ballast");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} is still mounted", self.0.display());
        }
    }
}

/// What is held, as the service tells it: lock by lock, with its token.
async fn held(home: &Home, session: &Session) -> BTreeMap<String, u64> {
    let client = Client::connect(home.address.to_string()).expect("an address");
    let only = session.id().map(|id| id.0);
    let request = proto::ListSessionsRequest { only, ..proto::ListSessionsRequest::default() };
    let listed = client.operator().list_sessions(request).await.expect("it serves").into_inner();
    let places = listed.sessions.into_iter().flat_map(|session| session.places);
    places.filter_map(|place| Some((place.group, place.seat?.token))).collect()
}

fn disk_is_low(home: &Home) -> bool {
    let mut status = quorate();
    status.args(["--server", &home.address.to_string(), "--json", "status"]);
    run(&mut status).ok().json()[0]["disk_low"].as_bool().expect("it says so")
}

fn create_group(home: &Home, name: &str) -> (Option<i32>, String) {
    let mut create = quorate();
    let ran = run(create.args(["--server", &home.address.to_string(), "group", "create", name]));
    (ran.code, ran.last_line().to_owned())
}

#[test]
fn r28_a_full_disk_refuses_then_stops_and_loses_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let Some(disk) = SmallDisk::mount(&dir.path().join("disk")) else { return };
    let reserve = (RESERVE_MIB << 20).to_string();
    let home = Home::at(&disk.0.join("data"), &["--ttl-floor", "200ms", "--disk-reserve-bytes", &reserve]);
    let life = home.live();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime starts").block_on(fills(&disk, &home, life));
}

async fn fills(disk: &SmallDisk, home: &Home, life: Life) {
    let client = Client::connect(home.address.to_string()).expect("an address");
    let session = client.session(SessionOptions::with_ttl(TTL)).await.expect("it serves");
    let mut guards = take_locks(&session).await;
    let (mut stream, _) =
        Stream::open(channel(home.address).await, Duration::from_millis(1_500), proto::OnDisconnect::Hold)
            .await;

    disk.fill_to((RESERVE_MIB << 20) / 2);
    eventually("the disk is low", LONG, || disk_is_low(home).then_some(()));
    assert_refused(home, &mut stream).await;
    for (_, guard) in guards.split_off(LOCKS - 100) {
        guard.release().await.expect("a release goes on");
    }
    eventually("an expiry goes on", LONG, || (sessions(home) == 1).then_some(()));

    disk.free_again();
    eventually("the disk is not low", LONG, || (!disk_is_low(home)).then_some(()));
    assert_eq!(create_group(home, "after").0, Some(0));

    disk.fill_to(0);
    let released = release_until_it_stops(disk, guards, life).await;
    disk.free_again();
    let _life = home.live();
    assert_acknowledged(home, &session, released).await;
}

async fn take_locks(session: &Session) -> Vec<(String, LockGuard)> {
    let taking = (0..LOCKS).map(|n| async move {
        let name = format!("lock-{n}");
        let guard = session.lock(name.clone()).expect("a name").acquire().await.expect("it is free");
        (name, guard)
    });
    futures::future::join_all(taking).await
}

fn sessions(home: &Home) -> usize {
    let mut list = quorate();
    run(list.args(["--server", &home.address.to_string(), "--json", "session", "list"])).ok().json().len()
}

/// What would grow the log is not done, and says why.
async fn assert_refused(home: &Home, stream: &mut Stream) {
    let why = format!("less than the {RESERVE_MIB} MiB kept for release, leave and expiry: free some space");
    let (code, said) = create_group(home, "during");
    assert!(matches!(code, Some(1 | 69)), "{code:?}: {said}");
    assert!(said.starts_with("quorate: ") && said.contains(&why), "{said}");
    let join = proto::Join { group: "during".into(), wait: true, ..proto::Join::default() };
    let call = proto::Call { request: 1, acknowledged: 0, op: Some(Op::Join(join)) };
    stream.send(Frame::Call(call)).await;
    let unanswered = loop {
        match stream.next().await {
            Some(Told::Unanswered(unanswered)) => break unanswered,
            Some(Told::Alive(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(unanswered.outcome, i32::from(proto::Outcome::NotDone));
    assert!(unanswered.why.contains(&why), "{}", unanswered.why);
    let short = Client::builder(home.address.to_string()).open_timeout(Duration::from_millis(500));
    let refused = short.build().expect("an address").session(SessionOptions::with_ttl(TTL)).await;
    let refused = refused.expect_err("a session takes space").to_string();
    assert!(refused.contains(&why), "{refused}");
    let answered = format!(
        "no service at http://{} could be used within 500 ms: the service cannot serve now: ",
        home.address
    );
    assert!(refused.starts_with(&answered), "{refused}");
}

/// Which locks were kept, with their tokens, which releases were answered, and which wait for their answers.
struct Released {
    kept: Vec<(String, LockGuard)>,
    tokens: BTreeMap<String, u64>,
    answered: Vec<String>,
    waiting: Vec<(String, JoinHandle<Result<(), Error>>)>,
}

/// Releases locks on a disk without a free byte until the node stops for it.
async fn release_until_it_stops(
    disk: &SmallDisk,
    mut guards: Vec<(String, LockGuard)>,
    mut life: Life,
) -> Released {
    let tokens: BTreeMap<String, u64> =
        guards.iter().map(|(name, guard)| (name.clone(), guard.token().expect("it is held").0)).collect();
    let ended = tokio::task::spawn_blocking(move || life.ended());
    let (mut answered, mut waiting) = (Vec::new(), Vec::new());
    while !ended.is_finished() {
        disk.fill_to(0);
        let (name, guard) = guards.pop().expect("the log must grow before all are released");
        let mut releasing = tokio::spawn(async move { guard.release().await });
        match tokio::time::timeout(Duration::from_millis(500), &mut releasing).await {
            Ok(released) => {
                released.expect("it does not panic").expect("a release that is answered is done");
                answered.push(name);
            }
            Err(_) => waiting.push((name, releasing)),
        }
    }
    let (status, said) = ended.await.expect("it does not panic");
    assert_eq!(status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("quorate: the log could not be made durable: the disk is full"), "{said}");
    println!("the node stopped after {} releases on a full disk, {} waited", answered.len(), waiting.len());
    Released { kept: guards, tokens, answered, waiting }
}

/// All that was answered is there: what was released is free, what was kept is held under its old token.
async fn assert_acknowledged(home: &Home, session: &Session, mut released: Released) {
    for (name, releasing) in released.waiting {
        releasing.await.expect("it does not panic").expect("it is done in the next life");
        released.answered.push(name);
    }
    let there = held(home, session).await;
    for name in &released.answered {
        assert!(!there.contains_key(name), "{name} was released");
    }
    for (name, guard) in &released.kept {
        assert_eq!(there.get(name), released.tokens.get(name), "{name}");
        assert_eq!(guard.token().map(|token| token.0), released.tokens.get(name).copied(), "{name}");
    }
    let lock = session.lock("after the full disk").expect("a name").acquire().await.expect("it serves again");
    let greatest = released.tokens.values().max().copied();
    assert!(lock.token().map(|token| token.0) > greatest);
}
