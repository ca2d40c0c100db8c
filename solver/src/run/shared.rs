//! What the daemon's tasks share: the topology, what was collected, what the last passes came to.
//!
//! Tasks write their part and read the others'; none waits for another. The record of the passes
//! is for people and metrics only, nothing decides by it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pointsman_shm::id::{EngineSlot, Generation};
use pointsman_shm::policy::{PlannedState, Policy};
use tokio::time::Instant;

use super::supervise::Tasks;
use crate::collect::demand::Reading;
use crate::collect::engines::Board;
use crate::collect::names::Names;
use crate::metrics::{self, Metrics};
use crate::model::explain::Ground;
use crate::model::plan::Plan;
use crate::model::topology::Topology;
use crate::operate::desk::Desk;
use crate::penalty::Penalised;
use crate::tick::{Corrected, Held};

/// A plan this old takes readiness away, however long a tick is.
const STALE: Duration = Duration::from_secs(30);
/// So does one that missed this many ticks.
const STALE_TICKS: u32 = 5;

/// What the daemon's tasks share.
#[derive(Debug)]
pub struct Shared {
    /// The described fleet.
    pub topology: Topology,
    /// This start's leadership number.
    pub epoch: u64,
    /// The solver's metrics.
    pub metrics: Arc<Metrics>,
    /// Addresses of names.
    pub names: Arc<Names>,
    /// What engines said.
    pub board: Arc<Board>,
    /// How background tasks are.
    pub tasks: Arc<Tasks>,
    /// The operator's orders.
    pub desk: Arc<Desk>,
    record: Mutex<Record>,
}

/// What the passes so far came to.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Passes that ended in a plan.
    pub ticks: u64,
    /// Passes that did not.
    pub failures: u64,
    /// How the last pass ended.
    pub last_status: Option<String>,
    /// When the last plan was made.
    pub planned_at: Option<Instant>,
    /// The last plan.
    pub plan: Option<Arc<Plan>>,
    /// What the solver would do with classes that the operator sets.
    pub advice: Option<Arc<Plan>>,
    /// What the last plan was made from, for those who ask why.
    pub ground: Option<Arc<Ground>>,
    /// What the loss of one engine would cost; `None` until every one was looked at.
    pub n_minus_1: Option<NMinusOne>,
    /// What a person should know of the last pass.
    pub notes: Vec<String>,
    /// Gates that hold the weights that stand.
    pub held: Vec<Held>,
    /// What was learned of every engine of the topology, in file order; empty before a pass.
    pub corrected: Vec<Corrected>,
    /// Penalties in force by engine name.
    pub penalised: Arc<BTreeMap<String, Penalised>>,
    /// How the last reload of the topology ended; `None` before the first.
    pub reload: Option<Reload>,
    /// By frontend, in file order.
    pub frontends: Vec<FrontendRecord>,
}

/// What the loss of one engine would cost.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct NMinusOne {
    /// Refused over offered requests at the worst loss.
    pub shed_ratio: f64,
    /// The engine; one of them where all are alike.
    pub engine: String,
    /// Engines looked at: all that have capacity.
    pub engines: usize,
}

/// How a reload of the topology ended.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Reload {
    /// The new topology is served.
    pub taken: bool,
    /// When, milliseconds since the Unix epoch.
    pub at_unix_ms: u64,
    /// What changed, or why it was refused; one entry a line.
    pub lines: Vec<String>,
}

/// What stands for one frontend.
#[derive(Clone, Debug, Default)]
pub struct FrontendRecord {
    /// The published policy in short.
    pub standing: Option<Arc<StandingPolicy>>,
    /// Why it was published; `None` when an earlier process did.
    pub reason: Option<&'static str>,
    /// When it was published, if by this process.
    pub published_at: Option<Instant>,
    /// When a pass last confirmed it.
    pub confirmed_at: Option<Instant>,
    /// Proxy processes alive.
    pub live_pages: usize,
    /// Hosts they are on.
    pub live_hosts: u32,
    /// Oldest policy version that a live shard runs.
    pub adopted_version: Option<u64>,
    /// Requests in flight that live pages tell, by engine number.
    pub in_flight: BTreeMap<(EngineSlot, Generation), u64>,
    /// When its demand was last measured.
    pub measured_at: Option<Instant>,
    /// How steady demand is, by class.
    pub demand: Vec<Reading>,
}

/// A published policy in short.
#[derive(Clone, Debug, PartialEq)]
pub struct StandingPolicy {
    /// Its version.
    pub version: u64,
    /// Its epoch.
    pub epoch: u64,
    /// When it was made.
    pub created_unix_ms: u64,
    /// Its engines.
    pub engines: Vec<(EngineSlot, Generation, String)>,
    /// Published weights by class name and engine.
    pub weights: Vec<(String, Vec<(String, f64)>)>,
    /// Engines that it tells proxies to send nothing new to.
    pub closed: Vec<String>,
}

