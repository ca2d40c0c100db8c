//! Ten thousand solves in a row, each from what the one before left, each against a cold one.
//!
//! Where the cost of load is made of pieces that are true (`Load::Steps`: latency stands, load
//! beyond safe capacity is charged by steps), two optima of one program cost the same, and true
//! cost is held to what arithmetic leaves. A curve is cut into pieces: answers that tie by them
//! may fill alike engines otherwise, and what a piece leaves out of their true cost is told and
//! held apart.

use std::fmt::Write;

use pointsman_shm::policy::PlannedState;
use pointsman_solver::model::optimise::{Solution, Warm, optimise_from};
use pointsman_solver::model::problem::{DemandNow, EngineNow, Now, Problem};
use pointsman_solver::model::topology::Topology;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::fleet::{assert_all_accounted, assert_never_over};

const FRONTENDS: usize = 3;
const CLASSES: usize = 2;
const ENGINES: usize = 7;
/// What a warm solve may cost more or less than a cold one, relatively.
const MOST_OFF: f64 = 1e-7;
/// Passes between two fleets, one of which lacks an engine.
const FLEET_PASSES: usize = 97;

/// What load costs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Load {
    /// Nothing up to safe capacity, ten steps beyond.
    Steps,
    /// A curve, from the first request on.
    Curve,
}

/// Frontends over engines of three regions, two at one distance each; the last engine is not
/// always there.
fn topology(load: Load, engines: usize) -> Topology {
    let mut text = String::from("[solver]\nmethod = \"network\"\n");
    let mut put = |line: String| writeln!(text, "{line}").expect("a string takes any text");
    let busy_ms = if load == Load::Curve { 1_500 } else { 200 };
    put(format!(
        "[[profiles]]\nkind = \"k\"\npoints = [{{ utilisation = 0.0, ttft_ms = 200, tbot_ms = 0 }}, \
         {{ utilisation = 0.6, ttft_ms = 200, tbot_ms = 0 }}, {{ utilisation = 1.0, ttft_ms = \
         {busy_ms}, tbot_ms = 0 }}]"
    ));
    for f in 0..FRONTENDS {
        put(format!("[[frontends]]\nname = \"f{f}\""));
        for r in 0..3_usize {
            let ms = 2 + 30 * r.abs_diff(f);
            put(format!(
                "[[rtt]]\nfrontend = \"f{f}\"\nregion = \"r{r}\"\nms = {ms}"
            ));
        }
    }
    for e in 0..engines {
        let models = ["\"m\"", "\"m\", \"n\"", "\"n\""][e % 3];
        put(format!(
            "[[engines]]\nname = \"e{e}\"\nregion = \"r{}\"\nkind = \"k\"\nmodels = [{models}]\n\
             address = \"127.0.0.1:{}\"\ncapacity = {{ rps = {} }}",
            e % 3,
            9_000 + e,
            80 + 10 * (e / 2)
        ));
    }
    for model in ["m", "n"] {
        put(format!(
            "[[routes]]\nname = \"{model}\"\nmodel = \"{model}\""
        ));
    }
    Topology::parse("drift.toml", &text).expect("good")
}

/// A fleet that drifts: demand by up to 5 % a pass, engines lost and back, one taken away and
/// brought again.
struct Drift {
    topologies: [Topology; 2],
    rates: [f64; FRONTENDS * CLASSES],
    down: [bool; ENGINES],
    /// By source, then engine number.
    weights: Vec<Option<Vec<f64>>>,
    rng: StdRng,
}

impl Drift {
    fn new(load: Load, seed: u64) -> Self {
        Self {
            topologies: [topology(load, ENGINES), topology(load, ENGINES - 1)],
            rates: [60.0, 90.0, 70.0, 80.0, 50.0, 40.0],
            down: [false; ENGINES],
            weights: vec![None; FRONTENDS * CLASSES],
            rng: StdRng::seed_from_u64(seed),
        }
    }

