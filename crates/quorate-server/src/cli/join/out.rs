//! Standard output, a line at a time: each is one write, and is made when it can be written at once.

use super::lines;
use crate::cli::exit::Failure;
use crate::cli::output::{coloured, json_text};
use quorate::advisory::Advisory;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use tokio::io::Interest;
use tokio::net::unix::pipe::Sender;

/// Where the lines go.
pub(super) struct Out {
    json: bool,
    coloured: bool,
    width: Option<usize>,
    /// Tells when there is room; none where there always is, as in a file.
    room: Option<Sender>,
    /// What the last line that was written said this member's place is.
    told: Option<Option<i64>>,
    silent: bool,
}

impl Out {
    pub(super) fn new(json: bool) -> Self {
        // Only readiness is asked of it, which a terminal and a socket answer as a pipe does.
        let room = io::stdout().as_fd().try_clone_to_owned().and_then(Sender::from_owned_fd_unchecked).ok();
        let width = rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
        let width = width.filter(|columns| *columns > 0);
        Self { json, coloured: coloured(), width, room, told: None, silent: false }
    }

    /// For one that leaves since nobody reads it.
    pub(super) fn nowhere() -> Self {
        Self { json: false, coloured: false, width: None, room: None, told: None, silent: true }
    }

    /// Waits until a line can be written at once.
    pub(super) async fn writable(&self) {
        let Some(room) = &self.room else { return };
        while !has_room() {
            // Forgets that there was room, unless some was made meanwhile.
            let _ = room.try_io(|| match has_room() {
                true => Ok(()),
                false => Err(ErrorKind::WouldBlock.into()),
            });
            if room.writable().await.is_err() {
                return;
            }
        }
    }

    /// Waits until nobody reads any more.
    pub(super) async fn unread(&self) {
        match &self.room {
            Some(room) => while room.ready(Interest::ERROR).await.is_ok_and(|ready| !ready.is_error()) {},
            None => std::future::pending().await,
        }
    }

    /// The advisory as a line. What was dropped was never told, so the place before is what the last line said.
    pub(super) fn line(&self, advisory: &Advisory) -> String {
        let mut advisory = advisory.clone();
        if let Some(told) = self.told {
            advisory.previous = told;
        }
        match self.json {
            true => {
                let json = serde_json::to_string(&advisory).expect("an advisory has text keys only");
                json_text(&json).into_owned() + "\n"
            }
            false => lines::line(&advisory, self.coloured, self.width) + "\n",
        }
    }

    /// Writes the line of an advisory.
    pub(super) fn write_line(&mut self, line: &str, advisory: &Advisory) -> Result<(), Failure> {
        if !self.silent {
            write(line.as_bytes())?;
        }
        self.told = Some(advisory.ordinal);
        Ok(())
    }

    /// Writes an advisory.
    pub(super) fn write(&mut self, advisory: &Advisory) -> Result<(), Failure> {
        self.write_line(&self.line(advisory), advisory)
    }
}

#[cfg(test)]
impl Out {
    /// The place in the last line that was written.
    pub(super) fn told(&self) -> Option<Option<i64>> {
        self.told
    }
}

/// One write, but for a line that is longer than a pipe has room for.
fn write(mut rest: &[u8]) -> Result<(), Failure> {
    while !rest.is_empty() {
        match rustix::io::write(io::stdout(), rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                // Interrupted or not, the write is tried again.
                let _ = wait_for_room(None);
            }
            Err(Errno::PIPE) => return Err(Failure::unread()),
            Err(error) => return Err(Failure::failed(format!("cannot write the output: {error}"))),
        }
    }
    Ok(())
}

fn has_room() -> bool {
    // What cannot be asked is tried.
    wait_for_room(Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(0)
}

fn wait_for_room(limit: Option<&Timespec>) -> Result<usize, Errno> {
    let stdout = io::stdout();
    poll(&mut [PollFd::new(&stdout, PollFlags::OUT)], limit)
}
