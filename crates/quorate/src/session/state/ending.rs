//! How a session ends: closed by an operator, lost at the service, or ended by its own program.

use super::{Known, Purpose, State};
use crate::advisory::Reason;
use crate::error::Error;
use crate::session::place::Stage;
use quorate_core::id::Secret;

impl State {
    /// An operator asks the session to stop: it acts no more from here on. Its users are told, and when all that
    /// held a seat have come to rest, or the deadline has passed, that is said to the service (RULES R11).
    pub(super) fn close(&mut self, why: String) {
        if self.closing.is_some() {
            return;
        }
        let session = self.known.map(|known| known.id).unwrap_or_default();
        self.closing = Some(why.clone());
        for place in self.places.values_mut() {
            place.stopped |= place.seat().is_none();
            let error = Error::Closed { session, why: why.clone() };
            place.end(error, Reason::Closed);
        }
        self.turned.notify_waiters();
        self.stop_if_all_have();
    }

    pub(super) fn stop_if_all_have(&mut self) {
        if self.closing.is_some() && self.places.values().all(|place| place.stopped) {
            self.stop();
        }
    }

    pub(super) fn stop(&mut self) {
        if self.over.is_none() && !self.retiring {
            self.end(None);
        }
    }

    /// The session ended at the service.
    pub(crate) fn ended(&mut self, reason: Reason, evidence: &str) {
        let Some(Known { id: session, .. }) = self.known else { return };
        if self.over.is_some() {
            return;
        }
        if reason == Reason::Closed {
            self.closing.get_or_insert(evidence.into());
        }
        if self.closing.is_some() || self.retiring {
            self.finish_by_own_call();
            return;
        }
        let error = Error::SessionLost { session, reason, evidence: evidence.into() };
        self.start_anew(&error, reason, evidence);
    }

    /// Everything in the old session is lost. Groups ask for a place in the next one (RULES R14), locks do not.
    fn start_anew(&mut self, error: &Error, reason: Reason, evidence: &str) {
        let ttl = self.ttl();
        self.known = None;
        self.live = false;
        self.secret = Secret(rand::random());
        // For a lease's length its users wait for the next session, and no longer (RULES R24).
        self.deadline = Some(self.clock.now() + ttl);
        (self.lapsed, self.silent) = (false, false);
        self.renew_connection = true;
        self.by_entry.clear();
        self.resyncs.clear();
        self.unsent.clear();
        for (_, mut call) in std::mem::take(&mut self.calls) {
            call.lose(error);
        }
        self.say_for_whom();
        let mut again = Vec::new();
        let mut gone = Vec::new();
        for (key, place) in &mut self.places {
            match place.stage {
                _ if place.unwanted => gone.push(*key),
                Stage::Leaving => place.left(),
                Stage::In | Stage::Asked if place.has_reader() => {
                    place.start_anew(evidence);
                    again.push((*key, place.op()));
                }
                _ => place.end(error.clone(), reason),
            }
        }
        gone.into_iter().for_each(|key| self.forget(key));
        for (key, op) in again {
            self.ask(op, Purpose::Join(key));
        }
        self.dirty = true;
        self.turned.notify_waiters();
    }

    pub(super) fn finish_by_own_call(&mut self) {
        let error = match (&self.closing, self.known) {
            (Some(why), Some(known)) => Error::Closed { session: known.id, why: why.clone() },
            _ => Error::Ended,
        };
        self.finish(error);
    }

    /// Nothing more happens here.
    pub(crate) fn finish(&mut self, error: Error) {
        if self.over.is_some() {
            return;
        }
        let reason = match error {
            Error::Closed { .. } => Reason::Closed,
            Error::Ended => Reason::Leave,
            _ => Reason::SessionLost,
        };
        for (_, mut call) in std::mem::take(&mut self.calls) {
            call.lose(&error);
        }
        for place in self.places.values_mut() {
            match (&place.stage, &error) {
                (Stage::Leaving, _) => place.left(),
                (Stage::In, Error::Ended) if place.handed => place.left(),
                _ => place.end(error.clone(), reason),
            }
            place.wake.all();
        }
        self.over = Some(error);
        self.live = false;
        self.dirty = true;
        self.turned.notify_waiters();
    }
}
