//! How far weights go towards the plan in one pass.
//!
//! The plan is made without a bound on steps, and weights go there on the straight line: each
//! source by its own part of the way, at most `max_step` of its requests. Planning the best
//! bounded step instead would send one source the detour that another is too slow to leave room
//! for, and back again. They go only as far as the true cost falls: the plan is made of pieces,
//! and what little demand changes would otherwise be answered by one engine filling a piece more
//! and another a piece less, where all of them a little is better. What an engine that is out had
//! goes at once. Where a step would fill an engine beyond its capacity, all sources go the same
//! part of the way; where that does not help, because the weights that stand overload an engine
//! already, or where the line leads through loads that are much dearer, the best bounded step is
//! taken after all.

use crate::model::optimise::{Solution, Status, evaluate, kv_utilisation, over_shares_ms};
use crate::model::plan::Terms;
use crate::model::problem::{Problem, Source};

/// What rounding may leave of a capacity.
const TOLERANCE: f64 = 1e-6;
/// Times that a plan far from what stands is planned again.
const REFINED: usize = 3;
/// Utilisation between a plan and what stands that is out of the grid's fine steps.
const FAR: f64 = 1.0 / 32.0;
/// Part by which a step on the line may cost more than the best bounded one.
const MOST_DEARER: f64 = 0.5;
/// A share that is no way.
const NOTHING: f64 = 1e-9;
/// Part of an interval that golden section leaves.
const GOLDEN: f64 = 0.618_033_988_749_894_9;
/// Intervals taken: the end is found to within a fiftieth of the way.
const HALVINGS: usize = 7;

/// What solves problems for one pass, and what it did so far. Beyond the plan itself, and the
/// bounded step where there is no other, a pass solves only while its pivots are under the limit,
/// so that what it takes is bounded, by a count that a replay comes to, too.
struct Solver<'a> {
    optimise: &'a mut dyn FnMut(&Problem) -> Result<Solution, Status>,
    pivots: u64,
    most: u64,
}

impl Solver<'_> {
    fn solve(&mut self, problem: &Problem) -> Result<Solution, Status> {
        let found = (self.optimise)(problem)?;
        self.pivots = self.pivots.saturating_add(found.pivots);
        Ok(found)
    }

    fn may_go_on(&self) -> bool {
        self.pivots < self.most
    }
}

/// A plan by `optimise`, and the part of it that one pass makes. At most five problems are solved.
pub(super) fn solve(
    problem: &mut Problem,
    optimise: &mut dyn FnMut(&Problem) -> Result<Solution, Status>,
) -> Result<Solution, Status> {
    let mut solver = Solver {
        optimise,
        pivots: 0,
        most: problem.pivot_limit,
    };
    let most = problem.max_step;
    problem.max_step = 1.0;
    let target = solver.solve(problem);
    problem.max_step = most;
    let mut target = target?;
    if is_forced(problem) || is_far(problem, &target) {
        target = refined(problem, target, &mut solver);
    }
    let ways: Vec<Option<Way>> = (problem.sources.iter().zip(&target.shares))
        .map(|(source, shares)| Way::new(source, shares))
        .collect();
    let part = |way: &Option<Way>| way.as_ref().map_or(1.0, |w| w.part(most));
    let own: Vec<f64> = ways.iter().map(part).collect();
    let least = own.iter().copied().fold(1.0, f64::min);
    let stepped = [own, vec![least; ways.len()]];
    let stepped = stepped
        .iter()
        .find_map(|parts| along(problem, &target, &ways, parts));
    let whole = |s: &Solution| s.terms.total() + over_shares_ms(problem, &s.shares);
    let much_dearer =
        |stepped: &Solution, than: &Solution| whole(stepped) > (1.0 + MOST_DEARER) * whole(than);
    match stepped {
        // No bounded step is cheaper than the plan without bounds: where even that one is not much
        // cheaper than what the line leads through, there is no need to look for a better step.
        Some(stepped) if !solver.may_go_on() || !much_dearer(&stepped, &target) => Ok(stepped),
        Some(stepped) => {
            // Where engines are nearly full, the line can lead through much dearer loads.
            let best = solver.solve(problem);
            let best = best.ok().filter(|best| much_dearer(&stepped, best));
            Ok(best.unwrap_or(stepped))
        }
        None => solver.solve(problem),
    }
}

