//! Puts together what one pass of the solver sees: demand, engines, addresses.

use std::time::Duration;

use pointsman_shm::engine_state::Health as Seen;
use tokio::time::Instant;

use super::shared::Shared;
use crate::collect::aliases::Signal;
use crate::collect::demand::Demand;
use crate::collect::engines::Observation;
use crate::collect::signals::Delta;
use crate::model::registry::Registry;
use crate::model::topology::{DemandSource, EngineId, FrontendId, Topology};
use crate::model::units::{NonNegative, Share};
use crate::tick::{Arrivals, EngineSample, Health, Inputs, Looks, Offered, Service, Witness};

/// An observation older than this, or than five scrape periods, is no observation.
const FRESH: Duration = Duration::from_secs(10);

/// Inputs of one pass.
#[must_use]
pub fn inputs(
    shared: &Shared,
    registry: &Registry,
    demand: &Demand,
    deltas: &[Delta],
    now: Now,
) -> Inputs {
    let topology = &shared.topology;
    let mut inputs = Inputs {
        now_ns: now.monotonic_ns,
        unix_ms: now.unix_ms,
        demand: demand.samples(topology),
        witness: witness(topology, registry, deltas),
        looks: looks(topology, registry, deltas),
        ..Inputs::default()
    };
    let fresh = FRESH.max(Duration::from_millis(topology.settings.scrape_ms).saturating_mul(5));
    for (id, engine) in topology.engine_ids().zip(&topology.engines) {
        inputs
            .engines
            .push(sample(id, &shared.board.observation(&engine.name), fresh));
        for frontend in topology.frontend_ids() {
            let Some(address) = topology.address(frontend, id) else {
                continue;
            };
            inputs
                .addresses
                .insert((frontend, id), shared.names.addresses(address));
        }
    }
    // Configured demand is the whole frontend's, whatever part of it has a page here.
    if topology.settings.demand == DemandSource::Signals {
        let measured = topology
            .frontend_ids()
            .zip(deltas)
            .filter(|(_, delta)| delta.live_hosts > 0);
        inputs.hosts = measured.map(|(id, delta)| (id, delta.live_hosts)).collect();
    }
    inputs
}

/// What pages tell beside demand, summed over frontends.
fn witness(topology: &Topology, registry: &Registry, deltas: &[Delta]) -> Witness {
    let mut witness = Witness::default();
    for (frontend, delta) in topology.frontend_ids().zip(deltas) {
        if delta.live_pages == 0 && !delta.measured && !delta.blind {
            continue;
        }
        let arrivals = Arrivals {
            length_s: if delta.measured { delta.length_s } else { 0.0 },
            handled: delta.handled,
            in_flight: delta.in_flight.values().sum(),
            blind: delta.blind,
        };
        witness.arrivals.insert(frontend, arrivals);
        if delta.measured && delta.length_s > 0.0 {
            served(topology, registry, (frontend, delta), &mut witness);
        }
    }
    for (id, engine) in topology.engine_ids().zip(&topology.engines) {
        let Some(slot) = registry.engine(&engine.name) else {
            continue;
        };
        for answers in deltas.iter().filter_map(|delta| delta.answers.get(&slot)) {
            let sum = witness.engines.entry(id).or_default();
            sum.succeeded = sum.succeeded.saturating_add(answers.succeeded);
            sum.failed = sum.failed.saturating_add(answers.failed);
        }
    }
    witness
}

/// What pages counted since the last pass, by the topology's numbers.
fn looks(topology: &Topology, registry: &Registry, deltas: &[Delta]) -> Looks {
    let mut looks = Looks::default();
    let measured = |(_, delta): &(_, &Delta)| delta.measured && delta.length_s > 0.0;
    for (frontend, delta) in topology.frontend_ids().zip(deltas).filter(measured) {
        for (id, class) in topology.class_ids().zip(&topology.classes) {
            let slot = registry.class(&class.name);
            let offered = slot.and_then(|slot| delta.offered.get(&slot));
            let count = offered.map_or(0, |by_priority| by_priority.iter().sum());
            let length_s = delta.length_s;
            looks
                .offered
                .insert((frontend, id), Offered { length_s, count });
        }
    }
    looks
}

/// How engines served one frontend, and how far they are.
fn served(
    topology: &Topology,
    registry: &Registry,
    (frontend, delta): (FrontendId, &Delta),
    witness: &mut Witness,
) {
    for (id, class) in topology.class_ids().zip(&topology.classes) {
        for pair in &class.eligible {
            let engine = &topology.engines[pair.engine.0].name;
            let number = registry.pair(&class.name, engine);
            if let Some(service) = number.and_then(|number| delta.served.get(&number)) {
                let service = Service {
                    length_s: delta.length_s,
                    ..*service
                };
                witness.served.insert((frontend, id, pair.engine), service);
            }
        }
    }
    for (id, engine) in topology.engine_ids().zip(&topology.engines) {
        let slot = registry.engine(&engine.name);
        if let Some(trips) = slot.and_then(|slot| delta.trips.get(&slot)) {
            witness.trips.insert((frontend, id), *trips);
        }
        if let Some(sent) = slot.and_then(|slot| delta.sent.get(&slot)) {
            witness.sent.insert((frontend, id), *sent);
        }
    }
}

/// The two clocks of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Monotonic, nanoseconds.
    pub monotonic_ns: u64,
    /// Wall clock, milliseconds since the Unix epoch.
    pub unix_ms: u64,
}

impl Now {
    /// Reads both clocks.
    #[must_use]
    pub fn read() -> Self {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            monotonic_ns: pointsman_shm::boottime_ns(),
            unix_ms: since_epoch.map_or(0, |since| since.as_millis() as u64),
        }
    }
}

fn sample(engine: EngineId, seen: &Observation, fresh: Duration) -> EngineSample {
    let is_fresh = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() <= fresh);
    let mut sample = EngineSample::unknown(engine);
    if is_fresh(seen.health_at) {
        sample.health = match seen.health {
            Seen::Unknown => Health::Unknown,
            Seen::Up => Health::Up,
            Seen::Down => Health::Down,
        };
        sample.silent = seen.silent;
    }
    if is_fresh(seen.load_at) {
        let value = |signal| seen.readings.value(signal).and_then(NonNegative::new);
        sample.running = value(Signal::Running);
        sample.waiting = value(Signal::Waiting);
        sample.kv_use = seen.readings.value(Signal::KvUse).and_then(Share::new);
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::exposition;

    #[tokio::test]
    async fn what_was_not_seen_lately_is_unknown() {
        let now = Instant::now();
        let page = exposition::parse(b"vllm:num_requests_running 4\n", true);
        let mut seen = Observation {
            health: Seen::Down,
            health_at: Some(now),
            readings: page.readings,
            load_at: Some(now),
            ..Observation::default()
        };
        let hour = Duration::from_secs(3_600);
        let fresh = sample(EngineId(2), &seen, hour);
        assert_eq!((fresh.engine, fresh.health), (EngineId(2), Health::Down));
        assert_eq!(fresh.running, NonNegative::new(4.0));
        assert_eq!((fresh.waiting, fresh.kv_use), (None, None));
        tokio::time::sleep(Duration::from_millis(2)).await;
        let old = sample(EngineId(2), &seen, Duration::from_millis(1));
        assert_eq!(old, EngineSample::unknown(EngineId(2)));
        seen.health_at = None;
        assert_eq!(sample(EngineId(2), &seen, hour).health, Health::Unknown);
    }
}
