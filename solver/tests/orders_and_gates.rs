//! Passes under the operator's orders and under inputs that cannot be believed, without I/O.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_shm::policy::{PlannedState, Policy};
use pointsman_solver::model::topology::{ClassId, EngineId, FrontendId, Topology};
use pointsman_solver::model::units::NonNegative;
use pointsman_solver::tick::{
    Answers, Arrivals, DemandSample, EngineSample, Gate, Health, Inputs, Reason, TickOutcome,
    TickState, tick,
};

const SECOND: u64 = 1_000_000_000;
const DEMAND: [f64; 3] = [90.0, 120.0, 40.0];
const TICK_S: u64 = 2;

/// The three regions, planned from signals, and what a pass leaves behind.
struct World {
    topology: Topology,
    state: TickState,
    now_s: u64,
    demand: [f64; 3],
    health: [Health; 3],
    /// Engines beyond the three, which are always well.
    others: usize,
    inputs: Inputs,
}

impl World {
    fn new() -> Self {
        Self::of("", 0)
    }

    /// The three regions, and what `more` says of `others` engines.
    fn of(more: &str, others: usize) -> Self {
        let text = include_str!("../../tests/data/three-regions.toml");
        let text = text.replace("demand = \"configured\"", "demand = \"signals\"") + more;
        let topology = Topology::parse("three-regions.toml", &text).expect("good");
        let mut world = Self {
            state: TickState::new(&topology, 7),
            topology,
            now_s: 0,
            demand: DEMAND,
            health: [Health::Up; 3],
            others,
            inputs: Inputs::default(),
        };
        for f in world.topology.frontend_ids() {
            for e in world.topology.engine_ids() {
                let address = world.topology.address(f, e).expect("one");
                let address = address.parse().expect("an address");
                world.inputs.addresses.insert((f, e), vec![address]);
            }
        }
        world
    }

    /// Well for long enough that weights, memory and averages are settled.
    fn settled() -> Self {
        Self::settled_at(DEMAND)
    }

    fn settled_at(demand: [f64; 3]) -> Self {
        Self::new().settle(demand)
    }

    fn settle(mut self, demand: [f64; 3]) -> Self {
        self.demand = demand;
        for _ in 0..20 {
            self.busy();
            assert_eq!(self.pass().held, []);
        }
        self
    }

    /// Proxies handle what they are offered and succeed on every engine.
    fn busy(&mut self) {
        let handled = |rps: f64| (rps * TICK_S as f64) as u64;
        let arrivals = self.demand.into_iter().enumerate().map(|(f, rps)| {
            let arrivals = Arrivals {
                length_s: TICK_S as f64,
                handled: handled(rps),
                in_flight: 20,
                blind: false,
            };
            (FrontendId(f), arrivals)
        });
        self.inputs.witness.arrivals = arrivals.collect();
        let well = Answers {
            succeeded: 100,
            failed: 1,
        };
        self.inputs.witness.engines = (0..3).map(|e| (EngineId(e), well)).collect();
    }

    /// One pass whose publications all succeed.
    fn pass(&mut self) -> TickOutcome {
        self.now_s += TICK_S;
        self.inputs.now_ns = self.now_s * SECOND;
        self.inputs.demand = self
            .demand
            .into_iter()
            .enumerate()
            .map(|(f, rps)| DemandSample {
                frontend: FrontendId(f),
                class: ClassId(0),
                by_priority_rps: vec![NonNegative::new(rps).expect("a rate")],
                prompt_tokens: None,
                output_tokens: None,
                cached_tokens: None,
            })
            .collect();
        let sample = |(e, health): (usize, Health)| EngineSample {
            health,
            silent: health == Health::Down,
            running: NonNegative::new(20.0),
            ..EngineSample::unknown(EngineId(e))
        };
        let others = std::iter::repeat_n(Health::Up, self.others);
        let health = self.health.into_iter().chain(others);
        self.inputs.engines = health.enumerate().map(sample).collect();
        let outcome = tick(&self.topology, &mut self.state, &self.inputs);
        assert_eq!(outcome.status.name(), "optimal");
        for candidate in &outcome.candidates {
            candidate.policy.validate().expect("proxies take it");
            if candidate.publish.is_some() {
                let policy = candidate.policy.clone();
                self.state
                    .confirm(candidate.frontend, policy, self.inputs.now_ns);
            }
        }
        outcome
    }

    fn standing(&self, frontend: usize) -> &Policy {
        self.state
            .standing(FrontendId(frontend))
            .expect("published")
    }

    fn weights(&self) -> Vec<Vec<f64>> {
        let of = |f| {
            let eligible = self.standing(f).classes[0].eligible.iter();
            eligible.map(|e| e.weight).collect()
        };
        (0..3).map(of).collect()
    }

