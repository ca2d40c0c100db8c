//! A solve that begins with what the last one left.

use pointsman_solver::model::optimise::{Solution, Warm, optimise_from};
use pointsman_solver::model::problem::Problem;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::fleet::{assert_never_over, settle};
use super::oracle::random;

fn from(problem: &Problem, warm: Option<&Warm>, what: &str) -> (Solution, Warm) {
    let (solution, left) = optimise_from(problem, warm).unwrap_or_else(|s| panic!("{what}: {s}"));
    (solution, left.expect("the network method leaves something"))
}

fn cost(solution: &Solution) -> f64 {
    solution.terms.total() + solution.over_bounds_ms
}

#[test]
fn h12_a_warm_solve_costs_what_a_cold_one_does_while_a_fleet_drifts() {
    let seed = 181;
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut warm_pivots, mut cold_pivots) = (0, 0);
    for case in 0..20 {
        let mut problem = random(&mut rng, case % 2 == 0);
        let capacities: Vec<f64> = problem.engines.iter().map(|e| e.capacity).collect();
        let mut warm = None;
        for pass in 0..25 {
            let what = format!("seed {seed}, case {case}, pass {pass}");
            for source in &mut problem.sources {
                let drift = rng.random_range(0.95..1.05);
                source.demand_rps.iter_mut().for_each(|d| *d *= drift);
            }
            let engine = rng.random_range(0..capacities.len());
            let lost = rng.random_bool(0.1);
            problem.engines[engine].capacity = if lost { 0.0 } else { capacities[engine] };
            settle(&mut problem);
            let (found, left) = from(&problem, warm.as_ref(), &what);
            let (cold, _) = from(&problem, None, &what);
            assert_never_over(&problem, &found, &what);
            let most = 1e-9 * cost(&cold).max(1e-9);
            assert!(
                (cost(&found) - cost(&cold)).abs() <= most,
                "{what}: {} {}",
                cost(&found),
                cost(&cold)
            );
            warm_pivots += found.pivots;
            cold_pivots += cold.pivots;
            for (source, shares) in problem.sources.iter_mut().zip(&found.shares) {
                let sum: f64 = shares.iter().sum();
                source.previous = (sum > 0.0).then(|| shares.iter().map(|w| w / sum).collect());
            }
            warm = Some(left);
        }
    }
    println!("{warm_pivots} pivots warm, {cold_pivots} cold");
    assert!(
        3 * warm_pivots < 2 * cold_pivots,
        "{warm_pivots} against {cold_pivots}"
    );
}

#[test]
fn what_another_fleet_left_is_not_used() {
    let seed = 182;
    let mut rng = StdRng::seed_from_u64(seed);
    for case in 0..50 {
        let what = format!("seed {seed}, case {case}");
        let (one, other) = (random(&mut rng, true), random(&mut rng, false));
        let (_, left) = from(&one, None, &what);
        let (warm, _) = from(&other, Some(&left), &what);
        let (cold, _) = from(&other, None, &what);
        assert!(
            (cost(&warm) - cost(&cold)).abs() <= 1e-9 * cost(&cold).max(1e-9),
            "{what}"
        );
        let bytes = postcard::to_allocvec(&left).expect("bytes");
        assert_eq!(
            postcard::from_bytes::<Warm>(&bytes).expect("the same"),
            left,
            "{what}"
        );
    }
}

#[test]
fn at_the_pivot_limit_a_warm_solve_is_tried_cold_once_and_the_better_is_used() {
    let seed = 183;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut tried = 0;
    for case in 0..100 {
        let what = format!("seed {seed}, case {case}");
        let mut problem = random(&mut rng, true);
        let (_, left) = from(&problem, None, &what);
        for source in &mut problem.sources {
            source.demand_rps.reverse();
            source.demand_rps[0] *= rng.random_range(0.2..3.0);
        }
        settle(&mut problem);
        problem.pivot_limit = 2;
        let (found, _) = from(&problem, Some(&left), &what);
        assert_never_over(&problem, &found, &what);
        // What it costs more than the optimum is no more than what it tells.
        let mut free = problem.clone();
        free.pivot_limit = 1_000_000;
        let best = cost(&from(&free, None, &what).0);
        let told = found.gap * found.terms.total();
        assert!(cost(&found) - best <= told + 1e-6 * best, "{what}");
        assert_eq!(from(&problem, Some(&left), &what).0, found, "{what}");
        tried += usize::from(found.gap > 0.0 && found.pivots > problem.pivot_limit);
    }
    assert!(tried > 10, "{tried} came to the limit twice");
}
