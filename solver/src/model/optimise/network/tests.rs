//! Random and worked problems, and the general solver as the oracle.

mod exact;
mod pitfalls;
mod price;
mod scaled;
mod warm;

use microlp::{ComparisonOp, OptimizationDirection, Problem as Program, SolveOptions, Variable};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::instance::{shed_rungs, way_rungs};
use super::*;
use crate::model::segments::Segment;

/// One millisecond, one request per second.
const ONE: i64 = 1_000_000;

fn rung(width: i64, cost: i64) -> Rung {
    Rung { width, cost }
}

/// Solves and proves the answer.
fn proven(instance: &Instance, basis: Option<&Basis>, what: &str) -> Solved {
    let solved = solve(instance, basis, u64::MAX).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(solved.status, Status::Optimal, "{what}");
    check_optimal(instance, &solved).unwrap_or_else(|v| panic!("{what}: {v}"));
    solved
}

/// Every node of the tree can send more to the root and stands within its bounds, and prices and
/// sizes are what the tree says. The price of an idle leaf is found when it is needed.
fn sound(simplex: &Simplex<'_>, what: &str) {
    let (tree, instance) = (&simplex.tree, simplex.instance);
    let mut sizes = vec![1; tree.hold.len()];
    for (v, hold) in tree.hold[..simplex.root()].iter().enumerate() {
        let at = format!("{what}: node {v} {hold:?}");
        assert!(hold.room_up() > 0, "{at}");
        assert!(hold.flow >= 0 && hold.flow <= hold.width, "{at}");
        let (mut u, mut steps) = (v, 0);
        while u != simplex.root() {
            u = tree.parent[u] as usize;
            sizes[u] += 1;
            steps += 1;
            assert!(steps < sizes.len(), "{at}: hangs on itself");
        }
        if simplex.is_idle_leaf(v) {
            continue;
        }
        let cost = match hold.link {
            Link::Way { source, engine } => {
                let s = source as usize;
                instance.sources[s].costs[instance.place(s, engine).expect("a way")]
            }
            Link::Part(part) => {
                let s = simplex.first_part.partition_point(|first| *first <= part) - 1;
                instance.sources[s].parts[(part - simplex.first_part[s]) as usize].cost
            }
            Link::Ladder(node) => {
                let node = node as usize;
                simplex
                    .rung(node, simplex.rungs[node] as usize)
                    .expect("a rung")
                    .1
            }
        };
        let step = if hold.up { cost } else { -cost };
        assert_eq!(
            tree.price[v],
            tree.price[tree.parent[v] as usize] + step,
            "{at}"
        );
    }
    assert_eq!(tree.size, sizes, "{what}");
}

/// Kinds of random problem.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Costs, widths and demands out of a few values: ties everywhere.
    Ties,
    /// Values that rarely meet.
    Smooth,
    /// Twice as much demand as capacity.
    Overload,
    /// One engine.
    OneEngine,
    /// Most demands and widths are zero.
    Zeros,
    /// Demands that equal capacities exactly, so that bases carry nothing.
    Degenerate,
}

const KINDS: [Kind; 6] = [
    Kind::Ties,
    Kind::Smooth,
    Kind::Overload,
    Kind::OneEngine,
    Kind::Zeros,
    Kind::Degenerate,
];

/// A small problem with every shape of arc.
fn random(rng: &mut StdRng, kind: Kind) -> Instance {
    let engines = rng.random_range(1..7_usize);
    let sources = rng.random_range(1..9_usize);
    random_sized(rng, kind, sources, engines)
}

