//! `quorate guard` on real processes: what a lock cannot do once its holder was stopped, killed or late.

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// No test waits that long unless it fails.
const LONG: Duration = Duration::from_secs(60);

const CLUSTER: &str = "000000000000000000000000000000c1";

struct Place {
    dir: TempDir,
}

/// A process that does not outlive its test, nor does its group.
struct Running {
    child: Child,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// `quorate guard` in the test's directory, without the variables of an outer `quorate lock`.
    fn guard(&self, subcommand: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command
            .args(["guard", subcommand, "--state"])
            .arg(self.state())
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .env_remove("QUORATE_TOKEN")
            .env_remove("QUORATE_SEAT")
            .env("QUORATE_CLUSTER", CLUSTER);
        command
    }

    /// `quorate guard run` of a shell script.
    fn run(&self, options: &[&str], resource: &str, token: u64, script: &str) -> Command {
        let mut command = self.guard("run");
        command.args(options).args([resource, &token.to_string()]);
        command.args(["--", "sh", "-c", script]);
        command
    }

    /// Runs a script that writes its process id to `NAME` and then goes on with `rest`.
    fn start_inside(&self, token: u64, name: &str, rest: &str) -> (Running, Stray) {
        let script = format!("echo $$ > {name}.new; mv {name}.new {name}; {rest}");
        let running = Running::start(&mut self.run(&[], "orders", token, &script));
        let command = Stray(self.number_in(name));
        (running, command)
    }

