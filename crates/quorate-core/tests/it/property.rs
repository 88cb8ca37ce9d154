//! Random histories: what holds after every step, whatever the order. `QUORATE_ROUNDS` sets how many
//! histories are tried (default 300).

use crate::log::Log;
use proptest::prelude::*;
use quorate_core::id::*;
use quorate_core::state_machine::*;
use quorate_core::time::Span;
use std::collections::{BTreeMap, BTreeSet};

/// The names, each with a face and the policy that its members state.
const NAMES: [&str; 8] = ["plain", "heavy", "stable", "minimal", "lock", "other", "some", "barrier"];

fn face(name: usize) -> Face {
    match NAMES[name] {
        "lock" | "other" => Face::Lock,
        "some" => Face::Semaphore,
        "barrier" => Face::Barrier,
        _ => Face::Group,
    }
}

fn policy(name: usize, seats: Option<u32>) -> PolicyWish {
    let some = PolicyWish { seats, ..PolicyWish::default() };
    match NAMES[name] {
        "heavy" => PolicyWish {
            order: Some(Order::Weight),
            preempt: Some(Preempt::OnWeight),
            handover: Some(Handover::Delay { delay: Span::from_millis(50) }),
            ..some
        },
        "stable" => PolicyWish {
            numbering: Some(Numbering::Stable),
            rejoin: Some(Rejoin::Sticky { grace: Span::from_millis(500) }),
            ..some
        },
        "minimal" => PolicyWish { numbering: Some(Numbering::MinimalMove), ..some },
        "some" | "barrier" => PolicyWish { seats: Some(2), ..some },
        _ => some,
    }
}

#[derive(Clone, Debug)]
enum Act {
    Open {
        secret: u8,
        release: bool,
    },
    Attach {
        session: u8,
        lapsed: bool,
    },
    Join {
        session: u8,
        name: u8,
        kind: u8,
        wait: bool,
        seats: Option<u32>,
        shared: bool,
        weight: u32,
        terms: u8,
    },
    Release {
        session: u8,
        entry: u8,
    },
    Stopped {
        session: u8,
        entry: u8,
    },
    Progress {
        session: u8,
        entry: u8,
    },
    Cancel {
        session: u8,
        entry: u8,
    },
    Retry {
        back: u8,
    },
    End {
        session: u8,
    },
    Expire {
        session: u8,
        stale: bool,
    },
    Task {
        nth: u8,
    },
    Hangup {
        session: u8,
        stale: bool,
    },
    Close {
        session: u8,
    },
    Transfer {
        name: u8,
        to: u8,
        force: bool,
    },
    Seats {
        name: u8,
        seats: u32,
    },
    EndGroup {
        name: u8,
    },
    Create {
        name: u8,
    },
    Delete {
        name: u8,
    },
    Begin,
    Snapshot,
}

