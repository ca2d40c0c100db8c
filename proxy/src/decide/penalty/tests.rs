//! Whole fleets in virtual time.

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use super::world::{Arrival, Engine, Fault, Plan, SECOND_NS, Serves, World};
use super::*;

const SLOW: Cause = Cause::Slow(Signal::FirstToken);

/// Requests of an hour: when they came and how long their prompts were.
fn mooncake(seed: u64, cached: f64) -> Vec<Arrival> {
    let numbers = |text: &'static str| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .flat_map(str::split_whitespace)
            .map(|number| number.parse::<u64>().unwrap())
    };
    let mut prompts = numbers(include_str!("../../../../tests/data/prompts/mooncake.txt"));
    let counts = numbers(include_str!("../../../../tests/data/arrivals/mooncake.txt"));
    let mut random = SmallRng::seed_from_u64(seed);
    let mut arrivals = Vec::new();
    for (bin, count) in (0..).zip(counts) {
        let mut at: Vec<u64> = (0..count)
            .map(|_| bin * 2 * SECOND_NS + random.random_range(0..2 * SECOND_NS))
            .collect();
        at.sort_unstable();
        for at_ns in at {
            arrivals.push(Arrival {
                at_ns,
                tokens: prompts.next().unwrap() as f64 * 128.0,
                cached: cached * random.random::<f64>(),
            });
        }
    }
    assert_eq!((arrivals.len(), prompts.next()), (12_031, None));
    arrivals
}

/// Requests of the mean length, a Poisson stream.
fn poisson(rps: f64, tokens: f64, until_s: f64, seed: u64) -> Vec<Arrival> {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut at_s = 0.0;
    let mut next = || {
        at_s -= (1.0 - random.random::<f64>()).ln() / rps;
        Arrival {
            at_ns: (at_s * 1e9) as u64,
            tokens,
            cached: 0.0,
        }
    };
    let until_ns = (until_s * 1e9) as u64;
    std::iter::from_fn(|| Some(next()))
        .take_while(|arrival| arrival.at_ns < until_ns)
        .collect()
}

/// Whether all attempts fail, as their share.
fn fails(all: bool) -> f64 {
    f64::from(u8::from(all))
}

fn healthy(_engine: usize, _now_s: f64) -> (f64, f64) {
    (1.0, 0.0)
}

/// Two engines of one kind and two of half its speed, used at 0.9 by the trace.
fn busy_hour(seed: u64, cached: f64) -> World {
    let arrivals = mooncake(seed, cached);
    let effective: f64 = arrivals.iter().map(|a| a.tokens * (1.0 - a.cached)).sum();
    let tokens: f64 = arrivals.iter().map(|a| a.tokens).sum();
    let mean_tokens = tokens / arrivals.len() as f64;
    // What an engine does of prompts whose cached parts cost nothing.
    let hit = tokens / effective;
    let speed = effective / 3_540.0 / 0.9 / 3.0;
    let engine = |part: f64| {
        let capacity = speed * part * hit;
        let idle_ms = mean_tokens / capacity * 1e3;
        Engine::new(speed * part, Serves::InTurn, capacity, idle_ms)
    };
    let plan = Plan {
        mean_tokens,
        utilisation: 0.9,
        congestion: 8.0,
    };
    let engines = vec![engine(1.0), engine(1.0), engine(0.5), engine(0.5)];
    let mut world = World::new(engines, plan, healthy, seed);
    world.run(arrivals.into_iter(), 3_700.0);
    world
}

/// Seeds to try: as many as `POINTSMAN_PENALTY_SEEDS` says, else a few.
fn seeds(few: u64) -> std::ops::RangeInclusive<u64> {
    let given = std::env::var("POINTSMAN_PENALTY_SEEDS").ok();
    1..=given.map_or(few, |seeds| seeds.parse().expect("a number of seeds"))
}

#[test]
fn an_hour_at_nine_tenths_of_capacity_ejects_nobody() {
    for seed in seeds(3) {
        // The second: of each prompt some part, up to a half, is cached, which nobody foresees.
        for cached in [0.0, 0.5] {
            let world = busy_hour(seed, cached);
            let (ejections, actions) = (world.ejections(), world.actions);
            assert_eq!(ejections, [], "seed {seed}, cached {cached}: {actions:?}");
        }
    }
}

