//! What goes into the log, and what the state machine answers. Client, log and state machine speak
//! these same words.
//!
//! A command is stored in the postcard form of this enum: new kinds go at the end, and a kind that is
//! in use never changes its fields (golden bytes hold that, `codec.rs`).

use super::LEVEL_HIGHEST;
use super::policy::{Face, PolicyClash, PolicyWish};
use crate::id::{
    ClientId, ClusterId, EntryId, Generation, LogIndex, Name, NodeId, Ordinal, Reign, RequestId, SeatNo,
    Secret, SessionId, TaskId, Token, Version, ViewId,
};
use crate::time::{Span, Wall};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use serde::{Deserialize, Serialize};

/// A command with the wall time at which it was proposed. The time is a label (RULES R1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// When the proposer wrote it, by its wall clock.
    pub at: Wall,
    /// What is to be done.
    pub command: Command,
}

impl fmt::Display for Proposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.command)
    }
}

/// Everything that may change replicated state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Founds the cluster. The first command of a log; a second one is refused.
    Found {
        /// Drawn at random by the founder.
        cluster: ClusterId,
        /// What apply holds everybody to.
        limits: Limits,
    },
    /// Starts lease keeping (RULES R4).
    Begin {
        /// Who keeps the leases from now on.
        node: NodeId,
        /// Drawn at random, so that the proposer knows its own entry.
        nonce: u128,
    },
    /// Opens a session. Retried with the same secret it finds the session that it made.
    Open {
        /// Proves later connections, and names this opening.
        secret: Secret,
        /// How long a lease lasts.
        ttl: Span,
        /// What a closed connection means.
        on_disconnect: OnDisconnect,
        /// Whom to show to people: a host and a process.
        label: String,
    },
    /// Takes a session over on a new connection.
    Attach {
        /// The session.
        session: SessionId,
        /// Its secret.
        secret: Secret,
        /// The client's own deadline passed since: its seats need new tokens (RULES R25).
        lapsed: bool,
    },
    /// The first renewals of these sessions in this reign (RULES R5). Batched.
    Mark {
        /// The reign that confirms them.
        reign: Reign,
        /// The sessions.
        sessions: Vec<SessionId>,
    },
    /// How much of their leases sessions without a mark have left (RULES R5). Batched.
    Checkpoint {
        /// The reign that counted.
        reign: Reign,
        /// The sessions and their remainders.
        remaining: Vec<(SessionId, Span)>,
    },
    /// A timer of the lease keeper ran out (RULES R2).
    TimerFired {
        /// Which timer.
        timer: Timer,
        /// The reign that kept it.
        reign: Reign,
        /// How long nothing was heard, as evidence.
        silent: Span,
    },
    /// A connection was closed by its client (RULES R18).
    Disconnected {
        /// The session.
        session: SessionId,
        /// The connection.
        generation: Generation,
    },
    /// A call of a session, applied at most once (RULES R21).
    Call {
        /// The session.
        session: SessionId,
        /// The connection that the call came by.
        generation: Generation,
        /// The client's number for the call.
        request: RequestId,
        /// Every answer below this number has reached the client.
        acknowledged: RequestId,
        /// What to do.
        op: Op,
    },
    /// A call of a tool that has no session. Its preconditions make a retry harmless.
    Tool {
        /// Who calls.
        client: ClientId,
        /// What to do.
        op: ToolOp,
    },
}

/// A timer that lives in the lease keeper's memory and reaches the state only as an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Timer {
    /// The lease of a session.
    Lease {
        /// The session.
        session: SessionId,
        /// The lease generation that ran out; another one is alive.
        generation: Generation,
    },
    /// Something that a queue does later: a delay, a grace, a drain, a hold.
    Task {
        /// Which; one that is not known any more is void.
        task: TaskId,
    },
}

/// What a closed connection means for its session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OnDisconnect {
    /// Nothing: seats are kept until the lease ends.
    #[default]
    Hold,
    /// It is a leave: the next takes over at once, and an overlap is possible (RULES R18).
    Release,
}

