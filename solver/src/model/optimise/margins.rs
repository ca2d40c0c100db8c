//! What the next and the last unit cost where an answer stands.
//!
//! The pieces and ladders are those that the methods solve with, taken at the mix found; nothing is
//! solved here. `crate::model::explain` makes prices of it.

use super::Solution;
use super::bounds::Bounds;
use super::curve::Curve;
use super::lp::{priority_share, shed_pieces};
use crate::model::problem::{Arc, Problem, Source};

/// Both sides of every convex cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Margins {
    /// By engine.
    pub engines: Vec<EngineMargin>,
    /// By source.
    pub sources: Vec<SourceMargin>,
    /// Whether load adds the same delay per work to all requests of an engine, so that what is
    /// planned does not change what it charges.
    pub alike: bool,
}

/// One engine's cost of load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineMargin {
    /// Planned load over hard capacity; 0 without either.
    pub load: f64,
    /// Planned KV memory over all of it; 0 where that is no bound.
    pub kv: f64,
    /// The next engine-second, milliseconds; `None` at hard capacity.
    pub next_ms: Option<f64>,
    /// The last one; `None` without load.
    pub last_ms: Option<f64>,
    /// All of it over hard capacity, milliseconds: what another engine-second of capacity would
    /// charge for as much load.
    pub filled_ms: f64,
}

/// One source's cost of refusing, its soft bounds, and what the engines' pieces leave to its arcs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceMargin {
    /// The next request refused, milliseconds.
    pub refuse_ms: f64,
    /// The last one refused; `None` where none is.
    pub refused_ms: Option<f64>,
    /// By arc: delay of a request beyond what the engine's pieces charge, milliseconds.
    pub rest_ms: Vec<f64>,
    /// Most of its demand that moves without extra price; 1 for no bound.
    pub most_moved: f64,
    /// By arc: most of its demand that is to go there, where that is bounded.
    pub most: Vec<Option<f64>>,
    /// Regions, and most of its demand that is to go there.
    pub regions: Vec<(usize, f64)>,
}

/// Both sides of every convex cost at an answer; what is `near` a border, in parts of an engine or
/// of a demand, is at it.
#[must_use]
pub fn margins(problem: &Problem, solution: &Solution, near: f64) -> Margins {
    let curves = Curve::all(problem, Some(&solution.shares));
    let (mut load, mut kv) = (
        vec![0.0; problem.engines.len()],
        vec![0.0; problem.engines.len()],
    );
    for (source, shares) in problem.sources.iter().zip(&solution.shares) {
        for (arc, share) in source.arcs.iter().zip(shares) {
            load[arc.engine.0] += source.planned_rps * share * arc.seconds;
            kv[arc.engine.0] += source.planned_rps * share * arc.kv_token_s;
        }
    }
    let engine = |(e, curve): (usize, &Curve)| {
        let side = &problem.engines[e];
        let over = |used: f64, all: f64| if all > 0.0 { used / all } else { 0.0 };
        let load = over(load[e], side.capacity);
        let pieces = || curve.pieces.iter().map(|p| (p.width, p.slope));
        let (next, last) = sides(pieces(), load, near);
        EngineMargin {
            load,
            kv: side.kv_tokens.map_or(0.0, |tokens| over(kv[e], tokens)),
            next_ms: next.map(|slope| slope / side.capacity),
            last_ms: last.map(|slope| slope / side.capacity),
            filled_ms: over(filled(pieces(), load), side.capacity),
        }
    };
    let source = |(s, source): (usize, &Source)| {
        let bounds = Bounds::of(problem, source);
        let mut most = bounds.arcs;
        most.resize(source.arcs.len(), None);
        let region = |(inside, most): &(Vec<usize>, f64)| {
            let engine = source.arcs[*inside.first()?].engine;
            Some((problem.engines[engine.0].region, *most))
        };
        let rest_ms = |(i, arc): (usize, &Arc)| {
            let fixed = source.fixed.as_ref().map_or(0.0, |w| w[i]);
            match arc.open || source.planned_rps * fixed > 0.0 {
                true => curves[arc.engine.0].rest_ms(arc),
                false => 0.0,
            }
        };
        SourceMargin {
            rest_ms: source.arcs.iter().enumerate().map(rest_ms).collect(),
            most_moved: 1.0 - bounds.least_kept,
            regions: bounds.regions.iter().filter_map(region).collect(),
            most,
            ..refusing(source, &solution.shed[s], solution.shed_factor, near)
        }
    };
    Margins {
        engines: curves.iter().enumerate().map(engine).collect(),
        sources: problem.sources.iter().enumerate().map(source).collect(),
        alike: curves.iter().all(|curve| curve.uniform),
    }
}

