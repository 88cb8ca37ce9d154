//! `quorate snapshot` on real processes: what is saved is whole, and what is restored is another cluster (R30).

use crate::harness::{Ran, Server, Stream, open, quorate, run};
use quorate::proto::{self, server_frame::Frame as Told};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const TTL: Duration = Duration::from_secs(1);

fn snapshot(arguments: &[&str], file: &Path, more: &[&str]) -> Ran {
    run(quorate().arg("--json").arg("snapshot").args(arguments).arg(file).args(more))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this test is text")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A guard's word on a token.
fn admit(state: &Path, token: &str, cluster: &str) -> Ran {
    run(quorate().args(["guard", "admit", "--state", text(state), "orders", token, "--cluster", cluster]))
}

/// Takes a lock, and gives it up again if asked; the token.
async fn token_of(stream: &mut Stream, name: &str) -> (u64, u64) {
    let total = stream.join(name, proto::Face::Lock, "a").await;
    let seat = total.place.and_then(|place| place.seat).expect("it is free");
    (total.entry, seat.token)
}

#[tokio::test(flavor = "multi_thread")]
async fn r30_a_restored_service_is_another_cluster_above_what_the_guards_saw() {
    let root = tempfile::tempdir().unwrap();
    let (file, state) = (root.path().join("a.snapshot"), root.path().join("orders.guard"));
    let mut server = Server::with(&["--ttl-floor", "100ms"]);
    server.run(&["group", "create", "kept", "--seats", "3"]).ok();
    let (mut a, opened) = Stream::open(server.channel().await, TTL, proto::OnDisconnect::Hold).await;
    let old = hex(&opened.cluster);
    let (entry, first) = token_of(&mut a, "orders").await;
    assert_eq!(admit(&state, &first.to_string(), &old).code, Some(0));
    let saved = &server.json(&["snapshot", "save", text(&file)])[0];
    assert_eq!((&saved["cluster"], &saved["sessions"]), (&old.as_str().into(), &1.into()));
    assert_eq!(saved["last_token"], first.to_string());
    // After it was saved the cluster goes on, and its resource sees a greater token.
    a.call(proto::call::Op::Release(proto::Release { entry })).await;
    let (_, second) = token_of(&mut a, "orders").await;
    assert!(second > first);
    assert_eq!(admit(&state, &second.to_string(), &old).code, Some(0));
    server.stop();

    let data = root.path().join("new");
    let restore = |more: &[&str]| snapshot(&["restore", "--data-dir", text(&data)], &file, more);
    let unsafe_one = restore(&[]);
    assert_eq!(unsafe_one.code, Some(2));
    assert!(unsafe_one.last_line().contains("read `quorate guard show --state FILE`"), "{unsafe_one:?}");
    let low = restore(&["--token-floor", &first.to_string(), "--guard", text(&state)]);
    assert_eq!(low.code, Some(1));
    assert!(low.last_line().contains(&format!("has seen token {second}")), "{low:?}");
    let absurd = restore(&["--token-floor", "18446744073709551615"]);
    assert_eq!(absurd.code, Some(1), "no token would be left: {absurd:?}");
    assert!(absurd.last_line().contains("was never given out"), "{absurd:?}");
    let absent = restore(&["--guard", text(&root.path().join("nothing.guard"))]);
    assert_eq!(absent.code, Some(1), "a guard that is not there says nothing: {absent:?}");
    assert!(!data.exists(), "nothing was restored so far");
    let done = restore(&["--guard", text(&state), "--longest-ttl", "1s"]).ok().json();
    assert_eq!(
        (&done[0]["token_floor"], &done[0]["sessions_ended"]),
        (&second.to_string().into(), &1.into())
    );
    let new = done[0]["cluster"].as_str().unwrap().to_owned();
    assert_ne!(new, old);
    let again = restore(&["--no-guards"]);
    assert!(again.last_line().contains("is there already"), "{again:?}");

    let started = Instant::now();
    let server = Server::on(&data, &["--ttl-floor", "100ms"]);
    let waiting = &server.json(&["explain", "lock", "orders"])[0];
    assert_eq!(waiting["cause"], "restored", "{waiting}");
    let names = server.json(&["group", "list"]);
    assert_eq!((names.len(), &names[0]["name"], &names[0]["seats"]), (1, &"kept".into(), &3.into()));
    let mut stream = let_in(&server, started).await;
    let (_, granted) = token_of(&mut stream, "orders").await;
    assert!(granted > second, "{granted} is above everything that the resource saw");

    // The guard takes nobody of the new cluster before an operator says so, and nobody of the old one after.
    let (greater, granted) = ((granted + 100).to_string(), granted.to_string());
    let refused = admit(&state, &granted, &new);
    assert_eq!(refused.code, Some(3));
    assert!(refused.last_line().contains(&new) && refused.last_line().contains(&old), "{refused:?}");
    let reset = ["guard", "reset", "--state", text(&state), "--all", "--cluster", &new, "--why", "restored"];
    run(quorate().args(reset)).ok();
    assert_eq!(admit(&state, &granted, &new).code, Some(0));
    let late = admit(&state, &greater, &old);
    assert_eq!(late.code, Some(3), "the old cluster is over, however great its tokens");
    assert!(late.last_line().contains(&format!("cluster {old}")), "{late:?}");
}

/// Asks to be let in until the service does, and checks that it is not before the longest lease is over.
async fn let_in(server: &Server, started: Instant) -> Stream {
    let mut refused = 0;
    loop {
        let mut stream = Stream::begin(server.channel().await).await;
        stream.send(open(TTL, proto::OnDisconnect::Hold)).await;
        match stream.next().await {
            Some(Told::Opened(_)) => {
                assert!(refused > 0, "it was asked before the leases were over");
                assert!(started.elapsed() >= TTL, "the leases of the old cluster are over");
                return stream;
            }
            Some(Told::Bye(bye)) => {
                assert!(bye.why.contains("was restored from a snapshot"), "{bye:?}");
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_directory_is_saved_as_it_was_and_a_used_one_is_not() {
    let root = tempfile::tempdir().unwrap();
    let mut server = Server::with(&[]);
    let (mut a, _) = Stream::open(server.channel().await, Duration::from_secs(60), Default::default()).await;
    for name in ["a", "b", "c"] {
        a.join(name, proto::Face::Lock, "a").await;
    }
    let (online, offline) = (root.path().join("online"), root.path().join("offline"));
    let first = &server.json(&["snapshot", "save", text(&online)])[0];
    let data = server.data.clone();
    let used = snapshot(&["save", "--data-dir", text(&data)], &offline, &[]);
    assert!(used.code == Some(1) && used.last_line().contains("is in use by"), "{used:?}");
    server.stop();
    snapshot(&["save", "--data-dir", text(&data)], &offline, &[]).ok();
    let second = &snapshot(&["inspect"], &offline, &[]).ok().json()[0];
    for same in ["cluster", "sessions", "groups", "last_token", "feature_level", "longest_ttl_ms"] {
        assert_eq!(first[same], second[same], "{same}");
    }
    assert_eq!(
        (&second["sessions"], &second["groups"], &second["checksum"]),
        (&1.into(), &3.into(), &"ok".into())
    );
    assert!(second["index"].as_u64() >= first["index"].as_u64());
    let shown = run(quorate().args(["snapshot", "inspect", text(&offline)])).ok().stdout;
    for part in ["checksum ok", "last token", "1, the longest lease 1 min", "feature level"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    drop(server.again());
}

#[test]
fn a_file_that_is_not_whole_is_refused_and_nothing_is_lost() {
    let root = tempfile::tempdir().unwrap();
    let server = Server::with(&[]);
    let (file, data) = (root.path().join("good"), root.path().join("data"));
    server.json(&["snapshot", "save", text(&file)]);
    let bytes = fs::read(&file).unwrap();
    let taken = server.run(&["snapshot", "save", text(&file)]);
    assert!(taken.last_line().contains("is there already, and nothing is overwritten"), "{taken:?}");
    assert_eq!(fs::read(&file).unwrap(), bytes);
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for (name, content, why) in [
        ("cut", &bytes[..bytes.len() / 2], "is cut off"),
        ("damaged", &damaged[..], "its checksum is"),
        ("foreign", &b"PK\x03\x04"[..], "is no snapshot of quorate"),
        ("newer", &b"quorate-snapshot 9\n"[..], "has snapshot format 9"),
    ] {
        let path = root.path().join(name);
        fs::write(&path, content).unwrap();
        for ran in [
            snapshot(&["inspect"], &path, &[]),
            snapshot(&["restore", "--data-dir", text(&data)], &path, &["--no-guards"]),
        ] {
            assert!(ran.code == Some(1) && ran.last_line().contains(why), "{name}: {ran:?}");
        }
        assert!(!data.exists());
        assert_eq!(fs::read(&path).unwrap(), content, "it is left as it is");
    }
    let used = snapshot(&["restore", "--data-dir", text(&server.data)], &file, &["--no-guards"]);
    assert!(used.last_line().contains("is there already"), "{used:?}");
}
