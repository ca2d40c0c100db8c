//! What the optimum means in the operator's units.

use super::optimise::Solution;
use super::problem::{Arc, EngineNow, Problem, Source};
use super::topology::{ClassId, EngineId, FrontendId, Method, ProfileId, Topology};

/// The plan of one pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Its cost, term by term.
    pub terms: Terms,
    /// Every (frontend, class) in file order.
    pub sources: Vec<SourcePlan>,
    /// Every engine in file order.
    pub engines: Vec<EnginePlan>,
    /// Factor on every shed cost that kept shedding the last resort.
    pub shed_factor: f64,
    /// Programs solved to find it.
    pub rounds: usize,
    /// How it was found.
    pub method: Method,
    /// Most that the work of one request differs from its separable fit, relatively.
    pub separability_error: f64,
    /// How much dearer than its program's optimum it is at most, relatively.
    pub gap: f64,
}

impl Plan {
    /// What a solution means.
    #[must_use]
    pub fn new(
        topology: &Topology,
        problem: &Problem,
        engines: &[EngineNow],
        solution: &Solution,
    ) -> Self {
        let mut latencies = Latencies::new(problem, solution);
        let source = |(s, source)| source_plan(solution, s, source, &mut latencies);
        let engine = |id: EngineId| {
            let now = &engines[id.0];
            let described = topology.engines[id.0].capacity.rps.value();
            let capacity_rps = described * problem.engines[id.0].capacity;
            let load = solution.utilisation[id.0];
            EnginePlan {
                engine: id,
                load_rps: if capacity_rps > 0.0 {
                    load * capacity_rps
                } else {
                    0.0
                },
                capacity_rps,
                utilisation: load,
                kv_utilisation: solution.kv_utilisation[id.0],
                planned_factor: now.planned_factor,
            }
        };
        Self {
            terms: solution.terms,
            sources: problem.sources.iter().enumerate().map(source).collect(),
            engines: topology.engine_ids().map(engine).collect(),
            shed_factor: solution.shed_factor,
            rounds: solution.rounds,
            method: solution.method,
            separability_error: solution.separability_error,
            gap: solution.gap,
        }
    }
}

/// By engine: latencies by the profile asked for last, which is mostly the only one.
struct Latencies<'a> {
    problem: &'a Problem,
    solution: &'a Solution,
    last: Vec<Option<Latency>>,
}

/// First token, and each further one, milliseconds.
#[derive(Clone, Copy)]
struct Latency {
    profile: ProfileId,
    idle_ms: (f64, f64),
    planned_ms: (f64, f64),
}

impl<'a> Latencies<'a> {
    fn new(problem: &'a Problem, solution: &'a Solution) -> Self {
        Self {
            problem,
            solution,
            last: vec![None; problem.engines.len()],
        }
    }

    fn of(&mut self, arc: &Arc) -> Latency {
        let e = arc.engine.0;
        if let Some(last) = self.last[e].filter(|last| last.profile == arc.profile) {
            return last;
        }
        let profile = &self.problem.profiles[arc.profile.0];
        let found = Latency {
            profile: arc.profile,
            idle_ms: profile.at(0.0),
            planned_ms: profile.at(self.solution.utilisation[e]),
        };
        self.last[e] = Some(found);
        found
    }
}

impl Latency {
    /// What the planned load adds to a request: as [`Problem::delay_ms`].
    fn delay_ms(&self, arc: &Arc) -> f64 {
        let ((ttft, tbot), (ttft0, tbot0)) = (self.planned_ms, self.idle_ms);
        (ttft - ttft0) + arc.output_tokens * (tbot - tbot0)
    }
}

fn source_plan(
    solution: &Solution,
    s: usize,
    source: &Source,
    latencies: &mut Latencies<'_>,
) -> SourcePlan {
    let demand = source.demand();
    let shares = &solution.shares[s];
    let weights = weights(source, shares);
    let arcs = source
        .arcs
        .iter()
        .zip(&weights)
        .zip(shares)
        .map(|((arc, weight), share)| {
            let latency = latencies.of(arc);
            ArcPlan {
                engine: arc.engine,
                open: arc.open,
                weight: *weight,
                rate_rps: demand * share,
                seconds: arc.seconds,
                network_ms: arc.network_ms,
                service_ms: arc.service_ms,
                congestion_ms: latency.delay_ms(arc),
                money_ms: arc.money_ms,
                kv_token_s: arc.kv_token_s,
                idle_ttft_ms: latency.idle_ms.0,
                planned_ttft_ms: latency.planned_ms.0,
            }
        });
    SourcePlan {
        frontend: source.frontend,
        class: source.class,
        demand_rps: source.demand_rps.clone(),
        shed_rps: solution.shed[s]
            .iter()
            .map(|share| demand * share)
            .collect(),
        served: source.fixed.is_some() || source.has_open_arc(),
        arcs: arcs.collect(),
    }
}

/// Shares of what is routed. Where nothing is, the weights that stand, or else the nearest
/// engine: a class must have weights when its requests are admitted again.
pub(super) fn weights(source: &Source, shares: &[f64]) -> Vec<f64> {
    if let Some(fixed) = &source.fixed {
        return fixed.clone();
    }
    let scaled = |values: &[f64]| {
        let usable = |(arc, v): (&Arc, &f64)| if arc.open { *v } else { 0.0 };
        let values: Vec<f64> = source.arcs.iter().zip(values).map(usable).collect();
        let sum: f64 = values.iter().sum();
        (sum > 1e-9).then(|| values.iter().map(|v| v / sum).collect::<Vec<f64>>())
    };
    let stands = || source.previous.as_deref().and_then(scaled);
    if let Some(weights) = scaled(shares).or_else(stands) {
        return weights;
    }
    let mut weights = vec![0.0; source.arcs.len()];
    let open = source.arcs.iter().enumerate().filter(|(_, arc)| arc.open);
    let way = |arc: &Arc| arc.network_ms + arc.service_ms;
    if let Some((nearest, _)) = open.min_by(|(_, a), (_, b)| way(a).total_cmp(&way(b))) {
        weights[nearest] = 1.0;
    }
    weights
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
    /// Money, where bytes on the way are priced.
    pub money: f64,
    /// Requests refused.
    pub shed: f64,
}

impl Terms {
    /// The objective.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.network + self.service + self.congestion + self.movement + self.money + self.shed
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
    /// Whether any engine can take it now. Where none can, all demand counts as refused here,
    /// but no admitted rate is set: proxies name the cause themselves.
    pub served: bool,
    /// Every eligible engine, in the order of the class's `eligible`.
    pub arcs: Vec<ArcPlan>,
}

/// What one (frontend, class) sends to one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ArcPlan {
    /// The engine.
    pub engine: EngineId,
    /// Whether the engine can be used now.
    pub open: bool,
    /// Share of the requests that are not shed.
    pub weight: f64,
    /// Requests per second.
    pub rate_rps: f64,
    /// Engine-seconds of one request.
    pub seconds: f64,
    /// Network time of one request, milliseconds.
    pub network_ms: f64,
    /// Latency at idle of one request, milliseconds.
    pub service_ms: f64,
    /// What the planned load adds to one request, milliseconds.
    pub congestion_ms: f64,
    /// What its bytes cost on the way, as milliseconds.
    pub money_ms: f64,
    /// KV memory that one request holds: tokens times seconds.
    pub kv_token_s: f64,
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
    /// KV memory held over all of it; `None` where that is no bound.
    pub kv_utilisation: Option<f64>,
    /// Factor in (0, 1] by which a penalty lowered the capacity.
    pub planned_factor: f64,
}
