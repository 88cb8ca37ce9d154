//! Another explorer, over another world, counts the same states: `stateright` drives the processes through
//! plain lists of mail, without any code of the lab's own search.

use quorate_core::mutex::{Call, Mutex, RicartAgrawala, Standing};
use quorate_core::protocol::{
    Effect, Incarnation, Input, Members, Now, Outbox, Peer, ProcessId, Protocol, To,
};
use quorate_lab::check::{entries, nobody_waits, one_inside};
use quorate_lab::explore::Explorer;
use quorate_lab::network::Order;
use quorate_lab::spot::{Faults, Rules, Timing};
use stateright::{Checker, Model, Property};
use std::sync::Arc;

type Mail = (Peer, To, <RicartAgrawala as Protocol>::Message);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Plain {
    machines: Vec<RicartAgrawala>,
    /// Sorted, so that the order of sending makes no difference.
    mail: Vec<Mail>,
    made: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq)]
enum Happens {
    Call(usize, Call),
    Arrives(Mail),
}

struct Bag {
    n: usize,
    entries: fn(&RicartAgrawala, u32) -> Option<Call>,
}

fn peer(index: usize) -> Peer {
    Peer { process: ProcessId::at(index), incarnation: Incarnation(1) }
}

impl Plain {
    fn input(&mut self, index: usize, input: Input<RicartAgrawala>) {
        let mut out = Outbox::default();
        out.begin(0);
        self.machines[index].handle(Now::default(), input, &mut out);
        let sent = out.drain().filter_map(|effect| match effect {
            Effect::Send { to, message, .. } => Some((peer(index), to, message)),
            _ => None,
        });
        self.mail.extend(sent);
        self.mail.sort();
    }
}

impl Model for Bag {
    type State = Plain;
    type Action = Happens;

    fn init_states(&self) -> Vec<Plain> {
        let members = Members::first(self.n);
        let machine = |index| RicartAgrawala::new(ProcessId::at(index), members.clone(), None);
        let machines = (0..self.n).map(machine).collect();
        let mut plain = Plain { machines, mail: Vec::new(), made: vec![0; self.n] };
        (0..self.n).for_each(|index| plain.input(index, Input::Start { me: peer(index), record: None }));
        vec![plain]
    }

    fn actions(&self, state: &Plain, actions: &mut Vec<Happens>) {
        for (index, machine) in state.machines.iter().enumerate() {
            let call = (self.entries)(machine, state.made[index]);
            actions.extend(call.map(|call| Happens::Call(index, call)));
        }
        let mut mail = state.mail.clone();
        mail.dedup();
        actions.extend(mail.into_iter().map(Happens::Arrives));
    }

    fn next_state(&self, state: &Plain, action: Happens) -> Option<Plain> {
        let mut next = state.clone();
        match action {
            Happens::Call(index, call) => {
                next.made[index] += 1;
                next.input(index, Input::Call(call));
            }
            Happens::Arrives(mail) => {
                let at = next.mail.iter().position(|other| *other == mail)?;
                let (from, to, message) = next.mail.remove(at);
                next.input(to.process.index(), Input::Message { from, message });
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("one inside", |_, state: &Plain| {
            let inside = state.machines.iter().filter(|machine| machine.standing() == Standing::Inside);
            inside.count() <= 1
        })]
    }
}

fn counts<const ENTRIES: u32>(n: usize) -> (u64, u64) {
    let members = Members::first(n);
    let rules = Rules {
        maker: Arc::new(move |me| RicartAgrawala::new(me, members.clone(), None)),
        n,
        order: Order::Unordered,
        faults: Faults::default(),
        timing: Timing::Any,
        detector: false,
        calls: entries::<RicartAgrawala, ENTRIES>,
    };
    let explorer = Explorer { rules, invariant: one_inside, rest: nobody_waits, states_max: u64::MAX };
    let found = explorer.run();
    assert!(found.counter_example.is_none() && found.complete);
    let other = Bag { n, entries: entries::<RicartAgrawala, ENTRIES> }.checker().spawn_bfs().join();
    other.assert_properties();
    assert_eq!(found.unique, other.unique_state_count() as u64, "unique states");
    assert_eq!(found.generated, other.state_count() as u64, "generated states");
    (found.unique, found.generated)
}

#[test]
fn two_explorers_count_the_same_states() {
    assert!(counts::<3>(2).0 > 100);
    assert_eq!(counts::<1>(3), (2_820, 9_003));
    assert_eq!(counts::<2>(3), (36_883, 124_318));
}
