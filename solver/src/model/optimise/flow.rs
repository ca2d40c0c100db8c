//! A problem by the network simplex, repaired where it is more than one flow.
//!
//! One program is exact where work is separable, the requests of an engine are alike, memory has
//! room and no bound on a region breaks. Elsewhere each round solves a program that is true at the
//! best answer so far (`flow/statement`, `flow/repair`), mends what it found to true capacities,
//! and goes from the best towards it as far as the true cost falls: so no round makes anything
//! worse, and capacities hold in between because they hold at both ends. Rounds end when they
//! gain nothing any more.

mod bound;
mod line;
mod repair;
mod statement;
mod ways;
mod worth;

use super::bounds::Bounds;
use super::curve::Curve;
use super::lp::{self, Answer, caught, dearest};
use super::mend::mend;
use super::warm::Warm;
use super::{Solution, Status, verify};
use crate::model::problem::{Problem, Source};
use line::Line;
use statement::{Flows, Found};

pub(super) use worth::worth;
pub use worth::{Sides, Worth};

/// Rounds, at most and whatever the fleet's size, and arcs that all rounds may look at together.
const ROUNDS: (usize, usize) = (48, 8);
const MOST_ARCS: usize = 4_000_000;
/// Gain of a round, relatively, that is worth another.
const WORTH: f64 = 2e-4;
/// Rounds in a row that may gain less.
const PATIENCE: usize = 8;
/// Part of the cost that is not worth another round.
const CLOSE: f64 = 1e-4;
/// Ways that rounds used times sources and engines that a general program takes.
const MOST_COMBINED: usize = 1_000_000;
/// Part of the last answer in the mean of all.
const DAMPED: f64 = 0.5;
/// Cuts of the way from one answer to another; each leaves 0.62 of it.
const CUTS: usize = 10;
/// Share of a source that is nothing.
const DUST: f64 = 1e-6;
/// Golden section.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Solves a problem, from what an earlier solve left if there is anything.
pub(super) fn optimise(problem: &Problem, warm: Option<&Warm>) -> Result<(Solution, Warm), Status> {
    caught(|| Rounds::new(problem, warm).run())
}

/// The best answer so far and what it took.
struct Rounds<'a> {
    problem: &'a Problem,
    /// By source.
    bounds: Vec<Bounds>,
    flows: Flows<'a>,
    best: Option<Solution>,
    /// By source and arc: whether a round used it; empty where nobody will ask.
    used: Vec<Vec<bool>>,
    /// Mean of what was found, the last half of it.
    mean: Option<Answer>,
    shed_factor: f64,
    pivots: u64,
    /// What no answer at the mix of the best one can cost less than, once rounds look for it.
    bound_ms: Option<f64>,
}

impl<'a> Rounds<'a> {
    fn new(problem: &'a Problem, warm: Option<&Warm>) -> Self {
        let bounds: Vec<Bounds> = (problem.sources.iter())
            .map(|source| Bounds::of(problem, source))
            .collect();
        let flows = Flows::new(problem, &bounds, warm);
        let none = |source: &Source| vec![false; source.arcs.len()];
        Self {
            problem,
            bounds,
            best: None,
            used: match flows.has_memory_bounds() {
                true => problem.sources.iter().map(none).collect(),
                false => Vec::new(),
            },
            flows,
            mean: None,
            shed_factor: 1.0,
            pivots: 0,
            bound_ms: None,
        }
    }

