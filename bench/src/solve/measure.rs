//! One fleet by one method: cold, after a drift of demand, without an engine, with weights that
//! stand; how long each takes, and what came out.

use anyhow::Context;
use pointsman_solver::model::optimise::{Solution, Warm, optimise_from};
use pointsman_solver::model::problem::Problem;
use pointsman_solver::model::topology::Method;
use pointsman_solver::tick::{TickState, tick};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Serialize;

use super::args::Size;
use super::fleet::{Fleet, Work};
use crate::sys::thread_cpu_ns;

/// Seconds between two passes.
const TICK_S: u64 = 2;

/// Times of one kind of solve, milliseconds of the solving thread's CPU, and pivots.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Timed {
    pub(super) median_ms: f64,
    pub(super) worst_ms: f64,
    /// Of the median solve.
    pub(super) pivots: u64,
}

/// One fleet by one method.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) size: Size,
    pub(super) method: &'static str,
    pub(super) work: &'static str,
    /// From nothing.
    pub(super) cold: Timed,
    /// Demand up to 5 % off, from the cold answer; nothing stands.
    pub(super) warm: Timed,
    /// Without one of the busiest engines, from the cold answer; nothing stands.
    pub(super) lost: Timed,
    /// Demand up to 5 % off, with the weights of the pass before and a price on leaving them.
    pub(super) moved: Timed,
    /// A whole pass of that kind, policies and all; general programs are not asked.
    pub(super) tick: Option<Timed>,
    /// What the cold answer costs more than the general program's, relatively, or than the lower
    /// bound that the method's own prices prove, at most.
    pub(super) gap: f64,
    /// What the gap is to.
    pub(super) gap_to: &'static str,
    /// Most of memory that a cold solve took, MiB.
    pub(super) memory_mib: Option<f64>,
    /// Programs of the cold solve.
    pub(super) programs: usize,
    /// Most that the work of a request differs from its separable fit.
    pub(super) separability_error: f64,
    /// Load of the fullest engine.
    pub(super) utilisation: f64,
    /// Share of the traffic that a pass moved, with a price on it.
    pub(super) moved_share: f64,
}

/// The product's solve, timed, from what the one before left; what this one leaves takes its place.
fn solve(
    problem: &Problem,
    kept: &mut Option<Warm>,
    what: &str,
) -> anyhow::Result<(Solution, u64)> {
    let started = thread_cpu_ns();
    let found = optimise_from(problem, kept.as_ref());
    let took_ns = thread_cpu_ns() - started;
    let (solution, left) = found.map_err(|status| anyhow::anyhow!("{what}: {status}"))?;
    *kept = left;
    Ok((solution, took_ns))
}

impl Timed {
    /// Of solves as (nanoseconds, pivots).
    pub(super) fn of(mut solves: Vec<(u64, u64)>) -> Self {
        solves.sort_unstable();
        let ms = |ns: u64| ns as f64 / 1e6;
        let median = solves[solves.len() / 2];
        Self {
            median_ms: ms(median.0),
            worst_ms: ms(solves[solves.len() - 1].0),
            pivots: median.1,
        }
    }
}

/// Everything of one fleet by one method.
pub(super) fn row(
    fleet: &Fleet,
    size: Size,
    work: Work,
    method: Method,
    rounds: usize,
) -> anyhow::Result<(Row, Solution)> {
    let mut rng = StdRng::seed_from_u64(17);
    let nothing = fleet.nothing();
    let what = |kind: &str| format!("{size} {} {} {kind}", work.name(), method.name());
    let problem = |demand: &[f64], out| fleet.problem(method, demand, out, &nothing);

    let base = problem(&fleet.demand_rps, None);
    let mut kept = None;
    let mut cold = Vec::new();
    let mut first = None;
    for _ in 0..rounds {
        kept = None;
        let (solution, ns) = solve(&base, &mut kept, &what("cold"))?;
        cold.push((ns, solution.pivots));
        first = Some(solution);
    }
    let first = first.context("at least one round")?;

    let mut warm = Vec::new();
    let mut lost = Vec::new();
    let busiest = busiest(&base, &first);
    for round in 0..rounds {
        let drifted = problem(&fleet.drifted(&mut rng), None);
        let (solution, ns) = solve(&drifted, &mut kept.clone(), &what("warm"))?;
        warm.push((ns, solution.pivots));
        let without = problem(&fleet.demand_rps, Some(busiest[round % busiest.len()]));
        let (solution, ns) = solve(&without, &mut kept.clone(), &what("lost"))?;
        lost.push((ns, solution.pivots));
    }

    let (moved, moved_share) =
        chain(fleet, method, rounds, (&base, &first), &mut kept).with_context(|| what("moved"))?;
    let tick = match method {
        Method::Network => Some(passes(fleet, rounds).with_context(|| what("tick"))?),
        Method::Lp => None,
    };
    let row = Row {
        size,
        method: method.name(),
        work: work.name(),
        cold: Timed::of(cold),
        warm: Timed::of(warm),
        lost: Timed::of(lost),
        moved,
        tick,
        gap: first.bound_gap,
        gap_to: "bound",
        memory_mib: None,
        programs: first.rounds,
        separability_error: first.separability_error,
        utilisation: first.utilisation.iter().copied().fold(0.0, f64::max),
        moved_share,
    };
    Ok((row, first))
}

