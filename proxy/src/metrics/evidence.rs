//! What one shard saw of an engine that speaks for or against it, beside how its attempts ended.
//!
//! Written by the shard as answers begin, read by the sentinel every 100 ms, which compares engines
//! by it. Times are kept as sums of logarithms of observed over predicted: a mean of these is what
//! engines are compared by, and a sum needs no window.

use super::cell::Counter;

/// One shard's evidence about one life of an engine.
#[derive(Debug, Default)]
pub struct EvidenceCounters {
    times: [TimeCounters; TimeKind::COUNT],
    late: Counter,
    /// Work that requests brought, micro engine-seconds of the reference.
    work_micro: Counter,
    requests: Counter,
}

/// A time that is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeKind {
    /// To the first token of a stream.
    FirstToken,
    /// To an answer that comes whole.
    Whole,
}

impl TimeKind {
    /// How many there are.
    pub const COUNT: usize = 2;
}

/// Times of one kind.
#[derive(Debug, Default)]
struct TimeCounters {
    count: Counter,
    /// Sum of the logarithms, thousandths, each raised by [`BIAS`]: a counter only rises.
    sum_milli: Counter,
}

/// The counts of an engine, of one shard or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvidenceTotals {
    /// Times, by [`TimeKind`].
    pub time_counts: [u64; TimeKind::COUNT],
    /// Sums of ln(observed / predicted), thousandths, each one raised by [`BIAS`].
    pub time_sums: [u64; TimeKind::COUNT],
    /// Requests that waited longer than was to be expected.
    pub late: u64,
    /// Work that requests brought, micro engine-seconds of the reference.
    pub work_micro: u64,
    /// Requests.
    pub requests: u64,
}

/// A logarithm is cut at so many thousandths on either side: a factor of 150.
pub const BIAS: u64 = 5_000;

// === impl EvidenceCounters ===

impl EvidenceCounters {
    /// Counts a time; by the one writing thread only.
    pub fn time(&self, kind: TimeKind, log_ratio: f64) {
        let most = BIAS as f64;
        let raised = (log_ratio * 1_000.0).clamp(-most, most) + most;
        let counters = &self.times[kind as usize];
        // Rounded to the nearest.
        counters.sum_milli.add((raised + 0.5) as u64);
        counters.count.increment();
    }

    /// Counts a request that waits longer than was to be expected.
    pub fn late(&self) {
        self.late.increment();
    }

    /// Counts a request and the work that it brings.
    pub fn request(&self, work_micro: u64) {
        self.work_micro.add(work_micro);
        self.requests.increment();
    }

    /// The counts so far.
    #[must_use]
    pub fn totals(&self) -> EvidenceTotals {
        EvidenceTotals {
            time_counts: std::array::from_fn(|kind| self.times[kind].count.value()),
            time_sums: std::array::from_fn(|kind| self.times[kind].sum_milli.value()),
            late: self.late.value(),
            work_micro: self.work_micro.value(),
            requests: self.requests.value(),
        }
    }

    /// Back to 0, for a slot number that begins another life.
    pub(super) fn reset(&self) {
        for counters in &self.times {
            counters.count.reset();
            counters.sum_milli.reset();
        }
        self.late.reset();
        self.work_micro.reset();
        self.requests.reset();
    }
}

// === impl EvidenceTotals ===

impl EvidenceTotals {
    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.each(other, u64::wrapping_add)
    }

    /// What was counted since `before`; from zero where another life began in between.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.each(before, |now, before| now.checked_sub(before).unwrap_or(now))
    }

    /// How many times of a kind there are, and the sum of their logarithms.
    #[must_use]
    pub fn times(&self, kind: TimeKind) -> (f64, f64) {
        let (count, sum) = (
            self.time_counts[kind as usize],
            self.time_sums[kind as usize],
        );
        let sum_milli = sum as f64 - BIAS as f64 * count as f64;
        (count as f64, sum_milli / 1_000.0)
    }

    fn each(&self, other: &Self, with: impl Fn(u64, u64) -> u64) -> Self {
        let times = |a: [u64; TimeKind::COUNT], b: [u64; TimeKind::COUNT]| {
            std::array::from_fn(|kind| with(a[kind], b[kind]))
        };
        Self {
            time_counts: times(self.time_counts, other.time_counts),
            time_sums: times(self.time_sums, other.time_sums),
            late: with(self.late, other.late),
            work_micro: with(self.work_micro, other.work_micro),
            requests: with(self.requests, other.requests),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_logarithms_come_back_whatever_their_sign() {
        let evidence = EvidenceCounters::default();
        for log_ratio in [0.5, -1.25, 9.0, -9.0] {
            evidence.time(TimeKind::FirstToken, log_ratio);
        }
        let totals = evidence.totals();
        assert_eq!(totals.times(TimeKind::FirstToken), (4.0, -0.75));
        assert_eq!(totals.times(TimeKind::Whole), (0.0, 0.0));
    }

    #[test]
    fn what_was_counted_since_is_a_difference_and_shards_add_up() {
        let (a, b) = (EvidenceCounters::default(), EvidenceCounters::default());
        a.request(1_500);
        b.request(500);
        let before = a.totals().plus(&b.totals());
        assert_eq!((before.work_micro, before.requests), (2_000, 2));
        a.request(7);
        b.late();
        let since = a.totals().plus(&b.totals()).since(&before);
        assert_eq!((since.work_micro, since.requests, since.late), (7, 1, 1));
        a.reset();
        a.request(9);
        assert_eq!(a.totals().since(&before).work_micro, 9);
    }
}
