//! `quorate lab`: the same protocols in simulated worlds, under complete search, and as processes.
//!
//! It needs no service. What it prints is produced by running the protocols of `quorate-core`, never from the
//! formula beside it.

mod check;
mod child;
mod figures;
mod interrupt;
mod processes;
mod scenario;

pub(super) use child::{ChildArgs, run as child};

use super::Global;
use super::exit::{Failure, Outcome};
use super::output::{self, Rows};
use clap::Subcommand;
use quorate_lab::prove::SUBJECTS;
use quorate_lab::scenarios::{SCENARIOS, sentence};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;

/// `quorate lab ...`
#[derive(Subcommand, Debug)]
pub enum LabCommand {
    /// List the protocols, what they promise, their mutants, and the scenarios
    List,
    /// Play a scenario, compare it with what it says, draw it
    Run(scenario::RunArgs),
    /// Draw or convert a trace that was written as NDJSON
    Draw(scenario::DrawArgs),
    /// Count what the literature publishes, and compare
    Figures(figures::FiguresArgs),
    /// A table of messages for each protocol of a family
    #[command(subcommand)]
    Table(figures::TableCommand),
    /// Search every order of events in a small world
    Check(check::CheckArgs),
    /// Run random worlds with faults, heal them, and want progress
    Fuzz(check::FuzzArgs),
    /// Run it as real processes that are killed, paused and cut off, and count what they send
    Processes(processes::ProcessesArgs),
}

/// Runs it.
pub(super) fn run(command: LabCommand, global: &Global) -> Outcome {
    match command {
        LabCommand::List => list(global),
        LabCommand::Run(args) => scenario::run(&args, global),
        LabCommand::Draw(args) => scenario::draw(&args, global),
        LabCommand::Figures(args) => figures::figures(&args, global),
        LabCommand::Table(command) => figures::table(&command, global),
        LabCommand::Check(args) => check::check(&args, global),
        LabCommand::Fuzz(args) => check::fuzz(&args, global),
        LabCommand::Processes(args) => processes::run(&args, global),
    }
}

/// Where the words of a protocol begin, behind what they are.
const UNDER: &str = "           ";

fn list(global: &Global) -> Outcome {
    if global.json {
        for subject in SUBJECTS {
            output::json(&json!({
                "protocol": subject.name, "family": subject.family, "claim": subject.claim,
                "needs": subject.needs.iter().map(|need| (need.name, need.what)).collect::<BTreeMap<_, _>>(),
                "mutants": subject.flaws(),
            }))?;
        }
        for (name, script) in SCENARIOS {
            output::json(&json!({"scenario": name, "teaches": sentence(script)}))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    for subject in SUBJECTS {
        output::line(output::paint(output::Tone::Strong, subject.name))?;
        let line = |what: &str, text: &str| {
            let folded = output::fold(text, output::columns() - UNDER.len(), UNDER);
            output::line(format!("  {what:<8} {folded}"))
        };
        line("holds:", subject.claim)?;
        let needs: Vec<_> =
            subject.needs.iter().map(|need| format!("{} ({})", need.what, need.name)).collect();
        line("needs:", &needs.join("; "))?;
        if !subject.flaws().is_empty() {
            line("mutants:", &subject.flaws().join(", "))?;
        }
    }
    let mut rows = Rows::new(&["scenario", "teaches"]);
    for (name, script) in SCENARIOS {
        rows.row([(*name).to_string(), sentence(script).to_string()]);
    }
    output::line("")?;
    wide(&rows.render(), || {
        let row = |(name, script): &(&str, &str)| format!("{name}\n    {}", hanging(sentence(script)));
        SCENARIOS.iter().map(row).collect::<Vec<_>>().join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a table, or on a terminal that is too narrow for it what is said there instead.
fn wide(table: &str, narrow: impl FnOnce() -> String) -> Result<(), Failure> {
    let columns = table.lines().map(|line| line.chars().count()).max().unwrap_or(0);
    match std::io::stdout().is_terminal() && columns > output::columns() {
        true => output::line(narrow()),
        false => output::line(table),
    }
}

/// A text that stands four columns in.
fn hanging(text: &str) -> String {
    output::fold(text, output::columns() - 4, "    ")
}

/// A failure in what was asked for.
fn usage(why: String) -> Failure {
    Failure::usage(why)
}