/// The price of the next and of the last request refused, over all priorities.
fn refusing(source: &Source, shed: &[f64], factor: f64, near: f64) -> SourceMargin {
    let (mut next, mut last): (Option<f64>, Option<f64>) = (None, None);
    let mut dearest: f64 = 0.0;
    for (p, price) in source.shed_ms.iter().enumerate() {
        let share = priority_share(source, p);
        if share <= 0.0 {
            continue;
        }
        let slopes: Vec<f64> = shed_pieces(price * factor).collect();
        let width = share / slopes.len() as f64;
        dearest = slopes.iter().copied().fold(dearest, f64::max);
        let pieces = slopes.into_iter().map(|slope| (width, slope));
        let (own_next, own_last) = sides(pieces, shed[p], near.min(width / 2.0));
        next = [next, own_next].into_iter().flatten().reduce(f64::min);
        last = [last, own_last].into_iter().flatten().reduce(f64::max);
    }
    SourceMargin {
        // All that there is may be refused already: one more request would be too.
        refuse_ms: next.unwrap_or(dearest),
        refused_ms: last,
        ..SourceMargin::default()
    }
}

/// Cost of what fills pieces in order up to `at`.
fn filled(pieces: impl Iterator<Item = (f64, f64)>, at: f64) -> f64 {
    let mut left = at;
    let cost = |(width, slope): (f64, f64)| {
        let part = left.clamp(0.0, width);
        left -= part;
        part * slope
    };
    pieces.map(cost).sum()
}

/// Slope of the next and of the last unit where pieces are filled in order up to `at`.
fn sides(
    pieces: impl Iterator<Item = (f64, f64)>,
    at: f64,
    near: f64,
) -> (Option<f64>, Option<f64>) {
    let mut last = None;
    let mut border = 0.0;
    for (width, slope) in pieces.filter(|(width, _)| *width > 0.0) {
        if at > border + near || (at > 0.0 && last.is_none()) {
            last = Some(slope);
        }
        border += width;
        if at < border - near {
            return (Some(slope), last);
        }
    }
    (None, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_border_has_two_sides_and_the_end_has_one() {
        let pieces = || [(0.5, 1.0), (0.5, 3.0)].into_iter();
        assert_eq!(sides(pieces(), 0.0, 1e-6), (Some(1.0), None));
        assert_eq!(sides(pieces(), 0.25, 1e-6), (Some(1.0), Some(1.0)));
        assert_eq!(sides(pieces(), 0.5, 1e-6), (Some(3.0), Some(1.0)));
        assert_eq!(sides(pieces(), 0.75, 1e-6), (Some(3.0), Some(3.0)));
        assert_eq!(sides(pieces(), 0.49, 0.02), (Some(3.0), Some(1.0)));
        assert_eq!(sides(pieces(), 1.0 - 1e-8, 1e-6), (None, Some(3.0)));
        assert_eq!(sides(pieces(), 1e-9, 1e-6), (Some(1.0), Some(1.0)));
        assert_eq!(
            [0.25, 0.75, 2.0].map(|at| filled(pieces(), at)),
            [0.25, 1.25, 2.0]
        );
    }
}