    fn run(mut self) -> Result<(Solution, Warm), Status> {
        let mut curves = Curve::all(self.problem, None);
        self.shed_factor = dearest(self.problem, &curves).1;
        let uniform = curves.iter().all(|c| c.uniform);
        if !(uniform && self.flows.is_plain()) {
            // Where rounds end depends on where they began: an optimum of one program does not.
            self.flows.begin_anew();
        }
        let mut rounds = 0;
        let mut idle = 0;
        let mut last = None;
        let arcs: usize = self.problem.sources.iter().map(|s| s.arcs.len()).sum();
        let most = (MOST_ARCS / arcs.max(1)).clamp(ROUNDS.1, ROUNDS.0);
        while rounds < most && idle < PATIENCE {
            rounds += 1;
            let found = self.flows.solve(&curves, self.shed_factor)?;
            self.pivots += found.pivots;
            let exact = rounds == 1 && uniform && self.flows.is_exact(&found.answer.shares);
            if exact || found.limited {
                self.take(found.gap_ms, found.answer, exact)?;
                break;
            }
            let mut gained = self.take(found.gap_ms, found.answer.clone(), false)?;
            let mean = match self.mean.take() {
                Some(mean) => between(&mean, &found.answer, DAMPED),
                None => found.answer.clone(),
            };
            if rounds > 1 {
                gained = gained.max(self.take(found.gap_ms, mean.clone(), false)?);
            }
            idle = if gained > WORTH { 0 } else { idle + 1 };
            self.note_used(&found.answer.shares);
            let best = self.best.as_ref().expect("a round was taken");
            self.flows.repair(&found, &best.shares, rounds);
            self.mean = Some(mean);
            last = Some(found);
            if !uniform {
                curves = Curve::all(self.problem, Some(&best.shares));
            }
            let prices = self
                .flows
                .prices(last.as_ref().expect("it was just put there"));
            let bound_ms = bound::bound_ms(self.problem, &curves, &prices, self.shed_factor);
            // Curves of uniform fleets are those of any mix, and so is each bound by them.
            let earlier_ms = self.bound_ms.filter(|_| uniform);
            self.bound_ms = Some(earlier_ms.map_or(bound_ms, |ms| ms.max(bound_ms)));
            if self.beyond_bound(&curves) <= CLOSE {
                break;
            }
        }
        if let Some(last) = last.filter(|_| self.flows.has_memory_bounds()) {
            self.combine(&last, &curves)?;
        }
        self.sweep(rounds)?;
        let beyond = self.beyond_bound(&curves);
        let mut best = self.best.expect("at least one round");
        best.rounds = rounds;
        best.pivots = self.pivots;
        best.separability_error = self.flows.separability_error();
        best.bound_gap = beyond;
        Ok((best, self.flows.warm()))
    }

    /// Takes what a round found, so much dearer than its optimum at most, as far as it is better;
    /// by how much, relatively.
    fn take(&mut self, gap_ms: f64, mut answer: Answer, exact: bool) -> Result<f64, Status> {
        if !exact {
            mend(
                self.problem,
                &self.bounds,
                self.flows.members(),
                &mut answer,
            );
        }
        let Some(before) = self.best.take() else {
            let mut solution = verify::verify_bounded(self.problem, &self.bounds, answer)?;
            solution.gap = gap_ms / solution.terms.total().max(f64::MIN_POSITIVE);
            self.best = Some(solution);
            return Ok(1.0);
        };
        let from = Answer {
            shares: before.shares.clone(),
            shed: before.shed.clone(),
            shed_factor: self.shed_factor,
        };
        let line = Line::new(self.problem, &self.bounds, &from, &answer);
        let was = line.merit(0.0);
        let part = best_part(&line, was);
        if part <= 0.0 {
            self.best = Some(before);
            return Ok(0.0);
        }
        let mut solution =
            verify::verify_bounded(self.problem, &self.bounds, between(&from, &answer, part))?;
        let gained = (was - solution.merit()) / was.abs().max(f64::MIN_POSITIVE);
        solution.gap = gap_ms / solution.terms.total().max(f64::MIN_POSITIVE);
        self.best = Some(if gained > 0.0 { solution } else { before });
        Ok(gained)
    }

    /// By how much the best answer costs more than the bound, relatively, both as programs with
    /// these curves say: true delays are less than what pieces say, and could hide that there is a
    /// cheaper answer. Where no bound was looked for, than the optimum of its program at most.
    fn beyond_bound(&self, curves: &[Curve]) -> f64 {
        let best = self.best.as_ref().expect("a round was taken");
        self.bound_ms.map_or(best.gap, |bound_ms| {
            let cost_ms = bound::cost_ms(self.problem, curves, best) + best.over_bounds_ms;
            (cost_ms - bound_ms) / cost_ms.max(f64::MIN_POSITIVE)
        })
    }

