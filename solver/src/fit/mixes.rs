//! Samples of like requests, put together: what each mix showed by itself.

use super::Tokens;
use super::regress::{self, Line, Observed};
use super::sample::Sample;

/// Samples whose tokens differ by less than this factor are of one mix.
const ALIKE: f64 = 1.15;
/// Most mixes; further ones join the nearest.
const MOST_MIXES: usize = 32;

/// Samples of like requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixed {
    /// Mean prompt tokens, cached ones included.
    pub prompt_tokens: f64,
    /// Mean prompt tokens that were not cached.
    pub uncached_tokens: f64,
    /// Mean tokens of an answer.
    pub output_tokens: f64,
    /// Positions of its samples.
    pub members: Vec<usize>,
    /// Requests per second at which the engine was full, where it was.
    pub saturation_rps: Option<f64>,
}

impl Mixed {
    /// Its mean request.
    #[must_use]
    pub fn tokens(&self) -> Tokens {
        Tokens {
            uncached_tokens: self.uncached_tokens,
            cached_tokens: (self.prompt_tokens - self.uncached_tokens).max(0.0),
            output_tokens: self.output_tokens,
        }
    }
}

/// The mixes of samples, the one with most samples first.
#[must_use]
pub fn mixes(samples: &[Sample]) -> Vec<Mixed> {
    let mut mixes: Vec<Mixed> = Vec::new();
    for (i, sample) in samples.iter().enumerate() {
        let far = |at: &usize| distance(&mixes[*at], sample);
        let nearest = (0..mixes.len()).min_by(|a, b| far(a).total_cmp(&far(b)));
        let joins = |at: &usize| mixes.len() == MOST_MIXES || far(at) <= ALIKE.ln();
        match nearest.filter(joins) {
            Some(at) => mixes[at].members.push(i),
            None => mixes.push(Mixed {
                prompt_tokens: sample.prompt_tokens,
                uncached_tokens: sample.uncached_tokens(),
                output_tokens: sample.output_tokens,
                members: vec![i],
                saturation_rps: None,
            }),
        }
    }
    for mix in &mut mixes {
        let own: Vec<&Sample> = mix.members.iter().map(|&i| &samples[i]).collect();
        mix.prompt_tokens = mean(&own, |s| s.prompt_tokens);
        mix.uncached_tokens = mean(&own, Sample::uncached_tokens);
        mix.output_tokens = mean(&own, |s| s.output_tokens);
        mix.saturation_rps = saturation(&own);
    }
    mixes.sort_by_key(|mix| std::cmp::Reverse(mix.members.len()));
    mixes
}

/// Time between tokens against requests per second, of samples that kept up.
#[must_use]
pub fn tbot(samples: &[Sample], mix: &Mixed) -> Line {
    line(samples, mix, |s| s.tbot_ms)
}

/// What the first token takes longer than another one, against requests per second.
#[must_use]
pub fn first(samples: &[Sample], mix: &Mixed) -> Line {
    line(samples, mix, |s| (s.ttft_ms - s.tbot_ms).max(0.0))
}

fn line(samples: &[Sample], mix: &Mixed, value: impl Fn(&Sample) -> f64) -> Line {
    let own = mix.members.iter().map(|&i| &samples[i]);
    let kept_up = own.filter(|s| !s.is_saturated());
    let points: Vec<Observed> = kept_up
        .map(|s| Observed {
            x: s.load_rps,
            y: value(s),
            weight: s.seconds,
        })
        .collect();
    regress::convex(&points)
}

/// How much two kinds of requests differ: the larger logarithm of their tokens' ratios.
fn distance(mix: &Mixed, sample: &Sample) -> f64 {
    let uncached = (mix.uncached_tokens / sample.uncached_tokens()).ln().abs();
    let prompt = (mix.prompt_tokens / sample.prompt_tokens).ln().abs();
    let output = (mix.output_tokens / sample.output_tokens).ln().abs();
    uncached.max(prompt).max(output)
}

/// The most that a full engine got done; at least what one that kept up did. Not the mean: an engine
/// that was nearly full may have been taken for one that was.
fn saturation(own: &[&Sample]) -> Option<f64> {
    let full = own.iter().filter(|s| s.is_saturated());
    let most = full.map(|s| s.done_rps()).reduce(f64::max)?;
    let kept_up = own.iter().filter(|s| !s.is_saturated());
    Some(kept_up.map(|s| s.load_rps).fold(most, f64::max))
}

/// Mean over samples by the time they cover.
#[must_use]
pub fn mean(samples: &[&Sample], value: impl Fn(&Sample) -> f64) -> f64 {
    let seconds: f64 = samples.iter().map(|s| s.seconds).sum();
    let sum: f64 = samples.iter().map(|s| value(s) * s.seconds).sum();
    sum / seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::sample::tests::sample;

    #[test]
    fn like_samples_are_one_mix_and_cached_tokens_make_another() {
        let mut list: Vec<Sample> = (1..6).map(|i| sample(f64::from(i), 50.0, 10.0)).collect();
        list[1].prompt_tokens = 1_100.0;
        list[4].hit_rate = 0.5;
        let found = mixes(&list);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].members, [0, 1, 2, 3]);
        assert_eq!(
            (found[0].prompt_tokens, found[0].saturation_rps),
            (1_025.0, None)
        );
        assert_eq!(
            (found[1].uncached_tokens, found[1].prompt_tokens),
            (500.0, 1_000.0)
        );
    }

    #[test]
    fn a_full_engine_does_the_most_it_did_and_no_less_than_when_it_kept_up() {
        let mut list: Vec<Sample> = [8.0, 12.0, 16.0].map(|l| sample(l, 50.0, 10.0)).into();
        list[1].completed_rps = Some(9.0);
        list[2].completed_rps = Some(10.0);
        assert_eq!(mixes(&list)[0].saturation_rps, Some(10.0));
        list[0].load_rps = 10.5;
        assert_eq!(mixes(&list)[0].saturation_rps, Some(10.5));
    }

    #[test]
    fn unlike_mixes_without_end_join_the_nearest() {
        let grown = |i: i32| {
            let mut one = sample(1.0, 50.0, 10.0);
            one.prompt_tokens = 1.5f64.powi(i);
            one
        };
        let list: Vec<Sample> = (0..40).map(grown).collect();
        let found = mixes(&list);
        assert_eq!(found.len(), MOST_MIXES);
        assert_eq!(found.iter().map(|m| m.members.len()).sum::<usize>(), 40);
    }
}
