//! What would be otherwise if something were: an engine lost, a number changed.
//!
//! Each answer is a solve of its own on a changed problem or a changed topology; nothing is
//! extrapolated from prices, which hold for one unit only. Nobody publishes any of it.

pub mod loss;
pub mod set;

use super::explain::Ground;
use super::optimise::{Solution, Status, optimise};
use super::problem::{DemandNow, EngineNow, Now, Problem};
use super::topology::Topology;

/// Every engine as described: all replicas ready, no penalty.
#[must_use]
pub fn described(topology: &Topology) -> Vec<EngineNow> {
    let one = |e: &super::topology::Engine| EngineNow::described(e.replicas);
    topology.engines.iter().map(one).collect()
}

/// The plan for the configured demand, with engines as given and nothing published before.
///
/// # Errors
///
/// How the solve ended.
pub fn solve(topology: &Topology, engines: &[EngineNow]) -> Result<Ground, Status> {
    let problem = problem(topology, engines);
    let solution = optimise(&problem)?;
    Ok(Ground {
        fixed_by: vec![None; problem.sources.len()],
        engines: engines.to_vec(),
        problem,
        solution,
    })
}

/// The problem of the configured demand.
#[must_use]
pub fn problem(topology: &Topology, engines: &[EngineNow]) -> Problem {
    let sources = topology.frontends.len() * topology.classes.len();
    let now = Now {
        demand: &configured(topology),
        engines,
        previous: &vec![None; sources],
        reachable: &vec![true; topology.frontends.len() * topology.engines.len()],
        hold_observed: false,
    };
    Problem::new(topology, &now)
}

/// Configured demand by frontend then class.
fn configured(topology: &Topology) -> Vec<DemandNow> {
    let none = vec![0.0; topology.priorities.len()];
    let classes = topology.classes.len();
    let mut list: Vec<DemandNow> = (0..topology.frontends.len() * classes)
        .map(|i| DemandNow {
            by_priority_rps: none.clone(),
            mix: topology.classes[i % classes].mix,
        })
        .collect();
    for demand in &topology.demand {
        let class = topology.routes[demand.route.0].class.0;
        let rates = &mut list[demand.frontend.0 * classes + class].by_priority_rps;
        rates[usize::from(demand.priority)] += demand.rps.value();
    }
    list
}

/// A plan in a few numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Offered, requests per second.
    pub demand_rps: f64,
    /// Of which are refused.
    pub shed_rps: f64,
    /// Mean latency of a request that is served, milliseconds: network, service and delay.
    pub latency_ms: f64,
    /// The highest utilisation of an engine, and which; `None` without load.
    pub worst: Option<(usize, f64)>,
    /// The objective, milliseconds per second.
    pub objective_ms: f64,
}

impl Summary {
    /// The numbers of a solution.
    #[must_use]
    pub fn of(problem: &Problem, solution: &Solution) -> Self {
        let mut summary = Self {
            objective_ms: solution.terms.total(),
            ..Self::default()
        };
        let mut latency_ms = 0.0;
        for ((source, shares), shed) in
            (problem.sources.iter().zip(&solution.shares)).zip(&solution.shed)
        {
            let demand = source.demand();
            summary.demand_rps += demand;
            summary.shed_rps += demand * shed.iter().sum::<f64>();
            for (arc, share) in source.arcs.iter().zip(shares).filter(|(_, x)| **x > 0.0) {
                let delay_ms = problem.delay_ms(arc, solution.utilisation[arc.engine.0]);
                latency_ms += demand * share * (arc.network_ms + arc.service_ms + delay_ms);
            }
        }
        let served = summary.demand_rps - summary.shed_rps;
        if served > 0.0 {
            summary.latency_ms = latency_ms / served;
        }
        let loaded = solution.utilisation.iter().copied().enumerate();
        let loaded = loaded.filter(|(_, load)| *load > 0.0);
        // The first of the highest ones.
        summary.worst = loaded.reduce(|a, b| if b.1 > a.1 { b } else { a });
        summary
    }

    /// Refused over offered; 0 without demand.
    #[must_use]
    pub fn shed_ratio(&self) -> f64 {
        if self.demand_rps > 0.0 {
            self.shed_rps / self.demand_rps
        } else {
            0.0
        }
    }
}
