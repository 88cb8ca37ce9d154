//! Messages between processes: TCP, and frames of our own.
//!
//! **Rule.** Whoever has something to say connects, proves that it lives now, and then sends; what is sent on
//! one connection arrives in its order. A message is lost if the next attempt to connect fails, or if its
//! connection breaks before it arrives. Nothing is sent twice.
//!
//! | frame | fields | when |
//! |---|---|---|
//! | Hello | process, life, to | first, by the one that connects |
//! | Welcome | life, nonce | the answer: the life that listens, and a number drawn for this connection |
//! | Prove | nonce | the number again: a Hello of a life that is over proves nothing |
//! | Mail | number, life, kind, message | a message; with a life if it concerns only that one |
//! | Beat | | when there was nothing to say for a while |
//!
//! A frame is its length (4 bytes, big endian), the version of the format (1 byte), and its fields in
//! postcard.
//!
//! **When it fails.** A frame that is too long, of another version or out of turn ends its connection; a new
//! one is made. TCP itself cannot tell a message that was received from one that was not: the traces can.

use quorate_core::protocol::{Incarnation, Peer, ProcessId};
use quorate_core::trace::Loss;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The version of the frames.
const VERSION: u8 = 1;

/// The longest frame in bytes: a message of a protocol has some hundred. It bounds what a stranger can make a
/// process keep.
const FRAME_BYTES_MAX: usize = 1 << 20;

/// How many messages wait for one process at most, while the network is slower than the protocol. Those
/// beyond are lost, as on a link that loses.
const QUEUE_MAX: usize = 4_096;

/// How many bytes go out in one write, about.
const WRITE_BYTES: usize = 64 << 10;

/// How long a connection may take until it is proved.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);

/// How long nobody is accepted after that failed, so that a process without descriptors does not spin.
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Frame {
    Hello { process: ProcessId, life: Incarnation, to: ProcessId },
    Welcome { life: Incarnation, nonce: u64 },
    Prove { nonce: u64 },
    Mail(Mail),
    Beat,
}

/// A message in its frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mail {
    /// Its number, of its sender's life.
    pub(super) number: u64,
    /// The only life that it concerns.
    pub(super) life: Option<Incarnation>,
    /// Its sort.
    pub(super) kind: u8,
    /// Itself, encoded.
    pub(super) message: Vec<u8>,
}

/// What the transport tells.
#[derive(Debug)]
pub(super) enum Heard {
    /// A connection of this life of a process is proved; connections are numbered.
    Linked { from: Peer, link: u64 },
    /// A message came.
    Mail { from: Peer, link: u64, mail: Mail },
    /// Nothing new, but it lives.
    Beat { from: Peer, link: u64 },
    /// The connection has ended.
    Unlinked { from: Peer, link: u64 },
    /// A message was lost on its way out.
    Lost { to: ProcessId, number: u64, kind: u8, why: Loss },
    /// The way out to a process is open, or is not.
    Reached { to: ProcessId, open: bool },
}

/// Where the transport tells it: says false if nobody listens any more.
pub(super) trait Ear: Clone + Send + Sync + 'static {
    fn tell(&self, heard: Heard) -> impl Future<Output = bool> + Send;
}

fn frame(into: &mut Vec<u8>, frame: &Frame) {
    let body = postcard::to_allocvec(frame).expect("a frame of plain values has a form");
    into.extend(((body.len() + 1) as u32).to_be_bytes());
    into.push(VERSION);
    into.extend(body);
}

async fn write(to: &mut (impl AsyncWrite + Unpin), one: &Frame) -> io::Result<()> {
    let mut bytes = Vec::new();
    frame(&mut bytes, one);
    to.write_all(&bytes).await
}

async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let bytes = from.read_u32().await? as usize;
    if !(2..=FRAME_BYTES_MAX).contains(&bytes) {
        return Err(wrong(format!("a frame of {bytes} bytes")));
    }
    let mut body = vec![0; bytes];
    from.read_exact(&mut body).await?;
    if body[0] != VERSION {
        return Err(wrong(format!("a frame of version {}, this program knows {VERSION}", body[0])));
    }
    postcard::from_bytes(&body[1..]).map_err(|error| wrong(error.to_string()))
}

