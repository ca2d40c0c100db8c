//! A record's life, as pure operations on atomic words.
//!
//! Word 0 is the generation. A slot number that gets a new life zeroes its counters, and a reader
//! must never add a counter of one life to one of another: it looks at the generation before and
//! after its copy, with the same pair of fences as `seqlock`. Inside one life counters are read
//! while they rise, each by itself.

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::seqlock::{Flaw, TRIES, flawed};

/// Position of the generation.
pub const AT_GENERATION: usize = 0;
/// Generation of a record that was never used.
const UNUSED: u64 = 0;
/// Generation of a record whose counters are being zeroed.
const ENDING: u64 = u64::MAX;

/// What a reader saw of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Never used.
    Unused,
    /// All words copied are of this generation.
    Of(u32),
    /// One life ended while it was read: look again later.
    Changing,
}

/// Adds to a counter whose only writer is the caller.
#[inline]
pub fn add(counter: &AtomicU64, amount: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(amount),
        Ordering::Relaxed,
    );
}

/// Makes sure that the record is in the life `generation`; false when it is in a later one, whose
/// counters a straggler of an earlier life must not touch.
#[inline]
pub fn enter(record: &[AtomicU64], generation: u32) -> bool {
    let have = record[AT_GENERATION].load(Ordering::Relaxed);
    have == u64::from(generation) && have != UNUSED || begin_life(record, have, generation)
}

#[cold]
fn begin_life(record: &[AtomicU64], have: u64, generation: u32) -> bool {
    let next = u64::from(generation);
    if have >= next {
        return false;
    }
    record[AT_GENERATION].store(ENDING, Ordering::Relaxed);
    // Whoever sees a zero stored below also sees that the old life ended.
    if !flawed(Flaw::NoLifeFence) {
        fence(Ordering::Release);
    }
    for word in &record[1..] {
        word.store(0, Ordering::Relaxed);
    }
    // Whoever sees the new life sees nothing of the old one.
    let order = if flawed(Flaw::RelaxedLife) {
        Ordering::Relaxed
    } else {
        Ordering::Release
    };
    record[AT_GENERATION].store(next, order);
    true
}

/// Copies a record; `into` may be shorter (later fields are skipped) or longer (they read 0).
pub fn copy(record: &[AtomicU64], into: &mut [u64]) -> Life {
    for _ in 0..TRIES {
        let before = record[AT_GENERATION].load(Ordering::Acquire);
        if before == UNUSED {
            return Life::Unused;
        }
        if let Ok(generation) = u32::try_from(before) {
            into.fill(0);
            for (value, word) in into.iter_mut().zip(record) {
                *value = word.load(Ordering::Relaxed);
            }
            // Had a copied word been zeroed for a later life, the load below sees that.
            if !flawed(Flaw::NoLifeReaderFence) {
                fence(Ordering::Acquire);
            }
            if record[AT_GENERATION].load(Ordering::Relaxed) == before {
                into[AT_GENERATION] = before;
                return Life::Of(generation);
            }
        }
        crate::atomic::relax();
    }
    Life::Changing
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_new_life_starts_from_zero_and_a_straggler_of_the_old_one_is_refused() {
        let record: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
        let mut into = [9; 4];
        assert_eq!(copy(&record, &mut into), Life::Unused);
        assert!(!enter(&record, 0), "0 is no life");
        assert!(enter(&record, 1));
        add(&record[1], 5);
        add(&record[2], 7);
        assert_eq!(copy(&record, &mut into), Life::Of(1));
        assert_eq!(into, [1, 5, 7, 0]);
        assert!(enter(&record, 3));
        assert!(!enter(&record, 2));
        add(&record[2], 1);
        let mut short = [9; 2];
        assert_eq!(copy(&record, &mut short), Life::Of(3));
        assert_eq!(short, [3, 0]);
        assert_eq!(copy(&record, &mut into), Life::Of(3));
        assert_eq!(into, [3, 0, 1, 0]);
    }

    #[test]
    fn a_record_whose_life_is_ending_is_not_read() {
        let record: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
        assert!(enter(&record, 1));
        record[AT_GENERATION].store(ENDING, Ordering::Relaxed);
        assert_eq!(copy(&record, &mut [0; 3]), Life::Changing);
    }
}
