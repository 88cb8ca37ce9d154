//! Incidents whose culprit is a holder: it is paused, dead, cut off, stuck, or was asked to stop and does not.

use super::relay::Relay;
use super::{Expected, Kind, Scene, join, lock, session_of};
use quorate::proto::{self, Face, answer::Reply};
use rustix::process::Signal;

fn pid_label(pid: u32) -> String {
    format!("(pid {pid})")
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_dead_and_cut_off_processes_are_told_apart() {
    let mut scene = Scene::new().await;
    let address = scene.server.address.to_string();

    let paused = scene.process("paused", &address);
    scene.member(join("paused", Face::Group, "next")).await;
    scene.children[0].signal(Signal::STOP);
    let told = scene
        .expect(Expected {
            kind: Kind::Group,
            name: "paused",
            cause: "holder_silent",
            culprit: Some(("culprit", &pid_label(paused))),
            says: "is connected and silent since",
            command: "quorate session close ",
        })
        .await;
    assert_eq!(told["until_what"], "lease_end");
    assert!(told["remedies"][0]["command"].as_str().unwrap().ends_with(&session_of(&told).to_string()));

    let killed = scene.process("killed", &address);
    scene.member(join("killed", Face::Group, "next")).await;
    scene.children[1].signal(Signal::KILL);
    let told = scene
        .expect(Expected {
            kind: Kind::Group,
            name: "killed",
            cause: "holder_disconnected",
            culprit: Some(("culprit", &pid_label(killed))),
            says: "has no connection: it has died or is cut off",
            command: "quorate session close ",
        })
        .await;
    assert!(told["until"].is_string(), "the end of its lease is known: {told}");

    let relay = Relay::to(scene.server.address).await;
    let cut_off = scene.process("cut-off", &relay.address.to_string());
    scene.member(join("cut-off", Face::Group, "next")).await;
    relay.cut();
    scene
        .expect(Expected {
            kind: Kind::Group,
            name: "cut-off",
            cause: "holder_silent",
            culprit: Some(("culprit", &pid_label(cut_off))),
            says: "it is paused or its link is cut",
            command: "quorate session close ",
        })
        .await;
    println!("the service took at most {} us to find out", scene.took_us);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_without_progress_and_one_that_holds_too_long_are_named() {
    let mut scene = Scene::new().await;
    let terms = proto::Terms { progress_ms: Some(100), ..Default::default() };
    scene.member(proto::Join { terms: Some(terms), ..lock("stalled", "culprit") }).await;
    scene.member(lock("stalled", "next")).await;
    scene
        .expect(Expected {
            kind: Kind::Lock,
            name: "stalled",
            cause: "holder_stalled",
            culprit: Some(("culprit", "a test")),
            says: "gives no sign since",
            command: "quorate session close 1",
        })
        .await;
    let terms = proto::Terms { max_hold_ms: Some(100), ..Default::default() };
    scene.member(proto::Join { terms: Some(terms), ..lock("long", "culprit") }).await;
    scene.member(lock("long", "next")).await;
    scene
        .expect(Expected {
            kind: Kind::Lock,
            name: "long",
            cause: "asked_max_hold",
            culprit: Some(("culprit", "a test")),
            says: "it has held for 100 ms, as long as it said",
            command: "quorate session close 3",
        })
        .await;
    let terms = proto::Terms { max_hold_ms: Some(100_000), ..Default::default() };
    scene.member(proto::Join { terms: Some(terms), ..lock("well", "holder") }).await;
    scene.member(lock("well", "next")).await;
    let told = scene
        .expect(Expected {
            kind: Kind::Lock,
            name: "well",
            cause: "seats_held",
            culprit: Some(("holder", "a test")),
            says: "lock well is held by holder",
            command: "quorate session close 5",
        })
        .await;
    assert_eq!(told["waiters"][0]["until_what"], "max_hold");
    assert_eq!(told["remedies"][1]["command"], "quorate transfer well --to next");
    println!("the service took at most {} us to find out", scene.took_us);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_does_not_hand_over_is_named_during_the_drain_and_after() {
    let mut scene = Scene::new().await;
    scene.member(join("workers", Face::Group, "culprit")).await;
    let next = scene.member(join("workers", Face::Group, "next")).await;
    let mut transfer = scene.server.quorate();
    transfer.args(["--json", "transfer", "workers", "--to", "next", "--drain", "3s"]);
    let transfer = std::thread::spawn(move || crate::harness::run(&mut transfer));
    let told = scene
        .expect(Expected {
            kind: Kind::Group,
            name: "workers",
            cause: "asked_transfer",
            culprit: Some(("culprit", "a test")),
            says: "to say that it has, else it holds on",
            command: "quorate transfer workers --to next --force",
        })
        .await;
    assert_eq!(told["until_what"], "drain_end");
    let failed = transfer.join().expect("it ends");
    assert_eq!(failed.code, Some(73), "{failed:?}");
    assert_eq!(failed.json()[0]["outcome"], "failed");
    assert!(failed.stderr.contains("waiting: "), "it said what it waited for: {failed:?}");
    assert!(failed.last_line().contains("culprit (session 1) holds on with token"), "{failed:?}");
    let told = scene
        .expect(Expected {
            kind: Kind::Group,
            name: "workers",
            cause: "seats_held",
            culprit: Some(("culprit", "a test")),
            says: "1 stands by",
            command: "quorate session close 1",
        })
        .await;
    let evidence = told["evidence"].as_array().unwrap();
    assert!(evidence.iter().any(|known| known["what"] == "not_stopped"), "{evidence:?}");
    assert_eq!(told["remedies"][1]["command"], "quorate transfer workers --to next --force");

    // The holder that says that it has stopped is done at once; the member is named by its place.
    let (place, entry) = {
        let shown = &scene.server.json(&["explain", "group", "workers"])[0];
        (format!("#{}", shown["waiters"][0]["entry"]), shown["holders"][0]["entry"].as_u64().unwrap())
    };
    let mut transfer = scene.server.quorate();
    transfer.args(["--json", "transfer", "workers", "--to", &place]);
    let transfer = std::thread::spawn(move || crate::harness::run(&mut transfer));
    scene.server.until("it is asked", |server| {
        server.json(&["explain", "group", "workers"])[0]["cause"] == "asked_transfer"
    });
    scene.streams[0].call(proto::call::Op::Stopped(proto::Stopped { entry })).await;
    let moved = transfer.join().expect("it ends").ok().json();
    assert_eq!(moved[0]["outcome"], "moved");
    let holder = &scene.server.json(&["explain", "group", "workers"])[0]["holders"][0];
    assert_eq!((&holder["name"], &holder["seat"]["token"]), (&"next".into(), &moved[0]["token"]));
    assert_eq!(holder["session"], next as u64 + 1);
    let refused = scene.server.run(&["--json", "transfer", "workers", "--to", "nobody"]);
    assert_eq!((refused.code, &refused.json()[0]["outcome"]), (Some(1), &"refused".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_an_operator_asked_to_stop_is_named_with_why() {
    let mut scene = Scene::new().await;
    scene.member(lock("closed", "culprit")).await;
    scene.member(lock("closed", "next")).await;
    scene.server.run(&["session", "close", "1", "--why", "it is stuck"]).ok();
    let told = scene
        .expect(Expected {
            kind: Kind::Lock,
            name: "closed",
            cause: "holder_closing",
            culprit: Some(("culprit", "a test")),
            says: "was asked to stop (it is stuck)",
            command: "quorate session show 1",
        })
        .await;
    assert_eq!(told["until_what"], "lease_end");
    let slots = |name: &str| proto::Join {
        policy: Some(proto::Policy { seats: Some(2), ..Default::default() }),
        ..join("fewer", Face::Semaphore, name)
    };
    scene.member(slots("stays")).await;
    scene.member(slots("culprit")).await;
    let said = scene.server.run(&["group", "seats", "fewer", "1"]).ok().stdout;
    assert!(said.starts_with("fewer has 1 seat; this one was asked to stop"), "{said}");
    scene
        .expect(Expected {
            kind: Kind::Lock,
            name: "fewer",
            cause: "asked_fewer_seats",
            culprit: Some(("culprit", "a test")),
            says: "the seats became 1",
            command: "quorate session close 4",
        })
        .await;
    scene.member(lock("ending", "culprit")).await;
    scene.member(lock("ending", "next")).await;
    let left = &scene.server.json(&["group", "delete", "ending", "--end"])[0];
    assert_eq!((&left["deleted"], &left["left"][0]["session"]), (&false.into(), &5.into()));
    scene
        .expect(Expected {
            kind: Kind::Lock,
            name: "ending",
            cause: "asked_delete",
            culprit: Some(("culprit", "a test")),
            says: "the group is being deleted",
            command: "quorate session close 5",
        })
        .await;
    let heavy = |name: &str, weight| proto::Join {
        weight,
        policy: Some(proto::Policy {
            order: Some(proto::Order::Weight.into()),
            preempt: Some(proto::Preempt::OnWeight.into()),
            ..Default::default()
        }),
        ..join("heavy", Face::Group, name)
    };
    scene.member(heavy("culprit", 1)).await;
    scene.member(heavy("heavier", 9)).await;
    scene
        .expect(Expected {
            kind: Kind::Group,
            name: "heavy",
            cause: "asked_preempt",
            culprit: Some(("culprit", "a test")),
            says: "heavier is heavier (9 to 1)",
            command: "quorate session close 7",
        })
        .await;
    let end = scene.streams[4].call(proto::call::Op::End(proto::End {})).await;
    assert!(matches!(end, Reply::Done(_)), "{end:?}");
    scene.server.until("the name is gone", |server| {
        server.json(&["explain", "lock", "ending"])[0]["cause"] == "unused"
    });
    println!("the service took at most {} us to find out", scene.took_us);
}
