//! What `/status` shows: the plan that stands, from what, and how fresh each part is.
//!
//! For people and scripts. Weights are the published ones, the policy's own numbers; rates are the
//! plan's, which the weights follow by a publication at most.

use pointsman_shm::engine_state::Health;
use pointsman_shm::policy::Mode;
use serde::Serialize;
use tokio::time::Instant;

use crate::collect::aliases::Signal;
use crate::collect::demand::Reading;
use crate::model::plan::{EnginePlan, Plan, SourcePlan, Terms};
use crate::model::topology::{ClassId, DemandSource, EngineId, FrontendId};
use crate::run::shared::{FrontendRecord, NMinusOne, Record, Reload, Shared};

mod operated;

pub use operated::{DrainStatus, HeldStatus, OrderStatus, PenaltyStatus};

/// The solver at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// What the operator ordered.
    pub orders: Vec<OrderStatus>,
    /// Gates that hold the weights that stand.
    pub held: Vec<HeldStatus>,
    /// How the last reload of the topology ended.
    pub reload: Option<Reload>,
    /// `/readyz` answers 200.
    pub ready: bool,
    /// Why not.
    pub unready: Option<String>,
    /// This start's leadership number.
    pub epoch: u64,
    /// Passes that ended in a plan.
    pub ticks: u64,
    /// Passes that did not.
    pub tick_failures: u64,
    /// How the last pass ended; `optimal` when well.
    pub last_tick: Option<String>,
    /// Age of the last plan, seconds.
    pub plan_age_s: Option<f64>,
    /// `signals` or `configured`.
    pub demand_source: &'static str,
    /// Every average of demand is steady.
    pub settled: bool,
    /// The plan's objective.
    pub objective_ms_per_s: Option<f64>,
    /// The objective, term by term.
    pub terms: Option<TermsStatus>,
    /// What the loss of one engine would cost; `None` until every one was looked at.
    pub n_minus_1: Option<NMinusOne>,
    /// Frontends in file order.
    pub frontends: Vec<FrontendStatus>,
    /// Engines in file order.
    pub engines: Vec<EngineStatus>,
    /// What the solver would do with classes whose weights the operator sets.
    pub advice: Vec<AdviceStatus>,
    /// What a person should know of the last pass.
    pub notes: Vec<String>,
    /// Background tasks that keep panicking.
    pub failing_tasks: Vec<String>,
}

/// An objective, term by term, milliseconds per second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TermsStatus {
    network: f64,
    service: f64,
    congestion: f64,
    movement: f64,
    money: f64,
    shed: f64,
}

/// One frontend.
#[derive(Clone, Debug, Serialize)]
pub struct FrontendStatus {
    /// Its name.
    pub frontend: String,
    /// Version of the published policy.
    pub version: Option<u64>,
    /// Epoch of the published policy.
    pub policy_epoch: Option<u64>,
    /// Why it was published; `None` when an earlier process did.
    pub reason: Option<&'static str>,
    /// When it was made, milliseconds since the Unix epoch.
    pub created_unix_ms: Option<u64>,
    /// Time since its publication, seconds, if by this process.
    pub published_age_s: Option<f64>,
    /// Time since a pass confirmed it, seconds.
    pub confirmed_age_s: Option<f64>,
    /// Oldest version that a live proxy shard runs.
    pub adopted_version: Option<u64>,
    /// Proxy processes alive.
    pub signal_pages: usize,
    /// Hosts they are on.
    pub hosts: u32,
    /// Demand of all its classes that the plan is for, requests per second.
    pub demand_rps: f64,
    /// Time since signal pages last told its demand, seconds; until then the start value stands.
    pub demand_age_s: Option<f64>,
    /// Its classes.
    pub classes: Vec<ClassStatus>,
}

