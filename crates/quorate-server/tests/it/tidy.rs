//! The walls of the house (ARCHITECTURE.md), held by reading the tree.

use std::fs;
use std::path::{Path, PathBuf};

const LINES_MAX: usize = 900;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_path_buf()
}

fn sources(below: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![below.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The workspace crates that a crate uses, outside of its tests.
fn arrows(krate: &str) -> Vec<String> {
    let manifest = fs::read_to_string(root().join("crates").join(krate).join("Cargo.toml")).unwrap();
    let mut used = Vec::new();
    let mut section = "";
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        }
        let name = line.split([' ', '=']).next().unwrap();
        if section == "[dependencies]" && (name == "quorate" || name.starts_with("quorate-")) {
            used.push(name.to_string());
        }
    }
    used
}

#[test]
fn arrows_point_down() {
    assert!(arrows("quorate-core").is_empty(), "the core uses nobody");
    assert_eq!(arrows("quorate-lab"), ["quorate-core"]);
    assert_eq!(arrows("quorate"), ["quorate-core"]);
    let mut crates: Vec<_> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    crates.sort();
    assert_eq!(
        crates,
        ["quorate", "quorate-core", "quorate-lab", "quorate-server"],
        "a fifth crate needs a sentence in ARCHITECTURE.md as strong as the four"
    );
}

#[test]
fn the_core_has_no_machine_to_lean_on() {
    let page = fs::read_to_string(root().join("crates/quorate-core/src/lib.rs")).unwrap();
    assert!(page.contains("#![no_std]"));
    let manifest = fs::read_to_string(root().join("crates/quorate-core/Cargo.toml")).unwrap();
    let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
    let dependencies = dependencies.split("\n[").next().unwrap();
    let mut names: Vec<_> =
        dependencies.lines().filter_map(|line| line.split_once(' ')).map(|(name, _)| name).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        ["ciborium", "postcard", "serde"],
        "the core uses plain data and its bytes, nothing else"
    );
}

/// What a simulator must be able to replace is not reached around.
#[test]
fn node_and_log_use_no_clock_or_task_but_the_runtimes() {
    let server = root().join("crates/quorate-server/src");
    let outside = ["disk.rs", "dir.rs"];
    let mut checked = 0;
    for path in [sources(&server.join("node")), sources(&server.join("log"))].concat() {
        if outside.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        for banned in ["tokio::time", "tokio::spawn", "tokio::select", "SystemTime::now"] {
            assert!(!text.contains(banned), "{} uses {banned}", path.display());
        }
        checked += 1;
    }
    assert!(checked > 10, "{checked} files checked");
}

#[test]
fn the_types_of_the_log_engine_stay_behind_it() {
    let server = root().join("crates/quorate-server/src");
    for path in sources(&server) {
        if path.starts_with(server.join("log")) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let used = text.lines().find(|line| line.trim_start().starts_with("use openraft"));
        assert_eq!(used, None, "{}", path.display());
    }
}

#[test]
fn files_stay_short() {
    for path in sources(&root().join("crates")) {
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= LINES_MAX, "{} has {lines} lines, more than {LINES_MAX}", path.display());
    }
}

#[test]
fn nothing_is_left_open() {
    let open = [
        concat!("to", "do!("),
        concat!("unimple", "mented!("),
        concat!("FIX", "ME"),
        concat!("#[ig", "nore]"),
    ];
    for path in sources(&root().join("crates")) {
        let text = fs::read_to_string(&path).unwrap();
        for mark in open {
            assert!(!text.contains(mark), "{} has {mark}", path.display());
        }
    }
}
