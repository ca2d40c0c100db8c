//! Whether an engine is worse than its peers: sums that rise while it is, by Page's test.
//!
//! E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954): a sum of log-likelihood
//! ratios that is never under nothing has no memory of how well all was before, so that a change
//! is found by what came after it, at any rate of requests. A window would first have to forget.
//!
//! What is bad has to be bad in two ways, because times to first tokens have heavy tails for two
//! reasons. A queue makes them: then a time so many times the mean is as unlikely as of an
//! exponential distribution. Prompts of unlike length make them: then it is the logarithm that has
//! a usual deviation. And one queue makes all in it late at once: in the time that a queue of such
//! requests takes to pass there is one observation, however many first tokens came in it.

use pointsman_shm::signals::{HISTOGRAM_BUCKETS, Histogram, bucket_floor_us};

/// A sum from which an engine is an outlier, and one from which it is none any more.
const FOUND: f64 = 18.0;
const CLEARED: f64 = 5.0;
/// Least and most that one observation says.
const EACH: (f64, f64) = (-4.0, 8.0);
/// What is looked for: so many times as slow as peers.
const SLOW: f64 = 4.0;
/// Least deviation of a logarithm: buckets are half an octave.
const LEAST_DEVIATION: f64 = 0.35;
/// Deviation where peers do not tell.
const USUAL_DEVIATION: f64 = 1.0;
/// Peers that are so much quicker than predicted are as quick as that: they may just be idle.
const QUICKEST: f64 = 0.25;
/// Failures that are usual, and those that are looked for, parts of all attempts.
const USUAL_FAILURES: f64 = 0.02;
const MANY_FAILURES: f64 = 0.3;
const MOST_FAILURES: f64 = 0.9;
/// Most that failures say in a second: what breaks many at once is one observation.
const MOST_PER_S: f64 = 2.0;
/// Memories of what peers are compared by, seconds: what befalls all of them shows in one within
/// seconds, and a lull of all of them does not end the other.
const MEMORY_S: (f64, f64) = (60.0, 600.0);
const FAILURES_S: (f64, f64) = (6.0, 60.0);
/// Observations from which an engine is a peer to compare with.
const LEAST_COUNT: f64 = 5.0;

/// What an engine's times are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Typical {
    /// Seen over predicted.
    pub(super) ratio: f64,
    /// Mean logarithm of seen over predicted.
    pub(super) mean: f64,
    /// Its deviation.
    pub(super) deviation: f64,
}

/// Seen and predicted times, remembered for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Times {
    /// Sums of milliseconds, seen and predicted.
    short: (f64, f64),
    long: (f64, f64),
    /// Logarithms of seen over predicted: count, sum, sum of squares.
    logarithms: (f64, f64, f64),
}

/// Attempts, and failures among them, remembered for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Failures {
    short: (f64, f64),
    long: (f64, f64),
}

/// One of Page's tests in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sums {
    bad: f64,
    good: f64,
}

/// Times of one look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observed<'a> {
    pub(super) times: &'a Histogram,
    /// The least and the most that is predicted, milliseconds.
    pub(super) predicted_ms: (f64, f64),
    /// How many observations they are that do not depend on one another.
    pub(super) weight: f64,
}

/// What a test says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// Too little to tell.
    Nothing,
    /// It is no worse than its peers.
    Well,
    /// That it was bad is known from hosts alone, and so is what it is now.
    AsHosts,
    /// It is much worse than its peers.
    Outlier,
}

impl Times {
    pub(super) fn absorb(&mut self, seen: &Histogram, predicted_ms: f64, length_s: f64) {
        let (sum_ms, count) = (seen.sum_us as f64 / 1e3, seen.count as f64);
        for (memory, span_s) in [(&mut self.short, MEMORY_S.0), (&mut self.long, MEMORY_S.1)] {
            let kept = (-length_s / span_s).exp();
            memory.0 = memory.0 * kept + sum_ms;
            memory.1 = memory.1 * kept + count * predicted_ms;
        }
        let kept = (-length_s / MEMORY_S.0).exp();
        let (n, sum, squares) = &mut self.logarithms;
        (*n, *sum, *squares) = (*n * kept, *sum * kept, *squares * kept);
        for (value, count) in logarithms(seen) {
            let off = value - predicted_ms.ln();
            *n += count;
            *sum += count * off;
            *squares += count * off * off;
        }
    }

    pub(super) fn typical(&self) -> Option<Typical> {
        let (count, sum, squares) = self.logarithms;
        (count >= LEAST_COUNT && self.short.1 > 0.0).then(|| {
            let mean = sum / count;
            Typical {
                ratio: f64::max(self.short.0 / self.short.1, self.long.0 / self.long.1),
                mean,
                deviation: (squares / count - mean * mean).max(0.0).sqrt(),
            }
        })
    }

    /// Seen over predicted in the last minute; `None` where too little was seen.
    pub(super) fn ratio(&self) -> Option<f64> {
        let enough = self.logarithms.0 >= LEAST_COUNT && self.short.1 > 0.0;
        enough.then(|| self.short.0 / self.short.1)
    }
}

