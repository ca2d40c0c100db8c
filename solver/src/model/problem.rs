//! The problem of one pass, as data: sources, arcs, engines, prices.
//!
//! A *source* is one (frontend, class) with its demand; an *arc* is what it may send to one
//! eligible engine. Everything the optimiser needs is here and nothing else, so that a test can
//! state a problem without a topology. Units: requests per second, engine-seconds, milliseconds.

use pointsman_shm::policy::{Mode, PlannedState};

use super::network::network_ms;
use super::topology::{ClassId, EngineId, FrontendId, Method, Mix, Profile, ProfileId, Topology};
use super::units::Share;

/// A source without demand is planned as if it had this share of all demand, so that its first
/// request finds weights.
const LEAST_SHARE: f64 = 1e-6;
/// Where there is no demand at all, each source is planned with this rate, requests per second.
const IDLE_RPS: f64 = 1e-3;
/// Price of moving more than a step, milliseconds: over any latency, under any shedding.
const OVER_STEP_MS: f64 = 1_000.0;
/// Price of sending an engine or a region more than its share, milliseconds: over any latency
/// that is worth having, under any shedding.
const OVER_SHARE_MS: f64 = 5_000.0;

/// The problem of one pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Every (frontend, class), by frontend then class.
    pub sources: Vec<Source>,
    /// Every engine in file order.
    pub engines: Vec<EngineSide>,
    /// Latency curves that arcs refer to.
    pub profiles: Vec<Profile>,
    /// Most of a source's share that moves without extra price.
    pub max_step: f64,
    /// That extra price, milliseconds.
    pub over_step_ms: f64,
    /// Wall-clock limit of one solve, milliseconds.
    pub limit_ms: u64,
    /// How the optimum is found.
    pub method: Method,
    /// Most pivots of one network solve.
    pub pivot_limit: u64,
    /// By region: most of a source's requests that it is to get, where it is bounded.
    pub region_most: Vec<Option<f64>>,
    /// Price of a request beyond what an engine or a region is to get, milliseconds.
    pub over_share_ms: f64,
}

/// One (frontend, class).
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Where demand arises.
    pub frontend: FrontendId,
    /// What it asks for.
    pub class: ClassId,
    /// Demand by priority, highest first.
    pub demand_rps: Vec<f64>,
    /// Rate it is planned with: its demand, or a little where there is none. Above 0.
    pub planned_rps: f64,
    /// What refusing one request costs, by priority, highest first.
    pub shed_ms: Vec<f64>,
    /// What moving one request costs.
    pub movement_ms: f64,
    /// One per eligible engine of the class, in its order.
    pub arcs: Vec<Arc>,
    /// Weights that stand, one per arc; `None` without any.
    pub previous: Option<Vec<f64>>,
    /// Weights that the operator set, one per arc: the source is load, not a choice.
    pub fixed: Option<Vec<f64>>,
}

/// What a source may send to one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arc {
    /// The engine.
    pub engine: EngineId,
    /// Whether the optimiser may use it now.
    pub open: bool,
    /// Network time of one request, milliseconds.
    pub network_ms: f64,
    /// Latency of one request at an idle engine, milliseconds.
    pub service_ms: f64,
    /// Engine-seconds of one request.
    pub seconds: f64,
    /// Tokens of its answer.
    pub output_tokens: f64,
    /// What its bytes cost on the way, as milliseconds.
    pub money_ms: f64,
    /// KV memory that one request holds: tokens times seconds.
    pub kv_token_s: f64,
    /// Latency curve.
    pub profile: ProfileId,
    /// Most of the source's requests that it is to get, where that is bounded beside the engine's
    /// own [`EngineSide::max_share`].
    pub most: Option<f64>,
}

/// One engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineSide {
    /// Engine-seconds per second it can do now; 0 for none.
    pub capacity: f64,
    /// Safe over hard capacity.
    pub headroom: f64,
    /// Extra cost of an engine-second at full load, milliseconds, rising in steps from safe.
    pub over_safe_ms: f64,
    /// Tokens that its KV memory holds now; `None` where that is no bound.
    pub kv_tokens: Option<f64>,
    /// Where it stands: position in [`Problem::region_most`].
    pub region: usize,
    /// Most of a source's requests that it is to get, where that is bounded.
    pub max_share: Option<f64>,
}

/// What is known of an engine when a problem is made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineNow {
    /// What the control plane wants of it.
    pub state: PlannedState,
    /// Replicas that are ready.
    pub ready_replicas: u32,
    /// Ready over described replicas.
    pub ready_share: f64,
    /// Factor in (0, 1] by which a penalty lowers its capacity.
    pub planned_factor: f64,
}

