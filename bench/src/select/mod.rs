//! `pointsman-bench select`: what the choice of an engine costs, while policies change under it.
//!
//! The product's own code from the key's bytes to the engine accepted: one atomic load to learn of
//! a new policy, the key's hash, the table, the gate, the guard word, the back-offs. Policies come
//! from a real writer through a real region file and the product's sentinel. Not the whole request:
//! classification comes before, the connection after.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use pointsman_proxy::driver::sys::{allowed_cores, pin_to_core};
use tokio::signal::unix::{SignalKind, signal};

mod args;
mod cpu;
mod fleet;
mod keys;
mod maglev;
mod measure;
mod rendezvous;
mod report;
mod stage;
mod subject;

pub use args::{Args, Pace, Tables};

use cpu::TicksPerNs;
use fleet::Size;
use keys::Asks;
use maglev::Maglev;
use measure::{BATCH, Grouping, measure, repeat};
use rendezvous::Rendezvous;
use report::{Place, Report, Row};
use stage::Stage;
use subject::{Extent, Peer, Pointsman, Subject, Timer};

/// One run: what to do, where, and by which rate of the counter.
struct Bench<'a> {
    args: &'a Args,
    dir: &'a Path,
    rate: TicksPerNs,
    /// Core of the writer and the sentinel.
    beside: Option<usize>,
    rows: Vec<Row>,
}

/// Runs the benchmark and prints its report.
pub async fn run(args: Args) -> anyhow::Result<()> {
    args.check()?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot watch SIGTERM")?;
    let folder = folder()?;
    let (sender, report) = tokio::sync::oneshot::channel();
    let (of_thread, dir) = (args.clone(), folder.path().to_owned());
    std::thread::Builder::new()
        .name("measure".to_owned())
        .spawn(move || sender.send(bench(&of_thread, &dir)))
        .context("cannot start the measuring thread")?;
    // The folder goes with this function, also when somebody ends the run.
    let report = tokio::select! {
        report = report => report.context("the measuring thread panicked")??,
        _ = interrupt.recv() => bail!("interrupted"),
        _ = terminate.recv() => bail!("terminated"),
    };
    report::print(&report, args.json);
    Ok(())
}

/// Measures everything that the arguments name, on the calling thread.
fn bench(args: &Args, dir: &Path) -> anyhow::Result<Report> {
    let counter = cpu::counter();
    ensure!(counter.present, "this processor has no rdtscp");
    // The last core measures: interrupts go to the first one by habit.
    let cores = allowed_cores();
    let core = cores.last().copied();
    if let Some(core) = core {
        pin_to_core(core).with_context(|| format!("cannot run on core {core}"))?;
    }
    let mut bench = Bench {
        args,
        dir,
        rate: cpu::calibrate(),
        beside: cores.first().copied(),
        rows: Vec::new(),
    };
    if args.calls.is_none() {
        bench.timer()?;
    }
    for &engines in &args.engines {
        for &tables in &args.tables {
            bench.fleet(engines, tables)?;
            let tables = tables.name();
            tracing::info!(engines, tables, rows = bench.rows.len(), "measured");
        }
    }
    Ok(Report {
        rows: bench.rows,
        rate: bench.rate,
        counter,
        core,
        seed: args.seed,
    })
}

