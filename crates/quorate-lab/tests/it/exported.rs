//! Exports, each read by a reader that shares nothing with the writer.

use crate::runs::{busy, four_at_once, leaders, partition_and_crash, random, two_hundred, violated};
use crate::shiviz::read as read_shiviz;
use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};
use quorate_core::protocol::{Incarnation, Peer, ProcessId, Request};
use quorate_core::trace::{Step, What};
use quorate_lab::export::{MESSAGES_MAX, chrome, mermaid, ndjson, shiviz};
use quorate_lab::network::Network;
use quorate_lab::story::{Origin, Scene, Slice, Story};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

fn some_stories() -> [Story; 5] {
    [four_at_once(), partition_and_crash(), two_hundred(), leaders(), violated()]
}

/// A part of a story that some seed chooses.
fn some_slice(story: &Story, seed: u64) -> Slice {
    let last = story.trace.steps().last().map_or(0, |step| step.at.0);
    let requests: Vec<_> = story.trace.steps().filter_map(|step| step.about).collect();
    Slice {
        from_us: (seed & 1 == 1).then_some(last / 4),
        until_us: (seed & 2 == 2).then_some(last * 3 / 4),
        processes: (seed & 4 == 4).then(|| story.processes[..story.processes.len() - 1].to_vec()),
        request: requests.get(seed as usize % requests.len().max(1)).copied().filter(|_| seed & 8 == 8),
    }
}

// ---- NDJSON

fn same(one: &Story, other: &Story) -> bool {
    let told = |story: &Story| -> Vec<(Step, String)> {
        let words = |step: &Step| story.trace.words(step).to_owned();
        story.trace.steps().map(|step| (Step { text: 0, ..*step }, words(step))).collect()
    };
    let about = |story: &Story| {
        (story.title.clone(), story.caption.clone(), story.seed, story.origin, story.processes.clone())
    };
    told(one) == told(other) && about(one) == about(other) && one.names == other.names
}

#[test]
fn ndjson_is_read_back_as_it_was() {
    for story in some_stories() {
        let file = ndjson::write(&story);
        let back = ndjson::read(&file).unwrap();
        assert!(same(&story, &back), "{}", story.title);
        assert_eq!(ndjson::write(&back), file);
    }
}

#[test]
fn ndjson_has_a_header_and_a_line_a_step() {
    let story = four_at_once();
    let file = ndjson::write(&story);
    let lines: Vec<Value> = file.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), story.trace.steps().len() + 1);
    assert_eq!(lines[0]["v"], 1);
    assert_eq!(lines[0]["seed"], "1");
    let first = &lines[3];
    assert_eq!(first["e"], "send");
    assert_eq!((&first["n"], &first["to"], &first["ty"]), (&"n1".into(), &"n2".into(), &"REQUEST".into()));
    assert_eq!((&first["m"], &first["op"]), (&"1".into(), &"n1.1".into()));
    assert_eq!(first["t_us"], 0);
}

#[test]
fn a_file_that_makes_no_sense_says_which_line() {
    let header = r#"{"v":1,"nodes":["n1","n2"]}"#;
    let wrong = [
        ("{\"v\":2}", 1, "version 2"),
        ("", 0, "neither a header"),
        ("no json", 1, "no JSON"),
        (&format!("{header}\n{{\"n\":\"n1\",\"t_us\":5,\"e\":\"explode\"}}"), 2, "explode"),
        (&format!("{header}\n{{\"n\":\"x\",\"t_us\":5,\"e\":\"crash\"}}"), 2, "x is no process"),
        (&format!("{header}\n{{\"n\":\"n0\",\"t_us\":5,\"e\":\"crash\"}}"), 2, "n0 is no process"),
        (
            &format!("{header}\n{{\"n\":\"n1\",\"t_us\":5,\"e\":\"send\",\"m\":\"1\",\"ty\":\"A\"}}"),
            2,
            "\"to\" is missing",
        ),
        (&format!("{header}\n{{\"n\":\"n1\",\"t_us\":5,\"e\":\"crash\",\"op\":\"n1\"}}"), 2, "no request"),
        (
            &format!(
                "{header}\n{}\n{}",
                r#"{"n":"n1","k":1,"t_us":5,"e":"pause"}"#, r#"{"n":"n1","k":3,"t_us":6,"e":"resume"}"#
            ),
            3,
            "n1 counts 3 after 1",
        ),
    ];
    for (file, line, why) in wrong {
        let error = ndjson::read(file).unwrap_err();
        assert_eq!(error.line, line, "{error}");
        assert!(error.to_string().contains(why), "{error} / {why}");
    }
}

