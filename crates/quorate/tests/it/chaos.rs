//! Many holders over a network that breaks at random: whoever may act, nobody with a smaller token may act later.

use quorate::testing::{Cable, Service};
use quorate::{Error, JoinOptions, LockGuard, Session, SessionOptions, Token};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

const CLIENTS: usize = 5;
const TTL: Duration = Duration::from_millis(250);
const RUN: Duration = Duration::from_secs(5);

/// Fewer changes of hands would test little.
const LOCK_GRANTS: u32 = 10;
const GROUP_GRANTS: u32 = 3;

/// How much longer a starved machine may take to bring about what the test is about.
const LONGER: Duration = Duration::from_secs(60);

/// Whether the network is still to be broken: for a while, and until so many grants have been seen.
fn goes_on(history: &Mutex<History>, end: Instant, grants: u32) -> bool {
    let now = Instant::now();
    now < end || (now < end + LONGER && history.lock().unwrap().grants <= grants)
}

/// What happened to the resource: who acted, in the order in which they really did.
#[derive(Default)]
struct History {
    greatest: Token,
    grants: u32,
}

/// Acts if it may: between the look at the clock and the deed nothing can come.
fn act(history: &Mutex<History>, token: impl Fn() -> Option<Token>) -> bool {
    let mut history = history.lock().unwrap();
    let Some(token) = token() else { return false };
    assert!(token >= history.greatest, "{token} acted after {}", history.greatest);
    history.grants += u32::from(token > history.greatest);
    history.greatest = token;
    true
}

async fn hold(history: &Mutex<History>, guard: LockGuard, rng: &mut StdRng) {
    // Often longer than a lease, so that a holder which is cut off is there when the next one acts.
    for _ in 0..rng.random_range(1..100) {
        act(history, || guard.token());
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..12))).await;
    }
    if rng.random_bool(0.5) {
        // It may be lost already; then nothing is held either way.
        let _ = guard.release().await;
    }
}

async fn take_turns(session: Session, history: Arc<Mutex<History>>, mut rng: StdRng, end: Instant) {
    let lock = session.lock("orders").unwrap();
    while goes_on(&history, end, LOCK_GRANTS) {
        let limit = Duration::from_millis(rng.random_range(5..400));
        match lock.acquire_timeout(limit).await {
            Ok(guard) => hold(&history, guard, &mut rng).await,
            Err(Error::TimedOut { .. } | Error::WaitLost { .. } | Error::SessionLost { .. }) => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

async fn break_the_network(cables: &[Cable], mut rng: StdRng, goes_on: impl Fn() -> bool) {
    while goes_on() {
        let cable = &cables[rng.random_range(0..cables.len())];
        match rng.random_range(0..6) {
            0 | 1 => cable.cut(),
            2 => cable.freeze(),
            3 => cable.freeze_answers(),
            _ => cable.thaw(),
        }
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..40))).await;
    }
    cables.iter().for_each(Cable::thaw);
}

fn rng(seed: &mut impl Rng) -> StdRng {
    StdRng::seed_from_u64(seed.random())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_smaller_token_never_acts_after_a_greater_one_and_all_is_well_when_the_network_heals() {
    let service = Service::start().await;
    let mut seed = StdRng::seed_from_u64(20);
    let history = Arc::new(Mutex::new(History::default()));
    let end = Instant::now() + RUN;
    let (mut cables, mut sessions, mut turns) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        let cable = service.cable().await;
        let session = cable.client().session(SessionOptions::with_ttl(TTL)).await.unwrap();
        turns.push(tokio::spawn(take_turns(session.clone(), Arc::clone(&history), rng(&mut seed), end)));
        cables.push(cable);
        sessions.push(session);
    }
    break_the_network(&cables, rng(&mut seed), || goes_on(&history, end, LOCK_GRANTS)).await;
    for turn in turns {
        crate::soon(turn).await.unwrap();
    }
    assert!(history.lock().unwrap().grants > LOCK_GRANTS, "the lock went round");
    // Healed: each gets the lock again, and each place that was given up is gone.
    for session in &sessions {
        let acquired = async {
            loop {
                match session.lock("orders").unwrap().acquire().await {
                    Ok(guard) => return guard,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        };
        let guard = crate::soon(acquired).await;
        assert!(act(&history, || guard.token()));
    }
    drop(sessions);
    crate::soon(service.until(|machine| machine.counts() == (0, 0))).await;
}

/// The same for a group: whoever is told to act, acts under a greater token than all before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_a_group_act_one_after_the_other() {
    let service = Service::start().await;
    let mut seed = StdRng::seed_from_u64(21);
    let history = Arc::new(Mutex::new(History::default()));
    let end = Instant::now() + RUN;
    let mut cables = Vec::new();
    let mut members = Vec::new();
    for n in 0..CLIENTS {
        let cable = service.cable().await;
        let session = cable.client().session(SessionOptions::with_ttl(TTL)).await.unwrap();
        let mut group = session.join("workers", JoinOptions::default().name(format!("w{n}"))).await.unwrap();
        let history = Arc::clone(&history);
        members.push(tokio::spawn(async move {
            let mut told: Option<i64> = None;
            while goes_on(&history, end, GROUP_GRANTS) {
                let next = tokio::time::timeout(Duration::from_millis(3), group.next()).await;
                if let Ok(Some(advisory)) = next {
                    assert_eq!(advisory.previous, told, "{advisory:?}");
                    assert!(advisory.token.is_none() || advisory.ordinal == Some(1), "{advisory:?}");
                    told = advisory.ordinal;
                }
                act(&history, || group.token());
            }
            group
        }));
        cables.push(cable);
    }
    break_the_network(&cables, rng(&mut seed), || goes_on(&history, end, GROUP_GRANTS)).await;
    let mut groups = Vec::new();
    for member in members {
        groups.push(crate::soon(member).await.unwrap());
    }
    assert!(history.lock().unwrap().grants > GROUP_GRANTS, "the seat moved");
    let all_back = |machine: &quorate_core::state_machine::StateMachine| {
        machine.group_list(None, 1).first().is_some_and(|group| group.members == CLIENTS as u64)
    };
    crate::soon(service.until(all_back)).await;
}
