//! The scenarios under `scenarios/`: what is printed under each command is what happens. `UPDATE=1` rewrites.

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
    let update = std::env::var("UPDATE").is_ok_and(|value| value == "1");
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
    assert!(different.is_empty(), "{}\nUPDATE=1 rewrites them", different.join("\n"));
}
