//! Recorded ticks: solved again to the same bytes, read while they are written, asked for by a
//! person.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failed test"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use pointsman_shm::policy::Policy;
use pointsman_solver::cli::{Cli, execute};
use pointsman_solver::history::keeper::{Came, CameOut, Described, Keeper};
use pointsman_solver::history::read::{Item, Walk, segments};
use pointsman_solver::history::replay::{CRASHED, LATE, Replayed, replay};
use pointsman_solver::history::{Bounds, folder};
use pointsman_solver::metrics::{self, Metrics};
use pointsman_solver::model::topology::{FrontendId, Topology};
use pointsman_solver::model::units::{NonNegative, Share};
use pointsman_solver::tick::{DemandSample, EngineSample, Health, Inputs, TickState, tick};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const WATCHDOG: Duration = Duration::from_secs(60);
const SECOND: u64 = 1_000_000_000;

/// A world whose demand, engines, addresses and topology wander, and its history.
struct World {
    dir: tempfile::TempDir,
    rng: StdRng,
    metrics: Arc<Metrics>,
    keeper: Keeper,
    bounds: Bounds,
    topology: Topology,
    text: String,
    state: TickState,
    /// By frontend then class.
    demand: Vec<f64>,
    /// By engine: seconds until it is well again.
    ill_s: Vec<u64>,
    now_s: u64,
    handed: u64,
}

