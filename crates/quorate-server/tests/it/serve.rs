//! `quorate serve` on real processes: its settings, its port, its start and its end.

use crate::harness::{LONG, READY, Server, Stream, channel, http, open, quorate, run, serve, wait};
use bytes::{Buf, BufMut};
use quorate::proto::{self, server_frame::Frame as Told};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status};

const TTL: Duration = Duration::from_secs(30);

#[test]
fn an_unknown_setting_is_named_with_its_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("quorate.toml");
    std::fs::write(&file, "data = \"d\"\nlisten_on = \"127.0.0.1:1\"\n").unwrap();
    let ran = run(quorate().args(["serve", "--config"]).arg(&file));
    assert_eq!(ran.code, Some(2));
    let place = format!("quorate: listen_on (line 2 of {}) is no setting; there are listen", file.display());
    assert!(ran.last_line().starts_with(&place), "{}", ran.stderr);
    assert!(!dir.path().join("d").exists(), "nothing was begun");
}

#[test]
fn a_bad_value_is_named_with_its_place_and_its_range() {
    let ran = run(quorate().arg("serve").env("QUORATE_SNAPSHOT_EVERY", "7"));
    assert_eq!(ran.code, Some(2));
    assert_eq!(
        ran.last_line(),
        "quorate: snapshot_every = \"7\" (from QUORATE_SNAPSHOT_EVERY): that is too little; it may be 100 to \
         10000000 log entries"
    );
    let ran = run(quorate().args(["serve", "--ttl-floor", "20min"]));
    assert_eq!((ran.code, ran.last_line().contains("(from --ttl-floor)")), (Some(2), true), "{}", ran.stderr);
}

#[test]
fn an_address_beyond_this_machine_needs_a_word_of_consent() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let ran = run(quorate().args(["serve", "--listen", "0.0.0.0:0", "--data"]).arg(&data));
    assert_eq!(ran.code, Some(2));
    assert!(ran.last_line().contains("neither TLS nor authentication"), "{}", ran.stderr);
    assert!(!data.exists(), "nothing was begun");
    let server = Server::with(&["--listen", "0.0.0.0:0", "--insecure"]);
    let port = server.address.port();
    assert_eq!(http(SocketAddr::from(([127, 0, 0, 1], port)), "GET", "/healthz").0, 200);
}

#[test]
fn a_second_server_on_the_same_directory_is_told_of_the_first() {
    let first = Server::start();
    let mut command = serve(&first.data, &[]);
    let ran = run(command.stdout(Stdio::piped()));
    assert_eq!(ran.code, Some(1));
    let pid = format!("is in use by the server with process id {}", first.pid().as_raw_nonzero());
    assert!(ran.last_line().starts_with("quorate: ") && ran.last_line().contains(&pid), "{}", ran.stderr);
    assert_eq!(first.get("/healthz").0, 200, "the first one goes on");
}

#[test]
fn a_port_that_is_taken_is_said_before_any_data_is_touched() {
    let first = Server::start();
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let ran = run(quorate().args(["serve", "--listen", &first.address.to_string(), "--data"]).arg(&data));
    assert_eq!(ran.code, Some(1));
    assert!(ran.last_line().starts_with(&format!("quorate: cannot listen on {}", first.address)), "{ran:?}");
    assert!(ran.last_line().contains("--listen"), "it says what to do: {ran:?}");
    assert!(!data.exists());
}

#[test]
fn log_lines_are_json_if_asked() {
    let mut server = Server::with(&["--log-format", "json"]);
    let (status, said) = server.stop();
    assert_eq!(status.code(), Some(0));
    let lines: Vec<serde_json::Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ready = lines.iter().find(|line| line["message"].as_str().unwrap().starts_with(READY)).unwrap();
    assert_eq!(ready["message"], format!("{READY}{}", server.address));
    assert_eq!(ready["node"], 1);
    assert_eq!(ready["cluster"].as_str().unwrap().len(), 32);
}

