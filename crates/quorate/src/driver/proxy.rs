//! A link that can be cut, delayed and broken: it stands between a process and another one's address.
//!
//! **Rule.** Bytes go through in their order, each piece after the present delay. A cut holds all that comes
//! from now on, in that direction only and without a word; healing breaks what was held, so that it is lost.
//!
//! One proxy is one direction between two processes, as each connects to the other by itself: see
//! [`super::Driver::start`].

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// How many pieces are under way in one direction at most; the network's own buffers come on top.
const PIECES_MAX: usize = 64;

/// How many bytes a piece has at most.
const PIECE_BYTES: usize = 16 << 10;

/// How long nobody is accepted after that failed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);

/// A link from one process to another. Dropped, it is broken.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    accepting: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Connections of an earlier number are broken.
    life: u64,
    cut: bool,
    delay: Duration,
    /// Where connections go.
    to: SocketAddr,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Proxy {
    /// A link to this address, on a free port of this machine.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn to(to: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (state, changes) = watch::channel(State { life: 0, cut: false, delay: Duration::ZERO, to });
        Ok(Self { address, state, accepting: tokio::spawn(accept(listener, changes)) })
    }

    /// Where to connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where new connections lead from now on: a process that starts again has another port.
    pub fn lead_to(&self, to: SocketAddr) {
        self.state.send_modify(|state| state.to = to);
    }

    /// What goes through from now on takes so long, each way.
    pub fn delay(&self, delay: Duration) {
        self.state.send_modify(|state| state.delay = delay);
    }

    /// Breaks the connections, so that both ends notice; new ones can be made.
    pub fn break_off(&self) {
        self.state.send_modify(|state| state.life += 1);
    }

    /// Nothing goes through any more from the one that connects, and nobody is told.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cut = true);
    }

    /// Ends a cut. What was held is lost with its connection.
    pub fn heal(&self) {
        self.state.send_modify(|state| {
            state.life += u64::from(state.cut);
            state.cut = false;
        });
    }
}

async fn accept(listener: TcpListener, state: watch::Receiver<State>) {
    let mut links = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((near, _)) => drop(links.spawn(carry(near, state.clone()))),
            // Out of descriptors: it would only spin.
            Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
        }
        while links.try_join_next().is_some() {}
    }
}

/// Carries one connection until either end closes it or it is broken.
async fn carry(near: TcpStream, mut state: watch::Receiver<State>) {
    let State { life, to, .. } = *state.borrow();
    let broken = state.clone();
    let joined = async {
        let far = TcpStream::connect(to).await?;
        // Small frames would only be later.
        near.set_nodelay(true)?;
        far.set_nodelay(true)?;
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        let forth = copy(near_in, far_out, broken.clone(), |state| !state.cut);
        let back = copy(far_in, near_out, broken, |_| true);
        tokio::select! {
            () = forth => {}
            () = back => {}
        }
        std::io::Result::Ok(())
    };
    tokio::select! {
        biased; // What is cut and healed at once passes nothing.
        _ = state.wait_for(|state| state.life != life) => {}
        _ = joined => {}
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: watch::Receiver<State>,
    open: impl Fn(&State) -> bool,
) {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES_MAX);
    let delays = state.clone();
    let read = async move {
        let mut bytes = vec![0; PIECE_BYTES];
        while let Ok(n @ 1..) = from.read(&mut bytes).await {
            let due = Instant::now() + delays.borrow().delay;
            if sender.send((due, bytes[..n].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async {
        while let Some((due, piece)) = pieces.recv().await {
            tokio::time::sleep_until(due).await;
            if state.wait_for(&open).await.is_err() || to.write_all(&piece).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ends(proxy: &Proxy, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let near = TcpStream::connect(proxy.address()).await.expect("it accepts");
        (near, listener.accept().await.expect("it connects").0)
    }

    #[tokio::test]
    async fn a_link_delays_is_cut_one_way_and_healed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let proxy = Proxy::to(listener.local_addr().expect("an address")).await.expect("a port");
        let (mut near, mut far) = ends(&proxy, &listener).await;
        let mut byte = [0];
        proxy.delay(Duration::from_millis(30));
        let begun = Instant::now();
        near.write_all(b"a").await.expect("it is open");
        far.read_exact(&mut byte).await.expect("it arrives");
        assert!(begun.elapsed() >= Duration::from_millis(30));
        proxy.delay(Duration::ZERO);
        proxy.cut();
        near.write_all(b"b").await.expect("nobody is told");
        far.write_all(b"c").await.expect("it is open");
        near.read_exact(&mut byte).await.expect("the other way is not cut");
        assert_eq!(&byte, b"c");
        proxy.heal();
        assert!(!matches!(far.read(&mut byte).await, Ok(1..)), "what was held is lost with its connection");
        let (mut near, mut far) = ends(&proxy, &listener).await;
        near.write_all(b"d").await.expect("it is open");
        far.read_exact(&mut byte).await.expect("it arrives");
        assert_eq!(&byte, b"d");
    }
}
