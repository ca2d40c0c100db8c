//! What decides, under faults, in virtual time: the product's own `decide/` with engines that
//! refuse, break, fill up, slow down, hang and come back, with surges of demand, plans that refuse a
//! part of it, lines, and clients that leave. No socket and no clock: a run is a function of its seed.
//!
//! All guardrails are there together: penalties by what shards see, back-offs, allowances, admitted
//! rates and fair shares, lines, and retry budgets. At every step no request is lost or counted
//! twice, none stands at an engine that it may not go to or that is full, and there are no more
//! retries than were paid for. When the trouble is over everybody is served, and every engine has its
//! part again.
//!
//! `POINTSMAN_SEEDS` is how many seeds are run, 32 by default; `POINTSMAN_SEED` runs one alone.

mod engine;
mod fleet;
mod host;
mod ledger;
mod request;
mod shard;
mod world;

use ledger::Ledger;
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

/// Adds up what runs came to, so that a simulation in which nothing happens is found out.
#[derive(Debug, Default)]
struct Sums {
    requests: u64,
    retries: u64,
    retries_refused: u64,
    ejections: u64,
    /// Answered, failed, shed, left.
    ends: [u64; 4],
    sheds: [u64; Ledger::SHEDS],
    blamed: [u64; BLAMES.len()],
}

impl Sums {
    fn add(&mut self, world: &World) {
        let ledger = &world.ledger;
        self.requests += ledger.offered;
        self.retries += ledger.retries;
        self.retries_refused += ledger.retries_refused;
        self.ejections += world.host.ejections;
        let add = |sums: &mut [u64], counts: &[u64]| {
            let pairs = sums.iter_mut().zip(counts);
            pairs.for_each(|(sum, count)| *sum += count);
        };
        add(&mut self.ends, &ledger.ends());
        add(&mut self.sheds, &ledger.sheds());
        add(&mut self.blamed, &BLAMES.map(|blame| ledger.blamed(blame)));
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        let alone = [
            self.retries,
            self.retries_refused,
            self.ejections,
            self.requests,
        ];
        let lists = self.ends.into_iter().chain(self.sheds).chain(self.blamed);
        alone.into_iter().chain(lists)
    }
}

#[test]
fn whatever_fails_requests_are_accounted_for_and_everything_comes_back() {
    let mut sums = Sums::default();
    let seeds = seeds();
    for &seed in &seeds {
        sums.add(&run(seed));
    }
    println!("{} seeds: {sums:?}", seeds.len());
    // One seed alone need not show everything.
    assert!(seeds.len() < 32 || sums.all().all(|count| count > 0));
    assert!(sums.ends[0] > sums.requests / 2, "most are served");
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [3, 4] {
        assert_eq!(run(seed).ledger.trace(), run(seed).ledger.trace());
    }
    assert_ne!(run(3).ledger.trace(), run(4).ledger.trace());
}
