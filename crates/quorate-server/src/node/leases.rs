//! The tasks beside the log that keep leases: they begin reigns, confirm renewals and propose ends. What
//! they decide is in `quorate_core::lease`; what counts is what the log applies.

use super::floor::WAKEUP_LATE_MS;
use super::{Node, is_stale, random};
use crate::log::{AsyncRuntime, Committed, Feed, FeedReader};
use futures::future::{Either, select};
use quorate_core::id::{Reign, SessionId};
use quorate_core::lease::Renewal;
use quorate_core::state_machine::{Command, Event, Reason, Reply, Role, Timer};
use quorate_core::time::{Mono, Span};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How often the remainders of leases that were not renewed in this reign are logged, so that they end
/// even if no reign lasts as long as a lease (RULES R5). Each costs one commit while there are any.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(250);

/// How often the keeper looks at the clock while there are leases: what it may overlook of a pause of this
/// process. A quarter of the shortest lease, so that whoever was alive has time left to be heard after it.
const LOOK_EVERY: Span = Span::from_millis(25);

/// How late a look may be before it was a pause. Below it is a busy machine, which the floor of leases allows
/// for.
const PAUSE_MIN: Span = Span::from_millis(WAKEUP_LATE_MS);

/// How long a proposed end that came to nothing waits before it is proposed again.
const AGAIN_AFTER: Span = Span::from_millis(20);

/// How long a new leader waits before it tries again to begin its reign.
const BEGIN_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// How many keepalives share one quorum round, and how many feed steps one turn.
const BATCH_MAX: usize = 1_024;

/// Where keepalives arrive.
#[derive(Debug)]
pub(super) struct Renewals(mpsc::UnboundedSender<Option<Arrival>>);

/// A keepalive that waits for its confirmation.
#[derive(Debug)]
pub(super) struct Arrival {
    session: SessionId,
    arrived: Mono,
    confirmed: oneshot::Sender<bool>,
}

pub(super) fn renewals() -> (Renewals, mpsc::UnboundedReceiver<Option<Arrival>>) {
    let (sender, arrivals) = mpsc::unbounded_channel();
    (Renewals(sender), arrivals)
}

impl Renewals {
    /// A keepalive arrived now; the future says whether it was confirmed.
    pub(super) fn arrived(
        &self,
        session: SessionId,
        arrived: Mono,
    ) -> impl Future<Output = bool> + Send + 'static {
        let (confirmed, answer) = oneshot::channel();
        let sender = self.0.clone();
        let _ = sender.send(Some(Arrival { session, arrived, confirmed }));
        async move {
            // One that could not be sent was dropped. One that was on its way when the other end was given up stays
            // unread, and is not dropped either.
            let ended = std::pin::pin!(sender.closed());
            match select(answer, ended).await {
                Either::Left((confirmed, _)) => confirmed.unwrap_or(false),
                Either::Right(((), _)) => false,
            }
        }
    }

    pub(super) fn stop(&self) {
        let _ = self.0.send(None);
    }
}

/// Tells the keeper and the connections what was applied, in log order.
pub(super) async fn follow_log<RT: AsyncRuntime>(node: Node<RT>, mut feed: FeedReader) {
    let mut steps = Vec::new();
    while feed.next_many(&mut steps, BATCH_MAX).await > 0 {
        for step in steps.drain(..) {
            if let Feed::Committed(committed) = step {
                applied(&node, committed);
            }
        }
        let _ = node.inner.wake.try_send(());
    }
}

fn applied<RT: AsyncRuntime>(node: &Node<RT>, committed: Committed) {
    if let (Command::Begin { nonce, .. }, Reply::Began { reign }) =
        (&committed.proposal.command, &committed.reply)
    {
        began(node, *nonce, *reign);
    }
    let now = node.now();
    for event in committed.events {
        count(node, &event);
        node.keeper().observe(now, &event);
        node.inner.hub.publish(event);
    }
}

