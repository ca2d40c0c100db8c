//! KV memory as a second bound, as hard as capacity.

use pointsman_solver::model::optimise::kv_utilisation;
use pointsman_solver::model::problem::Problem;
use pointsman_solver::model::topology::Method;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::fleet::{
    arc, assert_all_accounted, assert_never_over, engine, flat, problem, settle, solved, source,
};
use super::general;

/// Memory that requests at planned rates hold over what there is.
fn held(problem: &Problem, shares: &[Vec<f64>]) -> Vec<f64> {
    let mut held = vec![0.0; problem.engines.len()];
    for (source, shares) in problem.sources.iter().zip(shares) {
        for (arc, share) in source.arcs.iter().zip(shares) {
            held[arc.engine.0] += source.planned_rps * share * arc.kv_token_s;
        }
    }
    let over = |(held, engine): (&f64, &pointsman_solver::model::problem::EngineSide)| {
        engine.kv_tokens.map_or(0.0, |tokens| held / tokens)
    };
    held.iter().zip(&problem.engines).map(over).collect()
}

/// Memory for less or more than a full engine's mean request needs: some of it binds.
pub(crate) fn with_memory(rng: &mut StdRng, problem: &mut Problem) {
    for source in &mut problem.sources {
        let class = source.class.0;
        // A document holds its long prompt; a chat is short.
        let tokens = [2_000.0, 18_000.0, 9_000.0][class];
        source.arcs.iter_mut().for_each(|a| a.kv_token_s = tokens);
    }
    for e in 0..problem.engines.len() {
        let (mut tokens, mut seconds) = (0.0, 0.0);
        for source in &problem.sources {
            let arc = &source.arcs[e];
            tokens += source.demand() * arc.kv_token_s;
            seconds += source.demand() * arc.seconds;
        }
        let full = problem.engines[e].capacity * tokens / seconds;
        problem.engines[e].kv_tokens = Some(full * rng.random_range(0.5..1.6));
    }
}

#[test]
fn memory_fills_before_compute_and_the_rest_goes_on() {
    // 50 requests/s of 400 token-seconds each; the near engine's memory holds 25 of them.
    let row = source(
        0,
        0,
        [50.0, 0.0],
        vec![arc(0, 1.0, 0.01), arc(1, 40.0, 0.01)],
    );
    let mut problem = problem(vec![flat()], vec![engine(1.0), engine(1.0)], vec![row]);
    problem.sources[0]
        .arcs
        .iter_mut()
        .for_each(|a| a.kv_token_s = 400.0);
    problem.engines[0].kv_tokens = Some(10_000.0);
    for method in [Method::Network, Method::Lp] {
        let found = solved(&problem, method, "near memory");
        assert!(
            (found.shares[0][0] - 0.5).abs() < 1e-6,
            "{:?}",
            found.shares
        );
        assert_eq!(found.shed, [[0.0, 0.0]]);
        let near = found.kv_utilisation[0].expect("a bound");
        assert!((near - 1.0).abs() < 1e-6, "{near}");
        assert_eq!(found.kv_utilisation[1], None);
        assert_eq!(kv_utilisation(&problem, &found.shares)[0], Some(near));
    }
    // Where no engine has memory left the rest is refused, lowest priority first.
    problem.engines[1].kv_tokens = Some(6_000.0);
    problem.sources[0].demand_rps = vec![30.0, 20.0];
    settle(&mut problem);
    for method in [Method::Network, Method::Lp] {
        let found = solved(&problem, method, "all memory");
        assert_eq!(found.shed[0][0], 0.0);
        assert!((found.shed[0][1] - 0.2).abs() < 1e-6, "{:?}", found.shed);
    }
}

#[test]
fn general_fleets_with_memory_are_near_the_general_program_and_never_over() {
    let seed = 161;
    let mut rng = StdRng::seed_from_u64(seed);
    let mut gaps = Vec::new();
    let mut bound = 0;
    for case in 0..100 {
        let what = format!("seed {seed}, case {case}");
        let mut problem = general::fleet(&mut rng);
        with_memory(&mut rng, &mut problem);
        if case % 3 == 2 {
            general::standing(&mut rng, &mut problem, Method::Network);
        }
        let network = solved(&problem, Method::Network, &what);
        assert_never_over(&problem, &network, &what);
        assert_all_accounted(&problem, &network, &what);
        for (e, held) in held(&problem, &network.shares).into_iter().enumerate() {
            assert!(held <= 1.0 + 1e-8, "{what}: engine {e} holds {held}");
            bound += usize::from(held > 0.999);
        }
        let general = solved(&problem, Method::Lp, &what);
        let of =
            |s: &pointsman_solver::model::optimise::Solution| s.terms.total() + s.over_bounds_ms;
        gaps.push((of(&network) / of(&general) - 1.0, case));
    }
    gaps.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (median, (worst, case)) = (gaps[gaps.len() / 2].0, gaps[gaps.len() - 1]);
    println!(
        "memory: gap to the general program: median {:.3} %, worst {:.3} % (seed {seed}, case \
         {case}); {bound} engines full of memory",
        100.0 * median,
        100.0 * worst
    );
    for gap in gaps.iter().rev().take(5) {
        println!("case {}: {:.3} %", gap.1, 100.0 * gap.0);
    }
    assert!(bound > 100, "memory binds: {bound}");
    assert!(median <= 0.005, "median {median}");
    assert!(worst <= 0.03, "worst {worst} in case {case}");
}

/// Frontends and engines of a fleet of three classes whose rounds the general program at their end can
/// just combine. Without that they leave 3 to 4 %.
const LARGE: (usize, usize) = (20, 200);

/// `POINTSMAN_KV_FLEETS` gives a number of fleets.
#[test]
fn large_fleets_with_memory_are_never_over_and_not_far_from_the_general_program() {
    let seed = 163;
    let mut rng = StdRng::seed_from_u64(seed);
    let fleets = std::env::var("POINTSMAN_KV_FLEETS").map_or(1, |n| n.parse().expect("a number"));
    let mut gaps = Vec::new();
    for case in 0..fleets {
        let what = format!("seed {seed}, case {case}");
        let mut problem = general::sized(&mut rng, LARGE.0, LARGE.1);
        with_memory(&mut rng, &mut problem);
        let network = solved(&problem, Method::Network, &what);
        assert_never_over(&problem, &network, &what);
        assert_all_accounted(&problem, &network, &what);
        let held = held(&problem, &network.shares);
        assert!(held.iter().all(|held| *held <= 1.0 + 1e-8), "{what}");
        let full = held.iter().filter(|held| **held > 0.999).count();
        let general = solved(&problem, Method::Lp, &what);
        let gap = network.terms.total() / general.terms.total() - 1.0;
        println!(
            "{what}: {:.3} % over the general program, {} rounds, {full} engines full of memory",
            100.0 * gap,
            network.rounds
        );
        assert!(full > 10, "{what}: memory binds at {full}");
        gaps.push(gap);
    }
    gaps.sort_by(f64::total_cmp);
    assert!(gaps[gaps.len() - 1] <= 0.03, "{gaps:?}");
}
