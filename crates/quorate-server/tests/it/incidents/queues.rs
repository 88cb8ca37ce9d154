//! Incidents whose culprit is the queue: deadlocks, readers and writers, pauses, parties, kept places, and names
//! that are something else.

use super::{Expected, Kind, Scene, join, lock};
use crate::harness::Stream;
use quorate::proto::{self, Face, Mode};
use std::time::Duration;

/// Holds one name each and waits for the next one's.
async fn ring(scene: &mut Scene, names: &[&str]) {
    let mut sessions = Vec::new();
    for name in names {
        sessions.push(scene.member(lock(name, &format!("holder of {name}"))).await);
    }
    for (nth, session) in sessions.iter().enumerate() {
        let next = names[(nth + 1) % names.len()];
        scene.join(*session, lock(next, &format!("holder of {}", names[nth]))).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlocks_of_every_kind_are_named_with_who_is_in_them() {
    let mut scene = Scene::new().await;
    ring(&mut scene, &["two-a", "two-b"]).await;
    let told = scene
        .expect(Expected {
            kind: Kind::Lock,
            name: "two-a",
            cause: "deadlock_cycle",
            culprit: Some(("holder of two-a", "a test")),
            says: "session 1 waits for two-b, held by session 2; session 2 waits for two-a, held by session 1",
            command: "quorate session close 2",
        })
        .await;
    assert_eq!(told["deadlocks"][0]["tie"], "cycle");
    ring(&mut scene, &["three-a", "three-b", "three-c"]).await;
    scene
        .expect(Expected {
            kind: Kind::Deadlock,
            name: "three-b",
            cause: "deadlock_cycle",
            culprit: None,
            says: "session 3 waits for three-b, held by session 4; session 4 waits for three-c, held by session 5",
            command: "quorate session close 5",
        })
        .await;

    let slots = |name: &str| proto::Join {
        policy: Some(proto::Policy { seats: Some(2), ..Default::default() }),
        ..join("slots", Face::Semaphore, name)
    };
    let first = scene.member(slots("first")).await;
    let second = scene.member(slots("second")).await;
    let third = scene.member(lock("key", "third")).await;
    scene.join(first, lock("key", "first")).await;
    scene.join(third, slots("third")).await;
    let free = scene
        .expect(Expected {
            kind: Kind::Lock,
            name: "slots",
            cause: "seats_held",
            culprit: Some(("first", "a test")),
            says: "2 of 2 seats are held",
            command: "quorate session close 6",
        })
        .await;
    assert_eq!(free["deadlocks"].as_array().map(Vec::len), Some(0), "the second can still go on");
    scene.join(second, lock("key", "second")).await;
    let knot = scene
        .expect(Expected {
            kind: Kind::Lock,
            name: "slots",
            cause: "deadlock_knot",
            culprit: Some(("first", "a test")),
            says: "a knot, which ends only when one gives up",
            command: "quorate session close 7",
        })
        .await;
    assert_eq!(knot["deadlocks"][0]["waits"].as_array().map(Vec::len), Some(3));

    let one = scene.member(lock("own", "one handle")).await;
    scene.join(one, lock("own", "another handle")).await;
    scene
        .expect(Expected {
            kind: Kind::Lock,
            name: "own",
            cause: "deadlock_self",
            culprit: Some(("one handle", "a test")),
            says: "a deadlock of one with itself",
            command: "quorate session close 9",
        })
        .await;
    let all = &scene.server.json(&["explain", "deadlock"])[0];
    assert_eq!(all["deadlocks"].as_array().map(Vec::len), Some(4), "{all:#}");
    println!("the service took at most {} us to find out", scene.took_us);
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_and_writers_say_who_keeps_whom_out() {
    let mut scene = Scene::new().await;
    let shared = |name: &str| proto::Join { mode: Mode::Shared.into(), ..lock("table", name) };
    scene.member(shared("reader a")).await;
    scene.member(shared("reader b")).await;
    scene.member(lock("table", "writer")).await;
    let told = scene
        .expect(Expected {
            kind: Kind::Lock,
            name: "table",
            cause: "shared_held",
            culprit: Some(("reader a", "a test")),
            says: "2 share it, by reader a",
            command: "quorate session close 1",
        })
        .await;
    assert_eq!(told["waits_for"].as_array().map(Vec::len), Some(2), "a writer waits for all readers");
    scene.member(shared("late reader")).await;
    let told = &scene.server.json(&["explain", "lock", "table"])[0]["waiters"][1];
    assert_eq!((&told["name"], &told["cause"]), (&"late reader".into(), &"behind_writer".into()));
    assert_eq!(told["waits_for"][0]["name"], "writer");
    assert_eq!(told["advice"][1]["command"], "quorate session close 3");
    assert!(told["sentence"].as_str().unwrap().contains("one is ahead in the queue: writer (session 3)"));
    // A session says of itself what the name says of it.
    let session = &scene.server.json(&["explain", "session", "4"])[0];
    assert_eq!(
        (&session["cause"], &session["session"]["places"][0]["waits"]),
        (&told["cause"], &told["sentence"])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pauses_parties_and_kept_places_say_until_when() {
    let mut scene = Scene::new().await;
    let resting = proto::Policy { handover_delay_ms: Some(20_000), ..Default::default() };
    let rested = |name: &str| proto::Join { policy: Some(resting), ..lock("rests", name) };
    let first = scene.session().await;
    let held = scene.join(first, rested("last holder")).await;
    scene.member(rested("next")).await;
    scene.streams[first].call(proto::call::Op::Release(proto::Release { entry: held.entry })).await;
    let told = scene
        .expect(Expected {
            kind: Kind::Lock,
            name: "rests",
            cause: "resting",
            culprit: Some(("last holder", "")),
            says: "seat 0 is free and rests for 20 s after its last holder; the pause ends at",
            command: "quorate group show rests",
        })
        .await;
    assert_eq!((&told["until_what"], told["until"].is_string()), (&"delay_end".into(), true));

    let party = |name: &str| proto::Join {
        policy: Some(proto::Policy { seats: Some(3), ..Default::default() }),
        ..join("meeting", Face::Barrier, name)
    };
    scene.member(party("a")).await;
    scene.member(party("b")).await;
    let told = scene
        .expect(Expected {
            kind: Kind::Lock,
            name: "meeting",
            cause: "parties",
            culprit: None,
            says: "2 of 3 parties are there; 1 party is missing",
            command: "quorate group seats meeting 2",
        })
        .await;
    assert_eq!(told["evidence"][1]["sentence"], "b (session 4) is there");
    scene.server.run(&["group", "seats", "meeting", "2"]).ok();
    scene.server.until("the remedy works", |server| {
        server.json(&["explain", "lock", "meeting"])[0]["waiters"].as_array().is_some_and(Vec::is_empty)
    });

    let sticky = proto::Policy { rejoin_sticky_ms: Some(30_000), ..Default::default() };
    let place = proto::Join { policy: Some(sticky), ..join("sticky", Face::Group, "away") };
    let ttl = Duration::from_secs(120);
    let (mut gone, _) = Stream::open(scene.channel.clone(), ttl, proto::OnDisconnect::Release).await;
    gone.call(proto::call::Op::Join(place)).await;
    drop(gone);
    let told = scene
        .expect(Expected {
            kind: Kind::Group,
            name: "sticky",
            cause: "reserved",
            culprit: None,
            says: "group sticky is free",
            command: "quorate join sticky --name away",
        })
        .await;
    let kept = &told["reserved"][0];
    assert_eq!((&kept["name"], &kept["until_what"]), (&"away".into(), &"grace_end".into()));
    assert!(kept["sentence"].as_str().unwrap().contains("its place is kept for 30 s"), "{kept}");
    println!("the service took at most {} us to find out", scene.took_us);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_queue_behind_one_slow_holder_names_the_holder() {
    let mut scene = Scene::new().await;
    scene.member(lock("slow", "culprit")).await;
    let many = scene.session().await;
    for nth in 0..300 {
        scene.join(many, lock("slow", &format!("w{nth}"))).await;
    }
    let told = scene
        .expect(Expected {
            kind: Kind::Lock,
            name: "slow",
            cause: "seats_held",
            culprit: Some(("culprit", "a test")),
            says: "300 wait",
            command: "quorate session close 1",
        })
        .await;
    assert_eq!(told["remedies"][1]["command"], "quorate transfer slow --to w0");
    let last = told["waiters"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["cause"], &last["waits_for"][0]["name"]), (&"behind".into(), &"w0".into()));
    println!("the service took {} us with 300 waiters", scene.took_us);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_something_else_or_nothing_say_so() {
    let mut scene = Scene::new().await;
    scene.member(join("board", Face::Leadership, "chair")).await;
    for (kind, name, cause, says, command) in [
        (Kind::Lock, "board", "other_face", "it is a leadership, not a lock", "quorate explain leader board"),
        (Kind::Leader, "board", "nobody_waits", "leadership board is held by chair", ""),
        (Kind::Lock, "never", "unused", "nobody has used it", "quorate group list"),
        (Kind::Session, "1", "session_well", "it holds 1 seat and waits for nothing", ""),
        (Kind::Session, "99", "no_session", "there is no session 99", "quorate session list"),
    ] {
        scene.expect(Expected { kind, name, cause, culprit: None, says, command }).await;
    }
    let made = scene.server.json(&["group", "create", "made"])[0]["created"].as_u64().unwrap();
    let wrong = scene.server.run(&["group", "delete", "made", "--created", "1"]);
    assert_eq!(
        wrong.last_line(),
        format!("quorate: made was made at log index {made}, not 1: it is another one; nothing was deleted")
    );
}

/// One of two holders can go on: whoever would be alone waits for that one, whoever would share waits for
/// ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_of_one_that_would_share_several_seats_is_named_by_the_name() {
    let mut scene = Scene::new().await;
    let pool = |name: &str, mode: Mode| proto::Join {
        mode: mode.into(),
        policy: Some(proto::Policy { seats: Some(2), ..Default::default() }),
        ..join("pool", Face::Semaphore, name)
    };
    let stuck = scene.member(pool("stuck", Mode::Exclusive)).await;
    scene.member(pool("free", Mode::Exclusive)).await;
    scene.member(pool("alone", Mode::Exclusive)).await;
    let shares = scene.member(lock("key", "shares")).await;
    scene.join(shares, pool("shares", Mode::Shared)).await;
    let before = &scene.server.json(&["explain", "lock", "pool"])[0];
    assert_eq!(
        (&before["cause"], before["deadlocks"].as_array().map(Vec::len)),
        (&"seats_held".into(), Some(0))
    );
    scene.join(stuck, lock("key", "stuck")).await;
    let (says, command) = ("session 4 waits for pool, held by session 1", "quorate session close 1");
    for (kind, name) in [(Kind::Lock, "pool"), (Kind::Lock, "key"), (Kind::Deadlock, "pool")] {
        let culprit = match (kind, name) {
            (Kind::Deadlock, _) => None,
            (_, "pool") => Some(("stuck", "a test")),
            _ => Some(("shares", "a test")),
        };
        let told =
            scene.expect(Expected { kind, name, cause: "deadlock_cycle", culprit, says, command }).await;
        assert_eq!(told["deadlocks"][0]["tie"], "cycle", "{told:#}");
    }
    let told = &scene.server.json(&["explain", "lock", "pool"])[0];
    let causes: Vec<_> =
        told["waiters"].as_array().unwrap().iter().map(|w| (&w["name"], &w["cause"])).collect();
    let expected = [(&"alone".into(), &"seats_held".into()), (&"shares".into(), &"deadlock_cycle".into())];
    assert_eq!(causes, expected, "one is told that it may go on, the other that it never will");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_low_is_the_cause_of_a_name_that_cannot_be_had() {
    let mut scene = Scene::with(&["--disk-reserve-bytes", "1099511627776"]).await;
    let told = scene
        .expect(Expected {
            kind: Kind::Lock,
            name: "orders",
            cause: "disk_low",
            culprit: None,
            says: "nobody has used it",
            command: "quorate status",
        })
        .await;
    assert!(told["evidence"][0]["sentence"].as_str().unwrap().contains("only release, leave and expiry"));
}

/// How many frames that tell of a change the service has sent.
fn changes_sent(scene: &Scene) -> f64 {
    let (_, text) = scene.server.http("GET", "/metrics");
    let line = text.lines().find(|line| line.starts_with("quorate_frames_sent_total{kind=\"change\"}"));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect("it is counted")
}

#[tokio::test(flavor = "multi_thread")]
async fn r15_a_grant_is_told_to_one_over_the_wire_however_many_wait() {
    let mut scene = Scene::new().await;
    let mut sessions = Vec::new();
    for _ in 0..10 {
        sessions.push(scene.session().await);
    }
    for waiters in [100_usize, 1_000] {
        let name = format!("queue of {waiters}");
        let mut line = Vec::new();
        for nth in 0..=waiters {
            let session = sessions[nth % sessions.len()];
            line.push((session, scene.join(session, lock(&name, "w")).await.entry));
        }
        let before = changes_sent(&scene);
        for (session, entry) in line {
            let release = proto::call::Op::Release(proto::Release { entry });
            scene.streams[session].call(release).await;
        }
        scene.server.until("every grant was told", |_| changes_sent(&scene) - before >= waiters as f64);
        assert_eq!(
            changes_sent(&scene) - before,
            waiters as f64,
            "one for each grant, not one for each waiter"
        );
    }
}

/// The names and turns of those that wait, as each interface lists them.
async fn turns(scene: &mut Scene, name: &str) -> [Vec<(String, u64)>; 4] {
    let (kind, says, cause, command) = (Kind::Group, "", "", "");
    let asked = Expected { kind, name, cause, culprit: None, says, command };
    let (grpc, http, cli) = scene.three(&asked).await;
    let json = |told: &serde_json::Value| {
        let all = told["waiters"].as_array().expect("a list").iter();
        let one = |waiter: &serde_json::Value| {
            (
                waiter["name"].as_str().expect("a name").to_owned(),
                waiter["position"].as_u64().expect("a turn"),
            )
        };
        all.map(one).collect::<Vec<_>>()
    };
    let text = scene.server.run(&["explain", "group", name]).ok().stdout;
    let table = text.split("\n\n").find(|section| section.starts_with("Standing by")).expect("a table");
    let rows = table.lines().skip(2).filter_map(|row| {
        let mut words = row.split_whitespace();
        let turn = words.next()?.parse().ok()?;
        Some((words.next()?.to_owned(), turn))
    });
    let told = grpc.waiters.iter().map(|waiter| (waiter.name.clone(), waiter.position)).collect();
    [told, json(&http), json(&cli), rows.collect()]
}

/// Whatever numbers the policy gives, the list says who is next, everywhere alike, and that is who is.
#[tokio::test(flavor = "multi_thread")]
async fn those_that_wait_are_listed_in_the_order_of_their_turns() {
    let mut scene = Scene::new().await;
    let (stable, minimal) = (proto::Numbering::Stable, proto::Numbering::MinimalMove);
    let member = |group: &str, name: &str, numbering: proto::Numbering, weight: Option<u32>| proto::Join {
        weight: weight.unwrap_or(100),
        policy: Some(proto::Policy {
            numbering: Some(numbering.into()),
            order: weight.map(|_| proto::Order::Weight.into()),
            ..Default::default()
        }),
        ..join(group, Face::Group, name)
    };
    for (group, numbering, weighs) in
        [("stable", stable, false), ("minimal", minimal, false), ("weighed", stable, true)]
    {
        let mut places = Vec::new();
        for (name, weight) in [("one", 1), ("two", 5), ("three", 20), ("four", 10)] {
            let session = scene.session().await;
            let joined = member(group, name, numbering, weighs.then_some(weight));
            places.push((name, session, scene.join(session, joined).await.entry));
        }
        let (_, second, entry) = places.remove(1);
        scene.streams[second].call(proto::call::Op::Release(proto::Release { entry })).await;
        let session = scene.session().await;
        let late = member(group, "late", numbering, weighs.then_some(15));
        places.push(("late", session, scene.join(session, late).await.entry));
        let expected = if weighs { ["three", "late", "four"] } else { ["three", "four", "late"] };
        let numbered: Vec<(String, u64)> = expected.iter().map(|name| name.to_string()).zip(2..).collect();
        for told in turns(&mut scene, group).await {
            assert_eq!(told, numbered, "{group}");
        }
        for next in expected {
            let acts = scene.server.json(&["explain", "group", group])[0]["holders"][0]["name"].clone();
            let (_, session, entry) = *places.iter().find(|(name, ..)| acts == *name).expect("a member acts");
            scene.streams[session].call(proto::call::Op::Release(proto::Release { entry })).await;
            let acts = &scene.server.json(&["explain", "group", group])[0]["holders"][0]["name"];
            assert_eq!(acts, next, "it is seated as it was listed, in {group}");
        }
    }
}
