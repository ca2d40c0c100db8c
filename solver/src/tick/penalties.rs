//! What penalties make of the weights that stand.
//!
//! A penalty p is to leave an engine (1 - p) of its share, wherever the plan stands: proxies take
//! what is missing at once, the plan follows, and both together never take it twice. So weights are
//! not left to the optimiser here: an engine's weights at a frontend all go by the same factor, and
//! the policy says which (`planned_factor`). What the next policy starts from is then known from the
//! published one alone, after a restart too: its weights over its factor are what they would be
//! without. From there the optimiser goes on as ever, but that it gives a penalised engine no more.
//!
//! Where weights are set or held none of this is done and the factor stays: proxies take all.

use std::collections::BTreeMap;

use pointsman_shm::id::EngineSlot;
use pointsman_shm::policy::{Class, Mode, PlannedState, Policy};

use super::orders::Orders;
use crate::model::problem::EngineNow;
use crate::model::topology::{ClassId, EngineId, FrontendId, Topology};

/// Factors nearer than this are the same.
const SAME: f64 = 1e-9;
/// Most that one pass gives back of a factor: as much as a pass of two seconds does where hosts give
/// an engine back. More is asked for where weights were held for long, or a penalty was forgotten.
const MOST_BACK: f64 = 0.25;

/// What of penalties the next policies count, by frontend then engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counted {
    factors: Vec<Vec<f64>>,
}

/// What is needed to lay penalties over one frontend's weights.
struct Frontend<'a> {
    topology: &'a Topology,
    orders: &'a Orders,
    engines: &'a [EngineNow],
    id: FrontendId,
    standing: &'a Policy,
    /// By engine: the factor that the standing policy counts.
    before: Vec<f64>,
}

impl Counted {
    /// Lays penalties over the weights that stand, by frontend then class.
    pub(super) fn lay(
        topology: &Topology,
        standing: &[Option<&Policy>],
        (orders, engines): (&Orders, &[EngineNow]),
        previous: &mut [Option<Vec<f64>>],
    ) -> Self {
        let wanted: Vec<f64> = engines.iter().map(|now| now.planned_factor).collect();
        let classes = topology.classes.len();
        let one = |(id, standing): (FrontendId, &Option<&Policy>)| {
            // Without weights that stand, the capacity that a penalty leaves is all that counts it.
            let Some(standing) = standing else {
                return wanted.clone();
            };
            let frontend = Frontend {
                topology,
                orders,
                engines,
                id,
                before: before(topology, standing),
                standing,
            };
            frontend.lay(&wanted, &mut previous[id.0 * classes..(id.0 + 1) * classes])
        };
        Self {
            factors: topology.frontend_ids().zip(standing).map(one).collect(),
        }
    }

    /// Whether weights at a frontend still count a penalty of an engine, or how it comes back.
    pub(super) fn counts(&self, frontend: FrontendId, engine: EngineId) -> bool {
        self.factors[frontend.0][engine.0] < 1.0 - SAME
    }

    /// Says in a policy what its weights count.
    pub(super) fn tell(&self, topology: &Topology, frontend: FrontendId, policy: &mut Policy) {
        let factors = &self.factors[frontend.0];
        if factors.iter().all(|factor| *factor >= 1.0)
            && policy
                .engines
                .iter()
                .all(|engine| engine.planned_factor >= 1.0)
        {
            return;
        }
        let names = topology
            .engines
            .iter()
            .map(|e| e.name.as_str())
            .zip(factors);
        let names: BTreeMap<&str, &f64> = names.collect();
        for engine in &mut policy.engines {
            if let Some(factor) = names.get(engine.id.as_str()) {
                engine.planned_factor = **factor;
            }
        }
    }
}

/// By engine: the factor that a policy counts.
fn before(topology: &Topology, policy: &Policy) -> Vec<f64> {
    if policy
        .engines
        .iter()
        .all(|engine| engine.planned_factor >= 1.0)
    {
        return vec![1.0; topology.engines.len()];
    }
    let factors = policy
        .engines
        .iter()
        .map(|e| (e.id.as_str(), e.planned_factor));
    let factors: BTreeMap<&str, f64> = factors.collect();
    let one = |name: &str| factors.get(name).copied().unwrap_or(1.0);
    topology
        .engines
        .iter()
        .map(|engine| one(&engine.name))
        .collect()
}