/// One class of a frontend.
#[derive(Clone, Debug, Serialize)]
pub struct ClassStatus {
    /// Its name.
    pub class: String,
    /// Names of its routes.
    pub routes: Vec<String>,
    /// `observe` or `control`.
    pub mode: &'static str,
    /// Demand that the plan is for, requests per second.
    pub demand_rps: f64,
    /// The same by priority.
    pub demand_by_priority: Vec<PriorityRate>,
    /// Rate in the last look alone.
    pub last_sample_rps: Option<f64>,
    /// Relative change of the average over one time constant.
    pub demand_change: Option<f64>,
    /// That change is small.
    pub settled: bool,
    /// Eligible engines.
    pub weights: Vec<WeightStatus>,
    /// Refused by plan, by priority, requests per second.
    pub shed: Vec<PriorityRate>,
}

/// A rate of one priority.
#[derive(Clone, Debug, Serialize)]
pub struct PriorityRate {
    /// Its name.
    pub priority: String,
    /// Requests per second.
    pub rate_rps: f64,
}

/// One eligible engine of a class.
#[derive(Clone, Debug, Serialize)]
pub struct WeightStatus {
    /// Its name.
    pub engine: String,
    /// Published share; `None` where no policy names it.
    pub weight: Option<f64>,
    /// Planned rate, requests per second.
    pub rate_rps: f64,
    /// Network time of one request, milliseconds.
    pub network_ms: f64,
    /// Latency at idle of one request, milliseconds.
    pub service_ms: f64,
    /// What the planned load adds to one request, milliseconds.
    pub congestion_ms: f64,
    /// What its bytes cost on the way, as milliseconds.
    pub money_ms: f64,
}

/// One engine.
#[derive(Clone, Debug, Serialize)]
pub struct EngineStatus {
    /// Its name.
    pub engine: String,
    /// How far its drain is; `None` where none is ordered.
    pub drain: Option<DrainStatus>,
    /// `up`, `down` or `unknown`.
    pub health: &'static str,
    /// Age of the last health check, seconds.
    pub health_age_s: Option<f64>,
    /// Planned load, in requests per second of its capacity's mix.
    pub load: Option<f64>,
    /// Hard capacity, in the same unit.
    pub capacity: Option<f64>,
    /// Planned load over hard capacity.
    pub utilisation: Option<f64>,
    /// Capacity as corrected by evidence at saturation, over the described one.
    pub capacity_factor: Option<f64>,
    /// Safe over hard capacity, as proxies are told.
    pub safe_share: Option<f64>,
    /// Part of hard capacity that is planned with: the safe one, or less for what demand may become.
    #[serde(default)]
    pub planned_share: Option<f64>,
    /// What is taken of its share because all hosts together see it do badly; `None` for nothing.
    pub penalty: Option<PenaltyStatus>,
    /// The measure in which it does not keep to its profile; `None` where it does.
    pub misfit: Option<&'static str>,
    /// KV memory held as planned over all of it; `None` where that is no bound.
    pub kv_utilisation: Option<f64>,
    /// Requests it runs.
    pub running: Option<u32>,
    /// Requests in its queue.
    pub waiting: Option<u32>,
    /// Share of its KV cache in use.
    pub kv_use: Option<f64>,
    /// Share of looked-up prefix tokens that were found.
    pub prefix_hit_ratio: Option<f64>,
    /// Age of those figures, seconds.
    pub load_age_s: Option<f64>,
    /// What is wrong with its metrics page.
    pub scrape_error: Option<&'static str>,
    /// Restarts seen.
    pub restarts: u64,
}

/// What the solver would do with one (frontend, class) that the operator sets.
#[derive(Clone, Debug, Serialize)]
pub struct AdviceStatus {
    /// The frontend.
    pub frontend: String,
    /// The class.
    pub class: String,
    /// Engines and the weights it would give them.
    pub weights: Vec<AdvisedWeight>,
}

/// A weight that the solver would give.
#[derive(Clone, Debug, Serialize)]
pub struct AdvisedWeight {
    /// The engine.
    pub engine: String,
    /// The share.
    pub weight: f64,
}

