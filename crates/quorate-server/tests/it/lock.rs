//! `quorate lock` on real processes: what runs under a lock has ended before the lock is another's, whoever is
//! stopped or killed on the way.
//!
//! Commands write down that they live, as a beat: the time since boot, again and again. What a test compares is the
//! last beat of everything that ran under the old lock with the start of what runs under the new one.

use crate::harness::{LONG, Ran, Server, quorate, run, wait};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::time::Timespec;
use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Short, and far above the floor of a busy machine.
const TTL: Duration = Duration::from_secs(2);

/// `/proc/uptime` counts hundredths.
const STAMP: f64 = 0.011;

/// A shell function that beats into the file `$1`, and what a double fork into a session of its own is.
const SHELL: &str = "
stamp() { read -r up rest < /proc/uptime; echo \"$up\"; }
beat() { echo $$ > \"$1.pid\"; while :; do stamp >> \"$1\"; sleep 0.01; done; }
";

/// A command with a child in its group, and a grandchild that left both parent and session.
const FAMILY: &str = "
sh -c '. ./shell; beat child' &
(setsid sh -c '(. ./shell; exec sh -c \". ./shell; beat far\") & exit 0' &)
beat command
";

/// Its beats.
const BEATS: [&str; 3] = ["command", "child", "far"];

struct Place {
    server: Server,
    dir: TempDir,
}

/// A `quorate lock` that does not outlive its test.
struct Locker {
    child: Child,
    stderr: PathBuf,
}

impl Place {
    fn new() -> Self {
        Self::with(&[])
    }

    fn with(options: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::write(dir.path().join("shell"), SHELL).expect("it can be written");
        Self { server: Server::with(options), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// `quorate lock` of a shell script, in the test's directory.
    fn lock(&self, options: &[&str], script: &str) -> Command {
        let mut command = self.server.quorate();
        command.arg("lock").args(options).args(["orders", "--", "sh", "-c", &format!(". ./shell; {script}")]);
        command.current_dir(self.dir.path());
        command
    }

    fn run(&self, options: &[&str], script: &str) -> Ran {
        run(&mut self.lock(options, script))
    }

    /// Starts one whose standard error goes to a file.
    fn start(&self, name: &str, options: &[&str], script: &str) -> Locker {
        let stderr = self.path(&format!("{name}.err"));
        let file = fs::File::create(&stderr).expect("it can be made");
        let child = self.lock(options, script).stderr(file).stdout(Stdio::null()).spawn().expect("it starts");
        Locker { child, stderr }
    }

    /// Starts one with a command that beats and has a family, and waits until all of them beat.
    fn start_family(&self, before: &str) -> Locker {
        let locker = self.start("first", &["--ttl", "2s"], &format!("{before}\n{FAMILY}"));
        for beat in BEATS {
            self.beats(beat);
        }
        locker
    }

    /// Starts one that has the lock for longer than the test.
    fn start_holder(&self, arguments: &[&str]) -> Locker {
        let holder = self.start("holder", arguments, "stamp > held; exec sleep 600");
        self.until("it is held", || !self.read("held").is_empty());
        holder
    }

    /// Starts one that waits for the lock and writes down when its command starts.
    fn start_next(&self) -> Locker {
        let next = self.start("next", &["--ttl", "2s", "--name", "next"], "stamp > next; true");
        self.until("next waits", || {
            let lines = self.server.json(&["explain", "lock", "orders"]);
            lines[0]["waiters"].as_array().is_some_and(|waiters| waiters.len() == 1)
        });
        next
    }

    fn until(&self, what: &str, is_so: impl FnMut() -> bool) {
        until(what, is_so);
    }

    /// The last beat, once there is one.
    fn beats(&self, name: &str) -> f64 {
        let last = || self.read(name).lines().rev().find_map(|line| line.parse::<f64>().ok());
        until(name, || last().is_some());
        last().expect("it was there")
    }

    fn pid_in(&self, name: &str) -> Pid {
        let pid = || self.read(&format!("{name}.pid")).trim().parse().ok().and_then(Pid::from_raw);
        until(name, || pid().is_some());
        pid().expect("it was there")
    }

    /// What ran under the old lock has ended within a lease of `since`, and before `next` started.
    fn all_ended_before_next(&self, since: f64) {
        let started: f64 = {
            until("next starts", || !self.read("next").trim().is_empty());
            self.read("next").trim().parse().expect("a stamp")
        };
        for beat in BEATS {
            let last = self.beats(beat);
            assert!(last <= started, "{beat} was alive at {last}, and next started at {started}");
            let deadline = since + TTL.as_secs_f64() * 0.99 + STAMP;
            assert!(last <= deadline, "{beat} was alive at {last}, after the deadline {deadline}");
            assert!(has_ended(self.pid_in(beat)), "{beat} is alive");
        }
    }
}

impl Locker {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    fn end(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Its exit code, and the last line on standard error.
    fn ended(&mut self) -> (Option<i32>, String) {
        let status = self.end();
        (status.code(), self.said().lines().last().unwrap_or_default().to_owned())
    }

    /// The process that watches over its command.
    fn guardian(&self) -> Option<Pid> {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split(' ').next()?.parse().ok().and_then(Pid::from_raw)
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        let guardian = self.guardian();
        let _ = kill_process(self.pid(), Signal::KILL);
        let _ = self.child.wait();
        // One that was stopped ends what is left when it goes on.
        if let Some(guardian) = guardian {
            let _ = kill_process(guardian, Signal::CONT);
        }
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn now() -> f64 {
    let uptime = fs::read_to_string("/proc/uptime").expect("it can be read");
    uptime.split(' ').next().and_then(|up| up.parse().ok()).expect("a number")
}

/// A zombie that nobody has taken leave of yet has ended too.
fn has_ended(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.map_or(true, |stat| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z')))
}

#[test]
fn a_command_has_its_own_exit_code_output_and_environment() {
    let place = Place::new();
    let ran = place.run(&["--ttl", "2s"], "env | grep ^QUORATE_ | sort; exit 7");
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(7), ""));
    let cluster = place.server.json(&["status"])[0]["cluster"].as_str().expect("a cluster").to_owned();
    let token: u64 =
        ran.stdout.lines().find_map(|line| line.strip_prefix("QUORATE_TOKEN=")).unwrap().parse().unwrap();
    let session =
        ran.stdout.lines().find_map(|line| line.strip_prefix("QUORATE_SESSION=")).expect("a session");
    assert!(session.parse::<u64>().is_ok(), "{session}");
    let expected = format!(
        "QUORATE_CLUSTER={cluster}\nQUORATE_GROUP=orders\nQUORATE_ORDINAL=1\nQUORATE_SEAT=0\n\
         QUORATE_SERVER={}\nQUORATE_SESSION={session}\nQUORATE_TOKEN={token}\n",
        place.server.address
    );
    assert_eq!((&ran.stdout, cluster.len()), (&expected, 32));
    let again = place.run(&[], "echo $QUORATE_TOKEN");
    assert!(again.stdout.trim().parse::<u64>().unwrap() > token, "{again:?} after {token}");
}

#[test]
fn what_a_command_reads_and_writes_is_not_touched() {
    let place = Place::new();
    let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    fs::write(place.path("in"), &bytes).unwrap();
    let mut command = place.lock(&[], "cat; printf error >&2");
    command.stdin(fs::File::open(place.path("in")).unwrap());
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"error".as_slice()));
    assert!(output.stdout == bytes, "{} bytes came through", output.stdout.len());
}

#[test]
fn the_last_line_tells_whose_the_code_is() {
    let place = Place::new();
    let own = place.run(&[], "echo mine >&2; exit 75");
    assert_eq!((own.code, own.last_line()), (Some(75), "mine"));
    let killed = place.run(&[], "kill -9 $$");
    assert_eq!((killed.code, killed.last_line()), (Some(137), "quorate: sh was ended by signal 9"));
    let missing = run(place.server.quorate().args(["lock", "orders", "--", "./no-such-program"]));
    let reason = "quorate: cannot run ./no-such-program: it is not there, or may not be run";
    assert_eq!((missing.code, missing.last_line()), (Some(1), reason));
    let missing = run(place.server.quorate().args(["lock", "orders", "--", "no-such-program"]));
    let reason = "quorate: cannot run no-such-program: no such program in PATH";
    assert_eq!((missing.code, missing.last_line()), (Some(1), reason));
    fs::write(place.path("wrong"), "#!/no/such/interpreter\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(place.path("wrong"), executable).unwrap();
    let mut wrong = place.server.quorate();
    let wrong = run(wrong.args(["lock", "orders", "--"]).arg(place.path("wrong")));
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    assert!(wrong.last_line().starts_with("quorate: cannot run "), "{wrong:?}");
    let nobody = run(quorate().args(["--server", "127.0.0.1:1", "lock", "orders", "--", "true"]));
    assert_eq!((nobody.code, nobody.stdout.as_str()), (Some(69), ""));
    assert!(
        nobody
            .last_line()
            .starts_with("quorate: no service at http://127.0.0.1:1 could be used within 5 s: "),
        "{nobody:?}"
    );
}

#[test]
fn a_lease_below_the_floor_or_above_the_ceiling_is_refused_in_the_services_words() {
    let place = Place::with(&["--ttl-floor", "1s"]);
    let ran = place.run(&["--ttl", "300ms"], "true");
    assert_eq!(ran.code, Some(2));
    for part in ["quorate: ", "300 ms", "1 s"] {
        assert!(ran.last_line().contains(part), "{part} in {ran:?}");
    }
    let ran = place.run(&["--ttl", "20m"], "true");
    assert_eq!(ran.code, Some(2));
    for part in ["quorate: the limit for a lease is ", "20 min"] {
        assert!(ran.last_line().contains(part), "{part} in {ran:?}");
    }
    let ran = place.run(&["--ttl", "3s", "--grace", "2s"], "true");
    let reason = "quorate: a warning of 2000 ms is more than a third of the lease of 3000 ms";
    assert_eq!((ran.code, ran.last_line()), (Some(2), reason));
}

#[test]
fn who_does_not_get_it_is_told_who_has_it() {
    let place = Place::new();
    let holder = place.start_holder(&["--name", "alpha"]);
    let refused = place.run(&["--try"], "touch ran");
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(73), ""));
    for part in ["quorate: not granted: orders is held by alpha (session ", ", token "] {
        assert!(refused.last_line().contains(part), "{part} in {refused:?}");
    }
    let late = place.run(&["--wait", "1500ms"], "touch ran");
    let lines: Vec<&str> = late.stderr.lines().collect();
    let session = place.server.json(&["session", "list"])[0]["session"].clone();
    let held = format!("the seat is held by alpha (session {session}, token ");
    assert_eq!((late.code, lines.len()), (Some(73), 2), "{late:?}");
    assert!(lines[0].starts_with(&format!("waiting for orders: {held}")), "{late:?}");
    assert!(
        lines[1].starts_with(&format!("quorate: \"orders\" was not granted within 1s 500ms: {held}")),
        "{late:?}"
    );
    let sooner = place.run(&["--wait", "100ms"], "touch ran");
    assert_eq!((sooner.code, sooner.stderr.lines().count()), (Some(73), 1), "{sooner:?}");
    assert!(sooner.last_line().contains(&held), "{sooner:?}");
    assert!(!place.path("ran").exists());
    drop(holder);
}

#[test]
fn eight_at_once_count_to_two_hundred() {
    let place = Place::new();
    fs::write(place.path("counter"), "0").unwrap();
    let script = "read -r n < counter; echo $((n + 1)) > counter";
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    place.run(&[], script).ok();
                }
            });
        }
    });
    assert_eq!(place.read("counter").trim(), "200");
}

