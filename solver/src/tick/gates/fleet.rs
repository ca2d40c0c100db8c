//! The gates over engines: many of them vanish at once while proxies still succeed on them.
//!
//! An engine has *vanished* when its health checks get no answer after it was seen well; one that
//! answers that it is unwell has not. Proxies that fail on it confirm the loss, and it is planned
//! without at once: only a loss that they contradict is held.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{AT_ONCE_NS, Gate, Held};
use crate::model::topology::{EngineId, Topology};
use crate::tick::inputs::{EngineSample, Health, Inputs};

/// Part of the engines, or of a class's capacity, that may vanish at once.
const MOST_LOST: f64 = 0.3;
/// Most names in a text.
const MOST_NAMES: usize = 8;

/// What is remembered, by engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Memory {
    engines: BTreeMap<String, Seen>,
    answers: BTreeMap<String, Answered>,
}

/// An engine that was seen well.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Seen {
    /// What was last believed of it.
    last: EngineSample,
    /// Since when it is silent.
    lost_ns: Option<u64>,
    /// Its loss is held.
    held: bool,
}

/// How proxies last fared on an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Answered {
    well: bool,
    at_ns: u64,
}

/// Engines that vanished at once, by what proxies say of them.
#[derive(Debug, Default)]
struct Vanished {
    /// Proxies do not contradict that they serve.
    doubted: BTreeSet<EngineId>,
    /// On some of these proxies succeed.
    succeeded: bool,
    /// Engines that are not vanished.
    present: BTreeSet<EngineId>,
}

pub(super) fn judge(topology: &Topology, memory: &mut Memory, inputs: &mut Inputs) -> Option<Held> {
    memory.look(topology, inputs);
    let vanished = memory.vanished(topology, inputs);
    let held = vanished
        .succeeded
        .then(|| too_many(topology, &vanished.doubted, &vanished.present))
        .flatten()
        .map(|(gate, part)| Held {
            gate,
            detail: format!(
                "{part} cannot be asked, yet proxies succeed there: {}",
                names(topology, &vanished.doubted)
            ),
        });
    for (id, engine) in topology.engine_ids().zip(&topology.engines) {
        if let Some(seen) = memory.engines.get_mut(&engine.name) {
            seen.held = held.is_some() && vanished.doubted.contains(&id);
            if seen.held {
                inputs.engines.push(EngineSample {
                    engine: id,
                    ..seen.last
                });
            }
        }
    }
    held
}

/// See [`super::shrunk`].
pub(super) fn shrunk(
    memory: &Memory,
    old: &Topology,
    new: &Topology,
    drained: impl Fn(&str) -> bool,
    now_ns: u64,
) -> Option<Held> {
    let stays = |name: &str| new.engines.iter().any(|engine| engine.name == name);
    let (mut gone, mut present) = (BTreeSet::new(), BTreeSet::new());
    let mut succeeded = false;
    for (id, engine) in old.engine_ids().zip(&old.engines) {
        match memory.answered(&engine.name, now_ns) {
            _ if stays(&engine.name) => {
                present.insert(id);
            }
            Some(false) => {}
            _ if drained(&engine.name) => {}
            answered => {
                succeeded |= answered == Some(true);
                gone.insert(id);
            }
        }
    }
    let (_, part) = succeeded
        .then(|| too_many(old, &gone, &present))
        .flatten()?;
    Some(Held {
        gate: Gate::TopologyShrunk,
        detail: format!(
            "{part} would be gone at once, yet proxies succeed there: {}; drain them first, or \
             reload with --force",
            names(old, &gone)
        ),
    })
}

