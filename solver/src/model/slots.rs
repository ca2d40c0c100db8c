//! Slot tables: which engine each slice of the key space goes to.
//!
//! A table is made from the last published one, not from the weights alone, so that a change
//! moves exactly as many slots as the weights demand and every host of a frontend agrees. Which
//! slots move is decided by a fixed score of (slot, engine): frontends with alike weights send
//! alike keys to the same engine, and the slots of an engine that leaves go where its return will
//! look for them. Quotas follow from the weights alone unless the counts that stand are as good:
//! so a tremble of weights moves nothing, and an engine that returns with its old weight finds
//! the old quotas. Engines are given in one agreed order (by name); ties fall to the first.
//!
//! `skew` takes quotas in measured load where keys are not alike.

pub mod skew;

use pointsman_shm::id::negative_ln;

/// What rounding may take from a weight that is exactly a whole number of slots.
const ROUNDING: f64 = 1e-9;
/// Weight that stands for none in scores.
const LEAST_WEIGHT: f64 = 1e-12;
/// Candidates of moves that are sorted at once: most adjustments need no more.
const SORTED_AT_ONCE: usize = 1_024;
/// Comparisons spent a slot on where a leaving engine's slots wait; a bound on time, hardly met.
const MOST_COMPARED: usize = 64;

/// Slots of each engine: those it holds where all of them are a rounding of the weights already,
/// else the whole part of its share, and the largest remainders one more.
///
/// `weights` are at least 0 and sum to 1; `held` is how many slots each has now.
#[must_use]
pub fn quotas(weights: &[f64], slots: usize, held: &[usize]) -> Vec<usize> {
    debug_assert_eq!(weights.len(), held.len(), "one count per engine");
    if held.iter().sum::<usize>() == slots && is_rounding(weights, slots, held) {
        return held.to_vec();
    }
    rounded(weights, slots)
}

/// Whether every count is less than one slot from its weight.
#[must_use]
pub fn is_rounding(weights: &[f64], slots: usize, held: &[usize]) -> bool {
    let near = |(w, h): (&f64, &usize)| (w * slots as f64 - *h as f64).abs() < 1.0 - ROUNDING;
    weights.iter().zip(held).all(near)
}

/// Largest remainders (Hamilton's method): of the weights alone.
fn rounded(weights: &[f64], slots: usize) -> Vec<usize> {
    let exact: Vec<f64> = weights.iter().map(|w| w * slots as f64).collect();
    let mut quotas: Vec<usize> = exact
        .iter()
        .map(|x| (x + ROUNDING).floor() as usize)
        .collect();
    let remainder = |e: usize, quotas: &[usize]| exact[e] - quotas[e] as f64;
    let mut order: Vec<usize> = (0..weights.len())
        .filter(|e| remainder(*e, &quotas) > ROUNDING)
        .collect();
    order.sort_by(|a, b| {
        let (a_left, b_left) = (remainder(*a, &quotas), remainder(*b, &quotas));
        b_left.total_cmp(&a_left).then(a.cmp(b))
    });
    let left = slots.saturating_sub(quotas.iter().sum());
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
    let candidates: Vec<usize> = (0..hashes.len()).filter(|e| shared[*e] > 0.0).collect();
    let best = |slot: usize| {
        let mut best = (f64::INFINITY, 0);
        for &e in &candidates {
            let score = score(slot, hashes[e], shared[e]);
            if score < best.0 {
                best = (score, e);
            }
        }
        best.1
    };
    (0..slots).map(best).collect()
}

/// The table with exactly the quotas' counts, and the fewest slots moved.
#[must_use]
pub fn adjust(table: &[usize], hashes: &[u64], weights: &[f64], quotas: &[usize]) -> Vec<usize> {
    let all: Vec<usize> = (0..table.len()).collect();
    let mut moved = table.to_vec();
    adjust_among(&mut moved, &all, hashes, weights, quotas);
    moved
}

/// [`adjust`] for some of a table's slots: the quotas count those only, and no other moves.
pub(crate) fn adjust_among(
    table: &mut [usize],
    among: &[usize],
    hashes: &[u64],
    weights: &[f64],
    quotas: &[usize],
) {
    let before: Vec<usize> = among.iter().map(|&slot| table[slot]).collect();
    let mut count = counts(&before, hashes.len());
    let started = count.clone();
    let short: Vec<usize> = (0..hashes.len())
        .filter(|e| quotas[*e] > count[*e])
        .collect();
    let mut candidates: Vec<(u64, u32, u32)> = Vec::new();
    for (at, (&slot, &holder)) in among.iter().zip(&before).enumerate() {
        if count[holder] > quotas[holder] {
            let held = score(slot, hashes[holder], weights[holder]);
            // Bits of positive floats sort as the floats do.
            let of = |&e: &usize| {
                let ratio = score(slot, hashes[e], weights[e]) / held;
                (ratio.to_bits(), at as u32, e as u32)
            };
            candidates.extend(short.iter().map(of));
        }
    }
    let mut rest = candidates.as_mut_slice();
    let mut missing: usize = short.iter().map(|e| quotas[*e] - count[*e]).sum();
    while missing > 0 && !rest.is_empty() {
        let part = (4 * missing).max(SORTED_AT_ONCE).min(rest.len());
        if part < rest.len() {
            rest.select_nth_unstable(part);
        }
        let (next, later) = rest.split_at_mut(part);
        next.sort_unstable();
        for &(_, at, to) in next.iter() {
            let (at, to) = (at as usize, to as usize);
            let from = before[at];
            let stays = table[among[at]] == from;
            if stays && count[from] > quotas[from] && count[to] < quotas[to] {
                table[among[at]] = to;
                count[from] -= 1;
                count[to] += 1;
                missing -= 1;
            }
        }
        rest = later;
    }
    for gone in (0..hashes.len()).filter(|e| started[*e] > 0 && quotas[*e] == 0) {
        wait_for(gone, table, (among, &before), hashes);
    }
}

/// Places the slots of an engine that leaves so that its return takes just these: it will take
/// from each engine those on which it scores best beside it. A slot that would lose there to one
/// the engine held before changes places with another of the leaving ones.
fn wait_for(
    gone: usize,
    table: &mut [usize],
    (among, before): (&[usize], &[usize]),
    hashes: &[u64],
) {
    let ratio =
        |slot: usize, e: usize| score(slot, hashes[gone], 1.0) / score(slot, hashes[e], 1.0);
    // Below this the engine's return prefers a slot to all that this holder had before.
    let mut prefers = vec![f64::INFINITY; hashes.len()];
    let mut leaving = Vec::new();
    for (&slot, &holder) in among.iter().zip(before) {
        if holder == gone {
            leaving.push(slot);
        } else if table[slot] == holder {
            prefers[holder] = prefers[holder].min(ratio(slot, holder));
        }
    }
    let mut compared = 0;
    for i in 0..leaving.len() {
        let (slot, at) = (leaving[i], table[leaving[i]]);
        if ratio(slot, at) < prefers[at] {
            continue;
        }
        let fits = |&&other: &&usize| {
            compared += 1;
            let there = table[other];
            there != at && ratio(slot, there) < prefers[there] && ratio(other, at) < prefers[at]
        };
        if let Some(&other) = leaving.iter().find(fits) {
            table.swap(slot, other);
        }
        if compared > MOST_COMPARED * before.len() {
            return;
        }
    }
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
mod tests;