/// Four engines with this time to a first token, the first of them five times slower from second
/// 60 on.
fn brownout(base_s: f64, rps: f64, serves: Serves, seed: u64) -> World {
    let slow: Fault = |engine, now_s| {
        let is_slow = engine == 0 && now_s >= 60.0;
        (if is_slow { 5.0 } else { 1.0 }, 0.0)
    };
    let tokens = 1_000.0;
    // Half of what it can do is used, whichever way it serves.
    let capacity = tokens * rps / 4.0 / 0.5;
    let engine = || Engine::new(tokens / base_s, serves, capacity, base_s * 1e3);
    let plan = Plan {
        mean_tokens: tokens,
        utilisation: 0.5,
        congestion: 0.1,
    };
    let mut world = World::new((0..4).map(|_| engine()).collect(), plan, slow, seed);
    world.run(poisson(rps, tokens, 120.0, seed).into_iter(), 120.0);
    world
}

#[test]
fn an_engine_five_times_slower_is_penalised_in_time_and_soon_gets_next_to_nothing() {
    for seed in 1..=5 {
        for (base_s, rps, serves) in [
            (0.05, 40.0, Serves::AtOnce),
            (0.05, 40.0, Serves::InTurn),
            (2.0, 16.0, Serves::AtOnce),
            (2.0, 40.0, Serves::AtOnce),
        ] {
            let world = brownout(base_s, rps, serves, seed);
            let within_s = 60.0 + 2.0 + 3.0 * base_s * 1.1;
            let what = format!("seed {seed}, {base_s} s, {rps}/s, {serves:?}");
            let (at_s, engine, action) = world.actions[0];
            assert_eq!(
                (engine, action),
                (0, Action::Penalised(SLOW)),
                "{what}: {at_s}"
            );
            assert!((60.0..=within_s).contains(&at_s), "{what}: {at_s}");
            let others = world.actions.iter().filter(|(_, engine, _)| *engine != 0);
            assert_eq!(others.count(), 0, "{what}: {:?}", world.actions);
            let after_s = within_s.ceil() as u64 + 10;
            let share = world.share(0, after_s..after_s + 20);
            assert!(share < 0.01, "{what}: {share}");
        }
    }
}

/// Engines of 50 ms and 10 requests a second each; the fault is what befalls them.
fn fleet(count: usize, fault: Fault, until_s: f64, seed: u64) -> World {
    let tokens = 1_000.0;
    let engine = || Engine::new(20_000.0, Serves::AtOnce, 20_000.0, 50.0);
    let plan = Plan {
        mean_tokens: tokens,
        utilisation: 0.5,
        congestion: 0.1,
    };
    let mut world = World::new((0..count).map(|_| engine()).collect(), plan, fault, seed);
    let rps = 10.0 * count as f64;
    world.run(poisson(rps, tokens, until_s, seed).into_iter(), until_s);
    world
}

#[test]
fn flapping_ejects_no_shorter_than_the_time_before() {
    let flapping: Fault = |engine, now_s| {
        let is_down = engine == 1 && now_s % 15.0 < 5.0;
        (1.0, fails(is_down))
    };
    for seed in 1..=5 {
        let world = fleet(4, flapping, 180.0, seed);
        let lengths: Vec<u64> = world.ejections().iter().map(|(_, _, s)| *s).collect();
        assert!(lengths.len() >= 4, "seed {seed}: {lengths:?}");
        assert!(lengths.is_sorted(), "seed {seed}: {lengths:?}");
        assert_eq!(lengths[..4], [5, 10, 20, 40], "seed {seed}");
        assert!(world.ejections().iter().all(|(_, engine, _)| *engine == 1));
        // Attempts that failed, of 7,200 requests: the first of them find it down.
        assert!(world.failed <= 36, "seed {seed}: {}", world.failed);
    }
}

#[test]
fn a_cold_return_rises_over_ten_seconds_without_overshoot() {
    let restarts: Fault =
        |engine, now_s| (1.0, fails(engine == 0 && (30.0..=33.0).contains(&now_s)));
    for seed in 1..=5 {
        let world = fleet(4, restarts, 90.0, seed);
        let at = |wanted: fn(&Action) -> bool| {
            let found = world.actions.iter().find(|(_, _, action)| wanted(action));
            found
                .unwrap_or_else(|| panic!("seed {seed}: {:?}", world.actions))
                .0
        };
        let tried_s = at(|action| matches!(action, Action::Tried));
        let cleared_s = at(|action| matches!(action, Action::Cleared));
        assert!(
            cleared_s - tried_s >= 12.0,
            "seed {seed}: {tried_s} {cleared_s}"
        );
        let share = |from: f64, to: f64| {
            let from = (from as u64).min(85);
            world.share(0, from..(to as u64).max(from + 1))
        };
        let third = (cleared_s - tried_s) / 3.0;
        let shares = [0.0, third, 2.0 * third].map(|s| share(tried_s + s, tried_s + s + third));
        assert!(shares.is_sorted(), "seed {seed}: {shares:?}");
        assert!(
            shares[0] < 0.08 && shares[2] < 0.27,
            "seed {seed}: {shares:?}"
        );
        let after = share(cleared_s + 1.0, 90.0);
        assert!((0.2..0.3).contains(&after), "seed {seed}: {after}");
    }
}