/// Two processes wrote their own files, with clocks that are 90 ms apart and names of messages of their own.
#[test]
fn files_of_real_processes_are_put_in_the_order_of_their_causes() {
    let files = [
        r#"{"v":1,"title":"two real ones","mode":"real","nodes":["n1"]}"#,
        r#"{"n":"n1","k":1,"t_us":100000,"e":"send","m":"n1.1.1","ty":"ping","to":"n2"}"#,
        r#"{"n":"n1","k":2,"t_us":101500,"e":"recv","m":"n2.1.1","ty":"pong","from":"n2"}"#,
        r#"{"v":1,"mode":"real","nodes":["n2"]}"#,
        r#"{"n":"n2","k":1,"t_us":10000,"e":"recv","m":"n1.1.1","ty":"ping","from":"n1","later":"unknown keys are passed over"}"#,
        r#"{"n":"n2","k":2,"t_us":10200,"e":"send","m":"n2.1.1","ty":"pong","to":"n1"}"#,
    ];
    let story = ndjson::read(&files.join("\n")).unwrap();
    assert_eq!(story.origin, Origin::Real);
    assert_eq!(story.processes, [1, 2].map(ProcessId));
    assert_eq!(story.names.messages, ["ping", "pong"]);
    let order: Vec<_> = story.trace.steps().map(|step| (step.at_peer.process.0, step.at.0)).collect();
    assert_eq!(order, [(1, 100_000), (2, 100_000), (2, 100_200), (1, 101_500)]);
    assert!(quorate_lab::diagram::space_time(&story).contains(">pong</text>"));

    let circle = [
        r#"{"n":"n1","t_us":1,"e":"recv","m":"2","ty":"a","from":"n2"}"#,
        r#"{"n":"n1","t_us":2,"e":"send","m":"1","ty":"a","to":"n2"}"#,
        r#"{"n":"n2","t_us":1,"e":"recv","m":"1","ty":"a","from":"n1"}"#,
        r#"{"n":"n2","t_us":2,"e":"send","m":"2","ty":"a","to":"n1"}"#,
    ];
    assert!(ndjson::read(&circle.join("\n")).unwrap_err().to_string().contains("no order"));
}

// ---- ShiViz

#[test]
fn shiviz_takes_runs_and_several_beside_each_other() {
    let stories = some_stories();
    for story in &stories {
        let runs = read_shiviz(&shiviz(&[story])).unwrap();
        assert_eq!(runs.len(), 1);
        assert_eq!(runs[0].len(), story.trace.steps().len());
    }
    let all = read_shiviz(&shiviz(&stories.iter().collect::<Vec<_>>())).unwrap();
    assert_eq!(all.len(), stories.len());
}

/// A receipt's clock has the sender's at the send: computed here from the words alone.
#[test]
fn shiviz_draws_an_edge_for_each_receipt() {
    let run = read_shiviz(&shiviz(&[&four_at_once()])).unwrap().remove(0);
    let reply =
        run.iter().find(|event| event.host == "n1" && event.words.starts_with("receives REPLY n1.1 from n3"));
    let sent = run.iter().find(|event| event.host == "n3" && event.words.starts_with("sends REPLY n1.1"));
    let (reply, sent) = (reply.unwrap(), sent.unwrap());
    assert_eq!(reply.clock["n3"], sent.clock["n3"]);
    assert!(sent.clock.iter().all(|(of, count)| reply.clock[of] >= *count));
    let entered = run.iter().find(|event| event.words == "says entered n1.1").unwrap();
    assert_eq!(entered.clock.len(), 4, "it depends on all");
}

