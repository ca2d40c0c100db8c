//! The command line of the synthetic world: one binary, one subcommand for each instrument.

use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
#[cfg(target_arch = "x86_64")]
use pointsman_bench::select;
use pointsman_bench::{bare, drill, engine, load, profile, relay, ring, solve, stream, world};

/// Mock engines, load clients and a local world for Pointsman.
#[derive(Parser)]
#[command(name = "pointsman-bench", version)]
struct Cli {
    #[command(subcommand)]
    instrument: Instrument,
}

#[derive(Subcommand)]
enum Instrument {
    /// Run an engine that costs next to nothing, to measure what stands before it.
    BareEngine(Box<bare::engine::Args>),
    /// Load such an engine at next to no cost, and check every byte.
    BareLoad(Box<bare::load::Args>),
    /// Break what can break, in real processes, and judge what the guardrails make of it.
    Drill(Box<drill::Args>),
    /// Run OpenAI-compatible mock engines.
    Engine(Box<engine::Args>),
    /// Send load to an engine or a proxy and report what came back.
    Load(Box<load::Args>),
    /// Sweep a real engine with rising load, for `pointsman-solver fit`.
    Profile(Box<profile::Args>),
    /// Relay to one engine and do nothing else: what a proxy is measured against.
    Relay(Box<relay::Args>),
    /// Measure io_uring alone: multishot reads and registered files against one-shot reads.
    Ring(Box<ring::Args>),
    /// Measure the choice of an engine while policies change.
    #[cfg(target_arch = "x86_64")]
    Select(Box<select::Args>),
    /// Measure how long the optimum takes to find, and how good it is.
    Solve(Box<solve::Args>),
    /// Measure what carrying requests and streams costs, beside relays and other proxies.
    Stream(Box<stream::Args>),
    /// Run a local world: engines, solver, proxies, users.
    World(Box<world::Args>),
}

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    match run(Cli::parse().instrument) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pointsman-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(instrument: Instrument) -> anyhow::Result<()> {
    pointsman_bench::sys::raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        match instrument {
            Instrument::BareEngine(args) => bare::engine::run(*args),
            Instrument::BareLoad(args) => bare::load::run(*args),
            Instrument::Drill(args) => drill::run(*args).await,
            Instrument::Engine(args) => engine::run(*args).await,
            Instrument::Load(args) => load::run(*args).await,
            Instrument::Profile(args) => profile::run(*args).await,
            Instrument::Relay(args) => relay::run(&args),
            Instrument::Ring(args) => ring::run(&args),
            #[cfg(target_arch = "x86_64")]
            Instrument::Select(args) => select::run(*args).await,
            Instrument::Solve(args) => solve::run(&args),
            Instrument::Stream(args) => stream::run(*args).await,
            Instrument::World(args) => world::run(*args).await,
        }
    })
}
