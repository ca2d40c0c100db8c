//! What measured load does to a table, step by step.

use super::*;
use crate::model::slots::{adjust, first};
use pointsman_shm::id::stable_hash;

const SLOTS: usize = 4_096;

fn hashes(n: usize) -> Vec<u64> {
    (0..n)
        .map(|e| stable_hash(format!("engine-{e}").as_bytes()))
        .collect()
}

fn straight(weights: &[f64]) -> Vec<usize> {
    let hashes = hashes(weights.len());
    let base = first(&hashes, weights, SLOTS);
    let quotas = quotas(weights, SLOTS, &vec![0; weights.len()]);
    adjust(&base, &hashes, weights, &quotas)
}

fn next(table: &[usize], before: &[f64], now: &[f64], hot: Option<&[Hot]>) -> Vec<usize> {
    let standing = Standing {
        table,
        weights: before,
        bent: is_bent(table, before),
    };
    balance(standing, &hashes(now.len()), now, hot)
}

fn moved(a: &[usize], b: &[usize]) -> usize {
    a.iter().zip(b).filter(|(a, b)| a != b).count()
}

/// Load by engine, as hot blocks and their equal remainder give it.
fn load(table: &[usize], engines: usize, hot: &[Hot]) -> Vec<f64> {
    let total: f64 = hot.iter().map(|hot| hot.share).sum();
    let per_block = SLOTS / BLOCKS;
    let each = (1.0 - total) / (SLOTS - hot.len() * per_block) as f64;
    let mut load = vec![0.0; engines];
    for (slot, engine) in table.iter().enumerate() {
        let hot = hot
            .iter()
            .find(|hot| usize::from(hot.block) == slot / per_block);
        load[*engine] += hot.map_or(each, |hot| hot.share / per_block as f64);
    }
    load
}

fn settle(table: Vec<usize>, weights: &[f64], hot: &[Hot]) -> (Vec<usize>, usize) {
    let mut table = table;
    for steps in 0..100 {
        let after = next(&table, weights, weights, Some(hot));
        let moves = moved(&table, &after);
        assert!(moves <= SLOTS / MOST_MOVED, "{moves} in one step");
        if moves == 0 {
            return (table, steps);
        }
        table = after;
    }
    panic!("does not settle");
}

fn blocks(shares: &[(u16, f64)]) -> Vec<Hot> {
    shares
        .iter()
        .map(|(block, share)| Hot {
            block: *block,
            share: *share,
        })
        .collect()
}

#[test]
fn measured_load_meets_the_weights_in_bounded_steps_and_stays() {
    let weights = [0.4, 0.3, 0.2, 0.1];
    let hot = blocks(&[(3, 0.18), (40, 0.09), (77, 0.05), (200, 0.02)]);
    let (table, steps) = settle(straight(&weights), &weights, &hot);
    assert!(steps > 3, "{steps}");
    for (load, weight) in load(&table, 4, &hot).iter().zip(&weights) {
        assert!(
            (load - weight).abs() < 1.0 / SLOTS as f64,
            "{load} of {weight}"
        );
    }
    for hot in &hot {
        let (first, slots) = span(hot.block, SLOTS);
        let run = &table[first..first + slots];
        assert!(
            run.iter().all(|e| *e == run[0]),
            "block {} is whole",
            hot.block
        );
    }
    assert_eq!(over(&table, &weights, &hot), []);
    assert!(is_bent(&table, &weights));
    // A restart knows no load: nothing moves. The same load again: nothing either.
    assert_eq!(next(&table, &weights, &weights, None), table);
    assert_eq!(next(&table, &weights, &weights, Some(&hot)), table);
    // Keys became alike: back to counts, in bounded steps.
    let (back, _) = settle(table, &weights, &[]);
    assert!(!is_bent(&back, &weights));
}

#[test]
fn weights_move_at_once_also_on_a_table_made_for_a_load() {
    let weights = [0.5, 0.3, 0.2];
    let hot = blocks(&[(3, 0.12), (40, 0.08)]);
    let (table, _) = settle(straight(&weights), &weights, &hot);
    for hot in [None, Some(&hot[..])] {
        // The second engine goes: none of it stays, hot or not.
        let gone = next(&table, &weights, &[0.6, 0.0, 0.4], hot);
        assert!(gone.iter().all(|e| *e != 1));
        let back = next(&gone, &[0.6, 0.0, 0.4], &weights, hot);
        let share = counts(&back, 3)[1] as f64 / SLOTS as f64;
        assert!((0.2..0.4).contains(&share), "{share}");
    }
}

#[test]
fn one_key_that_nothing_can_spread_is_named_and_the_rest_is_shared() {
    let weights = [0.1; 10];
    let hot = blocks(&[(90, 0.31), (91, 0.06)]);
    let (table, _) = settle(straight(&weights), &weights, &hot);
    let named = over(&table, &weights, &hot);
    assert_eq!(named.len(), 1);
    assert_eq!(named[0].0, hot[0]);
    let load = load(&table, 10, &hot);
    // What is left is shared by the other nine, none of which gets more than its weight.
    for (e, load) in load.iter().enumerate().filter(|(e, _)| *e != named[0].1) {
        assert!((0.07..=0.1).contains(load), "engine {e}: {load}");
    }
    // Its engine may have lost all its other slots, but the smallest keeps one.
    assert!(counts(&table, 10).iter().all(|count| *count > 0));
}

#[test]
fn short_tables_join_blocks() {
    let hot = blocks(&[(0, 0.1), (1, 0.1), (8, 0.05)]);
    let joined = units(&hot, 64);
    assert_eq!(joined.len(), 2);
    assert_eq!((joined[0].first, joined[0].slots), (0, 1));
    assert!((joined[0].share - 0.2).abs() < 1e-12);
    assert_eq!(joined[1].first, 2);
    let weights = [0.5, 0.5];
    let table: Vec<usize> = (0..64).map(|slot| slot % 2).collect();
    let after = next(&table, &weights, &weights, Some(&hot));
    assert!(moved(&table, &after) <= 2, "two of 64 may move at once");
}
