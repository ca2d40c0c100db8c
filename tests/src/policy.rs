//! Policies made by hand and published as a solver would, for tests that are about the proxy.

use std::net::SocketAddr;
use std::path::Path;

use pointsman_shm::id::{ClassSlot, EngineSlot, Generation, PairNumber};
use pointsman_shm::policy::{
    Class, Eligible, Endpoints, Engine, FeatureMatch, Mode, PlannedState, Policy, Protocol, Route,
    Standby,
};
use pointsman_shm::region::{Kind, Read, Reader, Stamp, Writer};
use pointsman_shm::{Error, boottime_ns};

use crate::wait::{SOON, eventually};

/// Length of the slot tables: every weight used in tests is a multiple of 1/64.
const TABLE: usize = 64;

/// The frontend every handmade policy is for.
pub const FRONTEND: &str = "A";

/// A policy in the making: engines first, then the models they serve.
#[derive(Clone)]
pub struct Draft {
    policy: Policy,
}

impl Draft {
    /// A policy with no engine and no route.
    #[must_use]
    pub fn new() -> Self {
        let policy = Policy {
            version: 1,
            epoch: 1,
            frontend: FRONTEND.to_owned(),
            created_unix_ms: 0,
            hosts: 1,
            priorities: vec!["default".to_owned()],
            engines: Vec::new(),
            classes: Vec::new(),
            routes: Vec::new().into(),
        };
        Self { policy }
    }

    /// Model `m` on one engine: what most tests need.
    #[must_use]
    pub fn single(address: SocketAddr) -> Self {
        Self::new().engine("E1", address).route("m", &[("E1", 1.0)])
    }

    /// Model `m` on two engines, the second of which only stands by.
    #[must_use]
    pub fn with_standby(first: SocketAddr, second: SocketAddr) -> Self {
        Self::new()
            .engine("E1", first)
            .engine("E2", second)
            .route("m", &[("E1", 1.0), ("E2", 0.0)])
    }

    /// Adds an engine.
    ///
    /// # Panics
    /// When there are more than slot numbers.
    #[must_use]
    pub fn engine(mut self, id: &str, address: SocketAddr) -> Self {
        let slot = u16::try_from(self.policy.engines.len()).expect("few engines");
        self.policy.engines.push(Engine {
            slot: EngineSlot(slot),
            generation: Generation(1),
            id: id.to_owned(),
            kind: "test".to_owned(),
            region: "a".to_owned(),
            addresses: vec![address],
            protocol: Protocol::Http1,
            authority: address.to_string(),
            sni: String::new(),
            credential: String::new(),
            health_path: "/health".to_owned(),
            state: PlannedState::Active,
            ready_replicas: 1,
            allowance: 100_000,
            planned_factor: 1.0,
            planned_utilisation: 0.5,
            hard_capacity: 100.0,
            safe_capacity: 85.0,
            network_ms: 0.0,
            idle_timeout_ms: 0,
            max_connections: 0,
            max_streams: 0,
            profile: Vec::new(),
            profile_assumed: true,
        });
        self
    }

    /// Every engine so far speaks HTTP/2 in the clear.
    #[must_use]
    pub fn http2(mut self) -> Self {
        for engine in &mut self.policy.engines {
            engine.protocol = Protocol::Http2;
        }
        self
    }

