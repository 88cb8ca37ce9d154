//! `quorate group`: the names in use.

use super::super::exit::{Failure, Outcome};
use super::super::output::{self, Rows, facts, plain};
use super::super::policy::{FaceArg, PolicyArgs};
use super::super::{Global, block_on};
use super::tables::{history_table, members_table, token};
use super::transfer::left;
use super::{PAGE, client, explained, fresh, refused, warn};
use crate::explain::words::count;
use crate::json;
use clap::{Args, Subcommand};
use quorate::proto;
use std::process::ExitCode;

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
    /// State how many members act at once; holders of seats that go are asked to stop
    Seats {
        /// The name of a group, lock or semaphore
        name: String,
        /// How many seats, from 1; for a barrier how many parties
        seats: u32,
    },
    /// Delete a group that is empty; with --end also one that is not
    Delete {
        /// The name of a group or lock
        name: String,
        /// Only if it is the one that was made at this log index, as `create` and `show` tell
        #[arg(long, value_name = "INDEX")]
        created: Option<u64>,
        /// End the waits of all that wait in it and ask those that act to stop; it is gone when they have
        #[arg(long)]
        end: bool,
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
    /// What is stated about its policy
    #[command(flatten)]
    policy: PolicyArgs,
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
        GroupCommand::Seats { name, seats } => set_seats(&name, seats, global),
        GroupCommand::Delete { name, created, end } => delete_group(&name, created, end, global),
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
            holder
                .map(|h| plain(&format!("{} (session {})", h.name, h.session)).into_owned())
                .unwrap_or_default(),
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
                false => plain(&reply.observers.join(", ")).into_owned(),
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
    let (name, face) = (args.name, args.face.wire());
    let policy = Some(args.policy.wire());
    let request = proto::CreateGroupRequest { client: client(), group: name.clone(), face, policy };
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

fn set_seats(name: &str, seats: u32, global: &Global) -> Outcome {
    let request = proto::SetSeatsRequest { client: client(), group: name.into(), seats };
    let asked = block_on(async {
        let mut operator = global.server.operator().await?;
        operator.set_seats(request).await.map(|reply| reply.into_inner().asked).map_err(refused)
    })?;
    if global.json {
        let asked: Vec<_> = asked.iter().map(json::holder).collect();
        output::json(&serde_json::json!({ "name": name, "seats": seats, "asked": asked }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(format!("{name} has {}{}", count(seats.into(), "seat"), still_there(&asked)))?;
    Ok(ExitCode::SUCCESS)
}

/// Who acts still and was asked to stop, as the end of a sentence.
fn still_there(asked: &[proto::Holder]) -> String {
    match asked {
        [] => String::new(),
        [one] => format!("; this one was asked to stop and acts until it has: {}", left(one)),
        several => {
            let each: Vec<String> = several.iter().map(|holder| format!("\n  {}", left(holder))).collect();
            format!("; these were asked to stop and act until they have:{}", each.concat())
        }
    }
}

fn delete_group(name: &str, created: Option<u64>, end: bool, global: &Global) -> Outcome {
    let request = proto::DeleteGroupRequest { client: client(), group: name.into(), created, end };
    let left = block_on(async {
        let mut operator = global.server.operator().await?;
        operator.delete_group(request).await.map(|reply| reply.into_inner().left).map_err(refused)
    })?;
    if global.json {
        let deleted = left.is_empty();
        let left: Vec<_> = left.iter().map(json::holder).collect();
        output::json(&serde_json::json!({ "name": name, "deleted": deleted, "left": left }))?;
    } else if left.is_empty() {
        output::line(format!("{name} is deleted"))?;
    } else {
        output::line(format!("{name} is being deleted, and nobody waits in it{}", still_there(&left)))?;
    }
    Ok(ExitCode::SUCCESS)
}
