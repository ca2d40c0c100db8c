//! Verdicts on engines, from what is heard of them and what this host found.

use pointsman_shm::id::{EngineSlot, Generation};

use super::*;
use crate::sentinel::fixture;

const SECOND_NS: u64 = 1_000_000_000;

fn state(slot: u16, health: Health, health_age_ms: u32) -> EngineState {
    EngineState {
        penalty: 0.25,
        health_age_ms,
        ..fixture::engine_state(slot, health)
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

/// Two engines for one class.
fn two() -> Policy {
    let mut policy = fixture::policy(1, "A");
    policy.engines.push(fixture::engine(1, "e1"));
    let mut other = policy.classes[0].eligible[0];
    (other.engine, other.pair.0) = (EngineSlot(1), 1);
    policy.classes[0].eligible.push(other);
    policy
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
    let policy = two();
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
    let mut policy = two();
    use Health::{Down, Unknown, Up};
    let mut reason = |planned, health, own: Health| {
        policy.engines[0].state = planned;
        let seen = seen(vec![state(0, health, 0)]);
        let own = Own {
            health: &|engine| match engine.slot {
                EngineSlot(0) => own,
                _ => Unknown,
            },
            ..NOTHING
        };
        let heard = heard(Some(&seen), SECOND_NS);
        verdicts(&policy, &BTreeMap::new(), &heard, &own)[0].reason
    };
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
fn where_the_control_plane_reaches_no_engine_of_a_class_none_is_left_out_there() {
    let mut policy = two();
    let mut reasons = |health: [Health; 2], planned| {
        policy.engines[1].state = planned;
        let states = (0..).zip(health).map(|(slot, one)| state(slot, one, 0));
        let seen = seen(states.collect());
        let heard = heard(Some(&seen), SECOND_NS);
        let verdicts = verdicts(&policy, &BTreeMap::new(), &heard, &NOTHING);
        let out: Vec<bool> = verdicts.iter().map(|one| one.state.out).collect();
        let reasons: Vec<Option<OutReason>> = verdicts.iter().map(|one| one.reason).collect();
        (out, reasons)
    };
    use Health::{Down, Up};
    use PlannedState::{Active, Draining};
    let down = Some(OutReason::Down);
    let one = (vec![true, false], vec![down, None]);
    assert_eq!(reasons([Down, Up], Active), one);
    let none = (vec![false; 2], vec![None; 2]);
    assert_eq!(reasons([Down, Down], Active), none);
    // What is drained is no engine that is left.
    let drains = (vec![false; 2], vec![None, Some(OutReason::Draining)]);
    assert_eq!(reasons([Down, Up], Draining), drains);
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
    let policy = two();
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
    let policy = two();
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
