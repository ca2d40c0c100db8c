//! Against a general solver, and against itself.

use super::*;

#[test]
fn five_hundred_random_problems_match_the_oracle() {
    let seed = 41;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut worst: f64 = 0.0;
    for case in 0..500 {
        let kind = KINDS[case % KINDS.len()];
        let instance = random(&mut rng, kind);
        let what = format!("seed {seed}, case {case}, {kind:?}");
        let solved = proven(&instance, None, &what);
        let (got, expected) = (solved.objective as f64 / 1e12, oracle(&instance));
        let off = (got - expected).abs() / expected.abs().max(1.0);
        assert!(off <= 1e-9, "{what}: {got}, the oracle {expected}");
        worst = worst.max(off);
    }
    println!("worst relative difference from the oracle: {worst:e}");
}

#[test]
fn the_same_problem_has_the_same_answer() {
    let mut rng = StdRng::seed_from_u64(42);
    for kind in KINDS {
        let instance = random(&mut rng, kind);
        let first = proven(&instance, None, "first");
        assert_eq!(proven(&instance, None, "again"), first);
        let warm = proven(&instance, Some(&first.basis), "warm");
        assert_eq!(proven(&instance, Some(&first.basis), "warm again"), warm);
    }
}

#[test]
fn the_example_of_three_regions() {
    let example = example();
    let solved = proven(&example, None, "example");
    let flow = |source, engine, rps: i64| Flow {
        source,
        engine,
        amount: rps * ONE,
    };
    let expected = [
        flow(0, 0, 90),
        flow(1, 1, 100),
        flow(1, 2, 20),
        flow(2, 2, 40),
    ];
    assert_eq!(solved.flows(), expected);
    assert_eq!(solved.objective, 51_160 * 1_000_000_000_000);
    let prices = prices(&example, &solved);
    assert_eq!(
        prices.demand_more[1],
        235 * ONE,
        "200 ms, and 35 to make room"
    );
    assert_eq!(prices.capacity_more[1], Some(33 * ONE));
    assert_eq!(prices.detour(&example, &solved, 0, 0), Some(0));
    assert_eq!(solved.filled(&example, 2), [60 * ONE]);
}

/// A, B and C ask for 90, 120 and 40 requests per second; each one's engine takes 100.
pub(super) fn example() -> Instance {
    let rtt = [[2, 60, 95], [60, 2, 35], [95, 35, 2]];
    let source = |(demand, costs): (i64, [i64; 3])| Source {
        demand: demand * ONE,
        costs: costs.map(|c| c * ONE).to_vec(),
        shed: vec![rung(0, 40_000 * ONE)],
        ..Source::default()
    };
    let engine = |capacity: i64| vec![rung(capacity * ONE, 200 * ONE)];
    Instance {
        groups: vec![vec![0, 1, 2]],
        sources: [90, 120, 40].into_iter().zip(rtt).map(source).collect(),
        engines: [100, 100, 100].map(engine).to_vec(),
    }
}

#[test]
fn empty_problems_are_solved() {
    let solved = proven(&Instance::default(), None, "nothing");
    assert_eq!((solved.objective, solved.pivots), (0, 0));
    let engines = Instance {
        engines: vec![vec![], vec![rung(ONE, ONE)]],
        ..Instance::default()
    };
    assert_eq!(proven(&engines, None, "no source").load, [0, 0]);
    let shed = vec![rung(0, 5)];
    let alone = Source {
        demand: 7,
        shed,
        ..Source::default()
    };
    let no_engine = Instance {
        groups: vec![vec![]],
        sources: vec![alone],
        ..Instance::default()
    };
    let solved = proven(&no_engine, None, "no engine");
    assert_eq!((solved.objective, solved.shed), (35, vec![7]));
}

#[test]
fn what_is_out_of_range_is_named() {
    let error = |change: fn(&mut Instance)| {
        let mut instance = example();
        change(&mut instance);
        solve(&instance, None, 10).expect_err("refused").to_string()
    };
    assert_eq!(
        error(|i| i.sources[1].demand = -1),
        "range: source 1: demand -1, not from 0 to 1152921504606846976"
    );
    assert_eq!(
        error(|i| i.sources[0].shed[0].cost = 1 << 60),
        "range: the dearest cost: 1152921504606846976, not from 0 to 10293942005418276"
    );
    assert_eq!(
        error(|i| i.engines[2].push(rung(1, 1))),
        "shape: engine 2: costs fall, and would be filled out of order"
    );
    assert_eq!(
        error(|i| i.groups[0].swap(0, 1)),
        "shape: group 0: engines do not rise"
    );
    assert_eq!(
        error(|i| i.sources[2].shed.clear()),
        "shape: source 2: no cost of refusing"
    );
    assert_eq!(
        error(|i| i.sources[2].parts.push(Part {
            place: 0,
            width: 1,
            cost: 96 * ONE
        })),
        "shape: source 2: parts of ways are out of order"
    );
}

#[test]
fn a_false_answer_is_found_out() {
    let example = example();
    let good = proven(&example, None, "example");
    let found = |change: fn(&mut Solved)| {
        let mut bad = good.clone();
        change(&mut bad);
        check_optimal(&example, &bad)
            .expect_err("found out")
            .to_string()
    };
    assert!(found(|s| s.basis.flows[0].amount -= 1).contains("routed and refused"));
    assert!(found(|s| s.objective += 1).contains("against the cost of its flows"));
    assert!(found(|s| s.potentials[4] += 1).contains("lower bound"));
    assert!(found(|s| s.potentials[0] += 1).contains("a unit more gains"));
    assert!(found(|s| s.load[1] += 1).contains("load"));
    // All of it feasible, but worse: C's requests go to A, which has room for ten.
    let worse = found(|s| {
        s.basis.flows.insert(
            2,
            Flow {
                source: 2,
                engine: 0,
                amount: 10 * ONE,
            },
        );
        s.basis.flows[4].amount -= 10 * ONE;
        (s.load[0], s.load[2]) = (100 * ONE, 50 * ONE);
        s.objective += (95 - 2) * i128::from(10 * ONE) * i128::from(ONE);
    });
    assert!(worse.contains("objective"), "{worse}");
}

#[test]
fn at_the_pivot_limit_the_answer_is_feasible_and_its_gap_true() {
    let mut rng = StdRng::seed_from_u64(43);
    let mut stopped = 0;
    for case in 0..120 {
        let instance = random(&mut rng, KINDS[case % KINDS.len()]);
        let best = proven(&instance, None, "best");
        let basis = (case % 2 == 1).then_some(&best.basis);
        for limit in 0..best.pivots.min(6) {
            let solved = solve(&instance, basis, limit).expect("valid");
            check_optimal(&instance, &solved).unwrap_or_else(|v| panic!("case {case}: {v}"));
            assert!(solved.pivots <= limit);
            if let Status::PivotLimit { gap } = solved.status {
                assert!(
                    solved.objective - gap <= best.objective,
                    "case {case}: the gap is a bound"
                );
                assert!(best.objective <= solved.objective);
                stopped += 1;
            }
            assert_eq!(
                solve(&instance, basis, limit),
                Ok(solved),
                "the limit is no clock"
            );
        }
    }
    assert!(stopped > 100, "{stopped}");
}
