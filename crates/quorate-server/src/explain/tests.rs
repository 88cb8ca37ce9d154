//! Sentences as people read them, over a real state machine without a node.

use super::*;
use quorate_core::id::{ClusterId, Generation, LogIndex, RequestId, Secret};
use quorate_core::state_machine::{
    Command, Join, Limits, MemberKind, Mode, Op, Order, PolicyWish, Preempt, Proposal, Reply,
};
use std::collections::BTreeMap;

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

    /// The sentence, the cause and the advice, as the service would give them.
    fn explained(&self, kind: Kind, name: &str, people: &People) -> (String, &'static str, Vec<String>) {
        let view = self.view(name);
        let scene = Scene { view: &view, people, due: BTreeMap::new(), now: NOW };
        let why = headline(kind, &scene);
        (sentence(kind, &scene, &why), why.cause, why.advice.iter().map(remedy::line).collect())
    }

    /// Why each waits.
    fn waits(&self, name: &str, people: &People) -> Vec<(String, String)> {
        let view = self.view(name);
        let scene = Scene { view: &view, people, due: BTreeMap::new(), now: NOW };
        let waiters = view.waiters.iter().map(|waiter| wait::to_waiter(&scene, waiter));
        waiters.map(|waiter| (waiter.cause, waiter.sentence)).collect()
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
    let (sentence, cause, advice) =
        world.explained(Kind::Lock, "orders", &People::from([(a, alive(9_000, 1_000))]));
    assert_eq!(
        sentence,
        "lock orders is held by a (session 1, token 4) since 13:29:53 UTC (7.0 s ago) and keeps it until it \
         gives it up, or until 13:30:09 UTC if it falls silent now; 1 waits"
    );
    assert_eq!(cause, "seats_held");
    assert_eq!(
        advice,
        [
            "a (session 1) is alive and renews its lease of 10 s: wait until it is done, or ask it to stop: \
             `quorate session close 1`",
            "or have it hand over: `quorate transfer orders --to b`"
        ]
    );
}

#[test]
fn a_silent_holder_and_one_that_is_gone_are_told_apart() {
    let mut world = World::new();
    let (a, b) = (world.open("host-a"), world.open("host-b"));
    world.join(a, 1, "orders", Face::Lock, "a");
    world.join(b, 1, "orders", Face::Lock, "b");
    let silent = People::from([(a, alive(3_000, 7_000))]);
    let why = "the seat is held by a (session 1, token 4); a (session 1, token 4) is connected and silent \
               since 13:29:53 UTC: it is paused or its link is cut, and its lease ends at 13:30:03 UTC if it \
               stays so";
    assert_eq!(world.waits("orders", &silent), [("holder_silent".to_owned(), why.to_owned())]);
    let gone = People::from([(a, Person { connected: false, ..alive(9_000, 1_000) })]);
    let (sentence, cause, advice) = world.explained(Kind::Lock, "orders", &gone);
    assert_eq!(cause, "holder_disconnected");
    assert!(sentence.ends_with(
        "; 1 waits; a (session 1, token 4) has no connection: it has died or is cut off, and its lease ends at \
         13:30:09 UTC if it does not come back"
    ));
    assert_eq!(
        advice,
        ["wait for the end of its lease, and keep it from coming back meanwhile: `quorate session close 1`"]
    );
}

#[test]
fn a_free_lock_says_who_had_it_last() {
    let mut world = World::new();
    let a = world.open("host-a");
    let Reply::Joined(total) = world.join(a, 1, "orders", Face::Lock, "a") else { panic!("not granted") };
    world.call(a, 2, Op::Release { entry: total.entry });
    let (sentence, cause, _) = world.explained(Kind::Lock, "orders", &People::new());
    assert_eq!(
        sentence,
        "lock orders is free: nobody holds it; a (session 1, token 3) had it last, until 13:29:53 UTC (7.0 s \
         ago): leave (by its own call)"
    );
    assert_eq!(cause, "free");
}

