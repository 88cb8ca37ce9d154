//! The gRPC services: sessions, the operators' calls, reflection and health.

use crate::operator::{Operator, Read, STALE_HEADER};
use crate::sessions::Sessions;
use bytes::Bytes;
use quorate::proto;
use quorate::proto::operator_server::{Operator as Contract, OperatorServer};
use quorate::proto::sessions_server::SessionsServer;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tonic_health::server::HealthReporter;

/// The longest message that a client may send. A join with 4 KiB of metadata has less than 5 KiB.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// How much of a snapshot one message carries: well below what clients take if nobody says.
const PART_BYTES: usize = 1 << 20;

/// A snapshot in parts, all of one buffer.
type Parts = tokio_stream::Iter<std::vec::IntoIter<Result<proto::SnapshotPart, Status>>>;

/// What the health service tells.
pub struct Health(HealthReporter);

impl Health {
    /// Tells those who ask that no more calls are to be sent here.
    pub async fn stopping(&self) {
        self.0.set_not_serving::<SessionsServer<Sessions>>().await;
        self.0.set_not_serving::<OperatorServer<Operator>>().await;
        self.0.set_service_status("", tonic_health::ServingStatus::NotServing).await;
    }
}

/// All gRPC services, and what the health service tells of them.
pub async fn routes(sessions: Sessions, operator: Operator) -> (Routes, Health) {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<SessionsServer<Sessions>>().await;
    health.set_serving::<OperatorServer<Operator>>().await;
    let routes = Routes::new(SessionsServer::new(sessions).max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(OperatorServer::new(operator).max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(health_service)
        .add_service(reflection().build_v1().expect("the contract's own descriptors are whole"))
        .add_service(reflection().build_v1alpha().expect("the contract's own descriptors are whole"));
    (routes, Health(health))
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

/// A reply that says in a header if no quorum has confirmed it (RULES R26).
fn marked<T>(read: Read<T>) -> Result<Response<T>, Status> {
    let (reply, stale) = read?;
    let mut response = Response::new(reply);
    if let Some(stale) = stale.and_then(|since| since.parse().ok()) {
        response.metadata_mut().insert(STALE_HEADER, stale);
    }
    Ok(response)
}

#[tonic::async_trait]
impl Contract for Operator {
    async fn status(&self, _: Request<proto::StatusRequest>) -> Result<Response<proto::StatusReply>, Status> {
        Ok(Response::new(Self::status(self)))
    }

    async fn list_groups(
        &self,
        request: Request<proto::ListGroupsRequest>,
    ) -> Result<Response<proto::ListGroupsReply>, Status> {
        marked(Self::list_groups(self, request.into_inner()).await)
    }

    async fn create_group(
        &self,
        request: Request<proto::CreateGroupRequest>,
    ) -> Result<Response<proto::CreateGroupReply>, Status> {
        Self::create_group(self, request.into_inner()).await.map(Response::new)
    }

    async fn delete_group(
        &self,
        request: Request<proto::DeleteGroupRequest>,
    ) -> Result<Response<proto::DeleteGroupReply>, Status> {
        Self::delete_group(self, request.into_inner()).await.map(Response::new)
    }

    async fn transfer(
        &self,
        request: Request<proto::TransferRequest>,
    ) -> Result<Response<proto::TransferReply>, Status> {
        Self::transfer(self, request.into_inner()).await.map(Response::new)
    }

    async fn set_seats(
        &self,
        request: Request<proto::SetSeatsRequest>,
    ) -> Result<Response<proto::SetSeatsReply>, Status> {
        Self::set_seats(self, request.into_inner()).await.map(Response::new)
    }

    async fn raise_level(
        &self,
        request: Request<proto::RaiseLevelRequest>,
    ) -> Result<Response<proto::RaiseLevelReply>, Status> {
        Self::raise_level(self, request.into_inner()).await.map(Response::new)
    }

    async fn list_sessions(
        &self,
        request: Request<proto::ListSessionsRequest>,
    ) -> Result<Response<proto::ListSessionsReply>, Status> {
        marked(Self::list_sessions(self, request.into_inner()).await)
    }

    async fn close_session(
        &self,
        request: Request<proto::CloseSessionRequest>,
    ) -> Result<Response<proto::CloseSessionReply>, Status> {
        Self::close_session(self, request.into_inner()).await.map(Response::new)
    }

    async fn explain(
        &self,
        request: Request<proto::ExplainRequest>,
    ) -> Result<Response<proto::ExplainReply>, Status> {
        marked(Self::explain(self, request.into_inner()).await)
    }

    type SnapshotStream = Parts;

    async fn snapshot(&self, _: Request<proto::SnapshotRequest>) -> Result<Response<Parts>, Status> {
        let bytes = Bytes::from(Self::snapshot(self).await?);
        let parts: Vec<_> = (0..bytes.len())
            .step_by(PART_BYTES)
            .map(|from| bytes.slice(from..bytes.len().min(from + PART_BYTES)))
            .map(|data| Ok(proto::SnapshotPart { data }))
            .collect();
        Ok(Response::new(tokio_stream::iter(parts)))
    }
}
