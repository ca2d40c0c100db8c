//! The command line: what a person types, turned into calls of the pure core or of the daemon.

pub mod history;
mod report;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use pointsman_shm::policy::Mode;

use crate::error::Error;
use crate::model::optimise::optimise;
use crate::model::plan::Plan;
use crate::model::problem::{DemandNow, EngineNow, Now, Problem};
use crate::model::topology::Topology;
use crate::operate::client;

/// Largest topology that is read, bytes.
const MAX_FILE: u64 = 16 * 1024 * 1024;

/// Computes the routing weights of an inference fleet and publishes them to its proxies.
#[derive(Debug, clap::Parser)]
#[command(name = "pointsman-solver", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Serve a topology: measure, solve, publish, until told to stop.
    Run(RunArgs),
    /// Read a topology and say what it describes, or what is wrong with it.
    Check(CheckArgs),
    /// Solve a topology once, for its configured demand, and show the plan.
    Plan(PlanArgs),
    /// Show, change or take back what an operator orders of a running solver.
    #[command(flatten)]
    Operate(client::Operate),
    /// List what was decided lately, and why.
    History(history::HistoryArgs),
    /// Show a published version.
    Show(history::ShowArgs),
    /// Tell what changed from one published version to another.
    Diff(history::DiffArgs),
    /// Bring the weights of a published version back, as a pin.
    Rollback(history::RollbackArgs),
    /// Solve recorded ticks again and compare what comes out, byte for byte.
    Replay(history::ReplayArgs),
}

/// Arguments of `run`.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The topology to serve.
    #[arg(long, value_name = "FILE")]
    pub topology: PathBuf,
    /// Folder of the region files; wins over the topology's `run_dir`.
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Folder of the disk copies; wins over the topology's `state_dir`.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Address of the admin HTTP server; wins over the topology's `listen`.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<SocketAddr>,
}

/// Arguments of `check`.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckArgs {
    /// The topology to read.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Arguments of `plan`.
#[derive(Clone, Debug, clap::Args)]
pub struct PlanArgs {
    /// The topology to solve.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print JSON for programs instead of a table for people.
    #[arg(long)]
    pub json: bool,
}

/// Does what was asked and writes the answer to `out`.
///
/// # Errors
///
/// Whatever ended the command.
pub fn execute(cli: &Cli, out: &mut dyn Write) -> Result<(), Error> {
    match &cli.command {
        Command::Run(args) => crate::run::run(args),
        Command::Check(args) => {
            let topology = load(&args.file)?;
            write(out, &report::summary(&args.file, &topology))
        }
        Command::Plan(args) => {
            let topology = load(&args.file)?;
            let (plan, engines) = plan(&topology)?;
            let text = match args.json {
                true => report::json(&topology, &plan, &engines),
                false => report::table(&topology, &plan),
            };
            write(out, &text)
        }
        Command::Operate(operate) => client::run(operate, out),
        Command::History(args) => history::history(args, out),
        Command::Show(args) => history::show(args, out),
        Command::Diff(args) => history::diff(args, out),
        Command::Rollback(args) => history::rollback(args, out),
        Command::Replay(args) => history::replay(args, out),
    }
}

/// Reads a topology.
///
/// # Errors
///
/// When the file cannot be read, is no text, is too large, or is refused.
pub fn load(file: &Path) -> Result<Topology, Error> {
    Ok(Topology::parse(&file.display().to_string(), &read(file)?)?)
}

/// Reads the text of a topology.
///
/// # Errors
///
/// When the file cannot be read, is no text or is too large.
pub fn read(file: &Path) -> Result<String, Error> {
    let size = std::fs::metadata(file)
        .map_err(|e| Error::io("read", file, e))?
        .len();
    if size > MAX_FILE {
        let reason = format!(
            "{}: {size} bytes; at most {MAX_FILE} are read",
            file.display()
        );
        return Err(Error::Other(reason));
    }
    std::fs::read_to_string(file).map_err(|e| Error::io("read", file, e))
}

/// The plan for the configured demand, with every engine as described and nothing published.
fn plan(topology: &Topology) -> Result<(Plan, Vec<EngineNow>), Error> {
    let engines: Vec<EngineNow> = topology
        .engines
        .iter()
        .map(|e| EngineNow::described(e.replicas))
        .collect();
    let sources = topology.frontends.len() * topology.classes.len();
    let demand = configured(topology);
    let now = Now {
        demand: &demand,
        engines: &engines,
        previous: &vec![None; sources],
        reachable: &vec![true; topology.frontends.len() * topology.engines.len()],
        hold_observed: false,
    };
    let problem = Problem::new(topology, &now);
    let solution = optimise(&problem).map_err(|status| Error::Plan(status.to_string()))?;
    Ok((Plan::new(topology, &problem, &engines, &solution), engines))
}

/// Configured demand by frontend then class.
fn configured(topology: &Topology) -> Vec<DemandNow> {
    let none = vec![0.0; topology.priorities.len()];
    let classes = topology.classes.len();
    let mut list: Vec<DemandNow> = (0..topology.frontends.len() * classes)
        .map(|i| DemandNow {
            by_priority_rps: none.clone(),
            mix: topology.classes[i % classes].mix,
        })
        .collect();
    for demand in &topology.demand {
        let class = topology.routes[demand.route.0].class.0;
        let rates = &mut list[demand.frontend.0 * classes + class].by_priority_rps;
        rates[usize::from(demand.priority)] += demand.rps.value();
    }
    list
}

/// A mode as it is written in a topology.
fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Observe => "observe",
        Mode::Control => "control",
    }
}

fn write(out: &mut dyn Write, text: &str) -> Result<(), Error> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Error::io("write to", "standard output", error)),
        Ok(()) => Ok(()),
    }
}
