//! The workers from the outside: they are started, killed, paused and listened to.

use super::super::exit::Failure;
use super::DemoArgs;
use super::board::{Board, Place};
use super::worker::{GROUP, Said};
use quorate::Client;
use quorate::proto::{ExplainRequest, explain_request::Kind};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How long anything may take beyond a lease before the demo says that it does not happen.
const PATIENCE: Duration = Duration::from_secs(15);

/// How often the time that is left is shown on a terminal.
const TICK: Duration = Duration::from_millis(100);

/// What a worker said, and who.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    pub(super) who: usize,
    pub(super) said: Said,
}

/// Everybody and everything.
pub(super) struct Stage {
    server: String,
    pub(super) ttl: Duration,
    pub(super) file: PathBuf,
    pub(super) guard: Option<PathBuf>,
    workers: BTreeMap<usize, Child>,
    tell: mpsc::UnboundedSender<Heard>,
    heard: mpsc::UnboundedReceiver<Heard>,
    pub(super) board: Board,
}

impl Stage {
    pub(super) fn new(home: &Path, address: SocketAddr, args: &DemoArgs, json: bool) -> Self {
        let (tell, heard) = mpsc::unbounded_channel();
        Self {
            server: address.to_string(),
            ttl: args.ttl,
            file: home.join("ledger.txt"),
            guard: (!args.no_guard).then(|| home.join("ledger.guard")),
            workers: BTreeMap::new(),
            tell,
            heard,
            board: Board::new(json),
        }
    }

    /// Starts worker `who`.
    pub(super) fn start(&mut self, who: usize) -> Result<(), Failure> {
        let cannot = |error: std::io::Error| Failure::failed(format!("cannot start a worker: {error}"));
        let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
        command.args(["--server", &self.server, "demo-worker", "--name", &format!("P{who}"), "--ttl"]);
        command.arg(format!("{}ms", self.ttl.as_millis())).arg("--file").arg(&self.file);
        if let Some(guard) = &self.guard {
            command.arg("--guard").arg(guard);
        }
        // Ctrl-C on the terminal is for the demo alone, which then ends its workers.
        command.process_group(0).kill_on_drop(true).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().map_err(cannot)?;
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        tokio::spawn(listen(who, lines, self.tell.clone()));
        self.workers.insert(who, child);
        Ok(())
    }

    /// Kills a worker as `kill -9` does.
    pub(super) async fn kill(&mut self, who: usize) {
        if let Some(mut child) = self.workers.remove(&who) {
            let _ = child.kill().await;
        }
        self.board.at(who, Place::Killed);
    }

    /// Stops a worker where it stands, or lets it go on.
    pub(super) fn signal(&self, who: usize, signal: Signal) -> Result<(), Failure> {
        let pid = self.workers.get(&who).and_then(Child::id).and_then(|pid| Pid::from_raw(pid as i32));
        let sent = pid.map(|pid| kill_process(pid, signal));
        match sent {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(Failure::failed(format!("cannot signal P{who}: {error}"))),
            None => Err(Failure::failed(format!("P{who} has ended by itself"))),
        }
    }

    /// Ends all workers.
    pub(super) fn clear(&mut self) {
        for child in self.workers.values_mut() {
            let _ = child.start_kill();
        }
    }

    /// Listens until something is heard that is waited for, and the board shows all that was heard before.
    pub(super) async fn until<T>(
        &mut self,
        what: &str,
        mut is: impl FnMut(&Board, &Heard) -> Option<T>,
    ) -> Result<T, Failure> {
        let (since, limit) = (Instant::now(), self.ttl * 2 + PATIENCE);
        loop {
            let heard = tokio::select! {
                heard = self.heard.recv() => heard.expect("the stage has a sender of its own"),
                () = tokio::time::sleep(TICK) => {
                    if since.elapsed() > limit {
                        let explained = self.explain().await;
                        return Err(Failure::failed(format!("it took longer than {limit:?}: {what}; {explained}")));
                    }
                    self.board.waits(what, since.elapsed());
                    continue;
                }
            };
            self.board.hear(&heard)?;
            if let Some(found) = is(&self.board, &heard) {
                self.board.waited();
                return Ok(found);
            }
        }
    }

    /// Listens for a while.
    pub(super) async fn listen_until(&mut self, until: Instant) -> Result<(), Failure> {
        while let Ok(heard) = tokio::time::timeout_at(until, self.heard.recv()).await {
            self.board.hear(&heard.expect("the stage has a sender of its own"))?;
        }
        Ok(())
    }

    /// What `quorate explain group demo` says now.
    pub(super) async fn explain(&self) -> String {
        let asked = async {
            let client = Client::connect(&*self.server).ok()?;
            let request = ExplainRequest { kind: Kind::Group.into(), name: GROUP.into(), max: 0 };
            Some(client.operator().explain(request).await.ok()?.into_inner().sentence)
        };
        asked.await.unwrap_or_else(|| "the service does not answer".into())
    }

    /// The file as it is now: who wrote each line, under which token.
    pub(super) fn lines(&self) -> Vec<(u64, String)> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let line = |line: &str| {
            let (token, name) = line.split_once(' ')?;
            Some((token.parse().ok()?, name.to_owned()))
        };
        text.lines().filter_map(line).collect()
    }
}

/// Passes on what a worker says, until it ends.
async fn listen(
    who: usize,
    mut lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
    tell: mpsc::UnboundedSender<Heard>,
) {
    while let Ok(Some(line)) = lines.next_line().await {
        let said = serde_json::from_str(&line).unwrap_or(Said::Trouble { why: line });
        if tell.send(Heard { who, said }).is_err() {
            return;
        }
    }
}
