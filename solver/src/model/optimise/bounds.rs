//! The soft bounds of a source: how far it moves in a pass, and what engines and regions are to
//! get of it at most. Breaking one has a price under that of refusing, so each of them yields
//! before a request is refused.

use crate::model::problem::{Arc, Problem, Source};

/// A bound above this is none.
const ALL: f64 = 1.0 - 1e-12;

/// A source's soft bounds, in shares of its demand.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Bounds {
    /// Least that stays where it is or is refused; 0 for no bound.
    pub(super) least_kept: f64,
    /// By arc: most that it is to get; empty where no arc is bounded.
    pub(super) arcs: Vec<Option<f64>>,
    /// Bounded regions: the open arcs there, and most that they are to get together.
    pub(super) regions: Vec<(Vec<usize>, f64)>,
}

/// Most that an arc is to get by itself: its own bound or its engine's, the lower one.
pub(super) fn most(problem: &Problem, arc: &Arc) -> Option<f64> {
    let of_engine = problem.engines[arc.engine.0].max_share;
    match (arc.most, of_engine) {
        (Some(own), Some(of_engine)) => Some(own.min(of_engine)),
        (own, of_engine) => own.or(of_engine),
    }
}

impl Bounds {
    pub(super) fn of(problem: &Problem, source: &Source) -> Self {
        let mut bounds = Self::default();
        if source.fixed.is_some() {
            return bounds;
        }
        let open = || source.arcs.iter().enumerate().filter(|(_, a)| a.open);
        if let Some(previous) = &source.previous {
            let usable: f64 = open().map(|(i, _)| previous[i]).sum();
            bounds.least_kept = (usable.min(1.0) - problem.max_step).max(0.0);
        }
        let most = |a: &Arc| most(problem, a).filter(|most| a.open && *most < ALL);
        if source.arcs.iter().any(|a| most(a).is_some()) {
            bounds.arcs = source.arcs.iter().map(most).collect();
        }
        for (region, most) in problem.region_most.iter().enumerate() {
            let Some(most) = most.filter(|most| *most < ALL) else {
                continue;
            };
            let inside = open().filter(|(_, a)| problem.engines[a.engine.0].region == region);
            let inside: Vec<usize> = inside.map(|(i, _)| i).collect();
            if !inside.is_empty() {
                bounds.regions.push((inside, most));
            }
        }
        if let Some(previous) = source.previous.as_ref().filter(|_| bounds.has_shares()) {
            bounds.come_down_by_steps(previous, problem.max_step);
        }
        bounds
    }

    /// Whether any share is bounded.
    pub(super) fn has_shares(&self) -> bool {
        !self.arcs.is_empty() || !self.regions.is_empty()
    }

    /// The same for a source of which only these arcs, by rising number, are left.
    pub(super) fn narrowed(&self, kept: &[usize]) -> Self {
        let inside = |(inside, most): &(Vec<usize>, f64)| {
            let now = inside.iter().filter_map(|i| kept.binary_search(i).ok());
            (now.collect(), *most)
        };
        Self {
            least_kept: self.least_kept,
            arcs: match self.arcs.is_empty() {
                true => Vec::new(),
                false => kept.iter().map(|i| self.arcs[*i]).collect(),
            },
            regions: self.regions.iter().map(inside).collect(),
        }
    }

    /// How much stays less than it should, and how much is beyond its share, summed.
    pub(super) fn broken(&self, source: &Source, shares: &[f64], refused: f64) -> (f64, f64) {
        let mut step = 0.0;
        if let Some(previous) = source.previous.as_ref().filter(|_| self.least_kept > 0.0) {
            let pairs = source.arcs.iter().zip(shares).zip(previous);
            let kept = pairs
                .filter(|((a, _), _)| a.open)
                .map(|((_, x), w)| x.min(*w));
            step = (self.least_kept - kept.sum::<f64>() - refused).max(0.0);
        }
        let beyond = |x: f64, most: f64| (x - most).max(0.0);
        let arcs = self.arcs.iter().zip(shares);
        let arcs = arcs.filter_map(|(most, x)| most.map(|most| beyond(*x, most)));
        let regions = self.regions.iter().map(|(inside, most)| {
            let all: f64 = inside.iter().map(|i| shares[*i]).sum();
            beyond(all, *most)
        });
        (step, arcs.chain(regions).sum())
    }

    /// What a source has too much somewhere may leave by steps only: bounds come down to what is
    /// wanted as fast as a step allows.
    fn come_down_by_steps(&mut self, previous: &[f64], max_step: f64) {
        let excess = |most: f64, now: f64| (now - most).max(0.0);
        let of_arcs = self.arcs.iter().zip(previous);
        let of_arcs = of_arcs.filter_map(|(most, now)| most.map(|most| excess(most, *now)));
        let inside = |inside: &[usize]| inside.iter().map(|i| previous[*i]).sum::<f64>();
        let of_regions = self
            .regions
            .iter()
            .map(|(i, most)| excess(*most, inside(i)));
        let all: f64 = of_arcs.chain(of_regions).sum();
        if all <= max_step {
            return;
        }
        let stays = 1.0 - max_step / all;
        for (most, now) in self.arcs.iter_mut().zip(previous) {
            *most = most.map(|most| most + stays * excess(most, *now));
        }
        for (arcs, most) in &mut self.regions {
            *most += stays * excess(*most, inside(arcs));
        }
    }
}
