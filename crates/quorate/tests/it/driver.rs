//! Peer protocols on real sockets, in one process and in many: what was counted and searched is what runs.

use crate::soon;
use quorate::driver::child;
use quorate::driver::judge;
use quorate::driver::named::{self, Settings, Stand};
use quorate::driver::processes::{Options, Report, plan, run};
use quorate::driver::record::{Recording, replay};
use quorate::driver::{self, Driver, Portable};
use quorate_core::mutex::{
    Call, Central, Event, IdleToken, Maekawa, MaekawaForm, Mutex, RicartAgrawala, Standing, TokenRing,
};
use quorate_core::protocol::{Cause, Goal, Members, Peer, ProcessId};
use quorate_core::trace::{Loss, What};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio::net::TcpListener;

/// The variable that holds a child's job.
const JOB: &str = "QUORATE_TEST_DRIVER";

/// The variable that says how many rounds of faults are run for each protocol.
const ROUNDS: &str = "QUORATE_DRIVER_ROUNDS";

/// The variable that says with which seed the rounds begin, to run one again.
const SEED: &str = "QUORATE_DRIVER_SEED";

/// Not a test: what the children run. They are this binary with a job.
#[test]
fn process() {
    let Ok(job) = std::env::var(JOB) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    if let Err(error) = runtime.block_on(child::run(&job)) {
        eprintln!("{error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

fn child_command(job: &str) -> Command {
    let path = module_path!().split_once("::").map_or("", |(_, path)| path);
    let mut command = Command::new(std::env::current_exe().expect("the test knows itself"));
    command.args(["--exact", &format!("{path}::process"), "--nocapture", "--test-threads=1"]);
    command.env(JOB, job);
    command
}

// ---- in one process

struct Group<P: Portable> {
    drivers: Vec<Driver<P>>,
    trace: PathBuf,
}

impl<P: Portable> Group<P> {
    /// Starts all members. The lives of one name are written down together; disks are the directory's.
    async fn start(n: usize, directory: &Path, name: &str, maker: impl Fn(ProcessId) -> P) -> Self {
        let trace = directory.join(name);
        let mut listeners = Vec::new();
        let mut addresses: BTreeMap<ProcessId, SocketAddr> = BTreeMap::new();
        for process in (0..n).map(ProcessId::at) {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            addresses.insert(process, listener.local_addr().unwrap());
            listeners.push((process, listener));
        }
        let start = |(process, listener): (ProcessId, TcpListener)| {
            let options = driver::Options {
                trace: Some(trace.clone()),
                disk: Some(directory.join(process.to_string())),
                ..driver::Options::default()
            };
            Driver::start(maker(process), process, listener, addresses.clone(), options).unwrap()
        };
        let drivers: Vec<_> = listeners.into_iter().map(start).collect();
        for driver in &drivers {
            let linked =
                move |now: &driver::Progress| now.links_in == n as u32 - 1 && now.links_out == n as u32 - 1;
            soon(driver.progress().wait_for(linked)).await.unwrap();
        }
        Self { drivers, trace }
    }

    /// Stops all, and reads what they wrote down.
    async fn recordings(self) -> Vec<Recording> {
        for driver in self.drivers {
            driver.stop().await.unwrap();
        }
        let files = std::fs::read_dir(&self.trace).unwrap();
        files.map(|file| Recording::read(&file.unwrap().path()).unwrap()).collect()
    }
}

async fn entered<P: Portable<Event = Event>>(driver: &mut Driver<P>) {
    while !matches!(soon(driver.event()).await.expect("it runs"), Event::Entered { .. }) {}
}

fn ricart_agrawala(n: usize) -> impl Fn(ProcessId) -> RicartAgrawala {
    move |me| RicartAgrawala::new(me, Members::first(n), None)
}

#[tokio::test]
async fn tasks_on_sockets_send_what_the_literature_counts_and_run_again_to_the_same_digest() {
    let n = 4;
    let directory = tempfile::tempdir().unwrap();
    let mut group = Group::start(n, directory.path(), "trace", ricart_agrawala(n)).await;
    for driver in &mut group.drivers {
        driver.call(Call::Enter).await.unwrap();
        entered(driver).await;
        driver.call(Call::Leave).await.unwrap();
    }
    let recordings = group.recordings().await;
    let sent = |life: &Recording| {
        life.lines.iter().filter(|line| matches!(line.step.what, What::Sent { .. })).count()
    };
    assert_eq!(recordings.iter().map(sent).sum::<usize>(), n * 2 * (n - 1));
    for life in &recordings {
        let maker = ricart_agrawala(n);
        let replayed = replay(maker(life.header.peer.process), life).unwrap();
        let last = life.lines.iter().filter_map(|line| line.input.as_ref()).next_back().unwrap();
        assert_eq!(format!("{:016x}", replayed.digest), last.digest);
        // Another beginning is noticed at the first input.
        let other = replay(maker(life.header.peer.process).with_clock(7), life).unwrap_err();
        assert!(other.starts_with("input 1 "), "{other}");
    }
}

#[tokio::test]
async fn who_waits_names_the_one_that_holds_back() {
    let n = 3;
    let directory = tempfile::tempdir().unwrap();
    let mut group = Group::start(n, directory.path(), "trace", ricart_agrawala(n)).await;
    group.drivers[0].call(Call::Enter).await.unwrap();
    entered(&mut group.drivers[0]).await;
    group.drivers[1].call(Call::Enter).await.unwrap();
    soon(group.drivers[1].progress().wait_for(|now| now.received >= 2)).await.unwrap();
    let waits = soon(group.drivers[1].look(|machine, _| machine.waits_and_standing())).await.unwrap();
    let (waits, standing) = waits;
    assert_eq!(standing, Standing::Waiting);
    let [wait] = &waits[..] else { panic!("{waits:?}") };
    let Goal::Enter(request) = wait.goal else { panic!("{wait}") };
    assert!(matches!(wait.cause, Cause::Message { kind: "REPLY", from: ProcessId(1), .. }), "{wait}");
    let owed = soon(group.drivers[0].look(|machine, _| machine.waits_and_standing().0)).await.unwrap();
    let [owed] = &owed[..] else { panic!("{owed:?}") };
    assert_eq!(owed.goal, Goal::Answer { kind: "REPLY", request });
    group.drivers[0].call(Call::Leave).await.unwrap();
    entered(&mut group.drivers[1]).await;
}

trait Look: Mutex {
    fn waits_and_standing(&self) -> (Vec<quorate_core::protocol::Wait>, Standing) {
        (self.waits(), self.standing())
    }
}

impl<P: Mutex> Look for P {}

/// Asks everybody until nothing is under way and nobody has moved between two rounds.
async fn at_rest<P: Portable + Mutex>(group: &Group<P>) -> BTreeMap<Peer, Stand> {
    let mut before = None;
    loop {
        let (mut stands, mut progress) = (BTreeMap::new(), Vec::new());
        for driver in &group.drivers {
            let look = |machine: &P, progress: &driver::Progress| (named::mutex(machine), progress.clone());
            let (stand, now) = soon(driver.look(look)).await.unwrap();
            stands.insert(driver.peer(), stand);
            progress.push(now);
        }
        let sent: u64 = progress.iter().map(|now| now.sent).sum();
        let received: u64 = progress.iter().map(|now| now.received).sum();
        if sent == received && before.as_ref() == Some(&progress) {
            return stands;
        }
        before = Some(progress);
    }
}

/// One is inside and three wait: what they say is missing is held back by those that they name.
async fn true_waits<P: Portable + Mutex>(maker: impl Fn(ProcessId) -> P) {
    let directory = tempfile::tempdir().unwrap();
    let mut group = Group::start(4, directory.path(), "trace", maker).await;
    group.drivers[1].call(Call::Enter).await.unwrap();
    entered(&mut group.drivers[1]).await;
    for waiting in [0, 2, 3] {
        group.drivers[waiting].call(Call::Enter).await.unwrap();
    }
    let stands = soon(at_rest(&group)).await;
    let standing = |word: &str| stands.values().filter(|stand| stand.standing == word).count();
    assert_eq!((standing("inside"), standing("waiting")), (1, 3));
    let seen = judge::waits(&stands, &judge::Merged::default(), &[]).unwrap();
    assert!(seen >= 3, "{stands:?}");
}

#[tokio::test]
async fn what_waits_say_at_rest_is_true() {
    true_waits(ricart_agrawala(4)).await;
    true_waits(|me| Central::new(me, ProcessId(1), None, true)).await;
    true_waits(|me| Maekawa::new(me, Members::first(4), MaekawaForm::DeadlockFree, true, None)).await;
    true_waits(|me| TokenRing::new(me, Members::first(4), IdleToken::Park, None)).await;
}

#[tokio::test]
async fn a_grant_leaves_when_it_is_on_the_disk_and_a_restart_remembers_it() {
    let n = 2;
    let maker = |me| Central::new(me, ProcessId(1), None, true);
    let directory = tempfile::tempdir().unwrap();
    let mut group = Group::start(n, directory.path(), "first", maker).await;
    group.drivers[1].call(Call::Enter).await.unwrap();
    entered(&mut group.drivers[1]).await;
    let recordings = group.recordings().await;
    let coordinator = life_of(&recordings, 1);
    let at = |wanted: fn(&What) -> bool| coordinator.lines.iter().position(|line| wanted(&line.step.what));
    let written = at(|what| matches!(what, What::Persisted(_)));
    let sent = at(|what| matches!(what, What::Sent { .. }));
    assert!(written.is_some() && written < sent, "{written:?} {sent:?}");

    // It grants again, to the life that it had granted to; that one is over, so nobody believes it.
    let group = Group::start(n, directory.path(), "second", maker).await;
    soon(group.drivers[1].progress().wait_for(|now| now.received == 1)).await.unwrap();
    let standing = soon(group.drivers[1].look(|machine, _| machine.standing())).await.unwrap();
    assert_eq!(standing, Standing::Idle);
    let recordings = group.recordings().await;
    assert_eq!(life_of(&recordings, 1).lines[0].step.what, What::Started { record: true });
    let dropped = |what: &What| matches!(what, What::Dropped { why: Loss::FormerLife, .. });
    assert!(life_of(&recordings, 2).lines.iter().any(|line| dropped(&line.step.what)));
}

fn life_of(recordings: &[Recording], process: u32) -> &Recording {
    recordings.iter().find(|life| life.header.peer.process == ProcessId(process)).unwrap()
}

// ---- in many processes

async fn lab(directory: &Path, mut options: Options) -> Report {
    options.directory = directory.to_path_buf();
    let seed = options.seed;
    match run(options, child_command).await {
        Ok(report) => report,
        Err(error) => panic!("seed {seed}: {error}"),
    }
}

async fn calm(protocol: &str, n: usize, crash: &[u32], start: &[u32]) -> Report {
    let directory = tempfile::tempdir().unwrap();
    let mut options = Options::new(protocol, n);
    options.crash = crash.iter().copied().map(ProcessId).collect();
    options.start = start.iter().copied().map(ProcessId).collect();
    let report = lab(directory.path(), options).await;
    report.verdict().unwrap();
    assert!(report.quiet, "{protocol}: {:?}", report.messages);
    assert!(report.replayed > 0);
    report
}

fn counts(report: &Report) -> Vec<(&str, u64)> {
    report.messages.iter().map(|(name, count)| (name.as_str(), *count)).collect()
}

#[tokio::test]
async fn elections_of_processes_send_what_the_literature_counts() {
    let report = calm("bully", 6, &[6], &[2]).await;
    assert_eq!(counts(&report), [("ELECTION", 10), ("OK", 6), ("COORDINATOR", 4)]);
    assert_eq!((report.total, report.leader), (20, Some(ProcessId(5))));
    let report = calm("ring", 6, &[], &[3]).await;
    assert_eq!(counts(&report), [("ELECTION", 6), ("COORDINATOR", 6)]);
    assert_eq!((report.total, report.leader), (12, Some(ProcessId(6))));
    let report = calm("ring", 7, &[7], &[2]).await;
    assert_eq!((report.total, report.leader), (12, Some(ProcessId(6))));
    let report = calm("chang-roberts", 6, &[], &[1]).await;
    assert_eq!(counts(&report), [("ELECTION", 11), ("ELECTED", 6)], "5 that are replaced, then once round");
    assert_eq!(report.leader, Some(ProcessId(6)));
}

#[tokio::test]
async fn entries_of_processes_cost_what_the_literature_counts() {
    let report = calm("central", 5, &[], &[]).await;
    assert_eq!(counts(&report), [("REQUEST", 4), ("GRANT", 4), ("RELEASE", 4)], "3 each, none for n1");
    let report = calm("ricart-agrawala", 4, &[], &[]).await;
    assert_eq!(counts(&report), [("REQUEST", 12), ("REPLY", 12)], "2(N-1) each");
    let report = calm("maekawa", 9, &[], &[5]).await;
    assert_eq!(counts(&report), [("REQUEST", 4), ("LOCKED", 4), ("RELEASE", 4)], "3(K-1), K = 5");
    let report = calm("token-ring", 5, &[], &[4]).await;
    assert_eq!(counts(&report), [("TOKEN", 3), ("REQUEST", 3)], "n4 is 3 places behind the token");
    assert_eq!(report.inside.unwrap().unwrap().entries, 1);
}

fn number(variable: &str, or: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
}

/// Rounds of faults; each has its seed, which is told if it fails.
async fn rounds(protocol: &str, n: usize, settings: Settings) {
    let first = std::env::var(SEED).ok().and_then(|text| text.parse().ok()).unwrap_or_else(rand_seed);
    for seed in (0..number(ROUNDS, 1)).map(|round| first + round) {
        let directory = tempfile::tempdir().unwrap();
        let mut options = Options::new(protocol, n);
        options.settings = settings.clone();
        (options.seed, options.faults) = (seed, plan(seed, n, 12));
        (options.entries, options.hold_ms) = (5, (1, 30));
        (options.beat_ms, options.detection_ms) = (20, (300, 40));
        let faults: Vec<_> = options.faults.iter().map(ToString::to_string).collect();
        let report = lab(directory.path(), options).await;
        println!(
            "{protocol}, seed {seed}: {} messages, {} lives, {} inputs run again, {:?} waits, {:?} {:?}",
            report.total,
            report.recordings.len(),
            report.replayed,
            report.waits,
            report.inside,
            report.leaders
        );
        if let Err(why) = report.verdict() {
            panic!("{protocol}, seed {seed}: {why}\n{}", faults.join("\n"));
        }
        match (&report.inside, report.leader) {
            (Some(Ok(inside)), _) => assert!(inside.entries >= 5 * n as u64),
            (None, leader) => assert!(leader.is_some()),
            (Some(Err(_)), _) => unreachable!("the verdict has it"),
        }
    }
}

fn rand_seed() -> u64 {
    u64::from(std::process::id())
}

#[tokio::test]
async fn mutual_exclusion_survives_kills_pauses_and_cuts() {
    let settings = Settings {
        lease_ms: Some(400),
        durable: true,
        retry_ms: Some(100),
        silence_ms: Some(500),
        ..Settings::default()
    };
    rounds("ricart-agrawala", 4, settings.clone()).await;
    rounds("central", 4, settings.clone()).await;
    rounds("maekawa", 4, settings.clone()).await;
    rounds("token-ring", 4, settings).await;
}

#[tokio::test]
async fn elections_survive_kills_pauses_and_cuts() {
    let settings = Settings {
        answer_ms: 200,
        coordinator_ms: 1_200,
        again_ms: Some(400),
        retry_ms: Some(300),
        elect_at_start: true,
        ..Settings::default()
    };
    rounds("term", 5, settings.clone()).await;
    rounds("bully", 4, settings.clone()).await;
    rounds("ring", 4, settings.clone()).await;
    rounds("chang-roberts", 4, settings).await;
}
