//! `quorate lab run` and `quorate lab draw`: a scenario or a trace, as text, pictures and files for other tools.

use super::super::Global;
use super::super::exit::{Failure, Outcome};
use super::super::output::{self, Tone, paint};
use super::usage;
use clap::Args;
use quorate_core::protocol::ProcessId;
use quorate_lab::diagram::{TextOptions, space_time, text, wait_for_graph};
use quorate_lab::export::{chrome, mermaid, ndjson, shiviz};
use quorate_lab::scenarios::{self, sentence};
use quorate_lab::script::{Played, play};
use quorate_lab::story::{Slice, Story};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// `quorate lab run`
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    quorate lab run mutex/maekawa_deadlock --waits deadlock.svg\n  \
    quorate lab run election/bully_seven --svg bully.svg --text\n  \
    quorate lab run my_scenario.txt --update     writes what happens under its commands\n\n\
    `quorate lab list` shows the scenarios that are built in. A scenario whose history is another one than it \
    says ends with code 1 and the first line that differs.")]
pub struct RunArgs {
    /// A file, or the name of a scenario that is built in
    scenario: String,
    /// Draw from this seed instead of the scenario's own; the history is then not compared
    #[arg(long)]
    seed: Option<u64>,
    /// Write what happened under the commands of the file
    #[arg(long, conflicts_with = "seed")]
    update: bool,
    /// Draw who waits for whom at the end, as SVG
    #[arg(long, value_name = "FILE")]
    waits: Option<PathBuf>,
    #[command(flatten)]
    forms: Forms,
}

/// `quorate lab draw`
#[derive(Args, Debug)]
pub struct DrawArgs {
    /// A trace as NDJSON
    trace: PathBuf,
    #[command(flatten)]
    forms: Forms,
}

/// What to make of a run.
#[derive(Args, Debug)]
struct Forms {
    /// Draw it as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw it on the terminal
    #[arg(long)]
    text: bool,
    /// With --text: only ASCII
    #[arg(long, requires = "text")]
    ascii: bool,
    /// Write all of it, one JSON object a line
    #[arg(long, value_name = "FILE")]
    ndjson: Option<PathBuf>,
    /// Write it for ShiViz
    #[arg(long, value_name = "FILE")]
    shiviz: Option<PathBuf>,
    /// Write it for Perfetto and chrome://tracing
    #[arg(long, value_name = "FILE")]
    chrome: Option<PathBuf>,
    /// Write it as a Mermaid sequence diagram, of at most 150 messages
    #[arg(long, value_name = "FILE")]
    mermaid: Option<PathBuf>,
    /// Only from this millisecond on
    #[arg(long, value_name = "MS")]
    from_ms: Option<u64>,
    /// Only until this millisecond
    #[arg(long, value_name = "MS")]
    until_ms: Option<u64>,
    /// Only these processes, such as n1,n2
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    only: Option<Vec<ProcessId>>,
}

impl Forms {
    /// Whether anything is to be made.
    fn any(&self) -> bool {
        let files = [&self.svg, &self.ndjson, &self.shiviz, &self.chrome, &self.mermaid];
        self.text || files.iter().any(|file| file.is_some())
    }

    fn slice(&self) -> Slice {
        Slice {
            from_us: self.from_ms.map(|ms| ms.saturating_mul(1_000)),
            until_us: self.until_ms.map(|ms| ms.saturating_mul(1_000)),
            processes: self.only.clone(),
            request: None,
        }
    }

    /// Makes everything that was asked for, and says which files there are now.
    fn make(&self, story: &Story, global: &Global) -> Result<(), Failure> {
        if self.text && global.json {
            return Err(usage("--text draws for people, and --json is for programs: one of both".into()));
        }
        let story = story.slice(&self.slice()).map_err(|error| usage(error.to_string()))?;
        if self.text {
            let options =
                TextOptions { ascii: self.ascii, width: output::columns(), ..TextOptions::default() };
            let drawn = text(&story, options);
            output::line(drawn.trim_end())?;
        }
        let files = [
            (&self.svg, space_time as fn(&Story) -> String),
            (&self.ndjson, ndjson::write),
            (&self.shiviz, |story| shiviz(&[story])),
            (&self.chrome, chrome),
        ];
        for (path, form) in files {
            if let Some(path) = path {
                write(path, &form(&story), global)?;
            }
        }
        if let Some(path) = &self.mermaid {
            let diagram = mermaid(&story).map_err(|error| {
                usage(format!("{error}; cut a part with --from-ms, --until-ms or --only"))
            })?;
            write(path, &diagram, global)?;
        }
        Ok(())
    }
}