// ---- Chrome

/// Slices of one row nest, and both ends of each arrow lie in a slice; an arrow does not go back.
fn check_chrome(file: &str) -> (usize, usize) {
    let file: Value = serde_json::from_str(file).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let number = |event: &Value, key: &str| (event[key].as_f64().unwrap() * 1_000.0).round() as u64;
    let mut rows: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    let row = |event: &Value| (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
    for slice in events.iter().filter(|event| event["ph"] == "X") {
        let begin = number(slice, "ts");
        rows.entry(row(slice)).or_default().push((begin, begin + number(slice, "dur")));
    }
    for slices in rows.values_mut() {
        slices.sort_by_key(|(begin, end)| (*begin, std::cmp::Reverse(*end)));
        let mut open: Vec<u64> = Vec::new();
        for (begin, end) in slices {
            open.retain(|outer| *outer > *begin);
            assert!(open.iter().all(|outer| *end <= *outer), "slices overlap");
            open.push(*end);
        }
    }
    let mut starts = BTreeMap::new();
    let mut arrows = 0;
    for end in events.iter().filter(|event| event["ph"] == "s" || event["ph"] == "f") {
        let at = number(end, "ts");
        assert!(
            rows[&row(end)].iter().any(|(begin, end)| (*begin..*end).contains(&at)),
            "an end hangs in the air"
        );
        if end["ph"] == "s" {
            starts.insert(end["id"].as_u64().unwrap(), (at, end["name"].clone()));
        } else {
            let (sent, name) = &starts[&end["id"].as_u64().unwrap()];
            assert!(*sent < at && *name == end["name"] && end["bp"] == "e");
            arrows += 1;
        }
    }
    (rows.values().map(Vec::len).sum(), arrows)
}

#[test]
fn chrome_slices_nest_and_arrows_bind() {
    for story in some_stories() {
        let (slices, arrows) = check_chrome(&chrome(&story));
        let received = story.trace.steps().filter(|step| matches!(step.what, What::Received { .. })).count();
        assert_eq!(arrows, received);
        assert!(slices > story.trace.steps().len() - 1, "bars beside the steps");
    }
    let leads = chrome(&leaders());
    assert!(leads.contains("\"name\":\"leads"), "leadership is a bar");
}

// ---- Mermaid

/// Boxes and bars are balanced, and only known processes take part.
fn check_mermaid(diagram: &str) {
    let mut lines = diagram.lines().skip_while(|line| *line != "sequenceDiagram").skip(1);
    let (mut open, mut boxes) = (BTreeMap::<&str, u32>::new(), 0);
    let mut known = BTreeSet::new();
    for line in lines.by_ref().map(str::trim) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "participant" => assert!(known.insert(rest)),
            "activate" => *open.entry(rest).or_default() += 1,
            "deactivate" => {
                let count = open.get_mut(rest).expect("was active");
                *count = count.checked_sub(1).expect("was active");
            }
            "rect" => boxes += 1,
            "end" => boxes -= 1,
            "Note" => assert!(rest.starts_with("over ") && rest.contains(": ")),
            _ => {
                let (ends, words) = line.split_once(": ").expect("an arrow has words");
                let arrow =
                    ["-->>", "->>", "-x"].into_iter().find(|arrow| ends.contains(arrow)).expect("an arrow");
                let (from, to) = ends.split_once(arrow).unwrap();
                assert!(known.contains(from) && known.contains(to), "{line}");
                assert!(!words.contains(['<', '>']));
            }
        }
        assert!((0..=1).contains(&boxes), "{line}");
    }
    assert_eq!(boxes, 0);
    assert!(open.values().all(|count| *count == 0));
}

