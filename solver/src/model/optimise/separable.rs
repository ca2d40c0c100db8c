//! The work of requests as (work of the source) x (work of the engine per such work).
//!
//! Only ratios are averaged, nothing is taken the logarithm of: a power of two in all work is a
//! power of two in the fit, and the bits are the same on every machine.

use crate::model::problem::{Arc, Problem, Source};

/// Passes over all work; where it is separable the first is exact.
const PASSES: usize = 30;
/// Error that rounding leaves.
const EXACT: f64 = 1e-12;

/// A fit of rank one.
#[derive(Clone, Debug)]
pub(super) struct Separable {
    /// By source: work of one request; 1 for one without an open arc.
    pub(super) source: Vec<f64>,
    /// By engine: its engine-seconds per unit of that work; 1 for one that nobody may use.
    pub(super) engine: Vec<f64>,
    /// Most that a request's work differs from the fit, relatively.
    pub(super) error: f64,
}

impl Separable {
    /// The fit over every open arc of every source that is a choice.
    pub(super) fn fit(problem: &Problem) -> Self {
        let mut fit = Self::spanned(problem);
        fit.measure(problem);
        let mut best = fit.clone();
        for _ in 0..PASSES {
            if best.error <= EXACT {
                break;
            }
            fit.average(problem);
            fit.measure(problem);
            if fit.error < best.error {
                best = fit.clone();
            }
        }
        if best.error <= EXACT {
            best.error = 0.0;
        }
        best
    }

    /// Every source and engine by the first arc that connects it to one that is known.
    fn spanned(problem: &Problem) -> Self {
        let users = Users::of(problem);
        let mut source: Vec<Option<f64>> = vec![None; problem.sources.len()];
        let mut engine: Vec<Option<f64>> = vec![None; problem.engines.len()];
        for root in 0..source.len() {
            if source[root].is_some() {
                continue;
            }
            // The work of the first request is the unit of its engine.
            let Some(first) = ways(&problem.sources[root]).next() else {
                continue;
            };
            let mut next = vec![(root, first.seconds)];
            source[root] = Some(first.seconds);
            while let Some((s, alpha)) = next.pop() {
                for arc in ways(&problem.sources[s]) {
                    let e = arc.engine.0;
                    if engine[e].is_some() {
                        continue;
                    }
                    let beta = arc.seconds / alpha;
                    engine[e] = Some(beta);
                    for &other in users.of_engine(e) {
                        let known = &mut source[other as usize];
                        if known.is_none() {
                            let mut arcs = ways(&problem.sources[other as usize]);
                            let arc = arcs.find(|a| a.engine.0 == e).expect("it uses the engine");
                            *known = Some(arc.seconds / beta);
                            next.push((other as usize, arc.seconds / beta));
                        }
                    }
                }
            }
        }
        let known = |list: Vec<Option<f64>>| list.into_iter().map(|v| v.unwrap_or(1.0)).collect();
        Self {
            source: known(source),
            engine: known(engine),
            error: 0.0,
        }
    }

    /// Each side in turn by the mean ratio to the other.
    fn average(&mut self, problem: &Problem) {
        let mut sums = vec![(0.0, 0.0); self.source.len()];
        for (sum, source) in sums.iter_mut().zip(&problem.sources) {
            for arc in ways(source) {
                sum.0 += arc.seconds / self.engine[arc.engine.0];
                sum.1 += 1.0;
            }
        }
        settle(&mut self.source, &sums);
        let mut sums = vec![(0.0, 0.0); self.engine.len()];
        for (source, alpha) in problem.sources.iter().zip(&self.source) {
            for arc in ways(source) {
                let sum: &mut (f64, f64) = &mut sums[arc.engine.0];
                sum.0 += arc.seconds / alpha;
                sum.1 += 1.0;
            }
        }
        settle(&mut self.engine, &sums);
    }

    fn measure(&mut self, problem: &Problem) {
        let mut error: f64 = 0.0;
        for (source, alpha) in problem.sources.iter().zip(&self.source) {
            for arc in ways(source) {
                let fitted = alpha * self.engine[arc.engine.0];
                error = error.max((fitted / arc.seconds - 1.0).abs());
            }
        }
        self.error = error;
    }
}

/// Open arcs of a source that is a choice; none of one that is not.
fn ways(source: &Source) -> impl Iterator<Item = &Arc> {
    let arcs = match source.fixed {
        None => source.arcs.as_slice(),
        Some(_) => &[],
    };
    arcs.iter().filter(|a| a.open)
}

/// Sources by the engines that they may use. Not their arcs: there are too many to keep them
/// twice, and each source is looked for once.
struct Users {
    /// By engine, and one beyond the last: where its sources begin.
    first: Vec<u32>,
    sources: Vec<u32>,
}

impl Users {
    fn of(problem: &Problem) -> Self {
        let mut first = vec![0_u32; problem.engines.len() + 2];
        let all = || problem.sources.iter().enumerate();
        for arc in all().flat_map(|(_, source)| ways(source)) {
            first[arc.engine.0 + 2] += 1;
        }
        for e in 2..first.len() {
            first[e] += first[e - 1];
        }
        let mut sources = vec![0; first[first.len() - 1] as usize];
        for (s, source) in all() {
            for arc in ways(source) {
                // Its own end while it is filled, and then the next one's begin.
                let at = &mut first[arc.engine.0 + 1];
                sources[*at as usize] = s as u32;
                *at += 1;
            }
        }
        Self { first, sources }
    }

    fn of_engine(&self, e: usize) -> &[u32] {
        &self.sources[self.first[e] as usize..self.first[e + 1] as usize]
    }
}

fn settle(values: &mut [f64], sums: &[(f64, f64)]) {
    for (value, (sum, count)) in values.iter_mut().zip(sums) {
        if *count > 0.0 {
            *value = sum / count;
        }
    }
}
