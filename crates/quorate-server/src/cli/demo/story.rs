//! What happens, in order: all join; the active one is killed and comes back; the next one is paused in the middle
//! of its work and wakes too late.

use super::super::exit::Failure;
use super::super::output::{self, Tone, paint};
use super::board::{Place, WORKERS};
use super::stage::Stage;
use super::worker::Said;
use rustix::process::Signal;
use serde_json::json;
use std::time::Duration;

/// How long each act is left to be looked at.
const PAUSE: Duration = Duration::from_millis(800);

/// How often a worker is paused again that had already written: the demo stops it in the middle of its work.
const TRIES_MAX: usize = 20;

pub(super) async fn tell(stage: &mut Stage) -> Result<(), Failure> {
    all_join(stage).await?;
    one_is_killed(stage).await?;
    it_comes_back(stage).await?;
    let stale = one_is_paused(stage).await?;
    it_wakes(stage, stale).await?;
    the_file(stage, stale)
}

async fn all_join(stage: &mut Stage) -> Result<(), Failure> {
    for who in 1..=WORKERS {
        stage.start(who)?;
        stage.until("all join", |board, _| (board.place(who) != Place::Absent).then_some(())).await?;
    }
    let token = acts_and_writes(stage, 1, "P1 begins to write").await?;
    let through = match &stage.guard {
        Some(_) => "through its guard",
        None => "without a guard",
    };
    stage
        .board
        .row(&format!("All have joined. P1 acts under token {token} and appends to the file {through}."))?;
    look(stage).await
}

async fn one_is_killed(stage: &mut Stage) -> Result<(), Failure> {
    stage.kill(1).await;
    stage
        .board
        .row("P1 is killed (kill -9). It might be only slow, so nobody acts before its lease has ended.")?;
    why(stage).await?;
    let token = acts_and_writes(stage, 2, "P2 waits for the end of P1's lease").await?;
    settled(stage, [None, Some(1), Some(2), Some(3), Some(4)]).await?;
    stage.board.row(&format!("The lease has ended, and all move up: P2 acts under token {token}."))?;
    look(stage).await
}

async fn it_comes_back(stage: &mut Stage) -> Result<(), Failure> {
    stage.start(1)?;
    settled(stage, [Some(5), Some(1), Some(2), Some(3), Some(4)]).await?;
    stage.board.row("P1 is started again. Whoever comes back takes the tail; nobody else moves.")?;
    look(stage).await
}

/// The token that it was paused with.
async fn one_is_paused(stage: &mut Stage) -> Result<u64, Failure> {
    let token = pause_in_the_middle(stage).await?;
    stage.board.at(2, Place::Paused);
    stage.board.row(&format!(
        "P2 is paused (SIGSTOP) in the middle of its work: it has taken token {token} and has not written yet."
    ))?;
    why(stage).await?;
    let next = acts_and_writes(stage, 3, "P3 waits for the end of P2's lease").await?;
    settled(stage, [Some(4), None, Some(1), Some(2), Some(3)]).await?;
    stage
        .board
        .row(&format!("The lease has ended: P3 acts under token {next}, and the file has seen it."))?;
    look(stage).await?;
    Ok(token)
}

/// Stops P2 after it has taken its token and before it writes.
async fn pause_in_the_middle(stage: &mut Stage) -> Result<u64, Failure> {
    for _ in 0..TRIES_MAX {
        let before = stage.lines().len();
        let token = stage
            .until("P2 takes its token", |_, heard| match heard.said {
                Said::Works { token } if heard.who == 2 => Some(token),
                _ => None,
            })
            .await?;
        stage.signal(2, Signal::STOP)?;
        let by_now = stage.lines();
        let written =
            by_now.get(before..).unwrap_or_default().iter().filter(|(_, name)| name == "P2").count();
        if written == 0 {
            return Ok(token);
        }
        stage.signal(2, Signal::CONT)?;
    }
    Err(Failure::failed("this machine is too busy to pause a worker in the middle of its work; try again"))
}

