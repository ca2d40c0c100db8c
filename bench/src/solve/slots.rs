//! Slot tables: how exact they are, how few slots move, how long a change and a look-up take.

use pointsman_shm::id::{EngineSlot, stable_hash};
use pointsman_solver::model::slots::{adjust, counts, first, quotas};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::measure::Timed;
use crate::sys::thread_cpu_ns;

const SLOTS: usize = 4_096;
/// Changes of a table.
const CHANGES: usize = 20;
/// Keys that are looked up in turn; they and one table stay in the nearest cache.
const KEYS: usize = 4_096;
/// Frontends and engines whose first tables are compared, and by how much weights differ.
const FRONTENDS: usize = 8;
const ENGINES: usize = 20;
const SIMILAR: std::ops::Range<f64> = 0.8..1.2;

/// What slot tables do.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Slots {
    pub(super) adjust_8: Timed,
    pub(super) adjust_200: Timed,
    /// Largest difference of an engine's slots from its weight, in slots, over all changes.
    pub(super) off_slots: f64,
    /// Moves of all changes over the least possible.
    pub(super) moves_over_least: f64,
    /// Engines with a weight of a slot or more and without a slot, over all changes.
    pub(super) without_slot: usize,
    /// A look-up in a hot table, nanoseconds.
    pub(super) lookup_ns: f64,
    /// Slots that first tables share, over the most that their weights allow.
    pub(super) agreement: f64,
}

/// How the changes of a table went.
#[derive(Default)]
struct Changes {
    taken: Vec<(u64, u64)>,
    off_slots: f64,
    moves: usize,
    least: usize,
    without_slot: usize,
}

pub(super) fn slots(seed: u64) -> Slots {
    let mut rng = StdRng::seed_from_u64(seed);
    let few = changes(&mut rng, 8);
    let many = changes(&mut rng, 200);
    let moves = few.moves + many.moves;
    Slots {
        off_slots: few.off_slots.max(many.off_slots),
        moves_over_least: moves as f64 / (few.least + many.least) as f64,
        without_slot: few.without_slot + many.without_slot,
        adjust_8: Timed::of(few.taken),
        adjust_200: Timed::of(many.taken),
        lookup_ns: lookup_ns(&mut rng),
        agreement: agreement(&mut rng),
    }
}

fn hashes(engines: usize) -> Vec<u64> {
    (0..engines)
        .map(|e| stable_hash(format!("engine-{e}").as_bytes()))
        .collect()
}

fn normal(raw: Vec<f64>) -> Vec<f64> {
    let sum: f64 = raw.iter().sum();
    raw.into_iter().map(|w| w / sum).collect()
}

/// A table of an engine for each weight, none of them small.
fn build(hashes: &[u64], own: &[f64], shared: &[f64]) -> Vec<usize> {
    let base = first(hashes, shared, SLOTS);
    let quotas = quotas(own, SLOTS, &counts(&base, hashes.len()));
    adjust(&base, hashes, own, &quotas)
}

/// Every weight by up to 5 % more or less, again and again: the hardest table, because every
/// engine has slots to give or to take.
fn changes(rng: &mut StdRng, engines: usize) -> Changes {
    let hashes = hashes(engines);
    let mut weights = normal((0..engines).map(|_| rng.random_range(0.2..1.0)).collect());
    let mut table = build(&hashes, &weights, &weights);
    let mut changes = Changes::default();
    for _ in 0..CHANGES {
        let drift = weights.iter().map(|w| w * rng.random_range(0.95..1.05));
        weights = normal(drift.collect());
        let held = counts(&table, engines);
        let started = thread_cpu_ns();
        let quotas = quotas(&weights, SLOTS, &held);
        let next = adjust(&table, &hashes, &weights, &quotas);
        changes.taken.push((thread_cpu_ns() - started, 0));
        let surplus = held.iter().zip(&quotas).map(|(h, q)| h.saturating_sub(*q));
        changes.least += surplus.sum::<usize>();
        changes.moves += table.iter().zip(&next).filter(|(a, b)| a != b).count();
        for (weight, count) in weights.iter().zip(counts(&next, engines)) {
            let exact = weight * SLOTS as f64;
            changes.off_slots = changes.off_slots.max((count as f64 - exact).abs());
            changes.without_slot += usize::from(exact >= 1.0 && count == 0);
        }
        table = next;
    }
    changes
}

/// What one look-up takes when many follow each other, of the fastest of ten passes: the key's
/// high bits, one load.
fn lookup_ns(rng: &mut StdRng) -> f64 {
    let table: Vec<EngineSlot> = (0..SLOTS)
        .map(|_| EngineSlot(rng.random_range(0..50)))
        .collect();
    let keys: Vec<u64> = (0..KEYS).map(|_| rng.random()).collect();
    let shift = 64 - SLOTS.trailing_zeros();
    let rounds = 2_000;
    let pass = |_| {
        let started = thread_cpu_ns();
        for _ in 0..rounds {
            for key in &keys {
                std::hint::black_box(table[(key >> shift) as usize]);
            }
        }
        (thread_cpu_ns() - started) as f64 / (rounds * KEYS) as f64
    };
    (0..10).map(pass).fold(f64::INFINITY, f64::min)
}

/// Slots that the first tables of frontends with similar weights share, over the most that they
/// could: the sum of the smaller weights, over all pairs.
fn agreement(rng: &mut StdRng) -> f64 {
    let hashes = hashes(ENGINES);
    let common: Vec<f64> = (0..ENGINES).map(|_| rng.random_range(0.2..1.0)).collect();
    let mut one = || {
        normal(
            common
                .iter()
                .map(|w| w * rng.random_range(SIMILAR))
                .collect(),
        )
    };
    let own: Vec<Vec<f64>> = (0..FRONTENDS).map(|_| one()).collect();
    let mean = |e: usize| own.iter().map(|w| w[e]).sum::<f64>() / FRONTENDS as f64;
    let shared: Vec<f64> = (0..ENGINES).map(mean).collect();
    let tables: Vec<Vec<usize>> = own.iter().map(|w| build(&hashes, w, &shared)).collect();
    let (mut same, mut most) = (0.0, 0.0);
    for a in 0..FRONTENDS {
        for b in 0..a {
            let pairs = tables[a].iter().zip(&tables[b]);
            same += pairs.filter(|(x, y)| x == y).count() as f64 / SLOTS as f64;
            most += own[a]
                .iter()
                .zip(&own[b])
                .map(|(x, y)| x.min(*y))
                .sum::<f64>();
        }
    }
    same / most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_exact_and_move_the_fewest_slots() {
        let found = slots(1);
        assert!(found.off_slots < 1.0, "{}", found.off_slots);
        assert_eq!((found.moves_over_least, found.without_slot), (1.0, 0));
        assert!(found.agreement >= 0.95 && found.agreement <= 1.0);
        assert!(found.lookup_ns > 0.0);
    }
}
