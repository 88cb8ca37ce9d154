//! One connection of a session, as the service sees it: what each frame may cause, and what is sent back.
//!
//! Problem: connections break, double and lag, while the session behind them must lose nothing.
//! Rule: the first frame opens or attaches; the newest connection wins; a keepalive is answered only once
//! it is confirmed; a client that does not read loses changes, is told how many, and gets a total.
//! Safety: no frame changes anything but through the log. Source: RULES R18, R21-R24.

use crate::frame::{Bye, ClientFrame, Outcome, ServerFrame};
use crate::id::{EntryId, Generation, Name, RequestId, SessionId, Version};
use crate::state_machine::{
    Change, Changed, Command, Event, Face, OnDisconnect, Op, Opened, Refusal, Reply, Total,
};
use crate::time::Span;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// How many changes wait for a client that does not read. Beyond it they are dropped and become a gap; the
/// seat is not touched (RULES R23).
pub const CHANGES_MAX: usize = 1_024;

/// How many calls of one connection may be under way. Beyond it a call is answered *not done*.
pub const CALLS_MAX: usize = 1_024;

/// One connection.
#[derive(Debug)]
pub struct Edge {
    ttl_floor: Span,
    phase: Phase,
    on_disconnect: OnDisconnect,
    under_way: usize,
    places: BTreeMap<EntryId, Told>,
    changes: VecDeque<Arc<Change>>,
    gaps: BTreeMap<Name, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing was said yet.
    New,
    /// The first frame is on its way through the log.
    Greeting,
    /// The session is open on this connection.
    Speaking { session: SessionId, generation: Generation },
    /// Nothing more is said.
    Over,
}

/// What comes in.
#[derive(Debug)]
pub enum Input {
    /// A frame of the client.
    Frame(ClientFrame),
    /// A proposal of this connection was applied.
    Applied(Cause, Reply),
    /// A proposal of this connection was not applied, or it is not known.
    NotApplied(Cause, Outcome, String),
    /// The connection hears its session's events from now on; the session as it is now, so that nothing
    /// falls between the two.
    Listening(Opened),
    /// The connection cannot be served.
    Refused(Bye),
    /// A keepalive was confirmed.
    Renewed {
        /// Its number.
        seq: u64,
        /// The places that wait.
        waiting: Vec<EntryId>,
    },
    /// The log decided something that this session is told.
    Event(Arc<Event>),
    /// Something that was under way came to nothing: a keepalive that is not confirmed.
    Nothing,
    /// The client closed the connection.
    Hangup,
}

/// What an opening or the answer of a join has told of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    group: Name,
    version: Version,
}

impl Told {
    fn by(total: &Total) -> Self {
        Self { group: total.group.clone(), version: total.version }
    }
}

/// What a proposal was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The first frame.
    Greeting,
    /// A call.
    Call(RequestId),
    /// The end of the connection.
    Hangup,
}

/// What goes out, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Bring it to the log, and come back with the outcome.
    Propose(Cause, Command),
    /// Register this connection for the session's events, then read the session, and come back with it.
    Listen(SessionId, Generation),
    /// Renew the lease, and come back once it is confirmed. Silence if it is not.
    Renew {
        /// The session.
        session: SessionId,
        /// The keepalive's number.
        seq: u64,
    },
    /// Read a place, and send its total.
    Total(EntryId),
    /// Send a frame. Changes are not among them: those are taken by [`Edge::next_change`].
    Send(ServerFrame),
    /// End the stream.
    Close,
}

impl Edge {
    /// A connection that has said nothing. A lease shorter than `ttl_floor` is refused (RULES R7).
    pub fn new(ttl_floor: Span) -> Self {
        Self {
            ttl_floor,
            phase: Phase::New,
            on_disconnect: OnDisconnect::Hold,
            under_way: 0,
            places: BTreeMap::new(),
            changes: VecDeque::new(),
            gaps: BTreeMap::new(),
        }
    }

    /// The session that speaks here.
    pub fn session(&self) -> Option<SessionId> {
        match self.phase {
            Phase::Speaking { session, .. } => Some(session),
            _ => None,
        }
    }

