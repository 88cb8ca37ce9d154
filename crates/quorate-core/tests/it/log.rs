//! A log in memory: applies commands in order, and says what came of them in few words.

use quorate_core::id::{
    ClusterId, EntryId, Generation, LogIndex, Name, Reign, RequestId, Secret, SessionId, Token,
};
use quorate_core::state_machine::*;
use quorate_core::time::{Span, Wall};
use std::collections::BTreeMap;

pub(crate) const TTL: Span = Span::from_secs(2);

#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) machine: StateMachine,
    pub(crate) index: u64,
    /// What the proposer's wall clock says; nothing may depend on it.
    pub(crate) at: u64,
    pub(crate) history: Vec<(LogIndex, Proposal)>,
    requests: BTreeMap<SessionId, u64>,
}

impl Log {
    /// A founded cluster in its first reign.
    pub(crate) fn founded() -> Self {
        let mut log = Self::default();
        let limits = Limits { level: WHOLE_GROUP, ..Limits::default() };
        log.apply(Command::Found { cluster: ClusterId(7), limits });
        log.begin();
        log
    }

    pub(crate) fn apply(&mut self, command: Command) -> Applied {
        self.index += 1;
        let proposal = Proposal { at: Wall(self.at), command };
        let applied = self.machine.apply(LogIndex(self.index), &proposal);
        self.history.push((LogIndex(self.index), proposal));
        applied
    }

    pub(crate) fn begin(&mut self) -> Reign {
        match self.apply(Command::Begin { node: quorate_core::id::NodeId(1), nonce: 1 }).reply {
            Reply::Began { reign } => reign,
            other => panic!("no reign began: {other:?}"),
        }
    }

    pub(crate) fn open_with(&mut self, secret: u128, on_disconnect: OnDisconnect) -> SessionId {
        let label = format!("host:{secret}");
        let open = Command::Open { secret: Secret(secret), ttl: TTL, on_disconnect, label };
        match self.apply(open).reply {
            Reply::Opened(opened) => opened.session,
            other => panic!("not opened: {other:?}"),
        }
    }

    pub(crate) fn open(&mut self, secret: u128) -> SessionId {
        self.open_with(secret, OnDisconnect::Hold)
    }

    pub(crate) fn generation(&self, session: SessionId) -> Generation {
        self.machine.session_view(session).map(|view| view.generation).unwrap_or_default()
    }

    pub(crate) fn call(&mut self, session: SessionId, op: Op) -> Applied {
        let next = self.requests.entry(session).or_default();
        *next += 1;
        let request = RequestId(*next);
        self.call_as(session, request, RequestId(request.0 - 1), op)
    }

    pub(crate) fn call_as(
        &mut self,
        session: SessionId,
        request: RequestId,
        acknowledged: RequestId,
        op: Op,
    ) -> Applied {
        let generation = self.generation(session);
        self.apply(Command::Call { session, generation, request, acknowledged, op })
    }

    pub(crate) fn join_op(group: &str, face: Face) -> Join {
        Join {
            group: name(group),
            face,
            kind: MemberKind::Full,
            mode: Mode::Exclusive,
            wait: true,
            name: String::new(),
            metadata: BTreeMap::new(),
            weight: 100,
            policy: PolicyWish::default(),
        }
    }

    pub(crate) fn join(&mut self, session: SessionId, join: Join) -> Total {
        match self.call(session, Op::Join(join)).reply {
            Reply::Joined(total) => total,
            other => panic!("not joined: {other:?}"),
        }
    }

    pub(crate) fn acquire(&mut self, session: SessionId, lock: &str) -> Total {
        let who = format!("s{session}");
        self.join(session, Join { name: who, ..Self::join_op(lock, Face::Lock) })
    }

    pub(crate) fn member(&mut self, session: SessionId, group: &str) -> Total {
        let who = format!("P{session}");
        self.join(session, Join { name: who, ..Self::join_op(group, Face::Group) })
    }

    pub(crate) fn release(&mut self, session: SessionId, entry: EntryId) -> Applied {
        self.call(session, Op::Release { entry })
    }

    pub(crate) fn expire(&mut self, session: SessionId) -> Applied {
        let generation = self.machine.session_view(session).unwrap().lease.0;
        let timer = Timer::Lease { session, generation };
        let reign = self.machine.reign();
        self.apply(Command::TimerFired { timer, reign, silent: TTL })
    }

    pub(crate) fn place(&self, entry: EntryId) -> Place {
        self.machine.total(entry).unwrap().place
    }

    pub(crate) fn token(&self, entry: EntryId) -> Option<Token> {
        self.place(entry).seat.map(|seat| seat.token)
    }

    /// The members of a group as "P2:1* P3:2", the star marking those that act.
    pub(crate) fn line(&self, group: &str) -> String {
        let Some(view) = self.machine.group_view(&name(group), 1_000) else { return String::new() };
        let member = |m: &Member| {
            let star = if m.place.role == Role::Active { "*" } else { "" };
            format!("{}:{}{star}", m.name, m.place.ordinal.unwrap())
        };
        view.members.iter().map(member).collect::<Vec<_>>().join(" ")
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// The changes among events, each as "group reason: P1 1>gone, P2 2>1*".
pub(crate) fn told(events: &[Event]) -> Vec<String> {
    let place = |place: &Option<Place>, none: &str| match place {
        None => none.to_string(),
        Some(place) => {
            let ordinal = place.ordinal.map(|o| o.to_string()).unwrap_or_default();
            format!("{ordinal}{}", if place.role == Role::Active { "*" } else { "" })
        }
    };
    let changed = |c: &Changed| format!("{} {}>{}", c.name, place(&c.before, "new"), place(&c.after, "gone"));
    events
        .iter()
        .filter_map(|event| match event {
            Event::Change { change, .. } => {
                let all: Vec<_> = change.changed.iter().map(changed).collect();
                Some(format!("{} {}: {}", change.group, change.reason, all.join(", ")))
            }
            _ => None,
        })
        .collect()
}