fn act() -> impl Strategy<Value = Act> {
    let small = 0..6_u8;
    let name = 0..NAMES.len() as u8;
    let join = (
        small.clone(),
        name.clone(),
        0..8_u8,
        prop::bool::weighted(0.8),
        prop::option::weighted(0.2, 1..4_u32),
        any::<bool>(),
        (1..4_u32, 0..8_u8),
    );
    prop_oneof![
        3 => (small.clone(), any::<bool>()).prop_map(|(secret, release)| Act::Open { secret, release }),
        2 => (small.clone(), any::<bool>()).prop_map(|(session, lapsed)| Act::Attach { session, lapsed }),
        12 => join.prop_map(|(session, name, kind, wait, seats, shared, (weight, terms))| {
            Act::Join { session, name, kind, wait, seats, shared, weight, terms }
        }),
        4 => (small.clone(), any::<u8>()).prop_map(|(session, entry)| Act::Release { session, entry }),
        3 => (small.clone(), any::<u8>()).prop_map(|(session, entry)| Act::Stopped { session, entry }),
        1 => (small.clone(), any::<u8>()).prop_map(|(session, entry)| Act::Progress { session, entry }),
        1 => (small.clone(), any::<u8>()).prop_map(|(session, entry)| Act::Cancel { session, entry }),
        2 => any::<u8>().prop_map(|back| Act::Retry { back }),
        1 => small.clone().prop_map(|session| Act::End { session }),
        2 => (small.clone(), any::<bool>()).prop_map(|(session, stale)| Act::Expire { session, stale }),
        4 => any::<u8>().prop_map(|nth| Act::Task { nth }),
        1 => (small.clone(), any::<bool>()).prop_map(|(session, stale)| Act::Hangup { session, stale }),
        1 => small.clone().prop_map(|session| Act::Close { session }),
        2 => (name.clone(), small, any::<bool>()).prop_map(|(name, to, force)| Act::Transfer { name, to, force }),
        1 => (name.clone(), 1..4_u32).prop_map(|(name, seats)| Act::Seats { name, seats }),
        1 => name.clone().prop_map(|name| Act::EndGroup { name }),
        1 => name.clone().prop_map(|name| Act::Create { name }),
        1 => name.prop_map(|name| Act::Delete { name }),
        1 => Just(Act::Begin),
        1 => Just(Act::Snapshot),
    ]
}

/// Drives the machine and remembers what an outside observer knows.
#[derive(Default)]
struct Observer {
    log: Log,
    sessions: Vec<SessionId>,
    secrets: BTreeMap<SessionId, Secret>,
    tokens: BTreeSet<Token>,
    seated: BTreeMap<EntryId, Seat>,
    numbers: BTreeMap<EntryId, Ordinal>,
}

impl Observer {
    fn session(&self, n: u8) -> Option<SessionId> {
        self.sessions.get(usize::from(n) % self.sessions.len().max(1)).copied()
    }

    fn entry(&self, session: SessionId, n: u8) -> Option<EntryId> {
        let view = self.log.machine.session_view(session)?;
        let places = view.places;
        (!places.is_empty()).then(|| places[usize::from(n) % places.len()].1)
    }

    fn call(&self, session: SessionId, op: Op) -> Command {
        let generation = self.log.generation(session);
        let request = RequestId(self.log.index + 1);
        Command::Call { session, generation, request, acknowledged: RequestId(0), op }
    }

    fn on_entry(&self, session: u8, entry: u8, op: fn(EntryId) -> Op) -> Option<Command> {
        let session = self.session(session)?;
        Some(self.call(session, op(self.entry(session, entry)?)))
    }

