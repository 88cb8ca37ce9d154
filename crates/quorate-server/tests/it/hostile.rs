//! What careless, unlucky and hostile users do: terminal commands for names, other programs behind a port, a data
//! directory that lost a file.

use crate::harness::{Server, Stream, open, quorate, run, serve, wait};
use quorate::proto::{self, client_frame::Frame};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const TTL: Duration = Duration::from_secs(30);

/// It would clear the screen, name the window, begin a line of its own, and turn the direction of writing.
const NASTY: &str = "evil\x1b[2J\x1b]0;mine\x07\r\n14:02:09.207  active\u{9b}1m\u{7f}\u{202e}live";

/// Whatever a terminal would obey, but for the ends of lines.
fn obeyed(text: &str) -> Option<char> {
    text.chars().find(|one| (one.is_control() && *one != '\n') || *one == '\u{202e}')
}

/// A session with a nasty label, that holds a lock, leads and is a member, under nasty names.
async fn nasty(server: &Server) -> Stream {
    let mut stream = Stream::begin(server.channel().await).await;
    let Frame::Open(opening) = open(TTL, proto::OnDisconnect::Hold) else { panic!("it opens") };
    stream.send(Frame::Open(proto::Open { label: NASTY.into(), ..opening })).await;
    stream.next().await.expect("it is let in");
    for (group, face) in
        [("orders", proto::Face::Lock), ("boss", proto::Face::Leadership), ("workers", proto::Face::Group)]
    {
        let metadata = [("value".to_owned(), NASTY.to_owned()), (NASTY.to_owned(), "x".to_owned())].into();
        let join = proto::Join {
            group: group.into(),
            face: face.into(),
            name: NASTY.into(),
            wait: true,
            metadata,
            ..Default::default()
        };
        let answer = stream.call(proto::call::Op::Join(join)).await;
        assert!(matches!(answer, proto::answer::Reply::Joined(_)), "{answer:?}");
    }
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_call_themselves_is_no_command_to_a_terminal() {
    let server = Server::start();
    let _stream = nasty(&server).await;
    for arguments in [
        &["group", "list"][..],
        &["group", "show", "workers"],
        &["group", "show", "orders"],
        &["explain", "lock", "orders"],
        &["explain", "leader", "boss"],
        &["explain", "group", "workers"],
        &["explain", "session", "1"],
        &["session", "list"],
        &["session", "show", "1"],
        &["observe", "boss", "--once"],
        &["lock", "orders", "--try", "--", "true"],
        &["lock", "orders", "--wait", "1ms", "--", "true"],
        &["transfer", "workers", "--to", NASTY],
    ] {
        let ran = server.run(arguments);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert_eq!(obeyed(&said), None, "{arguments:?}: {said:?}");
        assert!(said.contains("evil\\u{1b}[2J"), "{arguments:?} shows what it is: {said:?}");
        let forged = said.lines().any(|line| line.starts_with("14:02:09.207"));
        assert!(!forged, "{arguments:?}: nobody begins a line of their own: {said:?}");
    }
    for arguments in [&["group", "list"][..], &["explain", "lock", "orders"], &["session", "list"]] {
        let ran = run(server.quorate().arg("--json").args(arguments)).ok();
        assert_eq!(obeyed(&ran.stdout), None, "{arguments:?}: {:?}", ran.stdout);
        assert!(!ran.json().is_empty(), "{arguments:?}");
    }
    let listed = server.json(&["group", "list"]);
    assert!(
        listed.iter().all(|group| group["holder"]["name"] == NASTY),
        "programs get it as it is: {listed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_members_name_forges_no_line_of_another_members() {
    let server = Server::start();
    let _stream = nasty(&server).await;
    for json in [false, true] {
        let mut command = server.quorate();
        let mut member = command
            .args(if json { &["--json"][..] } else { &[] })
            .args(["join", "workers", "--name", "honest"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(member.stdout.take().unwrap()).lines();
        let first = lines.next().expect("it says that it is in").unwrap();
        kill_process(Pid::from_child(&member), Signal::TERM).unwrap();
        assert_eq!(wait(&mut member).code(), Some(0));
        assert_eq!(obeyed(&first), None, "{first:?}");
        assert!(first.contains("honest") && first.contains("evil"), "all of it is one line: {first:?}");
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        assert_eq!(rest.len(), 1, "only that it left: {rest:?}");
    }
}

#[test]
fn a_port_where_something_else_listens_is_said_and_passed_over() {
    let mail = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (other, stopped) = (mail.local_addr().unwrap(), silent.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in mail.incoming() {
            let _ = stream.and_then(|mut stream| stream.write_all(b"220 mail.example ESMTP\r\n"));
        }
    });
    let server = Server::start();
    let all = format!("{other},{stopped},{}", server.address);
    run(quorate().args(["--server", &all, "status"])).ok();
    run(quorate().args(["--server", &all, "explain", "lock", "orders"])).ok();
    let ran = run(quorate().args(["--server", &format!("{other},{stopped}"), "status"]));
    assert_eq!(ran.code, Some(69), "{ran:?}");
    let expected = format!(
        "quorate: no service answers at {other} (what listens there is no service of quorate), {stopped} (no answer \
         within 3 s); start one with `quorate serve`, or name another with --server or QUORATE_SERVER"
    );
    assert_eq!(ran.last_line(), expected);
}

/// A directory that a service with one name used, and left in order.
fn used(root: &Path) -> std::path::PathBuf {
    let data = root.join("data");
    let mut server = Server::on(&data, &[]);
    server.run(&["group", "create", "kept"]).ok();
    server.stop();
    data
}

#[test]
fn a_directory_without_its_format_file_is_not_founded_anew() {
    let root = tempfile::tempdir().unwrap();
    let data = used(root.path());
    let (log, format) = (data.join("node.log"), data.join("FORMAT"));
    let (before, sealed) = (fs::read(&log).unwrap(), fs::read(&format).unwrap());
    fs::remove_file(&format).unwrap();
    let refused = run(&mut serve(&data, &[]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.last_line().contains("its file FORMAT is gone"), "{refused:?}");
    assert!(fs::read(&log).unwrap() == before, "nothing of the log was touched");
    fs::write(&format, sealed).unwrap();
    let server = Server::on(&data, &[]);
    assert_eq!(server.json(&["group", "list"])[0]["name"], "kept");
}

#[test]
fn a_log_whose_acknowledged_end_is_gone_says_so() {
    const BLOCK: usize = 4_096;
    let root = tempfile::tempdir().unwrap();
    let data = used(root.path());
    let log = data.join("node.log");
    let mut bytes = fs::read(&log).unwrap();
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap() / BLOCK;
    bytes[(last - 1) * BLOCK..(last + 1) * BLOCK].fill(0);
    fs::write(&log, bytes).unwrap();
    let refused = run(&mut serve(&data, &[]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.last_line().contains("was acknowledged: its end is lost or damaged"), "{refused:?}");
}
