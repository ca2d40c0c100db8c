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
use crate::decide::penalty::Access;
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

/// What the control plane told, and how long that counts.
pub(super) struct Heard<'a> {
    pub(super) seen: Option<&'a Seen>,
    /// Now, on the monotonic clock.
    pub(super) now_ns: u64,
    /// A health check that is older says nothing, milliseconds.
    pub(super) max_age_ms: u64,
}

/// What this host found by itself.
pub(super) struct Own<'a> {
    /// Penalty of an engine, 0 to 1.
    pub(super) penalty: &'a dyn Fn(&Engine) -> f64,
    /// What own health checks say; unknown where nothing recent.
    pub(super) health: &'a dyn Fn(&Engine) -> Health,
    /// They count where the control plane's are older than this, milliseconds.
    pub(super) after_ms: u64,
}

/// The verdict on each engine of `policy`, in its order.
#[must_use]
pub(super) fn verdicts(
    policy: &Policy,
    credentials: &BTreeMap<String, Credential>,
    heard: &Heard<'_>,
    own: &Own<'_>,
) -> Vec<Verdict> {
    let verdict = |engine: &Engine| judge(engine, heard, own, unusable(engine, credentials));
    let mut verdicts: Vec<Verdict> = policy.engines.iter().map(verdict).collect();
    keep_the_last(policy, &mut verdicts);
    verdicts
}

fn judge(
    engine: &Engine,
    heard: &Heard<'_>,
    own: &Own<'_>,
    unusable: Option<OutReason>,
) -> Verdict {
    let state = heard
        .seen
        .and_then(|seen| current_state(engine, seen, heard.now_ns, heard.max_age_ms));
    let drains = (engine.state == PlannedState::Draining).then_some(OutReason::Draining);
    let planned = (engine.state == PlannedState::Out).then_some(OutReason::Planned);
    let is_recent = |(_, age_ms): &(&EngineState, u64)| *age_ms <= own.after_ms;
    let health = match state.filter(is_recent) {
        Some((state, _)) => (state.health == Health::Down).then_some(OutReason::Down),
        // Whoever asked last knows best.
        None => match ((own.health)(engine), state) {
            (Health::Down, _) => Some(OutReason::ProbeFailed),
            (Health::Unknown, Some((state, _))) if state.health == Health::Down => {
                Some(OutReason::Down)
            }
            (Health::Up | Health::Unknown, _) => None,
        },
    };
    let found = (own.penalty)(engine);
    let penalty = state.map_or(found, |(state, _)| state.penalty.max(found));
    let ejected = ejected(penalty);
    // What is down is mostly planned out for that: its own reason tells more. What only own checks say
    // is taken back where nobody else is left, and what is planned is not.
    let down = health.filter(|reason| *reason == OutReason::Down);
    let reason = unusable.or(drains).or(down).or(planned);
    let reason = reason.or(health).or(ejected);
    let draining = reason == Some(OutReason::Draining);
    Verdict {
        state: GuardState {
            // The whole of a penalty refuses every key by itself, but for what the plan has taken.
            out: reason.is_some_and(|reason| reason != OutReason::Ejected) && !draining,
            draining,
            standby_only: engine.state == PlannedState::StandbyOnly,
            penalty,
            ..GuardState::clear(engine.generation)
        },
        reason,
    }
}

/// The reason of an engine from which a penalty takes all.
fn ejected(penalty: f64) -> Option<OutReason> {
    (penalty >= 1.0).then_some(OutReason::Ejected)
}

/// How far an engine can be used, penalties aside: `reason` is why it takes nothing if it does, `own`
/// what own health checks say.
#[must_use]
pub(super) fn access(reason: Option<OutReason>, own: Health) -> Access {
    match reason {
        Some(OutReason::Down | OutReason::ProbeFailed) => Access::Down,
        Some(
            OutReason::UnknownCredential
            | OutReason::BadServerName
            | OutReason::Draining
            | OutReason::Planned,
        ) => Access::Closed,
        // An engine is not closed for being ejected: that would keep it out for ever.
        Some(OutReason::Ejected) | None if own == Health::Down => Access::Doubtful,
        Some(OutReason::Ejected) | None => Access::Open,
    }
}

