//! What is believed of load by block of the key space, and the hot blocks that nothing can spread.

use std::collections::BTreeMap;

use pointsman_shm::id::EngineSlot;
use pointsman_shm::policy::Policy;
use serde::{Deserialize, Serialize};

use super::inputs::Inputs;
use crate::model::block_load::{BLOCKS, Believed, Hot};
use crate::model::slots::skew;
use crate::model::topology::Topology;

/// What is believed, by frontend and class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Memory {
    sources: BTreeMap<(String, String), Believed>,
}

/// A hot block that alone exceeds every engine's share: no table can spread it.
#[derive(Clone, Debug, PartialEq)]
pub struct HotBlock {
    /// Where its requests come from.
    pub frontend: String,
    /// What they ask for.
    pub class: String,
    /// Which of the blocks of the key space.
    pub block: u16,
    /// Its share of the class's requests.
    pub share: f64,
    /// The engine that has it.
    pub engine: String,
    /// That engine's weight.
    pub weight: f64,
}

impl Memory {
    /// Takes in what was measured, and forgets what the topology no longer has.
    pub(super) fn learn(&mut self, topology: &Topology, inputs: &Inputs) {
        let known = |(frontend, class): &(String, String)| {
            topology.frontends.iter().any(|f| f.name == *frontend)
                && topology.classes.iter().any(|c| c.name == *class)
        };
        self.sources.retain(|key, _| known(key));
        for sample in &inputs.blocks {
            let frontend = topology.frontends[sample.frontend.0].name.clone();
            let class = topology.classes[sample.class.0].name.clone();
            let believed = self.sources.entry((frontend, class)).or_default();
            believed.learn(&sample.hot, inputs.now_ns);
        }
    }

    /// Hot blocks by frontend then class; `None` where too little was ever seen.
    pub(super) fn hot(&self, topology: &Topology) -> Vec<Option<Vec<Hot>>> {
        let mut list = Vec::with_capacity(topology.frontends.len() * topology.classes.len());
        for frontend in &topology.frontends {
            for class in &topology.classes {
                let key = (frontend.name.clone(), class.name.clone());
                list.push(self.sources.get(&key).map(Believed::hot));
            }
        }
        list
    }
}

impl HotBlock {
    /// In words that stay the same while it does.
    pub(super) fn note(&self) -> String {
        format!(
            "block {} of {BLOCKS} of the keys of class {:?} at frontend {:?} brings {:.0} % of its \
             requests, and engine {:?} should have {:.0} %: one key cannot be spread",
            self.block,
            self.class,
            self.frontend,
            100.0 * self.share,
            self.engine,
            100.0 * self.weight,
        )
    }
}

/// Hot blocks that exceed every engine's share in these policies; `hot` is in the order of the
/// topology's frontends and classes.
pub(super) fn over(
    topology: &Topology,
    policies: &[Policy],
    hot: &[Option<Vec<Hot>>],
) -> Vec<HotBlock> {
    let mut named = Vec::new();
    let sources = policies
        .iter()
        .zip(hot.chunks(topology.classes.len().max(1)));
    for (policy, hot) in sources {
        for (described, hot) in topology.classes.iter().zip(hot) {
            let class = policy.classes.iter().find(|c| c.name == described.name);
            let (Some(class), Some(hot)) = (class, hot) else {
                continue;
            };
            let find = |slot| class.eligible.iter().position(|e| e.engine == slot);
            let table: Option<Vec<usize>> = class.table.iter().map(|slot| find(*slot)).collect();
            let Some(table) = table.filter(|table| !table.is_empty() && !hot.is_empty()) else {
                continue;
            };
            let weights: Vec<f64> = class.eligible.iter().map(|e| e.weight).collect();
            for (hot, at) in skew::over(&table, &weights, hot) {
                let slot = class.eligible[at].engine;
                let engine = policy.engines.iter().find(|e| e.slot == slot);
                named.push(HotBlock {
                    frontend: policy.frontend.clone(),
                    class: class.name.clone(),
                    block: hot.block,
                    share: hot.share,
                    engine: engine.map_or_else(String::new, |e| e.id.clone()),
                    weight: weights[at],
                });
            }
        }
    }
    named
}

/// Whether a candidate moves more slots than its weights ask for: for measured load.
pub(super) fn moves_for_load(standing: &Policy, candidate: &Policy) -> bool {
    candidate.classes.iter().any(|now| {
        let before = standing.classes.iter().find(|c| c.name == now.name);
        let Some(before) = before.filter(|b| b.table.len() == now.table.len()) else {
            return false;
        };
        let moved = before
            .table
            .iter()
            .zip(&now.table)
            .filter(|(a, b)| a != b)
            .count();
        let weight = |(at, engine): (usize, EngineSlot)| {
            // Nearly always in the same place.
            let same = before.eligible.get(at).filter(|e| e.engine == engine);
            let found = same.or_else(|| before.eligible.iter().find(|e| e.engine == engine));
            found.map_or(0.0, |e| e.weight)
        };
        let asked: f64 = now
            .eligible
            .iter()
            .enumerate()
            .map(|(at, e)| (e.weight - weight((at, e.engine))).max(0.0))
            .sum();
        // A move for load is worth a publication from a quarter of what one may move.
        let slots = now.table.len() as f64;
        moved as f64 > (asked + 1.0 / (4 * skew::MOST_MOVED) as f64) * slots
    })
}
