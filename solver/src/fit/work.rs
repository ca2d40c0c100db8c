//! What one token costs: the two rates of a capacity, and how much of the first token's time grows
//! with the prompt.
//!
//! A batching engine works in steps. A step costs something by itself, each prompt token and each
//! answer's token in it cost something more, and the engine is full when nothing is left of a
//! second. So the time between tokens is T = T0 / (1 - load x (prompt x p + output x d)), whatever
//! the mix, and a prompt at an idle engine takes one such step and prompt x p. Two rates follow
//! from samples of one mix that way, and from the loads that fill the engine where two unlike mixes
//! did. What an answer's token costs by what it reads comes before (`context`): here output counts
//! in tokens that read nothing.

use super::context::{Context, Source};
use super::mixes::{self, Mixed};
use super::regress;
use super::sample::Sample;
use super::{Tokens, tokens};

/// Prefill over decode rate where nothing tells them apart: what a topology assumes too.
const ASSUMED_RATIO: f64 = 10.0;
/// Mixes whose prompt over output differs by less than this factor do not tell the rates apart.
const UNLIKE: f64 = 1.5;
/// The time between tokens must rise by this factor for its shape to say anything.
const RISES: f64 = 1.15;
/// How far the steps' formula may be off, root mean square, to be believed.
const MOST_OFF: f64 = 0.15;
/// A part of the work below this is not told apart from none.
const LEAST_PART: f64 = 0.03;

/// How prefill was told from decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// By the loads at which unlike mixes filled the engine.
    Mixes,
    /// By the first token's time at rest and how the time between tokens rises.
    Steps,
    /// By the first token's time at rest and the load that filled the engine.
    Rest,
    /// Not at all: a usual ratio is assumed.
    Assumed,
}

/// What tokens cost, in engine-seconds; the engine is full at [`Work::full`] a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Of an uncached prompt token.
    pub prefill_s: f64,
    /// Of an answer's token that reads nothing.
    pub decode_s: f64,
    /// How they were told apart.
    pub split: Split,
    /// What an answer's token costs by what it reads.
    pub context: Context,
    /// Engine-seconds per second at which the engine is full.
    pub full: f64,
    /// Some sample saw it full; else `full` is a lower bound.
    pub seen_full: bool,
    /// The most by which a mix that filled the engine did so at another work than `full`; `None`
    /// with fewer than two such mixes.
    pub separability_error: Option<f64>,
    /// Share of the first token's time, one step taken off, that grows with the prompt.
    pub prompt_share: f64,
}

impl Work {
    /// Engine-seconds of a request.
    #[must_use]
    pub fn seconds(&self, tokens: Tokens) -> f64 {
        tokens.uncached_tokens * self.prefill_s + self.context.answer_tokens(tokens) * self.decode_s
    }

    /// Utilisation by so many requests a second.
    #[must_use]
    pub fn utilisation(&self, load_rps: f64, tokens: Tokens) -> f64 {
        load_rps * self.seconds(tokens) / self.full
    }
}

/// What tokens cost, by all samples of one engine kind; `mixes` must not be empty, and its first
/// one is what `prompt_share` refers to. `source` says what a context costs.
#[must_use]
pub fn work(samples: &[Sample], mixes: &[Mixed], source: Source) -> Work {
    debug_assert!(!mixes.is_empty());
    let rest = Rest::of(samples, mixes);
    let context = Context::of(source, mixes, rises(samples));
    let (prefill_s, decode_s, split) = by_mixes(mixes, context)
        .or_else(|| by_steps(samples, mixes, &rest, context))
        .or_else(|| by_rest(mixes, &rest, context))
        .unwrap_or((1.0 / ASSUMED_RATIO, 1.0, Split::Assumed));
    let mut work = Work {
        prefill_s,
        decode_s,
        split,
        context,
        full: 1.0,
        seen_full: false,
        separability_error: None,
        prompt_share: rest.prompt_share(mixes[0].uncached_tokens),
    };
    let at = |m: &Mixed, rps: f64| rps * work.seconds(m.tokens());
    let mut full: Vec<f64> = mixes
        .iter()
        .filter_map(|m| m.saturation_rps.map(|rps| at(m, rps)))
        .collect();
    full.sort_by(f64::total_cmp);
    if full.is_empty() {
        let of = |s: &Sample| s.load_rps * work.seconds(tokens(s));
        work.full = samples.iter().map(of).fold(0.0, f64::max);
        return work;
    }
    work.full = f64::midpoint(full[(full.len() - 1) / 2], full[full.len() / 2]);
    work.seen_full = true;
    if full.len() > 1 {
        let off = full.iter().map(|f| (f / work.full - 1.0).abs());
        work.separability_error = Some(off.fold(0.0, f64::max));
    }
    work
}

