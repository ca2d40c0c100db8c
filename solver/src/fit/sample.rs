//! One measurement: an engine under one load, and what it answered.
//!
//! Engine side only: whoever makes a sample has taken connect, upload and the round trip off its
//! times. Where the samples come from (`read`, `recorded`) and what becomes of them (`work`,
//! `curve`) is not here.

/// Below this part of what was offered, what was completed shows that the engine is full.
pub const KEEPS_UP: f64 = 0.95;
/// Above this share of failed requests an engine is full, whatever the rest took.
pub const FAILS: f64 = 0.02;

/// An engine under one load.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// GPU and engine type.
    pub kind: String,
    /// Model; empty where it does not matter.
    pub model: String,
    /// Requests that came in, per second.
    pub load_rps: f64,
    /// Requests answered, per second, where counted.
    pub completed_rps: Option<f64>,
    /// Share of requests that were refused or broke.
    pub failed_share: f64,
    /// Mean tokens of a prompt.
    pub prompt_tokens: f64,
    /// Share of those that the engine had in its cache.
    pub hit_rate: f64,
    /// Mean tokens of an answer.
    pub output_tokens: f64,
    /// Time to the first token, milliseconds.
    pub ttft_ms: f64,
    /// Time between two tokens, milliseconds.
    pub tbot_ms: f64,
    /// Share of the KV memory in use, where known.
    pub kv_use: Option<f64>,
    /// Time it covers, seconds: what it counts.
    pub seconds: f64,
}

impl Sample {
    /// Prompt tokens that had to be worked through: at least one, since the last is never cached.
    #[must_use]
    pub fn uncached_tokens(&self) -> f64 {
        (self.prompt_tokens * (1.0 - self.hit_rate)).max(1.0)
    }

    /// Whether the engine could not keep up: its times then tell how long it was overloaded.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        let behind = |completed: f64| completed < KEEPS_UP * self.load_rps;
        self.completed_rps.is_some_and(behind) || self.failed_share > FAILS
    }

    /// What it got done, requests per second.
    #[must_use]
    pub fn done_rps(&self) -> f64 {
        let answered = self.load_rps * (1.0 - self.failed_share);
        self.completed_rps
            .map_or(answered, |c| c.min(self.load_rps))
    }

    /// Tokens resident in KV memory by Little's law: each prompt for the whole answer, and the
    /// answer's tokens, half of them at a time.
    #[must_use]
    pub fn resident_tokens(&self) -> f64 {
        let answer_s = self.output_tokens * self.tbot_ms / 1e3;
        let prompts = self.prompt_tokens * (self.ttft_ms / 1e3 + answer_s);
        self.done_rps() * (prompts + self.output_tokens * answer_s / 2.0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A sample of a round mix.
    pub(in crate::fit) fn sample(load_rps: f64, ttft_ms: f64, tbot_ms: f64) -> Sample {
        Sample {
            kind: "k".into(),
            model: "m".into(),
            load_rps,
            completed_rps: None,
            failed_share: 0.0,
            prompt_tokens: 1_000.0,
            hit_rate: 0.0,
            output_tokens: 100.0,
            ttft_ms,
            tbot_ms,
            kv_use: None,
            seconds: 1.0,
        }
    }

    #[test]
    fn an_engine_that_falls_behind_or_fails_is_full() {
        let mut one = sample(10.0, 50.0, 10.0);
        assert!(!one.is_saturated());
        one.completed_rps = Some(9.6);
        assert!(!one.is_saturated());
        one.completed_rps = Some(9.4);
        assert!(one.is_saturated());
        assert_eq!(one.done_rps(), 9.4);
        one.completed_rps = None;
        one.failed_share = 0.25;
        assert!(one.is_saturated());
        assert_eq!(one.done_rps(), 7.5);
    }

    #[test]
    fn a_fully_cached_prompt_still_works_through_one_token() {
        let mut one = sample(1.0, 50.0, 10.0);
        one.hit_rate = 0.75;
        assert_eq!(one.uncached_tokens(), 250.0);
        one.hit_rate = 1.0;
        assert_eq!(one.uncached_tokens(), 1.0);
    }

    #[test]
    fn resident_tokens_follow_littles_law() {
        // 2 requests/s of 500 + 1,000 ms: 1,000 prompt tokens each, and half of 100 for 1,000 ms.
        assert_eq!(
            sample(2.0, 500.0, 10.0).resident_tokens(),
            2.0 * (1_500.0 + 50.0)
        );
    }
}
