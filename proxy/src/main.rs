//! Pointsman's proxy: command line, logs, exit code.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use pointsman_proxy::config::{self, Config, Host};
use pointsman_proxy::driver::sys;
use pointsman_proxy::process::{self, Ready};

/// A shard takes small blocks and gives them back on one thread, thousands of times a millisecond.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Carries requests to the engines that the policy names.
#[derive(Parser)]
#[command(name = "pointsman-proxy", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves until SIGTERM or SIGINT. Prints one JSON line when ready; logs go to stderr.
    ///
    /// Exit codes: 0 drained, 1 cannot start, 3 the drain timeout broke requests off, 4 ended at
    /// once by a second signal, 5 a shard died.
    Run {
        /// The configuration, as CONFIG.md describes it.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Checks a configuration without running it. Exit codes: 0 good, 1 not.
    Check {
        /// The configuration, as CONFIG.md describes it.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run { config } => run(&config),
        Command::Check { config } => check(&config),
    };
    result.unwrap_or_else(|error| {
        eprintln!("pointsman-proxy: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(path: &Path) -> anyhow::Result<ExitCode> {
    let config = load(path)?;
    start_logs(&config);
    let exit = process::run(config, announce)?;
    Ok(ExitCode::from(exit as u8))
}

fn check(path: &Path) -> anyhow::Result<ExitCode> {
    let config = load(path)?;
    print_line(&format!(
        "{}: good: frontend `{}`, {} shards, listening on {}",
        path.display(),
        config.frontend,
        config.shards,
        config
            .listen
            .iter()
            .chain(&config.listen_tls)
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
    ));
    Ok(ExitCode::SUCCESS)
}

fn load(path: &Path) -> Result<Config, config::ConfigError> {
    let cores = u16::try_from(sys::allowed_cores().len())
        .unwrap_or(u16::MAX)
        .max(1);
    config::load(path, Host { cores })
}

fn announce(ready: &Ready) {
    // Its fields are numbers, addresses and fixed words, which always serialise.
    let line = serde_json::to_string(ready).expect("plain values serialise");
    print_line(&line);
}

/// Prints for the program that started this one. Nobody reading is no reason to stop serving.
fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        tracing::warn!(%error, "standard output is gone");
    }
}

/// Logs to stderr. `RUST_LOG` overrides the configured level, for one run.
fn start_logs(config: &Config) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .or_else(|_| tracing_subscriber::EnvFilter::try_new(&config.log.level))
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    std::panic::set_hook(Box::new(|panic| {
        let location = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        let text = panic.payload_as_str().unwrap_or("a panic without text");
        tracing::error!(%location, "panic: {text}");
    }));
}