    fn command(&self, act: &Act) -> Option<Command> {
        let tool = |op| Some(Command::Tool { client: ClientId(1), op });
        let named = |name: &u8| crate::log::name(NAMES[usize::from(*name)]);
        match act {
            Act::Open { secret, release } => Some(Command::Open {
                secret: Secret(u128::from(*secret)),
                ttl: crate::log::TTL,
                on_disconnect: if *release { OnDisconnect::Release } else { OnDisconnect::Hold },
                label: String::new(),
            }),
            Act::Attach { session, lapsed } => {
                let session = self.session(*session)?;
                let secret = self.secrets[&session];
                Some(Command::Attach { session, secret, lapsed: *lapsed })
            }
            Act::Join { session, .. } => {
                let (join, terms) = join_of(act);
                let session = self.session(*session)?;
                let join = Join { name: format!("s{session}"), ..join };
                Some(self.call(session, Op::JoinOn(join, terms)))
            }
            Act::Release { session, entry } => self.on_entry(*session, *entry, |entry| Op::Release { entry }),
            Act::Stopped { session, entry } => self.on_entry(*session, *entry, |entry| Op::Stopped { entry }),
            Act::Progress { session, entry } => {
                self.on_entry(*session, *entry, |entry| Op::Progress { entry })
            }
            Act::Cancel { session, entry } => self.on_entry(*session, *entry, |entry| Op::Cancel { entry }),
            Act::Retry { back } => {
                let past = &self.log.history;
                let at = past.len().checked_sub(1 + usize::from(*back) % past.len().max(1))?;
                Some(past[at].1.command.clone())
            }
            Act::End { session } => Some(self.call(self.session(*session)?, Op::End)),
            Act::Expire { session, stale } => {
                let session = self.session(*session)?;
                let (generation, ..) = self.log.machine.session_view(session)?.lease;
                let generation = Generation(generation.0.saturating_sub(u64::from(*stale)));
                let timer = Timer::Lease { session, generation };
                let reign = self.log.machine.reign();
                Some(Command::TimerFired { timer, reign, silent: crate::log::TTL })
            }
            Act::Task { nth } => {
                let tasks = self.log.machine.tasks();
                let (task, _) = tasks.get(usize::from(*nth) % tasks.len().max(1))?;
                let reign = self.log.machine.reign();
                Some(Command::TimerFired { timer: Timer::Task { task: *task }, reign, silent: Span::ZERO })
            }
            Act::Hangup { session, stale } => {
                let session = self.session(*session)?;
                let newest = self.log.generation(session).0;
                let generation = Generation(newest.saturating_sub(u64::from(*stale)));
                Some(Command::Disconnected { session, generation })
            }
            Act::Close { session } => {
                tool(ToolOp::CloseSession { session: self.session(*session)?, why: "test".into() })
            }
            Act::Transfer { name, to, force } => tool(ToolOp::Transfer {
                group: named(name),
                to: format!("s{}", self.session(*to)?),
                drain: Span::from_millis(300),
                force: *force,
            }),
            Act::Seats { name, seats } => tool(ToolOp::SetSeats { group: named(name), seats: *seats }),
            Act::EndGroup { name } => tool(ToolOp::EndGroup { group: named(name), created: None }),
            Act::Create { name } => tool(ToolOp::CreateGroup {
                group: named(name),
                face: face(usize::from(*name)),
                policy: policy(usize::from(*name), None),
            }),
            Act::Delete { name } => tool(ToolOp::DeleteGroup { group: named(name), created: None }),
            Act::Begin => Some(Command::Begin { node: NodeId(1), nonce: 0 }),
            Act::Snapshot => None,
        }
    }

    fn step(&mut self, act: &Act) {
        if matches!(act, Act::Snapshot) {
            let bytes = self.log.machine.to_snapshot();
            let restored = StateMachine::from_snapshot(&bytes).unwrap();
            assert_eq!(restored, self.log.machine, "a snapshot holds everything");
            self.log.machine = restored;
            return;
        }
        let Some(command) = self.command(act) else { return };
        let before = self.log.machine.clone();
        let applied = self.log.apply(command.clone());
        if let Reply::Opened(opened) = &applied.reply {
            if !self.sessions.contains(&opened.session) {
                self.sessions.push(opened.session);
            }
            if let Command::Open { secret, .. } = &command {
                self.secrets.insert(opened.session, *secret);
            }
        }
        self.check(&before, &command, &applied);
    }

    fn check(&mut self, before: &StateMachine, command: &Command, applied: &Applied) {
        let mut seated = BTreeMap::new();
        let mut numbers = BTreeMap::new();
        for name in NAMES.map(crate::log::name) {
            let Some(view) = self.log.machine.group_view(&name, usize::MAX) else { continue };
            self.check_seats(&view);
            self.check_numbers(&view, &mut numbers);
            check_waits(&view);
            seated.extend(view.holders.iter().map(|holder| (holder.entry, holder.seat)));
        }
        self.check_tokens(&seated);
        self.check_moves(before, &seated, command, applied);
        self.seated = seated;
        self.numbers = numbers;
        for deadlock in self.log.machine.deadlocks() {
            check_deadlock(&self.log.machine, &deadlock);
        }
    }

