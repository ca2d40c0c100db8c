//! `optimise()` by the network simplex against a general solver that is told the same problem by
//! somebody else: this file, in requests and engine-seconds, not in shares or units of flow.

use microlp::{ComparisonOp, OptimizationDirection, Problem as Program, SolveOptions, Variable};
use pointsman_solver::model::problem::Problem;
use pointsman_solver::model::topology::Method;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::fleet::{
    self, arc, assert_all_accounted, assert_never_over, engine, flat, least_kept, load_pieces,
    planned_cost, planned_rps, shed_pieces, solved, source,
};

/// Twins of a problem: what tends to break solvers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Twin {
    /// As drawn.
    Plain,
    /// Few values for everything, demand that fills engines exactly: ties, bases that carry nothing.
    Degenerate,
    /// Most sources have no demand.
    ZeroDemand,
    /// One engine.
    OneEngine,
    /// A quarter of the capacity.
    Overloaded,
}

/// All of them.
pub(crate) const TWINS: [Twin; 5] = [
    Twin::Plain,
    Twin::Degenerate,
    Twin::ZeroDemand,
    Twin::OneEngine,
    Twin::Overloaded,
];

/// A small fleet. With `equal` work every request is a hundredth of an engine-second, else (work
/// of the source) x (work of the engine).
pub(crate) fn random(rng: &mut StdRng, equal: bool) -> Problem {
    let engines = rng.random_range(1..7_usize);
    let sources = rng.random_range(1..8_usize);
    let capacities: Vec<f64> = (0..engines)
        .map(|_| {
            *[0.0, 0.5, 1.0, 1.0, 2.0, rng.random_range(0.1..3.0)]
                .choose(rng)
                .expect("one")
        })
        .collect();
    let beta: Vec<f64> = (0..engines).map(|_| rng.random_range(0.25..4.0)).collect();
    let one = |s: usize| {
        let alpha = rng.random_range(0.003..0.03);
        let mut arcs = Vec::new();
        for (e, beta) in beta.iter().enumerate() {
            if rng.random_bool(0.8) {
                let seconds = if equal { 0.01 } else { alpha * beta };
                arcs.push(arc(e, rng.random_range(0.0..150.0), seconds));
            }
        }
        let mut rate = || [0.0, 20.0, rng.random_range(0.0..60.0)][rng.random_range(0..3_usize)];
        let mut source = source(s, 0, [rate(), rate()], arcs);
        if rng.random_bool(0.4) {
            stand(rng, &mut source);
        }
        source
    };
    let sources = (0..sources).map(one).collect();
    let engines = capacities.into_iter().map(engine).collect();
    fleet::problem(vec![flat()], engines, sources)
}

/// Weights that stand: anything that sums to one.
fn stand(rng: &mut StdRng, source: &mut pointsman_solver::model::problem::Source) {
    let raw: Vec<f64> = source
        .arcs
        .iter()
        .map(|_| f64::from(rng.random_range(0..4_u32)))
        .collect();
    let sum: f64 = raw.iter().sum();
    source.previous = (sum > 0.0).then(|| raw.iter().map(|w| w / sum).collect());
    source.movement_ms = rng.random_range(0.5..12.0);
}

/// A twin of a problem.
pub(crate) fn twin(base: &Problem, kind: Twin, rng: &mut StdRng) -> Problem {
    let mut problem = base.clone();
    match kind {
        Twin::Plain => {}
        Twin::Degenerate => {
            for source in &mut problem.sources {
                source.demand_rps = vec![25.0, 25.0];
                source.movement_ms = 5.0;
                let round = |ms: f64| (ms / 50.0).round() * 50.0;
                source
                    .arcs
                    .iter_mut()
                    .for_each(|a| a.network_ms = round(a.network_ms));
            }
            problem.engines.iter_mut().for_each(|e| e.capacity = 0.5);
        }
        Twin::ZeroDemand => {
            for source in &mut problem.sources {
                if rng.random_bool(0.75) {
                    source.demand_rps = vec![0.0, 0.0];
                }
            }
        }
        Twin::OneEngine => {
            for source in &mut problem.sources {
                let only = source.arcs.iter().position(|a| a.engine.0 == 0);
                source.arcs = only.map(|i| source.arcs[i]).into_iter().collect();
                source.previous = None;
            }
            problem.engines.truncate(1);
        }
        Twin::Overloaded => problem.engines.iter_mut().for_each(|e| e.capacity /= 4.0),
    }
    fleet::settle(&mut problem);
    problem
}