#[test]
fn mermaid_is_balanced_and_shows_losses_and_cuts() {
    for story in some_stories() {
        check_mermaid(&mermaid(&story).unwrap());
    }
    assert!(
        mermaid(&violated()).unwrap().contains("Note over n1,n4: violated: n2 has waited for more than 6 ms")
    );
    let diagram = mermaid(&partition_and_crash()).unwrap();
    for part in ["n2-xn3: REQUEST", "rect rgba", "links cut: n1 n2 n3 | n4 n5", "n3#35;2 starts", "-->>"] {
        assert!(diagram.contains(part), "{part} is not in\n{diagram}");
    }
}

#[test]
fn mermaid_refuses_a_long_run_and_takes_a_part() {
    let story = busy(5, 5, Network::unordered(), 700);
    let error = mermaid(&story).unwrap_err().to_string();
    assert!(
        error.contains(&format!("at most {MESSAGES_MAX}")) && error.contains("cut a part first"),
        "{error}"
    );
    let part = story.slice(&Slice { until_us: Some(40_000), ..Slice::default() }).unwrap();
    check_mermaid(&mermaid(&part).unwrap());
}

// ---- parts

#[test]
fn a_part_by_processes_has_only_what_is_between_them() {
    let processes = Some(vec![ProcessId(1), ProcessId(3)]);
    let part = four_at_once().slice(&Slice { processes, ..Slice::default() }).unwrap();
    let scene = Scene::of(&part);
    assert_eq!(scene.messages.len(), 4, "a request and a reply each way");
    assert_eq!(part.processes, [ProcessId(1), ProcessId(3)]);
}

#[test]
fn a_part_by_time_keeps_what_lasts() {
    let story = partition_and_crash();
    let window = Slice { from_us: Some(5_000), until_us: Some(8_000), ..Slice::default() };
    let part = story.slice(&window).unwrap();
    let scene = Scene::of(&part);
    assert_eq!(scene.partings.len(), 1, "the links are still cut");
    let lasting: BTreeSet<_> = scene.stretches.iter().map(|stretch| stretch.sort.words()).collect();
    assert_eq!(lasting, BTreeSet::from(["paused", "waits"]));
    let error = story.slice(&Slice { from_us: Some(u64::MAX), ..Slice::default() }).unwrap_err();
    assert_eq!(error.to_string(), "nothing of this run is in the slice");
}

#[test]
fn the_past_of_a_request_ends_with_its_entry_and_has_every_cause() {
    let by = Peer { process: ProcessId(1), incarnation: Incarnation(1) };
    let request = Some(Request { by, number: 1 });
    let story = four_at_once();
    let part = story.slice(&Slice { request, ..Slice::default() }).unwrap();
    assert!(part.trace.steps().len() < story.trace.steps().len() / 2);
    let last = part.trace.steps().last().unwrap();
    assert_eq!(part.words(last), "entered n1.1");
    let scene = Scene::of(&part);
    assert!(scene.messages.iter().all(|mail| mail.sent.is_some()));
    let stranger = Some(Request { by, number: 9 });
    let error = story.slice(&Slice { request: stranger, ..Slice::default() }).unwrap_err();
    assert_eq!(error.to_string(), "no step of this run is about the request n1.9");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Losses, doubles, crashes, pauses and cuts: every export of every run, and of parts of it, is valid.
    #[test]
    fn exports_of_random_worlds_are_valid(seed in 0_u64..1 << 40) {
        let whole = random(seed);
        let part = whole.slice(&some_slice(&whole, seed));
        for story in std::iter::once(whole).chain(part.ok()) {
            let log = read_shiviz(&shiviz(&[&story]));
            prop_assert!(log.is_ok(), "{:?}", log.err());
            let file = ndjson::write(&story);
            let back = ndjson::read(&file);
            prop_assert!(back.as_ref().is_ok_and(|back| same(&story, back)), "{:?}", back.err());
            check_chrome(&chrome(&story));
            let messages = Scene::of(&story).messages.len();
            let diagram = mermaid(&story);
            prop_assert_eq!(diagram.is_ok(), messages <= MESSAGES_MAX);
            if let Ok(diagram) = diagram {
                check_mermaid(&diagram);
            }
        }
    }
}
