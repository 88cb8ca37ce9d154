//! The lease keeper: the rules of time, with a clock that the test holds in its hand.

use crate::log::{Log, TTL};
use quorate_core::id::{Reign, Secret, SessionId, TaskId};
use quorate_core::lease::{LeaseKeeper, RHO_PERCENT, Renewal, act_for, beat, kept_for};
use quorate_core::state_machine::*;
use quorate_core::time::{Mono, Span};

/// A log with the keeper of its leases beside it.
struct Reigning {
    log: Log,
    keeper: LeaseKeeper,
    now: Mono,
}

impl Reigning {
    fn new() -> Self {
        let mut me = Self { log: Log::founded(), keeper: LeaseKeeper::new(), now: Mono(0) };
        me.take_over();
        me
    }

    /// A new leader, or the same after a restart: its memory is empty.
    fn take_over(&mut self) {
        self.keeper = LeaseKeeper::new();
        let reign = self.log.begin();
        let sessions = self.log.machine.session_list(None, usize::MAX);
        self.keeper.begin(self.now, reign, &sessions, &self.log.machine.tasks());
    }

    fn apply(&mut self, command: Command) -> Reply {
        let applied = self.log.apply(command);
        for event in &applied.events {
            self.keeper.observe(self.now, event);
        }
        applied.reply
    }

