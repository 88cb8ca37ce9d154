//! The node, its log engine and its connections in virtual time: the code that serves, with clients that
//! pause, hang up, lapse and come back, and a server that loses its power.
//!
//! What is checked at every instant: at most one member is active inside its own deadline (what RULES
//! call the claim), tokens grow, and a run with the same seed is the same run. `QUORATE_SEEDS` sets how
//! many seeds are run (default 6).

use crate::disk::{Dice, FaultyDisk};
use futures::StreamExt;
use openraft::AsyncRuntime;
use openraft_rt_sim::{SimInstant, SimRuntime};
use quorate::service::drive;
use quorate::wire::Malformed;
use quorate_core::frame::{Bye, ClientFrame, ServerFrame};
use quorate_core::id::*;
use quorate_core::lease;
use quorate_core::state_machine::*;
use quorate_core::time::{Span, Wall};
use quorate_server::log::{Alone, Driver, Engine, Options, Store};
use quorate_server::node::Node;
use quorate_server::node::disk::Space;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

pub(crate) const TTL: Span = Span::from_millis(400);
const FLOOR: Span = Span::from_millis(100);
const CLIENTS: u64 = 4;

pub(crate) type Sim = Node<SimRuntime>;

/// What all clients and the checker share.
#[derive(Default)]
struct World {
    server: Mutex<Option<Sim>>,
    /// Who may act, under which token, and until when by its own clock.
    acting: Mutex<BTreeMap<u64, (Token, SimInstant)>>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    history: Vec<String>,
    /// The greatest token under which somebody acted, and who.
    greatest: (Token, u64),
    takeovers: u64,
    lapses: u64,
    restarts: u64,
}

pub(crate) fn now() -> SimInstant {
    <SimInstant as openraft::Instant>::now()
}

impl World {
    fn note(&self, line: String) {
        let at = now().elapsed_since_start().as_millis();
        self.seen.lock().unwrap().history.push(format!("{at:>6} {line}"));
    }

    /// A member learns that it may act: nobody else may, by any member's own clock.
    fn acts(&self, who: u64, token: Token, until: SimInstant) {
        let mut acting = self.acting.lock().unwrap();
        let now = now();
        for (other, (held, their_end)) in acting.iter().filter(|(other, _)| **other != who) {
            assert!(
                *their_end <= now || until <= now,
                "two act: client {other} under token {held} and client {who} under token {token}"
            );
        }
        let known = acting.insert(who, (token, until)).map(|(token, _)| token);
        if known != Some(token) && until > now {
            let mut seen = self.seen.lock().unwrap();
            let greatest = seen.greatest;
            assert!(
                (token, who) == greatest || token > greatest.0,
                "token {token} of {who} after {greatest:?}"
            );
            seen.takeovers += u64::from(who != greatest.1);
            seen.greatest = (token, who);
        }
    }

    fn stops(&self, who: u64) {
        self.acting.lock().unwrap().remove(&who);
    }
}

/// One client: a session that it takes from connection to connection.
struct Client {
    who: u64,
    world: Arc<World>,
    dice: Dice,
    session: Option<SessionId>,
    secret: Secret,
    deadline: SimInstant,
    requests: u64,
    /// The join that was asked for and not answered yet, asked again under the same number.
    asked: Option<RequestId>,
    entry: Option<EntryId>,
    version: Version,
    token: Option<Token>,
}

struct Line {
    to: mpsc::UnboundedSender<Result<ClientFrame, Malformed>>,
    from: mpsc::Receiver<ServerFrame>,
}

impl Client {
    fn new(who: u64, seed: u64, world: Arc<World>) -> Self {
        let mut dice = Dice(seed.wrapping_mul(31).wrapping_add(who));
        let secret = Secret(u128::from(dice.roll()));
        let deadline = now();
        Self {
            who,
            world,
            dice,
            session: None,
            secret,
            deadline,
            requests: 0,
            asked: None,
            entry: None,
            version: Version(0),
            token: None,
        }
    }

    fn connect(&self) -> Option<Line> {
        let server = self.world.server.lock().unwrap().clone()?;
        let (to, inbound) = mpsc::unbounded_channel();
        let (outbound, from) = mpsc::channel(32);
        let inbound = UnboundedReceiverStream::new(inbound).boxed();
        drop(SimRuntime::spawn(drive(server.authority(), inbound, outbound, || false)));
        Some(Line { to, from })
    }

