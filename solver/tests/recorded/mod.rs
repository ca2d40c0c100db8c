//! What the tests of recorded ticks share: a wandering world with its history, and the commands.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use pointsman_shm::policy::Policy;
use pointsman_solver::cli::{Cli, execute};
use pointsman_solver::history::keeper::{Came, CameOut, Described, Keeper};
use pointsman_solver::history::read::{Walk, segments};
use pointsman_solver::history::replay::{CRASHED, LATE, Replayed, replay};
use pointsman_solver::history::{Bounds, folder};
use pointsman_solver::metrics::{self, Metrics};
use pointsman_solver::model::block_load::Hot;
use pointsman_solver::model::topology::{FrontendId, Topology};
use pointsman_solver::model::units::{NonNegative, Share};
use pointsman_solver::tick::{
    BlockSample, DemandSample, EngineSample, Health, Inputs, TickState, tick,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);
pub(crate) const SECOND: u64 = 1_000_000_000;

/// A world whose demand, engines, addresses and topology wander, and its history.
pub(crate) struct World {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) rng: StdRng,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) keeper: Keeper,
    pub(crate) bounds: Bounds,
    pub(crate) topology: Topology,
    pub(crate) text: String,
    pub(crate) state: TickState,
    /// By frontend then class.
    pub(crate) demand: Vec<f64>,
    /// By engine: seconds until it is well again.
    pub(crate) ill_s: Vec<u64>,
    pub(crate) now_s: u64,
    pub(crate) handed: u64,
    /// Passes that ended at the pivot limit.
    pub(crate) limited: u64,
}

/// Three frontends, `engines` engines of two kinds, two classes of unlike requests.
pub(crate) fn text(engines: usize, rps: u32) -> String {
    let mut text = "[solver]\ntable_bits = 8\ntoken_mix = \"measured\"\n\
                    [[priorities]]\nname = \"high\"\n[[priorities]]\nname = \"low\"\n"
        .to_owned();
    for f in ["a", "b", "c"] {
        text += &format!("[[frontends]]\nname = \"{f}\"\nregion = \"{f}\"\n");
    }
    for e in 0..engines {
        let (region, kind) = (["a", "b", "c"][e % 3], ["k", "l"][e % 2]);
        text += &format!(
            "[[engines]]\nname = \"e{e}\"\nregion = \"{region}\"\nkind = \"{kind}\"\n\
             models = [\"m\"]\naddress = \"127.0.0.1:{}\"\n\
             capacity = {{ rps = {}, prompt_tokens = 500, output_tokens = {} }}\n",
            9_000 + e,
            rps + 7 * e as u32,
            100 + 60 * (e % 2),
        );
        for f in ["a", "b", "c"] {
            let ms = if f == region { 2 } else { 20 + 5 * e };
            text += &format!("[[rtt]]\nfrontend = \"{f}\"\nengine = \"e{e}\"\nms = {ms}\n");
        }
    }
    text += "[[routes]]\nname = \"chat\"\nmodel = \"m\"\nprompt_tokens = 500\noutput_tokens = 100\n\
             [[routes]]\nname = \"long\"\nmodel = \"m\"\nrequires = [\"tools\"]\n\
             prompt_tokens = 4000\noutput_tokens = 300\nengines = [\"e0\", \"e1\", \"e2\"]\n";
    text
}

/// The same, solved by the method `network` with this many pivots at most.
pub(crate) fn network(engines: usize, rps: u32, pivots: u32) -> String {
    let settings = format!("[solver]\nmethod = \"network\"\npivot_limit = {pivots}\n");
    text(engines, rps).replacen("[solver]\n", &settings, 1)
}

impl World {
    pub(crate) fn new(seed: u64, bounds: Bounds) -> Self {
        Self::of(seed, bounds, text(5, 60))
    }

    pub(crate) fn of(seed: u64, bounds: Bounds, text: String) -> Self {
        eprintln!("seed {seed}");
        let dir = tempfile::tempdir().unwrap();
        let topology = Topology::parse("t.toml", &text).unwrap();
        let metrics = Arc::new(Metrics::default());
        let mut world = Self {
            rng: StdRng::seed_from_u64(seed),
            keeper: Keeper::off(),
            state: TickState::new(&topology, 3),
            demand: vec![20.0; 6],
            ill_s: vec![0; 16],
            now_s: 1_000,
            handed: 0,
            limited: 0,
            dir,
            metrics,
            bounds,
            topology,
            text,
        };
        world.restart();
        world
    }