impl Memory {
    fn look(&mut self, topology: &Topology, inputs: &Inputs) {
        let known: BTreeSet<&str> = topology.engines.iter().map(|e| e.name.as_str()).collect();
        self.engines.retain(|name, _| known.contains(name.as_str()));
        self.answers.retain(|name, _| known.contains(name.as_str()));
        for (id, engine) in topology.engine_ids().zip(&topology.engines) {
            if let Some(answers) = inputs.witness.engines.get(&id)
                && answers.succeeded + answers.failed > 0
            {
                let well = answers.succeeded > answers.failed;
                let at_ns = inputs.now_ns;
                self.answers
                    .insert(engine.name.clone(), Answered { well, at_ns });
            }
            self.look_at(&engine.name, id, inputs);
        }
    }

    fn look_at(&mut self, name: &str, id: EngineId, inputs: &Inputs) {
        let sample = inputs.engines.iter().rev().find(|s| s.engine == id);
        let sample = sample.copied().unwrap_or_else(|| EngineSample::unknown(id));
        match sample.health {
            Health::Up => {
                let seen = Seen {
                    last: sample,
                    lost_ns: None,
                    held: false,
                };
                self.engines.insert(name.to_owned(), seen);
            }
            // It spoke for itself.
            Health::Down if !sample.silent => {
                self.engines.remove(name);
            }
            Health::Down | Health::Unknown => {
                if let Some(seen) = self.engines.get_mut(name) {
                    seen.lost_ns.get_or_insert(inputs.now_ns);
                }
            }
        }
    }

    fn vanished(&self, topology: &Topology, inputs: &Inputs) -> Vanished {
        let now_ns = inputs.now_ns;
        let mut vanished = Vanished::default();
        for (id, engine) in topology.engine_ids().zip(&topology.engines) {
            let Some(seen) = self.engines.get(&engine.name) else {
                continue;
            };
            if inputs.orders.draining.contains(&id) {
                continue;
            }
            let Some(lost_ns) = seen.lost_ns else {
                vanished.present.insert(id);
                continue;
            };
            if !seen.held && now_ns.saturating_sub(lost_ns) > AT_ONCE_NS {
                continue;
            }
            match self.answered(&engine.name, now_ns) {
                Some(false) => {}
                answered => {
                    vanished.succeeded |= answered == Some(true);
                    vanished.doubted.insert(id);
                }
            }
        }
        vanished
    }

    /// How proxies fared on an engine lately; `None` when they did not ask it.
    fn answered(&self, name: &str, now_ns: u64) -> Option<bool> {
        let answered = self.answers.get(name)?;
        (now_ns.saturating_sub(answered.at_ns) <= AT_ONCE_NS).then_some(answered.well)
    }
}

/// Whether `lost` is too much of `lost` and `present` together, and of what.
fn too_many(
    topology: &Topology,
    lost: &BTreeSet<EngineId>,
    present: &BTreeSet<EngineId>,
) -> Option<(Gate, String)> {
    let all = lost.len() + present.len();
    if lost.len() as f64 > MOST_LOST * all as f64 {
        let part = format!("{} of {all} engines", lost.len());
        return Some((Gate::EnginesVanished, part));
    }
    for class in &topology.classes {
        let (mut gone, mut stays) = (0.0, 0.0);
        for pair in &class.eligible {
            let capacity = &topology.engines[pair.engine.0].capacity;
            let seconds = class.mix.engine_seconds(capacity);
            let rps = if seconds > 0.0 { 1.0 / seconds } else { 0.0 };
            if lost.contains(&pair.engine) {
                gone += rps;
            } else if present.contains(&pair.engine) {
                stays += rps;
            }
        }
        if gone > MOST_LOST * (gone + stays) {
            let percent = 100.0 * gone / (gone + stays);
            let part = format!("{percent:.0} % of the capacity of class {:?}", class.name);
            return Some((Gate::CapacityVanished, part));
        }
    }
    None
}

fn names(topology: &Topology, engines: &BTreeSet<EngineId>) -> String {
    let first = engines.iter().take(MOST_NAMES);
    let mut names: Vec<&str> = first
        .map(|id| topology.engines[id.0].name.as_str())
        .collect();
    if engines.len() > MOST_NAMES {
        names.push("...");
    }
    names.join(", ")
}
