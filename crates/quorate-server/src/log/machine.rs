//! The state machine behind the log: applies committed entries, answers, and compacts.
//!
//! Readers share it under a lock that apply holds for one batch at a time and never while it waits.
//! The state is in memory only: after a start it is the stored snapshot and the log after it. A
//! snapshot is durable before the library is told of it, and only then is the log before it purged.

use super::feed::{Committed, Feed, FeedWriter};
use super::health::PanicGuard;
use super::record::Position;
use super::storage::durable;
use super::store::{Driver, Store};
use super::types::{Item, RawEntry, RawLogId, RawMembership, RawSnapshotMeta, Types, snapshot_head};
use futures::{Stream, TryStreamExt};
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine};
use openraft::type_config::TypeConfigExt;
use openraft::{AsyncRuntime, EntryPayload, OptionalSend, RaftSnapshotBuilder, Snapshot, StoredMembership};
use quorate_core::id::LogIndex;
use quorate_core::state_machine::{Applied, Reply, StateMachine};
use std::io;
use std::marker::PhantomData;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How many entries are applied under one lock. More makes readers wait longer, fewer wakes the feed's
/// listener more often.
const BATCH_MAX: usize = 256;

/// The replicated state as readers see it. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Seen {
    inner: Arc<RwLock<State>>,
}

/// The state and where in the log it stands.
#[derive(Default)]
pub(super) struct State {
    pub(super) machine: StateMachine,
    pub(super) applied: Option<Position>,
}

const STATE_IS_WHOLE: &str = "the state is whole: a panic while it changed ends the node";

impl Seen {
    pub(super) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.inner.read().expect(STATE_IS_WHOLE)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.inner.write().expect(STATE_IS_WHOLE)
    }
}

/// The one that applies.
pub(super) struct Machine<RT> {
    seen: Seen,
    members: RawMembership,
    store: Store,
    feed: FeedWriter,
    runtime: PhantomData<fn() -> RT>,
}

impl<RT: AsyncRuntime> Machine<RT> {
    pub(super) fn new(seen: Seen, store: Store, feed: FeedWriter) -> Self {
        Self { seen, members: StoredMembership::default(), store, feed, runtime: PhantomData }
    }

    /// Applies a batch under one lock, then tells the feed, then the proposers.
    fn apply_batch(&mut self, batch: &mut Vec<EntryResponder<Types<RT>>>) {
        let _guard = PanicGuard { health: self.store.health().clone(), what: "the state machine" };
        let mut answers: Vec<(ApplyResponder<Types<RT>>, Reply)> = Vec::with_capacity(batch.len());
        let mut steps = Vec::with_capacity(batch.len());
        {
            let mut state = self.seen.write();
            for (entry, responder) in batch.drain(..) {
                let (step, reply) = apply_entry(&mut state, &mut self.members, entry);
                steps.push(step);
                answers.extend(responder.map(|responder| (responder, reply)));
            }
        }
        for step in steps {
            self.feed.push(step);
        }
        for (responder, reply) in answers {
            responder.send(reply);
        }
    }
}

fn apply_entry(state: &mut State, members: &mut RawMembership, entry: RawEntry) -> (Feed, Reply) {
    let position = Position::from(&entry.log_id);
    let index = position.index;
    state.applied = Some(position);
    match entry.payload {
        EntryPayload::Blank => (Feed::Passed { index }, Reply::Done),
        EntryPayload::Membership(new) => {
            *members = StoredMembership::new(Some(entry.log_id), new);
            (Feed::Passed { index }, Reply::Done)
        }
        EntryPayload::Normal(Item(proposal)) => {
            let Applied { reply, events } = state.machine.apply(index, &proposal);
            let answer = reply.clone();
            (Feed::Committed(Committed { index, proposal, reply, events }), answer)
        }
    }
}

impl<RT: AsyncRuntime> RaftStateMachine<Types<RT>> for Machine<RT> {
    type SnapshotData = Vec<u8>;
    type SnapshotBuilder = Builder<RT>;

