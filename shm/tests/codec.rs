//! Properties of the payload codecs: what is encoded comes back, and no bytes make them panic.

#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that fails says where")]

use std::net::SocketAddr;
use std::sync::Arc;

use pointsman_shm::engine_state::{EngineState, EngineStates, Health};
use pointsman_shm::id::{ClassSlot, EngineSlot, Generation, MAX_ROUTES, PairNumber};
use pointsman_shm::policy::{
    Class, Eligible, Endpoints, Engine, FeatureMatch, Features, Mode, PlannedState, Policy,
    ProfilePoint, Protocol, Route, Standby,
};
use proptest::prelude::*;
use proptest::sample::Index;

/// A valid policy of `engines` engines, `classes` classes and `routes` routes, all of whose numbers
/// come from `noise`.
fn policy((engines, classes, routes): (usize, usize, usize), noise: &[u32]) -> Policy {
    let mut at = 0;
    let mut next = move |below: u32| {
        at += 1;
        noise[at % noise.len()]
            .wrapping_mul(at as u32 | 1)
            .rotate_left(at as u32)
            % below
    };
    let mut slot = 0;
    let engines: Vec<Engine> = (0..engines)
        .map(|i| {
            slot += 1 + next(3) as u16;
            engine(i, slot, &mut next)
        })
        .collect();
    let mut pair = 0;
    let classes: Vec<Class> = (0..classes)
        .map(|i| class(i, &engines, &mut pair, &mut next))
        .collect();
    let routes = if classes.is_empty() { 0 } else { routes };
    let routes: Vec<Route> = (0..routes)
        .map(|i| route(i, classes.len(), &mut next))
        .collect();
    Policy {
        version: 1 + u64::from(next(1000)),
        epoch: u64::from(next(10)),
        frontend: "frontend-ä".to_owned(),
        created_unix_ms: u64::from(next(u32::MAX)),
        hosts: 1 + next(9),
        priorities: vec!["high".to_owned(), "low".to_owned()],
        engines,
        classes,
        routes: routes.into(),
    }
}

fn engine(i: usize, slot: u16, next: &mut impl FnMut(u32) -> u32) -> Engine {
    let addresses = ["127.0.0.1:80", "[2001:db8::1]:443", "10.1.2.3:9000"];
    let count = 1 + next(3) as usize;
    let tls = next(2) == 1;
    let hard = f64::from(next(1000));
    Engine {
        slot: EngineSlot(slot),
        generation: Generation(1 + next(5)),
        id: format!("engine-{i}"),
        kind: "h100".to_owned(),
        region: String::new(),
        addresses: addresses[..count]
            .iter()
            .map(|a| a.parse::<SocketAddr>().unwrap())
            .collect(),
        protocol: if tls {
            Protocol::Http2Tls
        } else {
            Protocol::Http1
        },
        authority: format!("engine-{i}:80"),
        sni: if tls {
            "engine.example".to_owned()
        } else {
            String::new()
        },
        credential: String::new(),
        health_path: "/health".to_owned(),
        state: [
            PlannedState::Active,
            PlannedState::StandbyOnly,
            PlannedState::Draining,
            PlannedState::Out,
        ][next(4) as usize],
        ready_replicas: next(10),
        allowance: next(1000),
        planned_factor: f64::from(1 + next(100)) / 100.0,
        planned_utilisation: f64::from(next(100)) / 50.0,
        hard_capacity: hard,
        safe_capacity: hard * 0.85,
        network_ms: f64::from(next(100)),
        idle_timeout_ms: next(u32::MAX),
        max_connections: next(100),
        max_streams: next(100),
        profile: (0..next(4))
            .map(|p| ProfilePoint {
                utilisation: f64::from(p) / 4.0,
                ttft_ms: f64::from(next(1000)),
                tbot_ms: f64::from(next(100)),
            })
            .collect(),
        profile_assumed: next(2) == 1,
    }
}

