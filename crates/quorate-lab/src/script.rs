//! Scenario scripts: commands with the expected history under them. A script is a test, a lesson and a
//! picture at once; it opens with one sentence that says what it teaches.
//!
//! ```text
//! # Two that ask at once: the smaller timestamp enters first.
//!
//! nodes 2 protocol=ricart-agrawala
//! ---
//! ok
//!
//! call n1 enter
//! ---
//! n1 requested n1.1
//! n1 -> n2  REQUEST n1.1 time 1
//! ```
//!
//! A block is one or more commands, a line `---`, and what they print, up to an empty line. Playing a script
//! gives the same text with what was really printed; a difference is a failed test.
//!
//! | command | does |
//! |---|---|
//! | `nodes N protocol=NAME [option=value]...` | begins; see [`crate::catalog`] for the options |
//! | `call n1 enter` | the application asks |
//! | `deliver n1->n2 [KIND] [n1.1] [#2]` | delivers the oldest such message, or the second oldest; `drop` and `double` likewise |
//! | `fire n1 TIMER`, `persist n1` | a timer ends, a record is durable, now |
//! | `crash n1`, `crash n1 after persist`, `crash n1 after 2` | now; in its next step, at that effect |
//! | `restart n1 [disk=no]`, `pause n1`, `resume n1` | |
//! | `cut n1->n2`, `mend n1->n2`, `partition n1 \| n2 n3`, `heal` | links; `*` and `n1,n2` stand for several |
//! | `suspect n1 n2`, `trust * *`, `view n1,n2 [id=2] [at=n1]` | what n1 is told |
//! | `clock n1 jump=10s`, `clock n1 rate=200ppm` | its monotonic clock |
//! | `network order= delay= loss= double= disk=` | links and disks from now on |
//! | `run [10ms]`, `pass 10ms` | time runs, until nothing is due or for so long; time passes and nothing happens |
//! | `waits [n1]`, `count` | who waits and why; messages and delays by entry |

use crate::catalog;
use crate::play::Stage;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

/// The commands and how each is written: for a line that is not understood.
const FORMS: &[(&str, &str)] = &[
    ("nodes", "nodes N protocol=NAME [option=value]..."),
    ("call", "call n1 enter"),
    ("deliver", "deliver n1->n2 [KIND] [n1.1] [#2]"),
    ("drop", "drop n1->n2 [KIND] [n1.1] [#2]"),
    ("double", "double n1->n2 [KIND] [n1.1] [#2]"),
    ("fire", "fire n1 TIMER"),
    ("persist", "persist n1"),
    ("crash", "crash n1 [after persist | after EFFECTS]"),
    ("restart", "restart n1 [disk=no]"),
    ("pause", "pause n1"),
    ("resume", "resume n1"),
    ("cut", "cut n1->n2"),
    ("mend", "mend n1->n2"),
    ("partition", "partition n1 | n2 n3"),
    ("heal", "heal"),
    ("suspect", "suspect n1 n2"),
    ("trust", "trust n1 n2"),
    ("view", "view n1,n2 [id=2] [at=n1]"),
    ("clock", "clock n1 jump=10s rate=200ppm"),
    ("network", "network order= delay= loss= double= disk="),
    ("run", "run [10ms]"),
    ("pass", "pass 10ms"),
    ("waits", "waits [n1]"),
    ("count", "count"),
    ("storm", "storm"),
];

/// One command of a script.
///
/// **Rule.** It remembers what of it was asked for. Whatever a line says and nobody asks for is an error
/// ([`Command::understood`]), so that a misspelt option is not an option left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Its first word.
    pub name: String,
    words: Vec<String>,
    /// The words of the form `name=value`, apart.
    options: Vec<(String, String)>,
    /// So many words were asked for.
    words_known: Cell<usize>,
    /// The options that were asked for, whether the line has them or not.
    options_known: RefCell<BTreeSet<String>>,
}

impl Command {
    /// Reads a line.
    pub fn read(line: &str) -> Self {
        let mut words = line.split_whitespace().map(str::to_string);
        let mut command = Self { name: words.next().unwrap_or_default(), ..Self::default() };
        for word in words {
            match word.split_once('=') {
                Some((name, value)) => command.options.push((name.to_string(), value.to_string())),
                None => command.words.push(word),
            }
        }
        command
    }

    /// A word after the name, counted from 0.
    ///
    /// # Errors
    /// The line is too short.
    pub fn word(&self, at: usize) -> Result<&str, String> {
        self.word_if(at).ok_or_else(|| format!("it needs more words: {}", self.form()))
    }

    /// A word after the name, counted from 0, that may be left out.
    pub fn word_if(&self, at: usize) -> Option<&str> {
        self.words_known.set(self.words_known.get().max(at + 1));
        self.words.get(at).map(String::as_str)
    }

