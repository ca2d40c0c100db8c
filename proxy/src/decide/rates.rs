//! The rates that a policy admits, by class and priority, shared by all shards of a process.
//!
//! One word each: the time at which the bucket would be full again, were nothing more taken. A
//! request moves it on by the time that one takes to earn, where that does not lead further ahead of
//! now than a whole bucket. So a rate needs nobody to fill it, and a request comes for a word only
//! where its class and priority are limited at all. What a lower rate took is no debt to a higher
//! one: a word that is further ahead than the present rate's bucket is an empty bucket, and no more.
//!
//! Not a bucket a shard: connections spread unevenly over shards, and a shard with more than its
//! part would refuse what the process as a whole has room for. Only the excess is to be refused.

use std::sync::atomic::{AtomicU64, Ordering};

use pointsman_shm::id::{ClassSlot, MAX_CLASSES, MAX_PRIORITIES};

/// A bucket holds what comes in this long, nanoseconds: the burst that passes unharmed.
const BURST_NS: u64 = 1_000_000_000;

/// Which rate: a class and a priority of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateKey(u16);

/// The state of every rate. 32 KiB.
#[derive(Debug)]
pub struct Rates {
    full_at_ns: Box<[AtomicU64]>,
}

// A key fits its type.
const _: () = assert!(MAX_CLASSES * MAX_PRIORITIES <= 1 << 16);

impl RateKey {
    /// The rate of a class's requests of one priority; `None` beyond what a policy may have.
    #[must_use]
    pub fn of(class: ClassSlot, priority: u8) -> Option<Self> {
        let fits = class.index() < MAX_CLASSES && usize::from(priority) < MAX_PRIORITIES;
        fits.then(|| Self(class.0 * MAX_PRIORITIES as u16 + u16::from(priority)))
    }

