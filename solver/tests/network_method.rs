//! The method `network` against the method `lp`, and against true capacities and bounds.

use std::path::Path;
use std::process::Command;

use pointsman_solver::model::optimise::{Solution, optimise};
use pointsman_solver::model::problem::{Arc, EngineSide, Problem, Source};
use pointsman_solver::model::topology::{
    ClassId, EngineId, FrontendId, Method, Point, Profile, ProfileId,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;

/// What work a request is on an engine.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    Equal,
    Separable,
    /// Prefill and decode rates in ratios that differ from kind to kind.
    General,
}

fn flat() -> Profile {
    profile(&[(0.0, 200.0), (1.0, 200.0)])
}

fn profile(points: &[(f64, f64)]) -> Profile {
    let point = |&(utilisation, ttft_ms): &(f64, f64)| Point {
        utilisation,
        ttft_ms,
        tbot_ms: 0.0,
    };
    Profile {
        name: "p".into(),
        assumed: false,
        points: points.iter().map(point).collect(),
    }
}

/// Sources over engines: capacities in engine-seconds per second, work in engine-seconds.
fn random(rng: &mut StdRng, work: Work) -> Problem {
    let general = work == Work::General;
    let engines = rng.random_range(if general { 3..9 } else { 1..6_usize });
    let count = rng.random_range(if general { 3..9 } else { 1..6_usize });
    let capacities = if general {
        [1.0, 1.0, 1.0, 2.0, 4.0]
    } else {
        [0.0, 0.5, 1.0, 1.0, 2.0]
    };
    let capacity: Vec<f64> = (0..engines)
        .map(|_| *capacities.choose(rng).expect("a choice"))
        .collect();
    let beta: Vec<f64> = (0..engines).map(|_| rng.random_range(0.25..4.0)).collect();
    // Five kinds: seconds of a thousand prompt tokens, and of a hundred answer tokens.
    let kinds = [
        (0.01, 0.01),
        (0.01, 0.005),
        (0.005, 0.01),
        (0.02, 0.01),
        (0.008, 0.012),
    ];
    let kind: Vec<(f64, f64)> = (0..engines)
        .map(|_| *kinds.choose(rng).expect("a choice"))
        .collect();
    let mixes = [(1.0, 0.2), (0.2, 1.0), (0.5, 0.5)];
    let mut sources = Vec::new();
    for s in 0..count {
        let alpha = rng.random_range(0.003..0.03);
        let mix = *mixes.choose(rng).expect("a choice");
        let mut arcs: Vec<Arc> = Vec::new();
        for e in 0..engines {
            if rng.random_bool(0.2) {
                continue;
            }
            let seconds = match work {
                Work::Equal => 0.01,
                Work::Separable => alpha * beta[e],
                Work::General => mix.0 * kind[e].0 + mix.1 * kind[e].1,
            };
            arcs.push(Arc {
                engine: EngineId(e),
                open: capacity[e] > 0.0,
                network_ms: f64::from(rng.random_range(0..30_u32)) * 5.0,
                service_ms: 200.0,
                seconds,
                output_tokens: 0.0,
                money_ms: 0.0,
                kv_token_s: 0.0,
                profile: ProfileId(0),
                most: None,
            });
        }
        let rate = |rng: &mut StdRng| f64::from(rng.random_range(0..5_u32)) * 12.0;
        sources.push(Source {
            frontend: FrontendId(s),
            class: ClassId(0),
            demand_rps: vec![rate(rng), rate(rng)],
            planned_rps: 0.0,
            shed_ms: vec![40_000.0, 20_000.0],
            movement_ms: 0.5,
            arcs,
            previous: None,
            fixed: None,
        });
    }
    let engine = |capacity: &f64| EngineSide {
        capacity: *capacity,
        headroom: 0.85,
        over_safe_ms: 1_000.0,
        kv_tokens: None,
        region: 0,
        max_share: None,
    };
    let mut problem = Problem {
        sources,
        engines: capacity.iter().map(engine).collect(),
        profiles: vec![flat()],
        max_step: 0.1,
        over_step_ms: 1_000.0,
        limit_ms: 60_000,
        method: Method::Lp,
        pivot_limit: 1_000_000,
        region_most: vec![None],
        over_share_ms: 5_000.0,
    };
    problem.lift_idle_sources();
    problem
}

/// Weights that stand: anything that sums to one.
fn standing(rng: &mut StdRng, problem: &mut Problem) {
    for source in &mut problem.sources {
        let raw: Vec<f64> = source
            .arcs
            .iter()
            .map(|_| f64::from(rng.random_range(0..4_u32)))
            .collect();
        let sum: f64 = raw.iter().sum();
        source.previous = (sum > 0.0).then(|| raw.iter().map(|w| w / sum).collect());
    }
}

fn by(problem: &Problem, method: Method, what: &str) -> Solution {
    let mut problem = problem.clone();
    problem.method = method;
    optimise(&problem).unwrap_or_else(|status| panic!("{what}: {status}"))
}

