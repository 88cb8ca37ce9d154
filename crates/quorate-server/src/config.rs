//! The settings of `quorate serve`: where each may be given, what it may be, and which one counts.
//!
//! Rule: the command line wins over the environment, that over the file, that over the default.
//! A setting that is unknown or out of its range is an error that names it, the place it came from, and what
//! it may be. Nothing is guessed, and nothing is ignored in silence.

use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Num, Value};
use figment::{Figment, Metadata, Profile, Provider};
use quorate_core::time::Span;
use std::fmt::Display;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What begins the names of environment variables: `data` is `QUORATE_DATA`.
pub const PREFIX: &str = "QUORATE_";

/// Variables with our prefix that are no settings of `serve`: those of other commands, those that a command
/// which `quorate lock` runs finds in its environment, and a seam of our tests (`log/crash.rs`).
pub const OTHER_VARIABLES: &[&str] = &[
    "QUORATE_SERVER",
    "QUORATE_CONFIG",
    "QUORATE_CLUSTER",
    "QUORATE_SESSION",
    "QUORATE_GROUP",
    "QUORATE_LOCK",
    "QUORATE_NAME",
    "QUORATE_ENTRY",
    "QUORATE_SEAT",
    "QUORATE_TOKEN",
    "QUORATE_ORDINAL",
    "QUORATE_ROLE",
    "QUORATE_RESOURCE",
    "QUORATE_GUARD",
    "QUORATE_DEADLINE",
    "QUORATE_TEST_CRASH",
];

/// What Kubernetes puts into every pod when a service of the namespace is named `quorate`.
const INJECTED: [&str; 2] = ["QUORATE_SERVICE_", "QUORATE_PORT"];

/// One setting: its key in the file, which is also its flag and its variable, and what it may be.
pub struct Setting {
    /// `ttl_floor` in the file, `--ttl-floor` on the command line, `QUORATE_TTL_FLOOR` in the environment.
    pub key: &'static str,
    /// What it may be, for people.
    pub range: &'static str,
    /// What it is if nobody says, for people.
    pub default: &'static str,
}

/// All settings.
pub const SETTINGS: &[Setting] = &[
    Setting { key: "listen", range: "HOST:PORT", default: "127.0.0.1:7420" },
    Setting { key: "data", range: "a directory", default: "./quorate-data" },
    Setting { key: "insecure", range: "true or false", default: "false" },
    Setting { key: "ttl_floor", range: "1ms to 10min, such as 200ms", default: "measured" },
    Setting { key: "snapshot_every", range: "100 to 10000000 log entries", default: "10000" },
    Setting { key: "disk_reserve_bytes", range: "0 to 1099511627776", default: "33554432, which is 32 MiB" },
    Setting { key: "connections", range: "1 to 1000000", default: "10000" },
    Setting { key: "threads", range: "1 to 256", default: "half the CPUs" },
    Setting { key: "log", range: "a filter like info or warn", default: "info,openraft=error" },
    Setting { key: "log_format", range: "auto, text or json", default: "auto" },
];

/// How the server logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// On a terminal a greeting for people and then lines of text; elsewhere lines of text.
    #[default]
    Auto,
    /// Lines of text.
    Text,
    /// One JSON object a line.
    Json,
}

/// The settings, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The addresses to try, in order; the first that can be bound is listened on.
    pub listen: Vec<SocketAddr>,
    /// The directory that holds everything durable. Exactly one server may use it.
    pub data: PathBuf,
    /// Listen beyond loopback although neither TLS nor authentication is on.
    pub insecure: bool,
    /// The shortest lease to allow. Too low, and healthy sessions expire when the disk or the network is slow;
    /// too high, and failover is slow. None: it is measured.
    pub ttl_floor: Option<Span>,
    /// Log entries between two snapshots. Fewer make each start faster, and write more.
    pub snapshot_every: u64,
    /// Below this much free space only release, leave and expiry are logged (RULES R28). Too little, and a full
    /// disk stops the node; 0 switches the check off.
    pub disk_reserve_bytes: u64,
    /// How many connections are served at once; one more is told so and closed.
    pub connections: usize,
    /// How many threads serve, beside the one that writes the log. More than there is work for slow it down, since
    /// idle ones are woken to look for some; fewer than the connections need leave CPUs idle.
    pub threads: usize,
    /// Which log lines are written.
    pub log: String,
    /// How they are written.
    pub log_format: LogFormat,
}

