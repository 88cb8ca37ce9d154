//! Clients that take locks, join groups and open sessions without a pause, through every crash of the
//! service, and write down what they asked for and what they were answered. They reconnect by themselves; no
//! call of theirs may fail, since the service is back long before their leases end.

use super::history::{Asked, Grant, History, Outcome, Place, now_us};
use super::wire;
use quorate::{Client, Error, Group, JoinOptions, LockGuard, Session, SessionOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Far longer than a restart.
pub(crate) const TTL: Duration = Duration::from_secs(20);

/// How long clients may take to come to rest: no call of theirs waits for more than the others' turns.
const REST_WITHIN: Duration = Duration::from_secs(30);

/// What the clients are to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Run,
    /// Begin nothing new.
    Rest,
    /// Say what you have, for this time.
    Tell(usize),
    /// Give everything up and end.
    End,
}

/// What all clients share.
#[derive(Debug)]
pub(crate) struct Desk {
    /// What happened.
    pub(crate) history: History,
    address: String,
    phase: watch::Sender<Phase>,
    resting: watch::Sender<usize>,
    told: watch::Sender<usize>,
    clients: AtomicUsize,
    /// Calls that turned out to be done although their answer never came.
    pub(crate) unheard: AtomicUsize,
}

/// The clients, while they run.
pub(crate) struct Load {
    /// What they share.
    pub(crate) desk: Arc<Desk>,
    tasks: JoinSet<()>,
}

impl Desk {
    /// Opens a session that is counted.
    async fn open(&self, client: &str) -> Session {
        let invoked = now_us();
        let options = SessionOptions::with_ttl(TTL).label(client);
        let way = Client::builder(self.address.clone()).open_timeout(TTL).build().expect("an address");
        let opened = way.session(options).await;
        self.call(client, Asked::Open, "", invoked, opened.as_ref().map(drop));
        let session = opened.unwrap_or_else(|error| panic!("{client}: {error}"));
        self.history.opened(session.id().expect("it is open").0);
        session
    }

    /// Writes a call down.
    fn call(&self, client: &str, asked: Asked, name: &str, invoked: u64, answer: Result<(), &Error>) {
        let outcome = match answer {
            Ok(()) => Outcome::Done,
            Err(error) if error.outcome() == quorate::Outcome::NotDone => Outcome::NotDone(error.to_string()),
            Err(error) => Outcome::Unknown(error.to_string()),
        };
        self.history.call(client, asked, name, invoked, outcome);
    }

    /// Comes between two steps of a client: it goes on at once, or rests and says what it has when it is
    /// asked. False if it is to end.
    pub(crate) async fn turn(&self, places: impl Fn() -> Vec<Place>) -> bool {
        let mut phase = self.phase.subscribe();
        if *phase.borrow_and_update() == Phase::Run {
            return true;
        }
        self.resting.send_modify(|resting| *resting += 1);
        loop {
            let now = *phase.borrow_and_update();
            match now {
                Phase::Run | Phase::End => {
                    self.resting.send_modify(|resting| *resting -= 1);
                    return now == Phase::Run;
                }
                Phase::Tell(_) => {
                    self.history.rests_with(places());
                    self.told.send_modify(|told| *told += 1);
                }
                Phase::Rest => {}
            }
            phase.changed().await.expect("the desk lives");
        }
    }
}

impl Load {
    /// Starts all clients.
    pub(crate) fn start(address: &str) -> Self {
        let (phase, resting, told) =
            (watch::Sender::new(Phase::Run), watch::Sender::new(0), watch::Sender::new(0));
        let (clients, unheard) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (history, address) = (History::default(), address.to_owned());
        let desk =
            Arc::new(Desk { history, address: address.clone(), phase, resting, told, clients, unheard });
        let mut load = Self { desk, tasks: JoinSet::new() };
        for n in 0..6 {
            load.add(locker(Arc::clone(&load.desk), format!("locker-{n}")));
        }
        for n in 0..3 {
            load.add(member(Arc::clone(&load.desk), format!("solo-{n}"), "solo", 1));
            load.add(member(Arc::clone(&load.desk), format!("pair-{n}"), "pair", 2));
        }
        for n in 0..2 {
            load.add(visitor(Arc::clone(&load.desk), format!("visitor-{n}")));
            load.add(holder(Arc::clone(&load.desk), format!("holder-{n}")));
        }
        for n in 0..wire::CLIENTS {
            load.add(wire::client(Arc::clone(&load.desk), address.clone(), format!("wire-{n}")));
        }
        load
    }

