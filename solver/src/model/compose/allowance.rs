//! How many requests one host of a frontend may have in flight at each engine.
//!
//! What is planned, and room for what has to come here when another engine is lost: proxies act on a
//! loss at once, the plan a pass later, and with the solver away never.

use pointsman_shm::policy::PlannedState;

use super::{Parts, spare};
use crate::model::plan::ArcPlan;
use crate::model::topology::EngineId;

/// Standard deviations of a Poisson count by which an allowance exceeds its mean.
const ALLOWANCE_SIGMA: f64 = 3.0;
/// Largest allowance.
const MOST_ALLOWANCE: f64 = 1e6;

/// How much of what has to go elsewhere comes from this frontend, should an engine be lost.
///
/// When one is lost, those look for another that sent to it. So a frontend's part of what others
/// have to spare is its part of the lost engine's load: where each frontend has its own engine,
/// nearly all; where all share all engines, one of so many. Parts by number of frontends would
/// leave requests without a place that others have room for, and the whole for each would let all
/// fall on the same engine.
pub(super) struct Losses {
    /// The engine whose loss asks most of this frontend's others, and its part there.
    most: (Option<EngineId>, f64),
    /// The next after it.
    next: f64,
}

impl Losses {
    pub(super) fn of(parts: &Parts<'_>, by_engine: &[Vec<&ArcPlan>]) -> Self {
        // What is not foreseen, such as demand where none was planned: an equal part.
        let equal = 1.0 / parts.topology.frontends.len().max(1) as f64;
        let mut losses = Self {
            most: (None, equal),
            next: equal,
        };
        for (id, arcs) in parts.topology.engine_ids().zip(by_engine) {
            let now = &parts.engines[id.0];
            let load = parts.plan.engines[id.0].utilisation * now.ready_share * now.planned_factor;
            let own: f64 = arcs.iter().map(|arc| arc.rate_rps * arc.seconds).sum();
            let part = if load > 0.0 {
                (own / load).min(1.0)
            } else {
                0.0
            };
            if part > losses.most.1 {
                losses.next = losses.most.1;
                losses.most = (Some(id), part);
            } else {
                losses.next = losses.next.max(part);
            }
        }
        losses
    }

    /// The largest part by the loss of an engine that is not this one.
    pub(super) fn of_another(&self, id: EngineId) -> f64 {
        match self.most.0 == Some(id) {
            true => self.next,
            false => self.most.1,
        }
    }
}

/// Requests one host may have in flight at an engine: what the plan sends there, and its part of
/// what the engine could take beside as a standby, by Little's law; times a burst, with room for
/// chance. 0 where no request may go.
pub(super) fn allowance(
    parts: &Parts<'_>,
    arcs: &[&ArcPlan],
    id: EngineId,
    loss_share: f64,
    hosts: u32,
) -> u32 {
    if matches!(
        parts.engines[id.0].state,
        PlannedState::Draining | PlannedState::Out
    ) {
        return 0;
    }
    let (mut planned, mut standby) = (0.0, 0.0_f64);
    for arc in arcs {
        let seconds = (arc.network_ms + arc.service_ms + arc.congestion_ms) / 1e3;
        planned += arc.rate_rps * seconds;
        standby = standby.max(spare(parts, id) / arc.seconds * seconds);
    }
    let mean = planned + standby * loss_share;
    let burst = parts.topology.settings.allowance_burst.value();
    let one_host = mean * burst / f64::from(hosts.max(1));
    let allowed = (one_host + ALLOWANCE_SIGMA * one_host.sqrt()).ceil();
    allowed.clamp(1.0, MOST_ALLOWANCE) as u32
}
