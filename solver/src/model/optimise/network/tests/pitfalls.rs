//! What went wrong with this method elsewhere: a test for each.

use super::warm::keep;
use super::*;

/// A source that may use all engines; nothing kept, one shed cost.
fn source(demand: i64, costs: &[i64], shed: i64) -> Source {
    Source {
        demand: demand * ONE,
        costs: costs.iter().map(|c| c * ONE).collect(),
        shed: vec![rung(0, shed * ONE)],
        ..Source::default()
    }
}

fn fleet(sources: Vec<Source>, engines: Vec<Vec<Rung>>) -> Instance {
    Instance {
        groups: vec![(0..engines.len() as u32).collect()],
        sources,
        engines,
    }
}

#[test]
fn one_an_arc_without_capacity_changes_sides_once() {
    // Every rung of the cheap engine is empty and would gain; so would an empty part.
    let nothing = [0, 1, 2].map(|c| rung(0, c * ONE)).to_vec();
    let mut instance = fleet(
        vec![source(5, &[0, 50], 900)],
        vec![nothing, vec![rung(9 * ONE, ONE)]],
    );
    instance.sources[0].parts = vec![Part {
        place: 1,
        width: 0,
        cost: ONE,
    }];
    let solved = proven(&instance, None, "zero widths");
    assert_eq!(solved.load, [0, 5 * ONE]);
    assert!(solved.pivots < 10, "{} pivots", solved.pivots);
    // An engine is lost: all its rungs are there, without width.
    let mut example = super::exact::example();
    let before = proven(&example, None, "example");
    example.engines[1][0].width = 0;
    let after = proven(&example, Some(&before.basis), "lost");
    assert_eq!(after.load, [100 * ONE, 0, 100 * ONE]);
    assert_eq!(after.shed.iter().sum::<i64>(), 50 * ONE);
    assert!(after.pivots < 20, "{} pivots", after.pivots);
    let back = proven(&super::exact::example(), Some(&after.basis), "back");
    assert_eq!(back.objective, before.objective);
}

#[test]
fn two_load_beyond_the_last_breakpoint_is_graded() {
    // Two engines a little apart; beyond 60 each, load is dear.
    let flat = |far: bool| {
        vec![
            rung(60 * ONE, 200 * ONE),
            rung(40 * ONE, (900 + i64::from(far)) * ONE),
        ]
    };
    let graded = |_| {
        let step = |j: i64| rung(4 * ONE, (900 + 100 * j) * ONE);
        [rung(60 * ONE, 200 * ONE)]
            .into_iter()
            .chain((0..10).map(step))
            .collect::<Vec<_>>()
    };
    let loads = |engines: [Vec<Rung>; 2]| {
        let instance = fleet(vec![source(160, &[10, 10], 9_000)], engines.to_vec());
        proven(&instance, None, "overload").load
    };
    assert_eq!(
        loads([false, true].map(flat)),
        [100 * ONE, 60 * ONE],
        "all of the excess on one"
    );
    assert_eq!(loads([false, true].map(graded)), [80 * ONE, 80 * ONE]);
}

#[test]
fn three_headroom_bends_the_curve_and_sheds_nothing() {
    let steps = |j: i64| rung(15 * ONE / 10, (600 + 200 * j) * ONE);
    let engine: Vec<Rung> = [rung(85 * ONE, 200 * ONE)]
        .into_iter()
        .chain((0..10).map(steps))
        .collect();
    let at = |demand: i64| {
        let instance = fleet(
            vec![source(demand, &[1, 80], 40_000)],
            vec![engine.clone(); 2],
        );
        proven(&instance, None, "headroom")
    };
    // While there is room below safe, 79 ms of distance are better than load above it.
    assert_eq!(at(168).load, [85 * ONE, 83 * ONE]);
    // Between safe and hard all is served.
    let dense = at(198);
    assert_eq!(dense.shed, [0]);
    assert_eq!(at(205).shed, [5 * ONE]);
}

