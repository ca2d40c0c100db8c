//! Counters as a reader sees them: plain numbers summed over shards, with differences.

use super::layout::{
    AT_ADMITTED, AT_ANSWERS, AT_ATTEMPTS, AT_CACHED_TOKENS, AT_CLIENT_TTFT, AT_CONNECT, AT_ENDED,
    AT_ESTIMATED, AT_LATE, AT_MOVED, AT_OFFERED, AT_OUTPUT_TOKENS, AT_PART_ARRIVALS, AT_PART_WORK,
    AT_PENALISED, AT_PROMPT_TOKENS, AT_RTT, AT_SHED, AT_STARTED, AT_TBOT, AT_TBOT_GAPS,
    AT_TBOT_SUM_US, AT_TTFT, AT_TTFT_COUNT, AT_TTFT_SUM_US, AT_UPLOAD, CLASS_WORDS, ENGINE_WORDS,
    PAIR_WORDS, PARTS,
};
use super::record::AT_GENERATION;
use super::{Outcome, ShedCause};
use crate::id::{Generation, MAX_PRIORITIES, SLOTS_PER_BLOCK};

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
    /// Arrivals in each 256th of the key space; [`Self::blocks`] adds them up for a table.
    pub part_arrivals: [u64; PARTS],
    /// Work that arrived in each 256th of the key space, milli engine-seconds.
    pub part_work_milli: [u64; PARTS],
}

/// Load of one block of 64 table slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLoad {
    /// Requests that arrived.
    pub arrivals: u64,
    /// Their work, milli engine-seconds.
    pub work_milli: u64,
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
    /// Attempts that waited for their first byte over three times as long as was predicted.
    pub late: u64,
    /// Penalty that the process found by itself, times how long it stood, microseconds.
    pub penalised_us: u64,
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
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        Histogram {
            count: rise(self.count, earlier.count),
            sum_us: rise(self.sum_us, earlier.sum_us),
            buckets: rises(&self.buckets, &earlier.buckets),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Histogram) -> Histogram {
        Histogram {
            count: self.count.wrapping_add(other.count),
            sum_us: self.sum_us.wrapping_add(other.sum_us),
            buckets: std::array::from_fn(|i| self.buckets[i].wrapping_add(other.buckets[i])),
        }
    }

    /// Mean, or `None` of nothing.
    #[must_use]
    pub fn mean_us(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_us as f64 / self.count as f64)
    }

    /// Upper bound of the bucket that holds the quantile `q` (0 to 1), or its floor for the last
    /// bucket, which has no bound; `None` of nothing.
    #[must_use]
    pub fn quantile_us(&self, q: f64) -> Option<u64> {
        debug_assert!((0.0..=1.0).contains(&q));
        let total: u64 = self.buckets.iter().sum();
        // Rank of the value that is asked for, from 1.
        let rank = ((q * total as f64).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(bucket_floor_us((bucket + 1).min(HISTOGRAM_BUCKETS - 1)))
    }

    fn from_words(words: &[u64], at: usize) -> Histogram {
        Histogram {
            count: words[at],
            sum_us: words[at + 1],
            buckets: std::array::from_fn(|bucket| words[at + 2 + bucket]),
        }
    }
}

impl ClassCounters {
    /// What came since `earlier`; another generation, or a counter that fell, counts from 0.
    #[must_use]
    pub fn since(&self, earlier: &ClassCounters) -> ClassCounters {
        if self.generation != earlier.generation {
            return self.clone();
        }
        ClassCounters {
            generation: self.generation,
            offered: rises(&self.offered, &earlier.offered),
            admitted: rises(&self.admitted, &earlier.admitted),
            shed: std::array::from_fn(|cause| rises(&self.shed[cause], &earlier.shed[cause])),
            client_ttft: self.client_ttft.since(&earlier.client_ttft),
            moved: rise(self.moved, earlier.moved),
            part_arrivals: rises(&self.part_arrivals, &earlier.part_arrivals),
            part_work_milli: rises(&self.part_work_milli, &earlier.part_work_milli),
        }
    }

