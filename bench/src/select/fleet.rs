//! The policy that selection is measured with, and how it changes.
//!
//! Harder than what an optimum looks like: where that gives a class a few engines, here every
//! eligible engine has slots of every table (or as many as the spread says), so that a key's
//! engine is a fresh cache line each time. No engine is refused, so that each key must land exactly
//! where its table says.

use std::sync::Arc;

use pointsman_shm::id::{
    ClassSlot, EngineSlot, Generation, MAX_PAIRS, MAX_STANDBY, PairNumber, stable_hash,
};
use pointsman_shm::policy::{
    Class, Eligible, Endpoints, Engine, FeatureMatch, Mode, PlannedState, Policy, Protocol, Route,
    Standby,
};
use rand::Rng;
use rand::rngs::SmallRng;

/// Frontend of the policy.
pub(super) const FRONTEND: &str = "bench";
/// Slots of a class that a publication gives to other engines.
const MOVED_SLOTS: usize = 64;

/// Size of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) engines: u16,
    pub(super) classes: u16,
    /// Base-2 logarithm of a table's length.
    pub(super) table_bits: u8,
    /// Engines that have slots of a table; `None` for all that are eligible.
    pub(super) spread: Option<u16>,
}

impl Size {
    /// Engines of each class's eligible set: all, or as many as a policy has pairs for.
    pub(super) fn eligible(self) -> u16 {
        let most = MAX_PAIRS / usize::from(self.classes.max(1));
        self.engines.min(u16::try_from(most).unwrap_or(u16::MAX))
    }

    /// Engines that have slots of a table.
    fn holders(self) -> usize {
        let eligible = self.eligible();
        usize::from(self.spread.map_or(eligible, |spread| spread.min(eligible)))
    }
}

/// The first version.
pub(super) fn policy(size: Size, random: &mut SmallRng) -> Policy {
    Policy {
        version: 1,
        epoch: 1,
        frontend: FRONTEND.to_owned(),
        created_unix_ms: 0,
        hosts: 1,
        priorities: vec!["default".to_owned()],
        engines: (0..size.engines).map(engine).collect(),
        classes: (0..size.classes)
            .map(|at| class(at, size, random))
            .collect(),
        routes: Arc::new((0..size.classes).map(route).collect()),
    }
}

/// The next version: some slots of every table go to other engines, and weights follow.
pub(super) fn change(policy: &mut Policy, random: &mut SmallRng) {
    policy.version += 1;
    for class in &mut policy.classes {
        let slots = class.table.len();
        let before = class.table.clone();
        for _ in 0..MOVED_SLOTS {
            // Who holds slots goes on doing so: another slot's engine takes this one.
            class.table[random.random_range(0..slots)] = before[random.random_range(0..slots)];
        }
        weigh(class);
    }
}

/// Hash of the name and weight of each engine that has slots of a class's table.
pub(super) fn weights(policy: &Policy, class: usize) -> Vec<(u64, f64)> {
    let eligible = policy.classes[class].eligible.iter();
    eligible
        .filter(|entry| entry.weight > 0.0)
        .map(|entry| (stable_hash(name(entry.engine).as_bytes()), entry.weight))
        .collect()
}

/// Weights are the shares of slots, to the last bit.
fn weigh(class: &mut Class) {
    let mut counts = vec![0_u32; pointsman_shm::id::MAX_ENGINES];
    class
        .table
        .iter()
        .for_each(|engine| counts[engine.index()] += 1);
    let slots = class.table.len() as f64;
    for entry in &mut class.eligible {
        entry.weight = f64::from(counts[entry.engine.index()]) / slots;
    }
}

fn name(engine: EngineSlot) -> String {
    format!("engine-{}", engine.0)
}

