//! The true cost and the true constraints, apart from how the answer was found.

use super::bounds::Bounds;
use super::curve::over_safe_ms;
use super::lp::{Answer, shed_pieces};
use super::{Solution, Status};
use crate::model::plan::Terms;
use crate::model::problem::{Problem, Source};

/// What rounding may leave: in shares, and in parts of an engine.
const TOLERANCE: f64 = 1e-6;
/// Weights that were not solved for may overload an engine; beyond this it is all the same.
const MOST_OVER: f64 = 10.0;
/// Shares below this are nothing.
const NOTHING: f64 = 1e-9;

/// Cleans an answer of rounding and checks it.
pub(super) fn verify(problem: &Problem, answer: Answer) -> Result<Solution, Status> {
    let bounds: Vec<Bounds> = (problem.sources.iter())
        .map(|source| Bounds::of(problem, source))
        .collect();
    verify_bounded(problem, &bounds, answer)
}

/// The same, with the bounds of every source at hand.
pub(super) fn verify_bounded(
    problem: &Problem,
    bounds: &[Bounds],
    answer: Answer,
) -> Result<Solution, Status> {
    let Answer {
        mut shares,
        mut shed,
        shed_factor,
    } = answer;
    for (s, source) in problem.sources.iter().enumerate() {
        if let Some(fixed) = &source.fixed {
            shares[s].clone_from(fixed);
        } else if source.has_open_arc() {
            clean(source, &mut shares[s], &mut shed[s])?;
        } else {
            // Nobody can serve it: all of it is refused, whatever its priority.
            let demand = source.demand().max(f64::MIN_POSITIVE);
            let all = source.demand_rps.iter().map(|rps| rps / demand);
            shed[s]
                .iter_mut()
                .zip(all)
                .for_each(|(u, share)| *u = share);
        }
    }
    let planned = utilisation(problem, &shares, |s| s.planned_rps);
    let fixed = problem.sources.iter().any(|s| s.fixed.is_some());
    for (e, engine) in problem.engines.iter().enumerate() {
        if engine.capacity > 0.0 && planned[e] > 1.0 + TOLERANCE && !fixed {
            let what = format!("engine {e}: utilisation {} is above 1", planned[e]);
            return Err(Status::ConstraintBroken { what });
        }
    }
    let held = kv_utilisation(problem, &shares, |s| s.planned_rps);
    for (e, held) in held.into_iter().enumerate() {
        if let Some(held) = held.filter(|held| *held > 1.0 + TOLERANCE && !fixed) {
            let what = format!("engine {e}: KV memory {held} is above 1");
            return Err(Status::ConstraintBroken { what });
        }
    }
    let (terms, utilisation) = cost(problem, &shares, &shed, shed_factor);
    if !terms.total().is_finite() {
        return Err(Status::NonFinite {
            what: format!("objective {terms:?}"),
        });
    }
    Ok(Solution {
        over_bounds_ms: over_bounds_ms(problem, bounds, &shares, &shed),
        kv_utilisation: kv_utilisation(problem, &shares, Source::demand),
        shares,
        shed,
        utilisation,
        terms,
        shed_factor,
        rounds: 1,
        method: problem.method,
        separability_error: 0.0,
        gap: 0.0,
        bound_gap: 0.0,
        pivots: 0,
    })
}

/// The true cost and the true utilisation of shares.
pub(super) fn evaluate(
    problem: &Problem,
    shares: &[Vec<f64>],
    shed: &[Vec<f64>],
    shed_factor: f64,
) -> (Terms, Vec<f64>) {
    cost(problem, shares, shed, shed_factor)
}

/// What the bounds are priced at that shares break, milliseconds per second.
pub(super) fn over_bounds_ms(
    problem: &Problem,
    bounds: &[Bounds],
    shares: &[Vec<f64>],
    shed: &[Vec<f64>],
) -> f64 {
    let one = |(s, bounds): (usize, &Bounds)| {
        let source = &problem.sources[s];
        if source.fixed.is_some() || !source.has_open_arc() {
            return 0.0;
        }
        let (step, share) = bounds.broken(source, &shares[s], shed[s].iter().sum());
        source.demand() * (problem.over_step_ms * step + problem.over_share_ms * share)
    };
    bounds.iter().enumerate().map(one).sum()
}