    /// Whether nothing more will be said.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// The one way in.
    pub fn handle(&mut self, input: Input) -> Vec<Effect> {
        match (self.phase, input) {
            (Phase::Over, _) => Vec::new(),
            (Phase::New, Input::Frame(frame)) => self.greet(frame),
            (Phase::Speaking { session, generation }, Input::Frame(frame)) => {
                self.speak(session, generation, frame)
            }
            (_, Input::Frame(_)) => self.bye(Bye::Protocol("a frame before the session was open".into())),
            (_, Input::Applied(Cause::Greeting, reply)) => self.greeted(reply),
            (_, Input::Listening(opened)) => self.listening(opened),
            (_, Input::Refused(bye)) => self.bye(bye),
            (_, Input::NotApplied(Cause::Greeting, _, why)) => self.bye(Bye::Unavailable(why)),
            (_, Input::Applied(Cause::Call(request), reply)) => self.answer(request, reply),
            (_, Input::NotApplied(Cause::Call(request), outcome, why)) => {
                self.under_way = self.under_way.saturating_sub(1);
                send(ServerFrame::Unanswered { request, outcome, why })
            }
            (_, Input::Applied(Cause::Hangup, _) | Input::NotApplied(Cause::Hangup, ..)) => Vec::new(),
            (_, Input::Renewed { seq, waiting }) => send(ServerFrame::Alive { seq, waiting }),
            (_, Input::Event(event)) => self.event(&event),
            (_, Input::Nothing) => Vec::new(),
            (_, Input::Hangup) => self.hangup(),
        }
    }

    fn greet(&mut self, frame: ClientFrame) -> Vec<Effect> {
        let command = match frame {
            ClientFrame::Open { ttl, .. } if ttl < self.ttl_floor => {
                let floor = self.ttl_floor;
                return self.bye(Bye::Refused(Refusal::LeaseTooShort { floor, asked: ttl }));
            }
            ClientFrame::Open { secret, ttl, on_disconnect, label } => {
                Command::Open { secret, ttl, on_disconnect, label }
            }
            ClientFrame::Attach { session, secret, lapsed } => Command::Attach { session, secret, lapsed },
            _ => {
                let what = "the first frame must open a session or attach to one";
                return self.bye(Bye::Protocol(what.into()));
            }
        };
        self.phase = Phase::Greeting;
        alloc::vec![Effect::Propose(Cause::Greeting, command)]
    }

    fn greeted(&mut self, reply: Reply) -> Vec<Effect> {
        match reply {
            Reply::Opened(Opened { session, generation, on_disconnect, .. }) => {
                // Known from here on, so that a hangup before the first word is a leave too.
                self.phase = Phase::Speaking { session, generation };
                self.on_disconnect = on_disconnect;
                alloc::vec![Effect::Listen(session, generation)]
            }
            Reply::Refused(refusal) => self.bye(Bye::Refused(refusal)),
            other => self.bye(Bye::Protocol(alloc::format!("no answer to an opening: {other:?}"))),
        }
    }

    fn listening(&mut self, opened: Opened) -> Vec<Effect> {
        for total in &opened.totals {
            self.places.insert(total.entry, Told::by(total));
        }
        send(ServerFrame::Opened(opened))
    }

    fn speak(&mut self, session: SessionId, generation: Generation, frame: ClientFrame) -> Vec<Effect> {
        match frame {
            ClientFrame::KeepAlive { seq } => alloc::vec![Effect::Renew { session, seq }],
            ClientFrame::Resync { entry } => alloc::vec![Effect::Total(entry)],
            ClientFrame::Call { request, .. } if self.under_way >= CALLS_MAX => {
                let why = alloc::format!("{CALLS_MAX} calls of this connection are under way");
                send(ServerFrame::Unanswered { request, outcome: Outcome::NotDone, why })
            }
            ClientFrame::Call { request, acknowledged, op } => {
                self.under_way += 1;
                if let Op::Release { entry } | Op::Cancel { entry } = &op {
                    self.forget(*entry);
                }
                let command = Command::Call { session, generation, request, acknowledged, op };
                alloc::vec![Effect::Propose(Cause::Call(request), command)]
            }
            ClientFrame::Open { .. } | ClientFrame::Attach { .. } => {
                self.bye(Bye::Protocol("a second opening on one stream".into()))
            }
        }
    }

    fn forget(&mut self, entry: EntryId) {
        self.places.remove(&entry);
    }

