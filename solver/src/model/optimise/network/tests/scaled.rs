//! Statements in milliseconds and rates: against a general solver, and at every scale.

use super::*;

/// A fleet in floats. With `equal` work, work is one everywhere.
fn statement(rng: &mut StdRng, equal: bool) -> Statement {
    let engines = rng.random_range(1..6_usize);
    let work = |rng: &mut StdRng| {
        if equal {
            1.0
        } else {
            rng.random_range(0.2..5.0)
        }
    };
    let side = |rng: &mut StdRng| {
        let mut slopes: Vec<f64> = (0..rng.random_range(0..5))
            .map(|_| rng.random_range(0.0..900.0))
            .collect();
        slopes.sort_by(f64::total_cmp);
        let piece = |slope| Segment {
            width: rng.random_range(0.0..60.0),
            slope,
        };
        EngineSide {
            pieces: slopes.into_iter().map(piece).collect(),
            work: work(rng),
        }
    };
    let sides: Vec<EngineSide> = (0..engines).map(|_| side(rng)).collect();
    let source = |rng: &mut StdRng| {
        let chosen: Vec<u32> = (0..engines as u32)
            .filter(|_| rng.random_bool(0.8))
            .collect();
        let way = |engine| Way {
            engine,
            cost_ms: rng.random_range(0.0..300.0),
        };
        let ways: Vec<Way> = chosen.into_iter().map(way).collect();
        let rps = [0.0, 10.0, rng.random_range(0.0..80.0)][rng.random_range(0..3_usize)];
        let weights: Vec<f64> = ways.iter().map(|_| rng.random_range(0.0..1.0)).collect();
        let sum: f64 = weights.iter().sum();
        let previous = weights.iter().map(|w| w / sum).collect();
        let shed = [40_000.0, 20_000.0].map(|slope| Segment {
            width: rps / 2.0,
            slope,
        });
        SourceSide {
            rps,
            work: work(rng),
            shed: shed.to_vec(),
            previous: rng.random_bool(0.5).then_some(previous),
            movement_ms: rng.random_range(0.0..5.0),
            most: match rng.random_bool(0.3) {
                true => vec![0.6; ways.len()],
                false => Vec::new(),
            },
            over_share_ms: 1_000.0,
            ways,
        }
    };
    Statement {
        sources: (0..rng.random_range(1..7)).map(|_| source(rng)).collect(),
        engines: sides,
    }
}

/// The optimum of a statement by a general solver in its own units: requests, not work.
fn float_oracle(statement: &Statement) -> f64 {
    let mut program = Program::new(OptimizationDirection::Minimize);
    let mut rows: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); statement.engines.len()];
    let mut offset = 0.0;
    for side in statement.sources.iter().filter(|s| s.rps > 0.0) {
        let half = if side.previous.is_some() {
            side.movement_ms / 2.0
        } else {
            0.0
        };
        let mut row = Vec::new();
        for piece in &side.shed {
            row.push((program.add_var(piece.slope, (0.0, piece.width)), 1.0));
        }
        let most = side.most.first().copied().unwrap_or(1.0) * side.rps;
        for (i, way) in side.ways.iter().enumerate() {
            let stands = side.previous.as_ref().map_or(0.0, |p| p[i]) * side.rps;
            offset += half * stands;
            let kept = stands.min(most);
            let over = match side.most.is_empty() {
                true => 0.0,
                false => side.over_share_ms,
            };
            let costs = [
                way.cost_ms - half,
                way.cost_ms + half,
                way.cost_ms + half + over,
            ];
            let widths = [kept, most - kept, side.rps];
            for (cost, width) in costs.into_iter().zip(widths) {
                let variable = program.add_var(cost, (0.0, width));
                row.push((variable, 1.0));
                let work = side.work * statement.engines[way.engine as usize].work;
                rows[way.engine as usize].push((variable, work));
            }
        }
        program.add_constraint(&row, ComparisonOp::Eq, side.rps);
    }
    for (side, mut row) in statement.engines.iter().zip(rows) {
        if row.is_empty() {
            continue;
        }
        for piece in &side.pieces {
            row.push((program.add_var(piece.slope, (0.0, piece.width)), -1.0));
        }
        program.add_constraint(&row, ComparisonOp::Eq, 0.0);
    }
    optimum(program) + offset
}