/// Demand of one source when a problem is made.
#[derive(Clone, Debug, PartialEq)]
pub struct DemandNow {
    /// By priority, highest first, as long as the topology's priorities.
    pub by_priority_rps: Vec<f64>,
    /// Tokens of its mean request.
    pub mix: Mix,
}

/// What changes from pass to pass.
#[derive(Debug)]
pub struct Now<'a> {
    /// By frontend then class.
    pub demand: &'a [DemandNow],
    /// By engine.
    pub engines: &'a [EngineNow],
    /// Weights that stand, by frontend then class.
    pub previous: &'a [Option<Vec<f64>>],
    /// Whether a frontend can reach an engine, by frontend then engine.
    pub reachable: &'a [bool],
    /// Whether classes that the operator sets are load rather than choices.
    pub hold_observed: bool,
}

impl EngineNow {
    /// An engine as described: all replicas ready, no penalty.
    #[must_use]
    pub fn described(replicas: u32) -> Self {
        let state = PlannedState::Active;
        Self {
            state,
            ready_replicas: replicas,
            ready_share: 1.0,
            planned_factor: 1.0,
        }
    }
}

impl Problem {
    /// The problem of one pass.
    #[must_use]
    pub fn new(topology: &Topology, now: &Now<'_>) -> Self {
        let settings = &topology.settings;
        let engine = |(described, now): (&super::topology::Engine, &EngineNow)| {
            let capacity = match now.state {
                PlannedState::Active => now.ready_share * now.planned_factor,
                PlannedState::StandbyOnly | PlannedState::Draining | PlannedState::Out => 0.0,
            };
            EngineSide {
                capacity,
                headroom: settings.headroom.value(),
                over_safe_ms: settings.over_safe_ms.value() * described.capacity.rps.value(),
                kv_tokens: described.capacity.kv_tokens.map(|t| t.value() * capacity),
                region: topology.region_of(described),
                max_share: described.max_share.map(Share::value),
            }
        };
        let engines: Vec<EngineSide> = topology
            .engines
            .iter()
            .zip(now.engines)
            .map(engine)
            .collect();
        let latencies: Vec<Latencies> = (topology.profiles.iter())
            .map(|profile| Latencies::of(profile, settings.headroom.value()))
            .collect();
        let mut sources = Vec::with_capacity(now.demand.len());
        for frontend in topology.frontend_ids() {
            for class in topology.class_ids() {
                let known = (engines.as_slice(), latencies.as_slice());
                sources.push(source(topology, now, known, frontend, class));
            }
        }
        let mut problem = Self {
            sources,
            engines,
            profiles: topology.profiles.clone(),
            max_step: settings.max_step.value(),
            over_step_ms: OVER_STEP_MS,
            limit_ms: settings.solve_limit_ms,
            method: settings.method,
            pivot_limit: settings.pivot_limit,
            region_most: (topology.regions.iter())
                .map(|r| r.max_share.map(Share::value))
                .collect(),
            over_share_ms: OVER_SHARE_MS,
        };
        problem.lift_idle_sources();
        problem
    }

    /// Gives sources without demand a little to be planned with.
    pub fn lift_idle_sources(&mut self) {
        let total: f64 = self.sources.iter().map(Source::demand).sum();
        let least = if total > 0.0 {
            total * LEAST_SHARE
        } else {
            IDLE_RPS
        };
        for source in &mut self.sources {
            source.planned_rps = source.demand().max(least);
        }
    }

    /// What a load adds to one request's latency at idle, milliseconds.
    #[must_use]
    pub fn delay_ms(&self, arc: &Arc, utilisation: f64) -> f64 {
        let profile = &self.profiles[arc.profile.0];
        let ((ttft, tbot), (ttft0, tbot0)) = (profile.at(utilisation), profile.at(0.0));
        (ttft - ttft0) + arc.output_tokens * (tbot - tbot0)
    }
}

impl Source {
    /// Demand of all priorities, requests per second.
    #[must_use]
    pub fn demand(&self) -> f64 {
        self.demand_rps.iter().sum()
    }

    /// Whether any engine can take it.
    #[must_use]
    pub fn has_open_arc(&self) -> bool {
        self.arcs.iter().any(|a| a.open)
    }
}