#[test]
fn a_killed_holder_takes_its_command_and_all_descendants_along() {
    let place = Place::new();
    let mut first = place.start_family("");
    let next = place.start_next();
    let killed = now();
    first.signal(Signal::KILL);
    assert_eq!(first.end().signal(), Some(9));
    for beat in BEATS {
        until(beat, || has_ended(place.pid_in(beat)));
    }
    // At once, and not only before the deadline: nobody in it asks for a grace.
    assert!(now() < killed + 1.0, "it took until {}", now());
    place.all_ended_before_next(killed);
    until("the guardian says why", || !first.said().is_empty());
    assert_eq!(first.said(), "quorate: the process that held orders has died, so sh was ended\n");
    drop(next);
}

#[test]
fn a_stopped_holder_does_not_save_its_command() {
    let place = Place::new();
    let mut first = place.start_family("");
    let mut next = place.start_next();
    let stopped = now();
    first.signal(Signal::STOP);
    place.all_ended_before_next(stopped);
    assert_eq!(next.ended().0, Some(0));
    first.signal(Signal::CONT);
    let (code, last) = first.ended();
    assert_eq!(code, Some(75), "{}", first.said());
    assert!(last.starts_with("quorate: orders was lost: this process was stopped for "), "{last}");
    assert!(last.ends_with(" and could not renew its lease; sh was ended"), "{last}");
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_before_the_deadline() {
    for signal in [Signal::STOP, Signal::KILL] {
        let place = Place::new();
        let first = place.start_family("trap '' TERM");
        let next = place.start_next();
        let since = now();
        first.signal(signal);
        place.all_ended_before_next(since);
        drop(next);
    }
}

#[test]
fn a_stopped_holder_of_a_service_that_is_away_ends_its_command_too() {
    let place = Place::new();
    let first = place.start_family("trap '' TERM");
    let since = now();
    place.server.signal(Signal::STOP);
    first.signal(Signal::STOP);
    for beat in BEATS {
        until(beat, || has_ended(place.pid_in(beat)));
        assert!(place.beats(beat) <= since + TTL.as_secs_f64() * 0.99 + STAMP, "{beat} was alive too long");
    }
    place.server.signal(Signal::CONT);
}

#[test]
fn a_dead_service_ends_the_command_before_the_deadline() {
    let place = Place::new();
    let script = "trap 'stamp > told; exit 0' TERM; stamp > ready; while :; do sleep 0.01; done";
    let mut first = place.start("first", &["--ttl", "2s"], script);
    place.until("it is ready", || !place.read("ready").is_empty());
    let since = now();
    place.server.signal(Signal::KILL);
    let (code, last) = first.ended();
    let ended = now();
    assert_eq!(code, Some(75), "{}", first.said());
    assert_eq!(
        last,
        "quorate: orders was lost: the service was silent, and the deadline came near; sh was ended"
    );
    let told: f64 = place.read("told").trim().parse().expect("it was told to end, and did");
    assert!(told - since <= TTL.as_secs_f64() * 0.99 - 0.33 + STAMP + 0.2, "told after {}", told - since);
    assert!(ended <= since + TTL.as_secs_f64() * 0.99 + 0.5, "ended after {}", ended - since);
    assert!(first.said().contains("; sh is told to end (SIGTERM), and is killed in "), "{}", first.said());
}

#[test]
fn without_its_guardian_the_command_and_all_descendants_end_at_once() {
    for how in [Signal::KILL, Signal::STOP] {
        let place = Place::new();
        let mut first = place.start_family("trap '' TERM");
        let next = place.start_next();
        let since = now();
        kill_process(first.guardian().unwrap(), how).expect("it runs");
        if how == Signal::STOP {
            // Stopped, it is missed only when it should have acted.
            first.signal(Signal::STOP);
            until("the lease is over", || now() > since + TTL.as_secs_f64());
            first.signal(Signal::CONT);
        }
        let (code, last) = first.ended();
        assert_eq!(code, Some(75), "{}", first.said());
        let reason = "quorate: orders was lost: the guardian of sh was killed or stopped; sh was ended";
        if how == Signal::KILL {
            assert_eq!(last, reason);
            place.all_ended_before_next(since);
        }
        for beat in BEATS {
            assert!(has_ended(place.pid_in(beat)), "{beat} is alive");
        }
        drop(next);
    }
}

#[test]
fn the_kernel_ends_the_command_when_nobody_else_can() {
    let place = Place::new();
    let mut first = place.start_family("trap '' TERM");
    let guardian = first.guardian().unwrap();
    let since = now();
    first.signal(Signal::STOP);
    kill_process(guardian, Signal::KILL).expect("it runs");
    until("the command has ended", || has_ended(place.pid_in("command")));
    assert!(now() < since + 1.0, "it took until {}", now());
    // What it had started is its holder's, when that goes on.
    assert!(!has_ended(place.pid_in("far")));
    first.signal(Signal::CONT);
    assert_eq!(first.ended().0, Some(75), "{}", first.said());
    assert!(has_ended(place.pid_in("far")) && has_ended(place.pid_in("child")));
}

#[test]
fn a_stopped_guardian_is_missed_when_the_service_goes_away() {
    let place = Place::new();
    let mut first = place.start_family("trap '' TERM");
    kill_process(first.guardian().unwrap(), Signal::STOP).expect("it runs");
    let since = now();
    place.server.signal(Signal::KILL);
    let (code, _) = first.ended();
    assert_eq!(code, Some(75), "{}", first.said());
    for beat in BEATS {
        let last = place.beats(beat);
        assert!(has_ended(place.pid_in(beat)), "{beat} is alive");
        assert!(last <= since + TTL.as_secs_f64() * 0.99 + STAMP, "{beat} was alive too long");
    }
}

#[test]
fn signals_are_the_commands_to_answer() {
    let place = Place::new();
    for (signal, name) in
        [(Signal::INT, "INT"), (Signal::TERM, "TERM"), (Signal::HUP, "HUP"), (Signal::USR1, "USR1")]
    {
        let script = format!("trap 'exit 5' {name}; stamp > {name}; while :; do sleep 0.01; done");
        let mut first = place.start("first", &[], &script);
        place.until("it is ready", || !place.read(name).is_empty());
        first.signal(signal);
        assert_eq!(first.end().code(), Some(5), "{name}: {}", first.said());
        assert!(!first.said().contains("quorate"), "{name}: {}", first.said());
    }
    let mut first = place.start("first", &[], "stamp > ready; exec sleep 600");
    place.until("it is ready", || !place.read("ready").is_empty());
    first.signal(Signal::TERM);
    assert_eq!(first.ended(), (Some(143), "quorate: sh was ended by signal 15".into()));
}

#[test]
fn a_signal_to_one_that_waits_gives_its_place_up() {
    let place = Place::new();
    let holder = place.start_holder(&[]);
    let mut next = place.start_next();
    next.signal(Signal::INT);
    let reason = "quorate: ended by signal 2 while it waited for orders; nothing is held";
    assert_eq!(next.ended(), (Some(130), reason.into()));
    let explained = &place.server.json(&["explain", "lock", "orders"])[0];
    assert_eq!(explained["waiters"].as_array().map(Vec::len), Some(0), "{explained}");
    drop(holder);
}

#[test]
fn one_that_was_stopped_while_it_waited_is_told_so() {
    let place = Place::new();
    let holder = place.start_holder(&[]);
    let mut next = place.start_next();
    let waiting = || place.server.json(&["explain", "lock", "orders"])[0]["waiters"].as_array().map(Vec::len);
    next.signal(Signal::STOP);
    place.until("its place is given up", || waiting() == Some(0));
    next.signal(Signal::CONT);
    let (code, last) = next.ended();
    assert_eq!(code, Some(69), "{last}");
    assert!(last.contains("this process was stopped for "), "{last}");
    assert!(last.ends_with("and its lease (2 s) ran out; the wait was given up"), "{last}");
    drop(holder);
}

#[test]
fn what_a_command_leaves_behind_ends_before_the_lock_is_released() {
    let place = Place::new();
    let script = "(setsid sh -c '. ./shell; beat far' &) ; while ! [ -s far ]; do sleep 0.01; done; exit 4";
    let mut first = place.start("first", &[], script);
    assert_eq!(first.end().code(), Some(4));
    assert!(has_ended(place.pid_in("far")));
    let said = "quorate lock: sh has ended and left 2 processes behind, to be ended before orders is released \
                (--leave-behind lets them be)\n";
    assert!(
        first.said() == said || first.said() == said.replace("2 processes", "1 process"),
        "{}",
        first.said()
    );
    let _ = fs::remove_file(place.path("far"));
    let mut second = place.start("second", &["--leave-behind"], script);
    assert_eq!((second.end().code(), second.said().as_str()), (Some(4), ""));
    let far = place.pid_in("far");
    assert!(!has_ended(far), "it was to be left alone");
    kill_process(far, Signal::KILL).expect("it runs");
}

#[test]
fn an_operator_ends_the_command_by_closing_the_session() {
    let place = Place::new();
    let script = "trap 'stamp > told; exit 0' TERM; stamp > ready; while :; do sleep 0.01; done";
    let mut first = place.start("first", &["--ttl", "10s"], script);
    place.until("it is ready", || !place.read("ready").is_empty());
    let session = place.server.json(&["session", "list"])[0]["session"].to_string();
    place.server.run(&["session", "close", &session, "--why", "maintenance"]).ok();
    let (code, last) = first.ended();
    assert_eq!(code, Some(75), "{}", first.said());
    let reason = format!(
        "quorate: orders was lost: session {session} was closed by an operator: maintenance; sh was ended"
    );
    assert_eq!(last, reason);
    assert!(!place.read("told").is_empty(), "it was told to end");
    // It has said that it stopped, so nobody waits for its lease.
    place.run(&["--try"], "true").ok();
}

/// A terminal. When it goes, everybody on it is hung up.
struct Terminal(Child);

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a shell line on a terminal of its own, by `script`. Each step waits for a text and then types another.
fn on_terminal(place: &Place, line: &str, steps: &[(&str, &str)]) -> Option<String> {
    let started = Command::new("script")
        .args(["--quiet", "--return", "--command", line, "/dev/null"])
        .current_dir(place.dir.path())
        .env("QUORATE_SERVER", place.server.address.to_string())
        .env("Q", env!("CARGO_BIN_EXE_quorate"))
        .env("TERM", "dumb")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(child) = started else {
        eprintln!("SKIPPED: there is no `script` here, so nothing was tried on a terminal");
        return None;
    };
    let mut terminal = Terminal(child);
    let child = &mut terminal.0;
    let (mut typed, shown) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let mut output = String::new();
    for (awaited, text) in steps {
        read_until(&shown, &mut output, Some(awaited));
        typed.write_all(text.as_bytes()).expect("it listens");
    }
    read_until(&shown, &mut output, None);
    drop(typed);
    wait(child);
    Some(output)
}

/// Reads until the text has come, or to the end.
fn read_until(shown: &impl AsFd, output: &mut String, awaited: Option<&str>) {
    let limit = Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
    while awaited.is_none_or(|awaited| !output.contains(awaited)) {
        let came = poll(&mut [PollFd::new(shown, PollFlags::IN)], Some(&limit)).expect("it can be asked");
        assert!(came > 0, "waited in vain for {awaited:?} after {output}");
        let mut bytes = [0; 4096];
        match rustix::io::read(shown, &mut bytes) {
            Ok(0) | Err(_) if awaited.is_none() => return,
            Ok(0) | Err(_) => panic!("it ended before {awaited:?}: {output}"),
            Ok(length) => output.push_str(&String::from_utf8_lossy(&bytes[..length]).replace('\r', "")),
        }
    }
}

#[test]
fn a_command_has_the_terminal_and_its_shell_gets_it_back() {
    let place = Place::new();
    let line = "$Q lock orders -- sh -c 'echo ready; read -r one; echo \"one: $one\"'; echo next; read -r two; \
                echo \"two: $two\"";
    let steps = [("ready\n", "first\n"), ("next\n", "second\n")];
    let Some(output) = on_terminal(&place, line, &steps) else { return };
    assert!(output.contains("one: first\n") && output.contains("two: second\n"), "{output}");
}

#[test]
fn a_terminals_interrupt_reaches_the_command_alone() {
    let place = Place::new();
    let line = "$Q lock orders -- sh -c 'trap \"echo heard; exit 6\" INT; echo ready; while :; do sleep 0.01; done'; \
                echo \"code $?\"";
    let Some(output) = on_terminal(&place, line, &[("ready\n", "\x03")]) else { return };
    assert!(output.ends_with("heard\ncode 6\n"), "{output}");
    assert_eq!(output.matches("heard").count(), 1, "{output}");
}

/// The shell of a terminal with job control, as people have it.
#[test]
fn a_job_is_stopped_and_continued_by_its_shell() {
    let place = Place::new();
    let job = "$Q lock --ttl 1min orders -- sh -c 'echo ready; exec cat'\n";
    let continued = format!("\n{job}");
    let start = format!("PS1=; {job}");
    let steps = [
        ("$ ", &*start),
        // What is typed while the shell still reads keys is not a line for the command.
        ("\nready\n", "one\n"),
        ("one\none\n", "\x1a"),
        ("orders is lost and sh is ended", "echo between\n"),
        ("\nbetween\n", "fg\n"),
        (&*continued, "two\n"),
        ("two\ntwo\n", "\x04"),
        ("", "echo code $?\n"),
        ("code 0\n", "exit\n"),
    ];
    let Some(output) = on_terminal(&place, "PS1='$ ' bash --norc --noprofile -i", &steps) else { return };
    assert!(output.contains("quorate lock: stopped, with sh; unless it goes on within "), "{output}");
}

/// What had the terminal when it was ended leaves it as it was found.
#[test]
fn a_terminal_that_was_in_use_when_the_lock_was_lost_is_put_back() {
    let place = Place::new();
    let line = "$Q lock --ttl 1s orders -- sh -c 'stty -echo -icanon; trap \"\" TERM; : > in-use; \
                while :; do sleep 0.01; done'; echo \"code $?\"; stty -a";
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until("the terminal is in use", || place.path("in-use").exists());
            place.server.signal(Signal::STOP);
        });
        let Some(output) = on_terminal(&place, line, &[]) else {
            // Nobody used a terminal, so nobody is waited for.
            return fs::write(place.path("in-use"), "").expect("it can be made");
        };
        assert!(output.contains("code 75\n"), "{output}");
        assert!(output.contains(" echo ") && output.contains(" icanon"), "{output}");
    });
    place.server.signal(Signal::CONT);
}