    fn number_in(&self, name: &str) -> i32 {
        eventually("the script writes its number", || {
            fs::read_to_string(self.path(name)).ok()?.trim().parse().ok()
        })
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let child = command
            .process_group(0)
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        Self { child }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The next line on standard error.
    fn next_line(&mut self) -> String {
        let mut line = String::new();
        let mut stderr = self.child.stderr.take().expect("it is piped");
        // Byte by byte, so that nothing behind the line is taken.
        let mut byte = [0];
        while stderr.read(&mut byte).expect("it can be read") == 1 && byte[0] != b'\n' {
            line.push(byte[0].into());
        }
        self.child.stderr = Some(stderr);
        line
    }

    fn end(&mut self) -> ExitStatus {
        eventually("the process ends", || self.child.try_wait().expect("it is ours"))
    }

    /// What is left on standard error, after its end.
    fn rest_of_stderr(&mut self) -> Vec<String> {
        let stderr = self.child.stderr.take().expect("it is piped");
        BufReader::new(stderr).lines().map(|line| line.expect("text")).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that a script started, and that does not outlive its test either.
struct Stray(i32);

impl Stray {
    fn pid(&self) -> Pid {
        Pid::from_raw(self.0).expect("a process id")
    }

    fn is_alive(&self) -> bool {
        // A zombie has ended, although its number is still taken.
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        test_kill_process(self.pid()).is_ok() && !stat.contains(") Z ")
    }
}

impl Drop for Stray {
    fn drop(&mut self) {
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = kill_process(self.pid(), Signal::KILL);
    }
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(started.elapsed() < LONG, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn output(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code().expect("no signal"), text(stdout), text(stderr))
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn r31_a_stale_token_is_refused_and_the_highest_is_named() {
    let place = Place::new();
    let first = output(&mut place.run(&[], "orders", 42, "echo 42 >> orders"));
    assert_eq!(first, (0, String::new(), String::new()));
    let again = output(&mut place.run(&[], "orders", 42, "echo again >> orders"));
    assert_eq!(again.0, 0);
    let (code, _, stderr) = output(&mut place.run(&[], "orders", 41, "echo 41 >> orders"));
    assert_eq!(code, 3);
    let reason = "quorate: refused: token 41 is older than 42, which orders accepted at 2";
    assert!(last_line(&stderr).starts_with(reason), "{stderr}");
    assert_eq!(place.read("orders"), "42\nagain\n");
}

#[test]
fn the_exit_code_is_the_commands_own() {
    let place = Place::new();
    assert_eq!(output(&mut place.run(&[], "orders", 1, "exit 7")).0, 7);
    let (code, _, stderr) = output(&mut place.run(&[], "orders", 1, "kill -9 $$"));
    assert_eq!((code, last_line(&stderr)), (137, "quorate: sh was ended by signal 9"));
    let mut absent = place.guard("run");
    absent.args(["orders", "1", "--", "./no-such-program"]);
    let (code, _, stderr) = output(&mut absent);
    assert_eq!(code, 1);
    assert!(last_line(&stderr).starts_with("quorate: cannot run ./no-such-program: "), "{stderr}");
    let mut tokenless = place.guard("run");
    tokenless.args(["orders", "--", "true"]);
    let (code, _, stderr) = output(&mut tokenless);
    assert_eq!(code, 2);
    assert!(last_line(&stderr).starts_with("quorate: no token: "), "{stderr}");
}

#[test]
fn the_token_seat_and_cluster_come_from_the_environment() {
    let place = Place::new();
    let script = "echo $QUORATE_TOKEN $QUORATE_SEAT $QUORATE_RESOURCE $QUORATE_CLUSTER";
    let mut inside = place.guard("run");
    inside.env("QUORATE_TOKEN", "43").env("QUORATE_SEAT", "1");
    inside.args(["--by-seat", "orders", "--", "sh", "-c", script]);
    let (code, stdout, _) = output(&mut inside);
    assert_eq!((code, stdout), (0, format!("43 1 orders {CLUSTER}\n")));

    let mut whole = place.guard("run");
    whole.env("QUORATE_TOKEN", "43").env("QUORATE_SEAT", "1").args(["orders", "--", "true"]);
    let (code, _, stderr) = output(&mut whole);
    assert_eq!(code, 3, "r12: a resource as a whole is for a group with one seat");
    assert!(stderr.contains("orders is guarded as a whole"), "{stderr}");

    let mut wrong = place.guard("run");
    wrong.env("QUORATE_TOKEN", "many").args(["orders", "--", "true"]);
    let (code, _, stderr) = output(&mut wrong);
    assert_eq!(code, 2);
    assert_eq!(last_line(&stderr), "quorate: QUORATE_TOKEN is \"many\", which cannot be understood");
}

#[test]
fn r30_a_token_of_another_cluster_is_refused_with_its_own_reason() {
    let place = Place::new();
    assert_eq!(output(&mut place.run(&[], "orders", 42, "true")).0, 0);
    let (code, _, stderr) = output(&mut place.run(&["--cluster", "c2"], "orders", 99, "true"));
    assert_eq!(code, 3);
    assert!(stderr.contains("the token is of cluster 000000000000000000000000000000c2"), "{stderr}");
    let mut unnamed = place.run(&[], "orders", 99, "true");
    let (code, _, stderr) = output(unnamed.env_remove("QUORATE_CLUSTER"));
    assert_eq!(code, 3);
    assert!(stderr.contains("does not say whose token it is"), "{stderr}");
}

#[test]
fn r34_a_token_beyond_the_last_that_was_issued_is_refused() {
    let place = Place::new();
    let (code, _, stderr) = output(&mut place.run(&["--highest-issued", "42"], "orders", 4200, "true"));
    assert_eq!(code, 3);
    assert!(stderr.contains("token 4200 has not been issued"), "{stderr}");
    assert_eq!(output(&mut place.run(&[], "orders", 42, "true")).0, 0);
}

#[test]
fn r33_command_inherits_the_lock() {
    let place = Place::new();
    let (mut first, command) = place.start_inside(41, "inside", "exec sleep 600");
    kill_process(first.pid(), Signal::KILL).expect("it runs");
    assert_eq!(first.end().signal(), Some(9));

    let (code, _, stderr) = output(&mut place.run(&["--wait", "200ms"], "orders", 42, "echo 42 >> orders"));
    assert_eq!(code, 73);
    let held = format!("quorate: not entered: orders is held by pid {} with token 41 since ", command.0);
    assert!(last_line(&stderr).starts_with(&held), "{stderr}");

    let mut second = Running::start(&mut place.run(&[], "orders", 42, "echo 42 >> orders"));
    let waiting = format!("quorate guard: waiting: orders is held by pid {} with token 41 since ", command.0);
    let line = second.next_line();
    assert!(line.starts_with(&waiting), "{line}");
    assert!(command.is_alive());
    assert_eq!(place.read("orders"), "", "it waits while the older command lives");
    kill_process(command.pid(), Signal::KILL).expect("it runs");
    assert_eq!(second.end().code(), Some(0));
    assert_eq!(place.read("orders"), "42\n");
    assert_eq!(output(&mut place.run(&[], "orders", 41, "true")).0, 3);
}

#[test]
fn r33_a_child_that_was_left_behind_is_named() {
    let place = Place::new();
    let script = "sleep 600 & echo $! > child";
    let mut left = Running::start(&mut place.run(&[], "orders", 41, script));
    assert_eq!(left.end().code(), Some(0));
    let child = Stray(place.number_in("child"));
    // Reading to the end would wait for the child, which has the pipe as well.
    let said = left.next_line();
    assert!(said.contains(&format!("left a process inside: orders is held by pid {}", child.0)), "{said}");
    let (code, _, stderr) = output(&mut place.run(&["--wait", "0"], "orders", 42, "true"));
    assert_eq!(code, 73);
    assert!(stderr.contains(&format!("is held by pid {}", child.0)), "{stderr}");
    kill_process(child.pid(), Signal::KILL).expect("it runs");
    assert_eq!(output(&mut place.run(&[], "orders", 42, "true")).0, 0);
}

#[test]
fn l2_the_floor_survives_a_kill_between_enter_and_write() {
    let place = Place::new();
    let mut killed = Running::start(&mut place.run(&[], "orders", 42, "kill -9 $PPID $$"));
    assert_eq!(killed.end().signal(), Some(9));
    let (code, _, stderr) = output(&mut place.run(&[], "orders", 41, "true"));
    assert_eq!(code, 3);
    assert!(stderr.contains("token 41 is older than 42"), "{stderr}");
}

#[test]
fn l5_a_stopped_writer_cannot_write_after_the_newer_one() {
    let place = Place::new();
    // A has 41 and is stopped before it comes to write.
    let mut late = Running::start(
        Command::new("sh")
            .args(["-c", "kill -STOP $$; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_quorate")])
            .args(["guard", "run", "--state", "state", "orders", "41"])
            .args(["--", "sh", "-c", "echo 41 >> orders"])
            .current_dir(place.dir.path())
            .stdin(Stdio::null())
            .env("QUORATE_CLUSTER", CLUSTER),
    );
    let stopped = late.child.id();
    eventually("it is stopped", || {
        let stat = fs::read_to_string(format!("/proc/{stopped}/stat")).ok()?;
        stat.contains(") T ").then_some(())
    });
    assert_eq!(output(&mut place.run(&[], "orders", 42, "echo 42 >> orders")).0, 0);
    kill_process(late.pid(), Signal::CONT).expect("it is stopped");
    assert_eq!(late.end().code(), Some(3));
    assert!(last_line(&late.rest_of_stderr().join("\n")).contains("token 41 is older than 42"));
    assert_eq!(place.read("orders"), "42\n");
}

/// Each process enters again and again with a token of its own choice; inside it would notice another one.
#[test]
fn x1_eight_processes_with_random_tokens_never_overlap_and_never_go_back() {
    let place = Place::new();
    let inside = "mkdir busy || echo overlap >> faults; echo $QUORATE_TOKEN >> orders; rmdir busy";
    let greatest = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for round in 0..6 {
                    let token = round * 10 + rand::random_range(1..10);
                    greatest.fetch_max(token, Ordering::Relaxed);
                    let (code, _, stderr) = output(&mut place.run(&[], "orders", token, inside));
                    assert!(code == 0 || code == 3, "{code}: {stderr}");
                }
            });
        }
    });
    let orders = place.read("orders");
    let tokens: Vec<u64> = orders.lines().map(|line| line.parse().expect("a token")).collect();
    assert!(tokens.is_sorted(), "{tokens:?}");
    assert_eq!(tokens.last(), Some(&greatest.into_inner()), "the newest holder always comes in");
    assert_eq!(place.read("faults"), "");
}