fn class(i: usize, engines: &[Engine], pair: &mut u16, next: &mut impl FnMut(u32) -> u32) -> Class {
    let chosen: Vec<EngineSlot> = engines
        .iter()
        .filter(|_| next(3) > 0)
        .map(|engine| engine.slot)
        .collect();
    let raw: Vec<f64> = chosen.iter().map(|_| f64::from(next(4))).collect();
    let sum: f64 = raw.iter().sum();
    let weights: Vec<f64> = raw
        .iter()
        .map(|w| if sum > 0.0 { w / sum } else { 0.0 })
        .collect();
    let len = if sum > 0.0 {
        1usize << (6 + next(4))
    } else {
        0
    };
    let eligible = chosen
        .iter()
        .zip(&weights)
        .map(|(engine, weight)| {
            *pair += 1;
            Eligible {
                engine: *engine,
                pair: PairNumber(*pair),
                pair_generation: Generation(1 + next(3)),
                weight: *weight,
                work: f64::from(next(100)) / 100.0,
                kv_token_seconds: f64::from(next(100)),
                idle_ttft_ms: f64::from(next(100)),
                planned_ttft_ms: f64::from(next(100)),
            }
        })
        .collect();
    Class {
        slot: ClassSlot(i as u16 * 2),
        generation: Generation(1 + next(3)),
        name: format!("class-{i}"),
        mode: if next(2) == 1 {
            Mode::Control
        } else {
            Mode::Observe
        },
        demand_rps: f64::from(next(1000)),
        eligible,
        table: (0..len)
            .map(|_| chosen[next(chosen.len() as u32) as usize])
            .collect(),
        standby: chosen
            .iter()
            .take(3)
            .map(|engine| Standby {
                engine: *engine,
                weight: f64::from(1 + next(9)),
            })
            .collect(),
        admitted_rps: vec![f64::INFINITY, f64::from(next(100))],
    }
}

fn route(i: usize, classes: usize, next: &mut impl FnMut(u32) -> u32) -> Route {
    Route {
        name: format!("chat-eu-long-{i}"),
        model: "meta-llama/Llama-3.3-70B-Instruct".to_owned(),
        adapter: String::new(),
        class: next(classes as u32) as u16,
        endpoints: Endpoints(1 + next(31)),
        features: FeatureMatch {
            required: Features::STREAM,
            forbidden: Features::IMAGES,
        },
        body_bytes_min: next(1000),
        body_bytes_max: u32::MAX,
        headers: (0..next(3))
            .map(|h| (format!("x-tier-{h}"), "Gold é".to_owned()))
            .collect(),
        default_priority: next(2) as u8,
        listed: next(2) == 1,
    }
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let sizes = (0usize..12, 0usize..6, 0usize..12);
    (sizes, prop::collection::vec(any::<u32>(), 7..40)).prop_map(|(s, noise)| policy(s, &noise))
}