#[test]
fn a_stopped_server_ends_with_zero_and_has_everything_when_it_starts_again() {
    let mut server = Server::start();
    server.run(&["group", "create", "workers", "--seats", "3"]).ok();
    let before = server.json(&["status"])[0].clone();
    let (status, said) = server.stop();
    assert_eq!(status.code(), Some(0), "{said}");
    let server = server.again();
    let groups = server.json(&["group", "list"]);
    assert_eq!((groups.len(), &groups[0]["name"], &groups[0]["seats"]), (1, &"workers".into(), &3.into()));
    let after = server.json(&["status"])[0].clone();
    assert_eq!(after["cluster"], before["cluster"]);
    server.until("a start begins a reign", |server| {
        server.get("/v1/status").1["reign"].as_u64() > before["reign"].as_u64()
    });
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let server = Server::start();
    // A call whose message never comes holds an orderly stop up for seconds.
    let mut held = TcpStream::connect(server.address).unwrap();
    let head = "POST /quorate.v1.Operator/Explain HTTP/1.1\r\nhost: a\r\ncontent-type: application/grpc\r\n";
    write!(held, "{head}te: trailers\r\ncontent-length: 100\r\n\r\n").unwrap();
    server.until("the call is open", |server| metric(server, "quorate_connections ") >= 2.0);
    let began = Instant::now();
    server.signal(Signal::TERM);
    let mut server = server;
    while !matches!(TcpStream::connect(server.address), Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
    {
        assert!(began.elapsed() < LONG, "the port stays open");
    }
    server.signal(Signal::INT);
    let (status, _) = server.ended();
    assert_eq!(status.code(), Some(130));
    assert!(began.elapsed() < Duration::from_secs(3), "it took {:?}", began.elapsed());
}

/// A restart is never a leave (RULES R18), and what was under way is told.
#[tokio::test(flavor = "multi_thread")]
async fn r18_sessions_hear_that_the_service_stops_and_lose_nothing_by_it() {
    let mut server = Server::start();
    let (mut holder, opened) = Stream::open(server.channel().await, TTL, proto::OnDisconnect::Release).await;
    let token = holder.join("orders", proto::Face::Lock, "a").await.place.unwrap().seat.unwrap().token;
    server.signal(Signal::TERM);
    let bye = holder.bye().await;
    assert_eq!(bye.kind(), proto::bye::Kind::Unavailable);
    assert!(bye.why.contains("the service is stopping"), "{}", bye.why);
    assert_eq!(holder.next().await, None, "nothing follows");
    let (status, said) = server.ended();
    assert_eq!(status.code(), Some(0), "{said}");
    let server = server.again();
    let explained = &server.json(&["explain", "lock", "orders"])[0];
    assert_eq!(explained["holders"][0]["session"], opened.session);
    assert_eq!(explained["holders"][0]["seat"]["token"], token.to_string());
}

/// Every call that was done is answered before the goodbye, so its client need not guess.
#[tokio::test(flavor = "multi_thread")]
async fn calls_under_way_are_answered_before_the_goodbye() {
    let mut server = Server::start();
    let (mut stream, _) = Stream::open(server.channel().await, TTL, proto::OnDisconnect::Hold).await;
    let frames = stream.frames.clone();
    let window = std::sync::Arc::new(tokio::sync::Semaphore::new(64));
    let room = window.clone();
    let caller = tokio::spawn(async move {
        for request in 1..1_000 {
            room.acquire().await.unwrap().forget();
            let join = proto::Join { group: format!("lock-{request}"), face: 1, ..Default::default() };
            let call = proto::Call { request, acknowledged: 0, op: Some(proto::call::Op::Join(join)) };
            let frame = Some(proto::client_frame::Frame::Call(call));
            if frames.send(proto::ClientFrame { frame }).await.is_err() {
                return;
            }
        }
    });
    let mut answered = 0;
    let bye = loop {
        match stream.next().await {
            Some(Told::Answer(answer)) => {
                assert!(matches!(answer.reply, Some(proto::answer::Reply::Joined(_))), "{answer:?}");
                answered += 1;
                window.add_permits(1);
            }
            Some(Told::Change(_)) => continue,
            Some(Told::Bye(bye)) => break bye,
            other => panic!("{other:?}"),
        }
        if answered == 100 {
            server.signal(Signal::TERM);
        }
    };
    assert!(answered < 999, "it stopped in the middle");
    assert_eq!(bye.kind(), proto::bye::Kind::Unavailable, "{bye:?}");
    assert_eq!(server.ended().0.code(), Some(0));
    drop(stream);
    caller.abort();
    let server = server.again();
    let places = server.json(&["session", "show", "1"])[0]["places"].as_array().unwrap().len();
    assert_eq!(places as u64, answered, "done, and answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_frame_gets_a_goodbye_and_the_neighbour_lives() {
    let server = Server::start();
    let shared = server.channel().await;
    let (mut neighbour, _) = Stream::open(shared.clone(), TTL, proto::OnDisconnect::Hold).await;
    let bad_frames = [
        (None, "frame is missing"),
        (Some(proto::client_frame::Frame::Attach(proto::Attach::default())), "secret has 0 bytes"),
        (Some(proto::client_frame::Frame::KeepAlive(proto::KeepAlive { seq: 1 })), "first frame"),
    ];
    for (frame, why) in bad_frames {
        let mut stream = Stream::begin(shared.clone()).await;
        stream.frames.send(proto::ClientFrame { frame }).await.unwrap();
        let bye = stream.bye().await;
        assert_eq!(bye.kind(), proto::bye::Kind::Protocol);
        assert!(bye.why.contains(why), "{}", bye.why);
        assert_eq!(stream.next().await, None, "the stream ends");
    }
    let garbage = bytes::Bytes::from_static(b"\xff\xff\xff\xff this is no message");
    let bye = first_words(shared, garbage).await;
    assert_eq!(bye.kind(), proto::bye::Kind::Protocol, "{bye:?}");
    assert_eq!(neighbour.join("orders", proto::Face::Lock, "n").await.group, "orders");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_frame_is_refused_with_both_sizes() {
    let server = Server::start();
    let mut stream = Stream::begin(server.channel().await).await;
    let proto::client_frame::Frame::Open(first) = open(TTL, proto::OnDisconnect::Hold) else {
        unreachable!()
    };
    let label = "x".repeat(2 << 20);
    stream.send(proto::client_frame::Frame::Open(proto::Open { label, ..first })).await;
    let bye = stream.bye().await;
    assert_eq!(bye.kind(), proto::bye::Kind::Protocol);
    assert!(bye.why.contains("too large") && bye.why.contains("1048576"), "{}", bye.why);
    let mut operator = proto::operator_client::OperatorClient::new(server.channel().await);
    let request = proto::ExplainRequest { kind: 0, name: "x".repeat(2 << 20), max: 0 };
    let status = operator.explain(request).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    let status = operator.explain(proto::ExplainRequest { kind: 0, name: "x".repeat(300), max: 0 }).await;
    assert_eq!(status.unwrap_err().message(), "a name has at most 255 bytes, this one has 300");
}

/// Sends raw bytes as the first message of a session stream; what the service says to that.
async fn first_words(channel: tonic::transport::Channel, message: bytes::Bytes) -> proto::Bye {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let path = axum::http::uri::PathAndQuery::from_static("/quorate.v1.Sessions/Stream");
    let request = tonic::Request::new(tokio_stream::once(message));
    let response = client.streaming(request, path, RawCodec).await.unwrap();
    match response.into_inner().message().await.unwrap().and_then(|told: proto::ServerFrame| told.frame) {
        Some(Told::Bye(bye)) => bye,
        other => panic!("{other:?}"),
    }
}

/// Writes any bytes, reads frames.
#[derive(Clone, Copy)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = bytes::Bytes;
    type Decode = proto::ServerFrame;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        *self
    }
    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for RawCodec {
    type Item = bytes::Bytes;
    type Error = Status;
    fn encode(&mut self, message: bytes::Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = proto::ServerFrame;
    type Error = Status;
    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<proto::ServerFrame>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        prost::Message::decode(bytes).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_the_port_ends_only_its_own_connection() {
    let server = Server::start();
    let (mut neighbour, _) = Stream::open(server.channel().await, TTL, proto::OnDisconnect::Hold).await;
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        &[0xff; 4096],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nxxxx",
    ] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        // The server may have ended the connection before all of it is written.
        let _ = stream.write_all(garbage);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    }
    assert_eq!(neighbour.join("orders", proto::Face::Lock, "n").await.group, "orders");
    assert_eq!(server.get("/healthz").0, 200);
}

/// Peers that vanish without a word: one that never spoke, and one that stops after the start of HTTP/2.
#[test]
fn a_silent_peer_is_dropped_in_seconds() {
    let server = Server::start();
    let began = Instant::now();
    let mute = TcpStream::connect(server.address).unwrap();
    let mut half_open = TcpStream::connect(server.address).unwrap();
    half_open
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0")
        .unwrap();
    for mut stream in [half_open, mute] {
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut heard = Vec::new();
        let ended = stream.read_to_end(&mut heard);
        assert!(ended.is_ok() || began.elapsed() < LONG, "{ended:?}");
        let took = began.elapsed();
        assert!(took > Duration::from_secs(3) && took < Duration::from_secs(15), "dropped after {took:?}");
    }
}

/// What the service itself gives up is no leave of the client's (RULES R18); the client's own end is.
#[tokio::test(flavor = "multi_thread")]
async fn r18_a_connection_that_is_given_up_keeps_its_seats_and_one_that_closes_does_not() {
    let server = Server::start();
    let (cut, frozen) = frozen_way(server.address).await;
    let (mut silent, opened) = Stream::open(channel(cut).await, TTL, proto::OnDisconnect::Release).await;
    silent.join("frozen", proto::Face::Lock, "silent").await;
    let own = server.channel().await;
    let (mut leaver, _) = Stream::open(own.clone(), TTL, proto::OnDisconnect::Release).await;
    leaver.join("closed", proto::Face::Lock, "leaver").await;
    frozen.send(true).unwrap();
    drop((leaver, own));
    let holders = |server: &Server, name| server.json(&["explain", "lock", name])[0]["holders"].clone();
    server.until("the closed connection is a leave", |server| {
        holders(server, "closed") == serde_json::json!([])
    });
    let connected = |server: &Server| {
        let sessions = server.json(&["session", "list"]);
        sessions.iter().any(|session| session["session"] == opened.session && session["connected"] == true)
    };
    server.until("the frozen connection is given up", |server| !connected(server));
    assert_eq!(holders(&server, "frozen")[0]["session"], opened.session, "its lease still runs");
}

/// A way to an address that can be frozen: bytes stop, and nobody is told.
async fn frozen_way(to: SocketAddr) -> (SocketAddr, tokio::sync::watch::Sender<bool>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (freeze, frozen) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = tokio::net::TcpStream::connect(to).await.unwrap();
        let mut frozen = frozen;
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
            _ = frozen.changed() => {}
        }
        // Both sockets stay open, and nobody reads or writes them.
        std::future::pending::<()>().await;
    });
    (address, freeze)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_too_many_is_told_so_in_its_own_words() {
    let server = Server::with(&["--connections", "1"]);
    let (mut only, _) = Stream::open(server.channel().await, TTL, proto::OnDisconnect::Hold).await;
    let (status, body) = server.get("/healthz");
    assert_eq!(status, 503);
    assert!(body["error"].as_str().unwrap().contains("serves 1 connections at once"), "{body}");
    let ran = server.run(&["status"]);
    assert_ne!(ran.code, Some(0));
    assert!(ran.last_line().contains("has no room for one more"), "{}", ran.stderr);
    assert_eq!(only.join("orders", proto::Face::Lock, "n").await.group, "orders");
    drop(only);
    server.until("there is room again", |server| server.http("GET", "/healthz").0 == 200);
}

