//! Slot tables: which engine each slice of the key space goes to.
//!
//! A table is made from the last published one, not from the weights alone, so that a change
//! moves exactly as many slots as the weights demand and every host of a frontend agrees. Which
//! slots move is decided by a fixed score of (slot, engine): an engine that leaves and returns
//! gets its slots back, and frontends with alike weights send alike keys to the same engine.
//! Engines are given in one agreed order (by name); ties fall to the first.

use pointsman_shm::id::negative_ln;

/// Bonus of a fraction whose engine held the extra slot before: near-ties do not flip.
const HELD_BONUS: f64 = 0.25;
/// What rounding may take from a weight that is exactly a whole number of slots.
const ROUNDING: f64 = 1e-9;
/// Weight that stands for none in scores.
const LEAST_WEIGHT: f64 = 1e-12;

/// Slots of each engine: the whole part of its share, and the largest remainders one more.
///
/// `weights` are at least 0 and sum to 1; `held` is how many slots each has now.
#[must_use]
pub fn quotas(weights: &[f64], slots: usize, held: &[usize]) -> Vec<usize> {
    debug_assert_eq!(weights.len(), held.len(), "one count per engine");
    let exact: Vec<f64> = weights.iter().map(|w| w * slots as f64).collect();
    let mut quotas: Vec<usize> = exact
        .iter()
        .map(|x| (x + ROUNDING).floor() as usize)
        .collect();
    let given: usize = quotas.iter().sum();
    let bonus = |e: usize| {
        if held[e] == quotas[e] + 1 {
            HELD_BONUS
        } else {
            0.0
        }
    };
    let rank: Vec<f64> = (0..weights.len())
        .map(|e| (exact[e] - quotas[e] as f64).max(0.0) + bonus(e))
        .collect();
    let mut order: Vec<usize> = (0..weights.len())
        .filter(|e| exact[*e] - quotas[*e] as f64 > ROUNDING)
        .collect();
    order.sort_by(|a, b| rank[*b].total_cmp(&rank[*a]).then(a.cmp(b)));
    let left = slots.saturating_sub(given);
    for &e in order.iter().take(left) {
        quotas[e] += 1;
    }
    // Weights that sum to a little less than 1 may leave slots over.
    let missing = slots.saturating_sub(quotas.iter().sum());
    if missing > 0
        && let Some(largest) =
            (0..weights.len()).max_by(|a, b| weights[*a].total_cmp(&weights[*b]).then(b.cmp(a)))
    {
        quotas[largest] += missing;
    }
    quotas
}

/// A table from nothing: each slot to its best engine by the shared weights. Frontends that start
/// from the same shared weights agree wherever their own allow.
#[must_use]
pub fn first(hashes: &[u64], shared: &[f64], slots: usize) -> Vec<usize> {
    let best = |slot: usize| {
        let candidates = (0..hashes.len()).filter(|e| shared[*e] > 0.0);
        candidates.min_by(|a, b| {
            let score = |e: usize| score(slot, hashes[e], shared[e]);
            score(*a).total_cmp(&score(*b)).then(a.cmp(b))
        })
    };
    (0..slots).map(|slot| best(slot).unwrap_or(0)).collect()
}

/// The table with exactly the quotas' counts, and the fewest slots moved.
#[must_use]
pub fn adjust(table: &[usize], hashes: &[u64], weights: &[f64], quotas: &[usize]) -> Vec<usize> {
    let mut count = counts(table, hashes.len());
    let short: Vec<usize> = (0..hashes.len())
        .filter(|e| quotas[*e] > count[*e])
        .collect();
    let mut candidates: Vec<(f64, usize, usize)> = Vec::new();
    for (slot, &holder) in table.iter().enumerate() {
        if count[holder] > quotas[holder] {
            let held = score(slot, hashes[holder], weights[holder]);
            let of = |&e: &usize| (score(slot, hashes[e], weights[e]) / held, slot, e);
            candidates.extend(short.iter().map(of));
        }
    }
    candidates.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut moved = table.to_vec();
    for (_, slot, to) in candidates {
        let from = table[slot];
        if moved[slot] == from && count[from] > quotas[from] && count[to] < quotas[to] {
            moved[slot] = to;
            count[from] -= 1;
            count[to] += 1;
        }
    }
    moved
}

