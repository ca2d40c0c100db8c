//! From policy, engine state and this host's credentials to guard words; no I/O.
//!
//! A word only ever takes away: what the policy does not allow is not in any table or standby list,
//! and an engine that nobody heard of lately is used as planned, because a dead observer must not
//! take the fleet down with it.

use std::collections::BTreeMap;

use pointsman_shm::engine_state::{EngineState, EngineStates, Health};
use pointsman_shm::policy::{Engine, PlannedState, Policy, Protocol};
use rustls::pki_types::ServerName;

use crate::config::Credential;
use crate::decide::guard::GuardState;
use crate::metrics::OutReason;

/// The newest engine state and when it was read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    /// What the control plane published.
    pub(super) states: EngineStates,
    /// When the sentinel read it, on the monotonic clock.
    pub(super) at_ns: u64,
    /// How old it was then: what a proxy finds at its start may be of hours ago.
    pub(super) age_ns: u64,
}

/// One engine's guard state, and why it takes nothing if it does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Verdict {
    /// What goes into the word.
    pub(super) state: GuardState,
    /// Why it is out or draining.
    pub(super) reason: Option<OutReason>,
}

/// What keeps `engine` from being used on this host whatever its state.
#[must_use]
pub(super) fn unusable(
    engine: &Engine,
    credentials: &BTreeMap<String, Credential>,
) -> Option<OutReason> {
    if !engine.credential.is_empty() && !credentials.contains_key(&engine.credential) {
        return Some(OutReason::UnknownCredential);
    }
    match engine.protocol {
        Protocol::Http1 | Protocol::Http2 => None,
        Protocol::Http1Tls | Protocol::Http2Tls if ServerName::try_from(&*engine.sni).is_ok() => {
            None
        }
        Protocol::Http1Tls | Protocol::Http2Tls => Some(OutReason::BadServerName),
    }
}

/// The verdict on each engine of `policy`, in its order.
#[must_use]
pub(super) fn verdicts(
    policy: &Policy,
    credentials: &BTreeMap<String, Credential>,
    seen: Option<&Seen>,
    now_ns: u64,
    state_max_age_ms: u64,
) -> Vec<Verdict> {
    let verdict = |engine: &Engine| {
        let state = seen.and_then(|seen| current_state(engine, seen, now_ns, state_max_age_ms));
        judge(engine, state, unusable(engine, credentials))
    };
    policy.engines.iter().map(verdict).collect()
}

fn judge(engine: &Engine, seen: Option<&EngineState>, unusable: Option<OutReason>) -> Verdict {
    let planned = match engine.state {
        PlannedState::Out => Some(OutReason::Planned),
        PlannedState::Draining => Some(OutReason::Draining),
        PlannedState::Active | PlannedState::StandbyOnly => None,
    };
    let down = seen
        .is_some_and(|state| state.health == Health::Down)
        .then_some(OutReason::Down);
    let reason = unusable.or(planned).or(down);
    let draining = reason == Some(OutReason::Draining);
    Verdict {
        state: GuardState {
            out: reason.is_some() && !draining,
            draining,
            standby_only: engine.state == PlannedState::StandbyOnly,
            penalty: seen.map_or(0.0, |state| state.penalty),
            ..GuardState::clear(engine.generation)
        },
        reason,
    }
}

/// The engine's state, if it is about this life of the slot and its health is not too old to count.
fn current_state<'a>(
    engine: &Engine,
    seen: &'a Seen,
    now_ns: u64,
    max_age_ms: u64,
) -> Option<&'a EngineState> {
    let engines = &seen.states.engines;
    let at = engines
        .binary_search_by_key(&engine.slot, |state| state.slot)
        .ok()?;
    let state = &engines[at];
    let age_ns = now_ns
        .saturating_sub(seen.at_ns)
        .saturating_add(seen.age_ns);
    let age_ms = age_ns / 1_000_000 + u64::from(state.health_age_ms);
    (state.generation == engine.generation && age_ms <= max_age_ms).then_some(state)
}

#[cfg(test)]
mod tests {
    use pointsman_shm::id::{EngineSlot, Generation};

    use super::*;
    use crate::sentinel::fixture;

    const SECOND_NS: u64 = 1_000_000_000;