impl Failures {
    pub(super) fn absorb(&mut self, good: u64, bad: u64, length_s: f64) {
        for (memory, span_s) in [
            (&mut self.short, FAILURES_S.0),
            (&mut self.long, FAILURES_S.1),
        ] {
            let kept = (-length_s / span_s).exp();
            memory.0 = memory.0 * kept + bad as f64;
            memory.1 = memory.1 * kept + (good + bad) as f64;
        }
    }

    /// Part of attempts that fail.
    pub(super) fn share(&self) -> Option<f64> {
        (self.long.1 >= LEAST_COUNT).then(|| {
            let short = self.short.0 / self.short.1.max(1.0);
            f64::max(short, self.long.0 / self.long.1)
        })
    }
}

impl Sums {
    /// Takes in times. Where peers tell nothing the profile alone has to.
    pub(super) fn latency(&mut self, seen: &Observed<'_>, peer: Option<Typical>) {
        let (low_ms, high_ms) = seen.predicted_ms;
        debug_assert!(low_ms <= high_ms && low_ms > 0.0);
        let count: f64 = logarithms(seen.times).map(|(_, count)| count).sum();
        if count <= 0.0 || seen.times.count == 0 {
            return;
        }
        let peer = peer.unwrap_or(Typical {
            ratio: 1.0,
            mean: 0.0,
            deviation: USUAL_DEVIATION,
        });
        let mean_ms = seen.times.sum_us as f64 / 1e3 / seen.times.count as f64;
        let by_ratio = |predicted_ms: f64| {
            let ratio = mean_ms / predicted_ms / peer.ratio.max(QUICKEST);
            ratio * (1.0 - 1.0 / SLOW) - SLOW.ln()
        };
        let logarithm = logarithms(seen.times).map(|(value, count)| value * count);
        let off = logarithm.sum::<f64>() / count - high_ms.ln() - peer.mean;
        let variance = peer.deviation.max(LEAST_DEVIATION).powi(2);
        let by_logarithm = SLOW.ln() / variance * (off - SLOW.ln() / 2.0);
        // In doubt about its load an engine is neither: bad only by the most that is predicted,
        // well only by the least.
        let bad = by_ratio(high_ms).min(by_logarithm);
        let good = by_ratio(low_ms);
        let weighed = |says: f64| (seen.weight * says.clamp(EACH.0, EACH.1)).min(EACH.1);
        self.add(weighed(bad), -seen.weight * good.clamp(EACH.0, EACH.1));
    }

    /// Takes in attempts that ended well and ones that did not; `usual` is the part of peers'
    /// attempts that fails.
    pub(super) fn failures(&mut self, good: u64, bad: u64, usual: Option<f64>, length_s: f64) {
        let usual = usual.unwrap_or(0.0);
        let usual = usual.clamp(USUAL_FAILURES, MOST_FAILURES / 3.0);
        let many = (3.0 * usual).clamp(MANY_FAILURES, MOST_FAILURES);
        let failed = (many / usual).ln();
        let answered = ((1.0 - many) / (1.0 - usual)).ln();
        let sum = bad as f64 * failed + good as f64 * answered;
        let most = MOST_PER_S * length_s;
        self.add(
            sum.clamp(-2.0 * most, most),
            (-sum).clamp(-2.0 * most, most),
        );
    }

    /// All was taken that may be for what was found: what it does from here on counts. Without this
    /// an engine that gets nothing any more would be what it last was for ever.
    pub(super) fn acted_on(&mut self) {
        self.bad = 0.0;
    }

    pub(super) fn says(&self) -> Says {
        if self.bad >= FOUND {
            Says::Outlier
        } else if self.good >= CLEARED {
            Says::Well
        } else {
            Says::Nothing
        }
    }

    /// Whether anything speaks for the engine or against it.
    pub(super) fn tells(&self) -> bool {
        self.bad > 0.0 || self.good > 0.0
    }

    fn add(&mut self, bad: f64, good: f64) {
        self.bad = (self.bad + bad).clamp(0.0, FOUND);
        self.good = (self.good + good).clamp(0.0, FOUND);
    }
}

/// The median of others in a list that rises by what it is the median of.
pub(super) fn median_of_others<T: Copy + PartialEq, V: Copy>(
    sorted: &[(T, V)],
    own: T,
) -> Option<V> {
    let at = sorted.iter().position(|(one, _)| *one == own);
    let others = sorted.len() - usize::from(at.is_some());
    if others == 0 {
        return None;
    }
    // Of two in the middle the worse one, so that less is an outlier.
    let middle = others / 2;
    let skip = usize::from(at.is_some_and(|at| at <= middle));
    Some(sorted[middle + skip].1)
}

