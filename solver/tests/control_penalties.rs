//! Evidence of many proxies at the daemon as a process: penalties, ejection, drain and return.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failed test"
)]

#[expect(dead_code, reason = "the other test binary uses the rest")]
mod control;

use std::process::Command;

use control::{Engine, Place, Solver, eventually, weights};
use pointsman_shm::policy::{PlannedState, Policy};
use pointsman_shm::signals::{Outcome, Shape, ShardSignals, SignalsWriter};
use serde_json::Value;

const PAGE: &str = "vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n";
/// Proxies, each on a page of its own.
const PROXIES: usize = 4;

struct World {
    place: Place,
    engines: Vec<Engine>,
    proxies: Vec<ShardSignals>,
    _writers: Vec<SignalsWriter>,
}

impl World {
    fn new() -> Self {
        let place = Place::new();
        let shape = Shape {
            shards: 1,
            classes: 8,
            engines: 8,
            pairs: 8,
        };
        let folder = place.run_dir().join("F/signals");
        let writers: Vec<SignalsWriter> = (0..PROXIES)
            .map(|_| SignalsWriter::create(&folder, shape).unwrap())
            .collect();
        Self {
            engines: (0..4).map(|_| Engine::start(PAGE)).collect(),
            proxies: writers.iter().map(|writer| writer.segment(0)).collect(),
            _writers: writers,
            place,
        }
    }

    fn start(&self, more: &str) -> Solver {
        let mut text = format!(
            "[solver]\ntick_ms = 100\nscrape_ms = 200\nscrape_timeout_ms = 150\ntable_bits = 10\n\
             engine_state_ms = 100\ndemand = \"configured\"\n{more}\n[[frontends]]\nname = \"F\"\n\
             [[routes]]\nname = \"chat\"\nmodel = \"m\"\nprompt_tokens = 500\noutput_tokens = 100\n\
             [[demand]]\nfrontend = \"F\"\nroute = \"chat\"\nrps = 2000\n"
        );
        for (engine, name) in self.engines.iter().zip(["A", "B", "C", "D"]) {
            let address = engine.address;
            text.push_str(&format!(
                "[[engines]]\nname = \"{name}\"\nkind = \"k\"\nmodels = [\"m\"]\n\
                 address = \"{address}\"\n\
                 capacity = {{ rps = 1000, prompt_tokens = 500, output_tokens = 100 }}\n\
                 [[rtt]]\nfrontend = \"F\"\nengine = \"{name}\"\nms = 2\n"
            ));
        }
        Solver::start(&self.place, &text)
    }

    fn policy(&self) -> Policy {
        eventually("a policy", || self.place.policy("F"))
    }

    /// Each proxy has one answer of each engine; first tokens of one take five times as long.
    fn work(&self, policy: &Policy, slow: Option<&str>) {
        let class = &policy.classes[0];
        for shard in &self.proxies {
            shard.beat(pointsman_shm::boottime_ns(), policy.version);
            for pair in &class.eligible {
                let engine = policy.engines.iter().find(|e| e.slot == pair.engine);
                let engine = engine.unwrap();
                let is_open = engine.state == PlannedState::Active;
                if !is_open {
                    continue;
                }
                let is_slow = slow == Some(engine.id.as_str());
                let ttft_us = if is_slow { 1_000_000 } else { 200_000 };
                let cell = shard.engine(engine.slot, engine.generation).unwrap();
                cell.attempt_started();
                cell.ttft_us(ttft_us);
                cell.attempt_ended(Outcome::Success);
                let cell = shard.pair(pair.pair, pair.pair_generation).unwrap();
                cell.attempt();
                cell.ttft_us(ttft_us);
                cell.tokens(500, 0, 100, false);
            }
        }
    }

    /// Requests are served until something holds.
    fn until<T>(
        &self,
        what: &str,
        slow: Option<&str>,
        mut holds: impl FnMut(&Policy) -> Option<T>,
    ) -> T {
        eventually(what, || {
            let policy = self.policy();
            self.work(&policy, slow);
            std::thread::sleep(std::time::Duration::from_millis(20));
            holds(&policy)
        })
    }

