//! What must hold: one inside at most, every wait has a true cause, and nobody waits at rest.

use crate::node::{Node, Power};
use crate::spot::{Action, Flying, Parcel, Rules, Spot};
use quorate_core::mutex::{Call, Mutex, Standing, TokenRing};
use quorate_core::protocol::{Cause, Goal, Kind, Outbox, ProcessId, Protocol, Request, Wait};

/// At most one process is inside. A paused one is inside as long as it believes so; a crashed one is not.
pub fn one_inside<P: Mutex>(spot: &Spot<P>) -> Result<(), String> {
    one_inside_of(spot.nodes())
}

/// The same, of the processes of any world.
pub fn one_inside_of<'a, P: Mutex + 'a>(nodes: impl Iterator<Item = &'a Node<P>>) -> Result<(), String> {
    let mut inside = nodes.filter(|node| is_inside(node));
    match (inside.next(), inside.next()) {
        (Some(one), Some(other)) => Err(format!("{} and {} are both inside", one.peer, other.peer)),
        _ => Ok(()),
    }
}

fn is_inside<P: Mutex>(node: &Node<P>) -> bool {
    node.power != Power::Down && node.machine.standing() == Standing::Inside
}

/// At most one token in a generation, wherever it is, and who is inside has one.
pub fn tokens<'a>(nodes: impl Iterator<Item = &'a Node<TokenRing>>) -> Result<(), String> {
    let mut tokens = Vec::new();
    for node in nodes.filter(|node| node.power != Power::Down) {
        match node.machine.token() {
            Some(token) => tokens.push((token.generation, node.peer)),
            None if node.machine.standing() == Standing::Inside => {
                return Err(format!("{} is inside without the token", node.peer));
            }
            None => {}
        }
    }
    tokens.sort_unstable();
    match tokens.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some([(generation, one), (_, other)]) => {
            Err(format!("{one} and {other} both have the token of generation {generation}"))
        }
        _ => Ok(()),
    }
}

/// At most one token in a generation, as [`tokens`].
pub fn one_token(spot: &Spot<TokenRing>) -> Result<(), String> {
    tokens(spot.nodes())
}

/// At most one is inside, and [`tokens`].
pub fn one_token_and_one_inside(spot: &Spot<TokenRing>) -> Result<(), String> {
    one_inside(spot).and_then(|()| one_token(spot))
}

/// At rest nobody waits.
pub fn nobody_waits<P: Mutex>(spot: &Spot<P>) -> Result<(), String> {
    let waiting = spot.nodes().find(|node| is_waiting(node));
    waiting.map_or(Ok(()), |node| Err(format!("nothing goes on, and {}", said(node))))
}

/// At rest nobody waits, unless something was lost, crashed or stopped before.
pub fn nobody_waits_unharmed<P: Mutex>(spot: &Spot<P>) -> Result<(), String> {
    if spot.harmed() { Ok(()) } else { nobody_waits(spot) }
}

fn is_waiting<P: Mutex>(node: &Node<P>) -> bool {
    node.power == Power::Up && node.machine.standing() == Standing::Waiting
}

fn said<P: Protocol>(node: &Node<P>) -> String {
    match node.machine.waits().first() {
        Some(wait) => wait.to_string(),
        None => format!("{} does not say why", node.peer),
    }
}

/// A process enters `entries` times, and leaves each time.
pub fn entries<P: Mutex, const ENTRIES: u32>(machine: &P, made: u32) -> Option<Call> {
    match machine.standing() {
        Standing::Idle if made < 2 * ENTRIES => Some(Call::Enter),
        Standing::Inside => Some(Call::Leave),
        _ => None,
    }
}

/// Every process that waits says why, and everything that any process says is true: what it names is there,
/// and once that is taken away, the wait has changed.
pub fn true_waits<P: Mutex>(rules: &Rules<P>, spot: &Spot<P>) -> Result<(), String> {
    for node in spot.nodes().filter(|node| node.power == Power::Up) {
        let waits = node.machine.waits();
        let explained = waits.iter().any(|wait| matches!(wait.goal, Goal::Enter(_)));
        if is_waiting(node) != explained {
            return Err(format!("{} is {}, and says {waits:?}", node.peer, node.machine.standing()));
        }
        for wait in &waits {
            true_wait(rules, spot, node.peer.process, wait)
                .map_err(|why| format!("{} says that {wait}, but {why}", node.peer))?;
        }
    }
    Ok(())
}

