//! `pointsman-bench drill`: what can break is broken on purpose, in real processes, and what the
//! guardrails make of it is judged.
//!
//! A drill starts a small world of its own (engines, a solver, proxies, users), changes it as its
//! script says, and checks what users and processes saw against the product's promises. It decides
//! nothing for the product, and it is not a simulation: times are real, so the same seed gives the
//! same arrivals and the same faults, and figures that differ by what the machine had to do beside.

use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde_json::{Map, Value, json};

mod alerts;
mod allowance;
mod brownout;
mod cast;
mod cold_return;
mod dead_engine;
mod flapping;
mod hot_key;
mod overload;
mod penalty;
mod picture;
mod plan;
mod record;
mod retry_storm;
mod sampler;
mod solver_gone;
mod stale_signals;
mod users;
mod verdict;
mod world;

use crate::alarm::Alarm;
use crate::io_driver::IoDriver;
use crate::world::interruption;
use picture::Picture;
use verdict::Verdict;

/// Breaks what can break and judges what becomes of it; exit code 0 if every check held.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Which drill.
    #[arg(value_enum)]
    pub name: Name,
    /// Print only JSON: a line a drill, and with `all` one for all of them.
    #[arg(long)]
    pub json: bool,
    /// Folder of pointsman-solver and pointsman-proxy; by default this program's own.
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
    /// Where a picture of each drill is written, NAME.svg.
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
    /// Prometheus rules whose alerts are judged, by promtool.
    #[arg(long, value_name = "FILE", default_value = alerts::RULES)]
    pub rules: PathBuf,
    /// The proxies' I/O driver.
    #[arg(long, value_enum, default_value = "auto")]
    pub io_driver: IoDriver,
    /// Seed of arrivals and conversations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Keep the folders of configurations and logs.
    #[arg(long)]
    pub keep: bool,
}

/// The drills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// Every one of them, one after the other.
    All,
    /// All engines reset three requests in ten, the fleet is nearly full, users try again.
    RetryStorm,
    /// An engine is killed under load.
    DeadEngine,
    /// An engine turns five times slower.
    Brownout,
    /// An engine is a little slow, and recovers.
    Penalty,
    /// More comes than an engine's allowance lets through.
    Allowance,
    /// Half as much again comes as all engines can do.
    Overload,
    /// The solver is killed and the policy file harmed.
    SolverGone,
    /// An engine is down for five seconds in every fifteen.
    Flapping,
    /// An engine that was dead comes back.
    ColdReturn,
    /// Engine state is frozen while an engine's load is doubled.
    StaleSignals,
    /// One conversation is three requests in ten.
    HotKey,
}

/// What a drill leaves.
#[derive(Default)]
struct Outcome {
    verdict: Verdict,
    picture: Picture,
}

/// Runs one drill, or all.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let interrupted = interruption()?;
    let alarm = Alarm::start().context("cannot make a timer")?;
    tokio::select! {
        ran = run_named(&args, &alarm) => ran,
        () = interrupted => bail!("interrupted"),
    }
}

async fn run_named(args: &Args, alarm: &Rc<Alarm>) -> anyhow::Result<()> {
    if args.name != Name::All {
        let passes = run_one(args, alarm, args.name).await?;
        anyhow::ensure!(passes.0, "{}: a check failed", args.name.text());
        return Ok(());
    }
    let (mut measures, mut failed) = (Map::new(), Vec::new());
    let drills = Name::value_variants().iter();
    for &name in drills.filter(|&&name| name != Name::All) {
        // One that could not run is one that did not pass; the others still say what they can.
        match run_one(args, alarm, name).await {
            Ok((passes, measured)) => {
                measures.insert(name.text(), measured);
                if !passes {
                    failed.push(name.text());
                }
            }
            Err(error) => {
                tracing::error!("{}: {error:#}", name.text());
                measures.insert(name.text(), Value::Null);
                failed.push(name.text());
            }
        }
    }
    print(&json!({"drill": "all", "pass": failed.is_empty(), "measures": measures}).to_string());
    anyhow::ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Runs a drill and prints what it found; whether it passed, and its measures.
async fn run_one(args: &Args, alarm: &Rc<Alarm>, name: Name) -> anyhow::Result<(bool, Value)> {
    let text = name.text();
    if !args.json {
        print(&text);
    }
    let drill: Pin<Box<dyn Future<Output = anyhow::Result<Outcome>> + '_>> = match name {
        Name::All => bail!("`all` is every drill and none of its own"),
        Name::RetryStorm => Box::pin(retry_storm::run(args, alarm)),
        Name::DeadEngine => Box::pin(dead_engine::run(args, alarm)),
        Name::Brownout => Box::pin(brownout::run(args, alarm)),
        Name::Penalty => Box::pin(penalty::run(args, alarm)),
        Name::Allowance => Box::pin(allowance::run(args, alarm)),
        Name::Overload => Box::pin(overload::run(args, alarm)),
        Name::SolverGone => Box::pin(solver_gone::run(args, alarm)),
        Name::Flapping => Box::pin(flapping::run(args, alarm)),
        Name::ColdReturn => Box::pin(cold_return::run(args, alarm)),
        Name::StaleSignals => Box::pin(stale_signals::run(args, alarm)),
        Name::HotKey => Box::pin(hot_key::run(args, alarm)),
    };
    let Outcome { verdict, picture } = drill.await?;
    if let Some(folder) = &args.svg {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let path = folder.join(format!("{text}.svg"));
        std::fs::write(&path, picture.svg(&text))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if !args.json {
        verdict.lines().iter().for_each(|line| print(line));
    }
    print(&verdict.line(&text).to_string());
    Ok((verdict.passes(), verdict.measures()))
}

impl Name {
    /// As the command line has it.
    fn text(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

#[expect(
    clippy::print_stdout,
    reason = "the findings are this program's output"
)]
fn print(line: &str) {
    println!("{line}");
}