    fn state(slot: u16, health: Health, health_age_ms: u32) -> EngineState {
        EngineState {
            slot: EngineSlot(slot),
            generation: Generation(1),
            health,
            ready_replicas: None,
            running: None,
            waiting: None,
            kv_use: None,
            penalty: 0.25,
            health_age_ms,
            load_age_ms: u32::MAX,
        }
    }

    fn seen(engines: Vec<EngineState>) -> Seen {
        Seen {
            states: EngineStates {
                version: 1,
                epoch: 1,
                engines,
            },
            at_ns: SECOND_NS,
            age_ns: 0,
        }
    }

    fn verdict(policy: &Policy, seen: Option<&Seen>, now_ns: u64) -> Verdict {
        verdicts(policy, &BTreeMap::new(), seen, now_ns, 30_000)[0]
    }

    #[test]
    fn an_engine_without_news_is_used_as_planned() {
        let policy = fixture::policy(1, "A");
        let expected = Verdict {
            state: GuardState::clear(policy.engines[0].generation),
            reason: None,
        };
        assert_eq!(verdict(&policy, None, SECOND_NS), expected);
    }

    #[test]
    fn down_counts_until_it_is_too_old() {
        let policy = fixture::policy(1, "A");
        let seen = seen(vec![state(0, Health::Down, 1_000)]);
        let fresh = verdict(&policy, Some(&seen), 30 * SECOND_NS);
        assert_eq!(
            (fresh.state.out, fresh.reason),
            (true, Some(OutReason::Down))
        );
        assert_eq!(fresh.state.penalty, 0.25);
        let old = verdict(&policy, Some(&seen), 31 * SECOND_NS);
        assert_eq!((old.state.out, old.reason), (false, None));
        assert_eq!(old.state.penalty, 0.0);
    }

    #[test]
    fn news_that_was_old_when_it_was_read_does_not_count() {
        let policy = fixture::policy(1, "A");
        let mut seen = seen(vec![state(0, Health::Down, 1_000)]);
        seen.age_ns = 29 * SECOND_NS;
        let reason = |seen: &Seen| verdict(&policy, Some(seen), SECOND_NS).reason;
        assert_eq!(reason(&seen), Some(OutReason::Down));
        seen.age_ns += 1_000_000;
        assert_eq!(reason(&seen), None);
    }

    #[test]
    fn news_about_another_life_of_the_slot_says_nothing() {
        let mut policy = fixture::policy(1, "A");
        policy.engines[0].generation = Generation(2);
        let seen = seen(vec![state(0, Health::Down, 0)]);
        assert_eq!(verdict(&policy, Some(&seen), SECOND_NS).reason, None);
    }

    #[test]
    fn planned_states_become_their_words() {
        let mut policy = fixture::policy(1, "A");
        let mut judged = |planned| {
            policy.engines[0].state = planned;
            let verdict = verdict(&policy, None, 0);
            let GuardState {
                out,
                draining,
                standby_only,
                ..
            } = verdict.state;
            (out, draining, standby_only, verdict.reason)
        };
        assert_eq!(judged(PlannedState::Active), (false, false, false, None));
        assert_eq!(
            judged(PlannedState::StandbyOnly),
            (false, false, true, None)
        );
        let draining = (false, true, false, Some(OutReason::Draining));
        assert_eq!(judged(PlannedState::Draining), draining);
        assert_eq!(
            judged(PlannedState::Out),
            (true, false, false, Some(OutReason::Planned))
        );
    }

    #[test]
    fn an_unknown_credential_takes_the_engine_out_here() {
        let mut policy = fixture::policy(1, "A");
        policy.engines[0].credential = "gpu-cloud".to_owned();
        let out = verdict(&policy, None, 0);
        assert_eq!(
            (out.state.out, out.reason),
            (true, Some(OutReason::UnknownCredential))
        );
        let known = BTreeMap::from([("gpu-cloud".to_owned(), Credential::default())]);
        assert_eq!(verdicts(&policy, &known, None, 0, 30_000)[0].reason, None);
    }

    #[test]
    fn a_name_that_no_certificate_can_have_takes_the_engine_out_here() {
        let mut policy = fixture::policy(1, "A");
        policy.engines[0].protocol = Protocol::Http2Tls;
        policy.engines[0].sni = "no name".to_owned();
        assert_eq!(
            verdict(&policy, None, 0).reason,
            Some(OutReason::BadServerName)
        );
        policy.engines[0].sni = "engine.example".to_owned();
        assert_eq!(verdict(&policy, None, 0).reason, None);
    }
}
