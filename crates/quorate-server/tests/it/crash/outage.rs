//! The service is away for longer than every lease, dies twice within one, or is itself paused: holders stop
//! by their own clocks, places in the queue survive, and nobody acts beside another (RULES R3-R6, R8, R25).
//!
//! The members are real processes that write down what they are told and at which instants they believe that
//! they act, on the clock that all processes share.

use super::service::{Home, Life, eventually};
use crate::rounds::worker::{Job, Said, Told, Worker, assert_one_at_a_time, beliefs, job, now_us};
use quorate::{Client, proto};
use rustix::process::Signal;
use std::ops::Range;
use std::thread::sleep;
use std::time::Duration;
use tempfile::TempDir;

const TTL: Duration = Duration::from_millis(1_000);

/// How late a process of a busy machine may be at writing down what it was told.
const LATE: Duration = Duration::from_millis(250);

/// No wait of these tests lasts that long unless it fails.
const LONG: Duration = Duration::from_secs(20);

fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("a short time")
}

/// When a member stops by its own clock at the latest, if its last keepalive was sent at an instant (RULES
/// R1).
fn own_deadline(sent: u64, ttl: Duration) -> u64 {
    sent + us(ttl) * 99 / 100
}

/// How long the service keeps a lease at least.
fn kept_for(ttl: Duration) -> u64 {
    us(ttl) * 101 / 100
}

/// A service and the members of its groups.
struct Crew {
    dir: TempDir,
    home: Home,
    ttl: Duration,
    workers: Vec<Worker>,
}

impl Crew {
    /// A service that lives, with so many members of the group "workers", in order.
    fn of(members: usize, ttl: Duration) -> (Self, Life) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let home = Home::at(&dir.path().join("data"), &["--ttl-floor", "200ms"]);
        let mut crew = Self { dir, home, ttl, workers: Vec::new() };
        let life = crew.home.live();
        (0..members).for_each(|_| crew.hire("workers"));
        (crew, life)
    }

    /// Starts a member and waits until it is in.
    fn hire(&mut self, group: &str) {
        let name = format!("w{}", self.workers.len() + 1);
        let job = job(self.dir.path(), &self.home.address.to_string(), &name, self.ttl);
        let mut worker = Worker::start(&Job { group: group.into(), ..job });
        eventually("it is in", LONG, || worker.told_since(0).next().map(drop));
        self.workers.push(worker);
    }

    /// Waits until a worker is told something.
    fn told<T>(&mut self, at: usize, since: u64, what: &str, is_it: impl Fn(Told<'_>) -> Option<T>) -> T {
        let worker = &mut self.workers[at];
        let what = format!("{} is told {what}", worker.name);
        eventually(&what, LONG, || worker.told_since(since).find_map(&is_it))
    }

    /// Waits until a worker is told its token.
    fn acts_since(&mut self, at: usize, since: u64) -> (u64, u64) {
        self.told(at, since, "that it acts", |told| Some((told.at, told.token?)))
    }

    /// The queue as the service has it: names and tokens.
    fn queue(&self, group: &str) -> Vec<(String, Option<u64>)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let name = group.to_owned();
        let explained = runtime.expect("a runtime starts").block_on(async {
            let client = Client::connect(self.home.address.to_string()).expect("an address");
            let request = proto::ExplainRequest { name, ..proto::ExplainRequest::default() };
            client.operator().explain(request).await.expect("it serves").into_inner()
        });
        let token = |member: &proto::Member| Some(member.place?.seat?.token);
        explained.members.iter().map(|member| (member.name.clone(), token(member))).collect()
    }

    /// Only the names.
    fn order(&self) -> Vec<String> {
        self.queue("workers").into_iter().map(|(name, _)| name).collect()
    }

    /// Every member has been told that it is cut off, in time, since an instant at which the service had
    /// fallen silent; and none has acted under its old token after its own deadline.
    fn assert_cut_off(&mut self, silent_since: u64) {
        let deadline = own_deadline(silent_since, self.ttl);
        for at in 0..self.workers.len() {
            let is_it = |told: Told<'_>| (told.event == "disconnected").then_some((told.at, told.ordinal));
            let (told_at, ordinal) = self.told(at, silent_since, "that it is cut off", is_it);
            assert_eq!(ordinal, Some(-1));
            let late = told_at.saturating_sub(deadline);
            assert!(late <= us(LATE), "w{} was told {late} us after its deadline", at + 1);
        }
        self.assert_nobody_acted(deadline, now_us());
    }

    /// Nobody believed that it acts at any instant between two.
    fn assert_nobody_acted(&mut self, from: u64, to: u64) {
        for worker in &mut self.workers {
            worker.listen();
            let acted = worker.said.iter().find(|said| match said {
                Said::Acts { before, after, .. } => *before > from && *after < to,
                _ => false,
            });
            assert_eq!(acted, None, "{} acts between {from} and {to}", worker.name);
        }
    }

    /// What the members of one group believed, from the beginning to now, holds the invariant.
    fn assert_one_at_a_time(&mut self, members: Range<usize>) -> usize {
        let members = &mut self.workers[members];
        for worker in members.iter_mut() {
            worker.listen();
        }
        let beliefs = beliefs(&*members);
        assert_one_at_a_time(&beliefs);
        beliefs.len()
    }
}