impl Status {
    /// The status at this moment.
    #[must_use]
    pub fn now(shared: &Shared) -> Self {
        let record = shared.record();
        let unready = shared.unready();
        let topology = &shared.topology;
        let plan = record.plan.as_deref();
        let frontends: Vec<FrontendStatus> = topology
            .frontend_ids()
            .map(|id| frontend(shared, plan, id, &record.frontends[id.0]))
            .collect();
        let settled = |class: &ClassStatus| class.settled;
        Self {
            orders: operated::orders(&shared.desk.kept().orders),
            held: operated::held(&record),
            reload: record.reload.clone(),
            ready: unready.is_none(),
            unready,
            epoch: shared.epoch,
            ticks: record.ticks,
            tick_failures: record.failures,
            last_tick: record.last_status.clone(),
            plan_age_s: age_s(record.planned_at),
            demand_source: match topology.settings.demand {
                DemandSource::Signals => "signals",
                DemandSource::Configured => "configured",
            },
            settled: frontends
                .iter()
                .all(|frontend| frontend.classes.iter().all(settled)),
            objective_ms_per_s: plan.map(|plan| plan.terms.total()),
            terms: plan.map(|plan| plan.terms.into()),
            engines: topology
                .engine_ids()
                .map(|id| engine(shared, plan, id, &record))
                .collect(),
            advice: advice(shared, &record),
            n_minus_1: record.n_minus_1,
            notes: record.notes,
            failing_tasks: shared.tasks.failing(),
            frontends,
        }
    }
}

impl From<Terms> for TermsStatus {
    fn from(terms: Terms) -> Self {
        Self {
            network: terms.network,
            service: terms.service,
            congestion: terms.congestion,
            movement: terms.movement,
            money: terms.money,
            shed: terms.shed,
        }
    }
}

fn frontend(
    shared: &Shared,
    plan: Option<&Plan>,
    id: FrontendId,
    record: &FrontendRecord,
) -> FrontendStatus {
    let standing = record.standing.as_deref();
    let classes: Vec<ClassStatus> = shared
        .topology
        .class_ids()
        .map(|class| class_of(shared, plan, id, class, record))
        .collect();
    FrontendStatus {
        frontend: shared.topology.frontends[id.0].name.clone(),
        version: standing.map(|standing| standing.version),
        policy_epoch: standing.map(|standing| standing.epoch),
        reason: record.reason,
        created_unix_ms: standing.map(|standing| standing.created_unix_ms),
        published_age_s: age_s(record.published_at),
        confirmed_age_s: age_s(record.confirmed_at),
        adopted_version: record.adopted_version,
        signal_pages: record.live_pages,
        hosts: record.live_hosts,
        demand_rps: classes.iter().map(|class| class.demand_rps).sum(),
        demand_age_s: age_s(record.measured_at),
        classes,
    }
}

fn class_of(
    shared: &Shared,
    plan: Option<&Plan>,
    frontend: FrontendId,
    id: ClassId,
    record: &FrontendRecord,
) -> ClassStatus {
    let topology = &shared.topology;
    let class = &topology.classes[id.0];
    let source = plan.and_then(|plan| {
        plan.sources
            .iter()
            .find(|source| source.frontend == frontend && source.class == id)
    });
    let reading: Option<&Reading> = record.demand.get(id.0);
    let rates = |of: fn(&SourcePlan) -> &[f64]| -> Vec<PriorityRate> {
        let rates = source.map_or(&[][..], of);
        let named = topology.priorities.iter().zip(rates);
        named
            .map(|(priority, rate)| PriorityRate {
                priority: priority.name.clone(),
                rate_rps: *rate,
            })
            .collect()
    };
    ClassStatus {
        class: class.name.clone(),
        routes: class
            .routes
            .iter()
            .map(|route| topology.routes[route.0].name.clone())
            .collect(),
        mode: match class.mode {
            Mode::Observe => "observe",
            Mode::Control => "control",
        },
        demand_rps: source.map_or(0.0, |source| source.demand_rps.iter().sum()),
        demand_by_priority: rates(|source| &source.demand_rps),
        last_sample_rps: reading.and_then(|reading| reading.last_sample_rps),
        demand_change: reading.and_then(|reading| reading.change),
        settled: reading.is_some_and(|reading| reading.settled),
        weights: weights(shared, source, &class.name, record),
        shed: rates(|source| &source.shed_rps),
    }
}

