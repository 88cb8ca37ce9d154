//! A latch: waits until so many members of a group are there, or until no more than so many are left.
//!
//! **Problem.** Somebody is to begin when its workers are ready, or to end when the last has gone, and is none of them.
//! **Rule.** The members of a group are counted; whoever waits looks on. **Not a barrier.** At a
//! [barrier](crate::barrier) those that come wait for each other, and going through is one step for all. At a latch
//! those that come do not wait, those that wait are not counted, and the count is of who is there *now*: a worker that
//! dies is not there any more once its lease has ended, and counts as gone, not as done. Members that joined otherwise
//! (`Session::join`, `quorate join`) count too. **Cost.** A place that looks on while somebody waits.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let service = quorate::testing::Service::start().await;
//! let client = quorate::Client::connect(service.address())?;
//! let session = client.session(quorate::SessionOptions::default()).await?;
//! let workers = session.latch("workers")?;
//! let one = workers.arrive("one").await?;
//! let two = workers.arrive("two").await?;
//! assert_eq!(workers.wait_for(2).await?, 2);
//! one.leave().await?;
//! drop(two); // leaves in the background
//! workers.wait_down_to(0).await?;
//! # Ok(())
//! # }
//! ```

use crate::advisory::Event;
use crate::error::Error;
use crate::group::{Group, JoinOptions};
use crate::session::Session;
use quorate_core::id::Name;
use quorate_core::state_machine::{MemberKind, Role};

/// A latch by the name of its group.
#[derive(Clone, Debug)]
pub struct Latch {
    session: Session,
    name: Name,
}

impl Latch {
    pub(crate) fn new(session: Session, name: Name) -> Self {
        Self { session, name }
    }

    /// The group's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Is there from now on, until the membership is left or dropped, or its session ends.
    ///
    /// # Errors
    /// As [`Session::join`].
    pub async fn arrive(&self, name: impl Into<String>) -> Result<Group, Error> {
        self.session.join(self.name.as_str(), JoinOptions::default().name(name)).await
    }

    /// Waits until at least so many members are there at once. How many there are.
    ///
    /// # Errors
    /// As [`Session::join`], and why the session or the group has ended meanwhile. While the service is away it waits
    /// on.
    pub async fn wait_for(&self, members: usize) -> Result<usize, Error> {
        self.until(|there| there >= members).await
    }

    /// Waits until at most so many members are there. How many there are.
    ///
    /// # Errors
    /// As [`Latch::wait_for`].
    pub async fn wait_down_to(&self, members: usize) -> Result<usize, Error> {
        self.until(|there| there <= members).await
    }

    /// How many members are there.
    ///
    /// # Errors
    /// As [`Latch::wait_for`].
    pub async fn count(&self) -> Result<usize, Error> {
        self.until(|_| true).await
    }

    async fn until(&self, enough: impl Fn(usize) -> bool) -> Result<usize, Error> {
        let looks_on = JoinOptions::default().kind(MemberKind::Observer);
        let mut group = self.session.join(self.name.as_str(), looks_on).await?;
        while let Some(told) = group.next().await {
            // What is known while nothing is heard is not counted: it may have changed.
            if matches!(told.event, Event::Unavailable | Event::Disconnected | Event::Closed | Event::Left) {
                continue;
            }
            let here =
                group.members().into_iter().filter(|member| member.place.role != Role::Reserved).count();
            if enough(here) {
                return Ok(here);
            }
        }
        Err(group.why_over().unwrap_or(Error::Ended))
    }
}
