//! What only has another unit has the same answer, bit by bit.

use pointsman_solver::model::optimise::Solution;
use pointsman_solver::model::problem::Problem;
use pointsman_solver::model::topology::Method;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::fleet::{profile, solved};
use super::general;
use super::memory::with_memory;
use super::oracle::random;

/// All rates times a factor: demand, what engines can do and what they can hold.
fn rates(base: &Problem, factor: f64) -> Problem {
    let mut problem = base.clone();
    problem.engines.iter_mut().for_each(|e| {
        e.capacity *= factor;
        e.kv_tokens = e.kv_tokens.map(|tokens| tokens * factor);
    });
    for source in &mut problem.sources {
        source.planned_rps *= factor;
        source.demand_rps.iter_mut().for_each(|d| *d *= factor);
    }
    problem
}

/// All costs times a factor: distance, latency, money, movement, refusing, load beyond safe, and
/// what bounds on steps and shares yield to.
fn costs(base: &Problem, factor: f64) -> Problem {
    let mut problem = base.clone();
    problem.over_step_ms *= factor;
    problem.over_share_ms *= factor;
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
            arc.money_ms *= factor;
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
        let what = format!("seed {seed}, case {case}");
        same_answers(&problem, -30..=30, &what);
    }
}

#[test]
fn memory_money_and_shares_scale_with_the_rest() {
    let seed = 146;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut bound = 0;
    for case in 0..6 {
        let what = format!("seed {seed}, case {case}");
        let mut problem = general::fleet(&mut rng);
        with_memory(&mut rng, &mut problem);
        if case % 2 == 1 {
            problem.region_most = vec![Some(0.5), None];
            for e in 0..problem.engines.len() {
                problem.engines[e].region = e % 2;
                problem.engines[e].max_share = rng.random_bool(0.5).then_some(0.4);
            }
        }
        let arcs = problem.sources.iter_mut().flat_map(|s| &mut s.arcs);
        arcs.for_each(|a| a.money_ms = rng.random_range(0.0..40.0));
        let found = same_answers(&problem, [-30, -7, -1, 1, 8, 30].into_iter(), &what);
        assert!(found.terms.money > 0.0, "{what}");
        let full = |held: &Option<f64>| held.is_some_and(|held| held > 0.99);
        bound += usize::from(found.kv_utilisation.iter().any(full));
    }
    assert!(bound >= 3, "memory binds in {bound} of 6 fleets");
}

/// Rates and costs times powers of two: the same bits in every share, and a cost as many times.
fn same_answers(problem: &Problem, powers: impl Iterator<Item = i32>, what: &str) -> Solution {
    let expected = solved(problem, Method::Network, what);
    for k in powers {
        let factor = f64::from(k).exp2();
        for (kind, other) in [
            ("rates", rates(problem, factor)),
            ("costs", costs(problem, factor)),
        ] {
            let what = format!("{what}, {kind} x 2^{k}");
            let found = solved(&other, Method::Network, &what);
            assert_eq!(found.shares, expected.shares, "{what}");
            assert_eq!(found.shed, expected.shed, "{what}");
            let (cost, of) = (found.terms.total(), expected.terms.total());
            assert_eq!(cost.to_bits(), (of * factor).to_bits(), "{what}");
        }
    }
    expected
}