fn engine(slot: u16) -> Engine {
    Engine {
        slot: EngineSlot(slot),
        generation: Generation(1),
        id: name(EngineSlot(slot)),
        kind: "kind".to_owned(),
        region: "region".to_owned(),
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
        safe_capacity: 0.85,
        network_ms: 1.0,
        idle_timeout_ms: 0,
        max_connections: 0,
        max_streams: 0,
        profile: Vec::new(),
        profile_assumed: true,
    }
}

/// A class whose eligible engines are spread over the fleet, beginning elsewhere than the others'.
fn class(at: u16, size: Size, random: &mut SmallRng) -> Class {
    let count = size.eligible();
    let start = usize::from(at) * usize::from(size.engines) / usize::from(size.classes);
    let mut engines: Vec<u16> = (0..usize::from(count))
        .map(|nth| ((start + nth) % usize::from(size.engines)) as u16)
        .collect();
    engines.sort_unstable();
    let eligible: Vec<Eligible> = (0..)
        .zip(&engines)
        .map(|(nth, &engine)| eligible(engine, at * count + nth))
        .collect();
    let holders = size.holders();
    let holder = |nth: usize| EngineSlot(engines[nth * engines.len() / holders]);
    let table: Vec<EngineSlot> = (0..1_usize << size.table_bits)
        .map(|_| holder(random.random_range(0..holders)))
        .collect();
    let mut class = Class {
        slot: ClassSlot(at),
        generation: Generation(1),
        name: format!("class-{at}"),
        mode: Mode::Control,
        demand_rps: 1.0,
        standby: engines
            .iter()
            .take(MAX_STANDBY)
            .map(|&engine| standby(engine))
            .collect(),
        eligible,
        table,
        admitted_rps: vec![f64::INFINITY],
    };
    weigh(&mut class);
    class
}

fn eligible(engine: u16, pair: u16) -> Eligible {
    Eligible {
        engine: EngineSlot(engine),
        pair: PairNumber(pair),
        pair_generation: Generation(1),
        weight: 0.0,
        work: 1.0,
        kv_token_seconds: 0.0,
        idle_ttft_ms: 100.0,
        planned_ttft_ms: 150.0,
    }
}

fn standby(engine: u16) -> Standby {
    Standby {
        engine: EngineSlot(engine),
        weight: 1.0,
    }
}

fn route(class: u16) -> Route {
    Route {
        name: format!("route-{class}"),
        model: format!("model-{class}"),
        adapter: String::new(),
        class,
        endpoints: Endpoints::ALL,
        features: FeatureMatch::default(),
        body_bytes_min: 0,
        body_bytes_max: u32::MAX,
        headers: Vec::new(),
        default_priority: 0,
        listed: true,
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_fleet_of_every_size_is_a_valid_policy_and_stays_one() {
        for (engines, classes, eligible) in [(10, 16, 10), (1_000, 16, 1_000), (1_000, 100, 327)] {
            let size = Size {
                engines,
                classes,
                table_bits: 12,
                spread: None,
            };
            assert_eq!(size.eligible(), eligible);
            let mut random = SmallRng::seed_from_u64(1);
            let mut policy = policy(size, &mut random);
            policy.validate().unwrap();
            let before = policy.classes[0].table.clone();
            change(&mut policy, &mut random);
            policy.validate().unwrap();
            assert_eq!(policy.version, 2);
            let moved = policy.classes[0].table.iter().zip(&before);
            let moved = moved.filter(|(now, then)| now != then).count();
            assert!((1..=MOVED_SLOTS).contains(&moved), "{moved}");
        }
    }

    #[test]
    fn weights_are_shares_of_the_table() {
        let size = Size {
            engines: 4,
            classes: 1,
            table_bits: 6,
            spread: Some(3),
        };
        let policy = policy(size, &mut SmallRng::seed_from_u64(1));
        let class = &policy.classes[0];
        for entry in &class.eligible {
            let count = class.table.iter().filter(|at| **at == entry.engine).count();
            assert_eq!(entry.weight, count as f64 / 64.0);
        }
        assert_eq!(weights(&policy, 0).len(), 3);
    }
}