/// A table of another length that sends every key where it went.
#[must_use]
pub fn resize(table: &[usize], slots: usize) -> Vec<usize> {
    (0..slots)
        .map(|slot| table[slot * table.len() / slots])
        .collect()
}

/// Slots of each engine.
#[must_use]
pub fn counts(table: &[usize], engines: usize) -> Vec<usize> {
    let mut count = vec![0; engines];
    for &engine in table {
        count[engine] += 1;
    }
    count
}

/// Weighted rendezvous; low is good. The same bits on every machine, so that a replay elsewhere
/// moves the same slots.
fn score(slot: usize, hash: u64, weight: f64) -> f64 {
    let mixed = mix((slot as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(hash));
    negative_ln(mixed) / weight.max(LEAST_WEIGHT)
}

/// The finaliser of splitmix64: every input bit reaches every output bit.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_shm::id::stable_hash;
    use proptest::prelude::*;

    const SLOTS: usize = 4_096;

    fn hashes(n: usize) -> Vec<u64> {
        (0..n)
            .map(|e| stable_hash(format!("engine-{e}").as_bytes()))
            .collect()
    }

    fn normal(raw: &[f64]) -> Vec<f64> {
        let sum: f64 = raw.iter().sum();
        raw.iter().map(|w| w / sum).collect()
    }

    fn build(weights: &[f64], shared: &[f64]) -> Vec<usize> {
        let hashes = hashes(weights.len());
        let base = first(&hashes, shared, SLOTS);
        let quotas = quotas(weights, SLOTS, &counts(&base, weights.len()));
        adjust(&base, &hashes, weights, &quotas)
    }

    fn change(table: &[usize], weights: &[f64]) -> (Vec<usize>, usize, usize) {
        let held = counts(table, weights.len());
        let quotas = quotas(weights, SLOTS, &held);
        let next = adjust(table, &hashes(weights.len()), weights, &quotas);
        let moves = table.iter().zip(&next).filter(|(a, b)| a != b).count();
        let least = held
            .iter()
            .zip(&quotas)
            .map(|(h, q)| h.saturating_sub(*q))
            .sum();
        (next, moves, least)
    }

    fn raw_weights() -> impl Strategy<Value = Vec<f64>> {
        prop::collection::vec(prop_oneof![Just(0.0), 1e-4..1.0_f64, Just(0.25)], 1..12)
            .prop_filter("some weight", |w| w.iter().sum::<f64>() > 0.0)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn counts_are_within_one_slot_of_weights(raw in raw_weights()) {
            let weights = normal(&raw);
            let count = counts(&build(&weights, &weights), weights.len());
            for (w, c) in weights.iter().zip(&count) {
                prop_assert!((*c as f64 - w * SLOTS as f64).abs() < 1.0);
                prop_assert!(*w * (SLOTS as f64) < 1.0 || *c >= 1);
                prop_assert!(*w > 0.0 || *c == 0);
            }
            prop_assert_eq!(count.iter().sum::<usize>(), SLOTS);
        }

        #[test]
        fn a_change_moves_exactly_the_fewest_slots(
            (a, b) in (2_usize..10).prop_flat_map(|n| {
                let one = prop::collection::vec(1e-4..1.0_f64, n);
                (one.clone(), one)
            })
        ) {
            let table = build(&normal(&a), &normal(&a));
            let (next, moves, least) = change(&table, &normal(&b));
            prop_assert_eq!(moves, least);
            prop_assert_eq!(&next, &change(&table, &normal(&b)).0);
            let again = change(&next, &normal(&b));
            prop_assert_eq!(again.1, 0);
        }
    }

    #[test]
    fn a_weight_of_one_slot_has_a_slot() {
        let weights = [1.0 / SLOTS as f64, 1.0 - 1.0 / SLOTS as f64];
        assert_eq!(counts(&build(&weights, &weights), 2), [1, SLOTS - 1]);
    }

    /// Slots that engines hold, and how many of them they hold again after leaving and returning.
    fn returned(weights: &[f64]) -> (usize, usize) {
        let table = build(weights, weights);
        let (mut held, mut same) = (0, 0);
        for gone in 0..weights.len() {
            let mut without = weights.to_vec();
            without[gone] = 0.0;
            let away = change(&table, &normal(&without)).0;
            assert!(away.iter().all(|e| *e != gone));
            let back = change(&away, weights).0;
            held += table.iter().filter(|e| **e == gone).count();
            same += table
                .iter()
                .zip(&back)
                .filter(|(a, b)| **a == gone && a == b)
                .count();
        }
        (held, same)
    }

    #[test]
    fn engines_that_leave_and_return_get_their_slots_back() {
        let (held, same) = returned(&normal(&[0.5, 0.3, 0.2]));
        assert_eq!(held, same);
        let noise = |e: u64| 0.2 + (mix(e * 77 + 5) >> 11) as f64 / (1_u64 << 53) as f64;
        let (held, same) = returned(&normal(&(0..10).map(noise).collect::<Vec<_>>()));
        assert!(same as f64 >= 0.999 * held as f64, "{same} of {held}");
    }

    #[test]
    fn frontends_with_alike_weights_agree() {
        // 8 frontends, 20 engines, weights within 20 % of a common one.
        let common: Vec<f64> = (0..20).map(|e| 1.0 + f64::from(e % 5)).collect();
        let own: Vec<Vec<f64>> = (0..8_u64)
            .map(|f| {
                let noise =
                    |e: usize| (mix(f * 1_000 + e as u64) >> 11) as f64 / (1_u64 << 53) as f64;
                let raw: Vec<f64> = common
                    .iter()
                    .enumerate()
                    .map(|(e, w)| w * (0.8 + 0.4 * noise(e)))
                    .collect();
                normal(&raw)
            })
            .collect();
        let mean: Vec<f64> = (0..20)
            .map(|e| own.iter().map(|w| w[e]).sum::<f64>() / 8.0)
            .collect();
        let tables: Vec<Vec<usize>> = own.iter().map(|w| build(w, &mean)).collect();
        let (mut got, mut most) = (0.0, 0.0);
        for a in 0..8 {
            for b in 0..a {
                let same = tables[a]
                    .iter()
                    .zip(&tables[b])
                    .filter(|(x, y)| x == y)
                    .count();
                got += same as f64 / SLOTS as f64;
                most += own[a]
                    .iter()
                    .zip(&own[b])
                    .map(|(x, y)| x.min(*y))
                    .sum::<f64>();
            }
        }
        assert!(got / most >= 0.95, "agreement {}", got / most);
    }

    #[test]
    fn a_near_tie_stays_with_its_holder() {
        // 0.5 slots each over a whole number: who held the extra slot keeps it.
        let half = [0.5 - 0.5 / SLOTS as f64, 0.5 + 0.5 / SLOTS as f64];
        assert_eq!(quotas(&half, SLOTS, &[2_048, 2_048]), [2_048, 2_048]);
        assert_eq!(quotas(&half, SLOTS, &[2_047, 2_049]), [2_047, 2_049]);
    }

    #[test]
    fn a_longer_table_sends_keys_where_they_went() {
        let table = [0, 1, 1, 2];
        assert_eq!(resize(&table, 8), [0, 0, 1, 1, 1, 1, 2, 2]);
        assert_eq!(resize(&resize(&table, 8), 4), table);
    }
}