    async fn live(mut self, until: SimInstant) {
        while now() < until {
            let Some(mut line) = self.connect() else {
                SimRuntime::sleep(Duration::from_millis(20)).await;
                continue;
            };
            self.speak(&mut line, until).await;
            if self.dice.below(3) == 0 {
                self.pause(3 * TTL.as_millis()).await;
            }
        }
        self.world.stops(self.who);
    }

    /// A pause of the process: no clock is read, nothing is sent, and it wakes up believing.
    async fn pause(&mut self, up_to_ms: u64) {
        let ms = self.dice.below(up_to_ms);
        SimRuntime::sleep(Duration::from_millis(ms)).await;
        if now() >= self.deadline && self.token.is_some() {
            self.world.seen.lock().unwrap().lapses += 1;
        }
    }

    async fn speak(&mut self, line: &mut Line, until: SimInstant) {
        let hello = match self.session {
            Some(session) => {
                ClientFrame::Attach { session, secret: self.secret, lapsed: now() >= self.deadline }
            }
            None => ClientFrame::Open {
                secret: self.secret,
                ttl: TTL,
                on_disconnect: OnDisconnect::Hold,
                label: format!("client {}", self.who),
            },
        };
        let sent = now();
        let mut beats = BTreeMap::from([(0, sent)]);
        let _ = line.to.send(Ok(hello));
        let mut seq = 0;
        while now() < until {
            let next = lease::beat(TTL).to_std();
            match SimRuntime::timeout(next, line.from.recv()).await {
                Ok(None) => return,
                Ok(Some(frame)) => {
                    if !self.hear(frame, &beats, line) {
                        return;
                    }
                }
                Err(_) => {
                    seq += 1;
                    beats.insert(seq, now());
                    let _ = line.to.send(Ok(ClientFrame::KeepAlive { seq }));
                    match self.dice.below(12) {
                        0 => return,
                        1 => self.pause(2 * TTL.as_millis()).await,
                        2 => self.leave(line),
                        _ => {}
                    }
                }
            }
        }
    }

    fn call(&mut self, line: &Line, request: RequestId, op: Op) {
        let acknowledged = RequestId(request.0 - 1);
        let _ = line.to.send(Ok(ClientFrame::Call { request, acknowledged, op }));
    }

    fn next_request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    fn leave(&mut self, line: &Line) {
        if let (Some(entry), None) = (self.entry.take(), self.asked) {
            // It stops before it says so (RULES R11).
            self.token = None;
            self.world.stops(self.who);
            let request = self.next_request();
            self.call(line, request, Op::Release { entry });
            self.join(line);
        }
    }

    fn join(&mut self, line: &Line) {
        let request = match self.asked {
            Some(request) => request,
            None => self.next_request(),
        };
        self.asked = Some(request);
        let join = Join {
            group: Name::new("workers").unwrap(),
            face: Face::Group,
            kind: MemberKind::Full,
            mode: Mode::Exclusive,
            wait: true,
            name: format!("client {}", self.who),
            metadata: BTreeMap::new(),
            weight: 100,
            policy: PolicyWish::default(),
        };
        self.call(line, request, Op::Join(join));
    }

    /// Takes a frame in; false ends the connection.
    fn hear(&mut self, frame: ServerFrame, beats: &BTreeMap<u64, SimInstant>, line: &Line) -> bool {
        let act_for = lease::act_for(TTL).to_std();
        match frame {
            ServerFrame::Opened(opened) => {
                self.session = Some(opened.session);
                self.deadline = beats[&0] + act_for;
                self.entry = None;
                self.token = None;
                self.world.stops(self.who);
                match opened.totals.into_iter().next() {
                    Some(total) => {
                        self.asked = None;
                        self.place(total.entry, total.version, total.place);
                    }
                    None => self.join(line),
                }
            }
            ServerFrame::Alive { seq, .. } => {
                self.deadline = self.deadline.max(beats[&seq] + act_for);
                self.act();
            }
            ServerFrame::Reply { reply: Reply::Joined(total), .. } => {
                self.asked = None;
                self.place(total.entry, total.version, total.place);
            }
            ServerFrame::Change(change) => {
                let mine = change.changed.iter().find(|c| Some(c.entry) == self.entry);
                if let Some(place) = mine.and_then(|c| c.after) {
                    self.place(mine.unwrap().entry, change.version, place);
                }
            }
            ServerFrame::Ended { .. } | ServerFrame::Bye(Bye::Refused(_)) => {
                self.forget();
                return false;
            }
            ServerFrame::Bye(_) => return false,
            _ => {}
        }
        true
    }

