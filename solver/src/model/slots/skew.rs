//! Tables where keys are not alike: hot blocks as wholes, quotas in measured load.
//!
//! A hot block is a part of the key space that carries more than its part of requests, most likely
//! by one key; which of its slots that key is in is not known. So a hot block goes to one engine as
//! a whole and counts with its load, and the other slots, which are alike, share what is left of
//! the weights. Moves for weights are made at once, as everywhere; moves for load alone are few
//! each time. Where nothing is known of the load, as after a restart, a table that was made for a
//! load keeps its counts in proportion: it is not made straight only to be bent again.

use super::{adjust_among, counts, is_rounding, quotas, rounded};
use crate::model::block_load::{BLOCKS, Hot};

/// This part of a table's slots may move for load in one publication.
pub const MOST_MOVED: usize = 32;
/// What a hot block may exceed an engine's share by before it is moved, or named.
const ROOM: f64 = 0.005;
/// A hot block that fits nowhere moves only to an engine with so much more room.
const WORTH: f64 = 0.01;

/// The table that stands.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    /// Engine by slot.
    pub table: &'a [usize],
    /// Weights that it was made for.
    pub weights: &'a [f64],
    /// Its counts are no rounding of those: it was made for a load.
    pub bent: bool,
}

/// A run of slots that is one hot block, or several where a slot is larger than a block.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Unit {
    first: usize,
    slots: usize,
    share: f64,
}

/// The standing table for new weights and what is believed of load; `None` where nothing is.
#[must_use]
pub fn balance(
    standing: Standing<'_>,
    hashes: &[u64],
    weights: &[f64],
    hot: Option<&[Hot]>,
) -> Vec<usize> {
    let mut table = standing.table.to_vec();
    let mut budget = (table.len() / MOST_MOVED).max(1);
    let units = units(hot.unwrap_or_default(), table.len());
    let loads = place(&units, &mut table, weights, &mut budget);
    let mut is_hot = vec![false; table.len()];
    for unit in &units {
        is_hot[unit.first..unit.first + unit.slots].fill(true);
    }
    let among: Vec<usize> = (0..table.len()).filter(|slot| !is_hot[*slot]).collect();
    if among.is_empty() {
        return table;
    }
    let holders: Vec<usize> = among.iter().map(|slot| table[*slot]).collect();
    let held = counts(&holders, hashes.len());
    let kept = if standing.bent || !units.is_empty() {
        in_proportion(standing.weights, weights, &held)
    } else {
        weights.to_vec()
    };
    let kept = quotas(&kept, among.len(), &held);
    let next = match hot {
        None => kept,
        Some(_) => {
            let left: Vec<f64> = weights
                .iter()
                .zip(&loads)
                .map(|(w, l)| (w - l).max(0.0))
                .collect();
            let wanted = normal(&left).unwrap_or_else(|| weights.to_vec());
            let mut wanted = quotas(&wanted, among.len(), &kept);
            give_each_one(&mut wanted, weights, &loads, table.len());
            step(&kept, &wanted, budget)
        }
    };
    adjust_among(&mut table, &among, hashes, weights, &next);
    table
}

/// Hot blocks that exceed every engine's share, so that no table can spread them, from the hottest
/// on; with the engine that each is on.
#[must_use]
pub fn over(table: &[usize], weights: &[f64], hot: &[Hot]) -> Vec<(Hot, usize)> {
    let largest = weights.iter().copied().fold(0.0, f64::max);
    let at = |hot: &Hot| {
        let (first, slots) = span(hot.block, table.len());
        majority(&table[first..first + slots], weights)
    };
    let exceeds = |hot: &&Hot| hot.share > largest + ROOM;
    let mut named: Vec<(Hot, usize)> = hot
        .iter()
        .filter(exceeds)
        .filter_map(|hot| Some((*hot, at(hot)?)))
        .collect();
    named.sort_by(|a, b| {
        let (a, b) = (a.0, b.0);
        b.share.total_cmp(&a.share).then(a.block.cmp(&b.block))
    });
    named
}

/// First slot and number of slots of a block; a slot that is larger than a block is all of it.
fn span(block: u16, slots: usize) -> (usize, usize) {
    let first = usize::from(block) * slots / BLOCKS;
    (first, (slots / BLOCKS).max(1))
}

/// From the hottest on; blocks in one slot are one.
fn units(hot: &[Hot], slots: usize) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    for one in hot.iter().filter(|hot| usize::from(hot.block) < BLOCKS) {
        let (first, slots) = span(one.block, slots);
        match units.iter_mut().find(|unit| unit.first == first) {
            Some(unit) => unit.share += one.share,
            None => units.push(Unit {
                first,
                slots,
                share: one.share,
            }),
        }
    }
    units.sort_by(|a, b| b.share.total_cmp(&a.share).then(a.first.cmp(&b.first)));
    units
}

