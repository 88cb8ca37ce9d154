//! The operator's commands on a real service, as people and programs see them.

use crate::harness::{Server, Stream, quorate, run};
use quorate::proto::{self, server_frame::Frame as Told};
use std::io::Read;
use std::process::Stdio;
use std::time::Duration;

const TTL: Duration = Duration::from_secs(30);

/// Two that want one lock, and a group of two.
async fn busy() -> (Server, Vec<Stream>) {
    let server = Server::start();
    let channel = server.channel().await;
    let mut streams = Vec::new();
    for name in ["alpha", "beta"] {
        let (mut stream, _) = Stream::open(channel.clone(), TTL, proto::OnDisconnect::Hold).await;
        stream.join("orders", proto::Face::Lock, name).await;
        stream.join("workers", proto::Face::Group, name).await;
        streams.push(stream);
    }
    (server, streams)
}

#[test]
fn an_unreachable_service_is_code_69_and_says_what_to_do() {
    // Port 1 of this machine is nobody's.
    let ran = run(quorate().args(["--server", "127.0.0.1:1,localhost:1", "status"]));
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(69), ""));
    assert_eq!(
        ran.last_line(),
        "quorate: no service answers at 127.0.0.1:1 (connection refused), localhost:1 (connection refused); \
         start one with `quorate serve`, or name another with --server or QUORATE_SERVER"
    );
}

#[test]
fn a_wrong_command_line_is_code_2_with_the_same_last_line() {
    for (arguments, reason) in [
        (&["statsu"][..], "quorate: unrecognized subcommand 'statsu'"),
        (
            &["session", "show", "x"],
            "quorate: invalid value 'x' for '<SESSION>': invalid digit found in string",
        ),
        (
            &["--server", "a b", "status"],
            "quorate: invalid value 'a b' for '--server <ADDRESS>': \"a b\" is no \
         address; an address is host:port or http://host:port",
        ),
        (&["lock", "orders"], "quorate: the following required arguments were not provided: <COMMAND>..."),
        (&[], "quorate: a command is missing; they are listed above"),
    ] {
        let ran = run(quorate().args(arguments));
        assert_eq!((ran.code, ran.last_line()), (Some(2), reason));
    }
}

#[test]
fn help_shows_examples_and_every_exit_code() {
    let help = run(quorate().arg("--help")).ok().stdout;
    for part in ["Examples:", "Exit codes:", "  69     no service can be reached", "explain lock orders"] {
        assert!(help.contains(part), "{part} in {help}");
    }
    let help = run(quorate().args(["serve", "--help"])).ok().stdout;
    for part in ["QUORATE_TTL_FLOOR", "1ms to 10min", "--disk-reserve-bytes"] {
        assert!(help.contains(part), "{part} in {help}");
    }
    let version = run(quorate().arg("--version")).ok().stdout;
    for part in ["data format      1", "record format    1", "snapshot format  1", "quorate.v1"] {
        assert!(version.contains(part), "{part} in {version}");
    }
}

