//! `quorate serve`: reads the settings, starts the log lines, runs the service, says how it went.

use super::exit::{Failure, Outcome};
use crate::config::{Config, Flags, LogFormat, SETTINGS};
use crate::serve::{End, Ready, run as run_service};
use clap::Args;
use quorate_core::state_machine::LEVEL_HIGHEST;
use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing_subscriber::fmt::writer::OptionalWriter;

/// The command line of `quorate serve`. What is not said there is looked for in the environment, then in the
/// file; every setting is a text here, so that one place checks them all.
#[derive(Args, Clone, Debug, Default)]
pub struct ServeArgs {
    /// Where to listen
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Where the data is; made if it is missing
    #[arg(long, value_name = "DIR")]
    data: Option<String>,
    /// A TOML file of settings
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG")]
    config: Option<PathBuf>,
    /// Listen beyond this machine although there is neither TLS nor authentication
    #[arg(long)]
    insecure: bool,
    /// The shortest lease to allow, such as 200ms; measured if it is not given
    #[arg(long, value_name = "TIME")]
    ttl_floor: Option<String>,
    /// Log entries between two snapshots
    #[arg(long, value_name = "ENTRIES")]
    snapshot_every: Option<String>,
    /// Free disk space that is kept for release, leave and expiry
    #[arg(long, value_name = "BYTES")]
    disk_reserve_bytes: Option<String>,
    /// How many connections to serve at once
    #[arg(long, value_name = "COUNT")]
    connections: Option<String>,
    /// How many threads serve, beside the one that writes the log
    #[arg(long, value_name = "COUNT")]
    threads: Option<String>,
    /// Which log lines to write, such as info or warn,quorate_server=debug
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// How to write them: auto, text or json
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

impl ServeArgs {
    fn flags(self) -> (Option<PathBuf>, Flags) {
        let flags = [
            ("listen", self.listen),
            ("data", self.data),
            ("insecure", self.insecure.then(|| "true".to_owned())),
            ("ttl_floor", self.ttl_floor),
            ("snapshot_every", self.snapshot_every),
            ("disk_reserve_bytes", self.disk_reserve_bytes),
            ("connections", self.connections),
            ("threads", self.threads),
            ("log", self.log),
            ("log_format", self.log_format),
        ];
        (self.config, flags.into_iter().filter_map(|(key, value)| Some((key, value?))).collect())
    }
}

/// What `quorate serve --help` begins with.
pub const ABOUT: &str = "Run the service.\n\nWith no options it serves this machine alone, on 127.0.0.1:7420, \
    and keeps its data in ./quorate-data. Once it is ready it prints `listening on HOST:PORT` on standard \
    error. SIGTERM or SIGINT stops it in order; a second one at once.";

/// Every setting, where it may be given, and what it may be.
pub fn settings_help() -> String {
    let mut text = String::from(
        "Settings: a flag wins over a variable of the environment, that over the file.\n\n  \
         in the file         in the environment          range (default)\n",
    );
    for setting in SETTINGS {
        let variable = format!("QUORATE_{}", setting.key.to_uppercase());
        let (key, range, default) = (setting.key, setting.range, setting.default);
        let _ = writeln!(text, "  {key:<18}  {variable:<26}  {range} ({default})");
    }
    text.push_str("\nExample of a file:\n  listen = \"127.0.0.1:7420\"\n  data = \"/var/lib/quorate\"\n");
    text
}

/// Runs the service to its end.
///
/// # Errors
/// A setting that is wrong, a service that does not start, or a node that may not go on.
pub fn run(args: ServeArgs) -> Outcome {
    let (file, flags) = args.flags();
    let config = Config::load(file.as_deref(), flags).map_err(|error| Failure::usage(error.to_string()))?;
    let greet = config.log_format == LogFormat::Auto && io::stderr().is_terminal();
    start_logging(&config);
    let mut builder = match config.threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(config.threads).enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    let ended = runtime.block_on(run_service(config, |ready| announce(ready, greet)));
    QUIET.store(true, Ordering::Release);
    // What a failed disk holds up must not hold up the end of the process.
    runtime.shutdown_timeout(LINGER);
    match ended {
        Ok(End::Asked) => Ok(ExitCode::SUCCESS),
        Ok(End::Failed(why)) => Err(Failure::failed(why)),
        Err(error) => Err(Failure::failed(error.to_string())),
    }
}

/// Set at the end, so that no task has a word after the last line.
static QUIET: AtomicBool = AtomicBool::new(false);

/// How long tasks may take to notice the end.
const LINGER: Duration = Duration::from_millis(50);

fn log_writer() -> OptionalWriter<io::Stderr> {
    match QUIET.load(Ordering::Acquire) {
        true => OptionalWriter::none(),
        false => OptionalWriter::some(io::stderr()),
    }
}

fn start_logging(config: &Config) {
    let filter = config.log.parse::<tracing_subscriber::EnvFilter>().unwrap_or_default();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(log_writer);
    let started = match config.log_format {
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).try_init(),
        LogFormat::Auto | LogFormat::Text => {
            let coloured = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            lines.with_ansi(coloured).with_target(false).try_init()
        }
    };
    if let Err(error) = started {
        eprintln!("log lines are off: {error}");
    }
}

/// Says that the service is ready. Both forms hold `listening on HOST:PORT`, on standard error.
fn announce(ready: &Ready, greet: bool) {
    let Ready { address, data, status } = ready;
    if status.limits.level < LEVEL_HIGHEST {
        tracing::info!(
            "the cluster is at feature level {}, and this release runs up to {LEVEL_HIGHEST}: `quorate level \
             raise` raises it",
            status.limits.level
        );
    }
    let cluster = status.cluster.map(|cluster| cluster.to_string()).unwrap_or_default();
    if !greet {
        tracing::info!(
            data = %data.display(),
            cluster,
            node = status.node.0,
            ttl_floor_ms = status.ttl_floor.as_millis(),
            "listening on {address}"
        );
        return;
    }
    let elsewhere = if address.port() == 7420 && address.ip().is_loopback() {
        String::new()
    } else {
        format!(" --server {address}")
    };
    eprintln!(
        "Quorate {version} is listening on {address}\n\n  \
           data       {data}\n  \
           cluster    {cluster}\n  \
           node       {node}\n  \
           leases     {floor} or longer\n\n\
         Try, in another terminal:\n  \
           quorate{elsewhere} status\n  \
           quorate{elsewhere} lock demo -- sleep 5\n\n\
         Ctrl-C stops it.",
        version = env!("CARGO_PKG_VERSION"),
        data = data.display(),
        node = status.node,
        floor = status.ttl_floor,
    );
}
