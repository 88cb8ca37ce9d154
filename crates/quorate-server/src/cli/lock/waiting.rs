//! Waiting for a lock, and saying for whom.

use super::signals::Asked;
use super::{LockArgs, default_name, failure, interrupted, say};
use crate::cli::exit::{Code, Failure};
use futures::FutureExt;
use quorate::proto::{self, explain_request::Kind};
use quorate::{Client, Error, LockGuard, Session};
use std::cell::RefCell;
use std::time::Duration;

/// How long a wait is nobody's concern, and how often it is looked again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long an explanation may take before the wait goes on without it.
const EXPLAIN_MAX: Duration = Duration::from_secs(1);

/// How many waiters are asked for, to find this one among them.
const WAITERS_MAX: u32 = 1_000;

/// Waits for the lock.
///
/// # Errors
/// It was not granted, and nothing is held.
pub(super) async fn acquire(
    args: &LockArgs,
    client: &Client,
    session: &Session,
    asked: &mut Asked,
) -> Result<LockGuard, Failure> {
    let shown = args.shown.clone().unwrap_or_else(default_name);
    let lock = session.lock(&*args.name).map_err(failure)?.named(shown);
    if args.try_only {
        return tokio::select! {
            got = lock.try_acquire() => got.map_err(not_granted),
            signal = asked.next() => Err(interrupted(signal, &args.name)),
        };
    }
    let acquiring = lock.acquire();
    tokio::pin!(acquiring);
    let said = RefCell::new(None);
    tokio::select! {
        biased;
        got = &mut acquiring => return got.map_err(not_granted),
        signal = asked.next() => return Err(interrupted(signal, &args.name)),
        () = limit(args.wait) => {}
        () = say_why(&args.name, client, session, &said) => {}
    }
    let why = why(&args.name, client, session).await.or(said.take());
    match acquiring.now_or_never() {
        Some(Ok(late)) => Ok(late),
        _ => Err(timed_out(args, why.as_deref())),
    }
}

async fn limit(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

fn timed_out(args: &LockArgs, why: Option<&str>) -> Failure {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let after = humantime::format_duration(args.wait.unwrap_or_default());
    Failure::new(Code::NotGranted, format!("{} was not granted within {after}{why}", args.name))
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

/// Why this session waits, in the service's words; none if it cannot be asked or does not wait.
async fn why(name: &str, client: &Client, session: &Session) -> Option<String> {
    let request = proto::ExplainRequest { kind: Kind::Lock.into(), name: name.into(), max: WAITERS_MAX };
    let mut operator = client.operator();
    let asking = tokio::time::timeout(EXPLAIN_MAX, operator.explain(request));
    let reply = asking.await.ok()?.ok()?.into_inner();
    let own = session.id()?.0;
    let waiter = reply.waiters.into_iter().find(|waiter| waiter.session == own)?;
    Some(waiter.sentence)
}
