//! The service is killed, paused and starved of its disk, under load, again and again. Whatever was answered
//! is there, nothing was done twice, nobody acts beside another, and a lease outlives the service's absence
//! (RULES R3-R6, R8, R21, R25, R28; properties L1, L7, L8, L10).
//!
//! Half of the deaths are by `kill -9` at a random instant, the other half at the one instant that cannot be
//! hit from outside: after a transaction is durable and before anybody is answered (`log/crash.rs`).
//!
//! `QUORATE_ROUNDS` says how often.

mod full_disk;
mod history;
mod load;
mod outage;
mod service;
mod wire;

use crate::rounds::rounds;
use history::{Place, now_us};
use load::Load;
use quorate::{Client, JoinOptions, SessionOptions, proto};
use service::Home;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often without a variable: some seconds.
const ROUNDS: usize = 16;

/// How long client and service may take to agree once all rest: what was given up is on its way.
const AGREE_WITHIN: Duration = Duration::from_secs(20);

/// A service under load.
struct Siege {
    home: Home,
    runtime: tokio::runtime::Runtime,
    load: Load,
    /// Deaths right after a transaction.
    at_the_seam: usize,
    /// When it died.
    deaths: Vec<u64>,
    /// How often the clients were asked what they have.
    times: usize,
}

impl Siege {
    /// What is there, as the service tells it.
    async fn places(&self) -> BTreeSet<Place> {
        let client = Client::connect(self.home.address.to_string()).expect("an address");
        let request = proto::ListSessionsRequest { after: 0, max: 10_000, only: None };
        let sessions =
            client.operator().list_sessions(request).await.expect("it serves").into_inner().sessions;
        let places = sessions.into_iter().flat_map(|session| {
            let of = session.session;
            session.places.into_iter().map(move |place| Place {
                entry: place.entry,
                session: of,
                name: place.group,
                token: place.seat.map(|seat| seat.token),
            })
        });
        places.collect()
    }

    /// Lets everybody rest, and holds what the clients have against what the service says they have.
    fn agree(&mut self) {
        let handle = self.runtime.handle().clone();
        handle.block_on(async {
            self.load.rest().await;
            let deadline = Instant::now() + AGREE_WITHIN;
            loop {
                self.times += 1;
                self.load.tell(self.times).await;
                let (ours, theirs) = (self.load.desk.history.places(), self.places().await);
                if ours == theirs {
                    return;
                }
                let gone: Vec<_> = ours.difference(&theirs).collect();
                let more: Vec<_> = theirs.difference(&ours).collect();
                assert!(Instant::now() < deadline, "lost {gone:#?}, left over {more:#?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        self.load.desk.history.check();
        self.load.go_on();
    }

    fn end(&mut self) {
        let handle = self.runtime.handle().clone();
        handle.block_on(self.load.end());
    }

    fn answered(&mut self, more: usize) {
        let handle = self.runtime.handle().clone();
        handle.block_on(self.load.answered(more));
    }

    /// One life and its death.
    fn live_and_die(&mut self, round: usize) {
        match round % 8 {
            1 | 5 => {
                let life = self.home.live();
                self.answered(50);
                self.agree();
                sleep(Duration::from_micros(rand::random_range(0..300_000)));
                life.kill();
            }
            3 => {
                let life = self.home.live();
                sleep(Duration::from_micros(rand::random_range(0..300_000)));
                life.kill();
            }
            7 => {
                // So early that it may not even have read its log.
                let life = self.home.begin(None);
                sleep(Duration::from_micros(rand::random_range(0..150_000)));
                life.kill();
            }
            _ => {
                self.home.begin(Some(rand::random_range(10..400))).crashed();
                self.at_the_seam += 1;
            }
        }
        self.deaths.push(now_us());
    }

    /// Counts what the service has given out, by taking the next of each kind.
    fn assert_counts(&mut self) {
        let (sessions, entries) = self.load.desk.history.given_out();
        let address = self.home.address.to_string();
        self.runtime.block_on(async {
            let client = Client::connect(address).expect("an address");
            let session = client.session(SessionOptions::default()).await.expect("it serves");
            let group = session.join("the last", JoinOptions::default()).await.expect("it serves");
            let next = (session.id().map(|id| id.0), group.entry().map(|entry| entry.0));
            assert_eq!(next, (Some(sessions + 1), Some(entries + 1)), "each was given out once");
        });
    }

    fn report(&self, took: Duration) {
        let history = &self.load.desk.history;
        let across: usize = self.deaths.iter().map(|death| history.across(*death)).sum();
        println!(
            "{} deaths in {took:.1?}, {} of them between durable and answered; {}; {across} calls were asked \
             in one life and answered in a later one, {} of {} calls by number were found done although \
             their answer was lost",
            self.deaths.len(),
            self.at_the_seam,
            history.summary(),
            self.load.desk.unheard.load(Ordering::Relaxed),
            history.by("wire-"),
        );
    }
}

#[test]
fn r21_a_killed_service_forgets_nothing_and_does_nothing_twice() {
    let (dir, began) = (tempfile::tempdir().expect("a temporary directory"), Instant::now());
    let home = Home::at(&dir.path().join("data"), &["--ttl-floor", "200ms"]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime starts");
    let load = {
        let _inside = runtime.enter();
        Load::start(&home.address.to_string())
    };
    let rounds = rounds(ROUNDS);
    let mut siege = Siege { home, runtime, load, at_the_seam: 0, deaths: Vec::new(), times: 0 };
    for round in 0..rounds {
        siege.live_and_die(round);
    }
    let life = siege.home.live();
    siege.answered(100);
    siege.agree();
    siege.end();
    siege.assert_counts();
    siege.load.desk.history.check();
    siege.report(began.elapsed());
    assert!(siege.at_the_seam * 5 >= rounds, "{} deaths at the seam", siege.at_the_seam);
    let unheard = siege.load.desk.unheard.load(Ordering::Relaxed);
    assert!(
        unheard * 8 >= siege.at_the_seam,
        "only {unheard} answers were lost: the seam is beside the point"
    );
    life.kill();
}
