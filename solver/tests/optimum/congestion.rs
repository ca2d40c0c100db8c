//! Congestion of unlike requests against brute force: true cost, as `evaluate` counts it.

use pointsman_solver::model::optimise::{evaluate, model_ms};
use pointsman_solver::model::problem::{Arc, Problem};
use pointsman_solver::model::topology::Method;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::fleet::{self, arc, assert_never_over, engine, profile, solved, source};

/// Two classes, short answers and long ones, over two or three engines that have room for both.
fn small(rng: &mut StdRng, engines: usize) -> Problem {
    let points = [
        (0.0, 200.0, 10.0),
        (0.4, 220.0, 11.0),
        (0.7, 300.0, 14.0),
        (0.9, 700.0, 25.0),
        (1.0, 2_000.0, 60.0),
    ];
    let tokens = [rng.random_range(1.0..40.0), rng.random_range(60.0..400.0)];
    let speeds: Vec<f64> = (0..engines).map(|_| rng.random_range(0.5..2.0)).collect();
    let one = |k: usize| {
        let work = 0.005 + 0.0002 * tokens[k];
        let way = |e: usize| Arc {
            output_tokens: tokens[k],
            service_ms: 200.0 + 10.0 * tokens[k],
            ..arc(e, rng.random_range(1.0..120.0), work * speeds[e])
        };
        let arcs: Vec<Arc> = (0..engines).map(way).collect();
        let rps = rng.random_range(0.5..1.5) / work;
        source(0, k, [rps, 0.0], arcs)
    };
    let sources = (0..2).map(one).collect();
    let sides = (0..engines)
        .map(|_| engine(rng.random_range(0.5..2.0)))
        .collect();
    let mut problem = fleet::problem(vec![profile(&points)], sides, sources);
    // Demand from a third to nine tenths of what the slowest ways allow.
    let load = |s: &pointsman_solver::model::problem::Source| {
        s.demand() * s.arcs.iter().map(|a| a.seconds).fold(0.0, f64::max)
    };
    let all: f64 = problem.sources.iter().map(load).sum();
    let room: f64 = problem.engines.iter().map(|e| e.capacity).sum();
    let factor = rng.random_range(0.3..0.9) * room / all;
    problem
        .sources
        .iter_mut()
        .for_each(|s| s.demand_rps[0] *= factor);
    fleet::settle(&mut problem);
    problem
}

/// True cost of shares, if every engine has room for them.
fn cost(problem: &Problem, shares: &[Vec<f64>]) -> f64 {
    let none = vec![vec![0.0; 2]; 2];
    let (terms, load) = evaluate(problem, shares, &none, 1.0);
    if load.iter().all(|u| *u <= 1.0) {
        terms.total()
    } else {
        f64::INFINITY
    }
}

/// Every way to part one among engines in steps of 1 / `steps`.
fn parts(engines: usize, steps: u32) -> Vec<Vec<f64>> {
    let share = |n: u32| f64::from(n) / f64::from(steps);
    let rest =
        |a: u32| (0..=steps - a).map(move |b| vec![share(a), share(b), share(steps - a - b)]);
    match engines {
        2 => (0..=steps)
            .map(|a| vec![share(a), share(steps - a)])
            .collect(),
        _ => (0..=steps).flat_map(rest).collect(),
    }
}

/// The least true cost on a grid over both classes, refined from its five best points by moving
/// ever smaller shares of one class, or of both at once, from engine to engine.
fn brute_force(problem: &Problem) -> f64 {
    let engines = problem.engines.len();
    let parts = parts(engines, if engines == 2 { 100 } else { 16 });
    let mut best: Vec<(f64, Vec<Vec<f64>>)> = Vec::new();
    for a in &parts {
        for b in &parts {
            let shares = vec![a.clone(), b.clone()];
            let cost = cost(problem, &shares);
            if best.len() < 5 || cost < best[4].0 {
                best.push((cost, shares));
                best.sort_by(|x, y| x.0.total_cmp(&y.0));
                best.truncate(5);
            }
        }
    }
    let refined = best
        .into_iter()
        .map(|(cost, shares)| refine(problem, cost, shares));
    refined.fold(f64::INFINITY, f64::min)
}

fn refine(problem: &Problem, mut least: f64, mut shares: Vec<Vec<f64>>) -> f64 {
    let engines = problem.engines.len();
    let mut one: Vec<Option<(usize, usize)>> = vec![None];
    one.extend((0..engines).flat_map(|i| (0..engines).map(move |j| Some((i, j)))));
    let mut step: f64 = 1.0 / 16.0;
    while step > 1e-5 {
        let mut improved = false;
        for (a, b) in one.iter().flat_map(|a| one.iter().map(move |b| (a, b))) {
            let mut other = shares.clone();
            for (class, way) in [(0, a), (1, b)] {
                if let Some((from, to)) = *way {
                    let part = step.min(other[class][from]);
                    other[class][from] -= part;
                    other[class][to] += part;
                }
            }
            let cost = cost(problem, &other);
            if cost < least * (1.0 - 1e-12) {
                (least, shares, improved) = (cost, other, true);
            }
        }
        if !improved {
            step /= 2.0;
        }
    }
    least
}

#[test]
fn congestion_of_unlike_requests_is_within_two_percent_of_brute_force() {
    let seed = 161;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut worst = [0.0_f64; 2];
    for case in 0..100 {
        let problem = small(&mut rng, 2 + case % 2);
        let least = brute_force(&problem);
        for (m, method) in [Method::Network, Method::Lp].into_iter().enumerate() {
            let what = format!("seed {seed}, case {case}, {}", method.name());
            let solution = solved(&problem, method, &what);
            assert_never_over(&problem, &solution, &what);
            assert_eq!(solution.terms.shed, 0.0, "{what}");
            let off = solution.terms.total() / least - 1.0;
            assert!(off <= 0.02, "{what}: {off} above brute force");
            // Brute force itself may not miss what the method finds.
            assert!(off >= -1e-4, "{what}: {off} below brute force");
            worst[m] = worst[m].max(off);
        }
    }
    println!(
        "worst over brute force: network {:.3} %, lp {:.3} %",
        100.0 * worst[0],
        100.0 * worst[1]
    );
}

#[test]
fn pieces_say_what_load_costs_or_a_little_more() {
    let seed = 171;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut most = 0.0_f64;
    for case in 0..50 {
        let problem = small(&mut rng, 2 + case % 2);
        let what = format!("seed {seed}, case {case}");
        let found = solved(&problem, Method::Network, &what);
        let (model, cost) = (model_ms(&problem, &found), found.terms.total());
        let over = (model - cost) / cost;
        assert!((-1e-9..0.02).contains(&over), "{what}: {model} of {cost}");
        most = most.max(over);
    }
    // They are chords of bent curves: somewhere they lie above.
    assert!(most > 1e-6, "{most}");
    println!("pieces: at most {:.4} % above the true cost", 100.0 * most);
}
