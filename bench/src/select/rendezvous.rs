//! Weighted rendezvous hashing over all engines, for comparison.
//!
//! Every engine draws a number for the key, the least draw over its weight wins: exact weights,
//! least movement, no table, and a price that grows with the fleet. Not the product's second
//! choice, which draws among at most sixteen standby engines.

use pointsman_proxy::decide::mix::mix;

/// The engines of one class: hash of the name and one over the weight.
#[derive(Debug)]
pub(super) struct Rendezvous {
    engines: Box<[(u64, f64)]>,
}

impl Rendezvous {
    /// Takes hashes of names and weights above 0.
    pub(super) fn build(engines: &[(u64, f64)]) -> Self {
        let inverse = |&(hash, weight): &(u64, f64)| (hash, 1.0 / weight);
        Self {
            engines: engines.iter().map(inverse).collect(),
        }
    }

    /// Position of the engine for a key's hash.
    #[inline]
    pub(super) fn look_up(&self, hash: u64) -> u16 {
        let mut best = (0, f64::INFINITY);
        for (at, (engine, inverse)) in (0..).zip(&self.engines) {
            let draw = -unit(mix(hash, *engine)).ln() * inverse;
            if draw < best.1 {
                best = (at, draw);
            }
        }
        best.0
    }

    /// The list's memory.
    pub(super) fn span(&self) -> std::ops::Range<*const u8> {
        let span = self.engines.as_ptr_range();
        span.start.cast()..span.end.cast()
    }
}

/// A number in (0, 1) for a hash.
fn unit(hash: u64) -> f64 {
    ((hash >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(engines: &[(u64, f64)]) -> Vec<usize> {
        let rendezvous = Rendezvous::build(engines);
        let mut counts = vec![0; engines.len()];
        for key in 0..20_000_u64 {
            counts[usize::from(rendezvous.look_up(mix(key, 3)))] += 1;
        }
        counts
    }

    #[test]
    fn engines_win_in_proportion_to_their_weights() {
        let counts = counts(&[(11, 4.0), (22, 2.0), (33, 2.0)]);
        // Five standard deviations of a binomial count of 20,000.
        for (count, exact) in counts.into_iter().zip([10_000, 5_000, 5_000]) {
            assert!(usize::abs_diff(count, exact) < 354, "{count} for {exact}");
        }
    }

    #[test]
    fn an_engine_that_leaves_moves_its_own_keys_only() {
        let all = [(11, 1.0), (22, 2.0), (33, 3.0)];
        let (before, after) = (Rendezvous::build(&all), Rendezvous::build(&all[..2]));
        for key in (0..1_000).map(|key| mix(key, 3)) {
            let at = before.look_up(key);
            assert!(at == 2 || after.look_up(key) == at, "{key}");
        }
    }
}
