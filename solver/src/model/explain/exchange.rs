//! Prices of a plan, from what it would cost to change it by one unit.
//!
//! The graph of what can still be sent or taken back is walked twice: to the root, where a unit is
//! served with room to spare or refused, and from it. At an optimum no cycle of that graph gains:
//! both walks end, one unit more costs no less than one unit less saves, and prices are exact. A
//! plan that was put together from many programs is near an optimum and at none: some cycle gains a
//! little, and what it gains is no price. Then engines have the prices of programs that are true at
//! the plan (`optimise::worth`), and how far requests stand from the cheapest choice at these is
//! told beside. The plan's own loads would say less: an engine that is full at the optimum may have
//! a little room in a plan that is a ten-thousandth dearer, and would cost nothing. Work is the true
//! work of each request on each engine, so that nothing here depends on the method.

use super::ways::{Source, Way, sources};
use crate::model::optimise::{Margins, Solution, Worth, margins, worth};
use crate::model::problem::Problem;

/// What is this near to a border, in parts of an engine or of a source's demand, is at it: by
/// rounding, and by crumbs that a mend leaves.
const NEAR: [f64; 2] = [1e-6, 1e-3];
/// The same where a plan is no optimum.
const NEAR_MENDED: f64 = 1e-2;
/// Prices that differ by less, relatively, are the same whichever of both counts as near.
const AGREE: f64 = 1e-4;
/// Rounds of one walk; hardly any way has more exchanges.
const ROUNDS: usize = 64;
/// Changes of a price below this part of the dearest cost are rounding.
const SAME: f64 = 1e-10;
/// Gains of one more and one less together below this part of the dearest cost are, too.
const NO_GAIN: f64 = 1e-8;
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
    /// None: engines have the prices of programs.
    Programs,
    /// One, where no program could be solved.
    One,
}

/// Prices of a plan.
pub(super) struct Prices {
    pub(super) margins: Margins,
    /// By source; `None` for one that is no choice.
    pub(super) sources: Vec<Option<Source>>,
    /// By engine: what is short there.
    pub(super) short: Vec<Short>,
    /// By source: what one request more costs, milliseconds.
    more: Vec<f64>,
    /// By source: what one request less costs, milliseconds; below zero for a saving.
    pub(super) less: Vec<f64>,
    /// By engine: what one more unit of what is short there pays, milliseconds.
    pub(super) engine_more: Vec<f64>,
    /// By engine: what one unit less pays.
    pub(super) engine_less: Vec<f64>,
    /// How many exchanges they follow.
    pub(super) depth: Depth,
    /// How far choices in use are beyond the cheapest: the most, and of the mean request,
    /// milliseconds.
    pub(super) off_ms: (f64, f64),
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
    /// The dearest way, milliseconds.
    dearest: f64,
}

/// The prices of a plan.
pub(super) fn prices(problem: &Problem, solution: &Solution) -> Prices {
    let [by_rounding, past_crumbs] = NEAR.map(|near| walked(problem, solution, near));
    if let (Some(exact), Some(other)) = (by_rounding, past_crumbs)
        && exact.agrees(&other)
    {
        return exact;
    }
    let view = View::new(problem, solution, NEAR_MENDED);
    let (to, from, depth) = match worth(problem, solution) {
        Ok(worth) => {
            let (to, from) = view.by_programs(&worth);
            (to, from, Depth::Programs)
        }
        Err(_) => {
            let walks = view.walks();
            (walks.to_root(1), walks.of_root(1), Depth::One)
        }
    };
    let off_ms = view.off_ms(problem, &to.1);
    view.prices(to, from, depth, off_ms)
}

