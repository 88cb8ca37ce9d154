//! The protocols by name, with the options of `nodes` that each understands.
//!
//! | protocol | options |
//! |---|---|
//! | `central` | `lease=4s`, `durable=yes`; n1 is the coordinator |
//! | `ricart-agrawala` | `retry=100ms`, `clock=2,2,4` (Lamport clocks at the start), `permissions=kept` |
//! | `maekawa` | `form=basic`, `voters=1+2,2+3,1+3` (else a grid), `durable=yes`, `retry=100ms` |
//! | `token-ring` | `idle=park`, or the token goes round and rests `rest=0ms`; `silence=1s` repairs, `retry=100ms` |
//! | elections | see [`crate::election::open`] |
//!
//! Those of mutual exclusion understand `flaw=NAME`, which leaves one line out ([`Flaw`]).
//!
//! All understand `seed=1`, `order=fifo`, `delay=1ms` or `delay=1ms..5ms`, `loss=` and `double=` (of a
//! thousand), `disk=0ms`, `detector=50ms` (everybody is told of crashes and starts that long after) and,
//! for mutual exclusion, `hold=5ms` (who enters leaves by itself after so long, or a range).

use crate::check::one_inside_of;
use crate::count;
use crate::election::open as election;
use crate::network::{Delay, Network};
use crate::play::{Play, Stage, delay, micros, network};
use crate::script::Command;
use crate::world::{Maker, World};
use quorate_core::mutex::{
    Call, Central, Event, Flaw, IdleToken, Maekawa, MaekawaForm, Mutex, Repair, RicartAgrawala, TokenRing,
};
use quorate_core::protocol::{Members, ProcessId, Within};
use quorate_core::time::Span;
use std::sync::Arc;

/// The names, for lists and completions.
pub const PROTOCOLS: &[&str] = &["central", "ricart-agrawala", "maekawa", "token-ring"];

/// Begins a world as a `nodes` command says.
///
/// # Errors
/// Says which option is wrong.
pub fn open(command: &Command) -> Result<Box<dyn Stage>, String> {
    let n: usize = command.word(0)?.parse().map_err(|_| "nodes needs a number".to_string())?;
    if !(1..=1_000).contains(&n) {
        return Err("a world has 1 to 1000 processes".into());
    }
    match command.option("protocol").ok_or("nodes needs protocol=")? {
        "central" => mutex(command, n, central(command)?, count::central),
        "ricart-agrawala" => mutex(command, n, ricart_agrawala(command, n)?, count::ricart_agrawala),
        "maekawa" => mutex(command, n, maekawa(command, n)?, count::maekawa),
        "token-ring" => mutex(command, n, token_ring(command, n)?, count::token_ring),
        other if election::PROTOCOLS.contains(&other) => election::open(other, command, n),
        other => {
            let known = [PROTOCOLS, election::PROTOCOLS].concat().join(", ");
            Err(format!("there is no protocol {other}; there are {known}"))
        }
    }
}

fn central(command: &Command) -> Result<Maker<Central>, String> {
    let lease = span(command, "lease")?;
    let durable = command.option("durable") == Some("yes");
    let flaw = flaw(command)?;
    Ok(Arc::new(move |me| Central::new(me, ProcessId(1), lease, durable).with_flaw(flaw)))
}

fn maekawa(command: &Command, n: usize) -> Result<Maker<Maekawa>, String> {
    let form = match command.option("form") {
        None | Some("deadlock-free") => MaekawaForm::DeadlockFree,
        Some("basic") => MaekawaForm::Basic,
        Some(other) => return Err(format!("there is no form {other}; there are basic and deadlock-free")),
    };
    let sets = command.option("voters").map(|list| voters(list, n)).transpose()?;
    let durable = command.option("durable") == Some("yes");
    let (retry, flaw) = (span(command, "retry")?.map(Within::exactly), flaw(command)?);
    let members = Members::first(n);
    Ok(Arc::new(move |me| {
        let one = Maekawa::new(me, members.clone(), form, durable, retry).with_flaw(flaw);
        match &sets {
            Some(sets) => one.with_voters(sets[me.index()].clone()),
            None => one,
        }
    }))
}

