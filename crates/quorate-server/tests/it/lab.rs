//! The lab from its command line: what is misspelt is said, what is ended says what it has found, and of real
//! processes none is left behind.

use crate::harness::{LONG, Ran, quorate, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

fn lab(args: &[&str]) -> Ran {
    run(quorate().arg("lab").args(args))
}

/// A command line that is wrong, and says so in these words.
fn wrong(args: &[&str], words: &str) {
    let ran = lab(args);
    assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
    assert!(ran.last_line().contains(words), "{words} in {}", ran.stderr);
}

#[test]
fn a_scenario_is_written_by_its_first_update_and_then_holds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.txt");
    let file = path.to_str().unwrap();
    fs::write(&path, "nodes 3 protocol=central retyr=30ms\n").unwrap();
    wrong(&["run", file], "there is no option retyr= here; there are delay=");
    fs::write(&path, "nodes 3 protocol=central\n\ncall n2 enter\nrun\n").unwrap();
    let new = lab(&["run", file]);
    assert_eq!(new.code, Some(1));
    assert!(
        new.last_line().contains("there is no history yet at line 2; --update writes it"),
        "{}",
        new.stderr
    );
    lab(&["run", file, "--update"]).ok();
    assert!(lab(&["run", file]).ok().stdout.contains("n2 entered n2.1 token 1"));
    wrong(&["run", file, "--json", "--text"], "one of both");
}

/// `quorate lab check ... > FILE; quorate lab run FILE`, as the help says.
#[test]
fn what_is_found_is_played_again_as_it_was_printed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("found.txt");
    for (args, shows) in [
        (["check", "term", "--without", "disk"], "VIOLATED: "),
        (["check", "bully", "--without", "answers"], "n1 elected n1"),
        (["fuzz", "term", "--mutant", "half-is-enough"], "VIOLATED: "),
        (["fuzz", "maekawa-basic", "--seeds", "1000"], "waits to enter"),
    ] {
        let printed = File::create(&file).unwrap();
        let found = quorate().arg("lab").args(args).stdout(printed).stderr(Stdio::null()).status().unwrap();
        assert_eq!(found.code(), Some(1), "{args:?}");
        let again = lab(&["run", file.to_str().unwrap()]).ok();
        assert!(again.stdout.contains(shows), "{args:?}: {}", again.stdout);
    }
}

#[test]
fn a_trace_is_drawn_as_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.ndjson");
    let trace = path.to_str().unwrap();
    lab(&["run", "mutex/central", "--ndjson", trace]).ok();
    assert!(lab(&["draw", trace, "--text", "--only", "n1,n2"]).ok().stdout.contains("GRANT n2.1"));
    wrong(&["draw", trace], "say what to make of it");
    fs::write(&path, "{\"quorate_trace\":1}\n").unwrap();
    wrong(&["draw", trace, "--text"], "which writes the whole run with --ndjson");
}

#[test]
fn numbers_that_make_no_sense_are_refused_and_the_last_seeds_are_run() {
    wrong(&["fuzz", "central", "--seeds", "0"], "0 is not in 1..");
    wrong(&["fuzz", "central", "--threads", "0"], "0 is not in 1..=64");
    wrong(&["fuzz", "central", "--first", "18446744073709551615", "--seeds", "1"], "there are no such seeds");
    wrong(&["check", "bully", "--entries", "2"], "in bully nobody enters");
    wrong(&["figures", "--rings", "10"], "10 is not in 1000..");
    lab(&["check", "central", "--n", "2", "--restarts", "200", "--wipes", "100", "--states-max", "9"]);
    let last = ["fuzz", "central", "--first", "18446744073709551000", "--seeds", "600", "--json"];
    assert_eq!(lab(&last).ok().json()[0]["worlds"], 600);
    let mut unheard = quorate();
    unheard.args(["lab", "fuzz", "central", "--seeds", "10"]);
    unheard.stderr(File::options().write(true).open("/dev/full").unwrap());
    assert_eq!(run(&mut unheard).code, Some(0), "that nobody reads the verdict changes nothing about it");
}

/// Starts it, and waits until it answers a signal by itself.
fn started(command: &mut Command) -> Child {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let path = format!("/proc/{}/status", child.id());
    until("that it listens for signals", || {
        let status = fs::read_to_string(&path).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0");
        let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
        [Signal::INT, Signal::TERM].iter().all(|signal| caught >> (signal.as_raw() - 1) & 1 == 1)
    });
    child
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what} does not come");
        std::thread::yield_now();
    }
}

/// Ends it by a signal, and says how it ended and what it has printed.
fn ended(child: Child, signal: Signal) -> (Option<i32>, String, String) {
    kill_process(Pid::from_child(&child), signal).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_search_and_random_worlds_that_are_ended_say_what_they_have_found() {
    let search = ["lab", "check", "ricart-agrawala", "--crashes", "2", "--restarts", "2", "--json"];
    let (code, out, err) = ended(started(quorate().args(search)), Signal::INT);
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &found["complete"]), (Some(130), &false.into()), "{err}");
    assert!(found["states"].as_u64() > Some(1_000), "{found}");
    let last = err.lines().last().unwrap();
    assert!(last.starts_with("quorate: ended by signal 2: nothing was violated in "), "{err}");

    let worlds = ["lab", "fuzz", "maekawa", "--seeds", "1000000000000"];
    let (code, out, err) = ended(started(quorate().args(worlds)), Signal::TERM);
    assert_eq!((code, out.as_str()), (Some(143), ""));
    assert!(err.contains("maekawa: not finished: nothing has failed so far"), "{err}");
    assert!(err.lines().last().unwrap().ends_with(" worlds hold"), "{err}");
}

