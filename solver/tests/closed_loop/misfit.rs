//! Engines that do not keep to their profiles: found, named, and no worse than left alone.

use pointsman_solver::history::record::{Start, pack_state};
use pointsman_solver::tick::tick;

use crate::fleet::{CURVE, Fleet};
use crate::plant::Plant;
use crate::scenarios::{seeds, stage};
use crate::stage::Stage;

/// What the fleet is given at `demand = 1`, over its capacity.
const USUAL_LOAD: f64 = 0.71;

/// The latency that 99 of 100 answers stay under, milliseconds.
fn p99_ms(plant: &mut Plant) -> f64 {
    plant.latencies.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: u64 = plant.latencies.iter().map(|(_, count)| count).sum();
    let mut left = all - all / 100;
    for (latency_ms, count) in &plant.latencies {
        if *count >= left {
            return *latency_ms;
        }
        left -= count;
    }
    unreachable!("more than all answers")
}

/// While an engine is a misfit, no weight of it rises.
fn assert_gains_nothing(stage: &Stage, engine: &str) {
    let at = stage.engine(engine);
    let classes = || stage.topology.classes.iter();
    let is_own = classes().flat_map(|c| c.eligible.iter().map(|pair| pair.engine == at));
    let is_own: Vec<bool> = is_own.collect();
    let mut last: Option<(f64, Vec<f64>)> = None;
    let mut compared = 0;
    for (now_s, weights) in &stage.run.points {
        let own = weights.iter().zip(is_own.iter().cycle());
        let own: Vec<f64> = own.filter(|(_, own)| **own).map(|(w, _)| *w).collect();
        let is_misfit = stage.misfit_s.iter().any(|(s, e)| s == now_s && *e == at.0);
        if let Some((_, before)) = last.filter(|(s, _)| is_misfit && *s == now_s - 2.0) {
            let mut pairs = own.iter().zip(&before);
            let stays = pairs.all(|(now, before)| *now <= before + 1e-9);
            assert!(stays, "{now_s} s: {before:?} {own:?}");
            compared += 1;
        }
        last = Some((*now_s, own));
    }
    assert!(compared > 100, "{compared}");
}

/// Engine a1 can do half of what its profile says, which begins to tell beyond that half.
fn wrong_by_two(lag_s: f64, frozen: bool) -> Stage {
    let fleet = Fleet {
        demand: 0.6,
        ..Fleet::default()
    };
    let mut stage = stage(fleet, lag_s, 3);
    let engine = stage.engine("a1");
    stage.plant.engines[engine.0].capacity = 0.5;
    stage.run(100.0);
    assert_eq!(stage.misfit_s, [], "within the half it does what it should");
    // Half as many requests again: beyond saturation.
    for clients in &mut stage.plant.clients {
        clients.grow(0.5);
    }
    stage.run(4.0);
    stage.frozen = frozen;
    stage.plant.latencies.clear();
    stage.run(700.0);
    stage
}

#[test]
fn a_profile_wrong_by_two_beyond_saturation_is_found_and_does_no_harm() {
    for lag_s in [1.0, 5.0] {
        let mut own = wrong_by_two(lag_s, false);
        let mut still = wrong_by_two(lag_s, true);
        let first = own.misfit_s.first().copied();
        let (own_ms, still_ms) = (p99_ms(&mut own.plant), p99_ms(&mut still.plant));
        println!("lag {lag_s} s: found {first:?} of 100, p99 {own_ms:.0} ms, static {still_ms:.0}");
        let (found_s, engine) = first.expect("found");
        assert_eq!(engine, own.engine("a1").0);
        assert!(found_s <= 190.0, "found after {} s", found_s - 100.0);
        assert!(
            own.misfit_s.iter().all(|(_, e)| *e == engine),
            "and no other"
        );
        assert!(own_ms.round() <= still_ms.round(), "{own_ms} {still_ms}");
        assert_gains_nothing(&own, "a1");
        let one = own.outcome.as_ref().expect("passed").corrected[engine];
        // What is safe is within the half that it can do, whether it was seen full or not.
        let safe = one.factor * one.safe;
        assert!((0.4..0.55).contains(&safe), "{one:?}");
    }
}

