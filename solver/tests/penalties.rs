//! What a pass makes of penalties: an engine keeps (1 - p) of what it would have, at every moment.

#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::collections::BTreeMap;

use pointsman_shm::policy::Policy;
use pointsman_solver::model::topology::{ClassId, EngineId, FrontendId, Topology};
use pointsman_solver::model::units::{NonNegative, Share};
use pointsman_solver::tick::{
    DemandSample, EngineSample, Health, Inputs, Orders, Reason, TickState, tick,
};

/// Four like engines at these distances, for half of what they can do.
fn fleet(distances_ms: [f64; 4], more: &str) -> Topology {
    let mut text = format!("[[frontends]]\nname = \"f\"\n{more}\n");
    for (e, ms) in distances_ms.iter().enumerate() {
        text.push_str(&format!(
            "[[engines]]\nname = \"e{e}\"\nkind = \"k\"\nmodels = [\"m\", \"n\"]\n\
             address = \"127.0.0.1:{}\"\ncapacity = {{ rps = 100 }}\n\
             [[rtt]]\nfrontend = \"f\"\nengine = \"e{e}\"\nms = {ms:?}\n",
            e + 1
        ));
    }
    text.push_str("[[routes]]\nname = \"chat\"\nmodel = \"m\"\n");
    Topology::parse("t.toml", &text).unwrap()
}

struct World {
    topology: Topology,
    state: TickState,
    now_s: u64,
    rps: f64,
    orders: Orders,
    /// Engines that fail their health checks.
    down: Vec<usize>,
}

impl World {
    fn new(topology: Topology, rps: f64) -> Self {
        let mut world = Self {
            state: TickState::new(&topology, 1),
            topology,
            now_s: 1,
            rps,
            orders: Orders::default(),
            down: Vec::new(),
        };
        world.pass(&[]);
        world
    }

    /// One pass under penalties; why it was published.
    fn pass(&mut self, penalties: &[(usize, f64)]) -> Option<Reason> {
        self.now_s += 2;
        let mut inputs = Inputs {
            now_ns: self.now_s * 1_000_000_000,
            orders: self.orders.clone(),
            ..Inputs::default()
        };
        inputs.demand.push(DemandSample {
            frontend: FrontendId(0),
            class: ClassId(0),
            by_priority_rps: vec![NonNegative::new(self.rps).unwrap()],
            prompt_tokens: None,
            output_tokens: None,
            cached_tokens: None,
        });
        for engine in self.topology.engine_ids() {
            let address = self.topology.address(FrontendId(0), engine).unwrap();
            let address = address.parse().unwrap();
            inputs
                .addresses
                .insert((FrontendId(0), engine), vec![address]);
        }
        for (engine, penalty) in penalties {
            inputs.engines.push(EngineSample {
                penalty: Share::new(*penalty).unwrap(),
                ..EngineSample::unknown(EngineId(*engine))
            });
        }
        for engine in &self.down {
            inputs.engines.push(EngineSample {
                health: Health::Down,
                ..EngineSample::unknown(EngineId(*engine))
            });
        }
        let outcome = tick(&self.topology, &mut self.state, &inputs);
        let candidate = outcome.candidates.into_iter().next().unwrap();
        candidate.policy.validate().unwrap();
        if candidate.publish.is_some() {
            self.state
                .confirm(FrontendId(0), candidate.policy, inputs.now_ns);
        }
        candidate.publish
    }

    fn policy(&self) -> &Policy {
        self.state.standing(FrontendId(0)).unwrap()
    }

    fn weights(&self) -> Vec<f64> {
        let policy = self.policy();
        let pairs = policy.classes[0].eligible.iter();
        let weights: BTreeMap<_, _> = pairs.map(|e| (e.engine, e.weight)).collect();
        policy.engines.iter().map(|e| weights[&e.slot]).collect()
    }

    fn factor(&self, engine: usize) -> f64 {
        self.policy().engines[engine].planned_factor
    }

    /// What is left of an engine's share where proxies take what the policy does not count.
    fn realised(&self, engine: usize, penalty: f64) -> f64 {
        let missing = (1.0 - (1.0 - penalty) / self.factor(engine)).clamp(0.0, 1.0);
        self.weights()[engine] * (1.0 - missing)
    }
}

fn near(found: f64, expected: f64) {
    assert!(
        (found - expected).abs() < 1e-9,
        "{found}, expected {expected}"
    );
}

#[test]
fn the_share_follows_a_penalty_before_during_and_after_the_plan_adopts_it_and_comes_back() {
    let mut world = World::new(fleet([1.0; 4], ""), 200.0);
    let whole = world.weights();
    near(whole.iter().sum(), 1.0);
    let own = whole[1];
    assert!(own > 0.2, "{whole:?}");
    let up = (1..=19).map(|step| f64::from(step) * 0.05);
    let down = (0..19).rev().map(|step| f64::from(step) * 0.05);
    for penalty in up.chain([0.95, 0.95]).chain(down) {
        // Before the plan adopts it, whatever that stands counts.
        if penalty >= 1.0 - world.factor(1) {
            near(world.realised(1, penalty), own * (1.0 - penalty));
        }
        let reason = world.pass(&[(1, penalty)]);
        near(world.factor(1), 1.0 - penalty);
        near(world.weights()[1], own * (1.0 - penalty));
        near(world.realised(1, penalty), own * (1.0 - penalty));
        near(world.weights().iter().sum(), 1.0);
        if reason.is_some() {
            assert_eq!(reason, Some(Reason::EnginesChanged), "{penalty}");
        }
    }
    assert_eq!(world.factor(1), 1.0);
    for (now, before) in world.weights().iter().zip(&whole) {
        near(*now, *before);
    }
    assert_eq!(world.pass(&[]), None);
}

