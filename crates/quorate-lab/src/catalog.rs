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
//! Where they draw a time, an option gives a range: `retry=30ms..60ms`.
//!
//! All understand `seed=1`, `order=fifo`, `delay=1ms` or `delay=1ms..5ms`, `loss=` and `double=` (of a
//! thousand), `disk=0ms`, `detector=50ms` (everybody is told of crashes and starts that long after) and,
//! for mutual exclusion, `hold=5ms` (who enters leaves by itself after so long, or a range).

use crate::check::{one_inside_of, tokens};
use crate::count;
use crate::election::open as election;
use crate::fuzz::leave;
use crate::network::Network;
use crate::play::{Check, Count, Play, Stage, delay, ends, micros, network};
use crate::script::Command;
use crate::trace::Trace;
use crate::world::{Maker, World};
use quorate_core::mutex::{
    Central, Flaw, IdleToken, Maekawa, MaekawaForm, Mutex, Repair, RicartAgrawala, TokenRing,
};
use quorate_core::protocol::{Members, ProcessId, Protocol, Within};
use quorate_core::time::Span;
use std::sync::Arc;

/// The names, for lists and completions.
pub const PROTOCOLS: &[&str] = &["central", "ricart-agrawala", "maekawa", "token-ring"];

/// A protocol whose processes the words of `nodes` make.
pub trait Named: Protocol {
    /// Makes its processes as a command says.
    ///
    /// # Errors
    /// Says which option is wrong.
    fn maker(nodes: &Command, n: usize) -> Result<Maker<Self>, String>;
}

/// The processes that a line such as `nodes 3 protocol=central` makes.
///
/// # Errors
/// Says which option is wrong.
pub fn made<P: Named>(nodes: &str) -> Result<Maker<P>, String> {
    let nodes = Command::read(nodes);
    P::maker(&nodes, count_of(&nodes)?)
}

fn count_of(nodes: &Command) -> Result<usize, String> {
    let n: usize = nodes.word(0)?.parse().map_err(|_| "nodes needs a number".to_string())?;
    if (1..=1_000).contains(&n) { Ok(n) } else { Err("a world has 1 to 1000 processes".into()) }
}

/// Begins a world as a `nodes` command says.
///
/// # Errors
/// Says which option is wrong.
pub fn open(command: &Command) -> Result<Box<dyn Stage>, String> {
    let n = count_of(command)?;
    let known = || [PROTOCOLS, election::PROTOCOLS].concat().join(", ");
    match command
        .option("protocol")
        .ok_or_else(|| format!("it needs protocol=, which is one of {}", known()))?
    {
        "central" => mutex::<Central>(command, n, one_is_inside, count::central),
        "ricart-agrawala" => mutex::<RicartAgrawala>(command, n, one_is_inside, count::ricart_agrawala),
        "maekawa" => mutex::<Maekawa>(command, n, one_is_inside, count::maekawa),
        "token-ring" => mutex::<TokenRing>(command, n, one_has_the_token, count::token_ring),
        other if election::PROTOCOLS.contains(&other) => election::open(other, command, n),
        other => Err(format!("there is no protocol {other}; there are {}", known())),
    }
}

impl Named for Central {
    fn maker(nodes: &Command, _n: usize) -> Result<Maker<Self>, String> {
        let lease = span(nodes, "lease")?;
        let durable = nodes.is_yes("durable")?;
        let flaw = flaw(nodes)?;
        Ok(Arc::new(move |me| Central::new(me, ProcessId(1), lease, durable).with_flaw(flaw)))
    }
}