    fn states(&self) -> Vec<PlannedState> {
        self.standing(0).engines.iter().map(|e| e.state).collect()
    }
}

fn gates(outcome: &TickOutcome) -> Vec<Gate> {
    outcome.held.iter().map(|held| held.gate).collect()
}

fn reasons(outcome: &TickOutcome) -> Vec<Option<Reason>> {
    outcome.candidates.iter().map(|c| c.publish).collect()
}

#[test]
fn engines_that_vanish_while_proxies_succeed_are_held_until_they_are_seen_again() {
    let mut world = World::settled();
    let before = world.weights();
    world.health = [Health::Up, Health::Down, Health::Down];
    for _ in 0..30 {
        world.busy();
        let outcome = world.pass();
        assert_eq!(gates(&outcome), [Gate::EnginesVanished]);
        let told = &outcome.held[0].detail;
        assert!(
            told.contains("2 of 3 engines") && told.ends_with("B, C"),
            "{told}"
        );
        assert_eq!(world.weights(), before);
        assert_eq!(world.states(), [PlannedState::Active; 3]);
    }
    world.health = [Health::Up; 3];
    world.busy();
    assert_eq!(gates(&world.pass()), []);
    assert_eq!(world.weights(), before);
}

/// Two engines of ten requests/s beside the three of a hundred, a hundred and eighty.
fn small_engines() -> String {
    let mut text = String::new();
    for name in ["D", "E"] {
        text += &format!(
            "\n[[engines]]\nname = \"{name}\"\nregion = \"a\"\nkind = \"flat\"\nmodels = [\"m\"]\n\
             address = \"127.0.0.1:9004\"\n\
             capacity = {{ rps = 10, prompt_tokens = 500, output_tokens = 100 }}\n"
        );
        for frontend in ["A", "B", "C"] {
            text += &format!("[[rtt]]\nfrontend = \"{frontend}\"\nengine = \"{name}\"\nms = 70\n");
        }
    }
    text
}

#[test]
fn a_class_that_loses_much_of_its_capacity_is_held_though_few_engines_vanish() {
    let mut world = World::of(&small_engines(), 2).settle(DEMAND);
    let before = world.weights();
    // One of five engines, and a third of what they can do.
    world.health[0] = Health::Down;
    for _ in 0..30 {
        world.busy();
        let outcome = world.pass();
        assert_eq!(gates(&outcome), [Gate::CapacityVanished]);
        let told = &outcome.held[0].detail;
        assert!(
            told.starts_with("33 % of the capacity of class \"chat\" cannot be asked")
                && told.ends_with(": A"),
            "{told}"
        );
        assert_eq!(outcome.held[0].gate.name(), "capacity_vanished");
        assert_eq!(world.weights(), before);
        assert_eq!(world.states()[0], PlannedState::Active);
    }
    world.health[0] = Health::Up;
    world.busy();
    assert_eq!(gates(&world.pass()), []);
    // Of C go 80 of 300: neither three in ten of the engines nor of what they can do.
    world.health[2] = Health::Down;
    world.busy();
    assert_eq!(gates(&world.pass()), []);
    assert_eq!(world.states()[2], PlannedState::Out);
    assert!(world.weights().iter().all(|w| w[2] == 0.0));
}

#[test]
fn a_loss_that_proxies_confirm_is_planned_without_at_once() {
    let mut world = World::settled();
    world.health = [Health::Up, Health::Down, Health::Down];
    world.busy();
    let dead = Answers {
        succeeded: 0,
        failed: 9,
    };
    for engine in [1, 2] {
        world.inputs.witness.engines.insert(EngineId(engine), dead);
    }
    let outcome = world.pass();
    assert_eq!(gates(&outcome), []);
    assert_eq!(reasons(&outcome), [Some(Reason::EnginesChanged); 3]);
    assert_eq!(world.weights(), vec![vec![1.0, 0.0, 0.0]; 3]);
}

#[test]
fn a_loss_that_nobody_contradicts_is_planned_without() {
    let mut world = World::settled();
    world.inputs.witness.engines = BTreeMap::new();
    // What proxies said before the loss has aged.
    world.now_s += 11;
    world.health = [Health::Up, Health::Down, Health::Down];
    assert_eq!(gates(&world.pass()), []);
    assert_eq!(world.weights(), vec![vec![1.0, 0.0, 0.0]; 3]);
}

#[test]
fn an_engine_that_says_itself_that_it_is_unwell_has_not_vanished() {
    let mut world = World::settled();
    world.health = [Health::Up, Health::Down, Health::Down];
    world.busy();
    world.pass();
    // The same, but it answers.
    let mut world = World::settled();
    world.busy();
    world.now_s += TICK_S;
    world.inputs.now_ns = world.now_s * SECOND;
    for sample in &mut world.inputs.engines {
        sample.health = Health::Down;
        sample.silent = false;
    }
    world.inputs.engines[0].health = Health::Up;
    let outcome = tick(&world.topology, &mut world.state, &world.inputs);
    assert_eq!(gates(&outcome), []);
    assert_eq!(reasons(&outcome), [Some(Reason::EnginesChanged); 3]);
}