pub(super) fn write(path: &Path, content: &str, global: &Global) -> Result<(), Failure> {
    std::fs::write(path, content)
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))?;
    match global.json {
        true => output::json(&json!({"written": path.display().to_string(), "bytes": content.len()})),
        false => output::line(paint(Tone::Faint, &format!("wrote {}", path.display()))),
    }
}

/// Plays a scenario.
pub(super) fn run(args: &RunArgs, global: &Global) -> Outcome {
    let (name, script, path) = read(&args.scenario)?;
    let script = match args.seed {
        None => script,
        Some(seed) => seeded(&script, seed),
    };
    let played = play(&script).map_err(|why| usage(format!("{name}: {why}")))?;
    let stage =
        played.stage.as_ref().ok_or_else(|| usage(format!("{name} begins no world: it needs nodes")))?;
    let story = stage.story(&name, sentence(&script));
    let same = args.seed.is_some() || args.update || played.text.trim_end() == script.trim_end();
    let quiet = args.forms.text || global.json;
    if !quiet {
        output::line(played.text.trim_end())?;
    }
    if let Some(path) = &args.waits {
        write(path, &wait_for_graph(&format!("{name}: who waits for whom"), &stage.waiting()), global)?;
    }
    args.forms.make(&story, global)?;
    if global.json {
        output::json(&json!({
            "scenario": name, "teaches": sentence(&script), "steps": story.trace.total(), "as_written": same,
            "violated": violated(&played),
        }))?;
    }
    if args.update {
        let path =
            path.ok_or_else(|| usage(format!("{name} is built in: copy it to a file to change it")))?;
        write(&path, &played.text, global)?;
    }
    match same {
        true => Ok(ExitCode::SUCCESS),
        false => Err(Failure::failed(differs(&script, &played.text))),
    }
}

fn violated(played: &Played) -> Option<&str> {
    played.text.lines().find_map(|line| line.strip_prefix("VIOLATED: "))
}

/// The name, the script, and the file if it came from one.
fn read(scenario: &str) -> Result<(String, String, Option<PathBuf>), Failure> {
    let path = PathBuf::from(scenario);
    if let (Some(script), false) = (scenarios::script(scenario), path.exists()) {
        return Ok((scenario.into(), script.into(), None));
    }
    let script = std::fs::read_to_string(&path).map_err(|error| {
        usage(format!(
            "{scenario} is no scenario of `quorate lab list`, and cannot be read as a file: {error}"
        ))
    })?;
    Ok((scenario.into(), script, Some(path)))
}

/// The script with another seed in its `nodes` command.
fn seeded(script: &str, seed: u64) -> String {
    let line = |line: &str| match line.starts_with("nodes ") {
        false => line.to_string(),
        true => {
            let kept: Vec<_> = line.split(' ').filter(|word| !word.starts_with("seed=")).collect();
            format!("{} seed={seed}", kept.join(" "))
        }
    };
    script.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

/// The first line that differs.
fn differs(says: &str, happened: &str) -> String {
    let (mut says, mut happened) = (says.lines(), happened.lines());
    let mut number = 0;
    loop {
        number += 1;
        match (says.next(), happened.next()) {
            (None, None) => return "its history differs in blanks only; --update writes it anew".into(),
            (one, other) if one == other => {}
            (says, happened) => {
                if happened == Some("---") {
                    return format!("there is no history yet at line {number}; --update writes it");
                }
                let show = |line: Option<&str>| match line {
                    None => "nothing".to_string(),
                    Some("") => "nothing more".to_string(),
                    Some(line) => format!("`{line}`"),
                };
                return format!(
                    "line {number} says {}, and what happened is {}; --update writes it anew",
                    show(says),
                    show(happened)
                );
            }
        }
    }
}

/// Draws a trace.
pub(super) fn draw(args: &DrawArgs, global: &Global) -> Outcome {
    let show = args.trace.display();
    let file = std::fs::read_to_string(&args.trace)
        .map_err(|error| Failure::usage(format!("cannot read {show}: {error}")))?;
    let story = ndjson::read(&file).map_err(|error| {
        // What `lab processes --keep` leaves for each life is another thing.
        let life = file.starts_with("{\"quorate_trace\"");
        let hint = "; it is one life of `lab processes`, which writes the whole run with --ndjson";
        usage(format!("{show}: {error}{}", if life { hint } else { "" }))
    })?;
    if !args.forms.any() {
        return Err(usage("say what to make of it: --text, --svg FILE, --mermaid FILE and others".into()));
    }
    args.forms.make(&story, global)?;
    Ok(ExitCode::SUCCESS)
}