#[test]
fn where_everything_looks_bad_nobody_is_penalised() {
    let all_slow: Fault = |_, now_s| (if now_s < 60.0 { 1.0 } else { 5.0 }, 0.0);
    let world = fleet(4, all_slow, 120.0, 1);
    assert_eq!(
        world.ejections(),
        [],
        "what slows all down is nobody's fault"
    );
    let given: Vec<f64> = world.standings.iter().map(Standing::penalty).collect();
    assert_eq!(given, [0.0; 4], "{:?}", world.actions);
    let all_fail: Fault = |_, now_s| (1.0, fails(now_s >= 60.0));
    let world = fleet(4, all_fail, 120.0, 1);
    let given: Vec<f64> = world.standings.iter().map(Standing::penalty).collect();
    assert_eq!(given, [0.0; 4], "{:?}", world.actions);
}

#[test]
fn after_an_outage_of_all_engines_all_are_back_within_seconds() {
    let outage: Fault = |_, now_s| (1.0, fails((30.0..60.0).contains(&now_s)));
    for seed in seeds(5) {
        let world = fleet(4, outage, 75.0, seed);
        let stages: Vec<Stage> = world.standings.iter().map(Standing::stage).collect();
        assert_eq!(
            stages,
            [Stage::Clear; 4],
            "seed {seed}: {:?}",
            world.actions
        );
        for engine in 0..4 {
            let share = world.share(engine, 65..75);
            assert!((0.18..0.32).contains(&share), "seed {seed}: {share}");
        }
    }
}

#[test]
fn of_two_engines_the_bad_one_goes_and_never_both() {
    let slow: Fault = |engine, now_s| {
        let is_slow = engine == 0 && now_s >= 30.0;
        (if is_slow { 6.0 } else { 1.0 }, 0.0)
    };
    let world = fleet(2, slow, 60.0, 2);
    assert!(world.actions.iter().all(|(_, engine, _)| *engine == 0));
    let share = world.share(0, 45..60);
    assert!(share < 0.01, "{share} {:?}", world.actions);
    let dead: Fault = |engine, now_s| (1.0, fails(engine == 0 && now_s >= 30.0));
    let world = fleet(2, dead, 60.0, 2);
    assert!(world.actions.iter().all(|(_, engine, _)| *engine == 0));
    assert_eq!(world.share(0, 31..60), 0.0);
}

#[test]
fn a_lone_engine_is_never_penalised() {
    let bad: Fault = |_, now_s| (if now_s < 30.0 { 1.0 } else { 9.0 }, fails(now_s >= 50.0));
    let world = fleet(1, bad, 60.0, 3);
    assert_eq!(world.standings[0].penalty(), 0.0);
}

#[test]
fn failures_that_all_engines_share_penalise_nobody() {
    let storm: Fault = |_, now_s| {
        let is_storm = (30.0..90.0).contains(&now_s);
        (1.0, if is_storm { 0.3 } else { 0.0 })
    };
    for seed in 1..=5 {
        let world = fleet(4, storm, 120.0, seed);
        assert_eq!(world.ejections(), [], "seed {seed}: {:?}", world.actions);
        for engine in 0..4 {
            let share = world.share(engine, 30..90);
            assert!((0.2..0.3).contains(&share), "seed {seed}: {share}");
        }
    }
    // One that alone fails as often is found.
    let one: Fault = |engine, now_s| {
        (
            1.0,
            if engine == 2 && now_s >= 30.0 {
                0.3
            } else {
                0.0
            },
        )
    };
    let world = fleet(4, one, 60.0, 1);
    assert!(world.actions.iter().all(|(_, engine, _)| *engine == 2));
    assert!(world.actions[0].0 < 35.0, "{:?}", world.actions);
}