#[test]
fn a_slow_loss_is_no_gate() {
    let mut world = World::settled();
    for (engine, health) in [(1, Health::Down), (2, Health::Down)] {
        world.health[engine] = health;
        // One of three is already over 30 % at once: it is held while proxies succeed on it.
        world.busy();
        assert_eq!(gates(&world.pass()), [Gate::EnginesVanished]);
        let dead = Answers {
            succeeded: 0,
            failed: 9,
        };
        world.inputs.witness.engines.insert(EngineId(engine), dead);
        assert_eq!(gates(&world.pass()), []);
        // Lost for longer than at once: what proxies say later changes nothing.
        world.now_s += 11;
        world.busy();
        assert_eq!(gates(&world.pass()), []);
        assert_eq!(world.states()[engine], PlannedState::Out);
    }
}

#[test]
fn zeroed_demand_is_not_believed_while_proxies_handle_as_much_as_before() {
    let mut world = World::settled();
    let before = world.weights();
    for _ in 0..30 {
        world.busy();
        world.demand = [0.0; 3];
        let outcome = world.pass();
        assert_eq!(gates(&outcome), [Gate::DemandUnconfirmed]);
        let told = &outcome.held[0].detail;
        assert!(
            told.contains("250.0 to 0.0") && told.contains("handled 250.0"),
            "{told}"
        );
        let planned: f64 = world.standing(0).classes[0].demand_rps;
        assert_eq!((planned, world.weights()), (90.0, before.clone()));
        world.demand = DEMAND;
    }
}

#[test]
fn zeroed_pages_are_not_believed_while_engines_run_as_much_as_before() {
    let mut world = World::settled();
    let before = world.weights();
    world.demand = [0.0; 3];
    for arrivals in world.inputs.witness.arrivals.values_mut() {
        arrivals.handled = 0;
        arrivals.in_flight = 0;
    }
    world.inputs.witness.engines = BTreeMap::new();
    // For as long as what was handled before still counts, and after.
    for _ in 0..10 {
        let outcome = world.pass();
        assert_eq!(gates(&outcome), [Gate::DemandUnconfirmed]);
        assert_eq!(world.weights(), before);
    }
}

#[test]
fn demand_that_falls_with_everything_else_is_believed() {
    let mut world = World::settled();
    world.demand = [9.0, 12.0, 4.0];
    world.busy();
    for arrivals in world.inputs.witness.arrivals.values_mut() {
        arrivals.in_flight = 2;
    }
    world
        .inputs
        .witness
        .arrivals
        .values_mut()
        .for_each(|a| a.handled = 10);
    let outcome = world.pass();
    // The engines of this world run as much as ever, for others: they filled them only in part.
    assert_eq!(gates(&outcome), [Gate::DemandUnconfirmed]);
    let mut world = World::settled();
    world.demand = [40.0, 50.0, 30.0];
    world.busy();
    assert_eq!(gates(&world.pass()), []);
    assert_eq!(world.standing(1).classes[0].demand_rps, 50.0);
}

#[test]
fn demand_that_jumps_is_believed_when_it_arrives_and_only_then() {
    let mut world = World::settled();
    world.busy();
    world.demand = [500.0, 500.0, 500.0];
    let outcome = world.pass();
    assert_eq!(gates(&outcome), [Gate::DemandUnconfirmed]);
    let told = &outcome.held[0].detail;
    assert!(
        told.contains("250.0 to 1500.0") && told.contains("handled 250.0"),
        "{told}"
    );
    world.busy();
    assert_eq!(gates(&world.pass()), []);
    assert_eq!(world.standing(0).classes[0].demand_rps, 500.0);
}

#[test]
fn pages_that_cannot_be_read_hold_when_they_told_most_of_the_demand() {
    let mut world = World::settled();
    let blind = |world: &mut World, frontends: &[usize]| {
        world.busy();
        for f in frontends {
            let arrivals = world.inputs.witness.arrivals.get_mut(&FrontendId(*f));
            arrivals.expect("busy").blind = true;
        }
        gates(&world.pass())
    };
    // 120 of 250 requests/s are not most.
    assert_eq!(blind(&mut world, &[1]), []);
    assert_eq!(blind(&mut world, &[1, 2]), [Gate::DemandUnreadable]);
    assert_eq!(blind(&mut world, &[]), []);
}