/// A setting that cannot be used: one sentence that names it, where it came from, and what it may be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// What the command line says, by key.
pub type Flags = Vec<(&'static str, String)>;

impl Config {
    /// Reads the file, if one is named, the environment and the command line.
    ///
    /// # Errors
    /// [`ConfigError`] for the first setting that is unknown or out of its range.
    pub fn load(file: Option<&Path>, flags: Flags) -> Result<Self, ConfigError> {
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        });
        Self::from_layers(file, variables.collect(), flags)
    }

    fn from_layers(
        file: Option<&Path>,
        variables: Vec<(String, String)>,
        flags: Flags,
    ) -> Result<Self, ConfigError> {
        let mut figment = Figment::new();
        if let Some(path) = file {
            figment = figment.merge(read_file(path)?);
        }
        let layers = Layers(figment.merge(environment(variables)?).merge(command_line(flags)));
        let config = Self {
            listen: layers.get("listen", addresses)?.unwrap_or_else(default_listen),
            data: layers.get("data", directory)?.unwrap_or_else(|| "./quorate-data".into()),
            insecure: layers.get("insecure", parsed)?.unwrap_or(false),
            ttl_floor: layers.get("ttl_floor", ttl)?,
            snapshot_every: layers
                .get("snapshot_every", |text| within(text, 100, 10_000_000))?
                .unwrap_or(10_000),
            disk_reserve_bytes: layers
                .get("disk_reserve_bytes", |text| within(text, 0, 1 << 40))?
                .unwrap_or(32 << 20),
            connections: layers
                .get("connections", |text| within(text, 1, 1_000_000))?
                .map_or(10_000, |connections| connections as usize),
            threads: layers
                .get("threads", |text| within(text, 1, 256))?
                .map_or_else(half_the_cpus, |threads| threads as usize),
            log: layers.get("log", filter)?.unwrap_or_else(|| "info,openraft=error".into()),
            log_format: layers.get("log_format", log_format)?.unwrap_or_default(),
        };
        config.refuse_open_door(&layers)?;
        Ok(config)
    }

    /// Whoever reaches an open port can take any lock, so that needs a word of consent.
    fn refuse_open_door(&self, layers: &Layers) -> Result<(), ConfigError> {
        let open = self.listen.iter().find(|address| !address.ip().is_loopback());
        match open {
            Some(address) if !self.insecure => Err(ConfigError(format!(
                "listen = {address} ({}) is open to other machines, and this release has neither TLS nor \
                 authentication: whoever reaches it can take any lock; listen on 127.0.0.1, or say \
                 --insecure if the network itself is closed",
                layers.origin("listen"),
            ))),
            _ => Ok(()),
        }
    }
}

/// The order of the log is the work of one thread, and that of its writer; the rest is the clients' own.
fn half_the_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get().div_ceil(2))
}

/// Values with the places that they came from.
struct Layers(Figment);

impl Layers {
    /// A setting, if it was given anywhere.
    fn get<T>(
        &self,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, ConfigError> {
        let Ok(value) = self.0.find_value(key) else { return Ok(None) };
        let text = text_of(&value).ok_or_else(|| "it is no single value".to_owned());
        let shown = text.as_deref().map_or_else(|_| "[...]".to_owned(), |text| format!("{text:?}"));
        let parsed = text.and_then(|text| parse(&text));
        parsed.map(Some).map_err(|why| {
            let origin = self.origin(key);
            ConfigError(format!("{key} = {shown} ({origin}): {why}; it may be {}", range(key)))
        })
    }

    fn origin(&self, key: &str) -> String {
        let place = self.0.find_metadata(key).map(|metadata| match &metadata.source {
            Some(figment::Source::File(path)) => in_file(path, key),
            _ => match metadata.name.as_ref() {
                ENVIRONMENT => format!("from {}", variable(key)),
                _ => format!("from {}", flag(key)),
            },
        });
        place.unwrap_or_else(|| "the default".into())
    }
}

fn range(key: &str) -> &'static str {
    SETTINGS.iter().find(|setting| setting.key == key).map_or("", |setting| setting.range)
}

fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.to_uppercase())
}

fn flag(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

/// `line 3 of FILE`, as far as the line can be found.
fn in_file(path: &Path, key: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let here =
        |line: &str| line.split(['=', '.']).next().is_some_and(|name| name.trim().trim_matches('"') == key);
    match text.lines().position(here) {
        Some(at) => format!("line {} of {}", at + 1, path.display()),
        None => format!("in {}", path.display()),
    }
}

const ENVIRONMENT: &str = "environment";

/// One layer of plain texts.
struct Texts {
    name: &'static str,
    values: Vec<(String, String)>,
}

impl Provider for Texts {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name)
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let values = self.values.iter().map(|(key, value)| (key.clone(), Value::from(value.clone())));
        Ok(Map::from([(Profile::Default, values.collect())]))
    }
}

fn read_file(path: &Path) -> Result<impl Provider, ConfigError> {
    let shown = path.display();
    std::fs::read_to_string(path)
        .map_err(|error| ConfigError(format!("cannot read the settings in {shown}: {error}")))?;
    let file = Toml::file_exact(path);
    let data = file.data().map_err(|error| {
        let why = error.to_string();
        ConfigError(format!(
            "{shown} is no TOML file: {}",
            why.split_whitespace().collect::<Vec<_>>().join(" ")
        ))
    })?;
    for key in data.values().flat_map(Dict::keys) {
        if !SETTINGS.iter().any(|setting| setting.key == key) {
            let origin = in_file(path, key);
            return Err(ConfigError(format!("{key} ({origin}) is no setting; {}", settings_like(key))));
        }
    }
    Ok(file)
}

fn environment(variables: Vec<(String, String)>) -> Result<Texts, ConfigError> {
    let mut values = Vec::new();
    for (name, value) in variables {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let key = rest.to_lowercase();
        if SETTINGS.iter().any(|setting| setting.key == key) {
            values.push((key, value));
        } else if !is_other(&name) {
            let known = settings_like(&key);
            return Err(ConfigError(format!("{name} (in the environment) names no setting; {known}")));
        }
    }
    Ok(Texts { name: ENVIRONMENT, values })
}

fn is_other(name: &str) -> bool {
    OTHER_VARIABLES.contains(&name) || INJECTED.iter().any(|prefix| name.starts_with(prefix))
}

fn command_line(flags: Flags) -> Texts {
    let values = flags.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Texts { name: "command line", values }
}

/// The one that was probably meant, or all of them.
fn settings_like(key: &str) -> String {
    let keys = SETTINGS.iter().map(|setting| setting.key);
    let near = keys.clone().min_by_key(|known| distance(known, key));
    match near {
        Some(near) if distance(near, key) <= 2 => format!("did you mean {near} ({})?", range(near)),
        _ => format!("there are {}", keys.collect::<Vec<_>>().join(", ")),
    }
}

/// How many letters must be changed, added or taken away to get from one word to the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(_, text) => Some(text.clone()),
        Value::Char(_, letter) => Some(letter.to_string()),
        Value::Bool(_, yes) => Some(yes.to_string()),
        Value::Num(_, number) => Some(match number {
            Num::F32(number) => number.to_string(),
            Num::F64(number) => number.to_string(),
            whole => {
                whole.to_i128().map(|n| n.to_string()).or_else(|| whole.to_u128().map(|n| n.to_string()))?
            }
        }),
        Value::Empty(..) | Value::Dict(..) | Value::Array(..) => None,
    }
}

fn parsed<T: std::str::FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

fn within(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let number: u64 = text.parse().map_err(|_| "that is no whole number".to_owned())?;
    match number {
        n if n < least => Err("that is too little".into()),
        n if n > most => Err("that is too much".into()),
        n => Ok(n),
    }
}

fn default_listen() -> Vec<SocketAddr> {
    vec![SocketAddr::from(([127, 0, 0, 1], 7420))]
}

fn addresses(text: &str) -> Result<Vec<SocketAddr>, String> {
    let found: Vec<SocketAddr> = text.to_socket_addrs().map_err(|error| error.to_string())?.collect();
    if found.is_empty() { Err("that name has no address".into()) } else { Ok(found) }
}