    /// Load of each block of 64 slots of a table of this length, which must be a legal one.
    #[must_use]
    pub fn blocks(&self, table_len: usize) -> Vec<BlockLoad> {
        let count = (table_len / SLOTS_PER_BLOCK).clamp(1, PARTS);
        debug_assert!(count.is_power_of_two());
        let arrivals = self.part_arrivals.chunks(PARTS / count);
        let work = self.part_work_milli.chunks(PARTS / count);
        let block = |(arrivals, work): (&[u64], &[u64])| BlockLoad {
            arrivals: arrivals.iter().sum(),
            work_milli: work.iter().sum(),
        };
        arrivals.zip(work).map(block).collect()
    }

    pub(super) fn from_words(words: &[u64; CLASS_WORDS]) -> ClassCounters {
        ClassCounters {
            generation: generation_of(words),
            offered: run(words, AT_OFFERED),
            admitted: run(words, AT_ADMITTED),
            shed: std::array::from_fn(|cause| run(words, AT_SHED + cause * MAX_PRIORITIES)),
            client_ttft: Histogram::from_words(words, AT_CLIENT_TTFT),
            moved: words[AT_MOVED],
            part_arrivals: run(words, AT_PART_ARRIVALS),
            part_work_milli: run(words, AT_PART_WORK),
        }
    }
}

impl EngineCounters {
    /// What came since `earlier`; another generation, or a counter that fell, counts from 0.
    #[must_use]
    pub fn since(&self, earlier: &EngineCounters) -> EngineCounters {
        if self.generation != earlier.generation {
            return self.clone();
        }
        EngineCounters {
            generation: self.generation,
            started: rise(self.started, earlier.started),
            ended: rises(&self.ended, &earlier.ended),
            connect: self.connect.since(&earlier.connect),
            upload: self.upload.since(&earlier.upload),
            ttft: self.ttft.since(&earlier.ttft),
            tbot: self.tbot.since(&earlier.tbot),
            rtt: self.rtt.since(&earlier.rtt),
            late: rise(self.late, earlier.late),
            penalised_us: rise(self.penalised_us, earlier.penalised_us),
        }
    }

    /// Attempts that started and have not ended: of a snapshot's counters, not of a difference.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.started.saturating_sub(self.ended.iter().sum())
    }

    pub(super) fn from_words(words: &[u64; ENGINE_WORDS]) -> EngineCounters {
        EngineCounters {
            generation: generation_of(words),
            started: words[AT_STARTED],
            ended: run(words, AT_ENDED),
            connect: Histogram::from_words(words, AT_CONNECT),
            upload: Histogram::from_words(words, AT_UPLOAD),
            ttft: Histogram::from_words(words, AT_TTFT),
            tbot: Histogram::from_words(words, AT_TBOT),
            rtt: Histogram::from_words(words, AT_RTT),
            late: words[AT_LATE],
            penalised_us: words[AT_PENALISED],
        }
    }
}

impl PairCounters {
    /// What came since `earlier`; another generation, or a counter that fell, counts from 0.
    #[must_use]
    pub fn since(&self, earlier: &PairCounters) -> PairCounters {
        if self.generation != earlier.generation {
            return *self;
        }
        PairCounters {
            generation: self.generation,
            attempts: rise(self.attempts, earlier.attempts),
            prompt_tokens: rise(self.prompt_tokens, earlier.prompt_tokens),
            cached_tokens: rise(self.cached_tokens, earlier.cached_tokens),
            output_tokens: rise(self.output_tokens, earlier.output_tokens),
            answers: rise(self.answers, earlier.answers),
            estimated: rise(self.estimated, earlier.estimated),
            ttft_sum_us: rise(self.ttft_sum_us, earlier.ttft_sum_us),
            ttft_count: rise(self.ttft_count, earlier.ttft_count),
            tbot_sum_us: rise(self.tbot_sum_us, earlier.tbot_sum_us),
            tbot_gaps: rise(self.tbot_gaps, earlier.tbot_gaps),
        }
    }

