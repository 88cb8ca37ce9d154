//! The real binary on a free port with a directory of its own, and the least that is needed to talk to it.
//!
//! Everything a test starts here ends with it. Nothing waits by sleeping: each wait is for a line, a frame, an
//! answer or the end of a process, with a limit that only a failing test reaches.

use quorate::proto::{self, server_frame::Frame as Told, sessions_client::SessionsClient};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

/// No test waits that long unless it fails.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// What a server says when it is ready, followed by its address.
pub(crate) const READY: &str = "listening on ";

/// A running `quorate serve`. It is killed when the value is dropped.
pub(crate) struct Server {
    child: Child,
    stderr: Option<JoinHandle<String>>,
    /// Where it listens.
    pub(crate) address: SocketAddr,
    /// Its data directory.
    pub(crate) data: PathBuf,
    options: Vec<String>,
    /// Held so that the directory outlives the server.
    dir: Option<TempDir>,
}

/// What a command printed and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    /// The exit code; none if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Ran {
    /// Its lines as JSON.
    pub(crate) fn json(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.stdout.lines().map(parse).collect()
    }

    /// The last line on standard error.
    pub(crate) fn last_line(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }

    /// Fails the test if the command failed.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }
}

/// The binary, without the settings of whoever runs the tests.
pub(crate) fn quorate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUORATE_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Ran {
    let output = command.output().expect("the binary runs");
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("output is text"),
        stderr: String::from_utf8(output.stderr).expect("errors are text"),
    }
}

/// `quorate serve` on a free port and a directory, ready to be started.
pub(crate) fn serve(data: &Path, options: &[&str]) -> Command {
    let mut command = quorate();
    // In the environment, so that a flag of the test can still say otherwise.
    command.env("QUORATE_LISTEN", "127.0.0.1:0");
    command.args(["serve", "--data"]).arg(data).args(options);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

impl Server {
    /// Starts a server on a directory of its own.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// The same, with more on its command line.
    pub(crate) fn with(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let data = dir.path().join("data");
        let mut server = Self::on(&data, options);
        server.dir = Some(dir);
        server
    }

    /// Starts a server on a given directory.
    pub(crate) fn on(data: &Path, options: &[&str]) -> Self {
        let mut server = Self::from(serve(data, options), data);
        server.options = options.iter().map(|&option| option.to_owned()).collect();
        server
    }

    /// Starts a server by a command that is prepared like that of [`serve`].
    pub(crate) fn from(mut command: Command, data: &Path) -> Self {
        let mut child = command.spawn().expect("the binary starts");
        let stderr = child.stderr.take().expect("standard error is piped");
        let (ready, address) = mpsc::channel();
        let stderr = std::thread::spawn(move || read_lines(stderr, ready));
        let Ok(address) = address.recv_timeout(LONG) else {
            let _ = child.kill();
            panic!("the server is not ready; it said:\n{}", stderr.join().expect("the reader ends"));
        };
        let options = Vec::new();
        Self { child, stderr: Some(stderr), address, data: data.to_path_buf(), options, dir: None }
    }

    /// The process id.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// `quorate` with this server's address.
    pub(crate) fn quorate(&self) -> Command {
        let mut command = quorate();
        command.args(["--server", &self.address.to_string()]);
        command
    }

    /// Runs `quorate` with this server's address to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        run(self.quorate().args(arguments))
    }

    /// Runs it with `--json`; all of its lines.
    pub(crate) fn json(&self, arguments: &[&str]) -> Vec<Value> {
        run(self.quorate().arg("--json").args(arguments)).ok().json()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the server runs");
    }

    /// Waits until the process has ended; its status, and all that it said on standard error.
    pub(crate) fn ended(&mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child);
        let said = self.stderr.take().map(|reader| reader.join().expect("the reader ends"));
        (status, said.unwrap_or_default())
    }

    /// Stops it in order.
    pub(crate) fn stop(&mut self) -> (ExitStatus, String) {
        self.signal(Signal::TERM);
        self.ended()
    }

    /// Starts another server on the same directory, after this one has ended.
    pub(crate) fn again(mut self) -> Self {
        assert!(self.stderr.is_none(), "the server was stopped or killed first");
        let dir = self.dir.take();
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        let mut next = Self::on(&self.data, &options);
        next.dir = dir;
        next
    }

    /// A connection for gRPC.
    pub(crate) async fn channel(&self) -> Channel {
        channel(self.address).await
    }

    /// An HTTP/1.1 request without a body: its status, and its body as text.
    pub(crate) fn http(&self, method: &str, path: &str) -> (u16, String) {
        http(self.address, method, path)
    }

    /// `GET` of a JSON object.
    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        let (status, body) = self.http("GET", path);
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
    }

    /// Asks a hundred times a second until the answer is the awaited one.
    pub(crate) fn until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + LONG;
        while !is_so(self) {
            assert!(Instant::now() < deadline, "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the end of a process, and kills it if that takes too long.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(status) = child.try_wait().expect("the process can be waited for") {
            return status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("the process does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn read_lines(stderr: ChildStderr, ready: mpsc::Sender<SocketAddr>) -> String {
    let mut all = String::new();
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        if let Some((_, rest)) = line.split_once(READY) {
            let address = rest.split([' ', '"']).next().and_then(|address| address.parse().ok());
            let _ = ready.send(address.unwrap_or_else(|| panic!("no address in {line}")));
        }
        all.push_str(&line);
        all.push('\n');
    }
    all
}

/// A connection for gRPC.
pub(crate) async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
    endpoint.connect().await.expect("the server answers")
}

