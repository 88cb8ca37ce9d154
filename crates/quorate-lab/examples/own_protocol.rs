//! A protocol of your own as one type: run it, search all that can happen, draw what you saw.
//!
//! The rule: only who has the stick is inside; who does not want it passes it on. A link that doubles
//! messages makes two sticks, and the search finds that.
//! Run: `cargo run -p quorate-lab --example own_protocol > run.svg`. You will see the search's answers.

use quorate_core::mutex::{Call, Event, Mutex, Standing};
use quorate_core::protocol::{
    Cause, Goal, Input, Kind, Members, Now, Outbox, Peer, ProcessId, Protocol, Request, Wait,
};
use quorate_lab::network::{Delay, Network, Order};
use quorate_lab::spot::{Faults, Rules, Timing};
use quorate_lab::{check, diagram, explore::Explorer, story::Story, trace::Trace, world::World};
use std::{fmt, sync::Arc};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Stick;
impl Kind for Stick {
    const KINDS: &'static [&'static str] = &["STICK"];
    fn kind(&self) -> u8 {
        0
    }
}
impl fmt::Display for Stick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("STICK")
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Circle {
    me: Peer,
    has: bool,
    wants: Option<Request>,
    is_inside: bool,
}

fn next(me: Peer) -> ProcessId {
    Members::first(3).after(me.process)
}

impl Protocol for Circle {
    type Call = Call;
    type Message = Stick;
    type Timer = Stick; // It sets none.
    type Record = ();
    type Event = Event;

    fn handle(&mut self, _: Now, input: Input<Self>, out: &mut Outbox<Self>) {
        match (input, self.wants) {
            (Input::Start { me, .. }, _) => (self.me, self.has) = (me, me.process == ProcessId(1)),
            (Input::Call(Call::Enter), None) => {
                let request = Request { by: self.me, number: 1 };
                self.wants = Some(request);
                out.emit(Event::Requested { request });
            }
            (Input::Call(Call::Leave), Some(request)) if self.is_inside => {
                (self.wants, self.is_inside) = (None, false);
                out.emit(Event::Left { request });
            }
            (Input::Message { .. }, _) => self.has = true,
            _ => {}
        }
        match self.wants {
            Some(request) if self.has && !self.is_inside => {
                self.is_inside = true;
                out.emit(Event::Entered { request, fence: None });
            }
            None if std::mem::take(&mut self.has) => out.send(next(self.me), Stick),
            _ => {}
        }
    }

    fn waits(&self) -> Vec<Wait> {
        let missing = Cause::Token { from: next(Peer { process: next(self.me), ..self.me }) };
        let waits = self.wants.filter(|_| !self.is_inside);
        waits.map(|request| Wait { goal: Goal::Enter(request), cause: missing }).into_iter().collect()
    }
}

impl Mutex for Circle {
    fn standing(&self) -> Standing {
        match (self.wants, self.is_inside) {
            (None, _) => Standing::Idle,
            (Some(_), false) => Standing::Waiting,
            (Some(_), true) => Standing::Inside,
        }
    }
}

fn main() {
    for doubles in [0, 1] {
        let rules = Rules {
            maker: Arc::new(|_| Circle::default()),
            n: 3,
            order: Order::Fifo,
            faults: Faults { doubles, ..Faults::default() },
            timing: Timing::Any,
            detector: false,
            calls: check::entries::<Circle, 1>,
        };
        let (invariant, rest) = (check::one_inside, check::nobody_waits);
        let found = Explorer { rules, invariant, rest, states_max: 1_000_000 }.run();
        let why = found.counter_example.map_or("holds".to_owned(), |counter| counter.why);
        eprintln!("{doubles} messages doubled: {} states, {why}", found.unique);
    }
    let mut world = World::new(1, 3, Network::calm(), Arc::new(|_| Circle::default()));
    world.record(Trace::whole());
    world.react(|event| matches!(event, Event::Entered { .. }).then_some(Call::Leave), Delay::Fixed(3_000));
    world.call(ProcessId(3), Call::Enter);
    world.call(ProcessId(1), Call::Enter);
    world.run_until(12_000, 100);
    let story = Story::of(&world, "A stick goes round", "Who wants to enter waits for the stick.");
    print!("{}", diagram::space_time(&story));
}