fn random_sized(rng: &mut StdRng, kind: Kind, sources: usize, engines: usize) -> Instance {
    let engines = if kind == Kind::OneEngine { 1 } else { engines };
    let groups: Vec<Vec<u32>> = (0..rng.random_range(1..4_usize))
        .map(|_| {
            (0..engines as u32)
                .filter(|_| rng.random_bool(0.7))
                .collect()
        })
        .collect();
    let smooth = kind == Kind::Smooth;
    let cost = |rng: &mut StdRng| {
        if smooth {
            rng.random_range(0..90 * ONE)
        } else {
            rng.random_range(0..6) * 10 * ONE
        }
    };
    let amount = |rng: &mut StdRng| match kind {
        Kind::Smooth | Kind::Overload => rng.random_range(0..100 * ONE),
        Kind::Zeros => [0, 0, 0, 1, 20 * ONE][rng.random_range(0..5_usize)],
        Kind::Degenerate => 20 * ONE,
        Kind::Ties | Kind::OneEngine => rng.random_range(0..5) * 10 * ONE,
    };
    let rungs = |rng: &mut StdRng| {
        let mut slopes: Vec<i64> = (0..rng.random_range(0..5)).map(|_| cost(rng)).collect();
        slopes.sort_unstable();
        let part = if kind == Kind::Overload { 4 } else { 1 };
        slopes
            .into_iter()
            .map(|c| rung(amount(rng) / part, c))
            .collect::<Vec<_>>()
    };
    let engine_rungs: Vec<Vec<Rung>> = (0..engines).map(|_| rungs(rng)).collect();
    let source = |rng: &mut StdRng| {
        let group = rng.random_range(0..groups.len());
        let demand = amount(rng);
        let costs: Vec<i64> = groups[group].iter().map(|_| cost(rng)).collect();
        let mut parts = Vec::new();
        for (place, free) in costs.iter().enumerate() {
            for cheaper in [20 * ONE, 10 * ONE] {
                if rng.random_bool(0.2) {
                    let width = demand / rng.random_range(1..4);
                    parts.push(Part {
                        place: place as u32,
                        width,
                        cost: free - cheaper,
                    });
                }
            }
        }
        let shed = (0..rng.random_range(1..4_i64)).map(|j| rung(demand / 3, (500 + 50 * j) * ONE));
        Source {
            group: group as u32,
            demand,
            costs,
            parts,
            shed: shed.collect(),
        }
    };
    let sources = (0..sources).map(|_| source(rng)).collect();
    Instance {
        groups,
        sources,
        engines: engine_rungs,
    }
}

/// The optimum by a general solver, in units of 1e12 of an instance's objective.
fn oracle(instance: &Instance) -> f64 {
    let mut program = Program::new(OptimizationDirection::Minimize);
    let one = ONE as f64;
    let mut rows: Vec<Vec<(Variable, f64)>> = vec![Vec::new(); instance.engines.len()];
    for (s, source) in instance.sources.iter().enumerate() {
        let demand = source.demand as f64 / one;
        let var = |program: &mut Program, r: Rung| {
            program.add_var(
                r.cost as f64 / one,
                (0.0, (r.width as f64 / one).min(demand)),
            )
        };
        let mut row = Vec::new();
        for r in shed_rungs(source) {
            row.push((var(&mut program, r), 1.0));
        }
        for (place, engine) in instance.ways(s).iter().enumerate() {
            for r in way_rungs(source, place) {
                let variable = var(&mut program, r);
                row.push((variable, 1.0));
                rows[*engine as usize].push((variable, 1.0));
            }
        }
        program.add_constraint(&row, ComparisonOp::Eq, demand);
    }
    for (rungs, mut row) in instance.engines.iter().zip(rows) {
        if row.is_empty() {
            continue;
        }
        for r in rungs {
            let variable = program.add_var(r.cost as f64 / one, (0.0, r.width as f64 / one));
            row.push((variable, -1.0));
        }
        program.add_constraint(&row, ComparisonOp::Eq, 0.0);
    }
    optimum(program)
}

fn optimum(program: Program) -> f64 {
    let mut options = SolveOptions::default();
    options.tolerances.feasibility = 1e-10;
    let outcome = program.solve_with(options).expect("the oracle solves");
    outcome.into_solution().expect("without limits").objective()
}
