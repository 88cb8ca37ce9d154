//! Every face of the queue as a user runs it: shared locks, seats, offices, barriers, and seats that are asked for.

use crate::harness::{LONG, Ran, Server, run, wait};
use quorate::testing::Cable;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A shell function: waits for a file.
const WAIT_FOR: &str = "wait_for() { until [ -e \"$1\" ]; do sleep 0.01; done; }";

/// A command that writes down that it runs, and when it is told to end says so and tidies up for 0.6 s: longer than
/// the grace of a lease of 2 s.
const TIDIES: &str =
    "trap 'sleep 0.6; echo tidy > tidy; exit 0' TERM; echo $$ > runs; while :; do sleep 0.01; done";

struct Place {
    server: Server,
    dir: TempDir,
}

/// A running `quorate`, whose lines are read as they come. It does not outlive its test.
struct Running {
    child: Child,
    lines: Receiver<String>,
    stderr: Option<JoinHandle<String>>,
    what: String,
}

impl Place {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(options: &[&str]) -> Self {
        Self { server: Server::with(options), dir: tempfile::tempdir().expect("a temporary directory") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default().trim().to_owned()
    }

    fn write(&self, name: &str) {
        fs::write(self.path(name), "").expect("it can be written");
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.server.quorate();
        command.args(arguments).current_dir(self.dir.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        run(&mut self.command(arguments))
    }

    fn start(&self, arguments: &[&str]) -> Running {
        Running::spawn(&mut self.command(arguments), &arguments.join(" "))
    }

    /// Starts a command with a shell script at its end.
    fn start_script(&self, arguments: &[&str], script: &str) -> Running {
        let script = format!("{WAIT_FOR}; {script}");
        self.start(&[arguments, &["--", "sh", "-c", &script]].concat())
    }

    fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        self.server.until(what, |_| is_so());
    }

    fn explained(&self, name: &str) -> Value {
        self.server.json(&["group", "show", name]).remove(0)
    }

    fn until_waiting(&self, name: &str, waiting: usize) {
        self.until("they wait", || {
            self.explained(name)["waiters"].as_array().is_some_and(|all| all.len() == waiting)
        });
    }