/// A chain of passes from an answer, as the product makes them: each at another demand, with the
/// weights of the one before. The first finds weights that no pass with a price on movement made,
/// and is not counted. Also the share of the traffic that a pass moves.
fn chain(
    fleet: &Fleet,
    method: Method,
    rounds: usize,
    first: (&Problem, &Solution),
    kept: &mut Option<Warm>,
) -> anyhow::Result<(Timed, f64)> {
    let mut rng = StdRng::seed_from_u64(19);
    let mut taken = Vec::new();
    let mut moved_share = 0.0;
    let mut previous = weights(first.0, first.1);
    for round in 0..=rounds {
        let next = fleet.problem(method, &fleet.drifted(&mut rng), None, &previous);
        let (solution, ns) = solve(&next, kept, "a pass of the chain")?;
        if round > 0 {
            taken.push((ns, solution.pivots));
            moved_share += share_moved(&next, &solution) / rounds as f64;
        }
        previous = weights(&next, &solution);
    }
    Ok((Timed::of(taken), moved_share))
}

/// Whole passes: the state is the product's own, each policy that is to be published stands.
fn passes(fleet: &Fleet, rounds: usize) -> anyhow::Result<Timed> {
    let mut rng = StdRng::seed_from_u64(18);
    let mut state = TickState::new(&fleet.topology, 1);
    let mut taken = Vec::new();
    for round in 0..rounds as u64 + 2 {
        let demand = fleet.drifted(&mut rng);
        let inputs = fleet.inputs(&demand, TICK_S * (round + 1))?;
        let started = thread_cpu_ns();
        let outcome = tick(&fleet.topology, &mut state, &inputs);
        let took_ns = thread_cpu_ns() - started;
        anyhow::ensure!(outcome.plan.is_some(), "{}", outcome.status);
        for candidate in outcome.candidates {
            if candidate.publish.is_some() {
                state.confirm(candidate.frontend, candidate.policy, inputs.now_ns);
            }
        }
        // The first has nothing that stands, the second weights made without a price.
        if round > 1 {
            taken.push((took_ns, 0));
        }
    }
    Ok(Timed::of(taken))
}

/// Engines by the rate they are sent, most first.
fn busiest(problem: &Problem, solution: &Solution) -> Vec<usize> {
    let mut rate = vec![0.0; problem.engines.len()];
    for (source, shares) in problem.sources.iter().zip(&solution.shares) {
        for (arc, share) in source.arcs.iter().zip(shares) {
            rate[arc.engine.0] += source.planned_rps * share;
        }
    }
    let mut engines: Vec<usize> = (0..rate.len()).collect();
    engines.sort_by(|a, b| rate[*b].total_cmp(&rate[*a]));
    engines
}

/// The weights that a plan publishes: shares of what is routed.
pub(super) fn weights(problem: &Problem, solution: &Solution) -> Vec<Option<Vec<f64>>> {
    let one = |(s, shares): (usize, &Vec<f64>)| {
        let sum: f64 = shares.iter().sum();
        if sum > 0.0 {
            Some(shares.iter().map(|share| share / sum).collect())
        } else {
            problem.sources[s].previous.clone()
        }
    };
    solution.shares.iter().enumerate().map(one).collect()
}

/// Share of the traffic that goes elsewhere than the weights that stood say.
fn share_moved(problem: &Problem, solution: &Solution) -> f64 {
    let (mut moved, mut all) = (0.0, 0.0);
    for (source, shares) in problem.sources.iter().zip(&solution.shares) {
        all += source.planned_rps;
        let before = source.previous.iter().flatten();
        let gained: f64 = shares
            .iter()
            .zip(before)
            .map(|(x, w)| (x - w).max(0.0))
            .sum();
        moved += source.planned_rps * gained;
    }
    moved / all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_and_the_worst_at_the_end() {
        let timed = Timed::of(vec![(3_000_000, 30), (1_000_000, 10), (2_000_000, 20)]);
        let expected = Timed {
            median_ms: 2.0,
            worst_ms: 3.0,
            pivots: 20,
        };
        assert_eq!(timed, expected);
    }

    #[test]
    fn a_small_fleet_is_solved_by_both_methods_to_one_cost() {
        let size: Size = "4,16,2".parse().unwrap();
        let fleet = Fleet::new(size, Work::Alike, 5).unwrap();
        let run = |method| row(&fleet, size, Work::Alike, method, 1).unwrap();
        let ((network, a), (lp, b)) = (run(Method::Network), run(Method::Lp));
        let (a, b) = (a.terms.total(), b.terms.total());
        assert!((a / b - 1.0).abs() < 1e-6, "{a} and {b}");
        assert_eq!((network.gap, network.programs), (0.0, 1));
        assert!(network.cold.pivots > 0 && lp.cold.pivots == 0);
        assert!(network.tick.is_some() && lp.tick.is_none());
        assert!(network.moved_share < 0.2, "{}", network.moved_share);
        assert!(network.utilisation > 0.5 && network.utilisation <= 1.0 + 1e-9);
    }
}
