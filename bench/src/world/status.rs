//! What the world reads of the solver's `/status`.

use serde::Deserialize;

/// The solver at one moment; fields that the world does not use are left out.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Status {
    pub(super) ticks: u64,
    pub(super) demand_source: String,
    pub(super) frontends: Vec<Frontend>,
    pub(super) engines: Vec<Engine>,
}

/// A frontend and what is published for it.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Frontend {
    pub(super) frontend: String,
    pub(super) demand_rps: f64,
    pub(super) classes: Vec<Class>,
}

/// A class of a frontend.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Class {
    pub(super) settled: bool,
    pub(super) weights: Vec<Weight>,
}

/// A published weight.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Weight {
    pub(super) engine: String,
    pub(super) weight: Option<f64>,
}

/// An engine as planned.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Engine {
    pub(super) engine: String,
    pub(super) utilisation: Option<f64>,
}

impl Status {
    /// A frontend by name.
    pub(super) fn frontend(&self, name: &str) -> Option<&Frontend> {
        self.frontends
            .iter()
            .find(|frontend| frontend.frontend == name)
    }

    /// Planned load over hard capacity.
    pub(super) fn utilisation(&self, engine: &str) -> Option<f64> {
        self.engines
            .iter()
            .find(|one| one.engine == engine)?
            .utilisation
    }

    /// The published weight of the frontend's first class: the world has one route.
    pub(super) fn weight(&self, frontend: &str, engine: &str) -> Option<f64> {
        let class = self.frontend(frontend)?.classes.first()?;
        class
            .weights
            .iter()
            .find(|one| one.engine == engine)?
            .weight
    }
}
