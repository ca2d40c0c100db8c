//! `pointsman-bench stream`: what a request, a token, a held stream and a client that leaves cost,
//! beside bare relays and the proxies of others.
//!
//! Each system stands alone on one core between a mock engine and a load client on another. All
//! take turns at every shape, round after round, and what is compared is figures of one round.
//! The instruments themselves are `bare-engine`, `bare-load` and `relay`; this only starts them,
//! reads the clock and does sums.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use pointsman_proxy::driver::sys::{allowed_cores, pin_to_core};
use tokio::signal::unix::{SignalKind, signal};

mod args;
mod bars;
mod client;
mod ledger;
mod peers;
mod plan;
mod process;
mod product;
mod report;
mod shape;
pub(crate) mod stats;
mod subject;
mod system;
mod tries;
mod window;

pub use args::Args;

use crate::io_driver::IoDriver;
use crate::proc;
use ledger::{Ledger, Taken};
use peers::{Installed, Missing};
use plan::{Clock, Step, judge};
use process::Cores;
use report::{About, Report};
use shape::Spans;
use system::{Kind, Peer, System};

/// What does not change during a run.
struct Setting {
    /// This program, for engine, client and relay.
    own: PathBuf,
    /// The product.
    proxy: PathBuf,
    io_driver: IoDriver,
    peers: BTreeMap<Peer, Installed>,
    cores: Cores,
    spans: Spans,
    quick: bool,
}

/// A run under way.
struct Run<'a> {
    args: &'a Args,
    setting: &'a Setting,
    folder: &'a Path,
    began: Instant,
    ledger: &'a RefCell<Ledger>,
}

/// Measures what the arguments select and prints a report. What was measured until somebody
/// interrupts it is reported too.
pub async fn run(args: Args) -> anyhow::Result<()> {
    args.check()?;
    let (systems, shapes) = (args.systems()?, args.shapes()?);
    // Before signals are caught, so that Ctrl-C ends a long build, and before anything is pinned.
    let setting = setting(&args, &systems)?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch SIGTERM")?;
    // Under nohup it is to outlive its terminal.
    let minds_hangup = !proc::ignores(SignalKind::hangup());
    let mut hangup = signal(SignalKind::hangup()).context("cannot watch SIGHUP")?;
    let folder = folder(args.keep)?;
    pin_to_core(setting.cores.instruments).context("cannot run on the instruments' core")?;
    let steps = plan::steps(&systems, &shapes, args.rounds);
    tell_plan(&args, &setting, &systems, &steps);
    let ledger = RefCell::default();
    let run = Run {
        args: &args,
        setting: &setting,
        folder: folder.path(),
        began: Instant::now(),
        ledger: &ledger,
    };
    let ended = tokio::select! {
        () = Box::pin(run.play(&steps)) => Ok(()),
        _ = interrupt.recv() => Err("interrupted"),
        _ = terminate.recv() => Err("ended"),
        _ = hangup.recv(), if minds_hangup => Err("ended with its terminal"),
    };
    let about = about(&args, setting.cores, run.began);
    let ledger = ledger.borrow();
    let versions = setting.peers.iter();
    let report = Report {
        systems: &systems,
        shapes: &shapes,
        ledger: &ledger,
        versions: versions
            .map(|(&peer, installed)| (peer, installed.version.clone()))
            .collect(),
        about,
    };
    report::print(&report, args.json);
    if let Err(how) = ended {
        bail!("{how} before all was measured");
    }
    let broken = ledger.broken().len();
    ensure!(broken == 0, "{broken} windows could not be measured");
    Ok(())
}