/// Logarithms of milliseconds, and how many there are of each.
fn logarithms(seen: &Histogram) -> impl Iterator<Item = (f64, f64)> + '_ {
    let value = |bucket: usize| {
        let floor = bucket_floor_us(bucket).max(16) as f64;
        let next = bucket_floor_us((bucket + 1).min(HISTOGRAM_BUCKETS - 1)) as f64;
        ((floor * next.max(floor)).sqrt() / 1e3).ln()
    };
    let used = seen.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
    used.map(move |(bucket, count)| (value(bucket), *count as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_shm::signals::bucket_of_us;

    const ALIKE: Typical = Typical {
        ratio: 1.0,
        mean: 0.0,
        deviation: 0.0,
    };

    fn times(ms: f64, count: u64) -> Histogram {
        let us = (ms * 1e3) as u64;
        let mut histogram = Histogram::EMPTY;
        histogram.count = count;
        histogram.sum_us = us * count;
        histogram.buckets[bucket_of_us(us)] = count;
        histogram
    }

    /// Observations until a test says so, where 100 ms are predicted.
    fn until(says: Says, ms: f64, sums: &mut Sums, peer: Option<Typical>) -> Option<u32> {
        (1..=600).find(|_| {
            let seen = Observed {
                times: &times(ms, 1),
                predicted_ms: (100.0, 100.0),
                weight: 1.0,
            };
            sums.latency(&seen, peer);
            sums.says() == says
        })
    }

    #[test]
    fn five_times_as_slow_is_found_after_eight_and_well_again_after_eight() {
        // 5 x 3/4 - ln 4 = 2.36 each, and ln 4 - 3/4 = 0.64.
        let mut sums = Sums::default();
        assert_eq!(until(Says::Outlier, 500.0, &mut sums, Some(ALIKE)), Some(8));
        assert_eq!(until(Says::Well, 100.0, &mut sums, Some(ALIKE)), Some(8));
        // What was well for long is found as soon as what nothing is known of.
        assert_eq!(until(Says::Nothing, 100.0, &mut sums, Some(ALIKE)), None);
        let again = until(Says::Outlier, 500.0, &mut sums, Some(ALIKE));
        assert_eq!(again, Some(8));
        // Where nobody else tells it takes longer: prompts may just be unlike.
        let alone = until(Says::Outlier, 500.0, &mut Sums::default(), None);
        assert!(alone.is_some_and(|n| (9..30).contains(&n)), "{alone:?}");
    }

    #[test]
    fn as_slow_as_peers_is_well_and_half_as_slow_again_is_no_outlier() {
        let slow = Typical {
            ratio: 5.0,
            mean: 5f64.ln(),
            deviation: 0.5,
        };
        let mut sums = Sums::default();
        assert_eq!(until(Says::Well, 500.0, &mut sums, Some(slow)), Some(8));
        let mut sums = Sums::default();
        assert_eq!(until(Says::Outlier, 150.0, &mut sums, Some(ALIKE)), None);
        // One prompt of an unusual length is bad by its ratio, and usual by its logarithm.
        let unlike = Typical {
            deviation: 2.0,
            ..ALIKE
        };
        let mut sums = Sums::default();
        let found = until(Says::Outlier, 500.0, &mut sums, Some(unlike));
        assert!(found.is_some_and(|n| n > 50), "{found:?}");
    }

    #[test]
    fn what_one_queue_makes_late_is_one_observation() {
        let mut sums = Sums::default();
        let seen = Observed {
            times: &times(5_000.0, 1_000),
            predicted_ms: (100.0, 100.0),
            weight: 0.5,
        };
        for _ in 0..4 {
            sums.latency(&seen, Some(ALIKE));
            assert_eq!(sums.says(), Says::Nothing);
        }
        sums.latency(&seen, Some(ALIKE));
        assert_eq!(sums.says(), Says::Outlier);
    }

    #[test]
    fn failures_count_against_what_is_usual_among_peers() {
        let until = |bad: u64, usual: f64| {
            let mut sums = Sums::default();
            (1..=600).find(|_| {
                sums.failures(10 - bad, bad, Some(usual), 1.0);
                sums.says() == Says::Outlier
            })
        };
        assert_eq!(until(10, 0.0), Some(9));
        assert_eq!(until(3, 0.0), Some(9));
        assert_eq!(until(1, 0.0), None);
        assert_eq!(until(3, 0.3), None);
        assert_eq!(until(10, 0.3), Some(9));
        // What befalls all shows in seconds.
        let mut all = Failures::default();
        (0..300).for_each(|_| all.absorb(10, 0, 2.0));
        assert_eq!(all.share(), Some(0.0));
        all.absorb(0, 10, 2.0);
        assert!(all.share().is_some_and(|s| s > 0.25), "{all:?}");
    }

    #[test]
    fn the_median_is_of_others_and_of_two_the_worse() {
        let sorted = [("a", 1), ("b", 2), ("c", 3), ("d", 9)];
        assert_eq!(median_of_others(&sorted, "d"), Some(2));
        assert_eq!(median_of_others(&sorted, "a"), Some(3));
        assert_eq!(median_of_others(&sorted, "z"), Some(3));
        assert_eq!(median_of_others(&sorted[..2], "b"), Some(1));
        assert_eq!(median_of_others(&sorted[..1], "a"), None);
    }
}
