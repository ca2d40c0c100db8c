//! What is counted in one window.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::exchange::Failure;
use super::held::Held;
use crate::stamp::Stamp;

/// The longest time told apart, ten minutes in ns.
const LONGEST_NS: u64 = 600_000_000_000;

/// Counts and times of one window.
pub(super) struct Tally {
    /// Requests answered whole and right.
    pub(super) requests: u64,
    /// Tokens that came.
    pub(super) tokens: u64,
    /// Tokens that came, by when they were due.
    pub(super) held: Held,
    /// Reads that brought a token.
    pub(super) token_reads: u64,
    /// Failures by kind.
    pub(super) failures: BTreeMap<Failure, u64>,
    /// Sum of the hashes of the bodies that were answered.
    pub(super) xxh3: u64,
    /// Whole answers, ns.
    pub(super) latency: Histogram<u64>,
    /// Written to first token, ns.
    pub(super) ttft: Histogram<u64>,
    /// Sent to read, ns.
    pub(super) delay: Histogram<u64>,
    /// Due to read, ns.
    pub(super) late: Histogram<u64>,
}

impl Tally {
    /// Nothing counted yet of a window that begins, of streams of this pace.
    pub(super) fn new(began_ns: u64, pace_us: u64) -> Self {
        let empty = || {
            let mut histogram = Histogram::new_with_bounds(1, LONGEST_NS, 3)
                .expect("the bounds are constants that it takes");
            histogram.auto(false);
            histogram
        };
        Self {
            requests: 0,
            tokens: 0,
            held: Held::new(began_ns, pace_us),
            token_reads: 0,
            failures: BTreeMap::new(),
            xxh3: 0,
            latency: empty(),
            ttft: empty(),
            delay: empty(),
            late: empty(),
        }
    }

    /// Counts a token that was read at `now_ns`.
    pub(super) fn token(&mut self, stamp: Stamp, now_ns: u64) {
        self.tokens += 1;
        self.held.count(stamp.due_ns, now_ns);
        self.delay
            .saturating_record(now_ns.saturating_sub(stamp.sent_ns).max(1));
        self.late
            .saturating_record(now_ns.saturating_sub(stamp.due_ns).max(1));
    }

    /// Counts a failure.
    pub(super) fn fail(&mut self, failure: Failure) {
        *self.failures.entry(failure).or_default() += 1;
    }

    /// Failures in all.
    pub(super) fn failed(&self) -> u64 {
        self.failures.values().sum()
    }
}