/// A plan far from what stands, planned again around what it comes to: the steps of the grid are
/// fine only around what is known.
fn refined(problem: &Problem, mut plan: Solution, solver: &mut Solver<'_>) -> Solution {
    let mut again = problem.clone();
    again.max_step = 1.0;
    for _ in 0..REFINED {
        if !solver.may_go_on() {
            break;
        }
        for (source, shares) in again.sources.iter_mut().zip(&plan.shares) {
            let routed: f64 = shares.iter().sum();
            if source.fixed.is_none() && routed > NOTHING {
                source.previous = Some(shares.iter().map(|share| share / routed).collect());
            }
        }
        let Ok(next) = solver.solve(&again) else {
            break;
        };
        let ways = again.sources.iter().zip(&next.shares);
        let ways: Vec<Option<Way>> = ways.map(|(source, to)| Way::new(source, to)).collect();
        let Some(found) = along(&again, &next, &ways, &vec![1.0; ways.len()]) else {
            break;
        };
        // Around what it was planned from, the grid was fine.
        let near = !are_far(&plan.utilisation, &found.utilisation);
        plan = found;
        if near {
            break;
        }
    }
    let shares = plan.shares.clone();
    with(problem, &plan, shares).unwrap_or(plan)
}

/// The cheapest point of the way, each source going its part; `None` where its end overloads an
/// engine.
fn along(
    problem: &Problem,
    target: &Solution,
    ways: &[Option<Way>],
    parts: &[f64],
) -> Option<Solution> {
    let shares = |far: f64| -> Vec<Vec<f64>> {
        let shares = ways.iter().zip(&target.shares).zip(parts);
        let shares = shares.map(|((way, to), part)| match way {
            Some(way) => way.at(to, part * far),
            None => to.clone(),
        });
        shares.collect()
    };
    // The search asks for costs alone: to copy the plan for each would cost more than to judge it.
    let cost = |far: f64| -> f64 {
        let shares = shares(far);
        Judged::new(problem, target, &shares).map_or(f64::INFINITY, |judged| {
            judged.terms.total() + over_shares_ms(problem, &shares)
        })
    };
    let end = with(problem, target, shares(1.0))?;
    if ways.iter().flatten().all(|way| way.length <= NOTHING) || cost(0.0).is_infinite() {
        return Some(end);
    }
    let (mut low, mut high) = (0.0, 1.0);
    let golden = |low: f64, high: f64| {
        let width = GOLDEN * (high - low);
        (high - width, low + width)
    };
    let (mut near, mut far) = golden(low, high);
    let (mut near_cost, mut far_cost) = (cost(near), cost(far));
    for _ in 0..HALVINGS {
        if near_cost < far_cost {
            (high, far, far_cost) = (far, near, near_cost);
            near = golden(low, high).0;
            near_cost = cost(near);
        } else {
            (low, near, near_cost) = (near, far, far_cost);
            far = golden(low, high).1;
            far_cost = cost(far);
        }
    }
    let between = (low + high) / 2.0;
    let whole = end.terms.total() + over_shares_ms(problem, &end.shares);
    if cost(between) < whole {
        return with(problem, target, shares(between));
    }
    Some(end)
}

/// The plan with the weights that stand, where some do; what it refuses stays.
pub(super) fn stay(problem: &Problem, plan: &Solution) -> Option<Solution> {
    with(problem, plan, standing(problem, plan))
}

/// The shares of a plan where weights that stand, stay. A source in which none do keeps what is
/// planned.
pub(super) fn standing(problem: &Problem, plan: &Solution) -> Vec<Vec<f64>> {
    let shares = |(source, planned): (&Source, &Vec<f64>)| match &source.previous {
        Some(previous) if source.fixed.is_none() => {
            let routed: f64 = planned.iter().sum();
            previous.iter().map(|weight| weight * routed).collect()
        }
        _ => planned.clone(),
    };
    problem
        .sources
        .iter()
        .zip(&plan.shares)
        .map(shares)
        .collect()
}

/// Whether weights that stand go to engines that are out.
pub(super) fn is_forced(problem: &Problem) -> bool {
    let sources = problem.sources.iter().filter(|s| s.fixed.is_none());
    let lost = |source: &Source| {
        let weights = source.previous.iter().flatten();
        source
            .arcs
            .iter()
            .zip(weights)
            .any(|(arc, weight)| !arc.open && *weight > 0.0)
    };
    sources
        .into_iter()
        .any(|source| source.has_open_arc() && lost(source))
}

/// Whether a plan's loads are out of the grid's fine steps around those that stand.
fn is_far(problem: &Problem, plan: &Solution) -> bool {
    if problem
        .sources
        .iter()
        .any(|s| s.fixed.is_none() && s.previous.is_none())
    {
        return false;
    }
    Judged::new(problem, plan, &standing(problem, plan))
        .is_none_or(|stays| are_far(&stays.utilisation, &plan.utilisation))
}

/// Whether loads are out of the grid's fine steps around others.
fn are_far(some: &[f64], others: &[f64]) -> bool {
    let mut loads = some.iter().zip(others);
    loads.any(|(one, other)| (one - other).abs() > FAR)
}

