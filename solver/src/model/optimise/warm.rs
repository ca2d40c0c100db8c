//! What one pass leaves to the next: who sent how much where, by the problem's own numbers.
//!
//! Not the plan that stands: a plan may never have been published. It says where to begin, never
//! what comes out, but for the choice among plans that cost the same; so it is part of what a
//! recorded pass began with.

use serde::{Deserialize, Serialize};

use super::network::Basis;
use crate::model::problem::Problem;

/// An answer of the method `network` to begin the next solve from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warm {
    engines: u32,
    basis: Basis,
}

impl Warm {
    /// What a solve ended with; `source` gives the problem's number for each of the basis's own,
    /// of which the first `known` have demand of their own.
    pub(super) fn of(
        problem: &Problem,
        mut basis: Basis,
        known: usize,
        source: impl Fn(u32) -> Option<u32>,
    ) -> Self {
        let engines = problem.engines.len() as u32;
        basis.demand.truncate(known);
        let engine = |e: u32| (e < engines).then_some(e);
        Self {
            engines,
            basis: basis.renumbered(source, engine, problem.sources.len()),
        }
    }

    /// The basis by other numbers of sources; `None` where it is that of another fleet.
    pub(super) fn basis(
        &self,
        problem: &Problem,
        source: impl Fn(u32) -> Option<u32>,
        sources: usize,
    ) -> Option<Basis> {
        let (count, engines) = (self.basis.demand.len(), problem.engines.len());
        let inside = |f: &super::network::Flow| {
            (f.source as usize) < count && (f.engine as usize) < engines && f.amount > 0
        };
        let fits = count == problem.sources.len()
            && self.engines as usize == engines
            && self.basis.flows.iter().all(inside)
            && self
                .basis
                .demand
                .iter()
                .all(|d| (0..=super::network::MOST_FLOW).contains(d));
        fits.then(|| self.basis.renumbered(source, Some, sources))
    }
}
