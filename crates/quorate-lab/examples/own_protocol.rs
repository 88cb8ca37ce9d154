//! A protocol of your own as one type: every order of events is searched, and a run is drawn.
//!
//! The rule: only who has the stick is inside; who does not want it passes it on. A link that doubles
//! messages makes two sticks, and the search finds that.
//! Run: `cargo run -p quorate-lab --example own_protocol > run.svg`. You will see the search's answers.

use quorate_core::mutex::{Call, Event, Mutex, Standing};
use quorate_core::protocol::*;
use quorate_lab::{own, spot::Faults};

quorate_core::kinds! {
    enum Mail { Stick = "STICK" }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Circle {
    me: Peer,
    has: bool,
    standing: Standing,
}

impl Protocol for Circle {
    type Call = Call;
    type Message = Mail;
    type Timer = Mail; // It sets none.
    type Record = ();
    type Event = Event;

    fn handle(&mut self, _: Now, input: Input<Self>, out: &mut Outbox<Self>) {
        let request = Request { by: self.me, number: 1 };
        match (input, self.standing) {
            (Input::Start { me, .. }, _) => (self.me, self.has) = (me, me.process == ProcessId(1)),
            (Input::Message { .. }, _) => self.has = true,
            (Input::Call(Call::Enter), Standing::Idle) => {
                self.standing = Standing::Waiting;
                out.emit(Event::Requested { request });
            }
            (Input::Call(Call::Leave), Standing::Inside) => {
                self.standing = Standing::Idle;
                out.emit(Event::Left { request });
            }
            _ => {}
        }
        if self.has && self.standing == Standing::Waiting {
            self.standing = Standing::Inside;
            out.emit(Event::Entered { request, fence: None });
        } else if self.has && self.standing == Standing::Idle {
            self.has = false;
            out.send(Members::first(3).after(self.me.process), Mail::Stick);
        }
    }

    fn waits(&self) -> Vec<Wait> {
        let goal = Goal::Enter(Request { by: self.me, number: 1 });
        let cause = Cause::Token { from: Members::first(3).before(self.me.process) };
        if self.standing == Standing::Waiting { vec![Wait { goal, cause }] } else { Vec::new() }
    }
}

impl Mutex for Circle {
    fn standing(&self) -> Standing {
        self.standing
    }
}

fn main() {
    let circle = |_| Circle { me: Peer::default(), has: false, standing: Standing::Idle };
    for doubles in [0, 1] {
        let faults = Faults { doubles, ..Faults::default() };
        eprintln!("{doubles} messages doubled: {}", own::search(3, circle, faults));
    }
    print!("{}", own::draw(3, circle, &[3, 1], "Who wants to enter waits for the stick"));
}
