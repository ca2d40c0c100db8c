//! What no answer to the general program can cost less than, by the prices of a flow.
//!
//! At any prices of an engine's second and of its memory, each source takes its cheapest ways and
//! each engine its cheapest load by themselves, and what all of that costs together, less what the
//! engines have at their prices, is no more than any answer that keeps to capacity (Lagrange's
//! bound). The general program is the one of a mix: what load adds to requests is that of the mix.
//! Bounds on steps and shares only make answers dearer, and are left out.

use crate::model::optimise::Solution;
use crate::model::optimise::curve::Curve;
use crate::model::optimise::lp::{priority_share, shed_pieces};
use crate::model::optimise::verify::shed_cost;
use crate::model::problem::{Arc, Problem, Source};

/// What one engine's resources are worth, milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Price {
    /// A second of its work.
    pub(super) work_ms: f64,
    /// A token-second of its memory.
    pub(super) memory_ms: f64,
}

/// The bound at a mix, milliseconds per second; `prices` are by engine.
pub(super) fn bound_ms(
    problem: &Problem,
    curves: &[Curve],
    prices: &[Price],
    shed_factor: f64,
) -> f64 {
    let mut pieces = Vec::new();
    let mut bound = 0.0;
    let way_ms = |arc: &Arc| way_ms(curves, arc);
    for source in &problem.sources {
        let request_ms = match &source.fixed {
            // Its work is part of what engines have to do anyway.
            Some(weights) => {
                let memory_ms = |a: &Arc| prices[a.engine.0].memory_ms * a.kv_token_s;
                let used = source.arcs.iter().zip(weights).filter(|(_, w)| **w > 0.0);
                used.map(|(a, w)| w * (way_ms(a) + memory_ms(a))).sum()
            }
            None => {
                let priced_ms = |arc: &Arc| {
                    let price = prices[arc.engine.0];
                    way_ms(arc) + price.work_ms * arc.seconds + price.memory_ms * arc.kv_token_s
                };
                cheapest_ms(source, &priced_ms, shed_factor, &mut pieces)
            }
        };
        bound += planned_rps(source) * request_ms;
    }
    let engines = curves.iter().zip(prices).enumerate();
    bound
        + engines
            .map(|(e, (c, p))| load_ms(problem, e, c, *p))
            .sum::<f64>()
}

/// What an answer costs by the same curves and at the same rates, milliseconds per second; without
/// the prices of bounds that it breaks.
pub(super) fn cost_ms(problem: &Problem, curves: &[Curve], answer: &Solution) -> f64 {
    let mut load = vec![0.0; problem.engines.len()];
    let mut cost = 0.0;
    for (s, source) in problem.sources.iter().enumerate() {
        let rps = planned_rps(source);
        let mut request_ms = 0.0;
        let shares = source.arcs.iter().zip(&answer.shares[s]);
        for (arc, share) in shares.filter(|(_, share)| **share > 0.0) {
            request_ms += share * way_ms(curves, arc);
            load[arc.engine.0] += rps * share * arc.seconds;
        }
        if let (Some(previous), None) = (&source.previous, &source.fixed) {
            let moves = previous.iter().zip(&answer.shares[s]);
            let moved: f64 = moves.map(|(before, share)| (share - before).abs()).sum();
            request_ms += source.movement_ms / 2.0 * moved;
        }
        for (p, share) in answer.shed[s].iter().enumerate() {
            let price_ms = source.shed_ms[p] * answer.shed_factor;
            request_ms += shed_cost(*share, priority_share(source, p), price_ms);
        }
        cost += rps * request_ms;
    }
    let engines = problem.engines.iter().zip(curves).zip(load);
    let loaded = engines.filter(|((engine, _), _)| engine.capacity > 0.0);
    cost + loaded
        .map(|((engine, curve), load)| curve.load_ms(load / engine.capacity))
        .sum::<f64>()
}

/// What a request costs on a way but for the engine's load, milliseconds.
fn way_ms(curves: &[Curve], arc: &Arc) -> f64 {
    arc.network_ms + arc.service_ms + arc.money_ms + curves[arc.engine.0].rest_ms(arc)
}

/// The rate that a source is planned with. Where nobody can serve it, all of it is refused, and
/// the little that is planned of an idle source is not there.
fn planned_rps(source: &Source) -> f64 {
    match source.has_open_arc() || source.fixed.is_some() {
        true => source.planned_rps,
        false => source.demand(),
    }
}

/// What a request of a source costs by its cheapest ways, movement and refusing among them.
fn cheapest_ms(
    source: &Source,
    priced_ms: &dyn Fn(&Arc) -> f64,
    shed_factor: f64,
    pieces: &mut Vec<(f64, f64)>,
) -> f64 {
    let previous = source.previous.as_ref();
    let half = previous.map_or(0.0, |_| source.movement_ms / 2.0);
    let stands = previous.map_or(0.0, |weights| weights.iter().sum());
    pieces.clear();
    let mut least = f64::INFINITY;
    for (i, arc) in source.arcs.iter().enumerate().filter(|(_, a)| a.open) {
        let cost = priced_ms(arc);
        least = least.min(cost + half);
        let kept = previous.map_or(0.0, |weights| weights[i]);
        if kept > 0.0 {
            pieces.push((cost - half, kept));
        }
    }
    for (p, price) in source.shed_ms.iter().enumerate() {
        let share = priority_share(source, p);
        let slopes = shed_pieces(price * shed_factor);
        let width = share / slopes.size_hint().0 as f64;
        pieces.extend(slopes.map(|slope| (slope, width)));
    }
    pieces.retain(|(cost, width)| *cost < least && *width > 0.0);
    pieces.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut left, mut sum) = (1.0, half * stands);
    for (cost, width) in pieces.iter() {
        let part = width.min(left);
        sum += part * cost;
        left -= part;
    }
    if least.is_finite() {
        sum += left * least;
    }
    sum
}

/// What an engine's load costs at least beyond what it is worth.
fn load_ms(problem: &Problem, e: usize, curve: &Curve, price: Price) -> f64 {
    let engine = &problem.engines[e];
    let mut base = curve.base;
    let mut sum = 0.0;
    for piece in &curve.pieces {
        let taken = base.min(piece.width);
        base -= taken;
        let beyond = piece.slope - price.work_ms * engine.capacity;
        sum += taken * piece.slope + (piece.width - taken) * beyond.min(0.0);
    }
    sum - engine
        .kv_tokens
        .map_or(0.0, |tokens| price.memory_ms * tokens)
}