#[test]
fn five_hundred_statements_of_each_kind_match_the_oracle() {
    let seed = 71;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut worst = [0.0_f64; 2];
    for case in 0..1_000 {
        let equal = case % 2 == 0;
        let statement = statement(&mut rng, equal);
        let what = format!("seed {seed}, case {case}");
        let scaled = statement.scaled().unwrap_or_else(|e| panic!("{what}: {e}"));
        let solved = proven(&scaled.instance, None, &what);
        let (got, expected) = (scaled.objective_ms(&solved), float_oracle(&statement));
        let off = (got - expected).abs() / expected.abs().max(1.0);
        assert!(
            off <= if equal { 1e-9 } else { 1e-6 },
            "{what}: {got}, the oracle {expected}"
        );
        worst[usize::from(!equal)] = worst[usize::from(!equal)].max(off);
    }
    println!("worst relative difference, equal and scaled work: {worst:?}");
}

#[test]
fn all_rates_or_all_costs_times_a_power_of_two_give_the_same_weights() {
    let seed = 72;
    let mut rng = StdRng::seed_from_u64(seed);
    for case in 0..60 {
        let base = statement(&mut rng, case % 2 == 0);
        let scaled = base.scaled().expect("valid");
        let expected = scaled.shares(&proven(&scaled.instance, None, "base"));
        for k in -30..=30 {
            let factor = f64::from(k).exp2();
            let (mut rates, mut costs) = (base.clone(), base.clone());
            for side in &mut rates.sources {
                side.rps *= factor;
                side.shed.iter_mut().for_each(|p| p.width *= factor);
            }
            rates
                .engines
                .iter_mut()
                .flat_map(|e| &mut e.pieces)
                .for_each(|p| p.width *= factor);
            for side in &mut costs.sources {
                side.movement_ms *= factor;
                side.over_share_ms *= factor;
                side.shed.iter_mut().for_each(|p| p.slope *= factor);
                side.ways.iter_mut().for_each(|w| w.cost_ms *= factor);
            }
            costs
                .engines
                .iter_mut()
                .flat_map(|e| &mut e.pieces)
                .for_each(|p| p.slope *= factor);
            for (kind, other) in [("rates", rates), ("costs", costs)] {
                let other = other.scaled().expect("valid");
                let what = format!("seed {seed}, case {case}: {kind} times 2^{k}");
                assert_eq!(other.instance, scaled.instance, "{what}");
                let solved = solve(&other.instance, None, u64::MAX).expect("valid");
                assert_eq!(other.shares(&solved), expected, "{what}");
            }
        }
    }
}

#[test]
fn low_priority_is_shed_first_and_alike_everywhere() {
    // Two frontends, one of them far from the only engine; each priority in five rising pieces.
    let side = |cost_ms| {
        let piece = |base: f64, j: i32| Segment {
            width: 10.0,
            slope: base * (1.0 + 0.1 * f64::from(j) / 4.0),
        };
        let shed = [40_000.0, 20_000.0].into_iter();
        let shed = shed.flat_map(|base| (0..5).map(move |j| piece(base, j)));
        SourceSide {
            rps: 100.0,
            work: 1.0,
            ways: vec![Way { engine: 0, cost_ms }],
            shed: shed.collect(),
            ..SourceSide::default()
        }
    };
    let refused = |capacity: f64| {
        let pieces = vec![Segment {
            width: capacity,
            slope: 200.0,
        }];
        let statement = Statement {
            sources: vec![side(1.0), side(90.0)],
            engines: vec![EngineSide { work: 1.0, pieces }],
        };
        let scaled = statement.scaled().expect("valid");
        let solved = proven(&scaled.instance, None, "overload");
        let rate = |shed: &i64| (*shed as f64 / scaled.units.flow * 1e3).round() / 1e3;
        solved.shed.iter().map(rate).collect::<Vec<_>>()
    };
    assert_eq!(refused(160.0), [20.0, 20.0]);
    assert_eq!(refused(100.0), [50.0, 50.0], "all of low priority");
    assert_eq!(refused(60.0), [70.0, 70.0]);
    // In between, the far one gives way first, by a piece at most.
    assert_eq!(refused(155.0), [20.0, 25.0]);
}