    fn add(&mut self, client: impl Future<Output = ()> + Send + 'static) {
        self.desk.clients.fetch_add(1, Ordering::Relaxed);
        self.tasks.spawn(client);
    }

    async fn all(&mut self, count: &watch::Sender<usize>) {
        let (clients, mut count) = (self.desk.clients.load(Ordering::Relaxed), count.subscribe());
        tokio::select! {
            reached = tokio::time::timeout(REST_WITHIN, count.wait_for(|count| *count == clients)) => {
                let count = *self.desk.resting.borrow();
                reached.unwrap_or_else(|_| panic!("{count} of {clients} rest")).expect("the desk lives");
            }
            Some(ended) = self.tasks.join_next() => {
                ended.expect("no client panics");
                panic!("a client ended too early");
            }
        }
    }

    /// Lets all clients come to rest.
    pub(crate) async fn rest(&mut self) {
        let desk = Arc::clone(&self.desk);
        desk.phase.send_replace(Phase::Rest);
        self.all(&desk.resting).await;
    }

    /// Asks all that rest what they have.
    pub(crate) async fn tell(&mut self, time: usize) {
        let desk = Arc::clone(&self.desk);
        desk.history.forget_places();
        desk.told.send_replace(0);
        desk.phase.send_replace(Phase::Tell(time));
        self.all(&desk.told).await;
    }

    /// Lets all go on.
    pub(crate) fn go_on(&self) {
        self.desk.phase.send_replace(Phase::Run);
    }

    /// Waits until so many more calls were answered.
    pub(crate) async fn answered(&mut self, more: usize) {
        let until = self.desk.history.len() + more;
        let deadline = tokio::time::Instant::now() + REST_WITHIN;
        while self.desk.history.len() < until {
            assert!(tokio::time::Instant::now() < deadline, "the clients do not go on");
            if let Some(ended) = self.tasks.try_join_next() {
                ended.expect("no client panics");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Lets all give up what they have and end.
    pub(crate) async fn end(&mut self) {
        self.desk.phase.send_replace(Phase::End);
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                ended.expect("no client panics");
            }
        };
        tokio::time::timeout(REST_WITHIN, all).await.expect("all clients end");
    }
}

/// Looks at a token some times while it is held, and writes the grant down.
struct Watched<'a> {
    desk: &'a Desk,
    grant: Grant,
}

impl<'a> Watched<'a> {
    fn lock(desk: &'a Desk, client: &str, invoked: u64, guard: &LockGuard) -> Self {
        let exclusive = Some(guard.name().to_string());
        let (entry, held_from) = (guard.grant().0, now_us());
        let Some(token) = guard.token() else { panic!("{client}: a lock was granted on a dead lease") };
        let (client, token, held_to) = (client.to_owned(), token.0, held_from);
        Self { desk, grant: Grant { client, exclusive, entry, token, invoked, held_from, held_to } }
    }

    fn look(&mut self, token: Option<quorate::Token>) {
        let before = now_us();
        match token {
            Some(token) if token.0 == self.grant.token => self.grant.held_to = before,
            other => self.desk.history.fault(format!("{} turned into {other:?}", self.grant)),
        }
    }

    fn over(self) {
        self.desk.history.granted(self.grant);
    }
}

/// A random short while.
pub(crate) async fn a_while(max_us: u64) {
    match rand::random_range(0..=max_us) {
        us if us < max_us / 4 => tokio::task::yield_now().await,
        us => tokio::time::sleep(Duration::from_micros(us)).await,
    }
}

/// Takes one of three locks again and again, in each of the three ways.
async fn locker(desk: Arc<Desk>, name: String) {
    let session = desk.open(&name).await;
    while desk.turn(Vec::new).await {
        let lock = ["red", "green", "blue"][rand::random_range(0..3)];
        if let Some((guard, invoked)) = take(&desk, &session, &name, lock).await {
            let mut watched = Watched::lock(&desk, &name, invoked, &guard);
            for _ in 0..rand::random_range(1..4) {
                watched.look(guard.token());
                a_while(1_500).await;
            }
            watched.look(guard.token());
            watched.over();
            let invoked = now_us();
            let released = guard.release().await;
            desk.call(&name, Asked::Release, lock, invoked, released.as_ref().map(drop));
        }
    }
    end(&desk, &session, &name).await;
}

