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
    // What is down is mostly planned out for that: its own reason tells more.
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

/// Where health checks leave a class without any engine, they are not believed there, whoever made
/// them: when all fail at once it is more likely who asks that reaches nobody, and requests find out
/// soon enough.
fn keep_the_last(policy: &Policy, verdicts: &mut [Verdict]) {
    let is_said = |verdict: &Verdict| {
        let said = [OutReason::Down, OutReason::ProbeFailed];
        verdict.reason.is_some_and(|reason| said.contains(&reason))
    };
    if !verdicts.iter().any(is_said) {
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
        if is_said(&verdicts[at]) {
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
mod tests;