    /// Another process takes over: a new keeper on the same folder.
    pub(crate) fn restart(&mut self) {
        self.keeper = Keeper::off();
        let (dir, bounds) = (folder(self.dir.path()), Some(self.bounds));
        self.keeper = Keeper::start(dir, bounds, self.described(), &self.metrics);
    }

    pub(crate) fn described(&self) -> Described {
        Described {
            file: "t.toml".into(),
            text: self.text.clone(),
        }
    }

    pub(crate) fn segments(&self) -> Vec<PathBuf> {
        segments(&folder(self.dir.path())).unwrap()
    }

    /// Another topology, taken over as after a restart of the solver.
    pub(crate) fn describe(&mut self, text: String) {
        self.text = text;
        self.topology = Topology::parse("t.toml", &self.text).unwrap();
        let old = std::mem::replace(&mut self.state, TickState::new(&self.topology, 3));
        let standing = (0..3).filter_map(|f| old.standing(FrontendId(f)).cloned());
        let standing: Vec<Policy> = standing.collect();
        let (now_ns, unix_ms) = (self.now_s * SECOND, self.unix_ms());
        self.state = TickState::restore(&self.topology, 3, standing, now_ns, unix_ms);
        self.keeper.describe(self.described());
    }

    pub(crate) fn unix_ms(&self) -> u64 {
        1_800_000_000_000 + 1_000 * self.now_s
    }

    /// What the next pass sees, two seconds later.
    pub(crate) fn inputs(&mut self) -> Inputs {
        self.now_s += 2;
        let mut inputs = Inputs {
            now_ns: self.now_s * SECOND + self.rng.random_range(0..1_000_000),
            unix_ms: self.unix_ms(),
            ..Inputs::default()
        };
        for (f, c) in (0..3).flat_map(|f| (0..2).map(move |c| (f, c))) {
            let rate = &mut self.demand[f * 2 + c];
            *rate = (*rate * self.rng.random_range(0.93..1.08)).clamp(0.5, 90.0);
            let scale = if c == 1 { 0.1 } else { 1.0 };
            let part: f64 = self.rng.random_range(0.0..1.0);
            let rates = [*rate * scale * part, *rate * scale * (1.0 - part)];
            let tokens = |t: f64| NonNegative::new(t);
            inputs.demand.push(DemandSample {
                frontend: FrontendId(f),
                class: self.topology.class_ids().nth(c).unwrap(),
                by_priority_rps: rates.map(|r| NonNegative::new(r).unwrap()).to_vec(),
                prompt_tokens: tokens(self.rng.random_range(400.0..4_500.0)),
                output_tokens: self.rng.random_bool(0.8).then(|| tokens(130.0)).flatten(),
                cached_tokens: None,
            });
        }
        for id in self.topology.engine_ids() {
            let ill_s = &mut self.ill_s[id.0];
            *ill_s = match *ill_s {
                0 if self.rng.random_bool(0.01) => self.rng.random_range(2..120),
                left => left.saturating_sub(2),
            };
            let health = if *ill_s > 0 { Health::Down } else { Health::Up };
            let penalty = if self.rng.random_bool(0.05) {
                self.rng.random_range(0.0..1.0)
            } else {
                0.0
            };
            inputs.engines.push(EngineSample {
                health,
                running: NonNegative::new(self.rng.random_range(0.0..40.0)),
                kv_use: Share::new(self.rng.random_range(0.0..1.0)),
                penalty: Share::new(penalty).unwrap(),
                ..EngineSample::unknown(id)
            });
            for f in self.topology.frontend_ids() {
                // Sometimes a name has no address for a while.
                let known = !self.rng.random_bool(0.02);
                let port = 9_000 + id.0 as u16;
                let addresses = known.then(|| ([127, 0, 0, 1], port).into());
                inputs
                    .addresses
                    .insert((f, id), addresses.into_iter().collect());
            }
        }
        for (frontend, class) in [(0, 0), (1, 0), (2, 1)] {
            inputs.blocks.push(BlockSample {
                frontend: FrontendId(frontend),
                class: self.topology.class_ids().nth(class).unwrap(),
                hot: self.hot(),
            });
        }
        inputs
            .hosts
            .insert(FrontendId(0), 1 + (self.now_s / 600) as u32);
        inputs
    }