/// A reign that this node asked for begins here and now; any other ends it (RULES R4).
fn began<RT: AsyncRuntime>(node: &Node<RT>, nonce: u128, reign: Reign) {
    let mine = {
        let asked = node.inner.nonce.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *asked == Some(nonce)
    };
    if !mine {
        node.keeper().end_reign();
        return;
    }
    let (sessions, tasks) = node.read(|machine| (machine.session_list(None, usize::MAX), machine.tasks()));
    node.keeper().begin(node.now(), reign, &sessions, &tasks);
    tracing::info!(%reign, sessions = sessions.len(), "this node keeps the leases");
}

fn count<RT: AsyncRuntime>(node: &Node<RT>, event: &Event) {
    let counts = &node.inner.counts;
    match event {
        Event::Change { change, .. } => {
            let took = |place: &Option<quorate_core::state_machine::Place>| {
                place.as_ref().and_then(|p| (p.role == Role::Active).then_some(p.seat).flatten())
            };
            let granted = change.changed.iter().filter(|c| took(&c.after) != took(&c.before));
            let granted = granted.filter(|c| c.after.is_some()).count() as u64;
            counts.granted.fetch_add(granted, Ordering::Relaxed);
        }
        Event::Ended { reason: Reason::Expired, session, evidence } => {
            counts.expired.fetch_add(1, Ordering::Relaxed);
            tracing::info!(%session, %evidence, "a session's lease ran out");
        }
        Event::Ended { .. } => {
            counts.ended.fetch_add(1, Ordering::Relaxed);
        }
        Event::Closing { .. } | Event::Lease { .. } | Event::Arm { .. } | Event::Disarm { .. } => {}
    }
}

/// Follows the leadership of the log: a new leader begins a reign before anything else of leases.
pub(super) async fn reign<RT: AsyncRuntime>(node: Node<RT>) {
    let mut leadership = node.inner.engine.leadership();
    let mut begun = None;
    loop {
        let now = leadership.now();
        if !now.leads {
            node.keeper().end_reign();
            begun = None;
        } else if begun != Some(now.term) {
            match begin(&node).await {
                true => begun = Some(now.term),
                false => {
                    RT::sleep(BEGIN_AGAIN_AFTER).await;
                    if node.inner.stopping.load(Ordering::Acquire) {
                        return;
                    }
                    continue;
                }
            }
        }
        if leadership.changed().await.is_none() {
            node.keeper().end_reign();
            return;
        }
    }
}

async fn begin<RT: AsyncRuntime>(node: &Node<RT>) -> bool {
    let nonce = random::<RT>();
    *node.inner.nonce.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(nonce);
    let me = node.inner.engine.metrics().node;
    let begun = node.bring(Command::Begin { node: me, nonce }).await;
    matches!(begun, Ok(Reply::Began { .. }))
}

/// Proposes the ends of leases when they are due, and logs remainders while there are any to log.
///
/// A process that was stopped finds all leases over when it goes on, although nobody could have been heard
/// meanwhile. It is as absent as one that was restarted: that time counts against nobody (RULES R8).
pub(super) async fn end_leases<RT: AsyncRuntime>(node: Node<RT>, mut woken: mpsc::Receiver<()>) {
    let mut next_checkpoint = node.now();
    let mut expected = node.now();
    while !node.inner.stopping.load(Ordering::Acquire) {
        let now = node.now();
        let (due, next_end) = {
            let mut keeper = node.keeper();
            let late = now.since(expected);
            if late >= PAUSE_MIN {
                keeper.absent(late);
            }
            (keeper.due(now), keeper.next_end())
        };
        for command in due {
            drop(RT::spawn(propose_end(node.clone(), command)));
        }
        if now >= next_checkpoint {
            next_checkpoint = now + Span::from_millis(CHECKPOINT_EVERY.as_millis() as u64);
            let checkpoint = node.keeper().checkpoint(now);
            if let Some(command) = checkpoint {
                // Only a remainder that is logged counts; a lost one is logged again soon. Not awaited, since
                // a slow disk is no pause: keepalives are heard meanwhile.
                drop(RT::spawn(propose_checkpoint(node.clone(), command)));
            }
        }
        let look = next_end.map_or(next_checkpoint, |end| end.min(now + LOOK_EVERY));
        expected = next_checkpoint.min(look).max(now);
        let sleep = Duration::from_micros(expected.0.saturating_sub(now.0).max(200));
        let _ = RT::select2(RT::sleep(sleep), woken.recv()).await;
    }
}

