//! A random fleet: its policy, the rate of each class, and the engines behind it.

use std::net::SocketAddr;

use pointsman_shm::policy::Policy;
use pointsman_tests::policy::Draft;
use rand::Rng;
use rand::rngs::SmallRng;

use crate::engine::{Engine, Fault};

/// Priorities, the higher first.
pub(crate) const HIGH: u8 = 0;
pub(crate) const LOW: u8 = 1;
/// Work of a request, engine-seconds.
const WORK: f64 = 0.1;
/// Slots of a table in a draft.
const SLOTS: u32 = 64;

/// What a run begins with.
pub(crate) struct Fleet {
    pub(crate) policy: Policy,
    /// Requests a second of each class.
    pub(crate) rates_rps: Vec<f64>,
    pub(crate) engines: Vec<Engine>,
}

impl Fleet {
    /// Engines with room for what comes when half of them are well: three to eight, for one to three
    /// classes, planned as full as may be.
    pub(crate) fn random(random: &mut SmallRng) -> Self {
        let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
        let engine_count = random.random_range(3..=8);
        let names: Vec<String> = (0..engine_count).map(|at| format!("E{at}")).collect();
        let mut draft = Draft::new();
        for name in &names {
            draft = draft.engine(name, nobody);
        }
        let mut rates_rps = Vec::new();
        for class in 0..random.random_range(1..=3) {
            let weights = weights(&names, random);
            draft = draft.route(&format!("m{class}"), &weights);
            rates_rps.push(random.random_range(10.0..60.0));
        }
        let planned = random.random_range(0.2..0.97);
        let total: f64 = rates_rps.iter().sum();
        let draft = draft.with(|policy| {
            policy.priorities = vec!["high".to_owned(), "low".to_owned()];
            for (class, rate) in policy.classes.iter_mut().zip(&rates_rps) {
                class.demand_rps = *rate;
                class.admitted_rps = vec![f64::INFINITY; 2];
                for one in &mut class.eligible {
                    one.work = WORK;
                }
            }
            for engine in &mut policy.engines {
                engine.planned_utilisation = planned;
                engine.hard_capacity = total * WORK / planned / f64::from(engine_count);
                // Enough for all at one that is well, not for all that a slow one piles up.
                engine.allowance = random.random_range(48..=100);
            }
        });
        let engine = |_| Engine {
            fault: Fault::None,
            in_flight: 0,
            room: 150,
        };
        Self {
            policy: draft.policy().clone(),
            rates_rps,
            engines: (0..engine_count).map(engine).collect(),
        }
    }

    /// Requests that an engine is to get in so many seconds.
    pub(crate) fn share(&self, engine: usize, seconds: f64) -> f64 {
        let classes = self.policy.classes.iter().zip(&self.rates_rps);
        let parts = classes.map(|(class, rate)| {
            let mut eligible = class.eligible.iter();
            let of = eligible.find(|one| one.engine.index() == engine);
            of.map_or(0.0, |one| one.weight * rate)
        });
        parts.sum::<f64>() * seconds
    }
}

/// Weights of at least two engines, so that there is somebody to go to; some of them only stand by.
fn weights<'a>(names: &'a [String], random: &mut SmallRng) -> Vec<(&'a str, f64)> {
    let mut eligible: Vec<&str> = names.iter().map(String::as_str).collect();
    while eligible.len() > 2 && random.random_bool(0.3) {
        eligible.swap_remove(random.random_range(0..eligible.len()));
    }
    let mut parts = vec![0; eligible.len()];
    for _ in 0..SLOTS {
        let most = if random.random_bool(0.5) {
            1
        } else {
            parts.len()
        };
        parts[random.random_range(0..most)] += 1;
    }
    let share = |part: &u32| f64::from(*part) / f64::from(SLOTS);
    eligible.into_iter().zip(parts.iter().map(share)).collect()
}