impl Bench<'_> {
    /// What measuring costs.
    fn timer(&mut self) -> anyhow::Result<()> {
        let asks = Tables::Hot.asks(self.args.seed);
        let place = |system: &str| Place {
            system: system.to_owned(),
            engines: 0,
            tables: "none",
            updates_per_s: 0,
        };
        self.row(&mut Timer, asks.clone(), Grouping::Single, place("timer"))?;
        self.row(&mut Timer, asks, Grouping::Batched, place("timer-batch16"))
    }

    /// All rows of one fleet and one kind of traffic.
    fn fleet(&mut self, engines: u16, tables: Tables) -> anyhow::Result<()> {
        let size = Size {
            engines,
            classes: tables.classes(),
            table_bits: self.args.table_bits,
            spread: self.args.spread,
        };
        let dir = self.dir.join(format!("{engines}-{}", tables.name()));
        let (mut stage, policy) = Stage::open(&dir, size, self.args.seed, self.beside)?;
        let mut pointsman = Pointsman::new(policy, stage.guard.clone(), stage.allowances.clone());
        pointsman.caches = tables.caches();
        for Pace(updates_per_s) in self.args.updates.clone() {
            stage.set_pace(updates_per_s)?;
            for (name, extent) in [
                ("pointsman", Extent::Selection),
                ("pointsman-served", Extent::AsServed),
                ("bare", Extent::Bare),
            ] {
                pointsman.extent = extent;
                if let Some(calls) = self.args.calls {
                    repeat(&mut pointsman, &mut tables.asks(self.args.seed), calls);
                    continue;
                }
                let place = place(name, size, tables, updates_per_s);
                self.both(&mut pointsman, tables, place)?;
            }
        }
        stage.set_pace(0)?;
        if self.args.calls.is_some() {
            return stage.close();
        }
        let first = &stage.first;
        let mut maglev = Peer::build(first, tables.caches(), Maglev::build);
        self.both(&mut maglev, tables, place("maglev", size, tables, 0))?;
        let mut rendezvous = Peer::build(first, tables.caches(), Rendezvous::build);
        self.both(
            &mut rendezvous,
            tables,
            place("rendezvous", size, tables, 0),
        )?;
        stage.close()
    }

    /// A subject's calls alone and in batches.
    fn both(
        &mut self,
        subject: &mut impl Subject,
        tables: Tables,
        place: Place,
    ) -> anyhow::Result<()> {
        let asks = tables.asks(self.args.seed);
        let batched = Place {
            system: format!("{}-batch{BATCH}", place.system),
            ..place.clone()
        };
        self.row(subject, asks.clone(), Grouping::Single, place)?;
        self.row(subject, asks, Grouping::Batched, batched)
    }

    fn row(
        &mut self,
        subject: &mut impl Subject,
        mut asks: Asks,
        grouping: Grouping,
        place: Place,
    ) -> anyhow::Result<()> {
        let window = self.args.window(&asks, place.updates_per_s);
        let taken =
            measure(subject, &mut asks, grouping, window).with_context(|| format!("{place:?}"))?;
        self.rows.push(Row::of(place, &taken, self.rate));
        Ok(())
    }
}

fn place(system: &str, size: Size, tables: Tables, updates_per_s: u32) -> Place {
    Place {
        system: system.to_owned(),
        engines: size.engines,
        tables: tables.name(),
        updates_per_s,
    }
}

/// A folder for region files, on tmpfs where there is one.
fn folder() -> anyhow::Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let parent = if pointsman_shm::is_tmpfs(memory) {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    };
    tempfile::Builder::new()
        .prefix("pointsman-select-")
        .tempdir_in(&parent)
        .with_context(|| format!("cannot make a folder in {}", parent.display()))
}

#[cfg(test)]
mod tests {
    use super::stage::MOST_PER_S;
    use super::*;

    fn quick() -> Args {
        Args {
            engines: vec![10, 300],
            tables: vec![Tables::Hot, Tables::Wide, Tables::Cold],
            updates: vec![Pace(0), Pace(MOST_PER_S)],
            seconds: 1.0,
            table_bits: 12,
            spread: None,
            seed: 7,
            quick: true,
            calls: None,
            json: true,
        }
    }

    #[test]
    fn calls_for_a_profiler_make_no_rows() {
        let folder = folder().unwrap();
        let args = Args {
            tables: vec![Tables::Hot],
            updates: vec![Pace(0)],
            calls: Some(10),
            ..quick()
        };
        assert!(bench(&args, folder.path()).unwrap().rows.is_empty());
    }

    /// Every answer of every row is checked against the policy that it was made by: a wrong or
    /// refused one ends the run with an error.
    #[test]
    fn a_quick_run_measures_every_row_and_every_engine_is_the_keys_own() {
        let folder = folder().unwrap();
        let report = bench(&quick(), folder.path()).unwrap();
        // Two of the timer; a fleet: three extents by two paces and two peers, alone and batched.
        assert_eq!(report.rows.len(), 2 + 6 * (3 * 2 + 2) * 2);
        for row in &report.rows {
            let calls_each = if row.system.ends_with("-batch16") {
                16
            } else {
                1
            };
            assert!(row.samples >= 500, "{row:?}");
            assert_eq!(row.checked, row.samples * calls_each, "{row:?}");
            let rising = [row.p50_ns, row.p90_ns, row.p99_ns, row.p999_ns, row.max_ns];
            assert!(rising.is_sorted(), "{row:?}");
            assert_eq!(row.taken_up_per_s > 0.0, row.updates_per_s > 0, "{row:?}");
        }
        let rows = report::rows(&report);
        let rows = rows["rows"].as_array().unwrap();
        assert_eq!(rows.len(), report.rows.len());
        let mut keys: Vec<&str> = rows[5]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        keys.sort_unstable();
        assert_eq!(
            keys,
            [
                "engines",
                "p50_ns",
                "p999_ns",
                "p99_ns",
                "system",
                "tables",
                "updates_per_s"
            ]
        );
    }
}