async fn propose_checkpoint<RT: AsyncRuntime>(node: Node<RT>, command: Command) {
    let _ = node.bring(command).await;
}

async fn propose_end<RT: AsyncRuntime>(node: Node<RT>, command: Command) {
    let Command::TimerFired { timer, .. } = command else { return };
    let outcome = node.bring(command).await;
    match (timer, &outcome) {
        (Timer::Task { task }, Ok(_)) => node.keeper().settled(task),
        (Timer::Lease { .. }, Ok(reply)) if !is_stale(reply) => {}
        _ => {
            let again = node.now() + AGAIN_AFTER;
            node.keeper().again(again, timer);
            let _ = node.inner.wake.try_send(());
        }
    }
}

/// Confirms keepalives, those that arrived before a quorum round began together (RULES R6).
pub(super) async fn confirm_renewals<RT: AsyncRuntime>(
    node: Node<RT>,
    mut arrivals: mpsc::UnboundedReceiver<Option<Arrival>>,
) {
    let mut batch = Vec::new();
    while arrivals.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let mut rounds = Vec::new();
        let mut marks = Vec::new();
        for arrival in batch.drain(..) {
            let Some(arrival) = arrival else { return };
            let (verdict, reign) = {
                let keeper = node.keeper();
                (keeper.arrived(arrival.session), keeper.reign())
            };
            match (verdict, reign) {
                (Renewal::Round, Some(reign)) => rounds.push((arrival, reign)),
                (Renewal::Mark { reign }, _) => marks.push((arrival, reign)),
                _ => silent(&node, arrival),
            }
        }
        if let Some((_, reign)) = marks.first() {
            drop(RT::spawn(mark(node.clone(), *reign, marks)));
        }
        if !rounds.is_empty() {
            let confirmed = node.inner.engine.confirm().await.is_ok();
            node.inner.counts.rounds.fetch_add(1, Ordering::Relaxed);
            confirm(&node, rounds, confirmed);
        }
    }
}

/// A session's first renewal in a reign is logged before it is confirmed (RULES R5).
async fn mark<RT: AsyncRuntime>(node: Node<RT>, reign: Reign, marks: Vec<(Arrival, Reign)>) {
    let sessions: Vec<SessionId> = marks.iter().map(|(arrival, _)| arrival.session).collect();
    let logged = node.bring(Command::Mark { reign, sessions: sessions.clone() }).await;
    let logged = matches!(logged, Ok(Reply::Done));
    if logged {
        for session in sessions {
            node.keeper().marked(session, reign);
        }
    }
    confirm(&node, marks, logged);
}

fn confirm<RT: AsyncRuntime>(node: &Node<RT>, arrivals: Vec<(Arrival, Reign)>, by_quorum: bool) {
    for (arrival, reign) in arrivals {
        let confirmed = by_quorum && node.keeper().confirm(arrival.session, arrival.arrived, reign);
        if confirmed {
            node.inner.counts.confirmed.fetch_add(1, Ordering::Relaxed);
            let _ = arrival.confirmed.send(true);
        } else {
            silent(node, arrival);
        }
    }
}

fn silent<RT: AsyncRuntime>(node: &Node<RT>, arrival: Arrival) {
    node.inner.counts.silent.fetch_add(1, Ordering::Relaxed);
    let _ = arrival.confirmed.send(false);
}
