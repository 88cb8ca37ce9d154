//! What people who run a service look at and may do: `quorate status`, `group`, `session`, `level` and
//! `explain`.
//!
//! Each asks the service over its port, and prints what it says: tables and sentences, or JSON.

mod explain;
mod group;
mod level;
mod session;
mod tables;
mod transfer;

pub use explain::{ExplainCommand, explain};
pub use group::{CreateArgs, GroupCommand, group};
pub use level::{LevelCommand, level};
pub use session::{SessionCommand, session};
pub use transfer::{TransferArgs, transfer};

use super::exit::{Code, Failure, Outcome};
use super::output::{self, Tone, facts, fold, paint};
use super::{Global, block_on};
use crate::explain::words::span;
use crate::json;
use crate::operator::STALE_HEADER;
use clap::Args;
use quorate::proto;
use quorate_core::time::Span;
use std::process::ExitCode;
use tonic::{Response, Status};

/// How many names or sessions are fetched at once.
const PAGE: u32 = 1_000;

/// `quorate status`
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {}

/// Shows how the service is.
///
/// # Errors
/// No service answers.
pub fn status(_: &StatusArgs, global: &Global) -> Outcome {
    let status = block_on(async {
        let mut operator = global.server.operator().await?;
        operator.status(proto::StatusRequest {}).await.map(Response::into_inner).map_err(refused)
    })?;
    if global.json {
        output::json(&json::status(&status))?;
    } else {
        output::line(status_text(&status))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn status_text(status: &proto::StatusReply) -> String {
    let leads = match status.leader {
        Some(leader) if leader == status.node => "leads".to_owned(),
        Some(leader) => format!("is {}; node {leader} leads", status.role),
        None => format!("is {}; nobody leads", status.role),
    };
    let tone = if status.leader.is_some() && !status.disk_low { Tone::Good } else { Tone::Warn };
    let headline = format!("node {} {leads}, up {}", status.node, span(Span::from_millis(status.uptime_ms)));
    let micros = |us: u64| format!("{}.{:02} ms", us / 1_000, us % 1_000 / 10);
    let disk = format!(
        "{} free{}",
        bytes(status.disk_free_bytes),
        match status.disk_low {
            true => ": too little, only release, leave and expiry are served",
            false => "",
        }
    );
    let floor = format!("{} ({})", Span::from_millis(status.ttl_floor_ms), status.ttl_floor_why);
    let (p50, p99) = (micros(status.commit_p50_us), micros(status.commit_p99_us));
    let rows = [
        ("address", status.listen.clone()),
        ("version", status.version.clone()),
        ("feature level", level::in_words(status)),
        ("cluster", json::cluster(&status.cluster)),
        ("term", format!("{}, reign {}", status.term, status.reign)),
        (
            "log",
            format!("applied {} of {}, snapshot at {}", status.applied, status.last_log, status.snapshot),
        ),
        ("commits", format!("{}, p50 {p50}, p99 {p99}", status.commits)),
        ("last token", status.last_token.to_string()),
        ("sessions", format!("{} open, {} connected here", status.sessions, status.connections)),
        ("groups", format!("{} names in use", status.groups)),
        ("shortest ttl", fold(&floor, output::columns() - 15, "               ")),
        ("longest ttl", Span::from_millis(status.ttl_max_ms).to_string()),
        ("disk", disk),
        ("formats", format!("data {}, record {}", status.formats_data, status.formats_record)),
    ];
    format!("{}\n\n{}", paint(tone, &headline), facts(&rows))
}

/// Bytes with a unit that fits.
fn bytes(bytes: u64) -> String {
    match bytes {
        u64::MAX => "unlimited".into(),
        b if b >= 10 << 30 => format!("{} GiB", b >> 30),
        b if b >= 10 << 20 => format!("{} MiB", b >> 20),
        b => format!("{} KiB", b >> 10),
    }
}

fn explained(
    kind: proto::explain_request::Kind,
    name: String,
    global: &Global,
) -> Result<(proto::ExplainReply, Option<String>), Failure> {
    block_on(async {
        let mut operator = global.server.operator().await?;
        let request = proto::ExplainRequest { kind: kind.into(), name, max: 0 };
        let response = operator.explain(request).await.map_err(refused)?;
        let stale = stale(&response);
        Ok((response.into_inner(), stale))
    })
}

/// A number of this call's own, so that the service can tell a retry.
fn client() -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(&rand::random::<u128>().to_be_bytes())
}

/// The reply, with a word on standard error if no quorum has confirmed it.
fn fresh<T>(result: Result<Response<T>, Status>) -> Result<T, Failure> {
    let response = result.map_err(refused)?;
    warn(stale(&response).as_deref());
    Ok(response.into_inner())
}

fn stale<T>(response: &Response<T>) -> Option<String> {
    let since = response.metadata().get(STALE_HEADER)?;
    since.to_str().ok().map(str::to_owned)
}

fn warn(stale: Option<&str>) {
    if let Some(since) = stale {
        eprintln!("{}", paint(Tone::Warn, &format!("warning: {}", output::plain(since))));
    }
}

/// What the service answered instead, as the end of a command.
pub(super) fn refused(status: Status) -> Failure {
    match status.code() {
        tonic::Code::Unavailable => Failure::new(Code::Unreachable, status.message()),
        tonic::Code::InvalidArgument => Failure::usage(status.message()),
        _ => Failure::failed(status.message()),
    }
}
