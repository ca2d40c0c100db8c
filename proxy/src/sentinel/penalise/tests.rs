//! Gathering, against real counters.

use pointsman_shm::policy::ProfilePoint;

use super::*;
use crate::metrics::ShardMetrics;
use crate::sentinel::fixture;

const SECOND_NS: u64 = 1_000_000_000;
const LIFE: Generation = Generation(1);

/// Two engines of one class, and the counters of two shards.
struct World {
    policy: Policy,
    penalties: Penalties,
    shards: Vec<Arc<ShardMetrics>>,
    outlooks: Outlooks,
    access: [Access; 2],
    now_ns: u64,
}

impl World {
    fn new() -> Self {
        let mut policy = fixture::policy(1, "A");
        policy.engines.push(fixture::engine(1, "e1"));
        let mut other = policy.classes[0].eligible[0];
        other.engine = EngineSlot(1);
        other.pair.0 = 1;
        policy.classes[0].eligible.push(other);
        let mut penalties = Penalties::default();
        penalties.adopt(&policy);
        let mut world = Self {
            policy,
            penalties,
            shards: vec![Arc::default(), Arc::default()],
            outlooks: Outlooks::new(),
            access: [Access::Open; 2],
            now_ns: SECOND_NS,
        };
        world.look();
        world
    }

    fn look(&mut self) {
        self.now_ns += SECOND_NS / 10;
        let sources = Sources {
            shards: &self.shards,
            signals: None,
            outlooks: &self.outlooks,
            access: &|at| self.access[at],
            waiting: &|_| 0,
        };
        self.penalties
            .look(&sources, &Rules::default(), self.now_ns);
    }

    fn end(&self, engine: u16, outcome: Outcome, times: usize) {
        for at in 0..times {
            let shard = &self.shards[at % self.shards.len()];
            shard.attempt_ended(EngineSlot(engine), LIFE, outcome);
        }
    }

    fn of(&self, engine: u16) -> f64 {
        self.penalties.of(EngineSlot(engine), LIFE)
    }
}

#[test]
fn failures_of_all_shards_count_together() {
    let mut world = World::new();
    world.end(0, Outcome::Success, 10);
    world.end(1, Outcome::ConnectRefused, 4);
    world.look();
    world.end(0, Outcome::Success, 10);
    world.end(1, Outcome::Stall, 1);
    world.look();
    world.look();
    assert_eq!((world.of(0), world.of(1)), (0.0, 1.0));
    assert!(world.penalties.is_doubtful(EngineSlot(1), LIFE));
    assert_eq!(world.outlooks.load(EngineSlot(1)).penalty(), 1.0);
    assert_eq!(world.outlooks.load(EngineSlot(1)).epoch, 1);
    assert_eq!(world.penalties.page()[1].ejections, 1);
}

#[test]
fn e04_refusals_and_clients_faults_say_nothing() {
    let mut world = World::new();
    for outcome in [
        Outcome::ClientError,
        Outcome::Backpressure,
        Outcome::ClientCancel,
        Outcome::Ours,
    ] {
        world.end(0, Outcome::Success, 10);
        world.end(1, outcome, 100);
        world.look();
        assert_eq!(world.of(1), 0.0, "{outcome:?}");
    }
    // Nor do they interrupt a row of failures, as a success does.
    for outcome in [
        Outcome::ServerError,
        Outcome::ClientError,
        Outcome::ServerError,
    ] {
        world.end(0, Outcome::Success, 10);
        world.end(1, outcome, 2);
        world.look();
    }
    assert_eq!(world.of(1), 0.25, "four failures, no success");
    world.end(1, Outcome::ResetBeforeByte, 1);
    world.look();
    assert_eq!(world.of(1), 1.0);
}

#[test]
fn another_life_of_a_slot_begins_anew() {
    let mut world = World::new();
    world.end(0, Outcome::Success, 10);
    world.end(1, Outcome::ConnectRefused, 9);
    world.look();
    assert_eq!(world.of(1), 1.0);
    let mut policy = world.policy.clone();
    world.penalties.adopt(&policy);
    assert_eq!(world.of(1), 1.0, "the same engine in another policy");
    policy.engines[1].generation = Generation(2);
    world.penalties.adopt(&policy);
    assert_eq!(world.of(1), 0.0);
    assert_eq!(world.penalties.of(EngineSlot(1), Generation(2)), 0.0);
    world.look();
    assert_eq!(world.penalties.page()[1].ejections, 0);
}