fn weights(
    shared: &Shared,
    source: Option<&SourcePlan>,
    class: &str,
    record: &FrontendRecord,
) -> Vec<WeightStatus> {
    let published = record
        .standing
        .iter()
        .flat_map(|standing| &standing.weights);
    let published = published
        .filter(|(name, _)| name == class)
        .flat_map(|(_, weights)| weights);
    let published: Vec<&(String, f64)> = published.collect();
    let arcs = source.map_or(&[][..], |source| &source.arcs);
    let of = |name: &str| {
        published
            .iter()
            .find(|(engine, _)| engine == name)
            .map(|(_, w)| *w)
    };
    arcs.iter()
        .map(|arc| {
            let engine = shared.topology.engines[arc.engine.0].name.clone();
            WeightStatus {
                weight: of(&engine),
                rate_rps: arc.rate_rps,
                network_ms: arc.network_ms,
                service_ms: arc.service_ms,
                congestion_ms: arc.congestion_ms,
                money_ms: arc.money_ms,
                engine,
            }
        })
        .collect()
}

fn engine(shared: &Shared, plan: Option<&Plan>, id: EngineId, record: &Record) -> EngineStatus {
    let name = &shared.topology.engines[id.0].name;
    let seen = shared.board.observation(name);
    let planned: Option<&EnginePlan> =
        plan.and_then(|plan| plan.engines.iter().find(|planned| planned.engine == id));
    let learned = record.corrected.get(id.0);
    let misfit = learned.and_then(|one| one.misfit);
    EngineStatus {
        engine: name.clone(),
        drain: operated::drain(shared, record, name),
        health: match seen.health {
            Health::Unknown => "unknown",
            Health::Up => "up",
            Health::Down => "down",
        },
        health_age_s: age_s(seen.health_at),
        load: planned.map(|planned| planned.load_rps),
        capacity: planned.map(|planned| planned.capacity_rps),
        utilisation: planned.map(|planned| planned.utilisation),
        capacity_factor: learned.map(|one| one.factor),
        safe_share: learned.map(|one| one.safe),
        planned_share: learned.map(|one| one.planned),
        penalty: record.penalised.get(name).map(operated::penalty),
        misfit: misfit.map(|misfit| misfit.measure.name()),
        kv_utilisation: planned.and_then(|planned| planned.kv_utilisation),
        running: seen.readings.count(Signal::Running),
        waiting: seen.readings.count(Signal::Waiting),
        kv_use: seen.readings.value(Signal::KvUse),
        prefix_hit_ratio: seen.prefix_hit_ratio,
        load_age_s: age_s(seen.load_at),
        scrape_error: seen.scrape_error.map(|reason| reason.name()),
        restarts: seen.restarts,
    }
}

fn advice(shared: &Shared, record: &Record) -> Vec<AdviceStatus> {
    let topology = &shared.topology;
    let sources = record.advice.iter().flat_map(|plan| &plan.sources);
    let observed = sources.filter(|source| topology.classes[source.class.0].mode == Mode::Observe);
    observed
        .map(|source| AdviceStatus {
            frontend: topology.frontends[source.frontend.0].name.clone(),
            class: topology.classes[source.class.0].name.clone(),
            weights: source
                .arcs
                .iter()
                .map(|arc| AdvisedWeight {
                    engine: topology.engines[arc.engine.0].name.clone(),
                    weight: arc.weight,
                })
                .collect(),
        })
        .collect()
}

fn age_s(at: Option<Instant>) -> Option<f64> {
    at.map(|at| at.elapsed().as_secs_f64())
}
