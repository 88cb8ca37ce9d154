//! Between the core's words and the gRPC contract's messages. Only shapes change here; nothing is decided.
//!
//! What a peer sends wrong becomes a [`Malformed`] with the field's name, never a panic.

use crate::proto;
use bytes::Bytes;
use quorate_core::frame::{Bye, ClientFrame, Outcome, ServerFrame};
use quorate_core::id::{
    ClusterId, EntryId, LogIndex, Name, Ordinal, RequestId, SeatNo, Secret, SessionId, Token, Version, ViewId,
};
use quorate_core::state_machine::{
    Change, Changed, Face, Handover, Holder, Join, Member, MemberKind, Mode, Numbering, OnDisconnect, Op,
    Opened, Order, Past, Place, PolicyWish, Preempt, Reason, Refusal, Rejoin, Reply, Role, Seat, Terms,
    Total,
};
use quorate_core::time::{Span, Wall};

/// A message that breaks the contract, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct Malformed(pub String);

fn missing(field: &str) -> Malformed {
    Malformed(format!("{field} is missing"))
}

macro_rules! same_enum {
    ($to:ident, $from:ident, $core:ident, $wire:ident, $($variant:ident = $wired:ident),* $(,)?) => {
        #[doc = concat!("The contract's form of a ", stringify!($core), ".")]
        pub fn $to(value: $core) -> proto::$wire {
            match value { $($core::$variant => proto::$wire::$wired),* }
        }
        #[doc = concat!("The core's form of a ", stringify!($core), ".")]
        ///
        /// # Errors
        /// [`Malformed`] if the number is none of the contract's.
        pub fn $from(value: i32) -> Result<$core, Malformed> {
            match proto::$wire::try_from(value) {
                $(Ok(proto::$wire::$wired) => Ok($core::$variant),)*
                Err(_) => Err(Malformed(format!(concat!(stringify!($core), " {} is unknown"), value))),
            }
        }
    };
}

same_enum!(
    to_face,
    from_face,
    Face,
    Face,
    Group = Group,
    Lock = Lock,
    Leadership = Leadership,
    Semaphore = Semaphore,
    Barrier = Barrier
);
same_enum!(
    to_kind,
    from_kind,
    MemberKind,
    MemberKind,
    Full = Full,
    OrdinalOnly = OrdinalOnly,
    Observer = Observer
);
same_enum!(to_mode, from_mode, Mode, Mode, Exclusive = Exclusive, Shared = Shared);
same_enum!(to_on_disconnect, from_on_disconnect, OnDisconnect, OnDisconnect, Hold = Hold, Release = Release);
same_enum!(
    to_numbering,
    from_numbering,
    Numbering,
    Numbering,
    Dense = Dense,
    Stable = Stable,
    MinimalMove = MinimalMove
);
same_enum!(to_order, from_order, Order, Order, Join = JoinOrder, Weight = Weight);
same_enum!(
    to_preempt,
    from_preempt,
    Preempt,
    Preempt,
    Never = Never,
    OnWeight = OnWeight,
    OnCommand = OnCommand
);
same_enum!(
    to_role,
    from_role,
    Role,
    Role,
    Active = Active,
    Standby = Standby,
    Pending = Pending,
    Draining = Draining,
    Reserved = Reserved,
    Disconnected = Disconnected,
    Observer = Observer
);
same_enum!(
    to_reason,
    from_reason,
    Reason,
    Reason,
    Join = Join,
    Leave = Leave,
    Expired = Expired,
    Disconnect = Disconnect,
    Closed = Closed,
    Described = Described,
    Renewed = Renewed,
    Draining = Draining,
    Transferred = Transferred,
    NotStopped = NotStopped,
    Rested = Rested,
    Returned = Returned,
    GraceOver = GraceOver,
    Seats = Seats,
    Deleted = Deleted,
    Deadlock = Deadlock,
    Stalled = Stalled,
    Progress = Progress,
    Tripped = Tripped
);
same_enum!(to_outcome, from_outcome, Outcome, Outcome, NotDone = NotDone, Unknown = Unknown);

/// Sixteen bytes of a secret, a cluster or a tool's number.
pub fn to_wide(value: u128) -> Bytes {
    Bytes::copy_from_slice(&value.to_be_bytes())
}

/// A wide number from its sixteen bytes.
///
/// # Errors
/// [`Malformed`] names the field if it has another length.
pub fn from_wide(field: &str, bytes: &[u8]) -> Result<u128, Malformed> {
    let exact: [u8; 16] = bytes
        .try_into()
        .map_err(|_| Malformed(format!("{field} has {} bytes instead of 16", bytes.len())))?;
    Ok(u128::from_be_bytes(exact))
}