fn metric(server: &Server, name: &str) -> f64 {
    let (status, text) = server.http("GET", "/metrics");
    assert_eq!(status, 200);
    let line =
        text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_terminal_is_not_needed_and_output_stays_empty() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = serve(&dir.path().join("data"), &["--log", "off"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    // With its log off a server says nothing; it is there once it has made its directory.
    let began = Instant::now();
    while !dir.path().join("data/FORMAT").exists() {
        assert!(began.elapsed() < LONG, "the directory is made");
        std::thread::yield_now();
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(wait(&mut child).code(), Some(0));
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
}

/// A write that fails, as on a full disk, ends the process at once with a sentence (RULES R28), and whatever was
/// answered is there when it starts again.
#[test]
fn r28_a_failed_write_ends_the_process_and_loses_nothing_that_was_answered() {
    let mut server = Server::start();
    assert_eq!(server.stop().0.code(), Some(0));
    let log = std::fs::metadata(server.data.join("node.redb")).unwrap().len();
    // Only a little more may be written; in blocks of 512 bytes, and with an error instead of a signal.
    let limited = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", log / 512 + 200);
    let plain = serve(&server.data, &[]);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &limited]).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stderr(Stdio::piped()).stdout(Stdio::null());
    let mut failing = Server::from(command, &server.data);
    let mut answered = Vec::new();
    let refused = loop {
        let name = format!("{:0250}", answered.len());
        let ran = failing.run(&["group", "create", &name]);
        match ran.code {
            Some(0) => answered.push(name),
            _ => break ran,
        }
        assert!(answered.len() < 10_000, "nothing failed");
    };
    assert!(refused.last_line().starts_with("quorate: "), "{refused:?}");
    let (status, said) = failing.ended();
    assert_eq!(status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("quorate: ") && last.contains("File too large"), "{said}");
    let server = server.again();
    let listed = server.json(&["group", "list"]);
    let listed: std::collections::BTreeSet<&str> =
        listed.iter().map(|group| group["name"].as_str().unwrap()).collect();
    let lost: Vec<_> = answered.iter().filter(|name| !listed.contains(name.as_str())).collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert!(!answered.is_empty());
}
