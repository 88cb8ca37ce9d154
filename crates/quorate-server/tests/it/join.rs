//! `quorate join` on real processes: each hears where it stands, in an order that nobody can misread.

use crate::harness::{LONG, Server, quorate, run, wait};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::Timespec;
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A short lease, above the floor that these tests set.
const TTL: Duration = Duration::from_millis(400);

const FLOOR: [&str; 2] = ["--ttl-floor", "100ms"];

/// A `quorate join` whose lines are read as they come. It does not outlive its test.
struct Joined {
    child: Child,
    stdout: OwnedFd,
    unread: Vec<u8>,
    name: String,
}

impl Joined {
    fn start(server: &Server, group: &str, name: &str, options: &[&str]) -> Self {
        Self::spawn(server.quorate().arg("--json"), group, name, options)
    }

    fn spawn(command: &mut std::process::Command, group: &str, name: &str, options: &[&str]) -> Self {
        command.args(["join", group, "--name", name]).args(options);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let stdout = child.stdout.take().expect("it is piped").into();
        Self { child, stdout, unread: Vec::new(), name: name.into() }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    /// The next line, if one comes in time.
    fn line_within(&mut self, limit: Duration) -> Option<String> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line = self.unread.drain(..=end).collect();
                return Some(String::from_utf8(line).expect("it is text").trim_end().to_owned());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            if poll(&mut [PollFd::new(&self.stdout, PollFlags::IN)], Some(&left)).expect("it can be asked")
                == 0
            {
                return None;
            }
            let mut bytes = [0; 4096];
            match rustix::io::read(&self.stdout, &mut bytes).expect("it can be read") {
                0 => return None,
                length => self.unread.extend_from_slice(&bytes[..length]),
            }
        }
    }

    fn line(&mut self) -> String {
        self.line_within(LONG).unwrap_or_else(|| panic!("{} says no more", self.name))
    }

    fn next(&mut self) -> Value {
        json(&self.line())
    }

    /// The next advisory of this event. What comes before it is passed over.
    fn until(&mut self, event: &str) -> Value {
        loop {
            let advisory = self.next();
            if advisory["event"] == event {
                return advisory;
            }
        }
    }

    /// Waits until it stands there.
    fn until_at(&mut self, ordinal: i64) -> Value {
        loop {
            let advisory = self.next();
            if advisory["ordinal"] == ordinal {
                return advisory;
            }
        }
    }

    /// Stops it, and does not return before it stands still.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = self.child.id();
        until("it is stopped", || {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        });
    }

    /// Everything that it has written so far. It must be stopped.
    fn written(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.line_within(Duration::ZERO)).map(|line| json(&line)).collect()
    }

    fn end(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn ttl() -> [String; 2] {
    ["--ttl".into(), format!("{}ms", TTL.as_millis())]
}

/// Where an advisory says its member stands.
fn stands(advisory: &Value) -> (i64, &str) {
    (advisory["ordinal"].as_i64().expect("an ordinal"), advisory["role"].as_str().expect("a role"))
}

fn token(advisory: &Value) -> Option<u64> {
    advisory["token"].as_str().map(|token| token.parse().expect("a number"))
}

#[test]
fn every_line_is_an_object_with_the_same_fields_in_the_same_order() {
    let server = Server::with(&FLOOR);
    let mut a = Joined::start(&server, "payments", "a", &["--ttl", "2s"]);
    let total = a.line();
    let mut b = Joined::start(&server, "payments", "b", &["--ttl", "2s", "--meta", "zone=eu"]);
    let change = a.line();
    let fields = |line: &str| {
        let parsed = json(line);
        let names = parsed.as_object().expect("an object").keys();
        // A parsed object has forgotten the order.
        let place = |name: &&String| line.find(&format!("\"{name}\":")).expect("it is in the line");
        let mut names: Vec<&String> = names.collect();
        names.sort_by_key(place);
        names.into_iter().cloned().collect::<Vec<_>>().join(" ")
    };
    let common = "time group event form name view ordinal previous role token holder_token reason evidence \
                  remaining_ms";
    assert_eq!(fields(&total), format!("{common} members"));
    assert_eq!(fields(&change), format!("{common} changed"));
    let (total, change) = (json(&total), json(&change));
    assert_eq!(total["members"], serde_json::json!([{"name": "a", "ordinal": 1, "role": "active"}]));
    assert_eq!(
        (&total["event"], &total["form"], &total["previous"]),
        (&"joined".into(), &"total".into(), &Value::Null)
    );
    assert_eq!(change["changed"][0]["name"], "b");
    assert_eq!((&change["event"], &change["reason"]), (&"changed".into(), &"join".into()));
    assert!(token(&total).is_some() && total["token"] == total["holder_token"], "{total}");
    assert!(total["time"].as_str().is_some_and(|time| time.ends_with('Z') && time.len() == 24), "{total}");
    assert!(total["remaining_ms"].as_u64().is_some_and(|left| left <= 1_980), "{total}");
    let joined = b.next();
    assert_eq!((stands(&joined), &joined["token"]), ((2, "standby"), &Value::Null));
    assert_eq!(joined["holder_token"], total["token"]);
    let shown = server.json(&["group", "show", "payments"]);
    assert!(shown[0].to_string().contains("\"zone\":\"eu\""), "{shown:?}");
}

#[test]
fn a_signal_makes_a_member_leave_and_the_next_one_acts_at_once() {
    let server = Server::start();
    let mut a = Joined::start(&server, "payments", "a", &["--ttl", "1min"]);
    let first = token(&a.until("joined")).expect("it acts");
    let mut b = Joined::start(&server, "payments", "b", &["--ttl", "1min"]);
    b.until("joined");
    a.signal(Signal::INT);
    let left = a.until("left");
    assert_eq!((&left["ordinal"], &left["role"], &left["token"]), (&Value::Null, &Value::Null, &Value::Null));
    assert_eq!((a.end().code(), a.line_within(LONG)), (Some(0), None));
    let active = b.until("active");
    assert_eq!((stands(&active), active["previous"].as_i64()), ((1, "active"), Some(2)));
    assert!(token(&active) > Some(first), "{active}");
    assert_eq!(active["reason"], "leave");
    b.signal(Signal::TERM);
    b.until("left");
    assert_eq!(b.end().code(), Some(0));
}

#[test]
fn five_processes_one_active_as_in_the_figure() {
    for how in [Signal::KILL, Signal::STOP] {
        let server = Server::with(&FLOOR);
        let ttl = ttl();
        let options: Vec<&str> = ttl.iter().map(String::as_str).collect();
        // t1: all joined.
        let mut members: Vec<Joined> = Vec::new();
        for n in 1..=5_i64 {
            let mut member = Joined::start(&server, "payments", &format!("P{n}"), &options);
            let joined = member.until("joined");
            assert_eq!(stands(&joined), (n, if n == 1 { "active" } else { "standby" }));
            members.push(member);
        }
        // t2: P1 is cut off.
        let mut first = members.remove(0);
        match how {
            Signal::STOP => first.stop(),
            _ => first.signal(how),
        }
        for (member, ordinal) in members.iter_mut().zip(1..) {
            let moved = member.until_at(ordinal);
            assert_eq!(stands(&moved), (ordinal, if ordinal == 1 { "active" } else { "standby" }));
            assert_eq!(
                (moved["previous"].as_i64(), &moved["reason"]),
                (Some(ordinal + 1), &"expired".into())
            );
        }
        // t3: P1 is back.
        if how == Signal::STOP {
            first.written();
            first.signal(Signal::CONT);
            let cut_off = first.next();
            assert_eq!((stands(&cut_off), &cut_off["token"]), ((-1, "disconnected"), &Value::Null));
            assert_eq!(cut_off["reason"], "deadline_passed");
        } else {
            first = Joined::start(&server, "payments", "P1", &options);
        }
        assert_eq!(stands(&first.until_at(5)), (5, "standby"));
        let shown = &server.json(&["explain", "group", "payments"])[0];
        assert_eq!(shown["holders"][0]["name"], "P2", "{shown}");
    }
}

/// The state of a reader that believes every line.
#[derive(Default)]
struct Reader {
    ordinal: Option<i64>,
    acts: Option<u64>,
    greatest: u64,
}

impl Reader {
    fn read(&mut self, advisory: &Value) {
        let ordinal = advisory["ordinal"].as_i64();
        if self.ordinal.is_some() {
            assert_eq!(advisory["previous"].as_i64(), self.ordinal, "{advisory}");
        }
        if let Some(token) = token(advisory) {
            assert!(Some(token) == self.acts || token > self.greatest, "an old token: {advisory}");
            self.greatest = self.greatest.max(token);
        }
        self.acts = token(advisory);
        self.ordinal = ordinal;
    }
}

/// A process is stopped at any instant and for any time. When it goes on and its lease is over, its first line says
/// -1, whatever it was about to say.
#[test]
fn who_wakes_late_says_that_it_is_cut_off_before_anything_else() {
    let rounds: u32 =
        std::env::var("QUORATE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(12);
    let server = Server::with(&FLOOR);
    let ttl = Duration::from_millis(150);
    let server = &server;
    std::thread::scope(|scope| {
        for group in ["one", "two"] {
            scope.spawn(move || late_wakers(server, group, ttl, rounds.div_ceil(2)));
        }
    });
}

fn late_wakers(server: &Server, group: &str, ttl: Duration, rounds: u32) {
    let options = ["--ttl", &format!("{}ms", ttl.as_millis())];
    let mut rival = Joined::start(server, group, "rival", &["--ttl", "1s"]);
    rival.until("joined");
    let mut member = Joined::start(server, group, "member", &options);
    let mut reader = Reader::default();
    // The rival leaves and joins, so that the member acts, stands by, and is told about it at all times.
    for round in 0..rounds {
        if round % 2 == 0 {
            rival.signal(Signal::TERM);
        } else {
            rival = Joined::start(server, group, "rival", &["--ttl", "1s"]);
        }
        // Any instant: while it is told, while it is cut off, while it comes back.
        let until = Instant::now() + ttl.mul_f64(rand::random_range(0.0..2.5));
        while let Some(line) = member.line_within(until.saturating_duration_since(Instant::now())) {
            reader.read(&json(&line));
        }
        member.stop();
        let stopped = Instant::now();
        member.written().iter().for_each(|advisory| reader.read(advisory));
        std::thread::sleep(ttl.mul_f64(rand::random_range(0.3..2.0)));
        let over = stopped.elapsed() >= ttl;
        let cut_off = reader.ordinal.is_none_or(|ordinal| ordinal == -1);
        member.signal(Signal::CONT);
        // Otherwise there may be nothing to say.
        if over && !cut_off {
            let first = member.next();
            assert_eq!((stands(&first), &first["token"]), ((-1, "disconnected"), &Value::Null), "{first}");
            reader.read(&first);
        }
    }
}

#[test]
fn a_service_that_is_away_costs_the_place_only_at_the_deadline() {
    let server = Server::with(&FLOOR);
    let mut a = Joined::start(&server, "payments", "a", &["--ttl", "1s"]);
    let before = token(&a.until("joined"));
    server.signal(Signal::STOP);
    let silent = a.until("unavailable");
    assert_eq!((stands(&silent), token(&silent)), ((1, "active"), before));
    assert_eq!((&silent["form"], &silent["reason"]), (&"unavailable".into(), &"service_silent".into()));
    assert!(silent["remaining_ms"].as_u64() > Some(0), "{silent}");
    let cut_off = a.until("disconnected");
    assert_eq!((stands(&cut_off), cut_off["previous"].as_i64()), ((-1, "disconnected"), Some(1)));
    server.signal(Signal::CONT);
    let back = a.until("reconnected");
    let after = match token(&back) {
        Some(token) => Some(token),
        None => token(&a.until("active")),
    };
    assert!(after > before, "a new token, {after:?} after {before:?}");
}

#[test]
fn it_tries_until_there_is_a_service() {
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let address = format!("127.0.0.1:{port}");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let errors = dir.path().join("errors");
    let mut command = quorate();
    command.args(["--server", &address, "--json"]).stderr(fs::File::create(&errors).expect("it can be made"));
    let mut a = Joined::spawn(&mut command, "payments", "a", &[]);
    until("it says that it waits", || fs::read_to_string(&errors).is_ok_and(|said| said.ends_with('\n')));
    let said = fs::read_to_string(&errors).expect("it was there");
    assert!(said.starts_with(&format!("quorate join: no service answers at http://{address} (")), "{said}");
    let mut serve = quorate();
    serve.args(["serve", "--listen", &address, "--data"]).arg(dir.path().join("data"));
    let mut server = serve.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    assert_eq!(stands(&a.until("joined")), (1, "active"));
    drop(a);
    let _ = server.kill();
    let _ = server.wait();
}

#[test]
fn before_it_has_joined_a_signal_ends_it_with_its_code() {
    let mut a =
        Joined::spawn(quorate().args(["--server", "127.0.0.1:1"]).stderr(Stdio::null()), "g", "a", &[]);
    // It listens for signals before it connects; until then the signal ends it as any program.
    a.signal(Signal::TERM);
    let status = a.end();
    assert!(status.code() == Some(143) || status.code().is_none(), "{status}");
}

#[test]
fn a_reader_that_is_slow_costs_no_seat_and_one_that_has_gone_ends_it() {
    let server = Server::with(&FLOOR);
    let ttl = ttl();
    let options: Vec<&str> = ttl.iter().map(String::as_str).collect();
    let mut a = Joined::start(&server, "payments", "a", &options);
    let before = token(&a.until("joined"));
    // A pipe holds 64 KiB: these lines fill it, and nobody reads them.
    let name = "x".repeat(250);
    for _ in 0..70 {
        let mut b = Joined::start(&server, "payments", &name, &["--ttl", "1min"]);
        b.until("joined");
        b.signal(Signal::TERM);
        b.end();
    }
    let full = Instant::now();
    until("three leases are over", || full.elapsed() > 3 * TTL);
    let shown = &server.json(&["explain", "group", "payments"])[0];
    assert_eq!(
        shown["holders"][0]["seat"]["token"].as_str().map(str::to_owned),
        before.map(|token| token.to_string())
    );
    let mut reader = Reader { ordinal: Some(1), acts: before, greatest: before.unwrap_or_default() };
    while let Some(line) = a.line_within(TTL) {
        reader.read(&json(&line));
        assert_eq!(reader.acts, before, "{line}");
    }
    // Nobody reads any more: it leaves at once, and not when there is something to say.
    drop(std::mem::replace(&mut a.stdout, fs::File::open("/dev/null").expect("it is there").into()));
    assert_eq!(a.end().code(), Some(141));
    assert_eq!(server.json(&["explain", "group", "payments"])[0]["holders"], serde_json::json!([]));
}

#[test]
fn an_operator_ends_it_and_a_refusal_is_said() {
    let server = Server::start();
    let mut a = Joined::start(&server, "payments", "a", &["--ttl", "1min", "--seats", "2"]);
    a.until("joined");
    let other = server.run(&["join", "payments", "--seats", "3"]);
    assert_eq!(other.code, Some(1), "{other:?}");
    assert!(other.last_line().starts_with("quorate: ") && other.last_line().contains("seats"), "{other:?}");
    let short = server.run(&["join", "payments", "--ttl", "1ms"]);
    assert_eq!(short.code, Some(2), "{short:?}");
    let mut b = Joined::start(&server, "payments", "b", &["--ttl", "1min"]);
    assert_eq!(stands(&b.until("joined")), (2, "active"), "two seats");
    let sessions = server.json(&["session", "list"]);
    let session = sessions[0]["session"].to_string();
    server.run(&["session", "close", &session, "--why", "maintenance"]).ok();
    let closed = a.until("closed");
    assert_eq!((stands(&closed), &closed["reason"]), ((-1, "disconnected"), &"closed".into()));
    assert_eq!((a.end().code(), a.line_within(LONG)), (Some(75), None));
}

#[test]
fn observers_and_ordinal_only_members_hear_what_they_asked_for() {
    let server = Server::start();
    let mut watcher = Joined::start(&server, "payments", "w", &["--observer"]);
    let joined = watcher.until("joined");
    assert_eq!((&joined["ordinal"], &joined["role"]), (&Value::Null, &"observer".into()));
    let mut a = Joined::start(&server, "payments", "a", &["--ordinal-only"]);
    assert_eq!(a.until("joined")["members"], serde_json::json!([]));
    let b = Joined::start(&server, "payments", "b", &[]);
    assert_eq!(watcher.until("changed")["changed"][0]["name"], "a");
    assert_eq!(watcher.until("changed")["changed"][0]["name"], "b");
    a.signal(Signal::TERM);
    assert_eq!(a.next()["event"], "left", "it was not told of b");
    drop(b);
}

#[test]
fn people_read_one_line_an_advisory() {
    let server = Server::start();
    let mut a = Joined::spawn(&mut server.quorate(), "payments", "P1", &["--ttl", "1min"]);
    assert!(a.line().ends_with("view 1  members: 1 P1 active"));
    let mut b = Joined::spawn(&mut server.quorate(), "payments", "P2", &["--ttl", "1min"]);
    let first = b.line();
    let token: u64 =
        first.split("holder ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap();
    let expected = format!(
        "joined        ordinal 2           {:<14}  view 2  members: 1 P1 active, 2 P2",
        format!("holder {token}")
    );
    let (time, rest) = first.split_at(14);
    assert_eq!(rest, expected);
    assert!(time.trim_end().len() == 12 && time.chars().filter(|c| *c == ':').count() == 2, "{first}");
    a.signal(Signal::TERM);
    let second = b.line();
    let start = "active        ordinal 1 (was 2)   token ";
    assert!(
        second[14..].starts_with(start) && second.ends_with("view 3  P1 left: by its own call"),
        "{second}"
    );
    assert!(first.len() <= 100 && second.len() <= 100, "{} and {}", first.len(), second.len());
    assert!(!first.contains('\x1b') && !second.contains('\x1b'), "colours are for terminals");
}

#[test]
fn the_help_lists_every_event_and_reason() {
    let help = run(quorate().args(["join", "--help"])).ok().stdout;
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/advisories.md");
    let page = fs::read_to_string(page).expect("the page is there");
    let words = words_in_the_source();
    assert!(words.len() > 30, "{words:?}");
    for word in words {
        assert!(help.contains(&word), "{word} in {help}");
        assert!(page.contains(&format!("`{word}`")), "{word} in the page");
    }
}

/// The words of events, forms and reasons, as the library writes them.
fn words_in_the_source() -> Vec<String> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../quorate/src/advisory.rs");
    let source = fs::read_to_string(source).expect("it is there");
    let word = |line: &str| {
        let word = line.trim().strip_prefix("Self::")?.split_once(" => \"")?.1.split_once("\",")?.0;
        Some(word.to_owned())
    };
    source.lines().filter_map(word).collect()
}