impl Named for Maekawa {
    fn maker(nodes: &Command, n: usize) -> Result<Maker<Self>, String> {
        let form = match nodes.choice("form", &["deadlock-free", "basic"])? {
            "basic" => MaekawaForm::Basic,
            _ => MaekawaForm::DeadlockFree,
        };
        let sets = nodes.option("voters").map(|list| voters(list, n)).transpose()?;
        let durable = nodes.is_yes("durable")?;
        let (retry, flaw) = (within(nodes, "retry")?, flaw(nodes)?);
        let members = Members::first(n);
        Ok(Arc::new(move |me| {
            let one = Maekawa::new(me, members.clone(), form, durable, retry).with_flaw(flaw);
            match &sets {
                Some(sets) => one.with_voters(sets[me.index()].clone()),
                None => one,
            }
        }))
    }
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

impl Named for TokenRing {
    fn maker(nodes: &Command, n: usize) -> Result<Maker<Self>, String> {
        let idle = match nodes.choice("idle", &["circulate", "park"])? {
            "park" => IdleToken::Park,
            _ => {
                let rest = within(nodes, "rest")?.unwrap_or(Within::exactly(Span::ZERO));
                IdleToken::Circulate { rest }
            }
        };
        let repair = match within(nodes, "silence")? {
            Some(silence) => Some(Repair { silence, retry: within(nodes, "retry")? }),
            None => None,
        };
        let flaw = flaw(nodes)?;
        let members = Members::first(n);
        Ok(Arc::new(move |me| TokenRing::new(me, members.clone(), idle, repair).with_flaw(flaw)))
    }
}

fn flaw(command: &Command) -> Result<Option<Flaw>, String> {
    let Some(name) = command.option("flaw") else { return Ok(None) };
    let known = Flaw::ALL.iter().copied().find(|flaw| flaw.name() == name);
    let names = || Flaw::ALL.iter().map(|flaw| flaw.name()).collect::<Vec<_>>().join(", ");
    known.map(Some).ok_or_else(|| format!("there is no flaw {name}; there are {}", names()))
}

impl Named for RicartAgrawala {
    fn maker(nodes: &Command, n: usize) -> Result<Maker<Self>, String> {
        let retry = within(nodes, "retry")?;
        let clocks = match nodes.option("clock") {
            None => vec![0; n],
            Some(list) => list
                .split(',')
                .map(|one| one.parse().map_err(|_| format!("{one} is not a timestamp")))
                .collect::<Result<Vec<u64>, _>>()?,
        };
        if clocks.len() != n {
            return Err(format!("clock= needs {n} numbers"));
        }
        let (members, flaw) = (Members::first(n), flaw(nodes)?);
        let keeps = nodes.choice("permissions", &["returned", "kept"])? == "kept";
        let maker = move |me: ProcessId| {
            let one = RicartAgrawala::new(me, members.clone(), retry).with_clock(clocks[me.index()]);
            let one = if keeps { one.with_kept_permissions() } else { one };
            one.with_flaw(flaw)
        };
        Ok(Arc::new(maker))
    }
}

/// A time option in whole milliseconds.
///
/// # Errors
/// It is not such a time.
pub fn span(command: &Command, name: &str) -> Result<Option<Span>, String> {
    command.option(name).map(|text| millis(text).map(Span::from_millis)).transpose()
}

/// A time, or a range of times such as `150ms..300ms`, in whole milliseconds.
///
/// # Errors
/// It is neither.
pub fn within(command: &Command, name: &str) -> Result<Option<Within>, String> {
    let read = |text: &str| match text.split_once("..") {
        Some((least, most)) => {
            let (least, most) = ends(millis(least)?, millis(most)?, text)?;
            Ok(Within::millis(least, most))
        }
        None => Ok(Within::exactly(Span::from_millis(millis(text)?))),
    };
    command.option(name).map(read).transpose()
}

/// What a protocol knows of time are milliseconds.
fn millis(text: &str) -> Result<u64, String> {
    let us = micros(text)?;
    if us.is_multiple_of(1_000) { Ok(us / 1_000) } else { Err(format!("{text} is no whole number of ms")) }
}

fn one_is_inside<P: Mutex>(world: &World<P>) -> Result<(), String> {
    one_inside_of(world.nodes().iter())
}

/// One is inside, and one has the token of a generation.
pub(crate) fn one_has_the_token(world: &World<TokenRing>) -> Result<(), String> {
    one_is_inside(world).and_then(|()| tokens(world.nodes().iter()))
}

fn mutex<P: Mutex + Named + 'static>(
    command: &Command,
    n: usize,
    check: Check<P>,
    count: Count,
) -> Result<Box<dyn Stage>, String> {
    let mut world: World<P> = world(command, n)?;
    if let Some(hold) = command.option("hold") {
        world.react(leave, delay(hold)?);
    }
    Ok(Box::new(Play::new(world, check, count)))
}

/// A world with the options that all protocols understand, recorded from its start.
///
/// # Errors
/// Says which option is wrong.
pub fn world<P: Named>(command: &Command, n: usize) -> Result<World<P>, String> {
    let seed = command.option("seed").map_or(Ok(1), str::parse);
    let seed = seed.map_err(|_| "the seed is a number".to_string())?;
    let (network, maker) = (network(command, Network::calm())?, P::maker(command, n)?);
    let mut world = World::recorded(seed, n, network, maker, Trace::whole());
    if let Some(after) = command.option("detector") {
        world.detect(delay(after)?);
    }
    Ok(world)
}
