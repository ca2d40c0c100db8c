//! What the tokens of an answer cost by what they read.
//!
//! An engine computes every token of an answer from the whole of what came before it: the prompt,
//! the part that a cache held included, and the answer so far. How much longer that takes with more
//! of it is one number, the context at which a token costs twice what it does with none. A token of
//! an answer has the prompt and half of the answer before it on average. Not here: what prompts
//! cost, which count by their tokens alone.

/// Tokens before a token of an answer, on average.
#[must_use]
pub fn mean(prompt_tokens: f64, output_tokens: f64) -> f64 {
    prompt_tokens + output_tokens / 2.0
}

/// An answer in tokens that have nothing before them: as many of those cost as much. `twice` is the
/// context at which one token costs as much as two of them; `None` where a context costs nothing.
/// The prompt's tokens include cached ones.
#[must_use]
pub fn answer_tokens(prompt_tokens: f64, output_tokens: f64, twice: Option<f64>) -> f64 {
    match twice {
        Some(twice) => output_tokens * (1.0 + mean(prompt_tokens, output_tokens) / twice),
        None => output_tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_costs_twice_at_the_context_that_says_so() {
        // Half of an answer of 200 tokens, and 900 of the prompt.
        assert_eq!(mean(900.0, 200.0), 1_000.0);
        assert_eq!(answer_tokens(900.0, 200.0, Some(1_000.0)), 400.0);
        assert_eq!(answer_tokens(3_900.0, 200.0, Some(1_000.0)), 1_000.0);
        assert_eq!(answer_tokens(900.0, 0.0, Some(1_000.0)), 0.0);
    }

    #[test]
    fn a_context_that_costs_nothing_leaves_the_answer_as_it_is() {
        assert_eq!(
            answer_tokens(4_000.0, 0.1, None).to_bits(),
            0.1_f64.to_bits()
        );
    }
}