#[test]
fn r8_r25_after_an_absence_longer_than_every_lease_the_queue_is_the_old_one() {
    let (mut crew, life) = Crew::of(4, TTL);
    let (_, old) = crew.acts_since(0, 0);
    let order = crew.order();
    life.kill();
    let silent_since = now_us();
    crew.assert_cut_off(silent_since);
    // The first two are stopped, so that the others come back before them.
    let front = [0, 1].map(|at| crew.workers[at].signal(Signal::STOP));
    sleep(2 * TTL - Duration::from_micros(now_us() - silent_since));

    let back_since = now_us();
    let life = crew.home.live();
    for at in [2, 3] {
        let is_back = |told: Told<'_>| (told.event == "reconnected").then_some(told.ordinal);
        assert_eq!(crew.told(at, back_since, "that it is back", is_back), Some(at as i64 + 1));
    }
    assert_eq!(crew.order(), order, "the order does not depend on who reconnects first");
    assert!(now_us() - back_since < us(TTL), "the reign still waits for the others");
    crew.assert_nobody_acted(front[0], now_us());
    for at in [1, 0] {
        crew.workers[at].signal(Signal::CONT);
    }
    let (_, new) = crew.acts_since(0, back_since);
    assert!(new > old, "it acts again only under a new token: {new} after {old}");
    assert_eq!(crew.order(), order);
    let queue = crew.queue("workers");
    assert_eq!(queue.iter().map(|(_, token)| *token).collect::<Vec<_>>(), [Some(new), None, None, None]);
    crew.assert_one_at_a_time(0..4);
    life.kill();
}

#[test]
fn r5_a_reign_gives_nobodys_seat_away_before_it_has_lasted_a_lease() {
    let (mut crew, life) = Crew::of(3, TTL);
    let (_, old) = crew.acts_since(0, 0);
    life.kill();
    crew.assert_cut_off(now_us());
    crew.workers[0].signal(Signal::STOP);
    sleep(TTL);

    let back_since = now_us();
    let life = crew.home.live();
    let (at, token) = crew.acts_since(1, back_since);
    let waited = at - back_since;
    assert!(waited >= kept_for(TTL), "the seat moved {waited} us after the start of the service");
    assert!(waited <= kept_for(TTL) + us(LONG / 4), "the seat moved only after {waited} us");
    assert!(token > old);
    crew.workers[0].signal(Signal::CONT);
    let tail = |told: Told<'_>| (told.event == "reconnected").then_some(told.ordinal);
    assert_eq!(crew.told(0, back_since, "that it is back", tail), Some(3), "it takes the tail");
    assert_eq!(crew.order(), ["w2", "w3", "w1"]);
    crew.assert_one_at_a_time(0..3);
    life.kill();
}