/// Voting sets such as `1+2,2+3,1+3`, one for each process.
fn voters(list: &str, n: usize) -> Result<Vec<Members>, String> {
    let set = |set: &str| {
        let voters: Result<Vec<_>, _> = set.split('+').map(str::parse::<ProcessId>).collect();
        let voters = voters.map_err(|_| format!("{set} is not a voting set"))?;
        match voters.iter().all(|voter| (1..=n as u32).contains(&voter.0)) {
            true => Ok(Members::new(voters)),
            false => Err(format!("{set} names processes that are not there")),
        }
    };
    let sets: Vec<_> = list.split(',').map(set).collect::<Result<_, _>>()?;
    let meet = |a: &Members, b: &Members| a.iter().any(|voter| b.contains(voter));
    match sets.len() == n && sets.iter().all(|a| sets.iter().all(|b| meet(a, b))) {
        true => Ok(sets),
        false => Err(format!("voters= needs {n} sets, and any two have to meet")),
    }
}

fn token_ring(command: &Command, n: usize) -> Result<Maker<TokenRing>, String> {
    let idle = match command.option("idle") {
        Some("park") => IdleToken::Park,
        None | Some("circulate") => {
            let rest = span(command, "rest")?.unwrap_or(Span::ZERO);
            IdleToken::Circulate { rest: Within::exactly(rest) }
        }
        Some(other) => return Err(format!("a token does not {other}; it can park and circulate")),
    };
    let retry = span(command, "retry")?.map(Within::exactly);
    let silence = span(command, "silence")?.map(Within::exactly);
    let repair = silence.map(|silence| Repair { silence, retry });
    let flaw = flaw(command)?;
    let members = Members::first(n);
    Ok(Arc::new(move |me| TokenRing::new(me, members.clone(), idle, repair).with_flaw(flaw)))
}

fn flaw(command: &Command) -> Result<Option<Flaw>, String> {
    let Some(name) = command.option("flaw") else { return Ok(None) };
    let known = Flaw::ALL.iter().copied().find(|flaw| flaw.name() == name);
    let names = || Flaw::ALL.iter().map(|flaw| flaw.name()).collect::<Vec<_>>().join(", ");
    known.map(Some).ok_or_else(|| format!("there is no flaw {name}; there are {}", names()))
}

fn ricart_agrawala(command: &Command, n: usize) -> Result<Maker<RicartAgrawala>, String> {
    let retry = span(command, "retry")?.map(Within::exactly);
    let clocks = match command.option("clock") {
        None => vec![0; n],
        Some(list) => list
            .split(',')
            .map(|one| one.parse().map_err(|_| format!("{one} is not a timestamp")))
            .collect::<Result<Vec<u64>, _>>()?,
    };
    if clocks.len() != n {
        return Err(format!("clock= needs {n} numbers"));
    }
    let (members, flaw) = (Members::first(n), flaw(command)?);
    let keeps = command.option("permissions") == Some("kept");
    let maker = move |me: ProcessId| {
        let one = RicartAgrawala::new(me, members.clone(), retry).with_clock(clocks[me.index()]);
        let one = if keeps { one.with_kept_permissions() } else { one };
        one.with_flaw(flaw)
    };
    Ok(Arc::new(maker))
}

/// A time option in whole milliseconds.
///
/// # Errors
/// It is not a time.
pub fn span(command: &Command, name: &str) -> Result<Option<Span>, String> {
    let text = command.option(name);
    text.map(|text| Ok(Span::from_millis(micros(text)? / 1_000))).transpose()
}

fn leave(event: &Event) -> Option<Call> {
    matches!(event, Event::Entered { .. }).then_some(Call::Leave)
}

fn mutex<P: Mutex + 'static>(
    command: &Command,
    n: usize,
    maker: Maker<P>,
    count: crate::play::Count,
) -> Result<Box<dyn Stage>, String> {
    let mut world = world(command, n, maker)?;
    if let Some(hold) = command.option("hold") {
        world.react(leave, delay(hold)?);
    }
    Ok(Box::new(Play::new(world, |world| one_inside_of(world.nodes().iter()), count)))
}

/// A world with the options that all protocols understand.
///
/// # Errors
/// Says which option is wrong.
pub fn world<P: quorate_core::protocol::Protocol>(
    command: &Command,
    n: usize,
    maker: Maker<P>,
) -> Result<World<P>, String> {
    let seed = command.option("seed").map_or(Ok(1), str::parse);
    let seed = seed.map_err(|_| "the seed is a number".to_string())?;
    let mut world = World::new(seed, n, network(command, Network::calm())?, maker);
    if let Some(after) = command.option("detector") {
        world.detect(Delay::Fixed(micros(after)?));
    }
    Ok(world)
}