#[test]
fn four_near_equal_engines_do_not_flip_and_a_cap_spreads() {
    let engines = vec![vec![rung(100 * ONE, 200 * ONE)]; 2];
    let mut instance = fleet(vec![source(50, &[10, 11], 9_000)], engines);
    let before = proven(&instance, None, "before");
    assert_eq!(before.load, [50 * ONE, 0]);
    // The other one is nearer by less than half a millisecond.
    instance.sources[0].costs = vec![10 * ONE, 96 * ONE / 10];
    assert_eq!(proven(&instance, None, "flips").load, [0, 50 * ONE]);
    keep(&mut instance, &before, ONE / 2);
    assert_eq!(
        proven(&instance, Some(&before.basis), "stays").load,
        [50 * ONE, 0]
    );
    instance.sources[0].costs[1] = 94 * ONE / 10;
    assert_eq!(
        proven(&instance, Some(&before.basis), "is worth it").load,
        [0, 50 * ONE]
    );

    // A cap of 60 % spreads, and yields before anything is shed.
    let capped = |capacity: f64| {
        let way = |(engine, cost_ms)| Way { engine, cost_ms };
        let source = SourceSide {
            rps: 50.0,
            work: 1.0,
            ways: [(0, 10.0), (1, 40.0)].map(way).to_vec(),
            shed: vec![Segment {
                width: 50.0,
                slope: 40_000.0,
            }],
            most: vec![0.6; 2],
            over_share_ms: 1_000.0,
            ..SourceSide::default()
        };
        let engine = |width| EngineSide {
            work: 1.0,
            pieces: vec![Segment {
                width,
                slope: 200.0,
            }],
        };
        let statement = Statement {
            sources: vec![source],
            engines: vec![engine(100.0), engine(capacity)],
        };
        let scaled = statement.scaled().expect("valid");
        let solved = proven(&scaled.instance, None, "capped");
        let shares = scaled.shares(&solved)[0].clone();
        shares
            .into_iter()
            .map(|s| (s * 1e6).round() / 1e6)
            .collect::<Vec<_>>()
    };
    assert_eq!(capped(100.0), [0.6, 0.4]);
    assert_eq!(capped(5.0), [0.9, 0.1]);
}

#[test]
fn five_curves_that_fall_or_bend_the_wrong_way_are_put_right() {
    let slopes = |slopes: &[f64]| {
        let piece = |slope: &f64| Segment {
            width: 10.0,
            slope: *slope,
        };
        let engine = EngineSide {
            work: 1.0,
            pieces: slopes.iter().map(piece).collect(),
        };
        let shed = vec![Segment {
            width: 10.0,
            slope: 9_000.0,
        }];
        let source = SourceSide {
            rps: 10.0,
            work: 1.0,
            shed,
            ..SourceSide::default()
        };
        let statement = Statement {
            sources: vec![source],
            engines: vec![engine],
        };
        let scaled = statement.scaled().expect("valid");
        let ms = |r: &Rung| (scaled.price_ms(r.cost, 1.0) * 1e3).round() / 1e3;
        scaled.instance.engines[0]
            .iter()
            .map(ms)
            .collect::<Vec<f64>>()
    };
    assert_eq!(slopes(&[1.0, 2.0, 4.0]), [1.0, 2.0, 4.0]);
    assert_eq!(
        slopes(&[1.0, 6.0, 2.0]),
        [1.0, 4.0],
        "a dent upwards is cut off"
    );
    assert_eq!(slopes(&[3.0, -6.0, 9.0]), [1.5, 3.0], "cost never falls");
    let falls = fleet(
        vec![source(5, &[0], 9)],
        vec![vec![rung(ONE, 2), rung(ONE, 1)]],
    );
    assert!(matches!(solve(&falls, None, 1), Err(Error::Shape { .. })));
}

