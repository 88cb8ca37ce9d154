//! A link that can be cut: bytes go on no more, and nobody is told.

use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A way to a service. It ends with the value.
pub(super) struct Relay {
    /// Where it listens.
    pub(super) address: SocketAddr,
    cut: watch::Sender<bool>,
}

impl Relay {
    pub(super) async fn to(service: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (cut, is_cut) = watch::channel(false);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(service).await else { return };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(pass(from_client, to_server, is_cut.clone()));
                tokio::spawn(pass(from_server, to_client, is_cut.clone()));
            }
        });
        Self { address, cut }
    }

    /// From now on nothing passes, and both ends stay open.
    pub(super) fn cut(&self) {
        self.cut.send_replace(true);
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut cut: watch::Receiver<bool>,
) {
    let mut bytes = vec![0; 16 << 10];
    loop {
        tokio::select! {
            () = async { drop(cut.wait_for(|cut| *cut).await) } => {
                // Held open until the relay ends.
                while cut.changed().await.is_ok() {}
                return;
            }
            read = from.read(&mut bytes) => match read {
                Ok(0) | Err(_) => return,
                Ok(length) => {
                    if to.write_all(&bytes[..length]).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}