/// The first token's time at rest, one step taken off: `fixed_ms` and `per_token_ms` of the prompt.
struct Rest {
    fixed_ms: f64,
    per_token_ms: f64,
}

impl Rest {
    fn of(samples: &[Sample], mixes: &[Mixed]) -> Self {
        let seen: Vec<(f64, f64)> = mixes
            .iter()
            .map(|m| (m.uncached_tokens, mixes::first(samples, m).at_rest()))
            .filter(|(_, ms)| *ms > 0.0)
            .collect();
        let Some(&(tokens, ms)) = seen.first() else {
            return Self {
                fixed_ms: 0.0,
                per_token_ms: 0.0,
            };
        };
        let least = seen.iter().map(|s| s.0).fold(f64::INFINITY, f64::min);
        let most = seen.iter().map(|s| s.0).fold(0.0, f64::max);
        if most < UNLIKE * least {
            return Self {
                fixed_ms: 0.0,
                per_token_ms: ms / tokens,
            };
        }
        // Relative errors: each row divided by its goal.
        let columns = [
            seen.iter().map(|s| 1.0 / s.1).collect(),
            seen.iter().map(|s| s.0 / s.1).collect(),
        ];
        let found = regress::non_negative_least_squares(&columns, &vec![1.0; seen.len()]);
        Self {
            fixed_ms: found[0],
            per_token_ms: found[1],
        }
    }

    fn prompt_share(&self, uncached_tokens: f64) -> f64 {
        let grows = self.per_token_ms * uncached_tokens;
        match self.fixed_ms + grows {
            0.0 => 1.0,
            all => grows / all,
        }
    }
}

/// From the loads at which unlike mixes filled the engine.
fn by_mixes(mixes: &[Mixed], context: Context) -> Option<(f64, f64, Split)> {
    let full: Vec<(f64, f64)> = mixes
        .iter()
        .filter_map(|m| {
            let rps = m.saturation_rps?;
            let answer = context.answer_tokens(m.tokens());
            Some((rps * m.uncached_tokens, rps * answer))
        })
        .collect();
    let ratios = full.iter().map(|(prompt, output)| prompt / output);
    let (least, most) = ratios.fold((f64::INFINITY, 0.0_f64), |(a, b), r| (a.min(r), b.max(r)));
    if full.len() < 2 || most < UNLIKE * least {
        return None;
    }
    let prompt: Vec<f64> = full.iter().map(|f| f.0).collect();
    let output: Vec<f64> = full.iter().map(|f| f.1).collect();
    let found = regress::least_squares(&[&prompt, &output], &vec![1.0; full.len()])?;
    let above = found.iter().all(|cost| *cost > 0.0);
    above.then_some((found[0], found[1], Split::Mixes))
}

/// From the first token at rest, and from T (1 - load x (prompt p + output d)) = T0.
fn by_steps(
    samples: &[Sample],
    mixes: &[Mixed],
    rest: &Rest,
    context: Context,
) -> Option<(f64, f64, Split)> {
    let prefill_s = rest.per_token_ms / 1e3;
    if prefill_s <= 0.0 || !rises(samples) {
        return None;
    }
    // With a = 1 / T0 and b = d / T0, linear in both: T a (1 - load prompt p) - T b load output = 1.
    let prompt = |s: &Sample| s.load_rps * s.uncached_tokens() * prefill_s;
    let first: Vec<f64> = kept_up(samples)
        .map(|s| s.tbot_ms * (1.0 - prompt(s)))
        .collect();
    let second: Vec<f64> = kept_up(samples)
        .map(|s| -s.tbot_ms * s.load_rps * context.answer_tokens(tokens(s)))
        .collect();
    let found = regress::least_squares(&[&first, &second], &vec![1.0; first.len()])?;
    let decode_s = found[1] / found[0];
    let off = |(x, y): (&f64, &f64)| (x * found[0] + y * found[1] - 1.0).powi(2);
    let off: f64 = first.iter().zip(&second).map(off).sum();
    let believed = (off / first.len() as f64).sqrt() <= MOST_OFF && found[0] > 0.0;
    (believed && plausible(mixes, prefill_s, decode_s, context)).then_some((
        prefill_s,
        decode_s,
        Split::Steps,
    ))
}