/// All connections of one process. They end when it is dropped.
pub(super) struct Transport {
    outs: Vec<(ProcessId, mpsc::Sender<Mail>)>,
    _tasks: JoinSet<()>,
}

/// What the connections of one process need to know.
#[derive(Clone, Debug)]
pub(super) struct Wiring {
    pub(super) me: Peer,
    /// How often a way out that is closed is tried again, and how often an open one says that it lives.
    pub(super) beat: Duration,
}

impl Transport {
    pub(super) fn start(
        wiring: Wiring,
        listener: TcpListener,
        others: impl Iterator<Item = (ProcessId, SocketAddr)>,
        ear: impl Ear,
    ) -> Self {
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(wiring.me, listener, ear.clone()));
        let outs = others.map(|(process, address)| {
            let (sender, queue) = mpsc::channel(QUEUE_MAX);
            let out =
                Out { wiring: wiring.clone(), to: process, address, queue, first: None, ear: ear.clone() };
            tasks.spawn(out.run());
            (process, sender)
        });
        Self { outs: outs.collect(), _tasks: tasks }
    }

    /// Sends, or says that it cannot be kept until it is sent.
    pub(super) fn send(&self, to: ProcessId, mail: Mail) -> Result<(), Mail> {
        match self.outs.iter().find(|(process, _)| *process == to) {
            None => Err(mail),
            Some((_, out)) => out.try_send(mail).map_err(|full| full.into_inner()),
        }
    }
}

/// Accepts whoever proves that it lives.
async fn listen(me: Peer, listener: TcpListener, ear: impl Ear) {
    let mut links = 0;
    let mut readers = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                links += 1;
                readers.spawn(hear(me, stream, links, ear.clone()));
            }
            // Out of descriptors, or a connection that was gone already: others go on.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
        while readers.try_join_next().is_some() {}
    }
}

/// One connection from another process.
async fn hear(me: Peer, mut stream: TcpStream, link: u64, ear: impl Ear) {
    let from = match tokio::time::timeout(HANDSHAKE_MAX, welcome(me, &mut stream)).await {
        Ok(Ok(from)) => from,
        Ok(Err(error)) => return tracing::debug!(%error, "a connection was not proved"),
        Err(_) => return tracing::debug!("a connection was not proved in time"),
    };
    if !ear.tell(Heard::Linked { from, link }).await {
        return;
    }
    let mut stream = tokio::io::BufReader::new(stream);
    loop {
        let heard = match read(&mut stream).await {
            Ok(Frame::Mail(mail)) => Heard::Mail { from, link, mail },
            Ok(Frame::Beat) => Heard::Beat { from, link },
            Ok(other) => {
                tracing::warn!(%from, ?other, "a frame was out of turn");
                break;
            }
            Err(error) => {
                tracing::debug!(%from, %error, "a connection has ended");
                break;
            }
        };
        if !ear.tell(heard).await {
            return;
        }
    }
    ear.tell(Heard::Unlinked { from, link }).await;
}

async fn welcome(me: Peer, stream: &mut TcpStream) -> io::Result<Peer> {
    let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_string());
    stream.set_nodelay(true)?;
    let Frame::Hello { process, life, to } = read(stream).await? else {
        return Err(refused("the first frame is not Hello"));
    };
    if to != me.process {
        return Err(refused("it wants another process"));
    }
    let nonce: u64 = rand::random();
    write(stream, &Frame::Welcome { life: me.incarnation, nonce }).await?;
    match read(stream).await? {
        Frame::Prove { nonce: again } if again == nonce => Ok(Peer { process, incarnation: life }),
        _ => Err(refused("it does not live now")),
    }
}

/// The way out to one process.
struct Out<E> {
    wiring: Wiring,
    to: ProcessId,
    address: SocketAddr,
    queue: mpsc::Receiver<Mail>,
    /// A message that waits for the connection that is being made for it.
    first: Option<Mail>,
    ear: E,
}