/// Puts each hot block on one engine; the load of hot blocks by engine.
fn place(units: &[Unit], table: &mut [usize], weights: &[f64], budget: &mut usize) -> Vec<f64> {
    let mut loads = vec![0.0; weights.len()];
    for unit in units {
        let slots = &mut table[unit.first..unit.first + unit.slots];
        let room = |e: usize| weights[e] - loads[e];
        let roomiest = (0..weights.len())
            .filter(|e| weights[*e] > 0.0)
            .max_by(|a, b| room(*a).total_cmp(&room(*b)).then(b.cmp(a)));
        let Some(roomiest) = roomiest else {
            return loads;
        };
        let holder = majority(slots, weights);
        let stays = |e: &usize| {
            let fits = unit.share <= room(*e) + ROOM;
            fits || room(roomiest) < room(*e) + WORTH
        };
        let target = holder.filter(stays).unwrap_or(roomiest);
        let moves = slots
            .iter()
            .filter(|e| **e != target && weights[**e] > 0.0)
            .count();
        let whole = moves <= *budget;
        if whole {
            *budget -= moves;
        }
        for engine in slots.iter_mut() {
            // What is on an engine without a weight has to go in any case.
            if whole || weights[*engine] <= 0.0 {
                *engine = target;
            }
            loads[*engine] += unit.share / unit.slots as f64;
        }
    }
    loads
}

/// The engine with a weight that holds most of these slots.
fn majority(slots: &[usize], weights: &[f64]) -> Option<usize> {
    let count = counts(slots, weights.len());
    (0..weights.len())
        .filter(|e| weights[*e] > 0.0 && count[*e] > 0)
        .max_by(|a, b| count[*a].cmp(&count[*b]).then(b.cmp(a)))
}

/// Shares as they stand, each changed as its weight changed.
fn in_proportion(before: &[f64], now: &[f64], held: &[usize]) -> Vec<f64> {
    let all: usize = held.iter().sum();
    let share = |e: usize| {
        if before[e] > 0.0 {
            held[e] as f64 / all as f64 * (now[e] / before[e])
        } else {
            now[e]
        }
    };
    let shares: Vec<f64> = (0..now.len()).map(share).collect();
    normal(&shares).unwrap_or_else(|| now.to_vec())
}

fn normal(shares: &[f64]) -> Option<Vec<f64>> {
    let sum: f64 = shares.iter().sum();
    (sum > 0.0).then(|| shares.iter().map(|share| share / sum).collect())
}

/// An engine whose weight is worth a slot has one, though hot blocks may leave it none.
fn give_each_one(quotas: &mut [usize], weights: &[f64], loads: &[f64], slots: usize) {
    for e in 0..quotas.len() {
        let needs = quotas[e] == 0 && loads[e] <= 0.0 && weights[e] * slots as f64 >= 1.0;
        let largest = (0..quotas.len()).max_by(|a, b| quotas[*a].cmp(&quotas[*b]).then(b.cmp(a)));
        if let Some(from) = largest.filter(|from| needs && quotas[*from] > 1) {
            quotas[from] -= 1;
            quotas[e] += 1;
        }
    }
}

/// From some quotas toward others by at most `most` moves.
fn step(from: &[usize], to: &[usize], most: usize) -> Vec<usize> {
    let all: usize = from.iter().zip(to).map(|(f, t)| f.saturating_sub(*t)).sum();
    if all <= most {
        return to.to_vec();
    }
    let mut next = from.to_vec();
    let mut given = 0;
    for ((next, f), t) in next.iter_mut().zip(from).zip(to) {
        let gives = f.saturating_sub(*t) * most / all;
        *next -= gives;
        given += gives;
    }
    let lacks: Vec<f64> = from
        .iter()
        .zip(to)
        .map(|(f, t)| t.saturating_sub(*f) as f64)
        .collect();
    let lacks = normal(&lacks).expect("what some have too much of, others lack");
    for (next, takes) in next.iter_mut().zip(rounded(&lacks, given)) {
        *next += takes;
    }
    next
}

/// Whether a table was made for a load: its counts are no rounding of its weights.
#[must_use]
pub fn is_bent(table: &[usize], weights: &[f64]) -> bool {
    !is_rounding(weights, table.len(), &counts(table, weights.len()))
}

#[cfg(test)]
mod tests;
