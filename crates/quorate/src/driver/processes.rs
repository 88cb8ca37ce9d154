//! A whole run on real processes: it starts them, lets them work, breaks things, and reads what they wrote
//! down.
//!
//! ```no_run
//! # async fn example() -> Result<(), quorate::driver::processes::RunError> {
//! use quorate::driver::processes::{Options, run};
//! use quorate_core::protocol::ProcessId;
//!
//! // Six processes, of which the greatest stops before the second holds an election.
//! let mut options = Options::new("bully", 6);
//! (options.crash, options.start) = (vec![ProcessId(6)], vec![ProcessId(2)]);
//! let report = run(options, |job| {
//!     let mut command = std::process::Command::new("my-program");
//!     command.args(["lab-process", job]); // which calls `driver::child::run(job)`
//!     command
//! })
//! .await?;
//! assert_eq!(report.total, 20);
//! # Ok(())
//! # }
//! ```
//!
//! **Rule.** A step follows when the one before has happened: everybody is connected, whoever is to be dead
//! is dead and suspected, everybody has done its work; and at the end nothing is under way any more.
//!
//! **Needs.** A Unix system, for signals; they go to the processes that were started here, and to no others.

mod company;
mod fault;

pub use fault::{Fault, plan};

use super::judge::{self, Inside, Merged};
use super::named::{self, Settings, Stand};
use super::record::Recording;
use company::{Company, Ended};
use quorate_core::protocol::{Peer, ProcessId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of the protocol: see [`named`].
    pub protocol: String,
    /// How it is set up.
    pub settings: Settings,
    /// How many processes.
    pub n: usize,
    /// Who crashes before the work begins.
    pub crash: Vec<ProcessId>,
    /// Who holds an election, or enters; if it is empty, the first that runs, or all that run.
    pub start: Vec<ProcessId>,
    /// How often each of these enters.
    pub entries: u32,
    /// How long each stays inside, at least and at most, in milliseconds.
    pub hold_ms: (u64, u64),
    /// What goes wrong meanwhile. At its end everything is mended and started again.
    pub faults: Vec<Fault>,
    /// Where all draws come from.
    pub seed: u64,
    /// How often a process says that it lives.
    pub beat_ms: u64,
    /// The detector of each: silence and closed connection, in milliseconds.
    pub detection_ms: (u64, u64),
    /// Where records, traces and errors go. It should be empty.
    pub directory: PathBuf,
    /// How long the work may take until the run is given up.
    pub patience: Duration,
}

impl Options {
    /// A calm run: everybody enters once, or the first that runs holds an election.
    pub fn new(protocol: impl Into<String>, n: usize) -> Self {
        let seed = rand::random();
        let directory = std::env::temp_dir().join(format!("quorate-lab-{}-{seed:016x}", std::process::id()));
        Self {
            protocol: protocol.into(),
            settings: Settings::default(),
            n,
            crash: Vec::new(),
            start: Vec::new(),
            entries: 1,
            hold_ms: (1, 3),
            faults: Vec::new(),
            seed,
            beat_ms: 50,
            detection_ms: (1_000, 300),
            directory,
            patience: Duration::from_secs(60),
        }
    }

    fn elects(&self) -> bool {
        named::ELECTIONS.contains(&self.protocol.as_str())
    }
}

/// Why a run gave nothing. All processes that it had started have ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The options make no sense.
    #[error("{0}; nothing was started")]
    Options(String),
    /// A process could not be started, or spoken to.
    #[error("a process could not be started or spoken to: {0}")]
    Io(#[from] std::io::Error),
    /// A process ended by itself.
    #[error("{process} has ended by itself; it says: {said}")]
    Ended {
        /// Which.
        process: ProcessId,
        /// Its last words.
        said: String,
    },
    /// Something did not happen in time.
    #[error("{what} did not happen within {patience:?}; {stands}")]
    Late {
        /// What was waited for.
        what: String,
        /// How long.
        patience: Duration,
        /// Where everybody stood.
        stands: String,
    },
    /// The recordings cannot be read, or do not run again as they ran.
    #[error("what was written down is wrong: {0}")]
    Recording(String),
}

