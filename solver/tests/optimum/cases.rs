//! What other solvers got wrong, stated to the network simplex; `tests/optimise.rs` states the
//! same to the general programs.

use pointsman_shm::policy::Policy;
use pointsman_solver::model::optimise::{Status, optimise};
use pointsman_solver::model::problem::{EngineSide, Problem};
use pointsman_solver::model::topology::{ClassId, EngineId, Method, Topology};
use pointsman_solver::model::units::NonNegative;
use pointsman_solver::tick::{
    DemandSample, EngineSample, Health, Inputs, TickOutcome, TickState, tick,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::fleet::{self, arc, assert_all_accounted, assert_never_over, flat, solved, source};

/// One source of `rps` over engines of (capacity, network_ms, seconds); hard capacity is safe.
fn one_source(rps: f64, ways: &[(f64, f64, f64)]) -> Problem {
    let engine = |way: &(f64, f64, f64)| EngineSide {
        headroom: 1.0,
        ..fleet::engine(way.0)
    };
    let arcs = ways.iter().enumerate();
    let arcs = arcs.map(|(e, way)| arc(e, way.1, way.2)).collect();
    let sources = vec![source(0, 0, [rps, 0.0], arcs)];
    fleet::problem(vec![flat()], ways.iter().map(engine).collect(), sources)
}

fn shares(problem: &Problem) -> Vec<f64> {
    let solution = solved(problem, Method::Network, "one source");
    assert_all_accounted(problem, &solution, "one source");
    assert_never_over(problem, &solution, "one source");
    solution.shares[0].clone()
}

fn assert_near(got: &[f64], expected: &[f64]) {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-9;
    let same = got.len() == expected.len() && got.iter().zip(expected).all(near);
    assert!(same, "{got:?}, not {expected:?}");
}

#[test]
fn h01_wide_numbers_are_solved_or_refused_by_name() {
    // Nine orders of magnitude between two sources of one engine.
    let mut wide = one_source(50.0, &[(1.0, 1.0, 0.01)]);
    wide.sources
        .push(source(1, 0, [5e-8, 0.0], vec![arc(0, 1.0, 0.01)]));
    wide.lift_idle_sources();
    let solution = solved(&wide, Method::Network, "wide");
    assert_eq!(solution.shares, [[1.0], [1.0]]);
    // Beyond what can be told apart the source is named.
    wide.sources[1].planned_rps = 1e-13;
    let Err(Status::Refused { reason }) = optimise(&wide) else {
        panic!("refused");
    };
    assert!(reason.contains("is lost beside all demand"), "{reason}");
}

#[test]
fn h04_a_vast_capacity_is_no_infinity_to_the_network() {
    for k in [40, 50, 60] {
        let vast = f64::from(k).exp2();
        let problem = one_source(100.0, &[(vast, 30.0, 0.01), (0.5, 1.0, 0.01)]);
        assert_near(&shares(&problem), &[0.5, 0.5]);
    }
}

#[test]
fn h08_overload_by_almost_nothing_is_shed_by_the_network() {
    for over in [1e-3, 1e-7, 0.0] {
        let problem = one_source(200.0 + over, &[(1.0, 1.0, 0.01), (1.0, 1.0, 0.01)]);
        let solution = solved(&problem, Method::Network, "overload");
        assert_all_accounted(&problem, &solution, "overload");
        let shed = solution.shed[0].iter().sum::<f64>() * (200.0 + over);
        assert!((shed - over).abs() <= 2e-7, "{shed} of {over}");
    }
}

#[test]
fn h09_rounding_in_what_stands_does_no_harm_to_the_network() {
    let mut problem = one_source(50.0, &[(1.0, 1.0, 0.01), (1.0, 20.0, 0.01)]);
    for previous in [
        [1.0 + 1e-12, 0.0],
        [1.0 - 1e-16, 1e-16],
        [0.0, 1.0],
        [1e-300, 1.0],
    ] {
        problem.sources[0].previous = Some(previous.to_vec());
        shares(&problem);
    }
}

#[test]
fn h11_empty_and_vanishing_parts_are_nothing_to_the_network() {
    let none = fleet::problem(vec![flat()], Vec::new(), Vec::new());
    assert!(solved(&none, Method::Network, "nothing").shares.is_empty());
    // No engine is allowed; the engine has no capacity; there is no demand.
    let sides = vec![fleet::engine(0.0), fleet::engine(1.0)];
    let sources = vec![
        source(0, 0, [10.0, 0.0], Vec::new()),
        source(1, 0, [10.0, 0.0], vec![arc(0, 1.0, 0.01)]),
        source(2, 0, [0.0, 0.0], vec![arc(1, 1.0, 0.01), arc(0, 1.0, 0.01)]),
    ];
    let problem = fleet::problem(vec![flat()], sides, sources);
    let solution = solved(&problem, Method::Network, "vanishing");
    assert_eq!(solution.shed, [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]);
    assert_eq!(solution.shares, [vec![], vec![0.0], vec![1.0, 0.0]]);
    // The same engine twice in one source.
    let mut twice = one_source(10.0, &[(1.0, 2.0, 0.01)]);
    twice.sources[0].arcs.push(arc(0, 1.0, 0.01));
    assert_near(&shares(&twice), &[0.0, 1.0]);
}

#[test]
fn h14_a_bad_scale_ends_at_the_same_corner_of_the_network() {
    let problem = one_source(1e8, &[(1.0, 10.0, 1e-8), (0.25, 1.0, 1e-8)]);
    assert_near(&shares(&problem), &[0.75, 0.25]);
    // All of it a million times larger.
    let problem = one_source(1e14, &[(1e6, 10.0, 1e-8), (0.25e6, 1.0, 1e-8)]);
    assert_near(&shares(&problem), &[0.75, 0.25]);
}

/// Two frontends, two classes, six engines of three regions.
fn topology() -> Topology {
    let mut text =
        String::from("[solver]\nmethod = \"network\"\ntable_bits = 6\ntoken_mix = \"measured\"\n");
    for f in 0..2 {
        text += &format!("[[frontends]]\nname = \"f{f}\"\n");
        for r in 0..3_i32 {
            let ms = 2 + 30 * (r - f).abs();
            text += &format!("[[rtt]]\nfrontend = \"f{f}\"\nregion = \"r{r}\"\nms = {ms}\n");
        }
    }
    for e in 0..6 {
        let models = ["\"m\"", "\"m\", \"n\"", "\"n\""][e % 3];
        text += &format!(
            "[[engines]]\nname = \"e{e}\"\nregion = \"r{}\"\nkind = \"k\"\nmodels = [{models}]\n\
             address = \"127.0.0.1:{}\"\ncapacity = {{ rps = {} }}\n",
            e / 2,
            9_000 + e,
            80 + 10 * e
        );
    }
    for model in ["m", "n"] {
        text += &format!("[[routes]]\nname = \"{model}\"\nmodel = \"{model}\"\n");
    }
    Topology::parse("drift.toml", &text).expect("good")
}

fn inputs(topology: &Topology, second: u64, rates: &[f64], down: &[bool]) -> Inputs {
    let mut inputs = Inputs {
        now_ns: second * 1_000_000_000,
        unix_ms: 1_800_000_000_000,
        ..Inputs::default()
    };
    for f in topology.frontend_ids() {
        for k in 0..2 {
            inputs.demand.push(DemandSample {
                frontend: f,
                class: ClassId(k),
                by_priority_rps: vec![NonNegative::new(rates[2 * f.0 + k]).expect("a rate")],
                prompt_tokens: None,
                output_tokens: None,
                cached_tokens: None,
            });
        }
        for e in topology.engine_ids() {
            let address = topology.address(f, e).expect("one");
            let address = address.parse().expect("an address");
            inputs.addresses.insert((f, e), vec![address]);
        }
    }
    for (e, down) in down.iter().enumerate() {
        inputs.engines.push(EngineSample {
            health: if *down { Health::Down } else { Health::Up },
            ..EngineSample::unknown(EngineId(e))
        });
    }
    inputs
}

fn cost(outcome: &TickOutcome, what: &str) -> f64 {
    assert_eq!(outcome.status.name(), "optimal", "{what}");
    outcome.plan.as_ref().expect("a plan").terms.total()
}

/// Most that one pass may cost more or less than one without the old answer.
const MOST_OFF: f64 = 0.1;

/// Each pass starts from what the one before left, and must cost what one costs that lacks the old
/// answer.
#[test]
fn h12_ten_thousand_passes_from_an_old_answer_cost_what_cold_ones_do() {
    let seed = 112;
    let mut rng = StdRng::seed_from_u64(seed);
    let topology = topology();
    let mut warm = TickState::new(&topology, 1);
    let mut rates = [60.0, 90.0, 70.0, 80.0];
    let mut down = [false; 6];
    let (mut all_off, mut signed, mut worst) = (0.0, 0.0, 0.0_f64);
    for pass in 0..10_000 {
        let what = format!("seed {seed}, pass {pass}");
        for rate in &mut rates {
            *rate = f64::clamp(*rate * rng.random_range(0.95..1.05), 20.0, 200.0);
        }
        if pass % 5 == 4 {
            let e = rng.random_range(0..6);
            down[e] = !down[e] && down.iter().filter(|d| **d).count() < 2;
        }
        let now = inputs(&topology, 1 + 2 * pass, &rates, &down);
        // All that is remembered but the old answer.
        let mut cold = warm.carry(&topology, &topology, |_| (None, 0), now.now_ns);
        let expected = cost(&tick(&topology, &mut cold, &now), &what);
        let outcome = tick(&topology, &mut warm, &now);
        let got = cost(&outcome, &what);
        // Plans that tie lead along unlike ways, and what a bounded step of each costs differs: by
        // little in one pass, and by next to nothing in the mean. `drift` holds plans to 1e-9.
        let off = (got - expected) / expected;
        assert!(off.abs() < MOST_OFF, "{what}: {got}, cold {expected}");
        signed += off;
        (all_off, worst) = (all_off + off.abs(), worst.max(off.abs()));
        for candidate in outcome.candidates {
            warm.confirm(candidate.frontend, candidate.policy, now.now_ns);
        }
    }
    let [mean, bias] = [all_off, signed].map(|sum: f64| sum / 10_000.0);
    println!("mean {mean:.6}, signed {bias:.6}, worst {worst:.4}");
    assert!(mean < 1e-4, "{mean}");
}

/// A pass that cannot be solved leaves everything as it was, and the next one goes on.
#[test]
fn h01_a_pass_that_is_refused_leaves_what_stands() {
    let topology = topology();
    let mut state = TickState::new(&topology, 1);
    let good = [60.0, 90.0, 70.0, 80.0];
    let first = tick(
        &topology,
        &mut state,
        &inputs(&topology, 1, &good, &[false; 6]),
    );
    for candidate in first.candidates {
        state.confirm(candidate.frontend, candidate.policy, 1_000_000_000);
    }
    let standing = |state: &TickState| -> Vec<Policy> {
        let of = |f| state.standing(f).expect("published").clone();
        topology.frontend_ids().map(of).collect()
    };
    let before = standing(&state);
    // Somebody says that a prompt is longer than anything.
    let mut bad = inputs(&topology, 40, &good, &[false; 6]);
    bad.demand[0].prompt_tokens = NonNegative::new(1e300);
    let outcome = tick(&topology, &mut state, &bad);
    assert_eq!(outcome.status.name(), "refused", "{}", outcome.status);
    assert!(outcome.plan.is_none() && outcome.candidates.is_empty());
    assert_eq!((state.counters.failures, state.counters.panics), (1, 0));
    assert_eq!(standing(&state), before);
    let next = tick(
        &topology,
        &mut state,
        &inputs(&topology, 80, &good, &[false; 6]),
    );
    assert_eq!(next.candidates.len(), 2);
    cost(&next, "after");
}