#[test]
fn weights_that_stand_keep_all_of_the_demand() {
    let mut rng = StdRng::seed_from_u64(73);
    for _ in 0..200 {
        let statement = statement(&mut rng, false);
        let scaled = statement.scaled().expect("valid");
        for (side, source) in statement.sources.iter().zip(&scaled.instance.sources) {
            let kept: i64 = source.parts.iter().map(|p| p.width).sum();
            if side.previous.is_some() && side.most.is_empty() && !side.ways.is_empty() {
                assert_eq!(kept, source.demand);
            }
        }
    }
}

#[test]
fn capacity_is_never_rounded_up() {
    let mut rng = StdRng::seed_from_u64(74);
    for _ in 0..200 {
        let statement = statement(&mut rng, false);
        let scaled = statement.scaled().expect("valid");
        for (e, side) in statement.engines.iter().enumerate() {
            let capacity: f64 = side.pieces.iter().map(|p| p.width).sum();
            let units = scaled.instance.capacity(e) as f64 / scaled.units.flow * side.work;
            assert!(units <= capacity * (1.0 + 1e-15), "{units} of {capacity}");
        }
    }
}

#[test]
fn what_is_no_number_or_lost_is_named() {
    let mut good = Statement {
        sources: vec![SourceSide {
            rps: 10.0,
            work: 1.0,
            ways: vec![Way {
                engine: 0,
                cost_ms: 5.0,
            }],
            shed: vec![Segment {
                width: 10.0,
                slope: 40_000.0,
            }],
            ..SourceSide::default()
        }],
        engines: vec![EngineSide {
            work: 1.0,
            pieces: vec![Segment {
                width: 20.0,
                slope: 200.0,
            }],
        }],
    };
    assert!(good.scaled().is_ok());
    let error = |change: fn(&mut Statement)| {
        let mut bad = good.clone();
        change(&mut bad);
        bad.scaled().expect_err("refused").to_string()
    };
    assert_eq!(
        error(|s| s.sources[0].rps = f64::NAN),
        "number: source 0: rps = NaN, not a number from 0"
    );
    assert_eq!(
        error(|s| s.engines[0].work = 0.0),
        "number: engine 0: work = 0, not a number above 0"
    );
    assert_eq!(
        error(|s| s.sources[0].ways[0].cost_ms = f64::INFINITY),
        "number: source 0: cost_ms = inf, not a number from 0"
    );
    assert_eq!(
        error(|s| s.sources[0].shed[0].slope = 1e15),
        "number: the largest latency, 200 ms per work, is lost beside 1000000000000000"
    );
    assert_eq!(
        error(|s| s.sources[0].ways[0].engine = 7),
        "shape: source 0: ways to engines that rise, a weight for each, a shed cost"
    );
    assert_eq!(
        error(|s| s.sources[0].rps = f64::MIN_POSITIVE),
        format!("number: all demand: {}, out of range", f64::MIN_POSITIVE)
    );
    assert_eq!(
        error(|s| (s.sources[0].rps, s.sources[0].work) = (1e200, 1e200)),
        "number: all demand: inf, out of range"
    );
    let mut tiny = good.sources[0].clone();
    tiny.rps = 1e-13;
    good.sources.push(tiny);
    assert_eq!(
        good.scaled().expect_err("lost").to_string(),
        "number: source 1: rps = 0.0000000000001 is lost beside all demand"
    );
}