#[test]
fn the_help_says_what_no_wrapper_can_stop() {
    let help = run(quorate().args(["lock", "--help"])).ok().stdout;
    for part in
        ["QUORATE_TOKEN", "uninterruptible sleep", "another user", "exit 73", "  75     the authority"]
    {
        assert!(help.contains(part), "{part} in {help}");
    }
    for command in ["lock", "join", "lead", "observe", "barrier"] {
        let help = run(quorate().args([command, "--help"])).ok().stdout;
        // A line that had to be wrapped goes on without its indent.
        let wrapped = help.lines().find(|line| line.starts_with(|c: char| c.is_lowercase()));
        assert_eq!(wrapped.filter(|line| !line.starts_with("quorate")), None, "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
    }
}

/// Whoever started this process made it ignore SIGCHLD and SIGHUP, and blocked a signal.
#[test]
fn a_command_inherits_what_is_ignored_and_children_are_waited_for_all_the_same() {
    let place = Place::new();
    let wrapped =
        "trap '' HUP CHLD; exec \"$Q\" lock orders -- sh -c 'grep SigIgn /proc/self/status; (exit 9)'";
    let mut command = Command::new("sh");
    command.args(["-c", wrapped]).env("Q", env!("CARGO_BIN_EXE_quorate"));
    let ran = run(command.env("QUORATE_SERVER", place.server.address.to_string()).stdin(Stdio::null()));
    let ignored = ran.stdout.trim().rsplit('\t').next().and_then(|mask| u64::from_str_radix(mask, 16).ok());
    assert_eq!((ran.code, ignored.map(|mask| mask & 1)), (Some(9), Some(1)), "{ran:?}");
}

/// A wait that nobody reads about is a wait all the same, and the code is what it would be.
#[test]
fn closed_standard_error_changes_no_code() {
    let place = Place::new();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let script = "(setsid sh -c '. ./shell; beat far' &) ; while ! [ -s far ]; do sleep 0.01; done; exit 4";
    let mut child =
        place.lock(&[], script).stderr(writer.try_clone().expect("it is open")).spawn().expect("it starts");
    assert_eq!(wait(&mut child).code(), Some(4));
    let mut child =
        place.server.quorate().args(["lock", "orders", "--", "./none"]).stderr(writer).spawn().unwrap();
    assert_eq!(wait(&mut child).code(), Some(1));
}
