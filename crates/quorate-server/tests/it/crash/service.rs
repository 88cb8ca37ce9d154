//! One service over many lives: the same directory, the same port, ended by force at instants of the test's
//! choice.

use crate::harness::{LONG, READY, serve, wait};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The variable of the seam in `log/crash.rs`.
const CRASH: &str = "QUORATE_TEST_CRASH";

/// Where a service lives, whether it runs or not.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    data: PathBuf,
    options: Vec<String>,
    /// Where it listens in each of its lives.
    pub(crate) address: SocketAddr,
}

/// One life. It ends when the value is dropped.
#[derive(Debug)]
pub(crate) struct Life {
    child: Child,
    ready: Receiver<()>,
    stderr: Option<JoinHandle<String>>,
}

impl Home {
    /// A directory and a free port.
    pub(crate) fn at(data: &Path, options: &[&str]) -> Self {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        Self { data: data.to_path_buf(), options, address: free_address() }
    }

    /// Starts a life and waits until it serves.
    pub(crate) fn live(&self) -> Life {
        let mut life = self.begin(None);
        life.await_ready();
        life
    }

    /// Starts a life. With a count it ends right after so many transactions became durable.
    pub(crate) fn begin(&self, crash_after: Option<u64>) -> Life {
        let mut command = serve(&self.data, &[]);
        command.args(["--listen", &self.address.to_string()]).args(&self.options);
        if let Some(count) = crash_after {
            command.env(CRASH, format!("after-fsync:{count}"));
        }
        let mut child = command.spawn().expect("the binary starts");
        let (tell, ready) = mpsc::channel();
        let lines = BufReader::new(child.stderr.take().expect("standard error is piped")).lines();
        let stderr = std::thread::spawn(move || {
            let mut all = String::new();
            for line in lines.map_while(Result::ok) {
                if line.contains(READY) {
                    let _ = tell.send(());
                }
                all.push_str(&line);
                all.push('\n');
            }
            all
        });
        Life { child, ready, stderr: Some(stderr) }
    }
}

impl Life {
    /// Waits until it serves.
    pub(crate) fn await_ready(&mut self) {
        if self.ready.recv_timeout(LONG).is_err() {
            let _ = self.child.kill();
            panic!("the service is not ready; it said:\n{}", self.ended().1);
        }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the service runs");
    }

    /// Ends it as `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.signal(Signal::KILL);
        let (status, said) = self.ended();
        assert_eq!(status.signal(), Some(9), "{status}; it said:\n{said}");
    }

    /// Waits until it has ended right after a transaction, by the seam and by nothing else.
    pub(crate) fn crashed(mut self) {
        let (status, said) = self.ended();
        assert_eq!(status.signal(), Some(9), "{status}; it said:\n{said}");
        let last = said.lines().last().unwrap_or_default();
        assert!(last.contains("durable and not answered"), "it ended elsewhere:\n{said}");
    }

    /// Waits for its end; its status, and all that it said.
    pub(crate) fn ended(&mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child);
        let said = self.stderr.take().map(|reader| reader.join().expect("the reader ends"));
        (status, said.unwrap_or_default())
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A free port of this machine that the system gives to nobody by itself. One of those that it does give
/// could be taken by a client while the service is away; a client that connects to it could even meet itself.
fn free_address() -> SocketAddr {
    let mut ports = std::iter::repeat_with(|| rand::random_range(10_000..30_000));
    let free = ports.find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    free.and_then(|listener| listener.local_addr().ok()).expect("some port is free")
}

/// Looks a thousand times a second until there is something to see.
pub(crate) fn eventually<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
