//! Load of each block of the key space: measured, believed, and where it is no chance.
//!
//! A hash spreads keys evenly over the key space, but not what keys ask for: one conversation or
//! one service account may bring as much as a thousand others, and all of it falls on one slot. Proxies
//! count arrivals in 256 equal blocks of the key space; [`Counts`] remembers them for some minutes
//! and names the *hot* ones, beyond what chance does to equal keys. [`Believed`] keeps a hot block
//! until it was cold for long and its load until it changed for certain.
//!
//! This is no feedback: which keys arrive does not depend on where a table sends them. Where the
//! requests ended up, which does, is shown beside it and steers nothing.

use serde::{Deserialize, Serialize};

use pointsman_shm::id::{SLOTS_PER_BLOCK, TABLE_BITS};

/// Equal blocks of the key space in which proxies count arrivals.
pub const BLOCKS: usize = (1 << *TABLE_BITS.end()) / SLOTS_PER_BLOCK;
/// Arrivals are forgotten with this time constant, seconds.
const MEMORY_S: f64 = 600.0;
/// Fewer remembered arrivals are no evidence.
const LEAST_ARRIVALS: f64 = 6_000.0;
/// Standard deviations of equal keys beyond which a block's load is no chance.
const SIGMA: f64 = 5.0;
/// What unlike keys in all other blocks may do to an engine's share, standard deviation: blocks
/// are hot, from the hottest on, until the rest does less.
const REST_DEVIATION: f64 = 0.005;
/// Most hot blocks of one class at one frontend.
pub const MOST_HOT: usize = 96;
/// Shares are told in steps of this, so that records of like ticks are alike.
const STEP: f64 = 1e-4;
/// Change of a share, and part of it, below which the believed one stands.
const SAME: (f64, f64) = (0.003, 0.05);
/// A hot block that is hot no more is believed in for this long, nanoseconds.
const COOLING_NS: u64 = 300_000_000_000;

/// A block that carries more than its part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hot {
    /// Which, from 0 by rising hash.
    pub block: u16,
    /// Its share of the requests of a class at a frontend.
    pub share: f64,
}

/// Arrivals by block, remembered for some minutes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Empty until something arrived.
    blocks: Vec<f64>,
}

impl Counts {
    /// Takes in what arrived within `length_s` seconds; blocks beyond [`BLOCKS`] are ignored.
    pub fn absorb(&mut self, arrivals: &[u64], length_s: f64) {
        let any = arrivals.iter().any(|count| *count > 0);
        if length_s <= 0.0 || (self.blocks.is_empty() && !any) {
            return;
        }
        self.blocks.resize(BLOCKS, 0.0);
        let kept = (-length_s / MEMORY_S).exp();
        self.blocks.iter_mut().for_each(|held| *held *= kept);
        for (held, count) in self.blocks.iter_mut().zip(arrivals) {
            *held += *count as f64;
        }
    }

    /// Hot blocks, by rising block; `None` where too little arrived to tell.
    #[must_use]
    pub fn hot(&self) -> Option<Vec<Hot>> {
        let total: f64 = self.blocks.iter().sum();
        if total < LEAST_ARRIVALS {
            return None;
        }
        let mut sorted = self.blocks.clone();
        sorted.sort_by(f64::total_cmp);
        let typical = sorted[BLOCKS / 2];
        let excess = |block: usize| self.blocks[block] - typical;
        let mut unlike: Vec<usize> = (0..BLOCKS)
            .filter(|block| excess(*block) > SIGMA * typical.max(1.0).sqrt())
            .collect();
        unlike.sort_by(|a, b| excess(*b).total_cmp(&excess(*a)).then(a.cmp(b)));
        // An excess counts as one key, which is on an engine or is not: a quarter of its square.
        let variance = |block: &usize| (excess(*block) / total).powi(2) / 4.0;
        let mut rest: f64 = unlike.iter().map(variance).sum();
        let mut hot = Vec::new();
        for block in unlike.into_iter().take(MOST_HOT) {
            if rest <= REST_DEVIATION * REST_DEVIATION {
                break;
            }
            rest -= variance(&block);
            hot.push(Hot {
                block: block as u16,
                share: (self.blocks[block] / total / STEP).round() * STEP,
            });
        }
        hot.sort_by_key(|hot| hot.block);
        Some(hot)
    }
}

/// Hot blocks as tables are made for them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Believed {
    /// By rising block.
    held: Vec<Held>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Held {
    hot: Hot,
    /// Since when it is not measured as hot.
    cold_since_ns: Option<u64>,
}

