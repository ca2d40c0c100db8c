//! What load adds at one engine, as convex pieces and what they leave to each arc.

use crate::model::problem::{Arc, Problem, Source};
use crate::model::segments::{Segment, grid, hull};

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
    /// What load adds to requests by each profile there, at the load of the mix; empty where the
    /// pieces say it all.
    delays: Vec<Delay>,
    /// What the pieces charge there, milliseconds per engine-second.
    charged_ms: f64,
}

/// What load adds to requests by one profile, milliseconds.
#[derive(Clone, Copy, Debug)]
struct Delay {
    profile: usize,
    first_ms: f64,
    token_ms: f64,
}

impl Curve {
    /// Every engine's curve at a mix of shares, or at the spread of all requests by capacity. An
    /// engine that the mix leaves empty sees the requests that the spread would send it.
    pub(super) fn all(problem: &Problem, shares: Option<&[Vec<f64>]>) -> Vec<Self> {
        let mut seen: Vec<Seen> = problem.engines.iter().map(|_| Seen::new()).collect();
        let mix = shares.map_or(Mix::Spread, Mix::Found);
        gather(problem, mix, &mut seen, |seen, part| {
            seen.add(problem, part)
        });
        let is_idle = |seen: &Seen| seen.load <= 0.0 && seen.first.is_some();
        if seen.iter().any(is_idle) {
            let idle: Vec<bool> = seen.iter().map(is_idle).collect();
            let emptied = seen.iter_mut().filter(|s| is_idle(s));
            emptied.for_each(Seen::empty);
            gather(problem, Mix::Anyone, &mut seen, |seen, part| {
                if idle[part.arc.engine.0] {
                    seen.mix(problem, part);
                }
            });
        }
        let one = |(e, seen)| Self::one(problem, e, seen);
        seen.into_iter().enumerate().map(one).collect()
    }

    fn one(problem: &Problem, e: usize, mut seen: Seen) -> Self {
        let engine = &problem.engines[e];
        let (base, at) = if engine.capacity > 0.0 {
            (
                seen.base_load / engine.capacity,
                (seen.load / engine.capacity).min(1.0),
            )
        } else {
            (0.0, 0.0)
        };
        seen.sums.sort_unstable_by_key(|sum| sum.profile);
        // Delay per engine-second of the mix, at a utilisation.
        let mean = |utilisation: f64| {
            let delay = |sum: &Sum| {
                let (ttft, tbot) = problem.profiles[sum.profile].at(utilisation);
                let first = ttft - sum.idle.0;
                first * sum.rps + (first + (tbot - sum.idle.1) - first) * sum.tokens
            };
            if seen.mixed > 0.0 {
                seen.sums.iter().map(delay).sum::<f64>() / seen.mixed
            } else {
                0.0
            }
        };
        let pieces = pieces(problem, e, base, &seen, &mean);
        let delay = |sum: &Sum| {
            let (ttft, tbot) = problem.profiles[sum.profile].at(at);
            Delay {
                profile: sum.profile,
                first_ms: ttft - sum.idle.0,
                token_ms: tbot - sum.idle.1,
            }
        };
        let delays = match seen.uniform {
            true => Vec::new(),
            false => seen.sums.iter().map(delay).collect(),
        };
        Self {
            pieces,
            base,
            uniform: seen.uniform,
            delays,
            charged_ms: mean(at),
        }
    }

    /// What the delay of an arc to this engine has beyond the pieces, milliseconds per request.
    pub(super) fn rest_ms(&self, arc: &Arc) -> f64 {
        let own = self.delays.iter().find(|d| d.profile == arc.profile.0);
        own.map_or(0.0, |own| {
            own.first_ms + arc.output_tokens * own.token_ms - arc.seconds * self.charged_ms
        })
    }

    /// What the pieces say that a load costs, milliseconds per second.
    pub(super) fn load_ms(&self, utilisation: f64) -> f64 {
        let mut left = utilisation;
        let mut sum = 0.0;
        for piece in &self.pieces {
            let taken = piece.width.min(left.max(0.0));
            sum += taken * piece.slope;
            left -= taken;
        }
        sum + left.max(0.0) * self.steepest()
    }

    /// Steepest piece, per utilisation.
    pub(super) fn steepest(&self) -> f64 {
        self.pieces.last().map_or(0.0, |p| p.slope)
    }
}

/// What programs at the mix of shares say that load costs there, milliseconds per second.
pub(super) fn congestion_ms(problem: &Problem, shares: &[Vec<f64>], utilisation: &[f64]) -> f64 {
    let curves = Curve::all(problem, Some(shares));
    let loads = curves.iter().zip(utilisation);
    let by_load: f64 = loads.map(|(curve, load)| curve.load_ms(*load)).sum();
    let rest = |(source, shares): (&Source, &Vec<f64>)| -> f64 {
        let used = source.arcs.iter().zip(shares).filter(|(_, x)| **x > 0.0);
        let rest: f64 = used.map(|(a, x)| x * curves[a.engine.0].rest_ms(a)).sum();
        source.demand() * rest
    };
    by_load + problem.sources.iter().zip(shares).map(rest).sum::<f64>()
}

/// One arc's part in an engine's load.
struct Part<'a> {
    source: &'a Source,
    position: usize,
    arc: &'a Arc,
    rps: f64,
}

/// Where requests are taken to go.
#[derive(Clone, Copy)]
enum Mix<'a> {
    /// To these shares; those of sources that are not chosen stand.
    Found(&'a [Vec<f64>]),
    /// To every engine by its capacity, but for sources that are not chosen.
    Spread,
    /// The same, whoever they are of.
    Anyone,
}