    async fn applied_state(&mut self) -> Result<(Option<RawLogId>, RawMembership), io::Error> {
        let applied = self.seen.read().applied.map(RawLogId::from);
        Ok((applied, self.members.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Types<RT>>, io::Error>> + Unpin + OptionalSend,
    {
        let mut batch = Vec::new();
        while let Some(entry) = entries.try_next().await? {
            batch.push(entry);
            if batch.len() == BATCH_MAX {
                self.apply_batch(&mut batch);
            }
        }
        self.apply_batch(&mut batch);
        Ok(())
    }

    /// Puts a snapshot off while the log is smaller than the last one was: so compaction never
    /// writes more than the log itself does.
    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Builder<RT>> {
        let last_bytes = self.store.snapshot().map_or(0, |head| head.state_bytes);
        if !force && self.store.log_bytes() < last_bytes {
            return None;
        }
        Some(self.get_snapshot_builder().await)
    }

    async fn get_snapshot_builder(&mut self) -> Builder<RT> {
        let state = self.seen.read();
        Builder {
            machine: Arc::new(state.machine.clone()),
            applied: state.applied,
            members: self.members.clone(),
            store: self.store.clone(),
            runtime: PhantomData,
        }
    }

    async fn install_snapshot(&mut self, meta: &RawSnapshotMeta, snapshot: Vec<u8>) -> Result<(), io::Error> {
        let machine = StateMachine::from_snapshot(&snapshot)
            .map_err(|error| io::Error::other(format!("a snapshot does not read: {error}")))?;
        let head = snapshot_head(meta, &snapshot);
        if self.store.snapshot().as_ref() != Some(&head) {
            durable::<RT, _>(|done| self.store.save_snapshot(head, snapshot.into(), done)).await?;
        }
        let applied = meta.last_log_id.as_ref().map(Position::from);
        *self.seen.write() = State { machine, applied };
        self.members = meta.last_membership.clone();
        self.feed.push(Feed::Replaced { index: applied.map_or(LogIndex(0), |position| position.index) });
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<RawSnapshot>, io::Error> {
        let (sender, receiver) = Types::<RT>::oneshot();
        let got = move |result: Result<_, _>| {
            let _ = openraft::type_config::OneshotSender::send(sender, result);
        };
        self.store.read_snapshot(Box::new(got))?;
        let stored = receiver
            .await
            .map_err(|_| io::Error::other("the log was closed while a snapshot was read"))??;
        Ok(stored.map(|(head, snapshot)| Snapshot { meta: head.into(), snapshot }))
    }
}

pub(super) type RawSnapshot = Snapshot<super::types::Lead, u64, openraft::impls::BasicNode, Vec<u8>>;

/// Turns a copy of the state into a stored snapshot, beside the one that applies.
pub(super) struct Builder<RT> {
    machine: Arc<StateMachine>,
    applied: Option<Position>,
    members: RawMembership,
    store: Store,
    runtime: PhantomData<fn() -> RT>,
}

impl<RT: AsyncRuntime> Builder<RT> {
    /// A large state takes tens of milliseconds to write down: not on a thread that serves others,
    /// unless this is a simulator, where there is only one.
    async fn encode(&self) -> Result<Vec<u8>, io::Error> {
        let machine = self.machine.clone();
        match self.store.driver() {
            Driver::Inline => Ok(machine.to_snapshot()),
            Driver::Thread => RT::spawn_blocking(move || machine.to_snapshot()).await,
        }
    }
}

impl<RT: AsyncRuntime> RaftSnapshotBuilder<Types<RT>> for Builder<RT> {
    type SnapshotData = Vec<u8>;

    async fn build_snapshot(&mut self) -> Result<RawSnapshot, io::Error> {
        let state = self.encode().await?;
        let meta = RawSnapshotMeta {
            last_log_id: self.applied.map(RawLogId::from),
            last_membership: self.members.clone(),
        };
        let head = snapshot_head(&meta, &state);
        let stored: Arc<[u8]> = state.as_slice().into();
        durable::<RT, _>(|done| self.store.save_snapshot(head, stored, done)).await?;
        Ok(Snapshot { meta, snapshot: state })
    }
}
