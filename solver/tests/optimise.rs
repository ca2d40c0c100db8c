//! The optimiser on problems that general solvers got wrong, and on random ones.

use pointsman_solver::model::optimise::{Solution, Status, evaluate, optimise};
use pointsman_solver::model::problem::{Arc, EngineSide, Problem, Source};
use pointsman_solver::model::topology::{
    ClassId, EngineId, FrontendId, Method, Point, Profile, ProfileId,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Engine, network_ms and seconds of each arc.
type Arcs = Vec<(usize, f64, f64)>;

/// A source: demand by priority, and (engine, network_ms, seconds) of each arc.
struct Row<'a>(&'a [f64], &'a [(usize, f64, f64)]);

fn problem(capacities: &[f64], rows: &[Row<'_>]) -> Problem {
    let engine = |capacity: &f64| EngineSide {
        capacity: *capacity,
        headroom: 1.0,
        over_safe_ms: 1_000.0,
        kv_tokens: None,
        region: 0,
        max_share: None,
    };
    let source = |(s, row): (usize, &Row<'_>)| Source {
        frontend: FrontendId(s),
        class: ClassId(0),
        demand_rps: row.0.to_vec(),
        planned_rps: 0.0,
        shed_ms: [40_000.0, 20_000.0, 10_000.0][..row.0.len()].to_vec(),
        movement_ms: 0.5,
        arcs: row
            .1
            .iter()
            .map(|&(engine, network_ms, seconds)| Arc {
                engine: EngineId(engine),
                open: capacities[engine] > 0.0,
                network_ms,
                service_ms: 200.0,
                seconds,
                output_tokens: 0.0,
                money_ms: 0.0,
                kv_token_s: 0.0,
                profile: ProfileId(0),
                most: None,
            })
            .collect(),
        previous: None,
        fixed: None,
    };
    let point = |utilisation| Point {
        utilisation,
        ttft_ms: 200.0,
        tbot_ms: 0.0,
    };
    let flat = Profile {
        name: "flat".into(),
        assumed: false,
        points: vec![point(0.0), point(1.0)],
    };
    let mut problem = Problem {
        sources: rows.iter().enumerate().map(source).collect(),
        engines: capacities.iter().map(engine).collect(),
        profiles: vec![flat],
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

/// Latency at full load a multiple of that at idle.
fn curved(mut problem: Problem) -> Problem {
    let point = |utilisation, ttft_ms| Point {
        utilisation,
        ttft_ms,
        tbot_ms: 0.0,
    };
    problem.profiles[0].points = vec![
        point(0.0, 200.0),
        point(0.5, 220.0),
        point(0.8, 350.0),
        point(1.0, 1_500.0),
    ];
    problem
}

fn solved(problem: &Problem) -> Solution {
    optimise(problem).expect("an optimum")
}

fn assert_close(what: &str, got: f64, expected: f64, tolerance: f64) {
    assert!(
        (got - expected).abs() <= tolerance,
        "{what}: {got}, not {expected}"
    );
}

/// A fleet with ties, zeros and more or less demand than capacity.
fn random(rng: &mut StdRng) -> Problem {
    let engines = rng.random_range(1..6_usize);
    let capacities: Vec<f64> = (0..engines)
        .map(|_| [0.0, 0.5, 1.0, 1.0, 2.0][rng.random_range(0..5_usize)])
        .collect();
    let count = rng.random_range(1..6_usize);
    let rows: Vec<(Vec<f64>, Arcs)> = (0..count)
        .map(|_| {
            let demand = (0..2)
                .map(|_| f64::from(rng.random_range(0..5_u32)) * 10.0)
                .collect();
            let arc = |e| (e, f64::from(rng.random_range(0..6_u32)) * 10.0, 0.01);
            (demand, (0..engines).map(arc).collect())
        })
        .collect();
    let rows: Vec<Row<'_>> = rows.iter().map(|(d, a)| Row(d, a)).collect();
    problem(&capacities, &rows)
}

fn assert_sound(problem: &Problem, solution: &Solution) {
    for (s, source) in problem.sources.iter().enumerate() {
        let all = solution.shares[s].iter().chain(&solution.shed[s]);
        assert!(
            all.clone().all(|v| *v >= 0.0 && v.is_sign_positive()),
            "{all:?}"
        );
        if source.has_open_arc() {
            assert_close("routed and refused", all.sum(), 1.0, 1e-9);
        }
    }
    for (e, engine) in problem.engines.iter().enumerate() {
        assert!(
            solution.utilisation[e] <= 1.0 + 1e-9,
            "engine {e}: {}",
            solution.utilisation[e]
        );
        assert!(engine.capacity > 0.0 || solution.utilisation[e] == 0.0);
    }
    assert!(solution.terms.total().is_finite());
}

#[test]
fn h01_a_coefficient_out_of_range_is_refused_by_name() {
    let wide = problem(&[1e-7], &[Row(&[10.0], &[(0, 1.0, 0.1)])]);
    assert_eq!(
        optimise(&wide),
        Err(Status::Refused {
            reason: "range: frontend 0, class 0 would fill engine 0 1.000e7 times over; at most \
                     1e6 can be planned"
                .into()
        })
    );
    // Six orders of magnitude between two sources of one engine are solved.
    let narrow = problem(
        &[1.0],
        &[
            Row(&[50.0], &[(0, 1.0, 0.01)]),
            Row(&[5e-5], &[(0, 1.0, 0.01)]),
        ],
    );
    let solution = solved(&narrow);
    assert_close("large", solution.shares[0][0], 1.0, 1e-9);
    assert_close("small", solution.shares[1][0], 1.0, 1e-9);
}

#[test]
fn h02_scale_of_costs_or_rates_changes_no_weight() {
    let mut rng = StdRng::seed_from_u64(2);
    for case in 0..20 {
        let base = curved(random(&mut rng));
        let expected = solved(&base);
        for k in [-30, -7, 5, 30] {
            let factor = f64::from(k).exp2();
            let mut costs = base.clone();
            costs.over_step_ms *= factor;
            costs
                .engines
                .iter_mut()
                .for_each(|e| e.over_safe_ms *= factor);
            for point in &mut costs.profiles[0].points {
                point.ttft_ms *= factor;
            }
            let mut rates = base.clone();
            for engine in &mut rates.engines {
                engine.capacity *= factor;
                engine.over_safe_ms /= factor;
            }
            for (cost, rate) in costs.sources.iter_mut().zip(&mut rates.sources) {
                cost.movement_ms *= factor;
                cost.shed_ms.iter_mut().for_each(|p| *p *= factor);
                for arc in &mut cost.arcs {
                    arc.network_ms *= factor;
                    arc.service_ms *= factor;
                }
                rate.planned_rps *= factor;
                rate.demand_rps.iter_mut().for_each(|d| *d *= factor);
            }
            for (kind, other) in [("costs", costs), ("rates", rates)] {
                let got = solved(&other);
                let pairs = expected
                    .shares
                    .iter()
                    .flatten()
                    .zip(got.shares.iter().flatten());
                for (a, b) in pairs {
                    assert_close(&format!("case {case}, {kind} x 2^{k}"), *b, *a, 1e-9);
                }
            }
        }
    }
}

#[test]
fn h04_a_vast_capacity_is_no_infinity() {
    for k in [40, 50, 60] {
        let vast = f64::from(k).exp2();
        let row = [Row(&[100.0], &[(0, 30.0, 0.01), (1, 1.0, 0.01)])];
        let solution = solved(&problem(&[vast, 0.5], &row));
        assert_close("vast", solution.shares[0][0], 0.5, 1e-9);
        assert_close("near", solution.shares[0][1], 0.5, 1e-9);
    }
}

#[test]
fn h06_nan_is_refused_with_its_name() {
    let good = problem(&[1.0], &[Row(&[10.0], &[(0, 1.0, 0.01)])]);
    let refused = |change: fn(&mut Problem)| {
        let mut bad = good.clone();
        change(&mut bad);
        match optimise(&bad) {
            Err(Status::Refused { reason }) => reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        refused(|p| p.sources[0].arcs[0].network_ms = f64::NAN),
        "frontend 0, class 0, engine 0: network_ms = NaN"
    );
    assert_eq!(
        refused(|p| p.sources[0].arcs[0].seconds = f64::INFINITY),
        "frontend 0, class 0, engine 0: seconds = inf"
    );
    assert_eq!(
        refused(|p| p.sources[0].demand_rps[0] = f64::INFINITY),
        "frontend 0, class 0: demand_rps = inf"
    );
    assert_eq!(
        refused(|p| p.engines[0].capacity = f64::NAN),
        "engine 0: capacity = NaN"
    );
    assert_eq!(
        refused(|p| p.profiles[0].points[1].ttft_ms = f64::NAN),
        "profile 0 \"flat\": NaN"
    );
}

#[test]
fn h07_h08_every_problem_is_feasible_and_bounded() {
    let seed = 7;
    let mut rng = StdRng::seed_from_u64(seed);
    for case in 0..300 {
        let mut problem = random(&mut rng);
        if case % 2 == 1 {
            problem = curved(problem);
        }
        if case % 3 == 2 {
            for source in &mut problem.sources {
                let n = source.arcs.len() as f64;
                source.previous = Some(vec![1.0 / n; source.arcs.len()]);
            }
        }
        let solution = optimise(&problem);
        let solution = solution.unwrap_or_else(|s| panic!("seed {seed}, case {case}: {s}"));
        assert_sound(&problem, &solution);
    }
}

#[test]
fn h08_overload_by_almost_nothing_is_shed_and_no_status() {
    for (over, expected) in [(1e-3, 1e-3), (1e-7, 1e-7), (0.0, 0.0)] {
        let rows = [Row(&[200.0 + over], &[(0, 1.0, 0.01), (1, 1.0, 0.01)])];
        let problem = problem(&[1.0, 1.0], &rows);
        let solution = solved(&problem);
        assert_sound(&problem, &solution);
        let shed: f64 = solution.shed[0].iter().sum::<f64>() * (200.0 + over);
        assert_close("shed", shed, expected, 2e-7);
    }
}

#[test]
fn h09_rounding_in_what_stands_does_no_harm() {
    let mut problem = problem(
        &[1.0, 1.0],
        &[Row(&[50.0], &[(0, 1.0, 0.01), (1, 20.0, 0.01)])],
    );
    for previous in [
        [1.0 + 1e-12, 0.0],
        [1.0 - 1e-16, 1e-16],
        [0.0, 1.0],
        [1e-300, 1.0],
    ] {
        problem.sources[0].previous = Some(previous.to_vec());
        assert_sound(&problem, &solved(&problem));
    }
}

#[test]
fn h11_empty_and_vanishing_parts() {
    assert_eq!(solved(&problem(&[], &[])).shares, Vec::<Vec<f64>>::new());
    assert_eq!(solved(&problem(&[1.0], &[])).utilisation, [0.0]);
    // No engine is allowed; the engine has no capacity; there is no demand.
    let rows = [
        Row(&[10.0], &[]),
        Row(&[10.0], &[(0, 1.0, 0.01)]),
        Row(&[0.0], &[(1, 1.0, 0.01), (0, 1.0, 0.01)]),
    ];
    let solution = solved(&problem(&[0.0, 1.0], &rows));
    assert_eq!(solution.shed, [[1.0], [1.0], [0.0]]);
    assert_eq!(solution.shares, [vec![], vec![0.0], vec![1.0, 0.0]]);
    // The same engine twice in one source.
    let twice = [Row(&[10.0], &[(0, 2.0, 0.01), (0, 1.0, 0.01)])];
    assert_eq!(solved(&problem(&[1.0], &twice)).shares, [[0.0, 1.0]]);
}

#[test]
fn h12_a_solve_leaves_nothing_behind() {
    let mut rng = StdRng::seed_from_u64(12);
    let problems: Vec<Problem> = (0..50).map(|_| curved(random(&mut rng))).collect();
    let first: Vec<Solution> = problems.iter().map(solved).collect();
    for (problem, first) in problems.iter().zip(&first).rev() {
        assert_eq!(
            &solved(problem),
            first,
            "the same bytes, whatever was solved between"
        );
    }
}

#[test]
fn h14_a_bad_scale_ends_at_the_same_corner() {
    let rows = [Row(&[1e8], &[(0, 10.0, 1e-8), (1, 1.0, 1e-8)])];
    let solution = solved(&problem(&[1.0, 0.25], &rows));
    assert_close("far", solution.shares[0][0], 0.75, 1e-9);
    assert_close("near", solution.shares[0][1], 0.25, 1e-9);
}

#[test]
fn no_small_exchange_improves_an_optimum() {
    let seed = 21;
    let mut rng = StdRng::seed_from_u64(seed);
    for case in 0..200 {
        let problem = random(&mut rng);
        let solution = solved(&problem);
        let cost = |shares: &[Vec<f64>]| {
            let (terms, load) = evaluate(&problem, shares, &solution.shed, solution.shed_factor);
            let fits = load.iter().all(|u| *u <= 1.0 + 1e-12);
            if fits { terms.total() } else { f64::INFINITY }
        };
        let best = cost(&solution.shares).min(solution.terms.total());
        let moved = |shares: &mut Vec<Vec<f64>>, s: usize, from: usize, to: usize, rps: f64| {
            let demand = problem.sources[s].demand();
            let part = (rps / demand.max(1e-9)).min(shares[s][from]);
            let open = problem.sources[s].arcs[to].open && demand > 0.0;
            shares[s][from] -= if open { part } else { 0.0 };
            shares[s][to] += if open { part } else { 0.0 };
        };
        let engines = problem.engines.len();
        for (a, b) in pairs(problem.sources.len()) {
            for (from, to) in pairs(engines) {
                let mut one = solution.shares.clone();
                moved(&mut one, a, from, to, 1.0);
                assert!(
                    cost(&one) >= best - 1e-6,
                    "seed {seed}, case {case}: one move"
                );
                moved(&mut one, b, to, from, 1.0);
                assert!(
                    cost(&one) >= best - 1e-6,
                    "seed {seed}, case {case}: an exchange"
                );
            }
        }
    }
}

fn pairs(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).flat_map(move |a| (0..n).map(move |b| (a, b)))
}

#[test]
fn movement_is_worth_its_price() {
    // 0.4 ms nearer is not worth 0.5 ms of movement, 0.6 ms is; by at most a tenth at once.
    for (nearer, expected) in [(0.4, 0.0), (0.6, 0.1)] {
        let rows = [Row(&[10.0], &[(0, 10.0, 0.01), (1, 10.0 - nearer, 0.01)])];
        let mut problem = problem(&[1.0, 1.0], &rows);
        problem.sources[0].previous = Some(vec![1.0, 0.0]);
        let solution = solved(&problem);
        assert_close("moved", solution.shares[0][1], expected, 1e-9);
        assert_close(
            "price",
            solution.terms.movement,
            0.5 * 10.0 * expected,
            1e-6,
        );
    }
}

#[test]
fn a_step_never_forces_shedding() {
    let rows = [Row(&[150.0], &[(0, 1.0, 0.01), (1, 30.0, 0.01)])];
    let mut problem = problem(&[1.0, 1.0], &rows);
    problem.sources[0].previous = Some(vec![1.0, 0.0]);
    let solution = solved(&problem);
    assert_eq!(solution.shed[0], [0.0]);
    assert_close("at the far engine", solution.shares[0][1], 1.0 / 3.0, 1e-9);
}

#[test]
fn beyond_safe_capacity_costs_and_only_hard_capacity_sheds() {
    let rows = |rps| [rps, 0.0, 0.0].map(|r: f64| [r]);
    let case = |demand: f64| {
        let demands = rows(demand);
        let list = [Row(&demands[0], &[(0, 1.0, 0.01), (1, 101.0, 0.01)])];
        let mut problem = problem(&[1.0, 1.0], &list);
        for engine in &mut problem.engines {
            engine.headroom = 0.8;
            // 1,000 ms a request at hard capacity.
            engine.over_safe_ms = 1_000.0 * 100.0;
        }
        solved(&problem)
    };
    // Up to safe all stays near; the first step beyond costs 100 ms, as much as the distance.
    assert_close("near", case(80.0).utilisation[0], 0.8, 1e-9);
    assert_close("near", case(90.0).utilisation[0], 0.82, 0.02 + 1e-9);
    assert_close("far", case(150.0).utilisation[1], 0.7, 0.02 + 1e-9);
    // Between safe and hard the excess spreads over both; nothing is shed up to the last.
    let both = case(190.0);
    assert_close("near", both.utilisation[0], 0.96, 0.02 + 1e-9);
    assert_eq!(both.shed[0], [0.0]);
    assert_close("all", case(200.0).shed[0][0], 0.0, 1e-9);
    assert_close("beyond", case(250.0).shed[0][0], 0.2, 1e-9);
}

#[test]
fn a_priority_is_shed_before_the_next_higher_whatever_its_work() {
    let rows = [
        Row(&[5.0, 0.0], &[(0, 1.0, 0.1)]),
        Row(&[0.0, 80.0], &[(0, 1.0, 0.01)]),
    ];
    let mut problem = problem(&[1.0], &rows);
    // As a topology prices them: by work.
    problem.sources[0]
        .shed_ms
        .iter_mut()
        .for_each(|p| *p *= 10.0);
    let solution = solved(&problem);
    assert_eq!(solution.shed[0], [0.0, 0.0]);
    assert_close("low", solution.shed[1][1] * 80.0, 30.0, 1e-6);
}

#[test]
fn shedding_spreads_over_frontends() {
    let rows = [
        Row(&[100.0], &[(0, 1.0, 0.01)]),
        Row(&[100.0], &[(0, 90.0, 0.01)]),
    ];
    let solution = solved(&problem(&[1.6], &rows));
    assert_close("near", solution.shed[0][0], 0.2, 1e-9);
    assert_close("far", solution.shed[1][0], 0.2, 1e-9);
}

#[test]
fn shedding_is_the_last_resort_even_where_it_is_priced_low() {
    let rows = [Row(&[100.0], &[(0, 30_000.0, 0.01)])];
    let mut problem = curved(problem(&[1.0], &rows));
    problem.sources[0].shed_ms = vec![10.0];
    let solution = solved(&problem);
    assert_eq!(solution.shed[0], [0.0]);
    assert!(solution.shed_factor > 3_000.0);
}

#[test]
fn unlike_requests_at_one_engine_pay_for_what_they_bring() {
    // Two kinds of request of equal work; the second has many tokens, each slowed by load.
    let rows = [
        Row(&[40.0], &[(0, 0.0, 0.01), (1, 30.0, 0.01)]),
        Row(&[40.0], &[(0, 0.0, 0.01), (1, 30.0, 0.01)]),
    ];
    let mut problem = problem(&[1.0, 1.0], &rows);
    let point = |utilisation, tbot_ms| Point {
        utilisation,
        ttft_ms: 200.0,
        tbot_ms,
    };
    problem.profiles[0].points = vec![point(0.0, 10.0), point(1.0, 11.0)];
    problem.sources[0]
        .arcs
        .iter_mut()
        .for_each(|a| a.output_tokens = 1.0);
    problem.sources[1]
        .arcs
        .iter_mut()
        .for_each(|a| a.output_tokens = 100.0);
    let solution = solved(&problem);
    assert_eq!(solution.rounds, 3);
    // The few-token requests have little to lose at a loaded engine, so the others travel.
    assert!(
        solution.shares[1][1] > solution.shares[0][1] + 0.3,
        "{:?}",
        solution.shares
    );
    let together = |far: f64| vec![vec![1.0 - far, far], vec![1.0 - far, far]];
    for far in [0.0, 0.1, 0.2, 0.3, 0.4, 0.5] {
        let (terms, _) = evaluate(&problem, &together(far), &solution.shed, 1.0);
        assert!(
            solution.terms.total() <= terms.total() + 1e-6,
            "all alike, {far} far"
        );
    }
}