async fn take(desk: &Desk, session: &Session, client: &str, name: &str) -> Option<(LockGuard, u64)> {
    let lock = session.lock(name).expect("a name").named(client);
    let invoked = now_us();
    let (asked, taken) = match rand::random_range(0..10) {
        0 => (Asked::TryAcquire, lock.try_acquire().await),
        1..4 => {
            let limit = Duration::from_micros(rand::random_range(200..6_000));
            (Asked::TimedAcquire, lock.acquire_timeout(limit).await)
        }
        _ => (Asked::Acquire, lock.acquire().await),
    };
    desk.call(client, asked, name, invoked, taken.as_ref().map(drop));
    match taken {
        Ok(guard) => {
            desk.history.entered(guard.grant().0);
            Some((guard, invoked))
        }
        Err(Error::TimedOut { .. }) => {
            desk.history.gave_up();
            None
        }
        Err(Error::Busy { .. }) => None,
        Err(error) => {
            desk.history.fault(format!("{client}: {error}"));
            None
        }
    }
}

async fn end(desk: &Desk, session: &Session, client: &str) {
    let invoked = now_us();
    let ended = session.end().await;
    desk.call(client, Asked::End, "", invoked, ended.as_ref().map(drop));
}

/// The place of a member, as it knows it.
fn place_of(group: &Group) -> Vec<Place> {
    let (entry, session) = (group.entry().expect("it is in").0, group.session().id().expect("it is open").0);
    let (name, token) = (group.name().to_string(), group.token().map(|token| token.0));
    vec![Place { entry, session, name, token }]
}

/// Joins a group and leaves it again and again; it may rest in it.
async fn member(desk: Arc<Desk>, name: String, group: &'static str, seats: u32) {
    let session = desk.open(&name).await;
    while desk.turn(Vec::new).await {
        let invoked = now_us();
        let joined = session.join(group, JoinOptions::default().name(&name).seats(seats)).await;
        desk.call(&name, Asked::Join, group, invoked, joined.as_ref().map(drop));
        let joined = match joined {
            Ok(joined) => joined,
            Err(error) => {
                desk.history.fault(format!("{name}: {error}"));
                continue;
            }
        };
        let entry = joined.entry().expect("it is in").0;
        desk.history.entered(entry);
        let mut watched: Option<Watched<'_>> = None;
        for _ in 0..rand::random_range(1..12) {
            match (&mut watched, joined.token()) {
                (None, Some(token)) => {
                    let (client, held_from) = (name.clone(), now_us());
                    let exclusive = (seats == 1).then(|| group.to_owned());
                    let (token, held_to) = (token.0, held_from);
                    let grant = Grant { client, exclusive, entry, token, invoked, held_from, held_to };
                    watched = Some(Watched { desk: &desk, grant });
                }
                (Some(watched), token) => watched.look(token),
                (None, None) => {}
            }
            a_while(1_500).await;
            if !desk.turn(|| place_of(&joined)).await {
                break;
            }
        }
        if let Some(watched) = watched {
            watched.over();
        }
        let invoked = now_us();
        let left = joined.leave().await;
        desk.call(&name, Asked::Leave, group, invoked, left.as_ref().map(drop));
    }
    end(&desk, &session, &name).await;
}

/// Opens a session, takes a lock in it, and ends the session with it.
async fn visitor(desk: Arc<Desk>, name: String) {
    while desk.turn(Vec::new).await {
        let session = desk.open(&name).await;
        let invoked = now_us();
        let guard = session.lock("visits").expect("a name").named(&name).acquire().await;
        desk.call(&name, Asked::Acquire, "visits", invoked, guard.as_ref().map(drop));
        match &guard {
            Ok(guard) => {
                desk.history.entered(guard.grant().0);
                let mut watched = Watched::lock(&desk, &name, invoked, guard);
                a_while(2_000).await;
                watched.look(guard.token());
                watched.over();
            }
            Err(error) => desk.history.fault(format!("{name}: {error}")),
        }
        end(&desk, &session, &name).await;
    }
}

/// Holds one lock from the beginning to the end: its token never changes, whatever happens to the service.
async fn holder(desk: Arc<Desk>, name: String) {
    let session = desk.open(&name).await;
    let invoked = now_us();
    let guard = session.lock(name.clone()).expect("a name").acquire().await.expect("nobody else wants it");
    desk.history.entered(guard.grant().0);
    let mut watched = Watched::lock(&desk, &name, invoked, &guard);
    let place = || {
        let (entry, session) = (guard.grant().0, session.id().expect("it is open").0);
        vec![Place { entry, session, name: name.clone(), token: guard.token().map(|token| token.0) }]
    };
    while desk.turn(place).await {
        watched.look(guard.token());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    watched.look(guard.token());
    watched.over();
    end(&desk, &session, &name).await;
}
