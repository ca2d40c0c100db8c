//! A small valid policy for tests.

use pointsman_shm::engine_state::{EngineState, Health};
use pointsman_shm::id::{ClassSlot, EngineSlot, Generation, PairNumber};
use pointsman_shm::policy::{
    Class, Eligible, Endpoints, Engine, FeatureMatch, Mode, PlannedState, Policy, Protocol, Route,
};

/// One engine, one class, one route.
pub(crate) fn policy(version: u64, frontend: &str) -> Policy {
    Policy {
        version,
        epoch: 1,
        frontend: frontend.to_owned(),
        created_unix_ms: 0,
        hosts: 1,
        priorities: vec!["default".to_owned()],
        engines: vec![engine(0, "e0")],
        classes: vec![class()],
        routes: vec![route()].into(),
    }
}

/// An engine that serves.
pub(crate) fn engine(slot: u16, id: &str) -> Engine {
    Engine {
        slot: EngineSlot(slot),
        generation: Generation(1),
        id: id.to_owned(),
        kind: "k".to_owned(),
        region: "r".to_owned(),
        addresses: vec![([127, 0, 0, 1], 9).into()],
        protocol: Protocol::Http1,
        authority: "engine".to_owned(),
        sni: String::new(),
        credential: String::new(),
        health_path: "/health".to_owned(),
        state: PlannedState::Active,
        ready_replicas: 1,
        allowance: 100,
        planned_factor: 1.0,
        planned_utilisation: 0.5,
        hard_capacity: 1.0,
        safe_capacity: 1.0,
        network_ms: 0.0,
        idle_timeout_ms: 0,
        max_connections: 0,
        max_streams: 0,
        profile: Vec::new(),
        profile_assumed: true,
    }
}

/// How an engine is, just seen; of its load nothing is known.
pub(crate) fn engine_state(slot: u16, health: Health) -> EngineState {
    EngineState {
        slot: EngineSlot(slot),
        generation: Generation(1),
        health,
        ready_replicas: None,
        running: None,
        waiting: None,
        kv_use: None,
        penalty: 0.0,
        health_age_ms: 0,
        load_age_ms: u32::MAX,
    }
}

fn class() -> Class {
    Class {
        slot: ClassSlot(0),
        generation: Generation(1),
        name: "c".to_owned(),
        mode: Mode::Control,
        demand_rps: 1.0,
        eligible: vec![Eligible {
            engine: EngineSlot(0),
            pair: PairNumber(0),
            pair_generation: Generation(1),
            weight: 1.0,
            work: 0.1,
            kv_token_seconds: 0.0,
            idle_ttft_ms: 100.0,
            planned_ttft_ms: 100.0,
        }],
        table: vec![EngineSlot(0); 64],
        standby: Vec::new(),
        admitted_rps: vec![f64::INFINITY],
    }
}

fn route() -> Route {
    Route {
        name: "r".to_owned(),
        model: "m".to_owned(),
        adapter: String::new(),
        class: 0,
        endpoints: Endpoints::ALL,
        features: FeatureMatch::default(),
        body_bytes_min: 0,
        body_bytes_max: u32::MAX,
        headers: Vec::new(),
        default_priority: 0,
        listed: true,
    }
}