    fn place(&mut self, entry: EntryId, version: Version, place: Place) {
        if self.entry == Some(entry) && version < self.version {
            return;
        }
        self.entry = Some(entry);
        self.version = version;
        self.token = place.seat.map(|seat| seat.token);
        let line = format!("client {} is {} {:?}", self.who, place.role, place.ordinal.map(|o| o.0));
        self.world.note(line);
        self.act();
    }

    fn act(&mut self) {
        if let Some(token) = self.token {
            self.world.acts(self.who, token, self.deadline);
        }
    }

    /// The session is gone: a new one, at the tail.
    fn forget(&mut self) {
        self.world.stops(self.who);
        self.session = None;
        self.entry = None;
        self.token = None;
        self.asked = None;
        self.requests = 0;
        self.secret = Secret(u128::from(self.dice.roll()));
    }
}

pub(crate) async fn start(disk: &FaultyDisk) -> Sim {
    let store = Store::with_backends(disk.clone(), disk.entries(), Driver::Inline).unwrap();
    let options = Options { compact_every: 200, ..Options::lone() };
    let (engine, feed) = Engine::<SimRuntime>::start(store, Arc::new(Alone), options).await.unwrap();
    let node = Node::on(engine, feed, Space::unlimited(), || Wall(0));
    node.rise(Some(FLOOR)).await.unwrap();
    node
}

/// Cuts the power now and then, and starts the server again on what the disk has kept.
async fn power(world: Arc<World>, mut disk: FaultyDisk, mut dice: Dice, until: SimInstant) -> FaultyDisk {
    while now() < until {
        let server = start(&disk).await;
        *world.server.lock().unwrap() = Some(server.clone());
        SimRuntime::sleep(Duration::from_millis(500 + dice.below(3_000))).await;
        *world.server.lock().unwrap() = None;
        disk = disk.crash(dice.roll());
        server.shutdown().await;
        world.note("the server lost its power".into());
        world.seen.lock().unwrap().restarts += 1;
        SimRuntime::sleep(Duration::from_millis(dice.below(2 * TTL.as_millis()))).await;
    }
    disk
}

fn run(seed: u64, seconds: u64) -> Seen {
    let mut runtime = SimRuntime::with_seed(seed);
    runtime.block_on(async move {
        let world = Arc::new(World::default());
        let until = now() + Duration::from_secs(seconds);
        let clients: Vec<_> = (1..=CLIENTS)
            .map(|who| SimRuntime::spawn(Client::new(who, seed, Arc::clone(&world)).live(until)))
            .collect();
        power(Arc::clone(&world), FaultyDisk::default(), Dice(seed), until).await;
        for client in clients {
            client.await.unwrap();
        }
        std::mem::take(&mut *world.seen.lock().unwrap())
    })
}

pub(crate) fn seeds() -> u64 {
    std::env::var("QUORATE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

#[test]
fn one_acts_whatever_pauses_lapses_and_crashes_come() {
    let (mut takeovers, mut lapses, mut restarts) = (0, 0, 0);
    for seed in 1..=seeds() {
        let seen = run(seed, 30);
        takeovers += seen.takeovers;
        lapses += seen.lapses;
        restarts += seen.restarts;
    }
    println!("{} seeds: {takeovers} takeovers, {lapses} lapses, {restarts} restarts", seeds());
    assert!(takeovers > 10 * seeds(), "{takeovers} takeovers test little");
    assert!(lapses > seeds(), "{lapses} lapses test little");
    assert!(restarts > 5 * seeds(), "{restarts} restarts test little");
}

#[test]
fn the_same_seed_is_the_same_run() {
    assert_eq!(run(42, 10), run(42, 10));
    assert_ne!(run(42, 10).history, run(43, 10).history);
}
