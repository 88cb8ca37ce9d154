//! Who acts, in which order, and everything else is refused: the client library of Quorate.
//!
//! A [`Client`] knows where the service is. A [`Session`] speaks for this program there: it keeps a lease alive and
//! reconnects by itself. In it a program takes a [`Lock`], or joins a [`Group`] whose first member acts. Whoever acts
//! has a [`Token`], and a [`guard`] in front of the resource refuses every older one.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use quorate::{Client, SessionOptions};
//! # let service = quorate::testing::Service::start().await; // a service in this process
//! # let address = service.address();
//!
//! let client = Client::connect(address)?; // "127.0.0.1:7420", or several separated by commas
//! let session = client.session(SessionOptions::default()).await?;
//!
//! let guard = session.lock("reports/nightly")?.acquire().await?;
//! tokio::select! {
//!     () = write_report(&guard) => guard.release().await?,
//!     loss = guard.lost() => eprintln!("stopped in time: {loss}"),
//! }
//! # Ok(())
//! # }
//! # async fn write_report(guard: &quorate::LockGuard) {
//! #     assert!(guard.is_held());
//! # }
//! ```
//!
//! # What is promised
//! - **Nobody acts past its deadline.** It is counted on a clock that counts suspend, from the *send* time of the
//!   last confirmed keepalive, less a margin for clocks that run at different rates. The service waits longer than
//!   that before it gives a seat away. [`LockGuard::token`] and [`Group::token`] read the clock at each call.
//! - **A holder is warned before the deadline**, with the time that is left: [`LockGuard::lost`].
//! - **A wait never hangs.** It ends with the grant, or at once with a typed error when its session dies, or with
//!   [`Error::WaitLost`] when the service has been silent for a whole lease.
//! - **A call is done at most once**, however often the connection breaks, and exactly once if it is answered.
//! - **Unavailable is not lost.** While the service is away seats are kept to the deadline, and places in the queue
//!   survive.
//!
//! # What is not
//! A paused or suspended *virtual machine* stops every clock inside it, and no lease can help there: the write that
//! comes after the pause must be refused by the resource. That is what the token and the [`guard`] are for.
//!
//! | to | use |
//! |---|---|
//! | let one of many act, and take turns | [`Session::lock`] |
//! | read together and write alone | [`Session::rwlock`] |
//! | let k of many act, each on a seat of its own | [`Session::semaphore`] |
//! | have one leader, and know who it is and when there is none | [`Session::leadership`] |
//! | go on when all have come | [`Session::barrier`] |
//! | go on when so many are there, or all have gone | [`Session::latch`] |
//! | have one active and several standing by, in a known order | [`Session::join`] |
//! | make the resource refuse who is late | [`guard::FileGuard`] |
//! | move a seat, change the seats, end a group or a session | [`Client::operate`] |
//! | ask and administer, as tools do | [`Client::operator`] |
//! | test a program without a service | [`testing::Service`] |
//! | run a peer protocol on sockets, disk and clock, without a service | [`driver::Driver`] |
#![warn(missing_docs)]

pub mod advisory;
pub mod barrier;
mod claim;
pub mod client;
pub mod clock;
pub mod driver;
pub mod error;
pub mod group;
pub mod guard;
mod hold;
pub mod latch;
pub mod leadership;
pub mod lock;
pub mod operator;
pub mod rwlock;
pub mod semaphore;
pub mod service;
pub mod session;
pub mod testing;
pub mod wire;

pub use advisory::Advisory;
pub use barrier::{Barrier, Passage};
pub use client::Client;
pub use error::Error;
pub use group::{Group, JoinOptions};
pub use hold::{Loss, LossCause};
pub use latch::Latch;
pub use leadership::{Leader, Leadership};
pub use lock::{Lock, LockGuard};
pub use operator::Operator;
pub use quorate_core::frame::Outcome;
pub use quorate_core::id::{ClusterId, EntryId, Name, Ordinal, SeatNo, SessionId, Token, ViewId};
pub use quorate_core::state_machine::{
    Handover, Member, MemberKind, Numbering, OnDisconnect, Order, Place, PolicyWish, Preempt, Rejoin, Role,
    Seat,
};
pub use rwlock::RwLock;
pub use semaphore::Semaphore;
pub use session::{Session, SessionOptions};

/// The generated gRPC contract. Its source is `proto/quorate/v1/*.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
pub mod proto {
    tonic::include_proto!("quorate.v1");
    /// The descriptors of the contract, for reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}