/// An HTTP/1.1 request without a body: its status, and its body as text.
pub(crate) fn http(address: SocketAddr, method: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("the server answers");
    stream.set_read_timeout(Some(LONG)).expect("a limit");
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the answer is text");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {head}")), body.to_owned())
}

/// A session stream, frame by frame.
pub(crate) struct Stream {
    /// To the service.
    pub(crate) frames: tokio::sync::mpsc::Sender<proto::ClientFrame>,
    /// From the service.
    pub(crate) told: Streaming<proto::ServerFrame>,
    /// The last request number.
    request: u64,
}

impl Stream {
    /// Begins a stream and says nothing yet.
    pub(crate) async fn begin(channel: Channel) -> Self {
        let (frames, outbound) = tokio::sync::mpsc::channel(16);
        let started = SessionsClient::new(channel).stream(ReceiverStream::new(outbound)).await;
        Self { frames, told: started.expect("the stream begins").into_inner(), request: 0 }
    }

    /// Opens a session.
    pub(crate) async fn open(
        channel: Channel,
        ttl: Duration,
        on_disconnect: proto::OnDisconnect,
    ) -> (Self, proto::Opened) {
        let mut stream = Self::begin(channel).await;
        stream.send(open(ttl, on_disconnect)).await;
        match stream.next().await {
            Some(Told::Opened(opened)) => (stream, opened),
            other => panic!("not opened: {other:?}"),
        }
    }

    /// Sends a frame.
    pub(crate) async fn send(&self, frame: proto::client_frame::Frame) {
        let sent = self.frames.send(proto::ClientFrame { frame: Some(frame) }).await;
        sent.expect("the stream is open");
    }

    /// The next frame; none if the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<Told> {
        let told = tokio::time::timeout(LONG, self.told.message()).await.expect("a frame in time");
        told.ok().flatten().map(|told| told.frame.expect("a frame has a kind"))
    }

    /// The next frame that is a goodbye.
    pub(crate) async fn bye(&mut self) -> proto::Bye {
        loop {
            match self.next().await {
                Some(Told::Bye(bye)) => return bye,
                Some(_) => {}
                None => panic!("the stream ended without a goodbye"),
            }
        }
    }

    /// Sends a call and waits for its answer.
    pub(crate) async fn call(&mut self, op: proto::call::Op) -> proto::answer::Reply {
        self.request += 1;
        let (request, acknowledged) = (self.request, self.request - 1);
        let call = proto::Call { request, acknowledged, op: Some(op) };
        self.send(proto::client_frame::Frame::Call(call)).await;
        loop {
            match self.next().await.expect("the stream goes on") {
                Told::Answer(answer) if answer.request == request => return answer.reply.expect("an answer"),
                Told::Unanswered(unanswered) => panic!("{unanswered:?}"),
                Told::Bye(bye) => panic!("{bye:?}"),
                _ => {}
            }
        }
    }

    /// Joins, and waits for the answer.
    pub(crate) async fn join(&mut self, group: &str, face: proto::Face, name: &str) -> proto::Total {
        let join = proto::Join {
            group: group.into(),
            face: face.into(),
            name: name.into(),
            wait: true,
            ..Default::default()
        };
        match self.call(proto::call::Op::Join(join)).await {
            proto::answer::Reply::Joined(total) => total,
            other => panic!("not joined: {other:?}"),
        }
    }
}

/// The first frame of a new session.
pub(crate) fn open(ttl: Duration, on_disconnect: proto::OnDisconnect) -> proto::client_frame::Frame {
    proto::client_frame::Frame::Open(proto::Open {
        secret: rand::random::<u128>().to_be_bytes().to_vec().into(),
        ttl_ms: u64::try_from(ttl.as_millis()).expect("a short time"),
        on_disconnect: on_disconnect.into(),
        label: "a test".into(),
    })
}
