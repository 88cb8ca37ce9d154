//! Pictures: what they look like is kept in `tests/golden`, byte for byte.
//!
//! After a change that is meant, run the tests with `UPDATE_GOLDEN=1`, and look at every picture in it.

use crate::runs::{four_at_once, leaders, maker, partition_and_crash, random, two_hundred, violated};
use proptest::prelude::{ProptestConfig, prop_assert, proptest};
use quorate_core::mutex::{Call, Maekawa, MaekawaForm};
use quorate_core::protocol::{Members, ProcessId};
use quorate_core::quorum;
use quorate_lab::diagram::graph::{edges, waits_of};
use quorate_lab::diagram::{TextOptions, space_time, text, voting_sets, wait_for_graph};
use quorate_lab::network::Network;
use quorate_lab::story::Story;
use quorate_lab::world::World;
use std::path::Path;
use std::sync::Arc;

fn is_golden(name: &str, drawn: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, drawn).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == drawn, "{name} is drawn in another way now; UPDATE_GOLDEN=1 keeps the new one");
}

fn golden(name: &str, story: &Story) {
    let svg = space_time(story);
    check_svg(&svg).unwrap();
    is_golden(&format!("{name}.svg"), &svg);
    is_golden(&format!("{name}.txt"), &text(story, TextOptions::default()));
    is_golden(&format!("{name}.ascii.txt"), &text(story, ASCII));
}

const ASCII: TextOptions = TextOptions { ascii: true, width: 100, page: 40 };

/// Elements are closed, and no two labels lie over each other.
fn check_svg(svg: &str) -> Result<(), String> {
    let mut open: Vec<&str> = Vec::new();
    for tag in svg.split('<').skip(1) {
        let tag = tag.split_once('>').ok_or(format!("not closed: {tag}"))?.0;
        let name = tag.split([' ', '/']).find(|name| !name.is_empty()).unwrap_or("");
        match tag {
            end if end.starts_with('/') => {
                let opened = open.pop();
                if opened != Some(name) {
                    return Err(format!("{name} closes {opened:?}"));
                }
            }
            alone if alone.ends_with('/') => {}
            _ => open.push(name),
        }
    }
    let labels: Vec<_> = svg.lines().filter_map(label).collect();
    for (at, one) in labels.iter().enumerate() {
        for other in &labels[at + 1..] {
            let apart = (one.0 - other.0).abs() >= (one.2 + other.2) / 2.0 || (one.1 - other.1).abs() >= 11.0;
            if !apart {
                return Err(format!("{one:?} lies over {other:?}"));
            }
        }
    }
    if open.is_empty() { Ok(()) } else { Err(format!("never closed: {open:?}")) }
}

/// Middle, height, width and words of a label. A letter is taken to be 5.8 px wide: a common sans-serif.
fn label(line: &str) -> Option<(f64, f64, f64, String)> {
    let is_label = ["\"word", "\"number\"", "\"faintword\""].iter().any(|class| line.contains(class));
    let value = |name: &str| {
        let rest = line.split_once(&format!(" {name}=\""))?.1;
        rest.split('"').next()?.parse::<f64>().ok()
    };
    let words = line.strip_suffix("</text>")?.rsplit_once('>')?.1.to_owned();
    is_label.then_some((value("x")?, value("y")?, 5.8 * words.chars().count() as f64, words))
}

#[test]
fn four_at_once_is_drawn() {
    golden("four_at_once", &four_at_once());
}

#[test]
fn a_partition_and_a_crash_are_drawn() {
    golden("partition_and_crash", &partition_and_crash());
}

#[test]
fn two_hundred_steps_are_drawn() {
    golden("two_hundred", &two_hundred());
}

#[test]
fn leaders_are_drawn() {
    golden("leaders", &leaders());
}

#[test]
fn a_violation_is_a_red_line_with_its_words() {
    let story = violated();
    golden("violated", &story);
    assert!(space_time(&story).contains(">violated: n2 has waited for more than 6 ms</text>"));
}

#[test]
fn text_fits_a_hundred_columns_for_five_processes() {
    for options in [TextOptions::default(), ASCII] {
        let drawn = text(&two_hundred(), options);
        assert!(drawn.lines().all(|line| line.chars().count() <= 100 && line.trim_end() == line));
        assert_eq!(drawn.is_ascii(), options.ascii);
    }
}

#[test]
fn who_waits_for_whom_is_drawn() {
    let mut world = World::new(1, 4, Network::calm(), maker(4, None));
    for index in 0..4 {
        world.call(ProcessId::at(index), Call::Enter);
    }
    world.run_until(3_000, u64::MAX);
    let waits = waits_of(&world);
    let (found, _) = edges(&waits);
    assert!(found.iter().all(|edge| !edge.in_cycle && edge.from > edge.to), "{found:?}");
    assert_eq!(found.len(), 6);
    is_golden("waits.svg", &wait_for_graph("Who waits for whom, 3 ms after four asked", &waits));
}

#[test]
fn a_deadlock_is_a_red_cycle() {
    let members = Members::first(3);
    let make = move |me| {
        let voters = Members::new(vec![me, members.after(me)]);
        Maekawa::new(me, members.clone(), MaekawaForm::Basic, false, None).with_voters(voters)
    };
    let mut world = World::new(1, 3, Network::calm(), Arc::new(make));
    for index in 0..3 {
        world.call(ProcessId::at(index), Call::Enter);
    }
    world.run(u64::MAX);
    let waits = waits_of(&world);
    let (found, _) = edges(&waits);
    assert_eq!(found.iter().filter(|edge| edge.in_cycle).count(), 3, "{found:?}");
    let drawn = wait_for_graph("Maekawa's basic form, three at once", &waits);
    assert!(drawn.contains("arrow alarm"));
    is_golden("deadlock.svg", &drawn);
}

#[test]
fn voting_sets_are_drawn() {
    let members = Members::first(9);
    let sets: Vec<_> =
        members.iter().map(|process| (process, quorum::grid(&members, process).iter().collect())).collect();
    let drawn = voting_sets("Voting sets of nine processes", &sets);
    assert!(drawn.contains("Every two sets meet."));
    is_golden("voting_sets.svg", &drawn);
    let apart = [(ProcessId(1), vec![ProcessId(1)]), (ProcessId(2), vec![ProcessId(2)])];
    assert!(voting_sets("two", &apart).contains("n1 and n2 ask nobody in common."));
}

#[test]
fn words_of_a_stranger_stay_words() {
    let mut story = four_at_once();
    story.title = "</title><script>alert(1)</script> & \"more\"\u{1}".to_owned();
    let drawn = space_time(&story);
    check_svg(&drawn).unwrap();
    assert!(!drawn.contains("<script>") && !drawn.contains('\u{1}'));
}

#[test]
fn an_empty_story_is_drawn() {
    let story = Story::default();
    check_svg(&space_time(&story)).unwrap();
    assert!(text(&story, TextOptions::default()).lines().count() < 5);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens, labels do not overlap, and one story gives one picture.
    #[test]
    fn labels_of_random_worlds_do_not_overlap(seed in 0_u64..1 << 40) {
        let svg = space_time(&random(seed));
        prop_assert!(svg == space_time(&random(seed)));
        let checked = check_svg(&svg);
        prop_assert!(checked.is_ok(), "{:?}", checked.err());
        let drawn = text(&random(seed), ASCII);
        prop_assert!(drawn.lines().all(|line| line.len() <= 100 || line.starts_with("random")));
    }
}
