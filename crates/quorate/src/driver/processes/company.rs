//! The child processes of a run, from the outside.

use super::{Fault, Options, RunError};
use crate::clock::Clock;
use crate::driver::Progress;
use crate::driver::child::{Job, Order, Said};
use crate::driver::judge;
use crate::driver::named::Stand;
use crate::driver::proxy::Proxy;
use quorate_core::protocol::{Peer, ProcessId};
use quorate_core::trace::{Step, What};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How many lines of all children wait to be read at most; a child that says more waits.
const SAID_MAX: usize = 1_024;

/// A process of ours. It is killed when the value is dropped.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // One that has ended already cannot be killed, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One life of a child.
struct Life {
    child: Owned,
    orders: OwnedWriteHalf,
    number: u64,
    peer: Option<Peer>,
    paused: bool,
    progress: Progress,
    /// How far it had come when it last said where it stands.
    looked: Progress,
    stand: Option<(u64, Stand)>,
}

/// What one process has done over all of its lives.
#[derive(Default)]
struct Work {
    starts: bool,
    done: u32,
}

type MakeCommand<'a> = Box<dyn Fn(&str) -> Command + 'a>;

/// All processes of a run.
pub(super) struct Company<'a> {
    options: Options,
    command: MakeCommand<'a>,
    control: TcpListener,
    said: (mpsc::Sender<Line>, mpsc::Receiver<Line>),
    lives: BTreeMap<ProcessId, Life>,
    lives_begun: u64,
    proxies: BTreeMap<(ProcessId, ProcessId), Proxy>,
    addresses: BTreeMap<ProcessId, SocketAddr>,
    work: BTreeMap<ProcessId, Work>,
    outside: Vec<Step>,
    /// How many waits were heard while things went wrong; or who waited and did not say why.
    explained: Result<u64, String>,
    waves: u64,
    deadline: Instant,
}

impl<'a> Company<'a> {
    /// Starts all processes, and tells each where all are.
    pub(super) async fn start(
        options: Options,
        command: impl Fn(&str) -> Command + 'a,
    ) -> Result<Self, RunError> {
        let control = TcpListener::bind("127.0.0.1:0").await?;
        let all = || (0..options.n).map(ProcessId::at);
        let first = all().find(|process| !options.crash.contains(process));
        let starts = |process: &ProcessId| match options.start.is_empty() {
            true if options.elects() => Some(*process) == first,
            true => !options.crash.contains(process),
            false => options.start.contains(process),
        };
        let work = all().map(|process| (process, Work { starts: starts(&process), done: 0 })).collect();
        let deadline = Instant::now() + options.patience;
        let mut company = Self {
            command: Box::new(command),
            control,
            said: mpsc::channel(SAID_MAX),
            lives: BTreeMap::new(),
            lives_begun: 0,
            proxies: BTreeMap::new(),
            addresses: BTreeMap::new(),
            work,
            outside: Vec::new(),
            explained: Ok(0),
            waves: 0,
            deadline,
            options,
        };
        let all: Vec<_> = (0..company.options.n).map(ProcessId::at).collect();
        for process in &all {
            company.spawn(*process).await?;
        }
        for process in &all {
            company.begin(*process).await?;
        }
        Ok(company)
    }

    fn errors(&self, process: ProcessId) -> PathBuf {
        self.options.directory.join(format!("{process}.err"))
    }