    /// Remembers the ways that a round used.
    fn note_used(&mut self, found: &[Vec<f64>]) {
        let best = self.best.as_ref().expect("a round was taken");
        for (s, used) in self.used.iter_mut().enumerate() {
            let previous = self.problem.sources[s].previous.as_ref();
            for (i, used) in used.iter_mut().enumerate() {
                let stands = previous.map_or(0.0, |w| w[i]);
                *used |= found[s][i] + best.shares[s][i] + stands > 0.0;
            }
        }
    }

    /// Where memory binds, no price tells who should give way to whom: two resources of one
    /// engine are exchanged against each other. The ways that rounds used are few, and a general
    /// program over these alone, with true work and true memory, combines them. A fleet too large
    /// for that keeps what the rounds found.
    fn combine(&mut self, last: &Found, curves: &[Curve]) -> Result<(), Status> {
        let used = self.used.iter().flatten().filter(|used| **used).count();
        let rows = self.problem.sources.len() + 2 * self.problem.engines.len();
        if used * rows > MOST_COMBINED {
            return Ok(());
        }
        let mut narrowed = self.problem.clone();
        for (source, used) in narrowed.sources.iter_mut().zip(&self.used) {
            let arcs = source.arcs.iter_mut().zip(used);
            arcs.for_each(|(arc, used)| arc.open &= used);
        }
        // What it cannot solve is no loss: the rounds found an answer.
        if let Ok(answer) = lp::solve(&narrowed, curves, self.shed_factor) {
            self.take(last.gap_ms, answer, false)?;
        }
        Ok(())
    }

    /// Sends shares too small to matter, which ways between answers leave, where most of their
    /// source goes.
    fn sweep(&mut self, rounds: usize) -> Result<(), Status> {
        let Some(best) = self.best.as_ref().filter(|_| rounds > 1) else {
            return Ok(());
        };
        let mut answer = Answer {
            shares: best.shares.clone(),
            shed: best.shed.clone(),
            shed_factor: self.shed_factor,
        };
        for &s in self.flows.members() {
            let shares = &mut answer.shares[s];
            let swept: f64 = shares.iter().filter(|x| **x < DUST).sum();
            shares
                .iter_mut()
                .filter(|x| **x < DUST)
                .for_each(|x| *x = 0.0);
            let most = shares.iter_mut().max_by(|a, b| a.total_cmp(b));
            if let Some(most) = most {
                *most += swept;
            }
        }
        mend(
            self.problem,
            &self.bounds,
            self.flows.members(),
            &mut answer,
        );
        let mut solution = verify::verify_bounded(self.problem, &self.bounds, answer)?;
        solution.gap = best.gap;
        self.best = Some(solution);
        Ok(())
    }
}

/// How far from one answer to another costs least; 0 where no way towards it gains.
fn best_part(line: &Line, was: f64) -> f64 {
    let mut best = (f64::INFINITY, 0.0);
    let mut at = |part: f64| {
        let cost = line.merit(part);
        if cost < best.0 {
            best = (cost, part);
        }
        cost
    };
    at(1.0);
    let (mut low, mut high) = (0.0, 1.0);
    let (mut left, mut right) = (1.0 - GOLDEN, GOLDEN);
    let (mut at_left, mut at_right) = (at(left), at(right));
    for _ in 0..CUTS {
        if at_left < at_right {
            (high, right, at_right) = (right, left, at_left);
            left = high - GOLDEN * (high - low);
            at_left = at(left);
        } else {
            (low, left, at_left) = (left, right, at_right);
            right = low + GOLDEN * (high - low);
            at_right = at(right);
        }
    }
    if best.0 < was { best.1 } else { 0.0 }
}

/// An answer on the way from one to another.
fn between(from: &Answer, to: &Answer, part: f64) -> Answer {
    let mix = |from: &[Vec<f64>], to: &[Vec<f64>]| {
        let row = |(from, to): (&Vec<f64>, &Vec<f64>)| {
            let pairs = from.iter().zip(to);
            pairs.map(|(a, b)| (1.0 - part) * a + part * b).collect()
        };
        from.iter().zip(to).map(row).collect()
    };
    Answer {
        shares: mix(&from.shares, &to.shares),
        shed: mix(&from.shed, &to.shed),
        shed_factor: to.shed_factor,
    }
}