    fn problem(&mut self, pass: usize) -> Problem {
        for rate in &mut self.rates {
            *rate = (*rate * self.rng.random_range(0.95..1.05)).clamp(10.0, 160.0);
        }
        if pass % 5 == 4 {
            let e = self.rng.random_range(0..ENGINES);
            self.down[e] = !self.down[e] && self.down.iter().filter(|d| **d).count() < 2;
        }
        let topology = &self.topologies[pass / FLEET_PASSES % 2];
        let one = |(s, rps): (usize, &f64)| DemandNow {
            by_priority_rps: vec![*rps],
            mix: topology.classes[s % CLASSES].mix,
        };
        let demand: Vec<DemandNow> = self.rates.iter().enumerate().map(one).collect();
        let engines = topology.engines.iter().zip(&self.down).map(|(_, down)| {
            let mut now = EngineNow::described(1);
            if *down {
                now.state = PlannedState::Out;
                (now.ready_replicas, now.ready_share) = (0, 0.0);
            }
            now
        });
        let engines: Vec<EngineNow> = engines.collect();
        let previous = self.weights.iter().enumerate().map(|(s, weights)| {
            let eligible = &topology.classes[s % CLASSES].eligible;
            let own: Vec<f64> = eligible
                .iter()
                .map(|pair| weights.as_ref().map_or(0.0, |w| w[pair.engine.0]))
                .collect();
            let sum: f64 = own.iter().sum();
            (sum > 0.0).then(|| own.iter().map(|w| w / sum).collect())
        });
        let previous: Vec<Option<Vec<f64>>> = previous.collect();
        let now = Now {
            demand: &demand,
            engines: &engines,
            previous: &previous,
            reachable: &vec![true; FRONTENDS * engines.len()],
            hold_observed: true,
        };
        Problem::new(topology, &now)
    }

    /// Takes what was found for what stands.
    fn stand(&mut self, problem: &Problem, solution: &Solution) {
        for (s, shares) in solution.shares.iter().enumerate() {
            let mut weights = vec![0.0; ENGINES];
            let arcs = problem.sources[s].arcs.iter();
            arcs.zip(shares)
                .for_each(|(arc, share)| weights[arc.engine.0] = *share);
            let sum: f64 = shares.iter().sum();
            self.weights[s] = (sum > 0.0).then_some(weights);
        }
    }
}

/// What came of many solves.
#[derive(Debug, Default)]
struct Outcome {
    worst_off: f64,
    warm_pivots: u64,
    cold_pivots: u64,
    shed: usize,
}

fn follow(load: Load, seed: u64, passes: usize) -> Outcome {
    let mut drift = Drift::new(load, seed);
    let mut left: Option<Warm> = None;
    let mut outcome = Outcome::default();
    for pass in 0..passes {
        let what = format!("{load:?}, seed {seed}, pass {pass}");
        let problem = drift.problem(pass);
        let solved = |warm: Option<&Warm>| {
            optimise_from(&problem, warm).unwrap_or_else(|status| panic!("{what}: {status}"))
        };
        let ((warm, next), (cold, _)) = (solved(left.as_ref()), solved(None));
        assert_never_over(&problem, &warm, &what);
        assert_all_accounted(&problem, &warm, &what);
        assert_eq!((warm.gap, cold.gap), (0.0, 0.0), "{what}");
        let cost = |s: &Solution| s.terms.total() + s.over_bounds_ms;
        let off = (cost(&warm) / cost(&cold) - 1.0).abs();
        if load == Load::Steps {
            let costs = (cost(&warm), cost(&cold));
            assert!(off < MOST_OFF, "{what}: {costs:?}");
        }
        outcome.worst_off = outcome.worst_off.max(off);
        outcome.warm_pivots += warm.pivots;
        outcome.cold_pivots += cold.pivots;
        outcome.shed += usize::from(warm.terms.shed > 0.0);
        drift.stand(&problem, &warm);
        left = next;
    }
    println!("{load:?}: {outcome:?}");
    // Otherwise nothing was begun from what was left.
    assert!(outcome.warm_pivots < outcome.cold_pivots, "{outcome:?}");
    outcome
}

#[test]
fn h12_ten_thousand_solves_from_an_old_answer_cost_what_cold_ones_do() {
    let found = follow(Load::Steps, 121, 10_000);
    assert!(found.shed > 100, "{found:?}");
}

#[test]
fn h12_what_ties_by_the_pieces_of_a_curve_costs_about_the_same() {
    let found = follow(Load::Curve, 122, 2_000);
    assert!(found.worst_off < 1e-3, "{found:?}");
}
