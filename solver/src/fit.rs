//! From measurements of engines to capacities and latency curves a topology can hold.
//!
//! Pure: samples in, one [`Fit`] for each engine kind and model out. Load is counted in work, so
//! that a fit at one mix of tokens speaks about others: a request takes prompt x p + output x d
//! engine-seconds, utilisation is that times load over what fills the engine, the time between
//! tokens is one curve over utilisation, and the first token takes one such time plus a part that
//! grows with the prompt.
//!
//! | file | noun |
//! |---|---|
//! | `sample` | one measurement |
//! | `read` | samples out of a file |
//! | `recorded` | samples out of a solver's history |
//! | `mixes` | samples of like requests |
//! | `work` | what tokens cost, what fills the engine |
//! | `regress` | the convex, rising line through points |
//! | `write` | the fit as TOML for a topology, as JSON, as words |
//! | `plot` | samples, curve and saturation as SVG |

pub mod mixes;
pub mod plot;
pub mod read;
pub mod recorded;
pub mod regress;
pub mod sample;
pub mod work;
pub mod write;

use crate::model::topology::Point;
use mixes::Mixed;
use regress::{Line, Observed};
use sample::Sample;
use work::Work;

/// Samples that kept up which a fit needs at least.
const LEAST_SAMPLES: usize = 4;
/// Highest over lowest load that a fit needs at least.
const LEAST_SPREAD: f64 = 1.5;
/// Samples whose time between tokens is above that to the first one, in more than this share, say
/// that the first token does not wait for a step.
const NO_STEP: f64 = 0.1;

/// Capacity and latency of an engine kind with a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// GPU and engine type.
    pub kind: String,
    /// Model; empty where it does not matter.
    pub model: String,
    /// How many samples it is made of, and how many of those saw the engine full.
    pub samples: (usize, usize),
    /// Tokens that the curve's first-token times are for.
    pub reference: Tokens,
    /// What tokens cost.
    pub work: Work,
    /// KV memory, tokens, where samples tell.
    pub kv_tokens: Option<f64>,
    /// Latency against utilisation, at the reference's tokens; convex and never falling.
    pub points: Vec<Point>,
    /// How far samples that kept up are from it.
    pub error: Residual,
    /// The same by mix.
    pub residuals: Vec<MixResidual>,
    tbot: Line,
    first: Line,
    has_step: bool,
}

/// Tokens of a mean request.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Tokens {
    /// Of the prompt, cached ones left out.
    pub uncached_tokens: f64,
    /// Of the answer.
    pub output_tokens: f64,
}

/// Relative differences of samples from a fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Residual {
    /// Mean of the absolute ones, first token.
    pub ttft_mean: f64,
    /// The worst, first token.
    pub ttft_worst: f64,
    /// Mean of the absolute ones, between tokens.
    pub tbot_mean: f64,
    /// The worst, between tokens.
    pub tbot_worst: f64,
}

/// Residuals of one mix.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct MixResidual {
    /// The mix.
    #[serde(flatten)]
    pub tokens: Tokens,
    /// Samples of it that kept up.
    pub samples: usize,
    /// Requests per second that filled the engine, where some did.
    pub saturation_rps: Option<f64>,
    /// What the fit says fills it.
    pub fitted_rps: f64,
    /// How far its samples are from the fit.
    #[serde(flatten)]
    pub residual: Residual,
}

/// What a fit expects of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Load over capacity.
    pub utilisation: f64,
    /// Time to the first token, milliseconds.
    pub ttft_ms: f64,
    /// Time between tokens, milliseconds.
    pub tbot_ms: f64,
}

/// Why samples make no fit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// Too few samples kept up.
    #[error(
        "{name}: {found} samples of an engine that kept up, {full} of a full one: at least {least} \
         of the first are needed",
        least = LEAST_SAMPLES
    )]
    TooFew {
        /// Kind and model.
        name: String,
        /// Samples that kept up.
        found: usize,
        /// Samples that did not.
        full: usize,
    },
    /// All loads are about the same.
    #[error(
        "{name}: loads from {least_rps} to {most_rps} requests/s tell no curve: the highest must be \
         at least {spread} times the lowest",
        spread = LEAST_SPREAD
    )]
    OneLoad {
        /// Kind and model.
        name: String,
        /// Lowest load of a sample that kept up.
        least_rps: f64,
        /// Highest.
        most_rps: f64,
    },
}

