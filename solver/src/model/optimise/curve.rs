//! What load adds at one engine, as convex pieces and what they leave to each arc.

use crate::model::problem::{Arc, Problem};
use crate::model::segments::{Segment, grid, hull};

/// Widest step of the grid, in utilisation.
const STEP: f64 = 1.0 / 32.0;
/// Steps in which load between safe and hard capacity grows dearer.
const OVER_SAFE_STEPS: u32 = 10;
/// Kinds of requests that are looked for among those seen.
const MOST_KINDS: usize = 64;
/// Delays per work closer than this, relatively, are one.
const SAME: f64 = 1e-9;

/// One engine's cost of load.
#[derive(Clone, Debug)]
pub(super) struct Curve {
    /// Pieces over utilisation: milliseconds per second for all of it.
    pub(super) pieces: Vec<Segment>,
    /// Utilisation that sources which are not chosen bring.
    pub(super) base: f64,
    /// Whether a delay per work is the same for every arc, so that the pieces say it all.
    pub(super) uniform: bool,
    /// By source and arc position: delay beyond what the pieces charge, milliseconds per request.
    pub(super) rest: Vec<(usize, usize, f64)>,
}

/// One arc's part in an engine's load.
struct Part {
    source: usize,
    position: usize,
    arc: Arc,
    rps: f64,
}

impl Curve {
    /// Every engine's curve at a mix of shares. Where that leaves an engine empty, `fallback`
    /// says which requests it would see.
    pub(super) fn all(problem: &Problem, shares: &[Vec<f64>], fallback: &[Vec<f64>]) -> Vec<Self> {
        let mut parts: Vec<Vec<Part>> = problem.engines.iter().map(|_| Vec::new()).collect();
        for (s, source) in problem.sources.iter().enumerate() {
            for (position, &arc) in source.arcs.iter().enumerate() {
                let share = source
                    .fixed
                    .as_ref()
                    .map_or(shares[s][position], |w| w[position]);
                let rps = source.planned_rps * share;
                if arc.open || (source.fixed.is_some() && rps > 0.0) {
                    parts[arc.engine.0].push(Part {
                        source: s,
                        position,
                        arc,
                        rps,
                    });
                }
            }
        }
        let one = |(e, parts): (usize, Vec<Part>)| Self::one(problem, e, parts, fallback);
        parts.into_iter().enumerate().map(one).collect()
    }

    fn one(problem: &Problem, e: usize, mut parts: Vec<Part>, fallback: &[Vec<f64>]) -> Self {
        let engine = &problem.engines[e];
        let load = |parts: &[Part]| parts.iter().map(|p| p.rps * p.arc.seconds).sum::<f64>();
        let fixed = |p: &&Part| problem.sources[p.source].fixed.is_some();
        let of_fixed = |p: &Part| p.rps * p.arc.seconds;
        let base_load: f64 = parts.iter().filter(fixed).map(of_fixed).sum();
        let (base, at) = if engine.capacity > 0.0 {
            (
                base_load / engine.capacity,
                (load(&parts) / engine.capacity).min(1.0),
            )
        } else {
            (0.0, 0.0)
        };
        if load(&parts) <= 0.0 {
            for part in &mut parts {
                let planned = problem.sources[part.source].planned_rps;
                part.rps = planned * fallback[part.source][part.position];
            }
        }
        let uniform = uniform(problem, &parts);
        // Delay per engine-second of the mix, at a utilisation.
        let total = load(&parts);
        let sums = sums(problem, &parts);
        let mean = |utilisation: f64| {
            let delay = |(arc, rps, tokens): &(Arc, f64, f64)| {
                let first = problem.delay_ms(
                    &Arc {
                        output_tokens: 0.0,
                        ..*arc
                    },
                    utilisation,
                );
                let with_one = Arc {
                    output_tokens: 1.0,
                    ..*arc
                };
                first * rps + (problem.delay_ms(&with_one, utilisation) - first) * tokens
            };
            if total > 0.0 {
                sums.iter().map(delay).sum::<f64>() / total
            } else {
                0.0
            }
        };
        let pieces = pieces(problem, e, base, &parts, &mean);
        let mean_at = mean(at);
        let rest = |p: &Part| {
            let own = problem.delay_ms(&p.arc, at);
            (p.source, p.position, own - p.arc.seconds * mean_at)
        };
        let rest = if uniform {
            Vec::new()
        } else {
            parts.iter().map(rest).collect()
        };
        Self {
            pieces,
            base,
            uniform,
            rest,
        }
    }