#[test]
fn a_group_says_its_members_and_its_face() {
    let mut world = World::new();
    let (a, b) = (world.open("host-a"), world.open("host-b"));
    world.join(a, 1, "workers", Face::Group, "a");
    world.join(b, 1, "workers", Face::Group, "b");
    let people = People::from([(a, alive(9_000, 10))]);
    let (sentence, cause, advice) = world.explained(Kind::Lock, "workers", &people);
    assert_eq!(
        sentence,
        "group workers has 2 members in view 2: a (session 1, token 4) acts since 13:29:53 UTC (7.0 s ago) \
         and keeps it until it gives it up, or until 13:30:09 UTC if it falls silent now; 1 stands by; it is a \
         group, not a lock"
    );
    assert_eq!(cause, "other_face");
    assert_eq!(advice[0], "it is a group, not a lock: ask for what it is: `quorate explain group workers`");
}

#[test]
fn a_deadlock_is_found_from_every_name_in_it() {
    let mut world = World::new();
    let (a, b) = (world.open("host-a"), world.open("host-b"));
    world.join(a, 1, "orders", Face::Lock, "a");
    world.join(b, 1, "stock", Face::Lock, "b");
    world.join(a, 2, "stock", Face::Lock, "a");
    assert_eq!(world.explained(Kind::Lock, "orders", &People::new()).1, "nobody_waits");
    world.join(b, 2, "orders", Face::Lock, "b");
    let cycle = "this is a deadlock, a cycle, which ends only when one gives up: session 1 waits for stock, \
                 held by session 2; session 2 waits for orders, held by session 1";
    for name in ["orders", "stock"] {
        let (sentence, cause, advice) = world.explained(Kind::Lock, name, &People::new());
        assert!(sentence.ends_with(cycle), "{sentence}");
        assert_eq!(cause, "deadlock_cycle");
        assert_eq!(
            advice,
            ["break it where the newest wait is, that of b for orders: `quorate session close 2`"]
        );
    }
    let c = world.open("host-c");
    world.join(c, 1, "front", Face::Lock, "c");
    world.join(c, 2, "orders", Face::Lock, "c");
    let d = world.open("host-d");
    world.join(d, 1, "front", Face::Lock, "d");
    assert_eq!(world.waits("front", &People::new())[0].0, "deadlock_cycle", "it waits for one that is stuck");
}

#[test]
fn every_cause_that_is_given_is_in_the_list() {
    let listed = |cause: &str| CAUSES.iter().filter(|(code, _)| *code == cause).count() == 1;
    let sources = [include_str!("wait.rs"), include_str!("trouble.rs"), include_str!("../explain.rs")];
    let mut found = 0;
    for source in sources {
        for (_, rest) in source.match_indices("cause: \"").map(|(at, text)| (at, &source[at + text.len()..]))
        {
            let code = rest.split('"').next().unwrap();
            assert!(listed(code), "{code}");
            found += 1;
        }
    }
    assert!(found >= 8, "{found}");
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
    let why = session_why(&view, &gone, None, NOW);
    assert_eq!(why.cause, "session_disconnected");
    assert_eq!(why.advice[0].command, "quorate session close 2");
    assert_eq!(session_advice(&view), ["why it waits for orders: `quorate explain lock orders`"]);
}

#[test]
fn no_transfer_is_advised_that_the_weights_would_undo() {
    let mut world = World::new();
    let policy =
        PolicyWish { order: Some(Order::Weight), preempt: Some(Preempt::OnWeight), ..PolicyWish::default() };
    for (name, weight) in [("heavy", 20), ("light", 10)] {
        let session = world.open(name);
        let join = Join {
            group: Name::new("db").unwrap(),
            face: Face::Group,
            kind: MemberKind::Full,
            mode: Mode::Exclusive,
            wait: true,
            name: name.into(),
            metadata: BTreeMap::new(),
            weight,
            policy: policy.clone(),
        };
        world.call(session, 1, Op::Join(join));
    }
    let people = People::from([(SessionId(1), alive(9_000, 1_000))]);
    let (_, cause, advice) = world.explained(Kind::Group, "db", &people);
    assert_eq!((cause, advice.len()), ("seats_held", 1), "{advice:?}");
    assert!(advice[0].contains("`quorate session close 1`"), "{advice:?}");
}