impl Run<'_> {
    /// Every window in order. One that cannot be measured is noted, and the run goes on.
    async fn play(&self, steps: &[Step]) {
        for (at, step) in steps.iter().enumerate() {
            let left = plan::seconds(&steps[at + 1..], self.setting.spans);
            match self.window(step, at, left).await {
                Ok(taken) => {
                    tell(self.progress(at, steps.len()), step, &taken);
                    self.ledger.borrow_mut().keep(*step, taken);
                }
                Err(error) => {
                    let why = format!("{error:#}");
                    let progress = self.progress(at, steps.len());
                    eprintln!("{progress} {}: NOT MEASURED: {why}", name(step));
                    self.ledger.borrow_mut().give_up(*step, why);
                }
            }
        }
    }

    /// Measures a window until it is kept: the quietest of its tries.
    async fn window(&self, step: &Step, at: usize, left_s: f64) -> anyhow::Result<Taken> {
        let measure = async |tries: u32| {
            let folder = self.folder.join(format!("{at}-{}-{tries}", name(step)));
            std::fs::create_dir(&folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
            let taken = window::measure(step, self.setting, &folder).await?;
            if !self.args.keep {
                let _ = std::fs::remove_dir_all(&folder);
            }
            Ok(taken)
        };
        let verdict = |taken: &Taken, tries: u32| {
            let minds = step.shape.minds_others() && !self.args.quick;
            let others = if minds { taken.others_cores } else { 0.0 };
            let again_s = step.shape.seconds(step.system, self.setting.spans);
            let clock = Clock {
                most_s: self.args.most_minutes * 60.0,
                spent_s: self.began.elapsed().as_secs_f64(),
                left_s,
            };
            judge(others, self.args.others, tries, again_s, clock)
        };
        tries::quietest(measure, verdict).await
    }

    fn progress(&self, at: usize, of: usize) -> String {
        let minutes = self.began.elapsed().as_secs_f64() / 60.0;
        format!("[{}/{of}, {minutes:.1} min]", at + 1)
    }
}

fn setting(args: &Args, systems: &[&'static System]) -> anyhow::Result<Setting> {
    let own = std::env::current_exe().context("where is this program?")?;
    let own_dir = own.parent().context("this program is in no folder")?;
    let bin_dir = args.bin_dir.as_deref().unwrap_or(own_dir);
    let proxy = std::path::absolute(bin_dir.join("pointsman-proxy"))?;
    let has_product = systems.iter().any(|system| system.kind == Kind::Product);
    ensure!(
        !has_product || proxy.is_file(),
        "{} is missing: build it (`cargo build --release --bins`) or name its folder with --bin-dir",
        proxy.display()
    );
    let install_dir = match &args.install_dir {
        Some(folder) => std::path::absolute(folder)?,
        None => own_dir.parent().unwrap_or(own_dir).join("peers"),
    };
    let missing = if args.no_install {
        Missing::Refuse
    } else {
        Missing::Install
    };
    let wanted: Vec<Peer> = systems.iter().filter_map(|system| system.peer()).collect();
    let peers = peers::provide(&wanted, &install_dir, missing)?;
    Ok(Setting {
        own,
        proxy,
        io_driver: args.io_driver,
        peers,
        cores: cores(args, &allowed_cores())?,
        spans: args.spans(),
        quick: args.quick,
    })
}

/// The two cores of a run. On one core alone nothing is measured, but it can be tried.
fn cores(args: &Args, allowed: &[usize]) -> anyhow::Result<Cores> {
    let first = *allowed.first().context("no core is allowed")?;
    let (subject, instruments) = match args.cores[..] {
        [subject, instruments] => (subject, instruments),
        _ => (first, allowed.get(1).copied().unwrap_or(first)),
    };
    for core in [subject, instruments] {
        ensure!(
            allowed.contains(&core),
            "--cores: core {core} is none of those allowed: {allowed:?}"
        );
    }
    if subject == instruments {
        tracing::warn!("subject and instruments share a core: the figures say nothing of speed");
    }
    Ok(Cores {
        subject,
        instruments,
    })
}

/// A folder for configurations, logs and region files, on tmpfs where there is one.
fn folder(keep: bool) -> anyhow::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let parent = if pointsman_shm::is_tmpfs(memory) {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    };
    let mut folder = tempfile::Builder::new()
        .prefix("pointsman-stream-")
        .tempdir_in(&parent)
        .with_context(|| format!("cannot make a folder in {}", parent.display()))?;
    if keep {
        folder.disable_cleanup(true);
        eprintln!("configurations and logs: {}", folder.path().display());
    }
    Ok(folder)
}