/// Takes a text as a name.
///
/// # Errors
/// [`Malformed`] says why it is none.
pub fn from_name(text: &str) -> Result<Name, Malformed> {
    Name::new(text).map_err(|e| Malformed(e.to_string()))
}

/// What a client sent, in the core's words.
///
/// # Errors
/// [`Malformed`] names the field that breaks the contract.
pub fn from_client_frame(frame: proto::ClientFrame) -> Result<ClientFrame, Malformed> {
    use proto::client_frame::Frame;
    Ok(match frame.frame.ok_or_else(|| missing("frame"))? {
        Frame::Open(open) => ClientFrame::Open {
            secret: Secret(from_wide("secret", &open.secret)?),
            ttl: Span::from_millis(open.ttl_ms),
            on_disconnect: from_on_disconnect(open.on_disconnect)?,
            label: open.label,
        },
        Frame::Attach(attach) => ClientFrame::Attach {
            session: SessionId(attach.session),
            secret: Secret(from_wide("secret", &attach.secret)?),
            lapsed: attach.lapsed,
        },
        Frame::KeepAlive(beat) => ClientFrame::KeepAlive { seq: beat.seq },
        Frame::Call(call) => ClientFrame::Call {
            request: RequestId(call.request),
            acknowledged: RequestId(call.acknowledged),
            op: from_op(call.op.ok_or_else(|| missing("op"))?)?,
        },
        Frame::Resync(resync) => ClientFrame::Resync { entry: EntryId(resync.entry) },
    })
}

fn from_op(op: proto::call::Op) -> Result<Op, Malformed> {
    use proto::call::Op as Wire;
    Ok(match op {
        Wire::Join(join) => from_join(join)?,
        Wire::Stopped(stopped) => Op::Stopped { entry: EntryId(stopped.entry) },
        Wire::Progress(progress) => Op::Progress { entry: EntryId(progress.entry) },
        Wire::Release(release) => Op::Release { entry: EntryId(release.entry) },
        Wire::Cancel(cancel) => Op::Cancel { entry: EntryId(cancel.entry) },
        Wire::Describe(describe) => {
            Op::Describe { entry: EntryId(describe.entry), metadata: describe.metadata }
        }
        Wire::End(proto::End {}) => Op::End,
        Wire::ActsFor(outer) => Op::ActsFor { session: SessionId(outer.session) },
    })
}

fn from_join(join: proto::Join) -> Result<Op, Malformed> {
    let terms = join.terms.as_ref().map(|terms| Terms {
        max_hold: terms.max_hold_ms.map(Span::from_millis),
        progress: terms.progress_ms.map(Span::from_millis),
        blocking: join.wait,
        break_deadlock: terms.break_deadlock,
    });
    let join = Join {
        group: from_name(&join.group)?,
        face: from_face(join.face)?,
        kind: from_kind(join.kind)?,
        mode: from_mode(join.mode)?,
        wait: join.wait,
        name: join.name,
        metadata: join.metadata,
        weight: join.weight,
        policy: join.policy.map(from_policy).transpose()?.unwrap_or_default(),
    };
    Ok(match terms {
        Some(terms) => Op::JoinOn(join, terms),
        None => Op::Join(join),
    })
}

/// The call of a join.
pub fn to_join(join: &Join, terms: Option<&Terms>) -> proto::Join {
    proto::Join {
        group: join.group.to_string(),
        face: to_face(join.face).into(),
        kind: to_kind(join.kind).into(),
        mode: to_mode(join.mode).into(),
        wait: join.wait,
        name: join.name.clone(),
        metadata: join.metadata.clone(),
        weight: join.weight,
        policy: Some(to_policy(&join.policy)),
        terms: terms.map(|terms| proto::Terms {
            max_hold_ms: terms.max_hold.map(Span::as_millis),
            progress_ms: terms.progress.map(Span::as_millis),
            break_deadlock: terms.break_deadlock,
        }),
    }
}