#[test]
fn what_is_down_is_ejected_and_where_all_are_nobody_is() {
    let mut world = World::new();
    world.access[1] = Access::Down;
    world.look();
    assert_eq!((world.of(0), world.of(1)), (0.0, 1.0));
    let ejections = |world: &World| -> Vec<u64> {
        let page = world.penalties.page();
        page.iter().map(|engine| engine.ejections).collect()
    };
    assert_eq!(ejections(&world), [0, 1]);
    (0..20).for_each(|_| world.look());
    assert_eq!(ejections(&world), [0, 1], "one outage, one ejection");
    world.access[0] = Access::Down;
    world.look();
    assert_eq!((world.of(0), world.of(1)), (0.0, 0.0));
    // The first that is back is all there is.
    world.access[0] = Access::Open;
    world.look();
    assert_eq!((world.of(0), world.of(1)), (0.0, 0.0));
}

#[test]
fn slow_first_tokens_and_late_waits_are_gathered() {
    let mut world = World::new();
    for _ in 0..40 {
        let fast = world.shards[0].evidence(EngineSlot(0), LIFE);
        fast.request(100_000);
        fast.time(TimeKind::FirstToken, 0.0);
        let slow = world.shards[1].evidence(EngineSlot(1), LIFE);
        slow.request(100_000);
        slow.late();
        world.look();
    }
    assert_eq!(world.of(0), 0.0);
    assert!(world.of(1) >= 0.25);
    let page = world.penalties.page();
    assert_eq!(page[0].first_token_factor, Some(1.0));
    // Work of 1/s arrives at an engine that does 1/s and is planned for half of it.
    assert!(world.outlooks.load(EngineSlot(0)).queue_ms < 1_000);
}

#[test]
fn gaps_are_compared_with_the_profile_at_the_planned_load() {
    let point = |utilisation, tbot_ms| ProfilePoint {
        utilisation,
        ttft_ms: 1.0,
        tbot_ms,
    };
    let profile = [point(0.2, 10.0), point(0.6, 30.0)];
    assert_eq!(gap_ms(&profile, 0.1), 10.0);
    assert_eq!(gap_ms(&profile, 0.4), 20.0);
    assert_eq!(gap_ms(&profile, 2.0), 30.0);
    assert_eq!(gap_ms(&[], 0.5), 0.0);
    let samples = gaps((10, 1_000), (42, 1_000 + 32 * 100_000), 20_000);
    assert_eq!((samples.count, samples.sum), (2.0, 2.0 * 5f64.ln()));
    assert_eq!(gaps((10, 1_000), (10, 1_000), 20_000), Samples::default());
    assert_eq!(gaps((10, 1_000), (11, 2_000), 0), Samples::default());
    // What is a millisecond more of nearly nothing counts for nothing.
    assert_eq!(gaps((0, 0), (16, 16 * 3_000), 5_000).sum, 0.0);
}

/// Of two kinds one is to take 2 ms and one 15, and they do; and so with their tokens.
#[test]
fn engines_that_are_as_quick_as_predicted_are_no_outliers_however_quick_that_is() {
    let mut world = World::new();
    for engine in &mut world.policy.engines {
        engine.profile_assumed = false;
    }
    world.penalties.adopt(&world.policy);
    for _ in 0..300 {
        for (engine, took_us) in [(0, 2_000), (1, 15_000)] {
            let evidence = world.shards[0].evidence(EngineSlot(engine), LIFE);
            let ratio = log_ratio(took_us, took_us as u32, 20_000);
            (0..3).for_each(|_| evidence.time(TimeKind::FirstToken, ratio));
            world.end(engine, Outcome::Success, 3);
        }
        world.look();
        assert_eq!((world.of(0), world.of(1)), (0.0, 0.0));
    }
    let gap = |mean_us: u64| gaps((0, 0), (16, 16 * mean_us), mean_us as u32).sum;
    assert_eq!((gap(1_000), gap(4_000)), (0.0, 0.0));
}

#[test]
fn assumed_profiles_compare_within_a_kind() {
    let mut policy = World::new().policy;
    policy.engines[0].profile_assumed = false;
    policy.engines[1].kind = "l4".to_owned();
    let groups: Vec<u32> = plans(&policy).iter().map(|plan| plan.group).collect();
    assert_eq!(groups, [MEASURED, MEASURED + 2]);
    assert_eq!(classes(&policy), [vec![0, 1]]);
    assert_eq!(plans(&policy)[0].predicted_ns, 100_000_000);
}