/// Fits the samples of one engine kind and model, which the caller has put together.
///
/// # Errors
///
/// [`FitError`] says what the samples lack.
pub fn fit(kind: &str, model: &str, samples: &[Sample]) -> Result<Fit, FitError> {
    let kept_up: Vec<&Sample> = samples.iter().filter(|s| !s.is_saturated()).collect();
    check(kind, model, samples, &kept_up)?;
    let mixes = mixes::mixes(samples);
    let work = work::work(samples, &mixes);
    let reference = Tokens {
        uncached_tokens: mixes[0].uncached_tokens,
        output_tokens: mixes[0].output_tokens,
    };
    let without = kept_up.iter().filter(|s| s.ttft_ms < s.tbot_ms).count();
    let mut fit = Fit {
        kind: kind.to_owned(),
        model: model.to_owned(),
        samples: (samples.len(), samples.len() - kept_up.len()),
        reference,
        work,
        kv_tokens: kv_tokens(&kept_up),
        points: Vec::new(),
        error: Residual::default(),
        residuals: Vec::new(),
        tbot: Line::default(),
        first: Line::default(),
        has_step: (without as f64) <= NO_STEP * kept_up.len() as f64,
    };
    let curve = |value: &dyn Fn(&Sample) -> f64| {
        let point = |s: &&Sample| Observed {
            x: work.utilisation(s.load_rps, s.uncached_tokens(), s.output_tokens),
            y: value(s),
            weight: s.seconds,
        };
        regress::convex(&kept_up.iter().map(point).collect::<Vec<_>>())
    };
    fit.tbot = curve(&|s| s.tbot_ms);
    fit.first = curve(&|s| {
        let step_ms = if fit.has_step { s.tbot_ms } else { 0.0 };
        (s.ttft_ms - step_ms).max(0.0) / fit.scale(s.uncached_tokens())
    });
    fit.points = fit.curve_points();
    fit.error = fit.residual(kept_up.iter().copied());
    fit.residuals = mixes
        .iter()
        .filter_map(|m| fit.by_mix(samples, m))
        .collect();
    Ok(fit)
}

impl Fit {
    /// What it expects of an engine that gets so many requests a second.
    #[must_use]
    pub fn expected(&self, load_rps: f64, tokens: Tokens) -> Expected {
        let Tokens {
            uncached_tokens: prompt,
            output_tokens: output,
        } = tokens;
        let utilisation = self.work.utilisation(load_rps, prompt, output);
        let tbot_ms = self.tbot.at(utilisation);
        let step_ms = if self.has_step { tbot_ms } else { 0.0 };
        Expected {
            utilisation,
            ttft_ms: step_ms + self.first.at(utilisation) * self.scale(prompt),
            tbot_ms,
        }
    }

    /// Requests per second that fill the engine.
    #[must_use]
    pub fn capacity_rps(&self, tokens: Tokens) -> f64 {
        1.0 / self
            .work
            .utilisation(1.0, tokens.uncached_tokens, tokens.output_tokens)
    }

    /// Uncached prompt tokens per second that fill the engine alone.
    #[must_use]
    pub fn prefill_tps(&self) -> f64 {
        self.work.full / self.work.prefill_s
    }

    /// Answers' tokens per second that fill the engine alone.
    #[must_use]
    pub fn decode_tps(&self) -> f64 {
        self.work.full / self.work.decode_s
    }

    /// Kind and model, for people.
    #[must_use]
    pub fn name(&self) -> String {
        name(&self.kind, &self.model)
    }

    /// How much longer the part of the first token that is not a step takes for such a prompt.
    fn scale(&self, uncached_tokens: f64) -> f64 {
        let share = self.work.prompt_share;
        1.0 - share + share * uncached_tokens / self.reference.uncached_tokens
    }

