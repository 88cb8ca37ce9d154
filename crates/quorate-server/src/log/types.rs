//! The words of the consensus library and ours for the same things. No other module outside `log`
//! knows the former.

use super::record::{Ballot, Entry, Members, Payload, Position, SnapshotHead, Term};
use openraft::impls::leader_id_std::LeaderId;
use openraft::impls::{BasicNode, BoxedErrorSource, InlineBatch, OneshotResponder};
use openraft::vote::RaftLeaderId;
use openraft::{
    AsyncRuntime, EntryPayload, LogId, Membership, OptionalSend, RaftTypeConfig, StoredMembership,
};
use quorate_core::id::{LogIndex, NodeId};
use quorate_core::state_machine::{Proposal, Reply};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// The type configuration, for any runtime. Nothing that is stored depends on the runtime.
pub(super) struct Types<RT>(PhantomData<fn() -> RT>);

pub(super) type Lead = <LeaderId<u64, u64> as RaftLeaderId>::Committed;
pub(super) type RawVote = openraft::impls::Vote<LeaderId<u64, u64>>;
pub(super) type RawEntry = openraft::impls::Entry<Lead, RawPayload>;
pub(super) type RawPayload = EntryPayload<Item, u64, BasicNode>;
pub(super) type RawLogId = LogId<Lead>;
pub(super) type RawMembership = StoredMembership<Lead, u64, BasicNode>;
pub(super) type RawSnapshotMeta = openraft::SnapshotMeta<Lead, u64, BasicNode>;

impl<RT: AsyncRuntime> RaftTypeConfig for Types<RT> {
    type D = Item;
    type R = Reply;
    type NodeId = u64;
    type Node = BasicNode;
    type Term = u64;
    type LeaderId = LeaderId<u64, u64>;
    type Vote = RawVote;
    type Payload = RawPayload;
    type Entry = RawEntry;
    type AsyncRuntime = RT;
    type Responder<T>
        = OneshotResponder<Self, T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = BoxedErrorSource;
}

// Derives would ask the same of the runtime, which is never a value here.
impl<RT> fmt::Debug for Types<RT> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Types")
    }
}
impl<RT> Clone for Types<RT> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<RT> Copy for Types<RT> {}
impl<RT> Default for Types<RT> {
    fn default() -> Self {
        Self(PhantomData)
    }
}
impl<RT> PartialEq for Types<RT> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl<RT> Eq for Types<RT> {}
impl<RT> PartialOrd for Types<RT> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<RT> Ord for Types<RT> {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

/// A proposal as it travels through the library: shared, since it is kept in the log's tail, applied
/// and told to the listeners, and copied for none of them.
#[derive(Clone, Debug)]
pub(super) struct Item(pub(super) Arc<Proposal>);

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Proposal::deserialize(deserializer).map(|proposal| Self(Arc::new(proposal)))
    }
}

impl From<&RawLogId> for Position {
    fn from(raw: &RawLogId) -> Self {
        Self { term: Term(**raw.committed_leader_id()), index: LogIndex(raw.index()) }
    }
}

impl From<Position> for RawLogId {
    fn from(position: Position) -> Self {
        Self::new(Lead::new(position.term.0), position.index.0)
    }
}

impl From<&RawVote> for Ballot {
    fn from(raw: &RawVote) -> Self {
        Self {
            term: Term(raw.leader_id.term),
            node: NodeId(raw.leader_id.voted_for),
            committed: raw.committed,
        }
    }
}

impl From<Ballot> for RawVote {
    fn from(ballot: Ballot) -> Self {
        let (term, node) = (ballot.term.0, ballot.node.0);
        if ballot.committed { Self::new_committed(term, node) } else { Self::new(term, node) }
    }
}

impl From<&Membership<u64, BasicNode>> for Members {
    fn from(raw: &Membership<u64, BasicNode>) -> Self {
        let voters =
            raw.get_joint_config().iter().map(|set| set.iter().copied().map(NodeId).collect()).collect();
        let nodes = raw.nodes().map(|(id, node)| (NodeId(*id), node.addr.clone())).collect();
        Self { voters, nodes }
    }
}

impl From<Members> for Membership<u64, BasicNode> {
    fn from(members: Members) -> Self {
        let nodes: BTreeMap<u64, BasicNode> =
            members.nodes.into_iter().map(|(id, address)| (id.0, BasicNode::new(address))).collect();
        let voters = members.voters.into_iter().map(|set| set.into_iter().map(|id| id.0).collect()).collect();
        Self::new(voters, nodes).expect("members are whole: reading a record checks it")
    }
}

impl From<RawEntry> for Entry {
    fn from(raw: RawEntry) -> Self {
        let payload = match raw.payload {
            EntryPayload::Blank => Payload::Blank,
            EntryPayload::Normal(Item(proposal)) => Payload::Proposal(proposal),
            EntryPayload::Membership(members) => Payload::Membership(Members::from(&members)),
        };
        Self { position: Position::from(&raw.log_id), payload }
    }
}

impl From<Entry> for RawEntry {
    fn from(entry: Entry) -> Self {
        let payload = match entry.payload {
            Payload::Blank => EntryPayload::Blank,
            Payload::Proposal(proposal) => EntryPayload::Normal(Item(proposal)),
            Payload::Membership(members) => EntryPayload::Membership(members.into()),
        };
        Self { log_id: entry.position.into(), payload }
    }
}

/// The head of a snapshot of `state`.
pub(super) fn snapshot_head(meta: &RawSnapshotMeta, state: &[u8]) -> SnapshotHead {
    SnapshotHead {
        last: meta.last_log_id.as_ref().map(Position::from),
        members_at: meta.last_membership.log_id().as_ref().map(Position::from),
        members: Members::from(meta.last_membership.membership()),
        state_bytes: state.len() as u64,
        state_crc: crc32fast::hash(state),
    }
}

impl From<SnapshotHead> for RawSnapshotMeta {
    fn from(head: SnapshotHead) -> Self {
        let membership = StoredMembership::new(head.members_at.map(RawLogId::from), head.members.into());
        Self { last_log_id: head.last.map(RawLogId::from), last_membership: membership }
    }
}