#[test]
fn a_topology_that_lacks_engines_in_use_is_named() {
    let world = World::settled();
    let without = |names: &[&str]| {
        let mut topology = world.topology.clone();
        topology
            .engines
            .retain(|e| !names.contains(&e.name.as_str()));
        topology
    };
    let shrunk = |new: &Topology, drained: &[&str], now_s: u64| {
        let drained = |name: &str| drained.contains(&name);
        let now_ns = now_s * SECOND;
        world.state.shrunk(&world.topology, new, drained, now_ns)
    };
    let empty = without(&["A", "B", "C"]);
    let held = shrunk(&empty, &[], world.now_s).expect("held");
    assert_eq!(held.gate, Gate::TopologyShrunk);
    assert!(
        held.detail
            .starts_with("3 of 3 engines would be gone at once"),
        "{}",
        held.detail
    );
    assert!(shrunk(&without(&["B"]), &[], world.now_s).is_some());
    assert_eq!(shrunk(&without(&["B"]), &["B"], world.now_s), None);
    assert_eq!(shrunk(&empty, &[], world.now_s + 11), None);
    assert_eq!(shrunk(&world.topology.clone(), &[], world.now_s), None);
}

#[test]
fn a_drained_engine_gets_nothing_and_comes_back_by_bounded_steps() {
    let mut world = World::settled_at([40.0, 60.0, 20.0]);
    let before = world.weights();
    assert_eq!(before[1], [0.0, 1.0, 0.0]);
    world.inputs.orders.draining = BTreeSet::from([EngineId(1)]);
    world.busy();
    assert_eq!(reasons(&world.pass()), [Some(Reason::EnginesChanged); 3]);
    assert!(world.weights().iter().all(|w| w[1] == 0.0));
    assert_eq!(world.states()[1], PlannedState::Draining);
    for f in 0..3 {
        let policy = world.standing(f);
        let class = &policy.classes[0];
        let slot = policy.engines[1].slot;
        assert!(class.table.iter().all(|e| *e != slot));
        assert!(class.standby.iter().all(|s| s.engine != slot));
        assert_eq!(policy.engines[1].allowance, 0);
    }
    world.inputs.orders = Default::default();
    let mut last = 0.0;
    let step = world.topology.settings.max_step.value();
    let mut passes = 0;
    while last < 1.0 - 1e-6 {
        world.busy();
        world.pass();
        let share = world.weights()[1][1];
        assert!(share <= last + step + 1e-6, "{last} to {share}");
        last = share;
        passes += 1;
        assert!(passes <= 20, "never all back: {share}");
    }
    assert!(passes >= 10, "{passes} passes of at most {step}");
}

#[test]
fn a_drained_engine_that_is_also_down_stays_drained() {
    let mut world = World::settled();
    world.inputs.orders.draining = BTreeSet::from([EngineId(1)]);
    world.health = [Health::Down; 3];
    world.inputs.witness.engines = BTreeMap::new();
    world.now_s += 11;
    let outcome = world.pass();
    assert!(
        outcome.notes.iter().any(|n| n.contains("looks dead")),
        "{:?}",
        outcome.notes
    );
    // The others are planned as if they were well; what the operator closed stays closed.
    assert!(
        world
            .weights()
            .iter()
            .all(|w| w[1] == 0.0 && w[0] + w[2] > 0.999)
    );
}

#[test]
fn held_weights_stay_through_changes_of_demand_and_health_is_laid_over_them() {
    let mut world = World::settled();
    let before = world.weights();
    world.inputs.orders.hold = true;
    world.demand = [130.0, 60.0, 60.0];
    for _ in 0..40 {
        world.busy();
        world.pass();
        assert_eq!(world.weights(), before);
    }
    world.inputs.orders.draining = BTreeSet::from([EngineId(2)]);
    world.busy();
    world.pass();
    let after = world.weights();
    assert!(
        after
            .iter()
            .take(2)
            .all(|w| w[2] == 0.0 && (w.iter().sum::<f64>() - 1.0).abs() < 1e-9)
    );
    assert_eq!(after[1][1], 1.0, "B had only B and C");
}

#[test]
fn set_weights_are_published_at_once_and_given_back_by_the_plan() {
    let mut world = World::settled();
    let key = (FrontendId(0), ClassId(0));
    let given = vec![0.5, 0.25, 0.25];
    world.inputs.orders.weights = BTreeMap::from([(key, given.clone())]);
    world.busy();
    assert_eq!(reasons(&world.pass())[0], Some(Reason::Ordered));
    assert_eq!(world.weights()[0], given);
    world.busy();
    // Others go on to make room; what was set is as it was set.
    assert_eq!(reasons(&world.pass())[0], None);
    world.health[2] = Health::Down;
    world.inputs.witness.engines.clear();
    world.now_s += 11;
    world.pass();
    let left = &world.weights()[0];
    assert!(
        (left[0] - 2.0 / 3.0).abs() < 1e-9 && left[2] == 0.0,
        "{left:?}"
    );
}
