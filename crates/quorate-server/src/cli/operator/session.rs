//! `quorate session`: who is connected, and for how long its lease lasts.

use super::super::exit::{Failure, Outcome};
use super::super::output::{self, Rows, facts, plain};
use super::super::{Global, block_on};
use super::tables::places_table;
use super::{PAGE, client, explained, fresh, refused, warn};
use crate::explain::words::{ago, clock, span};
use crate::json;
use crate::node::disk;
use clap::Subcommand;
use quorate::proto;
use quorate_core::time::{Span, Wall};
use std::process::ExitCode;

/// `quorate session ...`
#[derive(Subcommand, Clone, Debug)]
pub enum SessionCommand {
    /// List the open sessions
    List,
    /// Show one session: its lease, what it holds, what it waits for
    Show {
        /// The number of the session
        session: u64,
    },
    /// Ask a session to stop, and renew its lease no more
    #[command(
        long_about = "Ask a session to stop, and renew its lease no more.\n\nIts client is told and may \
        give up what it holds at once. If it does not, the service waits until the lease has ended: a seat is \
        never taken from somebody who may still act."
    )]
    Close {
        /// The number of the session
        session: u64,
        /// Why; the client and the history show it
        #[arg(long, value_name = "TEXT", default_value = "closed by an operator")]
        why: String,
    },
}

/// Runs `quorate session ...`.
///
/// # Errors
/// No service answers, or it refuses.
pub fn session(command: SessionCommand, global: &Global) -> Outcome {
    match command {
        SessionCommand::List => list_sessions(global),
        SessionCommand::Show { session } => show_session(session, global),
        SessionCommand::Close { session, why } => close_session(session, why, global),
    }
}

fn list_sessions(global: &Global) -> Outcome {
    let sessions = block_on(async {
        let mut operator = global.server.operator().await?;
        let mut sessions: Vec<proto::SessionInfo> = Vec::new();
        loop {
            let after = sessions.last().map_or(0, |last| last.session);
            let request = proto::ListSessionsRequest { after, max: PAGE, only: None };
            let page = fresh(operator.list_sessions(request).await)?;
            sessions.extend(page.sessions);
            if !page.more {
                return Ok(sessions);
            }
        }
    })?;
    if global.json {
        sessions.iter().try_for_each(|session| output::json(&json::session(session)))?;
        return Ok(ExitCode::SUCCESS);
    }
    if sessions.is_empty() {
        output::line("no sessions are open")?;
        return Ok(ExitCode::SUCCESS);
    }
    let now = disk::wall();
    let mut rows =
        Rows::new(&[">session", "label", "opened", ">ttl", ">lease left", ">holds", ">waits", "connection"]);
    for session in &sessions {
        let held = session.places.iter().filter(|place| place.seat.is_some()).count();
        let waits = session.places.iter().filter(|place| !place.waits.is_empty()).count();
        rows.row([
            session.session.to_string(),
            plain(&session.label).into_owned(),
            ago(Wall(session.opened_ms), now),
            Span::from_millis(session.ttl_ms).to_string(),
            session.remaining_ms.map(|ms| span(Span::from_millis(ms))).unwrap_or_default(),
            held.to_string(),
            waits.to_string(),
            connection(session),
        ]);
    }
    output::line(rows.render())?;
    Ok(ExitCode::SUCCESS)
}

fn connection(session: &proto::SessionInfo) -> String {
    match (&session.closing, session.connected) {
        (Some(_), _) => "closing".into(),
        (None, true) => format!("from {}", session.peer),
        (None, false) => match session.silent_ms {
            Some(silent) => format!("none, silent for {}", span(Span::from_millis(silent))),
            None => "none here".into(),
        },
    }
}

fn show_session(session: u64, global: &Global) -> Outcome {
    let (reply, stale) = explained(proto::explain_request::Kind::Session, session.to_string(), global)?;
    let Some(info) = &reply.session else {
        return Err(Failure::failed(reply.sentence));
    };
    if global.json {
        output::json(&json::session(info))?;
        return Ok(ExitCode::SUCCESS);
    }
    warn(stale.as_deref());
    let now = disk::wall();
    let unknown = || "known to the leader only".to_owned();
    let since = |ms: Option<u64>| ms.map(|ms| span(Span::from_millis(ms)));
    let mut rows = vec![
        ("session", info.session.to_string()),
        ("label", plain(&info.label).into_owned()),
        ("opened", format!("{} ({})", clock(Wall(info.opened_ms), now), ago(Wall(info.opened_ms), now))),
        ("ttl", Span::from_millis(info.ttl_ms).to_string()),
        ("lease left", since(info.remaining_ms).unwrap_or_else(unknown)),
        ("last heard", since(info.silent_ms).map_or_else(unknown, |silent| format!("{silent} ago"))),
        ("connection", format!("{}, number {}", connection(info), info.generation)),
        ("on disconnect", json::word(info.on_disconnect().as_str_name())),
    ];
    if let Some(why) = &info.closing {
        rows.push(("closing", plain(why).into_owned()));
    }
    let mut sections = vec![facts(&rows)];
    sections.extend(places_table(info));
    output::line(sections.join("\n\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn close_session(session: u64, why: String, global: &Global) -> Outcome {
    let left = block_on(async {
        let mut operator = global.server.operator().await?;
        let request = proto::CloseSessionRequest { client: client(), session, why };
        operator.close_session(request).await.map_err(refused)?;
        let request = proto::ListSessionsRequest { after: 0, max: 1, only: Some(session) };
        match operator.list_sessions(request).await {
            Ok(reply) => Ok(Some(reply.into_inner().sessions.first().and_then(|info| info.remaining_ms))),
            Err(_) => Ok(None),
        }
    })?;
    if global.json {
        let left_ms = left.flatten();
        output::json(&serde_json::json!({
            "session": session, "closing": left.is_some(), "lease_remaining_ms": left_ms,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(match left {
        None => format!("session {session} has ended: its client gave up everything at once"),
        Some(None) => {
            format!("session {session} is asked to stop; it holds until it does, or its lease ends")
        }
        Some(Some(ms)) => format!(
            "session {session} is asked to stop; it holds until it does, or until its lease ends in {}",
            span(Span::from_millis(ms))
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}