#[test]
fn what_real_processes_are_asked_for_is_understood_or_refused() {
    let processes = |args: &[&str], words| wrong(&[&["processes"], args].concat(), words);
    processes(
        &["central", "--set", "retry_ms=5"],
        "central has no setting retry_ms; it has lease_ms, durable",
    );
    processes(&["central", "--set", "lease_ms=0"], "at least 1 and at most a day, not 0");
    processes(&["central", "--set", "durable=yes"], "durable is true or false, not yes");
    processes(&["bully", "--set", "again_ms=9", "--set", "again_ms=8"], "again_ms is set twice");
    processes(&["bully", "--n", "3", "--crash", "1,2,3"], "nobody is left for it");
    processes(&["bully", "--patience-s", "18446744073709551615"], "is not in 1..=86400");
    processes(&["central", "--hold-ms", "18446744073709551615"], "is not in 0..=86400000");
    processes(&["central", "--entries", "0"], "0 is not in 1..");
    processes(&["central", "--fault", "kill n2 n3"], "kill n2 n3 is no fault");
    let dir = tempfile::tempdir().unwrap();
    let keep = dir.path().join("kept");
    let kept =
        ["processes", "bully", "--n", "3", "--crash", "n1", "--json", "--keep", keep.to_str().unwrap()];
    let shown = &lab(&kept).ok().json()[0];
    assert_eq!((&shown["leader"], &shown["lives"]), (&"n3".into(), &3.into()), "the first that runs begins");
    wrong(&kept, "is not empty");
}

#[test]
fn faults_are_lived_through_without_a_word_about_settings() {
    for (protocol, fault) in [
        ("ricart-agrawala", "kill n3"),
        ("maekawa", "kill n2"),
        ("central", "kill n1"),
        ("token-ring", "kill n1"),
        ("bully", "kill n4"),
        ("ring", "kill n4"),
        ("chang-roberts", "kill n4"),
        ("term", "kill n1"),
    ] {
        let faults =
            ["--fault", fault, "--fault", "pass 100", "--fault", "cut n2->n3", "--fault", "pass 100"];
        let ran = lab(&[&["processes", protocol, "--hold-ms", "50", "--json"], &faults[..]].concat()).ok();
        let shown = &ran.json()[0];
        assert_eq!((&shown["lives"], &shown["violated"]), (&5.into(), &Value::Null), "{shown}");
        let retries = shown["settings"]["retry_ms"] == 300;
        assert_eq!(retries, !["central", "bully", "term"].contains(&protocol), "{shown}");
    }
    let own = ["processes", "ring", "--set", "retry_ms=200", "--fault", "kill n2"];
    assert!(lab(&own).ok().stdout.contains("with elect_at_start=true quorum=false retry_ms=200"));
}

/// The state of each process that this one has started: a letter, as the kernel shows it.
fn children(parent: u32) -> Vec<(u32, char)> {
    let all =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter_map(|pid: u32| {
        let (state, of) = stat(pid)?;
        (of == parent).then_some((pid, state))
    })
    .collect()
}

/// The state of a process, and who started it.
fn stat(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat.rsplit_once(") ")?.1.split(' ');
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

fn all_have_ended(children: &[(u32, char)]) {
    until("the end of all that it had started", || {
        children.iter().all(|(pid, _)| stat(*pid).is_none_or(|(state, _)| "ZX".contains(state)))
    });
}

/// Four processes, the third of which stands still for a minute.
fn with_one_paused(temporary: &Path) -> (Child, Vec<(u32, char)>) {
    let mut command = quorate();
    command.args(["lab", "processes", "central", "--hold-ms", "60000"]).env("TMPDIR", temporary);
    command.args(["--fault", "pause n3", "--fault", "pass 60000"]);
    let child = started(&mut command);
    until("that one is paused", || children(child.id()).iter().any(|(_, state)| *state == 'T'));
    let children = children(child.id());
    assert_eq!(children.len(), 4);
    (child, children)
}

#[test]
fn real_processes_end_with_the_one_that_started_them_also_if_one_is_paused() {
    for signal in [Signal::INT, Signal::TERM] {
        let dir = tempfile::tempdir().unwrap();
        let (child, children) = with_one_paused(dir.path());
        let (code, _, err) = ended(child, signal);
        assert_eq!(code, Some(128 + signal.as_raw()));
        assert!(err.contains("all processes that it had started have ended"), "{err}");
        assert!(children.iter().all(|(pid, _)| stat(*pid).is_none()), "they were waited for");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left among the temporary files");
    }
    let dir = tempfile::tempdir().unwrap();
    let (child, children) = with_one_paused(dir.path());
    assert_eq!(ended(child, Signal::KILL).0, None);
    all_have_ended(&children);
}
