//! What commands print: tables and sentences for people, one JSON object a line for programs.
//!
//! Everything on standard output goes through [`line()`], so that a reader who has seen enough (`quorate group
//! list | head`) ends the command quietly. Colour appears on a terminal only, and never with `NO_COLOR`.

use super::exit::Failure;
use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table, presets};
use serde_json::Value;
use std::io::{self, ErrorKind, IsTerminal, Write};

/// Prints one line, or several, on standard output.
///
/// # Errors
/// [`Failure::unread`] if nobody reads it any more; another failure if the output cannot be written.
pub fn line(text: impl AsRef<str>) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out
        .write_all(text.as_ref().as_bytes())
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush());
    written.map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::unread(),
        _ => Failure::failed(format!("cannot write the output: {error}")),
    })
}

/// Prints one JSON object on a line of its own.
///
/// # Errors
/// As [`line()`].
pub fn json(value: &Value) -> Result<(), Failure> {
    line(value.to_string())
}

/// Whether standard output may be coloured.
pub fn coloured() -> bool {
    let asked_not = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    io::stdout().is_terminal() && !asked_not && !dumb
}

/// How a piece of text is meant. The words carry the meaning; colour only helps the eye.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// A heading.
    Strong,
    /// All is well, or somebody acts.
    Good,
    /// It deserves a look.
    Warn,
    /// It is background.
    Faint,
}

/// A text in its tone, where colours are allowed.
pub fn paint(tone: Tone, text: &str) -> String {
    use owo_colors::OwoColorize;
    if !coloured() {
        return text.to_owned();
    }
    match tone {
        Tone::Strong => text.bold().to_string(),
        Tone::Good => text.green().to_string(),
        Tone::Warn => text.yellow().to_string(),
        Tone::Faint => text.dimmed().to_string(),
    }
}

/// A table without lines: columns two spaces apart, headings in capitals, numbers to the right.
pub struct Rows {
    table: Table,
    headings: usize,
    right: Vec<bool>,
}

impl Rows {
    /// A table with these headings. A heading that begins with `>` is of a column of numbers.
    pub fn new(headings: &[&str]) -> Self {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(headings.iter().map(|heading| {
            let cell = Cell::new(heading.trim_start_matches('>').to_uppercase());
            if coloured() { cell.add_attribute(Attribute::Bold) } else { cell }
        }));
        let right = headings.iter().map(|heading| heading.starts_with('>')).collect();
        Self { table, headings: headings.len(), right }
    }

    /// Adds a row. An empty cell shows a dash.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        assert_eq!(N, self.headings, "a row has as many cells as there are headings");
        self.table.add_row(cells.map(|cell| if cell.is_empty() { "-".to_owned() } else { cell }));
    }

    /// The table as text, without blanks at the ends of lines.
    pub fn render(mut self) -> String {
        for (column, right) in self.table.column_iter_mut().zip(&self.right) {
            column.set_padding((0, 2));
            if *right {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let text = self.table.to_string();
        text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }
}

/// Names and values below each other, the values in one column.
pub fn facts(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let row = |(name, value): &(&str, String)| {
        let padded = format!("{name:width$}");
        format!("{}  {value}", paint(Tone::Faint, &padded))
    };
    rows.iter().map(row).collect::<Vec<_>>().join("\n")
}

/// Folds a text to lines of at most `width` columns; the second and later lines are indented.
pub fn fold(text: &str, width: usize, indent: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is always a line");
        let room = last.is_empty() || last == indent;
        if !room && last.chars().count() + 1 + word.chars().count() > width {
            lines.push(format!("{indent}{word}"));
        } else {
            if !room {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines.join("\n")
}

/// The columns to fold prose to: those of the terminal, between 60 and 100; 100 where there is none.
pub fn columns() -> usize {
    let terminal = rustix::termios::tcgetwinsize(io::stdout()).map(|size| usize::from(size.ws_col));
    terminal.ok().filter(|columns| *columns > 0).unwrap_or(100).clamp(60, 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_no_lines_and_no_blanks_at_the_ends() {
        let mut rows = Rows::new(&["name", ">token", "label"]);
        rows.row(["orders".into(), "7".into(), String::new()]);
        rows.row(["o".into(), "12345".into(), "x".into()]);
        assert_eq!(rows.render(), "NAME    TOKEN  LABEL\norders      7  -\no       12345  x");
    }

    #[test]
    fn prose_is_folded_at_words() {
        let text = fold("one two three four", 9, "  ");
        assert_eq!(text, "one two\n  three\n  four");
        assert_eq!(fold("a-word-that-is-too-long b", 5, ""), "a-word-that-is-too-long\nb");
    }

    #[test]
    fn facts_stand_in_one_column() {
        let text = facts(&[("a", "1".into()), ("long", "2".into())]);
        assert_eq!(text, "a     1\nlong  2");
    }
}