/// Samples of an engine that kept up, with tokens to tell the time between.
fn kept_up(samples: &[Sample]) -> impl Iterator<Item = &Sample> {
    samples
        .iter()
        .filter(|s| !s.is_saturated() && s.tbot_ms > 0.0)
}

/// Whether tokens come slower under load.
fn rises(samples: &[Sample]) -> bool {
    let least = kept_up(samples)
        .map(|s| s.tbot_ms)
        .fold(f64::INFINITY, f64::min);
    let most = kept_up(samples).map(|s| s.tbot_ms).fold(0.0, f64::max);
    most >= RISES * least
}

/// Whether such costs leave a full engine neither idle nor doing more than a second's work.
fn plausible(mixes: &[Mixed], prefill_s: f64, decode_s: f64, context: Context) -> bool {
    mixes.iter().all(|m| {
        let answer = context.answer_tokens(m.tokens());
        let (prompt, output) = (m.uncached_tokens * prefill_s, answer * decode_s);
        let full = m.saturation_rps.map(|rps| rps * (prompt + output));
        output >= LEAST_PART * prompt && full.is_none_or(|full| (0.25..1.25).contains(&full))
    })
}

/// From the first token at rest, and what it leaves of the load that filled the engine.
fn by_rest(mixes: &[Mixed], rest: &Rest, context: Context) -> Option<(f64, f64, Split)> {
    let prefill_s = rest.per_token_ms / 1e3;
    let (mix, rps) = mixes.iter().find_map(|m| Some((m, m.saturation_rps?)))?;
    let left = 1.0 / rps - mix.uncached_tokens * prefill_s;
    let enough = prefill_s > 0.0 && left >= LEAST_PART / rps;
    let answer = context.answer_tokens(mix.tokens());
    enough.then(|| (prefill_s, left / answer, Split::Rest))
}

#[cfg(test)]
mod tests {
    use super::super::context::Told;
    use super::super::mixes::mixes;
    use super::*;

    /// An ideal engine: a step of 8 ms, 0.05 ms a prompt token, 0.1 ms an answer's, full at 0.8.
    fn ideal(prompt: f64, output: f64, utilisations: &[f64]) -> Vec<Sample> {
        let seconds = prompt * 5e-5 + output * 1e-4;
        let one = |u: &f64| {
            let load = 0.8 * u.min(1.0);
            let tbot_ms = 8.0 / (1.0 - load);
            Sample {
                completed_rps: Some(load / seconds),
                prompt_tokens: prompt,
                output_tokens: output,
                ..super::super::sample::tests::sample(
                    0.8 * u / seconds,
                    tbot_ms + prompt * 0.05,
                    tbot_ms,
                )
            }
        };
        utilisations.iter().map(one).collect()
    }

    /// Where a context costs nothing.
    fn told(samples: &[Sample]) -> Work {
        work(samples, &mixes(samples), Source::Nothing)
    }

    fn near(value: f64, wanted: f64) {
        assert!((value / wanted - 1.0).abs() < 1e-6, "{value}, not {wanted}");
    }

    #[test]
    fn one_mix_tells_both_rates_of_an_ideal_engine() {
        let samples = ideal(1_000.0, 200.0, &[0.1, 0.3, 0.5, 0.7, 0.9, 1.3]);
        let work = told(&samples);
        near(work.prefill_s, 5e-5);
        near(work.decode_s, 1e-4);
        near(work.full, 0.8);
        assert_eq!((work.split, work.seen_full), (Split::Steps, true));
        assert_eq!((work.prompt_share, work.separability_error), (1.0, None));
    }