    fn answer(&mut self, request: RequestId, reply: Reply) -> Vec<Effect> {
        self.under_way = self.under_way.saturating_sub(1);
        if let Reply::Joined(total) = &reply {
            self.places.insert(total.entry, Told::by(total));
            let mut changes = core::mem::take(&mut self.changes);
            changes.retain(|change| !self.is_told(change));
            self.changes = changes;
        }
        if matches!(reply, Reply::Refused(Refusal::StaleConnection { .. })) {
            return self.bye(Bye::TakenOver);
        }
        send(ServerFrame::Reply { request, reply })
    }

    fn event(&mut self, event: &Event) -> Vec<Effect> {
        match event {
            Event::Change { to, own, change } => self.change(to, own, change),
            Event::Closing { why, .. } => send(ServerFrame::Closing { why: why.clone() }),
            Event::Ended { reason, evidence, .. } => {
                self.phase = Phase::Over;
                let ended = ServerFrame::Ended { reason: *reason, evidence: evidence.clone() };
                alloc::vec![Effect::Send(ended), Effect::Close]
            }
            Event::Lease { .. } | Event::Arm { .. } | Event::Disarm { .. } => Vec::new(),
        }
    }

    fn change(&mut self, to: &[SessionId], own: &[SessionId], change: &Change) -> Vec<Effect> {
        let Phase::Speaking { session, .. } = self.phase else { return Vec::new() };
        if to.contains(&session) {
            self.push(Arc::new(change.clone()));
        } else if own.contains(&session) {
            let changed: Vec<_> = change.changed.iter().filter(|c| c.session == session).cloned().collect();
            let change = Change { changed, ..change.clone() };
            if !change.changed.is_empty() && !self.is_told(&change) {
                self.push(Arc::new(change));
            }
        }
        Vec::new()
    }

    /// Whether the answers of joins have told all of a change already; never that a place is gone. In a group it
    /// counts nevertheless, since there a client looks for what is missing between two versions.
    fn is_told(&self, change: &Change) -> bool {
        let told = |changed: &Changed| {
            let told = self.places.get(&changed.entry);
            changed.after.is_some() && told.is_some_and(|told| change.version <= told.version)
        };
        change.face != Face::Group && change.changed.iter().all(told)
    }

    /// Queues a change; if the client lags too far behind, its group's changes become a gap.
    fn push(&mut self, change: Arc<Change>) {
        if let Some(missed) = self.gaps.get_mut(&change.group) {
            *missed += 1;
            return;
        }
        if self.changes.len() >= CHANGES_MAX {
            let group = change.group.clone();
            let before = self.changes.len();
            self.changes.retain(|waiting| waiting.group != group);
            let missed = (before - self.changes.len()) as u64 + 1;
            self.gaps.insert(group, missed);
            return;
        }
        self.changes.push_back(change);
    }

    /// Whether something waits to be taken by [`Edge::next_change`].
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty() || !self.gaps.is_empty()
    }

    /// The next change to send, when the client reads again. A gap comes with the totals to read after it.
    pub fn next_change(&mut self) -> Vec<Effect> {
        if let Some(change) = self.changes.pop_front() {
            return send(ServerFrame::Change(change));
        }
        let Some((group, missed)) = self.gaps.pop_first() else { return Vec::new() };
        let places = self.places.iter().filter(|(_, told)| told.group == group);
        let mut effects: Vec<Effect> = places.map(|(entry, _)| Effect::Total(*entry)).collect();
        effects.insert(0, Effect::Send(ServerFrame::Gap { group, missed }));
        effects
    }

    /// A closed connection is a leave only if the session asked for it (RULES R18).
    fn hangup(&mut self) -> Vec<Effect> {
        let phase = core::mem::replace(&mut self.phase, Phase::Over);
        match (phase, self.on_disconnect) {
            (Phase::Speaking { session, generation }, OnDisconnect::Release) => {
                let command = Command::Disconnected { session, generation };
                alloc::vec![Effect::Propose(Cause::Hangup, command), Effect::Close]
            }
            _ => alloc::vec![Effect::Close],
        }
    }

    fn bye(&mut self, bye: Bye) -> Vec<Effect> {
        self.phase = Phase::Over;
        alloc::vec![Effect::Send(ServerFrame::Bye(bye)), Effect::Close]
    }
}

fn send(frame: ServerFrame) -> Vec<Effect> {
    alloc::vec![Effect::Send(frame)]
}