fn tell_plan(args: &Args, setting: &Setting, systems: &[&'static System], steps: &[Step]) {
    for (peer, installed) in &setting.peers {
        eprintln!("{peer} {}", installed.version);
    }
    let once = steps.iter().filter(|step| step.shape.runs_once()).count();
    eprintln!(
        "{} systems, {} windows in {} rounds and {once} that run once",
        systems.len(),
        steps.len() - once,
        args.rounds,
    );
    if args.quick {
        return;
    }
    eprintln!(
        "about {:.0} min, and up to {:.0} min for windows that others disturb (above {} cores)",
        plan::seconds(steps, setting.spans) / 60.0,
        args.most_minutes,
        args.others,
    );
}

fn tell(progress: String, step: &Step, taken: &Taken) {
    let mut line = format!("{progress} {}:", name(step));
    for (figure, unit) in [
        (taken.ops_per_s, "ops/s"),
        (taken.cpu_us_per_op, "us CPU/op"),
        (taken.p99_us, "us p99"),
        (taken.kib_per_stream, "KiB/stream"),
        (taken.cancel_ms, "ms cancel"),
        (taken.silent_cancel_ms, "ms cancel in prefill"),
    ] {
        if let Some(figure) = figure {
            line.push_str(&format!(" {figure:.2} {unit},"));
        }
    }
    line.push_str(&format!(
        " {} ops, {} failed, others {:.2}",
        taken.ops, taken.failed, taken.others_cores
    ));
    if !taken.failures.is_empty() {
        line.push_str(&format!(" {:?}", taken.failures));
    }
    if taken.tries > 1 {
        line.push_str(&format!(", {} tries", taken.tries));
    }
    if taken.noisy {
        line.push_str(", noisy");
    }
    eprintln!("{line}");
}

fn name(step: &Step) -> String {
    let Step {
        round,
        shape,
        system,
    } = step;
    format!("{}-{}-{round}", shape.name, system.name)
}

fn about(args: &Args, cores: Cores, began: Instant) -> About {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let words = |path: &str, count: usize| {
        let text = read(path);
        text.split_whitespace()
            .take(count)
            .collect::<Vec<&str>>()
            .join(" ")
    };
    let info = read("/proc/cpuinfo");
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    About {
        kernel: format!("Linux {}", words("/proc/sys/kernel/osrelease", 1)),
        processor: model
            .map_or("a processor without a name", |(_, name)| name)
            .to_owned(),
        load_average: words("/proc/loadavg", 3),
        cores: (cores.subject, cores.instruments),
        rounds: args.rounds,
        window_s: args.window_s,
        others: args.others,
        minutes: began.elapsed().as_secs_f64() / 60.0,
        quick: args.quick,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::parsed;

    #[test]
    fn cores_are_two_that_are_allowed() {
        let of = |words: &str, allowed: &[usize]| {
            let line = ["stream"].into_iter().chain(words.split_whitespace());
            cores(&parsed(line), allowed)
        };
        let pair = |cores: anyhow::Result<Cores>| {
            let cores = cores.unwrap();
            (cores.subject, cores.instruments)
        };
        assert_eq!(pair(of("", &[2, 5, 7])), (2, 5));
        assert_eq!(pair(of("--cores 7,2", &[2, 5, 7])), (7, 2));
        assert_eq!(pair(of("", &[4])), (4, 4));
        let error = of("--cores 2,6", &[2, 5, 7]).unwrap_err().to_string();
        assert_eq!(error, "--cores: core 6 is none of those allowed: [2, 5, 7]");
    }
}