/// How a member takes part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MemberKind {
    /// In the queue, hears of everybody.
    #[default]
    Full,
    /// In the queue, hears only of its own ordinal.
    OrdinalOnly,
    /// Not in the queue, hears of everybody, invisible to the others.
    Observer,
}

/// Whether others may hold at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// One to a seat.
    #[default]
    Exclusive,
    /// Together with other shared ones.
    Shared,
}

/// A request for a place in a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Which group, lock, leadership or semaphore.
    pub group: Name,
    /// Which face of it.
    pub face: Face,
    /// How to take part.
    pub kind: MemberKind,
    /// Whether others may hold at the same time.
    pub mode: Mode,
    /// Wait in the queue if no seat is free; else the request is refused and leaves nothing behind.
    pub wait: bool,
    /// The member's name; need not be unique.
    pub name: String,
    /// What the others are told of it.
    pub metadata: BTreeMap<String, String>,
    /// Its weight in an ordered-by-weight queue.
    pub weight: u32,
    /// What it states about the policy.
    pub policy: PolicyWish,
}

/// What a session can ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// A place in a queue.
    Join(Join),
    /// Leaves a queue, and with it the seat: the holder has stopped (RULES R11).
    Release {
        /// The place.
        entry: EntryId,
    },
    /// Leaves a queue if no seat was granted yet.
    Cancel {
        /// The place.
        entry: EntryId,
    },
    /// Changes what the others are told.
    Describe {
        /// The place.
        entry: EntryId,
        /// The new metadata, whole.
        metadata: BTreeMap<String, String>,
    },
    /// Leaves everything and ends the session.
    End,
    /// A place in a queue, on terms.
    JoinOn(Join, Terms),
    /// The holder was asked to stop, and has (RULES R11): its seat moves, its place stays.
    Stopped {
        /// The place.
        entry: EntryId,
    },
    /// The work of the holder goes on (RULES R20).
    Progress {
        /// The place.
        entry: EntryId,
    },
    /// Whatever this session waits for, that one waits for too (RULES R19): a program that holds something
    /// runs another one with a session of its own, and goes on when that has ended. One session acts for one
    /// other at most; the last word counts. A session that is not open, or itself, changes nothing.
    ActsFor {
        /// The outer one.
        session: SessionId,
    },
}

/// What a member asks for beyond its place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Terms {
    /// The holder is asked to stop after so long.
    pub max_hold: Option<Span>,
    /// The holder is called stalled when its work gave no sign for so long.
    pub progress: Option<Span>,
    /// The caller does nothing else until it is granted: this wait counts in a deadlock (RULES R19).
    pub blocking: bool,
    /// Give this wait up when it is part of a deadlock.
    pub break_deadlock: bool,
}

/// What a tool can ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolOp {
    /// Makes a group that stays when nobody is in it.
    CreateGroup {
        /// Its name.
        group: Name,
        /// Its face.
        face: Face,
        /// Its policy.
        policy: PolicyWish,
    },
    /// Removes an empty group. Refused while anybody is in it (RULES R11).
    DeleteGroup {
        /// Its name.
        group: Name,
        /// Only the group that was created at this index, if given.
        created: Option<LogIndex>,
    },
    /// Asks a session to stop and confirms its lease no more (RULES R11).
    CloseSession {
        /// The session.
        session: SessionId,
        /// Who asks and why, for the record.
        why: String,
    },
    /// Moves a seat to a member that waits: the holder is asked to stop, and the seat moves when it says
    /// that it has (RULES R11).
    Transfer {
        /// The name.
        group: Name,
        /// The name of the member that is to act.
        to: String,
        /// How long the holder may take; without its word the transfer fails then.
        drain: Span,
        /// At the end of the drain stop the holder's renewals and wait its lease out.
        force: bool,
    },
    /// States how many members act at once. Holders of seats that go are asked to stop.
    SetSeats {
        /// The name.
        group: Name,
        /// How many seats, from 1.
        seats: u32,
    },
    /// Removes a group with all that wait in it; those that act are asked to stop, and it is gone when
    /// they have, or when their leases end (RULES R11).
    EndGroup {
        /// The name.
        group: Name,
        /// Only the group that was created at this index, if given.
        created: Option<LogIndex>,
    },
    /// Raises the feature level, once every node can run the new one (RULES R27). It is never lowered.
    RaiseLevel {
        /// The level that the caller saw. A retry that comes after it was raised to `to` changes nothing.
        from: u32,
        /// The new level.
        to: u32,
    },
}

