//! The calls of a session: each keeps its number until it is answered (RULES R21).

use super::{Answer, Call, PlaceKey, Purpose, State, malformed};
use crate::advisory::Reason;
use crate::error::{Code, Error};
use crate::proto;
use crate::session::place::{Need, Place, Stage, Wake};
use crate::wire;
use quorate_core::id::{Name, RequestId, SessionId, Token};
use quorate_core::state_machine::{Join, Op, Seat, Terms, Total};
use quorate_core::time::Mono;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

impl State {
    pub(super) fn ask(&mut self, op: Op, purpose: Purpose) -> RequestId {
        self.last_request = RequestId(self.last_request.0 + 1);
        let mut call = Call { op, purpose };
        if self.lapsed {
            call.fail(self.wait_lost(call.op_name()));
        }
        self.calls.insert(self.last_request, call);
        self.unsent.insert(self.last_request);
        self.dirty = true;
        self.last_request
    }

    /// The first call of a session that acts for another: a wait that came before could close a deadlock unseen.
    pub(super) fn say_for_whom(&mut self) {
        if let Some(session) = self.options.acts_for {
            self.ask(Op::ActsFor { session }, Purpose::ActsFor);
        }
    }

    /// Asks for a place.
    ///
    /// # Errors
    /// The session is over or is being closed.
    pub(crate) fn join(&mut self, join: Join, terms: Terms) -> Result<(PlaceKey, Arc<Wake>), Error> {
        if let Some(error) = &self.over {
            return Err(error.clone());
        }
        if let (Some(why), Some(known)) = (&self.closing, self.known) {
            return Err(Error::Closed { session: known.id, why: why.clone() });
        }
        self.last_place += 1;
        let key = PlaceKey(self.last_place);
        let place = Place::new(join, terms);
        let (wake, op) = (Arc::clone(&place.wake), place.op());
        self.by_group.entry(place.join.group.clone()).or_default().push(key);
        self.places.insert(key, place);
        self.ask(op, Purpose::Join(key));
        Ok((key, wake))
    }

    /// Gives a place up by the user's word: its holder has stopped.
    pub(crate) fn release(&mut self, key: PlaceKey, answer: Answer<()>) {
        let Some(place) = self.places.get_mut(&key) else {
            return resolve(answer, Ok(()));
        };
        place.stopped = true;
        match (&place.stage, place.entry) {
            (Stage::Asked, _) => {
                place.left();
                resolve(answer, Ok(()));
            }
            (Stage::In, Some(entry)) => {
                place.stage = Stage::Leaving;
                self.ask(Op::Release { entry }, Purpose::Release(key, answer));
            }
            (Stage::Ended(Error::Closed { .. }), _) => resolve(answer, Ok(())),
            (Stage::Ended(error), _) => resolve(answer, Err(error.clone())),
            _ => resolve(answer, Ok(())),
        }
        self.stop_if_all_have();
    }

    /// Nobody wants the place any more: gives it up in the background, whatever it turns out to be.
    pub(crate) fn abandon(&mut self, key: PlaceKey) {
        let Some(place) = self.places.get_mut(&key) else { return };
        place.unwanted = true;
        place.stopped = true;
        match place.stage {
            Stage::Left | Stage::Ended(_) => {
                self.forget(key);
            }
            _ => self.give_up(key),
        }
        self.stop_if_all_have();
    }

    /// A cancel that races its grant is answered with the grant, and then released (RULES R16).
    fn give_up(&mut self, key: PlaceKey) {
        let Some(place) = self.places.get_mut(&key) else { return };
        let (Stage::In, Some(entry)) = (&place.stage, place.entry) else { return };
        let seated = place.seat().is_some() || place.standing().is_none();
        place.stage = Stage::Leaving;
        if seated || place.has_reader() {
            self.ask(Op::Release { entry }, Purpose::Release(key, None));
        } else {
            self.ask(Op::Cancel { entry }, Purpose::Cancel(key));
        }
    }

    pub(super) fn give_up_unwanted(&mut self) {
        let unwanted: Vec<PlaceKey> =
            self.places.iter().filter(|(_, place)| place.unwanted).map(|(key, _)| *key).collect();
        unwanted.into_iter().for_each(|key| self.give_up(key));
    }

    /// The user has stopped and uses the seat no more: the service may pass it on. The place stays.
    pub(crate) fn stopped(&mut self, key: PlaceKey, answer: Answer<()>) {
        let Some(place) = self.places.get_mut(&key) else { return resolve(answer, Err(Error::Ended)) };
        let seat = place.seat();
        let acted = matches!(place.stage, Stage::In) && place.stop();
        match (&place.stage, place.entry) {
            (Stage::In, Some(entry)) if acted => {
                self.ask(Op::Stopped { entry }, Purpose::Stopped(key, seat, answer));
            }
            (Stage::In | Stage::Asked, _) => resolve(answer, Ok(())),
            (Stage::Ended(Error::Closed { .. }), _) => {
                place.stopped = true;
                resolve(answer, Ok(()));
                self.stop_if_all_have();
            }
            (Stage::Ended(error), _) => resolve(answer, Err(error.clone())),
            _ => resolve(answer, Err(Error::Ended)),
        }
    }

