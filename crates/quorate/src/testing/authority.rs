//! The state machine, its leases and its listeners, in memory behind one mutex.

use crate::clock::{self, Clock};
use crate::service::{Authority, Events, NotApplied};
use futures::future::BoxFuture;
use quorate_core::frame::Bye;
use quorate_core::id::{ClusterId, EntryId, Generation, LogIndex, NodeId, SessionId};
use quorate_core::lease::{LeaseKeeper, Renewal};
use quorate_core::state_machine::{
    Command, Event, Limits, Opened, Proposal, Reply, StateMachine, Timer, Total,
};
use quorate_core::time::{Mono, Span, Wall};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc, watch};

/// How many waiting places a confirmed keepalive names.
const WAITING_MAX: usize = 256;

/// A service whose log is this memory.
#[derive(Debug)]
pub(super) struct Memory {
    core: Mutex<Core>,
    clock: Clock,
    ttl_floor: Span,
    /// The lease that ends first may be another one.
    ends: Notify,
    applied: watch::Sender<LogIndex>,
    paused: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Core {
    machine: StateMachine,
    keeper: LeaseKeeper,
    ears: BTreeMap<SessionId, (Generation, mpsc::UnboundedSender<Arc<Event>>)>,
}

impl Memory {
    pub(super) fn found(ttl_floor: Span) -> Self {
        let memory = Self {
            core: Mutex::default(),
            clock: Clock::new(),
            ttl_floor,
            ends: Notify::new(),
            applied: watch::Sender::new(LogIndex(0)),
            paused: watch::Sender::new(false),
        };
        let cluster = ClusterId(rand::random());
        memory.apply(Command::Found { cluster, limits: Limits::default() });
        memory
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings a command to the log and applies it.
    pub(super) fn apply(&self, command: Command) -> Reply {
        let now = self.clock.now();
        let mut core = self.lock();
        let index = LogIndex(core.machine.applied().0 + 1);
        let at = Wall(clock::wall_ms().max(0) as u64);
        let applied = core.machine.apply(index, &Proposal { at, command });
        for event in applied.events {
            core.keeper.observe(now, &event);
            core.tell(event);
        }
        drop(core);
        self.ends.notify_one();
        self.applied.send_replace(index);
        applied.reply
    }

    /// Begins a reign of lease keeping (RULES R4).
    pub(super) fn begin_reign(&self) {
        let begin = Command::Begin { node: NodeId(1), nonce: rand::random() };
        let Reply::Began { reign } = self.apply(begin) else { return };
        let now = self.clock.now();
        let core = &mut *self.lock();
        core.keeper.begin(now, reign, &core.machine.session_list(None, usize::MAX), &core.machine.tasks());
        self.ends.notify_one();
    }

    pub(super) fn pause(&self) {
        self.lock().keeper.end_reign();
        self.paused.send_replace(true);
    }

    pub(super) fn resume(&self) {
        self.paused.send_replace(false);
    }

    pub(super) fn expire(&self, session: SessionId) {
        let found = self.look(|machine| Some((machine.session_view(session)?.lease.0, machine.reign())));
        if let Some((generation, reign)) = found {
            let timer = Timer::Lease { session, generation };
            self.apply(Command::TimerFired { timer, reign, silent: Span::ZERO });
        }
    }

    pub(super) fn look<T>(&self, look: impl FnOnce(&StateMachine) -> T) -> T {
        look(&self.lock().machine)
    }

    pub(super) async fn until(&self, condition: impl Fn(&StateMachine) -> bool) {
        let mut applied = self.applied.subscribe();
        while !self.look(&condition) {
            if applied.changed().await.is_err() {
                return;
            }
        }
    }

    async fn while_paused(&self) {
        let mut paused = self.paused.subscribe();
        // The sender lives as long as this.
        let _ = paused.wait_for(|paused| !paused).await;
    }

    /// Ends the leases that are due, for ever.
    pub(super) async fn keep_leases(self: Arc<Self>) {
        loop {
            let now = self.clock.now();
            let due = self.lock().keeper.due(now);
            for command in due {
                let timer = match &command {
                    Command::TimerFired { timer, .. } => Some(*timer),
                    _ => None,
                };
                self.apply(command);
                if let Some(Timer::Task { task }) = timer {
                    self.lock().keeper.settled(task);
                }
            }
            let next = self.lock().keeper.next_end().unwrap_or(Mono(u64::MAX));
            tokio::select! {
                () = self.ends.notified() => {}
                () = tokio::time::sleep(clock::until(self.clock.now(), next)) => {}
            }
        }
    }
}

impl Core {
    fn tell(&mut self, event: Event) {
        let event = Arc::new(event);
        let tell = |session: &SessionId| {
            if let Some((_, ear)) = self.ears.get(session) {
                // A connection that is gone hears nothing.
                let _ = ear.send(Arc::clone(&event));
            }
        };
        match &*event {
            Event::Change { to, own, .. } => to.iter().chain(own).for_each(tell),
            Event::Closing { session, .. } => tell(session),
            Event::Ended { session, .. } => {
                tell(session);
                self.ears.remove(session);
            }
            Event::Lease { .. } | Event::Arm { .. } | Event::Disarm { .. } => {}
        }
    }
}

/// The authority of connections: the same memory, shared.
#[derive(Debug)]
pub(super) struct Shared(pub(super) Arc<Memory>);

impl Authority for Shared {
    fn propose(&self, command: Command) -> BoxFuture<'static, Result<Reply, NotApplied>> {
        let memory = Arc::clone(&self.0);
        Box::pin(async move {
            memory.while_paused().await;
            Ok(memory.apply(command))
        })
    }

    fn renew(&self, session: SessionId) -> BoxFuture<'static, Option<Vec<EntryId>>> {
        let memory = Arc::clone(&self.0);
        Box::pin(async move {
            let arrived = memory.clock.now();
            let (renewal, reign) = {
                let core = memory.lock();
                (core.keeper.arrived(session), core.keeper.reign()?)
            };
            match renewal {
                Renewal::Round => {}
                Renewal::Mark { reign } => {
                    memory.apply(Command::Mark { reign, sessions: vec![session] });
                }
                Renewal::Silence => return None,
            }
            let confirmed = memory.lock().keeper.confirm(session, arrived, reign);
            memory.ends.notify_one();
            confirmed.then(|| memory.look(|machine| machine.waiting(session, WAITING_MAX)))
        })
    }

    fn listen(&self, session: SessionId, generation: Generation) -> Result<(Events, Opened), Bye> {
        let mut core = self.0.lock();
        let opened = core.machine.opened(session).map_err(Bye::Refused)?;
        if opened.generation > generation {
            return Err(Bye::TakenOver);
        }
        let (ear, events) = mpsc::unbounded_channel();
        core.ears.insert(session, (generation, ear));
        Ok((events, opened))
    }

    fn total(&self, entry: EntryId) -> Option<Total> {
        self.0.look(|machine| machine.total(entry))
    }

    fn ttl_floor(&self) -> Span {
        self.0.ttl_floor
    }
}
