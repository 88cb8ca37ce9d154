//! Incidents on real processes, and what `quorate explain` makes of each without being told.
//!
//! Each names a cause, a culprit and a command, in the same words over gRPC, HTTP and the command line. The time
//! that the service took to find out is printed, and asserted nowhere: it is the machine's as much as the code's.

use crate::harness::{LONG, Server, Stream};
use quorate::proto::operator_client::OperatorClient;
use quorate::proto::{self, Face, call::Op, explain_request::Kind};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tonic::transport::Channel;

mod holders;
mod queues;
mod relay;

/// A lease that no incident waits for.
const TTL: Duration = Duration::from_secs(120);

/// A lease whose half is waited for.
const SHORT: &str = "4s";

/// A service, and everybody who talks to it in this test.
struct Scene {
    server: Server,
    channel: Channel,
    operator: OperatorClient<Channel>,
    /// Held open.
    streams: Vec<Stream>,
    children: Vec<Held>,
    took_us: u64,
}

/// A process that does not outlive its test, also if it is stopped.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Held {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it runs");
    }
}

/// What an explanation must say.
struct Expected<'a> {
    kind: Kind,
    name: &'a str,
    /// The stable code.
    cause: &'a str,
    /// The name of the one that causes it, and a part of what its session is called.
    culprit: Option<(&'a str, &'a str)>,
    /// What the sentence must hold.
    says: &'a str,
    /// The first command.
    command: &'a str,
}

impl Scene {
    async fn new() -> Self {
        Self::with(&["--ttl-floor", "100ms"]).await
    }

    async fn with(options: &[&str]) -> Self {
        let server = Server::with(options);
        let channel = server.channel().await;
        let operator = OperatorClient::new(channel.clone());
        Self { server, channel, operator, streams: Vec::new(), children: Vec::new(), took_us: 0 }
    }

    /// A session of this test; its number.
    async fn session(&mut self) -> usize {
        let (stream, _) = Stream::open(self.channel.clone(), TTL, proto::OnDisconnect::Hold).await;
        self.streams.push(stream);
        self.streams.len() - 1
    }

    async fn join(&mut self, session: usize, join: proto::Join) -> proto::Total {
        match self.streams[session].call(Op::Join(join)).await {
            proto::answer::Reply::Joined(total) => total,
            other => panic!("not joined: {other:?}"),
        }
    }

    /// A session of its own that joins.
    async fn member(&mut self, join: proto::Join) -> usize {
        let session = self.session().await;
        self.join(session, join).await;
        session
    }

    /// A real process that holds a group, and is named like it.
    fn process(&mut self, group: &str, address: &str) -> u32 {
        let mut command = crate::harness::quorate();
        command.args(["--server", address, "join", group, "--name", "culprit", "--ttl", SHORT]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        let pid = child.id();
        self.children.push(Held(child));
        self.server.until("the process acts", |server| {
            server.json(&["explain", "group", group])[0]["holders"][0]["name"] == "culprit"
        });
        pid
    }

    /// Asks all three ways until they agree on the expected cause, and checks the rest of it.
    async fn expect(&mut self, expected: Expected<'_>) -> Value {
        let deadline = Instant::now() + LONG;
        let told = loop {
            let (grpc, http, cli) = self.three(&expected).await;
            assert!(Instant::now() < deadline, "{} of {}: {grpc:?}", expected.cause, expected.name);
            let waits = |value: &Value| value["waiters"][0]["sentence"].clone();
            let same = [&http, &cli].iter().all(|told| {
                told["sentence"] == grpc.sentence
                    && told["cause"] == grpc.cause
                    && waits(told) == grpc.waiters.first().map_or(Value::Null, |w| w.sentence.clone().into())
            });
            if grpc.cause == expected.cause && same {
                self.took_us = self.took_us.max(grpc.took_us);
                println!("{:20} {:>6} us  {}", expected.cause, grpc.took_us, grpc.sentence);
                break cli;
            }
        };
        check(&told, &expected);
        told
    }

    async fn three(&mut self, expected: &Expected<'_>) -> (proto::ExplainReply, Value, Value) {
        let (kind, name) = (expected.kind, expected.name);
        let word = kind.as_str_name().to_lowercase();
        let request = proto::ExplainRequest { kind: kind.into(), name: name.into(), max: 0 };
        let grpc = self.operator.explain(request).await.expect("it serves").into_inner();
        let (_, http) = self.server.get(&format!("/v1/explain/{word}/{name}"));
        let cli = self.server.json(&["explain", &word, name]).remove(0);
        (grpc, http, cli)
    }
}

fn check(told: &Value, expected: &Expected<'_>) {
    let Expected { name, cause, .. } = expected;
    if let Some((culprit, label)) = expected.culprit {
        let first = &told["waits_for"][0];
        assert_eq!(first["name"], culprit, "{cause} of {name}: {told:#}");
        assert!(first["label"].as_str().is_some_and(|is| is.contains(label)), "{cause} of {name}: {first}");
        assert!(told["evidence"].as_array().is_some_and(|all| !all.is_empty()), "{told:#}");
    }
    let sentence = told["sentence"].as_str().expect("a sentence");
    assert!(sentence.contains(expected.says), "{cause} of {name}: {sentence}");
    let commands = told["remedies"].as_array().expect("a list");
    let command = commands.first().and_then(|first| first["command"].as_str()).unwrap_or_default();
    assert!(command.contains(expected.command), "{cause} of {name}: {commands:?}");
    assert!(crate::incidents::known(cause), "{cause} is in the list");
}

/// Whether a cause is one that `--help` lists.
fn known(cause: &str) -> bool {
    quorate_server::explain::CAUSES.iter().any(|(code, _)| *code == cause)
}

fn join(group: &str, face: Face, name: &str) -> proto::Join {
    proto::Join {
        group: group.into(),
        face: face.into(),
        name: name.into(),
        wait: true,
        ..Default::default()
    }
}

fn lock(group: &str, name: &str) -> proto::Join {
    join(group, Face::Lock, name)
}

/// The number of the session, as commands name it.
fn session_of(told: &Value) -> u64 {
    told["waits_for"][0]["session"].as_u64().expect("a session")
}
