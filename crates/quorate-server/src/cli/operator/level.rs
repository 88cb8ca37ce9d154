//! `quorate level`: which commands a cluster uses, and how it begins to use newer ones.
//!
//! **Rule.** What apply decides by is in the log, so a newer release does nothing new by itself: it waits
//! until it is told that every server has it (RULES R27). Each server that is named is asked which level it
//! can run, and one that does not answer, or cannot, is a refusal. A level is never lowered, since the log
//! may hold what an older release cannot read.

use super::super::exit::{Code, Failure, Outcome};
use super::super::output::{self, Rows, Tone, paint};
use super::super::servers::Servers;
use super::super::{Global, block_on};
use super::{client, refused};
use crate::json;
use clap::{Args, Subcommand};
use quorate::proto;
use serde_json::json;
use std::process::ExitCode;

/// `quorate level ...`
#[derive(Subcommand, Clone, Debug)]
pub enum LevelCommand {
    /// Show the cluster's feature level, and the highest that each named server can run
    Show,
    /// Raise the feature level to the highest that every named server can run
    Raise(RaiseArgs),
}

/// `quorate level raise`
#[derive(Args, Clone, Debug)]
#[command(
    long_about = "Raise the feature level of the cluster.\n\nA release that is newer than the one a cluster \
        was founded with does nothing new before the level is raised, so that servers of both releases \
        agree. Start the newer release on every server, name all of them with --server, and raise the level \
        once. It is never lowered: an older release cannot serve the data any more.",
    after_help = "Examples:\n  quorate level show\n  quorate level raise\n  quorate --server a:7420,b:7420 \
        level raise --to 2"
)]
pub struct RaiseArgs {
    /// The new level; the highest that every named server can run if it is not given
    #[arg(long, value_name = "LEVEL")]
    to: Option<u32>,
}

/// Runs `quorate level ...`.
///
/// # Errors
/// No service answers, it refuses, or a server cannot run the level.
pub fn level(command: LevelCommand, global: &Global) -> Outcome {
    match command {
        LevelCommand::Show => show(global),
        LevelCommand::Raise(args) => match raise(&args, global) {
            Err(failure) if global.json && failure.code == Code::Failed => {
                output::json(&json!({ "outcome": "refused", "why": failure.reason }))?;
                Err(failure)
            }
            ended => ended,
        },
    }
}

/// A server by its address, and what it says of itself.
type Asked = (String, Result<proto::StatusReply, Failure>);

/// Every named server's word, in order.
fn ask_each(global: &Global) -> Result<Vec<Asked>, Failure> {
    block_on(async {
        let mut asked = Vec::new();
        for server in global.server.each() {
            asked.push((server.to_string(), status_of(&server).await));
        }
        Ok(asked)
    })
}

async fn status_of(server: &Servers) -> Result<proto::StatusReply, Failure> {
    let mut operator = server.operator().await?;
    operator.status(proto::StatusRequest {}).await.map(tonic::Response::into_inner).map_err(refused)
}

fn show(global: &Global) -> Outcome {
    let asked = ask_each(global)?;
    if let Some((_, Err(failure))) = asked.first()
        && asked.iter().all(|(_, said)| said.is_err())
    {
        return Err(failure.clone());
    }
    let mut rows = Rows::new(&["server", ">node", "version", ">level", ">highest", "to know"]);
    for (server, said) in &asked {
        if global.json {
            output::json(&said.as_ref().map_or_else(
                |failure| json!({ "server": server, "error": failure.reason }),
                |status| {
                    json!({
                        "server": server,
                        "node": status.node,
                        "cluster": json::cluster(&status.cluster),
                        "version": status.version,
                        "feature_level": status.feature_level,
                        "feature_level_highest": status.feature_level_highest,
                    })
                },
            ))?;
            continue;
        }
        match said {
            Ok(status) => rows.row([
                server.clone(),
                status.node.to_string(),
                status.version.clone(),
                status.feature_level.to_string(),
                status.feature_level_highest.to_string(),
                if may_rise(status) { "`quorate level raise` raises it".into() } else { String::new() },
            ]),
            Err(_) => rows.row([server.as_str(), "", "", "", "", "does not answer"].map(str::to_owned)),
        }
    }
    if !global.json {
        output::line(rows.render())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn may_rise(status: &proto::StatusReply) -> bool {
    status.feature_level < status.feature_level_highest
}

/// The level of a cluster and that of a server, for `quorate status`.
pub(super) fn in_words(status: &proto::StatusReply) -> String {
    let (level, highest) = (status.feature_level, status.feature_level_highest);
    match may_rise(status) {
        true => format!("{level}; this server runs up to {highest}: `quorate level raise` raises it"),
        false => format!("{level}, the highest that this server runs"),
    }
}

fn raise(args: &RaiseArgs, global: &Global) -> Outcome {
    let servers = all_that_are_named(ask_each(global)?)?;
    let (weakest, highest) = servers
        .iter()
        .map(|(server, status)| ((server, status), status.feature_level_highest))
        .min_by_key(|(_, highest)| *highest)
        .ok_or_else(|| Failure::usage("no server is named"))?;
    let from = servers.iter().map(|(_, status)| status.feature_level).max().unwrap_or_default();
    let to = args.to.unwrap_or(highest.max(from));
    if to > highest {
        return Err(Failure::failed(cannot(weakest.0, weakest.1, to)));
    }
    let request = proto::RaiseLevelRequest { client: client(), from: Some(from), to: Some(to) };
    let raised = block_on(async {
        let mut operator = global.server.operator().await?;
        operator.raise_level(request).await.map(tonic::Response::into_inner).map_err(refused)
    })?;
    let (from, level) = (raised.from, raised.level);
    if global.json {
        output::json(&json!({ "outcome": "raised", "from": from, "level": level }))?;
    } else {
        let text = format!(
            "the cluster is at feature level {level} now, it was at {from}; releases that run levels up to \
             {from} cannot serve it any more"
        );
        output::line(paint(Tone::Good, &output::fold(&text, output::columns(), "")))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn cannot(server: &str, status: &proto::StatusReply, to: u32) -> String {
    format!(
        "feature level {to} is not known to {server} (node {}, release {}), which runs levels up to {}; \
         nothing was changed; start a release there that runs it, then raise the level",
        status.node, status.version, status.feature_level_highest
    )
}

/// The servers, if every one has answered and they are of one cluster.
fn all_that_are_named(asked: Vec<Asked>) -> Result<Vec<(String, proto::StatusReply)>, Failure> {
    if let [(_, Err(failure))] = &asked[..] {
        return Err(failure.clone());
    }
    let mut servers: Vec<(String, proto::StatusReply)> = Vec::new();
    for (server, said) in asked {
        let status = said.map_err(|failure| {
            let why = format!(
                "{server} does not answer, so it is not known which feature level it can run; nothing was \
                 changed; start it, or leave it out of --server if it is no server of this cluster any more"
            );
            Failure::new(failure.code, why)
        })?;
        if let Some((first, other)) = servers.first().filter(|(_, first)| first.cluster != status.cluster) {
            let (one, two) = (json::cluster(&other.cluster), json::cluster(&status.cluster));
            return Err(Failure::usage(format!(
                "{first} is a server of cluster {one} and {server} of cluster {two}; nothing was changed; \
                 raise the level of one cluster at a time"
            )));
        }
        servers.push((server, status));
    }
    Ok(servers)
}
