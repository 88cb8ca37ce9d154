//! A worker: a real process in a group that writes down what it is told, what it believes, and what it does.
//!
//! It is this test binary, started again with a job in its environment. It is naive on purpose: it takes its
//! token at one moment and writes with it later, without a second look, as programs do. It ends with whoever
//! started it.

use super::tail::{Lines, Tail};
use quorate::clock::Clock;
use quorate::guard::{FileGuard, FileOptions, Guard, GuardError};
use quorate::{Advisory, Client, Error, Group, JoinOptions, Name, OnDisconnect, Session, SessionOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The variable that holds a worker's job.
const JOB: &str = "QUORATE_TEST_WORKER";

/// How often a worker asks whether it acts, when nothing is told.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What a worker is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The service.
    pub(crate) server: String,
    /// The group.
    pub(crate) group: String,
    /// Its own name.
    pub(crate) name: String,
    /// The length of its lease.
    pub(crate) ttl_ms: u64,
    /// A closed connection is a leave.
    pub(crate) release: bool,
    /// Where it writes down what it sees.
    pub(crate) log: PathBuf,
    /// What it writes while it acts.
    pub(crate) work: Option<Work>,
}

/// Lines `token worker n`, appended to one file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    /// The file.
    pub(crate) file: PathBuf,
    /// The guard's state; none to write without asking.
    pub(crate) guard: Option<PathBuf>,
    /// How long from taking the token to writing with it, at least and at most.
    pub(crate) late_ms: (u64, u64),
}

/// What a worker wrote down. Times are `CLOCK_BOOTTIME` in microseconds, which all processes share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Said {
    /// It was told something.
    Told { at: u64, event: String, ordinal: Option<i64>, token: Option<u64>, why: String },
    /// It asked whether it acts, between two readings of the clock, and it does.
    Acts { before: u64, after: u64, token: u64 },
    /// It wrote a line.
    Wrote { at: u64, token: u64 },
    /// The guard refused it.
    Refused { at: u64, token: u64 },
    /// Something else went wrong.
    Trouble { at: u64, why: String },
}

/// The present reading of the clock that all processes share, in microseconds.
pub(crate) fn now_us() -> u64 {
    Clock::new().now().0
}

/// Not a test: what the workers run. They are this binary with a job.
#[test]
fn process() {
    if let Ok(job) = std::env::var(JOB) {
        work(serde_json::from_str(&job).expect("a job"));
    }
}

