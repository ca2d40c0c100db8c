//! Tells proxies how engines are, every half second and without a new policy.
//!
//! Queue lengths and health change far more often than weights do, and both planes act on them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pointsman_shm::engine_state::EngineState;
use pointsman_shm::id::{EngineSlot, Generation};
use tokio::time::{Instant, sleep_until};

use super::current::Current;
use super::shared::Shared;
use crate::collect::aliases::Signal;
use crate::collect::engines::Observation;
use crate::publish::EnginesPublisher;

/// Publishes engine state of every frontend for ever.
pub async fn publish(current: Arc<Current>, publishers: Arc<Mutex<Vec<EnginesPublisher>>>) {
    loop {
        let began = Instant::now();
        let period_ms = {
            let mut publishers = publishers.lock().unwrap_or_else(PoisonError::into_inner);
            // Under the lock, so that it is the topology that the publishers are of.
            let shared = current.shared();
            publish_once(&shared, &mut publishers);
            shared.topology.settings.engine_state_ms
        };
        sleep_until(began + Duration::from_millis(period_ms)).await;
    }
}

/// Publishes engine state of every frontend that has a policy.
pub fn publish_once(shared: &Shared, publishers: &mut [EnginesPublisher]) {
    let now = Instant::now();
    let record = shared.record();
    for (frontend, publisher) in record.frontends.iter().zip(publishers) {
        let Some(standing) = &frontend.standing else {
            continue;
        };
        let engines = standing.engines.iter();
        let states = engines.map(|(slot, generation, name)| {
            let penalty = record.penalised.get(name).map_or(0.0, |one| one.penalty);
            EngineState {
                penalty,
                ..state(*slot, *generation, &shared.board.observation(name), now)
            }
        });
        // Counted and said where it is written; the next turn tries again.
        let _ = publisher.publish(shared.epoch, states.collect());
    }
}

fn state(
    slot: EngineSlot,
    generation: Generation,
    seen: &Observation,
    now: Instant,
) -> EngineState {
    EngineState {
        slot,
        generation,
        health: seen.health,
        ready_replicas: None,
        running: seen.readings.count(Signal::Running),
        waiting: seen.readings.count(Signal::Waiting),
        kv_use: seen.readings.value(Signal::KvUse),
        penalty: 0.0,
        health_age_ms: age_ms(seen.health_at, now),
        load_age_ms: age_ms(seen.load_at, now),
    }
}

/// Age in milliseconds; `u32::MAX` for never.
fn age_ms(at: Option<Instant>, now: Instant) -> u32 {
    let age = at.map(|at| now.saturating_duration_since(at).as_millis());
    age.map_or(u32::MAX, |age| {
        u32::try_from(age).unwrap_or(u32::MAX - 1).min(u32::MAX - 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_shm::engine_state::Health;

    #[tokio::test]
    async fn ages_are_those_at_the_moment_and_never_is_the_largest_number() {
        let now = Instant::now();
        let seen = Observation {
            health: Health::Up,
            health_at: Some(now),
            ..Observation::default()
        };
        let later = now + Duration::from_millis(1_250);
        let state = state(EngineSlot(3), Generation(2), &seen, later);
        assert_eq!((state.health, state.health_age_ms), (Health::Up, 1_250));
        assert_eq!(
            (state.load_age_ms, state.running, state.kv_use),
            (u32::MAX, None, None)
        );
        assert_eq!(
            age_ms(Some(now), now + Duration::from_secs(1 << 40)),
            u32::MAX - 1
        );
    }
}