/// What apply holds everybody to. Part of the log, never of one node's file (RULES R27).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The newest set of commands that all nodes understand.
    pub level: u32,
    /// How many sessions may be open.
    pub sessions: u32,
    /// How many names may be in use.
    pub groups: u32,
    /// How many may queue in one group.
    pub queue: u32,
    /// How many seats one group may have.
    pub seats: u32,
    /// The bytes of one member's metadata, keys and values together.
    pub metadata_bytes: u32,
    /// The longest lease.
    pub ttl_max: Span,
    /// How many answered calls a session may leave unacknowledged.
    pub unacknowledged: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            level: LEVEL_HIGHEST,
            sessions: 100_000,
            groups: 100_000,
            queue: 100_000,
            seats: 1_024,
            metadata_bytes: 4_096,
            ttl_max: Span::from_secs(600),
            unacknowledged: 1_024,
        }
    }
}

/// A seat that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seat {
    /// Which seat.
    pub no: SeatNo,
    /// The authority to act on it.
    pub token: Token,
    /// Since when, by the proposer's wall clock.
    pub since: Wall,
}

/// What a member may do (RULES R14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Has a token.
    Active,
    /// Waits its turn.
    Standby,
    /// Is next; waits for a delay, a seal or the end of a lease.
    Pending,
    /// Was asked to stop.
    Draining,
    /// Keeps its place while it is away.
    Reserved,
    /// Has no connection to the service.
    Disconnected,
    /// Looks on.
    Observer,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Standby => "standby",
            Self::Pending => "pending",
            Self::Draining => "draining",
            Self::Reserved => "reserved",
            Self::Disconnected => "disconnected",
            Self::Observer => "observer",
        })
    }
}

/// Where a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Place {
    /// Its position; none for an observer, and none for a waiter on a lock, whose position is
    /// computed on demand (RULES R15).
    pub ordinal: Option<Ordinal>,
    /// What it may do.
    pub role: Role,
    /// Its seat, if it has one.
    pub seat: Option<Seat>,
}

/// One member as the others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its place in the queue.
    pub entry: EntryId,
    /// Its session.
    pub session: SessionId,
    /// Its name.
    pub name: String,
    /// How it takes part.
    pub kind: MemberKind,
    /// Where it stands.
    pub place: Place,
    /// What it tells of itself; empty for an ordinal-only member.
    pub metadata: BTreeMap<String, String>,
}

/// All that a member is told of its group at one moment: the advisory form `total`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Total {
    /// The group.
    pub group: Name,
    /// Its face.
    pub face: Face,
    /// What had happened to it.
    pub version: Version,
    /// Its view.
    pub view: ViewId,
    /// The token of the holder of the lowest held seat.
    pub holder_token: Option<Token>,
    /// The member that this total is for.
    pub entry: EntryId,
    /// Where that member stands.
    pub place: Place,
    /// Everybody that it may see, in queue order; empty for ordinal-only members and for lock-like faces.
    pub members: Vec<Member>,
}

