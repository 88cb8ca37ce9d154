//! Signals to this process while it holds a lock. They are the command's to answer: this process ends after it.

use super::super::exit::Failure;
use rustix::process::{
    Pid, Signal, getpgid, getpid, getppid, getsid, kill_current_process_group, kill_process,
};
use std::task::Poll;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

/// The signals that ask something of a command.
pub(in crate::cli) const FORWARDED: [Signal; 6] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];

/// Signals that ask this process, or what it runs, to end or to do something. One that whoever started this process
/// made it ignore, as `nohup` does, stays ignored, here and in the command.
#[derive(Debug)]
pub(in crate::cli) struct Asked {
    signals: Vec<(i32, Signals)>,
    /// Listened to so that a guardian which is started does not inherit that it is ignored, and can wait for its
    /// children.
    _children: Signals,
}

/// The signals of job control: the holder is asked to stop, or goes on.
#[derive(Debug)]
pub(super) struct JobControl {
    stop: Option<Signals>,
    go_on: Signals,
}

/// What job control asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// Stop.
    Stop,
    /// Go on.
    GoOn,
}

impl Asked {
    pub(in crate::cli) fn listen(signals: &[Signal]) -> Result<Self, Failure> {
        let heard = signals.iter().copied().filter(|&signal| !is_ignored(signal));
        let signals = heard.map(|signal| Ok((signal.as_raw(), listen(signal)?)));
        Ok(Self { signals: signals.collect::<Result<_, Failure>>()?, _children: listen(Signal::CHILD)? })
    }

    /// The next one.
    pub(in crate::cli) async fn next(&mut self) -> i32 {
        let signals = &mut self.signals;
        std::future::poll_fn(|context| {
            let came = signals
                .iter_mut()
                .find_map(|(number, signal)| signal.poll_recv(context).is_ready().then_some(*number));
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl JobControl {
    pub(super) fn listen() -> Result<Self, Failure> {
        let stop = (!is_ignored(Signal::TSTP)).then(|| listen(Signal::TSTP)).transpose()?;
        Ok(Self { stop, go_on: listen(Signal::CONT)? })
    }

    pub(super) async fn next(&mut self) -> Job {
        let stop = async {
            match &mut self.stop {
                Some(stop) => stop.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = stop => Job::Stop,
            _ = self.go_on.recv() => Job::GoOn,
        }
    }
}

/// Who is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// This process.
    Me,
    /// The whole job, as a terminal's key would.
    Job,
}

/// Stops, until somebody continues it.
pub(super) fn stop(who: Who) {
    // One may always signal oneself and one's own group.
    let _ = match who {
        Who::Me => kill_process(getpid(), Signal::STOP),
        Who::Job => kill_current_process_group(Signal::STOP),
    };
}

/// Whether there is no shell that would continue this process: its parent is of its own group, or of another session.
/// That is the kernel's rule for who may not be stopped by a terminal.
pub(super) fn is_orphaned() -> bool {
    let parent = getppid();
    let same = |of: fn(Option<Pid>) -> rustix::io::Result<Pid>| of(parent).ok() == of(None).ok();
    parent.is_none() || same(getpgid) || !same(getsid)
}

fn listen(signal_: Signal) -> Result<Signals, Failure> {
    signal(SignalKind::from_raw(signal_.as_raw()))
        .map_err(|error| Failure::failed(format!("cannot listen for signals: {error}")))
}

fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
}