impl Shared {
    /// Nothing happened yet; `standing` by frontend, in file order.
    #[must_use]
    pub fn new(
        topology: Topology,
        epoch: u64,
        standing: &[Option<Policy>],
        metrics: Arc<Metrics>,
    ) -> Self {
        debug_assert_eq!(standing.len(), topology.frontends.len());
        let frontends = standing.iter().map(|policy| FrontendRecord {
            standing: policy
                .as_ref()
                .map(|policy| Arc::new(StandingPolicy::new(policy))),
            ..FrontendRecord::default()
        });
        let record = Record {
            frontends: frontends.collect(),
            ..Record::default()
        };
        Self {
            topology,
            epoch,
            names: Arc::new(Names::default()),
            board: Arc::new(Board::default()),
            tasks: Arc::new(Tasks::new(metrics.clone())),
            desk: Arc::default(),
            metrics,
            record: Mutex::new(record),
        }
    }

    /// The same with the orders of a desk.
    #[must_use]
    pub fn with_desk(mut self, desk: Arc<Desk>) -> Self {
        self.desk = desk;
        self
    }

    /// What follows it for another topology: collectors, metrics, tasks and orders stay, and what
    /// is known of frontends that stay. The last plan is of the old topology and goes.
    #[must_use]
    pub fn successor(&self, topology: Topology, standing: &[Option<Policy>]) -> Self {
        let mut next = Self::new(topology, self.epoch, standing, self.metrics.clone());
        next.names = self.names.clone();
        next.board = self.board.clone();
        next.tasks = self.tasks.clone();
        next.desk = self.desk.clone();
        let old = self.record();
        let mut record = Record {
            plan: None,
            advice: None,
            ground: None,
            n_minus_1: None,
            frontends: Vec::new(),
            corrected: Vec::new(),
            ..old.clone()
        };
        let fresh = next.record().frontends;
        for (frontend, fresh) in next.topology.frontends.iter().zip(fresh) {
            let named = |one: &crate::model::topology::Frontend| one.name == frontend.name;
            let before = self.topology.frontends.iter().position(named);
            record.frontends.push(match before {
                Some(before) => FrontendRecord {
                    demand: Vec::new(),
                    ..old.frontends[before].clone()
                },
                None => fresh,
            });
        }
        next.record = Mutex::new(record);
        next
    }

    /// A copy of the record.
    #[must_use]
    pub fn record(&self) -> Record {
        self.lock().clone()
    }

    /// Changes the record.
    pub fn write(&self, change: impl FnOnce(&mut Record)) {
        change(&mut self.lock());
    }

    /// Why the daemon is not ready; `None` when it is.
    #[must_use]
    pub fn unready(&self) -> Option<String> {
        let failing = self.tasks.failing();
        let (planned_at, last_status) = {
            let record = self.lock();
            (record.planned_at, record.last_status.clone())
        };
        let stale_after = Duration::from_millis(self.topology.settings.tick_ms)
            .saturating_mul(STALE_TICKS)
            .max(STALE);
        if !failing.is_empty() {
            return Some(format!(
                "background tasks keep failing: {}",
                failing.join(", ")
            ));
        }
        match planned_at.map(|at| at.elapsed()) {
            None => Some(match last_status {
                Some(status) => format!("no plan yet; the last pass: {status}"),
                None => "no pass yet".to_owned(),
            }),
            Some(age) if age > stale_after => {
                Some(format!("the last plan is {} s old", age.as_secs()))
            }
            Some(_) => None,
        }
    }

    /// Brings the gauges that change with time alone up to date.
    pub fn refresh_gauges(&self) {
        let ready = f64::from(u8::from(self.unready().is_none()));
        self.metrics.set(&metrics::READY, &[], ready);
        let record = self.record();
        for (frontend, standing) in self.topology.frontends.iter().zip(&record.frontends) {
            if let Some(confirmed_at) = standing.confirmed_at {
                let age = confirmed_at.elapsed().as_secs_f64();
                self.metrics
                    .set(&metrics::POLICY_AGE, &[&frontend.name], age);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StandingPolicy {
    /// The short form of `policy`.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        let engines = policy.engines.iter();
        let engines: Vec<(EngineSlot, Generation, String)> = engines
            .map(|engine| (engine.slot, engine.generation, engine.id.clone()))
            .collect();
        let name = |slot: EngineSlot| {
            let position = engines
                .binary_search_by_key(&slot, |(slot, _, _)| *slot)
                .ok();
            position.map_or_else(
                || slot.0.to_string(),
                |position| engines[position].2.clone(),
            )
        };
        let weights = policy.classes.iter().map(|class| {
            let weights = class
                .eligible
                .iter()
                .map(|one| (name(one.engine), one.weight));
            (class.name.clone(), weights.collect())
        });
        let closed = policy
            .engines
            .iter()
            .filter(|engine| matches!(engine.state, PlannedState::Draining | PlannedState::Out));
        Self {
            closed: closed.map(|engine| engine.id.clone()).collect(),
            version: policy.version,
            epoch: policy.epoch,
            created_unix_ms: policy.created_unix_ms,
            weights: weights.collect(),
            engines,
        }
    }
}
