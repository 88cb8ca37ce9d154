//! The command line: who asks for what, and how it ends.
//!
//! A command is one variant of [`Command`] and one arm in its `run`; its arguments and its work are in
//! a file of its own. It returns an [`Outcome`]; only this file turns that into an exit code.

mod barrier;
pub mod bench;
mod demo;
pub mod exit;
pub mod guard;
mod guardian;
mod join;
mod lab;
mod lead;
mod lock;
mod observe;
pub mod operator;
pub mod output;
pub mod policy;
pub mod serve;
pub mod servers;
mod snapshot;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use exit::{Failure, Outcome};
use quorate_core::state_machine::{LEVEL_HIGHEST, codec};
use servers::Servers;
use std::process::ExitCode;
use std::sync::LazyLock;

/// Who acts, in which order, and why the others wait.
#[derive(Parser)]
#[command(
    name = "quorate",
    version,
    long_version = LONG_VERSION.as_str(),
    about = "Groups, locks and leaders: who acts, in which order, and why the others wait.",
    long_about = "Quorate lets processes agree who acts and in which order they see things.\n\n\
        A name is a queue of members. The first of them act: a lock lets one act until it is done, a group \
        keeps its members in order, each with a number. Whoever acts has a token, a number that only grows, \
        by which a resource refuses those that acted before.",
    after_long_help = format!("{EXAMPLES}\n\n{}", exit::TABLE),
    after_help = "`quorate --help` shows examples and the exit codes.",
    arg_required_else_help = true,
    max_term_width = 100,
    disable_help_subcommand = true
)]
pub struct Cli {
    /// What is the same for all commands.
    #[command(flatten)]
    pub global: Global,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// What is the same for all commands.
#[derive(Args, Clone, Debug)]
pub struct Global {
    /// Where the service is: host:port or a URL; several with commas are tried in order
    #[arg(
        long,
        global = true,
        env = "QUORATE_SERVER",
        default_value = "127.0.0.1:7420",
        value_name = "ADDRESS",
        help_heading = "Options of all commands"
    )]
    pub server: Servers,
    /// Print JSON, one object a line, instead of text
    #[arg(long, global = true, help_heading = "Options of all commands")]
    pub json: bool,
}

/// All commands.
#[derive(Subcommand)]
pub enum Command {
    /// Watch five workers take turns while one is killed and one is paused
    Demo(demo::DemoArgs),
    /// One of the workers of `demo`
    #[command(hide = true)]
    DemoWorker(demo::worker::WorkerArgs),
    /// Run the service
    #[command(long_about = serve::ABOUT, after_long_help = serve::settings_help())]
    Serve(serve::ServeArgs),
    /// Show how the service is
    Status(operator::StatusArgs),
    /// List, show, create, resize and delete groups and locks
    #[command(subcommand)]
    Group(operator::GroupCommand),
    /// List, show and close sessions
    #[command(subcommand)]
    Session(operator::SessionCommand),
    /// Show and raise the feature level: what all servers of a cluster have agreed to use
    #[command(subcommand)]
    Level(operator::LevelCommand),
    /// Move a seat to a member that waits for it
    Transfer(operator::TransferArgs),
    /// Say who holds a name, who waits and for whom, and what happened last
    #[command(subcommand)]
    Explain(operator::ExplainCommand),
    /// Save, inspect and restore the state of a service
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Keep stale writers out of a file or anything else that commands of this machine write to
    Guard(guard::GuardArgs),
    /// Be a member of a group, and say who acts in it line by line
    Join(join::JoinArgs),
    /// Hold a lock while a command runs, and end the command before the lock is another's
    Lock(lock::LockArgs),
    /// Lead, with a value that says where to find the leader, until a command ends or a signal comes
    Lead(lead::LeadArgs),
    /// Say who leads, line by line, and when nobody does
    Observe(observe::ObserveArgs),
    /// Wait until so many have come, then go on
    Barrier(barrier::BarrierArgs),
    /// Watch over the command of `lock` and `lead`
    #[command(hide = true)]
    Guardian(guardian::GuardianArgs),
    /// Run, search, count and draw the protocols of mutual exclusion and election; needs no service
    #[command(subcommand)]
    Lab(lab::LabCommand),
    /// Be one process of `lab processes`
    #[command(name = "lab-process", hide = true)]
    LabProcess(lab::ChildArgs),
    /// Measure how fast the service grants
    #[command(subcommand)]
    Bench(bench::BenchCommand),
}

