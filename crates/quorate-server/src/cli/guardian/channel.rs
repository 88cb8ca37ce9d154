//! What the holder of a lock and its guardian tell each other, over a pair of connected sockets. Its end, when one
//! of them dies however it dies, is what the other hears first.
//!
//! The first byte carries the command's standard input along, since the guardian's own is this channel. After it
//! every message is a byte with its length and so many bytes (postcard).

use super::plan::Cause;
use quorate_core::time::{Mono, Span};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The longest text in a message, so that its length fits into a byte.
const TEXT_BYTES_MAX: usize = 200;

/// From the holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    /// Start the command; it may act until then. `group` is the holder's process group.
    Begin { deadline: Mono, group: i32 },
    /// A keepalive was confirmed: the command may act until then.
    Extend { deadline: Mono },
    /// Pass a signal on to the command's process group.
    Signal { signal: i32 },
    /// The holder runs again: let the command run too, in the foreground if that is the holder's.
    Continue,
    /// The holder is asked to stop: end the command, with its grace.
    End,
    /// The authority is gone: end the command now.
    Kill,
    /// The seat is asked for: tell the command to end, and wait. Nobody takes it meanwhile (RULES R11).
    Ask,
}

/// From the guardian.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) enum Report {
    /// The command could not be started.
    NotStarted { why: String },
    /// The command was stopped by a signal. `interactive`: its terminal stopped it, and it does not have it any more.
    Stopped { signal: i32, interactive: bool },
    /// The command was told to end; it is ended so much later.
    Ending { cause: Cause, kill_in: Span },
    /// The command has ended by itself and left so many processes behind, which are told to end.
    LeftBehind { count: u32 },
    /// The command has ended, and everything that it started.
    Ended(Ended),
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Ended {
    /// Its status; none if it cannot be ended.
    pub(in super::super) status: Option<Status>,
    /// Why it was made to end; none if it ended by itself.
    pub(in super::super) cause: Option<Cause>,
    /// How many of its processes cannot be ended.
    pub(in super::super) stuck: u32,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) enum Status {
    /// With a code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// A text that fits into a message.
pub(super) fn short(text: &str) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// Sends a descriptor along with one byte.
pub(super) fn send_descriptor(channel: impl AsFd, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is space for one");
    rustix::net::sendmsg(channel, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes the descriptor that came with the first byte.
pub(super) fn receive_descriptor(channel: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(channel, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptor.ok_or_else(|| io::Error::other("no descriptor came"))
}

/// Sends a message, and never waits: a side that does not read is found out by its deadline.
pub(super) fn send(channel: impl AsFd, message: &impl Serialize) -> io::Result<()> {
    let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
    let length = u8::try_from(body.len()).map_err(io::Error::other)?;
    let frame = [&[length], body.as_slice()].concat();
    rustix::net::send(channel, &frame, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// The bytes that came and are no whole message yet.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
}

/// What is in an inbox.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mail<T> {
    /// A message.
    Message(T),
    /// Nothing yet.
    Empty,
    /// Nothing any more: the other side is gone.
    Closed,
}

impl Inbox {
    /// The next message, without waiting.
    pub(super) fn next<T: DeserializeOwned>(&mut self, channel: impl AsFd) -> io::Result<Mail<T>> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Mail::Message(message));
            }
            let mut bytes = [0; 512];
            match rustix::net::recv(&channel, &mut bytes, RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(Mail::Closed),
                Ok((_, length)) => self.bytes.extend_from_slice(&bytes[..length]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Mail::Empty),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn take<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some(length) = self.bytes.first().map(|length| usize::from(*length)) else { return Ok(None) };
        if self.bytes.len() <= length {
            return Ok(None);
        }
        let message = postcard::from_bytes(&self.bytes[1..=length]).map_err(io::Error::other)?;
        self.bytes.drain(..=length);
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn messages_arrive_whole_and_in_order_and_the_end_after_them() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut inbox = Inbox::default();
        assert_eq!(inbox.next::<Order>(&ours).unwrap(), Mail::Empty);
        let extend = Order::Extend { deadline: Mono(u64::MAX) };
        send(&theirs, &extend).unwrap();
        send(&theirs, &Order::Kill).unwrap();
        assert_eq!(inbox.next(&ours).unwrap(), Mail::Message(extend));
        assert_eq!(inbox.next(&ours).unwrap(), Mail::Message(Order::Kill));
        let half = postcard::to_allocvec(&Order::Signal { signal: 2 }).unwrap();
        theirs.write_all(&[half.len() as u8, half[0]]).unwrap();
        assert_eq!(inbox.next::<Order>(&ours).unwrap(), Mail::Empty);
        theirs.write_all(&half[1..]).unwrap();
        assert_eq!(inbox.next(&ours).unwrap(), Mail::Message(Order::Signal { signal: 2 }));
        drop(theirs);
        assert_eq!(inbox.next::<Order>(&ours).unwrap(), Mail::Closed);
    }

    #[test]
    fn a_descriptor_comes_with_the_first_byte_only() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        send_descriptor(&theirs, writer.as_fd()).unwrap();
        send(&theirs, &Order::End).unwrap();
        let received = receive_descriptor(&ours).unwrap();
        assert_eq!(Inbox::default().next(&ours).unwrap(), Mail::Message(Order::End));
        drop(writer);
        std::fs::File::from(received).write_all(b"through").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn a_long_text_is_cut_between_letters() {
        assert_eq!(short("kurz"), "kurz");
        let long = "ä".repeat(200);
        assert_eq!(short(&long).len(), 200);
        assert!(postcard::to_allocvec(&Report::NotStarted { why: short(&long) }).unwrap().len() < 255);
    }
}
