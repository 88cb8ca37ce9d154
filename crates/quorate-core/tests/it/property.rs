//! Random histories: what holds after every step, whatever the order. `QUORATE_ROUNDS` sets how many
//! histories are tried (default 300).

use crate::log::Log;
use proptest::prelude::*;
use quorate_core::id::*;
use quorate_core::state_machine::*;
use std::collections::{BTreeMap, BTreeSet};

const NAMES: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug)]
enum Act {
    Open { secret: u8, release: bool },
    Attach { session: u8, lapsed: bool },
    Join { session: u8, name: u8, lock: bool, kind: u8, wait: bool, seats: Option<u32> },
    Release { session: u8, entry: u8 },
    Cancel { session: u8, entry: u8 },
    Retry { back: u8 },
    End { session: u8 },
    Expire { session: u8, stale: bool },
    Hangup { session: u8, stale: bool },
    Close { session: u8 },
    Create { name: u8 },
    Delete { name: u8 },
    Begin,
    Snapshot,
}

fn act() -> impl Strategy<Value = Act> {
    let small = 0..6_u8;
    prop_oneof![
        3 => (small.clone(), any::<bool>()).prop_map(|(secret, release)| Act::Open { secret, release }),
        2 => (small.clone(), any::<bool>()).prop_map(|(session, lapsed)| Act::Attach { session, lapsed }),
        8 => (small.clone(), 0..3_u8, any::<bool>(), 0..6_u8, any::<bool>(), prop::option::weighted(0.3, 1..4_u32))
            .prop_map(|(session, name, lock, kind, wait, seats)| {
                Act::Join { session, name, lock, kind, wait, seats }
            }),
        5 => (small.clone(), any::<u8>()).prop_map(|(session, entry)| Act::Release { session, entry }),
        2 => (small.clone(), any::<u8>()).prop_map(|(session, entry)| Act::Cancel { session, entry }),
        2 => any::<u8>().prop_map(|back| Act::Retry { back }),
        1 => small.clone().prop_map(|session| Act::End { session }),
        2 => (small.clone(), any::<bool>()).prop_map(|(session, stale)| Act::Expire { session, stale }),
        1 => (small.clone(), any::<bool>()).prop_map(|(session, stale)| Act::Hangup { session, stale }),
        1 => small.prop_map(|session| Act::Close { session }),
        1 => (0..3_u8).prop_map(|name| Act::Create { name }),
        1 => (0..3_u8).prop_map(|name| Act::Delete { name }),
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

    fn command(&self, act: &Act) -> Option<Command> {
        let call = |session: SessionId, op: Op| {
            let generation = self.log.generation(session);
            let request = RequestId(self.log.index + 1);
            Command::Call { session, generation, request, acknowledged: RequestId(0), op }
        };
        let tool = |op| Command::Tool { client: ClientId(1), op };
        Some(match act {
            Act::Open { secret, release } => Command::Open {
                secret: Secret(u128::from(*secret)),
                ttl: crate::log::TTL,
                on_disconnect: if *release { OnDisconnect::Release } else { OnDisconnect::Hold },
                label: String::new(),
            },
            Act::Attach { session, lapsed } => {
                let session = self.session(*session)?;
                let secret = self.secrets[&session];
                Command::Attach { session, secret, lapsed: *lapsed }
            }
            Act::Join { session, name, lock, kind, wait, seats } => {
                let face = if *lock { Face::Lock } else { Face::Group };
                let kind = match kind {
                    0 => MemberKind::Observer,
                    1 => MemberKind::OrdinalOnly,
                    _ => MemberKind::Full,
                };
                let policy = PolicyWish { seats: *seats, ..PolicyWish::default() };
                let base = Log::join_op(NAMES[usize::from(*name)], face);
                call(self.session(*session)?, Op::Join(Join { kind, wait: *wait, policy, ..base }))
            }
            Act::Release { session, entry } => {
                let session = self.session(*session)?;
                call(session, Op::Release { entry: self.entry(session, *entry)? })
            }
            Act::Cancel { session, entry } => {
                let session = self.session(*session)?;
                call(session, Op::Cancel { entry: self.entry(session, *entry)? })
            }
            Act::Retry { back } => {
                let past = &self.log.history;
                let at = past.len().checked_sub(1 + usize::from(*back) % past.len().max(1))?;
                past[at].1.command.clone()
            }
            Act::End { session } => call(self.session(*session)?, Op::End),
            Act::Expire { session, stale } => {
                let session = self.session(*session)?;
                let (generation, ..) = self.log.machine.session_view(session)?.lease;
                let generation = Generation(generation.0.saturating_sub(u64::from(*stale)));
                let timer = Timer::Lease { session, generation };
                let reign = self.log.machine.reign();
                Command::TimerFired { timer, reign, silent: crate::log::TTL }
            }
            Act::Hangup { session, stale } => {
                let session = self.session(*session)?;
                let newest = self.log.generation(session).0;
                let generation = Generation(newest.saturating_sub(u64::from(*stale)));
                Command::Disconnected { session, generation }
            }
            Act::Close { session } => {
                tool(ToolOp::CloseSession { session: self.session(*session)?, why: "test".into() })
            }
            Act::Create { name } => tool(ToolOp::CreateGroup {
                group: crate::log::name(NAMES[usize::from(*name)]),
                face: Face::Group,
                policy: PolicyWish::default(),
            }),
            Act::Delete { name } => tool(ToolOp::DeleteGroup {
                group: crate::log::name(NAMES[usize::from(*name)]),
                created: None,
            }),
            Act::Begin => Command::Begin { node: NodeId(1), nonce: 0 },
            Act::Snapshot => return None,
        })
    }

    fn step(&mut self, act: &Act) {
        if matches!(act, Act::Snapshot) {
            let bytes = self.log.machine.to_snapshot();
            self.log.machine = StateMachine::from_snapshot(&bytes).unwrap();
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
        for name in NAMES.map(crate::log::name) {
            let Some(view) = self.log.machine.group_view(&name, usize::MAX) else { continue };
            self.check_group(&view);
            seated.extend(view.holders.iter().map(|holder| (holder.entry, holder.seat)));
        }
        self.check_tokens(&seated);
        self.check_moves(before, &seated, command, applied);
        self.seated = seated;
    }

    /// Seats within the policy, ordinals 1..n, the seated first, and nobody waits without a true cause.
    fn check_group(&self, view: &GroupView) {
        let seats = view.summary.seats as usize;
        assert!(view.holders.len() <= seats, "{} holders on {seats} seats", view.holders.len());
        let numbers: BTreeSet<_> = view.holders.iter().map(|holder| holder.seat.no).collect();
        assert_eq!(numbers.len(), view.holders.len(), "one holder a seat");
        assert!(numbers.iter().all(|no| (no.0 as usize) < seats));
        for (member, n) in view.members.iter().zip(1..) {
            assert_eq!(member.place.ordinal, Some(Ordinal(n)), "ordinals are dense");
            let active = n as usize <= view.holders.len();
            assert_eq!(member.place.role == Role::Active, active, "the first seats act");
        }
        assert_eq!(view.waiters.len() + view.holders.len(), view.members.len());
        if !view.waiters.is_empty() {
            assert_eq!(view.holders.len(), seats, "somebody waits while a seat is free");
        }
        for waiter in &view.waiters {
            match &waiter.blocker {
                Blocker::SeatsHeld { holders, .. } => {
                    for holder in holders {
                        assert!(view.holders.contains(holder), "the named holder holds");
                    }
                }
                Blocker::Behind { next, ahead, .. } => {
                    assert_eq!(*next, view.waiters[0].name);
                    let seated = view.holders.len() as u64;
                    assert_eq!(ahead + seated + 1, waiter.position, "the count is true");
                }
            }
        }
    }

    /// Every token is new and greater than all before it.
    fn check_tokens(&mut self, seated: &BTreeMap<EntryId, Seat>) {
        let mut fresh: Vec<Token> = seated
            .iter()
            .filter(|(entry, seat)| self.seated.get(entry).map(|s| s.token) != Some(seat.token))
            .map(|(_, seat)| seat.token)
            .collect();
        fresh.sort_unstable();
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
                Command::Call { session, op: Op::Release { entry: named }, .. } => {
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
