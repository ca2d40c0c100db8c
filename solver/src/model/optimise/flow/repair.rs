//! What one flow cannot say, as numbers of the next one: true at an answer, wrong elsewhere.
//!
//! Work that is not separable: each engine's work is scaled by true over fitted load at a mix,
//! and what a request needs beyond that is charged at the price of the engine's second. Memory:
//! an engine's load ends where its memory is full at that mix, and what a request holds beyond
//! its part of that is charged at the price of memory. A bound on a region: its engines share it
//! as they shared what was found.

use std::collections::BTreeMap;

use super::statement::Found;
use crate::model::optimise::bounds::Bounds;
use crate::model::optimise::separable::Separable;
use crate::model::problem::{Arc, Problem};

/// Part of a bound that rounding may take.
const ROUNDING: f64 = 1e-6;
/// Part of what is new that is taken from the second round on.
const DAMPED: f64 = 0.5;

pub(super) struct Repair {
    pub(super) fit: Separable,
    /// By engine: true over fitted work.
    factors: Vec<f64>,
    /// By engine: what an engine-second is worth as work, milliseconds.
    work_ms: Vec<f64>,
    /// By engine: what a token-second of memory is worth, milliseconds.
    memory_ms: Vec<f64>,
    /// By engine: memory that requests of choice may hold, and engine-seconds they need for each
    /// token-second; none until a mix is known.
    memory: Vec<Option<(f64, f64)>>,
    /// By member: by arc: its part of a bounded region; of those that broke a bound.
    pub(super) parted: BTreeMap<usize, Vec<f64>>,
}

/// What requests of choice do at one engine.
#[derive(Clone, Copy, Default)]
struct Use {
    work: f64,
    fitted: f64,
    memory: f64,
}

impl Repair {
    pub(super) fn new(problem: &Problem) -> Self {
        let engines = problem.engines.len();
        Self {
            fit: Separable::fit(problem),
            factors: vec![1.0; engines],
            work_ms: vec![0.0; engines],
            memory_ms: vec![0.0; engines],
            memory: vec![None; engines],
            parted: BTreeMap::new(),
        }
    }

    /// Engine-seconds for each unit of the sources' work.
    pub(super) fn engine_work(&self, e: usize) -> f64 {
        self.fit.engine[e] * self.factors[e]
    }

    /// Engine-seconds per second that memory has room for.
    pub(super) fn most_work(&self, e: usize) -> f64 {
        self.memory[e].map_or(f64::INFINITY, |(tokens, seconds)| tokens * seconds)
    }

    /// What a request costs at an engine by what the flow does not see.
    pub(super) fn unseen_ms(&self, s: usize, arc: &Arc) -> f64 {
        let e = arc.engine.0;
        let fitted = self.fit.source[s] * self.engine_work(e);
        let mut unseen = 0.0;
        if self.fit.error != 0.0 {
            unseen += self.work_ms[e] * (arc.seconds - fitted);
        }
        if let Some((_, seconds)) = self.memory[e] {
            unseen += self.memory_ms[e] * (arc.kv_token_s - fitted / seconds);
        }
        unseen
    }

    /// Whether all engines' memory has room for shares.
    pub(super) fn has_memory(&self, problem: &Problem, shares: &[Vec<f64>]) -> bool {
        if problem.engines.iter().all(|e| e.kv_tokens.is_none()) {
            return true;
        }
        let all: Vec<usize> = (0..problem.sources.len()).collect();
        let uses = self.uses(problem, &all, shares);
        let fits = |(e, used): (usize, &Use)| {
            let most = problem.engines[e].kv_tokens.unwrap_or(f64::INFINITY);
            used.memory <= most * (1.0 + 1e-9)
        };
        uses.iter().enumerate().all(fits)
    }

