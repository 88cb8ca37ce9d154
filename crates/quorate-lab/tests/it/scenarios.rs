//! The scenarios under `scenarios/`: what is printed under each command is what happens. `UPDATE_GOLDEN=1`
//! rewrites, as it does the pictures of the documentation, each of which is of a scenario.

use quorate_lab::diagram::{space_time, wait_for_graph};
use quorate_lab::scenarios::SCENARIOS;
use quorate_lab::script::play;
use std::fs;
use std::path::{Path, PathBuf};

fn scenarios(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(scenarios(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

#[test]
fn scenarios_happen_as_written() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let all = scenarios(&Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios"));
    assert!(all.len() >= 10, "{} scenarios", all.len());
    let mut different = Vec::new();
    for path in all {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let script = fs::read_to_string(&path).unwrap();
        let sentence = script.lines().next().unwrap_or_default();
        assert!(sentence.starts_with("# ") && sentence.ends_with('.'), "{name} opens with a sentence");
        let played = play(&script).unwrap_or_else(|why| panic!("{name}: {why}"));
        if played.text != script {
            match update {
                true => fs::write(&path, &played.text).unwrap(),
                false => different.push(format!("{name} is now\n{}", played.text)),
            }
        }
    }
    assert!(different.is_empty(), "{}\nUPDATE_GOLDEN=1 rewrites them", different.join("\n"));
}

/// A picture has the name of a scenario; behind it `_waits` if it is of who waits in the end.
#[test]
fn pictures_of_the_documentation_are_of_scenarios_as_they_are_drawn_now() {
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
    let mut drawn = 0;
    for entry in fs::read_dir(pictures).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let wanted = name.strip_suffix("_waits").unwrap_or(&name);
        let scenario = SCENARIOS.iter().find(|(known, _)| known.ends_with(&format!("/{wanted}")));
        let (full, script) = scenario.unwrap_or_else(|| panic!("{name} is of no scenario"));
        let stage = play(script).unwrap().stage.unwrap();
        let sentence = script.lines().next().unwrap_or_default().trim_start_matches(['#', ' ']);
        let svg = match name.ends_with("_waits") {
            true => wait_for_graph(&format!("{full}: who waits for whom"), &stage.waiting()),
            false => space_time(&stage.story(full, sentence)),
        };
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&path, &svg).unwrap();
        }
        assert!(fs::read_to_string(&path).unwrap() == svg, "{name} is drawn in another way now");
        drawn += 1;
    }
    assert!(drawn >= 7, "{drawn} pictures");
}
