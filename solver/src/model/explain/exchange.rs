//! Prices of a plan, from what it would cost to change it by one unit.
//!
//! The graph of what can still be sent or taken back is walked twice: to the root, where a unit is
//! served with room to spare or refused, and from it. At an optimum no cycle of that graph gains,
//! so both walks end; where a plan is nearly one, a cycle may gain a little, and the least amount
//! that every exchange has to be charged to end them is the tolerance of the prices. Where that
//! would be much, as in a plan that was mended far from its program's optimum, gains of cycles are
//! no prices: then engines cost what their planned load says, full ones what one exchange does, and
//! the tolerance is how far requests stand from the cheapest choice at that. Work is the true work
//! of each request on each engine, so that nothing here depends on the method.

use super::ways::{Source, sources};
use crate::model::optimise::{Margins, Solution, margins};
use crate::model::problem::Problem;

/// What is this near to a border, in parts of an engine or of a source's demand, is at it. The
/// first is rounding; the second looks past crumbs that a mend leaves.
const NEAR: [f64; 2] = [1e-6, 1e-3];
/// The same where prices are one exchange deep.
const NEAR_SHALLOW: f64 = 1e-2;
/// Rounds of one walk; hardly any way has more exchanges.
const ROUNDS: usize = 64;
/// Changes of a price below this part of the dearest cost are rounding.
const SAME: f64 = 1e-10;
/// First tolerance that is tried, as part of the dearest way; each next is four times as much.
const FIRST: f64 = 1e-6;
/// Tolerances tried: the last is about a thousandth of the dearest way.
const TRIES: u32 = 6;

/// What is short at an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Short {
    /// Nothing: it has room.
    Nothing,
    /// Engine-seconds.
    Compute,
    /// KV memory.
    Memory,
}

/// How many exchanges prices follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// All.
    Full,
    /// One.
    One,
}

/// Prices of a plan.
pub(super) struct Prices {
    pub(super) margins: Margins,
    /// By source; `None` for one that is no choice.
    pub(super) sources: Vec<Option<Source>>,
    /// By engine: what is short there.
    pub(super) short: Vec<Short>,
    /// By source: what one request less costs, milliseconds; below zero for a saving.
    pub(super) less: Vec<f64>,
    /// By engine: what one more unit of what is short there pays, milliseconds.
    pub(super) engine_more: Vec<f64>,
    /// By engine: what one unit less pays.
    pub(super) engine_less: Vec<f64>,
    /// How many exchanges they follow.
    pub(super) depth: Depth,
    /// Most that an exchange of one request would still gain, milliseconds.
    pub(super) tolerance_ms: f64,
    /// What is this near to a border was taken for at it.
    pub(super) near: f64,
}

/// The two walks over one plan.
struct Walks<'a> {
    sources: &'a [Option<Source>],
    margins: &'a Margins,
    short: &'a [Short],
    /// Smaller changes are none.
    same: f64,
    /// Charged for every unit taken back.
    charge: f64,
}

/// The prices of a plan.
pub(super) fn prices(problem: &Problem, solution: &Solution) -> Prices {
    for near in NEAR {
        let view = View::new(problem, solution, near);
        let mut tolerance_ms = 0.0;
        for _ in 0..=TRIES {
            let walks = view.walks(tolerance_ms);
            let (to, from) = (walks.to_root(ROUNDS), walks.of_root(ROUNDS));
            if to.2 && from.2 {
                return view.prices(to, from, Depth::Full, tolerance_ms);
            }
            tolerance_ms = (tolerance_ms * 4.0).max(FIRST * view.dearest);
        }
    }
    let view = View::new(problem, solution, NEAR_SHALLOW);
    let walks = view.walks(0.0);
    let (to, from) = (walks.to_root(1), walks.of_root(1));
    let tolerance_ms = view.farthest(&to.1);
    view.prices(to, from, Depth::One, tolerance_ms)
}

/// What one walk found: by source, by engine, and whether it ended.
type Walked = (Vec<f64>, Vec<f64>, bool);

/// A plan with what is near a border taken for at it.
struct View {
    margins: Margins,
    short: Vec<Short>,
    sources: Vec<Option<Source>>,
    /// The dearest way, milliseconds.
    dearest: f64,
    near: f64,
}

impl View {
    fn new(problem: &Problem, solution: &Solution, near: f64) -> Self {
        let margins = margins(problem, solution, near);
        let short = |e: &crate::model::optimise::EngineMargin| match (
            e.next_ms.is_none() && e.load > 0.0,
            e.kv >= 1.0 - near,
        ) {
            (true, _) => Short::Compute,
            (false, true) => Short::Memory,
            (false, false) => Short::Nothing,
        };
        let short: Vec<Short> = margins.engines.iter().map(short).collect();
        let sources = sources(problem, solution, &margins, &short, near);
        let ways = sources.iter().flatten().map(Source::dearest);
        Self {
            dearest: ways.fold(1e-3, f64::max),
            margins,
            short,
            sources,
            near,
        }
    }