/// A solution with other shares; `None` where they overload an engine.
fn with(problem: &Problem, plan: &Solution, shares: Vec<Vec<f64>>) -> Option<Solution> {
    let judged = Judged::new(problem, plan, &shares)?;
    Some(Solution {
        shares,
        utilisation: judged.utilisation,
        kv_utilisation: judged.kv_utilisation,
        terms: judged.terms,
        ..plan.clone()
    })
}

/// What other shares than a plan's come to.
struct Judged {
    terms: Terms,
    utilisation: Vec<f64>,
    kv_utilisation: Vec<Option<f64>>,
}

impl Judged {
    /// `None` where the shares overload an engine more than the plan does.
    fn new(problem: &Problem, plan: &Solution, shares: &[Vec<f64>]) -> Option<Self> {
        let (terms, utilisation) = evaluate(problem, shares, &plan.shed, plan.shed_factor);
        let kv_utilisation = kv_utilisation(problem, shares);
        let over = |now: f64, planned: f64| now > planned.max(1.0) + TOLERANCE;
        let mut loads = utilisation.iter().zip(&plan.utilisation);
        let mut held = kv_utilisation.iter().zip(&plan.kv_utilisation);
        let fits = !loads.any(|(now, planned)| over(*now, *planned))
            && !held.any(|(now, planned)| over(now.unwrap_or(0.0), planned.unwrap_or(0.0)));
        fits.then_some(Self {
            terms,
            utilisation,
            kv_utilisation,
        })
    }
}

/// A source's way from where it stands.
struct Way {
    /// Where it stands, what engines that are out had laid over those it goes to.
    from: Vec<f64>,
    /// Share that has to move.
    length: f64,
}

impl Way {
    fn new(source: &Source, to: &[f64]) -> Option<Self> {
        let previous = source
            .previous
            .as_ref()
            .filter(|_| source.fixed.is_none())?;
        let routed: f64 = to.iter().sum();
        let mut from: Vec<f64> = previous.iter().map(|weight| weight * routed).collect();
        let mut lost = 0.0;
        for (share, arc) in from.iter_mut().zip(&source.arcs) {
            if !arc.open {
                lost += std::mem::take(share);
            }
        }
        let gains: Vec<f64> = to
            .iter()
            .zip(&from)
            .map(|(t, f)| (t - f).max(0.0))
            .collect();
        let gained: f64 = gains.iter().sum();
        if gained > 0.0 {
            from.iter_mut()
                .zip(&gains)
                .for_each(|(f, gain)| *f += lost * gain / gained);
        }
        let length = to.iter().zip(&from).map(|(t, f)| (t - f).max(0.0)).sum();
        Some(Self { from, length })
    }

    /// Part of the way that a step of `most` makes.
    fn part(&self, most: f64) -> f64 {
        if self.length > most {
            most / self.length
        } else {
            1.0
        }
    }

    fn at(&self, to: &[f64], part: f64) -> Vec<f64> {
        let one = |(from, to): (&f64, &f64)| {
            if part >= 1.0 {
                *to
            } else {
                from + part * (to - from)
            }
        };
        self.from.iter().zip(to).map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::optimise::optimise;
    use crate::model::problem::{DemandNow, EngineNow, Now};
    use crate::model::topology::Topology;

    /// Problems solved for a step of three regions whose weights stand far from the plan.
    fn solved(pivot_limit: u64) -> usize {
        let text = include_str!("../../../tests/data/three-regions.toml");
        let topology = Topology::parse("three-regions.toml", text).expect("good");
        let one = |rps: f64| DemandNow {
            by_priority_rps: (0..topology.priorities.len())
                .map(|p| if p == 0 { rps } else { 0.0 })
                .collect(),
            mix: topology.classes[0].mix,
        };
        let demand: Vec<DemandNow> = topology.demand.iter().map(|d| one(d.rps.value())).collect();
        let mut problem = Problem::new(
            &topology,
            &Now {
                demand: &demand,
                engines: &[EngineNow::described(1); 3],
                previous: &[(); 3].map(|()| Some(vec![0.3, 0.3, 0.4])),
                reachable: &[true; 9],
                hold_observed: false,
            },
        );
        problem.pivot_limit = pivot_limit;
        let mut count = 0;
        let found = solve(&mut problem, &mut |problem| {
            count += 1;
            optimise(problem)
        });
        found.expect("a step");
        count
    }

    #[test]
    fn a_pass_solves_five_times_at_most_and_no_further_at_its_pivot_limit() {
        let free = solved(1_000_000);
        assert!((3..=5).contains(&free), "{free}");
        assert!(solved(1) <= 2, "{}", solved(1));
    }
}
