//! Stub
pub mod guard;
pub mod service;
pub mod wire;
/// The generated gRPC contract. Its source is `proto/quorate/v1/*.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod proto {
    tonic::include_proto!("quorate.v1");
    /// The descriptors of the contract, for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}
