//! Random histories: commands, timers (due, late, doubled, of older reigns), hangups and retries in any order.
//! What holds after every step is in `invariants.rs`. `QUORATE_ROUNDS` sets how many histories are tried
//! (default 300).

use crate::invariants;
use crate::log::Log;
use crate::model::{self, Model, Views};
use proptest::prelude::*;
use quorate_core::id::*;
use quorate_core::state_machine::*;
use quorate_core::time::Span;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The names, each with a face and the policy that its members state.
const NAMES: [&str; 11] =
    ["plain", "heavy", "weighed", "stable", "minimal", "lock", "other", "pause", "some", "barrier", "boss"];

fn face(name: usize) -> Face {
    match NAMES[name] {
        "lock" | "other" | "pause" => Face::Lock,
        "boss" => Face::Leadership,
        "some" => Face::Semaphore,
        "barrier" => Face::Barrier,
        _ => Face::Group,
    }
}

/// What is stated about a name: each member states some of the fields of `mask`.
fn policy(name: usize, seats: Option<u32>, mask: u8) -> PolicyWish {
    let delay = |ms| Some(Handover::Delay { delay: Span::from_millis(ms) });
    let sticky = Some(Rejoin::Sticky { grace: Span::from_millis(500) });
    let whole = match NAMES[name] {
        "heavy" => PolicyWish {
            order: Some(Order::Weight),
            preempt: Some(Preempt::OnWeight),
            handover: delay(50),
            ..PolicyWish::default()
        },
        "weighed" => PolicyWish {
            order: Some(Order::Weight),
            preempt: Some(Preempt::Never),
            numbering: Some(Numbering::Dense),
            rejoin: sticky,
            ..PolicyWish::default()
        },
        "stable" => {
            PolicyWish { numbering: Some(Numbering::Stable), rejoin: sticky, ..PolicyWish::default() }
        }
        "minimal" => PolicyWish { numbering: Some(Numbering::MinimalMove), ..PolicyWish::default() },
        "pause" => PolicyWish { handover: delay(50), ..PolicyWish::default() },
        "some" | "barrier" => PolicyWish { seats: Some(2), ..PolicyWish::default() },
        "boss" => PolicyWish { preempt: Some(Preempt::OnCommand), ..PolicyWish::default() },
        _ => PolicyWish::default(),
    };
    PolicyWish {
        seats: seats.or(whole.seats),
        numbering: whole.numbering.filter(|_| mask & 1 == 1),
        order: whole.order.filter(|_| mask & 1 == 1),
        preempt: whole.preempt.filter(|_| mask & 2 == 2),
        rejoin: whole.rejoin.filter(|_| mask & 2 == 2),
        handover: whole.handover.filter(|_| mask & 4 == 4),
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
        /// Which fields of the policy it states.
        mask: u8,
        /// Now and then another face, or another statement.
        odd: u8,
    },
    Describe {
        session: u8,
        entry: u8,
    },
    Mark {
        session: u8,
    },
    Checkpoint {
        session: u8,
    },
    /// A task that was armed once, in whatever reign.
    LateTask {
        nth: u8,
        old: bool,
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
    ActsFor {
        session: u8,
        other: u8,
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
        (1..4_u32, 0..8_u8, prop_oneof![3 => Just(7_u8), 2 => 0..8_u8], 0..32_u8),
    );
    prop_oneof![
        3 => (small.clone(), any::<bool>()).prop_map(|(secret, release)| Act::Open { secret, release }),
        2 => (small.clone(), any::<bool>()).prop_map(|(session, lapsed)| Act::Attach { session, lapsed }),
        12 => join.prop_map(|(session, name, kind, wait, seats, shared, (weight, terms, mask, odd))| {
            Act::Join { session, name, kind, wait, seats, shared, weight, terms, mask, odd }
        }),
        4 => (small.clone(), any::<u8>()).prop_map(|(session, entry)| Act::Release { session, entry }),
        3 => (small.clone(), any::<u8>()).prop_map(|(session, entry)| Act::Stopped { session, entry }),
        1 => (small.clone(), any::<u8>()).prop_map(|(session, entry)| Act::Progress { session, entry }),
        1 => (small.clone(), any::<u8>()).prop_map(|(session, entry)| Act::Cancel { session, entry }),
        3 => (small.clone(), small.clone()).prop_map(|(session, other)| Act::ActsFor { session, other }),
        2 => any::<u8>().prop_map(|back| Act::Retry { back }),
        1 => (small.clone(), any::<u8>()).prop_map(|(session, entry)| Act::Describe { session, entry }),
        1 => small.clone().prop_map(|session| Act::Mark { session }),
        1 => small.clone().prop_map(|session| Act::Checkpoint { session }),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(nth, old)| Act::LateTask { nth, old }),
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

/// Drives the machine, a replica that reads the log as bytes, and the model of what an observer knows.
struct Driver {
    log: Log,
    replica: StateMachine,
    model: Model,
    names: Vec<Name>,
    is: Views,
    sessions: Vec<SessionId>,
    secrets: BTreeMap<SessionId, Secret>,
    armed: Vec<TaskId>,
}

impl Driver {
    fn new() -> Self {
        let log = Log::founded();
        let mut replica = StateMachine::new();
        for (index, proposal) in &log.history {
            replica.apply(*index, proposal);
        }
        let model = Model { reign: log.machine.reign(), ..Model::default() };
        Self {
            log,
            replica,
            model,
            names: NAMES.iter().map(|name| crate::log::name(name)).collect(),
            is: Views::new(),
            sessions: Vec::new(),
            secrets: BTreeMap::new(),
            armed: Vec::new(),
        }
    }

    fn session(&self, n: u8) -> Option<SessionId> {
        // The newest are picked more often: most of the others have ended.
        let from = self.sessions.len().saturating_sub(6);
        let recent = &self.sessions[from..];
        recent.get(usize::from(n) % recent.len().max(1)).copied()
    }

    fn entry(&self, session: SessionId, n: u8) -> Option<EntryId> {
        let places = self.log.machine.session_view(session)?.places;
        (!places.is_empty()).then(|| places[usize::from(n) % places.len()].1)
    }

    fn call(&self, session: SessionId, op: Op) -> Command {
        let generation = self.log.generation(session);
        let request = RequestId(self.log.index + 1);
        let acknowledged = RequestId(if self.log.index.is_multiple_of(4) { self.log.index / 2 } else { 0 });
        Command::Call { session, generation, request, acknowledged, op }
    }

    /// A place, most often one of the session's own.
    fn on_entry(&self, session: u8, entry: u8, op: fn(EntryId) -> Op) -> Option<Command> {
        let session = self.session(session)?;
        let own = self.entry(session, entry);
        let some = self.model.entries.keys().nth(usize::from(entry) % self.model.entries.len().max(1));
        let entry = if entry.is_multiple_of(8) { some.copied() } else { own };
        Some(self.call(session, op(entry?)))
    }

    fn command(&self, act: &Act) -> Option<Command> {
        match act {
            Act::Open { secret, release } => Some(Command::Open {
                secret: Secret(u128::from(*secret)),
                ttl: crate::log::TTL,
                on_disconnect: if *release { OnDisconnect::Release } else { OnDisconnect::Hold },
                label: String::new(),
            }),
            Act::Attach { session, lapsed } => {
                let session = self.session(*session)?;
                Some(Command::Attach { session, secret: self.secrets[&session], lapsed: *lapsed })
            }
            Act::Join { session, .. } => {
                let (join, terms) = join_of(act);
                let session = self.session(*session)?;
                let join = Join { name: self.member_name(session), ..join };
                Some(self.call(session, Op::JoinOn(join, terms)))
            }
            Act::Release { session, entry } => self.on_entry(*session, *entry, |entry| Op::Release { entry }),
            Act::Stopped { session, entry } => self.on_entry(*session, *entry, |entry| Op::Stopped { entry }),
            Act::Progress { session, entry } => {
                self.on_entry(*session, *entry, |entry| Op::Progress { entry })
            }
            Act::Cancel { session, entry } => self.on_entry(*session, *entry, |entry| Op::Cancel { entry }),
            Act::Describe { session, entry } => self.on_entry(*session, *entry, |entry| Op::Describe {
                entry,
                metadata: [("at".to_string(), entry.to_string())].into(),
            }),
            Act::ActsFor { session, other } => {
                let other = self.session(*other)?;
                Some(self.call(self.session(*session)?, Op::ActsFor { session: other }))
            }
            Act::Retry { back } => {
                let past = &self.log.history;
                let at = past.len().checked_sub(1 + usize::from(*back) % past.len().max(1))?;
                Some(past[at].1.command.clone()).filter(|command| !matches!(command, Command::Found { .. }))
            }
            Act::End { session } => Some(self.call(self.session(*session)?, Op::End)),
            Act::Begin => Some(Command::Begin { node: NodeId(1), nonce: 0 }),
            Act::Snapshot => None,
            Act::Mark { .. }
            | Act::Checkpoint { .. }
            | Act::Expire { .. }
            | Act::Hangup { .. }
            | Act::Task { .. }
            | Act::LateTask { .. } => self.keepers(act),
            _ => self.tools(act),
        }
    }

    /// Those of one client have one name, so that a place that is kept can be taken back.
    fn member_name(&self, session: SessionId) -> String {
        format!("c{}", self.secrets[&session].0)
    }

    /// What the lease keeper and the server propose.
    fn keepers(&self, act: &Act) -> Option<Command> {
        let reign = self.log.machine.reign();
        let task = |task, reign| {
            Some(Command::TimerFired { timer: Timer::Task { task }, reign, silent: Span::ZERO })
        };
        match act {
            Act::Mark { session } => Some(Command::Mark { reign, sessions: vec![self.session(*session)?] }),
            Act::Checkpoint { session } => {
                let remaining = vec![(self.session(*session)?, Span::from_millis(700))];
                Some(Command::Checkpoint { reign, remaining })
            }
            Act::Expire { session, stale } => {
                let session = self.session(*session)?;
                let (generation, ..) = self.log.machine.session_view(session)?.lease;
                let generation = Generation(generation.0.saturating_sub(u64::from(*stale)));
                let timer = Timer::Lease { session, generation };
                Some(Command::TimerFired { timer, reign, silent: crate::log::TTL })
            }
            Act::Hangup { session, stale } => {
                let session = self.session(*session)?;
                let newest = self.log.generation(session).0;
                let generation = Generation(newest.saturating_sub(u64::from(*stale)));
                Some(Command::Disconnected { session, generation })
            }
            Act::Task { nth } => {
                let tasks = self.log.machine.tasks();
                task(tasks.get(usize::from(*nth) % tasks.len().max(1))?.0, reign)
            }
            Act::LateTask { nth, old } => {
                let known = self.armed.get(usize::from(*nth) % self.armed.len().max(1))?;
                task(*known, Reign(reign.0 - u64::from(*old)))
            }
            _ => None,
        }
    }

    fn tools(&self, act: &Act) -> Option<Command> {
        let tool = |op| Some(Command::Tool { client: ClientId(1), op });
        let named = |name: &u8| self.names[usize::from(*name)].clone();
        match act {
            Act::Close { session } => {
                tool(ToolOp::CloseSession { session: self.session(*session)?, why: "test".into() })
            }
            Act::Transfer { name, to, force } => tool(ToolOp::Transfer {
                group: named(name),
                to: self.member_name(self.session(*to)?),
                drain: Span::from_millis(300),
                force: *force,
            }),
            Act::Seats { name, seats } => tool(ToolOp::SetSeats { group: named(name), seats: *seats }),
            Act::EndGroup { name } => tool(ToolOp::EndGroup { group: named(name), created: None }),
            Act::Create { name } => tool(ToolOp::CreateGroup {
                group: named(name),
                face: face(usize::from(*name)),
                policy: policy(usize::from(*name), None, 7),
            }),
            Act::Delete { name } => tool(ToolOp::DeleteGroup { group: named(name), created: None }),
            _ => None,
        }
    }

    fn step(&mut self, act: &Act) {
        if matches!(act, Act::Snapshot) {
            return self.snapshot();
        }
        let Some(command) = self.command(act) else { return };
        let facts = self.model.expect(&command);
        let applied = self.log.apply(command.clone());
        self.replicate(&applied);
        self.note(&command, &applied);
        let was = std::mem::take(&mut self.is);
        self.is = model::views(&self.log.machine, &self.names);
        self.model.learn(self.log.index, &command, &facts, &applied, &was);
        let (command, applied, facts) = (&command, &applied, &facts);
        let step =
            invariants::Step { command, applied, facts, machine: &self.log.machine, was: &was, is: &self.is };
        for invariant in invariants::ALL {
            invariant(&step, &self.model);
        }
        let nth = self.log.index as usize;
        if nth.is_multiple_of(4) {
            invariants::removing_the_cause_changes_the_wait(
                &self.log.machine,
                self.log.index,
                &self.is,
                nth / 4,
            );
        }
        self.model.greatest = self.log.machine.last_token();
        let seated = |entry: &EntryId| {
            let waits = |view: &GroupView| view.waiters.iter().any(|waiter| waiter.entry == *entry);
            self.is.values().any(waits)
        };
        self.model.front.retain(seated);
    }

    /// A replica that reads each command from its bytes answers alike (RULES R2).
    fn replicate(&mut self, applied: &Applied) {
        let (index, proposal) = self.log.history.last().unwrap();
        let read = codec::decode(&codec::encode(proposal)).unwrap();
        assert_eq!(self.replica.apply(*index, &read), *applied, "replicas answer alike");
    }

    /// A snapshot holds everything: from here on the machine is the one that was read from it, and at the end
    /// it equals the replica that applied every command.
    fn snapshot(&mut self) {
        let bytes = self.log.machine.to_snapshot();
        let restored = StateMachine::from_snapshot(&bytes).unwrap();
        assert_eq!(restored, self.log.machine, "a snapshot holds everything");
        self.log.machine = restored;
    }

    fn note(&mut self, command: &Command, applied: &Applied) {
        if let (Command::Open { secret, .. }, Reply::Opened(opened)) = (command, &applied.reply)
            && self.secrets.insert(opened.session, *secret).is_none()
        {
            self.sessions.push(opened.session);
        }
        self.armed.extend(applied.events.iter().filter_map(|event| match event {
            Event::Arm { task, .. } => Some(*task),
            _ => None,
        }));
    }

    fn finish(self) {
        assert_eq!(self.replica, self.log.machine, "replicas that apply the same log are equal");
        invariants::everybody_gets_a_turn(self.log.machine, self.log.index, &self.names);
    }
}

fn join_of(act: &Act) -> (Join, Terms) {
    let Act::Join { name, kind, wait, seats, shared, weight, terms, mask, odd, .. } = act else {
        unreachable!()
    };
    let name = usize::from(*name);
    let kind = match kind {
        0 => MemberKind::Observer,
        1 => MemberKind::OrdinalOnly,
        _ => MemberKind::Full,
    };
    let face = if *odd == 0 { Face::Semaphore } else { face(name) };
    let mode = if *shared && face == Face::Lock { Mode::Shared } else { Mode::Exclusive };
    let mut policy = policy(name, *seats, *mask);
    if *odd == 1 {
        policy.numbering = Some(Numbering::Dense);
    }
    let join = Join { kind, mode, wait: *wait, weight: *weight, policy, ..Log::join_op(NAMES[name], face) };
    let terms = Terms {
        max_hold: (terms & 1 == 1).then_some(Span::from_secs(1)),
        progress: (terms & 2 == 2).then_some(Span::from_secs(1)),
        blocking: *wait,
        break_deadlock: terms & 4 == 4,
    };
    (join, terms)
}

fn rounds() -> u32 {
    std::env::var("QUORATE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(300)
}

/// Says once which history was the first to break a promise; shrinking tries many more.
struct Count(u64);

impl Count {
    fn next() -> Self {
        static HISTORIES: AtomicU64 = AtomicU64::new(0);
        Self(HISTORIES.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        static FIRST: AtomicU64 = AtomicU64::new(0);
        if std::thread::panicking()
            && FIRST.compare_exchange(0, self.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            eprintln!("history {} broke a promise", self.0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: rounds(),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_histories_keep_every_promise(acts in prop::collection::vec(act(), 1..120)) {
        let _count = Count::next();
        let mut driver = Driver::new();
        for act in &acts {
            driver.step(act);
        }
        driver.finish();
    }
}