/// An hour through all loads; an hour at each where more seeds are asked for.
#[test]
fn what_keeps_to_its_profile_is_never_a_misfit() {
    const LOADS: [f64; 5] = [0.2, 0.4, 0.6, 0.8, 1.0];
    const HOUR_S: f64 = 3_600.0;
    let each_s = if seeds() > 1 {
        HOUR_S
    } else {
        HOUR_S / LOADS.len() as f64
    };
    let fleet = Fleet {
        demand: LOADS[0] / USUAL_LOAD,
        ..Fleet::default()
    };
    let mut stage = stage(fleet, 5.0, 11);
    let mut last = 0.0;
    let mut before = LOADS[0];
    for load in LOADS {
        for clients in &mut stage.plant.clients {
            clients.grow(load / before - 1.0);
        }
        before = load;
        stage.run(each_s);
        let outcome = stage.outcome.as_ref().expect("passed");
        let factors: Vec<f64> = outcome.corrected.iter().map(|one| one.factor).collect();
        let plan = outcome.plan.as_ref().expect("planned");
        let used = plan.engines.iter().map(|e| e.utilisation);
        let most = used.fold(0.0, f64::max);
        println!("load {load}: fullest {most:.2}, factors {factors:.2?}");
        assert_eq!(stage.misfit_s, [], "load {load}");
        let near = |f: &f64| (0.9..1.1).contains(f);
        assert!(factors.iter().all(near), "{factors:?}");
        assert!(most > last, "{last} {most}");
        last = most - 0.05;
    }
}

#[test]
fn where_most_of_a_class_does_not_fit_its_weights_are_held() {
    let fleet = Fleet {
        demand: 1.2,
        ..Fleet::default()
    };
    let mut stage = stage(fleet, 1.0, 5);
    stage.run(60.0);
    for engine in &mut stage.plant.engines {
        engine.times = (2.0, 2.0);
    }
    stage.run(150.0);
    let (at, gate, detail) = stage.held.first().cloned().expect("held");
    println!("{at} s: {gate}: {detail}");
    assert_eq!(gate, "profile_misfit");
    assert!(detail.contains("class \"chat\""), "{detail}");
    assert!(at <= 60.0 + 90.0, "{at}");
    let before = stage.weights();
    let from = stage.now_s;
    for clients in &mut stage.plant.clients[..1] {
        clients.grow(0.3);
    }
    stage.run(60.0);
    assert_eq!(stage.run.part(from, f64::MAX).moved(&before), 0.0);
    // They keep to it again, and weights are the plan's again.
    for engine in &mut stage.plant.engines {
        engine.times = (1.0, 1.0);
    }
    stage.run(200.0);
    let outcome = stage.outcome.as_ref().expect("passed");
    assert_eq!(outcome.held, []);
    assert_ne!(stage.weights(), before);
}

#[test]
fn a_run_is_found_again_from_its_state() {
    let mut stage = stage(Fleet::default(), 1.0, 9);
    let engine = stage.engine("a1");
    stage.plant.engines[engine.0].capacity = 0.6;
    stage.run(150.0);
    let bytes = pack_state(&stage.state);
    let start = Start {
        file: String::new(),
        text: String::new(),
        state: bytes,
    };
    let state = start.state().expect("unpacks");
    stage.keep = true;
    stage.run(60.0);
    let mut again = state;
    for (given, policies) in &stage.kept {
        let outcome = tick(&stage.topology, &mut again, given);
        let made: Vec<Vec<u8>> = outcome
            .candidates
            .iter()
            .map(|c| c.policy.encode())
            .collect();
        assert_eq!(made, *policies);
        for candidate in outcome.candidates {
            if candidate.publish.is_some() {
                again.confirm(candidate.frontend, candidate.policy, given.now_ns);
            }
        }
    }
    assert_eq!(stage.kept.len(), 30);
    assert_eq!(pack_state(&again), pack_state(&stage.state));
}

/// The curve that the plant has and the profile that the solver has are the same numbers, read by
/// code of their own.
#[test]
fn the_plant_keeps_to_the_profile_that_the_solver_reads() {
    let topology = Fleet::default().topology();
    let profile = &topology.profiles[0];
    for (utilisation, ttft_ms, tbot_ms) in CURVE {
        assert_eq!(profile.at(utilisation), (ttft_ms, tbot_ms));
    }
}
