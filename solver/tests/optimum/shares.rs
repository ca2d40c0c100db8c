//! What one engine or one region is to get at most: kept at any latency worth having, given up
//! before a request is refused.

use pointsman_solver::model::problem::{EngineSide, Problem};
use pointsman_solver::model::topology::Method;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::fleet::{arc, assert_all_accounted, engine, flat, problem, settle, solved, source};

/// One source; three engines, two of them in the near region.
fn three(rps: f64) -> Problem {
    let arcs = vec![arc(0, 1.0, 0.01), arc(1, 5.0, 0.01), arc(2, 80.0, 0.01)];
    let row = source(0, 0, [rps, 0.0], arcs);
    let mut engines: Vec<EngineSide> = vec![engine(1.0); 3];
    engines[2].region = 1;
    let mut problem = problem(vec![flat()], engines, vec![row]);
    problem.region_most = vec![None, None];
    problem
}

fn shares(problem: &Problem, expected: [f64; 3], what: &str) {
    for method in [Method::Network, Method::Lp] {
        let found = solved(problem, method, what);
        for (got, expected) in found.shares[0].iter().zip(expected) {
            let close = (got - expected).abs() < 1e-5;
            assert!(close, "{what}, {}: {:?}", method.name(), found.shares);
        }
    }
}

#[test]
fn an_engine_and_a_region_get_no_more_than_their_share() {
    let mut problem = three(50.0);
    shares(&problem, [1.0, 0.0, 0.0], "no bound");
    problem.engines[0].max_share = Some(0.6);
    shares(&problem, [0.6, 0.4, 0.0], "an engine");
    problem.region_most[0] = Some(0.7);
    shares(&problem, [0.6, 0.1, 0.3], "an engine and its region");
    problem.engines[0].max_share = None;
    shares(&problem, [0.7, 0.0, 0.3], "a region");
    // Where the rest has nowhere to go, the bound yields and nobody is refused.
    problem.engines[2].capacity = 0.1;
    shares(&problem, [0.8, 0.0, 0.2], "a region whose rest has no room");
    for method in [Method::Network, Method::Lp] {
        let found = solved(&problem, method, "a region whose rest has no room");
        assert_eq!(found.shed[0], [0.0, 0.0]);
        assert!(found.over_bounds_ms > 0.0);
    }
}

#[test]
fn a_misfit_gets_more_than_it_had_before_a_small_request_is_refused() {
    // Work of a hundredth of the stated mix, and as cheap to refuse: 400 ms and 200 ms, which is
    // less than to exceed a share. The misfit has a tenth, and the other engine no room for all.
    let mut row = source(
        0,
        0,
        [500.0, 500.0],
        vec![arc(0, 1.0, 1e-4), arc(1, 5.0, 1e-4)],
    );
    row.shed_ms = vec![400.0, 200.0];
    row.arcs[0].most = Some(0.1);
    let mut small = problem(vec![flat()], vec![engine(1.0), engine(0.05)], vec![row]);
    for stands in [None, Some(vec![0.1, 0.9])] {
        small.sources[0].previous = stands;
        for method in [Method::Network, Method::Lp] {
            let found = solved(&small, method, "a misfit and a full engine");
            let name = method.name();
            assert_eq!(found.shed[0], [0.0, 0.0], "{name}");
            assert!(found.shares[0][0] >= 0.5 - 1e-6, "{name}: {found:?}");
            assert!(found.over_bounds_ms > 0.0, "{name}");
        }
    }
}

#[test]
fn weights_that_stand_come_down_to_a_share_by_steps() {
    let mut problem = three(50.0);
    problem.sources[0].previous = Some(vec![1.0, 0.0, 0.0]);
    problem.region_most[0] = Some(0.7);
    shares(&problem, [0.9, 0.0, 0.1], "the first step");
    problem.sources[0].previous = Some(vec![0.75, 0.0, 0.25]);
    shares(&problem, [0.7, 0.0, 0.3], "the last step");
    problem.region_most[0] = None;
    problem.engines[0].max_share = Some(0.5);
    problem.sources[0].previous = Some(vec![1.0, 0.0, 0.0]);
    shares(&problem, [0.9, 0.1, 0.0], "an engine's first step");
}

#[test]
fn bounded_fleets_are_near_the_general_program() {
    let seed = 171;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut gaps = Vec::new();
    for case in 0..100 {
        let what = format!("seed {seed}, case {case}");
        let mut problem = super::general::fleet(&mut rng);
        let engines = problem.engines.len();
        problem.region_most = vec![Some(0.5), Some(0.7), None];
        for e in 0..engines {
            problem.engines[e].region = e % 3;
            problem.engines[e].max_share = rng.random_bool(0.5).then_some(0.4);
        }
        let load = rng.random_range(0.3..0.8);
        let sources = problem.sources.iter_mut();
        sources
            .flat_map(|s| &mut s.demand_rps)
            .for_each(|d| *d *= load);
        settle(&mut problem);
        if case % 4 == 3 {
            super::general::standing(&mut rng, &mut problem, Method::Network);
        }
        let network = solved(&problem, Method::Network, &what);
        assert_all_accounted(&problem, &network, &what);
        super::fleet::assert_never_over(&problem, &network, &what);
        let general = solved(&problem, Method::Lp, &what);
        let of =
            |s: &pointsman_solver::model::optimise::Solution| s.terms.total() + s.over_bounds_ms;
        gaps.push((of(&network) / of(&general) - 1.0, case));
    }
    gaps.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (median, (worst, case)) = (gaps[gaps.len() / 2].0, gaps[gaps.len() - 1]);
    println!(
        "shares: gap to the general program: median {:.3} %, worst {:.3} % (seed {seed}, case \
         {case})",
        100.0 * median,
        100.0 * worst
    );
    for gap in gaps.iter().rev().take(5) {
        println!("case {}: {:.3} %", gap.1, 100.0 * gap.0);
    }
    assert!(median <= 0.005, "median {median}");
    assert!(worst <= 0.03, "worst {worst} in case {case}");
}