#[test]
fn r33_resources_do_not_block_each_other() {
    let place = Place::new();
    let _inside = place.start_inside(41, "inside", "exec sleep 600");
    assert_eq!(output(&mut place.run(&["--wait", "0"], "bills", 42, "true")).0, 0);
    let long = "ä/".repeat(85);
    assert_eq!(output(&mut place.run(&["--wait", "0"], &long, 42, "true")).0, 0);
}

#[test]
fn r33_a_greater_token_may_end_the_older_commands_group() {
    let place = Place::new();
    let (mut old, shell) = place.start_inside(41, "inside", "sleep 600 & echo $! > child; wait");
    let child = Stray(place.number_in("child"));
    let new = output(&mut place.run(&["--kill-older"], "orders", 42, "echo 42 >> orders"));
    assert_eq!(new.0, 0);
    let told = format!("told the older command to end (SIGTERM): orders is held by pid {}", shell.0);
    assert!(new.2.contains(&told), "{}", new.2);
    assert_eq!(old.end().code(), Some(128 + 15));
    assert!(!shell.is_alive());
    assert!(!child.is_alive());
    assert_eq!(place.read("orders"), "42\n");
}

#[test]
fn r33_a_command_that_does_not_listen_is_killed_after_the_grace() {
    let place = Place::new();
    let deaf = "trap '' TERM; while :; do sleep 1; done";
    let (mut old, shell) = place.start_inside(41, "inside", deaf);
    let options = ["--kill-older", "--grace", "100ms"];
    let (code, _, stderr) = output(&mut place.run(&options, "orders", 42, "true"));
    assert_eq!(code, 0);
    assert!(stderr.contains("killed the older command (SIGKILL)"), "{stderr}");
    assert_eq!(old.end().code(), Some(128 + 9));
    assert!(!shell.is_alive());
}

