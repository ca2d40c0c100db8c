//! Policies for tests of this folder.

use pointsman_shm::id::{ClassSlot, EngineSlot, Generation, PairNumber};
use pointsman_shm::policy::{
    Class, Eligible, Endpoints, Engine, FeatureMatch, Mode, PlannedState, Policy, Protocol, Route,
    Standby,
};

/// A policy of engines with these slot numbers and one class a list of (slot, weight); each
/// class's table follows its weights in runs, its standby list is all of them in equal parts.
pub(crate) fn policy(engines: &[u16], classes: &[&[(u16, f64)]]) -> Policy {
    let mut pair = 0;
    let mut next_pair = || {
        pair += 1;
        PairNumber(pair)
    };
    Policy {
        version: 1,
        epoch: 1,
        frontend: "f".into(),
        created_unix_ms: 0,
        hosts: 1,
        priorities: vec!["default".into()],
        engines: engines.iter().map(|&slot| engine(slot)).collect(),
        classes: (0..)
            .zip(classes)
            .map(|(slot, weights)| class(slot, weights, &mut next_pair))
            .collect(),
        routes: Vec::new().into(),
    }
}

/// An engine that serves.
pub(crate) fn engine(slot: u16) -> Engine {
    Engine {
        slot: EngineSlot(slot),
        generation: Generation(1),
        id: format!("engine-{slot}"),
        kind: "k".into(),
        region: "r".into(),
        addresses: vec!["127.0.0.1:1".parse().unwrap()],
        protocol: Protocol::Http1,
        authority: "e".into(),
        sni: String::new(),
        credential: String::new(),
        health_path: "/health".into(),
        state: PlannedState::Active,
        ready_replicas: 1,
        allowance: 100,
        planned_factor: 1.0,
        planned_utilisation: 0.5,
        hard_capacity: 1.0,
        safe_capacity: 0.9,
        network_ms: 1.0,
        idle_timeout_ms: 0,
        max_connections: 0,
        max_streams: 0,
        profile: Vec::new(),
        profile_assumed: true,
    }
}

/// A route of the first class that takes anything.
pub(crate) fn route(model: &str) -> Route {
    Route {
        name: model.into(),
        model: model.into(),
        adapter: String::new(),
        class: 0,
        endpoints: Endpoints(Endpoints::ALL.0 & !Endpoints::EMBEDDINGS.0),
        features: FeatureMatch::default(),
        body_bytes_min: 0,
        body_bytes_max: u32::MAX,
        headers: Vec::new(),
        default_priority: 0,
        listed: true,
    }
}

fn class(slot: u16, weights: &[(u16, f64)], pair: &mut dyn FnMut() -> PairNumber) -> Class {
    const SLOTS: usize = 1024;
    let mut table = Vec::new();
    let mut sum = 0.0;
    for &(engine, weight) in weights {
        sum += weight;
        table.resize((sum * SLOTS as f64).round() as usize, EngineSlot(engine));
    }
    let eligible = |&(engine, weight): &(u16, f64)| Eligible {
        engine: EngineSlot(engine),
        pair: pair(),
        pair_generation: Generation(1),
        weight,
        work: 1.0,
        kv_token_seconds: 0.0,
        idle_ttft_ms: 1.0,
        planned_ttft_ms: 2.0,
    };
    Class {
        slot: ClassSlot(slot),
        generation: Generation(1),
        name: format!("class-{slot}"),
        mode: Mode::Control,
        demand_rps: 1.0,
        eligible: weights.iter().map(eligible).collect(),
        table,
        standby: weights
            .iter()
            .map(|&(engine, _)| Standby {
                engine: EngineSlot(engine),
                weight: 1.0,
            })
            .collect(),
        admitted_rps: vec![f64::INFINITY],
    }
}