/// What a run was.
#[derive(Debug)]
pub struct Report {
    /// How many messages of each sort were sent, of those that were.
    pub messages: Vec<(String, u64)>,
    /// How many in all.
    pub total: u64,
    /// The leader that all name that run, if it was an election.
    pub leader: Option<ProcessId>,
    /// What was seen of mutual exclusion, or who was inside with whom; nothing for an election.
    pub inside: Option<Result<Inside, String>>,
    /// How often one was elected, or who led in one term with whom; nothing for mutual exclusion.
    pub leaders: Option<Result<u64, String>>,
    /// How many waits were heard, or which is not true. While things go wrong whoever waits has to say why;
    /// at the end what it says is compared with what the others say.
    pub waits: Result<u64, String>,
    /// Nothing was under way at the end, and no timer ran.
    pub quiet: bool,
    /// Where everybody stood at the end.
    pub stands: BTreeMap<Peer, Stand>,
    /// How many inputs were run again, with the same outcome.
    pub replayed: u64,
    /// Everything that happened.
    pub merged: Merged,
    /// The same, life by life, with the inputs.
    pub recordings: Vec<Recording>,
}

impl Report {
    /// The first thing that does not hold.
    ///
    /// # Errors
    /// Says what.
    pub fn verdict(&self) -> Result<(), String> {
        if let Some(Err(why)) = &self.inside {
            return Err(why.clone());
        }
        if let Some(Err(why)) = &self.leaders {
            return Err(why.clone());
        }
        self.waits.clone().map(drop)
    }
}

/// Runs it. `command` makes the command of a child process, which has to call [`super::child::run`] with this
/// text.
///
/// # Errors
/// [`RunError`] says why there is nothing to report.
pub async fn run(options: Options, command: impl Fn(&str) -> Command) -> Result<Report, RunError> {
    check(&options)?;
    let mut company = Company::start(options, command).await?;
    company.everybody_connects().await?;
    company.crash_before().await?;
    company.work().await?;
    company.suffer().await?;
    company.finish().await?;
    let quiet = company.quiet().await?;
    let stands = company.stood();
    let ended = company.end().await?;
    let recordings = read(&ended.options)?;
    report(&ended, recordings, stands, quiet)
}

fn check(options: &Options) -> Result<(), RunError> {
    named::check(&options.protocol).map_err(RunError::Options)?;
    let known = |process: &ProcessId| (1..=options.n as u32).contains(&process.0);
    if !(1..=64).contains(&options.n) {
        return Err(RunError::Options("a run has 1 to 64 processes".into()));
    }
    if let Some(other) = options.crash.iter().chain(&options.start).find(|process| !known(process)) {
        return Err(RunError::Options(format!("there is no {other}")));
    }
    if (0..options.n).map(ProcessId::at).all(|process| options.crash.contains(&process)) {
        return Err(RunError::Options("all crash before the work begins, and nobody is left for it".into()));
    }
    if let Some(both) = options.start.iter().find(|process| options.crash.contains(process)) {
        return Err(RunError::Options(format!("{both} cannot crash before the start and start")));
    }
    let named = options.faults.iter().flat_map(Fault::processes).find(|process| !known(process));
    match named {
        Some(other) => Err(RunError::Options(format!("there is no {other}"))),
        None => Ok(()),
    }
}

fn read(options: &Options) -> Result<Vec<Recording>, RunError> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(options.directory.join("trace"))? {
        paths.push(entry?.path());
    }
    paths.sort_unstable();
    paths.iter().map(|path| Recording::read(path).map_err(RunError::Recording)).collect()
}

fn report(
    ended: &Ended,
    recordings: Vec<Recording>,
    stands: BTreeMap<Peer, Stand>,
    quiet: bool,
) -> Result<Report, RunError> {
    let (options, mut replayed) = (&ended.options, 0);
    for life in &recordings {
        let again = named::replay_named(&options.protocol, options.n, &options.settings, life);
        let again = again.map_err(|why| RunError::Recording(format!("{}: {why}", life.header.peer)))?;
        replayed += again.inputs;
    }
    let merged = judge::merge(&recordings, &ended.outside);
    let messages = merged.counts();
    let elects = options.elects();
    Ok(Report {
        total: messages.iter().map(|(_, count)| count).sum(),
        messages,
        leader: company::leader(&stands).filter(|_| elects),
        inside: (!elects).then(|| judge::inside(&merged)),
        leaders: elects.then(|| judge::leaders(&merged)),
        waits: judge::waits(&stands, &merged, &recordings)
            .and_then(|seen| Ok(seen + ended.explained.clone()?)),
        quiet,
        stands,
        replayed,
        merged,
        recordings,
    })
}
