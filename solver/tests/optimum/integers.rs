//! The same problems in integers: feasible and complementary without any tolerance.

use pointsman_solver::model::optimise::network::{
    EngineSide, Flow, Instance, Solved, SourceSide, Statement, Status, Way, solve,
};
use pointsman_solver::model::problem::{self, Problem, Source};
use pointsman_solver::model::segments::Segment;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::fleet::{load_pieces, planned_rps, shed_pieces};
use super::oracle::{TWINS, random, twin};

/// A problem as a statement of flows: the work of a source's requests is that of its first way.
fn statement(problem: &Problem) -> Statement {
    let sources = problem.sources.iter().filter(|s| s.has_open_arc());
    let side = |source: &Source| {
        let open = || source.arcs.iter().enumerate().filter(|(_, a)| a.open);
        let shed = source.shed_ms.iter().enumerate().flat_map(|(p, price)| {
            let width = planned_rps(source, p) / shed_pieces(*price).count() as f64;
            shed_pieces(*price).map(move |slope| Segment { width, slope })
        });
        let previous = source.previous.as_ref();
        SourceSide {
            rps: source.planned_rps,
            work: source.arcs[0].seconds,
            ways: open()
                .map(|(_, a)| Way {
                    engine: a.engine.0 as u32,
                    cost_ms: a.network_ms + a.service_ms,
                })
                .collect(),
            shed: shed.collect(),
            previous: previous.map(|w| open().map(|(i, _)| w[i]).collect()),
            movement_ms: source.movement_ms,
            ..SourceSide::default()
        }
    };
    let engine = |engine: &problem::EngineSide| {
        let piece = |(width, slope)| Segment { width, slope };
        EngineSide {
            work: 1.0,
            pieces: load_pieces(engine).into_iter().map(piece).collect(),
        }
    };
    Statement {
        sources: sources.map(side).collect(),
        engines: problem.engines.iter().map(engine).collect(),
    }
}

/// Rungs filled in order: what each carries, by its width and cost. The last has no bound where
/// `open` says so.
fn filled(rungs: &[(i64, i64)], open: bool, amount: i64) -> Vec<(i64, Option<i64>, i64)> {
    let mut left = amount;
    let mut list = Vec::new();
    for (j, &(width, cost)) in rungs.iter().enumerate() {
        let unbounded = open && j + 1 == rungs.len();
        let part = if unbounded { left } else { left.min(width) };
        left -= part;
        list.push((part, (!unbounded).then_some(width), cost));
    }
    assert_eq!(left, 0, "{amount} does not fit {rungs:?}");
    list
}

/// A rung that can take more costs no less than the difference of prices; one that carries
/// something no more.
fn assert_complementary(rungs: &[(i64, Option<i64>, i64)], gain: i64, what: &str) -> usize {
    for &(part, width, cost) in rungs {
        assert!(part >= 0, "{what}: {part}");
        if width.is_none_or(|w| part < w) {
            assert!(cost >= gain, "{what}: {cost} gains against {gain}");
        }
        if part > 0 {
            assert!(cost <= gain, "{what}: {cost} is carried at {gain}");
        }
    }
    rungs.len()
}

/// Checks every arc of an answer; how many there were.
fn proven(instance: &Instance, solved: &Solved, what: &str) -> usize {
    let sources = instance.sources.len();
    let price = |e: usize| solved.potentials[sources + e];
    let mut load = vec![0_i64; instance.engines.len()];
    let mut objective: i128 = 0;
    let mut arcs = 0;
    let mut add = |rungs: Vec<(i64, Option<i64>, i64)>, gain: i64, what: String| {
        let cost =
            |(part, _, cost): &(i64, Option<i64>, i64)| i128::from(*part) * i128::from(*cost);
        objective += rungs.iter().map(cost).sum::<i128>();
        arcs += assert_complementary(&rungs, gain, &what);
    };
    for (s, source) in instance.sources.iter().enumerate() {
        let own = solved.potentials[s];
        let mut sent = solved.shed[s];
        for (place, &engine) in instance.ways(s).iter().enumerate() {
            let of_way = |f: &&Flow| (f.source as usize, f.engine) == (s, engine);
            let amount = solved.flows().iter().find(of_way).map_or(0, |f| f.amount);
            let parts = source.parts.iter().filter(|p| p.place as usize == place);
            let mut rungs: Vec<(i64, i64)> = parts.map(|p| (p.width, p.cost)).collect();
            rungs.push((0, source.costs[place]));
            let what = format!("{what}: source {s} to engine {engine}");
            add(
                filled(&rungs, true, amount),
                own - price(engine as usize),
                what,
            );
            sent += amount;
            load[engine as usize] += amount;
        }
        assert_eq!(
            sent, source.demand,
            "{what}: source {s}: routed and refused"
        );
        let shed: Vec<(i64, i64)> = source.shed.iter().map(|r| (r.width, r.cost)).collect();
        add(
            filled(&shed, true, solved.shed[s]),
            own,
            format!("{what}: source {s} refused"),
        );
    }
    for (e, rungs) in instance.engines.iter().enumerate() {
        assert_eq!(solved.load[e], load[e], "{what}: engine {e}");
        let rungs: Vec<(i64, i64)> = rungs.iter().map(|r| (r.width, r.cost)).collect();
        add(
            filled(&rungs, false, load[e]),
            price(e),
            format!("{what}: engine {e}"),
        );
    }
    assert_eq!(objective, solved.objective, "{what}");
    arcs
}

#[test]
fn flows_are_feasible_and_complementary_in_integers() {
    let seed = 143;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut arcs = 0;
    for case in 0..500 {
        let base = random(&mut rng, case % 2 == 0);
        for kind in TWINS {
            let what = format!("seed {seed}, case {case}, {kind:?}");
            let statement = statement(&twin(&base, kind, &mut rng));
            let scaled = statement.scaled().unwrap_or_else(|e| panic!("{what}: {e}"));
            let solved = solve(&scaled.instance, None, u64::MAX).expect("valid");
            assert_eq!(solved.status, Status::Optimal, "{what}");
            arcs += proven(&scaled.instance, &solved, &what);
        }
    }
    println!("{arcs} arcs are complementary");
    assert!(arcs > 100_000, "{arcs}");
}