/// Where own health checks leave a class without any engine, they are not believed there: when all
/// fail at once it is more likely this host that reaches nobody, and requests find out soon enough.
fn keep_the_last(policy: &Policy, verdicts: &mut [Verdict]) {
    let failed = Some(OutReason::ProbeFailed);
    if !verdicts.iter().any(|verdict| verdict.reason == failed) {
        return;
    }
    let position = |slot| {
        let engines = &policy.engines;
        engines
            .binary_search_by_key(&slot, |engine| engine.slot)
            .ok()
    };
    let mut kept = Vec::new();
    for class in &policy.classes {
        let members = class.eligible.iter().filter_map(|e| position(e.engine));
        let members: Vec<usize> = members.collect();
        let takes = |&at: &usize| {
            let state = &verdicts[at].state;
            !state.out && !state.draining
        };
        if !members.iter().any(takes) {
            kept.extend(members);
        }
    }
    for at in kept {
        if verdicts[at].reason == failed {
            verdicts[at].reason = ejected(verdicts[at].state.penalty);
            verdicts[at].state.out = false;
        }
    }
}

impl Seen {
    /// Age of what is known of an engine's health; none for never.
    #[must_use]
    pub(super) fn health_age_ms(&self, engine: &Engine, now_ns: u64) -> Option<u64> {
        let state = self.state_of(engine)?;
        let known = (state.health_age_ms < u32::MAX).then_some(state.health_age_ms)?;
        Some(self.age_ms(now_ns) + u64::from(known))
    }

    /// The state of an engine whose load was seen lately.
    #[must_use]
    pub(super) fn load_of(&self, engine: &Engine, now_ns: u64) -> Option<&EngineState> {
        let state = self.state_of(engine)?;
        let age_ms = self.age_ms(now_ns) + u64::from(state.load_age_ms);
        (age_ms <= LOAD_MAX_AGE_MS).then_some(state)
    }

    /// The engine's state, if it is about this life of the slot.
    fn state_of(&self, engine: &Engine) -> Option<&EngineState> {
        let engines = &self.states.engines;
        let at = engines.binary_search_by_key(&engine.slot, |state| state.slot);
        let state = &engines[at.ok()?];
        (state.generation == engine.generation).then_some(state)
    }

    fn age_ms(&self, now_ns: u64) -> u64 {
        let age_ns = now_ns.saturating_sub(self.at_ns);
        age_ns.saturating_add(self.age_ns) / 1_000_000
    }
}

/// Queues that were seen longer ago say nothing, milliseconds.
const LOAD_MAX_AGE_MS: u64 = 3_000;

