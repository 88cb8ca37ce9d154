//! `quorate guard show`: what a guard remembers, as a table or as one JSON object a line.

use super::super::Global;
use super::super::exit::{Failure, Outcome};
use super::super::output::{self, Rows, plain};
use super::{ShowArgs, failure};
use quorate::guard::{
    FileGuard, FileOptions, Guard, Holder, Mark, RefusedOffer, Report, ResetLine, ResourceReport, SeatKeys,
    SeatNo, rfc3339,
};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Prints the report.
pub(super) fn run(args: &ShowArgs, global: &Global) -> Outcome {
    // To look must not make a guard where there is none.
    let options = FileOptions { seats: SeatKeys::BySeat, create: false };
    let guard = FileGuard::open(&args.state.state, options).map_err(failure)?;
    let mut report = guard.show().map_err(failure)?;
    if let Some(wanted) = &args.resource {
        report.resources.retain(|resource| resource.resource == *wanted);
        report.resets.retain(|line| line.resource.as_ref().is_none_or(|name| name == wanted));
        if report.resources.is_empty() {
            return Err(Failure::failed(format!(
                "the guard knows no resource {wanted}: nobody has entered it and nobody was refused"
            )));
        }
    }
    match (global.json, &args.resource) {
        (true, None) => {
            print_json(&report)?;
            output::json(&json!({ "kind": "guard", "highest": report.highest().to_string() }))?;
        }
        (true, Some(_)) => print_json(&report)?,
        (false, None) => output::line(overview(&report) + &below(&report))?,
        (false, Some(_)) => output::line(details(&report))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print_json(report: &Report) -> Result<(), Failure> {
    for resource in &report.resources {
        output::json(&resource_json(resource))?;
    }
    for line in &report.resets {
        output::json(&reset_json(line))?;
    }
    Ok(())
}

fn resource_json(report: &ResourceReport) -> Value {
    let refusals = &report.refusals;
    json!({
        "kind": "resource",
        "resource": report.resource,
        "base": mark_json(report.floor.base()),
        "floors": report.floor.seats().map(|(seat, mark)| {
            let mut floor = mark_json(mark);
            floor["seat"] = json!(seat);
            floor
        }).collect::<Vec<_>>(),
        "holders": report.holders.iter().map(holder_json).collect::<Vec<_>>(),
        "refusal_count": refusals.count,
        "refusals": refusals.last.iter().map(refused_json).collect::<Vec<_>>(),
    })
}

fn mark_json(mark: Mark) -> Value {
    let at = (mark.at.0 > 0).then(|| rfc3339(mark.at));
    json!({
        "token": mark.token.to_string(),
        "cluster": mark.cluster.map(|cluster| cluster.to_string()),
        "accepted_at": at,
    })
}

fn holder_json(holder: &Holder) -> Value {
    json!({
        "seat": holder.seat,
        "token": holder.token.to_string(),
        "since": rfc3339(holder.since),
        "pid": holder.pid(),
        "guard_pid": holder.process.pid,
        "command_pid": holder.command.as_ref().map(|command| command.process.pid),
    })
}

fn refused_json(refused: &RefusedOffer) -> Value {
    json!({
        "at": rfc3339(refused.at),
        "seat": refused.seat,
        "token": refused.token.to_string(),
        "highest": refused.highest.map(|token| token.to_string()),
        "reason": refused.reason,
        "pid": refused.pid,
    })
}

/// The audit line of a reset as JSON.
pub(super) fn reset_json(line: &ResetLine) -> Value {
    json!({
        "kind": "reset",
        "at": rfc3339(line.at),
        "resource": line.resource,
        "from": line.from.to_string(),
        "to": line.to.to_string(),
        "why": line.why,
        "user_id": line.user,
        "pid": line.pid,
    })
}

/// The audit line of a reset as a sentence.
pub(super) fn reset_sentence(line: &ResetLine) -> String {
    let what = line.resource.as_ref().map_or("all resources".into(), ToString::to_string);
    format!(
        "{}  {what}: floor {} -> {} by user {} (pid {}): {}",
        rfc3339(line.at),
        line.from,
        line.to,
        line.user,
        line.pid,
        plain(&line.why)
    )
}

/// One row for each seat. A resource that has only a floor for all seats shows it in one row.
fn overview(report: &Report) -> String {
    if report.resources.is_empty() {
        return "nobody has entered yet, and nobody was refused".into();
    }
    let headings = ["resource", ">seat", ">token", "accepted", "inside", ">refused", "last refused"];
    let mut rows = Rows::new(&headings);
    for resource in &report.resources {
        let last = resource.refusals.last.back();
        let last = last.map(|refused| format!("token {} at {}", refused.token, rfc3339(refused.at)));
        for (seat, mark) in marks(resource) {
            let inside = resource.holders.iter().find(|holder| Some(holder.seat) == seat);
            rows.row([
                resource.resource.to_string(),
                seat.map_or("all".into(), |seat| seat.to_string()),
                mark.token.to_string(),
                accepted(mark),
                inside.map(inside_text).unwrap_or_default(),
                resource.refusals.count.to_string(),
                last.clone().unwrap_or_default(),
            ]);
        }
    }
    rows.render()
}

/// What is true of the guard as a whole.
fn below(report: &Report) -> String {
    let resets = match report.resets.len() {
        0 => String::new(),
        1 => "; 1 reset, which --json shows".into(),
        many => format!("; {many} resets, which --json shows"),
    };
    format!("\nthe greatest token of all is {}{resets}", report.highest())
}

fn marks(resource: &ResourceReport) -> Vec<(Option<SeatNo>, Mark)> {
    let of_seats: Vec<_> = resource.floor.seats().map(|(seat, mark)| (Some(seat), mark)).collect();
    match of_seats.is_empty() {
        true => vec![(None, resource.floor.base())],
        false => of_seats,
    }
}

fn accepted(mark: Mark) -> String {
    match mark.at.0 {
        0 => String::new(),
        _ => rfc3339(mark.at),
    }
}

fn inside_text(holder: &Holder) -> String {
    let pid = holder.pid().map_or("children of it".into(), |pid| format!("pid {pid}"));
    format!("{pid} with {}", holder.token)
}

/// One resource with everything that is known of it.
fn details(report: &Report) -> String {
    let mut parts = vec![overview(report)];
    for resource in &report.resources {
        let clusters: Vec<_> = marks(resource).iter().filter_map(|(_, mark)| mark.cluster).collect();
        if let Some(cluster) = clusters.first() {
            parts.push(format!("tokens of cluster {cluster}"));
        }
        if resource.refusals.count > 0 {
            parts.push(refusals(resource));
        }
    }
    if !report.resets.is_empty() {
        let lines: Vec<_> = report.resets.iter().map(reset_sentence).collect();
        parts.push(format!("Resets:\n{}", lines.join("\n")));
    }
    parts.join("\n\n")
}

fn refusals(resource: &ResourceReport) -> String {
    let mut rows = Rows::new(&["refused", ">seat", ">token", ">highest", ">pid", "reason"]);
    for refused in &resource.refusals.last {
        rows.row([
            rfc3339(refused.at),
            refused.seat.to_string(),
            refused.token.to_string(),
            refused.highest.map(|token| token.to_string()).unwrap_or_default(),
            refused.pid.to_string(),
            refused.reason.clone(),
        ]);
    }
    rows.render()
}
