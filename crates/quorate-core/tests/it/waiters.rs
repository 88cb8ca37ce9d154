//! Ten thousand that wait for one lock: what a grant tells and costs does not grow with the queue (RULES R15).

use quorate_core::id::*;
use quorate_core::state_machine::*;
use quorate_core::time::{Span, Wall};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// How many places a session has in the queue.
const PLACES: u64 = 100;

/// A lock, and all that queue for it, the holder first.
struct Queue {
    machine: StateMachine,
    index: u64,
    line: VecDeque<(SessionId, EntryId)>,
    requests: BTreeMap<SessionId, u64>,
    told: usize,
}

impl Queue {
    fn of(waiters: u64) -> Self {
        let (line, requests) = (VecDeque::new(), BTreeMap::new());
        let mut queue = Self { machine: StateMachine::new(), index: 0, line, requests, told: 0 };
        queue.apply(Command::Found { cluster: ClusterId(1), limits: Limits::default() });
        let sessions: Vec<SessionId> = (0..=waiters / PLACES).map(|nth| queue.open(nth)).collect();
        for nth in 0..=waiters {
            queue.join(sessions[(nth / PLACES) as usize]);
        }
        queue
    }

    fn apply(&mut self, command: Command) -> Reply {
        self.index += 1;
        let applied = self.machine.apply(LogIndex(self.index), &Proposal { at: Wall(self.index), command });
        self.told += applied.events.iter().map(told).sum::<usize>();
        applied.reply
    }

    fn open(&mut self, nth: u64) -> SessionId {
        let (secret, ttl) = (Secret(u128::from(nth) + 1), Span::from_secs(10));
        let open = Command::Open { secret, ttl, on_disconnect: OnDisconnect::Hold, label: String::new() };
        match self.apply(open) {
            Reply::Opened(opened) => opened.session,
            other => panic!("{other:?}"),
        }
    }

    fn call(&mut self, session: SessionId, op: Op) -> Reply {
        let request = self.requests.entry(session).or_default();
        *request += 1;
        let (request, acknowledged) = (RequestId(*request), RequestId(*request - 1));
        self.apply(Command::Call { session, generation: Generation(1), request, acknowledged, op })
    }

    fn join(&mut self, session: SessionId) {
        let join = Join {
            group: Name::new("orders").unwrap(),
            face: Face::Lock,
            kind: MemberKind::Full,
            mode: Mode::Exclusive,
            wait: true,
            name: "w".into(),
            metadata: BTreeMap::new(),
            weight: 0,
            policy: PolicyWish::default(),
        };
        match self.call(session, Op::Join(join)) {
            Reply::Joined(total) => self.line.push_back((session, total.entry)),
            other => panic!("{other:?}"),
        }
    }

    /// The holder releases, the next is granted, and the one that released queues again.
    fn turn(&mut self) {
        let (session, entry) = self.line.pop_front().expect("somebody holds");
        let released = self.call(session, Op::Release { entry });
        assert!(matches!(released, Reply::Released { token: Some(_) }), "{released:?}");
        self.join(session);
    }

    fn turns(&mut self, turns: u32) -> Duration {
        let started = Instant::now();
        (0..turns).for_each(|_| self.turn());
        started.elapsed() / turns
    }
}

/// How many sessions an event is for.
fn told(event: &Event) -> usize {
    match event {
        Event::Change { to, own, .. } => to.len() + own.len(),
        _ => 0,
    }
}

#[test]
fn r15_each_grant_is_told_to_one_however_many_wait() {
    for waiters in [100, 1_000] {
        let mut queue = Queue::of(waiters);
        assert_eq!(queue.told, 1, "only the first grant; a waiter's joining tells nobody");
        queue.told = 0;
        (0..waiters).for_each(|_| queue.turn());
        assert_eq!(queue.told as u64, waiters, "one for each grant: linear, where all told all is quadratic");
    }
}

#[test]
fn the_cost_of_a_grant_does_not_grow_with_the_queue() {
    let (mut few, mut many) = (Queue::of(10), Queue::of(10_000));
    // In turns, and the best of each: what else this machine does is in neither.
    let rounds = (0..40).map(|_| (few.turns(1_000), many.turns(1_000)));
    let (few, many) =
        rounds.fold((Duration::MAX, Duration::MAX), |best, round| (best.0.min(round.0), best.1.min(round.1)));
    let ratio = many.as_secs_f64() / few.as_secs_f64();
    println!("release, grant and join: {few:?} with 10 waiters, {many:?} with 10,000: {ratio:.2} times");
    assert!(ratio < 3.0, "a walk over the queue makes it hundreds of times: {ratio}");
}
