//! The command line: what a person types, turned into calls of the pure core or of the daemon.

mod compare;
mod explain;
pub mod fit;
pub mod history;
mod report;
mod verify;
mod what_if;

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use pointsman_shm::policy::Mode;

use self::verify::Verified;
use self::what_if::Without;
use crate::compare::Rule;
use crate::error::Error;
use crate::model::explain::Ground;
use crate::model::optimise;
use crate::model::plan::Plan;
use crate::model::topology::Topology;
use crate::model::what_if as model;
use crate::model::what_if::set::Setting;
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
    /// Tell why every weight is what it is: what one more request costs at each engine.
    Explain(explain::ExplainArgs),
    /// Turn measurements of engines into capacities and latency curves for a topology.
    Fit(fit::FitArgs),
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
    /// Files for engines that want TLS or a token when they are asked for health and metrics.
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
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
    /// The topology to solve; with --log, that of the history where it is left out.
    #[arg(value_name = "FILE", required_unless_present = "log")]
    pub file: Option<PathBuf>,
    /// Print JSON for programs instead of a table for people.
    #[arg(long)]
    pub json: bool,
    /// Solve it by the other method too, say how much dearer the plan is, and fail where that is too
    /// much; for fleets that the general program can solve in time.
    #[arg(long, conflicts_with_all = ["settings", "without", "log"])]
    pub verify: bool,
    /// Also with this in place of what the file says, such as `engines.B.capacity=120`; may be
    /// repeated.
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub settings: Vec<Setting>,
    /// Also without `engine:NAME` or `region:NAME`, several at once if repeated; `each` is every
    /// single one in turn.
    #[arg(long, value_name = "WHAT", conflicts_with = "log")]
    pub without: Vec<Without>,
    /// What these rules would have done with recorded demand: `nearest`, `static`, `optimised`.
    #[arg(long, value_name = "RULES", value_delimiter = ',', requires = "log")]
    pub compare: Vec<Rule>,
    /// The record: a history's folder or one of its segments, or a file with one line of JSON a
    /// tick.
    #[arg(long, value_name = "PATH", requires = "compare")]
    pub log: Option<PathBuf>,
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
        Command::Plan(args) => plan(args, out),
        Command::Explain(args) => explain::run(args, out),
        Command::Fit(args) => fit::fit(args, out),
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

/// The plan for the configured demand, with every engine as described and nothing published; or
/// what would be otherwise if something were.
fn plan(args: &PlanArgs, out: &mut dyn Write) -> Result<(), Error> {
    if let Some(log) = &args.log {
        return compare::run(args, log, out);
    }
    let Some(file) = &args.file else {
        return Err(Error::Other("no topology to solve".to_owned()));
    };
    if !args.settings.is_empty() || !args.without.is_empty() {
        return what_if::run(args, file, out);
    }
    let topology = load(file)?;
    let ground = solve(&topology)?;
    let plan = Plan::new(
        &topology,
        &ground.problem,
        &ground.engines,
        &ground.solution,
    );
    let model_ms = optimise::model_ms(&ground.problem, &ground.solution);
    let verified = args.verify.then(|| Verified::of(&ground)).transpose()?;
    let text = match args.json {
        true => report::json(&topology, &plan, &ground.engines, (model_ms, verified)),
        false => {
            let line = verified.map_or_else(String::new, |v| v.line());
            report::table(&topology, &plan, model_ms) + &line
        }
    };
    write(out, &text)?;
    verified.map_or(Ok(()), |verified| verified.judged())
}

/// The plan of a topology, and what it was made from.
fn solve(topology: &Topology) -> Result<Ground, Error> {
    let ground = model::solve(topology, &model::described(topology));
    ground.map_err(|status| Error::Plan(status.to_string()))
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
