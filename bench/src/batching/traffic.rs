//! Requests as they come in: when, how long, how much of them the engine has in its cache.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Share of a follow-up's prompt that the engine has seen: all but what was said last.
const SEEN: f64 = 0.9;

/// Requests of one kind, by a Poisson process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Requests per second.
    pub load_rps: f64,
    /// Mean tokens of a prompt; each has from half to one and a half of that.
    pub prompt_tokens: f64,
    /// Share of prompt tokens found in the cache, at most 0.9: some requests follow an earlier one
    /// and find nine tenths of their prompt, the others find nothing.
    pub hit_rate: f64,
    /// Mean tokens of an answer, spread as prompts.
    pub output_tokens: f64,
    /// How many.
    pub requests: usize,
    /// Of all randomness.
    pub seed: u64,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// When it comes in, milliseconds.
    pub at_ms: f64,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Of those, found in the cache.
    pub cached_tokens: u64,
    /// Tokens of its answer, at least one.
    pub output_tokens: u64,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            load_rps: 1.0,
            prompt_tokens: 1_000.0,
            hit_rate: 0.0,
            output_tokens: 200.0,
            requests: 1_000,
            seed: 1,
        }
    }
}

impl Traffic {
    /// The requests, by rising time.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        debug_assert!((0.0..=SEEN).contains(&self.hit_rate));
        let mut rng = SmallRng::seed_from_u64(self.seed);
        let mut at_ms = 0.0;
        let length = |mean: f64, rng: &mut SmallRng| {
            let tokens = mean * rng.random_range(0.5..1.5);
            (tokens.round() as u64).max(1)
        };
        (0..self.requests)
            .map(|_| {
                let uniform: f64 = rng.random();
                at_ms += -(1.0 - uniform).ln() / self.load_rps * 1e3;
                let prompt_tokens = length(self.prompt_tokens, &mut rng);
                let follows = rng.random_bool((self.hit_rate / SEEN).min(1.0));
                let seen = if follows { SEEN } else { 0.0 };
                Request {
                    at_ms,
                    prompt_tokens,
                    cached_tokens: (prompt_tokens as f64 * seen) as u64,
                    output_tokens: length(self.output_tokens, &mut rng),
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_what_was_asked_for() {
        let traffic = Traffic {
            load_rps: 5.0,
            hit_rate: 0.7,
            requests: 20_000,
            ..Traffic::default()
        };
        let requests = traffic.requests();
        let sum = |value: fn(&Request) -> u64| requests.iter().map(value).sum::<u64>() as f64;
        let count = requests.len() as f64;
        let (prompt, output) = (sum(|r| r.prompt_tokens), sum(|r| r.output_tokens));
        assert!((prompt / count / 1_000.0 - 1.0).abs() < 0.02);
        assert!((output / count / 200.0 - 1.0).abs() < 0.02);
        assert!((sum(|r| r.cached_tokens) / prompt - 0.7).abs() < 0.01);
        assert!((requests[requests.len() - 1].at_ms / 1e3 * 5.0 / count - 1.0).abs() < 0.03);
    }
}