    fn open(&mut self, secret: u128) -> SessionId {
        let on_disconnect = OnDisconnect::Hold;
        let open = Command::Open { secret: Secret(secret), ttl: TTL, on_disconnect, label: String::new() };
        match self.apply(open) {
            Reply::Opened(opened) => opened.session,
            other => panic!("{other:?}"),
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now + Span::from_millis(ms);
    }

    /// A keepalive arrives and takes its whole way; true if it is confirmed.
    fn keepalive(&mut self, session: SessionId) -> bool {
        let arrived = self.now;
        match self.keeper.arrived(session) {
            Renewal::Silence => false,
            Renewal::Round => {
                let reign = self.keeper.reign().unwrap();
                self.keeper.confirm(session, arrived, reign)
            }
            Renewal::Mark { reign } => {
                self.apply(Command::Mark { reign, sessions: vec![session] });
                self.keeper.confirm(session, arrived, reign)
            }
        }
    }

    /// Applies what is due; the sessions that ended.
    fn expire(&mut self) -> usize {
        let before = self.log.machine.counts().0;
        for command in self.keeper.due(self.now) {
            self.apply(command);
        }
        before - self.log.machine.counts().0
    }
}

#[test]
fn r1_the_client_stops_before_the_service_gives_away() {
    for ms in [100, 333, 2_000, 9_999, 600_000] {
        let ttl = Span::from_millis(ms);
        // The slowest client clock against the fastest of the service, in real time.
        let client = act_for(ttl).as_millis() as f64 / (1.0 - RHO_PERCENT as f64 / 100.0);
        let service = kept_for(ttl).as_millis() as f64 / (1.0 + RHO_PERCENT as f64 / 100.0);
        assert!(client <= service, "a lease of {ttl}: {client} against {service}");
        assert!(beat(ttl).as_millis() * 4 <= ms, "four beats in {ttl}");
    }
}

#[test]
fn r3_a_renewal_is_not_confirmed_once_its_end_was_proposed() {
    let mut r = Reigning::new();
    let session = r.open(1);
    r.pass(2_021);
    let proposed = r.keeper.due(r.now);
    assert_eq!(proposed.len(), 1);
    assert!(!r.keepalive(session), "it waits for the outcome");
    let reign = r.keeper.reign().unwrap();
    assert!(!r.keeper.confirm(session, r.now, reign), "also the one that was on its way");
    for command in proposed {
        r.apply(command);
    }
    assert!(r.log.machine.session_view(session).is_none());
}

#[test]
fn r3_an_attach_that_came_first_saves_the_session() {
    let mut r = Reigning::new();
    let session = r.open(1);
    r.pass(2_021);
    let proposed = r.keeper.due(r.now);
    r.apply(Command::Attach { session, secret: Secret(1), lapsed: true });
    for command in proposed {
        assert_eq!(r.apply(command), Reply::Refused(Refusal::NotDue));
    }
    assert!(r.keepalive(session), "it lives on");
}

#[test]
fn r4_without_a_reign_nothing_is_confirmed_and_nothing_ends() {
    let mut r = Reigning::new();
    let session = r.open(1);
    r.keeper = LeaseKeeper::new();
    assert!(!r.keepalive(session));
    r.pass(1_000_000);
    assert_eq!(r.expire(), 0);
}

#[test]
fn r5_a_new_reign_waits_out_what_the_old_one_may_have_confirmed() {
    let mut r = Reigning::new();
    let session = r.open(1);
    r.take_over();
    r.pass(1_900);
    assert!(r.keepalive(session), "confirmed by the old leader, in its memory only");
    r.pass(50);
    r.take_over();
    r.pass(1_980);
    assert_eq!(r.expire(), 0, "the client may still act until 1.98 s after that keepalive");
    r.pass(41);
    assert_eq!(r.expire(), 1);
}

#[test]
fn r5_the_first_renewal_in_a_reign_is_logged_before_it_is_confirmed() {
    let mut r = Reigning::new();
    let session = r.open(1);
    r.take_over();
    assert!(matches!(r.keeper.arrived(session), Renewal::Mark { .. }));
    let reign = r.keeper.reign().unwrap();
    assert!(!r.keeper.confirm(session, r.now, reign), "a quorum round alone is not enough");
    assert!(r.keepalive(session));
    assert_eq!(r.keeper.arrived(session), Renewal::Round, "the next needs a round only");
}

#[test]
fn r5_leases_end_although_no_reign_lasts_as_long_as_one() {
    let mut r = Reigning::new();
    r.open(1);
    let mut reigns = 0;
    while r.log.machine.counts().0 > 0 {
        r.take_over();
        r.pass(300);
        if let Some(checkpoint) = r.keeper.checkpoint(r.now) {
            r.apply(checkpoint);
        }
        r.expire();
        reigns += 1;
        assert!(reigns < 10, "a reign of 0.3 s each, and a lease of 2 s never ends");
    }
    assert!(reigns >= 7, "nor does it end too soon: {reigns} reigns");
}

#[test]
fn r5_a_renewal_between_short_reigns_counts_in_full() {
    let mut r = Reigning::new();
    let session = r.open(1);
    r.take_over();
    r.pass(1_500);
    let checkpoint = r.keeper.checkpoint(r.now).unwrap();
    r.apply(checkpoint);
    assert!(r.keepalive(session));
    r.take_over();
    r.pass(1_990);
    assert_eq!(r.expire(), 0, "the remainder that was counted before the renewal is void");
}

#[test]
fn r6_a_confirmation_counts_from_the_arrival_and_only_in_its_reign() {
    let mut r = Reigning::new();
    let session = r.open(1);
    let arrived = r.now;
    let old = r.keeper.reign().unwrap();
    r.pass(1_000);
    assert!(r.keeper.confirm(session, arrived, old), "a slow round");
    r.pass(1_021);
    assert_eq!(r.expire(), 1, "the lease was counted from the arrival");
    let other = r.open(2);
    r.take_over();
    r.keepalive(other);
    assert!(!r.keeper.confirm(other, r.now, old), "a round of another reign confirms nothing");
    assert_ne!(old, Reign(0));
}

#[test]
fn r11_a_session_that_is_being_closed_is_not_renewed() {
    let mut r = Reigning::new();
    let session = r.open(1);
    let op = ToolOp::CloseSession { session, why: "maintenance".into() };
    r.apply(Command::Tool { client: quorate_core::id::ClientId(1), op });
    r.pass(500);
    assert!(!r.keepalive(session));
    r.pass(1_521);
    assert_eq!(r.expire(), 1, "its lease runs out");
}

#[test]
fn an_end_that_came_to_nothing_is_due_again() {
    let mut r = Reigning::new();
    let session = r.open(1);
    r.pass(2_021);
    assert_eq!(r.keeper.due(r.now).len(), 1);
    assert_eq!(r.keeper.due(r.now).len(), 0, "proposed once");
    let (generation, ..) = r.log.machine.session_view(session).unwrap().lease;
    let timer = Timer::Lease { session, generation };
    r.keeper.again(r.now + Span::from_millis(20), timer);
    assert_eq!(r.keeper.due(r.now).len(), 0);
    r.pass(20);
    assert_eq!(r.keeper.due(r.now).len(), 1);
}

#[test]
fn r8_time_in_which_the_service_was_paused_counts_against_nobody() {
    let mut reigning = Reigning::new();
    let dead = reigning.open(1);
    reigning.pass(TTL.as_millis() / 2);
    let living = reigning.open(2);
    // Paused: the clock goes on, nothing is heard.
    let away = Span::from_millis(TTL.as_millis() * 3);
    reigning.pass(away.as_millis());
    reigning.keeper.absent(away);
    assert_eq!(reigning.expire(), 0, "both have as much left as before");
    assert!(reigning.keepalive(living));
    reigning.pass(TTL.as_millis() / 2 + TTL.as_millis() / 100 + 1);
    assert_eq!(reigning.expire(), 1, "the other half of the dead one's lease has passed");
    assert!(reigning.log.machine.session_view(dead).is_none());
    assert!(reigning.log.machine.session_view(living).is_some());
}

#[test]
fn r8_a_proposed_end_stays_proposed_over_a_pause() {
    let mut reigning = Reigning::new();
    reigning.open(1);
    reigning.pass(TTL.as_millis() * 2);
    let due = reigning.keeper.due(reigning.now);
    assert_eq!(due.len(), 1);
    reigning.keeper.absent(TTL);
    reigning.pass(TTL.as_millis() * 2);
    assert!(reigning.keeper.due(reigning.now).is_empty(), "it was proposed already");
}

#[test]
fn r8_a_task_waits_a_pause_out() {
    let mut reigning = Reigning::new();
    let arm = Event::Arm { task: TaskId(1), after: TTL };
    reigning.keeper.observe(reigning.now, &arm);
    reigning.pass(TTL.as_millis() * 2);
    reigning.keeper.absent(Span::from_millis(TTL.as_millis() * 2));
    assert!(reigning.keeper.due(reigning.now).is_empty(), "it has as long to wait as before");
    reigning.pass(TTL.as_millis());
    assert_eq!(reigning.keeper.due(reigning.now).len(), 1);
}
