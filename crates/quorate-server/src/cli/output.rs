//! What commands print: tables and sentences for people, one JSON object a line for programs.
//!
//! Everything on standard output goes through [`line()`], so that a reader who has seen enough (`quorate group
//! list | head`) ends the command quietly. Colour appears on a terminal only, and never with `NO_COLOR`.
//!
//! Names, labels, metadata and values are other people's text. What a terminal would obey, and what would begin a
//! line of its own, is shown and not passed on: see [`plain()`].

use super::exit::Failure;
use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table, presets};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal, Write};

/// Prints one line, or several, on standard output.
///
/// # Errors
/// [`Failure::unread`] if nobody reads it any more; another failure if the output cannot be written.
pub fn line(text: impl AsRef<str>) -> Result<(), Failure> {
    write(&tame(text.as_ref(), coloured()))
}

fn write(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written =
        out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
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
    write(&json_text(&value.to_string()))
}

/// JSON as it may also come to a terminal. All that a terminal would obey is inside of strings.
pub fn json_text(json: &str) -> Cow<'_, str> {
    escaped(
        json,
        |one| one != '\n' && is_obeyed(one),
        |out, one| {
            let mut units = [0; 2];
            one.encode_utf16(&mut units).iter().try_for_each(|unit| write!(out, "\\u{unit:04x}"))
        },
    )
}

/// Text that somebody else wrote, for one line of a terminal: what a terminal would obey is shown as `\u{1b}`, and
/// so is the end of a line.
pub fn plain(text: &str) -> Cow<'_, str> {
    escaped(text, is_obeyed, shown)
}

/// The last measure before text reaches a terminal: lines and our own colours pass.
fn tame(text: &str, coloured: bool) -> Cow<'_, str> {
    if !coloured {
        return escaped(text, |one| !matches!(one, '\n' | '\t') && is_obeyed(one), shown);
    }
    let mut out = String::with_capacity(text.len());
    for (nth, part) in text.split('\x1b').enumerate() {
        let colour = part.strip_prefix('[').and_then(|rest| rest.split_once('m'));
        match colour {
            Some((code, _)) if nth > 0 && code.bytes().all(|byte| byte.is_ascii_digit() || byte == b';') => {
                out.push('\x1b');
            }
            _ if nth > 0 => out.push_str("\\u{1b}"),
            _ => {}
        }
        out.push_str(&escaped(part, |one| !matches!(one, '\n' | '\t') && is_obeyed(one), shown));
    }
    Cow::Owned(out)
}

/// Whether a terminal does something else with it than to show it: controls, the ends of lines that are none in
/// ASCII, and what turns the direction of writing, so that a text reads otherwise than it is.
fn is_obeyed(one: char) -> bool {
    let turns = matches!(one, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    one.is_control() || turns || matches!(one, '\u{2028}' | '\u{2029}')
}

fn shown(out: &mut String, one: char) -> std::fmt::Result {
    write!(out, "{}", one.escape_default())
}

fn escaped(
    text: &str,
    which: impl Fn(char) -> bool,
    how: impl Fn(&mut String, char) -> std::fmt::Result,
) -> Cow<'_, str> {
    if !text.contains(&which) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for one in text.chars() {
        match which(one) {
            true => how(&mut out, one).expect("a string takes everything"),
            false => out.push(one),
        }
    }
    Cow::Owned(out)
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
    for word in text.split_whitespace().map(plain) {
        let last = lines.last_mut().expect("there is always a line");
        let room = last.is_empty() || last == indent;
        if !room && last.chars().count() + 1 + word.chars().count() > width {
            lines.push(format!("{indent}{word}"));
        } else {
            if !room {
                last.push(' ');
            }
            last.push_str(&word);
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
    fn what_a_terminal_would_obey_is_shown() {
        assert_eq!(plain("a\x1b[2J\r\nb\u{9b}c\u{202e}"), "a\\u{1b}[2J\\r\\nb\\u{9b}c\\u{202e}");
        assert!(matches!(plain("größer 日本 👩‍👩‍👧"), Cow::Borrowed(_)), "letters of all sorts stay");
        assert_eq!(tame("a\nb\x1b[31mred", false), "a\nb\\u{1b}[31mred");
        assert_eq!(
            tame("\x1b[1mx\x1b[0m\x1b[2J\x1b]0;t\x07", true),
            "\x1b[1mx\x1b[0m\\u{1b}[2J\\u{1b}]0;t\\u{7}"
        );
        let json = json_text("{\"a\":\"\u{7f}\u{202e}\"}");
        assert_eq!(json, "{\"a\":\"\\u007f\\u202e\"}");
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["a"], "\u{7f}\u{202e}");
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
