//! From measurements of engines to capacities and latency curves a topology can hold.
//!
//! Pure: samples in, one [`Fit`] for each engine kind and model out. Load is counted in work, so
//! that a fit at one mix of tokens speaks about others: a request takes prompt x p + output x d
//! engine-seconds, where a token of output counts more the more it reads, utilisation is that times
//! load over what fills the engine, the time between tokens is one curve over utilisation, and the
//! first token takes some of those plus a part that grows with the prompt and, as far as prompts
//! wait for prompts, with their part of the load.
//!
//! | file | noun |
//! |---|---|
//! | `sample` | one measurement |
//! | `read` | samples out of a file |
//! | `recorded` | samples out of a solver's history |
//! | `mixes` | samples of like requests |
//! | `context` | what an answer's token costs by what it reads |
//! | `work` | what tokens cost, what fills the engine |
//! | `regress` | the convex, rising line through points |
//! | `write` | the fit as TOML for a topology, as JSON, as words |
//! | `plot` | samples, curve and saturation as SVG |

pub mod context;
pub mod mixes;
pub mod plot;
pub mod read;
pub mod recorded;
pub mod regress;
pub mod sample;
pub mod work;
pub mod write;

use crate::model::prefill;
use crate::model::topology::Point;
use context::Source;
use mixes::Mixed;
use regress::{Line, Observed};
use sample::Sample;
use work::{Split, Work};

/// Samples that kept up which a fit needs at least.
const LEAST_SAMPLES: usize = 4;
/// Highest over lowest load that a fit needs at least.
const LEAST_SPREAD: f64 = 1.5;
/// Times between tokens that a first one takes: its own step and the rest of the one it came in, its
/// own alone, or none, where an engine does not work in steps.
const STEPS: [f64; 3] = [1.5, 1.0, 0.0];
/// Samples with less than that, in more than this share, say that it takes fewer.
const FEWER: f64 = 0.1;
/// Mean relative error of the first token by which fewer are the better guess.
const BETTER: f64 = 0.005;

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
    /// Times between tokens in a first one.
    pub steps: f64,
    tbot: Line,
    first: Line,
}

/// Tokens of a mean request.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Tokens {
    /// Of the prompt, cached ones left out.
    pub uncached_tokens: f64,
    /// Of the prompt, the cached ones: read by every token of the answer, but not computed.
    pub cached_tokens: f64,
    /// Of the answer.
    pub output_tokens: f64,
}

impl Tokens {
    /// Of the whole prompt.
    #[must_use]
    pub fn prompt_tokens(self) -> f64 {
        self.uncached_tokens + self.cached_tokens
    }
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
    fit_with(kind, model, samples, Source::default())
}

/// The same, with a word on what a context costs.
///
/// # Errors
///
/// [`FitError`] says what the samples lack.
pub fn fit_with(
    kind: &str,
    model: &str,
    samples: &[Sample],
    context: Source,
) -> Result<Fit, FitError> {
    let kept_up: Vec<&Sample> = samples.iter().filter(|s| !s.is_saturated()).collect();
    check(kind, model, samples, &kept_up)?;
    let mixes = mixes::mixes(samples);
    let work = work::work(samples, &mixes, context);
    let reference = mixes[0].tokens();
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
        steps: 0.0,
        tbot: Line::default(),
        first: Line::default(),
    };
    fit.tbot = fit.curve(&kept_up, |s| s.tbot_ms);
    let guesses: Vec<Fit> = STEPS
        .iter()
        .filter(|steps| has_steps(&kept_up, **steps))
        .map(|steps| fit.clone().with_steps(*steps, &kept_up))
        .collect();
    let error = |fit: &Fit| fit.error.ttft_mean;
    let least = guesses.iter().map(error).fold(f64::INFINITY, f64::min);
    let mut fit = guesses
        .into_iter()
        .find(|guess| error(guess) <= least + BETTER)
        .unwrap_or(fit);
    fit.points = fit.curve_points();
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
        let utilisation = self.work.utilisation(load_rps, tokens);
        let tbot_ms = self.tbot.at(utilisation);
        let first_ms = self.first.at(utilisation) * self.scale(tokens.uncached_tokens);
        Expected {
            utilisation,
            ttft_ms: self.steps * tbot_ms + first_ms * self.longer(utilisation, tokens),
            tbot_ms,
        }
    }

    /// Requests per second that fill the engine.
    #[must_use]
    pub fn capacity_rps(&self, tokens: Tokens) -> f64 {
        1.0 / self.work.utilisation(1.0, tokens)
    }

    /// Uncached prompt tokens per second that fill the engine alone.
    #[must_use]
    pub fn prefill_tps(&self) -> f64 {
        self.work.full / self.work.prefill_s
    }

    /// Tokens per second that fill the engine alone, of answers that read nothing.
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

    /// How much longer that part takes than at the reference, because prompts are another part of
    /// the load and wait for each other.
    fn longer(&self, utilisation: f64, tokens: Tokens) -> f64 {
        if self.work.split == Split::Assumed {
            return 1.0;
        }
        let share = |tokens: Tokens| {
            tokens.uncached_tokens * self.work.prefill_s / self.work.seconds(tokens)
        };
        let rise = self.first.at(utilisation) / self.first.at(0.0).max(f64::MIN_POSITIVE);
        prefill::longer(rise, utilisation, share(self.reference), share(tokens))
    }

    /// The line of a value over utilisation.
    fn curve(&self, kept_up: &[&Sample], value: impl Fn(&Sample) -> f64) -> Line {
        let point = |s: &&Sample| Observed {
            x: self.utilisation(s),
            y: value(s),
            weight: s.seconds,
        };
        let points: Vec<Observed> = kept_up.iter().map(point).collect();
        regress::convex(&regress::filled(&points))
    }

    fn utilisation(&self, sample: &Sample) -> f64 {
        self.work.utilisation(sample.load_rps, tokens(sample))
    }

    /// The first token's part, with so many steps taken off. How it rises is known when it is
    /// there, and mixes beside the reference rise otherwise: they are brought to it in a second go.
    fn with_steps(mut self, steps: f64, kept_up: &[&Sample]) -> Self {
        self.steps = steps;
        let part = |s: &Sample| {
            let rest_ms = (s.ttft_ms - steps * s.tbot_ms).max(0.0);
            rest_ms / self.scale(s.uncached_tokens())
        };
        let first = self.curve(kept_up, part);
        let rough = Self {
            first,
            ..self.clone()
        };
        let alike = |s: &Sample| part(s) / rough.longer(rough.utilisation(s), tokens(s));
        let first = self.curve(kept_up, alike);
        self.first = first;
        self.error = self.residual(kept_up.iter().copied());
        self
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
            Point {
                utilisation,
                ttft_ms: self.steps * tbot_ms + self.first.at(utilisation),
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
        let tokens = mix.tokens();
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

/// Whether first tokens take so many times that between tokens.
fn has_steps(kept_up: &[&Sample], steps: f64) -> bool {
    let fewer = |s: &&&Sample| s.ttft_ms < steps * s.tbot_ms;
    kept_up.iter().filter(fewer).count() as f64 <= FEWER * kept_up.len() as f64
}

/// Tokens of a sample.
#[must_use]
pub fn tokens(sample: &Sample) -> Tokens {
    let uncached_tokens = sample.uncached_tokens();
    Tokens {
        uncached_tokens,
        cached_tokens: (sample.prompt_tokens - uncached_tokens).max(0.0),
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