fn any_engine_states() -> impl Strategy<Value = EngineStates> {
    let one = (
        prop::option::of(any::<u32>()),
        prop::option::of(any::<u32>()),
        prop::option::of(0.0f64..=1.0),
        0.0f64..=1.0,
        any::<(u32, u32)>(),
        0u8..3,
    );
    type One = (Option<u32>, Option<u32>, Option<f64>, f64, (u32, u32), u8);
    let state =
        |(i, (running, waiting, kv_use, penalty, ages, health)): (usize, One)| EngineState {
            slot: EngineSlot(i as u16 * 3),
            generation: Generation(1 + i as u32),
            health: [Health::Unknown, Health::Up, Health::Down][usize::from(health)],
            ready_replicas: running,
            running,
            waiting,
            kv_use,
            penalty,
            health_age_ms: ages.0,
            load_age_ms: ages.1,
        };
    prop::collection::vec(one, 0..40).prop_map(move |states| EngineStates {
        version: 3,
        epoch: 1,
        engines: states.into_iter().enumerate().map(state).collect(),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_policy_comes_back_as_it_was(policy in any_policy()) {
        policy.validate().unwrap();
        prop_assert_eq!(Policy::decode(&policy.encode()).unwrap(), policy);
    }

    #[test]
    fn an_engine_state_comes_back_as_it_was(states in any_engine_states()) {
        states.validate().unwrap();
        prop_assert_eq!(EngineStates::decode(&states.encode()).unwrap(), states);
    }

    #[test]
    fn i10_no_bytes_make_decoding_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        let _ = Policy::decode(&bytes);
        let _ = EngineStates::decode(&bytes);
        for magic in [b"PMPO\x01\0\0\0", b"PMEN\x01\0\0\0"] {
            let framed: Vec<u8> = magic.iter().chain(&bytes).copied().collect();
            let _ = Policy::decode(&framed);
            let _ = EngineStates::decode(&framed);
        }
    }

    #[test]
    fn i10_a_policy_with_changed_bytes_is_valid_or_refused_but_never_a_panic(
        policy in any_policy(),
        changes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..8),
        cut in prop::option::of(any::<Index>()),
    ) {
        let mut bytes = policy.encode();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(decoded) = Policy::decode(&bytes) {
            prop_assert!(decoded.validate().is_ok());
        }
    }
}

#[test]
fn a_route_costs_at_most_128_bytes() {
    let noise = [7, 1, 9, 4, 3, 8, 5];
    let with = |routes| policy((3, 1, routes), &noise).encode().len();
    let per_route = (with(MAX_ROUTES) - with(0)) as f64 / MAX_ROUTES as f64;
    println!("{per_route:.1} bytes a route");
    assert!(per_route <= 128.0, "{per_route}");
}

