//! `quorate snapshot`: the whole state in a file, and a service that begins again from one.
//!
//! **Problem.** A snapshot is older than what the cluster did after it: a service that went on from one as if
//! nothing had happened would give out tokens that a resource has seen already, to somebody else. **Rule.** What is
//! restored is another cluster: its tokens begin above everything that the guards saw, all sessions are over, and
//! nobody is let in before every lease of the cluster before has ended (RULES R30). The guards refuse it, with that
//! reason, until an operator admits it. `docs/snapshots.md` has the whole way.

use super::exit::{Failure, Outcome};
use super::output::{self, facts};
use super::{Global, block_on};
use crate::explain::words::{ago, clock, count, shell};
use crate::json;
use crate::log::archive::{self, Archive};
use crate::node::disk;
use clap::{Args, Subcommand};
use quorate::guard::{FileGuard, FileOptions, Guard, SeatKeys, Token};
use quorate::proto;
use quorate_core::id::{ClusterId, Secret};
use quorate_core::state_machine::{Restore, Restored};
use quorate_core::time::{Span, Wall};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// `quorate snapshot ...`
#[derive(Subcommand, Clone, Debug)]
pub enum SnapshotCommand {
    /// Save the state of a running service, or of a data directory that no service uses
    Save(SaveArgs),
    /// Show what is in a file, and check that it is whole
    Inspect {
        /// The file
        file: PathBuf,
    },
    /// Begin another cluster with the state of a file, in a new data directory
    #[command(long_about = RESTORE_ABOUT)]
    Restore(RestoreArgs),
}

const RESTORE_ABOUT: &str = "Begin another cluster with the state of a file, in a new data directory.\n\nThe \
    names that were created are kept with their policies; all sessions are over, and what they held is free. The \
    service that runs on the directory lets nobody in before every lease of the cluster before has ended.\n\nIts \
    tokens must begin above every token that a resource has seen, also those granted after the file was saved. The \
    guards know them: name their files with --guard, or give the greatest number that `quorate guard show` shows \
    with --token-floor. Where no resource is guarded, say so with --no-guards.";