#[test]
fn six_every_tree_can_send_more_to_the_root() {
    let mut rng = StdRng::seed_from_u64(86);
    for case in 0..300 {
        let kind = KINDS[case % KINDS.len()];
        let mut instance = random(&mut rng, kind);
        let mut simplex = start::cold(&instance);
        sound(&simplex, "cold");
        for limit in [1, 2, 5, u64::MAX] {
            simplex.run(limit);
            sound(&simplex, "on the way");
        }
        let basis = proven(&instance, None, "cold").basis;
        for source in &mut instance.sources {
            source.demand = source.demand * rng.random_range(50..200) / 100;
        }
        let e = rng.random_range(0..instance.engines.len());
        instance.engines[e]
            .iter_mut()
            .for_each(|r| r.width /= rng.random_range(1..4));
        let mut simplex = start::warm(&instance, &basis);
        sound(&simplex, "warm");
        for limit in [1, 2, 5, u64::MAX] {
            simplex.run(limit);
            sound(&simplex, "on the way");
        }
    }
}

#[test]
fn seven_far_engines_are_priced_however_many_are_near() {
    let near = vec![vec![rung(ONE, 200 * ONE)]; 8];
    let costs: Vec<i64> = (1..9).chain([300]).collect();
    let with_far: Vec<Vec<Rung>> = near
        .iter()
        .cloned()
        .chain([vec![rung(900 * ONE, 200 * ONE)]])
        .collect();
    let all = proven(
        &fleet(vec![source(500, &costs, 40_000)], with_far),
        None,
        "all",
    );
    assert_eq!(all.load[8], 492 * ONE);
    let pruned = proven(
        &fleet(vec![source(500, &costs[..8], 40_000)], near),
        None,
        "pruned",
    );
    assert!(pruned.objective > 20 * all.objective);
}

#[test]
fn eight_tiny_demand_is_demand() {
    for rps in [1e-8, 1e-12, 1e-200] {
        let way = |(engine, cost_ms)| Way { engine, cost_ms };
        let source = SourceSide {
            rps,
            work: 1.0,
            ways: [(0, 10.0), (1, 40.0)].map(way).to_vec(),
            shed: vec![Segment {
                width: rps,
                slope: 40_000.0,
            }],
            ..SourceSide::default()
        };
        let small = SourceSide {
            rps: rps * 1e-9,
            ..source.clone()
        };
        let pieces = vec![Segment {
            width: rps * 0.75,
            slope: 200.0,
        }];
        let engine = EngineSide { work: 1.0, pieces };
        let statement = Statement {
            sources: vec![source, small],
            engines: vec![engine.clone(), engine],
        };
        let scaled = statement.scaled().expect("valid");
        let solved = proven(&scaled.instance, None, "tiny");
        assert_eq!(solved.shed, [0, 0]);
        let shares = scaled.shares(&solved);
        assert!((shares[0][0] - 0.75).abs() < 1e-8, "{rps}: {shares:?}");
        assert!((shares[1].iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }
    // An engine stands once in a group, so that nothing can be stated twice.
    let twice = Instance {
        groups: vec![vec![0, 0]],
        engines: vec![vec![]],
        ..Instance::default()
    };
    assert!(matches!(solve(&twice, None, 1), Err(Error::Shape { .. })));
}

#[test]
fn nine_nearest_first_is_not_the_optimum() {
    // Both are nearest to engine 0. The first could go elsewhere for 1 ms, the second for 90 ms.
    let costs = [vec![0, 1], vec![0, 90]];
    let engines = vec![vec![rung(10 * ONE, 200 * ONE)]; 2];
    let sources = costs.iter().map(|c| source(10, c, 9_000)).collect();
    let instance = fleet(sources, engines);
    let solved = proven(&instance, None, "crossed");
    let greedy = (200 + 200 + 90) * 10 * i128::from(ONE) * i128::from(ONE);
    assert_eq!(
        greedy - solved.objective,
        89 * 10 * i128::from(ONE) * i128::from(ONE)
    );
    let flow = |source, engine| Flow {
        source,
        engine,
        amount: 10 * ONE,
    };
    assert_eq!(solved.flows(), [flow(0, 1), flow(1, 0)]);
    // Started from the greedy answer it ends at the same.
    let basis = Basis {
        flows: vec![flow(0, 0), flow(1, 1)],
        demand: vec![10 * ONE; 2],
    };
    assert_eq!(
        proven(&instance, Some(&basis), "from greedy").flows(),
        solved.flows()
    );
}