/// The engine's state and the age of its health, if that is not too old to count.
fn current_state<'a>(
    engine: &Engine,
    seen: &'a Seen,
    now_ns: u64,
    max_age_ms: u64,
) -> Option<(&'a EngineState, u64)> {
    let state = seen.state_of(engine)?;
    let age_ms = seen.age_ms(now_ns) + u64::from(state.health_age_ms);
    (age_ms <= max_age_ms).then_some((state, age_ms))
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

    const NOTHING: Own<'static> = Own {
        penalty: &|_| 0.0,
        health: &|_| Health::Unknown,
        after_ms: 5_000,
    };

    fn heard(seen: Option<&Seen>, now_ns: u64) -> Heard<'_> {
        Heard {
            seen,
            now_ns,
            max_age_ms: 30_000,
        }
    }

    fn verdict(policy: &Policy, seen: Option<&Seen>, now_ns: u64) -> Verdict {
        verdicts(policy, &BTreeMap::new(), &heard(seen, now_ns), &NOTHING)[0]
    }

    #[test]
    fn own_checks_count_where_the_control_planes_word_is_old() {
        let mut policy = fixture::policy(1, "A");
        policy.engines.push(fixture::engine(1, "e1"));
        let mut other = policy.classes[0].eligible[0];
        other.engine = EngineSlot(1);
        other.pair.0 = 1;
        policy.classes[0].eligible.push(other);
        let reason = |health: Health, own: Health, age_ms: u32| {
            let seen = seen(vec![state(0, health, age_ms)]);
            let health = |engine: &Engine| match engine.slot {
                EngineSlot(0) => own,
                _ => Health::Unknown,
            };
            let own = Own {
                health: &health,
                ..NOTHING
            };
            let heard = heard(Some(&seen), SECOND_NS);
            verdicts(&policy, &BTreeMap::new(), &heard, &own)[0].reason
        };
        use Health::{Down, Unknown, Up};
        assert_eq!(reason(Up, Down, 5_000), None);
        assert_eq!(reason(Up, Down, 5_001), Some(OutReason::ProbeFailed));
        assert_eq!(reason(Down, Up, 5_000), Some(OutReason::Down));
        assert_eq!(reason(Down, Up, 5_001), None);
        assert_eq!(reason(Down, Unknown, 5_001), Some(OutReason::Down));
        assert_eq!(reason(Up, Unknown, 5_001), None);
        assert_eq!(reason(Up, Down, u32::MAX), Some(OutReason::ProbeFailed));
    }

    #[test]
    fn where_own_checks_of_all_engines_fail_none_is_left_out() {
        let policy = fixture::policy(1, "A");
        let own = Own {
            health: &|_| Health::Down,
            ..NOTHING
        };
        let verdict = verdicts(&policy, &BTreeMap::new(), &heard(None, SECOND_NS), &own)[0];
        assert_eq!((verdict.state.out, verdict.reason), (false, None));
    }

    #[test]
    fn what_is_down_and_planned_out_for_it_is_down_and_what_drains_only_drains() {
        let mut policy = fixture::policy(1, "A");
        let mut reason = |planned, health, own: Health| {
            policy.engines[0].state = planned;
            let seen = seen(vec![state(0, health, 0)]);
            let own = Own {
                health: &|_| own,
                ..NOTHING
            };
            let heard = heard(Some(&seen), SECOND_NS);
            verdicts(&policy, &BTreeMap::new(), &heard, &own)[0].reason
        };
        use Health::{Down, Unknown, Up};
        use PlannedState::{Active, Draining, Out};
        assert_eq!(reason(Out, Down, Unknown), Some(OutReason::Down));
        assert_eq!(reason(Out, Up, Unknown), Some(OutReason::Planned));
        assert_eq!(reason(Out, Up, Down), Some(OutReason::Planned));
        assert_eq!(reason(Draining, Down, Unknown), Some(OutReason::Draining));
        let all = [
            (Some(OutReason::Down), Up, Access::Down),
            (Some(OutReason::ProbeFailed), Down, Access::Down),
            (Some(OutReason::Planned), Down, Access::Closed),
            (Some(OutReason::Draining), Up, Access::Closed),
            (Some(OutReason::Ejected), Up, Access::Open),
            (Some(OutReason::Ejected), Down, Access::Doubtful),
            (None, Down, Access::Doubtful),
            (None, Unknown, Access::Open),
        ];
        for (reason, own, expected) in all {
            assert_eq!(access(reason, own), expected, "{reason:?}, {own:?}");
        }
        assert_eq!(reason(Active, Down, Unknown), Some(OutReason::Down));
    }

    #[test]
    fn the_larger_of_own_and_pooled_penalty_counts_and_the_whole_is_told() {
        let policy = fixture::policy(1, "A");
        let seen = seen(vec![state(0, Health::Up, 0)]);
        let penalty = |found: f64| {
            let own = Own {
                penalty: &move |_| found,
                ..NOTHING
            };
            let heard = heard(Some(&seen), SECOND_NS);
            let verdict = verdicts(&policy, &BTreeMap::new(), &heard, &own)[0];
            (verdict.state.penalty, verdict.state.out, verdict.reason)
        };
        assert_eq!(penalty(0.1), (0.25, false, None));
        assert_eq!(penalty(0.75), (0.75, false, None));
        assert_eq!(penalty(1.0), (1.0, false, Some(OutReason::Ejected)));
    }

    #[test]
    fn ages_are_of_the_engine_and_only_recent_queues_count() {
        let policy = fixture::policy(1, "A");
        let engine = &policy.engines[0];
        let mut seen = seen(vec![state(0, Health::Up, 700)]);
        assert_eq!(seen.health_age_ms(engine, 2 * SECOND_NS), Some(1_700));
        assert_eq!(seen.load_of(engine, 2 * SECOND_NS), None, "never seen");
        seen.states.engines[0].load_age_ms = 500;
        assert!(seen.load_of(engine, 3 * SECOND_NS).is_some());
        assert!(seen.load_of(engine, 4 * SECOND_NS).is_none());
        seen.states.engines[0].health_age_ms = u32::MAX;
        assert_eq!(seen.health_age_ms(engine, 2 * SECOND_NS), None);
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
        let verdicts = verdicts(&policy, &known, &heard(None, 0), &NOTHING);
        assert_eq!(verdicts[0].reason, None);
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