impl Command {
    fn run(self, global: &Global) -> Outcome {
        match self {
            Self::Demo(args) => demo::run(args, global),
            Self::DemoWorker(args) => demo::worker::run(args, global),
            Self::Serve(args) => serve::run(args),
            Self::Status(args) => operator::status(&args, global),
            Self::Group(command) => operator::group(command, global),
            Self::Session(command) => operator::session(command, global),
            Self::Level(command) => operator::level(command, global),
            Self::Transfer(args) => operator::transfer(args, global),
            Self::Explain(command) => operator::explain(command, global),
            Self::Snapshot(command) => snapshot::run(command, global),
            Self::Guard(args) => guard::run(args, global),
            Self::Join(args) => join::run(args, global),
            Self::Lock(args) => lock::run(args, global),
            Self::Lead(args) => lead::run(args, global),
            Self::Observe(args) => observe::run(args, global),
            Self::Barrier(args) => barrier::run(args, global),
            Self::Guardian(args) => guardian::run(args),
            Self::Lab(command) => lab::run(command, global),
            Self::LabProcess(args) => lab::child(&args),
            Self::Bench(command) => bench::run(&command, global),
        }
    }
}

/// The release, and the formats that it writes and reads.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{}\n\
         data format      {}\n\
         record format    {}\n\
         proposal format  {}\n\
         snapshot format  {}\n\
         feature level    up to {}\n\
         protocol         quorate.v1",
        env!("CARGO_PKG_VERSION"),
        crate::log::dir::FORMAT,
        crate::log::record::VERSION,
        codec::PROPOSAL_VERSION,
        codec::SNAPSHOT_VERSION,
        LEVEL_HIGHEST,
    )
});

const EXAMPLES: &str = "\
Examples:
  quorate serve                            run the service here, for this machine
  quorate status                           is it there, and how is it
  quorate group list                       which names are in use, and who holds them
  quorate explain lock orders              why do I wait for orders
  quorate lead boss --value host:9000      lead until a signal comes, and say where
  quorate observe boss                     who leads, line by line, and when nobody does
  quorate session close 7 --why \"stuck\"    ask session 7 to stop and let it go
  quorate --json group list | jq .name     for programs: one object a line";

/// The whole program: reads the command line, runs the command, reports how it ended.
pub fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => cli.command.run(&cli.global).unwrap_or_else(|failure| failure.report()),
        Err(error) => command_line_error(&error),
    }
}

/// Help and version are answers; anything else ends with the line that all failures end with.
fn command_line_error(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion if printed.is_ok() => ExitCode::SUCCESS,
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Failure::unread().report(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Failure::usage("a command is missing; they are listed above").report()
        }
        _ => Failure::usage(first_sentence(&error.to_string())).report(),
    }
}

/// What is wrong with a command line, in one line: also which arguments are missing, which are listed below it.
fn first_sentence(text: &str) -> String {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default().trim_start_matches("error: ");
    let listed = lines.take_while(|line| first.ends_with(':') && line.starts_with("  ")).map(str::trim);
    std::iter::once(first).chain(listed).collect::<Vec<_>>().join(" ")
}

/// Runs a command's work on a runtime of its own, in this thread.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    runtime.block_on(work)
}

/// The same for one that writes line by line: its lease is renewed in a thread of its own, so that a reader which is
/// slow does not cost it (RULES R23).
pub(crate) fn block_on_writing<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    let ended = runtime.block_on(work);
    runtime.shutdown_background();
    ended
}
