//! How fast the next one acts after a crash of the active one, where a closed connection is a leave (RULES
//! R18).
//!
//! From the instant before `kill -9` to the instant at which the next worker has been told that it acts, both
//! on the clock that all processes share. Reported, not asserted: the figure is the machine's.

use super::worker::{Job, Told, Worker, job};
use super::{percentile_ms, rounds};
use crate::harness::{LONG, Server};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Far longer than a failover may take, so that it is not the lease that ends.
const TTL: Duration = Duration::from_secs(10);

struct Crew {
    dir: TempDir,
    server: Server,
    workers: Vec<Worker>,
    hired: usize,
}

impl Crew {
    fn hire(&mut self) {
        self.hired += 1;
        let name = format!("w{}", self.hired);
        let job = job(self.dir.path(), &self.server.address.to_string(), &name, TTL);
        let mut worker = Worker::start(&Job { release: true, ..job });
        eventually(|| worker.told_since(0).next().map(drop));
        self.workers.push(worker);
    }

    /// Kills the active one, which is the first; how long until the second acts, in microseconds.
    fn fail_over(&mut self) -> u64 {
        let mut first = self.workers.remove(0);
        let old = eventually(|| first.told_since(0).find_map(|told| told.token));
        let killed = first.kill();
        let second = &mut self.workers[0];
        let acts = |told: Told<'_>| Some((told.at, told.token?));
        let (at, token) = eventually(|| second.told_since(killed).find_map(acts));
        assert!(token > old, "{token} after {old}");
        at - killed
    }
}

/// Looks a thousand times a second until there is something to see.
fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "waited in vain");
        sleep(Duration::from_millis(1));
    }
}

#[test]
fn r18_a_crash_is_a_leave_and_the_next_one_acts_long_before_the_lease_ends() {
    let (dir, server) = (tempfile::tempdir().expect("a temporary directory"), Server::start());
    let mut crew = Crew { dir, server, workers: Vec::new(), hired: 0 };
    (0..3).for_each(|_| crew.hire());
    let rounds = rounds(10).min(100);
    let mut times: Vec<u64> = Vec::new();
    for _ in 0..rounds {
        sleep(Duration::from_micros(rand::random_range(0..20_000)));
        times.push(crew.fail_over());
        crew.hire();
    }
    times.sort_unstable();
    println!(
        "{rounds} failovers on disconnect: p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
        percentile_ms(&times, 50),
        percentile_ms(&times, 99),
        percentile_ms(&times, 100),
    );
    let slowest = Duration::from_micros(times[times.len() - 1]);
    assert!(slowest < TTL / 2, "{slowest:?}: it was the lease that ended");
}
