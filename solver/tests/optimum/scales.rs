//! What only has another unit has the same answer, bit by bit.

use pointsman_solver::model::problem::Problem;
use pointsman_solver::model::topology::Method;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::fleet::{profile, solved};
use super::general;
use super::oracle::random;

/// All rates times a factor: demand and what engines can do.
fn rates(base: &Problem, factor: f64) -> Problem {
    let mut problem = base.clone();
    problem
        .engines
        .iter_mut()
        .for_each(|e| e.capacity *= factor);
    for source in &mut problem.sources {
        source.planned_rps *= factor;
        source.demand_rps.iter_mut().for_each(|d| *d *= factor);
    }
    problem
}

/// All costs times a factor: distance, latency, movement, refusing, load beyond safe.
fn costs(base: &Problem, factor: f64) -> Problem {
    let mut problem = base.clone();
    problem.over_step_ms *= factor;
    problem
        .engines
        .iter_mut()
        .for_each(|e| e.over_safe_ms *= factor);
    for point in problem.profiles.iter_mut().flat_map(|p| &mut p.points) {
        point.ttft_ms *= factor;
        point.tbot_ms *= factor;
    }
    for source in &mut problem.sources {
        source.movement_ms *= factor;
        source.shed_ms.iter_mut().for_each(|p| *p *= factor);
        for arc in &mut source.arcs {
            arc.network_ms *= factor;
            arc.service_ms *= factor;
        }
    }
    problem
}

#[test]
fn h02_rates_or_costs_times_a_power_of_two_change_no_bit_of_a_weight() {
    let seed = 145;
    let mut rng = StdRng::seed_from_u64(seed);
    for case in 0..40 {
        let mut problem = match case % 4 {
            0 => random(&mut rng, true),
            1 => random(&mut rng, false),
            _ => general::fleet(&mut rng),
        };
        if case % 3 == 0 {
            let points = [(0.0, 200.0, 10.0), (0.6, 260.0, 12.0), (1.0, 1_500.0, 40.0)];
            problem.profiles = vec![profile(&points)];
        }
        let expected = solved(&problem, Method::Network, "base");
        for k in -30..=30 {
            let factor = f64::from(k).exp2();
            for (kind, other) in [
                ("rates", rates(&problem, factor)),
                ("costs", costs(&problem, factor)),
            ] {
                let what = format!("seed {seed}, case {case}, {kind} x 2^{k}");
                let found = solved(&other, Method::Network, &what);
                assert_eq!(found.shares, expected.shares, "{what}");
                assert_eq!(found.shed, expected.shed, "{what}");
                let (cost, of) = (found.terms.total(), expected.terms.total());
                assert_eq!(cost.to_bits(), (of * factor).to_bits(), "{what}");
            }
        }
    }
}