    /// Seats never beyond the policy, but for holders that were asked to stop; shared and exclusive never
    /// together.
    fn check_seats(&self, view: &GroupView) {
        if view.summary.face == Face::Barrier {
            return;
        }
        let seats = view.summary.seats;
        if view.shared > 0 {
            assert_eq!(view.shared, view.holders.len() as u64, "shared and exclusive together");
            let tokens: BTreeSet<_> = view.holders.iter().map(|holder| holder.seat.token).collect();
            assert_eq!(tokens.len(), 1, "one phase, one token");
            return;
        }
        let numbers: BTreeSet<_> = view.holders.iter().map(|holder| holder.seat.no).collect();
        assert_eq!(numbers.len(), view.holders.len(), "one holder a seat");
        for holder in view.holders.iter().filter(|holder| holder.seat.no.0 >= seats) {
            assert!(holder.draining.is_some(), "a seat beyond the {seats} that nobody asked for");
        }
    }

    /// Ordinals as the numbering says.
    fn check_numbers(&self, view: &GroupView, numbers: &mut BTreeMap<EntryId, Ordinal>) {
        let ordinals: Vec<u64> = view.members.iter().filter_map(|m| m.place.ordinal).map(|o| o.0).collect();
        let distinct: BTreeSet<u64> = ordinals.iter().copied().collect();
        assert_eq!(distinct.len(), ordinals.len(), "ordinals are distinct");
        assert!(!distinct.contains(&0));
        let stated = view.policy.numbering.unwrap_or_default();
        if stated != Numbering::Stable && view.summary.face == Face::Group {
            assert!(ordinals.iter().copied().eq(1..=ordinals.len() as u64), "1..n: {ordinals:?}");
        }
        for member in &view.members {
            let Some(ordinal) = member.place.ordinal else { continue };
            if let (Numbering::Stable, Some(known)) = (stated, self.numbers.get(&member.entry)) {
                assert_eq!(ordinal, *known, "a stable number is kept for life");
            }
            numbers.insert(member.entry, ordinal);
        }
    }

    /// Every token is new and greater than all before it, but for those that share one.
    fn check_tokens(&mut self, seated: &BTreeMap<EntryId, Seat>) {
        let fresh: BTreeSet<Token> = seated
            .iter()
            .filter(|(entry, seat)| self.seated.get(entry).map(|s| s.token) != Some(seat.token))
            .map(|(_, seat)| seat.token)
            .filter(|token| !self.seated.values().any(|seat| seat.token == *token))
            .collect();
        for token in fresh {
            assert!(self.tokens.last().is_none_or(|last| token > *last), "tokens strictly grow");
            assert!(token <= self.log.machine.last_token());
            self.tokens.insert(token);
        }
    }

    /// A live seat is lost only by the holder's own word or the end of its lease (RULES R11).
    fn check_moves(
        &self,
        before: &StateMachine,
        seated: &BTreeMap<EntryId, Seat>,
        command: &Command,
        applied: &Applied,
    ) {
        for entry in self.seated.keys().filter(|entry| !seated.contains_key(entry)) {
            let owner = before
                .session_list(None, usize::MAX)
                .into_iter()
                .find(|view| view.places.iter().any(|place| place.1 == *entry))
                .map(|view| view.session);
            let by = match command {
                Command::Call {
                    session,
                    op: Op::Release { entry: named } | Op::Stopped { entry: named },
                    ..
                } => {
                    assert_eq!(named, entry, "a release frees what it names");
                    Some(*session)
                }
                Command::Call { session, op: Op::End, .. } => Some(*session),
                Command::TimerFired { timer: Timer::Lease { session, .. }, .. } => Some(*session),
                Command::Disconnected { session, .. } => Some(*session),
                other => panic!("{other:?} took a seat: {:?}", applied.reply),
            };
            assert_eq!(by, owner, "nobody else takes a seat");
        }
    }
}

