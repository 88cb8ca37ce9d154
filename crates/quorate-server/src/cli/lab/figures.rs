//! `quorate lab figures` and `quorate lab table`: what the literature publishes, what runs give, the formula.

use super::super::Global;
use super::super::exit::{Failure, Outcome};
use super::super::output::{self, Rows, Tone, paint};
use super::{hanging, usage, wide};
use clap::{Args, Subcommand};
use quorate_lab::figures::{self, Load, Measured, RINGS, Row};
use serde_json::json;
use std::process::ExitCode;

/// `quorate lab figures`
#[derive(Args, Debug)]
#[command(after_help = "Ends with code 1 if a run gives another number than is published.")]
pub struct FiguresArgs {
    /// Over how many random rings the mean of Chang-Roberts is taken; of fewer than 1000 it strays too far
    #[arg(long, value_name = "COUNT", default_value_t = RINGS, value_parser = clap::value_parser!(u64).range(1_000..))]
    rings: u64,
}

/// `quorate lab table`
#[derive(Subcommand, Debug)]
pub enum TableCommand {
    /// Messages an entry, delays and hand-overs of mutual exclusion
    Mutex(MutexArgs),
    /// Messages of elections by their sort
    Election,
}

/// `quorate lab table mutex`
#[derive(Args, Debug)]
pub struct MutexArgs {
    /// Numbers of processes
    #[arg(long, value_delimiter = ',', default_value = "4,9,16,25,100")]
    n: Vec<usize>,
}

/// Prints all figures.
pub(super) fn figures(args: &FiguresArgs, global: &Global) -> Outcome {
    let rows = figures::all(args.rings);
    show(&rows, global)?;
    let other = rows.iter().filter(|row| !row.equal).count();
    match other {
        0 if global.json => Ok(ExitCode::SUCCESS),
        0 => {
            let all = rows.len();
            output::line(paint(Tone::Good, &format!("\nAll {all} figures are as published.")))?;
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(Failure::failed(format!("{other} of {} figures are not as published", rows.len()))),
    }
}

fn show(rows: &[Row], global: &Global) -> Result<(), Failure> {
    if global.json {
        for row in rows {
            output::json(&json!({
                "family": row.family, "what": row.what, "published": row.published, "measured": row.measured,
                "formula": row.formula, "equal": row.equal,
            }))?;
        }
        return Ok(());
    }
    let mut table = Rows::new(&["what", "published", "measured", "", "formula"]);
    for row in rows {
        let verdict = if row.equal { "equal" } else { "DIFFERS" };
        table.row([
            row.what.clone(),
            row.published.clone(),
            row.measured.clone(),
            verdict.into(),
            row.formula.clone(),
        ]);
    }
    wide(&table.render(), || rows.iter().map(said).collect::<Vec<_>>().join("\n"))
}

/// A figure in a sentence.
fn said(row: &Row) -> String {
    let Row { what, published, measured, formula, .. } = row;
    let verdict = if row.equal { "equal" } else { "DIFFERS" };
    let words = format!("published {published}; measured {measured}: {verdict}. {formula}");
    format!("{}\n    {}", output::fold(what, output::columns(), "    "), hanging(&words))
}

/// Prints a table of one family.
pub(super) fn table(command: &TableCommand, global: &Global) -> Outcome {
    match command {
        TableCommand::Mutex(args) => mutex(args, global)?,
        TableCommand::Election => show(&figures::elections(RINGS / 10), global)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The most processes that a table is made for: Ricart-Agrawala then sends half a million messages a row.
const PROCESSES_MAX: usize = 500;

fn mutex(args: &MutexArgs, global: &Global) -> Result<(), Failure> {
    if args.n.iter().any(|n| !(2..=PROCESSES_MAX).contains(n)) {
        return Err(usage(format!("--n takes numbers from 2 to {PROCESSES_MAX}")));
    }
    let mut table =
        Rows::new(&["protocol", ">N", ">messages", ">all want in", ">delay", ">hand-over", "formula"]);
    for protocol in figures::MUTEX_PROTOCOLS {
        for &n in &args.n {
            let quiet = figures::measure(protocol, n, Load::Quiet);
            let heavy = figures::measure(protocol, n, Load::Heavy);
            if global.json {
                output::json(&json!({
                    "protocol": protocol, "n": n, "messages_least": quiet.least, "messages_most": quiet.most,
                    "messages_mean": quiet.mean, "messages_heavy": heavy.mean,
                    "delay_least_message_times": quiet.delay.0, "delay_most_message_times": quiet.delay.1,
                    "handover_message_times": heavy.handover, "formula": formula(protocol),
                }))?;
                continue;
            }
            table.row([
                protocol.into(),
                n.to_string(),
                range(quiet.least, quiet.most),
                format!("{:.2}", heavy.mean),
                range(quiet.delay.0, quiet.delay.1),
                handover(&heavy),
                formula(protocol).into(),
            ]);
        }
    }
    if !global.json {
        output::line(table.render())?;
        output::line(paint(
            Tone::Faint,
            &output::fold(
                "\nmessages: for one entry while nobody else wants in. all want in: messages an entry when all ask \
                 at once, four times each. delay: message times before a quiet entry. hand-over: message times from \
                 one that leaves to the next that enters.",
                output::columns(),
                "",
            ),
        ))?;
    }
    Ok(())
}

fn handover(measured: &Measured) -> String {
    measured.handover.map_or(String::new(), |times| format!("{times:.2}"))
}

fn range(least: f64, most: f64) -> String {
    let number = |value: f64| match (value - value.round()).abs() < 0.01 {
        true => format!("{value:.0}"),
        false => format!("{value:.2}"),
    };
    let (least, most) = (number(least), number(most));
    if least == most { least } else { format!("{least} to {most}") }
}

fn formula(protocol: &str) -> &'static str {
    match protocol {
        "central" => "3",
        "ricart-agrawala" => "2(N-1)",
        "maekawa" => "3(K-1), K = 2 sqrt(N) - 1 on a square",
        _ => "1 to N-1; about 1 if all want in",
    }
}