    /// What an arc's delay has beyond the pieces.
    pub(super) fn rest_ms(&self, source: usize, position: usize) -> f64 {
        let key = (source, position);
        let found = self.rest.binary_search_by_key(&key, |(s, p, _)| (*s, *p));
        found.map_or(0.0, |i| self.rest[i].2)
    }

    /// Steepest piece, per utilisation.
    pub(super) fn steepest(&self) -> f64 {
        self.pieces.last().map_or(0.0, |p| p.slope)
    }
}

/// By profile: an arc of it, requests per second of the mix, and their answers' tokens.
fn sums(problem: &Problem, parts: &[Part]) -> Vec<(Arc, f64, f64)> {
    let mut sums: Vec<Option<(Arc, f64, f64)>> = vec![None; problem.profiles.len()];
    for part in parts {
        let sum = sums[part.arc.profile.0].get_or_insert((part.arc, 0.0, 0.0));
        sum.1 += part.rps;
        sum.2 += part.rps * part.arc.output_tokens;
    }
    sums.into_iter().flatten().collect()
}

/// Whether every arc's delay per work is the same at every load.
fn uniform(problem: &Problem, parts: &[Part]) -> bool {
    let Some(first) = parts.first() else {
        return true;
    };
    // Most arcs are alike but for their distance: each kind is looked at once.
    let mut seen: Vec<[u64; 3]> = Vec::new();
    parts.iter().all(|p| {
        let profile = p.arc.profile.0 as u64;
        let kind = [
            profile,
            p.arc.seconds.to_bits(),
            p.arc.output_tokens.to_bits(),
        ];
        if seen.iter().rev().take(MOST_KINDS).any(|k| *k == kind) {
            return true;
        }
        seen.push(kind);
        let points = &problem.profiles[p.arc.profile.0].points;
        let first_points = &problem.profiles[first.arc.profile.0].points;
        points.iter().chain(first_points).all(|point| {
            let own = problem.delay_ms(&p.arc, point.utilisation) / p.arc.seconds;
            let firsts = problem.delay_ms(&first.arc, point.utilisation) / first.arc.seconds;
            (own - firsts).abs() <= SAME * own.abs().max(firsts.abs())
        })
    })
}

fn pieces(
    problem: &Problem,
    e: usize,
    base: f64,
    parts: &[Part],
    mean: &dyn Fn(f64) -> f64,
) -> Vec<Segment> {
    let engine = &problem.engines[e];
    if engine.capacity <= 0.0 {
        return Vec::new();
    }
    let mut borders: Vec<f64> = Vec::new();
    let mut known = vec![false; problem.profiles.len()];
    for part in parts {
        let profile = part.arc.profile.0;
        if !std::mem::replace(&mut known[profile], true) {
            let points = &problem.profiles[profile].points;
            borders.extend(points.iter().map(|p| p.utilisation));
        }
    }
    borders.extend(over_safe_borders(engine.headroom));
    let cost = |u: f64| {
        let load = u * engine.capacity;
        load * mean(u) + over_safe_ms(problem, e, u)
    };
    let points: Vec<(f64, f64)> = grid(borders.into_iter(), STEP)
        .into_iter()
        .map(|u| (u, cost(u)))
        .collect();
    let mut pieces = hull(&points);
    if base > 1.0 {
        // Load that is not ours to choose exceeds the engine: it must still be accounted for.
        let slope = pieces.last().map_or(0.0, |p| p.slope);
        pieces.push(Segment {
            width: base - 1.0,
            slope,
        });
    }
    pieces
}

fn over_safe_borders(headroom: f64) -> impl Iterator<Item = f64> {
    let step = (1.0 - headroom) / f64::from(OVER_SAFE_STEPS);
    (0..OVER_SAFE_STEPS)
        .map(move |j| headroom + step * f64::from(j))
        .filter(|b| *b < 1.0)
}

/// Cost of an engine's load beyond safe capacity, milliseconds per second: each of ten steps to
/// hard capacity is dearer than the one before, so that excess spreads over engines instead of
/// falling on one.
pub(super) fn over_safe_ms(problem: &Problem, e: usize, utilisation: f64) -> f64 {
    let engine = &problem.engines[e];
    let step = (1.0 - engine.headroom) / f64::from(OVER_SAFE_STEPS);
    if step <= 0.0 {
        return 0.0;
    }
    let mut cost = 0.0;
    for j in 0..OVER_SAFE_STEPS {
        let from = engine.headroom + step * f64::from(j);
        let most = if j + 1 == OVER_SAFE_STEPS {
            f64::INFINITY
        } else {
            step
        };
        let inside = (utilisation - from).clamp(0.0, most);
        let part = f64::from(j + 1) / f64::from(OVER_SAFE_STEPS);
        cost += inside * engine.capacity * engine.over_safe_ms * part;
    }
    cost
}