/// By engine: KV memory held over all of it, for a rate of each source; `None` without a bound.
pub(super) fn kv_utilisation(
    problem: &Problem,
    shares: &[Vec<f64>],
    rate: fn(&Source) -> f64,
) -> Vec<Option<f64>> {
    if problem.engines.iter().all(|e| e.kv_tokens.is_none()) {
        return vec![None; problem.engines.len()];
    }
    let mut held = vec![0.0; problem.engines.len()];
    for (source, shares) in problem.sources.iter().zip(shares) {
        let rate = rate(source);
        for (arc, share) in used(source, shares) {
            held[arc.engine.0] += rate * share * arc.kv_token_s;
        }
    }
    let over = |(held, engine): (&f64, &crate::model::problem::EngineSide)| {
        engine.kv_tokens.map(|tokens| match *held > 0.0 {
            true => (held / tokens).min(MOST_OVER),
            false => 0.0,
        })
    };
    held.iter().zip(&problem.engines).map(over).collect()
}

fn clean(source: &Source, shares: &mut [f64], shed: &mut [f64]) -> Result<(), Status> {
    let at = || format!("frontend {}, class {}", source.frontend.0, source.class.0);
    for (name, values) in [("share", &mut *shares), ("shed share", &mut *shed)] {
        for value in values.iter_mut() {
            if !value.is_finite() {
                return Err(Status::NonFinite {
                    what: format!("{}: {name} {value}", at()),
                });
            }
            if *value < -TOLERANCE || *value > 1.0 + TOLERANCE {
                let what = format!("{}: {name} {value} is not from 0 to 1", at());
                return Err(Status::ConstraintBroken { what });
            }
            *value = if *value < NOTHING {
                0.0
            } else {
                value.min(1.0)
            };
        }
    }
    let refused: f64 = shed.iter().sum();
    let routed: f64 = shares.iter().sum();
    if (refused + routed - 1.0).abs() > TOLERANCE {
        let what = format!(
            "{}: routed {routed} and refused {refused} are not all",
            at()
        );
        return Err(Status::ConstraintBroken { what });
    }
    if routed > 0.0 {
        let target = (1.0 - refused).max(0.0);
        if routed != target {
            shares.iter_mut().for_each(|x| *x *= target / routed);
        }
    }
    Ok(())
}

/// The arcs that shares use. They are few: to look at all of them would take most of the time.
fn used<'a>(
    source: &'a Source,
    shares: &'a [f64],
) -> impl Iterator<Item = (&'a crate::model::problem::Arc, f64)> {
    let used = shares
        .iter()
        .enumerate()
        .filter(|(_, share)| **share != 0.0);
    used.map(|(i, share)| (&source.arcs[i], *share))
}

/// By engine: load over hard capacity, at most [`MOST_OVER`], for a rate of each source.
fn utilisation(problem: &Problem, shares: &[Vec<f64>], rate: fn(&Source) -> f64) -> Vec<f64> {
    let mut load = vec![0.0; problem.engines.len()];
    for (source, shares) in problem.sources.iter().zip(shares) {
        let rate = rate(source);
        for (arc, share) in used(source, shares) {
            load[arc.engine.0] += rate * share * arc.seconds;
        }
    }
    let over = |(load, engine): (&f64, &crate::model::problem::EngineSide)| match (
        *load > 0.0,
        engine.capacity > 0.0,
    ) {
        (false, _) => 0.0,
        (true, true) => (load / engine.capacity).min(MOST_OVER),
        (true, false) => MOST_OVER,
    };
    load.iter().zip(&problem.engines).map(over).collect()
}