#[test]
fn r33_a_guard_that_was_stopped_with_its_command_does_not_keep_the_scope() {
    let place = Place::new();
    let (mut old, shell) = place.start_inside(41, "inside", "exec sleep 600");
    kill_process(old.pid(), Signal::STOP).expect("it runs");
    kill_process(shell.pid(), Signal::STOP).expect("it runs");
    let options = ["--kill-older", "--grace", "100ms"];
    assert_eq!(output(&mut place.run(&options, "orders", 42, "true")).0, 0);
    assert_eq!(old.end().signal(), Some(9));
}

#[test]
fn r33_only_an_older_command_is_killed() {
    let place = Place::new();
    let (_same, command) = place.start_inside(42, "inside", "exec sleep 600");
    let options = ["--kill-older", "--wait", "300ms"];
    assert_eq!(output(&mut place.run(&options, "orders", 42, "true")).0, 73);
    assert_eq!(output(&mut place.run(&options, "orders", 41, "true")).0, 3);
    assert!(command.is_alive());
}

#[test]
fn r33_a_process_number_that_was_given_out_again_is_never_killed() {
    let place = Place::new();
    let (_old, command) = place.start_inside(41, "inside", "exec sleep 600");
    let mut bystander = Running::start(Command::new("sleep").arg("600"));
    // As if the command had ended and its number were another process's by now.
    let record = place.path("state.scopes/orders@0");
    let text = fs::read_to_string(&record).expect("it is written");
    let mut holder: Value = serde_json::from_str(&text).expect("JSON");
    let command_of = &mut holder["command"]["process"];
    command_of["pid"] = bystander.child.id().into();
    // Two that start within a hundredth of a second started in the same tick of the kernel's clock: the one that
    // had the number before did not.
    let started = command_of["started"].as_u64().expect("this system tells when a process started");
    command_of["started"] = (started - 1).into();
    fs::write(&record, holder.to_string()).expect("it can be written");
    let options = ["--kill-older", "--grace", "50ms", "--wait", "400ms"];
    let (code, _, stderr) = output(&mut place.run(&options, "orders", 42, "true"));
    assert_eq!(code, 73, "{stderr}");
    assert!(!stderr.contains("SIGTERM"), "{stderr}");
    assert_eq!(bystander.child.try_wait().expect("it is ours"), None);
    assert!(command.is_alive());
}

