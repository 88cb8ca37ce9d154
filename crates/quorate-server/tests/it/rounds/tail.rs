//! A file that grows while it is read, line by line.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The reader's end.
#[derive(Debug)]
pub(crate) struct Tail {
    path: PathBuf,
    read: u64,
    part: Vec<u8>,
}

impl Tail {
    /// A reader at the start of a file that may not be there yet.
    pub(crate) fn of(path: &Path) -> Self {
        Self { path: path.to_path_buf(), read: 0, part: Vec::new() }
    }

    /// The lines that came since the last call. A line whose end is missing waits for it.
    pub(crate) fn news(&mut self) -> Vec<String> {
        let Ok(mut file) = File::open(&self.path) else { return Vec::new() };
        file.seek(SeekFrom::Start(self.read)).expect("a file can be sought in");
        self.read += file.read_to_end(&mut self.part).expect("it can be read") as u64;
        let Some(end) = self.part.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let rest = self.part.split_off(end + 1);
        let whole = std::mem::replace(&mut self.part, rest);
        String::from_utf8(whole).expect("it is text").lines().map(str::to_owned).collect()
    }
}

/// The end of a writer who may be killed at any instant: each line is one write.
#[derive(Debug)]
pub(crate) struct Lines(File);

impl Lines {
    /// Appends to a file, which is created if it is missing.
    pub(crate) fn append_to(path: &Path) -> Self {
        Self(OpenOptions::new().create(true).append(true).open(path).expect("the file can be opened"))
    }

    /// Appends a line.
    pub(crate) fn push(&self, line: &str) {
        let text = format!("{line}\n");
        let written = (&self.0).write(text.as_bytes()).expect("it can be written");
        assert_eq!(written, text.len(), "a line is one write");
    }
}

#[test]
fn a_line_is_read_once_it_has_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let mut tail = Tail::of(&path);
    assert!(tail.news().is_empty());
    std::fs::write(&path, "one\ntw").unwrap();
    assert_eq!(tail.news(), ["one"]);
    Lines::append_to(&path).push("o");
    assert_eq!(tail.news(), ["two"]);
    assert!(tail.news().is_empty());
}