/// Three frontends, `engines` engines of two kinds, two classes of unlike requests.
fn text(engines: usize, rps: u32) -> String {
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

impl World {
    fn new(seed: u64, bounds: Bounds) -> Self {
        eprintln!("seed {seed}");
        let dir = tempfile::tempdir().unwrap();
        let text = text(5, 60);
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
    fn restart(&mut self) {
        self.keeper = Keeper::off();
        let (dir, bounds) = (folder(self.dir.path()), Some(self.bounds));
        self.keeper = Keeper::start(dir, bounds, self.described(), &self.metrics);
    }

    fn described(&self) -> Described {
        Described {
            file: "t.toml".into(),
            text: self.text.clone(),
        }
    }

    fn segments(&self) -> Vec<PathBuf> {
        segments(&folder(self.dir.path())).unwrap()
    }

    /// Another topology, taken over as after a restart of the solver.
    fn describe(&mut self, text: String) {
        self.text = text;
        self.topology = Topology::parse("t.toml", &self.text).unwrap();
        let old = std::mem::replace(&mut self.state, TickState::new(&self.topology, 3));
        let standing = (0..3).filter_map(|f| old.standing(FrontendId(f)).cloned());
        let standing: Vec<Policy> = standing.collect();
        let (now_ns, unix_ms) = (self.now_s * SECOND, self.unix_ms());
        self.state = TickState::restore(&self.topology, 3, standing, now_ns, unix_ms);
        self.keeper.describe(self.described());
    }

    fn unix_ms(&self) -> u64 {
        1_800_000_000_000 + 1_000 * self.now_s
    }

    /// What the next pass sees, two seconds later.
    fn inputs(&mut self) -> Inputs {
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
        inputs
            .hosts
            .insert(FrontendId(0), 1 + (self.now_s / 600) as u32);
        inputs
    }

    /// One pass as the daemon makes it, told to the keeper.
    fn pass(&mut self, tamper: impl Fn(&mut Came)) -> String {
        let inputs = self.inputs();
        let begun = self.keeper.begin(&self.state);
        let outcome = tick(&self.topology, &mut self.state, &inputs);
        let mut came = match outcome.plan {
            Some(_) => Came::planned(&outcome),
            None => Came::failed(outcome.status.name(), &outcome.status.to_string()),
        };
        let status = came.status.clone();
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
    fn wasted(&mut self, cause: &str) {
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
    fn written(&mut self) {
        self.handed += 1;
        let begun = Instant::now();
        let written = || {
            self.metrics
                .value(&metrics::HISTORY_TICKS, &[])
                .unwrap_or(0.0)
        };
        while written() < self.handed as f64 {
            assert!(
                begun.elapsed() < WATCHDOG,
                "{} of {}",
                written(),
                self.handed
            );
            std::thread::yield_now();
        }
    }

    fn replay(&self) -> Replayed {
        replay(Walk::new(self.segments()), &(0..=u64::MAX))
    }
}

fn large() -> Bounds {
    Bounds {
        ticks: 100_000,
        bytes: 1 << 30,
    }
}

#[test]
fn a_thousand_recorded_ticks_of_a_wandering_world_solve_to_the_same_bytes() {
    let mut world = World::new(4, large());
    let (mut late, mut crashed, mut refused, mut published) = (0, 0, 0, 0);
    for n in 1..=1_000_u64 {
        match n {
            _ if n % 97 == 0 => {
                world.wasted(LATE);
                late += 1;
                continue;
            }
            _ if n % 211 == 0 => {
                world.wasted(CRASHED);
                crashed += 1;
                continue;
            }
            _ if n % 180 == 0 => {
                world.describe(text(4 + (n / 180) as usize % 3, 50 + (n / 9) as u32))
            }
            _ if n % 330 == 0 => world.restart(),
            _ => {}
        }
        if n % 173 == 0 {
            // More than any engine could be planned for: refused before solving.
            let calm = std::mem::replace(&mut world.demand, vec![0.0; 6]);
            let inputs_of = |world: &mut World| {
                let mut inputs = world.inputs();
                let rates = &mut inputs.demand[0].by_priority_rps;
                rates[0] = NonNegative::new(1e15).unwrap();
                inputs
            };
            let inputs = inputs_of(&mut world);
            let begun = world.keeper.begin(&world.state);
            let outcome = tick(&world.topology, &mut world.state, &inputs);
            assert_eq!(outcome.status.name(), "refused");
            let came = Came::failed("refused", &outcome.status.to_string());
            world.keeper.keep(begun, &world.state, inputs, came);
            world.written();
            world.demand = calm;
            refused += 1;
            continue;
        }
        let status = world.pass(|came| {
            assert_eq!(came.made.len(), 3);
        });
        assert_eq!(status, "optimal");
    }
    drop(std::mem::replace(&mut world.keeper, Keeper::off()));
    for item in Walk::new(world.segments()) {
        if let Item::Tick(tick) = item {
            published += tick.head.made.iter().filter(|made| made.published).count();
        }
    }
    assert_eq!((late, crashed, refused), (10, 4, 5));
    assert!(
        published > 300,
        "the world must move: {published} publications"
    );
    let replayed = world.replay();
    let expected = Replayed {
        ticks: 1_000 - late - crashed,
        policies: 3 * (1_000 - late - crashed - refused),
        without_answer: late + crashed,
        ..Replayed::default()
    };
    assert_eq!(replayed, expected);
    let bytes: u64 = world
        .segments()
        .iter()
        .map(|s| s.metadata().unwrap().len())
        .sum();
    println!("{published} publications, {} bytes a tick", bytes / 1_000);
    assert_eq!(
        world.metrics.value(&metrics::HISTORY_LOST, &["queue"]),
        Some(0.0)
    );
}

/// Runs a command; what it prints, and how it ended.
fn run(dir: &Path, arguments: &[&str]) -> (String, Result<(), String>) {
    let mut all = vec!["pointsman-solver"];
    all.extend(arguments);
    all.extend(["--state-dir", dir.to_str().unwrap()]);
    let cli = Cli::parse_from(all);
    let mut out = Vec::new();
    let ended = execute(&cli, &mut out).map_err(|error| error.to_string());
    (String::from_utf8(out).unwrap(), ended)
}

#[test]
fn a_policy_that_a_replay_does_not_find_again_is_named_to_the_field() {
    let mut world = World::new(11, large());
    for n in 0..6 {
        world.pass(|came| {
            if n == 3 {
                let weight = &mut came.made[1].policy.classes[0].eligible[2].weight;
                *weight = f64::from_bits(weight.to_bits() ^ 1);
            }
        });
    }
    drop(std::mem::replace(&mut world.keeper, Keeper::off()));
    let replayed = world.replay();
    assert_eq!((replayed.ticks, replayed.differing), (6, 1));
    let difference = replayed.difference.unwrap();
    assert_eq!(
        (difference.tick, difference.frontend.as_deref()),
        (4, Some("b"))
    );
    let what = &difference.what;
    assert!(
        what.starts_with("classes.0.eligible.2.weight: recorded "),
        "{what}"
    );
    let (told, ended) = run(world.dir.path(), &["replay"]);
    assert!(told.contains("1 ticks differ"), "{told}");
    let error = ended.unwrap_err();
    assert!(
        error.starts_with("tick 4 differs: frontend b, version "),
        "{error}"
    );
    // What was published around it is not touched by it.
    let (told, ended) = run(world.dir.path(), &["replay", "--from", "1", "--to", "1"]);
    assert_eq!(ended, Ok(()));
    assert!(told.ends_with("solved again: the same bytes\n"), "{told}");
}

#[test]
fn the_commands_tell_what_was_decided_and_what_changed() {
    let mut world = World::new(5, large());
    for _ in 0..30 {
        world.pass(|_| ());
    }
    drop(std::mem::replace(&mut world.keeper, Keeper::off()));
    let dir = world.dir.path();
    let (told, ended) = run(dir, &["history", "--last", "3"]);
    assert_eq!(ended, Ok(()));
    assert_eq!(
        told.lines()
            .filter(|line| line.starts_with("tick "))
            .count(),
        3,
        "{told}"
    );
    assert!(told.contains("2027-01-15T08:"), "{told}");
    let (told, _) = run(
        dir,
        &[
            "history",
            "--all",
            "--last",
            "99",
            "--json",
            "--frontend",
            "a",
        ],
    );
    let listed: serde_json::Value = serde_json::from_str(&told).unwrap();
    let ticks = listed["ticks"].as_array().unwrap();
    assert_eq!(
        (ticks.len(), listed["missing"].as_array().unwrap().len()),
        (30, 0)
    );
    assert_eq!(ticks[0]["made"][0]["reason"], "first");
    assert_eq!(ticks[0]["made"][0]["change"], "the first");
    assert!(ticks[0]["cost"]["total"].as_f64().unwrap() > 0.0);

    let (told, ended) = run(dir, &["show", "1", "--frontend", "b"]);
    assert_eq!(ended, Ok(()));
    assert!(
        told.starts_with("frontend b, version 1, epoch 3\n"),
        "{told}"
    );
    assert!(told.contains("published for first: the first"), "{told}");
    let (told, _) = run(dir, &["show", "1", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(shown.as_array().unwrap().len(), 3, "one of each frontend");
    let weights = shown[0]["classes"][0]["weights"].as_array().unwrap();
    let sum: f64 = weights.iter().map(|w| w["weight"].as_f64().unwrap()).sum();
    let slots: u64 = weights.iter().map(|w| w["slots"].as_u64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    assert_eq!(slots, 256);

    let (told, ended) = run(dir, &["diff", "1", "2", "--frontend", "a"]);
    assert_eq!(ended, Ok(()));
    assert!(told.starts_with("frontend a, version 1 -> 2\n  "), "{told}");
    let (_, ended) = run(dir, &["show", "9999"]);
    assert_eq!(ended, Err("version 9999 is not in the history".into()));
    let (_, ended) = run(&dir.join("nowhere"), &["history"]);
    assert!(
        ended
            .unwrap_err()
            .contains("nowhere/history: no history there")
    );

    let (told, ended) = run(dir, &["replay", "--json"]);
    assert_eq!(ended, Ok(()));
    let replayed: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (&replayed["ticks"], &replayed["differing"]),
        (&30.into(), &0.into())
    );
    let file = world.segments().remove(0);
    let (_, ended) = run(dir, &["replay", file.to_str().unwrap()]);
    assert_eq!(ended, Ok(()));
}

#[test]
fn a_reader_meanwhile_sees_whole_ticks_in_order() {
    // Small bounds, so that segments come and go under the reader.
    let mut world = World::new(
        21,
        Bounds {
            ticks: 64,
            bytes: 1 << 30,
        },
    );
    world.pass(|_| ());
    let dir = folder(world.dir.path());
    let over = Arc::new(AtomicBool::new(false));
    let done = over.clone();
    let reading = std::thread::spawn(move || {
        let (mut rounds, mut seen) = (0_u64, 0_u64);
        while !done.load(Ordering::SeqCst) || rounds == 0 {
            let mut last = None;
            for item in Walk::new(segments(&dir).unwrap()) {
                match item {
                    Item::Tick(tick) => {
                        let number = tick.head.number;
                        assert!(last.is_none_or(|last| last < number), "{last:?}, {number}");
                        for i in 0..tick.policies.len() {
                            let policy = tick.policy(i).unwrap();
                            assert_eq!(policy.version, tick.head.made[i].version);
                        }
                        tick.inputs().unwrap();
                        last = Some(number);
                        seen += 1;
                    }
                    Item::Head(head) => panic!("tick {} follows from a lost one", head.number),
                    Item::Gap(why) => {
                        let fine = why.contains("writes now") || why.contains("deleted meanwhile");
                        assert!(fine, "{why}");
                    }
                }
            }
            rounds += 1;
        }
        (rounds, seen)
    });
    for _ in 0..300 {
        world.pass(|_| ());
    }
    over.store(true, Ordering::SeqCst);
    let (rounds, seen) = reading.join().unwrap();
    println!("{rounds} rounds, {seen} ticks read");
    assert!(seen >= rounds);
    let replayed = world.replay();
    assert_eq!(replayed.difference, None);
    assert!((8..=64).contains(&replayed.ticks), "{replayed:?}");
}

/// A running solver; killed when dropped.
struct Daemon(std::process::Child);

impl Daemon {
    fn start(dir: &Path) -> Self {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_pointsman-solver"));
        command
            .arg("run")
            .arg("--topology")
            .arg(dir.join("topology.toml"));
        command.arg("--run-dir").arg(dir.join("run"));
        command.arg("--state-dir").arg(dir.join("state"));
        command.args(["--listen", "127.0.0.1:0"]);
        command.stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // By SIGKILL: nothing is flushed or finished.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes a topology for [`Daemon`]: nobody answers at the engines' addresses, which are planned
/// with all the same.
fn describe_daemon(dir: &Path, tick_ms: u64) {
    let described = text(4, 60).replace("127.0.0.1:900", "127.0.0.1:1");
    let demand = "[[demand]]\nfrontend = \"a\"\nroute = \"chat\"\nrps = 90\n";
    let settings = format!("[solver]\ntick_ms = {tick_ms}\ndemand = \"configured\"\n");
    let described = described.replacen("[solver]\n", &settings, 1) + demand;
    std::fs::write(dir.join("topology.toml"), described).unwrap();
}

#[test]
fn what_a_killed_daemon_recorded_solves_to_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    describe_daemon(dir.path(), 10);
    let state = dir.path().join("state");
    let ticks = || {
        let all = ["history", "--all", "--last", "100000", "--json"];
        let (told, ended) = run(&state, &all);
        let told: Option<serde_json::Value> = ended.ok().and_then(|()| told.parse().ok());
        told.map_or(0, |told| told["ticks"].as_array().unwrap().len())
    };
    let mut before = 0;
    for _ in 0..2 {
        let daemon = Daemon::start(dir.path());
        let begun = Instant::now();
        while ticks() < before + 40 {
            assert!(begun.elapsed() < WATCHDOG, "{} ticks", ticks());
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(daemon);
        before = ticks();
    }
    let (told, ended) = run(&state, &["replay", "--json"]);
    assert_eq!(ended, Ok(()), "{told}");
    let replayed: serde_json::Value = serde_json::from_str(&told).unwrap();
    let count = |key: &str| replayed[key].as_u64().unwrap();
    assert_eq!(
        count("ticks") + count("without_answer"),
        before as u64,
        "{told}"
    );
    assert_eq!(
        (count("differing"), count("not_replayed")),
        (0, 0),
        "{told}"
    );
    assert!(count("ticks") >= 40, "{told}");
}

/// Shares by engine, those without one left out.
type Shares = Vec<(String, f64)>;

/// Weights of class `chat` in the last published policy of frontend `a`, and its version.
fn last(state: &Path) -> Option<(Shares, u64)> {
    let (told, _) = run(
        state,
        &["history", "--frontend", "a", "--last", "1", "--json"],
    );
    let told: serde_json::Value = told.parse().ok()?;
    let made = told["ticks"][0]["made"].as_array()?.clone();
    let made = made.iter().find(|made| made["frontend"] == "a")?.clone();
    let version = made["version"].as_u64()?;
    let version = version.to_string();
    let (told, ended) = run(state, &["show", &version, "--frontend", "a", "--json"]);
    ended.ok()?;
    let shown: serde_json::Value = told.parse().unwrap();
    let classes = shown[0]["classes"].as_array().unwrap();
    let chat = classes.iter().find(|class| class["class"] == "chat")?;
    let mut weights: Shares = chat["weights"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| {
            (
                w["engine"].as_str().unwrap().to_owned(),
                w["weight"].as_f64().unwrap(),
            )
        })
        .filter(|(_, weight)| *weight > 0.0)
        .collect();
    weights.sort_by(|a, b| a.0.cmp(&b.0));
    Some((weights, version.parse().unwrap()))
}

#[test]
fn a_rollback_pins_the_weights_of_the_version_named() {
    let dir = tempfile::tempdir().unwrap();
    describe_daemon(dir.path(), 100);
    let (state, run_dir) = (dir.path().join("state"), dir.path().join("run"));
    let run_dir = run_dir.to_str().unwrap();
    let daemon = Daemon::start(dir.path());
    let until = |what: &str, holds: &dyn Fn(&Shares) -> bool| {
        let begun = Instant::now();
        loop {
            if let Some((weights, version)) = last(&state).filter(|(weights, _)| holds(weights)) {
                return (weights, version);
            }
            assert!(
                begun.elapsed() < WATCHDOG,
                "never: {what}: {:?}",
                last(&state)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let order = |arguments: &[&str]| {
        let mut all = vec!["pointsman-solver"];
        all.extend(arguments);
        all.extend(["--run-dir", run_dir]);
        let mut out = Vec::new();
        execute(&Cli::parse_from(all), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let (planned, first) = until("a plan", &|_| true);
    let class = ["--frontend", "a", "--class", "chat"];
    let ordered = [("e1".to_owned(), 0.25), ("e3".to_owned(), 0.75)];
    assert_ne!(planned, ordered);
    order(&[&["set-weight", "--weights", "e1=0.25,e3=0.75"], &class[..]].concat());
    let (_, version) = until("set weights", &|weights| *weights == ordered);
    assert!(version > first);
    order(&[&["unset-weight"], &class[..]].concat());
    until("the plan again", &|weights| *weights != ordered);

    let version = version.to_string();
    let all = [
        "rollback",
        &version,
        "--frontend",
        "a",
        "--run-dir",
        run_dir,
        "--reason",
        "worse",
    ];
    let (told, ended) = run(&state, &all);
    assert_eq!(ended, Ok(()));
    assert!(
        told.starts_with(&format!("pinned back: \"a\" to version {version}\n")),
        "{told}"
    );
    let (_, latest) = until("the rollback", &|weights| *weights == ordered);
    assert!(latest.to_string() != version);
    assert!(order(&["status"]).contains("worse"));
    order(&["unpin"]);
    until("the plan once more", &|weights| *weights != ordered);

    let (_, ended) = run(&state, &["rollback", "99999", "--run-dir", run_dir]);
    assert_eq!(ended, Err("version 99999 is not in the history".into()));
    // Orders are inputs: what was solved under them is solved again under them.
    drop(daemon);
    let (told, ended) = run(&state, &["replay"]);
    assert_eq!(ended, Ok(()), "{told}");
}