#[test]
fn r36_a_process_that_left_the_group_is_not_reached_and_is_named() {
    let place = Place::new();
    let _old = place.start_inside(41, "inside", "setsid sh -c 'echo $$ > child; exec sleep 600' & wait");
    let escaped = Stray(place.number_in("child"));
    let options = ["--kill-older", "--grace", "50ms", "--wait", "3s"];
    let (code, _, stderr) = output(&mut place.run(&options, "orders", 42, "true"));
    assert_eq!(code, 73);
    assert!(last_line(&stderr).contains(&format!("is held by pid {}", escaped.0)), "{stderr}");
    assert!(escaped.is_alive());
}

#[test]
fn signals_are_the_commands_to_answer() {
    for (signal, name, code) in [(Signal::TERM, "TERM", 5), (Signal::INT, "INT", 6)] {
        let place = Place::new();
        let script = format!("trap 'exit {code}' {name}; echo > ready; while :; do sleep 0.01; done");
        let (mut running, _command) = place.start_inside(41, "inside", &script);
        eventually("the trap is set", || place.path("ready").exists().then_some(()));
        kill_process(running.pid(), signal).expect("it runs");
        assert_eq!(running.end().code(), Some(code));
    }
}

#[test]
fn r31_admit_says_that_it_is_only_a_check() {
    let place = Place::new();
    let admit = |arguments: &[&str]| output(place.guard("admit").args(arguments));
    let (code, stdout, stderr) = admit(&["orders", "42"]);
    assert_eq!((code, stdout.as_str()), (0, "42\n"));
    assert!(stderr.contains("this is only a check"), "{stderr}");
    let (code, stdout, stderr) = admit(&["orders", "41"]);
    assert_eq!((code, stdout.as_str()), (3, "42\n"));
    assert!(last_line(&stderr).starts_with("quorate: refused: token 41 is older than 42"), "{stderr}");
    let (code, stdout, _) = admit(&["--json", "orders", "41"]);
    let answer = &json_lines(&stdout)[0];
    assert_eq!(code, 3);
    assert_eq!((&answer["admitted"], &answer["highest"]), (&Value::Bool(false), &"42".into()));
    assert_eq!(output(&mut place.run(&[], "orders", 41, "true")).0, 3, "the floor was raised");
}

#[test]
fn show_tells_the_floors_who_is_inside_and_who_was_refused() {
    let place = Place::new();
    let (code, _, stderr) = output(&mut place.guard("show"));
    assert_eq!(code, 1, "{stderr}");
    assert!(!place.state().exists(), "to look does not make a guard");
    let (_inside, command) = place.start_inside(42, "inside", "exec sleep 600");
    assert_eq!(output(&mut place.run(&[], "orders", 41, "true")).0, 3);
    assert_eq!(output(&mut place.run(&[], "bills", 7, "true")).0, 0);
    let (code, table, _) = output(&mut place.guard("show"));
    assert_eq!(code, 0);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("RESOURCE"), "{table}");
    assert!(lines[1].starts_with("bills"), "{table}");
    assert!(lines[2].contains(&format!("pid {} with 42", command.0)), "{table}");
    assert!(table.ends_with("the greatest token of all is 42\n"), "{table}");
    let (_, text, _) = output(place.guard("show").args(["--json", "orders"]));
    let shown = json_lines(&text);
    let orders = &shown[0];
    assert_eq!(shown.len(), 1);
    assert_eq!(orders["floors"][0]["token"], "42");
    assert_eq!(orders["floors"][0]["cluster"], CLUSTER);
    assert_eq!(orders["holders"][0]["pid"], command.0);
    assert_eq!((&orders["refusal_count"], &orders["refusals"][0]["token"]), (&1.into(), &"41".into()));
    let (code, _, stderr) = output(place.guard("show").arg("other"));
    assert_eq!(code, 1);
    assert!(stderr.contains("the guard knows no resource other"), "{stderr}");
}

