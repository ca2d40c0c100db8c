//! One number with one writing thread: counter, gauge, histogram.
//!
//! Not fetch-and-add: a locked instruction costs some twenty times a plain store, and with a single
//! writer it buys nothing. Readers may see a value that is a moment old, never a torn one.

use std::sync::atomic::{AtomicU64, Ordering};

/// Only rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

/// Rises and falls, never below 0.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

/// Durations in fixed buckets.
#[derive(Debug)]
pub struct Histogram {
    /// Observations in each bucket of [`BOUNDS_US`], then those above all.
    buckets: [Counter; BOUNDS_US.len() + 1],
    sum_us: Counter,
}

/// Upper bounds of a histogram's buckets, microseconds: 1 ms to 10 minutes, since a prompt of a
/// million tokens is as ordinary as one of ten.
pub(super) const BOUNDS_US: [u64; 18] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
    300_000_000,
    600_000_000,
];

// === impl Counter ===

impl Counter {
    /// Adds one; by the one writing thread only.
    pub fn increment(&self) {
        self.add(1);
    }

    /// Adds `n`; by the one writing thread only.
    pub fn add(&self, n: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(n),
            Ordering::Relaxed,
        );
    }

    /// The value now.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Back to 0, for a slot number that begins another life.
    pub(super) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

// === impl Gauge ===

impl Gauge {
    /// Adds one; by the one writing thread only.
    pub fn increment(&self) {
        self.0.store(self.value() + 1, Ordering::Relaxed);
    }

    /// Takes one away; by the one writing thread only.
    pub fn decrement(&self) {
        let value = self.value();
        debug_assert!(value > 0, "a gauge fell below 0: an increment is missing");
        self.0.store(value.saturating_sub(1), Ordering::Relaxed);
    }

    /// Sets the value; by the one writing thread only.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The value now.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl Histogram ===

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| Counter::default()),
            sum_us: Counter::default(),
        }
    }
}

impl Histogram {
    /// Counts one duration; by the one writing thread only.
    pub fn observe_us(&self, us: u64) {
        self.buckets[BOUNDS_US.partition_point(|&bound| bound < us)].increment();
        self.sum_us.add(us);
    }

    /// Observations in each bucket, not cumulated; the last is above all bounds.
    #[must_use]
    pub fn counts(&self) -> [u64; BOUNDS_US.len() + 1] {
        std::array::from_fn(|i| self.buckets[i].value())
    }

    /// Sum of all observations, microseconds.
    #[must_use]
    pub fn sum_us(&self) -> u64 {
        self.sum_us.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_adds_up() {
        let counter = Counter::default();
        counter.increment();
        counter.add(4);
        assert_eq!(counter.value(), 5);
    }

    #[test]
    fn a_gauge_goes_both_ways() {
        let gauge = Gauge::default();
        gauge.increment();
        gauge.increment();
        gauge.decrement();
        assert_eq!(gauge.value(), 1);
    }

    #[test]
    fn a_duration_lands_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::default();
        for us in [0, 1_000, 1_001, 600_000_000, 600_000_001] {
            histogram.observe_us(us);
        }
        let counts = histogram.counts();
        assert_eq!((counts[0], counts[1], counts[17], counts[18]), (2, 1, 1, 1));
        assert_eq!(counts.iter().sum::<u64>(), 5);
        assert_eq!(histogram.sum_us(), 1_200_002_002);
    }
}
