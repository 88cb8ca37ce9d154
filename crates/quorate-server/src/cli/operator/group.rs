//! `quorate group`: the names in use.

use super::super::exit::{Failure, Outcome};
use super::super::output::{self, Rows, facts};
use super::super::{Global, block_on};
use super::tables::{history_table, members_table, token};
use super::{PAGE, client, explained, fresh, refused, warn};
use crate::json;
use clap::{Args, Subcommand, ValueEnum};
use quorate::proto;
use std::process::ExitCode;
use std::time::Duration;

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

fn delete_group(name: String, created: Option<u64>, global: &Global) -> Outcome {
    let request = proto::DeleteGroupRequest { client: client(), group: name.clone(), created, end: false };
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