#[test]
fn r34_a_reset_leaves_an_audit_line() {
    let place = Place::new();
    assert_eq!(output(&mut place.run(&[], "orders", 4200, "true")).0, 0);
    let mut reset = place.guard("reset");
    reset.args(["orders", "--floor", "42", "--why", "4200 was a typing error"]);
    let (code, stdout, _) = output(&mut reset);
    assert_eq!(code, 0);
    assert!(stdout.contains("orders: floor 4200 -> 42 by user "), "{stdout}");
    assert_eq!(output(&mut place.run(&[], "orders", 41, "true")).0, 3);
    assert_eq!(output(&mut place.run(&[], "orders", 43, "true")).0, 0);
    let (_, text, _) = output(place.guard("show").args(["--json"]));
    let audit = &json_lines(&text)[1];
    assert_eq!((&audit["from"], &audit["to"]), (&"4200".into(), &"42".into()));
    assert_eq!(audit["why"], "4200 was a typing error");
    let unreasoned = output(place.guard("reset").args(["orders", "--why", " "]));
    assert_eq!(unreasoned.0, 2);
}

#[test]
fn r34_a_state_that_is_lost_copied_or_damaged_runs_nothing() {
    let place = Place::new();
    assert_eq!(output(&mut place.run(&[], "orders", 42, "true")).0, 0);
    let whole = fs::read(place.state()).expect("it is there");
    type Harm<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, Harm<'_>, &str); 3] = [
        ("lost", &|state| fs::remove_file(state).expect("it is there"), "is missing, although"),
        ("damaged", &|state| fs::write(state, &whole[..99]).expect("written"), "is damaged"),
        (
            "copied",
            &|state| {
                fs::write(state, &whole).expect("written");
                let lock = state.with_extension("lock");
                fs::copy(&lock, lock.with_extension("copy")).expect("copied");
                fs::rename(lock.with_extension("copy"), lock).expect("renamed");
            },
            "was copied or moved",
        ),
    ];
    for (case, harm, said) in cases {
        harm(&place.state());
        let (code, _, stderr) = output(&mut place.run(&[], "orders", 43, "echo >> orders"));
        assert_eq!(code, 1, "{case}: {stderr}");
        assert!(last_line(&stderr).starts_with("quorate: the guard's state "), "{case}: {stderr}");
        assert!(stderr.contains(said), "{case}: {stderr}");
        assert!(!place.path("orders").exists(), "{case}");
        let mut reset = place.guard("reset");
        reset.args(["--all", "--floor", "42", "--why", case]);
        assert_eq!(output(&mut reset).0, 0, "{case}");
        assert_eq!(output(&mut place.run(&[], "orders", 41, "true")).0, 3, "{case}");
        assert_eq!(output(&mut place.run(&["--cluster", "c1"], "orders", 42, "true")).0, 0, "{case}");
    }
    let mut fresh = place.guard("run");
    fresh.args(["--existing", "--state", "elsewhere", "orders", "1", "--", "true"]);
    let (code, _, stderr) = output(&mut fresh);
    assert_ne!(code, 0, "{stderr}");
    assert!(!place.path("elsewhere").exists());
}
