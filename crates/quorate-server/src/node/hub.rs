//! Who hears what: the connections of this node, one a session, and the events of the log in its order.

use quorate::service::Events;
use quorate_core::id::{Generation, SessionId};
use quorate_core::state_machine::Event;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// The listening connections.
#[derive(Debug, Default)]
pub(super) struct Hub {
    ears: Mutex<BTreeMap<SessionId, Ear>>,
}

#[derive(Debug)]
struct Ear {
    generation: Generation,
    sender: mpsc::UnboundedSender<Arc<Event>>,
}

impl Hub {
    /// Registers a connection; the older one of the session hears no more. `None` if a newer one listens.
    pub(super) fn listen(&self, session: SessionId, generation: Generation) -> Option<Events> {
        let mut ears = self.lock();
        if ears.get(&session).is_some_and(|ear| ear.generation > generation) {
            return None;
        }
        let (sender, events) = mpsc::unbounded_channel();
        ears.insert(session, Ear { generation, sender });
        Some(events)
    }

    /// Tells everybody concerned; a connection that is gone is forgotten.
    pub(super) fn publish(&self, event: Event) {
        let mut ears = self.lock();
        if ears.is_empty() {
            return;
        }
        let event = Arc::new(event);
        match &*event {
            Event::Change { to, own, .. } => {
                for session in to.iter().chain(own) {
                    tell(&mut ears, *session, &event);
                }
            }
            Event::Closing { session, .. } => tell(&mut ears, *session, &event),
            Event::Ended { session, .. } => {
                tell(&mut ears, *session, &event);
                ears.remove(session);
            }
            Event::Lease { .. } | Event::Arm { .. } | Event::Disarm { .. } => {}
        }
    }

    /// Whether a connection of the session listens here.
    pub(super) fn hears(&self, session: SessionId) -> bool {
        self.lock().get(&session).is_some_and(|ear| !ear.sender.is_closed())
    }

    /// How many connections listen here.
    pub(super) fn len(&self) -> usize {
        let mut ears = self.lock();
        ears.retain(|_, ear| !ear.sender.is_closed());
        ears.len()
    }

    /// Forgets everybody, which ends their connections.
    pub(super) fn close(&self) {
        self.lock().clear();
    }

    /// No code that holds the lock can panic, so a poisoned one is whole.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Ear>> {
        self.ears.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(ears: &mut BTreeMap<SessionId, Ear>, session: SessionId, event: &Arc<Event>) {
    if let Some(ear) = ears.get(&session)
        && ear.sender.send(Arc::clone(event)).is_err()
    {
        ears.remove(&session);
    }
}