impl Believed {
    /// Takes in what was measured at `now_ns` of the monotonic clock.
    pub fn learn(&mut self, measured: &[Hot], now_ns: u64) {
        for held in &mut self.held {
            match measured.iter().find(|hot| hot.block == held.hot.block) {
                Some(hot) => {
                    held.cold_since_ns = None;
                    let believed = held.hot.share;
                    if (hot.share - believed).abs() > SAME.0.max(SAME.1 * believed) {
                        held.hot.share = hot.share;
                    }
                }
                None => {
                    held.cold_since_ns.get_or_insert(now_ns);
                }
            }
        }
        let cooled = |since: u64| now_ns.saturating_sub(since) >= COOLING_NS;
        self.held
            .retain(|held| !held.cold_since_ns.is_some_and(cooled));
        for hot in measured
            .iter()
            .filter(|hot| usize::from(hot.block) < BLOCKS)
        {
            if !self.held.iter().any(|held| held.hot.block == hot.block) {
                self.held.push(Held {
                    hot: *hot,
                    cold_since_ns: None,
                });
            }
        }
        self.held.sort_by_key(|held| held.hot.block);
    }

    /// Hot blocks, by rising block.
    #[must_use]
    pub fn hot(&self) -> Vec<Hot> {
        self.held.iter().map(|held| held.hot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `per_block` arrivals in each block but for the ones named.
    fn arrivals(per_block: u64, hot: &[(usize, u64)]) -> Vec<u64> {
        let mut arrivals = vec![per_block; BLOCKS];
        for (block, count) in hot {
            arrivals[*block] = *count;
        }
        arrivals
    }

    fn hot(arrivals: &[u64]) -> Option<Vec<Hot>> {
        let mut counts = Counts::default();
        counts.absorb(arrivals, 2.0);
        counts.hot()
    }

    #[test]
    fn little_is_no_evidence_and_chance_is_not_hot() {
        assert_eq!(hot(&[]), None);
        assert_eq!(hot(&arrivals(23, &[])), None);
        assert_eq!(hot(&arrivals(24, &[])), Some(vec![]));
        // Equal keys: counts as dice give them, here within five standard deviations.
        let dice: Vec<u64> = (0..BLOCKS as u64).map(|b| 100 + (b * 37) % 50).collect();
        assert_eq!(hot(&dice), Some(vec![]));
    }

    #[test]
    fn what_carries_more_is_hot_until_the_rest_is_harmless() {
        // 25,500 in ordinary blocks: 20 % and 5 % of all in two, a trifle in a third.
        let all = arrivals(100, &[(3, 6_746), (200, 1_687), (9, 160)]);
        let found = hot(&all).unwrap();
        let told: Vec<(u16, f64)> = found.iter().map(|h| (h.block, h.share)).collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!((told[0].0, told[1].0), (3, 200));
        assert!((told[0].1 - 0.1990).abs() < 1e-9, "{told:?}");
    }

    #[test]
    fn arrivals_are_forgotten() {
        let mut counts = Counts::default();
        counts.absorb(&arrivals(100, &[(3, 9_000)]), 2.0);
        assert_eq!(counts.hot().map(|hot| hot.len()), Some(1));
        for _ in 0..1_200 {
            counts.absorb(&arrivals(100, &[]), 2.0);
        }
        assert_eq!(counts.hot(), Some(vec![]));
        counts.absorb(&[], 7_200.0);
        assert_eq!(counts.hot(), None);
    }

    #[test]
    fn a_belief_changes_for_certain_only() {
        let of = |block, share| Hot { block, share };
        let mut believed = Believed::default();
        believed.learn(&[of(9, 0.02), of(3, 0.10)], 0);
        assert_eq!(believed.hot(), [of(3, 0.10), of(9, 0.02)]);
        believed.learn(&[of(3, 0.105), of(9, 0.0225)], 1);
        assert_eq!(believed.hot(), [of(3, 0.10), of(9, 0.02)]);
        believed.learn(&[of(3, 0.12)], 2);
        assert_eq!(believed.hot(), [of(3, 0.12), of(9, 0.02)]);
        believed.learn(&[of(3, 0.12)], COOLING_NS + 1);
        assert_eq!(believed.hot().len(), 2);
        believed.learn(&[of(3, 0.12)], COOLING_NS + 2);
        assert_eq!(believed.hot(), [of(3, 0.12)]);
        // No block beyond the key space, whatever a record says.
        believed.learn(&[of(3, 0.12), of(256, 0.5)], COOLING_NS + 3);
        assert_eq!(believed.hot(), [of(3, 0.12)]);
    }
}
