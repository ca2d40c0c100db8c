//! A small world for tests of the daemon's parts: two frontends, one engine, one class.

use pointsman_shm::id::{ClassSlot, EngineSlot, Generation, PairNumber};
use pointsman_shm::policy::{Class, Eligible, Mode, Policy};

use crate::model::topology::Topology;

pub(crate) const TOPOLOGY: &str = r#"
[solver]
demand = "signals"
demand_average_s = 20

[[priorities]]
name = "high"
shed_cost_ms = 40000
[[priorities]]
name = "low"
shed_cost_ms = 10000

[[frontends]]
name = "A"
[[frontends]]
name = "B"

[[engines]]
name = "E"
kind = "h100"
models = ["m"]
address = "127.0.0.1:9001"
capacity = { rps = 100, prompt_tokens = 500, output_tokens = 100 }

[[rtt]]
frontend = "A"
engine = "E"
ms = 2
[[rtt]]
frontend = "B"
engine = "E"
ms = 2

[[routes]]
name = "chat"
model = "m"
prompt_tokens = 500
output_tokens = 100

[[demand]]
frontend = "A"
route = "chat"
priority = "low"
rps = 90
"#;

const GENERATION: Generation = Generation(3);
pub(crate) const CLASS: (ClassSlot, Generation) = (ClassSlot(5), GENERATION);
pub(crate) const PAIR: (PairNumber, Generation) = (PairNumber(9), GENERATION);
pub(crate) fn topology(text: &str) -> Topology {
    Topology::parse("demand.toml", text).unwrap()
}

/// A policy of frontend `A` in which class and pair have the numbers above.
pub(crate) fn policy(topology: &Topology, demand_rps: f64) -> Policy {
    let eligible = Eligible {
        engine: EngineSlot(4),
        pair: PAIR.0,
        pair_generation: GENERATION,
        weight: 1.0,
        work: 0.01,
        kv_token_seconds: 0.0,
        idle_ttft_ms: 100.0,
        planned_ttft_ms: 100.0,
    };
    let class = Class {
        slot: CLASS.0,
        generation: GENERATION,
        name: topology.classes[0].name.clone(),
        mode: Mode::Control,
        demand_rps,
        eligible: vec![eligible],
        table: vec![EngineSlot(4); 64],
        standby: vec![],
        admitted_rps: vec![f64::INFINITY; 2],
    };
    Policy {
        version: 4,
        epoch: 2,
        frontend: "A".into(),
        created_unix_ms: 1,
        hosts: 1,
        priorities: vec!["high".into(), "low".into()],
        engines: vec![engine()],
        classes: vec![class],
        routes: vec![].into(),
    }
}

fn engine() -> pointsman_shm::policy::Engine {
    pointsman_shm::policy::Engine {
        slot: EngineSlot(4),
        generation: GENERATION,
        id: "E".into(),
        kind: "h100".into(),
        region: String::new(),
        addresses: vec!["127.0.0.1:9001".parse().unwrap()],
        protocol: pointsman_shm::policy::Protocol::Http1,
        authority: "127.0.0.1:9001".into(),
        sni: String::new(),
        credential: String::new(),
        health_path: "/health".into(),
        state: pointsman_shm::policy::PlannedState::Active,
        ready_replicas: 1,
        allowance: 10,
        planned_factor: 1.0,
        planned_utilisation: 0.5,
        hard_capacity: 1.0,
        safe_capacity: 0.85,
        network_ms: 2.0,
        idle_timeout_ms: 0,
        max_connections: 0,
        max_streams: 0,
        profile: vec![],
        profile_assumed: true,
    }
}
