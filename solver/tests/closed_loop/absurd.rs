//! Inputs that cannot be true: weights stay, and why is named.

use pointsman_solver::model::units::NonNegative;
use pointsman_solver::tick::{EngineSample, Health, Inputs};

use crate::fleet::Fleet;
use crate::scenarios::stage;
use crate::stage::Stage;

/// A fleet that settled, meddled with for a minute; why weights were held. None moved, and no
/// request failed or was refused.
fn held(meddle: fn(&mut Inputs)) -> (Stage, Vec<&'static str>) {
    let mut stage = stage(Fleet::default(), 1.0, 7);
    stage.run(90.0);
    assert_eq!(stage.held, []);
    let before = stage.weights();
    let from = stage.now_s;
    stage.meddle = meddle;
    stage.plant.latencies.clear();
    stage.run(60.0);
    let answered: u64 = stage.plant.latencies.iter().map(|(_, count)| count).sum();
    assert!(answered > 1_000, "{answered}");
    assert_eq!((stage.plant.failed, stage.plant.shed), (0, 0));
    let moved = stage.run.part(from, f64::MAX).moved(&before);
    assert!(moved < 1e-9, "{moved}");
    let mut names: Vec<&str> = stage.held.iter().map(|(_, gate, _)| *gate).collect();
    assert_eq!(stage.held[0].0, from, "from the first pass on");
    names.dedup();
    (stage, names)
}

fn silent(engines: &mut [EngineSample]) {
    for sample in engines {
        *sample = EngineSample {
            health: Health::Down,
            silent: true,
            ..EngineSample::unknown(sample.engine)
        };
    }
}

#[test]
fn half_of_the_engines_unscrapable() {
    let (mut stage, names) = held(|inputs| silent(&mut inputs.engines[..3]));
    assert_eq!(names, ["engines_vanished"]);
    let outcome = stage.outcome.clone().expect("passed");
    assert!(
        outcome.held[0].detail.contains("a1, a2, b1"),
        "{:?}",
        outcome.held
    );
    stage.meddle = |_| {};
    stage.run(10.0);
    assert_eq!(stage.outcome.as_ref().expect("passed").held, []);
}

#[test]
fn a_third_of_the_engines_unscrapable() {
    // And half of those that serve "long".
    let (_, names) = held(|inputs| silent(&mut inputs.engines[2..4]));
    assert_eq!(names, ["engines_vanished"]);
}

#[test]
fn demand_pages_zeroed() {
    let (_, names) = held(|inputs| {
        inputs.looks.offered.clear();
        for arrivals in inputs.witness.arrivals.values_mut() {
            (arrivals.blind, arrivals.length_s, arrivals.handled) = (true, 0.0, 0);
        }
    });
    assert_eq!(names, ["demand_unreadable"]);
}

#[test]
fn counts_of_demand_that_stop_while_attempts_go_on() {
    let (mut stage, names) = held(|inputs| {
        for look in inputs.looks.offered.values_mut() {
            look.count = 0;
        }
        for sample in &mut inputs.demand {
            sample.by_priority_rps = vec![NonNegative::default()];
        }
    });
    assert_eq!(names, ["demand_unconfirmed"]);
    stage.meddle = |_| {};
    stage.run(20.0);
    assert_eq!(stage.outcome.as_ref().expect("passed").held, []);
}

#[test]
fn demand_that_is_tenfold_by_count_alone() {
    let (_, names) = held(|inputs| {
        for look in inputs.looks.offered.values_mut() {
            look.count *= 10;
        }
    });
    assert_eq!(names, ["demand_unconfirmed"]);
}

#[test]
fn a_topology_without_its_engines_is_refused() {
    let mut stage = stage(Fleet::default(), 1.0, 7);
    stage.run(30.0);
    // Of all engines and what speaks of them, the first is left.
    let less = Fleet {
        regions: 1,
        ..Fleet::default()
    }
    .topology();
    let now_ns = (stage.now_s * 1e9) as u64;
    let held = stage
        .state
        .shrunk(&stage.topology, &less, |_| false, now_ns);
    let held = held.expect("refused");
    assert_eq!(held.gate.name(), "topology_shrunk");
    assert!(held.detail.contains("b1"), "{}", held.detail);
}