    fn order(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pointsman-solver"));
        command.args(arguments).arg("--run-dir");
        let output = command.arg(self.place.run_dir()).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert!(output.status.success(), "{arguments:?}: {said}");
        said
    }
}

fn engine<'a>(status: &'a Value, name: &str) -> &'a Value {
    let engines = status["engines"].as_array().unwrap();
    engines.iter().find(|one| one["engine"] == name).unwrap()
}

fn factor(policy: &Policy, name: &str) -> f64 {
    let engine = policy.engines.iter().find(|engine| engine.id == name);
    engine.unwrap().planned_factor
}

#[test]
fn what_many_hosts_see_of_a_slow_engine_lowers_its_share_and_gives_it_back() {
    let world = World::new();
    let solver = world.start("");
    let whole = weights(&world.policy())["B"];
    assert!(whole > 0.1, "{whole}");
    // Nobody is penalised for being as its peers are.
    for _ in 0..40 {
        world.work(&world.policy(), None);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(factor(&world.policy(), "B"), 1.0);

    world.until("a penalty", Some("B"), |policy| {
        (factor(policy, "B") <= 0.7).then_some(())
    });
    let policy = world.policy();
    let left = weights(&policy)["B"];
    let expected = whole * factor(&policy, "B");
    assert!(
        (left - expected).abs() < 1e-6,
        "{left}, expected {expected}"
    );
    for name in ["A", "C", "D"] {
        assert_eq!(factor(&policy, name), 1.0, "{name}");
    }
    // Proxies are told the same penalty; they take what the policy does not count yet.
    let told = world.until("engine state", Some("B"), |policy| {
        let states = world.place.engine_states("F")?;
        let slot = policy.engines.iter().find(|e| e.id == "B")?.slot;
        let state = states.engines.iter().find(|state| state.slot == slot)?;
        (state.penalty > 0.0).then_some(state.penalty)
    });
    assert!((told / 0.05 - (told / 0.05).round()).abs() < 1e-9, "{told}");
    let status = solver.status();
    let b = &engine(&status, "B")["penalty"];
    assert!(b["penalty"].as_f64().unwrap() > 0.2, "{b}");
    assert_eq!(b["cause"], "first tokens come late");
    assert_eq!(engine(&status, "A")["penalty"], Value::Null);
    assert!(
        solver
            .log_text()
            .contains("engine does worse than its peers")
    );

    // As its peers are again, it has its share back, a step at a time.
    let mut before = factor(&world.policy(), "B");
    world.until("some of it back", None, |policy| {
        let now = factor(policy, "B");
        assert!(now <= before + 0.1 + 1e-9, "{before} -> {now}");
        before = now;
        (now >= 0.85).then_some(())
    });
}

#[test]
fn an_engine_that_is_ejected_for_long_is_drained_and_undrain_gives_it_back_gradually() {
    let world = World::new();
    let solver = world.start("drain_ejected_s = 1\n");
    world.policy();
    let closed = |policy: &Policy| {
        let engine = policy.engines.iter().find(|engine| engine.id == "B");
        engine.unwrap().state == PlannedState::Draining
    };
    let policy = world.until("a drain", Some("B"), |policy| {
        closed(policy).then(|| policy.clone())
    });
    assert_eq!(weights(&policy)["B"], 0.0);
    let status = solver.status();
    let order = &status["orders"][0];
    assert_eq!(order["what"], "drain of engine \"B\"");
    assert_eq!(order["who"], "pointsman-solver");
    assert_eq!(order["why"], "ejected for 1 s: first tokens come late");
    assert!(order["expires_in_s"].as_f64().unwrap() > 5.0, "{order}");
    let may = |policy: &Policy| {
        world.work(policy, None);
        let drain = engine(&solver.status(), "B")["drain"].clone();
        (drain["may_be_taken_out"] == true).then_some(())
    };
    world.until("it may be taken out", None, may);
    assert!(world.order(&["status"]).contains("MAY BE TAKEN OUT"));

    world.order(&["undrain", "B"]);
    let first = world.until("some of its share", None, |policy| {
        Some(weights(policy)["B"]).filter(|weight| *weight > 0.0)
    });
    assert!(first <= 0.1 + 1e-6, "{first}");
}
