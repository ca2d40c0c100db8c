//! What an answer's token costs by what it reads: measured, as the operator says, or assumed.
//!
//! One mix does not tell it: at each load as many answers run as tokens are read, and what either
//! costs looks the same. Mixes of unlike contexts do, by the loads at which they filled the engine.
//! What one mix leaves out, though, is not nothing: it is how long the answers of another take. So
//! without such mixes it is assumed, and told to be; but not of an engine whose tokens come as fast
//! under load as without, which no reading slows down.

use super::Tokens;
use super::mixes::Mixed;
use super::regress;
use crate::model::context;
use crate::model::units::Positive;

/// Context at which an answer's token is taken to cost twice what it does with none, tokens.
///
/// An engine computes about 2 operations a parameter for a token, and reads the keys and values of
/// its context. Of a model of 8 billion parameters, in 16 bits, on a GPU of 3.35 TB/s that does
/// 0.5e15 operations a second, that is 32 µs and 0.039 µs (131 KB) a token of context: as much at
/// some 800. Of 70 billion it is some 3,000, of 405 billion 5,000 to 10,000. Taking a context to
/// cost too much errs by more than taking it to cost too little, so it is the upper end.
const ASSUMED: f64 = 10_000.0;
/// Mixes that filled the engine, to tell three costs.
const LEAST_MIXES: usize = 3;
/// Least part of what is read that prompts and answers of the mixes do not follow: what it costs is
/// then known to a tenth of the work where loads are to a thirtieth.
const APART: f64 = 0.3;
/// A part of the work below this is not told apart from none.
const LEAST_PART: f64 = 0.03;

/// Who says what a context costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Source {
    /// The samples, where they do; else it is assumed.
    #[default]
    Samples,
    /// The operator: nothing.
    Nothing,
    /// The operator: an answer's token costs twice at so many tokens what it does at none.
    Tokens(Positive),
}

/// How it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// By the loads at which mixes of unlike contexts filled the engine.
    Mixes,
    /// By the operator.
    Given,
    /// Tokens come as fast under load as without: it is taken to cost nothing.
    Level,
    /// Not at all: a usual one is assumed.
    Assumed,
}

/// What an answer's token costs by its context.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Context {
    /// Context at which a token costs twice what it does with none; `None` where one costs nothing.
    pub tokens: Option<f64>,
    /// How that was told.
    pub told: Told,
}

impl std::str::FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::Nothing);
        }
        let tokens = text.parse().ok().and_then(Positive::new).map(Self::Tokens);
        tokens.ok_or_else(|| format!("{text:?}: must be a number of tokens above 0, or none"))
    }
}

impl Context {
    /// By mixes, or what else there is; `rises` says whether tokens come slower under load.
    pub(super) fn of(source: Source, mixes: &[Mixed], rises: bool) -> Self {
        let (tokens, told) = match source {
            Source::Nothing => (None, Told::Given),
            Source::Tokens(tokens) => (Some(tokens.value()), Told::Given),
            Source::Samples => match by_mixes(mixes) {
                Some(tokens) => (tokens, Told::Mixes),
                None if rises => (Some(ASSUMED), Told::Assumed),
                None => (None, Told::Level),
            },
        };
        Self { tokens, told }
    }

    /// An answer in tokens that read nothing.
    pub(super) fn answer_tokens(self, tokens: Tokens) -> f64 {
        context::answer_tokens(tokens.prompt_tokens(), tokens.output_tokens, self.tokens)
    }
}

/// By what filled the engine: load x (prompt p + output d + output x context c) = 1 at each mix,
/// and a token costs twice at d / c. `None` where mixes do not tell, `Some(None)` where they tell
/// that it costs nothing.
fn by_mixes(mixes: &[Mixed]) -> Option<Option<f64>> {
    let full = mixes.iter().filter(|m| m.saturation_rps.is_some());
    let column = |value: fn(Tokens) -> f64| -> Vec<f64> {
        let cell = |m: &Mixed| Some(m.saturation_rps? * value(m.tokens()));
        mixes.iter().filter_map(cell).collect()
    };
    let read = |t: Tokens| t.output_tokens * context::mean(t.prompt_tokens(), t.output_tokens);
    let columns = [
        column(|t| t.uncached_tokens),
        column(|t| t.output_tokens),
        column(read),
    ];
    if full.count() < LEAST_MIXES || apart(&columns)? < APART {
        return None;
    }
    let costs = regress::non_negative_least_squares(&columns, &vec![1.0; columns[0].len()]);
    let most = |j: usize| {
        columns[j]
            .iter()
            .fold(0.0, |most: f64, x| most.max(x * costs[j]))
    };
    if most(0) < LEAST_PART || most(1) < LEAST_PART {
        return None;
    }
    Some((most(2) >= LEAST_PART).then(|| costs[1] / costs[2]))
}