    fn until_written(&self, name: &str) -> String {
        self.until(name, || !self.read(name).is_empty());
        self.read(name)
    }
}

impl Running {
    fn spawn(command: &mut Command, what: &str) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let (told, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| told.send(line)));
        let mut said = child.stderr.take().expect("it is piped");
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            said.read_to_string(&mut text).map(|_| text).unwrap_or_default()
        });
        Self { child, lines, stderr: Some(stderr), what: what.into() }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(LONG).unwrap_or_else(|_| panic!("{} says no more", self.what))
    }

    fn json(&self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// The next line that has this in it.
    fn line_with(&self, part: &str) -> String {
        loop {
            let line = self.line();
            if line.contains(part) {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits for its end: the exit code, and all that it said on standard error.
    fn ended(&mut self) -> (Option<i32>, String) {
        let status = wait(&mut self.child);
        let said = self.stderr.take().map(|reader| reader.join().expect("the reader ends"));
        (status.code(), said.unwrap_or_default())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn last_line(said: &str) -> &str {
    said.lines().last().unwrap_or_default()
}

#[test]
fn those_that_share_a_lock_run_together_under_one_token_and_a_writer_alone() {
    let place = Place::new();
    let reads = |name: &str| {
        let script = format!("echo $QUORATE_TOKEN > {name}; wait_for go");
        place.start_script(&["lock", "--shared", "prices"], &script)
    };
    let (mut one, mut two) = (reads("one"), reads("two"));
    let (first, second) = (place.until_written("one"), place.until_written("two"));
    assert_eq!(first, second, "those that read together have one token");
    let refused = place.run(&["lock", "--try", "prices", "--", "true"]);
    assert_eq!(refused.code, Some(73), "{refused:?}");
    let mut writes = place.start_script(&["lock", "prices"], "echo $QUORATE_TOKEN > written");
    place.until_waiting("prices", 1);
    let refused = place.run(&["lock", "--shared", "--try", "prices", "--", "true"]);
    assert_eq!(refused.code, Some(73), "no reader overtakes a writer that waits: {refused:?}");
    place.write("go");
    assert_eq!([one.ended().0, two.ended().0, writes.ended().0], [Some(0); 3]);
    let token = |text: &str| text.parse::<u64>().expect("a token");
    assert!(token(&place.read("written")) > token(&first));
    let both = place.run(&["lock", "--shared", "--seats", "2", "prices", "--", "true"]);
    assert_eq!(both.code, Some(2), "{both:?}");
}

#[test]
fn a_semaphore_gives_each_command_a_seat_of_its_own() {
    let place = Place::new();
    let seats: Vec<Running> = (0..3)
        .map(|n| {
            let script = format!("echo $QUORATE_SEAT > {n}; wait_for go");
            place.start_script(&["lock", "--seats", "3", "licences"], &script)
        })
        .collect();
    let mut held: Vec<String> = (0..3).map(|n| place.until_written(&n.to_string())).collect();
    held.sort();
    assert_eq!(held, ["0", "1", "2"]);
    let refused = place.run(&["lock", "--seats", "3", "--try", "licences", "--", "true"]);
    assert_eq!(refused.code, Some(73), "{refused:?}");
    let other = place.run(&["lock", "--seats", "2", "--try", "licences", "--", "true"]);
    assert_eq!(other.code, Some(1), "{other:?}");
    assert!(other.last_line().contains("has seats = 3"), "{other:?}");
    place.write("go");
    seats.into_iter().for_each(|mut seat| assert_eq!(seat.ended().0, Some(0)));
}

#[test]
fn a_holder_that_is_asked_ends_its_command_and_the_one_that_was_promised_runs_next() {
    let place = Place::new();
    let mut holder = place.start_script(&["lock", "--ttl", "6s", "orders"], TIDIES);
    place.until_written("runs");
    let first =
        place.start_script(&["lock", "--name", "first", "orders"], "echo ran > first; wait_for never");
    place.until_waiting("orders", 1);
    let mut chosen = place.start_script(&["lock", "--name", "chosen", "orders"], "cat tidy > chosen");
    place.until_waiting("orders", 2);
    let moved = place.run(&["transfer", "orders", "--to", "chosen"]).ok();
    let (code, said) = holder.ended();
    assert_eq!(code, Some(75), "{said}");
    assert!(said.contains("quorate lock: orders is asked for: a transfer to chosen"), "{said}");
    assert!(
        last_line(&said).starts_with("quorate: orders was given up, as asked: a transfer to chosen"),
        "{said}"
    );
    assert_eq!(chosen.ended().0, Some(0));
    assert_eq!(place.read("chosen"), "tidy", "it ran when the other had ended: {moved:?}");
    drop(first);
}

#[test]
fn a_command_that_has_held_as_long_as_it_said_is_told_to_end_and_has_its_time() {
    let place = Place::new();
    let options = ["lock", "--ttl", "2s", "--max-hold", "200ms", "orders"];
    let (code, said) = place.start_script(&options, TIDIES).ended();
    assert_eq!((code, place.read("tidy").as_str()), (Some(75), "tidy"), "{said}");
    assert!(last_line(&said).contains("it has held for 200 ms, as long as it said"), "{said}");
    let never = place.run(&["lock", "--max-hold", "0", "orders", "--", "true"]);
    assert_eq!(never.code, Some(2), "{never:?}");
}

#[test]
fn a_deleted_lock_ends_the_command_and_the_waits() {
    let place = Place::new();
    let mut holder = place.start_script(&["lock", "--ttl", "6s", "orders"], TIDIES);
    place.until_written("runs");
    let mut waits = place.start_script(&["lock", "orders"], "echo ran > ran");
    place.until_waiting("orders", 1);
    place.run(&["group", "delete", "--end", "orders"]).ok();
    let (code, said) = waits.ended();
    assert_eq!(code, Some(73), "{said}");
    assert!(last_line(&said).contains("the group is being deleted"), "{said}");
    let (code, said) = holder.ended();
    assert_eq!((code, place.read("tidy").as_str()), (Some(75), "tidy"), "{said}");
    place.until("it is gone", || place.server.json(&["group", "list"]).is_empty());
    assert!(!place.path("ran").exists());
}

#[test]
fn a_command_that_touches_its_file_is_not_stalled() {
    let place = Place::new();
    let script = "echo $QUORATE_PROGRESS > file; wait_for touch; while [ ! -e go ]; do \
                  touch \"$QUORATE_PROGRESS\"; sleep 0.02; done";
    let mut holder = place.start_script(&["lock", "--progress", "400ms", "orders"], script);
    let file = PathBuf::from(place.until_written("file"));
    let stalled = || !place.explained("orders")["holders"][0]["stalled_since"].is_null();
    place.until("it is stalled", stalled);
    place.write("touch");
    place.until("it goes on", || !stalled());
    place.write("go");
    assert_eq!(holder.ended().0, Some(0));
    assert!(!file.exists(), "the file goes in the end");
}

#[test]
fn a_leader_is_seen_with_its_value_and_so_is_that_there_is_none() {
    let place = Place::new();
    let seen = place.start(&["--json", "observe", "boss"]);
    let first = seen.json();
    assert_eq!(
        (&first["event"], &first["leader"], &first["token"]),
        (&"no_leader".into(), &Value::Null, &Value::Null)
    );
    let value = "10.0.0.7:9000";
    let script = "echo $QUORATE_VALUE $QUORATE_TOKEN > leads; wait_for go";
    let options = ["lead", "boss", "--value", value, "--name", "a"];
    let mut leader = place.start_script(&options, script);
    let leads = seen.json();
    assert_eq!(
        (&leads["event"], &leads["leader"], &leads["value"]),
        (&"leader".into(), &"a".into(), &value.into())
    );
    let token = leads["token"].as_str().expect("a decimal string");
    assert_eq!(place.until_written("leads"), format!("{value} {token}"));
    let names: Vec<&String> = leads.as_object().expect("an object").keys().collect();
    assert_eq!(names.len(), 9, "{names:?}");

    let once = place.run(&["observe", "boss", "--once"]).ok().stdout;
    assert!(
        once.contains("leader") && once.contains("a  at 10.0.0.7:9000") && once.contains(token),
        "{once}"
    );
    let busy = place.run(&["lead", "boss", "--try", "--", "true"]);
    assert_eq!(busy.code, Some(73), "{busy:?}");
    place.write("go");
    assert_eq!(leader.ended().0, Some(0));
    let gone = seen.json();
    assert_eq!(gone["event"], "no_leader");
    assert!(gone["evidence"].as_str().is_some_and(|why| why.contains("by its own call")), "{gone}");
}

#[test]
fn a_leader_without_a_command_says_how_its_office_stands_until_it_is_told_to_end() {
    let place = Place::with(&["--ttl-floor", "100ms"]);
    let seen = place.start(&["--json", "observe", "boss"]);
    assert_eq!(seen.json()["event"], "no_leader");
    let mut leader = place.start(&["--json", "lead", "boss", "--value", "a", "--name", "a", "--ttl", "3s"]);
    let leads = leader.json();
    assert_eq!((&leads["event"], &leads["value"]), (&"leading".into(), &"a".into()));
    assert_eq!(seen.json()["token"], leads["token"]);
    assert!(leads["remaining_ms"].as_u64().is_some_and(|left| left > 1_000), "{leads}");

    let next = place.start(&["--json", "lead", "boss", "--value", "b", "--name", "b", "--ttl", "2s"]);
    place.until_waiting("boss", 1);
    let failed = place.run(&["transfer", "boss", "--to", "b", "--drain", "100ms"]);
    assert_eq!(failed.code, Some(73), "nobody told it to end: {failed:?}");
    let asked = leader.json();
    assert_eq!((&asked["event"], &asked["token"]), (&"asked".into(), &leads["token"]));
    let on = leader.json();
    assert_eq!((&on["event"], &on["evidence"]), (&"leading".into(), &"it is asked no more".into()));

    leader.signal(Signal::TERM);
    assert_eq!(leader.json()["event"], "resigned");
    assert_eq!(leader.ended(), (Some(0), String::new()));
    assert_eq!(next.json()["event"], "leading");
    assert_eq!(seen.json()["leader"], "b");
    next.signal(Signal::KILL);
    let gone = seen.json();
    assert_eq!(gone["event"], "no_leader");
    assert!(gone["evidence"].as_str().is_some_and(|why| why.contains("no keepalive")), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_says_when_the_service_is_silent_and_resumes() {
    let place = Place::with(&["--ttl-floor", "100ms"]);
    let cable = Cable::to(place.server.address.to_string()).await;
    let mut command = crate::harness::quorate();
    command.args(["--server", &cable.address(), "--json", "observe", "boss", "--ttl", "2s"]);
    let seen = Running::spawn(&mut command, "observe");
    assert_eq!(seen.json()["event"], "no_leader");
    cable.freeze();
    assert_eq!(seen.json()["event"], "unavailable");
    let leader = place.start(&["lead", "boss", "--value", "a"]);
    leader.line_with("leading");
    cable.thaw();
    let leads = seen.json();
    assert_eq!((&leads["event"], &leads["value"]), (&"leader".into(), &"a".into()));
}

#[test]
fn an_observer_of_something_else_or_of_no_service_says_so() {
    let place = Place::new();
    let holder = place.start_script(&["lock", "orders"], "echo runs > runs; wait_for never");
    place.until_written("runs");
    let wrong = place.run(&["observe", "orders", "--once"]);
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    assert!(wrong.last_line().contains("is a lock"), "{wrong:?}");
    let nobody =
        run(crate::harness::quorate().args(["--server", "127.0.0.1:1", "observe", "boss", "--once"]));
    assert_eq!((nobody.code, nobody.stdout.as_str()), (Some(69), ""), "{nobody:?}");
    drop(holder);
}

#[test]
fn parties_of_a_barrier_go_on_together_and_who_comes_alone_is_told_how_many_are_there() {
    let place = Place::new();
    let alone = place.run(&["barrier", "loaded", "--parties", "3", "--wait", "100ms"]);
    assert_eq!(alone.code, Some(73), "{alone:?}");
    assert!(alone.last_line().contains("1 of 3 parties are there"), "{alone:?}");
    let comes = |n: usize| {
        let script = format!("echo $QUORATE_POSITION $QUORATE_GENERATION $QUORATE_PARTIES > {n}; exit 7");
        place.start_script(&["barrier", "loaded", "--parties", "3"], &script)
    };
    let (mut one, mut two) = (comes(1), comes(2));
    place.until_waiting("loaded", 2);
    assert!(!place.path("1").exists() && !place.path("2").exists());
    let last = place.run(&["--json", "barrier", "loaded", "--parties", "3"]).ok().json().remove(0);
    assert_eq!([one.ended().0, two.ended().0], [Some(7); 2], "the code is the command's own");
    let generation = last["generation"].as_str().expect("a decimal string");
    let mut positions = vec![last["position"].to_string()];
    for n in ["1", "2"] {
        let line = place.read(n);
        let parts: Vec<&str> = line.split(' ').collect();
        assert_eq!(parts[1..], [generation, "3"], "{line}");
        positions.push(parts[0].into());
    }
    positions.sort();
    assert_eq!(positions, ["0", "1", "2"]);
    let waits = comes(4);
    place.until_waiting("loaded", 1);
    let other = place.run(&["barrier", "loaded", "--parties", "2", "--wait", "1s"]);
    assert_eq!(other.code, Some(1), "{other:?}");
    drop(waits);
}

#[test]
fn a_heavier_member_asks_and_acts_when_the_other_has_said_that_it_stopped() {
    let place = Place::new();
    let stated = ["--order", "weight", "--preempt", "on-weight"];
    let joins = |json: &[&str], name: &str, weight: &str| {
        let join = ["join", "db", "--name", name, "--weight", weight, "--ttl", "9s"];
        place.start(&[json, &join, &stated].concat())
    };
    let light = joins(&[], "light", "1");
    assert!(light.line().contains("1 light active"));
    let heavy = joins(&[], "heavy", "2");
    let asked = light.line_with("draining");
    for part in [
        "token ",
        "stop, then say so (SIGUSR1) or leave",
        "light is asked to stop",
        "heavy is heavier (2 to 1)",
        "within 3 s",
    ] {
        assert!(asked.contains(part), "{part} in {asked}");
    }
    let prepare = heavy.line_with("pending");
    assert!(prepare.contains("it is next, prepare to act: "), "{prepare}");
    light.signal(Signal::USR1);
    let acts = heavy.line_with("active   ");
    assert!(acts.contains("ordinal 1 (was 2)"), "{acts}");
    assert!(light.line_with("standby").contains("ordinal 2 (was 1)"));

    let clash = place.run(&["join", "db", "--order", "join"]);
    assert_eq!(clash.code, Some(1), "{clash:?}");
    assert!(
        clash.last_line().contains("order = weight") && clash.last_line().contains("states join"),
        "{clash:?}"
    );
}

#[test]
fn a_member_states_the_whole_policy_and_its_place_is_kept_while_it_is_away() {
    let place = Place::with(&["--ttl-floor", "100ms"]);
    let flags = ["--seats", "2", "--numbering", "stable", "--rejoin", "60s", "--handover", "100ms"];
    let first = place.start(&[&["--json", "join", "db", "--name", "a"], &flags[..]].concat());
    first.json();
    let policy = &place.explained("db")["policy"];
    for (field, value) in [("seats", "2"), ("numbering", "stable")] {
        let stated = policy[field].as_str().map_or(policy[field].to_string(), str::to_owned);
        assert_eq!(stated, value, "{policy}");
    }
    let mut away = place.start(&["join", "db", "--name", "b", "--ttl", "1s"]);
    away.line();
    away.signal(Signal::KILL);
    away.ended();
    let reserved = loop {
        let line = first.json();
        if let Some(step) =
            line["changed"].as_array().and_then(|all| all.iter().find(|s| s["role"] == "reserved"))
        {
            break step.clone();
        }
    };
    assert_eq!((&reserved["name"], &reserved["ordinal"]), (&"b".into(), &2.into()));
    let back = place.start(&["--json", "join", "db", "--name", "b"]);
    assert_eq!(back.json()["ordinal"], 2, "its place was kept");
}

#[test]
fn work_of_a_member_that_gives_no_sign_is_shown_until_a_signal_says_that_it_goes_on() {
    let place = Place::new();
    let member =
        place.start(&["--json", "join", "db", "--name", "a", "--progress", "300ms", "--max-hold", "1h"]);
    member.json();
    let stalled = |line: &Value| line["reason"] == "stalled";
    let mut line = member.json();
    let deadline = Instant::now() + LONG;
    while !stalled(&line) {
        assert!(Instant::now() < deadline, "{line}");
        line = member.json();
    }
    member.signal(Signal::USR2);
    let on = member.json();
    assert_eq!((&on["reason"], &on["role"]), (&"progress".into(), &"active".into()));
    let again = member.lines.recv_timeout(Duration::from_secs(30)).expect("it stalls again");
    assert!(again.contains("\"stalled\""), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_moves_seats_as_an_operator_does() {
    use quorate::error::Code;
    use quorate::{Client, Error, LossCause, SessionOptions};
    let place = Place::new();
    let client = Client::connect(place.server.address.to_string()).unwrap();
    let operator = client.operate();
    let session = client.session(SessionOptions::default()).await.unwrap();
    let guard = session.semaphore("licences", 1).unwrap().acquire().await.unwrap();
    let error = operator.transfer("licences", "nobody", Duration::ZERO, false).await.unwrap_err();
    assert!(matches!(error, Error::Refused { code: Code::NoTransfer, .. }), "{error:?}");
    let error = operator.delete_group("licences").await.unwrap_err();
    assert!(matches!(error, Error::Refused { code: Code::NotEmpty, .. }), "{error:?}");
    let error = operator.set_seats("none", 2).await.unwrap_err();
    assert_eq!(error.to_string(), "there is no \"none\"");
    operator.set_seats("licences", 2).await.unwrap();
    operator.end_group("licences").await.unwrap();
    assert_eq!(guard.lost().await.cause, LossCause::Asked);
    guard.release().await.unwrap();
    let id = session.id().unwrap();
    operator.close_session(id, "maintenance").await.unwrap();
    let why = session.ended().await.to_string();
    assert!(why.contains("maintenance"), "{why}");
    let nobody = Client::connect("127.0.0.1:1").unwrap().operate();
    let error = nobody.end_group("licences").await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
}

#[test]
fn a_lead_without_a_command_takes_no_promise_of_signs() {
    let place = Place::new();
    let wrong = place.run(&["lead", "boss", "--progress", "1s"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
}

/// Two commands under a lock each, that want the other's: `one` holds stock and wants orders, with these options, and
/// `two` the other way round. `two` waits last.
fn crossed(place: &Place, options: &[&str]) -> (Running, Running) {
    let quorate = env!("CARGO_BIN_EXE_quorate");
    let nested = |name: &str, own: &str, other: &str, options: &str| {
        let script = format!(
            "touch {name}; wait_for go-{name}; {quorate} lock {options} --name {name} {other} -- touch {name}-ran"
        );
        let running = place.start_script(&["lock", own], &script);
        place.until(name, || place.path(name).exists());
        running
    };
    let one = nested("one", "stock", "orders", &options.join(" "));
    let two = nested("two", "orders", "stock", "");
    place.write("go-one");
    place.until_waiting("orders", 1);
    place.write("go-two");
    (one, two)
}

#[test]
fn nested_locks_in_opposite_order_end_where_that_was_asked() {
    let place = Place::new();
    let (mut one, mut two) = crossed(&place, &["--on-deadlock", "break"]);
    let (code, said) = one.ended();
    assert_eq!(code, Some(73), "{said}");
    let last = last_line(&said);
    for part in
        ["quorate: not granted", "waits for orders through session", "waits for stock through session"]
    {
        assert!(last.contains(part), "{part:?} is not in {last:?}");
    }
    let (code, said) = two.ended();
    assert_eq!(code, Some(0), "the other goes on: {said}");
    assert!(place.path("two-ran").exists() && !place.path("one-ran").exists());
}

#[test]
fn nested_locks_in_opposite_order_wait_and_say_so_and_the_advice_ends_it() {
    let place = Place::new();
    let (mut one, mut two) = crossed(&place, &[]);
    let all = || place.server.json(&["explain", "deadlock"]).remove(0);
    place.until("the deadlock is seen", || all()["cause"] == "deadlock_cycle");
    let all = all();
    for lock in ["stock", "orders"] {
        let told = place.server.json(&["explain", "lock", lock]).remove(0);
        assert_eq!(told["deadlocks"], all["deadlocks"], "it is seen from {lock}");
    }
    let waits = all["deadlocks"][0]["waits"].as_array().expect("the waits");
    let names: Vec<_> = waits.iter().map(|wait| (&wait["name"], &wait["group"])).collect();
    assert_eq!(names, [(&"one".into(), &"orders".into()), (&"two".into(), &"stock".into())], "{all:#}");
    let newest = waits[1]["through"].as_u64().expect("the inner session");
    let advice = all["remedies"][0]["command"].as_str().expect("a command");
    assert!(advice.starts_with(&format!("quorate session close {newest}")), "{all:#}");
    let table = place.run(&["explain", "deadlock"]);
    assert!(table.stdout.contains(&format!("through {newest}")), "{table:?}");

    let arguments: Vec<&str> = advice.split(' ').skip(1).collect();
    assert_eq!(place.run(&arguments).code, Some(0));
    let (code, said) = two.ended();
    assert_eq!(code, Some(73), "{said}");
    assert_eq!(one.ended().0, Some(0), "the other goes on");
    assert!(place.path("one-ran").exists() && !place.path("two-ran").exists());
}

#[test]
fn a_lock_inside_itself_is_a_deadlock_of_one() {
    let place = Place::new();
    let quorate = env!("CARGO_BIN_EXE_quorate");
    let inner = [quorate, "lock", "--on-deadlock", "break", "orders", "--", "true"];
    let ran = place.run(&[&["lock", "orders", "--"], &inner[..]].concat());
    assert_eq!(ran.code, Some(73), "{ran:?}");
    assert!(ran.last_line().contains("waits for orders through session"), "{ran:?}");

    let mut waits =
        place.start(&[&["lock", "orders", "--"], &[quorate, "lock", "orders", "--", "true"][..]].concat());
    let why = || place.explained("orders")["waiters"][0]["cause"].clone();
    place.until("it says why", || why() == "deadlock_self");
    waits.signal(Signal::TERM);
    let (code, said) = waits.ended();
    assert_eq!(code, Some(143), "{said}");
}

#[test]
fn a_session_of_another_service_is_somebody_else() {
    let (place, other) = (Place::new(), Place::new());
    let mut holds = other.start_script(&["lock", "orders"], "touch held; wait_for go");
    other.until("it is held", || other.path("held").exists());
    let address = other.server.address.to_string();
    let quorate = env!("CARGO_BIN_EXE_quorate");
    // Both outer sessions are the first of their services: the inner one must not be taken for the other's own.
    let limits = ["--on-deadlock", "break", "--wait", "300ms"];
    let elsewhere =
        [&[quorate, "--server", &address, "lock"], &limits[..], &["orders", "--", "true"]].concat();
    let ran = place.run(&[&["lock", "orders", "--"], &elsewhere[..]].concat());
    assert_eq!(ran.code, Some(73), "{ran:?}");
    assert!(ran.last_line().contains("was not granted within 300ms"), "{ran:?}");
    other.write("go");
    assert_eq!(holds.ended().0, Some(0));
}