    /// Its position among all there can be.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl Rates {
    /// Every bucket full.
    #[must_use]
    pub fn new() -> Self {
        let words = MAX_CLASSES * MAX_PRIORITIES;
        Self {
            full_at_ns: (0..words).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Takes one request from a rate, requests per second, as long as that leaves the share
    /// `reserve` (0..=1) of the bucket to others; false when it may not. A bucket of a single token
    /// keeps none back.
    #[must_use]
    pub fn take(&self, key: RateKey, rate: f64, reserve: f64, now_ns: u64) -> bool {
        let Some(word) = self.full_at_ns.get(key.index()) else {
            return false;
        };
        let mut is_taken = false;
        let next = |full_at_ns| {
            let taken = take_one(full_at_ns, rate, reserve, now_ns);
            is_taken = taken.is_ok();
            let (Ok(next) | Err(next)) = taken;
            (next != full_at_ns).then_some(next)
        };
        // Relaxed: the word stands for nothing but itself. A word that stays is not stored.
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        is_taken
    }
}

impl Default for Rates {
    fn default() -> Self {
        Self::new()
    }
}

/// When a bucket is full again after one more was taken; where none may be, when it is without.
fn take_one(full_at_ns: u64, rate: f64, reserve: f64, now_ns: u64) -> Result<u64, u64> {
    debug_assert!((0.0..=1.0).contains(&reserve));
    if rate.is_nan() || rate <= 0.0 {
        return Err(full_at_ns);
    }
    // A cast of what is too large saturates; a share of eight keeps sums in range.
    let one_ns = ((1e9 / rate) as u64).min(u64::MAX / 8);
    let bucket_ns = BURST_NS.max(one_ns);
    let usable_ns = ((bucket_ns as f64 * (1.0 - reserve)) as u64).max(one_ns);
    // A lower rate may have taken one that takes it years to earn.
    let full_at_ns = full_at_ns.min(now_ns.saturating_add(bucket_ns));
    let next_ns = full_at_ns.max(now_ns).saturating_add(one_ns);
    match next_ns - now_ns <= usable_ns {
        true => Ok(next_ns),
        false => Err(full_at_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn key(priority: u8) -> RateKey {
        RateKey::of(ClassSlot(3), priority).unwrap()
    }

    fn admitted(rates: &Rates, priority: u8, rate: f64, now_ns: u64) -> usize {
        (0..1_000)
            .filter(|_| rates.take(key(priority), rate, 0.0, now_ns))
            .count()
    }

    #[test]
    fn f07_each_priority_has_its_own_rate() {
        let rates = Rates::new();
        assert_eq!(admitted(&rates, 1, 40.0, S), 40);
        assert_eq!(admitted(&rates, 1, 40.0, S + S / 4), 10);
        assert_eq!(admitted(&rates, 2, 0.0, 60 * S), 0);
        assert_eq!(admitted(&rates, 0, 3.0, S), 3);
        // An idle hour is worth no more than a bucket.
        assert_eq!(admitted(&rates, 1, 40.0, 3_600 * S), 40);
    }

    #[test]
    fn a_rate_below_one_a_second_still_comes_to_a_whole_request() {
        let rates = Rates::new();
        assert_eq!(admitted(&rates, 0, 0.5, S), 1);
        assert_eq!(admitted(&rates, 0, 0.5, 2 * S), 0);
        assert_eq!(admitted(&rates, 0, 0.5, 3 * S), 1);
        assert!(rates.take(key(1), 0.5, 0.5, S), "of one, none is kept back");
        assert!(rates.take(key(2), 1e-300, 0.0, S));
        assert!(!rates.take(key(2), 1e-300, 0.0, 3_600 * S));
    }

    #[test]
    fn a_new_rate_does_not_refill_a_bucket() {
        let rates = Rates::new();
        assert_eq!(admitted(&rates, 0, 40.0, S), 40);
        assert_eq!(admitted(&rates, 0, 20.0, S), 0);
        assert_eq!(admitted(&rates, 0, 20.0, S + S / 2), 10);
    }

    /// What is left of a demand that is all shed may be nothing but what arithmetic leaves of it.
    #[test]
    fn f07_what_a_lower_rate_took_is_no_debt_to_a_higher_one() {
        for low in [0.5, 1e-3, 1e-13, 1e-300] {
            let rates = Rates::new();
            let take = |rate, now_ns| rates.take(key(0), rate, 0.0, now_ns);
            assert!(take(low, S), "{low}");
            assert!(!take(low, S + S / 10), "{low}");
            // An empty bucket of the higher rate, which fills at once.
            let most = S + S / 10 + 10 * S;
            assert!(!take(0.1, S + S / 10), "{low}");
            assert_eq!(admitted(&rates, 0, 40.0, S + S / 10), 0, "{low}");
            assert_eq!(admitted(&rates, 0, 40.0, S + S / 10 + S / 2), 20, "{low}");
            assert_eq!(admitted(&rates, 0, 40.0, most), 40, "{low}");
            // And none of it is lost to the lower one, when that is back.
            assert!(!take(low, most), "{low}");
        }
    }

    #[test]
    fn what_is_kept_back_is_there_for_others() {
        let rates = Rates::new();
        let take = |reserve| {
            (0..1_000)
                .filter(|_| rates.take(key(0), 40.0, reserve, S))
                .count()
        };
        assert_eq!(take(0.5), 20);
        assert_eq!(take(0.25), 10);
        assert_eq!(take(0.0), 10);
    }

    #[test]
    fn shards_at_once_take_what_there_is_and_no_more() {
        let rates = Rates::new();
        let taken: usize = std::thread::scope(|scope| {
            let shard = || scope.spawn(|| admitted(&rates, 0, 500.0, S));
            let shards: Vec<_> = (0..4).map(|_| shard()).collect();
            shards.into_iter().map(|shard| shard.join().unwrap()).sum()
        });
        assert_eq!(taken, 500);
    }

    #[test]
    fn every_class_and_priority_has_a_word_of_its_own() {
        let rates = Rates::new();
        let last = RateKey::of(ClassSlot(255), 15).unwrap();
        assert_eq!(usize::from(last.0) + 1, rates.full_at_ns.len());
        assert_eq!(RateKey::of(ClassSlot(256), 0), None);
        assert_eq!(RateKey::of(ClassSlot(0), 16), None);
        assert_ne!(RateKey::of(ClassSlot(1), 0), RateKey::of(ClassSlot(0), 15));
    }
}
