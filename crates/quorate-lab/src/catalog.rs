//! The protocols by name, with the options of `nodes` that each understands.
//!
//! | protocol | options |
//! |---|---|
//! | `central` | `lease=4s`, `durable=yes`; n1 is the coordinator |
//! | `ricart-agrawala` | `retry=100ms`, `clock=2,2,4` (Lamport clocks at the start) |
//!
//! All understand `seed=1`, `order=fifo`, `delay=1ms` or `delay=1ms..5ms`, `loss=` and `double=` (of a
//! thousand), `disk=0ms`, `detector=50ms` (everybody is told of crashes and starts that long after) and,
//! for mutual exclusion, `hold=5ms` (who enters leaves by itself after so long).

use crate::check::one_inside_of;
use crate::count;
use crate::network::{Delay, Network};
use crate::play::{Play, Stage, delay, micros, network};
use crate::script::Command;
use crate::world::{Maker, World};
use quorate_core::mutex::{Call, Central, Event, Mutex, RicartAgrawala};
use quorate_core::protocol::{Members, ProcessId, Within};
use quorate_core::time::Span;
use std::sync::Arc;

/// The names, for lists and completions.
pub const PROTOCOLS: &[&str] = &["central", "ricart-agrawala"];

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
        other => Err(format!("there is no protocol {other}; there are {}", PROTOCOLS.join(", "))),
    }
}

fn central(command: &Command) -> Result<Maker<Central>, String> {
    let lease = span(command, "lease")?;
    let durable = command.option("durable") == Some("yes");
    Ok(Arc::new(move |me| Central::new(me, ProcessId(1), lease, durable)))
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
    let members = Members::first(n);
    let maker =
        move |me: ProcessId| RicartAgrawala::new(me, members.clone(), retry).with_clock(clocks[me.index()]);
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