#[test]
fn the_only_engine_of_a_table_gives_to_its_standbys_and_has_all_back() {
    // The others are so far that all goes to the first.
    let mut world = World::new(fleet([1.0, 5_000.0, 5_000.0, 5_000.0], ""), 50.0);
    near(world.weights()[0], 1.0);
    world.pass(&[(0, 0.75)]);
    near(world.weights()[0], 0.25);
    near(world.factor(0), 0.25);
    let others = world.weights();
    for other in 1..4 {
        assert!(others[other] > 0.0, "{others:?}");
    }
    world.pass(&[(0, 0.5)]);
    near(world.weights()[0], 0.5);
    world.pass(&[(0, 0.25)]);
    world.pass(&[]);
    near(world.weights()[0], 1.0);
}

#[test]
fn two_penalties_at_once_take_each_its_own() {
    let mut world = World::new(fleet([1.0; 4], ""), 200.0);
    let whole = world.weights();
    world.pass(&[(0, 0.5), (3, 0.2)]);
    near(world.weights()[0], 0.5 * whole[0]);
    near(world.weights()[3], 0.8 * whole[3]);
    world.pass(&[(0, 0.25), (3, 0.5)]);
    near(world.weights()[0], 0.75 * whole[0]);
    near(world.weights()[3], 0.5 * whole[3]);
    world.pass(&[(3, 0.25)]);
    world.pass(&[]);
    near(world.weights()[0], whole[0]);
    near(world.weights()[3], whole[3]);
}

#[test]
fn a_penalised_engine_gains_no_load_that_others_can_take() {
    let mut world = World::new(fleet([1.0; 4], ""), 150.0);
    let own = world.weights()[2];
    world.pass(&[(2, 0.5)]);
    for _ in 0..40 {
        // More demand: the others have room for all of it.
        world.rps = 220.0;
        world.pass(&[(2, 0.5)]);
        assert!(
            world.weights()[2] <= 0.5 * own + 1e-9,
            "{:?}",
            world.weights()
        );
    }
}

#[test]
fn weights_that_are_held_or_set_are_left_to_the_proxies() {
    let mut world = World::new(fleet([1.0; 4], ""), 200.0);
    let whole = world.weights();
    world.orders.hold = true;
    world.pass(&[(1, 0.5)]);
    assert_eq!((world.weights(), world.factor(1)), (whole.clone(), 1.0));
    near(world.realised(1, 0.5), 0.5 * whole[1]);
    world.orders.hold = false;
    world.pass(&[(1, 0.5)]);
    near(world.weights()[1], 0.5 * whole[1]);
    near(world.factor(1), 0.5);
    // What is counted stays counted while weights are held, and proxies take the rest.
    world.orders.hold = true;
    let held = world.weights();
    world.pass(&[(1, 0.8)]);
    assert_eq!((world.weights(), world.factor(1)), (held, 0.5));
    near(world.realised(1, 0.8), 0.2 * whole[1]);
}

#[test]
fn a_restart_takes_nothing_twice() {
    let mut world = World::new(fleet([1.0; 4], ""), 200.0);
    let own = world.weights()[1];
    world.pass(&[(1, 0.5)]);
    let policy = world.policy().clone();
    let now_ns = world.now_s * 1_000_000_000;
    world.state = TickState::restore(&world.topology, 2, vec![policy], now_ns, 0);
    for _ in 0..3 {
        world.pass(&[(1, 0.5)]);
        near(world.weights()[1], 0.5 * own);
        near(world.factor(1), 0.5);
    }
    world.pass(&[(1, 0.25)]);
    world.pass(&[]);
    near(world.weights()[1], own);
}

#[test]
fn what_was_given_back_while_weights_were_held_comes_back_by_steps() {
    let mut world = World::new(fleet([1.0; 4], ""), 200.0);
    let own = world.weights()[1];
    world.pass(&[(1, 0.95)]);
    world.orders.hold = true;
    for penalty in [0.9, 0.5, 0.0, 0.0] {
        world.pass(&[(1, penalty)]);
        near(world.factor(1), 0.05);
    }
    // Orders end, a gate opens: all of it is wanted at once.
    world.orders.hold = false;
    for factor in [0.3, 0.55, 0.8, 1.0] {
        world.pass(&[]);
        near(world.factor(1), factor);
        near(world.weights()[1], factor * own);
        near(world.realised(1, 0.0), factor * own);
    }
    assert_eq!(world.pass(&[]), None);
}

#[test]
fn what_a_penalised_engine_has_left_goes_when_it_is_out_and_it_comes_back_by_steps() {
    let mut world = World::new(fleet([1.0; 4], ""), 200.0);
    let own = world.weights()[1];
    world.pass(&[(1, 0.9)]);
    // An engine that is out has no penalty.
    world.down = vec![1];
    world.pass(&[]);
    let without = world.weights();
    near(without[1], 0.0);
    for other in [0, 2, 3] {
        assert!((without[other] - 1.0 / 3.0).abs() < 0.02, "{without:?}");
    }
    world.down.clear();
    let mut before = 0.0;
    for _ in 0..20 {
        world.pass(&[]);
        let now = world.weights()[1];
        assert!(now <= before + 0.1 + 1e-6, "{before} -> {now}");
        assert_eq!(world.factor(1), 1.0);
        before = now;
    }
    assert!((before - own).abs() < 0.05, "{before}, once {own}");
}