    fn stop_answered(
        &mut self,
        key: PlaceKey,
        seat: Option<Seat>,
        answer: Answer<()>,
        reply: proto::answer::Reply,
    ) {
        use proto::answer::Reply;
        if let Some(place) = self.places.get_mut(&key) {
            match &reply {
                Reply::Released(_) => place.deleted(),
                _ if place.stop_heard(seat) == Need::Total => self.resyncs.extend(place.entry),
                _ => {}
            }
        }
        match reply {
            Reply::Refused(refusal) => resolve(answer, Err(refused(&refusal, None))),
            _ => resolve(answer, Ok(())),
        }
    }

    /// The user's work goes on. What is not due is not sent.
    pub(crate) fn progress(&mut self, now: Mono, key: PlaceKey) {
        let Some(place) = self.places.get_mut(&key).filter(|place| place.entry.is_some()) else { return };
        if let (true, Some(entry)) = (place.signs(now), place.entry) {
            self.ask(Op::Progress { entry }, Purpose::Progress(key));
        }
    }

    /// Changes what the others are told of a member.
    pub(crate) fn describe(
        &mut self,
        key: PlaceKey,
        metadata: BTreeMap<String, String>,
        answer: oneshot::Sender<Result<(), Error>>,
    ) {
        let Some(place) = self.places.get_mut(&key) else {
            return resolve(Some(answer), Err(Error::Ended));
        };
        place.join.metadata.clone_from(&metadata);
        match (&place.stage, place.entry) {
            (Stage::Asked, _) => {
                place.described = true;
                resolve(Some(answer), Ok(()));
            }
            (Stage::In, Some(entry)) => {
                self.ask(Op::Describe { entry, metadata }, Purpose::Describe(Some(answer)));
            }
            (Stage::Ended(error), _) => resolve(Some(answer), Err(error.clone())),
            _ => resolve(Some(answer), Err(Error::Ended)),
        }
    }

    /// Ends the session by its program's word.
    pub(crate) fn end(&mut self, answer: Answer<()>) {
        if let Some(error) = self.over.clone() {
            let done = matches!(error, Error::Ended | Error::Closed { .. });
            return resolve(answer, if done { Ok(()) } else { Err(error) });
        }
        if self.known.is_none() {
            self.finish(Error::Ended);
            return resolve(answer, Ok(()));
        }
        self.retiring = true;
        self.dirty = true;
        for place in self.places.values_mut() {
            place.stopped = true;
        }
        let ending = self.calls.values_mut().find_map(|call| match &mut call.purpose {
            Purpose::End(answers) => Some(answers),
            _ => None,
        });
        match ending {
            Some(answers) => answers.extend(answer),
            None => {
                self.ask(Op::End, Purpose::End(answer.into_iter().collect()));
            }
        }
    }

    /// Nobody waits for a session that is retiring: it is left to its lease if it cannot be ended.
    pub(crate) fn is_abandoned(&self) -> bool {
        let ending = |call: &Call| matches!(&call.purpose, Purpose::End(answers) if !answers.is_empty());
        self.retiring && self.lapsed && !self.calls.values().any(ending)
    }

    pub(super) fn answered(&mut self, request: RequestId, reply: proto::answer::Reply) -> Result<(), Error> {
        use proto::answer::Reply;
        if let Reply::Refused(refusal) = &reply
            && refusal.code() == Code::NoSession
        {
            self.ended(Reason::SessionLost, &refusal.message);
            return Ok(());
        }
        let Some(call) = self.calls.remove(&request) else { return Ok(()) };
        self.unsent.remove(&request);
        match (call.purpose, reply) {
            (Purpose::Join(key), Reply::Joined(total)) => {
                self.joined(key, wire::from_total(total).map_err(malformed)?);
            }
            (Purpose::Join(key), Reply::Refused(refusal)) => self.join_refused(key, &refusal),
            (Purpose::Cancel(key), Reply::Granted(_)) => {
                if let Some(entry) = self.places.get(&key).and_then(|place| place.entry) {
                    self.ask(Op::Release { entry }, Purpose::Release(key, None));
                }
            }
            (Purpose::Cancel(key), _) => self.forget(key),
            (Purpose::Release(key, answer), reply) => self.released(key, answer, reply),
            (Purpose::Describe(answer), Reply::Refused(refusal)) => {
                resolve(answer, Err(refused(&refusal, None)));
            }
            (Purpose::Describe(answer), _) => resolve(answer, Ok(())),
            (Purpose::Stopped(key, seat, answer), reply) => self.stop_answered(key, seat, answer, reply),
            (Purpose::Progress(key), _) => {
                if let Some(place) = self.places.get_mut(&key) {
                    place.signed();
                }
            }
            // A service of an older level refuses it, and sees less.
            (Purpose::ActsFor, _) => {}
            (Purpose::End(answers), _) => {
                answers.into_iter().for_each(|answer| resolve(Some(answer), Ok(())));
                self.finish_by_own_call();
            }
            (Purpose::Join(_), _) => return Err(Error::Protocol("no answer to a join".into())),
        }
        Ok(())
    }