#[test]
fn r5_reigns_shorter_than_a_lease_take_no_living_holders_seat_and_keep_no_dead_ones() {
    let ttl = Duration::from_secs(2);
    let (mut crew, life) = Crew::of(2, ttl);
    crew.hire("graves");
    crew.hire("graves");
    let (_, living) = crew.acts_since(0, 0);
    let (_, dead) = crew.acts_since(2, 0);
    crew.workers[2].kill();
    life.kill();

    // Each life is a reign; none lasts as long as a lease.
    let killed = now_us();
    let mut lived = 0;
    let (mut reigns, mut moved) = (0, None);
    while moved.is_none() {
        reigns += 1;
        assert!(reigns < 12, "the dead one keeps its seat: no reign is long enough");
        let born = now_us();
        let life = crew.home.live();
        let until = now_us() + us(ttl) * 35 / 100;
        while moved.is_none() && now_us() < until {
            sleep(Duration::from_millis(1));
            moved = crew.workers[3].told_since(killed).find_map(|told| Some((told.at, told.token?)));
        }
        lived += moved.map_or_else(now_us, |(at, _)| at) - born;
        life.kill();
    }
    let life = crew.home.live();
    let (_, token) = moved.expect("it moved");
    println!("the seat of a dead holder moved in reign {reigns}, after {} ms of them", lived / 1_000);
    assert!(token > dead);
    assert!(reigns > 1, "one reign was not long enough");
    assert!(lived >= kept_for(ttl), "too soon: the reigns had lasted {lived} us together");
    assert_eq!(crew.queue("workers")[0], ("w1".into(), Some(living)), "the living one has its seat");
    assert_eq!(crew.queue("workers").len(), 2);
    assert_eq!(crew.assert_one_at_a_time(0..2), 1, "one token from the beginning to the end");
    assert_eq!(crew.assert_one_at_a_time(2..4), 2, "the dead one's and the next one's");
    life.kill();
}

#[test]
fn r3_r6_a_service_that_was_paused_past_every_lease_confirms_nothing_and_seats_one() {
    let (mut crew, life) = Crew::of(4, TTL);
    let (_, old) = crew.acts_since(0, 0);
    let order = crew.order();
    life.signal(Signal::STOP);
    let silent_since = now_us();
    crew.assert_cut_off(silent_since);
    sleep((2 * TTL).saturating_sub(Duration::from_micros(now_us() - silent_since)));
    let back_since = now_us();
    crew.assert_nobody_acted(own_deadline(silent_since, TTL), back_since);
    life.signal(Signal::CONT);
    let (acts, token) = eventually("somebody acts", LONG, || {
        let acts =
            |worker: &mut Worker| worker.told_since(back_since).find_map(|told| Some((told.at, told.token?)));
        crew.workers.iter_mut().find_map(acts)
    });
    println!("after a pause of {:?} somebody acts within {} ms", 2 * TTL, (acts - back_since) / 1_000);
    assert!(token > old, "{token} after {old}");
    for at in 0..4 {
        crew.told(at, back_since, "that it is back", |told| told.ordinal.filter(|ordinal| *ordinal > 0));
    }
    assert_eq!(crew.order(), order, "places survive an absence of the service (RULES R8)");
    crew.assert_one_at_a_time(0..4);
    life.kill();
}

#[test]
fn r8_a_service_that_was_paused_within_the_lease_costs_nobody_anything() {
    let ttl = Duration::from_secs(2);
    let (mut crew, life) = Crew::of(2, ttl);
    let (_, token) = crew.acts_since(0, 0);
    for _ in 0..3 {
        life.signal(Signal::STOP);
        sleep(ttl * 2 / 5);
        life.signal(Signal::CONT);
        sleep(ttl * 2 / 5);
    }
    let queue = crew.queue("workers");
    assert_eq!(queue, [("w1".into(), Some(token)), ("w2".into(), None)]);
    assert_eq!(crew.assert_one_at_a_time(0..2), 1, "one token from the beginning to the end");
    life.kill();
}