/// Why a group changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// A member joined.
    Join,
    /// A member left, or a holder released, by its own call.
    Leave,
    /// A session's lease ran out.
    Expired,
    /// A connection closed, and the session had asked that this be a leave.
    Disconnect,
    /// An operator closed the session.
    Closed,
    /// A member changed its metadata.
    Described,
    /// A holder whose own deadline had passed came back in time and got a new token.
    Renewed,
    /// A holder was asked to stop: a transfer, a heavier member, fewer seats, a held too long, a deleted
    /// group; the evidence says which.
    Draining,
    /// A holder that was asked to stop has, and the seat went on.
    Transferred,
    /// A holder that was asked to stop did not say that it had: it holds on.
    NotStopped,
    /// The pause between two holders is over.
    Rested,
    /// A member that was away came back to its place.
    Returned,
    /// The place of a member that was away is kept no longer.
    GraceOver,
    /// The number of seats was changed.
    Seats,
    /// The group was deleted.
    Deleted,
    /// A wait was given up, since it was part of a deadlock.
    Deadlock,
    /// The holder's work gave no sign for longer than it said.
    Stalled,
    /// The holder's work goes on.
    Progress,
    /// A barrier has all its parties.
    Tripped,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Join => "join",
            Self::Leave => "leave",
            Self::Expired => "expired",
            Self::Disconnect => "disconnect",
            Self::Closed => "closed",
            Self::Described => "described",
            Self::Renewed => "renewed",
            Self::Draining => "draining",
            Self::Transferred => "transferred",
            Self::NotStopped => "not_stopped",
            Self::Rested => "rested",
            Self::Returned => "returned",
            Self::GraceOver => "grace_over",
            Self::Seats => "seats",
            Self::Deleted => "deleted",
            Self::Deadlock => "deadlock",
            Self::Stalled => "stalled",
            Self::Progress => "progress",
            Self::Tripped => "tripped",
        })
    }
}

/// One member's step in a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Its place in the queue.
    pub entry: EntryId,
    /// Its session.
    pub session: SessionId,
    /// Its name.
    pub name: String,
    /// How it takes part.
    pub kind: MemberKind,
    /// Where it stood; none if it is new.
    pub before: Option<Place>,
    /// Where it stands; none if it is gone.
    pub after: Option<Place>,
    /// Its metadata, where it is new or changed.
    pub metadata: Option<BTreeMap<String, String>>,
}

/// A change of a group: the advisory form `change`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The group.
    pub group: Name,
    /// Its face.
    pub face: Face,
    /// The number of this change; the one before it is one less.
    pub version: Version,
    /// The view after it.
    pub view: ViewId,
    /// When, by the proposer's wall clock.
    pub at: Wall,
    /// Why.
    pub reason: Reason,
    /// Who reported what, in words.
    pub evidence: String,
    /// The token of the holder of the lowest held seat, after the change.
    pub holder_token: Option<Token>,
    /// Everybody whose place changed, those that left first, then in queue order.
    pub changed: Vec<Changed>,
}

/// What sessions are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A group changed.
    Change {
        /// Who is told everything.
        to: Vec<SessionId>,
        /// Who is told only of their own entries.
        own: Vec<SessionId>,
        /// What.
        change: Change,
    },
    /// An operator asks a session to stop; its lease is confirmed no more.
    Closing {
        /// The session.
        session: SessionId,
        /// Who asks and why.
        why: String,
    },
    /// A lease was renewed by an entry. For the lease keeper; clients are not told.
    Lease {
        /// The session.
        session: SessionId,
        /// The lease's new generation.
        generation: Generation,
        /// Its length.
        ttl: Span,
    },
    /// A queue will do something later. For the lease keeper, which keeps the time; clients are not told.
    Arm {
        /// What.
        task: TaskId,
        /// After how long.
        after: Span,
    },
    /// It will not.
    Disarm {
        /// What.
        task: TaskId,
    },
    /// A session ended.
    Ended {
        /// The session.
        session: SessionId,
        /// Why.
        reason: Reason,
        /// In words.
        evidence: String,
    },
}

/// What apply gives back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The answer to the proposer.
    pub reply: Reply,
    /// What others are told, in order.
    pub events: Vec<Event>,
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done, and there is nothing to tell.
    Done,
    /// Lease keeping has begun.
    Began {
        /// The new reign.
        reign: Reign,
    },
    /// A session is open, or was found, on this connection.
    Opened(Opened),
    /// A place in the queue.
    Joined(Total),
    /// The place, and the seat with it, was given up.
    Released {
        /// The token that is no longer held, if there was one.
        token: Option<Token>,
    },
    /// The request was taken back before any grant.
    Cancelled,
    /// The cancel came too late: the seat is held and must be released.
    Granted {
        /// The seat.
        seat: Seat,
    },
    /// The group exists.
    Created {
        /// At which index it was made.
        created: LogIndex,
    },
    /// The session was asked to stop.
    Closing,
    /// It was not done, and why.
    Refused(Refusal),
}

