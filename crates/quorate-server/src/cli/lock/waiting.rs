//! Waiting for a seat, and saying for whom.

use super::signals::Asked;
use super::{failure, interrupted, say};
use crate::cli::exit::{Code, Failure};
use futures::FutureExt;
use quorate::proto::{self, explain_request::Kind};
use quorate::{Client, Error, Session};
use std::cell::RefCell;
use std::time::Duration;

/// How long a wait is nobody's concern, and how often it is looked again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long an explanation may take before the wait goes on without it.
const EXPLAIN_MAX: Duration = Duration::from_secs(1);

/// How many waiters are asked for, to find this one among them.
const WAITERS_MAX: u32 = 1_000;

/// What is waited for.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Wait<'a> {
    /// The name.
    pub(in crate::cli) name: &'a str,
    /// For how long at most.
    pub(in crate::cli) limit: Option<Duration>,
}

/// Takes what is free.
///
/// # Errors
/// It was not granted, and nothing is held.
pub(in crate::cli) async fn attempt<T>(
    wait: Wait<'_>,
    asked: &mut Asked,
    trying: impl Future<Output = Result<T, Error>>,
) -> Result<T, Failure> {
    tokio::select! {
        got = trying => got.map_err(not_granted),
        signal = asked.next() => Err(interrupted(signal, wait.name)),
    }
}

/// Waits for the grant, and says why it takes so long.
///
/// # Errors
/// It was not granted, and nothing is held.
pub(in crate::cli) async fn acquire<T>(
    wait: Wait<'_>,
    client: &Client,
    session: &Session,
    asked: &mut Asked,
    acquiring: impl Future<Output = Result<T, Error>>,
) -> Result<T, Failure> {
    tokio::pin!(acquiring);
    let said = RefCell::new(None);
    tokio::select! {
        biased;
        got = &mut acquiring => return got.map_err(not_granted),
        signal = asked.next() => return Err(interrupted(signal, wait.name)),
        () = limit(wait.limit) => {}
        () = say_why(wait.name, client, session, &said) => {}
    }
    let why = why(wait.name, client, session).await.or(said.take());
    match acquiring.now_or_never() {
        Some(Ok(late)) => Ok(late),
        _ => Err(timed_out(wait, why.as_deref())),
    }
}

async fn limit(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

fn timed_out(wait: Wait<'_>, why: Option<&str>) -> Failure {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let after = humantime::format_duration(wait.limit.unwrap_or_default());
    Failure::new(Code::NotGranted, format!("\"{}\" was not granted within {after}{why}", wait.name))
}

fn not_granted(error: Error) -> Failure {
    let failure = failure(error);
    match failure.code {
        Code::NotGranted => Failure { reason: format!("not granted: {}", failure.reason), ..failure },
        _ => failure,
    }
}

/// Says why it waits, and again when the reason is another. It never ends.
async fn say_why(name: &str, client: &Client, session: &Session, said: &RefCell<Option<String>>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(why) = why(name, client, session).await else { continue };
        if said.borrow().as_ref() != Some(&why) {
            say(format!("waiting for {name}: {why}"));
            said.replace(Some(why));
        }
    }
}

/// Why this session waits, in the service's words: of its own place, or of the name if it has none yet. None if the
/// service cannot be asked, or nobody holds it.
async fn why(name: &str, client: &Client, session: &Session) -> Option<String> {
    let request = proto::ExplainRequest { kind: Kind::Lock.into(), name: name.into(), max: WAITERS_MAX };
    let mut operator = client.operator();
    let asking = tokio::time::timeout(EXPLAIN_MAX, operator.explain(request));
    let reply = asking.await.ok()?.ok()?.into_inner();
    let own = session.id()?.0;
    let waiter = reply.waiters.into_iter().find(|waiter| waiter.session == own);
    let held = (!reply.holders.is_empty()).then_some(reply.sentence);
    waiter.map(|waiter| waiter.sentence).or(held)
}
