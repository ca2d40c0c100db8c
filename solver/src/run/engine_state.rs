//! Tells proxies how engines are, every half second and without a new policy.
//!
//! Queue lengths and health change far more often than weights do, and both planes act on them. But
//! where many engines give no answer at once, which the plan still uses, it is more likely this host
//! that is cut off: then nothing is said of their health until a pass has judged, and proxies ask for
//! themselves. A pass that believes the loss closes them, and one that doubts it does not.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pointsman_shm::engine_state::{EngineState, Health};
use pointsman_shm::id::{EngineSlot, Generation};
use tokio::time::{Instant, sleep_until};

use super::current::Current;
use super::shared::{Shared, StandingPolicy};
use crate::collect::aliases::Signal;
use crate::collect::engines::Observation;
use crate::publish::EnginesPublisher;

/// Part of a frontend's engines that may fall silent at once.
const MOST_SILENT: f64 = 0.3;

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
        let seen = engines.map(|(_, _, name)| shared.board.observation(name));
        let seen = believed(standing, seen.collect());
        let states = standing.engines.iter().zip(&seen);
        let states = states.map(|((slot, generation, name), seen)| {
            let penalty = record.penalised.get(name).map_or(0.0, |one| one.penalty);
            EngineState {
                penalty,
                ..state(*slot, *generation, seen, now)
            }
        });
        // Counted and said where it is written; the next turn tries again.
        let _ = publisher.publish(shared.epoch, states.collect());
    }
}

/// What was seen of a policy's engines, but for the health of silent ones where these are too many.
fn believed(standing: &StandingPolicy, mut seen: Vec<Observation>) -> Vec<Observation> {
    let is_silent = |seen: &Observation, name: &String| {
        seen.health == Health::Down && seen.silent && !standing.closed.contains(name)
    };
    let names = standing.engines.iter().map(|(_, _, name)| name);
    let silent: Vec<bool> = seen
        .iter()
        .zip(names)
        .map(|(seen, name)| is_silent(seen, name))
        .collect();
    let count = silent.iter().filter(|silent| **silent).count();
    // Of one engine nobody else is a measure.
    if count < 2 || count as f64 <= MOST_SILENT * seen.len() as f64 {
        return seen;
    }
    for (seen, _) in seen.iter_mut().zip(silent).filter(|(_, silent)| *silent) {
        (seen.health, seen.health_at) = (Health::Unknown, None);
    }
    seen
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

    #[tokio::test]
    async fn where_many_fall_silent_that_the_plan_uses_nothing_is_said_of_their_health() {
        let told = |health: &[Health], silent: bool, closed: &[&str]| {
            let name = |at: usize| format!("e{at}");
            let standing = StandingPolicy {
                version: 1,
                epoch: 1,
                created_unix_ms: 0,
                engines: (0..health.len())
                    .map(|at| (EngineSlot(at as u16), Generation(1), name(at)))
                    .collect(),
                weights: Vec::new(),
                closed: closed.iter().map(|name| (*name).to_owned()).collect(),
            };
            let one = |health: &Health| Observation {
                health: *health,
                silent: silent && *health == Health::Down,
                health_at: Some(Instant::now()),
                ..Observation::default()
            };
            let seen = believed(&standing, health.iter().map(one).collect());
            assert!(
                seen.iter()
                    .all(|one| one.health_at.is_none() == (one.health == Health::Unknown))
            );
            seen.iter().map(|one| one.health).collect::<Vec<Health>>()
        };
        use Health::{Down, Unknown, Up};
        let two_of_four = [Down, Down, Up, Up];
        let doubted = [Unknown, Unknown, Up, Up];
        assert_eq!(told(&two_of_four, true, &[]), doubted);
        assert_eq!(told(&[Down; 3], true, &[]), [Unknown; 3]);
        // They say themselves that they are unwell; a pass believed it, of one and of both.
        assert_eq!(told(&two_of_four, false, &[]), two_of_four);
        assert_eq!(told(&two_of_four, true, &["e1"]), two_of_four);
        assert_eq!(told(&two_of_four, true, &["e0", "e1"]), two_of_four);
        // One engine, or few of many, are no sign of that.
        assert_eq!(told(&[Down, Up], true, &[]), [Down, Up]);
        let few = [Down, Down, Up, Up, Up, Up, Up];
        assert_eq!(told(&few, true, &[]), few);
    }

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