fn directory(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() { Err("that is empty".into()) } else { Ok(PathBuf::from(text)) }
}

fn ttl(text: &str) -> Result<Span, String> {
    let span: Duration = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match u64::try_from(span.as_millis()) {
        Ok(0) => Err("that is too short".into()),
        Ok(ms) if ms <= 600_000 => Ok(Span::from_millis(ms)),
        _ => Err("that is too long".into()),
    }
}

fn filter(text: &str) -> Result<String, String> {
    let parsed: Result<tracing_subscriber::EnvFilter, _> = text.parse();
    parsed.map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "auto" => Ok(LogFormat::Auto),
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("that is no format".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(toml: &str, variables: &[(&str, &str)], flags: Flags) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("quorate.toml");
        std::fs::write(&path, toml).unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        Config::from_layers(Some(&path), variables.collect(), flags)
            .map_err(|error| error.to_string().replace(&path.display().to_string(), "FILE"))
    }

    #[test]
    fn the_command_line_wins_over_the_environment_and_that_over_the_file() {
        let toml = "data = \"a\"\nconnections = 7\nlog_format = \"json\"\nttl_floor = \"2s\"";
        let variables = [("QUORATE_DATA", "007"), ("QUORATE_CONNECTIONS", "8"), ("HOME", "x")];
        let config = load(toml, &variables, vec![("connections", "9".into())]).unwrap();
        assert_eq!(config.connections, 9);
        assert_eq!(config.data, Path::new("007"), "a number is a name of a directory too");
        assert_eq!(config.log_format, LogFormat::Json);
        assert_eq!(config.ttl_floor, Some(Span::from_secs(2)));
        assert_eq!(config.listen, default_listen());
    }

    #[test]
    fn an_unknown_key_is_named_with_its_place() {
        assert_eq!(
            load("data = \"a\"\nlisten_on = \"x\"", &[], vec![]).unwrap_err(),
            "listen_on (line 2 of FILE) is no setting; there are listen, data, insecure, ttl_floor, \
             snapshot_every, disk_reserve_bytes, connections, threads, log, log_format"
        );
        assert_eq!(
            load("", &[("QUORATE_CONECTIONS", "7")], vec![]).unwrap_err(),
            "QUORATE_CONECTIONS (in the environment) names no setting; did you mean connections \
             (1 to 1000000)?"
        );
        let others = [("QUORATE_TOKEN", "7"), ("QUORATE_PORT_7420_TCP", "x"), ("QUORATE_SERVICE_HOST", "y")];
        assert!(load("", &others, vec![]).is_ok());
    }

    #[test]
    fn a_bad_value_is_named_with_its_place_and_its_range() {
        assert_eq!(
            load("\nconnections = 0", &[], vec![]).unwrap_err(),
            "connections = \"0\" (line 2 of FILE): that is too little; it may be 1 to 1000000"
        );
        assert_eq!(
            load("", &[("QUORATE_TTL_FLOOR", "11min")], vec![]).unwrap_err(),
            "ttl_floor = \"11min\" (from QUORATE_TTL_FLOOR): that is too long; it may be 1ms to 10min, \
             such as 200ms"
        );
        assert!(load("ttl_floor = 200", &[], vec![]).unwrap_err().contains("unit"));
        let flags = vec![("log_format", "xml".into())];
        assert!(load("", &[], flags).unwrap_err().starts_with("log_format = \"xml\" (from --log-format): "));
        assert!(load("listen = [1]", &[], vec![]).unwrap_err().contains("it is no single value"));
        assert!(load("listen = ", &[], vec![]).unwrap_err().starts_with("FILE is no TOML file: "));
    }

    #[test]
    fn an_open_door_needs_consent() {
        let why = load("listen = \"0.0.0.0:1\"", &[], vec![]).unwrap_err();
        assert!(why.starts_with("listen = 0.0.0.0:1 (line 1 of FILE) is open to other machines"), "{why}");
        assert!(why.contains("--insecure"), "{why}");
        let consent = load("listen = \"0.0.0.0:1\"\ninsecure = true", &[], vec![]).unwrap();
        assert_eq!(consent.listen, [SocketAddr::from(([0, 0, 0, 0], 1))]);
        assert!(load("listen = \"[::1]:1\"", &[], vec![]).is_ok());
    }
}
