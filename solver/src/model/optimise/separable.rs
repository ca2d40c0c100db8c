//! The work of requests as (work of the source) x (work of the engine per such work).
//!
//! Only ratios are averaged, nothing is taken the logarithm of: a power of two in all work is a
//! power of two in the fit, and the bits are the same on every machine.

use crate::model::problem::Problem;

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
        let entries: Vec<(usize, usize, f64)> = problem
            .sources
            .iter()
            .enumerate()
            .filter(|(_, source)| source.fixed.is_none())
            .flat_map(|(s, source)| {
                let open = source.arcs.iter().filter(|a| a.open);
                open.map(move |a| (s, a.engine.0, a.seconds))
            })
            .collect();
        let mut fit = Self::spanned(problem, &entries);
        fit.measure(&entries);
        let mut best = fit.clone();
        for _ in 0..PASSES {
            if best.error <= EXACT {
                break;
            }
            fit.average(&entries);
            fit.measure(&entries);
            if fit.error < best.error {
                best = fit.clone();
            }
        }
        if best.error <= EXACT {
            best.error = 0.0;
        }
        best
    }

    /// Every source and engine by the first entry that connects it to one that is known.
    fn spanned(problem: &Problem, entries: &[(usize, usize, f64)]) -> Self {
        // Entries come by source: a source's are one range, an engine's are sorted by counting.
        let mut own = vec![0..0; problem.sources.len()];
        let mut first = vec![0; problem.engines.len() + 1];
        for (i, &(s, e, _)) in entries.iter().enumerate() {
            if own[s].is_empty() {
                own[s] = i..i;
            }
            own[s].end = i + 1;
            first[e + 1] += 1;
        }
        for e in 0..problem.engines.len() {
            first[e + 1] += first[e];
        }
        let mut next_of = first.clone();
        let mut by_engine = vec![0; entries.len()];
        for (i, &(_, e, _)) in entries.iter().enumerate() {
            by_engine[next_of[e]] = i;
            next_of[e] += 1;
        }
        let mut source: Vec<Option<f64>> = vec![None; problem.sources.len()];
        let mut engine: Vec<Option<f64>> = vec![None; problem.engines.len()];
        for root in 0..source.len() {
            if source[root].is_some() || own[root].is_empty() {
                continue;
            }
            // The work of the first request is the unit of its engine.
            let mut next = vec![(root, entries[own[root].start].2)];
            source[root] = Some(next[0].1);
            while let Some((s, alpha)) = next.pop() {
                for &(_, e, work) in &entries[own[s].clone()] {
                    if engine[e].is_some() {
                        continue;
                    }
                    let beta = work / alpha;
                    engine[e] = Some(beta);
                    for &i in &by_engine[first[e]..first[e + 1]] {
                        let (other, _, work) = entries[i];
                        if source[other].is_none() {
                            source[other] = Some(work / beta);
                            next.push((other, work / beta));
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
    fn average(&mut self, entries: &[(usize, usize, f64)]) {
        let mut sums = vec![(0.0, 0.0); self.source.len()];
        for &(s, e, work) in entries {
            sums[s].0 += work / self.engine[e];
            sums[s].1 += 1.0;
        }
        settle(&mut self.source, &sums);
        let mut sums = vec![(0.0, 0.0); self.engine.len()];
        for &(s, e, work) in entries {
            sums[e].0 += work / self.source[s];
            sums[e].1 += 1.0;
        }
        settle(&mut self.engine, &sums);
    }

    fn measure(&mut self, entries: &[(usize, usize, f64)]) {
        let off = |&(s, e, work): &(usize, usize, f64)| {
            (self.source[s] * self.engine[e] / work - 1.0).abs()
        };
        self.error = entries.iter().map(off).fold(0.0, f64::max);
    }
}

fn settle(values: &mut [f64], sums: &[(f64, f64)]) {
    for (value, (sum, count)) in values.iter_mut().zip(sums) {
        if *count > 0.0 {
            *value = sum / count;
        }
    }
}