fn true_wait<P: Mutex>(rules: &Rules<P>, spot: &Spot<P>, at: ProcessId, wait: &Wait) -> Result<(), String> {
    let (Goal::Enter(request) | Goal::Answer { request, .. }) = &wait.goal else { return Ok(()) };
    match &wait.cause {
        Cause::Message { kind, from, .. } => message_missing(rules, spot, at, wait, (*request, kind, *from)),
        Cause::Held { by } => request_stands(spot, *by).and_then(|()| {
            let node = spot.node(by.by.process);
            let own = by.by == spot.node(at).peer;
            match own && is_inside(node) {
                true => changes(rules, spot, at, wait, &Action::Call(at, Call::Leave)),
                false => Ok(()),
            }
        }),
        Cause::Earlier { request } => request_stands(spot, *request),
        Cause::Disk => match spot.node(at).writing.is_empty() {
            true => Err("its disk has nothing to write".into()),
            false => changes(rules, spot, at, wait, &Action::Persist(at)),
        },
        Cause::Timer { name } => match spot.node(at).timers.iter().any(|t| t.timer.name() == *name) {
            true => Ok(()),
            false => Err("no such timer runs".into()),
        },
        Cause::Majority { have, need } if have >= need => Err("that is enough".into()),
        Cause::Majority { .. } | Cause::Token { .. } | Cause::Voted { .. } => Ok(()),
    }
}

/// The message is under way, or what asks for it is, or the one that would send it says why it does not; or
/// the one that would send it, or something on the way, was lost.
fn message_missing<P: Mutex>(
    rules: &Rules<P>,
    spot: &Spot<P>,
    at: ProcessId,
    wait: &Wait,
    (request, kind, from): (Request, &str, ProcessId),
) -> Result<(), String> {
    let answer = |f: &Flying<P::Message>| match &f.parcel {
        Parcel::Mail(message) => message.name() == kind && message.about() == Some(request),
        _ => false,
    };
    let asks = |f: &Flying<P::Message>| match &f.parcel {
        Parcel::Mail(message) => message.about() == Some(request),
        _ => false,
    };
    if spot.flights().iter().any(|f| f.from.process == at && f.to.process == from && asks(f)) {
        return Ok(());
    }
    // An answer to what was asked before it was asked again changes nothing; one of those under way does.
    let coming = spot.flights().iter().enumerate();
    let coming = coming.filter(|(_, f)| f.from.process == from && f.to.process == at && answer(f));
    let mut nothing_changes = None;
    for (place, _) in coming {
        match changes_after(rules, spot, at, wait, place) {
            Ok(()) => return Ok(()),
            Err(why) => nothing_changes = Some(why),
        }
    }
    let other = spot.node(from);
    let owes = |owed: &Wait| matches!(&owed.goal, Goal::Answer { kind: k, request: r } if *k == kind && *r == request);
    if other.power != Power::Up || other.machine.waits().iter().any(owes) || spot.harmed() {
        return Ok(());
    }
    Err(nothing_changes.unwrap_or_else(|| format!("neither is it under way nor does {from} hold it back")))
}

/// A request is not over: its process waits or is inside, or mail about it is under way; or its life is over.
fn request_stands<P: Mutex>(spot: &Spot<P>, request: Request) -> Result<(), String> {
    let node = spot.node(request.by.process);
    let about = |f: &Flying<P::Message>| match &f.parcel {
        Parcel::Mail(message) => message.about() == Some(request),
        _ => false,
    };
    let alive = node.peer == request.by && node.machine.standing() != Standing::Idle;
    if alive || node.peer != request.by || node.power == Power::Down || spot.harmed() {
        return Ok(());
    }
    match spot.flights().iter().any(about) {
        true => Ok(()),
        false => Err(format!("{request} is over")),
    }
}

/// Once this has happened, the process does not say the same any more.
fn changes<P: Mutex>(
    rules: &Rules<P>,
    spot: &Spot<P>,
    at: ProcessId,
    wait: &Wait,
    action: &Action<P>,
) -> Result<(), String> {
    let mut without = spot.clone();
    without.apply(rules, action, None, &mut Outbox::default());
    match without.node(at).machine.waits().contains(wait) {
        true => Err(format!("without it ({action:?}) it says the same")),
        false => Ok(()),
    }
}

/// As [`changes`], for mail: what is before it on its link arrives first.
fn changes_after<P: Mutex>(
    rules: &Rules<P>,
    spot: &Spot<P>,
    at: ProcessId,
    wait: &Wait,
    place: usize,
) -> Result<(), String> {
    let mut without = spot.clone();
    let mut place = place;
    while without.flights()[place].place > 0 {
        let wanted = &without.flights()[place];
        let first = without
            .flights()
            .iter()
            .position(|f| f.place == 0 && f.from == wanted.from && f.to.process == wanted.to.process);
        let Some(first) = first else { break };
        without.apply(rules, &Action::Deliver(first), None, &mut Outbox::default());
        place -= usize::from(first < place);
    }
    changes(rules, &without, at, wait, &Action::Deliver(place))
}
