//! Tokens of a mean request: as a file states them, and what they cost an engine.
//!
//! Routes, and rates of capacities, are stated at a mix. Prompt tokens that a cache holds are not
//! computed, but an answer's tokens read them as they read the others (`context`).

use std::ops::Range;

use super::context;
use super::topology::{Capacity, Mix, TopologyError, locate::Source, raw};
use super::units::{NonNegative, Positive};

/// The keys of a mix.
pub(super) struct Given<'a> {
    /// `prompt_tokens`.
    pub(super) prompt: &'a raw::Number,
    /// `cached_tokens`.
    pub(super) cached: &'a raw::Number,
    /// `output_tokens`.
    pub(super) output: &'a raw::Number,
}

impl Mix {
    /// Engine-seconds that one request of this mix takes of an engine with all replicas ready.
    #[must_use]
    pub fn engine_seconds(self, capacity: &Capacity) -> f64 {
        // In units of the stated mix, so that the stated mix is exactly 1 / rps.
        let at = |mix: Mix| {
            mix.computed_tokens() * (capacity.decode_tps.value() / capacity.prefill_tps.value())
                + mix.answer_tokens(capacity.context_tokens)
        };
        at(self) / at(capacity.mix) / capacity.rps.value()
    }

    /// Tokens of the prompt that are computed. Of one that is cached as a whole the last token is
    /// all the same: the answer begins there.
    #[must_use]
    pub(super) fn computed_tokens(self) -> f64 {
        let prompt = self.prompt_tokens.value();
        (prompt - self.cached_tokens.value()).max(prompt.min(1.0))
    }

    /// The answer in tokens that read nothing, where a context costs something.
    #[must_use]
    pub(super) fn answer_tokens(self, context_tokens: Option<Positive>) -> f64 {
        context::answer_tokens(
            self.prompt_tokens.value(),
            self.output_tokens.value(),
            context_tokens.map(Positive::value),
        )
    }
}

/// The mix of such keys; `key` says how they are called, `span` is where they stand.
pub(super) fn read(
    source: &Source<'_>,
    key: &dyn Fn(&str) -> String,
    given: Given<'_>,
    default: Mix,
    span: Range<usize>,
) -> Result<Mix, TopologyError> {
    let tokens = |name, value: &raw::Number, default: NonNegative| {
        source.number_or::<NonNegative>(key(name), value.as_ref(), default.value())
    };
    let prompt_tokens = tokens("prompt_tokens", given.prompt, default.prompt_tokens)?;
    let output_tokens = tokens("output_tokens", given.output, default.output_tokens)?;
    if prompt_tokens.value() + output_tokens.value() <= 0.0 {
        let problem = key("prompt_tokens and output_tokens are both 0: one must be above 0");
        return Err(source.refuse(span, problem));
    }
    // Nothing is known of what caches hold of another prompt.
    let default = match given.prompt {
        Some(_) => NonNegative::default(),
        None => default.cached_tokens,
    };
    Ok(Mix {
        prompt_tokens,
        cached_tokens: cached(source, key, given.cached, (prompt_tokens, default))?,
        output_tokens,
    })
}

/// `cached_tokens`: of a prompt, or a default.
pub(super) fn cached(
    source: &Source<'_>,
    key: &dyn Fn(&str) -> String,
    given: &raw::Number,
    (prompt_tokens, default): (NonNegative, NonNegative),
) -> Result<NonNegative, TopologyError> {
    let Some(value) = given else {
        return Ok(default);
    };
    let cached: NonNegative = source.number(key("cached_tokens"), value)?;
    if cached <= prompt_tokens {
        return Ok(cached);
    }
    let allowed = format!("at most prompt_tokens, {}", prompt_tokens.value());
    Err(source.refuse_value(key("cached_tokens"), value, allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mix(prompt: f64, output: f64) -> Mix {
        Mix {
            prompt_tokens: NonNegative::new(prompt).unwrap(),
            cached_tokens: NonNegative::default(),
            output_tokens: NonNegative::new(output).unwrap(),
        }
    }

    fn capacity() -> Capacity {
        Capacity {
            rps: Positive::new(100.0).unwrap(),
            mix: mix(500.0, 100.0),
            prefill_tps: Positive::new(150_000.0).unwrap(),
            decode_tps: Positive::new(15_000.0).unwrap(),
            context_tokens: None,
            kv_tokens: None,
            assumed: false,
        }
    }

    #[test]
    fn the_stated_mix_takes_exactly_one_over_the_rate() {
        assert_eq!(mix(500.0, 100.0).engine_seconds(&capacity()), 0.01);
    }

    #[test]
    fn ten_times_the_tokens_is_exactly_ten_times_the_work() {
        assert_eq!(mix(5000.0, 1000.0).engine_seconds(&capacity()), 0.1);
    }

    #[test]
    fn cached_tokens_are_not_computed_but_the_last_one_of_a_prompt() {
        let cached = |tokens: f64| Mix {
            cached_tokens: NonNegative::new(tokens).unwrap(),
            ..mix(500.0, 100.0)
        };
        // 150 of tokens that answers' are worth in all: 50 of the prompt, and 0.1 of each.
        let seconds = |tokens| cached(tokens).engine_seconds(&capacity());
        assert_eq!(seconds(0.0), 0.01);
        assert_eq!(seconds(250.0), 125.0 / 150.0 / 100.0);
        assert_eq!(seconds(500.0), 100.1 / 150.0 / 100.0);
        assert_eq!(seconds(900.0), seconds(500.0));
        assert_eq!(
            mix(0.0, 100.0).engine_seconds(&capacity()),
            100.0 / 150.0 / 100.0
        );
    }

    #[test]
    fn an_answers_token_costs_more_the_more_it_reads_cached_or_not() {
        // Twice at 550: what a token of the stated mix reads. 50 of the prompt and 200 of answer.
        let reading = Capacity {
            context_tokens: Positive::new(550.0),
            ..capacity()
        };
        let seconds = |mix: Mix| mix.engine_seconds(&reading);
        assert_eq!(seconds(mix(500.0, 100.0)), 0.01);
        // 160 of the prompt, and each of 100 costs 1 + 1,650 / 550.
        assert_eq!(seconds(mix(1_600.0, 100.0)), 560.0 / 250.0 / 100.0);
        let cached = Mix {
            cached_tokens: NonNegative::new(1_600.0).unwrap(),
            ..mix(1_600.0, 100.0)
        };
        assert_eq!(seconds(cached), 400.1 / 250.0 / 100.0);
        // No answer, nothing read.
        assert_eq!(seconds(mix(1_600.0, 0.0)), 160.0 / 250.0 / 100.0);
    }
}