    fn joined(&mut self, key: PlaceKey, total: Total) {
        let entry = total.entry;
        let Some(place) = self.places.get_mut(&key) else { return };
        if !matches!(place.stage, Stage::Asked) {
            // It was left while it was asked for.
            self.ask(Op::Release { entry }, Purpose::Release(key, None));
            return;
        }
        self.by_entry.insert(entry, key);
        if place.joined(total) == Need::Total {
            self.resyncs.push(entry);
        }
        if place.unwanted {
            self.give_up(key);
        } else if std::mem::take(&mut place.described) {
            let metadata = place.join.metadata.clone();
            self.ask(Op::Describe { entry, metadata }, Purpose::Describe(None));
        }
    }

    fn join_refused(&mut self, key: PlaceKey, refusal: &proto::Refusal) {
        let Some(place) = self.places.get_mut(&key) else { return };
        let name = place.join.group.clone();
        let unwanted = place.unwanted;
        place.end(refused(refusal, Some(&name)), Reason::Refused);
        if unwanted {
            self.forget(key);
        }
    }

    fn released(&mut self, key: PlaceKey, answer: Answer<()>, reply: proto::answer::Reply) {
        if let Some(place) = self.places.get_mut(&key) {
            place.left();
            if let Some(entry) = place.entry {
                self.by_entry.remove(&entry);
            }
            if !place.has_reader() || place.unwanted {
                self.forget(key);
            }
        }
        match reply {
            // It is not there any more, which is what was wanted.
            proto::answer::Reply::Refused(refusal) if refusal.code() != Code::NoEntry => {
                resolve(answer, Err(refused(&refusal, None)));
            }
            _ => resolve(answer, Ok(())),
        }
    }

    /// Forgets a place whose handle is gone.
    pub(super) fn forget(&mut self, key: PlaceKey) {
        let Some(place) = self.places.remove(&key) else { return };
        if let Some(entry) = place.entry {
            self.by_entry.remove(&entry);
        }
        if let Some(keys) = self.by_group.get_mut(&place.join.group) {
            keys.retain(|other| *other != key);
            if keys.is_empty() {
                self.by_group.remove(&place.join.group);
            }
        }
        place.wake.all();
    }
}

impl Call {
    pub(super) fn op_name(&self) -> String {
        match &self.op {
            Op::Join(join) | Op::JoinOn(join, _) => format!("joining {}", join.group),
            Op::Stopped { .. } => "the word that it has stopped".into(),
            Op::Progress { .. } => "a sign of progress".into(),
            Op::Release { .. } => "a release".into(),
            Op::Cancel { .. } => "a cancel".into(),
            Op::Describe { .. } => "a description".into(),
            Op::End => "the end of the session".into(),
            Op::ActsFor { .. } => "the word for whom it acts".into(),
        }
    }

    /// Tells whoever waits that the wait is over; the call itself stays.
    pub(super) fn fail(&mut self, error: Error) {
        match &mut self.purpose {
            Purpose::Release(_, answer) | Purpose::Describe(answer) | Purpose::Stopped(_, _, answer) => {
                resolve(answer.take(), Err(error));
            }
            Purpose::End(answers) => {
                answers.drain(..).for_each(|answer| resolve(Some(answer), Err(error.clone())));
            }
            Purpose::Join(_) | Purpose::Cancel(_) | Purpose::Progress(_) | Purpose::ActsFor => {}
        }
    }

    /// The session is gone: what was to be given up is, the rest was not done as far as is known.
    pub(super) fn lose(&mut self, error: &Error) {
        match &mut self.purpose {
            Purpose::Release(_, answer) => resolve(answer.take(), Ok(())),
            Purpose::End(answers) => answers.drain(..).for_each(|answer| resolve(Some(answer), Ok(()))),
            _ => self.fail(error.clone()),
        }
    }
}

fn resolve<T>(answer: Answer<T>, result: Result<T, Error>) {
    if let Some(answer) = answer {
        // The asker may have gone; then nobody is to be told.
        let _ = answer.send(result);
    }
}

/// A refusal as an error; `name` is what was asked for.
pub(crate) fn refused(refusal: &proto::Refusal, name: Option<&Name>) -> Error {
    let message = refusal.message.clone();
    match (refusal.code(), name) {
        (Code::Busy, Some(name)) => {
            let holder = refusal.holder.clone().unwrap_or_default();
            let token = holder.seat.map(|seat| Token(seat.token)).filter(|token| token.0 > 0);
            let (holder, session) = (holder.name, SessionId(holder.session));
            Error::Busy { name: name.clone(), holder, session, token, message }
        }
        (Code::LeaseTooShort, _) => {
            let floor = Duration::from_millis(refusal.floor_ms.unwrap_or(0));
            Error::LeaseTooShort { floor, message }
        }
        (Code::Deadlock, Some(name)) => Error::Deadlock { name: name.clone(), message },
        (code, _) => Error::Refused { code, message },
    }
}