fn never_over(problem: &Problem, solution: &Solution, what: &str) {
    let mut load = vec![0.0; problem.engines.len()];
    for (source, shares) in problem.sources.iter().zip(&solution.shares) {
        for (arc, share) in source.arcs.iter().zip(shares) {
            load[arc.engine.0] += source.planned_rps * share * arc.seconds;
        }
    }
    for (e, (load, engine)) in load.iter().zip(&problem.engines).enumerate() {
        let most = engine.capacity * (1.0 + 1e-8);
        assert!(
            *load <= most,
            "{what}: engine {e}: {load} of {}",
            engine.capacity
        );
    }
}

fn excess(network: &Solution, lp: &Solution) -> f64 {
    (network.terms.total() - lp.terms.total()) / lp.terms.total().max(1e-9)
}

/// Both methods on random problems: one cost.
fn agree(work: Work, seed: u64, cases: usize) {
    let mut rng = StdRng::seed_from_u64(seed);
    for case in 0..cases {
        let what = format!("seed {seed}, case {case}");
        let mut problem = random(&mut rng, work);
        if case % 3 == 2 {
            standing(&mut rng, &mut problem);
        }
        // Every fifth has a source that the operator sets: load, but no choice.
        let set = if case % 5 == 4 {
            problem.sources.first_mut()
        } else {
            None
        };
        let observed = set.is_some();
        if let Some(source) = set {
            let first = source.arcs.iter().position(|a| a.open);
            let weight = |i| f64::from(u8::from(Some(i) == first));
            source.fixed = Some((0..source.arcs.len()).map(weight).collect());
        }
        let (lp, network) = (
            by(&problem, Method::Lp, &what),
            by(&problem, Method::Network, &what),
        );
        assert_eq!(
            (network.method, network.gap.to_bits()),
            (Method::Network, 0),
            "{what}"
        );
        assert_eq!(
            (network.rounds, network.separability_error.to_bits()),
            (1, 0),
            "{what}"
        );
        if !observed {
            never_over(&problem, &network, &what);
        }
        let excess = excess(&network, &lp);
        assert!(
            excess.abs() <= 1e-6,
            "{what}: {:?}, not {:?}",
            network.terms,
            lp.terms
        );
    }
}

#[test]
fn equal_work_costs_what_the_general_program_costs() {
    agree(Work::Equal, 41, 200);
}

#[test]
fn separable_work_costs_what_the_general_program_costs() {
    agree(Work::Separable, 42, 200);
}

#[test]
fn general_work_is_never_over_a_true_capacity() {
    let seed = 43;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut gaps = Vec::new();
    for case in 0..100 {
        let what = format!("seed {seed}, case {case}");
        let mut problem = random(&mut rng, Work::General);
        if case % 3 == 2 {
            standing(&mut rng, &mut problem);
        }
        if case % 2 == 1 {
            let points = [(0.0, 200.0), (0.5, 220.0), (0.8, 350.0), (1.0, 1_500.0)];
            problem.profiles[0] = profile(&points);
        }
        let network = by(&problem, Method::Network, &what);
        never_over(&problem, &network, &what);
        gaps.push((
            excess(&network, &by(&problem, Method::Lp, &what)),
            network.separability_error,
        ));
    }
    gaps.sort_by(|a, b| a.0.total_cmp(&b.0));
    let error = gaps.iter().map(|g| g.1).fold(0.0, f64::max);
    let (median, worst) = (gaps[gaps.len() / 2].0, gaps[gaps.len() - 1].0);
    println!("gap to lp: median {median:.5}, worst {worst:.5}; separability error {error:.3}");
    assert!(error > 0.05, "the work is not separable: {error}");
    assert!(median <= 0.005, "median {median}");
    assert!(worst <= 0.03, "worst {worst}");
}

#[test]
fn a_solve_at_its_pivot_limit_is_feasible_and_tells_its_gap() {
    let seed = 44;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut cut = 0;
    for case in 0..100 {
        let what = format!("seed {seed}, case {case}");
        let mut problem = random(&mut rng, Work::Equal);
        standing(&mut rng, &mut problem);
        problem.pivot_limit = 3;
        let found = by(&problem, Method::Network, &what);
        never_over(&problem, &found, &what);
        assert_eq!(by(&problem, Method::Network, &what), found, "{what}");
        cut += usize::from(found.gap > 0.0);
    }
    assert!(cut > 20, "{cut} of 100 were cut short");
}