/// A call's operation.
pub fn to_op(op: &Op) -> proto::call::Op {
    use proto::call::Op as Wire;
    match op {
        Op::Join(join) => Wire::Join(to_join(join, None)),
        Op::JoinOn(join, terms) => Wire::Join(to_join(join, Some(terms))),
        Op::Stopped { entry } => Wire::Stopped(proto::Stopped { entry: entry.0 }),
        Op::Progress { entry } => Wire::Progress(proto::Progress { entry: entry.0 }),
        Op::Release { entry } => Wire::Release(proto::Release { entry: entry.0 }),
        Op::Cancel { entry } => Wire::Cancel(proto::Cancel { entry: entry.0 }),
        Op::Describe { entry, metadata } => {
            Wire::Describe(proto::Describe { entry: entry.0, metadata: metadata.clone() })
        }
        Op::End => Wire::End(proto::End {}),
        Op::ActsFor { session } => Wire::ActsFor(proto::ActsFor { session: session.0 }),
    }
}

/// A policy's statement, in the core's words.
///
/// # Errors
/// [`Malformed`] names the field that breaks the contract.
pub fn from_policy(policy: proto::Policy) -> Result<PolicyWish, Malformed> {
    let rejoin = policy.rejoin_sticky_ms.map(|ms| match ms {
        0 => Rejoin::Tail,
        ms => Rejoin::Sticky { grace: Span::from_millis(ms) },
    });
    let handover = match (policy.handover_seal, policy.handover_delay_ms) {
        (Some(true), _) => Some(Handover::Seal),
        (_, Some(0)) => Some(Handover::Immediate),
        (_, Some(ms)) => Some(Handover::Delay { delay: Span::from_millis(ms) }),
        _ => None,
    };
    Ok(PolicyWish {
        seats: policy.seats,
        numbering: policy.numbering.map(from_numbering).transpose()?,
        order: policy.order.map(from_order).transpose()?,
        preempt: policy.preempt.map(from_preempt).transpose()?,
        rejoin,
        handover,
    })
}

/// A policy's statement in the contract's form.
pub fn to_policy(policy: &PolicyWish) -> proto::Policy {
    proto::Policy {
        seats: policy.seats,
        numbering: policy.numbering.map(|n| to_numbering(n).into()),
        order: policy.order.map(|o| to_order(o).into()),
        preempt: policy.preempt.map(|p| to_preempt(p).into()),
        rejoin_sticky_ms: policy.rejoin.map(|rejoin| match rejoin {
            Rejoin::Tail => 0,
            Rejoin::Sticky { grace } => grace.as_millis(),
        }),
        handover_delay_ms: match policy.handover {
            Some(Handover::Immediate) => Some(0),
            Some(Handover::Delay { delay }) => Some(delay.as_millis()),
            Some(Handover::Seal) | None => None,
        },
        handover_seal: matches!(policy.handover, Some(Handover::Seal)).then_some(true),
    }
}

/// What the service sends, in the contract's form.
pub fn to_server_frame(frame: ServerFrame) -> proto::ServerFrame {
    use proto::server_frame::Frame;
    let frame = match frame {
        ServerFrame::Opened(opened) => Frame::Opened(to_opened(opened)),
        ServerFrame::Alive { seq, waiting } => {
            Frame::Alive(proto::Alive { seq, waiting: waiting.into_iter().map(|e| e.0).collect() })
        }
        ServerFrame::Reply { request, reply } => {
            Frame::Answer(proto::Answer { request: request.0, reply: Some(to_reply(reply)) })
        }
        ServerFrame::Unanswered { request, outcome, why } => Frame::Unanswered(proto::Unanswered {
            request: request.0,
            outcome: to_outcome(outcome).into(),
            why,
        }),
        ServerFrame::Change(change) => Frame::Change(to_change(&change)),
        ServerFrame::Total(total) => Frame::Total(to_total(total)),
        ServerFrame::Gap { group, missed } => Frame::Gap(proto::Gap { group: group.to_string(), missed }),
        ServerFrame::Closing { why } => Frame::Closing(proto::Closing { why }),
        ServerFrame::Ended { reason, evidence } => {
            Frame::Ended(proto::Ended { reason: to_reason(reason).into(), evidence })
        }
        ServerFrame::Bye(bye) => Frame::Bye(to_bye(bye)),
    };
    proto::ServerFrame { frame: Some(frame) }
}

fn to_opened(opened: Opened) -> proto::Opened {
    proto::Opened {
        session: opened.session.0,
        generation: opened.generation.0,
        ttl_ms: opened.ttl.as_millis(),
        on_disconnect: to_on_disconnect(opened.on_disconnect).into(),
        cluster: to_wide(opened.cluster.0),
        closing: opened.closing,
        totals: opened.totals.into_iter().map(to_total).collect(),
    }
}

