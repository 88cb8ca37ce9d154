//! A way to a service that can be broken: a socket of this machine on one side, the service on the other.

use crate::client::{Client, ClientBuilder};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// How many bytes are on the way inside a cable at most.
const BYTES_MAX: usize = 64 << 10;

/// A way to the service, through which any number of connections go. Dropped, they break.
#[derive(Debug)]
pub struct Cable {
    address: SocketAddr,
    state: Arc<watch::Sender<State>>,
    accepting: JoinHandle<()>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// Connections of an earlier life are broken.
    life: u64,
    plugged: bool,
    /// Bytes pass from the client to the service.
    calls: bool,
    /// Bytes pass from the service to the client.
    answers: bool,
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

/// What is at the other end.
#[derive(Clone, Debug)]
enum Far {
    /// A service in this process, which takes one end of each connection.
    Here(mpsc::UnboundedSender<DuplexStream>),
    /// One elsewhere, at `host:port`.
    There(String),
}

impl Cable {
    /// A way to a real service at `host:port`, to test a program against a broken network.
    ///
    /// # Panics
    /// If this machine has no port left.
    pub async fn to(address: impl Into<String>) -> Self {
        Self::between(Far::There(address.into())).await
    }

    pub(super) async fn plug(dial: mpsc::UnboundedSender<DuplexStream>) -> Self {
        Self::between(Far::Here(dial)).await
    }

    async fn between(far: Far) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port of this machine");
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = State { life: 0, plugged: true, calls: true, answers: true };
        let state = Arc::new(watch::Sender::new(state));
        let accepting = tokio::spawn(accept(listener, far, Arc::clone(&state)));
        Self { address, state, accepting }
    }

    /// Its address, `127.0.0.1:port`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// A client at this end.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn client(&self) -> Client {
        self.builder().build().expect("a socket's address is an address")
    }

    /// A client at this end, with more to be said.
    pub fn builder(&self) -> ClientBuilder {
        Client::builder(self.address())
    }

    /// Breaks the connections, so that both ends notice; new ones can be made.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.life += 1);
    }

    /// Nothing passes any more, and nobody is told.
    pub fn freeze(&self) {
        self.state.send_modify(|state| (state.calls, state.answers) = (false, false));
    }

    /// Answers do not pass any more; calls still do.
    pub fn freeze_answers(&self) {
        self.state.send_modify(|state| state.answers = false);
    }

    /// Everything passes again, what was on its way too.
    pub fn thaw(&self) {
        self.state.send_modify(|state| (state.calls, state.answers) = (true, true));
    }

    /// New connections are closed at once. Those that exist stay: see [`cut`](Self::cut).
    pub fn unplug(&self) {
        self.state.send_modify(|state| state.plugged = false);
    }

    /// New connections can be made again.
    pub fn plug_in(&self) {
        self.state.send_modify(|state| state.plugged = true);
    }
}

async fn accept(listener: TcpListener, far: Far, state: Arc<watch::Sender<State>>) {
    while let Ok((client, _)) = listener.accept().await {
        let now = *state.borrow();
        if now.plugged && client.set_nodelay(true).is_ok() {
            tokio::spawn(connect(client, far.clone(), state.subscribe(), now.life));
        }
    }
}

/// Reaches the far end for a connection, and carries it.
async fn connect(client: TcpStream, far: Far, state: watch::Receiver<State>, life: u64) {
    match far {
        Far::Here(dial) => {
            let (near, far) = tokio::io::duplex(BYTES_MAX);
            if dial.send(far).is_ok() {
                carry(client, near, state, life).await;
            }
        }
        Far::There(address) => {
            if let Ok(service) = TcpStream::connect(address).await {
                // Without it small frames would only be later.
                let _ = service.set_nodelay(true);
                carry(client, service, state, life).await;
            }
        }
    }
}

/// Carries the bytes of one connection until either end closes it or it is broken.
async fn carry<S>(client: TcpStream, service: S, state: watch::Receiver<State>, life: u64)
where
    S: AsyncRead + AsyncWrite,
{
    let (from_client, to_client) = client.into_split();
    let (from_service, to_service) = tokio::io::split(service);
    let mut broken = state.clone();
    let calls = copy(from_client, to_service, state.clone(), |state| state.calls);
    let answers = copy(from_service, to_client, state, |state| state.answers);
    tokio::select! {
        biased; // What is cut and thawed at once passes nothing.
        _ = broken.wait_for(|state| state.life != life) => {}
        () = calls => {}
        () = answers => {}
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: watch::Receiver<State>,
    open: impl Fn(&State) -> bool,
) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut bytes).await {
        if state.wait_for(&open).await.is_err() || to.write_all(&bytes[..n]).await.is_err() {
            return;
        }
    }
}
