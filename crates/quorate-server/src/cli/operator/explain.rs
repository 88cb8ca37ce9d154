//! `quorate explain`: the service's sentence, then the tables behind it, then what to know.

use super::super::Global;
use super::super::exit::Outcome;
use super::super::output::{self, Tone, fold, paint};
use super::tables::{deadlocks_table, evidence_table, history_table, places_table, waiters_table};
use super::{explained, warn};
use crate::json;
use clap::Subcommand;
use quorate::proto;
use std::process::ExitCode;
use std::sync::LazyLock;

/// The causes, for `--help`.
static CAUSES: LazyLock<String> = LazyLock::new(|| {
    let causes = crate::explain::CAUSES.iter().map(|(code, what)| format!("  {code:22}{what}"));
    let causes = causes.collect::<Vec<_>>().join("\n");
    format!("{TURNS}\n\nCauses, as `--json` has them:\n{causes}")
});

const TURNS: &str = "\
Those that wait are listed in the order in which they will be seated, with their turns: those that act are
the first, and a member that a seat was promised to is the next. A turn is not an ordinal, which may be kept
or filled otherwise (`--numbering`); `quorate group show` lists members by their ordinals.";

/// `quorate explain ...`
#[derive(Subcommand, Clone, Debug)]
#[command(after_long_help = CAUSES.as_str())]
pub enum ExplainCommand {
    /// Who acts in a group, who stands by, the next first, and what happened last
    Group {
        /// The name of the group
        name: String,
    },
    /// Who holds a lock, who waits for whom, the next first, and what happened last
    Lock {
        /// The name of the lock
        name: String,
    },
    /// Who leads, who stands by, the next first, and what happened last
    Leader {
        /// The name of the leadership
        name: String,
    },
    /// What a session holds, what it waits for, and how its lease is
    Session {
        /// The number of the session
        session: u64,
    },
    /// Who waits for whom in a circle or a knot
    Deadlock {
        /// Only the one behind this name
        name: Option<String>,
    },
}

/// Runs `quorate explain ...`.
///
/// # Errors
/// No service answers, or the name is none.
pub fn explain(command: ExplainCommand, global: &Global) -> Outcome {
    use proto::explain_request::Kind;
    let (kind, name) = match command {
        ExplainCommand::Group { name } => (Kind::Group, name),
        ExplainCommand::Lock { name } => (Kind::Lock, name),
        ExplainCommand::Leader { name } => (Kind::Leader, name),
        ExplainCommand::Deadlock { name } => (Kind::Deadlock, name.unwrap_or_default()),
        ExplainCommand::Session { session } => (Kind::Session, session.to_string()),
    };
    let (reply, stale) = explained(kind, name, global)?;
    if global.json {
        output::json(&json::explain(&reply, stale.as_deref()))?;
        return Ok(ExitCode::SUCCESS);
    }
    warn(stale.as_deref());
    let mut sections = vec![fold(&reply.sentence, output::columns(), "")];
    sections.extend(waiters_table(&reply));
    sections.extend(deadlocks_table(&reply));
    sections.extend(evidence_table(&reply));
    sections.extend(reply.session.as_ref().and_then(places_table));
    sections.extend(history_table(&reply));
    sections.extend(advice(&reply));
    output::line(sections.join("\n\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn advice(reply: &proto::ExplainReply) -> Option<String> {
    if reply.advice.is_empty() {
        return None;
    }
    let width = output::columns();
    let lines = reply.advice.iter().map(|line| fold(&format!("- {line}"), width, "  "));
    let title = paint(Tone::Strong, "What to know");
    Some(format!("{title}\n{}", lines.collect::<Vec<_>>().join("\n")))
}