impl<E: Ear> Out<E> {
    async fn run(mut self) {
        loop {
            match tokio::time::timeout(HANDSHAKE_MAX, self.connect()).await {
                Ok(Ok(stream)) => {
                    if !self.ear.tell(Heard::Reached { to: self.to, open: true }).await {
                        return;
                    }
                    let ended = self.carry(stream).await;
                    self.ear.tell(Heard::Reached { to: self.to, open: false }).await;
                    if ended {
                        return;
                    }
                }
                Ok(Err(_)) => {
                    if !self.lose_all(Loss::Down).await || !self.wait().await {
                        return;
                    }
                }
                Err(_) => {
                    if !self.lose_all(Loss::Link).await {
                        return;
                    }
                }
            }
        }
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let me = self.wiring.me;
        write(&mut stream, &Frame::Hello { process: me.process, life: me.incarnation, to: self.to }).await?;
        match read(&mut stream).await? {
            Frame::Welcome { nonce, .. } => write(&mut stream, &Frame::Prove { nonce }).await?,
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is not Welcome")),
        }
        Ok(stream)
    }

    /// Until there is something to send, or it is time to try again.
    async fn wait(&mut self) -> bool {
        let again = tokio::time::sleep(self.wiring.beat);
        tokio::select! {
            () = again => true,
            mail = self.queue.recv() => {
                self.first = mail;
                self.first.is_some()
            }
        }
    }

    /// Sends until the connection breaks. Says true if there will be nothing more to send.
    async fn carry(&mut self, stream: TcpStream) -> bool {
        let (mut from, mut to) = stream.into_split();
        let mut bytes = Vec::new();
        let mut answer = [0; 1];
        loop {
            bytes.clear();
            let mut sent = Vec::new();
            tokio::select! {
                biased;
                // Nothing comes back on this connection but its end.
                _ = from.read(&mut answer) => return false,
                mail = next(&mut self.first, &mut self.queue) => match mail {
                    Some(mail) => self.pack(mail, &mut bytes, &mut sent),
                    None => return true,
                },
                () = tokio::time::sleep(self.wiring.beat) => frame(&mut bytes, &Frame::Beat),
            }
            let written = tokio::select! {
                biased;
                written = to.write_all(&bytes) => written.is_ok(),
                _ = from.read(&mut answer) => false,
            };
            if !written {
                for (number, kind) in sent {
                    self.lose(number, kind, Loss::Link).await;
                }
                return false;
            }
        }
    }

    /// Packs a message and those behind it.
    fn pack(&mut self, mail: Mail, bytes: &mut Vec<u8>, sent: &mut Vec<(u64, u8)>) {
        let mut next = Some(mail);
        while let Some(mail) = next {
            sent.push((mail.number, mail.kind));
            frame(bytes, &Frame::Mail(mail));
            next = if bytes.len() < WRITE_BYTES { self.queue.try_recv().ok() } else { None };
        }
    }

    async fn lose_all(&mut self, why: Loss) -> bool {
        while let Some(mail) = self.first.take().or_else(|| self.queue.try_recv().ok()) {
            if !self.lose(mail.number, mail.kind, why).await {
                return false;
            }
        }
        true
    }

    async fn lose(&self, number: u64, kind: u8, why: Loss) -> bool {
        self.ear.tell(Heard::Lost { to: self.to, number, kind, why }).await
    }
}

async fn next(first: &mut Option<Mail>, queue: &mut mpsc::Receiver<Mail>) -> Option<Mail> {
    match first.take() {
        Some(mail) => Some(mail),
        None => queue.recv().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_come_out_as_they_went_in_and_foreign_ones_are_refused() {
        let mail = Mail { number: 7, life: Some(Incarnation(9)), kind: 1, message: vec![1, 2, 3] };
        for one in [Frame::Beat, Frame::Mail(mail), Frame::Prove { nonce: u64::MAX }] {
            let mut bytes = Vec::new();
            frame(&mut bytes, &one);
            assert_eq!(read(&mut bytes.as_slice()).await.expect("it is one"), one);
            bytes[4] = VERSION + 1;
            let error = read(&mut bytes.as_slice()).await.expect_err("another version");
            assert!(error.to_string().contains("version"), "{error}");
        }
        let long = (FRAME_BYTES_MAX as u32 + 1).to_be_bytes();
        assert!(read(&mut long.as_slice()).await.expect_err("too long").to_string().contains("bytes"));
    }
}
