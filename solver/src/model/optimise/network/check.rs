//! Proof that an answer is optimal, exact in integers, by its flows and potentials alone.
//!
//! Shares nothing with the method: it walks every arc, also the ways that the method never
//! stores. A flow is optimal if and only if some potentials leave no arc a reason to change.

use super::instance::{Instance, fill, margins, shed_rungs, way_rungs};
use super::{Solved, Status};

/// What is wrong with an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct Violation {
    /// Where.
    pub at: String,
    /// What.
    pub what: String,
}

/// Checks that an answer is feasible, that its objective is what its flows cost, and, unless it
/// ended at the pivot limit, complementary slackness on every arc.
///
/// # Errors
///
/// The first violation.
pub fn check_optimal(instance: &Instance, solved: &Solved) -> Result<(), Violation> {
    let flows = feasible(instance, solved)?;
    let objective = cost(instance, solved, &flows);
    equal(
        "objective",
        "against the cost of its flows",
        solved.objective,
        objective,
    )?;
    let (of_source, of_engine) = solved.potentials.split_at(instance.sources.len());
    let bound = lower_bound(instance, of_engine);
    match solved.status {
        Status::PivotLimit { gap } => {
            return equal("gap", "objective less bound", objective - bound, gap);
        }
        Status::Optimal => equal("objective", "its lower bound", objective, bound)?,
    }
    for (s, source) in instance.sources.iter().enumerate() {
        let at = |what: &str| format!("source {s}, {what}");
        slack(
            || at("shed"),
            margins(shed_rungs(source), solved.shed[s]),
            of_source[s],
        )?;
        for (place, &engine) in instance.ways(s).iter().enumerate() {
            let used = margins(way_rungs(source, place), flows[s][place]);
            let worth = of_source[s] - of_engine[engine as usize];
            slack(|| at(&format!("engine {engine}")), used, worth)?;
        }
    }
    for (e, rungs) in instance.engines.iter().enumerate() {
        let used = margins(rungs.iter().copied(), solved.load[e]);
        slack(|| format!("engine {e}"), used, of_engine[e])?;
    }
    Ok(())
}

/// The least that any feasible flow costs, as far as prices on engines tell: each source goes its
/// cheapest way at these prices, each engine fills the rungs that are cheaper than its price.
/// Equal to the objective at an optimum's own prices.
#[must_use]
pub fn lower_bound(instance: &Instance, of_engine: &[i64]) -> i128 {
    let mut bound: i128 = 0;
    for (rungs, price) in instance.engines.iter().zip(of_engine) {
        let gain = |r: &super::Rung| i128::from(r.width) * i128::from((r.cost - price).min(0));
        bound += rungs.iter().map(gain).sum::<i128>();
    }
    for (s, source) in instance.sources.iter().enumerate() {
        let mut rungs: Vec<super::Rung> = shed_rungs(source).collect();
        let ways = instance.ways(s);
        let free = source
            .costs
            .iter()
            .zip(ways)
            .map(|(c, e)| c + of_engine[*e as usize])
            .min();
        rungs.extend(free.map(|cost| super::Rung {
            width: super::UNBOUNDED,
            cost,
        }));
        rungs.extend(source.parts.iter().map(|part| super::Rung {
            width: part.width,
            cost: part.cost + of_engine[ways[part.place as usize] as usize],
        }));
        rungs.sort_unstable_by_key(|r| r.cost);
        bound += fill(rungs.into_iter(), source.demand).0;
    }
    bound
}

/// Flows by source and place, if nothing is negative, forgotten or over capacity.
fn feasible(instance: &Instance, solved: &Solved) -> Result<Vec<Vec<i64>>, Violation> {
    let mut flows: Vec<Vec<i64>> = instance
        .sources
        .iter()
        .map(|s| vec![0; s.costs.len()])
        .collect();
    let mut load = vec![0_i128; instance.engines.len()];
    for flow in solved.flows() {
        let (s, e) = (flow.source as usize, flow.engine);
        let at = || format!("source {s}, engine {e}");
        let place = flows.get(s).and_then(|_| instance.place(s, e));
        let place = place.ok_or_else(|| broken(&at(), "flow where there is no way"))?;
        if flow.amount <= 0 || flows[s][place] != 0 {
            return Err(broken(&at(), "a flow that is not above 0, or stands twice"));
        }
        flows[s][place] = flow.amount;
        load[e as usize] += i128::from(flow.amount);
    }
    for (s, source) in instance.sources.iter().enumerate() {
        let sent: i128 = flows[s].iter().map(|f| i128::from(*f)).sum();
        let all = sent + i128::from(solved.shed[s]);
        equal(
            &format!("source {s}"),
            "routed and refused",
            all,
            i128::from(source.demand),
        )?;
        if solved.shed[s] < 0 {
            return Err(broken(
                &format!("source {s}"),
                "less than nothing is refused",
            ));
        }
    }
    for (e, load) in load.into_iter().enumerate() {
        equal(
            &format!("engine {e}"),
            "load",
            i128::from(solved.load[e]),
            load,
        )?;
        if load > i128::from(instance.capacity(e)) {
            return Err(broken(&format!("engine {e}"), "load over capacity"));
        }
    }
    Ok(flows)
}

fn cost(instance: &Instance, solved: &Solved, flows: &[Vec<i64>]) -> i128 {
    let mut cost = 0;
    for ((source, flows), shed) in instance.sources.iter().zip(flows).zip(&solved.shed) {
        cost += fill(shed_rungs(source), *shed).0;
        for (place, flow) in flows.iter().enumerate() {
            cost += fill(way_rungs(source, place), *flow).0;
        }
    }
    for (rungs, load) in instance.engines.iter().zip(&solved.load) {
        cost += fill(rungs.iter().copied(), *load).0;
    }
    cost
}

/// The next unit costs no less, and the last one no more, than what it is worth.
fn slack(
    at: impl Fn() -> String,
    used: (Option<i64>, Option<i64>),
    worth: i64,
) -> Result<(), Violation> {
    let (next, last) = used;
    if next.is_some_and(|cost| cost < worth) {
        return Err(broken(
            &at(),
            &format!("a unit more gains: {next:?} against {worth}"),
        ));
    }
    if last.is_some_and(|cost| cost > worth) {
        return Err(broken(
            &at(),
            &format!("a unit less gains: {last:?} against {worth}"),
        ));
    }
    Ok(())
}

fn equal(at: &str, what: &str, got: i128, expected: i128) -> Result<(), Violation> {
    if got == expected {
        return Ok(());
    }
    Err(broken(at, &format!("{what}: {got}, not {expected}")))
}

fn broken(at: &str, what: &str) -> Violation {
    Violation {
        at: at.to_owned(),
        what: what.to_owned(),
    }
}