fn join_of(act: &Act) -> (Join, Terms) {
    let Act::Join { name, kind, wait, seats, shared, weight, terms, .. } = act else { unreachable!() };
    let name = usize::from(*name);
    let kind = match kind {
        0 => MemberKind::Observer,
        1 => MemberKind::OrdinalOnly,
        _ => MemberKind::Full,
    };
    let lock = face(name) == Face::Lock;
    let mode = if *shared && lock { Mode::Shared } else { Mode::Exclusive };
    let join = Join {
        kind,
        mode,
        wait: *wait,
        weight: *weight,
        policy: policy(name, *seats),
        ..Log::join_op(NAMES[name], face(name))
    };
    let terms = Terms {
        max_hold: (terms & 1 == 1).then_some(Span::from_secs(1)),
        progress: (terms & 2 == 2).then_some(Span::from_secs(1)),
        blocking: *wait,
        break_deadlock: terms & 4 == 4,
    };
    (join, terms)
}

/// Nobody waits without a true cause, and what is named is so.
fn check_waits(view: &GroupView) {
    let first = view.waiters.iter().find(|w| !matches!(w.blocker, Blocker::Behind { .. }));
    for waiter in &view.waiters {
        match &waiter.blocker {
            Blocker::SeatsHeld { holders, .. } => {
                assert!(!holders.is_empty(), "held by nobody");
                assert!(holders.iter().all(|holder| view.holders.contains(holder)), "the named holders hold");
                let free = (0..view.summary.seats).any(|no| !view.holders.iter().any(|h| h.seat.no.0 == no));
                assert!(!free || view.shared > 0 || view.holders.len() as u32 >= 1, "a seat is free");
            }
            Blocker::SharedHeld { count, holders } => {
                assert_eq!(*count, view.shared);
                assert!(holders.iter().all(|holder| view.holders.contains(holder)));
            }
            Blocker::Behind { next, ahead, .. } => {
                assert!(*ahead > 0);
                let first = first.expect("somebody is first");
                assert_eq!(*next, first.name, "the first in line is named");
            }
            Blocker::Resting { .. } => assert!(matches!(view.policy.handover, Some(Handover::Delay { .. }))),
            Blocker::Parties { present, parties } => {
                assert_eq!(*present, view.waiters.len() as u64);
                assert!(present < parties, "all are there and nobody goes through");
            }
            Blocker::Gone => panic!("a waiter is in the queue"),
        }
    }
    let waiting = view.members.iter().filter(|m| matches!(m.place.role, Role::Standby | Role::Pending));
    assert_eq!(waiting.count(), view.waiters.len(), "everybody without a seat who is here has a cause");
}

/// Each wait of a deadlock is a wait of the queue, and its holders are in the deadlock themselves.
fn check_deadlock(machine: &StateMachine, deadlock: &Deadlock) {
    let members: BTreeSet<_> = deadlock.waits.iter().map(|edge| edge.session).collect();
    assert!(!members.is_empty());
    for edge in &deadlock.waits {
        let view = machine.group_view(&edge.group, usize::MAX).unwrap();
        assert!(view.waiters.iter().any(|waiter| waiter.entry == edge.entry), "it waits");
        for holder in &edge.held_by {
            assert!(view.holders.iter().any(|h| h.session == *holder), "the named one holds");
            assert!(members.contains(holder), "a holder outside could end it");
        }
    }
}

fn rounds() -> u32 {
    std::env::var("QUORATE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_histories_keep_every_promise(acts in prop::collection::vec(act(), 1..120)) {
        let mut observer = Observer { log: Log::founded(), ..Observer::default() };
        for act in &acts {
            observer.step(act);
        }
        let mut replica = StateMachine::new();
        for (index, proposal) in &observer.log.history {
            replica.apply(*index, proposal);
        }
        prop_assert_eq!(&replica, &observer.log.machine, "replicas that apply the same log are equal");
    }
}
