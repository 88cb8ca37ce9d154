//! Sentences as people read them, over a real state machine without a node.

use super::*;
use quorate_core::id::{ClusterId, Generation, LogIndex, RequestId, Secret};
use quorate_core::state_machine::{Command, Join, Limits, MemberKind, Mode, Op, Proposal, Reply};

const NOW: Wall = Wall(1_764_509_400_000);

struct World {
    machine: StateMachine,
    index: u64,
}

impl World {
    fn new() -> Self {
        let mut world = Self { machine: StateMachine::new(), index: 0 };
        world.apply(Command::Found { cluster: ClusterId(1), limits: Limits::default() });
        world
    }

    /// Each command is a second after the one before it, the tenth a second before now.
    fn apply(&mut self, command: Command) -> Reply {
        self.index += 1;
        let at = Wall(NOW.0 - 11_000 + self.index * 1_000);
        self.machine.apply(LogIndex(self.index), &Proposal { at, command }).reply
    }

    fn open(&mut self, label: &str) -> SessionId {
        let secret = Secret(u128::from(self.index) + 1);
        let (ttl, on_disconnect) = (Span::from_secs(10), OnDisconnect::Hold);
        match self.apply(Command::Open { secret, ttl, on_disconnect, label: label.into() }) {
            Reply::Opened(opened) => opened.session,
            other => panic!("{other:?}"),
        }
    }

    fn call(&mut self, session: SessionId, request: u64, op: Op) -> Reply {
        let (generation, request) = (Generation(1), RequestId(request));
        self.apply(Command::Call { session, generation, request, acknowledged: RequestId(0), op })
    }

    fn join(&mut self, session: SessionId, request: u64, group: &str, face: Face, name: &str) -> Reply {
        let join = Join {
            group: Name::new(group).unwrap(),
            face,
            kind: MemberKind::Full,
            mode: Mode::Exclusive,
            wait: true,
            name: name.into(),
            metadata: BTreeMap::new(),
            weight: 0,
            policy: Default::default(),
        };
        self.call(session, request, Op::Join(join))
    }

    fn view(&self, name: &str) -> GroupView {
        self.machine.group_view(&Name::new(name).unwrap(), 10).unwrap()
    }

    fn advice(&self, name: &str, people: &People) -> Vec<String> {
        let view = self.view(name);
        advice(&view, people, &Chain::behind(&self.machine, &view))
    }
}

fn alive(left_ms: u64, silent_ms: u64) -> Person {
    Person {
        ttl: Span::from_secs(10),
        remaining: Some(Span::from_millis(left_ms)),
        silent: Some(Span::from_millis(silent_ms)),
        connected: true,
        ..Person::default()
    }
}

#[test]
fn a_held_lock_says_who_since_when_until_when_and_how_many_wait() {
    let mut world = World::new();
    let (a, b) = (world.open("host-a"), world.open("host-b"));
    world.join(a, 1, "orders", Face::Lock, "a");
    world.join(b, 1, "orders", Face::Lock, "b");
    let people = People::from([(a, alive(9_000, 1_000))]);
    assert_eq!(
        sentence(Kind::Lock, &world.view("orders"), &people, NOW),
        "lock orders is held by a (session 1, token 4) since 13:29:53 UTC (7.0 s ago) and keeps it until it \
         gives it up, or until 13:30:09 UTC if it falls silent now; 1 waits"
    );
    assert_eq!(
        world.advice("orders", &people),
        [
            "a (session 1) is alive and renews its lease of 10 s: wait until it is done, or ask it to stop with \
          `quorate session close 1`"
        ]
    );
    let silent = People::from([(a, alive(3_000, 7_000))]);
    assert_eq!(
        world.advice("orders", &silent),
        [
            "a (session 1) has been silent for 7.0 s: if it stays so, the next has its turn once its lease ends, \
          in 3.0 s at the latest; `quorate session close 1` keeps it from coming back"
        ]
    );
}

#[test]
fn a_free_lock_says_who_had_it_last() {
    let mut world = World::new();
    let a = world.open("host-a");
    let Reply::Joined(total) = world.join(a, 1, "orders", Face::Lock, "a") else { panic!("not granted") };
    world.call(a, 2, Op::Release { entry: total.entry });
    assert_eq!(
        sentence(Kind::Lock, &world.view("orders"), &People::new(), NOW),
        "lock orders is free: nobody holds it; a (session 1, token 3) had it last, until 13:29:53 UTC (7.0 s \
         ago): leave (by its own call)"
    );
}

#[test]
fn a_group_says_its_members_and_its_face() {
    let mut world = World::new();
    let (a, b) = (world.open("host-a"), world.open("host-b"));
    world.join(a, 1, "workers", Face::Group, "a");
    world.join(b, 1, "workers", Face::Group, "b");
    assert_eq!(
        sentence(Kind::Lock, &world.view("workers"), &People::new(), NOW),
        "group workers has 2 members in view 2: a (session 1, token 4) acts since 13:29:53 UTC (7.0 s ago); \
         1 stands by; it is a group, not a lock"
    );
    assert!(world.advice("workers", &People::from([(a, alive(9_000, 10))])).is_empty());
}

#[test]
fn a_deadlock_is_found_from_every_name_in_it() {
    let mut world = World::new();
    let (a, b) = (world.open("host-a"), world.open("host-b"));
    world.join(a, 1, "orders", Face::Lock, "a");
    world.join(b, 1, "stock", Face::Lock, "b");
    world.join(a, 2, "stock", Face::Lock, "a");
    assert_eq!(
        world.advice("orders", &People::new()),
        ["a (session 1) waits itself, for stock: see `quorate explain lock stock`"]
    );
    world.join(b, 2, "orders", Face::Lock, "b");
    assert_eq!(
        world.advice("stock", &People::new()),
        [
            "this is a deadlock, which ends only when one gives up: session 2 holds stock and waits for orders, \
          session 1 holds orders and waits for stock; `quorate session close 2` breaks it"
        ]
    );
    let c = world.open("host-c");
    world.join(c, 1, "front", Face::Lock, "c");
    world.join(c, 2, "orders", Face::Lock, "c");
    assert!(world.advice("front", &People::new())[0].contains("this is a deadlock"));
}

#[test]
fn a_session_says_what_it_has_and_how_it_is() {
    let mut world = World::new();
    let (a, b) = (world.open("host-a"), world.open(""));
    world.join(a, 1, "orders", Face::Lock, "a");
    world.join(b, 1, "orders", Face::Lock, "b");
    let view = world.machine.session_view(a).unwrap();
    assert_eq!(
        session_sentence(&view, &alive(9_000, 1_000), Some("127.0.0.1:5000".into()), NOW),
        "session 1 of host-a is open since 13:29:51 UTC (9.0 s ago), is connected from 127.0.0.1:5000, was \
         heard 1.0 s ago; it holds 1 seat and waits for nothing; its lease ends in 9.0 s if it falls silent now"
    );
    let view = world.machine.session_view(b).unwrap();
    let gone = Person { connected: false, ..alive(3_000, 7_000) };
    assert!(session_sentence(&view, &gone, None, NOW).starts_with("session 2 of an unnamed client is open"));
    assert_eq!(
        session_advice(&view, &gone),
        [
            "it is silent: it loses everything when its lease ends; `quorate session close 2` keeps it from coming \
          back",
            "why it waits for orders: `quorate explain lock orders`"
        ]
    );
}