    fn uses(&self, problem: &Problem, sources: &[usize], shares: &[Vec<f64>]) -> Vec<Use> {
        let mut uses = vec![Use::default(); problem.engines.len()];
        for &s in sources {
            let source = &problem.sources[s];
            let shares = source.fixed.as_ref().unwrap_or(&shares[s]);
            for (i, share) in shares.iter().enumerate().filter(|(_, x)| **x != 0.0) {
                let arc = &source.arcs[i];
                let e = arc.engine.0;
                let rps = source.planned_rps * share;
                uses[e].work += rps * arc.seconds;
                uses[e].fitted += rps * self.fit.source[s] * self.fit.engine[e];
                uses[e].memory += rps * arc.kv_token_s;
            }
        }
        uses
    }

    /// Brings factors and prices towards what is true of what was found.
    pub(super) fn learn(
        &mut self,
        problem: &Problem,
        members: &[usize],
        found: &Found,
        round: usize,
    ) {
        // Memory changes by the mix far more than work does: what is new counts less and less.
        let later = match problem.engines.iter().any(|e| e.kv_tokens.is_some()) {
            true => (2.0 / (round as f64 + 1.0)).min(DAMPED),
            false => DAMPED,
        };
        let damped = if round == 1 { 1.0 } else { later };
        let uses = self.uses(problem, members, &found.answer.shares);
        let fixed: Vec<usize> = (0..problem.sources.len())
            .filter(|s| problem.sources[*s].fixed.is_some())
            .collect();
        let taken = self.uses(problem, &fixed, &found.answer.shares);
        for (e, used) in uses.into_iter().enumerate() {
            let (work_ms, memory_ms) = self.split(e, found.prices_ms[e], found.ends_ms[e]);
            self.work_ms[e] += damped * (work_ms - self.work_ms[e]);
            self.memory_ms[e] += later * (memory_ms - self.memory_ms[e]);
            if used.fitted > 0.0 {
                self.factors[e] += damped * (used.work / used.fitted - self.factors[e]);
            }
            let Some(tokens) = problem.engines[e].kv_tokens else {
                continue;
            };
            let left = (tokens - taken[e].memory).max(0.0);
            if used.memory > 0.0 {
                let now = used.work / used.memory;
                let before = self.memory[e].map_or(now, |(_, seconds)| seconds);
                self.memory[e] = Some((left, before + damped * (now - before)));
            }
        }
    }

    /// What of the price of an engine-second is that of work, and what is that of memory, for each
    /// token-second: what an engine that memory ends costs beyond its last piece.
    pub(super) fn split(&self, e: usize, price_ms: f64, end_ms: Option<f64>) -> (f64, f64) {
        match (self.memory[e], end_ms) {
            (Some((_, seconds)), Some(end_ms)) => {
                let beyond = (price_ms - end_ms).max(0.0);
                (price_ms - beyond, beyond * seconds)
            }
            _ => (price_ms, 0.0),
        }
    }

    /// Where what was found breaks a bound on a region, its engines share that as they shared
    /// what was found.
    pub(super) fn part_regions(
        &mut self,
        problem: &Problem,
        members: &[usize],
        bounds: &[Bounds],
        found: &Found,
        best: &[Vec<f64>],
    ) {
        for (m, &s) in members.iter().enumerate() {
            for (inside, most) in &bounds[m].regions {
                let all = |shares: &[f64]| inside.iter().map(|i| shares[*i]).sum::<f64>();
                let now = all(&found.answer.shares[s]);
                let parted = self.parted.get(&m).is_some_and(|p| p[inside[0]] < 1.0);
                if now <= most * (1.0 + ROUNDING) && !parted {
                    continue;
                }
                let shares = if parted {
                    &best[s]
                } else {
                    &found.answer.shares[s]
                };
                let sum = all(shares);
                let count = problem.sources[s].arcs.len();
                let parts = self.parted.entry(m).or_insert_with(|| vec![1.0; count]);
                for &i in inside {
                    let part = if sum > 0.0 {
                        shares[i] / sum
                    } else {
                        1.0 / inside.len() as f64
                    };
                    parts[i] = (most * part).min(1.0 - ROUNDING);
                }
            }
        }
    }
}