/// Every arc that brings load or may, by source, then arc.
fn gather(
    problem: &Problem,
    mix: Mix<'_>,
    seen: &mut [Seen],
    mut take: impl FnMut(&mut Seen, &Part<'_>),
) {
    let mut row = Vec::new();
    for (s, source) in problem.sources.iter().enumerate() {
        let shares = match (mix, &source.fixed) {
            (Mix::Found(_) | Mix::Spread, Some(fixed)) => fixed,
            (Mix::Found(shares), None) => &shares[s],
            (Mix::Spread, None) | (Mix::Anyone, _) => {
                spread(problem, source, &mut row);
                &row
            }
        };
        for (position, (arc, share)) in source.arcs.iter().zip(shares).enumerate() {
            let rps = source.planned_rps * share;
            if arc.open || (source.fixed.is_some() && rps > 0.0) {
                let part = Part {
                    source,
                    position,
                    arc,
                    rps,
                };
                take(&mut seen[arc.engine.0], &part);
            }
        }
    }
}

/// A source's shares before any are known: by the capacity of open arcs.
pub(super) fn spread(problem: &Problem, source: &Source, row: &mut Vec<f64>) {
    row.clear();
    row.extend(source.arcs.iter().map(|a| match a.open {
        true => problem.engines[a.engine.0].capacity / a.seconds,
        false => 0.0,
    }));
    let total: f64 = row.iter().sum();
    let share = |of: f64| if total > 0.0 { of / total } else { 0.0 };
    row.iter_mut().for_each(|of| *of = share(*of));
}

/// What is seen of an engine's arcs, one after the other: there are too many to keep.
struct Seen {
    /// Engine-seconds per second that sources which are not chosen bring.
    base_load: f64,
    /// All of the mix.
    load: f64,
    /// All of the mix that the sums are of.
    mixed: f64,
    /// What the weights that stand bring.
    standing: f64,
    sums: Vec<Sum>,
    /// Whether a delay per work is the same for every arc so far.
    uniform: bool,
    /// Kinds of requests met so far, by profile, work and tokens.
    kinds: Vec<[u64; 3]>,
    first: Option<Arc>,
}

/// What requests by one profile are at an engine.
struct Sum {
    profile: usize,
    /// Its latencies without load, milliseconds.
    idle: (f64, f64),
    /// Requests per second of the mix.
    rps: f64,
    /// Their answers' tokens per second.
    tokens: f64,
}

impl Seen {
    fn new() -> Self {
        Self {
            base_load: 0.0,
            load: 0.0,
            mixed: 0.0,
            standing: 0.0,
            sums: Vec::new(),
            uniform: true,
            kinds: Vec::new(),
            first: None,
        }
    }

    fn add(&mut self, problem: &Problem, part: &Part<'_>) {
        let (source, arc) = (part.source, part.arc);
        let load = part.rps * arc.seconds;
        self.load += load;
        if source.fixed.is_some() {
            self.base_load += load;
        }
        if let Some(weights) = source.previous.as_ref().or(source.fixed.as_ref()) {
            self.standing += source.planned_rps * weights[part.position] * arc.seconds;
        }
        let first = *self.first.get_or_insert(*arc);
        self.uniform = self.uniform && self.is_alike(problem, arc, &first);
        self.mix(problem, part);
    }

    /// Adds to the sums alone.
    fn mix(&mut self, problem: &Problem, part: &Part<'_>) {
        self.mixed += part.rps * part.arc.seconds;
        let profile = part.arc.profile.0;
        let at = match self.sums.iter().position(|sum| sum.profile == profile) {
            Some(at) => at,
            None => {
                self.sums.push(Sum {
                    profile,
                    idle: problem.profiles[profile].at(0.0),
                    rps: 0.0,
                    tokens: 0.0,
                });
                self.sums.len() - 1
            }
        };
        let sum = &mut self.sums[at];
        sum.rps += part.rps;
        sum.tokens += part.rps * part.arc.output_tokens;
    }

    /// Forgets the sums.
    fn empty(&mut self) {
        self.mixed = 0.0;
        for sum in &mut self.sums {
            (sum.rps, sum.tokens) = (0.0, 0.0);
        }
    }

    /// Whether an arc's delay per work is the first one's at every load.
    fn is_alike(&mut self, problem: &Problem, arc: &Arc, first: &Arc) -> bool {
        // Most arcs are alike but for their distance: each kind is looked at once.
        let kind = [
            arc.profile.0 as u64,
            arc.seconds.to_bits(),
            arc.output_tokens.to_bits(),
        ];
        if self.kinds.iter().rev().take(MOST_KINDS).any(|k| *k == kind) {
            return true;
        }
        self.kinds.push(kind);
        let points = &problem.profiles[arc.profile.0].points;
        let first_points = &problem.profiles[first.profile.0].points;
        points.iter().chain(first_points).all(|point| {
            let own = problem.delay_ms(arc, point.utilisation) / arc.seconds;
            let firsts = problem.delay_ms(first, point.utilisation) / first.seconds;
            (own - firsts).abs() <= SAME * own.abs().max(firsts.abs())
        })
    }
}

fn pieces(
    problem: &Problem,
    e: usize,
    base: f64,
    seen: &Seen,
    mean: &dyn Fn(f64) -> f64,
) -> Vec<Segment> {
    let engine = &problem.engines[e];
    if engine.capacity <= 0.0 {
        return Vec::new();
    }
    let mut borders: Vec<f64> = Vec::new();
    for sum in &seen.sums {
        let points = &problem.profiles[sum.profile].points;
        borders.extend(points.iter().map(|p| p.utilisation));
    }
    borders.extend(over_safe_borders(engine.headroom));
    let fine: Vec<f64> = fine_borders(seen.standing / engine.capacity)
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