fn to_reply(reply: Reply) -> proto::answer::Reply {
    use proto::answer::Reply as Wire;
    match reply {
        Reply::Joined(total) => Wire::Joined(to_total(total)),
        Reply::Released { token } => Wire::Released(proto::Released { token: token.map(|token| token.0) }),
        Reply::Cancelled => Wire::Cancelled(proto::Done {}),
        Reply::Granted { seat } => Wire::Granted(to_seat(seat)),
        Reply::Refused(refusal) => Wire::Refused(to_refusal(&refusal)),
        Reply::Done | Reply::Began { .. } | Reply::Opened(_) | Reply::Created { .. } | Reply::Closing => {
            Wire::Done(proto::Done {})
        }
    }
}

fn to_bye(bye: Bye) -> proto::Bye {
    use proto::bye::Kind;
    let why = bye.to_string();
    let (kind, refusal) = match bye {
        Bye::Refused(refusal) => (Kind::Refused, Some(to_refusal(&refusal))),
        Bye::Protocol(_) => (Kind::Protocol, None),
        Bye::TakenOver => (Kind::TakenOver, None),
        Bye::Unavailable(_) => (Kind::Unavailable, None),
    };
    proto::Bye { kind: kind.into(), why, refusal }
}

/// A refusal: its code, its sentence, and what programs need of its detail.
pub fn to_refusal(refusal: &Refusal) -> proto::Refusal {
    use proto::refusal::Code;
    let mut holder = None;
    let mut floor_ms = None;
    let code = match refusal {
        Refusal::Founding => Code::Founding,
        Refusal::NoSession { .. } => Code::NoSession,
        Refusal::WrongSecret { .. } => Code::WrongSecret,
        Refusal::StaleConnection { .. } => Code::StaleConnection,
        Refusal::SessionClosing { .. } => Code::SessionClosing,
        Refusal::Forgotten { .. } => Code::Forgotten,
        Refusal::Limit { .. } => Code::Limit,
        Refusal::Policy { .. } => Code::Policy,
        Refusal::OtherFace { .. } => Code::OtherFace,
        Refusal::Busy { holder: name, session, token, .. } => {
            let seat = proto::Seat { no: 0, token: token.0, since_ms: 0 };
            holder = Some(proto::Holder {
                name: name.clone(),
                session: session.0,
                seat: Some(seat),
                ..proto::Holder::default()
            });
            Code::Busy
        }
        Refusal::NoEntry { .. } => Code::NoEntry,
        Refusal::NoGroup { .. } => Code::NoGroup,
        Refusal::NotEmpty { .. } => Code::NotEmpty,
        Refusal::Unsupported { .. } => Code::Unsupported,
        Refusal::NotDue => Code::NotDue,
        Refusal::TooLong { .. } => Code::TooLong,
        Refusal::Ending { .. } => Code::Ending,
        Refusal::NoTransfer { .. } => Code::NoTransfer,
        Refusal::Deadlock { .. } => Code::Deadlock,
        Refusal::NotRaised { .. } => Code::NotRaised,
        Refusal::LevelUnknown { .. } => Code::LevelUnknown,
        Refusal::LeaseTooShort { floor, .. } => {
            floor_ms = Some(floor.as_millis());
            Code::LeaseTooShort
        }
    };
    proto::Refusal { code: code.into(), message: refusal.to_string(), holder, floor_ms }
}

/// A seat in the contract's form.
pub fn to_seat(seat: Seat) -> proto::Seat {
    proto::Seat { no: seat.no.0, token: seat.token.0, since_ms: seat.since.0 }
}

/// A seat in the core's words.
pub fn from_seat(seat: &proto::Seat) -> Seat {
    Seat { no: SeatNo(seat.no), token: Token(seat.token), since: Wall(seat.since_ms) }
}

fn to_place(place: &Place) -> proto::Place {
    proto::Place {
        ordinal: place.ordinal.map(|ordinal| ordinal.0),
        role: to_role(place.role).into(),
        seat: place.seat.map(to_seat),
    }
}

fn from_place(place: &proto::Place) -> Result<Place, Malformed> {
    Ok(Place {
        ordinal: place.ordinal.map(Ordinal),
        role: from_role(place.role)?,
        seat: place.seat.as_ref().map(from_seat),
    })
}

/// A member in the contract's form.
pub fn to_member(member: Member) -> proto::Member {
    proto::Member {
        entry: member.entry.0,
        session: member.session.0,
        name: member.name,
        kind: to_kind(member.kind).into(),
        place: Some(to_place(&member.place)),
        metadata: member.metadata,
    }
}