/// The least cost by the general solver, in requests per second and milliseconds.
pub(crate) fn oracle(problem: &Problem) -> f64 {
    let mut program = Program::new(OptimizationDirection::Minimize);
    let mut rows: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); problem.engines.len()];
    let mut offset = 0.0;
    for source in problem.sources.iter().filter(|s| s.has_open_arc()) {
        let rps = source.planned_rps;
        let mut all = Vec::new();
        let mut stays = Vec::new();
        let half = source.movement_ms / 2.0;
        for (i, arc) in source.arcs.iter().enumerate().filter(|(_, a)| a.open) {
            let way_ms = arc.network_ms + arc.service_ms;
            let mut way = |cost_ms: f64, most: f64| {
                let variable = program.add_var(cost_ms, (0.0, most));
                all.push((variable, 1.0));
                rows[arc.engine.0].push((variable, arc.seconds));
                variable
            };
            match &source.previous {
                None => {
                    way(way_ms, rps);
                }
                Some(previous) => {
                    offset += half * previous[i] * rps;
                    stays.push((way(way_ms - half, previous[i] * rps), 1.0));
                    way(way_ms + half, rps);
                }
            }
        }
        for (p, price) in source.shed_ms.iter().enumerate() {
            let width = planned_rps(source, p) / shed_pieces(*price).count() as f64;
            for piece_ms in shed_pieces(*price) {
                let variable = program.add_var(piece_ms, (0.0, width));
                all.push((variable, 1.0));
                stays.push((variable, 1.0));
            }
        }
        program.add_constraint(&all, ComparisonOp::Eq, rps);
        let least = least_kept(problem, source);
        if source.previous.is_some() && least > 0.0 {
            stays.push((program.add_var(problem.over_step_ms, (0.0, rps)), 1.0));
            program.add_constraint(&stays, ComparisonOp::Ge, least * rps);
        }
    }
    for (engine, mut row) in problem.engines.iter().zip(rows) {
        if row.is_empty() {
            continue;
        }
        for (width, slope_ms) in load_pieces(engine) {
            row.push((program.add_var(slope_ms, (0.0, width)), -1.0));
        }
        program.add_constraint(&row, ComparisonOp::Eq, 0.0);
    }
    let mut options = SolveOptions::default();
    options.tolerances.feasibility = 1e-10;
    let outcome = program.solve_with(options).expect("the oracle solves");
    outcome.into_solution().expect("without limits").objective() + offset
}

/// Five hundred problems and their twins: none differs by more than `most`, relatively. Steps are
/// bounded where `max_step` is below one.
fn agree(seed: u64, equal: bool, max_step: f64, most: f64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut worst, mut refused) = (0.0_f64, 0);
    for case in 0..500 {
        let mut base = random(&mut rng, equal);
        base.max_step = max_step;
        for kind in TWINS {
            let what = format!("seed {seed}, case {case}, {kind:?}");
            let problem = twin(&base, kind, &mut rng);
            let solution = solved(&problem, Method::Network, &what);
            assert_eq!(solution.gap, 0.0, "{what}");
            assert_eq!(solution.shed_factor, 1.0, "{what}");
            assert_all_accounted(&problem, &solution, &what);
            assert_never_over(&problem, &solution, &what);
            let got = planned_cost(&problem, &solution.shares, &solution.shed);
            let expected = oracle(&problem);
            let off = (got - expected).abs() / expected.abs().max(1.0);
            assert!(off <= most, "{what}: {got}, the oracle {expected}: {off:e}");
            worst = worst.max(off);
            refused += usize::from(solution.terms.shed > 0.0);
        }
    }
    println!("worst relative difference from the oracle: {worst:.1e}; {refused} of 2500 shed");
    assert!(refused > 500, "{refused} of 2500 problems were overloaded");
}

#[test]
fn equal_work_costs_what_the_oracle_says() {
    agree(141, true, 1.0, 1e-9);
}

#[test]
fn scaled_work_costs_what_the_oracle_says() {
    agree(142, false, 1.0, 1e-6);
}

/// A gate's width has room for rounding, a billionth of a source: refusing costs two hundred times
/// what serving does.
#[test]
fn bounded_steps_cost_what_the_oracle_says() {
    agree(144, true, 0.1, 1e-6);
    agree(146, false, 0.1, 1e-6);
}
