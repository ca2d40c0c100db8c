//! What the operator ordered, as one pass sees it.
//!
//! Names are resolved and expired orders left out before a pass begins; who ordered what, why and
//! until when is kept by `crate::operate`. Orders fix weights; health, drains and eligibility are
//! laid over what they fix, so that no order sends requests where none can be served.

use std::collections::{BTreeMap, BTreeSet};

use pointsman_shm::policy::{Mode, PlannedState};
use serde::{Deserialize, Serialize};

use crate::model::explain::FixedBy;
use crate::model::problem::{EngineNow, Problem, Source};
use crate::model::topology::{ClassId, EngineId, FrontendId, Topology};

/// The operator's orders in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Orders {
    /// Weights that stand stay as they are.
    pub hold: bool,
    /// Engines that get no new request.
    pub draining: BTreeSet<EngineId>,
    /// Weights by source, in the order of the class's eligible engines; they sum to 1.
    pub weights: BTreeMap<(FrontendId, ClassId), Vec<f64>>,
    /// Classes whose weights that stand stay as they are.
    pub held_classes: BTreeSet<ClassId>,
}

impl Orders {
    /// Marks drained engines; the proxies finish what runs there and start nothing new.
    pub(super) fn drain(&self, engines: &mut [EngineNow]) {
        for id in &self.draining {
            engines[id.0].state = PlannedState::Draining;
        }
    }

    /// Fixes the sources that the orders speak of. An order none of whose engines can be used is
    /// no order: the solver decides there.
    pub(super) fn fix(&self, topology: &Topology, problem: &mut Problem) {
        for source in &mut problem.sources {
            let given = self.weights.get(&(source.frontend, source.class));
            let ordered = given.cloned().or_else(|| self.held(source));
            if let Some(weights) = ordered {
                let open: Vec<bool> = source.arcs.iter().map(|arc| arc.open).collect();
                source.fixed = lay_over(&weights, &open);
            } else if let Some(weights) = &source.fixed {
                // The operator's static weights are used as given, but for drains.
                let kept = |arc: &crate::model::problem::Arc| !self.draining.contains(&arc.engine);
                let kept: Vec<bool> = source.arcs.iter().map(kept).collect();
                source.fixed = lay_over(weights, &kept);
            }
        }
        debug_assert!(problem.sources.iter().all(|source| {
            topology.classes[source.class.0].mode == Mode::Observe
                || source.fixed.is_none()
                || self.hold
                || self.held_classes.contains(&source.class)
                || self.weights.contains_key(&(source.frontend, source.class))
        }));
    }

    /// Whether the rates that stand for this source's admission stand with its weights.
    pub(super) fn holds(&self, frontend: FrontendId, class: ClassId) -> bool {
        let held = self.hold || self.held_classes.contains(&class);
        held && !self.weights.contains_key(&(frontend, class))
    }

    /// By source: who fixed its weights, if anybody.
    pub(super) fn fixed_by(&self, topology: &Topology, problem: &Problem) -> Vec<Option<FixedBy>> {
        let one = |source: &Source| {
            source.fixed.as_ref()?;
            let ordered = self.weights.contains_key(&(source.frontend, source.class));
            Some(match ordered {
                true => FixedBy::Ordered,
                false => FixedBy::of_mode(topology.classes[source.class.0].mode),
            })
        };
        problem.sources.iter().map(one).collect()
    }

    fn held(&self, source: &Source) -> Option<Vec<f64>> {
        // Static weights are already what the operator wants to stand.
        (self.hold || self.held_classes.contains(&source.class))
            .then(|| source.previous.clone())
            .flatten()
            .filter(|_| source.fixed.is_none())
    }
}

/// `weights` without what is not kept, scaled to the same sum; bit for bit the same where all is
/// kept, and nothing where nothing is.
fn lay_over(weights: &[f64], kept: &[bool]) -> Option<Vec<f64>> {
    debug_assert_eq!(weights.len(), kept.len());
    let lost = |(weight, kept): (&f64, &bool)| *weight > 0.0 && !kept;
    if !weights.iter().zip(kept).any(lost) {
        return Some(weights.to_vec());
    }
    let left = |(weight, kept): (&f64, &bool)| if *kept { *weight } else { 0.0 };
    let left: Vec<f64> = weights.iter().zip(kept).map(left).collect();
    let (sum, before) = (left.iter().sum::<f64>(), weights.iter().sum::<f64>());
    (sum > 1e-9).then(|| left.iter().map(|weight| weight * before / sum).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_laid_over_takes_its_share_along_and_nothing_else_changes() {
        let weights = [0.1, 0.2, 0.7];
        assert_eq!(lay_over(&weights, &[true; 3]), Some(weights.to_vec()));
        let left = lay_over(&[0.25, 0.25, 0.5], &[true, true, false]);
        assert_eq!(left, Some(vec![0.5, 0.5, 0.0]));
        assert_eq!(lay_over(&weights, &[false; 3]), None);
        assert_eq!(lay_over(&[0.0, 1.0], &[false, true]), Some(vec![0.0, 1.0]));
    }
}
