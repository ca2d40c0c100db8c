//! An engine that turns slow, with the pool of penalties in the loop.

use std::collections::VecDeque;

use pointsman_shm::signals::bucket_of_us;
use pointsman_solver::model::topology::Topology;
use pointsman_solver::penalty::Pool;
use pointsman_solver::penalty::look::{Look, Part};

use crate::fleet::Fleet;
use crate::plant::{Counts, STEP_S};
use crate::scenarios::stage;
use crate::stage::Stage;

/// What pages told of every engine in these steps.
pub(crate) fn looks(topology: &Topology, new: &VecDeque<Counts>) -> Vec<Look> {
    let length_s = (new.len() as f64 * STEP_S).max(STEP_S);
    let one = |e: usize| {
        let mut look = Look::default();
        for (k, class) in topology.classes.iter().enumerate() {
            let Some(pair) = class.eligible.iter().find(|pair| pair.engine.0 == e) else {
                continue;
            };
            let mut firsts = 0;
            let mut attempts = 0;
            for counts in new {
                attempts += counts.attempts.get(&(k, e)).copied().unwrap_or(0);
                let (count, sum_ms) = counts.firsts.get(&(k, e)).copied().unwrap_or_default();
                if count > 0 {
                    let us = (sum_ms / count as f64 * 1e3) as u64;
                    look.seen.ttft.count += count;
                    look.seen.ttft.sum_us += us * count;
                    look.seen.ttft.buckets[bucket_of_us(us)] += count;
                    firsts += count;
                }
            }
            let seconds = class.mix.engine_seconds(&topology.engines[e].capacity);
            look.load += attempts as f64 * seconds / length_s;
            look.attempts += attempts;
            look.parts.push(Part {
                profile: pair.profile,
                network_ms: 0.0,
                firsts,
                gaps: 0,
            });
        }
        for counts in new {
            look.seen.answered += counts.answered[e].0;
            look.seen.failed += counts.answered[e].1;
        }
        look
    };
    (0..topology.engines.len()).map(one).collect()
}

/// Weights of one engine.
fn own(stage: &Stage, engine: &str) -> Vec<f64> {
    let mut own = Vec::new();
    for f in 0..stage.topology.frontends.len() {
        for class in ["chat", "long"] {
            own.push(stage.weight(f, class, engine));
        }
    }
    own
}

#[test]
fn a_slow_engine_loses_its_share_and_has_it_back_without_overshoot() {
    for lag_s in [1.0, 5.0] {
        let fleet = Fleet {
            demand: 0.7,
            ..Fleet::default()
        };
        let mut stage = stage(fleet, lag_s, 5);
        stage.pool = Some(Pool::restore(&stage.topology, &[], 0));
        stage.run(240.0);
        assert_eq!(stage.penalised, [], "lag {lag_s} s: nobody is slow");
        let engine = stage.engine("b1").0;
        let before = own(&stage, "b1");
        assert!(before.iter().sum::<f64>() > 0.3, "{before:?}");

        stage.plant.engines[engine].times = (5.0, 5.0);
        stage.plant.engines[engine].capacity = 0.2;
        stage.run(60.0);
        let first = stage.penalised.first().expect("found");
        println!("lag {lag_s} s: penalised after {} s", first.0 - 240.0);
        assert!(first.0 <= 240.0 + 30.0, "{first:?}");
        let others = stage.penalised.iter().filter(|(_, e, _)| *e != engine);
        assert_eq!(others.count(), 0, "lag {lag_s} s");
        let lowered = own(&stage, "b1");
        for (now, before) in lowered.iter().zip(&before) {
            assert!(*now <= 0.1 * before + 1e-9, "{before} -> {now}");
        }

        stage.plant.engines[engine].times = (1.0, 1.0);
        stage.plant.engines[engine].capacity = 1.0;
        let mut most = lowered;
        for _ in 0..150 {
            stage.run(2.0);
            for (most, now) in most.iter_mut().zip(own(&stage, "b1")) {
                *most = f64::max(*most, now);
            }
        }
        let last = stage.penalised.last().expect("it was").0;
        println!("lag {lag_s} s: none after {} s of health", last - 300.0);
        assert!(last <= 300.0 + 180.0, "{last}");
        let after = own(&stage, "b1");
        println!("lag {lag_s} s: {before:.3?}, {most:.3?} at most, {after:.3?}");
        for ((most, before), after) in most.iter().zip(&before).zip(&after) {
            assert!(*most <= before + 0.1, "{before}, then {most}");
            assert!(*after >= before - 0.15, "{before}, then {after}");
        }
        let others = stage.penalised.iter().filter(|(_, e, _)| *e != engine);
        assert_eq!(others.count(), 0, "lag {lag_s} s");
    }
}
