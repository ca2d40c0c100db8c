//! The bars of slot tables, as properties.

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
    let quotas = quotas(weights, SLOTS, &vec![0; weights.len()]);
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

/// A number in [0, 1) that belongs to `x`.
fn noise(x: u64) -> f64 {
    (mix(x) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A table of these weights from others that frontends share, after a walk of steps.
fn walked(raw: &mut [f64], seed: u64, steps: u64) -> Vec<usize> {
    let shared: Vec<f64> = raw
        .iter()
        .enumerate()
        .map(|(e, w)| w * (0.7 + 0.6 * noise(seed * 99_991 + e as u64)))
        .collect();
    let mut table = build(&normal(raw), &normal(&shared));
    for step in 0..steps {
        for (e, w) in raw.iter_mut().enumerate() {
            *w *= 0.95 + 0.1 * noise(seed * 7_777 + step * 131 + 17 * e as u64);
        }
        table = change(&table, &normal(raw)).0;
    }
    table
}

#[test]
fn engines_that_leave_and_return_get_their_slots_back() {
    let (mut held, mut same, mut tables) = (0, 0, 0);
    for (engines, steps) in [(3, 0), (3, 7), (10, 0), (10, 20), (20, 3), (50, 0), (50, 9)] {
        let mut raw: Vec<f64> = (0..engines).map(|e| 0.2 + noise(77 * e + 5)).collect();
        let table = walked(&mut raw, engines, steps);
        let weights = normal(&raw);
        for gone in 0..raw.len().min(12) {
            let mut without = weights.clone();
            without[gone] = 0.0;
            let (away, ..) = change(&table, &normal(&without));
            assert!(away.iter().all(|e| *e != gone));
            let (back, ..) = change(&away, &weights);
            let count = counts(&back, raw.len());
            assert!(is_rounding(&weights, SLOTS, &count), "{engines}, {steps}");
            tables += 1;
            held += table.iter().filter(|e| **e == gone).count();
            same += table
                .iter()
                .zip(&back)
                .filter(|(a, b)| **a == gone && a == b)
                .count();
        }
    }
    println!("{same} of {held} slots back over {tables} departures");
    assert!(same as f64 >= 0.9998 * held as f64, "{same} of {held}");
}

#[test]
fn a_tremble_of_weights_moves_nothing_and_what_it_kept_costs_an_engine_one_slot_at_most() {
    let mut raw: Vec<f64> = (0..50).map(|e| 0.2 + noise(77 * e + 5)).collect();
    let table = walked(&mut raw, 50, 4);
    // Within half a slot of what stands, whichever way each was rounded.
    let held = counts(&table, 50);
    let mut trembled: Vec<f64> = held.iter().map(|h| *h as f64 / SLOTS as f64).collect();
    for pair in 0..25 {
        let by = 0.9 * (noise(pair) - 0.5) / SLOTS as f64;
        trembled[2 * pair as usize] += by;
        trembled[2 * pair as usize + 1] -= by;
    }
    let (same, moves, _) = change(&table, &trembled);
    assert_eq!((moves, &same), (0, &table));
    // The quotas that stand need not be those that the weights alone give; a return finds the
    // latter, which are within one slot of the former.
    let fresh = rounded(&trembled, SLOTS);
    let off = |(a, b): (&usize, &usize)| a.abs_diff(*b);
    assert!(held.iter().zip(&fresh).map(off).max() <= Some(1));
    for gone in 0..12 {
        let mut without = trembled.clone();
        without[gone] = 0.0;
        let (away, ..) = change(&table, &normal(&without));
        let (back, ..) = change(&away, &trembled);
        let kept = table
            .iter()
            .zip(&back)
            .filter(|(a, b)| **a == gone && a == b)
            .count();
        // One for its own rounding, and one for each engine that gives up fewer than it got.
        let others: usize = held.iter().zip(&fresh).map(off).sum();
        assert!(kept + others >= held[gone], "{kept} of {}", held[gone]);
    }
}

#[test]
fn frontends_with_alike_weights_agree() {
    // 8 frontends, 20 engines, weights within 20 % of a common one.
    let common: Vec<f64> = (0..20).map(|e| 1.0 + f64::from(e % 5)).collect();
    let own: Vec<Vec<f64>> = (0..8_u64)
        .map(|f| {
            let raw: Vec<f64> = common
                .iter()
                .enumerate()
                .map(|(e, w)| w * (0.8 + 0.4 * noise(f * 1_000 + e as u64)))
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
    println!("agreement {:.4} of the most possible", got / most);
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
