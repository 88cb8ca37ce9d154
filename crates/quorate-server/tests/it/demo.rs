//! The demo: what the README begins with must happen as it says, with the guard and without.

use crate::harness::{quorate, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("each line is a JSON object")).collect()
}

/// The ordinals in a row, those of the dead and the paused left out.
fn ordinals(line: &Value) -> Option<Vec<Option<i64>>> {
    let places = line.get("places")?.as_object()?;
    Some(places.values().map(|place| place["ordinal"].as_i64()).collect())
}

#[test]
fn one_is_killed_one_is_paused_and_the_late_write_is_refused() {
    let shown = run(quorate().args(["--json", "demo", "--ttl", "1s"])).ok();
    let lines = lines(&shown.stdout);
    let rows: Vec<_> = lines.iter().filter_map(ordinals).collect();
    let all = |row: [i64; 5]| row.map(Some).to_vec();
    assert_eq!(rows[0], all([1, 2, 3, 4, 5]), "{}", shown.stdout);
    assert_eq!(rows[1], [None, Some(2), Some(3), Some(4), Some(5)], "nobody acts before the lease has ended");
    assert_eq!(rows[2], [None, Some(1), Some(2), Some(3), Some(4)]);
    assert_eq!(rows[3], all([5, 1, 2, 3, 4]), "who comes back takes the tail");
    assert_eq!(rows[5], [Some(4), None, Some(1), Some(2), Some(3)]);
    assert_eq!(rows[6], all([4, -1, 1, 2, 3]), "who wakes late hears first that it is cut off");
    assert_eq!(rows[7], all([4, 5, 1, 2, 3]));
    let refused = lines.iter().filter_map(|line| line["P2 writes all the same, and is refused"].as_str());
    assert_eq!(refused.filter(|why| why.contains("is older than")).count(), 1, "{}", shown.stdout);
    let end = lines.last().expect("there is a last line");
    assert_eq!((&end["guarded"], &end["stale_lines"]), (&true.into(), &0.into()));
}

#[test]
fn without_the_guard_the_late_line_is_in_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let kept = dir.path().join("kept");
    let kept = kept.to_str().expect("a path");
    let shown = run(quorate().args(["--json", "demo", "--ttl", "1s", "--no-guard", "--dir", kept])).ok();
    let end = lines(&shown.stdout).pop().expect("there is a last line");
    assert_eq!((&end["guarded"], &end["stale_lines"]), (&false.into(), &1.into()));
    let file = std::fs::read_to_string(dir.path().join("kept/ledger.txt")).expect("it is kept");
    let stale = format!("{} P2", end["stale_token"].as_str().expect("a token"));
    assert!(file.lines().any(|line| line == stale), "{file}");
    let again = run(quorate().args(["demo", "--dir", kept]));
    assert_eq!(again.code, Some(2), "a directory with something in it is left alone");
    assert!(again.last_line().contains("is not empty"), "{}", again.stderr);
}

#[test]
fn it_can_be_interrupted_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = quorate();
    command.args(["--json", "demo"]).env("TMPDIR", dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut first = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
    out.read_line(&mut first).expect("it says that all have joined");
    assert!(first.contains("All have joined"), "{first}");
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    let left: Vec<_> = std::fs::read_dir(dir.path()).expect("the directory is there").collect();
    assert!(left.is_empty(), "{left:?}");
}