fn from_member(member: proto::Member) -> Result<Member, Malformed> {
    Ok(Member {
        entry: EntryId(member.entry),
        session: SessionId(member.session),
        name: member.name,
        kind: from_kind(member.kind)?,
        place: from_place(&member.place.ok_or_else(|| missing("place"))?)?,
        metadata: member.metadata,
    })
}

/// A total in the contract's form.
pub fn to_total(total: Total) -> proto::Total {
    proto::Total {
        group: total.group.to_string(),
        face: to_face(total.face).into(),
        version: total.version.0,
        view: total.view.0,
        holder_token: total.holder_token.map(|token| token.0),
        entry: total.entry.0,
        place: Some(to_place(&total.place)),
        members: total.members.into_iter().map(to_member).collect(),
    }
}

/// A total in the core's words.
///
/// # Errors
/// [`Malformed`] names the field that breaks the contract.
pub fn from_total(total: proto::Total) -> Result<Total, Malformed> {
    Ok(Total {
        group: from_name(&total.group)?,
        face: from_face(total.face)?,
        version: Version(total.version),
        view: ViewId(total.view),
        holder_token: total.holder_token.map(Token),
        entry: EntryId(total.entry),
        place: from_place(&total.place.ok_or_else(|| missing("place"))?)?,
        members: total.members.into_iter().map(from_member).collect::<Result<_, _>>()?,
    })
}

/// A change in the contract's form.
pub fn to_change(change: &Change) -> proto::Change {
    proto::Change {
        group: change.group.to_string(),
        face: to_face(change.face).into(),
        version: change.version.0,
        view: change.view.0,
        at_ms: change.at.0,
        reason: to_reason(change.reason).into(),
        evidence: change.evidence.clone(),
        holder_token: change.holder_token.map(|token| token.0),
        changed: change.changed.iter().map(to_changed).collect(),
    }
}

fn to_changed(changed: &Changed) -> proto::Changed {
    proto::Changed {
        entry: changed.entry.0,
        session: changed.session.0,
        name: changed.name.clone(),
        kind: to_kind(changed.kind).into(),
        before: changed.before.as_ref().map(to_place),
        after: changed.after.as_ref().map(to_place),
        has_metadata: changed.metadata.is_some(),
        metadata: changed.metadata.clone().unwrap_or_default(),
    }
}

/// A change in the core's words.
///
/// # Errors
/// [`Malformed`] names the field that breaks the contract.
pub fn from_change(change: proto::Change) -> Result<Change, Malformed> {
    Ok(Change {
        group: from_name(&change.group)?,
        face: from_face(change.face)?,
        version: Version(change.version),
        view: ViewId(change.view),
        at: Wall(change.at_ms),
        reason: from_reason(change.reason)?,
        evidence: change.evidence,
        holder_token: change.holder_token.map(Token),
        changed: change.changed.into_iter().map(from_changed).collect::<Result<_, _>>()?,
    })
}

fn from_changed(changed: proto::Changed) -> Result<Changed, Malformed> {
    Ok(Changed {
        entry: EntryId(changed.entry),
        session: SessionId(changed.session),
        name: changed.name,
        kind: from_kind(changed.kind)?,
        before: changed.before.as_ref().map(from_place).transpose()?,
        after: changed.after.as_ref().map(from_place).transpose()?,
        metadata: changed.has_metadata.then_some(changed.metadata),
    })
}

/// A holder in the contract's form; what only the lease keeper knows is added by the service.
pub fn to_holder(holder: &Holder) -> proto::Holder {
    proto::Holder {
        name: holder.name.clone(),
        session: holder.session.0,
        entry: holder.entry.0,
        seat: Some(to_seat(holder.seat)),
        remaining_ms: None,
        label: String::new(),
        draining: holder.draining.clone(),
        stalled_since_ms: holder.stalled_since.map(|since| since.0),
    }
}

/// A remembered change in the contract's form.
pub fn to_past(past: &Past) -> proto::Past {
    proto::Past {
        at_ms: past.at.0,
        index: past.index.0,
        reason: to_reason(past.reason).into(),
        evidence: past.evidence.clone(),
        name: past.name.clone(),
        session: past.session.0,
        released: past.released.map(|token| token.0),
        granted: past.granted.iter().map(to_holder).collect(),
    }
}

/// A cluster's id from its sixteen bytes.
///
/// # Errors
/// [`Malformed`] if it has another length.
pub fn from_cluster(bytes: &[u8]) -> Result<ClusterId, Malformed> {
    from_wide("cluster", bytes).map(ClusterId)
}

/// A log index, where a message leaves it out.
pub fn from_index(index: Option<u64>) -> Option<LogIndex> {
    index.map(LogIndex)
}