async fn it_wakes(stage: &mut Stage, stale: u64) -> Result<(), Failure> {
    stage.signal(2, Signal::CONT)?;
    stage.until("P2 wakes", |board, _| (board.place(2) == Place::CutOff).then_some(())).await?;
    stage
        .board
        .row("P2 goes on (SIGCONT). The first that it is told, by its own clock, is that it is cut off.")?;
    let refused = stage
        .until("P2 writes late", |_, heard| match &heard.said {
            Said::Refused { token, why } if heard.who == 2 && *token == stale => Some(Some(why.clone())),
            Said::Wrote { token } if heard.who == 2 && *token == stale => Some(None),
            _ => None,
        })
        .await?;
    match refused {
        Some(why) => stage.board.aside("P2 writes all the same, and is refused", &why)?,
        None => stage.board.aside("P2 writes all the same", "nobody refuses it")?,
    }
    settled(stage, [Some(4), Some(5), Some(1), Some(2), Some(3)]).await?;
    stage.board.row("P2 has joined again, at the tail. P3 has acted all the while.")?;
    look(stage).await
}

/// What is in the file, and whether it is as promised.
fn the_file(stage: &Stage, stale: u64) -> Result<(), Failure> {
    let lines = stage.lines();
    let late: Vec<usize> = (1..lines.len()).filter(|&n| lines[n].0 < lines[n - 1].0).collect();
    let refused = stage.guard.is_some();
    if stage.board.is_json() {
        output::json(&json!({
            "lines": lines.len(),
            "stale_lines": late.len(),
            "stale_token": stale.to_string(),
            "guarded": refused,
        }))?;
    } else {
        output::line(paint(Tone::Strong, "The file, from its first line to its last:"))?;
        output::line(format!("{}\n", runs(&lines)))?;
    }
    match (refused, late.as_slice()) {
        (true, []) => stage.board.closing(
            "The tokens only grow: no line of an older holder comes after one of a newer. One late write was refused.",
        ),
        (true, _) => Err(Failure::failed("a line of an older holder went past the guard; this is a bug")),
        (false, []) => Err(Failure::failed("the late write did not reach the file; try again")),
        (false, _) => stage.board.closing(
            "Without a guard the late line is in the file, after the lines of a newer holder. No lease and no clock \
             could have stopped it; with its guard the file refuses it: `quorate demo`.",
        ),
    }
}

/// The lines of the file, those of one writer together.
fn runs(lines: &[(u64, String)]) -> String {
    let runs = lines.chunk_by(|a, b| a == b).map(|run| {
        let (token, name) = &run[0];
        let lines = if run.len() == 1 { "line " } else { "lines" };
        format!("  {:>3} {lines} by {name} under token {token}", run.len())
    });
    runs.collect::<Vec<_>>().join("\n")
}

/// Waits until `who` acts and has written under its token.
async fn acts_and_writes(stage: &mut Stage, who: usize, what: &str) -> Result<u64, Failure> {
    stage
        .until(what, |board, heard| match heard.said {
            Said::Wrote { token } if heard.who == who && board.acts(who) == Some(token) => Some(token),
            _ => None,
        })
        .await
}

/// Half a lease later, what the service says of it.
async fn why(stage: &mut Stage) -> Result<(), Failure> {
    let half = tokio::time::Instant::now() + stage.ttl / 2;
    stage.listen_until(half).await?;
    let explained = stage.explain().await;
    stage.board.aside("quorate explain group demo", &explained)
}

async fn settled(stage: &mut Stage, ordinals: [Option<i64>; WORKERS]) -> Result<(), Failure> {
    if stage.board.are(ordinals) {
        return Ok(());
    }
    stage.until("everybody hears of it", |board, _| board.are(ordinals).then_some(())).await
}

/// Leaves time to look, and hears on meanwhile.
async fn look(stage: &mut Stage) -> Result<(), Failure> {
    let until = tokio::time::Instant::now() + PAUSE;
    stage.listen_until(until).await
}
