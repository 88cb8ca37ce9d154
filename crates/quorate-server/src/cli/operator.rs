//! `quorate status`, `group`, `session` and `explain`: what people who run a service look at and may do.

use super::exit::{Code, Failure, Outcome};
use super::output::{self, Rows, Tone, facts, fold, paint};
use super::{Global, block_on};
use crate::explain::words::{ago, clock, count, span};
use crate::json;
use crate::node::disk;
use crate::operator::STALE_HEADER;
use clap::{Args, Subcommand, ValueEnum};
use quorate::proto;
use quorate_core::time::{Span, Wall};
use std::process::ExitCode;
use std::time::Duration;
use tonic::{Response, Status};

/// How many names or sessions are fetched at once.
const PAGE: u32 = 1_000;

/// `quorate status`
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {}

/// `quorate group ...`
#[derive(Subcommand, Clone, Debug)]
pub enum GroupCommand {
    /// List the names in use, and who holds them
    List,
    /// Show one name: its members, its policy, what happened last
    Show {
        /// The name of a group or lock
        name: String,
    },
    /// Make a group that stays when nobody is in it
    Create(CreateArgs),
    /// Delete a group that is empty
    Delete {
        /// The name of a group or lock
        name: String,
        /// Only if it is the one that was made at this log index, as `create` and `show` tell
        #[arg(long, value_name = "INDEX")]
        created: Option<u64>,
    },
}

/// `quorate group create`
#[derive(Args, Clone, Debug)]
#[command(after_help = "What is not stated is left open: the first member to state it sets it.\n\n\
    Examples:\n  quorate group create workers --seats 3\n  quorate group create orders --face lock")]
pub struct CreateArgs {
    /// The name: 1 to 255 bytes
    name: String,
    /// What it is used as
    #[arg(long, value_enum, default_value = "group")]
    face: FaceArg,
    /// How many members act at once, from 1
    #[arg(long)]
    seats: Option<u32>,
    /// How numbers follow the queue
    #[arg(long, value_enum)]
    numbering: Option<NumberingArg>,
    /// What decides the place in the queue
    #[arg(long, value_enum)]
    order: Option<OrderArg>,
    /// Whether a newcomer may make a seated member stop
    #[arg(long, value_enum)]
    preempt: Option<PreemptArg>,
    /// The place of a member that comes back: tail, or how long its old one is kept, such as 30s
    #[arg(long, value_name = "tail|TIME", value_parser = rejoin)]
    rejoin: Option<Duration>,
    /// Between two holders: immediate, seal, or a pause, such as 2s
    #[arg(long, value_name = "immediate|seal|TIME", value_parser = handover)]
    handover: Option<HandoverArg>,
}