    /// All words from this one on, counted from 0.
    pub fn words_from(&self, at: usize) -> &[String] {
        self.words_known.set(usize::MAX);
        self.words.get(at..).unwrap_or_default()
    }

    /// The value of an option.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options_known.borrow_mut().insert(name.to_string());
        self.options.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The value of an option that has only these; the first if the line does not say.
    ///
    /// # Errors
    /// It has another; the sentence lists those that there are.
    pub fn choice<'a>(&self, name: &str, values: &[&'a str]) -> Result<&'a str, String> {
        let Some(value) = self.option(name) else { return Ok(values[0]) };
        let found = values.iter().find(|known| **known == value);
        found.copied().ok_or_else(|| format!("{name}= is {}, not {value}", values.join(" or ")))
    }

    /// Whether an option says `yes`; `no` if the line does not say.
    ///
    /// # Errors
    /// It says neither.
    pub fn is_yes(&self, name: &str) -> Result<bool, String> {
        Ok(self.choice(name, &["no", "yes"])? == "yes")
    }

    /// Everything that the line says was asked for by what obeyed it.
    ///
    /// # Errors
    /// Names the word or option that nobody asked for, and the options that there are.
    pub fn understood(&self) -> Result<(), String> {
        let known = self.options_known.borrow();
        if let Some((other, _)) = self.options.iter().find(|(name, _)| !known.contains(name)) {
            let known: Vec<_> = known.iter().map(|name| format!("{name}=")).collect();
            return Err(match known.is_empty() {
                true => format!("{} has no options, and so no {other}=", self.name),
                false => format!("there is no option {other}= here; there are {}", known.join(", ")),
            });
        }
        let twice = |at: &usize| self.options[..*at].iter().any(|(name, _)| *name == self.options[*at].0);
        if let Some(at) = (0..self.options.len()).find(twice) {
            return Err(format!("it says {}= twice", self.options[at].0));
        }
        match self.words.get(self.words_known.get()) {
            Some(word) => Err(format!("{word} is one word too many: {}", self.form())),
            None => Ok(()),
        }
    }

    /// That there is no such command.
    pub(crate) fn unknown(&self) -> String {
        let known: Vec<_> = FORMS.iter().map(|(name, _)| *name).collect();
        if known.contains(&self.name.as_str()) {
            return format!("{} is not for this protocol", self.name);
        }
        format!("there is no command {}; there are {}", short(&self.name), known.join(", "))
    }

    fn form(&self) -> &str {
        let form = FORMS.iter().find(|(name, _)| *name == self.name);
        form.map_or(self.name.as_str(), |(_, form)| form)
    }
}

/// The beginning of a line that may be of any length.
fn short(line: &str) -> String {
    const SHOWN: usize = 100;
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_string(),
    }
}

/// What playing a script gave.
pub struct Played {
    /// The script with what was really printed.
    pub text: String,
    /// The world at its end; none if the script did not begin one.
    pub stage: Option<Box<dyn Stage>>,
}

/// Plays a script.
///
/// # Errors
/// Names the line that cannot be done, and why.
pub fn play(script: &str) -> Result<Played, String> {
    let mut stage: Option<Box<dyn Stage>> = None;
    let mut text = Vec::new();
    let mut printed: Vec<String> = Vec::new();
    let (mut commands, mut expected) = (false, false);
    for (number, line) in script.lines().chain([""]).enumerate() {
        let bare = line.trim();
        if bare.is_empty() {
            if commands {
                text.push("---".to_string());
                let nothing = printed.is_empty().then(|| "ok".to_string());
                text.extend(nothing.into_iter().chain(printed.drain(..)));
            }
            (commands, expected) = (false, false);
            text.push(String::new());
        } else if bare == "---" {
            expected = true;
        } else if !expected {
            text.push(bare.to_string());
            if !bare.starts_with('#') {
                commands = true;
                let done = obey(&mut stage, &Command::read(bare));
                printed.extend(done.map_err(|why| format!("line {}: {}: {why}", number + 1, short(bare)))?);
            }
        }
    }
    while text.last().is_some_and(String::is_empty) {
        text.pop();
    }
    Ok(Played { text: text.join("\n") + "\n", stage })
}

fn obey(stage: &mut Option<Box<dyn Stage>>, command: &Command) -> Result<Vec<String>, String> {
    let lines = match stage {
        _ if command.name == "nodes" => {
            let opened = stage.insert(catalog::open(command)?);
            opened.history()
        }
        Some(stage) => stage.command(command)?,
        None => return Err("a script begins with nodes, such as nodes 3 protocol=central".into()),
    };
    command.understood()?;
    Ok(lines)
}