    /// A few blocks of the key space that carry more than their part.
    fn hot(&mut self) -> Vec<Hot> {
        let share = |rng: &mut StdRng| rng.random_range(100..1_500) as f64 * 1e-4;
        let blocks = [3, 40, 41, 200].into_iter();
        let some: Vec<u16> = blocks.filter(|_| self.rng.random_bool(0.9)).collect();
        let hot = some.into_iter().map(|block| Hot {
            block,
            share: share(&mut self.rng),
        });
        hot.collect()
    }

    /// One pass as the daemon makes it, told to the keeper.
    pub(crate) fn pass(&mut self, tamper: impl Fn(&mut Came)) -> String {
        let inputs = self.inputs();
        let begun = self.keeper.begin(&self.state);
        let outcome = tick(&self.topology, &mut self.state, &inputs);
        let mut came = match outcome.plan {
            Some(_) => Came::planned(&outcome),
            None => Came::failed(outcome.status.name(), &outcome.status.to_string()),
        };
        let status = came.status.clone();
        let gap = outcome.plan.as_ref().map_or(0.0, |plan| plan.gap);
        self.limited += u64::from(gap > 0.0);
        for candidate in outcome.candidates {
            candidate.policy.validate().unwrap();
            // A region that cannot be written now and then.
            let published = candidate.publish.is_some() && !self.rng.random_bool(0.03);
            if published {
                let (id, policy) = (candidate.frontend, candidate.policy.clone());
                self.state.confirm(id, policy, inputs.now_ns);
            }
            came.made.push(CameOut {
                frontend: candidate.frontend,
                policy: candidate.policy,
                reason: candidate.publish,
                published,
            });
        }
        tamper(&mut came);
        self.keeper.keep(begun, &self.state, inputs, came);
        self.written();
        status
    }

    /// A pass whose answer is thrown away: too late, or a panic half way.
    pub(crate) fn wasted(&mut self, cause: &str) {
        let inputs = self.inputs();
        let begun = self.keeper.begin(&self.state);
        if cause == LATE {
            let _ = tick(&self.topology, &mut self.state, &inputs);
            let came = Came::failed(LATE, "late");
            self.keeper.keep(begun, &self.state, inputs, came);
        } else {
            self.state.counters.ticks += 1;
            self.state.registry.assign(&self.topology, 7);
            let came = Came::failed(CRASHED, "crashed");
            self.keeper.broken(begun, &self.state, inputs, came);
        }
        self.written();
    }

    /// Waits until the last record is written: this test hands over faster than any daemon.
    pub(crate) fn written(&mut self) {
        self.handed += 1;
        let begun = Instant::now();
        let written = || {
            self.metrics
                .value(&metrics::HISTORY_TICKS, &[])
                .unwrap_or(0.0)
        };
        while written() < self.handed as f64 {
            let lost = || {
                let of = |cause| self.metrics.value(&metrics::HISTORY_LOST, &[cause]);
                ["queue", "stopped", "disk", "large", "locked"].map(|cause| (cause, of(cause)))
            };
            assert!(
                begun.elapsed() < WATCHDOG,
                "{} of {}; lost {:?}",
                written(),
                self.handed,
                lost()
            );
            std::thread::yield_now();
        }
    }

    pub(crate) fn replay(&self) -> Replayed {
        replay(Walk::new(self.segments()), &(0..=u64::MAX))
    }
}

pub(crate) fn large() -> Bounds {
    Bounds {
        ticks: 100_000,
        bytes: 1 << 30,
    }
}

/// Runs a command; what it prints, and how it ended.
pub(crate) fn run(dir: &Path, arguments: &[&str]) -> (String, Result<(), String>) {
    let mut all = vec!["pointsman-solver"];
    all.extend(arguments);
    all.extend(["--state-dir", dir.to_str().unwrap()]);
    let cli = Cli::parse_from(all);
    let mut out = Vec::new();
    let ended = execute(&cli, &mut out).map_err(|error| error.to_string());
    (String::from_utf8(out).unwrap(), ended)
}
