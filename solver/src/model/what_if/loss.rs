//! What remains when an engine, or every engine of a region, is lost.
//!
//! The weights that stand do not count: a loss moves what it must, and the question is what the
//! rest of the fleet can carry. So the solve has no price of movement, no step and no order.

use crate::model::optimise::{Status, Warm, optimise_from};
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

/// A fleet to lose engines of: every source a choice, nothing by steps, and where each solve
/// begins.
#[derive(Debug)]
pub struct Fleet {
    free: Problem,
    /// What the plan of the whole fleet leaves; it says where to begin and not what comes out.
    warm: Option<Warm>,
    /// The plan of the whole fleet; `None` until it was solved.
    whole: Option<Summary>,
}

impl Fleet {
    /// A fleet as a problem has it, with what an earlier plan of it left if there is anything.
    #[must_use]
    pub fn new(problem: &Problem, warm: Option<Warm>) -> Self {
        let mut free = problem.clone();
        for source in &mut free.sources {
            source.previous = None;
            source.fixed = None;
            source.arcs.iter_mut().for_each(|arc| arc.most = None);
        }
        Self {
            free,
            warm,
            whole: None,
        }
    }

    /// Shortens the limit of one solve, milliseconds.
    pub fn limit(&mut self, limit_ms: u64) {
        self.free.limit_ms = self.free.limit_ms.min(limit_ms);
    }

    /// The best of the whole fleet; each loss then begins with what it leaves.
    ///
    /// # Errors
    ///
    /// How the solve ended.
    pub fn whole(&mut self) -> Result<Summary, Status> {
        if let Some(whole) = self.whole {
            return Ok(whole);
        }
        let (solution, warm) = optimise_from(&self.free, self.warm.as_ref())?;
        self.warm = warm;
        let whole = Summary::of(&self.free, &solution);
        self.whole = Some(whole);
        Ok(whole)
    }

    /// What the plan of the whole fleet left, for the next fleet of the same topology.
    #[must_use]
    pub fn left(self) -> Option<Warm> {
        self.warm
    }

    /// The best without some engines; the fleet is whole again afterwards.
    ///
    /// # Errors
    ///
    /// How the solve ended.
    pub fn without(&mut self, lost: &[EngineId]) -> Result<Summary, Status> {
        let free = &mut self.free;
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
        let solved = optimise_from(free, self.warm.as_ref());
        let summary = solved.map(|(solution, _)| Summary::of(free, &solution));
        for (id, capacity) in lost.iter().zip(capacity) {
            free.engines[id.0].capacity = capacity;
        }
        for (s, i) in closed {
            free.sources[s].arcs[i].open = true;
        }
        summary
    }
}