/// `quorate snapshot save`
#[derive(Args, Clone, Debug)]
pub struct SaveArgs {
    /// The file to write; it must not be there yet
    file: PathBuf,
    /// Read this data directory, which no service may use, instead of asking a running one
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// `quorate snapshot restore`
#[derive(Args, Clone, Debug)]
pub struct RestoreArgs {
    /// The file
    file: PathBuf,
    /// The new data directory: not there yet, or empty
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Every token from now on is greater than this one
    #[arg(long, value_name = "TOKEN")]
    token_floor: Option<u64>,
    /// The state file of a guard: the greatest token that it knows is a floor. May be given several times
    #[arg(long, value_name = "FILE")]
    guard: Vec<PathBuf>,
    /// No resource is guarded, so no token can have been seen
    #[arg(long, conflicts_with_all = ["guard", "token_floor"])]
    no_guards: bool,
    /// The longest lease that any session may have had; without it the longest that the cluster allowed
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    longest_ttl: Option<Duration>,
}

/// Runs `quorate snapshot ...`.
///
/// # Errors
/// No service answers, a file is not whole, or a restore would not be safe.
pub(super) fn run(command: SnapshotCommand, global: &Global) -> Outcome {
    match command {
        SnapshotCommand::Save(args) => save(&args, global),
        SnapshotCommand::Inspect { file } => inspect(&file, global),
        SnapshotCommand::Restore(args) => restore(&args, global),
    }
}

fn failure(error: archive::ArchiveError) -> Failure {
    Failure::failed(error.to_string())
}

fn save(args: &SaveArgs, global: &Global) -> Outcome {
    archive::check_free(&args.file).map_err(failure)?;
    let bytes = match &args.data_dir {
        Some(dir) => Archive::of_stopped(dir, disk::wall().0).map_err(failure)?.encode(),
        None => block_on(fetch(global))?,
    };
    // What came over a network, or from memory, is read again before it is called saved.
    let saved = Archive::decode("the snapshot that was received", &bytes).map_err(failure)?;
    archive::write(&args.file, &bytes).map_err(failure)?;
    if global.json {
        output::json(&described(&saved, &args.file, bytes.len()))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(format!(
        "{} holds cluster {} as of index {}: {}, {}, last token {}",
        args.file.display(),
        saved.cluster(),
        saved.head.index,
        count(saved.machine.counts().0 as u64, "session"),
        count(saved.machine.counts().1 as u64, "name"),
        saved.machine.last_token(),
    ))?;
    Ok(ExitCode::SUCCESS)
}

async fn fetch(global: &Global) -> Result<Vec<u8>, Failure> {
    let mut operator = global.server.operator().await?;
    let request = proto::SnapshotRequest {};
    let mut parts = operator.snapshot(request).await.map_err(super::operator::refused)?.into_inner();
    let mut bytes = Vec::new();
    while let Some(part) = parts.message().await.map_err(super::operator::refused)? {
        bytes.extend_from_slice(&part.data);
    }
    Ok(bytes)
}

/// What a snapshot is, for programs.
fn described(archive: &Archive, file: &Path, bytes: usize) -> Value {
    let (sessions, groups) = archive.machine.counts();
    json!({
        "file": file.display().to_string(),
        "format": archive::VERSION,
        "bytes": bytes,
        "checksum": "ok",
        "cluster": archive.cluster().to_string(),
        "index": archive.head.index,
        "term": archive.head.term,
        "taken": json::time(archive.head.taken_ms),
        "release": archive.head.release,
        "sessions": sessions,
        "groups": groups,
        "last_token": archive.machine.last_token().to_string(),
        "feature_level": archive.machine.limits().level,
        "longest_ttl_ms": archive.machine.longest_lease().as_millis(),
        "ttl_max_ms": archive.machine.limits().ttl_max.as_millis(),
    })
}

fn inspect(file: &Path, global: &Global) -> Outcome {
    let archive = Archive::read(file).map_err(failure)?;
    let bytes = std::fs::metadata(file).map_or(0, |meta| meta.len() as usize);
    if global.json {
        output::json(&described(&archive, file, bytes))?;
        return Ok(ExitCode::SUCCESS);
    }
    let (sessions, groups) = archive.machine.counts();
    let (now, taken) = (disk::wall(), Wall(archive.head.taken_ms));
    let limits = archive.machine.limits();
    output::line(facts(&[
        ("file", format!("{}, {bytes} bytes, checksum ok", file.display())),
        ("format", format!("{}, written by release {}", archive::VERSION, archive.head.release)),
        ("cluster", archive.cluster().to_string()),
        ("log", format!("index {} of term {}", archive.head.index, archive.head.term)),
        ("taken", format!("{} ({})", clock(taken, now), ago(taken, now))),
        ("sessions", format!("{sessions}, the longest lease {}", archive.machine.longest_lease())),
        ("groups", format!("{groups} names in use")),
        ("last token", archive.machine.last_token().to_string()),
        ("limits", format!("feature level {}, leases up to {}", limits.level, limits.ttl_max)),
    ]))?;
    Ok(ExitCode::SUCCESS)
}

fn restore(args: &RestoreArgs, global: &Global) -> Outcome {
    archive::check_vacant(&args.data_dir).map_err(failure)?;
    let archive = Archive::read(&args.file).map_err(failure)?;
    let floor = floor(args, &archive)?;
    let longest = longest(args, &archive)?;
    let (old, index) = (archive.cluster(), archive.head.index);
    let restore = Restore {
        cluster: ClusterId(rand::random()),
        secret: Secret(rand::random()),
        floor,
        longest,
        at: disk::wall(),
        why: format!("restored from cluster {old} as of index {index}"),
    };
    let restored = archive.restore(&args.data_dir, &restore).map_err(failure)?;
    if global.json {
        output::json(&json!({
            "data": args.data_dir.display().to_string(),
            "cluster": restore.cluster.to_string(),
            "old_cluster": old.to_string(),
            "token_floor": restored.floor.to_string(),
            "sessions_ended": restored.ended,
            "names_kept": restored.kept,
            "first_session_after_ms": quorate_core::lease::kept_for(longest).as_millis(),
        }))?;
    } else {
        output::line(next_steps(args, &restore, &restored))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What was done, and what is left to do.
fn next_steps(args: &RestoreArgs, restore: &Restore, restored: &Restored) -> String {
    let data = args.data_dir.display().to_string();
    let mut text = format!(
        "{data} holds cluster {}, {}; {} over, {} kept; every token is above {}\n\n\
         Next:\n  quorate serve --data {}        it lets the first session in {} after its start",
        restore.cluster,
        restore.why,
        match restored.ended {
            1 => "1 session is".to_owned(),
            ended => format!("{ended} sessions are"),
        },
        count(restored.kept as u64, "name"),
        restored.floor,
        shell(&data),
        quorate_core::lease::kept_for(restore.longest),
    );
    for guard in &args.guard {
        text.push_str(&format!(
            "\n  quorate guard reset --state {} --all --cluster {} --why restored",
            shell(&guard.display().to_string()),
            restore.cluster
        ));
    }
    text
}

/// The floor of tokens: what was said, and what the guards say.
fn floor(args: &RestoreArgs, archive: &Archive) -> Result<Token, Failure> {
    if args.token_floor.is_none() && args.guard.is_empty() && !args.no_guards {
        return Err(Failure::usage(format!(
            "a resource may have seen greater tokens than {}, the last in the file: read `quorate guard show \
             --state FILE` of every guard and give the greatest with --token-floor, or the files with --guard; if \
             no resource is guarded, say --no-guards; nothing was restored",
            archive.machine.last_token()
        )));
    }
    let said = args.token_floor.map(Token);
    let mut floor = said.unwrap_or_default();
    for path in &args.guard {
        let highest = highest(path)?;
        if let Some(said) = said.filter(|said| *said < highest) {
            return Err(Failure::failed(format!(
                "the guard {} has seen token {highest}, and --token-floor {said} is lower: its resource would refuse \
                 what is granted, or take an old token for a new one; give {highest} or more; nothing was restored",
                path.display()
            )));
        }
        floor = floor.max(highest);
    }
    Ok(floor)
}

fn highest(path: &Path) -> Result<Token, Failure> {
    // To look must not make a guard where there is none.
    let options = FileOptions { seats: SeatKeys::BySeat, create: false };
    let report = FileGuard::open(path, options).and_then(|guard| guard.show());
    report
        .map(|report| report.highest())
        .map_err(|error| Failure::failed(format!("{error}; nothing was restored")))
}

/// The longest lease that may still last: as was said, but no session of the file may have a longer one.
fn longest(args: &RestoreArgs, archive: &Archive) -> Result<Span, Failure> {
    let known = archive.machine.longest_lease();
    let Some(said) = args.longest_ttl else { return Ok(archive.machine.limits().ttl_max) };
    let said = Span::from_millis(u64::try_from(said.as_millis()).unwrap_or(u64::MAX));
    if said < known {
        return Err(Failure::usage(format!(
            "a session of the file has a lease of {known}, longer than --longest-ttl {said}; nothing was restored"
        )));
    }
    Ok(said.max(Span::from_millis(1)))
}
