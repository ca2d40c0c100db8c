//! What remains when an engine, or every engine of a region, is lost.
//!
//! The weights that stand do not count: a loss moves what it must, and the question is what the
//! rest of the fleet can carry. So the solve has no price of movement, no step and no order.

use crate::model::optimise::{Status, optimise};
use crate::model::problem::Problem;
use crate::model::topology::{EngineId, Topology};

use super::Summary;

/// What is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// One engine.
    Engine(String),
    /// Every engine of a region; its frontends stay.
    Region(String),
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Engine(name) => write!(f, "engine {name}"),
            Self::Region(name) => write!(f, "region {name}"),
        }
    }
}

impl Lost {
    /// Every single engine, then every region that has a name.
    #[must_use]
    pub fn each(topology: &Topology) -> Vec<Self> {
        let engines = topology
            .engines
            .iter()
            .map(|e| Self::Engine(e.name.clone()));
        let mut regions: Vec<Self> = Vec::new();
        for engine in topology.engines.iter().filter(|e| !e.region.is_empty()) {
            let region = Self::Region(engine.region.clone());
            if !regions.contains(&region) {
                regions.push(region);
            }
        }
        engines.chain(regions).collect()
    }

    /// The engines.
    ///
    /// # Errors
    ///
    /// The topology has none such.
    pub fn engines(&self, topology: &Topology) -> Result<Vec<EngineId>, String> {
        let lost = |id: &EngineId| {
            let engine = &topology.engines[id.0];
            match self {
                Self::Engine(name) => engine.name == *name,
                Self::Region(region) => engine.region == *region,
            }
        };
        let found: Vec<EngineId> = topology.engine_ids().filter(lost).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let (what, name, known): (&str, &String, Vec<&str>) = match self {
            Self::Engine(name) => {
                let known = topology.engines.iter().map(|e| e.name.as_str());
                ("engine", name, known.take(20).collect())
            }
            Self::Region(name) => {
                let mut known: Vec<&str> =
                    topology.engines.iter().map(|e| e.region.as_str()).collect();
                known.sort_unstable();
                known.dedup();
                known.truncate(20);
                ("region", name, known)
            }
        };
        Err(format!(
            "no {what} {name:?}; there are {}",
            known.join(", ")
        ))
    }
}

/// A problem in which every source is a choice and nothing has to move by steps.
#[must_use]
pub fn free(problem: &Problem) -> Problem {
    let mut free = problem.clone();
    for source in &mut free.sources {
        source.previous = None;
        source.fixed = None;
    }
    free
}

/// The best without some engines; the problem is as it was afterwards.
///
/// # Errors
///
/// How the solve ended.
pub fn without(free: &mut Problem, lost: &[EngineId]) -> Result<Summary, Status> {
    let capacity: Vec<f64> = lost.iter().map(|id| free.engines[id.0].capacity).collect();
    let mut closed = Vec::new();
    for (s, source) in free.sources.iter_mut().enumerate() {
        for (i, arc) in source.arcs.iter_mut().enumerate() {
            if arc.open && lost.contains(&arc.engine) {
                arc.open = false;
                closed.push((s, i));
            }
        }
    }
    for id in lost {
        free.engines[id.0].capacity = 0.0;
    }
    let solved = optimise(free);
    let summary = solved.map(|solution| Summary::of(free, &solution));
    for (id, capacity) in lost.iter().zip(capacity) {
        free.engines[id.0].capacity = capacity;
    }
    for (s, i) in closed {
        free.sources[s].arcs[i].open = true;
    }
    summary
}
