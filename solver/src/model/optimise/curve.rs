//! What load adds at one engine, as convex pieces and what they leave to each arc.

use crate::model::problem::{Arc, Problem, Source};
use crate::model::segments::{Segment, grid, hull};
use crate::model::topology::Profile;

/// Widest step of the grid, in utilisation.
const STEP: f64 = 1.0 / 32.0;
/// Width and count, to each side, of the steps around the load that stands.
const FINE: f64 = 1.0 / 256.0;
const FINE_STEPS: i32 = 8;
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

/// One arc's part in an engine's load. There are as many as arcs: it is kept small.
struct Part<'a> {
    source: u32,
    position: u32,
    arc: &'a Arc,
    rps: f64,
}

impl Curve {
    /// Every engine's curve at a mix of shares. Where that leaves an engine empty, `fallback`
    /// says which requests it would see.
    pub(super) fn all(problem: &Problem, shares: &[Vec<f64>], fallback: &[Vec<f64>]) -> Vec<Self> {
        let mut counts = vec![0; problem.engines.len()];
        let arcs = problem.sources.iter().flat_map(|s| &s.arcs);
        arcs.for_each(|a| counts[a.engine.0] += 1);
        let mut parts: Vec<Vec<Part<'_>>> = counts.into_iter().map(Vec::with_capacity).collect();
        for (s, source) in problem.sources.iter().enumerate() {
            for (position, arc) in source.arcs.iter().enumerate() {
                let share = source
                    .fixed
                    .as_ref()
                    .map_or(shares[s][position], |w| w[position]);
                let rps = source.planned_rps * share;
                if arc.open || (source.fixed.is_some() && rps > 0.0) {
                    parts[arc.engine.0].push(Part {
                        source: s as u32,
                        position: position as u32,
                        arc,
                        rps,
                    });
                }
            }
        }
        let one = |(e, parts): (usize, Vec<Part<'_>>)| Self::one(problem, e, parts, fallback);
        parts.into_iter().enumerate().map(one).collect()
    }

    fn one(problem: &Problem, e: usize, mut parts: Vec<Part<'_>>, fallback: &[Vec<f64>]) -> Self {
        let engine = &problem.engines[e];
        let load = |parts: &[Part<'_>]| parts.iter().map(|p| p.rps * p.arc.seconds).sum::<f64>();
        let fixed = |p: &&Part<'_>| problem.sources[p.source as usize].fixed.is_some();
        let of_fixed = |p: &Part<'_>| p.rps * p.arc.seconds;
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
                let (s, i) = (part.source as usize, part.position as usize);
                part.rps = problem.sources[s].planned_rps * fallback[s][i];
            }
        }
        let uniform = uniform(problem, &parts);
        // Delay per engine-second of the mix, at a utilisation.
        let total = load(&parts);
        let sums = sums(problem, &parts);
        let mean = |utilisation: f64| {
            let delay = |sum: &Sum<'_>| {
                let (ttft, tbot) = sum.profile.at(utilisation);
                let first = ttft - sum.idle.0;
                first * sum.rps + (first + (tbot - sum.idle.1) - first) * sum.tokens
            };
            if total > 0.0 {
                sums.iter().map(delay).sum::<f64>() / total
            } else {
                0.0
            }
        };
        let pieces = pieces(problem, e, base, &parts, &mean);
        let mean_at = mean(at);
        let rest = |p: &Part<'_>| {
            let own = problem.delay_ms(p.arc, at);
            (
                p.source as usize,
                p.position as usize,
                own - p.arc.seconds * mean_at,
            )
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

    /// By source and arc: what its delay has beyond the pieces; empty where nothing has.
    pub(super) fn rests(problem: &Problem, curves: &[Self]) -> Vec<Vec<f64>> {
        if curves.iter().all(|c| c.rest.is_empty()) {
            return Vec::new();
        }
        let none = |source: &Source| vec![0.0; source.arcs.len()];
        let mut rests: Vec<Vec<f64>> = problem.sources.iter().map(none).collect();
        for &(source, position, rest_ms) in curves.iter().flat_map(|c| &c.rest) {
            rests[source][position] = rest_ms;
        }
        rests
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

/// What requests by one profile are at an engine.
struct Sum<'a> {
    profile: &'a Profile,
    /// Its latencies without load, milliseconds.
    idle: (f64, f64),
    /// Requests per second of the mix.
    rps: f64,
    /// Their answers' tokens per second.
    tokens: f64,
}

/// By profile, in order.
fn sums<'a>(problem: &'a Problem, parts: &[Part<'_>]) -> Vec<Sum<'a>> {
    let mut sums: Vec<Option<Sum<'_>>> = problem.profiles.iter().map(|_| None).collect();
    for part in parts {
        let p = part.arc.profile.0;
        let profile = &problem.profiles[p];
        let sum = sums[p].get_or_insert_with(|| Sum {
            profile,
            idle: profile.at(0.0),
            rps: 0.0,
            tokens: 0.0,
        });
        sum.rps += part.rps;
        sum.tokens += part.rps * part.arc.output_tokens;
    }
    sums.into_iter().flatten().collect()
}

/// Whether every arc's delay per work is the same at every load.
fn uniform(problem: &Problem, parts: &[Part<'_>]) -> bool {
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
            let own = problem.delay_ms(p.arc, point.utilisation) / p.arc.seconds;
            let firsts = problem.delay_ms(first.arc, point.utilisation) / first.arc.seconds;
            (own - firsts).abs() <= SAME * own.abs().max(firsts.abs())
        })
    })
}

fn pieces(
    problem: &Problem,
    e: usize,
    base: f64,
    parts: &[Part<'_>],
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
    let fine: Vec<f64> = fine_borders(standing(problem, e, parts))
        .filter(|u| borders.iter().all(|b| (u - b).abs() > FINE / 4.0))
        .collect();
    borders.extend(fine);
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

/// Utilisation that the weights that stand bring; 0 without any.
fn standing(problem: &Problem, e: usize, parts: &[Part<'_>]) -> f64 {
    let load = |p: &Part<'_>| {
        let source = &problem.sources[p.source as usize];
        let weights = source.previous.as_ref().or(source.fixed.as_ref());
        let weight = weights.map_or(0.0, |w| w[p.position as usize]);
        source.planned_rps * weight * p.arc.seconds
    };
    parts.iter().map(load).sum::<f64>() / problem.engines[e].capacity
}

/// Finer steps around the utilisation that stands: a step's price is far beyond that of movement,
/// and a little change of demand must not be worth a whole one.
fn fine_borders(at: f64) -> impl Iterator<Item = f64> {
    let fine = if at > 0.0 { FINE_STEPS } else { 0 };
    (-fine..=fine)
        .map(move |j| at + FINE * f64::from(j))
        .filter(|u| *u > 0.0 && *u < 1.0)
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
