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

/// One command of a script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Its first word.
    pub name: String,
    /// The words after it.
    pub words: Vec<String>,
    /// The words of the form `name=value`, apart.
    pub options: Vec<(String, String)>,
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
        self.words.get(at).map(String::as_str).ok_or_else(|| format!("{} needs more words", self.name))
    }

    /// The value of an option.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
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
                printed.extend(done.map_err(|why| format!("line {}: {bare}: {why}", number + 1))?);
            }
        }
    }
    while text.last().is_some_and(String::is_empty) {
        text.pop();
    }
    Ok(Played { text: text.join("\n") + "\n", stage })
}

fn obey(stage: &mut Option<Box<dyn Stage>>, command: &Command) -> Result<Vec<String>, String> {
    if command.name == "nodes" {
        let mut opened = catalog::open(command)?;
        let lines = opened.history();
        *stage = Some(opened);
        return Ok(lines);
    }
    stage.as_mut().ok_or("a script begins with nodes")?.command(command)
}
