//! What nodes of one cluster say to each other: one message to a node, one answer back, as bytes.
//!
//! A lone node has nobody to talk to ([`Alone`]). A test or a simulator plugs its own [`Peers`] in; so
//! will the transport between servers. A message is a version byte, a kind byte, and the postcard form
//! of the library's own request: nothing of it is stored, and nodes of one cluster run one release
//! while members change.

use super::machine::{Machine, RawSnapshot};
use super::types::{RawSnapshotMeta, RawVote, Types};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{AsyncRuntime, OptionalSend, Raft};
use quorate_core::id::NodeId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

/// The version of the messages between nodes.
pub const MESSAGE_VERSION: u8 = 1;

/// Why another node gave no answer. Whether it acted on the message is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PeerError(pub String);

/// An answer on its way.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Vec<u8>, PeerError>> + Send + 'a>>;

/// The way to the other nodes. Messages may be lost, doubled, delayed and reordered, never altered.
pub trait Peers: Send + Sync + 'static {
    /// Sends a message to a node, whose [`Engine::hear`](super::Engine::hear) makes the answer.
    fn call(&self, to: NodeId, message: Vec<u8>) -> Answer<'_>;
}

/// No other nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Peers for Alone {
    fn call(&self, to: NodeId, _message: Vec<u8>) -> Answer<'_> {
        Box::pin(std::future::ready(Err(PeerError(format!(
            "node {to} cannot be reached: this server runs alone"
        )))))
    }
}

/// What a message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Ask {
    Append = 1,
    Vote = 2,
    PreVote = 3,
    Snapshot = 4,
    Transfer = 5,
}

/// Makes the ways to single nodes.
pub(super) struct Network<RT> {
    peers: Arc<dyn Peers>,
    runtime: PhantomData<fn() -> RT>,
}

impl<RT> Network<RT> {
    pub(super) fn new(peers: Arc<dyn Peers>) -> Self {
        Self { peers, runtime: PhantomData }
    }
}

/// The way to one node.
pub(super) struct Way<RT> {
    to: NodeId,
    peers: Arc<dyn Peers>,
    runtime: PhantomData<fn() -> RT>,
}

impl<RT: AsyncRuntime> RaftNetworkFactory<Types<RT>> for Network<RT> {
    type Network = Way<RT>;

    async fn new_client(&mut self, target: u64, _node: &openraft::impls::BasicNode) -> Way<RT> {
        Way { to: NodeId(target), peers: self.peers.clone(), runtime: PhantomData }
    }
}

impl<RT: AsyncRuntime> Way<RT> {
    async fn ask<Q, A>(&self, ask: Ask, request: &Q, option: &RPCOption) -> Result<A, Unreachable<Types<RT>>>
    where
        Q: Serialize + Sync,
        A: DeserializeOwned + Send,
    {
        let message = pack(ask, request).map_err(Unreachable::from_string)?;
        let call = self.peers.call(self.to, message);
        let answer = RT::timeout(option.soft_ttl(), call)
            .await
            .map_err(|_| Unreachable::from_string(format!("node {} did not answer in time", self.to)))?
            .map_err(|error| Unreachable::new(&error))?;
        unpack(&answer).map_err(Unreachable::from_string)
    }
}

impl<RT: AsyncRuntime> RaftNetworkV2<Types<RT>> for Way<RT> {
    type SnapshotData = Vec<u8>;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types<RT>>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types<RT>>, RPCError<Types<RT>>> {
        Ok(self.ask(Ask::Append, &request, &option).await?)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types<RT>>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types<RT>>, RPCError<Types<RT>>> {
        Ok(self.ask(Ask::Vote, &request, &option).await?)
    }

    /// Asked like a vote: the library's own default would grant it for a node that cannot be reached.
    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types<RT>>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types<RT>>, RPCError<Types<RT>>> {
        Ok(self.ask(Ask::PreVote, &request, &option).await?)
    }

    async fn full_snapshot(
        &mut self,
        vote: RawVote,
        snapshot: RawSnapshot,
        _cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types<RT>>, StreamingError<Types<RT>>> {
        Ok(self.ask(Ask::Snapshot, &(vote, snapshot.meta, snapshot.snapshot), &option).await?)
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types<RT>>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types<RT>>, RPCError<Types<RT>>> {
        Ok(self.ask(Ask::Transfer, &request, &option).await?)
    }
}

/// Answers a message of another node.
pub(super) async fn hear<RT: AsyncRuntime>(
    raft: &Raft<Types<RT>, Machine<RT>>,
    message: &[u8],
) -> Result<Vec<u8>, PeerError> {
    let (ask, body) = open(message)?;
    match ask {
        Ask::Append => answer(&raft.append_entries(read(body)?).await.map_err(say)?),
        Ask::Vote => answer(&raft.vote(read(body)?).await.map_err(say)?),
        Ask::PreVote => answer(&raft.pre_vote(read(body)?).await.map_err(say)?),
        Ask::Snapshot => {
            let (vote, meta, snapshot): (RawVote, RawSnapshotMeta, Vec<u8>) = read(body)?;
            let snapshot = RawSnapshot { meta, snapshot };
            answer(&raft.install_full_snapshot(vote, snapshot).await.map_err(say)?)
        }
        Ask::Transfer => answer(&raft.handle_transfer_leader(read(body)?).await.map_err(say)?),
    }
}

fn pack<T: Serialize>(ask: Ask, request: &T) -> Result<Vec<u8>, PeerError> {
    postcard::to_extend(request, vec![MESSAGE_VERSION, ask as u8]).map_err(say)
}

fn answer<T: Serialize>(response: &T) -> Result<Vec<u8>, PeerError> {
    postcard::to_extend(response, vec![MESSAGE_VERSION]).map_err(say)
}

fn unpack<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, PeerError> {
    match bytes.split_first() {
        Some((&MESSAGE_VERSION, body)) => read(body),
        Some((version, _)) => {
            Err(PeerError(format!("an answer has version {version}, this node speaks {MESSAGE_VERSION}")))
        }
        None => Err(PeerError("an answer is empty".to_owned())),
    }
}

fn open(message: &[u8]) -> Result<(Ask, &[u8]), PeerError> {
    let [version, ask, body @ ..] = message else {
        return Err(PeerError("a message between nodes is cut off".to_owned()));
    };
    if *version != MESSAGE_VERSION {
        return Err(PeerError(format!(
            "a message has version {version}, this node speaks {MESSAGE_VERSION}"
        )));
    }
    let ask = [Ask::Append, Ask::Vote, Ask::PreVote, Ask::Snapshot, Ask::Transfer]
        .into_iter()
        .find(|known| *known as u8 == *ask)
        .ok_or_else(|| {
            PeerError(format!("a message asks for {ask}, which does not exist in version {MESSAGE_VERSION}"))
        })?;
    Ok((ask, body))
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, PeerError> {
    postcard::from_bytes(body).map_err(say)
}

fn say(error: impl fmt::Display) -> PeerError {
    PeerError(error.to_string())
}