/// A session as its client sees it after opening or attaching.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// The session.
    pub session: SessionId,
    /// This connection.
    pub generation: Generation,
    /// The effective length of a lease.
    pub ttl: Span,
    /// What a closed connection means.
    pub on_disconnect: OnDisconnect,
    /// The cluster.
    pub cluster: ClusterId,
    /// An operator has asked the session to stop, and why.
    pub closing: Option<String>,
    /// All that the session has, as it is now.
    pub totals: Vec<Total>,
}

/// Why a command was not done. Its text is the sentence that users read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The cluster has been founded before, or not yet.
    Founding,
    /// No such session: it ended, or never was.
    NoSession {
        /// The session.
        session: SessionId,
    },
    /// The secret is another one.
    WrongSecret {
        /// The session.
        session: SessionId,
    },
    /// A newer connection has taken the session over.
    StaleConnection {
        /// The session.
        session: SessionId,
        /// The connection that spoke.
        generation: Generation,
        /// The newest.
        current: Generation,
    },
    /// The session is being closed by an operator.
    SessionClosing {
        /// The session.
        session: SessionId,
    },
    /// An answer to this number was acknowledged before: whether it was done is not known any more.
    Forgotten {
        /// The number.
        request: RequestId,
    },
    /// A limit was reached.
    Limit {
        /// What is limited.
        what: String,
        /// The limit.
        max: u64,
        /// What was asked.
        asked: u64,
    },
    /// The policy is another one (RULES R17).
    Policy {
        /// The group.
        group: Name,
        /// The two statements.
        clash: PolicyClash,
    },
    /// The name has another face (RULES R17a).
    OtherFace {
        /// The name.
        group: Name,
        /// What it is.
        is: Face,
        /// What it was asked as.
        asked: Face,
    },
    /// A seat is not free, and the caller would not wait.
    Busy {
        /// The name.
        group: Name,
        /// The holder's name.
        holder: String,
        /// The holder's session.
        session: SessionId,
        /// The holder's token.
        token: Token,
    },
    /// The session has no such place.
    NoEntry {
        /// The place.
        entry: EntryId,
    },
    /// The group is not there.
    NoGroup {
        /// The name.
        group: Name,
    },
    /// The group is not empty.
    NotEmpty {
        /// The name.
        group: Name,
        /// How many are in it.
        members: u64,
    },
    /// This cluster does not do that yet.
    Unsupported {
        /// What.
        what: String,
        /// The feature level of the cluster.
        level: u32,
        /// The level from which a cluster does it, if there is one.
        #[serde(default)]
        needs: Option<u32>,
    },
    /// The timer was not the living one, or its reign is over.
    NotDue,
    /// A lease that short could not be kept (RULES R7).
    LeaseTooShort {
        /// The shortest.
        floor: Span,
        /// What was asked.
        asked: Span,
    },
    /// A drain or a grace that a lease could not cover (RULES R7).
    TooLong {
        /// What.
        what: String,
        /// The longest.
        max: Span,
        /// What was asked.
        asked: Span,
    },
    /// The group is being deleted.
    Ending {
        /// The name.
        group: Name,
    },
    /// There is no member of that name that waits for a seat, or nobody to take one from.
    NoTransfer {
        /// The name of the group.
        group: Name,
        /// Why not, in words.
        why: String,
    },
    /// The wait would never end (RULES R19).
    Deadlock {
        /// Who waits for whom, in words.
        cycle: String,
    },
    /// The feature level stays: the cluster is there already or beyond, or not where the caller saw it.
    NotRaised {
        /// The feature level of the cluster.
        level: u32,
        /// The one that the caller saw.
        from: u32,
        /// The one that was asked for.
        to: u32,
    },
    /// A node cannot run that feature level. Said before anything is logged: apply decides alike everywhere.
    LevelUnknown {
        /// The level that was asked for.
        to: u32,
        /// The highest that the node can run.
        highest: u32,
    },
}