fn source(
    topology: &Topology,
    now: &Now<'_>,
    (engines, latencies): (&[EngineSide], &[Latencies]),
    frontend: FrontendId,
    class_id: ClassId,
) -> Source {
    let settings = &topology.settings;
    let class = &topology.classes[class_id.0];
    let at = frontend.0 * topology.classes.len() + class_id.0;
    let demand = &now.demand[at];
    let (prompt, output) = (
        demand.mix.prompt_tokens.value(),
        demand.mix.output_tokens.value(),
    );
    let arcs: Vec<Arc> = class
        .eligible
        .iter()
        .map(|pair| {
            let engine = &topology.engines[pair.engine.0];
            let latencies = latencies[pair.profile.0];
            let (ttft_ms, tbot_ms) = latencies.idle_ms;
            let service = class
                .service_ms
                .map_or(ttft_ms + output * tbot_ms, |s| s.value());
            let rtt_ms = topology.rtt_ms(frontend, pair.engine).unwrap_or(0.0);
            let spoken = !topology.unspoken.contains(&(frontend, pair.engine));
            let reachable = now.reachable[frontend.0 * topology.engines.len() + pair.engine.0];
            Arc {
                engine: pair.engine,
                open: reachable && spoken && engines[pair.engine.0].capacity > 0.0,
                network_ms: network_ms(
                    rtt_ms,
                    prompt * settings.bytes_per_token.value(),
                    settings.handshake_share.value(),
                    engine.protocol,
                ),
                service_ms: service,
                seconds: demand.mix.engine_seconds(&engine.capacity),
                output_tokens: output,
                money_ms: topology.egress_ms(frontend, pair.engine, prompt + output),
                kv_token_s: latencies.kv_token_s(demand.mix),
                profile: pair.profile,
                most: None,
            }
        })
        .collect();
    let relative = relative_work(topology, &arcs);
    let observed = class.mode == Mode::Observe && now.hold_observed;
    Source {
        frontend,
        class: class_id,
        demand_rps: demand.by_priority_rps.clone(),
        planned_rps: 0.0,
        shed_ms: topology
            .priorities
            .iter()
            .map(|p| p.shed_cost_ms.value() * relative)
            .collect(),
        movement_ms: movement_ms(topology, class_id, prompt),
        arcs,
        previous: now.previous[at].clone(),
        fixed: if observed {
            class.static_weights[frontend.0].clone()
        } else {
            None
        },
    }
}

/// Work of a request over that of the stated mixes of the engines it may use. Shedding is priced
/// by work: otherwise a long request of high priority would go before a short one of low.
fn relative_work(topology: &Topology, arcs: &[Arc]) -> f64 {
    let stated = |a: &Arc| a.seconds * topology.engines[a.engine.0].capacity.rps.value();
    if arcs.is_empty() {
        1.0
    } else {
        arcs.iter().map(stated).sum::<f64>() / arcs.len() as f64
    }
}

/// What a profile says of any request, looked up once: there are few profiles and many arcs.
#[derive(Clone, Copy)]
struct Latencies {
    /// First token, and each further one, at an idle engine.
    idle_ms: (f64, f64),
    /// Each further token at safe capacity.
    safe_tbot_ms: f64,
}

impl Latencies {
    fn of(profile: &Profile, headroom: f64) -> Self {
        Self {
            idle_ms: profile.at(0.0),
            safe_tbot_ms: profile.at(headroom).1,
        }
    }

    /// Tokens that a request holds in KV memory times how long, seconds: its prompt from prefill
    /// to the last token, its answer half as long on average. The prefill is that of an idle
    /// engine, because a request that waits holds nothing; tokens come at the pace of safe
    /// capacity.
    fn kv_token_s(&self, mix: Mix) -> f64 {
        let (prompt, output) = (mix.prompt_tokens.value(), mix.output_tokens.value());
        let prefill_ms = self.idle_ms.0;
        let decode_ms = output * self.safe_tbot_ms;
        (prompt * (prefill_ms + decode_ms) + output / 2.0 * decode_ms) / 1e3
    }
}

/// What a live conversation loses once when it moves, spread over the time a plan stands.
fn movement_ms(topology: &Topology, class: ClassId, prompt_tokens: f64) -> f64 {
    let settings = &topology.settings;
    let eligible = &topology.classes[class.0].eligible;
    let miss = |pair: &super::topology::ClassEngine| {
        1e3 * prompt_tokens / topology.engines[pair.engine.0].capacity.prefill_tps.value()
    };
    let lost_ms = eligible.iter().map(miss).sum::<f64>() / eligible.len().max(1) as f64;
    let turns = settings.turn_gap_s.value() / settings.horizon_s.value();
    (lost_ms * settings.follow_up_share.value() * turns).max(settings.movement_ms.value())
}