macro_rules! choices {
    ($(#[$doc:meta])* $name:ident as $wire:ident { $($(#[$each:meta])* $variant:ident = $wired:ident),* }) => {
        $(#[$doc])*
        #[derive(ValueEnum, Clone, Copy, Debug)]
        pub enum $name { $($(#[$each])* $variant),* }

        impl $name {
            fn wire(self) -> i32 {
                match self { $(Self::$variant => proto::$wire::$wired.into()),* }
            }
        }
    };
}

choices! {
    /// What a name is used as.
    FaceArg as Face {
        /// Members with numbers who hear of each other
        Group = Group,
        /// One seat that is left when done
        Lock = Lock,
        /// One seat and a value
        Leadership = Leadership,
        /// Several seats that are left when done
        Semaphore = Semaphore
    }
}
choices! {
    /// How numbers follow the queue.
    NumberingArg as Numbering {
        /// Members hold 1 to n; when one leaves, those above move down
        Dense = Dense,
        /// A number is kept for life
        Stable = Stable,
        /// When one leaves, the last moves into the hole
        MinimalMove = MinimalMove
    }
}
choices! {
    /// What decides the place in the queue.
    OrderArg as Order {
        /// First come, first served
        Join = JoinOrder,
        /// The heavier first
        Weight = Weight
    }
}
choices! {
    /// Whether a newcomer may make a seated member stop.
    PreemptArg as Preempt {
        /// The seated stay
        Never = Never,
        /// A heavier member makes a lighter one stop
        OnWeight = OnWeight,
        /// Only a transfer does
        OnCommand = OnCommand
    }
}

/// What happens between two holders.
#[derive(Clone, Copy, Debug)]
pub enum HandoverArg {
    /// A pause, perhaps none.
    Delay(Duration),
    /// The guards raise their floor first.
    Seal,
}

fn rejoin(text: &str) -> Result<Duration, String> {
    match text {
        "tail" => Ok(Duration::ZERO),
        time => humantime::parse_duration(time).map_err(|error| error.to_string()),
    }
}

fn handover(text: &str) -> Result<HandoverArg, String> {
    match text {
        "immediate" => Ok(HandoverArg::Delay(Duration::ZERO)),
        "seal" => Ok(HandoverArg::Seal),
        time => humantime::parse_duration(time).map(HandoverArg::Delay).map_err(|error| error.to_string()),
    }
}

/// `quorate session ...`
#[derive(Subcommand, Clone, Debug)]
pub enum SessionCommand {
    /// List the open sessions
    List,
    /// Show one session: its lease, what it holds, what it waits for
    Show {
        /// The number of the session
        session: u64,
    },
    /// Ask a session to stop, and renew its lease no more
    #[command(
        long_about = "Ask a session to stop, and renew its lease no more.\n\nIts client is told and may \
        give up what it holds at once. If it does not, the service waits until the lease has ended: a seat is \
        never taken from somebody who may still act."
    )]
    Close {
        /// The number of the session
        session: u64,
        /// Why; the client and the history show it
        #[arg(long, value_name = "TEXT", default_value = "closed by an operator")]
        why: String,
    },
}

/// `quorate explain ...`
#[derive(Subcommand, Clone, Debug)]
pub enum ExplainCommand {
    /// Who acts in a group, who stands by, and what happened last
    Group {
        /// The name of the group
        name: String,
    },
    /// Who holds a lock, who waits for whom, and what happened last
    Lock {
        /// The name of the lock
        name: String,
    },
    /// What a session holds, what it waits for, and how its lease is
    Session {
        /// The number of the session
        session: u64,
    },
}

/// Shows how the service is.
///
/// # Errors
/// No service answers.
pub fn status(_: &StatusArgs, global: &Global) -> Outcome {
    let status = block_on(async {
        let mut operator = global.server.operator().await?;
        operator.status(proto::StatusRequest {}).await.map(Response::into_inner).map_err(refused)
    })?;
    if global.json {
        output::json(&json::status(&status))?;
    } else {
        output::line(status_text(&status))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn status_text(status: &proto::StatusReply) -> String {
    let leads = match status.leader {
        Some(leader) if leader == status.node => "leads".to_owned(),
        Some(leader) => format!("is {}; node {leader} leads", status.role),
        None => format!("is {}; nobody leads", status.role),
    };
    let tone = if status.leader.is_some() && !status.disk_low { Tone::Good } else { Tone::Warn };
    let headline = format!("node {} {leads}, up {}", status.node, span(Span::from_millis(status.uptime_ms)));
    let micros = |us: u64| format!("{}.{:02} ms", us / 1_000, us % 1_000 / 10);
    let disk = format!(
        "{} free{}",
        bytes(status.disk_free_bytes),
        match status.disk_low {
            true => ": too little, only release, leave and expiry are served",
            false => "",
        }
    );
    let floor = format!("{} ({})", Span::from_millis(status.ttl_floor_ms), status.ttl_floor_why);
    let (p50, p99) = (micros(status.commit_p50_us), micros(status.commit_p99_us));
    let rows = [
        ("address", status.listen.clone()),
        ("version", format!("{}, feature level {}", status.version, status.feature_level)),
        ("cluster", json::cluster(&status.cluster)),
        ("term", format!("{}, reign {}", status.term, status.reign)),
        (
            "log",
            format!("applied {} of {}, snapshot at {}", status.applied, status.last_log, status.snapshot),
        ),
        ("commits", format!("{}, p50 {p50}, p99 {p99}", status.commits)),
        ("last token", status.last_token.to_string()),
        ("sessions", format!("{} open, {} connected here", status.sessions, status.connections)),
        ("groups", format!("{} names in use", status.groups)),
        ("shortest ttl", fold(&floor, output::columns() - 14, "              ")),
        ("longest ttl", Span::from_millis(status.ttl_max_ms).to_string()),
        ("disk", disk),
        ("formats", format!("data {}, record {}", status.formats_data, status.formats_record)),
    ];
    format!("{}\n\n{}", paint(tone, &headline), facts(&rows))
}

/// Bytes with a unit that fits.
fn bytes(bytes: u64) -> String {
    match bytes {
        u64::MAX => "unlimited".into(),
        b if b >= 10 << 30 => format!("{} GiB", b >> 30),
        b if b >= 10 << 20 => format!("{} MiB", b >> 20),
        b => format!("{} KiB", b >> 10),
    }
}

/// Runs `quorate group ...`.
///
/// # Errors
/// No service answers, or it refuses.
pub fn group(command: GroupCommand, global: &Global) -> Outcome {
    match command {
        GroupCommand::List => list_groups(global),
        GroupCommand::Show { name } => show_group(name, global),
        GroupCommand::Create(args) => create_group(args, global),
        GroupCommand::Delete { name, created } => delete_group(name, created, global),
    }
}

fn list_groups(global: &Global) -> Outcome {
    let groups = block_on(async {
        let mut operator = global.server.operator().await?;
        let mut groups: Vec<proto::GroupSummary> = Vec::new();
        loop {
            let after = groups.last().map(|group| group.name.clone()).unwrap_or_default();
            let request = proto::ListGroupsRequest { after, max: PAGE };
            let page = fresh(operator.list_groups(request).await)?;
            groups.extend(page.groups);
            if !page.more {
                return Ok(groups);
            }
        }
    })?;
    if global.json {
        groups.iter().try_for_each(|group| output::json(&json::group(group)))?;
        return Ok(ExitCode::SUCCESS);
    }
    if groups.is_empty() {
        output::line("no names are in use; try `quorate lock demo -- sleep 5` in another terminal")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows =
        Rows::new(&["name", "face", "holder", ">token", ">seats", ">members", ">waiting", ">observers"]);
    for group in &groups {
        let holder = group.holder.as_ref();
        rows.row([
            group.name.clone(),
            json::word(group.face().as_str_name()),
            holder.map(|h| format!("{} (session {})", h.name, h.session)).unwrap_or_default(),
            holder.map(token).unwrap_or_default(),
            group.seats.to_string(),
            group.members.to_string(),
            group.waiting.to_string(),
            group.observers.to_string(),
        ]);
    }
    output::line(rows.render())?;
    Ok(ExitCode::SUCCESS)
}

fn token(holder: &proto::Holder) -> String {
    holder.seat.map(|seat| seat.token.to_string()).unwrap_or_default()
}

fn explained(
    kind: proto::explain_request::Kind,
    name: String,
    global: &Global,
) -> Result<(proto::ExplainReply, Option<String>), Failure> {
    block_on(async {
        let mut operator = global.server.operator().await?;
        let request = proto::ExplainRequest { kind: kind.into(), name, max: 0 };
        let response = operator.explain(request).await.map_err(refused)?;
        let stale = stale(&response);
        Ok((response.into_inner(), stale))
    })
}

fn show_group(name: String, global: &Global) -> Outcome {
    let (reply, stale) = explained(proto::explain_request::Kind::Group, name, global)?;
    if global.json {
        output::json(&json::explain(&reply, stale.as_deref()))?;
        return Ok(ExitCode::SUCCESS);
    }
    warn(stale.as_deref());
    let Some(group) = &reply.group else {
        return Err(Failure::failed(reply.sentence));
    };
    let policy = match json::policy(&reply.policy.unwrap_or_default()) {
        serde_json::Value::Object(stated) if !stated.is_empty() => {
            stated.iter().map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>().join(", ")
        }
        _ => "nothing stated: the defaults".into(),
    };
    let stays = if group.kept { "stays when nobody is in it" } else { "is gone when nobody is in it" };
    let text = facts(&[
        ("name", group.name.clone()),
        ("face", json::word(group.face().as_str_name())),
        ("seats", group.seats.to_string()),
        ("policy", policy),
        ("view", format!("{}, version {}", group.view, reply.version)),
        ("created", format!("at log index {}; it {stays}", reply.created)),
        (
            "observers",
            match reply.observers.is_empty() {
                true => "none".into(),
                false => reply.observers.join(", "),
            },
        ),
    ]);
    let mut sections = vec![text];
    sections.extend(members_table(&reply));
    sections.extend(history_table(&reply));
    output::line(sections.join("\n\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn members_table(reply: &proto::ExplainReply) -> Option<String> {
    if reply.members.is_empty() {
        return None;
    }
    let mut rows = Rows::new(&[">#", "name", ">session", "role", ">seat", ">token", "kind", "metadata"]);
    for member in &reply.members {
        let place = member.place.unwrap_or_default();
        let metadata: Vec<String> =
            member.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
        rows.row([
            place.ordinal.map(|ordinal| ordinal.to_string()).unwrap_or_default(),
            member.name.clone(),
            member.session.to_string(),
            json::word(place.role().as_str_name()),
            place.seat.map(|seat| seat.no.to_string()).unwrap_or_default(),
            place.seat.map(|seat| seat.token.to_string()).unwrap_or_default(),
            json::word(member.kind().as_str_name()).replace('_', "-"),
            metadata.join(" "),
        ]);
    }
    let members = reply.group.as_ref().map_or(0, |group| group.members) as usize;
    let title = match reply.members.len() {
        all if all >= members => "Members".to_owned(),
        shown => format!("Members (the first {shown} of {members})"),
    };
    Some(format!("{}\n{}", paint(Tone::Strong, &title), rows.render()))
}

fn create_group(args: CreateArgs, global: &Global) -> Outcome {
    let policy = proto::Policy {
        seats: args.seats,
        numbering: args.numbering.map(NumberingArg::wire),
        order: args.order.map(OrderArg::wire),
        preempt: args.preempt.map(PreemptArg::wire),
        rejoin_sticky_ms: args.rejoin.map(millis),
        handover_delay_ms: match args.handover {
            Some(HandoverArg::Delay(delay)) => Some(millis(delay)),
            _ => None,
        },
        handover_seal: matches!(args.handover, Some(HandoverArg::Seal)).then_some(true),
    };
    let (name, face) = (args.name, args.face.wire());
    let request =
        proto::CreateGroupRequest { client: client(), group: name.clone(), face, policy: Some(policy) };
    let created = block_on(async {
        let mut operator = global.server.operator().await?;
        operator.create_group(request).await.map(|reply| reply.into_inner().created).map_err(refused)
    })?;
    if global.json {
        output::json(&serde_json::json!({ "name": name, "created": created }))?;
    } else {
        output::line(format!("{name} is there, made at log index {created}; it stays when nobody is in it"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A number of this call's own, so that the service can tell a retry.
fn client() -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(&rand::random::<u128>().to_be_bytes())
}

fn delete_group(name: String, created: Option<u64>, global: &Global) -> Outcome {
    let request = proto::DeleteGroupRequest { client: client(), group: name.clone(), created };
    block_on(async {
        let mut operator = global.server.operator().await?;
        operator.delete_group(request).await.map_err(refused)
    })?;
    if global.json {
        output::json(&serde_json::json!({ "name": name, "deleted": true }))?;
    } else {
        output::line(format!("{name} is deleted"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `quorate session ...`.
///
/// # Errors
/// No service answers, or it refuses.
pub fn session(command: SessionCommand, global: &Global) -> Outcome {
    match command {
        SessionCommand::List => list_sessions(global),
        SessionCommand::Show { session } => show_session(session, global),
        SessionCommand::Close { session, why } => close_session(session, why, global),
    }
}

fn list_sessions(global: &Global) -> Outcome {
    let sessions = block_on(async {
        let mut operator = global.server.operator().await?;
        let mut sessions: Vec<proto::SessionInfo> = Vec::new();
        loop {
            let after = sessions.last().map_or(0, |last| last.session);
            let request = proto::ListSessionsRequest { after, max: PAGE, only: None };
            let page = fresh(operator.list_sessions(request).await)?;
            sessions.extend(page.sessions);
            if !page.more {
                return Ok(sessions);
            }
        }
    })?;
    if global.json {
        sessions.iter().try_for_each(|session| output::json(&json::session(session)))?;
        return Ok(ExitCode::SUCCESS);
    }
    if sessions.is_empty() {
        output::line("no sessions are open")?;
        return Ok(ExitCode::SUCCESS);
    }
    let now = disk::wall();
    let mut rows =
        Rows::new(&[">session", "label", "opened", ">ttl", ">lease left", ">holds", ">waits", "connection"]);
    for session in &sessions {
        let held = session.places.iter().filter(|place| place.seat.is_some()).count();
        let waits = session.places.iter().filter(|place| !place.waits.is_empty()).count();
        rows.row([
            session.session.to_string(),
            session.label.clone(),
            ago(Wall(session.opened_ms), now),
            Span::from_millis(session.ttl_ms).to_string(),
            session.remaining_ms.map(|ms| span(Span::from_millis(ms))).unwrap_or_default(),
            held.to_string(),
            waits.to_string(),
            connection(session),
        ]);
    }
    output::line(rows.render())?;
    Ok(ExitCode::SUCCESS)
}

fn connection(session: &proto::SessionInfo) -> String {
    match (&session.closing, session.connected) {
        (Some(_), _) => "closing".into(),
        (None, true) => format!("from {}", session.peer),
        (None, false) => match session.silent_ms {
            Some(silent) => format!("none, silent for {}", span(Span::from_millis(silent))),
            None => "none here".into(),
        },
    }
}

fn show_session(session: u64, global: &Global) -> Outcome {
    let (reply, stale) = explained(proto::explain_request::Kind::Session, session.to_string(), global)?;
    let Some(info) = &reply.session else {
        return Err(Failure::failed(reply.sentence));
    };
    if global.json {
        output::json(&json::session(info))?;
        return Ok(ExitCode::SUCCESS);
    }
    warn(stale.as_deref());
    let now = disk::wall();
    let unknown = || "known to the leader only".to_owned();
    let since = |ms: Option<u64>| ms.map(|ms| span(Span::from_millis(ms)));
    let mut rows = vec![
        ("session", info.session.to_string()),
        ("label", info.label.clone()),
        ("opened", format!("{} ({})", clock(Wall(info.opened_ms), now), ago(Wall(info.opened_ms), now))),
        ("ttl", Span::from_millis(info.ttl_ms).to_string()),
        ("lease left", since(info.remaining_ms).unwrap_or_else(unknown)),
        ("last heard", since(info.silent_ms).map_or_else(unknown, |silent| format!("{silent} ago"))),
        ("connection", format!("{}, number {}", connection(info), info.generation)),
        ("on disconnect", json::word(info.on_disconnect().as_str_name())),
    ];
    if let Some(why) = &info.closing {
        rows.push(("closing", why.clone()));
    }
    let mut sections = vec![facts(&rows)];
    sections.extend(places_table(info));
    output::line(sections.join("\n\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn places_table(info: &proto::SessionInfo) -> Option<String> {
    if info.places.is_empty() {
        return None;
    }
    let now = disk::wall();
    let mut rows = Rows::new(&["name", ">token", ">seat", "since", "waits, because"]);
    for place in &info.places {
        rows.row([
            place.group.clone(),
            place.seat.map(|seat| seat.token.to_string()).unwrap_or_default(),
            place.seat.map(|seat| seat.no.to_string()).unwrap_or_default(),
            place.seat.map(|seat| clock(Wall(seat.since_ms), now)).unwrap_or_default(),
            place.waits.clone(),
        ]);
    }
    Some(format!("{}\n{}", paint(Tone::Strong, "Places"), rows.render()))
}

fn close_session(session: u64, why: String, global: &Global) -> Outcome {
    let left = block_on(async {
        let mut operator = global.server.operator().await?;
        let request = proto::CloseSessionRequest { client: client(), session, why };
        operator.close_session(request).await.map_err(refused)?;
        let request = proto::ListSessionsRequest { after: 0, max: 1, only: Some(session) };
        match operator.list_sessions(request).await {
            Ok(reply) => Ok(Some(reply.into_inner().sessions.first().and_then(|info| info.remaining_ms))),
            Err(_) => Ok(None),
        }
    })?;
    if global.json {
        let left_ms = left.flatten();
        output::json(&serde_json::json!({
            "session": session, "closing": left.is_some(), "lease_remaining_ms": left_ms,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(match left {
        None => format!("session {session} has ended: its client gave up everything at once"),
        Some(None) => {
            format!("session {session} is asked to stop; it holds until it does, or its lease ends")
        }
        Some(Some(ms)) => format!(
            "session {session} is asked to stop; it holds until it does, or until its lease ends in {}",
            span(Span::from_millis(ms))
        ),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `quorate explain ...`.
///
/// # Errors
/// No service answers, or the name is none.
pub fn explain(command: ExplainCommand, global: &Global) -> Outcome {
    use proto::explain_request::Kind;
    let (kind, name) = match command {
        ExplainCommand::Group { name } => (Kind::Group, name),
        ExplainCommand::Lock { name } => (Kind::Lock, name),
        ExplainCommand::Session { session } => (Kind::Session, session.to_string()),
    };
    let (reply, stale) = explained(kind, name, global)?;
    if global.json {
        output::json(&json::explain(&reply, stale.as_deref()))?;
        return Ok(ExitCode::SUCCESS);
    }
    warn(stale.as_deref());
    let mut sections = vec![fold(&reply.sentence, output::columns(), "")];
    sections.extend(waiters_table(&reply));
    sections.extend(reply.session.as_ref().and_then(places_table));
    sections.extend(history_table(&reply));
    sections.extend(advice(&reply));
    output::line(sections.join("\n\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn waiters_table(reply: &proto::ExplainReply) -> Option<String> {
    let group = reply.group.as_ref()?;
    if reply.waiters.is_empty() {
        return None;
    }
    let now = disk::wall();
    let mut rows = Rows::new(&[">#", "name", ">session", "since", "because"]);
    for waiter in &reply.waiters {
        rows.row([
            waiter.position.to_string(),
            waiter.name.clone(),
            waiter.session.to_string(),
            ago(Wall(waiter.since_ms), now),
            waiter.sentence.clone(),
        ]);
    }
    let what = if group.face() == proto::Face::Group { "Standing by" } else { "Waiting" };
    let title = match (reply.waiters.len(), group.waiting as usize) {
        (shown, all) if shown < all => format!("{what} (the first {shown} of {all})"),
        _ => what.to_owned(),
    };
    Some(format!("{}\n{}", paint(Tone::Strong, &title), rows.render()))
}

/// How many of the last changes people are shown; `--json` has all that are remembered.
const HISTORY_SHOWN: usize = 8;

fn history_table(reply: &proto::ExplainReply) -> Option<String> {
    if reply.history.is_empty() {
        return None;
    }
    let now = disk::wall();
    let mut rows = Rows::new(&["when", "who", "what", "then"]);
    for past in reply.history.iter().rev().take(HISTORY_SHOWN) {
        let granted = past.granted.iter().map(|holder| {
            let who = if holder.session == past.session { "it".into() } else { holder.name.clone() };
            format!("{who} got token {}", token(holder))
        });
        let gave = past.released.map(|token| format!("it gave up token {token}"));
        rows.row([
            clock(Wall(past.at_ms), now),
            format!("{} (session {})", past.name, past.session),
            format!("{}: {}", json::word(past.reason().as_str_name()), past.evidence),
            gave.into_iter().chain(granted).collect::<Vec<_>>().join(", "),
        ]);
    }
    let shown = count(reply.history.len().min(HISTORY_SHOWN) as u64, "change");
    let title = format!("The last {shown}, newest first (at most {} are remembered)", reply.history_max);
    Some(format!("{}\n{}", paint(Tone::Strong, &title), rows.render()))
}

fn advice(reply: &proto::ExplainReply) -> Option<String> {
    if reply.advice.is_empty() {
        return None;
    }
    let width = output::columns();
    let lines = reply.advice.iter().map(|line| fold(&format!("- {line}"), width, "  "));
    let title = paint(Tone::Strong, "What to know");
    Some(format!("{title}\n{}", lines.collect::<Vec<_>>().join("\n")))
}

/// The reply, with a word on standard error if no quorum has confirmed it.
fn fresh<T>(result: Result<Response<T>, Status>) -> Result<T, Failure> {
    let response = result.map_err(refused)?;
    warn(stale(&response).as_deref());
    Ok(response.into_inner())
}

fn stale<T>(response: &Response<T>) -> Option<String> {
    let since = response.metadata().get(STALE_HEADER)?;
    since.to_str().ok().map(str::to_owned)
}

fn warn(stale: Option<&str>) {
    if let Some(since) = stale {
        eprintln!("{}", paint(Tone::Warn, &format!("warning: {since}")));
    }
}

/// What the service answered instead, as the end of a command.
fn refused(status: Status) -> Failure {
    match status.code() {
        tonic::Code::Unavailable => Failure::new(Code::Unreachable, status.message()),
        tonic::Code::InvalidArgument => Failure::usage(status.message()),
        _ => Failure::failed(status.message()),
    }
}