impl Frontend<'_> {
    /// The factors that the frontend's weights count then.
    fn lay(&self, wanted: &[f64], previous: &mut [Option<Vec<f64>>]) -> Vec<f64> {
        // What an engine that is out had goes to where the plan wants it, and not here first.
        let changed = |e: &usize| {
            let is_used = self.engines[*e].state == PlannedState::Active;
            is_used && (wanted[*e] - self.before[*e]).abs() > SAME
        };
        let changed: Vec<usize> = (0..wanted.len()).filter(changed).collect();
        let mut factors = self.before.clone();
        if changed.is_empty() {
            return factors;
        }
        let wanted: &[f64] = &self.by_steps(wanted, previous);
        let moving: Vec<usize> = changed
            .into_iter()
            .filter(|e| self.may_lay(*e, wanted[*e], previous))
            .collect();
        for (class, weights) in self.topology.class_ids().zip(previous) {
            if let Some(weights) = weights {
                self.lay_class(class, (&moving, wanted), weights);
            }
        }
        for e in moving {
            factors[e] = wanted[e];
        }
        factors
    }

    /// The factors wanted, as far as one pass goes back to them. An engine without a share has
    /// nothing that a factor would be of.
    fn by_steps(&self, wanted: &[f64], previous: &[Option<Vec<f64>>]) -> Vec<f64> {
        let has_share = |e: usize| {
            let classes = self.topology.classes.iter().zip(previous);
            let mut pairs = classes
                .flat_map(|(class, weights)| class.eligible.iter().zip(weights.iter().flatten()));
            pairs.any(|(pair, weight)| pair.engine.0 == e && *weight > 0.0)
        };
        let step = |(e, wanted): (usize, &f64)| {
            let most = self.before[e] + MOST_BACK;
            match *wanted > most && has_share(e) {
                true => most,
                false => *wanted,
            }
        };
        wanted.iter().enumerate().map(step).collect()
    }

    /// Whether all of an engine's weights here are the solver's to move, and have where to go.
    fn may_lay(&self, e: usize, wanted: f64, previous: &[Option<Vec<f64>>]) -> bool {
        let classes = self.topology.class_ids().zip(&self.topology.classes);
        let mut classes = classes.zip(previous);
        classes.all(|((id, class), weights)| {
            let pairs = class.eligible.iter().zip(weights.iter().flatten());
            let mut pairs = pairs.filter(|(_, weight)| **weight > 0.0);
            if !pairs.any(|(pair, _)| pair.engine.0 == e) {
                return true;
            }
            let fixed = class.mode == Mode::Observe
                || self.orders.hold
                || self.orders.holds(self.id, id)
                || self.orders.weights.contains_key(&(self.id, id));
            let takes = |pair: &crate::model::topology::ClassEngine| self.takes(pair.engine);
            !fixed && (wanted >= self.before[e] || class.eligible.iter().any(takes))
        })
    }

    /// Whether an engine takes what another loses, or gives it back.
    fn takes(&self, engine: EngineId) -> bool {
        let now = &self.engines[engine.0];
        now.state == PlannedState::Active
            && now.ready_share > 0.0
            && now.planned_factor >= 1.0
            && self.before[engine.0] >= 1.0
    }

    fn lay_class(&self, id: ClassId, (moving, wanted): (&[usize], &[f64]), weights: &mut [f64]) {
        let eligible = &self.topology.classes[id.0].eligible;
        let at = |e: &usize| eligible.iter().position(|pair| pair.engine.0 == *e);
        let places: Vec<(usize, usize)> =
            moving.iter().filter_map(|e| Some((*e, at(e)?))).collect();
        let mut lost = 0.0;
        for (e, i) in &places {
            let now = (weights[*i] * wanted[*e] / self.before[*e]).min(1.0);
            lost += weights[*i] - now;
            weights[*i] = now;
        }
        if lost.abs() <= SAME {
            return;
        }
        let takes: Vec<bool> = eligible
            .iter()
            .map(|pair| self.takes(pair.engine))
            .collect();
        let held: f64 = takes
            .iter()
            .zip(&*weights)
            .map(|(t, w)| if *t { *w } else { 0.0 })
            .sum();
        let standby = (lost > held).then(|| self.standby(id, &takes)).flatten();
        match standby {
            // What others hold is too little to tell how they would share so much more.
            Some(parts) => weights
                .iter_mut()
                .zip(parts)
                .for_each(|(w, part)| *w += lost * part),
            None if held > 0.0 => {
                let factor = (1.0 + lost / held).max(0.0);
                let kept = weights.iter_mut().zip(&takes).filter(|(_, takes)| **takes);
                kept.for_each(|(w, _)| *w *= factor);
            }
            None => {
                let count = takes.iter().filter(|takes| **takes).count().max(1) as f64;
                let kept = weights.iter_mut().zip(&takes).filter(|(_, takes)| **takes);
                kept.for_each(|(w, _)| *w += lost.max(0.0) / count);
            }
        }
        // What could not be taken back, or had nowhere to go.
        let sum: f64 = weights.iter().sum();
        if sum > 0.0 && (sum - 1.0).abs() > SAME {
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
    }

    /// How the standing policy's standby list shares what a table refuses among those that take it.
    fn standby(&self, id: ClassId, takes: &[bool]) -> Option<Vec<f64>> {
        let described = &self.topology.classes[id.0];
        let named = |class: &&Class| class.name == described.name;
        let class = self.standing.classes.iter().find(named)?;
        let slots = self
            .standing
            .engines
            .iter()
            .map(|e| (e.id.as_str(), e.slot));
        let slots: BTreeMap<&str, EngineSlot> = slots.collect();
        let weight = |(pair, takes): (&crate::model::topology::ClassEngine, &bool)| {
            let slot = slots.get(self.topology.engines[pair.engine.0].name.as_str());
            let mut list = class.standby.iter();
            let found = list.find(|one| *takes && Some(&one.engine) == slot);
            found.map_or(0.0, |one| one.weight)
        };
        let weights: Vec<f64> = described.eligible.iter().zip(takes).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        (sum > 0.0).then(|| weights.iter().map(|weight| weight / sum).collect())
    }
}