#[test]
fn a_step_is_a_step() {
    let mut problem = random(&mut StdRng::seed_from_u64(1), Work::Equal);
    let first = problem.sources[0].arcs[0];
    let arc = |engine, network_ms| Arc {
        engine: EngineId(engine),
        open: true,
        network_ms,
        ..first
    };
    problem.sources.truncate(1);
    problem.sources[0].arcs = vec![arc(0, 10.0), arc(1, 1.0)];
    problem.sources[0].previous = Some(vec![1.0, 0.0]);
    problem.engines = vec![problem.engines[0]; 2];
    problem.engines.iter_mut().for_each(|e| e.capacity = 1.0);
    // Nearer by 9 ms: a tenth at once. Too much for one engine: as far as it must.
    for (rps, expected) in [(10.0, 0.1), (50.0, 0.1), (150.0, 1.0 / 3.0)] {
        problem.sources[0].demand_rps = vec![rps, 0.0];
        problem.engines.iter_mut().for_each(|e| e.headroom = 1.0);
        problem.lift_idle_sources();
        let found = by(&problem, Method::Network, "one source");
        let moved = found.shares[0][1];
        assert!(
            (moved - expected).abs() < 1e-7,
            "{rps}: {moved}, not {expected}"
        );
        assert_eq!(found.shed[0], [0.0, 0.0]);
    }
}

/// A problem with all rates, or all costs, times a factor.
fn scaled(base: &Problem, costs: bool, factor: f64) -> Problem {
    let mut problem = base.clone();
    let (cost, rate) = if costs { (factor, 1.0) } else { (1.0, factor) };
    problem.over_step_ms *= cost;
    problem.over_share_ms *= cost;
    for engine in &mut problem.engines {
        engine.capacity *= rate;
        engine.over_safe_ms *= cost;
    }
    for point in &mut problem.profiles[0].points {
        point.ttft_ms *= cost;
    }
    for source in &mut problem.sources {
        source.movement_ms *= cost;
        source.shed_ms.iter_mut().for_each(|p| *p *= cost);
        source.planned_rps *= rate;
        source.demand_rps.iter_mut().for_each(|d| *d *= rate);
        for arc in &mut source.arcs {
            arc.network_ms *= cost;
            arc.service_ms *= cost;
        }
    }
    problem
}

#[test]
fn a_power_of_two_in_rates_or_costs_changes_no_bit_of_a_weight() {
    let seed = 45;
    let mut rng = StdRng::seed_from_u64(seed);
    for case in 0..30 {
        let work = [Work::Equal, Work::Separable, Work::General][case % 3];
        let mut problem = random(&mut rng, work);
        standing(&mut rng, &mut problem);
        let expected = by(&problem, Method::Network, "base");
        for k in [-30, -7, 5, 30] {
            for costs in [false, true] {
                let what = format!("seed {seed}, case {case}, costs {costs}, 2^{k}");
                let other = scaled(&problem, costs, f64::from(k).exp2());
                let found = by(&other, Method::Network, &what);
                assert_eq!(found.shares, expected.shares, "{what}");
                assert_eq!(found.shed, expected.shed, "{what}");
            }
        }
    }
}

fn plan(file: &Path) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_pointsman-solver"))
        .args(["plan", &file.display().to_string(), "--json"])
        .output()
        .expect("the binary");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Numbers of `got` are those of `expected`, but for how they were found.
fn same(at: &str, got: &Value, expected: &Value) {
    match (got, expected) {
        (Value::Object(got), Value::Object(expected)) => {
            assert!(got.keys().eq(expected.keys()), "{at}");
            for (key, value) in expected {
                if !["method", "rounds"].contains(&key.as_str()) {
                    same(&format!("{at}.{key}"), &got[key], value);
                }
            }
        }
        (Value::Array(got), Value::Array(expected)) => {
            assert_eq!(got.len(), expected.len(), "{at}");
            for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
                same(&format!("{at}[{i}]"), got, expected);
            }
        }
        (Value::Number(got), Value::Number(expected)) => {
            let (got, expected) = (
                got.as_f64().expect("a number"),
                expected.as_f64().expect("a number"),
            );
            let most = 1e-6 * expected.abs().max(1.0);
            assert!(
                (got - expected).abs() <= most,
                "{at}: {got}, not {expected}"
            );
        }
        _ => assert_eq!(got, expected, "{at}"),
    }
}

#[test]
fn the_worked_examples_have_the_same_numbers() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
    let folder = tempfile::tempdir().expect("a folder");
    for name in [
        "marginal",
        "mix",
        "opportunity",
        "overload",
        "three-regions",
    ] {
        let file = data.join(format!("{name}.toml"));
        let text = std::fs::read_to_string(&file).expect("the example");
        let asked = text.replacen("[solver]\n", "[solver]\nmethod = \"lp\"\n", 1);
        assert_ne!(asked, text, "{name} has a section of the solver");
        let other = folder.path().join(format!("{name}.toml"));
        std::fs::write(&other, asked).expect("a file");
        let (got, expected) = (plan(&other), plan(&file));
        assert_eq!(
            (&got["method"], &expected["method"]),
            (&"lp".into(), &"network".into())
        );
        same(name, &got, &expected);
    }
}