    pub(super) fn from_words(words: &[u64; PAIR_WORDS]) -> PairCounters {
        PairCounters {
            generation: generation_of(words),
            attempts: words[AT_ATTEMPTS],
            prompt_tokens: words[AT_PROMPT_TOKENS],
            cached_tokens: words[AT_CACHED_TOKENS],
            output_tokens: words[AT_OUTPUT_TOKENS],
            answers: words[AT_ANSWERS],
            estimated: words[AT_ESTIMATED],
            ttft_sum_us: words[AT_TTFT_SUM_US],
            ttft_count: words[AT_TTFT_COUNT],
            tbot_sum_us: words[AT_TBOT_SUM_US],
            tbot_gaps: words[AT_TBOT_GAPS],
        }
    }
}

/// What a counter rose by; one that fell began anew.
fn rise(now: u64, earlier: u64) -> u64 {
    now.checked_sub(earlier).unwrap_or(now)
}

fn rises<const N: usize>(now: &[u64; N], earlier: &[u64; N]) -> [u64; N] {
    std::array::from_fn(|i| rise(now[i], earlier[i]))
}

fn run<const N: usize>(words: &[u64], at: usize) -> [u64; N] {
    std::array::from_fn(|i| words[at + i])
}

fn generation_of(words: &[u64]) -> Generation {
    // A record's copy only ever holds a generation that fits.
    Generation(u32::try_from(words[AT_GENERATION]).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_two_an_octave_from_64_us_and_the_floor_of_each_is_in_it() {
        assert_eq!(bucket_of_us(0), 0);
        assert_eq!(bucket_of_us(63), 0);
        assert_eq!(bucket_of_us(64), 1);
        assert_eq!(bucket_of_us(95), 1);
        assert_eq!(bucket_of_us(96), 2);
        assert_eq!(bucket_of_us(127), 2);
        assert_eq!(bucket_of_us(128), 3);
        assert_eq!(bucket_of_us(u64::MAX), 63);
        for bucket in 1..HISTOGRAM_BUCKETS {
            assert_eq!(bucket_of_us(bucket_floor_us(bucket)), bucket);
            assert_eq!(bucket_of_us(bucket_floor_us(bucket) - 1), bucket - 1);
        }
    }

    #[test]
    fn quantiles_and_means_of_a_histogram() {
        assert_eq!(Histogram::EMPTY.quantile_us(0.5), None);
        assert_eq!(Histogram::EMPTY.mean_us(), None);
        let mut histogram = Histogram::EMPTY;
        for value in [10, 100, 100, 1000] {
            histogram.count += 1;
            histogram.sum_us += value;
            histogram.buckets[bucket_of_us(value)] += 1;
        }
        assert_eq!(histogram.mean_us(), Some(302.5));
        assert_eq!(histogram.quantile_us(0.0), Some(64));
        assert_eq!(histogram.quantile_us(0.25), Some(64));
        assert_eq!(histogram.quantile_us(0.5), Some(128));
        assert_eq!(histogram.quantile_us(0.75), Some(128));
        assert_eq!(histogram.quantile_us(1.0), Some(1024));
        assert_eq!(histogram.plus(&histogram).since(&histogram), histogram);
    }

    #[test]
    fn a_new_generation_or_a_fallen_counter_counts_from_zero() {
        let mut words = [0u64; PAIR_WORDS];
        words[AT_GENERATION] = 2;
        words[AT_ATTEMPTS] = 10;
        words[AT_OUTPUT_TOKENS] = 500;
        let earlier = PairCounters::from_words(&words);
        words[AT_ATTEMPTS] = 14;
        words[AT_OUTPUT_TOKENS] = 30;
        let now = PairCounters::from_words(&words);
        assert_eq!(now.since(&earlier).attempts, 4);
        assert_eq!(now.since(&earlier).output_tokens, 30);
        words[AT_GENERATION] = 3;
        let reborn = PairCounters::from_words(&words);
        assert_eq!(reborn.since(&earlier), reborn);
    }
}
