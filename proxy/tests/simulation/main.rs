//! What decides, under faults, in virtual time: the product's own `decide/` with engines that
//! refuse, break, fill up, slow down and come back, and clients that leave. No socket and no clock:
//! a run is a function of its seed.
//!
//! At every step no request is lost or counted twice, none stands at an engine that it may not go
//! to, and there are no more retries than were paid for. When the faults are over, everybody is
//! served.
//!
//! `POINTSMAN_SEEDS` is how many seeds are run, 32 by default; `POINTSMAN_SEED` runs one alone.

mod engine;
mod ledger;
mod world;

use pointsman_proxy::decide::blame::Blame;
use world::World;

/// Whose fault attempts can be here.
const BLAMES: [Blame; 3] = [Blame::Engine, Blame::BackPressure, Blame::Client];

/// Seeds to run.
fn seeds() -> Vec<u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        let number = text.parse::<u64>();
        Some(number.unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
    };
    match number("POINTSMAN_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("POINTSMAN_SEEDS").unwrap_or(32)).collect(),
    }
}

/// Runs a seed, and says how to run it again where it fails.
fn run(seed: u64) -> World {
    let run = std::panic::catch_unwind(|| {
        let mut world = World::new(seed);
        world.run();
        world
    });
    run.unwrap_or_else(|_| {
        panic!("to replay: POINTSMAN_SEED={seed} cargo test -p pointsman-proxy --test simulation")
    })
}

#[test]
fn whatever_fails_requests_are_accounted_for_and_retries_are_paid_for() {
    let (mut requests, mut retries, mut refused) = (0, 0, 0);
    let (mut kinds, mut blamed) = ([0u64; 4], [0u64; 3]);
    for seed in seeds() {
        let world = run(seed);
        let ledger = &world.ledger;
        requests += ledger.offered;
        retries += ledger.retries;
        refused += ledger.retries_refused;
        for (sum, count) in kinds.iter_mut().zip(ledger.ends()) {
            *sum += count;
        }
        for (sum, blame) in blamed.iter_mut().zip(BLAMES) {
            *sum += ledger.blamed(blame);
        }
    }
    println!(
        "{requests} requests, {retries} retries and {refused} refused ones; \
         answered, failed, shed, left: {kinds:?}; attempts by {BLAMES:?}: {blamed:?}"
    );
    // A simulation in which nothing happens shows nothing.
    assert!(requests > 1_000 && retries > 0 && refused > 0);
    assert!(kinds.iter().chain(&blamed).all(|&count| count > 0));
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [3, 4] {
        assert_eq!(run(seed).ledger.trace(), run(seed).ledger.trace());
    }
    assert_ne!(run(3).ledger.trace(), run(4).ledger.trace());
}