fn work(job: Job) -> ! {
    std::thread::spawn(|| {
        // Standard input ends with whoever started this process.
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(Diary::of(job).keep());
    std::process::exit(0);
}

/// A worker from the inside.
struct Diary {
    job: Job,
    log: Lines,
    lines: u64,
}

impl Diary {
    fn of(job: Job) -> Self {
        let log = Lines::append_to(&job.log);
        Self { job, log, lines: 0 }
    }

    fn say(&self, said: &Said) {
        self.log.push(&serde_json::to_string(said).expect("it can be written down"));
    }

    fn trouble(&self, why: &dyn std::fmt::Display) {
        self.say(&Said::Trouble { at: now_us(), why: why.to_string() });
    }

    async fn keep(mut self) {
        let mut group = self.enter().await;
        let file = self.job.work.as_ref().map(|work| Lines::append_to(&work.file));
        let guard = self
            .job
            .work
            .as_ref()
            .and_then(|work| work.guard.as_ref())
            .map(|path| FileGuard::open(path, FileOptions::default()).expect("the guard's state opens"));
        loop {
            tokio::select! {
                biased;
                advisory = group.next() => match advisory {
                    Some(advisory) => self.told(&advisory),
                    None => return self.trouble(&"nothing more is told"),
                },
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            self.act(&group, file.as_ref(), guard.as_ref());
        }
    }

    /// Joins, however long the service is away.
    async fn enter(&self) -> Group {
        loop {
            match self.join().await {
                Ok(group) => return group,
                Err(error) => self.trouble(&error),
            }
        }
    }

    async fn join(&self) -> Result<Group, Error> {
        let client = Client::connect(self.job.server.clone())?;
        let mut options =
            SessionOptions::with_ttl(Duration::from_millis(self.job.ttl_ms)).label(&self.job.name);
        if self.job.release {
            options = options.on_disconnect(OnDisconnect::Release);
        }
        let session: Session = client.session(options).await?;
        session.join(self.job.group.clone(), JoinOptions::default().name(&self.job.name)).await
    }

    fn told(&self, advisory: &Advisory) {
        self.say(&Said::Told {
            at: now_us(),
            event: advisory.event.as_str().into(),
            ordinal: advisory.ordinal,
            token: advisory.token.map(|token| token.0),
            why: format!("{}: {}", advisory.reason, advisory.evidence),
        });
    }

    /// Takes the token, works for a while, and writes with it, come what may.
    fn act(&mut self, group: &Group, file: Option<&Lines>, guard: Option<&FileGuard>) {
        let before = now_us();
        let Some(offer) = group.offer() else { return };
        let (after, token) = (now_us(), offer.token.0);
        self.say(&Said::Acts { before, after, token });
        let (Some(work), Some(file)) = (&self.job.work, file) else { return };
        let late = rand::random_range(work.late_ms.0..=work.late_ms.1);
        std::thread::sleep(Duration::from_millis(late));
        let resource = Name::new("the file").expect("a name");
        let permit = match guard.map(|guard| guard.enter(&resource, offer)) {
            None => None,
            Some(Ok(permit)) => Some(permit),
            Some(Err(GuardError::Refused { .. })) => return self.say(&Said::Refused { at: now_us(), token }),
            Some(Err(error)) => return self.trouble(&error),
        };
        self.lines += 1;
        file.push(&format!("{token} {} {}", self.job.name, self.lines));
        drop(permit);
        self.say(&Said::Wrote { at: now_us(), token });
    }
}

/// A worker from the outside. It is killed when the value is dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    /// Its name.
    pub(crate) name: String,
    tail: Tail,
    /// All that it has written down so far, as last read.
    pub(crate) said: Vec<Said>,
}

impl Worker {
    /// Starts one. Its troubles go to `NAME.err` beside its log.
    pub(crate) fn start(job: &Job) -> Self {
        let errors = std::fs::File::create(job.log.with_extension("err")).expect("a file for its errors");
        let path = module_path!().split_once("::").map_or("", |(_, path)| path);
        let mut command = Command::new(std::env::current_exe().expect("the test knows itself"));
        command.args(["--exact", &format!("{path}::process"), "--nocapture", "--test-threads=1"]);
        command.env(JOB, serde_json::to_string(job).expect("a job can be written down"));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(errors);
        let child = command.spawn().expect("the test binary starts");
        Self { child, name: job.name.clone(), tail: Tail::of(&job.log), said: Vec::new() }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal; the instant just before.
    pub(crate) fn signal(&self, signal: Signal) -> u64 {
        let at = now_us();
        kill_process(self.pid(), signal).expect("the worker runs");
        at
    }

    /// Kills it as `kill -9` does; the instant just before.
    pub(crate) fn kill(&mut self) -> u64 {
        let at = self.signal(Signal::KILL);
        let status = self.child.wait().expect("it is ours");
        assert_eq!(status.signal(), Some(9), "{} ended by itself: {status}", self.name);
        at
    }

    /// Reads what it has written down since.
    pub(crate) fn listen(&mut self) -> &[Said] {
        let known = self.said.len();
        let news = self.tail.news();
        let parse = |line: &String| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        self.said.extend(news.iter().map(parse));
        &self.said[known..]
    }

    /// What it was told since an instant, oldest first: the event with its time, its ordinal and its token.
    pub(crate) fn told_since(&mut self, since: u64) -> impl Iterator<Item = Told<'_>> {
        self.listen();
        self.said.iter().filter_map(move |said| match said {
            Said::Told { at, event, ordinal, token, .. } if *at >= since => {
                Some(Told { at: *at, event, ordinal: *ordinal, token: *token })
            }
            _ => None,
        })
    }
}

/// Something that a worker was told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told<'a> {
    pub(crate) at: u64,
    pub(crate) event: &'a str,
    pub(crate) ordinal: Option<i64>,
    pub(crate) token: Option<u64>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A job in a test's directory.
pub(crate) fn job(dir: &Path, server: &str, name: &str, ttl: Duration) -> Job {
    Job {
        server: server.into(),
        group: "workers".into(),
        name: name.into(),
        ttl_ms: u64::try_from(ttl.as_millis()).expect("a short lease"),
        release: false,
        log: dir.join(format!("{name}.log")),
        work: None,
    }
}

/// One worker's conviction that it acts under one token, from its first to its last look. Each look lies
/// between two readings of the clock, so the conviction lasted at least from the second reading of the first
/// look to the first reading of the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Belief {
    pub(crate) worker: String,
    pub(crate) token: u64,
    pub(crate) first: (u64, u64),
    pub(crate) last: (u64, u64),
}

impl Belief {
    /// Both were convinced at some instant.
    fn overlaps(&self, other: &Self) -> bool {
        self.first.1.max(other.first.1) < self.last.0.min(other.last.0)
    }

    /// It had ended when the other began.
    fn precedes(&self, other: &Self) -> bool {
        self.last.1 <= other.first.0
    }
}

/// What the workers believed.
pub(crate) fn beliefs<'a>(workers: impl IntoIterator<Item = &'a Worker>) -> Vec<Belief> {
    let mut beliefs: Vec<Belief> = Vec::new();
    for worker in workers {
        let mut now: Option<Belief> = None;
        for said in &worker.said {
            let Said::Acts { before, after, token } = *said else { continue };
            match &mut now {
                Some(belief) if belief.token == token => belief.last = (before, after),
                _ => {
                    let (worker, look) = (worker.name.clone(), (before, after));
                    beliefs.extend(now.replace(Belief { worker, token, first: look, last: look }));
                }
            }
        }
        beliefs.extend(now);
    }
    beliefs
}

/// Holds the invariant: at no instant do two workers believe that they act, and whoever acts later has the
/// greater token.
pub(crate) fn assert_one_at_a_time(beliefs: &[Belief]) {
    for one in beliefs {
        for other in beliefs.iter().filter(|other| other.worker != one.worker) {
            assert!(!one.overlaps(other), "two act at once: {one:?}, {other:?}");
        }
        // A single look may have taken no time at all, and then it precedes itself.
        let others = beliefs.iter().filter(|other| !std::ptr::eq(*other, one));
        for later in others.filter(|later| one.precedes(later)) {
            assert!(one.token < later.token, "tokens do not grow: {one:?}, {later:?}");
        }
    }
}

#[test]
#[should_panic = "two act at once"]
fn an_overlap_is_seen() {
    let belief = |worker: &str, token, from, to| Belief {
        worker: worker.into(),
        token,
        first: (from, from),
        last: (to, to),
    };
    assert_one_at_a_time(&[belief("a", 1, 10, 50), belief("b", 2, 60, 90), belief("c", 3, 80, 85)]);
}

#[test]
#[should_panic = "tokens do not grow"]
fn a_token_that_goes_back_is_seen() {
    let belief = |worker: &str, token, from, to| Belief {
        worker: worker.into(),
        token,
        first: (from, from),
        last: (to, to),
    };
    assert_one_at_a_time(&[belief("a", 2, 10, 50), belief("b", 1, 60, 90)]);
}
