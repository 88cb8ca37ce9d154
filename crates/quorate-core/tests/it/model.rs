//! What an outside observer knows of the service: built from commands and answers alone, and held against the
//! machine after every step.

use quorate_core::id::*;
use quorate_core::state_machine::*;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) type Views = BTreeMap<Name, GroupView>;

/// All groups as they are.
pub(crate) fn views(machine: &StateMachine, names: &[Name]) -> Views {
    let view = |name: &Name| Some((name.clone(), machine.group_view(name, usize::MAX)?));
    names.iter().filter_map(view).collect()
}

/// A session that is alive.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) connection: Generation,
    pub(crate) lease: Generation,
    pub(crate) release: bool,
    pub(crate) closing: bool,
    secret: Secret,
    acknowledged: RequestId,
}

/// A place that was taken.
#[derive(Clone, Debug)]
pub(crate) struct Comer {
    pub(crate) session: SessionId,
    pub(crate) group: Name,
    pub(crate) weight: u32,
    /// Since when it is in the queue: an index of the log.
    pub(crate) senior: u64,
    pub(crate) terms: Terms,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) sessions: BTreeMap<SessionId, Known>,
    pub(crate) entries: BTreeMap<EntryId, Comer>,
    /// Those that a transfer, or a holder that stopped, has put to the front.
    pub(crate) front: BTreeSet<EntryId>,
    pub(crate) armed: BTreeSet<TaskId>,
    pub(crate) reign: Reign,
    pub(crate) greatest: Token,
    pub(crate) performed: BTreeMap<(SessionId, RequestId), Reply>,
}

/// What a command must have come to, by what was known before it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The session that ended.
    pub(crate) ended: Option<SessionId>,
    /// The holder's own word: whose, and of which place.
    pub(crate) word: Option<(SessionId, EntryId)>,
    /// The session came back and said that its own deadline had passed.
    pub(crate) lapsed: Option<SessionId>,
    /// It must have changed nothing: late, doubled, or of an older connection.
    pub(crate) void: bool,
    /// The answer that the call had before.
    pub(crate) answered: Option<Reply>,
}

impl Model {
    /// What this command must come to.
    pub(crate) fn expect(&self, command: &Command) -> Facts {
        match command {
            Command::Attach { session, secret, lapsed } => match self.sessions.get(session) {
                Some(known) if known.secret == *secret => {
                    Facts { lapsed: (*lapsed && !known.closing).then_some(*session), ..Facts::default() }
                }
                _ => void(),
            },
            Command::TimerFired { timer: Timer::Lease { session, generation }, reign, .. } => {
                let lease = self.sessions.get(session).map(|known| known.lease);
                let due = *reign == self.reign && lease == Some(*generation);
                if due { Facts { ended: Some(*session), ..Facts::default() } } else { void() }
            }
            Command::TimerFired { timer: Timer::Task { task }, reign, .. } => {
                if *reign == self.reign && self.armed.contains(task) { Facts::default() } else { void() }
            }
            Command::Mark { reign, .. } | Command::Checkpoint { reign, .. } if *reign != self.reign => void(),
            Command::Disconnected { session, generation } => match self.sessions.get(session) {
                Some(known) if known.release && known.connection == *generation => {
                    Facts { ended: Some(*session), ..Facts::default() }
                }
                _ => void(),
            },
            Command::Call { session, generation, request, acknowledged, op } => {
                self.expect_call(*session, *generation, *request, *acknowledged, op)
            }
            _ => Facts::default(),
        }
    }

    fn expect_call(
        &self,
        session: SessionId,
        generation: Generation,
        request: RequestId,
        acknowledged: RequestId,
        op: &Op,
    ) -> Facts {
        let Some(known) = self.sessions.get(&session) else { return void() };
        if known.connection != generation || request <= known.acknowledged.max(acknowledged) {
            return void();
        }
        if let Some(answered) = self.performed.get(&(session, request)) {
            return Facts { answered: Some(answered.clone()), ..void() };
        }
        let owned = |entry: &EntryId| self.entries.get(entry).is_some_and(|comer| comer.session == session);
        match op {
            Op::End => Facts { ended: Some(session), ..Facts::default() },
            Op::Release { entry } | Op::Stopped { entry } if owned(entry) => {
                Facts { word: Some((session, *entry)), ..Facts::default() }
            }
            _ => Facts::default(),
        }
    }