    fn walks(&self, charge: f64) -> Walks<'_> {
        Walks {
            sources: &self.sources,
            margins: &self.margins,
            short: &self.short,
            same: SAME * self.dearest,
            charge,
        }
    }

    /// Most that a choice in use is beyond the cheapest, at the engines' prices.
    fn farthest(&self, engine: &[f64]) -> f64 {
        let mut farthest: f64 = 0.0;
        for source in self.sources.iter().flatten() {
            let least = source.refuse_ms.min(source.cheapest(engine, None));
            for way in &source.ways {
                let pays = way.last_ms.map(|last| last + way.pays(engine) - least);
                farthest = pays
                    .filter(|ms| ms.is_finite())
                    .map_or(farthest, |ms| farthest.max(ms));
            }
        }
        farthest
    }

    fn prices(self, to: Walked, from: Walked, depth: Depth, tolerance_ms: f64) -> Prices {
        Prices {
            margins: self.margins,
            sources: self.sources,
            short: self.short,
            less: from.0,
            engine_more: to.1,
            engine_less: from.1,
            depth,
            tolerance_ms,
            near: self.near,
        }
    }
}

impl Walks<'_> {
    /// Least cost of one more unit at every source and engine; whether the walk ended.
    fn to_root(&self, rounds: usize) -> Walked {
        let mut more = vec![f64::INFINITY; self.sources.len()];
        let mut engine: Vec<f64> = (0..self.short.len()).map(|e| self.next(e)).collect();
        for _ in 0..rounds {
            for (more, source) in more.iter_mut().zip(self.sources) {
                if let Some(source) = source {
                    *more = source.refuse_ms.min(source.cheapest(&engine, None));
                }
            }
            let mut changed = false;
            for (s, source) in self.sources.iter().enumerate() {
                let Some(source) = source else { continue };
                for (w, way) in source.ways.iter().enumerate().filter(|(_, w)| w.uses > 0.0) {
                    let Some(last) = way.last_ms else { continue };
                    // What a request leaves behind may be the very room that another way lacks.
                    let on = match source.is_bounded() {
                        true => more[s].min(source.cheapest(&engine, Some(w))),
                        false => more[s],
                    };
                    let through = (on - last + self.charge) / way.uses;
                    if through < engine[way.engine] - self.same / way.uses {
                        engine[way.engine] = through;
                        changed = true;
                    }
                }
            }
            if !changed {
                return (more, engine, true);
            }
        }
        (more, engine, false)
    }

    /// Least cost of one unit less at every source and engine; whether the walk ended.
    fn of_root(&self, rounds: usize) -> Walked {
        let mut less = vec![f64::INFINITY; self.sources.len()];
        let mut engine: Vec<f64> = (0..self.short.len()).map(|e| self.last(e)).collect();
        for _ in 0..rounds {
            for (less, source) in less.iter_mut().zip(self.sources) {
                let Some(source) = source else { continue };
                let refused = source.refused_ms.map_or(f64::INFINITY, |ms| -ms);
                let back = source.ways.iter().filter_map(|way| {
                    let last = way.last_ms?;
                    Some(way.pays(&engine) - last + self.charge)
                });
                *less = back.fold(refused, f64::min);
            }
            let mut changed = false;
            for (s, source) in self.sources.iter().enumerate() {
                let Some(source) = source else { continue };
                for (w, way) in source.ways.iter().enumerate().filter(|(_, w)| w.uses > 0.0) {
                    let mut through = source.next_ms(w, None) + less[s];
                    if source.is_bounded() {
                        for (from, other) in source.ways.iter().enumerate() {
                            if let Some(last) = other.last_ms {
                                let back = other.pays(&engine) - last + self.charge;
                                through = through.min(source.next_ms(w, Some(from)) + back);
                            }
                        }
                    }
                    let through = through / way.uses;
                    if through < engine[way.engine] - self.same / way.uses {
                        engine[way.engine] = through;
                        changed = true;
                    }
                }
            }
            if !changed {
                return (less, engine, true);
            }
        }
        (less, engine, false)
    }

    /// The next unit of what is short at an engine, with nobody sent away for it.
    fn next(&self, e: usize) -> f64 {
        match self.short[e] {
            Short::Nothing => self.margins.engines[e].next_ms.unwrap_or(f64::INFINITY),
            Short::Compute | Short::Memory => f64::INFINITY,
        }
    }

    /// The last one given back.
    fn last(&self, e: usize) -> f64 {
        match self.short[e] {
            Short::Memory => 0.0,
            Short::Nothing | Short::Compute => self.margins.engines[e]
                .last_ms
                .map_or(f64::INFINITY, |ms| -ms),
        }
    }
}

impl Prices {
    /// What one more unit of what is short at an engine would save, milliseconds; zero where it
    /// has room.
    pub(super) fn saves(&self, e: usize) -> f64 {
        let end = match self.short[e] {
            Short::Nothing => return 0.0,
            Short::Compute => self.margins.engines[e].end_ms,
            Short::Memory => 0.0,
        };
        let saves = -(self.engine_less[e] + end);
        if saves.is_finite() {
            saves.max(0.0)
        } else {
            0.0
        }
    }
}
