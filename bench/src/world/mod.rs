//! `pointsman-bench world`: a whole small Pointsman on one machine, with the product's own
//! processes.
//!
//! Three regions, each a frontend with its proxy and an engine; one solver; distance as delaying
//! relays; users as Poisson arrivals. It shows what goes where and why, then stays up; `--once` it
//! changes the world in three phases, checks what the design promises, and ends. With `--engine`
//! real engines take the place of the simulated ones.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

mod cast;
mod checks;
pub(crate) mod child;
pub(crate) mod fetch;
pub(crate) mod folder;
mod relay;
mod scene;
mod screen;
pub(crate) mod stage;
mod status;
mod table;
mod traffic;

use crate::alarm::Alarm;
use crate::io_driver::IoDriver;
use checks::Verdicts;
use screen::Screen;
use stage::Stage;

/// A local world: engines, one solver, a proxy for each frontend, clients.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Run the three phases, check them, and end; exit code 0 if every check held.
    #[arg(long)]
    pub once: bool,
    /// A real engine, http://host:port, in place of the simulated ones; repeatable.
    #[arg(long = "engine", value_name = "URL", requires = "model")]
    pub engines: Vec<String>,
    /// The model that the real engines serve.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
    /// Requests that a real engine is planned to run at once.
    #[arg(long, default_value_t = 8)]
    pub engine_running: u32,
    /// Folder of pointsman-solver and pointsman-proxy; by default this program's own.
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
    /// The proxies' I/O driver.
    #[arg(long, value_enum, default_value = "auto")]
    pub io_driver: IoDriver,
    /// Seed of the arrivals.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Keep the folder of configurations, logs and region files.
    #[arg(long)]
    pub keep: bool,
}

/// Runs the world until its checks are done or somebody ends it. An error means that it could not
/// run, or that a check failed.
pub async fn run(args: Args) -> anyhow::Result<()> {
    ensure!(
        args.engine_running > 0,
        "--engine-running: must be at least 1"
    );
    let interrupted = interruption()?;
    let alarm = Alarm::start().context("cannot make a timer")?;
    let screen = Rc::new(Screen::new(std::io::stdout().is_terminal()));
    let mut folder = folder::Folder::make("world", args.keep)?;
    let played = tokio::select! {
        played = play(&args, &alarm, &screen, &folder) => played,
        () = interrupted => Ok(()),
    };
    screen.close();
    if played.is_err() && folder.keep() {
        screen.say(&format!(
            "configurations and logs are kept in {}",
            folder.path().display()
        ));
    }
    played
}

async fn play(
    args: &Args,
    alarm: &Rc<Alarm>,
    screen: &Rc<Screen>,
    folder: &folder::Folder,
) -> anyhow::Result<()> {
    let mut stage = if args.engines.is_empty() {
        Stage::three_regions(args, alarm, folder).await?
    } else {
        Stage::real(args, folder).await?
    };
    for line in stage.greeting() {
        screen.say(&line);
    }
    let _drawing = screen::draw_each_second(screen, &stage.view());
    if !args.once {
        return Err(stage.watch().await);
    }
    let mut verdicts = Verdicts::new(Rc::clone(screen));
    if args.engines.is_empty() {
        checks::three_phases(&mut stage, &mut verdicts).await?;
    } else {
        checks::real_engines(&stage, &mut verdicts).await?;
    }
    if verdicts.failed() > 0 {
        bail!("{} of {} checks failed", verdicts.failed(), verdicts.made());
    }
    screen.say(&format!("every check holds: {}", verdicts.made()));
    Ok(())
}

/// Resolves at SIGINT or SIGTERM.
pub(crate) fn interruption() -> anyhow::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Longest wait for a process to be ready.
pub(crate) const READY_WITHIN: Duration = Duration::from_secs(30);

/// The address in a ready line.
pub(crate) fn address_in(ready: &serde_json::Value, pointer: &str) -> anyhow::Result<SocketAddr> {
    ready
        .pointer(pointer)
        .and_then(serde_json::Value::as_str)
        .and_then(|text| text.parse().ok())
        .with_context(|| format!("no address at {pointer} in the ready line {ready}"))
}
