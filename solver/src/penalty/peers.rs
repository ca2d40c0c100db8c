//! What the peers of an engine are like: the other usable engines of its classes.

use std::collections::BTreeMap;

use super::evidence::{Typical, median_of_others};
use super::watch::One;
use crate::model::topology::{EngineId, Topology};

/// What peers are like, by class and by kind within it.
pub(super) struct Peers {
    lists: BTreeMap<(usize, Option<String>), Lists>,
    /// By engine: its kind and classes.
    places: Vec<(String, Vec<usize>)>,
}

/// Engines by rising mean.
#[derive(Default)]
struct Lists {
    ttft: ByTimes,
    tbot: ByTimes,
    failures: Vec<(EngineId, f64)>,
}

/// Times of engines, by each of what is typical of them.
#[derive(Default)]
struct ByTimes {
    ratios: Vec<(EngineId, f64)>,
    means: Vec<(EngineId, f64)>,
    deviations: Vec<(EngineId, f64)>,
}

/// What the median peer of an engine is like.
pub(super) struct Peer {
    pub(super) ttft: Option<Typical>,
    pub(super) tbot: Option<Typical>,
    pub(super) failures: Option<f64>,
}

impl Peers {
    pub(super) fn of(topology: &Topology, engines: &[One], usable: &[bool]) -> Self {
        let mut lists: BTreeMap<(usize, Option<String>), Lists> = BTreeMap::new();
        let mut places: Vec<(String, Vec<usize>)> = topology
            .engines
            .iter()
            .map(|e| (e.kind.clone(), Vec::new()))
            .collect();
        for (k, class) in topology.classes.iter().enumerate() {
            for pair in &class.eligible {
                let (id, one) = (pair.engine, &engines[pair.engine.0]);
                let (kind, classes) = &mut places[id.0];
                classes.push(k);
                if !usable[id.0] {
                    continue;
                }
                for kind in [None, Some(kind.clone())] {
                    let list = lists.entry((k, kind)).or_default();
                    list.ttft.extend(id, one.ttft.typical());
                    list.tbot.extend(id, one.tbot.typical());
                    list.failures.extend(one.failures.share().map(|f| (id, f)));
                }
            }
        }
        for list in lists.values_mut() {
            list.ttft.sort();
            list.tbot.sort();
            list.failures.sort_by(|a, b| a.1.total_cmp(&b.1));
        }
        Self { lists, places }
    }

    /// By the class in which the most others tell something. An assumed curve is the same for all
    /// kinds, so that only its own kind compares.
    pub(super) fn of_engine(&self, id: EngineId, one: &One) -> Peer {
        let (kind, classes) = &self.places[id.0];
        let kind = one.assumed.then(|| kind.clone());
        let list = |k: &usize| self.lists.get(&(*k, kind.clone()));
        let most = classes
            .iter()
            .filter_map(list)
            .max_by_key(|list| list.failures.len());
        let Some(list) = most else {
            return Peer {
                ttft: None,
                tbot: None,
                failures: None,
            };
        };
        Peer {
            ttft: list.ttft.of_others(id),
            tbot: list.tbot.of_others(id),
            failures: median_of_others(&list.failures, id),
        }
    }
}

impl ByTimes {
    fn extend(&mut self, id: EngineId, typical: Option<Typical>) {
        self.ratios.extend(typical.map(|t| (id, t.ratio)));
        self.means.extend(typical.map(|t| (id, t.mean)));
        self.deviations.extend(typical.map(|t| (id, t.deviation)));
    }

    fn sort(&mut self) {
        for list in [&mut self.ratios, &mut self.means, &mut self.deviations] {
            list.sort_by(|a, b| a.1.total_cmp(&b.1));
        }
    }

    /// The medians of others, and the widest of their deviations.
    fn of_others(&self, id: EngineId) -> Option<Typical> {
        let widest = self.deviations.iter().rev().find(|(one, _)| *one != id)?;
        Some(Typical {
            ratio: median_of_others(&self.ratios, id)?,
            mean: median_of_others(&self.means, id)?,
            deviation: widest.1,
        })
    }
}