    /// Takes in what came of it.
    pub(crate) fn learn(
        &mut self,
        index: u64,
        command: &Command,
        facts: &Facts,
        applied: &Applied,
        was: &Views,
    ) {
        self.learn_sessions(command, facts, applied);
        match (command, &applied.reply) {
            (Command::Begin { .. }, Reply::Began { reign }) => self.reign = *reign,
            (Command::TimerFired { timer: Timer::Task { task }, .. }, _) if !facts.void => {
                self.armed.remove(task);
            }
            (Command::Call { session, request, acknowledged, op, .. }, reply) if !facts.void => {
                self.performed.insert((*session, *request), reply.clone());
                if let Some(known) = self.sessions.get_mut(session) {
                    known.acknowledged = known.acknowledged.max(*acknowledged);
                }
                if let (Op::JoinOn(join, terms), Reply::Joined(total)) = (op, reply) {
                    let senior = self.seniority(join, index, was);
                    let comer = Comer {
                        session: *session,
                        group: join.group.clone(),
                        weight: join.weight,
                        senior,
                        terms: terms.clone(),
                    };
                    self.entries.insert(total.entry, comer);
                }
            }
            _ => {}
        }
        if let Some(promised) = facts.word.or(facts.ended.map(|session| (session, EntryId(0)))) {
            self.put_to_the_front(promised, index, command, was);
        }
        for event in &applied.events {
            match event {
                Event::Arm { task, .. } => drop(self.armed.insert(*task)),
                Event::Disarm { task } => drop(self.armed.remove(task)),
                Event::Closing { session, .. } => {
                    self.sessions.get_mut(session).expect("it is alive").closing = true;
                }
                _ => {}
            }
        }
    }

    fn learn_sessions(&mut self, command: &Command, facts: &Facts, applied: &Applied) {
        match (command, &applied.reply) {
            (Command::Open { secret, on_disconnect, .. }, Reply::Opened(opened))
                if !self.sessions.contains_key(&opened.session) =>
            {
                let known = Known {
                    connection: Generation(1),
                    lease: Generation(1),
                    release: *on_disconnect == OnDisconnect::Release,
                    closing: false,
                    secret: *secret,
                    acknowledged: RequestId(0),
                };
                self.sessions.insert(opened.session, known);
            }
            (Command::Open { .. } | Command::Attach { .. }, Reply::Opened(opened)) => {
                let known = self.sessions.get_mut(&opened.session).expect("it is alive");
                known.connection = Generation(known.connection.0 + 1);
                known.lease = Generation(known.lease.0 + u64::from(!known.closing));
            }
            (Command::Mark { sessions, .. }, Reply::Done) => {
                for session in sessions {
                    if let Some(known) = self.sessions.get_mut(session).filter(|known| !known.closing) {
                        known.lease = Generation(known.lease.0 + 1);
                    }
                }
            }
            _ => {}
        }
        if let Some(session) = facts.ended {
            self.sessions.remove(&session);
        }
    }

    /// One that comes back within its grace is as early as it was.
    fn seniority(&self, join: &Join, index: u64, was: &Views) -> u64 {
        let reserved = |m: &&Member| m.place.role == Role::Reserved && m.name == join.name;
        let away = was.get(&join.group).into_iter().flat_map(|view| &view.members).filter(reserved);
        let kept = away.map(|member| member.entry).min().and_then(|entry| self.entries.get(&entry));
        match kept {
            Some(kept) if join.kind != MemberKind::Observer => kept.senior,
            _ => index,
        }
    }

    /// A holder is gone, or has stopped: those that its seat was promised to come first, else the first that
    /// waits, and itself last.
    fn put_to_the_front(
        &mut self,
        (session, entry): (SessionId, EntryId),
        index: u64,
        command: &Command,
        was: &Views,
    ) {
        for view in was.values() {
            let holder = |h: &&Holder| h.entry == entry || (entry == EntryId(0) && h.session == session);
            let Some(holder) = view.holders.iter().find(holder) else { continue };
            let pending = view.members.iter().filter(|member| member.place.role == Role::Pending);
            self.front.extend(pending.map(|member| member.entry));
            let stopped = matches!(command, Command::Call { op: Op::Stopped { .. }, .. });
            if stopped && holder.draining.as_ref().is_none_or(|why| !is_promised(why)) {
                self.front.extend(self.first(view));
                if holder.seat.no.0 < view.summary.seats {
                    self.entries.get_mut(&holder.entry).expect("it is known").senior = index;
                }
            }
        }
    }

    /// The place in the order of a queue: smaller is earlier.
    pub(crate) fn key(&self, view: &GroupView, entry: EntryId) -> (u32, u64) {
        let comer = &self.entries[&entry];
        let by_weight = view.policy.order == Some(Order::Weight);
        (if by_weight { u32::MAX - comer.weight } else { 0 }, comer.senior)
    }

    fn first(&self, view: &GroupView) -> Option<EntryId> {
        let not_promised = view.waiters.iter().map(|waiter| waiter.entry);
        not_promised.min_by_key(|entry| (!self.front.contains(entry), self.key(view, *entry)))
    }
}

/// Whether a drain is in somebody's favour: a transfer, or a heavier member.
pub(crate) fn is_promised(why: &str) -> bool {
    why.starts_with("a transfer to") || why.contains(" is heavier ")
}

fn void() -> Facts {
    Facts { void: true, ..Facts::default() }
}
