//! Weighted Maglev hashing, for comparison: a look-up table filled by the engines in turns.
//!
//! As load balancers do it: each engine has a permutation of the slots; in each round every engine
//! whose due has come takes its next free slot, so that heavy engines come round more often. Not
//! what Pointsman does: a change of weights moves more keys than it must.

use pointsman_proxy::decide::mix::mix;

/// Table lengths, primes: an engine needs about a hundred slots for its weight to show.
const LENGTHS: [u64; 3] = [65_537, 131_071, 524_287];
/// Least slots an engine.
const SLOTS_EACH: u64 = 100;
/// Salts of the two hashes that make an engine's permutation.
const OFFSET_SALT: u64 = 0x6f66_6673_6574_0001;
const SKIP_SALT: u64 = 0x736b_6970_0000_0002;

/// A look-up table: position of an engine for every slot.
#[derive(Debug)]
pub(super) struct Maglev {
    table: Box<[u16]>,
}

/// One engine's walk through its permutation.
struct Walk {
    next: u64,
    skip: u64,
    /// Share of the rounds it takes part in, 1 for the heaviest.
    rate: f64,
    /// Slots it has taken.
    taken: f64,
}

impl Maglev {
    /// Fills the table. `engines` are hashes of names and weights above 0.
    pub(super) fn build(engines: &[(u64, f64)]) -> Self {
        Self::with_length(engines, length_for(engines.len()))
    }

    fn with_length(engines: &[(u64, f64)], length: u64) -> Self {
        const FREE: u16 = u16::MAX;
        let heaviest = engines.iter().map(|engine| engine.1).fold(0.0, f64::max);
        debug_assert!(heaviest > 0.0, "somebody must take the slots");
        let mut walks: Vec<Walk> = engines
            .iter()
            .map(|&(hash, weight)| Walk {
                next: mix(hash, OFFSET_SALT) % length,
                skip: mix(hash, SKIP_SALT) % (length - 1) + 1,
                rate: weight / heaviest,
                taken: 0.0,
            })
            .collect();
        let mut table = vec![FREE; length as usize];
        let mut left = length;
        for round in 1_u64.. {
            for (position, walk) in (0..).zip(&mut walks) {
                if left == 0 {
                    break;
                }
                if round as f64 * walk.rate < walk.taken + 1.0 {
                    continue;
                }
                // The length is prime, so that the walk meets every slot, and one is free.
                while table[walk.next as usize] != FREE {
                    walk.next += walk.skip;
                    if walk.next >= length {
                        walk.next -= length;
                    }
                }
                table[walk.next as usize] = position;
                walk.taken += 1.0;
                left -= 1;
            }
            if left == 0 {
                break;
            }
        }
        Self {
            table: table.into(),
        }
    }

    /// Position of the engine for a key's hash.
    #[inline]
    pub(super) fn look_up(&self, hash: u64) -> u16 {
        self.table[(hash % self.table.len() as u64) as usize]
    }

    /// The table's memory.
    pub(super) fn span(&self) -> std::ops::Range<*const u8> {
        let span = self.table.as_ptr_range();
        span.start.cast()..span.end.cast()
    }
}

fn length_for(engines: usize) -> u64 {
    let wanted = engines as u64 * SLOTS_EACH;
    let fits = LENGTHS.into_iter().find(|&length| length >= wanted);
    fits.unwrap_or(LENGTHS[LENGTHS.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engines(weights: &[f64]) -> Vec<(u64, f64)> {
        let hash = |at: usize| pointsman_shm::id::stable_hash(format!("engine-{at}").as_bytes());
        weights
            .iter()
            .enumerate()
            .map(|(at, &w)| (hash(at), w))
            .collect()
    }

    fn counts(maglev: &Maglev, engines: usize) -> Vec<usize> {
        let mut counts = vec![0; engines];
        maglev
            .table
            .iter()
            .for_each(|&at| counts[usize::from(at)] += 1);
        counts
    }

    #[test]
    fn every_engine_has_its_weight_of_the_slots() {
        let maglev = Maglev::with_length(&engines(&[4.0, 2.0, 1.0, 1.0]), 8_009);
        let counts = counts(&maglev, 4);
        assert_eq!(counts.iter().sum::<usize>(), 8_009);
        for (count, exact) in counts.into_iter().zip([4_004, 2_002, 1_001, 1_001]) {
            assert!(count.abs_diff(exact) <= 2, "{count} for {exact}");
        }
    }

    #[test]
    fn an_engine_that_leaves_moves_few_keys_but_its_own() {
        let all = engines(&[1.0; 10]);
        let before = Maglev::with_length(&all, 8_009);
        let after = Maglev::with_length(&all[..9], 8_009);
        let pairs = before.table.iter().zip(&after.table);
        let moved = pairs.filter(|(from, to)| **from != 9 && from != to).count();
        assert!(moved < 8_009 / 20, "{moved} of 8,009");
        assert!(after.table.iter().all(|&at| at < 9));
    }

    #[test]
    fn tables_are_primes_long_enough_for_the_engines() {
        for length in LENGTHS {
            let mut divisors = (2..).take_while(|d| d * d <= length);
            assert!(divisors.all(|d| length % d != 0), "{length}");
        }
        assert_eq!(length_for(10), 65_537);
        assert_eq!(length_for(1_000), 131_071);
    }

    #[test]
    fn a_key_finds_the_slot_of_its_remainder() {
        let maglev = Maglev::build(&engines(&[1.0, 3.0]));
        assert_eq!(maglev.table.len(), 65_537);
        assert_eq!(maglev.look_up(65_537 * 7 + 5), maglev.table[5]);
    }
}
