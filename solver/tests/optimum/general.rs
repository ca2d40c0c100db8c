//! Fleets whose work is not separable: five kinds of engine, whose rates of prefill and decode
//! stand in ratios from 1 to 4, and three mixes of requests.

use pointsman_solver::model::optimise::Solution;
use pointsman_solver::model::problem::{Arc, Problem};
use pointsman_solver::model::topology::{Method, ProfileId};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::fleet::{
    self, assert_all_accounted, assert_never_over, engine, flat, profile, solved, source,
};

/// Engine-seconds of a thousand prompt tokens and of a hundred answer tokens, by kind: the ratio
/// of the two rises from 1 to 4, and so does the spread of speed.
const KINDS: [(f64, f64); 5] = [
    (0.008, 0.008),
    (0.006, 0.009),
    (0.010, 0.020),
    (0.004, 0.012),
    (0.005, 0.020),
];
/// Most gap to the general program in the median fleet and in the worst one.
const MOST_MEDIAN: f64 = 0.005;
const MOST_WORST: f64 = 0.03;
/// What rounding may leave between an answer and its bound, relatively.
const ROUNDING: f64 = 1e-9;
/// Thousands of prompt tokens and hundreds of answer tokens: chat, documents, agents.
const MIXES: [(f64, f64); 3] = [(0.5, 2.0), (4.0, 0.5), (2.0, 2.0)];

/// Frontends over engines near and far, each of three mixes; demand from half of all capacity to
/// more than there is.
pub(crate) fn fleet(rng: &mut StdRng) -> Problem {
    let frontends = rng.random_range(2..6_usize);
    let engines = rng.random_range(6..16_usize);
    sized(rng, frontends, engines)
}

/// The same with so many of both.
pub(crate) fn sized(rng: &mut StdRng, frontends: usize, engines: usize) -> Problem {
    let kinds: Vec<usize> = (0..engines)
        .map(|_| rng.random_range(0..KINDS.len()))
        .collect();
    let capacities: Vec<f64> = (0..engines)
        .map(|_| *[1.0, 2.0, 4.0, 8.0].choose(rng).expect("one"))
        .collect();
    let homes: Vec<usize> = (0..engines)
        .map(|_| rng.random_range(0..frontends))
        .collect();
    let away: Vec<f64> = (0..frontends * frontends)
        .map(|_| rng.random_range(20.0..150.0))
        .collect();
    let mut sources = Vec::new();
    for f in 0..frontends {
        for (k, mix) in MIXES.iter().enumerate() {
            let arc = |e: usize| {
                let near = rng.random_range(1.0..4.0);
                let far = if homes[e] == f {
                    0.0
                } else {
                    away[f * frontends + homes[e]]
                };
                let (prefill, decode) = KINDS[kinds[e]];
                Arc {
                    output_tokens: mix.1 * 100.0,
                    profile: ProfileId(0),
                    most: None,
                    ..fleet::arc(e, near + far, mix.0 * prefill + mix.1 * decode)
                }
            };
            let arcs: Vec<Arc> = (0..engines).map(arc).collect();
            let share = rng.random_range(0.05..1.0_f64).powi(2);
            let mean = arcs.iter().map(|a| a.seconds).sum::<f64>() / engines as f64;
            let mut one = source(f, k, [share / mean / 2.0; 2], arcs);
            // As a topology prices them: by work.
            one.shed_ms.iter_mut().for_each(|p| *p *= mean / 0.02);
            sources.push(one);
        }
    }
    let engines = capacities.iter().map(|c| engine(*c)).collect();
    let mut problem = fleet::problem(vec![flat()], engines, sources);
    let work: f64 = problem
        .sources
        .iter()
        .map(|s| s.demand() * s.arcs.iter().map(|a| a.seconds).sum::<f64>() / s.arcs.len() as f64)
        .sum();
    let load = rng.random_range(0.5..1.2) * capacities.iter().sum::<f64>() / work;
    for source in &mut problem.sources {
        source.demand_rps.iter_mut().for_each(|d| *d *= load);
    }
    fleet::settle(&mut problem);
    problem
}

