//! Counters as a reader sees them: plain numbers summed over shards, with differences.

use super::{Outcome, ShedCause};
use crate::id::{Generation, MAX_PRIORITIES};

/// Buckets of a histogram.
pub const HISTOGRAM_BUCKETS: usize = 64;

/// Bucket of a value. Bucket 0 holds everything below 64 us; from there each octave has two
/// buckets, split at 1.5 times its floor; the last has no upper bound.
#[must_use]
pub fn bucket_of_us(value_us: u64) -> usize {
    let octave = value_us.max(1).ilog2();
    if octave < 6 {
        return 0;
    }
    let half = (value_us >> (octave - 1)) & 1;
    let bucket = 1 + 2 * (octave as usize - 6) + usize::from(half == 1);
    bucket.min(HISTOGRAM_BUCKETS - 1)
}

/// Smallest value that a bucket holds.
#[must_use]
pub fn bucket_floor_us(bucket: usize) -> u64 {
    debug_assert!(bucket < HISTOGRAM_BUCKETS);
    match bucket {
        0 => 0,
        n => {
            let floor = 64u64 << ((n - 1) / 2);
            if n % 2 == 0 { floor + floor / 2 } else { floor }
        }
    }
}

/// Durations in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub sum_us: u64,
    /// How many in each bucket, by [`bucket_of_us`].
    pub buckets: [u64; HISTOGRAM_BUCKETS],
}

/// Counters of one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassCounters {
    /// Which life of the slot number these belong to.
    pub generation: Generation,
    /// First attempts offered, by priority, shed ones included.
    pub offered: [u64; MAX_PRIORITIES],
    /// Requests admitted, by priority.
    pub admitted: [u64; MAX_PRIORITIES],
    /// Requests shed, by cause and priority.
    pub shed: [[u64; MAX_PRIORITIES]; ShedCause::COUNT],
    /// Time to first token as the client sees it.
    pub client_ttft: Histogram,
    /// Conversations that changed engine.
    pub moved: u64,
    /// Length of the slot table that the blocks belong to.
    pub table_len: u32,
    /// Arrivals in each block of 64 table slots, `table_len / 64` of them.
    pub block_arrivals: Vec<u64>,
    /// Work that arrived in each block, milli engine-seconds.
    pub block_work_milli: Vec<u64>,
}

/// Counters of one engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineCounters {
    /// Which life of the slot number these belong to.
    pub generation: Generation,
    /// Attempts started.
    pub started: u64,
    /// Attempts ended, by outcome.
    pub ended: [u64; Outcome::COUNT],
    /// Time to connect, handshakes included.
    pub connect: Histogram,
    /// Time to send the request.
    pub upload: Histogram,
    /// Engine time to first token.
    pub ttft: Histogram,
    /// Gaps between tokens.
    pub tbot: Histogram,
    /// Network round trips.
    pub rtt: Histogram,
}

/// Counters of one eligible pair of class and engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairCounters {
    /// Which life of the pair number these belong to.
    pub generation: Generation,
    /// Attempts.
    pub attempts: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Prompt tokens that were cached.
    pub cached_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Answers whose tokens were counted.
    pub answers: u64,
    /// Answers of those whose tokens were estimated.
    pub estimated: u64,
    /// Sum of engine times to first token.
    pub ttft_sum_us: u64,
    /// How many went into it.
    pub ttft_count: u64,
    /// Sum of gaps between tokens.
    pub tbot_sum_us: u64,
    /// How many gaps went into it.
    pub tbot_gaps: u64,
}

impl Histogram {
    /// No values.
    pub const EMPTY: Histogram = Histogram {
        count: 0,
        sum_us: 0,
        buckets: [0; HISTOGRAM_BUCKETS],
    };

    /// What came since `earlier`; a counter that fell counts from 0.
    #[must_use]
    pub fn since(&self, _earlier: &Histogram) -> Histogram {
        unimplemented!()
    }

    /// Mean, or `None` of nothing.
    #[must_use]
    pub fn mean_us(&self) -> Option<f64> {
        unimplemented!()
    }

    /// Upper bound of the bucket that holds the quantile `q` (0..=1); `None` of nothing.
    #[must_use]
    pub fn quantile_us(&self, _q: f64) -> Option<u64> {
        unimplemented!()
    }
}

impl ClassCounters {
    /// What came since `earlier`; another generation, or a counter that fell, counts from 0.
    #[must_use]
    pub fn since(&self, _earlier: &ClassCounters) -> ClassCounters {
        unimplemented!()
    }
}

impl EngineCounters {
    /// What came since `earlier`; another generation, or a counter that fell, counts from 0.
    #[must_use]
    pub fn since(&self, _earlier: &EngineCounters) -> EngineCounters {
        unimplemented!()
    }

    /// Attempts that started and have not ended.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.started.saturating_sub(self.ended.iter().sum())
    }
}

impl PairCounters {
    /// What came since `earlier`; another generation, or a counter that fell, counts from 0.
    #[must_use]
    pub fn since(&self, _earlier: &PairCounters) -> PairCounters {
        unimplemented!()
    }
}