/// Prices by all exchanges, if both walks end and nothing gains by way of the root.
fn walked(problem: &Problem, solution: &Solution, near: f64) -> Option<Prices> {
    let view = View::new(problem, solution, near);
    let walks = view.walks();
    let (to, from) = (walks.to_root(ROUNDS), walks.of_root(ROUNDS));
    let optimal = to.2 && from.2 && !walks.gains(&to, &from);
    optimal.then(|| view.prices(to, from, Depth::Full, (0.0, 0.0)))
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

    fn walks(&self) -> Walks<'_> {
        Walks {
            sources: &self.sources,
            margins: &self.margins,
            short: &self.short,
            same: SAME * self.dearest,
            dearest: self.dearest,
        }
    }

    /// Prices where engines have those of programs.
    fn by_programs(&self, worth: &Worth) -> (Walked, Walked) {
        let (mut more, mut less): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
        for (e, short) in self.short.iter().enumerate() {
            let margin = &self.margins.engines[e];
            let last = margin.last_ms.unwrap_or(0.0);
            let (up, down) = match short {
                Short::Nothing => {
                    let work = worth.work[e];
                    let down = margin.last_ms.map_or(f64::INFINITY, |_| -work.less_ms);
                    (work.more_ms, down)
                }
                Short::Compute => {
                    let work = worth.work[e];
                    (work.more_ms.max(last), -work.less_ms.max(last))
                }
                Short::Memory => {
                    let memory = worth.memory[e];
                    (memory.more_ms.max(0.0), -memory.less_ms.max(0.0))
                }
            };
            more.push(up);
            less.push(down);
        }
        let none = vec![f64::INFINITY; self.sources.len()];
        let (mut of_more, mut of_less) = (none.clone(), none);
        for (s, source) in self.sources.iter().enumerate() {
            if let Some(source) = source {
                of_more[s] = source.refuse_ms.min(source.cheapest(&more, None));
                of_less[s] = source.mean_back(&less).max(-of_more[s]);
            }
        }
        ((of_more, more, true), (of_less, less, true))
    }

    /// How far choices in use are beyond the cheapest, at the engines' prices: the most, and of
    /// the mean request.
    fn off_ms(&self, problem: &Problem, engine: &[f64]) -> (f64, f64) {
        let (mut most, mut sum, mut all) = (0.0_f64, 0.0, 0.0);
        for (source, ways) in problem.sources.iter().zip(&self.sources) {
            let Some(ways) = ways else { continue };
            let least = ways.refuse_ms.min(ways.cheapest(engine, None));
            for (rps, off) in ways.off_ms(engine, least) {
                let rps = rps * source.demand();
                most = most.max(off);
                sum += rps * off;
                all += rps;
            }
        }
        (most, if all > 0.0 { sum / all } else { 0.0 })
    }

    fn prices(self, to: Walked, from: Walked, depth: Depth, off_ms: (f64, f64)) -> Prices {
        Prices {
            more: to.0,
            margins: self.margins,
            sources: self.sources,
            short: self.short,
            less: from.0,
            engine_more: to.1,
            engine_less: from.1,
            depth,
            off_ms,
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
                    let through = (on - last) / way.uses;
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
                *less = source.dearest_back(&engine);
            }
            let mut changed = false;
            for (s, source) in self.sources.iter().enumerate() {
                let Some(source) = source else { continue };
                for (w, way) in source.ways.iter().enumerate().filter(|(_, w)| w.uses > 0.0) {
                    let mut through = source.next_ms(w, None) + less[s];
                    if source.is_bounded() {
                        for (from, other) in source.ways.iter().enumerate() {
                            if let Some(last) = other.last_ms {
                                let back = other.pays(&engine) - last;
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

    /// Whether one unit that comes from the root and goes back to it gains. Neither walk sees that:
    /// each passes the root once, at its end or at its begin. Where nothing gains, prices of one
    /// more hold the plan together as it is: it is an optimum.
    fn gains(&self, more: &Walked, less: &Walked) -> bool {
        let most = NO_GAIN * self.dearest;
        let gains = |back_and_forth_ms: f64| back_and_forth_ms < -most;
        (self.sources.iter().enumerate()).any(|(s, source)| {
            source.as_ref().is_some_and(|source| {
                let at_engine = |way: &Way| way.uses * (more.1[way.engine] + less.1[way.engine]);
                let mut ways = source.ways.iter().filter(|way| way.uses > 0.0);
                gains(more.0[s] + less.0[s]) || ways.any(|way| gains(at_engine(way)))
            })
        })
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
    /// Whether sources and what is short have the same prices. Where a plan is an optimum, nothing
    /// hangs on what is called near; where it is not, a crumb of room may carry a wrong price.
    fn agrees(&self, other: &Self) -> bool {
        let same = |a: f64, b: f64| a == b || (a - b).abs() <= AGREE * a.abs().max(b.abs());
        self.more.iter().zip(&other.more).all(|(a, b)| same(*a, *b))
            && self.less.iter().zip(&other.less).all(|(a, b)| same(*a, *b))
            && (0..self.short.len())
                .all(|e| same(self.saves(e), other.saves(e)) && self.short[e] == other.short[e])
    }

    /// What one more unit of what is short at an engine would save, milliseconds; zero where it
    /// has room.
    pub(super) fn saves(&self, e: usize) -> f64 {
        let margin = &self.margins.engines[e];
        // More capacity takes what it is paid for, and what there is already is less crowded.
        let saves = match self.short[e] {
            Short::Nothing => return 0.0,
            Short::Compute => -self.engine_less[e] * margin.load - margin.filled_ms,
            Short::Memory => -self.engine_less[e],
        };
        if saves.is_finite() {
            saves.max(0.0)
        } else {
            0.0
        }
    }
}