fn cost(
    problem: &Problem,
    shares: &[Vec<f64>],
    shed: &[Vec<f64>],
    shed_factor: f64,
) -> (Terms, Vec<f64>) {
    let utilisation = utilisation(problem, shares, Source::demand);
    let mut terms = Terms::default();
    for ((source, shares), shed) in problem.sources.iter().zip(shares).zip(shed) {
        let demand = source.demand();
        for (arc, share) in used(source, shares) {
            let rps = demand * share;
            if rps > 0.0 {
                terms.network += rps * arc.network_ms;
                terms.service += rps * arc.service_ms;
                terms.money += rps * arc.money_ms;
                terms.congestion += rps * problem.delay_ms(arc, utilisation[arc.engine.0]);
            }
        }
        if let (Some(previous), None) = (&source.previous, &source.fixed) {
            let price_ms = source.movement_ms / 2.0 * demand;
            for (share, before) in shares.iter().zip(previous).filter(|(x, w)| x != w) {
                terms.movement += price_ms * (share - before).abs();
            }
        }
        for (p, share) in shed.iter().enumerate() {
            let all = source.demand_rps.get(p).copied().unwrap_or(0.0);
            terms.shed += shed_cost(demand * share, all, source.shed_ms[p] * shed_factor);
        }
    }
    for (e, utilisation) in utilisation.iter().enumerate() {
        if problem.engines[e].capacity > 0.0 {
            terms.congestion += over_safe_ms(problem, e, *utilisation);
        }
    }
    (terms, utilisation)
}

/// Cost of refusing `rps` of `all`, cheapest pieces first.
pub(super) fn shed_cost(rps: f64, all: f64, shed_ms: f64) -> f64 {
    let count = shed_pieces(shed_ms).count() as f64;
    let mut left = rps;
    let mut cost = 0.0;
    for price in shed_pieces(shed_ms) {
        let part = left.min(all / count);
        cost += part * price;
        left -= part;
    }
    cost
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::problem::{Arc, EngineSide};
    use crate::model::topology::{
        ClassId, EngineId, FrontendId, Method, Point, Profile, ProfileId,
    };

    fn problem() -> Problem {
        let arc = Arc {
            engine: EngineId(0),
            open: true,
            network_ms: 1.0,
            service_ms: 2.0,
            seconds: 0.1,
            output_tokens: 0.0,
            money_ms: 0.0,
            kv_token_s: 0.0,
            profile: ProfileId(0),
            most: None,
        };
        let point = |utilisation| Point {
            utilisation,
            ttft_ms: 2.0,
            tbot_ms: 0.0,
        };
        Problem {
            sources: vec![Source {
                frontend: FrontendId(0),
                class: ClassId(0),
                demand_rps: vec![20.0],
                planned_rps: 20.0,
                shed_ms: vec![100.0],
                movement_ms: 0.5,
                arcs: vec![arc],
                previous: None,
                fixed: None,
            }],
            engines: vec![EngineSide {
                capacity: 1.0,
                headroom: 1.0,
                over_safe_ms: 0.0,
                kv_tokens: None,
                region: 0,
                max_share: None,
            }],
            profiles: vec![Profile {
                name: "flat".into(),
                assumed: false,
                points: vec![point(0.0), point(1.0)],
            }],
            max_step: 0.1,
            over_step_ms: 1_000.0,
            limit_ms: 1_000,
            method: Method::Lp,
            pivot_limit: 1_000_000,
            region_most: vec![None],
            over_share_ms: 5_000.0,
        }
    }

    fn answer(share: f64, shed: f64) -> Result<Solution, Status> {
        let (shares, shed) = (vec![vec![share]], vec![vec![shed]]);
        verify(
            &problem(),
            Answer {
                shares,
                shed,
                shed_factor: 1.0,
            },
        )
    }

    #[test]
    fn rounding_is_cleaned() {
        let solution = answer(0.5 + 1e-8, 0.5 - 2e-8).expect("within rounding");
        assert_eq!(solution.shares[0][0] + solution.shed[0][0], 1.0);
        let solution = answer(-1e-10, 1.0).expect("within rounding");
        assert_eq!(solution.shares[0][0].to_bits(), 0);
        assert!((solution.terms.total() - 20.0 * 105.0).abs() < 1e-9);
    }

    #[test]
    fn a_broken_constraint_is_named() {
        let broken = |share, shed| match answer(share, shed) {
            Err(Status::ConstraintBroken { what }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(broken(1.0, 0.0), "engine 0: utilisation 2 is above 1");
        assert_eq!(
            broken(0.5, 0.25),
            "frontend 0, class 0: routed 0.5 and refused 0.25 are not all"
        );
        assert_eq!(
            broken(-0.5, 1.0),
            "frontend 0, class 0: share -0.5 is not from 0 to 1"
        );
    }

    #[test]
    fn h07_what_is_not_finite_is_named() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let what = format!("frontend 0, class 0: share {bad}");
            assert_eq!(answer(bad, 0.0), Err(Status::NonFinite { what }));
        }
    }
}