#[test]
fn groups_are_made_listed_and_deleted() {
    let server = Server::start();
    let created =
        server.json(&["group", "create", "workers", "--seats", "2"])[0]["created"].as_u64().unwrap();
    server.run(&["group", "create", "workers", "--seats", "2"]).ok();
    let clash = server.run(&["group", "create", "workers", "--seats", "3"]);
    assert_eq!(clash.code, Some(1));
    assert!(clash.last_line().contains("seats = 2"), "both statements are shown: {}", clash.stderr);
    let later = server.run(&["group", "create", "other", "--handover", "seal"]);
    assert!(later.last_line().contains("not supported at feature level 2"), "{}", later.stderr);
    let shown = server.run(&["group", "show", "workers"]).ok().stdout;
    assert!(shown.contains("seats = 2") && shown.contains("stays when nobody is in it"), "{shown}");
    let wrong = server.run(&["group", "delete", "workers", "--created", "1"]);
    assert_eq!(wrong.code, Some(1), "another one is not deleted");
    server.run(&["group", "delete", "workers", "--created", &created.to_string()]).ok();
    assert!(server.json(&["group", "list"]).is_empty());
    assert_eq!(server.run(&["group", "delete", "workers"]).last_line(), "quorate: there is no \"workers\"");
    assert_eq!(server.run(&["group", "create", " x "]).code, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_explained_from_its_holder_to_its_last_waiter() {
    let (server, mut streams) = busy().await;
    let text = server.run(&["explain", "lock", "orders"]).ok().stdout;
    let told = &server.json(&["explain", "lock", "orders"])[0];
    let token = told["holders"][0]["seat"]["token"].as_str().unwrap();
    let sentence = told["sentence"].as_str().unwrap();
    assert!(sentence.starts_with(&format!("lock orders is held by alpha (session 1, token {token}) since ")));
    assert!(sentence.ends_with("; 1 waits"), "{sentence}");
    assert_eq!(told["waiters"][0]["position"], 2);
    assert_eq!(told["waiters"][0]["cause"], "seats_held");
    let why = format!("the seat is held by alpha (session 1, token {token})");
    assert_eq!(told["waiters"][0]["sentence"], why.as_str());
    assert!(told["holders"][0]["lease_remaining_ms"].as_u64().unwrap() > 20_000);
    for part in [why.as_str(), "2  beta", "(at most 32 are remembered)", "`quorate session close 1`"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let entry = told["holders"][0]["entry"].as_u64().unwrap();
    streams[0].call(proto::call::Op::Release(proto::Release { entry })).await;
    let after = &server.json(&["explain", "lock", "orders"])[0];
    assert!(
        after["sentence"].as_str().unwrap().starts_with("lock orders is held by beta (session 2, token ")
    );
    assert_eq!(after["history"][2]["released_token"], token);
    assert_eq!(after["history"][2]["granted"][0]["name"], "beta");
    let never = &server.json(&["explain", "lock", "never"])[0];
    assert_eq!(
        never["sentence"],
        "nobody holds \"never\", nobody waits for it, and nobody has used it as far as is remembered"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_fit_a_hundred_columns_and_have_no_blanks_at_the_ends() {
    let (server, _streams) = busy().await;
    for arguments in [
        &["status"][..],
        &["group", "list"],
        &["group", "show", "workers"],
        &["session", "list"],
        &["session", "show", "1"],
        &["explain", "lock", "orders"],
        &["explain", "group", "workers"],
        &["explain", "session", "2"],
    ] {
        let text = server.run(arguments).ok().stdout;
        assert!(text.lines().count() >= 2, "{arguments:?}: {text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{arguments:?}: {line}");
            assert_eq!(line, line.trim_end(), "{arguments:?}");
            assert!(!line.contains('\x1b'), "no colours where there is no terminal");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r11_a_closed_session_is_asked_and_keeps_its_seat_until_it_stops() {
    let (server, mut streams) = busy().await;
    let said = server.run(&["session", "close", "1", "--why", "it is stuck"]).ok().stdout;
    assert!(
        said.starts_with("session 1 is asked to stop; it holds until it does, or until its lease ends in ")
    );
    let closing = loop {
        if let Told::Closing(closing) = streams[0].next().await.expect("the stream goes on") {
            break closing;
        }
    };
    assert_eq!(closing.why, "it is stuck");
    let told = &server.json(&["explain", "lock", "orders"])[0];
    assert_eq!(told["holders"][0]["session"], 1, "it may still act");
    assert!(told["sentence"].as_str().unwrap().contains("was asked to stop (it is stuck)"), "{told}");
    assert_eq!((&told["cause"], &told["until_what"]), (&"holder_closing".into(), &"lease_end".into()));
    assert_eq!(server.json(&["session", "show", "1"])[0]["closing"], "it is stuck");
    let end = proto::Call { request: 9, acknowledged: 2, op: Some(proto::call::Op::End(proto::End {})) };
    streams[0].send(proto::client_frame::Frame::Call(end)).await;
    let mut last = None;
    while let Some(told) = streams[0].next().await {
        last = Some(told);
    }
    assert!(matches!(&last, Some(Told::Ended(ended)) if ended.evidence == "it is stuck"), "{last:?}");
    let told = &server.json(&["explain", "lock", "orders"])[0];
    assert_eq!(told["holders"][0]["session"], 2, "its own word moves the seat at once");
    let gone = server.run(&["session", "close", "1"]);
    assert_eq!((gone.code, gone.last_line().starts_with("quorate: session 1 has ended")), (Some(1), true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_shown_with_its_cycle() {
    let server = Server::start();
    let channel = server.channel().await;
    let (mut a, _) = Stream::open(channel.clone(), TTL, proto::OnDisconnect::Hold).await;
    let (mut b, _) = Stream::open(channel, TTL, proto::OnDisconnect::Hold).await;
    a.join("orders", proto::Face::Lock, "a").await;
    b.join("stock", proto::Face::Lock, "b").await;
    a.join("stock", proto::Face::Lock, "a").await;
    b.join("orders", proto::Face::Lock, "b").await;
    let told = &server.json(&["explain", "lock", "orders"])[0];
    let cycle = "this is a deadlock, a cycle, which ends only when one gives up: session 1 waits for stock, held \
                 by session 2; session 2 waits for orders, held by session 1";
    assert!(told["sentence"].as_str().unwrap().ends_with(cycle), "{told}");
    assert_eq!(
        told["advice"][0],
        "break it where the newest wait is, that of b for orders: `quorate session close 2`"
    );
    let all = &server.json(&["explain", "deadlock"])[0];
    assert_eq!((&all["sentence"], &all["cause"]), (&cycle.into(), &"deadlock_cycle".into()));
    assert_eq!(all["deadlocks"], server.json(&["explain", "deadlock", "stock"])[0]["deadlocks"]);
    let text = server.run(&["explain", "deadlock"]).ok().stdout;
    assert!(text.contains("cycle  a           1  stock      session 2"), "{text}");
}

#[test]
fn a_list_of_many_pages_is_whole_and_a_reader_that_leaves_is_no_error() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let channel = server.channel().await;
        let made = (0..1_100).map(|n| {
            let mut operator = proto::operator_client::OperatorClient::new(channel.clone());
            async move {
                let client = vec![0; 16].into();
                let request =
                    proto::CreateGroupRequest { client, group: format!("g{n:04}"), ..Default::default() };
                operator.create_group(request).await.unwrap();
            }
        });
        futures::future::join_all(made).await;
    });
    let listed = server.json(&["group", "list"]);
    assert_eq!(listed.len(), 1_100);
    assert_eq!(listed[1_099]["name"], "g1099");
    let mut child = server
        .quorate()
        .args(["--json", "group", "list"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((child.wait().unwrap().code(), said.as_str()), (Some(141), ""), "quiet, as SIGPIPE is");
}