/// Part of the third column that the first two do not explain; `None` where these are one.
fn apart([first, second, third]: &[Vec<f64>; 3]) -> Option<f64> {
    let found = regress::least_squares(&[first, second], third)?;
    let left = |k: usize| third[k] - found[0] * first[k] - found[1] * second[k];
    let left: Vec<f64> = (0..third.len()).map(left).collect();
    Some(regress::norm(&left) / regress::norm(third))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mix that fills an engine of 50 µs a prompt token and 100 µs an answer's, twice that at
    /// `twice`, but for a factor.
    fn full(prompt: f64, cached: f64, output: f64, twice: Option<f64>, factor: f64) -> Mixed {
        let answer = context::answer_tokens(prompt, output, twice);
        Mixed {
            prompt_tokens: prompt,
            uncached_tokens: prompt - cached,
            output_tokens: output,
            members: Vec::new(),
            saturation_rps: Some(factor / ((prompt - cached) * 5e-5 + answer * 1e-4)),
        }
    }

    #[test]
    fn three_unlike_mixes_tell_what_a_context_costs_of_an_ideal_engine() {
        for twice in [500.0, 5_000.0, 20_000.0] {
            let full = |prompt, cached, output| full(prompt, cached, output, Some(twice), 1.0);
            let mixes = [
                full(300.0, 0.0, 100.0),
                full(8_000.0, 6_000.0, 800.0),
                full(6_000.0, 0.0, 100.0),
                full(500.0, 0.0, 600.0),
            ];
            for some in [&mixes[..3], &mixes[..]] {
                let found = Context::of(Source::Samples, some, true);
                assert_eq!(found.told, Told::Mixes);
                let tokens = found.tokens.unwrap();
                assert!((tokens / twice - 1.0).abs() < 1e-6, "{tokens}, not {twice}");
            }
        }
    }

    #[test]
    fn mixes_tell_that_a_context_costs_nothing() {
        let mixes = [(300.0, 100.0), (8_000.0, 800.0), (6_000.0, 100.0)]
            .map(|(prompt, output)| full(prompt, 0.0, output, None, 1.0));
        let nothing = Context {
            tokens: None,
            told: Told::Mixes,
        };
        assert_eq!(Context::of(Source::Samples, &mixes, true), nothing);
        // Costs below nothing are nothing.
        let mut mixes = mixes;
        mixes[1].saturation_rps = mixes[1].saturation_rps.map(|rps| 1.1 * rps);
        assert_eq!(Context::of(Source::Samples, &mixes, true), nothing);
    }

    #[test]
    fn what_mixes_do_not_tell_apart_is_assumed_and_told_to_be() {
        let of = |mixes: &[Mixed], rises| Context::of(Source::Samples, mixes, rises);
        let assumed = Context {
            tokens: Some(ASSUMED),
            told: Told::Assumed,
        };
        let like = [(1_000.0, 200.0), (1_200.0, 240.0), (4_000.0, 200.0)]
            .map(|(prompt, output)| full(prompt, 0.0, output, Some(5_000.0), 1.0));
        assert_eq!(of(&like, true), assumed);
        // Three are needed that filled it.
        let mut unlike = [(300.0, 100.0), (8_000.0, 800.0), (6_000.0, 100.0)]
            .map(|(prompt, output)| full(prompt, 0.0, output, Some(5_000.0), 1.0));
        assert_eq!(of(&unlike, true).told, Told::Mixes);
        unlike[1].saturation_rps = None;
        assert_eq!(of(&unlike, true), assumed);
        assert_eq!(of(&unlike[..1], true), assumed);
        // Where tokens come as fast under load, nothing is.
        let level = Context {
            tokens: None,
            told: Told::Level,
        };
        assert_eq!(of(&unlike[..1], false), level);
    }

    #[test]
    fn what_the_operator_says_stands_before_what_samples_do() {
        let mixes = [(300.0, 100.0), (8_000.0, 800.0), (6_000.0, 100.0)]
            .map(|(prompt, output)| full(prompt, 0.0, output, Some(5_000.0), 1.0));
        let of = |text: &str| Context::of(text.parse().unwrap(), &mixes, true);
        let given = |tokens| Context {
            tokens,
            told: Told::Given,
        };
        assert_eq!(of("none"), given(None));
        assert_eq!(of("2500"), given(Some(2_500.0)));
        for bad in ["0", "-1", "inf", "many", ""] {
            let refused = bad.parse::<Source>().unwrap_err();
            let wanted = format!("{bad:?}: must be a number of tokens above 0, or none");
            assert_eq!(refused, wanted);
        }
    }
}