    /// The curve's bends, and its end at full load.
    fn curve_points(&self) -> Vec<Point> {
        let mut places: Vec<f64> = [&self.tbot, &self.first]
            .into_iter()
            .flat_map(|line| line.knots.iter().map(|knot| knot.0))
            .chain([1.0])
            .collect();
        places.sort_by(f64::total_cmp);
        places.dedup_by(|a, b| *a - *b < 1e-4);
        let point = |&utilisation: &f64| {
            let tbot_ms = self.tbot.at(utilisation);
            let step_ms = if self.has_step { tbot_ms } else { 0.0 };
            Point {
                utilisation,
                ttft_ms: step_ms + self.first.at(utilisation),
                tbot_ms,
            }
        };
        places.iter().map(point).collect()
    }

    fn residual<'a>(&self, samples: impl Iterator<Item = &'a Sample>) -> Residual {
        let (mut sum, mut count) = (Residual::default(), 0.0_f64);
        for sample in samples {
            let expected = self.expected(sample.load_rps, tokens(sample));
            let off = |expected: f64, seen: f64| match seen > 0.0 {
                true => (expected / seen - 1.0).abs(),
                false => 0.0,
            };
            let ttft = off(expected.ttft_ms, sample.ttft_ms);
            let tbot = off(expected.tbot_ms, sample.tbot_ms);
            sum.ttft_mean += ttft;
            sum.tbot_mean += tbot;
            sum.ttft_worst = sum.ttft_worst.max(ttft);
            sum.tbot_worst = sum.tbot_worst.max(tbot);
            count += 1.0;
        }
        sum.ttft_mean /= count.max(1.0);
        sum.tbot_mean /= count.max(1.0);
        sum
    }

    fn by_mix(&self, samples: &[Sample], mix: &Mixed) -> Option<MixResidual> {
        let own = mix.members.iter().map(|&i| &samples[i]);
        let kept_up: Vec<&Sample> = own.filter(|s| !s.is_saturated()).collect();
        let tokens = Tokens {
            uncached_tokens: mix.uncached_tokens,
            output_tokens: mix.output_tokens,
        };
        (!kept_up.is_empty() || mix.saturation_rps.is_some()).then(|| MixResidual {
            tokens,
            samples: kept_up.len(),
            saturation_rps: mix.saturation_rps,
            fitted_rps: self.capacity_rps(tokens),
            residual: self.residual(kept_up.iter().copied()),
        })
    }
}

/// Kind and model, for people.
#[must_use]
pub fn name(kind: &str, model: &str) -> String {
    match (kind, model) {
        ("", "") => "engine".to_owned(),
        (kind, "") => kind.to_owned(),
        ("", model) => model.to_owned(),
        (kind, model) => format!("{kind} {model}"),
    }
}

/// Tokens of a sample.
#[must_use]
pub fn tokens(sample: &Sample) -> Tokens {
    Tokens {
        uncached_tokens: sample.uncached_tokens(),
        output_tokens: sample.output_tokens,
    }
}

fn check(kind: &str, model: &str, all: &[Sample], kept_up: &[&Sample]) -> Result<(), FitError> {
    if kept_up.len() < LEAST_SAMPLES {
        return Err(FitError::TooFew {
            name: name(kind, model),
            found: kept_up.len(),
            full: all.len() - kept_up.len(),
        });
    }
    let loads = || kept_up.iter().map(|s| s.load_rps);
    let least_rps = loads().fold(f64::INFINITY, f64::min);
    let most_rps = loads().fold(0.0, f64::max);
    if most_rps < LEAST_SPREAD * least_rps {
        return Err(FitError::OneLoad {
            name: name(kind, model),
            least_rps,
            most_rps,
        });
    }
    Ok(())
}

/// KV memory by what was resident at the share in use: the median over samples in which that was
/// enough to divide by.
fn kv_tokens(kept_up: &[&Sample]) -> Option<f64> {
    let mut seen: Vec<f64> = kept_up
        .iter()
        .filter_map(|s| Some(s.resident_tokens() / s.kv_use.filter(|u| *u >= 0.02)?))
        .filter(|tokens| *tokens >= 1.0)
        .collect();
    seen.sort_by(f64::total_cmp);
    (!seen.is_empty()).then(|| seen[seen.len() / 2])
}
