//! What an operator may ask of a service: to move a seat, to change how many there are, to end a group or a session.
//!
//! **Rule.** All of it asks and none of it takes: a seat moves when its holder says that it has stopped, or when its
//! lease ends (RULES R11). **Cost.** One logged call each; a repeated one is harmless (R21). What came of it is told to
//! the members and kept in the name's history.
//!
//! ```no_run
//! # async fn example() -> Result<(), quorate::Error> {
//! use std::time::Duration;
//! let client = quorate::Client::connect("127.0.0.1:7420")?;
//! let operator = client.operate();
//! operator.transfer("payments", "eu-2", Duration::from_secs(2), false).await?;
//! operator.set_seats("workers", 3).await?;
//! operator.end_group("old-jobs").await?;
//! # Ok(())
//! # }
//! ```

use crate::error::{Code, Error};
use crate::proto::operator_client::OperatorClient;
use crate::proto::{self, CloseSessionRequest, DeleteGroupRequest, SetSeatsRequest, TransferRequest};
use crate::wire;
use bytes::Bytes;
use quorate_core::id::SessionId;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;
use tonic::transport::Channel;

/// The header of a refusal's status: the contract's code by its name.
const REFUSAL_HEADER: &str = "quorate-refusal";

/// An operator's calls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Operator {
    calls: OperatorClient<Channel>,
    addresses: String,
    client: Bytes,
}

impl Operator {
    pub(crate) fn new(calls: OperatorClient<Channel>, addresses: String) -> Self {
        Self { calls, addresses, client: wire::to_wide(rand::random()) }
    }

    /// Asks the holder of the lowest seat to stop in favour of a waiting member, by the member's name. The answer says
    /// that it was asked. Without the holder's word within `drain` (milliseconds count; at most a third of its lease,
    /// which is also what zero means) the transfer fails, and the holder holds on; with `force` its session is closed then and its lease waited out.
    ///
    /// # Errors
    /// [`Error::Refused`]: nobody of that name waits, nobody acts, or the holder was asked already.
    pub async fn transfer(
        &self,
        group: impl Into<String>,
        to: impl Into<String>,
        drain: Duration,
        force: bool,
    ) -> Result<(), Error> {
        let drain_ms = u64::try_from(drain.as_millis()).unwrap_or(u64::MAX);
        let (client, group, to) = (self.client.clone(), group.into(), to.into());
        let request = TransferRequest { client, group, to, drain_ms, force };
        self.calls.clone().transfer(request).await.map(drop).map_err(|status| self.error(&status))
    }

    /// States how many members act at once, from 1. More seats are filled at once; holders of those that go are asked
    /// to stop.
    ///
    /// # Errors
    /// [`Error::Refused`]: there is no such name, or a limit is reached.
    pub async fn set_seats(&self, group: impl Into<String>, seats: u32) -> Result<(), Error> {
        let request = SetSeatsRequest { client: self.client.clone(), group: group.into(), seats };
        self.calls.clone().set_seats(request).await.map(drop).map_err(|status| self.error(&status))
    }

    /// Deletes a name that is empty.
    ///
    /// # Errors
    /// [`Error::Refused`]: there is no such name, or somebody is in it.
    pub async fn delete_group(&self, group: impl Into<String>) -> Result<(), Error> {
        self.delete(group.into(), false).await
    }

    /// Deletes a name: those that wait in it are told at once, those that act are asked to stop, and it is gone when
    /// they have, or when their leases end.
    ///
    /// # Errors
    /// [`Error::Refused`]: there is no such name.
    pub async fn end_group(&self, group: impl Into<String>) -> Result<(), Error> {
        self.delete(group.into(), true).await
    }

    async fn delete(&self, group: String, end: bool) -> Result<(), Error> {
        let request = DeleteGroupRequest { client: self.client.clone(), group, end, ..Default::default() };
        self.calls.clone().delete_group(request).await.map(drop).map_err(|status| self.error(&status))
    }

    /// Asks a session to stop all that it does. Its lease is renewed no more.
    ///
    /// # Errors
    /// [`Error::Refused`]: there is no such session.
    pub async fn close_session(&self, session: SessionId, why: impl Into<String>) -> Result<(), Error> {
        let request =
            CloseSessionRequest { client: self.client.clone(), session: session.0, why: why.into() };
        self.calls.clone().close_session(request).await.map(drop).map_err(|status| self.error(&status))
    }

    fn error(&self, status: &Status) -> Error {
        let message = status.message().to_string();
        let refusal = status.metadata().get(REFUSAL_HEADER).and_then(|code| code.to_str().ok());
        if let Some(code) = refusal.and_then(proto::refusal::Code::from_str_name) {
            return Error::Refused { code, message };
        }
        match status.code() {
            tonic::Code::InvalidArgument => Error::Refused { code: Code::BadName, message },
            tonic::Code::Unavailable => Error::Unreachable {
                addresses: self.addresses.clone(),
                after: Duration::ZERO,
                why: message,
                source: Some(Arc::new(status.clone())),
            },
            _ => Error::Protocol(message),
        }
    }
}