    /// Adds a model with these weights, which sum to 1. Every engine named is eligible, and all
    /// stand by for each other.
    ///
    /// # Panics
    /// When an engine is not in the draft.
    #[must_use]
    pub fn route(mut self, model: &str, weights: &[(&str, f64)]) -> Self {
        let number = u16::try_from(self.policy.classes.len()).expect("few classes");
        let pairs_before: usize = self.policy.classes.iter().map(|c| c.eligible.len()).sum();
        let mut eligible: Vec<Eligible> = weights
            .iter()
            .map(|&(id, weight)| Eligible {
                engine: self.slot(id),
                pair: PairNumber(0),
                pair_generation: Generation(1),
                weight,
                work: 0.01,
                kv_token_seconds: 0.0,
                idle_ttft_ms: 100.0,
                planned_ttft_ms: 100.0,
            })
            .collect();
        eligible.sort_by_key(|one| one.engine);
        for (at, one) in eligible.iter_mut().enumerate() {
            one.pair = PairNumber(u16::try_from(pairs_before + at).expect("few pairs"));
        }
        self.policy.classes.push(Class {
            slot: ClassSlot(number),
            generation: Generation(1),
            name: model.to_owned(),
            mode: Mode::Control,
            demand_rps: 10.0,
            table: table(&eligible),
            standby: eligible
                .iter()
                .map(|e| Standby {
                    engine: e.engine,
                    weight: 1.0,
                })
                .collect(),
            eligible,
            admitted_rps: vec![f64::INFINITY],
        });
        std::sync::Arc::make_mut(&mut self.policy.routes).push(Route {
            name: model.to_owned(),
            model: model.to_owned(),
            adapter: String::new(),
            class: number,
            endpoints: Endpoints::ALL,
            features: FeatureMatch::default(),
            body_bytes_min: 0,
            body_bytes_max: u32::MAX,
            headers: Vec::new(),
            default_priority: 0,
            listed: true,
        });
        self
    }

    /// Changes what the functions above do not.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Policy)) -> Self {
        change(&mut self.policy);
        self
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    fn slot(&self, id: &str) -> EngineSlot {
        let engine = self.policy.engines.iter().find(|engine| engine.id == id);
        engine
            .unwrap_or_else(|| panic!("no engine {id} in the draft"))
            .slot
    }
}

impl Default for Draft {
    fn default() -> Self {
        Self::new()
    }
}

/// The one writer of a frontend's policy region.
pub struct Publisher {
    writer: Writer,
    version: u64,
}

impl Publisher {
    /// Takes the region below `dir`.
    ///
    /// # Panics
    /// When it cannot.
    #[must_use]
    pub fn open(dir: &Path) -> Self {
        let writer = Writer::open(dir, Kind::Policy)
            .unwrap_or_else(|error| panic!("no policy region in {}: {error}", dir.display()));
        Self { writer, version: 0 }
    }

    /// Publishes the draft under the next version, which it returns.
    ///
    /// # Panics
    /// When the region refuses it.
    pub fn publish(&mut self, draft: &Draft) -> u64 {
        self.version += 1;
        let version = self.version;
        let policy = Policy {
            version,
            ..draft.policy.clone()
        };
        policy
            .validate()
            .unwrap_or_else(|error| panic!("the draft is no policy: {error}"));
        let payload = policy.encode();
        let stamp = Stamp {
            version,
            epoch: policy.epoch,
        };
        eventually(SOON, "the policy is published", || {
            match self.writer.publish(stamp, &payload) {
                Ok(()) => Some(()),
                Err(Error::TooSoon { .. }) => None,
                Err(error) => panic!("the policy cannot be published: {error}"),
            }
        });
        self.confirm();
        version
    }

    /// Confirms the standing version, as a solver with fresh signals does.
    pub fn confirm(&self) {
        self.writer.heartbeat(boottime_ns());
    }
}

/// Reads what is published below `dir`; `None` when nothing is.
///
/// # Panics
/// When the region is broken.
#[must_use]
pub fn published(dir: &Path) -> Option<Policy> {
    let mut reader = match Reader::open(dir, Kind::Policy) {
        Err(Error::Absent { .. }) => return None,
        other => other.unwrap_or_else(|error| panic!("the policy region is broken: {error}")),
    };
    let mut payload = Vec::new();
    match reader
        .read(&mut payload)
        .expect("the policy region can be read")
    {
        Read::Fresh(_) => Some(Policy::decode(&payload).expect("what is published decodes")),
        Read::Busy | Read::Empty => None,
    }
}

/// Slots in proportion to the weights, one engine's after the other's.
fn table(eligible: &[Eligible]) -> Vec<EngineSlot> {
    let mut table = Vec::with_capacity(TABLE);
    let mut sum = 0.0;
    for one in eligible {
        sum += one.weight;
        while table.len() < TABLE && (table.len() as f64) < sum * TABLE as f64 - 0.5 {
            table.push(one.engine);
        }
    }
    assert!(
        table.len() == TABLE || table.is_empty(),
        "the weights sum to {sum}, not to 1"
    );
    table
}
