//! What the optimum means in the operator's units.

use super::topology::{ClassId, EngineId, FrontendId};

/// The plan of one pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Its cost, term by term.
    pub terms: Terms,
    /// Every (frontend, class) in file order.
    pub sources: Vec<SourcePlan>,
    /// Every engine in file order.
    pub engines: Vec<EnginePlan>,
}

/// Milliseconds per second, term by term.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Terms {
    /// Distance.
    pub network: f64,
    /// Latency at idle.
    pub service: f64,
    /// What load adds.
    pub congestion: f64,
    /// Conversations moved.
    pub movement: f64,
    /// Requests refused.
    pub shed: f64,
}

impl Terms {
    /// The objective.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.network + self.service + self.congestion + self.movement + self.shed
    }
}

/// What one (frontend, class) does.
#[derive(Clone, Debug, PartialEq)]
pub struct SourcePlan {
    /// Where demand arises.
    pub frontend: FrontendId,
    /// What it asks for.
    pub class: ClassId,
    /// Demand by priority, requests per second.
    pub demand_rps: Vec<f64>,
    /// Refused by priority, requests per second.
    pub shed_rps: Vec<f64>,
    /// Every eligible engine, in the order of the class's `eligible`.
    pub arcs: Vec<ArcPlan>,
}

/// What one (frontend, class) sends to one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArcPlan {
    /// The engine.
    pub engine: EngineId,
    /// Share of the requests that are not shed.
    pub weight: f64,
    /// Requests per second.
    pub rate_rps: f64,
    /// Network time of one request, milliseconds.
    pub network_ms: f64,
    /// Latency at idle of one request, milliseconds.
    pub service_ms: f64,
    /// What the planned load adds to one request, milliseconds.
    pub congestion_ms: f64,
    /// Predicted time to first token at idle, milliseconds.
    pub idle_ttft_ms: f64,
    /// Predicted time to first token at the planned load, milliseconds.
    pub planned_ttft_ms: f64,
}

/// What one engine gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EnginePlan {
    /// The engine.
    pub engine: EngineId,
    /// Load, in requests per second of its capacity's stated mix.
    pub load_rps: f64,
    /// Hard capacity now, in the same unit.
    pub capacity_rps: f64,
    /// Load over hard capacity; 0 where both are 0.
    pub utilisation: f64,
    /// Factor in (0, 1] by which a penalty lowered the capacity.
    pub planned_factor: f64,
}
