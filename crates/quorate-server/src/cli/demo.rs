//! `quorate demo`: a service, five workers and one file, and what becomes of them when one is killed and one is
//! paused.
//!
//! **Problem.** What ordinals, leases and tokens are good for is best seen when something goes wrong. **Rule.**
//! Nothing here is played: the service keeps its log on the disk, the workers are processes of their own, the one
//! that is killed gets `kill -9`, the one that is paused SIGSTOP in the middle of its work. **Safety.** All of it
//! is in one new directory and on a port of this machine that nobody else uses, and ends with this process.

mod board;
mod stage;
mod story;
pub(super) mod worker;

use super::exit::{Code, Failure, Outcome};
use super::output::{self, Tone, paint};
use super::{Global, block_on};
use crate::config::Config;
use crate::serve::{self, End};
use clap::Args;
use stage::Stage;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::oneshot;

/// `quorate demo`
#[derive(Args, Debug)]
#[command(
    long_about = ABOUT,
    after_help = "Examples:\n  quorate demo\n  quorate demo --no-guard        what a late writer does to a file without a guard\n  \
        quorate demo --dir ./demo      keeps the file, the guard's memory and the service's data"
)]
pub struct DemoArgs {
    /// The length of a worker's lease: how long the others wait when it is killed or paused
    #[arg(long, value_name = "TIME", value_parser = super::lock::duration, default_value = "2s")]
    ttl: Duration,
    /// Write to the file without asking its guard
    #[arg(long)]
    no_guard: bool,
    /// A new or empty directory for all files, which are kept; by default they are removed at the end
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

const ABOUT: &str = "Watch five workers take turns while one is killed and one is paused.\n\n\
    A service of its own, five processes that are one group, and one file. Number 1 acts and appends to the \
    file through a guard; the others stand by. The active one is killed: within its lease and a moment the next \
    one acts. Then the active one is paused in the middle of a write, and wakes when another acts: it is told \
    first that it is cut off, and its late write is refused. It takes about 12 seconds, needs no service, and \
    leaves nothing behind.";

/// What is shown first, to people.
const OPENING: &str = "Five workers, P1 to P5, are one group. Number 1 acts, and appends to one file; the others \
    stand by. A token comes with the right to act: a number that only grows. The file's guard remembers the \
    greatest it has seen. Below each time stands what each worker was told last.";

/// How long the service may take to start.
const START_MAX: Duration = Duration::from_secs(20);

/// Plays it.
pub(super) fn run(args: DemoArgs, global: &Global) -> Outcome {
    let home = home(args.dir.as_deref())?;
    if !global.json {
        output::line(output::fold(OPENING, output::columns(), ""))?;
        output::line("")?;
    }
    block_on(async {
        let config = config(home.path())?;
        let (ready, is_ready) = oneshot::channel();
        let service = serve::run(config, |service| {
            // Nobody waits for it any more only if the demo has given up.
            let _ = ready.send(service.address);
        });
        tokio::pin!(service);
        let play = async {
            let address = tokio::time::timeout(START_MAX, is_ready).await;
            let address = address.ok().and_then(Result::ok).ok_or_else(|| {
                Failure::failed("the service of the demo did not start; is the disk very slow?")
            })?;
            let mut stage = Stage::new(home.path(), address, &args, global.json);
            let told = story::tell(&mut stage).await;
            stage.clear();
            told
        };
        tokio::select! {
            biased;
            told = play => told,
            ended = &mut service => Err(match ended {
                Ok(End::Asked) => Failure::new(Code::Signal(2), "interrupted; nothing is left behind"),
                Ok(End::Failed(why)) => Failure::failed(why),
                Err(error) => Failure::failed(error.to_string()),
            }),
        }
    })?;
    if let (Some(dir), false) = (&args.dir, global.json) {
        output::line(paint(Tone::Faint, &format!("All files are in {}.", dir.display())))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the files are: a directory that is removed at the end, or one that was named.
enum Home {
    Passing(tempfile::TempDir),
    Kept(PathBuf),
}

impl Home {
    fn path(&self) -> &Path {
        match self {
            Self::Passing(dir) => dir.path(),
            Self::Kept(path) => path,
        }
    }
}

fn home(dir: Option<&Path>) -> Result<Home, Failure> {
    let Some(dir) = dir else {
        let made = tempfile::Builder::new().prefix("quorate-demo-").tempdir();
        return made.map(Home::Passing).map_err(|error| {
            Failure::failed(format!("cannot make a directory for the demo: {error}; name one with --dir"))
        });
    };
    let show = dir.display();
    std::fs::create_dir_all(dir).map_err(|error| Failure::failed(format!("cannot make {show}: {error}")))?;
    let mut entries =
        std::fs::read_dir(dir).map_err(|error| Failure::failed(format!("cannot read {show}: {error}")))?;
    match entries.next() {
        None => Ok(Home::Kept(dir.to_owned())),
        Some(_) => Err(Failure::usage(format!("{show} is not empty: name a new directory for the demo"))),
    }
}

fn config(home: &Path) -> Result<Config, Failure> {
    let data = home.join("data").display().to_string();
    let flags = vec![("listen", "127.0.0.1:0".to_owned()), ("data", data), ("insecure", "false".to_owned())];
    Config::load(None, flags).map_err(|error| Failure::usage(error.to_string()))
}