    /// Starts a process, and waits until it says where it listens.
    async fn spawn(&mut self, process: ProcessId) -> Result<(), RunError> {
        std::fs::create_dir_all(&self.options.directory)?;
        let work = &self.work[&process];
        let left = self.options.entries.saturating_sub(work.done);
        let directory = &self.options.directory;
        let (silence, closed) = self.options.detection_ms;
        self.lives_begun += 1;
        let job = Job {
            protocol: self.options.protocol.clone(),
            process,
            n: self.options.n,
            settings: self.options.settings.clone(),
            control: self.control.local_addr()?,
            seed: self.options.seed.wrapping_add(self.lives_begun),
            beat_ms: self.options.beat_ms,
            detection_ms: Some((silence, closed)),
            disk: directory.join(format!("{process}.disk")),
            trace: directory.join("trace"),
            entries: left,
            hold_ms: Some(self.options.hold_ms),
        };
        let job = serde_json::to_string(&job).map_err(std::io::Error::from)?;
        let mut command = (self.command)(&job);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(self.errors(process))?);
        let child = Owned(command.spawn()?);
        let (orders, said, address) = self.greeting(process).await?;
        self.addresses.insert(process, address);
        let number = self.lives_begun;
        tokio::spawn(listen(number, said, self.said.0.clone()));
        let (progress, looked) = (Progress::default(), Progress::default());
        let life = Life { child, orders, number, peer: None, paused: false, progress, looked, stand: None };
        self.lives.insert(process, life);
        Ok(())
    }

    /// The first words of the process that was just started.
    async fn greeting(&self, process: ProcessId) -> Result<(OwnedWriteHalf, Heard, SocketAddr), RunError> {
        let greeting = async {
            let (stream, _) = self.control.accept().await?;
            stream.set_nodelay(true)?;
            let (said, orders) = TcpStream::into_split(stream);
            let mut said = BufReader::new(said).lines();
            let first = said.next_line().await?.unwrap_or_default();
            match serde_json::from_str(&first) {
                Ok(Said::Bound { process: named, address }) if named == process => {
                    Ok((orders, said, address))
                }
                _ => Err(self.ended(process)),
            }
        };
        match tokio::time::timeout_at(self.deadline, greeting).await {
            Ok(done) => done,
            Err(_) => Err(self.late(&format!("the start of {process}"))),
        }
    }

    /// Tells a process where all are, and waits until its life has begun.
    async fn begin(&mut self, process: ProcessId) -> Result<(), RunError> {
        let mut known = self.addresses.clone();
        if !self.options.faults.is_empty() {
            known = self.links(process).await?;
        }
        self.order(process, &Order::Begin(known)).await?;
        self.until(&format!("the beginning of {process}"), |company| {
            company.lives.get(&process).is_some_and(|life| life.peer.is_some())
        })
        .await
    }

    /// The links of a process to all others, and theirs to it, through proxies.
    async fn links(&mut self, process: ProcessId) -> Result<BTreeMap<ProcessId, SocketAddr>, RunError> {
        let mut known = BTreeMap::new();
        for (other, address) in self.addresses.clone() {
            if other == process {
                continue;
            }
            let link = match self.proxies.entry((process, other)) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert(Proxy::to(address).await?),
            };
            known.insert(other, link.address());
            if let Some(back) = self.proxies.get(&(other, process)) {
                back.lead_to(self.addresses[&process]);
            }
        }
        Ok(known)
    }

    // ---- speaking and listening

    async fn order(&mut self, process: ProcessId, order: &Order) -> Result<(), RunError> {
        let mut line = serde_json::to_vec(order).map_err(std::io::Error::from)?;
        line.push(b'\n');
        let Some(life) = self.lives.get_mut(&process) else { return Ok(()) };
        if life.orders.write_all(&line).await.is_err() {
            return Err(self.ended(process));
        }
        Ok(())
    }

    /// Listens until something is so.
    async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Result<(), RunError> {
        while !is_so(self) {
            let said = tokio::time::timeout_at(self.deadline, self.said.1.recv()).await;
            // The channel is ours: it does not end.
            let Ok(Some((number, said))) = said else { return Err(self.late(what)) };
            self.take(number, said)?;
        }
        Ok(())
    }

    fn take(&mut self, number: u64, said: Option<Said>) -> Result<(), RunError> {
        let found = self.lives.iter_mut().find(|(_, life)| life.number == number);
        // Of a life that was ended from here.
        let Some((process, life)) = found else { return Ok(()) };
        let process = *process;
        match said {
            None => return Err(self.ended(process)),
            Some(Said::Began(peer)) => life.peer = Some(peer),
            Some(Said::Progress(progress)) => life.progress = progress,
            Some(Said::Stands(wave, stand, progress)) => {
                life.progress.clone_from(&progress);
                life.looked = progress;
                life.stand = Some((wave, stand));
            }
            Some(Said::Event { kind, .. }) if kind == "left" || kind == "lost" => {
                self.work.entry(process).or_default().done += 1;
            }
            Some(Said::Event { .. } | Said::Bound { .. }) => {}
        }
        Ok(())
    }

    fn ended(&self, process: ProcessId) -> RunError {
        let said = std::fs::read_to_string(self.errors(process)).unwrap_or_default();
        RunError::Ended { process, said: said.trim().to_string() }
    }

    fn late(&self, what: &str) -> RunError {
        let stands = self.lives.iter().map(|(process, life)| {
            let Progress { sent, received, .. } = life.progress;
            let done = match self.work.get(process).filter(|work| work.starts && !self.options.elects()) {
                Some(work) => {
                    format!(" has entered and left {} of {} times,", work.done, self.options.entries)
                }
                None => String::new(),
            };
            let stand = life.stand.as_ref();
            let stand = stand
                .map_or(String::new(), |(_, stand)| format!(" was {} when it was asked,", stand.standing));
            let paused = if life.paused { " is paused," } else { "" };
            format!("{process}{paused}{stand}{done} has sent {sent} messages and received {received}")
        });
        let stands = stands.collect::<Vec<_>>().join("; ");
        RunError::Late { what: what.to_string(), patience: self.options.patience, stands }
    }

    /// Asks all that run where they stand, and waits for all answers.
    async fn ask(&mut self) -> Result<(), RunError> {
        self.waves += 1;
        let wave = self.waves;
        let awake: Vec<_> =
            self.lives.iter().filter(|(_, life)| !life.paused).map(|(process, _)| *process).collect();
        for process in awake {
            self.order(process, &Order::Look(wave)).await?;
        }
        self.until("an answer of everybody", |company| {
            let mut awake = company.lives.values().filter(|life| !life.paused);
            awake.all(|life| life.stand.as_ref().is_some_and(|(known, _)| *known == wave))
        })
        .await
    }

    /// Where everybody that runs stood when it was last asked together: when the work was done.
    pub(super) fn stood(&self) -> BTreeMap<Peer, Stand> {
        self.stands()
    }

    fn stands(&self) -> BTreeMap<Peer, Stand> {
        let awake = self.lives.values().filter(|life| !life.paused);
        awake.filter_map(|life| Some((life.peer?, life.stand.as_ref()?.1.clone()))).collect()
    }

    // ---- what happens in a run

    /// Everybody that runs is connected to everybody that runs.
    pub(super) async fn everybody_connects(&mut self) -> Result<(), RunError> {
        self.until("that all are connected", |company| {
            let others = company.lives.len() as u32 - 1;
            let linked = |life: &Life| life.progress.links_in == others && life.progress.links_out == others;
            company.lives.values().all(linked)
        })
        .await
    }

    /// Crashes those that are to be dead before the work begins; all others know it then.
    pub(super) async fn crash_before(&mut self) -> Result<(), RunError> {
        let dead = self.options.crash.clone();
        for process in &dead {
            self.kill(*process);
        }
        self.everybody_connects().await?;
        self.until("that the dead are suspected", |company| {
            company.lives.values().all(|life| dead.iter().all(|one| life.progress.suspected.contains(one)))
        })
        .await
    }

    /// Lets those begin that are to.
    pub(super) async fn work(&mut self) -> Result<(), RunError> {
        let starters: Vec<_> =
            self.work.iter().filter(|(_, work)| work.starts).map(|(process, _)| *process).collect();
        for process in starters {
            self.call(process).await?;
        }
        Ok(())
    }

    async fn call(&mut self, process: ProcessId) -> Result<(), RunError> {
        let call = if self.options.elects() { "elect" } else { "enter" };
        self.order(process, &Order::Call(call.into())).await
    }

    /// Lets everything go wrong that is to, and mends it.
    pub(super) async fn suffer(&mut self) -> Result<(), RunError> {
        for fault in self.options.faults.clone() {
            self.fault(fault).await?;
            self.ask().await?;
            self.explain();
        }
        for (link, proxy) in &self.proxies {
            proxy.delay(Duration::ZERO);
            proxy.heal();
            tracing::debug!(?link, "mended");
        }
        let all: Vec<_> = (0..self.options.n).map(ProcessId::at).collect();
        for process in all {
            self.resume(process)?;
            if !self.options.crash.contains(&process) {
                self.restart(process).await?;
            }
        }
        Ok(())
    }

    /// Whoever waits now says why.
    fn explain(&mut self) {
        let Ok(heard) = &mut self.explained else { return };
        for (peer, stand) in
            self.lives.values().filter_map(|life| Some((life.peer?, &life.stand.as_ref()?.1)))
        {
            *heard += stand.waits.len() as u64;
            if let Err(why) = judge::explained(peer.process, stand) {
                self.explained = Err(why);
                return;
            }
        }
    }

    async fn fault(&mut self, fault: Fault) -> Result<(), RunError> {
        match fault {
            Fault::Kill(process) => self.kill(process),
            Fault::Restart(process) => self.restart(process).await?,
            Fault::Pause(process) => self.pause(process)?,
            Fault::Resume(process) => self.resume(process)?,
            Fault::Cut(from, to) => self.link(from, to, What::Cut(to), Proxy::cut),
            Fault::Mend(from, to) => self.link(from, to, What::Mended(to), Proxy::heal),
            Fault::Break(from, to) => self.proxies[&(from, to)].break_off(),
            Fault::Delay(from, to, ms) => self.proxies[&(from, to)].delay(Duration::from_millis(ms)),
            Fault::Pass(ms) => return self.pass(Duration::from_millis(ms)).await,
        }
        Ok(())
    }

    fn link(&mut self, from: ProcessId, to: ProcessId, what: What, change: fn(&Proxy)) {
        change(&self.proxies[&(from, to)]);
        if let Some(peer) = self.lives.get(&from).and_then(|life| life.peer) {
            self.note(peer, what);
        }
    }

    /// Listens for so long: this is how long a fault lasts.
    async fn pass(&mut self, span: Duration) -> Result<(), RunError> {
        let end = Instant::now() + span;
        while let Ok(Some((number, said))) = tokio::time::timeout_at(end, self.said.1.recv()).await {
            self.take(number, said)?;
        }
        Ok(())
    }

    fn note(&mut self, at_peer: Peer, what: What) {
        self.outside.push(Step { at: Clock::new().now(), at_peer, what, about: None, text: 0 });
    }

    fn kill(&mut self, process: ProcessId) {
        if let Some(life) = self.lives.remove(&process) {
            let peer = life.peer;
            drop(life);
            peer.into_iter().for_each(|peer| self.note(peer, What::Crashed));
        }
    }

    async fn restart(&mut self, process: ProcessId) -> Result<(), RunError> {
        if self.lives.contains_key(&process) {
            return Ok(());
        }
        self.spawn(process).await?;
        self.begin(process).await?;
        let work = &self.work[&process];
        let goes_on = work.starts && work.done < self.options.entries && !self.options.elects();
        if goes_on { self.call(process).await } else { Ok(()) }
    }

    fn pause(&mut self, process: ProcessId) -> Result<(), RunError> {
        let Some(life) = self.lives.get_mut(&process).filter(|life| !life.paused) else { return Ok(()) };
        let (pid, peer) = (Pid::from_child(&life.child.0), life.peer);
        kill_process(pid, Signal::STOP).map_err(std::io::Error::from)?;
        waitpid(Some(pid), WaitOptions::UNTRACED).map_err(std::io::Error::from)?;
        life.paused = true;
        peer.into_iter().for_each(|peer| self.note(peer, What::Paused));
        Ok(())
    }

    fn resume(&mut self, process: ProcessId) -> Result<(), RunError> {
        let Some(life) = self.lives.get_mut(&process).filter(|life| life.paused) else { return Ok(()) };
        let (pid, peer) = (Pid::from_child(&life.child.0), life.peer);
        life.paused = false;
        peer.into_iter().for_each(|peer| self.note(peer, What::Resumed));
        kill_process(pid, Signal::CONT).map_err(std::io::Error::from)?;
        Ok(())
    }

    /// Waits until the work is done: everybody has entered and left as often as it should, or all name one
    /// leader that runs.
    pub(super) async fn finish(&mut self) -> Result<(), RunError> {
        if self.options.elects() {
            return self.agree().await;
        }
        let entries = self.options.entries;
        self.until("that everybody has entered and left", |company| {
            company.work.values().filter(|work| work.starts).all(|work| work.done >= entries)
        })
        .await?;
        self.ask().await
    }

    async fn agree(&mut self) -> Result<(), RunError> {
        loop {
            self.ask().await?;
            if leader(&self.stands()).is_some() {
                return Ok(());
            }
            self.news("that all name one leader").await?;
        }
    }

    /// Waits until any process has come further than when it last said where it stands.
    async fn news(&mut self, what: &str) -> Result<(), RunError> {
        self.until(what, |company| company.lives.values().any(|life| life.progress != life.looked)).await
    }

    fn inputs(&self) -> u64 {
        self.lives.values().map(|life| life.progress.inputs).sum()
    }

    /// Waits until nothing is under way, seen by two rounds of questions between which nobody did anything
    /// (Mattern 1987). Says false at once if messages were lost of which nobody knows, or if timers run by
    /// which the protocol goes on for ever: then there is nothing to wait for.
    pub(super) async fn quiet(&mut self) -> Result<bool, RunError> {
        if !self.options.faults.is_empty() || self.goes_on_for_ever() {
            return Ok(false);
        }
        loop {
            self.ask().await?;
            let first = (self.inputs(), self.is_still());
            self.ask().await?;
            if first == (self.inputs(), true) && self.is_still() {
                return Ok(true);
            }
            if self.inputs() == first.0 && !self.is_still() {
                self.news("that nothing is under way").await?;
            }
        }
    }

    fn goes_on_for_ever(&self) -> bool {
        self.options.protocol == "term" || self.options.settings.silence_ms.is_some()
    }

    fn is_still(&self) -> bool {
        let all = || self.lives.values().map(|life| &life.progress);
        let (sent, gone) =
            all().fold((0, 0), |(sent, gone), one| (sent + one.sent, gone + one.received + one.lost));
        sent == gone && all().all(|one| one.timers == 0 && one.writing == 0)
    }

    /// Ends all processes, each after what it has begun.
    pub(super) async fn end(mut self) -> Result<Ended, RunError> {
        let running: Vec<_> = self.lives.keys().copied().collect();
        // All are told before the first has ended, or the others would begin to suspect it.
        for process in &running {
            self.order(*process, &Order::Stop).await?;
        }
        for process in running {
            let Some(mut life) = self.lives.remove(&process) else { continue };
            // It closes its connection when it ends, and is ours to wait for.
            let waited = tokio::task::spawn_blocking(move || life.child.0.wait());
            let status = match tokio::time::timeout_at(self.deadline, waited).await {
                Ok(Ok(status)) => status?,
                _ => return Err(self.late(&format!("the end of {process}"))),
            };
            if !status.success() {
                return Err(self.ended(process));
            }
        }
        Ok(Ended { options: self.options, outside: self.outside, explained: self.explained })
    }
}