    #[test]
    fn unlike_mixes_tell_the_rates_by_what_filled_the_engine() {
        let mut samples = ideal(1_000.0, 200.0, &[0.1, 0.5, 0.9, 1.3]);
        samples.extend(ideal(200.0, 200.0, &[0.1, 0.5, 0.9, 1.3]));
        let work = told(&samples);
        // In seconds of a full engine.
        near(work.prefill_s, 5e-5 / 0.8);
        near(work.decode_s, 1e-4 / 0.8);
        near(work.full, 1.0);
        assert_eq!(work.split, Split::Mixes);
        assert!(work.separability_error.unwrap() < 1e-9);
        near(work.prompt_share, 1.0);
    }

    #[test]
    fn a_time_that_does_not_grow_with_the_prompt_is_told() {
        let mut samples = ideal(1_000.0, 200.0, &[0.1, 0.5, 0.9]);
        samples.extend(ideal(250.0, 200.0, &[0.1, 0.5, 0.9]));
        samples.iter_mut().for_each(|s| s.ttft_ms += 50.0);
        // 50 ms fixed and 50 ms of the prompt.
        near(told(&samples).prompt_share, 0.5);
        samples
            .iter_mut()
            .for_each(|s| s.ttft_ms = 100.0 + s.tbot_ms);
        assert!(told(&samples).prompt_share < 1e-9);
    }

    #[test]
    fn where_tokens_come_evenly_the_load_that_filled_it_tells_the_rest() {
        let mut samples = ideal(1_000.0, 200.0, &[0.1, 0.5, 0.9, 1.3]);
        samples.iter_mut().for_each(|s| {
            s.tbot_ms = 10.0;
            s.ttft_ms = 60.0;
        });
        let work = told(&samples);
        // Full at 0.8 / 0.07 requests/s: 87.5 ms each, 50 of them the prompt's.
        near(work.prefill_s, 5e-5);
        near(work.decode_s, 0.0375 / 200.0);
        assert_eq!((work.split, work.full), (Split::Rest, 1.0));
    }

    #[test]
    fn what_cannot_be_told_is_assumed_and_a_load_that_fills_nothing_is_a_bound() {
        let mut samples = ideal(1_000.0, 200.0, &[0.1, 0.5, 0.9]);
        // Far more than the prompts' own time: it is no queue for the engine.
        samples.iter_mut().for_each(|s| {
            s.tbot_ms = 10.0;
            s.ttft_ms = 900.0;
        });
        let work = told(&samples);
        assert_eq!((work.split, work.seen_full), (Split::Assumed, false));
        near(work.decode_s / work.prefill_s, 10.0);
        near(work.utilisation(0.9 * 0.8 / 0.07, tokens(&samples[0])), 1.0);
    }

    #[test]
    fn at_one_mix_a_context_that_is_assumed_changes_what_is_said_of_others_only() {
        let samples = ideal(1_000.0, 200.0, &[0.1, 0.3, 0.5, 0.7, 0.9, 1.3]);
        let (without, with) = (
            told(&samples),
            work(&samples, &mixes(&samples), Source::Samples),
        );
        assert_eq!(with.split, Split::Steps);
        let twice = with.context.tokens.unwrap();
        assert_eq!(with.context.told, Told::Assumed);
        // An answer's token reads 1,100.
        let reads = |context: f64| 1.0 + context / twice;
        near(with.decode_s, 1e-4 / reads(1_100.0));
        near(with.prefill_s, without.prefill_s);
        let own = tokens(&samples[0]);
        near(with.utilisation(3.0, own), without.utilisation(3.0, own));
        let long = Tokens {
            uncached_tokens: 1_000.0,
            cached_tokens: 3_000.0,
            output_tokens: 200.0,
        };
        near(
            with.seconds(long),
            0.05 + 0.02 * reads(4_100.0) / reads(1_100.0),
        );
        near(without.seconds(long), 0.07);
    }

    #[test]
    fn where_tokens_come_evenly_no_context_is_assumed_to_cost_anything() {
        let mut samples = ideal(1_000.0, 200.0, &[0.1, 0.5, 0.9, 1.3]);
        samples.iter_mut().for_each(|s| s.tbot_ms = 10.0);
        let work = work(&samples, &mixes(&samples), Source::Samples);
        assert_eq!(
            (work.context.tokens, work.context.told),
            (None, Told::Level)
        );
    }
}
