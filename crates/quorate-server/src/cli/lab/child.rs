//! `quorate lab-process`: one process of `quorate lab processes`. It is started by that command, with a job.

use super::super::block_on;
use super::super::exit::{Failure, Outcome};
use clap::Args;
#[cfg(target_os = "linux")]
use rustix::process::{Signal, set_parent_process_death_signal};
use std::process::ExitCode;

/// `quorate lab-process`
#[derive(Args, Clone, Debug)]
pub struct ChildArgs {
    /// What it is to be, in JSON
    job: String,
}

/// Runs one process to its end: until it is told so, or whoever started it has gone.
pub(in super::super) fn run(args: &ChildArgs) -> Outcome {
    // One that is paused does not see its connection end, and would be left behind. If this cannot be asked for,
    // only that is lost.
    #[cfg(target_os = "linux")]
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    block_on(async {
        quorate::driver::child::run(&args.job).await.map_err(|error| Failure::failed(error.to_string()))
    })?;
    Ok(ExitCode::SUCCESS)
}