#[test]
fn each_broken_promise_of_a_policy_is_named_on_both_sides() {
    // The first small policy with a class that has a table and a choice.
    let rich = |class: &Class| class.eligible.len() > 1 && !class.table.is_empty();
    let valid = (0..100)
        .map(|n| policy((4, 2, 2), &[7 + n, 1, 9, 4, 3, 8, 5]))
        .find(|policy| policy.classes.iter().any(rich))
        .unwrap();
    valid.validate().unwrap();
    let class = valid.classes.iter().position(rich).unwrap();
    let broken = |change: &dyn Fn(&mut Policy)| {
        let mut policy = valid.clone();
        change(&mut policy);
        let said = policy.validate().unwrap_err().to_string();
        assert_eq!(
            Policy::decode(&policy.encode()).unwrap_err().to_string(),
            said
        );
        said
    };
    let says = |change: &dyn Fn(&mut Policy), expected: &str| {
        let said = broken(change);
        assert!(
            said.starts_with("policy, ") && said.contains(expected),
            "{said}"
        );
    };
    says(&|p| p.version = 0, "version: 0 is not a version");
    says(&|p| p.hosts = 0, "hosts: 0");
    says(&|p| p.priorities.clear(), "priorities: 0 of them");
    says(&|p| p.frontend.clear(), "frontend: empty");
    says(
        &|p| p.engines[1].id = p.engines[0].id.clone(),
        "engines[1], name: \"engine-0\" twice",
    );
    says(
        &|p| p.engines[1].slot = p.engines[0].slot,
        "engines[1], slot: ",
    );
    says(
        &|p| p.engines[3].slot = EngineSlot(4096),
        "slot: 4096 is not below 4096",
    );
    says(&|p| p.engines[0].addresses.clear(), "addresses: 0 of them");
    says(
        &|p| p.engines[0].authority = "a\r\nx: y".to_owned(),
        "authority: ",
    );
    says(
        &|p| p.engines[0].health_path = "health".to_owned(),
        "health_path: ",
    );
    says(
        &|p| p.engines[0].planned_factor = 0.0,
        "planned_factor: 0 is not in (0, 1]",
    );
    says(
        &|p| p.engines[0].planned_factor = f64::NAN,
        "planned_factor: NaN",
    );
    says(
        &|p| p.engines[0].safe_capacity = 1e9,
        "safe_capacity: 1000000000 is over",
    );
    says(
        &|p| p.engines[0].network_ms = f64::INFINITY,
        "network_ms: inf",
    );
    says(
        &|p| p.classes[class].generation = Generation(0),
        "generation: 0",
    );
    says(
        &|p| p.classes[class].eligible[0].weight += 0.001,
        "weights sum to ",
    );
    says(
        &|p| p.classes[class].eligible[0].weight = -0.5,
        "eligible[0], weight: -0.5",
    );
    says(
        &|p| p.classes[class].eligible[1].pair = p.classes[class].eligible[0].pair,
        "twice",
    );
    says(
        &|p| p.classes[class].eligible[0].pair = PairNumber(32_768),
        "not below 32768",
    );
    says(
        &|p| p.classes[class].eligible[0].engine = EngineSlot(0),
        "slot 0 is no engine",
    );
    says(
        &|p| p.classes[class].table.extend_from_within(..1),
        "a power of two",
    );
    says(&|p| p.classes[class].table.clear(), "table: 0 slots");
    says(
        &|p| p.classes[class].table[9] = EngineSlot(4000),
        "table[9], engine: slot 4000 is not",
    );
    says(
        &|p| p.classes[class].standby[0].engine = EngineSlot(4000),
        "standby[0], engine: 4000",
    );
    says(
        &|p| p.classes[class].standby[1].engine = p.classes[class].standby[0].engine,
        "twice",
    );
    says(
        &|p| p.classes[class].standby[0].weight = 0.0,
        "standby[0], weight: 0 is not above 0",
    );
    says(
        &|p| p.classes[class].admitted_rps.truncate(1),
        "admitted_rps: 1 of 2 priorities",
    );
    says(
        &|p| p.classes[class].admitted_rps[0] = f64::NAN,
        "admitted_rps[0], rate: NaN",
    );
    says(
        &|p| Arc::make_mut(&mut p.routes)[1].class = 2,
        "routes[1] \"chat-eu-long-1\", class: 2 of 2 classes",
    );
    says(
        &|p| Arc::make_mut(&mut p.routes)[1].model.clear(),
        "model: empty",
    );
    says(
        &|p| Arc::make_mut(&mut p.routes)[1].default_priority = 2,
        "default_priority: 2 of 2 priorities",
    );
    says(
        &|p| Arc::make_mut(&mut p.routes)[1].body_bytes_max = 0,
        "body_bytes_min: ",
    );
    says(
        &|p| Arc::make_mut(&mut p.routes)[1].endpoints = Endpoints(0),
        "endpoints: none",
    );
    says(
        &|p| Arc::make_mut(&mut p.routes)[1].features.required = Features::IMAGES,
        "both required and forbidden",
    );
    says(
        &|p| Arc::make_mut(&mut p.routes)[1].headers = vec![("X-A".to_owned(), String::new())],
        "lower-case",
    );
    let mut zero = valid.clone();
    zero.classes[class]
        .eligible
        .iter_mut()
        .for_each(|entry| entry.weight = 0.0);
    assert!(
        zero.validate()
            .unwrap_err()
            .to_string()
            .contains("but every weight is 0")
    );
    zero.classes[class].table.clear();
    zero.validate()
        .expect("allowed, and nothing from the table");
}

#[test]
fn a_text_at_the_limit_passes_and_one_over_is_refused() {
    let mut long = policy((1, 0, 0), &[1; 7]);
    long.frontend = "x".repeat(255);
    assert_eq!(Policy::decode(&long.encode()).unwrap(), long);
    long.frontend.push('x');
    assert!(
        long.validate()
            .unwrap_err()
            .to_string()
            .contains("256 bytes, the limit is 255")
    );
}