/// Latency that load makes worse, for each request and each token of its answer.
pub(crate) fn congested(problem: &mut Problem) {
    let points = [
        (0.0, 200.0, 10.0),
        (0.5, 220.0, 11.0),
        (0.8, 350.0, 15.0),
        (1.0, 1_500.0, 40.0),
    ];
    problem.profiles = vec![profile(&points)];
    for arc in problem.sources.iter_mut().flat_map(|s| &mut s.arcs) {
        arc.service_ms = 200.0 + 10.0 * arc.output_tokens;
    }
}

/// Weights that a pass before left, at another demand.
pub(crate) fn standing(rng: &mut StdRng, problem: &mut Problem, method: Method) {
    let mut before = problem.clone();
    for source in &mut before.sources {
        let drift = rng.random_range(0.8..1.2);
        source.demand_rps.iter_mut().for_each(|d| *d *= drift);
    }
    fleet::settle(&mut before);
    let shares = solved(&before, method, "standing").shares;
    for (source, shares) in problem.sources.iter_mut().zip(shares) {
        let sum: f64 = shares.iter().sum();
        source.previous = (sum > 0.0).then(|| shares.iter().map(|w| w / sum).collect());
    }
}

/// What the network simplex costs more than the general program, relatively; by how far its work
/// is off its fit; and what it costs more than its own bound.
fn gap(problem: &Problem, what: &str) -> (f64, f64, f64) {
    let network = solved(problem, Method::Network, what);
    assert_never_over(problem, &network, what);
    assert_all_accounted(problem, &network, what);
    let general = solved(problem, Method::Lp, what);
    let (got, best) = (network.terms.total(), general.terms.total());
    // Where load delays nobody, the bound of one mix is that of all: the general program's too.
    if problem.profiles == [flat()] {
        let merit = |s: &Solution| s.terms.total() + s.over_bounds_ms;
        let bound = merit(&network) * (1.0 - network.bound_gap);
        assert!(bound <= merit(&general) * (1.0 + 1e-6), "{what}: {bound}");
    }
    let beyond = network.bound_gap;
    (got / best - 1.0, network.separability_error, beyond)
}

/// Gaps over a hundred fleets, printed, and held to their bounds.
fn hold(what: &str, seed: u64, change: impl Fn(&mut StdRng, &mut Problem)) {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut gaps, mut beyond) = (Vec::new(), Vec::new());
    let mut error: f64 = 0.0;
    for case in 0..100 {
        let mut problem = fleet(&mut rng);
        change(&mut rng, &mut problem);
        let (gap, of, bound) = gap(&problem, &format!("{what}: seed {seed}, case {case}"));
        gaps.push((gap, case));
        beyond.push(bound);
        error = error.max(of);
    }
    gaps.sort_by(|a, b| a.0.total_cmp(&b.0));
    beyond.sort_by(f64::total_cmp);
    let (median, (worst, case)) = (gaps[gaps.len() / 2].0, gaps[gaps.len() - 1]);
    println!(
        "{what}: gap to the general program: median {:.3} %, worst {:.3} % (seed {seed}, case \
         {case}); to its own bound: median {:.3} %; work differs from its fit by up to \
         {:.1} %",
        100.0 * median,
        100.0 * worst,
        100.0 * beyond[beyond.len() / 2],
        100.0 * error
    );
    // No answer costs less than its bound, by the same curves.
    assert!(beyond[0] >= -ROUNDING, "{what}: {beyond:?}");
    assert!(beyond[beyond.len() - 1] > ROUNDING, "{what}: {beyond:?}");
    assert!(error > 0.1, "{what}: the work is not separable: {error}");
    assert!(median <= MOST_MEDIAN, "{what}: median {median}");
    assert!(worst <= MOST_WORST, "{what}: worst {worst} in case {case}");
}

#[test]
fn general_fleets_are_near_the_general_program() {
    hold("general work", 151, |_, _| ());
}

#[test]
fn general_fleets_with_standing_weights_are_near_the_general_program() {
    hold("standing weights", 152, |rng, problem| {
        standing(rng, problem, Method::Network)
    });
}

#[test]
fn congested_general_fleets_are_near_the_general_program() {
    hold("congestion", 153, |_, problem| congested(problem));
}