/// What is left of a run.
pub(super) struct Ended {
    pub(super) options: Options,
    /// What was done to the processes.
    pub(super) outside: Vec<Step>,
    /// How many waits were heard meanwhile, or who waited and did not say why.
    pub(super) explained: Result<u64, String>,
}

/// What a life says, by its number; nothing when it has ended.
type Line = (u64, Option<Said>);

/// What one life says, line by line.
type Heard = tokio::io::Lines<BufReader<OwnedReadHalf>>;

/// Hears what one life says, to its end.
async fn listen(number: u64, mut said: Heard, tell: mpsc::Sender<Line>) {
    while let Ok(Some(line)) = said.next_line().await {
        let Ok(said) = serde_json::from_str(&line) else { break };
        if tell.send((number, Some(said))).await.is_err() {
            return;
        }
    }
    // If nobody listens, nobody misses it.
    let _ = tell.send((number, None)).await;
}

/// The leader that all name, if it is one of them and says so itself.
pub(super) fn leader(stands: &BTreeMap<Peer, Stand>) -> Option<ProcessId> {
    let first = stands.values().next()?.leader?;
    let same = stands.values().all(|stand| stand.leader == Some(first) && stand.standing != "electing");
    let leads = |(peer, stand): (&Peer, &Stand)| peer.process == first && stand.standing == "leading";
    (same && stands.iter().any(leads)).then_some(first)
}
